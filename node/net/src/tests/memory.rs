//! A transport in memory whose connections can be cut without anybody being told, as sleep and lost networks do.

use std::io;
use std::pin::Pin;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll};

use futures::{AsyncRead, AsyncWrite};
use libp2p::core::Transport;
use libp2p::core::muxing::StreamMuxerBox;
use libp2p::core::transport::MemoryTransport;
use libp2p::core::upgrade::Version;
use libp2p::{noise, yamux};
use tokio::time::{Sleep, sleep};

use super::*;

/// While set, the node's connections carry nothing, and new ones hang.
pub(in crate) type Cut = Arc<AtomicBool>;

/// How long a cut connection hangs before it fails, like a kernel that gives up on its retransmissions.
const USER_TIMEOUT: Duration = Duration::from_secs(15);

/// What a cut connection does: it takes bytes, and gives none, until it fails.
struct Cuttable<S> {
    inner: S,
    cut: Cut,
    failing: Option<Pin<Box<Sleep>>>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Cuttable<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        if self.cut.load(Ordering::Relaxed) {
            let failing = self.failing.get_or_insert_with(|| Box::pin(sleep(USER_TIMEOUT)));
            return failing.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Cuttable<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.cut.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(buf.len()));
        }
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.cut.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.cut.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.inner).poll_close(cx)
    }
}

fn cuttable(key: &Keypair, cut: Cut) -> BoxedTransport {
    MemoryTransport::new()
        .map(move |inner, _| Cuttable { inner, cut: cut.clone(), failing: None })
        .upgrade(Version::V1Lazy)
        .authenticate(noise::Config::new(key).unwrap())
        .multiplex(yamux::Config::default())
        .map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer)))
        .boxed()
}

/// A transport in memory that nobody cuts.
pub(in crate) fn in_memory(key: &Keypair) -> BoxedTransport {
    cuttable(key, Cut::default())
}

impl World {
    /// Starts a node on a transport in memory. For paused time.
    pub(in crate) async fn start_in_memory(&mut self, node: usize) -> (Node, Cut) {
        let (config, wall) = self.config(node, "/memory/0".parse().unwrap());
        let cut = Cut::default();
        let transport = cuttable(&config.keypair, cut.clone());
        let (view, org) = watch::channel(Arc::new(self.view(false)));
        let guard = addr::Guard::with_loopback(true);
        let (net, events) = Net::spawn_over(transport, guard, config, org).unwrap();
        let mut node = Node { id: self.id(node), net, events, view, wall };
        node.until(|event| matches!(event, NetEvent::Listening(addrs) if !addrs.is_empty())).await;
        (node, cut)
    }
}
