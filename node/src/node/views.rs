//! Answers of the API about a channel, made from its fold.

use std::collections::BTreeMap;

use tieline_proto::channel::{Card as OpenCard, Home, Member as State, TurnPhase};
use tieline_proto::entry::MemberKind;
use tieline_proto::event::AskKind;
use tieline_proto::id::{Handle, MemberId, MessageId, NodeId};
use tieline_proto::view::{Card, CardKind, Member, MemberState, Queue, Run, RunState};

/// What people call the nodes of the org.
pub type Names = BTreeMap<NodeId, String>;

/// All members that have not left.
pub fn members(home: &Home, names: &Names, wall: u64) -> Vec<Member> {
    let state = home.state();
    let live = state.members.iter().filter(|(_, member)| !member.removed);
    live.map(|(id, state)| member(home, *id, state, names, wall)).collect()
}

/// One member.
pub fn member(home: &Home, id: MemberId, state: &State, names: &Names, wall: u64) -> Member {
    let spec = &state.spec;
    let oldest = state.queue.front().map_or(0, |queued| wall.saturating_sub(queued.ts));
    Member {
        channel: home.state().draft.name.as_str().to_owned(),
        id,
        handle: spec.handle.clone(),
        kind: spec.kind,
        state: member_state(home, state),
        node: spec.node,
        node_name: spec.node.and_then(|node| names.get(&node).cloned()),
        harness: spec.harness.clone(),
        cwd: spec.cwd.clone(),
        model: spec.model.clone(),
        policy: spec.policy,
        run: state.turn,
        queue: Queue { depth: state.queue.len() as u64, oldest_ms: oldest },
    }
}

/// What is said of a member is what is known: a turn on a box that cannot be reached may run or not.
fn member_state(home: &Home, member: &State) -> MemberState {
    let turn = member.turn.and_then(|run| Some((run, home.state().turns.get(&run)?)));
    let reachable = member.spec.node.is_none_or(|node| home.is_up(&node));
    match turn {
        Some((_, turn)) if matches!(turn.phase, TurnPhase::Held(_)) => MemberState::Held,
        _ if !reachable && member.spec.kind == MemberKind::Agent => MemberState::Unreachable,
        _ if member.killed => MemberState::Killed,
        Some((run, _)) if asks(home, run) => MemberState::Asking,
        Some(_) => MemberState::Busy,
        None if member.paused => MemberState::Paused,
        None => MemberState::Idle,
    }
}

fn asks(home: &Home, of: MessageId) -> bool {
    let open = |card: &OpenCard| matches!(card, OpenCard::Ask { run, answered: None, .. } if *run == of);
    home.state().cards.values().any(open)
}

/// All open turns.
pub fn runs(home: &Home) -> Vec<Run> {
    let state = home.state();
    let runs = state.turns.iter().filter_map(|(message, turn)| {
        let by = state.members.get(&turn.member)?.spec.handle.clone();
        let events = home.run(*message).map_or(0, tieline_proto::channel::RunProgress::events);
        let state = match turn.phase {
            TurnPhase::Held(_) => RunState::Held,
            _ if asks(home, *message) => RunState::Asking,
            _ if events > 0 => RunState::Started,
            TurnPhase::Accepted => RunState::Accepted,
            TurnPhase::Sent => RunState::Sent,
        };
        let batch = turn.batch.iter().map(|queued| queued.message).collect();
        Some(Run { message: *message, by, attempt: turn.attempt, batch, state })
    });
    runs.collect()
}

/// All cards that wait for a person.
pub fn cards(home: &Home) -> Vec<Card> {
    let waits = |card: &&OpenCard| !matches!(card, OpenCard::Ask { answered: Some(_), .. });
    let cards = home.state().cards.iter().filter(|(_, open)| waits(open));
    cards.filter_map(|(number, open)| card(home, *number, open)).collect()
}

/// One card.
pub fn card(home: &Home, number: MessageId, open: &OpenCard) -> Option<Card> {
    let state = home.state();
    let handle = |member: Option<MemberId>| -> Option<Handle> {
        Some(state.members.get(&member?)?.spec.handle.clone())
    };
    let channel = state.draft.name.as_str().to_owned();
    Some(match open {
        OpenCard::Ask { run, ask, answered, .. } => Card {
            channel,
            card: number,
            kind: match ask.kind {
                AskKind::Question => CardKind::Question,
                AskKind::Approval => CardKind::Approval,
            },
            by: handle(state.turns.get(run).map(|turn| turn.member))?,
            about: *run,
            prompt: ask.prompt.clone(),
            options: ask.options.clone(),
            multi: ask.multi,
            tool: ask.tool.clone(),
            action: ask.action.clone(),
            answer: answered.as_ref().map(|(_, choice, _)| choice.clone()),
            answered_by: answered.as_ref().map(|(by, _, _)| state.handle(*by).to_owned()),
        },
        OpenCard::HeldTurn { run, reason } => {
            held(channel, number, CardKind::TurnHeld, handle(state.turns.get(run).map(|t| t.member))?, *run, reason)
        }
        OpenCard::HeldDelivery { message, member, reason, .. } => {
            held(channel, number, CardKind::DeliveryHeld, handle(Some(*member))?, *message, reason)
        }
    })
}

fn held(channel: String, card: MessageId, kind: CardKind, by: Handle, about: MessageId, reason: &str) -> Card {
    Card {
        channel,
        card,
        kind,
        by,
        about,
        prompt: reason.to_owned(),
        options: Vec::new(),
        multi: false,
        tool: None,
        action: None,
        answer: None,
        answered_by: None,
    }
}
