//! Enrolling devices: the shell around the machines of [`tieline_proto::pairing`].
//!
//! At the host a *desk*, one task, runs [`Host`](tieline_proto::pairing::Host) over the pairing streams that peers open.
//! At the device [`join()`] runs [`Device`](tieline_proto::pairing::Device) over a swarm of its own, which needs no running
//! node and listens nowhere.

mod desk;
mod join;
#[cfg(test)]
mod tests;

use tieline_proto::entry::Role;
use tieline_proto::id::DeviceId;
use tieline_proto::pairing::{Approval, HostError, Reason};

pub(super) use desk::{Desk, DeskHandle};
pub use join::{Digits, JoinConfig, JoinError, join, join_over};

/// The node's number for an offer. A newer offer takes an older one's place, and what is late must not hit the newer.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct OfferId(pub u64);

/// How an offer goes, at the host.
#[derive(Debug)]
pub enum PairEvent {
    /// A device claims the offer: ask the operator for the digits it shows, then [`Net::pair_confirm`](super::Net).
    Claimed {
        /// What the device calls itself.
        name: String,
        /// What it would become.
        role: Role,
    },
    /// The digits were right: enrol the device, sync the chain, then answer by
    /// [`Net::pair_enrolled`](super::Net::pair_enrolled).
    Approved(Box<Approval>),
    /// The device is enrolled, and what it needs is on its way to it.
    Enrolled {
        /// The device.
        device: DeviceId,
        /// What it is called.
        name: String,
    },
    /// The offer is over and no device came of it.
    Refused {
        /// Why.
        reason: Reason,
    },
}

/// Why a wish of the operator was not met.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PairError {
    /// The pairing itself does not allow it.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The network has stopped.
    #[error("the network has stopped")]
    Stopped,
}

/// Bytes read from a pairing stream at once.
const READ_CHUNK: usize = 16 * 1024;
