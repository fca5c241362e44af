//! The fold: what a channel's entries add up to.
//!
//! It never routes, never reads `ts`, and holds only what is open (queues, running turns, cards) plus the members, so
//! its size does not grow with the log. Old messages and client ids are looked up in the index.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::entry::{
    Body, ChannelConfig, ChannelDraft, Delivery, JournalMark, MemberChange, MemberKind, MemberSpec, NewEntry, Round,
    Routed, Why,
};
use crate::event::{Ask, Status};
use crate::id::{
    Attempt, COUNTER_MAX, ChannelId, ClientId, DeviceId, Epoch, Handle, Hash, Lamport, MemberId, MessageId, NodeId,
    OrgId, Seq,
};
use crate::log::{self, LAMPORT_JUMP_MAX};
use crate::route::RouteView;
use crate::route::brakes::is_ack;

/// Why an entry does not follow from the state.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FoldError {
    /// The seq is not the next one.
    #[error("entry {got} where {expected} belongs")]
    Seq {
        /// What should have come.
        expected: Seq,
        /// What came.
        got: Seq,
    },
    /// The lamport clock went back or jumped too far.
    #[error("entry {seq}: lamport {got} after {last}")]
    Lamport {
        /// Where.
        seq: Seq,
        /// The clock before.
        last: Lamport,
        /// The clock it carries.
        got: Lamport,
    },
    /// The message number is not the next one.
    #[error("entry {seq}: message {got} where {expected} belongs")]
    Message {
        /// Where.
        seq: Seq,
        /// What should have come.
        expected: MessageId,
        /// What came.
        got: MessageId,
    },
    /// The entry contradicts the state.
    #[error("entry {seq}: {what}")]
    Impossible {
        /// Where.
        seq: Seq,
        /// What is wrong.
        what: &'static str,
    },
}

/// A member and what waits for it.
#[derive(Clone, Debug)]
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
#[derive(Clone, Debug, Eq, PartialEq)]
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
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TurnPhase {
    /// Sent, or waiting to be sent, to its resident.
    Sent,
    /// Durable at its resident: handed over.
    Accepted,
    /// Outcome unknown; a person decides by this card.
    Held(MessageId),
}

/// An open turn.
#[derive(Clone, Debug)]
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
#[derive(Clone, Debug)]
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
#[derive(Clone, Debug)]
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
#[derive(Clone, Copy, Debug)]
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
#[derive(Clone, Debug)]
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
    /// Open rounds by the message that opened them.
    pub rounds: BTreeMap<MessageId, RoundState>,
    /// Author of the latest finished agent message.
    pub latest_agent: Option<MemberId>,
    handles: BTreeMap<Handle, MemberId>,
    /// Requests that added members.
    added: BTreeMap<ClientId, MemberId>,
    /// Deliveries named by the posts that a `DeliveryHeld` may follow.
    pending: BTreeMap<(MessageId, MemberId), Queued>,
    /// A newer version wrote here, so message numbers may have gaps for us.
    newer: bool,
}

impl State {
    /// Begins a fold with the first entry.
    ///
    /// # Errors
    /// When it is not a sound `ChannelCreated`.
    pub fn begin(first: &NewEntry) -> Result<Self, FoldError> {
        let impossible = |what| FoldError::Impossible { seq: first.seq, what };
        let Body::ChannelCreated { draft: text } = &first.body else {
            return Err(impossible("a channel begins with channel-created"));
        };
        if first.seq != Seq(1) {
            return Err(FoldError::Seq { expected: Seq(1), got: first.seq });
        }
        check_lamport(first, Lamport(0))?;
        let draft: ChannelDraft =
            serde_json::from_str(text).map_err(|_| impossible("the creation draft cannot be read"))?;
        Ok(Self {
            id: log::channel_id(text),
            draft,
            epoch: first.epoch,
            seq: first.seq,
            lamport: first.lamport,
            message: MessageId(0),
            archived: false,
            config: ChannelConfig::default(),
            members: BTreeMap::new(),
            turns: BTreeMap::new(),
            cards: BTreeMap::new(),
            rounds: BTreeMap::new(),
            latest_agent: None,
            handles: BTreeMap::new(),
            added: BTreeMap::new(),
            pending: BTreeMap::new(),
            newer: false,
        })
    }

    /// Adds one entry. After an error the state is of no use: it must be dropped.
    ///
    /// # Errors
    /// When the entry does not follow from the state: the log is broken there.
    pub fn apply(&mut self, entry: &NewEntry) -> Result<(), FoldError> {
        let seq = entry.seq;
        if seq != self.seq.next() || seq.0 > COUNTER_MAX {
            return Err(FoldError::Seq { expected: self.seq.next(), got: seq });
        }
        check_lamport(entry, self.lamport)?;
        if entry.epoch < self.epoch {
            return Err(FoldError::Impossible { seq, what: "its home epoch is over" });
        }
        self.apply_body(entry)?;
        self.seq = seq;
        self.lamport = entry.lamport;
        self.epoch = entry.epoch;
        Ok(())
    }

    fn apply_body(&mut self, entry: &NewEntry) -> Result<(), FoldError> {
        let seq = entry.seq;
        let impossible = |what| FoldError::Impossible { seq, what };
        match &entry.body {
            Body::MemberAdded { member, client } => {
                let id = MemberId(seq.0);
                if self.handles.insert(member.handle.clone(), id).is_some() {
                    return Err(impossible("the handle is taken"));
                }
                if let Some(client) = client {
                    self.added.insert(client.clone(), id);
                }
                self.members.insert(
                    id,
                    Member {
                        spec: member.clone(),
                        removed: false,
                        paused: false,
                        killed: false,
                        session: None,
                        queue: VecDeque::new(),
                        turn: None,
                        briefed: false,
                        hops: 0,
                    },
                );
            }
            Body::MemberChanged { member, change } => self.change_member(seq, *member, change)?,
            Body::MemberRemoved { member } => self.remove_member(seq, *member)?,
            Body::Posted { message, routed, .. } => {
                self.take_message(seq, *message)?;
                self.take_routed(entry, *message, entry.by, routed, &[])?;
            }
            Body::TurnStarted { message, member, node, attempt, batch, payload, hops, briefed, seen } => {
                self.start_turn(seq, *message, *member, *node, *attempt, batch, *payload, *hops, *briefed, *seen)?;
            }
            Body::AttemptAccepted { message, attempt, .. } => {
                let turn = self.turn_mut(seq, *message, *attempt)?;
                if turn.phase != TurnPhase::Sent || turn.released {
                    return Err(impossible("the attempt does not wait to be accepted"));
                }
                turn.phase = TurnPhase::Accepted;
            }
            Body::TurnFinished { message, attempt, status, text, session, routed, .. } => {
                self.turn_mut(seq, *message, *attempt)?;
                let turn = self.turns.remove(message).ok_or(impossible("no such turn"))?;
                if let TurnPhase::Held(card) = turn.phase {
                    self.cards.remove(&card);
                }
                let completed = *status == Status::Completed && !text.is_empty();
                self.end_turn(*message, &turn, *status);
                if let Some(member) = self.members.get_mut(&turn.member) {
                    if let Some(session) = session {
                        member.session = Some(session.clone());
                    }
                    if completed && !is_ack(text) && !member.removed {
                        self.latest_agent = Some(turn.member);
                    }
                }
                self.take_routed(entry, *message, Some(turn.member), routed, &[])?;
            }
            Body::TurnHeld { message, attempt, card, reason } => {
                self.take_message(seq, *card)?;
                let turn = self.turn_mut(seq, *message, *attempt)?;
                if turn.is_settled() {
                    return Err(impossible("the turn is held already"));
                }
                turn.phase = TurnPhase::Held(*card);
                self.close_asks(*message);
                self.cards.insert(*card, Card::HeldTurn { run: *message, reason: reason.clone() });
            }
            Body::HoldReleased { message, retry, .. } => {
                let turn = self.turns.get_mut(message).ok_or(impossible("no such turn"))?;
                let TurnPhase::Held(card) = turn.phase else { return Err(impossible("the turn is not held")) };
                turn.phase = TurnPhase::Sent;
                // Whoever lets it run again does not want it stopped any more.
                (turn.released, turn.again, turn.stop) = (true, true, false);
                self.cards.remove(&card);
                if !retry && let Some(turn) = self.turns.remove(message) {
                    self.end_turn(*message, &turn, Status::Interrupted);
                }
            }
            Body::DeliveryHeld { message, member, card, reason } => {
                self.take_message(seq, *card)?;
                let queued = self.pending.remove(&(*message, *member)).ok_or(impossible("no such delivery"))?;
                let reason = reason.clone();
                self.cards.insert(*card, Card::HeldDelivery { message: *message, member: *member, queued, reason });
            }
            Body::DeliveryReleased { message, member, deliver } => {
                self.release_delivery(seq, *message, *member, *deliver)?;
            }
            Body::StopRequested { message } => {
                self.turns.get_mut(message).ok_or(impossible("no such turn"))?.stop = true;
            }
            Body::CardRaised { message, run, attempt, ask } => {
                self.take_message(seq, *message)?;
                if !self.turn_mut(seq, *run, *attempt)?.asked.insert(ask.id.clone()) {
                    return Err(impossible("the question was raised already"));
                }
                let card = Card::Ask { run: *run, attempt: *attempt, ask: ask.clone(), answered: None };
                self.cards.insert(*message, card);
            }
            Body::CardAnswered { card, choice, text } => match self.cards.get_mut(card) {
                Some(Card::Ask { answered: answered @ None, .. }) => {
                    *answered = Some((entry.by, choice.clone(), text.clone()));
                }
                _ => return Err(impossible("the card is not open")),
            },
            Body::CardClosed { card, .. } => {
                self.cards.remove(card).ok_or(impossible("no such card"))?;
            }
            Body::RoundClosed { message, number, results, routed } => {
                let round = self.rounds.remove(message).ok_or(impossible("no such round"))?;
                if round.number != *number {
                    return Err(impossible("not the open round"));
                }
                self.take_routed(entry, *message, round.opener, routed, results)?;
            }
            Body::ConfigChanged { config } => self.config = config.clone(),
            Body::ChannelArchived {} => self.archived = true,
            Body::Unknown => self.newer = true,
            Body::ChannelCreated { .. } => return Err(impossible("a channel is created once")),
            Body::OrgFounded { .. }
            | Body::DeviceEnrolled { .. }
            | Body::DeviceRevoked { .. }
            | Body::DeviceChanged { .. }
            | Body::ChannelHomed { .. } => return Err(impossible("it belongs in the org's chain")),
        }
        // What an entry routes and a brake holds follows it in the same batch, before anything else of substance.
        if !matches!(entry.body, Body::DeliveryHeld { .. }) {
            self.pending.retain(|_, queued| queued.seq == seq);
        }
        Ok(())
    }

    fn remove_member(&mut self, seq: Seq, id: MemberId) -> Result<(), FoldError> {
        let member = self.live_mut(seq, id)?;
        member.removed = true;
        member.queue.clear();
        let (handle, turn) = (member.spec.handle.clone(), member.turn);
        self.handles.remove(&handle);
        self.cards.retain(|_, card| !matches!(card, Card::HeldDelivery { member, .. } if *member == id));
        // Rounds wait only for answers that can still come: of the turn it runs, if it runs one.
        let answers = |round: &Round| {
            let turn = turn.and_then(|run| self.turns.get(&run));
            turn.is_some_and(|turn| turn.batch.iter().any(|queued| queued.round.as_ref() == Some(round)))
        };
        for (root, round) in &mut self.rounds {
            if !answers(&Round { root: *root, number: round.number }) {
                round.waiting.remove(&id);
            }
        }
        Ok(())
    }

    fn release_delivery(&mut self, seq: Seq, message: MessageId, id: MemberId, deliver: bool) -> Result<(), FoldError> {
        let card = self.cards.iter().find_map(|(number, card)| match card {
            Card::HeldDelivery { message: of, member, .. } if *of == message && *member == id => Some(*number),
            _ => None,
        });
        let card = card.and_then(|number| self.cards.remove(&number));
        let Some(Card::HeldDelivery { mut queued, .. }) = card else {
            return Err(FoldError::Impossible { seq, what: "no such held delivery" });
        };
        if !deliver {
            return Ok(());
        }
        // It joins its round while that is open, and is an ordinary delivery after it.
        let round = queued
            .round
            .and_then(|Round { root, number }| self.rounds.get_mut(&root).filter(|round| round.number == number));
        match round {
            Some(round) => {
                round.order.push(id);
                round.waiting.insert(id);
            }
            None => queued.round = None,
        }
        queued.seq = seq;
        self.live_mut(seq, id)?.queue.push_back(queued);
        Ok(())
    }

    fn live_mut(&mut self, seq: Seq, id: MemberId) -> Result<&mut Member, FoldError> {
        let member = self.members.get_mut(&id).filter(|member| !member.removed);
        member.ok_or(FoldError::Impossible { seq, what: "no such member" })
    }

    fn change_member(&mut self, seq: Seq, id: MemberId, change: &MemberChange) -> Result<(), FoldError> {
        let impossible = |what| FoldError::Impossible { seq, what };
        let taken = matches!(change, MemberChange::Renamed { handle } if self.handles.contains_key(handle));
        let member = self.members.get_mut(&id).filter(|member| !member.removed).ok_or(impossible("no such member"))?;
        match change {
            MemberChange::Renamed { handle } => {
                if taken {
                    return Err(impossible("the handle is taken"));
                }
                self.handles.remove(&member.spec.handle);
                self.handles.insert(handle.clone(), id);
                member.spec.handle = handle.clone();
            }
            MemberChange::Configured { model, policy, cwd } => {
                member.spec.model.clone_from(model);
                member.spec.policy = *policy;
                member.spec.cwd.clone_from(cwd);
            }
            MemberChange::Paused => member.paused = true,
            MemberChange::Resumed => member.paused = false,
            MemberChange::Killed => member.killed = true,
            MemberChange::Revived => member.killed = false,
            MemberChange::SessionCleared => member.session = None,
        }
        Ok(())
    }

    /// Numbers are dense as long as every writer was of our version or an older one.
    fn take_message(&mut self, seq: Seq, message: MessageId) -> Result<(), FoldError> {
        let expected = self.message.next();
        let fits = if self.newer { message >= expected } else { message == expected };
        if !fits || message.0 > COUNTER_MAX {
            return Err(FoldError::Message { seq, expected, got: message });
        }
        self.message = message;
        Ok(())
    }

    /// Queues recorded deliveries and opens the recorded round.
    fn take_routed(
        &mut self,
        entry: &NewEntry,
        message: MessageId,
        from: Option<MemberId>,
        routed: &Routed,
        results: &[MessageId],
    ) -> Result<(), FoldError> {
        let (seq, ts) = (entry.seq, entry.ts);
        let mut order = Vec::new();
        for Delivery { member: id, hops, why, held } in &routed.to {
            let member = self.members.get_mut(id).ok_or(FoldError::Impossible { seq, what: "no such recipient" })?;
            if member.spec.kind != MemberKind::Agent || member.removed {
                continue;
            }
            let results = results.to_vec();
            let queued = Queued { message, hops: *hops, why: *why, round: routed.round, results, from, seq, ts };
            if *held {
                self.pending.insert((message, *id), queued);
                continue;
            }
            member.queue.push_back(queued);
            order.push(*id);
        }
        // A result names the round it belongs to; only the message that a round hangs on opens it, and only for
        // somebody: what a brake holds may join it later.
        if let Some(Round { root, number }) = routed.round.filter(|round| round.root == message && !order.is_empty()) {
            let waiting = order.iter().copied().collect();
            self.rounds.insert(root, RoundState { number, order, waiting, opener: from, results: Vec::new() });
        }
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one entry")]
    fn start_turn(
        &mut self,
        seq: Seq,
        message: MessageId,
        id: MemberId,
        node: NodeId,
        attempt: Attempt,
        batch: &[MessageId],
        payload: Hash,
        hops: u32,
        briefed: bool,
        seen: Option<JournalMark>,
    ) -> Result<(), FoldError> {
        let impossible = |what| FoldError::Impossible { seq, what };
        if attempt > Attempt(1) {
            let turn = self.turns.get_mut(&message).ok_or(impossible("no such turn"))?;
            if attempt != turn.attempt.next() || payload != turn.payload || turn.member != id {
                return Err(impossible("not the next attempt of that turn"));
            }
            if let TurnPhase::Held(_) = turn.phase {
                return Err(impossible("the turn waits for a person"));
            }
            turn.attempt = attempt;
            turn.node = node;
            turn.phase = TurnPhase::Sent;
            turn.seen = seen;
            turn.released = false;
            turn.asked.clear();
            self.close_asks(message);
            return Ok(());
        }
        if attempt != Attempt(1) {
            return Err(impossible("attempts begin at 1"));
        }
        self.take_message(seq, message)?;
        let member = self.live_mut(seq, id)?;
        if member.turn.is_some() {
            return Err(impossible("the member owns a turn already"));
        }
        let mut taken = Vec::with_capacity(batch.len());
        for expected in batch {
            match member.queue.pop_front() {
                Some(queued) if queued.message == *expected => taken.push(queued),
                _ => return Err(impossible("the batch is not the head of the queue")),
            }
        }
        member.turn = Some(message);
        member.briefed |= briefed;
        member.hops = hops;
        let turn = Turn {
            member: id,
            node,
            attempt,
            batch: taken,
            payload,
            hops,
            phase: TurnPhase::Sent,
            stop: false,
            seen,
            released: false,
            again: false,
            asked: BTreeSet::new(),
        };
        self.turns.insert(message, turn);
        Ok(())
    }

    fn end_turn(&mut self, message: MessageId, turn: &Turn, status: Status) {
        if let Some(member) = self.members.get_mut(&turn.member) {
            member.turn = None;
        }
        self.close_asks(message);
        for queued in &turn.batch {
            if let Some(Round { root, number }) = queued.round
                && let Some(round) = self.rounds.get_mut(&root)
                && round.number == number
                && round.waiting.remove(&turn.member)
            {
                round.results.push(RoundAnswer { run: message, member: turn.member, status, hops: turn.hops });
            }
        }
    }

    fn close_asks(&mut self, message: MessageId) {
        self.cards.retain(|_, card| !matches!(card, Card::Ask { run, .. } if *run == message));
    }

    fn turn_mut(&mut self, seq: Seq, message: MessageId, attempt: Attempt) -> Result<&mut Turn, FoldError> {
        match self.turns.get_mut(&message) {
            Some(turn) if turn.attempt == attempt => Ok(turn),
            Some(_) => Err(FoldError::Impossible { seq, what: "not the current attempt" }),
            None => Err(FoldError::Impossible { seq, what: "no such turn" }),
        }
    }

    /// The live member with a handle.
    #[must_use]
    pub fn by_handle(&self, handle: &str) -> Option<(MemberId, &Member)> {
        let id = *self.handles.iter().find(|(known, _)| known.as_str() == handle)?.1;
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

fn check_lamport(entry: &NewEntry, last: Lamport) -> Result<(), FoldError> {
    let got = entry.lamport;
    let ahead = got.0.checked_sub(last.0);
    if ahead.is_some_and(|n| (1..=LAMPORT_JUMP_MAX).contains(&n)) && got.0 <= COUNTER_MAX {
        return Ok(());
    }
    Err(FoldError::Lamport { seq: entry.seq, last, got })
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
