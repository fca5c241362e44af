//! Keys and values of the index, and what of an entry goes into it.
//!
//! A key is a tag, the first 16 bytes of the log's name (an index may afford a chance of 2⁻⁶⁴: every hit is checked
//! against the log), and what is looked up. Integers are big-endian.

use serde::{Deserialize, Serialize};
use tieline_proto::entry::{Auth, Body, NewEntry};
use tieline_proto::id::{Attempt, ChannelId, ClientId, DeviceId, Hash, MemberId, MessageId, Seq};
use tieline_proto::log::LogId;

use super::Placed;
use crate::open::{Checkpoint, Resume};

/// An author's own id for a request, as a key: equal ids of different authors differ.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ClientKey([u8; 16]);

impl ClientKey {
    /// Of a device's signed draft.
    #[must_use]
    pub fn device(device: DeviceId, client: &ClientId) -> Self {
        Self::of(b'd', device.as_bytes(), client)
    }

    /// Of a member that came by the home's own door; `None` is the home itself.
    #[must_use]
    pub fn member(member: Option<MemberId>, client: &ClientId) -> Self {
        Self::of(b'm', &member.map_or(0, |member| member.0).to_be_bytes(), client)
    }

    /// Of whoever an entry is by.
    #[must_use]
    pub fn author(auth: &Auth, by: Option<MemberId>, client: &ClientId) -> Self {
        match auth {
            Auth::Device { device, .. } => Self::device(*device, client),
            Auth::Home | Auth::Resident { .. } => Self::member(by, client),
        }
    }

    fn of(kind: u8, author: &[u8], client: &ClientId) -> Self {
        // The author's length is fixed by the kind, so no two pairs are one text.
        let hash = Hash::of(&[&[kind], author, client.as_str().as_bytes()].concat());
        let mut key = [0; 16];
        key.iter_mut().zip(hash.as_bytes()).for_each(|(to, from)| *to = *from);
        Self(key)
    }
}

/// Something of an entry that can be looked up.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Item {
    /// The entry gave a message its number.
    First(MessageId, Seq),
    /// The entry ended a run.
    End(MessageId, Seq),
    /// The entry answers an author's own id.
    Client(ClientKey, Placed),
}

impl Item {
    pub(super) fn change(&self, log: LogId) -> (Vec<u8>, Vec<u8>) {
        let channel = log.sealed_as();
        match self {
            Self::First(message, seq) => (message_key(channel, *message, false), seq.0.to_be_bytes().to_vec()),
            Self::End(message, seq) => (message_key(channel, *message, true), seq.0.to_be_bytes().to_vec()),
            Self::Client(key, placed) => {
                let message = placed.message.map_or(0, |message| message.0);
                (client_key(channel, key), [message.to_be_bytes(), placed.seq.0.to_be_bytes()].concat())
            }
        }
    }
}

/// What of an entry goes into the index.
pub fn items(seq: Seq, by: Option<MemberId>, auth: &Auth, body: &Body, out: &mut Vec<Item>) {
    let mut client = |client: &Option<ClientId>, message| {
        if let Some(client) = client {
            out.push(Item::Client(ClientKey::author(auth, by, client), Placed { message, seq }));
        }
    };
    match body {
        Body::Posted { message, client: id, .. } => {
            client(id, Some(*message));
            out.push(Item::First(*message, seq));
        }
        Body::MemberAdded { client: id, .. } => client(id, None),
        Body::TurnStarted { message, attempt: Attempt(1), .. } | Body::CardRaised { message, .. } => {
            out.push(Item::First(*message, seq));
        }
        Body::TurnFinished { message, .. } => out.push(Item::End(*message, seq)),
        Body::TurnHeld { card, .. } | Body::DeliveryHeld { card, .. } => out.push(Item::First(*card, seq)),
        _ => {}
    }
}

/// [`items`] of an entry that is about to be written.
pub(crate) fn new_items(entry: &NewEntry, out: &mut Vec<Item>) {
    items(entry.seq, entry.by, &entry.auth, &entry.body, out);
}

fn key(tag: u8, log: ChannelId, rest: &[&[u8]]) -> Vec<u8> {
    let (name, _) = log.as_bytes().split_at(16);
    let mut key = vec![tag];
    key.extend_from_slice(name);
    rest.iter().for_each(|part| key.extend_from_slice(part));
    key
}

pub(super) fn message_key(channel: ChannelId, message: MessageId, end: bool) -> Vec<u8> {
    key(b'm', channel, &[&message.0.to_be_bytes(), &[u8::from(end)]])
}

pub(super) fn client_key(channel: ChannelId, client: &ClientKey) -> Vec<u8> {
    key(b'c', channel, &[&client.0])
}

pub(super) fn reach_key(log: LogId) -> Vec<u8> {
    key(b'r', log.sealed_as(), &[])
}

pub(super) fn snapshot_key(log: LogId) -> Vec<u8> {
    key(b's', log.sealed_as(), &[])
}

pub(super) fn checked_key(log: LogId) -> Vec<u8> {
    key(b'v', log.sealed_as(), &[])
}

pub(super) fn reach(log: LogId, at: &Checkpoint) -> (Vec<u8>, Vec<u8>) {
    (reach_key(log), serde_json::to_vec(at).unwrap_or_default())
}

/// What stands before a fold.
#[derive(Deserialize, Serialize)]
struct SnapshotHead {
    from: Resume,
    /// Hash of the fold: the index may have kept it wrong.
    fold: Hash,
}

/// The value is the head's JSON, an LF and the fold.
pub(super) fn snapshot(log: LogId, from: &Resume, fold: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let head = SnapshotHead { from: from.clone(), fold: Hash::of(fold) };
    let head = serde_json::to_vec(&head).unwrap_or_default();
    (snapshot_key(log), [head.as_slice(), b"\n", fold].concat())
}

pub(super) fn read_reach(value: &[u8]) -> Option<Checkpoint> {
    serde_json::from_slice(value).ok()
}

pub(super) fn read_snapshot(value: &[u8]) -> Option<(Resume, Vec<u8>)> {
    let end = value.iter().position(|byte| *byte == b'\n')?;
    let (head, fold) = value.split_at(end);
    let (head, fold): (SnapshotHead, _) = (serde_json::from_slice(head).ok()?, fold.get(1..)?);
    (Hash::of(fold) == head.fold).then(|| (head.from, fold.to_vec()))
}

pub(super) fn read_seq(value: &[u8]) -> Option<Seq> {
    Some(Seq(u64::from_be_bytes(value.try_into().ok()?)))
}

pub(super) fn read_placed(value: &[u8]) -> Option<Placed> {
    let (message, seq) = value.split_at_checked(8)?;
    let message = u64::from_be_bytes(message.try_into().ok()?);
    Some(Placed { message: (message > 0).then_some(MessageId(message)), seq: read_seq(seq)? })
}
