//! The host with programs that are on every box: `exec` commands and the scripted harness.

mod harness_support;

use std::time::Duration;

use harness_support::{Rig, file_with, gone, processes};
use tieline::harness::TurnSpec;
use tieline_proto::entry::Policy;
use tieline_proto::event::{ALLOW, DENY, Event, Status};
use tieline_proto::id::{Attempt, MemberId};

const SHELL: (&str, &[&str]) = ("shell", &["sh", "-s"]);

#[tokio::test]
async fn exec_gives_the_prompt_to_stdin_and_streams_stdout() {
    let rig = Rig::new(&[("upper", &["tr", "a-z", "A-Z"])], &[]);
    let done = rig.run("upper", rig.spec("häuser and homes\n")).await;
    assert_eq!((done.outcome.status, done.outcome.text.as_str()), (Status::Completed, "HäUSER AND HOMES"));
    assert_eq!(done.text(), "HäUSER AND HOMES\n");
    assert!(matches!(done.events.first(), Some(Event::Started { .. })));
}

#[tokio::test]
async fn exec_keeps_characters_whole_in_large_output() {
    let rig = Rig::new(&[("copy", &["cat"])], &[]);
    let prompt = "añ€𝄞".repeat(100_000);
    let done = rig.run("copy", rig.spec(&prompt)).await;
    assert!(done.text() == prompt);
    assert!(done.events.iter().all(|event| !matches!(event, Event::Text { text } if text.len() > 64 * 1024)));
    assert!(done.outcome.text.len() < prompt.len() && done.outcome.text.contains("more bytes"));
}

#[tokio::test]
async fn exec_that_fails_says_its_status_and_the_end_of_its_stderr() {
    let rig = Rig::new(&[SHELL], &[]);
    let done = rig.run("shell", rig.spec("echo partly; echo no luck >&2; exit 3")).await;
    assert_eq!(done.outcome.status, Status::Failed);
    assert_eq!(done.outcome.error.as_deref(), Some("sh ended with status 3: no luck"));
    assert_eq!(done.outcome.text, "partly");
    let done = rig.run("shell", rig.spec("kill -9 $$")).await;
    assert_eq!(done.outcome.error.as_deref(), Some("sh was ended by signal 9"));
}

#[tokio::test]
async fn a_programs_environment_is_the_short_list_and_what_the_turn_adds() {
    let rig = Rig::new(&[("vars", &["env"])], &[]);
    let mut spec = rig.spec("");
    spec.env.insert("TIELINE_TOKEN".to_owned(), "t1".to_owned());
    spec.policy = Policy::Edit;
    spec.model = Some("large".to_owned());
    let done = rig.run("vars", spec).await;
    let lines: Vec<&str> = done.outcome.text.lines().collect();
    assert!(lines.contains(&"TIELINE_TOKEN=t1"));
    assert!(lines.contains(&"TIELINE_POLICY=edit") && lines.contains(&"TIELINE_MODEL=large"));
    assert!(lines.iter().all(|line| !line.starts_with("CARGO")), "{lines:?}");
}

#[tokio::test]
async fn interrupting_exec_ends_all_that_it_started() {
    let rig = Rig::new(&[SHELL], &[("MARK", "tieline-test-interrupt".to_owned())]);
    // One child in the group, one detached into a session of its own, and one that ignores SIGTERM.
    let script = "trap '' TERM; sleep 600 & setsid -f sleep 600; echo started; wait";
    let mut turn = rig.start("shell", rig.spec(script));
    turn.until_text().await;
    assert!(processes("MARK=tieline-test-interrupt").len() >= 4);
    turn.interrupt().await;
    turn.interrupt().await;
    let done = turn.done().await;
    assert_eq!(done.outcome.status, Status::Interrupted);
    gone("MARK=tieline-test-interrupt").await;
    assert_eq!(rig.host.processes(), 0);
}

#[tokio::test]
async fn what_exec_leaves_behind_ends_with_its_turn() {
    let rig = Rig::new(&[SHELL], &[("MARK", "tieline-test-leftover".to_owned())]);
    let done = rig.run("shell", rig.spec("sleep 600 & setsid -f sleep 600; echo done")).await;
    assert_eq!((done.outcome.status, done.outcome.text.as_str()), (Status::Completed, "done"));
    gone("MARK=tieline-test-leftover").await;
}

#[tokio::test]
async fn killing_a_member_ends_its_turn_and_its_program() {
    let rig = Rig::new(&[SHELL], &[("MARK", "tieline-test-kill".to_owned())]);
    let mut turn = rig.start("shell", rig.spec("echo started; sleep 600"));
    turn.until_text().await;
    rig.host.kill(rig.key()).await;
    assert_eq!(turn.done().await.outcome.status, Status::Interrupted);
    gone("MARK=tieline-test-kill").await;
    assert_eq!(rig.run("shell", rig.spec("echo again")).await.outcome.text, "again");
}

#[tokio::test]
async fn dropping_a_turn_ends_its_program() {
    let rig = Rig::new(&[SHELL], &[("MARK", "tieline-test-drop".to_owned())]);
    let mut turn = rig.start("shell", rig.spec("echo started; sleep 600"));
    turn.until_text().await;
    drop(turn);
    gone("MARK=tieline-test-drop").await;
}

#[tokio::test]
async fn shutdown_interrupts_turns_and_later_ones_do_not_start() {
    let rig = Rig::new(&[SHELL], &[("MARK", "tieline-test-stop".to_owned())]);
    let mut turn = rig.start("shell", rig.spec("echo started; sleep 600"));
    turn.until_text().await;
    let ((), done) = tokio::join!(rig.host.shutdown(), turn.done());
    assert_eq!(done.outcome.status, Status::Interrupted);
    gone("MARK=tieline-test-stop").await;
    assert_eq!(rig.run("shell", rig.spec("echo late")).await.outcome.status, Status::Interrupted);
}

/// Not a test of its own: the node that the next test kills.
#[tokio::test]
#[ignore = "run by nothing_outlives_a_node_that_is_killed"]
async fn node_to_be_killed() {
    let Ok(mark) = std::env::var("TIELINE_TEST_MARK") else { return };
    let rig = Rig::new(&[SHELL], &[("MARK", mark.clone())]);
    let script = format!("sleep 600 & setsid -f sleep 600; echo $$ > {mark}; sleep 600; echo");
    let turn = rig.start("shell", rig.spec(&script));
    turn.done().await;
}

#[tokio::test]
async fn nothing_outlives_a_node_that_is_killed() {
    let folder = tempfile::tempdir().expect("a folder");
    let mark = folder.path().join("pid").display().to_string();
    let mut node = std::process::Command::new(std::env::current_exe().expect("this test"))
        .args(["--ignored", "--exact", "node_to_be_killed"])
        .env("TIELINE_TEST_MARK", &mark)
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("the node starts");
    file_with(mark.as_ref(), |text| text.trim().parse::<i32>().ok()).await;
    assert!(processes(&format!("MARK={mark}")).len() >= 4);
    node.kill().expect("SIGKILL");
    node.wait().expect("it is gone");
    gone(&format!("MARK={mark}")).await;
}

#[tokio::test]
async fn a_program_dies_with_its_killed_keeper_and_the_turn_fails() {
    let rig = Rig::new(&[SHELL], &[("MARK", "tieline-test-keeper".to_owned())]);
    let mut turn = rig.start("shell", rig.spec("echo $PPID; exec sleep 600"));
    turn.until_text().await;
    let keeper = turn.seen.iter().find_map(|event| match event {
        Event::Text { text } => text.trim().parse().ok(),
        _ => None,
    });
    let keeper = rustix::process::Pid::from_raw(keeper.expect("its parent is the keeper")).expect("a pid");
    rustix::process::kill_process(keeper, rustix::process::Signal::KILL).expect("killed");
    let done = turn.done().await;
    assert_eq!((done.outcome.status, done.outcome.error.as_deref()), (Status::Failed, Some("sh was killed")));
    gone("MARK=tieline-test-keeper").await;
}

#[tokio::test]
async fn what_can_not_start_is_a_failed_turn_with_advice() {
    let rig = Rig::new(&[], &[("PATH", "/nonexistent".to_owned())]);
    for (harness, words) in [
        ("codex", "npm i -g @openai/codex"),
        ("claude-code", "npm i -g @anthropic-ai/claude-code"),
        ("no-such", "it has scripted, claude-code, codex"),
    ] {
        let outcome = rig.run(harness, rig.spec("hello")).await.outcome;
        let error = outcome.error.unwrap_or_default();
        assert!(outcome.status == Status::Failed && error.contains(words), "{error}");
    }
    let lost = TurnSpec { cwd: rig.root.join("lost"), ..rig.spec("hello") };
    let error = rig.run("scripted", lost).await.outcome.error.unwrap_or_default();
    assert!(error.contains("lost is not there"), "{error}");
}

#[tokio::test]
async fn scripted_answers_in_several_events_and_proves_the_turn_first() {
    let rig = Rig::new(&[], &[]);
    let mut turn = rig.start("scripted", rig.spec("good morning"));
    turn.until(|event| matches!(event, Event::Started { .. })).await;
    let witness = std::fs::read_to_string(rig.root.join("witness")).expect("written before the first event");
    assert_eq!(witness, format!("{} 1 1\n", "07".repeat(32)));
    let done = turn.done().await;
    assert_eq!(done.outcome.status, Status::Completed);
    assert!(done.events.iter().filter(|event| matches!(event, Event::Text { .. })).count() >= 3);
    assert!(done.outcome.text.contains("good morning"));

    let spec = rig.spec("again");
    let id = tieline_proto::link::AttemptId { attempt: Attempt(2), ..spec.id };
    rig.run("scripted", TurnSpec { id, ..spec }).await;
    assert_eq!(std::fs::read_to_string(rig.root.join("witness")).expect("written").lines().count(), 2);
}

#[tokio::test]
async fn scripted_remembers_its_session_and_sees_late_settings() {
    let rig = Rig::new(&[], &[]);
    let first = rig.run("scripted", rig.spec("script:turn script:settings")).await;
    assert!(first.outcome.text.starts_with("turn 1 of this session\nmodel=default policy=ask"), "{first:?}");
    let spec = rig.spec("script:turn script:settings");
    let spec = TurnSpec { session: first.session, model: Some("big".to_owned()), policy: Policy::Full, ..spec };
    let second = rig.run("scripted", spec).await;
    assert!(second.outcome.text.starts_with("turn 2 of this session\nmodel=big policy=full"), "{second:?}");
}

#[tokio::test]
async fn case_a7_two_approvals_in_one_turn_both_work() {
    let rig = Rig::new(&[], &[]);
    let mut turn =
        rig.start("scripted", rig.spec("script:approve(write|a) script:approve(write|b) script:ask(Tea?|yes|no)"));
    let first = turn.asked().await;
    assert_eq!(first.action.as_deref(), Some(r#"{"action":"a"}"#));
    turn.answer(&first, ALLOW).await;
    let second = turn.asked().await;
    assert_ne!(first.id, second.id);
    // An answer to a question that was answered is moot.
    turn.answer(&first, ALLOW).await;
    turn.answer(&second, DENY).await;
    let question = turn.asked().await;
    turn.answer(&question, "yes").await;
    let done = turn.done().await;
    assert_eq!(done.outcome.text, "allowed\nnot allowed\nYou answered: yes");
}

#[tokio::test]
async fn scripted_policies_decide_without_asking() {
    let rig = Rig::new(&[], &[]);
    for (policy, said) in [(Policy::Full, "allowed"), (Policy::ReadOnly, "not allowed")] {
        let spec = TurnSpec { policy, ..rig.spec("script:approve(write|a)") };
        assert_eq!(rig.run("scripted", spec).await.outcome.text, said);
    }
}

#[tokio::test]
async fn case_s6_two_interrupts_end_a_turn_once() {
    let rig = Rig::new(&[], &[]);
    let mut turn = rig.start("scripted", rig.spec("script:text(one) script:open(shell) script:hang"));
    turn.until(|event| matches!(event, Event::ToolCall { .. })).await;
    turn.interrupt().await;
    turn.interrupt().await;
    let done = turn.done().await;
    assert_eq!((done.outcome.status, done.outcome.text.as_str()), (Status::Interrupted, "one"));
    assert!(matches!(done.events.last(), Some(Event::ToolResult { ok: false, .. })), "the open call is closed");
}

#[tokio::test]
async fn case_s12_interrupted_at_once_a_member_takes_the_next_turn() {
    let rig = Rig::new(&[SHELL], &[]);
    for harness in ["scripted", "shell"] {
        let turn = rig.start(harness, rig.spec("sleep 600 # script:hang"));
        turn.interrupt().await;
        assert_eq!(turn.done().await.outcome.status, Status::Interrupted);
        let done = rig.run(harness, rig.spec("echo fine # script:text(fine)")).await;
        assert_eq!((done.outcome.status, done.outcome.text.as_str()), (Status::Completed, "fine"));
    }
}

#[tokio::test]
async fn a_turn_waits_while_its_events_are_not_taken_and_can_still_be_interrupted() {
    let rig = Rig::new(&[], &[]);
    let turn = rig.start("scripted", rig.spec("script:big(1000000,200)"));
    tokio::time::timeout(Duration::from_secs(20), async {
        while turn.turn.outputs.len() < tieline::harness::OUTPUTS_WAITING_MAX {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("the queue fills");
    turn.interrupt().await;
    let done = turn.done().await;
    assert_eq!(done.outcome.status, Status::Interrupted);
    assert!(done.events.len() < 2 * tieline::harness::OUTPUTS_WAITING_MAX);
}

#[tokio::test]
async fn members_run_side_by_side_and_one_member_in_order() {
    let rig = Rig::new(&[], &[]);
    let mut hanging = rig.start("scripted", rig.spec("script:text(a) script:hang"));
    hanging.until_text().await;
    let other = TurnSpec { member: MemberId(3), ..rig.spec("script:text(b)") };
    assert_eq!(rig.run("scripted", other).await.outcome.text, "b");
    let queued = rig.start("scripted", rig.spec("script:text(c)"));
    hanging.interrupt().await;
    assert_eq!(hanging.done().await.outcome.status, Status::Interrupted);
    assert_eq!(queued.done().await.outcome.text, "c");
}
