//! What becomes of a post: the turns that answer it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use tieline_proto::api::{ApiError, Code, Posted};
use tieline_proto::entry::{Body, Entry};
use tieline_proto::event::Status;
use tieline_proto::id::{MemberId, MessageId};
use tokio::time::Instant;

use super::super::client::Dial;
use super::super::follow::{Follow, FrameHead, What};
use super::super::render::Renderer;
use super::super::{Context, Exit};

/// A turn, as `post --wait --json` reports it.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Turn {
    /// The run message; of a delivery that never became a turn, the message itself.
    pub message: MessageId,
    /// Whose turn.
    pub by: String,
    /// How it ended.
    pub status: TurnStatus,
    /// The final text.
    pub body: String,
    /// Why it failed or is held.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// How a turn ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TurnStatus {
    /// It said that it is done.
    Completed,
    /// The harness, its model or its process failed.
    Failed,
    /// Somebody stopped it, or its member left.
    Interrupted,
    /// The delivery waits for a person.
    Held,
    /// Nobody knows how it ended; a person decides.
    Unknown,
}

impl From<Status> for TurnStatus {
    fn from(status: Status) -> Self {
        match status {
            Status::Completed => Self::Completed,
            Status::Failed => Self::Failed,
            Status::Interrupted => Self::Interrupted,
        }
    }
}

/// What was seen until everybody had answered or time was up.
#[derive(Debug)]
pub struct Waited {
    /// The turns, in the order they ended.
    pub turns: Vec<Turn>,
    /// Whether time was up first.
    pub timed_out: bool,
    /// Why nobody knows what became of the rest.
    pub lost: Option<ApiError>,
}

impl Waited {
    /// The exit status that says it.
    pub fn exit(&self) -> Exit {
        let any = |statuses: &[TurnStatus]| self.turns.iter().any(|turn| statuses.contains(&turn.status));
        if any(&[TurnStatus::Held, TurnStatus::Unknown]) {
            Exit::UNKNOWN
        } else if self.timed_out {
            Exit::UNFINISHED
        } else if let Some(error) = &self.lost {
            Exit(error.code.exit())
        } else if any(&[TurnStatus::Failed, TurnStatus::Interrupted]) {
            Exit::FAILED
        } else {
            Exit::OK
        }
    }
}

/// Waits for everybody that the post goes to. Shows meanwhile, unless JSON is wanted, what they say.
///
/// # Errors
/// When stdout can't be written. A node or home that stays away is [`Waited::lost`]: the post is saved all the same.
pub async fn turns(
    context: &Context,
    dial: &Dial,
    channel: &str,
    posted: &Posted,
    deadline: Option<Instant>,
) -> Result<Waited, ApiError> {
    let mut waited = Waited { turns: Vec::new(), timed_out: false, lost: None };
    let out = context.out;
    let begun = async {
        let agents = super::agents(dial, channel).await?;
        let what = What { channel: channel.to_owned(), since: posted.seq, events: !out.json, once: false };
        let watch = Watch::new(posted, &agents);
        let follow = if watch.is_done() { None } else { Some(Follow::start(dial, what).await?) };
        Ok::<_, ApiError>((agents, watch, follow))
    };
    let (agents, mut watch, mut follow) = match in_time(deadline, begun).await {
        Some(Ok((agents, watch, Some(follow)))) => (agents, watch, follow),
        Some(Ok((_, _, None))) => return Ok(waited),
        Some(Err(error)) => return Ok(Waited { lost: Some(error), ..waited }),
        None => return Ok(Waited { timed_out: true, ..waited }),
    };
    let mut renderer = Renderer::new(out.style).of(channel, out).live();
    renderer.name(agents.iter().map(|(id, handle)| (MemberId(*id), handle.clone())));
    while !watch.is_done() {
        let frame = match in_time(deadline, follow.next(|note| out.note(note))).await {
            Some(Ok(Some(frame))) => frame,
            Some(ended) => {
                let lost = || ApiError::new(Code::Unreachable, "the channel's home says nothing more");
                waited.lost = Some(ended.err().unwrap_or_else(lost));
                break;
            }
            None => {
                waited.timed_out = true;
                break;
            }
        };
        match frame.head {
            FrameHead::Entry { .. } => {
                let line: EntryLine = serde_json::from_str(frame.raw.get()).unwrap_or_default();
                let Some(entry) = line.line else { continue };
                waited.turns.extend(watch.entry(&entry.body));
                if !out.json && watch.is_about(&entry.body) {
                    out.raw(&renderer.frame(&frame))?;
                }
            }
            FrameHead::Event { message, .. } if !out.json && watch.runs.contains_key(&message) => {
                out.raw(&renderer.frame(&frame))?;
            }
            _ => {}
        }
    }
    if !out.json {
        out.raw(&renderer.close())?;
    }
    Ok(waited)
}

/// `None` when time is up first.
async fn in_time<T>(deadline: Option<Instant>, what: impl Future<Output = T>) -> Option<T> {
    match deadline {
        Some(deadline) => tokio::time::timeout_at(deadline, what).await.ok(),
        None => Some(what.await),
    }
}

/// The part of an entry frame that is read here. Lines of newer nodes that can't be are passed over.
#[derive(Default, Deserialize)]
struct EntryLine {
    #[serde(default)]
    line: Option<Entry>,
}

/// Follows one message through the log.
#[derive(Debug)]
struct Watch {
    message: MessageId,
    /// Who has not answered yet.
    waiting: BTreeMap<MemberId, String>,
    /// Turns that answer it, ended ones included.
    runs: BTreeMap<MessageId, MemberId>,
    /// Cards of those turns.
    cards: BTreeSet<MessageId>,
}

impl Watch {
    /// Of a post; `agents` are the members that run turns.
    fn new(posted: &Posted, agents: &BTreeMap<u64, String>) -> Self {
        let waiting = agents
            .iter()
            .filter(|(_, handle)| posted.to.iter().any(|to| to.as_str() == handle.as_str()))
            .map(|(id, handle)| (MemberId(*id), handle.clone()))
            .collect();
        Self { message: posted.message, waiting, runs: BTreeMap::new(), cards: BTreeSet::new() }
    }

    fn is_done(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether an entry belongs to one of the turns.
    fn is_about(&self, body: &Body) -> bool {
        match body {
            Body::TurnStarted { message, .. }
            | Body::TurnFinished { message, .. }
            | Body::TurnHeld { message, .. }
            | Body::StopRequested { message } => self.runs.contains_key(message),
            Body::CardRaised { run, .. } => self.runs.contains_key(run),
            Body::CardAnswered { card, .. } | Body::CardClosed { card, .. } => self.cards.contains(card),
            Body::DeliveryHeld { message, .. } => *message == self.message,
            _ => false,
        }
    }

    /// Takes the next entry; returns a turn that it ended.
    fn entry(&mut self, body: &Body) -> Option<Turn> {
        match body {
            Body::TurnStarted { message, member, batch, .. } if batch.contains(&self.message) => {
                self.runs.insert(*message, *member);
                None
            }
            Body::CardRaised { message, run, .. } if self.runs.contains_key(run) => {
                self.cards.insert(*message);
                None
            }
            Body::TurnFinished { message, status, text, error, .. } => {
                let by = self.ended(*message)?;
                Some(Turn { message: *message, by, status: (*status).into(), body: text.clone(), error: error.clone() })
            }
            Body::TurnHeld { message, reason, .. } => {
                let by = self.ended(*message)?;
                let error = Some(reason.clone());
                Some(Turn { message: *message, by, status: TurnStatus::Unknown, body: String::new(), error })
            }
            Body::DeliveryHeld { message, member, reason, .. } if *message == self.message => {
                self.never_started(*member, TurnStatus::Held, reason)
            }
            Body::MemberRemoved { member } => {
                self.never_started(*member, TurnStatus::Interrupted, "the member left the channel")
            }
            _ => None,
        }
    }

    fn ended(&mut self, run: MessageId) -> Option<String> {
        let member = self.runs.get(&run)?;
        self.waiting.remove(member)
    }

    fn never_started(&mut self, member: MemberId, status: TurnStatus, why: &str) -> Option<Turn> {
        let by = self.waiting.remove(&member)?;
        Some(Turn { message: self.message, by, status, body: String::new(), error: Some(why.to_owned()) })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tieline_proto::id::{Handle, Seq};

    use super::*;

    fn watch() -> Watch {
        let to = ["gpu", "maya"].map(|handle| Handle::new(handle).unwrap()).to_vec();
        let posted = Posted {
            message: MessageId(4),
            seq: Seq(9),
            state: "saved".to_owned(),
            receipt: String::new(),
            unknown: Vec::new(),
            to,
        };
        Watch::new(&posted, &BTreeMap::from([(2, "gpu".to_owned()), (3, "ops".to_owned())]))
    }

    fn started(run: u64, batch: &[u64]) -> Body {
        let zeros = "0".repeat(64);
        let body = json!({"kind": "turn-started", "message": run, "member": 2, "node": zeros, "attempt": 1,
            "batch": batch, "payload": zeros, "hops": 0});
        serde_json::from_value(body).unwrap()
    }

    fn finished(run: u64, status: &str) -> Body {
        let body = json!({"kind": "turn-finished", "message": run, "attempt": 1, "status": status, "text": "done",
            "events": 1, "length": 1, "journal": "0".repeat(64)});
        serde_json::from_value(body).unwrap()
    }

    #[test]
    fn only_turns_whose_batch_has_the_message_count() {
        let mut watch = watch();
        assert_eq!(watch.waiting.len(), 1, "a person runs no turn, and ops is not asked");
        assert_eq!(watch.entry(&started(5, &[3])), None);
        assert_eq!(watch.entry(&finished(5, "completed")), None, "the turn of an older message");
        assert_eq!(watch.entry(&started(6, &[4, 5])), None);
        assert!(watch.is_about(&started(6, &[4])) && !watch.is_about(&started(5, &[3])));
        let turn = watch.entry(&finished(6, "completed")).unwrap();
        assert_eq!((turn.by.as_str(), turn.status, turn.body.as_str()), ("gpu", TurnStatus::Completed, "done"));
        assert!(watch.is_done());
    }

    #[test]
    fn exit_status_tells_how_the_turns_ended() {
        let check = |status: &str, exit: Exit| {
            let mut watch = watch();
            watch.entry(&started(6, &[4]));
            let turns: Vec<_> = watch.entry(&finished(6, status)).into_iter().collect();
            assert_eq!(Waited { turns, timed_out: false, lost: None }.exit(), exit, "{status}");
        };
        check("completed", Exit::OK);
        check("failed", Exit::FAILED);
        check("interrupted", Exit::FAILED);
        let nothing = |timed_out, lost| Waited { turns: Vec::new(), timed_out, lost }.exit();
        assert_eq!(nothing(true, None), Exit::UNFINISHED);
        assert_eq!(nothing(false, Some(ApiError::new(Code::Unreachable, "gone"))), Exit::FAILED);
    }

    #[test]
    fn held_turns_and_deliveries_end_the_wait() {
        let held = json!({"kind": "turn-held", "message": 6, "attempt": 1, "card": 7, "reason": "lost"});
        let mut at = watch();
        at.entry(&started(6, &[4]));
        let turn = at.entry(&serde_json::from_value(held).unwrap()).unwrap();
        assert_eq!((turn.status, turn.error.as_deref()), (TurnStatus::Unknown, Some("lost")));
        assert_eq!(Waited { turns: vec![turn], timed_out: false, lost: None }.exit(), Exit::UNKNOWN);

        let held = json!({"kind": "delivery-held", "message": 4, "member": 2, "card": 7, "reason": "brake"});
        let turn = watch().entry(&serde_json::from_value(held).unwrap()).unwrap();
        assert_eq!((turn.status, turn.message), (TurnStatus::Held, MessageId(4)));

        let removed = serde_json::from_value(json!({"kind": "member-removed", "member": 2})).unwrap();
        assert_eq!(watch().entry(&removed).unwrap().status, TurnStatus::Interrupted);
    }
}
