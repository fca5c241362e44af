//! Opening a log: find where its sealed lines end, mend what a crash left behind, refuse what rot did.
//!
//! A crash can leave anything behind the last sealed batch, for the batch after it was never synced: nothing, blank
//! sectors within lines, stale bytes, whole lines without their seal. None of it was acknowledged, so it is reported
//! and blanked. Damage with a later good seal behind it is another matter: that batch *was* synced, for the next one is
//! never written before. Then the log can be read up to the damage and takes no writes.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tieline_proto::entry::Entry;
use tieline_proto::id::{Hash, Seq};
use tieline_proto::log::{Bad, Fault, Head, Homes, Line, LogId, Verifier};

use super::disk::{Disk, DiskFile, Open, sync_dir};
use super::layout::{Layout, segment_first};
use super::scan::{LineScanner, used_end};
use super::segment::blank;

/// A sealed place in a log, from which a check or a fold can go on.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Checkpoint {
    /// Where the log stood.
    pub head: Head,
    /// The segment, by its first entry.
    pub segment: Seq,
    /// The place behind the seal's LF.
    pub at: u64,
}

/// A place to open a log from, and what must stand before it: bytes that were checked once and are not read as lines
/// again.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Resume {
    /// The place.
    pub at: Checkpoint,
    /// Hash of its segment's bytes up to there.
    pub bytes: Hash,
    /// The segments before it: first entry and length. Theirs are looked at, not read.
    pub closed: Vec<(Seq, u64)>,
}

/// Whose log it is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Keep {
    /// This node writes it.
    Home,
    /// This node keeps a copy and can fetch again what is damaged.
    Copy,
}

/// What opening a log mended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Repair {
    /// The last entry that is good.
    pub after: Seq,
    /// Bytes behind it that were blanked.
    pub bytes: u64,
    /// What was wrong with them, in words.
    pub why: String,
}

/// A log as it was found.
#[derive(Debug)]
pub struct OpenedLog {
    /// Which.
    pub log: LogId,
    /// Whose.
    pub keep: Keep,
    /// Where it stands.
    pub head: Head,
    /// What was mended.
    pub repair: Option<Repair>,
    /// What is damaged for good: the log takes no writes.
    pub broken: Option<Bad>,
    /// Who may seal.
    pub(super) homes: Homes,
    /// First entry and end of each segment, in order.
    pub(super) segments: Vec<(Seq, u64)>,
    /// Of the last segment's bytes up to its end.
    pub(super) hasher: blake3::Hasher,
}

impl OpenedLog {
    /// Where it stands, for the index; `None` while it is empty.
    #[must_use]
    pub fn checkpoint(&self) -> Option<Checkpoint> {
        let (segment, at) = *self.segments.last()?;
        Some(Checkpoint { head: self.head, segment, at })
    }

    /// From where it can be opened again without reading what was read now.
    #[must_use]
    pub fn resume(&self) -> Option<Resume> {
        let at = self.checkpoint().filter(|place| place.at > 0 && self.broken.is_none())?;
        let (_, closed) = self.segments.split_last()?;
        Some(Resume { at, bytes: Hash(*self.hasher.finalize().as_bytes()), closed: closed.to_vec() })
    }
}

/// Why a log can't be opened at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The disk failed.
    #[error("{path}: {error}")]
    Io {
        /// Where.
        path: PathBuf,
        /// How.
        error: io::Error,
    },
    /// The log is another one than where it was to be opened from: start from the beginning.
    #[error("the log up to entry {seq} is not what it was")]
    Stale {
        /// Where it was to be opened from.
        seq: Seq,
    },
}

/// How a log is opened.
#[derive(Debug)]
pub struct OpenLog<'a> {
    /// The disk.
    pub disk: &'a dyn Disk,
    /// The data folder.
    pub layout: &'a Layout,
    /// Which log.
    pub log: LogId,
    /// Whose.
    pub keep: Keep,
    /// Who may seal.
    pub homes: Homes,
    /// Where to start; `None` is the beginning.
    pub from: Option<Resume>,
    /// The last entry that is known from elsewhere to be sealed: a log that ends before it was damaged, not torn.
    pub known: Option<Seq>,
}

impl OpenLog<'_> {
    /// Checks the log from where it is to start, gives each sealed entry and its line to `visit`, and mends the end.
    ///
    /// A log that does not exist is opened empty; nothing is made on disk.
    ///
    /// # Errors
    /// When the disk fails or the place to start from is not of this log.
    pub fn open(self, visit: &mut dyn FnMut(Entry, &[u8])) -> Result<OpenedLog, OpenError> {
        let folder = self.layout.log(self.log);
        let mut firsts = Vec::new();
        if self.disk.exists(&folder) {
            let items = self.disk.list(&folder).map_err(at(&folder))?;
            for item in items.into_iter().filter(|item| !item.is_dir) {
                if let Some(first) = segment_first(&item.name) {
                    firsts.push(first);
                } else if item.name.ends_with(TEMP) {
                    // A reopening was cut off before its new segment had a name.
                    self.disk.remove(&folder.join(&item.name)).map_err(at(&folder))?;
                }
            }
        }
        firsts.sort_unstable();
        let mut segments = Vec::with_capacity(firsts.len());
        for first in &firsts {
            let path = self.layout.segment(self.log, *first);
            let file = self.disk.open(&path, Open::Read).map_err(at(&path))?;
            segments.push(Found { first: *first, end: file.len().map_err(at(&path))?, path, file });
        }
        let start = match &self.from {
            Some(resume) => held_by(&segments, resume)?,
            None => Start::default(),
        };
        let head = self.from.as_ref().map(|resume| resume.at.head).unwrap_or_default();
        let mut walk = Walk {
            verifier: Verifier::resume(self.log, self.homes.clone(), head),
            index: start.index,
            end: start.at,
            ends: BTreeMap::new(),
            bad: None,
        };
        walk.run(&segments, visit)?;
        self.mend(walk, segments, start)
    }

    fn mend(self, walk: Walk, mut segments: Vec<Found>, start: Start) -> Result<OpenedLog, OpenError> {
        let Walk { verifier, index, end, bad, ends } = walk;
        let head = verifier.head();
        for (closed, end) in ends.into_iter().filter(|(closed, _)| *closed < index) {
            if let Some(segment) = segments.get_mut(closed) {
                self.cut(segment, end)?;
            }
        }
        let missing = self.known.is_some_and(|known| known > head.seq);
        let broken = match (&bad, self.keep) {
            (_, Keep::Copy) => None,
            (None, Keep::Home) if missing => Some(Bad { seq: head.seq.next(), fault: Fault::Missing }),
            (None, Keep::Home) => None,
            (Some(bad), Keep::Home) if missing || later_seal(&self, &segments, index, end, head)? => Some(bad.clone()),
            (Some(_), Keep::Home) => None,
        };
        let mut repair = None;
        if broken.is_none() {
            repair = self.blank_behind(&mut segments, index, end, head, bad)?;
        } else {
            segments.truncate(index + 1);
            if let Some(last) = segments.get_mut(index) {
                last.end = end;
            }
        }
        let mut hasher = blake3::Hasher::new();
        if let Some(last) = segments.get(index).filter(|_| broken.is_none()) {
            let from = if start.index == index { start.at } else { 0 };
            if from > 0 {
                hasher = start.hasher;
            }
            hash(last.file.as_ref(), from, end, &mut hasher).map_err(at(&last.path))?;
        }
        let segments = segments.into_iter().map(|segment| (segment.first, segment.end)).collect();
        Ok(OpenedLog { log: self.log, keep: self.keep, head, repair, broken, homes: self.homes, segments, hasher })
    }

    /// Cuts a closed segment behind its last seal: padding, and what a reopening copied to the next segment.
    fn cut(&self, segment: &mut Found, end: u64) -> Result<(), OpenError> {
        if segment.end > end {
            let file = self.disk.open(&segment.path, Open::Write).map_err(at(&segment.path))?;
            file.set_len(end).and_then(|()| file.sync()).map_err(at(&segment.path))?;
            segment.end = end;
        }
        Ok(())
    }

    /// Blanks what stands behind the last seal, and removes segments behind it: they hold no seal.
    fn blank_behind(
        &self,
        segments: &mut Vec<Found>,
        index: usize,
        end: u64,
        head: Head,
        bad: Option<Bad>,
    ) -> Result<Option<Repair>, OpenError> {
        let mut bytes = 0;
        let folder = self.layout.log(self.log);
        let extra = segments.split_off((index + 1).min(segments.len()));
        for segment in &extra {
            bytes += used_end(segment.file.as_ref(), 0).map_err(at(&segment.path))?;
            self.disk.remove(&segment.path).map_err(at(&segment.path))?;
        }
        if !extra.is_empty() {
            sync_dir(self.disk, &folder).map_err(at(&folder))?;
        }
        if let Some(last) = segments.last_mut() {
            let used = used_end(last.file.as_ref(), end).map_err(at(&last.path))?;
            // The last seal may stand at the very end of a file whose last LF was cut off.
            let unended = end > last.end;
            if used > end || unended {
                let file = self.disk.open(&last.path, Open::Write).map_err(at(&last.path))?;
                let from = if unended { end - 1 } else { end };
                blank(file.as_ref(), from, used.max(end)).map_err(at(&last.path))?;
                file.sync().map_err(at(&last.path))?;
            }
            bytes += used - end.min(used);
            last.end = end;
        }
        let why = bad.map_or_else(|| "unsealed bytes".to_owned(), |bad| bad.to_string());
        Ok((bytes > 0).then_some(Repair { after: head.seq, bytes, why }))
    }
}

/// Ends the name of a segment that is being made by a reopening.
pub(super) const TEMP: &str = ".new";

struct Found {
    first: Seq,
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    /// The file's length; once known, where its sealed lines end.
    end: u64,
}

fn at(path: &std::path::Path) -> impl FnOnce(io::Error) -> OpenError {
    let path = path.to_owned();
    move |error| OpenError::Io { path, error }
}

/// Where the check begins.
#[derive(Default)]
struct Start {
    /// The segment's place in the list.
    index: usize,
    /// The place in it.
    at: u64,
    /// Of its bytes up to there.
    hasher: blake3::Hasher,
}

/// Finds the place to start from, and checks that everything before it is still there as it was.
fn held_by(segments: &[Found], resume: &Resume) -> Result<Start, OpenError> {
    let stale = || OpenError::Stale { seq: resume.at.head.seq };
    let index = resume.closed.len();
    let found = segments.get(index).filter(|found| found.first == resume.at.segment).ok_or_else(stale)?;
    // What was closed may have kept its padding.
    let kept = |((first, len), found): (&(Seq, u64), &Found)| *first == found.first && *len <= found.end;
    if resume.at.at == 0 || resume.at.at > found.end || !resume.closed.iter().zip(segments).all(kept) {
        return Err(stale());
    }
    let mut hasher = blake3::Hasher::new();
    hash(found.file.as_ref(), 0, resume.at.at, &mut hasher).map_err(at(&found.path))?;
    if Hash(*hasher.finalize().as_bytes()) != resume.bytes {
        return Err(stale());
    }
    Ok(Start { index, at: resume.at.at, hasher })
}

/// Bytes read at once to be hashed: enough for the hash to use all of the processor's width.
const HASH_LEN: usize = 1024 * 1024;

/// Hashes `from..to` of a file, or to its end: the last LF may have been cut off and put back since it was measured.
fn hash(file: &dyn DiskFile, from: u64, to: u64, hasher: &mut blake3::Hasher) -> io::Result<()> {
    let mut at = from;
    let mut bytes = vec![0; HASH_LEN.min(usize::try_from(to.saturating_sub(from)).unwrap_or(HASH_LEN))];
    while at < to {
        let len = bytes.len().min(usize::try_from(to - at).unwrap_or(HASH_LEN));
        let read = file.read_at(bytes.get_mut(..len).unwrap_or_default(), at)?;
        if read == 0 {
            break;
        }
        hasher.update(bytes.get(..read).unwrap_or_default());
        at += read as u64;
    }
    Ok(())
}

/// The check of all segments in order.
struct Walk {
    verifier: Verifier,
    /// The segment that holds the last seal, and the place behind it.
    index: usize,
    end: u64,
    /// Where the sealed lines of each segment end, by its place in the list.
    ends: BTreeMap<usize, u64>,
    bad: Option<Bad>,
}

impl Walk {
    fn run(&mut self, segments: &[Found], visit: &mut dyn FnMut(Entry, &[u8])) -> Result<(), OpenError> {
        let mut from = self.end;
        for (index, segment) in segments.iter().enumerate().skip(self.index) {
            let due = self.verifier.head().seq.next();
            if self.verifier.open_len() == 0 && segment.first > due {
                self.bad = Some(Bad { seq: due, fault: Fault::Gap { got: segment.first } });
                return Ok(());
            }
            let next_first = segments.get(index + 1).map(|next| next.first);
            self.segment(index, segment, from, next_first, visit)?;
            from = 0;
            if self.bad.is_some() {
                return Ok(());
            }
        }
        if self.verifier.open_len() > 0 {
            self.bad = Some(Bad { seq: self.verifier.head().seq.next(), fault: Fault::Unsealed });
        }
        Ok(())
    }

    fn segment(
        &mut self,
        index: usize,
        segment: &Found,
        from: u64,
        next_first: Option<Seq>,
        visit: &mut dyn FnMut(Entry, &[u8]),
    ) -> Result<(), OpenError> {
        let mut lines = LineScanner::new(segment.file.clone(), from, segment.end);
        // The next segment's entries count there: a reopening copied them, and what stands here was never synced.
        let handed_over = |verifier: &Verifier| {
            verifier.open_len() == 0 && next_first.is_some_and(|next| next <= verifier.head().seq.next())
        };
        if self.verifier.head().seq.next() >= segment.first && self.verifier.open_len() == 0 && from == 0 {
            (self.index, self.end) = (index, 0);
        }
        let mut batch: Vec<(Entry, Vec<u8>)> = Vec::new();
        while !handed_over(&self.verifier) {
            let Some(scanned) = lines.next_line().map_err(at(&segment.path))? else { break };
            match self.verifier.feed(scanned.line) {
                Ok(Line::Entry(entry)) if scanned.ended => batch.push((entry, scanned.line.to_vec())),
                Ok(Line::Seal(_)) => {
                    (self.index, self.end) = (index, scanned.end() + u64::from(!scanned.ended));
                    batch.drain(..).for_each(|(entry, line)| visit(entry, &line));
                }
                Ok(Line::Entry(entry)) => {
                    self.bad = Some(Bad { seq: entry.seq, fault: Fault::Unsealed });
                    return Ok(());
                }
                Err(bad) => {
                    self.bad = Some(bad);
                    return Ok(());
                }
            }
        }
        if self.verifier.open_len() > 0 {
            // A batch never crosses segments.
            self.bad = Some(Bad { seq: self.verifier.head().seq.next(), fault: Fault::Unsealed });
        } else if self.index == index {
            self.ends.insert(index, self.end);
        }
        Ok(())
    }
}

/// Whether a good seal of a later batch stands behind the damage.
fn later_seal(open: &OpenLog<'_>, segments: &[Found], index: usize, end: u64, head: Head) -> Result<bool, OpenError> {
    let mut from = end;
    for segment in segments.iter().skip(index) {
        let mut lines = LineScanner::new(segment.file.clone(), from, segment.end);
        from = 0;
        while let Some(scanned) = lines.next_line().map_err(at(&segment.path))? {
            let Ok(Line::Seal(seal)) = Line::parse(scanned.line) else { continue };
            let later = seal.seal.log == open.log.sealed_as() && seal.seal.from > head.seq.next();
            if later && open.homes.is_home(seal.seal.epoch, seal.by) && seal.check_signature().is_ok() {
                return Ok(true);
            }
        }
    }
    Ok(false)
}
