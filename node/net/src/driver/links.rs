//! Handshakes' outcomes, and which of two links between the same nodes stays.

use std::sync::Arc;

use libp2p::swarm::ConnectionId;
use libp2p::{PeerId, Stream};
use tieline_proto::id::NodeId;
use tieline_proto::link::Message;
use tieline_proto::wire::codec;
use tokio::time::{Duration, Instant, timeout};

use super::Driver;
use crate::OrgView;
use crate::handshake::{HandshakeError, Verified};
use crate::link::{self, CloseReason, Established, Link};
use crate::stream::Purpose;

/// Handshakes that others began and that are under way (`security.md` W5). Peers this node wants have room beside.
const HALF_OPEN_MAX: usize = 64;

/// Handshakes under way of one peer: two, because a new one may come before the old one's end is noticed.
const HALF_OPEN_PER_PEER_MAX: usize = 2;

/// Age up to which a link may have been made at the same moment as another one from the far side. Later, a new link
/// means that the far side has lost the old one.
const SIMULTANEOUS: Duration = Duration::from_secs(5);

/// How long it may take to tell the far side of a link that is not kept.
const DUPLICATE_TIMEOUT: Duration = Duration::from_secs(1);

/// A link that ended.
#[derive(Debug)]
pub(super) struct Ended {
    link: Arc<Link>,
    reason: CloseReason,
}

/// A handshake that ended.
#[derive(Debug)]
pub(super) struct Shaken {
    peer: PeerId,
    connection: ConnectionId,
    /// The node we began it with; `None` when the far side began.
    with: Option<NodeId>,
    /// The org as it was known when it began.
    view: Arc<OrgView>,
    /// `None`: it was called off.
    outcome: Option<Result<(Verified, Stream), HandshakeError>>,
}

impl Driver {
    /// Begins a handshake with a wanted node on a connection, unless one is under way or failed there.
    pub(super) fn shake(&mut self, node: NodeId, peer: PeerId, connection: ConnectionId) {
        let Some(attempt) = self.attempt(node) else { return };
        if attempt.shaking.is_some() || attempt.tried.contains(&connection) {
            return;
        }
        attempt.shaking = Some(connection);
        let cancel = attempt.cancel.clone();
        let (identity, rng, notes) = (self.identity(), self.fork(), self.note_sender.clone());
        self.handshakes.spawn(async move {
            let view = identity.view.clone();
            let shake = async {
                let mut stream = notes.open(peer, connection, Purpose::Link).await?;
                let verified = identity.initiate(&mut stream, peer, node, rng).await?;
                Ok((verified, stream))
            };
            let outcome = tokio::select! {
                outcome = shake => Some(outcome),
                () = cancel.cancelled() => None,
            };
            Shaken { peer, connection, with: Some(node), view, outcome }
        });
    }

    /// Answers a handshake that a peer begins.
    pub(super) fn answer(&mut self, peer: PeerId, connection: ConnectionId, mut stream: Stream) {
        let wanted = self.peers.values().any(|wanted| wanted.peer() == Some(peer));
        let of_peer = self.half_open.get(&peer).copied().unwrap_or_default();
        let strangers: usize = self.half_open.values().sum();
        if of_peer >= HALF_OPEN_PER_PEER_MAX || (strangers >= HALF_OPEN_MAX && !wanted) {
            tracing::debug!(%peer, "too many handshakes under way");
            return;
        }
        self.half_open.insert(peer, of_peer + 1);
        let (identity, rng) = (self.identity(), self.fork());
        self.handshakes.spawn(async move {
            let outcome = identity.respond(&mut stream, peer, rng).await;
            let outcome = Some(outcome.map(|verified| (verified, stream)));
            Shaken { peer, connection, with: None, view: identity.view, outcome }
        });
    }

    pub(super) fn on_shaken(&mut self, shaken: Shaken) {
        let Shaken { peer, connection, with, view, outcome } = shaken;
        match with {
            None => {
                if let Some(of_peer) = self.half_open.get_mut(&peer) {
                    *of_peer = of_peer.saturating_sub(1);
                    if *of_peer == 0 {
                        self.half_open.remove(&peer);
                    }
                }
            }
            Some(node) => {
                if let Some(attempt) = self.attempt(node)
                    && attempt.shaking == Some(connection)
                {
                    attempt.shaking = None;
                    attempt.tried.insert(connection);
                }
            }
        }
        match outcome {
            None => {}
            Some(Ok((verified, stream))) => {
                let Verified { node, name, session } = verified;
                let found = self.connections.get(&peer).and_then(|of_peer| of_peer.get(&connection)).cloned();
                let Some(super::Connection { remote, dialled, .. }) = found else {
                    tracing::debug!(node = %node.short(), "the connection closed after the handshake");
                    return;
                };
                let initiated = with.is_some();
                self.on_established(Established {
                    node,
                    name,
                    peer,
                    connection,
                    remote,
                    dialled,
                    initiated,
                    session,
                    stream,
                });
            }
            Some(Err(error)) => match with {
                None => tracing::debug!(%peer, %error, "a handshake of a peer failed"),
                Some(node) => self.on_not_shaken(node, (peer, connection), &view, &error),
            },
        }
    }

    fn on_not_shaken(
        &mut self,
        node: NodeId,
        (peer, connection): (PeerId, ConnectionId),
        view: &Arc<OrgView>,
        error: &HandshakeError,
    ) {
        tracing::debug!(node = %node.short(), %peer, %error, "a handshake failed");
        // A connection on which nothing comes back may be dead; the next try shall not use it.
        if error.is_of_connection() && !self.carries_link(connection) {
            self.swarm.close_connection(connection);
        }
        let Some(wanted) = self.peers.get_mut(&node) else { return };
        // A stranger's refusal says nothing about the node: it was a guess. Nor does one by what the org was before.
        if error.is_refusal() && wanted.peer() == Some(peer) && Arc::ptr_eq(view, &self.view) {
            wanted.refuse(Instant::now(), &mut self.rng);
            self.shared.down(node, error.to_string());
        } else if let Some(attempt) = &mut wanted.attempt {
            attempt.note(error.to_string());
            self.dial_known(node);
        }
    }

    fn on_established(&mut self, new: Established) {
        let node = new.node;
        // The chain may have grown meanwhile.
        if self.view.org.live(&node).is_none() {
            return;
        }
        let Some(old) = self.links.get(&node) else {
            self.start(new);
            return;
        };
        if self.keeps(old, &new) {
            tokio::spawn(tell_duplicate(new));
            return;
        }
        old.close(CloseReason::new("duplicate", "a newer link takes its place"));
        self.successors.insert(node, new);
    }

    /// Whether an old link stays although a new one was made.
    ///
    /// Both sides come to the same answer: of two that were begun at the same moment, the one begun by the lower device
    /// id stays.
    fn keeps(&self, old: &Link, new: &Established) -> bool {
        let lower_is_us = self.node < new.node;
        let old_is_lowers = old.initiated == lower_is_us;
        let same_moment = old.begun.elapsed() < SIMULTANEOUS;
        !old.is_closing() && old.initiated != new.initiated && old_is_lowers && same_moment
    }

    fn start(&mut self, new: Established) {
        self.links_made += 1;
        let node = new.node;
        if let Some(wanted) = self.peers.get_mut(&node) {
            wanted.linked(new.peer);
        }
        self.swarm.behaviour_mut().limits.bypass_peer_id(&new.peer);
        let parts = (self.events.clone(), self.note_sender.clone(), self.shared.clone());
        let rng = self.fork();
        let (link, runner) = link::prepare(new, self.links_made, parts, rng);
        self.links.insert(node, link.clone());
        self.running.spawn(async move {
            let reason = runner.run().await;
            Ended { link, reason }
        });
    }

    pub(super) fn on_ended(&mut self, ended: Ended) {
        let Ended { link, reason } = ended;
        let (node, now) = (link.node, Instant::now());
        if self.links.get(&node).is_some_and(|current| current.number == link.number) {
            self.links.remove(&node);
        }
        tracing::info!(node = %node.short(), %reason, "link down");
        if matches!(reason.code, "silent" | "lost") {
            self.close_unused(link.peer);
        }
        self.shared.down(node, reason.words.clone());
        if let Some(next) = self.successors.remove(&node)
            && self.view.org.live(&node).is_some()
        {
            self.start(next);
            return;
        }
        let Some(wanted) = self.peers.get_mut(&node) else { return };
        if reason.code == "refused" {
            wanted.refuse(now, &mut self.rng);
        } else {
            wanted.lost(link.begun.elapsed(), now, &mut self.rng);
        }
    }

    /// Closes a peer's connections that carry no link: they may be as dead as the one that did, and would be tried
    /// first.
    fn close_unused(&mut self, peer: PeerId) {
        let of_peer: Vec<_> =
            self.connections.get(&peer).into_iter().flat_map(|of_peer| of_peer.keys().copied()).collect();
        for connection in of_peer {
            if !self.carries_link(connection) {
                self.swarm.close_connection(connection);
            }
        }
    }

    fn carries_link(&self, connection: ConnectionId) -> bool {
        self.links.values().any(|link| link.connection == connection)
            || self.successors.values().any(|next| next.connection == connection)
    }
}

/// Tells the far side that its link is not needed. It may have been told by the other link's existence already.
async fn tell_duplicate(mut new: Established) {
    use futures::io::AsyncWriteExt;
    let bye =
        Message::Bye { code: "duplicate".to_owned(), reason: "another link was made at the same moment".to_owned() };
    let (mut frame, mut records) = (Vec::new(), Vec::new());
    if codec::encode(&bye, &[], &mut frame).is_ok() && new.session.seal(&frame, &mut records).is_ok() {
        let _ = timeout(DUPLICATE_TIMEOUT, async {
            new.stream.write_all(&records).await?;
            new.stream.close().await
        })
        .await;
    }
}
