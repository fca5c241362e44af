//! The file that holds a channel with all it takes to verify it: the org's chain, the log, the journals of ended turns.
//!
//! It is text, a line of JSON each: lines of ours (`{"tieline":…}`) between the raw lines of chain, log and journals.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use tieline_proto::api::{ApiError, Code};
use tieline_proto::id::{ChannelId, OrgId};
use tieline_proto::log::LogId;
use tieline_proto::view::Head;

use super::audit::{Audit, Bad};
use super::source::{Mark, Source, VERSION, folder_journal, read_line, segments};

/// What was written.
#[derive(Clone, Debug, Serialize)]
pub struct Exported {
    /// Entries in it.
    pub entries: u64,
    /// The last of them.
    pub head: Head,
    /// The channel.
    pub channel: ChannelId,
    /// What people call it.
    pub name: String,
    /// Its org.
    pub org: OrgId,
    /// Where it is.
    pub file: PathBuf,
}

/// Why a channel is not exported.
pub fn broken(named: &str, bad: &Bad) -> ApiError {
    ApiError::new(Code::ReadOnly, format!("{named} is not as it was sealed: seq {}: {bad}", bad.seq))
        .hint(format!("tieline channel verify {named}"))
}

/// Writes a channel of a data folder into a new file, up to `head`, whole or not at all. What is not good is not
/// exported.
///
/// # Errors
/// When the channel is bad, or the file is there already or can't be written.
pub fn write(source: &Source, named: &str, head: Head, file: &Path) -> Result<Exported, ApiError> {
    let unwritable = |error: io::Error| {
        ApiError::new(Code::Internal, format!("{} can't be written: {error}", file.display()))
            .hint("choose another file")
    };
    if file.exists() {
        return Err(ApiError::new(Code::Conflict, format!("{} is there already", file.display()))
            .hint("choose another file, or remove that one"));
    }
    let name = file.file_name().ok_or_else(|| unwritable(io::Error::from(io::ErrorKind::InvalidInput)))?;
    let mut temp_name = name.to_owned();
    temp_name.push(format!(".{}.new", std::process::id()));
    let temp = file.with_file_name(temp_name);
    let out = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temp).map_err(unwritable)?;
    let written = fill(source, named, head, BufWriter::new(out), &unwritable);
    // Linked, not renamed: a file that came there meanwhile is not overwritten.
    let done = written.and_then(|audit| std::fs::hard_link(&temp, file).map(|()| audit).map_err(unwritable));
    let removed = std::fs::remove_file(&temp).map_err(unwritable);
    let audit = done?;
    removed?;
    let head = audit.head();
    let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    Ok(Exported { entries: head.seq.0, head, channel: audit.channel(), name: audit.name(), org: audit.org(), file })
}

fn fill(
    source: &Source,
    named: &str,
    end: Head,
    mut out: BufWriter<File>,
    unwritable: &dyn Fn(io::Error) -> ApiError,
) -> Result<Audit, ApiError> {
    let not_here = || ApiError::new(Code::Invalid, "only a channel of a data folder is exported");
    let layout = source.layout().ok_or_else(not_here)?;
    let (channel, chain) = (source.channel(), source.org_chain());
    let mut audit = Audit::new(channel, chain)?;
    let head = Mark::Export { version: VERSION, channel, org: audit.org() };
    let mut put = |bytes: &[u8]| out.write_all(bytes).map_err(unwritable);
    put(&line_of(&head))?;
    put(&line_of(&Mark::Org {}))?;
    for line in tieline_proto::log::line::split(chain) {
        put(line)?;
        put(b"\n")?;
    }
    put(&line_of(&Mark::Log {}))?;
    let broken = |bad: &Bad| broken(named, bad);
    // A node that runs may be adding to it: what comes behind the end that was checked is the next export's.
    'log: for segment in segments(&layout.log(LogId::Channel(channel)))? {
        let mut reader = BufReader::new(File::open(&segment).map_err(unwritable)?);
        while audit.head() != end || !audit.is_sealed() {
            let Some(line) = read_line(&mut reader).map_err(unwritable)? else { continue 'log };
            audit.line(&line).map_err(|bad| broken(&bad))?;
            put(&line)?;
            put(b"\n")?;
        }
        break;
    }
    if audit.head() != end {
        let what = "the log ends before its head".to_owned();
        return Err(broken(&Bad { seq: audit.head().seq.next(), what }));
    }
    for end in audit.ends() {
        let missing = || Bad { seq: end.seq, what: format!("the journal of #{} is missing", end.message) };
        let bytes = match end.length {
            0 => Vec::new(),
            _ => folder_journal(layout, channel, end)?.ok_or_else(|| broken(&missing()))?,
        };
        Audit::journal(end, &bytes).map_err(|bad| broken(&bad))?;
        let mark = Mark::Journal { message: end.message, attempt: end.attempt, length: end.length };
        put(&line_of(&mark))?;
        put(&bytes)?;
    }
    put(&line_of(&Mark::End {}))?;
    let file = out.into_inner().map_err(|error| unwritable(error.into_error()))?;
    file.sync_all().map_err(unwritable)?;
    Ok(audit)
}

fn line_of(mark: &Mark) -> Vec<u8> {
    let mut line = serde_json::to_vec(mark).unwrap_or_default();
    line.push(b'\n');
    line
}
