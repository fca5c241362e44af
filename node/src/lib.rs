//! The tokio shell of Tieline: disk, swarm, harness processes, doors. `tieline-proto` decides, this crate acts.

pub mod consent;
pub mod handle;
pub mod harness;
pub mod net;
pub mod config;
pub mod http;
