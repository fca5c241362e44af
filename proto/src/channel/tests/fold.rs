//! The fold alone: the same entries give the same state, and no entries at all make it panic.

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};
use serde_json::Value;

use super::super::{Card, Effect, FoldError, Input, State, TurnPhase};
use super::harness::{Act, question};
use super::sim::live;
use super::world::{ANA, World, post};
use crate::api::Code;
use crate::entry::{Auth, Body, Entry, NewEntry};
use crate::id::{Attempt, COUNTER_MAX, Epoch, Hash, Lamport, MemberId, MessageId, Seq};
use crate::log::LAMPORT_JUMP_MAX;

fn fold<'a>(entries: impl IntoIterator<Item = &'a NewEntry>) -> Result<State, FoldError> {
    let mut entries = entries.into_iter();
    let mut state = State::begin(entries.next().expect("a first entry"))?;
    entries.try_for_each(|entry| state.apply(entry))?;
    Ok(state)
}

/// Logs in which nearly everything has happened.
fn logs() -> impl Iterator<Item = Vec<NewEntry>> {
    (0..12).map(|seed| std::mem::take(&mut live(seed).home.log.entries))
}

#[test]
fn the_same_entries_give_the_same_state_at_every_prefix() {
    for entries in logs() {
        let mut state = State::begin(&entries[0]).expect("a beginning");
        for (n, entry) in entries.iter().enumerate().skip(1) {
            state.apply(entry).expect("the home's own entry");
            if n % 16 == 0 || n + 1 == entries.len() {
                let again = fold(&entries[..=n]).expect("any prefix folds");
                assert_eq!(format!("{again:?}"), format!("{state:?}"), "after entry {}", entry.seq);
            }
        }
    }
}

#[test]
fn what_is_only_shown_does_not_steer_the_fold() {
    for mut entries in logs().take(3) {
        let strip = |state: State| {
            let text = format!("{state:?}");
            let parts = text.split(" ts: ").map(|part| part.trim_start_matches(|c: char| c.is_ascii_digit()));
            parts.collect::<String>()
        };
        let before = strip(fold(&entries).expect("folds"));
        for (n, entry) in (0_u64..).zip(&mut entries) {
            entry.ts = u64::MAX - n;
            entry.org = Hash::of(b"elsewhere");
        }
        assert_eq!(before, strip(fold(&entries).expect("folds")));
    }
}

#[test]
fn an_entry_that_is_missing_repeated_or_out_of_place_is_refused_by_its_seq() {
    for entries in logs().take(3) {
        for n in (1..entries.len() - 1).step_by(7) {
            let (seq, next) = (entries[n].seq, entries[n + 1].seq);
            let mut missing = entries.clone();
            missing.remove(n);
            assert_eq!(fold(&missing).err(), Some(FoldError::Seq { expected: seq, got: next }));
            let mut twice = entries.clone();
            twice.insert(n, entries[n].clone());
            assert_eq!(fold(&twice).err(), Some(FoldError::Seq { expected: next, got: seq }));
            let mut swapped = entries.clone();
            swapped.swap(n, n + 1);
            assert_eq!(fold(&swapped).err(), Some(FoldError::Seq { expected: seq, got: next }));
        }
    }
}

/// Puts a wild value in place of some number, text, truth or list of an entry.
fn mutate(entry: &NewEntry, rng: &mut ChaCha8Rng) -> Option<NewEntry> {
    fn leaves(value: &Value) -> u64 {
        match value {
            Value::Object(fields) => fields.values().map(leaves).sum::<u64>() + 1,
            Value::Array(items) => items.iter().map(leaves).sum::<u64>() + 1,
            _ => 1,
        }
    }
    fn change(value: &mut Value, at: &mut u64, rng: &mut ChaCha8Rng) {
        if *at == 0 {
            let wild =
                [0, 1, 2, 3, 5, 8, 16, 32, COUNTER_MAX - 1, COUNTER_MAX, COUNTER_MAX + 1, u64::MAX - 1, u64::MAX];
            let n = rng.next_u64();
            let near = value.as_u64().map(|was| was.wrapping_add(n % 5).wrapping_sub(2));
            *value = match value {
                Value::Number(_) if n.is_multiple_of(3) => near.unwrap_or_default().into(),
                Value::Number(_) => wild[usize::try_from(n % 13).expect("small")].into(),
                Value::String(_) => {
                    ["", "elk", "completed", "failed", "@elk @gnu", "x"][usize::try_from(n % 6).expect("small")].into()
                }
                Value::Bool(was) => (!*was).into(),
                Value::Array(items) if n.is_multiple_of(2) => {
                    Value::Array(items.iter().chain(items.iter()).cloned().collect())
                }
                Value::Array(_) => Value::Array(Vec::new()),
                Value::Object(_) | Value::Null => Value::Null,
            };
        }
        let inside: Box<dyn Iterator<Item = &mut Value>> = match value {
            Value::Object(fields) => Box::new(fields.values_mut()),
            Value::Array(items) => Box::new(items.iter_mut()),
            _ => Box::new(std::iter::empty()),
        };
        for value in inside {
            *at = at.wrapping_sub(1);
            change(value, at, rng);
        }
    }
    let mut value = serde_json::to_value(entry.clone().at(Hash::ZERO)).expect("JSON");
    let mut at = rng.next_u64() % leaves(&value);
    change(&mut value, &mut at, rng);
    let Entry { seq, epoch, lamport, prev: _, org, ts, by, auth, body } = serde_json::from_value(value).ok()?;
    Some(NewEntry { seq, epoch, lamport, org, ts, by, auth, body })
}

#[test]
fn mutated_entries_are_refused_or_folded_and_never_panic() {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let (mut tried, mut refused) = (0, 0);
    for entries in logs().take(6) {
        for n in 0..entries.len() {
            let before = (n > 0).then(|| fold(&entries[..n]).expect("folds"));
            for _ in 0..6 {
                let Some(wild) = mutate(&entries[n], &mut rng) else { continue };
                tried += 1;
                // The rest of the log is folded on top of it, whatever it led to.
                let result = match before.clone() {
                    None => State::begin(&wild),
                    Some(mut state) => state.apply(&wild).map(|()| state),
                };
                let rest = &entries[n + 1..(n + 12).min(entries.len())];
                let result = result.and_then(|mut state| rest.iter().try_for_each(|entry| state.apply(entry)));
                refused += usize::from(result.is_err());
            }
        }
    }
    assert!(tried > 2000 && refused > tried / 4, "{refused} of {tried} refused");
}

#[test]
fn entries_of_one_log_shuffled_into_another_never_panic() {
    let mut rng = ChaCha8Rng::seed_from_u64(8);
    let all = logs().take(4).flatten().map(|entry| entry.body).collect::<Vec<_>>();
    for _ in 0..300 {
        let mut world = World::new(1, 0);
        let mut state = world.core().state().clone();
        let template = world.home.log.entries.pop().expect("an entry");
        for _ in 0..60 {
            let pick = usize::try_from(rng.next_u64()).expect("64 bits") % all.len();
            let entry = NewEntry {
                seq: state.seq.next(),
                lamport: state.lamport.next(),
                body: all[pick].clone(),
                ..template.clone()
            };
            let mut next = state.clone();
            if next.apply(&entry).is_ok() {
                state = next;
            }
        }
    }
}

// ---- far jumps ----

fn follow(state: &State, body: Body) -> NewEntry {
    NewEntry {
        seq: state.seq.next(),
        epoch: state.epoch,
        lamport: state.lamport.next(),
        org: Hash::ZERO,
        ts: 0,
        by: None,
        auth: Auth::Home,
        body,
    }
}

#[test]
fn clocks_and_numbers_do_not_jump_far() {
    let world = World::new(1, 1);
    let state = world.core().state();
    let fits = |entry: &NewEntry| state.clone().apply(entry);
    let plain = follow(state, Body::ChannelArchived {});
    assert_eq!(fits(&plain), Ok(()));
    let lamport = |lamport| NewEntry { lamport: Lamport(lamport), ..plain.clone() };
    assert_eq!(fits(&lamport(state.lamport.0 + LAMPORT_JUMP_MAX)), Ok(()));
    for bad in [0, state.lamport.0, state.lamport.0 + LAMPORT_JUMP_MAX + 1, COUNTER_MAX, COUNTER_MAX + 1, u64::MAX] {
        assert!(matches!(fits(&lamport(bad)), Err(FoldError::Lamport { .. })), "lamport {bad}");
    }
    for bad in [0, state.seq.0, state.seq.0 + 2, COUNTER_MAX, u64::MAX] {
        let entry = NewEntry { seq: Seq(bad), ..plain.clone() };
        assert!(matches!(fits(&entry), Err(FoldError::Seq { .. })), "seq {bad}");
    }
    for bad in [0, state.message.0, state.message.0 + 2, COUNTER_MAX, u64::MAX] {
        let message = MessageId(bad);
        let post = crate::entry::Post::default();
        let body = Body::Posted { message, client: None, run: None, post, routed: Default::default() };
        assert!(matches!(fits(&follow(state, body)), Err(FoldError::Message { .. })), "message {bad}");
    }
    let back = NewEntry { epoch: Epoch(0), ..plain.clone() };
    assert!(matches!(fits(&back), Err(FoldError::Impossible { .. })));
    // The first entry's clock is bound as well.
    let first = world.home.log.entries[0].clone();
    for bad in [0, LAMPORT_JUMP_MAX + 1, u64::MAX] {
        let entry = NewEntry { lamport: Lamport(bad), ..first.clone() };
        assert!(matches!(State::begin(&entry), Err(FoldError::Lamport { .. })), "lamport {bad}");
    }
}

#[test]
fn entries_of_a_newer_version_are_kept_and_their_numbers_may_be_missing() {
    let world = World::new(1, 1);
    let mut state = world.core().state().clone();
    let posted = |state: &State, message| {
        let post = crate::entry::Post::default();
        follow(state, Body::Posted { message, client: None, run: None, post, routed: Default::default() })
    };
    let newer: Body = serde_json::from_str(r#"{"kind":"from-the-future","message":1,"x":[]}"#).expect("an entry");
    assert_eq!(newer, Body::Unknown);
    state.apply(&follow(&state, newer)).expect("kept");
    state.apply(&posted(&state, MessageId(4))).expect("what it numbered is missing here");
    assert!(state.apply(&posted(&state, MessageId(4))).is_err(), "but no number comes twice");
}

// ---- what contradicts the state ----

#[test]
fn the_log_cannot_say_what_cannot_be() {
    let mut world = World::new(1, 1);
    let elk = world.add("elk", 1);
    world.script("elk", vec![Act::Ask(question("q", &["yes"])), Act::Hang]);
    world.post("@elk work");
    world.run();
    world.crash_resident(1, false);
    world.heal_links();
    let state = world.core().state();
    let (run, turn) = state.turns.iter().next().expect("a turn");
    let TurnPhase::Held(held) = turn.phase else { panic!("held") };
    assert!(matches!(state.cards[&held], Card::HeldTurn { .. }));
    let refused = |body: Body| {
        let what = format!("{body:?}");
        let result = state.clone().apply(&follow(state, body));
        assert!(matches!(result, Err(FoldError::Impossible { .. })), "{what}: {result:?}");
    };
    let (message, attempt) = (*run, turn.attempt);
    let mark = turn.seen.expect("a mark");
    refused(Body::AttemptAccepted { message, attempt, mark });
    refused(Body::AttemptAccepted { message, attempt: attempt.next(), mark });
    let card = state.message.next();
    refused(Body::TurnHeld { message, attempt, card, reason: String::new() });
    let start = |message, member, attempt: Attempt, batch: Vec<MessageId>| Body::TurnStarted {
        message,
        member,
        node: turn.node,
        attempt,
        batch,
        payload: turn.payload,
        hops: 0,
        briefed: false,
        seen: None,
    };
    refused(start(message, elk, attempt.next(), Vec::new()));
    refused(start(card, elk, Attempt(0), Vec::new()));
    refused(start(card, elk, Attempt(1), Vec::new()));
    refused(start(card, elk, Attempt(u32::MAX), Vec::new()));
    refused(start(card, MemberId(999), Attempt(1), Vec::new()));
    refused(start(card, ANA, Attempt(1), vec![MessageId(1)]));
    refused(Body::MemberRemoved { member: MemberId(999) });
    refused(Body::HoldReleased { message: MessageId(1), retry: true, may_run_twice: false });
    refused(Body::DeliveryReleased { message, member: elk, deliver: true });
    refused(Body::CardAnswered { card: held, choice: Vec::new(), text: None });
    refused(Body::RoundClosed { message, number: 1, results: Vec::new(), routed: Default::default() });
    refused(Body::StopRequested { message: MessageId(1) });
    // Its word would be read as the home's, or as everybody's.
    for handle in crate::id::RESERVED_HANDLES {
        let handle = crate::id::Handle::lexical(handle, "handle").expect("the grammar allows it");
        let spec = crate::entry::MemberSpec { handle: handle.clone(), ..state.members[&elk].spec.clone() };
        refused(Body::MemberAdded { member: spec, client: None });
        refused(Body::MemberChanged { member: elk, change: crate::entry::MemberChange::Renamed { handle } });
    }
    // Who has left cannot be changed, nor leave again: its handle may be somebody else's by then.
    let mut state = state.clone();
    state.apply(&follow(&state, Body::MemberRemoved { member: elk })).expect("it leaves");
    for body in [
        Body::MemberRemoved { member: elk },
        Body::MemberChanged { member: elk, change: crate::entry::MemberChange::Paused },
    ] {
        assert!(state.clone().apply(&follow(&state, body)).is_err());
    }
}

#[test]
fn a_home_whose_entry_would_not_fold_writes_nothing_and_says_why() {
    // A state that no log of ours leads to: the last number that there is has been used.
    let mut world = World::new(1, 1);
    let mut state = world.core().state().clone();
    state.message = MessageId(COUNTER_MAX);
    let mut home = super::super::Home::new(state, world.home.node, std::collections::BTreeMap::new());
    let mut context = super::super::Context {
        now: world.now,
        lamport: &mut world.home.lamport,
        org: Hash::ZERO,
        rng: &mut world.home.rng,
        history: &world.home.log,
    };
    for n in 1..3 {
        let ticket = super::super::Ticket(n);
        let input = Input::Op { ticket, by: Some(ANA), auth: Auth::Home, op: post("more", None) };
        let step = home.handle(input, &mut context);
        assert!(step.entries.is_empty() && step.blobs.is_empty() && step.journals.is_empty());
        let [Effect::Reply(to, Err(error))] = &step.effects[..] else { panic!("{:?}", step.effects) };
        assert_eq!((*to, error.code), (ticket, Code::Internal));
        assert!(matches!(home.fault(), Some(FoldError::Message { .. })));
    }
}
