//! The home's shell: steps to disk, then their effects; its crashes and restarts.

use std::collections::BTreeMap;

use super::super::{Ask, Effect, Home, Input, JournalAppend, Op, RunProgress, Step};
use super::disk::File;
use super::net::check_fits;
use super::world::{Saved, World};
use crate::entry::Body;
use crate::id::{Attempt, MessageId};
use crate::link::Message;

impl World {
    pub fn feed_home(&mut self, input: Input) {
        let now = self.now;
        let home = &mut self.home;
        let Some(core) = &mut home.core else { return };
        let mut context = super::super::Context {
            now,
            lamport: &mut home.lamport,
            org: crate::id::Hash::ZERO,
            rng: &mut home.rng,
            history: &home.log,
        };
        let step = core.handle(input, &mut context);
        assert_eq!(core.fault(), None, "the home wrote an entry that its own fold refuses");
        for entry in &step.entries {
            let what = format!("    entry {} {:?}", entry.seq, entry.body);
            self.note(what.chars().take(220).collect::<String>());
        }
        self.observe(&step);
        self.home.pending.push_back(step);
        self.settle_home();
    }

    /// Acts on steps that have nothing to make durable, as long as no step before them has.
    fn settle_home(&mut self) {
        if self.home.busy {
            return;
        }
        self.home.busy = true;
        while self.home.pending.front().is_some_and(|step| !must_sync(step)) {
            let Some(step) = self.home.pending.pop_front() else { break };
            self.write_journals(&step.journals);
            self.act_home(step.effects);
        }
        self.home.busy = false;
    }

    /// Makes the oldest step durable and acts on it. False when there is none.
    pub fn sync_home(&mut self) -> bool {
        let Some(step) = self.home.pending.pop_front() else { return false };
        self.home.busy = true;
        let last = step.entries.last().map(|entry| entry.seq);
        let synced = step.journals.iter().filter(|append| append.sync).map(|append| (append.run, append.attempt));
        let synced = synced.collect::<Vec<_>>();
        let effects = self.commit(step);
        self.act_home(effects);
        self.home.busy = false;
        if let Some(last) = last {
            self.feed_home(Input::Durable(last));
        }
        for (run, attempt) in synced {
            self.tell_synced(run, attempt);
        }
        self.settle_home();
        true
    }

    /// Syncs a run's journal on its own. False when there is nothing to sync.
    pub fn sync_journal(&mut self, run: MessageId, attempt: Attempt) -> bool {
        match self.home.runs.get_mut(&(run, attempt)) {
            Some(file) if file.synced < file.bytes.len() => file.sync(),
            _ => return false,
        }
        self.tell_synced(run, attempt);
        true
    }

    fn tell_synced(&mut self, run: MessageId, attempt: Attempt) {
        let length = self.home.runs.get(&(run, attempt)).map_or(0, |file| file.synced as u64);
        self.feed_home(Input::JournalSynced { run, attempt, length });
    }

    fn commit(&mut self, step: Step) -> Vec<Effect> {
        self.home.blobs.extend(step.blobs);
        self.write_journals(&step.journals);
        step.entries.into_iter().for_each(|entry| self.home.log.append(entry));
        step.effects
    }

    fn write_journals(&mut self, journals: &[JournalAppend]) {
        for append in journals {
            let file = self.home.runs.entry((append.run, append.attempt)).or_default();
            if append.at == 0 && self.home.went_back {
                *file = File::default();
            }
            assert_eq!(file.bytes.len() as u64, append.at, "a journal is appended to where it ends");
            assert_eq!(file.lines().count() as u64, append.first, "the index is the line's number");
            file.bytes.extend_from_slice(&append.lines);
            if append.sync {
                file.sync();
            }
        }
    }

    fn act_home(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Reply(ticket, result) => {
                    let request = self.asked.remove(&ticket);
                    if let (Ok(Ask::Posted { message, .. }), Some(request)) = (&result, request)
                        && let Op::Post { post, client: Some(client), .. } = request.op
                    {
                        let saved = Saved { message: *message, text: post.text };
                        if let Some(before) = self.saved.insert(client.clone(), saved) {
                            assert_eq!(before.message, *message, "I4: one client id, one message");
                        }
                    }
                    self.answers.insert(ticket, result);
                }
                Effect::Send(node, message, tail) => {
                    let tail = match &message {
                        // A later attempt has its payload from the first.
                        Message::Deliver { payload, .. } if tail.is_empty() => {
                            self.home.blobs.get(payload).cloned().expect("the payload's blob is durable")
                        }
                        _ => tail,
                    };
                    check_fits(&message, &tail);
                    if let Message::EventsAck { id, upto } = &message {
                        let file = self.home.runs.get(&(id.run, id.attempt));
                        let durable = file.map_or(0, |file| {
                            file.bytes[..file.synced].iter().filter(|byte| **byte == b'\n').count() as u64
                        });
                        assert!(*upto <= durable, "I10: {upto} events acked, {durable} durable");
                        let before = self.acked.insert(*id, *upto).unwrap_or(0);
                        assert!(before <= *upto, "I10: an ack went back from {before} to {upto}");
                    }
                    let b = self.boxes.iter().position(|b| b.node == node).expect("a known node");
                    if self.links[b].up {
                        self.links[b].to_resident.push_back((message, tail));
                    } else if !matches!(message, Message::Kill { .. }) {
                        self.see("a frame met no link");
                    }
                }
            }
        }
    }

    pub fn sync_all(&mut self) {
        while self.sync_home() {}
    }

    // ---- crashes ----

    /// The home's process dies, its own resident with it. Of what was on its way to disk, some has arrived.
    pub fn crash_home(&mut self, reboot: bool) {
        self.stop_writing();
        self.home.faulted = false;
        if reboot {
            let mut rng = self.rng.clone();
            self.home.runs.values_mut().for_each(|file| file.lose_unsynced(&mut rng));
            self.rng = rng;
        }
        for b in 0..self.boxes.len() {
            self.cut(b);
            self.boxes[b].late_there.clear();
        }
        self.crash_resident(0, reboot);
    }

    /// The log takes no writes, and the home is dropped; links stay up, and what comes on them meets nobody.
    pub fn fault_home(&mut self) {
        self.note("HOME fault");
        self.see("a log stopped");
        self.stop_writing();
        self.home.faulted = true;
    }

    fn stop_writing(&mut self) {
        let waiting = self.home.pending.len() as u64;
        for _ in 0..self.below(waiting + 1) {
            let Some(step) = self.home.pending.pop_front() else { break };
            self.commit(step);
        }
        if let Some(step) = self.home.pending.pop_front()
            && self.chance(50)
        {
            // Blobs and journals come before the entries that name them.
            self.home.blobs.extend(step.blobs);
            self.write_journals(&step.journals);
            self.see("a journal outran its entries");
        }
        self.home.pending.clear();
        self.home.core = None;
        self.asked.retain(|_, request| matches!(request.op, Op::Post { client: Some(_), .. }));
    }

    pub fn restart_home(&mut self) {
        let state = self.home.log.fold();
        let mut runs = BTreeMap::new();
        for (run, turn) in &state.turns {
            let mut progress = RunProgress::new(turn.attempt);
            if let Some(file) = self.home.runs.get_mut(&(*run, turn.attempt)) {
                file.cut_torn_line();
                progress.absorb(&file.bytes).expect("whole lines");
                file.sync();
            }
            progress.all_synced();
            runs.insert(*run, progress);
        }
        self.home.lamport = state.lamport;
        self.home.core = Some(Home::new(state, self.home.node, runs));
        if !std::mem::take(&mut self.home.faulted) {
            return self.restart_resident(0);
        }
        // The links are up as before. Each side is told anew of the other: what ended meanwhile was never acknowledged.
        for b in 0..self.boxes.len() {
            if !self.links[b].up {
                continue;
            }
            if let Some(mark) = self.links[b].mark {
                self.feed_home(Input::LinkUp(self.boxes[b].node, mark));
            }
            self.greet(b);
        }
    }

    /// Posts whose answer never came are posted again, under the same id.
    pub fn retry_posts(&mut self) {
        for (_, request) in std::mem::take(&mut self.asked) {
            self.ask(request.by, request.op);
        }
    }

    // ---- what happens sometimes ----

    fn observe(&mut self, step: &Step) {
        for entry in &step.entries {
            match &entry.body {
                Body::TurnHeld { .. } => self.see("a turn is held"),
                Body::HoldReleased { retry: true, message, .. } => {
                    self.see("a held turn is released");
                    let core = self.home.core.as_ref();
                    if core.and_then(|core| core.state().turns.get(message)).is_some_and(|turn| turn.released) {
                        self.see("a release waits for its box");
                    }
                }
                Body::HoldReleased { retry: false, .. } => self.see("a held turn is dropped"),
                Body::DeliveryHeld { .. } => self.see("a delivery is held"),
                Body::DeliveryReleased { .. } => self.see("a held delivery is decided"),
                Body::RoundClosed { results, .. } if results.len() > 1 => self.see("a round closed with all results"),
                Body::RoundClosed { .. } => self.see("a round closed early"),
                Body::CardRaised { .. } => self.see("a card is raised"),
                Body::CardAnswered { .. } => self.see("a card is answered"),
                Body::StopRequested { message } => {
                    let turn = self.home.core.as_ref().and_then(|core| core.state().turns.get(message));
                    match turn.map(|turn| turn.phase) {
                        Some(super::super::TurnPhase::Sent) => self.see("a stop while nobody has accepted"),
                        Some(super::super::TurnPhase::Accepted) => self.see("a stop while it runs"),
                        _ => {}
                    }
                }
                Body::TurnStarted { attempt, .. } if *attempt > Attempt(1) => self.see("another attempt"),
                _ => {}
            }
        }
    }
}

fn must_sync(step: &Step) -> bool {
    !step.entries.is_empty() || !step.blobs.is_empty() || step.journals.iter().any(|append| append.sync)
}
