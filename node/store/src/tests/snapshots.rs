//! Logs that are opened from a snapshot of their fold.

use std::io;

use super::*;
use crate::commit::{Reason, Target};
use crate::fault::Call;
use crate::open::{Checkpoint, OpenError, Resume};

fn snapshot(name: &str, seq: u64) -> Command {
    Command::Snapshot { log: log(name), seq: Seq(seq), fold: format!("fold to {seq}").into_bytes() }
}

fn kept(core: &Core, name: &str) -> Option<(Resume, Vec<u8>)> {
    core.reader().index().snapshot(log(name))
}

fn open_from(disk: &dyn Disk, name: &str, from: Resume) -> Result<(OpenedLog, Vec<u64>), OpenError> {
    let mut seqs = Vec::new();
    let open = OpenLog {
        disk,
        layout: &layout(),
        log: log(name),
        keep: Keep::Home,
        homes: homes(),
        from: Some(from),
        known: None,
    };
    let opened = open.open(&mut |entry, _| seqs.push(entry.seq.0))?;
    Ok((opened, seqs))
}

/// A disk with ten entries in batches of two, and the place of the snapshot behind the sixth.
fn ten() -> (FaultDisk, Core, Resume) {
    let disk = disk();
    let mut core = core(&disk);
    for first in [1, 3, 5, 7, 9] {
        let mut commands = vec![Command::Commit(commit("lobby", first, first..first + 2))];
        commands.extend((first == 5).then(|| snapshot("lobby", 6)));
        assert_eq!(durable(&all(&mut core, commands)), [first]);
    }
    let (at, fold) = kept(&core, "lobby").unwrap();
    assert_eq!((at.at.head.seq, fold.as_slice()), (Seq(6), b"fold to 6".as_slice()));
    (disk, core, at)
}

#[test]
fn a_log_is_opened_from_a_snapshot_as_from_its_beginning() {
    let (disk, _, at) = ten();
    let (whole, _) = open(&disk, "lobby");
    let (opened, seqs) = open_from(&disk, "lobby", at).unwrap();
    assert_eq!(seqs, [7, 8, 9, 10]);
    assert_eq!((opened.head, opened.checkpoint()), (whole.head, whole.checkpoint()));
    assert_eq!((opened.repair.clone(), opened.broken.clone()), (None, None));
    // It goes on, and what it wrote is one log.
    let mut core = core(&disk);
    core.submit(Command::Add(Box::new(opened)));
    assert_eq!(durable(&commits(&mut core, [commit("lobby", 1, [11])])), [1]);
    let (whole, entries) = open(&disk, "lobby");
    assert_eq!((whole.head.seq, entries.len(), whole.broken), (Seq(11), 11, None));
    // Everything before the snapshot can still be read.
    let line = core.reader().entry(log("lobby"), Seq(2)).unwrap().unwrap();
    assert_eq!(tieline_proto::log::Line::entry_seq(&line), Some(Seq(2)));
}

#[test]
fn a_snapshot_closes_the_batch_before_it() {
    let disk = disk();
    let mut core = core(&disk);
    let commit = |seq: u64| Command::Commit(commit("lobby", seq, [seq]));
    let reports = all(&mut core, [commit(1), commit(2), snapshot("lobby", 2), commit(3), snapshot("lobby", 2)]);
    assert_eq!(durable(&reports), [1, 2, 3]);
    assert_eq!(kept(&core, "lobby").unwrap().0.at.head.seq, Seq(2), "and the late one is not kept");
    assert_eq!(open_from(&disk, "lobby", kept(&core, "lobby").unwrap().0).unwrap().1, [3]);
}

#[test]
fn a_snapshot_of_what_was_not_written_is_not_kept() {
    let disk = disk();
    let mut core = core(&disk);
    assert_eq!(durable(&commits(&mut core, [commit("lobby", 1, [1])])), [1]);
    disk.fail(Call::Sync, "log", io::ErrorKind::Other, 0, 1);
    let _ = all(&mut core, [Command::Commit(commit("lobby", 2, [2])), snapshot("lobby", 2)]);
    assert!(kept(&core, "lobby").is_none());
    disk.heal();
    let reports = all(&mut core, [Command::Reopen(Target::Log(log("lobby"))), snapshot("lobby", 2)]);
    assert!(!reports.iter().any(|report| matches!(report, Report::StillStopped { reason: Reason::Sync(_), .. })));
    assert_eq!(kept(&core, "lobby").map(|(from, _)| from.at.head.seq), Some(Seq(2)), "it was written again");
}

#[test]
fn a_log_that_is_not_what_it_was_is_not_opened_from_a_snapshot() {
    let path = layout().segment(log("lobby"), Seq(1));
    let stale = |disk: &dyn Disk, from: &Resume| matches!(open_from(disk, "lobby", from.clone()), Err(OpenError::Stale { seq }) if seq == from.at.head.seq);
    let (disk, _, from) = ten();
    let elsewhere = |at: Checkpoint| Resume { at, ..from.clone() };
    for at in [0, from.at.at - 1, from.at.at + 1, u64::MAX] {
        assert!(stale(&disk, &elsewhere(Checkpoint { at, ..from.at })));
    }
    assert!(stale(&disk, &elsewhere(Checkpoint { segment: Seq(2), ..from.at })));
    assert!(stale(&disk, &Resume { closed: vec![(Seq(1), 10)], ..from.clone() }));
    // A changed byte anywhere before it.
    for at in [20, from.at.at / 2, from.at.at - 20] {
        let (disk, _, from) = ten();
        disk.open(&path, crate::disk::Open::Write).unwrap().write_at(b"!", at).unwrap();
        assert!(stale(&disk, &from));
        assert!(open(&disk, "lobby").0.broken.is_some(), "and reading everything says where");
    }
    // A restored copy that ends before it.
    let (disk, _, from) = ten();
    disk.open(&path, crate::disk::Open::Write).unwrap().set_len(from.at.at - 100).unwrap();
    assert!(stale(&disk, &from));
}

#[test]
fn damage_behind_the_snapshot_is_found_as_from_the_beginning() {
    let (disk, _, from) = ten();
    let path = layout().segment(log("lobby"), Seq(1));
    let file = disk.open(&path, crate::disk::Open::Write).unwrap();
    file.write_at(b"!", from.at.at + 20).unwrap();
    let (opened, _) = open_from(&disk, "lobby", from).unwrap();
    let (whole, _) = open(&disk, "lobby");
    assert_eq!((opened.head.seq, opened.broken.clone().map(|bad| bad.seq)), (Seq(6), Some(Seq(7))));
    assert_eq!(opened.broken, whole.broken);
}

/// A log of several segments, with a snapshot in each of them, is opened from any of these as from its beginning.
#[test]
fn snapshots_stand_in_any_segment() {
    let disk = disk();
    let mut core = core(&disk);
    let large = |seq: u64| {
        let text = "x".repeat(60 * 1024);
        let entries = (seq..seq + 16).map(|seq| entry("lobby", seq, &text)).collect();
        Commit { token: seq, logs: vec![(log("lobby"), entries)], ..Commit::default() }
    };
    assert_eq!(durable(&commits(&mut core, [commit("lobby", 1, [1])])), [1]);
    let mut places = Vec::new();
    let mut next = 2;
    while places.last().is_none_or(|from: &Resume| from.closed.len() < 2) {
        assert_eq!(durable(&all(&mut core, [Command::Commit(large(next)), snapshot("lobby", next + 15)])), [next]);
        places.push(kept(&core, "lobby").unwrap().0);
        next += 16;
    }
    let (whole, _) = open(&disk, "lobby");
    let kept_at = |nth: usize| places.iter().rfind(|from| from.closed.len() == nth).unwrap();
    for from in [&places[0], kept_at(0), kept_at(1), kept_at(2)] {
        let (opened, seqs) = open_from(&disk, "lobby", from.clone()).unwrap();
        assert_eq!(seqs.first().copied(), (from.at.head.seq.0 + 1 < next).then_some(from.at.head.seq.0 + 1));
        assert_eq!((opened.head, opened.resume(), opened.broken.clone()), (whole.head, whole.resume(), None));
    }
    // A closed segment that lost its end is no longer what it was.
    let (first, len) = kept_at(1).closed[0];
    disk.open(&layout().segment(log("lobby"), first), crate::disk::Open::Write).unwrap().set_len(len - 1).unwrap();
    assert!(matches!(open_from(&disk, "lobby", kept_at(1).clone()), Err(OpenError::Stale { .. })));
}
