//! How secrets are written to key files: kind 4 ‖ secrets 32 each ‖ check 4.

use rand_core::CryptoRng;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::kdf;

/// Bytes of the kind that begins a key file.
pub(super) const KIND_LEN: usize = 4;
/// Bytes of the check that ends a key file.
pub(super) const CHECK_LEN: usize = 4;

/// Why bytes are not a secret key.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The length is wrong.
    #[error("a secret key of this kind has {expected} bytes, not {len}")]
    Length {
        /// What was given.
        len: usize,
        /// What is needed.
        expected: usize,
    },
    /// The first bytes name another kind of key or a newer version.
    #[error("the bytes are no secret key of this kind and version")]
    Kind,
    /// The check does not fit: the file is damaged, and a device with other keys would be somebody else.
    #[error("the secret key is damaged")]
    Damaged,
}

/// Draws 32 random bytes.
pub(super) fn draw(rng: &mut (impl CryptoRng + ?Sized)) -> Zeroizing<[u8; 32]> {
    let mut seed = Zeroizing::new([0; 32]);
    rng.fill_bytes(&mut *seed);
    seed
}

/// Bytes of a file with `secrets` secrets of 32 bytes and `extra` others.
pub(super) const fn packed_len(secrets: usize, extra: usize) -> usize {
    KIND_LEN + 32 * secrets + extra + CHECK_LEN
}

pub(super) fn pack(kind: &[u8; KIND_LEN], parts: &[&[u8]]) -> Zeroizing<Vec<u8>> {
    // Sized ahead: a growing vector would leave copies of the secrets behind.
    let len = KIND_LEN + parts.iter().map(|part| part.len()).sum::<usize>() + CHECK_LEN;
    let mut out = Zeroizing::new(Vec::with_capacity(len));
    out.extend_from_slice(kind);
    for part in parts {
        out.extend_from_slice(part);
    }
    let check = check(&out);
    out.extend_from_slice(&check);
    out
}

pub(super) fn unpack<'a>(kind: &[u8; KIND_LEN], bytes: &'a [u8], expected: usize) -> Result<&'a [u8], KeyError> {
    if bytes.len() != expected {
        return Err(KeyError::Length { len: bytes.len(), expected });
    }
    let (body, found) = bytes.split_last_chunk::<CHECK_LEN>().ok_or(KeyError::Damaged)?;
    let secrets = body.strip_prefix(kind).ok_or(KeyError::Kind)?;
    if bool::from(check(body).ct_eq(found)) { Ok(secrets) } else { Err(KeyError::Damaged) }
}

fn check(body: &[u8]) -> [u8; CHECK_LEN] {
    kdf::derive_short(body, b"", "key-file-check")
}
