//! Over real TCP on loopback.

use std::sync::Arc;

use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng;
use tieline_proto::crypto::keys::DeviceKeys;
use tieline_proto::entry::Role;
use tieline_proto::pairing::{PairLink, Reason, Terms, Welcome};

use super::*;
use crate::addr::Guard;
use crate::tests::{Node, World, in_memory, transport_key};
use crate::{NetEvent, PeerHints};

fn terms(world: &World) -> Terms {
    Terms {
        role: Role::Member,
        org_name: world.org.name().to_owned(),
        host_name: "n0".to_owned(),
        addrs: Vec::new(),
        ttl_ms: None,
    }
}

fn joiner(seed: u64) -> JoinConfig {
    let mut rng = ChaCha20Rng::seed_from_u64(seed);
    let device = Arc::new(DeviceKeys::generate(&mut rng));
    JoinConfig { keypair: transport_key(&device), device, name: "lab".to_owned(), rng, loopback: true }
}

async fn pair_event(host: &mut Node) -> PairEvent {
    match host.until(|event| matches!(event, NetEvent::Pair { .. })).await {
        NetEvent::Pair { event, .. } => event,
        _ => unreachable!(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_joins_by_link_and_digits_and_then_links() {
    let mut world = World::new(60, 1);
    let mut host = world.start(0).await;
    let offered = host.net.pair_offer(OfferId(1), terms(&world)).await.unwrap();
    let link = PairLink::parse(&offered.link).unwrap();
    let config = joiner(61);
    let device = config.device.clone();
    let (digits, shown) = std::sync::mpsc::channel();
    let joining = tokio::spawn(join(config, link, move |shown| digits.send(shown).unwrap()));

    let PairEvent::Claimed { name, role } = pair_event(&mut host).await else { panic!("no claim") };
    assert_eq!((name.as_str(), role), ("lab", Role::Member));
    let shown = tokio::task::spawn_blocking(move || shown.recv().unwrap()).await.unwrap();
    assert_eq!((shown.org.as_str(), shown.host.as_str()), ("test", "n0"));
    host.net.pair_confirm(shown.digits).await.unwrap();
    let PairEvent::Approved(approval) = pair_event(&mut host).await else { panic!("no approval") };
    let enrolment =
        world.org.enrol(approval.binding, approval.held, &approval.name, approval.role, world.keys[0].signing());
    let enrolment = enrolment.unwrap();
    world.append(enrolment.body.unwrap());
    let welcome = Welcome {
        device: approval.binding.device,
        certificate: enrolment.certificate,
        name: enrolment.name,
        chain: world.chain.clone(),
        link_key: world.link_key.clone(),
        node: host.id,
        addrs: host.net.reachable().iter().map(ToString::to_string).collect(),
    };
    host.view.send_replace(Arc::new(world.view(false)));
    host.net.pair_enrolled(OfferId(1), Some(Box::new(welcome))).await.unwrap();
    let PairEvent::Enrolled { device: enrolled, .. } = pair_event(&mut host).await else { panic!("not enrolled") };
    assert_eq!(enrolled, device.device());

    let joined = joining.await.unwrap().unwrap();
    assert_eq!((joined.org.fingerprint(), joined.node), (world.org.fingerprint(), host.id));
    assert_ne!(joined.org.seq().0, 0);

    // What it got is enough to link.
    world.keys.push(device);
    let mut lab = world.start(1).await;
    let addrs = joined.addrs.iter().map(|addr| addr.parse().unwrap()).collect();
    lab.want_at(joined.node, PeerHints { peer_id: libp2p::PeerId::from_bytes(&joined.peer).ok(), addrs });
    lab.until_up(host.id).await;
    host.until_up(lab.id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_digits_burn_the_offer_on_both_sides() {
    let mut world = World::new(62, 1);
    let mut host = world.start(0).await;
    let offered = host.net.pair_offer(OfferId(1), terms(&world)).await.unwrap();
    let link = PairLink::parse(&offered.link).unwrap();
    let joining = tokio::spawn(join(joiner(63), link, |_| {}));
    assert!(matches!(pair_event(&mut host).await, PairEvent::Claimed { .. }));
    assert!(host.net.pair_confirm("12".to_owned()).await.is_err(), "no six digits: costs no try");
    // One in a million that these are right.
    host.net.pair_confirm("000000".to_owned()).await.unwrap();
    let PairEvent::Refused { reason } = pair_event(&mut host).await else { panic!("not refused") };
    assert_eq!(reason, Reason::WrongDigits);
    let error = joining.await.unwrap().unwrap_err();
    assert!(matches!(error, JoinError::Refused(Reason::WrongDigits)), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_newer_offer_takes_an_older_ones_place_and_only_that() {
    let mut world = World::new(68, 1);
    let (mut host, _) = world.start_in_memory(0).await;
    let first = host.net.pair_offer(OfferId(1), terms(&world)).await.unwrap();
    let second = host.net.pair_offer(OfferId(2), terms(&world)).await.unwrap();
    assert_ne!(*first.link, *second.link);
    let told = host.until(|event| matches!(event, NetEvent::Pair { .. })).await;
    let NetEvent::Pair { offer, event: PairEvent::Refused { reason } } = told else { panic!("{told:?}") };
    assert_eq!((offer, reason), (OfferId(1), Reason::Cancelled));
    // What comes late for the first does nothing to the second.
    host.net.pair_cancel(OfferId(1)).await.unwrap();
    host.net.pair_enrolled(OfferId(1), None).await.unwrap();
    host.net.pair_cancel(OfferId(2)).await.unwrap();
    let told = host.until(|event| matches!(event, NetEvent::Pair { .. })).await;
    let NetEvent::Pair { offer, event: PairEvent::Refused { reason } } = told else { panic!("{told:?}") };
    assert_eq!((offer, reason), (OfferId(2), Reason::Cancelled), "it stood until it was taken back itself");
}

#[tokio::test(start_paused = true)]
async fn case_p10_a_device_gives_up_on_a_silent_host() {
    let mut world = World::new(64, 1);
    let (host, _) = world.start_in_memory(0).await;
    let offered = host.net.pair_offer(OfferId(1), terms(&world)).await.unwrap();
    let link = PairLink::parse(&offered.link).unwrap();
    host.net.pair_cancel(OfferId(1)).await.unwrap();
    let begun = tokio::time::Instant::now();
    let (config, guard) = (joiner(65), Guard::with_loopback(true));
    let transport = in_memory(&config.keypair);
    let error = join_over(transport, guard, config, link, |_| {}).await.unwrap_err();
    assert!(matches!(error, JoinError::Refused(Reason::SpentOrExpired)), "{error}");
    assert_eq!(begun.elapsed().as_secs(), 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn threat_l9_a_link_cannot_make_a_device_dial_its_own_box() {
    let mut world = World::new(66, 1);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let host = world.start(0).await;
    let offered = host.net.pair_offer(OfferId(1), terms(&world)).await.unwrap();
    let mut link = PairLink::parse(&offered.link).unwrap();
    let addr = |text: String| text.parse::<libp2p::Multiaddr>().unwrap().to_vec();
    link.addrs = vec![addr(format!("/ip4/127.0.0.1/tcp/{port}")), addr(format!("/ip4/169.254.169.254/tcp/{port}"))];
    let mut config = joiner(67);
    config.loopback = false;
    let error = tokio::time::timeout(std::time::Duration::from_millis(700), join(config, link, |_| {})).await;
    assert!(error.is_err(), "still trying, and finding no address to try");
    assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}
