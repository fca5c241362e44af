//! Bad input gets a clear error with a hint, in the documented code, and loses nothing.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::Value;
use tieline_tests::mesh::Plan;
use tieline_tests::view::Saved;
use tieline_tests::{Finished, Mesh, Setup};

/// One row: arguments, exit code, error code, and words that the message or hint must have.
type Row<'a> = (&'a [&'a str], i32, &'a str, &'a str);

fn refused(answer: Finished, code: i32, error: &str, words: &str) {
    let what = answer.what.clone();
    let answer = answer.code(code);
    assert_eq!(answer.error_code(), error, "{what}: {}", answer.stdout);
    let value = answer.json();
    let text = format!("{} {}", value["error"]["message"], value["error"]["hint"]).to_lowercase();
    assert!(text.contains(words), "{what}: no {words:?} in {text}");
    assert!(value["error"]["hint"].as_str().is_some_and(|hint| !hint.is_empty()), "{what}: no hint in {value}");
}

#[test]
fn bad_input_is_refused_in_words_and_loses_nothing() {
    let mesh = Mesh::start();
    mesh.add_scripted("bot");
    let _ = mesh.lobby().ask("@bot script:text(before)");
    let before = mesh.lobby().entries();
    let work = mesh.work();
    let work = work.to_str().expect("plain");
    let long = "x".repeat(64 * 1024 + 1);

    let rows: &[Row<'_>] = &[
        (&["post", "nowhere", "hello", "--json"], 4, "not_found", "nowhere"),
        (&["post", "lobby", "", "--json"], 2, "invalid", "empty"),
        (&["post", "lobby", &long, "--json"], 3, "limit", "65536"),
        (&["post", "lobby", "hello", "--id", "not an id", "--json"], 2, "invalid", "client id"),
        (&["post", "lobby", "hello", "--reply-to", "999", "--json"], 4, "not_found", "999"),
        (&["post", "lobby", "hello", "--attach", "/no/such/file", "--json"], 4, "not_found", "/no/such/file"),
        (&["tail", "nowhere", "--once", "--json"], 4, "not_found", "nowhere"),
        (&["channel", "create", "Not A Name", "--json"], 2, "invalid", "a-z"),
        (&["channel", "create", "lobby", "--json"], 3, "conflict", "lobby"),
        (&["channel", "show", "nowhere", "--json"], 4, "not_found", "nowhere"),
        (&["member", "add", "lobby", "all", "--harness", "scripted", "--json"], 2, "invalid", "reserved"),
        (&["member", "add", "lobby", "Bad_Name", "--harness", "scripted", "--json"], 2, "invalid", "a-z"),
        (&["member", "add", "lobby", "bot", "--harness", "scripted", "--json"], 3, "conflict", "bot"),
        (
            &["member", "add", "lobby", "b2", "--harness", "scripted", "--on", "nobody", "--json"],
            4,
            "not_found",
            "nobody",
        ),
        (&["member", "pause", "lobby", "nobody", "--json"], 4, "not_found", "nobody"),
        (&["member", "interrupt", "nowhere", "bot", "--json"], 4, "not_found", "nowhere"),
        (&["answer", "lobby", "999", "--choose", "yes", "--json"], 4, "not_found", "999"),
        (&["hold", "release", "lobby", "999", "--json"], 4, "not_found", "999"),
        (&["channel", "verify", "/no/such/file", "--json"], 4, "not_found", "/no/such/file"),
    ];
    for (args, code, error, words) in rows {
        refused(mesh.home.cli(*args), *code, error, words);
    }
    let after = mesh.lobby().entries();
    assert_eq!(after, before, "refused input leaves no trace in the log");
    mesh.lobby().verify();
    assert_eq!(mesh.lobby().ask("@bot script:text(after)").answer(), "after");

    // The resident's owner decides what runs there, and where: the turn fails in words, and its member lives.
    for (handle, harness, cwd, words) in [
        ("c1", "codex", work, "codex"),
        ("c2", "no-such", work, "no-such"),
        ("c3", "scripted", "/etc", "folders beneath"),
    ] {
        let add = ["member", "add", "lobby", handle, "--harness", harness, "--on", "lab", "--cwd", cwd, "--json"];
        let _ = mesh.home.cli(add).ok();
        let asked = mesh.lobby().post_with(&format!("@{handle} script:text(no)"), &["--wait"]).json();
        assert_eq!(asked["turns"][0]["status"], "failed", "{asked}");
        let run = asked["turns"][0]["message"].as_u64().expect("a run");
        let finished = mesh.lobby().wait_finished(run);
        assert!(finished["error"].to_string().contains(words), "{finished}");
    }
}

#[test]
fn limits_hold_at_their_bound() {
    let mesh = Mesh::start();
    mesh.add_scripted("bot");
    let fits = "y".repeat(64 * 1024);
    let mut post = mesh.home.spawn_cli(["post", "lobby", "-", "--json"]);
    post.write_line(fits.get(..64 * 1024 - 1).expect("long enough"));
    let saved = Saved::read(post.finish().ok().json());
    assert!(saved.message > 0);

    // Eight mentions are routed, nine are refused.
    for n in 0..9 {
        mesh.add_scripted(&format!("m{n}"));
    }
    let mention = |n: usize| (0..n).map(|n| format!("@m{n}")).collect::<Vec<_>>().join(" ");
    let eight = mesh.lobby().post(&format!("{} script:text(hi)", mention(8)));
    assert_eq!(eight.json["to"].as_array().map(Vec::len), Some(8), "{}", eight.json);
    refused(mesh.lobby().post_with(&mention(9), &[]), 3, "limit", "8");

    let nine: Vec<String> = (0..9)
        .map(|n| {
            let path = mesh.dir().join(format!("file-{n}"));
            fs::write(&path, "x").expect("writable");
            path.to_str().expect("plain").to_owned()
        })
        .collect();
    let attach: Vec<&str> = nine.iter().flat_map(|path| ["--attach", path]).collect();
    refused(mesh.lobby().post_with("nine files", &attach), 3, "limit", "8");
    let big = mesh.dir().join("big");
    fs::File::create(&big).and_then(|file| file.set_len((25 << 20) + 1)).expect("a sparse file");
    refused(mesh.lobby().post_with("a big file", &["--attach", big.to_str().expect("plain")]), 3, "limit", "25");
}

#[test]
fn consented_harness_that_is_not_installed_says_what_to_install() {
    // Consent was given, but the program is nowhere on the PATH.
    let mut plan = Plan::default().harness("codex");
    plan.resident = plan.resident.env("PATH", "/usr/bin:/bin");
    let mesh = plan.start();
    let work = mesh.work();
    let work = work.to_str().expect("plain");
    let added =
        mesh.home.cli(["member", "add", "lobby", "cod", "--harness", "codex", "--on", "lab", "--cwd", work, "--json"]);
    let words = if added.code == Some(0) {
        let saved = mesh.lobby().post_with("@cod hello", &["--wait", "--timeout", "60"]);
        let saved = Saved::read(saved.json());
        assert_eq!(saved.turn()["status"], "failed", "{}", saved.json);
        let finished = mesh.lobby().wait_finished(saved.turn()["message"].as_u64().expect("a run"));
        finished["error"].to_string()
    } else {
        added.stdout
    };
    assert!(words.contains("codex") && words.to_lowercase().contains("install"), "{words}");
}

#[test]
fn without_a_node_every_command_says_so() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let setup = Setup::new(dir.path());
    for args in [
        &["status", "--json"][..],
        &["post", "lobby", "hello", "--json"],
        &["tail", "lobby", "--once", "--json"],
        &["inbox", "--json"],
        &["channel", "create", "lobby", "--json"],
        &["stop", "--json"],
    ] {
        refused(setup.cli(args), 6, "not_running", "tieline up");
    }
}

#[test]
fn wrong_usage_ends_with_2() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let setup = Setup::new(dir.path());
    for args in [&["no-such-command"][..], &["post"], &["member", "add", "lobby"], &["hold", "perhaps", "lobby", "1"]] {
        let _ = setup.cli(args).code(2);
    }
}

#[test]
fn unknown_or_malformed_setting_is_named_with_its_file() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let setup = Setup::new(dir.path());
    fs::create_dir_all(setup.data()).expect("a folder can be made");
    let file = setup.data().join("config.toml");
    for (text, key) in
        [("no_such_key = 1\n", "no_such_key"), ("api = 5\n", "api"), ("listen = [\"nonsense\"]\n", "listen")]
    {
        fs::write(&file, text).expect("writable");
        let refused = setup.up_fails();
        assert!(refused.code.is_some_and(|code| code != 0), "{text} was taken");
        assert!(refused.stderr.contains(key), "{key} is named: {}", refused.stderr);
        assert!(refused.stderr.contains("config.toml"), "the file is named: {}", refused.stderr);
    }
    fs::write(&file, "").expect("writable");
    let _ = setup.start();
}

#[test]
fn join_refuses_what_is_no_link_and_what_is_spent() {
    let mesh = Mesh::start();
    let newcomer = Setup::new(&mesh.dir().join("newcomer"));
    let join = |link: &str| {
        let mut join = newcomer.spawn_cli(["join", "-", "--name", "new", "--json"]);
        join.write_line(link);
        join.close_stdin();
        join.finish()
    };
    let garbage = join("this is no link");
    assert!(matches!(garbage.code, Some(2 | 3)), "{}", garbage.stdout);

    // An offer that was taken back is silent to everybody.
    let mut pair = mesh.home.spawn_cli(["pair", "--role", "member", "--json"]);
    let offer = pair.wait_json("an offer", |value| value["event"] == "offer");
    let link = offer["link"].as_str().expect("a link").to_owned();
    pair.signal(rustix::process::Signal::INT);
    let _ = pair.finish();
    let began = Instant::now();
    let spent = join(&link).code(3);
    assert!(began.elapsed() < Duration::from_secs(20), "it gives up in about ten seconds");
    let last = spent.json_lines().pop().unwrap_or(Value::Null);
    assert_eq!((&last["event"], &last["reason"]), (&"refused".into(), &"spent_or_expired".into()), "{}", spent.stdout);
}

#[test]
fn wrong_digits_enrol_nobody() {
    let mesh = Mesh::start();
    let newcomer = Setup::new(&mesh.dir().join("newcomer"));
    let devices = || -> Vec<String> {
        let list = mesh.home.cli(["device", "list", "--json"]).ok().json();
        list.as_array().into_iter().flatten().map(|device| device["id"].to_string()).collect()
    };
    let before = devices();
    let mut pair = mesh.home.spawn_cli(["pair", "--json"]);
    let offer = pair.wait_json("an offer", |value| value["event"] == "offer");
    let mut join = newcomer.spawn_cli(["join", "-", "--name", "new", "--json"]);
    join.write_line(offer["link"].as_str().expect("a link"));
    join.close_stdin();
    let digits = join.wait_json("the digits", |value| value["event"] == "digits");
    let right = digits["digits"].as_str().expect("digits");
    let wrong = if right == "000000" { "000001" } else { "000000" };
    pair.wait_json("the claim", |value| value["event"] == "claim");
    pair.write_line(wrong);
    let _ = pair.wait_json("the refusal", |value| value["event"] == "refused");
    let _ = join.finish().code(3);
    assert_eq!(devices(), before);
}
