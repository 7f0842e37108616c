//! Trust in sends that should complete as they are handed over.

/// A full socket takes a send late, and a wait that counts on it comes back late for all else: after one that was
/// disappointed, more and more waits go without.
#[derive(Debug)]
pub(super) struct Trust {
    /// Waits that go without from now on.
    without: u32,
    /// As many at the next disappointment.
    next: u32,
    /// Waits that weren't disappointed, one after the other.
    kept: u32,
}

impl Default for Trust {
    fn default() -> Trust {
        Trust { without: 0, next: Trust::FIRST, kept: 0 }
    }
}

impl Trust {
    const FIRST: u32 = 256;
    const MOST: u32 = 1 << 16;
    /// Waits in a row that halve what the next disappointment costs.
    const MENDS: u32 = 4096;

    /// Asked once for each wait that could.
    pub(super) fn is_due(&mut self) -> bool {
        self.without = self.without.saturating_sub(1);
        self.without == 0
    }

    /// Records whether such a wait kept its time.
    pub(super) fn judge(&mut self, kept: bool) {
        if !kept {
            (self.kept, self.without) = (0, self.next);
            self.next = (self.next * 2).min(Trust::MOST);
            return;
        }
        self.kept += 1;
        if self.kept == Trust::MENDS {
            (self.kept, self.next) = (0, (self.next / 2).max(Trust::FIRST));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts those of so many waits that count.
    fn counted(trust: &mut Trust, waits: u32, kept: bool) -> u32 {
        let mut counts = 0;
        for _ in 0..waits {
            if trust.is_due() {
                trust.judge(kept);
                counts += 1;
            }
        }
        counts
    }

    #[test]
    fn what_disappoints_is_tried_ever_more_rarely_and_trusted_again_once_it_keeps() {
        let mut trust = Trust::default();
        assert_eq!(counted(&mut trust, 1000, true), 1000);
        assert!(counted(&mut trust, 1 << 20, false) < 32, "a full socket costs little");
        counted(&mut trust, 2 * Trust::MOST, true);
        assert_eq!(counted(&mut trust, 10 * Trust::MENDS, true), 10 * Trust::MENDS);
        assert_eq!(counted(&mut trust, Trust::FIRST, false), 1);
        assert_eq!(counted(&mut trust, 1000, true), 1000, "forgiven");
    }

    /// A host that reads slowly, among others whose sends are taken at once.
    #[test]
    fn one_slow_reader_among_many_disappoints_a_wait_in_thousands() {
        let mut trust = Trust::default();
        let disappointed = (0..1_000_000u32).filter(|n| {
            let due = trust.is_due();
            if due {
                trust.judge(n % 200 != 0);
            }
            due && n % 200 == 0
        });
        let disappointed = disappointed.count();
        assert!((1..50).contains(&disappointed), "{disappointed}");
    }
}
