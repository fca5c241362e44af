//! Journals on disk: plain lines, appended at a place that the caller names.
//!
//! The resident's own journal is padded ahead like a segment, for a turn waits for its sync; run journals are not, so
//! that their length and hash are those of the file.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::Path;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::de::IgnoredAny;
use tieline_proto::log::JournalHash;

use super::commit::{JournalAppend, JournalId, Reason};
use super::disk::{Disk, Open, ensure_dir, sync_dir};
use super::layout::Layout;
use super::scan::{LineScanner, used_end};
use super::segment::{PAD_LEN_MIN, blank};
use super::sync::{SyncFile, SyncJob};

/// Journals held open at once: the running turns of a busy box, with room.
const OPEN_MAX: usize = 256;

/// A journal that is written.
#[derive(Debug)]
struct Journal {
    file: Arc<SyncFile>,
    /// Bytes of lines.
    len: u64,
    /// Bytes of the file, padding included.
    file_len: u64,
    /// Bytes of lines that are on disk.
    synced: u64,
    /// Its folder, while the file's name is not known to be on disk.
    folder: Option<Arc<SyncFile>>,
    stopped: Option<Reason>,
}

/// The journals of a node, as its writer holds them.
#[derive(Debug)]
pub(super) struct Journals {
    disk: Arc<dyn Disk>,
    layout: Layout,
    open: BTreeMap<JournalId, Journal>,
    /// Least recently opened first.
    order: VecDeque<JournalId>,
}

impl Journals {
    pub fn new(disk: Arc<dyn Disk>, layout: Layout) -> Self {
        Self { disk, layout, open: BTreeMap::new(), order: VecDeque::new() }
    }

    /// Appends. What it gives has to be synced.
    pub fn append(&mut self, append: &JournalAppend) -> Result<(), Reason> {
        let id = append.id;
        if !self.open.contains_key(&id) {
            let journal = self.open(id, append.at)?;
            self.close_oldest();
            self.open.insert(id, journal);
            self.order.push_back(id);
        }
        let Some(journal) = self.open.get_mut(&id) else { return Err(Reason::WriterStopped) };
        if let Some(reason) = &journal.stopped {
            return Err(Reason::Stopped(Box::new(reason.clone())));
        }
        if journal.len != append.at {
            return Err(Reason::Refused(format!("{id} has {} bytes, not {}", journal.len, append.at)));
        }
        if append.bytes.last().is_some_and(|byte| *byte != b'\n') {
            return Err(Reason::Refused(format!("{id} takes whole lines only")));
        }
        let written = journal.write(&append.bytes, padded(id));
        written.map_err(|error| {
            let reason = Reason::write(&error);
            journal.stopped = Some(reason.clone());
            reason
        })
    }

    fn open(&self, id: JournalId, at: u64) -> Result<Journal, Reason> {
        let write = |error: io::Error| Reason::write(&error);
        let path = self.layout.journal(id);
        let folder = path.parent().unwrap_or(Path::new("."));
        let opened = match self.disk.open(&path, Open::Write) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            opened => Some(opened.map_err(write)?),
        };
        let Some(file) = opened else {
            if at != 0 {
                return Err(Reason::Refused(format!("{id} does not exist")));
            }
            ensure_dir(self.disk.as_ref(), folder).map_err(write)?;
            let file = self.disk.open(&path, Open::New).map_err(write)?;
            let folder = self.disk.open_dir(folder).map_err(write)?;
            let (file, folder) = (Arc::new(SyncFile::new(file)), Some(Arc::new(SyncFile::new(folder))));
            return Ok(Journal { file, len: 0, file_len: 0, synced: 0, folder, stopped: None });
        };
        let file_len = file.len().map_err(write)?;
        // Lines end at `at` when an LF stands before it and nothing but padding behind.
        let mut around = [b'\n'; 2];
        let from = at.saturating_sub(1);
        let read = file.read_at(&mut around, from).map_err(write)?;
        let blank_behind = around.iter().take(read).all(|byte| *byte == b'\n');
        if at > file_len || !blank_behind || (!padded(id) && at != file_len) {
            return Err(Reason::Refused(format!("{id} does not end at {at}")));
        }
        let file = Arc::new(SyncFile::new(file));
        Ok(Journal { file, len: at, file_len, synced: at, folder: None, stopped: None })
    }

    fn close_oldest(&mut self) {
        // Journals that wait for a sync, or that failed, are not forgotten.
        let idle = |id: &JournalId| {
            self.open.get(id).is_none_or(|journal| journal.synced == journal.len && journal.stopped.is_none())
        };
        if self.open.len() >= OPEN_MAX
            && let Some(place) = self.order.iter().position(idle)
            && let Some(id) = self.order.remove(place)
        {
            self.open.remove(&id);
        }
    }

    /// What makes a journal's lines durable, and how many bytes they are.
    pub fn sync_job<K>(&self, id: JournalId, key: impl FnOnce(u64) -> K) -> Option<SyncJob<K>> {
        let journal = self.open.get(&id)?;
        let files = std::iter::once(journal.file.clone()).chain(journal.folder.clone()).collect();
        Some(SyncJob { key: key(journal.len), files })
    }

    /// The first `len` bytes were synced, or could not be.
    pub fn synced(&mut self, id: JournalId, len: u64, result: &Result<(), Reason>) {
        if let Some(journal) = self.open.get_mut(&id) {
            match result {
                Ok(()) => {
                    journal.synced = journal.synced.max(len);
                    journal.folder = None;
                }
                Err(reason) => journal.stopped = Some(reason.clone()),
            }
        }
    }

    /// Bytes that are written and not known to be on disk.
    pub fn unsynced(&self, id: JournalId) -> bool {
        self.open.get(&id).is_some_and(|journal| journal.synced < journal.len && journal.stopped.is_none())
    }

    /// Takes no appends until it is reopened.
    pub fn stop(&mut self, id: JournalId, reason: &Reason) {
        if let Some(journal) = self.open.get_mut(&id) {
            journal.stopped.get_or_insert_with(|| reason.clone());
        }
    }

    /// Writes what is known to be on disk to a file of its own, in place of the old one. Gives its length.
    pub fn reopen(&mut self, id: JournalId) -> Result<u64, Reason> {
        let write = |error: io::Error| Reason::write(&error);
        let path = self.layout.journal(id);
        let good = match self.open.get(&id) {
            Some(journal) if journal.stopped.is_some() => journal.synced,
            _ => {
                return Ok(recover::<IgnoredAny>(self.disk.as_ref(), &self.layout, id, &mut |_| {})
                    .map_err(write)?
                    .len);
            }
        };
        if self.disk.exists(&path) {
            let temp = path.with_extension("new");
            if self.disk.exists(&temp) {
                self.disk.remove(&temp).map_err(write)?;
            }
            let (from, to) = (self.disk.open(&path, Open::Read), self.disk.open(&temp, Open::New));
            let (from, to) = (from.map_err(write)?, to.map_err(write)?);
            copy(from.as_ref(), to.as_ref(), good).map_err(write)?;
            to.sync().map_err(|error| Reason::sync(&error))?;
            self.disk.rename(&temp, &path).map_err(write)?;
            let folder = path.parent().unwrap_or(Path::new("."));
            sync_dir(self.disk.as_ref(), folder).map_err(|error| Reason::sync(&error))?;
        }
        self.forget(id);
        Ok(good)
    }

    /// Closes a journal. It must have been synced.
    pub fn close(&mut self, id: JournalId) {
        if !self.unsynced(id) {
            self.forget(id);
        }
    }

    /// Removes a journal that nobody needs any more.
    pub fn remove(&mut self, id: JournalId) -> io::Result<()> {
        self.forget(id);
        match self.disk.remove(&self.layout.journal(id)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    /// Journals with bytes that wait for a sync.
    pub fn all_unsynced(&self) -> Vec<JournalId> {
        self.open.keys().copied().filter(|id| self.unsynced(*id)).collect()
    }

    fn forget(&mut self, id: JournalId) {
        self.open.remove(&id);
        self.order.retain(|other| *other != id);
    }
}

impl Journal {
    fn write(&mut self, bytes: &[u8], padded: bool) -> io::Result<()> {
        let file = self.file.file();
        file.write_at(bytes, self.len)?;
        self.len += bytes.len() as u64;
        if padded && self.len >= self.file_len {
            self.file_len = self.len;
            // Without room for padding the next appends only take longer.
            if blank(file.as_ref(), self.len, self.len + PAD_LEN_MIN).is_ok() {
                self.file_len += PAD_LEN_MIN;
            }
        }
        Ok(())
    }
}

/// Whether a journal is padded ahead.
const fn padded(id: JournalId) -> bool {
    matches!(id, JournalId::Attempts(_))
}

fn copy(from: &dyn super::disk::DiskFile, to: &dyn super::disk::DiskFile, len: u64) -> io::Result<()> {
    let mut buf = vec![0; 64 * 1024];
    let mut at = 0;
    while at < len {
        let want = usize::try_from((len - at).min(buf.len() as u64)).unwrap_or_default();
        let read = from.read_at(buf.get_mut(..want).unwrap_or_default(), at)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        to.write_at(buf.get(..read).unwrap_or_default(), at)?;
        at += read as u64;
    }
    Ok(())
}

/// A journal as it was found.
#[derive(Clone, Debug)]
pub struct JournalState {
    /// Bytes of whole lines.
    pub len: u64,
    /// Their hash and number, to be continued.
    pub hash: JournalHash,
    /// Bytes behind the last whole line that were cut off.
    pub cut: u64,
}

/// Reads a run's journal, gives each line (without LF) to `visit`, and cuts off what a crash left of a last line.
///
/// # Errors
/// As the operating system says.
pub fn recover<T: DeserializeOwned>(
    disk: &dyn Disk,
    layout: &Layout,
    id: JournalId,
    visit: &mut dyn FnMut(&[u8]),
) -> io::Result<JournalState> {
    let mut hash = JournalHash::new();
    let file = match disk.open(&layout.journal(id), Open::Write) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(JournalState { len: 0, hash, cut: 0 }),
        opened => opened?,
    };
    let file_len = file.len()?;
    let mut lines = LineScanner::new(file.clone(), 0, file_len);
    while let Some(scanned) = lines.next_line()? {
        // A gap before a line is no padding: padding has nothing behind it.
        if scanned.at != hash.len() || !scanned.ended || serde_json::from_slice::<T>(scanned.line).is_err() {
            break;
        }
        visit(scanned.line);
        hash.update(scanned.line);
        hash.update(b"\n");
    }
    let len = hash.len();
    let cut = used_end(file.as_ref(), len)? - len;
    if cut > 0 || (!padded(id) && file_len > len) {
        file.set_len(len)?;
        file.sync()?;
    }
    Ok(JournalState { len, hash, cut })
}
