//! Open doors before a node that is played.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tieline_proto::api::{ApiError, Code, Request};
use tieline_proto::id::{ChannelId, MemberId, MessageId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{self, Message};

use crate::config::ApiAddr;
use crate::handle::{ApiCall, Caller, NodeHandle};
use crate::http::bind::SocketPath;
use crate::http::{Backend, Doors, Limits, Metrics, Tokens};

/// How long a test waits for what must come.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// An agent's token that the played node knows.
pub(crate) const AGENT: &str = "agent-token";

/// What the played node was asked, and what it does.
#[derive(Clone)]
pub(crate) struct Played {
    /// Every call, in order.
    pub(crate) calls: Arc<Mutex<Vec<(Caller, Request)>>>,
    /// The log of the only channel: subscribers get it from their cursor on, and what is added.
    pub(crate) log: watch::Sender<Vec<String>>,
    /// Agents' tokens that are good.
    agents: Arc<Mutex<BTreeMap<String, Caller>>>,
}

impl Played {
    fn new() -> Self {
        let agents = BTreeMap::from([(AGENT.to_owned(), agent())]);
        Self { calls: Arc::default(), log: watch::Sender::new(Vec::new()), agents: Arc::new(Mutex::new(agents)) }
    }

    pub(crate) fn count(&self) -> usize {
        self.calls.lock().unwrap().len()
    }

    pub(crate) fn forget_agents(&self) {
        self.agents.lock().unwrap().clear();
    }

    /// Adds entries to the log.
    pub(crate) fn append(&self, text: &str, count: usize) {
        self.log.send_modify(|log| {
            for _ in 0..count {
                let seq = log.len() as u64 + 1;
                log.push(entry_frame(seq, text));
            }
        });
    }

    async fn serve(self, mut calls: mpsc::Receiver<ApiCall>) {
        while let Some(ApiCall { caller, request, reply, feed }) = calls.recv().await {
            self.calls.lock().unwrap().push((caller, request.clone()));
            let answer = self.answer(&request);
            let goes_on = answer.is_ok();
            let _ = reply.send(answer);
            if let (Request::Subscribe { since, once, .. }, Some(feed), true) = (request, feed, goes_on) {
                tokio::spawn(follow(self.log.subscribe(), since.0, once, feed));
            }
        }
    }

    fn answer(&self, request: &Request) -> Result<Value, ApiError> {
        match request {
            Request::Post { text, .. } => {
                self.append(text, 1);
                let seq = self.log.borrow().len();
                Ok(json!({"message": seq, "seq": seq, "state": "saved", "receipt": "r", "to": []}))
            }
            Request::ChannelShow { channel } if channel == "nowhere" => {
                Err(ApiError::new(Code::NotFound, "no channel nowhere").hint("tieline channel list"))
            }
            Request::ChannelShow { .. } => Ok(json!({"head": {"seq": self.log.borrow().len()}, "members": []})),
            Request::ChannelList {} => Ok(json!([])),
            Request::BlobGet { offset, .. } => {
                let size = 5;
                let data = if *offset == 0 { "aGVs" } else { "bG8" };
                Ok(json!({"size": size, "offset": offset, "data": data}))
            }
            _ => Ok(json!({})),
        }
    }
}

async fn follow(mut log: watch::Receiver<Vec<String>>, since: u64, once: bool, feed: mpsc::Sender<Arc<str>>) {
    let mut at = usize::try_from(since).unwrap();
    let mut synced = false;
    loop {
        let frames: Vec<String> = log.borrow_and_update().iter().skip(at).cloned().collect();
        at += frames.len();
        for frame in frames {
            if feed.send(frame.into()).await.is_err() {
                return;
            }
        }
        if !synced {
            synced = true;
            let frame = json!({"type": "synced", "seq": at}).to_string();
            if feed.send(frame.into()).await.is_err() || once {
                return;
            }
        }
        tokio::select! {
            changed = log.changed() => if changed.is_err() { return },
            () = feed.closed() => return,
        }
    }
}

/// An entry frame of the played log.
pub(crate) fn entry_frame(seq: u64, text: &str) -> String {
    json!({"type": "entry", "seq": seq, "message": seq, "kind": "posted", "author": "maya", "line": {"text": text}})
        .to_string()
}

pub(crate) fn agent() -> Caller {
    Caller::Agent { channel: ChannelId([1; 32]), member: MemberId(3), run: Some(MessageId(7)) }
}

impl Tokens for Played {
    fn agent(&self, token: &str) -> Option<Caller> {
        self.agents.lock().unwrap().get(token).cloned()
    }
}

impl Metrics for Played {
    fn write(&self, text: &mut String) {
        text.push_str("tieline_calls_total 1\n");
    }
}

/// Open doors.
pub(crate) struct Bed {
    pub(crate) doors: Doors,
    pub(crate) node: Played,
    pub(crate) dir: Arc<tempfile::TempDir>,
}

impl Bed {
    pub(crate) async fn open() -> Self {
        Self::with(Limits::default()).await
    }

    pub(crate) async fn with(limits: Limits) -> Self {
        Self::on(Arc::new(tempfile::tempdir().unwrap()), Played::new(), limits).await
    }

    async fn on(dir: Arc<tempfile::TempDir>, node: Played, limits: Limits) -> Self {
        let (handle, calls) = NodeHandle::new();
        tokio::spawn(node.clone().serve(calls));
        let backend = Backend { node: handle, tokens: Arc::new(node.clone()), metrics: Arc::new(node.clone()) };
        let api = ApiAddr { addr: "127.0.0.1:0".parse().unwrap(), chosen: true };
        let doors = Doors::open(dir.path(), api, limits, backend).await.unwrap();
        Self { doors, node, dir }
    }

    /// Closes the doors and opens them again, as a node does that restarts.
    pub(crate) async fn reopen(self) -> Self {
        let Self { doors, node, dir } = self;
        drop(doors);
        Self::on(dir, node, Limits::default()).await
    }

    pub(crate) fn host(&self) -> String {
        self.doors.addr.to_string()
    }

    pub(crate) fn token(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("api-token")).unwrap().trim().to_owned()
    }

    /// Sends a request over loopback and reads the whole answer. `headers` are lines.
    pub(crate) async fn http(&self, line: &str, headers: &[&str], body: &str) -> Reply {
        let mut stream = TcpStream::connect(self.doors.addr).await.unwrap();
        let mut request = format!("{line} HTTP/1.1\r\nConnection: close\r\n");
        for header in headers {
            request.push_str(header);
            request.push_str("\r\n");
        }
        if !body.is_empty() || line.starts_with("POST") || line.starts_with("DELETE") {
            request.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        request.push_str("\r\n");
        request.push_str(body);
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let _ = tokio::time::timeout(DEADLINE, stream.read_to_end(&mut answer)).await.expect("an answer in time");
        Reply::parse(&String::from_utf8_lossy(&answer))
    }

    /// Sends an upgrade over loopback and reads the head of its answer.
    pub(crate) async fn ws_head(&self, headers: &[&str]) -> String {
        let mut stream = TcpStream::connect(self.doors.addr).await.unwrap();
        let request = format!("GET /v1/ws HTTP/1.1\r\n{}\r\n\r\n", headers.join("\r\n"));
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(tokio::time::timeout(DEADLINE, stream.read_u8()).await.expect("an answer in time").unwrap());
        }
        String::from_utf8_lossy(&head).into_owned()
    }

    /// The same, with everything that the page itself would send.
    pub(crate) async fn own(&self, line: &str, body: &str) -> Reply {
        let (host, origin, auth) = self.own_headers();
        let kind = "Content-Type: application/json";
        self.http(line, &[&host, &origin, &auth, kind], body).await
    }

    pub(crate) fn own_headers(&self) -> (String, String, String) {
        let host = self.host();
        (format!("Host: {host}"), format!("Origin: http://{host}"), format!("Authorization: Bearer {}", self.token()))
    }

    /// A WebSocket over loopback with the token.
    pub(crate) async fn ws(&self) -> Ws<TcpStream> {
        let stream = TcpStream::connect(self.doors.addr).await.unwrap();
        self.ws_on(stream, "").await
    }

    pub(crate) async fn ws_on(&self, stream: TcpStream, query: &str) -> Ws<TcpStream> {
        let mut request = format!("ws://{}/v1/ws{query}", self.host()).into_client_request().unwrap();
        let headers = request.headers_mut();
        headers.insert("origin", format!("http://{}", self.host()).parse().unwrap());
        headers.insert("authorization", format!("Bearer {}", self.token()).parse().unwrap());
        let (ws, _) = tokio_tungstenite::client_async(request, stream).await.unwrap();
        Ws(ws)
    }

    /// A WebSocket over the Unix socket, with a token if there is one.
    pub(crate) async fn ws_unix(&self, token: Option<&str>) -> Result<Ws<UnixStream>, tungstenite::Error> {
        let path = SocketPath::of(&self.doors.socket).unwrap();
        let stream = UnixStream::connect(path.path()).await.unwrap();
        let mut request = "ws://localhost/v1/ws".into_client_request().unwrap();
        if let Some(token) = token {
            request.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        }
        let (ws, _) = tokio_tungstenite::client_async(request, stream).await?;
        Ok(Ws(ws))
    }
}

/// An HTTP answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Reply {
    fn parse(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((text, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        Self { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

/// A WebSocket client.
pub(crate) struct Ws<S>(pub(crate) WebSocketStream<S>);

impl<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin> Ws<S> {
    pub(crate) async fn send(&mut self, value: &Value) {
        self.0.send(Message::text(value.to_string())).await.unwrap();
    }

    /// The next message, control messages included.
    pub(crate) async fn next(&mut self) -> Option<Message> {
        let next = tokio::time::timeout(DEADLINE, self.0.next()).await.expect("a message in time");
        next.and_then(Result::ok)
    }

    /// The next JSON value; `None` when the socket ends.
    pub(crate) async fn value(&mut self) -> Option<Value> {
        loop {
            match self.next().await? {
                Message::Text(text) => return Some(serde_json::from_str(&text).unwrap()),
                Message::Close(_) => return None,
                _ => {}
            }
        }
    }

    /// The next value that has the key.
    pub(crate) async fn value_with(&mut self, key: &str) -> Value {
        loop {
            let value = self.value().await.unwrap_or_else(|| panic!("the socket ended before {key:?}"));
            if !value[key].is_null() {
                return value;
            }
        }
    }

    /// Asks and waits for the answer.
    pub(crate) async fn ask(&mut self, value: &Value) -> Value {
        self.send(value).await;
        loop {
            let answer = self.value().await.expect("the socket is open");
            if answer["id"] == value["id"] && answer["frame"].is_null() {
                return answer;
            }
        }
    }

    /// Reads to the close frame: its code.
    pub(crate) async fn close_code(&mut self) -> Option<u16> {
        while let Some(message) = self.next().await {
            if let Message::Close(frame) = message {
                return frame.map(|frame| frame.code.into());
            }
        }
        None
    }
}
