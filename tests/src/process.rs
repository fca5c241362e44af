//! A child process whose output is read as it comes.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::wait::DEADLINE;

/// A process that runs. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    child: Child,
    what: String,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    stderr: Option<JoinHandle<String>>,
    /// Lines taken so far, for messages and for [`Process::finish`].
    seen: String,
}

/// A process that ended.
#[derive(Clone, Debug)]
pub struct Finished {
    /// The command, for messages.
    pub what: String,
    /// The exit status; `None` when a signal ended it.
    pub code: Option<i32>,
    /// All of stdout.
    pub stdout: String,
    /// All of stderr.
    pub stderr: String,
}

impl Process {
    /// Starts a command with all three streams piped.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn spawn(mut command: Command) -> Self {
        let what = describe(&command);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("cannot start {what}: {error}"));
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().expect("stdout is piped");
        let stderr = child.stderr.take().expect("stderr is piped");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let mut reader = BufReader::new(stdout);
            let mut line = Vec::new();
            while reader.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
                if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    break;
                }
                line.clear();
            }
        });
        let stderr = std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = BufReader::new(stderr).read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        Self { child, what, stdin, lines, stderr: Some(stderr), seen: String::new() }
    }

    /// The process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Writes a line to its stdin and leaves it open.
    ///
    /// # Panics
    /// When its stdin is closed.
    pub fn write_line(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("stdin is open");
        writeln!(stdin, "{line}").and_then(|()| stdin.flush()).unwrap_or_else(|e| panic!("{}: {e}", self.what));
    }

    /// Writes text to its stdin as it is.
    ///
    /// # Panics
    /// When its stdin is closed.
    pub fn write_text(&mut self, text: &str) {
        let stdin = self.stdin.as_mut().expect("stdin is open");
        stdin.write_all(text.as_bytes()).unwrap_or_else(|e| panic!("{}: {e}", self.what));
    }

    /// Closes its stdin.
    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// The next line of stdout, without its end; `None` when it has closed stdout.
    ///
    /// # Panics
    /// When none comes within `deadline`.
    pub fn next_line(&mut self, deadline: Duration) -> Option<String> {
        match self.lines.recv_timeout(deadline) {
            Ok(line) => {
                self.seen.push_str(&line);
                Some(line.trim_end_matches('\n').to_owned())
            }
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => {
                panic!("{}: no line for {deadline:?} after:\n{}", self.what, self.seen)
            }
        }
    }

    /// Takes JSON lines of stdout until one fits.
    ///
    /// # Panics
    /// When it ends before, or none fits within [`DEADLINE`].
    pub fn wait_json(&mut self, what: &str, fits: impl FnMut(&Value) -> bool) -> Value {
        self.wait_json_within(DEADLINE, what, fits)
    }

    /// As [`Process::wait_json`], with a deadline of its own.
    ///
    /// # Panics
    /// As [`Process::wait_json`].
    pub fn wait_json_within(&mut self, deadline: Duration, what: &str, mut fits: impl FnMut(&Value) -> bool) -> Value {
        let end = Instant::now() + deadline;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{}: waited {deadline:?} for {what} in:\n{}", self.what, self.seen);
            let Some(line) = self.next_line(left) else {
                let stderr = self.stderr.take().map(|t| t.join().unwrap_or_default()).unwrap_or_default();
                panic!("{}: ended before {what}. stdout:\n{}\nstderr:\n{stderr}", self.what, self.seen);
            };
            let value = parse(&self.what, &line);
            if fits(&value) {
                return value;
            }
        }
    }

    /// Whether it still runs.
    pub fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Closes stdin, waits for the end and gives everything it printed.
    ///
    /// # Panics
    /// When it has not ended within [`DEADLINE`].
    pub fn finish(self) -> Finished {
        self.finish_within(DEADLINE)
    }

    /// As [`Process::finish`], with a deadline of its own.
    ///
    /// # Panics
    /// When the deadline passes.
    pub fn finish_within(mut self, deadline: Duration) -> Finished {
        self.stdin = None;
        let end = Instant::now() + deadline;
        while let Some(line) = self.next_line(end.saturating_duration_since(Instant::now())) {
            let _ = line;
        }
        let status = self.wait_exit(end);
        let stderr = self.stderr.take().map(|t| t.join().unwrap_or_default()).unwrap_or_default();
        Finished { what: self.what.clone(), code: status.code(), stdout: std::mem::take(&mut self.seen), stderr }
    }

    fn wait_exit(&mut self, end: Instant) -> ExitStatus {
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return status,
                Ok(None) => assert!(Instant::now() < end, "{}: closed stdout but does not end", self.what),
                Err(error) => panic!("{}: {error}", self.what),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Finished {
    /// Asserts that it ended with 0.
    ///
    /// # Panics
    /// When it did not; the message has all it printed.
    #[must_use]
    pub fn ok(self) -> Self {
        self.code(0)
    }

    /// Asserts how it ended.
    ///
    /// # Panics
    /// When it ended otherwise; the message has all it printed.
    #[must_use]
    pub fn code(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{}\nstdout:\n{}\nstderr:\n{}", self.what, self.stdout, self.stderr);
        self
    }

    /// Its stdout as exactly one JSON value.
    ///
    /// # Panics
    /// When it is anything else.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| {
            panic!("{}: stdout is not one JSON value: {error}\n{}\nstderr:\n{}", self.what, self.stdout, self.stderr)
        })
    }

    /// Its stdout as one JSON value a line.
    ///
    /// # Panics
    /// When a line is not JSON.
    #[must_use]
    pub fn json_lines(&self) -> Vec<Value> {
        self.stdout.lines().map(|line| parse(&self.what, line)).collect()
    }

    /// The stable code of the error it reported with `--json`.
    ///
    /// # Panics
    /// When it reported none, or one without a message.
    #[must_use]
    pub fn error_code(&self) -> String {
        let value = self.json();
        let error = &value["error"];
        assert!(error["message"].as_str().is_some_and(|m| !m.is_empty()), "{}: no message in {value}", self.what);
        error["code"].as_str().unwrap_or_else(|| panic!("{}: no code in {value}", self.what)).to_owned()
    }
}

/// What a program of a member may find in its environment: these, when the node has them, and what its owner passes on.
pub const ALLOWED_ENV: [&str; 24] = [
    "HOME",
    "PATH",
    "LANG",
    "TMPDIR",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "GIT_SSL_CAINFO",
    "TIELINE_SOCKET",
    "TIELINE_CHANNEL",
    "TIELINE_MEMBER",
    "TIELINE_TOKEN",
    "TIELINE_POLICY",
    "TIELINE_MODEL",
];

/// Asserts that an environment, as `/proc/PID/environ` has it, holds nothing but what a member's program may see.
///
/// # Panics
/// When it holds more.
pub fn assert_allowed_env(environ: &str) {
    let names = environ.split(['\0', '\n']).filter_map(|pair| Some(pair.split_once('=')?.0));
    let more: Vec<_> = names.filter(|name| !ALLOWED_ENV.contains(name)).collect();
    assert!(more.is_empty(), "{more:?} reached the program");
    assert!(environ.contains("TIELINE_TOKEN="), "the environment could not be read: {environ:?}");
}

fn parse(what: &str, line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{what}: not JSON: {error}: {line}"))
}

fn describe(command: &Command) -> String {
    let mut text = command.get_program().to_string_lossy().into_owned();
    for arg in command.get_args() {
        let _ = write!(text, " {}", arg.to_string_lossy());
    }
    text
}
