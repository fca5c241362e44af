//! The swarm's loop: one task that waits, feeds what happened to the parts that decide, and acts.
//!
//! | module | is |
//! |---|---|
//! | `attempts` | trying to link with nodes that are wanted |
//! | `links` | handshakes' outcomes, and which of two links stays |

mod attempts;
mod links;

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::StreamExt;
use libp2p::core::ConnectedPoint;
use libp2p::swarm::{ConnectionId, SwarmEvent};
use libp2p::{Multiaddr, PeerId, Stream, Swarm, TransportError};
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng;
use tieline_proto::id::NodeId;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Duration, Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::addr::{Guard, ip_of, is_public};
use super::discovery::{self, Discovery};
use super::events::{EventSender, NetEvent};
use super::handshake::{HANDSHAKE_TIMEOUT, Identity};
use super::link::{CloseReason, Established, Link, stopping};
use super::pair::{Desk, DeskHandle};
use super::peers::Peer;
use super::stream::{Inbound, OpenError, Purpose};
use super::swarm::{Behaviour, BehaviourEvent};
use super::{NetConfig, NetError, NoteSender, OrgView, PeerHints, Shared, WallClock};
use links::Ended;

/// Difference between wall clock and monotonic clock within one look at which the box is taken to have slept, or the
/// clock to have been set. Smaller ones are clocks being disciplined.
const CLOCK_JUMP_MS: u64 = 30_000;

/// How often the clocks are looked at.
const CLOCK_EVERY: Duration = Duration::from_secs(2);

/// Inbound connections of strangers above which the oldest makes way; below what the swarm's own limit refuses.
const STRANGERS_MAX: usize = 128;

/// How long closing links may take when the node stops.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// How long connections may take to close then.
const HANG_UP_TIMEOUT: Duration = Duration::from_millis(500);

/// What tasks and handles tell the loop.
#[derive(Debug)]
pub(super) enum Note {
    /// Open a stream.
    Open { peer: PeerId, connection: ConnectionId, purpose: Purpose, reply: oneshot::Sender<Result<Stream, OpenError>> },
    /// Something happened after which no link can be trusted unseen.
    Doubt(&'static str),
}

/// What a driver is made of.
pub(super) struct Parts {
    pub config: NetConfig,
    pub swarm: Swarm<Behaviour>,
    pub guard: Guard,
    pub org: watch::Receiver<Arc<OrgView>>,
    pub wanted: watch::Receiver<BTreeMap<NodeId, PeerHints>>,
    pub notes: (NoteSender, mpsc::Receiver<Note>),
    pub events: EventSender,
    pub shared: Arc<Shared>,
    pub stop: CancellationToken,
}

/// A connection, as far as links need to know it.
#[derive(Clone, Debug)]
struct Connection {
    remote: Multiaddr,
    dialled: bool,
    since: Instant,
}

/// The loop's state.
pub(super) struct Driver {
    swarm: Swarm<Behaviour>,
    guard: Guard,
    bootstrap: Vec<Multiaddr>,
    /// Addresses the owner gave; never withdrawn.
    external: Vec<Multiaddr>,
    keys: Arc<tieline_proto::crypto::keys::DeviceKeys>,
    node: NodeId,
    org: watch::Receiver<Arc<OrgView>>,
    view: Arc<OrgView>,
    wanted: watch::Receiver<BTreeMap<NodeId, PeerHints>>,
    note_sender: NoteSender,
    notes: mpsc::Receiver<Note>,
    events: EventSender,
    listening: watch::Sender<Vec<Multiaddr>>,
    shared: Arc<Shared>,
    stop: CancellationToken,
    rng: ChaCha20Rng,
    wall: WallClock,
    /// The clocks as last seen.
    clocks: (Instant, u64),
    clock_at: Instant,
    discovery: Discovery,
    peers: BTreeMap<NodeId, Peer>,
    connections: BTreeMap<PeerId, BTreeMap<ConnectionId, Connection>>,
    links: BTreeMap<NodeId, Arc<Link>>,
    /// Links that wait for the one before them to end.
    successors: BTreeMap<NodeId, Established>,
    running: JoinSet<Ended>,
    handshakes: JoinSet<links::Shaken>,
    /// Handshakes of others under way, by peer.
    half_open: BTreeMap<PeerId, usize>,
    links_made: u64,
    desk: DeskHandle,
    _desk_task: AbortOnDropHandle<()>,
}

impl Driver {
    /// The driver, and the handle of the desk it keeps for pairing.
    pub(super) fn new(parts: Parts) -> Result<(Self, DeskHandle), NetError> {
        let Parts { config, mut swarm, guard, mut org, mut wanted, notes, events, shared, stop } = parts;
        let NetConfig { keypair: _, listen, external, bootstrap, device, mut rng, wall } = config;
        for addr in listen {
            swarm.listen_on(addr.clone()).map_err(|error| NetError::Listen { addr, source: listen_error(error) })?;
        }
        for addr in &external {
            swarm.add_external_address(addr.clone());
        }
        discovery::set_mode(&mut swarm, &guard, &bootstrap);
        let now = Instant::now();
        let view = org.borrow_and_update().clone();
        wanted.mark_changed();
        let listening = watch::Sender::new(Vec::new());
        tokio::spawn(tell_listening(listening.subscribe(), events.clone()));
        let peer = *swarm.local_peer_id();
        let (desk, desk_task) = Desk::new(view.org.fingerprint(), device.clone(), peer, events.clone(), rng.fork());
        let driver = Self {
            swarm,
            desk: desk.clone(),
            _desk_task: AbortOnDropHandle::new(tokio::spawn(desk_task.run())),
            discovery: Discovery::new(&bootstrap, now),
            guard,
            bootstrap,
            external,
            node: device.device(),
            keys: device,
            org,
            view,
            wanted,
            note_sender: notes.0,
            notes: notes.1,
            events,
            listening,
            shared,
            stop,
            rng,
            clocks: (now, wall()),
            clock_at: now + CLOCK_EVERY,
            wall,
            peers: BTreeMap::new(),
            connections: BTreeMap::new(),
            links: BTreeMap::new(),
            successors: BTreeMap::new(),
            running: JoinSet::new(),
            handshakes: JoinSet::new(),
            half_open: BTreeMap::new(),
            links_made: 0,
        };
        Ok((driver, desk))
    }

    /// Runs until it is told to stop, or nobody holds a handle any more.
    pub(super) async fn run(mut self) {
        loop {
            self.tend(Instant::now());
            let wake_at = self.wake_at();
            tokio::select! {
                () = self.stop.cancelled() => break,
                event = self.swarm.select_next_some() => self.on_swarm(event),
                Some(note) = self.notes.recv() => self.on_note(note),
                Some(shaken) = self.handshakes.join_next() => match shaken {
                    Ok(shaken) => self.on_shaken(shaken),
                    Err(error) => tracing::error!(%error, "a handshake ended abnormally"),
                },
                Some(ended) = self.running.join_next() => match ended {
                    Ok(ended) => self.on_ended(ended),
                    Err(error) => tracing::error!(%error, "a link ended abnormally"),
                },
                Ok(()) = self.org.changed() => self.on_org(),
                wanted = self.wanted.changed() => match wanted {
                    Ok(()) => self.on_wanted(),
                    Err(_) => break,
                },
                () = sleep_until(wake_at) => {}
            }
        }
        self.shut_down().await;
    }

    fn tend(&mut self, now: Instant) {
        if self.clock_at <= now {
            self.look_at_clocks(now);
        }
        self.discovery.tend(&mut self.swarm, &self.view, (self.wall)(), now);
        self.tend_attempts(now);
    }

    fn wake_at(&self) -> Instant {
        let waiting = self.peers.iter().filter(|(node, _)| !self.links.contains_key(node));
        let peers = waiting.map(|(_, peer)| peer.wake_at()).min();
        let others = self.clock_at.min(self.discovery.wake_at());
        peers.map_or(others, |at| at.min(others))
    }

    /// Tells sleep, and a clock that was set, by the two clocks' going apart.
    fn look_at_clocks(&mut self, now: Instant) {
        let wall = (self.wall)();
        let (mono_before, wall_before) = self.clocks;
        let expected = wall_before.saturating_add(millis(now - mono_before));
        self.clocks = (now, wall);
        self.clock_at = now + CLOCK_EVERY;
        if wall.abs_diff(expected) > CLOCK_JUMP_MS {
            tracing::info!(jump_ms = wall.abs_diff(expected), "the clock jumped: all links are probed");
            self.doubt("a jump of the clock", now);
            // An offer lives by a clock that stands still while the box sleeps.
            self.desk.clock_jumped();
            self.discovery.changed(now);
        }
    }

    /// Probes all links, and tries those that are down at once.
    fn doubt(&mut self, because: &'static str, now: Instant) {
        for link in self.links.values() {
            link.suspect(because);
        }
        for peer in self.peers.values_mut() {
            peer.hurry(now, false);
        }
        self.discovery.moved(now);
    }

    fn on_note(&mut self, note: Note) {
        match note {
            Note::Open { peer, connection, purpose, reply } => {
                let known = self.connections.get(&peer).is_some_and(|of_peer| of_peer.contains_key(&connection));
                if known {
                    self.swarm.behaviour_mut().streams.open(peer, connection, purpose, reply);
                }
            }
            Note::Doubt(because) => self.doubt(because, Instant::now()),
        }
    }

    fn on_org(&mut self) {
        self.view = self.org.borrow_and_update().clone();
        let now = Instant::now();
        for (node, link) in &self.links {
            if self.view.org.live(node).is_none() {
                link.close(CloseReason::new("refused", format!("device {} is revoked", node.short())));
            }
        }
        for peer in self.peers.values_mut() {
            peer.hurry(now, true);
        }
        self.discovery.changed(now);
    }

    fn on_wanted(&mut self) {
        let mut wanted = self.wanted.borrow_and_update().clone();
        wanted.remove(&self.node);
        self.shared.want(&wanted);
        let now = Instant::now();
        for (_, gone) in self.peers.iter().filter(|(node, _)| !wanted.contains_key(node)) {
            if let Some(attempt) = &gone.attempt {
                attempt.cancel.cancel();
            }
        }
        self.peers.retain(|node, _| wanted.contains_key(node));
        for (node, hints) in wanted {
            if let Some(peer) = hints.peer_id {
                self.swarm.behaviour_mut().limits.bypass_peer_id(&peer);
            }
            let peer = self.peers.entry(node).or_insert_with(|| Peer::new(PeerHints::default(), now));
            if peer.hints != hints {
                peer.hint(hints, now);
            }
        }
    }

    fn on_swarm(&mut self, event: SwarmEvent<BehaviourEvent>) {
        let now = Instant::now();
        match event {
            SwarmEvent::Behaviour(BehaviourEvent::Kad(event)) => {
                if let Some(found) = self.discovery.on_kad(&mut self.swarm, event, now) {
                    self.on_found(found);
                }
            }
            SwarmEvent::Behaviour(BehaviourEvent::Identify(event)) => {
                self.discovery.on_identify(&mut self.swarm, event, &self.guard);
            }
            SwarmEvent::Behaviour(BehaviourEvent::Streams(inbound)) => self.on_stream(inbound),
            SwarmEvent::ConnectionEstablished { peer_id, connection_id, endpoint, .. } => {
                let (remote, dialled) = match endpoint {
                    ConnectedPoint::Dialer { address, .. } => (address, true),
                    ConnectedPoint::Listener { send_back_addr, .. } => (send_back_addr, false),
                };
                let of_peer = self.connections.entry(peer_id).or_default();
                of_peer.insert(connection_id, Connection { remote, dialled, since: now });
                self.make_room(now);
                self.discovery.on_connected(connection_id, peer_id);
                self.on_connected(peer_id, connection_id, now);
            }
            SwarmEvent::ConnectionClosed { peer_id, connection_id, .. } => {
                if let Some(of_peer) = self.connections.get_mut(&peer_id) {
                    of_peer.remove(&connection_id);
                    if of_peer.is_empty() {
                        self.connections.remove(&peer_id);
                    }
                }
            }
            SwarmEvent::OutgoingConnectionError { connection_id, error, .. } => {
                self.discovery.on_dial_failed(connection_id, now, &mut self.rng);
                self.on_dial_failed(connection_id, &error);
            }
            SwarmEvent::NewListenAddr { address, .. } => {
                tracing::info!(%address, "listening");
                if self.is_worth_telling(&address) {
                    self.swarm.add_external_address(address);
                }
                self.on_listening(now);
            }
            SwarmEvent::ExpiredListenAddr { address, .. } => {
                tracing::info!(%address, "no longer listening");
                if !self.external.contains(&address) {
                    self.swarm.remove_external_address(&address);
                }
                self.on_listening(now);
            }
            SwarmEvent::ListenerClosed { addresses, reason, .. } => {
                tracing::warn!(?addresses, ?reason, "a listener closed");
                self.on_listening(now);
            }
            SwarmEvent::ListenerError { error, .. } => tracing::debug!(%error, "a listener's error"),
            SwarmEvent::IncomingConnectionError { error, .. } => tracing::debug!(%error, "a connection to us failed"),
            _ => {}
        }
    }

    /// Closes the oldest stranger's connection when there are many, so that a newcomer of the org, whose peer id is not
    /// known yet, finds room. Those that may still be shaking hands are left alone.
    fn make_room(&mut self, now: Instant) {
        let strangers = self.connections.iter().filter(|(peer, _)| !self.swarm.behaviour().limits.is_bypassed(peer));
        let inbound = strangers.flat_map(|(_, of_peer)| of_peer).filter(|(_, connection)| !connection.dialled);
        let (mut count, mut oldest) = (0, None);
        for (id, connection) in inbound {
            count += 1;
            if oldest.is_none_or(|(since, _)| connection.since < since) {
                oldest = Some((connection.since, *id));
            }
        }
        if count > STRANGERS_MAX
            && let Some((since, id)) = oldest
            && now - since > HANDSHAKE_TIMEOUT
        {
            self.swarm.close_connection(id);
        }
    }

    /// Whether others could use this address of ours. Private ones are of use to those on the same network.
    fn is_worth_telling(&self, addr: &Multiaddr) -> bool {
        ip_of(addr).is_some() && (is_public(addr) || self.guard.check(addr).is_ok())
    }

    /// The listen addresses changed: the network did, if it is not the start.
    fn on_listening(&mut self, now: Instant) {
        let listening: Vec<_> = self.swarm.listeners().cloned().collect();
        self.shared.listening().clone_from(&listening);
        self.listening.send_replace(listening);
        discovery::set_mode(&mut self.swarm, &self.guard, &self.bootstrap);
        self.doubt("a change of network", now);
    }

    fn on_stream(&mut self, inbound: Inbound) {
        let Inbound { peer, connection, purpose, stream } = inbound;
        match purpose {
            Purpose::Link => self.answer(peer, connection, stream),
            Purpose::Lane => {
                let mut links = self.links.values();
                let link = links.find(|link| link.connection == connection && link.peer == peer);
                // Dropped, the stream is reset, and its opener closes the link.
                if !link.is_some_and(|link| link.accept_lane(stream)) {
                    tracing::debug!(%peer, "a lane's stream without a link");
                }
            }
            Purpose::Pair => self.desk.stream(peer, stream),
        }
    }

    fn identity(&self) -> Identity {
        Identity { keys: self.keys.clone(), peer: *self.swarm.local_peer_id(), view: self.view.clone() }
    }

    fn fork(&mut self) -> ChaCha20Rng {
        self.rng.fork()
    }

    /// Closes all connections in good order, so that what was written last goes out.
    async fn hang_up(&mut self) {
        let connected: Vec<_> = self.swarm.connected_peers().copied().collect();
        for peer in connected {
            // It may have closed by itself.
            let _ = self.swarm.disconnect_peer_id(peer);
        }
        let _ = timeout(HANG_UP_TIMEOUT, async {
            while self.swarm.network_info().connection_counters().num_established() > 0 {
                self.swarm.select_next_some().await;
            }
        })
        .await;
    }

    async fn shut_down(mut self) {
        self.handshakes.abort_all();
        self.successors.clear();
        for link in self.links.values() {
            link.close(stopping());
        }
        // The swarm goes on meanwhile, or nothing would be written. The loop of the node may not read any more.
        let swarm = &mut self.swarm;
        let running = &mut self.running;
        let _ = timeout(SHUTDOWN_TIMEOUT, async {
            loop {
                tokio::select! {
                    ended = running.join_next() => if ended.is_none() { break },
                    _ = swarm.select_next_some() => {}
                }
            }
        })
        .await;
        self.shared.peers().clear();
        self.hang_up().await;
    }
}

/// Tells the node's loop where this node listens; the latest only, when the loop is slow.
async fn tell_listening(mut listening: watch::Receiver<Vec<Multiaddr>>, events: EventSender) {
    while listening.changed().await.is_ok() {
        let addrs = listening.borrow_and_update().clone();
        if events.control(0, NetEvent::Listening(addrs)).await.is_err() {
            break;
        }
    }
}

fn listen_error(error: TransportError<std::io::Error>) -> std::io::Error {
    match error {
        TransportError::Other(error) => error,
        TransportError::MultiaddrNotSupported(_) => {
            std::io::Error::new(std::io::ErrorKind::Unsupported, "no transport for this kind of address")
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
