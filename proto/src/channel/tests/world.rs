//! A world in memory: one home, boxes with residents, links between them, people, and everything that can go wrong.
//!
//! It keeps to the rules that `home.rs` and `resident.rs` give their shells, and is as unkind as those rules allow.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ed25519_dalek::SigningKey;
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

use super::super::{Ask, Context, Home, Input, Member, Op, OpError, Step, Ticket};
use super::disk::{File, Log};
use super::harness::{Act, Oracle};
use super::net::Link;
use super::resident_box::ResidentBox;
use crate::crypto::sign::device_id;
use crate::entry::{Auth, Body, ChannelConfig, ChannelDraft, MemberKind, MemberSpec, Post};
use crate::event::Status;
use crate::id::{Attempt, ChannelName, ClientId, Handle, Hash, Lamport, MemberId, MessageId, NodeId, OrgId};
use crate::time::{Millis, Now};

/// Steps that a failure prints, of a seed that is not looked at alone.
const TRACE_LEN: usize = 40;

/// The home's box.
pub struct HomeBox {
    pub node: NodeId,
    pub core: Option<Home>,
    pub lamport: Lamport,
    pub rng: ChaCha8Rng,
    pub log: Log,
    pub blobs: BTreeMap<Hash, Vec<u8>>,
    pub runs: BTreeMap<(MessageId, Attempt), File>,
    pub pending: VecDeque<Step>,
    /// Its effects are being acted on: what they lead to comes after them.
    pub busy: bool,
    /// Its log takes no writes; the process and its links live on.
    pub faulted: bool,
    /// A backup of its log was put back.
    pub went_back: bool,
}

/// What somebody asked for.
#[derive(Clone, Debug)]
pub struct Request {
    pub by: MemberId,
    pub op: Op,
}

/// What a post was answered with, and what was posted.
#[derive(Clone, Debug)]
pub struct Saved {
    pub message: MessageId,
    pub text: String,
}

/// How the world behaves when nobody says.
#[derive(Clone, Debug, Default)]
pub struct Mood {
    /// Turns do what chance says, not only what a test wrote down.
    pub improvise: bool,
    /// Percent of admissions that are refused.
    pub refuse: u64,
    /// Percent of frames that arrive twice.
    pub twice: u64,
    /// Percent of frames before which the link breaks and comes back.
    pub flaps: u64,
    /// Whether frames come again long after, or for the first time after their link is gone.
    pub late: bool,
    /// Attempts that a resident has places for.
    pub places: Option<usize>,
}

pub struct World {
    pub seed: u64,
    pub rng: ChaCha8Rng,
    pub mood: Mood,
    pub now: Now,
    pub home: HomeBox,
    /// The first one is on the home's node, in its process.
    pub boxes: Vec<ResidentBox>,
    pub links: Vec<Link>,
    pub oracle: Oracle,
    /// What turns do, per handle, first come first served.
    pub scripts: BTreeMap<String, VecDeque<Vec<Act>>>,
    pub asked: BTreeMap<Ticket, Request>,
    pub answers: BTreeMap<Ticket, Result<Ask, OpError>>,
    pub saved: BTreeMap<ClientId, Saved>,
    pub acked: BTreeMap<crate::link::AttemptId, u64>,
    /// How much of each journal at the home was compared with what its harness wrote.
    pub compared: BTreeMap<(MessageId, Attempt), usize>,
    pub seen: BTreeSet<&'static str>,
    next_ticket: u64,
    /// Whether every step is printed.
    pub loud: bool,
    trace: VecDeque<String>,
}

impl World {
    /// A home with @ana, and residents on their own boxes behind links that are up.
    pub fn new(seed: u64, residents: u8) -> Self {
        let rng = ChaCha8Rng::seed_from_u64(seed);
        let keys = (0..=residents).map(|n| SigningKey::from_bytes(&[n + 1; 32])).collect::<Vec<_>>();
        let node = device_id(&keys[0]);
        let home = HomeBox {
            node,
            core: None,
            lamport: Lamport(0),
            rng: ChaCha8Rng::seed_from_u64(seed ^ 0x5eed),
            log: Log::default(),
            blobs: BTreeMap::new(),
            runs: BTreeMap::new(),
            pending: VecDeque::new(),
            busy: false,
            faulted: false,
            went_back: false,
        };
        let boxes = keys.into_iter().enumerate().map(|(n, key)| ResidentBox::new(n, key)).collect::<Vec<_>>();
        let links = boxes.iter().map(|_| Link::default()).collect();
        let mut world = Self {
            seed,
            rng,
            mood: Mood::default(),
            now: Now { mono: Millis(1000), wall: 1_700_000_000_000 },
            home,
            boxes,
            links,
            oracle: Oracle::default(),
            scripts: BTreeMap::new(),
            asked: BTreeMap::new(),
            answers: BTreeMap::new(),
            saved: BTreeMap::new(),
            acked: BTreeMap::new(),
            compared: BTreeMap::new(),
            seen: BTreeSet::new(),
            next_ticket: 0,
            loud: false,
            trace: VecDeque::new(),
        };
        world.create();
        for b in 0..world.boxes.len() {
            world.boxes[b].install();
            world.connect(b);
        }
        world.run();
        world
    }

    fn create(&mut self) {
        let draft = ChannelDraft {
            org: OrgId([7; 16]),
            home: self.home.node,
            name: ChannelName::new("lobby").expect("a name"),
            nonce: Hash::of(b"lobby"),
        };
        let ana = MemberSpec { devices: vec![self.home.node], ..spec("ana", MemberKind::Human, None) };
        let now = self.now;
        let HomeBox { lamport, rng, log, .. } = &mut self.home;
        let mut context = Context { now, lamport, org: Hash::ZERO, rng, history: &*log };
        let (home, step) = Home::create(&draft, ana, &mut context).expect("a channel");
        self.home.core = Some(home);
        self.home.pending.push_back(step);
    }

    /// Sets the channel's own brake, as a later issue's operation will, and starts the home anew.
    pub fn set_brake(&mut self, hops: u32) {
        let mut last = self.home.log.entries.last().expect("a log").clone();
        last.seq = last.seq.next();
        last.lamport = last.lamport.next();
        last.by = Some(ANA);
        last.body = Body::ConfigChanged { config: ChannelConfig { starting_agent: None, turn_brake: Some(hops) } };
        self.home.log.append(last);
        self.crash_home(false);
        self.restart_home();
        self.run();
    }

    // ---- chance and trace ----

    pub fn below(&mut self, bound: u64) -> u64 {
        self.rng.next_u64() % bound.max(1)
    }

    pub fn pick<T: Clone>(&mut self, of: &[T]) -> Option<T> {
        let index = usize::try_from(self.below(of.len() as u64)).expect("an index");
        of.get(index).cloned()
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn note(&mut self, what: impl Into<String>) {
        if self.trace.len() >= TRACE_LEN && !self.loud {
            self.trace.pop_front();
        }
        self.trace.push_back(what.into());
    }

    /// The home's log is as it was once.
    pub fn restore_log(&mut self, len: usize) {
        self.home.log.restore(len);
        self.home.went_back = true;
        self.acked.clear();
    }

    pub fn see(&mut self, state: &'static str) {
        self.seen.insert(state);
    }

    // ---- people ----

    /// Asks the home for something; the answer comes with a later step, or never.
    pub fn ask(&mut self, by: MemberId, op: Op) -> Ticket {
        self.next_ticket += 1;
        let ticket = Ticket(self.next_ticket);
        // What nobody hears, only clients that know how repeat.
        if self.home.core.is_some() || matches!(op, Op::Post { client: Some(_), .. }) {
            self.asked.insert(ticket, Request { by, op: op.clone() });
        }
        self.feed_home(Input::Op { ticket, by: Some(by), auth: Auth::Home, op });
        ticket
    }

    /// Asks, lets everything settle, and gives the answer.
    pub fn does(&mut self, op: Op) -> Result<Ask, OpError> {
        let ticket = self.ask(ANA, op);
        self.run();
        self.answers.remove(&ticket).expect("an answer")
    }

    pub fn post(&mut self, text: &str) -> MessageId {
        let ticket = self.ask(ANA, post(text, None));
        self.sync_all();
        match self.answers.remove(&ticket) {
            Some(Ok(Ask::Posted { message, .. })) => message,
            other => panic!("not posted: {other:?}"),
        }
    }

    pub fn add(&mut self, handle: &str, b: usize) -> MemberId {
        let member = spec(handle, MemberKind::Agent, Some(self.boxes[b].node));
        match self.does(Op::MemberAdd { spec: member, client: None }) {
            Ok(Ask::Added(id)) => id,
            other => panic!("not added: {other:?}"),
        }
    }

    /// What the next turns of a member do.
    pub fn script(&mut self, handle: &str, acts: Vec<Act>) {
        self.scripts.entry(handle.to_owned()).or_default().push_back(acts);
    }

    /// The next turn of a member answers this.
    pub fn says(&mut self, handle: &str, text: &str) {
        self.script(handle, vec![Act::End(Status::Completed, text.to_owned())]);
    }

    // ---- reading ----

    pub fn core(&self) -> &Home {
        self.home.core.as_ref().expect("the home runs")
    }

    pub fn member(&self, handle: &str) -> &Member {
        self.core().state().by_handle(handle).expect("a member").1
    }

    pub fn id(&self, handle: &str) -> MemberId {
        self.core().state().by_handle(handle).expect("a member").0
    }

    /// The bodies that are on disk.
    pub fn bodies(&self) -> impl Iterator<Item = &Body> {
        self.home.log.entries.iter().map(|entry| &entry.body)
    }

    pub fn count(&self, kind: &str) -> usize {
        self.bodies().filter(|body| body.kind() == kind).count()
    }

    /// The ends of turns: run, status and text.
    pub fn finished(&self) -> Vec<(MessageId, Status, String)> {
        let ends = self.bodies().filter_map(|body| match body {
            Body::TurnFinished { message, status, text, .. } => Some((*message, *status, text.clone())),
            _ => None,
        });
        ends.collect()
    }

    /// The open cards of a held turn or delivery, by number.
    pub fn holds(&self) -> Vec<MessageId> {
        use super::super::Card;
        let cards = self.core().state().cards.iter();
        cards.filter(|(_, card)| !matches!(card, Card::Ask { .. })).map(|(id, _)| *id).collect()
    }

    /// The open questions, by number.
    pub fn questions(&self) -> Vec<MessageId> {
        use super::super::Card;
        let cards = self.core().state().cards.iter();
        cards.filter(|(_, card)| matches!(card, Card::Ask { answered: None, .. })).map(|(id, _)| *id).collect()
    }
}

/// A failure tells how to see it again.
impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("---- seed {} failed; its last steps:", self.seed);
            for line in &self.trace {
                eprintln!("  {line}");
            }
        }
    }
}

/// The person who made the channel.
pub const ANA: MemberId = MemberId(2);

pub fn spec(handle: &str, kind: MemberKind, node: Option<NodeId>) -> MemberSpec {
    MemberSpec {
        kind,
        handle: Handle::new(handle).expect("a handle"),
        harness: node.map(|_| Handle::new("scripted").expect("a name")),
        node,
        cwd: None,
        model: None,
        policy: None,
        devices: Vec::new(),
    }
}

pub fn post(text: &str, client: Option<&str>) -> Op {
    let post = Post { text: text.to_owned(), ..Post::default() };
    Op::Post { post, client: client.map(|client| ClientId::new(client).expect("a client id")), run: None }
}
