//! Tests of routing, over a channel that is a plain list.

mod adversarial;
mod grammar;
mod rounds;
mod routing;

use super::*;
use crate::entry::MemberKind::{Agent, Bridge, Extension, Human, System, Voice};

/// A channel for tests: member N is the Nth of the list, from 1.
#[derive(Default)]
struct Roster {
    members: Vec<(&'static str, MemberKind)>,
    latest: Option<MemberId>,
    starting: Option<MemberId>,
    brake: Option<u32>,
}

impl Roster {
    fn new(members: &[(&'static str, MemberKind)]) -> Self {
        Self { members: members.to_vec(), ..Self::default() }
    }

    fn id(&self, handle: &str) -> MemberId {
        self.member_by_handle(handle).unwrap_or_else(|| panic!("no {handle}")).0
    }

    fn handles(&self, to: &[Delivery]) -> Vec<&'static str> {
        to.iter().map(|d| self.members[d.member.0 as usize - 1].0).collect()
    }

    /// Routes a person's post.
    fn post(&self, author: &str, text: &str) -> Decision {
        self.route(author, Origin::Post, text).expect("not too many mentions")
    }

    fn route(&self, author: &str, origin: Origin<'_>, text: &str) -> Result<Decision, RouteError> {
        let (author, author_kind) = self.member_by_handle(author).expect("author is a member");
        let message = MessageId(7);
        route(self, &RouteInput { message, author: Some(author), author_kind, origin, untagged_to: None, text })
    }
}

impl RouteView for Roster {
    fn member_by_handle(&self, handle: &str) -> Option<(MemberId, MemberKind)> {
        let at = self.members.iter().position(|(known, _)| *known == handle)?;
        Some((MemberId(at as u64 + 1), self.members[at].1))
    }

    fn member_kind(&self, member: MemberId) -> Option<MemberKind> {
        self.members.get((member.0 as usize).wrapping_sub(1)).map(|(_, kind)| *kind)
    }

    fn latest_agent(&self) -> Option<MemberId> {
        self.latest
    }

    fn starting_agent(&self) -> Option<MemberId> {
        self.starting
    }

    fn only_agent(&self) -> Option<MemberId> {
        let mut agents = (1..).zip(&self.members).filter(|(_, (_, kind))| *kind == Agent);
        let (id, _) = agents.next()?;
        agents.next().is_none().then_some(MemberId(id))
    }

    fn turn_brake(&self) -> Option<u32> {
        self.brake
    }
}

/// Two people and four agents whose names begin alike.
fn team() -> Roster {
    Roster::new(&[
        ("ana", Human),
        ("ben", Human),
        ("ops", Agent),
        ("ops-2", Agent),
        ("ops-2-b", Agent),
        ("chief", Agent),
        ("admin", Agent),
        ("tel", Voice),
        ("slack", Bridge),
        ("sub", Extension),
        ("system", System),
    ])
}
