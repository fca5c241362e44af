//! Texts that are made to take long.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "how long a text takes is what is tested")]

use std::time::{Duration, Instant};

use super::super::mention::{SCAN_LEN_MAX, scan};
use super::*;

/// The longest post.
const POST_LEN: usize = 64 * 1024;

/// The time a text takes, the best of a few tries: other work on the box must not fail the test.
fn time(text: &str) -> Duration {
    let once = || {
        let start = Instant::now();
        std::hint::black_box(scan(text));
        start.elapsed()
    };
    (0..5).map(|_| once()).min().unwrap_or_default()
}

fn filled(len: usize, pattern: &str) -> String {
    pattern.repeat(len / pattern.len())
}

#[test]
fn threat_c6_ten_thousand_mentions_take_under_50_ms() {
    let different: String = (0..10_000).map(|n| format!("@m{n:05} ")).collect();
    assert_eq!(scan(&different).handles.len(), 10_000);
    for text in [different, "@ops ".repeat(10_000), "@ops".repeat(10_000), "@Ops ".repeat(10_000)] {
        assert!(time(&text) < Duration::from_millis(50), "{:?}", time(&text));
    }
}

#[test]
fn threat_c6_hostile_markdown_is_read_in_bounded_time() {
    for pattern in PATTERNS {
        let taken = time(&format!("@{}", filled(POST_LEN, pattern)));
        assert!(taken < Duration::from_millis(100), "{taken:?} for {pattern:?}");
    }
}

/// Each starts something that does not end.
const PATTERNS: [&str; 43] = [
    "[",
    "]",
    "[[",
    "[a](",
    "![",
    "](",
    "[a]: b\n",
    "[a][",
    "<",
    "<a ",
    "<!--",
    "<!",
    "<?",
    "<![CDATA[",
    "`",
    "` `` ",
    "```\n",
    "~",
    "*",
    "_",
    "*a_ ",
    "**a ",
    "> ",
    ">",
    "- ",
    "1. ",
    "\\",
    "&",
    "&#",
    "@",
    "@a",
    "@a.",
    "#",
    "#1",
    "://",
    "a:",
    "[[a",
    "@\u{200b}",
    "\u{202e}",
    "@a*",
    "![a](x \"",
    "[![",
    "@a`",
];

#[test]
fn threat_c6_hostile_markdown_of_several_parts_is_read_in_bounded_time() {
    for parts in PARTS {
        let text: String = parts.iter().map(|part| filled(POST_LEN / parts.len(), part)).collect();
        let taken = time(&text);
        assert!(taken < Duration::from_millis(100), "{taken:?} for {parts:?}");
        // Four times the text, not sixteen times the time.
        let text: String = parts.iter().map(|part| filled(4 * POST_LEN / parts.len(), part)).collect();
        let taken = time(&text);
        assert!(taken < Duration::from_millis(400), "{taken:?} for {parts:?}");
    }
}

/// What took the parser long, found by search: seconds for the longer texts.
const PARTS: [&[&str]; 7] = [
    &["![a](x \"", "[a]: b\n"],
    &["\t[a](x (é", "_<?\n"],
    &["(x '[a]", "~~~\n<"],
    &["[a](x '", "===\n#1"],
    &["[a](x ')", "*---\na(x ("],
    &["[a](x \\'", "*\r>' \n"],
    &["x \"a ===\n", "> ", " #1===\n"],
];

#[test]
fn texts_beyond_the_limit_are_read_up_to_it() {
    let text = format!("{}@ops @chief", "é".repeat(SCAN_LEN_MAX / 2 - 3));
    assert_eq!(scan(&text).handles, Vec::<String>::new());
    let text = format!("{} @ops {}", "a".repeat(1000), "é".repeat(SCAN_LEN_MAX));
    assert_eq!(scan(&text).handles, ["ops"]);
}

#[test]
fn threat_c6_ten_thousand_mentions_are_refused_in_a_post_and_cut_in_a_final_text() {
    let handles: Vec<&'static str> = (0..12).map(|n| &*format!("m{n:02}").leak()).collect();
    let mut members: Vec<_> = handles.iter().map(|handle| (*handle, Agent)).collect();
    members.push(("ana", Human));
    let roster = Roster::new(&members);
    let text: String = handles.iter().cycle().take(10_000).map(|handle| format!("@{handle} ")).collect();
    assert_eq!(roster.route("ana", Origin::Post, &text), Err(RouteError::TooManyMentions { count: 12 }));
    let turn = Origin::MidTurn { hops: 0 };
    assert_eq!(roster.route("m00", turn, &text), Err(RouteError::TooManyMentions { count: 11 }));

    let finished = Origin::Finished { status: Status::Completed, triggers: &[], hops: 0, round: None };
    let decision = roster.route("m00", finished, &text).expect("a turn that ended is never refused");
    assert_eq!(roster.handles(&decision.routed.to), handles[1..9]);
    assert_eq!(decision.over, [roster.id("m09"), roster.id("m10"), roster.id("m11")]);
}

#[test]
fn threat_c6_a_name_is_looked_up_once_and_again_only_without_its_hyphens() {
    struct Counting(std::cell::RefCell<Vec<String>>);
    impl RouteView for Counting {
        fn member_by_handle(&self, handle: &str) -> Option<(MemberId, MemberKind)> {
            self.0.borrow_mut().push(handle.to_owned());
            None
        }

        fn member_kind(&self, _: MemberId) -> Option<MemberKind> {
            None
        }

        fn latest_agent(&self) -> Option<MemberId> {
            None
        }

        fn starting_agent(&self) -> Option<MemberId> {
            None
        }

        fn only_agent(&self) -> Option<MemberId> {
            None
        }

        fn turn_brake(&self) -> Option<u32> {
            None
        }
    }
    let view = Counting(std::cell::RefCell::default());
    let (message, author, author_kind) = (MessageId(7), Some(MemberId(1)), Human);
    let text = "@ops @ops @chief- @lab";
    route(&view, &RouteInput { message, author, author_kind, origin: Origin::Post, untagged_to: None, text })
        .expect("nobody is named");
    assert_eq!(*view.0.borrow(), ["ops", "chief-", "chief", "lab"]);
}
