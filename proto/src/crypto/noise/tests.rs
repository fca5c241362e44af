use proptest::prelude::*;
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng;

use super::super::keys::DeviceKeys;
use super::super::record::{RECORD_PREFIX_LEN, RecordError};
use super::*;

/// Encodings of the points of small order, canonical and not, with and without the bit that X25519 ignores
/// (RFC 7748 §6.1; the set that Wycheproof tests).
pub(crate) fn low_order_points() -> Vec<[u8; 32]> {
    let hex = [
        "0000000000000000000000000000000000000000000000000000000000000000",
        "0100000000000000000000000000000000000000000000000000000000000000",
        "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
        "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    ];
    let plain = hex.map(|text| text.parse::<NoiseKey>().unwrap().0);
    let with_top_bit = plain.map(|mut point| {
        point[31] |= 0x80;
        point
    });
    plain.into_iter().chain(with_top_bit).collect()
}

fn rng(seed: u64) -> ChaCha20Rng {
    ChaCha20Rng::seed_from_u64(seed)
}

fn prologue() -> Prologue {
    Prologue {
        purpose: Purpose::Link,
        version: 1,
        org: OrgId([7; 16]),
        initiator_peer: b"initiator".to_vec(),
        responder_peer: b"responder".to_vec(),
        epoch: 3,
    }
}

const PSK: [u8; 32] = [9; 32];

fn pair(mine: &Prologue, theirs: &Prologue, my_psk: &[u8; 32], their_psk: &[u8; 32]) -> (Handshake, Handshake) {
    let (alice, bob) = (DeviceKeys::generate(&mut rng(1)), DeviceKeys::generate(&mut rng(2)));
    let to = bob.noise();
    let initiator = Handshake::initiator(mine, my_psk, alice.noise_secret(), to.as_bytes(), rng(3)).unwrap();
    let responder = Handshake::responder(theirs, their_psk, bob.noise_secret(), rng(4)).unwrap();
    (initiator, responder)
}

fn shake(initiator: &mut Handshake, responder: &mut Handshake) -> Result<(), NoiseError> {
    responder.read(&initiator.write(b"")?)?;
    initiator.read(&responder.write(b"two")?)?;
    responder.read(&initiator.write(b"three")?)?;
    Ok(())
}

fn sessions() -> (Session, Session) {
    let (mut initiator, mut responder) = pair(&prologue(), &prologue(), &PSK, &PSK);
    shake(&mut initiator, &mut responder).unwrap();
    (initiator.into_session().unwrap(), responder.into_session().unwrap())
}

fn record(session: &mut Session, text: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    session.seal(text, &mut out).unwrap();
    out.split_off(RECORD_PREFIX_LEN)
}

#[test]
fn messages_have_the_lengths_of_the_pattern_and_carry_payloads() {
    let (mut initiator, mut responder) = pair(&prologue(), &prologue(), &PSK, &PSK);
    let one = initiator.write(b"").unwrap();
    assert_eq!((one.len(), responder.read(&one).unwrap().as_slice()), (48, b"".as_slice()));
    let two = responder.write(b"hello").unwrap();
    assert_eq!((two.len(), initiator.read(&two).unwrap().as_slice()), (48 + 5, b"hello".as_slice()));
    assert!(initiator.remote_static().is_some() && responder.remote_static().is_none());
    let three = initiator.write(b"certificate").unwrap();
    assert_eq!((three.len(), responder.read(&three).unwrap().as_slice()), (64 + 11, b"certificate".as_slice()));
    assert!(initiator.is_finished() && responder.is_finished());

    let (initiator, responder) = (initiator.into_session().unwrap(), responder.into_session().unwrap());
    assert_eq!(initiator.handshake_hash(), responder.handshake_hash());
    assert_eq!(responder.remote_static(), DeviceKeys::generate(&mut rng(1)).noise());
    assert_eq!(initiator.remote_static(), DeviceKeys::generate(&mut rng(2)).noise());
}

/// Vector of the cacophony project for `Noise_XK_25519_ChaChaPoly_BLAKE2s`: our primitives, the library's protocol and
/// our transport are the published ones.
#[test]
fn primitives_and_records_match_a_published_vector() {
    struct Fixed([u8; 32]);
    impl rand_core::TryRng for Fixed {
        type Error = std::convert::Infallible;
        fn try_next_u32(&mut self) -> Result<u32, Self::Error> {
            Ok(0)
        }
        fn try_next_u64(&mut self) -> Result<u64, Self::Error> {
            Ok(0)
        }
        fn try_fill_bytes(&mut self, dst: &mut [u8]) -> Result<(), Self::Error> {
            dst.copy_from_slice(&self.0);
            Ok(())
        }
    }
    impl rand_core::TryCryptoRng for Fixed {}

    let key = |hex: &str| hex.parse::<NoiseKey>().unwrap().0;
    let bytes = |hex: &str| -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    };
    let build = |secret: &str, ephemeral: &str, remote: Option<&str>| {
        let params = "Noise_XK_25519_ChaChaPoly_BLAKE2s".parse().unwrap();
        let builder = Builder::with_resolver(params, Box::new(Resolver::new(Fixed(key(ephemeral)))));
        let (secret, remote) = (key(secret), remote.map(key));
        let builder = builder.prologue(b"John Galt").unwrap().local_private_key(&secret).unwrap();
        let state = match &remote {
            Some(remote) => builder.remote_public_key(remote).unwrap().build_initiator().unwrap(),
            None => builder.build_responder().unwrap(),
        };
        Handshake { state, failed: false }
    };
    let mut initiator = build(
        "e61ef9919cde45dd5f82166404bd08e38bceb5dfdfded0a34c8df7ed542214d1",
        "893e28b9dc6ca8d611ab664754b8ceb7bac5117349a4439a6b0569da977c464a",
        Some("31e0303fd6418d2f8c0e78b91f22e8caed0fbe48656dcf4767e4834f701b8f62"),
    );
    let mut responder = build(
        "4a3acbfdb163dec651dfa3194dece676d437029c62a408b4c5ea9114246e4893",
        "bbdb4cdbd309f1a1f2e1456967fe288cadd6f712d65dc7b7793d5e63da6b375b",
        None,
    );
    let one = initiator.write(b"Ludwig von Mises").unwrap();
    assert_eq!(
        one,
        bytes(
            "ca35def5ae56cec33dc2036731ab14896bc4c75dbb07a61f879f8e3afa4c7944e953bb4cd3450eecab157a8ce632f74fcac39a3f\
             cd5be08267d5923ca353d4f0"
        )
    );
    responder.read(&one).unwrap();
    let two = responder.write(b"Murray Rothbard").unwrap();
    assert_eq!(
        two,
        bytes(
            "95ebc60d2b1fa672c1f46a8aa265ef51bfe38e7ccb39ec5be34069f14480884382521c3ea09af48bfa39627819b007e7c0e179da\
             d4a9a7482841bae32ec8eb"
        )
    );
    initiator.read(&two).unwrap();
    let three = initiator.write(b"F. A. Hayek").unwrap();
    assert_eq!(
        three,
        bytes(
            "f032de86c8d3c2099478fefb9b2e6a1fef904d3b2470949858ae9f497ff068dbb6ff7cb43fa51946bcd8a87863849aa7f0e663cd\
             83961c752ce3be41384de8a849e4d130d9a2d717a5c7e8"
        )
    );
    responder.read(&three).unwrap();
    let (mut initiator, mut responder) = (initiator.into_session().unwrap(), responder.into_session().unwrap());
    assert_eq!(*initiator.handshake_hash(), key("899891a0f1a8db67f8bfa46b8bced371c1c25de377f20cf882fdd06fc15517fd"));
    assert_eq!(record(&mut responder, b"Carl Menger"), bytes("cb54ca2168a55a150760c409e2157b9e57ceab823d897bff36eeab"));
    assert_eq!(
        record(&mut initiator, b"Jean-Baptiste Say"),
        bytes("948e26c8a5348aec2711343de8e7c8faa7cae4b6bf51e9026eab234ed4f3e8e8fc")
    );
}

#[test]
fn threat_w4_each_field_of_the_prologue_counts() {
    let mine = prologue();
    let others = [
        Prologue { purpose: Purpose::Pair, ..mine.clone() },
        Prologue { version: 2, ..mine.clone() },
        Prologue { org: OrgId([8; 16]), ..mine.clone() },
        Prologue { initiator_peer: b"initiatoR".to_vec(), ..mine.clone() },
        Prologue { responder_peer: b"".to_vec(), ..mine.clone() },
        // The same bytes cut elsewhere.
        Prologue { initiator_peer: b"initiatorr".to_vec(), responder_peer: b"esponder".to_vec(), ..mine.clone() },
        Prologue { epoch: 4, ..mine.clone() },
    ];
    for theirs in others {
        let (mut initiator, mut responder) = pair(&mine, &theirs, &PSK, &PSK);
        let refused = responder.read(&initiator.write(b"").unwrap());
        assert!(matches!(refused, Err(NoiseError::Forged)), "{theirs:?}");
    }
}

#[test]
fn threat_w4_a_pairing_transcript_is_no_link() {
    let pairing = Prologue { purpose: Purpose::Pair, ..prologue() };
    let (mut device, mut host) = pair(&pairing, &pairing, &PSK, &PSK);
    let (_, mut linker) = pair(&prologue(), &prologue(), &PSK, &PSK);
    let one = device.write(b"").unwrap();
    assert!(linker.read(&one).is_err());
    device
        .read(&{
            host.read(&one).unwrap();
            host.write(b"").unwrap()
        })
        .unwrap();
    assert!(linker.read(&device.write(b"").unwrap()).is_err());
}

#[test]
fn a_wrong_psk_fails_at_the_first_message_and_the_responder_stays_silent() {
    let (mut initiator, mut responder) = pair(&prologue(), &prologue(), &[1; 32], &[2; 32]);
    let one = initiator.write(b"").unwrap();
    assert!(matches!(responder.read(&one), Err(NoiseError::Forged)));
    assert!(matches!(responder.write(b""), Err(NoiseError::Failed)));
    assert!(matches!(responder.into_session(), Err(NoiseError::OutOfTurn)));
}

#[test]
fn another_host_cannot_answer_for_the_one_that_was_meant() {
    let (mut initiator, _) = pair(&prologue(), &prologue(), &PSK, &PSK);
    let mallory = DeviceKeys::generate(&mut rng(66));
    let mut responder = Handshake::responder(&prologue(), &PSK, mallory.noise_secret(), rng(5)).unwrap();
    assert!(responder.read(&initiator.write(b"").unwrap()).is_err());
}

#[test]
fn threat_w2_low_order_points_are_refused_in_every_position() {
    for point in low_order_points() {
        // The responder's static key, as the initiator was told it: es.
        let alice = DeviceKeys::generate(&mut rng(1));
        let told = Handshake::initiator(&prologue(), &PSK, alice.noise_secret(), &point, rng(3));
        let refused = told.and_then(|mut handshake| handshake.write(b""));
        assert!(matches!(refused, Err(NoiseError::LowOrder)), "static {point:?}");

        // The initiator's ephemeral key: es at the responder.
        let (mut initiator, mut responder) = pair(&prologue(), &prologue(), &PSK, &PSK);
        let mut one = initiator.write(b"").unwrap();
        one[..32].copy_from_slice(&point);
        assert!(matches!(responder.read(&one), Err(NoiseError::LowOrder)), "initiator's ephemeral {point:?}");

        // The responder's ephemeral key: ee at the initiator.
        let (mut initiator, mut responder) = pair(&prologue(), &prologue(), &PSK, &PSK);
        responder.read(&initiator.write(b"").unwrap()).unwrap();
        let mut two = responder.write(b"").unwrap();
        two[..32].copy_from_slice(&point);
        assert!(matches!(initiator.read(&two), Err(NoiseError::LowOrder)), "responder's ephemeral {point:?}");

        // A certificate's key.
        assert!(!super::super::keys::is_usable_noise_key(&NoiseKey(point)), "certificate {point:?}");
    }
}

/// The initiator's static key travels encrypted, so only one who holds the psk can put a low-order point there.
#[test]
fn threat_w2_an_insiders_low_order_static_key_is_refused() {
    use snow::types::{Cipher, Dh, Hash};

    /// A DH whose own static key claims to be a low-order point.
    struct Liar {
        inner: Box<dyn Dh>,
        public: Option<[u8; 32]>,
    }
    impl Dh for Liar {
        fn name(&self) -> &'static str {
            "25519"
        }
        fn pub_len(&self) -> usize {
            32
        }
        fn priv_len(&self) -> usize {
            32
        }
        fn set(&mut self, privkey: &[u8]) {
            self.inner.set(privkey);
            self.public = Some([0; 32]);
        }
        fn generate(&mut self, rng: &mut dyn snow::types::Random) -> Result<(), snow::Error> {
            self.inner.generate(rng)
        }
        fn pubkey(&self) -> &[u8] {
            self.public.as_ref().map_or_else(|| self.inner.pubkey(), |point| point.as_slice())
        }
        fn privkey(&self) -> &[u8] {
            self.inner.privkey()
        }
        fn dh(&self, pubkey: &[u8], out: &mut [u8]) -> Result<(), snow::Error> {
            if self.public.is_some() {
                // What every secret gives with that point.
                out[..32].fill(0);
                return Ok(());
            }
            self.inner.dh(pubkey, out)
        }
    }
    struct LiarResolver(Resolver);
    impl snow::resolvers::CryptoResolver for LiarResolver {
        fn resolve_rng(&self) -> Option<Box<dyn snow::types::Random>> {
            self.0.resolve_rng()
        }
        fn resolve_dh(&self, choice: &snow::params::DHChoice) -> Option<Box<dyn Dh>> {
            Some(Box::new(Liar { inner: self.0.resolve_dh(choice)?, public: None }))
        }
        fn resolve_hash(&self, choice: &snow::params::HashChoice) -> Option<Box<dyn Hash>> {
            self.0.resolve_hash(choice)
        }
        fn resolve_cipher(&self, choice: &snow::params::CipherChoice) -> Option<Box<dyn Cipher>> {
            self.0.resolve_cipher(choice)
        }
    }
    let bob = DeviceKeys::generate(&mut rng(2));
    let (prologue, public) = (prologue().bytes(), bob.noise());
    let builder = Builder::with_resolver(PATTERN.parse().unwrap(), Box::new(LiarResolver(Resolver::new(rng(3)))));
    let builder = builder.prologue(&prologue).unwrap().psk(0, &PSK).unwrap().local_private_key(&[5; 32]).unwrap();
    let state = builder.remote_public_key(public.as_bytes()).unwrap().build_initiator().unwrap();
    let mut liar = Handshake { state, failed: false };
    let mut responder = Handshake::responder(&self::prologue(), &PSK, bob.noise_secret(), rng(4)).unwrap();
    responder.read(&liar.write(b"").unwrap()).unwrap();
    liar.read(&responder.write(b"").unwrap()).unwrap();
    assert!(matches!(responder.read(&liar.write(b"").unwrap()), Err(NoiseError::LowOrder)));
}

#[test]
fn threat_w1_handshake_messages_over_the_limit_are_refused_unread() {
    let (mut initiator, mut responder) = pair(&prologue(), &prologue(), &PSK, &PSK);
    let refused = responder.read(&vec![0; HANDSHAKE_LEN_MAX + 1]);
    assert!(matches!(refused, Err(NoiseError::TooLong { len }) if len == HANDSHAKE_LEN_MAX + 1));
    assert!(matches!(initiator.write(&vec![0; HANDSHAKE_PAYLOAD_MAX + 1]), Err(NoiseError::TooLong { .. })));

    let (mut initiator, mut responder) = pair(&prologue(), &prologue(), &PSK, &PSK);
    responder.read(&initiator.write(&[]).unwrap()).unwrap();
    initiator.read(&responder.write(&vec![1; HANDSHAKE_PAYLOAD_MAX]).unwrap()).unwrap();
    let three = initiator.write(&vec![2; HANDSHAKE_PAYLOAD_MAX]).unwrap();
    assert!(three.len() <= HANDSHAKE_LEN_MAX);
    assert_eq!(responder.read(&three).unwrap().len(), HANDSHAKE_PAYLOAD_MAX);
}

#[test]
fn steps_out_of_turn_are_refused() {
    let (mut initiator, mut responder) = pair(&prologue(), &prologue(), &PSK, &PSK);
    assert!(matches!(responder.write(b""), Err(NoiseError::OutOfTurn)));
    initiator.write(b"").unwrap();
    assert!(matches!(initiator.write(b""), Err(NoiseError::OutOfTurn)));
    assert!(matches!(initiator.write(b""), Err(NoiseError::Failed)));
}

#[test]
fn the_same_seed_gives_the_same_handshake_and_another_one_another() {
    let first = |seed| {
        let bob = DeviceKeys::generate(&mut rng(2)).noise();
        let mut initiator = Handshake::initiator(&prologue(), &PSK, &[1; 32], bob.as_bytes(), rng(seed)).unwrap();
        initiator.write(b"").unwrap()
    };
    assert_eq!(first(1), first(1));
    assert_ne!(first(1), first(2));
}

#[test]
fn threat_w3_records_are_bound_to_session_direction_and_place() {
    let (mut alice, mut bob) = sessions();
    let (first, second) = (record(&mut alice, b"first"), record(&mut alice, b"second"));
    let mut out = Vec::new();
    // Swapped.
    assert_eq!(bob.open(&second, &mut out), Err(RecordError::Forged { counter: 0 }));
    // Reflected.
    assert_eq!(alice.open(&first, &mut out), Err(RecordError::Forged { counter: 0 }));
    // From another session between the same two.
    let (mut initiator, mut responder) = {
        let (alice, bob) = (DeviceKeys::generate(&mut rng(1)), DeviceKeys::generate(&mut rng(2)));
        let to = bob.noise();
        (
            Handshake::initiator(&prologue(), &PSK, alice.noise_secret(), to.as_bytes(), rng(30)).unwrap(),
            Handshake::responder(&prologue(), &PSK, bob.noise_secret(), rng(40)).unwrap(),
        )
    };
    shake(&mut initiator, &mut responder).unwrap();
    let mut other = initiator.into_session().unwrap();
    assert_eq!(bob.open(&record(&mut other, b"first"), &mut out), Err(RecordError::Forged { counter: 0 }));
    assert!(out.is_empty(), "nothing of a forged record is given out");
    // Nothing of that has disturbed the session.
    bob.open(&first, &mut out).unwrap();
    assert_eq!(bob.open(&first, &mut out), Err(RecordError::Forged { counter: 1 }), "replayed");
    bob.open(&second, &mut out).unwrap();
    assert_eq!(out, b"firstsecond");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn threat_w3_a_flipped_bit_ends_that_handshake_only(message in 0..3_usize, at in any::<prop::sample::Index>(), bit in 0..8_u8) {
        let (mut initiator, mut responder) = pair(&prologue(), &prologue(), &PSK, &PSK);
        let failed = (0..3).any(|number| {
            let (from, to) =
                if number == 1 { (&mut responder, &mut initiator) } else { (&mut initiator, &mut responder) };
            let mut bytes = from.write(b"payload").unwrap();
            if number == message {
                let at = at.index(bytes.len());
                bytes[at] ^= 1 << bit;
            }
            // X25519 ignores an ephemeral key's top bit; the transcript does not, so it fails at that message too.
            to.read(&bytes).is_err()
        });
        prop_assert!(failed);
        let (mut alice, mut bob) = sessions();
        let mut out = Vec::new();
        bob.open(&record(&mut alice, b"on"), &mut out).unwrap();
        prop_assert_eq!(out, b"on");
    }

    #[test]
    fn threat_w1_any_bytes_are_a_message_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let (mut initiator, mut responder) = pair(&prologue(), &prologue(), &PSK, &PSK);
        prop_assert!(responder.read(&bytes).is_err());
        initiator.write(b"").unwrap();
        prop_assert!(initiator.read(&bytes).is_err());
    }
}
