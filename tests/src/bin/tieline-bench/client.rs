//! A WebSocket client of the loopback API, as a local page would be.

use std::time::{Duration, Instant};

use futures::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tieline_tests::Node;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::http::{HeaderValue, header};
use tokio_tungstenite::{WebSocketStream, client_async};

use super::Failure;

/// Bytes of a post's text, as in every workload.
pub const TEXT_LEN: usize = 200;

/// How long one answer may take before the bench gives up.
const PATIENCE: Duration = Duration::from_secs(60);

/// One connection.
pub struct Client {
    socket: WebSocketStream<TcpStream>,
    calls: u64,
}

impl Client {
    /// Connects to a node's loopback door.
    ///
    /// # Errors
    /// When it does not let us in.
    pub async fn connect(node: &Node) -> Result<Self, Failure> {
        let api = node.ready()["api"].as_str().ok_or("the ready file has no address")?.trim_start_matches("http://");
        let token = std::fs::read_to_string(node.data().join("api-token"))?;
        let mut request = format!("ws://{api}/v1/ws?pack=lines").into_client_request()?;
        let headers = request.headers_mut();
        headers.insert(header::ORIGIN, HeaderValue::from_str(&format!("http://{api}"))?);
        headers.insert(header::AUTHORIZATION, HeaderValue::from_str(&format!("Bearer {}", token.trim()))?);
        let stream = TcpStream::connect(api).await?;
        stream.set_nodelay(true)?;
        let (socket, _) = client_async(request, stream).await?;
        Ok(Self { socket, calls: 0 })
    }

    /// Sends a request and gives its number.
    ///
    /// # Errors
    /// When the connection is gone.
    pub async fn send(&mut self, mut request: Value) -> Result<u64, Failure> {
        self.calls += 1;
        request["id"] = self.calls.into();
        self.socket.send(Message::text(request.to_string())).await?;
        Ok(self.calls)
    }

    /// The next text message: one JSON object a line.
    ///
    /// # Errors
    /// When none comes.
    pub async fn text(&mut self) -> Result<String, Failure> {
        loop {
            let message = tokio::time::timeout(PATIENCE, self.socket.next()).await?.ok_or("the node closed")??;
            if let Message::Text(text) = message {
                return Ok(text.as_str().to_owned());
            }
        }
    }

    /// Waits for the answer to a call; frames before it are dropped.
    ///
    /// # Errors
    /// When the node refuses.
    pub async fn answer(&mut self, call: u64) -> Result<Value, Failure> {
        loop {
            for line in self.text().await?.lines() {
                let value: Value = serde_json::from_str(line)?;
                if value["id"] != call || !value["frame"].is_null() {
                    continue;
                }
                if value["error"].is_null() {
                    return Ok(value["ok"].clone());
                }
                return Err(format!("refused: {}", value["error"]).into());
            }
        }
    }

    /// Calls and waits.
    ///
    /// # Errors
    /// When the node refuses.
    pub async fn call(&mut self, request: Value) -> Result<Value, Failure> {
        let call = self.send(request).await?;
        self.answer(call).await
    }

    /// Posts a text and waits until it is saved; gives how long that took.
    ///
    /// The client shares its processors with what it measures, so it takes the answer apart no further than to its
    /// message number. `text` needs no escaping.
    ///
    /// # Errors
    /// When it is refused.
    pub async fn post(&mut self, channel: &str, text: &str) -> Result<Duration, Failure> {
        let began = Instant::now();
        self.calls += 1;
        let call = self.calls;
        let request = format!(r#"{{"id":{call},"op":"post","channel":"{channel}","text":"{text}"}}"#);
        self.socket.send(Message::text(request)).await?;
        let ours = format!(r#"{{"id":{call},"#);
        loop {
            let text = self.text().await?;
            if let Some(answer) = text.lines().find_map(|line| line.strip_prefix(&ours)) {
                let saved = answer.starts_with(r#""ok":"#) && answer.contains(r#""message":"#);
                return if saved { Ok(began.elapsed()) } else { Err(format!("refused: {answer}").into()) };
            }
        }
    }

    /// Posts a text `count` times with several calls in flight.
    ///
    /// # Errors
    /// When one is refused.
    pub async fn post_many(&mut self, channel: &str, text: &str, count: u64, in_flight: u64) -> Result<(), Failure> {
        let (mut sent, mut saved) = (0, 0);
        while saved < count {
            while sent < count && sent - saved < in_flight {
                sent += 1;
                let request = format!(r#"{{"id":{sent},"op":"post","channel":"{channel}","text":"{text}"}}"#);
                self.socket.feed(Message::text(request)).await?;
            }
            self.socket.flush().await?;
            for line in self.text().await?.lines() {
                if line.contains(r#""error":"#) {
                    return Err(format!("refused: {line}").into());
                }
                saved += u64::from(line.contains(r#""ok":"#));
            }
        }
        Ok(())
    }

    /// Follows a channel from its end on, events included, and waits for the live marker.
    ///
    /// # Errors
    /// When it is refused.
    pub async fn follow(&mut self, channel: &str) -> Result<(), Failure> {
        let shown = self.call(json!({"op": "status"})).await?;
        let channels = shown["channels"].as_array().cloned().unwrap_or_default();
        let head = channels.iter().find(|c| c["name"] == channel).map(|c| c["head"]["seq"].clone());
        let head = head.ok_or("no such channel")?;
        self.send(json!({"op": "subscribe", "channel": channel, "since": head, "events": true})).await?;
        while !self.text().await?.contains("\"synced\"") {}
        Ok(())
    }
}

/// A post's text of [`TEXT_LEN`] bytes that nothing routes.
pub fn filler() -> String {
    "x".repeat(TEXT_LEN)
}
