//! Frames of a link: a JSON head of [`Message`] and a binary tail.

use super::frame::{self, Frame, FrameBuf, FrameError, HEAD_LEN_MAX};
use super::json::{self, JsonError, Limits};
use crate::link::Message;

/// Why a message could not be sent. A fault of ours: limits are to be kept before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// Head or tail is too long.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The head nests too deep or holds too many values for the far side.
    #[error("frame head: {0}")]
    Limits(#[from] JsonError),
    /// The head can't be written as JSON.
    #[error("frame head: {0}")]
    Json(#[from] serde_json::Error),
}

/// Why received bytes were refused. Any of these ends the stream.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// A length is not allowed.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The head is no JSON object within the limits.
    #[error("frame head: {0}")]
    Limits(#[from] JsonError),
    /// The head is no message.
    #[error("frame head: {0}")]
    Json(#[from] serde_json::Error),
    /// The stream has been refused before.
    #[error("the stream has failed already")]
    Failed,
}

/// Appends a message with its tail to `out`. Many frames can be packed into one write.
///
/// # Errors
/// When a limit is exceeded; `out` is then as before.
pub fn encode(message: &Message, tail: &[u8], out: &mut Vec<u8>) -> Result<(), EncodeError> {
    let head = serde_json::to_vec(message)?;
    // What the far side would refuse must not be sent: it would end the stream.
    json::check(&head, Limits::text(HEAD_LEN_MAX))?;
    Ok(frame::write(&head, tail, out)?)
}

/// Reads one frame's head.
///
/// # Errors
/// When it is no JSON object within the limits, or no message. One with an unknown `m` is [`Message::Unknown`].
pub fn decode_head(head: &[u8]) -> Result<Message, DecodeError> {
    let text = json::check(head, Limits::text(HEAD_LEN_MAX))?;
    Ok(serde_json::from_str(text)?)
}

/// Makes messages of a stream that comes in chunks cut anywhere.
///
/// Call [`Decoder::next`] until it gives `None` after each [`Decoder::push`]: then the decoder never holds more than
/// one frame and one chunk.
#[derive(Debug, Default)]
pub struct Decoder {
    frames: FrameBuf,
    failed: bool,
}

impl Decoder {
    /// A decoder at the start of a stream.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next chunk. After an error chunks are dropped.
    pub fn push(&mut self, chunk: &[u8]) {
        if !self.failed {
            self.frames.push(chunk);
        }
    }

    /// Gives the next message and its tail; `None` until more bytes come.
    ///
    /// # Errors
    /// When the bytes are refused. All later calls fail too.
    #[expect(clippy::should_implement_trait, reason = "an iterator that ends would not be resumed by more bytes")]
    pub fn next(&mut self) -> Result<Option<(Message, Vec<u8>)>, DecodeError> {
        if self.failed {
            return Err(DecodeError::Failed);
        }
        let next = self.next_unfailed();
        if next.is_err() {
            self.failed = true;
            self.frames = FrameBuf::default();
        }
        next
    }

    /// Whether the stream stands between two frames: where it may end without loss.
    #[must_use]
    pub const fn is_at_boundary(&self) -> bool {
        !self.failed && self.frames.is_empty()
    }

    /// Bytes held.
    #[must_use]
    pub const fn buffered(&self) -> usize {
        self.frames.len()
    }

    fn next_unfailed(&mut self) -> Result<Option<(Message, Vec<u8>)>, DecodeError> {
        let Some(Frame { head, tail, .. }) = self.frames.cut()? else { return Ok(None) };
        Ok(Some((decode_head(head)?, tail.to_vec())))
    }
}

#[cfg(test)]
mod tests;
