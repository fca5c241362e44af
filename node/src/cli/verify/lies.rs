//! A home that lies: it writes what it likes and seals it properly, with its own key. Each lie is found at its entry.

use ed25519_dalek::SigningKey;
use rand_chacha::ChaCha8Rng;
use rand_core::SeedableRng as _;
use tieline_proto::crypto::cert::Binding;
use tieline_proto::crypto::keys::{DeviceKeys, RootKey};
use tieline_proto::crypto::sign::{self, AcceptedContent, FinishedContent, Task, domain};
use tieline_proto::entry::{
    Auth, Body, ChannelConfig, ChannelDraft, Delivery, Draft, JournalMark, MemberKind, MemberSpec, NewEntry, Post,
    Role, Routed, Why,
};
use tieline_proto::event::Status;
use tieline_proto::id::{
    Attempt, ChannelId, ChannelName, ClientId, DeviceId, Epoch, Handle, Hash, Incarnation, Lamport, MemberId,
    MessageId, NodeId, OrgId, Seq,
};
use tieline_proto::link::AttemptId;
use tieline_proto::log::{self, Head, LogBuilder, LogId, line};
use tieline_proto::org::Org;

use super::audit::{Audit, Bad};

const ANA: MemberId = MemberId(2);
const BOT: MemberId = MemberId(3);
const EVE: MemberId = MemberId(5);
const RUN: MessageId = MessageId(2);
const JOURNAL: &[u8] = b"{\"type\":\"finished\",\"outcome\":{\"status\":\"completed\",\"text\":\"no\"}}\n";

/// Entries of the honest log, by their seq.
const STARTED: usize = 7;
const ACCEPTED: usize = 8;
const FINISHED: usize = 9;
const BOT_POSTS: usize = 10;
const EVE_POSTS: usize = 11;

/// An org with a home, a resident, a phone and a screen that only reads; and a channel.
struct Lab {
    home: DeviceKeys,
    lab: DeviceKeys,
    phone: DeviceKeys,
    screen: DeviceKeys,
    org: Org,
    chain: Vec<u8>,
    chain_log: LogBuilder,
    /// Head of the chain that entries are judged by.
    head: Hash,
    channel: ChannelId,
    draft: String,
}

impl Lab {
    fn new() -> Self {
        Self::with_draft(|_| {})
    }

    fn with_draft(change: impl FnOnce(&mut ChannelDraft)) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let root = RootKey::generate(&mut rng);
        let [home, lab, phone, screen] = std::array::from_fn(|_| DeviceKeys::generate(&mut rng));
        let founding = Org::found("lab", "desk", &root, &home, 0, &mut rng).unwrap();
        let name = ChannelName::new("lobby").unwrap();
        let mut draft =
            ChannelDraft { org: founding.org.fingerprint(), home: home.device(), name, nonce: Hash([7; 32]) };
        change(&mut draft);
        let draft = serde_json::to_string(&draft).unwrap();
        let chain_log = LogBuilder::new(LogId::Org(founding.org.fingerprint()), Head::default());
        let (chain, channel, head) = (Vec::new(), log::channel_id(&draft), Hash::ZERO);
        let mut made = Self { home, lab, phone, screen, org: founding.org, chain, chain_log, head, channel, draft };
        made.write_chain(founding.entries);
        for (keys, name, role) in [(1, "lab", Role::Member), (2, "phone", Role::Member), (3, "tv", Role::Observer)] {
            let keys = [&made.home, &made.lab, &made.phone, &made.screen][keys];
            let (binding, held) = Binding::of(keys, made.org.fingerprint());
            let enrolment = made.org.enrol(binding, held, name, role, made.home.signing()).unwrap();
            made.add(enrolment.body.unwrap());
        }
        let home = made.home.device();
        made.add(made.homed(home, 1, Seq(1), Hash::ZERO));
        made
    }

    fn homed(&self, home: NodeId, epoch: u32, start: Seq, prev: Hash) -> Body {
        let name = ChannelName::new("lobby").unwrap();
        Body::ChannelHomed { channel: self.channel, name, home, epoch: Epoch(epoch), start, prev }
    }

    fn add(&mut self, body: Body) {
        let entry = self.org.entry(body, 0);
        self.org.apply(&entry.clone().at(Hash::ZERO)).unwrap();
        self.write_chain(vec![entry]);
    }

    fn write_chain(&mut self, entries: Vec<NewEntry>) {
        let from = self.chain.len();
        for entry in entries {
            self.chain_log.append(entry, &mut self.chain).unwrap();
        }
        let last = line::split(&self.chain[from..]).last().unwrap();
        self.head = Hash::of(last);
        self.chain_log.seal(self.home.signing(), &mut self.chain).unwrap();
    }

    fn task(&self) -> Task {
        let id = AttemptId { channel: self.channel, run: RUN, attempt: Attempt(1) };
        Task { id, member: BOT, payload: Hash::of(b"do it?") }
    }

    fn accepted_by(&self, key: &SigningKey) -> Auth {
        let JournalMark { incarnation, count, head } = mark();
        let content = AcceptedContent { task: self.task(), incarnation, count, head };
        Auth::Resident { node: sign::device_id(key), sig: content.sign(key) }
    }

    fn finished_by(&self, key: &SigningKey, journal: &[u8]) -> Auth {
        let (events, length) = (u64::from(!journal.is_empty()), journal.len() as u64);
        let content = FinishedContent { task: self.task(), events, length, journal: Hash::of(journal), session: None };
        Auth::Resident { node: sign::device_id(key), sig: content.sign(key) }
    }

    fn draft_by(&self, keys: &DeviceKeys, member: Option<MemberId>, text: &str) -> Auth {
        let draft = Draft {
            org: self.org.fingerprint(),
            channel: self.channel,
            member,
            device: keys.device(),
            client: client(),
            seen: Hash::ZERO,
            run: None,
            post: said(text),
        };
        let draft = serde_json::to_string(&draft).unwrap();
        let sig = sign::sign(domain::DRAFT, draft.as_bytes(), keys.signing());
        Auth::Device { device: keys.device(), draft, sig }
    }

    fn honest(&self) -> Vec<NewEntry> {
        let person = |handle: &str, keys: &DeviceKeys| member(handle, MemberKind::Human, None, vec![keys.device()]);
        let agent =
            |handle: &str, keys: &DeviceKeys| member(handle, MemberKind::Agent, Some(keys.device()), Vec::new());
        let add = |member| (None, Auth::Home, Body::MemberAdded { member, client: None });
        let to = vec![Delivery { member: BOT, hops: 0, why: Why::Mention, held: false }];
        let routed = Routed { to, ..Routed::default() };
        let asked = Body::Posted { message: MessageId(1), client: None, run: None, post: said("@bot?"), routed };
        let started = Body::TurnStarted {
            message: RUN,
            member: BOT,
            node: self.lab.device(),
            attempt: Attempt(1),
            batch: vec![MessageId(1)],
            payload: self.task().payload,
            hops: 0,
            briefed: false,
            seen: None,
        };
        let accepted = Body::AttemptAccepted { message: RUN, attempt: Attempt(1), mark: mark() };
        let bodies = [
            (None, Auth::Home, Body::ChannelCreated { draft: self.draft.clone() }),
            add(person("ana", &self.home)),
            add(agent("bot", &self.lab)),
            add(agent("near", &self.home)),
            add(person("eve", &self.phone)),
            (Some(ANA), Auth::Home, asked),
            (None, Auth::Home, started),
            (Some(BOT), self.accepted_by(self.lab.signing()), accepted),
            (Some(BOT), self.finished_by(self.lab.signing(), JOURNAL), ended(Status::Completed, "no", JOURNAL)),
            (Some(BOT), self.draft_by(&self.lab, Some(BOT), "by the way"), posted(3, "by the way")),
            (Some(EVE), self.draft_by(&self.phone, None, "from outside"), posted(4, "from outside")),
        ];
        (1..).zip(bodies).map(|(seq, (by, auth, body))| self.entry(seq, by, auth, body)).collect()
    }

    fn entry(&self, seq: u64, by: Option<MemberId>, auth: Auth, body: Body) -> NewEntry {
        NewEntry { seq: Seq(seq), epoch: Epoch(1), lamport: Lamport(seq), org: self.head, ts: 0, by, auth, body }
    }

    /// Seals the entries as the home does, whatever they say.
    fn sealed(&self, entries: &[NewEntry]) -> Vec<u8> {
        let mut builder = LogBuilder::new(LogId::Channel(self.channel), Head::default());
        let mut lines = Vec::new();
        for entry in entries {
            builder.append(entry.clone(), &mut lines).unwrap();
        }
        builder.seal(self.home.signing(), &mut lines).unwrap();
        lines
    }

    fn verify(&self, entries: &[NewEntry], journal: &[u8]) -> Result<(), Bad> {
        let mut audit = Audit::new(self.channel, &self.chain).unwrap();
        for line in line::split(&self.sealed(entries)) {
            audit.line(line)?;
        }
        audit.finish()?;
        audit.ends().iter().try_for_each(|end| Audit::journal(end, journal))
    }

    /// The honest log with a change at one entry is bad there.
    #[track_caller]
    fn lie(&self, seq: usize, change: impl FnOnce(&mut NewEntry)) {
        let mut entries = self.honest();
        change(&mut entries[seq - 1]);
        self.found(seq, &entries, JOURNAL);
    }

    #[track_caller]
    fn found(&self, seq: usize, entries: &[NewEntry], journal: &[u8]) {
        let bad = self.verify(entries, journal).expect_err("a lie");
        assert_eq!(bad.seq, Seq(seq as u64), "{bad}");
    }
}

fn member(handle: &str, kind: MemberKind, node: Option<NodeId>, devices: Vec<NodeId>) -> MemberSpec {
    let handle = Handle::lexical(handle, "handle").unwrap();
    MemberSpec { kind, handle, harness: None, node, cwd: None, model: None, policy: None, devices }
}

fn mark() -> JournalMark {
    JournalMark { incarnation: Incarnation([3; 16]), count: 2, head: Hash([4; 32]) }
}

fn client() -> ClientId {
    ClientId::new("c-1").unwrap()
}

fn said(text: &str) -> Post {
    Post { text: text.to_owned(), ..Post::default() }
}

fn posted(message: u64, text: &str) -> Body {
    let (message, client) = (MessageId(message), Some(client()));
    Body::Posted { message, client, run: None, post: said(text), routed: Routed::default() }
}

fn ended(status: Status, text: &str, journal: &[u8]) -> Body {
    Body::TurnFinished {
        message: RUN,
        attempt: Attempt(1),
        status,
        text: text.to_owned(),
        error: None,
        usage: None,
        session: None,
        events: u64::from(!journal.is_empty()),
        length: journal.len() as u64,
        journal: Hash::of(journal),
        routed: Routed::default(),
    }
}

#[test]
fn what_is_true_is_good() {
    let lab = Lab::new();
    assert_eq!(lab.verify(&lab.honest(), JOURNAL), Ok(()));
    // A home may give a turn up, whatever its resident's journal says by then.
    let mut given_up = lab.honest();
    given_up[FINISHED - 1].auth = Auth::Home;
    given_up[FINISHED - 1].body = ended(Status::Failed, "", JOURNAL);
    assert_eq!(lab.verify(&given_up, JOURNAL), Ok(()));
    given_up[FINISHED - 1].body = ended(Status::Interrupted, "", b"");
    assert_eq!(lab.verify(&given_up, b""), Ok(()));
}

#[test]
fn a_turn_elsewhere_says_nothing_without_its_resident_s_signature() {
    let lab = Lab::new();
    let (theirs, ours) = (lab.lab.signing(), lab.home.signing());
    for seq in [ACCEPTED, FINISHED] {
        lab.lie(seq, |entry| entry.auth = Auth::Home);
    }
    lab.lie(ACCEPTED, |entry| entry.auth = lab.accepted_by(ours));
    lab.lie(ACCEPTED, |entry| entry.auth = lab.finished_by(theirs, JOURNAL));
    lab.lie(FINISHED, |entry| entry.auth = lab.finished_by(ours, JOURNAL));
    lab.lie(FINISHED, |entry| entry.auth = lab.accepted_by(theirs));
    lab.lie(FINISHED, |entry| entry.auth = lab.draft_by(&lab.lab, Some(BOT), "no"));
    // Signed by its box, and set under another member.
    lab.lie(FINISHED, |entry| entry.by = Some(ANA));
    // Given up, it has no answer.
    lab.lie(FINISHED, |entry| {
        entry.auth = Auth::Home;
        entry.body = ended(Status::Failed, "yes", JOURNAL);
    });
}

#[test]
fn an_answer_does_not_stand_under_another_question() {
    let lab = Lab::new();
    let mut entries = lab.honest();
    let Body::TurnStarted { payload, .. } = &mut entries[STARTED - 1].body else { panic!("a start") };
    *payload = Hash::of(b"may I drop the database?");
    lab.found(ACCEPTED, &entries, JOURNAL);
    // The home leaves out that it was accepted: the end does not fit either.
    entries.remove(ACCEPTED - 1);
    for (seq, entry) in (1..).zip(&mut entries) {
        (entry.seq, entry.lamport) = (Seq(seq), Lamport(seq));
    }
    lab.found(FINISHED - 1, &entries, JOURNAL);
}

#[test]
fn an_answer_is_what_its_journal_ends_with() {
    let lab = Lab::new();
    lab.lie(FINISHED, |entry| entry.body = ended(Status::Completed, "yes", JOURNAL));
    // The signature of an empty journal is genuine; it proves no answer.
    for (journal, text) in [(&b""[..], "yes"), (b"", ""), (b"{\"type\":\"text\",\"text\":\"yes\"}\n", "yes")] {
        let mut entries = lab.honest();
        entries[FINISHED - 1].auth = lab.finished_by(lab.lab.signing(), journal);
        entries[FINISHED - 1].body = ended(Status::Completed, text, journal);
        lab.found(FINISHED, &entries, journal);
    }
}

#[test]
fn a_post_from_elsewhere_carries_the_signature_of_a_device_that_speaks_for_its_author() {
    let lab = Lab::new();
    for seq in [BOT_POSTS, EVE_POSTS] {
        lab.lie(seq, |entry| entry.auth = Auth::Home);
        lab.lie(seq, |entry| entry.by = None);
        lab.lie(seq, |entry| entry.by = Some(ANA));
        lab.lie(seq, |entry| entry.body = posted(seq as u64 - 7, "something else"));
        // Whatever the home says in its place, it is not its author's.
        lab.lie(seq, |entry| entry.auth = lab.draft_by(&lab.home, None, "from outside"));
    }
    lab.lie(EVE_POSTS, |entry| entry.by = Some(BOT));
    lab.lie(BOT_POSTS, |entry| entry.auth = lab.draft_by(&lab.phone, Some(BOT), "by the way"));
    lab.lie(BOT_POSTS, |entry| entry.auth = lab.draft_by(&lab.lab, None, "by the way"));
    // One that only reads, and one that nobody knows.
    let stranger = DeviceKeys::generate(&mut ChaCha8Rng::seed_from_u64(9));
    for keys in [&lab.screen, &stranger] {
        lab.lie(EVE_POSTS, |entry| {
            entry.by = Some(ANA);
            entry.auth = lab.draft_by(keys, None, "from outside");
        });
    }
}

#[test]
fn a_signed_post_stands_once() {
    let lab = Lab::new();
    let mut entries = lab.honest();
    let again = lab.draft_by(&lab.phone, None, "from outside");
    entries.push(lab.entry(12, Some(EVE), again, posted(5, "from outside")));
    lab.found(12, &entries, JOURNAL);
}

#[test]
fn what_only_a_home_says_carries_no_signature() {
    let lab = Lab::new();
    let mut entries = lab.honest();
    let body = Body::ConfigChanged { config: ChannelConfig::default() };
    for auth in [lab.draft_by(&lab.phone, None, "x"), lab.accepted_by(lab.lab.signing())] {
        entries.truncate(EVE_POSTS);
        entries.push(lab.entry(12, Some(EVE), auth, body.clone()));
        lab.found(12, &entries, JOURNAL);
    }
    lab.lie(1, |entry| entry.auth = lab.draft_by(&lab.phone, None, "x"));
    // A member by that name would be read as the home.
    lab.lie(5, |entry| {
        let member = member("system", MemberKind::Human, None, vec![lab.phone.device()]);
        entry.body = Body::MemberAdded { member, client: None };
    });
}

#[test]
fn a_channel_is_of_the_org_and_home_that_its_draft_names() {
    let other = Lab::with_draft(|draft| draft.org = OrgId([9; 16]));
    other.found(1, &other.honest()[..1], b"");
    let other = Lab::with_draft(|draft| draft.home = DeviceId([9; 32]));
    other.found(1, &other.honest()[..1], b"");
}

#[test]
fn a_home_whose_term_is_over_seals_nothing_more() {
    let mut lab = Lab::new();
    let (short, entries) = (lab.chain.clone(), lab.honest());
    let lines = lab.sealed(&entries);
    let fifth = line::split(&lines).nth(4).unwrap();
    lab.add(lab.homed(lab.lab.device(), 2, Seq(6), Hash::of(fifth)));
    assert!(lab.verify(&entries, JOURNAL).is_err(), "it went on for itself");
    // With the chain cut to what suits it, it looks well: that is why a box that knows more says so.
    lab.chain = short;
    assert_eq!(lab.verify(&entries, JOURNAL), Ok(()));
}
