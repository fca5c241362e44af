//! The fold: what a channel's entries add up to.
//!
//! It never routes, never reads `ts`, and holds only what is open (queues, running turns, cards) plus the members, so
//! its size does not grow with the log. Old messages and client ids are looked up in the index.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use crate::entry::{ChannelConfig, ChannelDraft, JournalMark, MemberKind, MemberSpec, Round, Why};
use crate::event::{Ask, Status};
use crate::id::{
    Attempt, ChannelId, ClientId, DeviceId, Epoch, Handle, Hash, Lamport, MemberId, MessageId, NodeId, OrgId, Seq,
};
use crate::route::RouteView;

/// A member and what waits for it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Member {
    /// As added and changed since.
    pub spec: MemberSpec,
    /// It left; its id and handle stay readable in old messages.
    pub removed: bool,
    /// Nothing starts until it is resumed.
    pub paused: bool,
    /// Its process was ended; nothing starts until it is revived.
    pub killed: bool,
    /// How its harness resumes.
    pub session: Option<String>,
    /// What waits for it, first in, first out.
    pub queue: VecDeque<Queued>,
    /// The turn it owns: running or held.
    pub turn: Option<MessageId>,
    /// It was given the conventions.
    pub briefed: bool,
    /// Hops of its latest turn: what it posts, in that turn or after it, counts on from there.
    pub hops: u32,
}

impl Member {
    /// Whether the member is an agent that can be given turns now, its resident's reach apart.
    #[must_use]
    pub const fn ready(&self) -> bool {
        self.may_start() && self.turn.is_none()
    }

    /// Whether people let anything of it start.
    #[must_use]
    pub const fn may_start(&self) -> bool {
        !self.removed && !self.paused && !self.killed
    }
}

/// One message that waits for a member.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Queued {
    /// The message.
    pub message: MessageId,
    /// Agent-to-agent hops since a person spoke.
    pub hops: u32,
    /// Why it is delivered.
    pub why: Why,
    /// The round it belongs to.
    pub round: Option<Round>,
    /// Results of the round before, to be shown with it.
    pub results: Vec<MessageId>,
    /// Who wrote it; `None` is the home.
    pub from: Option<MemberId>,
    /// Seq of the entry that queued it.
    pub seq: Seq,
    /// When that was, Unix milliseconds. Only ever shown.
    pub ts: u64,
}

/// How far an open turn is.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum TurnPhase {
    /// Sent, or waiting to be sent, to its resident.
    Sent,
    /// Durable at its resident: handed over.
    Accepted,
    /// Outcome unknown; a person decides by this card.
    Held(MessageId),
}

/// An open turn.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Turn {
    /// Whose.
    pub member: MemberId,
    /// Where.
    pub node: NodeId,
    /// The current try.
    pub attempt: Attempt,
    /// What it answers.
    pub batch: Vec<Queued>,
    /// Hash of its payload.
    pub payload: Hash,
    /// Highest hop count of the batch.
    pub hops: u32,
    /// How far it is.
    pub phase: TurnPhase,
    /// A person asked for it to stop.
    pub stop: bool,
    /// The resident's journal when this try was sent.
    pub seen: Option<JournalMark>,
    /// A person released its hold: the next try starts as soon as its resident can be reached and the member may start.
    pub released: bool,
    /// An earlier try may have left its prompt in the harness's history.
    pub again: bool,
    /// Tries since a person last had a say.
    pub tries: u32,
    /// Questions of this try that were raised as cards, open or not: each is raised once.
    pub asked: BTreeSet<String>,
}

impl Turn {
    /// Whether nothing of it runs as far as the home knows: it waits for a person, or for its next try.
    #[must_use]
    pub const fn is_settled(&self) -> bool {
        self.released || matches!(self.phase, TurnPhase::Held(_))
    }
}

/// An open card.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub enum Card {
    /// A turn asks.
    Ask {
        /// The turn.
        run: MessageId,
        /// The attempt that asks.
        attempt: Attempt,
        /// What.
        ask: Ask,
        /// Answered, and the answer is on its way: by whom and what.
        answered: Option<(Option<MemberId>, Vec<String>, Option<String>)>,
    },
    /// A turn whose outcome nobody knows.
    HeldTurn {
        /// The turn.
        run: MessageId,
        /// Why.
        reason: String,
    },
    /// A delivery over the brake.
    HeldDelivery {
        /// The message.
        message: MessageId,
        /// The recipient.
        member: MemberId,
        /// Hops, as recorded.
        queued: Queued,
        /// Why.
        reason: String,
    },
}

/// A round that waits for some of its agents.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct RoundState {
    /// Which round.
    pub number: u32,
    /// Who was asked, in the order of the mentions.
    pub order: Vec<MemberId>,
    /// Whose answers are missing.
    pub waiting: BTreeSet<MemberId>,
    /// Who wrote the message that opened it.
    pub opener: Option<MemberId>,
    /// Answers so far.
    pub results: Vec<RoundAnswer>,
}

/// One answer of a round.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct RoundAnswer {
    /// The run message.
    pub run: MessageId,
    /// Who answered.
    pub member: MemberId,
    /// How its turn ended.
    pub status: Status,
    /// Hops of its batch.
    pub hops: u32,
}

/// What a channel's entries add up to.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct State {
    /// The channel.
    pub id: ChannelId,
    /// What its id is the hash of.
    pub draft: ChannelDraft,
    /// Its home epoch.
    pub epoch: Epoch,
    /// Last entry.
    pub seq: Seq,
    /// Last lamport.
    pub lamport: Lamport,
    /// Last message number.
    pub message: MessageId,
    /// Nothing more is accepted.
    pub archived: bool,
    /// Settings.
    pub config: ChannelConfig,
    /// Members ever, by id.
    pub members: BTreeMap<MemberId, Member>,
    /// Open turns by run message.
    pub turns: BTreeMap<MessageId, Turn>,
    /// Open cards by number.
    pub cards: BTreeMap<MessageId, Card>,
    /// The cards answered last whose turns are over, with who answered and what: a late answer is told so.
    pub decided: VecDeque<(MessageId, Option<MemberId>, Vec<String>)>,
    /// Open rounds by the message that opened them.
    pub rounds: BTreeMap<MessageId, RoundState>,
    /// Author of the latest finished agent message.
    pub latest_agent: Option<MemberId>,
    pub(super) handles: BTreeMap<Handle, MemberId>,
    /// Requests that added members.
    pub(super) added: BTreeMap<ClientId, MemberId>,
    /// Deliveries named by the posts that a `DeliveryHeld` may follow.
    #[serde(with = "super::snapshot::pairs")]
    pub(super) pending: BTreeMap<(MessageId, MemberId), Queued>,
    /// A newer version wrote here, so message numbers may have gaps for us.
    pub(super) newer: bool,
}

impl State {
    /// The live member with a handle.
    #[must_use]
    pub fn by_handle(&self, handle: &str) -> Option<(MemberId, &Member)> {
        let id = *self.handles.get(handle)?;
        Some((id, self.members.get(&id)?))
    }

    /// The human member that a device speaks for.
    #[must_use]
    pub fn by_device(&self, device: &DeviceId) -> Option<MemberId> {
        let mut members = self.members.iter();
        members.find(|(_, member)| !member.removed && member.spec.devices.contains(device)).map(|(id, _)| *id)
    }

    /// The member that an earlier request added.
    #[must_use]
    pub fn added_by(&self, client: &ClientId) -> Option<MemberId> {
        self.added.get(client).copied()
    }

    /// A member's handle, also when it left; `system` for the home itself.
    #[must_use]
    pub fn handle(&self, id: Option<MemberId>) -> &str {
        id.and_then(|id| self.members.get(&id)).map_or("system", |member| member.spec.handle.as_str())
    }

    /// The org that the channel names.
    #[must_use]
    pub const fn org(&self) -> OrgId {
        self.draft.org
    }
}

impl RouteView for State {
    fn member_by_handle(&self, handle: &str) -> Option<(MemberId, MemberKind)> {
        self.by_handle(handle).map(|(id, member)| (id, member.spec.kind))
    }

    fn member_kind(&self, member: MemberId) -> Option<MemberKind> {
        self.members.get(&member).filter(|member| !member.removed).map(|member| member.spec.kind)
    }

    fn latest_agent(&self) -> Option<MemberId> {
        self.latest_agent
    }

    fn starting_agent(&self) -> Option<MemberId> {
        self.config.starting_agent
    }

    fn only_agent(&self) -> Option<MemberId> {
        let mut agents = self
            .members
            .iter()
            .filter(|(_, member)| !member.removed && member.spec.kind == MemberKind::Agent)
            .map(|(id, _)| *id);
        agents.next().filter(|_| agents.next().is_none())
    }

    fn turn_brake(&self) -> Option<u32> {
        self.config.turn_brake
    }
}
