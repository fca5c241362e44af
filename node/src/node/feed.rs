//! A subscription: what was since the cursor, then a marker, then what comes.
//!
//! A feed holds nothing back for a slow reader: what it misses of the live stream it reads from disk again, so a slow
//! reader costs one chunk of memory and gets every entry and event, in order, once.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use tieline_proto::entry::Body;
use tieline_proto::id::{Attempt, MessageId, Seq};
use tieline_proto::log::{Line, LogId};
use tokio::sync::{broadcast, mpsc};

use super::channel::{Live, Meta, Shared, seal_frame};
use crate::store::{JournalId, Reader};

/// Bytes read from disk at once.
const CHUNK_LEN: usize = 64 * 1024;

/// Events go together up to this many bytes, one frame a line: in a flood a word to the socket's task for each of them
/// would cost more than they do. Small, as many of these may wait for a slow reader.
const PACK_LEN: usize = 4 * 1024;

/// One subscription.
pub struct Feed {
    /// The channel.
    pub shared: Arc<Shared>,
    /// Its disk.
    pub reader: Reader,
    /// The last entry that the subscriber has.
    pub cursor: Seq,
    /// Turns that go on when it begins: the entry that started one may be behind the cursor.
    pub open: Vec<(MessageId, Attempt)>,
    /// Whether events are wanted.
    pub events: bool,
    /// Whether it ends when it has caught up.
    pub once: bool,
    /// Where frames go: one or more at once, each a line.
    pub out: mpsc::Sender<Arc<str>>,
}

/// The subscriber is gone, or the disk cannot be read.
struct End;

/// Where a feed stands in the runs that are going on.
type Runs = BTreeMap<MessageId, (Attempt, u64)>;

impl Feed {
    /// Feeds until the subscriber goes, or to the marker when `once`.
    pub async fn run(mut self) {
        let mut live = self.shared.subscribe();
        let mut runs: Runs = std::mem::take(&mut self.open).into_iter().map(|(run, at)| (run, (at, 0))).collect();
        if self.shared.head() < self.cursor {
            // The client knows more than this log: it was restored from a backup. Said, never glossed over.
            let head = self.shared.head();
            let (from, to) = (head.next(), self.cursor);
            let gap = format!(r#"{{"type":"gap","from":{from},"to":{to}}}"#);
            if self.out.send(gap.into()).await.is_err() {
                return;
            }
            self.cursor = head;
        }
        if self.catch_up(&mut runs).await.is_err() {
            return;
        }
        let synced = format!(r#"{{"type":"synced","seq":{}}}"#, self.cursor);
        if self.out.send(synced.into()).await.is_err() || self.once {
            return;
        }
        loop {
            let next = tokio::select! {
                next = live.recv() => next,
                () = self.out.closed() => return,
            };
            let fed = match next {
                Ok(Live::Frames { last, frames }) => self.frames(&mut runs, last, &frames).await,
                Ok(Live::Events { run, attempt, first, lines }) if self.events => {
                    self.live_events(&mut runs, run, attempt, first, &lines).await
                }
                Ok(Live::Events { .. }) => Ok(()),
                Err(broadcast::error::RecvError::Lagged(_)) => self.catch_up(&mut runs).await,
                Err(broadcast::error::RecvError::Closed) => return,
            };
            if fed.is_err() {
                return;
            }
        }
    }

    /// Sends what is on disk behind the cursor, and the events of runs that go on.
    async fn catch_up(&mut self, runs: &mut Runs) -> Result<(), End> {
        while self.cursor < self.shared.head() {
            let (reader, log, from) = (self.reader.clone(), LogId::Channel(self.shared.id), self.cursor.next());
            let chunk = tokio::task::spawn_blocking(move || reader.lines(log, from).read(CHUNK_LEN));
            let chunk = chunk.await.map_err(|_| End)?;
            let chunk = chunk.map_err(|error| {
                tracing::warn!(channel = %self.shared.id.short(), %error, "a log cannot be read for a subscriber");
                End
            })?;
            let Some(chunk) = chunk else { break };
            let before = self.cursor;
            for line in chunk.lines() {
                match Line::parse(line) {
                    Ok(Line::Entry(entry)) if entry.seq <= self.cursor || entry.seq > self.shared.head() => {}
                    Ok(Line::Entry(entry)) => {
                        self.before(runs, &entry.body).await?;
                        let meta = Meta::of(entry.seq, entry.by, &entry.body);
                        let author = self.shared.handle(entry.by);
                        self.out.send(meta.frame(&author, line)).await.map_err(|_| End)?;
                        self.cursor = entry.seq;
                    }
                    Ok(Line::Seal(seal)) if seal.seal.to <= self.cursor => {
                        self.out.send(seal_frame(seal.seal.to, line)).await.map_err(|_| End)?;
                    }
                    Ok(Line::Seal(_)) | Err(_) => {}
                }
            }
            if self.cursor == before {
                tracing::warn!(channel = %self.shared.id.short(), after = %before, "a log cannot be read on from here");
                return Err(End);
            }
        }
        if self.events {
            for (run, (attempt, _)) in runs.clone() {
                self.journal(runs, run, attempt, u64::MAX).await?;
            }
        }
        Ok(())
    }

    /// Events come between the entries that start and end their run.
    async fn before(&mut self, runs: &mut Runs, body: &Body) -> Result<(), End> {
        match body {
            Body::TurnStarted { message, attempt, .. } => {
                runs.insert(*message, (*attempt, 0));
            }
            Body::TurnFinished { message, attempt, events, .. } => {
                runs.entry(*message).or_insert((*attempt, 0));
                if self.events {
                    self.journal(runs, *message, *attempt, *events).await?;
                }
                runs.remove(message);
            }
            Body::HoldReleased { message, retry: false, .. } => {
                runs.remove(message);
            }
            _ => {}
        }
        Ok(())
    }

    /// Sends a run's events from disk, from where this feed stands up to `end`.
    async fn journal(&mut self, runs: &mut Runs, run: MessageId, attempt: Attempt, end: u64) -> Result<(), End> {
        let Some((_, sent)) = runs.get(&run).copied().filter(|(current, _)| *current == attempt) else { return Ok(()) };
        let (reader, channel) = (self.reader.clone(), self.shared.id);
        let id = JournalId::Run { channel, message: run, attempt };
        let mut at = sent;
        // A run without events has no journal.
        let Ok(Some(mut cursor)) = reader.journal(id, sent) else { return Ok(()) };
        while at < end {
            let read = tokio::task::spawn_blocking(move || cursor.read(CHUNK_LEN).map(|chunk| (chunk, cursor)));
            let Ok((Some(chunk), rest)) = read.await.map_err(|_| End)? else { break };
            cursor = rest;
            let wanted = usize::try_from(end - at).unwrap_or(usize::MAX);
            let lines = tieline_proto::log::line::split(&chunk).take(wanted);
            at = self.send_events(run, attempt, at, lines).await?;
        }
        runs.insert(run, (attempt, at));
        Ok(())
    }

    async fn frames(&mut self, runs: &mut Runs, last: Seq, frames: &[(Seq, Arc<str>)]) -> Result<(), End> {
        if last <= self.cursor {
            return Ok(());
        }
        let contiguous = frames.first().is_some_and(|(first, _)| *first <= self.cursor.next());
        let turns = self.events && frames.iter().any(|(_, frame)| frame.contains(r#""kind":"turn-"#));
        // Entries about turns take the way of the disk when events are wanted: there their order is known.
        if !contiguous || turns {
            return self.catch_up(runs).await;
        }
        for (seq, frame) in frames {
            if *seq > self.cursor || frame.starts_with(r#"{"type":"seal""#) {
                self.out.send(Arc::clone(frame)).await.map_err(|_| End)?;
                self.cursor = self.cursor.max(*seq);
            }
        }
        Ok(())
    }

    async fn live_events(
        &mut self,
        runs: &mut Runs,
        run: MessageId,
        attempt: Attempt,
        first: u64,
        lines: &[u8],
    ) -> Result<(), End> {
        let Some((current, sent)) = runs.get(&run).copied() else { return Ok(()) };
        if current != attempt {
            return Ok(());
        }
        if first > sent {
            self.journal(runs, run, attempt, first).await?;
        }
        let Some((_, sent)) = runs.get(&run).copied() else { return Ok(()) };
        if first > sent {
            return Ok(());
        }
        let skip = usize::try_from(sent - first).unwrap_or(usize::MAX);
        let lines = tieline_proto::log::line::split(lines).skip(skip);
        let sent = self.send_events(run, attempt, sent, lines).await?;
        runs.insert(run, (attempt, sent));
        Ok(())
    }

    /// Sends events, the first of which has this index. Gives the index behind them.
    async fn send_events(
        &self,
        run: MessageId,
        attempt: Attempt,
        first: u64,
        lines: impl Iterator<Item = &[u8]>,
    ) -> Result<u64, End> {
        let (mut index, mut pack) = (first, String::new());
        for line in lines {
            if !pack.is_empty() {
                pack.push('\n');
            }
            // Writing to a string can't fail.
            let _ = write!(pack, r#"{{"type":"event","message":{run},"attempt":{attempt},"index":{index},"event":"#);
            match std::str::from_utf8(line) {
                Ok(line) => pack.push_str(line),
                Err(_) => pack.push_str(&String::from_utf8_lossy(line)),
            }
            pack.push('}');
            index += 1;
            if pack.len() >= PACK_LEN {
                self.out.send(pack.as_str().into()).await.map_err(|_| End)?;
                pack.clear();
            }
        }
        if !pack.is_empty() {
            self.out.send(pack.into()).await.map_err(|_| End)?;
        }
        Ok(index)
    }
}
