//! The resident's own journal at the start: which attempts there were, and what is on disk of them.

use std::collections::BTreeSet;
use std::str::FromStr;

use rand_core::Rng;
use serde::de::IgnoredAny;
use tieline_proto::channel::RunProgress;
use tieline_proto::id::Incarnation;
use tieline_proto::link::AttemptId;
use tieline_proto::turn::{Resident, RunEvidence};

use super::open::{StartError, io, os_rng, wall_clock};
use crate::store::{JournalId, Layout, RealDisk, recover};

/// The boot of this box: unsynced writes survive a process, not a boot.
fn boot_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    // Without one, every start counts as a boot: more is held, nothing is run twice.
    id.map_or_else(|_| format!("unknown-{}-{}", std::process::id(), wall_clock()), |id| id.trim().to_owned())
}

/// Beside the attempt journals: what sets the boot apart in which their disk failed.
const FAILED: &str = "failed";

/// What an acceptance is written under. Under another one, a missing hand-over proves nothing: it may have been lost.
fn label(layout: &Layout) -> String {
    let failed = std::fs::read_to_string(layout.attempts().join(FAILED)).unwrap_or_default();
    boot_id() + failed.trim_end()
}

/// Notes that the disk failed under the attempt journal: what was written to it since its last sync may be lost, though the
/// box has not rebooted.
///
/// # Errors
/// When that cannot be written: the disk has not recovered.
pub(super) fn note_failure(layout: &Layout) -> std::io::Result<()> {
    crate::keys::write(&layout.attempts().join(FAILED), format!("-{}\n", wall_clock()).as_bytes())
}

/// What is on disk of an attempt here.
fn evidence(layout: &Layout, id: &AttemptId) -> RunEvidence {
    let journal = JournalId::Attempt(*id);
    let mut progress = RunProgress::new(id.attempt);
    let mut last = Vec::new();
    let recovered = recover::<IgnoredAny>(&RealDisk, layout, journal, &mut |line| {
        line.clone_into(&mut last);
        let mut line = line.to_vec();
        line.push(b'\n');
        let _ = progress.absorb(&line);
    });
    if recovered.is_err() {
        return RunEvidence::default();
    }
    let ended = matches!(serde_json::from_slice(&last), Ok(tieline_proto::event::Event::Finished { .. }));
    RunEvidence { events: progress.events(), length: progress.length(), journal: Some(progress.hash()), ended }
}

/// The resident's attempt journal: the newest one, or a new one. Gives its length and what has to be written first.
pub(super) fn open_resident(layout: &Layout) -> Result<(Resident, JournalId, u64, Vec<u8>), StartError> {
    let newest = std::fs::read_dir(layout.attempts()).into_iter().flatten().filter_map(|item| {
        let name = item.ok()?.file_name();
        u64::from_str(name.to_str()?.strip_suffix(".jsonl")?).ok()
    });
    let newest = newest.max();
    if let Some(n) = newest {
        let path = layout.journal(JournalId::Attempts(n));
        let before = std::fs::read(&path).map_err(io("reading the attempt journal"))?;
        let mut lines = Vec::new();
        let state = recover::<IgnoredAny>(&RealDisk, layout, JournalId::Attempts(n), &mut |line| {
            lines.extend_from_slice(line);
            lines.push(b'\n');
        })
        .map_err(io("reading the attempt journal"))?;
        match Resident::restore(&lines, label(layout), |id| evidence(layout, id)) {
            Ok(resident) if !holds_a_line(before.get(lines.len()..).unwrap_or_default()) => {
                sweep(layout, &resident);
                return Ok((resident, JournalId::Attempts(n), state.len, Vec::new()));
            }
            // A crash tears the last record. Whole ones behind a bad one are damage: what they said is not known any more.
            Ok(_) => {
                let aside = path.with_extension("damaged");
                std::fs::write(&aside, &before).map_err(io("keeping the damaged attempt journal"))?;
                tracing::error!(kept = %aside.display(), "the attempt journal is damaged: a new one is begun, open turns are held");
            }
            Err(error) => tracing::error!(%error, "a new attempt journal is begun; turns that were open are held"),
        }
    }
    let mut incarnation = [0; 16];
    os_rng()?.fill_bytes(&mut incarnation);
    let (resident, first) = Resident::begin(Incarnation(incarnation), label(layout));
    Ok((resident, JournalId::Attempts(newest.map_or(1, |n| n + 1)), 0, first))
}

/// Whether a line ends in these bytes: more than the padding, and more than a torn record.
fn holds_a_line(rest: &[u8]) -> bool {
    rest.trim_ascii_end().contains(&b'\n')
}

/// Removes journals of attempts that are forgotten: a crash came between the word and the deed.
fn sweep(layout: &Layout, resident: &Resident) {
    let open = resident.open().map(|(id, _)| layout.journal(JournalId::Attempt(*id))).collect::<BTreeSet<_>>();
    let Ok(items) = std::fs::read_dir(layout.resident_runs()) else { return };
    for path in items.filter_map(|item| Some(item.ok()?.path())).filter(|path| !open.contains(path)) {
        if let Err(error) = std::fs::remove_file(&path) {
            tracing::warn!(%error, path = %path.display(), "a journal that nobody needs stays");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A padded journal as it is on disk.
    fn journal(layout: &Layout, bytes: &[u8]) {
        let path = layout.journal(JournalId::Attempts(1));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, [bytes, &[b'\n'; 512]].concat()).unwrap();
    }

    #[test]
    fn a_torn_record_is_cut_and_damage_before_whole_ones_begins_anew() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        let (first, _, _, lines) = open_resident(&layout).unwrap();
        journal(&layout, &[&lines[..], b"{\"torn"].concat());
        let (again, id, length, more) = open_resident(&layout).unwrap();
        assert_eq!(
            (again.mark(), id, length, more.len()),
            (first.mark(), JournalId::Attempts(1), lines.len() as u64, 0)
        );

        journal(&layout, &[&lines[..], b"{\"bad\n", &lines[..]].concat());
        let (other, id, ..) = open_resident(&layout).unwrap();
        assert_eq!(id, JournalId::Attempts(2));
        assert_ne!(
            other.mark().incarnation,
            first.mark().incarnation,
            "what was proved by the old one is not any more"
        );
        assert!(layout.attempts().join("1.damaged").exists());
    }

    #[test]
    fn after_a_failed_disk_a_missing_hand_over_proves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        std::fs::create_dir_all(layout.attempts()).unwrap();
        let before = label(&layout);
        assert_eq!(label(&layout), before);
        note_failure(&layout).unwrap();
        assert_ne!(label(&layout), before);
        assert_eq!(label(&layout), label(&layout), "also for later processes of this boot");
    }

    #[test]
    fn journals_of_forgotten_attempts_are_swept() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        let (_, _, _, lines) = open_resident(&layout).unwrap();
        journal(&layout, &lines);
        std::fs::create_dir_all(layout.resident_runs()).unwrap();
        let orphan = layout.resident_runs().join("x-1-1.jsonl");
        std::fs::write(&orphan, "").unwrap();
        open_resident(&layout).unwrap();
        assert!(!orphan.exists());
    }
}
