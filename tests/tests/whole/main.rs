//! Tests of whole binaries, in one test binary so that they link once.

mod bad_input;
mod between;
mod cases;
mod disk;
mod edges;
mod first_minutes;
mod five_faults;
mod holds;
mod make_run;
mod network;
mod one_box;
mod org_chain;
mod real;
mod remote_turn;
mod restored;
mod surfaces;
mod torture;
mod turns;
mod upgrade;
