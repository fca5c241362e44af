//! A member's program between turns, whichever it is.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tieline_proto::entry::Policy;
use tieline_proto::event::Outcome;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::TurnSpec;
use super::claude_code::Claude;
use super::codex::Codex;
use super::host::Setting;
use super::process::{Launch, Process};
use super::registry::{Adapter, Resolved};
use super::turn::TurnIo;

/// An interrupt that comes between two of a program's own steps is lost, so it is repeated until the turn ends.
const INTERRUPT_AGAIN: Duration = Duration::from_millis(300);

/// How long a program may take to stop a turn before it is ended.
const INTERRUPT_GRACE: Duration = Duration::from_secs(10);

/// A running program that takes one turn after the other.
#[derive(Debug)]
pub(super) enum Session {
    Claude(Box<Claude>),
    Codex(Box<Codex>),
}

/// How a turn went.
#[derive(Debug)]
pub(super) enum Ran {
    /// It ended.
    Done(Outcome),
    /// The program doesn't know the session it was to resume; the prompt was not given to it.
    Lost,
}

impl Session {
    /// Starts the program for a member.
    ///
    /// # Errors
    /// When the program can't be started.
    pub(super) fn start(
        found: &Resolved,
        spec: &TurnSpec,
        setting: &Setting,
        permit: OwnedSemaphorePermit,
    ) -> io::Result<Self> {
        match found.adapter {
            Adapter::ClaudeCode => Claude::start(found, spec, setting, permit).map(Box::new).map(Self::Claude),
            Adapter::Codex => Codex::start(found, spec, setting, permit).map(Box::new).map(Self::Codex),
            Adapter::Scripted | Adapter::Exec => Err(io::Error::other("it keeps no program between turns")),
        }
    }

    /// Whether the program can run a turn of these settings.
    pub(super) fn fits(&mut self, found: &Resolved, spec: &TurnSpec, setting: &Setting) -> bool {
        match self {
            Self::Claude(claude) => claude.fits(found, spec, setting),
            Self::Codex(codex) => codex.fits(found, spec, setting),
        }
    }

    /// Runs a turn.
    pub(super) async fn run(&mut self, spec: &TurnSpec, io: &mut TurnIo) -> Ran {
        match self {
            Self::Claude(claude) => claude.run(spec, io).await,
            Self::Codex(codex) => codex.run(spec, io).await,
        }
    }

    /// Whether the program can take another turn.
    pub(super) fn is_alive(&mut self) -> bool {
        match self {
            Self::Claude(claude) => claude.is_alive(),
            Self::Codex(codex) => codex.is_alive(),
        }
    }

    /// Ends the program.
    pub(super) async fn close(self) {
        match self {
            Self::Claude(claude) => claude.close().await,
            Self::Codex(codex) => codex.close().await,
        }
    }
}

/// What a program was started with: when any of it changes, a new one is started.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Started {
    found: Resolved,
    cwd: PathBuf,
    /// Its whole environment.
    pub env: BTreeMap<String, String>,
    model: Option<String>,
    policy: Policy,
    /// The session it is in, as it was told last.
    pub session: Option<String>,
}

impl Started {
    /// What a turn's program is started with.
    pub(super) fn new(found: &Resolved, spec: &TurnSpec, setting: &Setting) -> Self {
        Self {
            found: found.clone(),
            cwd: spec.cwd.clone(),
            env: setting.env(spec),
            model: spec.model.clone(),
            policy: spec.policy,
            session: spec.session.clone(),
        }
    }

    /// Starts the program with the adapter's own arguments after those of its command.
    ///
    /// # Errors
    /// When it can't be started.
    pub(super) fn launch(
        &self,
        args: &[OsString],
        setting: &Setting,
        permit: OwnedSemaphorePermit,
    ) -> io::Result<Process> {
        let args: Vec<OsString> = self.found.args.iter().chain(args).cloned().collect();
        let (keeper, program) = (&setting.keeper, &self.found.program);
        Process::start(&Launch { keeper, program, args: &args, cwd: &self.cwd, env: &self.env }, permit)
    }
}

/// An interrupt that a program was asked for and has not obeyed yet.
#[derive(Debug)]
pub(super) struct Stop {
    again: Instant,
    over: Instant,
    asked: u64,
}

impl Stop {
    /// Asked for now.
    pub(super) fn new(now: Instant) -> Self {
        Self { again: now, over: now + INTERRUPT_GRACE, asked: 0 }
    }

    /// Counts another try; its number, from 1.
    pub(super) fn next(&mut self) -> u64 {
        self.again = Instant::now() + INTERRUPT_AGAIN;
        self.asked += 1;
        self.asked
    }

    /// When to try again or give up.
    pub(super) fn wake(&self) -> Instant {
        self.again.min(self.over)
    }

    /// Whether to give up.
    pub(super) fn is_over(&self) -> bool {
        self.over <= Instant::now()
    }
}
