//! The writing side of the chain: founding, enrolling, and reading it back from raw lines.

use ed25519_dalek::SigningKey;
use rand_core::CryptoRng;
use serde::Deserialize;

use super::{Action, Device, Org, OrgError, is_name, name};
use crate::crypto::cert::{Binding, Certificate};
use crate::crypto::keys::{DeviceKeys, RootKey};
use crate::entry::{Auth, Body, Entry, NewEntry, Role};
use crate::id::{Epoch, Hash, Lamport, OrgId, Seq};
use crate::wire::json::{self, Limits};

/// Longest line of a chain, in bytes. Ours have about 1,200.
pub const LINE_LEN_MAX: usize = 16 * 1024;

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
        let line = serde_json::to_vec(&first.clone().at(Hash::ZERO)).map_err(|error| unreadable(1, error))?;
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
        let entry = parse(1, line)?.ok_or(OrgError::NotFounded)?;
        let Body::OrgFounded { name, root, .. } = entry.body else { return Err(OrgError::NotFounded) };
        let first = entry.seq == Seq(1) && entry.prev == Hash::ZERO && entry.auth == Auth::Home && entry.by.is_none();
        if !first {
            return Err(OrgError::NotFounded);
        }
        if !is_name(&name) {
            return Err(OrgError::Name(name));
        }
        Ok(Self {
            fingerprint: fingerprint(line),
            name,
            root,
            home: None,
            seq: entry.seq,
            lamport: entry.lamport,
            epoch: entry.epoch,
            devices: std::collections::BTreeMap::new(),
            channels: std::collections::BTreeMap::new(),
        })
    }

    /// Folds a whole chain from its raw lines. Blank lines are padding. Seals are passed over: verify them first, by
    /// [`Org::home`], where the lines do not come from one's own disk.
    ///
    /// # Errors
    /// When a line can't be read or an entry can't stand there.
    pub fn read(lines: &[u8]) -> Result<Self, OrgError> {
        let mut lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let mut org = Self::founded(lines.next().ok_or(OrgError::NotFounded)?)?;
        for (number, line) in (2..).zip(lines) {
            if let Some(entry) = parse(number, line)? {
                org.apply(&entry)?;
            }
        }
        Ok(org)
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

/// The fingerprint of the org whose chain begins with `line` (without LF).
fn fingerprint(line: &[u8]) -> OrgId {
    let mut id = [0; OrgId::LEN];
    id.iter_mut().zip(Hash::of(line).as_bytes()).for_each(|(to, from)| *to = *from);
    OrgId(id)
}

fn new_entry(seq: Seq, lamport: Lamport, ts: u64, body: Body) -> NewEntry {
    NewEntry { seq, epoch: EPOCH, lamport, org: Hash::ZERO, ts, by: None, auth: Auth::Home, body }
}

/// Reads line `number`, from 1: an entry, or `None` for a seal.
fn parse(number: u64, line: &[u8]) -> Result<Option<Entry>, OrgError> {
    /// Seals have no seq, entries do.
    #[derive(Deserialize)]
    struct Probe {
        #[serde(default)]
        seq: Option<Seq>,
    }

    let text = json::check(line, Limits::line(LINE_LEN_MAX)).map_err(|error| unreadable(number, error))?;
    let probe: Probe = serde_json::from_str(text).map_err(|error| unreadable(number, error))?;
    if probe.seq.is_none() {
        return Ok(None);
    }
    serde_json::from_str(text).map(Some).map_err(|error| unreadable(number, error))
}

fn unreadable(line: u64, reason: impl ToString) -> OrgError {
    OrgError::Line { line, reason: reason.to_string() }
}
