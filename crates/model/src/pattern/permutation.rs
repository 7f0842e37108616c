//! A keyed permutation of 0..n in constant memory.

use crate::random::split_mix;

const ROUNDS: usize = 3;

/// Scrambles `bits`-wide integers by rounds of add, odd multiply and xor-shift,
/// each of which is a bijection, and walks the cycle until the value falls below
/// `n`. Fewer than two steps are expected: 2^bits < 2 n.
///
/// Statistical quality only: from enough output a key could be found.
#[derive(Clone, Debug)]
pub struct Permutation {
    n: u64,
    mask: u64,
    shift: u32,
    rounds: [(u64, u64); ROUNDS],
}

impl Permutation {
    /// `n` must be above 0.
    pub fn new(n: u64, key: u64) -> Self {
        assert!(n > 0, "nothing to permute");
        let bits = 64 - (n - 1).leading_zeros();
        let mut state = key;
        Permutation {
            n,
            mask: if bits == 0 { 0 } else { u64::MAX >> (64 - bits) },
            shift: bits.div_ceil(2).max(1),
            rounds: std::array::from_fn(|_| (split_mix(&mut state), split_mix(&mut state) | 1)),
        }
    }

    /// The image of `index`, which must be below `n`.
    #[inline]
    pub fn at(&self, index: u64) -> u64 {
        debug_assert!(index < self.n);
        let mut value = index;
        loop {
            for (add, odd) in self.rounds {
                value = value.wrapping_add(add).wrapping_mul(odd) & self.mask;
                value ^= value >> self.shift;
            }
            // Ends: `index` itself lies on the cycle.
            if value < self.n {
                return value;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_comes_exactly_once() {
        for n in (1..70).chain([255, 256, 257, 1000, 4095, 4097]) {
            for key in 0..4 {
                let permutation = Permutation::new(n, key);
                let mut images: Vec<u64> = (0..n).map(|i| permutation.at(i)).collect();
                images.sort_unstable();
                assert!(images.into_iter().eq(0..n), "n {n} key {key}");
            }
        }
    }

    #[test]
    fn keys_give_different_orders_without_runs() {
        let order = |key| {
            let permutation = Permutation::new(10_000, key);
            (0..10_000).map(|i| permutation.at(i)).collect::<Vec<_>>()
        };
        let (a, b) = (order(1), order(2));
        let same = a.iter().zip(&b).filter(|(x, y)| x == y).count();
        assert!(same < 20, "{same} of 10,000 places agree; about 1 is chance");
        let neighbours = a.windows(2).filter(|w| w[1] == w[0] + 1).count();
        assert!(neighbours < 20, "{neighbours} sequential steps; about 1 is chance");
    }

    #[test]
    fn the_widest_domains_do_not_overflow() {
        for n in [(1 << 63) - 1, 1 << 63, u64::MAX] {
            let permutation = Permutation::new(n, 3);
            for index in [0, 1, n / 2, n - 1] {
                assert!(permutation.at(index) < n);
            }
        }
    }
}
