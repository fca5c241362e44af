//! What Codex asks of this side: permissions, questions, and things it may come to ask one day.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tieline_proto::entry::Policy;
use tieline_proto::event::{Answer, Event};

use crate::harness::asks::{ACTION_LEN_MAX, Questions, Verdict, approval, too_long};
use crate::harness::step::Step;

/// Requests that can be open at once; more are refused. Codex asks one after the other.
const PENDING_MAX: usize = 64;

/// File changes that are remembered until they are asked about.
const CHANGES_MAX: usize = 64;

/// JSON-RPC: this side has no such method.
const NO_METHOD: i64 = -32601;

/// A request to answer.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    /// Repeated by the answer.
    pub id: Value,
    /// What is asked.
    pub method: String,
}

#[derive(Debug)]
enum Open {
    Approval { request: Pending, kind: Kind, wanted: Value },
    Questions { request: Pending, questions: Questions },
}

/// How a permission is answered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    /// By a decision: `accept` and the like.
    Decision,
    /// By a decision in the words of older versions.
    OldDecision,
    /// By the permissions that are given.
    Permissions,
    /// By an action, for a tool server.
    Elicitation,
    /// Unknown to this version: by a decision, since all of its kind are.
    Strange,
}

impl Kind {
    fn of(method: &str) -> Option<Self> {
        Some(match method {
            "item/commandExecution/requestApproval" | "item/fileChange/requestApproval" => Self::Decision,
            "execCommandApproval" | "applyPatchApproval" => Self::OldDecision,
            "item/permissions/requestApproval" => Self::Permissions,
            "mcpServer/elicitation/request" => Self::Elicitation,
            _ if method.to_ascii_lowercase().contains("approval") => Self::Strange,
            _ => return None,
        })
    }

    fn reply(self, verdict: Verdict, wanted: &Value) -> Value {
        let allowed = verdict != Verdict::Deny;
        match (self, verdict) {
            (Self::Decision | Self::Strange, Verdict::Allow) => json!({ "decision": "accept" }),
            (Self::Decision | Self::Strange, Verdict::AllowSession) => json!({ "decision": "acceptForSession" }),
            (Self::Decision | Self::Strange, Verdict::Deny) => json!({ "decision": "decline" }),
            (Self::OldDecision, Verdict::Allow) => json!({ "decision": "approved" }),
            (Self::OldDecision, Verdict::AllowSession) => json!({ "decision": "approved_for_session" }),
            (Self::OldDecision, Verdict::Deny) => json!({ "decision": "denied" }),
            (Self::Permissions, Verdict::AllowSession) => json!({ "permissions": wanted, "scope": "session" }),
            (Self::Permissions, Verdict::Allow) => json!({ "permissions": wanted, "scope": "turn" }),
            (Self::Permissions, Verdict::Deny) => json!({ "permissions": {}, "scope": "turn" }),
            (Self::Elicitation, _) if allowed => json!({ "action": "accept", "content": {} }),
            (Self::Elicitation, _) => json!({ "action": "decline" }),
        }
    }
}

/// The open requests of a turn.
#[derive(Debug, Default)]
pub(super) struct Requests {
    open: BTreeMap<String, Open>,
    /// Items of file changes, by id: a permission for one names it and doesn't repeat it.
    changes: BTreeMap<String, Box<RawValue>>,
}

impl Requests {
    /// Takes a request.
    pub(super) fn take(&mut self, request: Pending, params: Option<&RawValue>, policy: Policy, out: &mut Vec<Step>) {
        let json = params.map_or("null", RawValue::get);
        let params: Value = serde_json::from_str(json).unwrap_or_default();
        if self.open.len() >= PENDING_MAX {
            return out.push(decline(&request, "too many questions are open"));
        }
        if request.method == "item/tool/requestUserInput" {
            return self.ask(request, &params, out);
        }
        let Some(kind) = Kind::of(&request.method) else {
            let text = format!("Codex asked for {:?}, which this version of Tieline can't answer", request.method);
            out.push(decline(&request, &text));
            return out.push(Step::Event(Event::Notice { text }));
        };
        let wanted = params.get("permissions").cloned().unwrap_or_default();
        // A tool server's form has fields that nobody here could fill in.
        let decided = match policy {
            Policy::Full if kind != Kind::Elicitation => Some(Verdict::Allow),
            Policy::ReadOnly => Some(Verdict::Deny),
            Policy::Full | Policy::Ask | Policy::Edit => None,
        };
        if let Some(verdict) = decided {
            return out.push(respond(&request, &kind.reply(verdict, &wanted)));
        }
        self.approve(request, kind, wanted, &params, json, out);
    }

    /// Remembers an item that may be asked about, from the parameters that announce it.
    pub(super) fn note_item(&mut self, params: &RawValue) {
        #[derive(Deserialize)]
        struct Params<'a> {
            #[serde(borrow)]
            item: &'a RawValue,
        }
        let Ok(Params { item: json }) = serde_json::from_str(params.get()) else { return };
        let item: Value = serde_json::from_str(json.get()).unwrap_or_default();
        if item.get("type").and_then(Value::as_str) == Some("fileChange")
            && self.changes.len() < CHANGES_MAX
            && json.get().len() <= ACTION_LEN_MAX
            && let Some(id) = item.get("id").and_then(Value::as_str)
        {
            self.changes.insert(id.to_owned(), json.to_owned());
        }
    }

    /// Takes the answer to a question or permission; answers to others are moot.
    pub(super) fn answer(&mut self, ask: &str, answer: &Answer, out: &mut Vec<Step>) {
        let Some(open) = self.open.remove(ask) else { return };
        out.push(Step::Event(Event::Answered { id: ask.to_owned(), choice: answer.choice.clone() }));
        match open {
            Open::Approval { request, kind, wanted } => {
                out.push(respond(&request, &kind.reply(Verdict::of(answer), &wanted)));
            }
            Open::Questions { request, mut questions } => {
                questions.answer(answer.clone());
                if let Some(next) = questions.next() {
                    self.open.insert(next.id.clone(), Open::Questions { request, questions });
                    return out.push(Step::Event(Event::Asked { ask: next }));
                }
                let answers: BTreeMap<&str, Value> =
                    questions.answers().map(|(key, words)| (key, json!({ "answers": words }))).collect();
                out.push(respond(&request, &json!({ "answers": answers })));
            }
        }
    }

    /// Refuses an open request, saying that nobody answered.
    pub(super) fn expire(&mut self, ask: &str, out: &mut Vec<Step>) {
        if let Some(Open::Approval { request, .. } | Open::Questions { request, .. }) = self.open.remove(ask) {
            out.push(Step::Event(Event::Answered { id: ask.to_owned(), choice: Vec::new() }));
            out.push(decline(&request, "nobody answered in time"));
        }
    }

    /// Codex doesn't wait for the answer to a request any more, or has had it.
    pub(super) fn resolved(&mut self, id: &Value, out: &mut Vec<Step>) {
        let of_request = |open: &Open| match open {
            Open::Approval { request, .. } | Open::Questions { request, .. } => request.id == *id,
        };
        let asks: Vec<String> =
            self.open.iter().filter(|(_, open)| of_request(open)).map(|(ask, _)| ask.clone()).collect();
        for id in asks {
            self.open.remove(&id);
            out.push(Step::Event(Event::Answered { id, choice: Vec::new() }));
        }
    }

    /// Open permissions of an unknown kind.
    pub(super) fn strange(&self) -> impl Iterator<Item = &str> {
        let strange = |open: &Open| matches!(open, Open::Approval { kind: Kind::Strange, .. });
        self.open.iter().filter(move |(_, open)| strange(open)).map(|(ask, _)| ask.as_str())
    }

    fn ask(&mut self, request: Pending, params: &Value, out: &mut Vec<Step>) {
        let list = params.get("questions").unwrap_or(&Value::Null);
        let questions = Questions::new(&ask_id(&request), list, "id");
        let Some((questions, ask)) = questions.and_then(|questions| questions.next().map(|ask| (questions, ask)))
        else {
            return out.push(decline(&request, "there is no question in it"));
        };
        self.open.insert(ask.id.clone(), Open::Questions { request, questions });
        out.push(Step::Event(Event::Asked { ask }));
    }

    fn approve(
        &mut self,
        request: Pending,
        kind: Kind,
        wanted: Value,
        params: &Value,
        json: &str,
        out: &mut Vec<Step>,
    ) {
        let text = |name: &str| params.get(name).and_then(Value::as_str);
        let change = text("itemId").and_then(|item| self.changes.get(item));
        let tool = match request.method.as_str() {
            "item/commandExecution/requestApproval" | "execCommandApproval" => "shell",
            "item/fileChange/requestApproval" | "applyPatchApproval" => "edit",
            "item/permissions/requestApproval" => "permissions",
            "mcpServer/elicitation/request" => text("serverName").unwrap_or("tool server"),
            other => other,
        };
        let about = text("reason").or_else(|| text("message")).or_else(|| text("command")).unwrap_or_default();
        let prompt = format!("Codex asks to use {tool}: {about}");
        let offered = params.get("availableDecisions").and_then(Value::as_array);
        let session = match kind {
            Kind::Decision => offered.map_or(tool == "edit", |list| list.iter().any(|one| one == "acceptForSession")),
            Kind::Permissions => true,
            Kind::OldDecision | Kind::Elicitation | Kind::Strange => false,
        };
        let own = RawValue::from_string(json.to_owned());
        let action = change.map(AsRef::as_ref).or(own.as_ref().ok().map(AsRef::as_ref));
        let ask = action.and_then(|action| {
            approval(
                ask_id(&request),
                tool,
                prompt.trim_end_matches(": "),
                action,
                session.then_some("this and what Codex takes for the same"),
            )
        });
        let Some(ask) = ask else {
            out.push(Step::Event(Event::Notice { text: too_long() }));
            return out.push(respond(&request, &kind.reply(Verdict::Deny, &wanted)));
        };
        self.open.insert(ask.id.clone(), Open::Approval { request, kind, wanted });
        out.push(Step::Event(Event::Asked { ask }));
    }
}

fn ask_id(request: &Pending) -> String {
    match &request.id {
        Value::String(id) => id.clone(),
        id => id.to_string(),
    }
}

fn respond(request: &Pending, result: &Value) -> Step {
    Step::Send(json!({ "id": request.id, "result": result }))
}

fn decline(request: &Pending, reason: &str) -> Step {
    Step::Send(json!({ "id": request.id, "error": { "code": NO_METHOD, "message": reason } }))
}
