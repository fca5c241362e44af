//! Secrets on disk: one file each, readable by their owner alone, or not read at all.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

/// Longest key file.
const KEY_LEN_MAX: u64 = 4096;

/// Why a key file is not used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyFileError {
    /// Others could have read it.
    #[error("{path} has mode {mode:04o}: others can read this key; if they cannot have, chmod 600 {path}", path = .path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// It is not a plain file of a sound length.
    #[error("{path} is not a key file", path = .path.display())]
    NotKey {
        /// The file.
        path: PathBuf,
    },
    /// The disk.
    #[error("{path}: {error}", path = .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
}

/// Reads a key; `None` when there is none yet.
///
/// # Errors
/// When others can read the file, and as the operating system says.
pub fn read(path: &Path) -> Result<Option<Zeroizing<Vec<u8>>>, KeyFileError> {
    let failed = |error| KeyFileError::Io { path: path.to_owned(), error };
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let meta = file.metadata().map_err(failed)?;
    if !meta.is_file() || meta.len() > KEY_LEN_MAX {
        return Err(KeyFileError::NotKey { path: path.to_owned() });
    }
    let mode = meta.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(KeyFileError::Open { path: path.to_owned(), mode });
    }
    let mut bytes = Zeroizing::new(Vec::new());
    file.read_to_end(&mut bytes).map_err(failed)?;
    Ok(Some(bytes))
}

/// Writes a key or another private file, whole or not at all, durably: beside it, synced, renamed. The old one stays
/// whole until then.
///
/// # Errors
/// As the operating system says.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    // Two commands may write the same file at once; each has its own beside it.
    let mut beside = OsString::from(".");
    beside.push(name);
    beside.push(format!(".{}", std::process::id()));
    let beside = folder.join(beside);
    let written = (|| {
        match fs::remove_file(&beside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&beside, path)?;
        File::open(folder)?.sync_all()
    })();
    if written.is_err() {
        let _left = fs::remove_file(&beside);
    }
    written
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn threat_l5_a_key_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("keys").join("device");
        write(&path, b"secret").expect("written");
        assert_eq!(read(&path).expect("read").as_deref().map(Vec::as_slice), Some(b"secret".as_slice()));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("chmod");
        let error = read(&path).expect_err("refused").to_string();
        assert!(error.contains("0644") && error.contains("chmod 600"), "{error}");
        assert!(read(&dir.path().join("none")).expect("no key is no error").is_none());
    }

    #[test]
    fn writing_replaces_whole_files_and_leaves_nothing_beside_them() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("ports.json");
        for content in ["old", "new and longer"] {
            write(&path, content.as_bytes()).expect("written");
            assert_eq!(fs::read_to_string(&path).expect("read"), content);
        }
        write(&dir.path().join("ports"), b"another").expect("written");
        fs::create_dir(dir.path().join("folder")).expect("made");
        write(&dir.path().join("folder"), b"x").expect_err("a folder is in its place");
        assert_eq!(fs::read_dir(dir.path()).expect("there").count(), 3);
    }
}
