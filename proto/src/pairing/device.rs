//! The new device's side.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use rand_core::CryptoRng;

use super::link::PairLink;
use super::pipe::{self, Event, NONCE_LEN, Pipe, PipeError, Said};
use super::{CHAIN_LEN_MAX, DIGITS_MS, PAIR_VERSION, Reason, STEP_MS};
use crate::crypto::cert::{Binding, Certificate};
use crate::crypto::keys::DeviceKeys;
use crate::crypto::link_key::LinkKey;
use crate::crypto::noise::{Handshake, Prologue, Purpose};
use crate::crypto::sign::{self, domain};
use crate::entry::Role;
use crate::id::NodeId;
use crate::org::{Org, is_name};
use crate::time::Millis;
use crate::wire::frame::TAIL_LEN_MAX;

/// Most pieces that a chain comes in: those of the longest, as a host cuts it.
const PIECES_MAX: usize = CHAIN_LEN_MAX.div_ceil(TAIL_LEN_MAX);

/// Why joining can't even begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The name is not allowed.
    #[error("{0:?} is not a name for a device")]
    Name(String),
}

/// What can happen to a joining device.
#[derive(Debug)]
pub enum DeviceInput {
    /// A stream to the host is open. Both transport peer ids are empty over TCP and WebSocket.
    Connected {
        /// This end's transport peer id.
        own_peer: Vec<u8>,
        /// The host's.
        host_peer: Vec<u8>,
    },
    /// Bytes came, cut anywhere.
    Received(Vec<u8>),
    /// The stream ended. The shell may open another one while [`Device::poll_timeout`] gives a time.
    Closed,
    /// The deadline from [`Device::poll_timeout`] passed.
    Timeout,
}

/// What a joining device asks of its shell.
#[derive(Debug)]
pub enum DeviceOutput {
    /// Send bytes.
    Send(Vec<u8>),
    /// Close the stream.
    Close,
    /// Show these digits, with what the host offers: its person types them there.
    Digits {
        /// Six digits.
        digits: String,
        /// What the device becomes.
        role: Role,
        /// What the host's people call the org.
        org: String,
        /// What they call the host.
        host: String,
    },
    /// Done. Nothing is enrolled before this is stored, but a device that fails to store it can come again.
    Enrolled(Box<Joined>),
    /// Not done.
    Refused {
        /// Why.
        reason: Reason,
    },
}

/// What an enrolled device has.
#[derive(Clone, Debug)]
pub struct Joined {
    /// The org, folded from its chain.
    pub org: Org,
    /// The chain's raw lines, with LFs.
    pub chain: Vec<u8>,
    /// The device's certificate, as JSON.
    pub certificate: String,
    /// What the device is called.
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// The org's link key.
    pub link_key: LinkKey,
    /// The host that enrolled it.
    pub node: NodeId,
    /// The host's transport peer id, in binary, as the link has it.
    pub peer: Vec<u8>,
    /// The host's addresses.
    pub addrs: Vec<String>,
}

/// The joining device's state machine.
pub struct Device {
    link: PairLink,
    keys: Arc<DeviceKeys>,
    name: String,
    rng: Box<dyn CryptoRng + Send>,
    pipe: Option<Pipe>,
    /// What the host has said so far, on this stream.
    heard: Heard,
    /// When to give up; `None` when it is over.
    deadline: Option<Millis>,
    outputs: VecDeque<DeviceOutput>,
}

#[derive(Default)]
enum Heard {
    #[default]
    Nothing,
    /// What it offers.
    Hello(Role),
    /// That the device is enrolled; the chain is coming.
    Enrolled { role: Role, news: Box<News>, chain: Vec<u8>, pieces: usize },
}

/// What comes before the chain.
struct News {
    certificate: String,
    name: String,
    node: NodeId,
    addrs: Vec<String>,
    link_key: LinkKey,
}

impl Device {
    /// A device that wants to join by a link, under a name.
    ///
    /// # Errors
    /// When the name is not allowed.
    pub fn new(
        link: PairLink,
        keys: Arc<DeviceKeys>,
        name: &str,
        now: Millis,
        rng: Box<dyn CryptoRng + Send>,
    ) -> Result<Self, JoinError> {
        if !is_name(name) {
            return Err(JoinError::Name(name.to_owned()));
        }
        let deadline = Some(now + STEP_MS);
        let (name, heard, outputs) = (name.to_owned(), Heard::Nothing, VecDeque::new());
        Ok(Self { link, keys, name, rng, pipe: None, heard, deadline, outputs })
    }

    /// Applies one input. Drain [`Device::poll_output`] before the next one.
    pub fn handle(&mut self, input: DeviceInput, now: Millis) {
        let Some(deadline) = self.deadline else { return };
        if deadline <= now {
            return self.refuse(Reason::SpentOrExpired);
        }
        match input {
            DeviceInput::Connected { own_peer, host_peer } => self.connected(own_peer, host_peer),
            DeviceInput::Received(bytes) => self.received(&bytes, now),
            DeviceInput::Closed => {
                self.pipe = None;
                self.heard = Heard::Nothing;
            }
            DeviceInput::Timeout => {}
        }
    }

    /// What the shell must do next.
    pub fn poll_output(&mut self) -> Option<DeviceOutput> {
        self.outputs.pop_front()
    }

    /// When to feed [`DeviceInput::Timeout`]; `None` when it is over, one way or the other.
    #[must_use]
    pub const fn poll_timeout(&self) -> Option<Millis> {
        self.deadline
    }

    fn connected(&mut self, own_peer: Vec<u8>, host_peer: Vec<u8>) {
        self.heard = Heard::Nothing;
        let prologue = Prologue {
            purpose: Purpose::Pair,
            version: PAIR_VERSION,
            org: self.link.org,
            initiator_peer: own_peer,
            responder_peer: host_peer,
            epoch: 0,
        };
        let (psk, host) = (self.link.psk(), self.link.host);
        let noise = Handshake::initiator(&prologue, &psk, self.keys.noise_secret(), host.as_bytes(), &mut *self.rng);
        match noise.map_err(PipeError::from).and_then(Pipe::initiator) {
            Ok(pipe) => self.pipe = Some(pipe),
            Err(_) => self.drop_stream(),
        }
        self.flush();
    }

    fn received(&mut self, bytes: &[u8], now: Millis) {
        let Some(pipe) = &mut self.pipe else { return };
        if pipe.push(bytes).is_err() {
            return self.drop_stream();
        }
        // Ends: each turn takes an event out of the bytes that came.
        while let Some(pipe) = &mut self.pipe {
            match pipe.next() {
                Ok(None) => break,
                Ok(Some(Event::Said(said, tail))) => self.hears(said, tail, now),
                Ok(Some(Event::Up | Event::Proved)) => {}
                Err(_) => self.drop_stream(),
            }
        }
        self.flush();
    }

    fn hears(&mut self, said: Said, tail: Vec<u8>, now: Millis) {
        match (said, std::mem::take(&mut self.heard)) {
            (Said::Hello { role, org, host }, Heard::Nothing) => self.hello(role, org, host, &tail, now),
            (Said::Enrolled { certificate, name, node, addrs }, Heard::Hello(role)) => {
                let Ok(link_key) = LinkKey::from_secret_bytes(&zeroize::Zeroizing::new(tail)) else {
                    return self.refuse(Reason::BadOrg);
                };
                let news = Box::new(News { certificate, name, node, addrs, link_key });
                self.heard = Heard::Enrolled { role, news, chain: Vec::new(), pieces: 0 };
                self.deadline = Some(now + STEP_MS);
            }
            (Said::Chain { last }, Heard::Enrolled { role, news, mut chain, pieces }) => {
                // Each piece gives the next one its time: without a bound a host could go on for ever.
                if chain.len().saturating_add(tail.len()) > CHAIN_LEN_MAX || pieces >= PIECES_MAX {
                    return self.refuse(Reason::BadOrg);
                }
                chain.extend_from_slice(&tail);
                if last {
                    self.enrolled(role, *news, chain);
                } else {
                    self.heard = Heard::Enrolled { role, news, chain, pieces: pieces + 1 };
                    self.deadline = Some(now + STEP_MS);
                }
            }
            (Said::Refused { reason }, _) => self.refuse(reason),
            // A newer host's remark.
            (Said::Unknown, heard) => self.heard = heard,
            // Out of turn: no host of ours does that.
            _ => self.drop_stream(),
        }
    }

    fn hello(&mut self, role: Role, org: String, host: String, nonce: &[u8], now: Millis) {
        let nonce: Option<[u8; NONCE_LEN]> = nonce.try_into().ok();
        let hash = self.pipe.as_ref().and_then(Pipe::hash);
        // Names are shown: what could play tricks on a screen is no name.
        let (Some(nonce), Some(hash), true) = (nonce, hash, is_name(&org) && is_name(&host)) else {
            return self.drop_stream();
        };
        let (binding, held) = Binding::of(&self.keys, self.link.org);
        let proof = sign::sign(domain::PAIRING, &pipe::proof(&hash, &nonce, role), self.keys.signing());
        let claim = Said::Claim { device: binding.device, name: self.name.clone(), held, proof };
        if self.pipe.as_mut().is_none_or(|pipe| pipe.say(&claim, &[]).is_err()) {
            return self.drop_stream();
        }
        self.heard = Heard::Hello(role);
        // The operator's minute, the host's sync, and a step.
        self.deadline = Some(now + (DIGITS_MS + 2 * STEP_MS));
        let digits = pipe::digits(&hash, &nonce);
        self.outputs.push_back(DeviceOutput::Digits { digits, role, org, host });
    }

    fn enrolled(&mut self, role: Role, news: News, chain: Vec<u8>) {
        let Some(org) = self.check(role, &news, &chain) else { return self.refuse(Reason::BadOrg) };
        let News { certificate, name, node, addrs, link_key } = news;
        let peer = self.link.peer.clone();
        self.deadline = None;
        self.pipe = None;
        self.outputs.push_back(DeviceOutput::Close);
        let joined = Joined { org, chain, certificate, name, role, link_key, node, peer, addrs };
        self.outputs.push_back(DeviceOutput::Enrolled(Box::new(joined)));
    }

    /// Folds the chain, if it is that of the link's org, with the host and this device in it as they said.
    fn check(&self, role: Role, news: &News, chain: &[u8]) -> Option<Org> {
        let org = Org::read(chain).ok()?;
        let (_, content) = Certificate::parse(&news.certificate).ok()?;
        let (host, _) = org.by_noise(&self.link.host)?;
        let own = org.live(&self.keys.device())?;
        let right = org.fingerprint() == self.link.org
            && host == news.node
            && own.certificate == news.certificate
            && own.noise == self.keys.noise()
            && own.role == role
            && own.name == news.name
            && content.device == self.keys.device();
        right.then_some(org)
    }

    fn refuse(&mut self, reason: Reason) {
        self.deadline = None;
        self.drop_stream();
        self.outputs.push_back(DeviceOutput::Refused { reason });
    }

    fn drop_stream(&mut self) {
        self.heard = Heard::Nothing;
        if self.pipe.take().is_some() {
            self.outputs.push_back(DeviceOutput::Close);
        }
    }

    fn flush(&mut self) {
        let bytes = self.pipe.as_mut().map(Pipe::take_out).unwrap_or_default();
        if !bytes.is_empty() {
            self.outputs.push_back(DeviceOutput::Send(bytes));
        }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("name", &self.name).field("link", &self.link).finish_non_exhaustive()
    }
}
