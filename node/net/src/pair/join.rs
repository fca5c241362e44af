//! The device's side.

use std::fmt;
use std::sync::Arc;

use futures::StreamExt;
use futures::io::{AsyncReadExt, AsyncWriteExt};
use libp2p::identity::Keypair;
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::swarm::{ConnectionId, SwarmEvent};
use libp2p::{Multiaddr, PeerId, Stream, Swarm};
use rand_chacha::ChaCha20Rng;
use tieline_proto::crypto::keys::DeviceKeys;
use tieline_proto::entry::Role;
use tieline_proto::pairing::{self, Device, DeviceInput, DeviceOutput, Joined, PairLink, Reason};
use tieline_proto::time::Millis;
use tokio::sync::oneshot;
use tokio::time::{Duration, Instant, sleep, sleep_until};

use super::READ_CHUNK;
use crate::addr::Guard;
use crate::stream::{OpenError, Purpose};
use crate::swarm::{self, Behaviour, BoxedTransport};

/// Delay before another try to reach the host.
const RETRY: Duration = Duration::from_millis(500);

/// Who joins.
pub struct JoinConfig {
    /// The transport's own key, which the node goes on with.
    pub keypair: Keypair,
    /// The device's keys.
    pub device: Arc<DeviceKeys>,
    /// What it wants to be called.
    pub name: String,
    /// Source of randomness.
    pub rng: ChaCha20Rng,
    /// Whether loopback addresses of the link are dialled: only where this node is to listen only on loopback.
    pub loopback: bool,
}

impl fmt::Debug for JoinConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinConfig").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What the device shows: its person types the digits at the host.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Digits {
    /// Six digits.
    pub digits: String,
    /// What the device becomes.
    pub role: Role,
    /// What the host's people call the org.
    pub org: String,
    /// What they call the host.
    pub host: String,
}

/// Why a device did not join.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The host, or this device, ended it.
    #[error("not enrolled: {0}")]
    Refused(Reason),
    /// The host could not be reached.
    #[error("the host cannot be reached: {0}")]
    Unreachable(String),
    /// The device can't be called that.
    #[error(transparent)]
    Name(#[from] pairing::JoinError),
    /// The transport could not be made.
    #[error("making the transport: {0}")]
    Transport(#[source] std::io::Error),
}

/// Joins an org by a pairing link. `show` is called with the digits, perhaps again with other ones if the stream had to
/// be made anew. Gives up after ten seconds on a host that cannot be reached or stays silent.
///
/// Cancel safe in that nothing is stored: a device that was enrolled and does not know it can come again with the same
/// keys while the offer lives.
///
/// # Errors
/// Why the device did not join.
pub async fn join(config: JoinConfig, link: PairLink, show: impl FnMut(Digits)) -> Result<Box<Joined>, JoinError> {
    let guard = Guard::with_loopback(config.loopback);
    let transport = swarm::transport(&config.keypair, &guard).map_err(JoinError::Transport)?;
    let swarm = swarm::build(&config.keypair, transport, true);
    join_with(swarm, guard, config, link, show).await
}

/// Joins over a transport of the caller's, such as a simulated one: see [`join`].
///
/// # Errors
/// Why the device did not join.
pub async fn join_over(
    transport: BoxedTransport,
    guard: Guard,
    config: JoinConfig,
    link: PairLink,
    show: impl FnMut(Digits),
) -> Result<Box<Joined>, JoinError> {
    let swarm = swarm::build(&config.keypair, transport, false);
    join_with(swarm, guard, config, link, show).await
}

async fn join_with(
    swarm: Swarm<Behaviour>,
    guard: Guard,
    config: JoinConfig,
    link: PairLink,
    show: impl FnMut(Digits),
) -> Result<Box<Joined>, JoinError> {
    let JoinConfig { device, name, rng, .. } = config;
    let begun = Instant::now();
    let machine = Device::new(link.clone(), device, &name, Millis(0), Box::new(rng))?;
    let joiner = Joiner {
        swarm,
        begun,
        machine,
        show,
        reached: false,
        reason: "the link names no address that may be dialled".to_owned(),
    };
    joiner.run(&link, &guard).await
}

struct Joiner<F> {
    swarm: Swarm<Behaviour>,
    begun: Instant,
    machine: Device,
    show: F,
    /// Whether the host was ever connected.
    reached: bool,
    /// Why the last dial failed.
    reason: String,
}

/// How it ended.
type Outcome = Result<Box<Joined>, JoinError>;

impl<F: FnMut(Digits)> Joiner<F> {
    async fn run(mut self, link: &PairLink, guard: &Guard) -> Outcome {
        let addrs: Vec<_> = link.addrs.iter().filter_map(|addr| Multiaddr::try_from(addr.clone()).ok()).collect();
        let addrs: Vec<_> = addrs.into_iter().filter(|addr| guard.check(addr).is_ok()).collect();
        let host = PeerId::from_bytes(&link.peer).ok();
        loop {
            let Some((peer, stream)) = self.until_deadline(async |joiner| joiner.reach(host, &addrs).await).await
            else {
                return self.over();
            };
            self.reached = true;
            let own_peer = self.swarm.local_peer_id().to_bytes();
            self.machine.handle(DeviceInput::Connected { own_peer, host_peer: peer.to_bytes() }, self.now());
            if let Some(outcome) = self.talk(stream).await {
                return outcome;
            }
            self.machine.handle(DeviceInput::Closed, self.now());
            if self.until_deadline(async |joiner| joiner.wait(RETRY).await).await.is_none() {
                return self.over();
            }
        }
    }

    /// Runs the machine over a stream until that ends; the outcome, if there is one.
    async fn talk(&mut self, stream: Stream) -> Option<Outcome> {
        let (mut read, mut write) = stream.split();
        let mut chunk = vec![0; READ_CHUNK];
        loop {
            while let Some(output) = self.machine.poll_output() {
                match output {
                    DeviceOutput::Send(bytes) => {
                        let sent = self.until_deadline(async |joiner| {
                            joiner
                                .during(async {
                                    write.write_all(&bytes).await?;
                                    write.flush().await
                                })
                                .await
                        });
                        match sent.await {
                            Some(Ok(())) => {}
                            Some(Err(_)) => return None,
                            None => return Some(self.over()),
                        }
                    }
                    DeviceOutput::Close => {
                        let _ = self.during(write.close()).await;
                    }
                    DeviceOutput::Digits { digits, role, org, host } => (self.show)(Digits { digits, role, org, host }),
                    DeviceOutput::Enrolled(joined) => return Some(Ok(joined)),
                    DeviceOutput::Refused { reason } => return Some(Err(JoinError::Refused(reason))),
                }
            }
            let Some(read) = self.until_deadline(async |joiner| joiner.during(read.read(&mut chunk)).await).await
            else {
                return Some(self.over());
            };
            match read.ok().and_then(|read| chunk.get(..read)).filter(|bytes| !bytes.is_empty()) {
                Some(bytes) => self.machine.handle(DeviceInput::Received(bytes.to_vec()), self.now()),
                None => return None,
            }
        }
    }

    /// Dials the host until it is connected, and opens a pairing stream.
    async fn reach(&mut self, host: Option<PeerId>, addrs: &[Multiaddr]) -> (PeerId, Stream) {
        loop {
            if let Some((peer, connection)) = self.dial(host, addrs).await
                && let Some(stream) = self.open(peer, connection).await
            {
                return (peer, stream);
            }
            self.wait(RETRY).await;
        }
    }

    async fn dial(&mut self, host: Option<PeerId>, addrs: &[Multiaddr]) -> Option<(PeerId, ConnectionId)> {
        let mut dials = Vec::new();
        let opts: Vec<_> = match host {
            Some(peer) if !addrs.is_empty() => {
                vec![DialOpts::peer_id(peer).condition(PeerCondition::Always).addresses(addrs.to_vec()).build()]
            }
            Some(_) => Vec::new(),
            None => addrs.iter().map(|addr| DialOpts::unknown_peer_id().address(addr.clone()).build()).collect(),
        };
        for opts in opts {
            let connection = opts.connection_id();
            match self.swarm.dial(opts) {
                Ok(()) => dials.push(connection),
                Err(error) => self.reason = error.to_string(),
            }
        }
        while !dials.is_empty() {
            match self.swarm.select_next_some().await {
                SwarmEvent::ConnectionEstablished { peer_id, connection_id, .. } if dials.contains(&connection_id) => {
                    return Some((peer_id, connection_id));
                }
                SwarmEvent::OutgoingConnectionError { connection_id, error, .. } => {
                    dials.retain(|dial| *dial != connection_id);
                    self.reason = error.to_string();
                }
                _ => {}
            }
        }
        None
    }

    async fn open(&mut self, peer: PeerId, connection: ConnectionId) -> Option<Stream> {
        let (reply, answer) = oneshot::channel();
        self.swarm.behaviour_mut().streams.open(peer, connection, Purpose::Pair, reply);
        match self.during(answer).await.unwrap_or(Err(OpenError::Closed)) {
            Ok(stream) => Some(stream),
            Err(error) => {
                self.reason = error.to_string();
                None
            }
        }
    }

    /// Waits, while the swarm goes on.
    async fn wait(&mut self, time: Duration) {
        self.during(sleep(time)).await;
    }

    /// Does something while the swarm goes on.
    async fn during<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return done,
                _ = self.swarm.select_next_some() => {}
            }
        }
    }

    /// Does something unless the machine's time is over first.
    async fn until_deadline<T>(&mut self, work: impl AsyncFnOnce(&mut Self) -> T) -> Option<T> {
        let deadline = self.begun + Duration::from_millis(self.machine.poll_timeout()?.0);
        tokio::select! {
            done = work(self) => Some(done),
            () = sleep_until(deadline) => None,
        }
    }

    /// The time is over: the machine says what that means.
    fn over(&mut self) -> Outcome {
        self.machine.handle(DeviceInput::Timeout, self.now());
        while let Some(output) = self.machine.poll_output() {
            if let DeviceOutput::Refused { reason } = output
                && self.reached
            {
                return Err(JoinError::Refused(reason));
            }
        }
        Err(if self.reached {
            JoinError::Refused(Reason::SpentOrExpired)
        } else {
            JoinError::Unreachable(self.reason.clone())
        })
    }

    fn now(&self) -> Millis {
        Millis(u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX))
    }
}
