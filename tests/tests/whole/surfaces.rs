//! What scripts rely on: `--json` on every command, exit codes, pages that match each other.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::Value;
use tieline_tests::{DEADLINE, Mesh, Node};

/// Case O4: stdout is exactly one JSON value, whatever is logged, for every command that answers with one.
#[test]
fn case_o4_json_is_one_value_on_stdout_for_every_command() {
    let mut mesh = Mesh::start();
    mesh.add_scripted("bot");
    mesh.home.setup_mut().env.push(("TIELINE_LOG_LEVEL".into(), "debug".into()));
    let _ = mesh.lobby().ask("@bot script:text(hello)");
    let export = mesh.dir().join("export");
    let export = export.to_str().expect("plain");
    let work = mesh.work();
    let work = work.to_str().expect("plain");
    let commands: &[&[&str]] = &[
        &["status"],
        &["org", "show"],
        &["config", "show"],
        &["harness", "list"],
        &["harness", "add", "cat", "--", "cat"],
        &["harness", "remove", "cat"],
        &["device", "list"],
        &["channel", "create", "second"],
        &["channel", "list"],
        &["channel", "show", "lobby"],
        &["channel", "verify", "lobby"],
        &["channel", "export", "lobby", export],
        &["channel", "verify", export],
        &["channel", "archive", "second"],
        &["member", "add", "lobby", "b2", "--harness", "scripted", "--on", "lab", "--cwd", work],
        &["member", "list", "lobby"],
        &["member", "rename", "lobby", "b2", "b3"],
        &["member", "configure", "lobby", "b3", "--model", "m"],
        &["member", "pause", "lobby", "b3"],
        &["member", "resume", "lobby", "b3"],
        &["member", "kill", "lobby", "b3"],
        &["member", "revive", "lobby", "b3"],
        &["member", "remove", "lobby", "b3"],
        &["post", "lobby", "hello"],
        &["post", "lobby", "@bot script:text(hi)", "--wait"],
        &["inbox"],
        &["inbox", "lobby"],
        &["hold", "list", "lobby"],
    ];
    for command in commands {
        // `harness add` takes the rest of the line as the command, so its flag stands before.
        let args: Vec<&str> = match command.split_first() {
            Some((first, rest)) if command.contains(&"--") => [&[*first, rest[0], "--json"], &rest[1..]].concat(),
            _ => [*command, &["--json"]].concat(),
        };
        let _ = mesh.home.cli(&args).ok().json();
    }
    // Errors are one value too.
    for command in
        [&["post", "nowhere", "x"][..], &["channel", "show", "nowhere"], &["answer", "lobby", "999", "--choose", "x"]]
    {
        let args: Vec<&str> = [command, &["--json"]].concat();
        let failed = mesh.home.cli(&args);
        assert_ne!(failed.code, Some(0));
        let _ = failed.error_code();
    }
    // Streams are one value a line.
    let tail = mesh.home.cli(["tail", "lobby", "--once", "--json"]).ok();
    assert!(tail.json_lines().iter().any(|frame| frame["type"] == "synced"), "{}", tail.stdout);
    let _ = mesh.home.cli(["stop", "--json"]).ok().json();
}

#[test]
fn status_has_the_fields_of_the_contract() {
    let mesh = Mesh::start();
    mesh.add_scripted("bot");
    let status = mesh.home.status();
    for (pointer, what) in [
        ("/node/id", "text"),
        ("/node/name", "text"),
        ("/node/version", "text"),
        ("/node/peer_id", "text"),
        ("/channels/0/id", "text"),
        ("/channels/0/head/seq", "number"),
        ("/channels/0/head/hash", "text"),
        ("/channels/0/lamport", "number"),
        ("/links/0/node", "text"),
        ("/links/0/last_proof_ms", "number"),
        ("/members/0/channel", "text"),
        ("/members/0/handle", "text"),
        ("/members/0/kind", "text"),
    ] {
        let value = status.pointer(pointer).unwrap_or_else(|| panic!("no {pointer} in {status}"));
        assert!(if what == "text" { value.is_string() } else { value.is_number() }, "{pointer} is {value}");
    }
    assert_eq!(status["channels"][0]["name"], "lobby");
    assert_eq!(status["channels"][0]["role"], "home");
    assert_eq!(status["links"][0]["state"], "up");
    assert_eq!(status["links"][0]["path"], "lan");
    let bot = mesh.lobby().member_status("bot");
    assert_eq!((&bot["state"], &bot["queue"]["depth"]), (&"idle".into(), &0.into()), "{bot}");
    let lab = mesh.resident.status();
    assert_eq!(lab["channels"][0]["role"], "resident", "{lab}");
}

#[test]
fn post_and_tail_work_from_the_resident_too() {
    let mesh = Mesh::start();
    mesh.add_scripted("bot");
    let saved = mesh.resident.cli(["post", "lobby", "@bot script:text(from the other side)", "--wait", "--json"]).ok();
    assert_eq!(saved.json()["turns"][0]["body"], "from the other side", "{}", saved.stdout);
    let here = mesh.lobby().entries();
    let there = mesh.resident.cli(["tail", "lobby", "--once", "--json"]).ok().json_lines();
    let there: Vec<Value> = there.into_iter().filter(|frame| frame["type"] == "entry").collect();
    assert_eq!(there, here, "the same lines on both boxes");
    let posted = mesh.lobby().entries_of("posted").pop().expect("a post");
    assert_eq!(posted["line"]["auth"]["how"], "device", "a remote post carries its device's signature");
}

#[test]
fn tail_resumes_at_its_cursor_without_a_gap() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let node = Node::up(dir.path());
    let _ = node.cli(["channel", "create", "lobby", "--json"]).ok();
    for n in 0..20 {
        let _ = node.cli(["post", "lobby", &format!("post {n}"), "--json"]).ok();
    }
    let all = node.cli(["tail", "lobby", "--once", "--json"]).ok().json_lines();
    let seqs = |frames: &[Value]| {
        frames.iter().filter(|f| f["type"] == "entry").filter_map(|f| f["seq"].as_u64()).collect::<Vec<_>>()
    };
    let since = seqs(&all)[9];
    let rest = node.cli(["tail", "lobby", "--since", &since.to_string(), "--once", "--json"]).ok().json_lines();
    assert_eq!(seqs(&rest), seqs(&all)[10..]);
}

fn http(addr: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(addr).expect("the API listens");
    stream.set_read_timeout(Some(DEADLINE)).expect("a socket takes a timeout");
    stream.write_all(request.as_bytes()).expect("writable");
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    // Only the head matters here; a kept-alive connection does not end.
    while !answer.windows(4).any(|window| window == b"\r\n\r\n") {
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(n) => answer.extend_from_slice(&buffer[..n]),
        }
    }
    String::from_utf8_lossy(&answer).into_owned()
}

fn status_line(answer: &str) -> u16 {
    answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_else(|| panic!("no status in {answer:?}"))
}

/// Threats L1, L2 and L4: other sites, other names and tokens in URLs reach no handler.
#[test]
fn threat_l1_l2_l4_loopback_api_answers_nobody_elses_page() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let node = Node::up(dir.path());
    let api = node.ready()["api"].as_str().expect("an address").trim_start_matches("http://").to_owned();
    let token = std::fs::read_to_string(node.data().join("api-token")).expect("the token is there").trim().to_owned();
    let get =
        |path: &str, headers: &str| status_line(&http(&api, &format!("GET {path} HTTP/1.1\r\n{headers}\r\n\r\n")));
    let auth = format!("Authorization: Bearer {token}");

    assert_eq!(get("/healthz", &format!("Host: {api}")), 200);
    for host in ["evil.test", "localhost.evil.test", "127.0.0.1.", "0.0.0.0"] {
        assert_eq!(get("/healthz", &format!("Host: {host}\r\n{auth}")), 421, "{host}");
    }
    let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==";
    for origin in ["http://evil.test", "null", "http://localhost:1", &format!("http://{api}.evil.test")] {
        let headers = format!("Host: {api}\r\n{auth}\r\nOrigin: {origin}\r\n{upgrade}");
        assert_eq!(get("/v1/ws", &headers), 403, "{origin}");
    }
    let own = format!("Host: {api}\r\nOrigin: http://{api}\r\n{upgrade}");
    assert_eq!(get(&format!("/v1/ws?token={token}"), &own), 401, "a token in a URL is none");
    assert_eq!(get("/v1/ws", &format!("{own}\r\n{auth}")), 101);
}

/// Clients that send a byte a second, all at once.
const SLOW_CLIENTS: usize = 500;

/// How long the header, and the body, of a request may take (`security.md`), and what a busy box adds.
const HEADER_LIMIT: Duration = Duration::from_secs(5);
const BODY_LIMIT: Duration = Duration::from_secs(30);
const BUSY: Duration = Duration::from_secs(15);

/// One request of an honest client, from the connection to the last byte of the answer.
fn served_in(api: &str, token: &str) -> Duration {
    let began = Instant::now();
    let mut stream = TcpStream::connect(api).expect("the API listens");
    stream.set_read_timeout(Some(DEADLINE)).expect("a socket takes a timeout");
    let request =
        format!("GET /v1/status HTTP/1.1\r\nHost: {api}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("writable");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an honest client is answered");
    assert_eq!(status_line(&answer), 200, "{answer}");
    began.elapsed()
}

fn p99(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() * 99 / 100]
}

/// Sends the next byte. False when the far side has closed.
fn drips(mut stream: &TcpStream, byte: u8) -> bool {
    if stream.write_all(&[byte]).is_err() {
        return false;
    }
    let mut buffer = [0; 256];
    match stream.read(&mut buffer) {
        Ok(0) => false,
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
    }
}

/// A node whose API is called by address and token.
fn api_of(node: &Node) -> (String, String) {
    let api = node.ready()["api"].as_str().expect("an address").trim_start_matches("http://").to_owned();
    let token = std::fs::read_to_string(node.data().join("api-token")).expect("the token is there").trim().to_owned();
    (api, token)
}

/// Threat L10: 500 clients that send their header a byte a second are let go, and meanwhile others are served as ever.
///
/// "As ever" is what the same node needs without them, or what another node of this box needs at the same time: whatever
/// else the box does, it does to both.
#[test]
fn threat_l10_slow_clients_are_closed_and_others_served_as_fast_as_without_them() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let node = Node::up(&dir.path().join("attacked"));
    let control = Node::up(&dir.path().join("alone"));
    let ((api, token), (control, control_token)) = (api_of(&node), api_of(&control));
    let baseline = p99((0..400).map(|_| served_in(&api, &token)).collect());

    let began = Instant::now();
    let connect = |_| {
        let stream = TcpStream::connect(&api).expect("there is room for slow clients");
        stream.set_nonblocking(true).expect("a socket can be that");
        stream
    };
    let mut slow: Vec<_> = (0..SLOW_CLIENTS).map(connect).collect();
    let (mut beside, mut elsewhere) = (Vec::new(), Vec::new());
    let mut header = b"GET /v1/status HTTP/1.1\r\nX-Slow: ".iter().chain(std::iter::repeat(&b'a'));
    while !slow.is_empty() {
        let byte = *header.next().expect("endless");
        slow.retain(|stream| drips(stream, byte));
        assert!(began.elapsed() < HEADER_LIMIT + BUSY, "{} slow clients are still there", slow.len());
        let second = Instant::now() + Duration::from_secs(1);
        while !slow.is_empty() && Instant::now() < second {
            beside.push(served_in(&api, &token));
            elsewhere.push(served_in(&control, &control_token));
        }
    }
    assert!(beside.len() > 200, "too few requests to say anything: {}", beside.len());
    let (beside, elsewhere) = (p99(beside), p99(elsewhere));
    let words = format!(
        "p99 of an honest client: {beside:?} beside {SLOW_CLIENTS} slow ones, {baseline:?} without them, {elsewhere:?} at \
         another node meanwhile"
    );
    println!("{words}");
    assert!(beside <= baseline.max(elsewhere) * 2, "{words}");
}

/// Threat L10: a body that comes a byte a second is not waited for, and changes nothing.
#[test]
fn threat_l10_slow_body_is_cut_off() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let node = Node::up(dir.path());
    let _ = node.cli(["channel", "create", "lobby", "--json"]).ok();
    let before = node.status()["channels"][0]["head"]["seq"].clone();
    let (api, token) = api_of(&node);
    let mut stream = TcpStream::connect(&api).expect("the API listens");
    let head = format!(
        "POST /v1/channels/lobby/posts HTTP/1.1\r\nHost: {api}\r\nOrigin: http://{api}\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{{\"text\":\""
    );
    stream.write_all(head.as_bytes()).expect("writable");
    // The read waits for the second between two bytes, or for the end.
    stream.set_read_timeout(Some(Duration::from_secs(1))).expect("a socket takes a timeout");
    let began = Instant::now();
    while drips(&stream, b'a') {
        assert!(began.elapsed() < BODY_LIMIT + BUSY, "still open after {:?}", began.elapsed());
    }
    assert!(began.elapsed() > BODY_LIMIT / 2, "an honest slow line is given time: {:?}", began.elapsed());
    assert_eq!(node.status()["channels"][0]["head"]["seq"], before, "nothing was posted");
}
