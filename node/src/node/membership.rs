//! The org as this node knows it: its chain, its secrets, its people, and where its nodes are.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use libp2p::{Multiaddr, PeerId};
use serde_json::Value;
use tieline_proto::api::{ApiError, Code};
use tieline_proto::crypto::keys::DeviceKeys;
use tieline_proto::crypto::link_key::LinkKey;
use tieline_proto::entry::{Body, NewEntry};
use tieline_proto::id::{ChannelId, ChannelName, ClientId, Handle, Hash, NodeId, OrgId, Seq};
use tieline_proto::link::Message;
use tieline_proto::log::{Head, Homes, Line, LogId, Verifier};
use tieline_proto::org::{Enrolment, Org, OrgError};
use tieline_proto::pairing::Approval;
use tieline_proto::view;

use super::book::Book;
use super::making::Making;
use super::{Node, REOPEN_EVERY};
use crate::net::{OrgView, PeerHints};
use crate::store::{Command, Commit, Reader, Reason, SealedBatch};

/// Bytes of the org's chain in one frame.
const LINES_LEN: usize = 256 * 1024;

/// Greetings of one link that may follow each other at once.
const HELLOS_SPARE: u32 = 8;

/// After which one more is spare.
const HELLO_EVERY: Duration = Duration::from_secs(1);

/// The greetings of one link.
#[derive(Debug)]
struct Hellos {
    spare: u32,
    since: Instant,
}

/// The org as this node knows it.
pub struct Membership {
    me: NodeId,
    /// What is in force. At the founder's that is what is durable; elsewhere all that came from there, as a revocation
    /// must not wait for a disk.
    org: Org,
    /// At the founder's, the fold with the entries that are on their way to disk.
    next: Org,
    log: LogId,
    /// Of the durable chain.
    head: Head,
    /// Elsewhere, the last entry that the writer was given.
    kept: Seq,
    /// Elsewhere, where the lines end that came last: what comes next continues them.
    came: Head,
    /// Why nothing can be added, until the log is reopened.
    stopped: Option<String>,
    /// Why nothing can be added, for good.
    broken: Option<String>,
    link_keys: Vec<LinkKey>,
    person: Handle,
    /// Requests that made channels, as long as the node runs.
    created: BTreeMap<ClientId, ChannelId>,
    /// Channels that are being made.
    pub(super) making: BTreeMap<ChannelId, Making>,
    book: Book,
    /// Greetings of the links that are up.
    hellos: BTreeMap<NodeId, Hellos>,
}

impl Membership {
    /// The org whose chain is folded up to `head`; nothing can be added to it when it is `broken`.
    #[must_use]
    pub fn new(
        me: NodeId,
        (org, head, broken): (Org, Head, Option<String>),
        link_keys: Vec<LinkKey>,
        person: Handle,
        data: &Path,
    ) -> Self {
        let log = LogId::Org(org.fingerprint());
        Self {
            me,
            next: org.clone(),
            kept: org.seq(),
            came: head,
            org,
            log,
            head,
            stopped: None,
            broken,
            link_keys,
            person,
            created: BTreeMap::new(),
            making: BTreeMap::new(),
            book: Book::open(data),
            hellos: BTreeMap::new(),
        }
    }

    /// The fold of the chain that is in force.
    #[expect(clippy::unnecessary_wraps, reason = "callers chain on it")]
    pub const fn org(&self) -> Option<&Org> {
        Some(&self.org)
    }

    /// The org's fingerprint.
    pub const fn id(&self) -> OrgId {
        self.org.fingerprint()
    }

    /// The chain's log.
    pub const fn log(&self) -> LogId {
        self.log
    }

    /// Head of the durable chain: what entries are judged by.
    pub const fn judged_by(&self) -> Hash {
        self.head.hash
    }

    /// Whether this node writes the chain.
    pub fn is_founder(&self) -> bool {
        self.org.home() == Some(self.me)
    }

    /// The handle of the person whose box this is.
    pub fn person(&self) -> Handle {
        self.person.clone()
    }

    /// The newest link key.
    pub fn link_key(&self) -> Option<&LinkKey> {
        self.link_keys.first()
    }

    /// The channel that a request made.
    pub fn created_by(&self, client: &ClientId) -> Option<ChannelId> {
        self.created.get(client).copied()
    }

    /// Notes which request made a channel.
    pub fn created(&mut self, client: ClientId, id: ChannelId) {
        self.created.insert(client, id);
    }

    /// The chain's entry that makes this node a new channel's home.
    pub fn homed(
        &mut self,
        channel: ChannelId,
        name: &ChannelName,
        home: NodeId,
        ts: u64,
    ) -> Result<Vec<NewEntry>, OrgError> {
        let body = Body::ChannelHomed {
            channel,
            name: name.clone(),
            home,
            epoch: tieline_proto::id::Epoch(1),
            start: Seq(1),
            prev: Hash::ZERO,
        };
        Ok(vec![self.append(body, ts)?])
    }

    /// The next entry, and those behind it are built on it. It is in force when it is durable.
    pub fn append(&mut self, body: Body, ts: u64) -> Result<NewEntry, OrgError> {
        let entry = self.next.entry(body, ts);
        self.next.apply(&entry.clone().at(Hash::ZERO))?;
        Ok(entry)
    }

    /// Decides an enrolment. Gives the last entry that must be durable before the device hears of it, when nothing is
    /// to be appended.
    pub fn enrol(&self, approval: Approval, keys: &DeviceKeys) -> Result<(Enrolment, Seq), OrgError> {
        let Approval { binding, held, name, role } = approval;
        Ok((self.next.enrol(binding, held, &name, role, keys.signing())?, self.next.seq()))
    }

    /// Refuses what would add to a chain that takes nothing.
    ///
    /// # Errors
    /// Why not.
    pub fn check_writable(&self) -> Result<(), ApiError> {
        if let Some(broken) = &self.broken {
            let error = ApiError::new(Code::ReadOnly, format!("{broken}: no device or channel can be added"));
            return Err(error.hint("restore org/log from a backup, and: tieline status"));
        }
        self.stopped.as_deref().map_or(Ok(()), |why| Err(not_written(why)))
    }

    /// At a box that joined, the first entry that it lacks. What the disk does not take now is asked for once more when it
    /// does.
    pub fn lacks(&self) -> Seq {
        if self.is_stopped() { self.org.seq() } else { self.kept }.next()
    }

    /// Whether the chain's log has to be reopened.
    pub const fn is_stopped(&self) -> bool {
        self.stopped.is_some()
    }

    /// What the network needs to know.
    pub fn view(&self) -> OrgView {
        let provides = self.org.channels().any(|(_, term)| term.home == self.me) || self.is_founder();
        OrgView { org: self.org.clone(), link_keys: self.link_keys.clone(), provides }
    }

    /// Whom to keep linked, and where they may be.
    pub fn wants(&self) -> BTreeMap<NodeId, PeerHints> {
        let live = self.org.devices().filter(|(id, device)| *id != self.me && device.revoked.is_none());
        live.map(|(id, _)| (id, self.book.hints(&id))).collect()
    }

    /// Waits until what is to be remembered is on disk.
    pub async fn close(&mut self) {
        self.book.close().await;
    }

    /// Whether a greeting is acted on: each one is told to all channels.
    fn may_greet(&mut self, node: NodeId) -> bool {
        let now = Instant::now();
        let hellos = self.hellos.entry(node).or_insert(Hellos { spare: HELLOS_SPARE, since: now });
        while hellos.spare < HELLOS_SPARE && now.duration_since(hellos.since) >= HELLO_EVERY {
            hellos.spare += 1;
            hellos.since += HELLO_EVERY;
        }
        if hellos.spare == HELLOS_SPARE {
            hellos.since = now;
        }
        let may = hellos.spare > 0;
        hellos.spare = hellos.spare.saturating_sub(1);
        may
    }
}

/// What is said when the chain's log could not be written.
pub(super) fn not_written(why: &str) -> ApiError {
    ApiError::new(Code::ReadOnly, format!("the org's chain takes no entries now: {why}"))
        .hint("free space or mend the disk; writing resumes by itself, and: tieline status")
}

/// Folds what is durable of a chain.
fn fold(reader: &Reader, log: LogId) -> Result<(Org, Head), String> {
    let head = reader.head(log).ok_or_else(|| "the log is not open".to_owned())?;
    let mut org: Option<Org> = None;
    let mut cursor = reader.lines(log, Seq(1));
    while let Some(chunk) = cursor.read(LINES_LEN).map_err(|error| error.to_string())? {
        for line in chunk.lines() {
            match (&mut org, Line::parse(line).map_err(|error| error.to_string())?) {
                (_, Line::Seal(_)) => {}
                (None, Line::Entry(_)) => org = Some(Org::founded(line).map_err(|error| error.to_string())?),
                // A batch that was synced meanwhile is reported by itself.
                (Some(_), Line::Entry(entry)) if entry.seq > head.seq => {}
                (Some(org), Line::Entry(entry)) => org.apply(&entry).map_err(|error| error.to_string())?,
            }
        }
    }
    org.map(|org| (org, head)).ok_or_else(|| "the log is empty".to_owned())
}

/// Cuts lines into pieces of about `len` bytes that end in a seal, each with its first entry: nobody keeps a piece that
/// does not. What has no seal yet is left out.
fn pieces(from: Seq, lines: &[u8], len: usize) -> Vec<(Seq, Vec<u8>)> {
    let (mut pieces, mut open, mut sealed) = (Vec::new(), Vec::new(), 0);
    let (mut first, mut next) = (from, from);
    for line in tieline_proto::log::line::split(lines) {
        open.extend_from_slice(line);
        open.push(b'\n');
        match Line::parse(line) {
            Ok(Line::Entry(entry)) => next = entry.seq.next(),
            Ok(Line::Seal(_)) => {
                sealed = open.len();
                if sealed >= len {
                    pieces.push((first, std::mem::take(&mut open)));
                    (first, sealed) = (next, 0);
                }
            }
            // Whoever gets it says what is wrong with it.
            Err(_) => {}
        }
    }
    open.truncate(sealed);
    if !open.is_empty() {
        pieces.push((first, open));
    }
    pieces
}

/// The org with the lines that follow `head`. They are in force at once, also where the disk takes nothing, so chain and
/// seals are checked here: whoever is revoked or let in by them can be shown who signed it.
fn continued(org: &Org, head: Head, home: NodeId, lines: &[u8]) -> Result<(Org, Head), OrgError> {
    let mut org = org.clone();
    let mut verifier = Verifier::resume(LogId::Org(org.fingerprint()), Homes::One(home), head);
    for line in tieline_proto::log::line::split(lines) {
        if let Line::Entry(entry) = verifier.feed(line)?
            && entry.seq > org.seq()
        {
            org.apply(&entry)?;
        }
    }
    let end = verifier.head();
    verifier.finish().bad.map_or(Ok((org, end)), |bad| Err(bad.into()))
}

impl Node {
    /// The chain grew: everybody who judges by it learns it.
    pub(super) fn org_changed(&mut self) {
        self.org_view.send_replace(std::sync::Arc::new(self.membership.view()));
        self.net.want(self.membership.wants());
    }

    /// A link came up.
    pub(super) fn met(&mut self, node: NodeId, peer: PeerId, addr: Option<&Multiaddr>) {
        self.membership.hellos.remove(&node);
        if self.membership.book.met(node, peer, addr) {
            self.net.want(self.membership.wants());
        }
    }

    /// A node says where it listens. False when it has greeted so often that this is passed over; the first greeting on a
    /// link never is, for without it the link would be of no use.
    pub(super) fn greeted(&mut self, node: NodeId, addrs: &[String]) -> bool {
        if !self.membership.may_greet(node) && self.peers.contains_key(&node) {
            tracing::debug!(node = %node.short(), "a greeting too many");
            return false;
        }
        if self.membership.book.learn(node, addrs) {
            self.net.want(self.membership.wants());
        }
        true
    }

    /// Entries of the chain are durable.
    pub(super) fn org_durable(&mut self, batch: &SealedBatch) {
        let head = batch.head();
        if head.seq <= self.membership.head.seq {
            return;
        }
        self.membership.head = head;
        for (_, line) in batch.lines() {
            let applied = Line::parse(line).map_err(OrgError::from).and_then(|line| match line {
                Line::Entry(entry) if entry.seq > self.membership.org.seq() => self.membership.org.apply(&entry),
                _ => Ok(()),
            });
            if let Err(error) = applied {
                tracing::error!(%error, "an entry of the org's chain that was made here cannot stand in it");
            }
        }
        self.org_changed();
        if self.membership.is_founder() {
            let from = batch.first();
            for node in self.peers.keys().copied().collect::<Vec<_>>() {
                self.send(node, Message::OrgLines { from }, batch.bytes().to_vec());
            }
        }
        self.channels_homed();
        self.pairing_durable();
        self.retry_parked(tokio::time::Instant::now());
    }

    /// Lines of the chain's home are durable here.
    pub(super) fn org_kept(&mut self) {
        if let Some(head) = self.reader.head(self.membership.log) {
            self.membership.head = head;
        }
    }

    /// The chain could not be written. Nothing of what was on its way holds: who waits for it is told so, and what comes
    /// next is built on what is durable.
    pub(super) fn org_failed(&mut self, reason: &Reason) {
        let words = reason.to_string();
        self.membership.stopped.get_or_insert_with(|| words.clone());
        if self.membership.is_founder() {
            self.membership.next = self.membership.org.clone();
            self.channels_not_homed(&words);
            self.pairing_failed();
        } else {
            self.membership.kept = self.membership.head.seq;
            // What the disk did not take is in force all the same; what was wrong with the lines themselves is not.
            if let (Reason::Refused(_), Ok((org, head))) = (reason, fold(&self.reader, self.membership.log)) {
                self.membership.org = org;
                self.membership.came = head;
            }
        }
        self.org_changed();
    }

    /// The chain takes entries again. What was on its way may be in it by now, or not: it is folded anew.
    pub(super) fn org_reopened(&mut self) {
        let (org, head) = match fold(&self.reader, self.membership.log) {
            Ok(folded) => folded,
            Err(error) => {
                tracing::warn!(error, "the org's chain cannot be read back");
                self.reopen_at.get_or_insert_with(|| tokio::time::Instant::now() + REOPEN_EVERY);
                return;
            }
        };
        tracing::info!(entries = %org.seq(), "the org's chain takes entries again");
        self.membership.stopped = None;
        self.membership.head = head;
        self.membership.kept = org.seq();
        self.membership.came = head;
        let known = self.membership.org.seq();
        if org.seq() > known || self.membership.is_founder() {
            self.membership.org = org.clone();
        }
        self.membership.next = org;
        self.org_changed();
        if self.membership.is_founder() {
            for node in self.peers.keys().copied().collect::<Vec<_>>() {
                self.org_asked(node, known.next());
            }
            self.find_homed();
        } else if self.membership.org.seq() > self.membership.kept
            && let Some(home) = self.membership.org.home().filter(|home| self.peers.contains_key(home))
        {
            self.send(home, Message::OrgGet { from: self.membership.lacks() }, Vec::new());
        }
        self.channels_homed();
        self.pairing_durable();
        self.retry_parked(tokio::time::Instant::now());
    }

    /// Another node asks for what it lacks of the chain.
    pub(super) fn org_asked(&mut self, node: NodeId, from: Seq) {
        if self.membership.org.live(&node).is_none() {
            return;
        }
        let mut cursor = self.reader.lines(self.membership.log, from);
        let mut lines = Vec::new();
        while let Ok(Some(chunk)) = cursor.read(LINES_LEN) {
            lines.extend_from_slice(&chunk.bytes);
        }
        for (from, bytes) in pieces(from, &lines, LINES_LEN) {
            self.send(node, Message::OrgLines { from }, bytes);
        }
    }

    /// Lines of the chain from its home: checked like any other, then kept.
    pub(super) fn org_lines(&mut self, node: NodeId, from: Seq, lines: &[u8]) {
        if self.membership.org.home() != Some(node) || self.membership.is_founder() {
            return;
        }
        let stopped = self.membership.is_stopped();
        let next = self.membership.lacks();
        if from > next {
            return self.send(node, Message::OrgGet { from: next }, Vec::new());
        }
        if from < next {
            return;
        }
        let (org, came) = match continued(&self.membership.org, self.membership.came, node, lines) {
            Ok(continued) => continued,
            Err(error) => {
                tracing::warn!(%error, "the org's chain from its home is not sound; kept as it was");
                return;
            }
        };
        self.membership.org = org;
        self.membership.came = came;
        if !stopped {
            self.membership.kept = came.seq;
            let token = self.next_token;
            self.next_token += 1;
            self.tokens.insert(token, super::Owner::Org);
            // The writer checks chain and seals before it keeps them.
            let lines = vec![(self.membership.log, lines.to_vec())];
            self.submit_command(Command::Commit(Commit { token, lines, ..Commit::default() }));
        }
        self.org_changed();
        self.retry_parked(tokio::time::Instant::now());
    }

    pub(super) fn org_show(&self) -> Result<Value, ApiError> {
        let org = &self.membership.org;
        let device =
            org.device(&self.me).ok_or_else(|| ApiError::new(Code::Internal, "this node is not in its org"))?;
        let shown = view::Org { fingerprint: org.fingerprint(), name: org.name().to_owned(), role: device.role };
        serde_json::to_value(&shown).map_err(|error| ApiError::new(Code::Internal, error.to_string()))
    }

    pub(super) fn device_list(&self) -> Vec<view::Device> {
        let links = self.net.links();
        let live = self.membership.org.devices().filter(|(_, device)| device.revoked.is_none());
        live.map(|(id, device)| {
            let link = links.iter().find(|link| link.node == id);
            let person = (id == self.me).then(|| self.membership.person().as_str().to_owned());
            view::Device {
                id,
                name: device.name.clone(),
                role: device.role,
                member: person,
                last_seen_ms: if id == self.me { Some(0) } else { link.and_then(|link| link.last_proof_ms) },
            }
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha20Rng;
    use rand_core::SeedableRng;
    use tieline_proto::crypto::keys::RootKey;
    use tieline_proto::id::Epoch;
    use tieline_proto::log::LogBuilder;

    use std::str::FromStr as _;

    use super::*;

    #[test]
    fn only_sealed_lines_that_continue_the_chain_are_in_force() {
        let (keys, whole, lines) = chain(2);
        let (log, home) = (LogId::Org(whole.fingerprint()), keys.device());
        let parts = pieces(Seq(1), &lines, 1);
        let [(_, founding), (_, next), (_, last)] = &parts[..] else { panic!("three batches") };
        let org = Org::read(founding).expect("sound");
        let mut verifier = Verifier::new(log, Homes::One(home));
        for line in tieline_proto::log::line::split(founding) {
            verifier.feed(line).expect("sound");
        }
        let head = verifier.head();
        let (org_next, head_next) = continued(&org, head, home, next).expect("sound");
        assert_eq!((org_next.seq(), head_next.seq), (Seq(3), Seq(3)));
        assert_eq!(continued(&org_next, head_next, home, last).expect("sound").0, whole);

        assert!(continued(&org, head, home, last).is_err(), "a batch is missing");
        let entry = &next[..=next.iter().position(|byte| *byte == b'\n').expect("a line")];
        assert!(continued(&org, head, home, entry).is_err(), "no seal");
        let other = DeviceKeys::generate(&mut ChaCha20Rng::seed_from_u64(2));
        let mut forged = Vec::new();
        let mut builder = LogBuilder::new(log, head);
        builder.append(org.entry(Body::Unknown, 1), &mut forged).expect("appended");
        builder.seal(other.signing(), &mut forged).expect("sealed");
        assert!(continued(&org, head, home, &forged).is_err(), "another's seal");
    }

    /// A founder's chain with this many channels, each sealed for itself.
    fn chain(channels: u64) -> (DeviceKeys, Org, Vec<u8>) {
        let mut rng = ChaCha20Rng::seed_from_u64(1);
        let (keys, root) = (DeviceKeys::generate(&mut rng), RootKey::generate(&mut rng));
        let founding = Org::found("home", "home", &root, &keys, 1, &mut rng).expect("founded");
        let mut org = founding.org;
        let mut builder = LogBuilder::new(LogId::Org(org.fingerprint()), Head::default());
        let mut lines = Vec::new();
        for entry in founding.entries {
            builder.append(entry, &mut lines).expect("appended");
        }
        builder.seal(keys.signing(), &mut lines).expect("sealed");
        for n in 0..channels {
            let name = ChannelName::new(&format!("c{n}")).expect("a name");
            let channel = ChannelId::from_str(&Hash::of(&n.to_le_bytes()).to_string()).expect("an id");
            let (home, epoch) = (keys.device(), Epoch(1));
            let entry =
                org.entry(Body::ChannelHomed { channel, name, home, epoch, start: Seq(1), prev: Hash::ZERO }, 1);
            org.apply(&entry.clone().at(Hash::ZERO)).expect("applied");
            builder.append(entry, &mut lines).expect("appended");
            builder.seal(keys.signing(), &mut lines).expect("sealed");
        }
        (keys, org, lines)
    }

    #[test]
    fn a_long_chain_is_sent_in_pieces_that_can_be_kept() {
        let (_, _, lines) = chain(20);
        let all = pieces(Seq(1), &lines, 4096);
        assert!(all.len() > 3);
        let mut next = Seq(1);
        for (from, piece) in &all {
            assert_eq!(*from, next);
            let last = tieline_proto::log::line::split(piece).last().expect("lines");
            let Ok(Line::Seal(seal)) = Line::parse(last) else { panic!("a piece ends in a seal") };
            next = seal.seal.to.next();
        }
        assert_eq!(all.into_iter().flat_map(|(_, piece)| piece).collect::<Vec<_>>(), lines);
        let torn = &lines[..lines.len() - 2];
        assert!(pieces(Seq(1), torn, 1 << 20)[0].1.len() < torn.len(), "what is not sealed is not sent");
    }
}
