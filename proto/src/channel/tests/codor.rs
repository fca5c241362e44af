//! What went wrong in the multi-box product before ours: the same steps, the opposite result.

use super::super::{Op, TurnPhase};
use super::harness::{Act, question};
use super::world::{ANA, World};
use crate::entry::Body;
use crate::event::{Answer, Status};
use crate::id::{Attempt, MessageId};
use crate::link::Message;
use crate::route::brakes::{ACK, HOPS_MAX};
use crate::turn::Input;

fn working(text: &str) -> Vec<Act> {
    vec![Act::Say("a ".to_owned()), Act::Say("b ".to_owned()), Act::End(Status::Completed, text.to_owned())]
}

fn hang() -> Vec<Act> {
    vec![Act::Say("working".to_owned()), Act::Hang]
}

/// Brings a turn so far that its harness has said one thing, which has reached the home.
fn in_mid_turn(world: &mut World, b: usize) {
    world.talk();
    world.admit(b);
    world.talk();
    let id = world.boxes[b].turns.keys().next().copied().expect("a turn");
    world.play(b, id);
    world.play(b, id);
    world.talk();
}

// ---- §8: scenarios of its history ----

#[test]
fn codor_8_1_a_stopping_node_holds_its_turn_and_a_person_s_stop_ends_it() {
    let mut world = World::new(1, 1);
    let elk = world.add("elk", 1);
    world.script("elk", hang());
    let asked = world.post("@elk work");
    world.run();
    // The node is told to stop: the harness goes with it, and nobody saw the end.
    let id = world.boxes[1].turns.keys().next().copied().expect("a turn");
    world.feed_resident(1, Input::Stopped(id));
    world.boxes[1].turns.clear();
    world.crash_resident(1, false);
    world.heal();
    let [card] = world.holds()[..] else { panic!("one hold") };
    assert!(world.finished().is_empty(), "that is no result");
    world.script("elk", hang());
    world.does(Op::Hold { message: card, release: true, may_run_twice: false }).expect("released");
    assert_eq!(world.oracle.starts.len(), 2, "the work goes on, as the person said");
    assert_eq!(world.oracle.starts[1].messages, [asked]);
    assert!(world.oracle.starts[1].again, "and the harness hears that it may know the prompt");
    // A person's stop is the end of it, whatever happens to the box afterwards.
    world.ask(ANA, Op::MemberInterrupt(elk));
    world.sync_all();
    world.crash_resident(1, true);
    world.heal();
    assert_eq!(world.finished().len(), 1);
    assert_eq!(world.finished()[0].1, Status::Interrupted);
    assert!(world.holds().is_empty() && world.oracle.starts.len() == 2);
    world.check_quiet();
}

#[test]
fn codor_8_2_a_stop_within_a_round_neither_counts_as_its_result_nor_blocks_it() {
    let mut world = World::new(1, 2);
    world.add("elk", 1);
    world.add("gnu", 2);
    world.says("gnu", "mine is 7");
    world.script("elk", hang());
    let root = world.post("@elk and @gnu: your numbers?");
    world.run();
    world.crash_resident(1, false);
    world.heal_links();
    assert_eq!(world.count("round-closed"), 0, "it waits for the one whose outcome is unknown");
    let held = world.holds()[0];
    world.says("elk", "mine is 5");
    world.does(Op::Hold { message: held, release: true, may_run_twice: false }).expect("released");
    let closed = world.bodies().find_map(|body| match body {
        Body::RoundClosed { message, results, .. } => Some((*message, results.clone())),
        _ => None,
    });
    let (of, results) = closed.expect("the round ends");
    let texts = world.finished();
    let text = |run: &MessageId| texts.iter().find(|(of, ..)| of == run).map(|(_, _, text)| text.as_str());
    assert_eq!(of, root);
    assert_eq!(results.iter().map(text).collect::<Vec<_>>(), [Some("mine is 5"), Some("mine is 7")], "as mentioned");
    world.check_quiet();
}

#[test]
fn codor_8_3_what_was_consumed_or_dropped_does_not_come_back() {
    let mut world = World::new(1, 1);
    let elk = world.add("elk", 1);
    world.script("elk", hang());
    world.post("@elk one");
    world.post("@elk two");
    world.run();
    // Between the turn's start and its end, everything that touches the queue.
    for op in [Op::MemberPause(elk), Op::MemberResume(elk), Op::MemberKill(elk), Op::MemberRevive(elk)] {
        world.does(op).expect("done");
    }
    world.heal();
    let batches = world.oracle.starts.iter().map(|start| start.messages.clone()).collect::<Vec<_>>();
    assert_eq!(batches.concat().len(), 2, "each once: {batches:?}");
    // A queue that was dropped with its member is not the queue of who comes after it.
    world.cut(1);
    world.post("@elk three");
    world.does(Op::MemberRemove(elk)).expect("removed");
    world.add("elk", 1);
    world.heal();
    assert_eq!(world.oracle.starts.len(), batches.len());
    assert!(world.member("elk").queue.is_empty());
    world.check_quiet();
}

#[test]
fn codor_8_4_agents_that_answer_with_nothing_or_thanks_do_not_loop() {
    for (text, turns) in [("", 2), (ACK, 2), ("thanks", usize::try_from(HOPS_MAX).expect("small") + 1)] {
        let mut world = World::new(1, 1);
        world.add("elk", 1);
        world.add("fox", 1);
        world.says("elk", "@fox hello");
        for _ in 0..20 {
            world.says("fox", text);
            world.says("elk", text);
        }
        world.post("@elk greet @fox yourself: `@fox`");
        world.does(super::world::post("@elk greet", None)).expect("posted");
        world.run();
        let held = world.count("delivery-held");
        assert!(held <= 2, "{text:?}: {held} holds");
        assert!(world.oracle.starts.len() <= 2 * (turns + 2), "{text:?}: {} turns", world.oracle.starts.len());
        world.check_quiet();
    }
}

// ---- §9: faults that were reproduced in it ----

#[test]
fn codor_9_1_a_home_that_restarts_during_a_remote_turn_sees_its_end_once() {
    let mut world = World::new(1, 1);
    world.add("elk", 1);
    world.script("elk", working("done"));
    world.post("@elk work");
    in_mid_turn(&mut world, 1);
    world.crash_home(true);
    world.heal();
    assert_eq!(world.oracle.starts.len(), 1, "nothing is run again");
    assert_eq!(world.count("turn-started"), 1);
    assert_eq!(world.finished().len(), 1);
    assert_eq!(world.finished()[0].2, "done");
    world.check_quiet();
}

#[test]
fn codor_9_1_a_delivery_that_is_lost_is_repeated_with_the_same_bytes() {
    let mut world = World::new(1, 1);
    world.add("elk", 1);
    world.post("@elk work");
    world.sync_all();
    let (message, payload) = world.links[1].to_resident.front().cloned().expect("a delivery");
    assert!(matches!(message, Message::Deliver { .. }));
    assert!(String::from_utf8_lossy(&payload).contains(" conventions]"), "the first one carries the conventions");
    world.crash_home(false);
    world.restart_home();
    world.post("@elk and more, so that the next payload would be another");
    world.heal();
    assert_eq!(world.oracle.starts[0].id.attempt, Attempt(2));
    assert_eq!(world.oracle.starts[0].payload, payload);
    world.check_quiet();
}

#[test]
fn codor_9_2_a_remote_question_is_answered() {
    let mut world = World::new(1, 1);
    world.add("elk", 1);
    world.script(
        "elk",
        vec![Act::Ask(question("q", &["red", "blue"])), Act::End(Status::Completed, "it is".to_owned())],
    );
    world.post("@elk choose");
    world.run();
    let [card] = world.questions()[..] else { panic!("one card") };
    // The answer is given while the box is away, and the home restarts before it is back.
    world.cut(1);
    world.does(Op::Answer(card, Answer { choice: vec!["blue".to_owned()], text: None })).expect("answered");
    world.crash_home(false);
    world.heal();
    let given = world.oracle.answers.values().flatten().collect::<Vec<_>>();
    assert_eq!(given.iter().map(|answer| answer.choice[0].as_str()).collect::<Vec<_>>(), ["blue"]);
    assert_eq!(world.finished()[0].2, "it is");
    world.check_quiet();
}

#[test]
fn codor_9_3_a_remote_turn_stops_when_it_is_told_to() {
    let mut world = World::new(1, 1);
    let elk = world.add("elk", 1);
    world.script("elk", hang());
    world.post("@elk work");
    world.run();
    // Told while the box is away: it hears of it when it is back.
    world.cut(1);
    world.does(Op::MemberInterrupt(elk)).expect("recorded");
    assert!(world.finished().is_empty());
    world.heal_links();
    assert_eq!(world.finished()[0].1, Status::Interrupted);
    assert_eq!(world.oracle.interrupts.len(), 1);
    world.check_quiet();
}

#[test]
fn codor_9_4_new_settings_reach_the_next_delivery() {
    let mut world = World::new(1, 1);
    let elk = world.add("elk", 1);
    world.post("@elk one");
    world.run();
    let model = Some("big-model".to_owned());
    world.does(Op::MemberConfigure { member: elk, model, policy: None, cwd: None }).expect("done");
    world.post("@elk two");
    world.run();
    let models = world.oracle.starts.iter().map(|start| start.model.as_deref()).collect::<Vec<_>>();
    assert_eq!(models, [None, Some("big-model")]);
}

#[test]
fn codor_9_5_members_of_the_home_s_own_box_need_no_link() {
    let mut world = World::new(1, 1);
    world.add("ox", 0);
    world.cut(1);
    world.crash_home(false);
    world.restart_home();
    world.post("@ox work");
    world.run();
    assert_eq!(world.finished().len(), 1);
    assert!(world.core().state().turns.values().all(|turn| turn.phase != TurnPhase::Sent));
}
