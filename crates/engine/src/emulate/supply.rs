//! Holds back what was read to a rate that was asked for: what if the storage were slower?

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering};

/// What wasn't used for a while isn't lost up to this much of it, ns.
const BURST_NS: u64 = 50_000_000;

/// So many bytes per second, shared by threads without a lock: one number says when all that was handed on so far will
/// have come. Time comes in as ns since the run began.
#[derive(Debug)]
pub struct Supply {
    bytes_per_s: u64,
    come_at: AtomicU64,
}

impl Supply {
    pub fn new(gib_s: f64) -> Supply {
        let bytes_per_s = (gib_s * (1u64 << 30) as f64).max(1.0) as u64;
        Supply { bytes_per_s, come_at: AtomicU64::new(0) }
    }

    /// Hands on so many bytes: when the last of them will have come. Who asks late, but within a burst of when the line
    /// ran dry, finds it moved on without a gap: the rate holds for who asks for more all the time.
    pub fn hand_on(&self, bytes: u64, now_ns: u64) -> u64 {
        let takes_ns = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_s);
        let takes_ns = u64::try_from(takes_ns).unwrap_or(u64::MAX);
        let earliest = now_ns.saturating_sub(BURST_NS);
        let end = |before: u64| before.max(earliest).saturating_add(takes_ns);
        let before =
            self.come_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |before| Some(end(before)));
        end(before.unwrap_or_else(|before| before))
    }

    /// From now on nothing is in reserve.
    pub fn forget_reserve(&self, now_ns: u64) {
        self.come_at.fetch_max(now_ns, Ordering::Relaxed);
    }
}

/// A worker's reads that have to wait, by when they may be seen.
#[derive(Default)]
pub struct Delays(BinaryHeap<Reverse<(u64, u32)>>);

impl Delays {
    /// A read is complete, and must wait.
    pub fn add(&mut self, due: u64, tag: u32) {
        self.0.push(Reverse((due, tag)));
    }

    pub fn next(&mut self, now: u64) -> Option<u32> {
        let Reverse((due, tag)) = *self.0.peek()?;
        (due <= now).then(|| {
            self.0.pop();
            tag
        })
    }

    pub fn due(&self) -> Option<u64> {
        self.0.peek().map(|Reverse((due, _))| *due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    proptest! {
        /// Whoever asks for more all the time, some of it late, has all of it when the rate says.
        #[test]
        fn a_supply_keeps_its_rate_though_asked_late(rate in 1_000_000u64..1_000_000_000, late in prop::collection::vec(0u64..BURST_NS, 1..50)) {
            let supply = Supply { bytes_per_s: rate, come_at: AtomicU64::new(0) };
            supply.forget_reserve(SECOND);
            let (amount, takes) = (rate / 100, rate / 100 * SECOND / rate);
            let mut has = SECOND;
            for late in &late {
                has = supply.hand_on(amount, has + late);
            }
            prop_assert_eq!(has, SECOND + takes * late.len() as u64);
            // After a pause no more than a burst is in reserve; after a new begin, nothing.
            prop_assert_eq!(supply.hand_on(amount, has + SECOND), has + SECOND - BURST_NS + takes);
            supply.forget_reserve(has + 9 * SECOND);
            prop_assert_eq!(supply.hand_on(amount, has + 9 * SECOND), has + 9 * SECOND + takes);
        }
    }
}
