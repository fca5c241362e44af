//! Codex' items: what its tools did.

use serde_json::{Value, json};
use tieline_proto::event::Event;

/// The call that an item is; `None` for items that are no tool's.
pub(super) fn call(item: &Value) -> Option<Event> {
    let part = |name: &str| item.get(name).cloned().unwrap_or_default();
    let (name, input) = match kind(item) {
        "commandExecution" => ("shell".to_owned(), json!({ "command": part("command"), "cwd": part("cwd") })),
        "fileChange" => ("edit".to_owned(), json!({ "changes": part("changes") })),
        "mcpToolCall" => (format!("{}.{}", words(item, "server"), words(item, "tool")), part("arguments")),
        "dynamicToolCall" => (words(item, "tool").to_owned(), part("arguments")),
        "collabAgentToolCall" => (words(item, "tool").to_owned(), json!({ "prompt": part("prompt") })),
        "webSearch" => ("web-search".to_owned(), json!({ "query": part("query") })),
        "imageView" => ("view-image".to_owned(), json!({ "path": part("path") })),
        "imageGeneration" => ("make-image".to_owned(), json!({ "prompt": part("revisedPrompt") })),
        _ => return None,
    };
    Some(Event::ToolCall { id: words(item, "id").to_owned(), name, input, parent: None })
}

/// How the call of an item ended; `None` for items that are no tool's.
pub(super) fn result(item: &Value) -> Option<Event> {
    let status = words(item, "status");
    let done = matches!(status, "completed" | "");
    let (ok, output) = match kind(item) {
        "commandExecution" => {
            let code = item.get("exitCode").and_then(Value::as_i64);
            let printed = words(item, "aggregatedOutput");
            let output = if done || !printed.is_empty() { printed } else { status };
            (done && code.unwrap_or_default() == 0, output.to_owned())
        }
        "mcpToolCall" => {
            let error = item.pointer("/error/message").and_then(Value::as_str);
            (done && error.is_none(), error.map_or_else(|| said(item.pointer("/result/content")), ToOwned::to_owned))
        }
        "dynamicToolCall" => (done && item.get("success") != Some(&Value::Bool(false)), said(item.get("contentItems"))),
        "fileChange" | "collabAgentToolCall" | "imageGeneration" => (done, status.to_owned()),
        "webSearch" | "imageView" => (true, String::new()),
        _ => return None,
    };
    Some(Event::ToolResult { id: words(item, "id").to_owned(), ok, output, cut: 0 })
}

/// Whether a page of turns holds a prompt.
pub(super) fn holds_prompt(page: &Value, prompt: &str) -> bool {
    let turns = page.get("data").and_then(Value::as_array).into_iter().flatten();
    let items = turns.filter_map(|turn| turn.get("items")?.as_array()).flatten();
    let given = items.filter(|item| kind(item) == "userMessage").filter_map(|item| item.get("content")?.as_array());
    given.flatten().any(|block| words(block, "text") == prompt)
}

/// The texts of a tool's answer.
fn said(content: Option<&Value>) -> String {
    let blocks = content.and_then(Value::as_array).into_iter().flatten();
    blocks.map(|block| words(block, "text")).filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n")
}

fn kind(item: &Value) -> &str {
    words(item, "type")
}

fn words<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}
