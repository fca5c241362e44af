//! Certificates: what binds a device's Ed25519 key and its X25519 key to each other and to an org.
//!
//! A certificate says nothing about what the device may do; that is in the org's chain. It has two signatures. The
//! device's own, over the binding, proves that it wanted to be one device with these two keys. The issuer's, over the
//! content's exact bytes, admits it. Issuers form a chain that is at most [`DEPTH_MAX`] long below the root.

use ed25519_dalek::SigningKey;
use serde::{Deserialize, Serialize};

use super::keys::{DeviceKeys, is_usable_noise_key};
use super::sign::{self, SignError, domain};
use crate::id::{DeviceId, NoiseKey, OrgId};
use crate::wire::json::{self, JsonError, Limits};

/// Longest certificate, in bytes of JSON. Ours have about 800.
pub const CERTIFICATE_LEN_MAX: usize = 4096;

/// Deepest certificate: the root's founder has depth 0, whom the founder enrols 1, whom these enrol 2.
pub const DEPTH_MAX: u8 = 2;

/// What the issuer signs, as JSON.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Content {
    /// The org.
    pub org: OrgId,
    /// The device's signing key, which is its id.
    pub device: DeviceId,
    /// The device's Noise key.
    pub noise: NoiseKey,
    /// Dense number of the certificate within the org, from 1.
    pub serial: u64,
    /// Who issued it: the root or an enrolled device.
    pub issuer: DeviceId,
    /// Length of the chain of issuers below the root's founder.
    pub depth: u8,
}

/// A certificate as it is stored and sent.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Certificate {
    /// Exact bytes of the [`Content`]'s JSON.
    pub content: String,
    /// The device's signature over its [`Binding`], base64url.
    pub held: String,
    /// The issuer's signature over the content, base64url.
    pub issued: String,
}

/// Why a certificate was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CertError {
    /// The text is no JSON object within the limits.
    #[error("certificate: {0}")]
    Limits(#[from] JsonError),
    /// The text is no certificate.
    #[error("certificate: {0}")]
    Json(#[from] serde_json::Error),
    /// The Noise key is a low-order point or not canonical.
    #[error("certificate of {device}: its noise key cannot be used")]
    NoiseKey {
        /// The device.
        device: DeviceId,
    },
    /// The chain of issuers is too long.
    #[error("certificate of {device}: depth {depth} exceeds {DEPTH_MAX}")]
    TooDeep {
        /// The device.
        device: DeviceId,
        /// Its depth.
        depth: u8,
    },
    /// A signature is wrong.
    #[error("certificate: {0}")]
    Signature(#[from] SignError),
}

/// That two keys are one device of an org: what the device itself signs. 16 + 32 + 32 bytes in field order.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Binding {
    /// The org.
    pub org: OrgId,
    /// The signing key.
    pub device: DeviceId,
    /// The Noise key.
    pub noise: NoiseKey,
}

impl Binding {
    /// The binding of a device's own keys, with its signature.
    #[must_use]
    pub fn of(keys: &DeviceKeys, org: OrgId) -> (Self, String) {
        let binding = Self { org, device: keys.device(), noise: keys.noise() };
        let held = sign::sign(domain::CERTIFICATE_HELD, &binding.bytes(), keys.signing());
        (binding, held)
    }

    /// Checks the device's signature and that both keys can be used.
    ///
    /// # Errors
    /// When one of them is wrong.
    pub fn verify(&self, held: &str) -> Result<(), CertError> {
        if !is_usable_noise_key(&self.noise) {
            return Err(CertError::NoiseKey { device: self.device });
        }
        Ok(sign::verify(domain::CERTIFICATE_HELD, &self.bytes(), &self.device, held)?)
    }

    fn bytes(&self) -> Vec<u8> {
        [self.org.as_bytes().as_slice(), self.device.as_bytes(), self.noise.as_bytes()].concat()
    }
}

impl Content {
    /// What the device itself signs of it.
    #[must_use]
    pub const fn binding(&self) -> Binding {
        Binding { org: self.org, device: self.device, noise: self.noise }
    }
}

impl Certificate {
    /// Issues a certificate for the binding that was signed as `held`. The issuer's id is taken from its key.
    ///
    /// # Errors
    /// When the binding is bad or the depth too large.
    pub fn issue(
        binding: Binding,
        held: String,
        serial: u64,
        depth: u8,
        issuer: &SigningKey,
    ) -> Result<Self, CertError> {
        let Binding { org, device, noise } = binding;
        let content = Content { org, device, noise, serial, issuer: sign::device_id(issuer), depth };
        let content = serde_json::to_string(&content)?;
        let issued = sign::sign(domain::CERTIFICATE_ISSUED, content.as_bytes(), issuer);
        let certificate = Self { content, held, issued };
        certificate.verify()?;
        Ok(certificate)
    }

    /// Reads a certificate's JSON and verifies it.
    ///
    /// # Errors
    /// As [`Certificate::verify`], and when the text is no certificate.
    pub fn parse(text: &str) -> Result<(Self, Content), CertError> {
        json::check(text.as_bytes(), Limits::text(CERTIFICATE_LEN_MAX))?;
        let certificate: Self = serde_json::from_str(text)?;
        let content = certificate.verify()?;
        Ok((certificate, content))
    }

    /// The certificate's JSON.
    ///
    /// # Errors
    /// None in practice: the fields are text.
    pub fn to_json(&self) -> Result<String, CertError> {
        Ok(serde_json::to_string(self)?)
    }

    /// Checks keys, depth and both signatures. Whether the issuer may issue is for the org's chain to say.
    ///
    /// # Errors
    /// When any of them is wrong.
    pub fn verify(&self) -> Result<Content, CertError> {
        json::check(self.content.as_bytes(), Limits::text(CERTIFICATE_LEN_MAX))?;
        let content: Content = serde_json::from_str(&self.content)?;
        if content.depth > DEPTH_MAX {
            return Err(CertError::TooDeep { device: content.device, depth: content.depth });
        }
        content.binding().verify(&self.held)?;
        sign::verify(domain::CERTIFICATE_ISSUED, self.content.as_bytes(), &content.issuer, &self.issued)?;
        Ok(content)
    }
}

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha20Rng;
    use rand_core::SeedableRng;

    use super::super::noise::tests::low_order_points;
    use super::*;

    const ORG: OrgId = OrgId([4; 16]);

    fn keys(seed: u64) -> DeviceKeys {
        DeviceKeys::generate(&mut ChaCha20Rng::seed_from_u64(seed))
    }

    fn certificate() -> Certificate {
        let (binding, held) = Binding::of(&keys(1), ORG);
        Certificate::issue(binding, held, 2, 1, keys(2).signing()).unwrap()
    }

    #[test]
    fn a_certificate_is_read_as_it_was_issued() {
        let text = certificate().to_json().unwrap();
        assert!(text.len() < CERTIFICATE_LEN_MAX / 4, "{}", text.len());
        let (certificate, content) = Certificate::parse(&text).unwrap();
        assert_eq!(certificate, self::certificate());
        assert_eq!((content.device, content.noise), (keys(1).device(), keys(1).noise()));
        assert_eq!((content.issuer, content.serial, content.depth), (keys(2).device(), 2, 1));
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let text = certificate().to_json().unwrap().into_bytes();
        for at in 0..text.len() {
            let mut bad = text.clone();
            bad[at] ^= 1;
            // A changed name of a field, too: a field that is missing is no certificate.
            let is_refused = String::from_utf8(bad).is_ok_and(|text| Certificate::parse(&text).is_err());
            assert!(is_refused, "byte {at}");
        }
    }

    #[test]
    fn nobody_can_bind_keys_that_are_not_their_own() {
        let (binding, held) = Binding::of(&keys(1), ORG);
        // Somebody else's signing key with one's own Noise key.
        let stolen = Binding { noise: keys(3).noise(), ..binding };
        assert!(matches!(stolen.verify(&held), Err(CertError::Signature(_))));
        let other_org = Binding { org: OrgId([5; 16]), ..binding };
        assert!(matches!(other_org.verify(&held), Err(CertError::Signature(_))));
        assert!(Certificate::issue(stolen, held, 1, 1, keys(2).signing()).is_err());
    }

    #[test]
    fn threat_w2_low_order_noise_keys_are_refused() {
        let keys = keys(1);
        for point in low_order_points() {
            let binding = Binding { org: ORG, device: keys.device(), noise: NoiseKey(point) };
            let held = sign::sign(domain::CERTIFICATE_HELD, &binding.bytes(), keys.signing());
            assert!(matches!(binding.verify(&held), Err(CertError::NoiseKey { .. })), "{point:?}");
        }
    }

    #[test]
    fn chains_of_issuers_are_short() {
        let (binding, held) = Binding::of(&keys(1), ORG);
        let issue = |depth| Certificate::issue(binding, held.clone(), 1, depth, keys(2).signing());
        assert!(issue(DEPTH_MAX).is_ok());
        assert!(matches!(issue(DEPTH_MAX + 1), Err(CertError::TooDeep { depth: 3, .. })));
    }

    #[test]
    fn threat_w1_duplicate_and_oversized_content_is_refused() {
        let good = certificate();
        let text = good.to_json().unwrap();
        let twice = format!(r#"{},"held":"x"}}"#, &text[..text.len() - 1]);
        assert!(matches!(Certificate::parse(&twice), Err(CertError::Json(_))));
        let padded = format!("{text}{}", " ".repeat(CERTIFICATE_LEN_MAX));
        assert!(matches!(Certificate::parse(&padded), Err(CertError::Limits(JsonError::TooLong { .. }))));
    }
}
