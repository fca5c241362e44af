//! What the network tells the node's loop, and how it is pushed back when the loop is slow.

use std::collections::BTreeMap;
use std::sync::Arc;

use libp2p::{Multiaddr, PeerId};
use tieline_proto::id::NodeId;
use tieline_proto::link::{Lane, Message};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::pair::{OfferId, PairEvent};

/// Events that wait for the loop, in each of the two queues. Each holds at least its own struct of some 200 bytes.
const EVENTS_WAITING_MAX: usize = 1024;

/// Bytes of frames that wait for the loop, in each of the two queues: eight of the largest, so that one peer's big
/// frame does not stop another's small ones.
const EVENT_BYTES_MAX: usize = 8 << 20;

/// What the network tells.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "most events are frames, the largest; each moves once, through a queue")]
pub enum NetEvent {
    /// The addresses this node listens on now, all of them.
    Listening(Vec<Multiaddr>),
    /// A link is up: a probe has passed through the far side.
    LinkUp {
        /// Whom it joins us with.
        node: NodeId,
        /// What the org calls it.
        name: String,
        /// Its transport peer id, for the peer book.
        peer_id: PeerId,
        /// The address it was reached at, when this side dialled.
        addr: Option<Multiaddr>,
    },
    /// A link that was up is gone. No frame of it follows.
    LinkDown {
        /// Whom it joined us with.
        node: NodeId,
        /// Why, in words.
        reason: String,
    },
    /// A frame came.
    Frame {
        /// From whom.
        node: NodeId,
        /// On which lane. Frames of one lane come in order; lanes among each other don't, and the control lane overtakes.
        lane: Lane,
        /// Its head.
        message: Message,
        /// Its tail.
        tail: Vec<u8>,
    },
    /// How an offer to pair goes.
    Pair {
        /// Which.
        offer: OfferId,
        /// How.
        event: PairEvent,
    },
}

/// Ends of the two queues that links write to.
#[derive(Clone, Debug)]
pub(super) struct EventSender {
    control: Queue,
    lanes: Queue,
}

#[derive(Clone, Debug)]
struct Queue {
    items: mpsc::Sender<Item>,
    budget: Arc<Semaphore>,
}

#[derive(Debug)]
struct Item {
    event: NetEvent,
    /// Which link of the node it belongs to; 0 for none.
    link: u64,
    /// Room it takes; given back when it is received.
    _room: Option<OwnedSemaphorePermit>,
}

/// The loop is gone: the node is stopping.
#[derive(Debug)]
pub(super) struct Stopped;

/// Where the node's loop receives events.
#[derive(Debug)]
pub struct NetEvents {
    control: mpsc::Receiver<Item>,
    lanes: mpsc::Receiver<Item>,
    /// The link of each node that is up, as told to the loop.
    live: BTreeMap<NodeId, u64>,
}

pub(super) fn channel() -> (EventSender, NetEvents) {
    let (control, from_control) = mpsc::channel(EVENTS_WAITING_MAX);
    let (lanes, from_lanes) = mpsc::channel(EVENTS_WAITING_MAX);
    let queue = |items| Queue { items, budget: Arc::new(Semaphore::new(EVENT_BYTES_MAX)) };
    (
        EventSender { control: queue(control), lanes: queue(lanes) },
        NetEvents { control: from_control, lanes: from_lanes, live: BTreeMap::new() },
    )
}

impl EventSender {
    /// Sends what is not a lane's frame; waits for room.
    pub(super) async fn control(&self, link: u64, event: NetEvent) -> Result<(), Stopped> {
        self.control.send(link, event).await
    }

    /// Sends a frame of a lane; waits for room.
    pub(super) async fn lane(&self, link: u64, event: NetEvent) -> Result<(), Stopped> {
        self.lanes.send(link, event).await
    }
}

impl Queue {
    async fn send(&self, link: u64, event: NetEvent) -> Result<(), Stopped> {
        let room = match &event {
            NetEvent::Frame { tail, .. } if !tail.is_empty() => {
                let bytes = u32::try_from(tail.len().min(EVENT_BYTES_MAX)).unwrap_or(u32::MAX);
                Some(self.budget.clone().acquire_many_owned(bytes).await.map_err(|_| Stopped)?)
            }
            _ => None,
        };
        self.items.send(Item { event, link, _room: room }).await.map_err(|_| Stopped)
    }
}

impl NetEvents {
    /// The next event; control frames and links going up or down come before frames of lanes. `None` when the network
    /// has stopped. Cancel safe.
    pub async fn recv(&mut self) -> Option<NetEvent> {
        loop {
            tokio::select! {
                biased;
                item = self.control.recv() => {
                    let Item { event, link, .. } = item?;
                    match &event {
                        NetEvent::LinkUp { node, .. } => drop(self.live.insert(*node, link)),
                        NetEvent::LinkDown { node, .. } => drop(self.live.remove(node)),
                        _ => {}
                    }
                    return Some(event);
                }
                Some(Item { event, link, .. }) = self.lanes.recv() => {
                    // The link went down meanwhile and the loop was told: it resumes from what it has.
                    let of_live = matches!(&event, NetEvent::Frame { node, .. } if self.live.get(node) == Some(&link));
                    if of_live {
                        return Some(event);
                    }
                }
            }
        }
    }
}
