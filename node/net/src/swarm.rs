//! The libp2p swarm: transports, behaviours and their bounds.

use std::io;
use std::time::Duration;

use libp2p::core::Transport;
use libp2p::core::muxing::StreamMuxerBox;
use libp2p::core::transport::{Boxed, OrTransport};
use libp2p::core::upgrade::Version;
use libp2p::futures::future::Either;
use libp2p::identity::Keypair;
use libp2p::kad::store::{MemoryStore, MemoryStoreConfig};
use libp2p::swarm::NetworkBehaviour;
use libp2p::{
    Multiaddr, PeerId, StreamProtocol, Swarm, connection_limits, dns, identify, kad, noise, ping, quic, tcp, yamux,
};

use super::addr::{Guard, Guarded, socket_of};
use super::stream;

/// The DHT's own protocol name: this mesh never joins a public DHT.
pub const KAD_PROTOCOL: StreamProtocol = StreamProtocol::new("/tieline/kad/1");

/// Protocol family told to peers by identify.
pub const IDENTIFY_PROTOCOL: &str = "/tieline/1";

/// How long a provider record lives at those who store it.
pub const PROVIDER_TTL: Duration = Duration::from_secs(2 * 60 * 60);

/// How often a provider record is announced again. Stores are in memory, so a restarted one is refilled this soon.
pub const PROVIDER_REPUBLISH: Duration = Duration::from_secs(30 * 60);

/// How long a DHT query may take: long enough for several dead peers in a row.
pub const QUERY_TIMEOUT: Duration = Duration::from_secs(20);

/// Topics of strangers whose providers this node keeps as part of the DHT. Some 5 MiB with a provider or two each.
pub const KEYS_KEPT_MAX: usize = 4096;

/// Topics that this node provides itself: room that strangers can't take.
const KEYS_OWN_MAX: usize = 16;

/// How long a transport may take to become a connection.
const UPGRADE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a connection without streams is kept. Links hold a stream and never fall under it; this is for DHT peers,
/// whose quick return is worth more than their slot.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60 * 60);

/// Connections that strangers may have half open (`security.md` W5).
const PENDING_IN_MAX: u32 = 64;
/// Dials under way, of links and of the DHT together.
const PENDING_OUT_MAX: u32 = 64;
/// Connections that strangers may hold. Peers of the org are let past every limit.
const ESTABLISHED_IN_MAX: u32 = 192;
/// Connections this node may hold to strangers, which are DHT peers.
const ESTABLISHED_OUT_MAX: u32 = 128;
/// Both directions of a simultaneous dial, each over TCP and QUIC.
const PER_PEER_MAX: u32 = 4;
/// Streams of one connection that may be in negotiation; each can hold 256 KiB of a stranger's bytes until it times
/// out. Lanes are opened a few at a time, so this is far more than a link needs.
const NEGOTIATING_MAX: usize = 32;
/// Streams of one connection: one link with all its lanes in both directions, and the DHT's.
const STREAMS_MAX: usize = 768;
/// Peers whose addresses identify remembers for dialling.
const IDENTIFY_CACHE: usize = 64;

/// The swarm's behaviours.
#[derive(NetworkBehaviour)]
pub struct Behaviour {
    /// Refuses what exceeds the bounds; first, so that nothing is done for a refused connection.
    pub limits: connection_limits::Behaviour,
    /// Tells peers our addresses and learns theirs.
    pub identify: identify::Behaviour,
    /// Keeps NAT mappings alive and measures round trips.
    pub ping: ping::Behaviour,
    /// Finds peers by topic.
    pub kad: kad::Behaviour<MemoryStore>,
    /// Our own streams.
    pub streams: stream::Behaviour,
}

/// A transport that the swarm can be built on: the real one, or a simulated network.
pub type BoxedTransport = Boxed<(PeerId, StreamMuxerBox)>;

/// TCP with Noise and yamux, and QUIC, behind name resolution, dialling only what `guard` allows.
///
/// # Errors
/// When the Noise identity can't be made.
pub fn transport(keypair: &Keypair, guard: &Guard) -> io::Result<BoxedTransport> {
    match dns::tokio::Transport::system(unresolved(keypair, guard)?) {
        Ok(resolving) => Ok(resolving.boxed()),
        // Where there is no resolver, addresses that need none still work.
        Err(error) => {
            tracing::warn!(%error, "no name resolution: only numeric addresses are dialled");
            Ok(unresolved(keypair, guard)?.boxed())
        }
    }
}

fn unresolved(keypair: &Keypair, guard: &Guard) -> io::Result<Guarded<BoxedTransport>> {
    let mut muxer = yamux::Config::default();
    muxer.set_max_num_streams(STREAMS_MAX);
    let tcp = tcp::tokio::Transport::new(tcp::Config::default().nodelay(true))
        .upgrade(Version::V1Lazy)
        .authenticate(noise::Config::new(keypair).map_err(io::Error::other)?)
        .multiplex(muxer)
        .timeout(UPGRADE_TIMEOUT)
        .map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer)));
    let mut config = quic::Config::new(keypair);
    config.max_concurrent_stream_limit = u32::try_from(STREAMS_MAX / 2).unwrap_or(u32::MAX);
    let quic = quic::tokio::Transport::new(config).map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer)));
    let either = OrTransport::new(quic, tcp).map(|either, _| match either {
        Either::Left(output) | Either::Right(output) => output,
    });
    Ok(Guarded::new(either.boxed(), guard.clone()))
}

/// A swarm over `transport`. It listens nowhere yet. With `smart_dial`, QUIC has a head start over TCP and IPv6 over
/// IPv4; over a transport of one kind there is nothing to rank.
#[must_use]
pub fn build(keypair: &Keypair, transport: BoxedTransport, smart_dial: bool) -> Swarm<Behaviour> {
    let peer = keypair.public().to_peer_id();
    let limits = connection_limits::ConnectionLimits::default()
        .with_max_pending_incoming(Some(PENDING_IN_MAX))
        .with_max_pending_outgoing(Some(PENDING_OUT_MAX))
        .with_max_established_incoming(Some(ESTABLISHED_IN_MAX))
        .with_max_established_outgoing(Some(ESTABLISHED_OUT_MAX))
        .with_max_established_per_peer(Some(PER_PEER_MAX));
    let identify = identify::Config::new(IDENTIFY_PROTOCOL.to_owned(), keypair.public())
        // The version is nobody's business but the org's, which learns it by link.
        .with_agent_version("tieline".to_owned())
        .with_push_listen_addr_updates(true)
        .with_cache_size(IDENTIFY_CACHE);
    let behaviour = Behaviour {
        limits: connection_limits::Behaviour::new(limits),
        identify: identify::Behaviour::new(identify),
        ping: ping::Behaviour::default(),
        kad: kademlia(peer),
        streams: stream::Behaviour::default(),
    };
    let config = libp2p::swarm::Config::with_tokio_executor()
        .with_idle_connection_timeout(IDLE_TIMEOUT)
        .with_max_negotiating_inbound_streams(NEGOTIATING_MAX)
        // A stream's protocol is named in its first packet, without waiting for an answer: a round trip less for every
        // lane and every handshake.
        .with_substream_upgrade_protocol_override(Version::V1Lazy);
    let config = if smart_dial { config.with_smart_dial() } else { config };
    Swarm::new(transport, behaviour, peer, config)
}

fn kademlia(peer: PeerId) -> kad::Behaviour<MemoryStore> {
    let mut config = kad::Config::new(KAD_PROTOCOL);
    config
        .set_provider_record_ttl(Some(PROVIDER_TTL))
        .set_provider_publication_interval(Some(PROVIDER_REPUBLISH))
        .set_query_timeout(QUERY_TIMEOUT)
        // Values are neither stored nor sought; nothing to replicate.
        .set_replication_interval(None)
        .set_publication_interval(None)
        .set_caching(kad::Caching::Disabled)
        // Both go through our own bounds: see `discovery`.
        .set_record_filtering(kad::StoreInserts::FilterBoth)
        .set_kbucket_inserts(kad::BucketInserts::Manual);
    let store =
        MemoryStoreConfig { max_records: 0, max_provided_keys: KEYS_KEPT_MAX + KEYS_OWN_MAX, ..Default::default() };
    let mut kad = kad::Behaviour::with_config(peer, MemoryStore::with_config(peer, store), config);
    kad.set_mode(Some(kad::Mode::Client));
    kad
}

/// Checks that nobody else listens on the port of `addr`.
///
/// The TCP transport shares its port with whoever allows it (`SO_REUSEPORT`, which it needs to dial from its listening
/// port), so two nodes would both start on one port and each get half of the connections.
///
/// # Errors
/// `AddrInUse` when somebody does; another error when the address is not of this box.
pub fn check_port(addr: &Multiaddr) -> io::Result<()> {
    use libp2p::multiaddr::Protocol;
    let Some(socket) = socket_of(addr).filter(|(_, port)| *port != 0) else { return Ok(()) };
    if addr.iter().any(|part| matches!(part, Protocol::Udp(_))) {
        std::net::UdpSocket::bind(socket).map(drop)
    } else {
        std::net::TcpListener::bind(socket).map(drop)
    }
}
