//! Where this node last met the others. A hint: it can be deleted at any time.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use libp2p::{Multiaddr, PeerId};
use serde::{Deserialize, Serialize};
use tieline_proto::id::NodeId;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::keys;
use crate::net::PeerHints;

/// The file.
pub const BOOK: &str = "peers.json";

/// Addresses kept of one node; the newest are the likeliest.
const ADDRS_MAX: usize = 16;

/// Between two writes: links that flap must not keep a disk busy.
const REST: Duration = Duration::from_secs(1);

/// How long a stop waits for the last write.
const CLOSE_WAIT: Duration = Duration::from_secs(2);

/// What is known of where a node is.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Met {
    /// Its transport peer id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// Addresses it had, newest first.
    #[serde(default)]
    pub addrs: Vec<String>,
}

type Nodes = BTreeMap<NodeId, Met>;

/// The book, and the task that writes it: nobody waits for a hint to be on disk.
#[derive(Debug)]
pub struct Book {
    nodes: watch::Sender<Nodes>,
    closing: CancellationToken,
    writing: Option<JoinHandle<()>>,
}

impl Book {
    /// The book of a data folder. What cannot be read is no hint.
    #[must_use]
    pub fn open(data: &Path) -> Self {
        let path = data.join(BOOK);
        let nodes = std::fs::read(&path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let (nodes, changed) = watch::channel(nodes.unwrap_or_default());
        let closing = CancellationToken::new();
        let writing = Some(tokio::spawn(write(path, changed, closing.clone())));
        Self { nodes, closing, writing }
    }

    /// Where a node may be.
    #[must_use]
    pub fn hints(&self, node: &NodeId) -> PeerHints {
        let nodes = self.nodes.borrow();
        let Some(met) = nodes.get(node) else { return PeerHints::default() };
        let peer_id = met.peer.as_deref().and_then(|peer| PeerId::from_str(peer).ok());
        PeerHints { peer_id, addrs: met.addrs.iter().filter_map(|addr| Multiaddr::from_str(addr).ok()).collect() }
    }

    /// A node was met. True when that is news.
    pub fn met(&mut self, node: NodeId, peer: PeerId, addr: Option<&Multiaddr>) -> bool {
        self.change(node, |met| {
            met.peer = Some(peer.to_string());
            if let Some(addr) = addr {
                front(&mut met.addrs, addr.to_string());
            }
        })
    }

    /// A node says where it listens. True when that is news.
    pub fn learn(&mut self, node: NodeId, addrs: &[String]) -> bool {
        let addrs: Vec<_> = addrs.iter().filter(|addr| Multiaddr::from_str(addr).is_ok()).take(ADDRS_MAX).collect();
        self.change(node, |met| addrs.iter().rev().for_each(|addr| front(&mut met.addrs, (*addr).clone())))
    }

    fn change(&mut self, node: NodeId, change: impl FnOnce(&mut Met)) -> bool {
        self.nodes.send_if_modified(|nodes| {
            let before = nodes.get(&node).cloned();
            let mut met = before.clone().unwrap_or_default();
            change(&mut met);
            let is_new = before.as_ref() != Some(&met);
            if is_new {
                nodes.insert(node, met);
            }
            is_new
        })
    }

    /// Waits for the last write.
    pub async fn close(&mut self) {
        self.closing.cancel();
        if let Some(writing) = self.writing.take() {
            let _ = tokio::time::timeout(CLOSE_WAIT, writing).await;
        }
    }
}

/// Writes what has changed, and once more what changed meanwhile.
async fn write(path: PathBuf, mut changed: watch::Receiver<Nodes>, closing: CancellationToken) {
    loop {
        tokio::select! {
            // What has changed is written before it ends.
            biased;
            news = changed.changed() => if news.is_err() { return },
            () = closing.cancelled() => return,
        }
        let bytes = serde_json::to_vec_pretty(&*changed.borrow_and_update());
        let to = path.clone();
        let written = tokio::task::spawn_blocking(move || {
            bytes.map_err(std::io::Error::other).and_then(|bytes| keys::write(&to, &bytes))
        });
        if let Ok(Err(error)) = written.await {
            tracing::debug!(%error, "where other nodes are is not remembered");
        }
        let _ = tokio::time::timeout(REST, closing.cancelled()).await;
    }
}

fn front(list: &mut Vec<String>, addr: String) {
    list.retain(|known| *known != addr);
    list.insert(0, addr);
    list.truncate(ADDRS_MAX);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(n: u8) -> NodeId {
        let key = ed25519_dalek::SigningKey::from_bytes(&[n; 32]);
        tieline_proto::crypto::sign::device_id(&key)
    }

    #[tokio::test]
    async fn only_news_is_written_and_it_is_there_after_the_end() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut book = Book::open(dir.path());
        let addrs = |last: u8| vec![format!("/ip4/10.0.0.{last}/tcp/1"), "/ip4/10.0.0.9/tcp/1".to_owned()];
        assert!(book.learn(node(1), &addrs(1)));
        assert!(!book.learn(node(1), &addrs(1)), "the same again is no news");
        assert!(!book.learn(node(1), &["no address".to_owned()]));
        assert!(book.learn(node(1), &addrs(2)));
        let peer = PeerId::random();
        assert!(book.met(node(2), peer, None) && !book.met(node(2), peer, None));
        let hints = book.hints(&node(1));
        book.close().await;

        let mut book = Book::open(dir.path());
        assert_eq!(book.hints(&node(1)), hints);
        let told: Vec<_> = hints.addrs.iter().map(ToString::to_string).collect();
        let newest_first = ["/ip4/10.0.0.2/tcp/1", "/ip4/10.0.0.9/tcp/1", "/ip4/10.0.0.1/tcp/1"];
        assert_eq!(told, newest_first);
        assert_eq!(book.hints(&node(2)).peer_id, Some(peer));
        assert_eq!(book.hints(&node(3)), PeerHints::default());
        book.close().await;
    }

    #[tokio::test]
    async fn what_cannot_be_read_is_no_hint() {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::write(dir.path().join(BOOK), "{").expect("written");
        let mut book = Book::open(dir.path());
        assert_eq!(book.hints(&node(1)), PeerHints::default());
        book.close().await;
        assert_eq!(std::fs::read(dir.path().join(BOOK)).expect("read"), b"{", "and nothing was to be written");
    }
}
