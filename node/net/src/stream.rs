//! Raw streams on the swarm's connections.
//!
//! Written by hand and not taken from `libp2p-stream`, for two faults of that crate that hurt here: its accept queue
//! holds one stream and drops what comes while it is full (sixteen lanes opened at once lose most of them), and with
//! several connections to a peer it opens on a random one. Here every inbound stream reaches the swarm's loop, and
//! every outbound one names its connection.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll, Waker};

use libp2p::core::transport::PortUse;
use libp2p::core::upgrade::{InboundUpgrade, OutboundUpgrade, UpgradeInfo};
use libp2p::core::{Endpoint, Multiaddr};
use libp2p::swarm::handler::{
    ConnectionEvent, DialUpgradeError, FullyNegotiatedInbound, FullyNegotiatedOutbound, StreamUpgradeError,
};
use libp2p::swarm::{
    ConnectionDenied, ConnectionHandler, ConnectionHandlerEvent, ConnectionId, FromSwarm, NetworkBehaviour,
    NotifyHandler, SubstreamProtocol, THandler, THandlerInEvent, THandlerOutEvent, ToSwarm,
};
use libp2p::{PeerId, Stream, StreamProtocol};
use tokio::sync::oneshot;

/// What a stream is for.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Purpose {
    /// The handshake and control lane of a link.
    Link,
    /// Another lane of a link.
    Lane,
    /// Pairing of a device.
    Pair,
}

impl Purpose {
    const ALL: [Self; 3] = [Self::Link, Self::Lane, Self::Pair];

    /// The name it is negotiated by.
    #[must_use]
    pub const fn protocol(self) -> StreamProtocol {
        StreamProtocol::new(match self {
            Self::Link => "/tieline/link/1",
            Self::Lane => "/tieline/lane/1",
            Self::Pair => "/tieline/pair/1",
        })
    }

    fn of(protocol: &StreamProtocol) -> Option<Self> {
        Self::ALL.into_iter().find(|purpose| purpose.protocol() == *protocol)
    }
}

/// Why a stream could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The connection is gone.
    #[error("the connection closed")]
    Closed,
    /// The far side does not speak the protocol.
    #[error("the far side does not speak {0}")]
    Unsupported(StreamProtocol),
    /// The far side did not answer in time.
    #[error("the far side did not answer")]
    Timeout,
    /// The connection failed.
    #[error("opening a stream: {0}")]
    Io(#[from] std::io::Error),
}

/// A stream that the far side opened.
#[derive(Debug)]
pub struct Inbound {
    /// Who opened it.
    pub peer: PeerId,
    /// On which connection.
    pub connection: ConnectionId,
    /// For what.
    pub purpose: Purpose,
    /// The stream.
    pub stream: Stream,
}

type Reply = oneshot::Sender<Result<Stream, OpenError>>;

/// Opens and accepts raw streams.
#[derive(Debug, Default)]
pub struct Behaviour {
    pending: VecDeque<ToSwarm<Inbound, Open>>,
    waker: Option<Waker>,
}

impl Behaviour {
    /// Opens a stream on a connection. The answer is dropped unanswered when the connection is gone.
    pub fn open(&mut self, peer: PeerId, connection: ConnectionId, purpose: Purpose, reply: Reply) {
        let event = Open { purpose, reply };
        self.pending.push_back(ToSwarm::NotifyHandler {
            peer_id: peer,
            handler: NotifyHandler::One(connection),
            event,
        });
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl NetworkBehaviour for Behaviour {
    type ConnectionHandler = Handler;
    type ToSwarm = Inbound;

    fn handle_established_inbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(Handler::default())
    }

    fn handle_established_outbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(Handler::default())
    }

    fn on_swarm_event(&mut self, _: FromSwarm) {}

    fn on_connection_handler_event(
        &mut self,
        peer: PeerId,
        connection: ConnectionId,
        (purpose, stream): THandlerOutEvent<Self>,
    ) {
        self.pending.push_back(ToSwarm::GenerateEvent(Inbound { peer, connection, purpose, stream }));
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        match self.pending.pop_front() {
            Some(event) => Poll::Ready(event),
            None => {
                self.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// A request to open a stream.
#[derive(Debug)]
pub struct Open {
    purpose: Purpose,
    reply: Reply,
}

/// One connection's side of [`Behaviour`].
#[derive(Debug, Default)]
pub struct Handler {
    opening: VecDeque<Open>,
    accepted: VecDeque<(Purpose, Stream)>,
}

impl ConnectionHandler for Handler {
    type FromBehaviour = Open;
    type ToBehaviour = (Purpose, Stream);
    type InboundProtocol = Upgrade;
    type OutboundProtocol = Upgrade;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = Open;

    fn listen_protocol(&self) -> SubstreamProtocol<Upgrade> {
        SubstreamProtocol::new(Upgrade(Purpose::ALL.map(Purpose::protocol).to_vec()), ())
    }

    fn on_behaviour_event(&mut self, open: Open) {
        self.opening.push_back(open);
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ConnectionHandlerEvent<Upgrade, Open, (Purpose, Stream)>> {
        if let Some(accepted) = self.accepted.pop_front() {
            return Poll::Ready(ConnectionHandlerEvent::NotifyBehaviour(accepted));
        }
        match self.opening.pop_front() {
            Some(open) => Poll::Ready(ConnectionHandlerEvent::OutboundSubstreamRequest {
                protocol: SubstreamProtocol::new(Upgrade(vec![open.purpose.protocol()]), open),
            }),
            // Both queues are filled only by calls after which the swarm polls this handler again.
            None => Poll::Pending,
        }
    }

    fn on_connection_event(&mut self, event: ConnectionEvent<Upgrade, Upgrade, (), Open>) {
        match event {
            ConnectionEvent::FullyNegotiatedInbound(FullyNegotiatedInbound { protocol, info: () }) => {
                let (protocol, stream) = protocol;
                if let Some(purpose) = Purpose::of(&protocol) {
                    self.accepted.push_back((purpose, stream));
                }
            }
            ConnectionEvent::FullyNegotiatedOutbound(FullyNegotiatedOutbound { protocol: (_, stream), info }) => {
                // Whoever asked may have given up; the stream is then dropped with the answer.
                let _ = info.reply.send(Ok(stream));
            }
            ConnectionEvent::DialUpgradeError(DialUpgradeError { info, error }) => {
                let error = match error {
                    StreamUpgradeError::Timeout => OpenError::Timeout,
                    StreamUpgradeError::NegotiationFailed => OpenError::Unsupported(info.purpose.protocol()),
                    StreamUpgradeError::Io(error) => OpenError::Io(error),
                    StreamUpgradeError::Apply(never) => match never {},
                };
                let _ = info.reply.send(Err(error));
            }
            _ => {}
        }
    }
}

/// Negotiates a protocol name and hands out the bare stream.
#[derive(Debug)]
pub struct Upgrade(Vec<StreamProtocol>);

impl UpgradeInfo for Upgrade {
    type Info = StreamProtocol;
    type InfoIter = std::vec::IntoIter<StreamProtocol>;

    fn protocol_info(&self) -> Self::InfoIter {
        self.0.clone().into_iter()
    }
}

impl InboundUpgrade<Stream> for Upgrade {
    type Output = (StreamProtocol, Stream);
    type Error = Infallible;
    type Future = Ready<Result<Self::Output, Infallible>>;

    fn upgrade_inbound(self, stream: Stream, protocol: StreamProtocol) -> Self::Future {
        ready(Ok((protocol, stream)))
    }
}

impl OutboundUpgrade<Stream> for Upgrade {
    type Output = (StreamProtocol, Stream);
    type Error = Infallible;
    type Future = Ready<Result<Self::Output, Infallible>>;

    fn upgrade_outbound(self, stream: Stream, protocol: StreamProtocol) -> Self::Future {
        ready(Ok((protocol, stream)))
    }
}
