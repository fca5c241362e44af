//! The data folder before a node runs on it: its keys, and the org's chain.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use libp2p::identity::Keypair;
use rand_core::Rng;
use tieline_proto::crypto::keys::{DeviceKeys, RootKey};
use tieline_proto::crypto::link_key::LinkKey;
use tieline_proto::entry::Entry;
use tieline_proto::id::{NodeId, OrgId, Seq};
use tieline_proto::log::{self, Homes, Line, LogId, Verifier};
use tieline_proto::org::{Org, OrgError};

use super::open::{StartError, io, os_rng, unsound, wall_clock};
use crate::keys;
use crate::store::disk::{ensure_dir, sync_dir};
use crate::store::open::Repair;
use crate::store::{Command, Commit, Core, Index, Keep, Layout, OpenLog, OpenedLog, RealDisk, Report};

/// Holds an org's chain while it is written.
const FOUNDING: &str = "org.new";

/// Holds what a box has of the org that it joins, while that is written.
const JOINING_NEW: &str = "joining.new";

/// The same, whole: the box has joined.
const JOINING: &str = "joining";

/// What is set aside is named after this.
const BEFORE: &str = "before";

/// This device's keys, made when there are none.
///
/// # Errors
/// When the file cannot be used or written.
pub fn device_keys(data: &Path) -> Result<DeviceKeys, StartError> {
    let path = data.join("keys").join("device");
    if let Some(bytes) = keys::read(&path)? {
        let damaged = |error| unsound(&format!("{}: {error}; restore it from a backup", path.display()));
        return DeviceKeys::from_secret_bytes(&bytes).map_err(damaged);
    }
    let keys = DeviceKeys::generate(&mut os_rng()?);
    keys::write(&path, &keys.to_secret_bytes()).map_err(io("writing the device's key"))?;
    Ok(keys)
}

/// The transport's own key. It carries no authority.
pub(super) fn transport_key(data: &Path) -> Result<Keypair, StartError> {
    let path = data.join("keys").join("transport");
    if let Some(bytes) = keys::read(&path)? {
        let mut bytes = bytes.to_vec();
        return Keypair::ed25519_from_bytes(&mut bytes[..]).map_err(|error| unsound(&error));
    }
    let mut secret = [0; 32];
    os_rng()?.fill_bytes(&mut secret);
    keys::write(&path, &secret).map_err(io("writing the transport's key"))?;
    Keypair::ed25519_from_bytes(secret).map_err(|error| unsound(&error))
}

/// Refuses to start on a secret that others can read, also one that is not needed now.
pub(super) fn check_keys(data: &Path) -> Result<(), StartError> {
    let Ok(items) = std::fs::read_dir(data.join("keys")) else { return Ok(()) };
    for item in items {
        let path = item.map_err(io("reading the keys' folder"))?.path();
        if path.is_file() {
            keys::read(&path)?;
        }
    }
    Ok(())
}

pub(super) fn link_key_path(data: &Path) -> PathBuf {
    data.join("keys").join("link")
}

/// The org of a data folder, opened and folded.
#[derive(Debug)]
pub struct OpenedOrg {
    /// The fold, up to the damage when there is any.
    pub org: Org,
    /// The chain's log.
    pub log: OpenedLog,
}

impl OpenedOrg {
    /// Why nothing can be added to the chain, in words.
    pub fn broken(&self) -> Option<String> {
        self.log.broken.as_ref().map(|bad| format!("the org's chain is damaged: {bad}"))
    }

    /// What the box's owner should know of how the chain was found.
    pub fn note(&self) -> Option<String> {
        if let Some(broken) = self.broken() {
            let known = "devices and channels of later entries are not known, and none can be added";
            return Some(format!("{broken}; {known}: restore org/log from a backup"));
        }
        let repair = self.log.repair.as_ref()?;
        let Repair { after, bytes, why } = repair;
        Some(match self.log.keep {
            Keep::Home => {
                format!("the org's chain: {bytes} bytes behind entry {after} were never sealed and were cut ({why})")
            }
            Keep::Copy => {
                format!("the org's chain was damaged behind entry {after} ({why}): the rest is fetched from its home")
            }
        })
    }
}

/// The org of a data folder; `None` when it has none yet.
///
/// # Errors
/// When the chain cannot be read, or is not sound.
pub fn open_org(layout: &Layout, me: NodeId) -> Result<Option<OpenedOrg>, StartError> {
    finish_joining(layout)?;
    let path = layout.segment(LogId::Org(OrgId([0; 16])), Seq(1));
    // Only a folder with nothing in it has no org: whatever else is wrong must not be taken for that.
    if is_empty(&layout.log(LogId::Org(OrgId([0; 16]))))? {
        return Ok(None);
    }
    let chain = |why: &dyn std::fmt::Display| StartError::Chain { path: path.clone(), why: why.to_string() };
    let bytes = std::fs::read(&path).map_err(|error| chain(&error))?;
    let (log, home) = beginning(&bytes).map_err(|error| chain(&error))?;
    // Its founder writes it; everybody else keeps the founder's lines.
    let keep = if home == me { Keep::Home } else { Keep::Copy };
    let mut org: Option<Org> = None;
    let mut fault = None;
    let open = OpenLog { disk: &RealDisk, layout, log, keep, homes: Homes::One(home), from: None, known: None };
    let opened = open.open(&mut |entry: Entry, line: &[u8]| {
        let applied = match &mut org {
            None => Org::founded(line).map(|founded| org = Some(founded)),
            Some(org) => org.apply(&entry),
        };
        if let Err(error) = applied {
            fault.get_or_insert(error);
        }
    })?;
    if let Some(error) = fault {
        return Err(chain(&error));
    }
    let org = org.ok_or_else(|| chain(&"it has no entry"))?;
    Ok(Some(OpenedOrg { org, log: opened }))
}

/// Whether a folder has nothing in it, or does not exist.
fn is_empty(folder: &Path) -> Result<bool, StartError> {
    match std::fs::read_dir(folder) {
        Ok(mut items) => Ok(items.next().is_none()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(io(format!("reading {}", folder.display()))(error)),
    }
}

/// The log and the writer of a chain, from its first batch: which is checked before anything may be mended by it.
fn beginning(bytes: &[u8]) -> Result<(LogId, NodeId), OrgError> {
    let mut lines = log::line::split(bytes);
    let mut org = Org::founded(lines.next().unwrap_or_default())?;
    if let Line::Entry(second) = Line::parse(lines.next().unwrap_or_default())? {
        org.apply(&second)?;
    }
    let home = org.home().ok_or(OrgError::NotFounded)?;
    let log = LogId::Org(org.fingerprint());
    let mut verifier = Verifier::new(log, Homes::One(home));
    for line in log::line::split(bytes) {
        verifier.feed(line)?;
        if verifier.head().seq >= org.seq() {
            return Ok((log, home));
        }
    }
    Err(OrgError::NotFounded)
}

/// Founds an org on a data folder that has none.
///
/// A crash between any two steps leaves a folder on which it can be called again: the keys are written before the chain
/// that they sign, and taken up again; the chain appears whole or not at all. Nothing that is there is overwritten.
///
/// # Errors
/// When it cannot be written, or the folder has lost an org.
pub fn found(name: &str, layout: &Layout, keys: &DeviceKeys) -> Result<OpenedOrg, StartError> {
    let root_path = layout.root().join("keys").join("root");
    let link_path = link_key_path(layout.root());
    let (root, link) = (keys::read(&root_path)?, keys::read(&link_path)?);
    let is_new = is_empty(&layout.channels())? && (root.is_some() || link.is_none());
    if !is_new {
        let why = "there are keys or channels of an org, and the chain is gone".to_owned();
        return Err(StartError::Chain { path: layout.log(LogId::Org(OrgId([0; 16]))), why });
    }
    let mut rng = os_rng()?;
    let root = match root {
        Some(secret) => RootKey::from_secret_bytes(&secret).map_err(|error| unsound(&error))?,
        None => {
            let root = RootKey::generate(&mut rng);
            keys::write(&root_path, &root.to_secret_bytes()).map_err(io("writing the root key"))?;
            root
        }
    };
    if link.is_none() {
        let link = LinkKey::generate(1, &mut rng);
        keys::write(&link_path, &link.to_secret_bytes()).map_err(io("writing the link key"))?;
    }
    let founding = Org::found(name, name, &root, keys, wall_clock(), &mut rng).map_err(|error| unsound(&error))?;
    let log = LogId::Org(founding.org.fingerprint());
    let commit = Commit { token: 1, logs: vec![(log, founding.entries)], ..Commit::default() };
    let staging = Layout::new(&layout.root().join(FOUNDING));
    write_chain(&staging, keys, log, commit)?;
    put_chain(&staging, layout, log).map_err(io("putting the org's chain in its place"))?;
    open_org(layout, keys.device())?.ok_or_else(|| unsound(&"the org that was just founded cannot be read"))
}

/// Puts a chain that is whole on disk where it belongs.
fn put_chain(staging: &Layout, layout: &Layout, log: LogId) -> std::io::Result<()> {
    let to = layout.log(log);
    let folder = to.parent().unwrap_or(layout.root());
    ensure_dir(&RealDisk, folder)?;
    std::fs::rename(staging.log(log), &to)?;
    sync_dir(&RealDisk, folder)?;
    sync_dir(&RealDisk, layout.root())?;
    std::fs::remove_dir_all(staging.root())
}

/// Makes a data folder that of a device of the org that it was enrolled in; `before` is the org that it had.
///
/// Everything is written beside and synced before one rename decides: a crash before it leaves the folder as it was, and
/// after it the next start [goes on](finish_joining).
///
/// # Errors
/// When it cannot be written.
pub fn keep_joined(
    layout: &Layout,
    keys: &DeviceKeys,
    joined: &tieline_proto::pairing::Joined,
    before: Option<&Org>,
) -> Result<(), StartError> {
    let root = layout.root();
    let staging = Layout::new(&root.join(JOINING_NEW));
    let log = LogId::Org(joined.org.fingerprint());
    let commit = Commit { token: 1, lines: vec![(log, joined.chain.clone())], ..Commit::default() };
    write_chain(&staging, keys, log, commit)?;
    keys::write(&link_key_path(staging.root()), &joined.link_key.to_secret_bytes())
        .map_err(io("writing the link key"))?;
    let peer = libp2p::PeerId::from_bytes(&joined.peer).ok();
    let met = super::book::Met { peer: peer.map(|peer| peer.to_string()), addrs: joined.addrs.clone() };
    let book = serde_json::to_vec_pretty(&BTreeMap::from([(joined.node, met)])).unwrap_or_default();
    keys::write(&staging.root().join(super::book::BOOK), &book).map_err(io("writing the peer book"))?;
    let before = before.unwrap_or(&joined.org).fingerprint().short();
    keys::write(&staging.root().join(BEFORE), before.as_bytes()).map_err(io("writing what was before"))?;
    let decide = || {
        sync_dir(&RealDisk, &staging.root().join("org"))?;
        sync_dir(&RealDisk, staging.root())?;
        std::fs::rename(staging.root(), root.join(JOINING))?;
        sync_dir(&RealDisk, root)
    };
    decide().map_err(io("keeping the org that this box has joined"))?;
    finish_joining(layout)
}

/// Puts what a joined box has in its place. Every step can be the first one after a crash.
///
/// # Errors
/// When it cannot be written.
pub fn finish_joining(layout: &Layout) -> Result<(), StartError> {
    let (root, staged) = (layout.root(), layout.root().join(JOINING));
    let move_all = || {
        if !staged.try_exists()? {
            return Ok(());
        }
        let suffix = std::fs::read_to_string(staged.join(BEFORE)).unwrap_or_else(|_| "joining".to_owned());
        // Nothing of the new org is in these before this node runs in it.
        for name in ["channels", "index", "keys/root"] {
            set_aside(root, name, &suffix)?;
        }
        ensure_dir(&RealDisk, &root.join("keys"))?;
        // The chain comes last: with it the folder is that of the new org.
        for name in [super::book::BOOK, "keys/link", "org"] {
            if staged.join(name).try_exists()? {
                set_aside(root, name, &suffix)?;
                std::fs::rename(staged.join(name), root.join(name))?;
            }
        }
        sync_dir(&RealDisk, &root.join("keys"))?;
        sync_dir(&RealDisk, root)?;
        std::fs::remove_dir_all(&staged)
    };
    move_all().map_err(io("keeping the org that this box has joined"))
}

/// Moves something out of the way under a name that is free. Nothing is deleted.
fn set_aside(root: &Path, name: &str, suffix: &str) -> std::io::Result<()> {
    let from = root.join(name);
    if !from.try_exists()? {
        return Ok(());
    }
    let mut to = root.join(format!("{name}.before-{suffix}"));
    let mut n = 2;
    while to.try_exists()? {
        to = root.join(format!("{name}.before-{suffix}-{n}"));
        n += 1;
    }
    std::fs::rename(from, to)
}

/// Takes over the link key of an org that this box is in already.
///
/// # Errors
/// When it cannot be read or written.
pub fn keep_link_key(layout: &Layout, link: &LinkKey) -> Result<(), StartError> {
    let path = link_key_path(layout.root());
    let secret = link.to_secret_bytes();
    if keys::read(&path)?.is_some_and(|known| known.as_slice() == secret.as_slice()) {
        return Ok(());
    }
    set_aside(layout.root(), "keys/link", "joining").map_err(io("setting the link key aside"))?;
    keys::write(&path, &secret).map_err(io("writing the link key"))
}

/// Writes a chain's first lines into a data folder that has none; what an earlier try left there is nobody's.
fn write_chain(layout: &Layout, keys: &DeviceKeys, log: LogId, commit: Commit) -> Result<(), StartError> {
    match std::fs::remove_dir_all(layout.root()) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(io(format!("removing {}", layout.root().display()))(error));
        }
        _ => {}
    }
    let keep = if commit.lines.is_empty() { Keep::Home } else { Keep::Copy };
    let open = OpenLog { disk: &RealDisk, layout, log, keep, homes: Homes::trust_first(), from: None, known: None };
    let opened = open.open(&mut |_, _| {})?;
    let mut core = Core::new(Arc::new(RealDisk), layout.clone(), keys.signing().clone(), Index::memory());
    core.submit(Command::Add(Box::new(opened)));
    core.submit(Command::Commit(commit));
    let mut failed = None;
    let mut report = |report| {
        if let Report::Failed { reason, .. } = report {
            failed = Some(reason);
        }
    };
    while core.step(&mut report) {}
    core.close(&mut report);
    failed.map_or(Ok(()), |reason| Err(unsound(&format!("the org's chain cannot be written: {reason}"))))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rand_chacha::ChaCha20Rng;
    use rand_core::SeedableRng;

    use super::*;

    fn device() -> DeviceKeys {
        DeviceKeys::generate(&mut ChaCha20Rng::seed_from_u64(7))
    }

    fn chain(layout: &Layout) -> PathBuf {
        layout.segment(LogId::Org(OrgId([0; 16])), Seq(1))
    }

    /// All private keys of the folder.
    fn secrets(layout: &Layout) -> Vec<Option<Vec<u8>>> {
        ["root", "link"].map(|name| fs::read(layout.root().join("keys").join(name)).ok()).to_vec()
    }

    #[test]
    fn the_founder_writes_the_chain_it_founded() {
        let dir = tempfile::tempdir().expect("a folder");
        let layout = Layout::new(dir.path());
        let keys = device();
        assert!(open_org(&layout, keys.device()).expect("no error").is_none());
        let founded = found("box", &layout, &keys).expect("founded");
        assert_eq!(founded.log.keep, Keep::Home);
        assert!(founded.note().is_none());
        let other = DeviceKeys::generate(&mut ChaCha20Rng::seed_from_u64(8));
        let seen = open_org(&layout, other.device()).expect("opened").expect("there");
        assert_eq!((seen.log.keep, seen.org), (Keep::Copy, founded.org));
    }

    #[test]
    fn a_chain_that_cannot_be_read_is_not_taken_for_none() {
        let dir = tempfile::tempdir().expect("a folder");
        let layout = Layout::new(dir.path());
        let keys = device();
        found("box", &layout, &keys).expect("founded");
        let (before, sound) = (secrets(&layout), fs::read(chain(&layout)).expect("read"));
        let refuses = |what: &str| {
            assert!(open_org(&layout, keys.device()).is_err(), "{what}: read");
            assert_eq!(secrets(&layout), before, "{what}: the keys are touched");
        };
        fs::remove_file(chain(&layout)).expect("removed");
        fs::create_dir(chain(&layout)).expect("made");
        refuses("a folder in its place");
        fs::remove_dir(chain(&layout)).expect("removed");
        fs::write(chain(&layout), vec![b'\n'; 4096]).expect("written");
        refuses("a blank file");
        for at in [10, sound.len() / 2, sound.len() - 10] {
            let mut damaged = sound.clone();
            damaged[at] ^= 1;
            fs::write(chain(&layout), &damaged).expect("written");
            refuses("a damaged first batch");
            assert_eq!(fs::read(chain(&layout)).expect("read"), damaged, "it is left as it is");
        }
        fs::rename(chain(&layout), layout.log(LogId::Org(OrgId([0; 16]))).join("elsewhere")).expect("renamed");
        refuses("a chain without its beginning");
        fs::write(chain(&layout), sound).expect("written");
        assert!(open_org(&layout, keys.device()).expect("sound again").is_some());
    }

    #[test]
    fn founding_goes_on_after_a_crash_at_any_step() {
        let dir = tempfile::tempdir().expect("a folder");
        let layout = Layout::new(dir.path());
        let keys = device();
        found("box", &layout, &keys).expect("founded");
        let whole = secrets(&layout);
        let org = layout.root().join("org");
        // Before the chain was in its place, and with a half-written one on the way.
        for left in ["nothing", "the folder", "half a chain"] {
            fs::remove_dir_all(&org).expect("removed");
            match left {
                "the folder" => fs::create_dir_all(org.join("log")).expect("made"),
                "half a chain" => {
                    let half = Layout::new(&layout.root().join(FOUNDING));
                    fs::create_dir_all(half.log(LogId::Org(OrgId([0; 16])))).expect("made");
                    fs::write(chain(&half), "{\"seq\":1,").expect("written");
                }
                _ => {}
            }
            assert!(open_org(&layout, keys.device()).expect("no error").is_none());
            found("box", &layout, &keys).expect("founded again");
            assert_eq!(secrets(&layout), whole, "{left}: the keys are taken up again");
        }
        // Before the link key.
        fs::remove_dir_all(&org).expect("removed");
        fs::remove_file(link_key_path(layout.root())).expect("removed");
        found("box", &layout, &keys).expect("founded again");
        assert_eq!(secrets(&layout)[0], whole[0]);
    }

    /// What a device is given that a founder has just enrolled.
    fn joined(host: &Layout, host_keys: &DeviceKeys, device: &DeviceKeys) -> tieline_proto::pairing::Joined {
        let founded = found("host", host, host_keys).expect("founded");
        let (binding, held) = tieline_proto::crypto::cert::Binding::of(device, founded.org.fingerprint());
        let role = tieline_proto::entry::Role::Member;
        let enrolment = founded.org.enrol(binding, held, "lab", role, host_keys.signing()).expect("may");
        let entry = founded.org.entry(enrolment.body.expect("new"), 1);
        let log = LogId::Org(founded.org.fingerprint());
        let mut core = Core::new(Arc::new(RealDisk), host.clone(), host_keys.signing().clone(), Index::memory());
        core.submit(Command::Add(Box::new(founded.log)));
        core.submit(Command::Commit(Commit { token: 2, logs: vec![(log, vec![entry])], ..Commit::default() }));
        core.close(&mut |report| assert!(matches!(report, Report::Durable { .. }), "{report:?}"));
        let chain = fs::read(chain(host)).expect("read");
        let org = Org::read(&chain).expect("sound");
        let link_key = LinkKey::generate(1, &mut ChaCha20Rng::seed_from_u64(9));
        tieline_proto::pairing::Joined {
            org,
            chain,
            certificate: enrolment.certificate,
            name: "lab".to_owned(),
            role,
            link_key,
            node: host_keys.device(),
            peer: Vec::new(),
            addrs: Vec::new(),
        }
    }

    #[test]
    fn joining_goes_on_after_a_crash_at_any_step() {
        let keys = device();
        let host_dir = tempfile::tempdir().expect("a folder");
        let host_keys = DeviceKeys::generate(&mut ChaCha20Rng::seed_from_u64(8));
        let joined = joined(&Layout::new(host_dir.path()), &host_keys, &keys);
        // How many of the moves were made before the crash.
        for made in 0..=6 {
            let dir = tempfile::tempdir().expect("a folder");
            let layout = Layout::new(dir.path());
            let before = found("box", &layout, &keys).expect("founded").org;
            let old_link = fs::read(link_key_path(dir.path())).expect("read");
            keep_joined(&layout, &keys, &joined, Some(&before)).expect("kept");
            // Back to what a crash leaves: the last moves undone, those that were made done.
            let staged = Layout::new(&dir.path().join(JOINING));
            fs::create_dir_all(staged.root().join("keys")).expect("made");
            fs::write(staged.root().join(BEFORE), before.fingerprint().short()).expect("written");
            let aside = |name: &str| dir.path().join(format!("{name}.before-{}", before.fingerprint().short()));
            for (name, undone) in [("org", made < 6), ("keys/link", made < 4)] {
                if undone {
                    fs::rename(dir.path().join(name), staged.root().join(name)).expect("undone");
                }
            }
            for (name, undone) in [("org", made < 5), ("keys/link", made < 3), ("keys/root", made < 1)] {
                if undone {
                    fs::rename(aside(name), dir.path().join(name)).expect("undone");
                }
            }
            let opened = open_org(&layout, keys.device()).expect("opened").expect("there");
            assert_eq!((opened.org, opened.log.keep), (joined.org.clone(), Keep::Copy), "after {made} moves");
            let link = fs::read(link_key_path(dir.path())).expect("read");
            assert_eq!(link, joined.link_key.to_secret_bytes().to_vec());
            assert_eq!(fs::read(aside("keys/link")).expect("set aside"), old_link, "nothing is lost");
            assert!(aside("keys/root").exists() && aside("org").exists() && !staged.root().exists());
        }
    }

    #[test]
    fn a_crash_before_joining_is_decided_leaves_the_folder_as_it_was() {
        let dir = tempfile::tempdir().expect("a folder");
        let layout = Layout::new(dir.path());
        let keys = device();
        let before = found("box", &layout, &keys).expect("founded").org;
        let secret = secrets(&layout);
        let staging = Layout::new(&dir.path().join(JOINING_NEW));
        fs::create_dir_all(staging.log(LogId::Org(OrgId([0; 16])))).expect("made");
        fs::create_dir_all(staging.root().join("keys")).expect("made");
        fs::write(link_key_path(staging.root()), "of another org").expect("written");
        assert_eq!(open_org(&layout, keys.device()).expect("opened").expect("there").org, before);
        assert_eq!(secrets(&layout), secret);
    }

    #[test]
    fn a_folder_that_lost_its_org_founds_none() {
        let dir = tempfile::tempdir().expect("a folder");
        let layout = Layout::new(dir.path());
        let keys = device();
        found("box", &layout, &keys).expect("founded");
        let before = secrets(&layout);
        fs::remove_dir_all(layout.root().join("org")).expect("removed");
        fs::create_dir_all(layout.channels().join("one")).expect("made");
        found("box", &layout, &keys).expect_err("it has channels of another org");
        fs::remove_dir_all(layout.channels()).expect("removed");
        fs::remove_file(layout.root().join("keys").join("root")).expect("removed");
        found("box", &layout, &keys).expect_err("a link key that it did not make");
        assert_eq!(secrets(&layout), [None, before[1].clone()]);
    }
}
