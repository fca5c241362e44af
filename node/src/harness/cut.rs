//! Cutting texts to what an event may hold.

use tieline_proto::event::EVENT_LEN_MAX;

/// Longest JSON form of one text in an event: leaves room in the line for everything beside it.
const JSON_LEN_MAX: usize = EVENT_LEN_MAX - 64 * 1024;

/// Most bytes that JSON needs for one byte of text (`\u001b`).
const JSON_GROWTH_MAX: usize = 6;

/// The longest start of `text` with at most `len_max` bytes that also fits in an event line, and what follows it.
pub(super) fn fitting(text: &str, len_max: usize) -> (&str, &str) {
    if text.len() <= len_max && text.len().saturating_mul(JSON_GROWTH_MAX) <= JSON_LEN_MAX {
        return (text, "");
    }
    let mut json = 0;
    for (at, c) in text.char_indices() {
        json += json_len(c);
        if at + c.len_utf8() > len_max || json > JSON_LEN_MAX {
            return text.split_at(at);
        }
    }
    (text, "")
}

/// As [`fitting`], owned: the start and the number of bytes cut off.
pub(super) fn cut(mut text: String, len_max: usize) -> (String, u64) {
    let rest = fitting(&text, len_max).1.len();
    text.truncate(text.len() - rest);
    (text, rest as u64)
}

const fn json_len(c: char) -> usize {
    match c {
        '"' | '\\' | '\n' | '\r' | '\t' => 2,
        '\0'..='\u{1f}' => JSON_GROWTH_MAX,
        _ => c.len_utf8(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_cut_is_a_start_and_fits(text in "(?s).{0,300}", len_max in 0usize..400) {
            let (start, rest) = fitting(&text, len_max);
            prop_assert!(start.len() <= len_max);
            prop_assert_eq!(format!("{start}{rest}"), text);
        }
    }

    #[test]
    fn a_text_of_control_bytes_still_fits_an_event_line() {
        let text = "\u{1b}".repeat(EVENT_LEN_MAX);
        let (start, cut) = cut(text, usize::MAX);
        assert!(serde_json::to_string(&start).expect("a string").len() < EVENT_LEN_MAX);
        assert_eq!(start.len() as u64 + cut, EVENT_LEN_MAX as u64);
    }

    #[test]
    fn a_char_is_never_split() {
        assert_eq!(fitting("aé", 2), ("a", "é"));
        assert_eq!(fitting("aé", 3), ("aé", ""));
    }
}
