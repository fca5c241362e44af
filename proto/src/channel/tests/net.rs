//! Links: first in, first out per lane; a cut loses what is on its way.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;

use super::super::Input;
use super::world::World;
use crate::entry::JournalMark;
use crate::id::{Hash, Incarnation};
use crate::link::{AttemptId, Message, Verdict};
use crate::turn;
use crate::wire::codec;

pub type Queue = VecDeque<(Message, Vec<u8>)>;

/// The link of the home with one box.
#[derive(Debug, Default)]
pub struct Link {
    pub up: bool,
    pub to_resident: Queue,
    /// Control frames, the resident's mark first.
    pub to_home: Queue,
    pub hello: Option<JournalMark>,
    /// The mark that the home's shell was told.
    pub mark: Option<JournalMark>,
    /// Each turn's own lane.
    pub lanes: BTreeMap<AttemptId, Queue>,
}

impl World {
    pub fn connect(&mut self, b: usize) {
        let Some(resident) = &self.boxes[b].core else { return };
        if (self.home.core.is_none() && !self.home.faulted) || self.links[b].up {
            return;
        }
        let hello = Some(resident.mark());
        self.links[b] = Link { up: true, hello, ..Link::default() };
        self.note(format!("link {b} up"));
        self.greet(b);
    }

    /// The home's node says hello: on each new link, and again when a log was folded anew.
    pub fn greet(&mut self, b: usize) {
        let mark = JournalMark { incarnation: Incarnation([0; 16]), count: 0, head: Hash::ZERO };
        let hello = Message::Hello { version: 1, name: "home".to_owned(), addrs: Vec::new(), mark };
        self.links[b].to_resident.push_back((hello, Vec::new()));
    }

    pub fn cut(&mut self, b: usize) {
        if !self.links[b].up {
            return;
        }
        self.note(format!("link {b} cut"));
        let lost = self.links[b].to_home.iter().chain(self.links[b].lanes.values().flatten());
        let lost = lost.map(|(message, _)| std::mem::discriminant(message)).collect::<Vec<_>>();
        if !lost.is_empty() || !self.links[b].to_resident.is_empty() {
            self.see("frames were lost in a cut");
        }
        let link = std::mem::take(&mut self.links[b]);
        if self.mood.late {
            // Some of it comes after all, but no delivery: links die whole, and what a home has given up meanwhile it
            // gave up on that ground.
            let here = link.to_resident.into_iter();
            self.boxes[b].late_here.extend(here.filter(|(message, _)| !matches!(message, Message::Deliver { .. })));
            self.boxes[b].late_there.extend(link.to_home.into_iter().chain(link.lanes.into_values().flatten()));
        }
        for pump in self.boxes[b].pumps.values_mut() {
            pump.from = None;
            pump.said = false;
        }
        let node = self.boxes[b].node;
        self.feed_home(Input::LinkDown(node));
    }

    /// Breaks the link for a moment, if chance says so: in front of any frame.
    fn flap(&mut self, b: usize) -> bool {
        let percent = self.mood.flaps;
        if b == 0 || percent == 0 || !self.chance(percent) {
            return false;
        }
        self.see("a link broke for a moment");
        self.cut(b);
        self.connect(b);
        true
    }

    /// Delivers a frame of long ago, of which the far side may have heard already.
    pub fn something_comes_late(&mut self, b: usize) {
        if !self.links[b].up {
            return;
        }
        let here = self.chance(50);
        let pool = if here { &self.boxes[b].late_here } else { &self.boxes[b].late_there };
        let pool = pool.clone();
        let Some((message, tail)) = self.pick(&pool) else { return };
        if matches!(message, Message::Hello { .. }) {
            return;
        }
        self.see("a frame came late");
        self.note(format!("late, to the {}: {}", if here { "resident" } else { "home" }, brief(&message)));
        let home = self.home.node;
        if here {
            self.feed_resident(b, turn::Input::Frame { home, message, tail });
        } else {
            self.tell_home(b, message, tail);
        }
    }

    /// Delivers one frame to the home, from a lane that chance picks. False when there is none.
    pub fn home_hears(&mut self, b: usize) -> bool {
        let node = self.boxes[b].node;
        if let Some(mark) = self.links[b].hello.take() {
            self.links[b].mark = Some(mark);
            self.note(format!("home <- {b}: hello"));
            self.feed_home(Input::LinkUp(node, mark));
            return true;
        }
        let link = &self.links[b];
        let mut lanes = link.lanes.iter().filter(|(_, queue)| !queue.is_empty()).map(|(id, _)| Some(*id));
        let control = (!link.to_home.is_empty()).then_some(None);
        let lanes = control.into_iter().chain(&mut lanes).collect::<Vec<_>>();
        let Some(lane) = self.pick(&lanes) else { return false };
        if self.flap(b) {
            return true;
        }
        let queue = match lane {
            None => Some(&mut self.links[b].to_home),
            Some(id) => self.links[b].lanes.get_mut(&id),
        };
        let Some((message, tail)) = queue.and_then(Queue::pop_front) else { return false };
        self.note(format!("home <- {b}: {}", brief(&message)));
        if matches!(&message, Message::Refused { code, .. } if code == "limit") {
            self.see("a box has no place left");
        }
        if matches!(message, Message::AnswerOk { .. }) {
            self.see("an answer is confirmed");
        }
        let percent = self.mood.twice;
        if percent > 0 && self.chance(percent) {
            self.tell_home(b, message.clone(), tail.clone());
        }
        self.keep_late(b, false, &message, &tail);
        self.tell_home(b, message, tail);
        true
    }

    fn tell_home(&mut self, b: usize, message: Message, tail: Vec<u8>) {
        let node = self.boxes[b].node;
        let Message::Report { verdicts } = message else {
            return self.feed_home(Input::Frame { node, message, tail });
        };
        // The shell takes a report apart: each verdict goes to its own channel.
        for verdict in verdicts {
            self.see(match &verdict.1 {
                Verdict::Known => "an attempt is known after a cut",
                Verdict::NeverStarted => "an attempt never started",
                Verdict::Absent { proven: true } => "an attempt provably never arrived",
                Verdict::Absent { proven: false } => "an attempt left no trace",
                Verdict::Ambiguous { .. } => "an attempt's outcome is unknown",
            });
            let message = Message::Report { verdicts: vec![verdict] };
            self.feed_home(Input::Frame { node, message, tail: Vec::new() });
        }
    }

    /// Keeps some frames, to bring them again.
    fn keep_late(&mut self, b: usize, here: bool, message: &Message, tail: &[u8]) {
        if self.mood.late && self.chance(30) {
            let late = if here { &mut self.boxes[b].late_here } else { &mut self.boxes[b].late_there };
            late.push((message.clone(), tail.to_vec()));
        }
    }

    /// Delivers one frame to a resident. False when there is none.
    pub fn resident_hears(&mut self, b: usize) -> bool {
        if self.links[b].to_resident.is_empty() {
            return false;
        }
        if self.flap(b) {
            return true;
        }
        let Some((message, tail)) = self.links[b].to_resident.pop_front() else { return false };
        self.note(format!("{b} <- home: {}", brief(&message)));
        let home = self.home.node;
        if matches!(message, Message::Hello { .. }) {
            self.feed_resident(b, turn::Input::LinkUp(home));
            return true;
        }
        self.keep_late(b, true, &message, &tail);
        let percent = self.mood.twice;
        if percent > 0 && self.chance(percent) {
            if matches!(message, Message::Deliver { .. }) {
                self.see("a delivery arrived twice");
            }
            let (message, tail) = (message.clone(), tail.clone());
            self.feed_resident(b, turn::Input::Frame { home, message, tail });
        }
        self.feed_resident(b, turn::Input::Frame { home, message, tail });
        true
    }
}

/// Every frame that is sent can be: none is too long for its far side.
pub fn check_fits(message: &Message, tail: &[u8]) {
    let encoded = codec::encode(message, tail, &mut Vec::new());
    assert!(encoded.is_ok(), "{}: {encoded:?}", brief(message));
}

fn brief(message: &Message) -> String {
    let mut brief = Brief(String::new());
    let _ = write!(brief, "{message:?}");
    brief.0
}

/// The beginning of a text; the rest is not even made.
struct Brief(String);

impl Write for Brief {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.push_str(text);
        if self.0.len() > 160 { Err(std::fmt::Error) } else { Ok(()) }
    }
}
