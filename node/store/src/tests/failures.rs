//! Disks that are full or fail: nothing is acknowledged that is not there, and writing resumes when it can.

use std::io;

use super::*;
use crate::commit::Target;
use crate::fault::Call;

fn failed(reports: &[Report]) -> Vec<(u64, String)> {
    let token = |report: &Report| match report {
        Report::Failed { token, reason, .. } => Some((*token, reason.to_string())),
        _ => None,
    };
    reports.iter().filter_map(token).collect()
}

#[test]
fn threat_a8_a_full_disk_acks_nothing_and_resumes_when_there_is_space() {
    let disk = disk();
    let mut core = core(&disk);
    assert_eq!(durable(&commits(&mut core, [commit("lobby", 1, [1])])), [1]);
    disk.set_capacity(Some(0));
    let journal = append(run(7), 0, "{\"type\":\"started\"}\n", true);
    let reports = commits(&mut core, [Commit { token: 2, journals: vec![journal], ..commit("lobby", 2, [2]) }]);
    assert_eq!(durable(&reports), [] as [u64; 0]);
    assert_eq!(failed(&reports), [(2, "disk full".to_owned())]);
    // Stopped means stopped: nothing gets through before it is reopened.
    let reports = commits(&mut core, [commit("lobby", 3, [2])]);
    assert_eq!(durable(&reports), [] as [u64; 0]);

    disk.set_capacity(None);
    let reopen = [Command::Reopen(Target::Journal(run(7))), Command::Reopen(Target::Log(log("lobby")))];
    let reports = all(&mut core, reopen);
    assert!(
        reports.iter().any(|report| matches!(report, Report::LogReopened { head, .. } if head.seq == Seq(1))),
        "{reports:?}"
    );
    assert_eq!(durable(&commits(&mut core, [commit("lobby", 4, [2])])), [4]);
    let (opened, entries) = open(&disk.crash(1), "lobby");
    assert_eq!((entries.len(), opened.broken), (2, None));
}

#[test]
fn threat_a8_a_failed_sync_is_never_retried_as_success() {
    let disk = disk();
    let mut core = core(&disk);
    commits(&mut core, [commit("lobby", 1, [1])]);
    disk.fail(Call::Sync, "log", io::ErrorKind::Other, 0, 1);
    let reports = commits(&mut core, [commit("lobby", 2, [2])]);
    assert_eq!(durable(&reports), [] as [u64; 0]);
    // The next sync would succeed, but what it covers is unknown.
    let reports = commits(&mut core, [commit("lobby", 3, [2])]);
    assert_eq!(durable(&reports), [] as [u64; 0]);
    let reopened = all(&mut core, [Command::Reopen(Target::Log(log("lobby")))]);
    // What was written may have survived without an ack: the log goes on behind it.
    let head = reopened.iter().find_map(|report| match report {
        Report::LogReopened { head, .. } => Some(*head),
        _ => None,
    });
    let next = head.expect("it is reopened").seq.next().0;
    let reports = commits(&mut core, [commit("lobby", 4, [next])]);
    assert_eq!(durable(&reports), [4], "{reports:?}");
    let (opened, entries) = open(&disk.crash(3), "lobby");
    assert_eq!((entries.len() as u64, opened.broken), (next, None));
}

#[test]
fn a_journal_that_an_entry_names_is_synced_before_it() {
    let disk = disk();
    let mut core = core(&disk);
    commits(&mut core, [commit("lobby", 1, [1])]);
    let text = "{\"type\":\"started\"}\n";
    let journals = vec![append(run(7), 0, text, true)];
    disk.fail(Call::Sync, "runs", io::ErrorKind::Other, 0, 1);
    let reports = commits(&mut core, [Commit { token: 2, journals, ..commit("lobby", 2, [2]) }]);
    assert_eq!(durable(&reports), [] as [u64; 0], "the entry must not be there without the journal it names");
    assert_eq!(open(&disk.crash(1), "lobby").1.len(), 1);
}

#[test]
fn a_copy_goes_on_where_a_full_disk_stopped_it() {
    let home_disk = disk();
    let mut home = core(&home_disk);
    let sealed = |home: &mut Core, seq: u64| match &commits(home, [commit("lobby", seq, [seq])])[..] {
        [Report::Durable { logs, .. }] => logs[0].1.bytes().to_vec(),
        reports => panic!("{reports:?}"),
    };
    let (first, second) = (sealed(&mut home, 1), sealed(&mut home, 2));
    let disk = disk();
    let (empty, _) = open(&disk, "lobby");
    let mut copy = core(&disk);
    all(&mut copy, [Command::Add(Box::new(OpenedLog { keep: Keep::Copy, ..empty }))]);
    let lines =
        |token, bytes: &[u8]| Commit { token, lines: vec![(log("lobby"), bytes.to_vec())], ..Commit::default() };
    assert_eq!(durable(&commits(&mut copy, [lines(1, &first)])), [1]);
    // The log is padded ahead, so a short line needs no room: the write itself fails.
    disk.fail(Call::Write, "log", io::ErrorKind::StorageFull, 0, 1);
    let reports = commits(&mut copy, [lines(2, &second)]);
    assert_eq!(failed(&reports), [(2, "disk full".to_owned())]);

    disk.heal();
    let reports = all(&mut copy, [Command::Reopen(Target::Log(log("lobby")))]);
    assert!(
        matches!(reports[..], [Report::LogReopened { head, .. }] if head.seq == Seq(1)),
        "it stands where the disk does: {reports:?}"
    );
    assert_eq!(durable(&commits(&mut copy, [lines(3, &second)])), [3]);
    assert_eq!(open(&disk, "lobby").0.head, open(&home_disk, "lobby").0.head);
}
