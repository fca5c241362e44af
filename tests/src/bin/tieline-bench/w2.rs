//! W2: a mention at the home → first event of its turn on the resident → the turn's durable end.

use std::time::{Duration, Instant};

use serde_json::json;
use tieline_tests::Mesh;

use super::client::Client;
use super::hop::Hop;
use super::report::{Report, Row, Times};
use super::{Failure, ROUNDS, disk, load};

/// Turns of one round in sequence.
const TURNS: usize = 170;

/// Members of the busy case.
const MANY: usize = 16;

/// Length of the busy case.
const TIME: Duration = Duration::from_secs(4);

/// A turn of three events at once.
const SCRIPT: &str = "script:text(one) script:text(two) script:text(three)";

/// Syncs that a first event waits for: the post with its turn at the home, the attempt at the resident.
const SYNCS_TO_FIRST: f64 = 2.0;

/// Syncs that the end waits for: those, then the resident's journal and the home's log. The home's journal is synced
/// beside the turn.
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
    for _ in 0..50 {
        turn(&mut client, "bot-0").await?; // warm-up
    }
    let (mut firsts, mut ends) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    let (mut floor_first, mut floor_end) = (Vec::new(), Vec::new());
    let (mut one, mut many, mut cpu) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let sync = disk::appends(mesh.dir(), Duration::from_secs(1))?.p50_ms();
        let trip = hop.round_trips(Duration::from_secs(1)).await?.p50_ms();
        floor_first.push(SYNCS_TO_FIRST.mul_add(sync, trip));
        floor_end.push(SYNCS_TO_END.mul_add(sync, trip));
        let (mut first, mut end) = (Times::default(), Times::default());
        let began = Instant::now();
        for _ in 0..TURNS {
            let (to_first, to_end) = turn(&mut client, "bot-0").await?;
            first.push(to_first);
            end.push(to_end);
        }
        one.push(TURNS as f64 / began.elapsed().as_secs_f64());
        for (rounds, times) in [(&mut firsts, &first), (&mut ends, &end)] {
            rounds[0].push(times.p50_ms());
            rounds[1].push(times.p99_ms());
        }
        let both = || load::cpu_ms(mesh.home.pid()) + load::cpu_ms(mesh.resident.pid());
        let began = both();
        let turns = at_once(&mut client).await?;
        cpu.push((both() - began) / (turns * TIME.as_secs_f64()) * 1e3);
        many.push(turns);
    }
    let row = |metric: &str, unit, rounds| Row::new("W2", metric, unit, rounds);
    let name = |syncs: f64| format!("{syncs:.0} preallocated fdatasyncs + 1 libp2p round trip");
    let ([first, first_p99], [end, end_p99]) = (firsts, ends);
    let first = row("mention → first event p50", "ms", first).beside(name(SYNCS_TO_FIRST), floor_first);
    let end = row("mention → finished p50", "ms", end).beside(name(SYNCS_TO_END), floor_end);
    report.add(first.ratio_at_most(2.0));
    report.add(row("mention → first event p99", "ms", first_p99));
    report.add(end.ratio_at_most(2.0));
    report.add(row("mention → finished p99", "ms", end_p99));
    report.add(row("turns/s, 16 members", "1/s", many).beside("turns/s, 1 member", one).ratio_at_least(8.0));
    report.add(row("both nodes' CPU for one turn, 16 members", "µs", cpu));
    Ok(())
}

async fn mention(client: &mut Client, handle: &str) -> Result<(), Failure> {
    let text = format!("@{handle} {SCRIPT}");
    client.send(json!({"op": "post", "channel": "lobby", "text": text})).await.map(drop)
}

/// One turn: how long to its first event, and to its end.
async fn turn(client: &mut Client, handle: &str) -> Result<(Duration, Duration), Failure> {
    let began = Instant::now();
    mention(client, handle).await?;
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

/// Turns a second of all members at once, each asked again as soon as it is done. The one client sees all their events.
async fn at_once(client: &mut Client) -> Result<f64, Failure> {
    for n in 0..MANY {
        mention(client, &format!("bot-{n}")).await?;
    }
    let (mut asked, mut turns) = (MANY, 0_u32);
    let began = Instant::now();
    let mut time = None;
    while asked > 0 {
        for line in client.text().await?.lines() {
            let Some(author) = finished(line) else { continue };
            asked -= 1;
            if began.elapsed() < TIME {
                turns += 1;
                mention(client, author).await?;
                asked += 1;
            } else {
                time.get_or_insert_with(|| began.elapsed());
            }
        }
    }
    Ok(f64::from(turns) / time.unwrap_or(TIME).as_secs_f64())
}

/// Whose turn has ended, by this frame.
fn finished(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once(r#""kind":"turn-finished","author":""#)?;
    Some(rest.split_once('"')?.0)
}
