use proptest::prelude::*;

use super::*;

fn pair() -> (Sealer, Opener) {
    (Sealer::new(&[1; 32]), Opener::new(&[1; 32]))
}

fn sealed(sealer: &mut Sealer, text: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    sealer.seal(text, &mut out).unwrap();
    out
}

#[test]
fn long_text_is_cut_into_records_and_nothing_is_nothing() {
    let (mut sealer, mut opener) = pair();
    assert!(sealed(&mut sealer, b"").is_empty());
    for len in [1, RECORD_TEXT_MAX, RECORD_TEXT_MAX + 1, 3 * RECORD_TEXT_MAX] {
        let text: Vec<u8> = (0..len).map(|at| at as u8).collect();
        let bytes = sealed(&mut sealer, &text);
        let records = len.div_ceil(RECORD_TEXT_MAX);
        assert_eq!(bytes.len(), len + records * (RECORD_PREFIX_LEN + TAG_LEN));
        let mut out = Vec::new();
        opener.feed(&bytes, &mut out).unwrap();
        assert_eq!(out, text);
    }
}

#[test]
fn a_rekey_is_followed_unseen_and_the_old_key_is_of_no_more_use() {
    let (mut sealer, mut opener) = pair();
    let mut bytes = sealed(&mut sealer, b"old");
    sealer.rekey(&mut bytes).unwrap();
    let new = sealed(&mut sealer, b"new");
    // Without the rekey record the new key's records don't open.
    let (_, mut behind) = pair();
    let mut out = Vec::new();
    behind.feed(&bytes[..RECORD_PREFIX_LEN + TAG_LEN + 3], &mut out).unwrap();
    assert_eq!(behind.feed(&new, &mut out), Err(RecordError::Forged { counter: 1 }));
    out.clear();
    opener.feed(&bytes, &mut out).unwrap();
    opener.feed(&new, &mut out).unwrap();
    assert_eq!(out, b"oldnew");
}

#[test]
fn a_rekey_is_due_after_a_gibibyte() {
    let (mut sealer, _) = pair();
    sealer.bytes = REKEY_AFTER_BYTES - 1;
    assert!(!sealer.needs_rekey());
    sealed(&mut sealer, b"x");
    assert!(sealer.needs_rekey());
    sealer.rekey(&mut Vec::new()).unwrap();
    assert!(!sealer.needs_rekey());
}

#[test]
fn a_counter_never_comes_twice() {
    let (mut sealer, mut opener) = pair();
    (sealer.counter, opener.counter) = (u64::MAX - 1, u64::MAX - 1);
    let bytes = sealed(&mut sealer, b"last");
    let mut out = Vec::new();
    opener.feed(&bytes, &mut out).unwrap();
    assert_eq!(out, b"last");
    assert_eq!(sealer.seal(b"more", &mut out), Err(RecordError::Exhausted));
    assert_eq!(sealer.rekey(&mut out), Err(RecordError::Exhausted));
    assert_eq!(opener.feed(&bytes, &mut out), Err(RecordError::Exhausted));
    assert_eq!(out, b"last");
}

#[test]
fn threat_w1_impossible_lengths_are_refused_at_once() {
    for len in 0..TAG_LEN as u16 {
        let (_, mut opener) = pair();
        let refused = opener.feed(&len.to_be_bytes(), &mut Vec::new());
        assert_eq!(refused, Err(RecordError::Length { len: usize::from(len) }));
        assert_eq!(opener.feed(&[0; 100], &mut Vec::new()), refused, "it stays refused");
    }
    let (_, mut opener) = pair();
    let long = vec![0; RECORD_LEN_MAX + 1];
    assert_eq!(opener.open(&long, &mut Vec::new()), Err(RecordError::Length { len: RECORD_LEN_MAX + 1 }));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn records_cut_anywhere_open_to_what_was_sealed(
        texts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..8),
        rekeys in prop::collection::vec(any::<bool>(), 8),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let (mut sealer, mut opener) = pair();
        let mut bytes = Vec::new();
        for (text, rekey) in texts.iter().zip(rekeys) {
            sealer.seal(text, &mut bytes).unwrap();
            if rekey {
                sealer.rekey(&mut bytes).unwrap();
            }
        }
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).chain([0, bytes.len()]).collect();
        cuts.sort_unstable();
        let mut out = Vec::new();
        for range in cuts.windows(2) {
            opener.feed(&bytes[range[0]..range[1]], &mut out).unwrap();
        }
        prop_assert_eq!(out, texts.concat());
    }

    #[test]
    fn threat_w3_a_flipped_bit_gives_nothing_from_there_on(
        texts in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..100), 1..6),
        at in any::<prop::sample::Index>(),
        bit in 0..8_u8,
    ) {
        let (mut sealer, mut opener) = pair();
        let records: Vec<_> = texts.iter().map(|text| sealed(&mut sealer, text)).collect();
        let mut bytes = records.concat();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let mut out = Vec::new();
        let fed = opener.feed(&bytes, &mut out);
        // A longer length may make it wait instead: then nothing of that record has been given out either.
        let mut end = 0;
        let good = records.iter().take_while(|record| { end += record.len(); end <= at }).count();
        prop_assert_eq!(out, texts[..good].concat());
        prop_assert!(fed.is_err() || opener.partial.len() >= records[good].len());
    }

    #[test]
    fn threat_w1_any_bytes_give_an_error_or_are_waited_for(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let (_, mut opener) = pair();
        let mut out = Vec::new();
        let fed = opener.feed(&bytes, &mut out);
        prop_assert!(out.is_empty());
        prop_assert!(fed.is_err() || opener.partial.len() == bytes.len());
    }
}

#[test]
fn what_waits_for_its_end_is_bounded() {
    let (_, mut opener) = pair();
    let mut out = Vec::new();
    opener.feed(&[0xff, 0xff], &mut out).unwrap();
    for _ in 0..RECORD_LEN_MAX - 1 {
        opener.feed(&[0], &mut out).unwrap();
    }
    assert_eq!(opener.partial.len(), RECORD_PREFIX_LEN + RECORD_LEN_MAX - 1);
    assert_eq!(opener.feed(&[0], &mut out), Err(RecordError::Forged { counter: 0 }));
    assert!(opener.partial.is_empty());
}
