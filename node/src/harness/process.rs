//! An agent program as the node sees it: started through the keeper, spoken to in lines, ended in bounded time.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use super::keeper::{GRACE, KEEPER_ARG, kill_descendants};

/// Longest line a program may write, in bytes. A longer one is a fault of the program, not an event.
pub(super) const LINE_LEN_MAX: usize = 16 * 1024 * 1024;

/// Bytes read at once: a pipe's usual size.
pub(super) const READ_LEN: usize = 64 * 1024;

/// What is kept of the end of a program's error output, in bytes: some screens, enough for a stack trace's message.
const STDERR_KEPT: usize = 8 * 1024;

/// Messages that wait to be written to a program. They wait only while it doesn't read.
const WRITES_WAITING_MAX: usize = 64;

/// How much longer than the keeper's own grace the node waits before it ends the keeper too.
const KEEPER_GRACE: Duration = Duration::from_secs(2);

/// How long output may keep coming after the program ended.
const DRAIN: Duration = Duration::from_secs(2);

/// What to start.
#[derive(Debug)]
pub(super) struct Launch<'a> {
    /// The binary that is a keeper when told so.
    pub keeper: &'a Path,
    /// The program's file.
    pub program: &'a Path,
    /// Its arguments.
    pub args: &'a [OsString],
    /// Its folder.
    pub cwd: &'a Path,
    /// Its whole environment.
    pub env: &'a BTreeMap<String, String>,
}

/// A running program. Dropping it ends the program and all it started.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    stdin: Option<mpsc::Sender<Vec<u8>>>,
    stdout: LineReader<ChildStdout>,
    /// Set when the program has ended: until when its last output may come.
    drain_until: Option<Instant>,
    stderr: Arc<Mutex<VecDeque<u8>>>,
    stderr_done: Option<JoinHandle<()>>,
    /// Counts the program among those of the box.
    _permit: OwnedSemaphorePermit,
}

impl Process {
    /// Starts a program.
    ///
    /// # Errors
    /// When the keeper can't be started. A program that can't be run says so on stderr and ends.
    pub(super) fn start(launch: &Launch<'_>, permit: OwnedSemaphorePermit) -> io::Result<Self> {
        let mut command = tokio::process::Command::new(launch.keeper);
        command
            .arg0("tieline")
            .arg(KEEPER_ARG)
            .arg(std::process::id().to_string())
            .arg(launch.program)
            .args(launch.args)
            .current_dir(launch.cwd)
            .env_clear()
            .envs(launch.env)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let (Some(stdin), Some(stdout), Some(stderr)) = (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(io::Error::other("a pipe to the program is missing"));
        };
        let kept = Arc::new(Mutex::new(VecDeque::new()));
        Ok(Self {
            child,
            stdin: Some(writer(stdin)),
            stdout: LineReader::new(stdout),
            drain_until: None,
            stderr_done: Some(tokio::spawn(keep_tail(stderr, Arc::clone(&kept)))),
            stderr: kept,
            _permit: permit,
        })
    }

    /// Queues bytes for the program's stdin. False when it doesn't read any more.
    ///
    /// Never waits: a program that has stopped reading must not stop the node from reading it.
    pub(super) fn write(&self, bytes: Vec<u8>) -> bool {
        self.stdin.as_ref().is_some_and(|stdin| stdin.try_send(bytes).is_ok())
    }

    /// Closes the program's stdin once all that was queued is written.
    pub(super) fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// The next line the program writes; `None` when it has ended.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// When the line is too long or the pipe fails.
    pub(super) async fn line(&mut self) -> Result<Option<Vec<u8>>, ReadError> {
        until_ended(&mut self.child, &mut self.drain_until, self.stdout.line()).await
    }

    /// The next piece of text the program writes; `None` when it has ended.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// When the pipe fails.
    pub(super) async fn text(&mut self) -> Result<Option<String>, ReadError> {
        until_ended(&mut self.child, &mut self.drain_until, self.stdout.text()).await
    }

    /// Whether the program had not ended when last looked at.
    pub(super) fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Asks the program and all it started to end; after the keeper's grace they are killed.
    pub(super) fn end(&self) {
        if let Some(keeper) = self.keeper() {
            let _gone = kill_process(keeper, Signal::TERM);
        }
    }

    /// Waits for the end of a program that ends by itself or was asked to, and kills it when it takes too long.
    pub(super) async fn ended(&mut self) -> Option<ExitStatus> {
        if let Ok(status) = timeout(GRACE + KEEPER_GRACE, self.child.wait()).await {
            return status.ok();
        }
        if let Some(keeper) = self.keeper() {
            kill_descendants(keeper);
            let _gone = kill_process(keeper, Signal::KILL);
        }
        self.child.wait().await.ok()
    }

    /// Waits for the program's end without asking for it.
    ///
    /// Cancel safe.
    pub(super) async fn wait(&mut self) -> Option<ExitStatus> {
        self.child.wait().await.ok()
    }

    /// The end of the program's error output, for an error text.
    ///
    /// After the program has ended this waits shortly for the last of it.
    pub(super) async fn stderr(&mut self) -> String {
        if !self.is_alive()
            && let Some(task) = self.stderr_done.take()
        {
            // Whoever inherited the pipe may hold it open; what came so far has to do then.
            let _late = timeout(DRAIN, task).await;
        }
        let kept: Vec<u8> = self.stderr.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect();
        String::from_utf8_lossy(&kept).trim().to_owned()
    }

    fn keeper(&self) -> Option<Pid> {
        Pid::from_raw(i32::try_from(self.child.id()?).ok()?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The keeper does the rest; the runtime waits for it in the background.
        self.end();
    }
}

/// Reads, but not for ever: when the keeper was killed, somebody else may hold the pipe open.
async fn until_ended<T>(
    child: &mut Child,
    drain_until: &mut Option<Instant>,
    read: impl Future<Output = Result<Option<T>, ReadError>>,
) -> Result<Option<T>, ReadError> {
    let mut read = std::pin::pin!(read);
    if drain_until.is_none() {
        tokio::select! {
            biased;
            got = &mut read => return got,
            _ = child.wait() => *drain_until = Some(Instant::now() + DRAIN),
        }
    }
    timeout_at(drain_until.unwrap_or_else(Instant::now), read).await.unwrap_or(Ok(None))
}

/// How a program's end reads in an error.
pub(super) fn describe(status: Option<ExitStatus>) -> String {
    let Some(code) = status.and_then(|status| status.code()) else { return "was killed".to_owned() };
    match code {
        129..=159 => format!("was ended by signal {}", code - 128),
        _ => format!("ended with status {code}"),
    }
}

fn writer(mut stdin: ChildStdin) -> mpsc::Sender<Vec<u8>> {
    let (sender, mut receiver) = mpsc::channel::<Vec<u8>>(WRITES_WAITING_MAX);
    tokio::spawn(async move {
        while let Some(bytes) = receiver.recv().await {
            // A program that closed its stdin is a program that ended or will say why it failed.
            if stdin.write_all(&bytes).await.is_err() || stdin.flush().await.is_err() {
                return;
            }
        }
    });
    sender
}

async fn keep_tail(mut stderr: ChildStderr, kept: Arc<Mutex<VecDeque<u8>>>) {
    let mut buffer = vec![0; STDERR_KEPT];
    while let Ok(n @ 1..) = stderr.read(&mut buffer).await {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(buffer.iter().take(n));
        let excess = kept.len().saturating_sub(STDERR_KEPT);
        kept.drain(..excess);
    }
}

/// Why a program's output can't be read on.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    /// A line is too long.
    #[error("it wrote a line of more than {LINE_LEN_MAX} bytes")]
    TooLong,
    /// The pipe failed.
    #[error("its output can't be read: {0}")]
    Io(#[from] io::Error),
}

/// Reads lines, or pieces of text that never split a character.
#[derive(Debug)]
pub(super) struct LineReader<R> {
    source: R,
    buffer: Vec<u8>,
    /// Where the first byte that was not handed out stands.
    start: usize,
    /// Up to where there is no line feed.
    searched: usize,
    ended: bool,
}

impl<R: AsyncRead + Unpin> LineReader<R> {
    /// Reads from `source`.
    pub(super) const fn new(source: R) -> Self {
        Self { source, buffer: Vec::new(), start: 0, searched: 0, ended: false }
    }

    /// The next line without its line feed, also when the last one has none; `None` at the end.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// When the line is too long or the source fails.
    pub(super) async fn line(&mut self) -> Result<Option<Vec<u8>>, ReadError> {
        loop {
            let unsearched = self.buffer.get(self.searched..).unwrap_or_default();
            if let Some(at) = unsearched.iter().position(|byte| *byte == b'\n') {
                let end = self.searched + at;
                let line = self.buffer.get(self.start..end).unwrap_or_default().to_vec();
                (self.start, self.searched) = (end + 1, end + 1);
                return Ok(Some(line));
            }
            self.searched = self.buffer.len();
            if self.searched - self.start > LINE_LEN_MAX {
                return Err(ReadError::TooLong);
            }
            if self.ended {
                let line = self.buffer.split_off(self.start);
                (self.start, self.searched) = (self.buffer.len(), self.buffer.len());
                return Ok(Some(line).filter(|line| !line.is_empty()));
            }
            self.fill().await?;
        }
    }

    /// The next piece of text, at most about [`READ_LEN`] bytes; what is not UTF-8 is replaced. `None` at the end.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// When the source fails.
    pub(super) async fn text(&mut self) -> Result<Option<String>, ReadError> {
        loop {
            let (text, used) = decode(self.buffer.get(self.start..).unwrap_or_default(), self.ended);
            self.start += used;
            self.searched = self.start;
            if !text.is_empty() {
                return Ok(Some(text));
            }
            if self.ended {
                return Ok(None);
            }
            self.fill().await?;
        }
    }

    async fn fill(&mut self) -> Result<(), ReadError> {
        // Hand back the room of what was read, but not for every short line.
        if self.start >= READ_LEN || self.start == self.buffer.len() {
            self.buffer.drain(..self.start);
            self.searched -= self.start;
            self.start = 0;
            self.buffer.shrink_to(READ_LEN);
        }
        self.buffer.reserve(READ_LEN);
        let n = (&mut self.source).take(READ_LEN as u64).read_buf(&mut self.buffer).await?;
        self.ended = n == 0;
        Ok(())
    }
}

/// The text at the start of `bytes` and how many bytes it took. A character whose end is missing waits for it, unless
/// nothing more comes.
fn decode(bytes: &[u8], ended: bool) -> (String, usize) {
    let mut text = String::with_capacity(bytes.len());
    let mut used = 0;
    let mut chunks = bytes.utf8_chunks().peekable();
    while let Some(chunk) = chunks.next() {
        text.push_str(chunk.valid());
        used += chunk.valid().len();
        if chunk.invalid().is_empty() {
            continue;
        }
        // Three bytes can still become a character of four.
        let incomplete = std::str::from_utf8(chunk.invalid()).is_err_and(|error| error.error_len().is_none());
        if chunks.peek().is_none() && incomplete && !ended {
            break;
        }
        text.push(char::REPLACEMENT_CHARACTER);
        used += chunk.invalid().len();
    }
    (text, used)
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use proptest::prelude::*;
    use tokio::io::ReadBuf;

    use super::*;

    /// Gives its bytes in pieces of the given lengths.
    struct Pieces(VecDeque<Vec<u8>>);

    impl Pieces {
        fn new(bytes: &[u8], len: usize) -> Self {
            Self(bytes.chunks(len.max(1)).map(<[u8]>::to_vec).collect())
        }
    }

    impl AsyncRead for Pieces {
        fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            if let Some(piece) = self.0.pop_front() {
                buf.put_slice(&piece);
            }
            Poll::Ready(Ok(()))
        }
    }

    fn block_on<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
    }

    fn lines(bytes: &[u8], piece: usize) -> Vec<Vec<u8>> {
        block_on(async {
            let (mut reader, mut lines) = (LineReader::new(Pieces::new(bytes, piece)), Vec::new());
            while let Some(line) = reader.line().await.expect("short lines") {
                lines.push(line);
            }
            lines
        })
    }

    fn text(bytes: &[u8], piece: usize) -> String {
        block_on(async {
            let (mut reader, mut text) = (LineReader::new(Pieces::new(bytes, piece)), String::new());
            while let Some(more) = reader.text().await.expect("readable") {
                text.push_str(&more);
            }
            text
        })
    }

    proptest! {
        #[test]
        fn lines_do_not_depend_on_how_they_arrive(bytes in prop::collection::vec(prop_oneof![Just(b'\n'), any::<u8>()], 0..200), piece in 1usize..50) {
            prop_assert_eq!(lines(&bytes, piece), lines(&bytes, bytes.len()));
        }

        #[test]
        fn text_split_at_every_byte_is_the_same_text(text_in in "\\PC{0,50}", piece in 1usize..5) {
            prop_assert_eq!(text(text_in.as_bytes(), piece), text_in);
        }

        #[test]
        fn bytes_that_are_no_text_are_replaced_alike(bytes in prop::collection::vec(any::<u8>(), 0..100), piece in 1usize..5) {
            prop_assert_eq!(text(&bytes, piece), String::from_utf8_lossy(&bytes).into_owned());
        }
    }

    #[test]
    fn empty_lines_and_a_last_line_without_an_end_are_lines() {
        assert_eq!(lines(b"a\n\nb", 1), [b"a".to_vec(), Vec::new(), b"b".to_vec()]);
    }

    #[test]
    fn a_line_over_the_limit_is_an_error_before_it_is_whole() {
        let endless = tokio::io::repeat(b'x');
        let read = block_on(async { LineReader::new(endless).line().await });
        assert!(matches!(read, Err(ReadError::TooLong)), "{read:?}");
    }
}
