//! Frames of other nodes: what goes to the resident here, what to a home here, and calls that are passed on.

use std::str::FromStr;
use std::sync::Arc;

use libp2p::{Multiaddr, PeerId};
use serde::Deserialize;
use serde_json::{Value, json};
use tieline_proto::api::{ApiError, Code, Frame, Request};
use tieline_proto::channel::Input;
use tieline_proto::crypto::sign;
use tieline_proto::entry::{Auth, Draft, Post};
use tieline_proto::id::{ChannelId, ClientId, MemberId, MessageId, NodeId};
use tieline_proto::link::{Agent, Lane, Message};
use tieline_proto::log::Proof;
use tieline_proto::wire::frame::TAIL_LEN_MAX;
use tieline_proto::wire::json::{self as gate, Limits};
use tokio::sync::mpsc;

use super::calls::frame_text;
use super::feed::Feed;
use super::{Done, FeedTo, Forwarded, Node, ReplyTo, Work, receipt};
use crate::handle::Caller;

/// Highest version of the link's messages that this node speaks.
const VERSION: u32 = 1;

/// Frames of another node's subscription that may wait for the reader here; a slower reader is cut and resumes.
const FEED_WAITING_MAX: usize = 512;

/// Subscriptions of one node at once.
const FED_MAX: usize = 64;

impl Node {
    pub(super) fn link_up(&mut self, node: NodeId, name: &str, peer: PeerId, addr: Option<Multiaddr>) {
        tracing::info!(node = %node.short(), name, "link up");
        self.met(node, peer, addr.as_ref());
        // The chain goes before the greeting: what the greeting sets off may name a channel that is new here.
        if self.membership.org().and_then(|org| org.home()) == Some(node) {
            self.send(node, Message::OrgGet { from: self.membership.lacks() }, Vec::new());
        }
        let hello = self.hello();
        self.send(node, hello, Vec::new());
    }

    /// What this node says of itself on a link, and again when its attempt journal is another.
    pub(super) fn hello(&self) -> Message {
        Message::Hello {
            version: VERSION,
            name: self.config.name.clone(),
            addrs: self.addrs.clone(),
            mark: self.turns.mark(),
        }
    }

    pub(super) fn link_down(&mut self, node: NodeId, reason: &str) {
        tracing::info!(node = %node.short(), reason, "link down");
        if self.peers.remove(&node).is_none() {
            return;
        }
        for id in self.channels.keys().copied().collect::<Vec<_>>() {
            self.feed_home(id, Input::LinkDown(node));
        }
        let gone = self.forwarded.iter().filter(|(_, call)| call.node == node).map(|(call, _)| *call);
        for call in gone.collect::<Vec<_>>() {
            let Some(Forwarded { reply, .. }) = self.forwarded.remove(&call) else { continue };
            if let Some(reply) = reply {
                let home = self.node_name(&node);
                let error =
                    ApiError::new(Code::Unreachable, format!("the link to {home} went down before it answered"))
                        .hint("type it again; a post is saved once when it has the same --id");
                self.reply(reply, Err(error));
            }
        }
        self.fed.retain(|(to, _), task| {
            if *to == node {
                task.abort();
            }
            *to != node
        });
    }

    pub(super) fn frame(&mut self, node: NodeId, message: Message, tail: Vec<u8>) {
        match &message {
            Message::Hello { mark, addrs, .. } => {
                if !self.greeted(node, addrs) {
                    return;
                }
                self.peers.insert(node, *mark);
                for id in self.channels.keys().copied().collect::<Vec<_>>() {
                    self.feed_home(id, Input::LinkUp(node, *mark));
                }
                // What ended here while its home was away, or whose end was lost on the way, is told again.
                self.resident(tieline_proto::turn::Input::LinkUp(node));
                self.retry_parked(tokio::time::Instant::now());
            }
            Message::Deliver { .. }
            | Message::Reconcile { .. }
            | Message::FinishedAck { .. }
            | Message::EventsAck { .. }
            | Message::Stop { .. }
            | Message::Answer { .. }
            | Message::Kill { .. } => self.work.push_back(Work::ToResident(node, message, tail)),
            Message::Accepted { .. }
            | Message::Refused { .. }
            | Message::Events { .. }
            | Message::Finished { .. }
            | Message::StopOk { .. }
            | Message::AnswerOk { .. }
            | Message::Report { .. } => self.work.push_back(Work::ToHome(node, message, tail)),
            Message::Call { call, agent } => {
                let (call, agent) = (*call, *agent);
                self.called(node, call, agent, &tail);
            }
            Message::Reply { call } => self.replied(node, *call, &tail),
            Message::Feed { call } => self.fed(node, *call, &tail),
            Message::FeedEnd { call } => self.feed_ended(node, *call),
            Message::OrgGet { from } => self.org_asked(node, *from),
            Message::OrgLines { from } => self.org_lines(node, *from, &tail),
            // The link answers probes by itself; what a newer version says is not for us.
            Message::Probe { .. }
            | Message::ProbeOk { .. }
            | Message::LaneOpen { .. }
            | Message::Bye { .. }
            | Message::Unknown => {}
        }
    }

    /// News of attempts, to the home of each one's channel.
    pub(super) fn tell_home(&mut self, node: NodeId, message: Message, tail: Vec<u8>) {
        let channel = match &message {
            Message::Accepted { id, .. }
            | Message::Refused { id, .. }
            | Message::Events { id, .. }
            | Message::Finished { id, .. }
            | Message::StopOk { id }
            | Message::AnswerOk { id, .. } => id.channel,
            Message::Report { verdicts } => {
                for (id, verdict) in verdicts {
                    let message = Message::Report { verdicts: vec![(*id, verdict.clone())] };
                    self.feed_home(id.channel, Input::Frame { node, message, tail: Vec::new() });
                }
                return;
            }
            _ => return,
        };
        self.feed_home(channel, Input::Frame { node, message, tail });
    }

    // ---- calls of other nodes ----

    fn called(&mut self, node: NodeId, call: u64, agent: Option<Agent>, tail: &[u8]) {
        let reply = ReplyTo::There(node, call);
        let asked = gate::check(tail, Limits::text(TAIL_LEN_MAX))
            .map_err(|error| error.to_string())
            .and_then(|text| serde_json::from_str::<Asked>(text).map_err(|error| error.to_string()));
        let Asked { request, auth } = match asked {
            Ok(asked) => asked,
            Err(error) => {
                let error = ApiError::new(Code::Invalid, format!("the request cannot be read: {error}"));
                return self.reply(reply, Err(error));
            }
        };
        if let Request::Unsubscribe { call } = request {
            self.end_fed(node, call);
            return self.reply(reply, Ok(json!({})));
        }
        if let Request::Subscribe { .. } = request {
            self.fed.retain(|_, task| !task.is_finished());
            if self.fed.contains_key(&(node, call)) {
                let error = ApiError::new(Code::Invalid, "that call is a subscription already");
                return self.reply(reply, Err(error));
            }
            if self.fed.keys().filter(|(of, _)| *of == node).count() >= FED_MAX {
                let error = ApiError::new(Code::Limit, format!("{FED_MAX} subscriptions of one box are open"));
                return self.reply(reply, Err(error));
            }
        }
        let (channel, caller) = match self.caller(node, agent, &request) {
            Ok(caller) => caller,
            Err(error) => return self.reply(reply, Err(error)),
        };
        if let Request::Post { .. } = request {
            return match self.signed_post(node, channel, agent, auth) {
                Ok(SignedPost { by, auth, post, client, run }) => {
                    self.post(channel, by, auth, post, Some(client), run, reply);
                }
                Err(error) => self.reply(reply, Err(error)),
            };
        }
        let feed = matches!(request, Request::Subscribe { .. }).then_some(FeedTo::There(node, call));
        self.call_channel(caller, channel, request, reply, feed);
    }

    /// Who calls, and about which channel: only ones whose home is here, by id.
    fn caller(&self, node: NodeId, agent: Option<Agent>, request: &Request) -> Result<(ChannelId, Caller), ApiError> {
        let named =
            serde_json::to_value(request).ok().and_then(|value| Some(value.get("channel")?.as_str()?.to_owned()));
        let named = named.ok_or_else(|| ApiError::new(Code::Invalid, "that request names no channel"))?;
        let by_name = || {
            let mut here = self.channels.iter().filter_map(|(id, channel)| Some((id, channel.home.as_ref()?)));
            here.find(|(_, home)| home.state().draft.name.as_str() == named).map(|(id, _)| *id)
        };
        let id = ChannelId::from_str(&named).ok().filter(|id| self.channels.contains_key(id)).or_else(by_name);
        let id = id.ok_or_else(|| ApiError::new(Code::NotFound, format!("no channel {named:?} has its home here")))?;
        let Some(Agent { channel, member, run }) = agent else { return Ok((id, Caller::Device(node))) };
        // A node speaks for the agents that live on it and for no others.
        let home = self.channels.get(&id).and_then(|channel| channel.home.as_ref());
        let lives = home.and_then(|home| home.state().members.get(&member)).and_then(|member| member.spec.node);
        if channel != id || lives != Some(node) {
            return Err(ApiError::new(Code::Refused, "the agent does not live on the node that speaks for it"));
        }
        Ok((id, Caller::Agent { channel, member, run }))
    }

    /// Checks a signed draft against everything it names.
    fn signed_post(
        &self,
        node: NodeId,
        channel: ChannelId,
        agent: Option<Agent>,
        auth: Option<Auth>,
    ) -> Result<SignedPost, ApiError> {
        let refused = |why: &str| ApiError::new(Code::Refused, why.to_owned());
        let Some(Auth::Device { device, draft: text, sig }) = auth else {
            return Err(refused("a post from another node must be signed"));
        };
        if device != node {
            return Err(refused("the draft is signed by another device than the one that sent it"));
        }
        sign::verify(sign::domain::DRAFT, text.as_bytes(), &device, &sig)
            .map_err(|error| refused(&error.to_string()))?;
        let draft: Draft = gate::check(text.as_bytes(), Limits::text(TAIL_LEN_MAX))
            .ok()
            .and_then(|text| serde_json::from_str(text).ok())
            .ok_or_else(|| refused("the signed draft cannot be read"))?;
        let Draft { org, channel: named, member, device: signer, client, seen: _, run, post } = draft;
        let ours = self.membership.org().map(|org| org.fingerprint());
        if Some(org) != ours || named != channel || signer != node {
            return Err(refused("the signed draft names another org, channel or device"));
        }
        if member != agent.map(|agent| agent.member) || run != agent.and_then(|agent| agent.run) {
            return Err(refused("the signed draft names another member than the request"));
        }
        let by = match member {
            Some(member) => Some(member),
            None => {
                let may = self.membership.org().is_some_and(|org| org.may(&node, tieline_proto::org::Action::Post));
                if !may {
                    let name = self.node_name(&node);
                    return Err(refused(&format!("{name} may not post with its role")).hint("tieline device list"));
                }
                let home = self.channels.get(&channel).and_then(|channel| channel.home.as_ref());
                home.and_then(|home| home.state().by_device(&node).or_else(|| home.state().by_device(&self.me)))
            }
        };
        Ok(SignedPost { by, auth: Auth::Device { device, draft: text, sig }, post, client, run })
    }

    pub(super) fn reply_there(&mut self, node: NodeId, call: u64, result: &Result<Value, ApiError>) {
        let tail = |result: &Result<Value, ApiError>| match result {
            Ok(value) => json!({ "ok": value }).to_string().into_bytes(),
            Err(error) => json!({ "error": error }).to_string().into_bytes(),
        };
        let mut answer = tail(result);
        if answer.len() > TAIL_LEN_MAX {
            // Whoever asks must not wait for what no frame can carry.
            let words = format!("the answer has {} bytes; {TAIL_LEN_MAX} is the most from another box", answer.len());
            answer = tail(&Err(ApiError::new(Code::Limit, words).hint("ask on the channel's home")));
        }
        self.send(node, Message::Reply { call }, answer);
    }

    pub(super) fn feed_there(&mut self, node: NodeId, call: u64, feed: Feed, mut frames: mpsc::Receiver<Arc<str>>) {
        let outlet = self.outlet.clone();
        let task = tokio::spawn(async move {
            let lane = Lane::Bulk(call);
            // Ends with this task, however that ends.
            let mut reading = tokio::task::JoinSet::new();
            reading.spawn(feed.run());
            let mut open = true;
            while let Some(frame) = frames.recv().await {
                let frame = frame.as_bytes().to_vec();
                open = outlet.send_lane(node, lane, Message::Feed { call }, frame).await.is_ok();
                if !open {
                    break;
                }
            }
            // When the lane has no room for it the reader hears of the end all the same, and can resume.
            let way = if open { lane } else { Lane::Control };
            let _ = outlet.send_lane(node, way, Message::FeedEnd { call }, Vec::new()).await;
            outlet.net.end_lane(node, lane);
        });
        self.fed.insert((node, call), task.abort_handle());
    }

    fn end_fed(&mut self, node: NodeId, call: u64) {
        if let Some(task) = self.fed.remove(&(node, call)) {
            task.abort();
            self.net.end_lane(node, Lane::Bulk(call));
        }
    }

    // ---- answers of other nodes ----

    fn replied(&mut self, node: NodeId, call: u64, tail: &[u8]) {
        #[derive(Deserialize)]
        #[serde(rename_all = "lowercase")]
        enum Answer {
            Ok(Value),
            Error(ApiError),
        }
        let Some(forwarded) = self.forwarded.get_mut(&call).filter(|forwarded| forwarded.node == node) else { return };
        let Some(reply) = forwarded.reply.take() else { return };
        let answer =
            gate::check(tail, Limits { nodes_max: 200_000, ..Limits::text(tieline_proto::wire::frame::FRAME_LEN_MAX) });
        let answer = answer.ok().and_then(|text| serde_json::from_str(text).ok());
        let result = match answer {
            Some(Answer::Ok(mut value)) => {
                if let (Some(role), Some(channel)) = (forwarded.role, value.as_object_mut()) {
                    channel.insert("role".to_owned(), json!(role));
                }
                let org = self.membership.org();
                // A post that was sent again may have been saved before the channel moved.
                let is_home = |channel: &ChannelId, proof: &Proof| {
                    let mut terms = org.into_iter().flat_map(|org| org.terms(channel));
                    proof.home == node || terms.any(|term| (term.home, term.epoch) == (proof.home, proof.epoch))
                };
                match forwarded.posts_to {
                    Some(channel) => receipt::check(&value, channel, |proof| is_home(&channel, proof)).map(|()| value),
                    None => Ok(value),
                }
            }
            Some(Answer::Error(error)) => Err(error),
            None => Err(ApiError::new(Code::Internal, "the home's answer cannot be read")),
        };
        if forwarded.feed.is_none() || result.is_err() {
            self.forwarded.remove(&call);
        }
        self.reply(reply, result);
    }

    /// A subscription of a door here whose frames come from another node.
    pub(super) fn local_feed(&mut self, node: NodeId, call: u64, to: mpsc::Sender<Arc<str>>) -> mpsc::Sender<Arc<str>> {
        let (sender, mut frames) = mpsc::channel::<Arc<str>>(FEED_WAITING_MAX);
        let done = self.done.clone();
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    frame = frames.recv() => match frame {
                        Some(frame) => if to.send(frame).await.is_err() { break },
                        None => break,
                    },
                    () = to.closed() => break,
                }
            }
            let _ = done.send(Done::FeedGone(node, call)).await;
        });
        sender
    }

    /// The reader of another node's feed is gone or was cut: the far side need not go on.
    pub(super) fn feed_gone(&mut self, node: NodeId, call: u64) {
        self.forwarded.remove(&call);
        let end = json!({ "request": Request::Unsubscribe { call } }).to_string().into_bytes();
        let call = self.next_call;
        self.next_call += 1;
        self.send(node, Message::Call { call, agent: None }, end);
    }

    fn fed(&mut self, node: NodeId, call: u64, tail: &[u8]) {
        let Some(forwarded) = self.forwarded.get(&call).filter(|forwarded| forwarded.node == node) else { return };
        let Ok(frame) = std::str::from_utf8(tail) else { return };
        let Some(feed) = &forwarded.feed else { return };
        if feed.try_send(frame.into()).is_err() {
            // The reader is slower than the link for a long while. It is cut, knows it, and resumes by its cursor.
            tracing::debug!(call, "a slow subscriber of another node's channel was cut");
            self.forwarded.remove(&call);
        }
    }

    fn feed_ended(&mut self, node: NodeId, call: u64) {
        if self.forwarded.get(&call).is_some_and(|forwarded| forwarded.node == node)
            && let Some(Forwarded { feed: Some(feed), .. }) = self.forwarded.remove(&call)
        {
            let _ = feed.try_send(frame_text(&Frame::End {}));
        }
    }

    /// Calls that another node leaves without an answer.
    pub(super) fn expire_forwarded(&mut self, now: tokio::time::Instant) {
        let late = |call: &Forwarded| call.reply.is_some() && call.until <= now;
        let late = self.forwarded.iter().filter(|(_, call)| late(call)).map(|(call, _)| *call);
        for call in late.collect::<Vec<_>>() {
            let Some(Forwarded { node, reply: Some(reply), .. }) = self.forwarded.remove(&call) else { continue };
            let home = self.node_name(&node);
            let error = ApiError::new(Code::Unreachable, format!("{home} did not answer in time"));
            self.reply(reply, Err(error.hint("tieline status; a post is saved once when it has the same --id")));
        }
    }
}

/// What [`Message::Call`] carries.
#[derive(Deserialize)]
struct Asked {
    request: Request,
    /// Posts: the signed draft, which is what is posted.
    #[serde(default)]
    auth: Option<Auth>,
}

/// A post that another node's signature stands for.
struct SignedPost {
    by: Option<MemberId>,
    auth: Auth,
    post: Post,
    client: ClientId,
    run: Option<MessageId>,
}
