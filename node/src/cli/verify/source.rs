//! Where the lines of a channel come from: a data folder or an exported file.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tieline_proto::api::{ApiError, Code};
use tieline_proto::crypto::keys::DeviceKeys;
use tieline_proto::id::{Attempt, ChannelId, MessageId, OrgId, Seq};
use tieline_proto::log::{LINE_LEN_MAX, Line, LogId, line};
use tieline_proto::org::Org;

use super::audit::{Audit, Bad, End};
use crate::keys;
use crate::store::layout::segment_first;
use crate::store::{JournalId, Layout};

/// Longest org chain that is read, in bytes: tens of thousands of devices.
const CHAIN_LEN_MAX: u64 = 256 * 1024 * 1024;

/// Longest journal that is read, in bytes.
const JOURNAL_LEN_MAX: u64 = 4 * 1024 * 1024 * 1024;

/// A line of ours between the lines of an exported file. No line of a log begins like one.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(tag = "tieline", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Mark {
    /// First line.
    Export {
        /// Of this form.
        version: u32,
        /// The channel.
        channel: ChannelId,
        /// The org.
        org: OrgId,
    },
    /// The org's chain follows.
    Org {},
    /// The channel's log follows.
    Log {},
    /// So many bytes of a turn's journal follow.
    Journal {
        /// The run message.
        message: MessageId,
        /// The try.
        attempt: Attempt,
        /// Bytes.
        length: u64,
    },
    /// Last line.
    End {},
}

/// How the org's chain of a file stands to the one that this box has.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Standing {
    /// This box has no chain of that org.
    Unknown,
    /// All of it is in this box's.
    Known,
    /// It goes on where this box's ends.
    Further,
    /// Neither continues the other.
    Contradicts,
}

impl Standing {
    fn of(file: &[u8], here: &[u8]) -> Self {
        let (mut file, mut here) = (line::split(file), line::split(here));
        if file.next() != here.next() {
            return Self::Unknown;
        }
        loop {
            match (file.next(), here.next()) {
                (None, _) => return Self::Known,
                (Some(_), None) => return Self::Further,
                (Some(theirs), Some(ours)) if theirs == ours => {}
                _ => return Self::Contradicts,
            }
        }
    }
}

/// The form of exported files that this version writes and reads.
pub const VERSION: u32 = 1;

/// How lines of ours begin.
const MARK_START: &[u8] = br#"{"tieline":"#;

/// How seals begin.
const SEAL_START: &[u8] = br#"{"prev":"#;

/// A data folder with an org.
pub struct Folder {
    layout: Layout,
    chain: Vec<u8>,
    org: Org,
}

/// One channel's lines.
pub enum Source {
    /// In a data folder.
    Folder {
        /// The folder.
        layout: Layout,
        /// The org's chain.
        chain: Vec<u8>,
        /// Which channel.
        channel: ChannelId,
    },
    /// In an exported file.
    File {
        /// For messages.
        path: PathBuf,
        /// After the org's chain.
        reader: BufReader<File>,
        /// The org's chain: the longer one of the file's and this box's, if one continues the other.
        chain: Vec<u8>,
        /// How the file's stands to this box's.
        standing: Standing,
        /// Which channel it says it is.
        channel: ChannelId,
        /// The line after the log.
        after_log: Option<Mark>,
    },
}

fn unreadable(path: &Path) -> impl Fn(io::Error) -> ApiError {
    move |error| {
        let code = if error.kind() == io::ErrorKind::NotFound { Code::NotFound } else { Code::Internal };
        ApiError::new(code, format!("{}: {error}", path.display())).hint("name a channel, or a file that export wrote")
    }
}

impl Folder {
    /// Reads a data folder's org; `None` when there is no data.
    ///
    /// # Errors
    /// When the org's chain can't be read or is bad.
    pub fn open(data: &Path) -> Result<Option<Self>, ApiError> {
        let layout = Layout::new(data);
        // The folder is the same for every org: there is one.
        let folder = layout.log(LogId::Org(OrgId([0; 16])));
        let mut chain = Vec::new();
        for segment in segments(&folder)? {
            let file = File::open(&segment).map_err(unreadable(&segment))?;
            file.take(CHAIN_LEN_MAX).read_to_end(&mut chain).map_err(unreadable(&segment))?;
        }
        // Segments are padded ahead, and a node that runs may be writing: what has no seal was never saved.
        let sealed = sealed_len(&chain);
        chain.truncate(sealed);
        if chain.is_empty() {
            return Ok(None);
        }
        let org = Org::read(&chain).map_err(|error| {
            ApiError::new(Code::Internal, format!("the org's chain in {} is bad: {error}", folder.display()))
                .hint("restore it from a backup")
        })?;
        Ok(Some(Self { layout, chain, org }))
    }

    /// The folder's paths.
    #[cfg(test)]
    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The org, when this box's own device is in it. A folder that somebody brought along pins nothing.
    pub fn own_org(&self) -> Option<OrgId> {
        let secret = keys::read(&self.layout.root().join("keys").join("device")).ok()??;
        let keys = DeviceKeys::from_secret_bytes(&secret).ok()?;
        self.org.device(&keys.device()).map(|_| self.org.fingerprint())
    }

    /// The channel of a name or an id. Of two with one name the one whose log is here is meant.
    pub fn channel(&self, named: &str) -> Option<ChannelId> {
        let is_here = |id: &ChannelId| self.layout.log(LogId::Channel(*id)).is_dir();
        let mut found: Vec<ChannelId> = self
            .org
            .channels()
            .filter(|(id, term)| term.name.as_str() == named || id.to_string() == named)
            .map(|(id, _)| id)
            .collect();
        found.sort_by_key(is_here);
        found.pop()
    }

    /// The channel of a name or an id, which must be here.
    ///
    /// # Errors
    /// When there is none, or its log is on another box.
    pub fn channel_here(&self, named: &str) -> Result<ChannelId, ApiError> {
        let id = self.channel(named).ok_or_else(|| {
            ApiError::new(Code::NotFound, format!("no channel {named:?} is known here")).hint("tieline channel list")
        })?;
        if self.layout.log(LogId::Channel(id)).is_dir() {
            return Ok(id);
        }
        let home = self.org.terms(&id).last().map(|term| term.home);
        let home = home.and_then(|home| Some((home, self.org.device(&home)?)));
        let home = home.map_or_else(String::new, |(id, device)| format!(", {} ({})", device.name, id.short()));
        Err(ApiError::new(Code::NotFound, format!("the log of {named} is at its home{home}"))
            .hint("run this there, or export the channel there and verify the file here"))
    }
}

impl Source {
    /// Finds what is meant: a channel of the data folder, else a file.
    ///
    /// # Errors
    /// When there is neither.
    pub fn find(what: &Path, folder: Option<&Folder>) -> Result<Self, ApiError> {
        let named = what.to_str().unwrap_or_default();
        if let Some(folder) = folder
            && (folder.channel(named).is_some() || (!what.exists() && !named.contains('/')))
        {
            return Ok(Self::of(folder, folder.channel_here(named)?));
        }
        let mut file = Self::file(what)?;
        // A chain that a box of the org has kept by itself says more than one that came with what it is to judge.
        if let Some(folder) = folder.filter(|folder| folder.own_org().is_some())
            && let Self::File { chain, standing, .. } = &mut file
        {
            *standing = Standing::of(chain, &folder.chain);
            if *standing == Standing::Known {
                chain.clone_from(&folder.chain);
            }
        }
        Ok(file)
    }

    /// How the org's chain that a file brought stands to the one of this box.
    pub const fn standing(&self) -> Standing {
        match self {
            Self::Folder { .. } => Standing::Known,
            Self::File { standing, .. } => *standing,
        }
    }

    /// A channel of a data folder.
    pub fn of(folder: &Folder, channel: ChannelId) -> Self {
        Self::Folder { layout: folder.layout.clone(), chain: folder.chain.clone(), channel }
    }

    fn file(path: &Path) -> Result<Self, ApiError> {
        let no_export = |why: &str| {
            ApiError::new(Code::Invalid, format!("{} is no exported channel: {why}", path.display()))
                .hint("tieline channel export CHANNEL FILE makes one")
        };
        let mut reader = BufReader::new(File::open(path).map_err(unreadable(path))?);
        let mut next = || read_line(&mut reader).map_err(unreadable(path));
        let first = next()?.unwrap_or_default();
        let Some(Mark::Export { version, channel, org }) = mark(&first) else {
            return Err(no_export("its first line"));
        };
        if version != VERSION {
            return Err(no_export(&format!("form {version}, and this version reads {VERSION}")));
        }
        if next()?.as_deref().and_then(mark) != Some(Mark::Org {}) {
            return Err(no_export("its second line"));
        }
        let mut chain = Vec::new();
        loop {
            let line = next()?.ok_or_else(|| no_export("it ends in the org's chain"))?;
            match mark(&line) {
                Some(Mark::Log {}) => break,
                Some(_) => return Err(no_export("its parts are in another order")),
                None => {
                    chain.extend_from_slice(&line);
                    chain.push(b'\n');
                }
            }
            if chain.len() as u64 > CHAIN_LEN_MAX {
                return Err(no_export("its org's chain is too long"));
            }
        }
        let founder = tieline_proto::log::line::split(&chain).next().map(tieline_proto::log::org_id);
        if founder != Some(org) {
            return Err(no_export("its first line names another org than its chain"));
        }
        let standing = Standing::Unknown;
        Ok(Self::File { path: path.to_owned(), reader, chain, standing, channel, after_log: None })
    }

    /// Which channel.
    pub const fn channel(&self) -> ChannelId {
        match self {
            Self::Folder { channel, .. } | Self::File { channel, .. } => *channel,
        }
    }

    /// The paths of the data folder that it is in.
    pub const fn layout(&self) -> Option<&Layout> {
        match self {
            Self::Folder { layout, .. } => Some(layout),
            Self::File { .. } => None,
        }
    }

    /// The org's chain, raw.
    pub fn org_chain(&self) -> &[u8] {
        match self {
            Self::Folder { chain, .. } | Self::File { chain, .. } => chain,
        }
    }

    /// Whether a node may be writing it.
    pub fn is_live(&self) -> bool {
        matches!(self, Self::Folder { layout, .. } if super::is_held(layout.root()))
    }

    /// Reads the org's chain again: a node that runs may have added to it.
    pub fn renew(&mut self) -> Result<(), ApiError> {
        if let Self::Folder { layout, chain, .. } = self
            && let Some(folder) = Folder::open(layout.root())?
        {
            *chain = folder.chain;
        }
        Ok(())
    }

    /// Whether a good seal of a later batch stands behind the end of the good part: then what is wrong there is damage,
    /// and no write that is under way or broke off.
    pub fn is_sealed_behind(&self, audit: &Audit) -> Result<bool, ApiError> {
        let head = audit.head().seq;
        let Self::Folder { layout, channel, .. } = self else { return Ok(false) };
        let log = LogId::Channel(*channel);
        for segment in segments(&layout.log(log))? {
            let mut reader = BufReader::new(File::open(&segment).map_err(unreadable(&segment))?);
            while let Some(line) = read_line(&mut reader).map_err(unreadable(&segment))? {
                if line.starts_with(SEAL_START)
                    && let Ok(Line::Seal(seal)) = Line::parse(&line)
                    && seal.seal.log == log.sealed_as()
                    && seal.seal.from > head.next()
                    && audit.is_by_home(&seal)
                {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Feeds the whole log to the audit. The outer error is that it can't be read, the inner one that it is bad.
    pub fn read(&mut self, audit: &mut Audit) -> Result<Result<(), Bad>, ApiError> {
        match self {
            Self::Folder { layout, channel, .. } => {
                for segment in segments(&layout.log(LogId::Channel(*channel)))? {
                    let mut reader = BufReader::new(File::open(&segment).map_err(unreadable(&segment))?);
                    while let Some(line) = read_line(&mut reader).map_err(unreadable(&segment))? {
                        if let Err(bad) = audit.line(&line) {
                            return Ok(Err(bad));
                        }
                    }
                }
            }
            Self::File { path, reader, after_log, .. } => {
                while let Some(line) = read_line(reader).map_err(unreadable(path))? {
                    if line.starts_with(MARK_START) && audit.is_sealed() {
                        *after_log = mark(&line);
                        break;
                    }
                    if let Err(bad) = audit.line(&line) {
                        return Ok(Err(bad));
                    }
                }
            }
        }
        Ok(audit.finish())
    }

    /// Checks the journals of all turns that ended.
    pub fn journals(&mut self, audit: &Audit) -> Result<Result<(), Bad>, ApiError> {
        for end in audit.ends() {
            let bytes = match self.journal(audit.channel(), end)? {
                Ok(bytes) => bytes,
                Err(bad) => return Ok(Err(bad)),
            };
            if let Err(bad) = Audit::journal(end, &bytes) {
                return Ok(Err(bad));
            }
        }
        if let Self::File { after_log, reader, path, .. } = self {
            let at_end =
                matches!(after_log, Some(Mark::End {})) && read_line(reader).map_err(unreadable(path))?.is_none();
            if !at_end {
                let seq = Seq(audit.head().seq.0 + 1);
                return Ok(Err(Bad { seq, what: "the file does not end as it was written".to_owned() }));
            }
        }
        Ok(Ok(()))
    }

    fn journal(&mut self, channel: ChannelId, end: &End) -> Result<Result<Vec<u8>, Bad>, ApiError> {
        let bad = |what: &str| Ok(Err(Bad { seq: end.seq, what: format!("the journal of #{} {what}", end.message) }));
        if end.length > JOURNAL_LEN_MAX {
            return bad("is too long to be one");
        }
        match self {
            Self::Folder { layout, .. } => {
                if end.length == 0 {
                    return Ok(Ok(Vec::new()));
                }
                match folder_journal(layout, channel, end)? {
                    Some(bytes) => Ok(Ok(bytes)),
                    None => bad("is missing"),
                }
            }
            Self::File { reader, path, after_log, .. } => {
                let Some(Mark::Journal { message, attempt, length }) = after_log.take() else {
                    return bad("is missing");
                };
                if (message, attempt, length) != (end.message, end.attempt, end.length) {
                    return bad("is missing, or its place in the file was changed");
                }
                let mut bytes = Vec::new();
                reader.by_ref().take(length).read_to_end(&mut bytes).map_err(unreadable(path))?;
                *after_log = read_line(reader).map_err(unreadable(path))?.as_deref().and_then(mark);
                Ok(Ok(bytes))
            }
        }
    }
}

/// A turn's journal in a data folder, as long as its end says; `None` when there is none.
///
/// # Errors
/// When it can't be read.
pub fn folder_journal(layout: &Layout, channel: ChannelId, end: &End) -> Result<Option<Vec<u8>>, ApiError> {
    let path = layout.journal(JournalId::Run { channel, message: end.message, attempt: end.attempt });
    match File::open(&path) {
        Ok(file) => {
            let mut bytes = Vec::new();
            file.take(end.length).read_to_end(&mut bytes).map_err(unreadable(&path))?;
            Ok(Some(bytes))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(&path)(error)),
    }
}

/// The segments of a log, in order; none when there is no such log.
///
/// # Errors
/// When the folder can't be read.
pub fn segments(folder: &Path) -> Result<Vec<PathBuf>, ApiError> {
    let items = match std::fs::read_dir(folder) {
        Ok(items) => items,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(unreadable(folder)(error)),
    };
    let mut segments = Vec::new();
    for item in items {
        let item = item.map_err(unreadable(folder))?;
        if let Some(first) = item.file_name().to_str().and_then(segment_first) {
            segments.push((first, item.path()));
        }
    }
    segments.sort();
    Ok(segments.into_iter().map(|(_, path)| path).collect())
}

/// The next line that is not padding, without its LF; one that is too long comes cut, and no log has it.
///
/// # Errors
/// When it can't be read.
pub fn read_line(reader: &mut BufReader<File>) -> io::Result<Option<Vec<u8>>> {
    loop {
        let mut line = Vec::new();
        let read = reader.by_ref().take(LINE_LEN_MAX as u64 + 2).read_until(b'\n', &mut line)?;
        if read == 0 {
            return Ok(None);
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        if !line.is_empty() {
            return Ok(Some(line));
        }
    }
}

fn mark(line: &[u8]) -> Option<Mark> {
    line.starts_with(MARK_START).then(|| serde_json::from_slice(line).ok()).flatten()
}

/// How far a chain is sealed, in bytes.
fn sealed_len(chain: &[u8]) -> usize {
    let mut sealed = 0;
    let mut at = 0;
    for line in chain.split_inclusive(|byte| *byte == b'\n') {
        at += line.len();
        // Whether the seal is good is judged with the chain; here only what comes after the last one is cut off.
        if line.starts_with(SEAL_START) && line.ends_with(b"\n") {
            sealed = at;
        }
    }
    sealed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_told_from_lines() {
        assert_eq!(mark(br#"{"tieline":"log"}"#), Some(Mark::Log {}));
        assert_eq!(mark(br#"{"tieline":"log","x":1}"#), None);
        assert_eq!(mark(br#"{"seq":1}"#), None);
        let journal = Mark::Journal { message: MessageId(3), attempt: Attempt(1), length: 9 };
        assert_eq!(mark(&serde_json::to_vec(&journal).unwrap()), Some(journal));
    }

    #[test]
    fn a_chain_that_came_along_is_compared_with_the_one_of_this_box() {
        let here = b"1\n2\n\n\n3\n";
        let cases: [(&[u8], Standing); 6] = [
            (b"1\n2\n3\n", Standing::Known),
            (b"1\n2\n", Standing::Known),
            (b"1\n2\n3\n4\n", Standing::Further),
            (b"1\n2\nx\n", Standing::Contradicts),
            (b"1\nx\n", Standing::Contradicts),
            (b"0\n2\n3\n", Standing::Unknown),
        ];
        for (file, standing) in cases {
            assert_eq!(Standing::of(file, here), standing, "{}", String::from_utf8_lossy(file));
        }
    }

    #[test]
    fn unsealed_lines_are_cut_off() {
        assert_eq!(sealed_len(b"{\"seq\":1}\n{\"prev\":0}\n\n\n{\"seq\":2}\n"), 21);
        assert_eq!(sealed_len(b"{\"seq\":1}\n{\"prev\":0}"), 0);
        assert_eq!(sealed_len(b""), 0);
    }
}
