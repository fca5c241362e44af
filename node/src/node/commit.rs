//! From a step to the disk, and from the disk to its effects.

use std::sync::Arc;

use tieline_proto::api::{ApiError, Code};
use tieline_proto::channel::{Cited, Context, Effect, History, Input, Step};
use tieline_proto::entry::Auth;
use tieline_proto::id::{ChannelId, ClientId, MemberId, MessageId, NodeId, Seq};
use tieline_proto::link::Message;
use tieline_proto::log::{Line, LogId};
use tokio::time::Instant;

use super::channel::{Live, Pending, seal_frame};
use super::{Node, Owner, REOPEN_EVERY, Work};
use crate::net::SendError;
use crate::store::index::ClientKey;
use crate::store::{
    BlobPut, BlobSource, Command, Commit, JournalAppend, JournalId, Reader, Reason, Report, SealedBatch, Target,
};

/// Bytes read of a log at once.
const CHUNK_LEN: usize = 64 * 1024;

/// Old messages of one channel, from the index and the log.
struct Lookup<'a> {
    channel: ChannelId,
    reader: &'a Reader,
}

impl History for Lookup<'_> {
    fn posted(&self, by: Option<MemberId>, auth: &Auth, client: &ClientId) -> Option<(MessageId, Seq)> {
        let placed = self.reader.placed(self.channel, &ClientKey::author(auth, by, client)).ok()??;
        Some((placed.message?, placed.seq))
    }

    fn cited(&self, message: MessageId) -> Option<Cited> {
        let entry = self.reader.end(self.channel, message).ok()??;
        Cited::of(entry.by, &entry.body).map(|(_, cited)| cited)
    }
}

impl Node {
    /// Gives a channel's home an input and acts on the step.
    pub(super) fn feed_home(&mut self, id: ChannelId, input: Input) {
        let now = self.now();
        let Some(channel) = self.channels.get_mut(&id) else { return };
        let Some(home) = &mut channel.home else {
            if let Input::Op { ticket, .. } = input {
                let error = read_only(channel.read_only.as_deref());
                self.answer(ticket, Err(error), None);
            }
            return;
        };
        let history = Lookup { channel: id, reader: &self.reader };
        let mut context = Context {
            now,
            lamport: &mut self.lamport,
            org: self.membership.judged_by(),
            rng: &mut self.rng,
            history: &history,
        };
        let step = home.handle(input, &mut context);
        let fault = home.fault().map(ToString::to_string);
        self.submit(id, step);
        if let Some(fault) = fault {
            // A fault of ours must not become one of the log: the state is folded anew from what is on disk.
            self.stop_channel(id, &fault);
            self.submit_command(Command::Reopen(Target::Log(LogId::Channel(id))));
        }
    }

    /// Puts a channel's step on its way.
    pub(super) fn submit(&mut self, id: ChannelId, step: Step) {
        let Some(channel) = self.channels.get_mut(&id) else { return };
        channel.note(&step);
        let Step { blobs, journals, entries, effects } = step;
        for append in journals.iter().filter(|append| !append.lines.is_empty()) {
            if channel.shared.is_heard() {
                let lines = Arc::from(append.lines.as_slice());
                channel.shared.publish(Live::Events {
                    run: append.run,
                    attempt: append.attempt,
                    first: append.first,
                    lines,
                });
            }
        }
        let durable = !entries.is_empty() || !blobs.is_empty() || journals.iter().any(|append| append.sync);
        let last = entries.last().map(|entry| entry.seq);
        let commit = Commit {
            token: self.next_token,
            blobs: blobs
                .into_iter()
                .map(|(hash, bytes)| BlobPut { channel: id, hash, source: BlobSource::Bytes(bytes) })
                .collect(),
            journals: journals
                .into_iter()
                .map(|append| JournalAppend {
                    id: JournalId::Run { channel: id, message: append.run, attempt: append.attempt },
                    at: append.at,
                    bytes: append.lines,
                    sync: append.sync,
                })
                .collect(),
            logs: if entries.is_empty() { Vec::new() } else { vec![(LogId::Channel(id), entries)] },
            lines: Vec::new(),
        };
        if durable || !commit.journals.is_empty() {
            self.next_token += 1;
            if durable {
                self.tokens.insert(commit.token, Owner::Channel(id));
                channel.pending.push_back(Pending { token: commit.token, done: false, effects, last });
                self.submit_command(Command::Commit(commit));
                self.snapshot(id);
                return;
            }
            self.submit_command(Command::Commit(commit));
        }
        // Nothing of it waits for the disk, but it must not overtake what does.
        match self.channels.get_mut(&id).and_then(|channel| channel.pending.back_mut()) {
            Some(pending) => pending.effects.extend(effects),
            None => self.act(id, effects, None),
        }
    }

    /// Sends entries of the org's chain to disk on their own.
    pub(super) fn submit_org(&mut self, entries: Vec<tieline_proto::entry::NewEntry>) {
        let commit =
            Commit { token: self.next_token, logs: vec![(self.membership.log(), entries)], ..Commit::default() };
        self.tokens.insert(commit.token, Owner::Org);
        self.next_token += 1;
        self.submit_command(Command::Commit(commit));
    }

    /// Hands a command to the writer. The loop must not wait, so what the queue has no room for waits here, in order.
    pub(super) fn submit_command(&mut self, command: Command) {
        if self.backlog.is_empty() {
            if let Err(full) = self.writer.submit(command) {
                self.backlog.push_back(full.0);
            }
        } else {
            self.backlog.push_back(command);
        }
    }

    /// Hands on what waits, as far as there is room.
    pub(super) fn drain_backlog(&mut self) {
        while let Some(command) = self.backlog.pop_front() {
            if let Err(full) = self.writer.submit(command) {
                self.backlog.push_front(full.0);
                return;
            }
        }
    }

    pub(super) fn report(&mut self, report: Report) {
        match report {
            Report::Durable { token, logs } => {
                for (log, batch) in &logs {
                    match log {
                        LogId::Org(_) => self.org_durable(batch),
                        LogId::Channel(id) => self.publish(*id, batch),
                    }
                }
                match self.tokens.remove(&token) {
                    Some(Owner::Channel(id)) => {
                        self.durable(id, token, &logs);
                        self.channel_logged(id);
                    }
                    Some(Owner::Resident) => self.resident_durable(token),
                    Some(Owner::Blob) => self.blob_done(token, Ok(serde_json::json!({ "stored": true }))),
                    Some(Owner::Org) => self.org_kept(),
                    None => {}
                }
            }
            Report::Written { token } => {
                if self.tokens.remove(&token) == Some(Owner::Resident) {
                    self.resident_durable(token);
                }
            }
            Report::JournalSynced { id: JournalId::Run { channel, message, attempt }, len } => {
                self.feed_home(channel, Input::JournalSynced { run: message, attempt, length: len });
            }
            Report::JournalSynced { .. } => {}
            Report::Failed { token, stopped, reason } => {
                let owner = self.tokens.remove(&token);
                if owner == Some(Owner::Blob) {
                    let words = format!("the attachment cannot be stored: {reason}");
                    self.blob_done(token, Err(ApiError::new(Code::ReadOnly, words)));
                }
                self.failed(owner, &stopped, &reason);
            }
            Report::JournalFailed { id, reason } => self.failed(None, &[Target::Journal(id)], &reason),
            Report::LogReopened { log: LogId::Channel(id), .. } => self.refold(id),
            Report::LogReopened { log: LogId::Org(_), .. } => self.org_reopened(),
            Report::JournalReopened { id: JournalId::Attempts(_), .. } => self.resident_reopened(),
            Report::JournalReopened { .. } => {}
            Report::StillStopped { target, reason } => {
                tracing::debug!(%target, %reason, "still takes no writes");
                if let Target::Journal(id) = target {
                    self.stopped.insert(id);
                }
                self.reopen_at.get_or_insert_with(|| Instant::now() + REOPEN_EVERY);
            }
        }
    }

    /// Entries of a channel are durable: subscribers see them.
    fn publish(&mut self, id: ChannelId, batch: &SealedBatch) {
        let Some(channel) = self.channels.get_mut(&id) else { return };
        let head = batch.head();
        if head.seq <= channel.head.seq {
            return;
        }
        channel.head = head;
        let heard = channel.shared.is_heard();
        let mut frames = Vec::new();
        for (seq, line) in batch.lines() {
            while channel.metas.front().is_some_and(|meta| meta.seq < seq) {
                channel.metas.pop_front();
            }
            if let Some(meta) = channel.metas.front().filter(|meta| meta.seq == seq && heard) {
                frames.push((seq, meta.frame(&channel.shared.handle(meta.by), line)));
            }
        }
        if heard {
            frames.push((head.seq, seal_frame(head.seq, batch.seal())));
        }
        channel.shared.publish(Live::Frames { last: head.seq, frames: frames.into() });
    }

    fn durable(&mut self, id: ChannelId, token: u64, logs: &[(LogId, Arc<SealedBatch>)]) {
        let batch = logs.iter().find(|(log, _)| *log == LogId::Channel(id)).map(|(_, batch)| Arc::clone(batch));
        let Some(channel) = self.channels.get_mut(&id) else { return };
        if let Some(pending) = channel.pending.iter_mut().find(|pending| pending.token == token) {
            pending.done = true;
        }
        // Effects keep the order of their steps, whichever commit was reported first.
        while let Some(pending) =
            self.channels.get_mut(&id).and_then(|channel| channel.pending.pop_front_if(|pending| pending.done))
        {
            self.act(id, pending.effects, batch.as_deref());
            if let Some(last) = pending.last {
                self.feed_home(id, Input::Durable(last));
            }
        }
    }

    fn act(&mut self, id: ChannelId, effects: Vec<Effect>, batch: Option<&SealedBatch>) {
        for effect in effects {
            match effect {
                Effect::Reply(ticket, result) => self.answer(ticket, result, Some((id, batch))),
                Effect::Send(node, message, tail) => {
                    let tail = match &message {
                        // A later attempt has its payload from the first: it is a blob by now.
                        Message::Deliver { payload, .. } if tail.is_empty() => {
                            self.reader.blob(id, *payload).ok().flatten().unwrap_or_default()
                        }
                        _ => tail,
                    };
                    self.send(node, message, tail);
                }
            }
        }
    }

    /// Sends a control frame, to this node's own resident too.
    pub(super) fn send(&mut self, node: NodeId, message: Message, tail: Vec<u8>) {
        if node == self.me {
            self.work.push_back(Work::ToResident(node, message, tail));
        } else if let Err(error) = self.net.send(node, message, tail) {
            match error {
                // The link is down: both sides take up where they stand when it is back.
                SendError::NoLink | SendError::Overflow => {
                    tracing::debug!(node = %node.short(), %error, "a frame was not sent");
                }
                // Whatever goes into a frame is bounded where it comes in.
                error => tracing::error!(node = %node.short(), %error, "a frame that cannot be sent"),
            }
        }
    }

    /// Something could not be made durable. What waits for it is told so, and nothing of it is done.
    fn failed(&mut self, owner: Option<Owner>, stopped: &[Target], reason: &Reason) {
        let words = reason.to_string();
        tracing::error!(?owner, ?stopped, reason = words, "something could not be made durable");
        self.stopped.extend(stopped.iter().filter_map(|target| match target {
            Target::Journal(id) => Some(*id),
            Target::Log(_) => None,
        }));
        let mut channels = stopped
            .iter()
            .filter_map(|target| match target {
                Target::Log(LogId::Channel(id)) | Target::Journal(JournalId::Run { channel: id, .. }) => Some(*id),
                _ => None,
            })
            .collect::<Vec<_>>();
        if let Some(Owner::Channel(id)) = owner {
            channels.push(id);
        }
        channels.sort_unstable();
        channels.dedup();
        for id in channels {
            // One that has nothing on disk is not there at all.
            if !self.channel_not_logged(id, &read_only(Some(&words))) {
                self.stop_channel(id, &words);
            }
        }
        if owner == Some(Owner::Org) || stopped.contains(&Target::Log(self.membership.log())) {
            self.org_failed(reason);
        }
        if owner == Some(Owner::Resident)
            || stopped.iter().any(|t| matches!(t, Target::Journal(JournalId::Attempts(_))))
        {
            self.resident_failed(&words);
        }
        self.reopen_at.get_or_insert_with(|| Instant::now() + REOPEN_EVERY);
    }

    pub(super) fn stop_channel(&mut self, id: ChannelId, words: &str) {
        let Some(channel) = self.channels.get_mut(&id) else { return };
        if channel.read_only.is_none() {
            tracing::error!(channel = %id.short(), reason = words, "the channel takes no writes until this is mended");
        }
        channel.home = None;
        channel.read_only = Some(words.to_owned());
        channel.metas.clear();
        let pending = std::mem::take(&mut channel.pending);
        for pending in pending {
            self.tokens.remove(&pending.token);
            for effect in pending.effects {
                if let Effect::Reply(ticket, _) = effect {
                    self.answer(ticket, Err(read_only(Some(words))), None);
                }
            }
        }
    }

    /// Tries to write again to everything that takes no writes.
    pub(super) fn reopen(&mut self) {
        // Journals first: what a log is folded to next is what they hold then.
        for id in std::mem::take(&mut self.stopped) {
            self.submit_command(Command::Reopen(Target::Journal(id)));
        }
        if self.membership.is_stopped() {
            self.submit_command(Command::Reopen(Target::Log(self.membership.log())));
        }
        let stopped = self.channels.iter().filter(|(_, channel)| channel.home.is_none());
        for id in stopped.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.submit_command(Command::Reopen(Target::Log(LogId::Channel(id))));
        }
        self.reopen_resident();
    }

    /// A log takes writes again: its state is what is on disk, and nothing else.
    fn refold(&mut self, id: ChannelId) {
        let kept = self.channels.get(&id).map_or(Seq(0), |channel| channel.snapshot);
        match super::open::refold(&self.reader, id, self.me, kept) {
            Ok((home, head)) => {
                self.lamport = self.lamport.max(home.state().lamport);
                let Some(channel) = self.channels.get_mut(&id) else { return };
                channel.revive(home, head);
                tracing::info!(channel = %id.short(), "the channel takes writes again");
                self.greet(id);
                self.greet_residents();
            }
            Err(reason) => {
                if let Some(channel) = self.channels.get_mut(&id) {
                    channel.read_only = Some(reason);
                }
                self.reopen_at.get_or_insert_with(|| Instant::now() + REOPEN_EVERY);
            }
        }
    }

    /// Tells a channel's home which residents can be reached.
    pub(super) fn greet(&mut self, id: ChannelId) {
        let mut peers = self.peers.clone();
        peers.insert(self.me, self.turns.mark());
        for (node, mark) in peers {
            self.feed_home(id, Input::LinkUp(node, mark));
        }
    }

    /// The receipt of an entry: from the batch that was just synced, else from the log.
    pub(super) fn receipt(&self, id: ChannelId, seq: Seq, batch: Option<&SealedBatch>) -> Option<String> {
        if let Some(receipt) = batch.and_then(|batch| batch.receipt(seq)) {
            return Some(receipt);
        }
        // An older entry: its batch is the one that the next seal behind it closes.
        let log = LogId::Channel(id);
        let seal = self.seal_behind(log, seq)?;
        let mut cursor = self.reader.lines(log, seal.1);
        let mut hashes = Vec::new();
        while let Some(chunk) = cursor.read(CHUNK_LEN).ok()? {
            for line in chunk.lines() {
                if let Ok(Line::Entry(entry)) = Line::parse(line) {
                    if entry.seq > seal.2 {
                        break;
                    }
                    hashes.push(Line::hash(line));
                }
            }
            if chunk.next > seal.2 {
                break;
            }
        }
        Some(tieline_proto::log::receipt::receipt(seq, &hashes, &seal.0))
    }

    /// The seal that covers an entry: its line, and the first and last entry of its batch.
    fn seal_behind(&self, log: LogId, seq: Seq) -> Option<(Vec<u8>, Seq, Seq)> {
        let mut cursor = self.reader.lines(log, seq);
        while let Some(chunk) = cursor.read(CHUNK_LEN).ok()? {
            for line in chunk.lines() {
                if let Ok(Line::Seal(seal)) = Line::parse(line)
                    && seal.seal.to >= seq
                {
                    return Some((line.to_vec(), seal.seal.from, seal.seal.to));
                }
            }
        }
        None
    }
}

/// What a writer is told while a channel takes no writes.
pub(super) fn read_only(reason: Option<&str>) -> ApiError {
    let reason = reason.unwrap_or("it could not be written");
    ApiError::new(Code::ReadOnly, format!("the channel takes no writes now: {reason}")).hint(
        if reason.starts_with("its log is damaged") {
            "tieline channel verify names the entry; stop the node and restore the channel's log from a backup"
        } else {
            "free space or mend the disk; writing resumes by itself, and: tieline status"
        },
    )
}
