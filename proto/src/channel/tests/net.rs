//! Links: first in, first out per lane; a cut loses what is on its way.

use std::collections::{BTreeMap, VecDeque};

use super::super::Input;
use super::world::World;
use crate::entry::JournalMark;
use crate::link::{AttemptId, Message, Verdict};
use crate::turn;

pub type Queue = VecDeque<(Message, Vec<u8>)>;

/// The link of the home with one box.
#[derive(Debug, Default)]
pub struct Link {
    pub up: bool,
    pub to_resident: Queue,
    /// Control frames, the resident's mark first.
    pub to_home: Queue,
    pub hello: Option<JournalMark>,
    /// Each turn's own lane.
    pub lanes: BTreeMap<AttemptId, Queue>,
}

impl World {
    pub fn connect(&mut self, b: usize) {
        let Some(resident) = &self.boxes[b].core else { return };
        if self.home.core.is_none() || self.links[b].up {
            return;
        }
        let hello = Some(resident.mark());
        self.links[b] = Link { up: true, hello, ..Link::default() };
        self.note(format!("link {b} up"));
        let home = self.home.node;
        self.feed_resident(b, turn::Input::LinkUp(home));
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
        self.links[b] = Link::default();
        for pump in self.boxes[b].pumps.values_mut() {
            pump.from = None;
            pump.said = false;
        }
        let node = self.boxes[b].node;
        self.feed_home(Input::LinkDown(node));
    }

    /// Delivers one frame to the home, from a lane that chance picks. False when there is none.
    pub fn home_hears(&mut self, b: usize) -> bool {
        let node = self.boxes[b].node;
        if let Some(mark) = self.links[b].hello.take() {
            self.note(format!("home <- {b}: hello"));
            self.feed_home(Input::LinkUp(node, mark));
            return true;
        }
        let link = &self.links[b];
        let mut lanes = link.lanes.iter().filter(|(_, queue)| !queue.is_empty()).map(|(id, _)| Some(*id));
        let control = (!link.to_home.is_empty()).then_some(None);
        let lanes = control.into_iter().chain(&mut lanes).collect::<Vec<_>>();
        let Some(lane) = self.pick(&lanes) else { return false };
        let queue = match lane {
            None => Some(&mut self.links[b].to_home),
            Some(id) => self.links[b].lanes.get_mut(&id),
        };
        let Some((message, tail)) = queue.and_then(Queue::pop_front) else { return false };
        self.note(format!("home <- {b}: {}", brief(&message)));
        if matches!(message, Message::AnswerOk { .. }) {
            self.see("an answer is confirmed");
        }
        if let Message::Report { verdicts } = message {
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
            return true;
        }
        self.feed_home(Input::Frame { node, message, tail });
        true
    }

    /// Delivers one frame to a resident. False when there is none.
    pub fn resident_hears(&mut self, b: usize) -> bool {
        let Some((message, tail)) = self.links[b].to_resident.pop_front() else { return false };
        self.note(format!("{b} <- home: {}", brief(&message)));
        let home = self.home.node;
        let twice = matches!(message, Message::Deliver { .. }) && self.mood.twice > 0 && {
            let percent = self.mood.twice;
            self.chance(percent)
        };
        if twice {
            self.see("a delivery arrived twice");
            let (message, tail) = (message.clone(), tail.clone());
            self.feed_resident(b, turn::Input::Frame { home, message, tail });
        }
        self.feed_resident(b, turn::Input::Frame { home, message, tail });
        true
    }
}

fn brief(message: &Message) -> String {
    format!("{message:?}").chars().take(160).collect()
}
