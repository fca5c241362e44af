//! The node's loop: waits, feeds the state machines, and acts on what they say.
//!
//! | module | is |
//! |---|---|
//! | [`open`] | start: logs, doors, the loop; and the stop |
//! | `folder`, `attempts`, `ports` | what a start finds: keys and org, the attempt journal, the ports |
//! | `channel`, `commit` | channels at their home, and their steps' way to disk |
//! | `calls` | requests of the API |
//! | `remote` | frames of other nodes |
//! | `turns`, `runner`, `pump`, `files` | turns that run here |
//! | `feed` | subscriptions |
//! | `snapshot` | what spares a start the reading of whole logs |
//!
//! One task owns all state. It never waits for a disk, a link or a harness: those have tasks and queues of their own
//! and report back. **One input, drain what it led to, next input.**

mod attempts;
mod blobs;
mod book;
mod calls;
mod channel;
mod commit;
mod feed;
mod files;
mod folder;
mod making;
mod membership;
pub mod offline;
mod open;
mod outlet;
mod pairing;
mod ports;
mod pump;
mod receipt;
mod remote;
mod runner;
mod snapshot;
mod tokens;
mod turns;
mod up;
mod views;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rand_chacha::ChaCha20Rng;
use serde_json::Value;
use tieline_proto::api::{ApiError, Request};
use tieline_proto::channel::Ticket;
use tieline_proto::crypto::keys::DeviceKeys;
use tieline_proto::entry::JournalMark;
use tieline_proto::id::{ChannelId, Lamport, NodeId};
use tieline_proto::link::Message;
use tieline_proto::log::Bad;
use tieline_proto::time::{Millis, Now};
use tieline_proto::view::ChannelRole;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use open::{StartError, run};
pub use tokens::AgentTokens;
pub use up::{explain, up};

use crate::base64url as base64;
use crate::config::Config;
use crate::handle::{ApiCall, Caller, NodeHandle};
use crate::net::{Net, NetEvent, NetEvents, OrgView};
use crate::store::{Command, JournalId, Reader, Report, Writer};
use channel::Channel;
use membership::Membership;
use outlet::{LocalFrame, Outlet};
use turns::Turns;

/// How long a command waits for a channel or a link that it names, before it is told that there is none.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often a channel that takes no writes is tried again.
const REOPEN_EVERY: Duration = Duration::from_secs(2);

/// The longest the loop sleeps.
const TICK: Duration = Duration::from_millis(500);

/// Calls of this node that wait for another node's answer. More are refused.
const FORWARDED_MAX: usize = 4096;

/// Where the answer to a call goes.
#[derive(Debug)]
enum ReplyTo {
    /// To a door of this node.
    Here(oneshot::Sender<Result<Value, ApiError>>),
    /// To the node that passed it on.
    There(NodeId, u64),
}

/// Where the frames of a subscription go.
#[derive(Debug)]
enum FeedTo {
    /// To a door of this node.
    Here(mpsc::Sender<Arc<str>>),
    /// To the node that passed the call on.
    There(NodeId, u64),
}

/// A call that names something which may yet appear.
#[derive(Debug)]
struct Parked {
    until: Instant,
    caller: Caller,
    request: Request,
    reply: ReplyTo,
    feed: Option<FeedTo>,
}

/// A call that another node answers.
#[derive(Debug)]
struct Forwarded {
    node: NodeId,
    reply: Option<ReplyTo>,
    feed: Option<mpsc::Sender<Arc<str>>>,
    /// When the answer is no longer waited for.
    until: Instant,
    /// What to say that this node is to the channel.
    role: Option<ChannelRole>,
    /// The channel that it posts to.
    posts_to: Option<ChannelId>,
}

/// What one part of this node says to another, in order.
#[derive(Debug)]
enum Work {
    ToResident(NodeId, Message, Vec<u8>),
    ToHome(NodeId, Message, Vec<u8>),
}

/// What is done elsewhere and comes back to the loop.
#[derive(Debug)]
enum Done {
    /// An attempt's attachments are here, or cannot be had.
    Admitted(turns::Admitted),
    /// This node was enrolled in an org.
    Joined(pairing::JoinDone),
    /// The reader of another node's feed, or the feed, is gone.
    FeedGone(NodeId, u64),
    /// A log was found damaged before the place that its start began at.
    Damaged(ChannelId, Bad),
}

/// A running node.
struct Node {
    config: Config,
    me: NodeId,
    keys: Arc<DeviceKeys>,
    membership: Membership,
    org_view: watch::Sender<Arc<OrgView>>,
    channels: BTreeMap<ChannelId, Channel>,
    lamport: Lamport,
    rng: ChaCha20Rng,
    started: Instant,
    wall: Arc<dyn Fn() -> u64 + Send + Sync>,

    writer: Writer,
    reader: Reader,
    next_token: u64,
    /// Commands that the writer has no room for.
    backlog: VecDeque<Command>,
    /// Whose commit a token is; the resident's and the org's are `None`.
    tokens: BTreeMap<u64, Owner>,

    net: Net,
    outlet: Outlet,
    /// Nodes whose link is up, and how far their attempt journals were when it came up.
    peers: BTreeMap<NodeId, JournalMark>,
    addrs: Vec<String>,
    api: String,
    notes: Vec<String>,

    turns: Turns,
    agent_tokens: AgentTokens,
    handle: NodeHandle,
    done: mpsc::Sender<Done>,

    next_ticket: u64,
    waiting: BTreeMap<Ticket, calls::Waiting>,
    parked: Vec<Parked>,
    next_call: u64,
    forwarded: BTreeMap<u64, Forwarded>,
    /// Subscriptions of other nodes, and the tasks that feed them.
    fed: BTreeMap<(NodeId, u64), tokio::task::AbortHandle>,
    pairing: pairing::Pairing,
    staged: blobs::Staged,
    work: VecDeque<Work>,
    reopen_at: Option<Instant>,
    /// Journals that the writer has stopped.
    stopped: BTreeSet<JournalId>,
    stop: CancellationToken,
    data: PathBuf,
}

/// Whose commit it is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Owner {
    Channel(ChannelId),
    Org,
    Resident,
    Blob,
}

fn ended(part: &str) -> StartError {
    StartError::Unsound(format!("{part} of the node ended by itself; its log says why"))
}

/// What the loop listens to.
struct Sources {
    calls: mpsc::Receiver<ApiCall>,
    net: NetEvents,
    reports: mpsc::UnboundedReceiver<Report>,
    local: mpsc::Receiver<LocalFrame>,
    news: mpsc::Receiver<runner::News>,
    done: mpsc::Receiver<Done>,
}

impl Node {
    /// Runs until the node is told to stop. The error is a part of the node that ended by itself: without it nothing
    /// would be answered any more, so that whoever watches the node must start it again.
    async fn drive(&mut self, sources: &mut Sources) -> Result<(), StartError> {
        self.work_off();
        while !self.stop.is_cancelled() {
            // Finishing what was begun goes before beginning anything.
            while let Ok(report) = sources.reports.try_recv() {
                self.report(report);
                self.work_off();
            }
            self.drain_backlog();
            let sleep = tokio::time::sleep_until(self.next_due());
            let stop = self.stop.clone();
            // While the disk is behind nothing new begins: what waits then waits where its sender feels it.
            let room = self.backlog.is_empty();
            // By chance and not by rank: neither a busy link nor a busy door keeps the other waiting.
            tokio::select! {
                () = stop.cancelled() => break,
                report = sources.reports.recv() => match report {
                    Some(report) => self.report(report),
                    None => return Err(ended("the writer")),
                },
                Some(done) = sources.done.recv() => self.done(done),
                Some(news) = sources.news.recv(), if room => self.runner_news(news),
                event = sources.net.recv(), if room => match event {
                    Some(event) => self.net_event(event),
                    None => return Err(ended("the network")),
                },
                Some((message, tail)) = sources.local.recv(), if room => {
                    self.work.push_back(Work::ToHome(self.me, message, tail));
                }
                Some(call) = sources.calls.recv(), if room => {
                    let ApiCall { caller, request, reply, feed } = call;
                    self.call(caller, request, ReplyTo::Here(reply), feed.map(FeedTo::Here));
                }
                () = sleep => self.tick(),
            }
            self.work_off();
        }
        Ok(())
    }

    /// Takes what the parts of this node have said to each other to where it belongs.
    fn work_off(&mut self) {
        while let Some(work) = self.work.pop_front() {
            match work {
                Work::ToResident(home, message, tail) => self.tell_resident(home, message, tail),
                Work::ToHome(node, message, tail) => self.tell_home(node, message, tail),
            }
        }
    }

    fn net_event(&mut self, event: NetEvent) {
        match event {
            NetEvent::Listening(addrs) => {
                self.addrs = addrs.iter().map(|addr| format!("{addr}/p2p/{}", self.net.peer_id())).collect();
                tracing::info!(addrs = ?self.addrs, "listening");
            }
            NetEvent::LinkUp { node, name, peer_id, addr } => self.link_up(node, &name, peer_id, addr),
            NetEvent::LinkDown { node, reason } => self.link_down(node, &reason),
            NetEvent::Frame { node, lane: _, message, tail } => self.frame(node, message, tail),
            NetEvent::Pair { offer, event } => self.pair_event(offer, event),
        }
    }

    fn done(&mut self, done: Done) {
        match done {
            Done::Admitted(admitted) => self.admitted(admitted),
            Done::Joined(done) => self.joined(done),
            Done::FeedGone(node, call) => self.feed_gone(node, call),
            Done::Damaged(id, bad) => self.damaged(id, bad),
        }
    }

    fn tick(&mut self) {
        let now = Instant::now();
        self.retry_parked(now);
        self.expire_forwarded(now);
        self.snapshot_quiet();
        if self.reopen_at.is_some_and(|at| at <= now) {
            self.reopen_at = None;
            self.reopen();
        }
        let mono = self.now().mono;
        let due = self.channels.iter().filter(|(_, channel)| {
            channel.home.as_ref().and_then(tieline_proto::channel::Home::poll_timeout).is_some_and(|at| at <= mono)
        });
        for id in due.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.feed_home(id, tieline_proto::channel::Input::Timeout);
        }
    }

    fn next_due(&self) -> Instant {
        let mut due = Instant::now() + TICK;
        due = self.parked.iter().map(|parked| parked.until).fold(due, Instant::min);
        self.reopen_at.map_or(due, |at| due.min(at))
    }

    fn now(&self) -> Now {
        let elapsed = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        Now { mono: Millis(elapsed), wall: (self.wall)() }
    }
}
