//! The API: one set of requests and frames behind three doors (Unix socket, loopback WebSocket, remote stream).
//!
//! A client sends `{"id":N,"op":…,…}` and gets `{"id":N,"ok":…}` or `{"id":N,"error":…}`. A subscription's answer is
//! followed by frames that carry the same id: `{"id":N,"frame":{"type":…}}`.

use serde::{Deserialize, Serialize};

use crate::entry::{Attachment, MemberKind, Policy};
use crate::id::{ClientId, Handle, Hash, MessageId, NodeId, Seq};

/// A request with the client's number for it.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Call {
    /// Repeated by the answer.
    pub id: u64,
    /// The request.
    #[serde(flatten)]
    pub request: Request,
}

/// Everything that can be asked of a node. Channels are named by name or id, members by handle.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
pub enum Request {
    /// What the node is, has and is linked to.
    Status {},
    /// Ends the node.
    Stop {},
    /// The node's org.
    OrgShow {},
    /// Makes a channel whose home is this node.
    ChannelCreate {
        /// Its name.
        name: String,
        /// Repeats are answered with the first result.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        client: Option<ClientId>,
    },
    /// The channels this node knows.
    ChannelList {},
    /// One channel, with members, queues, open turns and cards.
    ChannelShow {
        /// Which.
        channel: String,
    },
    /// Ends a channel; it stays readable.
    ChannelArchive {
        /// Which.
        channel: String,
    },
    /// Adds a member.
    MemberAdd {
        /// To which channel.
        channel: String,
        /// The new member.
        member: NewMember,
        /// Repeats are answered with the first result.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        client: Option<ClientId>,
    },
    /// Does something to a member.
    MemberAct {
        /// Of which channel.
        channel: String,
        /// Which member.
        handle: String,
        /// What.
        act: MemberAct,
    },
    /// Posts a message.
    Post {
        /// To which channel.
        channel: String,
        /// The text.
        text: String,
        /// The message it answers.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reply_to: Option<MessageId>,
        /// Files, put there by [`Request::BlobPut`] before.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        attachments: Vec<Attachment>,
        /// Repeats are answered with the first result.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        client: Option<ClientId>,
    },
    /// Follows a channel: what was since the cursor, then a `synced` frame, then what comes.
    Subscribe {
        /// Which.
        channel: String,
        /// Last seq the client has; 0 for all.
        #[serde(default)]
        since: Seq,
        /// Whether events of running turns are wanted too.
        #[serde(default)]
        events: bool,
        /// End after the `synced` frame.
        #[serde(default)]
        once: bool,
    },
    /// Ends a subscription.
    Unsubscribe {
        /// The id of the call that opened it.
        call: u64,
    },
    /// Events of a run, from its journal.
    Events {
        /// Which channel.
        channel: String,
        /// The run message.
        message: MessageId,
        /// First index.
        #[serde(default)]
        from: u64,
    },
    /// Open cards and holds, of one channel or all.
    Inbox {
        /// Which channel; all when absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        channel: Option<String>,
    },
    /// Answers a card.
    Answer {
        /// Which channel.
        channel: String,
        /// The card.
        card: MessageId,
        /// The labels chosen.
        choose: Vec<String>,
        /// Free text with it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        text: Option<String>,
    },
    /// Decides a held turn or delivery.
    Hold {
        /// Which channel.
        channel: String,
        /// The held run, its card, or the held message.
        message: MessageId,
        /// True: release. False: drop.
        release: bool,
        /// Release although the first attempt may have run elsewhere.
        #[serde(default)]
        may_run_twice: bool,
    },
    /// Stores a piece of an attachment at the node, which passes it to the home. The last piece completes it.
    BlobPut {
        /// For which channel.
        channel: String,
        /// BLAKE3 of the whole.
        hash: Hash,
        /// Length of the whole.
        size: u64,
        /// Place of this piece.
        offset: u64,
        /// The piece, base64url.
        data: String,
    },
    /// Reads a piece of an attachment.
    BlobGet {
        /// From which channel.
        channel: String,
        /// Which.
        hash: Hash,
        /// Place of the piece.
        offset: u64,
    },
    /// Offers to enrol a device.
    PairOffer {
        /// Role of the new device.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        role: Option<String>,
        /// Channels it may read; all when empty.
        #[serde(default)]
        channels: Vec<String>,
    },
    /// The six digits that the new device shows.
    PairConfirm {
        /// The digits.
        digits: String,
    },
    /// Takes the offer back.
    PairCancel {},
    /// Enrols this node by somebody's offer; frames tell how it goes.
    Join {
        /// The link.
        link: String,
        /// What to call this node.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// Consent to run turns of the offering node's channels here; saved once this node is enrolled.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        resident: Option<Residency>,
    },
    /// The org's devices.
    DeviceList {},
    /// Reads this node's consent, harnesses and folders again after they were changed on disk.
    Reload {},
}

/// A member to add.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct NewMember {
    /// Its handle.
    pub handle: String,
    /// Its kind.
    pub kind: MemberKind,
    /// Agents: the harness.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub harness: Option<String>,
    /// Agents: the node, by name, id or a prefix of it; this one when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<String>,
    /// Agents: the folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Agents: the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Agents: the policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
}

/// What the owner of a box allows to the home that enrols it.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Residency {
    /// Harnesses that may run.
    pub harnesses: Vec<Handle>,
    /// Folders, absolute, that members may work in.
    pub folders: Vec<String>,
    /// The most that an agent may do unasked; `ask` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ceiling: Option<Policy>,
}

/// What can be done to a member.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(tag = "act", rename_all = "kebab-case")]
pub enum MemberAct {
    /// Gives it another handle.
    Rename {
        /// The handle from now on.
        to: String,
    },
    /// Keeps its queue and starts nothing.
    Pause,
    /// The opposite of pause.
    Resume,
    /// Stops its turn.
    Interrupt,
    /// Ends its process; the queue is kept.
    Kill,
    /// The opposite of kill.
    Revive,
    /// Takes it out of the channel.
    Remove,
    /// Changes its settings; what is absent stays.
    Configure {
        /// The model.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        model: Option<String>,
        /// The policy.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        policy: Option<Policy>,
        /// The folder.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cwd: Option<String>,
    },
}

/// The answer to [`Request::Post`].
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Posted {
    /// The message's number.
    pub message: MessageId,
    /// Its entry.
    pub seq: Seq,
    /// Always `saved`: the answer is sent after the sync.
    pub state: String,
    /// The home's signed receipt.
    pub receipt: String,
    /// Mentions that nobody answers to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<String>,
    /// Whom it goes to, by handle.
    #[serde(default)]
    pub to: Vec<Handle>,
}

/// One frame of a subscription. Clients parse it as plain JSON: raw lines can't be read back through a tagged enum.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum Frame {
    /// An entry. `line` is the log's exact line, so that a client can verify it.
    Entry {
        /// Its seq.
        seq: Seq,
        /// Its message number, when it is a visible message.
        message: Option<MessageId>,
        /// Its kind.
        kind: String,
        /// The author's handle; `system` for the home.
        author: String,
        /// The log's exact line.
        line: Box<serde_json::value::RawValue>,
    },
    /// A seal. `line` is the log's exact line.
    Seal {
        /// Last seq it covers.
        seq: Seq,
        /// The log's exact line.
        line: Box<serde_json::value::RawValue>,
    },
    /// An event of a running turn.
    Event {
        /// The run message.
        message: MessageId,
        /// Index in the run's journal.
        index: u64,
        /// The event's exact line.
        event: Box<serde_json::value::RawValue>,
    },
    /// Everything up to `seq` has been sent; what follows is live.
    Synced {
        /// The seq.
        seq: Seq,
    },
    /// Something is missing; ask again from `from`.
    Gap {
        /// First missing seq.
        from: Seq,
        /// Last missing seq.
        to: Seq,
    },
    /// How pairing or joining goes.
    Pair {
        /// The step.
        #[serde(flatten)]
        step: PairStep,
    },
    /// The subscription ended.
    End {},
}

/// Steps of pairing, on either side.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum PairStep {
    /// The link to show.
    Offer {
        /// The link.
        link: String,
        /// How long it is good.
        expires_ms: u64,
    },
    /// A device claims the offer.
    Claim {
        /// What it calls itself.
        name: String,
    },
    /// The digits to type at the other side.
    Digits {
        /// The digits.
        digits: String,
    },
    /// Done.
    Enrolled {
        /// The new device.
        device: NodeId,
        /// Its name.
        name: String,
        /// The org.
        org: String,
    },
    /// Not done.
    Refused {
        /// Stable word for why.
        reason: String,
    },
}

/// An error, as every door shows it.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// Stable.
    pub code: Code,
    /// What is wrong, with values.
    pub message: String,
    /// What to do about it: mostly the next command to type.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hint: String,
}

impl ApiError {
    /// An error without a hint.
    #[must_use]
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: String::new() }
    }

    /// Adds what to do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }
}

/// Stable error codes.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Code {
    /// The request is malformed.
    Invalid,
    /// Role, policy or consent does not allow it.
    Refused,
    /// Over a limit.
    Limit,
    /// No such channel, member, card, message or node.
    NotFound,
    /// It exists already, or somebody else was first.
    Conflict,
    /// The channel takes no writes now.
    ReadOnly,
    /// The home or resident cannot be reached.
    Unreachable,
    /// The wait was over before the work was.
    Timeout,
    /// No node runs on this data folder.
    NotRunning,
    /// A node runs already on this data folder.
    AlreadyRunning,
    /// A fault of ours or of the box.
    Internal,
}

impl Code {
    /// The process exit status that goes with it.
    #[must_use]
    pub const fn exit(self) -> u8 {
        match self {
            Self::Invalid => 2,
            Self::Refused | Self::Limit | Self::Conflict | Self::ReadOnly => 3,
            Self::NotFound => 4,
            Self::Timeout => 5,
            Self::NotRunning => 6,
            Self::AlreadyRunning => 7,
            Self::Unreachable | Self::Internal => 1,
        }
    }
}
