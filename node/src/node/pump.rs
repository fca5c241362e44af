//! Sends a run's events to its home, from the journal on disk.
//!
//! The journal is the buffer: the harness is never slower than the disk, the link takes what it can, and after a lost
//! link the pump goes on from the index that the home names. So nothing is kept in memory but one chunk.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tieline_proto::crypto::keys::DeviceKeys;
use tieline_proto::crypto::sign::{FinishedContent, Task};
use tieline_proto::entry::Auth;
use tieline_proto::event::EVENT_LEN_MAX;
use tieline_proto::id::{Hash, NodeId};
use tieline_proto::link::{AttemptId, Lane, Message};
use tokio::sync::{mpsc, watch};

use super::outlet::{Closed, Outlet};

/// Bytes of events in one frame: large enough to pay for a frame, small enough to share a link.
const CHUNK_LEN: usize = 60 * 1024;

/// Pause before a link that has too many lanes is tried again.
const BUSY_PAUSE: Duration = Duration::from_millis(250);

/// Longest chunk: one event line and its LF always fit.
const CHUNK_LEN_MAX: usize = EVENT_LEN_MAX + 1;

/// Bytes read at once while a pump is behind.
const READ_LEN: usize = 4 * CHUNK_LEN;

/// How an attempt ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct End {
    /// Events in the journal.
    pub events: u64,
    /// Its length.
    pub length: u64,
    /// Its hash.
    pub journal: Hash,
    /// How the harness resumes.
    pub session: Option<String>,
}

/// What a pump is told.
#[derive(Debug)]
pub enum Order {
    /// Go on from this index: the home holds what is before it.
    Resume(u64),
    /// Say of this task, after the last event, that it ended so.
    Finish(Task, End),
}

/// Orders that wait for a pump; there are few in a link's life.
pub const ORDERS_WAITING_MAX: usize = 16;

/// One run's way to its home.
pub struct Pump {
    /// Which attempt.
    pub id: AttemptId,
    /// Its home.
    pub home: NodeId,
    /// Its journal.
    pub path: PathBuf,
    /// Bytes of it that are written.
    pub written: watch::Receiver<u64>,
    /// What to do.
    pub orders: mpsc::Receiver<Order>,
    /// The way.
    pub outlet: Outlet,
    /// Signs the end.
    pub keys: Arc<DeviceKeys>,
}

impl Pump {
    /// Sends until the orders' sender is dropped.
    pub async fn run(mut self) {
        let mut end: Option<(Task, End)> = None;
        let mut place: Option<Place> = None;
        let mut finished = false;
        loop {
            if let Some(at) = &mut place {
                let written = *self.written.borrow_and_update();
                if at.offset < written {
                    match self.send_chunk(at, written).await {
                        Ok(()) => {}
                        Err(Unsent::Busy) => tokio::time::sleep(BUSY_PAUSE).await,
                        // The link is gone, or the journal cannot be read: the home asks again when it can.
                        Err(Unsent::Lost(reason)) => {
                            tracing::debug!(run = %self.id.run, %reason, "events wait for their home");
                            place = None;
                        }
                    }
                } else if let Some(end) = end.as_ref().filter(|(_, end)| end.length == at.offset && !finished) {
                    let sent =
                        self.outlet.send_lane(self.home, Lane::Turn(self.id), self.finished(end), Vec::new()).await;
                    finished = sent.is_ok();
                    if matches!(sent, Err(Closed::Busy)) {
                        tokio::time::sleep(BUSY_PAUSE).await;
                    } else if finished {
                        // Left open it would stay for its idle time, and a link has only so many lanes: the turns of a
                        // busy half minute used them up.
                        self.outlet.end_lane(self.home, Lane::Turn(self.id));
                    } else {
                        place = None;
                    }
                }
            }
            let idle = place.as_ref().is_none_or(|at| {
                let all_sent = at.offset >= *self.written.borrow();
                all_sent && (finished || end.as_ref().is_none_or(|(_, end)| end.length != at.offset))
            });
            let order = if idle {
                tokio::select! {
                    order = self.orders.recv() => match order {
                        Some(order) => Some(order),
                        None => return,
                    },
                    // The writer's side goes away with the runner; what is written stays as it is.
                    changed = self.written.changed(), if end.is_none() => {
                        if changed.is_err() {
                            match self.orders.recv().await {
                                Some(order) => Some(order),
                                None => return,
                            }
                        } else {
                            None
                        }
                    }
                }
            } else {
                match self.orders.try_recv() {
                    Ok(order) => Some(order),
                    Err(mpsc::error::TryRecvError::Empty) => None,
                    Err(mpsc::error::TryRecvError::Disconnected) => return,
                }
            };
            match order {
                Some(Order::Resume(from)) => {
                    finished = false;
                    let path = self.path.clone();
                    let found = tokio::task::spawn_blocking(move || Place::find(&path, from)).await;
                    place = found
                        .unwrap_or_else(|error| Err(io::Error::other(error)))
                        .map_err(|error| {
                            tracing::warn!(run = %self.id.run, %error, "a run's journal cannot be read");
                        })
                        .ok();
                }
                Some(Order::Finish(task, it)) => {
                    finished = false;
                    end = Some((task, it));
                }
                None => {}
            }
        }
    }

    async fn send_chunk(&self, at: &mut Place, written: u64) -> Result<(), Unsent> {
        let lines = at.read(written).await.map_err(|error| Unsent::Lost(error.to_string()))?;
        let count = lines.iter().filter(|byte| **byte == b'\n').count() as u64;
        let length = lines.len() as u64;
        let message = Message::Events { id: self.id, first: at.index };
        let sent = self.outlet.send_lane(self.home, Lane::Turn(self.id), message, lines).await;
        sent.map_err(|error| match error {
            Closed::Busy => Unsent::Busy,
            Closed::Gone => Unsent::Lost(error.to_string()),
        })?;
        at.index += count;
        at.offset += length;
        Ok(())
    }

    fn finished(&self, (task, end): &(Task, End)) -> Message {
        let End { events, length, journal, session } = end.clone();
        let content = FinishedContent { task: *task, events, length, journal, session: session.as_deref() };
        let auth = if self.home == self.keys.device() {
            Auth::Home
        } else {
            Auth::Resident { node: self.keys.device(), sig: content.sign(self.keys.signing()) }
        };
        Message::Finished { id: self.id, events, length, journal, session, auth }
    }
}

/// Why a chunk was not sent.
enum Unsent {
    /// There is no room now; there will be.
    Busy,
    /// Somebody has to ask again.
    Lost(String),
}

/// Where in the journal a pump stands.
struct Place {
    file: Arc<File>,
    index: u64,
    offset: u64,
    /// What was read ahead, and how much of it was taken.
    ahead: Vec<u8>,
    taken: usize,
}

impl Place {
    /// The place of the line with this index.
    fn find(path: &Path, index: u64) -> io::Result<Self> {
        let file = Arc::new(File::open(path)?);
        let mut place = Self { file, index: 0, offset: 0, ahead: Vec::new(), taken: 0 };
        let mut buffer = vec![0; READ_LEN];
        let mut base = 0;
        while place.index < index {
            let got = place.file.read_at(&mut buffer, base)?;
            if got == 0 {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the home holds more events than the journal",
                ));
            }
            for (i, byte) in buffer.iter().take(got).enumerate() {
                if *byte == b'\n' {
                    place.index += 1;
                    if place.index == index {
                        place.offset = base + i as u64 + 1;
                        return Ok(place);
                    }
                }
            }
            base += got as u64;
        }
        Ok(place)
    }

    /// Whole lines from here, about [`CHUNK_LEN`] of them, at least one.
    async fn read(&mut self, written: u64) -> io::Result<Vec<u8>> {
        let available = usize::try_from(written - self.offset).unwrap_or(usize::MAX);
        for len in [READ_LEN, CHUNK_LEN_MAX] {
            if let Some(lines) = self.take() {
                return Ok(lines);
            }
            let mut buffer = std::mem::take(&mut self.ahead);
            buffer.resize(len.min(available), 0);
            let (file, offset) = (Arc::clone(&self.file), self.offset);
            let read = move || file.read_exact_at(&mut buffer, offset).map(|()| buffer);
            // Next to the end it was written just now, and a thread would cost more than the page cache does.
            self.ahead = if available <= CHUNK_LEN {
                read()?
            } else {
                tokio::task::spawn_blocking(read).await.map_err(io::Error::other)??
            };
            self.taken = 0;
        }
        self.take().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a line of the journal is too long"))
    }

    /// Takes a chunk of what was read ahead; `None` when no whole line of it is left.
    fn take(&mut self) -> Option<Vec<u8>> {
        let rest = self.ahead.get(self.taken..)?;
        let end = |bytes: &[u8]| bytes.iter().rposition(|byte| *byte == b'\n').map(|at| at + 1);
        let near = rest.get(..CHUNK_LEN.min(rest.len())).and_then(end);
        // A line that is longer than a chunk goes alone.
        let len = near.or_else(|| rest.iter().position(|byte| *byte == b'\n').map(|at| at + 1))?;
        let lines = rest.get(..len)?.to_vec();
        self.taken += len;
        Some(lines)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[tokio::test]
    async fn a_journal_is_cut_at_line_ends_whatever_its_lines_are() {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        let lines: Vec<Vec<u8>> = [1, 100, CHUNK_LEN - 1, CHUNK_LEN, READ_LEN + 5, EVENT_LEN_MAX, 3, 2 * CHUNK_LEN, 0]
            .iter()
            .map(|len| [vec![b'x'; *len], vec![b'\n']].concat())
            .collect();
        let whole = lines.concat();
        file.write_all(&whole).expect("written");
        for from in 0..lines.len() {
            let mut place = Place::find(file.path(), from as u64).expect("found");
            let mut read = Vec::new();
            while place.offset < whole.len() as u64 {
                let chunk = place.read(whole.len() as u64).await.expect("read");
                assert!(chunk.ends_with(b"\n"), "whole lines");
                assert!(chunk.len() <= CHUNK_LEN_MAX);
                place.offset += chunk.len() as u64;
                read.extend(chunk);
            }
            assert!(read == lines[from..].concat(), "from line {from}");
        }
        assert!(Place::find(file.path(), lines.len() as u64 + 1).is_err(), "more than there is");
    }
}
