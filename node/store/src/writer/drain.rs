//! Which commits go together.

use std::collections::{BTreeMap, VecDeque};

use tieline_proto::id::Epoch;
use tieline_proto::log::{BATCH_ENTRIES_MAX, LogId};

use super::{Command, DRAIN_COMMITS_MAX, DRAIN_LEN_MAX};
use crate::commit::{BlobSource, Commit};

/// One step of the writer.
#[derive(Debug)]
pub(super) enum Step {
    /// Commits, with one seal for each log.
    Commits(Vec<Commit>),
    /// Something else.
    Other(Command),
}

/// What a drain already holds for a log.
#[derive(Default)]
struct Share {
    entries: usize,
    epoch: Option<Epoch>,
    lines: bool,
}

/// Takes the next step off the queue: as many commits as fit one drain, in order, or one other command.
pub(super) fn next_step(queue: &mut VecDeque<Command>) -> Option<Step> {
    let mut commits = Vec::new();
    let mut shares: BTreeMap<LogId, Share> = BTreeMap::new();
    let mut len = 0;
    while let Some(Command::Commit(commit)) = queue.front() {
        len += weight(commit);
        let full = commits.len() >= DRAIN_COMMITS_MAX || len > DRAIN_LEN_MAX;
        if !commits.is_empty() && (full || !joins(commit, &shares)) {
            break;
        }
        for (log, entries) in &commit.logs {
            let share = shares.entry(*log).or_default();
            share.entries += entries.len();
            share.epoch = share.epoch.or_else(|| entries.first().map(|entry| entry.epoch));
        }
        for (log, _) in &commit.lines {
            shares.entry(*log).or_default().lines = true;
        }
        if let Some(Command::Commit(commit)) = queue.pop_front() {
            commits.push(commit);
        }
    }
    if commits.is_empty() { queue.pop_front().map(Step::Other) } else { Some(Step::Commits(commits)) }
}

/// Whether a commit fits behind those that were taken. A first one always does: what is wrong with it is its own fault.
fn joins(commit: &Commit, shares: &BTreeMap<LogId, Share>) -> bool {
    let entries_fit = commit.logs.iter().all(|(log, entries)| {
        let Some(share) = shares.get(log) else { return true };
        let one_epoch = share.epoch.is_none_or(|epoch| entries.iter().all(|entry| entry.epoch == epoch));
        !share.lines && one_epoch && share.entries + entries.len() <= BATCH_ENTRIES_MAX
    });
    entries_fit && commit.lines.iter().all(|(log, _)| !shares.contains_key(log))
}

/// About how many bytes a commit is on disk.
fn weight(commit: &Commit) -> usize {
    let blobs = commit.blobs.iter().map(|blob| match &blob.source {
        BlobSource::Bytes(bytes) => bytes.len(),
        BlobSource::Staged(_) => 0,
    });
    let lines = commit.lines.iter().map(|(_, lines)| lines.len());
    let journals = commit.journals.iter().map(|append| append.bytes.len());
    blobs.sum::<usize>() + lines.sum::<usize>() + journals.sum::<usize>()
}
