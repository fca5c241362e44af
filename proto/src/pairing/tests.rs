mod model;
mod world;

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::crypto::keys::{DeviceKeys, RootKey};
use crate::entry::Role;
use crate::id::{DeviceId, Hash};
use crate::org::{Action, Founding, Org};
use crate::time::Millis;
use world::{HOST_PEER, World, rng};

#[test]
fn a_device_whose_digits_are_typed_is_enrolled() {
    let mut world = World::new();
    let link = world.offer();
    let lab = world.joiner(&link, 1);
    world.pair(lab);
    assert_eq!(world.claims, ["lab"]);
    let device = world.joiners[lab].keys.device();
    assert_eq!(world.enrolled, [device]);
    let joined = world.joiners[lab].joined.as_ref().unwrap();
    assert_eq!(joined.org, world.org);
    assert_eq!((joined.name.as_str(), joined.role, joined.node), ("lab", Role::Member, world.keys.device()));
    assert_eq!(joined.link_key.psk(&world.org.fingerprint()), world.link_key.psk(&world.org.fingerprint()));
    assert_eq!(joined.peer, HOST_PEER);
    assert!(joined.org.may(&device, Action::HostTurns));
    assert!(!world.host.is_offering());
    assert_eq!(world.joiners[lab].machine.poll_timeout(), None);
}

#[test]
fn streams_may_be_cut_anywhere() {
    let mut world = World::new();
    let link = world.offer();
    let lab = world.joiner(&link, 1);
    world.connect(lab);
    while world.carry(lab, true, 1) || world.carry(lab, false, 1) {}
    let digits = world.joiners[lab].digits.clone().unwrap();
    world.digits(&digits).unwrap();
    while world.carry(lab, true, 7) || world.carry(lab, false, 7) {}
    assert!(world.joiners[lab].joined.is_some());
}

#[test]
fn a_chain_longer_than_a_frame_arrives_whole() {
    let mut world = World::new();
    let device = world.keys.device();
    for number in 0..2500 {
        let body = crate::entry::Body::DeviceChanged { device, role: Role::Owner, name: format!("desk {number}") };
        let entry = world.org.entry(body, 8);
        world.org.apply(&entry.clone().at(Hash::ZERO)).unwrap();
        world.entries.push(entry);
    }
    assert!(world.chain().len() > 1024 * 1024);
    let link = world.offer();
    let lab = world.joiner(&link, 1);
    world.pair(lab);
    assert_eq!(world.joiners[lab].joined.as_ref().unwrap().org, world.org);
}

#[test]
fn threat_pair_a_wrong_code_changes_nothing_and_gets_no_answer() {
    let mut world = World::new();
    let old = world.offer();
    let link = world.offer();
    assert_eq!(world.refusals, [Reason::Cancelled]);
    let (stranger, lab) = (world.joiner(&old, 1), world.joiner(&link, 2));
    for _ in 0..10 {
        world.connect(stranger);
        assert!(world.carry(stranger, true, usize::MAX));
        assert!(world.joiners[stranger].conn.is_none(), "closed without a byte");
    }
    assert!(world.host.is_offering());
    world.pair(lab);
    assert!(world.joiners[lab].joined.is_some());
    world.pass(STEP_MS);
    assert_eq!(world.joiners[stranger].refused, Some(Reason::SpentOrExpired));
}

#[test]
fn threat_pair_wrong_digits_burn_the_offer() {
    let mut world = World::new();
    let link = world.offer();
    let (lab, other) = (world.joiner(&link, 1), world.joiner(&link, 2));
    let digits = world.claim(lab).unwrap();
    let wrong = if digits == "000000" { "000001" } else { "000000" };
    world.digits(wrong).unwrap();
    assert_eq!(world.refusals, [Reason::WrongDigits]);
    assert_eq!(world.joiners[lab].refused, Some(Reason::WrongDigits));
    assert!(matches!(world.digits(&digits), Err(HostError::NoClaim)));
    assert_eq!(world.claim(other), None);
    assert!(world.approvals.is_empty() && world.enrolled.is_empty());
}

#[test]
fn what_are_not_six_digits_costs_no_try() {
    let mut world = World::new();
    let link = world.offer();
    assert!(matches!(world.digits("123456"), Err(HostError::NoClaim)));
    let lab = world.joiner(&link, 1);
    let digits = world.claim(lab).unwrap();
    for typo in ["", "12345", "1234567", "12345a", "１２３４５６"] {
        assert!(matches!(world.digits(typo), Err(HostError::NotDigits)), "{typo}");
    }
    world.digits(&format!(" {}-{}\n", &digits[..3], &digits[3..])).unwrap();
    world.settle();
    assert!(world.joiners[lab].joined.is_some());
}

#[test]
fn threat_pair_a_race_burns_the_offer_and_both_sessions() {
    let mut world = World::new();
    let link = world.offer();
    let (lab, thief) = (world.joiner(&link, 1), world.joiner(&link, 2));
    let digits = world.claim(thief).unwrap();
    assert_eq!(world.claim(lab), None);
    assert_eq!(world.refusals, [Reason::Raced]);
    assert_eq!(world.joiners[thief].refused, Some(Reason::Raced));
    assert!(matches!(world.digits(&digits), Err(HostError::NoClaim)));
    assert!(world.enrolled.is_empty() && world.approvals.is_empty());
}

#[test]
fn threat_pair_a_race_after_the_first_has_left_burns_the_offer_too() {
    let mut world = World::new();
    let link = world.offer();
    let (lab, thief) = (world.joiner(&link, 1), world.joiner(&link, 2));
    world.claim(thief).unwrap();
    world.disconnect(thief);
    assert_eq!(world.claim(lab), None);
    assert_eq!(world.refusals, [Reason::Raced]);
}

#[test]
fn threat_pair_after_approval_another_claim_is_turned_away() {
    let mut world = World::new();
    world.is_prompt = false;
    let link = world.offer();
    let (lab, thief) = (world.joiner(&link, 1), world.joiner(&link, 2));
    let digits = world.claim(lab).unwrap();
    world.digits(&digits).unwrap();
    assert_eq!(world.claim(thief), None);
    world.enrol();
    world.drain_host();
    world.settle();
    assert!(world.joiners[lab].joined.is_some() && world.refusals.is_empty());
    assert_eq!(world.claim(thief), None);
    assert_eq!(world.enrolled, [world.joiners[lab].keys.device()]);
}

#[test]
fn case_p10_an_offer_is_dead_after_success_after_its_time_and_after_a_restart() {
    let mut world = World::new();
    let link = world.offer();
    let (lab, late) = (world.joiner(&link, 1), world.joiner(&link, 2));
    world.pair(lab);
    assert_eq!(world.claim(late), None, "used");

    let link = world.offer();
    world.pass(OFFER_MS - 1);
    assert!(world.host.is_offering());
    world.pass(1);
    assert_eq!(world.refusals, [Reason::Expired]);
    let late = world.joiner(&link, 3);
    assert_eq!(world.claim(late), None, "expired");
    world.pass(STEP_MS);
    assert_eq!(world.joiners[late].refused, Some(Reason::SpentOrExpired));

    let link = world.offer();
    let (org, keys) = (world.org.fingerprint(), world.keys.clone());
    world.host = Host::new(org, keys, HOST_PEER.to_vec(), Box::new(rng(30)));
    let late = world.joiner(&link, 4);
    assert_eq!(world.claim(late), None, "restarted");
}

#[test]
fn threat_a5_a_late_timer_lengthens_nothing() {
    let mut world = World::new();
    let link = world.offer();
    let late = world.joiner(&link, 1);
    // The shell has not fed the timeout.
    world.now = world.now + OFFER_MS;
    assert_eq!(world.claim(late), None);
    assert_eq!(world.refusals, [Reason::Expired]);

    let link = world.offer();
    let late = world.joiner(&link, 2);
    let digits = world.claim(late).unwrap();
    world.now = world.now + DIGITS_MS;
    assert!(matches!(world.digits(&digits), Err(HostError::NoClaim)));
    assert_eq!(world.refusals, [Reason::Expired, Reason::DigitsTimeout]);
}

#[test]
fn threat_a5_an_offer_does_not_outlive_a_jump_of_the_clock() {
    let mut world = World::new();
    world.offer();
    world.host(HostInput::ClockJumped);
    assert_eq!(world.refusals, [Reason::Expired]);
    let link = world.offer();
    let lab = world.joiner(&link, 1);
    world.claim(lab).unwrap();
    world.host(HostInput::ClockJumped);
    assert_eq!(world.refusals, [Reason::Expired, Reason::DigitsTimeout]);

    // What a person has approved goes on.
    world.is_prompt = false;
    world.pass(OFFERS_WINDOW_MS);
    let link = world.offer();
    let lab = world.joiner(&link, 2);
    let digits = world.claim(lab).unwrap();
    world.digits(&digits).unwrap();
    world.host(HostInput::ClockJumped);
    world.enrol();
    world.drain_host();
    world.settle();
    assert!(world.joiners[lab].joined.is_some());
}

/// Sends the first message alone: whoever does has the code. The stream stays open at the host, and nothing more comes.
/// False: the host did not take it.
fn knock(world: &mut World, link: &str, seed: u64) -> bool {
    let thief = world.joiner(link, seed);
    world.connect(thief);
    let knocked = world.carry(thief, true, usize::MAX);
    world.joiners[thief].conn = None;
    knocked
}

#[test]
fn threat_pair_who_has_the_link_cannot_keep_the_device_out() {
    let mut world = World::new();
    let link = world.offer();
    assert!((10..14).all(|seed| knock(&mut world, &link, seed)));
    let lab = world.joiner(&link, 1);
    world.pair(lab);
    assert!(world.joiners[lab].joined.is_some());
}

#[test]
fn threat_pair_streams_that_show_the_code_in_vain_are_an_alarm() {
    let mut world = World::new();
    let link = world.offer();
    for seed in 0..u64::from(IN_VAIN_MAX) + 4 {
        assert!(world.host.is_offering(), "{seed}");
        let last = seed == u64::from(IN_VAIN_MAX) + 3;
        assert_eq!(knock(&mut world, &link, 10 + seed), !last, "{seed}");
    }
    assert_eq!(world.refusals, [Reason::Raced]);
    assert!(!world.host.is_offering());
}

#[test]
fn threat_pair_a_claimant_that_comes_again_and_again_ends_the_offer() {
    let mut world = World::new();
    let link = world.offer();
    let lab = world.joiner(&link, 1);
    for _ in 0..CLAIMS_MAX {
        assert!(world.claim(lab).is_some());
    }
    world.claim(lab);
    assert_eq!((world.claims.len(), world.refusals.as_slice()), (CLAIMS_MAX as usize, &[Reason::Raced][..]));
}

#[test]
fn digits_of_a_device_that_has_left_end_the_offer_with_a_reason() {
    let mut world = World::new();
    let link = world.offer();
    let lab = world.joiner(&link, 1);
    let digits = world.claim(lab).unwrap();
    world.disconnect(lab);
    world.digits(&digits).unwrap();
    assert_eq!(world.refusals, [Reason::DeviceGone]);
    assert!(!world.host.is_offering() && world.approvals.is_empty());
}

#[test]
fn threat_pair_a_host_cannot_keep_a_device_waiting_piece_by_piece() {
    let mut world = World::new();
    let link = PairLink::parse(&world.offer()).unwrap();
    let (own, peer) = (Arc::new(DeviceKeys::generate(&mut rng(100))), b"peer".to_vec());
    let mut device = Device::new(link.clone(), own, "lab", Millis(0), Box::new(rng(200))).unwrap();
    let prologue = crate::crypto::noise::Prologue {
        purpose: crate::crypto::noise::Purpose::Pair,
        version: PAIR_VERSION,
        org: link.org,
        initiator_peer: peer.clone(),
        responder_peer: HOST_PEER.to_vec(),
        epoch: 0,
    };
    let secret = world.keys.noise_secret();
    let noise = crate::crypto::noise::Handshake::responder(&prologue, &link.psk(), secret, rng(5)).unwrap();
    let mut host = pipe::Pipe::responder(noise);
    device.handle(DeviceInput::Connected { own_peer: peer, host_peer: HOST_PEER.to_vec() }, Millis(0));
    let turn = |device: &mut Device, host: &mut pipe::Pipe, now: u64| {
        device.handle(DeviceInput::Received(host.take_out()), Millis(now));
        let mut refused = None;
        while let Some(output) = device.poll_output() {
            match output {
                DeviceOutput::Send(bytes) => host.push(&bytes).unwrap(),
                DeviceOutput::Refused { reason } => refused = Some(reason),
                _ => {}
            }
        }
        while host.next().unwrap().is_some() {}
        refused
    };
    for _ in 0..3 {
        assert_eq!(turn(&mut device, &mut host, 1), None);
    }
    let (org, name) = ("acme".to_owned(), "desk".to_owned());
    host.say(&pipe::Said::Hello { role: Role::Member, org, host: name.clone() }, &[7; pipe::NONCE_LEN]).unwrap();
    assert_eq!(turn(&mut device, &mut host, 2), None);
    let news = pipe::Said::Enrolled { certificate: String::new(), name, node: world.keys.device(), addrs: Vec::new() };
    host.say(&news, &world.link_key.to_secret_bytes()[..]).unwrap();
    let mut now = 3;
    let refused = (0..1000).find_map(|_| {
        host.say(&pipe::Said::Chain { last: false }, &[]).unwrap();
        now += STEP_MS - 1;
        turn(&mut device, &mut host, now)
    });
    assert_eq!(refused, Some(Reason::BadOrg));
    assert!(now < 300_000, "{now} ms");
}

#[test]
fn digits_are_waited_for_a_minute_even_past_the_offers_own_time() {
    let mut world = World::new();
    let link = world.offer();
    world.pass(OFFER_MS - 1);
    let lab = world.joiner(&link, 1);
    let digits = world.claim(lab).unwrap();
    world.pass(DIGITS_MS - 1);
    world.digits(&digits).unwrap();
    world.settle();
    assert!(world.joiners[lab].joined.is_some());

    let link = world.offer();
    let lab = world.joiner(&link, 2);
    world.claim(lab).unwrap();
    world.pass(DIGITS_MS);
    assert_eq!(world.refusals, [Reason::DigitsTimeout]);
    assert_eq!(world.joiners[lab].refused, Some(Reason::DigitsTimeout));
}

#[test]
fn a_device_that_lost_its_stream_comes_again_and_gets_no_second_minute() {
    let mut world = World::new();
    let link = world.offer();
    let lab = world.joiner(&link, 1);
    let first = world.claim(lab).unwrap();
    world.pass(DIGITS_MS / 2);
    let second = world.claim(lab).unwrap();
    assert_ne!(first, second);
    world.pass(DIGITS_MS / 2 - 1);
    assert!(world.host.is_offering());
    world.digits(&second).unwrap();
    world.settle();
    assert!(world.joiners[lab].joined.is_some());

    let link = world.offer();
    let lab = world.joiner(&link, 2);
    world.claim(lab).unwrap();
    world.pass(DIGITS_MS / 2);
    world.claim(lab).unwrap();
    world.pass(DIGITS_MS / 2);
    assert_eq!(world.refusals, [Reason::DigitsTimeout]);
}

#[test]
fn a_device_that_missed_the_news_gets_the_same_certificate() {
    let mut world = World::new();
    world.is_prompt = false;
    let link = world.offer();
    let lab = world.joiner(&link, 1);
    let digits = world.claim(lab).unwrap();
    world.digits(&digits).unwrap();
    world.disconnect(lab);
    world.enrol();
    world.drain_host();
    let before = world.org.clone();
    // The stream is lost once more, in the middle of the news.
    world.connect(lab);
    while world.joiners[lab].joined.is_none() && (world.carry(lab, true, 500) || world.carry(lab, false, 100)) {
        if world.wires.values().any(|(_, to_device)| to_device.len() > 1000) {
            break;
        }
    }
    world.claim(lab);
    let joined = world.joiners[lab].joined.as_ref().unwrap();
    assert_eq!(joined.certificate, before.device(&world.joiners[lab].keys.device()).unwrap().certificate);
    assert_eq!((&world.org, world.enrolled.len()), (&before, 1));
}

#[test]
fn offers_are_few() {
    let mut world = World::new();
    for _ in 0..OFFERS_MAX {
        world.offer();
        world.pass(1000);
    }
    let wait = match world.host.offer(World::terms(), world.now) {
        Err(HostError::TooMany { wait_ms }) => wait_ms,
        other => panic!("{other:?}"),
    };
    assert_eq!(wait, OFFERS_WINDOW_MS - 1000 * OFFERS_MAX as u64);
    world.pass(wait - 1);
    assert!(world.host.offer(World::terms(), world.now).is_err());
    world.pass(1);
    world.offer();
}

#[test]
fn threat_pair_no_link_makes_an_admin() {
    let mut world = World::new();
    for role in [Role::Admin, Role::Owner] {
        let refused = world.host.offer(Terms { role, ..World::terms() }, world.now);
        assert!(matches!(refused, Err(HostError::RoleTooHigh(_))));
    }
}

#[test]
fn threat_w5_strangers_who_fill_the_slots_do_not_keep_a_device_out() {
    let mut world = World::new();
    let link = world.offer();
    for conn in 0..1000 {
        world.host(HostInput::Opened { conn: ConnId(1_000_000 + conn), peer: Vec::new() });
    }
    assert!(world.host.poll_timeout().is_some());
    let lab = world.joiner(&link, 1);
    world.pair(lab);
    assert!(world.joiners[lab].joined.is_some());
}

#[test]
fn threat_w5_half_open_streams_are_closed_in_time() {
    let mut world = World::new();
    world.offer();
    world.host(HostInput::Opened { conn: ConnId(99), peer: Vec::new() });
    assert_eq!(world.host.poll_timeout(), Some(world.now + STEP_MS));
    world.pass(STEP_MS);
    assert_eq!(world.host.poll_timeout(), Some(Millis(1000) + OFFER_MS));
}

#[test]
fn threat_w4_a_stream_moved_to_another_peer_is_refused() {
    let mut world = World::new();
    let link = world.offer();
    let lab = world.joiner(&link, 1);
    world.connect(lab);
    let conn = world.joiners[lab].conn.unwrap();
    let first = world.wires.get_mut(&conn).unwrap().0.drain(..).collect();
    let other = ConnId(500);
    world.host(HostInput::Opened { conn: other, peer: b"somebody".to_vec() });
    world.host(HostInput::Received { conn: other, bytes: first });
    assert_eq!(world.claims.len(), 0);
    assert!(world.host.is_offering());
}

#[test]
fn a_device_gives_up_on_a_silent_host_after_ten_seconds() {
    let mut world = World::new();
    let link = world.offer();
    let lab = world.joiner(&link, 1);
    assert_eq!(world.joiners[lab].machine.poll_timeout(), Some(world.now + STEP_MS));
    world.pass(STEP_MS - 1);
    assert_eq!(world.joiners[lab].refused, None);
    world.pass(1);
    assert_eq!(world.joiners[lab].refused, Some(Reason::SpentOrExpired));
    assert_eq!(world.joiners[lab].machine.poll_timeout(), None);
}

#[test]
fn names_that_play_tricks_are_refused_at_both_ends() {
    let mut world = World::new();
    let link = PairLink::parse(&world.offer()).unwrap();
    let keys = Arc::new(DeviceKeys::generate(&mut rng(5)));
    for name in ["", "a\u{202e}b", "\u{1b}[2Jdesk"] {
        let refused = Device::new(link.clone(), keys.clone(), name, world.now, Box::new(rng(6)));
        assert!(matches!(refused, Err(JoinError::Name(_))));
    }
    let terms = Terms { org_name: "ac\u{200b}me".to_owned(), ..World::terms() };
    let link = world.host.offer(terms, world.now).unwrap().link.to_string();
    let lab = world.joiner(&link, 1);
    assert_eq!(world.claim(lab), None);
}

/// What a host sends after the digits must be the org of the link, with this device in it.
#[test]
fn a_device_believes_only_the_org_of_its_link() {
    type Lie = fn(&mut Welcome, &mut World);
    let lies: [(&str, Lie); 6] = [
        ("a chain that lacks the device", |welcome, world| {
            world.entries.pop();
            welcome.chain = world.chain();
        }),
        ("a broken chain", |welcome, _| {
            welcome.chain.truncate(welcome.chain.len() - 10);
        }),
        ("another org's chain", |welcome, _| welcome.chain = World::new().chain()),
        ("somebody else's certificate", |welcome, world| {
            let founder = world.keys.device();
            welcome.certificate = world.org.device(&founder).unwrap().certificate.clone();
        }),
        ("another name", |welcome, _| welcome.name.push('x')),
        ("another host", |welcome, _| welcome.node = DeviceId([1; 32])),
    ];
    for (what, lie) in lies {
        let mut world = World::new();
        // So that another world's chain is another org's.
        let root = RootKey::generate(&mut rng(77));
        let Founding { org, entries } = Org::found("acme", "desk", &root, &world.keys, 7, &mut rng(78)).unwrap();
        (world.org, world.entries) = (org, entries);
        world.host = Host::new(world.org.fingerprint(), world.keys.clone(), HOST_PEER.to_vec(), Box::new(rng(79)));
        world.is_prompt = false;
        let link = world.offer();
        let lab = world.joiner(&link, 1);
        let digits = world.claim(lab).unwrap();
        world.digits(&digits).unwrap();

        let Approval { binding, held, name, role } = world.approvals[0].clone();
        let enrolment = world.org.enrol(binding, held, &name, role, world.keys.signing()).unwrap();
        let entry = world.org.entry(enrolment.body.unwrap(), 9);
        world.org.apply(&entry.clone().at(Hash::ZERO)).unwrap();
        world.entries.push(entry);
        let mut welcome = Welcome {
            device: binding.device,
            certificate: enrolment.certificate,
            name: enrolment.name,
            chain: world.chain(),
            link_key: world.link_key.clone(),
            node: world.keys.device(),
            addrs: Vec::new(),
        };
        lie(&mut welcome, &mut world);
        world.host(HostInput::Enrolled(Box::new(welcome)));
        world.settle();
        assert!(world.joiners[lab].joined.is_none(), "{what}");
        assert_eq!(world.joiners[lab].refused, Some(Reason::BadOrg), "{what}");
    }
}

#[test]
fn the_operators_no_and_a_failed_enrolment_are_told() {
    let mut world = World::new();
    let link = world.offer();
    let lab = world.joiner(&link, 1);
    world.claim(lab).unwrap();
    world.host(HostInput::Cancel);
    assert_eq!(world.joiners[lab].refused, Some(Reason::Cancelled));

    world.is_prompt = false;
    let link = world.offer();
    let lab = world.joiner(&link, 2);
    let digits = world.claim(lab).unwrap();
    world.digits(&digits).unwrap();
    world.host(HostInput::NotEnrolled);
    assert_eq!(world.joiners[lab].refused, Some(Reason::NotEnrolled));
    assert_eq!(world.refusals, [Reason::Cancelled, Reason::NotEnrolled]);
}

#[test]
fn reasons_have_one_spelling() {
    for reason in [
        Reason::Expired,
        Reason::SpentOrExpired,
        Reason::WrongDigits,
        Reason::DigitsTimeout,
        Reason::Raced,
        Reason::Cancelled,
        Reason::NotEnrolled,
        Reason::BadOrg,
        Reason::Other,
    ] {
        assert_eq!(serde_json::to_string(&reason).unwrap(), format!("\"{reason}\""));
    }
    assert_eq!(serde_json::from_str::<Reason>("\"from_2031\"").unwrap(), Reason::Other);
}

proptest! {
    #[test]
    fn threat_w1_any_bytes_from_a_stranger_leave_the_offer_as_it_is(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..6)) {
        let mut world = World::new();
        world.offer();
        world.host(HostInput::Opened { conn: ConnId(7), peer: Vec::new() });
        for bytes in chunks {
            world.host(HostInput::Received { conn: ConnId(7), bytes });
        }
        prop_assert!(world.host.is_offering() && world.claims.is_empty() && world.refusals.is_empty());
    }
}
