//! Answers of the API: what `ok` holds for each [`crate::api::Request`], as every door and `--json` show it.
//!
//! | request | answer |
//! |---|---|
//! | `status` | [`Status`] |
//! | `channel-create`, `channel-archive` | [`Channel`] |
//! | `channel-list` | list of [`Channel`] |
//! | `channel-show` | [`ChannelShow`] |
//! | `member-add`, `member-act` | [`Member`], as it is afterwards |
//! | `post` | [`crate::api::Posted`] |
//! | `events` | [`Events`] |
//! | `inbox` | list of [`Card`] |
//! | `answer`, `hold` | [`Card`], as it is afterwards |
//! | `blob-get` | [`BlobPiece`] |
//! | `device-list` | list of [`Device`] |
//! | `org-show` | [`Org`] |
//! | others | `{}` |
//!
//! Fields are only ever added. Absent optional fields mean "not so" or "not known".

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::entry::{MemberKind, Policy, Role};
use crate::event::{AskKind, AskOption};
use crate::id::{Attempt, ChannelId, Handle, Hash, Lamport, MemberId, MessageId, NodeId, OrgId, Seq};

/// What a node is, has and is linked to.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Status {
    /// The node.
    pub node: Node,
    /// The channels it knows.
    pub channels: Vec<Channel>,
    /// The nodes it is or was linked to.
    pub links: Vec<Link>,
    /// The members of all its channels.
    pub members: Vec<Member>,
    /// What a person should know, in words: a port that moved, a folder that filled up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// A node.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Node {
    /// Its device key.
    pub id: NodeId,
    /// What people call it.
    pub name: String,
    /// The version it runs.
    pub version: String,
    /// Its libp2p name.
    pub peer_id: String,
    /// Where its loopback page is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api: Option<String>,
    /// Where other nodes reach it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addrs: Vec<String>,
}

/// A channel.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Channel {
    /// Its id.
    pub id: ChannelId,
    /// Its name.
    pub name: String,
    /// What this node is to it.
    pub role: ChannelRole,
    /// The node that writes its log.
    pub home: NodeId,
    /// Its last entry; not known of a channel whose home is elsewhere.
    pub head: Option<Head>,
    /// Its logical clock, as far as it is known.
    pub lamport: Option<Lamport>,
    /// Nothing more can be posted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub archived: bool,
    /// It takes no writes now: why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<String>,
}

/// What a node is to a channel.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChannelRole {
    /// It writes the log.
    Home,
    /// It runs turns of members that live on it.
    Resident,
    /// It reads and posts.
    Device,
}

/// The last entry of a log.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Head {
    /// Its seq; 0 when there is none.
    pub seq: Seq,
    /// Hash of the last line.
    pub hash: Hash,
}

/// A link to another node of the org.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Link {
    /// The other node.
    pub node: NodeId,
    /// What people call it.
    pub name: String,
    /// Whether it works.
    pub state: LinkState,
    /// How it goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<LinkPath>,
    /// How long ago a probe last passed through the far side.
    #[serde(default)]
    pub last_proof_ms: Option<u64>,
    /// Why it is not up, in words.
    #[serde(default)]
    pub reason: String,
}

/// Whether a link works.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkState {
    /// A recent probe passed through the far side.
    Up,
    /// None did lately.
    Suspect,
    /// There is no session.
    Down,
}

/// How a link goes.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkPath {
    /// From address to address.
    Direct,
    /// The same, on one LAN.
    Lan,
    /// Through a relay.
    Relayed,
}

/// A member.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Member {
    /// Name of its channel.
    pub channel: String,
    /// Its id.
    pub id: MemberId,
    /// Its handle.
    pub handle: Handle,
    /// Its kind.
    pub kind: MemberKind,
    /// What it does now.
    pub state: MemberState,
    /// Agents: the node they live on.
    #[serde(default)]
    pub node: Option<NodeId>,
    /// Agents: what people call that node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// Agents: the harness.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub harness: Option<Handle>,
    /// Agents: the folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Agents: the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Agents: what they may do unasked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
    /// The turn it runs or that is held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<MessageId>,
    /// What waits for it.
    pub queue: Queue,
}

/// What a member does now.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemberState {
    /// Nothing; a message would start a turn.
    Idle,
    /// It runs a turn.
    Busy,
    /// Its turn waits for a person.
    Asking,
    /// Its turn is held: nobody knows how it ended.
    Held,
    /// Its queue is kept and nothing starts.
    Paused,
    /// Its process was ended and nothing starts.
    Killed,
    /// Its node can't be reached.
    Unreachable,
}

/// What waits for a member.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Queue {
    /// How many messages.
    pub depth: u64,
    /// How long the oldest has waited.
    #[serde(default)]
    pub oldest_ms: u64,
}

/// One channel in full.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct ChannelShow {
    /// The channel.
    #[serde(flatten)]
    pub channel: Channel,
    /// Its members.
    pub members: Vec<Member>,
    /// Its open turns.
    pub runs: Vec<Run>,
    /// Its open cards and holds.
    pub cards: Vec<Card>,
}

/// An open turn.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Run {
    /// The run message.
    pub message: MessageId,
    /// Whose turn.
    pub by: Handle,
    /// Which try.
    pub attempt: Attempt,
    /// The messages it answers.
    pub batch: Vec<MessageId>,
    /// How far it is.
    pub state: RunState,
}

/// How far a turn is: only what was proved.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunState {
    /// On its way to the resident.
    Sent,
    /// Durable at the resident: *handed over*.
    Accepted,
    /// Its first event is here.
    Started,
    /// It waits for a person.
    Asking,
    /// Nobody knows how it ended.
    Held,
}

/// Something that waits for a person.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Card {
    /// Name of its channel.
    pub channel: String,
    /// Its number.
    pub card: MessageId,
    /// What kind it is.
    pub kind: CardKind,
    /// Who asks or what is held, by handle.
    pub by: Handle,
    /// The turn or the message it is about.
    pub about: MessageId,
    /// The question, or why it is held.
    pub prompt: String,
    /// The labels to choose from.
    pub options: Vec<AskOption>,
    /// Whether several may be chosen.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub multi: bool,
    /// Approvals: the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// Approvals: the exact action.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// How it was decided: the labels, and what became of it. Absent while it is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Vec<String>>,
    /// By whom, by handle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answered_by: Option<String>,
}

/// Kinds of [`Card`].
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CardKind {
    /// A question with options.
    Question,
    /// A permission for an exact action.
    Approval,
    /// A turn whose outcome is unknown: release or drop.
    TurnHeld,
    /// A delivery over the brake: release or drop.
    DeliveryHeld,
}

impl CardKind {
    /// Whether `hold` decides it and not `answer`.
    #[must_use]
    pub const fn is_hold(self) -> bool {
        matches!(self, Self::TurnHeld | Self::DeliveryHeld)
    }
}

impl From<AskKind> for CardKind {
    fn from(kind: AskKind) -> Self {
        match kind {
            AskKind::Question => Self::Question,
            AskKind::Approval => Self::Approval,
        }
    }
}

/// Events of a run.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Events {
    /// The run message.
    pub message: MessageId,
    /// Index of the first event.
    pub from: u64,
    /// The events' exact lines.
    pub events: Vec<Box<RawValue>>,
    /// Where to go on; absent when this is all there is now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// A piece of an attachment.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct BlobPiece {
    /// Length of the whole.
    pub size: u64,
    /// Place of this piece.
    pub offset: u64,
    /// The piece, base64url without padding. Empty only at the end.
    pub data: String,
}

/// A device of the org.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Device {
    /// Its key.
    pub id: NodeId,
    /// What people call it.
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// The member it speaks for.
    #[serde(default)]
    pub member: Option<String>,
    /// How long ago it was last heard of.
    #[serde(default)]
    pub last_seen_ms: Option<u64>,
}

/// The org.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Org {
    /// Its fingerprint.
    pub fingerprint: OrgId,
    /// What people call it.
    pub name: String,
    /// What this node may do in it.
    pub role: Role,
}
