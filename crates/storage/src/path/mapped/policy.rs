//! Policy of which windows stay registered: pure bookkeeping, so that it can be tested against arithmetic.
//!
//! Epochs read a file from its beginning to its end, again and again. Evicting
//! what was used least recently would then evict each window just before it is
//! read again. So a resident set is filled once and kept, and what doesn't fit
//! passes through a transient reserve. The reserve empties by halves, since each
//! unregistering waits for every copy in flight on the device.

use forebay_model::units::GIB;
use std::collections::VecDeque;

/// A window: number of its file in the registry, number of it in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Key {
    pub file: u32,
    pub window: u32,
}

/// The reserve is at least this, so that an eviction is worth its wait.
const RESERVE_BYTES_MIN: u64 = GIB;
/// A quarter of the cap passes windows through, where that is more.
const RESERVE_SHARE: u64 = 4;
/// The cap holds at least this many windows.
const WINDOWS_IN_CAP: u64 = 8;
/// Registering takes 60 µs even for one page, about a seventh of what 16 MiB take at 37 GiB/s: shorter windows register
/// at a lower rate. Longer ones than the maximum gain nothing, and are evicted as a whole.
const WINDOW_BYTES_MIN: u64 = 16 << 20;
const WINDOW_BYTES_MAX: u64 = 256 << 20;
const PAGE: u64 = 4096;

/// The window for readers that keep `in_flight_bytes` under way: the copies of one go on while the next is registered.
pub fn window_bytes(in_flight_bytes: u64, cap_bytes: u64) -> u64 {
    let wanted = (in_flight_bytes / 2).clamp(WINDOW_BYTES_MIN, WINDOW_BYTES_MAX);
    let wanted = wanted.min(cap_bytes / WINDOWS_IN_CAP);
    let power = if wanted == 0 { 0 } else { 1 << wanted.ilog2() };
    power.max(PAGE)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Registers the window: there is room.
    Register,
    /// Ask again when some of these are gone; they are in the order of their age.
    Evict(Vec<Key>),
    /// It isn't worth a place.
    Refuse,
}

#[derive(Debug)]
pub(super) struct Policy {
    cap_bytes: u64,
    /// Bytes of all files that take part.
    data_bytes: u64,
    resident: Vec<(Key, u64)>,
    resident_bytes: u64,
    transient: VecDeque<(Key, u64)>,
    transient_bytes: u64,
    peak_bytes: u64,
}

impl Policy {
    pub(super) fn new(cap_bytes: u64) -> Policy {
        Policy {
            cap_bytes,
            data_bytes: 0,
            resident: Vec::new(),
            resident_bytes: 0,
            transient: VecDeque::new(),
            transient_bytes: 0,
            peak_bytes: 0,
        }
    }

    #[cfg(test)]
    pub(super) fn cap_bytes(&self) -> u64 {
        self.cap_bytes
    }

    pub(crate) fn registered_bytes(&self) -> u64 {
        self.resident_bytes + self.transient_bytes
    }

    pub(crate) fn peak_bytes(&self) -> u64 {
        self.peak_bytes
    }

    /// All data may stay registered.
    pub(super) fn fits(&self) -> bool {
        self.data_bytes <= self.cap_bytes
    }

    /// Returns the part of the cap kept for windows that pass through.
    pub(crate) fn reserve_bytes(&self) -> u64 {
        if self.fits() {
            return 0;
        }
        (self.cap_bytes / RESERVE_SHARE).max(RESERVE_BYTES_MIN).min(self.cap_bytes)
    }

    /// A file of so many bytes takes part.
    pub(crate) fn add_file(&mut self, bytes: u64) {
        self.data_bytes = self.data_bytes.saturating_add(bytes);
        self.make_reserve();
    }

    /// A file left, and nothing of it is registered.
    pub(super) fn remove_file(&mut self, bytes: u64) {
        self.data_bytes = self.data_bytes.saturating_sub(bytes);
    }

    /// The system pins no more than is pinned now.
    pub(super) fn shrink(&mut self) {
        self.cap_bytes = self.registered_bytes();
        self.make_reserve();
    }

    /// Moves windows that leave the resident set to those that pass through, as the first to go.
    fn make_reserve(&mut self) {
        let most = self.cap_bytes - self.reserve_bytes();
        while self.resident_bytes > most {
            let Some((key, bytes)) = self.resident.pop() else { break };
            self.resident_bytes -= bytes;
            self.transient.push_front((key, bytes));
            self.transient_bytes += bytes;
        }
    }

    /// Decides about a window that isn't registered. `streams`: its reader goes through the file in order, so that all
    /// of it is about to be read. With `Register` it counts from now on.
    pub(super) fn admit(&mut self, key: Key, bytes: u64, streams: bool) -> Verdict {
        let reserve = self.reserve_bytes();
        if self.registered_bytes() + bytes <= self.cap_bytes {
            if self.resident_bytes + bytes <= self.cap_bytes - reserve {
                self.resident.push((key, bytes));
                self.resident_bytes += bytes;
                return self.admitted();
            }
            if streams && bytes <= reserve {
                self.transient.push_back((key, bytes));
                self.transient_bytes += bytes;
                return self.admitted();
            }
        }
        let into_resident = self.resident_bytes + bytes <= self.cap_bytes - reserve;
        if bytes > self.cap_bytes || !(into_resident || (streams && bytes <= reserve)) {
            return Verdict::Refuse;
        }
        Verdict::Evict(self.oldest_half(bytes))
    }

    fn admitted(&mut self) -> Verdict {
        self.peak_bytes = self.peak_bytes.max(self.registered_bytes());
        Verdict::Register
    }

    /// Transients whose end makes room for `bytes`, and for as much again as half of them hold.
    fn oldest_half(&self, bytes: u64) -> Vec<Key> {
        let over = (self.registered_bytes() + bytes).saturating_sub(self.cap_bytes);
        let wanted = over.max(self.transient_bytes / 2);
        let mut freed = 0;
        let enough = |(_, bytes): &&(Key, u64)| {
            let go_on = freed < wanted;
            freed += bytes;
            go_on
        };
        self.transient.iter().take_while(enough).map(|(key, _)| *key).collect()
    }

    /// It is no longer registered, or never came to be.
    pub(super) fn removed(&mut self, key: Key) {
        if let Some(at) = self.transient.iter().position(|(k, _)| *k == key) {
            let (_, bytes) = self.transient.remove(at).expect("its position was just found");
            self.transient_bytes -= bytes;
        } else if let Some(at) = self.resident.iter().position(|(k, _)| *k == key) {
            let (_, bytes) = self.resident.swap_remove(at);
            self.resident_bytes -= bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const MIB: u64 = 1 << 20;
    use forebay_model::units::GIB;

    fn key(window: u32) -> Key {
        Key { file: 0, window }
    }

    /// A registry that evicts whatever it is told to, and so always gets its way.
    struct Cache {
        policy: Policy,
        held: BTreeMap<Key, u64>,
        evictions: usize,
    }

    impl Cache {
        fn new(cap: u64, data: u64) -> Cache {
            let mut policy = Policy::new(cap);
            policy.add_file(data);
            Cache { policy, held: BTreeMap::new(), evictions: 0 }
        }

        /// Notes a read; true if the window was registered already.
        fn read(&mut self, key: Key, bytes: u64, streams: bool) -> bool {
            if self.held.contains_key(&key) {
                return true;
            }
            loop {
                match self.policy.admit(key, bytes, streams) {
                    Verdict::Register => {
                        self.held.insert(key, bytes);
                        return false;
                    }
                    Verdict::Refuse => return false,
                    Verdict::Evict(keys) => {
                        assert!(!keys.is_empty(), "room that nothing can make");
                        self.evictions += 1;
                        for k in keys {
                            self.held.remove(&k).expect("only what is held is evicted");
                            self.policy.removed(k);
                        }
                    }
                }
            }
        }

        fn sum(&self) -> u64 {
            self.held.values().sum()
        }
    }

    proptest! {
        // promise: ENG-12
        #[test]
        fn never_above_the_cap_and_the_books_agree_with_a_plain_sum(
            cap in 1u64..4096, files in 1u64..8192,
            asks in prop::collection::vec((0u32..40, 1u64..300, any::<bool>(), 0u8..20), 1..200),
        ) {
            let mut cache = Cache::new(cap * MIB, files * MIB);
            for (window, bytes, streams, act) in asks {
                match act {
                    0 => cache.policy.shrink(),
                    1 => cache.policy.add_file(bytes * MIB),
                    2 => if let Some(k) = cache.held.keys().next().copied() {
                        cache.held.remove(&k);
                        cache.policy.removed(k);
                    },
                    _ => { cache.read(key(window), bytes * MIB, streams); }
                }
                prop_assert!(cache.sum() <= cache.policy.cap_bytes());
                prop_assert!(cache.policy.cap_bytes() <= cap * MIB);
                prop_assert_eq!(cache.sum(), cache.policy.registered_bytes());
                prop_assert!(cache.policy.peak_bytes() >= cache.sum());
            }
        }

        /// An epoch hits at least what the resident set holds, in whole windows.
        // promise: ENG-12
        #[test]
        fn epochs_hit_what_the_cap_leaves_beside_the_reserve(cap_mib in 64u64..8192, windows in 1u32..300) {
            let cap = cap_mib * MIB;
            let window = window_bytes(GIB, cap);
            let data = u64::from(windows) * window;
            let mut cache = Cache::new(cap, data);
            for w in 0..windows {
                prop_assert!(!cache.read(key(w), window, true), "the first epoch hits nothing");
            }
            let kept = cap.min(data) - cache.policy.reserve_bytes();
            for _ in 0..3 {
                let hits = (0..windows).filter(|w| cache.read(key(*w), window, true)).count() as u64;
                prop_assert!(hits >= kept / window, "{hits} of {windows}, resident {}", kept / window);
            }
        }

        #[test]
        fn windows_are_powers_of_two_and_eight_of_them_fit(in_flight in 0u64..1 << 40, cap in 32768u64..1 << 40) {
            let window = window_bytes(in_flight, cap);
            prop_assert!(window.is_power_of_two() && window <= 256 * MIB && 8 * window <= cap.max(32768));
        }
    }

    #[test]
    fn the_reserve_goes_by_halves() {
        let mut cache = Cache::new(GIB, 16 * GIB);
        for w in 0..128 {
            cache.read(key(w), 128 * MIB, true);
        }
        // 8 windows, then 4 more for each eviction.
        assert_eq!(cache.evictions, 30);
    }

    #[test]
    fn what_is_read_here_and_there_never_evicts() {
        let mut cache = Cache::new(4 * GIB, 64 * GIB);
        for w in 0..512 {
            cache.read(key(w), 128 * MIB, false);
        }
        assert_eq!((cache.evictions, cache.held.len()), (0, 24));
    }
}
