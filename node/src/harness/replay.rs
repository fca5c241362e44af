//! Reads recorded streams of real programs and shows what becomes of them, for tests.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;
use tieline_proto::entry::Policy;
use tieline_proto::event::{Event, Outcome};
use tieline_proto::id::{Attempt, ChannelId, MemberId, MessageId};
use tieline_proto::link::AttemptId;

use super::TurnSpec;
use super::step::Step;

/// One recorded line: read from the program (`true`) or written to it.
pub(super) type Line = (bool, Value);

/// The lines of a recording.
pub(super) fn recorded(file: &str) -> Vec<Line> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/harness").join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    lines
        .map(|line| match line.get("frame") {
            Some(frame) => (line["dir"] == "out", frame.clone()),
            None => (true, line),
        })
        .collect()
}

/// A turn that a home asks for.
pub(super) fn spec(prompt: &str) -> TurnSpec {
    TurnSpec {
        id: AttemptId { channel: ChannelId([7; 32]), run: MessageId(1), attempt: Attempt(1) },
        member: MemberId(2),
        prompt: prompt.to_owned(),
        cwd: "/home/dev/project".into(),
        model: None,
        policy: Policy::Ask,
        session: None,
        again: false,
        env: BTreeMap::new(),
    }
}

/// Shows steps, one a line; pieces of one text are joined with `|`.
pub(super) fn show(steps: &[Step]) -> String {
    let mut lines: Vec<String> = Vec::new();
    for step in steps {
        let line = match step {
            // Paragraphs show in the texts they part.
            Step::Paragraph | Step::Resume => continue,
            Step::Event(event) => show_event(event),
            Step::Session(session) => format!("session {session}"),
            Step::Send(frame) => format!("send {frame}"),
            Step::Pause(outcome) => format!("pause {}", show_outcome(outcome)),
            Step::Done(outcome) => format!("done {}", show_outcome(outcome)),
            Step::Lost => "lost".to_owned(),
        };
        match lines.last_mut() {
            Some(last) if line.starts_with("text ") && last.starts_with("text ") => {
                let _infallible = write!(last, "|{}", line.trim_start_matches("text "));
            }
            _ => lines.push(line),
        }
    }
    lines.join("\n")
}

fn show_event(event: &Event) -> String {
    match event {
        Event::Started { model } => format!("started {}", model.as_deref().unwrap_or("-")),
        Event::Text { text } => format!("text {text}"),
        Event::Reasoning { text } => format!("reasoning {text}"),
        Event::ToolCall { id, name, input, parent } => {
            let parent = parent.as_ref().map(|parent| format!(" in {parent}")).unwrap_or_default();
            format!("call {id} {name} {input}{parent}")
        }
        Event::ToolResult { id, ok, output, .. } => format!("result {id} {ok} {output:.60}"),
        Event::Asked { ask } => {
            let options: Vec<&str> = ask.options.iter().map(|option| option.label.as_str()).collect();
            format!("asked {} {:?} {:?} {options:?}", ask.id, ask.kind, ask.prompt)
        }
        Event::Answered { id, choice } => format!("answered {id} {choice:?}"),
        Event::Usage { usage } => format!("usage {} {} {}", usage.input, usage.cached, usage.output),
        Event::Compaction { done } => format!("compaction {done}"),
        Event::Retry { reason } => format!("retry {reason}"),
        Event::Notice { text } => format!("notice {text}"),
        Event::ChildStarted { id, title } => format!("child {id} {title}"),
        Event::ChildEnded { id, ok } => format!("child-ended {id} {ok}"),
        other => format!("{other:?}"),
    }
}

fn show_outcome(outcome: &Outcome) -> String {
    let cost = outcome.usage.and_then(|usage| usage.cost_usd).map(|cost| format!(" ${cost:.5}")).unwrap_or_default();
    let error = outcome.error.as_deref().map(|error| format!(" error {error:.80}")).unwrap_or_default();
    format!("{:?} {:?}{error}{cost}", outcome.status, outcome.text)
}
