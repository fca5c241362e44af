//! Identifiers: newtypes with one checked way in and one printed form out.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Largest value of every counter (seq, lamport, message id): what JSON readers hold exactly.
pub const COUNTER_MAX: u64 = (1 << 53) - 1;

/// Why a text is not an identifier.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseIdError {
    /// The text is not the right number of hexadecimal digits.
    #[error("{what} must be {digits} hexadecimal digits")]
    NotHex {
        /// What was parsed.
        what: &'static str,
        /// How many digits it has.
        digits: usize,
    },
    /// The text breaks the grammar of handles and harness names.
    #[error("{0:?} is not a valid {1}: use 2 to 31 of a-z, 0-9 and '-', not starting with '-'")]
    NotHandle(String, &'static str),
    /// The handle is kept for the system's own use.
    #[error("{0:?} is reserved")]
    Reserved(String),
    /// A client id is empty, too long or has other characters than `[A-Za-z0-9._:-]`.
    #[error("a client id has 1 to {CLIENT_ID_LEN_MAX} of A-Z, a-z, 0-9, '.', '_', ':' and '-'")]
    NotClientId,
    /// A channel name breaks its grammar.
    #[error("{0:?} is not a valid channel name: use 1 to 63 of a-z, 0-9 and '-', not starting with '-'")]
    NotChannelName(String),
}

macro_rules! hex_id {
    ($(#[$doc:meta])* $name:ident, $len:expr, $what:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
        pub struct $name(pub [u8; $len]);

        impl $name {
            /// Bytes in this id.
            pub const LEN: usize = $len;

            /// The bytes.
            #[must_use]
            pub const fn as_bytes(&self) -> &[u8; $len] {
                &self.0
            }

            /// The first eight hexadecimal digits, for people.
            #[must_use]
            pub fn short(&self) -> String {
                let mut text = self.to_string();
                text.truncate(8);
                text
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(hex(&self.0, &mut [0; 2 * $len]))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.short())
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                parse_hex(text).map($name).ok_or(ParseIdError::NotHex { what: $what, digits: $len * 2 })
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(hex(&self.0, &mut [0; 2 * $len]))
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(de::Error::custom)
            }
        }
    };
}

hex_id! {
    /// A device's Ed25519 public key. A node is a device, so this names nodes too.
    DeviceId, 32, "a device id"
}
hex_id! {
    /// A device's X25519 public key for Noise. Bound to its [`DeviceId`] by certificate, never converted from it.
    NoiseKey, 32, "a noise key"
}
hex_id! {
    /// Names a channel: BLAKE3 of its creation draft's exact bytes, under a domain tag.
    ChannelId, 32, "a channel id"
}
hex_id! {
    /// A BLAKE3 hash: of a log line's bytes without LF, of a blob, of a journal.
    Hash, 32, "a hash"
}
hex_id! {
    /// An org's fingerprint: the first 16 bytes of the hash of its founding line.
    OrgId, 16, "an org fingerprint"
}
hex_id! {
    /// Random name of one life of a resident's attempt journal; a new one is drawn when the journal is made anew.
    Incarnation, 16, "an incarnation"
}

/// A node is a device that runs the daemon.
pub type NodeId = DeviceId;

impl Default for Hash {
    fn default() -> Self {
        Self::ZERO
    }
}

impl Hash {
    /// The hash before the first line of a chain.
    pub const ZERO: Self = Self([0; 32]);

    /// Hashes bytes with BLAKE3.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }
}

/// The digits of an id. Every line of a log has several, and the formatter takes a microsecond for each.
fn hex<'a>(bytes: &[u8], digits: &'a mut [u8]) -> &'a str {
    let digit = |value: u8| if value < 10 { b'0' + value } else { b'a' + value - 10 };
    for (pair, byte) in digits.chunks_exact_mut(2).zip(bytes) {
        if let [high, low] = pair {
            (*high, *low) = (digit(byte >> 4), digit(byte & 15));
        }
    }
    std::str::from_utf8(digits).unwrap_or_default()
}

fn parse_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != N * 2 {
        return None;
    }
    let mut out = [0; N];
    for (byte, pair) in out.iter_mut().zip(digits.chunks_exact(2)) {
        let [high, low] = pair else { return None };
        *byte = hex_value(*high)? << 4 | hex_value(*low)?;
    }
    Some(out)
}

/// Lower case only, so that an id has exactly one spelling.
const fn hex_value(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

macro_rules! counter {
    ($(#[$doc:meta])* $name:ident, $int:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
        #[serde(transparent)]
        pub struct $name(pub $int);

        impl $name {
            /// The value after this one.
            #[must_use]
            pub const fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

counter! {
    /// Dense index of an entry in one log, from 1. The only sync cursor.
    Seq, u64
}
counter! {
    /// Dense, monotonic number of a visible message in one channel, from 1: the `N` of `#N`. Given by the home.
    MessageId, u64
}
counter! {
    /// The home's logical clock. Orders across channels by (lamport, home, seq).
    Lamport, u64
}
counter! {
    /// Names a member within its channel: the seq of the entry that added it. Never reused; handles may change.
    MemberId, u64
}
counter! {
    /// The home epoch: rises when a channel's home moves or is re-opened.
    Epoch, u32
}
counter! {
    /// One try at a turn, from 1. News of an older attempt is ignored.
    Attempt, u32
}

/// Longest client id, in bytes.
pub const CLIENT_ID_LEN_MAX: usize = 64;

/// A name of a member or a harness: `[a-z0-9][a-z0-9-]{1,30}`.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub struct Handle(String);

/// Handles that no member can have.
pub const RESERVED_HANDLES: [&str; 3] = ["all", "here", "system"];

impl Handle {
    /// Checks a member's handle.
    ///
    /// # Errors
    /// When the grammar is broken or the handle is reserved.
    pub fn new(text: &str) -> Result<Self, ParseIdError> {
        if RESERVED_HANDLES.contains(&text) {
            return Err(ParseIdError::Reserved(text.to_owned()));
        }
        Self::lexical(text, "handle")
    }

    /// Checks the grammar alone, as for harness names.
    ///
    /// # Errors
    /// When the grammar is broken; the message calls the text `what`.
    pub fn lexical(text: &str, what: &'static str) -> Result<Self, ParseIdError> {
        let mut chars = text.bytes();
        let first = chars.next().is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
        let rest = chars.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-');
        if first && rest && (2..=31).contains(&text.len()) {
            Ok(Self(text.to_owned()))
        } else {
            Err(ParseIdError::NotHandle(text.to_owned(), what))
        }
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

// Both order and hash as the text alone: a map of handles is asked by a text that need not be one.
impl Borrow<str> for Handle {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Handle {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::lexical(&text, "handle").map_err(de::Error::custom)
    }
}

/// A channel's name: `[a-z0-9][a-z0-9-]{0,62}`. Safe as a path segment.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub struct ChannelName(String);

impl ChannelName {
    /// Checks a channel's name.
    ///
    /// # Errors
    /// When the grammar is broken.
    pub fn new(text: &str) -> Result<Self, ParseIdError> {
        let mut chars = text.bytes();
        let first = chars.next().is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
        let rest = chars.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-');
        if first && rest && text.len() <= 63 {
            Ok(Self(text.to_owned()))
        } else {
            Err(ParseIdError::NotChannelName(text.to_owned()))
        }
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ChannelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for ChannelName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::new(&text).map_err(de::Error::custom)
    }
}

/// A poster's own name for a post, so that a retry is answered with the first result.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub struct ClientId(String);

impl ClientId {
    /// Checks a client id.
    ///
    /// # Errors
    /// When it is empty, too long or has other characters than `[A-Za-z0-9._:-]`.
    pub fn new(text: &str) -> Result<Self, ParseIdError> {
        let valid = text.bytes().all(|c| c.is_ascii_alphanumeric() || b"._:-".contains(&c));
        if valid && (1..=CLIENT_ID_LEN_MAX).contains(&text.len()) {
            Ok(Self(text.to_owned()))
        } else {
            Err(ParseIdError::NotClientId)
        }
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<'de> Deserialize<'de> for ClientId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::new(&text).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_ids_have_one_spelling() {
        let id = Hash::of(b"x");
        assert_eq!(id.to_string().parse::<Hash>(), Ok(id));
        assert!(id.to_string().to_uppercase().parse::<Hash>().is_err());
        assert!("".parse::<Hash>().is_err());
        assert!("é".repeat(32).parse::<Hash>().is_err());
    }

    #[test]
    fn handles_keep_their_grammar() {
        for good in ["ab", "ops-2-b", "0x", &"a".repeat(31)] {
            assert!(Handle::new(good).is_ok(), "{good}");
        }
        for bad in ["", "a", "-a", "A1", "a_b", "all", "system", "аdmin", &"a".repeat(32)] {
            assert!(Handle::new(bad).is_err(), "{bad}");
        }
    }
}
