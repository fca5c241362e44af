//! What is a mention, a citation or a note, and what is not.

use proptest::prelude::*;

use super::super::mention::{Mentions, REFS_MAX, scan};
use super::*;
use crate::text::is_hidden;

/// Checks the handles that a text names.
#[track_caller]
fn check(text: &str, handles: &[&str]) {
    assert_eq!(scan(text).handles, handles, "in {text:?}");
}

/// Checks that a text names nobody and reports what.
#[track_caller]
fn check_malformed(text: &str, malformed: &[&str]) {
    let found = scan(text);
    assert_eq!((found.handles, found.malformed.as_slice()), (vec![], strings(malformed).as_slice()), "in {text:?}");
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

#[test]
fn case_x6_the_longest_exact_handle_is_named_and_none_is_cut_out_of_another() {
    for handle in ["ops", "ops-2", "ops-2-b"] {
        let decision = team().post("ana", &format!("please @{handle} look"));
        assert_eq!(team().handles(&decision.routed.to), [handle]);
    }
    let decision = team().post("ana", "ask @chief-x, not the other");
    assert_eq!(decision.routed.to, []);
    assert_eq!(decision.routed.unknown, ["chief-x"]);
    for text in ["@ops-3", "@ops-2-bb", "@op", "@ops2", "@ops--2", "@ops_2"] {
        let decision = team().post("ana", text);
        assert_eq!((decision.routed.to, decision.routed.unknown), (vec![], vec![text[1..].to_owned()]));
    }
}

#[test]
fn mentions_end_at_punctuation() {
    for end in [
        "", " ", "\n", ",", ".", "...", ":", ";", "!", "?", ")", "]", "}", ">", "\"", "'", "'s", "’s", "…", "—now",
        "*", "|", "/", "/ ", "\t", "\u{a0}", "。", "，", "！", "さん", "请看", "는", " - x", ":please", "&x", "👍",
        "\r\nx",
    ] {
        check(&format!("@ops{end}"), &["ops"]);
        check(&format!("hello @ops{end}"), &["ops"]);
    }
    // A hyphen belongs to the handle that has it, else it is punctuation.
    check("@ops- x", &["ops-"]);
    let roster = Roster::new(&[("ana", Human), ("ops", Agent), ("ops-", Agent)]);
    assert_eq!(roster.handles(&roster.post("ana", "@ops- x").routed.to), ["ops-"]);
    assert_eq!(team().handles(&team().post("ana", "@ops-- x").routed.to), ["ops"]);
}

#[test]
fn mentions_start_words() {
    for start in [
        "",
        " ",
        "\n",
        "(",
        "[",
        "{",
        "\"",
        "'",
        "“",
        "*",
        "**",
        "***",
        ",",
        ";",
        "!",
        "?",
        "|",
        ">x\n",
        "- ",
        "1. ",
        "# ",
        ".",
        "-",
        "+",
        ":",
        "cc:",
        "To:",
        "—",
        "→",
        "•",
        "请",
        "。",
        "👋",
        "❤\u{fe0f}",
        "a, ",
        "\u{a0}",
        "| x |\n",
    ] {
        check(&format!("{start}@ops"), &["ops"]);
    }
    check("**@ops** and _@chief_, (@ops-2)", &["ops", "chief", "ops-2"]);
    check("@ops/@chief @ops-2,@admin @a1.@b1 @c1:@d1", &["ops", "chief", "ops-2", "admin", "a1", "b1", "c1", "d1"]);
    check("| @ops | @chief |\n|---|---|\n| @admin | x |", &["ops", "chief", "admin"]);
    check("[@ops](https://x.dev/u/1) see", &["ops"]);
    check("- item\n\n    @ops in a list", &["ops"]);
}

#[test]
fn addresses_are_not_mentions() {
    for text in [
        "a@ox.dev",
        "mail a@ops",
        "first.last@ops",
        "x+y@ops",
        "git@ops:x",
        "git@host:@ops",
        "user:pass@ops",
        "root@ops",
        "https://x.dev/@ops",
        "https://user:@ops/x",
        "https://x.dev/?u=@ops&v=,@ops",
        "http://(@ops)",
        "ssh://git@ops/x",
        "HTTPS://X/@ops",
        "see https://x.dev,@ops",
        "www.x.dev/@ops",
        "x.dev/?u=@ops",
        "mailto:@ops",
        "<ops@ops.dev>",
        "[x](https://x.dev/@ops)",
        "[x](<@ops>)",
        "[x](y \"@ops\")",
        "![@ops](x.png)",
        "[y]: @ops",
        "@types/node",
        "@ops/core",
        "@ops.md",
        "see @ops.dev now",
        "@user@ops.dev",
        "@ops@elk",
        "a/@ops",
        "a_@ops",
        "a-@ops",
        "a.@ops",
        "@@ops",
        "$@ops",
        "~@ops",
        "%@ops",
        "to=@ops",
        "é@ops",
        "м@ops",
        "ن@ops",
        "C:\\@ops",
        "\\@ops",
        "&#64;ops",
        "a&#45;@ops",
        "x&commat;ops",
        "**a**@ops",
    ] {
        let found = scan(text);
        assert_eq!((&found.handles, &found.malformed), (&vec![], &vec![]), "in {text:?}");
    }
}

#[test]
fn threat_c6_code_and_quotes_never_mention() {
    for text in [
        "`@ops`",
        "``a ` @ops``",
        "```\n@ops\n```",
        "```\n@ops",
        "~~~ @ops\n@ops\n~~~",
        "    @ops",
        "\t@ops",
        "`x`@ops",
        "> @ops",
        "> a\n> @ops",
        ">@ops",
        "- > @ops",
        "> > @ops",
        "> ```\n> @ops\n> ```",
        "1. > @ops",
        "> - @ops",
        "<b title=\"@ops\">x</b>",
        "<!-- @ops -->",
        "<div>\n@ops\n</div>",
        "<pre>@ops</pre>",
        "`a\n@ops`",
        "- ```\n  @ops\n  ```",
        "<https://x/@ops>",
        "$(`@ops`)",
    ] {
        let found = scan(text);
        assert_eq!((&found.handles, &found.malformed), (&vec![], &vec![]), "in {text:?}");
    }
    // What follows them does.
    check("```\n@ops\n```\n@chief", &["chief"]);
    check("`@ops` @chief", &["chief"]);
    check("a ` @chief", &["chief"]);
    check("> @ops\n\n@chief", &["chief"]);
    // The line below a quoted one is its author's own, although markdown draws it into the quote.
    check("> @ops said\n@chief do", &["chief"]);
    check("- > @ops said\n  @chief do", &["chief"]);
    check("a > b, *c* > @chief", &["chief"]);
}

#[test]
fn what_is_drawn_as_one_word_is_one_word() {
    for text in [
        "@ops**2**",
        "@ops\\-2",
        "@ops<!-- -->-2",
        "@ops<!--\n-->-2",
        "[@ops](x\n\"\")-2",
        "@ops`a b`-2",
        "@ops&#45;2",
        "**@ops**-2",
        "@ops*b*",
        "@ops[b](x)",
    ] {
        check_malformed(text, &["ops"]);
    }
    check("**@ops**: go", &["ops"]);
    check("_@ops_.", &["ops"]);
}

#[test]
fn threat_c5_look_alikes_and_invisible_characters_never_route() {
    let team = team();
    for text in [
        "@\u{430}dmin",
        "@admi\u{200b}n",
        "@admin\u{200b}",
        "@\u{200b}admin",
        "\u{200b}@admin",
        "@admin\u{2060}",
        "@\u{ff41}dmin",
        "\u{202e}@admin",
        "\u{202e}x @admin",
        "\u{202d} @admin\u{202c}",
        "@admin\u{202e}",
        "@admin\u{301}",
        "@admin\u{2010}2",
        "@admin\u{2011}",
        "@admin\u{2212}2",
        "@admin\u{ad}",
        "@admin\u{fe0f}",
        "@admin\u{e0041}",
        "@admin\u{ff0d}2",
        "@adm\u{131}n",
        "@admin一",
        "@adminー2",
        "@ADMIN",
        "@Admin",
        "@admin\u{1b}[0m",
        "@admin\u{8}",
        "\u{feff}@admin",
        "\u{ad}@admin",
        "@admin\u{2013}2",
    ] {
        let decision = team.post("ana", text);
        assert_eq!(decision.routed.to, [], "in {text:?}");
        let is_shown = |word: &String| !word.is_empty() && !word.chars().any(is_hidden);
        assert!(decision.routed.unknown.iter().all(is_shown), "{:?}", decision.routed.unknown);
        if !text.starts_with("@\u{200b}") {
            assert_eq!(decision.routed.unknown.len(), 1, "in {text:?}");
        }
    }
    // An override ends with its line or its pop.
    check("\u{202e}x\n@admin", &["admin"]);
    check("\u{202e}x\u{202c} @admin", &["admin"]);
    // Scripts without look-alikes and without spaces don't stand in the way.
    check("请@admin看一下", &["admin"]);
    check("一@admin", &["admin"]);
}

#[test]
fn quotation_marks_and_brackets_over_lines_hide_nothing() {
    check("_@ops_ \"a quote\nover lines\" and **@chief** (as\nsaid), don't @ops-2", &["ops", "chief", "ops-2"]);
    check("- 'item @ops\n- x' [@chief](x 'a') `@admin`", &["ops", "chief"]);
    check("(see\n@ops) > 'a\n> @chief", &["ops"]);
    // A link's title has to end on its line.
    check("[@ops](x 'a\n@chief')", &["ops", "chief"]);
    check(&format!("{} @ops", "> ".repeat(1000)), &[]);
    check(&format!("{}@ops", "- ".repeat(1000)), &["ops"]);
}

#[test]
fn case_x9_display_names_are_never_parsed() {
    for text in [
        "@David[TF]",
        "@[David](x)",
        "@\"ops\"",
        "@{ops}",
        "@دانا",
        "@👩\u{200d}🚀",
        "@e\u{301}lan",
        "@ ops",
        "@\nops",
        "@",
        "@ @",
        "@*ops*",
    ] {
        assert_eq!(scan(text).handles, Vec::<String>::new(), "in {text:?}");
    }
    // What stands around them stays readable.
    check("@David[TF] and @ops", &["ops"]);
    check("[David[TF]] @ops", &["ops"]);
}

#[test]
fn citations_are_found_and_colours_are_not() {
    let refs = |text: &str| scan(text).refs.iter().map(|n| n.0).collect::<Vec<_>>();
    assert_eq!(refs("mail a@ox.dev, see #12 and ##13"), [12]);
    assert_eq!(refs("#1, (#2) #3. #4: **#5** see:#6 #7-#8 #9/#10 #1"), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    for text in [
        "a#1",
        "#0",
        "#01",
        "#12ab",
        "#fff",
        "`#1`",
        "> #1",
        "x/#1",
        "&#12;",
        "repo/x#1",
        "https://x/#1",
        "#1.5",
        "#9007199254740992",
    ] {
        assert_eq!(refs(text), Vec::<u64>::new(), "in {text:?}");
    }
    assert_eq!(refs("#9007199254740991"), [9_007_199_254_740_991]);
    let many: String = (1..100).map(|n| format!("#{n} ")).collect();
    assert_eq!(refs(&many).len(), REFS_MAX);
}

#[test]
fn notes_are_found_and_nothing_inside_them_counts() {
    let found =
        scan("see [[deploy]], [[ plans/next ]] [[deploy|@ops]] [[a#12]] `[[no]]` [[]] [[x\ny]] [[a[b]] [[@ops]] [x]");
    assert_eq!(found.notes, ["deploy", "plans/next", "a", "@ops"]);
    assert_eq!((found.handles, found.refs), (vec![], vec![]));
    assert_eq!(scan("[[ab\u{202e}c]]").notes, Vec::<String>::new());
    assert_eq!(scan(&format!("[[{}]]", "x".repeat(200))).notes, Vec::<String>::new());
}

#[test]
fn threat_c5_no_letter_and_no_invisible_character_inside_or_behind_a_mention_lets_it_route() {
    // Kana, ideographs, Hangul: written without spaces.
    let is_unspaced = |c: char| {
        matches!(c, '\u{3041}'..='\u{3096}' | '\u{30a1}'..='\u{30fc}' | '\u{3400}'..='\u{9fff}' | '\u{ac00}'..='\u{d7a3}'
            | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{323af}')
    };
    let is_foreign = |c: &char| !c.is_ascii() && (is_hidden(*c) || c.is_alphanumeric());
    for c in ('\0'..=char::MAX).filter(is_foreign) {
        for text in [format!("@ad{c}min"), format!("@admin{c}"), format!("@{c}admin")] {
            let found = scan(&text).handles;
            assert!(!found.contains(&"admin".to_owned()) || is_unspaced(c), "{text:?} names {found:?}");
        }
    }
}

/// Pieces of text and the handle that each names, when it names one.
fn piece() -> impl Strategy<Value = (String, Option<String>)> {
    let handle = "[a-z0-9][a-z0-9-]{0,20}[a-z0-9]";
    prop_oneof![
        handle.prop_map(|h| (format!("@{h}"), Some(h))),
        (handle, "[,.:;!?)]").prop_map(|(h, end)| (format!("@{h}{end}"), Some(h))),
        handle.prop_map(|h| (format!("**@{h}**"), Some(h))),
        handle.prop_map(|h| (format!("(@{h})"), Some(h))),
        handle.prop_map(|h| (format!("`@{h}`"), None)),
        handle.prop_map(|h| (format!("{h}@{h}"), None)),
        handle.prop_map(|h| (format!("{h}@{h}.dev"), None)),
        handle.prop_map(|h| (format!("git@{h}:x/{h}.git"), None)),
        handle.prop_map(|h| (format!("https://x.dev/@{h}?a=@{h}"), None)),
        handle.prop_map(|h| (format!("@{h}/{h}"), None)),
        handle.prop_map(|h| (format!("\n\n```\n@{h}\n```\n\n"), None)),
        handle.prop_map(|h| (format!("\n\n> @{h}\n\n"), None)),
        handle.prop_map(|h| (format!("@{h}\u{200b}"), None)),
        handle.prop_map(|h| (format!("@{h}\u{430}"), None)),
        handle.prop_map(|h| (format!("[[{h} @{h}]]"), None)),
        "[a-z]{1,8}".prop_map(|word| (word, None)),
    ]
}

proptest! {
    #[test]
    fn threat_c6_only_prose_names(pieces in prop::collection::vec(piece(), 0..20)) {
        let text = pieces.iter().map(|(text, _)| text.as_str()).collect::<Vec<_>>().join(" ");
        let mut named: Vec<String> = Vec::new();
        for handle in pieces.iter().filter_map(|(_, handle)| handle.clone()) {
            if !named.contains(&handle) {
                named.push(handle);
            }
        }
        // A quote or fence ends a paragraph, and a word behind white space at a line's start is no code here.
        prop_assert_eq!(scan(&text).handles, named, "in {:?}", text);
    }

    #[test]
    fn threat_c5_a_named_handle_stands_in_the_text_between_boundaries(text in "[@#\\[\\]a-c0-2 ./:_`*\\-\u{200b}\u{430}\n>~]{0,60}") {
        let Mentions { handles, .. } = scan(&text);
        for handle in handles {
            prop_assert!(handle.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'));
            let wanted = format!("@{handle}");
            prop_assert!(text.match_indices(&wanted).any(|(at, _)| {
                let next = text[at + wanted.len()..].chars().next();
                !next.is_some_and(|c| c.is_alphanumeric() || c == '-')
            }), "{:?} in {:?}", handle, text);
        }
    }

    #[test]
    fn any_text_is_read(text in any::<String>()) {
        let _ = scan(&text);
    }
}
