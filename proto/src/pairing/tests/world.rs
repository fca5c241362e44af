//! A host with its org, devices, and the streams between them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng;

use super::super::*;
use crate::crypto::keys::{DeviceKeys, RootKey};
use crate::crypto::link_key::LinkKey;
use crate::entry::{NewEntry, Role};
use crate::id::{DeviceId, Hash};
use crate::log::{Head, LogBuilder, LogId};
use crate::org::{Founding, Org};
use crate::time::Millis;

pub(super) const HOST_PEER: &[u8] = b"host-peer";

pub(super) fn rng(seed: u64) -> ChaCha20Rng {
    ChaCha20Rng::seed_from_u64(seed)
}

/// A device, its stream and what it has shown.
pub(super) struct Joiner {
    pub(super) machine: Device,
    pub(super) keys: Arc<DeviceKeys>,
    pub(super) peer: Vec<u8>,
    pub(super) conn: Option<ConnId>,
    pub(super) digits: Option<String>,
    pub(super) joined: Option<Box<Joined>>,
    pub(super) refused: Option<Reason>,
}

/// A host with its org, some devices, and the streams between them.
pub(super) struct World {
    pub(super) now: Millis,
    pub(super) host: Host,
    pub(super) keys: Arc<DeviceKeys>,
    pub(super) org: Org,
    pub(super) entries: Vec<NewEntry>,
    pub(super) link_key: LinkKey,
    pub(super) joiners: Vec<Joiner>,
    pub(super) conns: u64,
    /// Bytes on their way, by stream: to the host, to the device.
    pub(super) wires: BTreeMap<ConnId, (VecDeque<u8>, VecDeque<u8>)>,
    pub(super) claims: Vec<String>,
    pub(super) approvals: Vec<Approval>,
    pub(super) enrolled: Vec<DeviceId>,
    pub(super) refusals: Vec<Reason>,
    /// The shell enrols at once.
    pub(super) is_prompt: bool,
}

impl World {
    pub(super) fn new() -> Self {
        let keys = Arc::new(DeviceKeys::generate(&mut rng(0)));
        let root = RootKey::generate(&mut rng(1));
        let Founding { org, entries } = Org::found("acme", "desk", &root, &keys, 7, &mut rng(2)).unwrap();
        let host = Host::new(org.fingerprint(), keys.clone(), HOST_PEER.to_vec(), Box::new(rng(3)));
        Self {
            now: Millis(1000),
            host,
            keys,
            org,
            entries,
            link_key: LinkKey::generate(1, &mut rng(4)),
            joiners: Vec::new(),
            conns: 0,
            wires: BTreeMap::new(),
            claims: Vec::new(),
            approvals: Vec::new(),
            enrolled: Vec::new(),
            refusals: Vec::new(),
            is_prompt: true,
        }
    }

    pub(super) fn terms() -> Terms {
        let (org_name, host_name) = ("acme".to_owned(), "desk".to_owned());
        Terms { role: Role::Member, org_name, host_name, addrs: vec![vec![1; 8]], ttl_ms: None }
    }

    pub(super) fn offer(&mut self) -> String {
        let offered = self.host.offer(Self::terms(), self.now).unwrap();
        assert_eq!(offered.expires_ms, OFFER_MS);
        self.drain_host();
        offered.link.to_string()
    }

    /// A device with a link; it opens no stream yet.
    pub(super) fn joiner(&mut self, link: &str, seed: u64) -> usize {
        let keys = Arc::new(DeviceKeys::generate(&mut rng(100 + seed)));
        let link = PairLink::parse(link).unwrap();
        let machine = Device::new(link, keys.clone(), "lab", self.now, Box::new(rng(200 + seed))).unwrap();
        let peer = format!("peer-{seed}").into_bytes();
        self.joiners.push(Joiner { machine, keys, peer, conn: None, digits: None, joined: None, refused: None });
        self.joiners.len() - 1
    }

    pub(super) fn connect(&mut self, index: usize) {
        self.conns += 1;
        let conn = ConnId(self.conns);
        self.disconnect(index);
        self.wires.insert(conn, (VecDeque::new(), VecDeque::new()));
        let peer = self.joiners[index].peer.clone();
        self.joiners[index].conn = Some(conn);
        self.host(HostInput::Opened { conn, peer: peer.clone() });
        self.device(index, DeviceInput::Connected { own_peer: peer, host_peer: HOST_PEER.to_vec() });
    }

    /// Cuts a device's stream; what was on its way is lost.
    pub(super) fn disconnect(&mut self, index: usize) {
        if let Some(conn) = self.joiners[index].conn.take() {
            self.wires.remove(&conn);
            self.host(HostInput::Closed { conn });
            self.device(index, DeviceInput::Closed);
        }
    }

    pub(super) fn host(&mut self, input: HostInput) {
        let handled = self.host.handle(input, self.now);
        self.drain_host();
        handled.unwrap();
    }

    pub(super) fn digits(&mut self, digits: &str) -> Result<(), HostError> {
        let handled = self.host.handle(HostInput::Digits(digits.to_owned()), self.now);
        self.drain_host();
        handled
    }

    pub(super) fn device(&mut self, index: usize, input: DeviceInput) {
        self.joiners[index].machine.handle(input, self.now);
        while let Some(output) = self.joiners[index].machine.poll_output() {
            let joiner = &mut self.joiners[index];
            match output {
                DeviceOutput::Send(bytes) => {
                    if let Some((to_host, _)) = joiner.conn.and_then(|conn| self.wires.get_mut(&conn)) {
                        to_host.extend(bytes);
                    }
                }
                DeviceOutput::Close => {
                    if let Some(conn) = joiner.conn.take() {
                        self.wires.remove(&conn);
                        self.host(HostInput::Closed { conn });
                    }
                }
                DeviceOutput::Digits { digits, role, org, host } => {
                    assert_eq!((role, org.as_str(), host.as_str()), (Role::Member, "acme", "desk"));
                    joiner.digits = Some(digits);
                }
                DeviceOutput::Enrolled(joined) => assert!(joiner.joined.replace(joined).is_none()),
                DeviceOutput::Refused { reason } => assert!(joiner.refused.replace(reason).is_none()),
            }
        }
    }

    pub(super) fn drain_host(&mut self) {
        while let Some(output) = self.host.poll_output() {
            match output {
                HostOutput::Send { conn, bytes } => {
                    if let Some((_, to_device)) = self.wires.get_mut(&conn) {
                        to_device.extend(bytes);
                    }
                }
                HostOutput::Close { conn } => {
                    let index = self.joiners.iter().position(|joiner| joiner.conn == Some(conn));
                    let waiting = self.wires.remove(&conn).map(|(_, to_device)| to_device).unwrap_or_default();
                    if let Some(index) = index {
                        // What was sent before the close arrives before it.
                        self.device(index, DeviceInput::Received(waiting.into_iter().collect()));
                        if self.joiners[index].conn.take().is_some() {
                            self.device(index, DeviceInput::Closed);
                        }
                    }
                }
                HostOutput::Claimed { name, .. } => self.claims.push(name),
                HostOutput::Approved(approval) => {
                    self.approvals.push(*approval);
                    if self.is_prompt {
                        self.enrol();
                    }
                }
                HostOutput::Enrolled { device, .. } => self.enrolled.push(device),
                HostOutput::Refused { reason } => self.refusals.push(reason),
            }
        }
    }

    /// What the shell does when digits were right.
    pub(super) fn enrol(&mut self) {
        let approval = self.approvals.last().unwrap().clone();
        let Approval { binding, held, name, role } = approval;
        let enrolment = self.org.enrol(binding, held, &name, role, self.keys.signing()).unwrap();
        if let Some(body) = enrolment.body {
            let entry = self.org.entry(body, 9);
            self.org.apply(&entry.clone().at(Hash::ZERO)).unwrap();
            self.entries.push(entry);
        }
        let welcome = Welcome {
            device: binding.device,
            certificate: enrolment.certificate,
            name: enrolment.name,
            chain: self.chain(),
            link_key: self.link_key.clone(),
            node: self.keys.device(),
            addrs: vec!["/ip4/192.0.2.1/tcp/8138".to_owned()],
        };
        let handled = self.host.handle(HostInput::Enrolled(Box::new(welcome)), self.now);
        handled.unwrap();
    }

    pub(super) fn chain(&self) -> Vec<u8> {
        let mut builder = LogBuilder::new(LogId::Org(self.org.fingerprint()), Head::default());
        let mut out = Vec::new();
        for (index, entry) in self.entries.iter().enumerate() {
            builder.append(entry.clone(), &mut out).unwrap();
            if index > 0 {
                builder.seal(self.keys.signing(), &mut out).unwrap();
            }
        }
        out
    }

    /// Carries up to `max` bytes on one stream in one direction. False: nothing waited.
    pub(super) fn carry(&mut self, index: usize, to_host: bool, max: usize) -> bool {
        let Some(conn) = self.joiners[index].conn else { return false };
        let Some((up, down)) = self.wires.get_mut(&conn) else { return false };
        let wire = if to_host { up } else { down };
        let bytes: Vec<u8> = wire.drain(..max.min(wire.len())).collect();
        if bytes.is_empty() {
            return false;
        }
        if to_host {
            self.host(HostInput::Received { conn, bytes });
        } else {
            self.device(index, DeviceInput::Received(bytes));
        }
        true
    }

    /// Carries everything everywhere.
    pub(super) fn settle(&mut self) {
        while (0..self.joiners.len())
            .any(|index| self.carry(index, true, usize::MAX) || self.carry(index, false, usize::MAX))
        {}
    }

    /// Lets time pass and timers fire.
    pub(super) fn pass(&mut self, ms: u64) {
        self.now = self.now + ms;
        self.host(HostInput::Timeout);
        for index in 0..self.joiners.len() {
            self.device(index, DeviceInput::Timeout);
        }
        self.settle();
    }

    /// Connects a device and carries all: it shows digits, if the host takes it.
    pub(super) fn claim(&mut self, index: usize) -> Option<String> {
        self.connect(index);
        self.settle();
        self.joiners[index].digits.clone()
    }

    pub(super) fn pair(&mut self, index: usize) {
        let digits = self.claim(index).unwrap();
        self.digits(&digits).unwrap();
        self.settle();
    }
}
