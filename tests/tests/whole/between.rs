//! What two boxes say to each other, at the edges: large things, many things, and things that are not answered.

use serde_json::json;
use tieline_tests::view::body;
use tieline_tests::{Mesh, socket};

/// Text whose JSON is much longer than itself, twice over: quotes and control characters of a program's source.
fn awkward(len: usize) -> String {
    "\"\\\n\t".chars().cycle().take(len).collect()
}

#[test]
fn posts_from_a_joined_box_may_be_as_long_as_at_the_home() {
    let mesh = Mesh::start();
    for text in ["x".repeat(60_000), awkward(60_000)] {
        let mut post = mesh.resident.spawn_cli(["post", "lobby", "-", "--json"]);
        post.write_text(&text);
        post.close_stdin();
        let saved = post.finish().ok().json();
        let message = &saved["message"];
        let entry = mesh.lobby().wait_entry("the post", |entry| &body(entry)["message"] == message);
        assert_eq!(body(&entry)["post"]["text"].as_str().map(str::len), Some(text.len()), "whole");
    }
}

#[test]
fn answers_to_a_remote_question_may_be_long() {
    let mesh = Mesh::start();
    mesh.add_scripted("bot");
    let saved = mesh.lobby().post("@bot script:ask(How?|so) script:text(thanks)");
    let card = mesh.lobby().wait_card(mesh.lobby().wait_started(saved.message));
    let card = card["message"].as_u64().expect("a card has a number").to_string();
    let text = awkward(16_000);
    let _ = mesh.home.cli(["answer", "lobby", &card, "--choose", "so", "--text", &text, "--json"]).ok();
    let run = mesh.lobby().wait_started(saved.message);
    assert_eq!(mesh.lobby().wait_finished(run)["status"], "completed");
}

/// One member with a novel for a model must not stop a channel.
#[test]
fn member_fields_are_bounded_and_a_refusal_stops_nobody() {
    let mesh = Mesh::start();
    mesh.add_scripted("bot");
    let novel = "m".repeat(100_000);
    let refused = mesh.home.cli(["member", "configure", "lobby", "bot", "--model", &novel, "--json"]).code(3);
    assert_eq!(refused.error_code(), "limit");
    let _ = mesh.lobby().post("the channel goes on");
    assert_eq!(mesh.lobby().ask("@bot script:text(well)").answer(), "well");
}

/// Readers that come and go leave nothing behind, on either box.
#[test]
fn remote_subscriptions_come_and_go_without_end() {
    let mesh = Mesh::start();
    let _ = mesh.lobby().post("something to read");
    let mut socket = socket::connect(&mesh.resident.data());
    for round in 1..=400_u64 {
        let (call, end) = (round, 1_000_000 + round);
        socket.send(&json!({"id": call, "op": "subscribe", "channel": "lobby", "since": 0}));
        socket.wait("the live marker", |frame| frame["id"] == call && frame["frame"]["type"] == "synced");
        socket.send(&json!({"id": end, "op": "unsubscribe", "call": call}));
        socket.wait("the end", |frame| frame["id"] == end);
    }
    assert_eq!(mesh.resident.cli(["post", "lobby", "still here", "--json"]).ok().json()["state"], "saved");
}
