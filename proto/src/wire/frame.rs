//! Frames cut out of a byte stream: `u32 length ‖ u32 head length ‖ head ‖ tail`, big-endian.
//!
//! The length counts what follows it. Both lengths are checked as soon as they have come, before any byte they promise
//! is waited for or stored.

/// Longest frame, in bytes: the value of its length field at most. Large enough for a batch of events, small enough
/// that one peer's frame is no burden.
pub const FRAME_LEN_MAX: usize = 1024 * 1024;

/// Longest head, in bytes. Bulk travels in the tail, so heads are short.
pub const HEAD_LEN_MAX: usize = 64 * 1024;

/// Bytes of the length of a frame, and of that of its head.
pub const LEN_LEN: usize = 4;

/// Longest tail that fits beside any head, in bytes: what bulk senders cut their pieces to.
pub const TAIL_LEN_MAX: usize = FRAME_LEN_MAX - LEN_LEN - HEAD_LEN_MAX;

/// Why bytes are not a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The frame is too long.
    #[error("frame of {len} bytes exceeds the {FRAME_LEN_MAX}-byte limit")]
    TooLong {
        /// Its length.
        len: usize,
    },
    /// The head is too long.
    #[error("frame head of {len} bytes exceeds the {HEAD_LEN_MAX}-byte limit")]
    HeadTooLong {
        /// Its length.
        len: usize,
    },
    /// The head does not fit into the frame.
    #[error("frame head of {head} bytes does not fit into a frame of {len}")]
    HeadTooLongForFrame {
        /// Length of the head.
        head: usize,
        /// Length of the frame.
        len: usize,
    },
}

/// Appends a frame to `out`.
///
/// # Errors
/// When head or frame is too long; `out` is then as before.
pub fn write(head: &[u8], tail: &[u8], out: &mut Vec<u8>) -> Result<(), FrameError> {
    if head.len() > HEAD_LEN_MAX {
        return Err(FrameError::HeadTooLong { len: head.len() });
    }
    let len = LEN_LEN.saturating_add(head.len()).saturating_add(tail.len());
    let len_field = u32::try_from(len).ok().filter(|_| len <= FRAME_LEN_MAX).ok_or(FrameError::TooLong { len })?;
    let head_field = u32::try_from(head.len()).map_err(|_| FrameError::HeadTooLong { len: head.len() })?;
    out.reserve(LEN_LEN + len);
    out.extend_from_slice(&len_field.to_be_bytes());
    out.extend_from_slice(&head_field.to_be_bytes());
    out.extend_from_slice(head);
    out.extend_from_slice(tail);
    Ok(())
}

/// A frame, in the bytes that it came in.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Frame<'a> {
    /// The head.
    pub head: &'a [u8],
    /// The tail.
    pub tail: &'a [u8],
    /// Bytes of the whole, lengths included.
    pub len: usize,
}

/// Cuts the first frame off `bytes`. `None`: it has not come whole.
///
/// # Errors
/// When a length is not allowed.
pub fn split(bytes: &[u8]) -> Result<Option<Frame<'_>>, FrameError> {
    let Some((len, rest)) = read_len(bytes) else { return Ok(None) };
    if len > FRAME_LEN_MAX {
        return Err(FrameError::TooLong { len });
    }
    if len < LEN_LEN {
        return Err(FrameError::HeadTooLongForFrame { head: 0, len });
    }
    let Some((head_len, rest)) = read_len(rest) else { return Ok(None) };
    if head_len > HEAD_LEN_MAX {
        return Err(FrameError::HeadTooLong { len: head_len });
    }
    let Some(tail_len) = (len - LEN_LEN).checked_sub(head_len) else {
        return Err(FrameError::HeadTooLongForFrame { head: head_len, len });
    };
    let Some((head, rest)) = rest.split_at_checked(head_len) else { return Ok(None) };
    Ok(rest.get(..tail_len).map(|tail| Frame { head, tail, len: LEN_LEN + len }))
}

/// Collects a stream's bytes, which come in chunks cut anywhere, and cuts frames off them.
///
/// Call [`FrameBuf::cut`] until it gives `None` after each [`FrameBuf::push`]: then it never holds more than one frame
/// and one chunk.
#[derive(Debug, Default)]
pub struct FrameBuf {
    buffer: Vec<u8>,
    /// Bytes at the start of the buffer that have been given out.
    taken: usize,
}

impl FrameBuf {
    /// Takes the next chunk.
    pub fn push(&mut self, chunk: &[u8]) {
        // What has been given out is cut off once a chunk, not once a frame: the move costs the same for many frames.
        self.buffer.drain(..self.taken);
        self.taken = 0;
        self.buffer.extend_from_slice(chunk);
    }

    /// Cuts the next frame off. `None` until more bytes come.
    ///
    /// # Errors
    /// When a length is not allowed. The stream cannot go on then.
    pub fn cut(&mut self) -> Result<Option<Frame<'_>>, FrameError> {
        let frame = split(self.buffer.get(self.taken..).unwrap_or_default())?;
        self.taken += frame.map_or(0, |frame| frame.len);
        Ok(frame)
    }

    /// Bytes held that are not given out yet.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.buffer.len() - self.taken
    }

    /// Whether the stream stands between two frames.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn read_len(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<LEN_LEN>()?;
    // On a machine where it does not fit it is over every limit anyway.
    Some((usize::try_from(u32::from_be_bytes(*len)).unwrap_or(usize::MAX), rest))
}
