//! Turns that run on this node: the resident's state machine, its journal, and the tasks that do the work.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;
use tieline_proto::api::{ApiError, Code};
use tieline_proto::crypto::sign::{AcceptedContent, Task};
use tieline_proto::entry::{Attachment, Auth, JournalMark, MemberSpec};
use tieline_proto::id::{ChannelId, Handle, MemberId, NodeId};
use tieline_proto::link::{AttemptId, Message};
use tieline_proto::payload;
use tieline_proto::turn::{Admission, Effect, Input, Refusal, Resident, ResidentStep};
use tokio::sync::{mpsc, watch};

use super::attempts::{note_failure, open_resident};
use super::files::Files;
use super::pump::{self, End, Pump};
use super::runner::{self, News, Runner};
use super::{Done, Node, Owner};
use crate::consent::Consent;
use crate::harness::{Host, TurnSpec};
use crate::store::{Command, Commit, JournalAppend, JournalId, Target};

/// Everything about turns that run here.
pub(super) struct Turns {
    pub resident: Resident,
    /// Which attempt journal.
    pub journal: JournalId,
    /// Its length, writes on their way included.
    pub length: u64,
    /// The journal takes no writes: why.
    pub stopped: Option<String>,
    pending: VecDeque<Written>,
    runners: BTreeMap<AttemptId, Running>,
    pumps: BTreeMap<AttemptId, mpsc::Sender<pump::Order>>,
    /// Attempts that are to stop as soon as they run.
    stops: BTreeSet<AttemptId>,
    pub host: Host,
    pub consent: Arc<Consent>,
    pub news: mpsc::Sender<News>,
    pub files: Files,
    pub data: PathBuf,
}

/// Records on their way to the attempt journal, and what to do after them.
struct Written {
    token: u64,
    done: bool,
    effects: Vec<Effect>,
}

struct Running {
    orders: mpsc::Sender<runner::Order>,
    member: MemberId,
}

impl Running {
    /// Gives an order. None may be lost: the home is told that it was done.
    fn order(&self, order: runner::Order) {
        if let Err(mpsc::error::TrySendError::Full(order)) = self.orders.try_send(order) {
            let orders = self.orders.clone();
            tokio::spawn(async move { orders.send(order).await });
        }
    }
}

/// The owner's word on an attempt.
#[derive(Debug)]
pub(super) struct Admitted {
    id: AttemptId,
    result: Result<Admission, Refusal>,
}

impl Turns {
    /// Turns of a node whose attempt journal is `resident`'s.
    #[must_use]
    pub fn new(
        resident: Resident,
        journal: (JournalId, u64),
        host: Host,
        consent: Consent,
        news: mpsc::Sender<News>,
        data: &Path,
    ) -> Self {
        Self {
            resident,
            journal: journal.0,
            length: journal.1,
            stopped: None,
            pending: VecDeque::new(),
            runners: BTreeMap::new(),
            pumps: BTreeMap::new(),
            stops: BTreeSet::new(),
            host,
            consent: Arc::new(consent),
            news,
            files: Files::new(data),
            data: data.to_owned(),
        }
    }

    /// How far the attempt journal is.
    pub const fn mark(&self) -> JournalMark {
        self.resident.mark()
    }

    /// Whether this box's owner has consented to run another home's turns.
    pub fn is_resident(&self) -> bool {
        !self.consent.grants().is_empty()
    }

    /// Whether this box has a harness, so that a member is not added in vain.
    pub fn check_harness(&self, harness: &Handle) -> Result<(), ApiError> {
        if self.host.registry().has(harness) {
            return Ok(());
        }
        let names = self.host.registry().names().join(", ");
        Err(ApiError::new(Code::NotFound, format!("this box has no harness `{harness}`; it has: {names}"))
            .hint(format!("tieline harness add {harness} -- COMMAND")))
    }
}

impl Node {
    pub(super) fn tell_resident(&mut self, home: NodeId, message: Message, tail: Vec<u8>) {
        if let Message::Kill { channel, member } = &message {
            if !self.is_home(&home, channel) {
                tracing::warn!(node = %home.short(), channel = %channel.short(), "a node that is not the home would kill");
                return;
            }
            self.agent_tokens.revoke(*channel, *member);
        }
        self.resident(Input::Frame { home, message, tail });
    }

    /// Feeds the resident's state machine.
    pub(super) fn resident(&mut self, input: Input) {
        let step = self.turns.resident.handle(input);
        self.submit_resident(step);
    }

    fn submit_resident(&mut self, step: ResidentStep) {
        let ResidentStep { records, sync, effects } = step;
        if records.is_empty() {
            match self.turns.pending.back_mut() {
                // It must not overtake what waits for the disk.
                Some(written) => written.effects.extend(effects),
                None => self.act_resident(effects),
            }
            return;
        }
        let (id, at) = (self.turns.journal, self.turns.length);
        self.turns.length += records.len() as u64;
        let token = self.next_token;
        self.next_token += 1;
        self.tokens.insert(token, Owner::Resident);
        self.turns.pending.push_back(Written { token, done: false, effects });
        let journals = vec![JournalAppend { id, at, bytes: records, sync }];
        self.submit_command(Command::Commit(Commit { token, journals, ..Commit::default() }));
    }

    pub(super) fn resident_durable(&mut self, token: u64) {
        // A write that waits for no sync is reported before an earlier one that does; effects keep their order.
        if let Some(written) = self.turns.pending.iter_mut().find(|written| written.token == token) {
            written.done = true;
        }
        while let Some(Written { effects, .. }) = self.turns.pending.pop_front_if(|written| written.done) {
            self.act_resident(effects);
        }
    }

    fn act_resident(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Admit { id, home, spec, attachments } => self.admit(id, home, spec, attachments),
                Effect::Accept { task, home, mark, start } => {
                    let id = task.id;
                    let auth = self.acceptance(task, home, mark);
                    self.send_home(home, Message::Accepted { id, mark, auth }, Vec::new());
                    if start {
                        self.resident(Input::AcceptedDurable(id));
                    }
                }
                Effect::Start { id, home, member, spec, name, admission, session, payload, attachments, again } => {
                    let work = Work { home, member, spec, name, admission, session, payload, attachments, again };
                    self.start(id, work);
                }
                Effect::Resume { id, home, from } => self.order_pump(id, home, pump::Order::Resume(from)),
                Effect::Finish { task, home, events, length, journal, session } => {
                    let end = End { events, length, journal, session };
                    self.order_pump(task.id, home, pump::Order::Finish(task, end));
                }
                Effect::Send(home, message) => self.send_home(home, message, Vec::new()),
                Effect::Interrupt(id, home) => match self.turns.runners.get(&id) {
                    Some(running) => running.order(runner::Order::Interrupt),
                    None => {
                        self.turns.stops.insert(id);
                        self.send_home(home, Message::StopOk { id }, Vec::new());
                    }
                },
                Effect::Answer { id, home, ask, answer, digest } => match self.turns.runners.get(&id) {
                    Some(running) => running.order(runner::Order::Answer { ask, answer, digest }),
                    None => self.send_home(home, Message::AnswerOk { id, ask }, Vec::new()),
                },
                Effect::Kill(channel, member) => {
                    let host = self.turns.host.clone();
                    tokio::spawn(async move { host.kill((channel, member)).await });
                }
                Effect::Forget(id) => {
                    self.turns.pumps.remove(&id);
                    self.turns.stops.remove(&id);
                    self.submit_command(Command::RemoveJournal(JournalId::Attempt(id)));
                }
            }
        }
    }

    fn acceptance(&self, task: Task, home: NodeId, mark: JournalMark) -> Auth {
        if home == self.me {
            return Auth::Home;
        }
        let JournalMark { incarnation, count, head } = mark;
        let content = AcceptedContent { task, incarnation, count, head };
        Auth::Resident { node: self.me, sig: content.sign(self.keys.signing()) }
    }

    /// Sends a frame of the resident to a home, to one of this node too.
    fn send_home(&mut self, home: NodeId, message: Message, tail: Vec<u8>) {
        if home == self.me {
            self.work.push_back(super::Work::ToHome(self.me, message, tail));
        } else {
            self.send(home, message, tail);
        }
    }

    // ---- admission ----

    /// Only the home that the org's chain names may hand out turns of a channel, or end its members' processes.
    fn is_home(&self, node: &NodeId, channel: &ChannelId) -> bool {
        let term = self.membership.org().and_then(|org| org.terms(channel).last());
        term.is_some_and(|term| term.home == *node)
    }

    fn admit(&mut self, id: AttemptId, home: NodeId, spec: MemberSpec, attachments: Vec<Attachment>) {
        let result = match &spec.harness {
            _ if !self.is_home(&home, &id.channel) => {
                Err(refusal("not_home", "the org's chain does not name that node as the channel's home"))
            }
            None => Err(refusal("no_harness", "the member has no harness")),
            Some(harness) => {
                let policy = spec.policy.unwrap_or_default();
                let registry = self.turns.host.registry();
                let work = self.turns.data.join("resident").join("work").join(spec.handle.as_str());
                // A member without a folder gets one of its own; whether it may be used is the owner's to say.
                if spec.cwd.is_none()
                    && let Err(error) = std::fs::create_dir_all(&work)
                {
                    tracing::warn!(%error, "a member's own folder cannot be made");
                }
                let allowed = self.turns.consent.check(&registry, &home, harness, spec.cwd.as_deref(), policy, &work);
                allowed.map_err(|refused| Refusal {
                    code: refused.code.to_owned(),
                    message: format!("{}; {}", refused.message, refused.hint),
                })
            }
        };
        let result =
            result.map(|allowed| Admission { cwd: allowed.cwd.to_string_lossy().into_owned(), policy: allowed.policy });
        if attachments.is_empty() || result.is_err() {
            return self.resident(Input::Admitted { id, result });
        }
        let (handle, done, files) = (self.handle.clone(), self.done.clone(), self.turns.files.clone());
        tokio::spawn(async move {
            let fetched = files.fetch(&handle, id.channel, &attachments).await;
            let result = match fetched {
                Ok(()) => result,
                Err(reason) => Err(refusal("attachment", &reason)),
            };
            let _ = done.send(Done::Admitted(Admitted { id, result })).await;
        });
    }

    pub(super) fn admitted(&mut self, admitted: Admitted) {
        let Admitted { id, result } = admitted;
        self.resident(Input::Admitted { id, result });
    }

    // ---- running ----

    fn start(&mut self, id: AttemptId, work: Work) {
        let Work { home, member, spec, name, admission, session, payload, attachments, again } = work;
        let path = self.reader.layout().journal(JournalId::Attempt(id));
        let file = path
            .parent()
            .map_or(Ok(()), std::fs::create_dir_all)
            .and_then(|()| OpenOptions::new().write(true).create(true).truncate(true).open(&path));
        let file = match file {
            Ok(file) => file,
            Err(error) => {
                tracing::error!(%error, run = %id.run, "a run's journal cannot be made");
                return self.resident(Input::Stopped(id));
            }
        };
        let prompt = String::from_utf8_lossy(&payload).into_owned();
        let prompt = if attachments.is_empty() {
            prompt
        } else {
            payload::resolve_attachments(&prompt, &self.turns.files.folder(id.channel).to_string_lossy())
        };
        let keeps = spec.harness.as_ref().is_some_and(|harness| self.turns.host.registry().keeps_running(harness));
        let token = self.agent_tokens.begin((id.channel, member), id.run, keeps, &mut self.rng);
        let mut env = BTreeMap::new();
        env.insert(
            "TIELINE_SOCKET".to_owned(),
            self.data.join(crate::http::SOCKET_NAME).to_string_lossy().into_owned(),
        );
        env.insert("TIELINE_CHANNEL".to_owned(), name);
        env.insert("TIELINE_MEMBER".to_owned(), spec.handle.as_str().to_owned());
        env.insert("TIELINE_TOKEN".to_owned(), token);
        let wanted = spec.policy.unwrap_or_default();
        let mut notices = Vec::new();
        if admission.policy < wanted {
            let (capped, box_name) = (admission.policy.name(), &self.config.name);
            notices.push(format!("{box_name} allows this agent no more than `{capped}`"));
        }
        let turn = TurnSpec {
            id,
            member,
            prompt,
            cwd: PathBuf::from(admission.cwd),
            model: spec.model.clone(),
            policy: admission.policy,
            session,
            again,
            env,
        };
        let Some(harness) = spec.harness else { return };
        let turn = self.turns.host.start(&harness, turn);
        let (written, progress) = watch::channel(0);
        let (orders, received) = mpsc::channel(runner::ORDERS_WAITING_MAX);
        if self.turns.stops.remove(&id) {
            let _ = orders.try_send(runner::Order::Interrupt);
        }
        self.turns.runners.insert(id, Running { orders, member });
        let news = self.turns.news.clone();
        let runner = Runner { id, home, file, path, turn, orders: received, news, written, notices };
        tokio::spawn(runner.run());
        self.make_pump(id, home, progress);
        self.order_pump(id, home, pump::Order::Resume(0));
    }

    fn make_pump(&mut self, id: AttemptId, home: NodeId, written: watch::Receiver<u64>) {
        let (orders, received) = mpsc::channel(pump::ORDERS_WAITING_MAX);
        let path = self.reader.layout().journal(JournalId::Attempt(id));
        let outlet = self.outlet.clone();
        let keys = Arc::clone(&self.keys);
        tokio::spawn(Pump { id, home, path, written, orders: received, outlet, keys }.run());
        self.turns.pumps.insert(id, orders);
    }

    fn order_pump(&mut self, id: AttemptId, home: NodeId, order: pump::Order) {
        if !self.turns.pumps.contains_key(&id) {
            // Left from before a restart: its journal is whole, nothing is added to it.
            let path = self.reader.layout().journal(JournalId::Attempt(id));
            let length = std::fs::metadata(path).map_or(0, |meta| meta.len());
            let (_, written) = watch::channel(length);
            self.make_pump(id, home, written);
        }
        if let Some(orders) = self.turns.pumps.get(&id)
            && orders.try_send(order).is_err()
        {
            // It takes its orders between chunks; the home asks again when nothing comes.
            tracing::debug!(run = %id.run, "a pump has too many orders");
        }
    }

    pub(super) fn runner_news(&mut self, news: News) {
        match news {
            News::Ended(id, end) => {
                self.ended(&id);
                let End { events, length, journal, session } = end;
                if self.stop.is_cancelled() {
                    return self.resident(Input::Stopped(id));
                }
                self.resident(Input::Ended { id, events, length, journal, session });
            }
            News::Broken(id, reason) => {
                tracing::error!(run = %id.run, reason, "the turn's outcome is unknown");
                self.ended(&id);
                self.resident(Input::Stopped(id));
            }
            News::Stopped(id, home) => self.send_home(home, Message::StopOk { id }, Vec::new()),
            News::Answered(id, home, ask) => self.send_home(home, Message::AnswerOk { id, ask }, Vec::new()),
        }
    }

    fn ended(&mut self, id: &AttemptId) {
        if let Some(Running { member, .. }) = self.turns.runners.remove(id) {
            self.agent_tokens.end(id.channel, member, id.run);
        }
    }

    /// The node stops: nothing more is written of what runs, so that its end stays unknown and is asked about.
    pub(super) fn abandon_turns(&mut self) {
        for running in self.turns.runners.values() {
            let _ = running.orders.try_send(runner::Order::Abandon);
        }
        self.turns.pumps.clear();
    }

    // ---- faults ----

    pub(super) fn resident_failed(&mut self, words: &str) {
        tracing::error!(reason = words, "no turn starts here until the disk is mended");
        self.turns.stopped = Some(words.to_owned());
        self.turns.pending.clear();
    }

    pub(super) fn reopen_resident(&mut self) {
        if self.turns.stopped.is_some() {
            self.submit_command(Command::Reopen(Target::Journal(self.turns.journal)));
        }
    }

    /// The attempt journal takes writes again: what is in it is true, and nothing else. What ran meanwhile is held.
    pub(super) fn resident_reopened(&mut self) {
        if self.turns.stopped.take().is_none() {
            return;
        }
        self.abandon_turns();
        self.turns.runners.clear();
        let noted = note_failure(self.reader.layout()).map_err(|error| error.to_string());
        let opened = noted.and_then(|()| open_resident(self.reader.layout()).map_err(|error| error.to_string()));
        match opened {
            Ok((resident, journal, length, first)) => {
                self.turns.resident = resident;
                self.turns.journal = journal;
                self.turns.length = length + first.len() as u64;
                if !first.is_empty() {
                    let append = JournalAppend { id: journal, at: 0, bytes: first, sync: true };
                    let commit = Commit { token: 0, journals: vec![append], ..Commit::default() };
                    self.submit_command(Command::Commit(commit));
                }
            }
            Err(error) => {
                self.turns.stopped = Some(error);
                self.reopen_at.get_or_insert_with(|| tokio::time::Instant::now() + super::REOPEN_EVERY);
                return;
            }
        }
        tracing::info!("turns start here again");
        for id in self.channels.keys().copied().collect::<Vec<_>>() {
            self.greet(id);
        }
        self.greet_residents();
    }

    /// Asks every resident, this node's own too, to tell again what has ended and what it has no word on.
    pub(super) fn greet_residents(&mut self) {
        self.resident(Input::LinkUp(self.me));
        for node in self.peers.keys().copied().collect::<Vec<_>>() {
            let hello = self.hello();
            self.send(node, hello, Vec::new());
        }
    }

    pub(super) fn reload(&mut self) -> Result<serde_json::Value, ApiError> {
        let failed = |error: String| ApiError::new(Code::Invalid, error);
        let consent = Consent::load(&self.data, self.me).map_err(|error| failed(error.to_string()))?;
        let registry = super::open::registry(&self.config).map_err(|error| failed(error.to_string()))?;
        self.turns.consent = Arc::new(consent);
        self.turns.host.reload(registry);
        Ok(json!({}))
    }
}

struct Work {
    home: NodeId,
    member: MemberId,
    spec: Box<MemberSpec>,
    name: String,
    admission: Admission,
    session: Option<String>,
    payload: Vec<u8>,
    attachments: Vec<Attachment>,
    again: bool,
}

fn refusal(code: &str, message: &str) -> Refusal {
    Refusal { code: code.to_owned(), message: message.to_owned() }
}
