//! Attachments on their way in and out, piece by piece.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use tieline_proto::api::{ApiError, Code};
use tieline_proto::channel::ATTACHMENT_LEN_MAX;
use tieline_proto::id::{ChannelId, Hash};
use tieline_proto::log::{Homes, LogId};
use tokio::time::Instant;

use super::calls::PIECE_LEN;
use super::{Node, Owner, ReplyTo};
use crate::store::blob::{Staging, sweep};
use crate::store::{BlobPut, BlobSource, Command, Commit, Keep, OpenLog, RealDisk};

/// Attachments that are being received at once; the one that waited longest for its next piece gives way.
const STAGED_MAX: usize = 32;

/// What is being received.
#[derive(Debug, Default)]
pub(super) struct Staged {
    parts: BTreeMap<(ChannelId, Hash), (Staging, Instant)>,
    /// Completed ones that wait for the disk.
    waiting: BTreeMap<u64, ReplyTo>,
}

impl Node {
    /// Takes a piece. The last one completes the attachment; its answer says that it is durable.
    pub(super) fn blob_put(&mut self, id: ChannelId, hash: Hash, size: u64, offset: u64, bytes: &[u8], reply: ReplyTo) {
        match self.stage(id, hash, size, offset, bytes) {
            Ok(None) => self.reply(reply, Ok(json!({ "received": offset + bytes.len() as u64 }))),
            Ok(Some(source)) => {
                let token = self.next_token;
                self.next_token += 1;
                self.tokens.insert(token, Owner::Blob);
                self.staged.waiting.insert(token, reply);
                let blobs = vec![BlobPut { channel: id, hash, source }];
                self.submit_command(Command::Commit(Commit { token, blobs, ..Commit::default() }));
            }
            Err(error) => self.reply(reply, Err(error)),
        }
    }

    fn stage(
        &mut self,
        id: ChannelId,
        hash: Hash,
        size: u64,
        offset: u64,
        bytes: &[u8],
    ) -> Result<Option<BlobSource>, ApiError> {
        let invalid = |why: String| ApiError::new(Code::Invalid, why);
        let failed =
            |error: std::io::Error| ApiError::new(Code::ReadOnly, format!("the attachment cannot be written: {error}"));
        if size > ATTACHMENT_LEN_MAX {
            let words = format!("an attachment of {size} bytes is over {ATTACHMENT_LEN_MAX}");
            return Err(ApiError::new(Code::Limit, words));
        }
        if bytes.len() > PIECE_LEN {
            return Err(invalid(format!("a piece has at most {PIECE_LEN} bytes")));
        }
        let now = Instant::now();
        let key = (id, hash);
        if offset == 0 {
            if self.staged.parts.len() >= STAGED_MAX {
                let oldest = self.staged.parts.iter().min_by_key(|(_, (_, at))| *at).map(|(key, _)| *key);
                oldest.map(|oldest| self.staged.parts.remove(&oldest));
            }
            let name = format!("{hash}-{}", self.next_token);
            self.next_token += 1;
            let staging = Staging::begin(Arc::new(RealDisk), self.reader.layout(), id, &name).map_err(failed)?;
            self.staged.parts.insert(key, (staging, now));
        }
        let (mut staging, _) = self
            .staged
            .parts
            .remove(&key)
            .ok_or_else(|| invalid(format!("piece at {offset} of an attachment that was not begun")))?;
        if staging.len() != offset || offset + bytes.len() as u64 > size {
            return Err(invalid(format!("piece at {offset}, but {} bytes of {size} are here", staging.len())));
        }
        staging.write(bytes).map_err(failed)?;
        if staging.len() < size {
            self.staged.parts.insert(key, (staging, now));
            return Ok(None);
        }
        let (found, source) = staging.finish();
        if found != hash {
            return Err(invalid(format!("the attachment has the hash {found}, not {hash}: send it again")));
        }
        Ok(Some(source))
    }

    /// Removes what was being received when the node stopped: its names are wanted again, as tokens begin anew.
    pub(super) fn sweep_staged(&self, id: ChannelId) {
        match sweep(&RealDisk, self.reader.layout(), id) {
            Ok(0) => {}
            Ok(files) => tracing::info!(channel = %id.short(), files, "half-received attachments are removed"),
            Err(error) => tracing::warn!(channel = %id.short(), %error, "half-received attachments are left"),
        }
    }

    /// A received attachment is durable, or cannot be.
    pub(super) fn blob_done(&mut self, token: u64, result: Result<Value, ApiError>) {
        if let Some(reply) = self.staged.waiting.remove(&token) {
            self.reply(reply, result);
        }
    }

    /// A piece of an attachment, and the length of the whole.
    pub(super) fn blob_piece(&self, id: ChannelId, hash: Hash, offset: u64) -> Option<(u64, Vec<u8>)> {
        let file = self.reader.blob_file(id, hash).ok()??;
        let size = file.len().ok()?;
        let left = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let mut bytes = vec![0; left.min(PIECE_LEN)];
        let read = file.read_at(&mut bytes, offset).ok()?;
        bytes.truncate(read);
        Some((size, bytes))
    }

    /// Gives the writer the empty log of a new channel.
    pub(super) fn open_new_log(&mut self, id: ChannelId) -> Result<(), ApiError> {
        let open = OpenLog {
            disk: &RealDisk,
            layout: self.reader.layout(),
            log: LogId::Channel(id),
            keep: Keep::Home,
            homes: Homes::trust_first(),
            from: None,
            known: None,
        };
        let opened = open.open(&mut |_, _| {}).map_err(|error| ApiError::new(Code::Internal, error.to_string()))?;
        self.submit_command(Command::Add(Box::new(opened)));
        Ok(())
    }
}
