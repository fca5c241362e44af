//! What makes a channel good.
//!
//! The log's own verifier proves the bytes: hash chain, seals, who may seal. Here entries are judged on top of it, once
//! their seal was good: that they make sense one after the other, that they were judged by an org chain that never
//! goes back, and that authors who sign have signed exactly this.

use std::collections::{BTreeMap, BTreeSet};

use tieline_proto::api::{ApiError, Code};
use tieline_proto::channel::{State, check_author};
use tieline_proto::entry::{Auth, Body, Entry, NewEntry};
use tieline_proto::event::{Event, Status};
use tieline_proto::id::{Attempt, ChannelId, ClientId, DeviceId, Hash, MessageId, OrgId, Seq};
use tieline_proto::log::{Homes, JournalHash, Line, LogId, Seal, Term, Verifier, line};
use tieline_proto::org::{Action, Org, allows};
use tieline_proto::view::Head;

/// What is wrong, and where.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{what}")]
pub struct Bad {
    /// The first entry that is not good.
    pub seq: Seq,
    /// What is wrong with it.
    pub what: String,
}

/// How a turn ended, as its entry says: what its journal must agree with.
#[derive(Clone, Debug)]
pub struct End {
    /// The entry.
    pub seq: Seq,
    /// The run message.
    pub message: MessageId,
    /// The try.
    pub attempt: Attempt,
    /// Bytes of the journal.
    pub length: u64,
    events: u64,
    journal: Hash,
    status: Status,
    text: String,
    error: Option<String>,
    /// The home gave it up, without an answer: then the journal goes as far as it goes.
    given_up: bool,
}

/// A channel on its way through the check.
pub struct Audit {
    channel: ChannelId,
    org: Org,
    /// Entries of the org's chain behind the first.
    chain: Vec<Entry>,
    /// Seq of each entry of the org's chain, by its hash.
    org_heads: BTreeMap<Hash, usize>,
    /// The org as it was by the head that the last entry was judged by.
    judged: Org,
    verifier: Verifier,
    state: Option<State>,
    /// Entries whose seal has not come yet.
    open: Vec<Entry>,
    ends: Vec<End>,
    /// What devices have signed, by their own ids for it.
    clients: BTreeSet<(DeviceId, ClientId)>,
}

impl Audit {
    /// Begins with the org's chain, which is checked whole.
    ///
    /// # Errors
    /// When the chain itself is bad: then nobody can say who may seal.
    pub fn new(channel: ChannelId, chain: &[u8]) -> Result<Self, ApiError> {
        let bad = |error| {
            ApiError::new(Code::Internal, format!("the org's chain is bad: {error}"))
                .hint("nothing can be verified without it; restore it from a backup or another box")
        };
        let org = Org::read(chain).map_err(bad)?;
        let judged = Org::founded(line::split(chain).next().unwrap_or_default()).map_err(bad)?;
        let mut org_heads = BTreeMap::new();
        let mut entries = Vec::new();
        for line in line::split(chain) {
            if let Ok(Line::Entry(entry)) = Line::parse(line) {
                entries.push(entry);
                org_heads.insert(Line::hash(line), entries.len());
            }
        }
        let chain = entries.split_off(1);
        let terms = org.terms(&channel).iter().map(|term| Term {
            epoch: term.epoch,
            home: term.home,
            start: term.start,
            prev: term.prev,
        });
        let verifier = Verifier::new(LogId::Channel(channel), Homes::terms(terms));
        let (open, ends, clients) = (Vec::new(), Vec::new(), BTreeSet::new());
        Ok(Self { channel, org, chain, org_heads, judged, verifier, state: None, open, ends, clients })
    }

    /// Takes the next line, without its LF.
    ///
    /// # Errors
    /// What is wrong with it, or with an earlier one that it proves bad.
    pub fn line(&mut self, line: &[u8]) -> Result<(), Bad> {
        match self.verifier.feed(line).map_err(|bad| Bad { seq: bad.seq, what: bad.fault.to_string() })? {
            Line::Entry(entry) => self.open.push(entry),
            Line::Seal(_) => {
                for entry in std::mem::take(&mut self.open) {
                    let seq = entry.seq;
                    self.judge(entry).map_err(|what| Bad { seq, what })?;
                }
            }
        }
        Ok(())
    }

    /// The log is over.
    ///
    /// # Errors
    /// When it ends without a seal, or is empty.
    pub fn finish(&self) -> Result<(), Bad> {
        match self.verifier.clone().finish().bad {
            Some(bad) => Err(Bad { seq: bad.seq, what: bad.fault.to_string() }),
            None if self.state.is_none() => Err(Bad { seq: Seq(1), what: "the log is empty".to_owned() }),
            None => Ok(()),
        }
    }

    /// Whether everything so far is sealed.
    pub const fn is_sealed(&self) -> bool {
        self.open.is_empty()
    }

    /// Checks the journal of a turn against the entry that ended it.
    ///
    /// # Errors
    /// When it is another one.
    pub fn journal(end: &End, bytes: &[u8]) -> Result<(), Bad> {
        let bad = |what: &str| Err(Bad { seq: end.seq, what: format!("the journal of #{} {what}", end.message) });
        let mut hash = JournalHash::new();
        hash.update(bytes);
        if (hash.len(), hash.lines(), hash.hash()) != (end.length, end.events, end.journal) {
            return bad("is not the one that was signed");
        }
        if end.given_up {
            return Ok(());
        }
        // A journal without a last event, an empty one above all, proves no answer.
        match line::split(bytes).last().map(serde_json::from_slice) {
            Some(Ok(Event::Finished { outcome }))
                if (outcome.status, &outcome.text, &outcome.error) == (end.status, &end.text, &end.error) =>
            {
                Ok(())
            }
            Some(Ok(Event::Finished { .. })) => bad("tells another end than the log"),
            _ => bad("does not tell how the turn ended"),
        }
    }

    /// The turns that ended, in the order of the log.
    pub fn ends(&self) -> &[End] {
        &self.ends
    }

    /// The channel.
    pub const fn channel(&self) -> ChannelId {
        self.channel
    }

    /// Its org.
    pub const fn org(&self) -> OrgId {
        self.org.fingerprint()
    }

    /// How far the org's chain goes that the channel was judged by.
    pub const fn org_seq(&self) -> Seq {
        self.org.seq()
    }

    /// Whether a seal is by the channel's home in the part that it seals.
    pub fn is_by_home(&self, seal: &Seal) -> bool {
        let sealed = &seal.seal;
        self.verifier.homes().may_seal(sealed.epoch, seal.by, sealed.from, sealed.to) && seal.check_signature().is_ok()
    }

    /// What people call the channel.
    pub fn name(&self) -> String {
        let draft = self.state.as_ref().map(|state| state.draft.name.as_str().to_owned());
        let term = || self.org.terms(&self.channel).last().map(|term| term.name.as_str().to_owned());
        draft.or_else(term).unwrap_or_default()
    }

    /// Where the good part ends.
    pub const fn head(&self) -> Head {
        let head = self.verifier.head();
        Head { seq: head.seq, hash: head.hash }
    }

    fn judge(&mut self, entry: Entry) -> Result<(), String> {
        self.judged_by(&entry.org)?;
        let Entry { seq, epoch, lamport, prev: _, org, ts, by, auth, body } = entry;
        let entry = NewEntry { seq, epoch, lamport, org, ts, by, auth, body };
        let Some(state) = &self.state else { return self.begin(&entry) };
        let term = self.org.terms(&self.channel).iter().find(|term| term.epoch == epoch);
        let home = term.map(|term| term.home).ok_or("its home epoch has no home")?;
        check_author(state, home, &entry).map_err(|error| error.to_string())?;
        self.signer(state, &entry)?;
        if let (Auth::Device { device, .. }, Body::Posted { client: Some(client), .. }) = (&entry.auth, &entry.body)
            && !self.clients.insert((*device, client.clone()))
        {
            return Err("its author signed it once, and it stands here a second time".to_owned());
        }
        self.note_end(&entry);
        let Some(state) = &mut self.state else { return Ok(()) };
        state.apply(&entry).map_err(|error| error.to_string())
    }

    /// The channel's first entry: it must be of the channel, org and home that are said.
    fn begin(&mut self, entry: &NewEntry) -> Result<(), String> {
        let state = State::begin(entry).map_err(|error| error.to_string())?;
        if entry.auth != Auth::Home {
            return Err("it carries a signature that belongs on another kind of entry".to_owned());
        }
        let founder = self.org.terms(&self.channel).first().map(|term| term.home);
        if state.id != self.channel || state.org() != self.org() || Some(state.draft.home) != founder {
            return Err("it makes a channel of another org or home than the org's chain says".to_owned());
        }
        self.state = Some(state);
        Ok(())
    }

    /// Takes the org's chain up to the head that an entry was judged by; it never goes back.
    fn judged_by(&mut self, head: &Hash) -> Result<(), String> {
        let place = *self.org_heads.get(head).ok_or("it was judged by a head that the org's chain does not have")?;
        let at = usize::try_from(self.judged.seq().0).unwrap_or(usize::MAX);
        // The founding line is entry 1, and stands before those of the list.
        if place < at {
            return Err("it was judged by an older head of the org's chain than the entry before it".to_owned());
        }
        for entry in self.chain.get(at - 1..place - 1).unwrap_or_default() {
            self.judged.apply(entry).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Whether the signer was of the org by the head that the entry was judged by, and might say it.
    fn signer(&self, state: &State, entry: &NewEntry) -> Result<(), String> {
        let device = match &entry.auth {
            Auth::Home => return Ok(()),
            Auth::Device { device, .. } | Auth::Resident { node: device, .. } => device,
        };
        // A home lets a device in as soon as it hears of it, and judges by what it has on disk, which may be a little less.
        let known = match self.judged.device(device) {
            Some(_) => self.judged.live(device),
            None => self.org.device(device),
        };
        let known = known.ok_or("it is signed by a device that was not of the org then")?;
        let author = entry.by.and_then(|by| state.members.get(&by));
        let is_person = author.is_some_and(|author| author.spec.node.is_none());
        if is_person && !allows(known.role, Action::Post) {
            return Err("it is signed by a device whose role does not let it post".to_owned());
        }
        Ok(())
    }

    fn note_end(&mut self, entry: &NewEntry) {
        if let Body::TurnFinished { message, attempt, status, text, error, events, length, journal, .. } = &entry.body {
            self.ends.push(End {
                seq: entry.seq,
                message: *message,
                attempt: *attempt,
                length: *length,
                events: *events,
                journal: *journal,
                status: *status,
                text: text.clone(),
                error: error.clone(),
                given_up: entry.auth == Auth::Home && *status != Status::Completed && text.is_empty(),
            });
        }
    }
}
