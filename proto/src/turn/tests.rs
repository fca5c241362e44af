//! The resident alone: its journal, its verdicts, and what it refuses to do twice.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

use super::resident::{ATTEMPTS_MAX, ATTEMPTS_OF_HOME_MAX, FENCES_MAX, HEADS_MAX, VERDICTS_MAX};
use super::{Admission, Effect, Input, Refusal, Resident, ResidentStep, RestoreError, RunEvidence, SESSION_LEN_MAX};
use crate::crypto::sign::Task;
use crate::entry::{JournalMark, MemberKind, MemberSpec, Policy};
use crate::event::Answer;
use crate::id::{Attempt, ChannelId, DeviceId, Handle, Hash, Incarnation, MemberId, MessageId, NodeId};
use crate::link::{Asked, AttemptId, Message, Verdict};

const HOME: NodeId = DeviceId([1; 32]);
const OTHER: NodeId = DeviceId([2; 32]);
const PAYLOAD: &[u8] = b"work";

fn id(run: u64, attempt: u32) -> AttemptId {
    AttemptId { channel: ChannelId([7; 32]), run: MessageId(run), attempt: Attempt(attempt) }
}

/// Each run is of a member of its own unless a test says otherwise.
fn delivery(id: AttemptId, member: u64, payload: &[u8]) -> Message {
    let spec = MemberSpec {
        kind: MemberKind::Agent,
        handle: Handle::new("elk").expect("a handle"),
        harness: None,
        node: None,
        cwd: None,
        model: None,
        policy: None,
        devices: Vec::new(),
    };
    Message::Deliver {
        id,
        member: MemberId(member),
        spec,
        name: "lobby".to_owned(),
        session: None,
        payload: Hash::of(payload),
        attachments: Vec::new(),
        again: false,
    }
}

/// A resident and its journal as far as it is written and synced.
struct Rig {
    resident: Resident,
    journal: Vec<u8>,
    synced: usize,
}

impl Rig {
    fn new() -> Self {
        let (resident, journal) = Resident::begin(Incarnation([3; 16]), "boot-1".to_owned());
        Self { resident, synced: journal.len(), journal }
    }

    fn feed(&mut self, input: Input) -> Vec<Effect> {
        let ResidentStep { records, sync, effects } = self.resident.handle(input);
        self.journal.extend(records);
        if sync {
            self.synced = self.journal.len();
        }
        effects
    }

    fn hear(&mut self, home: NodeId, message: Message) -> Vec<Effect> {
        let tail = match &message {
            Message::Answer { .. } => serde_json::to_vec(&yes()).unwrap(),
            _ => PAYLOAD.to_vec(),
        };
        self.feed(Input::Frame { home, message, tail })
    }

    fn deliver(&mut self, id: AttemptId) -> Vec<Effect> {
        self.hear(HOME, delivery(id, id.run.0, PAYLOAD))
    }

    fn admit(&mut self, id: AttemptId) -> Vec<Effect> {
        let admission = Admission { cwd: "/work".to_owned(), policy: Policy::Ask };
        self.feed(Input::Admitted { id, result: Ok(admission) })
    }

    /// Accepted and synced, not handed.
    fn accept(&mut self, id: AttemptId) {
        assert!(matches!(self.deliver(id)[..], [Effect::Admit { .. }]));
        assert!(matches!(self.admit(id)[..], [Effect::Accept { start: true, .. }]));
    }

    fn start(&mut self, id: AttemptId) {
        self.accept(id);
        assert!(matches!(self.feed(Input::AcceptedDurable(id))[..], [Effect::Start { .. }]));
    }

    fn end(&mut self, id: AttemptId) -> Vec<Effect> {
        self.feed(Input::Ended { id, events: 2, length: 20, journal: Hash::of(b"j"), session: Some("s".to_owned()) })
    }

    fn ask(&mut self, id: AttemptId, seen: Option<JournalMark>) -> (Verdict, Vec<Effect>) {
        let mut effects =
            self.hear(HOME, Message::Reconcile { attempts: vec![Asked { id, have: 1, seen, payload: None }] });
        let Effect::Send(HOME, Message::Report { verdicts }) = effects.remove(0) else { panic!("{effects:?}") };
        let [(of, verdict)] = &verdicts[..] else { panic!("{verdicts:?}") };
        assert_eq!(*of, id);
        (verdict.clone(), effects)
    }

    fn restart(&mut self, boot: &str, evidence: impl Fn(&AttemptId) -> RunEvidence) {
        self.resident = Resident::restore(&self.journal, boot.to_owned(), evidence).expect("a sound journal");
    }
}

/// Whether a delivery was taken for one that is over: it is not run, and its home is told so.
fn is_void(effects: &[Effect]) -> bool {
    let [Effect::Send(_, Message::Report { verdicts })] = effects else { return false };
    matches!(verdicts[..], [(_, Verdict::Ambiguous { .. })])
}

fn nothing(_: &AttemptId) -> RunEvidence {
    RunEvidence::default()
}

fn some(_: &AttemptId) -> RunEvidence {
    RunEvidence { events: 2, length: 20, journal: Some(Hash::of(b"j")), ended: false }
}

fn whole(_: &AttemptId) -> RunEvidence {
    RunEvidence { ended: true, ..some(&id(1, 1)) }
}

/// A journal with an attempt in each phase.
fn busy_life() -> Rig {
    let mut rig = Rig::new();
    rig.start(id(1, 1));
    rig.end(id(1, 1));
    rig.hear(HOME, Message::FinishedAck { id: id(1, 1) });
    rig.start(id(2, 1));
    rig.end(id(2, 1));
    rig.start(id(3, 1));
    rig.accept(id(4, 1));
    rig.start(id(5, 1));
    rig.start(id(6, 1));
    rig
}

// ---- the journal ----

#[test]
fn a_journal_is_taken_up_from_every_whole_line_and_refused_at_every_other_byte() {
    let rig = busy_life();
    let journal = &rig.journal;
    let mut whole_lines = 0;
    for end in 0..=journal.len() {
        let restored = Resident::restore(&journal[..end], "boot-1".to_owned(), nothing);
        if end == 0 {
            assert_eq!(restored.err(), Some(RestoreError::Damaged(1)), "an empty journal has no life");
        } else if journal[end - 1] == b'\n' {
            whole_lines += 1;
            assert_eq!(restored.expect("whole lines").mark().count, whole_lines);
        } else {
            assert_eq!(restored.err(), Some(RestoreError::Damaged(whole_lines + 1)), "torn at byte {end}");
        }
    }
    let again = Resident::restore(journal, "boot-1".to_owned(), nothing).expect("whole");
    assert_eq!(again.mark(), rig.resident.mark());
}

#[test]
fn a_line_that_is_missing_swapped_or_from_another_life_is_damage() {
    let rig = busy_life();
    let lines = rig.journal.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect::<Vec<_>>();
    let damaged = |lines: Vec<Vec<u8>>, at: u64| {
        let result = Resident::restore(&lines.concat(), "boot-1".to_owned(), nothing);
        assert_eq!(result.err(), Some(RestoreError::Damaged(at)));
    };
    for n in 0..lines.len() - 1 {
        let at = n as u64 + 1;
        damaged(lines.iter().enumerate().filter(|(i, _)| *i != n).map(|(_, line)| line.clone()).collect(), at);
        let mut swapped = lines.clone();
        swapped.swap(n, n + 1);
        damaged(swapped, at);
    }
    let mut two_lives = lines.clone();
    two_lives.extend(lines);
    damaged(two_lives.clone(), two_lives.len() as u64 / 2 + 1);
    two_lives.insert(1, b"\n".to_vec());
    damaged(two_lives, 2);
}

proptest! {
    #[test]
    fn a_changed_byte_is_damage_or_at_least_no_panic(at in 0_usize..2000, byte: u8) {
        let mut journal = busy_life().journal;
        let at = at % journal.len();
        prop_assume!(journal[at] != byte);
        journal[at] = byte;
        // The last line has nobody to vouch for it.
        let last = journal[..journal.len() - 1].iter().rposition(|byte| *byte == b'\n').expect("lines");
        let restored = Resident::restore(&journal, "boot-1".to_owned(), nothing);
        prop_assert!(restored.is_err() || at > last);
    }

    #[test]
    fn any_bytes_are_a_journal_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = Resident::restore(&bytes, "boot-1".to_owned(), nothing);
    }
}

#[test]
fn records_are_synced_before_what_rests_on_them() {
    let mut rig = Rig::new();
    rig.deliver(id(1, 1));
    let admission = Admission { cwd: "/work".to_owned(), policy: Policy::Ask };
    let step = rig.resident.handle(Input::Admitted { id: id(1, 1), result: Ok(admission) });
    assert!(step.sync, "an acceptance is durable before the home hears of it");
    let step = rig.resident.handle(Input::AcceptedDurable(id(1, 1)));
    assert!(!step.sync && !step.records.is_empty(), "the hand-over is written, not synced");
    let end = Input::Ended { id: id(1, 1), events: 0, length: 0, journal: Hash::of(b""), session: None };
    assert!(rig.resident.handle(end).sync);
    let step = rig.resident.handle(Input::Frame {
        home: HOME,
        message: Message::FinishedAck { id: id(1, 1) },
        tail: Vec::new(),
    });
    assert!(!step.sync && !step.records.is_empty(), "to forget late does no harm");
}

// ---- verdicts ----

#[test]
fn the_verdict_follows_from_the_journal_the_boot_and_the_run_s_own_journal() {
    type Evidence = fn(&AttemptId) -> RunEvidence;
    let accepted: fn(&mut Rig) = |rig| rig.accept(id(1, 1));
    let handed: fn(&mut Rig) = |rig| rig.start(id(1, 1));
    let ended: fn(&mut Rig) = |rig| {
        rig.start(id(1, 1));
        rig.end(id(1, 1));
    };
    let asking: fn(&mut Rig) = |rig| drop(rig.deliver(id(1, 1)));
    type Row = (&'static str, fn(&mut Rig), &'static str, Evidence, &'static str);
    let table: [Row; 11] = [
        ("asking, process died", asking, "boot-1", nothing, "absent"),
        ("accepted, process died", accepted, "boot-1", nothing, "never started"),
        ("accepted, box restarted", accepted, "boot-2", nothing, "ambiguous"),
        ("accepted, box restarted, and it had ended", accepted, "boot-2", whole, "known"),
        ("handed, process died", handed, "boot-1", nothing, "ambiguous"),
        ("handed, it had said something", handed, "boot-1", some, "ambiguous"),
        ("handed, it had ended", handed, "boot-1", whole, "known"),
        ("handed, box restarted, it had ended", handed, "boot-2", whole, "known"),
        ("ended", ended, "boot-1", whole, "known"),
        ("ended, box restarted", ended, "boot-2", whole, "known"),
        ("ended, its journal is lost", ended, "boot-1", nothing, "ambiguous"),
    ];
    for (what, life, boot, evidence, expected) in table {
        let mut rig = Rig::new();
        let seen = Some(rig.resident.mark());
        life(&mut rig);
        rig.restart(boot, evidence);
        let (verdict, after) = rig.ask(id(1, 1), seen);
        let name = match &verdict {
            Verdict::Known => "known",
            Verdict::NeverStarted => "never started",
            Verdict::Absent { proven: true } => "absent",
            Verdict::Absent { proven: false } => "unproven",
            Verdict::Ambiguous { .. } => "ambiguous",
        };
        assert_eq!(name, expected, "{what}");
        let ends = after.iter().any(|effect| matches!(effect, Effect::Finish { events: 2, length: 20, .. }));
        assert_eq!(ends, expected == "known", "{what}: an end follows exactly when there is one");
        // A report can be lost: asked again, it says the same.
        assert_eq!(rig.ask(id(1, 1), seen).0, verdict, "{what}");
    }
}

#[test]
fn what_runs_is_known_and_goes_on_from_where_the_home_stands() {
    let mut rig = Rig::new();
    rig.deliver(id(1, 1));
    assert_eq!(rig.ask(id(1, 1), None), (Verdict::Known, Vec::new()), "its acceptance is on the way");
    rig.admit(id(1, 1));
    let mark = rig.resident.mark();
    assert_eq!(rig.ask(id(1, 1), None), (Verdict::Known, Vec::new()));
    rig.feed(Input::AcceptedDurable(id(1, 1)));
    let (verdict, effects) = rig.ask(id(1, 1), None);
    assert_eq!(verdict, Verdict::Known);
    let task = Task { id: id(1, 1), member: MemberId(1), payload: Hash::of(PAYLOAD) };
    let expected =
        [Effect::Accept { task, home: HOME, mark, start: false }, Effect::Resume { id: id(1, 1), home: HOME, from: 1 }];
    assert_eq!(effects, expected);
}

#[test]
fn another_home_learns_nothing_and_changes_nothing() {
    let mut rig = Rig::new();
    rig.start(id(1, 1));
    let before = (rig.journal.clone(), rig.resident.mark());
    let frames = [
        Message::Stop { id: id(1, 1) },
        Message::FinishedAck { id: id(1, 1) },
        Message::Answer { id: id(1, 1), ask: "q".to_owned(), digest: None },
        Message::Kill { channel: id(1, 1).channel, member: MemberId(1) },
    ];
    for frame in frames {
        let what = format!("{frame:?}");
        assert_eq!(rig.hear(OTHER, frame), Vec::new(), "{what}");
    }
    let never = Message::Report { verdicts: vec![(id(1, 1), Verdict::NeverStarted)] };
    assert_eq!(rig.hear(OTHER, delivery(id(1, 1), 1, PAYLOAD)), [Effect::Send(OTHER, never)]);
    let asked = Asked { id: id(1, 1), have: 0, seen: Some(before.1), payload: None };
    let told = rig.hear(OTHER, Message::Reconcile { attempts: vec![asked] });
    let absent = Message::Report { verdicts: vec![(id(1, 1), Verdict::Absent { proven: true })] };
    assert_eq!(told, [Effect::Send(OTHER, absent)]);
    assert!(rig.resident.is_running(&id(1, 1)));
    assert_eq!((rig.journal.clone(), rig.resident.mark()), before);
    // Nor does it fence off a run that is not its own.
    let asked = Asked { id: id(2, 9), have: 0, seen: None, payload: None };
    rig.hear(OTHER, Message::Reconcile { attempts: vec![asked] });
    rig.start(id(2, 1));
}

// ---- fences ----

#[test]
fn what_was_told_absent_never_runs_when_it_comes_late() {
    let mut rig = Rig::new();
    let mark = rig.resident.mark();
    assert_eq!(rig.ask(id(1, 2), Some(mark)).0, Verdict::Absent { proven: true });
    assert!(is_void(&rig.deliver(id(1, 1))));
    assert!(is_void(&rig.deliver(id(1, 2))));
    rig.start(id(1, 3));
}

#[test]
fn what_was_refused_stopped_or_forgotten_does_not_run_again() {
    let mut rig = Rig::new();
    rig.deliver(id(1, 1));
    let refusal = Refusal { code: "no".to_owned(), message: "no".to_owned() };
    let said = rig.feed(Input::Admitted { id: id(1, 1), result: Err(refusal) });
    assert!(matches!(said[..], [Effect::Send(HOME, Message::Refused { .. })]));
    assert!(is_void(&rig.deliver(id(1, 1))));
    rig.start(id(2, 1));
    rig.end(id(2, 1));
    assert_eq!(rig.hear(HOME, Message::FinishedAck { id: id(2, 1) }), [Effect::Forget(id(2, 1))]);
    assert!(is_void(&rig.deliver(id(2, 1))));
    rig.restart("boot-1", nothing);
    assert!(is_void(&rig.deliver(id(2, 1))), "not after a restart either");
    rig.deliver(id(3, 1));
    rig.hear(HOME, Message::Stop { id: id(3, 1) });
    assert_eq!(rig.admit(id(3, 1)), Vec::new());
    assert_eq!(rig.deliver(id(3, 1)), Vec::new());
}

#[test]
fn the_latest_fences_are_kept() {
    let mut rig = Rig::new();
    let runs = FENCES_MAX as u64 + 10;
    for run in 1..=runs {
        rig.ask(id(run, 1), None);
    }
    for run in runs - FENCES_MAX as u64 + 1..=runs {
        assert!(is_void(&rig.deliver(id(run, 1))), "run {run}");
    }
    assert!(!is_void(&rig.deliver(id(1, 1))), "a run so long ago has no frames under way");
}

#[test]
fn a_newer_attempt_takes_the_place_of_an_older_one() {
    let mut rig = Rig::new();
    rig.start(id(1, 1));
    rig.restart("boot-1", nothing);
    assert_eq!(rig.deliver(id(1, 2))[0], Effect::Forget(id(1, 1)));
    rig.admit(id(1, 2));
    assert_eq!(rig.resident.open().count(), 1);
    assert!(is_void(&rig.deliver(id(1, 1))));
}

// ---- deliveries ----

#[test]
fn a_repeated_delivery_is_answered_with_where_it_stands() {
    let mut rig = Rig::new();
    rig.deliver(id(1, 1));
    assert_eq!(rig.deliver(id(1, 1)), Vec::new());
    rig.admit(id(1, 1));
    assert_eq!(rig.deliver(id(1, 1)), Vec::new());
    rig.feed(Input::AcceptedDurable(id(1, 1)));
    assert!(matches!(rig.deliver(id(1, 1))[..], [Effect::Accept { start: false, .. }, Effect::Resume { from: 0, .. }]));
    rig.end(id(1, 1));
    assert!(matches!(
        rig.deliver(id(1, 1))[..],
        [Effect::Accept { start: false, .. }, Effect::Resume { from: 0, .. }, Effect::Finish { .. }]
    ));
    let other = rig.hear(HOME, delivery(id(1, 1), 1, b"something else"));
    assert!(is_void(&other), "the same attempt with another payload is no attempt");
}

#[test]
fn the_start_carries_what_the_home_and_the_owner_said() {
    let mut rig = Rig::new();
    rig.deliver(id(1, 1));
    rig.admit(id(1, 1));
    let effects = rig.feed(Input::AcceptedDurable(id(1, 1)));
    let [Effect::Start { member, payload, admission, again, .. }] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!((*member, payload.as_slice(), *again), (MemberId(1), PAYLOAD, false));
    assert_eq!(admission.policy, Policy::Ask);
    assert_eq!(rig.feed(Input::AcceptedDurable(id(1, 1))), Vec::new(), "it starts once");
}

fn refused(effects: &[Effect]) -> &str {
    match effects {
        [Effect::Send(_, Message::Refused { code, .. })] => code,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_damaged_payload_is_refused_for_good() {
    let mut rig = Rig::new();
    assert_eq!(refused(&rig.hear(HOME, delivery(id(1, 1), 1, b"not what comes"))), "damaged");
    assert!(is_void(&rig.deliver(id(1, 1))), "its home was told that it failed");
    rig.start(id(1, 2));
}

#[test]
fn one_attempt_too_many_is_refused_and_no_home_takes_the_places_of_others() {
    let mut rig = Rig::new();
    let taken = ATTEMPTS_OF_HOME_MAX as u64;
    for run in 1..=taken {
        assert!(matches!(rig.deliver(id(run, 1))[..], [Effect::Admit { .. }]));
    }
    assert_eq!(refused(&rig.deliver(id(9999, 1))), "limit");
    let others = ATTEMPTS_MAX as u64 - taken;
    for run in 1..=others {
        let effects = rig.hear(OTHER, delivery(id(10_000 + run, 1), 10_000 + run, PAYLOAD));
        assert!(matches!(effects[..], [Effect::Admit { .. }]));
    }
    let third = DeviceId([3; 32]);
    assert_eq!(refused(&rig.hear(third, delivery(id(9998, 1), 9998, PAYLOAD))), "limit");
    rig.admit(id(1, 1));
    rig.feed(Input::AcceptedDurable(id(1, 1)));
    rig.end(id(1, 1));
    rig.hear(HOME, Message::FinishedAck { id: id(1, 1) });
    assert!(matches!(rig.deliver(id(9997, 1))[..], [Effect::Admit { .. }]), "there is room again");
}

#[test]
fn a_turn_waits_for_its_member_s_turn_before_it() {
    // The home gave the first one up, and has not heard yet that it is over here.
    type Over = fn(&mut Rig) -> Vec<Effect>;
    let ways: [(bool, Over); 2] =
        [(true, |rig| rig.end(id(1, 1))), (false, |rig| rig.hear(HOME, Message::Stop { id: id(1, 1) }))];
    for (runs, over) in ways {
        let mut rig = Rig::new();
        if runs {
            rig.start(id(1, 1))
        } else {
            rig.accept(id(1, 1))
        };
        assert!(matches!(rig.hear(HOME, delivery(id(2, 1), 1, PAYLOAD))[..], [Effect::Admit { .. }]));
        assert_eq!(rig.admit(id(2, 1)), Vec::new(), "its member is busy");
        assert_eq!(rig.ask(id(2, 1), None), (Verdict::Known, Vec::new()));
        assert_eq!(rig.hear(HOME, delivery(id(2, 1), 1, PAYLOAD)), Vec::new(), "also when it comes twice");
        assert_eq!(refused(&rig.hear(HOME, delivery(id(3, 1), 1, PAYLOAD))), "busy", "one waits, not a queue of them");
        let effects = over(&mut rig);
        assert!(
            matches!(effects.last(), Some(Effect::Accept { task: next, .. }) if next.id == id(2, 1)),
            "{effects:?}"
        );
        assert!(matches!(rig.feed(Input::AcceptedDurable(id(2, 1)))[..], [Effect::Start { .. }]));
    }
}

#[test]
fn a_turn_that_waits_is_stopped_like_any_other() {
    let mut rig = Rig::new();
    rig.start(id(1, 1));
    rig.hear(HOME, delivery(id(2, 1), 1, PAYLOAD));
    rig.admit(id(2, 1));
    rig.hear(HOME, Message::Stop { id: id(2, 1) });
    assert_eq!(rig.ask(id(2, 1), None).0, Verdict::NeverStarted);
    assert!(matches!(rig.end(id(1, 1))[..], [Effect::Finish { .. }]), "nothing follows");
    assert_eq!(rig.hear(HOME, Message::FinishedAck { id: id(2, 1) }), [Effect::Forget(id(2, 1))]);
}

#[test]
fn a_node_that_stops_begins_nothing_that_waits() {
    let mut rig = Rig::new();
    rig.start(id(1, 1));
    rig.hear(HOME, delivery(id(2, 1), 1, PAYLOAD));
    rig.admit(id(2, 1));
    assert!(matches!(rig.feed(Input::Stopped(id(1, 1)))[..], [Effect::Send(_, Message::Report { .. })]));
    let effects = rig.hear(HOME, Message::FinishedAck { id: id(1, 1) });
    assert!(matches!(effects[..], [Effect::Forget(_), Effect::Accept { .. }]), "it goes on when its home does");
}

#[test]
fn a_number_that_another_node_uses_costs_a_home_no_turn() {
    let mut rig = Rig::new();
    assert!(matches!(rig.hear(OTHER, delivery(id(1, 1), 1, PAYLOAD))[..], [Effect::Admit { .. }]));
    let told = rig.deliver(id(1, 1));
    let expected = Message::Report { verdicts: vec![(id(1, 1), Verdict::NeverStarted)] };
    assert_eq!(told, [Effect::Send(HOME, expected)]);
    assert!(matches!(rig.deliver(id(1, 2))[..], [Effect::Admit { home: HOME, .. }]), "it is tried again at once");
}

#[test]
fn the_next_try_stops_one_that_still_runs_and_waits_for_it() {
    let mut rig = Rig::new();
    rig.start(id(1, 1));
    assert!(matches!(rig.deliver(id(1, 2))[..], [Effect::Interrupt(..), Effect::Admit { .. }]));
    assert_eq!(rig.admit(id(1, 2)), Vec::new());
    assert!(rig.resident.is_running(&id(1, 1)), "its end is waited for");
    assert!(matches!(rig.end(id(1, 1))[..], [Effect::Finish { .. }, Effect::Accept { .. }]));
    // Neither does an older one come back.
    let mut rig = Rig::new();
    rig.start(id(1, 2));
    assert!(is_void(&rig.deliver(id(1, 1))));
}

#[test]
fn threat_another_home_cannot_have_attempts_forgotten() {
    let mut rig = Rig::new();
    rig.start(id(1, 1));
    rig.start(id(2, 1));
    rig.end(id(2, 1));
    let journal = rig.journal.len();
    for run in [1, 2] {
        // A later try of the same run, for a member that is not busy.
        let effects = rig.hear(OTHER, delivery(id(run, 2), 99 + run, PAYLOAD));
        assert!(matches!(effects[..], [Effect::Admit { .. }]), "its owner refuses it: {effects:?}");
        let refusal = Refusal { code: "not_home".to_owned(), message: "no".to_owned() };
        rig.feed(Input::Admitted { id: id(run, 2), result: Err(refusal) });
    }
    assert_eq!(rig.journal.len(), journal, "nothing was forgotten");
    assert!(rig.resident.is_running(&id(1, 1)));
    assert!(matches!(rig.ask(id(2, 1), None).1[..], [.., Effect::Finish { .. }]));
    assert!(matches!(rig.deliver(id(2, 2))[..], [Effect::Forget(_), Effect::Admit { .. }]), "nor fenced off");
}

#[test]
fn threat_another_home_cannot_push_fences_out() {
    let mut rig = Rig::new();
    rig.ask(id(1, 1), None);
    for run in 0..FENCES_MAX as u64 + 10 {
        let asked = Asked { id: id(run, 1), have: 0, seen: None, payload: None };
        rig.hear(OTHER, Message::Reconcile { attempts: vec![asked] });
    }
    assert!(is_void(&rig.deliver(id(1, 1))));
}

#[test]
fn what_ran_and_was_forgotten_is_not_proven_absent() {
    // The home's log went back to before the end: it asks again, with the mark that it had when it sent the attempt.
    let mut rig = Rig::new();
    let seen = rig.resident.mark();
    rig.start(id(1, 1));
    rig.end(id(1, 1));
    rig.hear(HOME, Message::FinishedAck { id: id(1, 1) });
    assert_eq!(rig.ask(id(1, 1), Some(seen)).0, Verdict::Absent { proven: false });
    assert_eq!(rig.ask(id(2, 1), Some(seen)).0, Verdict::Absent { proven: true }, "others never arrived");
    rig.restart("boot-1", nothing);
    assert_eq!(rig.ask(id(1, 1), Some(seen)).0, Verdict::Absent { proven: false });
}

#[test]
fn a_number_that_stands_for_another_payload_here_is_said_to() {
    let mut rig = Rig::new();
    rig.start(id(1, 1));
    rig.end(id(1, 1));
    let other = Some(Hash::of(b"what the home has sent since its log went back"));
    let asked = Asked { id: id(1, 1), have: 0, seen: None, payload: other };
    assert!(is_void(&rig.hear(HOME, Message::Reconcile { attempts: vec![asked] })), "and no events follow");
    let same = Asked { payload: Some(Hash::of(PAYLOAD)), ..asked };
    let effects = rig.hear(HOME, Message::Reconcile { attempts: vec![same] });
    assert!(matches!(effects[..], [.., Effect::Finish { .. }]));
}

#[test]
fn events_without_their_hand_over_are_no_proof_that_nothing_began() {
    // A disk that fails takes the record with it, and the node has not gone down since.
    let mut rig = Rig::new();
    rig.accept(id(1, 1));
    rig.restart("boot-1", some);
    assert!(matches!(rig.ask(id(1, 1), None).0, Verdict::Ambiguous { .. }));
}

#[test]
fn a_session_that_no_delivery_could_carry_is_left_out() {
    let mut rig = Rig::new();
    rig.start(id(1, 1));
    let session = Some("s".repeat(SESSION_LEN_MAX + 1));
    let end = Input::Ended { id: id(1, 1), events: 2, length: 20, journal: Hash::of(b"j"), session };
    assert!(matches!(rig.feed(end)[..], [Effect::Finish { session: None, .. }]));
}

// ---- ends ----

#[test]
fn an_end_is_acknowledged_once_and_again() {
    let mut rig = Rig::new();
    rig.start(id(1, 1));
    assert!(matches!(rig.end(id(1, 1))[..], [Effect::Finish { .. }]));
    assert_eq!(rig.end(id(1, 1)), Vec::new(), "it ends once");
    let journal = rig.journal.len();
    assert_eq!(rig.hear(HOME, Message::FinishedAck { id: id(1, 1) }), [Effect::Forget(id(1, 1))]);
    let forgotten = rig.journal.len();
    assert!(forgotten > journal);
    assert_eq!(rig.hear(HOME, Message::FinishedAck { id: id(1, 1) }), Vec::new());
    assert_eq!(rig.journal.len(), forgotten);
    assert_eq!(rig.resident.open().count(), 0);
}

#[test]
fn what_a_home_gave_up_while_it_ran_is_forgotten_when_it_ends() {
    let mut rig = Rig::new();
    rig.start(id(1, 1));
    assert_eq!(rig.hear(HOME, Message::FinishedAck { id: id(1, 1) }), Vec::new(), "what runs is not forgotten");
    assert!(rig.resident.is_running(&id(1, 1)));
    assert_eq!(rig.end(id(1, 1)), [Effect::Forget(id(1, 1))], "nobody asks how it ended");
    assert_eq!(rig.resident.open().count(), 0);
    // What the harness does not have never gets there.
    rig.accept(id(2, 1));
    assert_eq!(rig.hear(HOME, Message::FinishedAck { id: id(2, 1) }), [Effect::Forget(id(2, 1))]);
    assert_eq!(rig.feed(Input::AcceptedDurable(id(2, 1))), Vec::new());
    rig.deliver(id(3, 1));
    assert_eq!(rig.hear(HOME, Message::FinishedAck { id: id(3, 1) }), [Effect::Forget(id(3, 1))]);
    assert_eq!(rig.admit(id(3, 1)), Vec::new());
    assert!(is_void(&rig.deliver(id(3, 1))));
    // Nor what has not come yet.
    assert_eq!(rig.hear(HOME, Message::FinishedAck { id: id(4, 1) }), Vec::new());
    assert!(is_void(&rig.deliver(id(4, 1))));
}

#[test]
fn what_a_home_gave_up_is_forgotten_whatever_it_was() {
    let mut rig = Rig::new();
    rig.start(id(1, 1));
    rig.accept(id(2, 1));
    rig.restart("boot-1", nothing);
    for run in [1, 2] {
        assert_eq!(rig.hear(HOME, Message::FinishedAck { id: id(run, 1) }), [Effect::Forget(id(run, 1))]);
    }
    rig.restart("boot-1", nothing);
    assert_eq!(rig.resident.open().count(), 0);
}

#[test]
fn a_home_that_comes_back_is_told_of_everything_that_is_kept_for_it() {
    let mut rig = busy_life();
    rig.restart("boot-1", |id| if id.run == MessageId(2) { whole(id) } else { nothing(id) });
    let effects = rig.feed(Input::LinkUp(HOME));
    let [Effect::Send(HOME, Message::Report { verdicts })] = &effects[..] else { panic!("{effects:?}") };
    let open = rig.resident.open().map(|(id, _)| *id).collect::<Vec<_>>();
    assert_eq!(verdicts.iter().map(|(id, _)| *id).collect::<Vec<_>>(), open);
    assert_eq!(verdicts[0], (id(2, 1), Verdict::Known));
    assert!(matches!(verdicts[1], (_, Verdict::Ambiguous { .. })));
    assert_eq!(verdicts[2], (id(4, 1), Verdict::NeverStarted));
    assert_eq!(rig.feed(Input::LinkUp(OTHER)), Vec::new());
}

#[test]
fn a_long_report_comes_in_pieces() {
    let mut rig = Rig::new();
    let attempts =
        (1..=VERDICTS_MAX as u64 + 1).map(|run| Asked { id: id(run, 1), have: 0, seen: None, payload: None });
    let effects = rig.hear(HOME, Message::Reconcile { attempts: attempts.collect() });
    let sizes = effects.iter().map(|effect| match effect {
        Effect::Send(HOME, Message::Report { verdicts }) => verdicts.len(),
        other => panic!("{other:?}"),
    });
    assert_eq!(sizes.collect::<Vec<_>>(), [VERDICTS_MAX, 1]);
}

#[test]
fn a_node_that_stops_leaves_what_ran_unknown_and_nothing_else() {
    let mut rig = Rig::new();
    rig.start(id(1, 1));
    rig.accept(id(2, 1));
    rig.start(id(3, 1));
    rig.end(id(3, 1));
    // What ran is told at once; the rest is left as it was.
    assert!(matches!(rig.feed(Input::Stopped(id(1, 1)))[..], [Effect::Send(_, Message::Report { .. })]));
    for run in 2..=4 {
        assert_eq!(rig.feed(Input::Stopped(id(run, 1))), Vec::new());
    }
    assert!(matches!(rig.ask(id(1, 1), None).0, Verdict::Ambiguous { .. }));
    assert_eq!(rig.ask(id(2, 1), None).0, Verdict::Known);
    assert_eq!(rig.ask(id(3, 1), None).0, Verdict::Known);
    assert_eq!(rig.end(id(1, 1)), Vec::new(), "what it says now is no end");
}

// ---- stops and answers ----

fn yes() -> Answer {
    Answer { choice: vec!["yes".to_owned()], text: None }
}

#[test]
fn a_stop_reaches_the_harness_or_keeps_the_payload_from_it() {
    let mut rig = Rig::new();
    rig.start(id(1, 1));
    assert_eq!(rig.hear(HOME, Message::Stop { id: id(1, 1) }), [Effect::Interrupt(id(1, 1), HOME)]);
    let never = |run| {
        let verdicts = vec![(id(run, 1), Verdict::NeverStarted)];
        let ok = Effect::Send(HOME, Message::StopOk { id: id(run, 1) });
        [ok, Effect::Send(HOME, Message::Report { verdicts })]
    };
    rig.deliver(id(2, 1));
    assert_eq!(rig.hear(HOME, Message::Stop { id: id(2, 1) }), never(2));
    assert_eq!(rig.admit(id(2, 1)), Vec::new());
    rig.accept(id(3, 1));
    assert_eq!(rig.hear(HOME, Message::Stop { id: id(3, 1) }), never(3));
    assert_eq!(rig.feed(Input::AcceptedDurable(id(3, 1))), Vec::new());
    assert_eq!(rig.hear(HOME, Message::Stop { id: id(3, 1) }), never(3), "asked again, told again");
    rig.end(id(1, 1));
    let ok = Effect::Send(HOME, Message::StopOk { id: id(1, 1) });
    assert_eq!(rig.hear(HOME, Message::Stop { id: id(1, 1) }), [ok]);
    assert_eq!(rig.hear(HOME, Message::Stop { id: id(9, 1) }), Vec::new());
}

#[test]
fn an_answer_reaches_the_harness_once() {
    let mut rig = Rig::new();
    let answer = |ask: &str| Message::Answer { id: id(1, 1), ask: ask.to_owned(), digest: None };
    let moot = |ask: &str| vec![Effect::Send(HOME, Message::AnswerOk { id: id(1, 1), ask: ask.to_owned() })];
    rig.accept(id(1, 1));
    assert_eq!(rig.hear(HOME, answer("q")), moot("q"), "nothing has been asked");
    rig.feed(Input::AcceptedDurable(id(1, 1)));
    let broken = Input::Frame { home: HOME, message: answer("q"), tail: b"{".to_vec() };
    assert_eq!(rig.feed(broken), Vec::new(), "what is no answer leaves the question open");
    assert!(matches!(rig.hear(HOME, answer("q"))[..], [Effect::Answer { .. }]));
    assert_eq!(rig.hear(HOME, answer("q")), moot("q"));
    assert!(matches!(rig.hear(HOME, answer("q2"))[..], [Effect::Answer { .. }]));
    rig.end(id(1, 1));
    assert_eq!(rig.hear(HOME, answer("q3")), moot("q3"));
}

#[test]
fn a_kill_ends_the_process_of_a_member_of_that_home() {
    let mut rig = Rig::new();
    let channel = id(1, 1).channel;
    let kill = Message::Kill { channel, member: MemberId(1) };
    assert_eq!(rig.hear(HOME, kill.clone()), [Effect::Kill(channel, MemberId(1))]);
    rig.start(id(1, 1));
    assert_eq!(rig.hear(OTHER, kill), Vec::new());
}

// ---- marks ----

#[test]
fn absence_proves_something_only_for_marks_that_the_journal_has_grown_from() {
    let mut rig = Rig::new();
    let mut marks = vec![rig.resident.mark()];
    for run in 1..20 {
        rig.start(id(run, 1));
        rig.end(id(run, 1));
        marks.push(rig.resident.mark());
    }
    let mut proves = |seen: Option<JournalMark>| match rig.ask(id(999, 1), seen).0 {
        Verdict::Absent { proven } => proven,
        other => panic!("{other:?}"),
    };
    for mark in &marks {
        assert!(proves(Some(*mark)));
    }
    let last = marks[marks.len() - 1];
    assert!(!proves(None));
    assert!(!proves(Some(JournalMark { incarnation: Incarnation([4; 16]), ..last })), "another life");
    assert!(!proves(Some(JournalMark { head: Hash::of(b"other"), ..last })), "another history");
    assert!(!proves(Some(JournalMark { count: last.count - 1, ..last })), "another place");
    assert!(!proves(Some(JournalMark { count: last.count + 1, ..last })), "a journal that was longer once");
    assert!(!proves(Some(JournalMark { count: u64::MAX, ..last })));
    assert!(!proves(Some(JournalMark { count: 0, head: Hash::ZERO, ..last })), "before its first record");
}

#[test]
fn a_box_that_lost_unsynced_records_does_not_vouch_for_what_it_had_said() {
    let mut rig = Rig::new();
    rig.start(id(1, 1));
    let told = rig.resident.mark();
    assert!(rig.journal.len() > rig.synced, "the hand-over is not synced");
    rig.journal.truncate(rig.synced);
    rig.restart("boot-2", nothing);
    assert_eq!(rig.ask(id(2, 1), Some(told)).0, Verdict::Absent { proven: false });
    // Nor when it has grown past that place with other records.
    rig.start(id(3, 1));
    rig.end(id(3, 1));
    assert_eq!(rig.ask(id(4, 1), Some(told)).0, Verdict::Absent { proven: false });
}

#[test]
fn a_mark_of_long_ago_proves_nothing_any_more() {
    let mut rig = Rig::new();
    let old = rig.resident.mark();
    let mut run = 1;
    while rig.resident.mark().count < HEADS_MAX as u64 {
        rig.start(id(run, 1));
        rig.end(id(run, 1));
        rig.hear(HOME, Message::FinishedAck { id: id(run, 1) });
        run += 1;
    }
    let before = rig.resident.mark();
    assert!(matches!(rig.ask(id(90_001, 1), Some(before)).0, Verdict::Absent { proven: true }));
    rig.start(id(run, 1));
    rig.end(id(run, 1));
    assert_eq!(rig.ask(id(90_002, 1), Some(old)).0, Verdict::Absent { proven: false });
    rig.restart("boot-1", nothing);
    assert_eq!(rig.ask(id(90_003, 1), Some(before)).0, Verdict::Absent { proven: true }, "also after a restart");
}

// ---- anything, in any order ----

/// Frames as homes, broken or hostile ones too, may send them.
fn any_frame(rng: &mut impl Rng) -> Message {
    let mut below = |bound: u64| rng.next_u64() % bound;
    let of = id(1 + below(4), 1 + u32::try_from(below(3)).expect("small"));
    match below(9) {
        0..=2 => delivery(of, 1 + of.run.0 % 3, if below(8) == 0 { b"other" } else { PAYLOAD }),
        3 => Message::Stop { id: of },
        4 => Message::FinishedAck { id: of },
        5 => Message::Answer { id: of, ask: format!("q{}", below(3)), digest: None },
        6 => Message::Kill { channel: of.channel, member: MemberId(1 + below(3)) },
        7 => Message::EventsAck { id: of, upto: below(5) },
        _ => Message::Reconcile {
            attempts: (0..below(4))
                .map(|_| Asked { id: id(1 + below(4), 1), have: below(3), seen: None, payload: None })
                .collect(),
        },
    }
}

/// A shell that does what it is told, in its own time.
#[derive(Default)]
struct Shell {
    asking: VecDeque<AttemptId>,
    accepted: VecDeque<AttemptId>,
    running: BTreeMap<AttemptId, MemberId>,
    started: BTreeSet<AttemptId>,
}

impl Shell {
    fn act(&mut self, effects: &[Effect]) {
        for effect in effects {
            match effect {
                Effect::Admit { id, .. } => self.asking.push_back(*id),
                Effect::Accept { task, start: true, .. } => self.accepted.push_back(task.id),
                Effect::Start { id, member, .. } => {
                    assert!(self.started.insert(*id), "{id:?} starts twice");
                    assert!(self.running.values().all(|other| other != member), "two turns of {member} at once");
                    self.running.insert(*id, *member);
                }
                Effect::Forget(id) => assert!(!self.running.contains_key(id), "what runs is not forgotten"),
                _ => {}
            }
        }
    }

    fn next(&mut self, rng: &mut impl Rng) -> Input {
        let admission = Admission { cwd: "/work".to_owned(), policy: Policy::Ask };
        match rng.next_u64() % 9 {
            0 if !self.asking.is_empty() => {
                Input::Admitted { id: self.asking.pop_front().expect("some"), result: Ok(admission) }
            }
            1 if !self.asking.is_empty() => {
                let refusal = Refusal { code: "no".to_owned(), message: "no".to_owned() };
                Input::Admitted { id: self.asking.pop_front().expect("some"), result: Err(refusal) }
            }
            2 | 3 if !self.accepted.is_empty() => Input::AcceptedDurable(self.accepted.pop_front().expect("some")),
            4 if !self.running.is_empty() => {
                let (id, _) = self.running.pop_first().expect("some");
                Input::Ended { id, events: 2, length: 20, journal: Hash::of(b"j"), session: None }
            }
            5 if !self.running.is_empty() && rng.next_u64().is_multiple_of(4) => {
                Input::Stopped(self.running.pop_first().expect("some").0)
            }
            6 => Input::LinkUp(HOME),
            _ => Input::Frame { home: HOME, message: any_frame(rng), tail: PAYLOAD.to_vec() },
        }
    }
}

#[test]
fn whatever_a_home_says_an_attempt_starts_once_and_a_member_runs_one_turn() {
    for seed in 0..400 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (mut rig, mut shell) = (Rig::new(), Shell::default());
        for _ in 0..200 {
            if rng.next_u64().is_multiple_of(50) {
                // The process dies; what was written is there, what ran is not.
                rig.restart("boot-1", nothing);
                shell = Shell { started: shell.started, ..Shell::default() };
            }
            let input = shell.next(&mut rng);
            shell.act(&rig.feed(input));
        }
        // A home that knows of nothing any more, and a harness that comes to its end: nothing stays.
        for _ in 0..20 {
            for (id, home) in rig.resident.open().map(|(id, home)| (*id, home)).collect::<Vec<_>>() {
                shell.act(&rig.hear(home, Message::Stop { id }));
                shell.act(&rig.hear(home, Message::FinishedAck { id }));
            }
            while let Some((id, _)) = shell.running.pop_first() {
                shell.act(&rig.end(id));
            }
        }
        assert_eq!(rig.resident.open().count(), 0, "seed {seed}");
    }
}

#[test]
fn threat_whatever_another_node_says_a_home_s_attempts_go_on_as_if_it_were_silent() {
    for seed in 0..200 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (mut alone, mut rig, mut shell) = (Rig::new(), Rig::new(), Shell::default());
        for step in 0..150 {
            let message = any_frame(&mut rng);
            for effect in rig.hear(OTHER, message) {
                match effect {
                    // The owner asks the org's chain whose channel it is.
                    Effect::Admit { id, home: OTHER, .. } => {
                        let refusal = Refusal { code: "not_home".to_owned(), message: "no".to_owned() };
                        rig.feed(Input::Admitted { id, result: Err(refusal) });
                    }
                    Effect::Send(OTHER, _) => {}
                    // Whose member it is says the shell, from the chain: nothing of another home's runs.
                    Effect::Kill(channel, member) => {
                        let busy = shell.running.iter().any(|(id, of)| id.channel == channel && *of == member);
                        assert!(!busy, "seed {seed}");
                    }
                    other => panic!("seed {seed}: {other:?}"),
                }
            }
            let mut twin = rng.clone();
            let mut shadow = Shell {
                asking: shell.asking.clone(),
                accepted: shell.accepted.clone(),
                running: shell.running.clone(),
                started: shell.started.clone(),
            };
            let effects = rig.feed(shell.next(&mut rng));
            assert_eq!(alone.feed(shadow.next(&mut twin)), effects, "seed {seed}, step {step}");
            assert_eq!((alone.resident.mark(), &alone.journal), (rig.resident.mark(), &rig.journal));
            shell.act(&effects);
        }
    }
}
