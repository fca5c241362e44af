//! W2: a mention at the home → first event of its turn on the resident → the turn's durable end.

use std::time::{Duration, Instant};

use serde_json::json;
use tieline_tests::Mesh;

use super::client::Client;
use super::hop::Hop;
use super::report::{Report, Times, median};
use super::{Failure, ROUNDS, disk};

/// Turns of one round in sequence.
const TURNS: usize = 100;

/// Members of the busy case.
const MANY: usize = 16;

/// Length of the busy case.
const TIME: Duration = Duration::from_secs(4);

/// A turn of three events at once.
const SCRIPT: &str = "script:text(one) script:text(two) script:text(three)";

/// Syncs that a first event waits for: the post with its turn at the home, the attempt at the resident.
const SYNCS_TO_FIRST: f64 = 2.0;

/// Syncs that the end waits for beside: the resident's journal, the home's journal and log.
const SYNCS_TO_END: f64 = 4.0;

/// Measures.
///
/// # Errors
/// When a process fails.
pub async fn run(report: &mut Report) -> Result<(), Failure> {
    let mesh = Mesh::start();
    for n in 0..MANY {
        mesh.add_scripted(&format!("bot-{n}"));
    }
    let mut hop = Hop::start().await?;
    let mut client = Client::connect(&mesh.home).await?;
    client.follow("lobby").await?;
    for _ in 0..20 {
        turn(&mut client, "bot-0").await?; // warm-up
    }
    let (mut first, mut end, mut sync, mut trip) =
        (Times::default(), Times::default(), Times::default(), Times::default());
    let (mut one, mut many) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        sync.extend(disk::appends(mesh.dir(), Duration::from_secs(1))?);
        trip.extend(hop.round_trips(Duration::from_secs(1)).await?);
        let began = Instant::now();
        for _ in 0..TURNS {
            let (to_first, to_end) = turn(&mut client, "bot-0").await?;
            first.push(to_first);
            end.push(to_end);
        }
        one.push(TURNS as f64 / began.elapsed().as_secs_f64());
        many.push(at_once(&mesh).await?);
    }
    let floor = |syncs: f64| syncs.mul_add(sync.p50_ms(), trip.p50_ms());
    let name = |syncs: f64| format!("{syncs:.0} preallocated fdatasyncs + 1 libp2p round trip");
    let to_first = (first.p50_ms(), "ms");
    report.beside("W2", "mention → first event p50", to_first, name(SYNCS_TO_FIRST), floor(SYNCS_TO_FIRST));
    report.alone("W2", "mention → first event p99", first.p99_ms(), "ms");
    report.beside("W2", "mention → finished p50", (end.p50_ms(), "ms"), name(SYNCS_TO_END), floor(SYNCS_TO_END));
    report.alone("W2", "mention → finished p99", end.p99_ms(), "ms");
    report.beside("W2", "turns/s, 16 members", (median(many), "1/s"), "turns/s, 1 member", median(one));
    Ok(())
}

/// One turn: how long to its first event, and to its end.
async fn turn(client: &mut Client, handle: &str) -> Result<(Duration, Duration), Failure> {
    let began = Instant::now();
    let text = format!("@{handle} {SCRIPT}");
    client.send(json!({"op": "post", "channel": "lobby", "text": text})).await?;
    let mut first = None;
    loop {
        let text = client.text().await?;
        if first.is_none() && text.contains("\"type\":\"event\"") {
            first = Some(began.elapsed());
        }
        if text.contains("\"turn-finished\"") {
            return Ok((first.unwrap_or_else(|| began.elapsed()), began.elapsed()));
        }
    }
}

/// Turns a second of all members at once, each asked again as soon as it is done.
async fn at_once(mesh: &Mesh) -> Result<f64, Failure> {
    let mut tasks = Vec::new();
    for n in 0..MANY {
        let mut client = Client::connect(&mesh.home).await?;
        tasks.push(tokio::spawn(async move {
            let mut turns = 0_u32;
            let began = Instant::now();
            while began.elapsed() < TIME {
                // The waiting client sees everybody's frames; its own turn is the one whose post it made.
                own_turn(&mut client, n).await?;
                turns += 1;
            }
            Ok::<_, Failure>(f64::from(turns) / began.elapsed().as_secs_f64())
        }));
    }
    let mut sum = 0.0;
    for task in tasks {
        sum += task.await??;
    }
    Ok(sum)
}

async fn own_turn(client: &mut Client, n: usize) -> Result<(), Failure> {
    let text = format!("@bot-{n} {SCRIPT}");
    let posted = client.call(json!({"op": "post", "channel": "lobby", "text": text})).await?;
    let seq = posted["seq"].as_u64().ok_or("a post has a seq")?;
    let subscription = client.send(json!({"op": "subscribe", "channel": "lobby", "since": seq})).await?;
    let mut run = None;
    'turn: loop {
        for line in client.text().await?.lines() {
            let value: serde_json::Value = serde_json::from_str(line)?;
            let body = &value["frame"]["line"]["body"];
            if body["kind"] == "turn-started"
                && body["batch"].as_array().is_some_and(|batch| batch.contains(&posted["message"]))
            {
                run = Some(body["message"].clone());
            }
            if body["kind"] == "turn-finished" && run.as_ref() == Some(&body["message"]) {
                break 'turn;
            }
        }
    }
    client.call(json!({"op": "unsubscribe", "call": subscription})).await?;
    Ok(())
}
