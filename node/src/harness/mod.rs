//! Harnesses: the agent programs that members are, each behind one adapter.
//!
//! An adapter turns one payload into a stream of normalized events and exactly one outcome, whatever the program does:
//! it alone decides what the program's own frames mean. It never decides about turns, attempts or retries.
//!
//! * [`host`] keeps one session a member, starts turns in it and ends its program.
//! * [`registry`] knows which harnesses this box has: the built-in ones and the owner's own commands.
//! * [`mod@env`] makes the environment that programs get.
//! * [`keeper`] is the small process between the node and every program: nothing outlives it, and it doesn't outlive
//!   the node.

mod asks;
mod claude_code;
mod codex;
mod cut;
pub mod env;
mod exec;
pub mod host;
pub mod keeper;
mod process;
pub mod registry;
#[cfg(test)]
mod replay;
mod script;
mod scripted;
mod session;
mod step;
mod turn;

pub use asks::ALLOW_SESSION;
pub use host::{Host, HostConfig, Limits};
pub use registry::Registry;

use std::collections::BTreeMap;
use std::path::PathBuf;

use tieline_proto::entry::Policy;
use tieline_proto::event::{Answer, Event, Outcome};
use tieline_proto::id::{ChannelId, MemberId};
use tieline_proto::link::AttemptId;
use tokio::sync::mpsc;

/// Outputs that wait for the resident's journal; a harness that is faster is not read for a while.
pub const OUTPUTS_WAITING_MAX: usize = 256;

/// Names a member's session on this node.
pub type SessionKey = (ChannelId, MemberId);

/// Everything an adapter needs to run one turn.
#[derive(Clone, Debug)]
pub struct TurnSpec {
    /// Which try.
    pub id: AttemptId,
    /// Whose turn.
    pub member: MemberId,
    /// What the model is given.
    pub prompt: String,
    /// The folder the program works in; exists and is allowed by this box's owner.
    pub cwd: PathBuf,
    /// The model, when the channel chose one.
    pub model: Option<String>,
    /// What the agent may do unasked, already capped by this box's ceiling.
    pub policy: Policy,
    /// How to resume the member's session, as an earlier turn of this adapter said it.
    pub session: Option<String>,
    /// An earlier attempt may have left this prompt in the program's own history: continue, don't repeat.
    pub again: bool,
    /// What the child's environment has beside [`HostConfig::env`], `TIELINE_*` before all. Wins over it. A change
    /// restarts the member's program, so a token in it should live as long as the session does.
    pub env: BTreeMap<String, String>,
}

/// What a running turn can be told.
#[derive(Clone, Debug)]
pub enum Command {
    /// Stop now. The outcome becomes `interrupted` unless the program had ended by itself.
    Interrupt,
    /// The answer to a question.
    Answer {
        /// [`tieline_proto::event::Ask::id`].
        ask: String,
        /// The answer.
        answer: Answer,
    },
}

/// What a running turn tells.
#[derive(Clone, Debug)]
pub enum Output {
    /// An event. Never `Event::Finished`: the resident makes that from the outcome.
    Event(Event),
    /// How to resume the session from now on. Told only after the program acknowledged the turn.
    Session(String),
    /// The turn ended. Last output, exactly once, also when the program was killed or could not be started.
    Finished(Outcome),
}

/// A running turn. Dropping it interrupts the turn.
#[derive(Debug)]
pub struct Turn {
    /// Tells it something.
    pub commands: mpsc::Sender<Command>,
    /// What it tells.
    pub outputs: mpsc::Receiver<Output>,
}
