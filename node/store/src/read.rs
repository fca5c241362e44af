//! Reading logs, journals and blobs, from any thread, beside the writer.
//!
//! A reader sees what is sealed and synced, never more. It takes no lock that the writer holds for longer than it
//! takes to note a new end.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, PoisonError, RwLock};

use tieline_proto::entry::Entry;
use tieline_proto::id::{ChannelId, Hash, MessageId, Seq};
use tieline_proto::log::{Bad, Head, LINE_LEN_MAX, Line, LogId, line};

use super::blob::BLOB_LEN_MAX;
use super::commit::JournalId;
use super::disk::{Disk, DiskFile, Open, read_all};
use super::index::{ClientKey, Index, Item, Placed, items};
use super::layout::Layout;
use super::scan::LineScanner;

/// Bytes looked at a time while an entry's place is searched.
const PROBE_LEN: usize = 8 * 1024;

/// A search ends by reading on from at most this far before the entry.
const NEAR: u64 = 32 * 1024;

/// What readers see of the logs. The writer keeps it current.
#[derive(Debug, Default)]
pub(super) struct Views(RwLock<BTreeMap<LogId, LogView>>);

/// What readers see of one log.
#[derive(Clone, Debug)]
pub(super) struct LogView {
    pub head: Head,
    pub broken: Option<Bad>,
    /// First entry and end of each segment.
    pub segments: Vec<(Seq, u64)>,
}

impl Views {
    pub fn set(&self, log: LogId, view: LogView) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(log, view);
    }

    /// The log's last segment, which begins with `segment`, now ends at `end`.
    pub fn advance(&self, log: LogId, head: Head, segment: Seq, end: u64) {
        let mut views = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(view) = views.get_mut(&log) {
            view.head = head;
            match view.segments.last_mut() {
                Some(last) if last.0 == segment => last.1 = end,
                _ => view.segments.push((segment, end)),
            }
        }
    }

    pub fn break_off(&self, log: LogId, bad: Bad) {
        if let Some(view) = self.0.write().unwrap_or_else(PoisonError::into_inner).get_mut(&log) {
            view.broken = Some(bad);
        }
    }

    fn get<T>(&self, log: LogId, look: impl FnOnce(&LogView) -> T) -> Option<T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&log).map(look)
    }
}

/// Reads; clones share everything.
#[derive(Clone, Debug)]
pub struct Reader {
    disk: Arc<dyn Disk>,
    layout: Layout,
    views: Arc<Views>,
    index: Index,
}

impl Reader {
    pub(super) const fn new(disk: Arc<dyn Disk>, layout: Layout, views: Arc<Views>, index: Index) -> Self {
        Self { disk, layout, views, index }
    }

    /// The logs that are open.
    #[must_use]
    pub fn logs(&self) -> Vec<LogId> {
        self.views.0.read().unwrap_or_else(PoisonError::into_inner).keys().copied().collect()
    }

    /// Where a log stands.
    #[must_use]
    pub fn head(&self, log: LogId) -> Option<Head> {
        self.views.get(log, |view| view.head)
    }

    /// What is damaged in a log for good.
    #[must_use]
    pub fn broken(&self, log: LogId) -> Option<Bad> {
        self.views.get(log, |view| view.broken.clone()).flatten()
    }

    /// Where things are.
    #[must_use]
    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The index.
    #[must_use]
    pub const fn index(&self) -> &Index {
        &self.index
    }

    /// Reads a log's raw lines from entry `from` on.
    #[must_use]
    pub const fn lines(&self, log: LogId, from: Seq) -> LogCursor<'_> {
        LogCursor { reader: self, log, next: from, place: None }
    }

    /// An entry's line without LF.
    ///
    /// # Errors
    /// As the operating system says.
    pub fn entry(&self, log: LogId, seq: Seq) -> io::Result<Option<Vec<u8>>> {
        let chunk = self.lines(log, seq).read(1)?;
        Ok(chunk.and_then(|chunk| chunk.lines().next().map(<[u8]>::to_vec)))
    }

    /// The entry that is the last word on a message: the one that ended its turn, or the one that gave it its number.
    ///
    /// # Errors
    /// As the operating system says.
    pub fn end(&self, channel: ChannelId, message: MessageId) -> io::Result<Option<Entry>> {
        let Some(places) = self.index.message(channel, message) else { return Ok(None) };
        for item in [places.end.map(|end| Item::End(message, end)), Some(Item::First(message, places.first))] {
            let Some(item) = item else { continue };
            let (Item::End(_, seq) | Item::First(_, seq)) = item else { continue };
            let Some(line) = self.entry(LogId::Channel(channel), seq)? else { continue };
            if let Ok(Line::Entry(entry)) = Line::parse(&line)
                && says(&entry, &item)
            {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }

    /// What an author's client id was given before.
    ///
    /// # Errors
    /// As the operating system says.
    pub fn placed(&self, channel: ChannelId, key: &ClientKey) -> io::Result<Option<Placed>> {
        let Some(placed) = self.index.client(channel, key) else { return Ok(None) };
        let line = self.entry(LogId::Channel(channel), placed.seq)?;
        let entry = line.and_then(|line| match Line::parse(&line) {
            Ok(Line::Entry(entry)) => Some(entry),
            _ => None,
        });
        Ok(entry.filter(|entry| says(entry, &Item::Client(*key, placed))).map(|_| placed))
    }

    /// Reads a journal's lines from the line with this index on.
    ///
    /// # Errors
    /// As the operating system says.
    pub fn journal(&self, id: JournalId, from: u64) -> io::Result<Option<JournalCursor>> {
        let file = match self.disk.open(&self.layout.journal(id), Open::Read) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let mut cursor = JournalCursor { file, at: 0, next: 0 };
        while cursor.next < from {
            let Some(chunk) = cursor.read_lines(SKIP_LEN, from - cursor.next)? else { break };
            drop(chunk);
        }
        Ok(Some(cursor))
    }

    /// A blob's bytes, checked against its hash.
    ///
    /// # Errors
    /// As the operating system says.
    pub fn blob(&self, channel: ChannelId, hash: Hash) -> io::Result<Option<Vec<u8>>> {
        match read_all(self.disk.as_ref(), &self.layout.blob(channel, hash), BLOB_LEN_MAX) {
            Ok(bytes) => Ok((Hash::of(&bytes) == hash).then_some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A blob's file, to be read in pieces by somebody who checks the hash.
    ///
    /// # Errors
    /// As the operating system says.
    pub fn blob_file(&self, channel: ChannelId, hash: Hash) -> io::Result<Option<Arc<dyn DiskFile>>> {
        match self.disk.open(&self.layout.blob(channel, hash), Open::Read) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Whether an entry is what the index takes it for: the index is never the truth.
fn says(entry: &Entry, item: &Item) -> bool {
    let mut found = Vec::new();
    items(entry.seq, entry.by, &entry.auth, &entry.body, &mut found);
    found.contains(item)
}

/// Bytes read at a time while lines of a journal are skipped.
const SKIP_LEN: usize = 256 * 1024;

/// Lines of a log, as they are on disk.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Chunk {
    /// The lines, seals included, each with its LF.
    pub bytes: Vec<u8>,
    /// The entry that follows: where to go on.
    pub next: Seq,
}

impl Chunk {
    /// The lines without LFs.
    pub fn lines(&self) -> impl Iterator<Item = &[u8]> {
        line::split(&self.bytes)
    }
}

/// Reads a log piece by piece; each piece is as current as the moment it is read.
#[derive(Debug)]
pub struct LogCursor<'a> {
    reader: &'a Reader,
    log: LogId,
    next: Seq,
    /// The segment and the place in it that hold what comes next.
    place: Option<(Seq, u64)>,
}

impl LogCursor<'_> {
    /// The entry that comes next.
    #[must_use]
    pub const fn next(&self) -> Seq {
        self.next
    }

    /// Reads about `len` bytes of whole lines, at least one; `None` when there is nothing behind the last piece yet.
    ///
    /// The first line is the entry asked for.
    ///
    /// # Errors
    /// As the operating system says.
    pub fn read(&mut self, len: usize) -> io::Result<Option<Chunk>> {
        loop {
            let next = self.next;
            let place = self.place;
            let found = self.reader.views.get(self.log, |view| {
                // Seals behind the last entry are read too, so the place decides, once there is one.
                let index = match place {
                    Some((segment, _)) => view.segments.iter().position(|(first, _)| *first == segment)?,
                    None if next.0 == 0 || next > view.head.seq => return None,
                    None => view.segments.partition_point(|(first, _)| *first <= next).checked_sub(1)?,
                };
                let (first, end) = *view.segments.get(index)?;
                Some((first, end, view.segments.get(index + 1).map(|(first, _)| *first)))
            });
            let Some((segment, end, after)) = found.flatten() else { return Ok(None) };
            let file = self.reader.disk.open(&self.reader.layout.segment(self.log, segment), Open::Read)?;
            let at = match place {
                Some((_, at)) => at,
                None => search(&file, end, next)?,
            };
            if at < end {
                let bytes = whole_lines(file.as_ref(), at, end, len)?;
                self.place = Some((segment, at + bytes.len() as u64));
                let last = line::split(&bytes).filter_map(Line::entry_seq).last();
                self.next = last.map_or(next, Seq::next);
                return Ok(Some(Chunk { bytes, next: self.next }));
            }
            match after {
                Some(after) => self.place = Some((after, 0)),
                None => return Ok(None),
            }
        }
    }
}

/// Reads about `len` bytes from `at`, cut behind the last LF before `end`; at least one line.
fn whole_lines(file: &dyn DiskFile, at: u64, end: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut want = len.max(PROBE_LEN);
    loop {
        let left = usize::try_from(end.saturating_sub(at)).unwrap_or(usize::MAX);
        let mut bytes = vec![0; want.min(left)];
        let read = file.read_at(&mut bytes, at)?;
        bytes.truncate(read);
        // One line is enough when few bytes were asked for.
        let first = bytes.iter().position(|byte| *byte == b'\n').map(|place| place + 1);
        let cut = match first {
            Some(first) if first >= len => Some(first),
            Some(_) => bytes
                .get(..len.max(1).min(read))
                .and_then(|part| part.iter().rposition(|byte| *byte == b'\n'))
                .map(|place| place + 1)
                .or(first),
            None => None,
        };
        if let Some(cut) = cut {
            bytes.truncate(cut);
            return Ok(bytes);
        }
        if read < want || want > LINE_LEN_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("no line ends within {read} bytes of {at}"),
            ));
        }
        want *= 4;
    }
}

/// The place of an entry's line in a segment whose lines end at `end`; `end` when it is not there.
///
/// Lines name themselves, so halving needs no table.
fn search(file: &Arc<dyn DiskFile>, end: u64, seq: Seq) -> io::Result<u64> {
    let (mut low, mut high) = (0, end);
    while high - low > NEAR {
        let middle = low + (high - low) / 2;
        let mut lines = LineScanner::new(file.clone(), middle, high).reading(PROBE_LEN);
        // What begins before the middle is a part of a line.
        lines.next_line()?;
        let found = loop {
            match lines.next_line()? {
                None => break None,
                Some(scanned) => {
                    if let Some(found) = Line::entry_seq(scanned.line) {
                        break Some((scanned.at, found));
                    }
                }
            }
        };
        match found {
            Some((at, found)) if found <= seq => low = at,
            _ => high = middle,
        }
    }
    let mut lines = LineScanner::new(file.clone(), low, end).reading(PROBE_LEN);
    while let Some(scanned) = lines.next_line()? {
        if Line::entry_seq(scanned.line).is_some_and(|found| found >= seq) {
            return Ok(scanned.at);
        }
    }
    Ok(end)
}

/// Reads a journal piece by piece.
#[derive(Debug)]
pub struct JournalCursor {
    file: Arc<dyn DiskFile>,
    at: u64,
    next: u64,
}

impl JournalCursor {
    /// Index of the line that comes next.
    #[must_use]
    pub const fn next(&self) -> u64 {
        self.next
    }

    /// The place of the line that comes next, in bytes.
    #[must_use]
    pub const fn at(&self) -> u64 {
        self.at
    }

    /// Reads about `len` bytes of whole lines, at least one; `None` when there is no whole line behind the last piece.
    ///
    /// # Errors
    /// As the operating system says.
    pub fn read(&mut self, len: usize) -> io::Result<Option<Vec<u8>>> {
        self.read_lines(len, u64::MAX)
    }

    fn read_lines(&mut self, len: usize, lines_max: u64) -> io::Result<Option<Vec<u8>>> {
        let mut want = len.max(PROBE_LEN);
        loop {
            let mut bytes = vec![0; want];
            let read = self.file.read_at(&mut bytes, self.at)?;
            bytes.truncate(read);
            let ends = memchr::memchr_iter(b'\n', &bytes).map(|place| place + 1);
            let mut lines = 0;
            let mut cut = 0;
            for end in ends {
                // Padding is no line, and ends the journal.
                if end == cut + 1 || lines == lines_max || (lines > 0 && end > len) {
                    break;
                }
                (lines, cut) = (lines + 1, end);
            }
            if cut > 0 {
                bytes.truncate(cut);
                self.at += cut as u64;
                self.next += lines;
                return Ok(Some(bytes));
            }
            if read < want || bytes.first() == Some(&b'\n') || want > LINE_LEN_MAX {
                return Ok(None);
            }
            want *= 4;
        }
    }
}
