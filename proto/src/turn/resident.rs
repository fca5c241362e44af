//! The resident: runs turns for homes, each attempt at most once, and proves what became of it.
//!
//! Every attempt leaves chained records in the attempt journal. `accepted` is synced before the home hears of it;
//! `handed` is written, not synced, right before the harness gets the payload: a write survives the process though
//! not the box, so its absence proves "never started" exactly while the box has not rebooted since.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::io::{Admission, Effect, Input, Refusal, ResidentStep};
use super::record::{Record, RestoreError, RunEvidence};
use crate::crypto::sign::Task;
use crate::entry::{Attachment, JournalMark, MemberSpec};
use crate::event::Answer;
use crate::id::{Attempt, ChannelId, Hash, Incarnation, MemberId, MessageId, NodeId};
use crate::link::{Asked, AttemptId, Message, Verdict};
use crate::log::Chain;
use crate::turn::SESSION_LEN_MAX;
use crate::wire::frame::TAIL_LEN_MAX;
use crate::wire::json::{self as gate, Limits};

/// Attempts open at once, over all homes; more are refused.
pub(super) const ATTEMPTS_MAX: usize = 1024;

/// Attempts open at once of one home: no home takes the places of all others.
pub(super) const ATTEMPTS_OF_HOME_MAX: usize = 512;

/// Bytes of payloads that wait for their harness, of one home.
pub(super) const WAITING_LEN_MAX: usize = 128 * 1024 * 1024;

/// Heads of the attempt journal kept to answer marks; older marks prove nothing any more.
pub(super) const HEADS_MAX: usize = 4096;

/// Runs of one home whose void attempts are remembered. Late frames come within a link's life; this many runs back
/// there are none.
pub(super) const FENCES_MAX: usize = 4096;

/// Answers of one attempt that are remembered, so that a repeated one does not reach the harness again.
const ANSWERS_MAX: usize = 4096;

/// Verdicts in one report, so that it stays below what a frame may hold.
pub(super) const VERDICTS_MAX: usize = 128;

#[derive(Clone, Debug)]
enum Phase {
    /// Waits for the owner's consent.
    Asking(Box<Work>),
    /// Waits for the member's turn before it, which is not over here yet.
    Waiting(Admission, Box<Work>),
    /// Durable soon; handed to the harness after that.
    Accepted(JournalMark, Admission, Box<Work>),
    /// The harness has it, and the answers to questions whose ids have these hashes, oldest first.
    Running(JournalMark, VecDeque<Hash>),
    /// Ended; the home may not know.
    Ended(Box<Effect>),
    /// Stopped before it was handed, or found so after a restart. It never will be; the home may not know.
    NeverStarted,
    /// Found after a restart, or the node was stopped under it: nobody knows.
    Ambiguous(String),
}

impl Phase {
    /// Whether it takes up its member: one turn of a member runs at a time.
    const fn is_active(&self) -> bool {
        matches!(self, Self::Accepted(..) | Self::Running(..))
    }

    /// Bytes of the payload that it keeps.
    const fn len(&self) -> usize {
        match self {
            Self::Asking(work) | Self::Waiting(_, work) | Self::Accepted(_, _, work) => work.payload.len(),
            Self::Running(..) | Self::Ended(_) | Self::NeverStarted | Self::Ambiguous(_) => 0,
        }
    }
}

#[derive(Clone, Debug)]
struct Work {
    spec: MemberSpec,
    name: String,
    session: Option<String>,
    payload: Vec<u8>,
    attachments: Vec<Attachment>,
    again: bool,
}

#[derive(Clone, Debug)]
struct Attempted {
    home: NodeId,
    member: MemberId,
    hash: Hash,
    /// Where its acceptance is in the journal.
    mark: Option<JournalMark>,
    /// Its home gave it up while the harness had it: how it ends is told to nobody.
    void: bool,
    phase: Phase,
}

impl Attempted {
    const fn task(&self, id: AttemptId) -> Task {
        Task { id, member: self.member, payload: self.hash }
    }
}

/// The resident side of one node, over all homes and channels.
#[derive(Debug)]
pub struct Resident {
    boot: String,
    incarnation: Incarnation,
    chain: Chain,
    /// Heads after the last records, oldest first, with the attempt that a record accepts; the last one is the chain's.
    heads: VecDeque<(Hash, Option<AttemptId>)>,
    attempts: BTreeMap<AttemptId, Attempted>,
    /// By home: one cannot fence off another's runs, nor push its fences out.
    fences: BTreeMap<NodeId, Fences>,
    /// [`ATTEMPTS_MAX`], or less in tests.
    places: usize,
}

/// Which attempts of a home are void: told absent, refused or forgotten.
#[derive(Debug, Default)]
struct Fences {
    /// The highest void attempt of each run.
    upto: BTreeMap<(ChannelId, MessageId), Attempt>,
    /// The runs, oldest first.
    order: VecDeque<(ChannelId, MessageId)>,
}

impl Fences {
    fn add(&mut self, id: &AttemptId) {
        let run = (id.channel, id.run);
        let fence = self.upto.entry(run).or_insert_with(|| {
            self.order.push_back(run);
            Attempt::default()
        });
        *fence = (*fence).max(id.attempt);
        if self.order.len() > FENCES_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.upto.remove(&oldest);
        }
    }

    fn holds(&self, id: &AttemptId) -> bool {
        self.upto.get(&(id.channel, id.run)).is_some_and(|fence| id.attempt <= *fence)
    }
}

impl Resident {
    /// A new attempt journal, and its first line.
    #[must_use]
    pub fn begin(incarnation: Incarnation, boot: String) -> (Self, Vec<u8>) {
        let mut resident = Self::empty(incarnation, boot);
        let mut out = Vec::new();
        resident.record(Record::Began { incarnation }, &mut out);
        (resident, out)
    }

    const fn empty(incarnation: Incarnation, boot: String) -> Self {
        Self {
            boot,
            incarnation,
            chain: Chain { head: Hash::ZERO, count: 0 },
            heads: VecDeque::new(),
            attempts: BTreeMap::new(),
            fences: BTreeMap::new(),
            places: ATTEMPTS_MAX,
        }
    }

    /// With fewer places, so that tests can take them all.
    #[cfg(test)]
    pub(crate) const fn with_places(mut self, places: usize) -> Self {
        self.places = places;
        self
    }

    /// Takes an attempt journal up again: whole lines, synced; the caller has cut a torn tail. `evidence` reads what is
    /// on disk of a run that is not forgotten, synced too: what it says is told to homes.
    ///
    /// # Errors
    /// When a line is damaged: the caller begins a new journal, and open attempts are held by their homes.
    pub fn restore(
        lines: &[u8],
        boot: String,
        mut evidence: impl FnMut(&AttemptId) -> RunEvidence,
    ) -> Result<Self, RestoreError> {
        let mut resident = Self::empty(Incarnation([0; 16]), boot);
        let mut boots: BTreeMap<AttemptId, String> = BTreeMap::new();
        let mut handed: BTreeSet<AttemptId> = BTreeSet::new();
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            let first = resident.chain.count == 0;
            let damaged = RestoreError::Damaged(resident.chain.count + 1);
            // A line without its LF would swallow the next record.
            let line = line.strip_suffix(b"\n").ok_or_else(|| damaged.clone())?;
            let record = resident.chain.read(line).map_err(|_| damaged.clone())?;
            if first != matches!(record, Record::Began { .. }) {
                return Err(damaged);
            }
            resident.remember(accepts(&record));
            match record {
                Record::Began { incarnation } => resident.incarnation = incarnation,
                Record::Accepted { id, home, member, payload, boot } => {
                    boots.insert(id, boot);
                    let phase = Phase::NeverStarted;
                    resident.attempts.insert(
                        id,
                        Attempted { home, member, hash: payload, mark: Some(resident.mark()), void: false, phase },
                    );
                }
                Record::Handed { id } => {
                    handed.insert(id);
                }
                Record::Ended { id, events, length, journal, session } => {
                    if let Some(attempt) = resident.attempts.get_mut(&id) {
                        let (task, home) = (attempt.task(id), attempt.home);
                        let finish = Effect::Finish { task, home, events, length, journal, session };
                        attempt.phase = Phase::Ended(Box::new(finish));
                    }
                }
                Record::Forgotten { id } => {
                    if let Some(attempt) = resident.attempts.remove(&id) {
                        resident.fence(attempt.home, &id);
                    }
                }
                Record::Unknown => {}
            }
        }
        if resident.chain.count == 0 {
            return Err(RestoreError::Damaged(1));
        }
        for (id, attempt) in &mut resident.attempts {
            let found = evidence(id);
            if let Phase::Ended(finish) = &attempt.phase {
                if !found.is_of(finish) {
                    let reason = "it ended, but the journal that says how is lost or damaged on its box".to_owned();
                    attempt.phase = Phase::Ambiguous(reason);
                }
                continue;
            }
            let same_boot = boots.get(id).is_some_and(|boot| *boot == resident.boot);
            attempt.phase = match found {
                // The last event is synced before it is told to anybody, so a whole one is the truth.
                RunEvidence { ended: true, events, length, journal: Some(journal) } => {
                    let (task, home) = (attempt.task(*id), attempt.home);
                    Phase::Ended(Box::new(Effect::Finish { task, home, events, length, journal, session: None }))
                }
                // Events are written after the hand-over: where they are and its record is not, the record was lost.
                RunEvidence { events, .. } if events > 0 || handed.contains(id) => {
                    Phase::Ambiguous(format!("the node stopped while the agent was working, after {events} events"))
                }
                _ if same_boot => Phase::NeverStarted,
                _ => Phase::Ambiguous("the box restarted before it was sure that the agent had not begun".to_owned()),
            };
        }
        Ok(resident)
    }

    /// Applies one input. Act on the step before the next one.
    pub fn handle(&mut self, input: Input) -> ResidentStep {
        let mut step = ResidentStep::default();
        // A node that stops begins nothing more, and what one home says begins nothing of another's.
        let begins = match &input {
            Input::Stopped(_) => None,
            Input::LinkUp(home) | Input::Frame { home, .. } => Some(Some(*home)),
            Input::Admitted { id, .. } | Input::AcceptedDurable(id) => self.attempts.get(id).map(|one| Some(one.home)),
            Input::Ended { .. } => Some(None),
        };
        match input {
            Input::LinkUp(home) => self.link_up(&mut step, home),
            Input::Frame { home, message, tail } => self.frame(&mut step, home, message, tail),
            Input::Admitted { id, result } => self.admitted(&mut step, id, result),
            Input::AcceptedDurable(id) => self.hand(&mut step, id),
            Input::Ended { id, events, length, journal, session } => {
                // What no frame can bring back is no help: such a session is begun anew.
                let session = session.filter(|session| session.len() <= SESSION_LEN_MAX);
                self.ended(&mut step, id, (events, length, journal), session);
            }
            Input::Stopped(id) => {
                if let Some(Attempted { home, phase: phase @ Phase::Running(..), .. }) = self.attempts.get_mut(&id) {
                    let reason = "the node stopped, or its disk failed, while the agent was working".to_owned();
                    *phase = Phase::Ambiguous(reason.clone());
                    // Told at once: the home must not show a turn as running that nobody watches any more.
                    let verdicts = vec![(id, Verdict::Ambiguous { reason })];
                    step.effects.push(Effect::Send(*home, Message::Report { verdicts }));
                }
            }
        }
        if let Some(only) = begins {
            self.begin_waiting(&mut step, only);
        }
        step
    }

    /// How far the attempt journal is, for `Hello`.
    #[must_use]
    pub const fn mark(&self) -> JournalMark {
        let Chain { head, count } = self.chain;
        JournalMark { incarnation: self.incarnation, count, head }
    }

    /// Attempts that are not forgotten. After a restart the journals of all other runs go: a crash may have come between
    /// the record that forgets a run and the removal of its journal.
    pub fn open(&self) -> impl Iterator<Item = (&AttemptId, NodeId)> {
        self.attempts.iter().map(|(id, attempt)| (id, attempt.home))
    }

    /// Whether the harness has the attempt now.
    #[must_use]
    pub fn is_running(&self, id: &AttemptId) -> bool {
        self.attempts.get(id).is_some_and(|attempt| matches!(attempt.phase, Phase::Running(..)))
    }

    fn link_up(&self, step: &mut ResidentStep, home: NodeId) {
        let ours = self.attempts.iter().filter(|(_, attempt)| attempt.home == home);
        Self::report(step, home, ours.map(|(id, attempt)| (*id, Self::known(&attempt.phase))).collect());
    }

    fn report(step: &mut ResidentStep, home: NodeId, verdicts: Vec<(AttemptId, Verdict)>) {
        let reports = verdicts.chunks(VERDICTS_MAX).map(|some| Message::Report { verdicts: some.to_vec() });
        step.effects.extend(reports.map(|report| Effect::Send(home, report)));
    }

    fn frame(&mut self, step: &mut ResidentStep, home: NodeId, message: Message, tail: Vec<u8>) {
        match message {
            Message::Deliver { id, member, spec, name, session, payload, attachments, again } => {
                let work = Work { spec, name, session, payload: tail, attachments, again };
                self.deliver(step, home, id, member, payload, work);
            }
            Message::Reconcile { attempts } => {
                let mut resume = Vec::new();
                let mut verdicts = Vec::new();
                for asked in attempts {
                    let verdict = self.verdict(home, &asked);
                    if verdict == Verdict::Known {
                        resume.push(asked);
                    }
                    verdicts.push((asked.id, verdict));
                }
                Self::report(step, home, verdicts);
                for asked in resume {
                    self.resume(step, home, &asked);
                }
            }
            Message::FinishedAck { id } => match self.attempts.get_mut(&id) {
                Some(attempt) if attempt.home != home => {}
                // What the harness has is forgotten when it ends: nobody will ask how.
                Some(Attempted { void, phase: Phase::Running(..), .. }) => *void = true,
                Some(_) => self.forget(step, id),
                // What its home gave up does not run when it comes late.
                None => self.fence(home, &id),
            },
            Message::Stop { id } if self.is_ours(home, &id) => self.stop(step, home, id),
            Message::Answer { id, ask, digest } if self.is_ours(home, &id) => {
                let answer = gate::check(&tail, Limits::text(TAIL_LEN_MAX)).ok();
                // A home that sends what is no answer is broken; the question stays open.
                let Some(answer) = answer.and_then(|text| serde_json::from_str::<Answer>(text).ok()) else { return };
                let fresh = match self.attempts.get_mut(&id).map(|attempt| &mut attempt.phase) {
                    // Given once: a home repeats an answer whose confirmation was lost.
                    Some(Phase::Running(_, answers)) => {
                        let question = Hash::of(ask.as_bytes());
                        let fresh = !answers.contains(&question);
                        if fresh && answers.len() >= ANSWERS_MAX {
                            answers.pop_front();
                        }
                        if fresh {
                            answers.push_back(question);
                        }
                        fresh
                    }
                    _ => false,
                };
                if fresh {
                    step.effects.push(Effect::Answer { id, home, ask, answer, digest });
                } else {
                    step.effects.push(Effect::Send(home, Message::AnswerOk { id, ask }));
                }
            }
            Message::Kill { channel, member } => {
                let ours = self
                    .attempts
                    .iter()
                    .any(|(id, attempt)| id.channel == channel && attempt.member == member && attempt.home != home);
                if !ours {
                    step.effects.push(Effect::Kill(channel, member));
                }
            }
            _ => {}
        }
    }

    fn is_ours(&self, home: NodeId, id: &AttemptId) -> bool {
        self.attempts.get(id).is_some_and(|attempt| attempt.home == home)
    }

    fn deliver(
        &mut self,
        step: &mut ResidentStep,
        home: NodeId,
        id: AttemptId,
        member: MemberId,
        hash: Hash,
        work: Work,
    ) {
        let known = self.attempts.get(&id);
        if known.is_some_and(|known| known.home == home && known.hash == hash) {
            // A repeated delivery is answered with where it stands; what it carries is not looked at again.
            return self.resume(step, home, &Asked { id, have: 0, seen: None, payload: None });
        }
        let fenced = self.fences.get(&home).is_some_and(|fences| fences.holds(&id));
        if known.is_some_and(|known| known.home != home) && !fenced {
            // Another node uses the number: this home's attempt does not begin, and its next has another one.
            self.fence(home, &id);
            return Self::report(step, home, vec![(id, Verdict::NeverStarted)]);
        }
        if known.is_some() || fenced || self.tries(home, &id).any(|other| other.attempt > id.attempt) {
            // Late, mostly, and its home knows better by now. A home that does not has lost some of its log.
            return Self::report(step, home, vec![(id, other_attempt())]);
        }
        if Hash::of(&work.payload) != hash {
            return self.refuse(step, home, id, "damaged", "the payload does not match its hash");
        }
        // Earlier tries of the run are void now: the home would not send this one otherwise.
        for other in self.tries(home, &id).collect::<Vec<_>>() {
            if self.is_running(&other) {
                step.effects.push(Effect::Interrupt(other, home));
            } else {
                self.forget(step, other);
            }
        }
        let of_home = self.attempts.values().filter(|attempt| attempt.home == home);
        let (taken, waiting) =
            of_home.fold((0, 0), |(taken, waiting), attempt| (taken + 1, waiting + attempt.phase.len()));
        let full = waiting + work.payload.len() > WAITING_LEN_MAX;
        if self.attempts.len() >= self.places || taken >= ATTEMPTS_OF_HOME_MAX || full {
            return self.refuse(step, home, id, "limit", "too many turns are open on this box");
        }
        let mut ours = self
            .attempts
            .iter()
            .filter(|(other, attempt)| attempt.home == home && other.channel == id.channel && attempt.member == member);
        if ours.any(|(_, attempt)| matches!(attempt.phase, Phase::Asking(_) | Phase::Waiting(..))) {
            return self.refuse(step, home, id, "busy", "another turn of the member waits on this box");
        }
        let (spec, attachments) = (work.spec.clone(), work.attachments.clone());
        let phase = Phase::Asking(Box::new(work));
        self.attempts.insert(id, Attempted { home, member, hash, mark: None, void: false, phase });
        step.effects.push(Effect::Admit { id, home, spec, attachments });
    }

    /// The tries of a run that are known here.
    fn tries(&self, home: NodeId, id: &AttemptId) -> impl Iterator<Item = AttemptId> {
        let AttemptId { channel, run, .. } = *id;
        let (first, last) = (Attempt(0), Attempt(u32::MAX));
        let of_run = AttemptId { channel, run, attempt: first }..=AttemptId { channel, run, attempt: last };
        self.attempts.range(of_run).filter(move |(_, attempt)| attempt.home == home).map(|(id, _)| *id)
    }

    /// Accepts what waits for its member's turn before it, when there is none any more.
    fn begin_waiting(&mut self, step: &mut ResidentStep, only: Option<NodeId>) {
        let waiting = self.attempts.iter().filter(|(_, attempt)| {
            matches!(attempt.phase, Phase::Waiting(..)) && only.is_none_or(|home| attempt.home == home)
        });
        for (id, member) in waiting.map(|(id, attempt)| (*id, attempt.member)).collect::<Vec<_>>() {
            let mut of_member = self.attempts.iter().filter(|(other, _)| other.channel == id.channel);
            if !of_member.any(|(_, other)| other.member == member && other.phase.is_active()) {
                self.accept(step, id);
            }
        }
    }

    fn accept(&mut self, step: &mut ResidentStep, id: AttemptId) {
        let Some(Attempted { home, member, hash, phase: Phase::Waiting(admission, work), .. }) =
            self.attempts.get(&id).cloned()
        else {
            return;
        };
        let boot = self.boot.clone();
        self.record(Record::Accepted { id, home, member, payload: hash, boot }, &mut step.records);
        step.sync = true;
        let mark = self.mark();
        let phase = Phase::Accepted(mark, admission, work);
        self.attempts.insert(id, Attempted { home, member, hash, mark: Some(mark), void: false, phase });
        let task = Task { id, member, payload: hash };
        step.effects.push(Effect::Accept { task, home, mark, start: true });
    }

    fn refuse(&mut self, step: &mut ResidentStep, home: NodeId, id: AttemptId, code: &str, message: &str) {
        self.fence(home, &id);
        let (code, message) = (code.to_owned(), message.to_owned());
        step.effects.push(Effect::Send(home, Message::Refused { id, code, message }));
    }

    fn admitted(&mut self, step: &mut ResidentStep, id: AttemptId, result: Result<Admission, Refusal>) {
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        let Phase::Asking(work) = &attempt.phase else { return };
        match result {
            Ok(admission) => attempt.phase = Phase::Waiting(admission, work.clone()),
            Err(Refusal { code, message }) => {
                let home = attempt.home;
                self.attempts.remove(&id);
                self.refuse(step, home, id, &code, &message);
            }
        }
    }

    fn hand(&mut self, step: &mut ResidentStep, id: AttemptId) {
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        let Phase::Accepted(mark, admission, work) = &attempt.phase else { return };
        let (mark, admission, work) = (*mark, admission.clone(), work.clone());
        attempt.phase = Phase::Running(mark, VecDeque::new());
        let (home, member) = (attempt.home, attempt.member);
        self.record(Record::Handed { id }, &mut step.records);
        let Work { spec, name, session, payload, attachments, again } = *work;
        let spec = Box::new(spec);
        step.effects.push(Effect::Start {
            id,
            home,
            member,
            spec,
            name,
            admission,
            session,
            payload,
            attachments,
            again,
        });
    }

    fn ended(
        &mut self,
        step: &mut ResidentStep,
        id: AttemptId,
        (events, length, journal): (u64, u64, Hash),
        session: Option<String>,
    ) {
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        let task = attempt.task(id);
        let Attempted { home, void, phase: phase @ Phase::Running(..), .. } = attempt else { return };
        if *void {
            return self.forget(step, id);
        }
        let finish = Effect::Finish { task, home: *home, events, length, journal, session: session.clone() };
        *phase = Phase::Ended(Box::new(finish.clone()));
        self.record(Record::Ended { id, events, length, journal, session }, &mut step.records);
        step.sync = true;
        step.effects.push(finish);
    }

    /// Stops an attempt. One that the harness does not have yet never gets there.
    fn stop(&mut self, step: &mut ResidentStep, home: NodeId, id: AttemptId) {
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        match attempt.phase {
            Phase::Running(..) => return step.effects.push(Effect::Interrupt(id, home)),
            Phase::Asking(_) | Phase::Waiting(..) | Phase::Accepted(..) => attempt.phase = Phase::NeverStarted,
            Phase::Ended(_) | Phase::NeverStarted | Phase::Ambiguous(_) => {}
        }
        step.effects.push(Effect::Send(home, Message::StopOk { id }));
        if matches!(attempt.phase, Phase::NeverStarted) {
            Self::report(step, home, vec![(id, Verdict::NeverStarted)]);
        }
    }

    fn verdict(&mut self, home: NodeId, asked: &Asked) -> Verdict {
        let Asked { id, seen, payload, .. } = asked;
        if let Some(attempt) = self.attempts.get(id).filter(|attempt| attempt.home == home) {
            let other = payload.is_some_and(|payload| payload != attempt.hash);
            return if other { other_attempt() } else { Self::known(&attempt.phase) };
        }
        self.fence(home, id);
        Verdict::Absent { proven: seen.is_some_and(|seen| self.never_since(&seen, id)) }
    }

    /// The verdict on an attempt that is known here. It is kept until the home acts on it: a report can be lost.
    fn known(phase: &Phase) -> Verdict {
        match phase {
            Phase::Asking(_) | Phase::Waiting(..) | Phase::Accepted(..) | Phase::Running(..) | Phase::Ended(_) => {
                Verdict::Known
            }
            Phase::NeverStarted => Verdict::NeverStarted,
            Phase::Ambiguous(reason) => Verdict::Ambiguous { reason: reason.clone() },
        }
    }

    /// Whether this journal is the one at `mark`, or has grown from it, and has not accepted the attempt since: a home
    /// whose log went back asks about what it has long been told, and what is forgotten leaves no other trace.
    fn never_since(&self, mark: &JournalMark, id: &AttemptId) -> bool {
        if mark.incarnation != self.incarnation {
            return false;
        }
        let Some(back) = self.chain.count.checked_sub(mark.count) else { return false };
        let Some(index) = usize::try_from(back).ok().and_then(|back| self.heads.len().checked_sub(back + 1)) else {
            return false;
        };
        self.heads.get(index).is_some_and(|(head, _)| *head == mark.head)
            && !self.heads.range(index..).any(|(_, accepted)| *accepted == Some(*id))
    }

    fn resume(&self, step: &mut ResidentStep, home: NodeId, asked: &Asked) {
        let Some(attempt) = self.attempts.get(&asked.id) else { return };
        let id = asked.id;
        let task = attempt.task(id);
        match &attempt.phase {
            Phase::Running(mark, _) => {
                step.effects.push(Effect::Accept { task, home, mark: *mark, start: false });
                step.effects.push(Effect::Resume { id, home, from: asked.have });
            }
            Phase::Ended(finish) => {
                // The home may have missed that it was ever handed over.
                if let Some(mark) = attempt.mark {
                    step.effects.push(Effect::Accept { task, home, mark, start: false });
                }
                step.effects.push(Effect::Resume { id, home, from: asked.have });
                step.effects.push((**finish).clone());
            }
            // Its acceptance is on the way.
            Phase::Asking(_) | Phase::Waiting(..) | Phase::Accepted(..) | Phase::NeverStarted | Phase::Ambiguous(_) => {
            }
        }
    }

    fn fence(&mut self, home: NodeId, id: &AttemptId) {
        self.fences.entry(home).or_default().add(id);
    }

    fn forget(&mut self, step: &mut ResidentStep, id: AttemptId) {
        if let Some(attempt) = self.attempts.remove(&id) {
            self.fence(attempt.home, &id);
            self.record(Record::Forgotten { id }, &mut step.records);
            step.effects.push(Effect::Forget(id));
        }
    }

    fn record(&mut self, record: Record, out: &mut Vec<u8>) {
        let written = self.chain.append(&record, out);
        debug_assert!(written.is_ok(), "records are short and serialize: {written:?}");
        self.remember(accepts(&record));
    }

    /// Keeps the head after the last record.
    fn remember(&mut self, accepted: Option<AttemptId>) {
        self.heads.push_back((self.chain.head, accepted));
        if self.heads.len() > HEADS_MAX {
            self.heads.pop_front();
        }
    }
}

const fn accepts(record: &Record) -> Option<AttemptId> {
    match record {
        Record::Accepted { id, .. } => Some(*id),
        _ => None,
    }
}

/// What is told of an attempt whose number stands for something else here, or for something that is over.
fn other_attempt() -> Verdict {
    let reason = "that box knows an attempt of this number already; its home may have lost some of its log".to_owned();
    Verdict::Ambiguous { reason }
}
