//! The tokio shell of Tieline: disk, swarm, harness processes, doors. `tieline-proto` decides, this crate acts.

mod base64url;
pub mod cli;
pub mod config;
pub mod consent;
pub mod data_dir;
pub mod handle;
pub mod harness;
pub mod http;
pub mod keys;
pub mod logging;
pub mod node;

// Crates of their own, so that neither is compiled again when the loop changes.
pub use tieline_net as net;
pub use tieline_store as store;
