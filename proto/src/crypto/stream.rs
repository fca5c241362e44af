//! Keys of a link's further streams: random, sent by a frame of the control stream, so that a stream needs no handshake
//! of its own and shares no counter with another.

use rand_core::CryptoRng;
use zeroize::Zeroizing;

use super::kdf;
use super::record::{Opener, Sealer};

/// The key of one stream. Used once: a second stream under it would repeat counters.
pub struct StreamKey(Zeroizing<[u8; 32]>);

impl StreamKey {
    /// Draws a key.
    #[must_use]
    pub fn generate(rng: &mut (impl CryptoRng + ?Sized)) -> Self {
        let mut key = Zeroizing::new([0; 32]);
        rng.fill_bytes(&mut *key);
        Self(key)
    }

    /// The key that came in a control frame.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// The bytes to send in a control frame, and nowhere else.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// A public name of the key: what a stream can begin with in clear, so that the far side finds the key.
    #[must_use]
    pub fn tag(&self) -> [u8; 16] {
        kdf::derive_short(&*self.0, b"", "stream-tag")
    }

    /// The record layer of the stream, at the side that opened it (`dialed`) or the one that accepted it.
    #[must_use]
    pub fn split(self, dialed: bool) -> (Sealer, Opener) {
        let from_dialer = Zeroizing::new(kdf::derive(&*self.0, b"", "stream-dialer"));
        let from_acceptor = Zeroizing::new(kdf::derive(&*self.0, b"", "stream-acceptor"));
        if dialed {
            (Sealer::new(&from_dialer), Opener::new(&from_acceptor))
        } else {
            (Sealer::new(&from_acceptor), Opener::new(&from_dialer))
        }
    }
}

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha20Rng;
    use rand_core::SeedableRng;

    use super::super::record::RecordError;
    use super::*;

    #[test]
    fn both_ends_understand_each_other_and_nobody_else() {
        let mut rng = ChaCha20Rng::seed_from_u64(1);
        let key = StreamKey::generate(&mut rng);
        let far = StreamKey::from_bytes(*key.as_bytes());
        let (tag, other) = (key.tag(), StreamKey::generate(&mut rng));
        assert_eq!(tag, far.tag());
        assert_ne!(tag, other.tag());
        let (mut dial_seal, mut dial_open) = key.split(true);
        let (mut accept_seal, mut accept_open) = far.split(false);
        let (mut there, mut back, mut out) = (Vec::new(), Vec::new(), Vec::new());
        dial_seal.seal(b"there", &mut there).unwrap();
        accept_seal.seal(b"back", &mut back).unwrap();
        // Reflected records don't open.
        let (_, mut reflected) = StreamKey::from_bytes([0; 32]).split(true);
        assert_eq!(reflected.feed(&there, &mut out), Err(RecordError::Forged { counter: 0 }));
        let (_, mut other_open) = other.split(false);
        assert_eq!(other_open.feed(&there, &mut out), Err(RecordError::Forged { counter: 0 }));
        accept_open.feed(&there, &mut out).unwrap();
        dial_open.feed(&back, &mut out).unwrap();
        assert_eq!(out, b"thereback");
        assert_eq!(dial_open.feed(&there, &mut out), Err(RecordError::Forged { counter: 1 }));
    }
}
