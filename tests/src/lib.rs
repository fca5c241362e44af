//! Drives whole binaries: real `tieline` processes, real disks, real harnesses. Loopback only.
//!
//! | module | gives |
//! |---|---|
//! | [`wait`] | waiting for facts, never for times |
//! | [`process`] | a child process, its lines and its end |
//! | [`node`] | one node: start, stop, `kill -9`, restart, its command line |
//! | [`socket`] | a client of a node's own socket |
//! | [`mesh`] | a home and a resident, paired by the command line |
//! | [`view`] | what a channel shows: entries, turns, cards |
//! | [`model`] | the offline model that real agents are pointed at |
//! | [`clis`] | the pinned command lines of real agents |
//! | [`boxes`] | two boxes with networks of their own, joined by a cable |
//! | [`root`] | what only root can show |
//!
//! Helpers panic when a fact does not come true: they are for tests, and say what they waited for and what they saw.
//!
//! ```no_run
//! let mesh = tieline_tests::Mesh::start();
//! mesh.add_scripted("bot");
//! let answer = mesh.home.cli(["post", "lobby", "@bot hello", "--wait", "--json"]).ok().json();
//! assert_eq!(answer["turns"][0]["status"], "completed");
//! ```

pub mod boxes;
pub mod clis;
pub mod mesh;
pub mod model;
pub mod node;
pub mod process;
pub mod root;
pub mod socket;
pub mod view;
pub mod wait;

pub use mesh::Mesh;
pub use node::{Node, Setup};
pub use process::{Finished, Process};
pub use wait::{DEADLINE, until};
