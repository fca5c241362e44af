//! The record layer under every stream of a link: `u16 length ‖ ciphertext`, big-endian.
//!
//! A record's ciphertext is at most 65,535 bytes, 16 of them the tag. Both directions have a key and a counter of their
//! own, which rises by one a record, so records cannot be dropped, repeated, swapped or reflected unseen. A record
//! without plaintext is a *rekey*: both ends replace the direction's key by the next one (Noise §4.2), the counter goes
//! on. What is inside records has its own frames and says itself where it ends.

use super::aead::{Key, TAG_LEN};

/// Most ciphertext in a record, in bytes: what its length prefix can say.
pub const RECORD_LEN_MAX: usize = u16::MAX as usize;

/// Most plaintext in a record, in bytes.
pub const RECORD_TEXT_MAX: usize = RECORD_LEN_MAX - TAG_LEN;

/// Bytes of a record's length prefix.
pub const RECORD_PREFIX_LEN: usize = 2;

/// Plaintext sealed under one key before a rekey is due, in bytes: 1 GiB (design §12).
pub const REKEY_AFTER_BYTES: u64 = 1 << 30;

/// Why a record could not be sealed or was refused. Either ends the stream it is on, and no other.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The length can't be that of a record.
    #[error("a record of {len} bytes is not between {TAG_LEN} and {RECORD_LEN_MAX}")]
    Length {
        /// Its length, without prefix.
        len: usize,
    },
    /// Not sealed by the far side, or not the record that is next.
    #[error("record {counter} is forged, damaged or out of order")]
    Forged {
        /// The record that was expected, from 0.
        counter: u64,
    },
    /// The direction's counter is used up.
    #[error("the stream has carried all the records it can")]
    Exhausted,
}

/// Seals one direction.
pub struct Sealer {
    key: Key,
    counter: u64,
    bytes: u64,
}

/// Opens one direction.
pub struct Opener {
    key: Key,
    counter: u64,
    /// The start of a record whose end has not come yet: at most a prefix and [`RECORD_LEN_MAX`] bytes.
    partial: Vec<u8>,
    failed: Option<RecordError>,
}

impl Sealer {
    pub(super) fn new(key: &[u8; 32]) -> Self {
        Self { key: Key::new(key), counter: 0, bytes: 0 }
    }

    /// Appends `plain` to `out` as records, prefixes included. Nothing is appended for nothing.
    ///
    /// # Errors
    /// [`RecordError::Exhausted`] after 2⁶⁴ − 1 records; `out` may then end with whole records of `plain`.
    pub fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), RecordError> {
        let records = plain.len().div_ceil(RECORD_TEXT_MAX);
        out.reserve(plain.len() + records * (RECORD_PREFIX_LEN + TAG_LEN));
        plain.chunks(RECORD_TEXT_MAX).try_for_each(|chunk| self.seal_one(chunk, out))
    }

    /// Whether so much went under this key that [`Sealer::rekey`] is due. Time, too, makes it due: every hour.
    #[must_use]
    pub const fn needs_rekey(&self) -> bool {
        self.bytes >= REKEY_AFTER_BYTES
    }

    /// Appends a rekey record to `out` and goes on under the next key.
    ///
    /// # Errors
    /// As [`Sealer::seal`].
    pub fn rekey(&mut self, out: &mut Vec<u8>) -> Result<(), RecordError> {
        self.seal_one(&[], out)?;
        self.key = self.key.next();
        self.bytes = 0;
        Ok(())
    }

    fn seal_one(&mut self, text: &[u8], out: &mut Vec<u8>) -> Result<(), RecordError> {
        // The last counter is the rekey's own.
        if self.counter == u64::MAX {
            return Err(RecordError::Exhausted);
        }
        let len = text.len() + TAG_LEN;
        let prefix = u16::try_from(len).map_err(|_| RecordError::Length { len })?;
        out.extend_from_slice(&prefix.to_be_bytes());
        let start = out.len();
        out.extend_from_slice(text);
        let sealed = out.get_mut(start..).and_then(|text| self.key.seal(self.counter, &[], text));
        let tag = sealed.ok_or(RecordError::Length { len })?;
        out.extend_from_slice(&tag);
        self.counter += 1;
        self.bytes = self.bytes.saturating_add(text.len() as u64);
        Ok(())
    }
}

impl Opener {
    pub(super) fn new(key: &[u8; 32]) -> Self {
        Self { key: Key::new(key), counter: 0, partial: Vec::new(), failed: None }
    }

    /// Opens one record, given without its prefix, and appends its plaintext to `out`. A rekey appends nothing.
    ///
    /// # Errors
    /// When the record is too short or long, or not the one that is next. Then neither `out` nor the counter has
    /// changed: the right record would still open.
    pub fn open(&mut self, record: &[u8], out: &mut Vec<u8>) -> Result<(), RecordError> {
        if !(TAG_LEN..=RECORD_LEN_MAX).contains(&record.len()) {
            return Err(RecordError::Length { len: record.len() });
        }
        if self.counter == u64::MAX {
            return Err(RecordError::Exhausted);
        }
        let start = out.len();
        out.extend_from_slice(record);
        let opened = out.get_mut(start..).and_then(|text| self.key.open(self.counter, &[], text).ok());
        // What failed to open is rubbish made from the key stream: it must not be seen.
        out.truncate(start + opened.unwrap_or(0));
        let len = opened.ok_or(RecordError::Forged { counter: self.counter })?;
        self.counter += 1;
        if len == 0 {
            self.key = self.key.next();
        }
        Ok(())
    }

    /// Takes bytes as they come off the stream, cut anywhere, and appends to `out` the plaintext of all records that
    /// are complete.
    ///
    /// # Errors
    /// As [`Opener::open`]. `out` then ends with what was before the bad record, and all later calls fail likewise.
    pub fn feed(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> Result<(), RecordError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let fed = self.feed_unfailed(&mut bytes, out);
        if let Err(error) = fed {
            self.failed = Some(error);
            self.partial = Vec::new();
        }
        fed
    }

    fn feed_unfailed(&mut self, bytes: &mut &[u8], out: &mut Vec<u8>) -> Result<(), RecordError> {
        while !self.partial.is_empty() {
            let wanted = missing(&self.partial)?;
            let (more, rest) = bytes.split_at(wanted.min(bytes.len()));
            self.partial.extend_from_slice(more);
            *bytes = rest;
            if missing(&self.partial)? > 0 {
                if bytes.is_empty() {
                    return Ok(());
                }
                continue;
            }
            let record = std::mem::take(&mut self.partial);
            self.open(record.get(RECORD_PREFIX_LEN..).unwrap_or_default(), out)?;
            self.partial = record;
            self.partial.clear();
        }
        while missing(bytes)? == 0 {
            let (record, rest) = split(bytes);
            *bytes = rest;
            self.open(record, out)?;
        }
        self.partial.extend_from_slice(bytes);
        Ok(())
    }
}

/// How many bytes a record that begins with `bytes` lacks, as far as can be said yet.
fn missing(bytes: &[u8]) -> Result<usize, RecordError> {
    let Some((prefix, rest)) = bytes.split_first_chunk::<RECORD_PREFIX_LEN>() else {
        return Ok(RECORD_PREFIX_LEN - bytes.len());
    };
    let len = usize::from(u16::from_be_bytes(*prefix));
    // Refused before its bytes are waited for.
    if len < TAG_LEN { Err(RecordError::Length { len }) } else { Ok(len.saturating_sub(rest.len())) }
}

/// The first record of `bytes`, without prefix, and what follows it.
fn split(bytes: &[u8]) -> (&[u8], &[u8]) {
    let Some((prefix, rest)) = bytes.split_first_chunk::<RECORD_PREFIX_LEN>() else {
        return (&[], bytes);
    };
    rest.split_at(usize::from(u16::from_be_bytes(*prefix)).min(rest.len()))
}

#[cfg(test)]
mod tests;
