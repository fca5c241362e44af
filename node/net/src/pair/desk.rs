//! The host's side: one task for all offers.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::io::{AsyncReadExt, AsyncWriteExt};
use libp2p::{PeerId, Stream};
use rand_chacha::ChaCha20Rng;
use tieline_proto::crypto::keys::DeviceKeys;
use tieline_proto::id::OrgId;
use tieline_proto::pairing::{ConnId, Host, HostError, HostInput, HostOutput, Offered, Terms, Welcome};
use tieline_proto::time::Millis;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Duration, Instant, sleep_until};

use super::{OfferId, PairError, PairEvent, READ_CHUNK};
use crate::events::{EventSender, NetEvent};

/// Wishes and streams that wait for the desk. Beyond it the operator waits, and streams are dropped.
const WAITING_MAX: usize = 16;

/// Streams with a task of their own. The machine keeps fewer; those it lets go may take a moment to end.
const STREAMS_MAX: usize = 16;

/// Pieces of one stream that wait for the desk, and for the stream: either side takes turns in this protocol.
const PIECES_MAX: usize = 4;

/// What comes to the desk.
enum Wish {
    Offer(OfferId, Box<Terms>, oneshot::Sender<Result<Offered, HostError>>),
    Confirm(String, oneshot::Sender<Result<(), HostError>>),
    Cancel(OfferId),
    Enrolled(OfferId, Option<Box<Welcome>>),
    Stream(PeerId, Stream),
    ClockJumped,
}

/// Where wishes are left.
#[derive(Clone, Debug)]
pub(crate) struct DeskHandle(mpsc::Sender<Wish>);

impl std::fmt::Debug for Wish {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Wish")
    }
}

impl DeskHandle {
    pub(crate) async fn offer(&self, offer: OfferId, terms: Terms) -> Result<Offered, PairError> {
        let (reply, answer) = oneshot::channel();
        self.send(Wish::Offer(offer, Box::new(terms), reply)).await?;
        Ok(answer.await.map_err(|_| PairError::Stopped)??)
    }

    pub(crate) async fn confirm(&self, digits: String) -> Result<(), PairError> {
        let (reply, answer) = oneshot::channel();
        self.send(Wish::Confirm(digits, reply)).await?;
        Ok(answer.await.map_err(|_| PairError::Stopped)??)
    }

    pub(crate) async fn cancel(&self, offer: OfferId) -> Result<(), PairError> {
        self.send(Wish::Cancel(offer)).await
    }

    pub(crate) async fn enrolled(&self, offer: OfferId, welcome: Option<Box<Welcome>>) -> Result<(), PairError> {
        self.send(Wish::Enrolled(offer, welcome)).await
    }

    /// Hands over a stream; dropped when too many wait.
    pub(crate) fn stream(&self, peer: PeerId, stream: Stream) {
        let _ = self.0.try_send(Wish::Stream(peer, stream));
    }

    /// The box slept, or its clock was set. Only ever lost when the desk is so busy that it has just looked at its timer.
    pub(crate) fn clock_jumped(&self) {
        let _ = self.0.try_send(Wish::ClockJumped);
    }

    async fn send(&self, wish: Wish) -> Result<(), PairError> {
        self.0.send(wish).await.map_err(|_| PairError::Stopped)
    }
}

/// The task.
pub(crate) struct Desk {
    host: Host,
    /// The offer that the machine has, or had last.
    offer: OfferId,
    begun: Instant,
    wishes: mpsc::Receiver<Wish>,
    events: EventSender,
    /// Ends of the streams' writers. Dropping one closes its stream once what was sent before is written.
    writers: BTreeMap<ConnId, mpsc::Sender<Vec<u8>>>,
    pieces: (mpsc::Sender<Piece>, mpsc::Receiver<Piece>),
    streams: JoinSet<()>,
    last_conn: u64,
}

/// Bytes of a stream, or its end.
struct Piece {
    conn: ConnId,
    bytes: Option<Vec<u8>>,
}

impl Desk {
    pub(crate) fn new(
        org: OrgId,
        keys: Arc<DeviceKeys>,
        peer: PeerId,
        events: EventSender,
        rng: ChaCha20Rng,
    ) -> (DeskHandle, Self) {
        let (wish, wishes) = mpsc::channel(WAITING_MAX);
        let host = Host::new(org, keys, peer.to_bytes(), Box::new(rng));
        let desk = Self {
            host,
            offer: OfferId::default(),
            begun: Instant::now(),
            wishes,
            events,
            writers: BTreeMap::new(),
            pieces: mpsc::channel(STREAMS_MAX),
            streams: JoinSet::new(),
            last_conn: 0,
        };
        (DeskHandle(wish), desk)
    }

    /// Runs until all handles are gone.
    pub(crate) async fn run(mut self) {
        loop {
            let deadline = self.host.poll_timeout().map(|at| self.begun + Duration::from_millis(at.0));
            let timer = async {
                match deadline {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let input = tokio::select! {
                wish = self.wishes.recv() => match wish {
                    Some(Wish::Offer(offer, terms, reply)) => {
                        let offered = self.host.offer(*terms, self.now());
                        // What the machine says now is of the offer before.
                        if self.drain().await.is_err() {
                            break;
                        }
                        if offered.is_ok() {
                            self.offer = offer;
                        }
                        let _ = reply.send(offered);
                        None
                    }
                    Some(wish) => self.wish(wish),
                    None => break,
                },
                Some(piece) = self.pieces.1.recv() => Some(match piece {
                    Piece { conn, bytes: Some(bytes) } => HostInput::Received { conn, bytes },
                    Piece { conn, bytes: None } => {
                        self.writers.remove(&conn);
                        HostInput::Closed { conn }
                    }
                }),
                Some(_) = self.streams.join_next() => None,
                () = timer => Some(HostInput::Timeout),
            };
            if let Some(input) = input {
                self.feed(input);
            }
            if self.drain().await.is_err() {
                break;
            }
        }
    }

    fn wish(&mut self, wish: Wish) -> Option<HostInput> {
        match wish {
            Wish::Confirm(digits, reply) => {
                let now = self.now();
                let _ = reply.send(self.host.handle(HostInput::Digits(digits), now));
                None
            }
            Wish::Cancel(offer) => (offer == self.offer).then_some(HostInput::Cancel),
            Wish::Enrolled(offer, welcome) => {
                let input = welcome.map_or(HostInput::NotEnrolled, HostInput::Enrolled);
                (offer == self.offer).then_some(input)
            }
            Wish::Stream(peer, stream) => self.open(peer, stream),
            Wish::ClockJumped => Some(HostInput::ClockJumped),
            Wish::Offer(..) => None,
        }
    }

    fn feed(&mut self, input: HostInput) {
        let now = self.now();
        if let Err(error) = self.host.handle(input, now) {
            // Only digits can be refused, and those have been answered.
            tracing::debug!(%error, "the pairing host refused an input");
        }
    }

    fn open(&mut self, peer: PeerId, stream: Stream) -> Option<HostInput> {
        if self.streams.len() >= STREAMS_MAX {
            return None;
        }
        self.last_conn += 1;
        let conn = ConnId(self.last_conn);
        let (writer, to_write) = mpsc::channel(PIECES_MAX);
        self.writers.insert(conn, writer);
        self.streams.spawn(serve(conn, stream, to_write, self.pieces.0.clone()));
        Some(HostInput::Opened { conn, peer: peer.to_bytes() })
    }

    async fn drain(&mut self) -> Result<(), crate::events::Stopped> {
        while let Some(output) = self.host.poll_output() {
            let event = match output {
                HostOutput::Send { conn, bytes } => {
                    // A peer that reads so slowly that its few pieces don't fit is let go.
                    if self.writers.get(&conn).is_some_and(|writer| writer.try_send(bytes).is_err()) {
                        self.writers.remove(&conn);
                    }
                    continue;
                }
                HostOutput::Close { conn } => {
                    self.writers.remove(&conn);
                    continue;
                }
                HostOutput::Claimed { name, role } => PairEvent::Claimed { name, role },
                HostOutput::Approved(approval) => PairEvent::Approved(approval),
                HostOutput::Enrolled { device, name } => PairEvent::Enrolled { device, name },
                HostOutput::Refused { reason } => PairEvent::Refused { reason },
            };
            self.events.control(0, NetEvent::Pair { offer: self.offer, event }).await?;
        }
        Ok(())
    }

    fn now(&self) -> Millis {
        Millis(u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX))
    }
}

/// Carries one stream: bytes in as they come, bytes out until the desk lets go.
async fn serve(conn: ConnId, stream: Stream, mut to_write: mpsc::Receiver<Vec<u8>>, pieces: mpsc::Sender<Piece>) {
    let (mut read, mut write) = stream.split();
    let writing = async {
        while let Some(bytes) = to_write.recv().await {
            write.write_all(&bytes).await?;
            write.flush().await?;
        }
        write.close().await
    };
    let reading = async {
        let mut chunk = vec![0; READ_CHUNK];
        while let Ok(read @ 1..) = read.read(&mut chunk).await {
            let bytes = chunk.get(..read).map(<[u8]>::to_vec);
            if pieces.send(Piece { conn, bytes }).await.is_err() {
                break;
            }
        }
    };
    tokio::select! {
        written = writing => if let Err(error) = written {
            tracing::debug!(%error, "a pairing stream failed");
        },
        // The far side may have closed its half and still read ours: the desk is told, and decides.
        () = reading => {}
    }
    let _ = pieces.send(Piece { conn, bytes: None }).await;
}
