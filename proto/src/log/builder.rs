//! The home's side: new entries become lines, batches become sealed.

use ed25519_dalek::SigningKey;

use super::line;
use super::seal::{Seal, Sealed};
use super::{BATCH_ENTRIES_MAX, BATCH_LEN_MAX, Head, LAMPORT_JUMP_MAX, LINE_LEN_MAX, LogId, batch_hash};
use crate::entry::NewEntry;
use crate::id::{COUNTER_MAX, Epoch, Hash, Lamport, Seq};

/// Why an entry can't be appended. All but [`BuildError::BatchFull`] and [`BuildError::EpochChanges`] are faults of
/// the caller; after these two, seal first.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The entry is not the next one.
    #[error("entry {got} cannot follow entry {last}")]
    NotNext {
        /// The entry's seq.
        got: Seq,
        /// The seq before it.
        last: Seq,
    },
    /// The lamport clock stands still, goes back or jumps too far.
    #[error("lamport {got} cannot follow {last}")]
    Lamport {
        /// The entry's.
        got: Lamport,
        /// The one before it.
        last: Lamport,
    },
    /// The epoch goes back.
    #[error("epoch {got} cannot follow {last}")]
    EpochBack {
        /// The entry's.
        got: Epoch,
        /// The one before it.
        last: Epoch,
    },
    /// The epoch rises within a batch.
    #[error("a batch holds entries of one epoch")]
    EpochChanges,
    /// The batch has [`BATCH_ENTRIES_MAX`] entries or would have more than [`BATCH_LEN_MAX`] bytes.
    #[error("a batch holds at most {BATCH_ENTRIES_MAX} entries and {BATCH_LEN_MAX} bytes")]
    BatchFull,
    /// The line would be too long for others to accept.
    #[error("entry {seq} makes a line of {len} bytes, over the {LINE_LEN_MAX}-byte limit")]
    LineTooLong {
        /// The entry.
        seq: Seq,
        /// Its line's length.
        len: usize,
    },
    /// There is nothing to seal.
    #[error("an empty batch cannot be sealed")]
    NothingToSeal,
    /// JSON failed.
    #[error("entry cannot be written: {0}")]
    Json(#[from] serde_json::Error),
}

/// Builds one log's lines.
#[derive(Clone, Debug)]
pub struct LogBuilder {
    log: LogId,
    /// The last sealed state: what a failed batch falls back to.
    head: Head,
    /// The state with the open batch.
    open: Head,
    batch: Vec<Hash>,
    /// Bytes of the open batch's lines.
    len: usize,
}

/// A place in an open batch to go back to.
#[derive(Clone, Copy, Debug)]
pub struct Savepoint {
    open: Head,
    entries: usize,
    len: usize,
}

impl LogBuilder {
    /// Continues a log from where it stands; `Head::default()` begins one.
    #[must_use]
    pub const fn new(log: LogId, head: Head) -> Self {
        Self { log, head, open: head, batch: Vec::new(), len: 0 }
    }

    /// Appends an entry's line and LF to `out`.
    ///
    /// # Errors
    /// When the entry does not fit; `out` and the builder are then as before.
    pub fn append(&mut self, entry: NewEntry, out: &mut Vec<u8>) -> Result<(), BuildError> {
        let last = self.open;
        if self.batch.len() >= BATCH_ENTRIES_MAX {
            return Err(BuildError::BatchFull);
        }
        if entry.seq.0 > COUNTER_MAX || entry.seq != last.seq.next() {
            return Err(BuildError::NotNext { got: entry.seq, last: last.seq });
        }
        if !lamport_follows(last.lamport, entry.lamport) {
            return Err(BuildError::Lamport { got: entry.lamport, last: last.lamport });
        }
        if entry.epoch < last.epoch {
            return Err(BuildError::EpochBack { got: entry.epoch, last: last.epoch });
        }
        if entry.epoch != last.epoch && !self.batch.is_empty() {
            return Err(BuildError::EpochChanges);
        }
        let entry = entry.at(last.tip);
        let start = out.len();
        let written = line::write(&entry, out);
        let bytes = out.get(start..).unwrap_or_default();
        let (len, hash) = (bytes.len(), Hash::of(bytes));
        if let Err(error) = written {
            out.truncate(start);
            return Err(error.into());
        }
        if len > LINE_LEN_MAX {
            out.truncate(start);
            return Err(BuildError::LineTooLong { seq: entry.seq, len });
        }
        if self.len + len > BATCH_LEN_MAX {
            out.truncate(start);
            return Err(BuildError::BatchFull);
        }
        out.push(b'\n');
        self.len += len;
        self.batch.push(hash);
        self.open = Head { seq: entry.seq, hash, tip: hash, lamport: entry.lamport, epoch: entry.epoch };
        Ok(())
    }

    /// Seals the batch: appends the seal's line and LF to `out` and gives the hashes of the batch's entry lines.
    ///
    /// # Errors
    /// When the batch is empty.
    pub fn seal(&mut self, key: &SigningKey, out: &mut Vec<u8>) -> Result<Vec<Hash>, BuildError> {
        if self.batch.is_empty() {
            return Err(BuildError::NothingToSeal);
        }
        let sealed = Sealed {
            log: self.log.sealed_as(),
            epoch: self.open.epoch,
            from: self.head.seq.next(),
            to: self.open.seq,
            head: self.open.hash,
            batch: batch_hash(&self.batch),
        };
        let start = out.len();
        line::write(&Seal::new(sealed, key), out)?;
        self.open.tip = Hash::of(out.get(start..).unwrap_or_default());
        out.push(b'\n');
        self.head = self.open;
        self.len = 0;
        Ok(std::mem::take(&mut self.batch))
    }

    /// The place in the open batch.
    #[must_use]
    pub const fn savepoint(&self) -> Savepoint {
        Savepoint { open: self.open, entries: self.batch.len(), len: self.len }
    }

    /// Forgets what was appended since a savepoint of the same batch. The caller cuts `out` itself.
    pub fn rollback(&mut self, to: Savepoint) {
        self.open = to.open;
        self.batch.truncate(to.entries);
        self.len = to.len;
    }

    /// Which log it builds.
    #[must_use]
    pub const fn log(&self) -> LogId {
        self.log
    }

    /// Where the log stands after its last seal.
    #[must_use]
    pub const fn head(&self) -> Head {
        self.head
    }

    /// Entries in the open batch.
    #[must_use]
    pub const fn open_len(&self) -> usize {
        self.batch.len()
    }

    /// Epoch of the open batch, if there is one.
    #[must_use]
    pub const fn open_epoch(&self) -> Option<Epoch> {
        if self.batch.is_empty() { None } else { Some(self.open.epoch) }
    }
}

/// Whether a lamport may stand right behind another: it rises, not too far, and fits what JSON readers hold.
pub(super) const fn lamport_follows(last: Lamport, next: Lamport) -> bool {
    next.0 > last.0 && next.0 - last.0 <= LAMPORT_JUMP_MAX && next.0 <= COUNTER_MAX
}
