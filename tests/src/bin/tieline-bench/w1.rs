//! W1: post → acknowledged, one and sixteen clients in closed loops; post → frame at another subscriber.

use std::time::{Duration, Instant};

use tieline_tests::Node;

use super::client::{Client, filler};
use super::redis::Redis;
use super::report::{Report, Row, Times};
use super::{Failure, ROUNDS, disk, load};

/// Length of one measurement.
const TIME: Duration = Duration::from_secs(3);

/// Clients of the busy case.
const MANY: usize = 16;

const CHANNEL: &str = "bench";

/// What one round gave.
#[derive(Default)]
struct Rounds {
    sync_p50: Vec<f64>,
    sync_p99: Vec<f64>,
    one_p50: Vec<f64>,
    one_p99: Vec<f64>,
    seen_p50: Vec<f64>,
    seen_late: Vec<f64>,
    many: Vec<f64>,
    many_p50: Vec<f64>,
    many_p99: Vec<f64>,
    many_cpu: Vec<f64>,
    redis_p50: Vec<f64>,
    redis_many: Vec<f64>,
    redis_many_p99: Vec<f64>,
    redis_many_cpu: Vec<f64>,
}

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

    let mut r = Rounds::default();
    for _ in 0..ROUNDS {
        let sync = disk::appends(dir.path(), Duration::from_secs(2))?;
        r.sync_p50.push(sync.p50_ms());
        r.sync_p99.push(sync.p99_ms());
        let one = posts(&node, 1, TIME).await?;
        r.one_p50.push(one.p50_ms());
        r.one_p99.push(one.p99_ms());
        if let Some(redis) = &redis {
            r.redis_p50.push(redis.appends(1, TIME).await?.p50_ms());
        }
        let (seen, late) = frames(&node, Duration::from_secs(2)).await?;
        r.seen_p50.push(seen.p50_ms());
        r.seen_late.push(late.p50_ms());
        let began = load::cpu_ms(node.pid());
        let many = posts(&node, MANY, TIME).await?;
        r.many_cpu.push((load::cpu_ms(node.pid()) - began) / many.len() as f64 * 1e3);
        r.many.push(many.len() as f64 / TIME.as_secs_f64());
        r.many_p50.push(many.p50_ms());
        r.many_p99.push(many.p99_ms());
        if let Some(redis) = &redis {
            let began = load::cpu_ms(redis.pid());
            let many = redis.appends(MANY, TIME).await?;
            r.redis_many_cpu.push((load::cpu_ms(redis.pid()) - began) / many.len() as f64 * 1e3);
            r.redis_many.push(many.len() as f64 / TIME.as_secs_f64());
            r.redis_many_p99.push(many.p99_ms());
        }
    }
    let row = |metric: &str, unit, rounds| Row::new("W1", metric, unit, rounds);
    let raw = "fdatasync, preallocated 4 KiB";
    report.add(row("post → ack p50, 1 client", "ms", r.one_p50.clone()).beside(raw, r.sync_p50).ratio_at_most(1.5));
    report.add(row("post → ack p99, 1 client", "ms", r.one_p99).beside(raw, r.sync_p99));
    report.add(row("post → frame at another subscriber p50", "ms", r.seen_p50).beside("post → ack", r.one_p50.clone()));
    report.add(row("the frame after its ack p50", "ms", r.seen_late).at_most(0.1));
    let (one, many) = (row("post → ack p50, 1 client", "ms", r.one_p50), row("posts/s, 16 clients", "1/s", r.many));
    let p99 = row("post → ack p99, 16 clients", "ms", r.many_p99);
    let cpu = row("the server's CPU for one post, 16 clients", "µs", r.many_cpu);
    report.add(row("post → ack p50, 16 clients", "ms", r.many_p50));
    if redis.is_some() {
        let always = "Redis appendfsync always";
        report.add(one.beside(always, r.redis_p50).ratio_at_most(0.77));
        report.add(many.beside(always, r.redis_many).ratio_at_least(1.5));
        report.add(p99.beside(always, r.redis_many_p99));
        report.add(cpu.beside(always, r.redis_many_cpu));
    } else {
        [many, p99, cpu].into_iter().for_each(|row| report.add(row));
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

/// How long it takes from a post to its frame at a subscriber on another connection, and how much later than the
/// poster's answer that is.
async fn frames(node: &Node, time: Duration) -> Result<(Times, Times), Failure> {
    let mut reader = Client::connect(node).await?;
    reader.follow(CHANNEL).await?;
    let mut writer = Client::connect(node).await?;
    let (mut times, mut late) = (Times::default(), Times::default());
    let text = filler();
    let began = Instant::now();
    while began.elapsed() < time {
        let started = Instant::now();
        let (posted, frame) = tokio::join!(writer.post(CHANNEL, &text), async {
            while !reader.text().await?.contains("\"posted\"") {}
            Ok::<_, Failure>(started.elapsed())
        });
        let (posted, frame) = (posted?, frame?);
        times.push(frame);
        late.push(frame.saturating_sub(posted));
    }
    Ok((times, late))
}
