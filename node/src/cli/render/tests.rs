use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn renderer() -> Renderer {
    let mut renderer = Renderer::new(Style::PLAIN);
    renderer.zone = TimeZone::UTC;
    renderer.name([(MemberId(2), "maya".to_owned()), (MemberId(3), "gpu".to_owned())]);
    renderer
}

fn frame(value: &Value) -> Frame {
    let raw = serde_json::value::to_raw_value(value).unwrap();
    Frame { head: serde_json::from_str(raw.get()).unwrap(), raw }
}

/// An entry frame, 12:00 and `seq` seconds.
fn entry(seq: u64, author: &str, body: Value) -> Frame {
    let zeros = "0".repeat(64);
    let line = json!({"seq": seq, "epoch": 1, "lamport": seq, "prev": zeros, "org": zeros,
        "ts": 1_767_268_800_000_u64 + seq * 1000, "body": body});
    let kind = body["kind"].clone();
    frame(
        &json!({"type": "entry", "seq": seq, "message": body["message"], "kind": kind, "author": author, "line": line}),
    )
}

fn started(seq: u64, message: u64, batch: &[u64]) -> Frame {
    let zeros = "0".repeat(64);
    entry(
        seq,
        "system",
        json!({"kind": "turn-started", "message": message, "member": 3, "node": zeros,
        "attempt": 1, "batch": batch, "payload": zeros, "hops": 0}),
    )
}

fn finished(seq: u64, message: u64, status: &str, text: &str) -> Frame {
    entry(
        seq,
        "gpu",
        json!({"kind": "turn-finished", "message": message, "attempt": 1, "status": status, "text": text,
        "error": (status == "failed").then_some("model: 529 overloaded"), "events": 1, "length": 1,
        "journal": "0".repeat(64)}),
    )
}

fn posted(seq: u64, message: u64, text: &str) -> Frame {
    entry(
        seq,
        "maya",
        json!({"kind": "posted", "message": message, "post": {"text": text},
        "routed": {"to": [{"member": 3, "hops": 0, "why": "mention"}]}}),
    )
}

fn event(message: u64, index: u64, event: Value) -> Frame {
    frame(&json!({"type": "event", "message": message, "index": index, "event": event}))
}

fn text(message: u64, index: u64, piece: &str) -> Frame {
    event(message, index, json!({"type": "text", "text": piece}))
}

fn check(renderer: &mut Renderer, frames: &[Frame], expected: &str) {
    let mut shown: String = frames.iter().map(|frame| renderer.frame(frame)).collect();
    shown.push_str(&renderer.close());
    assert_eq!(shown, expected, "\n{shown}");
}

#[test]
fn history_shows_each_message_under_its_heading() {
    let frames = [
        entry(1, "system", json!({"kind": "channel-created", "draft": "{}"})),
        entry(
            4,
            "maya",
            json!({"kind": "member-added", "member": {"kind": "agent", "handle": "ops", "harness": "codex"}}),
        ),
        posted(5, 1, "@gpu train it\nplease"),
        started(6, 2, &[1]),
        finished(10, 2, "completed", "Done.\nLoss 0.3"),
        started(11, 3, &[1]),
        finished(12, 3, "failed", ""),
    ];
    check(
        &mut renderer(),
        &frames,
        "\
12:00  the channel begins
12:00  + ops joined: agent, codex

12:00  #1 maya → gpu
    @gpu train it
    please

12:00  #2 gpu answers #1
    Done.
    Loss 0.3
    ✓ completed in 4 s

12:00  #3 gpu answers #1
    ✗ failed in 1 s: model: 529 overloaded
",
    );
}

#[test]
fn a_running_turn_streams_and_its_text_is_not_repeated() {
    let frames = [
        started(1, 2, &[1]),
        text(2, 0, "Load"),
        text(2, 1, "ing\n"),
        event(2, 2, json!({"type": "tool-call", "id": "a", "name": "Bash", "input": {"command": "nvidia-smi"}})),
        text(2, 3, "Fine."),
        finished(3, 2, "completed", "Loading\nFine."),
    ];
    check(
        &mut renderer().live(),
        &frames,
        r#"
12:00  #2 gpu answers #1
    Loading
    ⚙ Bash {"command":"nvidia-smi"}
    Fine.
    ✓ completed in 2 s
"#,
    );
}

#[test]
fn turns_that_run_at_once_keep_their_text_apart() {
    let frames = [
        started(1, 2, &[1]),
        started(2, 3, &[1]),
        text(2, 0, "one"),
        text(3, 0, "two"),
        text(2, 1, " more"),
        finished(4, 2, "interrupted", "one more"),
    ];
    check(
        &mut renderer().live(),
        &frames,
        "
12:00  #2 gpu answers #1

12:00  #3 gpu answers #1

12:00  #2 gpu answers #1
    one

12:00  #3 gpu answers #1
    two

       #2 gpu goes on
     more
    ■ interrupted in 3 s
",
    );
}

#[test]
fn a_turn_of_which_a_piece_was_missed_is_shown_whole_at_its_end() {
    let frames = [started(1, 2, &[1]), text(2, 0, "a"), text(2, 2, "c"), finished(2, 2, "completed", "abc")];
    let mut renderer = renderer().live();
    let shown: String = frames.iter().map(|frame| renderer.frame(frame)).collect();
    assert!(shown.contains("    abc\n"), "{shown}");
    let again = renderer.frame(&text(2, 1, "late"));
    assert_eq!(again, "", "events of an ended turn are history");
}

#[test]
fn asks_show_their_options_and_how_to_answer() {
    let ask = json!({"id": "1", "kind": "approval", "prompt": "Clean the build folder", "tool": "Bash",
        "action": "rm -rf build", "options": [{"label": "allow"}, {"label": "don't", "detail": "go on without"}]});
    let frames = [
        started(1, 2, &[1]),
        entry(2, "gpu", json!({"kind": "card-raised", "message": 3, "run": 2, "attempt": 1, "ask": ask})),
        entry(3, "maya", json!({"kind": "card-answered", "card": 3, "choice": ["allow"]})),
    ];
    check(
        &mut renderer(),
        &frames,
        "
12:00  #3 gpu wants to
    Bash
    Clean the build folder
    rm -rf build
    • allow
    • don't: go on without
    tieline answer CHANNEL 3 --choose allow
12:00  #3 answered by maya: allow
",
    );
}

#[test]
fn entries_of_newer_versions_are_named() {
    let frames = [entry(1, "maya", json!({"kind": "hologram", "message": 1}))];
    check(&mut renderer(), &frames, "#1 newer message by maya (hologram): upgrade to read it\n");
}

#[test]
fn threat_c3_no_escape_reaches_the_terminal() {
    let nasty = "\x1b]52;c;ZXZpbA==\x07\u{9b}2J\x1b]8;;http://evil\x1b\\ \u{202e}x\r";
    let input = json!({ "a": nasty });
    let frames = [
        posted(1, 1, nasty),
        entry(2, nasty, json!({"kind": "stop-requested", "message": 9})),
        entry(3, nasty, json!({"kind": nasty, "message": 1})),
        entry(4, nasty, json!({"kind": "card-closed", "card": 3, "reason": nasty})),
        started(5, 2, &[1]),
        text(2, 0, nasty),
        event(2, 1, json!({"type": "tool-call", "id": nasty, "name": nasty, "input": input})),
        event(2, 2, json!({"type": "tool-result", "id": nasty, "ok": false, "output": nasty})),
        event(2, 3, json!({"type": "reasoning", "text": nasty})),
        event(2, 4, json!({"type": "notice", "text": nasty})),
        finished(6, 2, "failed", nasty),
        finished(7, 8, "completed", nasty),
    ];
    let mut renderer = renderer().with_details(true).live();
    let shown: String = frames.iter().map(|frame| renderer.frame(frame)).collect();
    let hidden = shown.chars().find(|&c| text::is_hidden(c) && c != '\n' && c != '\t');
    assert_eq!(hidden, None, "{shown:?}");
    assert!(shown.contains('␛') && shown.contains("\\u{9b}"), "{shown}");
}

proptest! {
    #[test]
    fn any_text_is_shown_safely_and_in_whole_lines(pieces in prop::collection::vec(any::<String>(), 1..5)) {
        let mut renderer = renderer().live();
        let mut shown = renderer.frame(&started(1, 2, &[1]));
        for (index, piece) in pieces.iter().enumerate() {
            shown.push_str(&renderer.frame(&text(2, index as u64, piece)));
        }
        shown.push_str(&renderer.close());
        prop_assert!(shown.ends_with('\n'));
        let may_stay = "\n\t\u{200c}\u{200d}\u{fe0e}\u{fe0f}";
        let hidden = shown.chars().find(|&c| text::is_hidden(c) && !may_stay.contains(c));
        prop_assert_eq!(hidden, None);
    }
}
