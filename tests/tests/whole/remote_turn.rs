//! The main job: a mention posted at the home runs on the resident and its output streams back.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tieline_tests::mesh::Plan;
use tieline_tests::model::SECRETS;
use tieline_tests::process::assert_allowed_env;
use tieline_tests::view::{Saved, assert_dense, body, contains};
use tieline_tests::{Finished, Mesh, Node, Setup};

/// An `exec` harness of the resident's owner: prints three lines around a word of the prompt.
const COUNTER: &str = "#!/bin/sh
word=$(grep -o 'word-[a-z]*' | head -n 1)
echo \"one $word\"
echo two
echo three
";

fn counting_mesh() -> Mesh {
    let plan = Plan::default();
    let script = plan.script("counter", COUNTER);
    let mesh = plan.command("counter", [script]).start();
    mesh.add("bot", "counter");
    mesh
}

#[test]
fn remote_exec_turn_answers_the_waiting_post() {
    let mesh = counting_mesh();
    let saved = mesh.lobby().ask("@bot count word-apple");
    assert_eq!(saved.turn()["by"], "bot");
    assert_eq!(saved.answer().trim(), "one word-apple\ntwo\nthree");
    assert!(saved.turn()["message"].as_u64() > Some(saved.message), "{}", saved.json);

    let entries = mesh.lobby().entries();
    assert_dense(&entries);
    let started = entries.iter().find(|entry| entry["kind"] == "turn-started").expect("a turn started");
    assert!(contains(&body(started)["batch"], saved.message), "{started}");
    assert_eq!(body(started)["node"], mesh.resident.id().as_str(), "it ran on the resident");
}

#[test]
fn tail_shows_every_event_of_a_remote_turn_in_order() {
    let mesh = counting_mesh();
    let mut tail = mesh.lobby().follow(0);
    tail.wait_json("the live marker", |frame| frame["type"] == "synced");
    let saved = mesh.lobby().ask("@bot count word-pear");
    let run = saved.turn()["message"].as_u64().expect("a turn has a run message");

    let mut events = Vec::new();
    let mut began = false;
    tail.wait_json("the end of the turn", |frame| {
        let is_entry = |kind: &str| frame["type"] == "entry" && frame["kind"] == kind && body(frame)["message"] == run;
        began |= is_entry("turn-started");
        if frame["type"] == "event" && frame["message"] == run {
            assert!(began, "an event came before its turn started: {frame}");
            events.push(frame.clone());
        }
        is_entry("turn-finished")
    });
    for (place, event) in events.iter().enumerate() {
        assert_eq!(event["index"], place as u64, "events have a gap or another order: {events:?}");
    }
    let kinds: Vec<_> = events.iter().filter_map(|event| event["event"]["type"].as_str()).collect();
    assert_eq!(kinds.first(), Some(&"started"), "{kinds:?}");
    assert_eq!(kinds.last(), Some(&"finished"), "{kinds:?}");
    assert_eq!(kinds.iter().filter(|kind| **kind == "finished").count(), 1, "{kinds:?}");
    let text: String = events
        .iter()
        .filter(|event| event["event"]["type"] == "text")
        .filter_map(|event| event["event"]["text"].as_str())
        .collect();
    assert_eq!(text.trim(), saved.answer().trim(), "the stream adds up to the answer");

    let finished = mesh.lobby().wait_finished(run);
    assert_eq!(finished["events"], events.len() as u64, "the log names how many events the journal has");
}

/// One who comes back in mid-turn gets the turn's events from its first one on, and those that follow.
#[test]
fn follower_that_comes_back_in_mid_turn_gets_the_whole_stream() {
    let plan = Plan::default();
    let go = plan.work().join("go");
    let text = format!("#!/bin/sh\necho before\nwhile [ ! -e {} ]; do sleep 0.02; done\necho after\n", go.display());
    let script = plan.script("waiter", &text);
    let mesh = plan.command("waiter", [script]).start();
    mesh.add("bot", "waiter");
    let saved = mesh.lobby().post("@bot wait");
    let run = mesh.lobby().wait_started(saved.message);
    let is_text = |frame: &Value, text: &str| {
        frame["type"] == "event"
            && frame["message"] == run
            && frame["event"]["text"].as_str().is_some_and(|t| t.contains(text))
    };
    let head = mesh.lobby().entries().last().and_then(|entry| entry["seq"].as_u64()).expect("entries have a seq");
    for node in [&mesh.home, &mesh.resident] {
        let mut tail =
            node.spawn_cli(["tail", "lobby", "--since", &head.to_string(), "--follow", "--events", "--json"]);
        let mut next = 0;
        tail.wait_json("what was said before", |frame| {
            if frame["type"] == "event" {
                assert_eq!(frame["index"], next, "{frame}");
                next += 1;
            }
            is_text(frame, "before")
        });
    }
    let mut tail = mesh.lobby().follow(head);
    tail.wait_json("what was said before", |frame| is_text(frame, "before"));
    fs::write(&go, "").expect("writable");
    tail.wait_json("what is said after", |frame| is_text(frame, "after"));
    let _ = mesh.lobby().wait_finished(run);
}

#[test]
fn verify_is_ok_live_on_the_folder_and_on_the_export() {
    let mut mesh = counting_mesh();
    let _ = mesh.lobby().ask("@bot count word-plum");
    let entries = mesh.lobby().verify();
    assert_eq!(entries, mesh.lobby().entries().len() as u64);

    let export = mesh.dir().join("lobby.tieline");
    let export = export.to_str().expect("temporary folders have plain names");
    let _ = mesh.home.cli(["channel", "export", "lobby", export, "--json"]).ok();
    let org = mesh.home.cli(["org", "show", "--json"]).ok().json();
    let fingerprint = org["fingerprint"].as_str().expect("an org has a fingerprint");
    mesh.home.stop();

    let folder = mesh.home.cli(["channel", "verify", "lobby", "--json"]).ok().json();
    assert_eq!((&folder["ok"], &folder["entries"]), (&Value::Bool(true), &Value::from(entries)), "{folder}");

    // Somebody else's box: no data, only the file and what it is told about the org.
    let other = Setup::new(&mesh.dir().join("other"));
    let loose = other.cli(["channel", "verify", export, "--json"]).ok().json();
    assert_eq!((&loose["ok"], &loose["entries"]), (&Value::Bool(true), &Value::from(entries)), "{loose}");
    assert_eq!((&loose["trusted"], &loose["org"]), (&"self-consistent".into(), &fingerprint.into()), "{loose}");
    let pinned = other.cli(["channel", "verify", export, "--org", fingerprint, "--json"]).ok().json();
    assert_eq!(pinned["trusted"], "pinned", "{pinned}");
    let wrong = other.cli(["channel", "verify", export, "--org", &"0".repeat(32), "--json"]);
    assert_eq!(wrong.code, Some(1), "another org is not this one: {}", wrong.stdout);
}

#[test]
fn verify_names_the_seq_of_a_flipped_byte() {
    let mut mesh = counting_mesh();
    let saved = mesh.lobby().post("the needle that will be bent");
    let _ = mesh.lobby().post("and something after it");
    let export = mesh.dir().join("lobby.tieline");
    let _ = mesh.home.cli(["channel", "export", "lobby", export.to_str().expect("plain"), "--json"]).ok();
    mesh.home.stop();

    flip(&log_file(&mesh.home.data()), "needle that", "noodle that");
    bad_seq(&mesh.home.cli(["channel", "verify", "lobby", "--json"]), &saved);
    flip(&export, "needle that", "noodle that");
    bad_seq(&mesh.home.cli(["channel", "verify", export.to_str().expect("plain"), "--json"]), &saved);
}

#[test]
fn flipped_byte_stops_its_channel_and_not_the_node() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut node = Node::up(dir.path());
    for channel in ["bent", "sound"] {
        let _ = node.cli(["channel", "create", channel, "--json"]).ok();
    }
    let saved = Saved::read(node.cli(["post", "bent", "the needle that will be bent", "--json"]).ok().json());
    let _ = node.cli(["post", "bent", "something after it", "--json"]).ok();
    node.stop();
    let log = logs(&node.data()).into_iter().find(|log| read(log).contains("needle that")).expect("a log has it");
    flip(&log, "needle that", "noodle that");

    node.start();
    let refused = node.cli(["post", "bent", "more", "--json"]).code(3);
    assert_eq!(refused.error_code(), "read_only");
    let reason = refused.json()["error"]["message"].to_string();
    assert!(reason.contains(&saved.seq.to_string()), "the reason names the seq {}: {reason}", saved.seq);
    let _ = node.cli(["post", "sound", "all is well here", "--json"]).ok();
}

#[test]
fn repeated_client_id_gets_the_first_answer() {
    let mesh = counting_mesh();
    let first = mesh.lobby().post_with("@bot count word-fig", &["--id", "client-1"]).ok().json();
    let again = mesh.lobby().post_with("@bot count word-fig", &["--id", "client-1"]).ok().json();
    assert_eq!(first, again);
    let other = mesh.lobby().post_with("@bot count word-fig", &["--id", "client-2", "--wait"]).ok().json();
    assert_ne!(first["message"], other["message"]);
    let posts = mesh.lobby().entries_of("posted");
    assert_eq!(posts.len(), 2, "{posts:?}");
}

#[test]
fn post_from_inside_a_turn_speaks_as_the_member() {
    let plan = Plan::default();
    let script = plan.script(
        "poster",
        &format!(
            "#!/bin/sh\ncat >prompt.txt\nenv | grep ^TIELINE_ >env.txt\n\
             {} post \"$TIELINE_CHANNEL\" 'from inside' --json >post.json 2>post.err\necho \"exit $?\"\n",
            tieline_tests::node::binary("tieline").display()
        ),
    );
    let mesh = plan.command("poster", [script]).start();
    mesh.add("bot", "poster");
    let saved = mesh.lobby().ask("@bot post something");
    assert_eq!(saved.answer().trim(), "exit 0", "{}", read(&mesh.work().join("post.err")));

    let env = mesh.wait_file("env.txt", "TIELINE_TOKEN");
    for name in ["TIELINE_SOCKET=", "TIELINE_CHANNEL=", "TIELINE_MEMBER=", "TIELINE_TOKEN="] {
        assert!(env.contains(name), "{name} is missing in:\n{env}");
    }
    let inside = mesh.lobby().entries_of("posted").into_iter().find(|e| body(e)["post"]["text"] == "from inside");
    let inside = inside.expect("the post reached the home's log");
    assert_eq!(inside["author"], "bot");
    assert_eq!(body(&inside)["run"], saved.turn()["message"], "it names the turn it came from");
    let answer: Value = serde_json::from_str(&mesh.wait_file("post.json", "receipt")).expect("one JSON value");
    assert_eq!(answer["message"], inside["message"]);
}

/// Whatever the node was started with: a program finds the short list, what its owner passes on, and nothing else.
#[test]
fn programs_environment_holds_nothing_but_the_allowed_names() {
    let mut plan = Plan::default();
    for (name, value) in SECRETS {
        plan.resident = plan.resident.env(name, value);
    }
    for name in ["USER", "SHELL", "LD_LIBRARY_PATH", "TIELINE_LOG_LEVEL", "EDITOR"] {
        plan.resident = plan.resident.env(name, "info");
    }
    for (name, value) in [("TMPDIR", "/tmp"), ("HTTPS_PROXY", "http://127.0.0.1:9"), ("SSL_CERT_FILE", "/no/such")] {
        plan.resident = plan.resident.env(name, value);
    }
    // Before the shell adds anything of its own.
    let script = plan.script("bare", "#!/bin/sh\ncat >/dev/null\ntr '\\0' '\\n' </proc/$$/environ >env.txt\necho ok\n");
    let mesh = plan.command("bare", [script]).start();
    mesh.add("bot", "bare");
    let _ = mesh.lobby().ask("@bot look around").answer();
    let env = mesh.wait_file("env.txt", "TIELINE_TOKEN=");
    assert_allowed_env(&env);
    for name in ["HOME", "PATH", "LANG", "TMPDIR", "HTTPS_PROXY", "SSL_CERT_FILE"] {
        assert!(env.lines().any(|line| line.starts_with(&format!("{name}="))), "{name} is missing in:\n{env}");
    }
}

/// What a turn's program leaves behind ends with the turn: nothing runs on a box that no turn accounts for.
#[test]
fn detached_child_of_a_turn_ends_with_it() {
    let plan = Plan::default();
    let script = plan.script(
        "detacher",
        "#!/bin/sh\ncat >/dev/null\nsetsid sh -c 'echo $$ >child.pid; exec sleep 600' </dev/null >/dev/null 2>&1 &\n\
         until [ -s child.pid ]; do sleep 0.05; done\necho started\n",
    );
    let mesh = plan.command("detacher", [script]).start();
    mesh.add("bot", "detacher");
    assert_eq!(mesh.lobby().ask("@bot start it").answer().trim(), "started");
    let pid = read(&mesh.work().join("child.pid"));
    let proc = std::path::PathBuf::from(format!("/proc/{}", pid.trim()));
    tieline_tests::until("the child to be gone", || (!proc.exists()).then_some(()));
}

#[test]
fn attachment_is_readable_by_the_agent_on_the_other_box() {
    let plan = Plan::default();
    let script = plan.script(
        "summer",
        "#!/bin/sh
grep -o '/[^][ ()\"<>`]*' | while read -r path; do [ -f \"$path\" ] && sha256sum <\"$path\"; done
",
    );
    let mesh = plan.command("summer", [script]).start();
    mesh.add("bot", "summer");
    // More than one chunk, and not text.
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let file = mesh.dir().join("data.bin");
    fs::write(&file, bytes).expect("a file can be written");
    let sum = std::process::Command::new("sha256sum").arg(&file).output().expect("sha256sum runs").stdout;
    let sum = String::from_utf8_lossy(&sum)[..64].to_owned();

    let attach = ["--attach", file.to_str().expect("plain"), "--wait", "--timeout", "100"];
    let saved = Saved::read(mesh.lobby().post_with("@bot sum this", &attach).ok().json());
    assert!(saved.answer().contains(&sum), "{} is not in {:?}", sum, saved.answer());
    // Case L9: nothing to say is not nothing to deliver.
    let empty = Saved::read(mesh.lobby().post_with("", &attach).ok().json());
    assert!(empty.answer().contains(&sum), "{}", empty.json);
}

#[test]
fn case_l9_attachment_without_text_mid_turn_is_delivered() {
    let plan = Plan::default();
    let script = plan.script(
        "slow",
        "#!/bin/sh\ncat >>prompts.txt\necho turn >>turns.txt\n\
         if [ $(wc -l <turns.txt) = 1 ]; then until [ -e go ]; do sleep 0.05; done; fi\necho ok\n",
    );
    let mesh = plan.command("slow", [script]).start();
    mesh.add("bot", "slow");
    let first = mesh.lobby().post("@bot begin");
    let run = mesh.lobby().wait_started(first.message);
    let file = mesh.dir().join("note-attached.txt");
    fs::write(&file, "hello").expect("a file can be written");
    let empty = mesh.lobby().post_with("", &["--attach", file.to_str().expect("plain")]).ok().json();
    fs::write(mesh.work().join("go"), "").expect("the work folder can be written");
    let _ = mesh.lobby().wait_finished(run);
    let second = mesh.lobby().wait_started(empty["message"].as_u64().expect("a message"));
    assert_eq!(mesh.lobby().wait_finished(second)["status"], "completed");
    assert!(mesh.wait_file("prompts.txt", "note-attached.txt").contains("note-attached.txt"));
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The segments of all channels, first ones first.
pub fn logs(data: &Path) -> Vec<PathBuf> {
    let channels = fs::read_dir(data.join("channels")).expect("there are channels");
    let mut logs: Vec<_> = channels
        .filter_map(|channel| fs::read_dir(channel.ok()?.path().join("log")).ok())
        .flatten()
        .filter_map(|file| Some(file.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|ext| ext == "jsonl"))
        .collect();
    logs.sort();
    logs
}

fn log_file(data: &Path) -> PathBuf {
    logs(data).into_iter().next().expect("the channel has a log")
}

/// Bends text of the same length in a file.
fn flip(path: &Path, from: &str, to: &str) {
    assert_eq!(from.len(), to.len());
    let text = fs::read(path).expect("the file can be read");
    let at = text.windows(from.len()).position(|bytes| bytes == from.as_bytes()).expect("the file has the text");
    let mut bent = text;
    bent[at..at + to.len()].copy_from_slice(to.as_bytes());
    fs::write(path, bent).expect("the file can be written");
}

fn bad_seq(verdict: &Finished, saved: &Saved) {
    assert_eq!(verdict.code, Some(1), "{}", verdict.stdout);
    let verdict = verdict.json();
    assert_eq!(verdict["ok"], false, "{verdict}");
    assert_eq!(verdict["first_bad"], saved.seq, "{verdict}");
}
