//! Waiting for facts.

use std::time::{Duration, Instant};

/// How long a fact may take that takes well below a second on an idle box. Generous, since a test run shares two cores
/// with compilers; a test that is right never waits this long.
pub const DEADLINE: Duration = Duration::from_secs(45);

/// How often a fact is looked at.
pub const LOOK: Duration = Duration::from_millis(25);

/// Looks until `fact` gives a value, and returns it.
///
/// # Panics
/// When it has given none for [`DEADLINE`]; the message says what was waited for.
pub fn until<T>(what: &str, fact: impl FnMut() -> Option<T>) -> T {
    until_within(DEADLINE, what, fact)
}

/// As [`until`], with a deadline of its own.
///
/// # Panics
/// When the deadline passes.
pub fn until_within<T>(deadline: Duration, what: &str, mut fact: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(value) = fact() {
            return value;
        }
        assert!(began.elapsed() < deadline, "waited {deadline:?} for {what}");
        std::thread::sleep(LOOK);
    }
}
