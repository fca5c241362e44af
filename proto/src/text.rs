//! Text of others, made safe to print: on a terminal, in a log line, in a report.
//!
//! Whatever people, agents and tools wrote may hold escape sequences that move a cursor, change a title or fill a
//! clipboard, line breaks that forge a log record, and invisible characters that make two names look the same. Here
//! they become visible. Stored bytes are never touched: this is for the last step before a person's eyes.

use std::borrow::Cow;

/// Whether a character draws nothing or changes how its neighbours are drawn: control, bidirectional, zero-width and
/// filler characters, line separators, tags. Line feed and tab count, too.
#[must_use]
pub const fn is_hidden(c: char) -> bool {
    matches!(c,
        '\0'..='\x1f' | '\x7f'..='\u{9f}'
        | '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{2800}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
        | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// Makes every hidden character visible; line feeds and tabs stay.
///
/// C0 controls become their control pictures (ESC is `␛`), the others `\u{9b}`. A joiner (U+200C, U+200D) or an emoji
/// or text selector (U+FE0E, U+FE0F) stays where scripts and emoji need it, between and behind characters that are
/// not ASCII: there it cannot split a handle, a command or an address. Never fails, never borrows more than it got.
#[must_use]
pub fn visible(text: &str) -> Cow<'_, str> {
    let Some(first) = text.char_indices().find(|&(_, c)| is_hidden(c) && c != '\n' && c != '\t').map(|(at, _)| at)
    else {
        return Cow::Borrowed(text);
    };
    let (clean, rest) = text.split_at(first);
    let mut out = String::with_capacity(text.len() + 16);
    out.push_str(clean);
    let mut before = clean.chars().next_back();
    let mut chars = rest.chars().peekable();
    while let Some(c) = chars.next() {
        let kept = match c {
            '\n' | '\t' => true,
            '\u{200c}' | '\u{200d}' => {
                before.is_some_and(is_joinable) && chars.peek().copied().is_some_and(is_joinable)
            }
            '\u{fe0e}' | '\u{fe0f}' => before.is_some_and(is_drawn),
            _ => !is_hidden(c),
        };
        if kept {
            out.push(c);
        } else {
            push_shown(&mut out, c);
        }
        before = Some(c);
    }
    Cow::Owned(out)
}

/// Makes one line of at most `chars_max` characters: as [`visible`], with line feeds and tabs shown as well and a
/// cut marked by `…`. For logs and for fields of a line.
#[must_use]
pub fn one_line(text: &str, chars_max: usize) -> String {
    // A hidden character may become ten; what is past the limit need not be looked at.
    let looked_at = text.char_indices().nth(chars_max.saturating_add(1)).map_or(text.len(), |(at, _)| at);
    let shown = visible(text.get(..looked_at).unwrap_or(text));
    let mut out = String::with_capacity(shown.len());
    for (count, c) in shown.chars().enumerate() {
        if count >= chars_max {
            out.pop();
            if chars_max > 0 {
                out.push('…');
            }
            break;
        }
        match c {
            '\n' | '\t' => push_shown(&mut out, c),
            _ => out.push(c),
        }
    }
    out
}

/// A character that a joiner may stand beside.
const fn is_joinable(c: char) -> bool {
    is_drawn(c) || matches!(c, '\u{fe0e}' | '\u{fe0f}')
}

const fn is_drawn(c: char) -> bool {
    !c.is_ascii() && !is_hidden(c)
}

fn push_shown(out: &mut String, c: char) {
    match c {
        '\0'..='\x1f' => out.extend(char::from_u32(0x2400 + c as u32)),
        '\x7f' => out.push('␡'),
        _ => out.extend(c.escape_unicode()),
    }
}
