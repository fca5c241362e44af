//! A channel: the fold of its log ([`State`]) and the one node that writes it ([`Home`]).

mod author;
mod fold;
mod home;
mod snapshot;
mod state;
#[cfg(test)]
mod tests;

pub use author::{AuthorError, check_author};
pub use fold::FoldError;
pub use home::{
    ANSWER_LEN_MAX, ASK_ID_LEN_MAX, ASKED_MAX, ASKS_OPEN_MAX, Ask, BATCH_LEN_MAX, CWD_LEN_MAX, Cited, Context, Effect,
    FILES_MAX, History, Home, Input, JournalAppend, MODEL_LEN_MAX, Op, OpError, REFERENCES_MAX, ROUND_WAIT_MS,
    RunProgress, Step, TRIES_MAX, Ticket, poster,
};
pub use snapshot::SNAPSHOT_LEN_MAX;
pub use state::{Card, Member, Queued, RoundAnswer, RoundState, State, Turn, TurnPhase};

/// Messages that may wait for one member; more are refused before they are acknowledged.
pub const QUEUE_LEN_MAX: usize = 10_000;

/// Longest post, in bytes; longer text goes as an attachment.
pub const POST_LEN_MAX: usize = 64 * 1024;

/// Attachments of one post.
pub const ATTACHMENTS_MAX: usize = 8;

/// Largest attachment, in bytes.
pub const ATTACHMENT_LEN_MAX: u64 = 25 * 1024 * 1024;

/// Members that a channel can have.
pub const MEMBERS_MAX: usize = 256;
