//! Lines of a file, in bounded memory.

use std::io;
use std::sync::Arc;

use tieline_proto::log::LINE_LEN_MAX;

use super::disk::DiskFile;

/// Bytes read at a time.
const READ_LEN: usize = 256 * 1024;

/// Reads the lines of a file one by one; padding is skipped.
#[derive(Debug)]
pub struct LineScanner {
    file: Arc<dyn DiskFile>,
    /// Place in the file where reading goes on.
    next: u64,
    /// Where the file's lines end for this scanner.
    limit: u64,
    read_len: usize,
    buf: Vec<u8>,
    /// What of the buffer was handed out.
    start: usize,
    /// The rest of a line that is too long is skipped.
    skipping: bool,
}

/// A line as it is in the file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Scanned<'a> {
    /// Its place in the file.
    pub at: u64,
    /// Its bytes without LF. Of a line over [`LINE_LEN_MAX`] the first `LINE_LEN_MAX + 1`.
    pub line: &'a [u8],
    /// Whether an LF ends it; only the last line of a file can lack one.
    pub ended: bool,
}

impl Scanned<'_> {
    /// The place behind the line and its LF.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.at + self.line.len() as u64 + self.ended as u64
    }
}

impl LineScanner {
    /// Reads lines from place `from`, which begins a line, up to place `limit`.
    #[must_use]
    pub const fn new(file: Arc<dyn DiskFile>, from: u64, limit: u64) -> Self {
        Self { file, next: from, limit, read_len: READ_LEN, buf: Vec::new(), start: 0, skipping: false }
    }

    /// Reads this many bytes at a time, for a look at a line or two.
    #[must_use]
    pub const fn reading(mut self, read_len: usize) -> Self {
        self.read_len = read_len;
        self
    }

    /// The next line that is not blank.
    ///
    /// # Errors
    /// When the file can't be read.
    pub fn next_line(&mut self) -> io::Result<Option<Scanned<'_>>> {
        loop {
            let rest = self.buf.get(self.start..).unwrap_or_default();
            let blank = rest.iter().position(|byte| *byte != b'\n').unwrap_or(rest.len());
            let line = rest.get(blank..).unwrap_or_default();
            let begin = self.start + blank;
            if let Some(len) = memchr::memchr(b'\n', line) {
                self.start = begin + len + 1;
                if !std::mem::take(&mut self.skipping) {
                    return Ok(Some(self.scanned(begin, len, true)));
                }
                continue;
            }
            if line.len() > LINE_LEN_MAX {
                self.start = self.buf.len();
                if !std::mem::replace(&mut self.skipping, true) {
                    return Ok(Some(self.scanned(begin, LINE_LEN_MAX + 1, false)));
                }
                continue;
            }
            let left = line.len();
            self.start = begin;
            if !self.fill()? {
                let begin = self.start;
                self.start = self.buf.len();
                let whole = left > 0 && !self.skipping;
                return Ok(whole.then(|| self.scanned(begin, left, false)));
            }
        }
    }

    fn scanned(&self, begin: usize, len: usize, ended: bool) -> Scanned<'_> {
        let at = self.next - (self.buf.len() - begin) as u64;
        Scanned { at, line: self.buf.get(begin..begin + len).unwrap_or_default(), ended }
    }

    /// Reads on; false at the end.
    fn fill(&mut self) -> io::Result<bool> {
        self.buf.drain(..self.start);
        self.start = 0;
        let wanted = usize::try_from(self.limit.saturating_sub(self.next)).unwrap_or(self.read_len).min(self.read_len);
        let kept = self.buf.len();
        self.buf.resize(kept + wanted, 0);
        let read = self.file.read_at(self.buf.get_mut(kept..).unwrap_or_default(), self.next)?;
        self.buf.truncate(kept + read);
        self.next += read as u64;
        Ok(read > 0)
    }
}

/// The place behind the last byte at or after `from` that is not LF; `from` when all is blank.
///
/// # Errors
/// When the file can't be read.
pub fn used_end(file: &dyn DiskFile, from: u64) -> io::Result<u64> {
    let (mut at, mut used) = (from, from);
    let mut buf = vec![0; READ_LEN];
    loop {
        let read = file.read_at(&mut buf, at)?;
        if read == 0 {
            return Ok(used);
        }
        if let Some(last) = buf.get(..read).unwrap_or_default().iter().rposition(|byte| *byte != b'\n') {
            used = at + last as u64 + 1;
        }
        at += read as u64;
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::disk::{Disk, Open};
    use crate::fault::FaultDisk;

    fn lines(bytes: &[u8]) -> Vec<(u64, Vec<u8>, bool)> {
        let disk = FaultDisk::new(Path::new("/"));
        let file = disk.open(Path::new("/f"), Open::New).unwrap();
        file.write_at(bytes, 0).unwrap();
        let mut scanner = LineScanner::new(file, 0, bytes.len() as u64);
        let mut lines = Vec::new();
        while let Some(line) = scanner.next_line().unwrap() {
            lines.push((line.at, line.line.to_vec(), line.ended));
        }
        lines
    }

    #[test]
    fn lines_have_their_places_and_padding_is_skipped() {
        assert_eq!(lines(b""), []);
        assert_eq!(lines(b"\n\n\n"), []);
        assert_eq!(
            lines(b"\na\n\nbc\nd"),
            [(1, b"a".to_vec(), true), (4, b"bc".to_vec(), true), (7, b"d".to_vec(), false)]
        );
        let wide = [vec![b'x'; READ_LEN * 2], vec![b'\n'; READ_LEN], b"y\n".to_vec()].concat();
        let found = lines(&wide);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].1.len(), found[1].0, found[1].2), (READ_LEN * 2, READ_LEN as u64 * 3, true));
    }

    #[test]
    fn an_endless_line_costs_no_more_memory_than_the_limit() {
        let long = [vec![b'x'; LINE_LEN_MAX * 3], b"\nnext\n".to_vec()].concat();
        let found = lines(&long);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].1.len(), LINE_LEN_MAX + 1);
        assert_eq!(found[1].1, b"next");
    }
}
