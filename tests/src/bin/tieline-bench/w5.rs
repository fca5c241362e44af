//! W5: exec → first acknowledged post; resident memory at rest.

use std::time::{Duration, Instant};

use tieline_tests::Node;

use super::client::{Client, filler};
use super::redis::Redis;
use super::report::{Report, Times};
use super::{Failure, w1};

/// Starts of each kind.
const STARTS: usize = 10;

/// Rest before memory is looked at.
const REST: Duration = Duration::from_secs(10);

/// How long sixteen clients fill the channel for the second size.
const FILL: Duration = Duration::from_secs(5);

/// Measures.
///
/// # Errors
/// When a process fails.
pub async fn run(report: &mut Report) -> Result<(), Failure> {
    let dir = tempfile::tempdir_in("target")?;
    let mut node = Node::up(&dir.path().join("node"));
    let _ = node.cli(["channel", "create", "bench", "--json"]).ok();
    let mut redis_starts = Times::default();
    let mut redis_rss = 0.0;
    for round in 0..STARTS {
        let Some((redis, time)) = Redis::start(&dir.path().join("redis")).await? else { break };
        redis_starts.push(time);
        if round + 1 == STARTS {
            tokio::time::sleep(REST).await;
            redis_rss = redis.rss_mib();
        }
    }
    let redis = (redis_starts.len() > 0).then_some(("Redis appendfsync always", redis_starts.p50_ms(), redis_rss));

    measure(report, &mut node, "few messages", redis).await?;
    node.start();
    let posts = w1::posts(&node, 16, FILL).await?.len();
    measure(report, &mut node, &format!("{posts} messages"), redis).await
}

/// Measures a node that runs, and leaves it stopped.
async fn measure(
    report: &mut Report,
    node: &mut Node,
    size: &str,
    redis: Option<(&str, f64, f64)>,
) -> Result<(), Failure> {
    for (how, kill) in [("clean stop", false), ("kill -9", true)] {
        let mut times = Times::default();
        for _ in 0..STARTS {
            if kill {
                node.kill9()
            } else {
                node.stop()
            }
            let began = Instant::now();
            node.start();
            Client::connect(node).await?.post("bench", &filler()).await?;
            times.push(began.elapsed());
        }
        let metric = format!("exec → first ack p50 after {how}, {size}");
        match redis {
            Some((name, start, _)) => report.beside("W5", metric, (times.p50_ms(), "ms"), name, start),
            None => report.alone("W5", metric, times.p50_ms(), "ms"),
        }
    }
    node.restart();
    tokio::time::sleep(REST).await;
    let rss = rss_mib(node.pid());
    let metric = format!("idle RSS, {size}");
    match redis {
        Some((name, _, memory)) => report.beside("W5", metric, (rss, "MiB"), name, memory),
        None => report.alone("W5", metric, rss, "MiB"),
    }
    node.stop();
    Ok(())
}

/// Resident memory of a process in MiB; 0 when it is gone.
pub fn rss_mib(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1024.0
}
