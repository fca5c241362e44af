//! The one way into a running node: every door (Unix socket, loopback page, remote stream) calls through this.

use std::sync::Arc;

use serde_json::Value;
use tieline_proto::api::{ApiError, Code, Request};
use tieline_proto::id::{ChannelId, DeviceId, MemberId, MessageId};
use tokio::sync::{mpsc, oneshot};

/// Calls that wait for the node's loop. More wait at the door.
pub const CALLS_WAITING_MAX: usize = 1024;

/// Frames that wait for one subscriber's socket. A feed re-reads what it missed from disk, so this stays small.
pub const FRAMES_WAITING_MAX: usize = 64;

/// Who calls, as the door has proved it. Never taken from the request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Caller {
    /// The box's owner, by the Unix socket or the loopback page.
    Owner,
    /// An agent's process, by its token.
    Agent {
        /// Where it is a member.
        channel: ChannelId,
        /// Which member.
        member: MemberId,
        /// The turn it runs.
        run: Option<MessageId>,
    },
    /// A paired device, by its link.
    Device(DeviceId),
}

/// One call on its way to the node's loop.
#[derive(Debug)]
pub struct ApiCall {
    /// Who calls.
    pub caller: Caller,
    /// What is asked.
    pub request: Request,
    /// Where the answer goes. `ok` values are any JSON.
    pub reply: oneshot::Sender<Result<Value, ApiError>>,
    /// Subscriptions: where frames go, one or more at once, each a JSON text of `api::Frame` on a line of its own. Dropped
    /// by the node at the end.
    pub feed: Option<mpsc::Sender<Arc<str>>>,
}

/// Calls a node.
#[derive(Clone, Debug)]
pub struct NodeHandle(mpsc::Sender<ApiCall>);

impl NodeHandle {
    /// A handle and the queue it feeds.
    #[must_use]
    pub fn new() -> (Self, mpsc::Receiver<ApiCall>) {
        let (sender, receiver) = mpsc::channel(CALLS_WAITING_MAX);
        (Self(sender), receiver)
    }

    /// Calls and waits for the answer.
    ///
    /// # Errors
    /// What the node answers; [`Code::NotRunning`] when it is stopping.
    pub async fn call(&self, caller: Caller, request: Request) -> Result<Value, ApiError> {
        self.send(caller, request, None).await
    }

    /// Calls, waits for the answer, and has frames sent to `feed` from then on.
    ///
    /// # Errors
    /// As [`NodeHandle::call`].
    pub async fn subscribe(
        &self,
        caller: Caller,
        request: Request,
        feed: mpsc::Sender<Arc<str>>,
    ) -> Result<Value, ApiError> {
        self.send(caller, request, Some(feed)).await
    }

    /// Queues a call and gives the place where its answer comes, so that a door keeps the order of calls without
    /// waiting for their answers. A place that is dropped by the node means [`stopping`].
    ///
    /// # Errors
    /// [`Code::NotRunning`] when the node is stopping.
    pub async fn begin(
        &self,
        caller: Caller,
        request: Request,
        feed: Option<mpsc::Sender<Arc<str>>>,
    ) -> Result<oneshot::Receiver<Result<Value, ApiError>>, ApiError> {
        let (reply, answer) = oneshot::channel();
        self.0.send(ApiCall { caller, request, reply, feed }).await.map_err(|_| stopping())?;
        Ok(answer)
    }

    async fn send(
        &self,
        caller: Caller,
        request: Request,
        feed: Option<mpsc::Sender<Arc<str>>>,
    ) -> Result<Value, ApiError> {
        self.begin(caller, request, feed).await?.await.map_err(|_| stopping())?
    }
}

/// What callers are told when the node ends before it answers.
#[must_use]
pub fn stopping() -> ApiError {
    ApiError::new(Code::NotRunning, "the node is stopping").hint("tieline up")
}
