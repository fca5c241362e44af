//! What a client may cost.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;

use super::bed::{Bed, DEADLINE};
use crate::http::Limits;

fn short() -> Limits {
    Limits {
        header: Duration::from_millis(300),
        body: Duration::from_millis(300),
        ping: Duration::from_millis(200),
        stall: Duration::from_millis(400),
        ..Limits::default()
    }
}

/// Reads until the far side ends the connection; fails the test when it does not.
async fn until_closed(stream: &mut TcpStream) -> String {
    let mut all = Vec::new();
    let _ = tokio::time::timeout(DEADLINE, stream.read_to_end(&mut all)).await.expect("the connection ends");
    String::from_utf8_lossy(&all).into_owned()
}

#[tokio::test]
async fn threat_l10_slow_clients_are_cut_and_others_served() {
    let bed = Bed::with(short()).await;
    let mut slow = Vec::new();
    for _ in 0..100 {
        let mut stream = TcpStream::connect(bed.doors.addr).await.unwrap();
        stream.write_all(b"GET /v1/sta").await.unwrap();
        slow.push(stream);
    }
    // Nothing at all is as slow as it gets.
    slow.push(TcpStream::connect(bed.doors.addr).await.unwrap());
    assert_eq!(bed.own("GET /v1/status", "").await.status, 200, "served beside them");
    for stream in &mut slow {
        until_closed(stream).await;
    }
}

#[tokio::test]
async fn threat_l10_one_byte_at_a_time_is_too_slow() {
    let bed = Bed::with(short()).await;
    let stream = TcpStream::connect(bed.doors.addr).await.unwrap();
    let (mut read, mut write) = stream.into_split();
    let began_at = Instant::now();
    let drip = tokio::spawn(async move {
        // Each byte is in time; the header as a whole is not.
        for byte in b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n".iter().cycle() {
            if write.write_all(&[*byte]).await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let mut all = Vec::new();
    let _ = tokio::time::timeout(DEADLINE, read.read_to_end(&mut all)).await.expect("the connection ends");
    assert!(began_at.elapsed() < Duration::from_secs(3));
    drip.abort();
}

#[tokio::test]
async fn threat_l10_a_body_that_does_not_come_is_not_waited_for() {
    let bed = Bed::with(short()).await;
    let (host, origin, auth) = bed.own_headers();
    let mut stream = TcpStream::connect(bed.doors.addr).await.unwrap();
    let head = format!(
        "POST /v1/channels/c/posts HTTP/1.1\r\n{host}\r\n{origin}\r\n{auth}\r\nContent-Type: application/json\r\n\
         Content-Length: 100\r\n\r\n{{\"text\":"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let answer = until_closed(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert_eq!(bed.node.count(), 0);
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused() {
    let bed = Bed::open().await;
    let body = json!({"text": "x".repeat(600 * 1024)}).to_string();
    assert_eq!(bed.own("POST /v1/channels/c/posts", &body).await.status, 413);
    assert_eq!(bed.node.count(), 0);
}

#[tokio::test]
async fn connections_over_the_cap_are_refused_and_end_frees_a_place() {
    let bed = Bed::with(Limits { connections: 2, ..Limits::default() }).await;
    let first = bed.ws().await;
    let _second = bed.ws().await;
    let mut third = TcpStream::connect(bed.doors.addr).await.unwrap();
    assert_eq!(until_closed(&mut third).await, "");
    // The Unix socket has places of its own: the owner is never shut out by pages.
    assert!(bed.ws_unix(None).await.is_ok());
    drop(first);
    loop {
        let status = bed.own("GET /healthz", "").await.status;
        if status == 200 {
            break;
        }
        assert_eq!(status, 0, "refused without a word");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn case_c9_clients_are_pinged_and_told_when_to_give_up() {
    let bed = Bed::with(short()).await;
    let mut ws = bed.ws().await;
    let hello = ws.value_with("hello").await;
    assert_eq!(hello["hello"]["ping_ms"], 200);
    assert_eq!(hello["hello"]["quiet_ms_max"], 500);
    let mut pings = 0;
    let mut beats = 0;
    while pings < 2 || beats < 2 {
        match ws.next().await.expect("a client that answers pings stays") {
            Message::Ping(_) => pings += 1,
            Message::Text(text) if text.contains("beat") => beats += 1,
            _ => {}
        }
    }
}

#[tokio::test]
async fn a_client_that_shows_no_life_is_let_go() {
    let bed = Bed::with(Limits { stall: Duration::from_secs(30), ..short() }).await;
    // Upgraded by hand: nobody answers the pings.
    let (host, origin, auth) = bed.own_headers();
    let mut stream = TcpStream::connect(bed.doors.addr).await.unwrap();
    let head = format!(
        "GET /v1/ws HTTP/1.1\r\n{host}\r\n{origin}\r\n{auth}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut all = Vec::new();
    let mut piece = [0; 1024];
    let reason = b"no sign of life";
    while !all.windows(reason.len()).any(|part| part == reason) {
        let read = tokio::time::timeout(DEADLINE, stream.read(&mut piece)).await.expect("in time").unwrap();
        assert!(read > 0, "it says why: {}", String::from_utf8_lossy(&all));
        all.extend_from_slice(&piece[..read]);
    }
}

/// What a pager or a thin line takes, takes long; as long as it takes something, it is there.
#[tokio::test]
async fn a_slow_reader_that_reads_on_is_not_cut() {
    let bed = Bed::with(Limits { stall: Duration::from_secs(10), ..short() }).await;
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let stream = socket.connect(bed.doors.addr).await.unwrap();
    let mut ws = bed.ws_on(stream, "").await;
    ws.ask(&json!({"id": 1, "op": "subscribe", "channel": "c"})).await;
    let count = 2000;
    bed.node.append(&"x".repeat(4000), count);
    let began_at = Instant::now();
    for seq in 1..=count as u64 {
        let mut frame = ws.value_with("frame").await["frame"].take();
        if frame["type"] == "synced" {
            frame = ws.value_with("frame").await["frame"].take();
        }
        assert_eq!(frame["seq"], seq);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(began_at.elapsed() > short().quiet() * 2, "it took longer than silence may");
}

#[tokio::test]
async fn a_slow_reader_is_cut_with_a_reason_and_resumes_by_its_cursor() {
    let bed = Bed::with(Limits { ping: Duration::from_secs(30), ..short() }).await;
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let stream = socket.connect(bed.doors.addr).await.unwrap();
    let mut ws = bed.ws_on(stream, "").await;
    ws.ask(&json!({"id": 1, "op": "subscribe", "channel": "c"})).await;
    // Far more than buffers of sockets and of the door hold.
    let count = 3000;
    bed.node.append(&"x".repeat(4000), count);
    // The reader takes nothing until the door has lost its patience.
    let log = &bed.node.log;
    let cut_at = Instant::now();
    while log.receiver_count() > 0 {
        assert!(cut_at.elapsed() < DEADLINE, "the subscription is let go");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut last = 0;
    let code = loop {
        match ws.next().await.expect("the reason comes") {
            Message::Text(text) => {
                let value: serde_json::Value = serde_json::from_str(&text).unwrap();
                if value["frame"]["type"] == "entry" {
                    let seq = value["frame"]["seq"].as_u64().unwrap();
                    assert_eq!(seq, last + 1, "nothing is left out before the cut");
                    last = seq;
                }
            }
            Message::Close(frame) => break frame.map(|frame| u16::from(frame.code)),
            _ => {}
        }
    };
    assert_eq!(code, Some(4008));
    assert!(last < count as u64, "it was cut before the end");

    let mut ws = bed.ws().await;
    ws.send(&json!({"id": 1, "op": "subscribe", "channel": "c", "since": last})).await;
    while last < count as u64 {
        let frame = ws.value_with("frame").await["frame"].take();
        if frame["type"] == "entry" {
            last += 1;
            assert_eq!(frame["seq"], last);
        }
    }
}
