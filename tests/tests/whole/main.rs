//! Tests of whole binaries, in one test binary so that they link once.

mod bad_input;
mod disk;
mod edges;
mod first_minutes;
mod five_faults;
mod holds;
mod one_box;
mod real;
mod remote_turn;
mod surfaces;
mod torture;
mod turns;
