//! Rounds: agents that were asked together, and what becomes of their answers.

use super::super::state::TurnPhase;
use super::turns::mark_held;
use super::{Context, Home, Step};
use crate::entry::{Auth, Body, Round, Routed};
use crate::id::MessageId;
use crate::route::{self, RoundNext, RoundResult};
use crate::time::Millis;

/// A round waits this long for participants that cannot run.
pub const ROUND_WAIT_MS: u64 = 10 * 60 * 1000;

/// Entries in a step from which on no further round is closed in it: a step is written whole, as part of one batch.
const STEP_ENTRIES_MAX: usize = 128;

impl Home {
    /// Closes rounds that wait for nobody, as many as one step may.
    pub(super) fn finish_rounds(&mut self, step: &mut Step, context: &mut Context<'_>) {
        let done = self.state.rounds.iter().filter(|(_, round)| round.waiting.is_empty());
        let done = done.map(|(root, _)| *root).take(STEP_ENTRIES_MAX).collect();
        self.close_rounds(step, context, done);
    }

    fn close_rounds(&mut self, step: &mut Step, context: &mut Context<'_>, roots: Vec<MessageId>) {
        for root in roots {
            if step.entries.len() >= STEP_ENTRIES_MAX {
                return;
            }
            self.close_round(step, context, root);
        }
    }

    /// Whether there are rounds that no step has had room for yet.
    pub(super) fn has_finished_rounds(&self) -> bool {
        self.state.rounds.values().any(|round| round.waiting.is_empty())
    }

    pub(super) fn close_round(&mut self, step: &mut Step, context: &mut Context<'_>, root: MessageId) {
        let Some(mut round) = self.state.rounds.get(&root).cloned() else { return };
        round.results.sort_by_key(|answer| round.order.iter().position(|member| *member == answer.member));
        let text = |run: MessageId| self.cited(context.history, run).map_or_else(String::new, |cited| cited.text);
        let texts = round.results.iter().map(|answer| text(answer.run)).collect::<Vec<_>>();
        let answers = round.results.iter().zip(&texts).map(|(answer, text)| RoundResult {
            author: answer.member,
            status: answer.status,
            hops: answer.hops,
            text,
        });
        let this = Round { root, number: round.number };
        let RoundNext { to, held, round: next, .. } =
            route::round_next(&self.state, this, round.opener, &answers.collect::<Vec<_>>());
        let routed = mark_held(Routed { to, unknown: Vec::new(), round: next }, &held);
        let results = round.results.iter().map(|answer| answer.run).collect();
        let body = Body::RoundClosed { message: root, number: round.number, results, routed: routed.clone() };
        self.append(step, context, None, Auth::Home, body);
        self.hold_and_pump(step, context, root, &routed, held);
        self.stuck.remove(&root);
    }

    pub(super) fn close_stuck_rounds(&mut self, step: &mut Step, context: &mut Context<'_>) {
        let now = context.now.mono;
        let over = self.stuck.iter().filter(|(_, since)| now - **since >= ROUND_WAIT_MS);
        let over = over.map(|(root, _)| *root).take(STEP_ENTRIES_MAX).collect();
        self.close_rounds(step, context, over);
    }

    /// Notes since when a round waits only for participants that cannot run: paused, killed, held or out of reach.
    pub(super) fn watch_rounds(&mut self, now: Millis) {
        let state = &self.state;
        self.stuck.retain(|root, _| state.rounds.contains_key(root));
        for (root, round) in &state.rounds {
            let stuck = round.waiting.iter().all(|id| {
                state.members.get(id).is_none_or(|member| {
                    let reachable = member.spec.node.is_some_and(|node| self.up.contains_key(&node));
                    let works = match member.turn.and_then(|run| state.turns.get(&run)) {
                        Some(turn) => {
                            !matches!(turn.phase, TurnPhase::Held(_)) && (!turn.released || member.may_start())
                        }
                        None => member.may_start() && !state.archived,
                    };
                    !reachable || !works
                })
            });
            if stuck {
                self.stuck.entry(*root).or_insert(now);
            } else {
                self.stuck.remove(root);
            }
        }
    }
}
