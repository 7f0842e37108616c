//! Polling for a moment before a wait sleeps, where that pays.

use std::time::Duration;

/// What comes within a moment is polled for: falling asleep and being woken take the processor longer than that, and on
/// a virtual machine twice the time. Where it comes later, ever fewer waits try.
///
/// Two ends that wait for each other find out together: to one that polls, the other's wake-up is a part of what it
/// waits for. So a trial allows for that, and is over only after some waits.
#[derive(Debug, Default)]
pub(super) struct Patience {
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
    /// A sleep and a wake-up cost this much of a processor.
    const PAYS: Duration = Duration::from_micros(25);
    /// Waits before the average counts.
    const TRIAL: u32 = 16;
    const FIRST: u32 = 4;
    const LAST: u32 = 1024;
    /// A poll that takes this long was interrupted: others want the processor, and a thread that sleeps is woken before
    /// one that polls has its next turn.
    const CROWDED: Duration = Duration::from_micros(500);
    /// Waits in a row that halve what the next disappointment costs.
    const MENDS: u32 = 256;

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
            self.next = self.next.clamp(Patience::FIRST, Patience::LAST);
            (self.without, self.next, self.polled) = (self.next, self.next * 2, 0);
            if took > Patience::CROWDED {
                (self.without, self.next) = (Patience::LAST, Patience::LAST);
            }
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
        let mut patience = Patience::default();
        assert_eq!(polled(&mut patience, 10_000, 10), 10_000);
        assert!(polled(&mut patience, 100_000, 1000) < 200, "not at all");
        assert!(polled(&mut patience, 100_000, 50) < 2000, "a trial once in a while");
        let waits = 4 * Patience::LAST;
        assert!(polled(&mut patience, waits, 10) > waits / 2, "it pays again");
    }

    #[test]
    fn where_others_want_the_processor_it_is_left_to_them() {
        let mut patience = Patience::default();
        assert_eq!(polled(&mut patience, 100, 10), 100);
        assert!(patience.allows().is_some());
        patience.judge(Duration::from_millis(3), true);
        assert_eq!(polled(&mut patience, Patience::LAST, 10), 0);
        assert_eq!(polled(&mut patience, 100, 10), 100);
    }

    #[test]
    fn one_that_comes_late_among_many_costs_a_few_waits() {
        let mut patience = Patience::default();
        for _ in 0..100 {
            assert!(polled(&mut patience, 2000, 10) >= 1990);
            assert!(polled(&mut patience, 1, 5000) <= 1);
        }
    }
}
