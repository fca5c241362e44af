//! Turns on the node that runs them: the resident's durable attempts and their event journals.

mod journal;
mod resident;

pub use journal::EventJournal;
pub use resident::{Admission, Effect, Input, Record, Refusal, Resident, ResidentStep, RestoreError, RunEvidence};

/// Longest final text that an entry carries, in bytes of JSON: it fits an event line with what stands around it. The
/// whole is in the run's journal as the pieces that were streamed.
pub const FINAL_TEXT_LEN_MAX: usize = 448 * 1024;
