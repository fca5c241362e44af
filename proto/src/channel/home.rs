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
    /// Questions raised so far, so that a repeated event raises no second card.
    asked: BTreeSet<String>,
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
            asked: BTreeSet::new(),
        }
    }

    /// Takes in whole lines: on restart what the disk has, later what arrives. Returns the questions among them.
    ///
    /// # Errors
    /// When the bytes are not whole lines of one sound JSON object each.
    pub fn absorb(&mut self, lines: &[u8]) -> Result<Vec<EventAsk>, json::JsonError> {
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
        Ok(asks)
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
    /// Answers that reached their harness. After a restart they are sent again, and known there.
    delivered: BTreeSet<(MessageId, String)>,
    /// When the oldest open round began to wait only for participants that cannot run.
    stuck: BTreeMap<MessageId, Millis>,
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
    pub fn new(state: State, me: NodeId, runs: BTreeMap<MessageId, RunProgress>) -> Self {
        let durable = state.seq;
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
        }
    }

    /// Applies one input. Act on the step before the next one.
    pub fn handle(&mut self, input: Input, context: &mut Context<'_>) -> Step {
        let mut step = Step::default();
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
        if self.state.archived {
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
            Op::MemberInterrupt(member) => {
                let handle = self.live(member)?.spec.handle.clone();
                match self.state.members.get(&member).and_then(|member| member.turn) {
                    Some(run) => Ok(Ask::Done(self.stop(step, context, by, run))),
                    None => Err(ApiError::new(Code::Conflict, format!("@{handle} runs no turn"))),
                }
            }
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
                self.live(member)?;
                self.kill(step, context, by, member);
                Ok(Ask::Done(self.append(step, context, by, Auth::Home, Body::MemberRemoved { member })))
            }
            Op::Answer(card, answer) => self.answer(step, context, by, card, answer),
            Op::Hold { message, release, may_run_twice } => {
                self.decide(step, context, by, message, release, may_run_twice)
            }
            Op::Archive => Ok(Ask::Done(self.append(step, context, by, auth, Body::ChannelArchived {}))),
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
        let poster = poster(by, &auth);
        if let Some(client) = &client {
            let earlier = self.clients.get(&(poster.clone(), client.clone())).copied();
            if let Some((message, seq)) = earlier.or_else(|| context.history.posted(by, &auth, client)) {
                return Ok(Ask::Posted { message, seq, unknown: Vec::new(), to: Vec::new() });
            }
        }
        check_post(&post)?;
        let author = by.and_then(|id| self.state.members.get(&id));
        if author.is_none_or(|author| author.removed) {
            return Err(ApiError::new(Code::Refused, "only members of the channel post"));
        }
        let origin = match run.and_then(|run| self.state.turns.get(&run)) {
            Some(turn) => Origin::MidTurn { hops: turn.hops },
            None => Origin::Post,
        };
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
        if let Some(member) = client.as_ref().and_then(|client| self.state.added_by(client)) {
            return Ok(Ask::Added(member));
        }
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
                let body = Body::HoldReleased { message: run, retry: release, may_run_twice };
                let member = self.state.turns.get(&run).map(|turn| turn.member);
                let seq = self.append(step, context, by, Auth::Home, body);
                if release {
                    self.retry(step, context, run);
                } else {
                    self.runs.remove(&run);
                    self.finish_rounds(step, context);
                    if let Some(member) = member {
                        self.pump(step, context, member);
                    }
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

    fn stop(&mut self, step: &mut Step, context: &mut Context<'_>, by: Option<MemberId>, run: MessageId) -> Seq {
        let seq = self.append(step, context, by, Auth::Home, Body::StopRequested { message: run });
        if let Some(turn) = self.state.turns.get(&run)
            && !matches!(turn.phase, TurnPhase::Held(_))
        {
            let id = self.attempt_id(run, turn);
            step.effects.push(Effect::Send(turn.node, Message::Stop { id }, Vec::new()));
        }
        seq
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

    /// Starts the member's next turn, if it can.
    fn pump(&mut self, step: &mut Step, context: &mut Context<'_>, id: MemberId) {
        let Some(member) = self.state.members.get(&id) else { return };
        let Some(node) = member.spec.node else { return };
        let Some(mark) = self.up.get(&node).copied() else { return };
        if self.state.archived || !member.ready() {
            return;
        }
        let Some(head) = member.queue.front() else { return };
        // A batch never mixes rounds, and the results of a round stand alone.
        let (round, alone) = (head.round, !head.results.is_empty());
        let same = member.queue.iter().take_while(|queued| queued.round == round);
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
        self.deliver(step, context, message, payload, false);
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
        let mut known = batch.iter().map(|queued| queued.message).collect::<BTreeSet<_>>();
        let mut cites = Vec::new();
        for (queued, cited) in texts.iter().take(fit) {
            let refs = route::mention::scan(&cited.text).refs;
            for message in queued.results.iter().copied().chain(cited.reply_to).chain(refs) {
                if cites.len() < REFERENCES_MAX
                    && known.insert(message)
                    && let Some(cited) = self.cited(context.history, message)
                {
                    cites.push((message, cited));
                }
            }
        }
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

    fn kind(&self, id: Option<MemberId>) -> MemberKind {
        id.and_then(|id| self.state.members.get(&id)).map_or(MemberKind::System, |member| member.spec.kind)
    }

    fn handles(&self, ids: &[MemberId]) -> Vec<Handle> {
        let members = ids.iter().filter_map(|id| self.state.members.get(id));
        members.map(|member| member.spec.handle.clone()).collect()
    }

    fn deliver(&mut self, step: &mut Step, context: &mut Context<'_>, run: MessageId, payload: Vec<u8>, again: bool) {
        let Some(turn) = self.state.turns.get(&run) else { return };
        let Some(member) = self.state.members.get(&turn.member) else { return };
        let attachments = turn.batch.iter().filter_map(|queued| self.cited(context.history, queued.message));
        let message = Message::Deliver {
            id: self.attempt_id(run, turn),
            member: turn.member,
            spec: member.spec.clone(),
            name: self.state.draft.name.as_str().to_owned(),
            session: member.session.clone(),
            payload: turn.payload,
            attachments: attachments.flat_map(|cited| cited.attachments).collect(),
            again,
        };
        step.effects.push(Effect::Send(turn.node, message, payload));
    }

    /// Starts the next attempt of an open turn. The payload is read by the shell: it is a blob by now.
    fn retry(&mut self, step: &mut Step, context: &mut Context<'_>, run: MessageId) {
        let Some(turn) = self.state.turns.get(&run) else { return };
        let (member, node, payload, hops) = (turn.member, turn.node, turn.payload, turn.hops);
        let again = self.runs.get(&run).is_some_and(|progress| progress.events > 0);
        let attempt = turn.attempt.next();
        let batch = turn.batch.iter().map(|queued| queued.message).collect();
        let seen = self.up.get(&node).copied();
        let body =
            Body::TurnStarted { message: run, member, node, attempt, batch, payload, hops, briefed: false, seen };
        self.append(step, context, None, Auth::Home, body);
        self.runs.insert(run, RunProgress::new(attempt));
        self.deliver(step, context, run, Vec::new(), again);
    }

    fn attempt_id(&self, run: MessageId, turn: &Turn) -> AttemptId {
        AttemptId { channel: self.state.id, run, attempt: turn.attempt }
    }

    // ---- residents ----

    fn link_up(&mut self, step: &mut Step, context: &mut Context<'_>, node: NodeId, mark: JournalMark) {
        self.up.insert(node, mark);
        let open = self.state.turns.iter().filter(|(_, turn)| turn.node == node);
        let open = open.filter(|(_, turn)| !matches!(turn.phase, TurnPhase::Held(_)));
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
        for id in members.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.pump(step, context, id);
        }
    }

    fn frame(&mut self, step: &mut Step, context: &mut Context<'_>, node: NodeId, message: Message, tail: Vec<u8>) {
        match message {
            Message::Accepted { id, mark, auth } if self.is_current(node, &id) => {
                if !self.is_signed_acceptance(node, id, mark, &auth) {
                    return;
                }
                self.up.insert(node, mark);
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
            Message::Refused { id, message, .. } if self.is_current(node, &id) => {
                let outcome =
                    Outcome { status: Status::Failed, text: String::new(), error: Some(message), usage: None };
                self.finish(step, context, id, outcome, None, Auth::Home);
            }
            Message::Events { id, first } if self.is_current(node, &id) => {
                self.events(step, context, id, first, tail);
            }
            Message::Finished { id, events, length, journal, session, auth } => {
                if !self.is_current(node, &id) {
                    // It is in the log already, or the attempt is void: either way the resident may forget it.
                    step.effects.push(Effect::Send(node, Message::FinishedAck { id }, Vec::new()));
                    return;
                }
                let Some(progress) = self.runs.get(&id.run) else { return };
                if (progress.events, progress.length, progress.hash()) != (events, length, journal) {
                    // A gap: ask for the rest from where we stand. The resident says it is finished again after it.
                    let asked = Asked { id, have: progress.events, seen: None };
                    let message = Message::Reconcile { attempts: vec![asked] };
                    step.effects.push(Effect::Send(node, message, Vec::new()));
                    return;
                }
                let Some(outcome) = progress.outcome() else { return };
                if !self.is_signed_end(
                    node,
                    &FinishedContent { id, events, length, journal, session: session.as_deref() },
                    &auth,
                ) {
                    return;
                }
                self.finish(step, context, id, outcome, session, auth);
                step.effects.push(Effect::Send(node, Message::FinishedAck { id }, Vec::new()));
            }
            Message::AnswerOk { id, ask } if self.is_current(node, &id) => {
                // The card stays until its turn ends, so that a late second answer is told who was first.
                self.delivered.insert((id.run, ask));
            }
            Message::Report { verdicts } => {
                for (id, verdict) in verdicts {
                    if self.is_current(node, &id) {
                        self.verdict(step, context, id, verdict);
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
        id.channel == self.state.id
            && self.state.turns.get(&id.run).is_some_and(|turn| {
                turn.node == node && turn.attempt == id.attempt && !matches!(turn.phase, TurnPhase::Held(_))
            })
    }

    fn events(&mut self, step: &mut Step, context: &mut Context<'_>, id: AttemptId, first: u64, lines: Vec<u8>) {
        let Some(turn) = self.state.turns.get(&id.run) else { return };
        let (member, node) = (turn.member, turn.node);
        let progress = self.runs.entry(id.run).or_insert_with(|| RunProgress::new(id.attempt));
        if progress.attempt != id.attempt || first != progress.events {
            // Repeated or early: the cumulative ack tells the resident where to go on.
            let upto = progress.synced;
            if first > progress.events {
                let asked = Asked { id, have: progress.events, seen: None };
                step.effects.push(Effect::Send(node, Message::Reconcile { attempts: vec![asked] }, Vec::new()));
            } else {
                step.effects.push(Effect::Send(node, Message::EventsAck { id, upto }, Vec::new()));
            }
            return;
        }
        let at = progress.length;
        let Ok(asks) = progress.absorb(&lines) else {
            // A resident that sends what is no event is broken or hostile: its attempt fails, nothing else does.
            let outcome = Outcome {
                status: Status::Failed,
                text: String::new(),
                error: Some("the resident sent something that is not an event".to_owned()),
                usage: None,
            };
            self.finish(step, context, id, outcome, None, Auth::Home);
            step.effects.push(Effect::Send(node, Message::Stop { id }, Vec::new()));
            return;
        };
        progress.unsynced.push_back((progress.length, progress.events));
        let fresh = asks.into_iter().filter(|ask| progress.asked.insert(ask.id.clone())).collect::<Vec<_>>();
        step.journals.push(JournalAppend {
            run: id.run,
            attempt: id.attempt,
            first,
            at,
            lines,
            sync: !fresh.is_empty(),
        });
        for ask in fresh {
            let card = self.state.message.next();
            let body = Body::CardRaised { message: card, run: id.run, attempt: id.attempt, ask };
            self.append(step, context, Some(member), Auth::Home, body);
        }
    }

    fn journal_synced(&mut self, step: &mut Step, run: MessageId, length: u64) {
        let Some(turn) = self.state.turns.get(&run) else { return };
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

    fn verdict(&mut self, step: &mut Step, context: &mut Context<'_>, id: AttemptId, verdict: Verdict) {
        let Some(turn) = self.state.turns.get(&id.run) else { return };
        let node = turn.node;
        let stop = turn.stop;
        let accepted = turn.phase == TurnPhase::Accepted;
        match verdict {
            Verdict::Known => {
                if stop {
                    step.effects.push(Effect::Send(node, Message::Stop { id }, Vec::new()));
                }
                self.send_answers(step, node, Some(id.run));
            }
            Verdict::NeverStarted | Verdict::Absent { proven: true } if stop => {
                let outcome = Outcome { status: Status::Interrupted, text: String::new(), error: None, usage: None };
                self.finish(step, context, id, outcome, None, Auth::Home);
            }
            Verdict::NeverStarted => self.retry(step, context, id.run),
            Verdict::Absent { proven: true } if !accepted => self.retry(step, context, id.run),
            Verdict::Absent { .. } => {
                let reason = "the resident has no trace of the attempt and cannot prove that it never ran";
                self.hold(step, context, id, reason.to_owned());
            }
            Verdict::Ambiguous { reason } => self.hold(step, context, id, reason),
        }
    }

    fn hold(&mut self, step: &mut Step, context: &mut Context<'_>, id: AttemptId, reason: String) {
        let card = self.state.message.next();
        let body = Body::TurnHeld { message: id.run, attempt: id.attempt, card, reason };
        self.append(step, context, None, Auth::Home, body);
    }

    /// Sends recorded answers that the resident has not confirmed.
    fn send_answers(&self, step: &mut Step, node: NodeId, only: Option<MessageId>) {
        for card in self.state.cards.values() {
            let Card::Ask { run, attempt, ask, answered: Some((_, choice, text)) } = card else { continue };
            if only.is_some_and(|only| only != *run) || self.delivered.contains(&(*run, ask.id.clone())) {
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
        self.delivered.retain(|(run, _)| *run != id.run);
        let Outcome { status, text, error, usage } = outcome;
        let round = turn.batch.iter().find_map(|queued| queued.round);
        let mut triggers = Vec::new();
        for from in turn.batch.iter().filter_map(|queued| queued.from) {
            if !triggers.contains(&from) {
                triggers.push(from);
            }
        }
        let origin = Origin::Finished { status, triggers: &triggers, hops: turn.hops, round };
        // An answer is never refused for what it mentions: it has happened.
        let (routed, held) = self.route(Some(turn.member), origin, &text, id.run).unwrap_or_default();
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
        let Some(round) = self.state.rounds.get(&root).cloned() else { return };
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
                    let turn = member.turn.and_then(|run| state.turns.get(&run));
                    let held = turn.is_some_and(|turn| matches!(turn.phase, TurnPhase::Held(_)));
                    member.removed || member.paused || member.killed || held || !reachable
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
            || file.name.contains(['/', '\\', '\0'])
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
