//! Files on their way into a channel: hashed, cut into pieces, stored at the node.

use std::io::{Read, Seek};
use std::path::Path;

use tieline_proto::api::{ApiError, Code, Request};
use tieline_proto::channel::ATTACHMENT_LEN_MAX;
use tieline_proto::entry::Attachment;
use tieline_proto::id::Hash;

use super::client::Client;
use crate::base64url;

/// Bytes of one piece: a message of 1 MiB holds it as base64, with room to spare.
const PIECE_LEN: usize = 512 * 1024;

/// Stores a file for a channel.
///
/// # Errors
/// When it can't be read, is no plain file, is too large, changes meanwhile, or the node refuses it.
pub async fn store(client: &mut Client, channel: &str, path: &Path) -> Result<Attachment, ApiError> {
    let shown = path.display();
    let unreadable = |error: std::io::Error| {
        let code = if error.kind() == std::io::ErrorKind::NotFound { Code::NotFound } else { Code::Invalid };
        ApiError::new(code, format!("{shown} can't be read: {error}")).hint("name a file with --attach")
    };
    let not_plain = || {
        ApiError::new(Code::Invalid, format!("{shown} is not a plain file")).hint("pack a folder first, as with tar")
    };
    // Looked at before it is opened: opening a pipe waits for its writer.
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(not_plain());
    }
    let mut file = std::fs::File::open(path).map_err(unreadable)?;
    let meta = file.metadata().map_err(unreadable)?;
    if !meta.is_file() {
        return Err(not_plain());
    }
    let size = meta.len();
    if size > ATTACHMENT_LEN_MAX {
        return Err(ApiError::new(Code::Limit, format!("{shown} has {size} bytes"))
            .hint(format!("an attachment has at most {} MiB", ATTACHMENT_LEN_MAX / 1024 / 1024)));
    }
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(&mut file).map_err(unreadable)?;
    let hash = Hash(*hasher.finalize().as_bytes());
    file.rewind().map_err(unreadable)?;

    let mut piece = vec![0; PIECE_LEN];
    let mut offset = 0;
    loop {
        let len = read_full(&mut file, &mut piece).map_err(unreadable)?;
        let data = base64url::encode(piece.get(..len).unwrap_or_default());
        let channel = channel.to_owned();
        client.call(Request::BlobPut { channel, hash, size, offset, data }).await?;
        offset += len as u64;
        // An empty file is one empty piece.
        if offset >= size || len == 0 {
            break;
        }
    }
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    Ok(Attachment { name, size, hash })
}

fn read_full(file: &mut impl Read, buf: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = buf.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read(rest) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
