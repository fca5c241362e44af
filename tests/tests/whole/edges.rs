//! The edges of the command line and the doors: damage behind a running node, homes that go away in mid-wait, folders,
//! flags and files that are not what they seem, and programs of agents that would be the owner.

use std::fs;
use std::path::PathBuf;

use tieline_tests::mesh::{Plan, write_script};
use tieline_tests::node::binary;
use tieline_tests::view::Channel;
use tieline_tests::{Mesh, Node, Setup, until};

/// A node with a channel of some posts and a scripted member.
fn alone(setup: Setup) -> Node {
    let node = setup.start();
    let _ = node.cli(["channel", "create", "lobby", "--json"]).ok();
    let _ = node.cli(["member", "add", "lobby", "bot", "--harness", "scripted", "--json"]).ok();
    for n in 0..12 {
        let _ = Channel::new(&node, "lobby").post(&format!("post {n}"));
    }
    // Its only member may answer; what is compared later must not move.
    until("the channel to be at rest", || {
        let bot = Channel::new(&node, "lobby").member_status("bot");
        (bot["state"] == "idle" && bot["queue"]["depth"] == 0).then_some(())
    });
    node
}

/// The first segment of the node's only channel.
fn segment(node: &Node) -> PathBuf {
    let channels = fs::read_dir(node.data().join("channels")).expect("there are channels");
    let channel = channels.flatten().next().expect("one channel").path();
    channel.join("log").join("0000000000000001.jsonl")
}

/// Bends a byte of the entry with this seq.
fn bend(log: &PathBuf, seq: u64) {
    let mut bytes = fs::read(log).expect("readable");
    let start = format!("{{\"seq\":{seq},");
    let at = bytes.windows(start.len()).position(|window| window == start.as_bytes()).expect("the entry is there");
    bytes[at + start.len() + 40] ^= 1;
    fs::write(log, bytes).expect("writable");
}

#[test]
fn damage_is_named_also_while_a_node_runs() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut node = alone(Setup::new(dir.path()));
    let sound = node.cli(["channel", "verify", "lobby", "--json"]).ok().json();
    let export = |name: &str| dir.path().join(name).to_str().expect("plain").to_owned();
    let exported = node.cli(["channel", "export", "lobby", &export("sound"), "--json"]).ok().json();
    assert_eq!(exported["entries"], sound["entries"], "a running node's channel is exported whole");

    // Behind the back of the node that runs, then at its start.
    bend(&segment(&node), 5);
    for name in ["behind", "opened"] {
        let verdict = node.cli(["channel", "verify", "lobby", "--json"]).code(1).json();
        assert_eq!((&verdict["ok"], &verdict["first_bad"]), (&false.into(), &5.into()), "{name}: {verdict}");
        let refused = node.cli(["channel", "export", "lobby", &export(name), "--json"]);
        assert_eq!(refused.error_code(), "read_only", "{name}");
        assert!(!dir.path().join(name).exists(), "{name}: nothing half is left");
        node.restart();
    }
    let refused = node.cli(["post", "lobby", "x", "--json"]).code(3).json();
    let hint = refused["error"]["hint"].as_str().expect("a hint");
    assert!(hint.contains("verify") && !hint.contains("by itself"), "damage does not mend itself: {hint}");
}

/// A home that goes away in mid-wait is waited for, and never taken for the end of the turn.
#[test]
fn wait_and_tail_go_on_where_they_were_when_the_home_comes_back() {
    let mut mesh = Mesh::start();
    mesh.add_scripted("bot");
    let there = Channel::new(&mesh.resident, "lobby");
    let mut tail = there.follow(0);
    let wait = there.spawn_post("@bot script:text(so far) script:hang", &["--wait", "--timeout", "100"]);
    let started = tail.wait_json("the turn to start", |frame| frame["kind"] == "turn-started");
    let message = started["line"]["body"]["batch"][0].as_u64().expect("a message");
    let _ = mesh.lobby().wait_started(message);
    mesh.home.kill9();
    mesh.home.start();
    mesh.wait_links();
    let after = mesh.lobby().post("after");
    let seen =
        tail.wait_json("what came after", |frame| frame["kind"] == "posted" && frame["message"] == after.message);
    assert_eq!(seen["seq"], after.seq);
    let lobby = mesh.lobby();
    until("the turn to be stopped", || {
        let _ = mesh.home.cli(["member", "interrupt", "lobby", "bot", "--json"]);
        (lobby.member_status("bot")["state"] == "idle").then_some(())
    });
    let waited = wait.finish().code(1).json();
    assert_eq!(waited["turns"][0]["status"], "interrupted", "{waited}");
}

#[test]
fn agents_of_one_box_get_the_same_file_at_once() {
    let mesh = Mesh::start();
    let agents = ["q1", "q2", "q3", "q4"];
    for agent in agents {
        mesh.add_scripted(agent);
    }
    let file = mesh.dir().join("f.bin");
    let content: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    fs::write(&file, content).expect("writable");
    for _ in 0..3 {
        let args = ["--attach", file.to_str().expect("plain"), "--wait", "--timeout", "100"];
        let answer = mesh.lobby().post_with("@q1 @q2 @q3 @q4 script:text(seen)", &args).ok().json();
        let turns = answer["turns"].as_array().expect("turns");
        assert_eq!(turns.len(), agents.len(), "{answer}");
        assert!(turns.iter().all(|turn| turn["status"] == "completed"), "{answer}");
    }
}

/// What an agent starts is not the owner, whatever it leaves out of its environment.
#[test]
fn a_program_of_an_agent_without_its_token_is_refused() {
    let plan = Plan::default();
    let tieline = binary("tieline");
    let script = format!(
        "#!/bin/sh\ncat >/dev/null\nexport HOME=/nonexistent\nt={}\n\
         (unset TIELINE_TOKEN; $t status; echo \"status $?\")\n(TIELINE_TOKEN= $t post lobby 'as the owner'; echo \"post $?\")\n\
         (unset TIELINE_TOKEN; setsid $t tail lobby --once; echo \"tail $?\")\n($t org show; echo \"org $?\")\n\
         ($t harness list; echo \"harness $?\")\n($t post 'as itself'; echo \"own $?\")\n",
        tieline.display()
    );
    let path = plan.script("sneak.sh", &script);
    let mesh = plan.command("sneak", [path]).start();
    mesh.add("sneak", "sneak");
    let answer = mesh.lobby().ask("@sneak go");
    let said = answer.answer();
    for line in ["status 3", "post 3", "tail 3", "org 3", "harness 3", "own 0"] {
        assert!(said.lines().any(|said| said == line), "no {line:?} in:\n{said}");
    }
    let posts = mesh.lobby().entries_of("posted");
    let texts: Vec<_> = posts.iter().map(|entry| (&entry["author"], &entry["line"]["body"]["post"]["text"])).collect();
    assert!(texts.contains(&(&"sneak".into(), &"as itself".into())), "{texts:?}");
    assert!(!texts.iter().any(|(_, text)| **text == "as the owner"), "{texts:?}");
}

/// A post must not read the secrets that the owner passes on to other harnesses.
#[test]
fn scripted_says_no_secrets() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let setup = Setup::new(dir.path()).env("OPENAI_API_KEY", "sk-secret").env("HTTPS_PROXY", "http://u:hidden@p");
    fs::create_dir_all(setup.data()).expect("writable");
    fs::write(setup.data().join("config.toml"), "env_pass = [\"OPENAI_API_KEY\"]\n").expect("writable");
    let node = alone(setup);
    let asked =
        "@bot script:env(OPENAI_API_KEY) script:env(HTTPS_PROXY) script:env(TIELINE_TOKEN) script:env(TIELINE_MEMBER)";
    let answer = Channel::new(&node, "lobby").ask(asked);
    let said = answer.answer();
    assert!(said.contains("TIELINE_MEMBER=bot") && said.contains("OPENAI_API_KEY is not said"), "{said}");
    assert!(!said.contains("sk-secret") && !said.contains("hidden"), "{said}");
    let token = said.lines().find(|line| line.starts_with("TIELINE_TOKEN")).expect("a line");
    assert_eq!(token, "TIELINE_TOKEN is not said: it may be a secret");
}

#[test]
fn relative_folders_and_bare_file_names_work() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let setup = Setup::new(dir.path());
    let up = ["--data", "rel", "up", "--api", "127.0.0.1:0", "--listen", "/ip4/127.0.0.1/tcp/0"];
    let up = setup.spawn_cli([&up[..], &["--no-mdns", "--ready-file", "a.ready", "--json"]].concat());
    until("the ready file", || fs::read_to_string(dir.path().join("a.ready")).ok().filter(|text| text.ends_with('}')));
    let cli = |args: &[&str]| setup.cli([&["--data", "rel", "--json"], args].concat());
    let work = write_script(dir.path(), "pwd.sh", "#!/bin/sh\ncat >/dev/null\npwd\necho $TIELINE_SOCKET\n");
    let _ = cli(&["harness", "add", "where", "--", &work]).ok();
    let _ = cli(&["channel", "create", "lobby"]).ok();
    let _ = cli(&["member", "add", "lobby", "ww", "--harness", "where"]).ok();
    let answer = cli(&["post", "lobby", "@ww where are you?", "--wait", "--timeout", "60"]).ok().json();
    let said = answer["turns"][0]["body"].as_str().expect("an answer");
    assert!(said.lines().count() == 2 && said.lines().all(|line| line.starts_with('/')), "{answer}");
    // The hints are for this folder.
    let missing = cli(&["channel", "show", "nowhere"]).code(4).json();
    let hint = missing["error"]["hint"].as_str().expect("a hint");
    assert!(hint.contains(&format!("--data {}", dir.path().join("rel").display())), "{hint}");
    let _ = cli(&["stop"]).ok();
    let up = up.finish().ok();
    assert_eq!(up.stdout, "", "with --json nothing for people is on stdout");
}

#[test]
fn folders_and_flags_that_are_not_what_they_seem_are_refused() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let setup = Setup::new(dir.path());
    let project = dir.path().join("project");
    fs::create_dir_all(&project).expect("writable");
    fs::write(project.join("main.rs"), "fn main() {}").expect("writable");
    let data = project.to_str().expect("plain");
    let refused = |args: &[&str], code: i32, part: &str| {
        let ended = setup.cli([args, &["--json"]].concat()).code(code);
        let _ = ended.error_code();
        assert!(ended.stdout.contains(part), "{args:?}: {}", ended.stdout);
    };
    let up = ["up", "--api", "127.0.0.1:0", "--listen", "/ip4/127.0.0.1/tcp/0"];
    refused(&[&["--data", data], &up[..]].concat(), 3, "main.rs");
    refused(&["--data", data, "org", "show"], 3, "main.rs");
    assert_eq!(fs::read_dir(&project).expect("there").count(), 1, "nothing was added");
    refused(&[&up[..], &["--relay", "/ip4/192.0.2.1/tcp/8140"]].concat(), 2, "relay");
    refused(&[&up[..], &["--lan"]].concat(), 2, "LAN");
    refused(&[&up[..], &["--log-level", "zz(("]].concat(), 2, "log_level");
    let nowhere = project.join("main.rs").join("ready");
    refused(&[&up[..], &["--ready-file", nowhere.to_str().expect("plain")]].concat(), 1, "ready file");
}

#[test]
fn posts_at_the_edge_are_refused_as_what_they_are() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let node = alone(Setup::new(dir.path()));
    let post = |args: &[&str], stdin: &str| {
        let mut post = node.spawn_cli([&["post", "lobby"], args, &["--json"]].concat());
        post.write_line(stdin);
        post.finish()
    };
    let pipe = dir.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
    let pipe = pipe.to_str().expect("plain");
    assert_eq!(post(&["x", "--attach", pipe], "").code(2).error_code(), "invalid", "a pipe is not waited for");
    assert_eq!(post(&["   "], "").code(2).error_code(), "invalid", "blanks say nothing");
    for len in [1_100_000, 3_500_000] {
        assert_eq!(post(&["-"], &"x".repeat(len)).code(3).error_code(), "limit", "{len} bytes: the node runs");
    }
    let file = dir.path().join("a.txt");
    fs::write(&file, "all of it").expect("writable");
    let _ = post(&["--attach", file.to_str().expect("plain")], "").ok().json();
    let _ = post(&["x", "--wait", "--timeout", "18446744073709551615"], "").ok().json();
}
