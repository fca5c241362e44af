//! The network: finds the org's other nodes, keeps a link to each that is wanted, and carries frames.
//!
//! | module | is |
//! |---|---|
//! | [`addr`] | which addresses are dialled at all |
//! | `swarm`, `stream`, `crowd` | libp2p: transports, raw streams, bounds |
//! | `discovery` | the DHT: topics, bootstrap peers, addresses |
//! | `handshake` | who the far side is |
//! | `link`, `lane`, `queue` | one link's tasks and queues |
//! | [`health`] | whether a link is up |
//! | `peers`, `driver` | whom to keep linked, and the loop that does it |
//! | [`pair`] | enrolling devices |
//!
//! [`Net`] is the handle that the node's loop holds; [`NetEvents`] is what it listens to. Nothing in here reads a wall
//! clock or the system's randomness: both come with [`NetConfig`], all timers are tokio's, and the swarm runs over any
//! transport, so that a simulated network can carry the very same code.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libp2p::identity::Keypair;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId, Swarm};
use rand_chacha::ChaCha20Rng;
use tieline_proto::crypto::keys::DeviceKeys;
use tieline_proto::crypto::link_key::LinkKey;
use tieline_proto::id::NodeId;
use tieline_proto::link::{Lane, Message};
use tieline_proto::org::Org;
use tieline_proto::pairing::{Offered, Terms, Welcome};
use tieline_proto::wire::codec::EncodeError;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

pub mod addr;
mod crowd;
mod discovery;
mod driver;
mod events;
mod handshake;
pub mod health;
mod lane;
mod link;
pub mod pair;
mod peers;
mod queue;
mod stream;
mod swarm;

pub use events::{NetEvent, NetEvents};
pub use swarm::{BoxedTransport, transport};

use driver::{Driver, Note};
use health::Trust;
use link::Link;
use pair::{DeskHandle, OfferId, PairError};

/// Addresses in a pairing link: what fits a QR code that a phone reads well.
const OFFERED_ADDRS_MAX: usize = 3;

/// Reads the wall clock, in Unix milliseconds.
pub type WallClock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// What a network is made of.
pub struct NetConfig {
    /// The transport's own key. It carries no authority; another one makes another peer id, nothing else.
    pub keypair: Keypair,
    /// Where to listen. A port that somebody has is an error: see [`NetError::Listen`].
    pub listen: Vec<Multiaddr>,
    /// Addresses at which others reach this node, beside those it listens on.
    pub external: Vec<Multiaddr>,
    /// Peers by which the DHT is entered, each with its `/p2p/` part or without.
    pub bootstrap: Vec<Multiaddr>,
    /// This device's keys.
    pub device: Arc<DeviceKeys>,
    /// Source of all randomness of this side's making.
    pub rng: ChaCha20Rng,
    /// The wall clock: tells the day of topics, and jumps of time.
    pub wall: WallClock,
}

impl fmt::Debug for NetConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NetConfig")
            .field("peer", &self.keypair.public().to_peer_id())
            .field("listen", &self.listen)
            .field("bootstrap", &self.bootstrap)
            .finish_non_exhaustive()
    }
}

/// What the network needs to know of the org. The node's loop replaces it whenever the chain grows; links with devices
/// that are no longer enrolled are closed then.
#[derive(Clone, Debug)]
pub struct OrgView {
    /// The chain's fold.
    pub org: Org,
    /// The org's link keys, newest first. Links are begun under the first; the others are answered.
    pub link_keys: Vec<LinkKey>,
    /// Whether this node is the home of a channel, and so to be found by others.
    pub provides: bool,
}

/// What is known of where a node is.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PeerHints {
    /// Its transport peer id, when it was met before or named by a pairing link.
    pub peer_id: Option<PeerId>,
    /// Addresses it had.
    pub addrs: Vec<Multiaddr>,
}

/// State of a link, as `status` shows it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LinkStatus {
    /// Whom it joins us with.
    pub node: NodeId,
    /// Whether it is up.
    pub state: LinkState,
    /// By what path; the last one when it is down.
    pub path: Option<Path>,
    /// Age of the last proof, in milliseconds.
    pub last_proof_ms: Option<u64>,
    /// Why it is not up, in words.
    pub reason: Option<String>,
}

/// Whether a link is up.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LinkState {
    /// A recent probe passed through the far side.
    Up,
    /// The last proof is too old; a probe is under way.
    Suspect,
    /// No link.
    Down,
}

/// How a link's connection runs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Path {
    /// Over the internet, directly.
    Direct,
    /// Within the local network, or on this box.
    Lan,
    /// Through a relay.
    Relayed,
}

impl Path {
    fn of(remote: &Multiaddr) -> Self {
        if remote.iter().any(|part| matches!(part, Protocol::P2pCircuit)) {
            Self::Relayed
        } else if addr::is_public(remote) {
            Self::Direct
        } else {
            Self::Lan
        }
    }
}

/// Why the network could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetError {
    /// The transport could not be made.
    #[error("making the transport: {0}")]
    Transport(#[source] std::io::Error),
    /// An address can't be listened on. [`std::io::ErrorKind::AddrInUse`]: another program has the port.
    #[error("listening on {addr}: {source}")]
    Listen {
        /// The address.
        addr: Multiaddr,
        /// Why not.
        source: std::io::Error,
    },
}

impl NetError {
    /// Whether another program listens on the port, so that another port may do.
    #[must_use]
    pub fn is_port_busy(&self) -> bool {
        matches!(self, Self::Listen { source, .. } if source.kind() == std::io::ErrorKind::AddrInUse)
    }
}

/// Why a frame was not sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// There is no link that is up, or it went while the frame waited.
    #[error("no link")]
    NoLink,
    /// The far side does not read its control frames; the link is being closed.
    #[error("the link's control lane is full")]
    Overflow,
    /// Too many lanes are open at once.
    #[error("too many lanes are open on the link")]
    TooManyLanes,
    /// The frame breaks a limit of the wire.
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

/// A handle to the network. Clones are the same network; it ends with [`Net::shutdown`], or when all are dropped.
#[derive(Clone, Debug)]
pub struct Net {
    shared: Arc<Shared>,
    wants: watch::Sender<BTreeMap<NodeId, PeerHints>>,
    notes: NoteSender,
    desk: DeskHandle,
    guard: addr::Guard,
    external: Vec<Multiaddr>,
    peer: PeerId,
    stop: CancellationToken,
    task: Arc<Mutex<Option<AbortOnDropHandle<()>>>>,
}

/// What the loop and the handles share.
#[derive(Debug, Default)]
struct Shared {
    peers: Mutex<BTreeMap<NodeId, Listed>>,
    listening: Mutex<Vec<Multiaddr>>,
}

/// One node, as the handles see it.
#[derive(Debug, Default)]
struct Listed {
    /// Whether the caller wants it linked.
    wanted: bool,
    /// The link, once it is proven.
    link: Option<Arc<Link>>,
    /// How the last link ran.
    path: Option<Path>,
    /// Why there is none.
    reason: Option<String>,
}

impl Shared {
    /// A link is up: handles use it from now on.
    fn up(&self, link: &Arc<Link>) {
        tracing::info!(node = %link.node.short(), remote = %link.remote, "link up");
        let mut peers = self.peers();
        let listed = peers.entry(link.node).or_default();
        listed.link = Some(link.clone());
        listed.path = Some(Path::of(&link.remote));
        listed.reason = None;
    }

    /// A node has no link, because of what. Only nodes that are wanted are listed without one.
    fn down(&self, node: NodeId, reason: String) {
        let mut peers = self.peers();
        let Some(listed) = peers.get_mut(&node) else { return };
        listed.link = None;
        listed.reason = Some(reason);
        if !listed.wanted {
            peers.remove(&node);
        }
    }

    /// Whom the caller wants linked.
    fn want(&self, wanted: &BTreeMap<NodeId, PeerHints>) {
        let mut peers = self.peers();
        for node in wanted.keys() {
            peers.entry(*node).or_default();
        }
        peers.retain(|node, listed| {
            listed.wanted = wanted.contains_key(node);
            listed.wanted || listed.link.is_some()
        });
    }

    fn peers(&self) -> MutexGuard<'_, BTreeMap<NodeId, Listed>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listening(&self) -> MutexGuard<'_, Vec<Multiaddr>> {
        self.listening.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Net {
    /// Starts a network over TCP and QUIC.
    ///
    /// Needs a tokio runtime. Events wait in bounded queues: a loop that reads slowly slows the lanes of its links, and
    /// loses nothing.
    ///
    /// # Errors
    /// When the transport can't be made or an address can't be listened on.
    pub fn spawn(config: NetConfig, org: watch::Receiver<Arc<OrgView>>) -> Result<(Self, NetEvents), NetError> {
        for addr in &config.listen {
            let busy = |source| NetError::Listen { addr: addr.clone(), source };
            swarm::check_port(addr).map_err(busy)?;
        }
        let guard = addr::Guard::new(&config.listen, &config.bootstrap);
        let transport = transport(&config.keypair, &guard).map_err(NetError::Transport)?;
        Self::spawn_swarm(swarm::build(&config.keypair, transport, true), guard, config, org)
    }

    /// Starts a network over a transport of the caller's, such as a simulated one. `guard` says which addresses it is
    /// not even given.
    ///
    /// # Errors
    /// When an address can't be listened on.
    pub fn spawn_over(
        transport: BoxedTransport,
        guard: addr::Guard,
        config: NetConfig,
        org: watch::Receiver<Arc<OrgView>>,
    ) -> Result<(Self, NetEvents), NetError> {
        Self::spawn_swarm(swarm::build(&config.keypair, transport, false), guard, config, org)
    }

    fn spawn_swarm(
        swarm: Swarm<swarm::Behaviour>,
        guard: addr::Guard,
        config: NetConfig,
        org: watch::Receiver<Arc<OrgView>>,
    ) -> Result<(Self, NetEvents), NetError> {
        let peer = config.keypair.public().to_peer_id();
        let shared = Arc::new(Shared::default());
        let (wants, wanted) = watch::channel(BTreeMap::new());
        let (notes, from_notes) = NoteSender::new();
        let (events, from_events) = events::channel();
        let stop = CancellationToken::new();
        let external = config.external.clone();
        let (driver, desk) = Driver::new(driver::Parts {
            config,
            swarm,
            guard: guard.clone(),
            org,
            wanted,
            notes: (notes.clone(), from_notes),
            events,
            shared: shared.clone(),
            stop: stop.clone(),
        })?;
        let task = AbortOnDropHandle::new(tokio::spawn(driver.run()));
        let task = Arc::new(Mutex::new(Some(task)));
        Ok((Self { shared, wants, notes, desk, guard, external, peer, stop, task }, from_events))
    }

    /// Queues a frame on a node's control lane. Never waits.
    ///
    /// # Errors
    /// When there is no link, its control queue is full (the link is closed then), or the frame is too large.
    pub fn send(&self, node: NodeId, message: Message, tail: Vec<u8>) -> Result<(), SendError> {
        self.link(node)?.send(&message, &tail)
    }

    /// Queues a frame on a lane of a node, opening the lane if need be; waits for room. Frames sent one after the other
    /// on one lane arrive in that order. Dropped before it is ready, it sends nothing.
    ///
    /// Don't wait for it in the loop that reads [`NetEvents`]: two nodes that both wait for room never read.
    ///
    /// # Errors
    /// When there is no link or it goes meanwhile, or the frame is too large. Frames that were queued before may or may
    /// not have arrived then.
    pub async fn send_lane(&self, node: NodeId, lane: Lane, message: Message, tail: Vec<u8>) -> Result<(), SendError> {
        let link = self.link(node)?;
        match lane {
            Lane::Control => link.send(&message, &tail),
            Lane::Turn(_) | Lane::Bulk(_) => link.lanes.send(lane, &message, &tail).await,
        }
    }

    /// Says that nothing more follows on a lane for now. What was queued is still sent.
    pub fn end_lane(&self, node: NodeId, lane: Lane) {
        if let Ok(link) = self.link(node) {
            link.lanes.end(lane);
        }
    }

    /// Says whom to keep linked, for ever, and where they may be. Replaces what was said before.
    pub fn want(&self, nodes: BTreeMap<NodeId, PeerHints>) {
        self.wants.send_replace(nodes);
    }

    /// The state of the links: of nodes that are wanted, and of those that came by themselves.
    #[must_use]
    pub fn links(&self) -> Vec<LinkStatus> {
        self.shared.peers().iter().map(|(node, listed)| listed.status(*node)).collect()
    }

    /// Probes all links at once and tries those that are down: the box's owner asks, or the network changed in a way
    /// that only the caller can see.
    pub fn probe(&self) {
        self.notes.try_send(Note::Doubt("a request"));
    }

    /// Offers to enrol a device, by a number of the caller's; an offer that stands is taken back. Without addresses in the terms, the link gets those
    /// of this node that are most likely to work.
    ///
    /// What comes of it is told by [`NetEvent::Pair`].
    ///
    /// # Errors
    /// When too many offers were made, or the terms don't fit.
    pub async fn pair_offer(&self, offer: OfferId, mut terms: Terms) -> Result<Offered, PairError> {
        if terms.addrs.is_empty() {
            terms.addrs = self.reachable().into_iter().take(OFFERED_ADDRS_MAX).map(|addr| addr.to_vec()).collect();
        }
        self.desk.offer(offer, terms).await
    }

    /// Passes on the six digits that the operator typed.
    ///
    /// # Errors
    /// When they are no digits, or no device shows any. Wrong ones are told by [`PairEvent::Refused`](pair::PairEvent::Refused).
    pub async fn pair_confirm(&self, digits: String) -> Result<(), PairError> {
        self.desk.confirm(digits).await
    }

    /// Takes the offer back, if it still stands.
    ///
    /// # Errors
    /// When the network has stopped.
    pub async fn pair_cancel(&self, offer: OfferId) -> Result<(), PairError> {
        self.desk.cancel(offer).await
    }

    /// Answers [`PairEvent::Approved`](pair::PairEvent::Approved): the device is in the chain and synced, or could not be enrolled.
    ///
    /// # Errors
    /// When the network has stopped.
    pub async fn pair_enrolled(&self, offer: OfferId, welcome: Option<Box<Welcome>>) -> Result<(), PairError> {
        self.desk.enrolled(offer, welcome).await
    }

    /// Addresses at which others may reach this node, the most promising first.
    #[must_use]
    pub fn reachable(&self) -> Vec<Multiaddr> {
        let mut addrs: Vec<_> = self.external.iter().cloned().chain(self.listening()).collect();
        let usable = |addr: &Multiaddr| self.guard.check(addr).is_ok();
        addrs.retain(usable);
        // A public address serves everywhere, and TCP passes where UDP does not.
        addrs.sort_by_key(|addr| {
            let udp = addr.iter().any(|part| matches!(part, Protocol::Udp(_)));
            (!addr::is_public(addr), udp)
        });
        addrs.dedup();
        addrs
    }

    /// The addresses this node listens on now.
    #[must_use]
    pub fn listening(&self) -> Vec<Multiaddr> {
        self.shared.listening().clone()
    }

    /// This node's transport peer id.
    #[must_use]
    pub const fn peer_id(&self) -> PeerId {
        self.peer
    }

    /// Closes all links, telling the far sides, and ends the network.
    pub async fn shutdown(&self) {
        self.stop.cancel();
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            // It ends by itself; a panic in it has been logged by then.
            let _ = task.await;
        }
    }

    fn link(&self, node: NodeId) -> Result<Arc<Link>, SendError> {
        self.shared.peers().get(&node).and_then(|listed| listed.link.clone()).ok_or(SendError::NoLink)
    }
}

impl Listed {
    fn status(&self, node: NodeId) -> LinkStatus {
        let Some(link) = &self.link else {
            let reason = self.reason.clone();
            return LinkStatus { node, state: LinkState::Down, path: self.path, last_proof_ms: None, reason };
        };
        let (trust, last_proof_ms, reason) = link.trust();
        let state = match trust {
            Trust::Proven => LinkState::Up,
            Trust::Suspect | Trust::Unproven => LinkState::Suspect,
        };
        LinkStatus { node, state, path: self.path, last_proof_ms, reason }
    }
}

/// Notes that wait for the swarm's loop. Their senders are tasks of links, which wait, and handles, which don't need to.
const NOTES_WAITING_MAX: usize = 1024;

/// Where tasks leave notes for the swarm's loop.
#[derive(Clone, Debug)]
struct NoteSender(mpsc::Sender<Note>);

impl NoteSender {
    fn new() -> (Self, mpsc::Receiver<Note>) {
        let (sender, receiver) = mpsc::channel(NOTES_WAITING_MAX);
        (Self(sender), receiver)
    }

    /// Waits for room. A loop that is gone needs no notes.
    async fn send(&self, note: Note) {
        let _ = self.0.send(note).await;
    }

    /// Leaves a note if there is room.
    fn try_send(&self, note: Note) -> bool {
        self.0.try_send(note).is_ok()
    }

    /// Opens a stream on a connection.
    async fn open(
        &self,
        peer: PeerId,
        connection: libp2p::swarm::ConnectionId,
        purpose: stream::Purpose,
    ) -> Result<libp2p::Stream, stream::OpenError> {
        let (reply, answer) = oneshot::channel();
        self.send(Note::Open { peer, connection, purpose, reply }).await;
        answer.await.unwrap_or(Err(stream::OpenError::Closed))
    }
}

#[cfg(test)]
mod tests;
