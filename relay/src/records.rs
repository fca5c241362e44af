//! Announcements that the relay keeps for others, within bounds.
//!
//! Anybody can announce anything, with any number of addresses; and the store drops expired records only when somebody
//! asks for them, so that a flood would fill it for good.

use std::collections::BTreeMap;

use libp2p::PeerId;
use libp2p::kad::store::{MemoryStore, RecordStore};
use libp2p::kad::{ProviderRecord, RecordKey};
use tokio::time::Instant;

use crate::server::PROVIDER_TTL;

/// Keys that are kept: some 20 MiB with a provider or two each.
pub const KEYS_MAX: usize = 16 * 1024;

/// Addresses that are kept of one provider.
const ADDRS_MAX: usize = 16;

/// Keys that are kept of one provider. A home announces a few topics a day.
const KEYS_PER_PROVIDER_MAX: usize = 64;

/// Which announcements are kept, and until when.
#[derive(Debug, Default)]
pub struct Records {
    /// By provider and key.
    kept: BTreeMap<PeerId, BTreeMap<Vec<u8>, Instant>>,
    /// How many providers each key has.
    keys: BTreeMap<Vec<u8>, usize>,
}

impl Records {
    /// Keeps an announcement if there is room, also at the cost of a provider that has more than its share.
    pub fn keep(&mut self, store: &mut MemoryStore, mut record: ProviderRecord, now: Instant) {
        let (provider, key) = (record.provider, record.key.to_vec());
        let count = self.kept.get(&provider).map_or(0, BTreeMap::len);
        let again = self.kept.get(&provider).is_some_and(|keys| keys.contains_key(&key));
        if !again && count >= KEYS_PER_PROVIDER_MAX {
            return;
        }
        if !self.keys.contains_key(&key) && self.keys.len() >= KEYS_MAX {
            self.expire(store, now);
            if self.keys.len() >= KEYS_MAX && !self.take_from_the_greediest(store, count) {
                return;
            }
        }
        record.addresses.truncate(ADDRS_MAX);
        if store.add_provider(record).is_ok() {
            if !again {
                *self.keys.entry(key.clone()).or_default() += 1;
            }
            self.kept.entry(provider).or_default().insert(key, now + PROVIDER_TTL);
        }
    }

    /// Drops what has expired.
    pub fn expire(&mut self, store: &mut MemoryStore, now: Instant) {
        let all =
            self.kept.iter().flat_map(|(provider, keys)| keys.iter().map(|(key, until)| (*provider, key, *until)));
        let over: Vec<_> = all.filter(|(.., until)| *until <= now).map(|(peer, key, _)| (peer, key.clone())).collect();
        over.into_iter().for_each(|(provider, key)| self.forget(store, provider, &key));
    }

    /// Makes room for a key of somebody who has `count`: drops the oldest of whoever has most. False when nobody has
    /// so many more that it would be fair, or when others provide that key, too.
    fn take_from_the_greediest(&mut self, store: &mut MemoryStore, count: usize) -> bool {
        let Some((provider, keys)) = self.kept.iter().max_by_key(|(_, keys)| keys.len()) else { return false };
        if keys.len() <= count + 1 {
            return false;
        }
        let alone = keys.iter().filter(|(key, _)| self.keys.get(*key) == Some(&1));
        let Some((key, _)) = alone.min_by_key(|(_, until)| **until) else { return false };
        let (provider, key) = (*provider, key.clone());
        self.forget(store, provider, &key);
        true
    }

    fn forget(&mut self, store: &mut MemoryStore, provider: PeerId, key: &[u8]) {
        store.remove_provider(&RecordKey::new(&key), &provider);
        if let Some(keys) = self.kept.get_mut(&provider) {
            keys.remove(key);
            if keys.is_empty() {
                self.kept.remove(&provider);
            }
        }
        if let Some(count) = self.keys.get_mut(key) {
            *count -= 1;
            if *count == 0 {
                self.keys.remove(key);
            }
        }
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

    fn store() -> MemoryStore {
        let config = MemoryStoreConfig { max_provided_keys: KEYS_MAX, ..Default::default() };
        MemoryStore::with_config(PeerId::random(), config)
    }

    fn has(store: &MemoryStore, key: u64) -> bool {
        !store.providers(&RecordKey::new(&key.to_be_bytes())).is_empty()
    }

    #[tokio::test(start_paused = true)]
    async fn case_c19_keys_are_bounded_and_expire_unasked() {
        let (mut store, mut records, now) = (store(), Records::default(), Instant::now());
        let providers: Vec<_> = (0..KEYS_MAX).map(|_| PeerId::random()).collect();
        for (key, provider) in (0..).zip(&providers) {
            records.keep(&mut store, announcement(key, *provider), now);
        }
        assert_eq!(records.keys.len(), KEYS_MAX);
        let kept = store.providers(&RecordKey::new(&0_u64.to_be_bytes()));
        assert_eq!((kept.len(), kept[0].addresses.len()), (1, ADDRS_MAX));
        records.keep(&mut store, announcement(u64::MAX, PeerId::random()), now);
        assert!(!has(&store, u64::MAX), "nobody has more than one");

        // A stranger's flood is gone when its time is over, and makes room.
        let later = now + PROVIDER_TTL;
        records.keep(&mut store, announcement(u64::MAX, providers[0]), later);
        assert_eq!((records.keys.len(), records.kept.len()), (1, 1));
        assert!(!has(&store, 0) && has(&store, u64::MAX));
    }

    #[tokio::test(start_paused = true)]
    async fn threat_w5_one_provider_has_a_share_of_the_keys() {
        let (mut store, mut records, now) = (store(), Records::default(), Instant::now());
        let greedy = PeerId::random();
        for key in 0..1000 {
            records.keep(&mut store, announcement(key, greedy), now);
        }
        assert_eq!(records.keys.len(), KEYS_PER_PROVIDER_MAX);
        // The same again takes no place.
        records.keep(&mut store, announcement(0, greedy), now);
        assert_eq!(records.keys.len(), KEYS_PER_PROVIDER_MAX);

        // Many of them fill everything; an honest home's new topic still finds room, at their cost.
        let mut key = 1000;
        while records.keys.len() < KEYS_MAX {
            let provider = PeerId::random();
            for _ in 0..KEYS_PER_PROVIDER_MAX {
                records.keep(&mut store, announcement(key, provider), now);
                key += 1;
            }
        }
        let home = PeerId::random();
        for topic in 0..3 {
            records.keep(&mut store, announcement(u64::MAX - topic, home), now);
            assert!(has(&store, u64::MAX - topic));
        }
        assert_eq!(records.keys.len(), KEYS_MAX);
    }
}
