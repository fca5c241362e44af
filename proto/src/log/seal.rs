//! Seals: the home's signature that ends a durable batch.

use ed25519_dalek::SigningKey;
use serde::{Deserialize, Serialize};

use crate::crypto::sign::{SealContent, SignError, device_id};
use crate::id::{ChannelId, DeviceId, Epoch, Hash, Seq};

/// A seal line.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Seal {
    /// Hash of the line before: the batch's last entry.
    pub prev: Hash,
    /// What is sealed.
    pub seal: Sealed,
    /// Who sealed it.
    pub by: DeviceId,
    /// The signature over [`Sealed::content`], base64url.
    pub sig: String,
}

/// What a seal says. [`SealContent`] is the form that is signed.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Sealed {
    /// The log, as [`LogId::sealed_as`](super::LogId::sealed_as) names it.
    pub log: ChannelId,
    /// The home epoch.
    pub epoch: Epoch,
    /// First entry of the batch.
    pub from: Seq,
    /// Last entry of the batch.
    pub to: Seq,
    /// Hash of the last entry's line.
    pub head: Hash,
    /// [`batch_hash`](super::batch_hash) of the batch's line hashes.
    pub batch: Hash,
}

impl Sealed {
    /// What is signed.
    #[must_use]
    pub const fn content(&self) -> SealContent {
        let Self { log, epoch, from, to, head, batch } = *self;
        SealContent { channel: log, epoch, from, to, head, batch }
    }
}

impl Seal {
    /// Seals a batch.
    #[must_use]
    pub fn new(seal: Sealed, key: &SigningKey) -> Self {
        Self { prev: seal.head, seal, by: device_id(key), sig: seal.content().sign(key) }
    }

    /// Checks that [`Seal::by`] signed it. Who may sign is for [`Homes`](super::Homes) to say.
    ///
    /// # Errors
    /// As [`crate::crypto::sign::verify`].
    pub fn check_signature(&self) -> Result<(), SignError> {
        self.seal.content().verify(&self.by, &self.sig)
    }
}
