//! The five faults that were found in an earlier system's multi-box turns: the same steps, the opposite result. The
//! scripted and `exec` members here; real agents in `real.rs`.

use std::fs;
use std::time::{Duration, Instant};

use tieline_tests::mesh::Plan;
use tieline_tests::view::{Channel, body};
use tieline_tests::{Mesh, until};

/// How long a link may take to recover after the other node is back.
pub const RECOVERY: Duration = Duration::from_secs(15);

/// Says `begin`, waits for the file `go`, says `end`; leaves a line in `turns.txt` for each run and its process id.
pub const GATED: &str = "#!/bin/sh
cat >/dev/null
echo ran >>turns.txt
echo $$ >pid.txt
echo begin
until [ -e go ]; do sleep 0.05; done
echo end
";

fn gated_mesh() -> Mesh {
    let plan = Plan::default();
    let script = plan.script("gated", GATED);
    let mesh = plan.command("gated", [script]).start();
    mesh.add("bot", "gated");
    mesh
}

#[test]
fn home_restarted_in_order_mid_turn_finishes_it_once() {
    home_restarted_mid_turn(|mesh| mesh.home.restart());
}

#[test]
fn home_killed_mid_turn_finishes_it_once() {
    home_restarted_mid_turn(|mesh| mesh.home.crash());
}

fn home_restarted_mid_turn(restart: impl FnOnce(&mut Mesh)) {
    let mut mesh = gated_mesh();
    let saved = mesh.lobby().post("@bot begin");
    let run = mesh.lobby().wait_started(saved.message);
    mesh.wait_file("turns.txt", "ran");
    restart(&mut mesh);
    let began = Instant::now();
    mesh.home.wait_link();
    assert!(began.elapsed() < RECOVERY, "the link took {:?}", began.elapsed());

    fs::write(mesh.work().join("go"), "").expect("the work folder can be written");
    let finished = mesh.lobby().wait_finished(run);
    assert_eq!(finished["status"], "completed", "{finished}");
    assert_eq!(finished["text"].as_str().map(str::trim), Some("begin\nend"), "{finished}");
    assert_eq!(mesh.wait_file("turns.txt", "ran"), "ran\n", "the turn ran once");
    let attempts = mesh.lobby().entries_of("turn-started");
    assert_eq!(attempts.len(), 1, "nothing was retried: {attempts:?}");
    mesh.lobby().verify();
    mesh.lobby().wait_state("bot", "idle");
}

#[test]
fn remote_question_is_answered_at_the_home() {
    let mesh = Mesh::start();
    mesh.add_scripted("bot");
    let saved = mesh.lobby().post("@bot script:ask(Tea or coffee?|tea|coffee) script:text(So be it.)");
    let run = mesh.lobby().wait_started(saved.message);
    let card = mesh.lobby().wait_card(run);
    assert_eq!(card["ask"]["prompt"], "Tea or coffee?", "{card}");
    mesh.lobby().wait_state("bot", "asking");
    let inbox = mesh.home.cli(["inbox", "lobby", "--json"]).ok().stdout;
    assert!(inbox.contains("Tea or coffee?"), "{inbox}");

    mesh.lobby().answer(card["message"].as_u64().expect("a card has a number"), "coffee");
    let finished = mesh.lobby().wait_finished(run);
    assert_eq!(finished["status"], "completed", "{finished}");
    assert_eq!(finished["text"].as_str().map(str::trim), Some("You answered: coffee\nSo be it."), "{finished}");
}

#[test]
fn remote_stop_stops_the_harness() {
    let mesh = gated_mesh();
    let saved = mesh.lobby().post("@bot begin");
    let run = mesh.lobby().wait_started(saved.message);
    let pid = mesh.wait_file("pid.txt", "\n");
    mesh.lobby().member("interrupt", "bot", &[]);
    assert_eq!(mesh.lobby().wait_finished(run)["status"], "interrupted");
    until("the harness's process to be gone", || {
        (!fs::exists(format!("/proc/{}", pid.trim())).unwrap_or(true)).then_some(())
    });
    // Stopping is no failure of the member.
    fs::write(mesh.work().join("go"), "").expect("the work folder can be written");
    assert_eq!(mesh.lobby().ask("@bot again").answer().trim(), "begin\nend");
}

#[test]
fn remote_kill_ends_the_process_and_keeps_the_queue() {
    let mesh = gated_mesh();
    let saved = mesh.lobby().post("@bot begin");
    let run = mesh.lobby().wait_started(saved.message);
    let pid = mesh.wait_file("pid.txt", "\n");
    mesh.lobby().member("kill", "bot", &[]);
    assert_eq!(mesh.lobby().wait_finished(run)["status"], "interrupted");
    until("the harness's process to be gone", || {
        (!fs::exists(format!("/proc/{}", pid.trim())).unwrap_or(true)).then_some(())
    });
    mesh.lobby().wait_state("bot", "killed");
    fs::write(mesh.work().join("go"), "").expect("the work folder can be written");
    let kept = mesh.lobby().post("@bot kept while dead");
    until("the message to be queued", || (mesh.lobby().member_status("bot")["queue"]["depth"] == 1).then_some(()));
    mesh.lobby().member("revive", "bot", &[]);
    let run = mesh.lobby().wait_started(kept.message);
    assert_eq!(mesh.lobby().wait_finished(run)["status"], "completed");
}

#[test]
fn model_and_policy_changes_reach_the_resident() {
    let mesh = Mesh::start();
    mesh.add_scripted("bot");
    let first = mesh.lobby().ask("@bot script:settings");
    assert!(first.answer().contains("model=default policy=ask"), "{}", first.answer());
    mesh.lobby().member("configure", "bot", &["--model", "big-model"]);
    let second = mesh.lobby().ask("@bot script:settings script:turn");
    assert!(second.answer().contains("model=big-model"), "{}", second.answer());
    assert!(second.answer().contains("turn 2 of this session"), "the session goes on: {}", second.answer());
    mesh.lobby().member("configure", "bot", &["--policy", "read-only"]);
    let third = mesh.lobby().ask("@bot script:settings");
    assert!(third.answer().contains("model=big-model policy=read-only"), "{}", third.answer());
}

#[test]
fn home_without_its_resident_keeps_local_members_local() {
    let mut mesh = Mesh::start();
    mesh.add_scripted("far");
    let _ = mesh.home.cli(["member", "add", "lobby", "near", "--harness", "scripted", "--json"]).ok();
    let _ = mesh.lobby().ask("@near script:text(here)").answer();
    let _ = mesh.lobby().ask("@far script:text(there)").answer();

    mesh.resident.stop();
    mesh.home.restart();
    let near = mesh.lobby().ask("@near script:text(still here)");
    assert_eq!(near.answer().trim(), "still here");
    let started = mesh.lobby().entries_of("turn-started").pop().expect("a turn started");
    assert_eq!(body(&started)["node"], mesh.home.id().as_str());

    // The one who lives elsewhere is said to be away, with what waits for it.
    let waiting = mesh.lobby().post("@far script:text(later)");
    mesh.lobby().wait_state("far", "unreachable");
    let far = mesh.lobby().member_status("far");
    assert_eq!(far["queue"]["depth"], 1, "{far}");
    assert!(far["queue"]["oldest_ms"].is_u64(), "{far}");

    mesh.resident.start();
    let run = Channel::new(&mesh.home, "lobby").wait_started(waiting.message);
    assert_eq!(mesh.lobby().wait_finished(run)["text"], "later");
}
