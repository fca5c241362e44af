//! The store on a disk that fails.

mod crash;
mod failures;
mod logs;
mod snapshots;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ed25519_dalek::SigningKey;
use tieline_proto::crypto::sign::device_id;
use tieline_proto::entry::{Auth, Body, ChannelDraft, Entry, NewEntry, Post, Routed};
use tieline_proto::id::{
    Attempt, ChannelId, ChannelName, ClientId, DeviceId, Epoch, Hash, Lamport, MemberId, MessageId, OrgId, Seq,
};
use tieline_proto::log::{Homes, LogId, channel_id};

use super::commit::{Commit, JournalAppend, JournalId, Report};
use super::disk::Disk;
use super::fault::FaultDisk;
use super::index::Index;
use super::layout::Layout;
use super::open::{Keep, OpenLog, OpenedLog};
use super::writer::{Command, Core};

pub(super) fn key() -> SigningKey {
    SigningKey::from_bytes(&[5; 32])
}

pub(super) fn root() -> PathBuf {
    PathBuf::from("/data")
}

pub(super) fn layout() -> Layout {
    Layout::new(&root())
}

fn draft(name: &str) -> String {
    let (org, home) = (OrgId([1; 16]), DeviceId([2; 32]));
    let draft = ChannelDraft { org, home, name: ChannelName::new(name).unwrap(), nonce: Hash::ZERO };
    serde_json::to_string(&draft).unwrap()
}

pub(super) fn channel(name: &str) -> ChannelId {
    channel_id(&draft(name))
}

pub(super) fn log(name: &str) -> LogId {
    LogId::Channel(channel(name))
}

/// Entry `seq` of a channel: its creation, then posts.
pub(super) fn entry(name: &str, seq: u64, text: &str) -> NewEntry {
    let body = if seq == 1 {
        Body::ChannelCreated { draft: draft(name) }
    } else {
        let client = Some(ClientId::new(&format!("c{seq}")).unwrap());
        let post = Post { text: text.to_owned(), ..Post::default() };
        Body::Posted { message: MessageId(seq), client, run: None, post, routed: Routed::default() }
    };
    NewEntry {
        seq: Seq(seq),
        epoch: Epoch(1),
        lamport: Lamport(seq),
        org: Hash::ZERO,
        ts: 0,
        by: (seq > 1).then_some(MemberId(1)),
        auth: Auth::Home,
        body,
    }
}

/// A commit of entries `seqs` of a channel.
pub(super) fn commit(name: &str, token: u64, seqs: impl IntoIterator<Item = u64>) -> Commit {
    let entries = seqs.into_iter().map(|seq| entry(name, seq, "hello")).collect();
    Commit { token, logs: vec![(log(name), entries)], ..Commit::default() }
}

pub(super) fn run(message: u64) -> JournalId {
    JournalId::Run { channel: channel("lobby"), message: MessageId(message), attempt: Attempt(1) }
}

pub(super) fn append(id: JournalId, at: u64, bytes: &str, sync: bool) -> JournalAppend {
    JournalAppend { id, at, bytes: bytes.as_bytes().to_vec(), sync }
}

pub(super) fn disk() -> FaultDisk {
    FaultDisk::new(&root())
}

pub(super) fn core(disk: &FaultDisk) -> Core {
    Core::new(Arc::new(disk.clone()), layout(), key(), Index::memory())
}

/// Submits and does everything; gives the reports.
pub(super) fn all(core: &mut Core, commands: impl IntoIterator<Item = Command>) -> Vec<Report> {
    commands.into_iter().for_each(|command| core.submit(command));
    let mut reports = Vec::new();
    while core.step(&mut |report| reports.push(report)) {}
    reports
}

pub(super) fn commits(core: &mut Core, commits: impl IntoIterator<Item = Commit>) -> Vec<Report> {
    all(core, commits.into_iter().map(Command::Commit))
}

pub(super) fn durable(reports: &[Report]) -> Vec<u64> {
    let token = |report: &Report| if let Report::Durable { token, .. } = report { Some(*token) } else { None };
    reports.iter().filter_map(token).collect()
}

pub(super) fn homes() -> Homes {
    Homes::One(device_id(&key()))
}

/// Opens a log from its beginning; gives its entries too.
pub(super) fn open(disk: &dyn Disk, name: &str) -> (OpenedLog, Vec<Entry>) {
    open_known(disk, name, None)
}

pub(super) fn open_known(disk: &dyn Disk, name: &str, known: Option<u64>) -> (OpenedLog, Vec<Entry>) {
    let mut entries = Vec::new();
    let open = OpenLog {
        disk,
        layout: &layout(),
        log: log(name),
        keep: Keep::Home,
        homes: homes(),
        from: None,
        known: known.map(Seq),
    };
    let opened = open.open(&mut |entry, _| entries.push(entry)).unwrap();
    (opened, entries)
}

/// Bytes of a file as the program sees them.
pub(super) fn bytes(disk: &dyn Disk, path: &Path) -> Vec<u8> {
    super::disk::read_all(disk, path, u64::MAX).unwrap()
}
