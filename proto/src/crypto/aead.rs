//! ChaCha20-Poly1305 as Noise uses it: a 64-bit counter, little-endian, behind four zero bytes.

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};

/// Bytes of an authentication tag.
pub(super) const TAG_LEN: usize = 16;

/// A key. Callers keep the counters. The library behind it does not wipe its copy of the key; a rekey replaces it.
pub(super) struct Key(LessSafeKey);

/// The ciphertext is not by the holder of the key, or not for this counter.
#[derive(Debug)]
pub(super) struct Forged;

impl Key {
    pub(super) fn new(key: &[u8; 32]) -> Self {
        Self(LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, key).expect("the algorithm takes 32-byte keys")))
    }

    /// Encrypts `text` in place and gives the tag that belongs behind it.
    ///
    /// `None` only when the text is longer than the cipher allows (256 GiB).
    pub(super) fn seal(&self, counter: u64, ad: &[u8], text: &mut [u8]) -> Option<[u8; TAG_LEN]> {
        let tag = self.0.seal_in_place_separate_tag(nonce(counter), Aad::from(ad), text).ok()?;
        tag.as_ref().try_into().ok()
    }

    /// Decrypts `text`, tag included, in place; gives the plaintext's length. On failure `text` holds rubbish.
    pub(super) fn open(&self, counter: u64, ad: &[u8], text: &mut [u8]) -> Result<usize, Forged> {
        self.0.open_in_place(nonce(counter), Aad::from(ad), text).map(|plain| plain.len()).map_err(|_| Forged)
    }

    /// The key after this one: `REKEY` of the Noise specification, §4.2.
    pub(super) fn next(&self) -> Self {
        let mut key = zeroize::Zeroizing::new([0; 32]);
        // The tag is dropped; a 32-byte text is never too long.
        let _ = self.seal(u64::MAX, &[], &mut *key);
        Self::new(&key)
    }
}

fn nonce(counter: u64) -> Nonce {
    let mut bytes = [0; 12];
    if let Some(low) = bytes.last_chunk_mut() {
        *low = counter.to_le_bytes();
    }
    Nonce::assume_unique_for_key(bytes)
}
