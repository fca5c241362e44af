//! What goes into a resident and what comes out of it.

use crate::crypto::sign::Task;
use crate::entry::{Attachment, JournalMark, MemberSpec, Policy};
use crate::event::Answer;
use crate::id::{ChannelId, Hash, MemberId, NodeId};
use crate::link::{AttemptId, Message};

/// Everything that can happen to a resident.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "inputs live briefly and one at a time")]
pub enum Input {
    /// A home can be reached, this node's own included. It is told of every attempt that is kept for it: it may have
    /// ended some while it could not say so.
    LinkUp(NodeId),
    /// A home says something.
    Frame {
        /// The home.
        home: NodeId,
        /// What.
        message: Message,
        /// The frame's tail.
        tail: Vec<u8>,
    },
    /// The box's owner allows an attempt, or not.
    Admitted {
        /// Which.
        id: AttemptId,
        /// With what, or why not.
        result: Result<Admission, Refusal>,
    },
    /// The acceptance of an attempt is durable and its home told.
    AcceptedDurable(AttemptId),
    /// The attempt ended and its journal, last event included, is durable.
    Ended {
        /// Which.
        id: AttemptId,
        /// Events in its journal.
        events: u64,
        /// Length of its journal.
        length: u64,
        /// Hash of its journal.
        journal: Hash,
        /// How the harness resumes.
        session: Option<String>,
    },
    /// The node stops, or cannot write the run's journal: what ran was interrupted by that and not by a person.
    Stopped(AttemptId),
}

/// What the owner's consent made of an attempt.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Admission {
    /// The folder, resolved.
    pub cwd: String,
    /// The policy, capped.
    pub policy: Policy,
}

/// Why an attempt is not run here.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Refusal {
    /// Stable word.
    pub code: String,
    /// Words for people, with what to do about it.
    pub message: String,
}

/// What the shell must do once the step's records are written, and synced if it says so.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Check the owner's consent and fetch what the payload cites; answer with [`Input::Admitted`].
    Admit {
        /// Which.
        id: AttemptId,
        /// Whose channel.
        home: NodeId,
        /// The member's settings.
        spec: MemberSpec,
        /// Files to have before it starts.
        attachments: Vec<Attachment>,
    },
    /// Send `Accepted` with this mark, signed; then feed [`Input::AcceptedDurable`].
    Accept {
        /// What is accepted.
        task: Task,
        /// The home.
        home: NodeId,
        /// The journal's place.
        mark: JournalMark,
        /// Whether the harness is to be started after it.
        start: bool,
    },
    /// Start the harness.
    Start {
        /// Which.
        id: AttemptId,
        /// The home.
        home: NodeId,
        /// Whose turn.
        member: MemberId,
        /// The member's settings.
        spec: Box<MemberSpec>,
        /// The channel's name.
        name: String,
        /// What the consent allows.
        admission: Admission,
        /// How the harness resumes.
        session: Option<String>,
        /// The payload.
        payload: Vec<u8>,
        /// Files that it cites.
        attachments: Vec<Attachment>,
        /// An earlier attempt may have left its prompt in the harness's history.
        again: bool,
    },
    /// Send the run's events from this index on, and its end when it has one.
    Resume {
        /// Which.
        id: AttemptId,
        /// The home.
        home: NodeId,
        /// First index that the home lacks.
        from: u64,
    },
    /// Send this after all events of the run.
    Finish {
        /// What has ended.
        task: Task,
        /// The home.
        home: NodeId,
        /// Events in its journal.
        events: u64,
        /// Length of its journal.
        length: u64,
        /// Hash of its journal.
        journal: Hash,
        /// How the harness resumes.
        session: Option<String>,
    },
    /// Send a control frame.
    Send(NodeId, Message),
    /// Interrupt a running attempt; confirm with `StopOk` to the home.
    Interrupt(AttemptId, NodeId),
    /// Give a running attempt an answer; confirm with `AnswerOk` to the home.
    Answer {
        /// Which.
        id: AttemptId,
        /// The home.
        home: NodeId,
        /// Which question.
        ask: String,
        /// The answer.
        answer: Answer,
        /// Approvals: hash of the action that was shown.
        digest: Option<Hash>,
    },
    /// End a member's process.
    Kill(ChannelId, MemberId),
    /// Delete the run's journal here.
    Forget(AttemptId),
}

/// What one input led to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResidentStep {
    /// Lines for the attempt journal.
    pub records: Vec<u8>,
    /// They must be durable before the effects.
    pub sync: bool,
    /// What to do after that, in order.
    pub effects: Vec<Effect>,
}
