//! The disk: one data folder, its logs, journals and blobs, and the one writer that makes them durable.
//!
//! | module | is |
//! |---|---|
//! | [`layout`] | where things are |
//! | [`disk`], [`fault`] | the operating system's disk, and one that fails by seed |
//! | [`open`] | opening a log and mending its end |
//! | [`commit`] | what the writer is told and what it reports |
//! | [`writer`] | the writer |
//! | [`read`] | reading beside it |
//! | [`journal`], [`blob`] | what stands beside the logs |
//! | [`index`] | look-ups, which can be made anew from the logs at any time |

pub mod blob;
pub mod commit;
pub mod disk;
pub mod fault;
pub mod index;
pub mod journal;
pub mod layout;
pub mod open;
pub mod read;
mod scan;
mod segment;
mod sync;
pub mod writer;

pub use commit::{BlobPut, BlobSource, Commit, JournalAppend, JournalId, Reason, Report, SealedBatch, Target};
pub use disk::RealDisk;
pub use index::Index;
pub use journal::recover;
pub use layout::Layout;
pub use open::{Checkpoint, Keep, OpenError, OpenLog, OpenedLog, Resume};
pub use read::Reader;
pub use writer::{Command, Core, Writer};

#[cfg(test)]
mod tests;
