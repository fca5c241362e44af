//! Turns and members: queues, interrupts, approvals, clients that go away.

use std::time::Duration;

use tieline_tests::mesh::{Plan, RESIDENT};
use tieline_tests::view::{Channel, Saved, body, contains};
use tieline_tests::{Mesh, until};

fn scripted() -> Mesh {
    let mesh = Mesh::start();
    mesh.add_scripted("bot");
    mesh
}

#[test]
fn case_l7_post_during_a_turn_waits_and_leaves_the_turn_unhurt() {
    let mesh = scripted();
    let first = mesh.lobby().post("@bot script:ask(Go on?|yes) script:text(first done)");
    let run = mesh.lobby().wait_started(first.message);
    let card = mesh.lobby().wait_card(run);
    let second = mesh.lobby().post("@bot script:text(second done)");
    let third = mesh.lobby().post("@bot script:text(third done)");
    until("two to be queued", || (mesh.lobby().member_status("bot")["queue"]["depth"] == 2).then_some(()));
    mesh.lobby().answer(card["message"].as_u64().expect("a number"), "yes");
    let text = mesh.lobby().wait_finished(run)["text"].to_string();
    assert!(text.contains("first done"), "{text}");

    let next = mesh.lobby().wait_started(second.message);
    let finished = mesh.lobby().wait_finished(next);
    let started = mesh.lobby().entries_of("turn-started").pop().expect("a turn started");
    assert!(contains(&body(&started)["batch"], third.message), "what waited is one batch: {started}");
    assert_eq!(finished["text"].as_str().map(str::trim), Some("second donethird done"), "{finished}");
}

#[test]
fn case_l5_stopped_turn_does_not_take_the_queue_with_it() {
    let mesh = scripted();
    let first = mesh.lobby().post("@bot script:hang");
    let run = mesh.lobby().wait_started(first.message);
    let second = mesh.lobby().post("@bot script:text(my own turn)");
    mesh.lobby().member("interrupt", "bot", &[]);
    assert_eq!(mesh.lobby().wait_finished(run)["status"], "interrupted");
    let next = mesh.lobby().wait_started(second.message);
    assert_eq!(mesh.lobby().wait_finished(next)["text"], "my own turn");
}

#[test]
fn case_s4_turn_does_not_depend_on_any_client() {
    let mesh = scripted();
    let client = mesh.lobby().spawn_post("@bot script:ask(Still there?|yes)", &["--wait"]);
    let card = mesh.lobby().wait_entry("a card", |entry| entry["kind"] == "card-raised");
    drop(client);
    mesh.lobby().answer(body(&card)["message"].as_u64().expect("a number"), "yes");
    let run = body(&card)["run"].as_u64().expect("a run");
    assert_eq!(mesh.lobby().wait_finished(run)["status"], "completed");
}

#[test]
fn case_s6_two_interrupts_are_both_answered_and_the_turn_ends_once() {
    let mesh = scripted();
    let saved = mesh.lobby().post("@bot script:hang");
    let run = mesh.lobby().wait_started(saved.message);
    let interrupt = || mesh.home.spawn_cli(["member", "interrupt", "lobby", "bot", "--json"]);
    let (first, second) = (interrupt(), interrupt());
    // One of the two may come when the turn is over; both are answered in words.
    for answer in [first.finish(), second.finish()] {
        assert!(answer.code == Some(0) || !answer.error_code().is_empty(), "{}", answer.stdout);
    }
    assert_eq!(mesh.lobby().wait_finished(run)["status"], "interrupted");
    assert_eq!(mesh.lobby().entries_of("turn-finished").len(), 1);
}

#[test]
fn case_s12_interrupt_right_after_the_start_leaves_the_member_usable() {
    let mesh = scripted();
    for round in 0..5 {
        let saved = mesh.lobby().post("@bot script:hang");
        // As soon as anything of the turn is known, and well before its first event.
        until("the turn to be known", || {
            let known = mesh.home.cli(["member", "interrupt", "lobby", "bot", "--json"]).code == Some(0);
            known.then_some(())
        });
        let run = mesh.lobby().wait_entry("the turn to start", |entry| {
            entry["kind"] == "turn-started" && contains(&body(entry)["batch"], saved.message)
        });
        let run = body(&run)["message"].as_u64().expect("a run");
        assert_eq!(mesh.lobby().wait_finished(run)["status"], "interrupted", "round {round}");
    }
    assert_eq!(mesh.lobby().ask("@bot script:text(fine)").answer(), "fine");
}

#[test]
fn case_d7_silent_harness_is_not_asked_again() {
    let plan = Plan::default();
    let script = plan.script("silent", "#!/bin/sh\ncat >/dev/null\necho ran >>turns.txt\nsleep 6\necho late\n");
    let mesh = plan.command("silent", [script]).start();
    mesh.add("bot", "silent");
    assert_eq!(mesh.lobby().ask("@bot say something").answer().trim(), "late");
    assert_eq!(mesh.wait_file("turns.txt", "ran"), "ran\n");
    assert_eq!(mesh.lobby().entries_of("turn-started").len(), 1);
}

#[test]
fn case_d6_same_member_added_six_times_at_once_is_one_member() {
    let mesh = Mesh::start();
    let work = mesh.work();
    let work = work.to_str().expect("plain");
    let add = ["member", "add", "lobby", "bot", "--harness", "scripted", "--on", "lab", "--cwd", work, "--json"];
    let tries: Vec<_> = (0..6).map(|_| mesh.home.spawn_cli(add)).collect();
    let ok = tries.into_iter().map(tieline_tests::Process::finish).filter(|end| end.code == Some(0)).count();
    assert!(ok >= 1, "one of them is the first");
    let added = mesh.lobby().entries_of("member-added");
    assert_eq!(added.iter().filter(|entry| body(entry)["member"]["handle"] == "bot").count(), 1, "{added:?}");
}

#[test]
fn case_a7_two_approvals_in_one_turn_both_work() {
    let mesh = scripted();
    let saved = mesh.lobby().post("@bot script:approve(shell|rm a) script:approve(shell|rm b)");
    let run = mesh.lobby().wait_started(saved.message);
    let cards = |n: usize| {
        until("the card", || {
            let cards = mesh.lobby().entries_of("card-raised");
            (cards.len() == n).then(|| body(&cards[n - 1]).clone())
        })
    };
    let first = cards(1);
    assert_eq!(first["ask"]["kind"], "approval");
    assert!(first["ask"]["action"].as_str().is_some_and(|action| action.contains("rm a")), "the exact action: {first}");
    mesh.lobby().answer(first["message"].as_u64().expect("a number"), "allow");
    let second = cards(2);
    mesh.lobby().answer(second["message"].as_u64().expect("a number"), "deny");
    let finished = mesh.lobby().wait_finished(run);
    assert_eq!(finished["text"].as_str().map(str::trim), Some("allowed\nnot allowed"), "{finished}");
}

#[test]
fn first_answer_wins_and_the_second_is_told() {
    let mesh = scripted();
    let saved = mesh.lobby().post("@bot script:ask(Red or blue?|red|blue)");
    let run = mesh.lobby().wait_started(saved.message);
    let card = mesh.lobby().wait_card(run)["message"].to_string();
    let answer = |label: &str| mesh.home.cli(["answer", "lobby", &card, "--choose", label, "--json"]);
    let unknown = answer("green");
    assert!(matches!(unknown.code, Some(2 | 4)), "{}", unknown.stdout);
    let _ = answer("blue").ok();
    let second = answer("red").code(3);
    assert_eq!(second.error_code(), "conflict");
    assert_eq!(mesh.lobby().wait_finished(run)["text"].as_str().map(str::trim), Some("You answered: blue"));
}

#[test]
fn failed_turn_does_not_kill_its_member() {
    let mesh = scripted();
    let failed = mesh.lobby().post_with("@bot script:fail(no luck)", &["--wait"]);
    let turn = Saved::read(failed.json());
    assert_eq!(turn.turn()["status"], "failed", "{}", failed.stdout);
    let finished = mesh.lobby().wait_finished(turn.turn()["message"].as_u64().expect("a run"));
    assert_eq!(finished["error"], "no luck");
    assert_eq!(mesh.lobby().ask("@bot script:text(alive)").answer(), "alive");
}

#[test]
fn paused_member_keeps_its_queue() {
    let mesh = scripted();
    mesh.lobby().member("pause", "bot", &[]);
    mesh.lobby().wait_state("bot", "paused");
    let saved = mesh.lobby().post("@bot script:text(after the pause)");
    until("it to be queued", || (mesh.lobby().member_status("bot")["queue"]["depth"] == 1).then_some(()));
    assert!(mesh.lobby().entries_of("turn-started").is_empty());
    mesh.lobby().member("resume", "bot", &[]);
    let run = mesh.lobby().wait_started(saved.message);
    assert_eq!(mesh.lobby().wait_finished(run)["text"], "after the pause");
}

#[test]
fn renamed_member_answers_to_its_new_handle() {
    let mesh = scripted();
    mesh.lobby().member("rename", "bot", &["robot"]);
    assert_eq!(mesh.lobby().ask("@robot script:text(it is me)").answer(), "it is me");
    let old = mesh.lobby().post("@bot are you there?");
    assert!(old.json["unknown"].to_string().contains("bot"), "an unknown handle is reported: {}", old.json);
}

#[test]
fn removed_member_gets_nothing_more() {
    let mesh = scripted();
    mesh.lobby().member("remove", "bot", &[]);
    let _ = mesh.lobby().post("@bot script:text(nobody)");
    assert!(mesh.lobby().entries_of("turn-started").is_empty());
    let missing = mesh.home.cli(["member", "pause", "lobby", "bot", "--json"]).code(4);
    assert_eq!(missing.error_code(), "not_found");
}

#[test]
fn case_x11_untagged_text_of_an_agent_starts_nobody() {
    let plan = Plan::default();
    let script = plan.script(
        "talker",
        &format!(
            "#!/bin/sh\ncat >/dev/null\n{} post \"$TIELINE_CHANNEL\" 'I talk to nobody' --json\n",
            tieline_tests::node::binary("tieline").display()
        ),
    );
    let mesh = plan.command("talker", [script]).start();
    mesh.add("talker", "talker");
    for handle in ["ant", "bee", "cat"] {
        mesh.add_scripted(handle);
    }
    let _ = mesh.lobby().ask("@talker talk");
    let _ = mesh.lobby().wait_entry("its post", |entry| body(entry)["post"]["text"] == "I talk to nobody");
    let started = mesh.lobby().entries_of("turn-started");
    assert_eq!(started.len(), 1, "only the talker ran: {started:?}");
}

#[test]
fn case_o12_agent_cannot_stop_the_node_it_runs_on() {
    let plan = Plan::default();
    let tieline = tieline_tests::node::binary("tieline").display().to_string();
    let script = plan.script(
        "stopper",
        &format!(
            "#!/bin/sh\ncat >/dev/null\n\
             {tieline} stop --json >stop.json 2>/dev/null; echo \"stop $?\"\n\
             {tieline} member add lobby spy --harness scripted --json >add.json 2>/dev/null; echo \"add $?\"\n"
        ),
    );
    let mut mesh = plan.command("stopper", [script]).start();
    mesh.add("bot", "stopper");
    let saved = mesh.lobby().ask("@bot stop everything");
    assert_eq!(saved.answer().trim(), "stop 3\nadd 3", "an agent has one member's capabilities");
    assert!(mesh.resident.runs() && mesh.home.runs());
}

#[test]
fn case_l17_member_is_idle_when_its_turn_is_over() {
    let plan = Plan::default();
    // Prints nothing that says "idle", and ends.
    let script = plan.script("plain", "#!/bin/sh\ncat >/dev/null\necho done\n");
    let mesh = plan.command("plain", [script]).start();
    mesh.add("bot", "plain");
    for _ in 0..3 {
        assert_eq!(mesh.lobby().ask("@bot go").answer().trim(), "done");
    }
}

#[test]
fn case_l19_saved_handed_over_started_and_finished_are_told_apart() {
    let mesh = scripted();
    let mut tail = mesh.lobby().follow(0);
    let saved = mesh.lobby().ask("@bot script:text(words)");
    let mut order = Vec::new();
    tail.wait_json("the end", |frame| {
        let kind = if frame["type"] == "event" { &frame["event"]["type"] } else { &frame["kind"] };
        let kind = kind.as_str().unwrap_or_default().to_owned();
        let told = ["posted", "turn-started", "attempt-accepted", "started", "turn-finished"];
        if told.contains(&kind.as_str()) {
            order.push(kind.clone());
        }
        kind == "turn-finished"
    });
    assert_eq!(order, ["posted", "turn-started", "attempt-accepted", "started", "turn-finished"], "{}", saved.json);
}

#[test]
fn case_d9_retry_of_a_saved_post_gives_the_stored_answer_after_a_crash() {
    let mut mesh = scripted();
    let first = mesh.lobby().post_with("@bot script:text(once)", &["--id", "retry-1"]).ok().json();
    mesh.home.crash();
    let again = mesh.lobby().post_with("@bot script:text(once)", &["--id", "retry-1"]).ok().json();
    assert_eq!(first["message"], again["message"]);
    assert_eq!(first["seq"], again["seq"]);
    mesh.wait_links();
    let run = mesh.lobby().wait_started(first["message"].as_u64().expect("a number"));
    let _ = mesh.lobby().wait_finished(run);
    assert_eq!(mesh.lobby().entries_of("turn-started").len(), 1);
}

#[test]
fn sessions_are_resumed_after_both_nodes_restart() {
    let mut mesh = scripted();
    assert!(mesh.lobby().ask("@bot script:turn").answer().contains("turn 1"));
    mesh.resident.restart();
    mesh.home.restart();
    mesh.wait_links();
    assert!(mesh.lobby().ask("@bot script:turn").answer().contains("turn 2"));
}

#[test]
fn burst_of_events_arrives_whole() {
    let mesh = scripted();
    let post = mesh.lobby().spawn_post("@bot script:big(2000,200)", &["--wait", "--timeout", "100"]);
    let saved = Saved::read(post.finish_within(Duration::from_secs(110)).ok().json());
    assert_eq!(saved.answer().trim().len(), 2000 * 200);
    let finished = mesh.lobby().wait_finished(saved.turn()["message"].as_u64().expect("a run"));
    assert!(finished["events"].as_u64() > Some(2), "{}", finished["events"]);
}

/// A channel that was made while the resident was away: what it learns of the org comes before the turn.
#[test]
fn turn_in_a_channel_made_while_its_resident_was_away_runs_when_it_is_back() {
    let mut mesh = scripted();
    mesh.resident.stop();
    let _ = mesh.home.cli(["channel", "create", "second", "--json"]).ok();
    let work = mesh.work();
    let work = work.to_str().expect("temporary folders have plain names");
    let add = ["member", "add", "second", "late", "--harness", "scripted", "--on", RESIDENT, "--cwd", work, "--json"];
    let _ = mesh.home.cli(add).ok();
    let saved = Channel::new(&mesh.home, "second").post("@late script:text(here)");
    mesh.resident.start();
    let second = Channel::new(&mesh.home, "second");
    let finished = second.wait_finished(second.wait_started(saved.message));
    assert_eq!((&finished["status"], &finished["text"]), (&"completed".into(), &"here".into()), "{finished}");
}

/// What a resident learns of the org is on its own disk: it knows its channels with the home away.
#[test]
fn resident_keeps_what_it_learns_of_the_org() {
    let mut mesh = scripted();
    let _ = mesh.home.cli(["channel", "create", "second", "--json"]).ok();
    let knows = |mesh: &Mesh| {
        let status = mesh.resident.status();
        let channels = status["channels"].as_array().cloned().unwrap_or_default();
        channels.iter().any(|channel| channel["name"] == "second").then_some(())
    };
    until("the resident to hear of the channel", || knows(&mesh));
    mesh.home.stop();
    mesh.resident.crash();
    assert!(knows(&mesh).is_some(), "{}", mesh.resident.status());
    assert!(!mesh.resident.log().contains("could not be made durable"), "{}", mesh.resident.log());
}
