//! The link that the grantor shows, as text or QR: `tieline:` and base64url of
//! `version 1 ‖ code 16 ‖ host key 32 ‖ org 16 ‖ (length 1 ‖ peer id) ‖ count 1 ‖ (length 1 ‖ address)…`.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rand_core::CryptoRng;
use zeroize::Zeroizing;

use crate::crypto::kdf;
use crate::crypto::keys::is_usable_noise_key;
use crate::id::{NoiseKey, OrgId};

/// What every link begins with.
const SCHEME: &str = "tieline:";
/// Version of the binary form.
const VERSION: u8 = 1;
/// Bytes before the peer id.
const FIXED_LEN: usize = 1 + 16 + 32 + 16;

/// Longest transport peer id, in bytes. Those of Ed25519 keys have 38.
pub const PEER_LEN_MAX: usize = 64;
/// Most addresses in a link. Two fit a QR code of version 9-M, three one of version 10-M, which a phone still reads well.
pub const ADDRS_MAX: usize = 8;
/// Longest address, in bytes of its binary form: a relayed one with a name.
pub const ADDR_LEN_MAX: usize = 160;
/// Longest link, in characters.
pub const LINK_LEN_MAX: usize =
    SCHEME.len() + (FIXED_LEN + 1 + PEER_LEN_MAX + 1 + ADDRS_MAX * (1 + ADDR_LEN_MAX)).div_ceil(3) * 4;

/// Why a text is no link, or a link cannot be made.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The text is longer than [`LINK_LEN_MAX`].
    #[error("a pairing link has at most {LINK_LEN_MAX} characters, not {len}")]
    TooLong {
        /// Its length.
        len: usize,
    },
    /// The text does not begin with `tieline:`.
    #[error("a pairing link begins with {SCHEME}")]
    Scheme,
    /// What follows is not base64url, or was cut.
    #[error("the pairing link is damaged or was not copied whole")]
    Damaged,
    /// The link is of a newer version.
    #[error("the pairing link is of version {0}, which this version does not know")]
    Version(u8),
    /// The host's key can't be used.
    #[error("the pairing link's host key cannot be used")]
    HostKey,
    /// Too many or too long addresses, or too long a peer id.
    #[error("a pairing link has at most {ADDRS_MAX} addresses of 1 to {ADDR_LEN_MAX} bytes")]
    Addresses,
}

/// What the link says. The code is a secret until it is used or expires: a link must not be logged.
#[derive(Clone, Eq, PartialEq)]
pub struct PairLink {
    code: Zeroizing<[u8; 16]>,
    /// The host's Noise key.
    pub host: NoiseKey,
    /// The org.
    pub org: OrgId,
    /// The host's transport peer id, in binary; empty over TCP and WebSocket.
    pub peer: Vec<u8>,
    /// The host's addresses as binary multiaddresses. Hints: they are checked like any address of a stranger.
    pub addrs: Vec<Vec<u8>>,
}

impl PairLink {
    /// A link with a new code.
    ///
    /// # Errors
    /// When the peer id or the addresses don't fit.
    pub fn new(
        host: NoiseKey,
        org: OrgId,
        peer: Vec<u8>,
        addrs: Vec<Vec<u8>>,
        rng: &mut (impl CryptoRng + ?Sized),
    ) -> Result<Self, LinkError> {
        let addrs_fit = addrs.len() <= ADDRS_MAX && addrs.iter().all(|addr| (1..=ADDR_LEN_MAX).contains(&addr.len()));
        if !addrs_fit || peer.len() > PEER_LEN_MAX {
            return Err(LinkError::Addresses);
        }
        let mut code = Zeroizing::new([0; 16]);
        rng.fill_bytes(&mut *code);
        Ok(Self { code, host, org, peer, addrs })
    }

    /// Reads a link. White space around it is passed over.
    ///
    /// # Errors
    /// When it is no whole link of this version.
    pub fn parse(text: &str) -> Result<Self, LinkError> {
        let text = text.trim();
        if text.len() > LINK_LEN_MAX {
            return Err(LinkError::TooLong { len: text.len() });
        }
        let body = text.strip_prefix(SCHEME).ok_or(LinkError::Scheme)?;
        let bytes = Zeroizing::new(URL_SAFE_NO_PAD.decode(body).map_err(|_| LinkError::Damaged)?);
        let mut rest = Reader(&bytes);
        match rest.byte()? {
            VERSION => {}
            version => return Err(LinkError::Version(version)),
        }
        let code = Zeroizing::new(*rest.array()?);
        let host = NoiseKey(*rest.array()?);
        let org = OrgId(*rest.array()?);
        let peer = rest.counted()?.to_vec();
        let count = usize::from(rest.byte()?);
        if count > ADDRS_MAX || peer.len() > PEER_LEN_MAX {
            return Err(LinkError::Addresses);
        }
        let mut addrs = Vec::with_capacity(count);
        for _ in 0..count {
            let addr = rest.counted()?;
            if !(1..=ADDR_LEN_MAX).contains(&addr.len()) {
                return Err(LinkError::Addresses);
            }
            addrs.push(addr.to_vec());
        }
        if !rest.0.is_empty() {
            return Err(LinkError::Damaged);
        }
        if !is_usable_noise_key(&host) {
            return Err(LinkError::HostKey);
        }
        Ok(Self { code, host, org, peer, addrs })
    }

    /// The text to show. It holds the code.
    #[must_use]
    pub fn to_text(&self) -> Zeroizing<String> {
        let mut bytes = Zeroizing::new(Vec::with_capacity(FIXED_LEN + 2 + PEER_LEN_MAX + 64));
        bytes.push(VERSION);
        bytes.extend_from_slice(&*self.code);
        bytes.extend_from_slice(self.host.as_bytes());
        bytes.extend_from_slice(self.org.as_bytes());
        push_counted(&mut bytes, &self.peer);
        bytes.push(u8::try_from(self.addrs.len()).unwrap_or(u8::MAX));
        for addr in &self.addrs {
            push_counted(&mut bytes, addr);
        }
        let mut text = Zeroizing::new(SCHEME.to_owned());
        URL_SAFE_NO_PAD.encode_string(&*bytes, &mut text);
        text
    }

    /// The psk of the handshake.
    pub(super) fn psk(&self) -> Zeroizing<[u8; 32]> {
        Zeroizing::new(kdf::derive(&*self.code, self.org.as_bytes(), "pair"))
    }
}

impl fmt::Debug for PairLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PairLink").field("host", &self.host).field("org", &self.org).finish_non_exhaustive()
    }
}

/// Appends one length byte and the bytes, whose length [`PairLink::new`] and [`PairLink::parse`] have checked; a caller
/// that changed them since makes a link that nobody reads.
fn push_counted(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(u8::try_from(bytes.len()).unwrap_or(u8::MAX));
    out.extend_from_slice(bytes);
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Result<u8, LinkError> {
        self.array::<1>().map(|[byte]| *byte)
    }

    fn array<const N: usize>(&mut self) -> Result<&'a [u8; N], LinkError> {
        let (array, rest) = self.0.split_first_chunk().ok_or(LinkError::Damaged)?;
        self.0 = rest;
        Ok(array)
    }

    fn counted(&mut self) -> Result<&'a [u8], LinkError> {
        let len = usize::from(self.byte()?);
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(LinkError::Damaged)?;
        self.0 = rest;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand_chacha::ChaCha20Rng;
    use rand_core::SeedableRng;

    use super::*;

    fn link(peer: Vec<u8>, addrs: Vec<Vec<u8>>) -> PairLink {
        let mut rng = ChaCha20Rng::seed_from_u64(1);
        let host = crate::crypto::keys::DeviceKeys::generate(&mut rng).noise();
        PairLink::new(host, OrgId([3; 16]), peer, addrs, &mut rng).unwrap()
    }

    #[test]
    fn two_addresses_fit_a_qr_of_version_nine_and_three_one_of_ten() {
        // Version 9-M holds 180 bytes, 10-M 213; an IPv4 address with a TCP port is 8 bytes, with QUIC 11.
        let two = link(vec![1; 38], vec![vec![2; 8], vec![3; 11]]).to_text().len();
        assert!(two <= 180, "{two}");
        let three = link(vec![1; 38], vec![vec![2; 8], vec![3; 11], vec![3; 8]]).to_text().len();
        assert!((181..=213).contains(&three), "{three}");
    }

    #[test]
    fn bad_links_say_what_is_wrong() {
        let good = link(vec![1; 38], vec![vec![2; 8]]);
        let text = good.to_text();
        assert_eq!(PairLink::parse(&format!(" {}\n", *text)), Ok(good.clone()));
        assert_eq!(PairLink::parse("https://example"), Err(LinkError::Scheme));
        assert_eq!(PairLink::parse("tieline:"), Err(LinkError::Damaged));
        assert_eq!(PairLink::parse("tieline:Ag"), Err(LinkError::Version(2)));
        assert_eq!(PairLink::parse(&"a".repeat(5000)), Err(LinkError::TooLong { len: 5000 }));
        for cut in SCHEME.len()..text.len() {
            assert!(PairLink::parse(&text[..cut]).is_err(), "cut at {cut}");
        }
        assert_eq!(PairLink::parse(&format!("{}AAAA", *text)), Err(LinkError::Damaged));
        let low_order = PairLink { host: NoiseKey([0; 32]), ..good.clone() };
        assert_eq!(PairLink::parse(&low_order.to_text()), Err(LinkError::HostKey));
        let crowd = PairLink { addrs: vec![vec![1]; ADDRS_MAX + 1], ..good.clone() };
        assert_eq!(PairLink::parse(&crowd.to_text()), Err(LinkError::Addresses));
        assert!(!format!("{good:?}").contains(&format!("{:?}", good.code)));
    }

    proptest! {
        #[test]
        fn text_brings_the_link_back(
            peer in proptest::collection::vec(any::<u8>(), 0..=PEER_LEN_MAX),
            addrs in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..=ADDR_LEN_MAX), 0..=ADDRS_MAX),
        ) {
            let link = link(peer, addrs);
            let text = link.to_text();
            prop_assert!(text.len() <= LINK_LEN_MAX);
            prop_assert_eq!(PairLink::parse(&text), Ok(link));
        }

        #[test]
        fn any_text_is_a_link_or_an_error(text in "(tieline:)?[A-Za-z0-9_-]{0,300}") {
            let _ = PairLink::parse(&text);
        }
    }
}
