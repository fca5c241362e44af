//! Where this node listens, and what it remembers of that.

use std::path::Path;
use std::sync::Arc;

use libp2p::Multiaddr;
use libp2p::identity::Keypair;
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng;
use tieline_proto::crypto::keys::DeviceKeys;
use tokio::sync::watch;

use super::Node;
use super::open::{StartError, wall_clock};
use crate::config::Config;
use crate::keys;
use crate::net::{Net, NetConfig};

/// Listens; default ports that are busy are replaced by free ones, and said so.
pub(super) fn start_net(
    config: &Config,
    keypair: &Keypair,
    device: &Arc<DeviceKeys>,
    seed: [u8; 32],
    org: &watch::Receiver<Arc<crate::net::OrgView>>,
    notes: &mut Vec<String>,
) -> Result<(Net, crate::net::NetEvents), StartError> {
    let start = |listen: Vec<Multiaddr>| {
        let config = NetConfig {
            keypair: keypair.clone(),
            listen,
            external: Vec::new(),
            bootstrap: config.bootstrap.clone(),
            device: Arc::clone(device),
            rng: ChaCha20Rng::from_seed(seed),
            wall: Arc::new(wall_clock),
        };
        Net::spawn(config, org.clone())
    };
    // A port that was left to chance stays what it was, so that those who know this node find it again.
    let remembered = remembered_ports(&config.data);
    let wanted: Vec<_> = config.listen.addrs.iter().map(|addr| with_port_of(addr, &remembered)).collect();
    if wanted != config.listen.addrs {
        match start(wanted) {
            Err(error) if error.is_port_busy() => tracing::debug!(%error, "the port of the last time is taken"),
            other => return Ok(other?),
        }
    }
    match start(config.listen.addrs.clone()) {
        Err(error) if error.is_port_busy() && !config.listen.chosen => {
            let free = config.listen.addrs.iter().map(with_free_port).collect();
            let note = format!("{error}: listening on a free port instead");
            tracing::warn!("{note}");
            notes.push(note);
            Ok(start(free)?)
        }
        other => Ok(other?),
    }
}

/// Whether an address is one of this box's own.
pub(super) fn is_loopback(addr: &Multiaddr) -> bool {
    use libp2p::multiaddr::Protocol;
    addr.iter().any(|part| match part {
        Protocol::Ip4(ip) => ip.is_loopback(),
        Protocol::Ip6(ip) => ip.is_loopback(),
        _ => false,
    })
}

/// Whether a pairing link can only be of this box.
pub(super) fn names_loopback_only(link: &tieline_proto::pairing::PairLink) -> bool {
    let addrs = link.addrs.iter().filter_map(|addr| Multiaddr::try_from(addr.clone()).ok());
    let mut addrs = addrs.peekable();
    addrs.peek().is_some() && addrs.all(|addr| is_loopback(&addr))
}

/// Remembers the ports that this node listens on.
const PORTS: &str = "ports.json";

fn remembered_ports(data: &Path) -> Vec<Multiaddr> {
    // A hint: without it, ports are left to chance once more.
    std::fs::read(data.join(PORTS)).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

/// The address with the port of the last time, when it leaves the port open.
fn with_port_of(addr: &Multiaddr, remembered: &[Multiaddr]) -> Multiaddr {
    use libp2p::multiaddr::Protocol;
    let open = addr.iter().any(|part| matches!(part, Protocol::Tcp(0) | Protocol::Udp(0)));
    let same = |known: &&Multiaddr| with_free_port(known) == *addr;
    remembered.iter().find(same).filter(|_| open).cloned().unwrap_or_else(|| addr.clone())
}

fn with_free_port(addr: &Multiaddr) -> Multiaddr {
    use libp2p::multiaddr::Protocol;
    addr.iter()
        .map(|part| match part {
            Protocol::Tcp(_) => Protocol::Tcp(0),
            Protocol::Udp(_) => Protocol::Udp(0),
            part => part,
        })
        .collect()
}

impl Node {
    /// Learns the addresses that it has, and remembers their ports.
    pub(super) fn learn_listening(&mut self) {
        let peer = self.net.peer_id();
        let listening = self.net.listening();
        self.addrs = listening.iter().map(|addr| format!("{addr}/p2p/{peer}")).collect();
        let ports = serde_json::to_vec(&listening).unwrap_or_default();
        if let Err(error) = keys::write(&self.data.join(PORTS), &ports) {
            tracing::debug!(%error, "the ports are not remembered");
        }
    }
}
