//! Routing: who gets a message. A pure function of the channel's members and the message.
//!
//! It runs once, when the message is appended; its result is recorded in the entry and never worked out again. The
//! text is only read: every recipient gets the whole of it, byte for byte.

pub mod brakes;
pub mod mention;
mod prose;
mod round;
mod tame;
#[cfg(test)]
mod tests;

pub use round::{RoundNext, RoundResult, round_next};

use crate::entry::{Delivery, MemberKind, Round, Routed, Why};
use crate::event::Status;
use crate::id::{MemberId, MessageId};
use mention::Mentions;

/// Handles that nobody has and that an entry reports; the author sees the point before.
pub const UNKNOWN_MAX: usize = 16;

/// What routing asks about a channel. Removed members are not in it; paused, dead and unreachable ones are: their
/// messages wait for them.
pub trait RouteView {
    /// The member with exactly this handle.
    fn member_by_handle(&self, handle: &str) -> Option<(MemberId, MemberKind)>;
    /// A member's kind; `None` when it was removed.
    fn member_kind(&self, member: MemberId) -> Option<MemberKind>;
    /// Author of the latest finished message of an agent that was more than an acknowledgement ([`brakes::is_ack`]).
    fn latest_agent(&self) -> Option<MemberId>;
    /// The channel's starting agent.
    fn starting_agent(&self) -> Option<MemberId>;
    /// The channel's agent, when it has exactly one.
    fn only_agent(&self) -> Option<MemberId>;
    /// The channel's own brake, in hops.
    fn turn_brake(&self) -> Option<u32>;
}

/// A message to route.
#[derive(Clone, Copy, Debug)]
pub struct RouteInput<'a> {
    /// The number it gets.
    pub message: MessageId,
    /// Its author; `None` is the home itself, whose messages go to nobody.
    pub author: Option<MemberId>,
    /// The author's kind.
    pub author_kind: MemberKind,
    /// How it came about.
    pub origin: Origin<'a>,
    /// An untagged post goes to this agent rather than to the channel's default: the one a voice talks with.
    pub untagged_to: Option<MemberId>,
    /// Its text.
    pub text: &'a str,
}

/// How a message came about.
#[derive(Clone, Copy, Debug)]
pub enum Origin<'a> {
    /// A person, a bridge or a voice posted it. Hops start anew.
    Post,
    /// An agent posted it, in a turn or after one.
    MidTurn {
        /// Highest hop count in the batch of that turn; between turns, of the agent's last one.
        hops: u32,
    },
    /// It is the final text of a turn.
    Finished {
        /// How the turn ended; only completed ones go on.
        status: Status,
        /// Authors of the batch, in order; repeated ones count once.
        triggers: &'a [MemberId],
        /// Highest hop count in the batch.
        hops: u32,
        /// The round it answers in: its result is held back from agents until [`round_next`].
        round: Option<Round>,
    },
}

/// Where a message goes.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Decision {
    /// What the entry records. Deliveries to agents are run; those to others are notices, consumed at once.
    pub routed: Routed,
    /// Deliveries of these that must wait for a person.
    pub held: Vec<Held>,
    /// The messages it cites. They may not exist.
    pub refs: Vec<MessageId>,
    /// The notes it cites. They may not exist.
    pub notes: Vec<String>,
    /// Members that a final text named and that were left out, over the most that one message may name. (A post is
    /// refused instead.)
    pub over: Vec<MemberId>,
}

/// A delivery that must wait.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Held {
    /// The recipient.
    pub member: MemberId,
    /// Why, in words.
    pub reason: String,
}

/// Why a post is refused.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RouteError {
    /// It names too many members.
    #[error("the message mentions {count} members; at most {} can be named at once", brakes::MENTIONS_MAX)]
    TooManyMentions {
        /// How many members it names, its author aside.
        count: usize,
    },
}

/// Decides who gets a message.
///
/// # Errors
/// When a post names more members than [`brakes::MENTIONS_MAX`]. Never for a finished turn: it has happened.
pub fn route(view: &impl RouteView, input: &RouteInput<'_>) -> Result<Decision, RouteError> {
    if !is_routable(input) {
        return Ok(Decision::default());
    }
    let Mentions { handles, malformed, refs, notes } = mention::scan(input.text);
    let Named { known, mut unknown } = named(view, &handles);
    unknown.extend(malformed);
    unknown.truncate(UNKNOWN_MAX);

    let is_other = |member: MemberId| Some(member) != input.author;
    let mut recipients: Vec<_> = known.into_iter().filter(|&(member, _)| is_other(member)).collect();
    let mut over = Vec::new();
    if recipients.len() > brakes::MENTIONS_MAX {
        if !matches!(input.origin, Origin::Finished { .. }) {
            return Err(RouteError::TooManyMentions { count: recipients.len() });
        }
        over.extend(recipients.drain(brakes::MENTIONS_MAX..).map(|(member, _)| member));
    }
    let mut why = Why::Mention;
    if recipients.is_empty() {
        (recipients, why) = untagged(view, input);
        recipients.retain(|&(member, _)| is_other(member));
    }

    let mut round = None;
    if let Origin::Finished { round: Some(current), .. } = input.origin {
        recipients.retain(|&(_, kind)| kind != MemberKind::Agent);
        round = Some(current);
    } else if why == Why::Mention && recipients.iter().filter(|&&(_, kind)| kind == MemberKind::Agent).count() >= 2 {
        round = Some(Round { root: input.message, number: 1 });
    }

    let hops = match input.origin {
        Origin::Post if input.author_kind != MemberKind::Agent => 0,
        Origin::Post => brakes::onward(0),
        Origin::MidTurn { hops } | Origin::Finished { hops, .. } => brakes::onward(hops),
    };
    let to: Vec<_> = recipients.into_iter().map(|(member, _)| Delivery { member, hops, why, held: false }).collect();
    Ok(Decision { held: held(view, &to), routed: Routed { to, unknown, round }, refs, notes, over })
}

/// Whether a message goes to anybody at all.
fn is_routable(input: &RouteInput<'_>) -> bool {
    let speaks = match input.author_kind {
        MemberKind::Human | MemberKind::Agent | MemberKind::Bridge | MemberKind::Voice => input.author.is_some(),
        MemberKind::Extension | MemberKind::System => false,
    };
    let has_news = match input.origin {
        // A post without text may carry files.
        Origin::Post | Origin::MidTurn { .. } => true,
        Origin::Finished { status, .. } => status == Status::Completed && !input.text.trim().is_empty(),
    };
    speaks && has_news && !brakes::is_ack(input.text)
}

/// Handles, looked up.
#[derive(Debug, Default)]
struct Named {
    /// Members, in order, each once.
    known: Vec<(MemberId, MemberKind)>,
    /// Handles that nobody has.
    unknown: Vec<String>,
}

/// Looks handles up. Nothing is cut off to find a member but hyphens at the end, and only when nobody has them.
fn named(view: &impl RouteView, handles: &[String]) -> Named {
    let mut named = Named::default();
    let mut seen = std::collections::BTreeSet::new();
    for handle in handles {
        let cut = || Some(handle.trim_end_matches('-')).filter(|cut| cut.len() < handle.len());
        let found = view.member_by_handle(handle).or_else(|| view.member_by_handle(cut()?));
        match found.filter(|&(_, kind)| is_addressable(kind)) {
            Some((member, kind)) if seen.insert(member) => named.known.push((member, kind)),
            Some(_) => {}
            None if named.unknown.len() < UNKNOWN_MAX => named.unknown.push(handle.clone()),
            None => {}
        }
    }
    named
}

/// Whether messages can be addressed to such members. A sub-agent is reached through its agent.
const fn is_addressable(kind: MemberKind) -> bool {
    match kind {
        MemberKind::Human | MemberKind::Agent | MemberKind::Bridge | MemberKind::Voice => true,
        MemberKind::Extension | MemberKind::System => false,
    }
}

/// Whom a message goes to that names nobody.
fn untagged(view: &impl RouteView, input: &RouteInput<'_>) -> (Vec<(MemberId, MemberKind)>, Why) {
    let agent = |member: Option<MemberId>| {
        member
            .and_then(|member| Some((member, view.member_kind(member)?)))
            .filter(|&(_, kind)| kind == MemberKind::Agent)
    };
    match input.origin {
        Origin::Finished { triggers, .. } => {
            let mut to: Vec<(MemberId, MemberKind)> = Vec::new();
            for &trigger in triggers {
                let kind = view.member_kind(trigger).filter(|&kind| is_addressable(kind));
                if let Some(kind) = kind.filter(|_| !to.iter().any(|&(member, _)| member == trigger)) {
                    to.push((trigger, kind));
                }
            }
            (to, Why::Reply)
        }
        // An agent that names nobody in passing starts nobody: it would wake the channel with every remark.
        Origin::MidTurn { .. } => (Vec::new(), Why::Default),
        Origin::Post if input.author_kind == MemberKind::Agent => (Vec::new(), Why::Default),
        Origin::Post => {
            let to = agent(input.untagged_to)
                .or_else(|| agent(view.latest_agent()))
                .or_else(|| agent(view.starting_agent()))
                .or_else(|| agent(view.only_agent()));
            (to.into_iter().collect(), Why::Default)
        }
    }
}

/// Deliveries that the brakes stop: those to agents, which alone cost turns.
fn held(view: &impl RouteView, to: &[Delivery]) -> Vec<Held> {
    let is_agent = |delivery: &&Delivery| view.member_kind(delivery.member) == Some(MemberKind::Agent);
    to.iter()
        .filter(is_agent)
        .filter_map(|d| Some(Held { member: d.member, reason: brakes::held(d.hops, view.turn_brake())? }))
        .collect()
}
