//! What this box's owner allows to the homes of other boxes: the resident's word is final on its own box.
//!
//! A home names a harness, a folder and a policy. Becoming a resident is the owner's consent, kept in
//! `consent.json`: which home, which harnesses, beneath which folders, and how much an agent may do unasked. This
//! node's own channels need no consent: their owner is this box's owner.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tieline_proto::entry::Policy;
use tieline_proto::id::{Handle, NodeId};

use crate::harness::Registry;
use crate::keys;

/// The file, in the data folder.
const FILE: &str = "consent.json";

/// Homes a box can be a resident of.
const HOMES_MAX: usize = 256;

/// Folders of one consent.
const FOLDERS_MAX: usize = 256;

/// Longest folder a home can name, in bytes: the longest path the system takes.
const FOLDER_LEN_MAX: usize = 4096;

/// Why the consent can't be read or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConsentError {
    /// The file can't be read or written.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The file is not what this program writes.
    #[error("{}: {error}; mend it, or delete it to withdraw all consent", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Why.
        error: serde_json::Error,
    },
    /// A folder to allow can't be used.
    #[error("can't allow the folder {}: {error}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A consent without a folder or without a harness allows nothing.
    #[error("a consent names at least one harness and one folder")]
    Empty,
    /// Too many homes or folders.
    #[error("a box consents to at most {HOMES_MAX} homes and {FOLDERS_MAX} folders each")]
    TooMany,
}

/// What one home is allowed.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// The home's device.
    pub home: NodeId,
    /// Harnesses it may use.
    pub harnesses: BTreeSet<Handle>,
    /// Folders it may use, and all beneath them. Absolute, without symbolic links.
    pub folders: Vec<PathBuf>,
    /// The most an agent of it may do unasked.
    pub ceiling: Policy,
}

/// All that this box's owner allows.
#[derive(Clone, Debug)]
pub struct Consent {
    local: NodeId,
    grants: Vec<Grant>,
}

/// What a turn gets.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Allowed {
    /// The folder: there, absolute, without symbolic links.
    pub cwd: PathBuf,
    /// The policy, capped.
    pub policy: Policy,
}

/// Why a turn is refused.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// Stable word.
    pub code: &'static str,
    /// Why.
    pub message: String,
    /// What to do about it, and where.
    pub hint: String,
}

impl Consent {
    /// Reads the consent from the data folder. `local` is this node.
    ///
    /// # Errors
    /// When the file is there and can't be read.
    pub fn load(data: &Path, local: NodeId) -> Result<Self, ConsentError> {
        Ok(Self { local, grants: read(data)? })
    }

    /// Allows a home what the grant says, instead of what it was allowed before, and saves that.
    ///
    /// # Errors
    /// When a folder is not there, or the file can't be written.
    pub fn grant(data: &Path, mut grant: Grant) -> Result<(), ConsentError> {
        if grant.harnesses.is_empty() || grant.folders.is_empty() {
            return Err(ConsentError::Empty);
        }
        for folder in &mut grant.folders {
            *folder = resolve(folder).map_err(|error| ConsentError::Folder { path: folder.clone(), error })?;
        }
        let mut grants = read(data)?;
        grants.retain(|known| known.home != grant.home);
        grants.push(grant);
        write(data, &grants)
    }

    /// Withdraws what a home was allowed, and saves that. False when it was allowed nothing.
    ///
    /// # Errors
    /// When the file can't be read or written.
    pub fn withdraw(data: &Path, home: &NodeId) -> Result<bool, ConsentError> {
        let mut grants = read(data)?;
        let before = grants.len();
        grants.retain(|known| known.home != *home);
        let changed = grants.len() != before;
        if changed {
            write(data, &grants)?;
        }
        Ok(changed)
    }

    /// What is allowed, home by home.
    #[must_use]
    pub fn grants(&self) -> &[Grant] {
        &self.grants
    }

    /// Judges one turn. Without a folder it gets the first allowed one, or `fallback` when the home is this node.
    ///
    /// # Errors
    /// When this box's owner does not allow it.
    pub fn check(
        &self,
        registry: &Registry,
        home: &NodeId,
        harness: &Handle,
        cwd: Option<&str>,
        policy: Policy,
        fallback: &Path,
    ) -> Result<Allowed, Refusal> {
        let grant = self.grants.iter().find(|grant| grant.home == *home);
        let grant = match grant {
            _ if *home == self.local => None,
            Some(grant) => Some(grant),
            None => return Err(no_consent(home)),
        };
        if let Some(grant) = grant
            && !grant.harnesses.contains(harness)
        {
            let list: Vec<String> = grant.harnesses.iter().map(ToString::to_string).collect();
            return Err(Refusal {
                code: "harness-refused",
                message: format!(
                    "the owner of this box does not allow the harness `{harness}`, only {}",
                    list.join(", ")
                ),
                hint: format!("on this box: tieline join LINK --resident --harness {harness} --cwd DIR"),
            });
        }
        if !registry.has(harness) {
            return Err(Refusal {
                code: "harness-unknown",
                message: format!("this box has no harness `{harness}`; it has {}", registry.names().join(", ")),
                hint: format!("on this box: tieline harness add {harness} -- COMMAND"),
            });
        }
        let cwd = folder(cwd, grant.map(|grant| grant.folders.as_slice()), fallback)?;
        let ceiling = grant.map_or(Policy::Full, |grant| grant.ceiling);
        Ok(Allowed { cwd, policy: policy.min(ceiling) })
    }
}

fn no_consent(home: &NodeId) -> Refusal {
    Refusal {
        code: "no-consent",
        message: format!("the owner of this box has not allowed the home {} to run turns here", home.short()),
        hint: "on this box: tieline join LINK --resident --harness NAME --cwd DIR".to_owned(),
    }
}

/// The folder of a turn. `allowed` is `None` when every folder is.
fn folder(asked: Option<&str>, allowed: Option<&[PathBuf]>, fallback: &Path) -> Result<PathBuf, Refusal> {
    let hint = || "choose another folder: tieline member configure CHANNEL HANDLE --cwd DIR".to_owned();
    let refuse = |code, message| Refusal { code, message, hint: hint() };
    let outside = || {
        let list: Vec<String> = allowed.into_iter().flatten().map(|folder| folder.display().to_string()).collect();
        // The same words whether it is there or not: a home must not be able to look for files with it.
        refuse("folder-refused", format!("the owner of this box allows only folders beneath {}", list.join(", ")))
    };
    let first = allowed.and_then(|folders| folders.first()).map_or(fallback, PathBuf::as_path);
    let asked = asked.map_or(first, Path::new);
    if asked.as_os_str().len() > FOLDER_LEN_MAX || !asked.is_absolute() {
        let message = format!("a folder is an absolute path of at most {FOLDER_LEN_MAX} bytes");
        return Err(refuse("folder-invalid", message));
    }
    let beneath = |path: &Path| allowed.is_none_or(|folders| folders.iter().any(|folder| path.starts_with(folder)));
    match resolve(asked) {
        // Compared as it was granted: a granted folder that has become a link elsewhere allows nothing.
        Ok(found) if beneath(&found) => Ok(found),
        Ok(_) => Err(outside()),
        Err(error) => {
            let plain = asked.components().all(|part| part != std::path::Component::ParentDir);
            if plain && beneath(asked) {
                Err(refuse("folder-missing", format!("the folder {} can't be used: {error}", asked.display())))
            } else {
                Err(outside())
            }
        }
    }
}

/// A folder without symbolic links.
fn resolve(folder: &Path) -> io::Result<PathBuf> {
    let found = fs::canonicalize(folder)?;
    if found.is_dir() { Ok(found) } else { Err(io::ErrorKind::NotADirectory.into()) }
}

fn read(data: &Path) -> Result<Vec<Grant>, ConsentError> {
    let path = data.join(FILE);
    match fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| ConsentError::Malformed { path, error }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(ConsentError::Io { path, error }),
    }
}

fn write(data: &Path, grants: &[Grant]) -> Result<(), ConsentError> {
    if grants.len() > HOMES_MAX || grants.iter().any(|grant| grant.folders.len() > FOLDERS_MAX) {
        return Err(ConsentError::TooMany);
    }
    let path = data.join(FILE);
    let json =
        serde_json::to_vec_pretty(grants).map_err(|error| ConsentError::Malformed { path: path.clone(), error })?;
    keys::write(&path, &json).map_err(|error| ConsentError::Io { path, error })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const LOCAL: NodeId = tieline_proto::id::DeviceId([1; 32]);
    const HOME: NodeId = tieline_proto::id::DeviceId([2; 32]);

    fn handle(name: &str) -> Handle {
        Handle::lexical(name, "harness name").expect("a name")
    }

    /// A box with folders `a`, `a/in` and `a-evil`, whose owner allows `a` to a home.
    struct Box {
        data: tempfile::TempDir,
        root: PathBuf,
    }

    impl Box {
        fn new(ceiling: Policy) -> Self {
            let data = tempfile::tempdir().expect("a folder");
            let root = fs::canonicalize(data.path()).expect("a path");
            for folder in ["a/in", "a-evil"] {
                fs::create_dir_all(root.join(folder)).expect("a folder");
            }
            let grant =
                Grant { home: HOME, harnesses: [handle("scripted")].into(), folders: vec![root.join("a")], ceiling };
            Consent::grant(&root, grant).expect("granted");
            Self { data, root }
        }

        fn path(&self, end: &str) -> String {
            format!("{}/{end}", self.root.display())
        }

        fn check(&self, home: NodeId, harness: &str, cwd: Option<&str>, policy: Policy) -> Result<Allowed, Refusal> {
            let consent = Consent::load(self.data.path(), LOCAL).expect("loaded");
            consent.check(&Registry::default(), &home, &handle(harness), cwd, policy, &self.root)
        }

        fn code(&self, cwd: &str) -> &'static str {
            self.check(HOME, "scripted", Some(cwd), Policy::Ask).map_or_else(|refusal| refusal.code, |_| "allowed")
        }
    }

    #[test]
    fn threat_c10_a_home_cannot_leave_the_allowed_folders() {
        let here = Box::new(Policy::Ask);
        symlink(here.root.join("a-evil"), here.root.join("a/link")).expect("a link");
        symlink("/", here.root.join("a/in/up")).expect("a link");
        for inside in ["a", "a/", "a/in", "a/in/..", "a/./in"] {
            assert_eq!(here.code(&here.path(inside)), "allowed", "{inside}");
        }
        for outside in ["a-evil", "a/../a-evil", "a/link", "a/in/up/etc", "a/in/../..", "a/no/../../a-evil", ""] {
            assert_eq!(here.code(&here.path(outside)), "folder-refused", "{outside}");
        }
        assert_eq!(here.code("/"), "folder-refused");
        assert_eq!(here.code("/no/such/folder"), "folder-refused");
        assert_eq!(here.code("a"), "folder-invalid");
        assert_eq!(here.code(""), "folder-invalid");
        assert_eq!(here.code(&format!("/{}", "x".repeat(5000))), "folder-invalid");
        assert_eq!(here.code(&here.path("a/missing")), "folder-missing");
        assert_eq!(here.code(&here.path("a/nul\0byte")), "folder-missing");
    }

    #[test]
    fn threat_c10_a_home_cannot_choose_a_harness_that_was_not_allowed() {
        let here = Box::new(Policy::Ask);
        let cwd = here.path("a");
        let refused = here.check(HOME, "codex", Some(&cwd), Policy::Ask).expect_err("not allowed");
        assert_eq!(refused.code, "harness-refused");
        let refused = here.check(tieline_proto::id::DeviceId([3; 32]), "scripted", Some(&cwd), Policy::Ask);
        assert_eq!(refused.expect_err("a stranger").code, "no-consent");
        let refused = here.check(LOCAL, "no-such", Some(&cwd), Policy::Ask).expect_err("unknown");
        assert_eq!(refused.code, "harness-unknown");
    }

    #[test]
    fn threat_c10_a_home_cannot_raise_the_ceiling() {
        let here = Box::new(Policy::Ask);
        let allowed = here.check(HOME, "scripted", None, Policy::Full).expect("capped, not refused");
        assert_eq!((allowed.policy, allowed.cwd), (Policy::Ask, here.root.join("a")));
        let allowed = here.check(HOME, "scripted", None, Policy::ReadOnly).expect("beneath the ceiling");
        assert_eq!(allowed.policy, Policy::ReadOnly);
    }

    #[test]
    fn the_boxs_own_channels_need_no_consent() {
        let here = Box::new(Policy::Ask);
        let allowed = here.check(LOCAL, "codex", Some(&here.path("a-evil")), Policy::Full).expect("own");
        assert_eq!(allowed.policy, Policy::Full);
        assert_eq!(here.check(LOCAL, "scripted", None, Policy::Ask).expect("own").cwd, here.root);
    }

    #[test]
    fn a_granted_folder_that_became_a_link_allows_nothing() {
        let here = Box::new(Policy::Ask);
        fs::rename(here.root.join("a"), here.root.join("was")).expect("moved");
        symlink(here.root.join("a-evil"), here.root.join("a")).expect("a link");
        assert_eq!(here.code(&here.path("a")), "folder-refused");
    }

    #[test]
    fn a_withdrawn_consent_is_gone_and_a_damaged_one_is_an_error() {
        let here = Box::new(Policy::Ask);
        assert!(Consent::withdraw(&here.root, &HOME).expect("withdrawn"));
        assert!(!Consent::withdraw(&here.root, &HOME).expect("nothing to withdraw"));
        assert_eq!(here.code(&here.path("a")), "no-consent");
        fs::write(here.root.join(FILE), "[{}]").expect("written");
        assert!(matches!(Consent::load(&here.root, LOCAL), Err(ConsentError::Malformed { .. })));
    }

    #[test]
    fn a_consent_names_folders_that_are_there() {
        let here = Box::new(Policy::Ask);
        let mut grant = Consent::load(&here.root, LOCAL).expect("loaded").grants()[0].clone();
        grant.folders = vec![here.root.join("missing")];
        assert!(matches!(Consent::grant(&here.root, grant.clone()), Err(ConsentError::Folder { .. })));
        grant.folders.clear();
        assert!(matches!(Consent::grant(&here.root, grant), Err(ConsentError::Empty)));
    }
}
