//! How a channel looks in a terminal: messages with their text set in, turns streaming as they run, everything else
//! one quiet line.
//!
//! Pure: frames in, text out. Text of others passes [`text::visible`] on its way, so no frame can move the cursor.

use std::collections::BTreeMap;

use jiff::tz::TimeZone;
use serde::Deserialize;
use tieline_proto::entry::{Body, Entry};
use tieline_proto::event::Event;
use tieline_proto::id::{MemberId, MessageId, NodeId};
use tieline_proto::text;

use super::follow::{Frame, FrameHead};
use super::out::{Out, Style};
use crate::config::shell_word;

mod entries;
mod events;

/// What text of a message is set in by.
const INDENT: &str = "    ";

/// Characters shown of a tool's input, a reason, a name.
const LINE_LEN_MAX: usize = 160;

/// Characters shown of why a turn failed: it ends with what to do about it.
const REASON_LEN_MAX: usize = 1000;

/// Turns followed at a time; of older ones only the end is shown.
const STREAMS_MAX: usize = 256;

/// Renders one channel's frames in the order they come.
#[derive(Debug)]
pub struct Renderer {
    style: Style,
    /// The channel, and how this program is called for its node: for what is shown to be typed.
    channel: String,
    program: String,
    details: bool,
    /// Whether what comes is new, and not history.
    live: bool,
    zone: TimeZone,
    names: BTreeMap<MemberId, String>,
    /// What people call nodes.
    nodes: BTreeMap<NodeId, String>,
    turns: BTreeMap<MessageId, Turn>,
    /// What the next line belongs to.
    open: Option<Open>,
    out: String,
}

/// A turn that runs.
#[derive(Debug)]
struct Turn {
    by: String,
    /// What it answers: `#3` or `#3, #4`.
    about: String,
    started_ts: u64,
    /// Index of the event that comes next when none is missing.
    next: u64,
    /// Whether all of its text so far was shown.
    whole: bool,
    /// Whether any of its text was shown.
    has_text: bool,
    /// Nobody knows how it ended.
    held: bool,
}

/// The block at the cursor.
#[derive(Debug)]
struct Open {
    message: MessageId,
    kind: Kind,
    at_line_start: bool,
}

/// What was last written into a block.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Nothing,
    Text,
    Reasoning,
    Line,
}

/// An entry frame.
#[derive(Deserialize)]
struct EntryFrame {
    #[serde(default)]
    message: Option<MessageId>,
    kind: String,
    author: String,
    line: Entry,
}

/// An entry frame whose line is of a newer version.
#[derive(Deserialize)]
struct Newer {
    #[serde(default)]
    message: Option<MessageId>,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    author: String,
}

#[derive(Deserialize)]
struct EventFrame {
    event: Event,
}

impl Renderer {
    /// A renderer at the beginning of a channel, in the user's time zone.
    pub fn new(style: Style) -> Self {
        Self {
            style,
            channel: "CHANNEL".to_owned(),
            program: "tieline".to_owned(),
            details: false,
            live: false,
            zone: TimeZone::system(),
            names: BTreeMap::new(),
            nodes: BTreeMap::new(),
            turns: BTreeMap::new(),
            open: None,
            out: String::new(),
        }
    }

    /// Learns what is typed to answer in this channel.
    pub fn of(mut self, channel: &str, out: Out) -> Self {
        self.channel = shell_word(&short(channel));
        self.program = out.program.to_owned();
        self
    }

    /// Shows also what only somebody who looks for it wants: tool results, reasoning, usage, hand-over.
    pub fn with_details(mut self, details: bool) -> Self {
        self.details = details;
        self
    }

    /// Takes what comes for new from the start.
    pub fn live(mut self) -> Self {
        self.live = true;
        self
    }

    /// Learns members' handles.
    pub fn name(&mut self, names: impl IntoIterator<Item = (MemberId, String)>) {
        self.names.extend(names);
    }

    /// Learns what people call nodes.
    pub fn name_nodes(&mut self, nodes: impl IntoIterator<Item = (NodeId, String)>) {
        self.nodes.extend(nodes);
    }

    /// Renders the next frame.
    pub fn frame(&mut self, frame: &Frame) -> String {
        let raw = frame.raw.get();
        match frame.head {
            FrameHead::Entry { .. } => match serde_json::from_str::<EntryFrame>(raw) {
                Ok(EntryFrame { line: Entry { body: Body::Unknown, .. }, message, kind, author }) => {
                    self.newer(message, &kind, &author);
                }
                Ok(entry) => self.entry(&entry),
                Err(_) => {
                    if let Ok(Newer { message, kind, author }) = serde_json::from_str(raw) {
                        self.newer(message, &kind, &author);
                    }
                }
            },
            FrameHead::Event { message, index, .. } => {
                let event = serde_json::from_str::<EventFrame>(raw).map_or(Event::Unknown, |frame| frame.event);
                self.event(message, index, &event);
            }
            FrameHead::Synced { .. } => self.synced(),
            FrameHead::Gap { from, to } => {
                let line = self.style.warn(&format!("entries {from} to {to} are missing; asking again"));
                self.quiet_line(&line);
            }
            FrameHead::Seal { .. } | FrameHead::End {} | FrameHead::Unknown => {}
        }
        std::mem::take(&mut self.out)
    }

    /// Ends the line at the cursor.
    pub fn close(&mut self) -> String {
        self.leave();
        std::mem::take(&mut self.out)
    }

    fn newer(&mut self, message: Option<MessageId>, kind: &str, author: &str) {
        let number = message.map_or_else(String::new, |message| format!("#{message} "));
        let line = format!("{number}newer message by {} ({}): upgrade to read it", short(author), short(kind));
        self.quiet_line(&self.style.dim(&line));
    }

    /// History is over: turns that still run are announced.
    fn synced(&mut self) {
        if std::mem::replace(&mut self.live, true) {
            return;
        }
        let running: Vec<_> =
            self.turns.iter().filter(|(_, turn)| !turn.has_text && !turn.held).map(|(message, _)| *message).collect();
        for message in running {
            self.enter(message, None);
        }
    }

    fn command(&self, args: &str) -> String {
        format!("{} {args}", self.program)
    }

    fn handle_of(&self, member: MemberId) -> String {
        self.names.get(&member).cloned().unwrap_or_else(|| format!("member {member}"))
    }

    fn time(&self, ts: u64) -> String {
        let stamp = i64::try_from(ts).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
        stamp
            .map_or_else(|| "--:--".to_owned(), |stamp| stamp.to_zoned(self.zone.clone()).strftime("%H:%M").to_string())
    }

    /// Ends the block at the cursor.
    fn leave(&mut self) {
        if let Some(open) = self.open.take()
            && !open.at_line_start
        {
            self.out.push('\n');
        }
    }

    /// One line outside of blocks.
    fn quiet_line(&mut self, line: &str) {
        self.leave();
        self.out.push_str(line);
        self.out.push('\n');
    }

    /// Begins a block with its heading: time, number, who, and what is said about it.
    fn heading(&mut self, message: MessageId, ts: Option<u64>, who: &str, about: &str) {
        self.leave();
        let time = ts.map_or_else(|| "     ".to_owned(), |ts| self.time(ts));
        let number = self.style.bold(&format!("#{message}"));
        self.out.push_str(&format!("\n{}  {number} {}", self.style.dim(&time), self.style.handle(&short(who))));
        if !about.is_empty() {
            self.out.push(' ');
            self.out.push_str(about);
        }
        self.out.push('\n');
        self.open = Some(Open { message, kind: Kind::Nothing, at_line_start: true });
    }

    /// Makes a turn's block the one at the cursor.
    fn enter(&mut self, message: MessageId, ts: Option<u64>) {
        if self.open.as_ref().is_some_and(|open| open.message == message) {
            return;
        }
        let (who, about, ts) = match self.turns.get(&message) {
            Some(turn) if turn.has_text => (turn.by.clone(), self.style.dim("goes on"), ts),
            Some(turn) => (turn.by.clone(), self.style.dim(&format!("answers {}", turn.about)), Some(turn.started_ts)),
            None => (String::from("?"), String::new(), ts),
        };
        self.heading(message, ts, &who, &about);
    }

    /// Writes into the block at the cursor, set in. Pieces of one kind join; another kind begins a new line.
    fn write(&mut self, kind: Kind, piece: &str) {
        let Some(open) = &mut self.open else { return };
        if open.kind != kind && !open.at_line_start {
            self.out.push('\n');
            open.at_line_start = true;
        }
        open.kind = kind;
        for line in text::visible(piece).split_inclusive('\n') {
            let (line, ends) = line.strip_suffix('\n').map_or((line, false), |line| (line, true));
            if !line.is_empty() {
                if open.at_line_start {
                    self.out.push_str(INDENT);
                }
                let shown = if kind == Kind::Reasoning { self.style.dim(line) } else { line.to_owned() };
                self.out.push_str(&shown);
                open.at_line_start = false;
            }
            if ends {
                self.out.push('\n');
                open.at_line_start = true;
            }
        }
    }

    /// Writes a line of ours into the block at the cursor. It may be marked up, so what is in it is safe already.
    fn write_line(&mut self, line: &str) {
        let Some(open) = &mut self.open else { return };
        if !open.at_line_start {
            self.out.push('\n');
        }
        self.out.push_str(INDENT);
        self.out.push_str(line);
        self.out.push('\n');
        open.at_line_start = true;
        open.kind = Kind::Line;
    }
}

/// One line, safe and not too long.
fn short(text: &str) -> String {
    text::one_line(text, LINE_LEN_MAX)
}

fn numbers(messages: &[MessageId]) -> String {
    messages.iter().map(|message| format!("#{message}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
