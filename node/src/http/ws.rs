//! The frames of [`tieline_proto::api`] over a WebSocket: `GET /v1/ws`.
//!
//! One task owns a socket and does everything for it: reads requests, hands them to the node in the order they came,
//! writes answers and frames as they are ready. No locks, no task per request: an acknowledged post costs two wake-ups.
//!
//! Before anything else the client gets `{"hello":{…}}`, which tells how often it will be pinged and how long either side
//! may be silent. Browsers can't see pings, so each goes with a text frame `{"beat":N}`.
//!
//! A client that asked with `?pack=lines` may get several JSON objects in one text message, one a line; others get one.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Extension;
use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, WebSocketUpgrade};
use axum::extract::{Query, State};
use axum::response::Response;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, SinkExt, StreamExt};
use serde::Deserialize;
use serde_json::Value;
use tieline_proto::api::{ApiError, Code, Request};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, Sleep};

use super::App;
use super::guard::{self, Access};
use super::serve::Connection;
use crate::handle::{self, FRAMES_WAITING_MAX};

mod wire;

/// Longest message a client may send, in bytes: the frame limit of every door.
pub const MESSAGE_LEN_MAX: usize = 1024 * 1024;

/// Bytes gathered before they are written. What a stalled reader costs is this, one message, and what the kernel holds.
const WRITE_LEN: usize = 64 * 1024;

/// Where reading breaks off: a message over [`MESSAGE_LEN_MAX`] is still read to its end up to here, so that the client
/// gets the reason instead of a reset connection.
const READ_MESSAGE_LEN_MAX: usize = 2 * MESSAGE_LEN_MAX;

/// Read buffer of a socket. Requests are small, and there may be a thousand sockets.
const READ_LEN: usize = 8 * 1024;

/// Calls of one socket that wait for their answers. When it is reached the socket is not read.
const CALLS_IN_FLIGHT_MAX: usize = 256;

/// Subscriptions of one socket. A client follows channels it shows, not every one there is.
const SUBSCRIPTIONS_MAX: usize = 64;

/// Frames taken from one subscription before the next one has its turn.
const FRAMES_PER_TURN_MAX: usize = 256;

/// Length at which packed lines are sent, in bytes. A message may be longer by one frame.
const PACK_LEN: usize = 32 * 1024;

/// How soon a socket whose token was taken back ends: half of what `security.md` L7 allows.
const ACCESS_CHECK: Duration = Duration::from_millis(500);

/// Close codes, with the meaning RFC 6455 gives those below 4000.
pub mod close {
    /// The node is stopping.
    pub const GOING: u16 = 1001;
    /// Only text is understood.
    pub const NOT_TEXT: u16 = 1003;
    /// A message over the limit.
    pub const TOO_LONG: u16 = 1009;
    /// The credentials are no longer good.
    pub const NO_ACCESS: u16 = 4001;
    /// No sign of life.
    pub const QUIET: u16 = 4002;
    /// The reader took nothing for too long. It resumes by its cursor.
    pub const SLOW: u16 = 4008;
}

/// What a client asks for with the upgrade.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Wishes {
    #[serde(default)]
    pack: Option<String>,
}

/// `GET /v1/ws`.
pub(super) async fn upgrade(
    State(app): State<App>,
    Extension(access): Extension<Access>,
    connection: Option<Extension<Connection>>,
    Query(wishes): Query<Wishes>,
    upgrade: WebSocketUpgrade,
) -> Response {
    let packs = wishes.pack.as_deref() == Some("lines");
    upgrade
        .protocols([guard::PROTOCOL])
        .read_buffer_size(READ_LEN)
        .write_buffer_size(WRITE_LEN)
        .max_message_size(READ_MESSAGE_LEN_MAX)
        .max_frame_size(READ_MESSAGE_LEN_MAX)
        .on_upgrade(move |ws| async move {
            // The permit counts the connection for as long as the socket lives.
            let _connection = connection;
            Socket::new(app, access, ws, packs).run().await;
        })
}

/// One client.
struct Socket {
    app: App,
    access: Access,
    ws: WebSocket,
    packs: bool,
    /// A call that waits for room at the node. Until it is in, nothing more is read: calls keep their order.
    entering: Option<Entering>,
    /// Calls that wait for their answers.
    calls: FuturesUnordered<Answering>,
    /// Open subscriptions, the one whose turn it is first.
    feeds: VecDeque<Feed>,
    /// Whether frames go before requests: they take turns, so that neither can keep the other out.
    feeds_first: bool,
    /// Something is in the write buffer.
    dirty: bool,
    /// Reading has failed; what is written can still go out.
    deaf: bool,
    /// Since when the write buffer does not empty.
    stalled_at: Option<Instant>,
    heard_at: Instant,
    ping_at: Instant,
    check_at: Instant,
    /// Set once the close frame is written: how long the client has to take it.
    closing_until: Option<Instant>,
    timer: Pin<Box<Sleep>>,
    timer_at: Instant,
    beats: u64,
}

/// A subscription.
struct Feed {
    call: u64,
    frames: mpsc::Receiver<Arc<str>>,
    /// The node has said `end` itself.
    said_end: bool,
}

type Answer = Result<Value, ApiError>;

type Entering = Pin<Box<dyn Future<Output = Result<Answering, (u64, ApiError)>> + Send>>;

/// A call's answer to come, with the subscription it opens.
struct Answering {
    call: u64,
    answer: oneshot::Receiver<Answer>,
    feed: Option<mpsc::Receiver<Arc<str>>>,
}

impl Future for Answering {
    type Output = (u64, Answer, Option<mpsc::Receiver<Arc<str>>>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = std::task::ready!(self.answer.poll_unpin(cx)).unwrap_or_else(|_| Err(handle::stopping()));
        let feed = self.feed.take();
        Poll::Ready((self.call, answer, feed))
    }
}

/// What a socket's task is woken for. Answers and frames are written without it.
enum Woke {
    Received(Message),
    ReadFailed,
    /// Everything is written that could be, and the client is gone.
    Done,
    Timer,
}

impl Socket {
    fn new(app: App, access: Access, ws: WebSocket, packs: bool) -> Self {
        let now = Instant::now();
        let ping_at = now + app.limits.ping;
        Self {
            ws,
            packs,
            entering: None,
            calls: FuturesUnordered::new(),
            feeds: VecDeque::new(),
            feeds_first: false,
            dirty: false,
            deaf: false,
            stalled_at: None,
            heard_at: now,
            ping_at,
            check_at: now + ACCESS_CHECK,
            closing_until: None,
            timer: Box::pin(tokio::time::sleep_until(ping_at)),
            timer_at: ping_at,
            beats: 0,
            app,
            access,
        }
    }

    async fn run(mut self) {
        self.write(wire::hello(&self.app.limits));
        self.arm();
        let closing = self.app.closing.clone();
        let mut stopped = pin!(closing.cancelled());
        loop {
            let woke = poll_fn(|cx| {
                if self.closing_until.is_none() && stopped.as_mut().poll(cx).is_ready() {
                    self.close(close::GOING, "the node is stopping");
                }
                self.poll(cx)
            })
            .await;
            match woke {
                Woke::Received(message) => self.received(message),
                Woke::ReadFailed => self.deaf = true,
                Woke::Timer => {
                    if self.tick() == Tick::GiveUp {
                        return;
                    }
                }
                Woke::Done => return,
            }
        }
    }

    /// Does what can be done without a decision; ready when there is one to make.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Woke> {
        loop {
            self.poll_entering(cx);
            if self.poll_flush(cx).is_err() || (self.deaf && !self.dirty) {
                return Poll::Ready(Woke::Done);
            }
            // Nothing is taken from the node while the client doesn't take what is here: that bounds what it costs.
            let may_write = !self.dirty && self.closing_until.is_none();
            if may_write && self.poll_answers(cx) {
                continue;
            }
            self.feeds_first = !self.feeds_first;
            if may_write && self.feeds_first && self.poll_feeds(cx) {
                continue;
            }
            if self.reads() {
                match self.ws.poll_next_unpin(cx) {
                    Poll::Ready(Some(Ok(message))) => return Poll::Ready(Woke::Received(message)),
                    Poll::Ready(Some(Err(error))) => {
                        tracing::debug!(%error, "socket can't be read");
                        return Poll::Ready(Woke::ReadFailed);
                    }
                    Poll::Ready(None) => return Poll::Ready(Woke::Done),
                    Poll::Pending => {}
                }
            }
            if may_write && !self.feeds_first && self.poll_feeds(cx) {
                continue;
            }
            return self.timer.poll_unpin(cx).map(|()| Woke::Timer);
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Result<(), axum::Error> {
        if !self.dirty {
            return Ok(());
        }
        match self.ws.poll_flush_unpin(cx) {
            Poll::Ready(Ok(())) => {
                self.dirty = false;
                self.stalled_at = None;
            }
            Poll::Ready(Err(error)) => return Err(error),
            Poll::Pending => {
                if self.stalled_at.is_none() {
                    self.stalled_at = Some(Instant::now());
                    self.arm();
                }
            }
        }
        Ok(())
    }

    fn poll_entering(&mut self, cx: &mut Context<'_>) {
        let Some(entering) = &mut self.entering else { return };
        match entering.as_mut().poll(cx) {
            Poll::Ready(Ok(answering)) => self.calls.push(answering),
            Poll::Ready(Err((call, error))) => self.write(wire::answer(call, &Err(error))),
            Poll::Pending => return,
        }
        self.entering = None;
    }

    /// Writes the answers that are there. Returns whether there were any.
    fn poll_answers(&mut self, cx: &mut Context<'_>) -> bool {
        let mut wrote = false;
        while self.has_room(cx) {
            let Poll::Ready(Some((call, answer, feed))) = self.calls.poll_next_unpin(cx) else { break };
            self.write(wire::answer(call, &answer));
            wrote = true;
            // Only now: no frame goes before the answer that announces it.
            if let (Ok(_), Some(frames)) = (answer, feed) {
                self.feeds.push_back(Feed { call, frames, said_end: false });
            }
        }
        wrote
    }

    /// Writes the frames that are there, each subscription in its turn. Returns whether there were any.
    fn poll_feeds(&mut self, cx: &mut Context<'_>) -> bool {
        let mut wrote = false;
        for _ in 0..self.feeds.len() {
            let Some(mut feed) = self.feeds.pop_front() else { break };
            let (has_ended, wrote_here) = self.poll_feed(&mut feed, cx);
            wrote |= wrote_here;
            if !has_ended {
                self.feeds.push_back(feed);
            }
        }
        wrote
    }

    /// Returns whether the subscription has ended and whether something was written.
    fn poll_feed(&mut self, feed: &mut Feed, cx: &mut Context<'_>) -> (bool, bool) {
        let mut wrote = false;
        let mut pack = String::new();
        let mut has_ended = false;
        for _ in 0..FRAMES_PER_TURN_MAX {
            if !self.has_room(cx) {
                break;
            }
            match feed.frames.poll_recv(cx) {
                Poll::Ready(Some(frames)) => {
                    feed.said_end = &*frames == wire::END_FRAME;
                    for frame in frames.split('\n') {
                        if !self.packs && !pack.is_empty() {
                            self.write(std::mem::take(&mut pack));
                        }
                        wire::push_frame(&mut pack, feed.call, frame);
                    }
                }
                Poll::Ready(None) => {
                    has_ended = true;
                    if feed.said_end {
                        break;
                    }
                    wire::push_frame(&mut pack, feed.call, wire::END_FRAME);
                }
                Poll::Pending => break,
            }
            if !self.packs || pack.len() >= PACK_LEN {
                self.write(std::mem::take(&mut pack));
            }
            wrote = true;
            if has_ended {
                break;
            }
        }
        if !pack.is_empty() {
            self.write(pack);
        }
        (has_ended, wrote)
    }

    /// Whether the last write went through, into the buffer or the kernel.
    fn has_room(&mut self, cx: &mut Context<'_>) -> bool {
        // An error shows at the flush that follows.
        matches!(self.ws.poll_ready_unpin(cx), Poll::Ready(Ok(())))
    }

    /// Nothing is read of a client that does not take what it was answered: bad requests are answered at once, and who
    /// only sends would fill the buffer.
    fn reads(&self) -> bool {
        !self.deaf && !self.dirty && self.entering.is_none() && self.calls.len() < CALLS_IN_FLIGHT_MAX
    }

    fn received(&mut self, message: Message) {
        self.heard_at = Instant::now();
        match message {
            _ if self.closing_until.is_some() => {}
            Message::Text(text) if text.len() > MESSAGE_LEN_MAX => {
                self.close(close::TOO_LONG, &format!("a message has at most {MESSAGE_LEN_MAX} bytes"));
            }
            Message::Text(text) => self.call(&text),
            Message::Binary(_) => self.close(close::NOT_TEXT, "messages are text"),
            // The library has queued the answer; it goes with the next flush.
            Message::Ping(_) => self.dirty = true,
            Message::Pong(_) => {}
            Message::Close(_) => {
                self.dirty = true;
                self.leave();
            }
        }
    }

    fn call(&mut self, text: &str) {
        let (id, request) = match wire::read(text) {
            Ok(call) => call,
            Err((id, error)) => return self.write(wire::refusal(id, &error)),
        };
        let Some(caller) = self.access.caller(&self.app) else { return self.lose_access() };
        if let Request::Unsubscribe { call } = request {
            self.feeds.retain(|feed| feed.call != call);
            return self.write(wire::answer(id, &Ok(Value::Object(serde_json::Map::new()))));
        }
        let opens = matches!(request, Request::Subscribe { .. } | Request::PairOffer { .. } | Request::Join { .. });
        if opens && self.feeds.len() >= SUBSCRIPTIONS_MAX {
            let error = ApiError::new(Code::Limit, format!("a socket has at most {SUBSCRIPTIONS_MAX} subscriptions"))
                .hint("unsubscribe from one, or open another socket");
            return self.write(wire::answer(id, &Err(error)));
        }
        let (sender, feed) = opens.then(|| mpsc::channel(FRAMES_WAITING_MAX)).unzip();
        let node = self.app.backend.node.clone();
        self.entering = Some(Box::pin(async move {
            let answer = node.begin(caller, request, sender).await.map_err(|error| (id, error))?;
            Ok(Answering { call: id, answer, feed })
        }));
    }

    fn write(&mut self, text: String) {
        self.send(Message::Text(text.into()));
    }

    fn send(&mut self, message: Message) {
        self.dirty = true;
        if let Err(error) = self.ws.start_send_unpin(message) {
            // The flush that follows fails too and ends the socket.
            tracing::debug!(%error, "socket can't be written");
        }
    }

    fn lose_access(&mut self) {
        self.close(close::NO_ACCESS, "the token is no longer good");
    }

    /// Says why and waits a while for the client to take it.
    fn close(&mut self, code: u16, reason: &str) {
        tracing::debug!(code, reason, "closing a socket");
        self.send(Message::Close(Some(CloseFrame { code, reason: Utf8Bytes::from(reason) })));
        self.leave();
    }

    fn leave(&mut self) {
        self.feeds.clear();
        self.calls.clear();
        self.entering = None;
        self.closing_until = Some(Instant::now() + self.app.limits.stall);
        self.arm();
    }

    fn tick(&mut self) -> Tick {
        let now = Instant::now();
        let limits = self.app.limits;
        if self.closing_until.is_some_and(|until| until <= now) {
            return Tick::GiveUp;
        }
        if self.closing_until.is_none() {
            if self.stalled_at.is_some_and(|since| since + limits.stall <= now) {
                self.close(close::SLOW, "nothing was read for too long; resume from your cursor");
            } else if self.reads() && self.heard_at + limits.quiet() <= now {
                self.close(close::QUIET, "no sign of life");
            } else if self.is_revocable() && self.check_at <= now {
                self.check_at = now + ACCESS_CHECK;
                if self.access.caller(&self.app).is_none() {
                    self.lose_access();
                }
            }
        }
        if self.ping_at <= now {
            self.ping_at = now + limits.ping;
            // A stalled reader has enough to read.
            if self.closing_until.is_none() && !self.dirty {
                self.beats += 1;
                self.send(Message::Ping(axum::body::Bytes::new()));
                self.write(wire::beat(self.beats));
            }
        }
        self.timer_at = now + FAR;
        self.arm();
        Tick::GoOn
    }

    const fn is_revocable(&self) -> bool {
        !matches!(self.access, Access::Local)
    }

    /// Sets the timer to the next deadline. Deadlines that moved away are noticed when the timer fires.
    fn arm(&mut self) {
        let limits = &self.app.limits;
        let mut next = self.ping_at.min(self.heard_at + limits.quiet());
        if self.is_revocable() {
            next = next.min(self.check_at);
        }
        if let Some(since) = self.stalled_at {
            next = next.min(since + limits.stall);
        }
        if let Some(until) = self.closing_until {
            next = until;
        }
        if next < self.timer_at {
            self.timer_at = next;
            self.timer.as_mut().reset(next);
        }
    }
}

#[derive(Eq, PartialEq)]
enum Tick {
    GoOn,
    GiveUp,
}

/// Later than every deadline.
const FAR: Duration = Duration::from_secs(24 * 3600);
