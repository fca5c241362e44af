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
