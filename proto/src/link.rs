//! What two nodes of an org say to each other once their link is up.
//!
//! A frame is a JSON head of this module's [`Message`] and a binary tail (payloads, raw journal lines, blob chunks),
//! so that bulk bytes are neither escaped nor copied. Frames travel in *lanes*: one control lane, and one lane for
//! each turn and each transfer, so that nothing queues behind a busy neighbour.

use serde::{Deserialize, Serialize};

use crate::entry::{Auth, JournalMark, MemberSpec};
use crate::id::{Attempt, ChannelId, Hash, MemberId, MessageId, Seq};

/// Names one try at one turn of one channel.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct AttemptId {
    /// The channel.
    pub channel: ChannelId,
    /// The run message.
    pub run: MessageId,
    /// The try.
    pub attempt: Attempt,
}

/// Where a frame travels.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lane {
    /// Short frames that must never wait.
    Control,
    /// A turn's events.
    Turn(AttemptId),
    /// A transfer, by number.
    Bulk(u64),
}

/// The head of a frame.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(tag = "m", rename_all = "kebab-case")]
pub enum Message {
    /// First frame of either side: what it can do and how far its resident journal is.
    Hello {
        /// Highest protocol version spoken.
        version: u32,
        /// What to call this node.
        name: String,
        /// Addresses it listens on.
        addrs: Vec<String>,
        /// How far its attempt journal is.
        mark: JournalMark,
    },
    /// Asks for proof that the far side is alive and reads its frames.
    Probe {
        /// Random.
        nonce: u64,
    },
    /// Answers [`Message::Probe`].
    ProbeOk {
        /// The probe's.
        nonce: u64,
    },

    /// Opens a lane from the sender to the far side. Tail: the 32-byte key of the stream that carries it; that stream
    /// begins with the key's tag.
    LaneOpen {
        /// Which; never the control lane.
        lane: Lane,
    },
    /// Last frame of a link.
    Bye {
        /// Stable word for why.
        code: String,
        /// Why, in words.
        reason: String,
    },

    /// Home → resident: run this. Tail: the payload.
    Deliver {
        /// Which try.
        id: AttemptId,
        /// Whose turn.
        member: MemberId,
        /// The member's settings now.
        spec: MemberSpec,
        /// The channel's name, for the agent's environment.
        name: String,
        /// How the harness resumes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session: Option<String>,
        /// Hash of the payload.
        payload: Hash,
        /// Files the payload cites; the resident fetches what it lacks before it starts.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        attachments: Vec<crate::entry::Attachment>,
        /// An earlier attempt may have left its prompt in the harness's history.
        #[serde(default)]
        again: bool,
    },
    /// Resident → home: it is durable here and about to run.
    Accepted {
        /// Which try.
        id: AttemptId,
        /// How far the resident's attempt journal is, this acceptance included.
        mark: JournalMark,
        /// The resident's signature.
        auth: Auth,
    },
    /// Resident → home: this box's owner does not allow it, or it cannot be done here. Final for the attempt.
    Refused {
        /// Which try.
        id: AttemptId,
        /// Stable word for why.
        code: String,
        /// Why, in words, with what to do about it.
        message: String,
    },
    /// Resident → home: events from index `first` on. Tail: their raw lines.
    Events {
        /// Which try.
        id: AttemptId,
        /// Index of the first line.
        first: u64,
    },
    /// Home → resident: all events below `upto` are durable at the home.
    EventsAck {
        /// Which try.
        id: AttemptId,
        /// One past the last durable index.
        upto: u64,
    },
    /// Resident → home: the attempt ended; its last event, which says how, has been synced here.
    Finished {
        /// Which try.
        id: AttemptId,
        /// Events in the journal.
        events: u64,
        /// Its length in bytes.
        length: u64,
        /// Its hash.
        journal: Hash,
        /// How the harness resumes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session: Option<String>,
        /// The resident's signature.
        auth: Auth,
    },
    /// Home → resident: the end is in the log; forget the attempt.
    FinishedAck {
        /// Which try.
        id: AttemptId,
    },
    /// Home → resident: interrupt the attempt.
    Stop {
        /// Which try.
        id: AttemptId,
    },
    /// Resident → home: the interrupt reached the harness, or there was nothing to interrupt.
    StopOk {
        /// Which try.
        id: AttemptId,
    },
    /// Home → resident: the answer to a question of the attempt. Tail: its JSON ([`Answer`](crate::event::Answer)),
    /// because a head has no room for what a person may write.
    Answer {
        /// Which try.
        id: AttemptId,
        /// Which question.
        ask: String,
        /// Approvals: hash of the action that was shown.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        digest: Option<Hash>,
    },
    /// Resident → home: the answer reached the harness, or is moot.
    AnswerOk {
        /// Which try.
        id: AttemptId,
        /// Which question.
        ask: String,
    },
    /// Home → resident: end the member's process.
    Kill {
        /// The channel.
        channel: ChannelId,
        /// The member.
        member: MemberId,
    },
    /// Home → resident after a link came up: what became of these attempts?
    Reconcile {
        /// Attempts the home thinks run there.
        attempts: Vec<Asked>,
    },
    /// Resident → home: the answer.
    Report {
        /// One verdict for each attempt asked about.
        verdicts: Vec<(AttemptId, Verdict)>,
    },

    /// A request of the API, passed on by a node to the home. Tail: JSON of `{"request":…}`, for posts with `"auth"`:
    /// the signed draft, which is what is posted.
    Call {
        /// Number of the call, chosen by the caller.
        call: u64,
        /// The agent that calls, when it is one that lives on the calling node.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agent: Option<Agent>,
    },
    /// The answer to [`Message::Call`]. Tail: JSON of `{"ok":…}` or `{"error":…}`.
    Reply {
        /// The call.
        call: u64,
    },
    /// One frame of a subscription that a [`Message::Call`] opened. Tail: JSON of the frame.
    Feed {
        /// The call.
        call: u64,
    },
    /// Home → reader: nothing follows.
    FeedEnd {
        /// The call.
        call: u64,
    },

    /// Asks for the org's chain from a seq on.
    OrgGet {
        /// First entry wanted.
        from: Seq,
    },
    /// Lines of the org's chain. Tail: the lines, seals included.
    OrgLines {
        /// First entry in it.
        from: Seq,
    },
    /// A message of a newer version; ignored.
    #[serde(other)]
    Unknown,
}

/// An agent that calls from within a turn.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Agent {
    /// Where it is a member.
    pub channel: ChannelId,
    /// Which member.
    pub member: MemberId,
    /// The turn it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<MessageId>,
}

/// One attempt in a [`Message::Reconcile`].
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Asked {
    /// Which.
    pub id: AttemptId,
    /// Events of it that the home holds.
    pub have: u64,
    /// Where the resident's journal was when the attempt was sent, as far as the home knew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<JournalMark>,
    /// Hash of the payload: a home that lost some of its log may have given the number to something else since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Hash>,
}

/// What a resident knows of an attempt.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(tag = "is", rename_all = "kebab-case")]
pub enum Verdict {
    /// It runs, or its end has not been acknowledged: events follow from where the home stands.
    Known,
    /// Durable here, provably never handed to the harness, and never will be.
    NeverStarted,
    /// No trace of it here.
    Absent {
        /// This journal extends the mark that the home named, so the attempt never arrived.
        proven: bool,
    },
    /// It was handed to the harness and nobody saw how it ended.
    Ambiguous {
        /// The evidence, in words.
        reason: String,
    },
}
