//! Turns on the node that runs them: the resident's durable attempts and their event journals.

mod io;
mod journal;
mod record;
mod resident;
#[cfg(test)]
mod tests;

pub use io::{Admission, Effect, Input, Refusal, ResidentStep};
pub use journal::EventJournal;
pub use record::{Record, RestoreError, RunEvidence};
pub use resident::Resident;

/// Longest final text that an entry carries; the whole stands in the run's journal.
pub const FINAL_TEXT_LEN_MAX: usize = 256 * 1024;
