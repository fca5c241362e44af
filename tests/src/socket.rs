//! A client of a node's own socket, as programs use it.

use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::Value;
use tokio_tungstenite::tungstenite::{Message, WebSocket, client};

use crate::wait::DEADLINE;

/// An open connection.
#[derive(Debug)]
pub struct Socket {
    socket: WebSocket<UnixStream>,
    lines: Vec<Value>,
}

/// Connects to the node of a data folder, as its owner.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn connect(data: &Path) -> Socket {
    let stream = UnixStream::connect(data.join("tieline.sock")).expect("the node listens");
    stream.set_read_timeout(Some(DEADLINE)).expect("a socket takes a timeout");
    let (socket, _) = client("ws://localhost/v1/ws?pack=lines", stream).expect("the node speaks WebSocket");
    Socket { socket, lines: Vec::new() }
}

impl Socket {
    /// Sends a request.
    ///
    /// # Panics
    /// When the connection is closed.
    pub fn send(&mut self, request: &Value) {
        self.socket.send(Message::text(request.to_string())).expect("the connection is open");
    }

    /// Takes frames until one fits.
    ///
    /// # Panics
    /// When none comes.
    pub fn wait(&mut self, what: &str, fits: impl Fn(&Value) -> bool) -> Value {
        loop {
            if let Some(line) = self.lines.pop() {
                if fits(&line) {
                    return line;
                }
                continue;
            }
            let message = self.socket.read().unwrap_or_else(|error| panic!("waited for {what}: {error}"));
            let Message::Text(text) = message else { continue };
            self.lines = text.lines().rev().map(|line| serde_json::from_str(line).expect("a frame is JSON")).collect();
        }
    }
}
