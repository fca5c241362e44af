//! The transport key on disk: nodes' configurations name the relay by it, so it must survive a restart.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use libp2p::identity::Keypair;

/// Longest key file, in bytes. An Ed25519 key has 68.
const KEY_LEN_MAX: u64 = 1024;

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file or its folder can't be used.
    #[error("key file {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Others can read the file.
    #[error("key file {path} has mode {mode:04o}: others may have read it; chmod 600 it, or remove it for a new key")]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// The file holds no key.
    #[error("key file {path} is damaged; remove it for a new key, which nodes must then be told")]
    Damaged {
        /// The file.
        path: PathBuf,
    },
}

/// Reads the key in `folder`, or makes one.
///
/// # Errors
/// When the file can't be read or written, is damaged, or can be read by others.
pub fn load(folder: &Path) -> Result<Keypair, KeyError> {
    let path = folder.join("key");
    match File::open(&path) {
        Ok(file) => read(file, &path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => make(folder, &path),
        Err(source) => Err(KeyError::Io { path, source }),
    }
}

fn read(file: File, path: &Path) -> Result<Keypair, KeyError> {
    let failed = |source| KeyError::Io { path: path.to_owned(), source };
    let mode = file.metadata().map_err(failed)?.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(KeyError::Exposed { path: path.to_owned(), mode });
    }
    let mut bytes = Vec::new();
    file.take(KEY_LEN_MAX).read_to_end(&mut bytes).map_err(failed)?;
    Keypair::from_protobuf_encoding(&bytes).map_err(|_| KeyError::Damaged { path: path.to_owned() })
}

/// Writes a new key beside its place and moves it there, so that a crash leaves a whole key or none.
fn make(folder: &Path, path: &Path) -> Result<Keypair, KeyError> {
    let failed = |source| KeyError::Io { path: path.to_owned(), source };
    let keypair = Keypair::generate_ed25519();
    let bytes = keypair.to_protobuf_encoding().map_err(|error| failed(io::Error::other(error)))?;
    let fresh = folder.join("key.new");
    let write = || {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        // What an earlier crash left.
        match fs::remove_file(&fresh) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        fs::rename(&fresh, path)?;
        File::open(folder)?.sync_all()
    };
    write().map_err(failed)?;
    Ok(keypair)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_survives_and_only_its_owner_reads_it() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("new");
        let first = load(&folder).unwrap();
        let again = load(&folder).unwrap();
        assert_eq!(first.public(), again.public());
        let mode = fs::metadata(folder.join("key")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
    }

    #[test]
    fn threat_l5_a_key_that_others_can_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        load(folder.path()).unwrap();
        let path = folder.path().join("key");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let error = load(folder.path()).unwrap_err();
        assert!(matches!(error, KeyError::Exposed { mode: 0o644, .. }), "{error}");
    }

    #[test]
    fn a_damaged_key_is_not_replaced_by_another() {
        let folder = tempfile::tempdir().unwrap();
        load(folder.path()).unwrap();
        let path = folder.path().join("key");
        fs::write(&path, b"rubbish").unwrap();
        assert!(matches!(load(folder.path()), Err(KeyError::Damaged { .. })));
        assert_eq!(fs::read(&path).unwrap(), b"rubbish");
    }
}
