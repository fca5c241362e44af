//! Reads a text for `@handle`, `#N` and `[[note]]`: in prose only, and only where a reader would see them too.
//!
//! Two passes, each linear. Markdown says which bytes are prose: not code, quotes, HTML, images' texts, destinations of
//! links or addresses in angle brackets. Then one walk over the source applies our own rules of what starts and ends a
//! word. The walk sees the source and not what markdown makes of it, so an escaped or encoded `@` never mentions; it
//! judges neighbours by what is drawn, so `@ops**2**` is not `@ops`.

use std::collections::BTreeSet;

use crate::id::{COUNTER_MAX, MessageId};
use crate::route::prose::{Ground, ground};
use crate::text::{is_hidden, one_line};

/// Bytes of a text that are read. Posts are shorter; a final text is not limited, and recipients get its start.
pub const SCAN_LEN_MAX: usize = 256 * 1024;

/// Most messages that one text cites: each brings its whole body along.
pub const REFS_MAX: usize = 16;

/// Most notes that one text cites.
pub const NOTES_MAX: usize = 16;

/// Longest name of a note between its brackets, in bytes.
pub const NOTE_LEN_MAX: usize = 128;

/// Characters of a misspelt mention that its report shows.
const REPORT_CHARS_MAX: usize = 40;

/// Misspelt mentions that are reported; the author sees the point before.
const MALFORMED_MAX: usize = 16;

/// Words that end in a colon before an address, not before a mention as `cc:@ops` has it.
const SCHEMES: [&str; 10] = ["acct", "file", "ftp", "git", "mailto", "matrix", "sip", "sips", "ssh", "xmpp"];

/// What a text names. In order of appearance, each once.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Mentions {
    /// What stands behind an `@` and is spelt like a handle (`[a-z0-9-]+`), whole: `ops-2-b`, also `ops-` at the end of
    /// `@ops-`. Whether anybody has it is not decided here.
    pub handles: Vec<String>,
    /// What stands behind an `@`, reads like a handle and is none: capitals, letters of other scripts, invisible
    /// characters. Safe to print.
    pub malformed: Vec<String>,
    /// The cited messages: `#N`.
    pub refs: Vec<MessageId>,
    /// The cited notes: `[[note]]`, as written, without `|alias` and `#heading`.
    pub notes: Vec<String>,
}

/// Reads a text. Takes time linear in its length.
#[must_use]
pub fn scan(text: &str) -> Mentions {
    let text = text.get(..text.floor_char_boundary(SCAN_LEN_MAX)).unwrap_or(text);
    // Most posts name nothing, and most streams are posts.
    if !text.bytes().any(|b| matches!(b, b'@' | b'#' | b'[')) {
        return Mentions::default();
    }
    let mut scanner = Scanner {
        text,
        ground: ground(text),
        at: 0,
        lead: Lead::Free,
        is_overridden: false,
        seen: BTreeSet::new(),
        found: Mentions::default(),
    };
    scanner.run();
    scanner.found
}

/// What the drawn word before the current place leaves possible.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Lead {
    /// A word may start here.
    Free,
    /// Only `.`, `:`, `+` or `-` since a word could start: `.@ops`, `-@ops`.
    Soft,
    /// Only ASCII letters since the byte offset where the word started.
    Letters(usize),
    /// A mention or citation ended here.
    Named,
    /// In a word: nothing may start.
    Blocked,
    /// An invisible character: what starts here is reported, never routed.
    Hidden,
}

struct Scanner<'a> {
    text: &'a str,
    ground: Vec<Ground>,
    at: usize,
    lead: Lead,
    /// A bidirectional override is open: what is drawn is not what stands here.
    is_overridden: bool,
    seen: BTreeSet<&'a str>,
    found: Mentions,
}

impl<'a> Scanner<'a> {
    fn run(&mut self) {
        while let Some((c, ground)) = self.peek(self.at) {
            let start = self.at;
            let taken = match (c, ground) {
                ('@', Ground::Prose) => self.mention(),
                ('#', Ground::Prose) => self.citation(),
                ('[', Ground::Prose) => self.note(),
                (':', Ground::Prose) => self.address(),
                _ => false,
            };
            if !taken {
                self.step(c, ground);
                self.at = start + c.len_utf8();
            }
        }
    }

    /// Reads what follows an `@`. False when it is not of the form of a mention; the caller passes over the `@` then.
    fn mention(&mut self) -> bool {
        if !matches!(self.lead, Lead::Free | Lead::Soft | Lead::Hidden) {
            return false;
        }
        let start = self.at + 1;
        let end = self.run_end(start, is_word);
        let Some(word) = self.text.get(start..end).filter(|word| !word.is_empty()) else { return false };
        let is_plain = word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        let (is_whole, is_other) = self.ends(end);
        if is_other {
            // A package scope, a file, an address of another network: not addressed to anybody here.
            self.lead = Lead::Blocked;
        } else if is_plain && is_whole && !self.is_overridden && self.lead != Lead::Hidden {
            if self.seen.insert(word) {
                self.found.handles.push(word.to_owned());
            }
            self.lead = Lead::Named;
        } else {
            if self.found.malformed.len() < MALFORMED_MAX && self.seen.insert(word) {
                self.found.malformed.push(one_line(word, REPORT_CHARS_MAX));
            }
            self.lead = Lead::Blocked;
        }
        self.at = end;
        true
    }

    /// Reads `#N`.
    fn citation(&mut self) -> bool {
        if !matches!(self.lead, Lead::Free | Lead::Soft) {
            return false;
        }
        let start = self.at + 1;
        let end = self.run_end(start, |c| c.is_ascii_digit());
        let Some(digits) = self.text.get(start..end).filter(|d| !d.starts_with('0')) else { return false };
        let Ok(number) = digits.parse::<u64>() else { return false };
        let is_word_after = self.drawn_from(end).is_some_and(|(c, _)| c != '-' && is_word(c));
        if number > COUNTER_MAX || is_word_after || self.ends(end).1 {
            return false;
        }
        let number = MessageId(number);
        if self.found.refs.len() < REFS_MAX && !self.found.refs.contains(&number) {
            self.found.refs.push(number);
        }
        self.lead = Lead::Named;
        self.at = end;
        true
    }

    /// Reads `[[note]]` whole, so that nothing inside it counts.
    fn note(&mut self) -> bool {
        let start = self.at + 2;
        if self.peek(self.at + 1) != Some(('[', Ground::Prose)) {
            return false;
        }
        let end = self.run_end(start, |c| !matches!(c, '[' | ']') && !is_hidden(c));
        let Some(name) = self.text.get(start..end).filter(|name| name.len() <= NOTE_LEN_MAX) else { return false };
        let closing = Some((']', Ground::Prose));
        if self.peek(end) != closing || self.peek(end + 1) != closing {
            return false;
        }
        let name = name.split(['|', '#']).next().unwrap_or_default().trim();
        if name.is_empty() {
            return false;
        }
        if self.found.notes.len() < NOTES_MAX && !self.found.notes.iter().any(|known| known == name) {
            self.found.notes.push(name.to_owned());
        }
        self.lead = Lead::Named;
        self.at = end + 2;
        true
    }

    /// Passes over the rest of an address at its `://`.
    fn address(&mut self) -> bool {
        if !self.text.get(self.at..).is_some_and(|rest| rest.starts_with("://")) {
            return false;
        }
        let rest = self.text.get(self.at..).unwrap_or_default();
        let ends =
            |c: char| c.is_whitespace() || matches!(c, '<' | '>' | '"' | '`') || (!c.is_ascii() && is_boundary(c));
        self.at += rest.find(ends).unwrap_or(rest.len());
        self.lead = Lead::Blocked;
        true
    }

    /// How a word ends: whether the word that is drawn ends too, and whether what follows makes it something else.
    fn ends(&self, end: usize) -> (bool, bool) {
        let Some((c, after)) = self.drawn_from(end) else { return (true, false) };
        let next = self.drawn_from(after).map(|(c, _)| c);
        let is_other = match c {
            '@' => true,
            '/' | '\\' => next.is_some_and(|c| c != '@' && c != '#' && !is_space(c)),
            '.' => next.is_some_and(|c| is_word(c) && c != '-'),
            _ => false,
        };
        (!is_word(c), is_other)
    }

    /// The first drawn character from an offset on and the offset behind it; syntax between is passed over, a line's
    /// end is not.
    fn drawn_from(&self, offset: usize) -> Option<(char, usize)> {
        let mut at = offset;
        loop {
            let (c, ground) = self.peek(at)?;
            at += c.len_utf8();
            match ground {
                Ground::Prose => return Some((c, at)),
                // Whatever it stands for, it continues the word.
                Ground::Opaque => return Some(('_', at)),
                Ground::Other | Ground::Quoted if c.is_whitespace() => return None,
                Ground::Other | Ground::Quoted | Ground::Inside => {}
            }
        }
    }

    /// The offset where a run of prose of one class ends.
    fn run_end(&self, start: usize, class: impl Fn(char) -> bool) -> usize {
        let mut at = start;
        while let Some((c, Ground::Prose)) = self.peek(at) {
            if !class(c) {
                break;
            }
            at += c.len_utf8();
        }
        at
    }

    fn peek(&self, at: usize) -> Option<(char, Ground)> {
        Some((self.text.get(at..)?.chars().next()?, *self.ground.get(at)?))
    }

    /// Passes over one character.
    fn step(&mut self, c: char, ground: Ground) {
        match c {
            '\n' | '\u{202c}' => self.is_overridden = false,
            '\u{202d}' | '\u{202e}' => self.is_overridden = true,
            _ => {}
        }
        self.lead = match (ground, c) {
            (Ground::Opaque, _) | (_, '\\' | '`') => Lead::Blocked,
            (Ground::Inside, _) => self.lead,
            (_, c) if is_space(c) => Lead::Free,
            (Ground::Other | Ground::Quoted, _) => self.lead,
            (Ground::Prose, ':') => match self.lead {
                Lead::Letters(start) if !self.is_scheme(start) => Lead::Soft,
                Lead::Free | Lead::Soft | Lead::Named => Lead::Soft,
                _ => Lead::Blocked,
            },
            (Ground::Prose, '.' | '+' | '-') => match self.lead {
                Lead::Free | Lead::Soft | Lead::Named => Lead::Soft,
                _ => Lead::Blocked,
            },
            (Ground::Prose, '/') if self.lead == Lead::Named => Lead::Soft,
            (Ground::Prose, '@' | '#' | '$' | '%' | '/' | '=' | '~' | '_') => Lead::Blocked,
            (Ground::Prose, 'a'..='z' | 'A'..='Z') => match self.lead {
                Lead::Free => Lead::Letters(self.at),
                Lead::Letters(start) => Lead::Letters(start),
                _ => Lead::Blocked,
            },
            // Behind an emoji it says how that is drawn.
            (Ground::Prose, '\u{fe0e}' | '\u{fe0f}') => self.lead,
            (Ground::Prose, c) if is_hidden(c) => Lead::Hidden,
            (Ground::Prose, c) if is_boundary(c) => Lead::Free,
            (Ground::Prose, c) if c.is_alphanumeric() => Lead::Blocked,
            // Signs and marks belong to the word they stand in.
            (Ground::Prose, _) => match self.lead {
                Lead::Free | Lead::Soft => Lead::Free,
                _ => Lead::Blocked,
            },
        };
    }

    fn is_scheme(&self, start: usize) -> bool {
        self.text.get(start..self.at).is_some_and(|word| SCHEMES.iter().any(|scheme| word.eq_ignore_ascii_case(scheme)))
    }
}

/// Space that a reader sees.
fn is_space(c: char) -> bool {
    c.is_whitespace() && !matches!(c, '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// Whether a character continues a word as readers see it. What is not known to end one does: marks, invisible
/// characters, look-alikes of the hyphen, letters of scripts that have look-alikes of ours.
fn is_word(c: char) -> bool {
    // Strokes that pass for a hyphen, a slash or a letter.
    !is_boundary(c) || matches!(c, '一' | '丨' | '丶' | '丿' | 'ー' | 'ノ')
}

/// Whether a character lets a word start behind it, and mostly ends one before it.
fn is_boundary(c: char) -> bool {
    match c {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '_' => false,
        ' '..='~' => true,
        // Scripts that are written without spaces: kana, ideographs, Hangul.
        '\u{3041}'..='\u{3096}'
        | '\u{30a1}'..='\u{30fc}'
        | '\u{3400}'..='\u{4dbf}'
        | '\u{4e00}'..='\u{9fff}'
        | '\u{ac00}'..='\u{d7a3}'
        | '\u{f900}'..='\u{faff}'
        | '\u{20000}'..='\u{323af}' => true,
        // Punctuation: Latin, general (dashes from the em dash on), Arabic, ideographic, full width.
        '¡'
        | '«'
        | '»'
        | '¿'
        | '—'
        | '―'
        | '‘'..='‟'
        | '†'..='…'
        | '‹'
        | '›'
        | '،'
        | '؛'
        | '؟'
        | '۔'
        | '、'
        | '。'
        | '〈'..='】'
        | '〔'..='〛'
        | '！'
        | '，'
        | '．'
        | '：'
        | '；'
        | '？'
        | '（'
        | '）'
        | '［'
        | '］'
        | '｛'
        | '｝' => true,
        // Pictures, the digits and the signs of sums among them aside.
        '\u{2600}'..='\u{2775}' | '\u{2798}'..='\u{27bf}' | '\u{1f300}'..='\u{1faff}' => true,
        _ => is_space(c),
    }
}
