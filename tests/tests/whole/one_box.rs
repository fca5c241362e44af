//! Several nodes and several starts on one box: ports, locks, quick restarts.

use std::ffi::OsStr;
use std::fs;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tieline_tests::view::Channel;
use tieline_tests::{Node, Setup, until};

const LISTEN: [&str; 3] = ["--listen", "/ip4/127.0.0.1/tcp/0", "--no-mdns"];

#[test]
fn second_node_takes_a_free_port_and_says_so() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let first = Setup::new(&dir.path().join("a")).args(LISTEN).start();
    let second = Setup::new(&dir.path().join("b")).args(LISTEN).start();
    let api = |node: &Node| node.ready()["api"].as_str().expect("an address").to_owned();
    assert_ne!(api(&first), api(&second));
    assert_ne!(first.id(), second.id());
    let port = api(&second).rsplit(':').next().expect("a port").to_owned();
    let log = second.log();
    assert!(log.contains("8137") && log.contains(&port), "it says which port it takes instead:\n{log}");
}

#[test]
fn named_port_in_use_is_an_error() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("bound").port();
    let dir = tempfile::tempdir().expect("a temporary folder");
    let api = format!("127.0.0.1:{port}");
    let refused = Setup::new(dir.path()).args([&["--api", &api], &LISTEN[..]].concat()).up_fails().code(1);
    assert!(refused.stderr.contains(&port.to_string()), "{}", refused.stderr);

    let listen = format!("/ip4/127.0.0.1/tcp/{port}");
    let refused = Setup::new(dir.path()).args(["--api", "127.0.0.1:0", "--no-mdns", "--listen", &listen]).up_fails();
    let refused = refused.code(1);
    assert!(refused.stderr.contains(&port.to_string()), "{}", refused.stderr);
}

#[test]
fn case_o1_second_up_on_one_folder_ends_with_7_and_names_the_holder() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut node = Node::up(dir.path());
    let began = Instant::now();
    let refused = node.setup().up_fails().code(7);
    assert!(began.elapsed() < Duration::from_secs(10), "it does not wait for the lock");
    assert!(refused.stderr.contains(&node.pid().to_string()), "the holder is named: {}", refused.stderr);
    assert!(node.runs());
    let _ = node.status();
}

#[test]
fn case_o2_lock_of_a_killed_node_does_not_block_the_next() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut node = Node::up(dir.path());
    node.kill9();
    node.start();
    // A stopped process holds its lock: the second one says who, and does not hang.
    node.signal(Signal::STOP);
    let refused = node.setup().up_fails().code(7);
    node.signal(Signal::CONT);
    assert!(refused.stderr.contains(&node.pid().to_string()), "{}", refused.stderr);
}

#[test]
fn case_s11_quick_restarts_keep_every_channel() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut node = Node::up(dir.path());
    for name in ["one", "two", "three"] {
        let _ = node.cli(["channel", "create", name, "--json"]).ok();
        let _ = Channel::new(&node, name).post("hello");
    }
    for round in 0..20 {
        if round % 2 == 0 {
            node.restart()
        } else {
            node.crash()
        }
        let channels = node.status()["channels"].as_array().map_or(0, Vec::len);
        assert_eq!(channels, 3, "round {round}");
    }
}

#[test]
fn ready_file_is_there_while_the_node_answers_and_gone_after_a_clean_stop() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut node = Node::up(dir.path());
    let ready = node.ready().clone();
    for field in ["api", "node", "peer_id", "version"] {
        assert!(ready[field].as_str().is_some_and(|text| !text.is_empty()), "no {field} in {ready}");
    }
    let addr = ready["addrs"][0].as_str().expect("an address");
    let peer = ready["peer_id"].as_str().expect("checked");
    assert!(addr.ends_with(&format!("/p2p/{peer}")), "{ready}");
    let file = dir.path().join("ready.json");
    let _ = node.cli(["stop", "--json"]).ok();
    until("the ready file to go", || (!file.exists()).then_some(()));
    until("the node to end", || (!node.runs()).then_some(()));
    let gone = node.cli(["status", "--json"]).code(6);
    assert_eq!(gone.error_code(), "not_running");
}

#[test]
fn flags_win_over_environment_over_file_over_defaults() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let setup = Setup::new(dir.path());
    let value = |setup: &Setup, args: &[&str]| {
        let mut all: Vec<&OsStr> = args.iter().map(OsStr::new).collect();
        all.extend(["config", "show", "--json"].map(OsStr::new));
        setup.cli(all).ok().stdout
    };
    assert!(value(&setup, &[]).contains("8137"), "the default");
    fs::create_dir_all(setup.data()).expect("a folder can be made");
    fs::write(setup.data().join("config.toml"), "api = \"127.0.0.1:7001\"\n").expect("writable");
    assert!(value(&setup, &[]).contains("7001"), "the file");
    let setup = setup.env("TIELINE_API", "127.0.0.1:7002");
    let shown = value(&setup, &[]);
    assert!(shown.contains("7002") && !shown.contains("7001"), "the environment: {shown}");
}

/// Case O11: what a node said before it was killed can be read.
#[test]
fn case_o11_logs_outlive_the_process() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut node = Node::up(dir.path());
    let _ = node.cli(["channel", "create", "lobby", "--json"]).ok();
    node.kill9();
    let logs = node.cli(["logs"]).ok();
    assert!(!logs.stdout.trim().is_empty(), "the log of the last run is there");
}
