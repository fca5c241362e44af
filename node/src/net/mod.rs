//! The network.
pub mod addr;
pub mod stream;
pub mod swarm;
