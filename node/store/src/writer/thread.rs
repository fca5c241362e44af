//! The writer's thread and its queue.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::{COMMITS_WAITING_MAX, Command, Core, LAZY_SYNC_MS};
use crate::commit::{JournalId, Reason, Report};
use crate::sync::{SyncJob, sync_all};

/// The queue is full: wait for reports, then try again with what is given back.
#[derive(Debug, thiserror::Error)]
#[error("{COMMITS_WAITING_MAX} commits wait for the disk")]
pub struct Full(pub Command);

/// The writer's queue. Dropping it lets the writer finish what it was given.
#[derive(Debug)]
pub struct Writer {
    queue: Sender<Message>,
    room: Arc<Semaphore>,
    thread: Option<JoinHandle<()>>,
}

enum Message {
    Command(Command),
    Synced(Vec<(JournalId, u64, Result<(), Reason>)>),
    Stop,
}

impl Writer {
    /// Starts the thread. Reports are as many as the commands in flight, so their queue needs no bound of its own.
    ///
    /// # Errors
    /// When the box has no thread to spare.
    pub fn spawn(core: Core) -> std::io::Result<(Self, UnboundedReceiver<Report>)> {
        let (queue, commands) = channel();
        let (reports, receiver) = unbounded_channel();
        let room = Arc::new(Semaphore::new(COMMITS_WAITING_MAX));
        let (lazy, due) = channel();
        let back = queue.clone();
        std::thread::Builder::new().name("tieline-lazy".to_owned()).spawn(move || sync_lazily(&due, &back))?;
        let mut running = Running { core, room: room.clone(), reports, lazy, syncing: false, due: None };
        let named = std::thread::Builder::new().name("tieline-writer".to_owned());
        let thread = named.spawn(move || running.run(&commands))?;
        Ok((Self { queue, room, thread: Some(thread) }, receiver))
    }

    /// Queues a command at once.
    ///
    /// # Errors
    /// When the queue is full; the command is given back.
    pub fn submit(&self, command: Command) -> Result<(), Box<Full>> {
        match self.room.try_acquire() {
            Ok(permit) => {
                permit.forget();
                self.push(command);
                Ok(())
            }
            Err(_) => Err(Box::new(Full(command))),
        }
    }

    /// Queues a command, waiting for room.
    ///
    /// Cancel safe: a command that was not queued has no effect.
    pub async fn send(&self, command: Command) {
        if let Ok(permit) = self.room.acquire().await {
            permit.forget();
        }
        self.push(command);
    }

    fn push(&self, command: Command) {
        // The thread ends only after Message::Stop, which is the last one.
        let _ = self.queue.send(Message::Command(command));
    }

    /// Does all that is queued, syncs, cuts padding and ends. Blocks; reports are sent as before.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _ = self.queue.send(Message::Stop);
        if let Some(thread) = self.thread.take() {
            // A panic there was printed there; nothing of it was acknowledged.
            let _ = thread.join();
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.end();
    }
}

struct Running {
    core: Core,
    room: Arc<Semaphore>,
    reports: UnboundedSender<Report>,
    /// What the lazy syncs' thread is to do next.
    lazy: Sender<Vec<SyncJob<(JournalId, u64)>>>,
    /// Lazy syncs are running.
    syncing: bool,
    /// When the next ones have to start.
    due: Option<Instant>,
}

impl Running {
    fn run(&mut self, commands: &Receiver<Message>) {
        loop {
            let wait = self.due.filter(|_| !self.syncing).map(|due| due.saturating_duration_since(Instant::now()));
            let first = match wait {
                None => commands.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(wait) => commands.recv_timeout(wait),
            };
            let mut stop = match first {
                Ok(message) => self.take(message),
                Err(RecvTimeoutError::Timeout) => false,
                Err(RecvTimeoutError::Disconnected) => true,
            };
            // What came while the last drain synced makes up the next one.
            for message in commands.try_iter().take(COMMITS_WAITING_MAX) {
                stop |= self.take(message);
            }
            let reports = &self.reports;
            // The receiver is gone only when the node stops; nobody is left to be told.
            let mut report = |report| drop(reports.send(report));
            while self.core.step(&mut report) {}
            if stop {
                self.core.close(&mut report);
                return;
            }
            self.plan_lazy();
        }
    }

    fn take(&mut self, message: Message) -> bool {
        match message {
            Message::Command(command) => {
                self.room.add_permits(1);
                self.core.submit(command);
            }
            Message::Synced(results) => {
                self.syncing = false;
                let reports = &self.reports;
                for (id, len, result) in results {
                    self.core.lazy_done(id, len, &result, &mut |report| drop(reports.send(report)));
                }
            }
            Message::Stop => return true,
        }
        false
    }

    /// Has the lazy syncs started when they are due.
    fn plan_lazy(&mut self) {
        if !self.core.is_lazy_due() {
            self.due = None;
            return;
        }
        let now = Instant::now();
        let due = *self.due.get_or_insert(now + Duration::from_millis(LAZY_SYNC_MS));
        if !self.syncing && due <= now {
            self.due = None;
            // The thread lives as long as this one.
            self.syncing = self.lazy.send(self.core.take_lazy()).is_ok();
        }
    }
}

/// Syncs journals beside the writer: a growing journal's sync is slow, and posts don't wait for it.
fn sync_lazily(due: &Receiver<Vec<SyncJob<(JournalId, u64)>>>, back: &Sender<Message>) {
    for jobs in due {
        let results = sync_all(&jobs);
        let done = jobs.iter().zip(results).map(|(job, result)| (job.key.0, job.key.1, result));
        // The writer is gone only after it has synced everything itself.
        let _ = back.send(Message::Synced(done.collect()));
    }
}
