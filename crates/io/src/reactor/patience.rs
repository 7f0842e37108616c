//! Polling for a moment before a wait sleeps, where that pays.

use std::time::Duration;

/// What comes within a moment is polled for: falling asleep and being woken take the processor longer than that, and on
/// a virtual machine twice the time. Where it comes later, ever fewer waits try.
///
/// Two ends that wait for each other find out together: to one that polls, the other's wake-up is a part of what it
/// waits for. So a trial allows for that, and is over only after some waits; and what lies between two trials is left to
/// chance, or two ends that wait equally often would never try at the same time.
#[derive(Debug)]
pub(super) struct Patience {
    /// Numbers at random (xorshift).
    chance: u32,
    /// Waits that sleep at once from now on.
    without: u32,
    /// As many once polling disappoints again.
    next: u32,
    /// Waits that polled since the last disappointment.
    polled: u32,
    /// How long they polled, as a moving average.
    mean: Duration,
}

impl Patience {
    /// One wait polls at most this long.
    const MOST: Duration = Duration::from_micros(100);
    /// A sleep and a wake-up cost a processor about half of this on a virtual machine, and the other half in latency.
    const PAYS: Duration = Duration::from_micros(40);
    /// Waits before the average counts.
    const TRIAL: u32 = 16;
    /// Waits that sleep after a first disappointment, after an interruption, and at most.
    const FIRST: u32 = 4;
    const MANY: u32 = 64;
    const LAST: u32 = 512;
    /// A poll that takes this long was interrupted: others want the processor, and a thread that sleeps is woken before
    /// one that polls has its next turn.
    const CROWDED: Duration = Duration::from_micros(500);
    /// Waits in a row that halve what the next disappointment costs.
    const MENDS: u32 = 256;

    pub(super) fn new(seed: u32) -> Patience {
        Patience { chance: seed.max(1), without: 0, next: 0, polled: 0, mean: Duration::ZERO }
    }

    /// About so many.
    fn about(&mut self, waits: u32) -> u32 {
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 17;
        self.chance ^= self.chance << 5;
        waits / 2 + self.chance % (waits + 1)
    }

    /// Asked once for each wait: how long it may poll.
    pub(super) fn allows(&mut self) -> Option<Duration> {
        if self.without > 0 {
            self.without -= 1;
            return None;
        }
        Some(Patience::MOST)
    }

    /// Records how long a wait polled, and whether what it waited for came.
    pub(super) fn judge(&mut self, took: Duration, came: bool) {
        self.polled += 1;
        self.mean = if self.polled == 1 { took } else { (self.mean * 7 + took) / 8 };
        let late = self.polled >= Patience::TRIAL && self.mean > Patience::PAYS;
        if !came || late || took > Patience::CROWDED {
            let least = if took > Patience::CROWDED { Patience::MANY } else { Patience::FIRST };
            let waits = self.next.clamp(least, Patience::LAST);
            // What came, but late, may be the other end's doing, which tries by and by.
            let next = if came { waits + waits.div_ceil(4) } else { waits * 2 };
            (self.without, self.next, self.polled) = (self.about(waits), next, 0);
        } else if self.polled % Patience::MENDS == 0 {
            self.next /= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of so many waits poll, where each would be over after that many microseconds.
    fn polled(patience: &mut Patience, waits: u32, us: u64) -> u32 {
        let mut polled = 0;
        for _ in 0..waits {
            if let Some(most) = patience.allows() {
                let took = Duration::from_micros(us);
                patience.judge(took.min(most), took < most);
                polled += 1;
            }
        }
        polled
    }

    #[test]
    fn what_comes_soon_is_polled_for_and_what_comes_late_is_slept_for() {
        let mut patience = Patience::new(7);
        assert_eq!(polled(&mut patience, 10_000, 10), 10_000);
        assert!(polled(&mut patience, 100_000, 1000) < 400, "hardly at all");
        assert!(polled(&mut patience, 100_000, 50) < 5000, "a trial once in a while");
        let waits = 4 * Patience::LAST;
        assert!(polled(&mut patience, waits, 10) > waits / 2, "it pays again");
    }

    #[test]
    fn where_others_want_the_processor_it_is_left_to_them() {
        let mut patience = Patience::new(7);
        assert_eq!(polled(&mut patience, 100, 10), 100);
        assert!(patience.allows().is_some());
        patience.judge(Duration::from_millis(3), true);
        assert_eq!(polled(&mut patience, Patience::MANY / 2, 10), 0);
        polled(&mut patience, Patience::MANY, 10);
        assert_eq!(polled(&mut patience, 100, 10), 100);
    }

    #[test]
    fn one_that_comes_late_among_many_costs_a_few_waits() {
        let mut patience = Patience::new(7);
        for _ in 0..100 {
            assert!(polled(&mut patience, 2000, 10) >= 1990);
            assert!(polled(&mut patience, 1, 5000) <= 1);
        }
    }

    /// Each end waits for the other once an I/O, 10 µs, and 40 more where the other one sleeps.
    #[test]
    fn two_ends_that_wait_for_each_other_find_each_other() {
        let (mut host, mut target) = (Patience::new(1), Patience::new(2));
        let crowded = Duration::from_millis(3);
        host.judge(crowded, true);
        target.judge(crowded, true);
        polled(&mut target, 200, 1000);
        let mut together = 0;
        for _ in 0..100_000 {
            let (by_host, by_target) = (host.allows().is_some(), target.allows().is_some());
            let took = |other: bool| Duration::from_micros(if other { 10 } else { 50 });
            if by_host {
                host.judge(took(by_target), true);
            }
            if by_target {
                target.judge(took(by_host), true);
            }
            together += u32::from(by_host && by_target);
        }
        assert!(together > 50_000, "{together}");
    }
}
