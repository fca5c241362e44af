//! The pure core of Tieline: no socket, file, clock, task or OS randomness. `(input, now) → outputs`.
//!
//! | module | decides |
//! |---|---|
//! | [`id`], [`time`] | identifiers and clocks as data |
//! | [`entry`], [`event`] | what logs and run journals hold |
//! | [`log`] | the hash chain: building, sealing, verifying |
//! | [`link`], [`api`], [`view`] | what nodes and clients say |
//! | [`route`], [`payload`] | who gets a message, and what an agent reads |
//! | [`text`] | how others' text is shown |
//! | [`org`], [`pairing`] | who may do what, and how a device becomes one of them |
//! | [`crypto`], [`wire`], [`topic`] | keys, handshakes and records; frames and their limits; where nodes meet |

pub mod api;
pub mod channel;
pub mod crypto;
pub mod entry;
pub mod event;
pub mod id;
pub mod link;
pub mod log;
pub mod org;
pub mod pairing;
pub mod payload;
pub mod route;
pub mod text;
pub mod time;
pub mod topic;
pub mod turn;
pub mod view;
pub mod wire;
