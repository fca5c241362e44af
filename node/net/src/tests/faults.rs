//! In memory and under paused time: what takes minutes on a clock takes milliseconds here.

use tokio::time::{Instant, sleep};

use super::*;
use crate::health::{DOWN_AFTER_MS, HURRIED_MS, PROBE_EVERY_MS, SUSPECT_AFTER_MS};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[tokio::test(start_paused = true)]
async fn a_dead_peer_is_suspected_and_then_given_up() {
    let mut world = World::new(40, 2);
    let ((mut a, _), (mut b, cut)) = (world.start_in_memory(0).await, world.start_in_memory(1).await);
    linked(&mut a, &mut b).await;
    sleep(ms(60_000)).await;
    assert_eq!(a.net.links()[0].state, LinkState::Up, "an idle link stays up");

    cut.store(true, Ordering::Relaxed);
    let gone = Instant::now();
    a.until_status(b.id, |status| status.state == LinkState::Suspect).await;
    assert!(gone.elapsed() < ms(SUSPECT_AFTER_MS + PROBE_EVERY_MS), "{:?}", gone.elapsed());
    let reason = a.until_down(b.id).await;
    assert!(gone.elapsed() < ms(DOWN_AFTER_MS + PROBE_EVERY_MS), "{:?}", gone.elapsed());
    assert!(reason.contains("no probe answered for"), "{reason}");
    b.until_down(a.id).await;

    // It comes back after an hour: tries go on for ever, and slowly.
    sleep(ms(3_600_000)).await;
    cut.store(false, Ordering::Relaxed);
    // At most the try that is under way, and one delay.
    sleep(ms(60_000)).await;
    both_up(&mut a, &mut b).await;
}

#[tokio::test(start_paused = true)]
async fn case_c5_after_sleep_links_are_probed_at_once_and_redialled() {
    let mut world = World::new(41, 2);
    let ((mut a, _), (mut b, cut)) = (world.start_in_memory(0).await, world.start_in_memory(1).await);
    linked(&mut a, &mut b).await;
    sleep(ms(5_000)).await;

    // A jump that the link survives.
    a.wall.fetch_add(140_000, Ordering::Relaxed);
    sleep(ms(HURRIED_MS + 2_500)).await;
    assert_eq!(a.net.links()[0].state, LinkState::Up);

    // One that it does not: known dead within seconds, not after the patience of an ordinary silence.
    a.wall.fetch_add(140_000, Ordering::Relaxed);
    cut.store(true, Ordering::Relaxed);
    let woken = Instant::now();
    let reason = a.until_down(b.id).await;
    assert!(woken.elapsed() < ms(HURRIED_MS + 2_500), "{:?}", woken.elapsed());
    assert!(reason.contains("a jump of the clock"), "{reason}");
    cut.store(false, Ordering::Relaxed);
    a.until_up(b.id).await;
    assert!(woken.elapsed() < ms(15_000), "{:?}", woken.elapsed());
}

#[tokio::test(start_paused = true)]
async fn of_simultaneous_links_exactly_one_stays() {
    for seed in 0..20 {
        let mut world = World::new(100 + seed, 2);
        let ((mut a, _), (mut b, _)) = (world.start_in_memory(0).await, world.start_in_memory(1).await);
        a.want(&b);
        b.want(&a);
        both_up(&mut a, &mut b).await;
        // Whatever was under way has ended; the one that stays is the same for both.
        sleep(ms(20_000)).await;
        for (number, (from, to)) in [(1, (&a, &b)), (2, (&b, &a))] {
            from.net.send(to.id, numbered(number), Vec::new()).unwrap();
        }
        let mut up = 1;
        for (node, number) in [(&mut a, 2), (&mut b, 1)] {
            node.until(|event| match event {
                NetEvent::LinkUp { .. } => panic!("seed {seed}: a second link came up"),
                event => number_of(event) == Some((Lane::Control, number)),
            })
            .await;
            up += 1;
        }
        assert_eq!(up, 3);
        assert_eq!((a.net.links().len(), b.net.links().len()), (1, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn frames_that_were_not_delivered_end_with_the_link() {
    let mut world = World::new(43, 2);
    let ((mut a, _), (mut b, cut)) = (world.start_in_memory(0).await, world.start_in_memory(1).await);
    linked(&mut a, &mut b).await;
    cut.store(true, Ordering::Relaxed);
    let (net, to) = (a.net.clone(), b.id);
    let stuck = tokio::spawn(async move {
        loop {
            if let Err(error) = net.send_lane(to, turn(1), numbered(0), vec![0; 100_000]).await {
                return error;
            }
        }
    });
    a.until_down(b.id).await;
    assert!(matches!(stuck.await.unwrap(), SendError::NoLink));
    assert!(matches!(a.net.send(b.id, numbered(0), Vec::new()), Err(SendError::NoLink)));
}

#[tokio::test(start_paused = true)]
async fn a_far_side_that_reads_nothing_costs_its_link() {
    let mut world = World::new(44, 2);
    let ((mut a, _), (mut b, cut)) = (world.start_in_memory(0).await, world.start_in_memory(1).await);
    linked(&mut a, &mut b).await;
    cut.store(true, Ordering::Relaxed);
    // A cut connection of these tests swallows bytes, so the queue never fills by itself: fill it in one go.
    let overflow = (0..100).find_map(|_| a.net.send(b.id, numbered(0), vec![0; 500_000]).err());
    assert!(matches!(overflow, Some(SendError::Overflow)), "{overflow:?}");
    let reason = a.until_down(b.id).await;
    assert!(reason.contains("does not read"), "{reason}");
}
