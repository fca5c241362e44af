//! The script language of the `scripted` harness: directives in the prompt, run in their order.

use std::time::Duration;

/// Directives run from one prompt; what stands after them is ignored.
const STEPS_MAX: usize = 1000;

/// Longest pause a script can ask for.
const PAUSE_MAX: Duration = Duration::from_secs(3600);

/// Marks a directive.
const MARK: &str = "script:";

/// Stands before a directive that is only talked about.
const QUOTE: char = '“';

/// One thing to do.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Step {
    /// Says words, one event each, with a pause after each.
    Words { count: u64, gap: Duration },
    /// Says a text in one event.
    Text(String),
    /// Thinks a text in one event.
    Think(String),
    /// Calls a tool that prints something.
    Tool { name: String, output: String },
    /// Calls a tool that never ends.
    Open(String),
    /// Asks a question and says the answer.
    Ask { question: String, options: Vec<String> },
    /// Asks for a permission, as the policy has it, and says the answer.
    Approve { tool: String, action: String },
    /// Ends as failed.
    Fail(String),
    /// Says nothing until it is interrupted.
    Hang,
    /// Says events of the given length as fast as they are taken.
    Big { count: u64, len: usize },
    /// Waits.
    Sleep(Duration),
    /// Reports tokens.
    Usage { input: u64, output: u64 },
    /// Remarks something.
    Notice(String),
    /// Says model, policy and folder of this turn.
    Settings,
    /// Says a variable of the environment.
    Env(String),
    /// Says which turn of the session this is.
    Turn,
}

/// The steps in a prompt; empty when it has no directive.
pub(super) fn parse(prompt: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut rest = prompt;
    while let Some((before, after)) = rest.split_once(MARK)
        && steps.len() < STEPS_MAX
    {
        if before.ends_with(QUOTE) {
            rest = after;
            continue;
        }
        let name_len = after.find(|c: char| !c.is_ascii_lowercase()).unwrap_or(after.len());
        let (name, tail) = after.split_at(name_len);
        let (argument, tail) = argument(tail);
        steps.extend(step(name, argument));
        rest = tail;
    }
    steps
}

/// The text between the parentheses at the start, which may hold others in pairs, and what follows them.
fn argument(text: &str) -> (&str, &str) {
    let mut depth = 0_usize;
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' if depth == 1 => return (text.get(1..at).unwrap_or_default(), text.get(at + 1..).unwrap_or_default()),
            ')' if depth > 1 => depth -= 1,
            _ if depth == 0 => break,
            _ => {}
        }
    }
    ("", text)
}

fn step(name: &str, argument: &str) -> Option<Step> {
    let owned = || argument.trim().to_owned();
    let mut parts = argument.split(',').map(str::trim);
    let mut bars = argument.split('|').map(|part| part.trim().to_owned());
    Some(match name {
        "words" => Step::Words {
            count: parts.next()?.parse().ok()?,
            gap: parts.next().map_or(Some(Duration::ZERO), duration)?,
        },
        "text" => Step::Text(owned()),
        "think" => Step::Think(owned()),
        "tool" => Step::Tool { name: bars.next()?, output: bars.next().unwrap_or_default() },
        "open" => Step::Open(owned()),
        "ask" => Step::Ask { question: bars.next()?, options: bars.collect() },
        "approve" => Step::Approve { tool: bars.next()?, action: bars.next().unwrap_or_default() },
        "fail" => Step::Fail(owned()),
        "hang" => Step::Hang,
        "big" => Step::Big { count: parts.next()?.parse().ok()?, len: parts.next()?.parse().ok()? },
        "sleep" => Step::Sleep(duration(argument)?),
        "usage" => Step::Usage { input: parts.next()?.parse().ok()?, output: parts.next()?.parse().ok()? },
        "notice" => Step::Notice(owned()),
        "settings" => Step::Settings,
        "env" => Step::Env(owned()),
        "turn" => Step::Turn,
        _ => return None,
    })
}

/// `50ms` or `2s`.
fn duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    let parsed = match text.strip_suffix("ms") {
        Some(ms) => Duration::from_millis(ms.parse().ok()?),
        None => Duration::from_secs(text.strip_suffix('s')?.parse().ok()?),
    };
    Some(parsed.min(PAUSE_MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn directives_are_found_anywhere_in_their_order() {
        let steps =
            parse("@demo please script:words(2,5ms), then\nscript:ask(Which (one)?|a|b) and script:fail(no luck)");
        assert_eq!(
            steps,
            [
                Step::Words { count: 2, gap: Duration::from_millis(5) },
                Step::Ask { question: "Which (one)?".to_owned(), options: vec!["a".to_owned(), "b".to_owned()] },
                Step::Fail("no luck".to_owned()),
            ]
        );
    }

    #[test]
    fn what_is_no_directive_is_text() {
        assert_eq!(parse("script:unknown(1) script:words(x) script:words( script: nothing"), []);
        assert_eq!(parse("script:hang script:turn"), [Step::Hang, Step::Turn]);
        assert_eq!(parse("write “script:hang” or script:turn"), [Step::Turn]);
    }

    proptest! {
        #[test]
        fn any_prompt_parses(prompt in "(script:|words|big|\\(|\\)|[0-9a-z,|é]){0,40}") {
            parse(&prompt);
        }
    }
}
