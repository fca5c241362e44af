use proptest::prelude::*;
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng;

use super::*;
use crate::crypto::cert::Binding;
use crate::crypto::keys::{DeviceKeys, RootKey};
use crate::entry::NewEntry;
use crate::log::{Head, LogBuilder, LogId, line};

fn keys(seed: u64) -> DeviceKeys {
    DeviceKeys::generate(&mut ChaCha20Rng::seed_from_u64(seed))
}

fn root() -> RootKey {
    RootKey::generate(&mut ChaCha20Rng::seed_from_u64(1000))
}

/// The founder's keys are `keys(0)`.
fn founding() -> Founding {
    Org::found("acme", "desk", &root(), &keys(0), 7, &mut ChaCha20Rng::seed_from_u64(1)).unwrap()
}

fn org() -> Org {
    founding().org
}

fn append(org: &mut Org, body: Body) -> Result<(), OrgError> {
    // The fold trusts the log layer for the hash chain.
    org.apply(&org.entry(body, 0).at(Hash::ZERO))
}

/// Enrols `keys(seed)` by the hand of `keys(issuer)`.
fn enrol(org: &mut Org, seed: u64, role: Role, issuer: u64) -> Result<DeviceId, OrgError> {
    let (binding, held) = Binding::of(&keys(seed), org.fingerprint());
    let enrolment = org.enrol(binding, held, "box", role, keys(issuer).signing())?;
    append(org, enrolment.body.expect("not enrolled before"))?;
    Ok(binding.device)
}

fn change(org: &mut Org, device: DeviceId, role: Role) -> Result<(), OrgError> {
    append(org, Body::DeviceChanged { device, role, name: "renamed".to_owned() })
}

fn homed(seed: u64, epoch: u32, start: u64, prev: Hash) -> Body {
    let (channel, name) = (ChannelId([1; 32]), ChannelName::new("lobby").unwrap());
    Body::ChannelHomed { channel, name, home: keys(seed).device(), epoch: Epoch(epoch), start: Seq(start), prev }
}

/// The chain's raw lines as its home writes them: the founding in one batch, each later entry in one of its own.
fn lines(entries: Vec<NewEntry>, org: &Org, signer: &DeviceKeys) -> Vec<u8> {
    let mut builder = LogBuilder::new(LogId::Org(org.fingerprint()), Head::default());
    let mut out = Vec::new();
    for (index, entry) in entries.into_iter().enumerate() {
        builder.append(entry, &mut out).unwrap();
        if index > 0 {
            builder.seal(signer.signing(), &mut out).unwrap();
        }
    }
    out
}

#[test]
fn a_founded_org_is_read_back_from_its_lines() {
    let Founding { mut org, mut entries } = founding();
    assert_eq!(org.home(), Some(keys(0).device()));
    assert_eq!((org.name(), org.root(), org.seq()), ("acme", root().id(), Seq(2)));
    assert!(org.may(&keys(0).device(), Action::MoveHome));

    let (binding, held) = Binding::of(&keys(1), org.fingerprint());
    let enrolment = org.enrol(binding, held, "lab", Role::Member, keys(0).signing()).unwrap();
    entries.push(org.entry(enrolment.body.unwrap(), 8));
    org.apply(&entries[2].clone().at(Hash::ZERO)).unwrap();
    entries.push(org.entry(homed(0, 1, 1, Hash::ZERO), 9));
    org.apply(&entries[3].clone().at(Hash::ZERO)).unwrap();

    let bytes = lines(entries, &org, &keys(0));
    assert_eq!(Org::read(&bytes).unwrap(), org);
    let first = line::split(&bytes).next().unwrap();
    assert_eq!(org.fingerprint(), crate::log::org_id(first));
}

#[test]
fn a_chain_that_was_touched_is_not_read() {
    let Founding { org, entries } = founding();
    let good = lines(entries.clone(), &org, &keys(0));
    assert!(Org::read(&good).is_ok());
    assert!(matches!(Org::read(b""), Err(OrgError::NotFounded)));
    // Sealed by somebody else.
    assert!(matches!(Org::read(&lines(entries, &org, &keys(5))), Err(OrgError::Log(_))));
    // Without its seal.
    let unsealed: Vec<u8> = line::split(&good).take(2).flat_map(|line| line.iter().copied().chain([b'\n'])).collect();
    assert!(matches!(Org::read(&unsealed), Err(OrgError::Log(_))));
    // Any changed byte: either it can't be read, or it is another org.
    for at in (0..good.len()).step_by(7) {
        let mut bad = good.clone();
        bad[at] ^= 1;
        let read = Org::read(&bad);
        assert!(read.is_err(), "byte {at}");
    }
}

/// Who reads a stranger's chain must not pay for certificates that nobody sealed.
#[test]
fn threat_w1_what_is_not_sealed_is_not_folded() {
    let Founding { org, mut entries } = founding();
    let impossible = homed(9, 1, 1, Hash::ZERO);
    entries.push(org.entry(impossible, 8));
    let sealed = lines(entries.clone(), &org, &keys(0));
    assert!(matches!(Org::read(&sealed), Err(OrgError::NotEnrolled { .. })));
    let forged = lines(entries, &org, &keys(1));
    assert!(matches!(Org::read(&forged), Err(OrgError::Log(_))));
}

#[test]
fn a_noise_key_names_its_live_device_and_stays_used_up() {
    let mut org = org();
    let lab = enrol(&mut org, 1, Role::Member, 0).unwrap();
    assert_eq!(org.by_noise(&keys(1).noise()).map(|(id, _)| id), Some(lab));
    append(&mut org, Body::DeviceRevoked { device: lab }).unwrap();
    assert!(org.by_noise(&keys(1).noise()).is_none());
    assert!(matches!(enrol(&mut org, 1, Role::Member, 0), Err(OrgError::Enrolled { .. })));
}

#[test]
fn two_orgs_of_one_name_and_root_are_two() {
    let other = Org::found("acme", "desk", &root(), &keys(0), 7, &mut ChaCha20Rng::seed_from_u64(2)).unwrap();
    assert_ne!(other.org.fingerprint(), org().fingerprint());
}

#[test]
fn devices_are_enrolled_by_those_who_may_and_not_deeper_than_two() {
    let mut org = org();
    let lab = enrol(&mut org, 1, Role::Member, 0).unwrap();
    assert!(org.may(&lab, Action::HostTurns) && !org.may(&lab, Action::EnrolDevice));
    assert!(matches!(enrol(&mut org, 2, Role::Observer, 1), Err(OrgError::Issuer { .. })));
    change(&mut org, lab, Role::Admin).unwrap();
    let phone = enrol(&mut org, 2, Role::Observer, 1).unwrap();
    assert_eq!(org.device(&phone).map(|device| (device.depth, device.serial)), Some((2, 3)));
    assert!(org.may(&phone, Action::Read) && !org.may(&phone, Action::Post));
    change(&mut org, phone, Role::Admin).unwrap();
    assert!(enrol(&mut org, 3, Role::Observer, 2).is_err(), "depth 3");
    // Strangers, even with a good certificate of their own making.
    assert!(matches!(enrol(&mut org, 3, Role::Observer, 9), Err(OrgError::Issuer { .. })));
}

#[test]
fn enrolment_gives_members_at_most_and_promotion_is_apart() {
    let mut org = org();
    for role in [Role::Admin, Role::Owner] {
        assert!(matches!(enrol(&mut org, 1, role, 0), Err(OrgError::RoleTooHigh { .. })));
    }
    let device = enrol(&mut org, 1, Role::Member, 0).unwrap();
    change(&mut org, device, Role::Owner).unwrap();
    assert!(org.may(&device, Action::ChangeDevice));
}

#[test]
fn a_device_that_comes_again_gets_the_same_certificate() {
    let mut org = org();
    enrol(&mut org, 1, Role::Member, 0).unwrap();
    let (binding, held) = Binding::of(&keys(1), org.fingerprint());
    let again = org.enrol(binding, held.clone(), "other", Role::Observer, keys(0).signing()).unwrap();
    let device = org.live(&binding.device).unwrap();
    assert_eq!((again.certificate, again.name), (device.certificate.clone(), "box".to_owned()));
    assert!(again.body.is_none());
    // With another Noise key it is no repetition, and the signature does not fit it either.
    let other = Binding { noise: keys(2).noise(), ..binding };
    assert!(org.enrol(other, held, "box", Role::Member, keys(0).signing()).is_err());
}

#[test]
fn names_of_live_devices_are_apart() {
    let mut org = org();
    let first = enrol(&mut org, 1, Role::Member, 0).unwrap();
    let second = enrol(&mut org, 2, Role::Member, 0).unwrap();
    let name = |org: &Org, device| org.device(&device).map(|device| device.name.clone()).unwrap();
    assert_eq!((name(&org, first).as_str(), name(&org, second).as_str()), ("box", "box-2"));
    append(&mut org, Body::DeviceRevoked { device: first }).unwrap();
    let third = enrol(&mut org, 3, Role::Member, 0).unwrap();
    assert_eq!(name(&org, third), "box");
}

#[test]
fn threat_a4_a_revoked_device_may_nothing_and_never_comes_back() {
    let mut org = org();
    let device = enrol(&mut org, 1, Role::Member, 0).unwrap();
    change(&mut org, device, Role::Admin).unwrap();
    append(&mut org, Body::DeviceRevoked { device }).unwrap();
    for (action, _) in RIGHTS {
        assert!(!org.may(&device, *action), "{action:?}");
    }
    assert_eq!(org.by_noise(&keys(1).noise()), None);
    assert!(org.live(&device).is_none() && org.device(&device).is_some());
    assert!(matches!(enrol(&mut org, 1, Role::Member, 0), Err(OrgError::Enrolled { .. })));
    assert!(matches!(change(&mut org, device, Role::Member), Err(OrgError::NotEnrolled { .. })));
    assert!(matches!(append(&mut org, homed(1, 1, 1, Hash::ZERO)), Err(OrgError::NotEnrolled { .. })));
    assert!(enrol(&mut org, 2, Role::Observer, 1).is_err(), "what it issues is void");
}

#[test]
fn the_chains_writer_stays_its_owner() {
    let mut org = org();
    let home = keys(0).device();
    assert!(matches!(append(&mut org, Body::DeviceRevoked { device: home }), Err(OrgError::HomeStays { .. })));
    assert!(matches!(change(&mut org, home, Role::Admin), Err(OrgError::HomeStays { .. })));
    change(&mut org, home, Role::Owner).unwrap();
    assert_eq!(org.device(&home).map(|device| device.name.as_str()), Some("renamed"));
}

#[test]
fn a_channels_epochs_follow_each_other() {
    let mut org = org();
    enrol(&mut org, 1, Role::Member, 0).unwrap();
    let prev = Hash([9; 32]);
    assert!(matches!(append(&mut org, homed(0, 1, 2, Hash::ZERO)), Err(OrgError::Epoch { .. })));
    assert!(matches!(append(&mut org, homed(0, 1, 1, prev)), Err(OrgError::Epoch { .. })));
    append(&mut org, homed(0, 1, 1, Hash::ZERO)).unwrap();
    assert!(matches!(append(&mut org, homed(1, 1, 5, prev)), Err(OrgError::Epoch { .. })));
    append(&mut org, homed(1, 2, 5, prev)).unwrap();
    assert!(matches!(append(&mut org, homed(0, 3, 4, prev)), Err(OrgError::Epoch { .. })));
    let channel = ChannelId([1; 32]);
    let terms: Vec<_> = org.terms(&channel).iter().map(|term| (term.epoch, term.start, term.home)).collect();
    assert_eq!(terms, [(Epoch(1), Seq(1), keys(0).device()), (Epoch(2), Seq(5), keys(1).device())]);
    assert_eq!(org.channels().map(|(id, term)| (id, term.epoch)).collect::<Vec<_>>(), [(channel, Epoch(2))]);
    assert!(org.terms(&ChannelId([2; 32])).is_empty());
}

#[test]
fn entries_that_cannot_stand_there_change_nothing() {
    let mut org = org();
    let before = org.clone();
    let good = org.entry(Body::Unknown, 0).at(Hash::ZERO);
    let bad = [
        Entry { seq: Seq(2), ..good.clone() },
        Entry { seq: Seq(4), ..good.clone() },
        Entry { lamport: Lamport(2), ..good.clone() },
        Entry { lamport: Lamport(COUNTER_MAX + 1), ..good.clone() },
        Entry { epoch: Epoch(0), ..good.clone() },
        Entry { by: Some(crate::id::MemberId(1)), ..good.clone() },
        Entry { auth: Auth::Resident { node: keys(0).device(), sig: String::new() }, ..good.clone() },
        Entry { body: Body::ChannelArchived {}, ..good.clone() },
        Entry { body: founding().entries[0].body.clone(), ..good.clone() },
        Entry { body: founding().entries[1].body.clone(), ..good.clone() },
        Entry { body: Body::DeviceRevoked { device: keys(7).device() }, ..good.clone() },
    ];
    for entry in bad {
        assert!(org.apply(&entry).is_err(), "{entry:?}");
        assert_eq!(org, before);
    }
    // What a newer version wrote stands, and says nothing.
    org.apply(&good).unwrap();
    assert_eq!(org.seq(), Seq(3));
}

#[test]
fn certificates_of_other_orgs_and_numbers_are_refused() {
    let mut org = org();
    let other = Org::found("acme", "desk", &root(), &keys(0), 7, &mut ChaCha20Rng::seed_from_u64(2)).unwrap().org;
    let issue = |org: &Org, serial, depth, issuer: &ed25519_dalek::SigningKey| {
        let (binding, held) = Binding::of(&keys(1), org.fingerprint());
        let certificate = Certificate::issue(binding, held, serial, depth, issuer).unwrap().to_json().unwrap();
        Body::DeviceEnrolled { certificate, role: Role::Member, name: "box".to_owned() }
    };
    let founder = keys(0);
    let refused = append(&mut org, issue(&other, 2, 1, founder.signing()));
    assert!(matches!(refused, Err(OrgError::OtherOrg { .. })));
    let body = issue(&org, 3, 1, founder.signing());
    assert!(matches!(append(&mut org, body), Err(OrgError::Serial { got: 3, expected: 2, .. })));
    let body = issue(&org, 2, 0, founder.signing());
    assert!(matches!(append(&mut org, body), Err(OrgError::Issuer { .. })), "a device that calls itself the root");
    let body = issue(&org, 2, 2, founder.signing());
    assert!(matches!(append(&mut org, body), Err(OrgError::Issuer { .. })));
    let body = issue(&org, 2, 0, root().signing());
    append(&mut org, body).unwrap();
}

#[test]
fn names_are_checked() {
    let found = |name: &str, device: &str| {
        Org::found(name, device, &root(), &keys(0), 7, &mut ChaCha20Rng::seed_from_u64(1)).is_ok()
    };
    assert!(found("acme", "desk"));
    assert!(!found("", "desk") && !found("acme", "de\u{1b}sk") && !found(&"x".repeat(65), "desk"));
    let mut org = org();
    let device = keys(0).device();
    let renamed = append(&mut org, Body::DeviceChanged { device, role: Role::Owner, name: " ".to_owned() });
    assert!(matches!(renamed, Err(OrgError::Name(_))));
}

#[derive(Clone, Debug)]
enum Step {
    Enrol { seed: u64, issuer: u64, role: Role },
    Change { seed: u64, role: Role },
    Revoke { seed: u64 },
}

fn any_step() -> impl Strategy<Value = Step> {
    let role = prop::sample::select(vec![Role::Observer, Role::Member, Role::Admin, Role::Owner]);
    prop_oneof![
        (1..6_u64, 0..6_u64, role.clone()).prop_map(|(seed, issuer, role)| Step::Enrol { seed, issuer, role }),
        (0..6_u64, role).prop_map(|(seed, role)| Step::Change { seed, role }),
        (0..6_u64).prop_map(|seed| Step::Revoke { seed }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn whatever_happens_the_org_stays_governed(steps in prop::collection::vec(any_step(), 0..12)) {
        let mut org = org();
        let mut revoked = std::collections::BTreeSet::new();
        for step in steps {
            let before = org.clone();
            let done = match step {
                Step::Enrol { seed, issuer, role } => {
                    let (binding, held) = Binding::of(&keys(seed), org.fingerprint());
                    match org.enrol(binding, held, "box", role, keys(issuer).signing()) {
                        Ok(enrolment) => enrolment.body.map_or(Ok(()), |body| append(&mut org, body)),
                        Err(error) => Err(error),
                    }
                }
                Step::Change { seed, role } => change(&mut org, keys(seed).device(), role),
                Step::Revoke { seed } => {
                    let device = keys(seed).device();
                    append(&mut org, Body::DeviceRevoked { device }).map(|()| { revoked.insert(device); })
                }
            };
            if done.is_err() {
                prop_assert_eq!(&org, &before);
            }
            prop_assert!(org.may(&keys(0).device(), Action::MoveHome));
            prop_assert!(revoked.iter().all(|device| !org.may(device, Action::Read)));
            let mut serials: Vec<_> = org.devices().map(|(_, device)| device.serial).collect();
            serials.sort_unstable();
            prop_assert_eq!(serials, (1..=org.devices().count() as u64).collect::<Vec<_>>());
        }
    }
}
