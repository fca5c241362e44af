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
    // Last, because it is the only pass that a bomb could make useless work of; the scan itself is safe on any bytes.
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
