//! Keeps one host from taking all connections: whoever has a few hundred peer ids would otherwise keep everybody out.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv6Addr};
use std::task::{Context, Poll};

use libp2p::PeerId;
use libp2p::core::transport::PortUse;
use libp2p::core::util::unreachable;
use libp2p::core::{Endpoint, Multiaddr};
use libp2p::multiaddr::Protocol;
use libp2p::swarm::behaviour::ListenFailure;
use libp2p::swarm::{
    ConnectionClosed, ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, THandler, THandlerInEvent,
    THandlerOutEvent, ToSwarm, dummy,
};

/// Connections from one host, made or being made. A whole office may stand behind one address.
pub const PER_HOST_MAX: usize = 64;

/// Too many connections come from one host.
#[derive(Debug, thiserror::Error)]
#[error("{PER_HOST_MAX} connections come from one host already")]
struct Crowded;

/// A host, as far as its address tells: an IPv4 address, or an IPv6 network, of which a host has all addresses. Whoever
/// is on this box is no stranger and is not counted.
fn host_of(addr: &Multiaddr) -> Option<IpAddr> {
    let ip: IpAddr = match addr.iter().next()? {
        Protocol::Ip4(ip) => ip.into(),
        Protocol::Ip6(ip) => ip.into(),
        _ => return None,
    };
    let host = match ip.to_canonical() {
        IpAddr::V6(ip) => {
            let [a, b, c, d, ..] = ip.segments();
            if ip.is_loopback() { ip } else { Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0) }.into()
        }
        ip @ IpAddr::V4(_) => ip,
    };
    Some(host).filter(|host| !host.is_loopback())
}

/// Refuses connections of hosts that have enough of them.
#[derive(Debug, Default)]
pub struct Behaviour {
    connections: BTreeMap<ConnectionId, IpAddr>,
    hosts: BTreeMap<IpAddr, usize>,
}

impl Behaviour {
    fn forget(&mut self, connection: ConnectionId) {
        let Some(host) = self.connections.remove(&connection) else { return };
        if let Some(count) = self.hosts.get_mut(&host) {
            *count -= 1;
            if *count == 0 {
                self.hosts.remove(&host);
            }
        }
    }
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
        let Some(host) = host_of(remote) else { return Ok(()) };
        let count = self.hosts.entry(host).or_default();
        if *count >= PER_HOST_MAX {
            return Err(ConnectionDenied::new(Crowded));
        }
        *count += 1;
        self.connections.insert(connection, host);
        Ok(())
    }

    fn handle_established_inbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
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
        match event {
            // Whatever refused or broke it before it was made, this behaviour included.
            FromSwarm::ListenFailure(ListenFailure { connection_id, .. })
            | FromSwarm::ConnectionClosed(ConnectionClosed { connection_id, .. }) => self.forget(connection_id),
            _ => {}
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
    fn threat_w5_one_host_has_a_share_of_the_connections() {
        let mut crowd = Behaviour::default();
        for number in 0..PER_HOST_MAX {
            assert!(knock(&mut crowd, number, &format!("/ip6/2001:db8:1:2::{number:x}/tcp/1")));
        }
        assert!(!knock(&mut crowd, 1000, "/ip6/2001:db8:1:2:ffff::1/udp/1/quic-v1"), "one network is one host");
        assert!(knock(&mut crowd, 1001, "/ip6/2001:db8:1:3::1/tcp/1"));
        assert!(knock(&mut crowd, 1002, "/ip4/203.0.113.9/tcp/1"));

        // A connection that is over makes room, and only it.
        crowd.forget(ConnectionId::new_unchecked(1000));
        assert!(!knock(&mut crowd, 1003, "/ip6/2001:db8:1:2::1/tcp/1"));
        crowd.forget(ConnectionId::new_unchecked(0));
        assert!(knock(&mut crowd, 1004, "/ip6/2001:db8:1:2::1/tcp/1"));
        (0..2000).for_each(|number| crowd.forget(ConnectionId::new_unchecked(number)));
        assert!(crowd.hosts.is_empty() && crowd.connections.is_empty());
    }

    #[test]
    fn this_box_is_no_stranger() {
        let mut crowd = Behaviour::default();
        for number in 0..2 * PER_HOST_MAX {
            assert!(knock(&mut crowd, number, "/ip4/127.0.0.1/tcp/1"));
            assert!(knock(&mut crowd, 1000 + number, "/ip6/::1/tcp/1"));
        }
    }
}
