//! Journals: lines without seals. A run's journal is hashed as a whole; the resident's own journal is a hash chain.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::line;
use super::{LINE_LEN_MAX, LineError};
use crate::id::Hash;

/// Hash, length and number of lines of a run's journal, kept while it grows, so that the end costs nothing.
#[derive(Clone, Debug, Default)]
pub struct JournalHash {
    hasher: blake3::Hasher,
    len: u64,
    lines: u64,
}

impl JournalHash {
    /// Of an empty journal.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in bytes that were appended, LFs included.
    pub fn update(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        self.len += bytes.len() as u64;
        self.lines += bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
    }

    /// Bytes so far.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are no bytes yet.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whole lines so far: the index of the next event.
    #[must_use]
    pub const fn lines(&self) -> u64 {
        self.lines
    }

    /// BLAKE3 of the bytes so far.
    #[must_use]
    pub fn hash(&self) -> Hash {
        Hash(*self.hasher.finalize().as_bytes())
    }
}

/// Why a chained record is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChainError {
    /// The record does not continue the one before it.
    #[error("record {index} does not continue the one before it")]
    Broken {
        /// Its place, from 0.
        index: u64,
    },
    /// The record can't be read.
    #[error("record {index}: {error}")]
    Line {
        /// Its place, from 0.
        index: u64,
        /// Why.
        error: LineError,
    },
    /// The record would be too long.
    #[error("record of {len} bytes exceeds the {LINE_LEN_MAX}-byte limit")]
    TooLong {
        /// Its length.
        len: usize,
    },
}

/// A chain of records, each of which names the hash of the line before it: `{"prev":"…",…}`, the record's fields after
/// it.
///
/// The head and the count prove to others that a journal is the same one, continued.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Chain {
    /// Hash of the last line; [`Hash::ZERO`] before the first.
    pub head: Hash,
    /// Lines so far.
    pub count: u64,
}

#[derive(Deserialize, Serialize)]
struct Chained<T> {
    prev: Hash,
    #[serde(flatten)]
    record: T,
}

impl Chain {
    /// Appends a record's line and LF to `out`.
    ///
    /// # Errors
    /// When the record can't be written as a line; `out` is then as before.
    pub fn append<T: Serialize>(&mut self, record: &T, out: &mut Vec<u8>) -> Result<(), ChainError> {
        let start = out.len();
        let written = line::write(&Chained { prev: self.head, record }, out);
        let bytes = out.get(start..).unwrap_or_default();
        let (len, hash) = (bytes.len(), Hash::of(bytes));
        let refused = match written {
            Err(error) => Some(ChainError::Line { index: self.count, error: error.into() }),
            Ok(()) if len > LINE_LEN_MAX => Some(ChainError::TooLong { len }),
            Ok(()) => None,
        };
        if let Some(error) = refused {
            out.truncate(start);
            return Err(error);
        }
        out.push(b'\n');
        *self = Self { head: hash, count: self.count + 1 };
        Ok(())
    }

    /// Reads the next line, given without LF.
    ///
    /// # Errors
    /// When it is unreadable or does not continue the chain; the chain then stays where it was.
    pub fn read<T: DeserializeOwned>(&mut self, line: &[u8]) -> Result<T, ChainError> {
        let index = self.count;
        if line.len() > LINE_LEN_MAX {
            return Err(ChainError::TooLong { len: line.len() });
        }
        let Chained { prev, record } =
            serde_json::from_slice(line).map_err(|error| ChainError::Line { index, error: error.into() })?;
        if prev != self.head {
            return Err(ChainError::Broken { index });
        }
        *self = Self { head: Hash::of(line), count: self.count + 1 };
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journals_hash_does_not_depend_on_how_it_was_cut() {
        let bytes = b"{\"type\":\"text\"}\n{\"type\":\"text\"}\n";
        let mut whole = JournalHash::new();
        whole.update(bytes);
        let mut pieces = JournalHash::new();
        bytes.chunks(5).for_each(|piece| pieces.update(piece));
        assert_eq!(whole.hash(), pieces.hash());
        assert_eq!(whole.hash(), Hash::of(bytes));
        assert_eq!((pieces.len(), pieces.lines()), (bytes.len() as u64, 2));
    }

    #[derive(Deserialize, Serialize)]
    struct Said {
        text: String,
    }

    #[test]
    fn a_chain_refuses_a_record_that_was_changed_dropped_or_swapped() {
        let mut out = Vec::new();
        let mut chain = Chain::default();
        for text in ["a", "b", "c"] {
            chain.append(&Said { text: text.to_owned() }, &mut out).unwrap();
        }
        let lines: Vec<_> = line::split(&out).collect();
        let mut read = Chain::default();
        for line in &lines {
            read.read::<Said>(line).unwrap();
        }
        assert_eq!(read, chain);
        let mut dropped = Chain::default();
        dropped.read::<Said>(lines[0]).unwrap();
        assert!(matches!(dropped.read::<Said>(lines[2]), Err(ChainError::Broken { index: 1 })));
        let changed = String::from_utf8(lines[1].to_vec()).unwrap().replace("\"b\"", "\"x\"");
        dropped.read::<Said>(changed.as_bytes()).unwrap();
        assert!(dropped.read::<Said>(lines[2]).is_err());
    }
}
