//! Everybody's side: lines in, verdict out.
//!
//! A changed byte shows at the *next* line, whose `prev` no longer fits, and either line may be the changed one. So
//! blame waits for the seal: its signed list of hashes says which bytes were there.

use super::builder::lamport_follows;
use super::line::{ENTRY_START, Line, LineError, SEAL_START};
use super::seal::Seal;
use super::{BATCH_ENTRIES_MAX, BATCH_LEN_MAX, Head, Homes, LogId, batch_hash, channel_id, org_id};
use crate::crypto::sign::SignError;
use crate::entry::{Body, Entry};
use crate::id::{COUNTER_MAX, Epoch, Hash, Lamport, Seq};
use crate::log::homes::NotHome;

/// What is wrong with a log, and where.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("entry {seq}: {fault}")]
pub struct Bad {
    /// The first bad entry. A bad seal is named by the first entry that it was to prove.
    pub seq: Seq,
    /// What is wrong.
    pub fault: Fault,
}

/// What is wrong.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// A line can't be read.
    #[error("{0}")]
    Line(String),
    /// The entry is missing; another one stands in its place.
    #[error("entry {got} stands in its place")]
    Gap {
        /// The one that is there.
        got: Seq,
    },
    /// The entry's bytes are not those that were sealed.
    #[error("its bytes are not those that were sealed")]
    Changed,
    /// The line does not continue the line before it.
    #[error("its line does not continue the line before it")]
    Chain,
    /// The lamport clock stands still, goes back or jumps too far.
    #[error("lamport {got} cannot follow {last}")]
    Lamport {
        /// The entry's.
        got: Lamport,
        /// The one before.
        last: Lamport,
    },
    /// The epoch goes back, or changes within a batch.
    #[error("epoch {got} cannot follow {last} here")]
    Epoch {
        /// The entry's.
        got: Epoch,
        /// The one before.
        last: Epoch,
    },
    /// More entries or bytes than a batch may have.
    #[error("a batch holds at most {BATCH_ENTRIES_MAX} entries and {BATCH_LEN_MAX} bytes")]
    BatchTooLong,
    /// The log is another one than it is said to be.
    #[error("the log does not begin as {0} does")]
    OtherLog(LogId),
    /// The seal is for another log, epoch, range or batch than it stands behind.
    #[error("the seal is not of the entries before it")]
    OtherBatch,
    /// The seal's bytes were changed.
    #[error("the seal was changed")]
    SealChanged,
    /// The signature is wrong.
    #[error("the seal is bad: {0}")]
    Signature(SignError),
    /// Somebody sealed who may not.
    #[error("{0}")]
    NotHome(NotHome),
    /// The log ends without a seal.
    #[error("the log ends without a seal behind it")]
    Unsealed,
    /// The log ends before an entry that is known to have been sealed.
    #[error("it is known to have been sealed, but the log ends before it")]
    Missing,
    /// An author's signature is wrong.
    #[error("its author is not proved: {0}")]
    Author(String),
}

/// The end of a verification.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Verdict {
    /// Sealed entries, up to the first bad one.
    pub entries: u64,
    /// Where the good part ends.
    pub head: Head,
    /// The first bad entry, if there is one.
    pub bad: Option<Bad>,
}

/// Checks a log line by line. Holds at most one batch's hashes.
#[derive(Clone, Debug)]
pub struct Verifier {
    log: LogId,
    homes: Homes,
    /// After the last good seal.
    head: Head,
    /// With the open batch.
    open: Head,
    /// Where the last sealed batch began; names a seal that turns out to be changed.
    last_from: Seq,
    /// Bytes of the open batch's lines.
    len: usize,
    /// Hashes of the open batch's lines.
    hashes: Vec<Hash>,
    /// What the line behind each of them says that its hash is.
    claims: Vec<Hash>,
    /// What the batch's first line says that the hash of the line before is.
    tip_claim: Hash,
    bad: Option<Bad>,
}

impl Verifier {
    /// Checks a log from its first line.
    #[must_use]
    pub fn new(log: LogId, homes: Homes) -> Self {
        Self::resume(log, homes, Head::default())
    }

    /// Checks a log from behind a seal that was checked before.
    #[must_use]
    pub const fn resume(log: LogId, homes: Homes, head: Head) -> Self {
        Self {
            log,
            homes,
            head,
            open: head,
            last_from: head.seq,
            len: 0,
            hashes: Vec::new(),
            claims: Vec::new(),
            tip_claim: head.tip,
            bad: None,
        }
    }

    /// Checks the next line, given without its LF. Entries count only once their seal was good too.
    ///
    /// # Errors
    /// When the line is bad or proves an earlier one so. The verifier then refuses every further line the same way.
    pub fn feed(&mut self, line: &[u8]) -> Result<Line, Bad> {
        if let Some(bad) = &self.bad {
            return Err(bad.clone());
        }
        let checked = match Line::parse(line) {
            Ok(Line::Entry(entry)) => self.entry(&entry, line).map(|()| Line::Entry(entry)),
            Ok(Line::Seal(seal)) => self.seal(&seal, line).map(|()| Line::Seal(seal)),
            Err(error) => Err(self.unreadable(line, &error)),
        };
        checked.inspect_err(|bad| self.bad = Some(bad.clone()))
    }

    /// Where the log stands after its last good seal.
    #[must_use]
    pub const fn head(&self) -> Head {
        self.head
    }

    /// Who may seal, as far as it knows by now.
    #[must_use]
    pub const fn homes(&self) -> &Homes {
        &self.homes
    }

    /// Entries that stand behind the last good seal.
    #[must_use]
    pub const fn open_len(&self) -> usize {
        self.hashes.len()
    }

    /// Ends the check: what has no seal is bad.
    #[must_use]
    pub fn finish(self) -> Verdict {
        let unsealed = || Bad { seq: self.head.seq.next(), fault: Fault::Unsealed };
        let bad = self.bad.or_else(|| (!self.hashes.is_empty()).then(unsealed));
        Verdict { entries: self.head.seq.0, head: self.head, bad }
    }

    fn unreadable(&self, line: &[u8], error: &LineError) -> Bad {
        let alike = |start: &[u8]| start.iter().zip(line).filter(|(a, b)| a == b).count();
        let was_seal = !self.hashes.is_empty() && alike(SEAL_START) > alike(ENTRY_START);
        let seq = if was_seal { self.head.seq.next() } else { self.open.seq.next() };
        Bad { seq, fault: Fault::Line(error.to_string()) }
    }

    fn entry(&mut self, entry: &Entry, line: &[u8]) -> Result<(), Bad> {
        let seq = self.open.seq.next();
        let bad = |fault| Err(Bad { seq, fault });
        if entry.seq != seq || seq.0 > COUNTER_MAX {
            return bad(Fault::Gap { got: entry.seq });
        }
        if !lamport_follows(self.open.lamport, entry.lamport) {
            return bad(Fault::Lamport { got: entry.lamport, last: self.open.lamport });
        }
        let epoch_fits =
            if self.hashes.is_empty() { entry.epoch >= self.open.epoch } else { entry.epoch == self.open.epoch };
        if !epoch_fits {
            return bad(Fault::Epoch { got: entry.epoch, last: self.open.epoch });
        }
        let len = if self.hashes.is_empty() { line.len() } else { self.len + line.len() };
        if self.hashes.len() >= BATCH_ENTRIES_MAX || len > BATCH_LEN_MAX {
            return bad(Fault::BatchTooLong);
        }
        self.len = len;
        if seq == Seq(1) && !begins(self.log, entry, line) {
            return bad(Fault::OtherLog(self.log));
        }
        if self.hashes.is_empty() {
            self.tip_claim = entry.prev;
        } else {
            self.claims.push(entry.prev);
        }
        let hash = Hash::of(line);
        self.hashes.push(hash);
        self.open = Head { seq, hash, tip: hash, lamport: entry.lamport, epoch: entry.epoch };
        Ok(())
    }

    fn seal(&mut self, seal: &Seal, line: &[u8]) -> Result<(), Bad> {
        let from = self.head.seq.next();
        let at_seal = |fault| Bad { seq: from, fault };
        let says = &seal.seal;
        seal.check_signature().map_err(|error| at_seal(Fault::Signature(error)))?;
        self.homes
            .check(says.epoch, seal.by, says.from, says.to, self.head.tip)
            .map_err(|error| at_seal(Fault::NotHome(error)))?;
        let range = says.log == self.log.sealed_as() && says.from == from && says.to == self.open.seq;
        if self.hashes.is_empty() || !range || says.epoch != self.open.epoch {
            return Err(at_seal(Fault::OtherBatch));
        }
        self.claims.push(seal.prev);
        self.check_batch(says.batch)?;
        if says.head != self.open.hash {
            return Err(at_seal(Fault::OtherBatch));
        }
        self.open.tip = Hash::of(line);
        self.head = self.open;
        self.last_from = from;
        self.hashes.clear();
        self.claims.clear();
        self.homes.sealed(says.epoch, seal.by);
        Ok(())
    }

    /// Compares the lines with the list that was signed, and says which line is another.
    fn check_batch(&self, signed: Hash) -> Result<(), Bad> {
        let from = self.head.seq.next();
        let place = |index: usize| Seq(from.0.saturating_add(index as u64));
        let changed = |index| Err(Bad { seq: place(index), fault: Fault::Changed });
        let differing: Vec<usize> =
            self.hashes.iter().zip(&self.claims).enumerate().filter(|(_, (a, b))| a != b).map(|(i, _)| i).collect();
        if batch_hash(&self.hashes) == signed {
            // Every entry is as it was sealed, so what is wrong is a seal: the one before or the one behind.
            return if self.tip_claim != self.head.tip {
                let fault = if self.head.seq == Seq(0) { Fault::Chain } else { Fault::SealChanged };
                Err(Bad { seq: self.last_from.max(Seq(1)), fault })
            } else if differing.is_empty() {
                Ok(())
            } else {
                Err(Bad { seq: from, fault: Fault::SealChanged })
            };
        }
        let Some(first) = differing.first().copied() else {
            // The lines agree with each other but not with the seal: the last one's claim is the seal's own `prev`.
            return if self.tip_claim == self.head.tip {
                Err(Bad { seq: from, fault: Fault::OtherBatch })
            } else {
                Err(Bad { seq: from, fault: Fault::Chain })
            };
        };
        if batch_hash(&self.claims) == signed {
            return changed(first);
        }
        // A changed `prev` makes two differences: the line before looks changed, and the line itself is.
        let mut mixed = self.claims.clone();
        if let (Some(claim), Some(actual)) = (mixed.get_mut(first), self.hashes.get(first)) {
            *claim = *actual;
        }
        match differing.get(1) {
            Some(second) if batch_hash(&mixed) == signed => changed(*second),
            _ => changed(first),
        }
    }
}

/// Whether a first entry is the one that its log is named after.
fn begins(log: LogId, entry: &Entry, line: &[u8]) -> bool {
    match (log, &entry.body) {
        (LogId::Channel(id), Body::ChannelCreated { draft }) => channel_id(draft) == id,
        (LogId::Org(id), Body::OrgFounded { .. }) => org_id(line) == id,
        _ => false,
    }
}
