//! A channel at its home: the state machine, its steps on their way to disk, and its live subscribers.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use tieline_proto::channel::{Effect, Home, Step};
use tieline_proto::entry::Body;
use tieline_proto::id::{Attempt, ChannelId, MemberId, MessageId, Seq};
use tieline_proto::log::Head;
use tokio::sync::broadcast;

/// Live items that a slow feed may lag behind before it reads from disk again.
const LIVE_LEN: usize = 1024;

/// What is live in a channel.
#[derive(Clone, Debug)]
pub enum Live {
    /// Entries and their seal, durable, as frames.
    Frames {
        /// The last entry in it.
        last: Seq,
        /// One frame a line, seals included, each with its entry's seq.
        frames: Arc<[(Seq, Arc<str>)]>,
    },
    /// Events of a run.
    Events {
        /// The run.
        run: MessageId,
        /// The try.
        attempt: Attempt,
        /// Index of the first line.
        first: u64,
        /// Whole lines.
        lines: Arc<[u8]>,
    },
}

/// What feeds share with the loop.
#[derive(Debug)]
pub struct Shared {
    /// The channel.
    pub id: ChannelId,
    head: AtomicU64,
    handles: RwLock<BTreeMap<MemberId, String>>,
    live: broadcast::Sender<Live>,
}

impl Shared {
    /// A channel without subscribers.
    #[must_use]
    pub fn new(id: ChannelId) -> Self {
        let (live, _) = broadcast::channel(LIVE_LEN);
        Self { id, head: AtomicU64::new(0), handles: RwLock::default(), live }
    }

    /// The last durable entry.
    #[must_use]
    pub fn head(&self) -> Seq {
        Seq(self.head.load(Ordering::Acquire))
    }

    /// What comes from now on.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<Live> {
        self.live.subscribe()
    }

    /// The handle to show for an author.
    #[must_use]
    pub fn handle(&self, by: Option<MemberId>) -> String {
        let handles = self.handles.read().unwrap_or_else(PoisonError::into_inner);
        by.and_then(|by| handles.get(&by).cloned()).unwrap_or_else(|| "system".to_owned())
    }

    /// Tells subscribers. Nobody may listen; that is no error.
    pub fn publish(&self, live: Live) {
        if let Live::Frames { last, .. } = &live {
            self.head.store(last.0, Ordering::Release);
        }
        let _ = self.live.send(live);
    }

    /// Whether anybody listens.
    #[must_use]
    pub fn is_heard(&self) -> bool {
        self.live.receiver_count() > 0
    }

    fn set_head(&self, seq: Seq) {
        self.head.store(seq.0, Ordering::Release);
    }

    fn learn(&self, home: &Home) {
        let members = &home.state().members;
        let mut handles = self.handles.write().unwrap_or_else(PoisonError::into_inner);
        *handles = members.iter().map(|(id, member)| (*id, member.spec.handle.as_str().to_owned())).collect();
    }
}

/// What a frame says of an entry beside its line.
#[derive(Clone, Debug)]
pub struct Meta {
    /// Its seq.
    pub seq: Seq,
    /// Its message number.
    pub message: Option<MessageId>,
    /// Its kind.
    pub kind: &'static str,
    /// Its author.
    pub by: Option<MemberId>,
}

impl Meta {
    /// Of an entry.
    #[must_use]
    pub fn of(seq: Seq, by: Option<MemberId>, body: &Body) -> Self {
        Self { seq, message: body.message(), kind: body.kind(), by }
    }

    /// The frame of an entry whose line, without LF, is `line`.
    #[must_use]
    pub fn frame(&self, author: &str, line: &[u8]) -> Arc<str> {
        let line = String::from_utf8_lossy(line);
        let Self { seq, message, kind, .. } = self;
        // Handles and kinds are of a strict set, and the line is JSON: nothing here needs escaping.
        let message = message.map_or_else(|| "null".to_owned(), |message| message.to_string());
        format!(
            r#"{{"type":"entry","seq":{seq},"message":{message},"kind":"{kind}","author":"{author}","line":{line}}}"#
        )
        .into()
    }
}

/// The frame of a seal.
#[must_use]
pub fn seal_frame(seq: Seq, line: &[u8]) -> Arc<str> {
    let line = String::from_utf8_lossy(line);
    format!(r#"{{"type":"seal","seq":{seq},"line":{line}}}"#).into()
}

/// A step on its way to disk.
#[derive(Debug)]
pub struct Pending {
    /// The commit.
    pub token: u64,
    /// It is durable; those before it may not be.
    pub done: bool,
    /// What to do when it is durable.
    pub effects: Vec<Effect>,
    /// The last entry in it, when there is one.
    pub last: Option<Seq>,
}

/// A channel that this node is home of.
pub struct Channel {
    /// The state machine; absent while the channel takes no writes.
    pub home: Option<Home>,
    /// Why it takes no writes, in words.
    pub read_only: Option<String>,
    /// What feeds share.
    pub shared: Arc<Shared>,
    /// Its durable head.
    pub head: Head,
    /// The last entry in the last snapshot of the fold.
    pub snapshot: Seq,
    /// Steps on their way to disk, in order.
    pub pending: VecDeque<Pending>,
    /// Of the entries in them.
    pub metas: VecDeque<Meta>,
}

impl Channel {
    /// A channel whose log is folded up to `head`; the last snapshot of the fold is up to `snapshot`.
    #[must_use]
    pub fn new(home: Home, head: Head, snapshot: Seq) -> Self {
        let shared = Arc::new(Shared::new(home.state().id));
        shared.set_head(head.seq);
        shared.learn(&home);
        let (pending, metas) = (VecDeque::new(), VecDeque::new());
        Self { home: Some(home), read_only: None, shared, head, snapshot, pending, metas }
    }

    /// A channel that can only be read, up to `head`.
    #[must_use]
    pub fn broken(id: ChannelId, head: Head, reason: String) -> Self {
        let shared = Arc::new(Shared::new(id));
        shared.set_head(head.seq);
        let (pending, metas) = (VecDeque::new(), VecDeque::new());
        Self { home: None, read_only: Some(reason), shared, head, snapshot: Seq(0), pending, metas }
    }

    /// Takes up writing again after a fault.
    pub fn revive(&mut self, home: Home, head: Head) {
        self.shared.learn(&home);
        self.home = Some(home);
        self.read_only = None;
        self.head = head;
        // What was kept of a failed commit is news to those who listen.
        self.shared.publish(Live::Frames { last: head.seq, frames: Arc::from([]) });
    }

    /// Notes what a step's entries are for the frames that follow when they are durable.
    pub fn note(&mut self, step: &Step) {
        let mut members = false;
        for entry in &step.entries {
            members |= matches!(entry.body, Body::MemberAdded { .. } | Body::MemberChanged { .. });
            self.metas.push_back(Meta::of(entry.seq, entry.by, &entry.body));
        }
        if members && let Some(home) = &self.home {
            self.shared.learn(home);
        }
    }
}
