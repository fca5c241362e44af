//! A home whose logs were put back to an older state: a backup was restored.

use std::fs;
use std::path::Path;

use tieline_tests::view::{assert_dense, body};
use tieline_tests::{Mesh, until};

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder can be made");
    for item in fs::read_dir(from).expect("readable") {
        let item = item.expect("readable");
        let target = to.join(item.file_name());
        if item.path().is_dir() {
            copy(&item.path(), &target);
        } else {
            fs::copy(item.path(), target).expect("copied");
        }
    }
}

fn put_back(mesh: &mut Mesh, backup: &Path) {
    mesh.home.stop();
    let channels = mesh.home.data().join("channels");
    fs::remove_dir_all(&channels).expect("removed");
    copy(backup, &channels);
    mesh.home.start();
}

/// The index knows more than the log then: nobody may be told that a message is saved which is not in it.
#[test]
fn index_that_is_newer_than_a_restored_log_is_not_believed() {
    let mut mesh = Mesh::start();
    let post = |mesh: &Mesh, text: &str, id: &str| mesh.lobby().post_with(text, &["--id", id]).ok().json();
    let first = post(&mesh, "one", "id-one");
    mesh.home.stop();
    let backup = mesh.dir().join("backup");
    copy(&mesh.home.data().join("channels"), &backup);
    mesh.home.start();
    let _ = post(&mesh, "two", "id-two");
    put_back(&mut mesh, &backup);

    let other = post(&mesh, "three", "id-three");
    let again = post(&mesh, "two", "id-two");
    assert_ne!(other["message"], again["message"], "two messages have two numbers");
    let entries = mesh.lobby().entries_of("posted");
    let texts: Vec<_> = entries.iter().filter_map(|entry| body(entry)["post"]["text"].as_str()).collect();
    assert_eq!(texts, ["one", "three", "two"]);
    assert_eq!(post(&mesh, "one", "id-one")["message"], first["message"], "what is in the log is still known");
    assert_dense(&mesh.lobby().entries());
    mesh.lobby().verify();
}

/// The resident has seen more than the home remembers: a turn whose number was used before is held, and asks a person.
#[test]
fn turn_whose_number_the_resident_saw_before_the_restore_is_held_and_hangs_nobody() {
    let mut mesh = Mesh::start();
    mesh.add_scripted("bot");
    mesh.home.stop();
    let backup = mesh.dir().join("backup");
    copy(&mesh.home.data().join("channels"), &backup);
    mesh.home.start();
    mesh.wait_links();
    for text in ["@bot script:text(a)", "@bot script:text(b)"] {
        let _ = mesh.lobby().ask(text);
    }
    put_back(&mut mesh, &backup);
    mesh.wait_links();
    let saved = mesh.lobby().post("@bot script:text(after)");
    let held = mesh.lobby().wait_entry("the turn to be held", |entry| entry["kind"] == "turn-held");
    let run = body(&held)["message"].as_u64().expect("a run").to_string();
    let _ = mesh.home.cli(["hold", "release", "lobby", &run, "--may-run-twice", "--json"]).ok();
    let finished = mesh.lobby().wait_finished(run.parse().expect("a number"));
    assert_eq!(finished["text"], "after", "{finished}");
    until("the member to be idle", || (mesh.lobby().member_status("bot")["state"] == "idle").then_some(()));
    assert!(saved.message > 0);
}
