//! Lanes: the streams of a link beside its control lane, one for each turn and each transfer.
//!
//! A lane carries frames one way. Its sender opens a stream when it first sends, announces it by a control frame that
//! holds a fresh key, and begins the stream with the key's tag, by which the far side finds the announcement. A lane
//! that has been idle is closed and opened anew when it is needed; the far side reads the new stream only when it has
//! read the old one to its end, so that a lane's frames stay in order.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::io::{AsyncReadExt, AsyncWriteExt};
use libp2p::Stream;
use rand_chacha::ChaCha20Rng;
use tieline_proto::crypto::stream::StreamKey;
use tieline_proto::link::{Lane, Message};
use tieline_proto::wire::codec;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::time::{Duration, Instant, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::SendError;
use super::events::NetEvent;
use super::link::{CloseReason, Context, Frames, Records, send_all, stopping};
use super::queue::{FrameQueue, PushError};
use super::stream::Purpose;

/// Lanes of one link, in each direction. A resident runs one turn for each of its members; transfers come one or two at
/// a time.
pub(super) const LANES_MAX: usize = 256;

/// Bytes of frames that wait on one lane. Enough to fill the largest packed write several times over; the sender waits
/// for the rest.
const LANE_QUEUE_BYTES: u32 = 256 * 1024;

/// Streams that a link opens at once. The far side drops streams in negotiation beyond a bound.
const OPENING_MAX: usize = 8;

/// How long a lane without frames keeps its stream.
const LANE_IDLE: Duration = Duration::from_secs(30);

/// How long an announced lane may be without its stream, and a stream without its announcement. Both are written in one
/// go, but on a slow uplink one may wait behind much else.
const MEETING: Duration = Duration::from_secs(30);

/// Bytes of a key's tag.
const TAG_LEN: usize = 16;

/// The lanes of a link, as both directions see them.
#[derive(Debug)]
pub(super) struct Lanes {
    out: Mutex<Outgoing>,
    new: mpsc::Sender<NewLane>,
    opening: Semaphore,
    incoming: Mutex<Incoming>,
    announcement: Notify,
    reading: AtomicUsize,
}

#[derive(Debug, Default)]
struct Outgoing {
    queues: BTreeMap<Lane, Arc<FrameQueue>>,
    /// For each lane, whether its latest stream has been announced.
    latest: BTreeMap<Lane, CancellationToken>,
    closed: bool,
}

/// A lane that wants its stream.
#[derive(Debug)]
pub(super) struct NewLane {
    lane: Lane,
    queue: Arc<FrameQueue>,
    /// Ends when the lane's stream before this one has been announced: the far side reads in the order of
    /// announcements.
    before: Option<CancellationToken>,
    /// Ended by being dropped.
    announced: DropGuard,
}

#[derive(Default)]
struct Incoming {
    announced: BTreeMap<[u8; TAG_LEN], Announced>,
    /// For each lane, whether its latest stream has been read to its end.
    latest: BTreeMap<Lane, CancellationToken>,
}

impl std::fmt::Debug for Incoming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Incoming").field("announced", &self.announced.len()).finish_non_exhaustive()
    }
}

struct Announced {
    lane: Lane,
    key: StreamKey,
    since: Instant,
    /// Ends when the lane's stream before this one has been read.
    before: Option<CancellationToken>,
    /// Ended by being dropped.
    read: DropGuard,
}

impl Lanes {
    pub(super) fn new() -> (Self, mpsc::Receiver<NewLane>) {
        let (new, from_new) = mpsc::channel(LANES_MAX);
        let lanes = Self {
            out: Mutex::default(),
            new,
            opening: Semaphore::new(OPENING_MAX),
            incoming: Mutex::default(),
            announcement: Notify::new(),
            reading: AtomicUsize::new(0),
        };
        (lanes, from_new)
    }

    /// Queues a frame on a lane, as soon as there is room. Dropped before it is ready, it sends nothing.
    pub(super) async fn send(&self, lane: Lane, message: &Message, tail: &[u8]) -> Result<(), SendError> {
        let mut frame = Vec::new();
        codec::encode(message, tail, &mut frame)?;
        loop {
            let queue = self.queue(lane)?;
            match queue.push(&frame).await {
                Ok(()) => return Ok(()),
                // Closed for idleness or at its end between our look and our push: a new one is made.
                Err(PushError::Closed | PushError::Full) => {
                    let mut out = self.out();
                    if out.queues.get(&lane).is_some_and(|current| Arc::ptr_eq(current, &queue)) {
                        out.queues.remove(&lane);
                    }
                }
            }
        }
    }

    /// Says that nothing more follows on a lane for now, so that its stream can go.
    pub(super) fn end(&self, lane: Lane) {
        if let Some(queue) = self.out().queues.remove(&lane) {
            queue.close();
        }
    }

    /// Takes an announcement of the far side.
    pub(super) fn announced(&self, lane: Lane, key: &[u8]) -> Result<(), CloseReason> {
        let key = key.try_into().map_err(|_| CloseReason::protocol("a lane's key must have 32 bytes"))?;
        if lane == Lane::Control {
            return Err(CloseReason::protocol("the control lane was announced"));
        }
        let key = StreamKey::from_bytes(key);
        let mut incoming = self.incoming();
        if incoming.announced.len() >= LANES_MAX {
            return Err(CloseReason::protocol("too many lanes announced"));
        }
        incoming.latest.retain(|_, read| !read.is_cancelled());
        let read = CancellationToken::new();
        let before = incoming.latest.insert(lane, read.clone());
        let announced = Announced { lane, since: Instant::now(), before, read: read.drop_guard(), key };
        if incoming.announced.insert(announced.key.tag(), announced).is_some() {
            return Err(CloseReason::protocol("a lane's key was used twice"));
        }
        drop(incoming);
        self.announcement.notify_waiters();
        Ok(())
    }

    /// Whether the far side announced a lane and left it at that.
    pub(super) fn announced_too_long_ago(&self) -> bool {
        self.incoming().announced.values().any(|announced| announced.since.elapsed() > MEETING)
    }

    /// Counts a stream of the far side. False when there are too many.
    pub(super) fn admit(&self) -> bool {
        self.reading.fetch_add(1, Ordering::Relaxed) < LANES_MAX
    }

    /// Refuses further frames: the link is closing.
    pub(super) fn close(&self) {
        let mut out = self.out();
        out.closed = true;
        for queue in std::mem::take(&mut out.queues).into_values() {
            queue.close();
        }
    }

    fn queue(&self, lane: Lane) -> Result<Arc<FrameQueue>, SendError> {
        let mut out = self.out();
        if out.closed {
            return Err(SendError::NoLink);
        }
        if let Some(queue) = out.queues.get(&lane) {
            return Ok(queue.clone());
        }
        if out.queues.len() >= LANES_MAX {
            return Err(SendError::TooManyLanes);
        }
        let queue = Arc::new(FrameQueue::new(LANE_QUEUE_BYTES));
        out.latest.retain(|_, announced| !announced.is_cancelled());
        let announced = CancellationToken::new();
        let before = out.latest.insert(lane, announced.clone());
        let new = NewLane { lane, queue: queue.clone(), before, announced: announced.drop_guard() };
        self.new.try_send(new).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => SendError::TooManyLanes,
            mpsc::error::TrySendError::Closed(_) => SendError::NoLink,
        })?;
        out.queues.insert(lane, queue.clone());
        Ok(queue)
    }

    /// Closes a lane whose queue is empty; false when it is not.
    fn close_idle(&self, lane: Lane, queue: &Arc<FrameQueue>) -> bool {
        let mut out = self.out();
        if !queue.close_if_empty() {
            return false;
        }
        if out.queues.get(&lane).is_some_and(|current| Arc::ptr_eq(current, queue)) {
            out.queues.remove(&lane);
        }
        true
    }

    async fn meet(&self, tag: [u8; TAG_LEN]) -> Announced {
        loop {
            let mut announcement = std::pin::pin!(self.announcement.notified());
            // Registered before the look, so that none is missed between look and wait.
            announcement.as_mut().enable();
            if let Some(announced) = self.incoming().announced.remove(&tag) {
                return announced;
            }
            announcement.await;
        }
    }

    fn out(&self) -> MutexGuard<'_, Outgoing> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn incoming(&self) -> MutexGuard<'_, Incoming> {
        self.incoming.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes a lane until it has been idle for a while or was ended.
pub(super) async fn write(context: Context, new: NewLane, mut rng: ChaCha20Rng) -> Result<(), CloseReason> {
    let NewLane { lane, queue, before, announced } = new;
    let link = &context.link;
    let key = StreamKey::generate(&mut rng);
    let opening = link.lanes.opening.acquire().await.map_err(|_| stopping())?;
    let stream = context.notes.open(link.peer, link.connection, Purpose::Lane).await;
    let stream = stream.map_err(|error| CloseReason::lost(format!("opening a lane: {error}")))?;
    if let Some(before) = before {
        before.cancelled().await;
    }
    // The stream is there: from here on the far side may count on it.
    if link.send(&Message::LaneOpen { lane }, key.as_bytes()).is_err() {
        return Ok(());
    }
    drop(announced);
    let failed = |error| CloseReason::lost(format!("writing a lane: {error}"));
    let (_, mut stream) = stream.split();
    stream.write_all(&key.tag()).await.map_err(failed)?;
    drop(opening);
    let mut records = Records::new(key.split(true).0);
    loop {
        match timeout(LANE_IDLE, queue.take()).await {
            Ok(Some(frames)) => {
                send_all(link, &mut stream, records.seal(&frames)?).await.map_err(failed)?;
            }
            Ok(None) => break,
            Err(_) if link.lanes.close_idle(lane, &queue) => break,
            Err(_) => {}
        }
    }
    stream.close().await.map_err(failed)
}

/// Reads a lane to its end.
pub(super) async fn read(context: Context, stream: Stream) -> Result<(), CloseReason> {
    let read = read_admitted(&context, stream).await;
    context.link.lanes.reading.fetch_sub(1, Ordering::Relaxed);
    read
}

async fn read_admitted(context: &Context, stream: Stream) -> Result<(), CloseReason> {
    let link = &context.link;
    let (mut stream, _write) = stream.split();
    let mut tag = [0; TAG_LEN];
    let met = timeout(MEETING, async {
        stream.read_exact(&mut tag).await.ok()?;
        Some(link.lanes.meet(tag).await)
    });
    // A stream that nobody announced is nothing of this link: anybody on the connection can open one.
    let Ok(Some(announced)) = met.await else { return Ok(()) };
    let Announced { lane, key, before, read: _read, .. } = announced;
    if let Some(before) = before {
        before.cancelled().await;
    }
    link.until_proven().await;
    let mut frames = Frames::new(stream, key.split(false).1);
    while let Some((message, tail)) = frames.next(link).await? {
        match message {
            Message::Probe { .. } | Message::ProbeOk { .. } | Message::Bye { .. } | Message::LaneOpen { .. } => {
                return Err(CloseReason::protocol("a frame that belongs on the control lane"));
            }
            Message::Unknown => tracing::debug!(node = %link.node.short(), "frame of a newer version"),
            message => {
                let frame = NetEvent::Frame { node: link.node, lane, message, tail };
                context.events.lane(link.number, frame).await.map_err(|_| stopping())?;
            }
        }
    }
    Ok(())
}
