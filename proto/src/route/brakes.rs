//! Brakes: how long agents may wake each other before a person must say that they go on.

/// Most hops from agent to agent since a person spoke. No setting raises it: two agents that only echo each other
/// stop here, at a price that is known beforehand.
pub const HOPS_MAX: u32 = 16;

/// Most recipients that one message may name. More is a mistake or an attack: every recipient costs a turn.
pub const MENTIONS_MAX: usize = 8;

/// The text with which an agent ends a chain: shown muted, routed to nobody.
pub const ACK: &str = "<ACK_OK>";

/// Whether a text is nothing but an acknowledgement, white space around it aside.
#[must_use]
pub fn is_ack(text: &str) -> bool {
    text.trim() == ACK
}

/// Hops of what a turn causes: one more than the highest in its batch. Mid-turn posts and the final reply count the
/// same, so that no way of speaking gets past the brake.
#[must_use]
pub const fn onward(batch_hops: u32) -> u32 {
    batch_hops.saturating_add(1)
}

/// Says why a delivery of so many hops must wait for a person; `None` when it may run.
///
/// `turn_brake` is the channel's own, lower bound. With brake 2, a person's message (0 hops) and two more hops run;
/// the third waits.
#[must_use]
pub fn held(hops: u32, turn_brake: Option<u32>) -> Option<String> {
    let brake = turn_brake.map_or(HOPS_MAX, |brake| brake.min(HOPS_MAX));
    (hops > brake).then(|| format!("{hops} hops from agent to agent since a person spoke; the brake is {brake}"))
}
