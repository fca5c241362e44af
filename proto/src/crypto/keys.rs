//! Secret keys. They zeroize when dropped, print as their public halves, and leave the process only through
//! `to_secret_bytes`, for the key file.

use std::fmt;

use ed25519_dalek::SigningKey;
use rand_core::CryptoRng;
use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::Zeroizing;

pub use super::secret::KeyError;
use super::secret::{draw, pack, packed_len, unpack};
use super::sign;
use crate::id::{DeviceId, NoiseKey};

/// First bytes of a device's key file.
const DEVICE_KIND: &[u8; 4] = b"tld1";
/// First bytes of a root's key file.
const ROOT_KIND: &[u8; 4] = b"tlr1";
/// A device's two secret keys: Ed25519 for statements, X25519 for Noise.
pub struct DeviceKeys {
    signing: SigningKey,
    noise: StaticSecret,
}

impl DeviceKeys {
    /// Bytes of [`DeviceKeys::to_secret_bytes`].
    pub const SECRET_LEN: usize = packed_len(2, 0);

    /// Draws new keys.
    #[must_use]
    pub fn generate(rng: &mut (impl CryptoRng + ?Sized)) -> Self {
        Self { signing: SigningKey::from_bytes(&draw(rng)), noise: StaticSecret::from(*draw(rng)) }
    }

    /// Reads what [`DeviceKeys::to_secret_bytes`] wrote.
    ///
    /// # Errors
    /// When length, kind or check is wrong.
    pub fn from_secret_bytes(bytes: &[u8]) -> Result<Self, KeyError> {
        let secrets = unpack(DEVICE_KIND, bytes, Self::SECRET_LEN)?;
        let (signing, rest) = secrets.split_first_chunk().ok_or(KeyError::Damaged)?;
        let noise = rest.first_chunk::<32>().ok_or(KeyError::Damaged)?;
        Ok(Self { signing: SigningKey::from_bytes(signing), noise: StaticSecret::from(*noise) })
    }

    /// The secrets, for a file that only its owner can read: kind 4 ‖ Ed25519 seed 32 ‖ X25519 secret 32 ‖ check 4.
    #[must_use]
    pub fn to_secret_bytes(&self) -> Zeroizing<Vec<u8>> {
        pack(DEVICE_KIND, &[self.signing.as_bytes(), self.noise.as_bytes()])
    }

    /// The public name of the device.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        sign::device_id(&self.signing)
    }

    /// The public half of the Noise key.
    #[must_use]
    pub fn noise(&self) -> NoiseKey {
        NoiseKey(PublicKey::from(&self.noise).to_bytes())
    }

    /// The key that signs.
    #[must_use]
    pub const fn signing(&self) -> &SigningKey {
        &self.signing
    }

    /// The secret half of the Noise key, for handshakes.
    #[must_use]
    pub fn noise_secret(&self) -> &[u8; 32] {
        self.noise.as_bytes()
    }
}

impl fmt::Debug for DeviceKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DeviceKeys").field(&self.device()).finish()
    }
}

/// An org's root key: it founds the org and signs the founder's certificate, then rests.
pub struct RootKey(SigningKey);

impl RootKey {
    /// Bytes of [`RootKey::to_secret_bytes`].
    pub const SECRET_LEN: usize = packed_len(1, 0);

    /// Draws a new key.
    #[must_use]
    pub fn generate(rng: &mut (impl CryptoRng + ?Sized)) -> Self {
        Self(SigningKey::from_bytes(&draw(rng)))
    }

    /// Reads what [`RootKey::to_secret_bytes`] wrote.
    ///
    /// # Errors
    /// When length, kind or check is wrong.
    pub fn from_secret_bytes(bytes: &[u8]) -> Result<Self, KeyError> {
        let secrets = unpack(ROOT_KIND, bytes, Self::SECRET_LEN)?;
        let seed = secrets.first_chunk().ok_or(KeyError::Damaged)?;
        Ok(Self(SigningKey::from_bytes(seed)))
    }

    /// The secret, for a file that only its owner can read: kind 4 ‖ Ed25519 seed 32 ‖ check 4.
    #[must_use]
    pub fn to_secret_bytes(&self) -> Zeroizing<Vec<u8>> {
        pack(ROOT_KIND, &[self.0.as_bytes()])
    }

    /// The public half.
    #[must_use]
    pub fn id(&self) -> DeviceId {
        sign::device_id(&self.0)
    }

    /// The key that signs.
    #[must_use]
    pub const fn signing(&self) -> &SigningKey {
        &self.0
    }
}

impl fmt::Debug for RootKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RootKey").field(&self.id()).finish()
    }
}

/// Checks that an X25519 public key is usable: canonical, and no low-order point, with which anybody could agree on
/// the same "secret".
#[must_use]
pub fn is_usable_noise_key(key: &NoiseKey) -> bool {
    // A clamped secret is a multiple of the cofactor, so a low-order point gives zero with every secret.
    let any = StaticSecret::from([0x55; 32]);
    let contributes = any.diffie_hellman(&PublicKey::from(key.0)).was_contributory();
    contributes && is_canonical(key.as_bytes())
}

/// Whether the little-endian number is below 2²⁵⁵ − 19: one key, one spelling.
fn is_canonical(key: &[u8; 32]) -> bool {
    let [low, middle @ .., high] = key;
    *high < 0x7f || (*high == 0x7f && (*low < 0xed || middle.iter().any(|byte| *byte != 0xff)))
}

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha20Rng;
    use rand_core::SeedableRng;

    use super::*;

    #[test]
    fn secret_bytes_bring_the_keys_back() {
        let mut rng = ChaCha20Rng::seed_from_u64(1);
        let keys = DeviceKeys::generate(&mut rng);
        let bytes = keys.to_secret_bytes();
        assert_eq!(bytes.len(), DeviceKeys::SECRET_LEN);
        let back = DeviceKeys::from_secret_bytes(&bytes).unwrap();
        assert_eq!((back.device(), back.noise()), (keys.device(), keys.noise()));

        let root = RootKey::generate(&mut rng);
        assert_eq!(RootKey::from_secret_bytes(&root.to_secret_bytes()).unwrap().id(), root.id());
        assert_eq!(
            DeviceKeys::from_secret_bytes(&root.to_secret_bytes()).unwrap_err(),
            KeyError::Length { len: RootKey::SECRET_LEN, expected: DeviceKeys::SECRET_LEN }
        );
    }

    #[test]
    fn a_damaged_key_file_is_no_other_device() {
        let keys = DeviceKeys::generate(&mut ChaCha20Rng::seed_from_u64(2));
        let bytes = keys.to_secret_bytes();
        for at in 0..bytes.len() {
            let mut bad = bytes.to_vec();
            bad[at] ^= 1;
            assert!(DeviceKeys::from_secret_bytes(&bad).is_err(), "byte {at}");
            assert!(DeviceKeys::from_secret_bytes(&bytes[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn debug_shows_no_secret() {
        let keys = DeviceKeys::generate(&mut ChaCha20Rng::seed_from_u64(3));
        assert_eq!(format!("{keys:?}"), format!("DeviceKeys({:?})", keys.device()));
    }
}
