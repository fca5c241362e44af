//! Real agents as members on the resident: Claude Code and Codex, offline, against the scripted model.
//!
//! Each test's name starts with the agent's, so that `real_claude` and `real_codex` select them.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tieline_tests::mesh::Plan;
use tieline_tests::model::{
    Model, SECRETS, with_claude, with_codex, with_own_chatgpt, with_own_claude, with_own_codex,
};
use tieline_tests::process::assert_allowed_env;
use tieline_tests::view::body;
use tieline_tests::{Mesh, clis, until};

use super::five_faults::RECOVERY;

/// Which agent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Agent {
    Claude,
    Codex,
}

impl Agent {
    const fn harness(self) -> &'static str {
        match self {
            Self::Claude => "claude-code",
            Self::Codex => "codex",
        }
    }
}

struct Stage {
    mesh: Mesh,
    model: Model,
    // Dropped last: the model logs into it.
    _dir: tempfile::TempDir,
}

impl Stage {
    fn new(agent: Agent) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let model = Model::start(dir.path());
        let plan = clis::on_path(Plan::default());
        let plan = match agent {
            Agent::Claude => with_claude(plan, &model),
            Agent::Codex => with_codex(plan, &model),
        };
        let mesh = plan.start();
        mesh.add("bot", agent.harness());
        Self { mesh, model, _dir: dir }
    }

    /// Starts a turn that streams for a while, waits for its first words, and gives its run message.
    fn streaming(&self) -> u64 {
        let mut tail = self.mesh.lobby().follow(0);
        let saved = self.mesh.lobby().post("@bot fake:slow(60,0.3)");
        let run = self.mesh.lobby().wait_started(saved.message);
        tail.wait_json("its first words", |frame| {
            frame["type"] == "event"
                && frame["message"] == run
                && matches!(frame["event"]["type"].as_str(), Some("text" | "block"))
        });
        run
    }

    fn stream_is_closed(&self) {
        until("the model to see the stream closed", || self.model.client_gone().then_some(()));
    }
}

/// Kills every process that works in the folder, and gives how many.
fn kill_workers(work: &Path, signal: Signal) -> usize {
    workers(work).into_iter().filter(|pid| kill_process(*pid, signal).is_ok()).count()
}

fn workers(work: &Path) -> Vec<Pid> {
    let processes = fs::read_dir("/proc").expect("there is a /proc");
    processes
        .filter_map(|process| process.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == work))
        .filter_map(Pid::from_raw)
        .collect()
}

fn answers_a_text_turn(agent: Agent) {
    let stage = Stage::new(agent);
    let saved = stage.mesh.lobby().ask("@bot please fake:text(hello from the other box)");
    assert_eq!(saved.answer().trim(), "hello from the other box");
    let second = stage.mesh.lobby().ask("@bot fake:history");
    assert!(second.answer().contains("text,history"), "the session goes on: {}", second.answer());
    let finished = stage.mesh.lobby().wait_finished(saved.turn()["message"].as_u64().expect("a run"));
    assert!(finished["usage"]["output"].as_u64() > Some(0), "{finished}");
}

fn runs_a_tool_with_an_approval_of_the_home(agent: Agent) {
    let stage = Stage::new(agent);
    let file = stage.mesh.work().join("made-by-the-agent");
    let approve = |label: &str| {
        let saved = stage.mesh.lobby().post("@bot fake:tool(touch made-by-the-agent)");
        let run = stage.mesh.lobby().wait_started(saved.message);
        let card = stage.mesh.lobby().wait_card(run);
        assert_eq!(card["ask"]["kind"], "approval", "{card}");
        let action = card["ask"]["action"].to_string();
        assert!(action.contains("touch made-by-the-agent"), "the exact action is shown: {action}");
        assert!(!file.exists(), "nothing runs before the answer");
        stage.mesh.lobby().answer(card["message"].as_u64().expect("a number"), label);
        stage.mesh.lobby().wait_finished(run)
    };
    let denied = approve("deny");
    assert_eq!(denied["status"], "completed", "{denied}");
    assert!(!file.exists(), "denied");
    let allowed = approve("allow");
    assert_eq!(allowed["status"], "completed", "{allowed}");
    assert!(allowed["text"].as_str().is_some_and(|text| text.contains("Tool finished.")), "{allowed}");
    assert!(file.exists(), "allowed");
}

fn is_interrupted_mid_stream(agent: Agent) {
    let stage = Stage::new(agent);
    let run = stage.streaming();
    stage.mesh.lobby().member("interrupt", "bot", &[]);
    let finished = stage.mesh.lobby().wait_finished(run);
    assert_eq!(finished["status"], "interrupted", "{finished}");
    stage.stream_is_closed();
    assert_eq!(stage.mesh.lobby().ask("@bot fake:text(still here)").answer().trim(), "still here");
}

fn is_resumed_after_its_process_was_killed(agent: Agent) {
    let stage = Stage::new(agent);
    let _ = stage.mesh.lobby().ask("@bot fake:think").answer();
    let run = stage.streaming();
    assert!(kill_workers(&stage.mesh.work(), Signal::KILL) > 0, "the agent works in its folder");
    let finished = stage.mesh.lobby().wait_finished(run);
    assert_eq!(finished["status"], "failed", "{finished}");
    assert!(finished["error"].is_string(), "it says why: {finished}");
    let resumed = stage.mesh.lobby().ask("@bot fake:history");
    assert!(resumed.answer().contains("think"), "the old session is resumed: {}", resumed.answer());
}

fn lives_on_after_an_error_of_its_model(agent: Agent) {
    let stage = Stage::new(agent);
    let failed = stage.mesh.lobby().post("@bot fake:400");
    let run = stage.mesh.lobby().wait_started(failed.message);
    let finished = stage.mesh.lobby().wait_finished(run);
    assert_eq!(finished["status"], "failed", "{finished}");
    assert!(finished["error"].as_str().is_some_and(|error| !error.is_empty()), "{finished}");
    assert_eq!(stage.mesh.lobby().ask("@bot fake:text(alive)").answer().trim(), "alive");
}

/// Case D14: a session that is resumed brings nothing of its past into the new turn.
fn resumes_without_showing_its_past(agent: Agent) {
    let stage = Stage::new(agent);
    // Several hundred events, as each word of the model is one.
    let words = "of-the-past ".repeat(300);
    for _ in 0..2 {
        let _ = stage.mesh.lobby().ask(&format!("@bot fake:text({words})")).answer();
    }
    assert!(kill_workers(&stage.mesh.work(), Signal::KILL) > 0, "the agent works in its folder");
    let head = stage.mesh.lobby().entries().len() as u64;
    let mut tail = stage.mesh.lobby().follow(head);
    let saved = stage.mesh.lobby().ask("@bot fake:history");
    assert_eq!(saved.answer().trim(), "prompts seen: text,text,history", "the session is the old one");
    let run = saved.turn()["message"].clone();
    let mut events = Vec::new();
    tail.wait_json("the end of the turn", |frame| {
        if frame["type"] == "event" {
            events.push(frame.clone());
        }
        frame["kind"] == "turn-finished" && body(frame)["message"] == run
    });
    assert!(events.iter().all(|event| event["message"] == run), "{events:?}");
    assert!(!events.iter().any(|event| event.to_string().contains("of-the-past")), "{events:?}");
    assert!(events.len() < 50, "{} events for one line", events.len());
}

/// The keeper that the node starts for each program; what it has is what the program gets.
fn is_keeper(pid: &Pid) -> bool {
    let name = fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero())).unwrap_or_default();
    name.trim() == "tieline-keeper"
}

/// The person is logged in with the program itself, and nothing is configured at the node: the model sees the person's
/// credential, the node's own secrets reach nobody.
fn uses_the_persons_own_login(agent: Agent, log_in: impl FnOnce(Plan, &Model) -> (Plan, String)) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let model = Model::start(dir.path());
    let (mut plan, credential) = log_in(clis::on_path(Plan::default()), &model);
    assert!(plan.env_pass.is_empty(), "nothing is passed on");
    for (name, value) in SECRETS {
        plan.resident = plan.resident.env(name, value);
    }
    let stage = Stage { mesh: plan.start(), model, _dir: dir };
    stage.mesh.add("bot", agent.harness());
    assert_eq!(stage.mesh.lobby().ask("@bot fake:text(it is me)").answer().trim(), "it is me");
    let asked = stage.model.requests();
    let turn: Vec<_> = asked.iter().filter(|request| request["scenario"] == "text").collect();
    assert!(!turn.is_empty() && turn.iter().all(|request| request["key"] == credential.as_str()), "{asked:?}");

    let run = stage.streaming();
    let keepers: Vec<_> = workers(&stage.mesh.work()).into_iter().filter(is_keeper).collect();
    assert!(!keepers.is_empty(), "a program works in its folder");
    for keeper in keepers {
        assert_allowed_env(&fs::read_to_string(format!("/proc/{}/environ", keeper.as_raw_nonzero())).expect("it runs"));
    }
    stage.mesh.lobby().member("interrupt", "bot", &[]);
    let _ = stage.mesh.lobby().wait_finished(run);
}

// ---- the five faults ----

fn finishes_once_when_the_home_restarts(agent: Agent) {
    let mut stage = Stage::new(agent);
    let run = {
        let saved = stage.mesh.lobby().post("@bot fake:slow(24,0.25)");
        stage.mesh.lobby().wait_started(saved.message)
    };
    stage.mesh.home.crash();
    let began = Instant::now();
    stage.mesh.home.wait_link();
    assert!(began.elapsed() < RECOVERY, "the link took {:?}", began.elapsed());
    let finished = stage.mesh.lobby().wait_finished(run);
    assert_eq!(finished["status"], "completed", "{finished}");
    assert!(
        finished["text"].as_str().is_some_and(|text| text.contains("tick1 ") && text.contains("tick24")),
        "{finished}"
    );
    let started = stage.mesh.lobby().entries_of("turn-started");
    assert_eq!(started.len(), 1, "{started:?}");
    let scenario = |request: &&Value| request["scenario"] == "slow";
    let asked = stage.model.requests();
    assert_eq!(asked.iter().filter(scenario).count(), 1, "the model was asked once: {asked:?}");
}

fn changes_its_model_between_turns(agent: Agent) {
    let stage = Stage::new(agent);
    let _ = stage.mesh.lobby().ask("@bot fake:text(one)").answer();
    stage.mesh.lobby().member("configure", "bot", &["--model", "other-model"]);
    let _ = stage.mesh.lobby().ask("@bot fake:text(two)").answer();
    let asked = stage.model.requests();
    assert!(asked.iter().any(|request| request["model"] == "other-model"), "{asked:?}");
    assert_ne!(asked.iter().find(|request| request["scenario"] == "text").expect("a turn")["model"], "other-model");
}

fn stays_local_without_a_resident(agent: Agent) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let model = Model::start(dir.path());
    let mut plan = clis::on_path(Plan::default());
    plan = match agent {
        Agent::Claude => with_claude(plan, &model),
        Agent::Codex => with_codex(plan, &model),
    };
    // The agent lives at the home here: the same environment and configuration, on the other node.
    let passed = plan.env_pass.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
    plan.home.env.clone_from(&plan.resident.env);
    fs::create_dir_all(plan.home.data()).expect("a folder can be made");
    fs::write(plan.home.data().join("config.toml"), format!("env_pass = [{passed}]\n")).expect("writable");
    if agent == Agent::Codex {
        let (from, to) = (plan.resident.home().join(".codex"), plan.home.home().join(".codex"));
        fs::create_dir_all(&to).expect("a folder can be made");
        fs::copy(from.join("config.toml"), to.join("config.toml")).expect("a file can be copied");
    }
    let mut mesh = plan.start();
    let work = mesh.work();
    let work = work.to_str().expect("plain");
    let add = ["member", "add", "lobby", "near", "--harness", agent.harness(), "--cwd", work, "--json"];
    let _ = mesh.home.cli(add).ok();
    assert_eq!(mesh.lobby().ask("@near fake:text(here)").answer().trim(), "here");
    mesh.resident.stop();
    mesh.home.restart();
    assert_eq!(mesh.lobby().ask("@near fake:text(still here)").answer().trim(), "still here");
    let started = mesh.lobby().entries_of("turn-started").pop().expect("a turn started");
    assert_eq!(body(&started)["node"], mesh.home.id().as_str());
}

macro_rules! for_both {
    ($($claude:ident, $codex:ident: $test:ident;)*) => {
        $(
            #[test]
            fn $claude() {
                $test(Agent::Claude);
            }

            #[test]
            fn $codex() {
                $test(Agent::Codex);
            }
        )*
    };
}

for_both! {
    real_claude_answers_a_text_turn, real_codex_answers_a_text_turn: answers_a_text_turn;
    real_claude_tool_needs_the_homes_approval, real_codex_tool_needs_the_homes_approval:
        runs_a_tool_with_an_approval_of_the_home;
    real_claude_is_interrupted_mid_stream, real_codex_is_interrupted_mid_stream: is_interrupted_mid_stream;
    real_claude_is_resumed_after_kill_9, real_codex_is_resumed_after_kill_9: is_resumed_after_its_process_was_killed;
    real_claude_case_d14_resumes_without_its_past, real_codex_case_d14_resumes_without_its_past:
        resumes_without_showing_its_past;
    real_claude_lives_on_after_a_model_error, real_codex_lives_on_after_a_model_error:
        lives_on_after_an_error_of_its_model;
    real_claude_finishes_once_when_the_home_restarts, real_codex_finishes_once_when_the_home_restarts:
        finishes_once_when_the_home_restarts;
    real_claude_changes_its_model_between_turns, real_codex_changes_its_model_between_turns:
        changes_its_model_between_turns;
    real_claude_stays_local_without_a_resident, real_codex_stays_local_without_a_resident:
        stays_local_without_a_resident;
}

#[test]
fn real_claude_uses_the_persons_own_login() {
    uses_the_persons_own_login(Agent::Claude, with_own_claude);
}

#[test]
fn real_codex_uses_the_persons_own_login() {
    uses_the_persons_own_login(Agent::Codex, with_own_chatgpt);
}

#[test]
fn real_codex_uses_the_persons_own_api_key() {
    uses_the_persons_own_login(Agent::Codex, with_own_codex);
}

#[test]
fn real_claude_question_is_answered_at_the_home() {
    let stage = Stage::new(Agent::Claude);
    let saved = stage.mesh.lobby().post("@bot fake:ask");
    let run = stage.mesh.lobby().wait_started(saved.message);
    let card = stage.mesh.lobby().wait_card(run);
    assert_eq!(card["ask"]["kind"], "question", "{card}");
    stage.mesh.lobby().answer(card["message"].as_u64().expect("a number"), "Blue");
    let finished = stage.mesh.lobby().wait_finished(run);
    assert_eq!(finished["status"], "completed", "{finished}");
    assert!(finished["text"].as_str().is_some_and(|text| text.contains("Blue")), "{finished}");
}

#[test]
fn real_codex_is_stopped_with_its_whole_process_group() {
    let stage = Stage::new(Agent::Codex);
    let saved = stage.mesh.lobby().post("@bot fake:slow(60,0.3)");
    let run = stage.mesh.lobby().wait_started(saved.message);
    until("the agent to work", || (!workers(&stage.mesh.work()).is_empty()).then_some(()));
    stage.mesh.lobby().member("kill", "bot", &[]);
    assert_eq!(stage.mesh.lobby().wait_finished(run)["status"], "interrupted");
    let began = Instant::now();
    until("its processes to be gone", || workers(&stage.mesh.work()).is_empty().then_some(()));
    assert!(began.elapsed() < Duration::from_secs(20));
}
