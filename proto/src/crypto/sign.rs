//! Signatures: Ed25519 over a domain tag and exact bytes, printed as base64url without padding.
//!
//! What is signed: `"tieline-sig-1" ‖ u8 domain length ‖ domain ‖ bytes`. The length keeps a domain that begins like
//! another one apart from it. Verification is strict: small-order keys and commitments and non-canonical scalars
//! are refused (RFC 8032, and "Taming the many EdDSAs", 2020).

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};

use crate::id::{ChannelId, DeviceId, Epoch, Hash, Incarnation, MemberId, Seq};
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

/// What both statements of a resident are about. It names the payload, so that a home cannot show the answer to one
/// question under another, and the member, so that it cannot be another's. Signed as channel 32 ‖ run 8 ‖ attempt 4 ‖
/// member 8 ‖ payload 32, integers big-endian.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Task {
    /// Which try.
    pub id: AttemptId,
    /// Whose turn.
    pub member: MemberId,
    /// Hash of what the member was handed.
    pub payload: Hash,
}

/// What a resident signs when it has made an attempt durable. Signed as [`Task`] ‖ incarnation 16 ‖ count 8 ‖ head 32,
/// integers big-endian.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AcceptedContent {
    /// What it accepts.
    pub task: Task,
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
        let mut out = self.task.to_bytes();
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
/// Signed as [`Task`] ‖ events 8 ‖ length 8 ‖ journal 32 ‖ session (0 when absent, else 1 ‖ u32 length ‖ text), integers
/// big-endian.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FinishedContent<'a> {
    /// What has ended.
    pub task: Task,
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
        let mut out = self.task.to_bytes();
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

impl Task {
    fn to_bytes(self) -> Vec<u8> {
        let AttemptId { channel, run, attempt } = self.id;
        let mut out = Vec::with_capacity(160);
        out.extend_from_slice(channel.as_bytes());
        out.extend_from_slice(&run.0.to_be_bytes());
        out.extend_from_slice(&attempt.0.to_be_bytes());
        out.extend_from_slice(&self.member.0.to_be_bytes());
        out.extend_from_slice(self.payload.as_bytes());
        out
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::id::{Attempt, MessageId};

    fn key(seed: u8) -> SigningKey {
        SigningKey::from_bytes(&[seed; 32])
    }

    #[test]
    fn a_signature_is_good_for_its_domain_bytes_and_signer_only() {
        let signature = sign(domain::DRAFT, b"bytes", &key(1));
        let signer = device_id(&key(1));
        assert_eq!(verify(domain::DRAFT, b"bytes", &signer, &signature), Ok(()));
        let wrong = |domain| Err(SignError::Wrong { domain, signer });
        assert_eq!(verify(domain::SEAL, b"bytes", &signer, &signature), wrong(domain::SEAL));
        assert_eq!(verify(domain::DRAFT, b"byteS", &signer, &signature), wrong(domain::DRAFT));
        let other = device_id(&key(2));
        assert!(matches!(verify(domain::DRAFT, b"bytes", &other, &signature), Err(SignError::Wrong { .. })));
        // Bytes that move between domain and content.
        assert_ne!(tagged("ab", b"c"), tagged("a", b"bc"));
    }

    #[test]
    fn texts_that_are_no_signature_are_told_apart() {
        let signature = sign(domain::DRAFT, b"", &key(1));
        let signer = device_id(&key(1));
        assert_eq!(signature.len(), 86);
        let bad = ["", "AAAA", &signature[..85], &format!("{signature}="), &format!("{signature}AAAA"), "é"];
        for text in bad {
            assert_eq!(verify(domain::DRAFT, b"", &signer, text), Err(SignError::NotSignature), "{text}");
        }
        // Bits behind the last byte would be a second spelling.
        let mut second = signature.clone();
        let last = second.pop().unwrap();
        let alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let at = alphabet.find(last).unwrap();
        second.push(alphabet.chars().nth(at ^ 1).unwrap());
        assert_eq!(verify(domain::DRAFT, b"", &signer, &second), Err(SignError::NotSignature));
    }

    #[test]
    fn threat_w2_a_scalar_plus_the_order_is_refused() {
        const ORDER: [u8; 32] = [
            0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14, 0, 0, 0, 0,
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
        ];
        let signer = device_id(&key(1));
        let mut raw = URL_SAFE_NO_PAD.decode(sign(domain::DRAFT, b"x", &key(1))).unwrap();
        let mut carry = 0;
        for (byte, add) in raw[32..].iter_mut().zip(ORDER) {
            let sum = u16::from(*byte) + u16::from(add) + carry;
            *byte = sum as u8;
            carry = sum >> 8;
        }
        let malleated = URL_SAFE_NO_PAD.encode(raw);
        assert!(matches!(verify(domain::DRAFT, b"x", &signer, &malleated), Err(SignError::Wrong { .. })));
    }

    #[test]
    fn threat_w2_small_order_signers_are_refused() {
        // The eight torsion points' canonical encodings, and two others of the identity.
        let points = [
            "0100000000000000000000000000000000000000000000000000000000000000",
            "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
            "0000000000000000000000000000000000000000000000000000000000000000",
            "0000000000000000000000000000000000000000000000000000000000000080",
            "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
            "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
            "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
            "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
            "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
            "0100000000000000000000000000000000000000000000000000000000000080",
        ];
        // With the identity as key and commitment, and a zero scalar, the plain equation holds for every message.
        let mut forged = [0; 64];
        forged[0] = 1;
        let forged = URL_SAFE_NO_PAD.encode(forged);
        for point in points {
            let signer: DeviceId = point.parse().unwrap();
            assert_eq!(verify(domain::DRAFT, b"x", &signer, &forged), Err(SignError::BadKey { signer }), "{point}");
            assert!(check_key(&signer).is_err());
        }
        assert_eq!(check_key(&device_id(&key(1))), Ok(()));
    }

    fn attempt() -> AttemptId {
        AttemptId { channel: ChannelId([1; 32]), run: MessageId(2), attempt: Attempt(3) }
    }

    fn task() -> Task {
        Task { id: attempt(), member: MemberId(8), payload: Hash([9; 32]) }
    }

    #[test]
    fn layouts_are_fixed() {
        let seal = SealContent {
            channel: ChannelId([1; 32]),
            epoch: Epoch(2),
            from: Seq(3),
            to: Seq(4),
            head: Hash([5; 32]),
            batch: Hash([6; 32]),
        };
        let mut expected = vec![1; 32];
        expected.extend_from_slice(&[0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4]);
        expected.extend_from_slice(&[5; 32]);
        expected.extend_from_slice(&[6; 32]);
        assert_eq!(seal.to_bytes(), expected);
        assert_eq!(expected.len(), SealContent::LEN);

        let mut id = vec![1; 32];
        id.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 8]);
        id.extend_from_slice(&[9; 32]);
        let incarnation = Incarnation([4; 16]);
        let accepted = AcceptedContent { task: task(), incarnation, count: 5, head: Hash([6; 32]) };
        let rest = [&[4; 16][..], &[0, 0, 0, 0, 0, 0, 0, 5], &[6; 32]].concat();
        assert_eq!(accepted.to_bytes(), [id.clone(), rest].concat());

        let finished = FinishedContent { task: task(), events: 1, length: 2, journal: Hash([3; 32]), session: None };
        let rest = [&[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2][..], &[3; 32]].concat();
        assert_eq!(finished.to_bytes(), [id.clone(), rest.clone(), vec![0]].concat());
        let session = FinishedContent { session: Some("s-1"), ..finished };
        assert_eq!(session.to_bytes(), [id, rest, b"\x01\x00\x00\x00\x03s-1".to_vec()].concat());
        assert_eq!(tagged("ab", b"c"), b"tieline-sig-1\x02abc");
    }

    #[test]
    fn typed_statements_are_signed_and_checked() {
        let (key, signer) = (key(1), device_id(&key(1)));
        let accepted =
            AcceptedContent { task: task(), incarnation: Incarnation([4; 16]), count: 5, head: Hash([6; 32]) };
        let signature = accepted.sign(&key);
        assert_eq!(accepted.verify(&signer, &signature), Ok(()));
        assert!(AcceptedContent { count: 6, ..accepted }.verify(&signer, &signature).is_err());
        // Under another question, or as another's, it says nothing.
        for task in [Task { payload: Hash([1; 32]), ..task() }, Task { member: MemberId(9), ..task() }] {
            assert!(AcceptedContent { task, ..accepted }.verify(&signer, &signature).is_err());
        }

        let finished =
            FinishedContent { task: task(), events: 1, length: 2, journal: Hash([3; 32]), session: Some("") };
        let signature = finished.sign(&key);
        assert_eq!(finished.verify(&signer, &signature), Ok(()));
        assert!(FinishedContent { session: None, ..finished }.verify(&signer, &signature).is_err());
        for task in [Task { payload: Hash([1; 32]), ..task() }, Task { member: MemberId(9), ..task() }] {
            assert!(FinishedContent { task, ..finished }.verify(&signer, &signature).is_err());
        }
        // The same bytes as another kind of statement.
        assert!(verify(domain::ACCEPTED, &finished.to_bytes(), &signer, &signature).is_err());
    }

    proptest! {
        #[test]
        fn threat_w1_any_text_is_a_signature_or_an_error(text in ".{0,100}", signer in any::<[u8; 32]>()) {
            prop_assert!(verify(domain::DRAFT, b"", &DeviceId(signer), &text).is_err());
        }
    }
}
