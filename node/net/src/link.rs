//! One link: the tasks that carry frames between this node and another, from handshake to last byte.
//!
//! The stream of the handshake becomes the control lane, with a task that writes and one that reads. Every other lane
//! has a stream and a task of its own (see [`lane`]), so that no frame waits behind another lane's. All
//! tasks of a link live and end together: whatever fails in one of them closes the link, with the reason.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use futures::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use libp2p::swarm::ConnectionId;
use libp2p::{Multiaddr, PeerId, Stream};
use rand_chacha::ChaCha20Rng;
use rand_core::{Rng, SeedableRng};
use tieline_proto::crypto::noise::Session;
use tieline_proto::crypto::record::{Opener, Sealer};
use tieline_proto::id::NodeId;
use tieline_proto::link::{Lane, Message};
use tieline_proto::time::Millis;
use tieline_proto::wire::codec::{self, Decoder};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Duration, Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::events::{EventSender, NetEvent};
use super::health::{Action, Health, Trust};
use super::lane::{self, Lanes};
use super::queue::{FrameQueue, PushError};
use super::{NoteSender, SendError, Shared};

/// Bytes of control frames that may wait to be written: sixteen of the largest, for answers and payloads of that size
/// come in bursts, and a slow uplink takes its time. What overflows it means a far side that does not read.
pub(super) const CONTROL_QUEUE_BYTES: u32 = 16 << 20;

/// Bytes read from a stream at once.
pub(super) const READ_CHUNK: usize = 64 * 1024;

/// How long the last frames of a closing link may take.
const FAREWELL: Duration = Duration::from_millis(250);

/// How long a direction's key is used before it is replaced, beside the limit in bytes (design §12).
const REKEY_AFTER: Duration = Duration::from_secs(60 * 60);

/// Streams of lanes that the far side opened and the link has not looked at.
const LANE_STREAMS_WAITING_MAX: usize = 64;

/// Why a link was closed.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{words}")]
pub(super) struct CloseReason {
    /// Stable word, told to the far side.
    pub code: &'static str,
    /// In words.
    pub words: String,
}

impl CloseReason {
    pub(super) fn new(code: &'static str, words: impl Into<String>) -> Self {
        Self { code, words: words.into() }
    }

    /// The far side broke the protocol.
    pub(super) fn protocol(words: impl Into<String>) -> Self {
        Self::new("protocol", words)
    }

    /// The connection beneath failed.
    pub(super) fn lost(words: impl Into<String>) -> Self {
        Self::new("lost", words)
    }
}

/// A handshake's outcome.
#[derive(Debug)]
pub(super) struct Established {
    pub node: NodeId,
    /// What the org calls it.
    pub name: String,
    pub peer: PeerId,
    pub connection: ConnectionId,
    /// The far side's address, as the connection has it.
    pub remote: Multiaddr,
    /// Whether this side dialled the connection, so that `remote` can be dialled again.
    pub dialled: bool,
    /// Whether this side began the handshake.
    pub initiated: bool,
    pub session: Session,
    pub stream: Stream,
}

/// A link as the rest of the node sees it.
#[derive(Debug)]
pub(super) struct Link {
    pub node: NodeId,
    pub peer: PeerId,
    pub connection: ConnectionId,
    pub remote: Multiaddr,
    pub initiated: bool,
    /// Unlike that of any other link of this process.
    pub number: u64,
    pub begun: Instant,
    pub lanes: Lanes,
    control: FrameQueue,
    health: Mutex<Health>,
    /// Wakes the probing.
    probe: Notify,
    proven: watch::Sender<bool>,
    /// When the far side last moved bytes.
    progress: AtomicU64,
    closing: CancellationToken,
    reason: OnceLock<CloseReason>,
    lane_streams: mpsc::Sender<Stream>,
}

/// What a link's tasks need beside the link.
#[derive(Clone, Debug)]
pub(super) struct Context {
    pub link: Arc<Link>,
    pub events: EventSender,
    pub notes: NoteSender,
    pub shared: Arc<Shared>,
}

impl Link {
    /// Queues a frame on the control lane. Closes the link when there is no room.
    pub(super) fn send(&self, message: &Message, tail: &[u8]) -> Result<(), SendError> {
        let mut frame = Vec::new();
        codec::encode(message, tail, &mut frame)?;
        match self.control.push_now(&frame) {
            Ok(()) => Ok(()),
            Err(PushError::Closed) => Err(SendError::NoLink),
            Err(PushError::Full) => {
                self.close(CloseReason::new("overflow", "the far side does not read its control frames"));
                Err(SendError::Overflow)
            }
        }
    }

    /// Closes the link. The first reason counts.
    pub(super) fn close(&self, reason: CloseReason) {
        let _ = self.reason.set(reason);
        self.closing.cancel();
    }

    /// Whether the link was told to close.
    pub(super) fn is_closing(&self) -> bool {
        self.closing.is_cancelled()
    }

    /// Asks for a fresh proof: something happened after which the link may be dead.
    pub(super) fn suspect(&self, because: &'static str) {
        self.health().suspect(because, self.now());
        self.probe.notify_one();
    }

    /// How sure we are of it, the age of its last proof, and what is in doubt.
    pub(super) fn trust(&self) -> (Trust, Option<u64>, Option<String>) {
        let (health, now) = (self.health(), self.now());
        (health.trust(now), health.proof_age(now), health.doubt(now))
    }

    /// Hands over a stream that the far side opened for a lane. False when too many wait.
    pub(super) fn accept_lane(&self, stream: Stream) -> bool {
        self.lane_streams.try_send(stream).is_ok()
    }

    /// The far side moved bytes just now: it sent some, or made room for ours.
    pub(super) fn moved(&self) {
        self.progress.store(self.now().0, Ordering::Relaxed);
    }

    /// Waits until a probe has passed for the first time.
    pub(super) async fn until_proven(&self) {
        // The sender lives as long as the link.
        let _ = self.proven.subscribe().wait_for(|proven| *proven).await;
    }

    fn now(&self) -> Millis {
        Millis(u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A link that is ready to run.
#[derive(Debug)]
pub(super) struct Runner {
    established: Established,
    context: Context,
    lane_streams: mpsc::Receiver<Stream>,
    new_lanes: mpsc::Receiver<lane::NewLane>,
    rng: ChaCha20Rng,
}

/// Prepares a link. Nothing runs until [`Runner::run`].
pub(super) fn prepare(
    established: Established,
    number: u64,
    (events, notes, shared): (EventSender, NoteSender, Arc<Shared>),
    rng: ChaCha20Rng,
) -> (Arc<Link>, Runner) {
    let (lane_streams, from_lane_streams) = mpsc::channel(LANE_STREAMS_WAITING_MAX);
    let (lanes, new_lanes) = Lanes::new();
    let link = Arc::new(Link {
        node: established.node,
        peer: established.peer,
        connection: established.connection,
        remote: established.remote.clone(),
        initiated: established.initiated,
        number,
        begun: Instant::now(),
        lanes,
        control: FrameQueue::new(CONTROL_QUEUE_BYTES),
        health: Mutex::new(Health::new(Millis(0))),
        probe: Notify::new(),
        proven: watch::Sender::new(false),
        progress: AtomicU64::new(0),
        closing: CancellationToken::new(),
        reason: OnceLock::new(),
        lane_streams,
    });
    let context = Context { link: link.clone(), events, notes, shared };
    (link, Runner { established, context, lane_streams: from_lane_streams, new_lanes, rng })
}

impl Runner {
    /// Runs the link to its end and says why it ended. Told to the node's loop: when it is up, frames, when it is down.
    pub(super) async fn run(self) -> CloseReason {
        let Self { established, context, mut lane_streams, mut new_lanes, mut rng } = self;
        let Established { name, session, stream, remote, dialled, .. } = established;
        let link = context.link.clone();
        let up = NetEvent::LinkUp { node: link.node, name, peer_id: link.peer, addr: dialled.then_some(remote) };
        let (sealer, opener) = session.split();
        let (read, write) = stream.split();
        let mut tasks = JoinSet::new();
        // Apart from the others, because it writes the last frames when they have been stopped.
        let mut writer = AbortOnDropHandle::new(tokio::spawn(write_control(context.clone(), write, sealer)));
        tasks.spawn(read_control(context.clone(), read, opener, up));
        let reason = loop {
            let probe_at = link.begun + Duration::from_millis(link.health().poll_at().0);
            tokio::select! {
                () = link.closing.cancelled() => break None,
                ended = &mut writer => break Some(flatten(ended)),
                Some(ended) = tasks.join_next() => {
                    if let Err(reason) = ended.unwrap_or_else(|error| Err(panicked(&error))) {
                        break Some(reason);
                    }
                }
                () = sleep_until(probe_at) => {}
                () = link.probe.notified() => {}
                Some(new) = new_lanes.recv() => {
                    drop(tasks.spawn(lane::write(context.clone(), new, rng.fork())));
                }
                Some(stream) = lane_streams.recv() => {
                    if !link.lanes.admit() {
                        break Some(CloseReason::protocol("too many lanes"));
                    }
                    drop(tasks.spawn(lane::read(context.clone(), stream)));
                }
            }
            if let Err(reason) = tend(&link, &mut rng) {
                break Some(reason);
            }
        };
        if let Some(reason) = reason {
            link.close(reason);
        }
        let reason = link.reason.get().cloned().unwrap_or_else(|| CloseReason::lost("the link ended"));
        tasks.shutdown().await;
        link.lanes.close();
        farewell(&link, &reason, &mut writer).await;
        if *link.proven.borrow() {
            context.shared.down(link.node, reason.words.clone());
            // When the loop is gone there is nobody to tell.
            let down = NetEvent::LinkDown { node: link.node, reason: reason.words.clone() };
            let _ = context.events.control(link.number, down).await;
        }
        reason
    }
}

/// Probes when it is time, and looks after lanes that were announced.
fn tend(link: &Link, rng: &mut ChaCha20Rng) -> Result<(), CloseReason> {
    if link.lanes.announced_too_long_ago() {
        return Err(CloseReason::protocol("a lane was announced and no stream came for it"));
    }
    let progress = Millis(link.progress.load(Ordering::Relaxed));
    let action = link.health().poll(link.now(), progress, || rng.next_u64());
    match action {
        // A full queue closes the link by itself.
        Some(Action::Probe(nonce)) => drop(link.send(&Message::Probe { nonce }, &[])),
        Some(Action::GiveUp(words)) => return Err(CloseReason::new("silent", words)),
        None => {}
    }
    Ok(())
}

/// Tells the far side why, if it still listens, and stops the writer.
async fn farewell(link: &Link, reason: &CloseReason, writer: &mut AbortOnDropHandle<Result<(), CloseReason>>) {
    let bye = Message::Bye { code: reason.code.to_owned(), reason: reason.words.clone() };
    let _ = link.send(&bye, &[]);
    link.control.close();
    if !writer.is_finished() && timeout(FAREWELL, &mut *writer).await.is_err() {
        writer.abort();
        let _ = writer.await;
    }
}

async fn write_control(context: Context, mut stream: WriteHalf<Stream>, sealer: Sealer) -> Result<(), CloseReason> {
    let mut records = Records::new(sealer);
    while let Some(frames) = context.link.control.take().await {
        let sealed = records.seal(&frames)?;
        let sent = send_all(&context.link, &mut stream, sealed).await;
        sent.map_err(|error| CloseReason::lost(format!("control lane: {error}")))?;
    }
    let _ = stream.close().await;
    Ok(())
}

/// A write that had to wait this long waited for the far side to make room.
const WAITED: Duration = Duration::from_millis(20);

/// Writes and flushes in one go.
///
/// That bytes could be written says nothing about the far side: a dead connection takes them for minutes. That they
/// could be written *after a wait* does.
pub(super) async fn send_all(link: &Link, stream: &mut WriteHalf<Stream>, bytes: &[u8]) -> std::io::Result<()> {
    let begun = Instant::now();
    stream.write_all(bytes).await?;
    stream.flush().await?;
    if begun.elapsed() >= WAITED {
        link.moved();
    }
    Ok(())
}

/// Frames that may come before the answer to the first probe: a greeting, and what goes with it.
const EARLY_MAX: usize = 16;

async fn read_control(
    context: Context,
    stream: ReadHalf<Stream>,
    opener: Opener,
    up: NetEvent,
) -> Result<(), CloseReason> {
    let link = &context.link;
    let mut up = Some(up);
    let mut early = Vec::new();
    let mut frames = Frames::new(stream, opener);
    loop {
        match frames.next(link).await? {
            None => return Err(CloseReason::lost("the far side closed the link")),
            Some((Message::Probe { nonce }, _)) => {
                // A full queue closes the link by itself.
                let _ = link.send(&Message::ProbeOk { nonce }, &[]);
            }
            Some((Message::ProbeOk { nonce }, _)) => {
                let proved = link.health().proved(nonce, link.now());
                if let Some(up) = up.take_if(|_| proved) {
                    context.shared.up(link);
                    context.events.control(link.number, up).await.map_err(|_| stopping())?;
                    for (message, tail) in early.drain(..) {
                        let frame = NetEvent::Frame { node: link.node, lane: Lane::Control, message, tail };
                        context.events.control(link.number, frame).await.map_err(|_| stopping())?;
                    }
                    // Frames of lanes wait for this, so that none is seen before the link is up.
                    link.proven.send_replace(true);
                }
            }
            Some((Message::Bye { code, reason }, _)) => return Err(told(&code, reason)),
            Some((Message::LaneOpen { lane }, key)) => link.lanes.announced(lane, &key)?,
            Some((Message::Unknown, _)) => tracing::debug!(node = %link.node.short(), "frame of a newer version"),
            // The far side has its proof and speaks, while the answer to our own probe is still behind its first words.
            Some(frame) if up.is_some() && early.len() < EARLY_MAX => early.push(frame),
            Some(_) if up.is_some() => return Err(CloseReason::protocol("too many frames before the first proof")),
            Some((message, tail)) => {
                let frame = NetEvent::Frame { node: link.node, lane: Lane::Control, message, tail };
                context.events.control(link.number, frame).await.map_err(|_| stopping())?;
            }
        }
    }
}

/// Longest reason that is taken from the far side, in bytes.
const REASON_LEN_MAX: usize = 200;

/// The far side's reason, made fit to show.
fn told(code: &str, mut reason: String) -> CloseReason {
    reason.truncate(reason.floor_char_boundary(REASON_LEN_MAX));
    let reason: String = reason.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    let code = match code {
        "refused" => "refused",
        "duplicate" => "duplicate",
        "stopping" => "stopping",
        _ => "remote",
    };
    CloseReason::new(code, format!("the far side closed the link: {reason}"))
}

pub(super) fn stopping() -> CloseReason {
    CloseReason::new("stopping", "this node is stopping")
}

fn panicked(error: &tokio::task::JoinError) -> CloseReason {
    tracing::error!(%error, "a task of a link ended abnormally");
    CloseReason::new("internal", "a fault in this node")
}

fn flatten(ended: Result<Result<(), CloseReason>, tokio::task::JoinError>) -> CloseReason {
    match ended {
        Ok(Ok(())) => CloseReason::lost("the control lane ended"),
        Ok(Err(reason)) => reason,
        Err(error) => panicked(&error),
    }
}

/// Seals frames for one stream, with new keys in time.
#[derive(Debug)]
pub(super) struct Records {
    sealer: SealerBox,
    keyed: Instant,
    out: Vec<u8>,
}

/// Hides the key from `Debug`.
struct SealerBox(Sealer);

impl std::fmt::Debug for SealerBox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sealer")
    }
}

impl Records {
    pub(super) fn new(sealer: Sealer) -> Self {
        Self { sealer: SealerBox(sealer), keyed: Instant::now(), out: Vec::new() }
    }

    /// The records to write for these frames.
    pub(super) fn seal(&mut self, frames: &[u8]) -> Result<&[u8], CloseReason> {
        let exhausted = |error| CloseReason::new("internal", format!("sealing: {error}"));
        self.out.clear();
        // One big transfer must not pin its buffer for the life of the stream.
        self.out.shrink_to(4 * READ_CHUNK);
        if self.sealer.0.needs_rekey() || self.keyed.elapsed() >= REKEY_AFTER {
            self.sealer.0.rekey(&mut self.out).map_err(exhausted)?;
            self.keyed = Instant::now();
        }
        self.sealer.0.seal(frames, &mut self.out).map_err(exhausted)?;
        Ok(&self.out)
    }
}

/// Reads frames of one stream.
pub(super) struct Frames {
    stream: ReadHalf<Stream>,
    opener: Opener,
    decoder: Decoder,
    chunk: Box<[u8]>,
    plain: Vec<u8>,
}

impl Frames {
    pub(super) fn new(stream: ReadHalf<Stream>, opener: Opener) -> Self {
        let chunk = vec![0; READ_CHUNK].into_boxed_slice();
        Self { stream, opener, decoder: Decoder::new(), chunk, plain: Vec::new() }
    }

    /// The next frame; `None` when the far side ended the stream between two.
    pub(super) async fn next(&mut self, link: &Link) -> Result<Option<(Message, Vec<u8>)>, CloseReason> {
        loop {
            if let Some(frame) = self.decoder.next().map_err(|error| CloseReason::protocol(error.to_string()))? {
                return Ok(Some(frame));
            }
            let read = self.stream.read(&mut self.chunk).await;
            let read = read.map_err(|error| CloseReason::lost(format!("the connection failed: {error}")))?;
            let Some(bytes) = self.chunk.get(..read).filter(|bytes| !bytes.is_empty()) else {
                let whole = self.decoder.is_at_boundary();
                return if whole { Ok(None) } else { Err(CloseReason::lost("the stream ended within a frame")) };
            };
            link.moved();
            self.plain.clear();
            let opened = self.opener.feed(bytes, &mut self.plain);
            opened.map_err(|error| CloseReason::protocol(error.to_string()))?;
            self.decoder.push(&self.plain);
        }
    }
}
