//! One raw line of a log.

use serde::Serialize;

use super::{LINE_LEN_MAX, LINE_NODES_MAX, Seal};
use crate::entry::Entry;
use crate::id::{Hash, Seq};
use crate::wire::json::{self, JsonError, Limits};

/// What a line holds.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "lines live briefly and one at a time")]
pub enum Line {
    /// An entry.
    Entry(Entry),
    /// A seal.
    Seal(Seal),
}

/// Why a line can't be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LineError {
    /// It breaks a limit, or is not exactly one JSON object on one line.
    #[error("line refused: {0}")]
    Shape(#[from] JsonError),
    /// The line is neither an entry nor a seal.
    #[error("line is neither an entry nor a seal: {0}")]
    Json(#[from] serde_json::Error),
}

/// What a line may be. Bodies are buffered until their kind is known, so values are bounded as those of frames are.
const LIMITS: Limits = Limits { nodes_max: LINE_NODES_MAX, ..Limits::line(LINE_LEN_MAX) };

/// Bytes that every line of ours starts with when it is an entry: the fields keep their order.
pub(super) const ENTRY_START: &[u8] = br#"{"seq":"#;

/// The same of seals.
pub(super) const SEAL_START: &[u8] = br#"{"prev":"#;

impl Line {
    /// Reads a line, given without its LF.
    ///
    /// Kinds of entries that this version does not know are read as `Body::Unknown`; their bytes are the truth.
    ///
    /// # Errors
    /// When the line breaks a limit or is neither an entry nor a seal.
    pub fn parse(line: &[u8]) -> Result<Self, LineError> {
        json::check(line, LIMITS)?;
        // No line can be both: which one is tried first decides, and it depends on nothing but the bytes.
        if line.starts_with(ENTRY_START) {
            Ok(Self::Entry(serde_json::from_slice(line)?))
        } else if let Ok(seal) = serde_json::from_slice(line) {
            Ok(Self::Seal(seal))
        } else {
            Ok(Self::Entry(serde_json::from_slice(line)?))
        }
    }

    /// The seq of a line that holds an entry, given without its LF; `None` for seals and what is no line at all.
    ///
    /// Lines of ours are not parsed for it.
    #[must_use]
    pub fn entry_seq(line: &[u8]) -> Option<Seq> {
        match line.strip_prefix(ENTRY_START) {
            Some(rest) => {
                let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
                std::str::from_utf8(rest.get(..digits)?).ok()?.parse().ok().map(Seq)
            }
            None if line.starts_with(SEAL_START) => None,
            None => match Self::parse(line) {
                Ok(Self::Entry(entry)) => Some(entry.seq),
                _ => None,
            },
        }
    }

    /// Hash of a line, given without its LF.
    #[must_use]
    pub fn hash(line: &[u8]) -> Hash {
        Hash::of(line)
    }
}

/// The bytes of a line, without LF. JSON of these types has none inside.
pub(super) fn write<T: Serialize>(value: &T, out: &mut Vec<u8>) -> Result<(), serde_json::Error> {
    serde_json::to_writer(out, value)
}

/// The lines of raw log bytes, without their LFs; padding is skipped. A last line without LF is given too.
pub fn split(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shape(line: &[u8]) -> Option<JsonError> {
        match Line::parse(line) {
            Err(LineError::Shape(error)) => Some(error),
            _ => None,
        }
    }

    #[test]
    fn depth_is_counted_outside_strings_only() {
        let deep = |n: usize| format!(r#"{{"a":{}{}}}"#, "[".repeat(n), "]".repeat(n));
        assert!(matches!(shape(deep(32).as_bytes()), Some(JsonError::TooDeep { .. })));
        assert!(matches!(Line::parse(deep(31).as_bytes()), Err(LineError::Json(_))));
        let quoted = format!(r#"{{"a":"\"{}"}}"#, "[".repeat(1000));
        assert!(matches!(Line::parse(quoted.as_bytes()), Err(LineError::Json(_))));
        assert!(matches!(shape("{\"a\":".repeat(100_000).as_bytes()), Some(JsonError::TooDeep { .. })));
    }

    #[test]
    fn lines_over_the_limit_are_refused_before_they_are_parsed() {
        let line = vec![b' '; LINE_LEN_MAX + 1];
        let too_long = JsonError::TooLong { len: LINE_LEN_MAX + 1, max: LINE_LEN_MAX };
        assert_eq!(shape(&line), Some(too_long));
        assert_eq!(shape(b""), Some(JsonError::Truncated));
        for broken in ["{}\n", "{\n}", "{}\r", "\r{}", "{\r}"] {
            assert!(shape(broken.as_bytes()).is_some(), "{broken:?}");
        }
    }

    #[test]
    fn threat_w1_a_line_of_half_a_million_values_is_refused() {
        let zeros = |n: usize| format!("[0{}]", ",0".repeat(n - 1));
        let line = |n: usize| {
            let zero = Hash::ZERO;
            let head = format!(r#""seq":1,"epoch":0,"lamport":1,"prev":"{zero}","org":"{zero}","ts":0"#);
            format!(r#"{{{head},"body":{{"kind":"from-2031","x":{}}}}}"#, zeros(n))
        };
        assert!(Line::parse(line(LINE_NODES_MAX - 10).as_bytes()).is_ok());
        let bomb = line(480_000);
        assert!(bomb.len() > LINE_LEN_MAX * 9 / 10, "as long as a line may be");
        assert!(matches!(shape(&bomb.as_bytes()[..LINE_LEN_MAX.min(bomb.len())]), Some(JsonError::TooMany { .. })));
    }

    #[test]
    fn padding_is_no_line() {
        let lines: Vec<_> = split(b"\n\na\n\nb\n\n\n").collect();
        assert_eq!(lines, [b"a", b"b"]);
    }

    #[test]
    fn the_seq_of_a_line_is_read_without_parsing_it() {
        assert_eq!(Line::entry_seq(br#"{"seq":42,"epoch":0,"#), Some(Seq(42)));
        assert_eq!(Line::entry_seq(br#"{"seq":,"#), None);
        assert_eq!(Line::entry_seq(br#"{"prev":"","seal":{}}"#), None);
        assert_eq!(Line::entry_seq(b"\0\0"), None);
    }

    #[test]
    fn unknown_kinds_are_read_as_such() {
        let zero = Hash::ZERO;
        let line = format!(
            r#"{{"seq":1,"epoch":0,"lamport":1,"prev":"{zero}","org":"{zero}","ts":0,"body":{{"kind":"from-2031","x":[1]}}}}"#
        );
        let Ok(Line::Entry(entry)) = Line::parse(line.as_bytes()) else { panic!("not an entry") };
        assert_eq!(entry.body, crate::entry::Body::Unknown);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_line_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            let _ = Line::parse(&bytes);
        }

        #[test]
        fn any_json_like_text_is_a_line_or_an_error(text in r#"(\{|\}|\[|\]|"seq"|"seal"|:|,|1|"[a-z\\"]*"){0,40}"#) {
            let _ = Line::parse(text.as_bytes());
        }
    }
}
