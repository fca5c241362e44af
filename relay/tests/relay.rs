//! The binary, on loopback.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use futures::StreamExt;
use libp2p::kad::store::MemoryStore;
use libp2p::kad::{self, GetProvidersOk, QueryResult, RecordKey};
use libp2p::swarm::SwarmEvent;
use libp2p::{Multiaddr, PeerId, StreamProtocol, Swarm, SwarmBuilder, noise, tcp, yamux};
use tokio::time::timeout;

/// How long anything may take before it counts as stuck.
const PATIENCE: Duration = Duration::from_secs(20);

/// A running relay; killed when dropped.
struct Relay(Child);

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Relay {
    fn start(folder: &Path, listen: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tieline-relay"));
        command.arg("--data").arg(folder.join("data")).arg("--ready-file").arg(folder.join("ready.json"));
        for addr in listen {
            command.args(["--listen", addr]);
        }
        Self(command.stderr(Stdio::null()).spawn().unwrap())
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.0.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }
}

/// Waits for a condition on the outside world, which wakes nobody.
fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "nothing within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn ready(folder: &Path) -> Vec<Multiaddr> {
    let content = until(|| fs::read(folder.join("ready.json")).ok());
    let content: serde_json::Value = serde_json::from_slice(&content).unwrap();
    assert_eq!(content["version"], env!("CARGO_PKG_VERSION"));
    content["addrs"].as_array().unwrap().iter().map(|addr| addr.as_str().unwrap().parse().unwrap()).collect()
}

#[test]
fn it_says_when_it_answers_keeps_its_key_and_stops_cleanly() {
    let folder = tempfile::tempdir().unwrap();
    let listen = ["/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/udp/0/quic-v1"];
    let mut relay = Relay::start(folder.path(), &listen);
    let first = ready(folder.path());
    assert_eq!(first.len(), 2);
    let peers: BTreeSet<_> = first.iter().map(peer_of).collect();
    assert_eq!(peers.len(), 1);
    let mode = fs::metadata(folder.path().join("data/key")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);

    relay.signal("-TERM");
    assert!(relay.0.wait().unwrap().success());
    assert!(!folder.path().join("ready.json").exists());

    let _again = Relay::start(folder.path(), &listen[..1]);
    assert_eq!(ready(folder.path()).iter().map(peer_of).collect::<BTreeSet<_>>(), peers);
}

#[test]
fn a_busy_port_is_said_and_not_shared() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let _first = Relay::start(folders[0].path(), &["/ip4/127.0.0.1/tcp/0"]);
    let taken = ready(folders[0].path()).remove(0);
    let port: Multiaddr = taken.iter().take(2).collect();
    let second = Command::new(env!("CARGO_BIN_EXE_tieline-relay"))
        .arg("--data")
        .arg(folders[1].path())
        .args(["--listen", &port.to_string()])
        .output()
        .unwrap();
    assert_eq!(second.status.code(), Some(1));
    let said = String::from_utf8_lossy(&second.stderr).to_lowercase();
    assert!(said.contains(&format!("listening on {port}")) && said.contains("in use"), "{said}");
}

#[test]
fn what_is_not_served_yet_is_refused_with_words() {
    for option in [&["--http", "127.0.0.1:0"][..], &["--allow", "486476ce"], &["--open"]] {
        let refused = Command::new(env!("CARGO_BIN_EXE_tieline-relay")).args(option).output().unwrap();
        assert_eq!(refused.status.code(), Some(2));
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(said.contains(option[0]) && said.contains("forwards nothing"), "{said}");
    }
}

fn peer_of(addr: &Multiaddr) -> PeerId {
    match addr.iter().last() {
        Some(libp2p::multiaddr::Protocol::P2p(peer)) => peer,
        _ => panic!("{addr} names no peer"),
    }
}

fn client(relay: &Multiaddr) -> Swarm<kad::Behaviour<MemoryStore>> {
    let mut swarm = SwarmBuilder::with_new_identity()
        .with_tokio()
        .with_tcp(tcp::Config::default(), noise::Config::new, yamux::Config::default)
        .unwrap()
        .with_behaviour(|key| {
            let peer = key.public().to_peer_id();
            let config = kad::Config::new(StreamProtocol::new("/tieline/kad/1"));
            kad::Behaviour::with_config(peer, MemoryStore::new(peer), config)
        })
        .unwrap()
        .build();
    swarm.behaviour_mut().add_address(&peer_of(relay), relay.iter().take(2).collect());
    swarm
}

#[tokio::test]
async fn nodes_find_each_other_through_it() {
    let folder = tempfile::tempdir().unwrap();
    let _relay = Relay::start(folder.path(), &["/ip4/127.0.0.1/tcp/0"]);
    let at = ready(folder.path()).remove(0);
    let (mut home, mut resident) = (client(&at), client(&at));
    let topic = RecordKey::new(b"topic");
    home.add_external_address("/ip4/127.0.0.1/tcp/9".parse().unwrap());
    home.behaviour_mut().start_providing(topic.clone()).unwrap();
    let found = timeout(PATIENCE, async {
        let mut announced = false;
        loop {
            tokio::select! {
                event = home.select_next_some() => {
                    if let SwarmEvent::Behaviour(kad::Event::OutboundQueryProgressed {
                        result: QueryResult::StartProviding(result), ..
                    }) = event {
                        result.unwrap();
                        announced = true;
                        resident.behaviour_mut().get_providers(topic.clone());
                    }
                }
                event = resident.select_next_some() => match event {
                    SwarmEvent::Behaviour(kad::Event::OutboundQueryProgressed {
                        result: QueryResult::GetProviders(Ok(GetProvidersOk::FoundProviders { providers, .. })), ..
                    }) if providers.contains(home.local_peer_id()) => break,
                    // The announcement may not have come in yet: ask again.
                    SwarmEvent::Behaviour(kad::Event::OutboundQueryProgressed {
                        result: QueryResult::GetProviders(_), step, ..
                    }) if announced && step.last => drop(resident.behaviour_mut().get_providers(topic.clone())),
                    _ => {}
                },
            }
        }
    });
    found.await.unwrap();
}
