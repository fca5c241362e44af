use proptest::prelude::*;

use super::super::frame::{FRAME_LEN_MAX, LEN_LEN, TAIL_LEN_MAX};
use super::*;
use crate::entry::{Auth, JournalMark};
use crate::id::{Attempt, ChannelId, Hash, Incarnation, MessageId, Seq};
use crate::link::{Asked, AttemptId, Verdict};

fn id() -> AttemptId {
    AttemptId { channel: ChannelId([1; 32]), run: MessageId(2), attempt: Attempt(3) }
}

fn mark() -> JournalMark {
    JournalMark { incarnation: Incarnation([2; 16]), count: 7, head: Hash([3; 32]) }
}

fn any_message() -> impl Strategy<Value = Message> {
    let nonce = any::<u64>();
    prop_oneof![
        nonce.prop_map(|nonce| Message::Probe { nonce }),
        (".{0,40}", prop::collection::vec(".{0,20}", 0..4)).prop_map(|(name, addrs)| Message::Hello {
            version: 1,
            name,
            addrs,
            mark: mark(),
        }),
        (any::<u64>(), prop::option::of(".{0,20}")).prop_map(|(events, session)| Message::Finished {
            id: id(),
            events,
            length: 9,
            journal: Hash([4; 32]),
            session,
            auth: Auth::Home,
        }),
        prop::collection::vec(any::<u64>(), 0..20).prop_map(|counts| Message::Reconcile {
            attempts: counts
                .into_iter()
                .map(|have| Asked { id: id(), have, seen: Some(mark()), payload: None })
                .collect(),
        }),
        ".{0,20}".prop_map(|reason| Message::Report { verdicts: vec![(id(), Verdict::Ambiguous { reason })] }),
        any::<u64>().prop_map(|from| Message::OrgGet { from: Seq(from) }),
    ]
}

fn any_frames() -> impl Strategy<Value = Vec<(Message, Vec<u8>)>> {
    prop::collection::vec((any_message(), prop::collection::vec(any::<u8>(), 0..300)), 1..6)
}

fn encoded(frames: &[(Message, Vec<u8>)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (message, tail) in frames {
        encode(message, tail, &mut out).unwrap();
    }
    out
}

/// All that a stream of chunks gives, and the error that ended it.
fn decoded<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> (Vec<(Message, Vec<u8>)>, Option<DecodeError>) {
    let (mut decoder, mut out) = (Decoder::new(), Vec::new());
    for chunk in chunks {
        decoder.push(chunk);
        loop {
            match decoder.next() {
                Ok(Some(frame)) => out.push(frame),
                Ok(None) => break,
                Err(error) => return (out, Some(error)),
            }
        }
    }
    (out, None)
}

fn raw(head: &str, tail: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    frame::write(head.as_bytes(), tail, &mut out).unwrap();
    out
}

#[test]
fn bytes_of_a_frame_are_fixed() {
    let mut out = Vec::new();
    encode(&Message::Probe { nonce: 5 }, b"tail", &mut out).unwrap();
    let head = br#"{"m":"probe","nonce":5}"#;
    let expected = [&[0, 0, 0, 4 + 23 + 4][..], &[0, 0, 0, 23], head, b"tail"].concat();
    assert_eq!(out, expected);
}

#[test]
fn messages_of_newer_versions_are_unknown_and_the_stream_goes_on() {
    let bytes = [raw(r#"{"m":"from-2031","x":[1,{"y":null}]}"#, b"t"), raw(r#"{"m":"probe","nonce":1,"new":2}"#, b"")];
    let (frames, error) = decoded([bytes.concat().as_slice()]);
    assert_eq!(frames, [(Message::Unknown, b"t".to_vec()), (Message::Probe { nonce: 1 }, Vec::new())]);
    assert!(error.is_none());
}

#[test]
fn threat_w1_lengths_are_refused_before_their_bytes_are_waited_for() {
    let lengths = |len: u32, head: u32| [len.to_be_bytes(), head.to_be_bytes()].concat();
    let refused = |bytes: &[u8]| match decoded([bytes]).1 {
        Some(DecodeError::Frame(error)) => Some(error),
        _ => None,
    };
    let all = u32::MAX as usize;
    assert_eq!(refused(&u32::MAX.to_be_bytes()), Some(FrameError::TooLong { len: all }));
    assert_eq!(refused(&[0, 0, 0, 3]), Some(FrameError::HeadTooLongForFrame { head: 0, len: 3 }));
    assert_eq!(refused(&lengths(100, u32::MAX)), Some(FrameError::HeadTooLong { len: all }));
    assert_eq!(refused(&lengths(100, 97)), Some(FrameError::HeadTooLongForFrame { head: 97, len: 100 }));
    let head = HEAD_LEN_MAX as u32 + 1;
    assert_eq!(refused(&lengths(1 << 20, head)), Some(FrameError::HeadTooLong { len: HEAD_LEN_MAX + 1 }));
    assert_eq!(refused(&lengths(1 << 20, head - 1)), None);
    assert_eq!(refused(&((1 << 20) + 1_u32).to_be_bytes()), Some(FrameError::TooLong { len: FRAME_LEN_MAX + 1 }));
}

#[test]
fn threat_w1_bombs_in_heads_are_refused() {
    let deep = format!("{{\"m\":{}", "[".repeat(60_000));
    assert!(matches!(decoded([raw(&deep, b"").as_slice()]).1, Some(DecodeError::Limits(JsonError::TooDeep { .. }))));
    let many = format!("{{\"m\":[{}0]}}", "0,".repeat(20_000));
    assert!(matches!(decoded([raw(&many, b"").as_slice()]).1, Some(DecodeError::Limits(JsonError::TooMany { .. }))));
    for twice in [r#"{"m":"probe","nonce":1,"nonce":2}"#, r#"{"m":"probe","m":"probe","nonce":2}"#] {
        assert!(matches!(decoded([raw(twice, b"").as_slice()]).1, Some(DecodeError::Json(_))), "{twice}");
    }
    // Not even an empty head is a message.
    assert!(matches!(decoded([raw("", b"").as_slice()]).1, Some(DecodeError::Limits(JsonError::Truncated))));
}

#[test]
fn frames_at_the_limit_pass_and_one_byte_more_is_refused() {
    let message = Message::Feed { call: 1 };
    let mut out = Vec::new();
    encode(&message, &vec![7; TAIL_LEN_MAX], &mut out).unwrap();
    let (frames, error) = decoded(out.chunks(60_000));
    assert!(error.is_none());
    assert_eq!(frames, [(message.clone(), vec![7; TAIL_LEN_MAX])]);

    let head = serde_json::to_vec(&message).unwrap().len();
    let most = FRAME_LEN_MAX - LEN_LEN - head;
    out.clear();
    encode(&message, &vec![7; most], &mut out).unwrap();
    assert_eq!(out.len(), LEN_LEN + FRAME_LEN_MAX);
    assert_eq!(decoded([out.as_slice()]).0.len(), 1);
    out.clear();
    let refused = encode(&message, &vec![7; most + 1], &mut out);
    assert!(matches!(refused, Err(EncodeError::Frame(FrameError::TooLong { .. }))));
    assert!(out.is_empty());

    let long = Message::StopOk { id: id() };
    assert!(encode(&long, b"", &mut out).is_ok());
    let name = "x".repeat(HEAD_LEN_MAX);
    let hello = Message::Refused { id: id(), code: String::new(), message: name };
    assert!(matches!(encode(&hello, b"", &mut out), Err(EncodeError::Limits(JsonError::TooLong { .. }))));
}

#[test]
fn after_an_error_nothing_is_held_and_nothing_is_given() {
    let mut decoder = Decoder::new();
    decoder.push(&[0xff; 100]);
    assert!(matches!(decoder.next(), Err(DecodeError::Frame(_))));
    decoder.push(&raw(r#"{"m":"probe","nonce":1}"#, b""));
    assert!(matches!(decoder.next(), Err(DecodeError::Failed)));
    assert_eq!(decoder.buffered(), 0);
    assert!(!decoder.is_at_boundary());
}

#[test]
fn a_drained_decoder_holds_one_frame_and_one_chunk_at_most() {
    let one = raw(r#"{"m":"probe","nonce":1}"#, &[0; 1000]);
    let many = one.repeat(50);
    let mut decoder = Decoder::new();
    for chunk in many.chunks(333) {
        decoder.push(chunk);
        while decoder.next().unwrap().is_some() {}
        assert!(decoder.buffered() < one.len());
    }
    assert!(decoder.is_at_boundary());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn what_was_encoded_is_decoded_however_it_is_cut(frames in any_frames(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12)) {
        let bytes = encoded(&frames);
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).chain([0, bytes.len()]).collect();
        cuts.sort_unstable();
        let (out, error) = decoded(cuts.windows(2).map(|range| &bytes[range[0]..range[1]]));
        prop_assert!(error.is_none());
        prop_assert_eq!(out, frames);
    }

    #[test]
    fn threat_w1_any_bytes_are_frames_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        decoded([bytes.as_slice()]);
    }

    #[test]
    fn threat_w1_changed_frames_are_frames_or_an_error(frames in any_frames(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = encoded(&frames);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        decoded([bytes.as_slice()]);
    }
}

proptest! {
    // Each case decodes the stream twice for each of its bytes.
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn threat_w1_a_stream_cut_at_any_byte_gives_the_whole_frames_before(frames in any_frames()) {
        let bytes = encoded(&frames);
        let ends: Vec<_> = (1..=frames.len()).map(|count| encoded(&frames[..count]).len()).collect();
        for cut in 0..bytes.len() {
            let (out, error) = decoded([&bytes[..cut]]);
            prop_assert!(error.is_none());
            prop_assert_eq!(out.len(), ends.iter().filter(|end| **end <= cut).count());
        }
        // And in two chunks, split at every byte.
        for cut in 0..bytes.len() {
            let (out, _) = decoded([&bytes[..cut], &bytes[cut..]]);
            prop_assert_eq!(out.len(), frames.len());
        }
    }
}
