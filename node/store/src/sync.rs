//! Syncing: once failed, always failed; several files at once.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use super::commit::Reason;
use super::disk::DiskFile;

/// Threads that sync at once. More dirty files than that in one drain wait their turn: the disk is one.
const SYNCS_AT_ONCE_MAX: usize = 8;

/// A file or folder whose failed sync is never forgotten.
///
/// The kernel reports a failure to the first who asks and calls the pages clean: a second sync would succeed without
/// the bytes being on disk. The lock also keeps two threads from racing for that one report.
#[derive(Debug)]
pub struct SyncFile {
    file: Arc<dyn DiskFile>,
    failed: Mutex<Option<Reason>>,
}

impl SyncFile {
    /// Of an open file or folder.
    #[must_use]
    pub const fn new(file: Arc<dyn DiskFile>) -> Self {
        Self { file, failed: Mutex::new(None) }
    }

    /// The file.
    #[must_use]
    pub fn file(&self) -> &Arc<dyn DiskFile> {
        &self.file
    }

    /// Syncs.
    ///
    /// # Errors
    /// When this sync or any earlier one failed.
    pub fn sync(&self) -> Result<(), Reason> {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(reason) = &*failed {
            return Err(reason.clone());
        }
        let done = self.file.sync().map_err(|error: io::Error| Reason::sync(&error));
        done.inspect_err(|reason| *failed = Some(reason.clone()))
    }
}

/// What is synced together: a file, then the folders that hold its name.
#[derive(Clone, Debug)]
pub struct SyncJob<K> {
    /// Whose it is.
    pub key: K,
    /// In order.
    pub files: Vec<Arc<SyncFile>>,
}

impl<K> SyncJob<K> {
    fn run(&self) -> Result<(), Reason> {
        self.files.iter().try_for_each(|file| file.sync())
    }
}

/// Runs jobs, in parallel when there are several, and gives their results in order.
#[must_use]
pub fn sync_all<K: Send + Sync>(jobs: &[SyncJob<K>]) -> Vec<Result<(), Reason>> {
    let threads = jobs.len().min(SYNCS_AT_ONCE_MAX);
    if threads <= 1 {
        return jobs.iter().map(SyncJob::run).collect();
    }
    // Each thread takes every n-th job; this thread is one of them.
    let share = |nth: usize| jobs.iter().enumerate().skip(nth).step_by(threads).map(|(i, job)| (i, job.run()));
    let mut results = vec![Err(Reason::WriterStopped); jobs.len()];
    let mut fill = |done: Vec<(usize, Result<(), Reason>)>| {
        for (index, result) in done {
            if let Some(slot) = results.get_mut(index) {
                *slot = result;
            }
        }
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads)
            .map(|nth| {
                let named = std::thread::Builder::new().name("tieline-sync".to_owned());
                named.spawn_scoped(scope, move || share(nth).collect::<Vec<_>>()).map_err(|_| nth)
            })
            .collect();
        fill(share(0).collect());
        for other in others {
            match other {
                Ok(thread) => fill(thread.join().unwrap_or_default()),
                // The box has no thread to spare: do its share here.
                Err(nth) => fill(share(nth).collect()),
            }
        }
    });
    results
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::disk::{Disk, Open};
    use crate::fault::{Call, FaultDisk};

    #[test]
    fn threat_a8_a_failed_sync_is_never_retried_as_success() {
        let disk = FaultDisk::new(Path::new("/"));
        let file = SyncFile::new(disk.open(Path::new("/f"), Open::New).unwrap());
        disk.fail(Call::Sync, "/f", io::ErrorKind::Other, 0, 1);
        assert!(matches!(file.sync(), Err(Reason::Sync(_))));
        disk.heal();
        assert!(file.file().sync().is_ok(), "the disk itself would say yes");
        assert!(matches!(file.sync(), Err(Reason::Sync(_))));
    }

    #[test]
    fn every_file_gets_its_own_result() {
        let disk = FaultDisk::new(Path::new("/"));
        let jobs: Vec<_> = (0..20)
            .map(|key| {
                let path = PathBuf::from(format!("/{key}."));
                SyncJob { key, files: vec![Arc::new(SyncFile::new(disk.open(&path, Open::New).unwrap()))] }
            })
            .collect();
        disk.fail(Call::Sync, "/7.", io::ErrorKind::Other, 0, 1);
        let results = sync_all(&jobs);
        assert_eq!(results.len(), 20);
        assert!(results.iter().enumerate().all(|(key, result)| result.is_err() == (key == 7)));
        assert_eq!(disk.syncs(), 19);
    }
}
