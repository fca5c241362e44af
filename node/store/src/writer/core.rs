//! What the writer does to the files: no thread of its own, no clock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use ed25519_dalek::SigningKey;
use tieline_proto::id::Seq;
use tieline_proto::log::LogId;

use super::drain::{Step, next_step};
use super::logs::{Batch, Log, Undo};
use super::{COMMITS_WAITING_MAX, Command};
use crate::blob;
use crate::commit::{Commit, JournalId, Reason, Report, SealedBatch, Target};
use crate::disk::Disk;
use crate::index::Index;
use crate::journal::Journals;
use crate::layout::Layout;
use crate::open::{Checkpoint, OpenedLog};
use crate::read::{LogView, Reader, Views};
use crate::sync::{SyncFile, SyncJob, sync_all};

/// The writer without its thread.
#[derive(Debug)]
pub struct Core {
    disk: Arc<dyn Disk>,
    layout: Layout,
    key: SigningKey,
    views: Arc<Views>,
    index: Index,
    logs: BTreeMap<LogId, Log>,
    journals: Journals,
    queue: VecDeque<Command>,
    /// Journals whose lines wait for a sync that nobody waits for.
    lazy: BTreeSet<JournalId>,
}

/// A commit in a drain.
struct Work {
    commit: Commit,
    failed: Option<Reason>,
    /// Nobody waits for a sync.
    lazy: bool,
}

impl Core {
    /// A writer on this data folder; `key` seals.
    #[must_use]
    pub fn new(disk: Arc<dyn Disk>, layout: Layout, key: SigningKey, index: Index) -> Self {
        let journals = Journals::new(disk.clone(), layout.clone());
        let (views, logs, queue, lazy) = (Arc::default(), BTreeMap::new(), VecDeque::new(), BTreeSet::new());
        Self { disk, layout, key, views, index, logs, journals, queue, lazy }
    }

    /// Reads what this writer has synced.
    #[must_use]
    pub fn reader(&self) -> Reader {
        Reader::new(self.disk.clone(), self.layout.clone(), self.views.clone(), self.index.clone())
    }

    /// Queues a command. Commands are done in order.
    pub fn submit(&mut self, command: Command) {
        debug_assert!(self.queue.len() <= 2 * COMMITS_WAITING_MAX, "whoever drives the core bounds its queue");
        self.queue.push_back(command);
    }

    /// Does one drain of what is queued; false when nothing is.
    pub fn step(&mut self, report: &mut dyn FnMut(Report)) -> bool {
        match next_step(&mut self.queue) {
            Some(Step::Commits(commits)) => self.drain(commits, report),
            Some(Step::Other(command)) => self.other(command, report),
            None => return false,
        }
        true
    }

    /// Whether journal lines wait for a sync.
    #[must_use]
    pub fn is_lazy_due(&self) -> bool {
        !self.lazy.is_empty()
    }

    /// Syncs the journal lines that wait. To be called within [`LAZY_SYNC_MS`](super::LAZY_SYNC_MS) of their writing.
    pub fn sync_lazy(&mut self, report: &mut dyn FnMut(Report)) {
        let jobs = self.take_lazy();
        for (job, result) in jobs.iter().zip(sync_all(&jobs)) {
            self.lazy_done(job.key.0, job.key.1, &result, report);
        }
    }

    /// The syncs that wait, to be run elsewhere.
    pub(super) fn take_lazy(&mut self) -> Vec<SyncJob<(JournalId, u64)>> {
        let waiting = std::mem::take(&mut self.lazy);
        let due = waiting.into_iter().filter(|id| self.journals.unsynced(*id));
        due.filter_map(|id| self.journals.sync_job(id, |len| (id, len))).collect()
    }

    pub(super) fn lazy_done(
        &mut self,
        id: JournalId,
        len: u64,
        result: &Result<(), Reason>,
        report: &mut dyn FnMut(Report),
    ) {
        self.journals.synced(id, len, result);
        report(match result {
            Ok(()) => Report::JournalSynced { id, len },
            Err(reason) => Report::JournalFailed { id, reason: reason.clone() },
        });
    }

    /// Syncs what waits and cuts padding: the last thing before a clean stop.
    pub fn close(&mut self, report: &mut dyn FnMut(Report)) {
        while self.step(report) {}
        self.lazy.extend(self.journals.all_unsynced());
        self.sync_lazy(report);
        self.logs.values_mut().for_each(Log::close);
        self.index.close();
    }

    fn drain(&mut self, commits: Vec<Commit>, report: &mut dyn FnMut(Report)) {
        let mut works: Vec<Work> = commits
            .into_iter()
            .map(|commit| {
                let waits = !commit.blobs.is_empty() || !commit.logs.is_empty() || !commit.lines.is_empty();
                let lazy = !waits && commit.journals.iter().all(|append| !append.sync);
                Work { commit, failed: None, lazy }
            })
            .collect();
        self.write_journals(&mut works);
        for work in works.iter().filter(|work| work.lazy && work.failed.is_none()) {
            report(Report::Written { token: work.commit.token });
        }
        self.store_named(&mut works, report);
        let written = self.write_logs(&mut works);
        let done = self.sync_logs(&mut works, written, report);
        self.answer(works, &done, report);
        // The reports are out: the index may take its time.
        for (log, batch) in done {
            self.add_to_index(log, &batch.found);
        }
    }

    fn write_journals(&mut self, works: &mut [Work]) {
        for work in works {
            for append in &work.commit.journals {
                match self.journals.append(append) {
                    Ok(()) if !append.sync => drop(self.lazy.insert(append.id)),
                    Ok(()) => {}
                    Err(reason) => {
                        work.failed = Some(reason);
                        break;
                    }
                }
            }
        }
    }

    /// Makes durable what entries may name: blobs, and journals of commits that have entries.
    fn store_named(&mut self, works: &mut [Work], report: &mut dyn FnMut(Report)) {
        let mut jobs: Vec<SyncJob<Named>> = Vec::new();
        let mut folders: BTreeMap<_, Arc<SyncFile>> = BTreeMap::new();
        let mut journals: BTreeMap<JournalId, Vec<usize>> = BTreeMap::new();
        for (index, work) in works.iter_mut().enumerate().filter(|(_, work)| work.failed.is_none()) {
            for put in std::mem::take(&mut work.commit.blobs) {
                let channel = put.channel;
                let stored = blob::put(self.disk.as_ref(), &self.layout, put).and_then(|file| {
                    let Some(file) = file else { return Ok(None) };
                    let folder = match folders.get(&channel) {
                        Some(folder) => folder.clone(),
                        None => {
                            let opened = self.disk.open_dir(&self.layout.blobs(channel));
                            let folder = Arc::new(SyncFile::new(opened.map_err(|error| Reason::write(&error))?));
                            folders.insert(channel, folder.clone());
                            folder
                        }
                    };
                    Ok(Some(vec![file, folder]))
                });
                match stored {
                    Ok(Some(files)) => jobs.push(SyncJob { key: Named::Blob(index), files }),
                    Ok(None) => {}
                    Err(reason) => {
                        work.failed = Some(reason);
                        break;
                    }
                }
            }
            let has_lines = !work.commit.logs.is_empty() || !work.commit.lines.is_empty();
            if has_lines && work.failed.is_none() {
                for append in work.commit.journals.iter().filter(|append| append.sync) {
                    journals.entry(append.id).or_default().push(index);
                }
            }
        }
        for (id, of) in journals {
            jobs.extend(self.journals.sync_job(id, |len| Named::Journal { id, len, of }));
        }
        for (job, result) in jobs.iter().zip(sync_all(&jobs)) {
            let failing = match &job.key {
                Named::Blob(index) => std::slice::from_ref(index),
                Named::Journal { id, len, of } => {
                    self.journal_synced(*id, *len, &result, report);
                    of.as_slice()
                }
            };
            if let Err(reason) = &result {
                fail(works, failing, reason);
            }
        }
    }

    fn journal_synced(&mut self, id: JournalId, len: u64, result: &Result<(), Reason>, report: &mut dyn FnMut(Report)) {
        self.journals.synced(id, len, result);
        if result.is_ok() {
            self.lazy.remove(&id);
            report(Report::JournalSynced { id, len });
        }
    }

    /// Writes the entries of all commits, each log's under one seal. Gives the logs that were written, each with its
    /// files and the commits in it.
    fn write_logs(&mut self, works: &mut [Work]) -> Vec<SyncJob<(LogId, Vec<usize>)>> {
        let mut dirty: BTreeMap<LogId, Vec<usize>> = BTreeMap::new();
        for (index, work) in works.iter_mut().enumerate() {
            if work.failed.is_none() {
                work.failed = self.append(&mut work.commit).err();
            }
            let named =
                work.commit.logs.iter().map(|(log, _)| *log).chain(work.commit.lines.iter().map(|(log, _)| *log));
            for log in named {
                match &work.failed {
                    None => dirty.entry(log).or_default().push(index),
                    // Commits behind this one build on what is not there.
                    Some(reason) => self.logs.get_mut(&log).into_iter().for_each(|log| log.stop(reason)),
                }
            }
        }
        let mut jobs = Vec::with_capacity(dirty.len());
        for (log, of) in dirty {
            let Some(held) = self.logs.get_mut(&log).filter(|held| held.has_batch()) else { continue };
            match held.write(self.disk.as_ref(), &self.layout, &self.key) {
                Ok(files) => jobs.push(SyncJob { key: (log, of), files }),
                Err(reason) => fail(works, &of, &reason),
            }
        }
        jobs
    }

    /// Adds a commit's entries and lines to the open batches, all or none.
    fn append(&mut self, commit: &mut Commit) -> Result<(), Reason> {
        let mut added: Vec<(LogId, Undo)> = Vec::new();
        let result = (|| {
            for (log, entries) in &mut commit.logs {
                // A log begins with its entry 1; all others are opened first.
                let begins = entries.first().is_some_and(|entry| entry.seq.0 == 1);
                if begins && !self.logs.contains_key(log) && !self.disk.exists(&self.layout.log(*log)) {
                    self.add(*log, Log::new(*log), &[]);
                }
                let held = self.logs.get_mut(log).ok_or_else(|| not_open(*log))?;
                added.push((*log, held.append(std::mem::take(entries))?));
            }
            for (log, lines) in &mut commit.lines {
                let held = self.logs.get_mut(log).ok_or_else(|| not_open(*log))?;
                added.push((*log, held.copy(std::mem::take(lines))?));
            }
            Ok(())
        })();
        if result.is_err() {
            for (log, undo) in added.iter().rev() {
                self.logs.get_mut(log).into_iter().for_each(|held| held.undo(undo));
            }
        }
        result
    }

    /// Syncs the written logs, and the journals that nothing else waits for.
    fn sync_logs(
        &mut self,
        works: &mut [Work],
        written: Vec<SyncJob<(LogId, Vec<usize>)>>,
        report: &mut dyn FnMut(Report),
    ) -> BTreeMap<LogId, Done> {
        let mut journals: BTreeMap<JournalId, Vec<usize>> = BTreeMap::new();
        for (index, work) in works.iter().enumerate().filter(|(_, work)| work.failed.is_none()) {
            for append in work.commit.journals.iter().filter(|append| append.sync) {
                if self.journals.unsynced(append.id) {
                    journals.entry(append.id).or_default().push(index);
                }
            }
        }
        let mut jobs: Vec<SyncJob<Dirty>> = Vec::new();
        jobs.extend(written.into_iter().map(|job| SyncJob { key: Dirty::Log(job.key.0, job.key.1), files: job.files }));
        for (id, of) in journals {
            jobs.extend(self.journals.sync_job(id, |len| Dirty::Journal { id, len, of }));
        }
        let mut done = BTreeMap::new();
        for (job, result) in jobs.iter().zip(sync_all(&jobs)) {
            let of = match &job.key {
                Dirty::Journal { id, len, of } => {
                    self.journal_synced(*id, *len, &result, report);
                    of
                }
                Dirty::Log(log, of) => {
                    done.extend(self.log_synced(*log, &result).map(|batch| (*log, batch)));
                    of
                }
            };
            if let Err(reason) = &result {
                fail(works, of, reason);
            }
        }
        done
    }

    fn log_synced(&mut self, log: LogId, result: &Result<(), Reason>) -> Option<Done> {
        let held = self.logs.get_mut(&log)?;
        let batch = held.synced(result)?;
        let (segment, end) = held.place()?;
        self.views.advance(log, batch.head, segment, end);
        let Batch { bytes, items, hashes, first, head, .. } = batch;
        let at = Checkpoint { head, segment, at: end };
        Some(Done { batch: Arc::new(SealedBatch::new(first, bytes, hashes, head)), found: (items, at) })
    }

    fn answer(&mut self, works: Vec<Work>, done: &BTreeMap<LogId, Done>, report: &mut dyn FnMut(Report)) {
        for Work { commit, failed, lazy } in works {
            let token = commit.token;
            match failed {
                None if lazy => {}
                None => {
                    let batches =
                        commit.logs.iter().filter_map(|(log, _)| done.get(log).map(|done| (*log, done.batch.clone())));
                    report(Report::Durable { token, logs: batches.collect() });
                }
                Some(reason) => {
                    let stopped = self.stop(&commit, &reason);
                    report(Report::Failed { token, stopped, reason });
                }
            }
        }
    }

    /// Stops everything that a failed commit names.
    fn stop(&mut self, commit: &Commit, reason: &Reason) -> Vec<Target> {
        let logs = commit.logs.iter().map(|(log, _)| *log).chain(commit.lines.iter().map(|(log, _)| *log));
        let mut stopped = Vec::new();
        for log in logs {
            if let Some(held) = self.logs.get_mut(&log) {
                held.stop(reason);
                stopped.push(Target::Log(log));
            }
        }
        for append in &commit.journals {
            self.journals.stop(append.id, reason);
            if !stopped.contains(&Target::Journal(append.id)) {
                stopped.push(Target::Journal(append.id));
            }
        }
        stopped
    }

    fn add_to_index(&self, log: LogId, found: &(Vec<crate::index::Item>, Checkpoint)) {
        self.index.add(log, &found.0, &found.1);
    }

    fn keep_snapshot(&self, log: LogId, seq: Seq, fold: &[u8]) {
        // Every drain ends in a seal, and this stands between drains.
        if let Some(at) = self.logs.get(&log).and_then(Log::resume).filter(|resume| resume.at.head.seq == seq) {
            self.index.put_snapshot(log, &at, fold);
        }
    }

    fn other(&mut self, command: Command, report: &mut dyn FnMut(Report)) {
        match command {
            Command::Commit(commit) => self.drain(vec![commit], report),
            Command::Add(opened) => self.add_opened(&opened, report),
            Command::Reopen(target) => match self.reopen(target) {
                Ok(answer) => report(answer),
                Err(reason) => report(Report::StillStopped { target, reason }),
            },
            Command::Snapshot { log, seq, fold } => self.keep_snapshot(log, seq, &fold),
            Command::Break(log, bad) => {
                if let Some(held) = self.logs.get_mut(&log) {
                    held.break_off(bad.clone());
                    self.views.break_off(log, bad);
                }
            }
            Command::CloseJournal(id) => {
                if self.lazy.remove(&id) {
                    for job in self.journals.sync_job(id, |len| len).into_iter().collect::<Vec<_>>() {
                        let results = sync_all(std::slice::from_ref(&job));
                        results.iter().for_each(|result| self.lazy_done(id, job.key, result, report));
                    }
                }
                self.journals.close(id);
            }
            Command::RemoveJournal(id) => {
                self.lazy.remove(&id);
                if let Err(error) = self.journals.remove(id) {
                    // It is swept with the next start.
                    tracing::warn!(journal = %id, %error, "a journal could not be removed");
                }
            }
        }
    }

    fn add_opened(&mut self, opened: &OpenedLog, report: &mut dyn FnMut(Report)) {
        let log = opened.log;
        match Log::opened(self.disk.as_ref(), &self.layout, opened) {
            Ok(held) => {
                self.add(log, held, &opened.segments);
            }
            Err(error) => report(Report::StillStopped { target: Target::Log(log), reason: Reason::write(&error) }),
        }
    }

    fn add(&mut self, log: LogId, held: Log, segments: &[(tieline_proto::id::Seq, u64)]) {
        let view = LogView { head: held.head(), broken: held.broken(), segments: segments.to_vec() };
        self.views.set(log, view);
        self.logs.insert(log, held);
    }

    fn reopen(&mut self, target: Target) -> Result<Report, Reason> {
        match target {
            Target::Journal(id) => self.journals.reopen(id).map(|len| Report::JournalReopened { id, len }),
            Target::Log(log) => {
                let held = self.logs.get_mut(&log).ok_or_else(|| not_open(log))?;
                let again = held.reopen(self.disk.as_ref(), &self.layout)?;
                if let (Some(batch), Some((segment, at))) = (&again, held.place()) {
                    self.views.advance(log, batch.head, segment, at);
                    self.index.add(log, &batch.items, &Checkpoint { head: batch.head, segment, at });
                }
                let head = held.head();
                Ok(Report::LogReopened { log, head })
            }
        }
    }
}

/// A batch that counts.
struct Done {
    batch: Arc<SealedBatch>,
    found: (Vec<crate::index::Item>, Checkpoint),
}

/// What is synced before entries are written.
enum Named {
    Blob(usize),
    Journal { id: JournalId, len: u64, of: Vec<usize> },
}

/// What is synced before commits are answered.
enum Dirty {
    Log(LogId, Vec<usize>),
    Journal { id: JournalId, len: u64, of: Vec<usize> },
}

fn fail(works: &mut [Work], which: &[usize], reason: &Reason) {
    for index in which {
        if let Some(work) = works.get_mut(*index) {
            work.failed.get_or_insert_with(|| reason.clone());
        }
    }
}

fn not_open(log: LogId) -> Reason {
    Reason::Refused(format!("{log} is not open"))
}
