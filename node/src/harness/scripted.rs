//! The `scripted` harness: deterministic, in this process, for demonstrations, tests and measurements.
//!
//! A prompt without a directive is answered with a friendly text in several events. Directives, anywhere in the prompt
//! and run in their order, make it do more:
//!
//! | directive | effect |
//! | --- | --- |
//! | `script:words(N)`, `script:words(N,50ms)` | N words, one event each, with a pause after each |
//! | `script:text(TEXT)`, `script:think(TEXT)` | one event of text or reasoning |
//! | `script:tool(NAME\|OUTPUT)` | a tool call and its result |
//! | `script:open(NAME)` | a tool call that never ends |
//! | `script:ask(QUESTION\|A\|B)` | asks, waits for the answer and says it |
//! | `script:approve(TOOL\|ACTION)` | asks for a permission unless the policy decides, and says the answer |
//! | `script:fail(REASON)` | ends the turn as failed |
//! | `script:hang` | says nothing until it is interrupted |
//! | `script:big(COUNT,BYTES)` | a flood of COUNT text events of BYTES each |
//! | `script:sleep(2s)` | waits |
//! | `script:usage(IN,OUT)` | reports tokens |
//! | `script:notice(TEXT)` | a remark |
//! | `script:settings`, `script:env(NAME)`, `script:turn` | says the turn's settings, one of its `TIELINE_*` names, which turn of the session it is |
//!
//! **Witness.** When the host has a witness file, a line `CHANNEL RUN ATTEMPT` is appended and synced before the first
//! event of every turn: proof, outside the node's own storage, that the turn ran, and how often.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use tieline_proto::entry::Policy;
use tieline_proto::event::{ALLOW, Answer, Ask, AskKind, AskOption, DENY, Event, Outcome, Status, Usage};
use tokio::time::sleep;

use super::host::Setting;
use super::script::{Step, parse};
use super::turn::{TurnIo, failed, interrupted};
use super::{Command, TurnSpec};

/// Longest text of `script:big`, in bytes.
const BIG_LEN_MAX: usize = 64 * 1024;

/// All that a `script:big` says, in bytes: whoever may post can ask for it, and every box keeps it.
const BIG_TOTAL_MAX: u64 = 256 * 1024 * 1024;

/// Words of a `script:words`.
const WORDS_MAX: u64 = 100_000;

/// Variables that are said to whoever asks. The others may be secrets that the owner passes on to other harnesses.
const SAID: [&str; 2] = ["TIELINE_CHANNEL", "TIELINE_MEMBER"];

/// Start of a session's name; its number of turns follows.
const SESSION: &str = "scripted-";

/// Pause between the events of the friendly answer: slow enough to be seen streaming.
const FRIENDLY_GAP: Duration = Duration::from_millis(20);

/// Characters of the prompt that the friendly answer repeats.
const REPEATED_MAX: usize = 80;

/// Runs one turn.
pub(super) async fn run(setting: &Setting, spec: &TurnSpec, io: &mut TurnIo) -> Outcome {
    if let Some(path) = setting.witness.clone() {
        let line = format!("{} {} {}\n", spec.id.channel, spec.id.run, spec.id.attempt);
        let written = tokio::task::spawn_blocking(move || witness(path, &line)).await;
        if let Err(error) = written.unwrap_or_else(|error| Err(io::Error::other(error))) {
            return failed(format!("the witness file can't be written: {error}"));
        }
    }
    let turn = turn_of(spec.session.as_deref());
    io.emit(Event::Started { model: spec.model.clone() }).await;
    io.session(&format!("{SESSION}{turn}")).await;
    let mut player = Player { setting, spec, io, turn, usage: None, numbers: 0 };
    let ended = player.play(steps(&spec.prompt)).await;
    let usage = player.usage;
    match ended {
        Ok(()) => Outcome { status: Status::Completed, text: String::new(), error: None, usage },
        Err(outcome) => Outcome { usage, ..outcome },
    }
}

fn witness(path: PathBuf, line: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    file.write_all(line.as_bytes())?;
    file.sync_data()
}

/// Which turn of the session this is, from 1.
fn turn_of(session: Option<&str>) -> u64 {
    session
        .and_then(|session| session.strip_prefix(SESSION)?.parse::<u64>().ok())
        .map_or(1, |turn| turn.saturating_add(1))
}

fn steps(prompt: &str) -> Vec<Step> {
    let steps = parse(prompt);
    if steps.is_empty() { friendly(prompt) } else { steps }
}

fn friendly(prompt: &str) -> Vec<Step> {
    let text = said(prompt);
    let words = text.split_whitespace().count();
    let said: String = text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(REPEATED_MAX).collect();
    let pieces = [
        "Hello! ".to_owned(),
        "I am the scripted member: ".to_owned(),
        "I need no model and no network. ".to_owned(),
        format!("I was given {words} words: “{said}”. "),
        "Write `script:words(20,100ms)` to watch me stream, ".to_owned(),
        "or `script:ask(Tea or coffee?|tea|coffee)` to be asked something.".to_owned(),
    ];
    pieces.into_iter().flat_map(|piece| [Step::Text(piece), Step::Sleep(FRIENDLY_GAP)]).collect()
}

/// The first message of a payload: what stands between its line and its end. The whole prompt when it is none.
fn said(prompt: &str) -> &str {
    let code = prompt.strip_prefix('[').and_then(|rest| rest.split_once(' ')).map(|(code, _)| code);
    code.and_then(|code| {
        let (_, rest) = prompt.split_once(&format!("\n[{code} message "))?;
        let (_, body) = rest.split_once('\n')?;
        Some(body.split_once(&format!("\n[{code} end "))?.0)
    })
    .unwrap_or(prompt)
}

struct Player<'a> {
    setting: &'a Setting,
    spec: &'a TurnSpec,
    io: &'a mut TurnIo,
    turn: u64,
    usage: Option<Usage>,
    /// Numbers the calls and questions of this turn.
    numbers: u64,
}

impl Player<'_> {
    /// Plays the steps. The error is the outcome of a turn that ended early.
    async fn play(&mut self, steps: Vec<Step>) -> Result<(), Outcome> {
        for step in steps {
            self.step(step).await?;
        }
        Ok(())
    }

    async fn step(&mut self, step: Step) -> Result<(), Outcome> {
        match step {
            Step::Words { count, gap } => {
                let count = if self.is_test() { count } else { count.min(WORDS_MAX) };
                for n in 1..=count {
                    let end = if n == count { "\n" } else { " " };
                    self.say(format!("word{n}{end}")).await;
                    self.pause(gap).await?;
                }
            }
            Step::Text(text) => self.say(text).await,
            Step::Think(text) => self.io.emit(Event::Reasoning { text }).await,
            Step::Tool { name, output } => {
                let id = self.call(name).await;
                self.io.emit(Event::ToolResult { id, ok: true, output, cut: 0 }).await;
            }
            Step::Open(name) => {
                self.call(name).await;
            }
            Step::Ask { question, options } => self.ask(question, options).await?,
            Step::Approve { tool, action } => self.approve(tool, action).await?,
            Step::Fail(reason) => return Err(failed(reason)),
            Step::Hang => {
                self.io.interrupted().await;
                return Err(interrupted());
            }
            Step::Big { count, len } => self.flood(count, len.min(BIG_LEN_MAX)).await?,
            Step::Sleep(time) => self.pause(time).await?,
            Step::Usage { input, output } => {
                let usage = Usage { input, output, ..Usage::default() };
                self.usage = Some(usage);
                self.io.emit(Event::Usage { usage }).await;
            }
            Step::Notice(text) => self.io.emit(Event::Notice { text }).await,
            Step::Settings => {
                let model = self.spec.model.as_deref().unwrap_or("default");
                let policy = self.spec.policy.name();
                self.say(format!("model={model} policy={policy} cwd={}\n", self.spec.cwd.display())).await;
            }
            Step::Env(name) => {
                if self.is_test() || SAID.contains(&name.as_str()) {
                    let value = self.setting.env(self.spec).remove(&name);
                    self.say(format!("{name}={}\n", value.unwrap_or_default())).await;
                } else {
                    self.say(format!("{name} is not said: it may be a secret\n")).await;
                }
            }
            Step::Turn => self.say(format!("turn {} of this session\n", self.turn)).await,
        }
        Ok(())
    }

    /// Whether the box is a test's: then it may be filled, and has no secrets.
    const fn is_test(&self) -> bool {
        self.setting.witness.is_some()
    }

    async fn say(&mut self, text: String) {
        self.io.emit(Event::Text { text }).await;
    }

    async fn pause(&mut self, time: Duration) -> Result<(), Outcome> {
        tokio::select! {
            biased;
            () = self.io.interrupted() => Err(interrupted()),
            () = sleep(time) => Ok(()),
        }
    }

    fn number(&mut self, what: &str) -> String {
        self.numbers += 1;
        format!("{what}-{}", self.numbers)
    }

    async fn call(&mut self, name: String) -> String {
        let id = self.number("call");
        self.io.emit(Event::ToolCall { id: id.clone(), name, input: serde_json::json!({}), parent: None }).await;
        id
    }

    async fn ask(&mut self, prompt: String, options: Vec<String>) -> Result<(), Outcome> {
        let options = options.into_iter().map(|label| AskOption { label, detail: String::new() }).collect();
        let id = self.number("ask");
        let ask = Ask { id, kind: AskKind::Question, prompt, options, multi: false, tool: None, action: None };
        let answer = self.answer(ask).await?;
        let said = answer.text.into_iter().chain(answer.choice).collect::<Vec<_>>().join(", ");
        self.say(format!("You answered: {said}\n")).await;
        Ok(())
    }

    async fn approve(&mut self, tool: String, action: String) -> Result<(), Outcome> {
        let allowed = match self.spec.policy {
            Policy::ReadOnly => false,
            Policy::Full => true,
            Policy::Ask | Policy::Edit => {
                let options = [ALLOW, DENY].map(|label| AskOption { label: label.to_owned(), detail: String::new() });
                let ask = Ask {
                    id: self.number("approval"),
                    kind: AskKind::Approval,
                    prompt: format!("May I use {tool}?"),
                    options: options.to_vec(),
                    multi: false,
                    tool: Some(tool.clone()),
                    action: Some(serde_json::json!({ "action": action }).to_string()),
                };
                self.answer(ask).await?.choice.iter().any(|label| label == ALLOW)
            }
        };
        let id = self.call(tool).await;
        let output = if allowed { action } else { "not allowed".to_owned() };
        self.io.emit(Event::ToolResult { id, ok: allowed, output, cut: 0 }).await;
        self.say(if allowed { "allowed\n" } else { "not allowed\n" }.to_owned()).await;
        Ok(())
    }

    /// Raises a question and waits for its answer; answers to others are moot.
    async fn answer(&mut self, ask: Ask) -> Result<Answer, Outcome> {
        let id = ask.id.clone();
        self.io.emit(Event::Asked { ask }).await;
        loop {
            match self.io.command().await {
                Command::Interrupt => return Err(interrupted()),
                Command::Answer { ask, answer } if ask == id => {
                    self.io.emit(Event::Answered { id, choice: answer.choice.clone() }).await;
                    return Ok(answer);
                }
                Command::Answer { .. } => {}
            }
        }
    }

    async fn flood(&mut self, count: u64, len: usize) -> Result<(), Outcome> {
        let text = "x".repeat(len.max(1));
        let count = if self.is_test() { count } else { count.min(BIG_TOTAL_MAX / text.len() as u64) };
        for _ in 0..count {
            self.say(text.clone()).await;
            if self.io.interrupt_waits() {
                return Err(interrupted());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_friendly_answer_repeats_the_message_and_not_the_lines_around_it() {
        let payload = "[c0de channel=lobby you=@demo]\n[c0de message #1 from=@ana (human) to=@demo hop=0]\ngood\nmorning\n\
            [c0de end #1]\n[c0de conventions]\nlong\n[c0de end conventions]\n";
        assert_eq!(said(payload), "good\nmorning");
        for other in ["", "hello", "[x", "[x y]\n[x message #1", "[x y]\n[x message #1]\nno end"] {
            assert_eq!(said(other), other);
        }
    }
}
