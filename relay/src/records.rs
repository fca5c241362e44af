//! Announcements that the relay keeps for others, within bounds.
//!
//! Anybody can announce anything, with any number of addresses; and the store drops expired records only when somebody
//! asks for them, so that a flood would fill it for good.

use std::collections::BTreeMap;

use libp2p::kad::store::{MemoryStore, RecordStore};
use libp2p::kad::{ProviderRecord, RecordKey};
use tokio::time::Instant;

use crate::server::PROVIDER_TTL;

/// Keys that are kept: some 20 MiB with a provider or two each.
pub const KEYS_MAX: usize = 16 * 1024;

/// Addresses that are kept of one provider.
const ADDRS_MAX: usize = 16;

/// Which keys are kept, and until when.
#[derive(Debug, Default)]
pub struct Records {
    kept: BTreeMap<Vec<u8>, Instant>,
}

impl Records {
    /// Keeps an announcement if there is room.
    pub fn keep(&mut self, store: &mut MemoryStore, mut record: ProviderRecord, now: Instant) {
        let key = record.key.to_vec();
        if !self.kept.contains_key(&key) && self.kept.len() >= KEYS_MAX {
            self.expire(store, now);
            if self.kept.len() >= KEYS_MAX {
                return;
            }
        }
        record.addresses.truncate(ADDRS_MAX);
        if store.add_provider(record).is_ok() {
            self.kept.insert(key, now + PROVIDER_TTL);
        }
    }

    /// Drops what has expired.
    pub fn expire(&mut self, store: &mut MemoryStore, now: Instant) {
        self.kept.retain(|key, until| {
            if *until > now {
                return true;
            }
            let key = RecordKey::new(key);
            for record in store.providers(&key) {
                store.remove_provider(&key, &record.provider);
            }
            false
        });
    }
}

#[cfg(test)]
mod tests {
    use libp2p::PeerId;
    use libp2p::kad::store::MemoryStoreConfig;

    use super::*;

    fn announcement(key: u64, provider: PeerId) -> ProviderRecord {
        ProviderRecord::new(RecordKey::new(&key.to_be_bytes()), provider, vec!["/memory/1".parse().unwrap(); 40])
    }

    #[tokio::test(start_paused = true)]
    async fn case_c19_keys_are_bounded_and_expire_unasked() {
        let provider = PeerId::random();
        let config = MemoryStoreConfig { max_provided_keys: KEYS_MAX, ..Default::default() };
        let mut store = MemoryStore::with_config(PeerId::random(), config);
        let mut records = Records::default();
        let now = Instant::now();
        for key in 0..KEYS_MAX as u64 + 10 {
            records.keep(&mut store, announcement(key, provider), now);
        }
        assert_eq!(records.kept.len(), KEYS_MAX);
        let kept = store.providers(&RecordKey::new(&0_u64.to_be_bytes()));
        assert_eq!((kept.len(), kept[0].addresses.len()), (1, ADDRS_MAX));
        assert!(store.providers(&RecordKey::new(&(KEYS_MAX as u64).to_be_bytes())).is_empty());

        // A stranger's flood is gone when its time is over, and makes room.
        let later = now + PROVIDER_TTL;
        records.keep(&mut store, announcement(u64::MAX, provider), later);
        assert_eq!(records.kept.len(), 1);
        assert!(store.providers(&RecordKey::new(&0_u64.to_be_bytes())).is_empty());
    }
}
