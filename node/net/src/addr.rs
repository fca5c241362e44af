//! Which addresses this node dials.
//!
//! Addresses come from strangers: the DHT, identify, pairing links, a peer's own word. Without a check, anyone could
//! have this box connect to its own loopback services or to a cloud's metadata endpoint. The check sits in the
//! transport, beneath name resolution, so that no behaviour of the swarm and no DNS answer gets around it.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use libp2p::Multiaddr;
use libp2p::core::transport::{DialOpts, ListenerId, Transport, TransportError, TransportEvent};
use libp2p::multiaddr::Protocol;

/// Why an address is not dialled.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RefusedAddr {
    /// This box itself, while the node listens beyond it.
    #[error("a loopback address is dialled only by a node that listens only on loopback")]
    Loopback,
    /// Valid on one wire only, and where clouds keep their metadata.
    #[error("link-local addresses are not dialled")]
    LinkLocal,
    /// A cloud's metadata service.
    #[error("the address of a cloud's metadata service is not dialled")]
    Metadata,
    /// Unspecified, broadcast, multicast or reserved: no peer can be there.
    #[error("not the address of a host")]
    NotAHost,
}

/// Metadata services that are not link-local: Alibaba, Oracle, Azure.
const METADATA_V4: [Ipv4Addr; 3] =
    [Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(192, 0, 0, 192), Ipv4Addr::new(168, 63, 129, 16)];

/// Amazon's metadata service over IPv6.
const METADATA_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x0254);

/// Decides which addresses may be dialled.
#[derive(Clone, Debug, Default)]
pub struct Guard {
    loopback: bool,
    /// Sockets that the box's owner configured: those are not learnt from others.
    owner: Arc<BTreeSet<(IpAddr, u16)>>,
}

impl Guard {
    /// A guard for a node that listens on `listen` and whose owner configured `own` (bootstrap peers).
    #[must_use]
    pub fn new(listen: &[Multiaddr], own: &[Multiaddr]) -> Self {
        Self { loopback: only_loopback(listen), owner: Arc::new(own.iter().filter_map(socket_of).collect()) }
    }

    /// A guard that allows loopback or not, whatever the node listens on.
    #[must_use]
    pub fn with_loopback(loopback: bool) -> Self {
        Self { loopback, owner: Arc::default() }
    }

    /// Checks an address. Names pass: what they resolve to is checked again before it is dialled.
    ///
    /// # Errors
    /// Why it is not dialled.
    pub fn check(&self, addr: &Multiaddr) -> Result<(), RefusedAddr> {
        if socket_of(addr).is_some_and(|socket| self.owner.contains(&socket)) {
            return Ok(());
        }
        match ip_of(addr).and_then(refusal) {
            Some(RefusedAddr::Loopback) if self.loopback => Ok(()),
            Some(refused) => Err(refused),
            None => Ok(()),
        }
    }

    /// Whether loopback addresses are dialled.
    #[must_use]
    pub const fn loopback(&self) -> bool {
        self.loopback
    }
}

/// Whether every one of these addresses is a loopback one, and there is at least one.
#[must_use]
pub fn only_loopback(addrs: &[Multiaddr]) -> bool {
    !addrs.is_empty() && addrs.iter().all(|addr| ip_of(addr).is_some_and(|ip| unmap(ip).is_loopback()))
}

/// Whether anybody on the public internet could reach this address.
#[must_use]
pub fn is_public(addr: &Multiaddr) -> bool {
    match ip_of(addr).map(unmap) {
        Some(ip) if refusal(ip).is_some() => false,
        Some(IpAddr::V4(ip)) => !ip.is_private() && !is_shared(ip),
        Some(IpAddr::V6(ip)) => !ip.is_unique_local(),
        None => addr.iter().next().is_some_and(|part| {
            matches!(part, Protocol::Dns(_) | Protocol::Dns4(_) | Protocol::Dns6(_) | Protocol::Dnsaddr(_))
        }),
    }
}

/// The IP address a multiaddr begins with.
#[must_use]
pub fn ip_of(addr: &Multiaddr) -> Option<IpAddr> {
    match addr.iter().next()? {
        Protocol::Ip4(ip) => Some(ip.into()),
        Protocol::Ip6(ip) => Some(ip.into()),
        // A zone is only ever given to link-local addresses.
        Protocol::Ip6zone(_) => Some(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0).into()),
        _ => None,
    }
}

/// The IP address and port a multiaddr begins with.
#[must_use]
pub fn socket_of(addr: &Multiaddr) -> Option<(IpAddr, u16)> {
    let mut parts = addr.iter();
    let ip = match parts.next()? {
        Protocol::Ip4(ip) => ip.into(),
        Protocol::Ip6(ip) => ip.into(),
        _ => return None,
    };
    match parts.next()? {
        Protocol::Tcp(port) | Protocol::Udp(port) => Some((ip, port)),
        _ => None,
    }
}

fn refusal(ip: IpAddr) -> Option<RefusedAddr> {
    match unmap(ip) {
        IpAddr::V4(ip) if ip.is_loopback() => Some(RefusedAddr::Loopback),
        IpAddr::V4(ip) if ip.is_link_local() => Some(RefusedAddr::LinkLocal),
        IpAddr::V4(ip) if METADATA_V4.contains(&ip) => Some(RefusedAddr::Metadata),
        // 0.0.0.0/8 reaches this box on Linux; 240.0.0.0/4 holds the broadcast address.
        IpAddr::V4(ip) if ip.octets()[0] == 0 || ip.is_multicast() || ip.octets()[0] >= 240 => {
            Some(RefusedAddr::NotAHost)
        }
        IpAddr::V6(ip) if ip.is_loopback() => Some(RefusedAddr::Loopback),
        IpAddr::V6(ip) if ip.is_unicast_link_local() => Some(RefusedAddr::LinkLocal),
        IpAddr::V6(METADATA_V6) => Some(RefusedAddr::Metadata),
        IpAddr::V6(ip) if ip.is_unspecified() || ip.is_multicast() => Some(RefusedAddr::NotAHost),
        IpAddr::V4(_) | IpAddr::V6(_) => None,
    }
}

/// Sees through the IPv6 spellings of IPv4 addresses: mapped, compatible, NAT64 and 6to4.
fn unmap(ip: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = ip else { return ip };
    let [a, b, c, d, e, f, g, h] = v6.segments();
    let v4 = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        IpAddr::V4(Ipv4Addr::new(a, b, c, d))
    };
    match (a, b, c, d, e, f) {
        (0, 0, 0, 0, 0, 0xffff) | (0x64, 0xff9b, 0, 0, 0, 0) => v4(g, h),
        // `::` and `::1` are IPv6's own.
        (0, 0, 0, 0, 0, 0) if g != 0 || h > 1 => v4(g, h),
        (0x2002, ..) => v4(b, c),
        _ => ip,
    }
}

/// 100.64.0.0/10: shared by carriers, used by private overlays.
const fn is_shared(ip: Ipv4Addr) -> bool {
    let [a, b, ..] = ip.octets();
    a == 100 && b & 0xc0 == 64
}

/// A transport that dials only what its [`Guard`] allows. Listening is not touched.
#[derive(Debug)]
pub struct Guarded<T> {
    inner: T,
    guard: Guard,
}

impl<T> Guarded<T> {
    /// Wraps a transport.
    pub const fn new(inner: T, guard: Guard) -> Self {
        Self { inner, guard }
    }
}

impl<T: Transport + Unpin> Transport for Guarded<T> {
    type Output = T::Output;
    type Error = T::Error;
    type ListenerUpgrade = T::ListenerUpgrade;
    type Dial = T::Dial;

    fn listen_on(&mut self, id: ListenerId, addr: Multiaddr) -> Result<(), TransportError<Self::Error>> {
        self.inner.listen_on(id, addr)
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        self.inner.remove_listener(id)
    }

    fn dial(&mut self, addr: Multiaddr, opts: DialOpts) -> Result<Self::Dial, TransportError<Self::Error>> {
        match self.guard.check(&addr) {
            Ok(()) => self.inner.dial(addr, opts),
            Err(reason) => {
                tracing::debug!(%addr, %reason, "address not dialled");
                Err(TransportError::MultiaddrNotSupported(addr))
            }
        }
    }

    fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<TransportEvent<Self::ListenerUpgrade, Self::Error>> {
        Pin::new(&mut self.inner).poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(text: &str) -> Multiaddr {
        text.parse().expect("a multiaddr")
    }

    #[test]
    fn threat_l9_only_addresses_of_other_hosts_are_dialled() {
        let guard = Guard::new(&[addr("/ip4/0.0.0.0/tcp/8138")], &[]);
        for (text, reason) in [
            ("/ip4/127.0.0.1/tcp/80", RefusedAddr::Loopback),
            ("/ip4/127.9.9.9/udp/80/quic-v1", RefusedAddr::Loopback),
            ("/ip6/::1/tcp/80", RefusedAddr::Loopback),
            ("/ip6/::ffff:127.0.0.1/tcp/80", RefusedAddr::Loopback),
            ("/ip6/::7f00:1/tcp/80", RefusedAddr::Loopback),
            ("/ip6/64:ff9b::7f00:1/tcp/80", RefusedAddr::Loopback),
            ("/ip6/2002:7f00:1::/tcp/80", RefusedAddr::Loopback),
            ("/ip4/169.254.169.254/tcp/80", RefusedAddr::LinkLocal),
            ("/ip6/::ffff:169.254.169.254/tcp/80", RefusedAddr::LinkLocal),
            ("/ip6/fe80::1/tcp/80", RefusedAddr::LinkLocal),
            ("/ip6zone/eth0/ip6/fe80::1/tcp/80", RefusedAddr::LinkLocal),
            ("/ip6/fd00:ec2::254/tcp/80", RefusedAddr::Metadata),
            ("/ip4/100.100.100.200/tcp/80", RefusedAddr::Metadata),
            ("/ip4/168.63.129.16/tcp/80", RefusedAddr::Metadata),
            ("/ip4/0.0.0.0/tcp/80", RefusedAddr::NotAHost),
            ("/ip6/::/tcp/80", RefusedAddr::NotAHost),
            ("/ip4/224.0.0.1/tcp/80", RefusedAddr::NotAHost),
            ("/ip4/255.255.255.255/tcp/80", RefusedAddr::NotAHost),
        ] {
            assert_eq!(guard.check(&addr(text)), Err(reason), "{text}");
        }
        for text in ["/ip4/192.168.1.7/tcp/8138", "/ip4/100.64.0.9/tcp/1", "/ip6/2001:db8::1/tcp/1", "/dns/box/tcp/1"] {
            assert_eq!(guard.check(&addr(text)), Ok(()), "{text}");
        }
    }

    #[test]
    fn threat_l9_loopback_is_dialled_by_a_node_that_listens_only_there() {
        let listen = [addr("/ip4/127.0.0.1/tcp/0"), addr("/ip6/::1/udp/0/quic-v1")];
        let guard = Guard::new(&listen, &[]);
        assert_eq!(guard.check(&addr("/ip4/127.0.0.1/tcp/80")), Ok(()));
        assert_eq!(guard.check(&addr("/ip4/169.254.169.254/tcp/80")), Err(RefusedAddr::LinkLocal));
        assert!(!Guard::new(&[addr("/ip4/127.0.0.1/tcp/0"), addr("/ip4/0.0.0.0/tcp/0")], &[]).loopback());
        assert!(!Guard::new(&[], &[]).loopback());
    }

    #[test]
    fn an_owners_own_bootstrap_address_is_not_learnt_from_others() {
        let guard = Guard::new(&[addr("/ip4/0.0.0.0/tcp/8138")], &[addr("/ip4/127.0.0.1/tcp/4001")]);
        assert_eq!(guard.check(&addr("/ip4/127.0.0.1/tcp/4001")), Ok(()));
        assert_eq!(guard.check(&addr("/ip4/127.0.0.1/tcp/4002")), Err(RefusedAddr::Loopback));
    }

    #[test]
    fn public_means_reachable_from_anywhere() {
        for text in ["/ip4/8.8.8.8/tcp/1", "/ip6/2001:db8::1/tcp/1", "/dns4/example.org/tcp/1"] {
            assert!(is_public(&addr(text)), "{text}");
        }
        for text in ["/ip4/10.0.0.1/tcp/1", "/ip4/100.64.0.1/tcp/1", "/ip6/fd00::1/tcp/1", "/ip4/127.0.0.1/tcp/1"] {
            assert!(!is_public(&addr(text)), "{text}");
        }
    }
}
