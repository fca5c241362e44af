//! Who gets what.

use proptest::prelude::*;

use super::*;

fn finished(triggers: &[MemberId], hops: u32) -> Origin<'_> {
    Origin::Finished { status: Status::Completed, triggers, hops, round: None }
}

#[test]
fn mentions_are_routed_in_order_once_and_never_to_their_author() {
    let team = team();
    let decision = team.post("ana", "@chief @ana @ops, and @ben; again @chief @nobody");
    assert_eq!(team.handles(&decision.routed.to), ["chief", "ops", "ben"]);
    assert!(decision.routed.to.iter().all(|d| d.why == Why::Mention && d.hops == 0));
    assert_eq!(decision.routed.unknown, ["nobody"]);
}

#[test]
fn everyone_but_subagents_and_the_system_can_be_addressed() {
    let decision = team().post("ana", "@tel @slack @ben @ops @sub @system @all @here");
    assert_eq!(team().handles(&decision.routed.to), ["tel", "slack", "ben", "ops"]);
    assert_eq!(decision.routed.unknown, ["sub", "system", "all", "here"]);
}

#[test]
fn an_untagged_post_goes_to_the_latest_agent_else_the_starting_one_else_the_only_one() {
    let mut team = team();
    team.latest = Some(team.id("chief"));
    team.starting = Some(team.id("ops"));
    let to = |team: &Roster, author: &str| {
        let decision = team.post(author, "and now?");
        assert!(decision.routed.to.iter().all(|d| d.why == Why::Default && d.hops == 0));
        team.handles(&decision.routed.to)
    };
    for author in ["ana", "tel", "slack"] {
        assert_eq!(to(&team, author), ["chief"]);
    }
    // It was removed since.
    team.latest = Some(MemberId(99));
    assert_eq!(to(&team, "ana"), ["ops"]);
    team.starting = None;
    assert_eq!(to(&team, "ana"), Vec::<&str>::new());
    let alone = Roster::new(&[("ana", Human), ("ops", Agent)]);
    assert_eq!(to(&alone, "ana"), ["ops"]);
}

#[test]
fn a_voice_talks_with_its_agent() {
    let mut team = team();
    team.latest = Some(team.id("chief"));
    let input = RouteInput {
        message: MessageId(1),
        author: Some(team.id("tel")),
        author_kind: Voice,
        origin: Origin::Post,
        untagged_to: Some(team.id("ops")),
        text: "hello",
    };
    assert_eq!(team.handles(&route(&team, &input).expect("routed").routed.to), ["ops"]);
    let tagged = RouteInput { text: "@admin hello", ..input };
    assert_eq!(team.handles(&route(&team, &tagged).expect("routed").routed.to), ["admin"]);
}

#[test]
fn case_x11_untagged_text_of_agents_starts_nobody() {
    let mut team = team();
    team.latest = Some(team.id("chief"));
    team.starting = Some(team.id("chief"));
    for origin in [Origin::MidTurn { hops: 0 }, Origin::Post, finished(&[], 0)] {
        let decision = team.route("ops", origin, "I look at the tests").expect("routed");
        assert_eq!(decision, Decision::default());
    }
    // Four agents, no mention, nobody spoke before: a person starts nobody, either.
    team.latest = None;
    team.starting = None;
    assert_eq!(team.post("ana", "hello all").routed.to, []);
}

#[test]
fn a_final_text_goes_to_each_that_asked() {
    let team = team();
    let asked = [team.id("ana"), team.id("chief"), team.id("ana"), team.id("ops"), MemberId(99), team.id("sub")];
    let decision = team.route("ops", finished(&asked, 2), "done").expect("routed");
    assert_eq!(team.handles(&decision.routed.to), ["ana", "chief"]);
    assert!(decision.routed.to.iter().all(|d| d.why == Why::Reply && d.hops == 3));
    // Two that asked are no round: nobody asked them together.
    let decision = team.route("ops", finished(&[team.id("chief"), team.id("admin")], 0), "done").expect("routed");
    assert_eq!(decision.routed.round, None);
    // Whom it names takes the place of who asked; a name nobody has does not.
    let decision = team.route("ops", finished(&asked, 0), "@ops-2 go on, @ops").expect("routed");
    assert_eq!(team.handles(&decision.routed.to), ["ops-2"]);
    let decision = team.route("ops", finished(&asked[..1], 0), "@ops-9 go on").expect("routed");
    assert_eq!((team.handles(&decision.routed.to), decision.routed.unknown), (vec!["ana"], vec!["ops-9".to_owned()]));
}

#[test]
fn what_says_nothing_goes_to_nobody() {
    let team = team();
    let asked = [team.id("ana")];
    for text in ["", "  \n", "<ACK_OK>", " <ACK_OK>\n", "\u{a0}<ACK_OK>\u{3000}"] {
        assert_eq!(team.route("ops", finished(&asked, 0), text), Ok(Decision::default()), "for {text:?}");
    }
    assert_eq!(team.post("ana", "<ACK_OK>"), Decision::default());
    assert_ne!(team.route("ops", finished(&asked, 0), "<ACK_OK> but"), Ok(Decision::default()));
    for status in [Status::Failed, Status::Interrupted] {
        let origin = Origin::Finished { status, triggers: &asked, hops: 0, round: None };
        assert_eq!(team.route("ops", origin, "@chief"), Ok(Decision::default()));
    }
    for author in ["sub", "system"] {
        assert_eq!(team.route(author, Origin::Post, "@ops"), Ok(Decision::default()));
    }
    let home = RouteInput {
        message: MessageId(1),
        author: None,
        author_kind: Human,
        origin: Origin::Post,
        untagged_to: None,
        text: "@ops",
    };
    assert_eq!(route(&team, &home), Ok(Decision::default()));
}

#[test]
fn a_post_of_files_alone_goes_where_an_untagged_one_goes() {
    let alone = Roster::new(&[("ana", Human), ("ops", Agent)]);
    assert_eq!(alone.handles(&alone.post("ana", "").routed.to), ["ops"]);
}

#[test]
fn a_message_that_names_two_agents_opens_a_round() {
    let round = |author: &str, origin, text: &str| team().route(author, origin, text).expect("routed").routed.round;
    let opened = Some(Round { root: MessageId(7), number: 1 });
    assert_eq!(round("ana", Origin::Post, "@ops @chief"), opened);
    assert_eq!(round("ops", Origin::MidTurn { hops: 0 }, "@ops-2 @chief"), opened);
    assert_eq!(round("ops", finished(&[], 0), "@ops-2 @chief"), opened);
    assert_eq!(round("ana", Origin::Post, "@ops @ben"), None);
    assert_eq!(round("ops", finished(&[], 0), "@ops @chief"), None);
}

#[test]
fn threat_c7_two_agents_that_echo_each_other_are_held_after_16_hops() {
    let team = team();
    let (mut author, mut other) = ("ana", "ops");
    let mut origin = Origin::Post;
    let mut trigger = [team.id("ana")];
    let mut ran = 0;
    loop {
        let decision = team.route(author, origin, &format!("@{other} go")).expect("routed");
        let [delivery] = decision.routed.to[..] else { panic!("one recipient") };
        if let [held] = &decision.held[..] {
            assert_eq!(held.member, delivery.member);
            assert_eq!(held.reason, "17 hops from agent to agent since a person spoke; the brake is 16");
            break;
        }
        ran += 1;
        trigger = [team.id(if author == "ana" { "ops" } else { author })];
        let next = if other == "ops" { "chief" } else { "ops" };
        (author, other) = (other, next);
        origin = if ran % 2 == 0 { Origin::MidTurn { hops: delivery.hops } } else { finished(&trigger, delivery.hops) };
    }
    assert_eq!(ran, 17, "the person's own message and sixteen hops");
    assert_eq!(trigger.len(), 1);
}

#[test]
fn threat_c7_the_channels_brake_is_lower_and_people_are_never_held() {
    let mut team = team();
    team.brake = Some(2);
    let held = |team: &Roster, hops| {
        let decision = team.route("ops", Origin::MidTurn { hops }, "@chief @ana").expect("routed");
        team.handles(&decision.routed.to).len() * 10 + decision.held.len()
    };
    assert_eq!([0, 1, 2, 3].map(|hops| held(&team, hops)), [20, 20, 21, 21]);
    team.brake = Some(1000);
    assert_eq!([15, 16, u32::MAX].map(|hops| held(&team, hops)), [20, 21, 21]);
    team.brake = Some(0);
    assert_eq!(held(&team, 0), 21);
    assert_eq!(team.post("ana", "@ops").held, []);
}

proptest! {
    #[test]
    fn threat_c7_only_posts_of_people_start_at_zero_hops(hops in 0_u32..40, text in "(@ops |@chief |@ana |x ){0,6}") {
        let team = team();
        let asked = [team.id("ana"), team.id("chief")];
        for origin in [Origin::MidTurn { hops }, finished(&asked, hops)] {
            let decision = team.route("ops", origin, &text).expect("few mentions");
            prop_assert!(decision.routed.to.iter().all(|d| d.hops == hops + 1));
            let agents = decision.routed.to.iter().filter(|d| team.member_kind(d.member) == Some(Agent)).count();
            prop_assert_eq!(decision.held.len(), if hops + 1 > brakes::HOPS_MAX { agents } else { 0 });
        }
    }

    #[test]
    fn case_x8_routing_says_the_same_twice_and_keeps_to_the_bounds(text in "([a-z@.#\\[\\] \n`>-]|@ops|@chief|@ana|a@ox\\.dev){0,80}") {
        let team = team();
        let before = text.clone();
        let decision = team.route("ana", Origin::Post, &text);
        prop_assert_eq!(&decision, &team.route("ana", Origin::Post, &text));
        prop_assert_eq!(before, text);
        if let Ok(decision) = decision {
            prop_assert!(decision.routed.to.len() <= brakes::MENTIONS_MAX);
            prop_assert!(decision.routed.unknown.len() <= UNKNOWN_MAX);
            prop_assert!(decision.routed.to.iter().all(|d| d.member != team.id("ana")));
        }
    }
}
