//! Power losses: what was acknowledged is there, whatever a crash leaves of the rest.

use std::io;

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};
use tieline_proto::log::Head;

use super::*;
use crate::fault::Call;

/// Commits of random sizes with syncs that fail at a random place, then a power loss: every acknowledged entry is in
/// the image, the log opens and is not broken, and it goes on from there.
#[test]
fn threat_a8_acked_entries_survive_every_crash_image() {
    let mut lost = 0;
    for seed in 0..300 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut pick = |n: u64| rng.next_u64() % n;
        let disk = disk();
        let mut core = core(&disk);
        let mut acked = 0;
        let mut next = 1;
        let rounds = 1 + pick(6);
        let fails_at = pick(rounds + 1);
        for round in 0..rounds {
            if round == fails_at {
                disk.fail(Call::Sync, "log", io::ErrorKind::Other, pick(2), 1);
            }
            let sizes: Vec<u64> = (0..=pick(3)).map(|_| 1 + pick(4)).collect();
            let batch: Vec<_> = sizes
                .iter()
                .map(|len| {
                    let seqs = next..next + len;
                    next += len;
                    (next - 1, commit("lobby", next - 1, seqs))
                })
                .collect();
            let reports = commits(&mut core, batch.into_iter().map(|(_, commit)| commit));
            acked = durable(&reports).into_iter().max().unwrap_or(acked).max(acked);
        }
        let image = disk.crash(seed);
        let (opened, entries) = open(&image, "lobby");
        assert!(opened.broken.is_none(), "seed {seed}: {:?}", opened.broken);
        assert!(entries.len() as u64 >= acked, "seed {seed}: {acked} acked, {} there", entries.len());
        assert!(entries.iter().zip(1..).all(|(entry, seq)| entry.seq == Seq(seq)), "seed {seed}: a gap");
        lost += u64::from((entries.len() as u64) < next - 1);

        // It goes on, and a second start finds nothing to mend.
        let head: Head = opened.head;
        let mut core = super::core(&image);
        core.submit(Command::Add(Box::new(opened)));
        let reports = commits(&mut core, [commit("lobby", 1, [head.seq.0 + 1])]);
        assert_eq!(durable(&reports), [1], "seed {seed}");
        let (again, _) = open(&image.crash(seed + 1), "lobby");
        assert_eq!((again.head.seq, again.repair), (head.seq.next(), None), "seed {seed}");
    }
    assert!(lost > 0, "no image lacked anything: the test shows nothing");
}
