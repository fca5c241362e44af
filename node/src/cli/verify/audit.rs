//! What makes a channel good.
//!
//! The log's own verifier proves the bytes: hash chain, seals, who may seal. Here entries are judged on top of it, once
//! their seal was good: that they make sense one after the other, that they were judged by an org chain that never
//! goes back, and that authors who sign have signed exactly this.

use std::collections::BTreeMap;

use tieline_proto::api::{ApiError, Code};
use tieline_proto::channel::State;
use tieline_proto::crypto::sign::{self, AcceptedContent, FinishedContent};
use tieline_proto::entry::{Auth, Body, Draft, Entry, NewEntry};
use tieline_proto::event::{Event, Status};
use tieline_proto::id::{Attempt, ChannelId, Hash, MessageId, OrgId, Seq};
use tieline_proto::link::AttemptId;
use tieline_proto::log::{Homes, JournalHash, Line, LogId, Term, Verifier, line};
use tieline_proto::org::Org;
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
}

/// A channel on its way through the check.
pub struct Audit {
    channel: ChannelId,
    org: Org,
    /// Place of each entry of the org's chain, by its hash.
    org_heads: BTreeMap<Hash, usize>,
    /// Place of the head that the last entry was judged by.
    org_at: usize,
    verifier: Verifier,
    state: Option<State>,
    /// Entries whose seal has not come yet.
    open: Vec<Entry>,
    ends: Vec<End>,
}

impl Audit {
    /// Begins with the org's chain, which is checked whole.
    ///
    /// # Errors
    /// When the chain itself is bad: then nobody can say who may seal.
    pub fn new(channel: ChannelId, chain: &[u8]) -> Result<Self, ApiError> {
        let org = Org::read(chain).map_err(|error| {
            ApiError::new(Code::Internal, format!("the org's chain is bad: {error}"))
                .hint("nothing can be verified without it; restore it from a backup or another box")
        })?;
        let entries = line::split(chain).filter(|line| matches!(Line::parse(line), Ok(Line::Entry(_))));
        let org_heads = entries.enumerate().map(|(place, line)| (Line::hash(line), place)).collect();
        let terms = org.terms(&channel).iter().map(|term| Term {
            epoch: term.epoch,
            home: term.home,
            start: term.start,
            prev: term.prev,
        });
        let verifier = Verifier::new(LogId::Channel(channel), Homes::terms(terms));
        Ok(Self { channel, org, org_heads, org_at: 0, verifier, state: None, open: Vec::new(), ends: Vec::new() })
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
        // A turn that never reached its harness has no last event.
        let Some(last) = line::split(bytes).last() else { return Ok(()) };
        match serde_json::from_slice(last) {
            Ok(Event::Finished { outcome }) if outcome.status == end.status && outcome.text == end.text => Ok(()),
            Ok(Event::Finished { .. }) => bad("tells another end than the log"),
            // The home ended a turn whose journal goes no further.
            Ok(_) if end.status != Status::Completed => Ok(()),
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
        match self.org_heads.get(&entry.org) {
            Some(place) if *place >= self.org_at => self.org_at = *place,
            Some(_) => {
                return Err("it was judged by an older head of the org's chain than the entry before it".to_owned());
            }
            None => return Err("it was judged by a head that the org's chain does not have".to_owned()),
        }
        self.author(&entry)?;
        self.note_end(&entry);
        let Entry { seq, epoch, lamport, prev: _, org, ts, by, auth, body } = entry;
        let entry = NewEntry { seq, epoch, lamport, org, ts, by, auth, body };
        let applied = match &mut self.state {
            None => State::begin(&entry).map(|state| self.state = Some(state)),
            Some(state) => state.apply(&entry),
        };
        applied.map_err(|error| error.to_string())
    }

    fn author(&self, entry: &Entry) -> Result<(), String> {
        let wrong = |error: sign::SignError| format!("its author is not proved: {error}");
        match &entry.auth {
            Auth::Home => Ok(()),
            Auth::Device { device, draft, sig } => {
                sign::verify(sign::domain::DRAFT, draft.as_bytes(), device, sig).map_err(wrong)?;
                if !self.is_enrolled(device) {
                    return Err("it is signed by a device that was not of the org then".to_owned());
                }
                let draft: Draft = serde_json::from_str(draft).map_err(|error| format!("its draft: {error}"))?;
                self.is_draft_of(&draft, entry)
                    .then_some(())
                    .ok_or_else(|| "its author signed something else than what stands here".to_owned())
            }
            Auth::Resident { node, sig } => {
                let (message, attempt) = match &entry.body {
                    Body::AttemptAccepted { message, attempt, .. } | Body::TurnFinished { message, attempt, .. } => {
                        (*message, *attempt)
                    }
                    _ => return Err("a resident signs only what its turns do".to_owned()),
                };
                let turn = self.state.as_ref().and_then(|state| state.turns.get(&message));
                if turn.is_none_or(|turn| turn.node != *node) || !self.is_enrolled(node) {
                    return Err("it is signed by a node that did not run the turn".to_owned());
                }
                let id = AttemptId { channel: self.channel, run: message, attempt };
                match &entry.body {
                    Body::AttemptAccepted { mark, .. } => {
                        let content =
                            AcceptedContent { id, incarnation: mark.incarnation, count: mark.count, head: mark.head };
                        content.verify(node, sig).map_err(wrong)
                    }
                    Body::TurnFinished { events, length, journal, session, .. } => {
                        let session = session.as_deref();
                        let content =
                            FinishedContent { id, events: *events, length: *length, journal: *journal, session };
                        content.verify(node, sig).map_err(wrong)
                    }
                    _ => Ok(()),
                }
            }
        }
    }

    /// Whether a device was in the org, and not yet revoked, by the head that the entry was judged by.
    fn is_enrolled(&self, device: &tieline_proto::id::DeviceId) -> bool {
        let known = self.org.device(device);
        // Entry N of the chain stands at place N - 1.
        known.is_some_and(|known| known.revoked.is_none_or(|seq| seq.0 > self.org_at as u64 + 1))
    }

    fn is_draft_of(&self, draft: &Draft, entry: &Entry) -> bool {
        let Auth::Device { device, .. } = &entry.auth else { return false };
        let Body::Posted { client, run, post, .. } = &entry.body else { return false };
        let member_agrees = draft.member.is_none_or(|member| entry.by == Some(member));
        draft.org == self.org()
            && draft.channel == self.channel
            && draft.device == *device
            && client.as_ref() == Some(&draft.client)
            && *run == draft.run
            && *post == draft.post
            && member_agrees
    }

    fn note_end(&mut self, entry: &Entry) {
        if let Body::TurnFinished { message, attempt, status, text, events, length, journal, .. } = &entry.body {
            self.ends.push(End {
                seq: entry.seq,
                message: *message,
                attempt: *attempt,
                length: *length,
                events: *events,
                journal: *journal,
                status: *status,
                text: text.clone(),
            });
        }
    }
}
