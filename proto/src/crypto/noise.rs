//! The one handshake: `Noise_XKpsk0_25519_ChaChaPoly_BLAKE2s`, for links and for pairing.
//!
//! Three messages of 48, 48 and 64 bytes plus payloads. The initiator knows the responder's static key; its own travels
//! encrypted. The psk is mixed first, so that a stranger's first message fails and the responder stays silent. Source:
//! the Noise specification, revision 34, and <https://noiseexplorer.com/patterns/XKpsk0/>.

use std::fmt;

use rand_core::CryptoRng;
use snow::{Builder, HandshakeState};
use zeroize::Zeroize;

use super::record::{Opener, RecordError, Sealer};
use super::resolver::Resolver;
use crate::id::{NoiseKey, OrgId};

/// Name of the pattern and its primitives.
pub const PATTERN: &str = "Noise_XKpsk0_25519_ChaChaPoly_BLAKE2s";

/// Longest handshake message, in bytes: keys, tags and the largest payload that either side sends before the other
/// is known.
pub const HANDSHAKE_LEN_MAX: usize = 4096;

/// Longest payload of a handshake message, in bytes: what fits beside two keys and two tags.
pub const HANDSHAKE_PAYLOAD_MAX: usize = HANDSHAKE_LEN_MAX - 96;

/// Why a handshake failed. It cannot go on then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoiseError {
    /// A message is longer than [`HANDSHAKE_LEN_MAX`].
    #[error("handshake message of {len} bytes exceeds the {HANDSHAKE_LEN_MAX}-byte limit")]
    TooLong {
        /// Its length.
        len: usize,
    },
    /// The far side has another psk, prologue or static key than we think, or the message is damaged.
    #[error("the handshake message is forged or damaged, or for another key or purpose")]
    Forged,
    /// A public key is a low-order point.
    #[error("the far side's key is a low-order point")]
    LowOrder,
    /// A message out of turn, or use before the end.
    #[error("handshake step out of turn")]
    OutOfTurn,
    /// An earlier step failed.
    #[error("the handshake has failed already")]
    Failed,
}

impl From<snow::Error> for NoiseError {
    fn from(error: snow::Error) -> Self {
        match error {
            snow::Error::Dh => Self::LowOrder,
            snow::Error::State(_) => Self::OutOfTurn,
            _ => Self::Forged,
        }
    }
}

/// What a handshake is for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Purpose {
    /// To enrol a device.
    Pair,
    /// To join two nodes of an org.
    Link,
}

/// What both sides must agree on, or the first message fails.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Prologue {
    /// What the handshake is for.
    pub purpose: Purpose,
    /// Protocol version.
    pub version: u32,
    /// The org.
    pub org: OrgId,
    /// The initiator's transport peer id; empty over TCP and WebSocket.
    pub initiator_peer: Vec<u8>,
    /// The responder's transport peer id; empty over TCP and WebSocket.
    pub responder_peer: Vec<u8>,
    /// Epoch of the psk: of the org's link key, 0 for pairing.
    pub epoch: u32,
}

impl Prologue {
    /// `"tieline" ‖ purpose 1 ‖ version 4 ‖ org 16 ‖ epoch 4 ‖ (length 4 ‖ peer) × 2`, integers big-endian.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64 + self.initiator_peer.len() + self.responder_peer.len());
        out.extend_from_slice(b"tieline");
        out.push(match self.purpose {
            Purpose::Pair => 1,
            Purpose::Link => 2,
        });
        out.extend_from_slice(&self.version.to_be_bytes());
        out.extend_from_slice(self.org.as_bytes());
        out.extend_from_slice(&self.epoch.to_be_bytes());
        for peer in [&self.initiator_peer, &self.responder_peer] {
            out.extend_from_slice(&u32::try_from(peer.len()).unwrap_or(u32::MAX).to_be_bytes());
            out.extend_from_slice(peer);
        }
        out
    }
}

/// A handshake in progress. Becomes a [`Session`] by consuming itself.
pub struct Handshake {
    state: HandshakeState,
    failed: bool,
}

impl Handshake {
    /// Begins a handshake with the holder of `remote_static`. Writes first.
    ///
    /// # Errors
    /// [`NoiseError::Forged`] when the primitives refuse a key.
    pub fn initiator(
        prologue: &Prologue,
        psk: &[u8; 32],
        local_secret: &[u8; 32],
        remote_static: &[u8; 32],
        rng: impl CryptoRng,
    ) -> Result<Self, NoiseError> {
        let prologue = prologue.bytes();
        let builder = builder(&prologue, psk, local_secret, rng)?.remote_public_key(remote_static)?;
        Ok(Self { state: builder.build_initiator()?, failed: false })
    }

    /// Answers a handshake. Reads first.
    ///
    /// # Errors
    /// [`NoiseError::Forged`] when the primitives refuse a key.
    pub fn responder(
        prologue: &Prologue,
        psk: &[u8; 32],
        local_secret: &[u8; 32],
        rng: impl CryptoRng,
    ) -> Result<Self, NoiseError> {
        let prologue = prologue.bytes();
        let builder = builder(&prologue, psk, local_secret, rng)?;
        Ok(Self { state: builder.build_responder()?, failed: false })
    }

    /// Makes the next message. The first one's payload can be replayed by whoever sees it: send nothing that acts.
    ///
    /// # Errors
    /// When the payload is too long, it is not our turn, or an earlier step failed.
    pub fn write(&mut self, payload: &[u8]) -> Result<Vec<u8>, NoiseError> {
        if payload.len() > HANDSHAKE_PAYLOAD_MAX {
            return Err(NoiseError::TooLong { len: payload.len() });
        }
        let mut out = vec![0; payload.len() + HANDSHAKE_LEN_MAX - HANDSHAKE_PAYLOAD_MAX];
        let len = self.step(|state| state.write_message(payload, &mut out))?;
        out.truncate(len);
        Ok(out)
    }

    /// Takes the far side's next message and gives its payload.
    ///
    /// # Errors
    /// When the message is too long, forged, damaged or out of turn, or an earlier step failed.
    pub fn read(&mut self, message: &[u8]) -> Result<Vec<u8>, NoiseError> {
        if message.len() > HANDSHAKE_LEN_MAX {
            self.failed = true;
            return Err(NoiseError::TooLong { len: message.len() });
        }
        let mut out = vec![0; message.len()];
        let len = self.step(|state| state.read_message(message, &mut out))?;
        out.truncate(len);
        Ok(out)
    }

    /// Whether all three messages have passed.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        !self.failed && self.state.is_handshake_finished()
    }

    /// The far side's static key: known to the initiator from the start, to the responder after message 3.
    #[must_use]
    pub fn remote_static(&self) -> Option<NoiseKey> {
        self.state.get_remote_static()?.first_chunk().map(|key| NoiseKey(*key))
    }

    /// Ends the handshake.
    ///
    /// # Errors
    /// [`NoiseError::OutOfTurn`] before all messages have passed.
    pub fn into_session(mut self) -> Result<Session, NoiseError> {
        let remote = self.remote_static().filter(|_| self.is_finished()).ok_or(NoiseError::OutOfTurn)?;
        let hash = *self.state.get_handshake_hash().first_chunk().ok_or(NoiseError::OutOfTurn)?;
        // The split is the specification's own; the halves go their ways to two tasks, with the same record layer as
        // all other streams, for which the library has no type.
        let (mut from_initiator, mut from_responder) = self.state.dangerously_get_raw_split();
        let (sealer, opener) = if self.state.is_initiator() {
            (Sealer::new(&from_initiator), Opener::new(&from_responder))
        } else {
            (Sealer::new(&from_responder), Opener::new(&from_initiator))
        };
        from_initiator.zeroize();
        from_responder.zeroize();
        Ok(Session { sealer, opener, hash, remote })
    }

    fn step(
        &mut self,
        step: impl FnOnce(&mut HandshakeState) -> Result<usize, snow::Error>,
    ) -> Result<usize, NoiseError> {
        if self.failed {
            return Err(NoiseError::Failed);
        }
        let done = step(&mut self.state);
        self.failed = done.is_err();
        Ok(done?)
    }
}

impl fmt::Debug for Handshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handshake").field("finished", &self.is_finished()).finish_non_exhaustive()
    }
}

fn builder<'a>(
    prologue: &'a [u8],
    psk: &'a [u8; 32],
    local_secret: &'a [u8; 32],
    rng: impl CryptoRng,
) -> Result<Builder<'a>, NoiseError> {
    let params = PATTERN.parse().map_err(NoiseError::from)?;
    let builder = Builder::with_resolver(params, Box::new(Resolver::new(rng)));
    Ok(builder.prologue(prologue)?.psk(0, psk)?.local_private_key(local_secret)?)
}

/// An authenticated, encrypted stream: what a handshake becomes.
pub struct Session {
    sealer: Sealer,
    opener: Opener,
    hash: [u8; 32],
    remote: NoiseKey,
}

impl Session {
    /// See [`Sealer::seal`].
    ///
    /// # Errors
    /// See there.
    pub fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), RecordError> {
        self.sealer.seal(plain, out)
    }

    /// See [`Opener::open`].
    ///
    /// # Errors
    /// See there.
    pub fn open(&mut self, record: &[u8], out: &mut Vec<u8>) -> Result<(), RecordError> {
        self.opener.open(record, out)
    }

    /// See [`Opener::feed`].
    ///
    /// # Errors
    /// See there.
    pub fn feed(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), RecordError> {
        self.opener.feed(bytes, out)
    }

    /// See [`Sealer::rekey`]. The incoming direction follows its own rekey records.
    ///
    /// # Errors
    /// See there.
    pub fn rekey(&mut self, out: &mut Vec<u8>) -> Result<(), RecordError> {
        self.sealer.rekey(out)
    }

    /// Hash of the whole handshake: the same at both ends, and unlike that of any other session.
    #[must_use]
    pub const fn handshake_hash(&self) -> &[u8; 32] {
        &self.hash
    }

    /// The far side's static key.
    #[must_use]
    pub const fn remote_static(&self) -> NoiseKey {
        self.remote
    }

    /// The two directions, for two tasks.
    #[must_use]
    pub fn split(self) -> (Sealer, Opener) {
        (self.sealer, self.opener)
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("remote", &self.remote).finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(super) mod tests;
