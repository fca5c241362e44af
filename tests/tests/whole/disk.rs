//! Disks: full, damaged, too open, too new; and proof that an ack waits for its sync.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tieline_tests::mesh::Plan;
use tieline_tests::root::is_root_for;
use tieline_tests::view::{Channel, Saved, assert_dense};
use tieline_tests::{Node, Process, Setup, until};

fn lobby(node: &Node) -> Channel<'_> {
    Channel::new(node, "lobby")
}

/// A node with a channel and a scripted member of its own.
fn alone(setup: Setup) -> Node {
    let node = setup.start();
    let _ = node.cli(["channel", "create", "lobby", "--json"]).ok();
    let _ = node.cli(["member", "add", "lobby", "bot", "--harness", "scripted", "--json"]).ok();
    node
}

/// All files below a folder.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => found.extend(files(&path)),
            Ok(kind) if kind.is_file() => found.push(path),
            _ => {}
        }
    }
    found.sort();
    found
}

/// A small file system in memory. Dropping it unmounts it.
pub struct Tmpfs(pub PathBuf);

impl Tmpfs {
    pub fn mount(at: &Path, size: &str) -> Self {
        fs::create_dir_all(at).expect("a folder can be made");
        let options = format!("size={size},mode=0700");
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(at);
        let mounted = Process::spawn(command).finish();
        assert_eq!(mounted.code, Some(0), "no small disk can be mounted here: {}", mounted.stderr);
        Self(at.to_owned())
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn full_disk_makes_the_channel_read_only_and_it_resumes_when_there_is_space() {
    if !is_root_for("a full disk") {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary folder");
    let tmpfs = Tmpfs::mount(&dir.path().join("small"), "20m");
    let ballast = tmpfs.0.join("ballast");
    fs::write(&ballast, vec![1; 10 << 20]).expect("there is space for the ballast");
    // The home's disk is small; the agent lives on another box, whose disk is not.
    let mut plan = Plan::default();
    plan.home = Setup::new(&tmpfs.0);
    let mut mesh = plan.start();
    mesh.add_scripted("bot");
    let mut acked = vec![lobby(&mesh.home).post("before")];

    // 11 MB of output where 8 MB fit.
    let flood = lobby(&mesh.home).post("@bot script:big(700,16384)");
    let refused = until("the channel to be read-only", || {
        let answer = lobby(&mesh.home).post_with("while it fills", &[]);
        if answer.code == Some(0) {
            acked.push(Saved::read(answer.json()));
            return None;
        }
        Some(answer)
    });
    assert_eq!(refused.error_code(), "read_only", "{}", refused.stdout);
    let reason = refused.json()["error"]["message"].to_string().to_lowercase();
    assert!(reason.contains("space") || reason.contains("full"), "the reason is in words: {reason}");
    assert!(mesh.home.runs(), "the node lives");
    let _ = mesh.home.cli(["status", "--json"]).ok();

    fs::remove_file(&ballast).expect("the ballast can go");
    let after = until("the channel to take posts again", || {
        let answer = lobby(&mesh.home).post_with("after", &[]);
        (answer.code == Some(0)).then(|| Saved::read(answer.json()))
    });
    acked.push(after);
    // What the full disk stopped goes on where it stood, and ends whole.
    let run = lobby(&mesh.home).wait_started(flood.message);
    assert_eq!(lobby(&mesh.home).wait_finished(run)["status"], "completed");
    mesh.home.crash();
    let entries = lobby(&mesh.home).entries();
    assert_dense(&entries);
    lobby(&mesh.home).verify();
    for saved in &acked {
        let entry = entries.iter().find(|entry| entry["seq"] == saved.seq);
        assert_eq!(entry.map(|entry| &entry["message"]), Some(&saved.message.into()), "an acknowledged post is lost");
    }
}

#[test]
fn deleted_index_is_rebuilt() {
    index_survives(|index| fs::remove_dir_all(index).expect("the index can be removed"));
}

/// Case F1: what abrupt stops left of sled 0.34.
#[test]
fn case_f1_corrupt_index_is_rebuilt() {
    index_survives(|index| {
        for file in files(index) {
            let mut bytes = fs::read(&file).expect("readable");
            for (at, byte) in bytes.iter_mut().enumerate() {
                if at % 97 == 0 {
                    *byte ^= 0x5a;
                }
            }
            fs::write(&file, bytes).expect("writable");
        }
        fs::write(index.join("snap.0000000000000A00.generating"), [0x7f; 100]).expect("writable");
    });
}

#[test]
fn case_f3_empty_index_files_are_rebuilt() {
    index_survives(|index| {
        for file in files(index) {
            fs::write(file, []).expect("writable");
        }
    });
}

fn index_survives(damage: impl Fn(&Path)) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut node = alone(Setup::new(dir.path()));
    let saved = lobby(&node).ask("@bot script:text(the answer)");
    let before = lobby(&node).frames();
    node.stop();
    let index = node.data().join("index");
    assert!(index.is_dir(), "the index has a folder of its own");
    damage(&index);

    node.start();
    assert_eq!(lobby(&node).frames(), before, "the log is the truth");
    let again = lobby(&node).ask("@bot script:turn");
    assert!(again.message > saved.message);
    lobby(&node).verify();
    let log = node.log().to_lowercase();
    assert!(log.contains("index") && log.contains("rebuil"), "it says so:\n{log}");
}

#[test]
fn threat_l5_key_file_that_others_can_read_refuses_the_start() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut node = alone(Setup::new(dir.path()));
    node.stop();
    let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
    let is_key = |path: &&PathBuf| {
        let name = path.strip_prefix(node.data()).expect("below the data").to_string_lossy().to_lowercase();
        name.contains("key") && mode(path) == 0o600
    };
    let all = files(&node.data());
    let keys: Vec<_> = all.iter().filter(is_key).collect();
    assert!(!keys.is_empty(), "no private key file among {all:?}");
    for key in keys {
        fs::set_permissions(key, fs::Permissions::from_mode(0o644)).expect("it is ours");
        let refused = node.setup().up_fails();
        assert!(refused.code.is_some_and(|code| code != 0), "{} was taken", key.display());
        let name = key.file_name().expect("a file").to_string_lossy();
        assert!(refused.stderr.contains(&*name), "{name} is named: {}", refused.stderr);
        assert!(refused.stderr.contains("chmod 600"), "the hint is the command: {}", refused.stderr);
        fs::set_permissions(key, fs::Permissions::from_mode(0o600)).expect("it is ours");
    }
    node.start();
    assert_eq!(mode(&node.data()), 0o700, "the folder is the owner's alone");
}

#[test]
fn case_f8_torn_last_line_is_cut_and_reported() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    // Without an agent nothing else is written that could take the torn entry's place.
    let mut node = Setup::new(dir.path()).start();
    let _ = node.cli(["channel", "create", "lobby", "--json"]).ok();
    let kept = lobby(&node).post("kept");
    let torn = lobby(&node).post("torn in the middle");
    node.kill9();
    let log = super::remote_turn::logs(&node.data()).pop().expect("a log");
    let mut bytes = fs::read(&log).expect("readable");
    let at = bytes.windows(6).position(|window| window == b"torn i").expect("the post is in the log");
    for byte in &mut bytes[at..] {
        *byte = b'\n';
    }
    fs::write(&log, bytes).expect("writable");

    node.start();
    let entries = lobby(&node).entries();
    assert!(entries.iter().any(|entry| entry["seq"] == kept.seq));
    assert!(!entries.iter().any(|entry| entry["seq"] == torn.seq && entry["message"] == torn.message));
    lobby(&node).verify();
    let after = lobby(&node).post("after the repair");
    assert_eq!(after.seq, torn.seq, "the log goes on where it was cut");
    assert!(
        node.log().contains("lobby") || node.log().contains("cut") || node.log().contains("tail"),
        "{}",
        node.log()
    );
}

#[test]
fn log_is_json_lines_that_jq_reads_with_its_padding() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let node = alone(Setup::new(dir.path()));
    let _ = lobby(&node).post("hello, jq");
    let log = super::remote_turn::logs(&node.data()).pop().expect("a log");
    let text = fs::read_to_string(&log).expect("UTF-8");
    let lines: Vec<_> = text.lines().filter(|line| !line.is_empty()).collect();
    assert!(lines.iter().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()));
    assert!(text.ends_with("\n\n"), "it is padded ahead while it is open");
    assert!(lines.iter().any(|line| line.contains("hello, jq")));
}

/// An `fdatasync` of the log returns before the answer with the receipt is written, for every post. Seen from outside
/// with `strace`: `kill -9` alone cannot prove it, as the kernel keeps what was written.
#[test]
fn every_ack_waits_for_a_sync_of_its_log() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let trace = dir.path().join("trace.txt");
    let mut setup = Setup::new(dir.path());
    let calls = "trace=fdatasync,fsync,sync_file_range,write,writev,pwrite64,pwritev,sendto,sendmsg";
    setup.under = ["strace", "-f", "-y", "-s", "4096", "-e", calls, "-o"].map(OsString::from).to_vec();
    setup.under.push(trace.clone().into_os_string());
    let mut node = alone(setup);
    let posts: Vec<_> = (0..10).map(|n| (format!("synced-{n}-post"), n)).collect();
    for (text, _) in &posts {
        let _ = lobby(&node).post(text);
    }
    node.stop();

    let text = fs::read_to_string(&trace).expect("strace wrote a trace");
    let mut checked = 0;
    for (post, _) in &posts {
        assert!(acked_after_sync(&text, post), "no sync between the write and the ack of {post}");
        checked += 1;
    }
    assert_eq!(checked, posts.len());
}

/// Whether the log's file was synced after the post was written to it and before its receipt was sent.
fn acked_after_sync(trace: &str, post: &str) -> bool {
    let mut lines = trace.lines().skip_while(|line| {
        let writes = ["write(", "pwrite64(", "writev(", "pwritev("].iter().any(|call| line.contains(call));
        !(writes && line.contains("/log/") && line.contains(post))
    });
    if lines.next().is_none() {
        return false;
    }
    // A call that is still running is printed as `unfinished` and again, without its file, as `resumed`.
    let mut waiting = None;
    for line in lines {
        let thread = line.split_whitespace().next().unwrap_or_default();
        let is_sync = line.contains("fdatasync(") || line.contains("fsync(");
        if is_sync && line.contains("/log/") {
            if line.contains("<unfinished") {
                waiting = Some(thread.to_owned());
            } else if line.contains("= 0") {
                return true;
            }
        }
        if waiting.as_deref() == Some(thread) && line.contains("resumed>") && line.contains("= 0") {
            return true;
        }
        if line.contains("receipt") {
            return false;
        }
    }
    false
}
