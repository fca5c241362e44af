//! Where things are in a data folder.

use std::path::{Path, PathBuf};

use tieline_proto::id::{Attempt, ChannelId, Hash, Seq};
use tieline_proto::log::LogId;

use super::commit::JournalId;

/// Paths below one data folder.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Layout {
    root: PathBuf,
}

impl Layout {
    /// Of this data folder.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// The data folder.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// `channels/`.
    #[must_use]
    pub fn channels(&self) -> PathBuf {
        self.root.join("channels")
    }

    /// `channels/<id>/`.
    #[must_use]
    pub fn channel(&self, channel: ChannelId) -> PathBuf {
        self.channels().join(channel.to_string())
    }

    /// The folder of a log's segments.
    #[must_use]
    pub fn log(&self, log: LogId) -> PathBuf {
        match log {
            LogId::Org(_) => self.root.join("org").join("log"),
            LogId::Channel(channel) => self.channel(channel).join("log"),
        }
    }

    /// A segment, named by its first entry. Zeros before the number let a shell list segments in order.
    #[must_use]
    pub fn segment(&self, log: LogId, first: Seq) -> PathBuf {
        self.log(log).join(format!("{:016}.jsonl", first.0))
    }

    /// A journal.
    #[must_use]
    pub fn journal(&self, journal: JournalId) -> PathBuf {
        match journal {
            JournalId::Run { channel, message, attempt: Attempt(1) } => {
                self.channel(channel).join("runs").join(format!("{message}.jsonl"))
            }
            JournalId::Run { channel, message, attempt } => {
                self.channel(channel).join("runs").join(format!("{message}.{attempt}.jsonl"))
            }
            JournalId::Attempts(n) => self.attempts().join(format!("{n}.jsonl")),
            JournalId::Attempt(id) => {
                self.resident_runs().join(format!("{}-{}-{}.jsonl", id.channel, id.run, id.attempt))
            }
        }
    }

    /// `resident/attempts/`.
    #[must_use]
    pub fn attempts(&self) -> PathBuf {
        self.root.join("resident").join("attempts")
    }

    /// `resident/runs/`.
    #[must_use]
    pub fn resident_runs(&self) -> PathBuf {
        self.root.join("resident").join("runs")
    }

    /// The folder of a channel's blobs.
    #[must_use]
    pub fn blobs(&self, channel: ChannelId) -> PathBuf {
        self.channel(channel).join("blobs")
    }

    /// A blob.
    #[must_use]
    pub fn blob(&self, channel: ChannelId, hash: Hash) -> PathBuf {
        self.blobs(channel).join(hash.to_string())
    }

    /// The index, which can be deleted at any time.
    #[must_use]
    pub fn index(&self) -> PathBuf {
        self.root.join("index")
    }
}

/// The first entry of the segment that has this file name.
#[must_use]
pub fn segment_first(name: &str) -> Option<Seq> {
    let digits = name.strip_suffix(".jsonl")?;
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let first = plain.then(|| digits.parse().ok()).flatten()?;
    (first > 0).then_some(Seq(first))
}
