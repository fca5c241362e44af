//! What the writer is told and what it reports.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use tieline_proto::entry::NewEntry;
use tieline_proto::id::{Attempt, ChannelId, Hash, MessageId, Seq};
use tieline_proto::link::AttemptId;
use tieline_proto::log::{Head, LogId, line, receipt};

/// A journal: lines that are appended, without seals.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum JournalId {
    /// Events of a run, at the channel's home: `channels/<id>/runs/<message>.jsonl`, later tries
    /// `<message>.<attempt>.jsonl`.
    Run {
        /// The channel.
        channel: ChannelId,
        /// The run message.
        message: MessageId,
        /// The try. Each has a journal of its own: what an earlier one left is evidence.
        attempt: Attempt,
    },
    /// The resident's own journal, by number: `resident/attempts/<n>.jsonl`.
    Attempts(u64),
    /// Events of an attempt, at its resident: `resident/runs/<channel>-<run>-<attempt>.jsonl`.
    Attempt(AttemptId),
}

impl fmt::Display for JournalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Run { channel, message, .. } => write!(f, "journal of #{message} in channel {}", channel.short()),
            Self::Attempts(n) => write!(f, "attempts journal {n}"),
            Self::Attempt(id) => {
                write!(f, "journal of attempt {} at #{} in channel {}", id.attempt, id.run, id.channel.short())
            }
        }
    }
}

/// Bytes for the end of a journal.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct JournalAppend {
    /// Which journal. It is made when it does not exist and `at` is 0.
    pub id: JournalId,
    /// Its length before, in bytes: an append that was lost or repeated is refused instead of garbling the journal.
    pub at: u64,
    /// Whole lines, LFs included.
    pub bytes: Vec<u8>,
    /// Whether the commit waits for the sync. Else it comes within [`LAZY_SYNC_MS`](super::writer::LAZY_SYNC_MS).
    pub sync: bool,
}

/// Where a blob's bytes are.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum BlobSource {
    /// In memory: payloads and notes.
    Bytes(Vec<u8>),
    /// In a file that a [`Staging`](super::blob::Staging) wrote; it becomes the blob.
    Staged(PathBuf),
}

/// A blob to store under its hash, before any entry of the same commit is written.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct BlobPut {
    /// Whose folder.
    pub channel: ChannelId,
    /// BLAKE3 of the bytes.
    pub hash: Hash,
    /// The bytes.
    pub source: BlobSource,
}

/// Something to make durable, whole. Everything is answered by exactly one [`Report`] that repeats the token.
///
/// Order on disk: blobs and journals that the commit waits for are synced first, then its entries are written and
/// synced, for an entry may name them by hash.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Commit {
    /// Names the commit; chosen by the caller.
    pub token: u64,
    /// Blobs.
    pub blobs: Vec<BlobPut>,
    /// New entries, in order; at most `BATCH_ENTRIES_MAX` of one epoch for each log. A log begins with its entry 1.
    pub logs: Vec<(LogId, Vec<NewEntry>)>,
    /// Raw sealed lines for logs that this node keeps a copy of: whole lines, ending in a seal.
    pub lines: Vec<(LogId, Vec<u8>)>,
    /// Journal appends, in order.
    pub journals: Vec<JournalAppend>,
}

/// A thing on disk that can fail alone.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Target {
    /// A log.
    Log(LogId),
    /// A journal.
    Journal(JournalId),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Log(log) => log.fmt(f),
            Self::Journal(journal) => journal.fmt(f),
        }
    }
}

/// Why something was not made durable, in words for people.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// No space is left.
    #[error("disk full")]
    DiskFull,
    /// The file system became read-only.
    #[error("file system is read-only")]
    ReadOnlyDisk,
    /// The box refused the write.
    #[error("write failed: {0}")]
    Write(String),
    /// The box could not say that the bytes reached the disk. They may or may not have.
    #[error("sync failed: {0}")]
    Sync(String),
    /// An earlier failure stopped it until it is reopened.
    #[error("stopped after an earlier failure: {0}")]
    Stopped(Box<Reason>),
    /// The log is damaged; it can be read up to the damage only.
    #[error("log is damaged: {0}")]
    Broken(String),
    /// The log or journal was not opened, or is not where the caller thinks.
    #[error("{0}")]
    Refused(String),
    /// The bytes of a blob are not those that its hash names.
    #[error("blob does not have the hash {0}")]
    BlobHash(Hash),
    /// The writer has ended.
    #[error("the writer has stopped")]
    WriterStopped,
}

impl Reason {
    /// Words for a failed write.
    #[must_use]
    pub fn write(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull,
            io::ErrorKind::ReadOnlyFilesystem => Self::ReadOnlyDisk,
            _ => Self::Write(error.to_string()),
        }
    }

    /// Words for a failed sync. A full disk can show first here, when space is allotted late.
    #[must_use]
    pub fn sync(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull,
            _ => Self::Sync(error.to_string()),
        }
    }
}

/// What became of commits and commands.
#[derive(Clone, Debug)]
pub enum Report {
    /// Everything in the commit that it waits for is on disk.
    Durable {
        /// [`Commit::token`].
        token: u64,
        /// The batches that its entries are in; commits share them.
        logs: Vec<(LogId, Arc<SealedBatch>)>,
    },
    /// A commit of nothing but journal appends that don't wait: they are in their files, not yet synced.
    Written {
        /// [`Commit::token`].
        token: u64,
    },
    /// The first `len` bytes of a journal are on disk.
    JournalSynced {
        /// The journal.
        id: JournalId,
        /// Bytes.
        len: u64,
    },
    /// Something in the commit failed. Nothing of it may be acknowledged, ever.
    Failed {
        /// [`Commit::token`].
        token: u64,
        /// What the commit named and what therefore takes no writes until it is reopened.
        stopped: Vec<Target>,
        /// Why.
        reason: Reason,
    },
    /// A journal that was to be synced later could not be; it takes no writes until it is reopened.
    JournalFailed {
        /// The journal.
        id: JournalId,
        /// Why.
        reason: Reason,
    },
    /// A log takes writes again, from this head. State must be folded anew: entries behind the old state may exist now.
    LogReopened {
        /// The log.
        log: LogId,
        /// Where it stands.
        head: Head,
    },
    /// A journal takes writes again, at this length. What was behind it is gone.
    JournalReopened {
        /// The journal.
        id: JournalId,
        /// Its length in bytes.
        len: u64,
    },
    /// Reopening failed; it is still stopped.
    StillStopped {
        /// What.
        target: Target,
        /// Why.
        reason: Reason,
    },
}

/// A batch of entry lines and the seal behind them, as they are in the log.
#[derive(Debug, Eq, PartialEq)]
pub struct SealedBatch {
    first: Seq,
    /// The lines, LFs included, the seal's last.
    bytes: Vec<u8>,
    /// Where each line ends, behind its LF.
    ends: Vec<usize>,
    hashes: Vec<Hash>,
    head: Head,
}

impl SealedBatch {
    /// A batch of these raw lines, whose entries hash to `hashes`; the last line is the seal.
    #[must_use]
    pub fn new(first: Seq, bytes: Vec<u8>, hashes: Vec<Hash>, head: Head) -> Self {
        let ends = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1).collect();
        Self { first, bytes, ends, hashes, head }
    }

    /// Its first entry.
    #[must_use]
    pub const fn first(&self) -> Seq {
        self.first
    }

    /// The log's head behind it.
    #[must_use]
    pub const fn head(&self) -> Head {
        self.head
    }

    /// Number of entries.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Never true: there are no empty batches.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// An entry's line without LF.
    #[must_use]
    pub fn line(&self, seq: Seq) -> Option<&[u8]> {
        let index = self.index(seq)?;
        self.nth(index)
    }

    /// The entry lines in order, without LFs.
    pub fn lines(&self) -> impl Iterator<Item = (Seq, &[u8])> {
        let seqs = (self.first.0..).map(Seq);
        seqs.zip(line::split(&self.bytes)).take(self.hashes.len())
    }

    /// The seal's line without LF.
    #[must_use]
    pub fn seal(&self) -> &[u8] {
        self.nth(self.hashes.len()).unwrap_or_default()
    }

    /// All lines as they are in the log, the seal's last, LFs included.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The receipt for one of its entries.
    #[must_use]
    pub fn receipt(&self, seq: Seq) -> Option<String> {
        self.index(seq).map(|_| receipt::receipt(seq, &self.hashes, self.seal()))
    }

    fn index(&self, seq: Seq) -> Option<usize> {
        let index = usize::try_from(seq.0.checked_sub(self.first.0)?).ok()?;
        (index < self.hashes.len()).then_some(index)
    }

    fn nth(&self, index: usize) -> Option<&[u8]> {
        let start = if index == 0 { 0 } else { *self.ends.get(index - 1)? };
        self.bytes.get(start..self.ends.get(index)?.checked_sub(1)?)
    }
}
