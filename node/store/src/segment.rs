//! Segments: the files of a log, padded ahead with LFs so that appending does not grow them.

use std::io;
use std::path::Path;
use std::sync::Arc;

use tieline_proto::id::Seq;

use super::disk::{Disk, Open};
use super::sync::SyncFile;

/// A segment is closed when a batch would make it longer.
pub const SEGMENT_LEN_MAX: u64 = 64 * 1024 * 1024;

/// Least padding added at a time: a quiet channel costs little disk.
pub const PAD_LEN_MIN: u64 = 64 * 1024;

/// Most padding added at a time: the sync that carries it takes about a millisecond longer.
pub const PAD_LEN_MAX: u64 = 1024 * 1024;

/// A segment that is written.
#[derive(Debug)]
pub struct Segment {
    first: Seq,
    file: Arc<SyncFile>,
    /// Behind the last sealed line that was synced.
    end: u64,
    /// Length of the file, padding included.
    len: u64,
}

impl Segment {
    /// Makes a segment that begins with entry `first`. Its folder needs a sync.
    ///
    /// # Errors
    /// As the operating system says.
    pub fn create(disk: &dyn Disk, path: &Path, first: Seq) -> io::Result<Self> {
        // A file of that name holds no sealed line, or the log would be further.
        let file = match disk.open(path, Open::New) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let file = disk.open(path, Open::Write)?;
                file.set_len(0)?;
                file
            }
            opened => opened?,
        };
        Ok(Self { first, file: Arc::new(SyncFile::new(file)), end: 0, len: 0 })
    }

    /// Continues a segment whose sealed lines end at `end`; what follows is blank.
    ///
    /// # Errors
    /// As the operating system says.
    pub fn open(disk: &dyn Disk, path: &Path, first: Seq, end: u64) -> io::Result<Self> {
        let file = disk.open(path, Open::Write)?;
        let len = file.len()?;
        Ok(Self { first, file: Arc::new(SyncFile::new(file)), end, len })
    }

    /// Its first entry.
    #[must_use]
    pub const fn first(&self) -> Seq {
        self.first
    }

    /// Behind the last sealed line that was synced.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.end
    }

    /// The file.
    #[must_use]
    pub const fn file(&self) -> &Arc<SyncFile> {
        &self.file
    }

    /// Whether a batch goes into it. The first one always does.
    #[must_use]
    pub const fn takes(&self, batch: usize) -> bool {
        self.end == 0 || self.end + batch as u64 <= SEGMENT_LEN_MAX
    }

    /// Writes a batch behind the last one. It counts once [`Segment::synced`] is told so.
    ///
    /// # Errors
    /// As the operating system says; a part may then be written.
    pub fn write(&mut self, batch: &[u8]) -> io::Result<()> {
        let file = self.file.file();
        file.write_at(batch, self.end)?;
        let used = self.end + batch.len() as u64;
        if used >= self.len {
            let pad = used.clamp(PAD_LEN_MIN, PAD_LEN_MAX);
            self.len = used;
            // Room is a luxury: without it the next batches only take longer.
            if file.write_at(&vec![b'\n'; usize::try_from(pad).unwrap_or_default()], used).is_ok() {
                self.len = used + pad;
            } else {
                self.len = file.len()?;
            }
        }
        Ok(())
    }

    /// A batch of this length is on disk.
    pub const fn synced(&mut self, batch: usize) {
        self.end += batch as u64;
    }

    /// Overwrites what may stand behind the last sealed line, after a write that failed, and syncs.
    ///
    /// # Errors
    /// In words: as the operating system says.
    pub fn blank_tail(&mut self) -> Result<(), super::commit::Reason> {
        let written = self.file.file().len().and_then(|len| {
            self.len = len;
            blank(self.file.file().as_ref(), self.end, len)
        });
        written.map_err(|error| super::commit::Reason::write(&error))?;
        self.file.sync()
    }

    /// Cuts the padding: nothing more will be written here.
    ///
    /// # Errors
    /// As the operating system says.
    pub fn close(&mut self) -> io::Result<()> {
        if self.len != self.end {
            self.file.file().set_len(self.end)?;
            self.len = self.end;
        }
        Ok(())
    }
}

/// Overwrites `from..to` with LFs.
///
/// # Errors
/// As the operating system says.
pub fn blank(file: &dyn super::disk::DiskFile, from: u64, to: u64) -> io::Result<()> {
    let piece = vec![b'\n'; usize::try_from(PAD_LEN_MIN).unwrap_or_default()];
    let mut at = from;
    while at < to {
        let len = (to - at).min(PAD_LEN_MIN);
        file.write_at(piece.get(..usize::try_from(len).unwrap_or_default()).unwrap_or_default(), at)?;
        at += len;
    }
    Ok(())
}
