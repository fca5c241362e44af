use std::collections::BTreeMap as Map;

use serde_json::json;
use tieline_proto::entry::Policy;
use tieline_proto::event::{ALLOW, Answer, DENY, Event};

use super::*;
use crate::harness::replay::{recorded, show, spec};
use crate::harness::step::CONTINUE;

/// The turns of a recording. Its own requests are matched with the reader's by what they are; recorded answers are
/// given as the test says.
fn turns(file: &str, answers: &[&str]) -> Vec<String> {
    let mut shown = Vec::new();
    let mut open = Thread::default();
    let mut serial = 0;
    let mut reader: Option<Reader> = None;
    let mut steps = Vec::new();
    let mut ids: Map<String, &str> = Map::new();
    let mut answers = answers.iter();
    for (out, mut frame) in recorded(file) {
        if !out {
            let what = match frame["method"].as_str().unwrap_or_default() {
                "turn/start" => "turn",
                "turn/interrupt" => "interrupt",
                _ => continue,
            };
            ids.insert(frame["id"].to_string(), what);
            match (what, &mut reader) {
                ("turn", running @ None) => {
                    serial += 1;
                    let mut spec = spec(frame["params"]["input"][0]["text"].as_str().unwrap_or_default());
                    spec.session = open.id.clone();
                    *running = Some(Reader::new(&spec, serial, open.clone()));
                }
                ("interrupt", Some(reader)) => assert!(reader.interrupt(1).is_some()),
                _ => {}
            }
            continue;
        }
        if let Some(id) = frame["result"]["thread"]["id"].as_str() {
            open.id = Some(id.to_owned());
        }
        let Some(running) = &mut reader else { continue };
        if frame.get("method").is_none() {
            let Some(what) = ids.get(&frame["id"].to_string()) else { continue };
            frame["id"] = json!(format!("{what}-{serial}"));
        }
        let before = steps.len();
        running.line(frame.to_string().as_bytes(), &mut steps);
        let asked = steps[before..].iter().filter_map(|step| match step {
            Step::Event(Event::Asked { ask }) => Some(ask.id.clone()),
            _ => None,
        });
        for ask in asked.collect::<Vec<_>>() {
            let choice = answers.next().expect("an answer for every question");
            running.answer(&ask, &Answer { choice: vec![(*choice).to_owned()], text: None }, &mut steps);
        }
        if matches!(steps.last(), Some(Step::Done(_) | Step::Lost)) {
            shown.push(show(&steps));
            open = reader.take().expect("it reads").into_thread();
            steps.clear();
        }
    }
    if !steps.is_empty() {
        shown.push(show(&steps));
    }
    shown
}

/// The lines of a turn, without those that all turns share.
#[track_caller]
fn check(turn: &str, expected: &[&str]) {
    let common = |line: &&str| *line != "started -" && !line.starts_with("session ");
    let lines: Vec<&str> = turn.lines().filter(common).collect();
    assert_eq!(lines, expected);
}

fn answer(label: &str) -> Answer {
    Answer { choice: vec![label.to_owned()], text: None }
}

/// A reader whose turn `t` runs in thread `th`.
fn running(policy: Policy) -> Reader {
    let mut spec = spec("x");
    spec.policy = policy;
    let mut reader = Reader::new(&spec, 1, Thread { id: Some("th".to_owned()), ..Thread::default() });
    read(&mut reader, &json!({ "id": "turn-1", "result": { "turn": { "id": "t" } } }));
    reader
}

fn read(reader: &mut Reader, frame: &Value) -> String {
    let mut steps = Vec::new();
    reader.line(frame.to_string().as_bytes(), &mut steps);
    show(&steps)
}

#[test]
fn text_reasoning_and_tools_are_told_in_their_order() {
    let turns = turns("codex/app-basic.paired.jsonl", &[]);
    assert_eq!(
        turns[0],
        "started -\nsession 00000000-0000-4000-8000-000000000002\ntext Hello |from |the |fake |model.\n\
         usage 140 0 5\ndone Completed \"Hello from the fake model.\""
    );
    assert!(turns[1].contains("reasoning Considering \nreasoning the \n"));
    check(
        &turns[3],
        &[
            "text Running |a |tool.",
            r#"call call_fake000084 shell {"command":"/bin/bash -lc 'echo broken >&2; exit 3'","cwd":"/home/dev/project"}"#,
            "result call_fake000084 false broken",
            "",
            "usage 220 0 15",
            "text Tool |finished.",
            "usage 460 0 17",
            "done Completed \"Tool finished.\"",
        ],
    );
}

#[test]
fn permissions_are_asked_and_answered_in_codex_words() {
    let turns = turns("codex/app-approvals.paired.jsonl", &[ALLOW, DENY, DENY]);
    let ask = r#"asked 0 Approval "Codex asks to use shell: /bin/bash -lc 'touch made'" ["allow", "deny"]"#;
    assert!(turns[0].contains(ask), "{}", turns[0]);
    assert!(turns[0].contains(r#"send {"id":0,"result":{"decision":"accept"}}"#));
    assert!(turns[1].contains(r#"send {"id":1,"result":{"decision":"decline"}}"#));
    assert!(turns[1].contains("result call_fake000167 false declined"));
    assert!(turns[1].ends_with("done Completed \"Tool finished.\""));
}

#[test]
fn errors_end_a_turn_as_failed_and_retries_are_told() {
    let turns = turns("codex/app-errors-compaction.paired.jsonl", &[]);
    let ends: Vec<&str> = turns.iter().filter_map(|turn| turn.lines().last()).collect();
    assert!(ends[0].starts_with("done Failed \"\" error exceeded retry limit, last status: 429"));
    assert!(turns[1].contains("retry Reconnecting... 1/1: We"));
    assert!(ends[2].starts_with("done Failed \"\" error unexpected status 401 Unauthorized: scripted bad key"));
    assert!(ends[3].starts_with("done Failed \"\" error Codex ran out of room"));
    assert_eq!(ends[5], "done Completed \"ok again\"");
}

#[test]
fn compaction_is_told_and_repeated_token_counts_are_not_counted_twice() {
    let turns = turns("codex/app-errors-compaction.paired.jsonl", &[]);
    check(
        &turns[7],
        &[
            "compaction false",
            "usage 400000 0 3",
            "compaction true",
            "text after |big",
            "usage 400220 0 5",
            "done Completed \"after big\"",
        ],
    );
}

#[test]
fn an_interrupted_turn_is_interrupted_and_leaves_its_open_call_to_the_host() {
    let turns = turns("codex/app-resume-steer-interrupt.paired.jsonl", &[]);
    assert!(turns[2].ends_with("done Interrupted \"\"") && !turns[2].contains("result "), "{}", turns[2]);
    assert!(turns[3].ends_with("slowtool,history\""));
    // The recording ends with a kill: that is no outcome.
    assert!(!turns[4].contains("done"));
}

#[test]
fn a_new_session_greets_opens_a_thread_and_starts_the_turn() {
    let mut turn = spec("hello");
    turn.model = Some("big".to_owned());
    turn.policy = Policy::Edit;
    let mut reader = Reader::new(&turn, 1, Thread::default());
    assert_eq!(reader.begin()["method"], "initialize");
    let told = read(&mut reader, &json!({ "id": "initialize-1", "result": {} }));
    assert_eq!(
        told,
        r#"send {"method":"initialized"}
send {"id":"thread-1","method":"thread/start","params":{"approvalPolicy":"on-request","approvalsReviewer":"user","cwd":"/home/dev/project","model":"big","sandbox":"workspace-write"}}"#
    );
    let told = read(&mut reader, &json!({ "id": "thread-1", "result": { "thread": { "id": "th" }, "model": "big" } }));
    assert_eq!(
        told,
        r#"started big
send {"id":"turn-1","method":"turn/start","params":{"input":[{"text":"hello","type":"text"}],"threadId":"th"}}"#
    );
    assert!(!reader.is_running());
    read(&mut reader, &json!({ "id": "turn-1", "result": { "turn": { "id": "t" } } }));
    assert!(reader.is_running());
}

#[test]
fn policies_are_said_in_codex_words() {
    for (policy, approval, sandbox) in [
        (Policy::ReadOnly, "never", "read-only"),
        (Policy::Ask, "untrusted", "workspace-write"),
        (Policy::Full, "never", "danger-full-access"),
    ] {
        let mut turn = spec("hello");
        turn.policy = policy;
        let told = read(&mut Reader::new(&turn, 1, Thread::default()), &json!({ "id": "initialize-1", "result": {} }));
        assert!(told.contains(&format!("\"approvalPolicy\":\"{approval}\"")), "{told}");
        assert!(told.contains(&format!("\"sandbox\":\"{sandbox}\"")), "{told}");
    }
}

#[test]
fn a_resumed_thread_without_a_model_gets_the_configured_one() {
    let mut turn = spec("hello");
    turn.session = Some("th".to_owned());
    let mut reader = Reader::new(&turn, 1, Thread::default());
    assert!(read(&mut reader, &json!({ "id": "initialize-1", "result": {} })).contains("config/read"));
    let told = read(&mut reader, &json!({ "id": "config-1", "result": { "config": { "model": "usual" } } }));
    assert!(told.contains("thread/resume") && told.contains("\"model\":\"usual\""), "{told}");
    let error = json!({ "code": -32600, "message": "no rollout found for thread id th" });
    assert_eq!(read(&mut reader, &json!({ "id": "thread-1", "error": error })), "lost");
}

#[test]
fn case_s7_another_attempt_continues_only_what_stands_in_the_history() {
    for (given, sent) in [("hello", CONTINUE), ("something else", "hello")] {
        let mut turn = spec("hello");
        turn.session = Some("th".to_owned());
        turn.again = true;
        let mut reader = Reader::new(&turn, 1, Thread::default());
        let told = read(&mut reader, &json!({ "id": "thread-1", "result": { "thread": { "id": "th" } } }));
        assert!(told.contains("thread/turns/list"), "{told}");
        let item = json!({ "type": "userMessage", "content": [{ "type": "text", "text": given }] });
        let page = json!({ "data": [{ "items": [item] }] });
        let told = read(&mut reader, &json!({ "id": "turns-1", "result": page }));
        assert!(told.contains(sent), "{told}");
    }
}

#[test]
fn an_interrupt_before_the_prompt_was_given_ends_the_turn_without_giving_it() {
    let mut reader = Reader::new(&spec("hello"), 1, Thread::default());
    assert_eq!(reader.interrupt(1), None);
    assert_eq!(read(&mut reader, &json!({ "id": "initialize-1", "result": {} })), "done Interrupted \"\"");
}

#[test]
fn case_s6_a_late_or_repeated_interrupt_ends_nothing() {
    let mut reader = running(Policy::Ask);
    assert!(reader.interrupt(1).is_some() && reader.interrupt(2).is_some());
    let error = json!({ "code": -32600, "message": "no active turn to interrupt" });
    assert_eq!(read(&mut reader, &json!({ "id": "interrupt-2-1", "error": error })), "");
    assert_eq!(read(&mut reader, &json!({ "id": "interrupt-1-1", "result": {} })), "");
    let completed = json!({ "threadId": "th", "turn": { "id": "t", "status": "interrupted" } });
    let told = read(&mut reader, &json!({ "method": "turn/completed", "params": completed }));
    assert!(told.ends_with("done Interrupted \"\""), "{told}");
}

#[test]
fn case_a2_an_unknown_permission_is_a_card_and_is_refused_when_nobody_answers() {
    let mut reader = running(Policy::Ask);
    let request = json!({ "id": "q", "method": "item/rocket/requestApproval", "params": { "reason": "launch" } });
    let told = read(&mut reader, &request);
    assert!(told.starts_with("asked q Approval \"Codex asks to use item/rocket/requestApproval: launch\""), "{told}");
    assert_eq!(reader.strange().collect::<Vec<_>>(), ["q"]);
    let mut steps = Vec::new();
    reader.expire("q", &mut steps);
    let told = show(&steps);
    assert!(told.contains("answered q []") && told.contains("nobody answered in time"), "{told}");
    assert_eq!(reader.strange().count(), 0);

    let told = read(&mut reader, &json!({ "id": 5, "method": "item/tool/call", "params": {} }));
    assert!(told.contains(r#"send {"error":{"code":-32601"#) && told.contains("notice Codex asked for"), "{told}");
}

#[test]
fn questions_are_asked_one_after_the_other_and_answered_together() {
    let mut reader = running(Policy::Ask);
    let questions = json!([
        { "id": "a", "header": "A", "question": "First?", "options": [{ "label": "x", "description": "" }] },
        { "id": "b", "header": "B", "question": "Second?", "options": null },
    ]);
    let params = json!({ "threadId": "th", "turnId": "t", "itemId": "i", "isBlocking": true, "questions": questions });
    let request = json!({ "id": 7, "method": "item/tool/requestUserInput", "params": params });
    assert_eq!(read(&mut reader, &request), "asked 7/0 Question \"First?\" [\"x\"]");
    let mut steps = Vec::new();
    reader.answer("7/0", &answer("x"), &mut steps);
    assert!(show(&steps).ends_with("asked 7/1 Question \"Second?\" []"));
    steps.clear();
    reader.answer("7/1", &Answer { choice: Vec::new(), text: Some("free".to_owned()) }, &mut steps);
    let told = show(&steps);
    let sent = r#"send {"id":7,"result":{"answers":{"a":{"answers":["x"]},"b":{"answers":["free"]}}}}"#;
    assert!(told.ends_with(sent), "{told}");
}

#[test]
fn a_file_change_is_approved_by_its_exact_changes() {
    let mut reader = running(Policy::Ask);
    let item = r#"{"type":"fileChange","id":"i","changes":[{"path":"a","diff":"+x"}],"status":"inProgress"}"#;
    let line = format!(r#"{{"method":"item/started","params":{{"threadId":"th","turnId":"t","item":{item}}}}}"#);
    let mut steps = Vec::new();
    reader.line(line.as_bytes(), &mut steps);
    let params = json!({ "threadId": "th", "turnId": "t", "itemId": "i", "startedAtMs": 1 });
    let request = json!({ "id": 3, "method": "item/fileChange/requestApproval", "params": params });
    reader.line(request.to_string().as_bytes(), &mut steps);
    let Some(Step::Event(Event::Asked { ask })) = steps.last() else { panic!("{steps:?}") };
    assert_eq!(ask.action.as_deref(), Some(item));
    steps.clear();
    reader.answer("3", &answer(super::super::ALLOW_SESSION), &mut steps);
    assert!(show(&steps).ends_with(r#"send {"id":3,"result":{"decision":"acceptForSession"}}"#));
}

#[test]
fn every_kind_of_permission_is_answered_in_its_own_words() {
    for (method, allowed, denied) in [
        ("execCommandApproval", r#"{"decision":"approved"}"#, r#"{"decision":"denied"}"#),
        (
            "item/permissions/requestApproval",
            r#"{"permissions":{"network":{"enabled":true}},"scope":"turn"}"#,
            r#"{"permissions":{},"scope":"turn"}"#,
        ),
        ("mcpServer/elicitation/request", r#"{"action":"accept","content":{}}"#, r#"{"action":"decline"}"#),
    ] {
        let params = json!({ "serverName": "s", "permissions": { "network": { "enabled": true } } });
        for (label, result) in [(ALLOW, allowed), (DENY, denied)] {
            let mut reader = running(Policy::Ask);
            read(&mut reader, &json!({ "id": 1, "method": method, "params": params }));
            let mut steps = Vec::new();
            reader.answer("1", &answer(label), &mut steps);
            assert!(show(&steps).ends_with(&format!(r#"send {{"id":1,"result":{result}}}"#)), "{steps:?}");
        }
        let told = read(&mut running(Policy::ReadOnly), &json!({ "id": 1, "method": method, "params": params }));
        assert_eq!(told, format!(r#"send {{"id":1,"result":{denied}}}"#));
    }
}

#[test]
fn other_threads_and_earlier_turns_are_not_this_turn() {
    let mut reader = running(Policy::Ask);
    for (thread, turn) in [("other", "t"), ("th", "earlier")] {
        let params = json!({ "threadId": thread, "turnId": turn, "itemId": "m", "delta": "not mine" });
        assert_eq!(read(&mut reader, &json!({ "method": "item/agentMessage/delta", "params": params })), "");
        let params = json!({ "threadId": thread, "turn": { "id": turn, "status": "completed" } });
        assert_eq!(read(&mut reader, &json!({ "method": "turn/completed", "params": params })), "");
    }
    assert_eq!(read(&mut reader, &json!({ "id": "turn-0", "error": { "message": "of an earlier turn" } })), "");
}

proptest::proptest! {
    #[test]
    fn any_line_is_read(line in ".{0,200}") {
        running(Policy::Ask).line(line.as_bytes(), &mut Vec::new());
    }

    #[test]
    fn any_change_of_a_recorded_line_is_read(at in 0usize..4000, byte: u8) {
        for (_, frame) in recorded("codex/app-approvals.paired.jsonl").into_iter().take(25) {
            let mut line = frame.to_string().into_bytes();
            let len = line.len();
            line[at % len] = byte;
            running(Policy::Ask).line(&line, &mut Vec::new());
        }
    }
}
