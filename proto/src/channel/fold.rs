//! The fold: from entries to a state. Pure: it never routes, and never reads `ts` but to show it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::state::{Card, Member, Queued, RoundAnswer, RoundState, State, Turn, TurnPhase};
use crate::entry::{
    Body, ChannelConfig, ChannelDraft, Delivery, JournalMark, MemberChange, MemberKind, NewEntry, Round, Routed,
};
use crate::event::Status;
use crate::id::{Attempt, COUNTER_MAX, Handle, Hash, Lamport, MemberId, MessageId, NodeId, RESERVED_HANDLES, Seq};
use crate::log::{self, LAMPORT_JUMP_MAX};
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

/// Decided cards that are remembered: as many as anybody has on a screen.
const DECIDED_MAX: usize = 64;

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
            decided: VecDeque::new(),
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
                if is_reserved(&member.handle) {
                    return Err(impossible("the handle is reserved"));
                }
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
                turn.tries = 0;
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
                if is_reserved(handle) {
                    return Err(impossible("the handle is reserved"));
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
            turn.tries = turn.tries.saturating_add(1);
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
            tries: 1,
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
        for (number, card) in &self.cards {
            if let Card::Ask { run, answered: Some((by, choice, _)), .. } = card
                && *run == message
            {
                self.decided.push_back((*number, *by, choice.clone()));
            }
        }
        while self.decided.len() > DECIDED_MAX {
            self.decided.pop_front();
        }
        self.cards.retain(|_, card| !matches!(card, Card::Ask { run, .. } if *run == message));
    }

    fn turn_mut(&mut self, seq: Seq, message: MessageId, attempt: Attempt) -> Result<&mut Turn, FoldError> {
        match self.turns.get_mut(&message) {
            Some(turn) if turn.attempt == attempt => Ok(turn),
            Some(_) => Err(FoldError::Impossible { seq, what: "not the current attempt" }),
            None => Err(FoldError::Impossible { seq, what: "no such turn" }),
        }
    }
}

/// Whether a handle is read as somebody else: as the home itself, or as everybody.
fn is_reserved(handle: &Handle) -> bool {
    RESERVED_HANDLES.contains(&handle.as_str())
}

fn check_lamport(entry: &NewEntry, last: Lamport) -> Result<(), FoldError> {
    let got = entry.lamport;
    let ahead = got.0.checked_sub(last.0);
    if ahead.is_some_and(|n| (1..=LAMPORT_JUMP_MAX).contains(&n)) && got.0 <= COUNTER_MAX {
        return Ok(());
    }
    Err(FoldError::Lamport { seq: entry.seq, last, got })
}
