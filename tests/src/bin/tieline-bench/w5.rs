//! W5: exec → first acknowledged post; resident memory at rest. With few messages and with a million.

use std::time::{Duration, Instant};

use tieline_tests::Node;

use super::client::{Client, filler};
use super::redis::Redis;
use super::report::{Report, Row, Times};
use super::{Failure, load, w1};

/// Starts of each kind in one round.
const STARTS: usize = 5;

/// Rounds of starts.
const ROUNDS: usize = 3;

/// Rest before memory is looked at.
const REST: Duration = Duration::from_secs(10);

/// Messages of the second size.
const MESSAGES: u64 = 1_000_000;

/// Connections that fill the channel, and the calls that each keeps in flight.
const FILLERS: (usize, u64) = (4, 64);

/// How long sixteen clients post before an abrupt end: it comes amid work.
const WORK: Duration = Duration::from_millis(200);

const CHANNEL: &str = "bench";

/// Measures.
///
/// # Errors
/// When a process fails.
pub async fn run(report: &mut Report) -> Result<(), Failure> {
    let dir = tempfile::tempdir_in("target")?;
    let mut node = Node::up(&dir.path().join("node"));
    let _ = node.cli(["channel", "create", CHANNEL, "--json"]).ok();
    let redis = dir.path().join("redis");
    measure(report, &mut node, "few messages", &redis).await?;
    node.start();
    eprintln!("    {MESSAGES} posts …");
    fill(&node).await?;
    node.restart();
    measure(report, &mut node, "1 M messages", &redis).await
}

/// Measures a node that runs, and leaves it stopped.
async fn measure(report: &mut Report, node: &mut Node, size: &str, redis: &std::path::Path) -> Result<(), Failure> {
    let always = "Redis appendfsync always, few messages";
    let (mut clean, mut killed, mut others) = (Vec::new(), Vec::new(), Vec::new());
    let mut redis_rss = Vec::new();
    for round in 0..ROUNDS {
        let (mut after_stop, mut after_kill, mut other) = (Times::default(), Times::default(), Times::default());
        for _ in 0..STARTS {
            node.stop();
            after_stop.push(first_ack(node).await?);
            let _ = w1::posts(node, 16, WORK).await?;
            node.kill9();
            after_kill.push(first_ack(node).await?);
            if let Some((redis, time)) = Redis::start(redis).await? {
                other.push(time);
                if round == 0 && redis_rss.is_empty() {
                    redis_rss.push(load::rss_mib(redis.pid()));
                }
            }
        }
        clean.push(after_stop.p50_ms());
        killed.push(after_kill.p50_ms());
        others.push(other.p50_ms());
    }
    let with_redis = !redis_rss.is_empty();
    for (how, rounds) in [("a clean stop", clean), ("kill -9 amid posts", killed)] {
        let row = Row::new("W5", format!("exec → first ack p50 after {how}, {size}"), "ms", rounds).at_most(50.0);
        report.add(if with_redis { row.beside(always, others.clone()) } else { row });
    }
    node.restart();
    tokio::time::sleep(REST).await;
    let row = Row::new("W5", format!("idle RSS, {size}"), "MiB", vec![load::rss_mib(node.pid())]).at_most(25.0);
    report.add(if with_redis { row.beside(always, redis_rss) } else { row });
    node.stop();
    Ok(())
}

async fn first_ack(node: &mut Node) -> Result<Duration, Failure> {
    let began = Instant::now();
    node.start();
    Client::connect(node).await?.post(CHANNEL, &filler()).await?;
    Ok(began.elapsed())
}

/// Posts [`MESSAGES`] messages as fast as the node takes them.
async fn fill(node: &Node) -> Result<(), Failure> {
    let (connections, in_flight) = FILLERS;
    let mut tasks = Vec::new();
    for _ in 0..connections {
        let mut client = Client::connect(node).await?;
        tasks.push(tokio::spawn(async move {
            client.post_many(CHANNEL, &filler(), MESSAGES / connections as u64, in_flight).await
        }));
    }
    for task in tasks {
        task.await??;
    }
    Ok(())
}
