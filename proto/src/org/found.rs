//! The writing side of the chain: founding, enrolling, and reading it back from raw lines.

use std::collections::BTreeMap;

use ed25519_dalek::SigningKey;
use rand_core::CryptoRng;

use super::{Action, Device, Org, OrgError, is_name, name};
use crate::crypto::cert::{Binding, Certificate};
use crate::crypto::keys::{DeviceKeys, RootKey};
use crate::entry::{Auth, Body, NewEntry, Role};
use crate::id::{Epoch, Hash, Lamport, Seq};
use crate::log::{self, Homes, Line, LineError, LogId, Verifier, line};

/// The epoch that chains are written in. Its home never moves in this version.
const EPOCH: Epoch = Epoch(1);

/// A founded org and the entries that found it, in order. Nothing is founded before they are synced.
#[derive(Debug)]
pub struct Founding {
    /// The org after both entries.
    pub org: Org,
    /// The founding and the enrolment of the founder's device: the chain's first batch.
    pub entries: Vec<NewEntry>,
}

/// An enrolment that was decided.
#[derive(Debug)]
pub struct Enrolment {
    /// The device's certificate, as JSON.
    pub certificate: String,
    /// The device's name in the org: the one it wanted, with a number if that was taken.
    pub name: String,
    /// What to append to the chain first. `None`: the device was enrolled before, with these very keys.
    pub body: Option<Body>,
}

impl Org {
    /// Founds an org: `keys` become those of its first device, its owner and the writer of its chain.
    ///
    /// `ts` is the wall clock in Unix milliseconds, for display.
    ///
    /// # Errors
    /// When a name is not allowed.
    pub fn found(
        name: &str,
        device_name: &str,
        root: &RootKey,
        keys: &DeviceKeys,
        ts: u64,
        rng: &mut (impl CryptoRng + ?Sized),
    ) -> Result<Founding, OrgError> {
        let mut nonce = Hash::ZERO;
        rng.fill_bytes(&mut nonce.0);
        let body = Body::OrgFounded { name: name.to_owned(), root: root.id(), nonce };
        let first = new_entry(Seq(1), Lamport(1), ts, body);
        let line = serde_json::to_vec(&first.clone().at(Hash::ZERO)).map_err(LineError::from)?;
        let mut org = Self::founded(&line)?;

        let (binding, held) = Binding::of(keys, org.fingerprint);
        let certificate = Certificate::issue(binding, held, 1, 0, root.signing())?.to_json()?;
        let body = Body::DeviceEnrolled { certificate, role: Role::Owner, name: device_name.to_owned() };
        let second = org.entry(body, ts);
        org.apply(&second.clone().at(Hash::of(&line)))?;
        Ok(Founding { org, entries: vec![first, second] })
    }

    /// Begins the fold with the chain's first line, given without its LF.
    ///
    /// # Errors
    /// When the line founds no org.
    pub fn founded(line: &[u8]) -> Result<Self, OrgError> {
        let Line::Entry(entry) = Line::parse(line)? else { return Err(OrgError::NotFounded) };
        let Body::OrgFounded { name, root, .. } = entry.body else { return Err(OrgError::NotFounded) };
        let first = entry.seq == Seq(1) && entry.prev == Hash::ZERO && entry.auth == Auth::Home && entry.by.is_none();
        if !first {
            return Err(OrgError::NotFounded);
        }
        if !is_name(&name) {
            return Err(OrgError::Name(name));
        }
        Ok(Self {
            fingerprint: log::org_id(line),
            name,
            root,
            home: None,
            seq: entry.seq,
            lamport: entry.lamport,
            epoch: entry.epoch,
            devices: BTreeMap::new(),
            noise: BTreeMap::new(),
            channels: BTreeMap::new(),
        })
    }

    /// Folds a whole chain from its raw lines and verifies it: hash chain, seals by the founder's device, certificates.
    /// What it cannot say is whether the chain is that of the org one means: compare [`Org::fingerprint`].
    ///
    /// # Errors
    /// When a line can't be read, the chain or a seal is broken, or an entry can't stand there.
    pub fn read(lines: &[u8]) -> Result<Self, OrgError> {
        let first = line::split(lines).next().ok_or(OrgError::NotFounded)?;
        let mut org = Self::founded(first)?;
        let mut entries = line::split(lines).skip(1);
        // Only as far as the founder's device: what is behind it costs signatures, and is looked at once it is sealed.
        let home = loop {
            match (org.home, entries.next()) {
                (Some(home), _) => break home,
                (None, Some(line)) => org.read_line(line)?,
                (None, None) => return Err(OrgError::NotFounded),
            }
        };
        let mut verifier = Verifier::new(LogId::Org(org.fingerprint), Homes::One(home));
        for line in line::split(lines) {
            verifier.feed(line)?;
        }
        if let Some(bad) = verifier.finish().bad {
            return Err(bad.into());
        }
        let applied = usize::try_from(org.seq.0).unwrap_or(usize::MAX);
        for line in line::split(lines).filter(|line| Line::entry_seq(line).is_some()).skip(applied) {
            org.read_line(line)?;
        }
        Ok(org)
    }

    fn read_line(&mut self, line: &[u8]) -> Result<(), OrgError> {
        match Line::parse(line)? {
            Line::Entry(entry) => self.apply(&entry),
            Line::Seal(_) => Ok(()),
        }
    }

    /// The chain's next entry: what the home appends, and applies once it is synced.
    #[must_use]
    pub fn entry(&self, body: Body, ts: u64) -> NewEntry {
        NewEntry { epoch: self.epoch, ..new_entry(self.seq.next(), Lamport(self.lamport.0 + 1), ts, body) }
    }

    /// Enrols a device: issues its certificate with the key of `issuer`, which must be an enrolled device that may.
    ///
    /// A device that comes again with the same keys gets the same certificate and name again: it may have missed them.
    ///
    /// # Errors
    /// When keys, name, role or issuer do not allow it.
    pub fn enrol(
        &self,
        binding: Binding,
        held: String,
        wanted_name: &str,
        role: Role,
        issuer: &SigningKey,
    ) -> Result<Enrolment, OrgError> {
        if let Some(Device { noise, certificate, name, .. }) = self.live(&binding.device)
            && *noise == binding.noise
        {
            binding.verify(&held)?;
            return Ok(Enrolment { certificate: certificate.clone(), name: name.clone(), body: None });
        }
        let issuer_id = crate::crypto::sign::device_id(issuer);
        let depth = self.live(&issuer_id).filter(|_| self.may(&issuer_id, Action::EnrolDevice));
        let depth = depth.and_then(|issuer| issuer.depth.checked_add(1));
        let depth = depth.ok_or(OrgError::Issuer { device: binding.device, issuer: issuer_id })?;
        let name = name::unique(wanted_name, |name| self.is_name_taken(name));
        let certificate = Certificate::issue(binding, held, self.next_serial(), depth, issuer)?.to_json()?;
        // Judged as everybody will judge it, before it is in the chain for ever.
        self.clone().enrolled(&certificate, role, &name)?;
        let body = Body::DeviceEnrolled { certificate: certificate.clone(), role, name: name.clone() };
        Ok(Enrolment { certificate, name, body: Some(body) })
    }

    fn is_name_taken(&self, name: &str) -> bool {
        self.devices.values().any(|device| device.revoked.is_none() && device.name == name)
    }
}

fn new_entry(seq: Seq, lamport: Lamport, ts: u64, body: Body) -> NewEntry {
    NewEntry { seq, epoch: EPOCH, lamport, org: Hash::ZERO, ts, by: None, auth: Auth::Home, body }
}
