//! The way to a node: by its link, or straight back into the loop when it is this node.

use tieline_proto::id::NodeId;
use tieline_proto::link::{Lane, Message};
use tokio::sync::mpsc;

use crate::net::{Net, SendError};

/// Frames of this node to itself that wait for the loop; more make their senders wait.
pub const LOCAL_WAITING_MAX: usize = 64;

/// A frame from this node's resident to this node's home.
pub type LocalFrame = (Message, Vec<u8>);

/// Why a frame could not be sent.
#[derive(Debug, thiserror::Error)]
pub enum Closed {
    /// The link is down, or the node stops.
    #[error("the way to the node is closed")]
    Gone,
    /// The link has no room for another lane now.
    #[error("the link to the node has too many lanes")]
    Busy,
}

/// Ways to all nodes.
#[derive(Clone)]
pub struct Outlet {
    /// This node.
    pub me: NodeId,
    /// Links.
    pub net: Net,
    /// Back into the loop.
    pub local: mpsc::Sender<LocalFrame>,
}

impl Outlet {
    /// Sends on a lane and waits for room.
    ///
    /// # Errors
    /// When the link is down, the node stops, or the link has no room for the lane.
    pub async fn send_lane(&self, to: NodeId, lane: Lane, message: Message, tail: Vec<u8>) -> Result<(), Closed> {
        if to == self.me {
            return self.local.send((message, tail)).await.map_err(|_| Closed::Gone);
        }
        self.net.send_lane(to, lane, message, tail).await.map_err(|error| match error {
            SendError::TooManyLanes => Closed::Busy,
            _ => Closed::Gone,
        })
    }

    /// Says that nothing more follows on a lane for now.
    pub fn end_lane(&self, to: NodeId, lane: Lane) {
        if to != self.me {
            self.net.end_lane(to, lane);
        }
    }
}
