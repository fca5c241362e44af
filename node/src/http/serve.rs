//! Connections: accepted, counted, timed; everything about requests is the router's.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};
use tower::ServiceExt;

use super::{App, rest};
use crate::harness::keeper;

/// Header bytes of one request. Ours are a few hundred; cookies of other pages on this host may come along.
const HEADER_LEN_MAX: usize = 32 * 1024;

/// Header fields of one request.
const HEADER_FIELDS_MAX: usize = 64;

/// Pause after a failed accept. Out of descriptors is the usual reason, and it lasts until some connection ends.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A WebSocket's own stall limit ends it with a reason; the plain one behind it is for what can't even take the reason.
const STALLS_BEFORE_DROP: u32 = 2;

/// Which door a connection came through.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Door {
    /// The Unix socket: a process of this user.
    Unix,
    /// Loopback TCP: any process or page on this box.
    Tcp,
}

/// What requests know of their connection. The permit lives as long as the connection or what it was upgraded to.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    pub(super) door: Door,
    /// Whether an agent's program is at the far end.
    pub(super) is_agents: bool,
    _permit: Arc<OwnedSemaphorePermit>,
}

/// Serves both listeners until the doors close.
pub(super) fn start(unix: UnixListener, tcp: TcpListener, app: App) {
    let router = rest::router(app.clone());
    tokio::spawn(accept_unix(unix, app.clone(), router.clone()));
    tokio::spawn(accept_tcp(tcp, app, router));
}

async fn accept_unix(listener: UnixListener, app: App, router: Router) {
    let places = Arc::new(Semaphore::new(app.limits.connections));
    let us = rustix::process::geteuid().as_raw();
    loop {
        let stream = tokio::select! {
            () = app.closing.cancelled() => return,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => { pause(&error).await; continue }
            },
        };
        if !is_ours(&stream, us) {
            continue;
        }
        let pid = stream.peer_cred().ok().and_then(|cred| cred.pid());
        let is_agents = pid.is_some_and(keeper::is_beneath_us);
        connect(stream, (Door::Unix, is_agents), &places, &app, &router);
    }
}

async fn accept_tcp(listener: TcpListener, app: App, router: Router) {
    let places = Arc::new(Semaphore::new(app.limits.connections));
    loop {
        let stream = tokio::select! {
            () = app.closing.cancelled() => return,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => { pause(&error).await; continue }
            },
        };
        // Answers are written whole; waiting for more to fill a segment only delays them.
        let _ = stream.set_nodelay(true);
        connect(stream, (Door::Tcp, false), &places, &app, &router);
    }
}

async fn pause(error: &io::Error) {
    tracing::warn!(%error, "accept failed");
    tokio::time::sleep(ACCEPT_PAUSE).await;
}

/// Whether the process at the far end runs as us or as root. The folder's mode says the same; this holds when somebody
/// loosened it.
fn is_ours(stream: &UnixStream, us: u32) -> bool {
    match stream.peer_cred() {
        Ok(cred) if peer_is_allowed(cred.uid(), us) => true,
        Ok(cred) => {
            tracing::warn!(uid = cred.uid(), "closed a connection of another user");
            false
        }
        Err(error) => {
            tracing::warn!(%error, "closed a connection of an unknown user");
            false
        }
    }
}

/// Who may use the Unix socket of a node that runs as `us`.
pub(super) const fn peer_is_allowed(peer: u32, us: u32) -> bool {
    peer == us || peer == 0
}

fn connect<S>(stream: S, (door, is_agents): (Door, bool), places: &Arc<Semaphore>, app: &App, router: &Router)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Ok(permit) = Arc::clone(places).try_acquire_owned() else {
        // Dropped, not queued: a client that is refused knows, one that hangs doesn't.
        tracing::debug!(?door, "too many connections");
        return;
    };
    let connection = Connection { door, is_agents, _permit: Arc::new(permit) };
    let io = TokioIo::new(Impatient::new(stream, app.limits.stall * STALLS_BEFORE_DROP));
    let router = router.clone();
    let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(connection.clone());
        router.clone().oneshot(request.map(Body::new))
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(app.limits.header)
        .max_buf_size(HEADER_LEN_MAX)
        .max_headers(HEADER_FIELDS_MAX)
        .serve_connection(io, service)
        .with_upgrades();
    let closing = app.closing.clone();
    tokio::spawn(async move {
        tokio::select! {
            () = closing.cancelled() => {}
            result = serving => if let Err(error) = result {
                tracing::debug!(%error, ?door, "connection ended");
            },
        }
    });
}

/// A stream whose writes fail when the far end takes nothing for too long.
struct Impatient<S> {
    stream: S,
    limit: Duration,
    /// Runs while a write waits.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S> Impatient<S> {
    const fn new(stream: S, limit: Duration) -> Self {
        Self { stream, limit, waiting: None }
    }

    fn judge<T>(&mut self, written: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let limit = self.limit;
        let sleep = self.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + limit)));
        ready!(sleep.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Impatient<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Impatient<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.judge(written, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.judge(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
