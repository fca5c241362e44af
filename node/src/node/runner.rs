//! Runs one attempt: what the harness tells becomes lines of the run's journal, and what the home asks reaches the
//! harness.
//!
//! Writes and syncs have threads of their own. A kernel that is behind with its disk makes a write wait for seconds, and
//! a few floods would hold up all of the node's tasks: links, doors and probes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tieline_proto::event::{Answer, AskKind, Event, Outcome, Status};
use tieline_proto::id::{Hash, NodeId};
use tieline_proto::link::AttemptId;
use tieline_proto::turn::EventJournal;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::pump::End;
use crate::harness::{Command, OUTPUTS_WAITING_MAX, Output, Turn};

/// Events are durable this long after they were written, at the latest.
const SYNC_EVERY: Duration = Duration::from_millis(5);

/// Lines that wait while earlier ones are written, in bytes. Beyond it the harness is not read, and waits too.
const BUFFER_LEN: usize = 1024 * 1024;

/// Outputs taken at once: others have their turn in between.
const OUTPUTS_MAX: usize = OUTPUTS_WAITING_MAX / 4;

/// Orders that wait for a runner: answers and stops, so there are few.
pub const ORDERS_WAITING_MAX: usize = 64;

/// What a runner is asked to do.
#[derive(Debug)]
pub enum Order {
    /// Interrupt the turn.
    Interrupt,
    /// The node stops: end the turn and write nothing more, so that nobody takes its end for the agent's.
    Abandon,
    /// Answer a question.
    Answer {
        /// Which.
        ask: String,
        /// The answer.
        answer: Answer,
        /// Approvals: hash of the action that was shown.
        digest: Option<Hash>,
    },
}

/// What a runner tells the node's loop.
#[derive(Debug)]
pub enum News {
    /// The attempt ended and its journal is durable.
    Ended(AttemptId, End),
    /// The journal cannot be written any more; the turn was interrupted and nobody knows how it ended.
    Broken(AttemptId, String),
    /// An interrupt reached the harness.
    Stopped(AttemptId, NodeId),
    /// An answer reached the harness, or was refused.
    Answered(AttemptId, NodeId, String),
}

/// One attempt.
pub struct Runner {
    /// Which.
    pub id: AttemptId,
    /// Its home.
    pub home: NodeId,
    /// Its journal, empty.
    pub file: File,
    /// Where that is.
    pub path: PathBuf,
    /// The harness's side.
    pub turn: Turn,
    /// Orders.
    pub orders: mpsc::Receiver<Order>,
    /// To the node's loop.
    pub news: mpsc::Sender<News>,
    /// To the pump.
    pub written: watch::Sender<u64>,
    /// Told to the reader before the harness's own events.
    pub notices: Vec<String>,
}

impl Runner {
    /// Runs the attempt to its end.
    pub async fn run(self) {
        let Self { id, home, file, path, turn, mut orders, news, written, notices } = self;
        let Turn { commands, mut outputs } = turn;
        let mut log = Log::new(file, path, written);
        let mut approvals: BTreeMap<String, Option<Hash>> = BTreeMap::new();
        let mut session = None;
        let mut batch = Vec::with_capacity(OUTPUTS_MAX);
        let mut syncing: Option<JoinHandle<io::Result<()>>> = None;
        let mut sync_at: Option<tokio::time::Instant> = None;
        for text in notices {
            log.journal.push(Event::Notice { text }, &mut log.buffer);
        }
        let mut outcome = None;
        let broken = loop {
            let due = sync_at;
            tokio::select! {
                // Orders first: a harness that floods must still be stoppable.
                biased;
                order = orders.recv() => {
                    let told = match order {
                        // Nobody is there to give orders any more: the loop has let go of this attempt.
                        None | Some(Order::Abandon) => return,
                        Some(Order::Interrupt) => {
                            let _ = commands.send(Command::Interrupt).await;
                            News::Stopped(id, home)
                        }
                        Some(Order::Answer { ask, answer, digest }) => {
                            // What was approved must be what would be done: the action's own bytes decide.
                            // What is answered already, or was never asked, needs nothing more.
                            if let Some(expected) = approvals.get(&ask).copied() {
                                if expected.is_none() || expected == digest {
                                    approvals.remove(&ask);
                                    let _ = commands.send(Command::Answer { ask: ask.clone(), answer }).await;
                                } else {
                                    let text = "an approval of something else than what was asked was refused";
                                    log.journal.push(Event::Notice { text: text.to_owned() }, &mut log.buffer);
                                }
                            }
                            News::Answered(id, home, ask)
                        }
                    };
                    if news.send(told).await.is_err() {
                        return;
                    }
                }
                done = log.written(), if log.writing.is_some() => match done {
                    Ok(()) => {
                        log.write();
                        sync_at.get_or_insert_with(|| tokio::time::Instant::now() + SYNC_EVERY);
                    }
                    Err(error) => break Some(error),
                },
                () = async { tokio::time::sleep_until(due.unwrap_or_else(tokio::time::Instant::now)).await },
                    if due.is_some() && syncing.is_none() =>
                {
                    sync_at = None;
                    let file = Arc::clone(&log.file);
                    syncing = Some(tokio::task::spawn_blocking(move || file.sync_data()));
                }
                done = async { syncing.as_mut().expect("guarded").await }, if syncing.is_some() => {
                    syncing = None;
                    match done {
                        Ok(Ok(())) => {}
                        Ok(Err(error)) => break Some(error),
                        Err(_) => return,
                    }
                }
                count = outputs.recv_many(&mut batch, OUTPUTS_MAX), if log.buffer.len() < BUFFER_LEN => {
                    for output in batch.drain(..) {
                        match output {
                            Output::Event(event) => {
                                if let Event::Asked { ask } = &event {
                                    let digest = ask.action.as_ref().map(|action| Hash::of(action.as_bytes()));
                                    let digest = digest.filter(|_| ask.kind == AskKind::Approval);
                                    approvals.insert(ask.id.clone(), digest);
                                }
                                log.journal.push(event, &mut log.buffer);
                            }
                            Output::Session(text) => session = Some(text),
                            Output::Finished(end) => outcome = Some(end),
                        }
                    }
                    if count == 0 || outcome.is_some() {
                        break None;
                    }
                    log.write();
                }
            }
        };
        let told = match broken {
            Some(error) => {
                let _ = commands.send(Command::Interrupt).await;
                News::Broken(id, format!("the run's journal cannot be written: {error}"))
            }
            None => {
                let outcome = outcome.unwrap_or_else(|| Outcome {
                    status: Status::Failed,
                    text: String::new(),
                    error: Some("the harness went away without saying how the turn ended".to_owned()),
                    usage: None,
                });
                match log.finish(outcome).await {
                    Ok(mut end) => {
                        end.session = session;
                        News::Ended(id, end)
                    }
                    Err(error) => News::Broken(id, format!("the run's journal cannot be written: {error}")),
                }
            }
        };
        let _ = news.send(told).await;
        // The pump needs nothing more from here: the file is complete.
    }
}

struct Log {
    file: Arc<File>,
    /// Where the file is, until its name is durable too.
    path: Option<PathBuf>,
    journal: EventJournal,
    /// Lines that are not on their way to the file yet.
    buffer: Vec<u8>,
    writing: Option<Writing>,
    written: watch::Sender<u64>,
}

/// A write that is under way; it gives its buffer back.
struct Writing {
    /// Length of the journal when it is done.
    length: u64,
    task: JoinHandle<io::Result<Vec<u8>>>,
}

impl Log {
    fn new(file: File, path: PathBuf, written: watch::Sender<u64>) -> Self {
        let journal = EventJournal::default();
        Self { file: Arc::new(file), path: Some(path), journal, buffer: Vec::new(), writing: None, written }
    }

    /// Sends what is there on its way, unless something is already: then it follows.
    fn write(&mut self) {
        if self.buffer.is_empty() || self.writing.is_some() {
            return;
        }
        let (file, mut buffer) = (Arc::clone(&self.file), std::mem::take(&mut self.buffer));
        let path = self.path.take();
        let task = tokio::task::spawn_blocking(move || {
            if let Some(folder) = path.as_deref().and_then(Path::parent) {
                File::open(folder)?.sync_all()?;
            }
            (&*file).write_all(&buffer)?;
            buffer.clear();
            Ok(buffer)
        });
        self.writing = Some(Writing { length: self.journal.length(), task });
    }

    /// Waits until the write that is under way is done. Cancel safe.
    async fn written(&mut self) -> io::Result<()> {
        let Some(writing) = &mut self.writing else { return Ok(()) };
        let done = (&mut writing.task).await.map_err(io::Error::other);
        let length = writing.length;
        self.writing = None;
        let buffer = done??;
        if self.buffer.capacity() == 0 {
            self.buffer = buffer;
        }
        self.written.send_replace(length);
        Ok(())
    }

    /// Writes the last event and makes all of it durable before anybody hears of the end.
    async fn finish(&mut self, outcome: Outcome) -> io::Result<End> {
        let before = self.journal.length();
        self.journal.push(Event::Finished { outcome }, &mut self.buffer);
        debug_assert!(self.journal.length() > before, "the end is an event");
        self.written().await?;
        self.write();
        self.written().await?;
        let file = Arc::clone(&self.file);
        tokio::task::spawn_blocking(move || file.sync_data()).await.map_err(io::Error::other)??;
        Ok(End {
            events: self.journal.events(),
            length: self.journal.length(),
            journal: self.journal.hash(),
            session: None,
        })
    }
}
