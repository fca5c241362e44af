//! Pairing: how a device that nobody knows becomes one of the org's.
//!
//! The grantor shows a [link](PairLink) with a one-time code; role and scope stay with it. The device claims the offer
//! by the code, shows six digits, and the operator types them at the host. Steps, over one stream:
//!
//! 1. `Noise_XKpsk0`, psk from the code, empty payloads. Without the code the first message fails and changes nothing.
//! 2. Host → device: a fresh nonce and the role. Only now the digits are fixed: who grinds keys for them gains nothing.
//! 3. Device → host: its keys, its name, its signature over the handshake's hash, the nonce and the role.
//! 4. The operator types the device's digits. One mistake, 60 seconds or a claim by another key burn the offer.
//! 5. The host enrols the device in the org's chain, durably, then sends certificate, link key and chain.
//!
//! A photograph of the link lets its holder race, and a race burns the offer; it does not let anybody in, because the
//! digits come from the screen of the device that the operator holds. [`Host`] and [`Device`] are the two roles, without
//! I/O. Source: `security.md` §3.

mod device;
mod host;
mod link;
mod pipe;

#[cfg(test)]
mod tests;

pub use device::{Device, DeviceInput, DeviceOutput, JoinError, Joined};
pub use host::{Approval, ConnId, Host, HostError, HostInput, HostOutput, Offered, Terms, Welcome};
pub use link::{ADDR_LEN_MAX, ADDRS_MAX, LINK_LEN_MAX, LinkError, PEER_LEN_MAX, PairLink};

use std::fmt;

use serde::{Deserialize, Serialize};

/// Version of the pairing protocol, bound by the handshake's prologue.
pub const PAIR_VERSION: u32 = 1;

/// How long an offer can be claimed, in milliseconds.
pub const OFFER_MS: u64 = 120_000;

/// Longest life that an offer can be given, in milliseconds.
pub const OFFER_MS_MAX: u64 = 300_000;

/// How long the operator has for the digits, in milliseconds.
pub const DIGITS_MS: u64 = 60_000;

/// How long either side waits for the other's next step that no person makes, in milliseconds.
pub const STEP_MS: u64 = 10_000;

/// Offers within [`OFFERS_WINDOW_MS`]. More are refused: each is one guess in a million for whoever has the link.
pub const OFFERS_MAX: usize = 5;

/// Window of [`OFFERS_MAX`], in milliseconds.
pub const OFFERS_WINDOW_MS: u64 = 600_000;

/// Streams that may be open before one has claimed the offer. Strangers can fill them, so one that has not shown the
/// code makes way for a newcomer.
pub const GUESTS_MAX: usize = 4;

/// Streams that showed the code and left it at that before the offer ends: whoever holds a photograph of the link could
/// keep the operator's device out with them.
pub const IN_VAIN_MAX: u32 = 8;

/// Times that the claimant may come again before the offer ends: each asks the operator anew.
pub const CLAIMS_MAX: u32 = 8;

/// Longest chain that a device takes, in bytes: more than ten thousand entries.
pub const CHAIN_LEN_MAX: usize = 16 * 1024 * 1024;

/// Why pairing ended without a device. The words are stable.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// Nobody claimed the offer in time.
    Expired,
    /// The host stays silent: the offer was used or is over, or the link is another org's.
    SpentOrExpired,
    /// The digits were not those that the device shows.
    WrongDigits,
    /// Nobody typed the digits in time.
    DigitsTimeout,
    /// Two devices claimed the offer, or somebody kept its places taken: somebody else has the link.
    Raced,
    /// The operator took the offer back, or made a new one.
    Cancelled,
    /// The device whose digits were typed was gone by then.
    DeviceGone,
    /// The host could not enrol the device.
    NotEnrolled,
    /// What the host sent is not the org of the link.
    BadOrg,
    /// A reason of a newer version.
    #[serde(other)]
    Other,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "expired",
            Self::SpentOrExpired => "spent_or_expired",
            Self::WrongDigits => "wrong_digits",
            Self::DigitsTimeout => "digits_timeout",
            Self::Raced => "raced",
            Self::Cancelled => "cancelled",
            Self::DeviceGone => "device_gone",
            Self::NotEnrolled => "not_enrolled",
            Self::BadOrg => "bad_org",
            Self::Other => "other",
        })
    }
}
