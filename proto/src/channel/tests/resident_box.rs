//! A resident's shell: its attempt journal, its harness, its pumps; its crashes and restarts.

use std::collections::{BTreeMap, VecDeque};

use ed25519_dalek::SigningKey;

use super::disk::File;
use super::harness::{Act, FakeTurn, Start, messages_of};
use super::net::check_fits;
use super::world::World;
use crate::crypto::sign::{AcceptedContent, FinishedContent, Task, device_id};
use crate::entry::{Auth, JournalMark, Policy};
use crate::event::{Event, Status};
use crate::id::{Hash, Incarnation, MemberId, NodeId};
use crate::link::{AttemptId, Message};
use crate::turn::{Admission, Effect, EventJournal, Input, Refusal, Resident, ResidentStep, RunEvidence};

/// One run's way to its home.
#[derive(Debug, Default)]
pub struct Pump {
    /// Next index to send; `None` until the home says where it stands.
    pub from: Option<u64>,
    pub end: Option<(u64, u64, Hash, Option<String>)>,
    pub said: bool,
}

/// A box with a resident.
pub struct ResidentBox {
    pub node: NodeId,
    key: SigningKey,
    /// Its node is the home's.
    local: bool,
    pub core: Option<Resident>,
    lives: u8,
    boot: u32,
    pub journal: File,
    pub runs: BTreeMap<AttemptId, File>,
    pub pending: VecDeque<ResidentStep>,
    busy: bool,
    pub asking: Vec<AttemptId>,
    pub turns: BTreeMap<AttemptId, FakeTurn>,
    pub pumps: BTreeMap<AttemptId, Pump>,
    /// What it signs about.
    tasks: BTreeMap<AttemptId, Task>,
    /// Frames of long ago, for this box and from it.
    pub late_here: Vec<(Message, Vec<u8>)>,
    pub late_there: Vec<(Message, Vec<u8>)>,
}

impl ResidentBox {
    pub fn new(n: usize, key: SigningKey) -> Self {
        Self {
            node: device_id(&key),
            key,
            local: n == 0,
            core: None,
            lives: 0,
            boot: 1,
            journal: File::default(),
            runs: BTreeMap::new(),
            pending: VecDeque::new(),
            busy: false,
            asking: Vec::new(),
            turns: BTreeMap::new(),
            pumps: BTreeMap::new(),
            tasks: BTreeMap::new(),
            late_here: Vec::new(),
            late_there: Vec::new(),
        }
    }

    /// Begins an attempt journal: a new box, or one whose journal is lost.
    pub fn install(&mut self) {
        self.lives += 1;
        let mut incarnation = [self.lives; 16];
        incarnation[0] = self.node.0[0];
        let (resident, bytes) = Resident::begin(Incarnation(incarnation), format!("boot-{}", self.boot));
        self.journal = File { synced: bytes.len(), bytes };
        self.core = Some(resident);
    }

    fn sign(&self, sig: impl FnOnce(&SigningKey) -> String) -> Auth {
        if self.local { Auth::Home } else { Auth::Resident { node: self.node, sig: sig(&self.key) } }
    }

    /// What it was handed as an attempt; anything, of one that it does not know.
    fn task(&self, id: AttemptId) -> Task {
        let unknown = Task { id, member: MemberId(0), payload: Hash::ZERO };
        self.tasks.get(&id).copied().unwrap_or(unknown)
    }

    fn accepted(&self, id: AttemptId, mark: JournalMark) -> Message {
        let JournalMark { incarnation, count, head } = mark;
        let auth = self.sign(|key| AcceptedContent { task: self.task(id), incarnation, count, head }.sign(key));
        Message::Accepted { id, mark, auth }
    }

    pub fn finished(&self, id: AttemptId, end: &(u64, u64, Hash, Option<String>)) -> Message {
        let (events, length, journal, session) = end.clone();
        let content = FinishedContent { task: self.task(id), events, length, journal, session: session.as_deref() };
        let auth = self.sign(|key| content.sign(key));
        Message::Finished { id, events, length, journal, session, auth }
    }
}

impl World {
    pub fn feed_resident(&mut self, b: usize, input: Input) {
        let Some(core) = &mut self.boxes[b].core else { return };
        let step = core.handle(input);
        self.boxes[b].pending.push_back(step);
        self.settle_resident(b);
    }

    /// Writes and acts on steps up to the first that must be synced.
    fn settle_resident(&mut self, b: usize) {
        if self.boxes[b].busy {
            return;
        }
        self.boxes[b].busy = true;
        while self.boxes[b].pending.front().is_some_and(|step| !step.sync) {
            let Some(step) = self.boxes[b].pending.pop_front() else { break };
            self.boxes[b].journal.bytes.extend_from_slice(&step.records);
            self.act_resident(b, step.effects);
        }
        self.boxes[b].busy = false;
    }

    /// Syncs the oldest step that waits for it. False when there is none.
    pub fn sync_resident(&mut self, b: usize) -> bool {
        let Some(step) = self.boxes[b].pending.pop_front() else { return false };
        self.boxes[b].busy = true;
        self.boxes[b].journal.bytes.extend_from_slice(&step.records);
        self.boxes[b].journal.sync();
        self.act_resident(b, step.effects);
        self.boxes[b].busy = false;
        self.settle_resident(b);
        true
    }

    fn send_home(&mut self, b: usize, message: Message) {
        check_fits(&message, &[]);
        if self.links[b].up {
            self.links[b].to_home.push_back((message, Vec::new()));
        }
    }

    fn act_resident(&mut self, b: usize, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Admit { id, .. } => self.boxes[b].asking.push(id),
                Effect::Accept { task, mark, start, .. } => {
                    let id = task.id;
                    self.boxes[b].tasks.insert(id, task);
                    let message = self.boxes[b].accepted(id, mark);
                    self.send_home(b, message);
                    if start {
                        self.feed_resident(b, Input::AcceptedDurable(id));
                    }
                }
                Effect::Start { .. } => self.start(b, effect),
                Effect::Resume { id, from, .. } => {
                    let up = self.links[b].up;
                    let pump = self.boxes[b].pumps.entry(id).or_default();
                    pump.from = up.then_some(from);
                    pump.said = false;
                }
                Effect::Finish { task, events, length, journal, session, .. } => {
                    let id = task.id;
                    self.boxes[b].tasks.insert(id, task);
                    let pump = self.boxes[b].pumps.entry(id).or_default();
                    pump.end = Some((events, length, journal, session));
                    pump.said = false;
                }
                Effect::Send(_, message) => self.send_home(b, message),
                Effect::Interrupt(id, _) => {
                    *self.oracle.interrupts.entry(id).or_default() += 1;
                    if let Some(turn) = self.boxes[b].turns.get_mut(&id) {
                        turn.interrupted = true;
                    }
                    self.send_home(b, Message::StopOk { id });
                }
                Effect::Answer { id, ask, answer, .. } => {
                    let given = self.oracle.answers.entry((id, ask.clone())).or_default();
                    given.push(answer);
                    assert_eq!(given.len(), 1, "A4: an answer reached the harness twice: {given:?}");
                    if let Some(turn) = self.boxes[b].turns.get_mut(&id)
                        && turn.waits.as_ref() == Some(&ask)
                    {
                        turn.waits = None;
                    }
                    self.send_home(b, Message::AnswerOk { id, ask });
                }
                Effect::Kill(_, member) => {
                    let turns = self.boxes[b].turns.values_mut();
                    turns.filter(|turn| turn.member == member).for_each(|turn| turn.interrupted = true);
                }
                Effect::Forget(id) => {
                    self.boxes[b].runs.remove(&id);
                    self.boxes[b].pumps.remove(&id);
                }
            }
        }
    }

    fn start(&mut self, b: usize, effect: Effect) {
        let Effect::Start { id, member, spec, payload, attachments, again, .. } = effect else { return };
        let running = self.boxes.iter().flat_map(|b| b.turns.values()).any(|turn| turn.member == member);
        assert!(!running, "I7: two open turns of one member");
        let text = String::from_utf8(payload.clone()).expect("a payload is text");
        let (messages, model) = (messages_of(&text), spec.model.clone());
        let files = attachments.into_iter().map(|file| file.hash).collect();
        let start = Start { id, member, messages, payload, files, model, again };
        self.note(format!("{b}: START run {} attempt {} of @{}", id.run, id.attempt, spec.handle));
        self.check_start(&start);
        self.oracle.starts.push(start);
        let plan = self.scripts.get_mut(spec.handle.as_str()).and_then(VecDeque::pop_front).map(VecDeque::from);
        let plan = plan.unwrap_or_else(|| self.improvise(member));
        self.boxes[b].runs.insert(id, File::default());
        self.boxes[b].turns.insert(id, FakeTurn::new(member, plan));
        let from = self.links[b].up.then_some(0);
        self.boxes[b].pumps.insert(id, Pump { from, ..Pump::default() });
    }

    // ---- work ----

    /// The owner's consent answers the oldest attempt. False when none asks.
    pub fn admit(&mut self, b: usize) -> bool {
        if self.boxes[b].asking.is_empty() {
            return false;
        }
        let id = self.boxes[b].asking.remove(0);
        let percent = self.mood.refuse;
        let result = if percent > 0 && self.chance(percent) {
            self.see("a resident refuses");
            Err(Refusal { code: "consent".to_owned(), message: "this box does not run that".to_owned() })
        } else {
            Ok(Admission { cwd: "/work".to_owned(), policy: Policy::Ask })
        };
        self.note(format!("{b}: admitted run {} attempt {}: {}", id.run, id.attempt, result.is_ok()));
        self.feed_resident(b, Input::Admitted { id, result });
        true
    }

    /// A running turn does its next thing.
    pub fn play(&mut self, b: usize, id: AttemptId) -> bool {
        let Some(turn) = self.boxes[b].turns.get_mut(&id).filter(|turn| turn.can_go_on()) else { return false };
        let member = turn.member;
        let (event, post) = turn.next();
        let mut lines = Vec::new();
        let ended = matches!(event, Some(Event::Finished { .. }));
        if let Some(event) = event {
            turn.journal.push(event, &mut lines);
        }
        let (events, length, hash) = (turn.journal.events(), turn.journal.length(), turn.journal.hash());
        self.oracle.written.entry(id).or_default().extend_from_slice(&lines);
        let file = self.boxes[b].runs.entry(id).or_default();
        file.bytes.extend_from_slice(&lines);
        if let Some(text) = post {
            self.note(format!("{b}: run {} posts", id.run));
            self.agent_posts(member, id.run, &text);
        }
        if ended {
            self.note(format!("{b}: run {} attempt {} ends", id.run, id.attempt));
            if let Some(file) = self.boxes[b].runs.get_mut(&id) {
                file.sync();
            }
            self.boxes[b].turns.remove(&id);
            let session = Some(format!("session-{}", id.run));
            self.feed_resident(b, Input::Ended { id, events, length, journal: hash, session });
        }
        true
    }

    /// A pump sends its next chunk, or the end. False when it has nothing to send.
    pub fn pump(&mut self, b: usize, id: AttemptId) -> bool {
        if !self.links[b].up {
            return false;
        }
        let most = 1 + usize::try_from(self.below(3)).expect("small");
        let state = &mut self.boxes[b];
        let Some(pump) = state.pumps.get_mut(&id) else { return false };
        let Some(from) = pump.from else { return false };
        let file = state.runs.get(&id).cloned().unwrap_or_default();
        let skip = usize::try_from(from).expect("small");
        let lines = file.lines().skip(skip).take(most).collect::<Vec<_>>();
        if !lines.is_empty() {
            let tail = lines.concat();
            pump.from = Some(from + lines.len() as u64);
            let lane = self.links[b].lanes.entry(id).or_default();
            lane.push_back((Message::Events { id, first: from }, tail));
            return true;
        }
        let Some(end) = pump.end.clone().filter(|(_, length, ..)| *length == file.bytes.len() as u64) else {
            return false;
        };
        if pump.said {
            return false;
        }
        pump.said = true;
        let message = state.finished(id, &end);
        self.links[b].lanes.entry(id).or_default().push_back((message, Vec::new()));
        true
    }

    // ---- crashes ----

    /// The process dies, its harness with it. On a reboot what was not synced may be gone.
    pub fn crash_resident(&mut self, b: usize, reboot: bool) {
        self.note(format!("{b}: crash{}", if reboot { " of the box" } else { "" }));
        self.cut(b);
        let waiting = self.boxes[b].pending.len() as u64;
        for _ in 0..self.below(waiting + 1) {
            let Some(step) = self.boxes[b].pending.pop_front() else { break };
            self.boxes[b].journal.bytes.extend_from_slice(&step.records);
            if step.sync {
                self.boxes[b].journal.sync();
            }
        }
        let mut rng = self.rng.clone();
        let state = &mut self.boxes[b];
        state.core = None;
        state.pending.clear();
        state.asking.clear();
        state.turns.clear();
        state.pumps.clear();
        // No frame outlives the process that reads it.
        state.late_here.clear();
        state.late_there.clear();
        if reboot {
            state.boot += 1;
            state.journal.lose_unsynced(&mut rng);
            state.runs.values_mut().for_each(|file| file.lose_unsynced(&mut rng));
        }
        self.rng = rng;
    }

    /// The attempt journal is gone: another disk, or another life.
    pub fn lose_journal(&mut self, b: usize) {
        self.see("a resident lost its journal");
        self.boxes[b].runs.clear();
        self.boxes[b].install();
        self.boxes[b].core = None;
    }

    pub fn restart_resident(&mut self, b: usize) {
        let state = &mut self.boxes[b];
        state.journal.cut_torn_line();
        state.journal.sync();
        for file in state.runs.values_mut() {
            file.cut_torn_line();
            file.sync();
        }
        let runs = &state.runs;
        let evidence = |id: &AttemptId| {
            let Some(file) = runs.get(id) else { return RunEvidence::default() };
            let mut journal = EventJournal::default();
            journal.absorb(&file.bytes);
            let last = file.lines().last().unwrap_or_default();
            let ended = matches!(serde_json::from_slice(last), Ok(Event::Finished { .. }));
            RunEvidence { events: journal.events(), length: journal.length(), journal: Some(journal.hash()), ended }
        };
        let boot = format!("boot-{}", state.boot);
        let core = Resident::restore(&state.journal.bytes, boot, evidence).expect("a sound journal");
        // The crash may have come between the record that forgets a run and the removal of its journal.
        state.runs.retain(|id, _| core.open().any(|(open, _)| open == id));
        state.core = Some(match self.mood.places {
            Some(places) => core.with_places(places),
            None => core,
        });
        self.note(format!("{b}: restarted"));
        self.connect(b);
    }

    /// What a turn does when no test says: what agents do.
    fn improvise(&mut self, _member: crate::id::MemberId) -> VecDeque<Act> {
        if !self.mood.improvise {
            return VecDeque::from([Act::End(Status::Completed, "<ACK_OK>".to_owned())]);
        }
        let mut plan = VecDeque::new();
        for n in 0..self.below(4) {
            match self.below(12) {
                0 | 10 => plan.push_back(Act::Ask(super::harness::question(&format!("q{n}"), &["red", "blue"]))),
                1 | 11 => plan.push_back(Act::Ask(super::harness::approval(&format!("q{n}"), "rm -r build"))),
                2 => {
                    let text = self.text();
                    plan.push_back(Act::Post(text));
                }
                _ => plan.push_back(Act::Say("word ".to_owned())),
            }
        }
        let end = match self.below(20) {
            0 => Act::End(Status::Failed, String::new()),
            1 => Act::End(Status::Completed, String::new()),
            2 => Act::Hang,
            3..=6 => Act::End(Status::Completed, "<ACK_OK>".to_owned()),
            _ => Act::End(Status::Completed, self.text()),
        };
        plan.push_back(end);
        plan
    }
}
