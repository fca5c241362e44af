//! Corners of the home and of the resident that seeds reach seldom, each put there by hand.

use super::super::{
    ANSWER_LEN_MAX, CWD_LEN_MAX, Card, Effect, FILES_MAX, Input, MEMBERS_MAX, MODEL_LEN_MAX, Op, QUEUE_LEN_MAX,
    ROUND_WAIT_MS, TurnPhase,
};
use super::harness::{Act, approval, question};
use super::world::{ANA, World, post};
use crate::api::Code;
use crate::entry::{Attachment, Body, Post};
use crate::event::{Answer, Status};
use crate::id::{Hash, MessageId};
use crate::link::Message;

fn hang() -> Vec<Act> {
    vec![Act::Say("working".to_owned()), Act::Hang]
}

fn released(message: MessageId) -> Op {
    Op::Hold { message, release: true, may_run_twice: false }
}

fn dropped(message: MessageId) -> Op {
    Op::Hold { message, release: false, may_run_twice: false }
}

/// @elk's turn is held, because its box died while it worked. Gives the card.
fn held() -> (World, MessageId) {
    let mut world = World::new(1, 2);
    world.add("elk", 1);
    world.script("elk", hang());
    world.post("@elk work");
    world.run();
    world.crash_resident(1, false);
    world.heal_links();
    let [card] = world.holds()[..] else { panic!("one hold") };
    (world, card)
}

// ---- stops ----

#[test]
fn a_stop_before_the_harness_has_the_payload_keeps_it_from_getting_there() {
    for admitted in [false, true] {
        let mut world = World::new(1, 1);
        let elk = world.add("elk", 1);
        world.post("@elk work");
        world.sync_all();
        world.resident_hears(1);
        if admitted {
            world.admit(1);
        }
        world.ask(ANA, Op::MemberInterrupt(elk));
        world.sync_all();
        world.resident_hears(1);
        world.run();
        assert!(world.oracle.starts.is_empty(), "admitted: {admitted}");
        assert_eq!(world.finished()[0].1, Status::Interrupted);
        world.check_quiet();
        world.check_forgotten();
    }
}

#[test]
fn a_stop_whose_confirmation_is_lost_still_ends_the_turn() {
    let mut world = World::new(1, 1);
    let elk = world.add("elk", 1);
    world.post("@elk work");
    world.sync_all();
    world.resident_hears(1);
    world.ask(ANA, Op::MemberInterrupt(elk));
    world.sync_all();
    world.resident_hears(1);
    world.cut(1);
    world.heal();
    assert!(world.oracle.starts.is_empty());
    assert_eq!(world.finished()[0].1, Status::Interrupted);
    world.check_forgotten();
}

#[test]
fn a_turn_that_was_to_stop_is_not_tried_again() {
    let mut world = World::new(1, 1);
    let elk = world.add("elk", 1);
    world.post("@elk work");
    world.sync_all();
    world.cut(1);
    world.does(Op::MemberInterrupt(elk)).expect("recorded");
    world.heal();
    assert!(world.oracle.starts.is_empty(), "it never arrived, and shall not");
    assert_eq!(world.finished()[0].1, Status::Interrupted);
    assert_eq!(world.count("turn-started"), 1);
}

#[test]
fn a_held_turn_is_decided_and_not_interrupted() {
    let (mut world, card) = held();
    let elk = world.id("elk");
    let refused = world.does(Op::MemberInterrupt(elk)).expect_err("there is nobody to stop");
    assert_eq!(refused.code, Code::Conflict);
    assert!(refused.hint.contains(&card.to_string()), "{}", refused.hint);
    world.does(Op::MemberKill(elk)).expect("killed");
    assert_eq!(world.count("stop-requested"), 0);
    assert_eq!(world.holds(), [card], "it stays held");
}

#[test]
fn a_kill_ends_the_turn_and_keeps_the_queue() {
    let mut world = World::new(1, 1);
    let elk = world.add("elk", 1);
    world.script("elk", hang());
    world.post("@elk one");
    world.run();
    let second = world.post("@elk two");
    world.does(Op::MemberKill(elk)).expect("killed");
    assert_eq!(world.finished()[0].1, Status::Interrupted);
    assert_eq!(world.oracle.starts.len(), 1, "nothing starts");
    world.does(Op::MemberRevive(elk)).expect("revived");
    assert_eq!(world.oracle.starts[1].messages, [second]);
}

#[test]
fn a_kill_that_met_no_link_is_repeated() {
    let mut world = World::new(1, 1);
    let elk = world.add("elk", 1);
    world.cut(1);
    world.does(Op::MemberKill(elk)).expect("killed");
    world.connect(1);
    world.home_hears(1);
    world.sync_all();
    let kills = world.links[1].to_resident.iter().filter(|(message, _)| matches!(message, Message::Kill { .. }));
    assert_eq!(kills.count(), 1);
}

// ---- members that leave ----

#[test]
fn removing_a_member_stops_its_turn_and_starts_nothing() {
    let mut world = World::new(1, 1);
    let elk = world.add("elk", 1);
    world.add("fox", 1);
    world.script("elk", vec![Act::Say("a".to_owned()), Act::Hang]);
    world.post("@elk one");
    world.run();
    world.post("@elk two");
    world.does(Op::MemberRemove(elk)).expect("removed");
    assert_eq!(world.finished()[0].1, Status::Interrupted);
    assert_eq!(world.oracle.starts.len(), 1);
    world.does(Op::MemberResume(elk)).expect_err("it has left");
    world.check_quiet();
}

#[test]
fn a_turn_that_ends_after_its_member_left_starts_nobody() {
    let mut world = World::new(1, 1);
    let elk = world.add("elk", 1);
    world.add("fox", 1);
    world.says("elk", "@fox take over");
    world.post("@elk one");
    world.talk();
    world.admit(1);
    world.talk();
    let id = world.boxes[1].turns.keys().next().copied().expect("a turn");
    while world.play(1, id) {}
    world.ask(ANA, Op::MemberRemove(elk));
    world.run();
    assert_eq!(world.finished()[0].1, Status::Completed, "it was quicker");
    assert_eq!(world.oracle.starts.len(), 1);
    world.check_quiet();
}

#[test]
fn removing_a_member_whose_turn_is_held_leaves_no_card() {
    let (mut world, _) = held();
    let elk = world.id("elk");
    world.post("@elk more");
    world.does(Op::MemberRemove(elk)).expect("removed");
    assert!(world.core().state().cards.is_empty());
    assert!(world.core().state().turns.is_empty());
    assert_eq!(world.oracle.starts.len(), 1);
    world.check_quiet();
    world.check_forgotten();
}

#[test]
fn messages_of_who_has_left_are_still_read() {
    let mut world = World::new(1, 2);
    let fox = world.add("fox", 2);
    world.add("elk", 1);
    world.cut(1);
    world.says("fox", "@elk what I found");
    world.post("@fox look");
    world.run();
    world.does(Op::MemberRemove(fox)).expect("removed");
    world.heal();
    let payload = String::from_utf8_lossy(&world.oracle.starts[1].payload).into_owned();
    assert!(payload.contains("from=@fox (agent)") && payload.contains("what I found"), "{payload}");
    world.check_quiet();
}

// ---- holds ----

#[test]
fn a_release_while_the_box_is_away_waits_for_it_and_runs_once() {
    let (mut world, card) = held();
    world.cut(1);
    world.does(released(card)).expect("released");
    assert!(world.holds().is_empty());
    assert_eq!(world.count("turn-started"), 1, "no attempt is made that cannot arrive");
    world.crash_home(false);
    world.heal();
    assert_eq!(world.oracle.starts.len(), 2);
    assert!(world.holds().is_empty(), "nobody is asked again");
    assert_eq!(world.finished().len(), 1);
    world.check_forgotten();
}

#[test]
fn a_release_waits_for_who_is_paused_or_killed() {
    for (stop, go) in
        [(Op::MemberPause as fn(_) -> _, Op::MemberResume as fn(_) -> _), (Op::MemberKill, Op::MemberRevive)]
    {
        let (mut world, card) = held();
        let elk = world.id("elk");
        world.does(stop(elk)).expect("done");
        world.does(released(card)).expect("released");
        world.cut(1);
        world.heal_links();
        assert_eq!(world.oracle.starts.len(), 1, "nothing starts");
        assert!(world.holds().is_empty());
        world.does(go(elk)).expect("done");
        assert_eq!(world.oracle.starts.len(), 2);
        world.check_quiet();
    }
}

#[test]
fn a_released_turn_that_is_stopped_before_it_is_tried_again_ends() {
    let (mut world, card) = held();
    let elk = world.id("elk");
    world.cut(1);
    world.does(released(card)).expect("released");
    world.does(Op::MemberInterrupt(elk)).expect("stopped");
    assert_eq!(world.finished()[0].1, Status::Interrupted);
    world.heal();
    assert_eq!(world.oracle.starts.len(), 1);
    world.check_quiet();
    world.check_forgotten();
}

#[test]
fn a_hold_that_is_dropped_while_the_box_is_away_is_forgotten_there_too() {
    let (mut world, card) = held();
    world.cut(1);
    world.does(dropped(card)).expect("dropped");
    world.post("@elk next");
    world.heal();
    assert_eq!(world.oracle.starts.len(), 2);
    world.check_forgotten();
}

#[test]
fn that_a_prompt_may_be_known_is_not_forgotten_on_the_way() {
    let (mut world, card) = held();
    world.does(released(card)).expect("released");
    let flags = |world: &World| world.oracle.starts.iter().map(|start| start.again).collect::<Vec<_>>();
    assert_eq!(flags(&world), [false, true]);
    let (mut world, card) = held();
    world.ask(ANA, released(card));
    world.sync_all();
    world.cut(1);
    world.crash_home(false);
    world.heal();
    assert_eq!(world.oracle.starts[1].id.attempt.0, 3, "the second attempt was lost on its way");
    assert_eq!(flags(&world), [false, true]);
}

#[test]
fn an_end_that_turns_up_after_all_settles_a_hold() {
    let mut world = World::new(1, 1);
    world.add("elk", 1);
    world.says("elk", "the answer");
    world.post("@elk work");
    world.talk();
    world.admit(1);
    world.talk();
    let id = world.boxes[1].turns.keys().next().copied().expect("a turn");
    // The node is stopping, says so, and its harness ends all the same.
    world.feed_resident(1, crate::turn::Input::Stopped(id));
    world.cut(1);
    world.heal_links();
    assert_eq!(world.holds().len(), 1);
    world.cut(1);
    while world.play(1, id) {}
    world.crash_resident(1, false);
    world.heal();
    assert!(world.holds().is_empty());
    assert_eq!(world.finished()[0].2, "the answer");
    assert_eq!(world.oracle.starts.len(), 1);
    world.check_forgotten();
}

#[test]
fn a_last_event_whose_box_has_lost_everything_is_no_end_but_a_question() {
    let mut world = World::new(1, 1);
    world.add("elk", 1);
    world.says("elk", "the answer");
    world.post("@elk work");
    world.talk();
    world.admit(1);
    world.talk();
    let id = world.boxes[1].turns.keys().next().copied().expect("a turn");
    while world.play(1, id) {}
    // The events arrive, the news of the end does not, and the box's disk is replaced.
    while world.pump(1, id) {}
    while world.home_hears(1) {}
    world.sync_all();
    world.crash_resident(1, true);
    world.lose_journal(1);
    world.heal();
    assert_eq!(world.holds().len(), 1, "only that box could sign how it ended: a person decides");
    assert!(world.finished().is_empty());
    assert_eq!(world.oracle.starts.len(), 1);
    world.check_quiet();
}

#[test]
fn a_refusal_is_the_end_of_an_attempt_even_of_one_that_was_accepted() {
    let mut world = World::new(1, 1);
    world.add("elk", 1);
    world.script("elk", hang());
    world.post("@elk work");
    world.run();
    let id = world.boxes[1].turns.keys().next().copied().expect("a turn");
    let node = world.boxes[1].node;
    let message = Message::Refused { id, code: "limit".to_owned(), message: "not here".to_owned() };
    world.feed_home(Input::Frame { node, message, tail: Vec::new() });
    world.sync_all();
    assert_eq!(world.finished()[0].1, Status::Failed);
    world.cut(1);
    world.heal();
    assert!(world.boxes[1].turns.is_empty(), "what ran on is stopped when the link is back");
    assert_eq!(world.finished().len(), 1);
    world.check_forgotten();
}

#[test]
fn an_acknowledgement_that_is_lost_is_asked_for_again() {
    let mut world = World::new(1, 1);
    world.add("elk", 1);
    world.post("@elk work");
    while world.finished().is_empty() {
        world.talk_once();
    }
    world.cut(1);
    world.heal();
    assert_eq!(world.finished().len(), 1);
    world.check_forgotten();
}

// ---- questions ----

#[test]
fn a_question_in_the_journal_without_its_card_gets_one_after_a_crash() {
    let mut world = World::new(1, 1);
    world.add("elk", 1);
    world.script("elk", vec![Act::Ask(question("q", &["yes"])), Act::End(Status::Completed, "so".to_owned())]);
    world.post("@elk work");
    world.talk();
    world.admit(1);
    world.talk();
    let id = world.boxes[1].turns.keys().next().copied().expect("a turn");
    while world.play(1, id) {}
    while world.pump(1, id) {}
    while world.home_hears(1) {}
    // The journal is on disk when the power goes, the entry is not.
    while let Some(step) = world.home.pending.pop_front() {
        for append in step.journals {
            let file = world.home.runs.entry((append.run, append.attempt)).or_default();
            file.bytes.extend_from_slice(&append.lines);
            file.sync();
        }
    }
    world.crash_home(false);
    assert_eq!(world.count("card-raised"), 0);
    world.heal();
    assert_eq!(world.count("card-raised"), 1);
    assert_eq!(world.finished()[0].2, "so");
}

#[test]
fn a_question_is_raised_once_however_often_its_event_comes() {
    let mut world = World::new(1, 1);
    world.add("elk", 1);
    world.script("elk", vec![Act::Ask(question("q", &["yes"])), Act::Ask(question("q2", &["no"]))]);
    world.post("@elk work");
    world.run();
    for _ in 0..3 {
        world.crash_home(true);
        world.heal_links();
    }
    assert_eq!(world.count("card-raised"), 1);
    world.does(Op::Answer(world.questions()[0], Answer { choice: vec!["yes".to_owned()], text: None })).expect("ok");
    world.crash_home(true);
    world.heal_links();
    assert_eq!(world.count("card-raised"), 2);
    assert_eq!(world.questions().len(), 1);
}

#[test]
fn the_same_question_of_the_next_attempt_is_answered_too() {
    let mut world = World::new(1, 1);
    world.add("elk", 1);
    for _ in 0..2 {
        world.script("elk", vec![Act::Ask(approval("a", "make")), Act::Say("made".to_owned()), Act::Hang]);
    }
    world.post("@elk work");
    world.run();
    let allow = || Answer { choice: vec!["allow".to_owned()], text: None };
    world.does(Op::Answer(world.questions()[0], allow())).expect("ok");
    world.crash_resident(1, false);
    world.heal_links();
    world.does(released(world.holds()[0])).expect("released");
    let [card] = world.questions()[..] else { panic!("asked again") };
    world.does(Op::Answer(card, allow())).expect("ok");
    assert_eq!(world.oracle.answers.len(), 2, "both attempts heard their answer");
}

// ---- events ----

#[test]
fn events_that_overlap_what_is_known_are_not_lost() {
    let mut world = World::new(1, 1);
    world.add("elk", 1);
    world.script("elk", hang());
    world.post("@elk work");
    world.talk();
    world.admit(1);
    world.talk();
    let id = world.boxes[1].turns.keys().next().copied().expect("a turn");
    while world.play(1, id) {}
    let lines = world.boxes[1].runs[&id].lines().map(<[u8]>::to_vec).collect::<Vec<_>>();
    let node = world.boxes[1].node;
    for (first, upto) in [(0, 1), (0, 2), (1, 2)] {
        let tail = lines[first..upto].concat();
        let message = Message::Events { id, first: first as u64 };
        world.feed_home(Input::Frame { node, message, tail });
    }
    assert_eq!(world.core().run(id.run).expect("a run").events(), 2);
    world.check_journals();
}

// ---- rounds ----

#[test]
fn a_round_whose_next_is_over_the_brake_waits_for_a_person() {
    let mut world = World::new(1, 2);
    world.add("elk", 1);
    world.add("gnu", 2);
    world.set_brake(1);
    world.heal_links();
    for _ in 0..3 {
        world.says("elk", "@gnu and you?");
        world.says("gnu", "@elk and you?");
    }
    world.post("@elk @gnu discuss");
    world.run();
    // A person's message and one hop run; what the second round leads to is held.
    assert_eq!(world.oracle.starts.len(), 4);
    assert_eq!(world.count("round-closed"), 2);
    assert_eq!(world.holds().len(), 2);
    assert!(world.core().state().rounds.is_empty(), "no round waits for what is held");
    let before = world.oracle.starts.len();
    for card in world.holds() {
        world.does(released(card)).expect("released");
    }
    assert_eq!(world.oracle.starts.len(), before + 2);
    world.check_quiet();
}

#[test]
fn a_round_does_not_wait_for_who_was_removed() {
    let mut world = World::new(1, 2);
    world.add("elk", 1);
    let gnu = world.add("gnu", 2);
    world.cut(2);
    world.says("elk", "mine");
    world.post("@elk @gnu your numbers?");
    world.run();
    assert_eq!(world.count("round-closed"), 0);
    world.does(Op::MemberRemove(gnu)).expect("removed");
    assert_eq!(world.count("round-closed"), 1);
    world.heal();
    world.check_quiet();
}

#[test]
fn a_round_waits_ten_minutes_for_who_cannot_run_and_goes_on_without_them() {
    for away in [Op::MemberPause as fn(_) -> _, Op::MemberKill] {
        let mut world = World::new(1, 2);
        world.add("elk", 1);
        let gnu = world.add("gnu", 2);
        world.does(away(gnu)).expect("done");
        world.says("elk", "mine");
        world.post("@elk @gnu your numbers?");
        world.run();
        let due = world.core().poll_timeout().expect("a deadline");
        assert_eq!(due - world.now.mono, ROUND_WAIT_MS);
        world.now.mono = due;
        world.feed_home(Input::Timeout);
        world.run();
        assert_eq!(world.count("round-closed"), 1);
        // The one that was late answers as anybody does: to whom it names.
        world.says("gnu", "@elk I am late");
        world.does(Op::MemberRevive(gnu)).expect("done");
        world.does(Op::MemberResume(gnu)).expect("done");
        assert_eq!(world.oracle.starts.len(), 3);
        assert_eq!(world.oracle.starts[2].member, world.id("elk"));
        world.check_quiet();
    }
}

#[test]
fn a_paused_member_that_still_works_is_waited_for() {
    let mut world = World::new(1, 2);
    world.add("elk", 1);
    let gnu = world.add("gnu", 2);
    world.script("gnu", hang());
    world.post("@elk @gnu your numbers?");
    world.run();
    world.does(Op::MemberPause(gnu)).expect("paused");
    assert_eq!(world.core().poll_timeout(), None);
}

#[test]
fn two_rounds_at_once_keep_their_results_apart() {
    let mut world = World::new(1, 2);
    world.add("elk", 1);
    world.add("gnu", 2);
    for n in 1..3 {
        world.says("elk", &format!("elk {n}"));
        world.says("gnu", &format!("gnu {n}"));
    }
    let roots = [world.post("@elk @gnu first"), world.post("@gnu @elk second")];
    world.run();
    let texts = world.finished().into_iter().map(|(run, _, text)| (run, text)).collect::<Vec<_>>();
    let text = |run: &MessageId| texts.iter().find(|(of, _)| of == run).map_or("", |(_, text)| text.as_str());
    let closed = world.bodies().filter_map(|body| match body {
        Body::RoundClosed { message, results, .. } => Some((*message, results.iter().map(text).collect::<Vec<_>>())),
        _ => None,
    });
    let closed = closed.collect::<Vec<_>>();
    assert_eq!(closed, [(roots[0], vec!["elk 1", "gnu 1"]), (roots[1], vec!["gnu 2", "elk 2"])]);
    assert_eq!(world.oracle.starts.len(), 4, "a batch never mixes rounds");
}

#[test]
fn the_results_of_a_round_stand_alone_in_a_batch() {
    let mut world = World::new(1, 2);
    world.add("ox", 0);
    world.add("elk", 1);
    world.add("gnu", 2);
    // @ox opens a round, and works on something else when its results come back to it.
    world.says("ox", "@elk @gnu your numbers?");
    world.script("ox", hang());
    world.says("elk", "5");
    world.says("gnu", "7");
    world.post("@ox ask them");
    world.post("@ox and then this");
    world.run();
    world.post("@ox something else");
    world.run();
    let ox = world.id("ox");
    let queue = world.member("ox").queue.iter().map(|queued| queued.results.len()).collect::<Vec<_>>();
    assert!(queue.contains(&2), "the results wait: {queue:?}");
    world.does(Op::MemberInterrupt(ox)).expect("stopped");
    world.heal();
    let sizes = world.bodies().filter_map(|body| match body {
        Body::TurnStarted { member, batch, .. } if *member == ox => Some(batch.len()),
        _ => None,
    });
    let sizes = sizes.collect::<Vec<_>>();
    assert!(sizes.iter().all(|size| *size == 1), "{sizes:?}");
}

// ---- a box that may never come back ----

#[test]
fn a_turn_whose_box_is_away_can_be_given_up() {
    let mut world = World::new(1, 1);
    world.add("elk", 1);
    world.script("elk", hang());
    world.says("elk", "second");
    let first = world.post("@elk work");
    world.run();
    let second = world.post("@elk then this");
    let run = world.core().state().turns.keys().next().copied().expect("a turn");
    assert_eq!(world.does(dropped(run)).expect_err("it can be asked").code, Code::NotFound);
    world.cut(1);
    assert_eq!(world.does(released(run)).expect_err("it is not held").code, Code::NotFound);
    world.does(dropped(run)).expect("given up");
    assert!(world.core().state().turns.is_empty() && world.core().state().cards.is_empty());
    // When it comes back after all, what still runs is stopped, and the next waits for that.
    world.heal_links();
    let batches = world.oracle.starts.iter().map(|start| start.messages.clone()).collect::<Vec<_>>();
    assert_eq!(batches, [vec![first], vec![second]]);
    assert_eq!(world.finished().len(), 1);
    assert_eq!(world.finished()[0].2, "second");
    world.check_quiet();
}

#[test]
fn removing_a_member_whose_box_is_away_ends_its_turn() {
    let mut world = World::new(1, 2);
    let elk = world.add("elk", 1);
    world.add("gnu", 2);
    world.script("elk", hang());
    world.says("gnu", "mine");
    world.post("@elk @gnu compare");
    world.run();
    world.cut(1);
    world.does(Op::MemberRemove(elk)).expect("removed");
    assert!(world.core().state().turns.is_empty());
    assert_eq!(world.count("round-closed"), 1);
    world.heal();
    assert!(world.boxes[1].turns.is_empty());
    world.check_quiet();
}

// ---- a log that went back ----

#[test]
fn a_log_from_before_the_end_runs_nothing_twice() {
    for journals in [false, true] {
        let mut world = World::new(1, 1);
        world.add("elk", 1);
        world.says("elk", "the answer");
        world.post("@elk work");
        world.run();
        world.crash_home(false);
        let started = world.bodies().position(|body| matches!(body, Body::TurnStarted { .. })).expect("a start");
        world.restore_log(started + 1);
        if !journals {
            world.home.runs.clear();
        }
        world.heal();
        assert_eq!(world.oracle.starts.len(), 1);
        assert_eq!(world.holds().len(), 1, "the box has forgotten what it signed: a person is asked");
        assert!(world.finished().is_empty());
        world.check_quiet();
    }
}

#[test]
fn a_log_from_before_the_next_try_takes_that_one_up() {
    let (mut world, card) = held();
    let before = world.home.log.entries.len();
    world.script("elk", hang());
    world.does(released(card)).expect("released");
    assert_eq!(world.oracle.starts.len(), 2);
    world.crash_home(false);
    world.restore_log(before);
    world.heal_links();
    world.does(released(card)).expect("released once more");
    assert_eq!(world.oracle.starts.len(), 2, "the second try still runs: it is known by its number and its payload");
    world.heal();
    assert_eq!(world.finished().len(), 1);
    world.check_quiet();
}

#[test]
fn a_number_that_is_given_twice_does_not_take_the_old_answer_for_the_new() {
    for (ends, cut) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut world = World::new(1, 1);
        world.add("elk", 1);
        let before = world.home.log.entries.len();
        world.script("elk", if ends { vec![Act::Say("old".to_owned())] } else { hang() });
        world.post("@elk the old question");
        while world.oracle.starts.is_empty() {
            world.talk_once();
        }
        world.crash_home(false);
        if ends {
            world.run();
        }
        world.restore_log(before);
        world.home.runs.clear();
        world.oracle.starts.clear();
        world.restart_home();
        world.connect(1);
        world.home_hears(1);
        world.says("elk", "new");
        world.post("@elk the new question");
        if cut {
            world.cut(1);
            world.home.runs.clear();
        }
        world.heal_links();
        let [card] = world.holds()[..] else { panic!("a person is asked") };
        world.does(released(card)).expect("released");
        assert_eq!(world.finished().len(), 1);
        assert_eq!(world.finished()[0].2, "new", "ends: {ends}, cut: {cut}");
        assert_eq!(world.oracle.starts.len(), 1);
    }
}

// ---- what frames can hold ----

#[test]
fn what_became_of_many_turns_is_asked_in_several_frames() {
    let mut world = World::new(1, 1);
    let node = Some(world.boxes[1].node);
    for n in 1..MEMBERS_MAX {
        let spec = super::world::spec(&format!("m{n}"), crate::entry::MemberKind::Agent, node);
        world.ask(ANA, Op::MemberAdd { spec, client: None });
    }
    for n in 1..MEMBERS_MAX {
        world.ask(ANA, post(&format!("@m{n} work"), None));
    }
    world.sync_all();
    assert_eq!(world.core().state().turns.len(), MEMBERS_MAX - 1);
    world.cut(1);
    world.connect(1);
    world.home_hears(1);
    let asked = world.links[1].to_resident.iter().filter_map(|(message, _)| match message {
        Message::Reconcile { attempts } => Some(attempts.len()),
        _ => None,
    });
    assert_eq!(asked.sum::<usize>(), MEMBERS_MAX - 1);
    world.run();
    assert_eq!(world.finished().len(), MEMBERS_MAX - 1);
}

#[test]
fn a_batch_with_very_many_files_comes_in_several_turns() {
    let mut world = World::new(1, 1);
    let elk = world.add("elk", 1);
    world.script("elk", hang());
    world.post("@elk work");
    world.run();
    let file = |n: usize| Attachment { name: "\"".repeat(255), size: u64::MAX >> 40, hash: Hash::of(&n.to_be_bytes()) };
    for n in 0..24 {
        let text = format!("@elk file {n} like #{} and #{}", 4 + n / 2, 3 + n / 3);
        let said = Post { text, attachments: (0..8).map(|i| file(8 * n + i)).collect(), ..Post::default() };
        world.ask(ANA, Op::Post { post: said, client: None, run: None });
    }
    world.sync_all();
    world.does(Op::MemberInterrupt(elk)).expect("stopped");
    world.run();
    let heads = world.oracle.starts.iter().map(|start| start.files.len()).collect::<Vec<_>>();
    assert!(heads.iter().all(|files| *files <= FILES_MAX), "{heads:?}");
    assert!(world.member("elk").queue.is_empty());
    assert_eq!(world.oracle.starts.iter().map(|start| start.messages.len()).sum::<usize>(), 25);
    world.check_quiet();
}

#[test]
fn settings_and_answers_fit_their_frames() {
    let mut world = World::new(1, 1);
    let elk = world.add("elk", 1);
    let configure =
        |model: Option<String>, cwd: Option<String>| Op::MemberConfigure { member: elk, model, policy: None, cwd };
    for (model, cwd, code) in [
        (Some("m".repeat(MODEL_LEN_MAX + 1)), None, Code::Limit),
        (None, Some("/".repeat(CWD_LEN_MAX + 1)), Code::Limit),
        (Some("a\nb".to_owned()), None, Code::Invalid),
        (None, Some("/a\0".to_owned()), Code::Invalid),
    ] {
        assert_eq!(world.does(configure(model.clone(), cwd.clone())).expect_err("refused").code, code);
        let mut spec = super::world::spec("fox", crate::entry::MemberKind::Agent, Some(world.boxes[1].node));
        (spec.model, spec.cwd) = (model, cwd);
        assert_eq!(world.does(Op::MemberAdd { spec, client: None }).expect_err("refused").code, code);
    }
    world.does(configure(Some("m".repeat(MODEL_LEN_MAX)), Some("\"".repeat(CWD_LEN_MAX)))).expect("as long as may be");
    world.script("elk", vec![Act::Ask(question("q", &["yes"])), Act::End(Status::Completed, "so".to_owned())]);
    world.post("@elk work");
    world.run();
    let card = world.questions()[0];
    let say = |text: String| Op::Answer(card, Answer { choice: vec!["yes".to_owned()], text: Some(text) });
    // A control character takes six bytes of JSON.
    let refused = world.does(say("\u{1}".repeat(ANSWER_LEN_MAX / 6))).expect_err("too long");
    assert_eq!(refused.code, Code::Limit);
    world.does(say("\u{1}".repeat(ANSWER_LEN_MAX / 6 - 100))).expect("just fits");
    assert_eq!(world.finished()[0].2, "so");
}

#[test]
fn very_many_rounds_that_end_at_once_are_closed_in_several_steps() {
    const ROUNDS: usize = 600;
    let batch_max = crate::log::BATCH_ENTRIES_MAX;
    for removed in [false, true] {
        let mut world = World::new(1, 2);
        world.add("elk", 1);
        let gnu = world.add("gnu", 2);
        world.cut(1);
        world.cut(2);
        for n in 0..ROUNDS {
            world.ask(ANA, post(&format!("@elk @gnu round {n}"), None));
        }
        world.sync_all();
        world.connect(1);
        world.run();
        assert_eq!(world.finished().len(), ROUNDS, "@elk has answered all of them");
        assert_eq!(world.core().state().rounds.len(), ROUNDS);
        if removed {
            world.ask(ANA, Op::MemberRemove(gnu));
        } else {
            // The home was down for a while, too: now all of them have waited as long.
            world.crash_home(false);
            world.restart_home();
            world.connect(1);
            world.run();
        }
        let mut steps = 0;
        while let Some(due) = world.core().poll_timeout() {
            world.now.mono = world.now.mono.max(due);
            world.feed_home(Input::Timeout);
            let longest = world.home.pending.iter().map(|step| step.entries.len()).max();
            assert!(longest.is_none_or(|len| len < batch_max), "{longest:?}");
            world.sync_all();
            steps += 1;
            assert!(steps < ROUNDS);
        }
        assert!(world.core().state().rounds.is_empty());
        assert_eq!(world.count("round-closed"), ROUNDS);
        world.heal();
        world.check_quiet();
    }
}

// ---- the rest ----

#[test]
fn a_clock_that_was_told_wrong_stops_no_channel() {
    let mut world = World::new(1, 1);
    world.add("elk", 1);
    world.home.lamport = crate::id::Lamport(0);
    world.post("@elk work");
    world.run();
    assert_eq!(world.finished().len(), 1);
    world.check_quiet();
}

#[test]
fn a_late_sync_of_an_earlier_try_s_journal_says_nothing_of_the_next_one_s() {
    let (mut world, card) = held();
    let run = world.core().state().turns.keys().next().copied().expect("a turn");
    world.script("elk", vec![Act::Say("a longer text than the first".to_owned()), Act::Hang]);
    world.ask(ANA, released(card));
    world.talk();
    world.admit(1);
    world.talk();
    let id = *world.boxes[1].turns.keys().next().expect("the next try");
    while world.play(1, id) {}
    while world.pump(1, id) {}
    while world.home_hears(1) {}
    world.sync_all();
    let length = world.core().run(run).expect("a run").length();
    assert!(length > 0);
    // Nothing of it is synced yet; the shell's news are of the journal before.
    let acks = |world: &World| {
        world.links[1].to_resident.iter().filter(|(message, _)| matches!(message, Message::EventsAck { .. })).count()
    };
    world.feed_home(Input::JournalSynced { run, attempt: crate::id::Attempt(1), length });
    assert_eq!(acks(&world), 0);
    world.sync_journal(run, id.attempt);
    assert_eq!(acks(&world), 1);
}

#[test]
fn the_answer_to_a_request_goes_before_what_it_started() {
    let mut world = World::new(1, 1);
    world.add("elk", 1);
    world.ask(ANA, post("@elk work", None));
    let step = world.home.pending.back().expect("a step");
    assert!(matches!(step.effects[..], [Effect::Reply(..), Effect::Send(..)]), "{:?}", step.effects);
}

#[test]
fn an_archived_channel_stops_what_runs_and_lets_the_rest_be_ended() {
    let mut world = World::new(1, 2);
    world.add("elk", 1);
    world.add("gnu", 2);
    world.script("elk", vec![Act::Ask(question("q", &["yes"])), Act::Hang]);
    world.script("gnu", hang());
    world.post("@elk work");
    world.post("@gnu work");
    world.run();
    world.post("@elk later");
    world.cut(2);
    world.does(Op::Archive).expect("archived");
    assert_eq!(world.finished().len(), 1, "@elk's turn ended, and nothing follows it");
    assert!(world.does(Op::Archive).is_err());
    let gnu = world.id("gnu");
    world.does(Op::MemberInterrupt(gnu)).expect("what runs can still be stopped");
    assert_eq!(world.does(Op::MemberResume(gnu)).expect_err("over").code, Code::ReadOnly);
    world.heal();
    assert!(world.core().state().turns.is_empty());
    assert_eq!(world.oracle.starts.len(), 2);
    world.check_log();
}

#[test]
fn a_held_turn_in_an_archived_channel_can_be_dropped_and_not_released() {
    let (mut world, card) = held();
    world.does(Op::Archive).expect("archived");
    assert_eq!(world.does(released(card)).expect_err("over").code, Code::ReadOnly);
    world.does(dropped(card)).expect("dropped");
    assert!(world.core().state().cards.is_empty());
}

#[test]
fn the_files_of_what_a_message_cites_are_delivered_with_it() {
    let mut world = World::new(1, 1);
    world.add("elk", 1);
    let file = Attachment { name: "plan.png".to_owned(), size: 3, hash: Hash::of(b"png") };
    let said = Post { text: "@ana look".to_owned(), attachments: vec![file.clone()], ..Post::default() };
    world.ask(ANA, Op::Post { post: said, client: None, run: None });
    world.run();
    world.post("@elk build what #1 shows");
    let frame = world.links[1].to_resident.back().cloned();
    let Some((Message::Deliver { attachments, .. }, payload)) = frame else { panic!("a delivery: {frame:?}") };
    assert_eq!(attachments, std::slice::from_ref(&file));
    assert!(String::from_utf8_lossy(&payload).contains(&format!("attachments/{}/plan.png", file.hash)));
}

#[test]
fn a_file_s_name_is_a_plain_one() {
    let mut world = World::new(1, 1);
    for name in ["", ".", "..", "a/b", "a\\b", "a\0b", "a\nb", "\u{1b}[2J", &"x".repeat(256)] {
        let file = Attachment { name: name.to_owned(), size: 1, hash: Hash::ZERO };
        let said = Post { attachments: vec![file], ..Post::default() };
        let refused = world.does(Op::Post { post: said, client: None, run: None }).expect_err(name);
        assert_eq!(refused.code, Code::Invalid, "{name:?}");
    }
}

#[test]
fn a_resident_that_lost_its_journal_has_its_turns_held() {
    let mut world = World::new(1, 1);
    world.add("elk", 1);
    world.script("elk", hang());
    world.post("@elk work");
    world.run();
    world.crash_resident(1, true);
    world.lose_journal(1);
    world.heal_links();
    assert_eq!(world.holds().len(), 1, "it cannot prove that the turn never ran");
    let state = world.core().state();
    assert!(state.turns.values().all(|turn| matches!(turn.phase, TurnPhase::Held(_))));
    assert!(state.cards.values().any(|card| matches!(card, Card::HeldTurn { .. })));
    assert!(state.members.values().all(|member| member.queue.len() < QUEUE_LEN_MAX));
}

#[test]
fn last_person_of_a_channel_stays_and_is_no_program() {
    let mut world = World::new(1, 1);
    for op in [Op::MemberRemove, Op::MemberPause, Op::MemberResume, Op::MemberKill, Op::MemberRevive] {
        let refused = world.does(op(ANA)).expect_err("a person is no program, and the last one stays");
        assert_eq!(refused.code, Code::Refused, "{refused:?}");
    }
    world.post("still here");
}
