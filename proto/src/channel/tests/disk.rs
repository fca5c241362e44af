//! What survives: files with a synced part, and the home's log with its index.

use std::collections::BTreeMap;

use rand_core::Rng;

use super::super::{Cited, History, State, poster};
use crate::entry::{Auth, Body, Entry, NewEntry};
use crate::id::{ClientId, Hash, MemberId, MessageId, Seq};

/// A file that is only appended to.
#[derive(Clone, Debug, Default)]
pub struct File {
    pub bytes: Vec<u8>,
    pub synced: usize,
}

impl File {
    pub fn sync(&mut self) {
        self.synced = self.bytes.len();
    }

    /// The box lost power: any part of what was not synced may be gone.
    pub fn lose_unsynced(&mut self, rng: &mut impl Rng) {
        let loose = self.bytes.len() - self.synced;
        let kept = usize::try_from(rng.next_u64() % (loose as u64 + 1)).expect("small");
        self.bytes.truncate(self.synced + kept);
    }

    /// What the shell does at open: a torn last line is cut.
    pub fn cut_torn_line(&mut self) {
        let end = self.bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        self.bytes.truncate(end);
        self.synced = self.synced.min(end);
    }

    pub fn lines(&self) -> impl Iterator<Item = &[u8]> {
        self.bytes.split_inclusive(|byte| *byte == b'\n')
    }
}

/// The sealed entries of a log and what the index says of them.
#[derive(Debug, Default)]
pub struct Log {
    pub entries: Vec<NewEntry>,
    cited: BTreeMap<MessageId, Cited>,
    posted: BTreeMap<(String, ClientId), (MessageId, Seq)>,
}

impl Log {
    pub fn append(&mut self, entry: NewEntry) {
        if let Some((message, cited)) = Cited::of(entry.by, &entry.body) {
            self.cited.insert(message, cited);
        }
        if let Body::Posted { message, client: Some(client), .. } = &entry.body {
            self.posted.insert((poster(entry.by, &entry.auth), client.clone()), (*message, entry.seq));
        }
        self.entries.push(entry);
    }

    /// A backup from before is put back.
    pub fn restore(&mut self, len: usize) {
        let entries = std::mem::take(self).entries;
        entries.into_iter().take(len).for_each(|entry| self.append(entry));
    }

    /// Folds what is on disk, by way of the bytes that would stand there.
    pub fn fold(&self) -> State {
        let mut lines = self.entries.iter().map(|entry| {
            let line = serde_json::to_vec(&entry.clone().at(Hash::ZERO)).expect("an entry serializes");
            let read: Entry = serde_json::from_slice(&line).expect("an entry reads back");
            let Entry { seq, epoch, lamport, prev: _, org, ts, by, auth, body } = read;
            NewEntry { seq, epoch, lamport, org, ts, by, auth, body }
        });
        let mut state = State::begin(&lines.next().expect("a log")).expect("a log begins");
        for entry in lines {
            state.apply(&entry).expect("the home's own entries fold");
        }
        state
    }
}

impl History for Log {
    fn posted(&self, by: Option<MemberId>, auth: &Auth, client: &ClientId) -> Option<(MessageId, Seq)> {
        self.posted.get(&(poster(by, auth), client.clone())).copied()
    }

    fn cited(&self, message: MessageId) -> Option<Cited> {
        self.cited.get(&message).cloned()
    }
}
