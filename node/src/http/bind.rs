//! The two listeners, with their modes and ports.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::net::{TcpListener, UnixListener};

use super::DoorError;
use crate::config::ApiAddr;

/// Longest path a Unix socket's address can hold on every system we run on (macOS: 104 with the final zero).
const SOCKET_PATH_LEN_MAX: usize = 103;

/// Permission bits of files that hold secrets: only these may be set.
const PRIVATE_FILE: u32 = 0o600;
/// Permission bits of the data folder.
const PRIVATE_DIR: u32 = 0o700;

/// Makes a folder that only its owner can enter, or makes an existing one so.
///
/// # Errors
/// When it can't be made, is no folder, or belongs to somebody else.
pub fn private_dir(dir: &Path) -> Result<(), DoorError> {
    let file_error = |error| DoorError::File { path: dir.to_owned(), error };
    std::fs::create_dir_all(dir).map_err(file_error)?;
    let meta = std::fs::metadata(dir).map_err(file_error)?;
    own(dir, &meta)?;
    if meta.mode() & 0o777 != PRIVATE_DIR {
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(PRIVATE_DIR)).map_err(file_error)?;
    }
    Ok(())
}

/// Checks that a file of secrets is a plain file of ours that nobody else can open.
///
/// # Errors
/// When it is not.
pub fn private_file(path: &Path) -> Result<(), DoorError> {
    let file_error = |error| DoorError::File { path: path.to_owned(), error };
    let meta = std::fs::symlink_metadata(path).map_err(file_error)?;
    if !meta.is_file() {
        return Err(file_error(io::Error::new(io::ErrorKind::InvalidInput, "not a plain file")));
    }
    own(path, &meta)?;
    let mode = meta.mode() & 0o7777;
    if mode & !PRIVATE_FILE != 0 {
        return Err(DoorError::Open { path: path.to_owned(), mode });
    }
    Ok(())
}

fn own(path: &Path, meta: &std::fs::Metadata) -> Result<(), DoorError> {
    let us = rustix::process::geteuid().as_raw();
    if meta.uid() == us { Ok(()) } else { Err(DoorError::Foreign { path: path.to_owned(), owner: meta.uid(), us }) }
}

/// Binds the Unix socket. One that is there already is a dead node's: the caller holds the data folder's lock.
///
/// # Errors
/// When it can't be bound.
pub fn unix(path: &Path) -> Result<UnixListener, DoorError> {
    let file_error = |error| DoorError::File { path: path.to_owned(), error };
    match std::fs::remove_file(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(file_error(error)),
    }
    let address = SocketPath::of(path).map_err(file_error)?;
    // Between bind and chmod the socket has the umask's mode; the folder, 0700, keeps others out meanwhile.
    let listener = UnixListener::bind(address.path())
        .map_err(|error| DoorError::Bind { at: path.display().to_string(), error })?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(PRIVATE_FILE)).map_err(file_error)?;
    Ok(listener)
}

/// Binds the loopback door. Says whether a default port was busy and another one was taken.
///
/// # Errors
/// When the address was chosen and can't be bound, or no port is free.
pub async fn tcp(api: ApiAddr) -> Result<(TcpListener, bool), DoorError> {
    let bind = async |addr: SocketAddr| {
        TcpListener::bind(addr).await.map_err(|error| DoorError::Bind { at: addr.to_string(), error })
    };
    match bind(api.addr).await {
        Err(DoorError::Bind { error, .. }) if !api.chosen && error.kind() == io::ErrorKind::AddrInUse => {
            Ok((bind(SocketAddr::new(api.addr.ip(), 0)).await?, true))
        }
        bound => Ok((bound?, false)),
    }
}

/// A path as a Unix socket's address. Deep folders make paths that do not fit; where the system lets us, those are
/// reached through their folder's descriptor.
#[derive(Debug)]
pub struct SocketPath {
    path: PathBuf,
    /// Keeps the descriptor that `path` goes through.
    _dir: Option<std::fs::File>,
}

impl SocketPath {
    /// The address of the socket at `path`.
    ///
    /// # Errors
    /// When the path is too long and its folder can't be opened or named by its descriptor.
    pub fn of(path: &Path) -> io::Result<Self> {
        if path.as_os_str().len() <= SOCKET_PATH_LEN_MAX {
            return Ok(Self { path: path.to_owned(), _dir: None });
        }
        let too_long = || io::Error::new(io::ErrorKind::InvalidInput, "path is too long for a Unix socket");
        if !cfg!(target_os = "linux") {
            return Err(too_long());
        }
        let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else { return Err(too_long()) };
        let dir = std::fs::File::open(dir)?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&dir))).join(name);
        Ok(Self { path, _dir: Some(dir) })
    }

    /// What to bind or connect to, while `self` lives.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}
