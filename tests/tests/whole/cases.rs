//! Cases of the field that have no better place. `tests/cases.toml` lists which test shows which.

use std::fs;
use std::time::{Duration, Instant};

use tieline_proto::id::Hash;
use tieline_tests::mesh::Plan;
use tieline_tests::view::{Channel, Saved, body};
use tieline_tests::{Mesh, Node, until};

/// Case D16: a message is told by its id, not by its bytes, which something on the way may have changed.
#[test]
fn case_d16_same_id_with_other_bytes_is_the_same_message() {
    let mesh = Mesh::start();
    mesh.add_scripted("bot");
    let post = |text: &str| mesh.lobby().post_with(text, &["--id", "told-by-its-id"]).ok().json();
    let first = post("@bot script:text(naïve)");
    let second = post("@bot script:text(na\u{fffd}ve)");
    assert_eq!((&first["message"], &first["seq"]), (&second["message"], &second["seq"]));
    let run = mesh.lobby().wait_started(first["message"].as_u64().expect("a number"));
    let _ = mesh.lobby().wait_finished(run);
    let posts = mesh.lobby().entries_of("posted");
    assert_eq!(posts.len(), 1, "{posts:?}");
    assert_eq!(body(&posts[0])["post"]["text"], "@bot script:text(naïve)", "the first one stays as it was");
    assert_eq!(mesh.lobby().entries_of("turn-started").len(), 1);
}

/// Case S1: a session is the same one however often its process was ended and started.
#[test]
fn case_s1_session_is_the_same_after_ten_kills_and_revivals() {
    let mesh = Mesh::start();
    mesh.add_scripted("bot");
    for turn in 1..=10 {
        let said = mesh.lobby().ask("@bot script:turn");
        assert_eq!(said.answer().trim(), format!("turn {turn} of this session"));
        mesh.lobby().member("kill", "bot", &[]);
        mesh.lobby().wait_state("bot", "killed");
        mesh.lobby().member("revive", "bot", &[]);
    }
}

/// Case S2: a program that leaves a child behind and fails has failed; the child is no sign of life.
#[test]
fn case_s2_program_that_forks_and_fails_has_failed_and_its_child_is_gone() {
    let plan = Plan::default();
    let script = plan.script(
        "forker",
        "#!/bin/sh\ncat >/dev/null\nif [ -e mended ]; then echo fine; exit 0; fi\n\
         sleep 600 </dev/null >/dev/null 2>&1 &\necho $! >child.pid\nexit 1\n",
    );
    let mesh = plan.command("forker", [script]).start();
    mesh.add("bot", "forker");
    let asked = mesh.lobby().post_with("@bot go", &["--wait", "--timeout", "60"]).json();
    assert_eq!(asked["turns"][0]["status"], "failed", "{asked}");
    let finished = mesh.lobby().wait_finished(asked["turns"][0]["message"].as_u64().expect("a run"));
    assert!(finished["error"].as_str().is_some_and(|error| error.contains('1')), "it says how it ended: {finished}");
    let pid = mesh.wait_file("child.pid", "\n");
    until("the child to be gone", || (!fs::exists(format!("/proc/{}", pid.trim())).unwrap_or(true)).then_some(()));
    mesh.lobby().wait_state("bot", "idle");
    fs::write(mesh.work().join("mended"), "").expect("the work folder can be written");
    assert_eq!(mesh.lobby().ask("@bot again").answer().trim(), "fine");
}

/// Bytes that one turn prints: more than the node may hold at a time.
const LONG_RUN: usize = 256 << 20;

/// The most memory, in KiB, that a node may need for a run that is longer than it.
const RSS_KIB_MAX: u64 = 128 << 10;

fn resident_kib(node: &Node) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", node.pid())).expect("it runs");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("Linux counts it");
    peak.trim().trim_end_matches("kB").trim().parse().expect("a number")
}

/// Case F6: a run whose output is larger than memory should hold streams through both nodes, does not keep others waiting,
/// and costs the next start nothing.
#[test]
fn case_f6_long_run_is_streamed_and_costs_the_next_start_nothing() {
    let plan = Plan::default();
    let script =
        plan.script("flood", &format!("#!/bin/sh\ncat >/dev/null\nyes 0123456789abcdef | head -c {LONG_RUN}\n"));
    let mut mesh = plan.command("flood", [script]).start();
    mesh.add("bot", "flood");
    let _ = mesh.home.cli(["channel", "create", "other", "--json"]).ok();
    let saved = mesh.lobby().post("@bot go");
    let run = mesh.lobby().wait_started(saved.message);
    let other = Channel::new(&mesh.home, "other");
    let mut slowest = Duration::ZERO;
    let mut posts = 0;
    let finished = loop {
        let began = Instant::now();
        let _ = other.post("meanwhile");
        posts += 1;
        slowest = slowest.max(began.elapsed());
        let ended = mesh.lobby().entries_of("turn-finished");
        if let Some(ended) = ended.iter().find(|entry| body(entry)["message"] == run) {
            break body(ended).clone();
        }
    };
    assert_eq!(finished["status"], "completed", "{}", finished["error"]);
    assert!(slowest < Duration::from_secs(5), "one of {posts} posts beside it took {slowest:?}");
    for (node, name) in [(&mesh.home, "home"), (&mesh.resident, "resident")] {
        let kib = resident_kib(node);
        println!("{name}: {kib} KiB at most, slowest post beside it {slowest:?}");
        assert!(kib < RSS_KIB_MAX, "the {name} needed {kib} KiB");
    }
    let began = Instant::now();
    mesh.home.crash();
    assert!(began.elapsed() < Duration::from_secs(5), "the start took {:?}", began.elapsed());
    mesh.lobby().verify();
}

/// Case F6, the other half: what a crash left half-received is swept at the next start, and stands in nobody's way.
#[test]
fn case_f6_half_received_files_of_a_crash_are_swept() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut node = Node::up(dir.path());
    let _ = node.cli(["channel", "create", "lobby", "--json"]).ok();
    let attach = |node: &Node, name: &str| {
        let file = dir.path().join(name);
        fs::write(&file, name).expect("writable");
        let attach = ["--attach", file.to_str().expect("temporary folders have plain names")];
        Saved::read(Channel::new(node, "lobby").post_with("a file", &attach).ok().json())
    };
    let _ = attach(&node, "kept");
    node.kill9();
    let channel = fs::read_dir(node.data().join("channels")).expect("channels").next().expect("one").expect("readable");
    let blobs = channel.path().join("blobs");
    let kept = fs::read_dir(&blobs).expect("there are blobs").count();
    // Numbers begin anew with each start, so one of these names will be wanted again.
    let half = Hash::of(b"sent again").to_string();
    for n in 0..200 {
        fs::write(blobs.join(format!("{half}-{n}.part")), "sent").expect("writable");
    }
    node.start();
    let left = fs::read_dir(&blobs).expect("there are blobs").count();
    assert_eq!(left, kept, "orphans are gone and the rest is there");
    let _ = attach(&node, "sent again");
    Channel::new(&node, "lobby").verify();
}
