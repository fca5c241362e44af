//! Questions and permissions: what programs ask, turned into [`Ask`]s, and the answers back.

use serde_json::Value;
use serde_json::value::RawValue;
use tieline_proto::event::{ALLOW, Answer, Ask, AskKind, AskOption, DENY};

/// Label that allows an action and others like it until the program ends. Offered only when the program offers it.
pub const ALLOW_SESSION: &str = "allow-session";

/// Longest action, in bytes of JSON, that a person is asked about: it must fit an event, and nobody reads more.
pub(super) const ACTION_LEN_MAX: usize = 128 * 1024;

/// Questions of one request that are asked; programs ask up to four.
const QUESTIONS_MAX: usize = 16;

/// Options of one question that are shown.
const OPTIONS_MAX: usize = 64;

/// Longest rule that is offered, in bytes: it is what one approves, so all of it must be seen.
const RULE_LEN_MAX: usize = 180;

/// Longest prompt, label or explanation, in bytes.
const WORDS_LEN_MAX: usize = 8 * 1024;

/// Asks for a permission; `session` says what is allowed with it until the program ends, when it offers that. `None`
/// when the action is too long to be shown whole.
pub(super) fn approval(id: String, tool: &str, prompt: &str, action: &RawValue, session: Option<&str>) -> Option<Ask> {
    if action.get().len() > ACTION_LEN_MAX {
        return None;
    }
    let once = option(ALLOW, "this once");
    // What can't be shown whole can't be allowed.
    let session = session.filter(|rule| rule.len() <= RULE_LEN_MAX);
    let always = session.map(|rule| option(ALLOW_SESSION, &format!("{rule}, until the program ends")));
    Some(Ask {
        id,
        kind: AskKind::Approval,
        prompt: words(prompt),
        options: std::iter::once(once).chain(always).chain([option(DENY, "the turn goes on without it")]).collect(),
        multi: false,
        tool: Some(words(tool)),
        action: Some(action.get().to_owned()),
    })
}

/// Said to a program whose action can't be shown.
pub(super) fn too_long() -> String {
    format!("refused: the action is longer than {ACTION_LEN_MAX} bytes, so nobody could be shown it; use smaller steps")
}

/// What an answer to an approval says. Anything but a clear yes is a no.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Verdict {
    Allow,
    AllowSession,
    Deny,
}

impl Verdict {
    pub(super) fn of(answer: &Answer) -> Self {
        match answer.choice.as_slice() {
            [label] if label == ALLOW => Self::Allow,
            [label] if label == ALLOW_SESSION => Self::AllowSession,
            _ => Self::Deny,
        }
    }
}

/// A row of questions that came in one request and are answered in one.
#[derive(Clone, Debug)]
pub(super) struct Questions {
    id: String,
    list: Vec<Question>,
    answers: Vec<Answer>,
}

#[derive(Clone, Debug)]
struct Question {
    /// What the program knows it by.
    key: String,
    prompt: String,
    options: Vec<AskOption>,
    multi: bool,
}

impl Questions {
    /// The questions of `list`, named by the text in `key`; `None` when there is none.
    pub(super) fn new(id: &str, list: &Value, key: &str) -> Option<Self> {
        let list: Vec<Question> =
            list.as_array()?.iter().take(QUESTIONS_MAX).filter_map(|q| question(q, key)).collect();
        (!list.is_empty()).then(|| Self { id: id.to_owned(), list, answers: Vec::new() })
    }

    /// The question to ask next; `None` when all are answered.
    pub(super) fn next(&self) -> Option<Ask> {
        let question = self.list.get(self.answers.len())?;
        Some(Ask {
            id: self.ask_id(),
            kind: AskKind::Question,
            prompt: question.prompt.clone(),
            options: question.options.clone(),
            multi: question.multi,
            tool: None,
            action: None,
        })
    }

    /// [`Ask::id`] of the question to ask next.
    pub(super) fn ask_id(&self) -> String {
        format!("{}/{}", self.id, self.answers.len())
    }

    /// Takes the answer to the question asked last.
    pub(super) fn answer(&mut self, answer: Answer) {
        self.answers.push(answer);
    }

    /// Each question's key with its answer: the labels and the free text.
    pub(super) fn answers(&self) -> impl Iterator<Item = (&str, Vec<&str>)> {
        self.list.iter().zip(&self.answers).map(|(question, answer)| {
            let words = answer.choice.iter().chain(&answer.text).map(String::as_str);
            (question.key.as_str(), words.collect())
        })
    }
}

fn question(question: &Value, key: &str) -> Option<Question> {
    let text = |name: &str| question.get(name).and_then(Value::as_str);
    let options = question.get("options").and_then(Value::as_array).into_iter().flatten().take(OPTIONS_MAX);
    Some(Question {
        key: text(key)?.to_owned(),
        prompt: words(text("question").or_else(|| text("header"))?),
        options: options
            .filter_map(|choice| {
                let label = choice.get("label")?.as_str()?;
                Some(option(label, choice.get("description").and_then(Value::as_str).unwrap_or_default()))
            })
            .collect(),
        multi: question.get("multiSelect").and_then(Value::as_bool).unwrap_or_default(),
    })
}

fn option(label: &str, detail: &str) -> AskOption {
    AskOption { label: words(label), detail: words(detail) }
}

fn words(text: &str) -> String {
    super::cut::fitting(text, WORDS_LEN_MAX).0.to_owned()
}
