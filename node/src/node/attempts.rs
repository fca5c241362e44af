//! The resident's own journal at the start: which attempts there were, and what is on disk of them.

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
        let mut lines = Vec::new();
        let state = recover::<IgnoredAny>(&RealDisk, layout, JournalId::Attempts(n), &mut |line| {
            lines.extend_from_slice(line);
            lines.push(b'\n');
        })
        .map_err(io("reading the attempt journal"))?;
        match Resident::restore(&lines, boot_id(), |id| evidence(layout, id)) {
            Ok(resident) => return Ok((resident, JournalId::Attempts(n), state.len, Vec::new())),
            Err(error) => tracing::error!(%error, "a new attempt journal is begun; turns that were open are held"),
        }
    }
    let mut incarnation = [0; 16];
    os_rng()?.fill_bytes(&mut incarnation);
    let (resident, first) = Resident::begin(Incarnation(incarnation), boot_id());
    Ok((resident, JournalId::Attempts(newest.map_or(1, |n| n + 1)), 0, first))
}
