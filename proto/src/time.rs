//! Time as data: the shell passes it in, the core never reads a clock.

use std::ops::{Add, Sub};

/// Milliseconds. As `now` it counts from the node's start and never goes back; what it means for stored display
/// times is said where they stand.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd, serde::Deserialize, serde::Serialize)]
#[serde(transparent)]
pub struct Millis(pub u64);

impl Add<u64> for Millis {
    type Output = Self;

    fn add(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }
}

impl Sub for Millis {
    type Output = u64;

    fn sub(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// The two clocks an input is judged by.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Now {
    /// Monotonic, since the node's start: deadlines and ages.
    pub mono: Millis,
    /// Wall clock, Unix milliseconds: only ever shown or stored for display.
    pub wall: u64,
}
