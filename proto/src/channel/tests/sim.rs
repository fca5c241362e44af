//! Seeded runs: chance picks what happens next; then everything is healed, and everything must come to its end.

use std::collections::BTreeSet;

use super::super::{Card, Home, Input, Op};
use super::world::{ANA, World, post};
use crate::entry::{Attachment, MemberKind, Post};
use crate::event::Answer;
use crate::id::{Attempt, Handle, Hash, MemberId, MessageId};
use crate::link::AttemptId;

/// Handles of the agents, with the box that each lives on.
const AGENTS: [(&str, usize); 4] = [("ox", 0), ("elk", 1), ("fox", 1), ("gnu", 2)];

/// Steps of chaos in one run.
const STEPS: usize = 600;

/// Rounds of fair scheduling after which a world that is still busy is stuck.
const SETTLE_MAX: usize = 4000;

impl World {
    /// A text as people and agents write them.
    pub fn text(&mut self) -> String {
        let one = |world: &mut Self| world.pick(&AGENTS.map(|(handle, _)| handle)).unwrap_or("ox");
        match self.below(12) {
            0..=3 => format!("@{} have a look", one(self)),
            4 | 5 => format!("@{} and @{} compare", one(self), one(self)),
            6 => "@ox @elk @gnu all of you".to_owned(),
            7 => "@nobody and @ana".to_owned(),
            8 => format!("see #{}", 1 + self.below(9)),
            9 => "`@ox` is code".to_owned(),
            _ => "nothing in particular".to_owned(),
        }
    }

    pub fn agent_posts(&mut self, member: MemberId, run: MessageId, text: &str) {
        let post = Post { text: text.to_owned(), ..Default::default() };
        self.ask(member, Op::Post { post, client: None, run: Some(run) });
    }

    fn attempts(&self, b: usize) -> Vec<AttemptId> {
        let b = &self.boxes[b];
        b.turns.keys().chain(b.pumps.keys()).copied().collect::<BTreeSet<_>>().into_iter().collect()
    }

    // ---- fair scheduling ----

    /// One round in which everything that can move does. False when nothing could.
    fn round(&mut self) -> bool {
        let mut moved = self.sync_home();
        for b in 0..self.boxes.len() {
            moved |= self.sync_resident(b);
            moved |= self.admit(b);
            moved |= self.resident_hears(b);
            moved |= self.home_hears(b);
            for id in self.attempts(b) {
                moved |= self.play(b, id);
                moved |= self.pump(b, id);
            }
        }
        let runs = self.home.runs.keys().copied().collect::<Vec<_>>();
        for (run, attempt) in runs {
            moved |= self.sync_journal(run, attempt);
        }
        moved
    }

    /// Moves each thing by one.
    pub fn talk_once(&mut self) {
        self.round();
    }

    /// Everything but admissions and harnesses, until nothing of it moves.
    pub fn talk(&mut self) {
        loop {
            let mut moved = self.sync_home();
            for b in 0..self.boxes.len() {
                moved |= self.sync_resident(b) | self.resident_hears(b) | self.home_hears(b);
                for id in self.attempts(b) {
                    moved |= self.pump(b, id);
                }
            }
            if !moved {
                return;
            }
        }
    }

    /// Runs until nothing moves any more. Questions stay open, time stands still.
    pub fn run(&mut self) {
        for _ in 0..SETTLE_MAX {
            if !self.round() {
                return;
            }
        }
        panic!("the world does not settle");
    }

    /// Brings everything up again and lets it settle.
    pub fn heal_links(&mut self) {
        if self.home.core.is_none() {
            self.restart_home();
        }
        for b in 0..self.boxes.len() {
            if self.boxes[b].core.is_none() {
                self.restart_resident(b);
            }
            self.connect(b);
        }
        self.retry_posts();
        self.run();
    }

    /// Heals everything, then runs on: people answer what is asked, stop what hangs, and time passes for rounds.
    pub fn heal(&mut self) {
        self.mood = super::world::Mood::default();
        self.heal_links();
        for _ in 0..SETTLE_MAX {
            self.run();
            let hangs = self.boxes.iter().flat_map(|b| b.turns.values()).find(|turn| turn.waits.is_none());
            if let Some(card) = self.questions().first().copied() {
                let Some(Card::Ask { ask, .. }) = self.core().state().cards.get(&card) else { continue };
                let choice = vec![ask.options[0].label.clone()];
                self.ask(ANA, Op::Answer(card, Answer { choice, text: None }));
                continue;
            }
            if let Some(member) = hangs.map(|turn| turn.member) {
                self.see("a hanging turn is interrupted");
                self.ask(ANA, Op::MemberInterrupt(member));
                continue;
            }
            let Some(due) = self.core().poll_timeout() else { return };
            self.see("a round waits out its time");
            self.now.mono = self.now.mono.max(due);
            self.feed_home(Input::Timeout);
        }
        panic!("the world does not come to its end");
    }

    // ---- chaos ----

    fn anything(&mut self, faults: &Faults) {
        let b = usize::try_from(self.below(self.boxes.len() as u64)).expect("small");
        match self.below(1000) {
            0..=49 => self.somebody_posts(),
            50..=64 => self.somebody_manages(),
            65..=124 => self.somebody_answers(),
            125..=134 if faults.people => self.somebody_decides(),
            135..=144 if faults.cuts && b > 0 => self.cut(b),
            145..=147 if faults.residents && b > 0 && self.boxes[b].core.is_some() => self.crash_resident(b, false),
            149..=151 if faults.reboots && b > 0 && self.boxes[b].core.is_some() => self.crash_resident(b, true),
            152 if faults.logs && self.home.core.is_some() => self.fault_home(),
            153 if faults.homes && faults.residents && self.home.core.is_some() => {
                self.see("all boxes crash at once");
                self.crash_home(false);
                for b in (1..self.boxes.len()).filter(|b| self.boxes[*b].core.is_some()).collect::<Vec<_>>() {
                    let reboot = faults.reboots && self.chance(30);
                    self.crash_resident(b, reboot);
                }
            }
            154..=156 if faults.homes && (self.home.core.is_some() || self.home.faulted) => {
                let reboot = faults.reboots && self.chance(30);
                self.note("HOME crash");
                self.crash_home(reboot);
            }
            160..=189 if self.home.core.is_none() => {
                self.restart_home();
                self.note("HOME restarted");
            }
            160..=189 if self.boxes[b].core.is_none() => {
                if faults.journals && self.chance(15) {
                    self.lose_journal(b);
                }
                if faults.journals
                    && self.chance(15)
                    && let Some((id, _)) = self.boxes[b].runs.pop_last()
                {
                    self.see("a run's journal is lost");
                    self.note(format!("{b}: lost the journal of run {}", id.run));
                }
                self.restart_resident(b);
            }
            160..=189 => self.connect(b),
            190..=197 if self.home.core.is_some() => self.retry_posts(),
            198 if faults.archive && self.chance(5) => {
                self.see("a channel is archived");
                self.note("@ana: archive");
                self.ask(ANA, Op::Archive);
            }
            200..=203 => self.time_passes(),
            204..=219 if faults.late => self.something_comes_late(b),
            _ => self.something_moves(),
        }
    }

    fn time_passes(&mut self) {
        self.now.mono = self.now.mono + 60_000 * (1 + self.below(8));
        let due = self.home.core.as_ref().and_then(Home::poll_timeout);
        if due.is_some_and(|at| at <= self.now.mono) {
            self.feed_home(Input::Timeout);
        }
    }

    /// One of the things that can move does.
    fn something_moves(&mut self) {
        let mut moves = Vec::new();
        if !self.home.pending.is_empty() {
            moves.extend([Move::SyncHome; 4]);
        }
        let unsynced = self.home.runs.iter().filter(|(_, file)| file.synced < file.bytes.len());
        moves.extend(unsynced.map(|((run, attempt), _)| Move::SyncJournal(*run, *attempt)));
        for (b, state) in self.boxes.iter().enumerate() {
            let link = &self.links[b];
            moves.extend(std::iter::repeat_n(Move::SyncResident(b), 3 * usize::from(!state.pending.is_empty())));
            moves.extend(std::iter::repeat_n(Move::Admit(b), 2 * usize::from(!state.asking.is_empty())));
            moves.extend(std::iter::repeat_n(Move::ToResident(b), 3 * usize::from(!link.to_resident.is_empty())));
            let coming = link.hello.is_some() || !link.to_home.is_empty() || link.lanes.values().any(|q| !q.is_empty());
            moves.extend(std::iter::repeat_n(Move::ToHome(b), 3 * usize::from(coming)));
            moves.extend(state.turns.iter().filter(|(_, turn)| turn.can_go_on()).map(|(id, _)| Move::Play(b, *id)));
            moves.extend(state.pumps.iter().filter(|(_, pump)| pump.from.is_some()).map(|(id, _)| Move::Pump(b, *id)));
        }
        match self.pick(&moves) {
            Some(Move::SyncHome) => drop(self.sync_home()),
            Some(Move::SyncJournal(run, attempt)) if self.home.core.is_some() => drop(self.sync_journal(run, attempt)),
            Some(Move::SyncResident(b)) => drop(self.sync_resident(b)),
            Some(Move::Admit(b)) => drop(self.admit(b)),
            Some(Move::ToResident(b)) => drop(self.resident_hears(b)),
            Some(Move::ToHome(b)) => drop(self.home_hears(b)),
            Some(Move::Play(b, id)) => drop(self.play(b, id)),
            Some(Move::Pump(b, id)) => drop(self.pump(b, id)),
            Some(Move::SyncJournal(..)) | None => {}
        }
    }

    fn somebody_posts(&mut self) {
        if self.home.core.is_none() {
            return;
        }
        let text = self.text();
        let known = self.saved.keys().cloned().collect::<Vec<_>>();
        if !known.is_empty() && self.chance(15) {
            // The answer did come, and the client does not believe it.
            let client = self.pick(&known).expect("some");
            self.see("a saved post is posted again");
            self.ask(ANA, post(&self.saved[&client].text.clone(), Some(client.as_str())));
            return;
        }
        let client = format!("c{}", self.below(u64::MAX));
        self.note(format!("@ana posts {text:?}"));
        let mut op = post(&text, Some(&client));
        let last = self.core().state().message.0;
        if let Op::Post { post, .. } = &mut op {
            if self.chance(20) {
                let name = format!("file-{}.txt", self.below(9));
                post.attachments.push(Attachment { hash: Hash::of(name.as_bytes()), name, size: 1 });
            }
            if last > 0 && self.chance(20) {
                post.reply_to = Some(MessageId(1 + self.below(last)));
            }
        }
        self.ask(ANA, op.clone());
        if self.chance(10) {
            self.see("a post is repeated at once");
            self.ask(ANA, op);
        }
    }

    fn somebody_manages(&mut self) {
        let Some(core) = &self.home.core else { return };
        let agents = AGENTS.map(|(handle, _)| core.state().by_handle(handle).map(|(id, _)| id));
        let present = agents.iter().flatten().copied().collect::<Vec<_>>();
        let Some(member) = self.pick(&present) else { return };
        let (paused, killed) = {
            let state = &self.core().state().members[&member];
            (state.paused, state.killed)
        };
        if (paused || killed) && self.chance(70) {
            let op = if killed { Op::MemberRevive(member) } else { Op::MemberResume(member) };
            self.ask(ANA, op);
            return;
        }
        let op = match self.below(17) {
            16 => {
                self.see("a member is renamed");
                let handle = Handle::new(&format!("x{}", self.below(1_000_000))).expect("a handle");
                Op::MemberRename(member, handle)
            }
            0..=3 => Op::MemberInterrupt(member),
            4..=6 => Op::MemberPause(member),
            7..=9 => Op::MemberResume(member),
            10 => Op::MemberKill(member),
            11 | 12 => Op::MemberRevive(member),
            13 => {
                let model = Some(format!("model-{}", self.below(9)));
                Op::MemberConfigure { member, model, policy: None, cwd: None }
            }
            14 => Op::MemberRemove(member),
            _ => {
                // Those that were removed come back as somebody else under the same handle.
                let gone = agents.iter().position(Option::is_none);
                let Some((handle, b)) = gone.map(|index| AGENTS[index]) else { return };
                let node = Some(self.boxes[b].node);
                let spec = super::world::spec(handle, MemberKind::Agent, node);
                Op::MemberAdd { spec, client: None }
            }
        };
        self.note(format!("@ana: {op:?}").chars().take(120).collect::<String>());
        self.ask(ANA, op);
    }

    fn somebody_answers(&mut self) {
        if self.home.core.is_none() {
            return;
        }
        let cards = self.questions();
        let Some(card) = self.pick(&cards) else { return };
        let Some(Card::Ask { ask, .. }) = self.core().state().cards.get(&card) else { return };
        let labels = ask.options.iter().map(|option| option.label.clone()).collect::<Vec<_>>();
        let Some(label) = self.pick(&labels) else { return };
        self.note(format!("@ana answers #{card}: {label}"));
        self.ask(ANA, Op::Answer(card, Answer { choice: vec![label], text: None }));
    }

    fn somebody_decides(&mut self) {
        if self.home.core.is_none() {
            return;
        }
        let core = self.core();
        let away = core.state().turns.iter().filter(|(_, turn)| !turn.is_settled() && !core.is_up(&turn.node));
        let away = away.map(|(run, _)| *run).collect::<Vec<_>>();
        if let Some(message) = self.pick(&away)
            && self.chance(20)
        {
            self.see("a turn is given up whose box is away");
            self.note(format!("@ana gives #{message} up"));
            self.ask(ANA, Op::Hold { message, release: false, may_run_twice: false });
            return;
        }
        let holds = self.holds();
        let Some(message) = self.pick(&holds) else { return };
        let release = self.chance(60);
        self.note(format!("@ana decides #{message}: {release}"));
        self.ask(ANA, Op::Hold { message, release, may_run_twice: false });
    }
}

/// Something that the world can do next.
#[derive(Clone, Copy)]
enum Move {
    SyncHome,
    SyncJournal(MessageId, Attempt),
    SyncResident(usize),
    Admit(usize),
    ToResident(usize),
    ToHome(usize),
    Play(usize, AttemptId),
    Pump(usize, AttemptId),
}

/// Which faults a seed has: each in about half of them.
struct Faults {
    cuts: bool,
    homes: bool,
    residents: bool,
    reboots: bool,
    journals: bool,
    people: bool,
    logs: bool,
    late: bool,
    archive: bool,
}

pub fn live(seed: u64) -> World {
    let mut world = World::new(seed, 2);
    world.loud = told("TIELINE_SEED").is_some();
    for (handle, b) in AGENTS {
        world.add(handle, b);
    }
    let mut coin = |percent| world.chance(percent);
    let faults = Faults {
        cuts: coin(60),
        homes: coin(50),
        residents: coin(50),
        reboots: coin(40),
        journals: coin(20),
        people: coin(70),
        logs: coin(40),
        late: coin(40),
        archive: coin(15),
    };
    world.mood.improvise = true;
    world.mood.refuse = if world.chance(30) { 10 } else { 0 };
    world.mood.twice = if world.chance(40) { 25 } else { 0 };
    world.mood.flaps = if world.chance(30) { 2 } else { 0 };
    world.mood.late = faults.late;
    if world.chance(15) {
        // The places of each box are few, from its next start on.
        world.mood.places = Some(1);
        (1..world.boxes.len()).for_each(|b| world.crash_resident(b, false));
        world.heal_links();
    }
    if world.chance(30) {
        let brake = u32::try_from(1 + world.below(4)).expect("small");
        world.set_brake(brake);
        (1..world.boxes.len()).for_each(|b| world.connect(b));
    }
    for _ in 0..STEPS {
        world.anything(&faults);
        world.check_journals();
    }
    world.note("---- heal");
    world.heal();
    world.check_quiet();
    // What is paused or killed goes on when people say so.
    let members = world.core().state().members.iter().filter(|(_, member)| !member.removed);
    for id in members.map(|(id, _)| *id).collect::<Vec<MemberId>>() {
        world.ask(ANA, Op::MemberRevive(id));
        world.ask(ANA, Op::MemberResume(id));
    }
    world.heal();
    world.check_quiet();
    // And what is held ends when people decide it.
    for n in 0..200 {
        let Some(message) = world.holds().first().copied() else { break };
        assert!(n < 199, "holds never end");
        let release = world.chance(70) && !world.core().state().archived;
        world.note(format!("@ana decides #{message}: {release}"));
        let card = world.core().state().cards[&message].clone();
        let ticket = world.ask(ANA, Op::Hold { message, release, may_run_twice: false });
        world.heal();
        let answer = world.answers.remove(&ticket);
        assert!(matches!(answer, Some(Ok(_))), "a hold is decided: {answer:?}");
        if let Card::HeldTurn { run, .. } = card {
            assert!(!world.core().state().turns.contains_key(&run), "what was decided is over, and not held again");
        }
    }
    world.check_quiet();
    assert!(world.core().state().turns.is_empty(), "every turn has ended");
    world.check_forgotten();
    world
}

/// Worlds of one run of the tests.
const SEEDS: u64 = 300;

/// What must have happened in some of them: a check of states that never come checks nothing.
const SOMETIMES: [&str; 39] = [
    "a box has no place left",
    "a card is answered",
    "a card is raised",
    "a channel is archived",
    "a delivery arrived twice",
    "a delivery is held",
    "a file came with its message",
    "a frame came late",
    "a frame met no link",
    "a hanging turn is interrupted",
    "a held delivery is decided",
    "a held turn is dropped",
    "a held turn is released",
    "a link broke for a moment",
    "a log stopped",
    "a journal outran its entries",
    "a member is renamed",
    "a post is repeated at once",
    "a release waits for its box",
    "a resident lost its journal",
    "a resident refuses",
    "a round closed early",
    "a round closed with all results",
    "a round waits out its time",
    "a run started twice, as a person said",
    "a run's journal is lost",
    "a saved post is posted again",
    "a stop while it runs",
    "a stop while nobody has accepted",
    "a turn is given up whose box is away",
    "a turn is held",
    "all boxes crash at once",
    "an answer is confirmed",
    "an attempt is known after a cut",
    "an attempt left no trace",
    "an attempt never started",
    "an attempt provably never arrived",
    "an attempt's outcome is unknown",
    "frames were lost in a cut",
];

#[expect(clippy::disallowed_methods, reason = "tests may be told what to explore")]
fn told(name: &str) -> Option<u64> {
    Some(std::env::var(name).ok()?.parse().expect("a number"))
}

/// To see a failure again: `TIELINE_SEED=N cargo nextest run --cargo-profile ci -p tieline-proto worlds`. With
/// `TIELINE_SEEDS=N` that many worlds live.
#[test]
fn worlds_come_to_their_end_whatever_happens() {
    if let Some(seed) = told("TIELINE_SEED") {
        live(seed);
        return;
    }
    let mut seen = BTreeSet::new();
    for seed in 0..told("TIELINE_SEEDS").unwrap_or(SEEDS) {
        seen.append(&mut live(seed).seen);
    }
    let never = SOMETIMES.iter().filter(|state| !seen.contains(*state)).collect::<Vec<_>>();
    assert!(never.is_empty(), "never seen: {never:?}");
}
