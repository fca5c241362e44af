//! Whole logs: built, damaged, verified.

use std::collections::BTreeMap;

use ed25519_dalek::SigningKey;
use proptest::prelude::*;

use super::*;
use crate::crypto::sign::device_id;
use crate::entry::{Auth, Body, ChannelDraft, NewEntry, Post, Routed};
use crate::id::{COUNTER_MAX, ChannelName, DeviceId, MessageId};

fn key(n: u8) -> SigningKey {
    SigningKey::from_bytes(&[n; 32])
}

fn entry(seq: u64, body: Body) -> NewEntry {
    NewEntry {
        seq: Seq(seq),
        epoch: Epoch(1),
        lamport: Lamport(seq * 3),
        org: Hash::ZERO,
        ts: 1_700_000_000_000,
        by: None,
        auth: Auth::Home,
        body,
    }
}

fn draft() -> String {
    let draft = ChannelDraft {
        org: OrgId([7; 16]),
        home: DeviceId([1; 32]),
        name: ChannelName::new("lobby").unwrap(),
        nonce: Hash::of(b"n"),
    };
    serde_json::to_string(&draft).unwrap()
}

fn posted(seq: u64, text: &str) -> NewEntry {
    let post = Post { text: text.to_owned(), ..Post::default() };
    entry(seq, Body::Posted { message: MessageId(seq), client: None, run: None, post, routed: Routed::default() })
}

fn log_id() -> LogId {
    LogId::Channel(channel_id(&draft()))
}

/// A log of batches of these sizes.
fn built(sizes: &[usize], key: &SigningKey) -> (Vec<u8>, LogBuilder) {
    let mut builder = LogBuilder::new(log_id(), Head::default());
    let mut out = Vec::new();
    let mut seq = 0;
    for size in sizes {
        for _ in 0..*size {
            seq += 1;
            let first = || entry(seq, Body::ChannelCreated { draft: draft() });
            let new = if seq == 1 { first() } else { posted(seq, "say \"hello\"") };
            builder.append(new, &mut out).unwrap();
        }
        builder.seal(key, &mut out).unwrap();
    }
    (out, builder)
}

fn verify(bytes: &[u8], homes: Homes) -> Verdict {
    let mut verifier = Verifier::new(log_id(), homes);
    for line in line::split(bytes) {
        if verifier.feed(line).is_err() {
            break;
        }
    }
    verifier.finish()
}

fn fault(bytes: &[u8]) -> (Seq, Fault) {
    let bad = verify(bytes, Homes::One(device_id(&key(1)))).bad.expect("it is bad");
    (bad.seq, bad.fault)
}

#[test]
fn what_is_built_verifies() {
    let (bytes, builder) = built(&[1, 3, 2], &key(1));
    for homes in [Homes::One(device_id(&key(1))), Homes::trust_first()] {
        let verdict = verify(&bytes, homes);
        assert_eq!(verdict, Verdict { entries: 6, head: builder.head(), bad: None });
    }
}

/// For each line: the seq that is to be named when it is damaged.
fn names(bytes: &[u8]) -> Vec<(std::ops::Range<usize>, Seq)> {
    let (mut at, mut seq, mut from) = (0, 0, 1);
    let mut names = Vec::new();
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let name = if line.starts_with(br#"{"seq""#) {
            seq += 1;
            seq
        } else {
            std::mem::replace(&mut from, seq + 1)
        };
        names.push((at..at + line.len(), Seq(name)));
        at += line.len();
    }
    names
}

#[test]
fn a_flipped_byte_anywhere_is_named_by_its_entry() {
    let (bytes, _) = built(&[1, 3, 2], &key(1));
    for (range, seq) in names(&bytes) {
        let line_end = range.end - 1;
        for at in range {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            if at == line_end {
                // Without its LF the line runs into the next one.
                assert!(verify(&damaged, Homes::One(device_id(&key(1)))).bad.is_some());
            } else {
                let found = fault(&damaged);
                assert_eq!(found.0, seq, "byte {at}: {}", found.1);
            }
        }
    }
}

#[test]
fn lines_that_are_dropped_swapped_or_doubled_are_named() {
    let (bytes, _) = built(&[1, 4, 1], &key(1));
    let lines: Vec<_> = line::split(&bytes).collect();
    let join = |order: &[usize]| order.iter().flat_map(|i| [lines[*i], b"\n"].concat()).collect::<Vec<u8>>();
    // 0: entry 1, 1: seal, 2..6: entries 2..=5, 6: seal, 7: entry 6, 8: seal
    assert_eq!(fault(&join(&[0, 1, 2, 4, 5, 6])), (Seq(3), Fault::Gap { got: Seq(4) }));
    assert_eq!(fault(&join(&[0, 1, 2, 4, 3, 5, 6])), (Seq(3), Fault::Gap { got: Seq(4) }));
    assert_eq!(fault(&join(&[0, 1, 2, 2])), (Seq(3), Fault::Gap { got: Seq(2) }));
    assert_eq!(fault(&join(&[0, 1, 2, 3])), (Seq(2), Fault::Unsealed));
    assert_eq!(fault(&join(&[0, 1, 6])).1, Fault::OtherBatch);
    assert_eq!(fault(&join(&[0, 1, 1])).1, Fault::OtherBatch);
    assert_eq!(fault(&join(&[2])), (Seq(1), Fault::Gap { got: Seq(2) }));
    // Without the seal of entries 2 to 5, entry 6 stands in a batch that nobody sealed.
    assert!(verify(&join(&[0, 1, 2, 3, 4, 5, 7, 8]), Homes::trust_first()).bad.is_some());
}

#[test]
fn another_log_or_another_home_is_refused() {
    let (bytes, _) = built(&[2], &key(1));
    let one = Homes::One(device_id(&key(2)));
    assert!(matches!(verify(&bytes, one).bad, Some(Bad { fault: Fault::NotHome(_), .. })));
    let mut other = Verifier::new(LogId::Channel(ChannelId([9; 32])), Homes::trust_first());
    let first = line::split(&bytes).next().unwrap();
    assert!(matches!(other.feed(first), Err(Bad { seq: Seq(1), fault: Fault::OtherLog(_) })));
    // It stays refused.
    assert!(other.feed(first).is_err());
}

#[test]
fn a_second_signer_is_refused_when_the_first_is_trusted() {
    let (mut bytes, mut builder) = built(&[1], &key(1));
    builder.append(posted(2, "x"), &mut bytes).unwrap();
    builder.seal(&key(2), &mut bytes).unwrap();
    let verdict = verify(&bytes, Homes::trust_first());
    assert_eq!(verdict.entries, 1);
    assert!(matches!(verdict.bad, Some(Bad { seq: Seq(2), fault: Fault::NotHome(_) })));
}

#[test]
fn lines_of_an_old_epoch_are_void_once_the_next_has_begun() {
    let (bytes, builder) = built(&[2, 2], &key(1));
    let (old, new) = (device_id(&key(1)), device_id(&key(2)));
    let terms = |start, prev| {
        Homes::terms([
            Term { epoch: Epoch(1), home: old, start: Seq(1), prev: Hash::ZERO },
            Term { epoch: Epoch(2), home: new, start, prev },
        ])
    };
    assert_eq!(verify(&bytes, terms(Seq(5), builder.head().tip)).bad, None);
    let bad = verify(&bytes, terms(Seq(3), Hash::ZERO)).bad.unwrap();
    assert_eq!(bad.seq, Seq(3));
    assert!(matches!(bad.fault, Fault::NotHome(homes::NotHome::OutOfTerm { .. })));

    let mut moved = (bytes, builder);
    let tip = moved.1.head().tip;
    moved.1.append(NewEntry { epoch: Epoch(2), ..posted(5, "moved") }, &mut moved.0).unwrap();
    moved.1.seal(&key(2), &mut moved.0).unwrap();
    assert_eq!(verify(&moved.0, terms(Seq(5), tip)).bad, None);
    let elsewhere = verify(&moved.0, terms(Seq(5), Hash::ZERO)).bad.unwrap();
    assert!(matches!(elsewhere.fault, Fault::NotHome(homes::NotHome::OtherLine { .. })));
}

#[test]
fn the_builder_refuses_what_the_verifier_would() {
    let (mut bytes, builder) = built(&[1], &key(1));
    let before = bytes.len();
    let mut refused = |entry: NewEntry| builder.clone().append(entry, &mut bytes).unwrap_err();
    assert!(matches!(refused(posted(1, "")), BuildError::NotNext { .. }));
    assert!(matches!(refused(posted(3, "")), BuildError::NotNext { .. }));
    assert!(matches!(refused(NewEntry { lamport: Lamport(3), ..posted(2, "") }), BuildError::Lamport { .. }));
    let far = Lamport(4 + LAMPORT_JUMP_MAX);
    assert!(matches!(refused(NewEntry { lamport: far, ..posted(2, "") }), BuildError::Lamport { .. }));
    assert!(matches!(refused(NewEntry { epoch: Epoch(0), ..posted(2, "") }), BuildError::EpochBack { .. }));
    assert!(matches!(refused(posted(2, &"x".repeat(LINE_LEN_MAX))), BuildError::LineTooLong { .. }));
    assert_eq!(bytes.len(), before);

    let end = Head { seq: Seq(COUNTER_MAX), lamport: Lamport(5), ..Head::default() };
    let mut full = LogBuilder::new(log_id(), end);
    assert!(matches!(full.append(posted(1, ""), &mut bytes), Err(BuildError::NotNext { .. })));
    let late = Head { seq: Seq(1), lamport: Lamport(COUNTER_MAX), ..Head::default() };
    let entry = NewEntry { lamport: Lamport(COUNTER_MAX + 1), ..posted(2, "") };
    assert!(matches!(LogBuilder::new(log_id(), late).append(entry, &mut bytes), Err(BuildError::Lamport { .. })));
}

#[test]
fn a_batch_has_one_epoch_and_a_bounded_length() {
    let (mut bytes, mut builder) = built(&[1], &key(1));
    for seq in 2..2 + BATCH_ENTRIES_MAX as u64 {
        builder.append(posted(seq, ""), &mut bytes).unwrap();
    }
    let next = 2 + BATCH_ENTRIES_MAX as u64;
    assert!(matches!(builder.append(posted(next, ""), &mut bytes), Err(BuildError::BatchFull)));
    builder.seal(&key(1), &mut bytes).unwrap();
    builder.append(posted(next, ""), &mut bytes).unwrap();
    let later = NewEntry { epoch: Epoch(2), ..posted(next + 1, "") };
    assert!(matches!(builder.append(later, &mut bytes), Err(BuildError::EpochChanges)));
    assert!(matches!(
        LogBuilder::new(log_id(), Head::default()).seal(&key(1), &mut bytes),
        Err(BuildError::NothingToSeal)
    ));
    builder.seal(&key(1), &mut bytes).unwrap();
    assert_eq!(verify(&bytes, Homes::trust_first()).bad, None);
}

#[test]
fn a_check_resumes_behind_a_seal() {
    let (bytes, builder) = built(&[1, 2], &key(1));
    let mut tail = Vec::new();
    let mut later = builder.clone();
    later.append(posted(4, "later"), &mut tail).unwrap();
    later.seal(&key(1), &mut tail).unwrap();
    let mut verifier = Verifier::resume(log_id(), Homes::trust_first(), builder.head());
    line::split(&tail).for_each(|line| drop(verifier.feed(line).unwrap()));
    assert_eq!(verifier.head(), later.head());
    assert_eq!(verify(&[bytes, tail].concat(), Homes::trust_first()).head, later.head());
}

#[test]
fn an_org_is_named_by_its_founding_line() {
    let body = Body::OrgFounded { name: "home".to_owned(), root: DeviceId([3; 32]), nonce: Hash::of(b"r") };
    let mut first = Vec::new();
    line::write(&entry(1, body.clone()).at(Hash::ZERO), &mut first).unwrap();
    let log = LogId::Org(org_id(&first));
    let (mut bytes, mut builder) = (Vec::new(), LogBuilder::new(log, Head::default()));
    builder.append(entry(1, body), &mut bytes).unwrap();
    builder.seal(&key(1), &mut bytes).unwrap();
    let mut verifier = Verifier::new(log, Homes::One(device_id(&key(1))));
    line::split(&bytes).for_each(|line| drop(verifier.feed(line).unwrap()));
    assert_eq!(verifier.finish().bad, None);
    let mut other = Verifier::new(LogId::Org(OrgId([0; 16])), Homes::trust_first());
    assert!(other.feed(line::split(&bytes).next().unwrap()).is_err());
}

#[test]
fn threat_a3_a_receipt_proves_an_omitted_entry() {
    let mut builder = built(&[1], &key(1)).1;
    let mut bytes = Vec::new();
    for seq in 2..6 {
        builder.append(posted(seq, "kept"), &mut bytes).unwrap();
    }
    let hashes = builder.seal(&key(1), &mut bytes).unwrap();
    let lines: Vec<_> = line::split(&bytes).collect();
    let text = receipt::receipt(Seq(3), &hashes, lines[4]);
    let proof = verify_receipt(&text).unwrap();
    assert_eq!((proof.seq, proof.home, proof.log), (Seq(3), device_id(&key(1)), log_id().sealed_as()));
    assert!(proof.covers(lines[1]));
    assert!(!proof.covers(lines[0]));

    let outside = receipt::receipt(Seq(6), &hashes, lines[4]);
    assert!(matches!(verify_receipt(&outside), Err(ReceiptError::NotCovered(Seq(6)))));
    let mut swapped = hashes.clone();
    swapped.swap(0, 1);
    assert!(verify_receipt(&receipt::receipt(Seq(3), &swapped, lines[4])).is_err());
    assert!(verify_receipt(&receipt::receipt(Seq(3), &hashes[1..], lines[4])).is_err());
    assert!(verify_receipt(&receipt::receipt(Seq(3), &hashes, lines[3])).is_err());
    for end in 0..text.len() {
        assert!(verify_receipt(&text[..end]).is_err());
    }

    // Well signed, but of a head that no log can have behind these lines.
    let Line::Seal(seal) = Line::parse(lines[4]).unwrap() else { panic!("no seal") };
    let headless = Seal::new(seal::Sealed { head: Hash::of(b"elsewhere"), ..seal.seal }, &key(1));
    let headless = serde_json::to_vec(&headless).unwrap();
    assert!(verify_receipt(&receipt::receipt(Seq(3), &hashes, &headless)).is_err());
}

#[test]
fn the_longest_receipt_is_accepted() {
    let mut builder = built(&[1], &key(1)).1;
    let mut bytes = Vec::new();
    for seq in 2..2 + BATCH_ENTRIES_MAX as u64 {
        builder.append(posted(seq, ""), &mut bytes).unwrap();
    }
    let hashes = builder.seal(&key(1), &mut bytes).unwrap();
    let text = receipt::receipt(Seq(9), &hashes, line::split(&bytes).last().unwrap());
    assert!(text.len() <= receipt::RECEIPT_LEN_MAX, "{}", text.len());
    assert_eq!(verify_receipt(&text).unwrap().line, hashes[7]);
}

#[test]
fn first_signers_are_remembered_by_epoch() {
    let (bytes, _) = built(&[1], &key(1));
    let homes = Homes::First(BTreeMap::from([(Epoch(1), device_id(&key(2)))]));
    assert!(verify(&bytes, homes).bad.is_some());
}

proptest! {
    #[test]
    fn any_receipt_text_is_a_proof_or_an_error(text in "[A-Za-z0-9_-]{0,400}") {
        prop_assert!(verify_receipt(&text).is_err());
    }

    #[test]
    fn logs_verify_whatever_their_batches_and_texts(
        texts in proptest::collection::vec(proptest::collection::vec(any::<String>(), 1..4), 1..5),
    ) {
        let mut builder = LogBuilder::new(log_id(), Head::default());
        let mut bytes = Vec::new();
        builder.append(entry(1, Body::ChannelCreated { draft: draft() }), &mut bytes).unwrap();
        let mut seq = 1;
        for batch in &texts {
            for text in batch {
                seq += 1;
                builder.append(posted(seq, text), &mut bytes).unwrap();
            }
            builder.seal(&key(1), &mut bytes).unwrap();
        }
        let verdict = verify(&bytes, Homes::One(device_id(&key(1))));
        prop_assert_eq!(verdict, Verdict { entries: seq, head: builder.head(), bad: None });
    }
}
