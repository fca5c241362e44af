//! A subscription that survives a restart of the node, or of the channel's home: it resumes by its cursor.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use tieline_proto::api::{ApiError, Code, Request};
use tieline_proto::id::{Attempt, MessageId, Seq};
use tokio::time::Instant;

use super::client::{Client, Dial, Said};

/// How long a node, or the channel's home, may be away. A restart takes seconds; after a minute a person should know.
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
    /// Since when nothing comes, and the pause before the next try; `None` while something does.
    lost: Option<(Instant, Duration)>,
    /// Whether all that was there when it began has come.
    is_whole: bool,
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
        Ok(Self {
            dial: dial.clone(),
            client,
            call,
            what,
            runs: BTreeMap::new(),
            gap: None,
            lost: None,
            is_whole: false,
        })
    }

    /// The next frame; `None` at the end that was wished for. When the node is lost, or the way to the channel's home,
    /// `note` is told, and the subscription goes on where it was once they are back. Cancel safe.
    ///
    /// # Errors
    /// When they stay away, or refuse.
    pub async fn next(&mut self, note: impl Fn(&str)) -> Result<Option<Frame>, ApiError> {
        loop {
            let (call, raw) = match self.client.next().await {
                Ok(Said::Frame(call, raw)) => (call, raw),
                Ok(Said::Answer(call, Err(error))) if call == self.call => {
                    self.take_up(error, &note).await?;
                    continue;
                }
                Ok(Said::Answer(..)) => continue,
                Err(error) => {
                    self.take_up(error, &note).await?;
                    continue;
                }
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
                FrameHead::End {} if self.what.once && self.is_whole => return Ok(None),
                // Nobody wished for this end: the way to the home was lost, or we were too slow for the node.
                FrameHead::End {} => {
                    let error = ApiError::new(Code::Unreachable, "what the channel's home says broke off");
                    self.take_up(error, &note).await?;
                    continue;
                }
                FrameHead::Synced { .. } => self.is_whole = true,
                FrameHead::Gap { from, to } if self.gap != Some((*from, *to)) => {
                    self.gap = Some((*from, *to));
                    self.what.since = Seq(from.0.saturating_sub(1));
                    let _ = self.client.send(Request::Unsubscribe { call: self.call }).await;
                    match self.client.send(subscription(&self.what)).await {
                        Ok(call) => self.call = call,
                        Err(error) => self.take_up(error, &note).await?,
                    }
                }
                _ => {}
            }
            if self.lost.take().is_some() {
                note("it goes on");
            }
            return Ok(Some(Frame { head, raw }));
        }
    }

    /// Subscribes again behind what is known, unless that makes no sense or was tried for too long.
    async fn take_up(&mut self, mut error: ApiError, note: &impl Fn(&str)) -> Result<(), ApiError> {
        loop {
            if !may_pass(&error) {
                return Err(error);
            }
            let (since, pause) = match self.lost {
                Some((since, pause)) => (since, (pause * 2).min(PAUSE_MAX)),
                None => {
                    note(&format!("{}; waiting for it to come back", error.message));
                    (Instant::now(), PAUSE_FIRST)
                }
            };
            self.lost = Some((since, pause));
            if since.elapsed() >= AWAY_MAX {
                return Err(error);
            }
            tokio::time::sleep(pause).await;
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
                Err(again) => error = again,
            }
        }
    }
}

/// Whether an error may be over in a moment: the node restarts, or the channel's home does.
const fn may_pass(error: &ApiError) -> bool {
    matches!(error.code, Code::NotRunning | Code::Unreachable | Code::Timeout)
}

async fn subscribe(client: &mut Client, what: &What) -> Result<u64, ApiError> {
    Ok(client.open(subscription(what)).await?.0)
}

fn subscription(what: &What) -> Request {
    let What { channel, since, events, once } = what.clone();
    Request::Subscribe { channel, since, events, once }
}
