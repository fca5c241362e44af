//! From messages to turns: who gets what, when it starts, and what its agent reads.

use std::collections::BTreeSet;

use super::super::state::{Queued, Turn};
use super::{Cited, Context, Effect, History, Home, OpError, RunProgress, Step};
use crate::api::{ApiError, Code};
use crate::entry::{Auth, Body, MemberKind, MemberSpec, Routed};
use crate::id::{Attempt, Handle, Hash, MemberId, MessageId};
use crate::link::{AttemptId, Message};
use crate::payload::{self, PayloadInput, PayloadMessage, PayloadReference};
use crate::route::{self, Decision, Held, Origin, RouteError, RouteInput};

/// Messages that one turn answers at most; the rest of the queue waits for the next turn.
pub const BATCH_LEN_MAX: usize = 64;

/// Messages that a payload cites at most, over its whole batch.
pub const REFERENCES_MAX: usize = 16;

/// Files that go with one delivery at most, those of cited messages included: all are named in its head.
pub const FILES_MAX: usize = 64;

/// Files of one batch; cited messages have the rest. More waits for the next turn.
const BATCH_FILES_MAX: usize = 40;

impl Home {
    pub(super) fn route(
        &self,
        by: Option<MemberId>,
        origin: Origin<'_>,
        text: &str,
        message: MessageId,
    ) -> Result<(Routed, Vec<Held>), OpError> {
        let author = by.and_then(|id| self.state.members.get(&id));
        let author_kind = author.map_or(MemberKind::System, |author| author.spec.kind);
        let input = RouteInput { message, author: by, author_kind, origin, untagged_to: None, text };
        match route::route(&self.state, &input) {
            Ok(Decision { routed, held, .. }) => Ok((mark_held(routed, &held), held)),
            Err(error @ RouteError::TooManyMentions { .. }) => {
                Err(ApiError::new(Code::Limit, error.to_string()).hint("name fewer members, or split the post"))
            }
        }
    }

    /// Writes cards for deliveries over a brake, then starts what can start.
    pub(super) fn hold_and_pump(
        &mut self,
        step: &mut Step,
        context: &mut Context<'_>,
        message: MessageId,
        routed: &Routed,
        held: Vec<Held>,
    ) {
        for Held { member, reason } in held {
            let card = self.state.message.next();
            self.append(step, context, None, Auth::Home, Body::DeliveryHeld { message, member, card, reason });
        }
        for delivery in routed.to.iter().filter(|delivery| !delivery.held) {
            self.pump(step, context, delivery.member);
        }
    }

    /// Starts the member's next turn, or the next try of one that was released, if it can.
    pub(super) fn pump(&mut self, step: &mut Step, context: &mut Context<'_>, id: MemberId) {
        let Some(member) = self.state.members.get(&id) else { return };
        let Some(node) = member.spec.node else { return };
        let Some(mark) = self.up.get(&node).copied() else { return };
        if self.state.archived || !member.may_start() {
            return;
        }
        if let Some(run) = member.turn {
            if self.state.turns.get(&run).is_some_and(|turn| turn.released) {
                self.retry(step, context, run);
            }
            return;
        }
        let Some(head) = member.queue.front() else { return };
        // A batch never mixes rounds, and the results of a round stand alone.
        let (round, alone) = (head.round, !head.results.is_empty());
        let same = member.queue.iter().take_while(|queued| queued.round == round && queued.results.is_empty() != alone);
        let batch = same.take(if alone { 1 } else { BATCH_LEN_MAX }).cloned().collect::<Vec<_>>();
        let brief = !member.briefed;
        let message = self.state.message.next();
        let (payload, fit) = self.compose(context, id, &batch, brief);
        let batch = batch.get(..fit.max(1)).unwrap_or(&batch);
        let payload = payload.into_bytes();
        let hash = Hash::of(&payload);
        let hops = batch.iter().map(|queued| queued.hops).max().unwrap_or(0);
        let body = Body::TurnStarted {
            message,
            member: id,
            node,
            attempt: Attempt(1),
            batch: batch.iter().map(|queued| queued.message).collect(),
            payload: hash,
            hops,
            briefed: brief,
            seen: Some(mark),
        };
        self.append(step, context, None, Auth::Home, body);
        self.runs.insert(message, RunProgress::new(Attempt(1)));
        step.blobs.push((hash, payload.clone()));
        self.deliver(step, context, message, payload);
    }

    /// The payload of a batch, and how many of its messages fit.
    pub(super) fn compose(
        &self,
        context: &mut Context<'_>,
        id: MemberId,
        batch: &[Queued],
        brief: bool,
    ) -> (String, usize) {
        let mut nonce = [0; 8];
        context.rng.fill_bytes(&mut nonce);
        let Some(you) = self.state.members.get(&id).map(|member| &member.spec.handle) else {
            return (String::new(), 0);
        };
        let texts = batch.iter().map(|queued| (queued, self.cited(context.history, queued.message)));
        let texts = texts.map(|(queued, cited)| (queued, cited.unwrap_or_else(Cited::lost))).collect::<Vec<_>>();
        let to = texts.iter().map(|(_, cited)| self.handles(&cited.to)).collect::<Vec<_>>();
        let messages = texts.iter().zip(&to).map(|((queued, cited), to)| PayloadMessage {
            message: queued.message,
            author: self.state.handle(cited.by),
            kind: self.kind(cited.by),
            to,
            hops: queued.hops,
            round: queued.round,
            text: &cited.text,
            attachments: &cited.attachments,
        });
        let messages = messages.collect::<Vec<_>>();
        let mut files = 0;
        let few = messages.iter().take_while(|message| {
            files += message.attachments.len();
            files <= BATCH_FILES_MAX
        });
        let fit = payload::batch_fit(few.copied()).max(1).min(messages.len());
        let cites = self.cites(context.history, texts.get(..fit).unwrap_or_default());
        let references = cites.iter().map(|(message, cited)| PayloadReference {
            message: *message,
            author: self.state.handle(cited.by),
            kind: self.kind(cited.by),
            text: &cited.text,
            attachments: &cited.attachments,
        });
        let text = payload::compose(&PayloadInput {
            channel: &self.state.draft.name,
            you,
            messages: messages.get(..fit).unwrap_or_default(),
            references: &references.collect::<Vec<_>>(),
            notes: &[],
            nonce,
            brief,
        });
        (text, fit)
    }

    /// What a batch cites, one level deep.
    pub(super) fn cites(&self, history: &dyn History, batch: &[(&Queued, Cited)]) -> Vec<(MessageId, Cited)> {
        let mut known = batch.iter().map(|(queued, _)| queued.message).collect::<BTreeSet<_>>();
        let mut cites = Vec::new();
        let mut files = FILES_MAX.saturating_sub(batch.iter().map(|(_, cited)| cited.attachments.len()).sum());
        for (queued, cited) in batch {
            let refs = route::mention::scan(&cited.text).refs;
            for message in queued.results.iter().copied().chain(cited.reply_to).chain(refs) {
                if cites.len() < REFERENCES_MAX
                    && known.insert(message)
                    && let Some(mut cited) = self.cited(history, message)
                {
                    cited.attachments.truncate(files);
                    files -= cited.attachments.len();
                    cites.push((message, cited));
                }
            }
        }
        cites
    }

    pub(super) fn kind(&self, id: Option<MemberId>) -> MemberKind {
        id.and_then(|id| self.state.members.get(&id)).map_or(MemberKind::System, |member| member.spec.kind)
    }

    pub(super) fn handles(&self, ids: &[MemberId]) -> Vec<Handle> {
        let members = ids.iter().filter_map(|id| self.state.members.get(id));
        members.map(|member| member.spec.handle.clone()).collect()
    }

    pub(super) fn deliver(&mut self, step: &mut Step, context: &mut Context<'_>, run: MessageId, payload: Vec<u8>) {
        let Some(turn) = self.state.turns.get(&run) else { return };
        let Some(member) = self.state.members.get(&turn.member) else { return };
        let batch = turn.batch.iter().filter_map(|q| Some((q, self.cited(context.history, q.message)?)));
        let batch = batch.collect::<Vec<_>>();
        // The payload names the files of what it cites, too.
        let cites = self.cites(context.history, &batch);
        let files = batch.iter().map(|(_, cited)| cited).chain(cites.iter().map(|(_, cited)| cited));
        let message = Message::Deliver {
            id: self.attempt_id(run, turn),
            member: turn.member,
            // What it runs on is all that a resident needs.
            spec: MemberSpec { devices: Vec::new(), ..member.spec.clone() },
            name: self.state.draft.name.as_str().to_owned(),
            session: member.session.clone(),
            payload: turn.payload,
            attachments: files.flat_map(|cited| cited.attachments.iter().cloned()).collect(),
            again: turn.again,
        };
        step.effects.push(Effect::Send(turn.node, message, payload));
    }

    /// Starts the next attempt of an open turn. The payload is read by the shell: it is a blob by now.
    pub(super) fn retry(&mut self, step: &mut Step, context: &mut Context<'_>, run: MessageId) {
        let Some(turn) = self.state.turns.get(&run) else { return };
        let (member, node, payload, hops) = (turn.member, turn.node, turn.payload, turn.hops);
        let attempt = turn.attempt.next();
        let batch = turn.batch.iter().map(|queued| queued.message).collect();
        let seen = self.up.get(&node).copied();
        let body =
            Body::TurnStarted { message: run, member, node, attempt, batch, payload, hops, briefed: false, seen };
        self.append(step, context, None, Auth::Home, body);
        self.runs.insert(run, RunProgress::new(attempt));
        self.deliver(step, context, run, Vec::new());
    }

    pub(super) fn attempt_id(&self, run: MessageId, turn: &Turn) -> AttemptId {
        AttemptId { channel: self.state.id, run, attempt: turn.attempt }
    }
}

pub(super) fn mark_held(mut routed: Routed, held: &[Held]) -> Routed {
    for delivery in &mut routed.to {
        delivery.held = held.iter().any(|held| held.member == delivery.member);
    }
    routed
}
