//! The org's chain on disk: kept by everybody, damaged, unreadable, or not to be written; and offers to pair.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tieline_tests::mesh::{Mesh, Plan, pair};
use tieline_tests::process::Process;
use tieline_tests::root::is_root_for;
use tieline_tests::view::Channel;
use tieline_tests::{Node, Setup, until};

use super::disk::Tmpfs;

fn chain(data: &Path) -> PathBuf {
    data.join("org").join("log").join("0000000000000001.jsonl")
}

fn create(node: &Node, name: &str) {
    let _ = node.cli(["channel", "create", name, "--json"]).ok();
}

fn names(node: &Node, what: &str) -> Vec<String> {
    let list = node.cli([what, "list", "--json"]).ok().json();
    let mut names: Vec<_> =
        list.as_array().expect("a list").iter().map(|item| item["name"].as_str().expect("a name").to_owned()).collect();
    names.sort();
    names
}

fn notes(node: &Node) -> String {
    node.status()["notes"].to_string()
}

/// Replaces text in the chain of a node that does not run.
fn damage(data: &Path, text: &str, by: &str) -> Vec<u8> {
    let bytes = fs::read(chain(data)).expect("readable");
    let text = text.as_bytes();
    let at = bytes.windows(text.len()).position(|window| window == text).expect("it is in the chain");
    let damaged = [&bytes[..at], by.as_bytes(), &bytes[at + text.len()..]].concat();
    assert_eq!(damaged.len(), bytes.len());
    fs::write(chain(data), &damaged).expect("writable");
    damaged
}

#[test]
fn a_joined_box_keeps_what_the_chain_gets_later() {
    let mut mesh = Mesh::start();
    create(&mesh.home, "later");
    until("the resident to know the channel", || {
        names(&mesh.resident, "channel").contains(&"later".to_owned()).then_some(())
    });
    mesh.home.stop();
    mesh.resident.restart();
    assert_eq!(names(&mesh.resident, "channel"), ["later", "lobby"]);
    assert_eq!(names(&mesh.resident, "device").len(), 2);
    assert!(!mesh.resident.log().contains("ERROR"), "{}", mesh.resident.log());
}

#[test]
fn a_damaged_copy_of_the_chain_is_fetched_again() {
    let mut mesh = Mesh::start();
    create(&mesh.home, "later");
    until("the resident to know the channel", || {
        names(&mesh.resident, "channel").contains(&"later".to_owned()).then_some(())
    });
    mesh.resident.stop();
    let whole = fs::read(chain(&mesh.home.data())).expect("readable");
    let _ = damage(&mesh.resident.data(), "\"lobby\"", "\"lobbx\"");
    mesh.resident.start();
    assert!(notes(&mesh.resident).contains("the org's chain was damaged"), "{}", notes(&mesh.resident));
    until("the chain to be whole again", || (names(&mesh.resident, "channel") == ["later", "lobby"]).then_some(()));
    mesh.resident.stop();
    mesh.home.stop();
    let lines = |bytes: &[u8]| String::from_utf8_lossy(bytes).split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let again = fs::read(chain(&mesh.resident.data())).expect("readable");
    assert_eq!(lines(&again), lines(&whole));
}

#[test]
fn a_founder_with_a_damaged_chain_says_so_and_adds_nothing() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut node = Setup::new(dir.path()).start();
    for name in ["one", "two", "three"] {
        create(&node, name);
    }
    node.stop();
    let damaged = damage(&node.data(), "\"two\"", "\"twx\"");
    node.start();
    assert!(notes(&node).contains("the org's chain is damaged"), "{}", notes(&node));
    let _ = Channel::new(&node, "one").post("what is good goes on");
    let refused = node.cli(["channel", "create", "four", "--json"]);
    assert_eq!(refused.error_code(), "read_only", "{}", refused.stdout);
    assert!(refused.stdout.contains("damaged") && refused.stdout.contains("backup"), "{}", refused.stdout);
    let refused = node.cli(["pair", "--json"]);
    assert_eq!(refused.error_code(), "read_only", "{}", refused.stdout);
    assert_eq!(names(&node, "channel"), ["one"]);
    node.stop();
    assert_eq!(fs::read(chain(&node.data())).expect("readable"), damaged, "it is left for whoever mends it");
}

#[test]
fn a_chain_that_cannot_be_read_founds_no_other_org() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut node = Setup::new(dir.path()).start();
    create(&node, "one");
    let org = node.cli(["org", "show", "--json"]).ok().json();
    node.stop();
    let keys = || ["root", "link"].map(|name| fs::read(node.data().join("keys").join(name)).expect("a key"));
    let before = keys();
    let aside = dir.path().join("aside");
    fs::rename(chain(&node.data()), &aside).expect("it is ours");
    fs::create_dir(chain(&node.data())).expect("a folder in its place");

    let refused = node.setup().up_fails();
    assert!(refused.code.is_some_and(|code| code != 0) && refused.stderr.contains("chain"), "{}", refused.stderr);
    let refused = node.setup().cli(["org", "show", "--json"]);
    assert_eq!(refused.error_code(), "internal");
    assert_eq!(keys(), before, "no key was touched");

    fs::remove_dir(chain(&node.data())).expect("it is ours");
    fs::rename(&aside, chain(&node.data())).expect("it is ours");
    node.start();
    assert_eq!(node.cli(["org", "show", "--json"]).ok().json(), org);
    assert_eq!(names(&node, "channel"), ["one"]);
}

/// A box that joins by an offer, with the digits typed at the host.
fn join(setup: &Setup, link: &Value) -> Process {
    let mut join = setup.spawn_cli(["join", "-", "--name", "lab", "--json"]);
    join.write_line(link.as_str().expect("an offer has a link"));
    join.close_stdin();
    join
}

#[test]
fn a_full_disk_takes_no_channel_and_no_device() {
    if !is_root_for("a full disk under the org's chain") {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary folder");
    let tmpfs = Tmpfs::mount(&dir.path().join("small"), "8m");
    let mut home = Setup::new(&tmpfs.0).start();
    create(&home, "one");
    // A full disk takes what fits into pages that it has: the chain's last one must have no room for a device. A clean stop
    // cuts the space that the logs have ahead.
    for n in 0.. {
        home.stop();
        let len = fs::metadata(chain(&home.data())).expect("there").len();
        home.start();
        if 4096 - len % 4096 < 1200 {
            break;
        }
        assert!(n < 12, "the chain ends at {len}");
        create(&home, &format!("more-{n}"));
    }
    let before = names(&home, "channel");
    let ballast = tmpfs.0.join("ballast");
    fill(&ballast);

    let refused = home.cli(["channel", "create", "two", "--json"]);
    assert_eq!(refused.error_code(), "read_only", "{}", refused.stdout);
    assert_eq!(names(&home, "channel"), before, "what was never saved is not there");

    let mut host = home.spawn_cli(["pair", "--json"]);
    let offer = host.wait_json("an offer", |value| value["event"] == "offer");
    let lab = Setup::new(&dir.path().join("lab"));
    let mut joining = join(&lab, &offer["link"]);
    let digits = joining.wait_json("the digits", |value| value["event"] == "digits");
    host.wait_json("the claim", |value| value["event"] == "claim");
    fill(&ballast);
    host.write_line(digits["digits"].as_str().expect("digits are text"));
    for side in [&mut host, &mut joining] {
        let refused = side.wait_json("the refusal", |value| value["event"] == "refused");
        assert_eq!(refused["reason"], "not_enrolled");
    }
    let _ = (host.finish().code(3), joining.finish().code(3));
    assert_eq!(names(&home, "device").len(), 1);

    fs::remove_file(&ballast).expect("the ballast can go");
    until("channels to be made again", || {
        let made = home.cli(["channel", "create", "two", "--json"]);
        (made.code == Some(0)).then_some(())
    });
    let enrolled = pair(&home, &lab, "scripted", dir.path());
    assert_eq!(enrolled["event"], "enrolled");
    let _ = Channel::new(&home, "one").post("and the old channel goes on");
    home.crash();
    assert_eq!(names(&home, "channel"), [before, vec!["two".to_owned()]].concat());
    assert_eq!(names(&home, "device").len(), 2);
}

#[test]
fn a_copy_that_could_not_be_written_is_fetched_when_there_is_space() {
    if !is_root_for("a full disk under a copy of the org's chain") {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary folder");
    let tmpfs = Tmpfs::mount(&dir.path().join("small"), "8m");
    let mut plan = Plan::default();
    plan.resident = Setup::new(&tmpfs.0);
    let mut mesh = plan.start();
    mesh.resident.restart();
    mesh.resident.wait_link();
    let ballast = tmpfs.0.join("ballast");
    fill(&ballast);
    // More than fits into the chain's last page there.
    let made: Vec<_> = (0..8).map(|n| format!("c{n}")).collect();
    made.iter().for_each(|name| create(&mesh.home, name));
    let all = [made, vec!["lobby".to_owned()]].concat();
    until("the resident to know them", || (names(&mesh.resident, "channel") == all).then_some(()));
    let kept = || fs::read(chain(&mesh.resident.data())).expect("readable").windows(4).any(|at| at == b"\"c7\"");
    assert!(!kept(), "the disk was full");

    fs::remove_file(&ballast).expect("the ballast can go");
    until("the rest to be kept", || kept().then_some(()));
    mesh.home.stop();
    mesh.resident.crash();
    assert_eq!(names(&mesh.resident, "channel"), all);
}

/// Fills a file system to its last block.
fn fill(ballast: &Path) {
    use std::io::Write as _;
    let mut file = fs::File::options().create(true).append(true).open(ballast).expect("a file can be made");
    for len in [1 << 20, 4096, 1] {
        while file.write_all(&vec![1; len]).is_ok() {}
    }
}

#[test]
fn a_second_offer_takes_the_first_ones_place() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let node = Node::up(&dir.path().join("home"));
    let mut first = node.spawn_cli(["pair", "--json"]);
    first.wait_json("an offer", |value| value["event"] == "offer");
    let mut second = node.spawn_cli(["pair", "--json"]);
    let offer = second.wait_json("an offer", |value| value["event"] == "offer");
    let told = first.wait_json("the news", |value| value["event"] == "refused");
    assert_eq!(told["reason"], "cancelled");
    let _ = first.finish().code(3);

    // The first terminal has gone; the second offer stands.
    let lab = Setup::new(&dir.path().join("lab"));
    let mut joining = join(&lab, &offer["link"]);
    let digits = joining.wait_json("the digits", |value| value["event"] == "digits");
    second.wait_json("the claim", |value| value["event"] == "claim");
    second.write_line(digits["digits"].as_str().expect("digits are text"));
    second.wait_json("the enrolment", |value| value["event"] == "enrolled");
    joining.wait_json("the certificate", |value| value["event"] == "enrolled");
    let _ = (second.finish().ok(), joining.finish().ok());
    assert_eq!(names(&node, "device").len(), 2);
}
