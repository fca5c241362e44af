//! What a data folder can do without a running node: found an org, show it, be enrolled in another one.

use std::path::Path;
use std::sync::Arc;

use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng;
use tieline_proto::api::{ApiError, Code, PairStep, Residency};
use tieline_proto::crypto::keys::DeviceKeys;
use tieline_proto::entry::Policy;
use tieline_proto::id::NodeId;
use tieline_proto::org::Org;
use tieline_proto::pairing::{Joined, PairLink};
use tieline_proto::view;

use super::open;
use crate::config::Config;
use crate::consent::{Consent, Grant};
use crate::data_dir::DataDir;
use crate::net::pair::{self, JoinConfig, JoinError};
use crate::store::Layout;

/// The org of a data folder, founded if there is none.
///
/// # Errors
/// When a node holds the folder, or it cannot be read or written.
pub fn org_show(config: &Config) -> Result<view::Org, ApiError> {
    let _held = DataDir::open(&config.data).map_err(|error| super::up::explain(&error.into()))?;
    finish_joining(&config.data)
        .map_err(|error| ApiError::new(Code::Internal, format!("the enrolment can't be finished: {error}")))?;
    let layout = Layout::new(&config.data);
    let keys = open::device_keys(&config.data).map_err(|error| super::up::explain(&error))?;
    let opened = match open::open_org(&layout, keys.device()).map_err(|error| super::up::explain(&error))? {
        Some(opened) => opened,
        None => open::found(config, &layout, &keys).map_err(|error| super::up::explain(&error))?,
    };
    let org = opened.org;
    let role = org.device(&keys.device()).map(|device| device.role);
    let role = role.ok_or_else(|| ApiError::new(Code::Internal, "this device is not in the org of its own folder"))?;
    Ok(view::Org { fingerprint: org.fingerprint(), name: org.name().to_owned(), role })
}

/// Enrols the device of a data folder that no node holds. `show` is told each step but the last.
///
/// # Errors
/// When the folder cannot be used. A refusal by the other side is the last step, not an error.
pub async fn join(
    config: &Config,
    link: &str,
    name: Option<String>,
    residency: Option<Residency>,
    show: impl FnMut(PairStep) + Send,
) -> Result<PairStep, ApiError> {
    let _held = DataDir::open(&config.data).map_err(|error| super::up::explain(&error.into()))?;
    finish_joining(&config.data)
        .map_err(|error| ApiError::new(Code::Internal, format!("the enrolment can't be finished: {error}")))?;
    let layout = Layout::new(&config.data);
    let keys = Arc::new(open::device_keys(&config.data).map_err(|error| super::up::explain(&error))?);
    let opened = open::open_org(&layout, keys.device()).map_err(|error| super::up::explain(&error))?;
    let link = check_link(link, opened.as_ref().map(|opened| &opened.org), keys.device())?;
    let name = name.unwrap_or_else(|| config.name.clone());
    let joined = match enrol(config, Arc::clone(&keys), link, name, show).await {
        Ok(joined) => joined,
        Err(reason) => return Ok(PairStep::Refused { reason }),
    };
    let step = PairStep::Enrolled {
        device: keys.device(),
        name: joined.name.clone(),
        org: joined.org.fingerprint().to_string(),
    };
    adopt(&layout, &keys, &joined, residency.as_ref())?;
    Ok(step)
}

/// Reads a pairing link, and says whether a box with this org may follow it.
pub(super) fn check_link(text: &str, org: Option<&Org>, me: NodeId) -> Result<PairLink, ApiError> {
    let link = PairLink::parse(text).map_err(|error| {
        ApiError::new(Code::Invalid, format!("that is no pairing link: {error}")).hint("on the other box: tieline pair")
    })?;
    match org {
        Some(org) if org.fingerprint() != link.org && !is_untouched(org, me) => {
            let error = ApiError::new(Code::Conflict, "this box has an org of its own, with channels or devices");
            Err(error.hint("join with another data folder: tieline --data DIR join LINK"))
        }
        _ => Ok(link),
    }
}

/// An org that holds nothing but what the first start makes.
fn is_untouched(org: &Org, me: NodeId) -> bool {
    org.home() == Some(me) && org.devices().count() == 1 && org.channels().next().is_none()
}

/// Runs the device's side of pairing. The error is the stable word for why not.
pub(super) async fn enrol(
    config: &Config,
    keys: Arc<DeviceKeys>,
    link: PairLink,
    name: String,
    mut show: impl FnMut(PairStep) + Send,
) -> Result<Box<Joined>, String> {
    let internal = |error: &dyn std::fmt::Display| {
        tracing::error!(%error, "joining failed");
        "internal".to_owned()
    };
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).map_err(|error| internal(&error))?;
    let keypair = open::transport_key(&config.data).map_err(|error| internal(&error))?;
    let loopback = config.listen.chosen && config.listen.addrs.iter().all(open::is_loopback);
    // A link that names loopback only can only be of this box: whoever pastes it means that.
    let loopback = loopback || open::names_loopback_only(&link);
    let join = JoinConfig { keypair, device: keys, name, rng: ChaCha20Rng::from_seed(seed), loopback };
    let joined = pair::join(join, link, move |digits| show(PairStep::Digits { digits: digits.digits })).await;
    joined.map_err(|error| match error {
        JoinError::Refused(reason) => reason.to_string(),
        JoinError::Unreachable(why) => {
            tracing::info!(why, "the host cannot be reached");
            "spent_or_expired".to_owned()
        }
        error => internal(&error),
    })
}

/// Holds the org that a box was enrolled in until all of it is there.
const JOINING: &str = "joining";

/// Says that it is: what stands in it names the org that makes room, if there is one.
const COMPLETE: &str = "complete";

/// What the first start makes, and what gives way to the org that a box was enrolled in.
const FOUNDED: [&str; 6] = ["org", "channels", "keys/root", "keys/link", "index", "peers.json"];

/// Makes a data folder that of a device of the org that it was enrolled in.
///
/// The host has enrolled the device by now. A crash must not lose that: all is written beside what is there, and takes
/// its place in steps that [`finish_joining`] takes up again.
pub(super) fn adopt(
    layout: &Layout,
    keys: &DeviceKeys,
    joined: &Joined,
    residency: Option<&Residency>,
) -> Result<(), ApiError> {
    let failed = |error: &dyn std::fmt::Display| ApiError::new(Code::Internal, error.to_string());
    if let Some(Residency { harnesses, folders, ceiling }) = residency {
        let grant = Grant {
            home: joined.node,
            harnesses: harnesses.iter().cloned().collect(),
            folders: folders.iter().map(Into::into).collect(),
            ceiling: ceiling.unwrap_or(Policy::Ask),
        };
        Consent::grant(layout.root(), grant).map_err(|error| failed(&error))?;
    }
    let before = open::open_org(layout, keys.device()).map_err(|error| failed(&error))?.map(|opened| opened.org);
    if before.as_ref().is_some_and(|org| org.fingerprint() == joined.org.fingerprint()) {
        return Ok(());
    }
    let joining = layout.root().join(JOINING);
    match std::fs::remove_dir_all(&joining) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(&error)),
        _ => {}
    }
    open::keep_joined(&Layout::new(&joining), keys, joined).map_err(|error| failed(&error))?;
    let before = before.map_or_else(String::new, |org| org.fingerprint().short());
    crate::keys::write(&joining.join(COMPLETE), before.as_bytes()).map_err(|error| failed(&error))?;
    finish_joining(layout.root()).map_err(|error| failed(&error))
}

/// Puts the org that a box was enrolled in in its place, if one waits for that. What was there before is moved out of the
/// way; nothing is deleted.
pub(super) fn finish_joining(root: &Path) -> std::io::Result<()> {
    let joining = root.join(JOINING);
    let before = match std::fs::read_to_string(joining.join(COMPLETE)) {
        Ok(before) => before,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for name in FOUNDED {
        let (old, new) = (root.join(name), joining.join(name));
        let aside = root.join(format!("{name}.before-{before}"));
        // Once it is aside, what stands in its place is new.
        if !before.is_empty() && old.exists() && !aside.exists() {
            std::fs::rename(&old, &aside)?;
        }
        if new.exists() {
            std::fs::rename(&new, &old)?;
        }
    }
    for folder in [root.join("keys"), root.to_owned()] {
        std::fs::File::open(folder)?.sync_all()?;
    }
    std::fs::remove_file(joining.join(COMPLETE))?;
    std::fs::remove_dir_all(&joining)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A folder with an org of its own, and one that waits to take its place.
    fn folder() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for (path, text) in [("org/log/1", "old"), ("keys/root", "old"), ("keys/link", "old"), ("keys/device", "own")] {
            write(path, text);
        }
        for path in ["org/log/1", "keys/link", "peers.json"] {
            write(&format!("{JOINING}/{path}"), "new");
        }
        write(&format!("{JOINING}/{COMPLETE}"), "abc");
        dir
    }

    fn check(root: &Path) {
        let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        assert_eq!([read("org/log/1"), read("keys/link"), read("peers.json")], ["new", "new", "new"]);
        assert_eq!(read("org.before-abc/log/1") + &read("keys/root.before-abc"), "oldold");
        assert_eq!([read("keys/link.before-abc"), read("keys/device"), read("keys/root")], ["old", "own", ""]);
        assert!(!root.join(JOINING).exists());
    }

    #[test]
    fn an_enrolment_takes_its_place_and_what_was_there_is_kept() {
        let dir = folder();
        finish_joining(dir.path()).unwrap();
        check(dir.path());
        finish_joining(dir.path()).unwrap();
        check(dir.path());
    }

    #[test]
    fn an_enrolment_that_a_crash_broke_off_goes_on_at_the_next_start() {
        let steps: [&[(&str, &str)]; 4] = [
            &[("org", "org.before-abc")],
            &[("org", "org.before-abc"), ("joining/org", "org")],
            &[("org", "org.before-abc"), ("joining/org", "org"), ("keys/root", "keys/root.before-abc")],
            &[("keys/link", "keys/link.before-abc"), ("joining/keys/link", "keys/link")],
        ];
        for done in steps {
            let dir = folder();
            for (from, to) in done {
                fs::rename(dir.path().join(from), dir.path().join(to)).unwrap();
            }
            finish_joining(dir.path()).unwrap();
            check(dir.path());
        }
    }

    #[test]
    fn an_enrolment_that_is_not_whole_changes_nothing() {
        let dir = folder();
        fs::remove_file(dir.path().join(JOINING).join(COMPLETE)).unwrap();
        finish_joining(dir.path()).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("org/log/1")).unwrap(), "old");
    }
}
