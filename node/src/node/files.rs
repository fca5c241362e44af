//! Files that messages cite, brought to this box for the agents that run here.
//!
//! A file is there under its name once all of it is there, was found to have its hash, and is on disk. Agents may have
//! changed it since: it is checked again unless it is known to be what it was.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tieline_proto::api::Request;
use tieline_proto::channel::ATTACHMENT_LEN_MAX;
use tieline_proto::entry::Attachment;
use tieline_proto::id::ChannelId;
use tieline_proto::payload;
use tieline_proto::view::BlobPiece;
use tokio::io::AsyncWriteExt as _;

use super::base64;
use crate::handle::{Caller, NodeHandle};

/// Files that are remembered to be checked; beyond it those that nobody fetches now are forgotten, and checked again.
const CHECKED_MAX: usize = 4096;

/// What is fetched for agents. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Files {
    root: PathBuf,
    places: Arc<Mutex<BTreeMap<PathBuf, Arc<Place>>>>,
}

/// One file: held while it is fetched or checked, so that agents who want the same file do that once.
type Place = tokio::sync::Mutex<Option<Stamp>>;

/// Tells a file that was changed or replaced from the one that was checked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Stamp {
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

impl Files {
    /// Files of the resident in a data folder.
    pub(super) fn new(data: &Path) -> Self {
        Self { root: data.join("resident").join("files"), places: Arc::default() }
    }

    /// The folder of a channel's files.
    pub(super) fn folder(&self, channel: ChannelId) -> PathBuf {
        self.root.join(channel.to_string())
    }

    /// Brings files here. Returns when each of them is on disk and has its hash.
    ///
    /// # Errors
    /// Why one of them cannot be had, in words.
    pub(super) async fn fetch(
        &self,
        handle: &NodeHandle,
        channel: ChannelId,
        files: &[Attachment],
    ) -> Result<(), String> {
        for file in files {
            self.bring(handle, channel, file).await.map_err(|why| format!("{:?} {why}", file.name))?;
        }
        Ok(())
    }

    async fn bring(&self, handle: &NodeHandle, channel: ChannelId, file: &Attachment) -> Result<(), String> {
        if file.size > ATTACHMENT_LEN_MAX {
            return Err(format!("has {} bytes, over {ATTACHMENT_LEN_MAX}", file.size));
        }
        let named = payload::attachment_path(&file.hash, &file.name);
        let name = Path::new(&named).file_name().ok_or("has no name")?;
        let path = self.folder(channel).join(file.hash.to_string()).join(name);
        let place = self.place(&path);
        let mut checked = place.lock().await;
        let there = stamp(&path);
        if there.is_some() && *checked == there {
            return Ok(());
        }
        *checked = None;
        if there.is_some_and(|there| there.size == file.size) && has_hash(&path, file).await {
            *checked = there;
            return Ok(());
        }
        let unwritable = |error: io::Error| format!("cannot be written: {error}");
        let mut part = Part::begin(&path).await.map_err(unwritable)?;
        let mut hasher = blake3::Hasher::new();
        let mut at = 0;
        while at < file.size {
            let request = Request::BlobGet { channel: channel.to_string(), hash: file.hash, offset: at };
            let piece = handle.call(Caller::Owner, request).await.map_err(|error| error.to_string())?;
            let piece: BlobPiece = serde_json::from_value(piece).map_err(|error| error.to_string())?;
            let data = base64::decode(&piece.data).map_err(|()| "comes in a piece that is not base64url")?;
            at += data.len() as u64;
            if data.is_empty() || at > file.size {
                return Err("has another length than the message names".to_owned());
            }
            hasher.update(&data);
            part.file.write_all(&data).await.map_err(unwritable)?;
        }
        if hasher.finalize().as_bytes() != file.hash.as_bytes() {
            return Err("does not have the hash that the message names".to_owned());
        }
        part.finish(&path).await.map_err(unwritable)?;
        *checked = stamp(&path);
        Ok(())
    }

    fn place(&self, path: &Path) -> Arc<Place> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        if places.len() >= CHECKED_MAX {
            places.retain(|_, place| Arc::strong_count(place) > 1);
        }
        Arc::clone(places.entry(path.to_owned()).or_default())
    }
}

/// `None` when it is no plain file.
fn stamp(path: &Path) -> Option<Stamp> {
    let meta = fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file)?;
    Some(Stamp { inode: meta.ino(), size: meta.len(), changed: (meta.ctime(), meta.ctime_nsec()) })
}

async fn has_hash(path: &Path, file: &Attachment) -> bool {
    let (path, hash) = (path.to_owned(), file.hash);
    let check = move || {
        let mut hasher = blake3::Hasher::new();
        let read = File::open(path).and_then(|file| hasher.update_reader(file).map(|_| ()));
        read.is_ok() && hasher.finalize().as_bytes() == hash.as_bytes()
    };
    tokio::task::spawn_blocking(check).await.unwrap_or(false)
}

/// A file that is being received, beside its place. Dropping it removes it.
struct Part {
    file: tokio::fs::File,
    path: Option<PathBuf>,
}

impl Part {
    async fn begin(path: &Path) -> io::Result<Self> {
        let folder = path.parent().unwrap_or(Path::new("/")).to_owned();
        let mut name = path.file_name().unwrap_or_default().as_encoded_bytes().to_vec();
        // Names are cut well below what file systems take.
        name.splice(..0, *b".part-");
        let part = folder.join(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(&name));
        let at = part.clone();
        let open = move || {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
            match fs::remove_file(&at) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            File::options().write(true).create_new(true).mode(0o600).open(&at)
        };
        let file = tokio::task::spawn_blocking(open).await.map_err(io::Error::other)??;
        Ok(Self { file: tokio::fs::File::from_std(file), path: Some(part) })
    }

    async fn finish(mut self, path: &Path) -> io::Result<()> {
        self.file.sync_all().await?;
        let Some(part) = self.path.take() else { return Ok(()) };
        let path = path.to_owned();
        let rename = move || {
            fs::rename(part, &path)?;
            path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
        };
        tokio::task::spawn_blocking(rename).await.map_err(io::Error::other)?
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if let Some(path) = self.path.take() {
            let _left = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tieline_proto::id::Hash;

    use super::*;
    use crate::handle::ApiCall;

    /// A home that holds one content, and counts the pieces it is asked for.
    fn home(content: &'static [u8], size: u64) -> (NodeHandle, Arc<Mutex<u64>>) {
        let (handle, mut calls) = NodeHandle::new();
        let count = Arc::new(Mutex::new(0));
        let counted = Arc::clone(&count);
        tokio::spawn(async move {
            while let Some(ApiCall { request, reply, .. }) = calls.recv().await {
                let Request::BlobGet { offset, .. } = request else { continue };
                *counted.lock().unwrap() += 1;
                // Others get their turn while a file is on its way.
                tokio::task::yield_now().await;
                let from = usize::try_from(offset).unwrap().min(content.len());
                let data = base64::encode(&content[from..(from + 7).min(content.len())]);
                let _ = reply.send(Ok(json!({"size": size, "offset": offset, "data": data})));
            }
        });
        (handle, count)
    }

    const CONTENT: &[u8] = b"the content of a file that goes with a message";

    fn cited(name: &str) -> Attachment {
        Attachment { name: name.to_owned(), size: CONTENT.len() as u64, hash: Hash::of(CONTENT) }
    }

    fn path(files: &Files, name: &str) -> PathBuf {
        files.folder(CHANNEL).join(Hash::of(CONTENT).to_string()).join(name)
    }

    const CHANNEL: ChannelId = ChannelId([1; 32]);

    #[tokio::test]
    async fn agents_that_want_one_file_at_once_fetch_it_once_and_all_get_it() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::new(dir.path());
        let (handle, count) = home(CONTENT, CONTENT.len() as u64);
        let cited = [cited("a.txt"), cited("b.txt")];
        let wants = (0..4).map(|_| files.fetch(&handle, CHANNEL, &cited));
        for fetched in futures::future::join_all(wants).await {
            fetched.unwrap();
        }
        for name in ["a.txt", "b.txt"] {
            assert_eq!(fs::read(path(&files, name)).unwrap(), CONTENT);
        }
        assert_eq!(*count.lock().unwrap(), 2 * CONTENT.len().div_ceil(7) as u64, "each file came once");
        let left = fs::read_dir(path(&files, "a.txt").parent().unwrap()).unwrap().count();
        assert_eq!(left, 2, "nothing half is left");
    }

    #[tokio::test]
    async fn a_file_that_was_changed_here_is_fetched_again_also_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let (handle, count) = home(CONTENT, CONTENT.len() as u64);
        let files = Files::new(dir.path());
        let fetch = async |files: &Files| files.fetch(&handle, CHANNEL, &[cited("a.txt")]).await.unwrap();
        fetch(&files).await;
        let once = *count.lock().unwrap();
        fetch(&files).await;
        fetch(&Files::new(dir.path())).await;
        assert_eq!(*count.lock().unwrap(), once, "it is there, and it is what it was");
        for files in [&files, &Files::new(dir.path())] {
            // Of the same length, as an agent may do, or a crash that left zeros.
            fs::write(path(files, "a.txt"), vec![0; CONTENT.len()]).unwrap();
            fetch(files).await;
            assert_eq!(fs::read(path(files, "a.txt")).unwrap(), CONTENT);
        }
    }

    #[tokio::test]
    async fn a_home_that_lies_about_a_file_fails_the_fetch_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::new(dir.path());
        let check = async |content: &'static [u8], file: Attachment| {
            let (handle, _) = home(content, file.size);
            let why = files.fetch(&handle, CHANNEL, std::slice::from_ref(&file)).await.unwrap_err();
            let folder = files.folder(CHANNEL).join(file.hash.to_string());
            assert_eq!(fs::read_dir(folder).map_or(0, Iterator::count), 0, "{why}");
            why
        };
        assert!(check(b"short", cited("a")).await.contains("length"));
        assert!(check(&[b'x'; 100], cited("a")).await.contains("length"));
        let other: &'static [u8] = &[b'x'; CONTENT.len()];
        assert!(check(other, cited("a")).await.contains("hash"));
        let huge = Attachment { size: ATTACHMENT_LEN_MAX + 1, ..cited("a") };
        assert!(check(CONTENT, huge).await.contains("over"), "not even asked for");
    }
}
