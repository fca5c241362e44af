//! Turns on the node that runs them: the resident's durable attempts and their event journals.

mod journal;
mod resident;

pub use journal::EventJournal;
pub use resident::{Admission, Effect, Input, Record, Refusal, Resident, ResidentStep, RestoreError, RunEvidence};

/// Longest final text that an entry carries; the whole stands in the run's journal.
pub const FINAL_TEXT_LEN_MAX: usize = 256 * 1024;
