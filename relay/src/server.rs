//! The swarm and its loop.

use std::io;
use std::time::Duration;

use futures::StreamExt;
use futures::future::Either;
use libp2p::core::Transport;
use libp2p::core::muxing::StreamMuxerBox;
use libp2p::core::transport::{Boxed, ListenerId, OrTransport, global_only};
use libp2p::core::upgrade::Version;
use libp2p::identity::Keypair;
use libp2p::kad::store::{MemoryStore, MemoryStoreConfig};
use libp2p::multiaddr::Protocol;
use libp2p::swarm::{NetworkBehaviour, SwarmEvent};
use libp2p::{
    Multiaddr, PeerId, StreamProtocol, Swarm, TransportError, connection_limits, identify, kad, noise, ping, quic, tcp,
    yamux,
};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, interval, timeout};

use crate::args::{Args, default_listen};
use crate::crowd;
use crate::key;
use crate::ready::ReadyFile;
use crate::records::{KEYS_MAX, Records};

/// The mesh's private DHT; the node speaks the same.
const KAD_PROTOCOL: StreamProtocol = StreamProtocol::new("/tieline/kad/1");
/// Protocol family, told by identify.
const IDENTIFY_PROTOCOL: &str = "/tieline/1";

/// How long an announcement is kept. Nodes announce again every half hour.
pub const PROVIDER_TTL: Duration = Duration::from_secs(2 * 60 * 60);
/// How often expired announcements are dropped.
const EXPIRE_EVERY: Duration = Duration::from_secs(60);
/// How long a connection may be without a stream. Nodes come back when they need something.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// How long a transport may take to become a connection.
const UPGRADE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long connections may take to close at the end.
const FAREWELL: Duration = Duration::from_millis(500);

/// Connections half open.
const PENDING_IN_MAX: u32 = 256;
/// Dials under way, all of the DHT.
const PENDING_OUT_MAX: u32 = 64;
/// Connections open, with a few hundred KiB each at worst.
const ESTABLISHED_IN_MAX: u32 = 1024;
/// Connections that the relay opened.
const ESTABLISHED_OUT_MAX: u32 = 256;
/// Over TCP and QUIC, and a new one before the old one's end is noticed.
const PER_PEER_MAX: u32 = 4;
/// Streams of one connection.
const STREAMS_MAX: usize = 64;
/// Streams of one connection in negotiation; each can hold 256 KiB of a stranger's bytes until it times out.
const NEGOTIATING_MAX: usize = 8;
/// Addresses taken of one peer.
const ADDRS_MAX: usize = 16;

/// Why the relay did not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// There is no key.
    #[error(transparent)]
    Key(#[from] key::KeyError),
    /// An address can't be listened on.
    #[error("listening on {addr}")]
    Listen {
        /// The address.
        addr: Multiaddr,
        /// Why not.
        source: io::Error,
    },
    /// Files, signals, or the transport.
    #[error("{what}")]
    Io {
        /// What was done.
        what: &'static str,
        /// What went wrong.
        source: io::Error,
    },
}

/// Names what was attempted.
fn doing(what: &'static str) -> impl FnOnce(io::Error) -> RelayError {
    move |source| RelayError::Io { what, source }
}

#[derive(NetworkBehaviour)]
struct Behaviour {
    limits: connection_limits::Behaviour,
    crowd: crowd::Behaviour,
    identify: identify::Behaviour,
    ping: ping::Behaviour,
    kad: kad::Behaviour<MemoryStore>,
}

/// Runs the relay until it is told to stop.
///
/// # Errors
/// When it can't start.
pub async fn run(args: &Args) -> Result<(), RelayError> {
    let mut ready = args.ready_file.as_deref().map(ReadyFile::new).transpose().map_err(doing("the ready file"))?;
    let keypair = key::load(&args.data().map_err(doing("the data folder"))?)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(doing("waiting for signals"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(doing("waiting for signals"))?;
    let mut relay = Relay::new(&keypair, args)?;
    let mut expire = interval(EXPIRE_EVERY);
    tracing::info!(peer = %relay.swarm.local_peer_id(), version = env!("CARGO_PKG_VERSION"), "relay starting");
    loop {
        tokio::select! {
            event = relay.swarm.select_next_some() => {
                if relay.handle(event) && relay.answers() {
                    let addrs = relay.addrs();
                    for addr in &addrs {
                        tracing::info!(%addr, "reachable");
                    }
                    if let Some(ready) = &mut ready {
                        ready.write(&addrs).map_err(doing("writing the ready file"))?;
                    }
                }
            }
            _ = expire.tick() => relay.expire(),
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
        }
    }
    tracing::info!("relay stopping");
    drop(ready);
    relay.hang_up().await;
    Ok(())
}

struct Relay {
    swarm: Swarm<Behaviour>,
    records: Records,
    /// Listeners that have no address yet.
    silent: Vec<ListenerId>,
}

impl Relay {
    fn new(keypair: &Keypair, args: &Args) -> Result<Self, RelayError> {
        let defaulted = args.listen.is_empty();
        let listen = if defaulted { default_listen() } else { args.listen.clone() };
        let public = !listen.iter().chain(&args.external).all(is_private);
        let transport = transport(keypair, public).map_err(doing("making the transport"))?;
        let mut swarm = swarm(keypair, transport);
        let mut silent = Vec::new();
        // All ports before the first listener: one for IPv6 is busy, too, by our own listener for IPv4.
        let checked: Vec<_> = listen.into_iter().map(|addr| (check_port(&addr), addr)).collect();
        for (checked, addr) in checked {
            match checked.and_then(|()| swarm.listen_on(addr.clone()).map_err(listen_error)) {
                Ok(listener) => silent.push(listener),
                // Boxes without IPv6 are common; whoever asked for it by name is told.
                Err(error) if defaulted && matches!(addr.iter().next(), Some(Protocol::Ip6(_))) => {
                    tracing::warn!(%addr, %error, "not listening");
                }
                Err(source) => return Err(RelayError::Listen { addr, source }),
            }
        }
        for addr in &args.external {
            swarm.add_external_address(addr.clone());
        }
        Ok(Self { swarm, records: Records::default(), silent })
    }

    /// Takes an event. True when the addresses changed.
    fn handle(&mut self, event: SwarmEvent<BehaviourEvent>) -> bool {
        match event {
            SwarmEvent::Behaviour(BehaviourEvent::Kad(kad::Event::InboundRequest {
                request: kad::InboundRequest::AddProvider { record: Some(record) },
            })) => {
                self.records.keep(self.swarm.behaviour_mut().kad.store_mut(), record, Instant::now());
                false
            }
            SwarmEvent::Behaviour(BehaviourEvent::Identify(identify::Event::Received { peer_id, info, .. })) => {
                if info.protocols.contains(&KAD_PROTOCOL) {
                    replace_addrs(&mut self.swarm.behaviour_mut().kad, peer_id, info.listen_addrs);
                }
                false
            }
            SwarmEvent::NewListenAddr { listener_id, .. } => {
                self.silent.retain(|silent| *silent != listener_id);
                true
            }
            SwarmEvent::ExpiredListenAddr { .. } => true,
            SwarmEvent::ListenerClosed { addresses, reason, .. } => {
                tracing::warn!(?addresses, ?reason, "a listener closed");
                true
            }
            SwarmEvent::IncomingConnectionError { error, .. } => {
                tracing::debug!(%error, "a connection failed");
                false
            }
            _ => false,
        }
    }

    /// Whether every listener has an address.
    fn answers(&self) -> bool {
        self.silent.is_empty()
    }

    /// Where the relay is reached, each with its peer id.
    fn addrs(&self) -> Vec<Multiaddr> {
        let peer = *self.swarm.local_peer_id();
        let addrs = self.swarm.external_addresses().chain(self.swarm.listeners()).cloned();
        let mut addrs: Vec<_> = addrs.filter_map(|addr| addr.with_p2p(peer).ok()).collect();
        addrs.sort();
        addrs.dedup();
        addrs
    }

    fn expire(&mut self) {
        self.records.expire(self.swarm.behaviour_mut().kad.store_mut(), Instant::now());
    }

    async fn hang_up(&mut self) {
        let connected: Vec<_> = self.swarm.connected_peers().copied().collect();
        for peer in connected {
            // It may have closed by itself.
            let _ = self.swarm.disconnect_peer_id(peer);
        }
        let _ = timeout(FAREWELL, async {
            while self.swarm.network_info().connection_counters().num_established() > 0 {
                self.swarm.select_next_some().await;
            }
        })
        .await;
    }
}

/// TCP with Noise and yamux, and QUIC. A `public` relay dials only public addresses: nodes tell it theirs, and one that
/// lies must not have it knock at its host's own network.
fn transport(keypair: &Keypair, public: bool) -> io::Result<Boxed<(PeerId, StreamMuxerBox)>> {
    let mut muxer = yamux::Config::default();
    muxer.set_max_num_streams(STREAMS_MAX);
    let tcp = tcp::tokio::Transport::new(tcp::Config::default().nodelay(true))
        .upgrade(Version::V1Lazy)
        .authenticate(noise::Config::new(keypair).map_err(io::Error::other)?)
        .multiplex(muxer)
        .timeout(UPGRADE_TIMEOUT)
        .map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer)));
    let mut config = quic::Config::new(keypair);
    config.max_concurrent_stream_limit = u32::try_from(STREAMS_MAX).unwrap_or(u32::MAX);
    let quic = quic::tokio::Transport::new(config).map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer)));
    let either = OrTransport::new(quic, tcp).map(|either, _| match either {
        Either::Left(output) | Either::Right(output) => output,
    });
    Ok(if public { global_only::Transport::new(either).boxed() } else { either.boxed() })
}

fn swarm(keypair: &Keypair, transport: Boxed<(PeerId, StreamMuxerBox)>) -> Swarm<Behaviour> {
    let peer = keypair.public().to_peer_id();
    let limits = connection_limits::ConnectionLimits::default()
        .with_max_pending_incoming(Some(PENDING_IN_MAX))
        .with_max_pending_outgoing(Some(PENDING_OUT_MAX))
        .with_max_established_incoming(Some(ESTABLISHED_IN_MAX))
        .with_max_established_outgoing(Some(ESTABLISHED_OUT_MAX))
        .with_max_established_per_peer(Some(PER_PEER_MAX));
    let mut config = kad::Config::new(KAD_PROTOCOL);
    config
        .set_provider_record_ttl(Some(PROVIDER_TTL))
        .set_replication_interval(None)
        .set_publication_interval(None)
        .set_caching(kad::Caching::Disabled)
        .set_record_filtering(kad::StoreInserts::FilterBoth)
        .set_kbucket_inserts(kad::BucketInserts::Manual);
    let store = MemoryStoreConfig { max_records: 0, max_provided_keys: KEYS_MAX, ..Default::default() };
    let mut kad = kad::Behaviour::with_config(peer, MemoryStore::with_config(peer, store), config);
    kad.set_mode(Some(kad::Mode::Server));
    let identify = identify::Config::new(IDENTIFY_PROTOCOL.to_owned(), keypair.public())
        .with_agent_version("tieline-relay".to_owned());
    let behaviour = Behaviour {
        limits: connection_limits::Behaviour::new(limits),
        crowd: crowd::Behaviour::default(),
        identify: identify::Behaviour::new(identify),
        ping: ping::Behaviour::default(),
        kad,
    };
    let config = libp2p::swarm::Config::with_tokio_executor()
        .with_idle_connection_timeout(IDLE_TIMEOUT)
        .with_max_negotiating_inbound_streams(NEGOTIATING_MAX);
    Swarm::new(transport, behaviour, peer, config)
}

/// Has the routing table know a peer by these addresses and no others: identify tells anew whatever changed, and a
/// peer that told others each time would grow its entry, and the answers that name it, without bound.
fn replace_addrs(kad: &mut kad::Behaviour<MemoryStore>, peer: PeerId, addrs: impl IntoIterator<Item = Multiaddr>) {
    let addrs = addrs.into_iter().filter_map(|addr| addr.with_p2p(peer).ok());
    let addrs: Vec<_> = addrs.take(ADDRS_MAX).collect();
    if addrs.is_empty() {
        return;
    }
    let entry = kad.kbucket(peer).and_then(|bucket| {
        let entry = bucket.iter().find(|entry| *entry.node.key.preimage() == peer)?;
        Some(entry.node.value.iter().cloned().collect::<Vec<_>>())
    });
    match entry {
        Some(known) => {
            for addr in &addrs {
                kad.add_address(&peer, addr.clone());
            }
            // Only now: an entry without an address is removed, and would come back as a new peer.
            for addr in known.iter().filter(|addr| !addrs.contains(addr)) {
                kad.remove_address(&peer, addr);
            }
        }
        None => {
            // One that waits for a place in a full bucket is not shown.
            kad.remove_peer(&peer);
            for addr in addrs {
                kad.add_address(&peer, addr);
            }
        }
    }
}

/// Whether an address is of a private network or of this box alone.
fn is_private(addr: &Multiaddr) -> bool {
    match addr.iter().next() {
        Some(Protocol::Ip4(ip)) => ip.is_private() || ip.is_loopback(),
        Some(Protocol::Ip6(ip)) => ip.is_unique_local() || ip.is_loopback(),
        _ => false,
    }
}

/// Checks that nobody else listens on a port. The TCP transport shares its port with whoever allows it, so two relays
/// would both start on one port and each get half of the connections.
fn check_port(addr: &Multiaddr) -> io::Result<()> {
    let mut parts = addr.iter();
    let ip: std::net::IpAddr = match parts.next() {
        Some(Protocol::Ip4(ip)) => ip.into(),
        Some(Protocol::Ip6(ip)) => ip.into(),
        _ => return Ok(()),
    };
    match parts.next() {
        Some(Protocol::Tcp(port @ 1..)) => std::net::TcpListener::bind((ip, port)).map(drop),
        Some(Protocol::Udp(port @ 1..)) => std::net::UdpSocket::bind((ip, port)).map(drop),
        _ => Ok(()),
    }
}

fn listen_error(error: TransportError<io::Error>) -> io::Error {
    match error {
        TransportError::Other(error) => error,
        TransportError::MultiaddrNotSupported(_) => {
            io::Error::new(io::ErrorKind::Unsupported, "no transport for this kind of address")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threat_w5_a_peer_s_addresses_are_replaced_not_gathered() {
        let own = PeerId::random();
        let mut kad = kad::Behaviour::with_config(own, MemoryStore::new(own), kad::Config::new(KAD_PROTOCOL));
        let peer = PeerId::random();
        let told = |round: usize| {
            let port = move |at: usize| 1000 + 20 * round + at;
            (0..20).map(move |at| format!("/ip4/203.0.113.9/tcp/{}", port(at)).parse::<Multiaddr>().unwrap())
        };
        for round in 0..100 {
            replace_addrs(&mut kad, peer, told(round));
        }
        let bucket = kad.kbucket(peer).unwrap();
        let entry = bucket.iter().find(|entry| *entry.node.key.preimage() == peer).unwrap();
        let known: Vec<_> = entry.node.value.iter().cloned().collect();
        let last: Vec<_> = told(99).take(ADDRS_MAX).map(|addr| addr.with_p2p(peer).unwrap()).collect();
        assert_eq!(known, last);
        // Nothing usable is no news.
        replace_addrs(&mut kad, peer, None);
        assert!(kad.kbucket(peer).unwrap().iter().any(|entry| *entry.node.key.preimage() == peer));
    }
}
