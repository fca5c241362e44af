//! The primitives that `snow` runs on. Its own ring resolver draws ephemeral keys from the operating system, past the
//! simulator, and accepts low-order points; this one does neither.

use blake2::{Blake2s256, Digest};
use rand_core::CryptoRng;
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::CryptoResolver;
use snow::types::{Cipher, Dh, Hash, Random};
use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::Zeroizing;

use super::aead::{Key, TAG_LEN};

/// Resolves exactly X25519, ChaChaPoly and BLAKE2s.
pub(super) struct Resolver {
    /// Seed of the handshake's one ephemeral key, drawn when the handshake was made.
    seed: Zeroizing<[u8; 32]>,
}

impl Resolver {
    pub(super) fn new(mut rng: impl CryptoRng) -> Self {
        let mut seed = Zeroizing::new([0; 32]);
        rng.fill_bytes(&mut *seed);
        Self { seed }
    }
}

impl CryptoResolver for Resolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(OneDraw(Some(self.seed.clone()))))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        matches!(choice, DHChoice::Curve25519).then(|| Box::new(X25519::default()) as Box<dyn Dh>)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        matches!(choice, HashChoice::Blake2s).then(|| Box::new(Blake2s::default()) as Box<dyn Hash>)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        matches!(choice, CipherChoice::ChaChaPoly).then(|| Box::new(ChaChaPoly(Key::new(&[0; 32]))) as Box<dyn Cipher>)
    }
}

/// Gives its seed once. A pattern that drew twice would get an error, never the same key again.
struct OneDraw(Option<Zeroizing<[u8; 32]>>);

impl Random for OneDraw {
    fn try_fill_bytes(&mut self, dest: &mut [u8]) -> Result<(), snow::Error> {
        let seed = self.0.take().ok_or(snow::Error::Rng)?;
        let dest: &mut [u8; 32] = dest.try_into().map_err(|_| snow::Error::Rng)?;
        *dest = *seed;
        Ok(())
    }
}

#[derive(Default)]
struct X25519 {
    secret: Zeroizing<[u8; 32]>,
    public: [u8; 32],
}

impl X25519 {
    fn derive_public(&mut self) {
        self.public = PublicKey::from(&StaticSecret::from(*self.secret)).to_bytes();
    }
}

impl Dh for X25519 {
    fn name(&self) -> &'static str {
        "25519"
    }

    fn pub_len(&self) -> usize {
        32
    }

    fn priv_len(&self) -> usize {
        32
    }

    fn set(&mut self, privkey: &[u8]) {
        // `noise` passes arrays of 32 bytes only.
        if let Ok(secret) = privkey.try_into() {
            self.secret = Zeroizing::new(secret);
            self.derive_public();
        }
    }

    fn generate(&mut self, rng: &mut dyn Random) -> Result<(), snow::Error> {
        rng.try_fill_bytes(&mut *self.secret)?;
        self.derive_public();
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        &self.public
    }

    fn privkey(&self) -> &[u8] {
        &*self.secret
    }

    fn dh(&self, pubkey: &[u8], out: &mut [u8]) -> Result<(), snow::Error> {
        // The caller's buffer is as long as the longest key it knows.
        let theirs: [u8; 32] = *pubkey.first_chunk().ok_or(snow::Error::Dh)?;
        let shared = StaticSecret::from(*self.secret).diffie_hellman(&PublicKey::from(theirs));
        // With a low-order point the result is zero whatever our secret is: it would authenticate anybody.
        if !shared.was_contributory() {
            return Err(snow::Error::Dh);
        }
        *out.first_chunk_mut().ok_or(snow::Error::Dh)? = shared.to_bytes();
        Ok(())
    }
}

#[derive(Default)]
struct Blake2s(Blake2s256);

impl Hash for Blake2s {
    fn name(&self) -> &'static str {
        "BLAKE2s"
    }

    fn block_len(&self) -> usize {
        64
    }

    fn hash_len(&self) -> usize {
        32
    }

    fn reset(&mut self) {
        self.0 = Blake2s256::default();
    }

    fn input(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    fn result(&mut self, out: &mut [u8]) {
        if let Some(out) = out.first_chunk_mut::<32>() {
            *out = self.0.finalize_reset().into();
        }
    }
}

struct ChaChaPoly(Key);

impl Cipher for ChaChaPoly {
    fn name(&self) -> &'static str {
        "ChaChaPoly"
    }

    fn set(&mut self, key: &[u8; 32]) {
        self.0 = Key::new(key);
    }

    fn encrypt(&self, nonce: u64, authtext: &[u8], plaintext: &[u8], out: &mut [u8]) -> usize {
        // The caller checks that `out` holds text and tag; handshake texts are short.
        let Some((text, rest)) = out.split_at_mut_checked(plaintext.len()) else { return 0 };
        text.copy_from_slice(plaintext);
        match (self.0.seal(nonce, authtext, text), rest.first_chunk_mut::<TAG_LEN>()) {
            (Some(tag), Some(place)) => {
                *place = tag;
                plaintext.len() + TAG_LEN
            }
            _ => {
                text.fill(0);
                0
            }
        }
    }

    fn decrypt(&self, nonce: u64, authtext: &[u8], ciphertext: &[u8], out: &mut [u8]) -> Result<usize, snow::Error> {
        let mut text = Zeroizing::new(ciphertext.to_vec());
        let len = self.0.open(nonce, authtext, &mut text).map_err(|_| snow::Error::Decrypt)?;
        let plain = text.get(..len).ok_or(snow::Error::Decrypt)?;
        out.get_mut(..len).ok_or(snow::Error::Decrypt)?.copy_from_slice(plain);
        Ok(len)
    }
}
