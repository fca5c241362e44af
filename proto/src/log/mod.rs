//! The log: JSON lines in a hash chain, sealed by the home.
//!
//! | module | is |
//! |---|---|
//! | [`mod@line`] | one raw line as an entry or a seal, with its hash |
//! | [`seal`] | the line that ends a durable batch |
//! | [`homes`] | who may seal which entries |
//! | [`builder`] | new entries to lines: the home's side |
//! | [`verify`] | lines to verdicts: everybody's side |
//! | [`receipt`] | proof for one poster that its entry was saved |
//! | [`journal`] | hashes and chains of journals, which are not sealed |
//!
//! The rules, in one place:
//! * A line's hash is BLAKE3 of its exact bytes without LF. Blank lines don't exist for the chain: they are padding.
//! * Every line carries the hash of the line before it, seals included, across segments.
//! * A batch is 1 to [`BATCH_ENTRIES_MAX`] entries of one epoch and at most [`BATCH_LEN_MAX`] bytes, then one seal over
//!   their range, the hash of the last line and the hash of the concatenated list of line hashes. What has no seal was
//!   never saved.
//! * `seq` counts entries densely from 1; `lamport` rises with each; neither goes past [`COUNTER_MAX`].
//!
//! [`COUNTER_MAX`]: crate::id::COUNTER_MAX

pub mod builder;
pub mod homes;
pub mod journal;
pub mod line;
pub mod receipt;
pub mod seal;
pub mod verify;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::{ChannelId, Epoch, Hash, Lamport, OrgId, Seq};

pub use builder::{BuildError, LogBuilder};
pub use homes::{Homes, Term};
pub use journal::{Chain, ChainError, JournalHash};
pub use line::{Line, LineError};
pub use receipt::{Proof, ReceiptError, verify_receipt};
pub use seal::Seal;
pub use verify::{Bad, Fault, Verdict, Verifier};

/// Longest line without LF, in bytes: a frame of 1 MiB carries any one line and its head.
pub const LINE_LEN_MAX: usize = 960 * 1024;

/// Most JSON values in a line: twice those of a frame, because an entry wraps what came in one.
pub const LINE_NODES_MAX: usize = 2 * crate::wire::json::JSON_NODES_MAX;

/// Most entries under one seal: bounds a receipt (32 bytes an entry) and what a verifier holds.
pub const BATCH_ENTRIES_MAX: usize = 512;

/// Most bytes of entry lines under one seal: what a reader holds until it knows that they count.
pub const BATCH_LEN_MAX: usize = 16 * 1024 * 1024;

/// Furthest a lamport clock may jump from one entry to the next: 2³² is a century of busy channels, while a hostile
/// peer needs two million jumps to use up [`COUNTER_MAX`](crate::id::COUNTER_MAX).
pub const LAMPORT_JUMP_MAX: u64 = 1 << 32;

/// Which log: a channel's, or an org's membership chain.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum LogId {
    /// The membership chain of an org.
    Org(OrgId),
    /// The log of a channel.
    Channel(ChannelId),
}

impl LogId {
    /// The 32 bytes that seals name the log by: the channel id; of an org, its fingerprint and sixteen zero bytes.
    ///
    /// A channel id is a hash, so no channel has an org's name.
    #[must_use]
    pub fn sealed_as(&self) -> ChannelId {
        match self {
            Self::Channel(channel) => *channel,
            Self::Org(org) => {
                let mut bytes = [0; 32];
                bytes.iter_mut().zip(org.as_bytes()).for_each(|(to, from)| *to = *from);
                ChannelId(bytes)
            }
        }
    }
}

impl fmt::Display for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Org(org) => write!(f, "org {}", org.short()),
            Self::Channel(channel) => write!(f, "channel {}", channel.short()),
        }
    }
}

/// Where a log stands: after its last seal.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Head {
    /// Last sealed entry; 0 in an empty log.
    pub seq: Seq,
    /// Hash of that entry's line; [`Hash::ZERO`] in an empty log.
    pub hash: Hash,
    /// Hash of the seal line behind it: what the next line carries as `prev`.
    pub tip: Hash,
    /// Its lamport.
    pub lamport: Lamport,
    /// Its epoch.
    pub epoch: Epoch,
}

/// The id of the channel that a creation draft makes. The draft is the exact bytes of `entry::ChannelDraft`'s JSON.
#[must_use]
pub fn channel_id(draft: &str) -> ChannelId {
    ChannelId(blake3::derive_key("tieline 2026 channel id", draft.as_bytes()))
}

/// The fingerprint of the org whose chain begins with `line` (without LF).
#[must_use]
pub fn org_id(line: &[u8]) -> OrgId {
    let mut id = [0; OrgId::LEN];
    id.iter_mut().zip(Hash::of(line).as_bytes()).for_each(|(to, from)| *to = *from);
    OrgId(id)
}

/// Hash of a batch: of its line hashes, concatenated.
#[must_use]
pub fn batch_hash(lines: &[Hash]) -> Hash {
    let mut hasher = blake3::Hasher::new();
    for line in lines {
        hasher.update(line.as_bytes());
    }
    Hash(*hasher.finalize().as_bytes())
}

#[cfg(test)]
mod tests;
