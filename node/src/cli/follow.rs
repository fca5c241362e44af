//! A subscription that survives a restart of the node: it resumes by its cursor.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use tieline_proto::api::{ApiError, Code, Request};
use tieline_proto::id::{Attempt, MessageId, Seq};
use tokio::time::Instant;

use super::client::{Client, Dial, Said, is_gone};

/// How long a node may be away. A restart takes seconds; after a minute a person should know.
const AWAY_MAX: Duration = Duration::from_secs(60);

/// Pauses between tries to reach it: the first, and what they grow to.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// What is followed.
#[derive(Clone, Debug)]
pub struct What {
    /// Name or id of the channel.
    pub channel: String,
    /// Last seq that is known.
    pub since: Seq,
    /// Whether events of running turns are wanted.
    pub events: bool,
    /// Whether it ends at the `synced` frame.
    pub once: bool,
}

/// A subscription.
#[derive(Debug)]
pub struct Follow {
    dial: Dial,
    client: Client,
    call: u64,
    what: What,
    /// The event that comes next of each running turn: a subscription that is taken up again repeats them.
    runs: BTreeMap<MessageId, (Attempt, u64)>,
    /// The gap that was asked for again, so that one that stays is not asked for for ever.
    gap: Option<(Seq, Seq)>,
}

/// A frame, as it came, and the little that everybody needs of it.
#[derive(Debug)]
pub struct Frame {
    /// Its kind.
    pub head: FrameHead,
    /// All of it.
    pub raw: Box<RawValue>,
}

/// What frames are told apart by.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum FrameHead {
    /// An entry.
    Entry {
        /// Its seq.
        seq: Seq,
        /// Its message number, when it is a visible message.
        #[serde(default)]
        message: Option<MessageId>,
        /// Its kind.
        #[serde(default)]
        kind: String,
    },
    /// A seal.
    Seal {
        /// Last seq it covers.
        seq: Seq,
    },
    /// An event of a running turn.
    Event {
        /// The run message.
        message: MessageId,
        /// The try.
        #[serde(default)]
        attempt: Attempt,
        /// Its index.
        index: u64,
    },
    /// What follows is live.
    Synced {
        /// Last seq so far.
        seq: Seq,
    },
    /// Something is missing.
    Gap {
        /// First missing seq.
        from: Seq,
        /// Last missing seq.
        to: Seq,
    },
    /// It ended.
    End {},
    /// A frame of a newer node.
    #[serde(other)]
    Unknown,
}

impl Follow {
    /// Subscribes.
    ///
    /// # Errors
    /// When the node is not reached or refuses.
    pub async fn start(dial: &Dial, what: What) -> Result<Self, ApiError> {
        let mut client = dial.connect().await?;
        let call = subscribe(&mut client, &what).await?;
        Ok(Self { dial: dial.clone(), client, call, what, runs: BTreeMap::new(), gap: None })
    }

    /// The next frame; `None` at the end. When the node is lost, `note` is told, and the subscription goes on where it
    /// was once the node is back. Cancel safe.
    ///
    /// # Errors
    /// When the node stays away, or refuses.
    pub async fn next(&mut self, note: impl Fn(&str)) -> Result<Option<Frame>, ApiError> {
        loop {
            let (call, raw) = match self.client.next().await {
                Ok(Said::Frame(call, raw)) => (call, raw),
                Ok(Said::Answer(_, Err(error))) => return Err(error),
                Ok(Said::Answer(_, Ok(_))) => continue,
                Err(error) if is_gone(&error) && !self.what.once => {
                    note(&format!("{}; waiting for the node to come back", error.message));
                    self.reconnect(error).await?;
                    note("the node is back");
                    continue;
                }
                Err(error) => return Err(error),
            };
            if call != self.call {
                continue;
            }
            let head: FrameHead = serde_json::from_str(raw.get())
                .map_err(|error| ApiError::new(Code::Internal, format!("a frame is not understood: {error}")))?;
            match &head {
                FrameHead::Entry { seq, message, kind } => {
                    self.what.since = self.what.since.max(*seq);
                    if let (Some(message), "turn-finished") = (message, kind.as_str()) {
                        self.runs.remove(message);
                    }
                }
                FrameHead::Event { message, attempt, index } => {
                    let (known, next) = self.runs.entry(*message).or_insert((*attempt, 0));
                    if *attempt > *known {
                        (*known, *next) = (*attempt, 0);
                    }
                    if *attempt < *known || *index < *next {
                        continue;
                    }
                    *next = index + 1;
                }
                FrameHead::End {} => return Ok(None),
                FrameHead::Gap { from, to } if self.gap != Some((*from, *to)) => {
                    self.gap = Some((*from, *to));
                    self.what.since = Seq(from.0.saturating_sub(1));
                    let _ = self.client.send(Request::Unsubscribe { call: self.call }).await;
                    self.call = self.client.send(subscription(&self.what)).await?;
                }
                _ => {}
            }
            return Ok(Some(Frame { head, raw }));
        }
    }

    async fn reconnect(&mut self, mut error: ApiError) -> Result<(), ApiError> {
        let lost_at = Instant::now();
        let mut pause = PAUSE_FIRST;
        while lost_at.elapsed() < AWAY_MAX {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
            let tried = async {
                let mut client = self.dial.connect().await?;
                let call = subscribe(&mut client, &self.what).await?;
                Ok::<_, ApiError>((client, call))
            };
            match tried.await {
                Ok((client, call)) => {
                    self.client = client;
                    self.call = call;
                    return Ok(());
                }
                Err(again) if is_gone(&again) => error = again,
                Err(refused) => return Err(refused),
            }
        }
        Err(error)
    }
}

async fn subscribe(client: &mut Client, what: &What) -> Result<u64, ApiError> {
    Ok(client.open(subscription(what)).await?.0)
}

fn subscription(what: &What) -> Request {
    let What { channel, since, events, once } = what.clone();
    Request::Subscribe { channel, since, events, once }
}
