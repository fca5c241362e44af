//! Normalized events: what every harness's stream is turned into, one JSON line each in a run's journal.
//!
//! An event's index is its line number in the journal, from 0.

use serde::{Deserialize, Serialize};

/// Tool output kept in an event, in bytes; the rest is cut with a marker.
pub const TOOL_OUTPUT_LEN_MAX: usize = 256 * 1024;

/// Longest event line, in bytes. Longer text is split by the resident.
pub const EVENT_LEN_MAX: usize = 512 * 1024;

/// One normalized item of a turn's stream.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum Event {
    /// The harness has taken the payload. First event of every attempt.
    Started {
        /// The model the harness says it uses.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        model: Option<String>,
    },
    /// A piece of the answer. Deltas concatenate.
    Text {
        /// The piece.
        text: String,
    },
    /// A whole paragraph of the answer, set apart from what stands before it.
    Block {
        /// The paragraph.
        text: String,
    },
    /// A piece of the model's reasoning, as far as the harness shows it.
    Reasoning {
        /// The piece.
        text: String,
    },
    /// A tool was called.
    ToolCall {
        /// The harness's id for the call; its result repeats it.
        id: String,
        /// The tool's name.
        name: String,
        /// The tool's input, as JSON.
        input: serde_json::Value,
        /// The call of the parent agent, when a sub-agent made this one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parent: Option<String>,
    },
    /// A tool call ended.
    ToolResult {
        /// Id of the call.
        id: String,
        /// Whether the tool succeeded.
        ok: bool,
        /// What it printed, at most [`TOOL_OUTPUT_LEN_MAX`] bytes.
        output: String,
        /// Bytes cut from the output.
        #[serde(default, skip_serializing_if = "is_zero")]
        cut: u64,
    },
    /// The turn waits for a person: a question or a permission. A card is raised for it.
    Asked {
        /// The question.
        ask: Ask,
    },
    /// The harness was given the answer to a question.
    Answered {
        /// [`Ask::id`].
        id: String,
        /// The labels chosen.
        choice: Vec<String>,
    },
    /// Tokens and money used by this turn so far.
    Usage {
        /// The totals.
        usage: Usage,
    },
    /// The harness compacts its context.
    Compaction {
        /// True when done.
        done: bool,
    },
    /// The harness retries its model by itself.
    Retry {
        /// What it waits out, as it says it.
        reason: String,
    },
    /// A remark by the harness or the node that is no part of the answer.
    Notice {
        /// The remark.
        text: String,
    },
    /// A sub-agent started.
    ChildStarted {
        /// The tool call that made it.
        id: String,
        /// What it is for.
        title: String,
    },
    /// A sub-agent ended.
    ChildEnded {
        /// The tool call that made it.
        id: String,
        /// Whether it succeeded.
        ok: bool,
    },
    /// The attempt ended. Last event of every attempt, exactly once.
    Finished {
        /// How.
        outcome: Outcome,
    },
    /// An event of a newer version; kept and shown as such.
    #[serde(other)]
    Unknown,
}

/// A question or permission request that blocks a turn.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Ask {
    /// The resident's id for it, unique within the attempt.
    pub id: String,
    /// Which kind.
    pub kind: AskKind,
    /// The question, or what is asked for.
    pub prompt: String,
    /// The labels to choose from. For approvals: `allow`, `deny` and what else the harness offers.
    pub options: Vec<AskOption>,
    /// Whether several labels may be chosen.
    #[serde(default)]
    pub multi: bool,
    /// Approvals: the tool asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// Approvals: the exact action, as the harness sent it. Its hash is what an approval is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
}

/// Label that allows an approval once.
pub const ALLOW: &str = "allow";
/// Label that refuses an approval; the turn goes on without the action.
pub const DENY: &str = "deny";

/// Kinds of [`Ask`].
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AskKind {
    /// A question with options.
    Question,
    /// A permission for an exact action.
    Approval,
}

/// One option of an [`Ask`].
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct AskOption {
    /// What to choose it by.
    pub label: String,
    /// What it means.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// The answer to an [`Ask`].
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Answer {
    /// The labels chosen.
    pub choice: Vec<String>,
    /// Free text with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// How an attempt ended.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Outcome {
    /// The verdict.
    pub status: Status,
    /// The final text; empty when there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// Failed turns: why, in words for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What the turn used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// The verdict on an attempt or a turn.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// The harness said that it is done.
    Completed,
    /// The harness, its model or its process failed. The member lives on.
    Failed,
    /// A person stopped it.
    Interrupted,
}

/// Tokens and money.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Usage {
    /// Input tokens, cached ones included.
    pub input: u64,
    /// Input tokens that came from a cache.
    #[serde(default)]
    pub cached: u64,
    /// Output tokens.
    pub output: u64,
    /// Cost in US dollars, when the harness says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}
