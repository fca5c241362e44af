//! The way to a running node: the API's frames over a WebSocket over the Unix socket.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tieline_proto::api::{ApiError, Call, Code, Request};
use tokio::net::UnixStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::{HeaderValue, header};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::http::SOCKET_NAME;
use crate::http::bind::SocketPath;
use crate::http::ws::{MESSAGE_LEN_MAX as REQUEST_LEN_MAX, close};

/// How long a node may be silent before it has said its own limit.
const QUIET_FIRST: Duration = Duration::from_secs(50);

/// How long a node may take to let us in. It answers at once unless it is stopped in a debugger or its disk hangs.
const HANDSHAKE_WAIT: Duration = Duration::from_secs(10);

/// Longest message taken from the node, in bytes: packed frames, the last of which holds an event of half a MiB, or an
/// answer with a long list.
const MESSAGE_LEN_MAX: usize = 64 * 1024 * 1024;

/// Where a node is and what to show it.
#[derive(Clone, Debug)]
pub struct Dial {
    socket: PathBuf,
    /// An agent's token; without one the socket's own word counts.
    token: Option<String>,
    /// What to type to start the node.
    start: String,
}

impl Dial {
    /// The node of a data folder. In an agent's environment, and unless `--data` names another one, that agent's node.
    pub fn new(data_is_flag: bool, data: &Path, env: &dyn Fn(&str) -> Option<String>) -> Self {
        let start =
            if data_is_flag { format!("tieline up --data {}", data.display()) } else { "tieline up".to_owned() };
        match env("TIELINE_SOCKET").filter(|socket| !socket.is_empty() && !data_is_flag) {
            Some(socket) => Self {
                socket: PathBuf::from(socket),
                token: env("TIELINE_TOKEN").filter(|token| !token.is_empty()),
                start,
            },
            None => Self { socket: data.join(SOCKET_NAME), token: None, start },
        }
    }

    /// Whether a node listens there.
    pub async fn is_up(&self) -> bool {
        self.stream().await.is_ok()
    }

    async fn stream(&self) -> io::Result<UnixStream> {
        let address = SocketPath::of(&self.socket)?;
        UnixStream::connect(address.path()).await
    }

    /// Connects.
    ///
    /// # Errors
    /// [`Code::NotRunning`] when no node listens; what the node says when it refuses.
    pub async fn connect(&self) -> Result<Client, ApiError> {
        let stream = self.stream().await.map_err(|error| self.not_running(&error))?;
        let internal = |error: &dyn std::fmt::Display| ApiError::new(Code::Internal, format!("handshake: {error}"));
        let mut request = "ws://localhost/v1/ws?pack=lines".into_client_request().map_err(|error| internal(&error))?;
        if let Some(token) = &self.token {
            let value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|error| internal(&error))?;
            request.headers_mut().insert(header::AUTHORIZATION, value);
        }
        let config =
            WebSocketConfig::default().max_message_size(Some(MESSAGE_LEN_MAX)).max_frame_size(Some(MESSAGE_LEN_MAX));
        let handshake = tokio_tungstenite::client_async_with_config(request, stream, Some(config));
        match tokio::time::timeout(HANDSHAKE_WAIT, handshake).await {
            Ok(Ok((ws, _))) => Ok(Client { ws, last: 0, lines: VecDeque::new(), quiet: QUIET_FIRST }),
            Ok(Err(Error::Http(response))) => Err(refusal(response.body().as_deref().unwrap_or_default())),
            Ok(Err(Error::Io(error))) => Err(self.not_running(&error)),
            Ok(Err(error)) => Err(internal(&error)),
            Err(_) => {
                Err(ApiError::new(Code::Timeout, format!("the node does not answer on {}", self.socket.display()))
                    .hint("is it stopped? tieline logs shows what it did last"))
            }
        }
    }

    fn not_running(&self, error: &io::Error) -> ApiError {
        let socket = self.socket.display();
        match error.kind() {
            io::ErrorKind::PermissionDenied => {
                ApiError::new(Code::Refused, format!("the node at {socket} is another user's"))
            }
            io::ErrorKind::InvalidInput => ApiError::new(Code::Invalid, format!("{socket}: {error}")),
            _ => ApiError::new(Code::NotRunning, format!("no node runs here: {socket}: {error}")).hint(&self.start),
        }
    }
}

/// The error in a response that is no upgrade.
fn refusal(body: &[u8]) -> ApiError {
    #[derive(Deserialize)]
    struct Body {
        error: ApiError,
    }
    match serde_json::from_slice::<Body>(body) {
        Ok(body) => body.error,
        Err(_) => ApiError::new(Code::Internal, "the node refused the connection and did not say why"),
    }
}

/// A connection to a node.
#[derive(Debug)]
pub struct Client {
    ws: WebSocketStream<UnixStream>,
    last: u64,
    /// Lines that came in one message and were not looked at yet.
    lines: VecDeque<String>,
    quiet: Duration,
}

/// What the node says.
#[derive(Debug)]
pub enum Said {
    /// An answer to a call.
    Answer(u64, Result<Value, ApiError>),
    /// A frame of a subscription.
    Frame(u64, Box<RawValue>),
}

/// One object on the wire.
#[derive(Deserialize)]
struct Line<'a> {
    #[serde(default)]
    id: Option<u64>,
    #[serde(default, borrow)]
    ok: Option<&'a RawValue>,
    #[serde(default)]
    error: Option<ApiError>,
    #[serde(default, borrow)]
    frame: Option<&'a RawValue>,
    #[serde(default)]
    hello: Option<Hello>,
}

#[derive(Deserialize)]
struct Hello {
    quiet_ms_max: u64,
}

/// Whether an error means that the connection is gone, and not that the node answered.
pub fn is_gone(error: &ApiError) -> bool {
    error.code == Code::NotRunning
}

impl Client {
    /// Sends a request. Its answer comes by [`Client::next`] under the number that is returned.
    ///
    /// # Errors
    /// When the connection is gone.
    pub async fn send(&mut self, request: Request) -> Result<u64, ApiError> {
        self.last += 1;
        let call = Call { id: self.last, request };
        let text = serde_json::to_string(&call)
            .map_err(|error| ApiError::new(Code::Internal, format!("the request can't be written: {error}")))?;
        if text.len() > REQUEST_LEN_MAX {
            let words = format!("a request of {} bytes is over {REQUEST_LEN_MAX}", text.len());
            return Err(ApiError::new(Code::Limit, words).hint("send a long text as a file with --attach"));
        }
        self.ws.send(Message::Text(text.into())).await.map_err(|error| gone(&error))?;
        Ok(call.id)
    }

    /// Asks and waits for the answer. Frames that come meanwhile are dropped: subscriptions use [`Client::open`].
    ///
    /// # Errors
    /// What the node answers, or that the connection is gone.
    pub async fn call(&mut self, request: Request) -> Result<Value, ApiError> {
        let call = self.send(request).await?;
        loop {
            if let Said::Answer(id, answer) = self.next().await?
                && id == call
            {
                return answer;
            }
        }
    }

    /// Opens a subscription: the number its frames come under, and the answer.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn open(&mut self, request: Request) -> Result<(u64, Value), ApiError> {
        let answer = self.call(request).await?;
        Ok((self.last, answer))
    }

    /// What the node says next.
    ///
    /// # Errors
    /// [`Code::NotRunning`] when the connection is gone or silent for too long.
    pub async fn next(&mut self) -> Result<Said, ApiError> {
        loop {
            while let Some(line) = self.lines.pop_front() {
                if let Some(said) = self.understand(&line)? {
                    return Ok(said);
                }
            }
            let message = match tokio::time::timeout(self.quiet, self.ws.next()).await {
                Ok(Some(Ok(message))) => message,
                Ok(Some(Err(error))) => return Err(gone(&error)),
                Ok(None) => return Err(closed("the node closed the connection")),
                Err(_) => return Err(closed(&format!("the node was silent for {} s", self.quiet.as_secs()))),
            };
            match message {
                Message::Text(text) => self.lines.extend(text.lines().map(str::to_owned)),
                Message::Close(Some(frame)) => {
                    let code = match u16::from(frame.code) {
                        close::TOO_LONG => Code::Limit,
                        close::NO_ACCESS => Code::Refused,
                        _ => Code::NotRunning,
                    };
                    return Err(ApiError::new(code, frame.reason.as_str()).hint("tieline status"));
                }
                _ => {}
            }
        }
    }

    fn understand(&mut self, line: &str) -> Result<Option<Said>, ApiError> {
        let strange = |error: &dyn std::fmt::Display| ApiError::new(Code::Internal, format!("the node said: {error}"));
        let Line { id, ok, error, frame, hello } = serde_json::from_str(line).map_err(|error| strange(&error))?;
        if let Some(hello) = hello {
            self.quiet = Duration::from_millis(hello.quiet_ms_max);
        }
        let Some(id) = id else { return error.map_or(Ok(None), Err) };
        Ok(Some(match (frame, error) {
            (Some(frame), _) => Said::Frame(id, frame.to_owned()),
            (None, Some(error)) => Said::Answer(id, Err(error)),
            (None, None) => {
                let value = ok.map_or(Ok(Value::Null), |ok| serde_json::from_str(ok.get()));
                Said::Answer(id, Ok(value.map_err(|error| strange(&error))?))
            }
        }))
    }
}

/// Reads an answer as a `T`.
///
/// # Errors
/// When it is something else.
pub fn read<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, ApiError> {
    serde_json::from_value(value).map_err(|error| {
        ApiError::new(Code::Internal, format!("the node's answer is not understood: {error}"))
            .hint("is the node of another version? restart it")
    })
}

fn gone(error: &Error) -> ApiError {
    closed(&format!("the connection broke: {error}"))
}

fn closed(why: &str) -> ApiError {
    ApiError::new(Code::NotRunning, why).hint("tieline status")
}
