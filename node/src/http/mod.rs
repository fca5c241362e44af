//! The local doors: a Unix socket for the CLI and agents, loopback HTTP and WebSocket for the browser.
//!
//! Doors decide *who* calls and how much they may cost; what a caller may do is the node's to decide. Nothing a request
//! says about its author is believed (`security.md` L6): [`Caller`] comes from the socket, the token or the cookie.
//!
//! | module | holds |
//! |---|---|
//! | [`bind`] | the two listeners, with their modes and ports |
//! | [`serve`] | connections: caps, time limits, peer check |
//! | [`guard`] | Host, Origin, credentials, content type, body: checked before any handler |
//! | [`token`] | the API token's file and browser sessions |
//! | [`ws`] | the frames of [`tieline_proto::api`] over a WebSocket |
//! | [`rest`], [`openapi`], [`page`] | plain HTTP |

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tieline_proto::api::{ApiError, Code};
use tokio_util::sync::CancellationToken;

use crate::config::ApiAddr;
use crate::handle::{Caller, NodeHandle};

pub mod bind;
pub mod error;
mod guard;
pub mod openapi;
mod page;
mod rest;
mod serve;
pub mod token;
pub(crate) mod ws;

/// Knows the tokens that the node gave to agents' processes.
pub trait Tokens: Send + Sync + 'static {
    /// Whose token it is, as of now. Asked again for every request, so that a token that is taken back is dead at once.
    fn agent(&self, token: &str) -> Option<Caller>;
}

/// Knows the node's counters.
pub trait Metrics: Send + Sync + 'static {
    /// Appends samples in Prometheus' text format.
    fn write(&self, text: &mut String);
}

/// How much a client may cost. Tests shorten the times.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// A request's header must be whole after this; also how long a kept connection may idle.
    pub header: Duration,
    /// A request's body must be whole after this.
    pub body: Duration,
    /// How often WebSocket clients are pinged. A side that hears nothing for [`QUIET_PINGS_MAX`] of it gives up.
    pub ping: Duration,
    /// A reader that takes nothing for this long is cut.
    pub stall: Duration,
    /// Connections of one door at a time.
    pub connections: usize,
}

/// A client that misses one ping and the next because of a busy box is still there; 2.5 intervals cover that.
pub const QUIET_PINGS_MAX: f64 = 2.5;

impl Default for Limits {
    fn default() -> Self {
        Self {
            header: Duration::from_secs(5),
            body: Duration::from_secs(30),
            ping: Duration::from_secs(20),
            stall: Duration::from_secs(30),
            // A thousand subscribers (the fan-out workload) and as many again that come and go.
            connections: 2048,
        }
    }
}

impl Limits {
    /// How long a WebSocket client may be silent.
    #[must_use]
    pub fn quiet(&self) -> Duration {
        self.ping.mul_f64(QUIET_PINGS_MAX)
    }
}

/// What the doors need of the node.
#[derive(Clone)]
pub struct Backend {
    /// Answers calls.
    pub node: NodeHandle,
    /// Knows agents.
    pub tokens: Arc<dyn Tokens>,
    /// Counts.
    pub metrics: Arc<dyn Metrics>,
}

/// Open doors. Dropping it closes them and every connection.
#[derive(Debug)]
pub struct Doors {
    /// Where the loopback door listens.
    pub addr: SocketAddr,
    /// The default port was busy, so [`Doors::addr`] is another one: say so.
    pub moved: bool,
    /// Where the Unix socket is.
    pub socket: PathBuf,
    token: Arc<token::ApiToken>,
    closing: CancellationToken,
}

impl Doors {
    /// Opens both doors of the node whose data is in `dir`. The caller holds the folder's lock.
    ///
    /// # Errors
    /// When a listener can't be bound, or a file of the doors is open to others.
    pub async fn open(dir: &Path, api: ApiAddr, limits: Limits, backend: Backend) -> Result<Self, DoorError> {
        bind::private_dir(dir)?;
        let token = Arc::new(token::ApiToken::open(dir)?);
        let socket = dir.join(SOCKET_NAME);
        let unix = bind::unix(&socket)?;
        let (tcp, moved) = bind::tcp(api).await?;
        let addr = tcp.local_addr().map_err(|error| DoorError::Bind { at: api.addr.to_string(), error })?;
        let closing = CancellationToken::new();
        let app = App(Arc::new(Inner {
            backend,
            token: Arc::clone(&token),
            hosts: guard::hosts(addr),
            limits,
            closing: closing.clone(),
        }));
        serve::start(unix, tcp, app);
        Ok(Self { addr, moved, socket, token, closing })
    }

    /// The API token; replacing it ends every session and socket that stands on the old one.
    #[must_use]
    pub fn token(&self) -> &token::ApiToken {
        &self.token
    }
}

impl Drop for Doors {
    fn drop(&mut self) {
        self.closing.cancel();
        // A socket nobody listens on would make clients wait for a node that is gone.
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// File name of the Unix socket in the data folder.
pub const SOCKET_NAME: &str = "tieline.sock";

/// Why the doors can't be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DoorError {
    /// A listener can't be bound.
    #[error("can't listen on {at}: {error}")]
    Bind {
        /// Where.
        at: String,
        /// What the system says.
        error: std::io::Error,
    },
    /// A file or folder can't be used.
    #[error("{path}: {error}", path = .path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// A secret is open to other users.
    #[error("{path} has mode {mode:04o}; it must not be open to others", path = .path.display())]
    Open {
        /// Which.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// A file or folder belongs to somebody else.
    #[error("{path} belongs to user {owner}, not to {us}", path = .path.display())]
    Foreign {
        /// Which.
        path: PathBuf,
        /// Its owner's uid.
        owner: u32,
        /// Our uid.
        us: u32,
    },
    /// The API token's file holds something else.
    #[error("{path} does not hold a token", path = .path.display())]
    NotToken {
        /// Which.
        path: PathBuf,
    },
}

impl From<DoorError> for ApiError {
    fn from(error: DoorError) -> Self {
        Self::from(&error)
    }
}

impl From<&DoorError> for ApiError {
    fn from(error: &DoorError) -> Self {
        let hint = match error {
            DoorError::Bind { error, .. } if error.kind() == std::io::ErrorKind::AddrInUse => {
                "choose another with --api 127.0.0.1:PORT, or leave it out".to_owned()
            }
            DoorError::Open { path, .. } => format!("chmod 600 {}", path.display()),
            DoorError::Foreign { .. } => "run as that user, or choose another folder with --data".to_owned(),
            DoorError::NotToken { path } => format!("remove {} and a new one is made", path.display()),
            DoorError::Bind { .. } | DoorError::File { .. } => String::new(),
        };
        let code = match error {
            DoorError::Open { .. } | DoorError::Foreign { .. } => Code::Refused,
            _ => Code::Internal,
        };
        Self::new(code, error.to_string()).hint(hint)
    }
}

/// What handlers share.
#[derive(Clone)]
struct App(Arc<Inner>);

struct Inner {
    backend: Backend,
    token: Arc<token::ApiToken>,
    /// The exact values of `Host` that are ours.
    hosts: Vec<String>,
    limits: Limits,
    closing: CancellationToken,
}

impl std::ops::Deref for App {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

#[cfg(test)]
pub(crate) mod tests;
