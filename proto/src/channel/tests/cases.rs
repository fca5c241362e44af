//! Rows of the list of faults that people hit in products like ours, where they touch the home and residents.

use super::super::{Ask, Op, QUEUE_LEN_MAX};
use super::harness::{Act, approval, question};
use super::world::{ANA, World, post};
use crate::api::Code;
use crate::entry::{Attachment, Body, MemberKind, Post};
use crate::event::{Answer, Status};
use crate::id::{ClientId, Hash, MessageId};
use crate::link::Message;
use crate::time::Millis;
use crate::turn;

fn answer(label: &str) -> Answer {
    Answer { choice: vec![label.to_owned()], text: None }
}

fn hang() -> Vec<Act> {
    vec![Act::Say("working".to_owned()), Act::Hang]
}

#[test]
fn case_l7_a_post_during_a_turn_neither_aborts_it_nor_is_lost() {
    let mut world = World::new(1, 1);
    world.add("elk", 1);
    let ask = question("q", &["yes"]);
    world.script("elk", vec![Act::Ask(ask), Act::End(Status::Completed, "first".to_owned())]);
    world.says("elk", "second");
    world.post("@elk begin");
    world.run();
    let late = world.post("@elk and this");
    world.run();
    assert!(world.finished().is_empty(), "the first turn goes on");
    assert_eq!(world.member("elk").queue.len(), 1);
    let card = world.questions()[0];
    world.does(Op::Answer(card, answer("yes"))).expect("answered");
    let texts = world.finished().into_iter().map(|(_, status, text)| (status, text)).collect::<Vec<_>>();
    assert_eq!(texts, [(Status::Completed, "first".to_owned()), (Status::Completed, "second".to_owned())]);
    assert_eq!(world.oracle.starts[1].messages, [late]);
}

#[test]
fn case_l9_a_file_without_text_reaches_the_agent_that_is_at_work() {
    let mut world = World::new(1, 1);
    world.add("elk", 1);
    world.says("elk", "hello");
    world.script("elk", hang());
    world.post("@elk hello");
    world.run();
    world.post("@elk work");
    world.run();
    let file = Attachment { name: "plan.png".to_owned(), size: 3, hash: Hash::of(b"png") };
    let said = Post { attachments: vec![file.clone()], ..Post::default() };
    world.does(Op::Post { post: said, client: None, run: None }).expect("saved");
    let elk = world.id("elk");
    world.does(Op::MemberInterrupt(elk)).expect("stopped");
    let start = world.oracle.starts.last().expect("a third turn");
    let text = String::from_utf8_lossy(&start.payload);
    assert!(text.contains(&format!("attachments/{}/plan.png", file.hash)), "{text}");
    let nothing = world.does(post("", None)).expect_err("nothing to say");
    assert_eq!(nothing.code, Code::Invalid);
}

#[test]
fn case_l10_what_a_resident_finishes_while_the_home_restarts_arrives_once() {
    let mut world = World::new(1, 1);
    world.add("elk", 1);
    world.script("elk", vec![Act::Say("a".to_owned()), Act::End(Status::Completed, "there".to_owned())]);
    world.post("@elk go");
    world.talk();
    world.admit(1);
    world.talk();
    world.crash_home(false);
    world.run();
    assert!(world.boxes[1].turns.is_empty(), "it ended while nobody listened");
    world.heal();
    assert_eq!(world.finished().len(), 1);
    assert_eq!(world.finished()[0].2, "there");
    world.check_quiet();
}

#[test]
fn case_l17_idleness_follows_from_our_own_turns() {
    let mut world = World::new(1, 1);
    world.add("elk", 1);
    for n in 0..3 {
        world.post(&format!("@elk {n}"));
        world.run();
        assert_eq!(world.finished().len(), n + 1, "delivered at once, without a sign by the harness");
    }
}

#[test]
fn case_l22_a_queue_outlives_its_resident() {
    let mut world = World::new(1, 1);
    world.add("elk", 1);
    world.script("elk", hang());
    world.post("@elk begin");
    world.run();
    let queued = (0..5).map(|n| world.post(&format!("@elk {n}"))).collect::<Vec<_>>();
    world.crash_resident(1, false);
    let waits = |world: &World| world.member("elk").queue.iter().map(|queued| queued.message).collect::<Vec<_>>();
    assert_eq!(waits(&world), queued, "visible before they run");
    world.heal();
    assert_eq!(waits(&world), queued, "and while the turn before them is held");
    let held = world.holds()[0];
    world.does(Op::Hold { message: held, release: false, may_run_twice: false }).expect("dropped");
    assert_eq!(world.oracle.starts.last().expect("a turn").messages, queued);
}

#[test]
fn case_d1_restarts_repeat_nothing() {
    let mut world = World::new(1, 1);
    world.add("elk", 1);
    world.add("ox", 0);
    world.post("@elk once");
    world.post("@ox once");
    world.run();
    for _ in 0..3 {
        world.crash_home(false);
        world.crash_resident(1, false);
        world.heal();
    }
    assert_eq!(world.oracle.starts.len(), 2);
    world.check_forgotten();
}

#[test]
fn case_d4_one_envelope_five_times_is_one_turn() {
    let mut world = World::new(1, 1);
    world.add("elk", 1);
    world.script("elk", vec![Act::Say("a".to_owned()), Act::End(Status::Completed, "done".to_owned())]);
    world.post("@elk once");
    world.sync_all();
    let frame = world.links[1].to_resident.front().cloned().expect("a delivery");
    assert!(matches!(frame.0, Message::Deliver { .. }));
    let home = world.home.node;
    let again = |world: &mut World| {
        let (message, tail) = frame.clone();
        world.feed_resident(1, turn::Input::Frame { home, message, tail });
    };
    again(&mut world);
    again(&mut world);
    world.admit(1);
    again(&mut world);
    world.talk();
    again(&mut world);
    world.run();
    assert_eq!(world.finished().len(), 1);
    again(&mut world);
    world.run();
    world.crash_resident(1, false);
    world.heal();
    again(&mut world);
    world.run();
    assert_eq!(world.oracle.starts.len(), 1, "not after its end, and not after a restart");
}

#[test]
fn case_d6_one_request_adds_one_member() {
    let mut world = World::new(1, 1);
    let spec = super::world::spec("elk", MemberKind::Agent, Some(world.boxes[1].node));
    let client = Some(ClientId::new("add-elk").expect("an id"));
    let tickets = (0..6).map(|_| world.ask(ANA, Op::MemberAdd { spec: spec.clone(), client: client.clone() }));
    let tickets = tickets.collect::<Vec<_>>();
    world.run();
    let first = world.answers[&tickets[0]].clone();
    assert!(matches!(first, Ok(Ask::Added(_))));
    assert!(tickets.iter().all(|ticket| world.answers[ticket] == first));
    world.crash_home(false);
    world.heal();
    assert_eq!(world.does(Op::MemberAdd { spec: spec.clone(), client }), first);
    assert_eq!(world.count("member-added"), 2, "@ana and @elk");
    let other = world.does(Op::MemberAdd { spec, client: None }).expect_err("taken");
    assert_eq!(other.code, Code::Conflict);
}

#[test]
fn case_d7_a_silent_harness_is_not_asked_again() {
    let mut world = World::new(1, 1);
    world.add("elk", 1);
    world.script("elk", vec![Act::Hang]);
    world.post("@elk think");
    world.run();
    for _ in 0..5 {
        world.now.mono = world.now.mono + 600_000;
        assert_eq!(world.core().poll_timeout(), None, "nothing is due");
        world.feed_home(super::super::Input::Timeout);
        world.cut(1);
        world.connect(1);
        world.run();
    }
    assert_eq!(world.oracle.starts.len(), 1);
    assert_eq!(world.count("turn-started"), 1);
}

#[test]
fn case_d9_a_retry_after_the_commit_gets_the_stored_result() {
    let mut world = World::new(1, 1);
    world.add("elk", 1);
    let say = || post("@elk once", Some("mine"));
    let ticket = world.ask(ANA, say());
    // The batch is on disk, and the process dies before it can say so.
    let step = world.home.pending.pop_front().expect("a step");
    step.entries.into_iter().for_each(|entry| world.home.log.append(entry));
    world.home.blobs.extend(step.blobs);
    world.crash_home(false);
    assert!(!world.answers.contains_key(&ticket));
    world.restart_home();
    let posted = world.bodies().find_map(|body| match body {
        Body::Posted { message, .. } => Some(*message),
        _ => None,
    });
    let told = |answer| match answer {
        Ok(Ask::Posted { message, to, .. }) => (message, to.len()),
        other => panic!("not posted: {other:?}"),
    };
    assert_eq!(told(world.does(say())), (posted.expect("a post"), 1));
    assert_eq!(told(world.does(say())), (posted.expect("a post"), 1));
    world.heal();
    assert_eq!(world.count("posted"), 1);
    world.does(Op::Archive).expect("archived");
    assert_eq!(told(world.does(say())).0, posted.expect("a post"), "also when nothing new is taken");
    assert_eq!(world.does(post("more", None)).expect_err("over").code, Code::ReadOnly);
}

#[test]
fn case_d11_an_id_stays_known() {
    let mut world = World::new(1, 1);
    let id = |n: usize| format!("c{n}");
    let first = |world: &mut World, n: usize| match world.does(post(&format!("text {n}"), Some(&id(n)))) {
        Ok(Ask::Posted { message, .. }) => message,
        other => panic!("not posted: {other:?}"),
    };
    let numbers = (0..200).map(|n| first(&mut world, n)).collect::<Vec<_>>();
    let again = (0..200).map(|n| first(&mut world, n)).collect::<Vec<_>>();
    assert_eq!(numbers, again, "far beyond what the home keeps in memory");
    assert_eq!(world.count("posted"), 200);
}

#[test]
fn case_d17_news_of_an_old_attempt_change_nothing() {
    let mut world = World::new(1, 1);
    world.add("elk", 1);
    world.script("elk", hang());
    let run = MessageId(2);
    world.post("@elk work");
    world.run();
    let old = world.boxes[1].turns.keys().next().copied().expect("a turn");
    world.crash_resident(1, false);
    world.heal();
    world.does(Op::Hold { message: run, release: true, may_run_twice: false }).expect("released");
    world.script("elk", hang());
    let before = world.home.log.entries.len();
    let node = world.boxes[1].node;
    let end = (1, 10, Hash::of(b"x"), None);
    let late = [
        world.boxes[1].finished(old, &end),
        Message::Refused { id: old, code: "x".to_owned(), message: "no".to_owned() },
        Message::Events { id: old, first: 0 },
    ];
    for message in late {
        world.feed_home(super::super::Input::Frame { node, message, tail: b"{\"type\":\"x\"}\n".to_vec() });
    }
    world.run();
    let news = &world.home.log.entries[before..];
    assert!(
        !news.iter().any(|entry| matches!(entry.body, Body::TurnFinished { attempt, .. } if attempt == old.attempt))
    );
}

#[test]
fn case_a4_the_first_answer_wins_and_the_second_is_told_who_won() {
    let mut world = World::new(1, 1);
    world.add("elk", 1);
    world.script("elk", vec![Act::Ask(approval("a1", "rm -r build"))]);
    world.post("@elk clean");
    world.run();
    let card = world.questions()[0];
    let first = world.ask(ANA, Op::Answer(card, answer("allow")));
    let second = world.ask(ANA, Op::Answer(card, answer("deny")));
    world.run();
    assert!(world.answers[&first].is_ok());
    let refused = world.answers[&second].clone().expect_err("somebody was first");
    assert_eq!(refused.code, Code::Conflict);
    assert!(refused.message.contains("@ana"), "{}", refused.message);
    let given = world.oracle.answers.values().flatten().collect::<Vec<_>>();
    assert_eq!(given, [&answer("allow")], "the harness heard one answer, once");
}

#[test]
fn case_a5_a_denial_stands() {
    let mut world = World::new(1, 1);
    world.add("elk", 1);
    let acts = vec![Act::Ask(approval("a1", "rm -r /")), Act::Say("then not".to_owned()), Act::Hang];
    world.script("elk", acts);
    world.post("@elk clean");
    world.run();
    let card = world.questions()[0];
    let denied = world.ask(ANA, Op::Answer(card, answer("deny")));
    world.sync_all();
    assert!(world.answers[&denied].is_ok());
    world.does(Op::Answer(card, answer("allow"))).expect_err("too late, on its way");
    world.does(Op::Answer(card, answer("allow"))).expect_err("too late, confirmed");
    // The card is a stale one on somebody's screen after a restart, too.
    world.crash_home(false);
    world.heal_links();
    world.does(Op::Answer(card, answer("allow"))).expect_err("too late, after a restart");
    assert_eq!(world.oracle.answers.values().flatten().collect::<Vec<_>>(), [&answer("deny")]);
    assert!(world.questions().is_empty(), "it does not come back");
}

#[test]
fn case_a7_a_second_approval_in_a_turn_is_one_too() {
    let mut world = World::new(1, 1);
    world.add("elk", 1);
    let asks = [Act::Ask(approval("a1", "make")), Act::Ask(approval("a2", "make install"))];
    world.script("elk", asks.to_vec());
    world.post("@elk build");
    world.run();
    for choice in ["allow", "deny"] {
        let [card] = world.questions()[..] else { panic!("one card") };
        world.does(Op::Answer(card, answer(choice))).expect("answered");
    }
    let given = world.oracle.answers.values().flatten().cloned().collect::<Vec<_>>();
    assert_eq!(given, [answer("allow"), answer("deny")]);
    assert_eq!(world.finished().len(), 1);
}

#[test]
fn case_s6_both_interrupts_are_answered_and_the_turn_ends_once() {
    let mut world = World::new(1, 1);
    let elk = world.add("elk", 1);
    world.script("elk", hang());
    world.post("@elk work");
    world.run();
    let first = world.ask(ANA, Op::MemberInterrupt(elk));
    let second = world.ask(ANA, Op::MemberInterrupt(elk));
    world.run();
    assert!(world.answers[&first].is_ok() && world.answers[&second].is_ok());
    assert_eq!(world.finished().len(), 1);
    assert_eq!(world.finished()[0].1, Status::Interrupted);
    let third = world.does(Op::MemberInterrupt(elk)).expect_err("nothing runs");
    assert_eq!(third.code, Code::Conflict);
}

#[test]
fn case_s12_a_stop_right_after_the_post_leaves_the_member_usable() {
    let mut world = World::new(1, 1);
    let elk = world.add("elk", 1);
    world.post("@elk work");
    world.ask(ANA, Op::MemberInterrupt(elk));
    world.run();
    assert_eq!(world.finished()[0].1, Status::Interrupted);
    assert!(world.oracle.starts.is_empty(), "the harness never had it");
    world.post("@elk work");
    world.run();
    assert_eq!(world.finished()[1].1, Status::Completed);
}

#[test]
fn case_x11_text_of_agents_that_names_nobody_starts_nobody() {
    let mut world = World::new(1, 1);
    for (handle, b) in [("ox", 0), ("elk", 1), ("fox", 1), ("gnu", 1)] {
        world.add(handle, b);
    }
    let acts = vec![
        Act::Post("I begin".to_owned()),
        Act::Post("half done".to_owned()),
        Act::End(Status::Completed, "all done".to_owned()),
    ];
    world.script("elk", acts);
    world.post("@elk work");
    world.run();
    assert_eq!(world.oracle.starts.len(), 1);
    world.post("nobody in particular");
    world.run();
    assert_eq!(world.oracle.starts.len(), 2, "a person's goes to who answered last, not to all");
}

#[test]
fn case_f9_a_full_queue_refuses_before_the_ack() {
    let mut world = World::new(1, 1);
    world.add("elk", 1);
    world.add("fox", 1);
    world.cut(1);
    for _ in 0..QUEUE_LEN_MAX {
        world.ask(ANA, post("@elk x", None));
    }
    world.sync_all();
    assert_eq!(world.member("elk").queue.len(), QUEUE_LEN_MAX);
    let entries = world.home.log.entries.len();
    let refused = world.does(post("@elk one more", None)).expect_err("full");
    assert_eq!(refused.code, Code::Limit);
    assert!(refused.message.contains("@elk"));
    world.does(post("@fox instead", None)).expect("others go on");
    assert_eq!(world.home.log.entries.len(), entries + 1, "nothing of it was saved");
    let waiting = world.member("elk").queue.front().map(|queued| queued.ts);
    assert_eq!(waiting, Some(world.now.wall), "the age of the oldest is known");
    assert!(world.now.mono > Millis(0));
}
