//! Which way of copying into buffers that are used again is the fastest here. Processors differ by half, and not by
//! their name: it hangs on how much of the last-level cache is left by whoever shares it. So the first copies try all
//! ways, each a few times in a row, so that it meets the buffer as it left it.

use super::Stores;
use crate::clock;
use std::time::Duration;

const WAYS: [Stores; 3] = [Stores::Cached, Stores::Moved, Stores::Streamed];
/// Copies of each way, of which the first finds the buffer as another way left it.
const ROUNDS: u32 = 6;
/// Shorter copies stay in the core's own cache, where `Cached` is the fastest, and are over too soon to be told apart.
const LEAST_BYTES: usize = 1 << 20;

/// Tries, and then knows.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    tried: u32,
    /// The least time of a byte, in nanoseconds, by the place in `WAYS`.
    least: [f64; WAYS.len()],
    chosen: Option<Stores>,
}

impl Choice {
    /// Copies `bytes` by `copy`, which is told how.
    #[inline]
    pub fn copy<T>(&mut self, bytes: usize, copy: impl FnOnce(Stores) -> T) -> T {
        match self.chosen {
            _ if bytes < LEAST_BYTES => copy(Stores::Cached),
            Some(stores) => copy(stores),
            None => {
                let began = clock::now();
                let done = copy(WAYS[self.way()]);
                self.note(bytes, began.elapsed());
                done
            }
        }
    }

    fn way(&self) -> usize {
        (self.tried / ROUNDS) as usize
    }

    fn note(&mut self, bytes: usize, took: Duration) {
        let (way, round) = (self.way(), self.tried % ROUNDS);
        let each = took.as_nanos() as f64 / bytes as f64;
        let least = &mut self.least[way];
        // The second one replaces the first, which found a buffer that another way had left.
        *least = if round < 2 { each } else { least.min(each) };
        self.tried += 1;
        if self.way() == WAYS.len() {
            let best = (0..WAYS.len()).min_by(|a, b| self.least[*a].total_cmp(&self.least[*b]));
            self.chosen = best.map(|way| WAYS[way]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Told the time of each copy, in nanoseconds a byte, by way and round.
    fn chosen(each: impl Fn(Stores, u32) -> f64) -> Option<Stores> {
        let mut choice = Choice::default();
        for copy in 0..ROUNDS * WAYS.len() as u32 {
            assert_eq!(choice.chosen, None, "every way is tried as often");
            let ns = each(WAYS[choice.way()], copy % ROUNDS) * LEAST_BYTES as f64;
            choice.note(LEAST_BYTES, Duration::from_nanos(ns as u64));
        }
        choice.chosen
    }

    #[test]
    fn the_fastest_way_is_kept() {
        for best in WAYS {
            assert_eq!(chosen(|way, _| if way == best { 0.05 } else { 0.1 }), Some(best));
        }
    }

    #[test]
    fn first_copies_and_those_that_were_interrupted_count_for_nothing() {
        let strange = |way, round| match (way, round) {
            (Stores::Streamed, 0) => 0.001,
            (Stores::Moved, 0 | 3) => 900.0,
            (Stores::Moved, _) => 0.05,
            _ => 0.1,
        };
        assert_eq!(chosen(strange), Some(Stores::Moved));
    }

    #[test]
    fn short_copies_take_no_part() {
        let mut choice = Choice::default();
        for _ in 0..100 {
            assert_eq!(choice.copy(LEAST_BYTES - 1, |stores| stores), Stores::Cached);
        }
        assert_eq!(choice.copy(LEAST_BYTES, |stores| stores), WAYS[0]);
        assert_eq!(choice.tried, 1);
    }
}
