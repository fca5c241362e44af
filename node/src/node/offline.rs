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

use super::{folder, ports};
use crate::config::Config;
use crate::consent::{Consent, Grant};
use crate::data_dir::DataDir;
use crate::net::pair::{self, JoinConfig, JoinError};
use crate::store::Layout;

/// The file that stands in a data folder while the other side may enrol it.
const JOINING: &str = "joining";

/// The org of a data folder, founded if there is none.
///
/// # Errors
/// When a node holds the folder, or it cannot be read or written.
pub fn org_show(config: &Config) -> Result<view::Org, ApiError> {
    let _held = DataDir::open(&config.data).map_err(|error| super::up::explain(&error.into()))?;
    let layout = Layout::new(&config.data);
    let keys = folder::device_keys(&config.data).map_err(|error| super::up::explain(&error))?;
    let opened = match folder::open_org(&layout, keys.device()).map_err(|error| super::up::explain(&error))? {
        Some(opened) => opened,
        None => folder::found(&config.name, &layout, &keys).map_err(|error| super::up::explain(&error))?,
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
    mut show: impl FnMut(PairStep) + Send,
) -> Result<PairStep, ApiError> {
    let _held = DataDir::open(&config.data).map_err(|error| super::up::explain(&error.into()))?;
    let layout = Layout::new(&config.data);
    let keys = Arc::new(folder::device_keys(&config.data).map_err(|error| super::up::explain(&error))?);
    let opened = folder::open_org(&layout, keys.device()).map_err(|error| super::up::explain(&error))?;
    let link = check_link(link, opened.as_ref().map(|opened| &opened.org), keys.device())?;
    let name = name.unwrap_or_else(|| config.name.clone());
    let begun = |step: PairStep| {
        // From here on the other side may enrol this box, whatever becomes of this process.
        if let Err(error) = std::fs::write(config.data.join(JOINING), "") {
            tracing::warn!(%error, "that a join has begun cannot be noted");
        }
        show(step);
    };
    let joined = match enrol(config, Arc::clone(&keys), link, name, begun).await {
        Ok(joined) => joined,
        Err(reason) => {
            take_unfinished(&config.data);
            return Ok(PairStep::Refused { reason });
        }
    };
    let step = PairStep::Enrolled {
        device: keys.device(),
        name: joined.name.clone(),
        org: joined.org.fingerprint().to_string(),
    };
    adopt(&layout, &keys, &joined, residency.as_ref())?;
    take_unfinished(&config.data);
    Ok(step)
}

/// What the box's owner should know of a join that was begun in a data folder and did not end. It is told once.
pub(super) fn take_unfinished(data: &Path) -> Option<String> {
    std::fs::remove_file(data.join(JOINING)).ok()?;
    let what = "a join was begun here and not finished: this box is not in the other box's org, which may list it all \
                the same; pair the two again: tieline pair there, tieline join here";
    Some(what.to_owned())
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
    let keypair = folder::transport_key(&config.data).map_err(|error| internal(&error))?;
    let loopback = config.listen.chosen && config.listen.addrs.iter().all(ports::is_loopback);
    // A link that names loopback only can only be of this box: whoever pastes it means that.
    let loopback = loopback || ports::names_loopback_only(&link);
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

/// Makes a data folder that of a device of the org that it was enrolled in.
pub(super) fn adopt(
    layout: &Layout,
    keys: &DeviceKeys,
    joined: &Joined,
    residency: Option<&Residency>,
) -> Result<(), ApiError> {
    let failed = |error: &dyn std::fmt::Display| ApiError::new(Code::Internal, error.to_string());
    // First, as it counts only for a home whose org this box is in.
    if let Some(Residency { harnesses, folders, ceiling }) = residency {
        let grant = Grant {
            home: joined.node,
            harnesses: harnesses.iter().cloned().collect(),
            folders: folders.iter().map(Into::into).collect(),
            ceiling: ceiling.unwrap_or(Policy::Ask),
        };
        Consent::grant(layout.root(), grant).map_err(|error| failed(&error))?;
    }
    let before = folder::open_org(layout, keys.device()).map_err(|error| failed(&error))?.map(|opened| opened.org);
    let kept = match &before {
        Some(org) if org.fingerprint() == joined.org.fingerprint() => folder::keep_link_key(layout, &joined.link_key),
        _ => folder::keep_joined(layout, keys, joined, before.as_ref()),
    };
    kept.map_err(|error| failed(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_join_that_died_is_told_once() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(take_unfinished(folder.path()), None);
        std::fs::write(folder.path().join(JOINING), "").expect("written");
        assert!(take_unfinished(folder.path()).expect("told").contains("not finished"));
        assert_eq!(take_unfinished(folder.path()), None);
    }
}
