use super::*;
use crate::harness::replay::{recorded, show};
use tieline_proto::event::{ALLOW, Answer, DENY, Event};

/// Every turn of a recording, and each turn's steps. Recorded answers are given as the test says.
fn turns(file: &str, policy: Policy, answers: &[&str]) -> Vec<String> {
    let lines = recorded(file);
    let paired = lines.iter().any(|(out, _)| !out);
    let new = |first: bool| Reader::new("m", policy, true, first && !paired, Some(0.0));
    let mut shown = Vec::new();
    let (mut reader, mut steps, mut answers) = (new(true), Vec::new(), answers.iter());
    for (out, frame) in lines {
        if !out {
            if frame["type"] == "control_request" && frame["request"]["subtype"] == "interrupt" {
                reader.interrupt();
            }
            continue;
        }
        let before = steps.len();
        reader.line(frame.to_string().as_bytes(), &mut steps);
        let asked: Vec<String> = steps[before..]
            .iter()
            .filter_map(|step| match step {
                Step::Event(Event::Asked { ask }) => Some(ask.id.clone()),
                _ => None,
            })
            .collect();
        for ask in asked {
            let choice = answers.next().expect("an answer for every question");
            reader.answer(&ask, &Answer { choice: vec![(*choice).to_owned()], text: None }, &mut steps);
        }
        if matches!(steps.last(), Some(Step::Done(_) | Step::Lost)) {
            shown.push(show(&steps));
            (reader, steps) = (new(false), Vec::new());
        }
    }
    if !steps.is_empty() {
        shown.push(show(&steps));
    }
    shown
}

fn turn(file: &str) -> String {
    let mut turns = turns(file, Policy::Ask, &[]);
    assert_eq!(turns.len(), 1, "{turns:?}");
    turns.remove(0)
}

const SESSION: &str = "session 00000000-0000-4000-8000-000000000001";

/// The lines of a turn, without those that all turns share.
#[track_caller]
fn check(turn: &str, expected: &[&str]) {
    let common = |line: &&str| !line.starts_with("started claude") && !line.starts_with("session ");
    let lines: Vec<&str> = turn.lines().filter(common).collect();
    assert_eq!(lines, expected);
}

#[test]
fn text_is_told_piece_by_piece_after_the_model_and_the_session() {
    let expected = format!(
        "started claude-opus-5-5\n{SESSION}\ntext Hello |from |the |fake |model.\nusage 130 0 5\n\
         done Completed \"Hello from the fake model.\" $0.00062"
    );
    assert_eq!(turn("claude/text-partial.jsonl"), expected);
}

#[test]
fn text_without_pieces_is_told_whole() {
    for (file, text, usage) in [
        ("claude/stream-cut-recovered.jsonl", "This answer is cut off before its end marker.", "usage 130 0 9"),
        ("claude/error-429-recovered.jsonl", "Recovered after one failure.", "usage 130 0 4"),
    ] {
        let told = turn(file);
        let lines: Vec<&str> = told.lines().collect();
        assert!(lines.contains(&format!("text {text}").as_str()) && lines.contains(&usage), "{told}");
        assert!(told.contains("retry the model failed ("), "{told}");
        assert!(told.contains(&format!("done Completed {text:?}")), "{told}");
    }
}

#[test]
fn reasoning_is_kept_apart_from_text() {
    let told = turn("claude/think-partial.jsonl");
    assert!(told.contains("reasoning Considering \nreasoning the \n"), "{told}");
    assert!(told.contains("text Answer |after |thinking."), "{told}");
}

#[test]
fn a_tools_call_and_result_are_told_and_its_failure_is_not_the_turns() {
    check(
        &turn("claude/tool-exit3.jsonl"),
        &[
            "text Running a tool.",
            r#"call toolu_fake000011 Bash {"command":"echo broken >&2; exit 3","description":"run a scripted command"}"#,
            "result toolu_fake000011 false Exit code 3",
            "broken",
            "text Tool finished.",
            "usage 280 0 17",
            "done Completed \"Tool finished.\" $0.00146",
        ],
    );
}

#[test]
fn failures_are_failures_whatever_the_subtype_says() {
    for (file, reason) in [
        ("error-500", "API Error: 500 scripted server error."),
        ("error-401", "Failed to authenticate. API Error: 401 scripted bad key"),
        ("error-429", "API Error: Request rejected (429)"),
        ("error-context", "Prompt is too long"),
        ("no-key", "Not logged in"),
        ("max-turns", "Reached maximum number of turns (1)"),
    ] {
        let told = turn(&format!("claude/{file}.jsonl"));
        let last = told.lines().last().unwrap_or_default();
        assert!(last.starts_with(&format!("done Failed \"\" error {reason}")), "{last}");
    }
}

#[test]
fn a_stream_that_just_ends_is_no_outcome() {
    for file in ["sigint", "sigterm", "kill9-in-tool"] {
        let told = turn(&format!("claude/{file}.jsonl"));
        assert!(!told.contains("done"), "{told}");
    }
}

#[test]
fn an_unknown_session_is_lost_and_not_failed() {
    assert_eq!(turn("claude/bad-resume.jsonl"), "lost");
}

#[test]
fn permissions_and_questions_are_asked_and_answered_in_claudes_words() {
    let turns = turns("claude/control-permissions.paired.jsonl", Policy::Ask, &[DENY, "Blue"]);
    let request = "00000000-0000-4000-8000-000000000011";
    assert!(turns[1].contains(&format!(
        "asked {request} Approval \"Claude asks to use Bash: touch denied-file\" [\"allow\", \"allow-session\", \"deny\"]\n\
         answered {request} [\"deny\"]\n\
         send {{\"response\":{{\"request_id\":\"{request}\",\"response\":{{\"behavior\":\"deny\","
    )));
    let question = "00000000-0000-4000-8000-000000000018";
    assert!(turns[2].contains(&format!("asked {question}/0 Question \"Which colour?\" [\"Red\", \"Blue\"]")));
    assert!(turns[2].contains(r#""updatedInput":{"answers":{"Which colour?":"Blue"},"questions":["#), "{}", turns[2]);
}

#[test]
fn the_policy_decides_before_anybody_is_asked() {
    for (policy, words) in [(Policy::Full, r#""behavior":"allow""#), (Policy::ReadOnly, r#""behavior":"deny""#)] {
        // The question is asked all the same.
        let turns = turns("claude/control-permissions.paired.jsonl", policy, &["Blue"]);
        let told = &turns[1];
        assert!(!told.contains("asked") && told.contains(words), "{told}");
    }
}

#[test]
fn an_allowed_action_goes_back_unchanged_and_for_the_session_without_touching_settings() {
    let line = json!({ "type": "control_request", "request_id": "r", "request": {
        "subtype": "can_use_tool", "tool_name": "Bash", "input": { "command": "ls" },
        "permission_suggestions": [
            { "type": "addRules", "rules": [{ "toolName": "Bash", "ruleContent": "ls:*" }], "behavior": "allow",
              "destination": "localSettings" },
            { "type": "setMode", "mode": "acceptEdits", "destination": "session" },
        ] } });
    let replies = [ALLOW, super::super::ALLOW_SESSION, "nonsense"].map(|label| {
        let mut steps = Vec::new();
        let mut reader = Reader::new("m", Policy::Ask, true, false, None);
        reader.line(line.to_string().as_bytes(), &mut steps);
        assert!(matches!(&steps[..], [Step::Event(Event::Asked { ask })] if ask.action.as_deref() == Some(r#"{"command":"ls"}"#)
            && ask.options[1].detail == "this and Bash(ls:*), until the program ends"), "{steps:?}");
        reader.answer("other", &Answer { choice: vec![label.to_owned()], text: None }, &mut steps);
        assert_eq!(steps.len(), 1, "an answer to another question is moot");
        reader.answer("r", &Answer { choice: vec![label.to_owned()], text: None }, &mut steps);
        reader.answer("r", &Answer { choice: vec![label.to_owned()], text: None }, &mut steps);
        match steps.as_slice() {
            [_, _, Step::Send(reply)] => reply.pointer("/response/response").cloned().unwrap_or_default(),
            other => panic!("{other:?}"),
        }
    });
    assert_eq!(replies[0], json!({ "behavior": "allow", "updatedInput": { "command": "ls" } }));
    let rules = json!([{ "toolName": "Bash", "ruleContent": "ls:*" }]);
    let rule = json!([{ "type": "addRules", "rules": rules, "behavior": "allow", "destination": "session" }]);
    assert_eq!(replies[1]["updatedPermissions"], rule);
    assert_eq!(replies[2]["behavior"], "deny");
}

#[test]
fn an_interrupted_turn_is_interrupted_and_the_next_one_is_not() {
    let turns = turns("claude/control-interrupt.paired.jsonl", Policy::Ask, &[]);
    let ends: Vec<&str> = turns.iter().filter_map(|turn| turn.lines().last()?.split(' ').nth(1)).collect();
    assert_eq!(ends, ["Interrupted", "Completed", "Interrupted", "Completed"]);
    assert!(turns[1].contains("prompts |seen: |slow,history"));
    assert!(turns[3].starts_with("started claude-haiku-4-5\n"));
}

#[test]
fn compaction_is_told() {
    let turns = turns("claude/compact-auto.paired.jsonl", Policy::Ask, &[]);
    check(
        &turns[1],
        &[
            "compaction false",
            "compaction true",
            "text after big",
            "usage 140 0 2",
            "done Completed \"after big\" $11.88078",
        ],
    );
}

#[test]
fn case_a12_a_turn_waits_for_its_background_agents_and_their_calls_name_the_parent() {
    let mut reader = Reader::new("m", Policy::Ask, true, false, Some(0.0));
    let mut steps = Vec::new();
    let mut read = |frame: Value| {
        steps.clear();
        reader.line(frame.to_string().as_bytes(), &mut steps);
        show(&steps)
    };
    let result = |text: &str| json!({ "type": "result", "subtype": "success", "result": text });
    let task = |what: &str| {
        json!({ "type": "system", "subtype": what, "task_id": "t", "tool_use_id": "c", "task_type": "local_agent",
            "description": "look", "is_backgrounded": true, "status": "completed" })
    };
    assert_eq!(read(task("task_started")), "child c look");
    let call = json!({ "type": "assistant", "parent_tool_use_id": "c", "message": { "id": "x", "content": [
        { "type": "text", "text": "not the answer" },
        { "type": "tool_use", "id": "d", "name": "Read", "input": {} },
    ] } });
    assert_eq!(read(call), "call d Read {} in c");
    let ask = json!({ "type": "control_request", "request_id": "r", "request": {
        "subtype": "can_use_tool", "tool_name": "Bash", "input": {}, "agent_id": "t" } });
    assert!(read(ask).starts_with("asked r Approval"));
    assert_eq!(read(result("started it")), "usage 0 0 0", "the turn goes on");
    assert_eq!(read(task("task_notification")), "child-ended c true\npause Completed \"started it\"");
    assert_eq!(read(json!({ "type": "system", "subtype": "init" })), "started -");
    assert_eq!(read(result("it is done")), "usage 0 0 0\ndone Completed \"it is done\"");
}

#[test]
fn frames_before_the_turns_own_are_not_its_own_and_their_questions_are_refused() {
    let mut reader = Reader::new("mine", Policy::Ask, false, false, None);
    let mut steps = Vec::new();
    let stale = json!({ "type": "result", "subtype": "success", "result": "of earlier work" });
    reader.line(stale.to_string().as_bytes(), &mut steps);
    assert_eq!(show(&steps), "");
    let ask = json!({ "type": "control_request", "request_id": "r", "request": {
        "subtype": "can_use_tool", "tool_name": "Bash", "input": {} } });
    reader.line(ask.to_string().as_bytes(), &mut steps);
    assert!(show(&steps).contains(r#""behavior":"deny""#));
    let own = json!({ "type": "command_lifecycle", "command_uuid": "mine", "state": "started" });
    reader.line(own.to_string().as_bytes(), &mut steps);
    steps.clear();
    reader.line(stale.to_string().as_bytes(), &mut steps);
    assert!(show(&steps).contains("done Completed"));
}

#[test]
fn case_a2_unknown_requests_are_refused_at_once_and_too_long_actions_with_a_reason() {
    let mut reader = Reader::new("m", Policy::Ask, true, false, None);
    let mut steps = Vec::new();
    let strange = json!({ "type": "control_request", "request_id": "r", "request": { "subtype": "new_thing" } });
    reader.line(strange.to_string().as_bytes(), &mut steps);
    assert!(show(&steps).contains(r#""subtype":"error""#), "{steps:?}");
    steps.clear();
    let long = json!({ "type": "control_request", "request_id": "r", "request": {
        "subtype": "can_use_tool", "tool_name": "Write", "input": { "content": "x".repeat(200_000) } } });
    reader.line(long.to_string().as_bytes(), &mut steps);
    let told = show(&steps);
    assert!(told.starts_with("notice refused: the action is longer") && told.contains(r#""behavior":"deny""#));
}

#[test]
fn a_withdrawn_question_is_closed() {
    let mut reader = Reader::new("m", Policy::Ask, true, false, None);
    let mut steps = Vec::new();
    for line in [
        json!({ "type": "control_request", "request_id": "r", "request": {
            "subtype": "can_use_tool", "tool_name": "Bash", "input": {} } }),
        json!({ "type": "control_cancel_request", "request_id": "r" }),
    ] {
        reader.line(line.to_string().as_bytes(), &mut steps);
    }
    assert!(show(&steps).ends_with("answered r []"));
}

#[test]
fn what_a_home_says_can_not_become_another_option() {
    let mut spec = crate::harness::replay::spec("x");
    spec.model = Some("--dangerously-skip-permissions".to_owned());
    spec.session = Some("--add-dir".to_owned());
    spec.policy = Policy::ReadOnly;
    let args = arguments(&spec);
    let tail: Vec<&str> = args[ARGS.len()..].iter().filter_map(|arg| arg.to_str()).collect();
    assert_eq!(
        tail,
        [
            "--permission-mode=default",
            "--disallowedTools=Write,Edit,MultiEdit,NotebookEdit",
            "--model=--dangerously-skip-permissions",
            "--resume=--add-dir",
        ]
    );
}

proptest::proptest! {
    #[test]
    fn any_line_is_read(line in ".{0,200}", begun: bool) {
        Reader::new("m", Policy::Ask, begun, true, None).line(line.as_bytes(), &mut Vec::new());
    }

    #[test]
    fn any_change_of_a_recorded_line_is_read(at in 0usize..4000, byte: u8) {
        for (_, frame) in recorded("claude/control-permissions.paired.jsonl").into_iter().take(8) {
            let mut line = frame.to_string().into_bytes();
            let len = line.len();
            line[at % len] = byte;
            Reader::new("m", Policy::Ask, true, true, None).line(&line, &mut Vec::new());
        }
    }
}
