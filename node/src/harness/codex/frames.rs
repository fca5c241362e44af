//! Codex' app-server protocol (JSON-RPC lines), read for one turn.
//!
//! The reader speaks first: [`Reader::begin`] says what to send, and each answer leads to the next request until the
//! turn runs.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tieline_proto::entry::Policy;
use tieline_proto::event::{Answer, Event, Outcome, Status, Usage};

use super::items;
use super::requests::{Pending, Requests};
use crate::harness::TurnSpec;
use crate::harness::step::{CONTINUE, Step};
use crate::harness::turn::interrupted;

/// Turns at the end of a thread in which a prompt is looked for.
const TURNS_SEARCHED: u32 = 5;

/// Starts of what Codex says when it doesn't know a thread.
const UNKNOWN_THREAD: [&str; 3] = ["no rollout found", "invalid session id", "thread not found"];

/// What outlives a turn: the thread that the process has open.
#[derive(Clone, Debug, Default)]
pub(super) struct Thread {
    /// Its id, once it is open.
    pub id: Option<String>,
    /// Tokens of the whole thread, as told last. Some notices of them are repeats.
    pub tokens: u64,
}

/// Reads the frames of one turn.
#[derive(Debug)]
pub(super) struct Reader {
    spec: TurnSpec,
    /// Number of the turn in its process: part of every request's id.
    serial: u64,
    open: Thread,
    turn: Option<String>,
    /// The model the person's configuration names; asked for when a thread remembers another one.
    configured_model: Option<String>,
    prompt: String,
    interrupted: bool,
    session_told: bool,
    /// The agent message that is being streamed, and whether any of it was told.
    message: Option<(String, bool)>,
    last_message: String,
    usage: Option<Usage>,
    error: Option<String>,
    requests: Requests,
}

#[derive(Deserialize)]
struct Frame<'a> {
    #[serde(default)]
    id: Value,
    #[serde(default)]
    method: Option<String>,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
    #[serde(default)]
    result: Value,
    #[serde(default)]
    error: Value,
}

/// The requests this side makes, by the first word of their id.
const INITIALIZE: &str = "initialize";
const CONFIG: &str = "config";
const THREAD: &str = "thread";
const TURNS: &str = "turns";
const TURN: &str = "turn";
const INTERRUPT: &str = "interrupt";

impl Reader {
    /// Reads the turn of `spec`, the `serial`-th of its process, in the thread that this one has open.
    pub(super) fn new(spec: &TurnSpec, serial: u64, open: Thread) -> Self {
        Self {
            prompt: spec.prompt.clone(),
            spec: spec.clone(),
            serial,
            open,
            turn: None,
            configured_model: None,
            interrupted: false,
            session_told: false,
            message: None,
            last_message: String::new(),
            usage: None,
            error: None,
            requests: Requests::default(),
        }
    }

    /// What to send first.
    pub(super) fn begin(&self) -> Value {
        match &self.open.id {
            Some(thread) => self.start_turn(thread),
            None => {
                let client = json!({ "name": "tieline", "title": "Tieline", "version": env!("CARGO_PKG_VERSION") });
                self.request(INITIALIZE, "initialize", &json!({ "clientInfo": client }))
            }
        }
    }

    /// The open thread, for the next turn.
    pub(super) fn into_thread(self) -> Thread {
        self.open
    }

    /// Whether Codex has said that the turn runs.
    pub(super) const fn is_running(&self) -> bool {
        self.turn.is_some()
    }

    /// Whether a person stopped the turn.
    pub(super) const fn is_interrupted(&self) -> bool {
        self.interrupted
    }

    /// A person stopped the turn: what to send, once the turn has a name. `serial` numbers the tries.
    pub(super) fn interrupt(&mut self, serial: u64) -> Option<Value> {
        self.interrupted = true;
        let (thread, turn) = (self.open.id.as_ref()?, self.turn.as_ref()?);
        let params = json!({ "threadId": thread, "turnId": turn });
        Some(self.request(&format!("{INTERRUPT}-{serial}"), "turn/interrupt", &params))
    }

    /// Takes the answer to a question or permission; answers to others are moot.
    pub(super) fn answer(&mut self, ask: &str, answer: &Answer, out: &mut Vec<Step>) {
        self.requests.answer(ask, answer, out);
    }

    /// Refuses a request of an unknown kind that nobody answered in time.
    pub(super) fn expire(&mut self, ask: &str, out: &mut Vec<Step>) {
        self.requests.expire(ask, out);
    }

    /// Questions of an unknown kind that are open: they are not waited for as long as the others.
    pub(super) fn strange(&self) -> impl Iterator<Item = &str> {
        self.requests.strange()
    }

    /// Reads one line. What is no frame, or no known one, means nothing.
    pub(super) fn line(&mut self, line: &[u8], out: &mut Vec<Step>) {
        let Ok(frame) = serde_json::from_slice::<Frame<'_>>(line) else { return };
        match (&frame.method, frame.id.is_null()) {
            (Some(method), true) => {
                if let (true, Some(params)) = (method == "item/started", frame.params) {
                    self.requests.note_item(params);
                }
                let params = frame.params.and_then(|params| serde_json::from_str(params.get()).ok());
                self.notified(method, &params.unwrap_or_default(), out);
            }
            (Some(method), false) => {
                let pending = Pending { id: frame.id, method: method.clone() };
                self.requests.take(pending, frame.params, self.spec.policy, out);
            }
            (None, false) => {
                let id = frame.id.as_str().unwrap_or_default();
                if let Some((what, serial)) = id.rsplit_once('-')
                    && serial == self.serial.to_string()
                {
                    self.responded(what, &frame.result, &frame.error, out);
                }
            }
            (None, true) => {}
        }
    }

    fn responded(&mut self, what: &str, result: &Value, error: &Value, out: &mut Vec<Step>) {
        let what = if what.starts_with(INTERRUPT) { INTERRUPT } else { what };
        if !error.is_null() {
            return self.declined(what, text(error, "message"), out);
        }
        // Stopped before the prompt was given: then it need not be.
        if self.interrupted && what != TURN {
            if what != INTERRUPT {
                out.push(Step::Done(interrupted()));
            }
            return;
        }
        match what {
            INITIALIZE => {
                out.push(Step::Send(json!({ "method": "initialized" })));
                // A resumed thread remembers its model, so "no model" has to be said by name.
                let asks_model = self.spec.model.is_none() && self.spec.session.is_some();
                out.push(Step::Send(if asks_model {
                    self.request(CONFIG, "config/read", &json!({ "includeLayers": false }))
                } else {
                    self.open_thread()
                }));
            }
            CONFIG => {
                self.configured_model = result.pointer("/config/model").and_then(Value::as_str).map(ToOwned::to_owned);
                out.push(Step::Send(self.open_thread()));
            }
            THREAD => {
                let Some(thread) = result.pointer("/thread/id").and_then(Value::as_str) else {
                    return out.push(failed("Codex named no thread"));
                };
                self.open.id = Some(thread.to_owned());
                let model = result.get("model").and_then(Value::as_str).map(ToOwned::to_owned);
                out.push(Step::Event(Event::Started { model }));
                out.push(Step::Send(if self.spec.again && self.spec.session.is_some() {
                    let params = json!({ "threadId": thread, "limit": TURNS_SEARCHED, "itemsView": "full" });
                    self.request(TURNS, "thread/turns/list", &params)
                } else {
                    self.start_turn(thread)
                }));
            }
            TURNS => {
                if items::holds_prompt(result, &self.spec.prompt) {
                    CONTINUE.clone_into(&mut self.prompt);
                }
                out.extend(self.open.id.as_ref().map(|thread| Step::Send(self.start_turn(thread))));
            }
            TURN => self.turn = result.pointer("/turn/id").and_then(Value::as_str).map(ToOwned::to_owned),
            _ => {}
        }
    }

    fn declined(&self, what: &str, reason: &str, out: &mut Vec<Step>) {
        match what {
            THREAD if self.spec.session.is_some() && UNKNOWN_THREAD.iter().any(|start| reason.starts_with(start)) => {
                out.push(Step::Lost);
            }
            CONFIG => out.push(Step::Send(self.open_thread())),
            TURNS => out.extend(self.open.id.as_ref().map(|thread| Step::Send(self.start_turn(thread)))),
            INITIALIZE | THREAD | TURN => out.push(failed(&format!("Codex refused to start the turn: {reason}"))),
            // A late interrupt finds no turn: that one ended by itself.
            _ => {}
        }
    }

    fn open_thread(&self) -> Value {
        let (approval, sandbox) = match self.spec.policy {
            Policy::ReadOnly => ("never", "read-only"),
            Policy::Ask => ("untrusted", "workspace-write"),
            Policy::Edit => ("on-request", "workspace-write"),
            Policy::Full => ("never", "danger-full-access"),
        };
        let model = self.spec.model.as_ref().or(self.configured_model.as_ref());
        let mut params =
            json!({ "cwd": self.spec.cwd, "approvalPolicy": approval, "sandbox": sandbox, "model": model });
        if let Some(params) = params.as_object_mut() {
            // Whatever the person's configuration says: the channel is asked, not another model.
            params.insert("approvalsReviewer".to_owned(), json!("user"));
        }
        let method = match (&self.spec.session, params.as_object_mut()) {
            (Some(session), Some(params)) => {
                params.insert("threadId".to_owned(), json!(session));
                params.insert("excludeTurns".to_owned(), json!(true));
                "thread/resume"
            }
            _ => "thread/start",
        };
        self.request(THREAD, method, &params)
    }

    fn start_turn(&self, thread: &str) -> Value {
        let input = json!([{ "type": "text", "text": self.prompt }]);
        self.request(TURN, "turn/start", &json!({ "threadId": thread, "input": input }))
    }

    fn request(&self, what: &str, method: &str, params: &Value) -> Value {
        json!({ "id": format!("{what}-{}", self.serial), "method": method, "params": params })
    }

    fn notified(&mut self, method: &str, params: &Value, out: &mut Vec<Step>) {
        if method == "serverRequest/resolved" {
            return self.requests.resolved(params.get("requestId").unwrap_or(&Value::Null), out);
        }
        // Sub-agents have threads of their own, and an earlier turn may still be heard of.
        if self.open.id.is_none() || params.get("threadId").and_then(Value::as_str) != self.open.id.as_deref() {
            return;
        }
        let tokens = (method == "thread/tokenUsage/updated") && self.is_news(params);
        let turn = params.get("turnId").or_else(|| params.pointer("/turn/id")).and_then(Value::as_str);
        if method == "turn/started" && self.turn.is_none() {
            self.turn = turn.map(ToOwned::to_owned);
        }
        if turn.is_none() || turn != self.turn.as_deref() {
            return;
        }
        match method {
            "thread/tokenUsage/updated" if tokens => {
                let usage = self.add_usage(params.pointer("/tokenUsage/last").unwrap_or(&Value::Null));
                out.push(Step::Event(Event::Usage { usage }));
            }
            "turn/started" => out.push(Step::Event(Event::Started { model: None })),
            "item/started" => self.item(params.get("item").unwrap_or(&Value::Null), false, out),
            "item/completed" => self.item(params.get("item").unwrap_or(&Value::Null), true, out),
            "item/agentMessage/delta" => {
                let id = text(params, "itemId");
                if !matches!(&self.message, Some((known, _)) if known == id) {
                    out.push(Step::Paragraph);
                }
                self.message = Some((id.to_owned(), true));
                self.acknowledged(out);
                out.push(Step::Event(Event::Text { text: text(params, "delta").to_owned() }));
            }
            "item/reasoning/summaryTextDelta" | "item/reasoning/textDelta" => {
                self.acknowledged(out);
                out.push(Step::Event(Event::Reasoning { text: text(params, "delta").to_owned() }));
            }
            "error" => {
                let error = params.get("error").unwrap_or(&Value::Null);
                if params.get("willRetry").and_then(Value::as_bool).unwrap_or_default() {
                    out.push(Step::Event(Event::Retry { reason: words(error) }));
                } else {
                    self.error = Some(words(error));
                }
            }
            "turn/completed" => self.completed(params.get("turn").unwrap_or(&Value::Null), out),
            _ => {}
        }
    }

    fn item(&mut self, item: &Value, done: bool, out: &mut Vec<Step>) {
        let id = text(item, "id");
        match text(item, "type") {
            "userMessage" | "hookPrompt" => return,
            "agentMessage" if done => {
                let told = matches!(&self.message, Some((known, told)) if known == id && *told);
                if !told {
                    out.push(Step::Paragraph);
                    out.push(Step::Event(Event::Text { text: text(item, "text").to_owned() }));
                }
                text(item, "text").clone_into(&mut self.last_message);
            }
            "agentMessage" => {
                out.push(Step::Paragraph);
                self.message = Some((id.to_owned(), false));
            }
            "contextCompaction" => return out.push(Step::Event(Event::Compaction { done })),
            _ if done => out.extend(items::result(item).map(Step::Event)),
            _ => out.extend(items::call(item).map(Step::Event)),
        }
        self.acknowledged(out);
    }

    fn completed(&self, turn: &Value, out: &mut Vec<Step>) {
        let outcome = |status, text: &str, error| Outcome { status, text: text.to_owned(), error, usage: self.usage };
        if !self.session_told
            && let Some(thread) = &self.open.id
        {
            out.push(Step::Session(thread.clone()));
        }
        out.push(Step::Done(match text(turn, "status") {
            "completed" => outcome(Status::Completed, &self.last_message, None),
            // Without our asking: somebody refused an approval with "cancel".
            "interrupted" => outcome(Status::Interrupted, "", None),
            status => {
                let said = turn.get("error").filter(|error| !error.is_null()).map(words).or_else(|| self.error.clone());
                outcome(Status::Failed, "", Some(said.unwrap_or_else(|| format!("Codex ended the turn as {status:?}"))))
            }
        }));
    }

    /// Whether a notice of tokens tells of a model call that no earlier one told of.
    fn is_news(&mut self, params: &Value) -> bool {
        let total = params.pointer("/tokenUsage/total/totalTokens").and_then(Value::as_u64).unwrap_or_default();
        std::mem::replace(&mut self.open.tokens, total) != total
    }

    /// Totals are of the thread; the turn's own tokens are the sum of its model calls.
    fn add_usage(&mut self, last: &Value) -> Usage {
        let number = |name: &str| last.get(name).and_then(Value::as_u64).unwrap_or_default();
        let usage = self.usage.get_or_insert_default();
        usage.input += number("inputTokens");
        usage.cached += number("cachedInputTokens");
        usage.output += number("outputTokens");
        *usage
    }

    /// The first item of the model's own proves that the prompt stands in the thread's history.
    fn acknowledged(&mut self, out: &mut Vec<Step>) {
        if !std::mem::replace(&mut self.session_told, true)
            && let Some(thread) = &self.open.id
        {
            out.push(Step::Session(thread.clone()));
        }
    }
}

fn failed(reason: &str) -> Step {
    Step::Done(crate::harness::turn::failed(reason))
}

/// An error's message with its details.
fn words(error: &Value) -> String {
    match (text(error, "message"), text(error, "additionalDetails")) {
        (message, "") => message.to_owned(),
        (message, details) => format!("{message}: {details}"),
    }
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}
