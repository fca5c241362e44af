//! Invariants, checked while the world runs and at its end. The numbers are those of the security page.

use std::collections::{BTreeMap, BTreeSet};

use super::super::{Card, State, TurnPhase, check_author};
use super::harness::{Start, files_of};
use super::world::World;
use crate::entry::{Auth, Body, MemberKind};
use crate::event::{Event, Status};
use crate::id::{Attempt, Hash, Lamport, MemberId, MessageId};
use crate::link::AttemptId;

impl World {
    /// I5 and I7, when a harness is handed a payload.
    pub fn check_start(&mut self, start: &Start) {
        let run = start.id.run;
        let home = &self.home;
        let releases =
            home.log.entries.iter().filter(
                |entry| matches!(entry.body, Body::HoldReleased { message, retry: true, .. } if message == run),
            );
        let allowed = 1 + releases.count();
        let before = self.oracle.starts_of(run);
        assert!(before < allowed, "I5: run {run} starts {} times, a person allowed {allowed}", before + 1);
        let first = self.oracle.starts.iter().find(|other| other.id.run == run);
        if let Some(first) = first {
            assert_eq!(first.payload, start.payload, "every attempt gets the same bytes");
            assert!(first.id.attempt < start.id.attempt, "attempts rise");
        }
        let twice = first.is_some();
        let last = self.oracle.starts.iter().rev().find(|other| other.member == start.member);
        assert!(last.is_none_or(|last| last.id.run <= run), "I7: run {run} after a later one of its member");
        let started = home.log.entries.iter().find_map(|entry| match &entry.body {
            Body::TurnStarted { message, batch, payload, .. } if *message == run => Some((batch.clone(), *payload)),
            _ => None,
        });
        let (batch, payload) = started.expect("turn-started is durable before anything is sent");
        assert_eq!(Hash::of(&start.payload), payload);
        assert_eq!(start.messages, batch, "the payload shows the batch");
        let mut files = files_of(&String::from_utf8_lossy(&start.payload));
        let mut came = start.files.clone();
        files.sort_unstable();
        came.sort_unstable();
        assert_eq!(files, came, "the files that the payload names come with it");
        if !came.is_empty() {
            self.see("a file came with its message");
        }
        if twice {
            self.see("a run started twice, as a person said");
        }
    }

    /// I6: what the home has of a run is what its harness wrote, up to some line.
    pub fn check_journals(&mut self) {
        for ((run, attempt), file) in &self.home.runs {
            let before = self.compared.entry((*run, *attempt)).or_default();
            // Only what is new: a crash may have cut some, and what came in its place differs at the end if anywhere.
            let from = (*before).min(file.bytes.len().saturating_sub(1));
            if *before == file.bytes.len() {
                continue;
            }
            let mut written = self.oracle.written.iter().filter(|(id, _)| (id.run, id.attempt) == (*run, *attempt));
            let written = written.next().map(|(_, bytes)| bytes.as_slice()).unwrap_or_default();
            let same = written.get(from..file.bytes.len()) == Some(&file.bytes[from..]);
            assert!(same, "I6: run {run}: the home's journal is not a prefix");
            *before = file.bytes.len();
        }
    }

    /// The same of all of it.
    fn check_whole_journals(&self) {
        for ((run, attempt), file) in &self.home.runs {
            let mut written = self.oracle.written.iter().filter(|(id, _)| (id.run, id.attempt) == (*run, *attempt));
            let written = written.next().map(|(_, bytes)| bytes.as_slice()).unwrap_or_default();
            assert!(written.starts_with(&file.bytes), "I6: run {run}: the home's journal is not a prefix");
        }
    }

    /// Everything that can be said of a log alone, and of it and the oracle.
    pub fn check_log(&self) {
        // I1, I9: the fold refuses gaps, repeats and clocks that don't rise.
        let folded = self.home.log.fold();
        if let Some(core) = &self.home.core
            && self.home.pending.is_empty()
        {
            assert_eq!(format!("{folded:?}"), format!("{:?}", core.state()), "the fold of the disk is the state");
        }
        let mut last = Lamport(0);
        for entry in &self.home.log.entries {
            assert!(entry.lamport > last, "I9");
            last = entry.lamport;
        }
        // I3, I4.
        for (client, saved) in &self.saved {
            let posts = self.bodies().filter_map(|body| match body {
                Body::Posted { message, client: Some(by), post, .. } if by == client => Some((*message, &post.text)),
                _ => None,
            });
            let posts = posts.collect::<Vec<_>>();
            assert_eq!(posts, [(saved.message, &saved.text)], "I3, I4: {client:?}");
        }
        self.check_authors();
        self.check_ends();
        self.check_whole_journals();
    }

    /// I12: what residents said carries what a verifier asks for. Posts come by no real door here.
    fn check_authors(&self) {
        let mut state: Option<State> = None;
        for entry in &self.home.log.entries {
            let Some(state) = &mut state else {
                state = Some(State::begin(entry).expect("it folds"));
                continue;
            };
            if !matches!(entry.body, Body::Posted { .. }) {
                let checked = check_author(state, self.home.node, entry);
                assert_eq!(checked, Ok(()), "I12: {entry:?}");
            }
            state.apply(entry).expect("it folds");
        }
    }

    /// I5, I6: each turn ends once, and what its resident signed is what the home has.
    fn check_ends(&self) {
        let mut ended = BTreeSet::new();
        let mut delivered: BTreeMap<(MemberId, MessageId), usize> = BTreeMap::new();
        for entry in &self.home.log.entries {
            match &entry.body {
                Body::TurnStarted { member, attempt: Attempt(1), batch, .. } => {
                    batch.iter().for_each(|message| *delivered.entry((*member, *message)).or_default() += 1);
                }
                Body::TurnFinished { message, attempt, status, text, events, length, journal, .. } => {
                    assert!(ended.insert(*message), "run {message} ended twice");
                    let file = self.home.runs.get(&(*message, *attempt)).cloned().unwrap_or_default();
                    assert_eq!(file.bytes.len() as u64, *length, "run {message}: the journal's length");
                    assert_eq!(file.lines().count() as u64, *events);
                    assert_eq!(Hash::of(&file.bytes), *journal, "run {message}: the journal's hash");
                    let last = file.lines().last().and_then(|line| serde_json::from_slice(line).ok());
                    if let Some(Event::Finished { outcome }) = last {
                        // A resident that breaks the rules behind its last event has its turn failed by the home.
                        let broken = entry.auth == Auth::Home && *status == Status::Failed && text.is_empty();
                        assert!(broken || (outcome.status, &outcome.text) == (*status, text), "run {message}: its end");
                    } else {
                        assert_ne!(*status, Status::Completed, "run {message} completed without an end");
                        assert_eq!(entry.auth, Auth::Home, "only the home itself ends a turn without its journal");
                    }
                }
                _ => {}
            }
        }
        // A message may come twice to a member only when a round brings its root back with results.
        let rounds = self.bodies().filter_map(|body| match body {
            Body::RoundClosed { message, .. } => Some(*message),
            _ => None,
        });
        let rounds = rounds.collect::<BTreeSet<_>>();
        for ((member, message), times) in delivered {
            assert!(times == 1 || rounds.contains(&message), "#{message} went to {member} {times} times");
        }
    }

    /// I13: with every fault healed, nothing deliverable waits, and what is held shows a card.
    pub fn check_quiet(&self) {
        let state = self.core().state();
        assert!(self.home.pending.is_empty());
        for (run, turn) in &state.turns {
            if turn.released && !state.members[&turn.member].may_start() {
                continue;
            }
            let TurnPhase::Held(card) = turn.phase else {
                panic!("I13: run {run} of member {} is still {:?}", turn.member, turn.phase)
            };
            assert!(matches!(state.cards.get(&card), Some(Card::HeldTurn { .. })));
        }
        for (id, member) in &state.members {
            let waits = member.spec.kind == MemberKind::Agent && member.ready() && !member.queue.is_empty();
            assert!(!waits || state.archived, "I13: {} messages wait for member {id}", member.queue.len());
        }
        let closed = state.rounds.values().all(|round| {
            !round.waiting.is_empty()
                && round.waiting.iter().any(|id| state.members.get(id).is_some_and(|member| !member.ready()))
        });
        assert!(closed || state.archived, "I13: a round waits for nobody: {:?}", state.rounds);
        for (number, b) in self.boxes.iter().enumerate() {
            assert!(b.turns.is_empty(), "box {number} still runs {:?}", b.turns.keys());
        }
        self.core().check_lean();
        self.check_forgotten();
        self.check_log();
    }

    /// Residents that can be reached keep nothing of what is over: no attempt, no journal, no pump.
    pub fn check_forgotten(&self) {
        let state = self.core().state();
        let settled = |id: &AttemptId| {
            state.turns.get(&id.run).is_some_and(|turn| turn.attempt == id.attempt && turn.is_settled())
        };
        for (number, b) in self.boxes.iter().enumerate().filter(|(number, _)| self.links[*number].up) {
            let Some(core) = &b.core else { continue };
            for (id, _) in core.open() {
                assert!(settled(id), "box {number} keeps {id:?} for ever");
            }
            assert!(b.pending.is_empty() && b.asking.is_empty());
            let files = b.runs.keys().chain(b.pumps.keys()).find(|id| !settled(id));
            assert_eq!(files, None, "box {number} keeps a journal or a pump of what is over");
        }
    }
}
