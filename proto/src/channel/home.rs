//! The home: the one writer of a channel's log. Decides what is appended, handed out, held and answered.
//!
//! **Order.** Each [`Home::handle`] yields one [`Step`]. The shell writes its blobs, then its journals, then its
//! entries, syncs, and only then acts on its effects; steps of one channel take effect in the order they were made.
//! The state runs ahead of the disk. When a write fails the shell drops the `Home` and folds the log anew.

mod io;
mod ops;
mod progress;
mod residents;
mod rounds;
mod turns;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::fold::FoldError;
use super::state::State;
use crate::api::{ApiError, Code};
use crate::entry::{Auth, Body, ChannelDraft, JournalMark, MemberSpec, NewEntry};
use crate::event::Ask as EventAsk;
use crate::id::{ClientId, Epoch, Lamport, MemberId, MessageId, NodeId, Seq};
use crate::link::AttemptId;
use crate::time::Millis;

pub use io::{Ask, Cited, Context, Effect, History, Input, JournalAppend, Op, OpError, Step, Ticket};
pub use ops::{ANSWER_LEN_MAX, CWD_LEN_MAX, MODEL_LEN_MAX};
pub use progress::RunProgress;
pub use residents::{ASK_ID_LEN_MAX, ASKED_MAX, ASKS_OPEN_MAX, TRIES_MAX};
pub use rounds::ROUND_WAIT_MS;
pub use turns::{BATCH_LEN_MAX, FILES_MAX, REFERENCES_MAX};

/// Messages kept in memory so that a turn started in the same step as its post finds the text.
const RECENT_MAX: usize = 64;

/// Questions found after a crash that are raised with one step: each may be as long as an event.
const UNRAISED_AT_ONCE: usize = 16;

/// The home of one channel.
pub struct Home {
    me: NodeId,
    state: State,
    runs: BTreeMap<MessageId, RunProgress>,
    /// Residents that can be reached, and how far their journals were when their links came up.
    up: BTreeMap<NodeId, JournalMark>,
    recent: VecDeque<(Seq, MessageId, Cited)>,
    /// Posts under client ids whose entries are not known to be indexed yet.
    clients: BTreeMap<(String, ClientId), (MessageId, Seq)>,
    durable: Seq,
    /// Cards whose answer reached the harness. After a restart answers are sent again, and known there.
    delivered: BTreeSet<MessageId>,
    /// Since when rounds wait only for participants that cannot run.
    stuck: BTreeMap<MessageId, Millis>,
    /// Questions that are in a run's journal though the crash came before their cards: raised with the next steps.
    unraised: Vec<(AttemptId, EventAsk)>,
    /// An entry of ours that our own fold refused.
    fault: Option<FoldError>,
}

impl Home {
    /// The first entries of a new channel: itself and the person who made it.
    pub fn create(draft: &ChannelDraft, owner: MemberSpec, context: &mut Context<'_>) -> Result<(Self, Step), OpError> {
        let text = serde_json::to_string(draft).map_err(|error| internal(&error))?;
        let mut step = Step::default();
        let first = NewEntry {
            seq: Seq(1),
            epoch: Epoch(1),
            lamport: tick(context.lamport),
            org: context.org,
            ts: context.now.wall,
            by: None,
            auth: Auth::Home,
            body: Body::ChannelCreated { draft: text },
        };
        let state = State::begin(&first).map_err(|error| internal(&error))?;
        step.entries.push(first);
        let mut home = Self::new(state, draft.home, BTreeMap::new());
        home.append(&mut step, context, None, Auth::Home, Body::MemberAdded { member: owner, client: None });
        Ok((home, step))
    }

    /// Takes a folded log up again. `runs` are the journals of its open turns, as far as they are durable.
    #[must_use]
    pub fn new(state: State, me: NodeId, mut runs: BTreeMap<MessageId, RunProgress>) -> Self {
        let durable = state.seq;
        let mut unraised = Vec::new();
        runs.retain(|run, progress| {
            let Some(turn) = state.turns.get(run).filter(|turn| turn.attempt == progress.attempt) else { return false };
            let id = AttemptId { channel: state.id, run: *run, attempt: turn.attempt };
            unraised.extend(progress.asks.drain(..).map(|ask| (id, ask)));
            true
        });
        Self {
            me,
            state,
            runs,
            up: BTreeMap::new(),
            recent: VecDeque::new(),
            clients: BTreeMap::new(),
            durable,
            delivered: BTreeSet::new(),
            stuck: BTreeMap::new(),
            unraised,
            fault: None,
        }
    }

    /// Applies one input. Act on the step before the next one.
    pub fn handle(&mut self, input: Input, context: &mut Context<'_>) -> Step {
        let mut step = Step::default();
        if let Some(fault) = &self.fault {
            if let Input::Op { ticket, .. } = input {
                step.effects.push(Effect::Reply(ticket, Err(internal(fault))));
            }
            return step;
        }
        for (id, ask) in self.unraised.drain(..self.unraised.len().min(UNRAISED_AT_ONCE)).collect::<Vec<_>>() {
            self.raise(&mut step, context, id, ask);
        }
        match input {
            Input::Op { ticket, by, auth, op } => {
                let result = self.operate(&mut step, context, by, auth, op);
                step.effects.push(Effect::Reply(ticket, result));
                // The answer goes first: what the operation started comes after it.
                step.effects.rotate_right(1);
            }
            Input::LinkUp(node, mark) => self.link_up(&mut step, context, node, mark),
            Input::LinkDown(node) => {
                self.up.remove(&node);
            }
            Input::Frame { node, message, tail } => self.frame(&mut step, context, node, message, tail),
            Input::JournalSynced { run, attempt, length } => self.journal_synced(&mut step, run, attempt, length),
            Input::Durable(seq) => self.forget_recent(seq),
            Input::Timeout => {
                self.finish_rounds(&mut step, context);
                self.close_stuck_rounds(&mut step, context);
            }
        }
        if !step.entries.is_empty() {
            let cards = &self.state.cards;
            self.delivered.retain(|card| cards.contains_key(card));
        }
        self.watch_rounds(context.now.mono);
        let Some(fault) = &self.fault else { return step };
        // Nothing of it may reach the disk: what is there still folds, and this would not.
        let asked = step.effects.into_iter().filter_map(|effect| match effect {
            Effect::Reply(ticket, _) => Some(Effect::Reply(ticket, Err(internal(fault)))),
            Effect::Send(..) => None,
        });
        Step { effects: asked.collect(), ..Step::default() }
    }

    /// Why the home does nothing any more: a fault of ours, which must not become one of the log. The shell drops the
    /// `Home` and folds the log anew.
    #[must_use]
    pub const fn fault(&self) -> Option<&FoldError> {
        self.fault.as_ref()
    }

    /// When [`Input::Timeout`] is due next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Millis> {
        if self.has_finished_rounds() {
            return Some(Millis(0));
        }
        self.stuck.values().min().map(|since| *since + ROUND_WAIT_MS)
    }

    /// The fold, ahead of the disk by the steps not yet durable.
    #[must_use]
    pub const fn state(&self) -> &State {
        &self.state
    }

    /// Whether a resident can be reached.
    #[must_use]
    pub fn is_up(&self, node: &NodeId) -> bool {
        self.up.contains_key(node)
    }

    /// How far a run's journal is.
    #[must_use]
    pub fn run(&self, message: MessageId) -> Option<&RunProgress> {
        self.runs.get(&message)
    }

    fn append(
        &mut self,
        step: &mut Step,
        context: &mut Context<'_>,
        by: Option<MemberId>,
        auth: Auth,
        body: Body,
    ) -> Seq {
        // The node's clock is ahead of each of its channels, unless it was told wrong.
        *context.lamport = (*context.lamport).max(self.state.lamport);
        let entry = NewEntry {
            seq: self.state.seq.next(),
            epoch: self.state.epoch,
            lamport: tick(context.lamport),
            org: context.org,
            ts: context.now.wall,
            by,
            auth,
            body,
        };
        let seq = entry.seq;
        if let Err(error) = self.state.apply(&entry) {
            self.fault.get_or_insert(error);
        }
        step.entries.push(entry);
        seq
    }

    fn cited(&self, history: &dyn History, message: MessageId) -> Option<Cited> {
        let recent = self.recent.iter().rev().find(|(_, number, _)| *number == message);
        recent.map(|(_, _, cited)| cited.clone()).or_else(|| history.cited(message))
    }

    fn remember(&mut self, seq: Seq, cited: Option<(MessageId, Cited)>) {
        self.recent.extend(cited.map(|(message, cited)| (seq, message, cited)));
    }

    fn forget_recent(&mut self, durable: Seq) {
        self.durable = self.durable.max(durable);
        while self.recent.len() > RECENT_MAX && self.recent.front().is_some_and(|(seq, _, _)| *seq <= self.durable) {
            self.recent.pop_front();
        }
        if self.clients.len() > RECENT_MAX {
            self.clients.retain(|_, (_, seq)| *seq > durable);
        }
    }

    /// What it holds beside the fold is about what is open.
    #[cfg(test)]
    pub(super) fn check_lean(&self) {
        let Self { state, runs, delivered, stuck, unraised, recent, clients, .. } = self;
        assert!(runs.keys().all(|run| state.turns.contains_key(run)), "journals of turns that are over: {runs:?}");
        assert!(delivered.iter().all(|card| state.cards.contains_key(card)), "answers of old cards: {delivered:?}");
        assert!(stuck.keys().all(|root| state.rounds.contains_key(root)), "rounds that are over: {stuck:?}");
        assert!(unraised.is_empty(), "questions that nobody is asked: {unraised:?}");
        assert!(recent.len() <= RECENT_MAX && clients.len() <= RECENT_MAX + 1);
    }

    /// The node this home runs on.
    #[must_use]
    pub const fn me(&self) -> NodeId {
        self.me
    }
}

/// What a client id is unique under: the signing device, else the member.
#[must_use]
pub fn poster(by: Option<MemberId>, auth: &Auth) -> String {
    match (auth, by) {
        (Auth::Device { device, .. }, _) => device.to_string(),
        (_, Some(member)) => format!("m{member}"),
        (_, None) => "system".to_owned(),
    }
}

fn tick(lamport: &mut Lamport) -> Lamport {
    *lamport = lamport.next();
    *lamport
}

fn internal(error: &dyn std::fmt::Display) -> OpError {
    ApiError::new(Code::Internal, error.to_string())
}
