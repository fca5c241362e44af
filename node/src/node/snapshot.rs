//! Snapshots of the channels' folds: a start, and a channel that takes up writing again, reads the end of its log only.
//!
//! A snapshot is a cache in the index. It is taken up when it is of this fold, the index reaches as far, and the log is
//! what it was: the bytes of the segment that it stands in by their hash, the closed segments before by their length.
//! Else the log is folded from its beginning, as if there were none.
//!
//! What stands in closed segments was checked when it was written or folded. It is read and checked again once a day, in
//! the background: damage there stops the channel as it does at a start.

use std::thread;
use std::time::{Duration, Instant};

use tieline_proto::channel::{Home, State};
use tieline_proto::id::{ChannelId, Seq};
use tieline_proto::log::{Bad, Fault, Head, Homes, LogId, Verifier};
use tieline_proto::org::ChannelTerm;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::channel::Channel;
use super::{Done, Node};
use crate::store::{Command, Index, Reader, Resume};

/// Entries behind the last snapshot when the next one is kept: what a start after a crash reads of a busy channel, some
/// tens of milliseconds at most.
const EVERY: u64 = 512;

/// The same in a channel that is quiet: a start reads these in a millisecond or two.
const EVERY_QUIET: u64 = 16;

/// How old the last check of a whole log may be, in milliseconds.
const CHECK_EVERY_MS: u64 = 24 * 60 * 60 * 1000;

/// When the checks begin: people wait for the start, and for what they do first.
const CHECK_AFTER: Duration = Duration::from_secs(10);

/// Bytes checked at once.
const CHECK_LEN: usize = 256 * 1024;

/// Rest after each piece, as many times as it took: a check takes a fifth of one processor.
const CHECK_REST: u32 = 4;

/// The snapshot of a channel's fold in its present home epoch, when the index has one that can be taken up.
pub(super) fn find(index: &Index, id: ChannelId, term: &ChannelTerm) -> Option<(Resume, State)> {
    let log = LogId::Channel(id);
    let (from, fold) = index.snapshot(log)?;
    let head = from.at.head;
    // Look-ups behind it would be missing for good: only entries that are read are added.
    let indexed = index.reaches(log).is_some_and(|reaches| reaches.head.seq >= head.seq);
    // Entries that a later epoch makes void must not be in it.
    let valid = term.epoch == head.epoch || term.start > head.seq;
    let state = State::restore(&fold, id, &head).filter(|_| indexed && valid)?;
    Some((from, state))
}

/// The channel's state when its last snapshot was kept by this process, and that place.
pub(super) fn kept(index: &Index, id: ChannelId, seq: Seq) -> Option<State> {
    let (from, fold) = index.snapshot(LogId::Channel(id))?;
    State::restore(&fold, id, &from.at.head).filter(|state| state.seq == seq)
}

impl Channel {
    /// A snapshot of the fold, when at least `entries` were added since the last one. It has to be put right behind the
    /// commit of the last of them.
    fn snapshot(&mut self, entries: u64) -> Option<Command> {
        let home = self.home.as_ref().filter(|home| home.fault().is_none())?;
        let state = home.state();
        if state.seq.0 < self.snapshot.0 + entries.max(1) {
            return None;
        }
        // Also when it is too long to be kept: it is not tried again with every entry.
        self.snapshot = state.seq;
        Some(Command::Snapshot { log: LogId::Channel(state.id), seq: state.seq, fold: state.snapshot()? })
    }
}

impl Node {
    /// Keeps a snapshot when one is due. Called right behind a channel's commit.
    pub(super) fn snapshot(&mut self, id: ChannelId) {
        if let Some(command) = self.channels.get_mut(&id).and_then(|channel| channel.snapshot(EVERY)) {
            self.submit_command(command);
        }
    }

    /// Keeps snapshots of channels in which nothing goes on.
    pub(super) fn snapshot_quiet(&mut self) {
        let quiet = self.channels.values_mut().filter(|channel| channel.pending.is_empty());
        for command in quiet.filter_map(|channel| channel.snapshot(EVERY_QUIET)).collect::<Vec<_>>() {
            self.submit_command(command);
        }
    }

    /// Keeps snapshots of everything: the next start reads nothing twice.
    pub(super) async fn snapshot_all(&mut self) {
        for command in self.channels.values_mut().filter_map(|channel| channel.snapshot(1)).collect::<Vec<_>>() {
            self.writer.send(command).await;
        }
    }
}

/// Keeps the snapshot of a channel whose log was read from its beginning, in place of one that did not fit. Gives its
/// place.
pub(super) fn first(index: &Index, home: &Home, from: &Resume) -> Seq {
    let state = home.state();
    if let Some(fold) = state.snapshot() {
        index.put_snapshot(LogId::Channel(state.id), from, &fold);
    }
    state.seq
}

/// A log whose start began at a snapshot.
pub(super) struct Unread {
    id: ChannelId,
    homes: Homes,
    /// Where it began.
    until: Head,
}

impl Unread {
    /// The log of a channel that was opened from this place.
    pub const fn new(id: ChannelId, homes: Homes, until: Head) -> Self {
        Self { id, homes, until }
    }

    /// Reads the log up to that place. `None` when it is good, or cannot be read now.
    fn check(&self, reader: &Reader, stop: &CancellationToken) -> Option<Bad> {
        let log = LogId::Channel(self.id);
        let mut verifier = Verifier::new(log, self.homes.clone());
        let mut cursor = reader.lines(log, Seq(1));
        while verifier.head().seq < self.until.seq && !stop.is_cancelled() {
            let began = Instant::now();
            // What cannot be read shows as a missing entry, and the disk's own error to whoever needs the entry.
            let missing = || Bad { seq: verifier.head().seq.next(), fault: Fault::Missing };
            let Some(chunk) = cursor.read(CHECK_LEN).ok()? else { return Some(missing()) };
            for line in chunk.lines() {
                if let Err(bad) = verifier.feed(line) {
                    return Some(bad);
                }
                if verifier.head().seq == self.until.seq {
                    break;
                }
            }
            thread::sleep(began.elapsed() * CHECK_REST);
        }
        if stop.is_cancelled() {
            return None;
        }
        reader.index().put_checked(log, super::open::wall_clock());
        None
    }
}

/// Checks, one after the other, the logs of which a start has read the end only and that are due.
pub(super) fn check_unread(unread: Vec<Unread>, reader: Reader, done: mpsc::Sender<Done>, stop: CancellationToken) {
    let now = super::open::wall_clock();
    let is_due = |unread: &Unread| {
        let last = reader.index().checked(LogId::Channel(unread.id));
        last.is_none_or(|last| now.abs_diff(last) >= CHECK_EVERY_MS)
    };
    let due: Vec<_> = unread.into_iter().filter(is_due).collect();
    if due.is_empty() {
        return;
    }
    let check = move || {
        for unread in due {
            if let Some(bad) = unread.check(&reader, &stop) {
                // The loop is gone only when the node stops.
                let _ = done.blocking_send(Done::Damaged(unread.id, bad));
            }
        }
    };
    tokio::spawn(async move {
        tokio::time::sleep(CHECK_AFTER).await;
        let spawned = thread::Builder::new().name("tieline-check".to_owned()).spawn(check);
        if let Err(error) = spawned {
            tracing::warn!(%error, "the logs are not checked in the background this time");
        }
    });
}

impl Node {
    /// A log was found damaged where the start did not read: its channel takes no more writes.
    pub(super) fn damaged(&mut self, id: ChannelId, bad: Bad) {
        let reason = format!("its log is damaged: {bad}");
        let name = self.membership.org().and_then(|org| org.terms(&id).last()).map(|term| term.name.to_string());
        self.notes.push(format!("{}: read-only: {reason}", name.unwrap_or_else(|| id.short().to_string())));
        self.submit_command(Command::Break(LogId::Channel(id), bad));
        self.stop_channel(id, &reason);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;
    use std::sync::Arc;

    use ed25519_dalek::SigningKey;
    use tieline_proto::crypto::sign::device_id;
    use tieline_proto::entry::{Auth, Body, ChannelDraft, NewEntry, Post, Routed};
    use tieline_proto::id::{ChannelName, Epoch, Hash, Lamport, MemberId, MessageId, OrgId};
    use tieline_proto::log::channel_id;

    use super::*;
    use crate::store::{Commit, Core, Layout, RealDisk};

    #[test]
    fn what_a_start_did_not_read_is_checked() {
        let dir = tempfile::tempdir().unwrap();
        let (layout, key) = (Layout::new(dir.path()), SigningKey::from_bytes(&[5; 32]));
        let home = device_id(&key);
        let draft =
            ChannelDraft { org: OrgId([1; 16]), home, name: ChannelName::new("lobby").unwrap(), nonce: Hash::ZERO };
        let draft = serde_json::to_string(&draft).unwrap();
        let id = channel_id(&draft);
        let log = LogId::Channel(id);
        let entry = |seq: u64| {
            let post = Post { text: format!("text {seq}"), ..Post::default() };
            let message = MessageId(seq.saturating_sub(1));
            NewEntry {
                seq: Seq(seq),
                epoch: Epoch(1),
                lamport: Lamport(seq),
                org: Hash::ZERO,
                ts: 0,
                by: (seq > 1).then_some(MemberId(1)),
                auth: Auth::Home,
                body: match seq {
                    1 => Body::ChannelCreated { draft: draft.clone() },
                    _ => Body::Posted { message, client: None, run: None, post, routed: Routed::default() },
                },
            }
        };
        let mut core = Core::new(Arc::new(RealDisk), layout.clone(), key, Index::memory());
        for seq in 1..=20 {
            core.submit(Command::Commit(Commit {
                token: seq,
                logs: vec![(log, vec![entry(seq)])],
                ..Commit::default()
            }));
            while core.step(&mut |_| {}) {}
        }
        let reader = core.reader();
        let until = Head { seq: Seq(15), ..reader.head(log).unwrap() };
        let (unread, stop) = (Unread::new(id, Homes::One(home), until), CancellationToken::new());
        assert_eq!((unread.check(&reader, &stop), reader.index().checked(log).is_some()), (None, true));

        let path = layout.segment(log, Seq(1));
        let bytes = std::fs::read(&path).unwrap();
        let at = bytes.windows(7).position(|window| window == b"text 12").unwrap();
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().write_all_at(b"tax", at as u64).unwrap();
        assert_eq!(unread.check(&reader, &stop).map(|bad| bad.seq), Some(Seq(12)));
        core.submit(Command::Break(log, Bad { seq: Seq(12), fault: Fault::Changed }));
        core.submit(Command::Commit(Commit { token: 21, logs: vec![(log, vec![entry(21)])], ..Commit::default() }));
        let mut failed = false;
        while core.step(&mut |report| failed |= matches!(report, crate::store::Report::Failed { .. })) {}
        assert!(failed && reader.broken(log).is_some());
    }
}
