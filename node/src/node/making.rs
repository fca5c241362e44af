//! Channels that are being made: first their own log, then the org's chain, which names no channel that has no entry.

use tieline_proto::api::{ApiError, Code};
use tieline_proto::channel::{Ask, Ticket};
use tieline_proto::id::{ChannelId, ChannelName, Seq};
use tieline_proto::log::LogId;

use super::Node;
use super::channel::Channel;
use super::membership::not_written;
use crate::store::{Command, Target};

/// A channel that is not in the chain yet.
#[derive(Debug)]
pub(super) struct Making {
    name: ChannelName,
    /// Its first entries are durable, and the chain's entry is on its way.
    is_logged: bool,
    /// Who waits for it.
    tickets: Vec<Ticket>,
}

impl Node {
    /// The channel of that name that is being made.
    pub(super) fn making(&self, name: &ChannelName) -> Option<ChannelId> {
        self.membership.making.iter().find(|(_, making)| making.name == *name).map(|(id, _)| *id)
    }

    /// A channel's first entries are on their way.
    pub(super) fn make(&mut self, id: ChannelId, name: ChannelName) {
        self.membership.making.insert(id, Making { name, is_logged: false, tickets: Vec::new() });
    }

    /// Answers a request when the channel is made.
    pub(super) fn await_made(&mut self, id: ChannelId, ticket: Ticket) {
        match self.membership.making.get_mut(&id) {
            Some(making) => making.tickets.push(ticket),
            None => self.answer(ticket, Ok(Ask::Done(Seq(1))), None),
        }
    }

    /// Something of a channel is durable. When it is the first, the chain may name it.
    pub(super) fn channel_logged(&mut self, id: ChannelId) {
        let Some(making) = self.membership.making.get_mut(&id).filter(|making| !making.is_logged) else { return };
        making.is_logged = true;
        let name = making.name.clone();
        let wall = self.now().wall;
        let entries = self.membership.check_writable().and_then(|()| {
            let homed = self.membership.homed(id, &name, self.me, wall);
            homed.map_err(|error| ApiError::new(Code::Internal, error.to_string()))
        });
        match entries {
            Ok(entries) => self.submit_org(entries),
            Err(error) => self.unmake(id, &error),
        }
    }

    /// The chain is durable a bit further.
    pub(super) fn channels_homed(&mut self) {
        let org = self.membership.org();
        let homed = |id: &ChannelId| org.is_some_and(|org| !org.terms(id).is_empty());
        let made: Vec<_> = self.membership.making.keys().filter(|id| homed(id)).copied().collect();
        for id in made {
            for ticket in self.membership.making.remove(&id).into_iter().flat_map(|making| making.tickets) {
                self.answer(ticket, Ok(Ask::Done(Seq(1))), None);
            }
        }
    }

    /// The chain could not be written.
    pub(super) fn channels_not_homed(&mut self, words: &str) {
        let waiting = self.membership.making.iter().filter(|(_, making)| making.is_logged);
        for id in waiting.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.unmake(id, &not_written(words));
        }
    }

    /// A channel could not be written. False when it is one that has entries on disk.
    pub(super) fn channel_not_logged(&mut self, id: ChannelId, error: &ApiError) -> bool {
        let is_new = self.membership.making.get(&id).is_some_and(|making| !making.is_logged);
        if is_new {
            self.unmake(id, error);
        }
        is_new
    }

    /// Forgets a channel that could not be made.
    fn unmake(&mut self, id: ChannelId, error: &ApiError) {
        let Some(making) = self.membership.making.remove(&id) else { return };
        tracing::warn!(channel = %making.name, %error, "the channel could not be made");
        if let Some(channel) = self.channels.remove(&id) {
            for pending in channel.pending {
                self.tokens.remove(&pending.token);
            }
        }
        for ticket in making.tickets {
            self.answer(ticket, Err(error.clone()), None);
        }
    }

    /// Takes up channels whose entry came to be in the chain although it was said to have failed.
    pub(super) fn find_homed(&mut self) {
        let org = self.membership.org();
        let here = org.into_iter().flat_map(|org| org.channels()).filter(|(_, term)| term.home == self.me);
        let missing = here.map(|(id, _)| id).filter(|id| !self.channels.contains_key(id));
        for id in missing.collect::<Vec<_>>() {
            let head = self.reader.head(LogId::Channel(id)).unwrap_or_default();
            self.channels.insert(id, Channel::broken(id, head, "it is being read".to_owned()));
            self.submit_command(Command::Reopen(Target::Log(LogId::Channel(id))));
        }
    }
}
