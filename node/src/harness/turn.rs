//! What all adapters share: the order of a turn's outputs, and the two channels to whoever runs the turn.

use std::collections::VecDeque;

use tieline_proto::event::{Event, Outcome, Status, TOOL_OUTPUT_LEN_MAX};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::cut::{cut, fitting};
use super::{Command, OUTPUTS_WAITING_MAX, Output, Turn};

/// Longest piece of text in one event, in bytes: a screen's worth, so that a reader never waits for a huge line.
const TEXT_LEN_MAX: usize = 64 * 1024;

/// Longest final text, in bytes. It goes into a log entry and into other agents' prompts; the events hold the rest.
const FINAL_TEXT_LEN_MAX: usize = 256 * 1024;

/// Longest JSON of a tool's input, in bytes. A longer one (a whole file written) is shown by its start.
const INPUT_LEN_MAX: usize = 256 * 1024;

/// Tool calls and sub-agents that can be open at once; what a program opens beyond it is not closed for it.
const OPEN_MAX: usize = 1024;

/// Commands that wait for the adapter, and again for its turn to send an output. A person can't type faster.
const COMMANDS_WAITING_MAX: usize = 16;

/// Said for a tool call that was open when the turn ended.
const CLOSED: &str = "the turn ended before this call did";

/// Puts events in their lawful order: `Started` first, every tool call closed, nothing larger than an event may be.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    started: bool,
    /// The start of the whole answer, and how much of it is not kept.
    answer: String,
    dropped: u64,
    paragraph: bool,
    calls: Vec<String>,
    children: Vec<String>,
}

impl Recorder {
    /// Takes one event and appends what is to be told.
    pub(super) fn take(&mut self, event: Event, out: &mut VecDeque<Output>) {
        if let Event::Started { .. } = event {
            if std::mem::replace(&mut self.started, true) {
                return;
            }
        } else if !std::mem::replace(&mut self.started, true) {
            out.push_back(Output::Event(Event::Started { model: None }));
        }
        match event {
            Event::Text { text } => self.take_text(&text, out),
            Event::Block { text } => {
                self.break_paragraph();
                self.keep(&text);
                self.break_paragraph();
                pieces(&text, out, |text| Event::Block { text });
            }
            Event::Reasoning { text } => pieces(&text, out, |text| Event::Reasoning { text }),
            Event::ToolCall { id, name, input, parent } => {
                open(&mut self.calls, &id);
                out.push_back(Output::Event(Event::ToolCall { id, name, input: fit_input(input), parent }));
            }
            Event::ToolResult { id, ok, output, cut: already } => {
                self.calls.retain(|call| *call != id);
                let (output, more) = cut(output, TOOL_OUTPUT_LEN_MAX);
                out.push_back(Output::Event(Event::ToolResult { id, ok, output, cut: already + more }));
            }
            Event::ChildStarted { id, title } => {
                open(&mut self.children, &id);
                out.push_back(Output::Event(Event::ChildStarted { id, title }));
            }
            Event::ChildEnded { id, ok } => {
                self.children.retain(|child| *child != id);
                out.push_back(Output::Event(Event::ChildEnded { id, ok }));
            }
            event => out.push_back(Output::Event(event)),
        }
    }

    /// What is written next starts a new paragraph of the answer.
    pub(super) fn break_paragraph(&mut self) {
        self.paragraph = !self.answer.is_empty();
    }

    /// Closes what is open and tells the outcome. An outcome without a final text gets what was said.
    pub(super) fn finish(&mut self, outcome: Outcome, out: &mut VecDeque<Output>) {
        for id in std::mem::take(&mut self.calls) {
            let output = CLOSED.to_owned();
            out.push_back(Output::Event(Event::ToolResult { id, ok: false, output, cut: 0 }));
        }
        for id in std::mem::take(&mut self.children) {
            out.push_back(Output::Event(Event::ChildEnded { id, ok: false }));
        }
        let (whole, dropped) = match outcome.text {
            text if text.is_empty() => (std::mem::take(&mut self.answer), self.dropped),
            text => (text, 0),
        };
        let (mut text, bytes) = cut(whole, FINAL_TEXT_LEN_MAX);
        text.truncate(text.trim_end().len());
        if bytes + dropped > 0 {
            text.push_str(&format!("\n[{} more bytes; the events of this turn have them]", bytes + dropped));
        }
        out.push_back(Output::Finished(Outcome { text, ..outcome }));
    }

    fn take_text(&mut self, text: &str, out: &mut VecDeque<Output>) {
        if text.is_empty() {
            return;
        }
        let broken = if std::mem::take(&mut self.paragraph) { format!("\n\n{text}") } else { text.to_owned() };
        self.keep(&broken);
        pieces(&broken, out, |text| Event::Text { text });
    }

    fn keep(&mut self, text: &str) {
        let (kept, rest) = fitting(text, FINAL_TEXT_LEN_MAX.saturating_sub(self.answer.len()));
        self.answer.push_str(kept);
        self.dropped += rest.len() as u64;
    }
}

fn open(list: &mut Vec<String>, id: &str) {
    if list.len() < OPEN_MAX && !list.iter().any(|known| known == id) {
        list.push(id.to_owned());
    }
}

fn pieces(mut text: &str, out: &mut VecDeque<Output>, event: impl Fn(String) -> Event) {
    while !text.is_empty() {
        let (piece, rest) = fitting(text, TEXT_LEN_MAX);
        out.push_back(Output::Event(event(piece.to_owned())));
        text = rest;
    }
}

fn fit_input(input: serde_json::Value) -> serde_json::Value {
    let json = input.to_string();
    let (start, rest) = fitting(&json, INPUT_LEN_MAX);
    if rest.is_empty() { input } else { serde_json::json!({ "start": start, "cut": rest.len() }) }
}

/// The adapter's side of a [`Turn`].
#[derive(Debug)]
pub(super) struct TurnIo {
    outputs: mpsc::Sender<Output>,
    commands: mpsc::Receiver<Command>,
    recorder: Recorder,
    /// Recorded and not yet sent: an `emit` that was cancelled leaves them here.
    ready: VecDeque<Output>,
    /// Commands that came while an output waited for room.
    early: VecDeque<Command>,
    /// The node stops: an interrupt of all turns.
    stopping: CancellationToken,
    commands_open: bool,
    left: bool,
    stopped: bool,
    finished: bool,
}

impl TurnIo {
    /// A turn and the adapter's side of it.
    pub(super) fn new(stopping: CancellationToken) -> (Self, Turn) {
        let (outputs, told) = mpsc::channel(OUTPUTS_WAITING_MAX);
        let (commands, asked) = mpsc::channel(COMMANDS_WAITING_MAX);
        let io = Self {
            outputs,
            commands: asked,
            recorder: Recorder::default(),
            ready: VecDeque::new(),
            early: VecDeque::new(),
            stopping,
            commands_open: true,
            left: false,
            stopped: false,
            finished: false,
        };
        (io, Turn { commands, outputs: told })
    }

    /// Tells an event, waiting for room. Commands that come meanwhile are kept for [`TurnIo::command`].
    pub(super) async fn emit(&mut self, event: Event) {
        self.recorder.take(event, &mut self.ready);
        self.flush().await;
    }

    /// What is written next starts a new paragraph of the answer.
    pub(super) fn break_paragraph(&mut self) {
        self.recorder.break_paragraph();
    }

    /// Tells how the session is resumed from now on.
    pub(super) async fn session(&mut self, session: &str) {
        self.ready.push_back(Output::Session(session.to_owned()));
        self.flush().await;
    }

    /// Closes what is open and tells the outcome; nothing is told after it.
    pub(super) async fn finish(&mut self, outcome: Outcome) {
        if !std::mem::replace(&mut self.finished, true) {
            self.recorder.finish(outcome, &mut self.ready);
        }
        self.flush().await;
    }

    /// Waits for the next command. A turn that was dropped and a node that stops are an interrupt each, said once.
    ///
    /// Cancel safe.
    pub(super) async fn command(&mut self) -> Command {
        if let Some(command) = self.early.pop_front() {
            return command;
        }
        loop {
            tokio::select! {
                biased;
                command = self.commands.recv(), if self.commands_open => match command {
                    Some(command) => return command,
                    None => self.commands_open = false,
                },
                () = self.outputs.closed(), if !self.left => {
                    self.left = true;
                    return Command::Interrupt;
                }
                () = self.stopping.cancelled(), if !self.stopped => {
                    self.stopped = true;
                    return Command::Interrupt;
                }
                else => std::future::pending().await,
            }
        }
    }

    /// Waits until the turn is interrupted; answers that come meanwhile are moot.
    pub(super) async fn interrupted(&mut self) {
        while !matches!(self.command().await, Command::Interrupt) {}
    }

    /// Whether an interrupt waits. For adapters that never wait for anything.
    pub(super) fn interrupt_waits(&mut self) -> bool {
        while let Ok(command) = self.commands.try_recv() {
            if self.early.len() < COMMANDS_WAITING_MAX {
                self.early.push_back(command);
            }
        }
        self.outputs.is_closed()
            || self.stopping.is_cancelled()
            || self.early.iter().any(|command| matches!(command, Command::Interrupt))
    }

    async fn flush(&mut self) {
        while let Some(output) = self.ready.pop_front() {
            let Err(error) = self.outputs.try_send(output) else { continue };
            let mpsc::error::TrySendError::Full(output) = error else {
                self.ready.clear();
                return;
            };
            self.ready.push_front(output);
            self.wait_for_room().await;
        }
    }

    async fn wait_for_room(&mut self) {
        loop {
            tokio::select! {
                // An error means that nobody listens any more; the next try_send finds that out.
                room = self.outputs.reserve() => {
                    if let Ok(permit) = room && let Some(output) = self.ready.pop_front() {
                        permit.send(output);
                    }
                    return;
                }
                command = self.commands.recv(), if self.commands_open && self.early.len() < COMMANDS_WAITING_MAX => {
                    match command {
                        Some(command) => self.early.push_back(command),
                        None => self.commands_open = false,
                    }
                }
            }
        }
    }
}

/// A failed turn's outcome.
pub(super) fn failed(error: impl Into<String>) -> Outcome {
    Outcome { status: Status::Failed, text: String::new(), error: Some(error.into()), usage: None }
}

/// An interrupted turn's outcome.
pub(super) const fn interrupted() -> Outcome {
    Outcome { status: Status::Interrupted, text: String::new(), error: None, usage: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(events: impl IntoIterator<Item = Event>, outcome: Outcome) -> Vec<Output> {
        let (mut recorder, mut out) = (Recorder::default(), VecDeque::new());
        for event in events {
            recorder.take(event, &mut out);
        }
        recorder.finish(outcome, &mut out);
        out.into()
    }

    fn call(id: &str) -> Event {
        Event::ToolCall { id: id.to_owned(), name: "shell".to_owned(), input: serde_json::json!({}), parent: None }
    }

    #[test]
    fn every_turn_starts_with_started_and_ends_with_its_outcome() {
        let told = record([Event::Text { text: "hi".to_owned() }], interrupted());
        assert!(matches!(told.first(), Some(Output::Event(Event::Started { .. }))), "{told:?}");
        assert!(matches!(told.last(), Some(Output::Finished(_))), "{told:?}");
    }

    #[test]
    fn open_calls_are_closed_as_failed_once() {
        let done = Event::ToolResult { id: "a".to_owned(), ok: true, output: String::new(), cut: 0 };
        let told = record([call("a"), call("b"), done], failed("gone"));
        let results: Vec<_> = told
            .iter()
            .filter_map(|output| match output {
                Output::Event(Event::ToolResult { id, ok, .. }) => Some((id.as_str(), *ok)),
                _ => None,
            })
            .collect();
        assert_eq!(results, [("a", true), ("b", false)]);
    }

    #[test]
    fn a_tools_output_is_cut_and_the_cut_is_told() {
        let output = "é".repeat(TOOL_OUTPUT_LEN_MAX);
        let told = record([Event::ToolResult { id: "a".to_owned(), ok: true, output, cut: 0 }], interrupted());
        let Some(Output::Event(Event::ToolResult { output, cut, .. })) = told.get(1) else { panic!("{told:?}") };
        assert_eq!(output.len(), TOOL_OUTPUT_LEN_MAX);
        assert_eq!(*cut, TOOL_OUTPUT_LEN_MAX as u64);
    }

    #[test]
    fn long_text_comes_in_pieces_that_concatenate() {
        let text = "añ\u{1}".repeat(TEXT_LEN_MAX);
        let told = record([Event::Text { text: text.clone() }], interrupted());
        let joined: String = told
            .iter()
            .filter_map(|output| match output {
                Output::Event(Event::Text { text }) => Some(text.as_str()),
                _ => None,
            })
            .collect();
        assert_eq!(joined, text);
        assert!(told.len() > 4);
    }

    #[tokio::test]
    async fn a_command_is_not_lost_while_nobody_reads_outputs() {
        let (mut io, turn) = TurnIo::new(CancellationToken::new());
        for n in 0..OUTPUTS_WAITING_MAX - 1 {
            io.emit(Event::Text { text: n.to_string() }).await;
        }
        turn.commands.send(Command::Interrupt).await.expect("the adapter listens");
        let mut outputs = turn.outputs;
        let reader = async {
            let mut count = 0;
            while let Some(output) = outputs.recv().await {
                count += 1;
                if matches!(output, Output::Finished(_)) {
                    break;
                }
            }
            count
        };
        let adapter = async {
            io.emit(Event::Text { text: "one more".to_owned() }).await;
            io.interrupted().await;
            io.finish(interrupted()).await;
        };
        let (count, ()) = tokio::join!(reader, adapter);
        // Started, the texts, the outcome.
        assert_eq!(count, OUTPUTS_WAITING_MAX + 2);
    }

    #[tokio::test]
    async fn dropping_a_turn_interrupts_it() {
        let (mut io, turn) = TurnIo::new(CancellationToken::new());
        drop(turn);
        io.interrupted().await;
        io.emit(Event::Text { text: "nobody hears this".to_owned() }).await;
        io.finish(interrupted()).await;
    }
}
