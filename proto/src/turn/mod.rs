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

/// Longest final text that an entry carries, in bytes of JSON: it fits an event line with what stands around it. The
/// whole is in the run's journal as the pieces that were streamed.
pub const FINAL_TEXT_LEN_MAX: usize = 448 * 1024;

/// Longest text by which a harness resumes, in bytes: it goes with every delivery, beside all else that a head holds.
pub const SESSION_LEN_MAX: usize = 1024;
