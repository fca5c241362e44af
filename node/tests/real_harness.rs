//! Claude Code and Codex themselves, driven by the host against a scripted model on loopback.
//!
//! `tests/harness-clis/install.sh` installs both, once.

mod harness_support;

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use harness_support::{Done, Rig, file_with, processes};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tieline::harness::TurnSpec;
use tieline_proto::entry::Policy;
use tieline_proto::event::{ALLOW, AskKind, DENY, Event, Status};

fn tree() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The folder with the commands `claude` and `codex`.
fn commands() -> PathBuf {
    let cache =
        std::env::var_os("TIELINE_TEST_CACHE").map_or_else(|| tree().join("target/harness-clis"), PathBuf::from);
    let bin = cache.join("node_modules/.bin");
    assert!(bin.join("claude").exists() && bin.join("codex").exists(), "first run: tests/harness-clis/install.sh");
    std::fs::canonicalize(bin).expect("a path")
}

/// The scripted model. It ends with the test.
struct Model {
    process: Child,
    port: u16,
    log: tempfile::NamedTempFile,
}

impl Model {
    fn start() -> Self {
        let log = tempfile::NamedTempFile::new().expect("a file");
        let mut process = std::process::Command::new("python3")
            .arg(tree().join("tests/fake-model/fake_model.py"))
            .args(["--port", "0", "--log"])
            .arg(log.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 runs the scripted model");
        let mut line = String::new();
        BufReader::new(process.stdout.take().expect("its output")).read_line(&mut line).expect("its port");
        let port: Value = serde_json::from_str(&line).expect("JSON");
        let port = port["port"].as_u64().and_then(|port| u16::try_from(port).ok()).expect("a port");
        Self { process, port, log }
    }

    /// What the model was asked for, as it logged it.
    fn log(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.log.path()).expect("a log");
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Waits until the model has seen its client leave in mid-answer.
    async fn left(&self) {
        file_with(self.log.path(), |text| text.contains("client_gone").then_some(())).await;
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        let _gone = self.process.kill();
        let _status = self.process.wait();
    }
}

/// Whether a history beneath a folder holds a text.
fn holds(folder: &Path, text: &str) -> bool {
    std::fs::read_dir(folder).into_iter().flatten().flatten().any(|item| {
        let path = item.path();
        // `projects` is Claude Code's, `sessions` is Codex's; what was typed is in other files too.
        let of_sessions = path.iter().any(|part| part == "projects" || part == "sessions");
        let is_history = of_sessions && path.extension().is_some_and(|extension| extension == "jsonl");
        match item.file_type() {
            Ok(kind) if kind.is_dir() => holds(&path, text),
            _ => is_history && std::fs::read_to_string(&path).is_ok_and(|history| history.contains(text)),
        }
    })
}

/// A box with one of the two programs, and the model it talks to.
struct Real {
    harness: &'static str,
    rig: Rig,
    model: Model,
    mark: String,
}

impl Real {
    /// Waits until the program has written a prompt into its own history: it does so in its own time.
    async fn remembers(&self, prompt: &str) {
        harness_support::until("the program to keep the prompt", || holds(&self.rig.root, prompt)).await;
    }

    fn claude() -> Self {
        Self::claude_with(&[("ANTHROPIC_API_KEY", "key".to_owned())])
    }

    fn claude_with(login: &[(&str, String)]) -> Self {
        let model = Model::start();
        let mut env = login.to_vec();
        env.push(("ANTHROPIC_BASE_URL", format!("http://127.0.0.1:{}", model.port)));
        env.push(("CLAUDE_CODE_MAX_RETRIES", "1".to_owned()));
        let quiet = ["DISABLE_TELEMETRY", "DISABLE_AUTOUPDATER", "DISABLE_ERROR_REPORTING"];
        env.extend(quiet.map(|name| (name, "1".to_owned())));
        env.push(("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1".to_owned()));
        Self::new("claude-code", model, env)
    }

    fn codex() -> Self {
        Self::codex_with("env_key = \"FAKE_KEY\"", None)
    }

    fn codex_with(login: &str, auth: Option<&str>) -> Self {
        let model = Model::start();
        let real = Self::new("codex", model, vec![("FAKE_KEY", "key".to_owned())]);
        let folder = real.rig.root.join(".codex");
        std::fs::create_dir(&folder).expect("a folder");
        let config = format!(
            "model = \"gpt-5-codex\"\nmodel_provider = \"fake\"\ncheck_for_update_on_startup = false\n\
             [analytics]\nenabled = false\n[model_providers.fake]\nname = \"fake\"\n\
             base_url = \"http://127.0.0.1:{}/v1\"\nwire_api = \"responses\"\n{login}\n\
             request_max_retries = 1\nstream_max_retries = 1\nsupports_websockets = false\n",
            real.model.port
        );
        std::fs::write(folder.join("config.toml"), config).expect("written");
        if let Some(auth) = auth {
            std::fs::write(folder.join("auth.json"), auth).expect("written");
        }
        real
    }

    fn new(harness: &'static str, model: Model, mut env: Vec<(&str, String)>) -> Self {
        let path = std::env::var("PATH").expect("a path");
        env.push(("PATH", format!("{}:{path}", commands().display())));
        // A name that no other process of the box has.
        let mark = format!("TIELINE_TEST_MARK={harness}-{}", model.port);
        env.push(("TIELINE_TEST_MARK", format!("{harness}-{}", model.port)));
        Self { harness, rig: Rig::new(&[], &env), model, mark }
    }

    /// The member's next turn, after `before`.
    fn next(&self, before: &Done, prompt: &str) -> TurnSpec {
        TurnSpec { session: before.session.clone(), ..self.rig.spec(prompt) }
    }

    async fn run(&self, spec: TurnSpec) -> Done {
        self.rig.run(self.harness, spec).await
    }

    /// Kills the program itself, as the kernel does when memory runs out; not the keeper.
    fn kill_program(&self) {
        let programs: Vec<i32> = processes(&self.mark).into_iter().filter(|pid| !is_keeper(*pid)).collect();
        assert!(!programs.is_empty(), "a program runs");
        for pid in programs {
            // Its children may be gone with it.
            let _gone = kill_process(Pid::from_raw(pid).expect("a pid"), Signal::KILL);
        }
    }

    fn keepers(&self) -> Vec<i32> {
        processes(&self.mark).into_iter().filter(|pid| is_keeper(*pid)).collect()
    }

    fn file(&self, name: &str) -> bool {
        self.rig.cwd.join(name).exists()
    }
}

fn is_keeper(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "tieline-keeper")
}

#[track_caller]
fn completed(done: &Done) {
    assert_eq!(done.outcome.status, Status::Completed, "{done:?}");
}

fn started_with(done: &Done) -> Option<&str> {
    done.events.iter().find_map(|event| match event {
        Event::Started { model } => model.as_deref(),
        _ => None,
    })
}

/// A text turn streams, names its session, counts its tokens; the next one runs in the same process and session.
async fn text_turns(real: &Real) {
    let first = real.run(real.rig.spec("fake:text(one two three)")).await;
    completed(&first);
    assert_eq!(first.outcome.text, "one two three");
    assert_eq!(first.text(), "one two three");
    assert!(first.events.iter().filter(|event| matches!(event, Event::Text { .. })).count() >= 3, "{first:?}");
    assert!(first.outcome.usage.is_some_and(|usage| usage.input > 0 && usage.output == 3), "{first:?}");
    assert!(first.session.is_some());
    let keepers = real.keepers();
    assert_eq!(keepers.len(), 1);

    let second = real.run(real.next(&first, "fake:history")).await;
    completed(&second);
    assert_eq!(second.outcome.text, "prompts seen: text,history");
    assert_eq!(second.session, first.session);
    assert_eq!(real.keepers(), keepers, "the process is used again");
    real.rig.host.shutdown().await;
    harness_support::gone(&real.mark).await;
}

#[tokio::test]
async fn real_claude_streams_text_and_keeps_its_process() {
    text_turns(&Real::claude()).await;
}

#[tokio::test]
async fn real_codex_streams_text_and_keeps_its_process() {
    text_turns(&Real::codex()).await;
}

/// An action is asked for with its exact words, and done or not as the answer says; the turn completes either way.
async fn approvals(real: &Real) {
    let mut turn = real.rig.start(real.harness, real.rig.spec("fake:tool(touch made)"));
    let ask = turn.asked().await;
    assert_eq!(ask.kind, AskKind::Approval);
    assert!(ask.action.as_ref().is_some_and(|action| action.contains("touch made")), "{ask:?}");
    assert!(!real.file("made"));
    turn.answer(&ask, ALLOW).await;
    let allowed = turn.done().await;
    completed(&allowed);
    assert!(real.file("made"));
    assert!(allowed.events.iter().any(|event| matches!(event, Event::ToolResult { ok: true, .. })), "{allowed:?}");

    let mut turn = real.rig.start(real.harness, real.next(&allowed, "fake:tool(touch refused)"));
    let ask = turn.asked().await;
    turn.answer(&ask, DENY).await;
    let denied = turn.done().await;
    completed(&denied);
    assert!(!real.file("refused"));
    assert!(denied.events.iter().any(|event| matches!(event, Event::ToolResult { ok: false, .. })), "{denied:?}");
    assert!(denied.outcome.text.contains("Tool finished."), "{denied:?}");
}

#[tokio::test]
async fn real_claude_asks_before_it_acts() {
    approvals(&Real::claude()).await;
}

#[tokio::test]
async fn real_codex_asks_before_it_acts() {
    approvals(&Real::codex()).await;
}

/// A changed policy or model reaches the very next turn of the same session, also when it goes back to the default.
async fn late_changes(real: &Real, model: &str, usual: &str) {
    let first = real.run(real.rig.spec("fake:text(a)")).await;
    assert_eq!(started_with(&first), Some(usual));

    let mut spec = real.next(&first, "fake:tool(touch unasked)");
    (spec.policy, spec.model) = (Policy::Full, Some(model.to_owned()));
    let full = real.run(spec).await;
    completed(&full);
    assert!(real.file("unasked") && started_with(&full) == Some(model), "{full:?}");
    assert_eq!(real.model.log().last().map(|line| line["t"].clone()), Some("done".into()));
    let asked = real.model.log().iter().rev().find_map(|line| line["model"].as_str().map(ToOwned::to_owned));
    assert_eq!(asked.as_deref(), Some(model));

    let mut spec = real.next(&full, "fake:tool(touch read-only)");
    spec.policy = Policy::ReadOnly;
    let reads = real.run(spec).await;
    completed(&reads);
    assert!(!real.file("read-only") && started_with(&reads) == Some(usual), "{reads:?}");

    let seen = real.run(real.next(&reads, "fake:history")).await;
    assert_eq!(seen.outcome.text, "prompts seen: text,tool,tool,history");
    assert_eq!(real.keepers().len(), 1, "one process a session");
}

#[tokio::test]
async fn real_claude_late_changes_reach_the_next_turn() {
    late_changes(&Real::claude(), "claude-haiku-4-5", "claude-opus-5-5").await;
}

#[tokio::test]
async fn real_codex_late_changes_reach_the_next_turn() {
    late_changes(&Real::codex(), "gpt-other", "gpt-5-codex").await;
}

/// An interrupt in mid-answer stops the model, keeps what was said, and the session goes on.
async fn interrupts(real: &Real) {
    let mut turn = real.rig.start(real.harness, real.rig.spec("fake:slow(600,0.1)"));
    turn.until_text().await;
    turn.interrupt().await;
    turn.interrupt().await;
    let stopped = turn.done().await;
    assert_eq!(stopped.outcome.status, Status::Interrupted, "{stopped:?}");
    assert!(stopped.outcome.text.starts_with("tick1"), "{stopped:?}");
    real.model.left().await;
    let keepers = real.keepers();

    // At once, before the program can know of the turn.
    let turn = real.rig.start(real.harness, real.next(&stopped, "fake:slow(600,0.1)"));
    turn.interrupt().await;
    let at_once = turn.done().await;
    assert_eq!(at_once.outcome.status, Status::Interrupted, "{at_once:?}");

    let next = real.run(real.next(&stopped, "fake:text(fine)")).await;
    completed(&next);
    assert_eq!((next.outcome.text.as_str(), &next.session), ("fine", &stopped.session));
    assert_eq!(real.keepers(), keepers, "the process is used again");
}

#[tokio::test]
async fn real_claude_case_s6_interrupts_stop_a_turn_once_and_the_session_goes_on() {
    interrupts(&Real::claude()).await;
}

#[tokio::test]
async fn real_codex_case_s6_interrupts_stop_a_turn_once_and_the_session_goes_on() {
    interrupts(&Real::codex()).await;
}

/// Interrupted in its very first moments, a member takes the next turn.
async fn interrupted_first(real: &Real) {
    let turn = real.rig.start(real.harness, real.rig.spec("fake:slow(600,0.1)"));
    turn.interrupt().await;
    let stopped = turn.done().await;
    assert_eq!(stopped.outcome.status, Status::Interrupted, "{stopped:?}");
    let next = real.run(real.next(&stopped, "fake:text(fine)")).await;
    completed(&next);
    assert_eq!(next.outcome.text, "fine");
}

#[tokio::test]
async fn real_claude_case_s12_interrupted_at_once_the_member_is_usable() {
    interrupted_first(&Real::claude()).await;
}

#[tokio::test]
async fn real_codex_case_s12_interrupted_at_once_the_member_is_usable() {
    interrupted_first(&Real::codex()).await;
}

/// Killed in mid-turn: the turn failed, its open call is closed, the session is resumed, and another attempt does not
/// give the prompt a second time.
async fn killed(real: &Real, in_tool: &str) {
    let mut spec = real.rig.spec(in_tool);
    spec.policy = Policy::Full;
    let mut turn = real.rig.start(real.harness, spec);
    turn.until(|event| matches!(event, Event::ToolCall { .. })).await;
    real.remembers("fake:tool").await;
    // It never ends by itself, and neither program takes it for something that it would rather refuse.
    real.kill_program();
    let dead = turn.done().await;
    assert_eq!(dead.outcome.status, Status::Failed, "{dead:?}");
    assert!(dead.outcome.error.as_ref().is_some_and(|error| error.contains("before the turn did")), "{dead:?}");
    assert!(matches!(dead.events.last(), Some(Event::ToolResult { ok: false, .. })), "{dead:?}");
    assert!(dead.session.is_some());
    harness_support::gone(&real.mark).await;

    let seen = real.run(real.next(&dead, "fake:history")).await;
    completed(&seen);
    assert_eq!(seen.outcome.text, "prompts seen: tool,history");

    let mut turn = real.rig.start(real.harness, real.next(&seen, "fake:slow(20,0.1)"));
    turn.until_text().await;
    real.remembers("fake:slow").await;
    real.kill_program();
    let dead = turn.done().await;
    assert_eq!(dead.outcome.status, Status::Failed, "{dead:?}");
    let mut again = real.next(&seen, "fake:slow(20,0.1)");
    again.again = true;
    let again = real.run(again).await;
    completed(&again);
    let seen = real.run(real.next(&again, "fake:history")).await;
    assert_eq!(seen.outcome.text, "prompts seen: tool,history,slow,history");

    // An attempt whose prompt never reached the program is given it.
    let mut lost = real.next(&again, "fake:text(never given before)");
    lost.again = true;
    assert_eq!(real.run(lost).await.outcome.text, "never given before");
}

#[tokio::test]
async fn real_claude_case_s9_killed_in_mid_turn_it_resumes_without_repeating() {
    killed(&Real::claude(), "fake:tool(tail -f /dev/null)").await;
}

#[tokio::test]
async fn real_codex_case_s9_killed_in_mid_turn_it_resumes_without_repeating() {
    killed(&Real::codex(), "fake:tool(tail -f /dev/null)").await;
}

/// Errors of the model fail the turn with their reason, and the member takes the next one.
async fn model_errors(real: &Real) {
    let mut before: Option<Done> = None;
    for (directive, words) in [("fake:500", ""), ("fake:401", "scripted bad key"), ("fake:429", "429")] {
        let spec = TurnSpec { session: before.and_then(|done| done.session), ..real.rig.spec(directive) };
        let done = real.run(spec).await;
        assert_eq!(done.outcome.status, Status::Failed, "{done:?}");
        assert!(
            done.outcome.error.as_ref().is_some_and(|error| !error.is_empty() && error.contains(words)),
            "{done:?}"
        );
        before = Some(done);
    }
    let before = before.expect("a turn");
    let fine = real.run(real.next(&before, "fake:text(fine)")).await;
    completed(&fine);
    assert_eq!(fine.outcome.text, "fine");
}

#[tokio::test]
async fn real_claude_model_errors_fail_the_turn_and_not_the_member() {
    model_errors(&Real::claude()).await;
}

#[tokio::test]
async fn real_codex_model_errors_fail_the_turn_and_not_the_member() {
    model_errors(&Real::codex()).await;
}

/// A session that the program no longer has: a new one, and the channel is told.
async fn lost_session(real: &Real) {
    for lost in ["11111111-2222-4333-8444-555555555555", "--help"] {
        let spec = TurnSpec { session: Some(lost.to_owned()), again: true, ..real.rig.spec("fake:text(fine)") };
        let done = real.run(spec).await;
        completed(&done);
        assert_eq!(done.outcome.text, "fine");
        let told = done.events.iter().any(|event| matches!(event, Event::Notice { text } if text.contains(lost)));
        assert!(told && done.session.as_deref() != Some(lost), "{done:?}");
    }
}

#[tokio::test]
async fn real_claude_case_s7_a_session_that_is_gone_is_replaced_and_said() {
    lost_session(&Real::claude()).await;
}

#[tokio::test]
async fn real_codex_case_s7_a_session_that_is_gone_is_replaced_and_said() {
    lost_session(&Real::codex()).await;
}

#[tokio::test]
async fn real_claude_asks_questions() {
    let real = Real::claude();
    let mut turn = real.rig.start("claude-code", real.rig.spec("fake:ask"));
    let ask = turn.asked().await;
    assert_eq!((ask.kind, ask.prompt.as_str()), (AskKind::Question, "Which colour?"));
    turn.answer(&ask, "Blue").await;
    let done = turn.done().await;
    completed(&done);
    assert!(done.outcome.text.contains("\"Which colour?\"=\"Blue\""), "{done:?}");
}

#[tokio::test]
async fn real_claude_waits_for_background_agents() {
    let real = Real::claude();
    let done = real.run(real.rig.spec("fake:agent")).await;
    completed(&done);
    assert_eq!(done.outcome.text, "Delegation finished.");
    let children: Vec<&Event> = done
        .events
        .iter()
        .filter(|event| matches!(event, Event::ChildStarted { .. } | Event::ChildEnded { ok: true, .. }))
        .collect();
    assert_eq!(children.len(), 2, "{done:?}");
}

#[tokio::test]
async fn real_claude_edits_unasked_and_asks_for_the_rest_when_it_may_edit() {
    let real = Real::claude();
    let path = real.rig.cwd.join("written");
    let spec = TurnSpec { policy: Policy::Edit, ..real.rig.spec(&format!("fake:write({})", path.display())) };
    let done = real.run(spec).await;
    completed(&done);
    assert!(path.exists(), "{done:?}");
    let other = real.rig.root.join("elsewhere");
    let spec = real.next(&done, &format!("fake:write({})", other.display()));
    let mut turn = real.rig.start("claude-code", TurnSpec { policy: Policy::Edit, ..spec });
    let ask = turn.asked().await;
    turn.answer(&ask, DENY).await;
    completed(&turn.done().await);
    assert!(!other.exists());
}

#[tokio::test]
async fn real_claude_uses_the_persons_own_login() {
    let real = Real::claude_with(&[]);
    let failed = real.run(real.rig.spec("fake:text(hello)")).await;
    assert_eq!(failed.outcome.status, Status::Failed);
    assert!(failed.outcome.error.as_ref().is_some_and(|error| error.contains("Not logged in")), "{failed:?}");

    let folder = real.rig.root.join(".claude");
    std::fs::create_dir_all(&folder).expect("a folder");
    let login = serde_json::json!({ "claudeAiOauth": {
        "accessToken": "sk-ant-oat01-test", "refreshToken": "sk-ant-ort01-test", "expiresAt": 4_102_444_800_000_u64,
        "scopes": ["user:inference", "user:profile"], "subscriptionType": "max" } });
    std::fs::write(folder.join(".credentials.json"), login.to_string()).expect("written");
    real.rig.host.kill(real.rig.key()).await;
    let done = real.run(real.rig.spec("fake:text(hello)")).await;
    completed(&done);
    let used: Vec<Value> = real.model.log().into_iter().filter(|line| line["scenario"] == "text").collect();
    assert!(!used.is_empty() && used.iter().all(|line| line["auth"] == "authorization"), "{used:?}");
}

#[tokio::test]
async fn real_codex_uses_the_persons_own_login() {
    let real = Real::codex_with("requires_openai_auth = true", Some(r#"{"OPENAI_API_KEY":"sk-test"}"#));
    let done = real.run(real.rig.spec("fake:text(hello)")).await;
    completed(&done);
    let used: Vec<Value> = real.model.log().into_iter().filter(|line| line["scenario"] == "text").collect();
    assert!(!used.is_empty() && used.iter().all(|line| line["auth"] == "authorization"), "{used:?}");
}

#[tokio::test]
async fn real_programs_are_listed_with_their_versions() {
    let real = Real::claude();
    let reports = real.rig.host.registry().probe(real.rig.host.env()).await;
    let versions: BTreeMap<_, _> = reports.into_iter().map(|report| (report.name, report.version)).collect();
    assert_eq!(versions["claude-code"].as_deref(), Some("2.1.332 (Claude Code)"));
    assert_eq!(versions["codex"].as_deref(), Some("codex-cli 0.171.0"));
}
