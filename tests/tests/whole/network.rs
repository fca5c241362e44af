//! Networks that change and boxes that sleep: a home and a resident on a network of their own each, joined by a cable.

use std::fs;
use std::time::Instant;

use tieline_tests::boxes::Cable;
use tieline_tests::root::is_root_for;
use tieline_tests::{Mesh, Node, until};

use super::five_faults::{GATED, RECOVERY};

/// A member in the middle of a turn; gives its run message.
fn mid_turn(cable: &Cable) -> (Mesh, u64) {
    let plan = cable.plan();
    let script = plan.script("gated", GATED);
    let mesh = plan.command("gated", [script]).start();
    mesh.add("bot", "gated");
    let saved = mesh.lobby().post("@bot begin");
    let run = mesh.lobby().wait_started(saved.message);
    mesh.wait_file("turns.txt", "ran");
    (mesh, run)
}

/// Waits until a node's status says that its link is down, and why.
fn wait_down(node: &Node) {
    until("the link to be down with a reason", || {
        let link = node.status()["links"][0].clone();
        let words = link["reason"].as_str().is_some_and(|reason| !reason.is_empty());
        (link["state"] == "down" && words).then_some(())
    });
}

/// Waits until both sides say that the link is up, which must not take longer than people wait.
fn recovers(mesh: &Mesh, what: &str) {
    let began = Instant::now();
    mesh.wait_links();
    assert!(began.elapsed() < RECOVERY, "{what}: the link took {:?}", began.elapsed());
}

/// Lets the turn end, which happens once and whole.
fn finishes_once(mesh: &Mesh, run: u64) {
    fs::write(mesh.work().join("go"), "").expect("the work folder can be written");
    let finished = mesh.lobby().wait_finished(run);
    assert_eq!(finished["status"], "completed", "{finished}");
    assert_eq!(finished["text"].as_str().map(str::trim), Some("begin\nend"), "{finished}");
    assert_eq!(mesh.wait_file("turns.txt", "ran"), "ran\n", "the turn ran once");
    assert_eq!(mesh.lobby().entries_of("turn-started").len(), 1, "nothing was retried");
    assert_eq!(mesh.lobby().entries_of("turn-finished").len(), 1, "it ended once");
    mesh.lobby().verify();
}

/// How often a node said so in its log.
fn said(node: &Node, words: &str) -> usize {
    node.log().lines().filter(|line| line.contains(words)).count()
}

/// Case C20 on real sockets: the resident goes to another network in mid-turn, as a laptop does.
#[test]
fn case_c20_resident_on_another_network_mid_turn_is_redialled_and_the_turn_finishes_once() {
    if !is_root_for("a change of network") {
        return;
    }
    let cable = Cable::new();
    let (mesh, run) = mid_turn(&cable);
    let ups = said(&mesh.resident, "link up");

    cable.resident.unplug();
    wait_down(&mesh.home);
    wait_down(&mesh.resident);
    cable.resident.address("10.77.0.9");
    cable.resident.plug();
    recovers(&mesh, "on another address");
    for node in [&mesh.home, &mesh.resident] {
        let log = node.log();
        let down = log.lines().find(|line| line.contains("link down"));
        assert!(down.is_some_and(|line| line.contains("reason")), "the log says why it was down:\n{log}");
    }
    assert!(said(&mesh.resident, "link up") > ups, "the log says that it is up again");

    // At once from one network into another: nobody waits for the old link to be given up.
    let ups = said(&mesh.resident, "link up");
    let began = Instant::now();
    cable.resident.address("10.77.0.10");
    until("a link from the new address", || (said(&mesh.resident, "link up") > ups).then_some(()));
    assert!(began.elapsed() < RECOVERY, "from one network into another: the link took {:?}", began.elapsed());
    finishes_once(&mesh, run);
}

#[test]
fn home_on_another_network_mid_turn_is_redialled_and_the_turn_finishes_once() {
    if !is_root_for("a change of the home's network") {
        return;
    }
    let cable = Cable::new();
    let (mesh, run) = mid_turn(&cable);
    cable.home.unplug();
    wait_down(&mesh.home);
    cable.home.address("10.77.0.5");
    cable.home.plug();
    recovers(&mesh, "the home on another address");
    finishes_once(&mesh, run);
}

/// A cable that is out for a moment costs nothing but that moment.
#[test]
fn cable_out_for_a_moment_mid_turn_ends_nothing() {
    if !is_root_for("a loose cable") {
        return;
    }
    let cable = Cable::new();
    let (mesh, run) = mid_turn(&cable);
    for _ in 0..3 {
        cable.resident.unplug();
        cable.resident.plug();
    }
    recovers(&mesh, "after a moment");
    finishes_once(&mesh, run);
}

/// Case C5 on real processes: the whole box of the resident stands still for longer than a link is trusted.
#[test]
fn case_c5_resident_that_slept_mid_turn_is_back_in_seconds_and_the_turn_finishes_once() {
    if !is_root_for("sleep of the resident's box") {
        return;
    }
    let cable = Cable::new();
    let (mesh, run) = mid_turn(&cable);
    cable.resident.sleep();
    wait_down(&mesh.home);
    mesh.lobby().wait_state("bot", "unreachable");
    cable.resident.wake();
    recovers(&mesh, "after sleep");
    assert!(said(&mesh.home, "link down") > 0, "the home's log says that it was down:\n{}", mesh.home.log());
    finishes_once(&mesh, run);
}

#[test]
fn home_that_slept_mid_turn_is_back_in_seconds_and_the_turn_finishes_once() {
    if !is_root_for("sleep of the home's box") {
        return;
    }
    let cable = Cable::new();
    let (mesh, run) = mid_turn(&cable);
    cable.home.sleep();
    wait_down(&mesh.resident);
    // The turn ends while its home sleeps, and the home learns it.
    fs::write(mesh.work().join("go"), "").expect("the work folder can be written");
    cable.home.wake();
    recovers(&mesh, "after the home's sleep");
    finishes_once(&mesh, run);
}
