//! A fake harness that keeps a turn file of its own: the oracle for "started at most once".

use std::collections::{BTreeMap, VecDeque};

use crate::event::{Answer, Ask, AskKind, AskOption, Event, Outcome, Status};
use crate::id::{Hash, MemberId, MessageId};
use crate::link::AttemptId;
use crate::turn::EventJournal;

/// One thing that a fake turn does.
#[derive(Clone, Debug)]
pub enum Act {
    /// Streams text.
    Say(String),
    /// Asks, and waits for the answer.
    Ask(Ask),
    /// Posts into the channel from within the turn.
    Post(String),
    /// Waits until it is interrupted.
    Hang,
    /// Ends.
    End(Status, String),
}

/// A running fake turn.
#[derive(Debug)]
pub struct FakeTurn {
    pub member: MemberId,
    pub plan: VecDeque<Act>,
    pub journal: EventJournal,
    /// The question that it waits for.
    pub waits: Option<String>,
    pub interrupted: bool,
    pub began: bool,
}

impl FakeTurn {
    pub fn new(member: MemberId, plan: VecDeque<Act>) -> Self {
        Self { member, plan, journal: EventJournal::default(), waits: None, interrupted: false, began: false }
    }

    /// Whether there is something it can do.
    pub fn can_go_on(&self) -> bool {
        self.interrupted || !self.began || (self.waits.is_none() && !matches!(self.plan.front(), Some(Act::Hang)))
    }

    /// The next event, and a post when it makes one.
    pub fn next(&mut self) -> (Option<Event>, Option<String>) {
        let finished = |status, text: String| {
            let error = (status == Status::Failed).then(|| "the model said no".to_owned());
            Event::Finished { outcome: Outcome { status, text, error, usage: None } }
        };
        if self.interrupted {
            return (Some(finished(Status::Interrupted, String::new())), None);
        }
        if !self.began {
            self.began = true;
            return (Some(Event::Started { model: None }), None);
        }
        match self.plan.pop_front() {
            Some(Act::Say(text)) => (Some(Event::Text { text }), None),
            Some(Act::Ask(ask)) => {
                self.waits = Some(ask.id.clone());
                (Some(Event::Asked { ask }), None)
            }
            Some(Act::Post(text)) => (None, Some(text)),
            Some(Act::Hang) => {
                self.plan.push_front(Act::Hang);
                (None, None)
            }
            Some(Act::End(status, text)) => (Some(finished(status, text)), None),
            None => (Some(finished(Status::Completed, "done".to_owned())), None),
        }
    }
}

/// A line of the turn file.
#[derive(Clone, Debug)]
pub struct Start {
    pub id: AttemptId,
    pub member: MemberId,
    pub payload: Vec<u8>,
    /// The messages in it, as its own lines say.
    pub messages: Vec<MessageId>,
    pub files: Vec<Hash>,
    pub model: Option<String>,
    pub again: bool,
}

/// What the harness wrote down for itself. Nothing that the node does can take a line away.
#[derive(Debug, Default)]
pub struct Oracle {
    pub starts: Vec<Start>,
    /// Every byte that each attempt's journal was given.
    pub written: BTreeMap<AttemptId, Vec<u8>>,
    /// The answers that reached each question.
    pub answers: BTreeMap<(AttemptId, String), Vec<Answer>>,
    pub interrupts: BTreeMap<AttemptId, usize>,
}

impl Oracle {
    pub fn starts_of(&self, run: MessageId) -> usize {
        self.starts.iter().filter(|start| start.id.run == run).count()
    }
}

/// The numbers of the messages that a payload shows.
pub fn messages_of(payload: &str) -> Vec<MessageId> {
    let code = payload.split(' ').next().unwrap_or_default();
    let mark = format!("{code} message #");
    let lines = payload.lines().filter_map(|line| line.strip_prefix(&mark));
    let numbers = lines.filter_map(|rest| rest.split(' ').next()?.parse().ok());
    numbers.map(MessageId).collect()
}

/// The files that a payload names, as its own lines say.
pub fn files_of(payload: &str) -> Vec<Hash> {
    let code = payload.split(' ').next().unwrap_or_default();
    let mark = format!("{code} file of #");
    let lines = payload.lines().filter_map(|line| line.strip_prefix(&mark));
    lines.filter_map(|rest| rest.split('/').nth(1)?.parse().ok()).collect()
}

pub fn question(id: &str, labels: &[&str]) -> Ask {
    let option = |label: &&str| AskOption { label: (*label).to_owned(), detail: String::new() };
    Ask {
        id: id.to_owned(),
        kind: AskKind::Question,
        prompt: "which?".to_owned(),
        options: labels.iter().map(option).collect(),
        multi: false,
        tool: None,
        action: None,
    }
}

pub fn approval(id: &str, action: &str) -> Ask {
    let kind = AskKind::Approval;
    Ask { kind, tool: Some("shell".to_owned()), action: Some(action.to_owned()), ..question(id, &["allow", "deny"]) }
}
