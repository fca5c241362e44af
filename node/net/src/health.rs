//! Whether a link is up, decided from probes alone.
//!
//! A connection that looks open proves nothing: after sleep or a change of network it may be dead for minutes. A link
//! is *up* only while the answer to a probe that passed through the far side is recent.

use std::collections::VecDeque;

use tieline_proto::time::Millis;

/// How often a link is probed.
pub const PROBE_EVERY_MS: u64 = 2_000;

/// Age of the last proof at which a link is *suspect*: two probes have gone unanswered.
pub const SUSPECT_AFTER_MS: u64 = 5_000;

/// Age of the last proof at which a link is given up: with the redial, recovery stays below 15 s (`cases.md` C20).
pub const DOWN_AFTER_MS: u64 = 10_000;

/// Age at which a link is given up although bytes still move. On a slow uplink probes wait behind what the kernel has
/// buffered already, and cutting the link would make that transfer begin anew, for ever (`cases.md` X3).
pub const DOWN_AT_LAST_MS: u64 = 60_000;

/// How long a new link may take to its first proof, and a link under suspicion to a fresh one: after sleep or a change
/// of network most are dead, and whoever waits for them waits in vain.
pub const HURRIED_MS: u64 = 3_000;

/// Probes remembered while unanswered.
const OUTSTANDING_MAX: usize = 8;

/// How sure we are of a link.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Trust {
    /// No probe has been answered yet.
    Unproven,
    /// A recent probe was answered.
    Proven,
    /// The last answer is too old.
    Suspect,
}

/// What is to be done.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Action {
    /// Send a probe with this nonce.
    Probe(u64),
    /// Give the link up.
    GiveUp(String),
}

/// The state of one link's proofs.
#[derive(Debug)]
pub struct Health {
    begun: Millis,
    proof: Option<Millis>,
    /// Nonces of probes under way.
    outstanding: VecDeque<u64>,
    probe_at: Millis,
    /// A fresh proof must come by then, because of what.
    hurry: Option<(Millis, &'static str)>,
}

impl Health {
    /// A link whose handshake is done.
    #[must_use]
    pub const fn new(now: Millis) -> Self {
        Self { begun: now, proof: None, outstanding: VecDeque::new(), probe_at: now, hurry: None }
    }

    /// Takes an answer. True when it answers a probe of ours.
    pub fn proved(&mut self, nonce: u64, now: Millis) -> bool {
        let known = self.outstanding.contains(&nonce);
        if known {
            // Older ones are answered late or never; both say nothing more.
            while self.outstanding.pop_front().is_some_and(|older| older != nonce) {}
            self.proof = Some(now);
            self.hurry = None;
        }
        known
    }

    /// Something happened after which the link may be dead: asks for a fresh proof soon.
    pub fn suspect(&mut self, because: &'static str, now: Millis) {
        // Under a hail of such news the first one's deadline holds.
        self.hurry.get_or_insert((now + HURRIED_MS, because));
        self.probe_at = now;
        self.outstanding.clear();
    }

    /// How sure we are now.
    #[must_use]
    pub fn trust(&self, now: Millis) -> Trust {
        match self.proof {
            None => Trust::Unproven,
            Some(proof) if self.hurry.is_none() && now - proof < SUSPECT_AFTER_MS => Trust::Proven,
            Some(_) => Trust::Suspect,
        }
    }

    /// Age of the last proof.
    #[must_use]
    pub fn proof_age(&self, now: Millis) -> Option<u64> {
        self.proof.map(|proof| now - proof)
    }

    /// Why the link is not proven, in words.
    #[must_use]
    pub fn doubt(&self, now: Millis) -> Option<String> {
        match self.trust(now) {
            Trust::Proven => None,
            Trust::Unproven => Some("waiting for the first probe's answer".to_owned()),
            Trust::Suspect => Some(match self.hurry {
                Some((_, because)) => format!("probing: {because}"),
                None => format!("no probe answered for {} s", self.proof_age(now).unwrap_or_default() / 1000),
            }),
        }
    }

    /// What to do now. `progress` is when the far side last moved bytes, `nonce` a fresh random number.
    pub fn poll(&mut self, now: Millis, progress: Millis, nonce: impl FnOnce() -> u64) -> Option<Action> {
        if let Some(reason) = self.verdict(now, progress) {
            return Some(Action::GiveUp(reason));
        }
        if now < self.probe_at {
            return None;
        }
        self.probe_at = now + PROBE_EVERY_MS;
        if self.outstanding.len() == OUTSTANDING_MAX {
            self.outstanding.pop_front();
        }
        let nonce = nonce();
        self.outstanding.push_back(nonce);
        Some(Action::Probe(nonce))
    }

    /// When [`Health::poll`] has something to do next, at the latest.
    #[must_use]
    pub fn poll_at(&self) -> Millis {
        self.hurry.map_or(self.probe_at, |(by, _)| by.min(self.probe_at))
    }

    fn verdict(&self, now: Millis, progress: Millis) -> Option<String> {
        if let Some((by, because)) = self.hurry
            && now >= by
        {
            return Some(format!("no probe answered within {} s after {because}", HURRIED_MS / 1000));
        }
        let Some(proof) = self.proof else {
            let age = now - self.begun;
            return (age >= DOWN_AFTER_MS).then(|| format!("the first probe was not answered within {} s", age / 1000));
        };
        let age = now - proof;
        let stuck = age >= DOWN_AFTER_MS && now - progress >= DOWN_AFTER_MS;
        (stuck || age >= DOWN_AT_LAST_MS).then(|| format!("no probe answered for {} s", age / 1000))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Millis = Millis(50_000);

    fn probed(health: &mut Health, now: Millis, nonce: u64) {
        assert_eq!(health.poll(now, now, || nonce), Some(Action::Probe(nonce)));
    }

    #[test]
    fn case_l12_a_link_is_up_only_after_a_probe_passed() {
        let mut health = Health::new(START);
        assert_eq!(health.trust(START), Trust::Unproven);
        probed(&mut health, START, 7);
        assert!(!health.proved(8, START + 10), "an answer to no probe of ours");
        assert_eq!(health.trust(START + 10), Trust::Unproven);
        assert!(health.proved(7, START + 20));
        assert_eq!(health.trust(START + 20), Trust::Proven);
        assert!(!health.proved(7, START + 30), "an answer counts once");
    }

    #[test]
    fn silence_makes_a_link_suspect_and_then_ends_it() {
        let mut health = Health::new(START);
        probed(&mut health, START, 1);
        health.proved(1, START);
        for step in 1..5 {
            probed(&mut health, START + step * PROBE_EVERY_MS, step);
        }
        assert_eq!(health.trust(START + (SUSPECT_AFTER_MS - 1)), Trust::Proven);
        assert_eq!(health.trust(START + SUSPECT_AFTER_MS), Trust::Suspect);
        let end = START + DOWN_AFTER_MS;
        assert_eq!(health.poll(end, START, || 9), Some(Action::GiveUp("no probe answered for 10 s".to_owned())));
    }

    #[test]
    fn case_x3_a_busy_slow_link_is_doubted_but_not_cut() {
        let mut health = Health::new(START);
        probed(&mut health, START, 1);
        health.proved(1, START);
        let late = START + 2 * DOWN_AFTER_MS;
        assert!(matches!(health.poll(late, late, || 2), Some(Action::Probe(_))));
        assert_eq!(health.trust(late), Trust::Suspect);
        let end = START + DOWN_AT_LAST_MS;
        assert!(matches!(health.poll(end, end, || 3), Some(Action::GiveUp(_))));
    }

    #[test]
    fn case_c5_a_jump_of_the_clock_asks_for_proof_at_once() {
        let mut health = Health::new(START);
        probed(&mut health, START, 1);
        health.proved(1, START);
        let woken = START + 100;
        health.suspect("a jump of the clock", woken);
        assert_eq!(health.trust(woken), Trust::Suspect);
        assert_eq!(health.poll_at(), woken);
        probed(&mut health, woken, 2);
        assert!(!health.proved(1, woken + 5), "an answer from before the jump proves nothing");
        assert!(health.proved(2, woken + 10));
        assert_eq!(health.trust(woken + 10), Trust::Proven);

        health.suspect("a change of network", woken + 20);
        probed(&mut health, woken + 20, 3);
        let end = woken + 20 + HURRIED_MS;
        assert_eq!(health.poll_at(), woken + 20 + PROBE_EVERY_MS);
        assert!(matches!(health.poll(end, end, || 4), Some(Action::GiveUp(_))));
    }
}
