//! Topics: the DHT keys under which the nodes of an org or of a channel find each other.
//!
//! A topic is a hash of a secret that its nodes share and of the day, so that an observer of the DHT learns neither
//! who meets there nor that yesterday's topic was the same people's.

use crate::crypto::kdf;

/// Milliseconds of a day.
const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// Whole days since the Unix epoch, in UTC.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Day(pub u64);

impl Day {
    /// The day of a wall clock, in Unix milliseconds.
    #[must_use]
    pub const fn of(wall_ms: u64) -> Self {
        Self(wall_ms / DAY_MS)
    }
}

/// A DHT key.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Topic(pub [u8; 32]);

/// The topic of a day, from the discovery key of an org or a channel.
#[must_use]
pub fn topic(discovery: &[u8; 32], day: Day) -> Topic {
    Topic(kdf::derive(discovery, &day.0.to_be_bytes(), "topic"))
}

/// Today's topic and those of the days around it, today's first: clocks differ, and nodes that were here at midnight
/// stay where they were announced for a while.
#[must_use]
pub fn topics(discovery: &[u8; 32], today: Day) -> [Topic; 3] {
    let days = [today, Day(today.0.saturating_add(1)), Day(today.0.saturating_sub(1))];
    days.map(|day| topic(discovery, day))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_days_meet() {
        let key = [7; 32];
        for (mine, theirs) in [(100, 100), (100, 101), (101, 100)] {
            let theirs = topics(&key, Day(theirs));
            assert!(theirs.contains(&topic(&key, Day(mine))));
        }
        assert!(!topics(&key, Day(102)).contains(&topic(&key, Day(100))));
    }

    #[test]
    fn topics_tell_nothing_about_each_other() {
        let [today, next, last] = topics(&[7; 32], Day(20_000));
        assert!(today != next && today != last && next != last);
        assert_ne!(topic(&[7; 32], Day(1)), topic(&[8; 32], Day(1)));
    }

    #[test]
    fn days_begin_at_midnight_utc() {
        assert_eq!(Day::of(DAY_MS - 1), Day(0));
        assert_eq!(Day::of(DAY_MS), Day(1));
        assert_eq!(topics(&[7; 32], Day(0)).len(), 3);
    }
}
