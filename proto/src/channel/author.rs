//! Who may say what: the signature that an entry must carry.
//!
//! A home writes its log alone, and could write anything. What happened elsewhere therefore counts only with the
//! signature of where it happened: a resident's acceptance and end of a turn, a post of an agent that lives on another
//! node, a post from another device. What is left is the home's own word, under its seal. The home asks before it
//! writes, and whoever verifies the log asks again: both ask here.

use super::state::{State, Turn};
use crate::crypto::sign::{self, AcceptedContent, FinishedContent, SignError, Task, domain};
use crate::entry::{Auth, Body, Draft, NewEntry};
use crate::event::Status;
use crate::id::{Attempt, DeviceId, MemberId, MessageId, NodeId};
use crate::link::AttemptId;

/// Why an entry's author is not proved.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AuthorError {
    /// It happened elsewhere, and nobody there has signed it.
    #[error("it happened on another node than the home and nobody there signed it")]
    Unsigned,
    /// The signature is wrong.
    #[error("its author is not proved: {0}")]
    Sign(#[from] SignError),
    /// Only the home says such things.
    #[error("it carries a signature that belongs on another kind of entry")]
    Misplaced,
    /// The signed draft is no draft.
    #[error("the draft that its author signed cannot be read")]
    Draft,
    /// The signed draft is another one.
    #[error("its author signed something else than what stands here")]
    OtherDraft,
    /// The signer does not speak for that member.
    #[error("its signer does not speak for the member that it stands under")]
    OtherMember,
    /// The turn is another node's, another member's or over.
    #[error("it is said by a node that does not run the turn")]
    OtherNode,
}

/// Checks that an entry carries the signature that it needs. `state` is the fold of all before it, `home` the home in its
/// epoch. Whether the signer was of the org then, and with which role, is for the org's chain to say.
///
/// # Errors
/// Why its author is not proved.
pub fn check_author(state: &State, home: NodeId, entry: &NewEntry) -> Result<(), AuthorError> {
    match &entry.body {
        Body::Posted { .. } => check_post(state, home, entry),
        Body::AttemptAccepted { message, attempt, mark } => {
            let (turn, task) = open_turn(state, *message, *attempt, entry.by)?;
            let content = AcceptedContent { task, incarnation: mark.incarnation, count: mark.count, head: mark.head };
            check_resident(&entry.auth, turn.node, home, |sig| content.verify(&turn.node, sig))
        }
        Body::TurnFinished { message, attempt, status, text, usage, session, events, length, journal, .. } => {
            let (turn, task) = open_turn(state, *message, *attempt, entry.by)?;
            // A home may give a turn up, whatever runs elsewhere; it may not say what came of it.
            let given_up = *status != Status::Completed && text.is_empty() && usage.is_none() && session.is_none();
            if entry.auth == Auth::Home && given_up {
                return Ok(());
            }
            let (events, length, journal) = (*events, *length, *journal);
            let content = FinishedContent { task, events, length, journal, session: session.as_deref() };
            check_resident(&entry.auth, turn.node, home, |sig| content.verify(&turn.node, sig))
        }
        _ if entry.auth == Auth::Home => Ok(()),
        _ => Err(AuthorError::Misplaced),
    }
}

/// Checks who says something of a turn that runs on `node`: that node, by its signature, or the home, of its own turns.
pub(super) fn check_resident(
    auth: &Auth,
    node: NodeId,
    home: NodeId,
    verify: impl Fn(&str) -> Result<(), SignError>,
) -> Result<(), AuthorError> {
    match auth {
        Auth::Home if node == home => Ok(()),
        Auth::Home => Err(AuthorError::Unsigned),
        Auth::Resident { node: by, sig } if *by == node => Ok(verify(sig)?),
        Auth::Resident { .. } => Err(AuthorError::OtherNode),
        Auth::Device { .. } => Err(AuthorError::Misplaced),
    }
}

/// What a turn's resident signs about.
pub(super) const fn task(id: AttemptId, turn: &Turn) -> Task {
    Task { id, member: turn.member, payload: turn.payload }
}

fn open_turn(
    state: &State,
    run: MessageId,
    attempt: Attempt,
    by: Option<MemberId>,
) -> Result<(&Turn, Task), AuthorError> {
    let turn = state.turns.get(&run).filter(|turn| by == Some(turn.member)).ok_or(AuthorError::OtherNode)?;
    Ok((turn, task(AttemptId { channel: state.id, run, attempt }, turn)))
}

fn check_post(state: &State, home: NodeId, entry: &NewEntry) -> Result<(), AuthorError> {
    let Body::Posted { client, run, post, .. } = &entry.body else { return Err(AuthorError::Misplaced) };
    let by = entry.by.ok_or(AuthorError::OtherMember)?;
    let author = state.members.get(&by).filter(|author| !author.removed).ok_or(AuthorError::OtherMember)?;
    let speaks = |device: &DeviceId| author.spec.node == Some(*device) || author.spec.devices.contains(device);
    match &entry.auth {
        Auth::Home if speaks(&home) => Ok(()),
        Auth::Home => Err(AuthorError::Unsigned),
        Auth::Resident { .. } => Err(AuthorError::Misplaced),
        Auth::Device { device, draft, sig } => {
            sign::verify(domain::DRAFT, draft.as_bytes(), device, sig)?;
            let draft: Draft = serde_json::from_str(draft).map_err(|_| AuthorError::Draft)?;
            let same = draft.org == state.org()
                && draft.channel == state.id
                && draft.device == *device
                && client.as_ref() == Some(&draft.client)
                // The turn is left out when it was over by then.
                && *run == draft.run.filter(|run| author.turn == Some(*run))
                && *post == draft.post;
            if !same {
                return Err(AuthorError::OtherDraft);
            }
            let fits = match draft.member {
                Some(member) => member == by && author.spec.node == Some(*device),
                // A device that no person of the channel calls theirs speaks for whoever made it: the home's person.
                None => state.by_device(device).or_else(|| state.by_device(&home)) == Some(by),
            };
            if fits { Ok(()) } else { Err(AuthorError::OtherMember) }
        }
    }
}
