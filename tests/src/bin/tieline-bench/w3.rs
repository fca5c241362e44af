//! W3: a flood of events, resident → journals → one subscriber at the home.

use std::time::Instant;

use serde_json::json;
use tieline_tests::Mesh;

use super::client::Client;
use super::hop::Hop;
use super::report::{Report, Row};
use super::{Failure, ROUNDS, load};

/// Events of 200 B.
const SMALL: (u64, u64) = (100_000, 200);

/// Events of 4 KiB.
const LARGE: (u64, u64) = (20_000, 4096);

/// Bytes of one packed write of the reference.
const PACK_LEN: usize = 16_000;

/// Measures.
///
/// # Errors
/// When a process fails or an event is missing.
pub async fn run(report: &mut Report) -> Result<(), Failure> {
    let mesh = Mesh::start();
    mesh.add_scripted("bot");
    let mut hop = Hop::start().await?;
    let mut client = Client::connect(&mesh.home).await?;
    client.follow("lobby").await?;
    flood(&mut client, SMALL).await?; // warm-up

    let (mut small, mut large, mut packed, mut bulk) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut home, mut resident) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        packed.push(hop.bytes_per_s(SMALL.0 * SMALL.1, PACK_LEN).await? / SMALL.1 as f64);
        let began = (load::cpu_ms(mesh.home.pid()), load::cpu_ms(mesh.resident.pid()));
        small.push(flood(&mut client, SMALL).await?);
        home.push((load::cpu_ms(mesh.home.pid()) - began.0) * 1e3 / SMALL.0 as f64);
        resident.push((load::cpu_ms(mesh.resident.pid()) - began.1) * 1e3 / SMALL.0 as f64);
        bulk.push(hop.bytes_per_s(LARGE.0 * LARGE.1, 64 * 1024).await? / 1e6);
        large.push(flood(&mut client, LARGE).await? * LARGE.1 as f64 / 1e6);
    }
    let row = |metric: &str, unit, rounds| Row::new("W3", metric, unit, rounds);
    let raw = "raw libp2p, packed 200 B";
    report.add(row("events/s of 200 B", "1/s", small).beside(raw, packed).at_least(500_000.0));
    report.add(row("events of 4 KiB", "MB/s", large).beside("raw libp2p, 64 KiB writes", bulk).at_least(200.0));
    report.add(row("the home's CPU for one event of 200 B", "µs", home));
    report.add(row("the resident's CPU for one event of 200 B", "µs", resident));
    report.add(row("the home's RSS after it", "MiB", vec![load::rss_mib(mesh.home.pid())]));
    report.add(row("the resident's RSS after it", "MiB", vec![load::rss_mib(mesh.resident.pid())]));
    Ok(())
}

/// Runs a turn of `count` events of `len` bytes and gives events a second, from the first to the last one seen.
async fn flood(client: &mut Client, (count, len): (u64, u64)) -> Result<f64, Failure> {
    let text = format!("@bot script:big({count},{len})");
    client.send(json!({"op": "post", "channel": "lobby", "text": text})).await?;
    let (mut first, mut last) = (None, None);
    let mut events = 0;
    loop {
        let text = client.text().await?;
        let here = text.matches("\"type\":\"event\"").count() as u64;
        if here > 0 {
            events += here;
            let now = Instant::now();
            first.get_or_insert(now);
            last = Some(now);
        }
        if text.contains("\"gap\"") {
            return Err("the subscriber was told of a gap".into());
        }
        if text.contains("\"turn-finished\"") {
            break;
        }
    }
    // The turn's own start and end are events too.
    if events != count + 2 {
        return Err(format!("{events} events were seen, not {count} and two").into());
    }
    let time = first.zip(last).map(|(first, last)| last - first).ok_or("no event was seen")?;
    Ok(events as f64 / time.as_secs_f64())
}
