//! The org's link key: a secret that every enrolled device has, so that strangers get no answer from any of them.
//!
//! It proves membership, not identity: who the far side is says its static key. It changes when a device is revoked.

use std::fmt;

use rand_core::CryptoRng;
use zeroize::Zeroizing;

use super::kdf;
use super::secret::{KeyError, draw, pack, packed_len, unpack};
use crate::id::{ChannelId, OrgId};

/// First bytes of a link key's file.
const KIND: &[u8; 4] = b"tlk1";

/// A link key and its epoch.
#[derive(Clone)]
pub struct LinkKey {
    epoch: u32,
    key: Zeroizing<[u8; 32]>,
}

impl LinkKey {
    /// Bytes of [`LinkKey::to_secret_bytes`].
    pub const SECRET_LEN: usize = packed_len(1, 4);

    /// Bytes of [`LinkKey::hint`].
    pub const HINT_LEN: usize = 8;

    /// Draws the key of an epoch; epochs begin at 1 and rise by one a rotation.
    #[must_use]
    pub fn generate(epoch: u32, rng: &mut (impl CryptoRng + ?Sized)) -> Self {
        Self { epoch, key: draw(rng) }
    }

    /// Reads what [`LinkKey::to_secret_bytes`] wrote.
    ///
    /// # Errors
    /// When length, kind or check is wrong.
    pub fn from_secret_bytes(bytes: &[u8]) -> Result<Self, KeyError> {
        let body = unpack(KIND, bytes, Self::SECRET_LEN)?;
        let (epoch, key) = body.split_first_chunk().ok_or(KeyError::Damaged)?;
        let key = key.first_chunk::<32>().ok_or(KeyError::Damaged)?;
        Ok(Self { epoch: u32::from_be_bytes(*epoch), key: Zeroizing::new(*key) })
    }

    /// The secret, for a file that only its owner can read, or for an enrolled device over its session: kind 4 ‖ epoch
    /// 4 ‖ key 32 ‖ check 4.
    #[must_use]
    pub fn to_secret_bytes(&self) -> Zeroizing<Vec<u8>> {
        pack(KIND, &[&self.epoch.to_be_bytes(), &*self.key])
    }

    /// Which of the org's link keys it is: [`Prologue::epoch`](super::noise::Prologue::epoch) of links under it.
    #[must_use]
    pub const fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The psk of links.
    #[must_use]
    pub fn psk(&self, org: &OrgId) -> Zeroizing<[u8; 32]> {
        Zeroizing::new(kdf::derive(&*self.key, org.as_bytes(), "link-psk"))
    }

    /// What the initiator sends before its first handshake message, so that a responder with several orgs or epochs
    /// need not try all its keys: a hash of the key and of that message's first 32 bytes, the ephemeral key. Another
    /// one each time, so it links nothing to those without the key.
    #[must_use]
    pub fn hint(&self, first_message: &[u8]) -> [u8; Self::HINT_LEN] {
        let ephemeral = first_message.get(..32).unwrap_or(first_message);
        kdf::derive_short(&*self.key, ephemeral, "link-hint")
    }

    /// The secret under which the org's nodes find each other: see [`crate::topic`].
    #[must_use]
    pub fn discovery(&self, org: &OrgId) -> Zeroizing<[u8; 32]> {
        Zeroizing::new(kdf::derive(&*self.key, org.as_bytes(), "discovery-org"))
    }

    /// The secret under which a channel's nodes find each other: see [`crate::topic`].
    #[must_use]
    pub fn channel_discovery(&self, channel: &ChannelId) -> Zeroizing<[u8; 32]> {
        Zeroizing::new(kdf::derive(&*self.key, channel.as_bytes(), "discovery-channel"))
    }
}

impl fmt::Debug for LinkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkKey").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha20Rng;
    use rand_core::SeedableRng;

    use super::*;

    #[test]
    fn secret_bytes_bring_the_key_back() {
        let key = LinkKey::generate(3, &mut ChaCha20Rng::seed_from_u64(1));
        let bytes = key.to_secret_bytes();
        assert_eq!(bytes.len(), LinkKey::SECRET_LEN);
        let back = LinkKey::from_secret_bytes(&bytes).unwrap();
        let org = OrgId([5; 16]);
        assert_eq!((back.epoch(), back.psk(&org), back.hint(&[1; 48])), (3, key.psk(&org), key.hint(&[1; 48])));
        assert_eq!(format!("{key:?}"), "LinkKey { epoch: 3, .. }");
    }

    #[test]
    fn uses_are_apart() {
        let key = LinkKey::generate(1, &mut ChaCha20Rng::seed_from_u64(2));
        let org = OrgId([5; 16]);
        assert_ne!(key.psk(&org), key.psk(&OrgId([6; 16])));
        assert_ne!(key.psk(&org), key.discovery(&org));
        assert_ne!(key.hint(&[1; 48]), key.hint(&[2; 48]));
        // What stands behind the ephemeral key plays no part.
        assert_eq!(key.hint(&[1; 32]), key.hint(&[1; 48]));
    }
}
