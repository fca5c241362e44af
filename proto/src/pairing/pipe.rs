//! The stream of a pairing: a handshake whose messages have a length prefix, then frames inside records.

use serde::{Deserialize, Serialize};

use super::Reason;
use crate::crypto::kdf;
use crate::crypto::noise::{HANDSHAKE_LEN_MAX, Handshake, NoiseError, Session};
use crate::crypto::record::RecordError;
use crate::entry::Role;
use crate::id::{DeviceId, NodeId, NoiseKey};
use crate::wire::frame::{self, Frame, FrameBuf, FrameError, HEAD_LEN_MAX, TAIL_LEN_MAX};
use crate::wire::json::{self, JsonError, Limits};

/// Bytes of a handshake message's length.
const PREFIX_LEN: usize = 2;

/// Bytes of the host's nonce.
pub(super) const NONCE_LEN: usize = 16;

/// What is said once the handshake is done.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(tag = "p", rename_all = "kebab-case")]
pub(super) enum Said {
    /// Host → device: what is offered. Tail: the nonce.
    Hello {
        /// What the device would become.
        role: Role,
        /// What the host's people call the org.
        org: String,
        /// What they call the host.
        host: String,
    },
    /// Device → host: who wants to be enrolled.
    Claim {
        /// Its signing key.
        device: DeviceId,
        /// What it wants to be called.
        name: String,
        /// Its signature that binds both its keys.
        held: String,
        /// Its signature over [`proof`].
        proof: String,
    },
    /// Host → device: it is enrolled. Tail: the link key.
    Enrolled {
        /// Its certificate.
        certificate: String,
        /// What it is called.
        name: String,
        /// The host.
        node: NodeId,
        /// Addresses of the host.
        addrs: Vec<String>,
    },
    /// Host → device: a piece of the org's chain. Tail: the bytes.
    Chain {
        /// Whether it is the last.
        last: bool,
    },
    /// Host → device: it is over.
    Refused {
        /// Why.
        reason: Reason,
    },
    /// Something of a newer version; ignored.
    #[serde(other)]
    Unknown,
}

/// Why a pairing's stream failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum PipeError {
    #[error(transparent)]
    Noise(#[from] NoiseError),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error(transparent)]
    Limits(#[from] JsonError),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// What came of bytes.
#[derive(Debug)]
pub(super) enum Event {
    /// Host: the first message was good, so the far side has the code.
    Proved,
    /// The handshake is done.
    Up,
    /// Something was said.
    Said(Said, Vec<u8>),
}

/// One end of a pairing's stream.
pub(super) struct Pipe {
    stage: Stage,
    /// Bytes to send.
    out: Vec<u8>,
}

enum Stage {
    Handshaking {
        noise: Box<Handshake>,
        initiator: bool,
        inbox: Vec<u8>,
    },
    Up {
        session: Box<Session>,
        plain: Vec<u8>,
        frames: FrameBuf,
    },
    /// Between two stages, and after an error.
    Over,
}

impl Pipe {
    /// The device's end: begins at once.
    pub(super) fn initiator(mut noise: Handshake) -> Result<Self, PipeError> {
        let mut out = Vec::new();
        push_message(&noise.write(&[])?, &mut out)?;
        Ok(Self { stage: Stage::Handshaking { noise: Box::new(noise), initiator: true, inbox: Vec::new() }, out })
    }

    /// The host's end: waits.
    pub(super) fn responder(noise: Handshake) -> Self {
        let stage = Stage::Handshaking { noise: Box::new(noise), initiator: false, inbox: Vec::new() };
        Self { stage, out: Vec::new() }
    }

    /// Takes bytes off the stream, cut anywhere. Drain [`Pipe::next`] before the next ones.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<(), PipeError> {
        match &mut self.stage {
            Stage::Handshaking { inbox, .. } => inbox.extend_from_slice(bytes),
            Stage::Up { session, plain, frames } => {
                plain.clear();
                let fed = session.feed(bytes, plain);
                frames.push(plain);
                fed?;
            }
            Stage::Over => {}
        }
        Ok(())
    }

    /// What the bytes so far mean.
    pub(super) fn next(&mut self) -> Result<Option<Event>, PipeError> {
        let next = self.next_unfailed();
        if next.is_err() {
            self.stage = Stage::Over;
        }
        next
    }

    /// Says something. Nothing before the handshake is done.
    pub(super) fn say(&mut self, said: &Said, tail: &[u8]) -> Result<(), PipeError> {
        if let Stage::Up { session, .. } = &mut self.stage {
            let mut frame = Vec::new();
            frame::write(&serde_json::to_vec(said)?, tail, &mut frame)?;
            session.seal(&frame, &mut self.out)?;
        }
        Ok(())
    }

    /// Sends a chain in pieces.
    pub(super) fn say_chain(&mut self, chain: &[u8]) -> Result<(), PipeError> {
        let mut pieces = chain.chunks(TAIL_LEN_MAX).peekable();
        while let Some(piece) = pieces.next() {
            self.say(&Said::Chain { last: pieces.peek().is_none() }, piece)?;
        }
        Ok(())
    }

    /// The bytes to send now.
    pub(super) fn take_out(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    /// The far side's Noise key, when the handshake is done.
    pub(super) fn remote(&self) -> Option<NoiseKey> {
        match &self.stage {
            Stage::Up { session, .. } => Some(session.remote_static()),
            _ => None,
        }
    }

    /// The handshake's hash, when it is done.
    pub(super) fn hash(&self) -> Option<[u8; 32]> {
        match &self.stage {
            Stage::Up { session, .. } => Some(*session.handshake_hash()),
            _ => None,
        }
    }

    fn next_unfailed(&mut self) -> Result<Option<Event>, PipeError> {
        match &mut self.stage {
            Stage::Handshaking { noise, initiator, inbox } => {
                let Some(message) = take_message(inbox)? else { return Ok(None) };
                noise.read(&message)?;
                // The host answers the first message, the device the second.
                if !noise.is_finished() {
                    push_message(&noise.write(&[])?, &mut self.out)?;
                }
                if *initiator || noise.is_finished() { self.finish().map(Some) } else { Ok(Some(Event::Proved)) }
            }
            Stage::Up { frames, .. } => {
                let Some(Frame { head, tail, .. }) = frames.cut()? else { return Ok(None) };
                let text = json::check(head, Limits::text(HEAD_LEN_MAX))?;
                Ok(Some(Event::Said(serde_json::from_str(text)?, tail.to_vec())))
            }
            Stage::Over => Ok(None),
        }
    }

    fn finish(&mut self) -> Result<Event, PipeError> {
        let Stage::Handshaking { noise, inbox, .. } = std::mem::replace(&mut self.stage, Stage::Over) else {
            return Err(NoiseError::OutOfTurn.into());
        };
        let session = Box::new(noise.into_session()?);
        self.stage = Stage::Up { session, plain: Vec::new(), frames: FrameBuf::default() };
        // Records may have come in the same chunk as the last message.
        self.push(&inbox)?;
        Ok(Event::Up)
    }
}

/// What the device signs to claim: that it wants this role by this handshake and nonce.
pub(super) fn proof(hash: &[u8; 32], nonce: &[u8; NONCE_LEN], role: Role) -> Vec<u8> {
    let role = match role {
        Role::Observer => 0,
        Role::Member => 1,
        Role::Admin => 2,
        Role::Owner => 3,
    };
    [hash.as_slice(), nonce, &[role]].concat()
}

/// The six digits that both sides compute and only the device shows.
pub(super) fn digits(hash: &[u8; 32], nonce: &[u8; NONCE_LEN]) -> String {
    let number = u64::from_be_bytes(kdf::derive_short(&[hash.as_slice(), nonce].concat(), b"", "pair-digits"));
    format!("{:06}", number % 1_000_000)
}

fn push_message(message: &[u8], out: &mut Vec<u8>) -> Result<(), NoiseError> {
    let len = u16::try_from(message.len()).map_err(|_| NoiseError::TooLong { len: message.len() })?;
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(message);
    Ok(())
}

/// Cuts a handshake message off the inbox, when it has come whole.
fn take_message(inbox: &mut Vec<u8>) -> Result<Option<Vec<u8>>, NoiseError> {
    let Some((prefix, rest)) = inbox.split_first_chunk::<PREFIX_LEN>() else { return Ok(None) };
    let len = usize::from(u16::from_be_bytes(*prefix));
    if len > HANDSHAKE_LEN_MAX {
        return Err(NoiseError::TooLong { len });
    }
    let Some(message) = rest.get(..len) else { return Ok(None) };
    let message = message.to_vec();
    inbox.drain(..PREFIX_LEN + len);
    Ok(Some(message))
}
