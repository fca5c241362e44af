//! Claude Code's stream of JSON lines, read for one turn.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tieline_proto::entry::Policy;
use tieline_proto::event::{Answer, Event, Outcome, Status, Usage};

use crate::harness::asks::{Questions, Verdict, approval, too_long};
use crate::harness::step::Step;

/// Permissions and questions that can be open at once; more are refused. Programs ask one after the other.
const PENDING_MAX: usize = 64;

/// Start of what Claude says when it doesn't know a session.
const UNKNOWN_SESSION: [&str; 2] = ["No conversation found", "Error: --resume requires a valid session"];

/// Reads the frames of one turn.
#[derive(Debug)]
pub(super) struct Reader {
    policy: Policy,
    /// Id of the user message that starts the turn. Frames before its echo belong to something else.
    message: String,
    /// The turn has begun: frames are its own.
    begun: bool,
    resumes: bool,
    interrupted: bool,
    session_told: bool,
    /// The message that is being streamed: its id, and whether text and reasoning of it were told in pieces.
    streamed: Option<Streamed>,
    pending: BTreeMap<String, Pending>,
    /// Background sub-agents that run, by task: the tool call that started each.
    agents: BTreeMap<String, String>,
    /// A background sub-agent reported since the model was last asked: it will be asked again unasked.
    reported: bool,
    /// The model's turn ended while background sub-agents ran.
    held: Option<Outcome>,
    /// Tokens of the turn's earlier parts.
    usage: Usage,
    /// What the session had cost before this turn, when that is known.
    cost_before: Option<f64>,
    cost_after: Option<f64>,
}

#[derive(Debug)]
struct Streamed {
    id: String,
    text: bool,
    reasoning: bool,
}

#[derive(Debug)]
enum Pending {
    Tool { request: String, input: Value, suggestions: Vec<Value> },
    Questions { request: String, input: Value, questions: Questions },
}

#[derive(Deserialize)]
struct Frame<'a> {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    request_id: String,
    #[serde(borrow, default)]
    request: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct ToolRequest<'a> {
    tool_name: String,
    #[serde(borrow)]
    input: &'a RawValue,
    #[serde(default)]
    description: Option<String>,
    #[serde(default)]
    permission_suggestions: Vec<Value>,
    #[serde(default)]
    requires_user_interaction: bool,
}

impl Reader {
    /// Reads a turn that the user message `message` starts. `fresh`: the program was started for this turn.
    pub(super) fn new(message: &str, policy: Policy, fresh: bool, resumes: bool, cost_before: Option<f64>) -> Self {
        Self {
            policy,
            message: message.to_owned(),
            begun: fresh,
            resumes: fresh && resumes,
            interrupted: false,
            session_told: false,
            streamed: None,
            pending: BTreeMap::new(),
            agents: BTreeMap::new(),
            reported: false,
            held: None,
            usage: Usage::default(),
            cost_before,
            cost_after: cost_before,
        }
    }

    /// A person stopped the turn.
    pub(super) const fn interrupt(&mut self) {
        self.interrupted = true;
    }

    /// Whether a person stopped the turn.
    pub(super) const fn is_interrupted(&self) -> bool {
        self.interrupted
    }

    /// Whether only background sub-agents still run.
    pub(super) const fn waits_for_agents(&self) -> bool {
        self.held.is_some()
    }

    /// What the session has cost by now, as far as it is known.
    pub(super) const fn cost(&self) -> Option<f64> {
        self.cost_after
    }

    /// The user message that starts the turn.
    pub(super) fn prompt(&self, text: &str) -> Value {
        let message = json!({ "role": "user", "content": [{ "type": "text", "text": text }] });
        json!({ "type": "user", "message": message, "uuid": self.message })
    }

    /// Reads one line. What is no frame, or no known one, means nothing.
    pub(super) fn line(&mut self, line: &[u8], out: &mut Vec<Step>) {
        let Ok(frame) = serde_json::from_slice::<Frame<'_>>(line) else { return };
        if frame.kind == "control_request" {
            if let Some(request) = frame.request {
                self.control(&frame.request_id, request, out);
            }
            return;
        }
        let Ok(frame) = serde_json::from_slice::<Value>(line) else { return };
        if !self.begun {
            self.begun = self.is_own_start(&frame);
            return;
        }
        match text(&frame, "type") {
            "system" => self.system(&frame, out),
            "stream_event" => self.stream(&frame, out),
            "assistant" => self.assistant(&frame, out),
            "user" => Self::user(&frame, out),
            "result" => self.result(&frame, out),
            "control_cancel_request" => self.withdraw(text(&frame, "request_id"), out),
            _ => {}
        }
    }

    /// Takes the answer to a question or permission; answers to others are moot.
    pub(super) fn answer(&mut self, ask: &str, answer: &Answer, out: &mut Vec<Step>) {
        match self.pending.remove(ask) {
            Some(Pending::Tool { request, input, suggestions }) => {
                let reply = match Verdict::of(answer) {
                    Verdict::Allow => json!({ "behavior": "allow", "updatedInput": input }),
                    Verdict::AllowSession => {
                        json!({ "behavior": "allow", "updatedInput": input, "updatedPermissions": suggestions })
                    }
                    Verdict::Deny => {
                        let reason = answer.text.as_deref().unwrap_or("the person who was asked did not allow it");
                        json!({ "behavior": "deny", "message": reason })
                    }
                };
                answered(ask, answer, out);
                out.push(respond(&request, &reply));
            }
            Some(Pending::Questions { request, mut input, mut questions }) => {
                questions.answer(answer.clone());
                answered(ask, answer, out);
                if let Some(next) = questions.next() {
                    self.pending.insert(next.id.clone(), Pending::Questions { request, input, questions });
                    out.push(Step::Event(Event::Asked { ask: next }));
                    return;
                }
                let answers: BTreeMap<&str, String> =
                    questions.answers().map(|(question, words)| (question, words.join(", "))).collect();
                if let Some(input) = input.as_object_mut() {
                    input.insert("answers".to_owned(), json!(answers));
                }
                out.push(respond(&request, &json!({ "behavior": "allow", "updatedInput": input })));
            }
            None => {}
        }
    }

    fn is_own_start(&self, frame: &Value) -> bool {
        let started = text(frame, "type") == "command_lifecycle" && text(frame, "state") == "started";
        started && text(frame, "command_uuid") == self.message
            || frame.get("isReplay").is_some() && text(frame, "uuid") == self.message
    }

    fn control(&mut self, id: &str, request: &RawValue, out: &mut Vec<Step>) {
        let subtype = serde_json::from_str::<Value>(request.get()).unwrap_or_default();
        if text(&subtype, "subtype") != "can_use_tool" {
            let error = format!("this host does not answer {:?} requests", text(&subtype, "subtype"));
            let response = json!({ "subtype": "error", "request_id": id, "error": error });
            out.push(Step::Send(json!({ "type": "control_response", "response": response })));
            return;
        }
        let Ok(tool) = serde_json::from_str::<ToolRequest<'_>>(request.get()) else {
            return out.push(refuse(id, "this host can't read the request"));
        };
        if !self.begun {
            // Left over from work that nobody waits for; it must not hold up the turn behind it.
            return out.push(refuse(id, "no turn is running that this could belong to"));
        }
        let input: Value = serde_json::from_str(tool.input.get()).unwrap_or_default();
        let questions = (tool.tool_name == "AskUserQuestion")
            .then(|| Questions::new(id, input.get("questions").unwrap_or(&Value::Null), "question"))
            .flatten();
        if self.pending.len() >= PENDING_MAX {
            return out.push(refuse(id, "too many questions are open"));
        }
        if let Some(questions) = questions {
            if let Some(ask) = questions.next() {
                let request = id.to_owned();
                self.pending.insert(ask.id.clone(), Pending::Questions { request, input, questions });
                out.push(Step::Event(Event::Asked { ask }));
            }
            return;
        }
        match self.policy {
            Policy::Full if !tool.requires_user_interaction => {
                return out.push(respond(id, &json!({ "behavior": "allow", "updatedInput": input })));
            }
            Policy::ReadOnly => return out.push(refuse(id, "this member may only read; do without it")),
            Policy::Full | Policy::Ask | Policy::Edit => {}
        }
        let suggestions = for_session(tool.permission_suggestions);
        let prompt = format!("Claude asks to use {}{}", tool.tool_name, about(&input, tool.description.as_deref()));
        let rule = (!suggestions.is_empty()).then(|| rules(&suggestions));
        let Some(ask) = approval(id.to_owned(), &tool.tool_name, &prompt, tool.input, rule.as_deref()) else {
            out.push(Step::Event(Event::Notice { text: too_long() }));
            return out.push(refuse(id, &too_long()));
        };
        self.pending.insert(ask.id.clone(), Pending::Tool { request: id.to_owned(), input, suggestions });
        out.push(Step::Event(Event::Asked { ask }));
    }

    /// The program doesn't wait for an answer any more.
    fn withdraw(&mut self, request: &str, out: &mut Vec<Step>) {
        let of_request = |pending: &Pending| match pending {
            Pending::Tool { request: id, .. } | Pending::Questions { request: id, .. } => id == request,
        };
        let asks: BTreeSet<String> =
            self.pending.iter().filter(|(_, pending)| of_request(pending)).map(|(ask, _)| ask.clone()).collect();
        for id in asks {
            self.pending.remove(&id);
            out.push(Step::Event(Event::Answered { id, choice: Vec::new() }));
        }
    }

    fn system(&mut self, frame: &Value, out: &mut Vec<Step>) {
        match text(frame, "subtype") {
            "init" => {
                self.held = None;
                // A run of the model that begins now is told all reports so far.
                self.reported = false;
                out.push(Step::Resume);
                let model = frame.get("model").and_then(Value::as_str).map(ToOwned::to_owned);
                out.push(Step::Event(Event::Started { model }));
            }
            "api_retry" => {
                let status = frame.get("error_status").and_then(Value::as_u64).map(|code| format!(" {code}"));
                let reason = format!(
                    "the model failed ({}{}); try {} of {} follows",
                    text(frame, "error"),
                    status.unwrap_or_default(),
                    number(frame, "attempt"),
                    number(frame, "max_retries")
                );
                out.push(Step::Event(Event::Retry { reason }));
            }
            "status" if text(frame, "status") == "compacting" => {
                out.push(Step::Event(Event::Compaction { done: false }));
            }
            "compact_boundary" => out.push(Step::Event(Event::Compaction { done: true })),
            "task_started" if text(frame, "task_type") == "local_agent" => {
                let call = text(frame, "tool_use_id").to_owned();
                out.push(Step::Event(Event::ChildStarted {
                    id: call.clone(),
                    title: text(frame, "description").to_owned(),
                }));
                if flag(frame, "is_backgrounded") {
                    self.agents.insert(text(frame, "task_id").to_owned(), call);
                }
            }
            "task_notification" => {
                let call = text(frame, "tool_use_id").to_owned();
                let ok = text(frame, "status") == "completed";
                self.reported |= self.agents.remove(text(frame, "task_id")).is_some();
                out.push(Step::Event(Event::ChildEnded { id: call, ok }));
                if self.agents.is_empty()
                    && let Some(outcome) = self.held.take()
                {
                    out.push(Step::Pause(outcome));
                }
            }
            _ => {}
        }
    }

    fn stream(&mut self, frame: &Value, out: &mut Vec<Step>) {
        // A sub-agent's words are not the answer.
        if is_child(frame) {
            return;
        }
        self.acknowledged(frame, out);
        let event = frame.get("event").unwrap_or(&Value::Null);
        match text(event, "type") {
            "message_start" => {
                let id = event.pointer("/message/id").and_then(Value::as_str).unwrap_or_default().to_owned();
                self.streamed = Some(Streamed { id, text: false, reasoning: false });
                self.reported = false;
                out.push(Step::Paragraph);
            }
            "content_block_start" => out.push(Step::Paragraph),
            "content_block_delta" => {
                let delta = event.get("delta").unwrap_or(&Value::Null);
                let streamed = self.streamed.as_mut();
                match text(delta, "type") {
                    "text_delta" => {
                        streamed.into_iter().for_each(|message| message.text = true);
                        out.push(Step::Event(Event::Text { text: text(delta, "text").to_owned() }));
                    }
                    "thinking_delta" => {
                        streamed.into_iter().for_each(|message| message.reasoning = true);
                        out.push(Step::Event(Event::Reasoning { text: text(delta, "thinking").to_owned() }));
                    }
                    _ => {}
                }
            }
            _ => {}
        }
    }

    fn assistant(&mut self, frame: &Value, out: &mut Vec<Step>) {
        let message = frame.get("message").unwrap_or(&Value::Null);
        // Claude's own words about a failure; the result has them too.
        if text(message, "model") == "<synthetic>" {
            return;
        }
        let child = is_child(frame);
        if !child {
            self.acknowledged(frame, out);
            self.reported = false;
        }
        let parent = frame.get("parent_tool_use_id").and_then(Value::as_str).map(ToOwned::to_owned);
        let streamed = self.streamed.as_ref().filter(|streamed| streamed.id == text(message, "id"));
        let (told_text, told_reasoning) = streamed.map_or((false, false), |message| (message.text, message.reasoning));
        for block in message.get("content").and_then(Value::as_array).into_iter().flatten() {
            match text(block, "type") {
                "text" if !child && !told_text => {
                    out.push(Step::Paragraph);
                    out.push(Step::Event(Event::Text { text: text(block, "text").to_owned() }));
                }
                "thinking" if !child && !told_reasoning => {
                    out.push(Step::Event(Event::Reasoning { text: text(block, "thinking").to_owned() }));
                }
                "tool_use" => out.push(Step::Event(Event::ToolCall {
                    id: text(block, "id").to_owned(),
                    name: text(block, "name").to_owned(),
                    input: block.get("input").cloned().unwrap_or_default(),
                    parent: parent.clone(),
                })),
                _ => {}
            }
        }
    }

    fn user(frame: &Value, out: &mut Vec<Step>) {
        for block in frame.pointer("/message/content").and_then(Value::as_array).into_iter().flatten() {
            if text(block, "type") == "tool_result" {
                out.push(Step::Event(Event::ToolResult {
                    id: text(block, "tool_use_id").to_owned(),
                    ok: !flag(block, "is_error"),
                    output: printed(block.get("content").unwrap_or(&Value::Null)),
                    cut: 0,
                }));
            }
        }
    }

    fn result(&mut self, frame: &Value, out: &mut Vec<Step>) {
        let errors: Vec<&str> =
            frame.get("errors").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
        let unknown = |error: &&str| UNKNOWN_SESSION.iter().any(|start| error.starts_with(start));
        if self.resumes && errors.iter().any(unknown) {
            return out.push(Step::Lost);
        }
        self.acknowledged(frame, out);
        let usage = self.usage(frame);
        out.push(Step::Event(Event::Usage { usage }));
        // Neither the exit status nor the subtype alone tells: a failed model call has the subtype `success`.
        let failed = flag(frame, "is_error") || text(frame, "subtype") != "success";
        let answer = text(frame, "result");
        let outcome = if !failed {
            Outcome { status: Status::Completed, text: answer.to_owned(), error: None, usage: Some(usage) }
        } else if self.interrupted && text(frame, "terminal_reason").starts_with("aborted") {
            Outcome { status: Status::Interrupted, text: String::new(), error: None, usage: Some(usage) }
        } else {
            let reason = match (answer, errors.is_empty(), text(frame, "terminal_reason")) {
                ("", false, _) => errors.join("; "),
                ("", true, reason) => format!("Claude ended the turn: {reason} ({})", text(frame, "subtype")),
                (answer, ..) => answer.to_owned(),
            };
            Outcome { status: Status::Failed, text: String::new(), error: Some(reason), usage: Some(usage) }
        };
        if failed || self.interrupted {
            out.push(Step::Done(outcome));
        } else if !self.agents.is_empty() {
            // As long as they run; their reports wake the model again.
            self.held = Some(outcome);
        } else if std::mem::take(&mut self.reported) {
            out.push(Step::Pause(outcome));
        } else {
            out.push(Step::Done(outcome));
        }
    }

    /// The turn's tokens and cost with this result's, which has its own tokens but the session's whole cost.
    fn usage(&mut self, frame: &Value) -> Usage {
        let usage = frame.get("usage").unwrap_or(&Value::Null);
        let cached = number(usage, "cache_read_input_tokens");
        self.usage.input += number(usage, "input_tokens") + number(usage, "cache_creation_input_tokens") + cached;
        self.usage.cached += cached;
        self.usage.output += number(usage, "output_tokens");
        let total = frame.get("total_cost_usd").and_then(Value::as_f64);
        self.usage.cost_usd = self.cost_before.zip(total).map(|(before, total)| (total - before).max(0.0));
        self.cost_after = total.or(self.cost_after);
        self.usage
    }

    /// The first frame of the model's own proves that the prompt stands in the session's history.
    fn acknowledged(&mut self, frame: &Value, out: &mut Vec<Step>) {
        let session = text(frame, "session_id");
        if !session.is_empty() && !std::mem::replace(&mut self.session_told, true) {
            out.push(Step::Session(session.to_owned()));
        }
    }
}

fn answered(ask: &str, answer: &Answer, out: &mut Vec<Step>) {
    out.push(Step::Event(Event::Answered { id: ask.to_owned(), choice: answer.choice.clone() }));
}

fn respond(request: &str, response: &Value) -> Step {
    let response = json!({ "subtype": "success", "request_id": request, "response": response });
    Step::Send(json!({ "type": "control_response", "response": response }))
}

fn refuse(request: &str, reason: &str) -> Step {
    respond(request, &json!({ "behavior": "deny", "message": reason }))
}

/// The suggested rules, for this session only: an answer in a channel changes nobody's settings files.
fn for_session(suggestions: Vec<Value>) -> Vec<Value> {
    let rules = suggestions.into_iter().filter(|suggestion| text(suggestion, "type") == "addRules");
    rules
        .map(|mut rule| {
            if let Some(rule) = rule.as_object_mut() {
                rule.insert("destination".to_owned(), json!("session"));
            }
            rule
        })
        .collect()
}

/// What the rules allow, as the program writes them in its settings: `Bash(npm test:*)`.
fn rules(suggestions: &[Value]) -> String {
    let lists = suggestions.iter().filter_map(|suggestion| suggestion.get("rules")?.as_array()).flatten();
    let shown: Vec<_> = lists
        .map(|rule| match (text(rule, "toolName"), text(rule, "ruleContent")) {
            ("", _) => rule.to_string(),
            (tool, "") => format!("every {tool}"),
            (tool, content) => format!("{tool}({content})"),
        })
        .collect();
    if shown.is_empty() { "this".to_owned() } else { format!("this and {}", shown.join(", ")) }
}

/// What a tool printed: a text, or blocks of which the texts count.
fn printed(content: &Value) -> String {
    if let Some(text) = content.as_str() {
        return text.to_owned();
    }
    let blocks = content.as_array().into_iter().flatten().map(|block| match text(block, "type") {
        "text" => text(block, "text").to_owned(),
        kind => format!("[{kind}]"),
    });
    blocks.collect::<Vec<_>>().join("\n")
}

/// What a tool is to be used on: the action's own words before the model's description of it.
fn about(input: &Value, description: Option<&str>) -> String {
    let own = ["command", "file_path", "notebook_path", "url"].map(|name| text(input, name));
    let words = own.into_iter().find(|words| !words.is_empty()).or(description);
    words.map(|words| format!(": {words}")).unwrap_or_default()
}

fn is_child(frame: &Value) -> bool {
    frame.get("parent_tool_use_id").is_some_and(Value::is_string)
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn number(value: &Value, name: &str) -> u64 {
    value.get(name).and_then(Value::as_u64).unwrap_or_default()
}

fn flag(value: &Value, name: &str) -> bool {
    value.get(name).and_then(Value::as_bool).unwrap_or_default()
}
