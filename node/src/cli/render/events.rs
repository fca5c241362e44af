//! Events of running turns.

use tieline_proto::event::Event;
use tieline_proto::id::MessageId;

use super::{Kind, Renderer, short};

impl Renderer {
    pub(super) fn event(&mut self, message: MessageId, index: u64, event: &Event) {
        let Some(turn) = self.turns.get_mut(&message) else { return };
        // What was missed is shown when the turn ends.
        turn.whole &= index <= turn.next;
        if index < turn.next {
            return;
        }
        turn.next = index + 1;
        match event {
            Event::Text { text } => self.say(message, Kind::Text, text),
            Event::Block { text } => {
                self.say(message, Kind::Text, "");
                let gap = self.open.as_ref().is_some_and(|open| open.kind == Kind::Text && !open.at_line_start);
                let text = format!("{}{}\n", if gap { "\n\n" } else { "" }, text.trim_end_matches('\n'));
                self.say(message, Kind::Text, &text);
            }
            Event::Reasoning { text } if self.details => {
                self.enter(message, None);
                self.write(Kind::Reasoning, text);
            }
            Event::ToolCall { name, input, .. } => {
                let input = match input {
                    serde_json::Value::Null => String::new(),
                    serde_json::Value::String(text) => text.clone(),
                    other => other.to_string(),
                };
                self.line(message, &format!("⚙ {} {}", short(name), short(&input)));
            }
            Event::ToolResult { ok, output, cut, .. } if self.details => {
                let mark = if *ok { "↳" } else { "↳ failed:" };
                let more = if *cut > 0 { format!(" (and {cut} bytes)") } else { String::new() };
                let lines = output.lines().count();
                let lines = if lines > 1 { format!(" ({lines} lines)") } else { String::new() };
                let first = output.lines().next().unwrap_or_default();
                self.line(message, &format!("{mark} {}{lines}{more}", short(first)));
            }
            Event::Started { model: Some(model) } if self.details => {
                self.line(message, &format!("started, model {}", short(model)));
            }
            Event::Usage { usage } if self.details => {
                self.line(message, &format!("{} tokens in, {} out so far", usage.input, usage.output));
            }
            Event::Compaction { done } if self.details => {
                self.line(message, if *done { "context compacted" } else { "compacting the context" });
            }
            Event::Retry { reason } => self.line(message, &format!("tries again: {}", short(reason))),
            Event::Notice { text } => self.line(message, &short(text)),
            Event::ChildStarted { title, .. } => self.line(message, &format!("sub-agent: {}", short(title))),
            Event::ChildEnded { ok: false, .. } => self.line(message, "sub-agent failed"),
            // Cards and ends are entries; the rest is not for people.
            _ => {}
        }
    }

    /// A piece of the answer.
    fn say(&mut self, message: MessageId, kind: Kind, piece: &str) {
        self.enter(message, None);
        self.write(kind, piece);
        if let Some(turn) = self.turns.get_mut(&message) {
            turn.has_text |= !piece.is_empty();
        }
    }

    /// A remark about the turn.
    fn line(&mut self, message: MessageId, line: &str) {
        self.enter(message, None);
        let line = self.style.dim(line.trim_end());
        self.write_line(&line);
    }
}
