//! The org: the fold of its membership chain.
//!
//! The chain is a log like a channel's, written by the founder's node. Its first line names the root key, and that
//! line's hash is the org's [fingerprint](Org::fingerprint): who pins it trusts no server for anything. Its second
//! line enrols the founder's device, by a certificate of the root. What the log layer has verified (hash chain, seals
//! by [`Org::home`]) is folded here, and judged again: certificates, issuers, roles.

mod found;
mod name;
mod rights;

use std::collections::BTreeMap;

pub use found::{Enrolment, Founding};
pub use name::{NAME_LEN_MAX, is_name};
pub use rights::{Action, ENROLLED_ROLE_MAX, RIGHTS, allows};

use crate::crypto::cert::{self, CertError, Certificate};
use crate::entry::{Auth, Body, Entry, Role};
use crate::id::{COUNTER_MAX, ChannelId, ChannelName, DeviceId, Epoch, Hash, Lamport, NodeId, NoiseKey, OrgId, Seq};
use crate::log::{Bad, LineError};

/// Why an entry can't stand in the chain. A chain that holds it is broken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OrgError {
    /// A line can't be read.
    #[error(transparent)]
    Line(#[from] LineError),
    /// The hash chain or a seal is broken.
    #[error(transparent)]
    Log(#[from] Bad),
    /// The chain does not begin with its founding.
    #[error("the chain does not begin with an org's founding")]
    NotFounded,
    /// The entry is another one than the next.
    #[error("entry {got} stands where {expected} was to come")]
    NotNext {
        /// Its seq.
        got: Seq,
        /// The seq that was to come.
        expected: Seq,
    },
    /// The lamport or epoch does not follow.
    #[error("entry {seq}: its clock does not follow the entry before it")]
    Clock {
        /// Which entry.
        seq: Seq,
    },
    /// The entry is not the chain's home's own.
    #[error("entry {seq}: only the org's home writes its chain")]
    NotHome {
        /// Which entry.
        seq: Seq,
    },
    /// The entry belongs into another log.
    #[error("entry {seq}: this kind of entry does not belong into an org's chain")]
    WrongKind {
        /// Which entry.
        seq: Seq,
    },
    /// A name is not allowed.
    #[error("{0:?} is not a name: use 1 to {NAME_LEN_MAX} visible bytes")]
    Name(String),
    /// The certificate is bad.
    #[error(transparent)]
    Certificate(#[from] CertError),
    /// The certificate is of another org.
    #[error("the certificate of {device} is of org {org}")]
    OtherOrg {
        /// The device.
        device: DeviceId,
        /// The org it names.
        org: OrgId,
    },
    /// The certificate's number is not the next.
    #[error("the certificate of {device} has serial {got}, not {expected}")]
    Serial {
        /// The device.
        device: DeviceId,
        /// Its serial.
        got: u64,
        /// The serial that was to come.
        expected: u64,
    },
    /// The issuer may not enrol, or not at that depth.
    #[error("{issuer} may not enrol {device}")]
    Issuer {
        /// The device.
        device: DeviceId,
        /// Who issued its certificate.
        issuer: DeviceId,
    },
    /// Enrolment gives at most [`ENROLLED_ROLE_MAX`].
    #[error("{device} cannot be enrolled as {role:?}: enrol it as member and promote it")]
    RoleTooHigh {
        /// The device.
        device: DeviceId,
        /// The role.
        role: Role,
    },
    /// One of the device's keys is enrolled.
    #[error("{device} or its noise key was enrolled before")]
    Enrolled {
        /// The device.
        device: DeviceId,
    },
    /// No such device, or it is revoked.
    #[error("{device} is not enrolled")]
    NotEnrolled {
        /// The device.
        device: DeviceId,
    },
    /// The founder's device writes the chain: without it as an owner nobody could.
    #[error("{device} writes the org's chain and stays its owner")]
    HomeStays {
        /// The device.
        device: DeviceId,
    },
    /// A home epoch does not continue the channel.
    #[error("epoch {epoch} of channel {channel} does not follow what the chain holds of it")]
    Epoch {
        /// The channel.
        channel: ChannelId,
        /// The epoch.
        epoch: Epoch,
    },
}

/// A device of the org.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Device {
    /// Its Noise key.
    pub noise: NoiseKey,
    /// What it may do.
    pub role: Role,
    /// What people call it.
    pub name: String,
    /// Its certificate, as JSON.
    pub certificate: String,
    /// Number of its certificate.
    pub serial: u64,
    /// Depth of its certificate.
    pub depth: u8,
    /// The entry that revoked it.
    pub revoked: Option<Seq>,
}

/// One home epoch of a channel.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ChannelTerm {
    /// The channel's name, for people.
    pub name: ChannelName,
    /// The home.
    pub home: NodeId,
    /// The epoch.
    pub epoch: Epoch,
    /// Its first entry.
    pub start: Seq,
    /// Hash of the line before that entry; [`Hash::ZERO`] when it is the first.
    pub prev: Hash,
}

/// The fold of a membership chain.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Org {
    fingerprint: OrgId,
    name: String,
    root: DeviceId,
    /// The founder's device; `None` between the first entry and the second.
    home: Option<DeviceId>,
    seq: Seq,
    lamport: Lamport,
    epoch: Epoch,
    devices: BTreeMap<DeviceId, Device>,
    /// Whose each Noise key is, those of revoked devices included.
    noise: BTreeMap<NoiseKey, DeviceId>,
    /// By channel, the epochs in order.
    channels: BTreeMap<ChannelId, Vec<ChannelTerm>>,
}

impl Org {
    /// Applies the next entry of the chain. What is in force is what has been applied.
    ///
    /// # Errors
    /// When the entry can't stand there. The org is then as before.
    pub fn apply(&mut self, entry: &Entry) -> Result<(), OrgError> {
        let seq = entry.seq;
        if seq != self.seq.next() {
            return Err(OrgError::NotNext { got: seq, expected: self.seq.next() });
        }
        let clock = entry.lamport > self.lamport && entry.lamport.0 <= COUNTER_MAX && entry.epoch >= self.epoch;
        if !clock || seq.0 > COUNTER_MAX {
            return Err(OrgError::Clock { seq });
        }
        if entry.auth != Auth::Home || entry.by.is_some() {
            return Err(OrgError::NotHome { seq });
        }
        self.apply_body(seq, &entry.body)?;
        self.seq = seq;
        self.lamport = entry.lamport;
        self.epoch = entry.epoch;
        Ok(())
    }

    /// The org's id: what is pinned, compared and shown.
    #[must_use]
    pub const fn fingerprint(&self) -> OrgId {
        self.fingerprint
    }

    /// What people call it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The root key.
    #[must_use]
    pub const fn root(&self) -> DeviceId {
        self.root
    }

    /// The founder's device, which writes the chain; `None` until its enrolment was applied.
    #[must_use]
    pub const fn home(&self) -> Option<DeviceId> {
        self.home
    }

    /// The last entry applied.
    #[must_use]
    pub const fn seq(&self) -> Seq {
        self.seq
    }

    /// A device that was ever enrolled.
    #[must_use]
    pub fn device(&self, device: &DeviceId) -> Option<&Device> {
        self.devices.get(device)
    }

    /// A device that is enrolled and not revoked.
    #[must_use]
    pub fn live(&self, device: &DeviceId) -> Option<&Device> {
        self.devices.get(device).filter(|device| device.revoked.is_none())
    }

    /// The device, not revoked, that has a Noise key.
    #[must_use]
    pub fn by_noise(&self, noise: &NoiseKey) -> Option<(DeviceId, &Device)> {
        let id = *self.noise.get(noise)?;
        Some((id, self.live(&id)?))
    }

    /// All devices that were ever enrolled, by id.
    pub fn devices(&self) -> impl Iterator<Item = (DeviceId, &Device)> {
        self.devices.iter().map(|(id, device)| (*id, device))
    }

    /// A channel's home epochs, in order; empty when the chain has no such channel.
    #[must_use]
    pub fn terms(&self, channel: &ChannelId) -> &[ChannelTerm] {
        self.channels.get(channel).map_or(&[], Vec::as_slice)
    }

    /// The channels, each with its present home epoch.
    pub fn channels(&self) -> impl Iterator<Item = (ChannelId, &ChannelTerm)> {
        self.channels.iter().filter_map(|(id, terms)| Some((*id, terms.last()?)))
    }

    /// Whether a device may do something: enrolled, not revoked, of a role that is enough.
    #[must_use]
    pub fn may(&self, device: &DeviceId, action: Action) -> bool {
        self.live(device).is_some_and(|device| allows(device.role, action))
    }

    fn apply_body(&mut self, seq: Seq, body: &Body) -> Result<(), OrgError> {
        match body {
            Body::DeviceEnrolled { certificate, role, name } => self.enrolled(certificate, *role, name),
            Body::DeviceRevoked { device } => {
                self.check_not_home(device)?;
                self.live_mut(device)?.revoked = Some(seq);
                Ok(())
            }
            Body::DeviceChanged { device, role, name } => {
                if !is_name(name) {
                    return Err(OrgError::Name(name.clone()));
                }
                if *role != Role::Owner {
                    self.check_not_home(device)?;
                }
                let device = self.live_mut(device)?;
                device.role = *role;
                device.name.clone_from(name);
                Ok(())
            }
            Body::ChannelHomed { channel, name, home, epoch, start, prev } => {
                let term = ChannelTerm { name: name.clone(), home: *home, epoch: *epoch, start: *start, prev: *prev };
                self.homed(*channel, term)
            }
            // A newer version's entry says nothing to this one; the line stays where it is.
            Body::Unknown => Ok(()),
            _ => Err(OrgError::WrongKind { seq }),
        }
    }

    fn enrolled(&mut self, certificate: &str, role: Role, name: &str) -> Result<(), OrgError> {
        let (_, content) = Certificate::parse(certificate)?;
        let cert::Content { org, device, noise, serial, issuer, depth } = content;
        if org != self.fingerprint {
            return Err(OrgError::OtherOrg { device, org });
        }
        let expected = self.next_serial();
        if serial != expected {
            return Err(OrgError::Serial { device, got: serial, expected });
        }
        self.check_issuer(device, issuer, depth)?;
        let by_root = issuer == self.root;
        if role > ENROLLED_ROLE_MAX && !by_root {
            return Err(OrgError::RoleTooHigh { device, role });
        }
        // The chain needs a writer: the first device is the founder's, whatever its entry says.
        if self.home.is_none() && (!by_root || role != Role::Owner) {
            return Err(OrgError::Issuer { device, issuer });
        }
        if !is_name(name) {
            return Err(OrgError::Name(name.to_owned()));
        }
        // Keys of revoked devices stay used up: a revocation must not be undone by enrolling the same key again.
        if self.devices.contains_key(&device) || self.noise.contains_key(&noise) || device == self.root {
            return Err(OrgError::Enrolled { device });
        }
        let name = name.to_owned();
        let certificate = certificate.to_owned();
        self.devices.insert(device, Device { noise, role, name, certificate, serial, depth, revoked: None });
        self.noise.insert(noise, device);
        self.home.get_or_insert(device);
        Ok(())
    }

    /// The root issues at depth 0, a device one deeper than itself and only if it may enrol.
    fn check_issuer(&self, device: DeviceId, issuer: DeviceId, depth: u8) -> Result<(), OrgError> {
        let right_depth = if issuer == self.root {
            Some(0)
        } else if self.may(&issuer, Action::EnrolDevice) {
            self.live(&issuer).and_then(|issuer| issuer.depth.checked_add(1))
        } else {
            None
        };
        if right_depth == Some(depth) { Ok(()) } else { Err(OrgError::Issuer { device, issuer }) }
    }

    fn homed(&mut self, channel: ChannelId, term: ChannelTerm) -> Result<(), OrgError> {
        if self.live(&term.home).is_none() {
            return Err(OrgError::NotEnrolled { device: term.home });
        }
        let terms = self.channels.get(&channel).map_or(&[] as &[_], Vec::as_slice);
        let follows = match terms.last() {
            None => term.start == Seq(1) && term.prev == Hash::ZERO,
            Some(last) => term.epoch > last.epoch && term.start >= last.start && term.start.0 <= COUNTER_MAX,
        };
        if !follows {
            return Err(OrgError::Epoch { channel, epoch: term.epoch });
        }
        self.channels.entry(channel).or_default().push(term);
        Ok(())
    }

    fn check_not_home(&self, device: &DeviceId) -> Result<(), OrgError> {
        if self.home == Some(*device) { Err(OrgError::HomeStays { device: *device }) } else { Ok(()) }
    }

    fn live_mut(&mut self, device: &DeviceId) -> Result<&mut Device, OrgError> {
        let live = self.devices.get_mut(device).filter(|device| device.revoked.is_none());
        live.ok_or(OrgError::NotEnrolled { device: *device })
    }

    fn next_serial(&self) -> u64 {
        self.devices.len() as u64 + 1
    }
}

#[cfg(test)]
mod tests;
