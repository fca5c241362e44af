//! Peers that are not what they should be.

use futures::io::{AsyncReadExt, AsyncWriteExt};
use libp2p::futures::StreamExt;
use libp2p::swarm::{ConnectionId, SwarmEvent};
use libp2p::{Stream, Swarm};
use tokio::sync::oneshot;

use super::*;
use crate::handshake::Identity;
use crate::stream::Purpose;
use crate::swarm::{self, Behaviour};

/// Nothing that a refused peer does makes a link, and each is told, or not told, as it should be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn threat_a4_a_revoked_device_is_cut_off_and_refused() {
    let mut world = World::new(20, 2);
    let (mut a, mut b) = (world.start(0).await, world.start(1).await);
    linked(&mut b, &mut a).await;
    world.append(Body::DeviceRevoked { device: b.id });
    a.view.send_replace(Arc::new(world.view(false)));
    let reason = a.until_down(b.id).await;
    assert!(reason.contains("revoked"), "{reason}");
    // The revoked one, which has not seen its revocation, is told.
    let reason = b.until_down(a.id).await;
    assert!(reason.contains("revoked"), "{reason}");
    assert_eq!(b.net.links()[0].state, LinkState::Down);
    assert!(a.net.links().is_empty());

    // And it does not go on knocking.
    b.net.probe();
    let again = timeout(Duration::from_millis(500), b.until_up(a.id)).await;
    assert!(again.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_p13_a_device_that_is_not_enrolled_is_told_so() {
    let mut world = World::new(21, 2);
    let before = world.view(false);
    world.enrol(Arc::new(DeviceKeys::generate(&mut ChaCha20Rng::seed_from_u64(99))));
    // The first node has not heard of the third's enrolment.
    let mut a = world.start_with(0, "/ip4/127.0.0.1/tcp/0".parse().unwrap(), before, |_| {}).await;
    let mut c = world.start(2).await;
    c.want(&a);
    let status = c.until_status(a.id, |status| status.reason.is_some()).await;
    let reason = status.reason.unwrap();
    assert!(reason.contains("not enrolled") && reason.contains("entry 3"), "{reason}");
    assert_eq!(status.state, LinkState::Down);

    // It hears of it, and the link comes up: by the other side's try, for the refused one waits.
    a.view.send_replace(Arc::new(world.view(false)));
    a.want(&c);
    both_up(&mut a, &mut c).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_link_key_gets_no_answer_at_all() {
    let mut world = World::new(22, 2);
    let mut a = world.start(0).await;
    let right = std::mem::replace(&mut world.link_key, LinkKey::generate(1, &mut ChaCha20Rng::seed_from_u64(5)));
    let mut b = world.start(1).await;
    b.want(&a);
    let status = b.until_status(a.id, |status| status.reason.is_some()).await;
    assert!(status.reason.as_ref().unwrap().contains("did not answer"), "{status:?}");
    assert!(a.net.links().is_empty());

    // Whoever has two keys is answered under either.
    world.link_key = right;
    let mut both = world.view(false);
    both.link_keys.insert(0, LinkKey::generate(2, &mut ChaCha20Rng::seed_from_u64(6)));
    let newer = both.link_keys[0].clone();
    a.view.send_replace(Arc::new(both.clone()));
    b.view.send_replace(Arc::new(world.view(false)));
    both_up(&mut a, &mut b).await;
    both.link_keys = vec![newer];
    drop(b);
    let mut b = world.start_with(1, "/ip4/127.0.0.1/tcp/0".parse().unwrap(), both, |_| {}).await;
    b.want(&a);
    both_up(&mut a, &mut b).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_device_at_the_address_is_no_link() {
    let mut world = World::new(23, 3);
    let (mut a, mut b, c) = (world.start(0).await, world.start(1).await, world.start(2).await);
    // The address and peer id are those of another node of the org.
    a.want_at(b.id, c.hints());
    let status = a.until_status(b.id, |status| status.reason.is_some()).await;
    assert!(status.reason.unwrap().contains("another device"));
    a.want(&b);
    both_up(&mut a, &mut b).await;
}

/// A swarm without a node.
struct Rogue {
    swarm: Swarm<Behaviour>,
    to: PeerId,
    connection: ConnectionId,
}

impl Rogue {
    async fn connect(key: Keypair, to: &Node) -> Self {
        let transport = transport(&key, &addr::Guard::with_loopback(true)).unwrap();
        let mut swarm = swarm::build(&key, transport, true);
        swarm.dial(to.entrances().remove(0)).unwrap();
        loop {
            if let SwarmEvent::ConnectionEstablished { peer_id, connection_id, .. } = swarm.select_next_some().await {
                return Self { swarm, to: peer_id, connection: connection_id };
            }
        }
    }

    async fn open(&mut self, purpose: Purpose) -> Stream {
        let (reply, mut answer) = oneshot::channel();
        self.swarm.behaviour_mut().streams.open(self.to, self.connection, purpose, reply);
        loop {
            tokio::select! {
                stream = &mut answer => return stream.unwrap().unwrap(),
                _ = self.swarm.select_next_some() => {}
            }
        }
    }

    /// Runs the swarm until something is done.
    async fn during<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return done,
                _ = self.swarm.select_next_some() => {}
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn threat_w1_garbage_ends_its_own_stream_only() {
    let mut world = World::new(24, 2);
    let (mut a, mut b) = (world.start(0).await, world.start(1).await);
    linked(&mut a, &mut b).await;
    let mut rng = ChaCha20Rng::seed_from_u64(7);
    let mut rogue = Rogue::connect(Keypair::generate_ed25519(), &a).await;
    for round in 0..60 {
        let purpose = [Purpose::Link, Purpose::Lane, Purpose::Pair][round % 3];
        let mut stream = rogue.open(purpose).await;
        let mut garbage = vec![0; usize::try_from(rng.next_u64() % 5000).unwrap()];
        rng.fill_bytes(&mut garbage);
        if round % 2 == 0 {
            // A length that fits, so that the garbage is taken for a message.
            garbage.splice(0..0, [0, 56]);
        }
        rogue
            .during(async {
                // Writes may fail already: the far side has hung up.
                let _ = stream.write_all(&garbage).await;
                let _ = stream.close().await;
                let mut answer = Vec::new();
                if purpose == Purpose::Link && garbage.len() > 64 {
                    let _ = stream.read_to_end(&mut answer).await;
                }
                assert!(answer.is_empty(), "garbage was answered");
            })
            .await;
    }
    a.net.send(b.id, numbered(1), Vec::new()).unwrap();
    b.until(|event| number_of(event) == Some((Lane::Control, 1))).await;
    assert_eq!(a.net.links()[0].state, LinkState::Up);
}

/// Many strangers that begin handshakes and leave it at that do not keep a wanted node out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn threat_w5_a_flood_of_half_open_handshakes_does_not_keep_a_node_out() {
    let mut world = World::new(27, 2);
    let mut home = world.start(0).await;
    let mut rogues = Vec::new();
    for _ in 0..80 {
        let mut rogue = Rogue::connect(Keypair::generate_ed25519(), &home).await;
        let mut stream = rogue.open(Purpose::Link).await;
        // Beyond the bound the far side hangs up at once.
        let _ = rogue.during(async { stream.write_all(&[0, 56, 1, 2, 3]).await }).await;
        rogues.push((rogue, stream));
    }
    let mut resident = world.start(1).await;
    home.want_at(resident.id, PeerHints { peer_id: Some(resident.net.peer_id()), addrs: Vec::new() });
    resident.want(&home);
    let begun = std::time::Instant::now();
    both_up(&mut home, &mut resident).await;
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
}

/// A device of the org that has lost its mind: its own link ends, and nobody else's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_after_the_handshake_ends_that_link_only() {
    let mut world = World::new(25, 3);
    let (mut a, mut b) = (world.start(0).await, world.start(1).await);
    linked(&mut a, &mut b).await;
    let key = transport_key(&world.keys[2]);
    let view = Arc::new(world.view(false));
    let peer = key.public().to_peer_id();
    let identity = Identity { keys: world.keys[2].clone(), peer, view };
    let mut rng = ChaCha20Rng::seed_from_u64(8);
    for round in 0..12 {
        let mut rogue = Rogue::connect(key.clone(), &a).await;
        let mut stream = rogue.open(Purpose::Link).await;
        let (to, with) = (rogue.to, a.id);
        let shaken = rogue.during(identity.initiate(&mut stream, to, with, rng.fork())).await;
        let mut session = shaken.unwrap().session;
        let mut garbage = vec![0; 300];
        rng.fill_bytes(&mut garbage);
        let mut bytes = Vec::new();
        match round % 3 {
            // No record of the session at all.
            0 => bytes = garbage,
            // A record of garbage.
            1 => session.seal(&garbage, &mut bytes).unwrap(),
            // A frame whose length says 4 GiB.
            _ => session.seal(&[0xff; 40], &mut bytes).unwrap(),
        }
        rogue
            .during(async {
                stream.write_all(&bytes).await.unwrap();
                stream.close().await.unwrap();
                // It hangs up.
                let _ = stream.read_to_end(&mut Vec::new()).await;
            })
            .await;
    }
    a.net.send(b.id, numbered(1), Vec::new()).unwrap();
    b.until(|event| number_of(event) == Some((Lane::Control, 1))).await;
    assert_eq!(a.net.links()[0].state, LinkState::Up);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn threat_l9_addresses_learnt_from_others_are_checked_before_they_are_dialled() {
    let mut world = World::new(26, 2);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    // Not a loopback-only node.
    let view = world.view(false);
    let mut a = world.start_with(0, "/ip4/0.0.0.0/tcp/0".parse().unwrap(), view, |_| {}).await;
    let addrs = ["/ip4/127.0.0.1", "/ip6/::ffff:127.0.0.1", "/ip4/169.254.169.254", "/ip4/0.0.0.0"];
    let addrs = addrs.map(|ip| format!("{ip}/tcp/{port}").parse().unwrap()).to_vec();
    a.want_at(world.id(1), PeerHints { peer_id: Some(PeerId::random()), addrs });
    let status = a.until_status(world.id(1), |status| status.reason.is_some()).await;
    assert!(status.reason.unwrap().contains("loopback"));
    assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}
