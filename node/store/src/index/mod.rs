//! The index: where messages and client ids stand in the logs. Never the truth: it can be deleted at any time.
//!
//! It is written behind, by a thread of its own, and never waited for by an acknowledgement. What was not yet written
//! is found all the same, in an overlay. Every batch of changes carries the place in the log that it reaches to, so
//! after a stop, however abrupt, opening a log adds what is missing.

mod keys;
mod sled_file;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tieline_proto::id::{ChannelId, MessageId, Seq};
use tieline_proto::log::LogId;

use super::open::{Checkpoint, Resume};
pub(super) use keys::new_items;
pub use keys::{ClientKey, Item, items};
use sled_file::SledFile;

/// Batches of the log that wait to be indexed. The writer then waits, after it has acknowledged.
const BATCHES_WAITING_MAX: usize = 256;

/// Changes written to the index at once, about. Each write costs sled a round through its threads and the disk, which the
/// log's syncs would have to share.
const CHANGES_AT_ONCE: usize = 2048;

/// How long changes wait to be written together: the look-ups find them in memory.
const GATHER: Duration = Duration::from_millis(250);

/// The index is flushed when nothing came for this long.
const IDLE: Duration = Duration::from_secs(1);

/// Where a message stands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Places {
    /// The entry that gave it its number.
    pub first: Seq,
    /// Runs: the entry that ended it.
    pub end: Option<Seq>,
}

/// What a client id was given.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Placed {
    /// Its message, when it made one.
    pub message: Option<MessageId>,
    /// Its entry.
    pub seq: Seq,
}

/// How the index was found at start.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Found {
    /// As it was left.
    Intact,
    /// There was none.
    New,
    /// It could not be used and was put aside; the logs are read again.
    Damaged(String),
}

/// A handle to the index; clones share it.
#[derive(Clone, Debug)]
pub struct Index(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    file: Option<Arc<SledFile>>,
    overlay: Arc<Mutex<Overlay>>,
    queue: Mutex<Option<SyncSender<Changes>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Changes that are not in the file yet, by key: how many are on their way, and the newest value.
type Overlay = BTreeMap<Vec<u8>, (u32, Vec<u8>)>;

type Changes = Vec<(Vec<u8>, Vec<u8>)>;

impl Index {
    /// Opens the index in this folder, or makes it. One that can't be used is renamed to `<folder>.damaged`.
    ///
    /// Never fails: without a file the index lives in memory and is made anew at the next start.
    #[must_use]
    pub fn open(folder: &Path) -> (Self, Found) {
        match SledFile::open(folder) {
            Ok((file, found)) => (Self::with(Some(Arc::new(file))), found),
            Err(why) => {
                tracing::warn!(%why, "no index file: the index is kept in memory until the next start");
                (Self::with(None), Found::Damaged(why))
            }
        }
    }

    /// An index that lives in memory alone.
    #[must_use]
    pub fn memory() -> Self {
        Self::with(None)
    }

    fn with(file: Option<Arc<SledFile>>) -> Self {
        let overlay = Arc::new(Mutex::new(Overlay::new()));
        let started = file.as_ref().and_then(|file| {
            let (sender, receiver) = sync_channel(BATCHES_WAITING_MAX);
            let (file, overlay) = (file.clone(), overlay.clone());
            let named = std::thread::Builder::new().name("tieline-index".to_owned());
            let thread = named.spawn(move || write_behind(&file, &overlay, &receiver)).ok()?;
            Some((sender, thread))
        });
        let (queue, thread) = started.unzip();
        Self(Arc::new(Inner { file, overlay, queue: Mutex::new(queue), thread: Mutex::new(thread) }))
    }

    /// Adds what a log's batch says, and the place that the index of the log then reaches to.
    ///
    /// Waits when the file can't keep up.
    pub fn add(&self, log: LogId, found: &[Item], reaches: &Checkpoint) {
        let mut changes: Changes = found.iter().map(|item| item.change(log)).collect();
        changes.push(keys::reach(log, reaches));
        self.put(changes);
    }

    /// Keeps a snapshot of a log's fold, taken at a sealed place. One is kept for each log.
    pub fn put_snapshot(&self, log: LogId, from: &Resume, fold: &[u8]) {
        self.put(vec![keys::snapshot(log, from, fold)]);
    }

    /// The snapshot that was last kept.
    #[must_use]
    pub fn snapshot(&self, log: LogId) -> Option<(Resume, Vec<u8>)> {
        keys::read_snapshot(&self.get(&keys::snapshot_key(log))?)
    }

    /// Notes when all of a log was last read and found good, in Unix milliseconds.
    pub fn put_checked(&self, log: LogId, at: u64) {
        self.put(vec![(keys::checked_key(log), at.to_be_bytes().to_vec())]);
    }

    /// When all of a log was last read and found good, in Unix milliseconds.
    #[must_use]
    pub fn checked(&self, log: LogId) -> Option<u64> {
        self.get(&keys::checked_key(log))?.try_into().ok().map(u64::from_be_bytes)
    }

    /// How far the index of a log reaches: entries behind it have to be added when the log is opened.
    #[must_use]
    pub fn reaches(&self, log: LogId) -> Option<Checkpoint> {
        keys::read_reach(&self.get(&keys::reach_key(log))?)
    }

    /// Where a message stands.
    #[must_use]
    pub fn message(&self, channel: ChannelId, message: MessageId) -> Option<Places> {
        let first = keys::read_seq(&self.get(&keys::message_key(channel, message, false))?)?;
        let end = self.get(&keys::message_key(channel, message, true)).and_then(|value| keys::read_seq(&value));
        Some(Places { first, end })
    }

    /// What an author's client id was given before.
    #[must_use]
    pub fn client(&self, channel: ChannelId, key: &ClientKey) -> Option<Placed> {
        keys::read_placed(&self.get(&keys::client_key(channel, key))?)
    }

    /// Writes what waits and ends the thread. Later changes stay in memory.
    pub fn close(&self) {
        drop(lock(&self.0.queue).take());
        if let Some(thread) = lock(&self.0.thread).take() {
            // A panic there was reported there; the index is made anew from the logs.
            let _ = thread.join();
        }
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        // The overlay first: a change leaves it only once it is in the file.
        if let Some((_, value)) = lock(&self.0.overlay).get(key) {
            return Some(value.clone());
        }
        self.0.file.as_ref()?.get(key)
    }

    fn put(&self, changes: Changes) {
        let mut overlay = lock(&self.0.overlay);
        for (key, value) in &changes {
            let slot = overlay.entry(key.clone()).or_default();
            *slot = (slot.0 + 1, value.clone());
        }
        drop(overlay);
        let queue = lock(&self.0.queue).clone();
        if let Some(queue) = queue {
            // It fails only when the thread is gone; the overlay then keeps the changes.
            let _ = queue.send(changes);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn write_behind(file: &SledFile, overlay: &Mutex<Overlay>, queue: &Receiver<Changes>) {
    let mut dirty = false;
    loop {
        let mut changes = match queue.recv_timeout(IDLE) {
            Ok(changes) => changes,
            Err(RecvTimeoutError::Timeout) => {
                if std::mem::take(&mut dirty) {
                    file.flush();
                }
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => break,
        };
        let until = Instant::now() + GATHER;
        while changes.len() < CHANGES_AT_ONCE {
            match queue.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(more) => changes.extend(more),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        if let Err(why) = file.apply(&changes) {
            // What is in memory stays right; the file is behind and catches up from the logs at the next start.
            tracing::warn!(%why, "the index file takes no more changes");
            return;
        }
        dirty = true;
        let mut overlay = lock(overlay);
        for (key, _) in &changes {
            if let Some(slot) = overlay.get_mut(key) {
                slot.0 -= 1;
                if slot.0 == 0 {
                    overlay.remove(key);
                }
            }
        }
    }
    file.flush();
}

#[cfg(test)]
mod tests;
