//! Threats that the home itself must withstand: residents that lie, and agents that wake each other for ever.

use super::super::{ASK_ID_LEN_MAX, Card, Input, Op, TRIES_MAX};
use super::harness::Act;
use super::world::{World, post};
use crate::entry::{Auth, Body};
use crate::event::Status;
use crate::id::{Hash, MessageId, NodeId};
use crate::link::{AttemptId, Message, Verdict};
use crate::route::brakes::HOPS_MAX;

const LINE: &[u8] = b"{\"type\":\"text\",\"text\":\"lies\"}\n";

/// @elk on box 1 works and has said something.
fn at_work() -> (World, AttemptId) {
    let mut world = World::new(1, 2);
    world.add("elk", 1);
    world.script("elk", vec![Act::Say("truth".to_owned()), Act::Hang]);
    world.post("@elk work");
    world.run();
    let id = world.boxes[1].turns.keys().next().copied().expect("a turn");
    (world, id)
}

/// Whether the home took a frame for anything: an entry, an event, another answer than "forget it".
fn moves(world: &mut World, node: NodeId, message: Message, tail: &[u8]) -> bool {
    let before = (world.home.log.entries.len(), world.home.runs.values().map(|file| file.bytes.len()).sum::<usize>());
    let state = format!("{:?}", world.core().state());
    world.feed_home(Input::Frame { node, message, tail: tail.to_vec() });
    world.sync_all();
    let after = (world.home.log.entries.len(), world.home.runs.values().map(|file| file.bytes.len()).sum::<usize>());
    before != after || state != format!("{:?}", world.core().state())
}

fn lies(world: &World, id: AttemptId) -> Vec<Message> {
    let end = (1, LINE.len() as u64, Hash::of(LINE), None);
    let mut lies = vec![
        Message::Events { id, first: 0 },
        Message::Events { id, first: 2 },
        world.boxes[2].finished(id, &end),
        Message::Refused { id, code: "no".to_owned(), message: "no".to_owned() },
        Message::AnswerOk { id, ask: "q".to_owned() },
    ];
    let verdicts = [
        Verdict::Known,
        Verdict::NeverStarted,
        Verdict::Absent { proven: true },
        Verdict::Absent { proven: false },
        Verdict::Ambiguous { reason: "who knows".to_owned() },
    ];
    lies.extend(verdicts.map(|verdict| Message::Report { verdicts: vec![(id, verdict)] }));
    lies
}

#[test]
fn threat_a1_another_resident_says_nothing_about_a_run() {
    let (mut world, id) = at_work();
    let other = world.boxes[2].node;
    for lie in lies(&world, id) {
        let what = format!("{lie:?}");
        assert!(!moves(&mut world, other, lie, LINE), "{what}");
    }
}

#[test]
fn threat_a1_old_and_future_attempts_and_other_runs_are_ignored() {
    let (mut world, id) = at_work();
    let node = world.boxes[1].node;
    let wrong = [
        AttemptId { attempt: crate::id::Attempt(0), ..id },
        AttemptId { attempt: id.attempt.next(), ..id },
        AttemptId { run: MessageId(id.run.0 + 1), ..id },
        AttemptId { run: MessageId(1), ..id },
        AttemptId { channel: crate::id::ChannelId([9; 32]), ..id },
    ];
    for wrong in wrong {
        for lie in lies(&world, wrong) {
            let what = format!("{lie:?}");
            assert!(!moves(&mut world, node, lie, LINE), "{what}");
        }
    }
}

#[test]
fn threat_a1_a_finished_run_stays_as_it_is() {
    let (mut world, id) = at_work();
    let elk = world.id("elk");
    world.does(Op::MemberInterrupt(elk)).expect("stopped");
    assert_eq!(world.finished().len(), 1);
    let node = world.boxes[1].node;
    for lie in lies(&world, id) {
        let what = format!("{lie:?}");
        assert!(!moves(&mut world, node, lie, LINE), "{what}");
    }
}

#[test]
fn threat_a1_a_remote_acceptance_or_end_without_its_signature_is_none() {
    let mut world = World::new(1, 2);
    world.add("elk", 1);
    world.post("@elk work");
    world.talk();
    world.admit(1);
    world.sync_resident(1);
    let node = world.boxes[1].node;
    let frame = world.links[1].to_home.pop_back();
    let Some((Message::Accepted { id, mark, auth }, _)) = frame else { panic!("an acceptance: {frame:?}") };
    let Auth::Resident { sig, .. } = auth.clone() else { panic!("signed") };
    let other = world.boxes[2].node;
    for auth in [Auth::Home, Auth::Resident { node: other, sig: sig.clone() }, Auth::Resident { node, sig: "x".into() }]
    {
        assert!(!moves(&mut world, node, Message::Accepted { id, mark, auth }, b""));
    }
    let mut further = mark;
    further.count += 1;
    assert!(!moves(&mut world, node, Message::Accepted { id, mark: further, auth: auth.clone() }, b""));
    assert!(moves(&mut world, node, Message::Accepted { id, mark, auth }, b""), "the true one counts");

    let running = world.boxes[1].turns.keys().next().copied().expect("a turn");
    while world.play(1, running) {}
    world.sync_resident(1);
    // All its events arrive; its end is on the way.
    while world.pump(1, running) {
        let last = world.links[1].lanes.get_mut(&running).and_then(std::collections::VecDeque::pop_back);
        let Some((message, tail)) = last else { panic!("a frame") };
        let Message::Finished { id, events, length, journal, session, auth } = message else {
            assert!(moves(&mut world, node, message, &tail));
            continue;
        };
        let unsigned = |auth| Message::Finished { id, events, length, journal, session: session.clone(), auth };
        let Auth::Resident { sig, .. } = auth.clone() else { panic!("signed") };
        for auth in [Auth::Home, Auth::Resident { node: other, sig }] {
            assert!(!moves(&mut world, node, unsigned(auth), b""));
        }
        let other_session = Some("another".to_owned());
        let moved = Message::Finished { id, events, length, journal, session: other_session, auth: auth.clone() };
        assert!(!moves(&mut world, node, moved, b""), "the signature covers the session");
        assert!(moves(&mut world, node, unsigned(auth), b""), "the true one counts");
    }
    assert_eq!(world.finished().len(), 1);
}

#[test]
fn threat_a1_what_is_no_event_fails_its_attempt_and_nothing_else() {
    for bad in [&b"not json\n"[..], b"{\"type\":\"text\"", b"[1]\n", b"{\"a\":1}{\"b\":2}\n", b"\n"] {
        let (mut world, id) = at_work();
        world.add("fox", 2);
        world.script("fox", vec![Act::Hang]);
        world.post("@fox work");
        world.run();
        let node = world.boxes[1].node;
        let first = world.core().run(id.run).expect("a run").events();
        assert!(moves(&mut world, node, Message::Events { id, first }, bad), "{bad:?}");
        assert_eq!(world.finished().len(), 1);
        assert_eq!(world.finished()[0].1, Status::Failed);
        assert_eq!(world.core().state().turns.len(), 1, "@fox works on");
        world.heal();
        world.check_quiet();
        assert!(!world.member("elk").removed, "the member lives");
    }
}

#[test]
fn threat_a1_a_flood_of_questions_ends_the_turn() {
    let (mut world, id) = at_work();
    let node = world.boxes[1].node;
    let mut lines = Vec::new();
    for n in 0..200 {
        let ask = super::harness::question(&format!("q{n}"), &["yes"]);
        serde_json::to_writer(&mut lines, &crate::event::Event::Asked { ask }).expect("a line");
        lines.push(b'\n');
    }
    let first = world.core().run(id.run).expect("a run").events();
    moves(&mut world, node, Message::Events { id, first }, &lines);
    assert!(world.core().state().cards.is_empty());
    assert_eq!(world.finished()[0].1, Status::Failed);
}

#[test]
fn threat_a1_questions_and_sessions_that_no_frame_could_carry_end_the_turn() {
    let (mut world, id) = at_work();
    let node = world.boxes[1].node;
    let ask = super::harness::question(&"q".repeat(ASK_ID_LEN_MAX + 1), &["yes"]);
    let mut line = serde_json::to_vec(&crate::event::Event::Asked { ask }).expect("a line");
    line.push(b'\n');
    let first = world.core().run(id.run).expect("a run").events();
    assert!(moves(&mut world, node, Message::Events { id, first }, &line));
    assert!(world.core().state().cards.is_empty());
    assert_eq!(world.finished()[0].1, Status::Failed);

    let (mut world, id) = at_work();
    let node = world.boxes[1].node;
    let end = (1, 10, Hash::of(b"x"), Some("s".repeat(crate::turn::SESSION_LEN_MAX + 1)));
    let message = world.boxes[1].finished(id, &end);
    assert!(moves(&mut world, node, message, &[]));
    assert_eq!(world.finished()[0].1, Status::Failed);
    assert_eq!(world.member("elk").session, None);
    world.heal();
    world.check_quiet();
}

#[test]
fn threat_a1_a_resident_that_only_gives_attempts_back_is_not_asked_for_ever() {
    let mut world = World::new(1, 2);
    world.add("elk", 1);
    world.post("@elk work");
    let node = world.boxes[1].node;
    for _ in 0..3 * TRIES_MAX {
        let state = world.core().state();
        let (run, turn) = state.turns.iter().next().expect("it stays open");
        let id = AttemptId { channel: state.id, run: *run, attempt: turn.attempt };
        let message = Message::Report { verdicts: vec![(id, Verdict::NeverStarted)] };
        world.feed_home(Input::Frame { node, message, tail: Vec::new() });
        world.sync_all();
    }
    assert_eq!(world.count("turn-started"), usize::try_from(TRIES_MAX).expect("small"));
    let [card] = world.holds()[..] else { panic!("a person is asked") };
    // Who releases it gets as many tries again.
    world.does(Op::Hold { message: card, release: true, may_run_twice: false }).expect("released");
    assert_eq!(world.finished()[0].1, Status::Completed);
    world.check_quiet();
}

#[test]
fn threat_a1_a_verdict_against_the_home_s_own_evidence_has_the_turn_held() {
    for verdict in [Verdict::NeverStarted, Verdict::Absent { proven: true }] {
        let mut world = World::new(1, 2);
        world.add("elk", 1);
        world.post("@elk work");
        let (run, turn) = world.core().state().turns.iter().next().expect("a turn");
        let id = AttemptId { channel: world.core().state().id, run: *run, attempt: turn.attempt };
        let node = world.boxes[1].node;
        // Events come on a lane of their own, before the acceptance.
        moves(&mut world, node, Message::Events { id, first: 0 }, LINE);
        moves(&mut world, node, Message::Report { verdicts: vec![(id, verdict)] }, b"");
        assert_eq!(world.holds().len(), 1);
        assert_eq!(world.count("turn-started"), 1);
    }
}

#[test]
fn threat_a1_frames_behind_a_gap_are_asked_about_once() {
    let (mut world, id) = at_work();
    let node = world.boxes[1].node;
    let asked = |world: &World| {
        let frames = world.links[1].to_resident.iter();
        frames.filter(|(message, _)| matches!(message, Message::Reconcile { .. })).count()
    };
    for first in 10..100 {
        moves(&mut world, node, Message::Events { id, first }, LINE);
    }
    assert_eq!(asked(&world), 1);
    // On a new link the answer may have been lost.
    world.cut(1);
    world.connect(1);
    world.home_hears(1);
    moves(&mut world, node, Message::Events { id, first: 10 }, LINE);
    assert_eq!(asked(&world), 2, "one for the link, one for the gap");
    world.heal();
    world.check_quiet();
}

/// A frame as a resident, broken or hostile, may send it: about what is open, or what is not.
fn any_news(world: &mut World, b: usize) -> (Message, Vec<u8>) {
    let state = world.core().state();
    let (channel, last) = (state.id, state.message.0);
    let mut runs = state.turns.iter().map(|(run, turn)| (*run, turn.attempt)).collect::<Vec<_>>();
    runs.push((MessageId(world.below(last + 3)), crate::id::Attempt(1)));
    let (run, attempt) = world.pick(&runs).expect("some");
    let attempt = if world.chance(80) { attempt } else { attempt.next() };
    let id = AttemptId { channel, run, attempt };
    let verdicts = [
        Verdict::Known,
        Verdict::NeverStarted,
        Verdict::Absent { proven: world.chance(50) },
        Verdict::Ambiguous { reason: "who knows".to_owned() },
    ];
    let message = match world.below(10) {
        0 => Message::Refused { id, code: "no".to_owned(), message: "no".to_owned() },
        1 => Message::AnswerOk { id, ask: "q0".to_owned() },
        2 => {
            let (events, length) = (world.below(4), world.below(99));
            world.boxes[b].finished(id, &(events, length, Hash::of(b"x"), None))
        }
        3 | 4 => {
            let lines: [&[u8]; 6] = [
                LINE,
                b"{\"type\":\"finished\",\"outcome\":{\"status\":\"completed\",\"text\":\"@ox lies\"}}\n",
                b"{\"type\":\"asked\",\"ask\":{\"id\":\"q\",\"kind\":\"question\",\"prompt\":\"\",\"options\":[]}}\n",
                b"no line",
                b"",
                b"{\"type\":\"finished\",\"outcome\":{\"status\":\"completed\",\"usage\":{\"cost_usd\":1e999}}}\n",
            ];
            let tail = world.pick(&lines).expect("some").to_vec();
            let have = world.core().run(run).map_or(0, crate::channel::RunProgress::events);
            let first = if world.chance(80) { have } else { world.below(u64::MAX) };
            return (Message::Events { id, first }, tail);
        }
        _ => Message::Report { verdicts: vec![(id, world.pick(&verdicts).expect("some"))] },
    };
    (message, Vec::new())
}

#[test]
fn threat_a1_whatever_a_resident_says_others_turns_end_as_they_would_and_the_log_folds() {
    for seed in 0..150 {
        let mut world = World::new(seed, 2);
        for (handle, b) in [("ox", 0), ("elk", 1), ("gnu", 2), ("yak", 2)] {
            world.add(handle, b);
        }
        // The liar keeps to nothing: there is no honest shell behind what it says.
        let node = world.boxes[2].node;
        let mark = world.boxes[2].core.as_ref().expect("it runs").mark();
        world.crash_resident(2, false);
        world.feed_home(Input::LinkUp(node, mark));
        let mut asked = Vec::new();
        for n in 0..6 {
            for handle in ["ox", "elk"] {
                world.script(
                    handle,
                    vec![Act::Say("mine".to_owned()), Act::End(Status::Completed, format!("{handle} {n}"))],
                );
            }
            asked.push(world.post(&format!("@ox {n}")));
            asked.push(world.post(&format!("@elk {n}")));
            world.post(&format!("@gnu {n}"));
            world.post(&format!("@yak {n}"));
            for _ in 0..12 {
                let (message, tail) = any_news(&mut world, 2);
                world.feed_home(Input::Frame { node, message, tail });
                world.sync_all();
                if world.chance(40) {
                    world.talk_once();
                }
            }
        }
        world.run();
        // What it made up is what the home has of its journals.
        let channel = world.core().state().id;
        for ((run, attempt), file) in &world.home.runs {
            let id = AttemptId { channel, run: *run, attempt: *attempt };
            world.oracle.written.entry(id).or_insert_with(|| file.bytes.clone());
        }
        world.check_log();
        let answered = world.oracle.starts.iter().filter(|start| [3, 4].contains(&start.member.0));
        let mut answered = answered.flat_map(|start| start.messages.clone()).collect::<Vec<_>>();
        answered.sort_unstable();
        answered.retain(|message| asked.contains(message));
        assert_eq!(answered, asked, "seed {seed}: each once, none lost");
        let own =
            world.finished().into_iter().filter(|(_, _, text)| text.starts_with("ox ") || text.starts_with("elk "));
        assert!(own.count() >= 4, "seed {seed}");
    }
}

#[test]
fn what_waits_behind_a_turn_that_failed_is_run_and_not_refused() {
    let (mut world, id) = at_work();
    let second = world.post("@elk and then this");
    world.says("elk", "done");
    let node = world.boxes[1].node;
    let first = world.core().run(id.run).expect("a run").events();
    // Its harness still works when the next delivery comes.
    moves(&mut world, node, Message::Events { id, first }, b"not json\n");
    world.run();
    let ends = world.finished().into_iter().map(|(_, status, _)| status).collect::<Vec<_>>();
    assert_eq!(ends, [Status::Failed, Status::Completed]);
    assert_eq!(world.oracle.starts[1].messages, [second]);
    world.check_quiet();
}

#[test]
fn threat_c7_two_echoing_agents_stop_at_the_brake_with_one_card() {
    let mut world = World::new(1, 2);
    world.add("elk", 1);
    world.add("gnu", 2);
    for _ in 0..40 {
        world.says("elk", "@gnu your turn");
        world.says("gnu", "@elk your turn");
    }
    world.post("@elk begin");
    world.run();
    let turns = usize::try_from(HOPS_MAX).expect("small") + 1;
    assert_eq!(world.oracle.starts.len(), turns, "a person's message and {HOPS_MAX} hops");
    let [card] = world.holds()[..] else { panic!("one card: {:?}", world.holds()) };
    assert!(matches!(world.core().state().cards[&card], Card::HeldDelivery { .. }));
    // Releasing lets that one delivery pass, not the loop.
    world.does(Op::Hold { message: card, release: true, may_run_twice: false }).expect("released");
    assert_eq!(world.oracle.starts.len(), turns + 1);
    assert_eq!(world.holds().len(), 1);
    let card = world.holds()[0];
    world.does(Op::Hold { message: card, release: false, may_run_twice: false }).expect("dropped");
    assert!(world.holds().is_empty());
    // A person begins anew.
    world.does(post("@elk once more", None)).expect("posted");
    assert_eq!(world.oracle.starts.len(), turns + 1 + turns);
    world.check_log();
}

#[test]
fn threat_c7_posts_from_within_turns_and_after_them_count_the_same() {
    let mut world = World::new(1, 2);
    let elk = world.add("elk", 1);
    world.add("gnu", 2);
    for _ in 0..40 {
        world.script("elk", vec![Act::Post("@gnu your turn".to_owned()), Act::End(Status::Completed, String::new())]);
        world.script("gnu", vec![Act::Post("@elk your turn".to_owned()), Act::End(Status::Completed, String::new())]);
    }
    world.post("@elk begin");
    world.run();
    let turns = usize::try_from(HOPS_MAX).expect("small") + 1;
    assert_eq!(world.oracle.starts.len(), turns);
    assert_eq!(world.holds().len(), 1);
    // An agent's process that stays behind and posts without naming a turn, or naming another's, is no person.
    let hops = |world: &World| {
        world
            .bodies()
            .filter_map(|body| match body {
                Body::Posted { routed, run, .. } => Some((routed.to.first().map(|to| to.hops), *run)),
                _ => None,
            })
            .last()
    };
    let last = world.member("elk").hops;
    assert!(last > 1);
    for run in [None, Some(MessageId(2)), Some(MessageId(9999))] {
        let said = crate::entry::Post { text: "@gnu again".to_owned(), ..Default::default() };
        world.ask(elk, Op::Post { post: said, client: None, run });
        world.sync_all();
        assert_eq!(hops(&world), Some((Some(last + 1), None)), "{run:?}");
    }
}
