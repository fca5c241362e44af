//! A JSON gate: grammar, depth and size are checked in one pass over the bytes, before a parser allocates for them.
//!
//! Frames of links and of the API, and event lines, pass through here. What passed is exactly one JSON object (RFC
//! 8259) in UTF-8, so its bytes can be embedded in other JSON as they stand.

/// Deepest nesting of objects and arrays.
pub const JSON_DEPTH_MAX: usize = 32;

/// Most values (objects, arrays, strings, numbers, literals) in one text. A parsed value costs some 50 bytes, so this
/// bounds what a small text can grow to.
pub const JSON_NODES_MAX: usize = 10_000;

/// What a text may be.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Limits {
    /// Bytes.
    pub len_max: usize,
    /// Nesting, at most [`JSON_DEPTH_MAX`].
    pub depth_max: usize,
    /// Values.
    pub nodes_max: usize,
    /// Whether LF and CR may stand between tokens. A line of a journal or log has none.
    pub line_breaks: bool,
}

impl Limits {
    /// For a text of up to `len_max` bytes, line breaks allowed.
    #[must_use]
    pub const fn text(len_max: usize) -> Self {
        Self { len_max, depth_max: JSON_DEPTH_MAX, nodes_max: JSON_NODES_MAX, line_breaks: true }
    }

    /// For one line of up to `len_max` bytes, its LF not included.
    #[must_use]
    pub const fn line(len_max: usize) -> Self {
        Self { line_breaks: false, ..Self::text(len_max) }
    }
}

/// Why a text was refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum JsonError {
    /// It is longer than allowed.
    #[error("JSON of {len} bytes exceeds the {max}-byte limit")]
    TooLong {
        /// Its length.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// It nests deeper than allowed.
    #[error("JSON nests deeper than {max} at byte {at}")]
    TooDeep {
        /// Where.
        at: usize,
        /// The limit.
        max: usize,
    },
    /// It holds more values than allowed.
    #[error("JSON holds more than {max} values at byte {at}")]
    TooMany {
        /// Where.
        at: usize,
        /// The limit.
        max: usize,
    },
    /// It is not UTF-8.
    #[error("JSON is not UTF-8 at byte {at}")]
    NotUtf8 {
        /// Where.
        at: usize,
    },
    /// It does not begin with an object.
    #[error("JSON is not an object")]
    NotObject,
    /// Something stands behind the object.
    #[error("JSON goes on at byte {at} after its object")]
    Trailing {
        /// Where.
        at: usize,
    },
    /// It ends too early.
    #[error("JSON ends within a value")]
    Truncated,
    /// It breaks the grammar.
    #[error("JSON is malformed at byte {at}")]
    Malformed {
        /// Where.
        at: usize,
    },
}

/// Checks that `bytes` are exactly one JSON object within `limits`, and gives them as text.
///
/// # Errors
/// Says what is wrong, and where. Never allocates.
pub fn check(bytes: &[u8], limits: Limits) -> Result<&str, JsonError> {
    if bytes.len() > limits.len_max {
        return Err(JsonError::TooLong { len: bytes.len(), max: limits.len_max });
    }
    let mut scan = Scan { bytes, at: 0, limits, depth: 0, nodes: 0, objects: 0 };
    scan.text()?;
    // Last: the scan looks at ASCII only, which no other character's bytes contain, so it is right on any bytes and
    // stops at the first fault of a bomb.
    std::str::from_utf8(bytes).map_err(|error| JsonError::NotUtf8 { at: error.valid_up_to() })
}

struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
    limits: Limits,
    depth: usize,
    nodes: usize,
    /// One bit for each open level, the innermost lowest: 1 for an object, 0 for an array.
    objects: u64,
}

/// Levels that [`Scan::objects`] can hold.
const LEVELS: usize = u64::BITS as usize;

const _: () = assert!(JSON_DEPTH_MAX <= LEVELS);

impl Scan<'_> {
    fn text(&mut self) -> Result<(), JsonError> {
        self.space();
        if self.peek() != Some(b'{') {
            return Err(if self.at == self.bytes.len() { JsonError::Truncated } else { JsonError::NotObject });
        }
        loop {
            let opened = self.value()?;
            if !opened && self.close()? {
                break;
            }
        }
        self.space();
        if self.at < self.bytes.len() { Err(JsonError::Trailing { at: self.at }) } else { Ok(()) }
    }

    /// Reads a scalar, or the opening of a level and what stands before its first value. True: a value must follow.
    fn value(&mut self) -> Result<bool, JsonError> {
        self.nodes += 1;
        if self.nodes > self.limits.nodes_max {
            return Err(JsonError::TooMany { at: self.at, max: self.limits.nodes_max });
        }
        match self.peek().ok_or(JsonError::Truncated)? {
            b'{' => {
                self.open(1)?;
                if self.peek() == Some(b'}') {
                    return Ok(false);
                }
                self.name()?;
                Ok(true)
            }
            b'[' => {
                self.open(0)?;
                Ok(self.peek() != Some(b']'))
            }
            b'"' => self.string().map(|()| false),
            b't' => self.literal(b"true"),
            b'f' => self.literal(b"false"),
            b'n' => self.literal(b"null"),
            _ => self.number().map(|()| false),
        }
    }

    fn open(&mut self, object: u64) -> Result<(), JsonError> {
        if self.depth >= self.limits.depth_max.min(LEVELS) {
            return Err(JsonError::TooDeep { at: self.at, max: self.limits.depth_max });
        }
        self.depth += 1;
        self.objects = self.objects << 1 | object;
        self.at += 1;
        self.space();
        Ok(())
    }

    /// After a value: closes the levels that end here. True: the outermost one did. False: a value must follow.
    fn close(&mut self) -> Result<bool, JsonError> {
        loop {
            self.space();
            let in_object = self.objects & 1 == 1;
            match (self.peek().ok_or(JsonError::Truncated)?, in_object) {
                (b'}', true) | (b']', false) => {
                    self.at += 1;
                    self.depth -= 1;
                    self.objects >>= 1;
                    if self.depth == 0 {
                        return Ok(true);
                    }
                }
                (b',', _) => {
                    self.at += 1;
                    self.space();
                    if in_object {
                        self.name()?;
                    }
                    return Ok(false);
                }
                _ => return Err(self.malformed()),
            }
        }
    }

    /// Reads a member's name and its colon.
    fn name(&mut self) -> Result<(), JsonError> {
        self.string()?;
        self.space();
        self.expect(b':')?;
        self.space();
        Ok(())
    }

    fn string(&mut self) -> Result<(), JsonError> {
        self.expect(b'"')?;
        loop {
            let rest = self.bytes.get(self.at..).unwrap_or_default();
            self.at += plain_prefix(rest);
            match self.peek().ok_or(JsonError::Truncated)? {
                b'"' => {
                    self.at += 1;
                    return Ok(());
                }
                b'\\' => self.escape()?,
                _ => return Err(self.malformed()),
            }
        }
    }

    /// Escapes are checked as parsers do that make text of them: halves of surrogate pairs are refused.
    fn escape(&mut self) -> Result<(), JsonError> {
        self.at += 1;
        match self.peek().ok_or(JsonError::Truncated)? {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => {
                self.at += 1;
                Ok(())
            }
            b'u' => {
                self.at += 1;
                match self.hex4()? {
                    0xd800..=0xdbff => {
                        self.expect(b'\\')?;
                        self.expect(b'u')?;
                        let low = self.hex4()?;
                        if (0xdc00..=0xdfff).contains(&low) { Ok(()) } else { Err(self.malformed()) }
                    }
                    0xdc00..=0xdfff => Err(self.malformed()),
                    _ => Ok(()),
                }
            }
            _ => Err(self.malformed()),
        }
    }

    fn hex4(&mut self) -> Result<u32, JsonError> {
        let mut value = 0;
        for _ in 0..4 {
            let digit = char::from(self.peek().ok_or(JsonError::Truncated)?).to_digit(16);
            value = value << 4 | digit.ok_or_else(|| self.malformed())?;
            self.at += 1;
        }
        Ok(value)
    }

    fn number(&mut self) -> Result<(), JsonError> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    /// One digit or more.
    fn digits(&mut self) -> Result<(), JsonError> {
        let start = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        match self.peek() {
            _ if self.at > start => Ok(()),
            None => Err(JsonError::Truncated),
            Some(_) => Err(self.malformed()),
        }
    }

    fn literal(&mut self, word: &[u8]) -> Result<bool, JsonError> {
        word.iter().try_for_each(|byte| self.expect(*byte))?;
        Ok(false)
    }

    fn space(&mut self) {
        while let Some(byte) = self.peek() {
            match byte {
                b' ' | b'\t' => {}
                b'\n' | b'\r' if self.limits.line_breaks => {}
                _ => break,
            }
            self.at += 1;
        }
    }

    fn expect(&mut self, byte: u8) -> Result<(), JsonError> {
        match self.peek() {
            Some(found) if found == byte => {
                self.at += 1;
                Ok(())
            }
            Some(_) => Err(self.malformed()),
            None => Err(JsonError::Truncated),
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    const fn malformed(&self) -> JsonError {
        JsonError::Malformed { at: self.at }
    }
}

/// How many bytes stand before the first quote, backslash or control character. Eight at a time: most bytes of a
/// journal are in strings.
fn plain_prefix(bytes: &[u8]) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const TOPS: u64 = 0x8080_8080_8080_8080;
    // Marks bytes that are zero; marks above the lowest one may be false.
    let zeros = |word: u64| word.wrapping_sub(ONES) & !word & TOPS;
    let mut words = bytes.chunks_exact(8);
    let mut at = 0;
    for chunk in words.by_ref() {
        let Ok(chunk) = chunk.try_into() else { break };
        let word = u64::from_le_bytes(chunk);
        let quotes = zeros(word ^ (ONES * u64::from(b'"')));
        let escapes = zeros(word ^ (ONES * u64::from(b'\\')));
        let controls = word.wrapping_sub(ONES * 0x20) & !word & TOPS;
        let marks = quotes | escapes | controls;
        if marks != 0 {
            return at + marks.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    let rest = bytes.get(at..).unwrap_or_default();
    at + rest.iter().position(|byte| *byte < 0x20 || matches!(byte, b'"' | b'\\')).unwrap_or(rest.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    const LIMITS: Limits = Limits::text(1 << 20);

    fn text(text: &str) -> Result<&str, JsonError> {
        check(text.as_bytes(), LIMITS)
    }

    #[test]
    fn objects_pass_as_they_are() {
        let good = [
            "{}",
            " { } ",
            r#"{"a":1}"#,
            r#"{"a":[],"b":{},"c":[[{}],"x",-0.5e-3,true,false,null]}"#,
            r#"{"\ud83d\ude00":"\u0000\"\\\/\b\f\n\r\t","é":"日本"}"#,
            "\n{\"a\"\t:\r0}\n",
        ];
        for object in good {
            assert_eq!(text(object), Ok(object));
            assert!(serde_json::from_str::<Value>(object).is_ok(), "{object}");
        }
    }

    #[test]
    fn what_is_no_object_is_refused_with_its_place() {
        use JsonError::{Malformed, NotObject, Trailing, Truncated};
        let bad = [
            ("", Truncated),
            ("  ", Truncated),
            ("[]", NotObject),
            ("1", NotObject),
            ("nul", NotObject),
            ("{} {}", Trailing { at: 3 }),
            ("{}x", Trailing { at: 2 }),
            (r#"{"a":1,}"#, Malformed { at: 7 }),
            (r#"{"a":[1,]}"#, Malformed { at: 8 }),
            (r#"{a:1}"#, Malformed { at: 1 }),
            (r#"{"a" 1}"#, Malformed { at: 5 }),
            (r#"{"a":01}"#, Malformed { at: 6 }),
            (r#"{"a":+1}"#, Malformed { at: 5 }),
            (r#"{"a":1.}"#, Malformed { at: 7 }),
            (r#"{"a":.5}"#, Malformed { at: 5 }),
            (r#"{"a":1e}"#, Malformed { at: 7 }),
            (r#"{"a":-}"#, Malformed { at: 6 }),
            (r#"{"a":tru}"#, Malformed { at: 8 }),
            (r#"{"a":NaN}"#, Malformed { at: 5 }),
            (r#"{"a":[}"#, Malformed { at: 6 }),
            (r#"{"a":1]"#, Malformed { at: 6 }),
            ("{\"a\":\"\n\"}", Malformed { at: 6 }),
            (r#"{"a":"\x"}"#, Malformed { at: 7 }),
            (r#"{"a":"\ud800"}"#, Malformed { at: 12 }),
            (r#"{"a":"\ud800\u0041"}"#, Malformed { at: 18 }),
            (r#"{"a":"\udc00"}"#, Malformed { at: 12 }),
            (r#"{"a":"\u00g0"}"#, Malformed { at: 10 }),
            ("{\u{feff}}", Malformed { at: 1 }),
        ];
        for (bytes, error) in bad {
            assert_eq!(text(bytes), Err(error), "{bytes}");
            assert!(serde_json::from_str::<serde_json::Map<String, Value>>(bytes).is_err(), "{bytes}");
        }
        assert_eq!(check(b"{\"a\":\"\xff\"}", LIMITS), Err(JsonError::NotUtf8 { at: 6 }));
    }

    #[test]
    fn a_line_has_no_line_breaks() {
        let line = Limits::line(100);
        assert!(check(br#"{ "a" : "\n" }"#, line).is_ok());
        for bad in ["{}\n", "\r{}", "{\n}", "{\"a\":\r1}", "{\"a\":1\n}"] {
            assert!(check(bad.as_bytes(), line).is_err(), "{bad:?}");
            assert!(text(bad).is_ok(), "{bad:?}");
        }
    }

    #[test]
    fn threat_w1_limits_hold_at_their_bounds() {
        let nested = |depth: usize| format!("{{\"a\":{}{}}}", "[".repeat(depth - 1), "]".repeat(depth - 1));
        assert!(text(&nested(JSON_DEPTH_MAX)).is_ok());
        let too_deep = JsonError::TooDeep { at: 5 + JSON_DEPTH_MAX - 1, max: JSON_DEPTH_MAX };
        assert_eq!(text(&nested(JSON_DEPTH_MAX + 1)), Err(too_deep));

        let many = |nodes: usize| format!("{{\"a\":[{}0]}}", "0,".repeat(nodes - 3));
        assert!(text(&many(JSON_NODES_MAX)).is_ok());
        assert!(matches!(text(&many(JSON_NODES_MAX + 1)), Err(JsonError::TooMany { .. })));

        let long = format!("{{\"a\":\"{}\"}}", "x".repeat(100));
        assert!(check(long.as_bytes(), Limits::text(long.len())).is_ok());
        let refused = check(long.as_bytes(), Limits::text(long.len() - 1));
        assert_eq!(refused, Err(JsonError::TooLong { len: long.len(), max: long.len() - 1 }));
    }

    #[test]
    fn threat_w1_bombs_are_refused_where_they_cross_the_limit() {
        let brackets = "[".repeat(1 << 20);
        assert_eq!(text(&brackets[..1000]), Err(JsonError::NotObject));
        let in_object = format!("{{\"a\":{}", &brackets[..brackets.len() - 5]);
        assert!(matches!(text(&in_object), Err(JsonError::TooDeep { at: 36, .. })));
        let objects = "{\"a\":".repeat(100_000);
        assert!(matches!(text(&objects), Err(JsonError::TooDeep { at: 160, .. })));
    }

    #[test]
    fn words_of_eight_find_every_end_of_a_string() {
        for before in 0..40 {
            for end in [b'"', b'\\', 0, 0x1f, b'\n'] {
                let mut bytes = vec![b'a'; before];
                bytes.push(end);
                bytes.extend_from_slice(b"\"\"\"\"\"\"\"\"\"");
                assert_eq!(plain_prefix(&bytes), before, "{end:#x}");
            }
            // Bytes that only look like an end beside one another.
            let odd: Vec<u8> = (0..before).map(|at| [0x7f, 0x80, 0xff, 0x20, 0x21, 0x23, 0x5b, 0x5d][at % 8]).collect();
            assert_eq!(plain_prefix(&odd), before);
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".{0,20}".prop_map(Value::from),
        ];
        leaf.prop_recursive(6, 100, 8, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
                prop::collection::btree_map(".{0,8}", inner, 0..8)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    /// Whether a full parser takes the bytes as an object. It has a bound on numbers that the grammar lacks.
    fn parses(bytes: &[u8]) -> Option<bool> {
        match serde_json::from_slice::<serde_json::Map<String, Value>>(bytes) {
            Ok(_) => Some(true),
            Err(error) if error.to_string().contains("number out of range") => None,
            Err(_) => Some(false),
        }
    }

    proptest! {
        #[test]
        fn all_json_that_is_written_passes(value in any_json(), pretty in any::<bool>()) {
            let object = serde_json::json!({ "v": value });
            let written = if pretty { serde_json::to_string_pretty(&object) } else { serde_json::to_string(&object) };
            let written = written.unwrap();
            prop_assert_eq!(text(&written), Ok(written.as_str()));
            if !pretty {
                prop_assert!(check(written.as_bytes(), Limits::line(1 << 20)).is_ok());
            }
        }

        #[test]
        fn a_parser_agrees_about_changed_json(value in any_json(), changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
            let mut bytes = serde_json::to_vec(&serde_json::json!({ "v": value })).unwrap();
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if let Some(parses) = parses(&bytes) {
                prop_assert_eq!(check(&bytes, LIMITS).is_ok(), parses, "{}", String::from_utf8_lossy(&bytes));
            }
        }

        #[test]
        fn a_parser_agrees_about_tokens_in_any_order(json in r#"(\{|\}|\[|\]|:|,|"a"|"\\u0041"|"\\"|1|-0|0\.5|1e9|true|null| |\n){0,24}"#) {
            let object = format!("{{\"a\":{json}}}");
            for bytes in [json.as_bytes(), object.as_bytes()] {
                if let Some(parses) = parses(bytes) {
                    prop_assert_eq!(check(bytes, LIMITS).is_ok(), parses, "{}", json);
                }
            }
        }

        #[test]
        fn threat_w1_any_bytes_pass_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = check(&bytes, LIMITS);
        }
    }
}
