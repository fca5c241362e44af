//! A run's journal as the resident writes it: events to lines, counted and hashed as they pass.

use crate::event::{EVENT_LEN_MAX, Event, Outcome, TOOL_OUTPUT_LEN_MAX};
use crate::id::Hash;
use crate::turn::FINAL_TEXT_LEN_MAX;
use crate::wire::json;

/// Text of one event before JSON escaping: a control character grows sixfold, so this keeps any line under
/// [`EVENT_LEN_MAX`].
const TEXT_LEN_MAX: usize = 64 * 1024;

/// Stands where something was cut.
const CUT: &str = "\n… [cut]";

/// Turns events into journal lines.
#[derive(Clone, Debug, Default)]
pub struct EventJournal {
    events: u64,
    length: u64,
    hasher: blake3::Hasher,
}

impl EventJournal {
    /// Appends an event's line (or lines: long text is split) to `out`.
    pub fn push(&mut self, event: Event, out: &mut Vec<u8>) {
        match event {
            Event::Text { text } => self.split(&text, out, |text| Event::Text { text }),
            Event::Block { text } => self.split(&text, out, |text| Event::Block { text }),
            Event::Reasoning { text } => self.split(&text, out, |text| Event::Reasoning { text }),
            Event::Notice { text } => self.split(&text, out, |text| Event::Notice { text }),
            Event::ToolResult { id, ok, output, cut } => {
                let kept = prefix(&output, TOOL_OUTPUT_LEN_MAX);
                let cut = cut + (output.len() - kept.len()) as u64;
                self.line(&Event::ToolResult { id, ok, output: kept.to_owned(), cut }, out);
            }
            Event::Finished { mut outcome } => {
                bound(&mut outcome);
                self.line(&Event::Finished { outcome }, out);
            }
            other => self.line(&other, out),
        }
    }

    fn split(&mut self, mut text: &str, out: &mut Vec<u8>, event: impl Fn(String) -> Event) {
        loop {
            let piece = prefix(text, TEXT_LEN_MAX);
            self.line(&event(piece.to_owned()), out);
            text = text.get(piece.len()..).unwrap_or_default();
            if text.is_empty() {
                break;
            }
        }
    }

    fn line(&mut self, event: &Event, out: &mut Vec<u8>) {
        let start = out.len();
        let written = serde_json::to_writer(&mut *out, event).is_ok();
        let line = out.get(start..).unwrap_or_default();
        if !written || json::check(line, json::Limits::line(EVENT_LEN_MAX)).is_err() {
            // Only a tool's input or a question can be this large or deep. The home would refuse the line and with it
            // the attempt, so it is said instead that something was here.
            out.truncate(start);
            let text = "an event that is too large or too deep was left out".to_owned();
            let notice = serde_json::to_vec(&Event::Notice { text }).unwrap_or_default();
            out.extend_from_slice(&notice);
        }
        out.push(b'\n');
        let line = out.get(start..).unwrap_or_default();
        self.hasher.update(line);
        self.length += line.len() as u64;
        self.events += 1;
    }

    /// Takes in lines that are on disk already.
    pub fn absorb(&mut self, lines: &[u8]) {
        self.hasher.update(lines);
        self.length += lines.len() as u64;
        self.events += lines.iter().filter(|byte| **byte == b'\n').count() as u64;
    }

    /// Events so far.
    #[must_use]
    pub const fn events(&self) -> u64 {
        self.events
    }

    /// Bytes so far.
    #[must_use]
    pub const fn length(&self) -> u64 {
        self.length
    }

    /// Hash of the bytes so far.
    #[must_use]
    pub fn hash(&self) -> Hash {
        Hash(*self.hasher.finalize().as_bytes())
    }
}

fn bound(outcome: &mut Outcome) {
    // Six bytes is what JSON needs for one control character at most.
    if outcome.text.len() > FINAL_TEXT_LEN_MAX / 6 {
        let keep = escaped_prefix(&outcome.text, FINAL_TEXT_LEN_MAX);
        if keep < outcome.text.len() {
            outcome.text.truncate(keep);
            outcome.text.push_str(CUT);
        }
    }
    if let Some(error) = &mut outcome.error {
        *error = prefix(error, 16 * 1024).to_owned();
    }
}

/// Length of the longest prefix that takes at most `max` bytes as JSON.
fn escaped_prefix(text: &str, max: usize) -> usize {
    let mut left = max;
    for (at, c) in text.char_indices() {
        let len = match c {
            '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
            c if c.is_ascii_control() => 6,
            c => c.len_utf8(),
        };
        match left.checked_sub(len) {
            Some(rest) => left = rest,
            None => return at,
        }
    }
    text.len()
}

/// The longest prefix of at most `max` bytes that ends between characters.
fn prefix(text: &str, max: usize) -> &str {
    let mut end = max.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Status;

    #[test]
    fn long_text_is_split_and_nothing_is_lost() {
        let text = "é\u{1}x".repeat(100_000);
        let mut journal = EventJournal::default();
        let mut out = Vec::new();
        journal.push(Event::Text { text: text.clone() }, &mut out);
        let mut joined = String::new();
        for line in out.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            assert!(line.len() <= EVENT_LEN_MAX);
            let Event::Text { text } = serde_json::from_slice(line).expect("a line") else { panic!("a text") };
            joined.push_str(&text);
        }
        assert_eq!(joined, text);
        assert_eq!(journal.length(), out.len() as u64);
        assert_eq!(journal.hash(), Hash::of(&out));
    }

    #[test]
    fn a_huge_final_text_is_cut_with_a_marker() {
        let mut journal = EventJournal::default();
        let mut out = Vec::new();
        let outcome = Outcome { status: Status::Completed, text: "\u{1}".repeat(400_000), error: None, usage: None };
        journal.push(Event::Finished { outcome }, &mut out);
        let Event::Finished { outcome } = serde_json::from_slice(&out).expect("a line") else { panic!("finished") };
        assert!(outcome.text.ends_with(CUT));
        assert_eq!(journal.events(), 1);
    }
}
