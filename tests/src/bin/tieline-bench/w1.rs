//! W1: post → acknowledged, one and sixteen clients in closed loops; post → frame at another subscriber.

use std::time::{Duration, Instant};

use tieline_tests::Node;

use super::client::{Client, filler};
use super::redis::Redis;
use super::report::{Report, Times, median};
use super::{Failure, ROUNDS, disk};

/// Length of one measurement.
const TIME: Duration = Duration::from_secs(3);

/// Clients of the busy case.
const MANY: usize = 16;

const CHANNEL: &str = "bench";

/// Measures.
///
/// # Errors
/// When a process fails.
pub async fn run(report: &mut Report) -> Result<(), Failure> {
    let dir = tempfile::tempdir_in("target")?;
    let node = Node::up(&dir.path().join("node"));
    let _ = node.cli(["channel", "create", CHANNEL, "--json"]).ok();
    let redis = Redis::start(&dir.path().join("redis")).await?.map(|(redis, _)| redis);
    let _ = posts(&node, 1, TIME).await?; // warm-up

    let (mut one, mut seen, mut sync, mut redis_one) =
        (Times::default(), Times::default(), Times::default(), Times::default());
    let (mut many, mut redis_many, mut many_times) = (Vec::new(), Vec::new(), Times::default());
    for _ in 0..ROUNDS {
        sync.extend(disk::appends(dir.path(), Duration::from_secs(2))?);
        one.extend(posts(&node, 1, TIME).await?);
        seen.extend(frames(&node, Duration::from_secs(2)).await?);
        if let Some(redis) = &redis {
            redis_one.extend(redis.appends(1, TIME).await?);
        }
        let times = posts(&node, MANY, TIME).await?;
        many.push(times.len() as f64 / TIME.as_secs_f64());
        many_times.extend(times);
        if let Some(redis) = &redis {
            redis_many.push(redis.appends(MANY, TIME).await?.len() as f64 / TIME.as_secs_f64());
        }
    }
    let raw = "fdatasync, preallocated 4 KiB";
    report.beside("W1", "post → ack p50, 1 client", (one.p50_ms(), "ms"), raw, sync.p50_ms());
    report.beside("W1", "post → ack p99, 1 client", (one.p99_ms(), "ms"), raw, sync.p99_ms());
    report.beside(
        "W1",
        "post → frame at another subscriber p50",
        (seen.p50_ms(), "ms"),
        "post → ack p50",
        one.p50_ms(),
    );
    report.alone("W1", "post → ack p99, 16 clients", many_times.p99_ms(), "ms");
    if redis.is_some() {
        let always = "Redis appendfsync always";
        report.beside("W1", "post → ack p50, 1 client", (one.p50_ms(), "ms"), always, redis_one.p50_ms());
        report.beside("W1", "posts/s, 16 clients", (median(many), "1/s"), always, median(redis_many));
    } else {
        report.alone("W1", "posts/s, 16 clients", median(many), "1/s");
    }
    Ok(())
}

/// Posts from several clients, each with one in flight.
pub async fn posts(node: &Node, clients: usize, time: Duration) -> Result<Times, Failure> {
    let mut tasks = Vec::new();
    for _ in 0..clients {
        let mut client = Client::connect(node).await?;
        tasks.push(tokio::spawn(async move {
            let text = filler();
            let mut times = Times::default();
            let began = Instant::now();
            while began.elapsed() < time {
                times.push(client.post(CHANNEL, &text).await?);
            }
            Ok::<_, Failure>(times)
        }));
    }
    let mut all = Times::default();
    for task in tasks {
        all.extend(task.await??);
    }
    Ok(all)
}

/// How long it takes from a post to its frame at a subscriber on another connection.
async fn frames(node: &Node, time: Duration) -> Result<Times, Failure> {
    let mut reader = Client::connect(node).await?;
    reader.follow(CHANNEL).await?;
    let mut writer = Client::connect(node).await?;
    let mut times = Times::default();
    let began = Instant::now();
    while began.elapsed() < time {
        let started = Instant::now();
        let text = filler();
        let (posted, frame) = tokio::join!(writer.post(CHANNEL, &text), async {
            while !reader.text().await?.contains("\"posted\"") {}
            Ok::<_, Failure>(started.elapsed())
        });
        posted?;
        times.push(frame?);
    }
    Ok(times)
}
