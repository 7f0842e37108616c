//! The order in which a loader hands out samples, and the part of a record that says what it handed out.
//!
//! An order is computed, not stored: the sample at a position is a function of seed, epoch and position alone. Any number of
//! ranks, any depth of prefetching and a run that was resumed see the same order, and an epoch of 10⁸ samples begins at once.

use crate::random::{derive, mix};
use crate::Error;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Bytes that `Shuffle::Blocks` reads at a time.
const BLOCK_BYTES: u64 = 6_000_000;
/// Blocks whose samples are mixed with each other.
const WINDOW_BLOCKS: u64 = 16;
/// Double rounds of the permutation: two make a pseudorandom permutation of a pseudorandom function (Luby, Rackoff 1988),
/// the third makes up for a function that is cheap.
pub const ROUNDS: usize = 3;
/// Odd constants of the round function.
const MULTIPLIERS: [u32; 2] = [0x9E37_79B1, 0x85EB_CA77];
/// Numbers that take steps of a permutation together.
const TOGETHER: usize = 128;
const INVERSE_BITS: u32 = 52;
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// Streams of `derive`, so that no two uses of a seed see the same numbers.
const OF_SAMPLES: u64 = 1;
const OF_BLOCKS: u64 = 2;
const OF_ROTATION: u64 = 3;
const OF_TAIL: u64 = 4;
const OF_HASH: u64 = 5;
const OF_WINDOWS: u64 = 1 << 32;

/// How samples are shuffled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Shuffle {
    /// Every sample may come anywhere.
    #[default]
    Rows,
    /// Blocks of about 6 MB in random order, the samples of 16 of them mixed.
    Blocks,
    /// As they lie in the files.
    None,
}

impl Shuffle {
    pub const NAMES: &[(&str, Shuffle)] =
        &[("rows", Shuffle::Rows), ("blocks", Shuffle::Blocks), ("none", Shuffle::None)];

    /// # Errors
    /// `Request`: no order has this name.
    pub fn parse(text: &str) -> Result<Shuffle, Error> {
        let named = Shuffle::NAMES.iter().find(|(name, _)| *name == text);
        named.map(|(_, shuffle)| *shuffle).ok_or_else(|| {
            let known: Vec<&str> = Shuffle::NAMES.iter().map(|(name, _)| *name).collect();
            Error::request(format!("shuffle={text:?}"), "no such order", known.join(", "))
        })
    }

    pub fn name(self) -> &'static str {
        Shuffle::NAMES.iter().find(|(_, shuffle)| *shuffle == self).map_or("", |(name, _)| name)
    }
}

/// A permutation of 0 to n − 1, computed for each number by itself: a Feistel network over the next power of two, walked
/// until it meets a number below n (Black, Rogaway 2002), which takes less than two steps on average.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permutation {
    pub n: u64,
    /// Bits of the low half; the high half has `high_bits`, as many or one less.
    pub low_bits: u32,
    pub high_bits: u32,
    pub keys: [u32; 2 * ROUNDS],
}

impl Permutation {
    /// `n` must be above 0.
    pub fn new(n: u64, key: u64) -> Permutation {
        assert!(n > 0, "nothing to permute");
        let bits = (u64::BITS - (n - 1).leading_zeros()).max(2);
        let keys = std::array::from_fn(|i| (derive(key, i as u64) >> 32) as u32);
        Permutation { n, low_bits: bits.div_ceil(2), high_bits: bits / 2, keys }
    }

    /// Returns the number in place of `i`, which must be below n.
    #[inline]
    pub fn at(&self, i: u64) -> u64 {
        let mut number = i;
        loop {
            number = self.step(number);
            if number < self.n {
                return number;
            }
        }
    }

    /// Puts what `at` returns for `first` and the numbers after it into `into`: many take a step together, without a branch, and
    /// then those of them that met a number beyond n.
    // Inlined, so that a caller may have it compiled for wider vectors.
    #[inline(always)]
    pub fn fill(&self, first: u64, into: &mut [u64]) {
        let mut beyond = [0u8; TOGETHER];
        let mut walked = [0u64; TOGETHER];
        let mut begin = first;
        for some in into.chunks_mut(TOGETHER) {
            for (i, number) in some.iter_mut().enumerate() {
                *number = self.step(begin + i as u64);
            }
            begin += some.len() as u64;
            let mut left = 0;
            for (i, number) in some.iter().enumerate() {
                beyond[left] = i as u8;
                left += usize::from(*number >= self.n);
            }
            while left > 0 {
                for (to, i) in walked[..left].iter_mut().zip(&beyond) {
                    *to = some[usize::from(*i)];
                }
                walked[..left].iter_mut().for_each(|number| *number = self.step(*number));
                let mut again = 0;
                for k in 0..left {
                    let i = beyond[k];
                    some[usize::from(i)] = walked[k];
                    beyond[again] = i;
                    again += usize::from(walked[k] >= self.n);
                }
                left = again;
            }
        }
    }

    #[inline(always)]
    fn step(&self, number: u64) -> u64 {
        let (low_mask, high_mask) = (ones(self.low_bits), ones(self.high_bits));
        let mut low = number as u32 & low_mask;
        let mut high = (number >> self.low_bits) as u32 & high_mask;
        for keys in self.keys.chunks_exact(2) {
            high ^= scramble(low, keys[0]) & high_mask;
            low ^= scramble(high, keys[1]) & low_mask;
        }
        u64::from(high) << self.low_bits | u64::from(low)
    }
}

/// The factor by which a number of a window, without the product's last `INVERSE_BITS`, is divided by `rows_each`. Exact, as
/// `WINDOW_BLOCKS` times the square of the longest block's rows is less than 2^`INVERSE_BITS`.
fn inverse(rows_each: u64) -> u64 {
    (1 << INVERSE_BITS) / rows_each + 1
}

#[inline(always)]
fn ones(bits: u32) -> u32 {
    u32::MAX.checked_shr(u32::BITS - bits).unwrap_or(0)
}

/// The round function. crates/io/src/gpu/kernels/rows.cu has the same.
#[inline(always)]
fn scramble(half: u32, key: u32) -> u32 {
    let mut word = (half ^ key).wrapping_mul(MULTIPLIERS[0]);
    word ^= word >> 15;
    word = word.wrapping_mul(MULTIPLIERS[1]);
    word ^ word >> 13
}

/// Consecutive positions of an epoch, whose samples lie in few runs of the data: blocks that are mixed with each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    pub positions: Range<u64>,
    /// In the order of their samples.
    pub runs: Vec<Range<u64>>,
}

/// The order of one epoch.
#[derive(Clone, Copy, Debug)]
pub struct EpochOrder {
    samples: u64,
    key: u64,
    by: By,
    hash_key: u64,
    identity: u64,
}

#[derive(Clone, Copy, Debug)]
enum By {
    Number,
    Row(Permutation),
    Block { rows_each: u64, whole: u64, blocks: Permutation, rotation: u64, tail: Option<Permutation> },
}

impl EpochOrder {
    /// The order of `samples` of `sample_bytes` each, of data with this `identity`.
    pub fn new(
        samples: u64,
        sample_bytes: u64,
        shuffle: Shuffle,
        seed: u64,
        epoch: u64,
        identity: u64,
    ) -> EpochOrder {
        let key = derive(seed, epoch);
        let of = |n, stream| (n > 0).then(|| Permutation::new(n, derive(key, stream)));
        let rows_each = (BLOCK_BYTES / sample_bytes.max(1)).max(1);
        let by = match (shuffle, of(samples, OF_SAMPLES), of(samples / rows_each, OF_BLOCKS)) {
            (Shuffle::None, ..) | (_, None, _) => By::Number,
            (Shuffle::Rows, Some(rows), _) | (Shuffle::Blocks, Some(rows), None) => By::Row(rows),
            (Shuffle::Blocks, Some(_), Some(blocks)) => By::Block {
                rows_each,
                whole: blocks.n * rows_each,
                blocks,
                // Other samples fall into the block that isn't whole in each epoch.
                rotation: derive(key, OF_ROTATION) % samples,
                tail: of(samples % rows_each, OF_TAIL),
            },
        };
        EpochOrder { samples, key, by, hash_key: derive(key, OF_HASH), identity }
    }

    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// The permutation that the samples are in, where the order is nothing else.
    pub fn permutation(&self) -> Option<&Permutation> {
        match &self.by {
            By::Row(rows) => Some(rows),
            _ => None,
        }
    }

    /// The blocks that the sample at a position is mixed from; None where samples aren't shuffled by blocks.
    pub fn window(&self, position: u64) -> Option<Window> {
        let By::Block { rows_each, whole, blocks, rotation, .. } = self.by else { return None };
        let (positions, in_ring) = if position < whole {
            let begin = position - position % (rows_each * WINDOW_BLOCKS);
            let end = whole.min(begin + rows_each * WINDOW_BLOCKS);
            let numbers = (begin / rows_each..end / rows_each).map(|slot| blocks.at(slot) * rows_each);
            (begin..end, numbers.map(|first| first..first + rows_each).collect::<Vec<_>>())
        } else {
            (whole..self.samples, std::iter::once(whole..self.samples).collect())
        };
        let mut runs = Vec::with_capacity(in_ring.len() + 1);
        for Range { start, end } in in_ring {
            let (start, end) = (start + rotation, end + rotation);
            // One of them may lie at both ends of the data.
            let turned = [start..end.min(self.samples), start.max(self.samples)..end];
            let back = |run: &Range<u64>| run.start / self.samples * self.samples;
            runs.extend(
                turned.into_iter().filter(|r| r.start < r.end).map(|r| r.start - back(&r)..r.end - back(&r)),
            );
        }
        runs.sort_unstable_by_key(|run| run.start);
        Some(Window { positions, runs })
    }

    /// Samples lie one behind the other in the order of their positions.
    pub fn is_as_they_lie(&self) -> bool {
        matches!(self.by, By::Number)
    }

    /// Puts the samples of consecutive positions from `first` on, all of them below the number of samples, into `into`.
    // Inlined, so that a caller may have it compiled for wider vectors.
    #[inline(always)]
    pub fn fill(&self, first: u64, into: &mut [u64]) {
        // A permutation of fewer numbers might walk forever.
        debug_assert!(
            first + into.len() as u64 <= self.samples,
            "{first} and {} of {}",
            into.len(),
            self.samples
        );
        match &self.by {
            By::Number => (first..).zip(into).for_each(|(position, sample)| *sample = position),
            By::Row(rows) => rows.fill(first, into),
            By::Block { .. } => self.fill_by_block(first, into),
        }
    }

    // As `fill`.
    #[inline(always)]
    fn fill_by_block(&self, first: u64, into: &mut [u64]) {
        let By::Block { rows_each, whole, blocks, rotation, tail } = self.by else { return };
        let window_rows = rows_each * WINDOW_BLOCKS;
        let turned = |ring: u64| ring.checked_sub(self.samples - rotation).unwrap_or_else(|| ring + rotation);
        let (mut position, mut left) = (first, into);
        while !left.is_empty() {
            if position >= whole {
                for (position, sample) in (position..).zip(left) {
                    *sample = turned(whole + tail.as_ref().map_or(0, |tail| tail.at(position - whole)));
                }
                return;
            }
            let number = position / window_rows;
            let begin = number * window_rows;
            let length = window_rows.min(whole - begin);
            let count = left.len().min((begin + length - position) as usize);
            let (some, rest) = left.split_at_mut(count);
            Permutation::new(length, derive(self.key, OF_WINDOWS + number)).fill(position - begin, some);
            // First samples of the window's blocks.
            let mut firsts = [0u64; WINDOW_BLOCKS as usize];
            for (first, slot) in firsts.iter_mut().zip(begin / rows_each..(begin + length) / rows_each) {
                *first = blocks.at(slot) * rows_each;
            }
            let inverse = inverse(rows_each);
            for sample in some {
                let block = (*sample * inverse) >> INVERSE_BITS;
                *sample = turned(firsts[block as usize] + (*sample - block * rows_each));
            }
            position += count as u64;
            left = rest;
        }
    }

    /// The sum over these samples at consecutive positions from `first` on, which adds up over batches and ranks: runs with
    /// equal sums of an epoch saw the same samples of the same data at the same positions.
    // Inlined, so that a caller may have it compiled for wider vectors.
    #[inline(always)]
    pub fn hash(&self, first: u64, samples: &[u64]) -> u64 {
        let one = |(position, sample): (u64, &u64)| self.mixed(position, *sample);
        (first..).zip(samples).map(one).fold(0, u64::wrapping_add)
    }

    #[inline(always)]
    fn mixed(&self, position: u64, sample: u64) -> u64 {
        mix(mix(self.identity.wrapping_add(sample))
            ^ self.hash_key.wrapping_add(position.wrapping_mul(GOLDEN)))
    }

    /// What `hash` adds from: the identity of the data, and the key of seed and epoch.
    pub fn hash_keys(&self) -> (u64, u64) {
        (self.identity, self.hash_key)
    }
}

/// Which positions a rank takes of an epoch, a global batch at a time: `batch` for each rank, one behind the other. What is
/// left at an epoch's end is divided evenly, or dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    pub batch: u64,
    pub rank: u64,
    pub world: u64,
    pub drop_last: bool,
}

impl Share {
    fn global(&self) -> u64 {
        self.batch.saturating_mul(self.world)
    }

    /// The positions of this rank's next batch where all ranks have come to `position`, and where they come to then. None at
    /// the epoch's end. Empty for a rank that gets none of a last few.
    pub fn next(&self, position: u64, samples: u64) -> Option<(std::ops::Range<u64>, u64)> {
        let left = samples.saturating_sub(position);
        if left == 0 || self.drop_last && left < self.global() {
            return None;
        }
        if left >= self.global() {
            let first = position + self.rank * self.batch;
            return Some((first..first + self.batch, position + self.global()));
        }
        let (each, more) = (left / self.world, left % self.world);
        let first = position + self.rank * each + self.rank.min(more);
        Some((first..first + each + u64::from(self.rank < more), samples))
    }

    /// Batches of an epoch from `position` on.
    pub fn batches(&self, position: u64, samples: u64) -> u64 {
        let left = samples.saturating_sub(position);
        if self.drop_last {
            left / self.global()
        } else {
            left.div_ceil(self.global())
        }
    }
}

/// What a loader handed out: the part `feed` of a record.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Feed {
    /// Samples that were handed out.
    pub samples: u64,
    pub samples_per_s: f64,
    /// Per cent of the time in which the consumer waited for a batch.
    pub input_wait_pct: f64,
    /// `rows`, `blocks` or `none`.
    pub order: String,
    /// 16 hexadecimal digits: the sum over what was handed out; ranks and resumed parts add up to an epoch's.
    pub hash: String,
    /// 16 hexadecimal digits that say which data this was: names and lengths of the files, and the layout of a sample.
    pub data: String,
    pub batches: u64,
    pub batch_size: u64,
    /// Bytes of a sample that are read.
    pub sample_bytes: u64,
    pub seed: u64,
    pub epoch: u64,
    /// In the epoch, up to where all ranks have come.
    pub position: u64,
    pub rank: u32,
    pub world: u32,
    /// Batches that are read ahead.
    pub prefetch: u32,
    /// Memory of batches at most at a time, in bytes.
    pub memory_bytes: u64,
    /// `fill` or `bypass`: whether data that wasn't cached was read into the page cache, and why; empty if samples were read
    /// elsewhere.
    pub cold: String,
    /// Samples that were compared with a second reading of the files; null if none was.
    pub verified: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(order: &EpochOrder) -> Vec<u64> {
        let mut samples = vec![0; order.samples() as usize];
        order.fill(0, &mut samples);
        samples
    }

    #[test]
    fn blocks_of_a_window_are_told_apart_without_a_division() {
        for rows in [1, 2, 3, 7, 39, 6578, 6579, BLOCK_BYTES / 3, BLOCK_BYTES - 1, BLOCK_BYTES] {
            for block in 0..WINDOW_BLOCKS {
                let ends = [block * rows, block * rows + rows - 1];
                assert_eq!(ends.map(|n| (n * inverse(rows)) >> INVERSE_BITS), [block; 2], "{rows}");
            }
        }
    }

    proptest! {
        // promise: FEED-2
        #[test]
        fn every_order_has_each_sample_once_wherever_it_is_cut(
            samples in 1u64..5000, bytes in prop::sample::select(vec![1u64, 912, 30_000, 1_000_000, 9_000_000]),
            kind in 0usize..3, seed: u64, epoch in 0u64..3, cut in 0.0..1.0f64,
        ) {
            let order = EpochOrder::new(samples, bytes, Shuffle::NAMES[kind].1, seed, epoch, 7);
            let whole = all(&order);
            let at = (samples as f64 * cut) as usize;
            let (mut head, mut tail) = (vec![0; at], vec![0; whole.len() - at]);
            order.fill(0, &mut head);
            order.fill(at as u64, &mut tail);
            prop_assert_eq!([&head[..], &tail[..]].concat(), whole.clone());
            let sum = order.hash(0, &head).wrapping_add(order.hash(at as u64, &tail));
            prop_assert_eq!(sum, order.hash(0, &whole));
            let mut sorted = whole;
            sorted.sort_unstable();
            prop_assert!(sorted.iter().copied().eq(0..samples));
        }

        // promise: FEED-3
        #[test]
        fn ranks_share_an_epoch_also_when_their_number_changes(
            samples in 0u64..3000, batch in 1u64..70, worlds in prop::collection::vec(1u64..6, 1..4), steps in 0u64..9,
        ) {
            let (mut position, mut seen) = (0, Vec::new());
            for (turn, world) in worlds.iter().enumerate() {
                let most = if turn + 1 == worlds.len() { u64::MAX } else { steps };
                let share = |rank| Share { batch, rank, world: *world, drop_last: false };
                for _ in 0..most.min(5000) {
                    let Some((_, after)) = share(0).next(position, samples) else { break };
                    for rank in 0..*world {
                        let (own, end) = share(rank).next(position, samples).unwrap();
                        prop_assert_eq!(end, after);
                        prop_assert!(own.end - own.start <= batch);
                        seen.extend(own);
                    }
                    position = after;
                }
            }
            prop_assert!(seen.iter().copied().eq(0..samples));
        }
    }

    #[test]
    fn a_last_batch_is_dropped_by_all_ranks_alike() {
        let share = Share { batch: 10, rank: 1, world: 2, drop_last: true };
        assert_eq!(share.next(20, 45), Some((30..40, 40)));
        assert_eq!(share.next(40, 45), None);
        assert_eq!((share.batches(0, 45), Share { drop_last: false, ..share }.batches(0, 45)), (2, 3));
    }

    #[test]
    fn many_numbers_at_once_are_what_each_is_by_itself() {
        for n in [1u64, 2, 3, 5, 64, 127, 128, 129, 1000, 4097, (1 << 33) + 1] {
            let of = Permutation::new(n, n);
            for (first, count) in [(0, n), (0, 1), (n / 2, n - n / 2), (n - 1, 1), (n, 0)] {
                let mut together = vec![0; count.min(5000) as usize];
                of.fill(first, &mut together);
                assert!((first..).zip(&together).all(|(i, number)| *number == of.at(i)), "{count} of {n}");
            }
        }
    }

    /// Each of `n` samples comes first about equally often, and so does each neighbour of sample 0.
    #[test]
    fn permutations_of_few_and_of_many_are_even() {
        for n in [2u64, 3, 7, 16, 100, 1000] {
            let draws = 400 * n;
            let (mut first, mut behind) = (vec![0u64; n as usize], vec![0u64; n as usize]);
            for key in 0..draws {
                let of = Permutation::new(n, mix(key));
                first[of.at(0) as usize] += 1;
                behind[((of.at(1) + n - of.at(0)) % n) as usize] += 1;
            }
            let chi = |counts: &[u64], expected: f64| {
                counts.iter().map(|c| (*c as f64 - expected).powi(2) / expected).sum::<f64>()
            };
            // Five standard deviations of a chi-squared distribution.
            let most = |freedom: f64| freedom + 5.0 * (2.0 * freedom).sqrt() + 10.0;
            let (found, limit) = (chi(&first, 400.0), most(n as f64 - 1.0));
            assert!(found < limit, "{n}: {found} of {limit} first");
            let (found, limit) =
                (chi(&behind[1..], draws as f64 / (n as f64 - 1.0)), most((n as f64 - 2.0).max(1.0)));
            assert!(found < limit, "{n}: {found} of {limit} behind");
            assert_eq!(behind[0], 0);
        }
    }

    #[test]
    fn blocks_come_in_random_order_and_their_samples_stay_together() {
        let (samples, bytes) = (100_000u64, 60_000u64);
        let order = EpochOrder::new(samples, bytes, Shuffle::Blocks, 1, 0, 0);
        let window = all(&order)[..1600].iter().map(|s| s / 100).collect::<std::collections::BTreeSet<_>>();
        // 16 blocks, none of which need begin at a multiple of its length.
        assert!((16..=32).contains(&window.len()), "{}", window.len());
        assert!(window.last().unwrap() - window.first().unwrap() > 100);
    }

    proptest! {
        // promise: FEED-2
        #[test]
        fn windows_name_the_samples_of_their_positions_and_no_other(
            samples in 1u64..5000, bytes in prop::sample::select(vec![912u64, 30_000, 1_000_000]), seed: u64,
        ) {
            let order = EpochOrder::new(samples, bytes, Shuffle::Blocks, seed, 1, 7);
            let whole = all(&order);
            let mut at = 0;
            while let Some(Window { positions, runs }) = order.window(at).filter(|_| at < samples) {
                prop_assert_eq!(&order.window(positions.end - 1).unwrap().runs, &runs);
                prop_assert_eq!(positions.start, at);
                let mut mixed = whole[positions.start as usize..positions.end as usize].to_vec();
                mixed.sort_unstable();
                prop_assert!(mixed.into_iter().eq(runs.into_iter().flatten()));
                at = positions.end;
            }
            let by_blocks = samples >= (BLOCK_BYTES / bytes).max(1);
            prop_assert_eq!(at, if by_blocks { samples } else { 0 });
        }
    }

    #[test]
    fn the_hash_tells_seeds_epochs_data_and_orders_apart() {
        let hash = |shuffle, seed, epoch, identity| {
            let order = EpochOrder::new(1000, 10, shuffle, seed, epoch, identity);
            order.hash(0, &all(&order))
        };
        let hashes = [
            hash(Shuffle::Rows, 0, 0, 1),
            hash(Shuffle::Rows, 1, 0, 1),
            hash(Shuffle::Rows, 0, 1, 1),
            hash(Shuffle::Rows, 0, 0, 2),
            hash(Shuffle::None, 0, 0, 1),
        ];
        let different: std::collections::BTreeSet<_> = hashes.iter().collect();
        assert_eq!(different.len(), hashes.len());
        // Two samples that changed places are another stream.
        let order = EpochOrder::new(4, 10, Shuffle::None, 0, 0, 0);
        assert_ne!(order.hash(0, &[0, 1, 2, 3]), order.hash(0, &[1, 0, 2, 3]));
    }

    /// These words are in people's states and records: they may never change.
    #[test]
    fn an_order_is_the_same_in_every_version() {
        let order = EpochOrder::new(1_000_000, 912, Shuffle::Rows, 42, 3, 0x1234);
        let mut samples = [0; 5];
        order.fill(10, &mut samples);
        assert_eq!(samples, [498_341, 821_310, 862_683, 790_064, 833_057]);
        assert_eq!(order.hash(10, &samples), 15_108_435_195_782_133_880);
        let order = EpochOrder::new(1_000_000, 912, Shuffle::Blocks, 42, 3, 0x1234);
        let samples = all(&order);
        // Across the edge of two windows, and behind the last whole block.
        assert_eq!(samples[105_260..][..5], [985_009, 401_466, 404_968, 560_381, 964_820]);
        assert_eq!(samples[999_990..][..5], [36_665, 36_620, 36_616, 36_749, 36_683]);
    }
}
