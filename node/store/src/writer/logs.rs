//! The logs as the writer holds them.

use std::io;
use std::path::Path;
use std::sync::Arc;

use ed25519_dalek::SigningKey;
use tieline_proto::entry::NewEntry;
use tieline_proto::id::{Hash, Seq};
use tieline_proto::log::builder::Savepoint;
use tieline_proto::log::{Bad, Head, Line, LogBuilder, LogId, Verifier, line};

use crate::commit::Reason;
use crate::disk::{Disk, Open, ensure_dir, sync_dir};
use crate::index::{Item, items, new_items};
use crate::layout::Layout;
use crate::open::{Checkpoint, Keep, OpenedLog, Resume, TEMP};
use crate::segment::Segment;
use crate::sync::SyncFile;

/// A log that is written.
#[derive(Debug)]
pub(super) struct Log {
    pub log: LogId,
    source: Source,
    /// `None` until the first batch.
    segment: Option<Segment>,
    /// The segments before it: first entry and length.
    closed: Vec<(Seq, u64)>,
    /// Of the segment's bytes that were synced.
    hasher: blake3::Hasher,
    /// The log's folder, while the segment's name is not known to be on disk.
    folder: Option<Arc<SyncFile>>,
    /// The open batch.
    batch: Batch,
    pub stopped: Option<Stopped>,
}

/// Where lines come from.
#[derive(Debug)]
enum Source {
    /// This node builds them.
    Home(Box<LogBuilder>),
    /// Another node built them.
    Copy(Box<Verifier>),
    /// Damaged: nobody may.
    Broken(Bad, Head),
}

/// Lines on their way.
#[derive(Clone, Debug, Default)]
pub(super) struct Batch {
    pub bytes: Vec<u8>,
    pub items: Vec<Item>,
    /// Hashes of the entry lines, once sealed; none for copied lines, which have seals of their own.
    pub hashes: Vec<Hash>,
    /// First entry.
    pub first: Seq,
    /// The log's head behind it.
    pub head: Head,
    /// Of copied lines, the log's head before them: whoever checked them stands behind them already.
    before: Option<Head>,
}

/// Why a log takes no writes, and what is to be done about it.
#[derive(Debug)]
pub(super) struct Stopped {
    pub reason: Reason,
    /// Something may stand in the file behind the last sealed line.
    dirty: bool,
    /// A batch whose sync failed: on disk or not, nobody knows. It was signed, so it is kept.
    unknown: Option<Batch>,
}

/// How to forget what one commit added to the open batch.
#[derive(Debug)]
pub(super) enum Undo {
    Entries { savepoint: Savepoint, bytes: usize, items: usize },
    Lines(Head),
}

impl Log {
    /// A log that does not exist yet.
    pub fn new(log: LogId) -> Self {
        let source = Source::Home(Box::new(LogBuilder::new(log, Head::default())));
        let (closed, hasher) = (Vec::new(), blake3::Hasher::new());
        Self { log, source, segment: None, closed, hasher, folder: None, batch: Batch::default(), stopped: None }
    }

    /// A log that was opened.
    pub fn opened(disk: &dyn Disk, layout: &Layout, opened: &OpenedLog) -> io::Result<Self> {
        let log = opened.log;
        let segment = match (opened.segments.last(), &opened.broken) {
            (Some((first, end)), None) => Some(Segment::open(disk, &layout.segment(log, *first), *first, *end)?),
            _ => None,
        };
        let source = match (&opened.broken, opened.keep) {
            (Some(bad), _) => Source::Broken(bad.clone(), opened.head),
            (None, Keep::Home) => Source::Home(Box::new(LogBuilder::new(log, opened.head))),
            (None, Keep::Copy) => Source::Copy(Box::new(Verifier::resume(log, opened.homes.clone(), opened.head))),
        };
        let mut closed = opened.segments.clone();
        closed.truncate(closed.len().saturating_sub(1));
        let (batch, hasher) = (Batch::default(), opened.hasher.clone());
        Ok(Self { log, source, segment, closed, hasher, folder: None, batch, stopped: None })
    }

    /// Where it stands, synced.
    pub fn head(&self) -> Head {
        match &self.source {
            Source::Home(builder) => builder.head(),
            Source::Copy(verifier) => verifier.head(),
            Source::Broken(_, head) => *head,
        }
    }

    /// What is damaged for good.
    pub fn broken(&self) -> Option<Bad> {
        if let Source::Broken(bad, _) = &self.source { Some(bad.clone()) } else { None }
    }

    /// First entry of the segment that is written, and where its sealed lines end.
    pub fn place(&self) -> Option<(Seq, u64)> {
        self.segment.as_ref().map(|segment| (segment.first(), segment.end()))
    }

    /// From where it can be opened without reading what was written; `None` while it is empty or takes no writes.
    pub fn resume(&self) -> Option<Resume> {
        let (segment, at) = self.place().filter(|(_, at)| *at > 0 && self.check().is_ok())?;
        let at = Checkpoint { head: self.head(), segment, at };
        Some(Resume { at, bytes: Hash(*self.hasher.finalize().as_bytes()), closed: self.closed.clone() })
    }

    fn check(&self) -> Result<(), Reason> {
        if let Source::Broken(bad, _) = &self.source {
            return Err(Reason::Broken(bad.to_string()));
        }
        match &self.stopped {
            Some(stopped) => Err(Reason::Stopped(Box::new(stopped.reason.clone()))),
            None => Ok(()),
        }
    }

    /// Adds entries to the open batch, all or none.
    pub fn append(&mut self, entries: Vec<NewEntry>) -> Result<Undo, Reason> {
        self.check()?;
        let Source::Home(builder) = &mut self.source else {
            return Err(Reason::Refused(format!("{} is a copy: only its home appends", self.log)));
        };
        if builder.open_len() == 0 {
            self.batch = Batch { first: builder.head().seq.next(), ..Batch::default() };
        }
        let batch = &mut self.batch;
        let savepoint = builder.savepoint();
        let undo = Undo::Entries { savepoint, bytes: batch.bytes.len(), items: batch.items.len() };
        let appended = entries.into_iter().try_for_each(|entry| {
            new_items(&entry, &mut batch.items);
            builder.append(entry, &mut batch.bytes)
        });
        match appended {
            Ok(()) => Ok(undo),
            Err(error) => {
                self.undo(&undo);
                Err(Reason::Refused(error.to_string()))
            }
        }
    }

    /// Forgets what a commit added: another part of it failed.
    pub fn undo(&mut self, undo: &Undo) {
        match (undo, &mut self.source) {
            (Undo::Entries { savepoint, bytes, items }, Source::Home(builder)) => {
                builder.rollback(*savepoint);
                self.batch.bytes.truncate(*bytes);
                self.batch.items.truncate(*items);
            }
            (Undo::Lines(head), _) => {
                self.batch = Batch::default();
                self.go_back(*head);
            }
            (Undo::Entries { .. }, _) => {}
        }
    }

    /// Adds another node's sealed lines. They make a batch of their own.
    pub fn copy(&mut self, bytes: Vec<u8>) -> Result<Undo, Reason> {
        self.check()?;
        let Source::Copy(verifier) = &mut self.source else {
            return Err(Reason::Refused(format!("{} is written here: it takes no lines of others", self.log)));
        };
        if !bytes.ends_with(b"\n") || !self.batch.bytes.is_empty() {
            return Err(Reason::Refused(format!("lines for {} do not end in a line break", self.log)));
        }
        let before = verifier.head();
        let mut checked = verifier.clone();
        let mut found = Vec::new();
        for line in line::split(&bytes) {
            match checked.feed(line) {
                Ok(Line::Entry(entry)) => items(entry.seq, entry.by, &entry.auth, &entry.body, &mut found),
                Ok(Line::Seal(_)) => {}
                Err(bad) => return Err(Reason::Refused(format!("lines for {}: {bad}", self.log))),
            }
        }
        if checked.open_len() > 0 {
            return Err(Reason::Refused(format!("lines for {} do not end in a seal", self.log)));
        }
        *verifier = checked;
        let first = before.seq.next();
        let head = verifier.head();
        self.batch = Batch { bytes, items: found, hashes: Vec::new(), first, head, before: Some(before) };
        Ok(Undo::Lines(before))
    }

    /// Whether there is something to write.
    pub fn has_batch(&self) -> bool {
        match &self.source {
            Source::Home(builder) => builder.open_len() > 0,
            Source::Copy(_) => !self.batch.bytes.is_empty(),
            Source::Broken(..) => false,
        }
    }

    /// Seals the open batch and writes it. Gives what has to be synced: the segment, and its folder when it is new. After a failure the log is stopped and the batch forgotten: it is not whole
    /// on disk, so nobody can take it for saved.
    pub fn write(&mut self, disk: &dyn Disk, layout: &Layout, key: &SigningKey) -> Result<Vec<Arc<SyncFile>>, Reason> {
        let before = self.batch.before.unwrap_or_else(|| self.head());
        let written = self.try_write(disk, layout, key);
        written.inspect_err(|reason| {
            self.batch = Batch::default();
            self.go_back(before);
            self.stopped = Some(Stopped { reason: reason.clone(), dirty: true, unknown: None });
        })
    }

    fn try_write(&mut self, disk: &dyn Disk, layout: &Layout, key: &SigningKey) -> Result<Vec<Arc<SyncFile>>, Reason> {
        if let Source::Home(builder) = &mut self.source {
            let sealed = builder.seal(key, &mut self.batch.bytes);
            self.batch.hashes = sealed.map_err(|error| Reason::Refused(error.to_string()))?;
            self.batch.head = builder.head();
        }
        let write = |error: io::Error| Reason::write(&error);
        let len = self.batch.bytes.len();
        let segment = match &mut self.segment {
            Some(segment) if segment.takes(len) => segment,
            full => {
                if let Some(segment) = full {
                    // Padding is only waste: a segment that keeps it is as good.
                    let _ = segment.close();
                }
                let before = full.as_ref().map(|segment| (segment.first(), segment.end()));
                let (folder, path) = (layout.log(self.log), layout.segment(self.log, self.batch.first));
                ensure_dir(disk, &folder).map_err(write)?;
                let segment = Segment::create(disk, &path, self.batch.first).map_err(write)?;
                self.folder = Some(Arc::new(SyncFile::new(disk.open_dir(&folder).map_err(write)?)));
                self.closed.extend(before);
                self.hasher.reset();
                full.insert(segment)
            }
        };
        segment.write(&self.batch.bytes).map_err(write)?;
        Ok(std::iter::once(segment.file().clone()).chain(self.folder.clone()).collect())
    }

    /// The batch was synced, or could not be. Gives it when it counts.
    pub fn synced(&mut self, result: &Result<(), Reason>) -> Option<Batch> {
        let batch = std::mem::take(&mut self.batch);
        match result {
            Ok(()) => {
                self.folder = None;
                if let Some(segment) = &mut self.segment {
                    segment.synced(batch.bytes.len());
                    self.hasher.update(&batch.bytes);
                }
                Some(batch)
            }
            Err(reason) => {
                self.stopped = Some(Stopped { reason: reason.clone(), dirty: true, unknown: Some(batch) });
                None
            }
        }
    }

    /// Takes no writes until it is reopened: its core's state is ahead of the disk.
    pub fn stop(&mut self, reason: &Reason) {
        if self.stopped.is_none() && !matches!(self.source, Source::Broken(..)) {
            self.stopped = Some(Stopped { reason: reason.clone(), dirty: false, unknown: None });
        }
    }

    /// Takes no writes for good: it was found damaged.
    pub fn break_off(&mut self, bad: Bad) {
        let head = self.head();
        (self.batch, self.stopped) = (Batch::default(), None);
        self.source = Source::Broken(bad, head);
    }

    /// Takes writes again. A batch that may or may not be on disk is written once more, to a segment of its own; it is
    /// given when there was one.
    pub fn reopen(&mut self, disk: &dyn Disk, layout: &Layout) -> Result<Option<Batch>, Reason> {
        if let Source::Broken(bad, _) = &self.source {
            return Err(Reason::Broken(bad.to_string()));
        }
        let Some(stopped) = self.stopped.take() else { return Ok(None) };
        let tried = match (&stopped.unknown, &mut self.segment) {
            (Some(batch), _) => self.write_again(disk, layout, batch),
            (None, Some(segment)) if stopped.dirty => segment.blank_tail(),
            _ => Ok(()),
        };
        match tried {
            Ok(()) => Ok(stopped.unknown),
            Err(reason) => {
                self.stopped = Some(stopped);
                Err(reason)
            }
        }
    }

    fn write_again(&mut self, disk: &dyn Disk, layout: &Layout, batch: &Batch) -> Result<(), Reason> {
        let write = |error: io::Error| Reason::write(&error);
        let sync = |error: io::Error| Reason::sync(&error);
        let (folder, path) = (layout.log(self.log), layout.segment(self.log, batch.first));
        let mut temp = path.clone().into_os_string();
        temp.push(TEMP);
        let temp = Path::new(&temp);
        ensure_dir(disk, &folder).map_err(write)?;
        if disk.exists(temp) {
            disk.remove(temp).map_err(write)?;
        }
        let file = disk.open(temp, Open::New).map_err(write)?;
        file.write_at(&batch.bytes, 0).map_err(write)?;
        file.sync().map_err(sync)?;
        disk.rename(temp, &path).map_err(write)?;
        sync_dir(disk, &folder).map_err(sync)?;
        // Only now may the old segment lose what was copied; else an opening would find it in neither.
        if let Some((first, end)) = self.place()
            && first != batch.first
        {
            let old = disk.open(&layout.segment(self.log, first), Open::Write).map_err(write)?;
            old.set_len(end).map_err(write)?;
            old.sync().map_err(sync)?;
            self.closed.push((first, end));
        }
        let len = batch.bytes.len() as u64;
        self.segment = Some(Segment::open(disk, &path, batch.first, len).map_err(write)?);
        self.hasher.reset();
        self.hasher.update(&batch.bytes);
        self.folder = None;
        Ok(())
    }

    fn go_back(&mut self, head: Head) {
        match &mut self.source {
            Source::Home(builder) => **builder = LogBuilder::new(self.log, head),
            Source::Copy(verifier) => {
                let homes = verifier.homes().clone();
                **verifier = Verifier::resume(self.log, homes, head);
            }
            Source::Broken(..) => {}
        }
    }

    /// Cuts the padding at a clean stop.
    pub fn close(&mut self) {
        if let Some(segment) = self.segment.as_mut().filter(|_| self.stopped.is_none()) {
            // A segment that keeps its padding is as good.
            let _ = segment.close();
        }
    }
}
