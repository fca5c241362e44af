//! The ready file: tells scripts that the relay answers, and where.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use libp2p::Multiaddr;
use serde_json::json;

/// A ready file; removed when dropped.
#[derive(Debug)]
pub struct ReadyFile {
    path: PathBuf,
    written: bool,
}

impl ReadyFile {
    /// A ready file that is not written yet. One that an earlier run left is removed: it would lie.
    ///
    /// # Errors
    /// When that can't be done.
    pub fn new(path: &Path) -> io::Result<Self> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(Self { path: path.to_owned(), written: false }),
        }
    }

    /// Writes it, at once and whole.
    ///
    /// # Errors
    /// When the file can't be written.
    pub fn write(&mut self, addrs: &[Multiaddr]) -> io::Result<()> {
        let content = json!({
            "addrs": addrs,
            "pid": std::process::id(),
            "version": env!("CARGO_PKG_VERSION"),
        });
        let mut name = self.path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}", std::process::id()));
        let beside = self.path.with_file_name(name);
        // What stands there under our number is a dead run's, or a link that somebody put into a shared folder.
        if let Err(error) = fs::remove_file(&beside)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        let mut file = OpenOptions::new().write(true).create_new(true).open(&beside)?;
        file.write_all(content.to_string().as_bytes())?;
        file.write_all(b"\n")?;
        fs::rename(&beside, &self.path)?;
        self.written = true;
        Ok(())
    }
}

impl Drop for ReadyFile {
    fn drop(&mut self) {
        if self.written {
            // Somebody else may have removed it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_there_while_the_relay_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ready.json");
        fs::write(&path, "stale").unwrap();
        let mut ready = ReadyFile::new(&path).unwrap();
        assert!(!path.exists(), "what an earlier run left is gone");
        ready.write(&["/ip4/127.0.0.1/tcp/1".parse().unwrap()]).unwrap();
        let content: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        assert_eq!(content["addrs"][0], "/ip4/127.0.0.1/tcp/1");
        assert_eq!(content["pid"], std::process::id());
        assert!(content["version"].is_string());
        drop(ready);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_link_that_stands_in_the_way_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, precious) = (folder.path().join("ready.json"), folder.path().join("precious"));
        fs::write(&precious, "precious").unwrap();
        let beside = folder.path().join(format!("ready.json.{}", std::process::id()));
        std::os::unix::fs::symlink(&precious, beside).unwrap();
        let mut ready = ReadyFile::new(&path).unwrap();
        ready.write(&[]).unwrap();
        assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
        assert!(path.is_file() && !path.is_symlink());
    }
}
