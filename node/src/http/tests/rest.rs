//! Plain HTTP, and its description.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tieline_proto::id::{ChannelId, Handle, Hash, Lamport, MemberId, MessageId, Seq};
use tieline_proto::view;

use super::bed::Bed;
use crate::http::openapi;

#[tokio::test]
async fn posts_and_errors_have_their_forms() {
    let bed = Bed::open().await;
    let posted = bed.own("POST /v1/channels/lobby/posts", r#"{"text":"hi","id":"c-1"}"#).await;
    assert_eq!((posted.status, &posted.json()["state"]), (200, &json!("saved")));
    let missing = bed.own("GET /v1/channels/nowhere", "").await;
    assert_eq!(missing.status, 404);
    assert_eq!(missing.json()["error"]["hint"], "tieline channel list");
    assert_eq!(bed.own("GET /v1/nothing", "").await.json()["error"]["code"], "not_found");
    assert_eq!(bed.own("POST /v1/channels/lobby/posts", "{").await.status, 400);
    assert_eq!(bed.own("GET /metrics", "").await.body, "tieline_calls_total 1\n");
}

#[tokio::test]
async fn attachments_are_read_in_pieces_and_never_shown() {
    let bed = Bed::open().await;
    let reply = bed.own(&format!("GET /v1/channels/lobby/attachments/{}", Hash::ZERO), "").await;
    assert_eq!((reply.status, reply.body.as_str()), (200, "hello"));
    assert_eq!(reply.header("content-disposition"), Some("attachment"));
    assert_eq!(reply.header("content-type"), Some("application/octet-stream"));
    assert_eq!(bed.own("GET /v1/channels/lobby/attachments/xyz", "").await.status, 400);
}

#[tokio::test]
async fn pages_go_both_ways_without_gap_or_overlap() {
    let bed = Bed::open().await;
    bed.node.append("x", 120);
    let page = async |query: &str| {
        let reply = bed.own(&format!("GET /v1/channels/lobby/messages{query}"), "").await;
        assert_eq!(reply.status, 200, "{query}: {reply:?}");
        let page = reply.json();
        let seqs = page["entries"].as_array().unwrap().iter().map(|entry| entry["seq"].as_u64().unwrap());
        (seqs.collect::<Vec<_>>(), page["before"].as_u64().unwrap(), page["after"].as_u64().unwrap())
    };
    let (newest, before, after) = page("").await;
    assert_eq!((newest.first(), newest.last(), newest.len()), (Some(&71), Some(&120), 50));
    assert_eq!((before, after), (71, 120));
    let (older, before, _) = page("?before=71&limit=70").await;
    assert_eq!((older.first(), older.last(), older.len()), (Some(&1), Some(&70), 70));
    assert_eq!(page(&format!("?before={before}")).await.0, [0_u64; 0]);
    assert_eq!(page("?after=118").await.0, [119, 120]);
    assert_eq!(page("?after=120").await, (Vec::new(), 121, 120));
    assert_eq!(page("?after=0&limit=200").await.0.len(), 120);
    assert_eq!(page("?after=10&before=13").await.0, [11, 12]);
    for bad in ["?limit=0", "?limit=201", "?limit=x", "?unknown=1"] {
        assert_eq!(bed.own(&format!("GET /v1/channels/lobby/messages{bad}"), "").await.status, 400, "{bad}");
    }
}

#[tokio::test]
async fn the_page_needs_no_login_and_no_script() {
    let bed = Bed::open().await;
    let host = format!("Host: {}", bed.host());
    let page = bed.http("GET /", &[&host], "").await;
    assert_eq!(page.status, 200);
    assert!(page.header("content-security-policy").unwrap().contains("default-src 'none'"), "{}", page.head);
    assert!(!page.body.contains("<script") && page.body.contains("href=\"/assets/page.css\""));
    assert_eq!(
        bed.http("GET /assets/page.css", &[&host], "").await.header("content-type"),
        Some("text/css; charset=utf-8")
    );
    assert_eq!(bed.http("GET /healthz", &[&host], "").await.json()["ok"], true);
}

/// Every described operation is served, and every path that is served is described.
#[tokio::test]
async fn the_description_is_true() {
    let bed = Bed::open().await;
    let host = format!("Host: {}", bed.host());
    let described = bed.http("GET /openapi.json", &[&host], "").await.json();
    let mut paths = BTreeSet::new();
    for (path, operations) in described["paths"].as_object().unwrap() {
        paths.insert(path.clone());
        let real = path
            .replace("{channel}", "lobby")
            .replace("{hash}", &Hash::ZERO.to_string())
            .replace("{message}", "1")
            .replace("{card}", "1");
        for (method, operation) in operations.as_object().unwrap() {
            let reply = bed.own(&format!("{} {real}", method.to_uppercase()), "{}").await;
            assert!(![404, 405, 0].contains(&reply.status), "{method} {path}: {}", reply.status);
            let statuses = operation["responses"].as_object().unwrap();
            let status = reply.status.to_string();
            assert!(statuses.contains_key(&status) || status == "400", "{method} {path}: {status} is not described");
        }
    }
    let served = include_str!("../rest.rs")
        .lines()
        .filter_map(|line| line.trim().strip_prefix(".route(\"")?.split('"').next())
        .filter(|path| !["/", "/assets/page.css", "/openapi.json", "/v1/ws"].contains(path))
        .map(str::to_owned)
        .collect();
    assert_eq!(paths, served);
}

/// The schemas that describe and the types that are sent have the same fields.
#[test]
fn schemas_have_the_fields_of_the_views() {
    let document = serde_json::to_value(openapi::document()).unwrap();
    let check = |schema: &str, value: Value| {
        let described = &document["components"]["schemas"][schema]["properties"];
        let described: BTreeSet<_> =
            described.as_object().unwrap_or_else(|| panic!("{schema}")).keys().cloned().collect();
        let sent: BTreeSet<_> = value.as_object().unwrap().keys().cloned().collect();
        assert_eq!(sent, described, "{schema}");
    };
    let node = tieline_proto::id::DeviceId([0; 32]);
    let handle = || Handle::new("gpu").unwrap();
    let channel = view::Channel {
        id: ChannelId([0; 32]),
        name: "lobby".to_owned(),
        role: view::ChannelRole::Home,
        home: node,
        head: Some(view::Head { seq: Seq(1), hash: Hash::ZERO }),
        lamport: Some(Lamport(1)),
        archived: true,
        read_only: Some("why".to_owned()),
    };
    check("Channel", json!(channel));
    check("Head", json!(channel.head));
    let member = view::Member {
        channel: "lobby".to_owned(),
        id: MemberId(1),
        handle: handle(),
        kind: tieline_proto::entry::MemberKind::Agent,
        state: view::MemberState::Idle,
        node: Some(node),
        node_name: Some("lab".to_owned()),
        harness: Some(handle()),
        cwd: Some("/".to_owned()),
        model: Some("m".to_owned()),
        policy: Some(tieline_proto::entry::Policy::Ask),
        run: Some(MessageId(1)),
        queue: view::Queue::default(),
    };
    check("Member", json!(member));
    let link = view::Link {
        node,
        name: "lab".to_owned(),
        state: view::LinkState::Up,
        path: Some(view::LinkPath::Lan),
        last_proof_ms: Some(1),
        reason: String::new(),
    };
    check("Link", json!(link));
    let card = view::Card {
        channel: "lobby".to_owned(),
        card: MessageId(1),
        kind: view::CardKind::Approval,
        by: handle(),
        about: MessageId(1),
        prompt: "p".to_owned(),
        options: Vec::new(),
        multi: true,
        tool: Some("t".to_owned()),
        action: Some("a".to_owned()),
        answer: Some(Vec::new()),
        answered_by: Some("b".to_owned()),
    };
    check("Card", json!(card));
    let own = view::Node {
        id: node,
        name: "desk".to_owned(),
        version: "1".to_owned(),
        peer_id: "p".to_owned(),
        api: Some("a".to_owned()),
        addrs: vec!["x".to_owned()],
    };
    check("Node", json!(own));
    let status = view::Status {
        node: own,
        channels: vec![channel],
        links: vec![link],
        members: vec![member],
        notes: vec!["n".to_owned()],
    };
    check("Status", json!(status));
    let posted = tieline_proto::api::Posted {
        message: MessageId(1),
        seq: Seq(1),
        state: "saved".to_owned(),
        receipt: "r".to_owned(),
        unknown: vec!["x".to_owned()],
        to: vec![handle()],
    };
    check("Posted", json!(posted));
}
