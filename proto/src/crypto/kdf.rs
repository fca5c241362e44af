//! Key derivation: HKDF-SHA256 (RFC 5869) with a label for each use.

use hkdf::Hkdf;
use sha2::Sha256;
use zeroize::Zeroize;

/// Version of all labels. A derivation that must change gets a new label, not a new prefix.
const PREFIX: &[u8] = b"tieline/1/";

/// Derives 32 bytes from secret `ikm`. `salt` need not be secret and may be empty; `label` names the use.
#[must_use]
pub fn derive(ikm: &[u8], salt: &[u8], label: &str) -> [u8; 32] {
    let mut out = [0; 32];
    // 32 bytes are one block of at most 255; the only error is a longer request.
    Hkdf::<Sha256>::new(Some(salt), ikm)
        .expand_multi_info(&[PREFIX, label.as_bytes()], &mut out)
        .expect("HKDF-SHA256 gives up to 8,160 bytes");
    out
}

/// Derives the first `N` ≤ 32 bytes of what [`derive()`] gives, for identifiers and codes that people compare.
#[must_use]
pub fn derive_short<const N: usize>(ikm: &[u8], salt: &[u8], label: &str) -> [u8; N] {
    const { assert!(N <= 32) };
    let mut whole = derive(ikm, salt, label);
    let mut out = [0; N];
    for (to, from) in out.iter_mut().zip(whole) {
        *to = from;
    }
    whole.zeroize();
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_changes_the_key() {
        let base = derive(b"secret", b"salt", "label");
        assert_eq!(base, derive(b"secret", b"salt", "label"));
        assert_ne!(base, derive(b"Secret", b"salt", "label"));
        assert_ne!(base, derive(b"secret", b"Salt", "label"));
        assert_ne!(base, derive(b"secret", b"salt", "Label"));
        assert_eq!(derive_short::<4>(b"secret", b"salt", "label"), base[..4]);
    }

    #[test]
    fn vector_is_stable() {
        // Computed apart, by plain HMAC: stored keys and other implementations depend on it.
        let key = derive(&[7; 32], b"org", "pair");
        assert_eq!(
            crate::id::Hash(key).to_string(),
            "2797ec8dda97fd011cfe35c83a902c0bfb7e5b98b511f4b3171def3459328ff8"
        );
    }
}
