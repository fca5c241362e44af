//! The frames over a WebSocket.

use std::collections::BTreeSet;

use futures::SinkExt;
use serde_json::{Value, json};
use tieline_proto::api::Request;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;

use super::bed::Bed;

#[tokio::test]
async fn pipelined_posts_keep_their_order() {
    let bed = Bed::open().await;
    let mut ws = bed.ws().await;
    let count = 1000;
    for n in 0..count {
        let post = json!({"id": n, "op": "post", "channel": "c", "text": n.to_string()}).to_string();
        ws.0.feed(Message::text(post)).await.unwrap();
        if n % 100 == 0 {
            ws.0.flush().await.unwrap();
        }
    }
    ws.0.flush().await.unwrap();
    let mut answered = BTreeSet::new();
    while answered.len() < count {
        let answer = ws.value_with("ok").await;
        assert!(answered.insert(answer["id"].as_u64().unwrap()), "answered twice");
    }
    let calls = bed.node.calls.lock().unwrap();
    let texts: Vec<_> = calls
        .iter()
        .map(|(_, request)| match request {
            Request::Post { text, .. } => text.parse::<usize>().unwrap(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(texts, (0..count).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_subscription_is_answered_then_fed_then_ended() {
    let bed = Bed::open().await;
    bed.node.append("old", 3);
    let mut ws = bed.ws().await;
    ws.send(&json!({"id": 9, "op": "subscribe", "channel": "c", "since": 1, "once": true})).await;
    ws.value_with("hello").await;
    assert_eq!(ws.value().await.unwrap(), json!({"id": 9, "ok": {}}));
    let mut types = Vec::new();
    while types.last() != Some(&json!("end")) {
        let value = ws.value().await.unwrap();
        assert_eq!(value["id"], 9);
        types.push(value["frame"]["type"].clone());
    }
    assert_eq!(types, ["entry", "entry", "synced", "end"]);
}

#[tokio::test]
async fn subscriptions_of_one_socket_are_apart_and_can_be_ended() {
    let bed = Bed::open().await;
    let mut ws = bed.ws().await;
    ws.ask(&json!({"id": 1, "op": "subscribe", "channel": "a"})).await;
    ws.ask(&json!({"id": 2, "op": "subscribe", "channel": "b"})).await;
    let unsubscribed = ws.ask(&json!({"id": 3, "op": "unsubscribe", "call": 1})).await;
    assert_eq!(unsubscribed["ok"], json!({}));
    bed.node.append("new", 5);
    let mut seen = Vec::new();
    while seen.len() < 5 {
        let value = ws.value_with("frame").await;
        if value["frame"]["type"] == "entry" {
            assert_eq!(value["id"], 2, "the ended one is silent");
            seen.push(value["frame"]["seq"].as_u64().unwrap());
        }
    }
    assert_eq!(seen, [1, 2, 3, 4, 5]);
}

#[tokio::test]
async fn wrong_messages_are_answered_and_do_not_end_the_socket() {
    let bed = Bed::open().await;
    let mut ws = bed.ws().await;
    ws.value_with("hello").await;
    ws.0.send(Message::text("not json")).await.unwrap();
    let answer = ws.value().await.unwrap();
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&Value::Null, &json!("invalid")));
    let answer = ws.ask(&json!({"id": 2, "op": "no-such-op"})).await;
    assert_eq!(answer["error"]["code"], "invalid");
    assert!(ws.ask(&json!({"id": 3, "op": "status"})).await["ok"].is_object());
    let answer = ws.ask(&json!({"id": 4, "op": "channel-show", "channel": "nowhere"})).await;
    assert_eq!(
        answer["error"],
        json!({"code": "not_found", "message": "no channel nowhere", "hint": "tieline channel list"})
    );
}

#[tokio::test]
async fn too_many_subscriptions_are_refused() {
    let bed = Bed::open().await;
    let mut ws = bed.ws().await;
    for n in 0..64 {
        assert!(ws.ask(&json!({"id": n, "op": "subscribe", "channel": "c"})).await["error"].is_null(), "{n}");
    }
    assert_eq!(ws.ask(&json!({"id": 64, "op": "subscribe", "channel": "c"})).await["error"]["code"], "limit");
}

#[tokio::test]
async fn a_message_over_the_limit_closes_with_the_reason() {
    let bed = Bed::open().await;
    let text = |len: usize| json!({"id": 1, "op": "post", "channel": "c", "text": "x".repeat(len)}).to_string();
    let mut ws = bed.ws().await;
    let fits = text(1024 * 1024 - 100);
    assert!(fits.len() <= 1024 * 1024);
    ws.0.send(Message::text(fits)).await.unwrap();
    assert_eq!(ws.value_with("ok").await["id"], 1);
    ws.0.send(Message::text(text(1024 * 1024))).await.unwrap();
    assert_eq!(ws.close_code().await, Some(1009));

    let mut ws = bed.ws().await;
    ws.0.send(Message::binary(vec![1])).await.unwrap();
    assert_eq!(ws.close_code().await, Some(1003));
    assert_eq!(bed.node.count(), 1);
}

#[tokio::test]
async fn packed_lines_are_for_who_asks() {
    let bed = Bed::open().await;
    bed.node.append("line", 500);
    let packed = |ws: &Message| ws.to_text().is_ok_and(|text| text.contains('\n'));
    for (query, packs) in [("", false), ("?pack=lines", true), ("?pack=other", false)] {
        let stream = TcpStream::connect(bed.doors.addr).await.unwrap();
        let mut ws = bed.ws_on(stream, query).await;
        ws.send(&json!({"id": 1, "op": "subscribe", "channel": "c", "once": true})).await;
        let mut seqs = Vec::new();
        let mut any_packed = false;
        while seqs.len() < 500 {
            let message = ws.next().await.unwrap();
            any_packed |= packed(&message);
            let Message::Text(text) = message else { continue };
            let values = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
            seqs.extend(values.filter(|v| v["frame"]["type"] == "entry").map(|v| v["frame"]["seq"].as_u64().unwrap()));
        }
        assert_eq!(seqs, (1..=500).collect::<Vec<_>>(), "{query}");
        assert_eq!(any_packed, packs, "{query}");
    }
}

#[tokio::test]
async fn closing_doors_tell_their_clients() {
    let bed = Bed::open().await;
    let mut ws = bed.ws().await;
    ws.value_with("hello").await;
    let socket = bed.doors.socket.clone();
    drop(bed.doors);
    assert_eq!(ws.close_code().await, Some(1001));
    assert!(!socket.exists());
}
