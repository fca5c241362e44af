//! The grantor's side.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use rand_core::CryptoRng;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::link::{LinkError, PairLink};
use super::pipe::{self, Event, NONCE_LEN, Pipe, PipeError, Said};
use super::{
    CLAIMS_MAX, DIGITS_MS, GUESTS_MAX, IN_VAIN_MAX, OFFER_MS, OFFER_MS_MAX, OFFERS_MAX, OFFERS_WINDOW_MS, PAIR_VERSION,
    Reason, STEP_MS,
};
use crate::crypto::cert::Binding;
use crate::crypto::keys::DeviceKeys;
use crate::crypto::link_key::LinkKey;
use crate::crypto::noise::{Handshake, Prologue, Purpose};
use crate::crypto::sign::{self, domain};
use crate::entry::Role;
use crate::id::{DeviceId, NodeId, NoiseKey, OrgId};
use crate::org::{ENROLLED_ROLE_MAX, is_name};
use crate::time::Millis;

/// The shell's number for a stream.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ConnId(pub u64);

/// What is offered.
#[derive(Clone, Debug)]
pub struct Terms {
    /// What the device becomes; at most [`ENROLLED_ROLE_MAX`].
    pub role: Role,
    /// What people call the org; the device shows it.
    pub org_name: String,
    /// What people call this host; the device shows it.
    pub host_name: String,
    /// Where the host can be reached, as binary multiaddresses.
    pub addrs: Vec<Vec<u8>>,
    /// How long the offer can be claimed, in milliseconds; at most [`OFFER_MS_MAX`]. `None` is [`OFFER_MS`].
    pub ttl_ms: Option<u64>,
}

/// An offer that was made.
#[derive(Debug)]
pub struct Offered {
    /// The link to show. Secret: whoever reads it can claim.
    pub link: Zeroizing<String>,
    /// How long it can be claimed, in milliseconds.
    pub expires_ms: u64,
}

/// Why the operator's wish can't be met. Nothing has changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// Too many offers.
    #[error("{OFFERS_MAX} offers were made in the last ten minutes; the next can be made in {wait_ms} ms")]
    TooMany {
        /// When the next can be made, in milliseconds.
        wait_ms: u64,
    },
    /// Pairing does not give such a role.
    #[error("pairing gives at most {ENROLLED_ROLE_MAX:?}, not {0:?}: promote the device afterwards")]
    RoleTooHigh(Role),
    /// The link can't be made.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The text is not six digits. It costs no try.
    #[error("the digits are six, as the device shows them")]
    NotDigits,
    /// No device shows digits now.
    #[error("no device has claimed the offer")]
    NoClaim,
}

/// What can happen to a host.
#[derive(Debug)]
pub enum HostInput {
    /// Somebody opened a pairing stream.
    Opened {
        /// The stream.
        conn: ConnId,
        /// The other end's transport peer id; empty over TCP and WebSocket.
        peer: Vec<u8>,
    },
    /// Bytes came, cut anywhere.
    Received {
        /// The stream.
        conn: ConnId,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// A stream ended.
    Closed {
        /// The stream.
        conn: ConnId,
    },
    /// The operator typed digits.
    Digits(String),
    /// The operator took the offer back.
    Cancel,
    /// The enrolment that [`HostOutput::Approved`] asked for is in the chain, synced.
    Enrolled(Box<Welcome>),
    /// It could not be made.
    NotEnrolled,
    /// The box slept, or its clock was set: how long the offer has really stood is not known, so its time is over.
    ClockJumped,
    /// The deadline from [`Host::poll_timeout`] passed.
    Timeout,
}

/// What a host asks of its shell.
#[derive(Debug)]
pub enum HostOutput {
    /// Send bytes.
    Send {
        /// The stream.
        conn: ConnId,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Close a stream once what was sent before is written.
    Close {
        /// The stream.
        conn: ConnId,
    },
    /// A device claims the offer: ask the operator for its digits.
    Claimed {
        /// What the device calls itself.
        name: String,
        /// What it would become.
        role: Role,
    },
    /// The digits were right: enrol the device (`Org::enrol`), sync the chain, then feed [`HostInput::Enrolled`].
    Approved(Box<Approval>),
    /// The device is enrolled and what it needs is on its way.
    Enrolled {
        /// The device.
        device: DeviceId,
        /// What it is called now.
        name: String,
    },
    /// The offer is over and no device came of it.
    Refused {
        /// Why.
        reason: Reason,
    },
}

/// A device whose digits were right.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Approval {
    /// Its keys.
    pub binding: Binding,
    /// Its own signature over them.
    pub held: String,
    /// What it wants to be called.
    pub name: String,
    /// What it becomes.
    pub role: Role,
}

/// What an enrolled device is given.
#[derive(Clone, Debug)]
pub struct Welcome {
    /// The device.
    pub device: DeviceId,
    /// Its certificate, as JSON.
    pub certificate: String,
    /// What it is called.
    pub name: String,
    /// The org's chain with its enrolment, as raw lines with LFs.
    pub chain: Vec<u8>,
    /// The org's link key.
    pub link_key: LinkKey,
    /// This host.
    pub node: NodeId,
    /// This host's addresses.
    pub addrs: Vec<String>,
}

/// The grantor's state machine. One offer at a time.
pub struct Host {
    org: OrgId,
    keys: Arc<DeviceKeys>,
    peer: Vec<u8>,
    rng: Box<dyn CryptoRng + Send>,
    offer: Option<Offer>,
    guests: BTreeMap<ConnId, Guest>,
    /// When the last offers were made; at most [`OFFERS_MAX`].
    issued: VecDeque<Millis>,
    outputs: VecDeque<HostOutput>,
}

struct Offer {
    link: PairLink,
    terms: Terms,
    /// When the present stage ends.
    deadline: Millis,
    /// The one key that may still be enrolled: the first that claimed.
    claimant: Option<NoiseKey>,
    /// The operator has been asked for digits: the minute runs, and a device that comes again gets no second one.
    asked: bool,
    /// Times that a device has named itself.
    claims: u32,
    /// Streams that showed the code and ended before they claimed.
    in_vain: u32,
    stage: Stage,
}

enum Stage {
    /// Nobody shows digits.
    Open,
    /// A device shows digits.
    Shown { conn: ConnId, digits: Zeroizing<String>, approval: Box<Approval> },
    /// The digits were right; the shell enrols.
    Approved { approval: Box<Approval> },
    /// It is enrolled. The offer lives on only for this device, should it have missed the news.
    Enrolled { welcome: Box<Welcome> },
}

/// A stream.
struct Guest {
    pipe: Pipe,
    /// Its first message was good: it has the code.
    proved: bool,
    /// The nonce it was sent, once it has claimed.
    nonce: Option<[u8; NONCE_LEN]>,
    /// It has said who it is.
    named: bool,
    /// When its present step must be done; `None` while a person or the shell works.
    deadline: Option<Millis>,
}

impl Host {
    /// A host of an org without an offer. `peer` is its transport peer id, in binary.
    #[must_use]
    pub fn new(org: OrgId, keys: Arc<DeviceKeys>, peer: Vec<u8>, rng: Box<dyn CryptoRng + Send>) -> Self {
        let (guests, issued, outputs) = (BTreeMap::new(), VecDeque::new(), VecDeque::new());
        Self { org, keys, peer, rng, offer: None, guests, issued, outputs }
    }

    /// Makes an offer; one that stands is taken back.
    ///
    /// # Errors
    /// When too many were made, the role is too high or the addresses don't fit the link.
    pub fn offer(&mut self, terms: Terms, now: Millis) -> Result<Offered, HostError> {
        if terms.role > ENROLLED_ROLE_MAX {
            return Err(HostError::RoleTooHigh(terms.role));
        }
        while self.issued.front().is_some_and(|made| now - *made >= OFFERS_WINDOW_MS) {
            self.issued.pop_front();
        }
        if let Some(oldest) = self.issued.front().filter(|_| self.issued.len() >= OFFERS_MAX) {
            return Err(HostError::TooMany { wait_ms: (*oldest + OFFERS_WINDOW_MS) - now });
        }
        let addrs = terms.addrs.clone();
        let link = PairLink::new(self.keys.noise(), self.org, self.peer.clone(), addrs, &mut *self.rng)?;
        self.timeout(now);
        self.end(Some(Reason::Cancelled));
        self.issued.push_back(now);
        let expires_ms = terms.ttl_ms.unwrap_or(OFFER_MS).min(OFFER_MS_MAX);
        let text = link.to_text();
        let (deadline, stage) = (now + expires_ms, Stage::Open);
        self.offer = Some(Offer { link, terms, deadline, claimant: None, asked: false, claims: 0, in_vain: 0, stage });
        Ok(Offered { link: text, expires_ms })
    }

    /// Applies one input. Drain [`Host::poll_output`] before the next one.
    ///
    /// # Errors
    /// Only what the operator typed can be refused.
    pub fn handle(&mut self, input: HostInput, now: Millis) -> Result<(), HostError> {
        // A timer that comes late must not lengthen an offer's life.
        self.timeout(now);
        match input {
            HostInput::Opened { conn, peer } => self.opened(conn, peer, now),
            HostInput::Received { conn, bytes } => self.received(conn, &bytes, now),
            HostInput::Closed { conn } => self.gone(conn),
            HostInput::Digits(text) => self.typed(&text, now)?,
            HostInput::Cancel => self.end(Some(Reason::Cancelled)),
            HostInput::Enrolled(welcome) => self.enrolled(welcome, now),
            HostInput::NotEnrolled => {
                if self.offer.as_ref().is_some_and(|offer| matches!(offer.stage, Stage::Approved { .. })) {
                    self.end(Some(Reason::NotEnrolled));
                }
            }
            HostInput::ClockJumped => {
                // The shell's own sync goes on, and a device that was enrolled may still fetch the news.
                if let Some(offer) = &mut self.offer
                    && matches!(offer.stage, Stage::Open | Stage::Shown { .. })
                {
                    offer.deadline = now;
                    self.timeout(now);
                }
            }
            HostInput::Timeout => {}
        }
        Ok(())
    }

    /// What the shell must do next.
    pub fn poll_output(&mut self) -> Option<HostOutput> {
        self.outputs.pop_front()
    }

    /// When to feed [`HostInput::Timeout`].
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Millis> {
        let offer = self.offer.as_ref().map(|offer| offer.deadline);
        self.guests.values().filter_map(|guest| guest.deadline).chain(offer).min()
    }

    /// Whether an offer stands that can still make a device.
    #[must_use]
    pub fn is_offering(&self) -> bool {
        self.offer.as_ref().is_some_and(|offer| !matches!(offer.stage, Stage::Enrolled { .. }))
    }

    fn opened(&mut self, conn: ConnId, peer: Vec<u8>, now: Millis) {
        let Some(offer) = &self.offer else { return self.outputs.push_back(HostOutput::Close { conn }) };
        let prologue = Prologue {
            purpose: Purpose::Pair,
            version: PAIR_VERSION,
            org: self.org,
            initiator_peer: peer,
            responder_peer: self.peer.clone(),
            epoch: 0,
        };
        let noise = Handshake::responder(&prologue, &offer.link.psk(), self.keys.noise_secret(), &mut *self.rng);
        let room = self.make_room();
        let Some(noise) = noise.ok().filter(|_| room) else {
            return self.outputs.push_back(HostOutput::Close { conn });
        };
        let pipe = Pipe::responder(noise);
        let deadline = Some(now + STEP_MS);
        self.guests.insert(conn, Guest { pipe, proved: false, nonce: None, named: false, deadline });
    }

    /// Whether there is room for one more, at the cost of the oldest that has not claimed: best one that has not shown
    /// the code.
    fn make_room(&mut self) -> bool {
        let unclaimed = self.guests.values().filter(|guest| guest.nonce.is_none()).count();
        if unclaimed < GUESTS_MAX {
            return true;
        }
        let waiting = self.guests.iter().filter(|(_, guest)| guest.nonce.is_none());
        let oldest = waiting.min_by_key(|(conn, guest)| (guest.proved, guest.deadline, **conn)).map(|(conn, _)| *conn);
        // Letting one go may have been one too many: then the offer is over.
        oldest.inspect(|conn| self.close(*conn)).is_some() && self.offer.is_some()
    }

    fn received(&mut self, conn: ConnId, bytes: &[u8], now: Millis) {
        let Some(guest) = self.guests.get_mut(&conn) else { return };
        if guest.pipe.push(bytes).is_err() {
            return self.close(conn);
        }
        // Ends: each turn takes an event out of the bytes that came.
        while let Some(guest) = self.guests.get_mut(&conn) {
            match guest.pipe.next() {
                Ok(None) => break,
                Ok(Some(Event::Proved)) => guest.proved = true,
                Ok(Some(Event::Up)) => self.claimed(conn, now),
                Ok(Some(Event::Said(Said::Claim { device, name, held, proof }, _))) => {
                    self.named(conn, Claim { device, name, held, proof }, now);
                }
                Ok(Some(Event::Said(..))) => {}
                // Junk and wrong codes: silence, and nothing else changes.
                Err(_) => self.close(conn),
            }
        }
        self.flush(conn);
    }

    /// The third message was good: the far side holds the code and a Noise key.
    fn claimed(&mut self, conn: ConnId, now: Millis) {
        let (Some(offer), Some(guest)) = (&mut self.offer, self.guests.get_mut(&conn)) else { return };
        let Some(key) = guest.pipe.remote() else { return };
        let claimant = *offer.claimant.get_or_insert(key);
        if claimant != key {
            // Somebody else has the link. Before a person has approved one of them, neither is believed.
            return if matches!(offer.stage, Stage::Open | Stage::Shown { .. }) {
                self.end(Some(Reason::Raced));
            } else {
                self.close(conn);
            };
        }
        let mut nonce = [0; NONCE_LEN];
        self.rng.fill_bytes(&mut nonce);
        let Terms { role, org_name, host_name, .. } = &offer.terms;
        let hello = Said::Hello { role: *role, org: org_name.clone(), host: host_name.clone() };
        guest.nonce = Some(nonce);
        guest.deadline = Some(now + STEP_MS);
        if guest.pipe.say(&hello, &nonce).is_err() {
            return self.close(conn);
        }
        // The same device again: the newer stream is the one it looks at.
        let others = self.guests.iter().filter(|(other, guest)| **other != conn && guest.nonce.is_some());
        let older: Vec<_> = others.map(|(other, _)| *other).collect();
        older.into_iter().for_each(|other| self.close(other));
    }

    /// The device said who it is.
    fn named(&mut self, conn: ConnId, claim: Claim, now: Millis) {
        let org = self.org;
        let (Some(offer), Some(guest)) = (&mut self.offer, self.guests.get_mut(&conn)) else { return };
        let Some((approval, digits)) = claim.check(org, offer.terms.role, guest).filter(|_| !guest.named) else {
            return self.close(conn);
        };
        guest.named = true;
        guest.deadline = None;
        match &offer.stage {
            Stage::Open | Stage::Shown { .. } if offer.claims >= CLAIMS_MAX => self.end(Some(Reason::Raced)),
            Stage::Open | Stage::Shown { .. } => {
                offer.claims += 1;
                let (name, role) = (approval.name.clone(), approval.role);
                if !offer.asked {
                    offer.asked = true;
                    offer.deadline = now + DIGITS_MS;
                }
                offer.stage = Stage::Shown { conn, digits, approval: Box::new(approval) };
                self.outputs.push_back(HostOutput::Claimed { name, role });
            }
            Stage::Approved { approval: first } if first.binding == approval.binding => {}
            Stage::Enrolled { welcome } if welcome.device == approval.binding.device => {
                let welcome = welcome.clone();
                self.welcome(&welcome, now);
            }
            Stage::Approved { .. } | Stage::Enrolled { .. } => self.close(conn),
        }
    }

    fn typed(&mut self, text: &str, now: Millis) -> Result<(), HostError> {
        let typed = six_digits(text).ok_or(HostError::NotDigits)?;
        let Some(Offer { stage, deadline, asked, .. }) = &mut self.offer else { return Err(HostError::NoClaim) };
        let (digits, approval) = match stage {
            Stage::Shown { digits, approval, .. } => (digits, approval),
            // It has left since it was asked for. Should it come again, it shows other digits than those typed.
            Stage::Open if *asked => {
                self.end(Some(Reason::DeviceGone));
                return Ok(());
            }
            _ => return Err(HostError::NoClaim),
        };
        if bool::from(typed.as_bytes().ct_eq(digits.as_bytes())) {
            let approval = approval.clone();
            *stage = Stage::Approved { approval: approval.clone() };
            // The shell's own sync is waited for as long as it takes; this only bounds a shell that forgot.
            *deadline = now + OFFER_MS_MAX;
            self.outputs.push_back(HostOutput::Approved(approval));
        } else {
            self.end(Some(Reason::WrongDigits));
        }
        Ok(())
    }

    fn enrolled(&mut self, welcome: Box<Welcome>, now: Millis) {
        let Some(offer) = &mut self.offer else { return };
        let Stage::Approved { approval } = &offer.stage else { return };
        if approval.binding.device != welcome.device {
            return;
        }
        offer.stage = Stage::Enrolled { welcome: welcome.clone() };
        // Long enough for the device to come again, once, by itself.
        offer.deadline = now + DIGITS_MS;
        self.welcome(&welcome, now);
        self.outputs.push_back(HostOutput::Enrolled { device: welcome.device, name: welcome.name });
    }

    /// Sends what an enrolled device needs, to the stream that has said that it is the one.
    fn welcome(&mut self, welcome: &Welcome, now: Millis) {
        let Welcome { certificate, name, chain, link_key, node, addrs, .. } = welcome;
        let named = self.guests.iter_mut().find(|(_, guest)| guest.named);
        let Some((conn, guest)) = named else { return };
        let conn = *conn;
        let (certificate, name, addrs) = (certificate.clone(), name.clone(), addrs.clone());
        let said = Said::Enrolled { certificate, name, node: *node, addrs };
        let sent = guest.pipe.say(&said, &link_key.to_secret_bytes()).and_then(|()| guest.pipe.say_chain(chain));
        // The device closes when it has all of it.
        guest.deadline = Some(now + STEP_MS);
        match sent {
            Ok(()) => self.flush(conn),
            Err(_) => self.close(conn),
        }
    }

    fn timeout(&mut self, now: Millis) {
        let late = |guest: &Guest| guest.deadline.is_some_and(|deadline| deadline <= now);
        let over: Vec<_> = self.guests.iter().filter(|(_, guest)| late(guest)).map(|(conn, _)| *conn).collect();
        over.into_iter().for_each(|conn| self.close(conn));
        let Some(offer) = self.offer.as_ref().filter(|offer| offer.deadline <= now) else { return };
        let reason = match offer.stage {
            Stage::Open if offer.claimant.is_none() => Some(Reason::Expired),
            Stage::Open | Stage::Shown { .. } => Some(Reason::DigitsTimeout),
            Stage::Approved { .. } => Some(Reason::NotEnrolled),
            Stage::Enrolled { .. } => None,
        };
        self.end(reason);
    }

    /// Ends the offer and everything on it. Without a reason it had done its work.
    fn end(&mut self, reason: Option<Reason>) {
        let Some(offer) = self.offer.take() else { return };
        let reason = reason.filter(|_| !matches!(offer.stage, Stage::Enrolled { .. }));
        let conns: Vec<_> = self.guests.keys().copied().collect();
        for conn in conns {
            if let Some(guest) = self.guests.get_mut(&conn)
                && let Some(reason) = reason
                && guest.nonce.is_some()
            {
                // Only to say why; a stream that can't take it is closed all the same.
                let _: Result<(), PipeError> = guest.pipe.say(&Said::Refused { reason }, &[]);
                self.flush(conn);
            }
            self.close(conn);
        }
        self.outputs.extend(reason.map(|reason| HostOutput::Refused { reason }));
    }

    fn flush(&mut self, conn: ConnId) {
        let Some(guest) = self.guests.get_mut(&conn) else { return };
        let bytes = guest.pipe.take_out();
        if !bytes.is_empty() {
            self.outputs.push_back(HostOutput::Send { conn, bytes });
        }
    }

    fn close(&mut self, conn: ConnId) {
        if self.guests.contains_key(&conn) {
            self.outputs.push_back(HostOutput::Close { conn });
        }
        self.gone(conn);
    }

    fn gone(&mut self, conn: ConnId) {
        let guest = self.guests.remove(&conn);
        self.hide(conn);
        if let Some(offer) = &mut self.offer
            && guest.is_some_and(|guest| guest.proved && guest.nonce.is_none())
            && matches!(offer.stage, Stage::Open | Stage::Shown { .. })
        {
            offer.in_vain += 1;
            if offer.in_vain >= IN_VAIN_MAX {
                self.end(Some(Reason::Raced));
            }
        }
    }

    /// The stream whose digits were asked for is gone: they can't be right any more.
    fn hide(&mut self, conn: ConnId) {
        if let Some(offer) = &mut self.offer
            && matches!(offer.stage, Stage::Shown { conn: shown, .. } if shown == conn)
        {
            offer.stage = Stage::Open;
        }
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let offering = self.is_offering();
        f.debug_struct("Host").field("offering", &offering).field("guests", &self.guests.len()).finish_non_exhaustive()
    }
}

/// What a device says of itself.
struct Claim {
    device: DeviceId,
    name: String,
    held: String,
    proof: String,
}

impl Claim {
    /// The device as it would be enrolled, and the digits that it shows. `None` when something about it is wrong.
    fn check(self, org: OrgId, role: Role, guest: &Guest) -> Option<(Approval, Zeroizing<String>)> {
        let (nonce, hash, noise) = (guest.nonce?, guest.pipe.hash()?, guest.pipe.remote()?);
        let Self { device, name, held, proof } = self;
        let binding = Binding { org, device, noise };
        binding.verify(&held).ok()?;
        sign::verify(domain::PAIRING, &pipe::proof(&hash, &nonce, role), &device, &proof).ok()?;
        if !is_name(&name) {
            return None;
        }
        Some((Approval { binding, held, name, role }, Zeroizing::new(pipe::digits(&hash, &nonce))))
    }
}

/// The six digits in what a person typed: spaces and hyphens between them are passed over.
fn six_digits(text: &str) -> Option<Zeroizing<String>> {
    let digits: Zeroizing<String> = Zeroizing::new(text.chars().filter(|c| !c.is_whitespace() && *c != '-').collect());
    (digits.len() == 6 && digits.bytes().all(|byte| byte.is_ascii_digit())).then_some(digits)
}
