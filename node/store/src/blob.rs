//! Blobs: bytes that entries name by hash, one file each.
//!
//! A blob is written under its final name at once, for a rename would cost a second commit of the file system's
//! journal. What a crash leaves half written is named by no entry yet; readers check the hash, and writers too before
//! they take a file of that name for the blob.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use tieline_proto::id::{ChannelId, Hash};

use super::commit::{BlobPut, BlobSource, Reason};
use super::disk::{Disk, DiskFile, Open, ensure_dir};
use super::layout::Layout;
use super::sync::SyncFile;

/// Longest blob that is read into memory whole: an attachment of 25 MiB.
pub const BLOB_LEN_MAX: u64 = 25 * 1024 * 1024;

/// Ends the name of a blob that is still being received.
const STAGED: &str = ".part";

/// A blob that is received piece by piece, by whoever receives it, beside the writer.
///
/// Dropped unfinished, it removes its file.
#[derive(Debug)]
pub struct Staging {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    hasher: blake3::Hasher,
    len: u64,
    done: bool,
}

impl Staging {
    /// Begins. `name` is unique among the blobs that are being received in this channel.
    ///
    /// # Errors
    /// As the operating system says.
    pub fn begin(disk: Arc<dyn Disk>, layout: &Layout, channel: ChannelId, name: &str) -> io::Result<Self> {
        let folder = layout.blobs(channel);
        ensure_dir(disk.as_ref(), &folder)?;
        let path = folder.join(format!("{name}{STAGED}"));
        let file = disk.open(&path, Open::New)?;
        Ok(Self { disk, path, file, hasher: blake3::Hasher::new(), len: 0, done: false })
    }

    /// Appends a piece.
    ///
    /// # Errors
    /// When the blob would be longer than [`BLOB_LEN_MAX`], and as the operating system says.
    pub fn write(&mut self, piece: &[u8]) -> io::Result<()> {
        let len = self.len + piece.len() as u64;
        if len > BLOB_LEN_MAX {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("blob exceeds {BLOB_LEN_MAX} bytes")));
        }
        self.file.write_at(piece, self.len)?;
        self.hasher.update(piece);
        self.len = len;
        Ok(())
    }

    /// Bytes so far.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are no bytes yet.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Ends: the hash of what was received, and the source for a commit, which syncs and names it.
    #[must_use]
    pub fn finish(mut self) -> (Hash, BlobSource) {
        self.done = true;
        (Hash(*self.hasher.finalize().as_bytes()), BlobSource::Staged(self.path.clone()))
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.done {
            // What stays behind is swept at the next start.
            let _ = self.disk.remove(&self.path);
        }
    }
}

/// Removes what was being received when the node stopped. Gives the number of files.
///
/// # Errors
/// As the operating system says.
pub fn sweep(disk: &dyn Disk, layout: &Layout, channel: ChannelId) -> io::Result<usize> {
    let folder = layout.blobs(channel);
    if !disk.exists(&folder) {
        return Ok(0);
    }
    let parts = disk.list(&folder)?.into_iter().filter(|item| item.name.ends_with(STAGED));
    parts.map(|item| disk.remove(&folder.join(item.name))).try_fold(0, |count, removed| removed.map(|()| count + 1))
}

/// Writes a blob. Gives what has to be synced before an entry may name it.
///
/// # Errors
/// When the bytes have another hash, or in words as the operating system says.
pub(super) fn put(disk: &dyn Disk, layout: &Layout, put: BlobPut) -> Result<Option<Arc<SyncFile>>, Reason> {
    let BlobPut { channel, hash, source } = put;
    let path = layout.blob(channel, hash);
    let write = |error: io::Error| Reason::write(&error);
    match source {
        BlobSource::Bytes(bytes) => {
            if Hash::of(&bytes) != hash {
                return Err(Reason::BlobHash(hash));
            }
            ensure_dir(disk, &layout.blobs(channel)).map_err(write)?;
            let file = match disk.open(&path, Open::New) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    // It may be there without being durable, after a sync that failed: it is written again, the same
                    // bytes over themselves, and synced again.
                    let file = disk.open(&path, Open::Write).map_err(write)?;
                    if file.len().map_err(write)? != bytes.len() as u64 {
                        file.set_len(0).map_err(write)?;
                    }
                    file
                }
                opened => opened.map_err(write)?,
            };
            file.write_at(&bytes, 0).map_err(write)?;
            Ok(Some(Arc::new(SyncFile::new(file))))
        }
        BlobSource::Staged(staged) => {
            let file = disk.open(&staged, Open::Write).map_err(write)?;
            disk.rename(&staged, &path).map_err(write)?;
            Ok(Some(Arc::new(SyncFile::new(file))))
        }
    }
}
