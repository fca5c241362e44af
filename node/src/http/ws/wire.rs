//! The text of the frames.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;
use tieline_proto::api::{ApiError, Code, Request};

use super::super::Limits;
use super::{Answer, MESSAGE_LEN_MAX};

/// Nesting of a request; nothing the API takes comes near.
const DEPTH_MAX: usize = 32;

/// What the node, or the door for it, says at the end of a subscription.
pub const END_FRAME: &str = r#"{"type":"end"}"#;

/// The first frame: how both sides know that the other is alive, and what may be sent.
pub fn hello(limits: &Limits) -> String {
    json!({"hello": {
        "version": env!("CARGO_PKG_VERSION"),
        "ping_ms": millis(limits.ping),
        "quiet_ms_max": millis(limits.quiet()),
        "message_len_max": MESSAGE_LEN_MAX,
    }})
    .to_string()
}

fn millis(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Goes with every ping.
pub fn beat(number: u64) -> String {
    format!(r#"{{"beat":{number}}}"#)
}

/// An answer to a call.
pub fn answer(call: u64, answer: &Answer) -> String {
    match answer {
        Ok(value) => format!(r#"{{"id":{call},"ok":{value}}}"#),
        Err(error) => refusal(Some(call), error),
    }
}

/// An error; without a number when the call had none.
pub fn refusal(call: Option<u64>, error: &ApiError) -> String {
    json!({"id": call, "error": error}).to_string()
}

/// Appends a frame as it stands, on a line of its own.
pub fn push_frame(text: &mut String, call: u64, frame: &str) {
    use std::fmt::Write;
    text.reserve(frame.len() + 40);
    if !text.is_empty() {
        text.push('\n');
    }
    // Writing to a string can't fail.
    let _ = write!(text, r#"{{"id":{call},"frame":"#);
    text.push_str(frame);
    text.push('}');
}

/// What is looked at before the request itself.
#[derive(Deserialize)]
struct Head {
    id: Option<u64>,
    // Who the author is, is never asked of the request.
    #[serde(default)]
    author: Option<IgnoredAny>,
    #[serde(default)]
    author_id: Option<IgnoredAny>,
    #[serde(default)]
    by: Option<IgnoredAny>,
    #[serde(default)]
    caller: Option<IgnoredAny>,
    #[serde(default)]
    member_id: Option<IgnoredAny>,
    #[serde(default)]
    scope: Option<IgnoredAny>,
}

impl Head {
    const fn claims_author(&self) -> bool {
        self.author.is_some()
            || self.author_id.is_some()
            || self.by.is_some()
            || self.caller.is_some()
            || self.member_id.is_some()
            || self.scope.is_some()
    }
}

/// Reads a call: its number and the request.
///
/// # Errors
/// The number, as far as there is one, with what is wrong.
pub fn read(text: &str) -> Result<(u64, Request), (Option<u64>, ApiError)> {
    let invalid =
        |what: String| ApiError::new(Code::Invalid, what).hint("GET /openapi.json and docs/protocol tell the forms");
    if !is_shallow(text) {
        return Err((None, invalid(format!("a request is nested at most {DEPTH_MAX} deep"))));
    }
    let head: Head = serde_json::from_str(text).map_err(|error| (None, invalid(format!("not a request: {error}"))))?;
    let Some(id) = head.id else {
        return Err((None, invalid("a request needs a number: \"id\"".to_owned())));
    };
    if head.claims_author() {
        let error = ApiError::new(Code::Refused, "a request can't say who its author is")
            .hint("the author is whoever holds the connection's credentials");
        return Err((Some(id), error));
    }
    match serde_json::from_str(text) {
        Ok(request) => Ok((id, request)),
        Err(error) => Err((Some(id), invalid(error.to_string()))),
    }
}

/// Whether no value is nested deeper than [`DEPTH_MAX`].
fn is_shallow(text: &str) -> bool {
    let mut depth = 0_usize;
    let mut in_string = false;
    let mut escaped = false;
    for byte in text.bytes() {
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'{' | b'[' => {
                depth += 1;
                if depth > DEPTH_MAX {
                    return false;
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    true
}

/// A value for a test of the wire's own shapes.
#[cfg(test)]
fn parse(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn calls_are_read_with_their_number() {
        let (id, request) = read(r#"{"id":7,"op":"channel-show","channel":"lobby"}"#).unwrap();
        assert_eq!((id, request), (7, Request::ChannelShow { channel: "lobby".to_owned() }));
    }

    #[test]
    fn wrong_calls_are_answered_under_their_number() {
        let check = |text: &str, id: Option<u64>, code: Code| {
            let (found, error) = read(text).unwrap_err();
            assert_eq!((found, error.code), (id, code), "{text}");
        };
        check("", None, Code::Invalid);
        check("[]", None, Code::Invalid);
        check(r#"{"op":"status"}"#, None, Code::Invalid);
        check(r#"{"id":-1,"op":"status"}"#, None, Code::Invalid);
        check(r#"{"id":1,"op":"nonsense"}"#, Some(1), Code::Invalid);
        check(r#"{"id":1,"op":"post","channel":"c"}"#, Some(1), Code::Invalid);
        check(&format!(r#"{{"id":1,"op":"status","x":{}}}"#, "[".repeat(1000)), None, Code::Invalid);
    }

    #[test]
    fn depth_is_counted_outside_of_strings() {
        assert!(is_shallow(&format!("{}{}", "[".repeat(32), "]".repeat(32))));
        assert!(!is_shallow(&"[".repeat(33)));
        assert!(is_shallow(&format!(r#""\"{}""#, "[".repeat(100))));
        assert!(is_shallow(&"[]".repeat(100)));
    }

    #[test]
    fn threat_l6_authors_are_not_taken_from_requests() {
        for claim in ["member_id", "author", "author_id", "by", "caller", "scope"] {
            let text = format!(r#"{{"id":1,"op":"post","channel":"c","text":"t","{claim}":"owner"}}"#);
            assert_eq!(read(&text).unwrap_err().1.code, Code::Refused, "{claim}");
        }
    }

    #[test]
    fn frames_are_lines() {
        let mut text = String::new();
        push_frame(&mut text, 1, END_FRAME);
        push_frame(&mut text, 2, END_FRAME);
        let ids: Vec<_> = text.lines().map(|line| parse(line)["id"].clone()).collect();
        assert_eq!(ids, [1, 2]);
    }

    #[test]
    fn case_c9_clients_are_told_to_wait_at_least_two_and_a_half_pings() {
        let hello = parse(&hello(&Limits::default()));
        let ms = |key: &str| hello["hello"][key].as_f64().unwrap();
        assert_eq!(ms("ping_ms"), 20_000.0);
        assert!(ms("quiet_ms_max") >= 2.5 * ms("ping_ms"));
    }

    proptest! {
        #[test]
        fn any_text_is_a_call_or_an_error(text in ".{0,200}") {
            let _ = read(&text);
        }
    }
}
