//! Codex, driven by its app-server: one process a session, one turn after the other.
//!
//! A change of model, policy, folder or environment starts a new process that resumes the thread.

mod frames;
mod items;
mod requests;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::time::Duration;

use serde_json::Value;
use tieline_proto::event::Outcome;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep_until};

use self::frames::{Reader, Thread};
use super::host::Setting;
use super::process::{Process, describe};
use super::registry::Resolved;
use super::session::{Ran, Started, Stop};
use super::step::Step;
use super::turn::{TurnIo, failed, interrupted};
use super::{Command, TurnSpec};

/// How long Codex may take to say that a turn runs. A cold start on a busy small box takes seconds.
const START_WAIT: Duration = Duration::from_secs(90);

/// How long a request of an unknown kind waits for an answer before it is refused: its turn must not hang on a card
/// that may not even be understood.
const STRANGE_WAIT: Duration = Duration::from_secs(10 * 60);

/// A running Codex.
#[derive(Debug)]
pub(super) struct Codex {
    process: Process,
    started: Started,
    thread: Thread,
    turns: u64,
    usable: bool,
}

impl Codex {
    /// Starts Codex for a member.
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
        let process = started.launch(&[OsString::from("app-server")], setting, permit)?;
        Ok(Self { process, started, thread: Thread::default(), turns: 0, usable: true })
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
        self.turns += 1;
        let mut reader = Reader::new(spec, self.turns, self.thread.clone());
        if !self.send(&reader.begin()) {
            return Ran::Done(self.ended(false).await);
        }
        let ran = self.follow(&mut reader, io).await;
        self.thread = reader.into_thread();
        // Half a greeting can't be begun again.
        self.usable &= self.thread.id.is_some();
        ran
    }

    async fn follow(&mut self, reader: &mut Reader, io: &mut TurnIo) -> Ran {
        let mut steps = Vec::new();
        let mut stop: Option<Stop> = None;
        let mut clock = Clock { start: Some(Instant::now() + START_WAIT), strange: BTreeMap::new() };
        loop {
            let wake = clock.wake(stop.as_ref());
            tokio::select! {
                biased;
                command = io.command() => match command {
                    Command::Answer { ask, answer } => reader.answer(&ask, &answer, &mut steps),
                    Command::Interrupt if stop.is_some() => {}
                    Command::Interrupt => {
                        let asked = stop.insert(Stop::new(Instant::now()));
                        if let Some(frame) = reader.interrupt(asked.next()) {
                            self.send(&frame);
                        }
                    }
                },
                line = self.process.line() => match line {
                    Ok(Some(line)) => reader.line(&line, &mut steps),
                    Ok(None) => return Ran::Done(self.ended(reader.is_interrupted()).await),
                    Err(error) => {
                        self.give_up().await;
                        return Ran::Done(failed(format!("codex can't be read: {error}")));
                    }
                },
                () = sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => {
                    let now = Instant::now();
                    if stop.as_ref().is_some_and(Stop::is_over) {
                        self.give_up().await;
                        return Ran::Done(interrupted());
                    }
                    if clock.start.is_some_and(|at| at <= now) {
                        self.give_up().await;
                        return Ran::Done(failed(format!("codex did not start the turn in {} s", START_WAIT.as_secs())));
                    }
                    for ask in clock.expired(now) {
                        reader.expire(&ask, &mut steps);
                    }
                    if let Some(frame) = stop.as_mut().and_then(|stop| reader.interrupt(stop.next())) {
                        self.send(&frame);
                    }
                }
            }
            if reader.is_running() {
                clock.start = None;
            }
            clock.watch(reader, Instant::now());
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
                    Step::Done(outcome) | Step::Pause(outcome) => return Ran::Done(outcome),
                    Step::Resume => {}
                    Step::Lost => return Ran::Lost,
                }
            }
        }
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
        failed(format!("codex {} before the turn did{said}", describe(status)))
    }
}

/// What a turn waits for, and until when.
struct Clock {
    /// Until when the turn has to run; `None` once it does.
    start: Option<Instant>,
    /// Questions of an unknown kind.
    strange: BTreeMap<String, Instant>,
}

impl Clock {
    fn wake(&self, stop: Option<&Stop>) -> Option<Instant> {
        self.strange.values().copied().chain(self.start).chain(stop.map(Stop::wake)).min()
    }

    fn watch(&mut self, reader: &Reader, now: Instant) {
        self.strange.retain(|known, _| reader.strange().any(|ask| ask == known));
        for ask in reader.strange() {
            self.strange.entry(ask.to_owned()).or_insert(now + STRANGE_WAIT);
        }
    }

    fn expired(&self, now: Instant) -> Vec<String> {
        self.strange.iter().filter(|(_, at)| **at <= now).map(|(ask, _)| ask.clone()).collect()
    }
}
