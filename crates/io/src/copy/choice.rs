//! Choice of the fastest way of copying into buffers that are used again, on this machine. Processors differ by half
//! or more (`bench/cached_read.py`), and not by their name: it also depends on how much of the last-level cache and of
//! the memory's bandwidth others leave. So the first copies try all ways, each several times in a row, so that it
//! finds the buffer as it left it, and all of them again: a processor that two threads share takes a while from one.

use super::Stores;
use crate::clock;
use std::time::Duration;

/// Rounds of each way in a row, of which the first finds the buffer as another way left it.
const ROUNDS: u32 = 4;
/// Times that all ways are tried.
const PASSES: usize = 3;
/// A round copies this many bytes at least, or the clock would be part of the result.
const ROUND_BYTES: usize = 1 << 20;
/// What a way that leaves the cache and memory's bandwidth to others may take longer than the best: while it is tried, other threads
/// may not copy, or in another way, and moments decide.
const STREAMED_MAY: f64 = 1.1;
/// Shorter copies have one way only (`guarded_copy`).
const SHORT_BYTES_MIN: usize = 32 << 10;
/// Buffers of this size and more don't stay in a core's own cache (1 to 2 MiB on current server CPUs) together with what
/// is read: stores past the cache may then be faster.
const LONG_BYTES_MIN: usize = 1 << 20;

/// Measures the ways of copying, and then knows the fastest, for short copies and for long ones.
#[derive(Clone, Debug)]
pub struct Choice {
    short: Trial,
    long: Trial,
}

const ALL: &[Stores] = &[Stores::Cached, Stores::Moved, Stores::Ahead, Stores::Streamed];

impl Default for Choice {
    fn default() -> Choice {
        Choice { long: Trial::new(ALL), ..Choice::for_staging() }
    }
}

impl Choice {
    /// For buffers that are copied on, to a GPU: they are read from the cache.
    pub const fn for_staging() -> Choice {
        const WAYS: &[Stores] = &[Stores::Cached, Stores::Moved, Stores::Ahead];
        Choice { short: Trial::new(WAYS), long: Trial::new(WAYS) }
    }

    /// For pieces of what is longer than the last-level cache: none of them is found there, however short it is.
    pub const fn for_more_than_the_cache() -> Choice {
        Choice { short: Trial::new(ALL), long: Trial::new(ALL) }
    }

    /// Copies `bytes` by `copy`, which gets the way to do it.
    #[inline]
    pub fn copy<T>(&mut self, bytes: usize, copy: impl FnOnce(Stores) -> T) -> T {
        self.copy_piece(bytes, bytes, copy)
    }

    /// As `copy`, for a piece of a copy of `whole` bytes, whose way it is.
    #[inline]
    pub fn copy_piece<T>(&mut self, whole: usize, bytes: usize, copy: impl FnOnce(Stores) -> T) -> T {
        let trial = match whole {
            ..SHORT_BYTES_MIN => return copy(Stores::Cached),
            SHORT_BYTES_MIN..LONG_BYTES_MIN => &mut self.short,
            _ => &mut self.long,
        };
        if let Some(stores) = trial.chosen {
            return copy(stores);
        }
        let began = clock::monotonic_now();
        let done = copy(trial.way());
        trial.note(bytes, began.elapsed());
        done
    }
}

#[derive(Clone, Debug)]
struct Trial {
    ways: &'static [Stores],
    /// Of all that are tried, the one that is by now: each comes as often as there are passes.
    turn: usize,
    round: u32,
    /// Bytes of this round.
    bytes: usize,
    ns: u128,
    /// The least time of a byte in a round of this way, and of the best way so far, in nanoseconds.
    least: f64,
    best: Option<(f64, Stores)>,
    chosen: Option<Stores>,
}

impl Trial {
    const fn new(ways: &'static [Stores]) -> Trial {
        Trial { ways, turn: 0, round: 0, bytes: 0, ns: 0, least: f64::INFINITY, best: None, chosen: None }
    }

    fn way(&self) -> Stores {
        self.ways[self.turn % self.ways.len()]
    }

    fn note(&mut self, bytes: usize, took: Duration) {
        self.bytes += bytes;
        self.ns += took.as_nanos();
        if self.bytes < ROUND_BYTES {
            return;
        }
        let each = self.ns as f64 / self.bytes as f64;
        (self.bytes, self.ns) = (0, 0);
        if self.round > 0 {
            self.least = self.least.min(each);
        }
        self.round += 1;
        if self.round == ROUNDS {
            self.end_way();
        }
    }

    fn end_way(&mut self) {
        if self.way() == Stores::Streamed {
            self.least /= STREAMED_MAY;
        }
        if self.best.is_none_or(|(least, _)| self.least < least) {
            self.best = Some((self.least, self.way()));
        }
        (self.turn, self.round, self.least) = (self.turn + 1, 0, f64::INFINITY);
        if self.turn == PASSES * self.ways.len() {
            self.chosen = self.best.map(|(_, stores)| stores);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAYS: [Stores; 4] = [Stores::Cached, Stores::Moved, Stores::Ahead, Stores::Streamed];

    /// Gets the time of each round, in nanoseconds a byte, by way and round.
    fn chosen(each: impl Fn(Stores, u32) -> f64, bytes: usize) -> Option<Stores> {
        let mut trial = Choice::default().long;
        while trial.chosen.is_none() {
            let ns = each(trial.way(), trial.round) * bytes as f64;
            trial.note(bytes, Duration::from_nanos(ns as u64));
        }
        trial.chosen
    }

    #[test]
    fn the_fastest_way_is_kept() {
        for best in WAYS {
            for bytes in [ROUND_BYTES / 16, ROUND_BYTES, 4 * ROUND_BYTES] {
                assert_eq!(chosen(|way, _| if way == best { 0.05 } else { 0.1 }, bytes), Some(best));
            }
        }
    }

    #[test]
    fn stores_past_the_cache_are_kept_where_they_take_hardly_longer() {
        for (streamed, kept) in [(0.054, Stores::Streamed), (0.056, Stores::Moved)] {
            let each = |way, _| match way {
                Stores::Moved => 0.05,
                Stores::Streamed => streamed,
                _ => 0.1,
            };
            assert_eq!(chosen(each, ROUND_BYTES), Some(kept));
        }
    }

    #[test]
    fn first_rounds_and_those_that_were_interrupted_count_for_nothing() {
        let strange = |way, round| match (way, round) {
            (Stores::Streamed, 0) => 0.001,
            (Stores::Moved, 0 | 3) => 900.0,
            (Stores::Moved, _) => 0.05,
            _ => 0.1,
        };
        assert_eq!(chosen(strange, ROUND_BYTES), Some(Stores::Moved));
    }

    #[test]
    fn a_way_that_was_held_up_for_all_its_rounds_is_tried_again() {
        let mut held_up = 2 * ROUNDS;
        let each = |way| match way {
            Stores::Moved if held_up > 0 => {
                held_up -= 1;
                900.0
            }
            Stores::Moved => 0.05,
            _ => 0.1,
        };
        let each = std::cell::RefCell::new(each);
        assert_eq!(chosen(|way, _| (each.borrow_mut())(way), ROUND_BYTES), Some(Stores::Moved));
    }

    #[test]
    fn each_length_has_its_ways() {
        let mut choice = Choice::default();
        for _ in 0..1000 {
            assert_eq!(choice.copy(SHORT_BYTES_MIN - 1, |stores| stores), Stores::Cached);
        }
        assert_eq!((choice.short.bytes, choice.long.round), (0, 0), "short rows take no part");
        for bytes in [SHORT_BYTES_MIN, LONG_BYTES_MIN] {
            let mut tried: Vec<Stores> = (0..1000).map(|_| choice.copy(bytes, |stores| stores)).collect();
            tried.dedup();
            assert_eq!(tried[0], WAYS[0]);
            let ways = if bytes < LONG_BYTES_MIN { &WAYS[..3] } else { &WAYS[..] };
            assert_eq!(tried[..ways.len()], *ways);
            assert!(tried.len() <= PASSES * ways.len() + 1, "one is chosen in the end, and kept");
        }
        let chosen = choice.copy(LONG_BYTES_MIN, |stores| stores);
        assert_eq!(choice.copy_piece(LONG_BYTES_MIN, 4096, |stores| stores), chosen);
    }

    #[test]
    fn stores_past_the_cache_are_tried_for_short_pieces_of_what_does_not_fit_it() {
        let mut choice = Choice::for_more_than_the_cache();
        assert!((0..1000).any(|_| choice.copy(SHORT_BYTES_MIN, |stores| stores) == Stores::Streamed));
    }

    #[test]
    fn what_is_copied_on_stays_in_the_cache() {
        let mut choice = Choice::for_staging();
        assert!((0..1000).all(|_| choice.copy(LONG_BYTES_MIN, |stores| stores) != Stores::Streamed));
    }
}
