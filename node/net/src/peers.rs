//! Whom this node keeps linked: one small state for each, and when to try again.

use std::collections::BTreeSet;

use libp2p::kad::QueryId;
use libp2p::swarm::ConnectionId;
use libp2p::{Multiaddr, PeerId};
use rand_chacha::ChaCha20Rng;
use rand_core::Rng;
use tokio::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

use super::PeerHints;

/// First delay before another try.
pub(super) const RETRY_BASE: Duration = Duration::from_millis(250);

/// Longest delay. Tries go on for ever: nobody is there to press a button on a box in a cupboard.
pub(super) const RETRY_CAP: Duration = Duration::from_secs(30);

/// Delay after a refusal. Only a change of the org's chain, on either side, makes another try worth anything, and one
/// on this side is acted on at once (`cases.md` P13).
pub(super) const REFUSED_RETRY: Duration = Duration::from_secs(60);

/// How long a link must have been up for its end to count as the first failure. One that falls again and again is
/// tried more and more slowly.
pub(super) const STABLE_AFTER: Duration = Duration::from_secs(30);

/// How long one try may take in all: dialling, the DHT, and the handshake.
pub(super) const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(30);

/// How long addresses that are known already have before the DHT is asked too.
pub(super) const DHT_AFTER: Duration = Duration::from_millis(500);

/// Addresses of one peer that are tried in one try.
pub(super) const ADDRS_MAX: usize = 16;

/// Dials of one try, over all sources of addresses.
pub(super) const DIALS_MAX: usize = 16;

/// Longest reasons kept of one try.
const REASONS_MAX: usize = 3;

/// One node to keep linked.
#[derive(Debug)]
pub(super) struct Peer {
    pub hints: PeerHints,
    /// The peer id its last link had, which is newer than the hint's.
    pub met: Option<PeerId>,
    failures: u32,
    retry_at: Instant,
    refused: bool,
    pub attempt: Option<Attempt>,
}

/// One try to link with a node.
#[derive(Debug)]
pub(super) struct Attempt {
    pub begun: Instant,
    pub dht_asked: bool,
    /// Dials under way.
    pub dials: BTreeSet<ConnectionId>,
    /// DHT queries under way that only this try waits for.
    pub queries: Vec<QueryId>,
    /// Topics are being looked up.
    pub seeking: bool,
    /// The connection on which a handshake is under way.
    pub shaking: Option<ConnectionId>,
    /// Connections on which a handshake failed.
    pub tried: BTreeSet<ConnectionId>,
    /// Addresses and peers that were dialled.
    pub dialled: BTreeSet<Multiaddr>,
    pub asked_peers: BTreeSet<PeerId>,
    reasons: Vec<String>,
    /// Stops the handshake.
    pub cancel: CancellationToken,
}

impl Peer {
    pub(super) const fn new(hints: PeerHints, now: Instant) -> Self {
        Self { hints, met: None, failures: 0, retry_at: now, refused: false, attempt: None }
    }

    /// The peer id to look for.
    pub(super) fn peer(&self) -> Option<PeerId> {
        self.met.or(self.hints.peer_id)
    }

    /// New word of where it is, which may name another peer id than it had when it was met.
    pub(super) fn hint(&mut self, hints: PeerHints, now: Instant) {
        if hints.peer_id.is_some() && hints.peer_id != self.hints.peer_id {
            self.met = None;
        }
        self.hints = hints;
        self.hurry(now, false);
    }

    /// Whether it is time for another try.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.attempt.is_none() && self.retry_at <= now
    }

    /// When something is to be done for it, without a link.
    pub(super) fn wake_at(&self) -> Instant {
        match &self.attempt {
            None => self.retry_at,
            Some(attempt) if !attempt.dht_asked => attempt.begun + DHT_AFTER,
            Some(attempt) => attempt.begun + ATTEMPT_TIMEOUT,
        }
    }

    pub(super) fn begin(&mut self, now: Instant) -> &mut Attempt {
        self.attempt.insert(Attempt {
            begun: now,
            dht_asked: false,
            dials: BTreeSet::new(),
            queries: Vec::new(),
            seeking: false,
            shaking: None,
            tried: BTreeSet::new(),
            dialled: BTreeSet::new(),
            asked_peers: BTreeSet::new(),
            reasons: Vec::new(),
            cancel: CancellationToken::new(),
        })
    }

    /// The try failed. Says why, in words.
    pub(super) fn fail(&mut self, now: Instant, rng: &mut ChaCha20Rng) -> String {
        let reason = self.attempt.take().map_or_else(String::new, Attempt::end);
        self.retry_at = now + backoff(self.failures, rng);
        self.failures = self.failures.saturating_add(1);
        reason
    }

    /// The far side, or this one, does not want the link.
    pub(super) fn refuse(&mut self, now: Instant, rng: &mut ChaCha20Rng) {
        self.attempt = None;
        self.refused = true;
        self.retry_at = now + jittered(REFUSED_RETRY, rng);
    }

    /// A link was made, by whichever side.
    pub(super) fn linked(&mut self, peer: PeerId) {
        if let Some(attempt) = self.attempt.take() {
            attempt.cancel.cancel();
        }
        self.met = Some(peer);
        self.refused = false;
    }

    /// A link that was up for this long is gone.
    pub(super) fn lost(&mut self, up_for: Duration, now: Instant, rng: &mut ChaCha20Rng) {
        if up_for >= STABLE_AFTER {
            self.failures = 0;
        }
        self.fail(now, rng);
    }

    /// Something changed: tries at once. A refusal stands, unless what it was about changed.
    pub(super) fn hurry(&mut self, now: Instant, even_refused: bool) {
        if self.refused && !even_refused {
            return;
        }
        self.refused = false;
        self.failures = 0;
        self.retry_at = self.retry_at.min(now);
    }

    /// The far side is connected, so a try is cheap: soon, but after it had a moment to begin itself.
    pub(super) fn connected(&mut self, now: Instant, rng: &mut ChaCha20Rng) {
        if !self.refused {
            self.retry_at = self.retry_at.min(now + jittered(2 * RETRY_BASE, rng));
        }
    }
}

impl Attempt {
    /// Notes why one way of this try did not work.
    pub(super) fn note(&mut self, reason: impl Into<String>) {
        let reason = reason.into();
        if !self.reasons.contains(&reason) && self.reasons.len() < REASONS_MAX {
            self.reasons.push(reason);
        }
    }

    /// Whether nothing is under way any more.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        let idle = self.dials.is_empty() && self.queries.is_empty() && !self.seeking && self.shaking.is_none();
        (idle && self.dht_asked) || now >= self.begun + ATTEMPT_TIMEOUT
    }

    fn end(self) -> String {
        self.cancel.cancel();
        if self.reasons.is_empty() { "no address is known for it".to_owned() } else { self.reasons.join("; ") }
    }
}

/// The delay after so many failures: doubled each time up to the cap, and jittered, so that nodes that were cut off
/// together don't return together.
pub(super) fn backoff(failures: u32, rng: &mut ChaCha20Rng) -> Duration {
    jittered(RETRY_BASE.saturating_mul(1 << failures.min(16)).min(RETRY_CAP), rng)
}

/// Between half of `delay` and all of it.
fn jittered(delay: Duration, rng: &mut ChaCha20Rng) -> Duration {
    let half = delay / 2;
    let span = u64::try_from(half.as_millis()).unwrap_or(u64::MAX).saturating_add(1);
    half + Duration::from_millis(rng.next_u64() % span)
}

#[cfg(test)]
mod tests {
    use rand_core::SeedableRng;

    use super::*;

    fn rng() -> ChaCha20Rng {
        ChaCha20Rng::seed_from_u64(1)
    }

    #[tokio::test(start_paused = true)]
    async fn tries_slow_down_to_the_cap_and_never_end() {
        let mut rng = rng();
        let mut now = Instant::now();
        let mut peer = Peer::new(PeerHints::default(), now);
        let mut ceiling = RETRY_BASE;
        for _ in 0..100 {
            assert!(peer.is_due(now));
            peer.begin(now);
            assert!(!peer.is_due(now));
            peer.fail(now, &mut rng);
            let delay = peer.wake_at() - now;
            assert!(delay >= ceiling / 2 && delay <= ceiling, "{delay:?} against {ceiling:?}");
            ceiling = (ceiling * 2).min(RETRY_CAP);
            now = peer.wake_at();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn case_p13_a_refusal_makes_no_hot_loop() {
        let (mut rng, now) = (rng(), Instant::now());
        let mut peer = Peer::new(PeerHints::default(), now);
        peer.begin(now);
        peer.refuse(now, &mut rng);
        assert!(peer.wake_at() >= now + REFUSED_RETRY / 2);
        peer.hurry(now, false);
        assert!(!peer.is_due(now), "a change of network does not undo a refusal");
        peer.connected(now, &mut rng);
        assert!(!peer.is_due(now + RETRY_CAP / 2));
        peer.hurry(now, true);
        assert!(peer.is_due(now), "a change of the org may");
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_stable_link_resets_the_backoff() {
        let (mut rng, now) = (rng(), Instant::now());
        let mut peer = Peer::new(PeerHints::default(), now);
        for _ in 0..20 {
            peer.linked(PeerId::random());
            peer.lost(Duration::from_secs(1), now, &mut rng);
        }
        assert!(peer.wake_at() >= now + RETRY_CAP / 2);
        peer.linked(PeerId::random());
        peer.lost(STABLE_AFTER, now, &mut rng);
        assert!(peer.wake_at() <= now + RETRY_BASE);
    }
}
