//! Where entries lie: a memory tier, if there is one, and storage behind it; the entry that was used longest ago goes
//! first.

use std::collections::{BTreeMap, HashMap, VecDeque};

/// An entry's name: the cache of one turn of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub user: u32,
    pub conversation: u32,
    pub turn: u32,
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "user{}_conv{}_turn{}", self.user, self.conversation, self.turn)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tier {
    Host,
    Storage,
}

/// The memory tier is kept at this share of its size, and takes no entry that would fill it beyond the second.
const HOST_KEPT: f64 = 0.8;
const HOST_ENTRY_MAX: f64 = 0.95;
/// Storage that turned out to be full is emptied to this share of what it held.
const AFTER_FULL: f64 = 0.8;

#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub bytes: u64,
    pub tokens: u32,
    pub tier: Tier,
    /// One request reads it, or it is moved to another tier: whoever comes then waits.
    pub is_locked: bool,
    pub waiting: VecDeque<u32>,
    used: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Tiers {
    entries: HashMap<Key, Entry>,
    /// By last use, for each tier.
    order: [BTreeMap<u64, Key>; 2],
    pub used: [u64; 2],
    pub limit: [u64; 2],
    uses: u64,
    pub evicted: u64,
}

impl Tiers {
    pub(super) fn new(host_bytes: u64, storage_bytes: u64) -> Tiers {
        Tiers {
            entries: HashMap::new(),
            order: [BTreeMap::new(), BTreeMap::new()],
            used: [0, 0],
            limit: [host_bytes, storage_bytes],
            uses: 0,
            evicted: 0,
        }
    }

    pub(super) fn get(&self, key: Key) -> Option<&Entry> {
        self.entries.get(&key)
    }

    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut Entry> {
        self.entries.get_mut(&key)
    }

    pub(super) fn count(&self, tier: Tier) -> u64 {
        self.order[tier as usize].len() as u64
    }

    /// Takes note of a use.
    pub(super) fn touch(&mut self, key: Key) {
        self.uses += 1;
        if let Some(entry) = self.entries.get_mut(&key) {
            let order = &mut self.order[entry.tier as usize];
            order.remove(&entry.used);
            entry.used = self.uses;
            order.insert(entry.used, key);
        }
    }

    /// An entry has been written; its bytes were reserved before.
    pub(super) fn add(&mut self, key: Key, bytes: u64, tokens: u32, tier: Tier) {
        self.uses += 1;
        self.order[tier as usize].insert(self.uses, key);
        let entry =
            Entry { bytes, tokens, tier, is_locked: false, waiting: VecDeque::new(), used: self.uses };
        self.entries.insert(key, entry);
    }

    /// An entry that is gone, and its bytes with it.
    pub(super) fn remove(&mut self, key: Key) -> Option<Entry> {
        let entry = self.entries.remove(&key)?;
        self.order[entry.tier as usize].remove(&entry.used);
        self.give_back(entry.tier, entry.bytes);
        Some(entry)
    }

    pub(super) fn give_back(&mut self, tier: Tier, bytes: u64) {
        let used = &mut self.used[tier as usize];
        *used = used.saturating_sub(bytes);
    }

    /// An entry has been written to storage, where its bytes were reserved.
    pub(super) fn demote(&mut self, key: Key) {
        let Some(entry) = self.entries.get_mut(&key) else { return };
        self.order[Tier::Host as usize].remove(&entry.used);
        self.order[Tier::Storage as usize].insert(entry.used, key);
        entry.tier = Tier::Storage;
        let bytes = entry.bytes;
        self.give_back(Tier::Host, bytes);
    }

    /// The entry of a tier that was used longest ago, of those that nobody holds.
    fn oldest(&self, tier: Tier) -> Option<Key> {
        let is_free =
            |key: &&Key| self.entries.get(key).is_some_and(|e| !e.is_locked && e.waiting.is_empty());
        self.order[tier as usize].values().find(is_free).copied()
    }

    /// Whether the memory tier takes an entry at all.
    pub(super) fn host_takes(&self, bytes: u64) -> bool {
        let limit = self.limit[Tier::Host as usize] as f64;
        let held = self.used[Tier::Host as usize] as f64;
        let hopeless = held < 0.2 * limit && bytes as f64 > 0.5 * HOST_KEPT * limit && {
            held + bytes as f64 > HOST_KEPT * limit
        };
        limit > 0.0 && bytes as f64 <= HOST_ENTRY_MAX * limit && !hopeless
    }

    /// Reserves `bytes` of the memory tier, if they are free; else the entry that has to leave it first.
    pub(super) fn reserve_host(&mut self, bytes: u64) -> Reserved {
        let limit = self.limit[Tier::Host as usize] as f64;
        let used = &mut self.used[Tier::Host as usize];
        if (*used + bytes) as f64 <= HOST_KEPT * limit || (*used as f64) < 0.05 * limit {
            *used += bytes;
            return Reserved::Yes;
        }
        self.oldest(Tier::Host).map_or(Reserved::No, Reserved::After)
    }

    /// Reserves `bytes` of storage; what had to go for them is added to `gone`. Where nothing is left that may go, the
    /// bytes are reserved all the same: storage itself says whether they fit.
    pub(super) fn reserve_storage(&mut self, bytes: u64, gone: &mut Vec<Key>) {
        let limit = self.limit[Tier::Storage as usize];
        self.evict_to(limit.saturating_sub(bytes), gone);
        self.used[Tier::Storage as usize] += bytes;
    }

    fn evict_to(&mut self, most: u64, gone: &mut Vec<Key>) {
        while self.used[Tier::Storage as usize] > most {
            let Some(key) = self.oldest(Tier::Storage) else { break };
            self.remove(key);
            self.evicted += 1;
            gone.push(key);
        }
    }

    /// Storage is full, whatever its limit was said to be: that is `used` from now on, and is emptied to 80 % of it.
    /// False if there was nothing that may go.
    pub(super) fn is_full(&mut self, gone: &mut Vec<Key>) -> bool {
        let held = self.used[Tier::Storage as usize];
        self.limit[Tier::Storage as usize] = self.limit[Tier::Storage as usize].min(held).max(1);
        let before = gone.len();
        self.evict_to((held as f64 * AFTER_FULL) as u64, gone);
        gone.len() > before
    }
}

pub(super) enum Reserved {
    Yes,
    After(Key),
    No,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(turn: u32) -> Key {
        Key { user: 1, conversation: 1, turn }
    }

    fn with(storage: u64, sizes: &[u64]) -> Tiers {
        let mut tiers = Tiers::new(0, storage);
        for (turn, bytes) in (1..).zip(sizes) {
            tiers.reserve_storage(*bytes, &mut Vec::new());
            tiers.add(key(turn), *bytes, 1, Tier::Storage);
        }
        tiers
    }

    // promise: KVC-3
    #[test]
    fn storage_keeps_to_its_limit_and_gives_up_what_was_used_longest_ago() {
        let mut tiers = with(100, &[40, 30, 30]);
        tiers.touch(key(1));
        let mut gone = Vec::new();
        tiers.reserve_storage(40, &mut gone);
        assert_eq!((gone, tiers.used[1], tiers.evicted), (vec![key(2), key(3)], 80, 2));
        // An entry that is being read stays.
        tiers.get_mut(key(1)).unwrap().is_locked = true;
        let mut gone = Vec::new();
        tiers.reserve_storage(90, &mut gone);
        assert_eq!((gone.len(), tiers.used[1]), (0, 170));
    }

    #[test]
    fn storage_that_is_full_before_its_limit_is_emptied_to_four_fifths() {
        let mut tiers = with(1000, &[10; 10]);
        let mut gone = Vec::new();
        assert!(tiers.is_full(&mut gone));
        assert_eq!((gone, tiers.used[1], tiers.limit[1]), (vec![key(1), key(2)], 80, 100));
        let mut none = with(1000, &[]);
        assert!(!none.is_full(&mut Vec::new()));
    }

    #[test]
    fn memory_takes_entries_to_four_fifths_and_none_that_fills_it() {
        let mut tiers = Tiers::new(100, 1000);
        assert!(tiers.host_takes(30) && !tiers.host_takes(96));
        assert!(matches!(tiers.reserve_host(60), Reserved::Yes));
        tiers.add(key(1), 60, 1, Tier::Host);
        let Reserved::After(first) = tiers.reserve_host(30) else { panic!("it is full") };
        assert_eq!(first, key(1));
        let mut gone = Vec::new();
        tiers.reserve_storage(60, &mut gone);
        tiers.demote(first);
        assert_eq!((tiers.used, tiers.count(Tier::Host), tiers.count(Tier::Storage)), ([0, 60], 0, 1));
        assert!(matches!(tiers.reserve_host(30), Reserved::Yes));
    }
}
