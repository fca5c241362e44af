//! The writer: one thread per node that makes everything durable.
//!
//! It drains what waits, appends all entries for one log under one seal, writes each file once, syncs the dirty files in
//! parallel, and then reports. While it syncs, the next drain gathers in its queue; so the busier the node, the larger
//! the batches.
//!
//! | module | is |
//! |---|---|
//! | [`core`](Core) | what is done to the files, without threads or clocks: the simulated world drives it directly |
//! | `drain` | which commits go together |
//! | `logs` | the logs as the writer holds them |
//! | `thread` | the thread, its queue, and the lazy syncs beside it |

mod core;
mod drain;
mod logs;
mod thread;

pub use core::Core;
pub use thread::{Full, Writer};

use tieline_proto::id::Seq;
use tieline_proto::log::{Bad, LogId};

use super::commit::{Commit, JournalId, Target};
use super::open::OpenedLog;

/// Commits that wait for the writer. A caller that finds the queue full waits, and so do its clients.
pub const COMMITS_WAITING_MAX: usize = 1024;

/// Commits in one drain: twice what a log's batch takes of single posts, so that several logs fill theirs.
pub const DRAIN_COMMITS_MAX: usize = 1024;

/// Bytes in one drain: about what the disk writes in the time of a few syncs.
pub const DRAIN_LEN_MAX: usize = 8 * 1024 * 1024;

/// Longest wait of journal lines for their sync, in milliseconds.
pub const LAZY_SYNC_MS: u64 = 5;

/// What the writer does besides commits. Each is done after the commits before it and before those behind it.
#[derive(Debug)]
pub enum Command {
    /// Make this durable.
    Commit(Commit),
    /// Take commits for a log that was opened.
    Add(Box<OpenedLog>),
    /// Take writes again after a failure.
    Reopen(Target),
    /// Keep a snapshot of a log's fold in the index, with the place of the seal that it stands behind.
    Snapshot {
        /// Which log.
        log: LogId,
        /// The last entry that was folded. The snapshot is dropped when the log does not stand there: an entry failed.
        seq: Seq,
        /// The fold.
        fold: Vec<u8>,
    },
    /// Take no more commits for a log: what is on disk of it was found damaged.
    Break(LogId, Bad),
    /// Close a journal that gets no more lines.
    CloseJournal(JournalId),
    /// Remove a journal that nobody needs any more.
    RemoveJournal(JournalId),
}
