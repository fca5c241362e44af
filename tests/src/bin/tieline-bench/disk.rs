//! What a durable append costs on this disk at least: 4 KiB into a preallocated file, then `fdatasync`.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use super::Failure;
use super::report::Times;

/// Bytes of one append: what our own log writes at least, a block.
const BLOCK_LEN: usize = 4096;

/// Bytes that are preallocated, as written zeros; the file is written round and round.
const FILE_LEN: u64 = 32 << 20;

/// Appends for `time` and gives how long each took.
///
/// # Errors
/// When the disk refuses.
pub fn appends(folder: &Path, time: Duration) -> Result<Times, Failure> {
    let path = folder.join("preallocated");
    let file = File::options().create(true).truncate(true).write(true).open(&path)?;
    let zeros = vec![0; 1 << 20];
    for at in (0..FILE_LEN).step_by(zeros.len()) {
        file.write_all_at(&zeros, at)?;
    }
    file.sync_all()?;
    let block = [b'x'; BLOCK_LEN];
    let mut times = Times::default();
    let began = Instant::now();
    let mut at = 0;
    while began.elapsed() < time {
        let started = Instant::now();
        file.write_all_at(&block, at)?;
        file.sync_data()?;
        times.push(started.elapsed());
        at = (at + BLOCK_LEN as u64) % FILE_LEN;
    }
    std::fs::remove_file(path)?;
    Ok(times)
}
