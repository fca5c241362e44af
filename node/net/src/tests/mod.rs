//! Networks of several nodes in one process.

mod faults;
mod loopback;
mod memory;
mod strangers;

pub(super) use memory::in_memory;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use libp2p::identity::Keypair;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use rand_chacha::ChaCha20Rng;
use rand_core::{Rng, SeedableRng};
use tieline_proto::crypto::cert::Binding;
use tieline_proto::crypto::keys::{DeviceKeys, RootKey};
use tieline_proto::crypto::link_key::LinkKey;
use tieline_proto::entry::{Body, Role};
use tieline_proto::id::{Attempt, ChannelId, Hash, MessageId, NodeId};
use tieline_proto::link::{AttemptId, Lane, Message};
use tieline_proto::log::{Head, LogBuilder, LogId};
use tieline_proto::org::Org;
use tokio::sync::watch;
use tokio::time::{Duration, timeout};

use super::*;

/// How long anything in these tests may take before it counts as stuck.
const PATIENCE: Duration = Duration::from_secs(30);

/// An org with some devices.
pub(super) struct World {
    pub org: Org,
    pub link_key: LinkKey,
    pub keys: Vec<Arc<DeviceKeys>>,
    /// The chain's lines.
    pub chain: Vec<u8>,
    log: LogBuilder,
    rng: ChaCha20Rng,
}

/// A running node.
pub(super) struct Node {
    pub id: NodeId,
    pub net: Net,
    events: NetEvents,
    pub view: watch::Sender<Arc<OrgView>>,
    wall: Arc<AtomicU64>,
}

impl World {
    pub fn new(seed: u64, devices: usize) -> Self {
        let mut rng = ChaCha20Rng::seed_from_u64(seed);
        let root = RootKey::generate(&mut rng);
        let keys: Vec<_> = (0..devices).map(|_| Arc::new(DeviceKeys::generate(&mut rng))).collect();
        let founding = Org::found("test", "n0", &root, &keys[0], 0, &mut rng).unwrap();
        let link_key = LinkKey::generate(1, &mut rng);
        let mut log = LogBuilder::new(LogId::Org(founding.org.fingerprint()), Head::default());
        let mut chain = Vec::new();
        for entry in founding.entries {
            log.append(entry, &mut chain).unwrap();
        }
        log.seal(keys[0].signing(), &mut chain).unwrap();
        let mut world = Self { org: founding.org, link_key, keys: Vec::new(), chain, log, rng };
        world.keys.push(keys[0].clone());
        for key in keys.into_iter().skip(1) {
            world.enrol(key);
        }
        world
    }

    fn enrol(&mut self, key: Arc<DeviceKeys>) {
        let (binding, held) = Binding::of(&key, self.org.fingerprint());
        let name = format!("n{}", self.keys.len());
        let enrolment = self.org.enrol(binding, held, &name, Role::Member, self.keys[0].signing()).unwrap();
        self.append(enrolment.body.unwrap());
        self.keys.push(key);
    }

    pub fn append(&mut self, body: Body) {
        let entry = self.org.entry(body, 0);
        self.org.apply(&entry.clone().at(Hash::ZERO)).unwrap();
        self.log.append(entry, &mut self.chain).unwrap();
        self.log.seal(self.keys[0].signing(), &mut self.chain).unwrap();
    }

    fn id(&self, node: usize) -> NodeId {
        self.keys[node].device()
    }

    pub fn view(&self, provides: bool) -> OrgView {
        OrgView { org: self.org.clone(), link_keys: vec![self.link_key.clone()], provides }
    }

    fn config(&mut self, node: usize, listen: Multiaddr) -> (NetConfig, Arc<AtomicU64>) {
        let wall = Arc::new(AtomicU64::new(1_700_000_000_000));
        let clock = wall.clone();
        let config = NetConfig {
            keypair: transport_key(&self.keys[node]),
            listen: vec![listen],
            external: Vec::new(),
            bootstrap: Vec::new(),
            device: self.keys[node].clone(),
            rng: self.rng.fork(),
            wall: Arc::new(move || clock.load(Ordering::Relaxed)),
        };
        (config, wall)
    }

    /// Starts a node on loopback TCP.
    pub async fn start(&mut self, node: usize) -> Node {
        let view = self.view(false);
        self.start_with(node, "/ip4/127.0.0.1/tcp/0".parse().unwrap(), view, |_| {}).await
    }

    async fn start_with(
        &mut self,
        node: usize,
        listen: Multiaddr,
        view: OrgView,
        change: impl FnOnce(&mut NetConfig),
    ) -> Node {
        let (mut config, wall) = self.config(node, listen);
        change(&mut config);
        let (view, org) = watch::channel(Arc::new(view));
        let (net, events) = Net::spawn(config, org).unwrap();
        let mut node = Node { id: self.id(node), net, events, view, wall };
        node.until(|event| matches!(event, NetEvent::Listening(addrs) if !addrs.is_empty())).await;
        node
    }
}

impl Node {
    /// Reads events until one is what is waited for.
    pub async fn until(&mut self, wanted: impl Fn(&NetEvent) -> bool) -> NetEvent {
        let found = timeout(PATIENCE, async {
            loop {
                let event = self.events.recv().await.expect("the network runs");
                if wanted(&event) {
                    return event;
                }
            }
        });
        match found.await {
            Ok(event) => event,
            Err(_) => panic!("nothing within {PATIENCE:?}; links: {:?}", self.net.links()),
        }
    }

    pub async fn until_up(&mut self, with: NodeId) {
        self.until(|event| matches!(event, NetEvent::LinkUp { node, .. } if *node == with)).await;
    }

    async fn until_down(&mut self, with: NodeId) -> String {
        match self.until(|event| matches!(event, NetEvent::LinkDown { node, .. } if *node == with)).await {
            NetEvent::LinkDown { reason, .. } => reason,
            _ => unreachable!(),
        }
    }

    /// Waits until the status of a node satisfies a condition. Events are read meanwhile.
    async fn until_status(&mut self, of: NodeId, wanted: impl Fn(&LinkStatus) -> bool) -> LinkStatus {
        let found = timeout(PATIENCE, async {
            loop {
                let status = self.net.links().into_iter().find(|status| status.node == of);
                if let Some(status) = status.filter(|status| wanted(status)) {
                    return status;
                }
                let _ = timeout(Duration::from_millis(5), self.events.recv()).await;
            }
        });
        match found.await {
            Ok(status) => status,
            Err(_) => panic!("not within {PATIENCE:?}; links: {:?}", self.net.links()),
        }
    }

    /// Where others find it.
    fn hints(&self) -> PeerHints {
        PeerHints { peer_id: Some(self.net.peer_id()), addrs: self.net.listening() }
    }

    fn want(&self, other: &Self) {
        self.want_at(other.id, other.hints());
    }

    pub fn want_at(&self, node: NodeId, hints: PeerHints) {
        self.net.want(BTreeMap::from([(node, hints)]));
    }

    /// Listen addresses with the peer id.
    fn entrances(&self) -> Vec<Multiaddr> {
        let peer = self.net.peer_id();
        self.net.listening().into_iter().map(|addr| addr.with(Protocol::P2p(peer))).collect()
    }
}

pub(super) fn transport_key(device: &DeviceKeys) -> Keypair {
    let secret = blake3::derive_key("tieline test transport key", device.device().as_bytes());
    Keypair::ed25519_from_bytes(secret).unwrap()
}

async fn linked(a: &mut Node, b: &mut Node) {
    a.want(b);
    both_up(a, b).await;
}

async fn both_up(a: &mut Node, b: &mut Node) {
    let (a_id, b_id) = (a.id, b.id);
    tokio::join!(a.until_up(b_id), b.until_up(a_id));
}

fn turn(run: u64) -> Lane {
    Lane::Turn(AttemptId { channel: ChannelId([3; 32]), run: MessageId(run), attempt: Attempt(1) })
}

/// A frame that says which it is.
fn numbered(number: u64) -> Message {
    Message::Feed { call: number }
}

fn number_of(event: &NetEvent) -> Option<(Lane, u64)> {
    match event {
        NetEvent::Frame { lane, message: Message::Feed { call }, .. } => Some((*lane, *call)),
        _ => None,
    }
}
