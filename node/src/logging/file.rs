//! A log file that is rotated by size.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Length at which the file is put aside, in bytes.
pub const FILE_LEN_MAX: u64 = 8 * 1024 * 1024;

/// Files kept, the current one included: 40 MiB, weeks at the usual level.
pub const FILES_MAX: u32 = 5;

/// The current file and its elders `NAME.1` (the youngest) to `NAME.N`.
#[derive(Debug)]
pub struct RotatingFile {
    path: PathBuf,
    file: File,
    len: u64,
    len_max: u64,
    files_max: u32,
}

impl RotatingFile {
    /// Opens the file and goes on at its end.
    ///
    /// # Errors
    /// When it can't be opened.
    pub fn open(path: &Path, len_max: u64, files_max: u32) -> io::Result<Self> {
        let file = append(path)?;
        let len = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), file, len, len_max, files_max })
    }

    /// Writes one record whole, into one file.
    ///
    /// # Errors
    /// When it can't be written; the next one is tried again.
    pub fn write_record(&mut self, record: &[u8]) -> io::Result<()> {
        if self.len > 0 && self.len + record.len() as u64 > self.len_max {
            self.rotate()?;
        }
        self.file.write_all(record)?;
        self.len += record.len() as u64;
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        for age in (1..self.files_max).rev() {
            let younger = if age == 1 { self.path.clone() } else { aged(&self.path, age - 1) };
            match std::fs::rename(younger, aged(&self.path, age)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        self.file = append(&self.path)?;
        self.len = 0;
        Ok(())
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

/// The name of a file put aside `age` rotations ago.
fn aged(path: &Path, age: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{age}"));
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_o11_the_log_is_rotated_and_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = RotatingFile::open(&path, 20, 3).unwrap();
        for n in 0..11 {
            log.write_record(format!("record {n}\n").as_bytes()).unwrap();
        }
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!(read("log"), "record 10\n");
        assert_eq!(read("log.1"), "record 8\nrecord 9\n");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3);

        drop(log);
        let mut log = RotatingFile::open(&path, 20, 3).unwrap();
        log.write_record(b"again\n").unwrap();
        assert_eq!(read("log"), "record 10\nagain\n", "an old file is gone on with");
    }

    #[test]
    fn a_record_over_the_limit_is_kept_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = RotatingFile::open(&path, 4, 2).unwrap();
        log.write_record(b"longer than four\n").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"longer than four\n");
    }
}
