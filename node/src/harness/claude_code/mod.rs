//! Claude Code, driven by its stream of JSON lines: one process a session, one turn after the other.
//!
//! What a member may do is decided here and not by Claude's "skip permissions", which it refuses to root: Claude asks
//! for everything that is not plainly harmless, and the policy answers or passes the question on. The person's own
//! settings stay in force beneath it: what they allowed on this box is not asked for.
//!
//! A change of model, policy, folder or environment starts a new process that resumes the session.

mod frames;
mod history;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::io;
use std::time::Duration;

use serde_json::{Value, json};
use tieline_proto::entry::Policy;
use tieline_proto::event::Outcome;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep_until};

use self::frames::Reader;
use super::host::Setting;
use super::process::{Process, describe};
use super::registry::Resolved;
use super::session::{Ran, Started, Stop};
use super::step::{CONTINUE, Step};
use super::turn::{TurnIo, failed, interrupted};
use super::{Command, TurnSpec};

/// How Claude is always run.
const ARGS: [&str; 10] = [
    "-p",
    "--input-format",
    "stream-json",
    "--output-format",
    "stream-json",
    "--verbose",
    "--include-partial-messages",
    "--replay-user-messages",
    "--permission-prompt-tool",
    "stdio",
];

/// Tools that change files. A member that may only read doesn't get them, whatever the person's settings allow.
const CHANGING_TOOLS: &str = "Write,Edit,MultiEdit,NotebookEdit";

/// Claude's name for "the model that the settings say".
const DEFAULT_MODEL: &str = "default";

/// How soon after a background sub-agent's report Claude goes on by itself: at once, but the box may be busy.
const FOLLOW_UP: Duration = Duration::from_secs(5);

/// A running Claude.
#[derive(Debug)]
pub(super) struct Claude {
    process: Process,
    started: Started,
    /// What the session has cost by now.
    cost: Option<f64>,
    turns: u64,
    usable: bool,
}

impl Claude {
    /// Starts Claude for a member.
    ///
    /// # Errors
    /// When the program can't be started.
    pub(super) fn start(
        found: &Resolved,
        spec: &TurnSpec,
        setting: &Setting,
        permit: OwnedSemaphorePermit,
    ) -> io::Result<Self> {
        let started = Started::new(found, spec, setting);
        let process = started.launch(&arguments(spec), setting, permit)?;
        Ok(Self { process, started, cost: None, turns: 0, usable: true })
    }

    /// Whether it can run a turn of these settings.
    pub(super) fn fits(&mut self, found: &Resolved, spec: &TurnSpec, setting: &Setting) -> bool {
        self.is_alive() && self.started == Started::new(found, spec, setting)
    }

    /// Whether it can take another turn.
    pub(super) fn is_alive(&mut self) -> bool {
        self.usable && self.process.is_alive()
    }

    /// Ends it.
    pub(super) async fn close(mut self) {
        self.process.close_stdin();
        self.process.end();
        self.process.ended().await;
    }

    /// Runs a turn.
    pub(super) async fn run(&mut self, spec: &TurnSpec, io: &mut TurnIo) -> Ran {
        let fresh = self.turns == 0;
        self.turns += 1;
        let mut prompt = spec.prompt.clone();
        match &spec.session {
            Some(session) if fresh => {
                let (env, session, wanted) = (self.started.env.clone(), session.clone(), prompt.clone());
                let read = tokio::task::spawn_blocking(move || history::read(&env, &session, &wanted)).await;
                let history = read.unwrap_or_default();
                self.cost = history.cost_usd;
                if spec.again && history.has_prompt {
                    CONTINUE.clone_into(&mut prompt);
                }
            }
            None if fresh => self.cost = Some(0.0),
            _ => {}
        }
        let message = uuid::Uuid::new_v4().to_string();
        let reader = Reader::new(&message, spec.policy, fresh, spec.session.is_some(), self.cost);
        let mut turn = Running { reader, stop: None, paused: None };
        if !self.send(&turn.reader.prompt(&prompt)) {
            return Ran::Done(self.ended(false).await);
        }
        let ran = self.follow(&mut turn, io).await;
        self.cost = turn.reader.cost();
        ran
    }

    async fn follow(&mut self, turn: &mut Running, io: &mut TurnIo) -> Ran {
        let mut steps = Vec::new();
        loop {
            let wake = turn.wake();
            tokio::select! {
                biased;
                command = io.command() => match command {
                    Command::Answer { ask, answer } => turn.reader.answer(&ask, &answer, &mut steps),
                    Command::Interrupt if turn.reader.is_interrupted() => {}
                    Command::Interrupt if turn.reader.waits_for_agents() => {
                        // Claude itself is idle: there is nothing to interrupt but the process with its agents.
                        self.give_up().await;
                        return Ran::Done(interrupted());
                    }
                    Command::Interrupt => {
                        turn.reader.interrupt();
                        turn.stop = Some(Stop::new(Instant::now()));
                        self.interrupt(turn);
                    }
                },
                line = self.process.line() => match line {
                    Ok(Some(line)) => turn.reader.line(&line, &mut steps),
                    Ok(None) => {
                        let ended = self.ended(turn.reader.is_interrupted()).await;
                        return Ran::Done(turn.paused.take().map_or(ended, |(_, outcome)| outcome));
                    }
                    Err(error) => {
                        self.give_up().await;
                        return Ran::Done(failed(format!("claude can't be read: {error}")));
                    }
                },
                () = sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => {
                    if let Some((_, outcome)) = turn.paused.take() {
                        return Ran::Done(outcome);
                    }
                    if turn.stop.as_ref().is_some_and(Stop::is_over) {
                        self.give_up().await;
                        return Ran::Done(interrupted());
                    }
                    self.interrupt(turn);
                }
            }
            for step in steps.drain(..) {
                match step {
                    Step::Event(event) => io.emit(event).await,
                    Step::Paragraph => io.break_paragraph(),
                    Step::Session(session) => {
                        self.started.session = Some(session.clone());
                        io.session(&session).await;
                    }
                    Step::Send(frame) => {
                        self.send(&frame);
                    }
                    Step::Pause(outcome) => turn.paused = Some((Instant::now() + FOLLOW_UP, outcome)),
                    Step::Resume => turn.paused = None,
                    Step::Done(outcome) => return Ran::Done(outcome),
                    Step::Lost => return Ran::Lost,
                }
            }
        }
    }

    fn interrupt(&self, turn: &mut Running) {
        let Some(stop) = &mut turn.stop else { return };
        let id = format!("interrupt-{}-{}", self.turns, stop.next());
        let request = json!({ "subtype": "interrupt" });
        self.send(&json!({ "type": "control_request", "request_id": id, "request": request }));
    }

    fn send(&self, frame: &Value) -> bool {
        let mut line = frame.to_string().into_bytes();
        line.push(b'\n');
        self.process.write(line)
    }

    async fn give_up(&mut self) {
        self.usable = false;
        self.process.end();
        self.process.ended().await;
    }

    /// The outcome of a turn whose process ended without one.
    async fn ended(&mut self, asked: bool) -> Outcome {
        self.usable = false;
        self.process.end();
        let status = self.process.ended().await;
        if asked {
            return interrupted();
        }
        let stderr = self.process.stderr().await;
        let said = if stderr.is_empty() { String::new() } else { format!(": {stderr}") };
        failed(format!("claude {} before the turn did{said}", describe(status)))
    }
}

/// A turn that runs.
struct Running {
    reader: Reader,
    /// A person stopped it.
    stop: Option<Stop>,
    /// An outcome that stands unless Claude goes on before the instant.
    paused: Option<(Instant, Outcome)>,
}

impl Running {
    /// When to look again though nothing happened.
    fn wake(&self) -> Option<Instant> {
        self.paused.as_ref().map(|(at, _)| *at).or_else(|| self.stop.as_ref().map(Stop::wake))
    }
}

fn arguments(spec: &TurnSpec) -> Vec<OsString> {
    let mut args: Vec<String> = ARGS.map(ToOwned::to_owned).to_vec();
    let mode = match spec.policy {
        Policy::ReadOnly | Policy::Ask | Policy::Full => "default",
        Policy::Edit => "acceptEdits",
    };
    // With `=`, because these words come from a home: none of them can be read as another option.
    args.push(format!("--permission-mode={mode}"));
    if spec.policy == Policy::ReadOnly {
        args.push(format!("--disallowedTools={CHANGING_TOOLS}"));
    }
    match (&spec.model, &spec.session) {
        (Some(model), _) => args.push(format!("--model={model}")),
        // A resumed session remembers its model, so "no model" has to be said.
        (None, Some(_)) => args.push(format!("--model={DEFAULT_MODEL}")),
        (None, None) => {}
    }
    if let Some(session) = &spec.session {
        args.push(format!("--resume={session}"));
    }
    args.into_iter().map(OsString::from).collect()
}
