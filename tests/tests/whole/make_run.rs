//! `scripts/run.sh`, what `make run` shows: its ends, good and bad, leave nothing behind.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use tieline_tests::mesh::write_script;
use tieline_tests::node::binary;
use tieline_tests::{Process, until};

/// Starts it in a process group of its own, as a terminal does, with its folders below `dir`.
fn run(dir: &Path, bin: &Path, once: bool) -> Process {
    let mut command = Command::new("bash");
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/run.sh")).process_group(0).env_clear();
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("HOME", dir).env("TMPDIR", dir);
    command.env("BIN", bin).env("ONCE", if once { "1" } else { "" });
    Process::spawn(command)
}

fn bin() -> PathBuf {
    binary("tieline").parent().expect("a binary is in a folder").to_owned()
}

/// Processes that know the folder, and what is in it.
fn left(dir: &Path) -> Vec<String> {
    let name = dir.to_str().expect("temporary folders have plain names");
    let mut left: Vec<_> =
        fs::read_dir(dir).expect("there").flatten().map(|e| e.path().display().to_string()).collect();
    for process in fs::read_dir("/proc").expect("there is a /proc").flatten() {
        let read = |file: &str| fs::read(process.path().join(file)).unwrap_or_default();
        let holds = |file: &str| String::from_utf8_lossy(&read(file)).contains(name);
        if holds("cmdline") || holds("environ") {
            left.push(String::from_utf8_lossy(&read("cmdline")).replace('\0', " "));
        }
    }
    left
}

#[test]
fn run_once_shows_the_streamed_answer_and_ends_with_0() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let ended = run(dir.path(), &bin(), true).finish().ok();
    let at = |words: &str| ended.stdout.find(words).unwrap_or_else(|| panic!("no {words:?} in {}", ended.stdout));
    assert!(at("1. The home") < at("2. The resident"));
    assert!(at("@bot hello from the other box") < at("I am the scripted member"));
    assert!(at("I am the scripted member") < at("completed"));
    assert!(at("completed") < at("as they were sealed"), "it checks its log: {}", ended.stdout);
    assert_eq!(left(dir.path()), Vec::<String>::new());
}

#[test]
fn run_stays_until_ctrl_c_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut running = run(dir.path(), &bin(), false);
    let group = Pid::from_raw(i32::try_from(running.id()).expect("small")).expect("a pid");
    let mut export = String::new();
    while !running.next_line(Duration::from_secs(60)).expect("it goes on").contains("The page's API") {}
    // The printed commands work while it stays.
    let folder = fs::read_dir(dir.path()).expect("there").flatten().next().expect("one folder").path();
    export.push_str(&format!("export PATH={}:$PATH TIELINE_DATA={}/home; ", bin().display(), folder.display()));
    let mut shell = Command::new("bash");
    shell.args(["-c", &format!("{export} tieline post lobby '@bot again' --wait && tieline channel verify lobby")]);
    let _ = Process::spawn(shell).finish().ok();
    assert!(running.runs(), "it stays up");

    kill_process_group(group, Signal::INT).expect("it runs");
    let began = Instant::now();
    let ended = running.finish();
    assert_eq!(ended.code, Some(130), "{}", ended.stderr);
    assert!(began.elapsed() < Duration::from_secs(15), "it took {:?}", began.elapsed());
    until("everything to be gone", || left(dir.path()).is_empty().then_some(()));
}

#[test]
fn run_that_fails_says_why_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broken = tempfile::tempdir().expect("a temporary folder");
    let script = format!(
        "#!/bin/sh\nif [ \"$1 $2\" = 'member add' ]; then echo 'no member today' >&2; exit 3; fi\nexec {} \"$@\"\n",
        binary("tieline").display()
    );
    let _ = write_script(broken.path(), "tieline", &script);
    let ended = run(dir.path(), broken.path(), true).finish().code(1);
    assert!(ended.stderr.contains("FAILED: the member was not added"), "{}", ended.stderr);
    assert!(ended.stderr.contains("no member today"), "the reason is shown: {}", ended.stderr);
    assert_eq!(left(dir.path()), Vec::<String>::new());
}
