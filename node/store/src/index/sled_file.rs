//! The index's file: sled, kept on a short lead.
//!
//! sled 0.34 has lost and refused stores after abrupt stops, and it can panic on damaged ones. So everything here is
//! checked, caught, and at worst thrown away.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use super::Found;

/// Pages kept in memory, in bytes: look-ups are rare, and the idle node is to stay small.
const CACHE_LEN: u64 = 4 * 1024 * 1024;

/// Under which the layout's version is kept.
const VERSION_KEY: &[u8] = b"version";

/// Version of keys and values; another one is thrown away and made anew.
const VERSION: &[u8] = b"1";

/// The file.
#[derive(Debug)]
pub(super) struct SledFile(sled::Db);

impl SledFile {
    /// Opens it or makes it; puts a damaged one aside.
    pub(super) fn open(folder: &Path) -> Result<(Self, Found), String> {
        let existed = folder.exists();
        match Self::try_open(folder) {
            Ok(file) => Ok((file, if existed { Found::Intact } else { Found::New })),
            Err(why) if existed => {
                let aside = aside(folder).map_err(|error| format!("{why}; and putting it aside failed: {error}"))?;
                tracing::warn!(%why, aside = %aside.display(), "the index is damaged and is made anew from the logs");
                Ok((Self::try_open(folder)?, Found::Damaged(why)))
            }
            Err(why) => Err(why),
        }
    }

    fn try_open(folder: &Path) -> Result<Self, String> {
        remove_half_snapshots(folder).map_err(|error| error.to_string())?;
        guarded(|| {
            let config = sled::Config::new().path(folder).cache_capacity(CACHE_LEN).flush_every_ms(None);
            let db = config.open()?;
            match db.get(VERSION_KEY)? {
                Some(version) if version == VERSION => {}
                None if db.is_empty() => drop(db.insert(VERSION_KEY, VERSION)?),
                found => {
                    let text = format!("index version {found:?} is not {VERSION:?}");
                    return Err(sled::Error::Unsupported(text));
                }
            }
            // Reading the far end shows damage now that would else show in mid-flight.
            db.iter().next_back().transpose()?;
            Ok(Self(db))
        })
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        match guarded(|| self.0.get(key)) {
            Ok(value) => value.map(|value| value.to_vec()),
            Err(why) => {
                tracing::warn!(%why, "the index could not be read");
                None
            }
        }
    }

    pub(super) fn apply(&self, changes: &[(Vec<u8>, Vec<u8>)]) -> Result<(), String> {
        // Sorted, so that neighbours meet one page one after the other; the last value of a key counts.
        let last: BTreeMap<_, _> = changes.iter().map(|(key, value)| (key.as_slice(), value.as_slice())).collect();
        let mut batch = sled::Batch::default();
        for (key, value) in last {
            batch.insert(key, value);
        }
        guarded(|| self.0.apply_batch(batch))
    }

    pub(super) fn flush(&self) {
        if let Err(why) = guarded(|| self.0.flush()) {
            tracing::warn!(%why, "the index could not be flushed");
        }
    }
}

/// Calls sled; a panic in it is an error.
fn guarded<T>(call: impl FnOnce() -> sled::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("sled panicked".to_owned()),
    }
}

/// Removes snapshots that an abrupt stop left half written: sled takes them for real ones.
fn remove_half_snapshots(folder: &Path) -> io::Result<()> {
    if !folder.exists() {
        return Ok(());
    }
    for item in fs::read_dir(folder)? {
        let item = item?;
        let name = item.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("snap.") && name.ends_with(".generating") {
            fs::remove_file(item.path())?;
        }
    }
    Ok(())
}

/// Renames the folder to `<folder>.damaged`, in place of an earlier one.
fn aside(folder: &Path) -> io::Result<PathBuf> {
    let mut name = folder.as_os_str().to_owned();
    name.push(".damaged");
    let aside = PathBuf::from(name);
    match fs::remove_dir_all(&aside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::rename(folder, &aside)?;
    Ok(aside)
}
