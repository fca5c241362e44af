//! Who gets in.

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use serde_json::json;
use tieline_proto::api::Request;

use super::bed::{AGENT, Bed, agent};
use crate::handle::Caller;
use crate::http::serve::peer_is_allowed;
use crate::http::token::ApiToken;
use crate::http::{DoorError, bind};

const UPGRADE: [&str; 4] = [
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
];

const POST: &str = "POST /v1/channels/lobby/posts";
const BODY: &str = r#"{"text":"hi"}"#;
const JSON: &str = "Content-Type: application/json";

#[tokio::test]
async fn threat_l1_other_host_names_reach_no_handler() {
    let bed = Bed::open().await;
    let (host, _, auth) = bed.own_headers();
    let port = bed.doors.addr.port();
    let bad = [
        "evil.test".to_owned(),
        "localhost.evil.test".to_owned(),
        "127.0.0.1.".to_owned(),
        "0.0.0.0".to_owned(),
        format!("127.0.0.1.:{port}"),
        format!("0.0.0.0:{port}"),
        format!("localhost.evil.test:{port}"),
        format!("localhost:{}", port ^ 1),
        "localhost".to_owned(),
        format!("127.1:{port}"),
        format!("user@127.0.0.1:{port}"),
        String::new(),
    ];
    for name in bad {
        let reply = bed.http("GET /v1/status", &[&format!("Host: {name}"), &auth], "").await;
        assert!(matches!(reply.status, 421 | 400), "{name:?}: {reply:?}");
    }
    assert_eq!(bed.http("GET /v1/status", &[&auth], "").await.status, 421, "no Host");
    assert_eq!(bed.http("GET /v1/status", &[&host, "Host: evil.test", &auth], "").await.status, 421, "two Hosts");
    assert_eq!(bed.http("GET http://evil.test/v1/status", &[&host, &auth], "").await.status, 421, "a whole URL");
    assert_eq!(bed.http("GET /", &["Host: evil.test"], "").await.status, 421, "not even the page");
    assert_eq!(bed.node.count(), 0);

    let localhost = format!("Host: LOCALHOST:{port}");
    assert_eq!(bed.http("GET /v1/status", &[&localhost, &auth], "").await.status, 200);
    assert_eq!(bed.http("GET /v1/status", &[&host, &auth], "").await.status, 200);
}

#[tokio::test]
async fn threat_l2_other_origins_are_refused_before_the_upgrade() {
    let bed = Bed::open().await;
    let (host, own, auth) = bed.own_headers();
    let at = bed.host();
    let port = bed.doors.addr.port();
    let origins = [
        "Origin: http://evil.test".to_owned(),
        "Origin: null".to_owned(),
        "Origin: ".to_owned(),
        format!("Origin: http://localhost:{}", port ^ 1),
        format!("Origin: http://{at}.evil.test"),
        format!("Origin: http://{at}@evil.test"),
        format!("Origin: https://{at}"),
        format!("Origin: http://{at}/"),
        // A name of ours, but not the one that was called: a page of another door.
        format!("Origin: http://localhost:{port}"),
    ];
    for origin in &origins {
        let mut headers = vec![host.as_str(), auth.as_str(), origin.as_str()];
        let posted = bed.http(POST, &[headers.as_slice(), &[JSON]].concat(), BODY).await;
        assert_eq!(posted.status, 403, "{origin}");
        headers.extend(UPGRADE);
        let socket = bed.http("GET /v1/ws", &headers, "").await;
        assert_eq!(socket.status, 403, "{origin}: {socket:?}");
    }
    // Two Origins, one of them ours.
    assert_eq!(bed.http(POST, &[&host, &own, "Origin: http://evil.test", &auth, JSON], BODY).await.status, 403);
    // A foreign page can't even read.
    assert_eq!(bed.http("GET /v1/status", &[&host, &auth, "Origin: http://evil.test"], "").await.status, 403);
    assert_eq!(bed.node.count(), 0);

    assert_eq!(bed.http(POST, &[&host, &own, &auth, JSON], BODY).await.status, 200);
    // No page is without one; a program that holds the token is.
    assert_eq!(bed.http(POST, &[&host, &auth, JSON], BODY).await.status, 200);
    assert_eq!(bed.http(POST, &[&host, JSON], BODY).await.status, 403, "neither of a page of ours nor with the token");
    let without = [&[host.as_str(), own.as_str()], UPGRADE.as_slice()].concat();
    assert_eq!(bed.http("GET /v1/ws", &without, "").await.status, 401, "an Origin is no login");
    let with = [&[host.as_str(), own.as_str(), auth.as_str()], UPGRADE.as_slice()].concat();
    let mut upgraded = bed.ws().await;
    assert!(upgraded.value().await.unwrap()["hello"].is_object());
    assert_eq!(with.len(), 7);
}

#[tokio::test]
async fn threat_l3_forms_and_gets_change_nothing() {
    let bed = Bed::open().await;
    let (host, origin, auth) = bed.own_headers();
    for kind in [
        "Content-Type: application/x-www-form-urlencoded",
        "Content-Type: text/plain",
        "Content-Type: multipart/form-data; boundary=x",
        "Content-Type: application/json-seq",
        "Content-Type: text/plain; application/json",
        "X-Nothing: 1",
    ] {
        assert_eq!(bed.http(POST, &[&host, &origin, &auth, kind], BODY).await.status, 415, "{kind}");
    }
    for line in ["GET /v1/channels/lobby/posts", "GET /v1/session", "HEAD /v1/channels/lobby/posts"] {
        assert_eq!(bed.http(line, &[&host, &origin, &auth], "").await.status, 405, "{line}");
    }
    let preflight = [&host, &origin, "Access-Control-Request-Method: POST"];
    let answers = [
        bed.http("OPTIONS /v1/status", &preflight, "").await,
        bed.http("GET /v1/status", &[&host, &auth], "").await,
        bed.http("GET /", &[&host], "").await,
        bed.http("GET /nowhere", &[&host, &auth], "").await,
    ];
    for answer in &answers {
        assert_eq!(answer.header("access-control-allow-origin"), None, "{answer:?}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{answer:?}");
    }
    assert!(answers[0].status >= 400, "{:?}", answers[0]);
    assert_eq!(bed.node.count(), 1, "the one status");
}

#[tokio::test]
async fn threat_l4_tokens_in_urls_are_none() {
    let bed = Bed::open().await;
    let (host, _, auth) = bed.own_headers();
    let token = bed.token();
    for key in ["token", "access_token", "Token", "bearer"] {
        let line = format!("GET /v1/status?{key}={token}");
        assert_eq!(bed.http(&line, &[&host], "").await.status, 401, "{key}");
        assert_eq!(bed.http(&line, &[&host, &auth], "").await.status, 401, "{key}, and a good header");
    }
    for auth in [
        "Authorization: Bearer ".to_owned(),
        format!("Authorization: Bearer {}", &token[1..]),
        format!("Authorization: Bearer {token}x"),
        format!("Authorization: Basic {token}"),
        format!("Authorization: {token}"),
        format!("Cookie: tieline_session={token}"),
        format!("Authorization: Bearer {AGENT}"),
    ] {
        assert_eq!(bed.http("GET /v1/status", &[&host, &auth], "").await.status, 401, "{auth}");
    }
    let reply = bed.http("GET /v1/status", &[&host], "").await;
    assert_eq!(reply.header("referrer-policy"), Some("no-referrer"));
    assert!(!reply.body.contains(&token));
    assert_eq!(bed.node.count(), 0);
}

#[tokio::test]
async fn threat_l4_sessions_are_http_only_cookies() {
    let bed = Bed::open().await;
    let (host, origin, _) = bed.own_headers();
    let login = |token: &str| json!({ "token": token }).to_string();
    let wrong = bed.http("POST /v1/session", &[&host, &origin, JSON], &login("x")).await;
    assert_eq!((wrong.status, wrong.header("set-cookie")), (401, None));
    let foreign = bed.http("POST /v1/session", &[&host, "Origin: http://evil.test", JSON], &login(&bed.token())).await;
    assert_eq!(foreign.status, 403);

    let right = bed.http("POST /v1/session", &[&host, &origin, JSON], &login(&bed.token())).await;
    let cookie = right.header("set-cookie").unwrap();
    assert!(cookie.contains("httponly") && cookie.contains("samesite=strict"), "{cookie}");
    assert!(!cookie.contains(&bed.token()), "the cookie is not the token");
    let cookie = format!("Cookie: theme=dark; {}", cookie.split(';').next().unwrap());
    let key = right.json()["key"].as_str().unwrap().to_owned();
    assert!(!cookie.contains(&key) && key != bed.token());
    let key = format!("X-Tieline-Session: {key}");
    assert_eq!(bed.http("GET /v1/status", &[&host, &cookie, &key], "").await.status, 200);
    assert_eq!(bed.http(POST, &[&host, &cookie, &key, JSON], BODY).await.status, 403, "a cookie is no Origin");
    assert_eq!(bed.http(POST, &[&host, &origin, &cookie, &key, JSON], BODY).await.status, 200);

    // Whoever serves another port of this host gets the cookie, and may send any header.
    let stolen = bed.http("GET /v1/status", &[&host, &origin, &cookie], "").await;
    assert_eq!((stolen.status, bed.http(POST, &[&host, &origin, &cookie, JSON], BODY).await.status), (401, 401));
    assert_eq!(bed.http("GET /v1/status", &[&host, &key], "").await.status, 401, "the key alone is nothing either");
    let wrong = "X-Tieline-Session: 00";
    assert_eq!(bed.http("GET /v1/status", &[&host, &cookie, wrong], "").await.status, 401);
    let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==";
    assert_eq!(bed.http("GET /v1/ws", &[&host, &origin, &cookie, upgrade], "").await.status, 401);
    let offered = key.replace("X-Tieline-Session: ", "Sec-WebSocket-Protocol: tieline, tieline.session.");
    let opened = bed.ws_head(&[&host, &origin, &cookie, upgrade, &offered]).await;
    assert!(opened.starts_with("HTTP/1.1 101") && opened.contains("sec-websocket-protocol: tieline\r\n"), "{opened}");

    assert_eq!(bed.http("DELETE /v1/session", &[&host, &origin, &cookie, JSON], "").await.status, 204);
    assert_eq!(bed.http("GET /v1/status", &[&host, &cookie, &key], "").await.status, 401);
}

#[tokio::test]
async fn threat_l5_files_of_the_doors_are_private() {
    let bed = Bed::open().await;
    let mode = |name: &str| std::fs::metadata(bed.dir.path().join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("."), mode("tieline.sock"), mode("api-token")), (0o700, 0o600, 0o600));

    assert!(peer_is_allowed(1000, 1000) && peer_is_allowed(0, 1000) && !peer_is_allowed(1001, 1000));
    assert!(!peer_is_allowed(1000, 0), "root's node is not everybody's");

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("api-token");
    std::fs::write(&path, "0".repeat(64)).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    match ApiToken::open(dir.path()) {
        Err(DoorError::Open { mode: 0o644, .. }) => {}
        other => panic!("a token that others can read was taken: {other:?}"),
    }
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/etc/hostname", &path).unwrap();
    assert!(ApiToken::open(dir.path()).is_err(), "a link is no token");
    assert!(bind::private_file(dir.path()).is_err(), "a folder is no token");
}

#[tokio::test]
async fn a_socket_in_a_deep_folder_is_reached() {
    let root = tempfile::tempdir().unwrap();
    let deep = root.path().join("a".repeat(90)).join("b".repeat(90));
    std::fs::create_dir_all(&deep).unwrap();
    let path = deep.join("tieline.sock");
    let listener = bind::unix(&path).unwrap();
    let address = bind::SocketPath::of(&path).unwrap();
    let (connected, accepted) = tokio::join!(tokio::net::UnixStream::connect(address.path()), listener.accept());
    assert!(connected.is_ok() && accepted.is_ok());
}

#[tokio::test]
async fn threat_l6_authors_in_bodies_are_refused() {
    let bed = Bed::open().await;
    for claim in ["member_id", "author", "by", "role", "caller", "scope", "member"] {
        let body = json!({"text": "hi", claim: "owner"}).to_string();
        assert_eq!(bed.own(POST, &body).await.status, 403, "{claim}");
    }
    assert_eq!(bed.own(POST, r#"{"text":"hi","colour":"red"}"#).await.status, 400, "other fields are mistakes");
    assert_eq!(bed.node.count(), 0);
    let mut ws = bed.ws().await;
    let answer = ws.ask(&json!({"id": 1, "op": "post", "channel": "c", "text": "t", "member_id": 1})).await;
    assert_eq!(answer["error"]["code"], "refused");
    assert_eq!(bed.node.count(), 0);
}

#[tokio::test]
async fn agents_come_by_the_unix_socket_with_their_token() {
    let bed = Bed::open().await;
    let mut ws = bed.ws_unix(Some(AGENT)).await.unwrap_or_else(|error| panic!("{error}"));
    let answer = ws.ask(&json!({"id": 1, "op": "post", "channel": "c", "text": "t"})).await;
    assert_eq!(answer["ok"]["state"], "saved");
    let mut owner = bed.ws_unix(None).await.unwrap_or_else(|error| panic!("{error}"));
    owner.ask(&json!({"id": 1, "op": "status"})).await;
    let callers: Vec<_> = bed.node.calls.lock().unwrap().iter().map(|(caller, _)| caller.clone()).collect();
    assert_eq!(callers, [agent(), Caller::Owner]);
    assert!(bed.ws_unix(Some("unknown")).await.is_err(), "a wrong token is not the owner's word");
}

#[tokio::test]
async fn threat_l7_rotation_ends_sockets_and_sessions() {
    let bed = Bed::open().await;
    let (host, origin, old) = bed.own_headers();
    let login = json!({ "token": bed.token() }).to_string();
    let session = bed.http("POST /v1/session", &[&host, &origin, JSON], &login).await;
    let cookie = format!("Cookie: {}", session.header("set-cookie").unwrap().split(';').next().unwrap());
    let key = format!("X-Tieline-Session: {}", session.json()["key"].as_str().unwrap());
    assert_eq!(bed.http("GET /v1/status", &[&host, &cookie, &key], "").await.status, 200);
    let mut ws = bed.ws().await;
    ws.ask(&json!({"id": 1, "op": "subscribe", "channel": "c"})).await;
    let before = bed.node.count();

    bed.doors.token().rotate().unwrap();
    let rotated_at = Instant::now();
    ws.send(&json!({"id": 2, "op": "post", "channel": "c", "text": "late"})).await;
    assert_eq!(ws.close_code().await, Some(4001));
    assert!(rotated_at.elapsed() <= Duration::from_secs(1), "{:?}", rotated_at.elapsed());
    assert_eq!(bed.node.count(), before, "later frames are ignored");
    assert_eq!(bed.http("GET /v1/status", &[&host, &old], "").await.status, 401);
    assert_eq!(bed.http("GET /v1/status", &[&host, &cookie, &key], "").await.status, 401);
    assert_eq!(bed.own("GET /v1/status", "").await.status, 200);
}

#[tokio::test]
async fn threat_l7_a_quiet_socket_ends_when_the_file_is_removed() {
    let bed = Bed::open().await;
    let mut ws = bed.ws().await;
    ws.value_with("hello").await;
    std::fs::remove_file(bed.dir.path().join("api-token")).unwrap();
    let removed_at = Instant::now();
    assert_eq!(ws.close_code().await, Some(4001));
    assert!(removed_at.elapsed() <= Duration::from_secs(1), "{:?}", removed_at.elapsed());
    assert_eq!(bed.token().len(), 64, "a new token was made");
}

#[tokio::test]
async fn threat_l7_an_agents_socket_ends_with_its_token() {
    let bed = Bed::open().await;
    let mut ws = bed.ws_unix(Some(AGENT)).await.unwrap_or_else(|error| panic!("{error}"));
    ws.value_with("hello").await;
    bed.node.forget_agents();
    let forgotten_at = Instant::now();
    assert_eq!(ws.close_code().await, Some(4001));
    assert!(forgotten_at.elapsed() <= Duration::from_secs(1), "{:?}", forgotten_at.elapsed());
}

#[tokio::test]
async fn a_token_file_that_became_open_shuts_the_loopback_door() {
    let bed = Bed::open().await;
    let path = bed.dir.path().join("api-token");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(bed.own("GET /v1/status", "").await.status, 401);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(bed.own("GET /v1/status", "").await.status, 200);
    let calls = bed.node.calls.lock().unwrap();
    assert!(matches!(calls.as_slice(), [(Caller::Owner, Request::Status {})]), "{calls:?}");
}
