//! A rate that threads share without a lock: so much of something per second.
//!
//! It is the generic cell rate algorithm, a token bucket turned round: one number
//! says when all that was let through will have been paid for. Time comes in, as ns
//! since a moment of the caller's, so that nothing here needs a clock or a timer.

use std::sync::atomic::{AtomicU64, Ordering};

impl Rate {
    /// Longest unused time that is kept in reserve, ns.
    pub const BURST_NS: u64 = 50_000_000;
}

/// At most so many units per second; 0: no limit.
#[derive(Debug, Default)]
pub struct Rate {
    per_second: AtomicU64,
    /// When all that was let through will have been paid for.
    paid_at: AtomicU64,
}

impl Rate {
    pub fn new(per_second: Option<u64>) -> Rate {
        Rate { per_second: AtomicU64::new(per_second.unwrap_or(0)), paid_at: AtomicU64::new(0) }
    }

    /// Units per second; None: no limit.
    pub fn get(&self) -> Option<u64> {
        Some(self.per_second.load(Ordering::Relaxed)).filter(|rate| *rate > 0)
    }

    /// Another limit from now on. What was spent under the old one isn't held against the new one.
    pub fn set(&self, per_second: Option<u64>, now_ns: u64) {
        self.per_second.store(per_second.unwrap_or(0), Ordering::Relaxed);
        self.paid_at.fetch_min(now_ns, Ordering::Relaxed);
    }

    /// Lets `amount` through, or says in how many ns to ask again; who asks then may find that others came first.
    ///
    /// # Errors
    /// The ns to wait; nothing was spent.
    pub fn spend(&self, amount: u64, now_ns: u64) -> Result<(), u64> {
        let Some(rate) = self.get() else { return Ok(()) };
        let pay = |until: u64| {
            (until <= now_ns.saturating_add(Rate::BURST_NS))
                .then(|| until.max(now_ns).saturating_add(cost(amount, rate)))
        };
        match self.paid_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pay) {
            Ok(_) => Ok(()),
            Err(until) => Err(until - now_ns - Rate::BURST_NS),
        }
    }

    /// Takes a place in the line, for `amount`: when it comes round, in ns. At `now_ns` or before: at once.
    pub fn reserve(&self, amount: u64, now_ns: u64) -> u64 {
        let Some(rate) = self.get() else { return now_ns };
        let pay = |until: u64| Some(until.max(now_ns).saturating_add(cost(amount, rate)));
        let before = self.paid_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pay);
        before.unwrap_or_else(|until| until).saturating_sub(Rate::BURST_NS)
    }

    /// Hands on `amount`: when the last of it will have come, in ns. Who asks late, but within a burst of when the line
    /// ran dry, finds it moved on without a gap: the rate holds for who asks for more all the time.
    pub fn hand_on(&self, amount: u64, now_ns: u64) -> u64 {
        let Some(rate) = self.get() else { return now_ns };
        let earliest = now_ns.saturating_sub(Rate::BURST_NS);
        let pay = |until: u64| until.max(earliest).saturating_add(cost(amount, rate));
        let before =
            self.paid_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |until| Some(pay(until)));
        pay(before.unwrap_or_else(|until| until))
    }

    /// Discards the reserve.
    pub fn forget_reserve(&self, now_ns: u64) {
        self.paid_at.fetch_max(now_ns, Ordering::Relaxed);
    }

    /// Gives back what `spend` or `reserve` took and nobody used.
    pub fn give_back(&self, amount: u64) {
        let Some(rate) = self.get() else { return };
        let less = |until: u64| Some(until.saturating_sub(cost(amount, rate)));
        let _ = self.paid_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}

/// Returns the time that `amount` takes at this rate, in ns.
fn cost(amount: u64, rate: u64) -> u64 {
    u64::try_from(u128::from(amount) * 1_000_000_000 / u128::from(rate)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    proptest! {
        /// Checks that a requester who asks when told to gets the rate, and no more than a burst above it, over any
        /// time.
        #[test]
        fn a_rate_is_kept(rate in 1u64..10_000_000_000, amount in 1u64..2_000_000, asks in 1usize..400, idle in 0u64..10 * SECOND) {
            let limit = Rate::new(Some(rate));
            let began = 5 * SECOND + idle;
            let (mut now, mut through) = (began, 0u128);
            for _ in 0..asks {
                match limit.spend(amount, now) {
                    Ok(()) => through += u128::from(amount),
                    Err(wait) => now = now.saturating_add(wait),
                }
                let allowed = u128::from(rate) * u128::from(now - began + Rate::BURST_NS) / u128::from(SECOND);
                // What is let through last may be longer than what is left.
                let rounding = through / u128::from(cost(amount, rate).max(1));
                prop_assert!(through <= allowed + u128::from(amount) + 1 + rounding);
            }
        }

        /// Places in the line come one after the other, each after as long as those before it take.
        #[test]
        fn places_in_line_follow_each_other(rate in 1000u64..1_000_000_000, amounts in prop::collection::vec(1u64..100_000, 1..50)) {
            let limit = Rate::new(Some(rate));
            prop_assert!(limit.reserve(0, SECOND) <= SECOND, "who comes first needn't wait");
            let mut sum = 0;
            for amount in amounts {
                prop_assert_eq!(limit.reserve(amount, SECOND), SECOND + sum - Rate::BURST_NS);
                sum += cost(amount, rate);
            }
        }
    }

    #[test]
    fn a_new_rate_holds_at_once_and_none_holds_nothing_up() {
        let limit = Rate::new(Some(1));
        assert_eq!(limit.spend(1_000_000, SECOND), Ok(()));
        assert!(limit.spend(1, SECOND).unwrap_err() > 999_000 * SECOND);
        limit.set(Some(1000), 2 * SECOND);
        assert_eq!(limit.spend(1, 2 * SECOND), Ok(()));
        assert_eq!(limit.get(), Some(1000));
        limit.set(None, 2 * SECOND);
        assert!((0..10_000).all(|_| limit.spend(u64::MAX, 2 * SECOND).is_ok()));
        assert_eq!(limit.reserve(u64::MAX, 7), 7);
    }

    proptest! {
        /// Checks that a requester who asks for more all the time, some of it late, has all of it when the rate says.
        #[test]
        fn a_supply_keeps_its_rate_though_asked_late(rate in 1_000_000u64..1_000_000_000, late in prop::collection::vec(0u64..Rate::BURST_NS, 1..50)) {
            let limit = Rate::new(Some(rate));
            limit.forget_reserve(SECOND);
            let amount = rate / 100;
            let mut has = SECOND;
            for late in &late {
                has = limit.hand_on(amount, has + late);
            }
            prop_assert_eq!(has, SECOND + cost(amount, rate) * late.len() as u64);
            // After a pause no more than a burst is in reserve; after a new begin, nothing.
            prop_assert_eq!(limit.hand_on(amount, has + SECOND), has + SECOND - Rate::BURST_NS + cost(amount, rate));
            limit.forget_reserve(has + 9 * SECOND);
            prop_assert_eq!(limit.hand_on(amount, has + 9 * SECOND), has + 9 * SECOND + cost(amount, rate));
        }
    }

    #[test]
    fn what_is_given_back_can_be_spent_again() {
        let limit = Rate::new(Some(1000));
        assert_eq!(limit.spend(1000, SECOND), Ok(()));
        assert!(limit.spend(1, SECOND).is_err());
        limit.give_back(1000);
        assert_eq!(limit.spend(1, SECOND), Ok(()));
    }
}
