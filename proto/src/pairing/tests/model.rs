//! Random interleavings: no order of events enrols a thief.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::super::*;
use super::world::World;

/// One step of an interleaving. The operator holds device 0; the others are thieves who have photographed the link.
#[derive(Clone, Debug)]
enum Step {
    Connect(usize),
    Disconnect(usize),
    Carry {
        device: usize,
        to_host: bool,
        max: usize,
    },
    Settle,
    /// The operator types what device 0 shows.
    Type,
    /// The operator types something else, at a thief's prompt or a friend's.
    Blunder,
    /// The shell finishes an enrolment that was approved.
    Enrol,
    Junk {
        device: usize,
        bytes: Vec<u8>,
    },
    Pass(u64),
    Offer,
}

fn any_step() -> impl Strategy<Value = Step> {
    let device = 0..3_usize;
    prop_oneof![
        4 => device.clone().prop_map(Step::Connect),
        1 => device.clone().prop_map(Step::Disconnect),
        8 => (device.clone(), any::<bool>(), prop_oneof![1..80_usize, Just(usize::MAX)])
            .prop_map(|(device, to_host, max)| Step::Carry { device, to_host, max }),
        3 => Just(Step::Settle),
        3 => Just(Step::Type),
        1 => Just(Step::Blunder),
        2 => Just(Step::Enrol),
        1 => (device, prop::collection::vec(any::<u8>(), 1..60)).prop_map(|(device, bytes)| Step::Junk { device, bytes }),
        1 => prop_oneof![Just(1_000), Just(11_000), Just(61_000)].prop_map(Step::Pass),
        1 => Just(Step::Offer),
    ]
}

/// What an interleaving came to.
#[derive(Debug, Default)]
struct Outcome {
    joined: bool,
    approved: bool,
    reasons: Vec<Reason>,
}

fn run(steps: Vec<Step>) -> Outcome {
    let mut world = World::new();
    world.is_prompt = false;
    let link = world.offer();
    for seed in 0..3 {
        world.joiner(&link, seed);
    }
    let mut waits = false;
    for step in steps {
        match step {
            Step::Connect(device) => world.connect(device),
            Step::Disconnect(device) => world.disconnect(device),
            Step::Carry { device, to_host, max } => {
                world.carry(device, to_host, max);
            }
            Step::Settle => world.settle(),
            Step::Type => {
                if let Some(digits) = world.joiners[0].digits.clone() {
                    let before = world.approvals.len();
                    // Nobody shows digits, or these are of an earlier stream: either is the host's to judge.
                    let _ = world.digits(&digits);
                    waits |= world.approvals.len() > before;
                }
            }
            Step::Blunder => {
                let _ = world.digits("000000");
            }
            Step::Enrol => {
                if std::mem::take(&mut waits) {
                    world.enrol();
                    world.drain_host();
                }
            }
            Step::Junk { device, bytes } => {
                if let Some(conn) = world.joiners[device].conn {
                    world.host(HostInput::Received { conn, bytes });
                }
            }
            Step::Pass(ms) => world.pass(ms),
            // A newer offer, of which nobody here has the link.
            Step::Offer => {
                let _ = world.host.offer(World::terms(), world.now);
                world.drain_host();
            }
        }
    }
    world.settle();
    let honest = world.joiners[0].keys.device();
    assert!(world.approvals.iter().all(|approval| approval.binding.device == honest));
    assert!(world.enrolled.iter().all(|device| *device == honest));
    assert!(world.joiners[1..].iter().all(|thief| thief.joined.is_none()));
    assert!(world.org.devices().all(|(device, _)| device == honest || device == world.keys.device()));
    let joined = world.joiners[0].joined.is_some();
    assert!(!joined || world.enrolled == [honest]);
    Outcome { joined, approved: !world.approvals.is_empty(), reasons: world.refusals }
}

#[test]
fn interleavings_reach_what_they_are_to_prove_safe() {
    let mut runner = TestRunner::deterministic();
    let steps = prop::collection::vec(any_step(), 1..60);
    let outcomes: Vec<_> = (0..300).map(|_| run(steps.new_tree(&mut runner).unwrap().current())).collect();
    let count = |is: &dyn Fn(&Outcome) -> bool| outcomes.iter().filter(|outcome| is(outcome)).count();
    assert!(count(&|outcome| outcome.joined) > 0);
    assert!(count(&|outcome| outcome.approved && !outcome.joined) > 0);
    for reason in [Reason::Raced, Reason::DigitsTimeout, Reason::WrongDigits, Reason::Cancelled] {
        assert!(count(&|outcome| outcome.reasons.contains(&reason)) > 0, "{reason}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn threat_pair_no_interleaving_enrols_a_thief(steps in prop::collection::vec(any_step(), 1..60)) {
        run(steps);
    }
}
