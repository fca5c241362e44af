//! Snapshots of the fold, so that a start reads the end of a log only.
//!
//! A snapshot is a cache of `fold(entries)`: whoever keeps it ties it to a sealed place in the log, and can throw it
//! away at any time. It is no format of ours that others read.

use serde::{Deserialize, Serialize};

use super::state::State;
use crate::id::{ChannelId, Epoch, Lamport, Seq};
use crate::log::Head;

/// What the fold does with entries, as a number: raised with every change of [`State`] or of what an entry does to it,
/// so that no state of an older fold is taken up.
const FOLD_VERSION: u32 = 2;

/// Longest snapshot that is made, in bytes: an ordinary channel's has a few KiB, and one with ten thousand messages in
/// queues is folded again.
pub const SNAPSHOT_LEN_MAX: usize = 4 * 1024 * 1024;

#[derive(Serialize)]
struct Kept<'a> {
    fold: u32,
    program: &'a str,
    state: &'a State,
}

#[derive(Deserialize)]
struct Found {
    fold: u32,
    program: String,
}

#[derive(Deserialize)]
struct FoundState {
    state: State,
}

impl State {
    /// The state as bytes, from which [`State::restore`] makes it again; `None` when they would be too many.
    #[must_use]
    pub fn snapshot(&self) -> Option<Vec<u8>> {
        let kept = Kept { fold: FOLD_VERSION, program: env!("CARGO_PKG_VERSION"), state: self };
        serde_json::to_vec(&kept).ok().filter(|bytes| bytes.len() <= SNAPSHOT_LEN_MAX)
    }

    /// The state of `channel` at `head`, from its snapshot; `None` when it is of another fold, channel or place.
    #[must_use]
    pub fn restore(bytes: &[u8], channel: ChannelId, head: &Head) -> Option<Self> {
        // The version first: a state of another one may not even be readable.
        let found: Found = serde_json::from_slice(bytes).ok()?;
        if found.fold != FOLD_VERSION || found.program != env!("CARGO_PKG_VERSION") {
            return None;
        }
        let FoundState { state } = serde_json::from_slice(bytes).ok()?;
        let place: (ChannelId, Seq, Lamport, Epoch) = (state.id, state.seq, state.lamport, state.epoch);
        (place == (channel, head.seq, head.lamport, head.epoch)).then_some(state)
    }
}

/// A map whose keys are no JSON keys, as a list of pairs.
pub(super) mod pairs {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer, K: Serialize, V: Serialize>(
        map: &BTreeMap<K, V>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(map)
    }

    pub fn deserialize<'de, D: Deserializer<'de>, K: Deserialize<'de> + Ord, V: Deserialize<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<K, V>, D::Error> {
        Ok(Vec::deserialize(deserializer)?.into_iter().collect())
    }
}
