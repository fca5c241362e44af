//! `tieline logs`: what the node wrote into its log file.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use serde_json::Value;
use tieline_proto::api::{ApiError, Code};
use tieline_proto::text::one_line;

use super::out::Style;
use super::{Context, Done, Exit};
use crate::logging::{DIR_NAME, FILE_NAME};

/// How often a followed file is looked at.
const LOOK: Duration = Duration::from_millis(200);

/// Longest record that is shown, in bytes; the rest of a longer one is passed over.
const RECORD_LEN_MAX: u64 = 1024 * 1024;

/// Show the node's log.
#[derive(Args, Debug)]
pub struct Logs {
    /// How many of the last records to show
    #[arg(short = 'n', long, value_name = "N", default_value_t = 100)]
    lines: usize,

    /// Go on with what comes
    #[arg(short, long)]
    follow: bool,
}

/// Runs it.
pub async fn run(context: &Context, args: Logs) -> Done {
    let path = context.data().join(DIR_NAME).join(FILE_NAME);
    let unreadable = |error: std::io::Error| {
        let code = if error.kind() == std::io::ErrorKind::NotFound { Code::NotFound } else { Code::Internal };
        ApiError::new(code, format!("{} can't be read: {error}", path.display())).hint("the node writes it: tieline up")
    };
    let mut reader = Reader::open(&path).map_err(unreadable)?;
    let mut last = VecDeque::new();
    while let Some(record) = reader.next().map_err(unreadable)? {
        if last.len() >= args.lines {
            last.pop_front();
        }
        if args.lines > 0 {
            last.push_back(record);
        }
    }
    let out = context.out;
    if out.json && !args.follow {
        let records: Vec<Value> = last.iter().filter_map(|record| serde_json::from_str(record).ok()).collect();
        out.value(&records)?;
        return Ok(Exit::OK);
    }
    for record in &last {
        print(context, record)?;
    }
    if !args.follow {
        return Ok(Exit::OK);
    }
    loop {
        while let Some(record) = reader.next().map_err(unreadable)? {
            print(context, &record)?;
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            _ = tokio::signal::ctrl_c() => break,
        }
        if reader.was_rotated(&path) {
            // What was written into the old file between our last look and its rotation comes first.
            while let Some(record) = reader.next().map_err(unreadable)? {
                print(context, &record)?;
            }
            reader = Reader::open(&path).map_err(unreadable)?;
        }
    }
    Ok(Exit::OK)
}

fn print(context: &Context, record: &str) -> Result<(), ApiError> {
    let parsed: Option<Value> = serde_json::from_str(record).ok();
    match parsed {
        Some(record) if context.out.json => context.out.value(&record),
        Some(record) => context.out.text(&pretty(context.out.style, &record)),
        None if context.out.json => Ok(()),
        None => context.out.text(&one_line(record, 4000)),
    }
}

/// `2030-01-01T12:00:00Z INFO tieline::net: link up node=lab`.
fn pretty(style: Style, record: &Value) -> String {
    let text = |key: &str| one_line(record[key].as_str().unwrap_or_default(), 100);
    let level = match record["level"].as_str().unwrap_or_default() {
        "ERROR" => style.bad("ERROR"),
        "WARN" => style.warn("WARN "),
        other => style.dim(&format!("{:5}", one_line(other, 5))),
    };
    let mut line = format!("{} {level} {}", style.dim(&text("timestamp")), style.dim(&(text("target") + ":")));
    let fields = record["fields"].as_object();
    if let Some(message) = fields.and_then(|fields| fields.get("message")).and_then(Value::as_str) {
        line.push_str(&format!(" {}", one_line(message, 4000)));
    }
    for (key, value) in fields.into_iter().flatten().filter(|(key, _)| *key != "message") {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        line.push_str(&format!(" {}{}", style.dim(&(one_line(key, 40) + "=")), one_line(&value, 1000)));
    }
    line
}

/// Reads whole records of a file that grows.
struct Reader {
    file: BufReader<std::fs::File>,
    inode: u64,
}

impl Reader {
    fn open(path: &Path) -> std::io::Result<Self> {
        let file = std::fs::File::open(path)?;
        let inode = file.metadata()?.ino();
        Ok(Self { file: BufReader::new(file), inode })
    }

    /// The next record; `None` when there is no whole one yet.
    fn next(&mut self) -> std::io::Result<Option<String>> {
        let start = self.file.stream_position()?;
        let mut bytes = Vec::new();
        let read = self.file.by_ref().take(RECORD_LEN_MAX).read_until(b'\n', &mut bytes)?;
        if bytes.last() != Some(&b'\n') && (read as u64) < RECORD_LEN_MAX {
            self.file.seek(SeekFrom::Start(start))?;
            return Ok(None);
        }
        Ok(Some(String::from_utf8_lossy(&bytes).trim_end().to_owned()))
    }

    fn was_rotated(&self, path: &Path) -> bool {
        std::fs::metadata(path).is_ok_and(|meta| meta.ino() != self.inode)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use serde_json::json;

    use super::*;

    #[test]
    fn records_are_shown_in_one_safe_line() {
        let record = json!({"timestamp": "t", "level": "WARN", "target": "tieline::net",
            "fields": {"message": "link\ndown", "node": "\x1b[2Jlab", "n": 3}});
        assert_eq!(pretty(Style::PLAIN, &record), "t WARN  tieline::net: link␊down n=3 node=␛[2Jlab");
    }

    #[test]
    fn half_a_record_waits_for_its_rest() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut file = std::fs::File::create(&path).unwrap();
        file.write_all(b"one\ntw").unwrap();
        let mut reader = Reader::open(&path).unwrap();
        assert_eq!(reader.next().unwrap().as_deref(), Some("one"));
        assert_eq!(reader.next().unwrap(), None);
        file.write_all(b"o\n").unwrap();
        assert_eq!(reader.next().unwrap().as_deref(), Some("two"));
        std::fs::rename(&path, dir.path().join("log.1")).unwrap();
        std::fs::File::create(&path).unwrap();
        assert!(reader.was_rotated(&path));
    }
}
