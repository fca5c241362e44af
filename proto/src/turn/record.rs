//! The attempt journal's lines, and what is read when it is taken up again.

use serde::{Deserialize, Serialize};

use super::Effect;
use crate::id::{Hash, Incarnation, MemberId, NodeId};
use crate::link::AttemptId;

/// One line of the attempt journal, beside its `prev` ([`crate::log::Chain`]).
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(tag = "rec", rename_all = "kebab-case")]
pub enum Record {
    /// First line: the journal's life.
    Began {
        /// Random.
        incarnation: Incarnation,
    },
    /// The attempt is ours to run.
    Accepted {
        /// Which.
        id: AttemptId,
        /// Whose channel it is.
        home: NodeId,
        /// Whose turn.
        member: MemberId,
        /// Hash of the payload.
        payload: Hash,
        /// The box's boot, so that a later one knows whether unsynced writes may be gone.
        boot: String,
    },
    /// The harness is about to get the payload.
    Handed {
        /// Which.
        id: AttemptId,
    },
    /// The attempt ended and its journal is durable.
    Ended {
        /// Which.
        id: AttemptId,
        /// Events in its journal.
        events: u64,
        /// Length of its journal.
        length: u64,
        /// Hash of its journal.
        journal: Hash,
        /// How the harness resumes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session: Option<String>,
    },
    /// The home has the end, or the attempt is void: its journal may go.
    Forgotten {
        /// Which.
        id: AttemptId,
    },
    /// A record of a newer version.
    #[serde(other)]
    Unknown,
}

/// What is on disk of a run, read at start for attempts that are not forgotten.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunEvidence {
    /// Events in its journal.
    pub events: u64,
    /// Length of its journal.
    pub length: u64,
    /// Hash of its journal.
    pub journal: Option<Hash>,
    /// Its last line says how it ended.
    pub ended: bool,
}

impl RunEvidence {
    /// Whether it is the journal whose end is to be told.
    pub(super) fn is_of(&self, finish: &Effect) -> bool {
        let Effect::Finish { events, length, journal, .. } = finish else { return false };
        (self.events, self.length, self.journal) == (*events, *length, Some(*journal))
    }
}

/// Why the attempt journal cannot be used.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// A line is damaged or does not follow from the one before.
    #[error("line {0} of the attempt journal is damaged")]
    Damaged(u64),
}
