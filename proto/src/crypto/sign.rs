//! Signatures: Ed25519 over a domain tag and exact bytes, printed as base64url without padding.
//!
//! What is signed: `"tieline-sig-1" ‖ u8 domain length ‖ domain ‖ bytes`. The length keeps a domain that begins like
//! another one apart from it. Verification is strict: small-order keys and commitments and non-canonical scalars
//! are refused (RFC 8032, and "Taming the many EdDSAs", 2020).

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};

use crate::id::{ChannelId, DeviceId, Epoch, Hash, Incarnation, Seq};
use crate::link::AttemptId;

/// Names of what is signed. A signature under one of them is void under any other.
pub mod domain {
    /// A device's draft: the exact JSON of `entry::Draft`.
    pub const DRAFT: &str = "draft";
    /// A home's seal over a batch of log lines: [`SealContent`](super::SealContent).
    pub const SEAL: &str = "seal";
    /// A resident's acceptance of an attempt: [`AcceptedContent`](super::AcceptedContent).
    pub const ACCEPTED: &str = "accepted";
    /// A resident's news of an attempt's end: [`FinishedContent`](super::FinishedContent).
    pub const FINISHED: &str = "finished";
    /// The issuer's signature under a certificate.
    pub const CERTIFICATE_ISSUED: &str = "certificate-issued";
    /// The device's own signature under a certificate.
    pub const CERTIFICATE_HELD: &str = "certificate-held";
    /// A new device's proof in pairing that it holds its Ed25519 key.
    pub const PAIRING: &str = "pairing";
}

const PREFIX: &[u8] = b"tieline-sig-1";

/// Why a signature was refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SignError {
    /// The text is not base64url of 64 bytes.
    #[error("a signature is 64 bytes in base64url without padding")]
    NotSignature,
    /// The signer's id is no Ed25519 key, or one that anybody could sign for.
    #[error("{signer} is not a usable Ed25519 key")]
    BadKey {
        /// Who was said to have signed.
        signer: DeviceId,
    },
    /// The signature is not by that key over those bytes.
    #[error("the {domain} signature is not by {signer}")]
    Wrong {
        /// What kind of statement was checked.
        domain: &'static str,
        /// Who was said to have signed.
        signer: DeviceId,
    },
}

/// Signs `bytes` as a statement of kind `domain`. Gives 86 characters of base64url.
#[must_use]
pub fn sign(domain: &str, bytes: &[u8], key: &SigningKey) -> String {
    URL_SAFE_NO_PAD.encode(key.sign(&tagged(domain, bytes)).to_bytes())
}

/// Checks that `signer` signed `bytes` as a statement of kind `domain`.
///
/// # Errors
/// When the text is no signature, the key is unusable or the signature is not by it.
pub fn verify(domain: &'static str, bytes: &[u8], signer: &DeviceId, signature: &str) -> Result<(), SignError> {
    let mut raw = [0; Signature::BYTE_SIZE];
    let decoded = URL_SAFE_NO_PAD.decode_slice(signature, &mut raw).map_err(|_| SignError::NotSignature)?;
    if decoded != raw.len() {
        return Err(SignError::NotSignature);
    }
    let key = verifying_key(signer)?;
    key.verify_strict(&tagged(domain, bytes), &Signature::from_bytes(&raw))
        .map_err(|_| SignError::Wrong { domain, signer: *signer })
}

/// The device id of a signing key.
#[must_use]
pub fn device_id(key: &SigningKey) -> DeviceId {
    DeviceId(key.verifying_key().to_bytes())
}

/// Checks that an id is a canonical Ed25519 point outside the small subgroup.
///
/// # Errors
/// [`SignError::BadKey`] when it is not.
pub fn check_key(device: &DeviceId) -> Result<(), SignError> {
    verifying_key(device).map(drop)
}

fn verifying_key(device: &DeviceId) -> Result<VerifyingKey, SignError> {
    let bad = SignError::BadKey { signer: *device };
    let key = VerifyingKey::from_bytes(device.as_bytes()).map_err(|_| bad)?;
    // One point, one id: a second spelling of a key would be a second device under one secret.
    let canonical = key.to_edwards().compress().to_bytes() == *device.as_bytes();
    if canonical && !key.is_weak() { Ok(key) } else { Err(bad) }
}

fn tagged(domain: &str, bytes: &[u8]) -> Vec<u8> {
    // Domains are the short constants above; one that is too long for its length byte cannot be told apart by it.
    debug_assert!(domain.len() <= usize::from(u8::MAX), "domain of {} bytes", domain.len());
    let mut out = Vec::with_capacity(PREFIX.len() + 1 + domain.len() + bytes.len());
    out.extend_from_slice(PREFIX);
    out.push(u8::try_from(domain.len()).unwrap_or(u8::MAX));
    out.extend_from_slice(domain.as_bytes());
    out.extend_from_slice(bytes);
    out
}

/// What a home signs to seal a batch. Signed as 32 + 4 + 8 + 8 + 32 + 32 = 116 bytes in field order, integers big-endian.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SealContent {
    /// The log's channel; of an org's chain, the org fingerprint and sixteen zero bytes.
    pub channel: ChannelId,
    /// The home epoch.
    pub epoch: Epoch,
    /// First seq of the batch.
    pub from: Seq,
    /// Last seq of the batch.
    pub to: Seq,
    /// Hash of the batch's last line.
    pub head: Hash,
    /// Hash of the list of the batch's line hashes.
    pub batch: Hash,
}

impl SealContent {
    /// Bytes that are signed.
    pub const LEN: usize = 32 + 4 + 8 + 8 + 32 + 32;

    /// The bytes that are signed.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Self::LEN);
        out.extend_from_slice(self.channel.as_bytes());
        out.extend_from_slice(&self.epoch.0.to_be_bytes());
        out.extend_from_slice(&self.from.0.to_be_bytes());
        out.extend_from_slice(&self.to.0.to_be_bytes());
        out.extend_from_slice(self.head.as_bytes());
        out.extend_from_slice(self.batch.as_bytes());
        out
    }

    /// Signs the seal.
    #[must_use]
    pub fn sign(&self, key: &SigningKey) -> String {
        sign(domain::SEAL, &self.to_bytes(), key)
    }

    /// Checks a seal by `home`.
    ///
    /// # Errors
    /// As [`verify`].
    pub fn verify(&self, home: &DeviceId, signature: &str) -> Result<(), SignError> {
        verify(domain::SEAL, &self.to_bytes(), home, signature)
    }
}

/// What a resident signs when it has made an attempt durable. Signed as attempt (32 + 8 + 4) ‖ incarnation 16 ‖
/// count 8 ‖ head 32, integers big-endian.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AcceptedContent {
    /// Which try.
    pub id: AttemptId,
    /// Life of the resident's journal.
    pub incarnation: Incarnation,
    /// Records in it, this acceptance included.
    pub count: u64,
    /// Head of its chain.
    pub head: Hash,
}

impl AcceptedContent {
    /// The bytes that are signed.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = attempt_bytes(&self.id);
        out.extend_from_slice(self.incarnation.as_bytes());
        out.extend_from_slice(&self.count.to_be_bytes());
        out.extend_from_slice(self.head.as_bytes());
        out
    }

    /// Signs the acceptance.
    #[must_use]
    pub fn sign(&self, key: &SigningKey) -> String {
        sign(domain::ACCEPTED, &self.to_bytes(), key)
    }

    /// Checks an acceptance by `resident`.
    ///
    /// # Errors
    /// As [`verify`].
    pub fn verify(&self, resident: &DeviceId, signature: &str) -> Result<(), SignError> {
        verify(domain::ACCEPTED, &self.to_bytes(), resident, signature)
    }
}

/// What a resident signs when an attempt has ended. The journal's hash covers how it ended, its last event says it.
/// Signed as attempt (32 + 8 + 4) ‖ events 8 ‖ length 8 ‖ journal 32 ‖ session (0 when absent, else 1 ‖ u32 length ‖
/// text), integers big-endian.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FinishedContent<'a> {
    /// Which try.
    pub id: AttemptId,
    /// Events in the run's journal.
    pub events: u64,
    /// Its length in bytes.
    pub length: u64,
    /// Its hash.
    pub journal: Hash,
    /// How the harness resumes.
    pub session: Option<&'a str>,
}

impl FinishedContent<'_> {
    /// The bytes that are signed.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = attempt_bytes(&self.id);
        out.extend_from_slice(&self.events.to_be_bytes());
        out.extend_from_slice(&self.length.to_be_bytes());
        out.extend_from_slice(self.journal.as_bytes());
        match self.session {
            None => out.push(0),
            Some(text) => {
                out.push(1);
                // The last field: even a length that does not fit four bytes leaves the layout unambiguous.
                out.extend_from_slice(&u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes());
                out.extend_from_slice(text.as_bytes());
            }
        }
        out
    }

    /// Signs the end.
    #[must_use]
    pub fn sign(&self, key: &SigningKey) -> String {
        sign(domain::FINISHED, &self.to_bytes(), key)
    }

    /// Checks an end by `resident`.
    ///
    /// # Errors
    /// As [`verify`].
    pub fn verify(&self, resident: &DeviceId, signature: &str) -> Result<(), SignError> {
        verify(domain::FINISHED, &self.to_bytes(), resident, signature)
    }
}

fn attempt_bytes(id: &AttemptId) -> Vec<u8> {
    let mut out = Vec::with_capacity(128);
    out.extend_from_slice(id.channel.as_bytes());
    out.extend_from_slice(&id.run.0.to_be_bytes());
    out.extend_from_slice(&id.attempt.0.to_be_bytes());
    out
}
