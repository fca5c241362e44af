//! How far the journals of runs are at the home.

use std::collections::VecDeque;

use crate::event::{Ask, EVENT_LEN_MAX, Event, Outcome};
use crate::id::{Attempt, Hash};
use crate::wire::json;

/// How far a run's journal is at the home.
#[derive(Clone, Debug)]
pub struct RunProgress {
    pub(super) attempt: Attempt,
    pub(super) events: u64,
    pub(super) length: u64,
    hasher: blake3::Hasher,
    pub(super) last: Vec<u8>,
    /// (length, events) after each append that is not known to be durable.
    pub(super) unsynced: VecDeque<(u64, u64)>,
    pub(super) synced: u64,
    /// Questions that the home has not looked at yet.
    pub(super) asks: Vec<Ask>,
    /// The index from which the resident was last asked to go on, since its link is up.
    pub(super) asked_from: Option<u64>,
}

impl RunProgress {
    /// The journal of an attempt before its first event.
    #[must_use]
    pub fn new(attempt: Attempt) -> Self {
        Self {
            attempt,
            events: 0,
            length: 0,
            hasher: blake3::Hasher::new(),
            last: Vec::new(),
            unsynced: VecDeque::new(),
            synced: 0,
            asks: Vec::new(),
            asked_from: None,
        }
    }

    /// Takes in whole lines: on restart what the disk has, later what arrives.
    ///
    /// # Errors
    /// When the bytes are not whole lines of one sound JSON object each.
    pub fn absorb(&mut self, lines: &[u8]) -> Result<(), json::JsonError> {
        let mut asks = Vec::new();
        let mut last: &[u8] = &[];
        let mut count = 0;
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            let Some(line) = line.strip_suffix(b"\n") else { return Err(json::JsonError::Truncated) };
            json::check(line, json::Limits::line(EVENT_LEN_MAX))?;
            if line.starts_with(br#"{"type":"asked""#)
                && let Ok(Event::Asked { ask }) = serde_json::from_slice(line)
            {
                asks.push(ask);
            }
            last = line;
            count += 1;
        }
        self.events += count;
        self.length += lines.len() as u64;
        self.hasher.update(lines);
        last.clone_into(&mut self.last);
        self.asks.append(&mut asks);
        Ok(())
    }

    /// Everything absorbed so far is durable.
    pub fn all_synced(&mut self) {
        self.synced = self.events;
        self.unsynced.clear();
    }

    /// Events so far.
    #[must_use]
    pub const fn events(&self) -> u64 {
        self.events
    }

    /// Bytes so far.
    #[must_use]
    pub const fn length(&self) -> u64 {
        self.length
    }

    /// Hash of the bytes so far.
    #[must_use]
    pub fn hash(&self) -> Hash {
        Hash(*self.hasher.finalize().as_bytes())
    }

    pub(super) fn outcome(&self) -> Option<Outcome> {
        match serde_json::from_slice(&self.last) {
            Ok(Event::Finished { outcome }) => Some(outcome),
            _ => None,
        }
    }
}
