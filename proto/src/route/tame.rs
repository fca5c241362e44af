//! Makes hostile markdown harmless before it is parsed.
//!
//! The parser takes time linear in nearly every text. Two things that only an attacker writes it looks at anew on each
//! line: a link's title that goes on over lines, and thousands of quotes or lists inside each other. Both cost 64 KiB
//! half a second and 1 MiB a minute. They are blotted out in a copy for the parser, in which every byte keeps its place:
//! such a title counts as text, and deeper quotes as part of the one around them.

use std::borrow::Cow;

/// Marks of quotes and lists at the head of one line that count.
const CONTAINERS_MAX: usize = 64;

/// What blots out: punctuation, so that emphasis beside it still ends, and syntax of nothing.
const BLOT: u8 = b',';

/// Blots out what is slow to parse. Only single ASCII characters change.
pub(super) fn tamed(text: &str) -> Cow<'_, str> {
    let mut bytes = text.as_bytes().to_vec();
    for line in bytes.split_inclusive_mut(|b| matches!(b, b'\n' | b'\r')) {
        limit_containers(line);
        close_titles(line);
    }
    // It stays UTF-8, as ASCII took the place of ASCII.
    String::from_utf8(bytes).map_or(Cow::Borrowed(text), Cow::Owned)
}

/// Keeps the first marks of quotes and lists that a line starts with.
fn limit_containers(line: &mut [u8]) {
    let head = line.iter_mut().take_while(|b| is_container(**b));
    head.filter(|b| !b.is_ascii_whitespace()).skip(CONTAINERS_MAX).for_each(|b| *b = BLOT);
}

/// Takes from a title that its line does not close what makes it one: the space before it.
fn close_titles(line: &mut [u8]) {
    // Of each kind the last one, not escaped: no other can be open at the line's end.
    let (mut double, mut single, mut round) = (None, None, None);
    let mut is_escaped = false;
    for (at, byte) in line.iter().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => double = Some(at),
            b'\'' => single = Some(at),
            b'(' => round = Some(at),
            b')' => round = None,
            _ => {}
        }
    }
    for at in [double, single, round].into_iter().flatten() {
        let Some((before, [quote, ..])) = line.split_at_mut_checked(at) else { continue };
        match before {
            // A title may also be the first of its line. It closes none before it, so it can go itself.
            _ if before.iter().all(|b| is_container(*b)) => *quote = BLOT,
            [.., space @ (b' ' | b'\t')] => *space = BLOT,
            // It stands in a word or a tag.
            _ => {}
        }
    }
}

/// Whether a byte may belong to the marks of quotes and lists that a line starts with.
const fn is_container(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'>' | b'-' | b'+' | b'*' | b'.' | b')' | b'0'..=b'9')
}
