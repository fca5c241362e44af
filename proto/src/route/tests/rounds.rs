//! Rounds.

use super::*;

const ROUND: Round = Round { root: MessageId(3), number: 1 };

fn result<'a>(author: MemberId, text: &'a str) -> RoundResult<'a> {
    RoundResult { author, status: Status::Completed, hops: 0, text }
}

#[test]
fn results_in_a_round_reach_people_at_once_and_agents_not() {
    let team = team();
    let asked = [team.id("ana"), team.id("chief")];
    let origin = Origin::Finished { status: Status::Completed, triggers: &asked, hops: 0, round: Some(ROUND) };
    let decision = team.route("ops", origin, "I say A").expect("routed");
    assert_eq!(team.handles(&decision.routed.to), ["ana"]);
    assert_eq!(decision.routed.round, Some(ROUND));
    let decision = team.route("ops", origin, "@chief @admin @ben what do you say?").expect("routed");
    assert_eq!(team.handles(&decision.routed.to), ["ben"]);
    assert_eq!(decision.held, []);
}

#[test]
fn the_next_round_is_whom_completed_results_name() {
    let team = team();
    let failed = RoundResult { status: Status::Failed, ..result(team.id("admin"), "@ops-2") };
    let results = [
        RoundResult { hops: 4, ..result(team.id("ops"), "A. @chief @ops @ben?") },
        result(team.id("chief"), "B, @ops; `@admin`"),
        failed,
    ];
    let next = round_next(&team, ROUND, Some(team.id("ana")), &results);
    assert_eq!(team.handles(&next.to), ["chief", "ops"]);
    assert!(next.to.iter().all(|d| d.why == Why::Round && d.hops == 5));
    assert_eq!(next.round, Some(Round { root: MessageId(3), number: 2 }));
}

#[test]
fn results_that_name_no_agent_go_back_to_the_agent_that_asked() {
    let team = team();
    let results = [result(team.id("ops"), "A"), result(team.id("chief"), "B, @ben")];
    let next = round_next(&team, ROUND, Some(team.id("admin")), &results);
    assert_eq!((team.handles(&next.to), next.round), (vec!["admin"], None));
    assert!(next.to.iter().all(|d| d.why == Why::Reply && d.hops == 1));
    // A person has them already; who was removed gets nothing; nothing said is nothing to tell.
    assert_eq!(round_next(&team, ROUND, Some(team.id("ana")), &results), RoundNext::default());
    assert_eq!(round_next(&team, ROUND, Some(MemberId(99)), &results), RoundNext::default());
    let silent = [result(team.id("ops"), "<ACK_OK>"), result(team.id("chief"), "")];
    assert_eq!(round_next(&team, ROUND, Some(team.id("admin")), &silent), RoundNext::default());
}

#[test]
fn threat_c7_rounds_keep_to_the_brakes() {
    let team = team();
    let results = [RoundResult { hops: 16, ..result(team.id("ops"), "@chief @ops-2") }];
    let next = round_next(&team, ROUND, None, &results);
    assert_eq!((next.to.len(), next.held.len()), (2, 2));

    let handles: Vec<&'static str> = (0..12).map(|n| &*format!("m{n:02}").leak()).collect();
    let roster = Roster::new(&handles.iter().map(|handle| (*handle, Agent)).collect::<Vec<_>>());
    let results =
        [result(roster.id("m00"), "@m01 @m02 @m03 @m04 @m05 @m06"), result(roster.id("m01"), "@m07 @m08 @m09 @m00")];
    let next = round_next(&roster, ROUND, None, &results);
    assert_eq!((next.to.len(), next.over.len()), (brakes::MENTIONS_MAX, 2));
}
