//! A disk in memory that loses, tears and refuses as real ones do, by seed.
//!
//! What was written is seen at once by every reader, as through the page cache, and is durable only once synced. A
//! crash keeps what was synced and any part of the rest: of each write any of its sectors, of names any first part of
//! a folder's changes. Space between sectors that did reach the disk reads as zeros.

use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

use super::disk::{Disk, DiskFile, Item, Open};

/// Bytes that reach the disk together or not at all.
const SECTOR: usize = 512;

/// The disk.
#[derive(Clone, Default)]
pub struct FaultDisk(Arc<Mutex<World>>);

#[derive(Default)]
struct World {
    inodes: Vec<Inode>,
    folders: BTreeMap<PathBuf, Folder>,
    /// Bytes that all files together may have.
    capacity: Option<usize>,
    faults: Vec<Fault>,
    syncs: u64,
}

#[derive(Default)]
struct Inode {
    now: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<Change>,
}

enum Change {
    Write { at: usize, bytes: Vec<u8> },
    SetLen(usize),
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Node {
    File(usize),
    Dir,
}

#[derive(Default)]
struct Folder {
    now: BTreeMap<String, Node>,
    durable: BTreeMap<String, Node>,
    /// Each change names everything it sets; `None` removes.
    pending: Vec<Vec<(String, Option<Node>)>>,
}

/// Which call fails.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Call {
    /// Writing to a file.
    Write,
    /// Syncing a file or folder. What was to be synced is lost unless it is written again.
    Sync,
    /// Making a file.
    Create,
}

struct Fault {
    call: Call,
    path: String,
    kind: io::ErrorKind,
    /// Calls that still succeed before.
    after: u64,
    /// Calls that fail then.
    times: u64,
}

impl FaultDisk {
    /// An empty disk that holds one folder.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        let disk = Self::default();
        disk.lock().folders.insert(root.to_owned(), Folder::default());
        disk
    }

    /// Loses power and comes back: the disk that the next start sees. Files that are open here stay with the old one.
    #[must_use]
    pub fn crash(&self, seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let world = self.lock();
        let mut after = World { capacity: world.capacity, ..World::default() };
        for inode in &world.inodes {
            let bytes = inode.after_crash(&mut rng);
            after.inodes.push(Inode { now: bytes.clone(), durable: bytes, pending: Vec::new() });
        }
        for (path, folder) in &world.folders {
            let kept = match folder.pending.len() {
                0 => 0,
                some => rng.next_u64() as usize % (some + 1),
            };
            let mut names = folder.durable.clone();
            folder.pending.iter().take(kept).for_each(|change| apply_names(&mut names, change));
            after.folders.insert(path.clone(), Folder { now: names.clone(), durable: names, pending: Vec::new() });
        }
        // A folder whose own name was lost is gone with all it held.
        let gone = |path: &PathBuf| {
            path.ancestors().filter(|part| world.folders.contains_key(*part)).any(|part| {
                let parent = part.parent().and_then(|parent| after.folders.get(parent));
                parent.is_some_and(|parent| !parent.now.contains_key(&name_of(part)))
            })
        };
        let lost: Vec<PathBuf> = after.folders.keys().filter(|path| gone(path)).cloned().collect();
        lost.iter().for_each(|path| drop(after.folders.remove(path)));
        Self(Arc::new(Mutex::new(after)))
    }

    /// Stops and starts again without a power loss: everything written is there.
    #[must_use]
    pub fn restart(&self) -> Self {
        let world = self.lock();
        let mut after = World { capacity: world.capacity, ..World::default() };
        after.inodes = world
            .inodes
            .iter()
            .map(|inode| Inode { now: inode.now.clone(), durable: inode.now.clone(), pending: Vec::new() })
            .collect();
        for (path, folder) in &world.folders {
            let names = folder.now.clone();
            after.folders.insert(path.clone(), Folder { now: names.clone(), durable: names, pending: Vec::new() });
        }
        Self(Arc::new(Mutex::new(after)))
    }

    /// Makes calls on paths that contain `path` fail: after `after` more of them, `times` of them.
    pub fn fail(&self, call: Call, path: &str, kind: io::ErrorKind, after: u64, times: u64) {
        self.lock().faults.push(Fault { call, path: path.to_owned(), kind, after, times });
    }

    /// No call fails from now on.
    pub fn heal(&self) {
        self.lock().faults.clear();
    }

    /// Limits or frees space: bytes that all files together may have.
    pub fn set_capacity(&self, bytes: Option<usize>) {
        self.lock().capacity = bytes;
    }

    /// Syncs of files and folders so far that succeeded.
    #[must_use]
    pub fn syncs(&self) -> u64 {
        self.lock().syncs
    }

    /// What a crash leaves of a file in the worst case: its synced bytes, or `None` when its name is not durable.
    #[must_use]
    pub fn durable(&self, path: &Path) -> Option<Vec<u8>> {
        let world = self.lock();
        let folder = world.folders.get(path.parent()?)?;
        let Node::File(inode) = folder.durable.get(&name_of(path))? else { return None };
        let named = path.ancestors().skip(1).all(|part| match part.parent().and_then(|up| world.folders.get(up)) {
            Some(up) => up.durable.contains_key(&name_of(part)),
            None => true,
        });
        if named { world.inodes.get(*inode).map(|inode| inode.durable.clone()) } else { None }
    }

    /// Overwrites bytes of a file as bit rot would: durably, and unseen by the program.
    pub fn rot(&self, path: &Path, at: usize, bytes: &[u8]) {
        let mut world = self.lock();
        let Ok(inode) = world.find(path) else { return };
        if let Some(inode) = world.inodes.get_mut(inode) {
            put(&mut inode.now, at, bytes);
            put(&mut inode.durable, at, bytes);
        }
    }

    fn lock(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn file(&self, inode: usize, path: &Path) -> Arc<dyn DiskFile> {
        Arc::new(FaultFile { disk: self.clone(), handle: Handle::File(inode), path: path.to_owned() })
    }
}

impl Debug for FaultDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultDisk").finish_non_exhaustive()
    }
}

impl Inode {
    fn after_crash(&self, rng: &mut ChaCha8Rng) -> Vec<u8> {
        let mut bytes = self.durable.clone();
        // Nothing, everything, a first part, or any sectors.
        let mode = rng.next_u32() % 4;
        let first_part = match self.pending.len() {
            0 => 0,
            some => rng.next_u64() as usize % some,
        };
        for (index, change) in self.pending.iter().enumerate() {
            let torn = mode == 3 || (mode == 2 && index == first_part);
            let kept = mode == 1 || (mode == 2 && index < first_part);
            match change {
                Change::Write { at, bytes: new } if torn => {
                    let mut place = 0;
                    while place < new.len() {
                        let end = (place + SECTOR - (at + place) % SECTOR).min(new.len());
                        if rng.next_u32().is_multiple_of(2) {
                            put(&mut bytes, at + place, new.get(place..end).unwrap_or_default());
                        }
                        place = end;
                    }
                }
                Change::SetLen(_) if torn && rng.next_u32().is_multiple_of(2) => {}
                change if kept || torn => change.apply(&mut bytes),
                _ => {}
            }
        }
        bytes
    }
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Write { at, bytes: new } => put(bytes, *at, new),
            Self::SetLen(len) => bytes.resize(*len, 0),
        }
    }
}

fn put(bytes: &mut Vec<u8>, at: usize, new: &[u8]) {
    if bytes.len() < at + new.len() {
        bytes.resize(at + new.len(), 0);
    }
    if let Some(place) = bytes.get_mut(at..at + new.len()) {
        place.copy_from_slice(new);
    }
}

fn apply_names(names: &mut BTreeMap<String, Node>, change: &[(String, Option<Node>)]) {
    for (name, node) in change {
        match node {
            Some(node) => drop(names.insert(name.clone(), *node)),
            None => drop(names.remove(name)),
        }
    }
}

fn name_of(path: &Path) -> String {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned()
}

fn missing(path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("no such file: {}", path.display()))
}

impl World {
    fn parent(&mut self, path: &Path) -> io::Result<&mut Folder> {
        path.parent().and_then(|parent| self.folders.get_mut(parent)).ok_or_else(|| missing(path))
    }

    fn find(&self, path: &Path) -> io::Result<usize> {
        let folder = path.parent().and_then(|parent| self.folders.get(parent)).ok_or_else(|| missing(path))?;
        match folder.now.get(&name_of(path)) {
            Some(Node::File(inode)) => Ok(*inode),
            Some(Node::Dir) => Err(io::ErrorKind::IsADirectory.into()),
            None => Err(missing(path)),
        }
    }

    fn rename_in(&mut self, path: &Path, change: Vec<(String, Option<Node>)>) -> io::Result<()> {
        let folder = self.parent(path)?;
        apply_names(&mut folder.now, &change);
        folder.pending.push(change);
        Ok(())
    }

    fn fault(&mut self, call: Call, path: &Path) -> io::Result<()> {
        let path = path.to_string_lossy();
        for fault in self.faults.iter_mut().filter(|fault| fault.call == call && path.contains(&fault.path)) {
            if fault.after > 0 {
                fault.after -= 1;
            } else if fault.times > 0 {
                fault.times -= 1;
                return Err(fault.kind.into());
            }
        }
        Ok(())
    }

    fn used(&self) -> usize {
        let live = self.folders.values().flat_map(|folder| folder.now.values());
        let files = live.filter_map(|node| if let Node::File(inode) = node { self.inodes.get(*inode) } else { None });
        files.map(|inode| inode.now.len()).sum()
    }
}

impl Disk for FaultDisk {
    fn open(&self, path: &Path, how: Open) -> io::Result<Arc<dyn DiskFile>> {
        let mut world = self.lock();
        if how == Open::New {
            world.fault(Call::Create, path)?;
            if world.parent(path)?.now.contains_key(&name_of(path)) {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            let inode = world.inodes.len();
            world.inodes.push(Inode::default());
            world.rename_in(path, vec![(name_of(path), Some(Node::File(inode)))])?;
        }
        let inode = world.find(path)?;
        drop(world);
        Ok(self.file(inode, path))
    }

    fn open_dir(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        if self.lock().folders.contains_key(path) {
            Ok(Arc::new(FaultFile { disk: self.clone(), handle: Handle::Dir, path: path.to_owned() }))
        } else {
            Err(missing(path))
        }
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let mut world = self.lock();
        if world.folders.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        world.rename_in(path, vec![(name_of(path), Some(Node::Dir))])?;
        world.folders.insert(path.to_owned(), Folder::default());
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut world = self.lock();
        let inode = world.find(from)?;
        if from.parent() != to.parent() {
            // Two folders: either may be durable without the other, and the new name comes first.
            world.rename_in(to, vec![(name_of(to), Some(Node::File(inode)))])?;
            return world.rename_in(from, vec![(name_of(from), None)]);
        }
        world.rename_in(to, vec![(name_of(to), Some(Node::File(inode))), (name_of(from), None)])
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut world = self.lock();
        world.find(path)?;
        world.rename_in(path, vec![(name_of(path), None)])
    }

    fn list(&self, path: &Path) -> io::Result<Vec<Item>> {
        let world = self.lock();
        let folder = world.folders.get(path).ok_or_else(|| missing(path))?;
        Ok(folder.now.iter().map(|(name, node)| Item { name: name.clone(), is_dir: *node == Node::Dir }).collect())
    }

    fn exists(&self, path: &Path) -> bool {
        let world = self.lock();
        world.folders.contains_key(path) || world.find(path).is_ok()
    }
}

enum Handle {
    File(usize),
    Dir,
}

struct FaultFile {
    disk: FaultDisk,
    handle: Handle,
    path: PathBuf,
}

impl Debug for FaultFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FaultFile({})", self.path.display())
    }
}

impl FaultFile {
    fn inode<T>(&self, act: impl FnOnce(&mut Inode) -> T) -> io::Result<T> {
        let Handle::File(inode) = self.handle else { return Err(io::ErrorKind::IsADirectory.into()) };
        self.disk.lock().inodes.get_mut(inode).map(act).ok_or_else(|| missing(&self.path))
    }

    fn write(&self, bytes: &[u8], at: usize) -> io::Result<()> {
        self.inode(|inode| {
            put(&mut inode.now, at, bytes);
            inode.pending.push(Change::Write { at, bytes: bytes.to_vec() });
        })
    }
}

impl DiskFile for FaultFile {
    fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<usize> {
        let at = usize::try_from(at).map_err(io::Error::other)?;
        self.inode(|inode| {
            let rest = inode.now.get(at..).unwrap_or_default();
            let len = rest.len().min(buf.len());
            buf.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
            len
        })
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let at = usize::try_from(at).map_err(io::Error::other)?;
        let (room, fault) = {
            let mut world = self.disk.lock();
            let fault = world.fault(Call::Write, &self.path);
            let room = world.capacity.map(|capacity| capacity.saturating_sub(world.used()));
            (room, fault)
        };
        if let Err(error) = fault {
            // A write that fails may have written a part.
            self.write(bytes.get(..bytes.len() / 2).unwrap_or_default(), at)?;
            return Err(error);
        }
        let len = self.inode(|inode| inode.now.len())?;
        let grows = (at + bytes.len()).saturating_sub(len);
        match room {
            Some(room) if grows > room => {
                self.write(bytes.get(..bytes.len() - (grows - room)).unwrap_or_default(), at)?;
                Err(io::ErrorKind::StorageFull.into())
            }
            _ => self.write(bytes, at),
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let len = usize::try_from(len).map_err(io::Error::other)?;
        self.inode(|inode| {
            inode.now.resize(len, 0);
            inode.pending.push(Change::SetLen(len));
        })
    }

    fn len(&self) -> io::Result<u64> {
        self.inode(|inode| inode.now.len() as u64)
    }

    fn sync(&self) -> io::Result<()> {
        let mut world = self.disk.lock();
        let fault = world.fault(Call::Sync, &self.path);
        match self.handle {
            Handle::File(inode) => {
                let inode = world.inodes.get_mut(inode).ok_or_else(|| missing(&self.path))?;
                // As on Linux: after a failed sync the pages count as clean, though they are not on disk.
                let pending = std::mem::take(&mut inode.pending);
                fault?;
                pending.iter().for_each(|change| change.apply(&mut inode.durable));
            }
            Handle::Dir => {
                let folder = world.folders.get_mut(&self.path).ok_or_else(|| missing(&self.path))?;
                let pending = std::mem::take(&mut folder.pending);
                fault?;
                pending.iter().for_each(|change| apply_names(&mut folder.durable, change));
            }
        }
        world.syncs += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> (FaultDisk, PathBuf) {
        let root = PathBuf::from("/data");
        (FaultDisk::new(&root), root.join("file"))
    }

    #[test]
    fn only_what_was_synced_is_sure_to_survive() {
        let (disk, path) = disk();
        let file = disk.open(&path, Open::New).unwrap();
        file.write_at(&[1; 2048], 0).unwrap();
        file.sync().unwrap();
        assert_eq!(disk.durable(&path), None);
        disk.open_dir(path.parent().unwrap()).unwrap().sync().unwrap();
        file.write_at(&[2; 2048], 0).unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let after = disk.crash(seed);
            let mut bytes = [0; 2048];
            let read = after.open(&path, Open::Read).unwrap().read_at(&mut bytes, 0).unwrap();
            assert_eq!(read, 2048);
            assert!(bytes.iter().all(|byte| *byte == 1 || *byte == 2));
            seen.insert(bytes.to_vec());
        }
        assert_eq!(seen.len(), 16, "every mix of four sectors");
    }

    #[test]
    fn a_failed_sync_loses_what_it_was_to_sync() {
        let (disk, path) = disk();
        let file = disk.open(&path, Open::New).unwrap();
        disk.open_dir(path.parent().unwrap()).unwrap().sync().unwrap();
        file.write_at(b"x", 0).unwrap();
        disk.fail(Call::Sync, "file", io::ErrorKind::Other, 0, 1);
        assert!(file.sync().is_err());
        assert!(file.sync().is_ok());
        assert_eq!(disk.durable(&path), Some(Vec::new()));
    }

    #[test]
    fn a_full_disk_takes_what_fits() {
        let (disk, path) = disk();
        disk.set_capacity(Some(10));
        let file = disk.open(&path, Open::New).unwrap();
        assert_eq!(file.write_at(&[1; 12], 0).unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(file.len().unwrap(), 10);
        assert!(file.write_at(&[2; 10], 0).is_ok());
    }

    #[test]
    fn unsynced_names_may_vanish_with_their_folder() {
        let (disk, path) = disk();
        let folder = path.with_file_name("folder");
        disk.create_dir(&folder).unwrap();
        let _ = disk.open(&folder.join("x"), Open::New).unwrap();
        disk.open_dir(&folder).unwrap().sync().unwrap();
        let alive = (0..50).filter(|seed| disk.crash(*seed).exists(&folder.join("x"))).count();
        assert!((1..50).contains(&alive), "{alive}");
    }
}
