//! Who may seal which entries of a log.

use std::collections::BTreeMap;

use crate::id::{DeviceId, Epoch, Hash, Seq};

/// One home epoch, as the org's chain names it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Term {
    /// The epoch.
    pub epoch: Epoch,
    /// The home in it.
    pub home: DeviceId,
    /// Its first entry.
    pub start: Seq,
    /// Hash of the line before that entry; [`Hash::ZERO`] when it is the first.
    pub prev: Hash,
}

/// Who may seal.
#[derive(Clone, Debug)]
pub enum Homes {
    /// What the org's chain says, by epoch. Lines of an epoch from the next one's start on are void.
    Terms(BTreeMap<Epoch, Term>),
    /// One device in every epoch: an org's chain, whose home is its founder's node.
    One(DeviceId),
    /// Whoever sealed first in an epoch. Proves that a log agrees with itself, not who wrote it.
    First(BTreeMap<Epoch, DeviceId>),
}

/// Why somebody may not seal.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum NotHome {
    /// The org's chain knows no such epoch.
    #[error("epoch {0} has no home")]
    NoEpoch(Epoch),
    /// Another device is the home.
    #[error("sealed by {by}, but the home in epoch {epoch} is {home}")]
    Other {
        /// The epoch.
        epoch: Epoch,
        /// Who sealed.
        by: DeviceId,
        /// Who may.
        home: DeviceId,
    },
    /// The epoch had not begun, or the next one had.
    #[error("entry {seq} is outside of epoch {epoch}")]
    OutOfTerm {
        /// The epoch.
        epoch: Epoch,
        /// The entry.
        seq: Seq,
    },
    /// The epoch does not continue the line it was to continue.
    #[error("epoch {epoch} does not continue the line it was given to continue")]
    OtherLine {
        /// The epoch.
        epoch: Epoch,
    },
}

impl Homes {
    /// What the org's chain says.
    #[must_use]
    pub fn terms(terms: impl IntoIterator<Item = Term>) -> Self {
        Self::Terms(terms.into_iter().map(|term| (term.epoch, term)).collect())
    }

    /// Trusts whoever sealed first in each epoch.
    #[must_use]
    pub const fn trust_first() -> Self {
        Self::First(BTreeMap::new())
    }

    /// Checks that `by` may seal entries `from..=to` of an epoch, the first of which follows the line `prev`.
    ///
    /// # Errors
    /// Why it may not.
    pub fn check(&self, epoch: Epoch, by: DeviceId, from: Seq, to: Seq, prev: Hash) -> Result<(), NotHome> {
        let home = match self {
            Self::One(home) => *home,
            Self::First(seen) => seen.get(&epoch).copied().unwrap_or(by),
            Self::Terms(terms) => {
                let term = terms.get(&epoch).ok_or(NotHome::NoEpoch(epoch))?;
                if from < term.start {
                    return Err(NotHome::OutOfTerm { epoch, seq: from });
                }
                if from == term.start && prev != term.prev {
                    return Err(NotHome::OtherLine { epoch });
                }
                if terms.values().any(|next| next.epoch > epoch && to >= next.start) {
                    return Err(NotHome::OutOfTerm { epoch, seq: to });
                }
                term.home
            }
        };
        if home == by { Ok(()) } else { Err(NotHome::Other { epoch, by, home }) }
    }

    /// Whether `by` may seal entries `from..=to` of an epoch, whatever line they follow.
    #[must_use]
    pub fn may_seal(&self, epoch: Epoch, by: DeviceId, from: Seq, to: Seq) -> bool {
        let prev = match self {
            Self::Terms(terms) => terms.get(&epoch).map_or(Hash::ZERO, |term| term.prev),
            Self::One(_) | Self::First(_) => Hash::ZERO,
        };
        self.check(epoch, by, from, to, prev).is_ok()
    }

    /// Whether `by` is the home in an epoch, whatever the entries.
    #[must_use]
    pub fn is_home(&self, epoch: Epoch, by: DeviceId) -> bool {
        match self {
            Self::One(home) => *home == by,
            Self::First(seen) => seen.get(&epoch).is_none_or(|home| *home == by),
            Self::Terms(terms) => terms.get(&epoch).is_some_and(|term| term.home == by),
        }
    }

    /// Notes who sealed, for [`Homes::First`].
    pub(super) fn sealed(&mut self, epoch: Epoch, by: DeviceId) {
        if let Self::First(seen) = self {
            seen.entry(epoch).or_insert(by);
        }
    }
}
