//! W3: a flood of events, resident → journals → one subscriber at the home.

use std::time::Instant;

use serde_json::json;
use tieline_tests::Mesh;

use super::client::Client;
use super::hop::Hop;
use super::report::{Report, median};
use super::{Failure, ROUNDS};

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
    flood(&mut client, (1000, 200)).await?; // warm-up

    let (mut small, mut large, mut packed, mut bulk) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        packed.push(hop.bytes_per_s(SMALL.0 * SMALL.1, PACK_LEN).await? / SMALL.1 as f64);
        small.push(flood(&mut client, SMALL).await?);
        bulk.push(hop.bytes_per_s(LARGE.0 * LARGE.1, 64 * 1024).await? / 1e6);
        large.push(flood(&mut client, LARGE).await? * LARGE.1 as f64 / 1e6);
    }
    report.beside("W3", "events/s of 200 B", (median(small), "1/s"), "raw libp2p, packed 200 B", median(packed));
    report.beside("W3", "events of 4 KiB", (median(large), "MB/s"), "raw libp2p, 64 KiB writes", median(bulk));
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
    if events < count {
        return Err(format!("{events} of {count} events were seen").into());
    }
    let time = first.zip(last).map(|(first, last)| last - first).ok_or("no event was seen")?;
    Ok(events as f64 / time.as_secs_f64())
}
