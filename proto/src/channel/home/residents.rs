//! What residents say, and what it proves.

use super::super::author::{check_resident, task};
use super::super::state::{Card, Turn, TurnPhase};
use super::{Cited, Context, Effect, Home, JournalAppend, RunProgress, Step};
use crate::crypto::sign::{AcceptedContent, FinishedContent};
use crate::entry::{Auth, Body, JournalMark, Round};
use crate::event::{Answer, Ask as EventAsk, Outcome, Status};
use crate::id::{Attempt, Hash, MessageId, NodeId};
use crate::link::{Asked, AttemptId, Message, Verdict};
use crate::route::Origin;
use crate::turn::SESSION_LEN_MAX;

/// Questions of one turn that can be open at once; a turn that asks more is broken.
pub const ASKS_OPEN_MAX: usize = 64;

/// Longest id of a question, in bytes: it stands in the head of the frame that brings the answer.
pub const ASK_ID_LEN_MAX: usize = 256;

/// Attempts asked about in one frame, so that its head stays far below what it may be.
pub const ASKED_MAX: usize = 64;

/// Tries at a turn that never begin before a person is asked: a resident that only gives its attempts back would
/// have the log grow for ever.
pub const TRIES_MAX: u32 = 16;

impl Home {
    pub(super) fn link_up(&mut self, step: &mut Step, context: &mut Context<'_>, node: NodeId, mark: JournalMark) {
        self.up.insert(node, mark);
        let mut attempts = Vec::new();
        for (run, turn) in self.state.turns.iter().filter(|(_, turn)| turn.node == node) {
            if let Some(progress) = self.runs.get_mut(run) {
                progress.asked_from = None;
            }
            if !turn.is_settled() {
                attempts.push(self.asked(*run, turn));
            }
        }
        for attempts in attempts.chunks(ASKED_MAX).map(<[Asked]>::to_vec) {
            step.effects.push(Effect::Send(node, Message::Reconcile { attempts }, Vec::new()));
        }
        let members = self.state.members.iter().filter(|(_, member)| member.spec.node == Some(node));
        // A process that was to end while its box was away is told so now.
        let ended = members.clone().filter(|(_, member)| member.killed || member.removed);
        let channel = self.state.id;
        step.effects
            .extend(ended.map(|(id, _)| Effect::Send(node, Message::Kill { channel, member: *id }, Vec::new())));
        for id in members.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.pump(step, context, id);
        }
    }

    pub(super) fn frame(
        &mut self,
        step: &mut Step,
        context: &mut Context<'_>,
        node: NodeId,
        message: Message,
        tail: Vec<u8>,
    ) {
        match message {
            Message::Accepted { id, mark, auth } if self.is_running(node, &id) => {
                if !self.is_signed_acceptance(node, id, mark, &auth) {
                    return;
                }
                // A repeated acceptance carries an older mark.
                if let Some(known) = self.up.get_mut(&node).filter(|known| known.count < mark.count) {
                    *known = mark;
                }
                let accepted = Body::AttemptAccepted { message: id.run, attempt: id.attempt, mark };
                if self.state.turns.get(&id.run).is_some_and(|turn| turn.phase == TurnPhase::Sent) {
                    let by = self.state.turns.get(&id.run).map(|turn| turn.member);
                    self.append(step, context, by, auth, accepted);
                }
                // A stop that was sent before the attempt was known there has met nothing to stop.
                if self.state.turns.get(&id.run).is_some_and(|turn| turn.stop) {
                    step.effects.push(Effect::Send(node, Message::Stop { id }, Vec::new()));
                }
            }
            Message::Refused { id, message, .. } if self.is_running(node, &id) => {
                let outcome =
                    Outcome { status: Status::Failed, text: String::new(), error: Some(message), usage: None };
                self.finish(step, context, id, outcome, None, Auth::Home);
            }
            Message::Events { id, first } if self.is_current(node, &id) => {
                self.events(step, context, id, first, tail);
            }
            Message::Finished { id, events, length, journal, session, auth } => {
                if !self.is_current(node, &id) {
                    self.forget(step, node, id, false);
                    return;
                }
                if !self.is_signed_end(node, id, (events, length, journal), session.as_deref(), &auth) {
                    return;
                }
                self.finished(step, context, id, (events, length, journal), session, auth);
            }
            Message::AnswerOk { id, ask } if self.is_running(node, &id) => {
                // The card stays until its turn ends, so that a late second answer is told who was first.
                self.delivered.extend(self.state.cards.iter().find_map(|(number, card)| match card {
                    Card::Ask { run, ask: open, answered: Some(_), .. } if *run == id.run && open.id == ask => {
                        Some(*number)
                    }
                    _ => None,
                }));
            }
            Message::Report { verdicts } => {
                for (id, verdict) in verdicts {
                    if self.is_current(node, &id) {
                        self.verdict(step, context, id, verdict);
                    } else {
                        self.forget(step, node, id, verdict == Verdict::Known);
                    }
                }
            }
            _ => {}
        }
    }

    /// What this node's own resident says needs no signature: it stands under the seal. All others sign.
    pub(super) fn is_signed_acceptance(&self, node: NodeId, id: AttemptId, mark: JournalMark, auth: &Auth) -> bool {
        let Some(turn) = self.state.turns.get(&id.run) else { return false };
        let JournalMark { incarnation, count, head } = mark;
        let content = AcceptedContent { task: task(id, turn), incarnation, count, head };
        check_resident(auth, node, self.me, |sig| content.verify(&node, sig)).is_ok()
    }

    fn is_signed_end(
        &self,
        node: NodeId,
        id: AttemptId,
        (events, length, journal): (u64, u64, Hash),
        session: Option<&str>,
        auth: &Auth,
    ) -> bool {
        let Some(turn) = self.state.turns.get(&id.run) else { return false };
        let content = FinishedContent { task: task(id, turn), events, length, journal, session };
        check_resident(auth, node, self.me, |sig| content.verify(&node, sig)).is_ok()
    }

    /// Whether news of this attempt may change anything: only the resident that runs it, only the current try.
    pub(super) fn is_current(&self, node: NodeId, id: &AttemptId) -> bool {
        let turn = self.state.turns.get(&id.run).filter(|_| id.channel == self.state.id);
        turn.is_some_and(|turn| turn.node == node && turn.attempt == id.attempt)
    }

    /// Whether the attempt is current and not settled. Of one that is, only the end is news: it proves what nobody knew.
    pub(super) fn is_running(&self, node: NodeId, id: &AttemptId) -> bool {
        self.is_current(node, id) && self.state.turns.get(&id.run).is_some_and(|turn| !turn.is_settled())
    }

    /// Tells a resident to forget an attempt: its end is in the log, or it is void. An attempt that this log does not
    /// know of yet is evidence that the log went back, and is kept.
    pub(super) fn forget(&self, step: &mut Step, node: NodeId, id: AttemptId, may_run: bool) {
        let ahead = self.state.turns.get(&id.run).is_some_and(|turn| turn.attempt < id.attempt);
        if id.channel != self.state.id || id.run > self.state.message || ahead {
            return;
        }
        if may_run {
            step.effects.push(Effect::Send(node, Message::Stop { id }, Vec::new()));
        }
        step.effects.push(Effect::Send(node, Message::FinishedAck { id }, Vec::new()));
    }

    fn asked(&self, run: MessageId, turn: &Turn) -> Asked {
        let have = self.runs.get(&run).map_or(0, |progress| progress.events);
        Asked { id: self.attempt_id(run, turn), have, seen: turn.seen, payload: Some(turn.payload) }
    }

    /// Asks for a run's events from where we stand, and for what became of it. Once for each place while the link is
    /// up: every frame behind a gap leads here, and each answer repeats all that follows it.
    pub(super) fn reconcile(&mut self, step: &mut Step, id: AttemptId) {
        let Some(turn) = self.state.turns.get(&id.run) else { return };
        let (node, attempts) = (turn.node, vec![self.asked(id.run, turn)]);
        if let Some(progress) = self.runs.get_mut(&id.run)
            && progress.asked_from.replace(progress.events) == Some(progress.events)
        {
            return;
        }
        step.effects.push(Effect::Send(node, Message::Reconcile { attempts }, Vec::new()));
    }

    pub(super) fn events(
        &mut self,
        step: &mut Step,
        context: &mut Context<'_>,
        id: AttemptId,
        first: u64,
        mut lines: Vec<u8>,
    ) {
        let Some(node) = self.state.turns.get(&id.run).map(|turn| turn.node) else { return };
        let progress = self.runs.entry(id.run).or_insert_with(|| RunProgress::new(id.attempt));
        let Some(known) = progress.events.checked_sub(first) else { return self.reconcile(step, id) };
        // A resident that was asked twice where to go on repeats itself; what is new may stand in the same frame.
        lines.drain(..lines_len(&lines, known));
        if lines.is_empty() {
            let upto = progress.synced;
            return step.effects.push(Effect::Send(node, Message::EventsAck { id, upto }, Vec::new()));
        }
        let (first, at) = (progress.events, progress.length);
        if progress.absorb(&lines).is_err() {
            return self.fail(step, context, id, "the resident sent something that is not an event");
        }
        progress.unsynced.push_back((progress.length, progress.events));
        let asks = std::mem::take(&mut progress.asks);
        let sync = !asks.is_empty();
        step.journals.push(JournalAppend { run: id.run, attempt: id.attempt, first, at, lines, sync });
        for ask in asks {
            self.raise(step, context, id, ask);
        }
    }

    /// Raises a card for a question, once.
    pub(super) fn raise(&mut self, step: &mut Step, context: &mut Context<'_>, id: AttemptId, ask: EventAsk) {
        let Some(turn) = self.state.turns.get(&id.run).filter(|turn| turn.attempt == id.attempt) else { return };
        if turn.is_settled() || turn.asked.contains(&ask.id) {
            return;
        }
        if ask.id.len() > ASK_ID_LEN_MAX {
            return self.fail(step, context, id, "the turn asks something that no answer could name");
        }
        let member = turn.member;
        let open = self
            .state
            .cards
            .values()
            .filter(|card| matches!(card, Card::Ask { run, answered: None, .. } if *run == id.run));
        if open.count() >= ASKS_OPEN_MAX {
            return self.fail(step, context, id, "the turn asks more at once than people can answer");
        }
        let card = self.state.message.next();
        let body = Body::CardRaised { message: card, run: id.run, attempt: id.attempt, ask };
        self.append(step, context, Some(member), Auth::Home, body);
    }

    /// A resident that breaks the rules is broken or hostile: its attempt fails, nothing else does.
    pub(super) fn fail(&mut self, step: &mut Step, context: &mut Context<'_>, id: AttemptId, what: &str) {
        let Some(node) = self.state.turns.get(&id.run).map(|turn| turn.node) else { return };
        let error = Some(what.to_owned());
        let outcome = Outcome { status: Status::Failed, text: String::new(), error, usage: None };
        step.effects.push(Effect::Send(node, Message::Stop { id }, Vec::new()));
        self.finish(step, context, id, outcome, None, Auth::Home);
    }

    /// The resident says how an attempt ended.
    pub(super) fn finished(
        &mut self,
        step: &mut Step,
        context: &mut Context<'_>,
        id: AttemptId,
        end: (u64, u64, Hash),
        session: Option<String>,
        auth: Auth,
    ) {
        let Some(node) = self.state.turns.get(&id.run).map(|turn| turn.node) else { return };
        if session.as_ref().is_some_and(|session| session.len() > SESSION_LEN_MAX) {
            return self.fail(step, context, id, "the resident names a session that no delivery could carry");
        }
        let progress = self.runs.entry(id.run).or_insert_with(|| RunProgress::new(id.attempt));
        if (progress.events, progress.length, progress.hash()) != end {
            if progress.events >= end.0 {
                return self.fail(step, context, id, "the events that the resident sent are not those that it signed");
            }
            // A gap. The resident says it is finished again after the rest.
            return self.reconcile(step, id);
        }
        match progress.outcome() {
            Some(outcome) => self.finish(step, context, id, outcome, session, auth),
            None => self.fail(step, context, id, "the resident does not say how the turn ended"),
        }
        step.effects.push(Effect::Send(node, Message::FinishedAck { id }, Vec::new()));
    }

    pub(super) fn journal_synced(&mut self, step: &mut Step, run: MessageId, attempt: Attempt, length: u64) {
        // Late news may be of an earlier attempt's journal.
        let Some(turn) = self.state.turns.get(&run).filter(|turn| turn.attempt == attempt) else { return };
        let id = self.attempt_id(run, turn);
        let node = turn.node;
        let Some(progress) = self.runs.get_mut(&run) else { return };
        let before = progress.synced;
        while let Some((end, events)) = progress.unsynced.front().copied() {
            if end > length {
                break;
            }
            progress.unsynced.pop_front();
            progress.synced = events;
        }
        if progress.synced > before {
            let message = Message::EventsAck { id, upto: progress.synced };
            step.effects.push(Effect::Send(node, message, Vec::new()));
        }
    }

    pub(super) fn verdict(&mut self, step: &mut Step, context: &mut Context<'_>, id: AttemptId, verdict: Verdict) {
        let Some(turn) = self.state.turns.get(&id.run) else { return };
        let (node, stop) = (turn.node, turn.stop);
        if turn.is_settled() {
            // Its resident knows after all how it ended, or will: that settles it better than a person can.
            if verdict == Verdict::Known {
                self.reconcile(step, id);
            }
            return;
        }
        let (accepted, tries) = (turn.phase == TurnPhase::Accepted, turn.tries);
        let began = self.runs.get(&id.run).is_some_and(|progress| progress.events > 0);
        let unproven = match verdict {
            Verdict::Known => {
                if stop {
                    step.effects.push(Effect::Send(node, Message::Stop { id }, Vec::new()));
                }
                return self.send_answers(step, node, Some(id.run));
            }
            Verdict::NeverStarted | Verdict::Absent { proven: true } if began => {
                Some("the resident says that the attempt never began, but events of it are here".to_owned())
            }
            Verdict::NeverStarted => None,
            // What was accepted and is gone was forgotten on somebody's word: that it never ran does not follow.
            Verdict::Absent { proven: true } if !accepted => None,
            Verdict::Absent { .. } => {
                Some("the resident has no trace of the attempt and cannot prove that it never ran".to_owned())
            }
            Verdict::Ambiguous { reason } => Some(reason),
        };
        // Its last event is here, though the resident has lost it: that is how it ended. Of another node's turn only that
        // node can say so, and it has lost what it would sign: a person decides.
        if node == self.me
            && let Some(outcome) = self.runs.get(&id.run).and_then(RunProgress::outcome)
        {
            self.finish(step, context, id, outcome, None, Auth::Home);
            return self.forget(step, node, id, false);
        }
        match unproven {
            // It was to stop, so nobody is asked whether it shall run again.
            error if stop => self.abandon(step, context, id, error),
            None if tries >= TRIES_MAX => {
                self.hold(step, context, id, format!("it never began in {tries} tries"));
            }
            None => self.retry(step, context, id.run),
            Some(reason) => self.hold(step, context, id, reason),
        }
    }

    pub(super) fn hold(&mut self, step: &mut Step, context: &mut Context<'_>, id: AttemptId, reason: String) {
        let card = self.state.message.next();
        let body = Body::TurnHeld { message: id.run, attempt: id.attempt, card, reason };
        self.append(step, context, None, Auth::Home, body);
    }

    /// Sends recorded answers that the resident has not confirmed.
    pub(super) fn send_answers(&self, step: &mut Step, node: NodeId, only: Option<MessageId>) {
        for (number, card) in &self.state.cards {
            let Card::Ask { run, attempt, ask, answered: Some((_, choice, text)) } = card else { continue };
            if only.is_some_and(|only| only != *run) || self.delivered.contains(number) {
                continue;
            }
            let id = AttemptId { channel: self.state.id, run: *run, attempt: *attempt };
            let answer = Answer { choice: choice.clone(), text: text.clone() };
            let digest = ask.action.as_ref().map(|action| Hash::of(action.as_bytes()));
            let message = Message::Answer { id, ask: ask.id.clone(), digest };
            let answer = serde_json::to_vec(&answer);
            debug_assert!(answer.is_ok(), "answers serialize: {answer:?}");
            step.effects.push(Effect::Send(node, message, answer.unwrap_or_default()));
        }
    }

    pub(super) fn finish(
        &mut self,
        step: &mut Step,
        context: &mut Context<'_>,
        id: AttemptId,
        outcome: Outcome,
        session: Option<String>,
        auth: Auth,
    ) {
        let Some(turn) = self.state.turns.get(&id.run).cloned() else { return };
        let progress = self.runs.remove(&id.run).unwrap_or_else(|| RunProgress::new(id.attempt));
        let Outcome { status, text, error, usage } = outcome;
        // A round that was closed without it waits for nothing: its answer goes where any other would.
        let open = |round: &Round| self.state.rounds.get(&round.root).is_some_and(|open| open.number == round.number);
        let round = turn.batch.iter().find_map(|queued| queued.round).filter(open);
        let mut triggers = Vec::new();
        for from in turn.batch.iter().filter_map(|queued| queued.from) {
            if !triggers.contains(&from) {
                triggers.push(from);
            }
        }
        let origin = Origin::Finished { status, triggers: &triggers, hops: turn.hops, round };
        // An answer is never refused for what it mentions: it has happened.
        let (routed, held) = match self.state.members.get(&turn.member) {
            Some(author) if !author.removed => self.route(Some(turn.member), origin, &text, id.run).unwrap_or_default(),
            // Who has left starts nobody.
            _ => Default::default(),
        };
        // The journal must be durable before the entry that names its hash.
        step.journals.push(JournalAppend {
            run: id.run,
            attempt: id.attempt,
            first: progress.events,
            at: progress.length,
            lines: Vec::new(),
            sync: true,
        });
        let body = Body::TurnFinished {
            message: id.run,
            attempt: id.attempt,
            status,
            text,
            error,
            usage,
            session,
            events: progress.events,
            length: progress.length,
            journal: progress.hash(),
            routed: routed.clone(),
        };
        let cited = Cited::of(Some(turn.member), &body);
        let seq = self.append(step, context, Some(turn.member), auth, body);
        self.remember(seq, cited);
        self.hold_and_pump(step, context, id.run, &routed, held);
        self.finish_rounds(step, context);
        self.pump(step, context, turn.member);
    }
}

/// Length of the first lines, as many as there are.
fn lines_len(bytes: &[u8], lines: u64) -> usize {
    let lines = usize::try_from(lines).unwrap_or(usize::MAX);
    bytes.split_inclusive(|byte| *byte == b'\n').take(lines).map(<[u8]>::len).sum()
}
