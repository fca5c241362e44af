//! The home and residents against each other, in memory.

mod cases;
mod check;
mod codor;
mod disk;
mod edges;
mod fold;
mod handles;
mod harness;
mod home_box;
mod net;
mod resident_box;
mod sim;
mod snapshot;
mod threats;
mod world;
