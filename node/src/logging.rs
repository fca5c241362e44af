//! Logs: to stderr for whoever started the node, to a file for whoever asks later what happened.
//!
//! The file, `logs/tieline.log` in the data folder, holds one JSON object a line and is rotated by size. A crash leaves
//! `last-crash.txt` beside it: a daemon's stderr is gone when one needs it.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tieline_proto::text;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use crate::config::{Config, LogFormat};

mod file;

pub use file::{FILE_LEN_MAX, FILES_MAX, RotatingFile};

/// Folder of the logs in the data folder.
pub const DIR_NAME: &str = "logs";

/// The current log file.
pub const FILE_NAME: &str = "tieline.log";

/// What the last crash said.
pub const CRASH_NAME: &str = "last-crash.txt";

/// Sends the node's logs to stderr, and to its file once [`start_file`] was called.
///
/// # Errors
/// When this process has a logger already.
pub fn init_node(config: &Config) -> io::Result<()> {
    let filter = || EnvFilter::try_new(&config.log_level).unwrap_or_default();
    let to_file = tracing_subscriber::fmt::layer().json().with_writer(ToFile);
    tracing_subscriber::registry()
        .with(to_file.with_filter(filter()))
        .with(stderr_layer(config.log).with_filter(filter()))
        .try_init()
        .map_err(io::Error::other)
}

/// Opens the log file of a data folder and writes into it what was logged so far; from then on crashes leave
/// [`CRASH_NAME`]. The caller holds the folder: another node's log, or a newer version's, is not to be touched.
///
/// # Errors
/// When the file can't be opened or written.
pub fn start_file(data: &Path) -> io::Result<()> {
    let dir = data.join(DIR_NAME);
    std::fs::create_dir_all(&dir)?;
    let mut file = RotatingFile::open(&dir.join(FILE_NAME), FILE_LEN_MAX, FILES_MAX)?;
    let mut sink = sink();
    if let Sink::Waiting(early) = &*sink {
        file.write_record(early)?;
    }
    *sink = Sink::File(file);
    drop(sink);
    write_crashes_to(dir.join(CRASH_NAME));
    Ok(())
}

/// Sends a command's own logs to stderr: warnings only, unless asked.
pub fn init_command(format: LogFormat, level: Option<&str>) {
    let filter = EnvFilter::try_new(level.unwrap_or("warn")).unwrap_or_default();
    // Fails only when a test has set one already.
    let _ = tracing_subscriber::registry().with(stderr_layer(format).with_filter(filter)).try_init();
}

fn stderr_layer<S>(format: LogFormat) -> Box<dyn Layer<S> + Send + Sync>
where
    S: tracing::Subscriber + for<'a> tracing_subscriber::registry::LookupSpan<'a>,
{
    match format {
        LogFormat::Json => tracing_subscriber::fmt::layer().json().with_writer(io::stderr).boxed(),
        LogFormat::Human => {
            let has_color = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
            tracing_subscriber::fmt::layer().compact().with_ansi(has_color).with_writer(Visible).boxed()
        }
    }
}

/// Writes to stderr what is safe to show: fields hold names and errors of others.
struct Visible;

impl<'a> MakeWriter<'a> for Visible {
    type Writer = VisibleLine;

    fn make_writer(&'a self) -> VisibleLine {
        VisibleLine(Vec::new())
    }
}

/// One record on its way to stderr.
struct VisibleLine(Vec<u8>);

impl Write for VisibleLine {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for VisibleLine {
    fn drop(&mut self) {
        let line = String::from_utf8_lossy(&self.0);
        // The formatter's own colors are the only escapes that may pass.
        let mut shown = String::with_capacity(line.len());
        for part in split_colors(&line) {
            match part {
                Part::Color(code) => shown.push_str(code),
                Part::Text(part) => shown.push_str(&text::visible(part)),
            }
        }
        let _ = io::stderr().lock().write_all(shown.as_bytes());
    }
}

enum Part<'a> {
    Color(&'a str),
    Text(&'a str),
}

/// Splits a record at color sequences: ESC, `[`, digits and `;`, `m`. Nothing else that starts with ESC is one.
fn split_colors(mut line: &str) -> impl Iterator<Item = Part<'_>> {
    std::iter::from_fn(move || {
        if line.is_empty() {
            return None;
        }
        let color_len = |text: &str| {
            let rest = text.strip_prefix("\x1b[")?;
            let digits = rest.bytes().take_while(|c| c.is_ascii_digit() || *c == b';').count();
            (rest.as_bytes().get(digits) == Some(&b'm')).then_some(2 + digits + 1)
        };
        if let Some((color, rest)) = color_len(line).and_then(|len| line.split_at_checked(len)) {
            line = rest;
            return Some(Part::Color(color));
        }
        // The first character is text whatever it is; the next ESC may begin a color.
        let skip = line.chars().next().map_or(0, char::len_utf8);
        let end = line.get(skip..).and_then(|rest| rest.find('\x1b')).map_or(line.len(), |at| skip + at);
        let (text, rest) = line.split_at_checked(end)?;
        line = rest;
        Some(Part::Text(text))
    })
}

/// Where file records go.
enum Sink {
    /// The folder is not ours yet.
    Waiting(Vec<u8>),
    File(RotatingFile),
}

/// Bytes kept for a file that is not open yet. What starting says is a few lines.
const EARLY_LEN_MAX: usize = 64 * 1024;

static SINK: Mutex<Sink> = Mutex::new(Sink::Waiting(Vec::new()));

fn sink() -> MutexGuard<'static, Sink> {
    // A record that was half written when its thread died is followed by whole ones.
    SINK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes to the file, a record at a time, from all threads.
struct ToFile;

impl<'a> MakeWriter<'a> for ToFile {
    type Writer = Record;

    fn make_writer(&'a self) -> Record {
        Record(Vec::new())
    }
}

/// One record on its way to the file.
struct Record(Vec<u8>);

impl Write for Record {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        match &mut *sink() {
            Sink::Waiting(early) if early.len() + self.0.len() <= EARLY_LEN_MAX => early.extend_from_slice(&self.0),
            Sink::Waiting(_) => {}
            // A full disk must not stop the node from saying so on stderr.
            Sink::File(file) => {
                let _ = file.write_record(&self.0);
            }
        }
    }
}

/// Adds to the panic hook: the crash also goes to the log and to a file of its own.
fn write_crashes_to(path: PathBuf) {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let backtrace = std::backtrace::Backtrace::force_capture();
        let thread = std::thread::current();
        let thread = thread.name().unwrap_or("unnamed").to_owned();
        // The log first: it is already open.
        tracing::error!(panic = %info, thread, "crashed");
        let _ = write_crash(&path, &format!("{info}\nthread: {thread}\n\n{backtrace}\n"));
        before(info);
    }));
}

fn write_crash(path: &Path, what: &str) -> io::Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    let when = jiff::Timestamp::now();
    std::fs::write(path, format!("tieline {version} crashed at {when}\n{what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(line: &str) -> String {
        split_colors(line)
            .map(|part| match part {
                Part::Color(_) => "<c>".to_owned(),
                Part::Text(text) => text::visible(text).into_owned(),
            })
            .collect()
    }

    #[test]
    fn only_color_sequences_pass() {
        assert_eq!(shown("\x1b[2m12:00\x1b[0m ok"), "<c>12:00<c> ok");
        assert_eq!(shown("\x1b]52;c;eA==\x07"), "␛]52;c;eA==␇");
        assert_eq!(shown("\x1b[2J\x1b[31mé"), "␛[2J<c>é");
        assert_eq!(shown("\x1b"), "␛");
        assert_eq!(shown("\x1b["), "␛[");
    }

    #[test]
    fn case_o11_a_crash_leaves_its_cause_in_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(CRASH_NAME);
        write_crashes_to(path.clone());
        let _ = std::thread::Builder::new().name("worker".to_owned()).spawn(|| panic!("the cause")).unwrap().join();
        let _ = std::panic::take_hook();
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.starts_with("tieline ") && text.contains("the cause") && text.contains("worker"), "{text}");
        assert!(text.contains("logging.rs"), "{text}");
    }
}
