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
        | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What must never reach a terminal.
    fn is_dangerous(c: char) -> bool {
        let is_control = c.is_control() && c != '\n' && c != '\t';
        let is_bidi =
            matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        is_control
            || is_bidi
            || matches!(c, '\u{200b}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{e0001}'..='\u{e007f}')
    }

    #[test]
    fn ordinary_text_is_not_copied() {
        for text in ["", "plain\n\ttext", "Grüße 日本語 🎉 نص", "a ␛ b"] {
            assert!(matches!(visible(text), Cow::Borrowed(same) if same == text), "{text:?}");
        }
    }

    #[test]
    fn threat_c3_sequences_are_shown() {
        let check = |text: &str, shown: &str| assert_eq!(visible(text), shown);
        check("\x1b[2J\x1b]0;title\x07", "␛[2J␛]0;title␇");
        check("\x1b]8;;https://x\x1b\\link", "␛]8;;https://x␛\\link");
        check("\x1b]52;c;AAAA\x07", "␛]52;c;AAAA␇");
        check("\u{9b}31m\u{9d}x\u{9c}", "\\u{9b}31m\\u{9d}x\\u{9c}");
        check("a\r\nb\x08\x7f\0", "a␍\nb␈␡␀");
        check("\u{202e}txt.exe\u{2066}", "\\u{202e}txt.exe\\u{2066}");
        check("ad\u{200b}min\u{feff}", "ad\\u{200b}min\\u{feff}");
    }

    #[test]
    fn joiners_stay_where_scripts_need_them() {
        for text in ["می\u{200c}خواهم", "👩\u{200d}🚀", "❤\u{fe0f}", "🏳\u{fe0f}\u{200d}🌈"] {
            assert_eq!(visible(text), text);
        }
        assert_eq!(visible("ad\u{200d}min"), "ad\\u{200d}min");
        assert_eq!(visible("\u{200d}é\u{200c}"), "\\u{200d}é\\u{200c}");
        assert_eq!(visible("a\u{fe0f}"), "a\\u{fe0f}");
        assert_eq!(visible("é\u{200d}\u{200d}é"), "é\\u{200d}\\u{200d}é");
    }

    #[test]
    fn threat_c4_a_forged_record_stays_one_line() {
        assert_eq!(one_line("x\n{\"level\":\"info\"}\r\n", 100), "x␊{\"level\":\"info\"}␍␊");
        assert_eq!(one_line("a\u{2028}b\u{202e}c\td", 100), "a\\u{2028}b\\u{202e}c␉d");
    }

    #[test]
    fn lines_are_cut_at_characters() {
        assert_eq!(one_line("日本語", 3), "日本語");
        assert_eq!(one_line("日本語だ", 3), "日本…");
        assert_eq!(one_line("ab", 1), "…");
        assert_eq!(one_line("ab", 0), "");
        assert_eq!(one_line("", 0), "");
        assert_eq!(one_line("\u{9b}\u{9b}", 8), "\\u{9b}\\…");
    }

    /// Sequences between ordinary characters.
    fn text() -> impl Strategy<Value = String> {
        let nasty = prop_oneof![
            any::<char>(),
            (0_u32..0xa0).prop_map(|c| char::from_u32(c).unwrap_or(' ')),
            (0x2000_u32..0x2070).prop_map(|c| char::from_u32(c).unwrap_or(' ')),
            Just('é'),
            Just('👩'),
        ];
        prop::collection::vec(nasty, 0..64).prop_map(String::from_iter)
    }

    proptest! {
        #[test]
        fn threat_c3_no_control_or_bidi_character_survives(text in text()) {
            let shown = visible(&text);
            prop_assert!(!shown.chars().any(is_dangerous), "{shown:?}");
            prop_assert!(!shown.contains('\x1b'));
            // What was shown once is left alone.
            prop_assert_eq!(visible(&shown), &*shown);
        }

        #[test]
        fn threat_c4_one_line_is_one_short_line(text in text(), max in 0_usize..80) {
            let line = one_line(&text, max);
            prop_assert!(!line.chars().any(|c| is_dangerous(c) || c == '\n' || c == '\t'), "{line:?}");
            prop_assert!(line.chars().count() <= max);
        }
    }
}
