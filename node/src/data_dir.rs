//! The data folder: private, held by one node at a time, and of a format that this version knows.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use crate::keys;

/// The format that this version writes. A newer one is refused untouched; an older one is brought up to date.
pub const FORMAT: u32 = 1;

/// Holds the format's number.
const FORMAT_NAME: &str = "FORMAT";

/// The kernel's lock is on this file; its content names the holder.
const LOCK_NAME: &str = "lock";

/// How long a holder that is gone may still hold: a child that it was about to start has the lock until it starts.
const GONE_PATIENCE: Duration = Duration::from_secs(2);

/// How long a lock is tried that may be that of a command which looks whether the folder is held.
const LOOK_PATIENCE: Duration = Duration::from_millis(100);

/// How often it is looked at again.
const GONE_LOOK: Duration = Duration::from_millis(5);

/// Why a data folder is not used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirError {
    /// Another node has it.
    #[error("a node runs on {path} already{}", holder(*.pid), path = .path.display())]
    AlreadyRunning {
        /// The folder.
        path: PathBuf,
        /// The holder's process, as it says itself.
        pid: Option<u32>,
    },
    /// A newer version wrote it.
    #[error(
        "{path} was written by a newer Tieline (format {found}; this one knows {FORMAT}); nothing was touched",
        path = .path.display()
    )]
    Newer {
        /// The folder.
        path: PathBuf,
        /// Its format.
        found: u32,
    },
    /// It holds something else.
    #[error("{path} is no data folder of Tieline: {found:?} is in it; nothing was touched", path = .path.display())]
    NotData {
        /// The folder.
        path: PathBuf,
        /// What was found first.
        found: String,
    },
    /// Somebody else owns it.
    #[error("{path} belongs to another user", path = .path.display())]
    Foreign {
        /// The folder.
        path: PathBuf,
    },
    /// The disk.
    #[error("{path}: {error}", path = .path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" (process {pid})"))
}

/// A data folder that this process holds. The kernel lets go of it with the process, however that ends.
#[derive(Debug)]
pub struct DataDir {
    _lock: File,
}

impl DataDir {
    /// Takes the folder, and makes it when there is none. Does not wait for a node that runs.
    ///
    /// # Errors
    /// When another node has it, a newer version wrote it, or the disk fails.
    pub fn open(path: &Path) -> Result<Self, DirError> {
        let failed = |at: &Path| {
            let path = at.to_owned();
            move |error| DirError::Io { path, error }
        };
        if fs::metadata(path).is_ok_and(|meta| !meta.is_dir()) {
            return Err(failed(path)(io::ErrorKind::NotADirectory.into()));
        }
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed(path))?;
        // Before anything is made or changed, the lock and the folder's mode too.
        Self::check_format(path)?;
        let meta = fs::metadata(path).map_err(failed(path))?;
        let uid = rustix::process::geteuid().as_raw();
        if meta.uid() != uid && uid != 0 {
            return Err(DirError::Foreign { path: path.to_owned() });
        }
        // Only now: a folder of something else keeps its mode.
        Self::check(path)?;
        for folder in [path.to_owned(), path.join("keys")] {
            let Ok(meta) = fs::metadata(&folder) else { continue };
            if meta.mode() & 0o077 != 0 {
                let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
                fs::set_permissions(&folder, mode).map_err(failed(&folder))?;
            }
        }
        let lock_path = path.join(LOCK_NAME);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut lock = options.open(&lock_path).map_err(failed(&lock_path))?;
        take(path, &mut lock)?;
        // Nothing is written before the format is known to be ours.
        let format_path = path.join(FORMAT_NAME);
        match fs::read_to_string(&format_path) {
            Ok(text) => {
                let Ok(found) = text.trim().parse::<u32>() else {
                    let error = io::Error::new(io::ErrorKind::InvalidData, "it holds no number of a format");
                    return Err(failed(&format_path)(error));
                };
                if found > FORMAT {
                    return Err(DirError::Newer { path: path.to_owned(), found });
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                keys::write(&format_path, format!("{FORMAT}\n").as_bytes()).map_err(failed(&format_path))?;
            }
            Err(error) => return Err(failed(&format_path)(error)),
        }
        lock.set_len(0).map_err(failed(&lock_path))?;
        lock.rewind().map_err(failed(&lock_path))?;
        writeln!(lock, "{}", std::process::id()).map_err(failed(&lock_path))?;
        Ok(Self { _lock: lock })
    }

    /// Refuses a folder that a newer version wrote. Touches nothing.
    ///
    /// # Errors
    /// When it is one, or its format cannot be read.
    pub fn check_format(path: &Path) -> Result<(), DirError> {
        let format_path = path.join(FORMAT_NAME);
        match fs::read_to_string(&format_path).map(|text| text.trim().parse().unwrap_or(u32::MAX)) {
            Ok(found) if found > FORMAT => Err(DirError::Newer { path: path.to_owned(), found }),
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(DirError::Io { path: format_path, error }),
            _ => Ok(()),
        }
    }

    /// Refuses a folder that holds something else than a node's data, as [`DataDir::open`] does.
    ///
    /// # Errors
    /// When it does, or can't be read. A folder that is not there yet is fine.
    pub fn check(path: &Path) -> Result<(), DirError> {
        match foreign_item(path) {
            Ok(None) => Ok(()),
            Ok(Some(found)) => Err(DirError::NotData { path: path.to_owned(), found }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(DirError::Io { path: path.to_owned(), error }),
        }
    }

    /// Whether a node holds the folder now.
    #[must_use]
    pub fn is_held(path: &Path) -> bool {
        let Ok(lock) = File::open(path.join(LOCK_NAME)) else { return false };
        flock(&lock, FlockOperation::NonBlockingLockShared) == Err(rustix::io::Errno::WOULDBLOCK)
    }
}

/// Something in a folder that was never a data folder and that its owner did not put there for a node.
fn foreign_item(path: &Path) -> io::Result<Option<String>> {
    if fs::exists(path.join(FORMAT_NAME))? {
        return Ok(None);
    }
    for item in fs::read_dir(path)? {
        let name = item?.file_name().to_string_lossy().into_owned();
        // Commands that need no node write theirs before the first start; new file systems have a folder of their own.
        let ours = [FORMAT_NAME, LOCK_NAME, "config.toml", "harnesses.json", "lost+found"];
        // With a dot before it, it is one that was being written when its writer was killed.
        if !ours.iter().any(|ours| name.trim_start_matches('.').starts_with(ours)) {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// Takes the kernel's lock, unless a process that runs has it.
fn take(path: &Path, lock: &mut File) -> Result<(), DirError> {
    let begun = Instant::now();
    loop {
        match flock(&*lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::WOULDBLOCK) => {}
            Err(error) => return Err(DirError::Io { path: path.join(LOCK_NAME), error: error.into() }),
        }
        // Somebody who only looks whether it is held has it for a moment.
        if begun.elapsed() < LOOK_PATIENCE {
            std::thread::sleep(GONE_LOOK);
            continue;
        }
        let mut text = String::new();
        let read = lock.rewind().and_then(|()| lock.read_to_string(&mut text));
        let pid = read.ok().and_then(|_| text.trim().parse::<u32>().ok());
        if pid.is_none_or(runs) || begun.elapsed() >= GONE_PATIENCE {
            return Err(DirError::AlreadyRunning { path: path.to_owned(), pid });
        }
        std::thread::sleep(GONE_LOOK);
    }
}

/// Whether a process runs.
fn runs(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    pid.is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_o2_a_held_folder_names_its_holder_and_a_dead_holder_holds_nothing() {
        let dir = tempfile::tempdir().expect("a folder");
        let held = DataDir::open(dir.path()).expect("free");
        assert!(DataDir::is_held(dir.path()));
        let error = DataDir::open(dir.path()).expect_err("held").to_string();
        assert!(error.contains(&std::process::id().to_string()), "{error}");
        drop(held);
        assert!(!DataDir::is_held(dir.path()));
        DataDir::open(dir.path()).expect("free again");
    }

    /// A node that was killed while it started a child: the child holds the lock until it is another program.
    #[test]
    fn case_o2_lock_that_a_dead_holders_child_still_has_is_waited_for() {
        let dir = tempfile::tempdir().expect("a folder");
        let held = DataDir::open(dir.path()).expect("free");
        let mut child = std::process::Command::new("true").spawn().expect("spawned");
        let dead = child.id();
        child.wait().expect("reaped");
        fs::write(dir.path().join(LOCK_NAME), format!("{dead}\n")).expect("written");
        let letting_go = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            drop(held);
        });
        DataDir::open(dir.path()).expect("free as soon as the child lets go");
        letting_go.join().expect("joined");
    }

    #[test]
    fn a_command_that_only_looks_does_not_keep_a_node_from_starting() {
        let dir = tempfile::tempdir().expect("a folder");
        drop(DataDir::open(dir.path()).expect("made"));
        let lock = File::open(dir.path().join(LOCK_NAME)).expect("there");
        flock(&lock, FlockOperation::NonBlockingLockShared).expect("free");
        let looking = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            drop(lock);
        });
        DataDir::open(dir.path()).expect("free in a moment");
        looking.join().expect("joined");
    }

    #[test]
    fn a_folder_of_something_else_is_refused_untouched() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().expect("a folder");
        let mode = || fs::metadata(dir.path()).expect("there").permissions().mode() & 0o777;
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
        fs::write(dir.path().join("main.rs"), "fn main() {}").expect("written");
        let error = DataDir::open(dir.path()).expect_err("refused").to_string();
        assert!(error.contains("main.rs"), "{error}");
        assert_eq!((mode(), fs::read_dir(dir.path()).expect("there").count()), (0o755, 1));
        fs::remove_file(dir.path().join("main.rs")).expect("removed");
        // What an owner may have there before the first start.
        fs::write(dir.path().join("config.toml"), "").expect("written");
        drop(DataDir::open(dir.path()).expect("taken"));
        fs::write(dir.path().join("notes.txt"), "").expect("written");
        drop(DataDir::open(dir.path()).expect("it is a data folder by now"));
        assert_eq!(mode(), 0o700);
    }

    #[test]
    fn newer_data_is_refused_untouched() {
        let dir = tempfile::tempdir().expect("a folder");
        fs::write(dir.path().join(FORMAT_NAME), "2\n").expect("written");
        let error = DataDir::open(dir.path()).expect_err("newer").to_string();
        assert!(error.contains("newer"), "{error}");
        assert_eq!(fs::read_to_string(dir.path().join(FORMAT_NAME)).expect("read"), "2\n");
        assert_eq!(fs::read_dir(dir.path()).expect("a folder").count(), 1, "not even a lock was made");
    }
}
