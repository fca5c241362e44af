//! The DHT: how this node enters it, is found in it, and finds others.
//!
//! Homes announce themselves under the topics of today and the days beside it; whoever looks for a node asks for the
//! providers of these topics and for the node's own peer id. Every answer is a hint: what it names is dialled within
//! bounds, and believed only after the link's handshake.

use std::collections::{BTreeMap, BTreeSet};

use libp2p::kad::store::{MemoryStore, RecordStore};
use libp2p::kad::{
    self, GetClosestPeersError, GetClosestPeersOk, GetProvidersOk, InboundRequest, QueryId, QueryResult,
};
use libp2p::multiaddr::Protocol;
use libp2p::swarm::ConnectionId;
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::{Multiaddr, PeerId, Swarm, identify};
use rand_chacha::ChaCha20Rng;
use tieline_proto::topic::{Day, Topic, topics};
use tokio::time::{Duration, Instant};

use super::OrgView;
use super::addr::{Guard, is_public};
use super::peers::{RETRY_CAP, backoff};
use super::swarm::{Behaviour, KAD_PROTOCOL, KEYS_KEPT_MAX, PROVIDER_TTL};

/// Addresses kept of one peer: a box has a few interfaces, two transports each.
pub(super) const ADDRS_PER_PEER_MAX: usize = 16;

/// How often announcements are looked after: the day may have changed.
const TEND_EVERY: Duration = Duration::from_secs(60);

/// How long changes of addresses and of the routing table are gathered before topics are announced again.
const SETTLE: Duration = Duration::from_millis(200);

/// What the DHT found.
#[derive(Debug)]
pub(super) enum Found {
    /// Peers that say they provide one of the org's topics. The swarm knows addresses for them until the query ends.
    Providers(Vec<PeerId>),
    /// The look-up of topics ended.
    Sought,
    /// The peers nearest to one that was looked for.
    Near(QueryId, Vec<kad::PeerInfo>),
}

/// A peer by which the DHT is entered.
#[derive(Debug)]
struct Entrance {
    addr: Multiaddr,
    peer: Option<PeerId>,
    dial: Option<ConnectionId>,
    failures: u32,
    retry_at: Instant,
}

/// This node's part in the DHT.
#[derive(Debug)]
pub(super) struct Discovery {
    entrances: Vec<Entrance>,
    announced: BTreeSet<Topic>,
    announce_at: Option<Instant>,
    tend_at: Instant,
    seeking: Vec<QueryId>,
    /// Strangers' topics that are kept, and until when.
    kept: BTreeMap<Vec<u8>, Instant>,
}

impl Discovery {
    pub(super) fn new(bootstrap: &[Multiaddr], now: Instant) -> Self {
        let entrance = |addr: &Multiaddr| {
            let (addr, peer) = split_peer(addr);
            Entrance { addr, peer, dial: None, failures: 0, retry_at: now }
        };
        Self {
            entrances: bootstrap.iter().map(entrance).collect(),
            announced: BTreeSet::new(),
            announce_at: None,
            tend_at: now,
            seeking: Vec::new(),
            kept: BTreeMap::new(),
        }
    }

    /// When [`Discovery::tend`] has something to do, at the latest.
    pub(super) fn wake_at(&self) -> Instant {
        let entrances = self.entrances.iter().filter(|entrance| entrance.dial.is_none());
        let times = entrances.map(|entrance| entrance.retry_at).chain(self.announce_at);
        times.min().map_or(self.tend_at, |at| at.min(self.tend_at))
    }

    /// Does what is due: enters the DHT, announces topics, drops what has expired.
    pub(super) fn tend(&mut self, swarm: &mut Swarm<Behaviour>, view: &OrgView, wall: u64, now: Instant) {
        self.enter(swarm, now);
        if self.announce_at.is_some_and(|at| at <= now) || self.tend_at <= now {
            self.announce_at = None;
            self.tend_at = now + TEND_EVERY;
            self.announce(swarm, view, wall);
            self.expire(swarm, now);
        }
    }

    /// Addresses changed: others must hear of it.
    pub(super) fn moved(&mut self, now: Instant) {
        self.announce_at.get_or_insert(now + SETTLE);
        for entrance in &mut self.entrances {
            entrance.failures = 0;
            entrance.retry_at = entrance.retry_at.min(now);
        }
    }

    /// What this node provides may have changed.
    pub(super) const fn changed(&mut self, now: Instant) {
        self.announce_at = Some(now);
    }

    /// Looks up the org's topics, unless that is under way. False when there is nobody to ask.
    pub(super) fn seek(&mut self, swarm: &mut Swarm<Behaviour>, view: &OrgView, wall: u64) -> bool {
        if self.seeking.is_empty() && has_peers(swarm) {
            for topic in wanted_topics(view, wall) {
                self.seeking.push(swarm.behaviour_mut().kad.get_providers(key(&topic)));
            }
        }
        !self.seeking.is_empty()
    }

    /// Looks up a peer's addresses. `None` when there is nobody to ask.
    pub(super) fn look_up(&self, swarm: &mut Swarm<Behaviour>, peer: PeerId) -> Option<QueryId> {
        has_peers(swarm).then(|| swarm.behaviour_mut().kad.get_closest_peers(peer))
    }

    /// Takes an event of the DHT.
    pub(super) fn on_kad(&mut self, swarm: &mut Swarm<Behaviour>, event: kad::Event, now: Instant) -> Option<Found> {
        match event {
            kad::Event::RoutingUpdated { is_new_peer: true, .. } => {
                // Announcements made before anybody was known reached nobody.
                self.announce_at.get_or_insert(now + SETTLE);
                None
            }
            kad::Event::InboundRequest { request: InboundRequest::AddProvider { record: Some(record) } } => {
                self.keep(swarm, record, now);
                None
            }
            kad::Event::OutboundQueryProgressed { id, result, step, .. } => self.progressed(id, result, step.last),
            _ => None,
        }
    }

    /// Takes what a peer says of itself. Only its own word goes into the routing table, and only usable addresses.
    pub(super) fn on_identify(&self, swarm: &mut Swarm<Behaviour>, event: identify::Event, guard: &Guard) {
        let identify::Event::Received { peer_id, info, .. } = event else { return };
        if !info.protocols.contains(&KAD_PROTOCOL) {
            return;
        }
        let usable = info.listen_addrs.into_iter().filter(|addr| guard.check(addr).is_ok());
        replace_addrs(&mut swarm.behaviour_mut().kad, peer_id, usable);
    }

    /// A connection was made; perhaps to an entrance.
    pub(super) fn on_connected(&mut self, connection: ConnectionId, peer: PeerId) {
        for entrance in &mut self.entrances {
            if entrance.dial == Some(connection) || entrance.peer == Some(peer) {
                entrance.peer = Some(peer);
                entrance.dial = None;
                entrance.failures = 0;
            }
        }
    }

    /// A dial failed; perhaps of an entrance.
    pub(super) fn on_dial_failed(&mut self, connection: ConnectionId, now: Instant, rng: &mut ChaCha20Rng) {
        for entrance in self.entrances.iter_mut().filter(|entrance| entrance.dial == Some(connection)) {
            entrance.dial = None;
            entrance.retry_at = now + backoff(entrance.failures, rng);
            entrance.failures = entrance.failures.saturating_add(1);
        }
    }

    fn enter(&mut self, swarm: &mut Swarm<Behaviour>, now: Instant) {
        for entrance in self.entrances.iter_mut().filter(|entrance| entrance.dial.is_none() && entrance.retry_at <= now)
        {
            entrance.retry_at = now + RETRY_CAP;
            if entrance.peer.is_some_and(|peer| swarm.is_connected(&peer)) {
                continue;
            }
            let opts = match entrance.peer {
                Some(peer) => DialOpts::peer_id(peer)
                    .condition(PeerCondition::DisconnectedAndNotDialing)
                    .addresses(vec![entrance.addr.clone()])
                    .build(),
                None => DialOpts::unknown_peer_id().address(entrance.addr.clone()).build(),
            };
            let connection = opts.connection_id();
            match swarm.dial(opts) {
                Ok(()) => entrance.dial = Some(connection),
                Err(error) => tracing::debug!(addr = %entrance.addr, %error, "bootstrap peer not dialled"),
            }
        }
    }

    fn announce(&mut self, swarm: &mut Swarm<Behaviour>, view: &OrgView, wall: u64) {
        let wanted: BTreeSet<_> = if view.provides { wanted_topics(view, wall).collect() } else { BTreeSet::new() };
        let kad = &mut swarm.behaviour_mut().kad;
        for old in self.announced.difference(&wanted) {
            kad.stop_providing(&key(old));
        }
        for topic in &wanted {
            if let Err(error) = kad.start_providing(key(topic)) {
                tracing::warn!(%error, "a topic cannot be announced");
            }
        }
        self.announced = wanted;
    }

    /// Keeps a stranger's announcement, within bounds.
    fn keep(&mut self, swarm: &mut Swarm<Behaviour>, mut record: kad::ProviderRecord, now: Instant) {
        let key = record.key.to_vec();
        if !self.kept.contains_key(&key) && self.kept.len() >= KEYS_KEPT_MAX {
            self.expire(swarm, now);
            if self.kept.len() >= KEYS_KEPT_MAX {
                return;
            }
        }
        record.addresses.truncate(ADDRS_PER_PEER_MAX);
        if swarm.behaviour_mut().kad.store_mut().add_provider(record).is_ok() {
            self.kept.insert(key, now + PROVIDER_TTL);
        }
    }

    /// Drops expired announcements. The store itself drops them only when somebody asks for them (`cases.md` C19).
    fn expire(&mut self, swarm: &mut Swarm<Behaviour>, now: Instant) {
        let store = swarm.behaviour_mut().kad.store_mut();
        self.kept.retain(|key, until| {
            if *until > now {
                return true;
            }
            let key = kad::RecordKey::new(key);
            for record in store.providers(&key) {
                store.remove_provider(&key, &record.provider);
            }
            false
        });
    }

    fn progressed(&mut self, id: QueryId, result: QueryResult, last: bool) -> Option<Found> {
        match result {
            QueryResult::GetProviders(result) if self.seeking.contains(&id) => {
                if last {
                    self.seeking.retain(|query| *query != id);
                }
                match result {
                    Ok(GetProvidersOk::FoundProviders { providers, .. }) => {
                        // A hash set: in an order of our own, so that a run can be repeated.
                        let providers: BTreeSet<_> = providers.into_iter().collect();
                        Some(Found::Providers(providers.into_iter().collect()))
                    }
                    _ => (last && self.seeking.is_empty()).then_some(Found::Sought),
                }
            }
            QueryResult::GetClosestPeers(result) if last => match result {
                Ok(GetClosestPeersOk { peers, .. }) | Err(GetClosestPeersError::Timeout { peers, .. }) => {
                    Some(Found::Near(id, peers))
                }
            },
            _ => None,
        }
    }
}

/// Sets whether this node answers DHT queries of others: only where they can be expected to reach it.
pub(super) fn set_mode(swarm: &mut Swarm<Behaviour>, guard: &Guard, bootstrap: &[Multiaddr]) {
    // A mesh without a public entrance is one network's own: there, everybody reaches everybody.
    let local = !bootstrap.iter().any(is_public);
    let reachable = swarm.external_addresses().any(is_public);
    let mode = if reachable || local || guard.loopback() { kad::Mode::Server } else { kad::Mode::Client };
    if swarm.behaviour().kad.mode() != mode {
        swarm.behaviour_mut().kad.set_mode(Some(mode));
    }
}

/// Parts a trailing `/p2p/` from an address.
pub(super) fn split_peer(addr: &Multiaddr) -> (Multiaddr, Option<PeerId>) {
    let mut rest = addr.clone();
    match rest.pop() {
        Some(Protocol::P2p(peer)) => (rest, Some(peer)),
        _ => (addr.clone(), None),
    }
}

fn wanted_topics(view: &OrgView, wall: u64) -> impl Iterator<Item = Topic> {
    let discovery = view.link_keys.first().map(|key| key.discovery(&view.org.fingerprint()));
    discovery.into_iter().flat_map(move |key| topics(&key, Day::of(wall)))
}

fn key(topic: &Topic) -> kad::RecordKey {
    kad::RecordKey::new(&topic.0)
}

fn has_peers(swarm: &mut Swarm<Behaviour>) -> bool {
    swarm.behaviour_mut().kad.kbuckets().any(|bucket| bucket.num_entries() > 0)
}

/// Has the routing table know a peer by these addresses and no others: identify tells anew whatever changed, and a
/// peer that told others each time would grow its entry, and the answers that name it, without bound.
fn replace_addrs(kad: &mut kad::Behaviour<MemoryStore>, peer: PeerId, addrs: impl IntoIterator<Item = Multiaddr>) {
    let addrs = addrs.into_iter().filter_map(|addr| addr.with_p2p(peer).ok());
    let addrs: Vec<_> = addrs.take(ADDRS_PER_PEER_MAX).collect();
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
        let last: Vec<_> = told(99).take(ADDRS_PER_PEER_MAX).map(|addr| addr.with_p2p(peer).unwrap()).collect();
        assert_eq!(known, last);
        // Nothing usable is no news.
        replace_addrs(&mut kad, peer, None);
        assert!(kad.kbucket(peer).unwrap().iter().any(|entry| *entry.node.key.preimage() == peer));
    }
}
