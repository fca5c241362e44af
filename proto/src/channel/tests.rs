//! The home and residents against each other, in memory.

mod cases;
mod check;
mod disk;
mod harness;
mod home_box;
mod net;
mod resident_box;
mod sim;
mod world;
