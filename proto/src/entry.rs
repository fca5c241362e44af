//! Entries: the lines of a channel's log and of an org's membership chain.
//!
//! These types are stored and sent: `Serialize` here is a promise to other machines and to last year's disk. Add
//! fields with `#[serde(default)]`; never change what a name means.

use serde::{Deserialize, Serialize};

use crate::event::{Ask, Status, Usage};
use crate::id::{
    Attempt, ChannelId, ChannelName, ClientId, DeviceId, Epoch, Handle, Hash, Incarnation, Lamport, MemberId,
    MessageId, NodeId, OrgId, Seq,
};

/// One record of a log.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Entry {
    /// Dense index in the log.
    pub seq: Seq,
    /// Home epoch it was written in.
    pub epoch: Epoch,
    /// The home's logical clock.
    pub lamport: Lamport,
    /// Hash of the line before, seals included; [`Hash::ZERO`] for the first.
    pub prev: Hash,
    /// Head of the membership chain it was judged by; [`Hash::ZERO`] in the chain itself.
    pub org: Hash,
    /// Wall clock of the home, Unix milliseconds. For display only; no fold reads it.
    pub ts: u64,
    /// Who it speaks for; `None` is the home itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<MemberId>,
    /// How its author is known.
    #[serde(default, skip_serializing_if = "Auth::is_home")]
    pub auth: Auth,
    /// What happened.
    pub body: Body,
}

/// What an entry is before the log's writer has given it its place in the hash chain.
#[derive(Clone, Debug, PartialEq)]
pub struct NewEntry {
    /// See [`Entry::seq`].
    pub seq: Seq,
    /// See [`Entry::epoch`].
    pub epoch: Epoch,
    /// See [`Entry::lamport`].
    pub lamport: Lamport,
    /// See [`Entry::org`].
    pub org: Hash,
    /// See [`Entry::ts`].
    pub ts: u64,
    /// See [`Entry::by`].
    pub by: Option<MemberId>,
    /// See [`Entry::auth`].
    pub auth: Auth,
    /// See [`Entry::body`].
    pub body: Body,
}

impl NewEntry {
    /// Puts the entry behind the line that hashes to `prev`.
    #[must_use]
    pub fn at(self, prev: Hash) -> Entry {
        let Self { seq, epoch, lamport, org, ts, by, auth, body } = self;
        Entry { seq, epoch, lamport, prev, org, ts, by, auth, body }
    }
}

/// How the author of an entry is known.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(tag = "how", rename_all = "kebab-case")]
pub enum Auth {
    /// By the home's own door (Unix socket, loopback page) or the home itself; stands under its seal.
    #[default]
    Home,
    /// By the signature of an enrolled device over the exact draft it sent.
    Device {
        /// The signer.
        device: DeviceId,
        /// The draft's exact bytes: JSON of [`Draft`].
        draft: String,
        /// Ed25519 over the domain tag and the draft, base64url.
        sig: String,
    },
    /// By the signature of the resident that hosts the author, over what the body says (see `crypto::sign`).
    Resident {
        /// The signer.
        node: NodeId,
        /// Ed25519, base64url.
        sig: String,
    },
}

impl Auth {
    const fn is_home(&self) -> bool {
        matches!(self, Self::Home)
    }
}

/// What a remote device signs to post: it names everything that the post must not be moved to.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Draft {
    /// The org.
    pub org: OrgId,
    /// The channel.
    pub channel: ChannelId,
    /// The agent it speaks for; absent for the person that the device belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<MemberId>,
    /// The signing device.
    pub device: DeviceId,
    /// The device's own id for it; the home refuses to place a second one.
    pub client: ClientId,
    /// Kept for the last head that the device knows of; zeros today, and read by nobody.
    pub seen: Hash,
    /// The turn that posts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<MessageId>,
    /// The post.
    pub post: Post,
}

/// A post, as its author wrote it.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Post {
    /// The text; stored byte for byte.
    pub text: String,
    /// The message it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<MessageId>,
    /// Files with it, stored in `blobs/` under their hashes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<Attachment>,
}

/// A file that goes with a post.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Attachment {
    /// File name, without folders.
    pub name: String,
    /// Length in bytes.
    pub size: u64,
    /// BLAKE3 of the content.
    pub hash: Hash,
}

/// What an entry records.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Body {
    // ---- channel logs ----
    /// First entry of a channel.
    ChannelCreated {
        /// Exact bytes of the [`ChannelDraft`] whose hash is the channel's id.
        draft: String,
    },
    /// A member joined. Its id is this entry's seq.
    MemberAdded {
        /// The member.
        member: MemberSpec,
        /// Id of the request, so that a repeated one makes no second member.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        client: Option<ClientId>,
    },
    /// Something about a member changed.
    MemberChanged {
        /// Which member.
        member: MemberId,
        /// What.
        change: MemberChange,
    },
    /// A member left; its queue is dropped.
    MemberRemoved {
        /// Which member.
        member: MemberId,
    },
    /// A message.
    Posted {
        /// Its number.
        message: MessageId,
        /// The poster's own id for it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        client: Option<ClientId>,
        /// The turn it was posted from, by an agent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        run: Option<MessageId>,
        /// What was posted.
        post: Post,
        /// Where it goes, resolved once.
        #[serde(default, skip_serializing_if = "Routed::is_empty")]
        routed: Routed,
    },
    /// A turn, or another attempt at one, is about to be handed to its resident.
    TurnStarted {
        /// The run message that the turn owns.
        message: MessageId,
        /// Whose turn.
        member: MemberId,
        /// Where.
        node: NodeId,
        /// Which try.
        attempt: Attempt,
        /// The messages it answers, in order.
        batch: Vec<MessageId>,
        /// Hash of the payload, stored in `blobs/`.
        payload: Hash,
        /// Highest hop count in the batch.
        hops: u32,
        /// Whether the payload carried the conventions.
        #[serde(default)]
        briefed: bool,
        /// How far the resident's journal was, as the home knew it: later, absence beyond it proves that this try
        /// never arrived.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seen: Option<JournalMark>,
    },
    /// The resident holds the attempt durably and is about to run it: *handed over*.
    AttemptAccepted {
        /// The run message.
        message: MessageId,
        /// Which try.
        attempt: Attempt,
        /// How far the resident's journal is, the acceptance included.
        mark: JournalMark,
    },
    /// The turn ended: *finished*.
    TurnFinished {
        /// The run message.
        message: MessageId,
        /// The try that ended it.
        attempt: Attempt,
        /// How.
        status: Status,
        /// The final text.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        text: String,
        /// Failed turns: why.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
        /// What it used.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        usage: Option<Usage>,
        /// How the harness resumes the session.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session: Option<String>,
        /// Events in the run's journal.
        events: u64,
        /// Length of the run's journal in bytes.
        length: u64,
        /// Hash of the run's journal.
        journal: Hash,
        /// Where the final text goes, resolved once.
        #[serde(default, skip_serializing_if = "Routed::is_empty")]
        routed: Routed,
    },
    /// Nobody can say how an attempt ended: *outcome unknown*. A person releases or drops it.
    TurnHeld {
        /// The run message.
        message: MessageId,
        /// The try.
        attempt: Attempt,
        /// The card that asks.
        card: MessageId,
        /// Why, in words.
        reason: String,
    },
    /// A held turn was decided.
    HoldReleased {
        /// The run message.
        message: MessageId,
        /// True: try again. False: drop it.
        retry: bool,
        /// The person accepted that the first attempt may have run.
        #[serde(default)]
        may_run_twice: bool,
    },
    /// A delivery went over the brake and waits for a person.
    DeliveryHeld {
        /// The message.
        message: MessageId,
        /// The recipient.
        member: MemberId,
        /// The card that asks.
        card: MessageId,
        /// Why, in words.
        reason: String,
    },
    /// A held delivery was decided.
    DeliveryReleased {
        /// The message.
        message: MessageId,
        /// The recipient.
        member: MemberId,
        /// True: deliver. False: drop it.
        deliver: bool,
    },
    /// A person asked for a turn to stop.
    StopRequested {
        /// The run message.
        message: MessageId,
    },
    /// A turn asks something.
    CardRaised {
        /// The card's own number.
        message: MessageId,
        /// The turn.
        run: MessageId,
        /// The attempt that asks.
        attempt: Attempt,
        /// What it asks.
        ask: Ask,
    },
    /// A card was answered; the first answer wins.
    CardAnswered {
        /// The card.
        card: MessageId,
        /// The labels chosen.
        choice: Vec<String>,
        /// Free text with it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        text: Option<String>,
    },
    /// A card is moot: its turn ended or moved on.
    CardClosed {
        /// The card.
        card: MessageId,
        /// Why, in words.
        reason: String,
    },
    /// A round of agents ended: all of them, or those that could in time.
    RoundClosed {
        /// The message that opened it.
        message: MessageId,
        /// Which round.
        number: u32,
        /// The run messages that answered, in the order of the mentions.
        results: Vec<MessageId>,
        /// Who gets the results.
        #[serde(default, skip_serializing_if = "Routed::is_empty")]
        routed: Routed,
    },
    /// The channel's settings changed.
    ConfigChanged {
        /// The whole new settings.
        config: ChannelConfig,
    },
    /// Nothing more can be posted.
    ChannelArchived {},

    // ---- the org's chain ----
    /// First entry of an org.
    OrgFounded {
        /// What people call it.
        name: String,
        /// The root key that founded it.
        root: DeviceId,
        /// Random, so that two orgs of one name differ.
        nonce: Hash,
    },
    /// A device was enrolled.
    DeviceEnrolled {
        /// Its certificate: JSON of `crypto::cert::Certificate`.
        certificate: String,
        /// What it may do.
        role: Role,
        /// What people call it.
        name: String,
    },
    /// A device's key is no longer good.
    DeviceRevoked {
        /// Which.
        device: DeviceId,
    },
    /// A device's role or name changed.
    DeviceChanged {
        /// Which.
        device: DeviceId,
        /// Its role from now on.
        role: Role,
        /// Its name from now on.
        name: String,
    },
    /// A channel's home, from an epoch on.
    ChannelHomed {
        /// The channel.
        channel: ChannelId,
        /// Its name, for people.
        name: ChannelName,
        /// Its home.
        home: NodeId,
        /// The home epoch that begins.
        epoch: Epoch,
        /// First seq of the epoch.
        start: Seq,
        /// Hash of the line before it.
        prev: Hash,
    },

    /// An entry of a newer version. The line is kept and forwarded as it is, and shown as "newer message".
    #[serde(other)]
    Unknown,
}

impl Body {
    /// The kind's name, as it is stored.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::ChannelCreated { .. } => "channel-created",
            Self::MemberAdded { .. } => "member-added",
            Self::MemberChanged { .. } => "member-changed",
            Self::MemberRemoved { .. } => "member-removed",
            Self::Posted { .. } => "posted",
            Self::TurnStarted { .. } => "turn-started",
            Self::AttemptAccepted { .. } => "attempt-accepted",
            Self::TurnFinished { .. } => "turn-finished",
            Self::TurnHeld { .. } => "turn-held",
            Self::HoldReleased { .. } => "hold-released",
            Self::DeliveryHeld { .. } => "delivery-held",
            Self::DeliveryReleased { .. } => "delivery-released",
            Self::StopRequested { .. } => "stop-requested",
            Self::CardRaised { .. } => "card-raised",
            Self::CardAnswered { .. } => "card-answered",
            Self::CardClosed { .. } => "card-closed",
            Self::RoundClosed { .. } => "round-closed",
            Self::ConfigChanged { .. } => "config-changed",
            Self::ChannelArchived {} => "channel-archived",
            Self::OrgFounded { .. } => "org-founded",
            Self::DeviceEnrolled { .. } => "device-enrolled",
            Self::DeviceRevoked { .. } => "device-revoked",
            Self::DeviceChanged { .. } => "device-changed",
            Self::ChannelHomed { .. } => "channel-homed",
            Self::Unknown => "newer-message",
        }
    }

    /// The visible message that the entry is, or is about: what `#N` names.
    #[must_use]
    pub const fn message(&self) -> Option<MessageId> {
        match self {
            Self::Posted { message, .. }
            | Self::TurnStarted { message, .. }
            | Self::AttemptAccepted { message, .. }
            | Self::TurnFinished { message, .. }
            | Self::StopRequested { message }
            | Self::CardRaised { message, .. }
            | Self::HoldReleased { message, .. } => Some(*message),
            Self::TurnHeld { card, .. }
            | Self::DeliveryHeld { card, .. }
            | Self::CardAnswered { card, .. }
            | Self::CardClosed { card, .. } => Some(*card),
            _ => None,
        }
    }
}

/// A place in a resident's attempt journal.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct JournalMark {
    /// The journal's life.
    pub incarnation: Incarnation,
    /// Records in it.
    pub count: u64,
    /// Head of its chain.
    pub head: Hash,
}

/// What a channel's id is the hash of.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct ChannelDraft {
    /// The org it belongs to.
    pub org: OrgId,
    /// Its first home.
    pub home: NodeId,
    /// Its name.
    pub name: ChannelName,
    /// Random, so that two channels of one name differ.
    pub nonce: Hash,
}

/// What may be done. Each role includes those before it.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Reads.
    Observer,
    /// Posts and answers.
    Member,
    /// Manages members and channels.
    Admin,
    /// Manages devices, roles and homes.
    Owner,
}

/// Kinds of member.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemberKind {
    /// A person.
    Human,
    /// A coding agent or any other program that answers.
    Agent,
    /// A sub-agent.
    Extension,
    /// The node itself.
    System,
    /// A bridge to another network.
    Bridge,
    /// A voice.
    Voice,
}

/// A member, as it was added.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct MemberSpec {
    /// Its kind.
    pub kind: MemberKind,
    /// Its handle.
    pub handle: Handle,
    /// Agents: the harness.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub harness: Option<Handle>,
    /// Agents: the node they live on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
    /// Agents: the folder they work in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Agents: the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Agents: what they may do unasked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
    /// Humans: the devices that speak for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<DeviceId>,
}

/// What an agent may do without asking. A resident caps it by its own ceiling.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Reads only; everything else is refused.
    ReadOnly,
    /// Asks before it changes anything.
    #[default]
    Ask,
    /// Changes files in its folder unasked; asks for the rest.
    Edit,
    /// Does everything unasked.
    Full,
}

impl Policy {
    /// Its word, as people type and read it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ReadOnly => "read-only",
            Self::Ask => "ask",
            Self::Edit => "edit",
            Self::Full => "full",
        }
    }
}

/// A change of a member.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
pub enum MemberChange {
    /// A new handle.
    Renamed {
        /// The handle from now on.
        handle: Handle,
    },
    /// New settings; the next turn uses them.
    Configured {
        /// The model from now on; `None` is the harness's default.
        model: Option<String>,
        /// The policy from now on.
        policy: Option<Policy>,
        /// The folder from now on.
        cwd: Option<String>,
    },
    /// Its queue is kept, nothing starts.
    Paused,
    /// The opposite of paused.
    Resumed,
    /// Its process was ended; its queue is kept.
    Killed,
    /// The opposite of killed.
    Revived,
    /// It starts over: the harness session is forgotten.
    SessionCleared,
}

/// A channel's settings.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct ChannelConfig {
    /// The agent that untagged messages go to when no agent has answered yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starting_agent: Option<MemberId>,
    /// Agent-to-agent hops after which deliveries are held; at most the hard bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_brake: Option<u32>,
}

/// Where a message goes: resolved once, when it is appended, and only recorded ever after.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Routed {
    /// The deliveries, in the order of the mentions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub to: Vec<Delivery>,
    /// Handles that were mentioned and that nobody has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<String>,
    /// This message opens or continues the round of that message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round: Option<Round>,
}

impl Routed {
    /// Whether nothing was resolved.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.to.is_empty() && self.unknown.is_empty() && self.round.is_none()
    }
}

/// One message for one recipient.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Delivery {
    /// The recipient.
    pub member: MemberId,
    /// Agent-to-agent hops since a person spoke.
    pub hops: u32,
    /// Why the recipient gets it.
    pub why: Why,
    /// It went over a brake: a `DeliveryHeld` follows.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub held: bool,
}

/// Why a delivery was made.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// It was mentioned.
    Mention,
    /// It is whom an untagged message goes to.
    Default,
    /// It triggered the turn whose answer this is.
    Reply,
    /// A round ended and its results go on.
    Round,
}

/// A round: agents that were asked together answer independently before their results go on.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Round {
    /// The message that opened it.
    pub root: MessageId,
    /// Which round, from 1.
    pub number: u32,
}
