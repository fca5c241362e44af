//! The doors, whole: real sockets on loopback, a node that is played.

pub(crate) mod bed;

mod guard;
mod limits;
mod rest;
mod socket;
