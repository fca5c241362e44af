//! The home: the one writer of a channel's log. Decides what is appended, handed out, held and answered.
//!
//! **Order.** Each [`Home::handle`] yields one [`Step`]. The shell writes its blobs, then its journals, then its
//! entries, syncs, and only then acts on its effects; steps of one channel take effect in the order they were made.
//! The state runs ahead of the disk. When a write fails the shell drops the `Home` and folds the log anew.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rand_core::Rng;

use super::state::{Card, Queued, State, Turn, TurnPhase};
use super::{ATTACHMENT_LEN_MAX, ATTACHMENTS_MAX, MEMBERS_MAX, POST_LEN_MAX, QUEUE_LEN_MAX};
use crate::api::{ApiError, Code};
use crate::crypto::sign::{AcceptedContent, FinishedContent};
use crate::entry::{
    Attachment, Auth, Body, ChannelDraft, JournalMark, MemberChange, MemberKind, MemberSpec, NewEntry, Policy, Post,
    Round, Routed,
};
use crate::event::{Answer, Ask as EventAsk, AskKind, EVENT_LEN_MAX, Event, Outcome, Status};
use crate::id::{Attempt, ClientId, Epoch, Handle, Hash, Lamport, MemberId, MessageId, NodeId, Seq};
use crate::link::{Asked, AttemptId, Message, Verdict};
use crate::payload::{self, PayloadInput, PayloadMessage, PayloadReference};
use crate::route::{self, Decision, Held, Origin, RoundNext, RoundResult, RouteError, RouteInput};
use crate::time::{Millis, Now};
use crate::wire::json;

/// Messages that one turn answers at most; the rest of the queue waits for the next turn.
pub const BATCH_LEN_MAX: usize = 64;

/// Messages that a payload cites at most, over its whole batch.
pub const REFERENCES_MAX: usize = 16;

/// Questions of one turn that can be open at once; a turn that asks more is broken.
pub const ASKS_OPEN_MAX: usize = 64;

/// Messages kept in memory so that a turn started in the same step as its post finds the text.
const RECENT_MAX: usize = 64;

/// A round waits this long for participants that cannot run.
pub const ROUND_WAIT_MS: u64 = 10 * 60 * 1000;

/// Names a request so that its answer finds its way back.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Ticket(pub u64);

/// Why an operation was not done. Shown at every door as it is.
pub type OpError = ApiError;

/// Everything that can happen to a channel's home.
#[derive(Debug)]
pub enum Input {
    /// Somebody asks for something.
    Op {
        /// Repeated by the answer.
        ticket: Ticket,
        /// Who asks.
        by: Option<MemberId>,
        /// How that is known.
        auth: Auth,
        /// What.
        op: Op,
    },
    /// A resident can be reached; its journal is this far.
    LinkUp(NodeId, JournalMark),
    /// A resident cannot be reached.
    LinkDown(NodeId),
    /// A resident says something about an attempt of this channel.
    Frame {
        /// The resident.
        node: NodeId,
        /// What.
        message: Message,
        /// The frame's tail.
        tail: Vec<u8>,
    },
    /// A run's journal is durable up to this length.
    JournalSynced {
        /// The run.
        run: MessageId,
        /// Bytes.
        length: u64,
    },
    /// Entries are durable and indexed up to this one.
    Durable(Seq),
    /// The deadline of [`Home::poll_timeout`] passed.
    Timeout,
}

/// What can be asked of a channel.
#[derive(Clone, Debug)]
pub enum Op {
    /// Post a message.
    Post {
        /// The post.
        post: Post,
        /// The poster's id for it.
        client: Option<ClientId>,
        /// The turn it is posted from.
        run: Option<MessageId>,
    },
    /// Add a member.
    MemberAdd {
        /// The member.
        spec: MemberSpec,
        /// The request's id.
        client: Option<ClientId>,
    },
    /// Give a member another handle.
    MemberRename(MemberId, Handle),
    /// Change settings; `None` leaves as it is.
    MemberConfigure {
        /// Which member.
        member: MemberId,
        /// The model.
        model: Option<String>,
        /// The policy.
        policy: Option<Policy>,
        /// The folder.
        cwd: Option<String>,
    },
    /// Start nothing more for the member.
    MemberPause(MemberId),
    /// The opposite of pause.
    MemberResume(MemberId),
    /// Stop the member's turn.
    MemberInterrupt(MemberId),
    /// End the member's process and start nothing more.
    MemberKill(MemberId),
    /// The opposite of kill.
    MemberRevive(MemberId),
    /// Take the member out.
    MemberRemove(MemberId),
    /// Answer a card.
    Answer(MessageId, Answer),
    /// Decide a held turn or delivery.
    Hold {
        /// The run, the card or the held message.
        message: MessageId,
        /// Release or drop.
        release: bool,
        /// The person accepts that the attempt may have run.
        may_run_twice: bool,
    },
    /// End the channel.
    Archive,
}

/// What became of an [`Op`].
#[derive(Clone, Debug, PartialEq)]
pub enum Ask {
    /// Posted, now or by an earlier request with the same id.
    Posted {
        /// Its number.
        message: MessageId,
        /// Its entry.
        seq: Seq,
        /// Mentions that nobody answers to.
        unknown: Vec<String>,
        /// The agents and people it goes to.
        to: Vec<Handle>,
    },
    /// Added, now or by an earlier request with the same id.
    Added(MemberId),
    /// Done, at this entry.
    Done(Seq),
}

/// What the shell must do once the step's bytes are durable.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Answer a request.
    Reply(Ticket, Result<Ask, OpError>),
    /// Send a frame to a resident, this node's own included.
    Send(NodeId, Message, Vec<u8>),
}

/// Bytes to append to a run's journal.
#[derive(Clone, Debug, PartialEq)]
pub struct JournalAppend {
    /// The run.
    pub run: MessageId,
    /// The try.
    pub attempt: Attempt,
    /// Index of the first line.
    pub first: u64,
    /// Length of the journal before.
    pub at: u64,
    /// Whole lines.
    pub lines: Vec<u8>,
    /// Must be durable before the step's entries are.
    pub sync: bool,
}

/// What one input led to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// Bytes that entries name by hash; durable before them.
    pub blobs: Vec<(Hash, Vec<u8>)>,
    /// Run journals; durable before the entries when they say so.
    pub journals: Vec<JournalAppend>,
    /// Entries to append, in order.
    pub entries: Vec<NewEntry>,
    /// What to do after that, in order.
    pub effects: Vec<Effect>,
}

/// A message as others cite it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Cited {
    /// Who wrote it.
    pub by: Option<MemberId>,
    /// Its text; a turn's final text.
    pub text: String,
    /// Files with it.
    pub attachments: Vec<Attachment>,
    /// Whom it went to.
    pub to: Vec<MemberId>,
    /// The message it answers.
    pub reply_to: Option<MessageId>,
}

impl Cited {
    /// Stands for a message that the index cannot find: the turn still runs, and says what is missing.
    fn lost() -> Self {
        let text = "[this message cannot be read on its home node]".to_owned();
        Self { by: None, text, attachments: Vec::new(), to: Vec::new(), reply_to: None }
    }

    /// What an entry makes citable: a post's or a finished turn's number and text.
    #[must_use]
    pub fn of(by: Option<MemberId>, body: &Body) -> Option<(MessageId, Self)> {
        match body {
            Body::Posted { message, post, routed, .. } => Some((
                *message,
                Self {
                    by,
                    text: post.text.clone(),
                    attachments: post.attachments.clone(),
                    to: routed.to.iter().map(|delivery| delivery.member).collect(),
                    reply_to: post.reply_to,
                },
            )),
            Body::TurnFinished { message, status, text, error, routed, .. } => {
                let text = match status {
                    Status::Completed => text.clone(),
                    Status::Failed => format!("[the turn failed: {}]\n{text}", error.as_deref().unwrap_or("no reason")),
                    Status::Interrupted => format!("[the turn was interrupted]\n{text}"),
                };
                let to = routed.to.iter().map(|delivery| delivery.member).collect();
                Some((*message, Self { by, text, attachments: Vec::new(), to, reply_to: None }))
            }
            _ => None,
        }
    }
}

/// Looks up what the fold does not hold.
pub trait History {
    /// The post that an author made under a client id. A signing device is the author of what it signed.
    fn posted(&self, by: Option<MemberId>, auth: &Auth, client: &ClientId) -> Option<(MessageId, Seq)>;
    /// A message by number.
    fn cited(&self, message: MessageId) -> Option<Cited>;
}

/// What an input is judged with.
pub struct Context<'a> {
    /// The clocks.
    pub now: Now,
    /// The home's logical clock, shared by its channels.
    pub lamport: &'a mut Lamport,
    /// Head of the org's chain.
    pub org: Hash,
    /// Randomness for fences.
    pub rng: &'a mut dyn Rng,
    /// Old messages.
    pub history: &'a dyn History,
}

/// How far a run's journal is at the home.
#[derive(Clone, Debug)]
pub struct RunProgress {
    attempt: Attempt,
    events: u64,
    length: u64,
    hasher: blake3::Hasher,
    last: Vec<u8>,
    /// (length, events) after each append that is not known to be durable.
    unsynced: VecDeque<(u64, u64)>,
    synced: u64,
    /// Questions that the home has not looked at yet.
    asks: Vec<EventAsk>,
}

impl RunProgress {
    /// The journal of an attempt before its first event.
    #[must_use]
    pub fn new(attempt: Attempt) -> Self {
        Self {
            attempt,
            events: 0,
            length: 0,
            hasher: blake3::Hasher::new(),
            last: Vec::new(),
            unsynced: VecDeque::new(),
            synced: 0,
            asks: Vec::new(),
        }
    }

    /// Takes in whole lines: on restart what the disk has, later what arrives.
    ///
    /// # Errors
    /// When the bytes are not whole lines of one sound JSON object each.
    pub fn absorb(&mut self, lines: &[u8]) -> Result<(), json::JsonError> {
        let mut asks = Vec::new();
        let mut last: &[u8] = &[];
        let mut count = 0;
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            let Some(line) = line.strip_suffix(b"\n") else { return Err(json::JsonError::Truncated) };
            json::check(line, json::Limits::line(EVENT_LEN_MAX))?;
            if line.starts_with(br#"{"type":"asked""#)
                && let Ok(Event::Asked { ask }) = serde_json::from_slice(line)
            {
                asks.push(ask);
            }
            last = line;
            count += 1;
        }
        self.events += count;
        self.length += lines.len() as u64;
        self.hasher.update(lines);
        last.clone_into(&mut self.last);
        self.asks.append(&mut asks);
        Ok(())
    }

    /// Everything absorbed so far is durable.
    pub fn all_synced(&mut self) {
        self.synced = self.events;
        self.unsynced.clear();
    }

    /// Events so far.
    #[must_use]
    pub const fn events(&self) -> u64 {
        self.events
    }

    /// Bytes so far.
    #[must_use]
    pub const fn length(&self) -> u64 {
        self.length
    }

    /// Hash of the bytes so far.
    #[must_use]
    pub fn hash(&self) -> Hash {
        Hash(*self.hasher.finalize().as_bytes())
    }

    fn outcome(&self) -> Option<Outcome> {
        match serde_json::from_slice(&self.last) {
            Ok(Event::Finished { outcome }) => Some(outcome),
            _ => None,
        }
    }
}

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
    /// Questions that are in a run's journal though the crash came before their cards: raised with the next step.
    unraised: Vec<(AttemptId, EventAsk)>,
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
        }
    }

    /// Applies one input. Act on the step before the next one.
    pub fn handle(&mut self, input: Input, context: &mut Context<'_>) -> Step {
        let mut step = Step::default();
        for (id, ask) in std::mem::take(&mut self.unraised) {
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
            Input::JournalSynced { run, length } => self.journal_synced(&mut step, run, length),
            Input::Durable(seq) => self.forget_recent(seq),
            Input::Timeout => self.close_stuck_rounds(&mut step, context),
        }
        self.watch_rounds(context.now.mono);
        step
    }

    /// When [`Input::Timeout`] is due next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Millis> {
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

    // ---- operations ----

    fn operate(
        &mut self,
        step: &mut Step,
        context: &mut Context<'_>,
        by: Option<MemberId>,
        auth: Auth,
        op: Op,
    ) -> Result<Ask, OpError> {
        if let Some(earlier) = self.earlier(context, by, &auth, &op) {
            return Ok(earlier);
        }
        // What was begun can still be ended in a channel that is over; nothing else happens in it.
        let ends =
            matches!(op, Op::MemberInterrupt(_) | Op::MemberKill(_) | Op::Answer(..) | Op::Hold { release: false, .. });
        if self.state.archived && !ends {
            return Err(ApiError::new(Code::ReadOnly, "the channel is archived"));
        }
        match op {
            Op::Post { post, client, run } => self.post(step, context, by, auth, post, client, run),
            Op::MemberAdd { spec, client } => self.member_add(step, context, by, spec, client),
            Op::MemberRename(member, handle) => {
                self.live(member)?;
                self.free_handle(&handle)?;
                Ok(self.change(step, context, by, member, MemberChange::Renamed { handle }))
            }
            Op::MemberConfigure { member, model, policy, cwd } => {
                let spec = &self.live(member)?.spec;
                let change = MemberChange::Configured {
                    model: model.or_else(|| spec.model.clone()),
                    policy: policy.or(spec.policy),
                    cwd: cwd.or_else(|| spec.cwd.clone()),
                };
                Ok(self.change(step, context, by, member, change))
            }
            Op::MemberPause(member) => {
                self.live(member)?;
                Ok(self.change(step, context, by, member, MemberChange::Paused))
            }
            Op::MemberResume(member) => {
                self.live(member)?;
                let done = self.change(step, context, by, member, MemberChange::Resumed);
                self.pump(step, context, member);
                Ok(done)
            }
            Op::MemberInterrupt(member) => self.interrupt(step, context, by, member),
            Op::MemberKill(member) => {
                self.live(member)?;
                let done = self.change(step, context, by, member, MemberChange::Killed);
                self.kill(step, context, by, member);
                Ok(done)
            }
            Op::MemberRevive(member) => {
                self.live(member)?;
                let done = self.change(step, context, by, member, MemberChange::Revived);
                self.pump(step, context, member);
                Ok(done)
            }
            Op::MemberRemove(member) => {
                let held = self.live(member)?.turn.filter(|run| {
                    self.state.turns.get(run).is_some_and(|turn| matches!(turn.phase, TurnPhase::Held(_)))
                });
                let seq = self.append(step, context, by, Auth::Home, Body::MemberRemoved { member });
                if let Some(run) = held {
                    self.drop_held(step, context, by, run, false);
                }
                self.kill(step, context, by, member);
                self.finish_rounds(step, context);
                Ok(Ask::Done(seq))
            }
            Op::Answer(card, answer) => self.answer(step, context, by, card, answer),
            Op::Hold { message, release, may_run_twice } => {
                self.decide(step, context, by, message, release, may_run_twice)
            }
            Op::Archive => {
                let seq = self.append(step, context, by, auth, Body::ChannelArchived {});
                for run in self.state.turns.keys().copied().collect::<Vec<_>>() {
                    self.stop(step, context, by, run);
                }
                Ok(Ask::Done(seq))
            }
        }
    }

    /// What an earlier request with the same id led to: a repeated one is answered with that, whatever changed since.
    fn earlier(&self, context: &Context<'_>, by: Option<MemberId>, auth: &Auth, op: &Op) -> Option<Ask> {
        match op {
            Op::Post { client: Some(client), .. } => {
                let key = (poster(by, auth), client.clone());
                let recent = self.clients.get(&key).copied();
                let (message, seq) = recent.or_else(|| context.history.posted(by, auth, client))?;
                let to = self.cited(context.history, message).map(|cited| self.handles(&cited.to));
                Some(Ask::Posted { message, seq, unknown: Vec::new(), to: to.unwrap_or_default() })
            }
            Op::MemberAdd { client: Some(client), .. } => self.state.added_by(client).map(Ask::Added),
            _ => None,
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one post")]
    fn post(
        &mut self,
        step: &mut Step,
        context: &mut Context<'_>,
        by: Option<MemberId>,
        auth: Auth,
        post: Post,
        client: Option<ClientId>,
        run: Option<MessageId>,
    ) -> Result<Ask, OpError> {
        check_post(&post)?;
        let author = by.and_then(|id| self.state.members.get(&id)).filter(|author| !author.removed);
        let author = author.ok_or_else(|| ApiError::new(Code::Refused, "only members of the channel post"))?;
        // Whatever an agent says of the turn it posts from, its hops count on: only people begin anew.
        let origin = match author.spec.kind {
            MemberKind::Agent => Origin::MidTurn { hops: author.hops },
            _ => Origin::Post,
        };
        let run = run.filter(|run| author.turn == Some(*run));
        let poster = poster(by, &auth);
        if let Some(target) = post.reply_to
            && (target > self.state.message || target == MessageId(0))
        {
            return Err(ApiError::new(Code::NotFound, format!("there is no message #{target} to reply to")));
        }
        let message = self.state.message.next();
        let (routed, held) = self.route(by, origin, &post.text, message)?;
        for delivery in &routed.to {
            let full = self.state.members.get(&delivery.member).filter(|to| to.queue.len() >= QUEUE_LEN_MAX);
            if let Some(full) = full {
                let handle = &full.spec.handle;
                return Err(ApiError::new(Code::Limit, format!("{QUEUE_LEN_MAX} messages wait for @{handle} already"))
                    .hint("wait until its box is back, or pause posting to it"));
            }
        }
        let unknown = routed.unknown.clone();
        let to = routed.to.iter().filter_map(|d| self.state.members.get(&d.member)).map(|m| m.spec.handle.clone());
        let to = to.collect();
        let body = Body::Posted { message, client: client.clone(), run, post, routed: routed.clone() };
        let cited = Cited::of(by, &body);
        let seq = self.append(step, context, by, auth, body);
        self.remember(seq, cited);
        if let Some(client) = client {
            self.clients.insert((poster, client), (message, seq));
        }
        self.hold_and_pump(step, context, message, &routed, held);
        Ok(Ask::Posted { message, seq, unknown, to })
    }

    fn member_add(
        &mut self,
        step: &mut Step,
        context: &mut Context<'_>,
        by: Option<MemberId>,
        spec: MemberSpec,
        client: Option<ClientId>,
    ) -> Result<Ask, OpError> {
        self.free_handle(&spec.handle)?;
        if self.state.members.values().filter(|member| !member.removed).count() >= MEMBERS_MAX {
            return Err(ApiError::new(Code::Limit, format!("a channel has at most {MEMBERS_MAX} members")));
        }
        let seq = self.append(step, context, by, Auth::Home, Body::MemberAdded { member: spec, client });
        Ok(Ask::Added(MemberId(seq.0)))
    }

    fn answer(
        &mut self,
        step: &mut Step,
        context: &mut Context<'_>,
        by: Option<MemberId>,
        card: MessageId,
        answer: Answer,
    ) -> Result<Ask, OpError> {
        let (run, ask) = match self.state.cards.get(&card) {
            Some(Card::Ask { answered: Some((who, choice, _)), .. }) => {
                let who = self.state.handle(*who);
                let choice = choice.join(", ");
                return Err(ApiError::new(Code::Conflict, format!("@{who} has answered #{card} already: {choice}")));
            }
            Some(Card::Ask { run, ask, .. }) => (*run, ask.clone()),
            Some(Card::HeldTurn { .. } | Card::HeldDelivery { .. }) => {
                return Err(ApiError::new(Code::Invalid, format!("#{card} is a hold"))
                    .hint(format!("tieline hold release CHANNEL {card}, or: tieline hold drop CHANNEL {card}")));
            }
            None => {
                return Err(ApiError::new(Code::NotFound, format!("#{card} is no open card")).hint("tieline inbox"));
            }
        };
        check_answer(&ask, &answer)?;
        let Answer { choice, text } = answer;
        let body = Body::CardAnswered { card, choice, text };
        let seq = self.append(step, context, by, Auth::Home, body);
        if let Some(turn) = self.state.turns.get(&run) {
            let node = turn.node;
            self.send_answers(step, node, Some(run));
        }
        Ok(Ask::Done(seq))
    }

    fn decide(
        &mut self,
        step: &mut Step,
        context: &mut Context<'_>,
        by: Option<MemberId>,
        message: MessageId,
        release: bool,
        may_run_twice: bool,
    ) -> Result<Ask, OpError> {
        let held = self.state.cards.iter().find(|(id, card)| match card {
            Card::HeldTurn { run, .. } => **id == message || *run == message,
            Card::HeldDelivery { message: of, .. } => **id == message || *of == message,
            Card::Ask { .. } => false,
        });
        match held.map(|(_, card)| card.clone()) {
            Some(Card::HeldTurn { run, .. }) => {
                if !release {
                    return Ok(Ask::Done(self.drop_held(step, context, by, run, may_run_twice)));
                }
                let body = Body::HoldReleased { message: run, retry: true, may_run_twice };
                let seq = self.append(step, context, by, Auth::Home, body);
                if let Some(member) = self.state.turns.get(&run).map(|turn| turn.member) {
                    self.pump(step, context, member);
                }
                Ok(Ask::Done(seq))
            }
            Some(Card::HeldDelivery { message: of, member, .. }) => {
                let body = Body::DeliveryReleased { message: of, member, deliver: release };
                let seq = self.append(step, context, by, Auth::Home, body);
                self.pump(step, context, member);
                Ok(Ask::Done(seq))
            }
            _ => Err(ApiError::new(Code::NotFound, format!("nothing is held under #{message}"))
                .hint("tieline hold list CHANNEL")),
        }
    }

    /// Gives a held turn up.
    fn drop_held(
        &mut self,
        step: &mut Step,
        context: &mut Context<'_>,
        by: Option<MemberId>,
        run: MessageId,
        may_run_twice: bool,
    ) -> Seq {
        let turn = self.state.turns.get(&run).map(|turn| (turn.member, turn.node, self.attempt_id(run, turn)));
        let body = Body::HoldReleased { message: run, retry: false, may_run_twice };
        let seq = self.append(step, context, by, Auth::Home, body);
        self.runs.remove(&run);
        self.finish_rounds(step, context);
        if let Some((member, node, id)) = turn {
            // The resident keeps what it knows of the attempt until it hears that nobody asks any more.
            step.effects.push(Effect::Send(node, Message::FinishedAck { id }, Vec::new()));
            self.pump(step, context, member);
        }
        seq
    }

    fn live(&self, id: MemberId) -> Result<&super::state::Member, OpError> {
        let member = self.state.members.get(&id).filter(|member| !member.removed);
        member.ok_or_else(|| ApiError::new(Code::NotFound, "the member has left the channel"))
    }

    fn free_handle(&self, handle: &Handle) -> Result<(), OpError> {
        match self.state.by_handle(handle.as_str()) {
            None => Ok(()),
            Some(_) => Err(ApiError::new(Code::Conflict, format!("@{handle} is a member already"))),
        }
    }

    fn change(
        &mut self,
        step: &mut Step,
        context: &mut Context<'_>,
        by: Option<MemberId>,
        member: MemberId,
        change: MemberChange,
    ) -> Ask {
        Ask::Done(self.append(step, context, by, Auth::Home, Body::MemberChanged { member, change }))
    }

    fn interrupt(
        &mut self,
        step: &mut Step,
        context: &mut Context<'_>,
        by: Option<MemberId>,
        member: MemberId,
    ) -> Result<Ask, OpError> {
        let member = self.live(member)?;
        let handle = &member.spec.handle;
        let turn = member.turn.and_then(|run| Some((run, self.state.turns.get(&run)?)));
        match turn {
            Some((_, Turn { phase: TurnPhase::Held(card), .. })) => {
                let what = format!("nobody knows whether @{handle} still works: its turn is held by #{card}");
                Err(ApiError::new(Code::Conflict, what).hint(format!("tieline hold drop CHANNEL {card}")))
            }
            Some((run, _)) => Ok(Ask::Done(self.stop(step, context, by, run))),
            None => Err(ApiError::new(Code::Conflict, format!("@{handle} runs no turn"))),
        }
    }

    fn kill(&mut self, step: &mut Step, context: &mut Context<'_>, by: Option<MemberId>, member: MemberId) {
        let Some(state) = self.state.members.get(&member) else { return };
        let node = state.spec.node;
        if let Some(run) = state.turn {
            self.stop(step, context, by, run);
        }
        if let Some(node) = node {
            step.effects.push(Effect::Send(node, Message::Kill { channel: self.state.id, member }, Vec::new()));
        }
    }

    /// Asks the resident to stop a turn. A held one stays as it is: there is nobody to ask.
    fn stop(&mut self, step: &mut Step, context: &mut Context<'_>, by: Option<MemberId>, run: MessageId) -> Seq {
        let Some(turn) = self.state.turns.get(&run) else { return self.state.seq };
        if matches!(turn.phase, TurnPhase::Held(_)) {
            return self.state.seq;
        }
        let (node, id, released) = (turn.node, self.attempt_id(run, turn), turn.released);
        let seq = self.append(step, context, by, Auth::Home, Body::StopRequested { message: run });
        if released {
            let reason = "it was stopped before it was tried again".to_owned();
            self.abandon(step, context, id, Some(reason));
        } else {
            step.effects.push(Effect::Send(node, Message::Stop { id }, Vec::new()));
        }
        seq
    }

    /// Ends a turn that was to stop and that no resident will end.
    fn abandon(&mut self, step: &mut Step, context: &mut Context<'_>, id: AttemptId, error: Option<String>) {
        let Some(node) = self.state.turns.get(&id.run).map(|turn| turn.node) else { return };
        let outcome = Outcome { status: Status::Interrupted, text: String::new(), error, usage: None };
        self.finish(step, context, id, outcome, None, Auth::Home);
        step.effects.push(Effect::Send(node, Message::FinishedAck { id }, Vec::new()));
    }

    // ---- routing ----

    fn route(
        &self,
        by: Option<MemberId>,
        origin: Origin<'_>,
        text: &str,
        message: MessageId,
    ) -> Result<(Routed, Vec<Held>), OpError> {
        let author = by.and_then(|id| self.state.members.get(&id));
        let author_kind = author.map_or(MemberKind::System, |author| author.spec.kind);
        let input = RouteInput { message, author: by, author_kind, origin, untagged_to: None, text };
        match route::route(&self.state, &input) {
            Ok(Decision { routed, held, .. }) => Ok((mark_held(routed, &held), held)),
            Err(error @ RouteError::TooManyMentions { .. }) => {
                Err(ApiError::new(Code::Limit, error.to_string()).hint("name fewer members, or split the post"))
            }
        }
    }

    /// Writes cards for deliveries over a brake, then starts what can start.
    fn hold_and_pump(
        &mut self,
        step: &mut Step,
        context: &mut Context<'_>,
        message: MessageId,
        routed: &Routed,
        held: Vec<Held>,
    ) {
        for Held { member, reason } in held {
            let card = self.state.message.next();
            self.append(step, context, None, Auth::Home, Body::DeliveryHeld { message, member, card, reason });
        }
        for delivery in routed.to.iter().filter(|delivery| !delivery.held) {
            self.pump(step, context, delivery.member);
        }
    }

    // ---- turns ----

    /// Starts the member's next turn, or the next try of one that was released, if it can.
    fn pump(&mut self, step: &mut Step, context: &mut Context<'_>, id: MemberId) {
        let Some(member) = self.state.members.get(&id) else { return };
        let Some(node) = member.spec.node else { return };
        let Some(mark) = self.up.get(&node).copied() else { return };
        if self.state.archived || !member.may_start() {
            return;
        }
        if let Some(run) = member.turn {
            if self.state.turns.get(&run).is_some_and(|turn| turn.released) {
                self.retry(step, context, run);
            }
            return;
        }
        let Some(head) = member.queue.front() else { return };
        // A batch never mixes rounds, and the results of a round stand alone.
        let (round, alone) = (head.round, !head.results.is_empty());
        let same = member.queue.iter().take_while(|queued| queued.round == round && queued.results.is_empty() != alone);
        let batch = same.take(if alone { 1 } else { BATCH_LEN_MAX }).cloned().collect::<Vec<_>>();
        let brief = !member.briefed;
        let message = self.state.message.next();
        let (payload, fit) = self.compose(context, id, &batch, brief);
        let batch = batch.get(..fit.max(1)).unwrap_or(&batch);
        let payload = payload.into_bytes();
        let hash = Hash::of(&payload);
        let hops = batch.iter().map(|queued| queued.hops).max().unwrap_or(0);
        let body = Body::TurnStarted {
            message,
            member: id,
            node,
            attempt: Attempt(1),
            batch: batch.iter().map(|queued| queued.message).collect(),
            payload: hash,
            hops,
            briefed: brief,
            seen: Some(mark),
        };
        self.append(step, context, None, Auth::Home, body);
        self.runs.insert(message, RunProgress::new(Attempt(1)));
        step.blobs.push((hash, payload.clone()));
        self.deliver(step, context, message, payload);
    }

    /// The payload of a batch, and how many of its messages fit.
    fn compose(&self, context: &mut Context<'_>, id: MemberId, batch: &[Queued], brief: bool) -> (String, usize) {
        let mut nonce = [0; 8];
        context.rng.fill_bytes(&mut nonce);
        let Some(you) = self.state.members.get(&id).map(|member| &member.spec.handle) else {
            return (String::new(), 0);
        };
        let texts = batch.iter().map(|queued| (queued, self.cited(context.history, queued.message)));
        let texts = texts.map(|(queued, cited)| (queued, cited.unwrap_or_else(Cited::lost))).collect::<Vec<_>>();
        let to = texts.iter().map(|(_, cited)| self.handles(&cited.to)).collect::<Vec<_>>();
        let messages = texts.iter().zip(&to).map(|((queued, cited), to)| PayloadMessage {
            message: queued.message,
            author: self.state.handle(cited.by),
            kind: self.kind(cited.by),
            to,
            hops: queued.hops,
            round: queued.round,
            text: &cited.text,
            attachments: &cited.attachments,
        });
        let messages = messages.collect::<Vec<_>>();
        let fit = payload::batch_fit(messages.iter().copied()).max(1).min(messages.len());
        let cites = self.cites(context.history, texts.get(..fit).unwrap_or_default());
        let references = cites.iter().map(|(message, cited)| PayloadReference {
            message: *message,
            author: self.state.handle(cited.by),
            kind: self.kind(cited.by),
            text: &cited.text,
            attachments: &cited.attachments,
        });
        let text = payload::compose(&PayloadInput {
            channel: &self.state.draft.name,
            you,
            messages: messages.get(..fit).unwrap_or_default(),
            references: &references.collect::<Vec<_>>(),
            notes: &[],
            nonce,
            brief,
        });
        (text, fit)
    }

    /// What a batch cites, one level deep.
    fn cites(&self, history: &dyn History, batch: &[(&Queued, Cited)]) -> Vec<(MessageId, Cited)> {
        let mut known = batch.iter().map(|(queued, _)| queued.message).collect::<BTreeSet<_>>();
        let mut cites = Vec::new();
        for (queued, cited) in batch {
            let refs = route::mention::scan(&cited.text).refs;
            for message in queued.results.iter().copied().chain(cited.reply_to).chain(refs) {
                if cites.len() < REFERENCES_MAX
                    && known.insert(message)
                    && let Some(cited) = self.cited(history, message)
                {
                    cites.push((message, cited));
                }
            }
        }
        cites
    }

    fn kind(&self, id: Option<MemberId>) -> MemberKind {
        id.and_then(|id| self.state.members.get(&id)).map_or(MemberKind::System, |member| member.spec.kind)
    }

    fn handles(&self, ids: &[MemberId]) -> Vec<Handle> {
        let members = ids.iter().filter_map(|id| self.state.members.get(id));
        members.map(|member| member.spec.handle.clone()).collect()
    }

    fn deliver(&mut self, step: &mut Step, context: &mut Context<'_>, run: MessageId, payload: Vec<u8>) {
        let Some(turn) = self.state.turns.get(&run) else { return };
        let Some(member) = self.state.members.get(&turn.member) else { return };
        let batch = turn.batch.iter().filter_map(|q| Some((q, self.cited(context.history, q.message)?)));
        let batch = batch.collect::<Vec<_>>();
        // The payload names the files of what it cites, too.
        let cites = self.cites(context.history, &batch);
        let files = batch.iter().map(|(_, cited)| cited).chain(cites.iter().map(|(_, cited)| cited));
        let message = Message::Deliver {
            id: self.attempt_id(run, turn),
            member: turn.member,
            spec: member.spec.clone(),
            name: self.state.draft.name.as_str().to_owned(),
            session: member.session.clone(),
            payload: turn.payload,
            attachments: files.flat_map(|cited| cited.attachments.iter().cloned()).collect(),
            again: turn.again,
        };
        step.effects.push(Effect::Send(turn.node, message, payload));
    }

    /// Starts the next attempt of an open turn. The payload is read by the shell: it is a blob by now.
    fn retry(&mut self, step: &mut Step, context: &mut Context<'_>, run: MessageId) {
        let Some(turn) = self.state.turns.get(&run) else { return };
        let (member, node, payload, hops) = (turn.member, turn.node, turn.payload, turn.hops);
        let attempt = turn.attempt.next();
        let batch = turn.batch.iter().map(|queued| queued.message).collect();
        let seen = self.up.get(&node).copied();
        let body =
            Body::TurnStarted { message: run, member, node, attempt, batch, payload, hops, briefed: false, seen };
        self.append(step, context, None, Auth::Home, body);
        self.runs.insert(run, RunProgress::new(attempt));
        self.deliver(step, context, run, Vec::new());
    }

    fn attempt_id(&self, run: MessageId, turn: &Turn) -> AttemptId {
        AttemptId { channel: self.state.id, run, attempt: turn.attempt }
    }

    // ---- residents ----

    fn link_up(&mut self, step: &mut Step, context: &mut Context<'_>, node: NodeId, mark: JournalMark) {
        self.up.insert(node, mark);
        let open = self.state.turns.iter().filter(|(_, turn)| turn.node == node && !turn.is_settled());
        let attempts = open
            .map(|(run, turn)| Asked {
                id: self.attempt_id(*run, turn),
                have: self.runs.get(run).map_or(0, |progress| progress.events),
                seen: turn.seen,
            })
            .collect::<Vec<_>>();
        if !attempts.is_empty() {
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

    fn frame(&mut self, step: &mut Step, context: &mut Context<'_>, node: NodeId, message: Message, tail: Vec<u8>) {
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
                let content = FinishedContent { id, events, length, journal, session: session.as_deref() };
                if !self.is_signed_end(node, &content, &auth) {
                    return;
                }
                self.finished(step, context, id, (events, length, journal), session, auth);
            }
            Message::AnswerOk { id, ask } if self.is_running(node, &id) => {
                // The card stays until its turn ends, so that a late second answer is told who was first.
                let cards = &self.state.cards;
                self.delivered.retain(|card| cards.contains_key(card));
                self.delivered.extend(cards.iter().find_map(|(number, card)| match card {
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
    fn is_signed_acceptance(&self, node: NodeId, id: AttemptId, mark: JournalMark, auth: &Auth) -> bool {
        let JournalMark { incarnation, count, head } = mark;
        let content = AcceptedContent { id, incarnation, count, head };
        node == self.me
            || matches!(auth, Auth::Resident { node: by, sig } if *by == node && content.verify(by, sig).is_ok())
    }

    fn is_signed_end(&self, node: NodeId, content: &FinishedContent<'_>, auth: &Auth) -> bool {
        node == self.me
            || matches!(auth, Auth::Resident { node: by, sig } if *by == node && content.verify(by, sig).is_ok())
    }

    /// Whether news of this attempt may change anything: only the resident that runs it, only the current try.
    fn is_current(&self, node: NodeId, id: &AttemptId) -> bool {
        let turn = self.state.turns.get(&id.run).filter(|_| id.channel == self.state.id);
        turn.is_some_and(|turn| turn.node == node && turn.attempt == id.attempt)
    }

    /// Whether the attempt is current and not settled. Of one that is, only the end is news: it proves what nobody knew.
    fn is_running(&self, node: NodeId, id: &AttemptId) -> bool {
        self.is_current(node, id) && self.state.turns.get(&id.run).is_some_and(|turn| !turn.is_settled())
    }

    /// Tells a resident to forget an attempt: its end is in the log, or it is void. An attempt at a message that this
    /// log does not have is evidence that the log went back, and is kept.
    fn forget(&self, step: &mut Step, node: NodeId, id: AttemptId, may_run: bool) {
        if id.channel != self.state.id || id.run > self.state.message {
            return;
        }
        if may_run {
            step.effects.push(Effect::Send(node, Message::Stop { id }, Vec::new()));
        }
        step.effects.push(Effect::Send(node, Message::FinishedAck { id }, Vec::new()));
    }

    /// Asks for a run's events from where we stand, and for what became of it.
    fn reconcile(&self, step: &mut Step, id: AttemptId) {
        let Some(turn) = self.state.turns.get(&id.run) else { return };
        let have = self.runs.get(&id.run).map_or(0, |progress| progress.events);
        let attempts = vec![Asked { id, have, seen: turn.seen }];
        step.effects.push(Effect::Send(turn.node, Message::Reconcile { attempts }, Vec::new()));
    }

    fn events(&mut self, step: &mut Step, context: &mut Context<'_>, id: AttemptId, first: u64, mut lines: Vec<u8>) {
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
            return self.fault(step, context, id, "the resident sent something that is not an event");
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
    fn raise(&mut self, step: &mut Step, context: &mut Context<'_>, id: AttemptId, ask: EventAsk) {
        let Some(turn) = self.state.turns.get(&id.run).filter(|turn| turn.attempt == id.attempt) else { return };
        if turn.is_settled() || turn.asked.contains(&ask.id) {
            return;
        }
        let member = turn.member;
        let open = self
            .state
            .cards
            .values()
            .filter(|card| matches!(card, Card::Ask { run, answered: None, .. } if *run == id.run));
        if open.count() >= ASKS_OPEN_MAX {
            return self.fault(step, context, id, "the turn asks more at once than people can answer");
        }
        let card = self.state.message.next();
        let body = Body::CardRaised { message: card, run: id.run, attempt: id.attempt, ask };
        self.append(step, context, Some(member), Auth::Home, body);
    }

    /// A resident that breaks the rules is broken or hostile: its attempt fails, nothing else does.
    fn fault(&mut self, step: &mut Step, context: &mut Context<'_>, id: AttemptId, what: &str) {
        let Some(node) = self.state.turns.get(&id.run).map(|turn| turn.node) else { return };
        let error = Some(what.to_owned());
        let outcome = Outcome { status: Status::Failed, text: String::new(), error, usage: None };
        step.effects.push(Effect::Send(node, Message::Stop { id }, Vec::new()));
        self.finish(step, context, id, outcome, None, Auth::Home);
    }

    /// The resident says how an attempt ended.
    fn finished(
        &mut self,
        step: &mut Step,
        context: &mut Context<'_>,
        id: AttemptId,
        end: (u64, u64, Hash),
        session: Option<String>,
        auth: Auth,
    ) {
        let Some(node) = self.state.turns.get(&id.run).map(|turn| turn.node) else { return };
        let progress = self.runs.entry(id.run).or_insert_with(|| RunProgress::new(id.attempt));
        if (progress.events, progress.length, progress.hash()) != end {
            if progress.events >= end.0 {
                return self.fault(step, context, id, "the events that the resident sent are not those that it signed");
            }
            // A gap. The resident says it is finished again after the rest.
            return self.reconcile(step, id);
        }
        match progress.outcome() {
            Some(outcome) => self.finish(step, context, id, outcome, session, auth),
            None => self.fault(step, context, id, "the resident does not say how the turn ended"),
        }
        step.effects.push(Effect::Send(node, Message::FinishedAck { id }, Vec::new()));
    }

    fn journal_synced(&mut self, step: &mut Step, run: MessageId, length: u64) {
        let Some(turn) = self.state.turns.get(&run) else { return };
        let id = self.attempt_id(run, turn);
        let node = turn.node;
        let Some(progress) = self.runs.get_mut(&run) else { return };
        if length > progress.length {
            // It tells of the journal of an earlier attempt.
            return;
        }
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

    fn verdict(&mut self, step: &mut Step, context: &mut Context<'_>, id: AttemptId, verdict: Verdict) {
        let Some(turn) = self.state.turns.get(&id.run) else { return };
        let (node, stop) = (turn.node, turn.stop);
        if turn.is_settled() {
            // Its resident knows after all how it ended, or will: that settles it better than a person can.
            if verdict == Verdict::Known {
                self.reconcile(step, id);
            }
            return;
        }
        let accepted = turn.phase == TurnPhase::Accepted;
        let unproven = match verdict {
            Verdict::Known => {
                if stop {
                    step.effects.push(Effect::Send(node, Message::Stop { id }, Vec::new()));
                }
                return self.send_answers(step, node, Some(id.run));
            }
            Verdict::NeverStarted => None,
            // What was accepted and is gone was forgotten on somebody's word: that it never ran does not follow.
            Verdict::Absent { proven: true } if !accepted => None,
            Verdict::Absent { .. } => {
                Some("the resident has no trace of the attempt and cannot prove that it never ran".to_owned())
            }
            Verdict::Ambiguous { reason } => Some(reason),
        };
        if let Some(outcome) = self.runs.get(&id.run).and_then(RunProgress::outcome) {
            // Its last event is here, though the resident has lost it: that is how it ended.
            self.finish(step, context, id, outcome, None, Auth::Home);
            return self.forget(step, node, id, false);
        }
        match unproven {
            // It was to stop, so nobody is asked whether it shall run again.
            error if stop => self.abandon(step, context, id, error),
            None => self.retry(step, context, id.run),
            Some(reason) => self.hold(step, context, id, reason),
        }
    }

    fn hold(&mut self, step: &mut Step, context: &mut Context<'_>, id: AttemptId, reason: String) {
        let card = self.state.message.next();
        let body = Body::TurnHeld { message: id.run, attempt: id.attempt, card, reason };
        self.append(step, context, None, Auth::Home, body);
    }

    /// Sends recorded answers that the resident has not confirmed.
    fn send_answers(&self, step: &mut Step, node: NodeId, only: Option<MessageId>) {
        for (number, card) in &self.state.cards {
            let Card::Ask { run, attempt, ask, answered: Some((_, choice, text)) } = card else { continue };
            if only.is_some_and(|only| only != *run) || self.delivered.contains(number) {
                continue;
            }
            let id = AttemptId { channel: self.state.id, run: *run, attempt: *attempt };
            let answer = Answer { choice: choice.clone(), text: text.clone() };
            let digest = ask.action.as_ref().map(|action| Hash::of(action.as_bytes()));
            let message = Message::Answer { id, ask: ask.id.clone(), answer, digest };
            step.effects.push(Effect::Send(node, message, Vec::new()));
        }
    }

    fn finish(
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

    // ---- rounds ----

    /// Closes rounds that wait for nobody.
    fn finish_rounds(&mut self, step: &mut Step, context: &mut Context<'_>) {
        let done = self.state.rounds.iter().filter(|(_, round)| round.waiting.is_empty());
        for root in done.map(|(root, _)| *root).collect::<Vec<_>>() {
            self.close_round(step, context, root);
        }
    }

    fn close_round(&mut self, step: &mut Step, context: &mut Context<'_>, root: MessageId) {
        let Some(mut round) = self.state.rounds.get(&root).cloned() else { return };
        round.results.sort_by_key(|answer| round.order.iter().position(|member| *member == answer.member));
        let text = |run: MessageId| self.cited(context.history, run).map_or_else(String::new, |cited| cited.text);
        let texts = round.results.iter().map(|answer| text(answer.run)).collect::<Vec<_>>();
        let answers = round.results.iter().zip(&texts).map(|(answer, text)| RoundResult {
            author: answer.member,
            status: answer.status,
            hops: answer.hops,
            text,
        });
        let this = Round { root, number: round.number };
        let RoundNext { to, held, round: next, .. } =
            route::round_next(&self.state, this, round.opener, &answers.collect::<Vec<_>>());
        let routed = mark_held(Routed { to, unknown: Vec::new(), round: next }, &held);
        let results = round.results.iter().map(|answer| answer.run).collect();
        let body = Body::RoundClosed { message: root, number: round.number, results, routed: routed.clone() };
        self.append(step, context, None, Auth::Home, body);
        self.hold_and_pump(step, context, root, &routed, held);
        self.stuck.remove(&root);
    }

    fn close_stuck_rounds(&mut self, step: &mut Step, context: &mut Context<'_>) {
        let now = context.now.mono;
        let over = self.stuck.iter().filter(|(_, since)| now - **since >= ROUND_WAIT_MS);
        for root in over.map(|(root, _)| *root).collect::<Vec<_>>() {
            self.close_round(step, context, root);
        }
    }

    /// Notes since when a round waits only for participants that cannot run: paused, killed, held or out of reach.
    fn watch_rounds(&mut self, now: Millis) {
        let state = &self.state;
        self.stuck.retain(|root, _| state.rounds.contains_key(root));
        for (root, round) in &state.rounds {
            let stuck = round.waiting.iter().all(|id| {
                state.members.get(id).is_none_or(|member| {
                    let reachable = member.spec.node.is_some_and(|node| self.up.contains_key(&node));
                    let works = match member.turn.and_then(|run| state.turns.get(&run)) {
                        Some(turn) => {
                            !matches!(turn.phase, TurnPhase::Held(_)) && (!turn.released || member.may_start())
                        }
                        None => member.may_start() && !state.archived,
                    };
                    !reachable || !works
                })
            });
            if stuck {
                self.stuck.entry(*root).or_insert(now);
            } else {
                self.stuck.remove(root);
            }
        }
    }

    // ---- the log ----

    fn append(
        &mut self,
        step: &mut Step,
        context: &mut Context<'_>,
        by: Option<MemberId>,
        auth: Auth,
        body: Body,
    ) -> Seq {
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
        let applied = self.state.apply(&entry);
        debug_assert!(applied.is_ok(), "the home wrote an entry that its own fold refuses: {applied:?}");
        let seq = entry.seq;
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

    /// The node this home runs on.
    #[must_use]
    pub const fn me(&self) -> NodeId {
        self.me
    }
}

fn mark_held(mut routed: Routed, held: &[Held]) -> Routed {
    for delivery in &mut routed.to {
        delivery.held = held.iter().any(|held| held.member == delivery.member);
    }
    routed
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

/// Length of the first lines, as many as there are.
fn lines_len(bytes: &[u8], lines: u64) -> usize {
    let lines = usize::try_from(lines).unwrap_or(usize::MAX);
    bytes.split_inclusive(|byte| *byte == b'\n').take(lines).map(<[u8]>::len).sum()
}

fn tick(lamport: &mut Lamport) -> Lamport {
    *lamport = lamport.next();
    *lamport
}

fn internal(error: &dyn std::fmt::Display) -> OpError {
    ApiError::new(Code::Internal, error.to_string())
}

fn check_post(post: &Post) -> Result<(), OpError> {
    if post.text.is_empty() && post.attachments.is_empty() {
        return Err(ApiError::new(Code::Invalid, "an empty post without attachments says nothing"));
    }
    if post.text.len() > POST_LEN_MAX {
        let len = post.text.len();
        return Err(ApiError::new(Code::Limit, format!("a post of {len} bytes is over {POST_LEN_MAX}"))
            .hint("attach the text as a file: tieline post CHANNEL TEXT --attach FILE"));
    }
    if post.attachments.len() > ATTACHMENTS_MAX {
        let count = post.attachments.len();
        return Err(ApiError::new(Code::Limit, format!("{count} attachments are over {ATTACHMENTS_MAX}")));
    }
    for file in &post.attachments {
        let bad_name = file.name.is_empty()
            || file.name.len() > 255
            || file.name.contains(|c: char| c.is_control() || matches!(c, '/' | '\\'))
            || [".", ".."].contains(&file.name.as_str());
        if bad_name {
            return Err(ApiError::new(Code::Invalid, "an attachment's name is a file name without folders"));
        }
        if file.size > ATTACHMENT_LEN_MAX {
            return Err(ApiError::new(
                Code::Limit,
                format!("an attachment of {} bytes is over {ATTACHMENT_LEN_MAX}", file.size),
            ));
        }
    }
    Ok(())
}

fn check_answer(ask: &EventAsk, answer: &Answer) -> Result<(), OpError> {
    let labels = || ask.options.iter().map(|option| option.label.as_str()).collect::<Vec<_>>().join(", ");
    if let Some(wrong) = answer.choice.iter().find(|label| !ask.options.iter().any(|option| option.label == **label)) {
        return Err(ApiError::new(Code::Invalid, format!("{wrong:?} is none of: {}", labels())));
    }
    let free_text = answer.text.as_ref().is_some_and(|text| !text.is_empty());
    if answer.choice.is_empty() && (!free_text || ask.kind == AskKind::Approval) {
        return Err(ApiError::new(Code::Invalid, format!("choose one of: {}", labels())));
    }
    if answer.choice.len() > 1 && !ask.multi {
        return Err(ApiError::new(Code::Invalid, "only one label may be chosen"));
    }
    if answer.text.as_ref().is_some_and(|text| text.len() > POST_LEN_MAX) {
        return Err(ApiError::new(Code::Limit, format!("the text is over {POST_LEN_MAX} bytes")));
    }
    Ok(())
}
