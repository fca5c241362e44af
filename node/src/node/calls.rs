//! Requests of the API: who may ask what, which home answers, and how the answer is made.

use std::str::FromStr;
use std::sync::Arc;

use super::base64::{decode, encode};
use serde::Serialize;
use serde_json::{Value, json};
use tieline_proto::api::{ApiError, Code, Frame, MemberAct, NewMember, Posted, Request};
use tieline_proto::channel::{Ask, Home, Input, Op, Ticket};
use tieline_proto::entry::{Auth, Draft, MemberKind, MemberSpec, Post};
use tieline_proto::event::Answer;
use tieline_proto::id::{ChannelId, ChannelName, ClientId, Handle, Hash, MemberId, MessageId, NodeId, ParseIdError};
use tieline_proto::org::Action;
use tieline_proto::view::{self, BlobPiece, ChannelRole, Head};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::feed::Feed;
use super::{FORWARDED_MAX, FeedTo, Forwarded, Node, PATIENCE, Parked, ReplyTo, views};
use crate::handle::{Caller, FRAMES_WAITING_MAX};
use crate::store::SealedBatch;

/// Bytes of an attachment in one request.
pub(super) const PIECE_LEN: usize = 512 * 1024;

/// How long another node may take to answer a call. The longest waits for a disk there.
const ANSWER_WAIT: std::time::Duration = std::time::Duration::from_secs(60);

/// A request that waits for its entry to be durable.
#[derive(Debug)]
pub(super) struct Waiting {
    reply: ReplyTo,
    what: Asked,
}

/// What the answer is made of.
#[derive(Clone, Debug)]
enum Asked {
    Post,
    Member(ChannelId, Option<MemberId>),
    Card(ChannelId, Option<Box<view::Card>>),
    Channel(ChannelId),
}

/// Where a channel's home is.
enum Place {
    Here(ChannelId),
    There(ChannelId, NodeId),
}

impl Node {
    /// Answers a request, now or when what it needs is there.
    pub(super) fn call(&mut self, caller: Caller, request: Request, reply: ReplyTo, feed: Option<FeedTo>) {
        self.try_call(caller, request, reply, feed, Instant::now() + PATIENCE);
    }

    pub(super) fn retry_parked(&mut self, now: Instant) {
        for Parked { until, caller, request, reply, feed } in std::mem::take(&mut self.parked) {
            let until = if until <= now { now } else { until };
            self.try_call(caller, request, reply, feed, until);
        }
    }

    fn try_call(&mut self, caller: Caller, request: Request, reply: ReplyTo, feed: Option<FeedTo>, until: Instant) {
        let Some(name) = channel_of(&request).map(str::to_owned) else {
            return self.call_node(caller, request, reply, feed);
        };
        match self.place(&name) {
            Some(Place::Here(id)) => self.call_channel(caller, id, request, reply, feed),
            Some(Place::There(id, home)) if self.peers.contains_key(&home) => {
                self.forward(caller, id, home, request, reply, feed);
            }
            // It may be on its way: a channel by the org's chain, a home by its link.
            missing if until > Instant::now() && self.may_appear(missing.as_ref()) => {
                self.parked.push(Parked { until, caller, request, reply, feed });
            }
            Some(Place::There(_, home)) => {
                let home = self.node_name(&home);
                let error = ApiError::new(Code::Unreachable, format!("{home}, the home of {name}, can't be reached"));
                self.reply(reply, Err(error.hint("tieline status")));
            }
            None => {
                let error = ApiError::new(Code::NotFound, format!("no channel {name:?} is known here"));
                self.reply(reply, Err(error.hint("tieline channel list, or: tieline channel create NAME")));
            }
        }
    }

    fn may_appear(&self, missing: Option<&Place>) -> bool {
        // A node that joined somebody's org learns of channels from there.
        missing.is_some() || !self.membership.is_founder()
    }

    fn place(&self, name: &str) -> Option<Place> {
        let here = |id: &ChannelId| self.channels.contains_key(id);
        if let Ok(id) = ChannelId::from_str(name) {
            if here(&id) {
                return Some(Place::Here(id));
            }
            let (id, term) = self.membership.org()?.channels().find(|(known, _)| *known == id)?;
            return Some(Place::There(id, term.home));
        }
        let org = self.membership.org()?;
        // Of two channels with one name the one whose home is here is meant, else the newest.
        let named = || org.channels().filter(|(_, term)| term.name.as_str() == name);
        match named().find(|(id, _)| here(id)).or_else(|| named().last())? {
            (id, _) if here(&id) => Some(Place::Here(id)),
            (id, term) => Some(Place::There(id, term.home)),
        }
    }

    // ---- requests about the node ----

    fn call_node(&mut self, caller: Caller, request: Request, reply: ReplyTo, feed: Option<FeedTo>) {
        if !matches!(caller, Caller::Owner) && !is_for_all(&request) {
            let error = ApiError::new(Code::Refused, "only the owner of this box may do that");
            return self.reply(reply, Err(error));
        }
        let result = match request {
            Request::Status {} => Ok(to_value(&self.status())),
            Request::Stop {} => {
                tracing::info!("asked to stop");
                self.stop.cancel();
                Ok(json!({}))
            }
            Request::OrgShow {} => self.org_show(),
            Request::ChannelCreate { name, client } => return self.create_channel(&name, client, reply),
            Request::ChannelList {} => {
                let mut list = self.channel_list();
                // An agent sees the channel that it is a member of.
                if let Caller::Agent { channel, .. } = &caller {
                    list.retain(|shown| shown.id == *channel);
                }
                Ok(to_value(&list))
            }
            Request::Inbox { channel: None } => {
                let homes = self.channels.values().filter_map(|channel| channel.home.as_ref());
                Ok(to_value(&homes.flat_map(views::cards).collect::<Vec<_>>()))
            }
            Request::DeviceList {} => Ok(to_value(&self.device_list())),
            Request::Reload {} => self.reload(),
            Request::PairOffer { role, channels } => return self.pair_offer(role, &channels, reply, feed),
            Request::PairConfirm { digits } => return self.pair_confirm(digits, reply),
            Request::PairCancel {} => self.pair_cancel(),
            Request::Join { link, name, resident } => return self.pair_join(&link, name, resident, reply, feed),
            _ => Err(ApiError::new(Code::Invalid, "that request names no channel")),
        };
        self.reply(reply, result);
    }

    fn create_channel(&mut self, name: &str, client: Option<ClientId>, reply: ReplyTo) {
        match self.begin_channel(name, client) {
            Ok(id) => {
                let ticket = self.ticket(reply, Asked::Channel(id));
                self.await_made(id, ticket);
            }
            Err(error) => self.reply(reply, Err(error)),
        }
    }

    pub(super) fn begin_channel(&mut self, name: &str, client: Option<ClientId>) -> Result<ChannelId, ApiError> {
        let name = ChannelName::new(name).map_err(invalid)?;
        if !self.membership.is_founder() {
            let founder = self.membership.org().and_then(|org| org.home());
            let founder = founder.map_or_else(|| "the founder's box".to_owned(), |node| self.node_name(&node));
            let error = ApiError::new(Code::Refused, "this box joined an org; its channels are made at the founder's");
            return Err(error.hint(format!("on {founder}: tieline channel create {name}")));
        }
        // A name is the id of the request that made it: the same person never means two channels by one name.
        let existing = self.membership.org().into_iter().flat_map(|org| org.channels());
        let existing = existing.into_iter().find(|(_, term)| term.name == name).map(|(id, _)| id);
        if let Some(id) = existing.or_else(|| self.making(&name)) {
            if client.is_some_and(|client| self.membership.created_by(&client) == Some(id)) {
                return Ok(id);
            }
            let error = ApiError::new(Code::Conflict, format!("there is a channel {name} already"));
            return Err(error.hint(format!("tieline channel show {name}")));
        }
        self.membership.check_writable()?;
        let (home, step, id) = self.new_channel(&name)?;
        self.open_new_log(id)?;
        if let Some(client) = client {
            self.membership.created(client, id);
        }
        self.channels.insert(id, super::channel::Channel::new(home, Default::default(), tieline_proto::id::Seq(0)));
        self.make(id, name);
        self.submit(id, step);
        self.greet(id);
        Ok(id)
    }

    fn new_channel(&mut self, name: &ChannelName) -> Result<(Home, tieline_proto::channel::Step, ChannelId), ApiError> {
        let mut nonce = Hash::ZERO;
        rand_core::Rng::fill_bytes(&mut self.rng, &mut nonce.0);
        let org = self.membership.org().map(|org| org.fingerprint());
        let org = org.ok_or_else(|| ApiError::new(Code::Internal, "this node has no org"))?;
        let draft = tieline_proto::entry::ChannelDraft { org, home: self.me, name: name.clone(), nonce };
        let owner = MemberSpec {
            kind: MemberKind::Human,
            handle: self.membership.person(),
            harness: None,
            node: None,
            cwd: None,
            model: None,
            policy: None,
            devices: vec![self.me],
        };
        let now = self.now();
        let mut context = tieline_proto::channel::Context {
            now,
            lamport: &mut self.lamport,
            org: self.membership.judged_by(),
            rng: &mut self.rng,
            history: &NoHistory,
        };
        let (home, step) = Home::create(&draft, owner, &mut context)?;
        let id = home.state().id;
        Ok((home, step, id))
    }

    // ---- requests about a channel whose home is here ----

    pub(super) fn call_channel(
        &mut self,
        caller: Caller,
        id: ChannelId,
        request: Request,
        reply: ReplyTo,
        feed: Option<FeedTo>,
    ) {
        let by = match self.may(&caller, id, &request) {
            Ok(by) => by,
            Err(error) => return self.reply(reply, Err(error)),
        };
        match request {
            Request::Subscribe { since, events, once, .. } => {
                let Some(feed) = feed else {
                    let error = ApiError::new(Code::Invalid, "subscriptions need a socket");
                    return self.reply(reply, Err(error));
                };
                self.reply(reply, Ok(json!({})));
                self.subscribe(id, since, events, once, feed);
            }
            Request::Post { text, reply_to, attachments, client, .. } => {
                let run = if let Caller::Agent { run, .. } = &caller { *run } else { None };
                let post = Post { text, reply_to, attachments };
                self.post(id, by, Auth::Home, post, client, run, reply);
            }
            Request::MemberAdd { member, client, .. } => match self.member_spec(&caller, member) {
                Ok(spec) => self.operate(id, by, Op::MemberAdd { spec, client }, Asked::Member(id, None), reply),
                Err(error) => self.reply(reply, Err(error)),
            },
            Request::MemberAct { handle, act, .. } => match self.member_op(id, &handle, act) {
                Ok((member, op)) => self.operate(id, by, op, Asked::Member(id, Some(member)), reply),
                Err(error) => self.reply(reply, Err(error)),
            },
            Request::Answer { card, choose, text, .. } => {
                let before = self.card_view(id, card);
                let op = Op::Answer(card, Answer { choice: choose, text });
                self.operate(id, by, op, Asked::Card(id, before.map(Box::new)), reply);
            }
            Request::Hold { message, release, may_run_twice, .. } => {
                let before = self.held_view(id, message);
                let op = Op::Hold { message, release, may_run_twice };
                self.operate(id, by, op, Asked::Card(id, before.map(Box::new)), reply);
            }
            Request::BlobPut { .. } if self.channels.get(&id).is_none_or(|channel| channel.home.is_none()) => {
                let reason = self.channels.get(&id).and_then(|channel| channel.read_only.as_deref());
                let error = super::commit::read_only(reason);
                self.reply(reply, Err(error));
            }
            Request::BlobPut { hash, size, offset, data, .. } => match decode(&data) {
                Ok(bytes) => self.blob_put(id, hash, size, offset, &bytes, reply),
                Err(()) => {
                    let error = ApiError::new(Code::Invalid, "a piece is base64url without padding");
                    self.reply(reply, Err(error));
                }
            },
            Request::ChannelArchive { .. } => self.operate(id, by, Op::Archive, Asked::Channel(id), reply),
            read => {
                let result = self.read_channel(id, read);
                self.reply(reply, result);
            }
        }
    }

    fn read_channel(&mut self, id: ChannelId, request: Request) -> Result<Value, ApiError> {
        match request {
            Request::ChannelShow { .. } => {
                let (members, runs, cards) = match self.channels.get(&id).and_then(|channel| channel.home.as_ref()) {
                    Some(home) => {
                        let members = views::members(home, &self.names(), (self.wall)());
                        (members, views::runs(home), views::cards(home))
                    }
                    None => Default::default(),
                };
                let channel = self.channel_view(id).ok_or_else(|| gone(id))?;
                Ok(to_value(&view::ChannelShow { channel, members, runs, cards }))
            }
            Request::Inbox { .. } => {
                let home = self.channels.get(&id).and_then(|channel| channel.home.as_ref());
                Ok(to_value(&home.map(views::cards).unwrap_or_default()))
            }
            Request::Events { message, from, .. } => self.events(id, message, from),
            Request::BlobGet { hash, offset, .. } => {
                let (size, bytes) = self
                    .blob_piece(id, hash, offset)
                    .ok_or_else(|| ApiError::new(Code::NotFound, format!("no attachment {} here", hash.short())))?;
                Ok(to_value(&BlobPiece { size, offset, data: encode(&bytes) }))
            }
            _ => Err(ApiError::new(Code::Invalid, "that request is not about a channel")),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one post")]
    pub(super) fn post(
        &mut self,
        id: ChannelId,
        by: Option<MemberId>,
        auth: Auth,
        post: Post,
        client: Option<ClientId>,
        run: Option<MessageId>,
        reply: ReplyTo,
    ) {
        let length = |hash| self.reader.blob_file(id, hash).ok()??.len().ok();
        let missing = post.attachments.iter().find(|file| length(file.hash) != Some(file.size));
        if let Some(file) = missing {
            let error = ApiError::new(Code::NotFound, format!("the content of {:?} was not sent", file.name));
            return self.reply(reply, Err(error.hint("tieline post CHANNEL TEXT --attach FILE")));
        }
        let ticket = self.ticket(reply, Asked::Post);
        self.feed_home(id, Input::Op { ticket, by, auth, op: Op::Post { post, client, run } });
    }

    fn operate(&mut self, id: ChannelId, by: Option<MemberId>, op: Op, what: Asked, reply: ReplyTo) {
        let ticket = self.ticket(reply, what);
        self.feed_home(id, Input::Op { ticket, by, auth: Auth::Home, op });
    }

    fn ticket(&mut self, reply: ReplyTo, what: Asked) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.waiting.insert(ticket, Waiting { reply, what });
        ticket
    }

    /// An operation was refused, or is durable.
    pub(super) fn answer(
        &mut self,
        ticket: Ticket,
        result: Result<Ask, ApiError>,
        at: Option<(ChannelId, Option<&SealedBatch>)>,
    ) {
        let Some(Waiting { reply, what }) = self.waiting.remove(&ticket) else { return };
        let result = result.and_then(|done| match (done, what) {
            (Ask::Posted { message, seq, unknown, to }, _) => {
                // A repeated request is answered from the log, so that it gets the very same answer.
                let repeated = at.filter(|(_, batch)| batch.is_none_or(|batch| batch.line(seq).is_none()));
                let (unknown, to) = repeated.and_then(|(id, _)| self.recorded_route(id, seq)).unwrap_or((unknown, to));
                let receipt = at.and_then(|(id, batch)| self.receipt(id, seq, batch));
                let receipt = receipt
                    .ok_or_else(|| ApiError::new(Code::Internal, format!("#{message} is saved, but has no receipt")))?;
                Ok(to_value(&Posted { message, seq, state: "saved".to_owned(), receipt, unknown, to }))
            }
            (Ask::Added(member), Asked::Member(id, _)) => self.member_view(id, member),
            (_, Asked::Member(id, Some(member))) => self.member_view(id, member),
            (_, Asked::Card(id, before)) => {
                // A card that is decided and done with is no longer open: what it was, with how it was decided.
                let card = before.map(|before| self.card_view(id, before.card).unwrap_or(*before));
                Ok(card.map_or_else(|| json!({}), |card| to_value(&card)))
            }
            (_, Asked::Channel(id)) => Ok(to_value(&self.channel_view(id))),
            (_, Asked::Post | Asked::Member(_, None)) => Ok(json!({})),
        });
        self.reply(reply, result);
    }

    /// What the log says of where a post went: unknown mentions and recipients.
    fn recorded_route(&self, id: ChannelId, seq: tieline_proto::id::Seq) -> Option<(Vec<String>, Vec<Handle>)> {
        let line = self.reader.entry(tieline_proto::log::LogId::Channel(id), seq).ok()??;
        let Ok(tieline_proto::log::Line::Entry(entry)) = tieline_proto::log::Line::parse(&line) else { return None };
        let tieline_proto::entry::Body::Posted { routed, .. } = entry.body else { return None };
        let members = &self.channels.get(&id)?.home.as_ref()?.state().members;
        let to = routed.to.iter().filter_map(|delivery| members.get(&delivery.member));
        Some((routed.unknown, to.map(|member| member.spec.handle.clone()).collect()))
    }

    pub(super) fn reply(&mut self, reply: ReplyTo, result: Result<Value, ApiError>) {
        match reply {
            // The caller may have gone; what it asked is done all the same.
            ReplyTo::Here(sender) => drop(sender.send(result)),
            ReplyTo::There(node, call) => self.reply_there(node, call, &result),
        }
    }

    /// Whether a caller may ask this of a channel whose home is here, and the member it speaks for.
    fn may(&self, caller: &Caller, id: ChannelId, request: &Request) -> Result<Option<MemberId>, ApiError> {
        // Without its state a channel can still be read, by those who may.
        let home = self.channels.get(&id).and_then(|channel| channel.home.as_ref());
        let by_device = |device: &NodeId| {
            let state = home?.state();
            state.by_device(device).or_else(|| state.by_device(&self.me))
        };
        match caller {
            Caller::Owner => Ok(by_device(&self.me)),
            Caller::Agent { channel, member, .. } => {
                let left =
                    home.is_some_and(|home| home.state().members.get(member).is_none_or(|member| member.removed));
                if *channel == id && !left && is_for_agents(request) {
                    Ok(Some(*member))
                } else {
                    Err(ApiError::new(Code::Refused, "an agent reads and posts in its own channel, and nothing else"))
                }
            }
            Caller::Device(device) => {
                let action = action_of(request);
                if self.membership.org().is_some_and(|org| org.may(device, action)) {
                    Ok(by_device(device))
                } else {
                    let name = self.node_name(device);
                    Err(ApiError::new(Code::Refused, format!("{name} may not do that with its role"))
                        .hint("tieline device list"))
                }
            }
        }
    }

    fn subscribe(&mut self, id: ChannelId, cursor: tieline_proto::id::Seq, events: bool, once: bool, to: FeedTo) {
        let Some(channel) = self.channels.get(&id) else { return };
        let shared = Arc::clone(&channel.shared);
        let reader = self.reader.clone();
        let turns = channel.home.iter().flat_map(|home| &home.state().turns);
        let open = turns.map(|(run, turn)| (*run, turn.attempt)).collect();
        match to {
            FeedTo::Here(out) => {
                tokio::spawn(Feed { shared, reader, cursor, open, events, once, out }.run());
            }
            FeedTo::There(node, call) => {
                let (out, frames) = mpsc::channel(FRAMES_WAITING_MAX);
                let feed = Feed { shared, reader, cursor, open, events, once, out };
                self.feed_there(node, call, feed, frames);
            }
        }
    }

    fn events(&self, id: ChannelId, message: MessageId, from: u64) -> Result<Value, ApiError> {
        let not_found = || ApiError::new(Code::NotFound, format!("#{message} is no turn"));
        let attempt = self.attempt_of(id, message).ok_or_else(not_found)?;
        let journal = crate::store::JournalId::Run { channel: id, message, attempt };
        let cursor = self.reader.journal(journal, from).ok().flatten();
        let chunk = cursor.and_then(|mut cursor| cursor.read(PIECE_LEN).ok().flatten()).unwrap_or_default();
        let lines = tieline_proto::log::line::split(&chunk);
        let events = lines.filter_map(|line| serde_json::from_slice(line).ok()).collect::<Vec<_>>();
        let next = (!events.is_empty()).then_some(from + events.len() as u64);
        Ok(to_value(&view::Events { message, from, events, next }))
    }

    fn attempt_of(&self, id: ChannelId, message: MessageId) -> Option<tieline_proto::id::Attempt> {
        let home = self.channels.get(&id).and_then(|channel| channel.home.as_ref());
        if let Some(turn) = home.and_then(|home| home.state().turns.get(&message)) {
            return Some(turn.attempt);
        }
        match self.reader.end(id, message).ok()??.body {
            tieline_proto::entry::Body::TurnFinished { attempt, .. } => Some(attempt),
            _ => None,
        }
    }

    fn member_spec(&self, caller: &Caller, member: NewMember) -> Result<MemberSpec, ApiError> {
        let NewMember { handle, kind, harness, on, cwd, model, policy } = member;
        let handle = Handle::new(&handle).map_err(invalid)?;
        let node = match (kind, on) {
            (MemberKind::Agent, None) => Some(if let Caller::Device(device) = caller { *device } else { self.me }),
            (MemberKind::Agent, Some(on)) => Some(self.node_named(&on)?),
            _ => None,
        };
        let harness = match (kind, harness) {
            (MemberKind::Agent, None) => {
                return Err(ApiError::new(Code::Invalid, "an agent needs a harness")
                    .hint(format!("tieline member add CHANNEL {handle} --harness scripted")));
            }
            (MemberKind::Agent, Some(name)) => Some(Handle::lexical(&name, "harness name").map_err(invalid)?),
            _ => None,
        };
        if let (Some(node), Some(harness)) = (node, &harness)
            && node == self.me
        {
            self.turns.check_harness(harness)?;
        }
        Ok(MemberSpec { kind, handle, harness, node, cwd, model, policy, devices: Vec::new() })
    }

    fn member_op(&self, id: ChannelId, handle: &str, act: MemberAct) -> Result<(MemberId, Op), ApiError> {
        let handle = handle.strip_prefix('@').unwrap_or(handle);
        let channel = self.channels.get(&id).ok_or_else(|| gone(id))?;
        let home = channel.home.as_ref();
        let home = home.ok_or_else(|| super::commit::read_only(channel.read_only.as_deref()))?;
        let (member, _) = home.state().by_handle(handle).ok_or_else(|| {
            let name = &home.state().draft.name;
            ApiError::new(Code::NotFound, format!("@{handle} is no member of {name}"))
                .hint(format!("tieline member list {name}"))
        })?;
        let op = match act {
            MemberAct::Rename { to } => Op::MemberRename(member, Handle::new(&to).map_err(invalid)?),
            MemberAct::Pause => Op::MemberPause(member),
            MemberAct::Resume => Op::MemberResume(member),
            MemberAct::Interrupt => Op::MemberInterrupt(member),
            MemberAct::Kill => Op::MemberKill(member),
            MemberAct::Revive => Op::MemberRevive(member),
            MemberAct::Remove => Op::MemberRemove(member),
            MemberAct::Configure { model, policy, cwd } => Op::MemberConfigure { member, model, policy, cwd },
        };
        Ok((member, op))
    }

    // ---- requests about a channel whose home is elsewhere ----

    fn forward(
        &mut self,
        caller: Caller,
        id: ChannelId,
        home: NodeId,
        request: Request,
        reply: ReplyTo,
        feed: Option<FeedTo>,
    ) {
        if matches!(caller, Caller::Device(_)) {
            let error = ApiError::new(Code::Refused, "ask the channel's home, not a node on the way");
            return self.reply(reply, Err(error));
        }
        if self.forwarded.len() >= FORWARDED_MAX {
            let error = ApiError::new(Code::Limit, "too many requests wait for other nodes");
            return self.reply(reply, Err(error));
        }
        let agent = match &caller {
            Caller::Agent { channel, member, run } => {
                Some(tieline_proto::link::Agent { channel: *channel, member: *member, run: *run })
            }
            _ => None,
        };
        let mut request = self.with_spec_on_this_node(request);
        let auth = match &mut request {
            Request::Post { text, reply_to, attachments, client, .. } => {
                // What is signed is what counts: it is not sent twice.
                let (text, attachments) = (std::mem::take(text), std::mem::take(attachments));
                let post = Post { text, reply_to: *reply_to, attachments };
                match self.sign_draft(id, agent, client.clone(), post) {
                    Ok(auth) => Some(auth),
                    Err(error) => return self.reply(reply, Err(error)),
                }
            }
            _ => None,
        };
        let shows = matches!(request, Request::ChannelShow { .. });
        let posts_to = auth.is_some().then_some(id);
        let call = self.next_call;
        self.next_call += 1;
        let mut tail = json!({ "request": request });
        if let Some(auth) = auth {
            tail["auth"] = to_value(&auth);
        }
        let tail = tail.to_string().into_bytes();
        let message = tieline_proto::link::Message::Call { call, agent };
        if let Err(error) = self.net.send(home, message, tail) {
            let home = self.node_name(&home);
            let error = ApiError::new(Code::Unreachable, format!("{home} can't be reached: {error}"));
            return self.reply(reply, Err(error.hint("tieline status")));
        }
        let feed = match feed {
            Some(FeedTo::Here(sender)) => Some(self.local_feed(home, call, sender)),
            _ => None,
        };
        let until = Instant::now() + ANSWER_WAIT;
        // The far side answers with what it is to the channel; asked here, it is what this node is.
        let role = shows.then(|| self.role_elsewhere());
        self.forwarded.insert(call, Forwarded { node: home, reply: Some(reply), feed, until, role, posts_to });
    }

    /// "This box" means the asking one, also when the home is another.
    fn with_spec_on_this_node(&self, mut request: Request) -> Request {
        if let Request::MemberAdd { member, .. } = &mut request
            && member.kind == MemberKind::Agent
            && member.on.is_none()
        {
            member.on = Some(self.me.to_string());
        }
        request
    }

    fn sign_draft(
        &mut self,
        channel: ChannelId,
        agent: Option<tieline_proto::link::Agent>,
        client: Option<ClientId>,
        post: Post,
    ) -> Result<Auth, ApiError> {
        let org = self.membership.org().map(|org| org.fingerprint());
        let org = org.ok_or_else(|| ApiError::new(Code::Internal, "this node has no org"))?;
        let client = match client {
            Some(client) => client,
            None => self.fresh_client_id()?,
        };
        let draft = Draft {
            org,
            channel,
            member: agent.map(|agent| agent.member),
            device: self.me,
            client,
            seen: Hash::ZERO,
            run: agent.and_then(|agent| agent.run),
            post,
        };
        let draft = serde_json::to_string(&draft).map_err(|error| ApiError::new(Code::Internal, error.to_string()))?;
        let sig = tieline_proto::crypto::sign::sign(
            tieline_proto::crypto::sign::domain::DRAFT,
            draft.as_bytes(),
            self.keys.signing(),
        );
        Ok(Auth::Device { device: self.me, draft, sig })
    }

    fn fresh_client_id(&mut self) -> Result<ClientId, ApiError> {
        let mut bytes = [0; 16];
        rand_core::Rng::fill_bytes(&mut self.rng, &mut bytes);
        ClientId::new(&tieline_proto::id::OrgId(bytes).to_string()).map_err(invalid)
    }

    // ---- answers ----

    fn channel_list(&self) -> Vec<view::Channel> {
        let mut list = self.channels.keys().filter_map(|id| self.channel_view(*id)).collect::<Vec<_>>();
        let elsewhere = self.membership.org().into_iter().flat_map(|org| org.channels());
        for (id, term) in elsewhere.into_iter().filter(|(id, _)| !self.channels.contains_key(id)) {
            list.push(view::Channel {
                id,
                name: term.name.as_str().to_owned(),
                role: self.role_elsewhere(),
                home: term.home,
                head: None,
                lamport: None,
                archived: false,
                read_only: None,
            });
        }
        list.sort_by(|a, b| (&a.name, a.id).cmp(&(&b.name, b.id)));
        list
    }

    /// What this node is to a channel whose home is another.
    fn role_elsewhere(&self) -> ChannelRole {
        if self.turns.is_resident() { ChannelRole::Resident } else { ChannelRole::Device }
    }

    fn channel_view(&self, id: ChannelId) -> Option<view::Channel> {
        let channel = self.channels.get(&id)?;
        let term = self.membership.org().and_then(|org| org.terms(&id).last());
        let state = channel.home.as_ref().map(Home::state);
        let name = state.map(|state| state.draft.name.as_str()).or_else(|| term.map(|term| term.name.as_str()));
        Some(view::Channel {
            id,
            name: name.unwrap_or("?").to_owned(),
            role: ChannelRole::Home,
            home: self.me,
            head: Some(Head { seq: channel.head.seq, hash: channel.head.hash }),
            lamport: Some(channel.head.lamport),
            archived: state.is_some_and(|state| state.archived),
            read_only: channel.read_only.clone(),
        })
    }

    fn member_view(&self, id: ChannelId, member: MemberId) -> Result<Value, ApiError> {
        let home = self.channels.get(&id).and_then(|channel| channel.home.as_ref()).ok_or_else(|| gone(id))?;
        let state = home.state().members.get(&member).ok_or_else(|| gone(id))?;
        Ok(to_value(&views::member(home, member, state, &self.names(), (self.wall)())))
    }

    fn card_view(&self, id: ChannelId, card: MessageId) -> Option<view::Card> {
        let home = self.channels.get(&id)?.home.as_ref()?;
        views::card(home, card, home.state().cards.get(&card)?)
    }

    fn held_view(&self, id: ChannelId, message: MessageId) -> Option<view::Card> {
        let home = self.channels.get(&id)?.home.as_ref()?;
        let cards = views::cards(home);
        cards.into_iter().find(|card| card.kind.is_hold() && (card.card == message || card.about == message))
    }

    fn status(&self) -> view::Status {
        let names = self.names();
        let wall = (self.wall)();
        let homes = self.channels.values().filter_map(|channel| channel.home.as_ref());
        view::Status {
            node: view::Node {
                id: self.me,
                name: self.config.name.clone(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                peer_id: self.net.peer_id().to_string(),
                api: Some(self.api.clone()),
                addrs: self.addrs.clone(),
            },
            channels: self.channel_list(),
            links: self.links(&names),
            members: homes.flat_map(|home| views::members(home, &names, wall)).collect(),
            notes: self.notes.clone(),
        }
    }

    fn links(&self, names: &views::Names) -> Vec<view::Link> {
        let links = self.net.links().into_iter().map(|link| view::Link {
            node: link.node,
            name: names.get(&link.node).cloned().unwrap_or_else(|| link.node.short()),
            state: match link.state {
                crate::net::LinkState::Up => view::LinkState::Up,
                crate::net::LinkState::Suspect => view::LinkState::Suspect,
                crate::net::LinkState::Down => view::LinkState::Down,
            },
            path: link.path.map(|path| match path {
                crate::net::Path::Direct => view::LinkPath::Direct,
                crate::net::Path::Lan => view::LinkPath::Lan,
                crate::net::Path::Relayed => view::LinkPath::Relayed,
            }),
            last_proof_ms: link.last_proof_ms,
            reason: link.reason.unwrap_or_default(),
        });
        links.collect()
    }

    /// What people call the org's nodes.
    pub(super) fn names(&self) -> views::Names {
        let devices = self.membership.org().into_iter().flat_map(|org| org.devices());
        devices.into_iter().map(|(id, device)| (id, device.name.clone())).collect()
    }

    pub(super) fn node_name(&self, node: &NodeId) -> String {
        let device = self.membership.org().and_then(|org| org.device(node));
        device.map_or_else(|| node.short(), |device| device.name.clone())
    }

    /// The node that a person means: by name, id, or the beginning of its id.
    fn node_named(&self, text: &str) -> Result<NodeId, ApiError> {
        let org = self.membership.org();
        let live = || org.into_iter().flat_map(|org| org.devices()).filter(|(_, device)| device.revoked.is_none());
        let exact = live().find(|(id, device)| device.name == text || id.to_string() == text);
        let mut begin = live().filter(|(id, _)| text.len() >= 4 && id.to_string().starts_with(text));
        let found = exact.or_else(|| begin.next().filter(|_| begin.next().is_none()));
        found.map(|(id, _)| id).ok_or_else(|| {
            ApiError::new(Code::NotFound, format!("no box is called {text:?}")).hint("tieline device list")
        })
    }
}

struct NoHistory;

impl tieline_proto::channel::History for NoHistory {
    fn posted(&self, _: Option<MemberId>, _: &Auth, _: &ClientId) -> Option<(MessageId, tieline_proto::id::Seq)> {
        None
    }

    fn cited(&self, _: MessageId) -> Option<tieline_proto::channel::Cited> {
        None
    }
}

fn channel_of(request: &Request) -> Option<&str> {
    match request {
        Request::ChannelShow { channel }
        | Request::ChannelArchive { channel }
        | Request::MemberAdd { channel, .. }
        | Request::MemberAct { channel, .. }
        | Request::Post { channel, .. }
        | Request::Subscribe { channel, .. }
        | Request::Events { channel, .. }
        | Request::Answer { channel, .. }
        | Request::Hold { channel, .. }
        | Request::BlobPut { channel, .. }
        | Request::BlobGet { channel, .. } => Some(channel),
        Request::Inbox { channel } => channel.as_deref(),
        _ => None,
    }
}

const fn is_for_agents(request: &Request) -> bool {
    matches!(
        request,
        Request::Post { .. }
            | Request::Subscribe { .. }
            | Request::ChannelShow { .. }
            | Request::Events { .. }
            | Request::BlobPut { .. }
            | Request::BlobGet { .. }
    )
}

/// Requests about the node that anybody with a way in may make: they change nothing and name no secret.
const fn is_for_all(request: &Request) -> bool {
    matches!(request, Request::ChannelList {})
}

const fn action_of(request: &Request) -> Action {
    match request {
        Request::Post { .. } | Request::BlobPut { .. } => Action::Post,
        Request::Answer { .. } | Request::Hold { .. } => Action::Answer,
        Request::MemberAct { act: MemberAct::Interrupt | MemberAct::Pause | MemberAct::Resume, .. } => Action::Operate,
        Request::MemberAct { .. } | Request::MemberAdd { .. } => Action::ManageMembers,
        Request::ChannelArchive { .. } => Action::ManageChannels,
        _ => Action::Read,
    }
}

fn to_value<T: Serialize>(value: &T) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}

fn invalid(error: ParseIdError) -> ApiError {
    ApiError::new(Code::Invalid, error.to_string())
}

fn gone(id: ChannelId) -> ApiError {
    ApiError::new(Code::NotFound, format!("channel {} is not here", id.short()))
}

/// A frame as text.
pub(super) fn frame_text(frame: &Frame) -> Arc<str> {
    serde_json::to_string(frame).unwrap_or_default().into()
}
