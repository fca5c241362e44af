//! Snapshots: a fold that goes on from one is the fold of everything.

use proptest::prelude::*;
use proptest::sample::Index;

use super::super::{SNAPSHOT_LEN_MAX, State};
use super::sim::live;
use super::world::World;
use crate::entry::NewEntry;
use crate::id::{ChannelId, Hash};
use crate::log::Head;

fn head(state: &State) -> Head {
    Head { seq: state.seq, hash: Hash::ZERO, tip: Hash::ZERO, lamport: state.lamport, epoch: state.epoch }
}

fn restore(state: &State) -> Option<State> {
    State::restore(&state.snapshot()?, state.id, &head(state))
}

fn apply(state: &mut State, entries: &[NewEntry]) {
    entries.iter().for_each(|entry| state.apply(entry).expect("the home's own entry"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// `fold(snapshot + rest) == fold(all)`, wherever the snapshots were taken.
    #[test]
    fn a_fold_goes_on_from_its_snapshots_as_from_the_beginning(
        seed in 0_u64..64,
        cuts in proptest::collection::vec(any::<Index>(), 1..5),
    ) {
        let entries = std::mem::take(&mut live(seed).home.log.entries);
        let mut cuts: Vec<_> = cuts.iter().map(|cut| 1 + cut.index(entries.len())).collect();
        cuts.sort_unstable();
        let mut all = State::begin(&entries[0]).expect("a beginning");
        let mut resumed = all.clone();
        let mut done = 1;
        for cut in cuts.into_iter().chain([entries.len()]) {
            apply(&mut all, &entries[done..cut]);
            apply(&mut resumed, &entries[done..cut]);
            resumed = restore(&resumed).expect("it fits");
            prop_assert_eq!(format!("{:?}", &resumed), format!("{:?}", &all), "after {} entries", cut);
            done = cut;
        }
    }

    #[test]
    fn any_bytes_are_a_snapshot_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..300), at in any::<Index>()) {
        let world = World::new(1, 0);
        let state = world.core().state();
        prop_assert!(State::restore(&bytes, state.id, &head(state)).is_none());
        let mut cut = state.snapshot().expect("it is small");
        cut.truncate(at.index(cut.len()));
        prop_assert!(State::restore(&cut, state.id, &head(state)).is_none());
    }
}

#[test]
fn a_snapshot_of_another_place_channel_or_fold_is_not_taken_up() {
    let world = World::new(1, 1);
    let state = world.core().state();
    let (bytes, at) = (state.snapshot().expect("it is small"), head(state));
    assert!(bytes.len() < SNAPSHOT_LEN_MAX / 100);
    assert!(State::restore(&bytes, state.id, &at).is_some());
    assert!(State::restore(&bytes, ChannelId([9; 32]), &at).is_none());
    assert!(State::restore(&bytes, state.id, &Head { seq: at.seq.next(), ..at }).is_none());
    assert!(State::restore(&bytes, state.id, &Head { lamport: at.lamport.next(), ..at }).is_none());
    let text = String::from_utf8(bytes).expect("JSON");
    let other = text.replacen(r#"{"fold":"#, r#"{"fold":9"#, 1);
    assert!(other != text && State::restore(other.as_bytes(), state.id, &at).is_none());
    let other = text.replacen(env!("CARGO_PKG_VERSION"), "0.0.0", 1);
    assert!(other != text && State::restore(other.as_bytes(), state.id, &at).is_none());
}
