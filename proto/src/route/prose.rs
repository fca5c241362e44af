//! Says which bytes of a text are prose.

use pulldown_cmark::{Event, LinkType, Options, Parser, Tag, TagEnd};

use crate::route::tame::tamed;

/// What a byte of the source is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Ground {
    /// Syntax and what is drawn apart: not read. White space in it ends words.
    Other,
    /// Code, tags and links' destinations in the middle of a line: not read. White space in it is not drawn as such.
    Inside,
    /// Text that a reader sees as it stands.
    Prose,
    /// Text inside a quote, until it is known whether its line has the mark.
    Quoted,
    /// Text that a reader sees as something else: a character entity.
    Opaque,
}

/// Marks each byte of the source.
pub(super) fn ground(source: &str) -> Vec<Ground> {
    let text = &*tamed(source);
    let mut ground = vec![Ground::Other; text.len()];
    // Blocks and images that are not read, quotes, and links or images around a place.
    let (mut unread, mut quotes, mut spans) = (0_u32, 0_u32, 0_u32);
    let mut in_address = false;
    for (event, range) in Parser::new_ext(text, Options::empty()).into_offset_iter() {
        let kind = match event {
            Event::Start(tag) => {
                unread += u32::from(is_unread(&tag.to_end()));
                quotes += u32::from(matches!(tag, Tag::BlockQuote(_)));
                if let Tag::Link { link_type, .. } = tag {
                    in_address = matches!(link_type, LinkType::Autolink | LinkType::Email);
                }
                let is_span = matches!(tag, Tag::Link { .. } | Tag::Image { .. });
                spans += u32::from(is_span);
                // Only the outermost: they nest, and marking each would make deep ones slow.
                if !is_span || spans > 1 {
                    continue;
                }
                Ground::Inside
            }
            Event::End(tag) => {
                unread = unread.saturating_sub(u32::from(is_unread(&tag)));
                quotes = quotes.saturating_sub(u32::from(matches!(tag, TagEnd::BlockQuote(_))));
                in_address &= tag != TagEnd::Link;
                spans = spans.saturating_sub(u32::from(matches!(tag, TagEnd::Link | TagEnd::Image)));
                continue;
            }
            Event::Code(_) | Event::InlineHtml(_) => Ground::Inside,
            Event::SoftBreak | Event::HardBreak => Ground::Other,
            Event::Text(_) if unread > 0 || in_address => continue,
            Event::Text(shown) if text.get(range.clone()) != Some(&*shown) => Ground::Opaque,
            Event::Text(_) if quotes > 0 => Ground::Quoted,
            Event::Text(_) => Ground::Prose,
            _ => continue,
        };
        if let Some(part) = ground.get_mut(range) {
            part.fill(kind);
        }
    }
    unquote(source, &mut ground);
    ground
}

/// Whether the text of an element is none that its author says here.
fn is_unread(tag: &TagEnd) -> bool {
    matches!(tag, TagEnd::CodeBlock | TagEnd::HtmlBlock | TagEnd::Image | TagEnd::MetadataBlock(_))
}

/// Decides the bytes inside quotes. Markdown lets a paragraph of a quote go on over lines without the mark; to the one
/// who writes below a quoted line such a line is their own.
fn unquote(text: &str, ground: &mut [Ground]) {
    let mut rest = ground;
    for line in text.split_inclusive('\n') {
        let Some((part, after)) = rest.split_at_mut_checked(line.len()) else { return };
        rest = after;
        // A quote may stand in a list.
        let content =
            line.trim_start_matches(|c: char| matches!(c, ' ' | '\t' | '-' | '*' | '+' | '.' | ')' | '0'..='9'));
        let decided = if content.starts_with('>') { Ground::Other } else { Ground::Prose };
        part.iter_mut().filter(|kind| **kind == Ground::Quoted).for_each(|kind| *kind = decided);
    }
}
