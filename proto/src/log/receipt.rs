//! Receipts: what a poster keeps to prove that its entry was saved.
//!
//! base64url without padding of: version 1 (1 byte) ‖ seq (8) ‖ number of hashes (2) ‖ the hashes (32 each) ‖ the
//! seal's exact line. Integers are big-endian. A log that lacks the entry contradicts the receipt; see
//! [`Proof::covers`].

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::line::{Line, LineError};
use super::{BATCH_ENTRIES_MAX, batch_hash};
use crate::crypto::sign::SignError;
use crate::id::{ChannelId, DeviceId, Epoch, Hash, Seq};

/// The only version of receipts.
const VERSION: u8 = 1;

/// Longest receipt text that is read: 512 hashes and a seal line of 1 KiB, in base64.
pub const RECEIPT_LEN_MAX: usize = 24 * 1024;

/// What a receipt proves: `home` saved, as entry `seq` of the log, the line that hashes to `line`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Proof {
    /// The log, as [`LogId::sealed_as`](super::LogId::sealed_as) names it.
    pub log: ChannelId,
    /// The entry.
    pub seq: Seq,
    /// The home epoch.
    pub epoch: Epoch,
    /// Who sealed it. Whether that was the home is for [`Homes`](super::Homes) to say.
    pub home: DeviceId,
    /// Hash of the entry's line.
    pub line: Hash,
}

impl Proof {
    /// Whether this is the line that was saved, given without LF.
    #[must_use]
    pub fn covers(&self, line: &[u8]) -> bool {
        Hash::of(line) == self.line
    }
}

/// Why a receipt proves nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiptError {
    /// The text is no receipt.
    #[error("this is not a receipt")]
    Malformed,
    /// A newer version made it.
    #[error("receipt version {0} is not known here")]
    Version(u8),
    /// The seal can't be read.
    #[error("the receipt's seal cannot be read: {0}")]
    Seal(#[from] LineError),
    /// The seal's signature is wrong.
    #[error("the receipt's seal is bad: {0}")]
    Signature(#[from] SignError),
    /// The seal is not of the listed lines, or the entry is not among them.
    #[error("the receipt's seal does not cover entry {0}")]
    NotCovered(Seq),
}

/// Makes the receipt for one entry of a batch. `seal` is the seal's line without LF.
#[must_use]
pub fn receipt(seq: Seq, hashes: &[Hash], seal: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(11 + 32 * hashes.len() + seal.len());
    bytes.push(VERSION);
    bytes.extend_from_slice(&seq.0.to_be_bytes());
    // A batch has at most BATCH_ENTRIES_MAX lines; more would make a receipt that nobody accepts.
    bytes.extend_from_slice(&u16::try_from(hashes.len()).unwrap_or(u16::MAX).to_be_bytes());
    for hash in hashes {
        bytes.extend_from_slice(hash.as_bytes());
    }
    bytes.extend_from_slice(seal);
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Reads a receipt and checks all that it says of itself.
///
/// # Errors
/// Why it proves nothing.
pub fn verify_receipt(text: &str) -> Result<Proof, ReceiptError> {
    if text.len() > RECEIPT_LEN_MAX {
        return Err(ReceiptError::Malformed);
    }
    let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| ReceiptError::Malformed)?;
    let (version, rest) = bytes.split_first().ok_or(ReceiptError::Malformed)?;
    if *version != VERSION {
        return Err(ReceiptError::Version(*version));
    }
    let (seq, rest) = rest.split_first_chunk::<8>().ok_or(ReceiptError::Malformed)?;
    let (count, rest) = rest.split_first_chunk::<2>().ok_or(ReceiptError::Malformed)?;
    let (seq, count) = (Seq(u64::from_be_bytes(*seq)), usize::from(u16::from_be_bytes(*count)));
    if count == 0 || count > BATCH_ENTRIES_MAX {
        return Err(ReceiptError::Malformed);
    }
    let (list, line) = rest.split_at_checked(count * Hash::LEN).ok_or(ReceiptError::Malformed)?;
    let (chunks, _) = list.as_chunks::<{ Hash::LEN }>();
    let hashes: Vec<Hash> = chunks.iter().copied().map(Hash).collect();
    let Line::Seal(seal) = Line::parse(line)? else { return Err(ReceiptError::Malformed) };
    seal.check_signature()?;
    let says = seal.seal;
    let index = seq.0.checked_sub(says.from.0).and_then(|index| usize::try_from(index).ok());
    let span = says.to.0.checked_sub(says.from.0).and_then(|span| span.checked_add(1));
    match index.and_then(|index| hashes.get(index)) {
        // A seal whose head is not its last line can stand in no log.
        Some(line)
            if span == Some(count as u64) && batch_hash(&hashes) == says.batch && hashes.last() == Some(&says.head) =>
        {
            Ok(Proof { log: says.log, seq, epoch: says.epoch, home: seal.by, line: *line })
        }
        _ => Err(ReceiptError::NotCovered(seq)),
    }
}
