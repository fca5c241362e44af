//! Enrolling devices: offers of this node, and the way of this node into somebody's org.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use tieline_proto::api::{ApiError, Code, Frame, PairStep, Residency};
use tieline_proto::entry::Role;
use tieline_proto::id::{NodeId, Seq};
use tieline_proto::pairing::{Approval, Joined, Reason, Terms, Welcome};
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::calls::frame_text;
use super::{Done, FeedTo, Node, ReplyTo, offline};
use crate::net::pair::{OfferId, PairEvent};

/// Bytes of the chain read at once for a welcome.
const CHUNK_LEN: usize = 256 * 1024;

/// What this node has to do with pairing now.
#[derive(Debug, Default)]
pub(super) struct Pairing {
    /// Number of the last offer.
    last: u64,
    /// The offers whose steps somebody follows.
    shown: BTreeMap<OfferId, Shown>,
    /// A device whose entry is on its way to disk.
    enrolling: Option<Enrolling>,
    /// Somebody's org that this node has just been enrolled in: it starts anew as one of its devices.
    pub(super) joined: Option<Adoption>,
}

/// Who shows an offer.
#[derive(Debug)]
struct Shown {
    feed: mpsc::Sender<Arc<str>>,
    /// Ends the task that waits for who shows it to go.
    _over: DropGuard,
}

#[derive(Debug)]
struct Enrolling {
    offer: OfferId,
    device: NodeId,
    certificate: String,
    name: String,
    seq: Seq,
}

/// What the next life of this node is made of.
#[derive(Debug)]
pub(super) struct Adoption {
    pub joined: Box<Joined>,
    pub residency: Option<Residency>,
}

/// A join that ended.
#[derive(Debug)]
pub(super) struct JoinDone {
    joined: Box<Joined>,
    residency: Option<Residency>,
    feed: mpsc::Sender<Arc<str>>,
}

/// A step as a frame.
pub(super) fn step_frame(step: PairStep) -> Arc<str> {
    frame_text(&Frame::Pair { step })
}

impl Node {
    // ---- at the host ----

    pub(super) fn pair_offer(
        &mut self,
        role: Option<String>,
        channels: &[String],
        reply: ReplyTo,
        feed: Option<FeedTo>,
    ) {
        let terms = match self.terms(role.as_deref(), channels) {
            Ok(terms) => terms,
            Err(error) => return self.reply(reply, Err(error)),
        };
        let (Some(FeedTo::Here(feed)), ReplyTo::Here(reply)) = (feed, reply) else {
            return;
        };
        // A newer offer takes an older one's place; who shows the older one is told so when that is done.
        self.pairing.shown.retain(|_, shown| !shown.feed.is_closed());
        self.pairing.last += 1;
        let offer = OfferId(self.pairing.last);
        let over = CancellationToken::new();
        let shown = Shown { feed: feed.clone(), _over: over.clone().drop_guard() };
        self.pairing.shown.insert(offer, shown);
        let net = self.net.clone();
        tokio::spawn(async move {
            match net.pair_offer(offer, terms).await {
                Ok(offered) => {
                    let _ = reply.send(Ok(json!({})));
                    let step = PairStep::Offer { link: offered.link.to_string(), expires_ms: offered.expires_ms };
                    let _ = feed.send(step_frame(step)).await;
                    tokio::select! {
                        // Who shows the offer is gone: nobody could type the digits.
                        () = feed.closed() => drop(net.pair_cancel(offer).await),
                        () = over.cancelled() => {}
                    }
                }
                Err(error) => {
                    let error = ApiError::new(Code::Limit, error.to_string()).hint("wait, then: tieline pair");
                    let _ = reply.send(Err(error));
                }
            }
        });
    }

    fn terms(&self, role: Option<&str>, channels: &[String]) -> Result<Terms, ApiError> {
        if !self.membership.is_founder() {
            let error = ApiError::new(Code::Refused, "devices are enrolled at the box that founded the org");
            let founder = self.membership.org().and_then(|org| org.home()).map(|node| self.node_name(&node));
            return Err(error.hint(format!("on {}: tieline pair", founder.unwrap_or_else(|| "that box".to_owned()))));
        }
        self.membership.check_writable()?;
        if !channels.is_empty() {
            let error = ApiError::new(Code::Invalid, "this version enrols devices for all channels of the org");
            return Err(error.hint("leave --channel out"));
        }
        let role = match role {
            None | Some("observer") => Role::Observer,
            Some("member") => Role::Member,
            Some(other) => {
                let error = ApiError::new(Code::Invalid, format!("pairing gives no role {other:?}"));
                return Err(error.hint("observer or member; more comes by a later promotion"));
            }
        };
        let org_name = self.membership.org().map_or_else(String::new, |org| org.name().to_owned());
        Ok(Terms { role, org_name, host_name: self.config.name.clone(), addrs: Vec::new(), ttl_ms: None })
    }

    pub(super) fn pair_confirm(&mut self, digits: String, reply: ReplyTo) {
        let net = self.net.clone();
        let ReplyTo::Here(reply) = reply else { return };
        tokio::spawn(async move {
            let result = net.pair_confirm(digits).await;
            let result = result.map_err(|error| ApiError::new(Code::Invalid, error.to_string()));
            let _ = reply.send(result.map(|()| json!({})));
        });
    }

    pub(super) fn pair_cancel(&mut self) -> Result<Value, ApiError> {
        let net = self.net.clone();
        // The network knows which of them stands.
        let offers: Vec<_> = self.pairing.shown.keys().copied().collect();
        tokio::spawn(async move {
            for offer in offers {
                let _ = net.pair_cancel(offer).await;
            }
        });
        Ok(json!({}))
    }

    pub(super) fn pair_event(&mut self, offer: OfferId, event: PairEvent) {
        match event {
            PairEvent::Claimed { name, .. } => self.tell(offer, PairStep::Claim { name }),
            PairEvent::Approved(approval) => self.enrol(offer, *approval),
            PairEvent::Enrolled { device, name } => {
                let org = self.membership.id().to_string();
                self.tell(offer, PairStep::Enrolled { device, name, org });
                self.pairing.shown.remove(&offer);
            }
            PairEvent::Refused { reason } => {
                if reason == Reason::Raced {
                    tracing::warn!("two devices claimed one offer: both were refused; somebody else may have the link");
                }
                self.tell(offer, PairStep::Refused { reason: reason.to_string() });
                self.pairing.shown.remove(&offer);
            }
        }
    }

    fn tell(&self, offer: OfferId, step: PairStep) {
        if let Some(shown) = self.pairing.shown.get(&offer) {
            let _ = shown.feed.try_send(step_frame(step));
        }
    }

    /// The operator typed the right digits: the device goes into the chain, and hears of it when that is durable.
    fn enrol(&mut self, offer: OfferId, approval: Approval) {
        let device = approval.binding.device;
        let writable = self.membership.check_writable().map_err(|error| error.to_string());
        let enrolled =
            writable.and_then(|()| self.membership.enrol(approval, &self.keys).map_err(|error| error.to_string()));
        let (enrolment, seq) = match enrolled {
            Ok(enrolled) => enrolled,
            Err(error) => {
                tracing::error!(error, "a device could not be enrolled");
                return self.not_enrolled(offer);
            }
        };
        let mut enrolling = Enrolling { offer, device, certificate: enrolment.certificate, name: enrolment.name, seq };
        if let Some(body) = enrolment.body {
            let wall = self.now().wall;
            match self.membership.append(body, wall) {
                Ok(entry) => {
                    enrolling.seq = entry.seq;
                    self.submit_org(vec![entry]);
                }
                Err(error) => {
                    tracing::error!(%error, "a device could not be enrolled");
                    return self.not_enrolled(offer);
                }
            }
        }
        self.pairing.enrolling = Some(enrolling);
        self.pairing_durable();
    }

    /// The chain could not be written: the device is told at once, and can come again.
    pub(super) fn pairing_failed(&mut self) {
        let durable = self.reader.head(self.membership.log()).map_or(Seq(0), |head| head.seq);
        if let Some(enrolling) = self.pairing.enrolling.take_if(|enrolling| enrolling.seq > durable) {
            self.not_enrolled(enrolling.offer);
        }
    }

    fn not_enrolled(&self, offer: OfferId) {
        let net = self.net.clone();
        tokio::spawn(async move { net.pair_enrolled(offer, None).await });
    }

    /// The chain is durable a bit further.
    pub(super) fn pairing_durable(&mut self) {
        let durable = self.reader.head(self.membership.log()).map_or(Seq(0), |head| head.seq);
        let Some(Enrolling { offer, device, certificate, name, .. }) =
            self.pairing.enrolling.take_if(|enrolling| enrolling.seq <= durable)
        else {
            return;
        };
        let mut chain = Vec::new();
        let mut cursor = self.reader.lines(self.membership.log(), Seq(1));
        while let Ok(Some(chunk)) = cursor.read(CHUNK_LEN) {
            chain.extend_from_slice(&chunk.bytes);
        }
        let Some(link_key) = self.membership.link_key().cloned() else { return self.not_enrolled(offer) };
        let addrs = self.addrs.clone();
        let welcome = Welcome { device, certificate, name, chain, link_key, node: self.me, addrs };
        let net = self.net.clone();
        self.org_changed();
        tokio::spawn(async move { net.pair_enrolled(offer, Some(Box::new(welcome))).await });
    }

    // ---- at the device ----

    pub(super) fn pair_join(
        &mut self,
        link: &str,
        name: Option<String>,
        residency: Option<Residency>,
        reply: ReplyTo,
        feed: Option<FeedTo>,
    ) {
        let (Some(FeedTo::Here(feed)), ReplyTo::Here(reply)) = (feed, reply) else {
            return;
        };
        let link = match offline::check_link(link, self.membership.org(), self.me) {
            Ok(link) => link,
            Err(error) => return drop(reply.send(Err(error))),
        };
        let _ = reply.send(Ok(json!({})));
        let (config, done, keys) = (self.config.clone(), self.done.clone(), Arc::clone(&self.keys));
        tokio::spawn(async move {
            let shown = feed.clone();
            let name = name.unwrap_or_else(|| config.name.clone());
            let show = move |step| drop(shown.try_send(step_frame(step)));
            match offline::enrol(&config, keys, link, name, show).await {
                Ok(joined) => {
                    let join = JoinDone { joined, residency, feed };
                    let _ = done.send(Done::Joined(join)).await;
                }
                Err(reason) => drop(feed.send(step_frame(PairStep::Refused { reason })).await),
            }
        });
    }

    /// This node is one of somebody's org now: it ends as what it was and starts anew.
    pub(super) fn joined(&mut self, done: JoinDone) {
        let JoinDone { joined, residency, feed } = done;
        let step = PairStep::Enrolled {
            device: self.me,
            name: joined.name.clone(),
            org: joined.org.fingerprint().to_string(),
        };
        tracing::info!(org = %joined.org.fingerprint(), "enrolled; starting anew as a device of that org");
        self.pairing.joined = Some(Adoption { joined, residency });
        let _ = feed.try_send(step_frame(step));
        self.stop.cancel();
    }
}
