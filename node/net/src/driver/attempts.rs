//! Trying to link with nodes that are wanted: addresses that are known race the DHT, and no way's failure ends another.

use std::collections::BTreeMap;

use libp2p::kad::{PeerInfo, QueryId};
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::swarm::{ConnectionId, DialError};
use libp2p::{Multiaddr, PeerId};
use tieline_proto::id::NodeId;
use tokio::time::Instant;

use super::Driver;
use crate::discovery::{self, Found};
use crate::peers::{ADDRS_MAX, Attempt, DHT_AFTER, DIALS_MAX};

impl Driver {
    /// Begins the tries that are due, asks the DHT for those that wait long enough, ends those that are over.
    pub(super) fn tend_attempts(&mut self, now: Instant) {
        let nodes: Vec<_> = self.peers.keys().filter(|node| !self.links.contains_key(node)).copied().collect();
        for node in nodes {
            let Some(peer) = self.peers.get_mut(&node) else { continue };
            if peer.is_due(now) {
                peer.begin(now);
                self.try_known(node);
            }
            let Some(peer) = self.peers.get_mut(&node) else { continue };
            let Some(attempt) = &mut peer.attempt else { continue };
            let alone = attempt.dials.is_empty() && attempt.shaking.is_none();
            if !attempt.dht_asked && (alone || now >= attempt.begun + DHT_AFTER) {
                attempt.dht_asked = true;
                self.ask_dht(node);
            }
            let Some(peer) = self.peers.get_mut(&node) else { continue };
            let Some(attempt) = &peer.attempt else { continue };
            if attempt.is_over(now) {
                // A dial that hangs would otherwise hang beside the next try's, and fill the bound on dials in the end.
                if let (false, Some(hung)) = (attempt.dials.is_empty(), peer.peer()) {
                    let _ = self.swarm.disconnect_peer_id(hung);
                }
                let reason = peer.fail(now, &mut self.rng);
                tracing::debug!(node = %node.short(), %reason, "no link");
                self.shared.down(node, reason);
            }
        }
    }

    /// Uses a connection that is there, or dials the addresses that are known.
    fn try_known(&mut self, node: NodeId) {
        let Some(peer) = self.peers.get(&node) else { return };
        let known = peer.peer();
        if let Some(connected) = known
            && let Some(connection) = self.newest_connection(connected)
        {
            self.shake(node, connected, connection);
        } else {
            self.dial_known(node);
        }
    }

    /// Dials the addresses that are known, those that were not dialled in this try.
    pub(super) fn dial_known(&mut self, node: NodeId) {
        let Some(peer) = self.peers.get(&node) else { return };
        let known = peer.peer();
        // An address may name a peer of its own; one without goes to the peer that is known.
        let mut of_peers: BTreeMap<_, Vec<_>> = BTreeMap::new();
        let mut nameless = Vec::new();
        for (addr, named) in peer.hints.addrs.iter().take(ADDRS_MAX).map(discovery::split_peer) {
            match named.or(known) {
                Some(peer) => of_peers.entry(peer).or_default().push(addr),
                None => nameless.push(addr),
            }
        }
        for (peer, addrs) in of_peers {
            self.dial(node, peer, addrs);
        }
        for addr in nameless {
            self.note(node, format!("{addr} names no peer"));
        }
    }

    fn ask_dht(&mut self, node: NodeId) {
        let known = self.peers.get(&node).and_then(|peer| peer.peer());
        let query = known.and_then(|peer| self.discovery.look_up(&mut self.swarm, peer));
        let seeking = self.discovery.seek(&mut self.swarm, &self.view, (self.wall)());
        let Some(attempt) = self.attempt(node) else { return };
        attempt.queries.extend(query);
        attempt.seeking = seeking;
        if !seeking {
            attempt.note("no peer of the DHT is connected");
        }
    }

    /// Dials a peer at these addresses, and any that the DHT has at hand; each address once a try.
    fn dial(&mut self, node: NodeId, peer: PeerId, addrs: Vec<Multiaddr>) {
        let Some(attempt) = self.attempt(node) else { return };
        let only_dht = addrs.is_empty();
        let mut fresh: Vec<_> = addrs.into_iter().filter(|addr| attempt.dialled.insert(addr.clone())).collect();
        fresh.truncate(ADDRS_MAX);
        if attempt.dials.len() >= DIALS_MAX || (fresh.is_empty() && !only_dht) {
            return;
        }
        let guard = self.guard.clone();
        fresh.retain(|addr| match guard.check(addr) {
            Ok(()) => true,
            Err(reason) => {
                self.note(node, format!("{addr}: {reason}"));
                false
            }
        });
        if fresh.is_empty() && !only_dht {
            return;
        }
        let opts = DialOpts::peer_id(peer).condition(PeerCondition::Always);
        let opts = if only_dht { opts.build() } else { opts.addresses(fresh).build() };
        let connection = opts.connection_id();
        let dialled = self.swarm.dial(opts);
        let Some(attempt) = self.attempt(node) else { return };
        match dialled {
            Ok(()) => drop(attempt.dials.insert(connection)),
            Err(error) => attempt.note(words(&error)),
        }
    }

    /// The DHT answered.
    pub(super) fn on_found(&mut self, found: Found) {
        match found {
            Found::Sought => {
                for peer in self.peers.values_mut() {
                    if let Some(attempt) = &mut peer.attempt
                        && std::mem::take(&mut attempt.seeking)
                    {
                        attempt.note("not found under the org's topics");
                    }
                }
            }
            Found::Providers(providers) => self.on_providers(&providers),
            Found::Near(query, near) => self.on_near(query, near),
        }
    }

    /// Dials providers that are looked for, and strangers among them only while a node's peer id is not known.
    fn on_providers(&mut self, providers: &[PeerId]) {
        let seeking: Vec<_> =
            self.peers.iter().filter(|(_, peer)| peer.attempt.is_some()).map(|(node, _)| *node).collect();
        let local = *self.swarm.local_peer_id();
        for provider in providers.iter().filter(|provider| **provider != local) {
            let belongs = self.peers.values().any(|peer| peer.peer() == Some(*provider));
            for node in &seeking {
                let known = self.peers.get(node).and_then(|peer| peer.peer());
                let candidate = known == Some(*provider) || (known.is_none() && !belongs);
                let fresh = self.attempt(*node).is_some_and(|attempt| {
                    candidate && attempt.asked_peers.len() < DIALS_MAX && attempt.asked_peers.insert(*provider)
                });
                if !fresh {
                    continue;
                }
                match self.newest_connection(*provider) {
                    Some(connection) => self.shake(*node, *provider, connection),
                    None => self.dial(*node, *provider, Vec::new()),
                }
            }
        }
    }

    fn on_near(&mut self, query: QueryId, near: Vec<PeerInfo>) {
        let of_query = |attempt: &Attempt| attempt.queries.contains(&query);
        let found = self.peers.iter().find(|(_, peer)| peer.attempt.as_ref().is_some_and(of_query));
        let Some((node, wanted)) = found.and_then(|(node, peer)| Some((*node, peer.peer()?))) else { return };
        if let Some(attempt) = self.attempt(node) {
            attempt.queries.retain(|asked| *asked != query);
        }
        match near.into_iter().find(|info| info.peer_id == wanted) {
            Some(info) => self.dial(node, wanted, info.addrs),
            None => self.note(node, "the DHT does not know its peer id"),
        }
    }

    /// A connection was made, by whichever side: tries that wait for one go on, others begin soon.
    pub(super) fn on_connected(&mut self, peer: PeerId, connection: ConnectionId, now: Instant) {
        let mut shake = Vec::new();
        for (node, wanted) in &mut self.peers {
            let known = wanted.peer();
            let is_its = known == Some(peer);
            match &mut wanted.attempt {
                Some(attempt) => {
                    let dialled = attempt.dials.remove(&connection);
                    if dialled || is_its || (known.is_none() && attempt.asked_peers.contains(&peer)) {
                        shake.push(*node);
                    }
                }
                None if is_its && !self.links.contains_key(node) => wanted.connected(now, &mut self.rng),
                None => {}
            }
        }
        for node in shake {
            self.shake(node, peer, connection);
        }
    }

    pub(super) fn on_dial_failed(&mut self, connection: ConnectionId, error: &DialError) {
        for peer in self.peers.values_mut() {
            if let Some(attempt) = &mut peer.attempt
                && attempt.dials.remove(&connection)
            {
                attempt.note(words(error));
            }
        }
    }

    pub(super) fn attempt(&mut self, node: NodeId) -> Option<&mut Attempt> {
        self.peers.get_mut(&node)?.attempt.as_mut()
    }

    fn note(&mut self, node: NodeId, reason: impl Into<String>) {
        if let Some(attempt) = self.attempt(node) {
            attempt.note(reason);
        }
    }

    /// The latest connection with a peer: the one most likely to live.
    fn newest_connection(&self, peer: PeerId) -> Option<ConnectionId> {
        self.connections.get(&peer)?.keys().next_back().copied()
    }
}

/// Addresses named in one reason.
const FAILED_ADDRS_MAX: usize = 3;

/// A failed dial in words, without the transports' nesting.
fn words(error: &DialError) -> String {
    match error {
        DialError::NoAddresses => "no address is known for it".to_owned(),
        DialError::Transport(failed) => {
            let each = failed.iter().take(FAILED_ADDRS_MAX);
            each.map(|(addr, error)| format!("{addr}: {}", root(error))).collect::<Vec<_>>().join("; ")
        }
        DialError::WrongPeerId { obtained, address } => format!("{address}: another peer answers there, {obtained}"),
        DialError::Denied { .. } => "too many connections".to_owned(),
        other => other.to_string(),
    }
}

/// The innermost cause: what happened, without who passed it on.
fn root(error: &(dyn std::error::Error + 'static)) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
