//! Logs, batches and segments on a disk that works.

use std::sync::Arc;

use serde_json::Value;
use tieline_proto::entry::NewEntry;
use tieline_proto::log::{Line, verify_receipt};

use super::*;
use crate::commit::{BlobPut, BlobSource, Reason};
use crate::segment::{PAD_LEN_MIN, SEGMENT_LEN_MAX};

#[test]
fn a_log_is_made_written_and_opened_again() {
    let disk = disk();
    let mut core = core(&disk);
    let reports = commits(&mut core, [commit("lobby", 1, [1]), commit("lobby", 2, [2, 3])]);
    assert_eq!(durable(&reports), [1, 2]);
    let (opened, entries) = open(&disk, "lobby");
    assert_eq!((opened.head.seq, opened.repair, opened.broken), (Seq(3), None, None));
    assert_eq!(entries.len(), 3);
    assert_eq!(core.reader().head(log("lobby")), Some(opened.head));
}

#[test]
fn commits_of_one_drain_share_a_seal_and_a_sync() {
    let disk = disk();
    let mut core = core(&disk);
    commits(&mut core, [commit("lobby", 0, [1])]);
    let before = disk.syncs();
    let reports = commits(&mut core, (2..18).map(|seq| commit("lobby", seq, [seq])));
    assert_eq!(durable(&reports), (2..18).collect::<Vec<_>>());
    assert_eq!(disk.syncs() - before, 1);
    let Some(Report::Durable { logs, .. }) = reports.first() else { panic!("not durable") };
    let batch = &logs[0].1;
    assert_eq!((batch.first(), batch.len()), (Seq(2), 16));
    let proof = verify_receipt(&batch.receipt(Seq(9)).unwrap()).unwrap();
    assert!(proof.covers(batch.line(Seq(9)).unwrap()));
    assert_eq!(batch.receipt(Seq(18)), None);
    assert_eq!(batch.lines().map(|(seq, _)| seq.0).collect::<Vec<_>>(), (2..18).collect::<Vec<_>>());
    assert!(matches!(Line::parse(batch.seal()), Ok(Line::Seal(_))));
}

#[test]
fn several_logs_of_one_drain_are_sealed_apart_and_synced_together() {
    let disk = disk();
    let mut core = core(&disk);
    let names = ["a1", "b2", "c3"];
    let reports = commits(&mut core, names.iter().zip(1..).map(|(name, token)| commit(name, token, [1, 2])));
    assert_eq!(durable(&reports), [1, 2, 3]);
    for name in names {
        assert_eq!(open(&disk, name).0.head.seq, Seq(2));
    }
}

#[test]
fn a_padded_segment_is_valid_json_lines() {
    let disk = disk();
    let mut core = core(&disk);
    commits(&mut core, [commit("lobby", 1, [1, 2])]);
    let path = layout().segment(log("lobby"), Seq(1));
    let bytes = bytes(&disk, &path);
    assert!(bytes.len() as u64 >= PAD_LEN_MIN);
    let values: Vec<Value> = bytes
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect();
    assert_eq!(values.len(), 3);
    // And a reader of a stream of values, as jq is, agrees.
    assert_eq!(serde_json::Deserializer::from_slice(&bytes).into_iter::<Value>().count(), 3);
}

#[test]
fn appending_does_not_grow_the_file() {
    let disk = disk();
    let mut core = core(&disk);
    commits(&mut core, [commit("lobby", 1, [1])]);
    let path = layout().segment(log("lobby"), Seq(1));
    let len = bytes(&disk, &path).len();
    commits(&mut core, (2..50).map(|seq| commit("lobby", seq, [seq])));
    assert_eq!(bytes(&disk, &path).len(), len);
}

#[test]
fn a_clean_stop_cuts_the_padding_and_a_start_goes_on() {
    let disk = disk();
    let mut core = core(&disk);
    commits(&mut core, [commit("lobby", 1, [1, 2])]);
    core.close(&mut |_| {});
    let path = layout().segment(log("lobby"), Seq(1));
    assert!((bytes(&disk, &path).len() as u64) < PAD_LEN_MIN);

    let disk = disk.restart();
    let (opened, _) = open(&disk, "lobby");
    let mut core = super::core(&disk);
    all(&mut core, [Command::Add(Box::new(opened))]);
    assert_eq!(durable(&commits(&mut core, [commit("lobby", 3, [3])])), [3]);
    assert_eq!(open(&disk, "lobby").1.len(), 3);
}

#[test]
fn segments_roll_over_and_the_chain_crosses_them() {
    let disk = disk();
    let mut core = core(&disk);
    commits(&mut core, [commit("lobby", 1, [1])]);
    let wide = "x".repeat(900 * 1024);
    let mut seq = 1;
    for token in 2..8 {
        let entries: Vec<NewEntry> = (0..14).map(|nth| entry("lobby", seq + 1 + nth, &wide)).collect();
        seq += 14;
        let commit = Commit { token, logs: vec![(log("lobby"), entries)], ..Commit::default() };
        assert_eq!(durable(&commits(&mut core, [commit])), [token]);
    }
    let items = disk.list(&layout().log(log("lobby"))).unwrap();
    assert_eq!(items.len(), 2, "{items:?}");
    for item in &items {
        let file = disk.open(&layout().log(log("lobby")).join(&item.name), crate::disk::Open::Read).unwrap();
        assert!(file.len().unwrap() <= SEGMENT_LEN_MAX + crate::segment::PAD_LEN_MAX);
    }
    let (opened, entries) = open(&disk, "lobby");
    assert_eq!((opened.head.seq.0, entries.len() as u64, opened.repair), (seq, seq, None));

    // A reader finds any entry in either, and reads across.
    let reader = core.reader();
    for wanted in [1, 2, 60, 70, 71, 72, 80, seq] {
        let line = reader.entry(log("lobby"), Seq(wanted)).unwrap().unwrap();
        assert_eq!(Line::entry_seq(&line), Some(Seq(wanted)));
    }
    let mut cursor = reader.lines(log("lobby"), Seq(3));
    let mut found = Vec::new();
    while let Some(chunk) = cursor.read(64 * 1024).unwrap() {
        assert!(chunk.bytes.len() < 1024 * 1024);
        found.extend(chunk.lines().filter_map(Line::entry_seq).map(|seq| seq.0));
    }
    assert_eq!(found, (3..=seq).collect::<Vec<_>>());
}

#[test]
fn a_reader_finds_every_entry_of_a_long_segment() {
    let disk = disk();
    let mut core = core(&disk);
    let batches = (0..20_u64).map(|batch| commit("lobby", batch, batch * 100 + 1..=batch * 100 + 100));
    commits(&mut core, batches);
    let reader = core.reader();
    for seq in 1..=2000 {
        let line = reader.entry(log("lobby"), Seq(seq)).unwrap().unwrap();
        assert_eq!(Line::entry_seq(&line), Some(Seq(seq)));
    }
    assert_eq!(reader.entry(log("lobby"), Seq(2001)).unwrap(), None);
    assert_eq!(reader.entry(log("lobby"), Seq(0)).unwrap(), None);
    assert_eq!(reader.entry(log("other"), Seq(1)).unwrap(), None);
}

#[test]
fn a_cursor_at_the_end_goes_on_when_more_was_sealed() {
    let disk = disk();
    let mut core = core(&disk);
    commits(&mut core, [commit("lobby", 1, [1, 2])]);
    let reader = core.reader();
    let mut cursor = reader.lines(log("lobby"), Seq(1));
    let chunk = cursor.read(1 << 20).unwrap().unwrap();
    assert_eq!((chunk.next, chunk.lines().count()), (Seq(3), 3));
    assert_eq!(cursor.read(1 << 20).unwrap(), None);
    commits(&mut core, [commit("lobby", 2, [3])]);
    let chunk = cursor.read(1 << 20).unwrap().unwrap();
    assert_eq!((chunk.next, chunk.lines().count()), (Seq(4), 2));
}

#[test]
fn messages_and_client_ids_are_found_and_checked_against_the_log() {
    use crate::index::{ClientKey, Item, Placed};
    let disk = disk();
    let index = Index::memory();
    let mut core = Core::new(Arc::new(disk.clone()), layout(), super::key(), index.clone());
    commits(&mut core, [commit("lobby", 1, 1..=9)]);
    let reader = core.reader();
    let entry = reader.end(channel("lobby"), MessageId(7)).unwrap().unwrap();
    assert_eq!(entry.seq, Seq(7));
    assert_eq!(reader.end(channel("lobby"), MessageId(10)).unwrap(), None);
    let key = |member| ClientKey::member(Some(MemberId(member)), &ClientId::new("c7").unwrap());
    let placed = reader.placed(channel("lobby"), &key(1)).unwrap().unwrap();
    assert_eq!((placed.message, placed.seq), (Some(MessageId(7)), Seq(7)));
    assert_eq!(reader.placed(channel("lobby"), &key(2)).unwrap(), None);

    // An index that is of another log than this one: a backup was restored beneath it.
    let log = log("lobby");
    let reaches = index.reaches(log).unwrap();
    let wrong = Placed { message: Some(MessageId(4)), seq: Seq(4) };
    let beyond = Placed { message: Some(MessageId(40)), seq: Seq(40) };
    let items = [
        Item::First(MessageId(7), Seq(5)),
        Item::End(MessageId(6), Seq(8)),
        Item::Client(key(1), wrong),
        Item::Client(key(3), beyond),
    ];
    index.add(log, &items, &reaches);
    assert_eq!(reader.end(channel("lobby"), MessageId(7)).unwrap(), None);
    assert_eq!(
        reader.end(channel("lobby"), MessageId(6)).unwrap().unwrap().seq,
        Seq(6),
        "what it says of the end is not so"
    );
    assert_eq!(reader.placed(channel("lobby"), &key(1)).unwrap(), None);
    assert_eq!(reader.placed(channel("lobby"), &key(3)).unwrap(), None);
}

#[test]
fn blobs_are_durable_before_the_entry_that_names_them() {
    let disk = disk();
    let mut core = core(&disk);
    commits(&mut core, [commit("lobby", 1, [1])]);
    let hash = Hash::of(b"payload");
    let blob = BlobPut { channel: channel("lobby"), hash, source: BlobSource::Bytes(b"payload".to_vec()) };
    // The blob's sync fails: no entry may have been written.
    let path = layout().segment(log("lobby"), Seq(1));
    let before = bytes(&disk, &path);
    disk.fail(crate::fault::Call::Sync, "blobs", std::io::ErrorKind::Other, 0, 1);
    let with_blob = Commit { blobs: vec![blob.clone()], ..commit("lobby", 2, [2]) };
    let reports = commits(&mut core, [with_blob.clone()]);
    assert!(matches!(&reports[..], [Report::Failed { token: 2, reason: Reason::Sync(_), .. }]), "{reports:?}");
    assert_eq!(bytes(&disk, &path), before);

    let reports =
        all(&mut core, [Command::Reopen(crate::commit::Target::Log(log("lobby"))), Command::Commit(with_blob)]);
    assert_eq!(durable(&reports), [2]);
    assert_eq!(disk.durable(&layout().blob(channel("lobby"), hash)).as_deref(), Some(&b"payload"[..]));
    assert_eq!(core.reader().blob(channel("lobby"), hash).unwrap().as_deref(), Some(&b"payload"[..]));

    let wrong = BlobPut { channel: channel("lobby"), hash, source: BlobSource::Bytes(b"other".to_vec()) };
    let reports = commits(&mut core, [Commit { token: 3, blobs: vec![wrong], ..Commit::default() }]);
    assert!(matches!(&reports[..], [Report::Failed { token: 3, reason: Reason::BlobHash(_), .. }]));
}

#[test]
fn a_blob_that_was_received_in_pieces_becomes_durable_with_its_entry() {
    use crate::blob::{Staging, sweep};
    let disk = disk();
    let mut core = core(&disk);
    commits(&mut core, [commit("lobby", 1, [1])]);
    let begin = |name| Staging::begin(Arc::new(disk.clone()), &layout(), channel("lobby"), name).unwrap();
    let mut staging = begin("up1");
    staging.write(b"pay").unwrap();
    staging.write(b"load").unwrap();
    let (hash, source) = staging.finish();
    assert_eq!(hash, Hash::of(b"payload"));
    let blobs = vec![BlobPut { channel: channel("lobby"), hash, source }];
    assert_eq!(durable(&commits(&mut core, [Commit { blobs, ..commit("lobby", 2, [2]) }])), [2]);
    assert_eq!(disk.durable(&layout().blob(channel("lobby"), hash)).as_deref(), Some(&b"payload"[..]));

    drop(begin("given-up"));
    std::mem::forget(begin("cut-off"));
    assert_eq!(sweep(&disk, &layout(), channel("lobby")).unwrap(), 1);
    assert_eq!(disk.list(&layout().blobs(channel("lobby"))).unwrap().len(), 1);
}

#[test]
fn case_d9_an_entry_is_never_placed_twice() {
    let disk = disk();
    let mut core = core(&disk);
    commits(&mut core, [commit("lobby", 1, [1, 2])]);
    // A core that lost track and says entry 2 again is refused, whole, and stopped; what is on disk stays.
    let reports = commits(&mut core, [commit("lobby", 2, [2]), commit("lobby", 3, [3])]);
    assert!(matches!(&reports[0], Report::Failed { token: 2, reason: Reason::Refused(_), .. }), "{reports:?}");
    assert!(matches!(&reports[1], Report::Failed { token: 3, reason: Reason::Stopped(_), .. }), "{reports:?}");
    let reports = all(&mut core, [Command::Reopen(crate::commit::Target::Log(log("lobby")))]);
    assert!(matches!(&reports[..], [Report::LogReopened { head, .. }] if head.seq == Seq(2)));
    assert_eq!(durable(&commits(&mut core, [commit("lobby", 4, [3])])), [4]);
    assert_eq!(open(&disk, "lobby").1.len(), 3);
}

#[test]
fn a_commit_is_all_or_nothing_over_its_logs() {
    let disk = disk();
    let mut core = core(&disk);
    commits(&mut core, [commit("a1", 1, [1]), commit("b2", 2, [1])]);
    let mut both = commit("a1", 3, [2]);
    both.logs.extend(commit("b2", 3, [9]).logs);
    let reports = commits(&mut core, [commit("a1", 4, [2]), both]);
    assert_eq!(durable(&reports), [4], "what stands before it is not hurt");
    assert_eq!(open(&disk, "a1").1.len(), 2);
    assert_eq!(open(&disk, "b2").1.len(), 1);
}

#[test]
fn a_copy_takes_sealed_lines_and_refuses_others() {
    let home_disk = disk();
    let mut home = core(&home_disk);
    commits(&mut home, [commit("lobby", 1, [1])]);
    let reports = commits(&mut home, [commit("lobby", 2, [2, 3])]);
    let Report::Durable { logs, .. } = &reports[0] else { panic!("not durable") };
    let second = logs[0].1.bytes().to_vec();
    let first = home.reader().lines(log("lobby"), Seq(1)).read(1).unwrap().unwrap().bytes;
    let seal = home.reader().lines(log("lobby"), Seq(1)).read(1 << 20).unwrap().unwrap().bytes;

    let disk = disk();
    let (empty, _) = open(&disk, "lobby");
    let mut copy = core(&disk);
    all(&mut copy, [Command::Add(Box::new(OpenedLog { keep: Keep::Copy, ..empty }))]);
    let lines =
        |token, bytes: &[u8]| Commit { token, lines: vec![(log("lobby"), bytes.to_vec())], ..Commit::default() };
    let again = || Command::Reopen(crate::commit::Target::Log(log("lobby")));
    for (token, bad) in [(1, first.as_slice()), (2, second.as_slice()), (3, b"{}\n"), (4, b"x")] {
        let reports = commits(&mut copy, [lines(token, bad)]);
        assert!(matches!(&reports[..], [Report::Failed { reason: Reason::Refused(_), .. }]), "{token}: {reports:?}");
        all(&mut copy, [again()]);
    }
    let reports = commits(&mut copy, [lines(5, &seal)]);
    assert_eq!(durable(&reports), [5], "{reports:?}");
    assert_eq!(open(&disk, "lobby").0.head, open(&home_disk, "lobby").0.head);
    let reports = commits(&mut copy, [commit("lobby", 6, [4])]);
    assert!(matches!(&reports[..], [Report::Failed { .. }]), "a copy is not appended to");
}
