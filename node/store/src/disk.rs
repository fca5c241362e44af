//! The disk as the store uses it, so that tests and the simulated world can put a faulty one in its place.

use std::fmt::Debug;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

/// How a file is opened. Files are made with mode 0600.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Open {
    /// To read; it must exist.
    Read,
    /// To read and write; it must exist.
    Write,
    /// To read and write; it must not exist.
    New,
}

/// What a folder holds.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Item {
    /// Its name.
    pub name: String,
    /// Whether it is a folder.
    pub is_dir: bool,
}

/// A place for files. Paths are absolute or relative to the process's folder.
///
/// A change of names (a new file, a rename, a removal) is durable only once its folder was synced.
pub trait Disk: Debug + Send + Sync {
    /// Opens a file.
    ///
    /// # Errors
    /// As the operating system says.
    fn open(&self, path: &Path, how: Open) -> io::Result<Arc<dyn DiskFile>>;

    /// Opens a folder, to sync it.
    ///
    /// # Errors
    /// As the operating system says.
    fn open_dir(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;

    /// Makes a folder with mode 0700. Its parent must exist; it must not.
    ///
    /// # Errors
    /// As the operating system says.
    fn create_dir(&self, path: &Path) -> io::Result<()>;

    /// Renames a file over whatever has the new name, at once.
    ///
    /// # Errors
    /// As the operating system says.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// As the operating system says.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// What a folder holds, by name.
    ///
    /// # Errors
    /// As the operating system says.
    fn list(&self, path: &Path) -> io::Result<Vec<Item>>;

    /// Whether there is a file or folder.
    fn exists(&self, path: &Path) -> bool;
}

/// An open file or folder.
pub trait DiskFile: Debug + Send + Sync {
    /// Reads at a place; fewer bytes than asked for only at the end of the file.
    ///
    /// # Errors
    /// As the operating system says.
    fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<usize>;

    /// Writes all bytes at a place.
    ///
    /// # Errors
    /// As the operating system says; some of the bytes may then be written.
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()>;

    /// Cuts or extends the file.
    ///
    /// # Errors
    /// As the operating system says.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Its length in bytes.
    ///
    /// # Errors
    /// As the operating system says.
    fn len(&self) -> io::Result<u64>;

    /// Whether it has no bytes.
    ///
    /// # Errors
    /// As the operating system says.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Returns once its bytes and its length, or the folder's names, are on disk.
    ///
    /// # Errors
    /// When they may not be. A later success says nothing about bytes written before the failure.
    fn sync(&self) -> io::Result<()>;
}

/// The operating system's disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

/// A file, or a folder opened to be synced.
#[derive(Debug)]
struct RealFile {
    file: File,
    is_dir: bool,
}

impl Disk for RealDisk {
    fn open(&self, path: &Path, how: Open) -> io::Result<Arc<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        options.read(true).mode(0o600);
        match how {
            Open::Read => {}
            Open::Write => drop(options.write(true)),
            Open::New => drop(options.write(true).create_new(true)),
        }
        Ok(Arc::new(RealFile { file: options.open(path)?, is_dir: false }))
    }

    fn open_dir(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(RealFile { file: File::open(path)?, is_dir: true }))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        fs::DirBuilder::new().mode(0o700).create(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<Item>> {
        let mut items = Vec::new();
        for item in fs::read_dir(path)? {
            let item = item?;
            // Names that are not UTF-8 are not ours.
            if let Ok(name) = item.file_name().into_string() {
                items.push(Item { name, is_dir: item.file_type()?.is_dir() });
            }
        }
        items.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(items)
    }

    fn exists(&self, path: &Path) -> bool {
        path.exists()
    }
}

impl DiskFile for RealFile {
    fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<usize> {
        let mut done = 0;
        while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match self.file.read_at(rest, at + done as u64) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, at)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn sync(&self) -> io::Result<()> {
        // fdatasync syncs a file's length when it changed and spares its times. Of a folder it may spare the names:
        // ext4 counts a new name as data only when the folder grew.
        if self.is_dir { self.file.sync_all() } else { self.file.sync_data() }
    }
}

/// Syncs a folder by its path.
///
/// # Errors
/// As the operating system says.
pub fn sync_dir(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    disk.open_dir(path)?.sync()
}

/// Makes a folder and those above it, each durable before this returns. What exists is left as it is.
///
/// # Errors
/// As the operating system says.
pub fn ensure_dir(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    if disk.exists(path) {
        return Ok(());
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Some(parent) = parent {
        ensure_dir(disk, parent)?;
    }
    match disk.create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    match parent {
        Some(parent) => sync_dir(disk, parent),
        None => Ok(()),
    }
}

/// Reads a whole file of at most `len_max` bytes.
///
/// # Errors
/// As the operating system says, and when the file is longer.
pub fn read_all(disk: &dyn Disk, path: &Path, len_max: u64) -> io::Result<Vec<u8>> {
    let file = disk.open(path, Open::Read)?;
    let len = file.len()?;
    if len > len_max {
        let text = format!("{} has {len} bytes, over the limit of {len_max}", path.display());
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    let mut bytes = vec![0; usize::try_from(len).map_err(io::Error::other)?];
    let read = file.read_at(&mut bytes, 0)?;
    bytes.truncate(read);
    Ok(bytes)
}
