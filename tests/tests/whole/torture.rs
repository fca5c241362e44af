//! `kill -9` torture: home and resident are killed in turn while posts and turns run. The oracle is outside the node: the
//! harness syncs a line of its own for each job before it does anything.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use tieline_tests::mesh::Plan;
use tieline_tests::view::{assert_dense, body};
use tieline_tests::wait::LOOK;
use tieline_tests::{DEADLINE, Mesh, until};

/// Kills in one run of CI. `TIELINE_SOAK` asks for more.
const CYCLES: u64 = 50;

/// Posts between two kills.
const POSTS: u64 = 3;

/// Synced before anything else; then a short turn that streams.
const WITNESS: &str = "#!/bin/sh
jobs=$(grep -o 'job-[0-9]*' | sort -u)
echo \"$jobs\" >>starts.txt
sync starts.txt
echo began
sleep 0.05
echo done $jobs
";

/// What the torture knows from outside.
#[derive(Default)]
struct Ledger {
    /// Client id → message number and text, as acknowledged.
    acked: BTreeMap<String, (u64, String)>,
    /// Posts that were not acknowledged yet: client id and text.
    open: Vec<(String, String)>,
    /// Held turns that were dropped.
    dropped: BTreeSet<u64>,
}

impl Ledger {
    /// Tries to post; what is not acknowledged is tried again later under the same id.
    fn post(&mut self, mesh: &Mesh, client: String, text: String) {
        let answer = mesh.lobby().post_with(&text, &["--id", &client]);
        if answer.code != Some(0) {
            self.open.push((client, text));
            return;
        }
        let message = answer.json()["message"].as_u64().expect("an acknowledged post has a number");
        if let Some((before, _)) = self.acked.insert(client.clone(), (message, text)) {
            assert_eq!(before, message, "{client} was acknowledged twice under different numbers");
        }
    }

    fn retry_open(&mut self, mesh: &Mesh) {
        for (client, text) in std::mem::take(&mut self.open) {
            self.post(mesh, client, text);
        }
    }

    /// Drops what is held: a person's word that it shall not run again.
    fn drop_held(&mut self, mesh: &Mesh) {
        for run in held(&mesh.lobby().entries()) {
            let _ = mesh.home.cli(["hold", "drop", "lobby", &run.to_string(), "--json"]).ok();
            self.dropped.insert(run);
        }
    }
}

/// Runs that are held and not yet decided.
fn held(entries: &[Value]) -> BTreeSet<u64> {
    let mut held = BTreeSet::new();
    for entry in entries {
        let Some(run) = body(entry)["message"].as_u64() else { continue };
        match entry["kind"].as_str() {
            Some("turn-held") => held.insert(run),
            Some("hold-released" | "turn-finished") => held.remove(&run),
            _ => false,
        };
    }
    held
}

/// What is seen of a mesh that does not come to rest: members, links, open turns, the end of the log.
fn unrest(mesh: &Mesh) -> String {
    let (home, resident) = (mesh.home.status(), mesh.resident.status());
    let entries = mesh.lobby().entries();
    let ended: BTreeSet<_> = entries
        .iter()
        .filter(|entry| matches!(entry["kind"].as_str(), Some("turn-finished" | "hold-released")))
        .filter_map(|entry| body(entry)["message"].as_u64())
        .collect();
    let open: Vec<_> = entries
        .iter()
        .filter(|entry| entry["kind"] == "turn-started")
        .filter(|entry| body(entry)["message"].as_u64().is_some_and(|run| !ended.contains(&run)))
        .map(body)
        .collect();
    let last: Vec<_> = entries.iter().rev().take(20).rev().map(Value::to_string).collect();
    format!(
        "members: {}\nlinks of the home: {}\nlinks of the resident: {}\nopen turns: {open:?}\nheld: {:?}\n\
         last entries:\n{}",
        home["members"],
        home["links"],
        resident["links"],
        held(&entries),
        last.join("\n"),
    )
}

/// How often the harness began each job.
fn starts(work: &Path) -> BTreeMap<String, u64> {
    let mut starts = BTreeMap::new();
    for job in fs::read_to_string(work.join("starts.txt")).unwrap_or_default().lines() {
        *starts.entry(job.to_owned()).or_default() += 1;
    }
    starts
}

#[test]
fn kill_9_torture_loses_no_acked_post_and_runs_no_turn_twice() {
    let cycles = std::env::var("TIELINE_SOAK").ok().and_then(|cycles| cycles.parse().ok()).unwrap_or(CYCLES);
    let plan = Plan::default();
    let script = plan.script("witness", WITNESS);
    let mut mesh = plan.command("witness", [script]).start();
    mesh.add("bot", "witness");
    let mut ledger = Ledger::default();
    // A small generator of its own, so that a run can be told by its seed.
    let mut seed: u64 = std::env::var("TIELINE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x7e11_1e5e);
    eprintln!("seed {seed}, {cycles} cycles");
    let mut random = |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };

    for cycle in 0..cycles {
        ledger.retry_open(&mesh);
        for post in 0..POSTS {
            let job = cycle * POSTS + post;
            let client = format!("client-{job}");
            if random(4) == 0 && cycle % 2 == 0 {
                // Killed while the post is on its way.
                let text = format!("@bot job-{job}");
                let flying = mesh.lobby().spawn_post(&text, &["--id", &client]);
                std::thread::sleep(Duration::from_millis(random(30)));
                mesh.home.kill9();
                let _ = flying.finish();
                ledger.open.push((client, text));
                mesh.home.start();
            } else {
                ledger.post(&mesh, client, format!("@bot job-{job}"));
            }
        }
        std::thread::sleep(Duration::from_millis(random(120)));
        if cycle % 2 == 0 {
            mesh.home.crash()
        } else {
            mesh.resident.crash()
        }
        if cycle % 5 == 4 {
            ledger.drop_held(&mesh);
        }
    }

    until("every post to be acknowledged", || {
        ledger.retry_open(&mesh);
        ledger.open.is_empty().then_some(())
    });
    let began = Instant::now();
    loop {
        ledger.drop_held(&mesh);
        let bot = mesh.lobby().member_status("bot");
        if bot["queue"]["depth"] == 0 && bot["state"] == "idle" && held(&mesh.lobby().entries()).is_empty() {
            break;
        }
        assert!(began.elapsed() < DEADLINE, "it does not come to rest:\n{}", unrest(&mesh));
        std::thread::sleep(LOOK);
    }
    check(&mesh, &ledger, cycles * POSTS);
}

fn check(mesh: &Mesh, ledger: &Ledger, jobs: u64) {
    let entries = mesh.lobby().entries();
    assert_dense(&entries);
    mesh.lobby().verify();

    let posted: BTreeMap<u64, &Value> = entries
        .iter()
        .filter(|entry| entry["kind"] == "posted")
        .filter_map(|entry| Some((body(entry)["message"].as_u64()?, entry)))
        .collect();
    assert_eq!(ledger.acked.len() as u64, jobs);
    assert_eq!(posted.len() as u64, jobs, "one entry for each client id");
    for (client, (message, text)) in &ledger.acked {
        let entry = posted.get(message).unwrap_or_else(|| panic!("acknowledged {client} = #{message} is lost"));
        assert_eq!(body(entry)["post"]["text"], text.as_str(), "#{message} has another text");
    }

    let starts = starts(&mesh.work());
    let twice: Vec<_> = starts.iter().filter(|(_, count)| **count > 1).collect();
    assert!(twice.is_empty(), "the harness began jobs twice: {twice:?}");

    // Every run ended exactly once; what completed really ran.
    let mut ends: BTreeMap<u64, u64> = BTreeMap::new();
    for entry in entries.iter().filter(|entry| entry["kind"] == "turn-finished") {
        let run = body(entry)["message"].as_u64().expect("a run");
        *ends.entry(run).or_default() += 1;
        assert!(!ledger.dropped.contains(&run), "a dropped turn ended: {entry}");
        if body(entry)["status"] == "completed" {
            let text = body(entry)["text"].as_str().unwrap_or_default();
            for job in text.split_whitespace().filter(|word| word.starts_with("job-")) {
                assert_eq!(starts.get(job), Some(&1), "{job} completed and never ran");
            }
        }
    }
    assert!(ends.values().all(|count| *count == 1), "a turn ended twice: {ends:?}");
    let mut in_batches: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    for entry in entries.iter().filter(|entry| entry["kind"] == "turn-started") {
        for message in body(entry)["batch"].as_array().into_iter().flatten().filter_map(Value::as_u64) {
            in_batches.entry(message).or_default().insert(body(entry)["message"].as_u64().expect("a run"));
        }
    }
    for message in posted.keys() {
        let runs = in_batches.get(message).map_or(0, BTreeSet::len);
        assert_eq!(runs, 1, "#{message} belongs to {runs} turns");
    }
    let completed = ends.len();
    eprintln!("{jobs} posts, {completed} turns ended, {} held and dropped", ledger.dropped.len());
    assert!(completed > 0, "nothing ran at all");
}
