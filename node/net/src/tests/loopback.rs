//! Over real TCP and QUIC on loopback.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_pass_on_all_lanes_in_order() {
    const FRAMES: u64 = 500;
    let mut world = World::new(1, 2);
    let (mut a, mut b) = (world.start(0).await, world.start(1).await);
    linked(&mut a, &mut b).await;

    let lanes = [Lane::Control, turn(1), turn(2), Lane::Bulk(9)];
    for lane in lanes {
        let (net, to) = (a.net.clone(), b.id);
        tokio::spawn(async move {
            for number in 0..FRAMES {
                let size = usize::try_from(number * 37 % 3000).unwrap();
                net.send_lane(to, lane, numbered(number), vec![number as u8; size]).await.unwrap();
                if number % 100 == 99 {
                    // The next frame opens the lane anew.
                    net.end_lane(to, lane);
                }
            }
        });
    }
    let mut next = BTreeMap::from(lanes.map(|lane| (lane, 0)));
    while next.values().any(|next| *next < FRAMES) {
        let event = b.until(|event| number_of(event).is_some()).await;
        let (lane, number) = number_of(&event).unwrap();
        assert_eq!(next.insert(lane, number + 1), Some(number), "{lane:?}");
        let NetEvent::Frame { node, tail, .. } = event else { unreachable!() };
        assert_eq!((node, tail.len() as u64), (a.id, number * 37 % 3000));
        assert!(tail.iter().all(|byte| *byte == number as u8));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quic_carries_a_link_too() {
    let mut world = World::new(2, 2);
    let view = world.view(false);
    let mut a = world.start(0).await;
    let mut b = world.start_with(1, "/ip4/127.0.0.1/udp/0/quic-v1".parse().unwrap(), view, |_| {}).await;
    linked(&mut a, &mut b).await;
    a.net.send(b.id, numbered(7), b"tail".to_vec()).unwrap();
    b.until(|event| number_of(event) == Some((Lane::Control, 7))).await;
    let status = a.net.links().remove(0);
    assert_eq!((status.state, status.path), (LinkState::Up, Some(Path::Lan)));
}

/// A big transfer and control frames share a link; control frames must not wait for the transfer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_x3_bulk_does_not_delay_control_frames() {
    const CHUNK: usize = 256 * 1024;
    const CHUNKS: u64 = 400;
    let mut world = World::new(3, 2);
    let (mut a, mut b) = (world.start(0).await, world.start(1).await);
    linked(&mut a, &mut b).await;

    let begun = std::time::Instant::now();
    let (net, to) = (a.net.clone(), b.id);
    let bulk = tokio::spawn(async move {
        for number in 0..CHUNKS {
            net.send_lane(to, Lane::Bulk(1), numbered(number), vec![0; CHUNK]).await.unwrap();
        }
    });
    let (answers, from) = (b.net.clone(), a.id);
    let reader = tokio::spawn(async move {
        let mut chunks = 0;
        while chunks < CHUNKS {
            match b.events.recv().await.unwrap() {
                NetEvent::Frame { message: Message::FeedEnd { call }, .. } => {
                    answers.send(from, Message::FeedEnd { call }, Vec::new()).unwrap();
                }
                event => chunks += u64::from(number_of(&event).is_some()),
            }
        }
        b
    });
    let mut waits = Vec::new();
    while !reader.is_finished() {
        let asked = std::time::Instant::now();
        a.net.send(to, Message::FeedEnd { call: 1 }, Vec::new()).unwrap();
        // The last question may come when the reader has left.
        while !reader.is_finished() {
            match timeout(Duration::from_millis(50), a.events.recv()).await {
                Ok(Some(NetEvent::Frame { .. })) => {
                    waits.push(asked.elapsed());
                    break;
                }
                Ok(other) => panic!("{other:?}"),
                Err(_) => assert!(asked.elapsed() < Duration::from_secs(5), "a control frame waited for 5 s"),
            }
        }
    }
    bulk.await.unwrap();
    let whole = begun.elapsed();
    waits.sort();
    let median = waits[waits.len() / 2];
    println!("{} MB in {whole:?}; {} round trips meanwhile, median {median:?}", CHUNKS / 4, waits.len());
    assert!(waits.len() > 5, "only {} round trips during the transfer", waits.len());
    assert!(median * 10 < whole, "median {median:?} of {whole:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_peer_is_linked_again() {
    let mut world = World::new(4, 2);
    let (mut a, mut b) = (world.start(0).await, world.start(1).await);
    linked(&mut a, &mut b).await;
    let listen = b.net.listening().remove(0);
    b.net.shutdown().await;
    let reason = a.until_down(b.id).await;
    assert!(reason.contains("stopping"), "{reason}");
    assert_eq!(a.net.links()[0].state, LinkState::Down);
    drop(b);

    let view = world.view(false);
    let mut b = world.start_with(1, listen, view, |_| {}).await;
    both_up(&mut a, &mut b).await;
    b.net.send(a.id, numbered(1), Vec::new()).unwrap();
    a.until(|event| number_of(event) == Some((Lane::Control, 1))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_find_each_other_by_one_bootstrap_peer() {
    let mut world = World::new(5, 3);
    let listen: Multiaddr = "/ip4/127.0.0.1/tcp/0".parse().unwrap();
    let views = [world.view(false), world.view(true), world.view(false)];
    let [entrance, home, resident] = views;
    let entrance = world.start_with(0, listen.clone(), entrance, |_| {}).await;
    let bootstrap = entrance.entrances();
    let mut home = world.start_with(1, listen.clone(), home, |config| config.bootstrap = bootstrap.clone()).await;
    let mut resident = world.start_with(2, listen, resident, |config| config.bootstrap = bootstrap).await;
    // Only who it is, not where: neither address nor peer id.
    resident.want_at(home.id, PeerHints::default());
    both_up(&mut resident, &mut home).await;

    // And by peer id alone.
    let hints = PeerHints { peer_id: Some(resident.net.peer_id()), addrs: Vec::new() };
    let (mut entrance, mut resident) = (entrance, resident);
    entrance.want_at(resident.id, hints);
    both_up(&mut entrance, &mut resident).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_port_is_an_error_of_its_own() {
    let mut world = World::new(6, 2);
    let a = world.start(0).await;
    let (config, _) = world.config(1, a.net.listening().remove(0));
    let (_view, org) = watch::channel(Arc::new(world.view(false)));
    let error = Net::spawn(config, org).unwrap_err();
    assert!(error.is_port_busy(), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lanes_wait_for_a_slow_reader_and_lose_nothing() {
    const FRAMES: u64 = 300;
    let mut world = World::new(7, 2);
    let (mut a, mut b) = (world.start(0).await, world.start(1).await);
    linked(&mut a, &mut b).await;
    let (net, to) = (a.net.clone(), b.id);
    let sender = tokio::spawn(async move {
        for number in 0..FRAMES {
            net.send_lane(to, Lane::Bulk(1), numbered(number), vec![0; 200_000]).await.unwrap();
        }
    });
    // While nobody reads, the sender comes to a stop: 60 MB don't fit into the queues between.
    let unread = timeout(Duration::from_millis(300), async {
        while !sender.is_finished() {
            tokio::task::yield_now().await
        }
    });
    assert!(unread.await.is_err(), "everything was sent although nobody reads");
    for number in 0..FRAMES {
        let event = b.until(|event| number_of(event).is_some()).await;
        assert_eq!(number_of(&event), Some((Lane::Bulk(1), number)));
    }
    sender.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixteen_lanes_opened_at_once_all_arrive() {
    let mut world = World::new(8, 2);
    let (mut a, mut b) = (world.start(0).await, world.start(1).await);
    linked(&mut a, &mut b).await;
    let sends = (0..100).map(|run| a.net.send_lane(b.id, turn(run), numbered(run), Vec::new()));
    for sent in futures::future::join_all(sends).await {
        sent.unwrap();
    }
    let mut seen = std::collections::BTreeSet::new();
    while seen.len() < 100 {
        let event = b.until(|event| number_of(event).is_some()).await;
        let (lane, number) = number_of(&event).unwrap();
        assert_eq!(lane, turn(number));
        seen.insert(number);
    }
}

/// Both sides speak as soon as they hear that the link is up: neither one's first words are a breach.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn first_words_of_either_side_are_heard() {
    async fn greet(mut node: Node, other: NodeId) -> Node {
        node.until_up(other).await;
        for number in 0..3 {
            node.net.send(other, numbered(number), Vec::new()).unwrap();
        }
        for number in 0..3 {
            let wanted = |event: &NetEvent| matches!(event, NetEvent::LinkDown { .. }) || number_of(event).is_some();
            let event = node.until(wanted).await;
            assert_eq!(number_of(&event), Some((Lane::Control, number)), "{event:?}");
        }
        node
    }
    for seed in 60..80 {
        let mut world = World::new(seed, 2);
        let (a, b) = (world.start(0).await, world.start(1).await);
        a.want(&b);
        let (a_id, b_id) = (a.id, b.id);
        let (a, b) = tokio::join!(tokio::spawn(greet(a, b_id)), tokio::spawn(greet(b, a_id)));
        drop((a.unwrap(), b.unwrap()));
    }
}
