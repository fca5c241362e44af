//! Rounds: agents that were asked together answer without hearing each other; then all results go on at once.

use crate::entry::{Delivery, MemberKind, Round, Why};
use crate::event::Status;
use crate::id::MemberId;
use crate::route::{Held, RouteView, brakes, mention, named};

/// How one participant of a round ended.
#[derive(Clone, Copy, Debug)]
pub struct RoundResult<'a> {
    /// Whose turn it was.
    pub author: MemberId,
    /// How it ended.
    pub status: Status,
    /// Highest hop count of its batch.
    pub hops: u32,
    /// Its final text.
    pub text: &'a str,
}

/// Where a round's results go.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct RoundNext {
    /// The deliveries; each recipient gets the message that opened the round and every result, in order.
    pub to: Vec<Delivery>,
    /// Deliveries of these that must wait for a person.
    pub held: Vec<Held>,
    /// The round that begins; `None` when the exchange ends.
    pub round: Option<Round>,
    /// Agents that were named and left out, over the most that one message may name.
    pub over: Vec<MemberId>,
}

/// Decides where a round's results go, once all its turns are terminal or it was closed.
///
/// They go to the agents that completed results name, each result's own author aside, in order of the results. When
/// none names an agent and an agent opened the round (`opener`), they go back to it, and the exchange ends.
#[must_use]
pub fn round_next(
    view: &impl RouteView,
    round: Round,
    opener: Option<MemberId>,
    results: &[RoundResult<'_>],
) -> RoundNext {
    let completed = || results.iter().filter(|r| r.status == Status::Completed && !brakes::is_ack(r.text));
    let mut recipients: Vec<MemberId> = Vec::new();
    for result in completed() {
        for (member, kind) in named(view, &mention::scan(result.text).handles).known {
            if kind == MemberKind::Agent && member != result.author && !recipients.contains(&member) {
                recipients.push(member);
            }
        }
    }
    let over = recipients.split_off(recipients.len().min(brakes::MENTIONS_MAX));
    let (why, next) = if recipients.is_empty() {
        let is_agent = |member: &MemberId| view.member_kind(*member) == Some(MemberKind::Agent);
        let has_news = completed().any(|r| !r.text.trim().is_empty());
        recipients.extend(opener.filter(is_agent).filter(|_| has_news));
        (Why::Reply, None)
    } else {
        (Why::Round, Some(Round { root: round.root, number: round.number.saturating_add(1) }))
    };
    let hops = brakes::onward(results.iter().map(|r| r.hops).max().unwrap_or_default());
    let to: Vec<Delivery> = recipients.into_iter().map(|member| Delivery { member, hops, why, held: false }).collect();
    RoundNext { held: super::held(view, &to), to, round: next, over }
}
