//! Once or held: what happens when nobody can say how an attempt ended, and what waits while a resident is away.

use std::fs;

use tieline_tests::mesh::Plan;
use tieline_tests::view::{body, contains};
use tieline_tests::{Mesh, until};

/// Leaves a synced line for each run, before anything else; then waits for `go`.
const WITNESS: &str = "#!/bin/sh
grep -o 'job-[0-9]*' | sort -u >>starts.txt
sync starts.txt
echo working
until [ -e go ]; do sleep 0.05; done
echo worked
";

fn witness_mesh() -> Mesh {
    let plan = Plan::default();
    let script = plan.script("witness", WITNESS);
    let mesh = plan.command("witness", [script]).start();
    mesh.add("bot", "witness");
    mesh
}

/// A turn whose resident was killed while its harness ran.
fn held_turn(mesh: &mut Mesh) -> u64 {
    let saved = mesh.lobby().post("@bot job-1");
    let run = mesh.lobby().wait_started(saved.message);
    mesh.wait_file("starts.txt", "job-1");
    mesh.resident.crash();
    let held = mesh.lobby().wait_held(run);
    assert!(held["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{held}");
    run
}

#[test]
fn turn_of_a_killed_resident_is_held_and_not_run_again() {
    let mut mesh = witness_mesh();
    let run = held_turn(&mut mesh);
    let inbox = mesh.home.cli(["inbox", "lobby", "--json"]).ok().stdout;
    assert!(inbox.contains(&run.to_string()), "{inbox}");
    let holds = mesh.home.cli(["hold", "list", "lobby", "--json"]).ok().stdout;
    assert!(holds.contains(&run.to_string()), "{holds}");
    assert_eq!(mesh.wait_file("starts.txt", "job-1"), "job-1\n", "it ran once");
    assert_eq!(mesh.lobby().entries_of("turn-started").len(), 1);
}

#[test]
fn released_hold_is_a_new_attempt() {
    let mut mesh = witness_mesh();
    let run = held_turn(&mut mesh);
    fs::write(mesh.work().join("go"), "").expect("the work folder can be written");
    let _ = mesh.home.cli(["hold", "release", "lobby", &run.to_string(), "--json"]).ok();
    let finished = mesh.lobby().wait_finished(run);
    assert_eq!((&finished["status"], &finished["attempt"]), (&"completed".into(), &2.into()), "{finished}");
    assert_eq!(mesh.wait_file("starts.txt", "job-1"), "job-1\njob-1\n", "a person's word made it run again");
    mesh.lobby().verify();
}

#[test]
fn dropped_hold_lets_the_queue_go_on() {
    let mut mesh = witness_mesh();
    let run = held_turn(&mut mesh);
    fs::write(mesh.work().join("go"), "").expect("the work folder can be written");
    let next = mesh.lobby().post("@bot job-2");
    let _ = mesh.home.cli(["hold", "drop", "lobby", &run.to_string(), "--json"]).ok();
    let after = mesh.lobby().wait_started(next.message);
    assert_eq!(mesh.lobby().wait_finished(after)["status"], "completed");
    assert_eq!(mesh.wait_file("starts.txt", "job-2"), "job-1\njob-2\n");
}

#[test]
fn waiting_post_ends_with_8_when_its_turn_is_held() {
    let mut mesh = witness_mesh();
    let post = mesh.lobby().spawn_post("@bot job-1", &["--wait", "--timeout", "100"]);
    mesh.wait_file("starts.txt", "job-1");
    mesh.resident.crash();
    let ended = post.finish_within(tieline_tests::DEADLINE * 2).code(8);
    let status = &ended.json()["turns"][0]["status"];
    assert!(status == "held" || status == "unknown", "{}", ended.stdout);
}

#[test]
fn waiting_post_ends_with_5_in_time_and_the_message_stays() {
    let mesh = witness_mesh();
    let ended = mesh.lobby().post_with("@bot job-1", &["--wait", "--timeout", "1"]).code(5);
    let value = ended.json();
    let message = value["message"].as_u64().unwrap_or_else(|| panic!("no message in {value}"));
    fs::write(mesh.work().join("go"), "").expect("the work folder can be written");
    let run = mesh.lobby().wait_started(message);
    assert_eq!(mesh.lobby().wait_finished(run)["status"], "completed");
}

#[test]
fn case_l22_queue_outlives_its_resident_in_order() {
    let mut mesh = witness_mesh();
    mesh.resident.stop();
    mesh.lobby().wait_state("bot", "unreachable");
    let posts: Vec<_> = (1..=5).map(|n| mesh.lobby().post(&format!("@bot job-{n}")).message).collect();
    until("five to be queued", || (mesh.lobby().member_status("bot")["queue"]["depth"] == 5).then_some(()));
    mesh.home.crash();
    assert_eq!(mesh.lobby().member_status("bot")["queue"]["depth"], 5, "the queue is part of the log");

    fs::write(mesh.work().join("go"), "").expect("the work folder can be written");
    mesh.resident.start();
    let last = mesh.lobby().wait_started(posts[4]);
    assert_eq!(mesh.lobby().wait_finished(last)["status"], "completed");
    let batches: Vec<_> = mesh
        .lobby()
        .entries_of("turn-started")
        .iter()
        .flat_map(|entry| body(entry)["batch"].as_array().cloned().unwrap_or_default())
        .filter_map(|message| message.as_u64())
        .collect();
    assert_eq!(batches, posts, "in order, each once");
    assert_eq!(mesh.wait_file("starts.txt", "job-5").lines().count(), 5);
}

#[test]
fn resident_killed_while_the_home_is_away_is_reconciled() {
    let mut mesh = witness_mesh();
    let saved = mesh.lobby().post("@bot job-1");
    let run = mesh.lobby().wait_started(saved.message);
    mesh.wait_file("starts.txt", "job-1");
    mesh.home.kill9();
    fs::write(mesh.work().join("go"), "").expect("the work folder can be written");
    mesh.home.start();
    assert_eq!(mesh.lobby().wait_finished(run)["status"], "completed");

    // Both go down in a turn: the resident's journal says that it was started, and nobody saw the end.
    let _ = fs::remove_file(mesh.work().join("go"));
    let saved = mesh.lobby().post("@bot job-2");
    let run = mesh.lobby().wait_started(saved.message);
    mesh.wait_file("starts.txt", "job-2");
    mesh.home.kill9();
    mesh.resident.kill9();
    mesh.resident.start();
    mesh.home.start();
    let _ = mesh.lobby().wait_held(run);
    assert_eq!(mesh.wait_file("starts.txt", "job-2"), "job-1\njob-2\n");
    let started = mesh.lobby().entries_of("turn-started");
    assert_eq!(started.iter().filter(|entry| contains(&body(entry)["batch"], saved.message)).count(), 1);
}

#[test]
fn case_l10_turn_that_ends_while_the_home_is_away_is_journalled_once() {
    let mut mesh = witness_mesh();
    let saved = mesh.lobby().post("@bot job-1");
    let run = mesh.lobby().wait_started(saved.message);
    mesh.wait_file("starts.txt", "job-1");
    mesh.home.stop();
    fs::write(mesh.work().join("go"), "").expect("the work folder can be written");
    // The harness ends although its home is away; its process is gone before the home comes back.
    mesh.home.start();
    let finished = mesh.lobby().wait_finished(run);
    assert_eq!(finished["text"].as_str().map(str::trim), Some("working\nworked"), "{finished}");
    assert_eq!(mesh.lobby().entries_of("turn-finished").len(), 1);
}
