//! A member's program between turns, whichever it is.

use std::io;

use tieline_proto::event::Outcome;
use tokio::sync::OwnedSemaphorePermit;

use super::TurnSpec;
use super::host::Setting;
use super::registry::Resolved;
use super::turn::TurnIo;

/// A running program that takes one turn after the other.
#[derive(Debug)]
pub(super) enum Session {}

impl Session {
    /// Starts the program for a member.
    ///
    /// # Errors
    /// When the program can't be started.
    pub(super) fn start(
        _found: &Resolved,
        _spec: &TurnSpec,
        _setting: &Setting,
        _permit: OwnedSemaphorePermit,
    ) -> io::Result<Self> {
        Err(io::Error::other("this version can't drive it"))
    }

    /// Whether the program can run a turn of these settings.
    pub(super) fn fits(&mut self, _found: &Resolved, _spec: &TurnSpec, _setting: &Setting) -> bool {
        match *self {}
    }

    /// Runs a turn.
    pub(super) async fn run(&mut self, _spec: &TurnSpec, _io: &mut TurnIo) -> Outcome {
        match *self {}
    }

    /// Whether the program can take another turn.
    pub(super) fn is_alive(&mut self) -> bool {
        match *self {}
    }

    /// Ends the program.
    pub(super) async fn close(self) {
        match self {}
    }
}
