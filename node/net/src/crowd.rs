//! Keeps one host from taking all places of connections that are being made.
//!
//! Until a connection is made nobody knows whose it is, so the swarm's bound on those half open holds for friend and
//! foe together: without this, a few dozen idle sockets from one box would keep everybody out (`security.md` W5).

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::task::{Context, Poll};

use libp2p::core::transport::PortUse;
use libp2p::core::{Endpoint, Multiaddr};
use libp2p::swarm::behaviour::ListenFailure;
use libp2p::swarm::{
    ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, THandler, THandlerInEvent, THandlerOutEvent, ToSwarm,
    dummy,
};
use libp2p::{PeerId, core::util::unreachable};

use super::addr::ip_of;

/// Connections half open from one host. A whole office behind one address connects one by one, in a few round trips
/// each.
const PENDING_PER_HOST_MAX: usize = 16;

/// Too many connections from one host are half open.
#[derive(Debug, thiserror::Error)]
#[error("{PENDING_PER_HOST_MAX} connections from one host are being made already")]
struct Crowded;

/// A host, as far as its address tells: an IPv4 address, or an IPv6 network, of which a host has all addresses.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Host {
    V4([u8; 4]),
    V6([u16; 4]),
}

impl Host {
    fn of(addr: &Multiaddr) -> Option<Self> {
        Some(match ip_of(addr)?.to_canonical() {
            IpAddr::V4(ip) => Self::V4(ip.octets()),
            IpAddr::V6(ip) => {
                let [a, b, c, d, ..] = ip.segments();
                Self::V6([a, b, c, d])
            }
        })
    }
}

/// Refuses connections of hosts that have too many half open.
#[derive(Debug, Default)]
pub struct Behaviour {
    pending: BTreeMap<ConnectionId, Host>,
}

impl NetworkBehaviour for Behaviour {
    type ConnectionHandler = dummy::ConnectionHandler;
    type ToSwarm = Infallible;

    fn handle_pending_inbound_connection(
        &mut self,
        connection: ConnectionId,
        _: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<(), ConnectionDenied> {
        let Some(host) = Host::of(remote) else { return Ok(()) };
        // At most as many as the swarm lets be half open in all.
        if self.pending.values().filter(|other| **other == host).count() >= PENDING_PER_HOST_MAX {
            return Err(ConnectionDenied::new(Crowded));
        }
        self.pending.insert(connection, host);
        Ok(())
    }

    fn handle_established_inbound_connection(
        &mut self,
        connection: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        self.pending.remove(&connection);
        Ok(dummy::ConnectionHandler)
    }

    fn handle_established_outbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(dummy::ConnectionHandler)
    }

    fn on_swarm_event(&mut self, event: FromSwarm) {
        if let FromSwarm::ListenFailure(ListenFailure { connection_id, .. }) = event {
            self.pending.remove(&connection_id);
        }
    }

    fn on_connection_handler_event(&mut self, _: PeerId, _: ConnectionId, event: THandlerOutEvent<Self>) {
        unreachable(event)
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn knock(crowd: &mut Behaviour, number: usize, from: &str) -> bool {
        let (local, remote) = ("/ip4/10.0.0.1/tcp/1".parse().unwrap(), from.parse().unwrap());
        crowd.handle_pending_inbound_connection(ConnectionId::new_unchecked(number), &local, &remote).is_ok()
    }

    #[test]
    fn threat_w5_one_host_cannot_take_all_places() {
        let mut crowd = Behaviour::default();
        for number in 0..PENDING_PER_HOST_MAX {
            assert!(knock(&mut crowd, number, &format!("/ip4/203.0.113.9/tcp/{}", 1000 + number)));
        }
        assert!(!knock(&mut crowd, 100, "/ip4/203.0.113.9/tcp/1"));
        // The same host in another spelling, and another host.
        assert!(!knock(&mut crowd, 101, "/ip6/::ffff:203.0.113.9/udp/1/quic-v1"));
        assert!(knock(&mut crowd, 102, "/ip4/203.0.113.10/tcp/1"));

        // Whoever comes through makes room.
        let addr: Multiaddr = "/ip4/203.0.113.9/tcp/1".parse().unwrap();
        let id = ConnectionId::new_unchecked(0);
        crowd.handle_established_inbound_connection(id, PeerId::random(), &addr, &addr).unwrap();
        assert!(knock(&mut crowd, 103, "/ip4/203.0.113.9/tcp/1"));
    }

    #[test]
    fn an_ipv6_network_is_one_host() {
        let mut crowd = Behaviour::default();
        for number in 0..PENDING_PER_HOST_MAX {
            assert!(knock(&mut crowd, number, &format!("/ip6/2001:db8:1:2::{number:x}/tcp/1")));
        }
        assert!(!knock(&mut crowd, 100, "/ip6/2001:db8:1:2:ffff::1/tcp/1"));
        assert!(knock(&mut crowd, 101, "/ip6/2001:db8:1:3::1/tcp/1"));
    }
}
