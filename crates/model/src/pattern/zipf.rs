//! Zipf ranks by rejection-inversion (Hörmann, Derflinger 1996): constant time
//! and memory for any number of items, and exact.
//!
//! The elementary functions come from `libm`, not from the platform, so that a
//! seed gives the same ranks everywhere.

use crate::random::Xoshiro256;

#[derive(Clone, Debug)]
pub struct Zipf {
    items: u64,
    theta: f64,
    /// The hat's integral at the left edge of rank 1 (shrunk so that rank 1 is never rejected).
    area_first: f64,
    /// The hat's integral at the right edge of the last rank.
    area_last: f64,
    /// A point this close below its rank is accepted without evaluating the hat.
    squeeze: f64,
}

impl Zipf {
    /// P(rank) ∝ rank^-theta for ranks 0 … items-1 counted from 1. `items` and `theta` must be above 0.
    pub fn new(items: u64, theta: f64) -> Self {
        assert!(items > 0 && theta > 0.0, "Zipf needs items and an exponent");
        let mut zipf = Zipf { items, theta, area_first: 0.0, area_last: 0.0, squeeze: 0.0 };
        zipf.area_first = zipf.area(1.5) - 1.0;
        zipf.area_last = zipf.area(items as f64 + 0.5);
        zipf.squeeze = 2.0 - zipf.area_inverse(zipf.area(2.5) - zipf.density(2.0));
        zipf
    }

    /// A rank in 0..items; 0 is the most popular.
    #[inline]
    pub fn draw(&self, random: &mut Xoshiro256) -> u64 {
        loop {
            let area = self.area_last + random.next_f64() * (self.area_first - self.area_last);
            let point = self.area_inverse(area);
            let rank = libm::floor(point + 0.5).clamp(1.0, self.items as f64);
            if rank - point <= self.squeeze || area >= self.area(rank + 0.5) - self.density(rank) {
                return (rank as u64).clamp(1, self.items) - 1;
            }
        }
    }

    fn density(&self, x: f64) -> f64 {
        libm::exp(-self.theta * libm::log(x))
    }

    /// ∫ x^-theta from 1, written so that theta = 1 (a logarithm) is no special case.
    fn area(&self, x: f64) -> f64 {
        let log = libm::log(x);
        expm1_ratio((1.0 - self.theta) * log) * log
    }

    fn area_inverse(&self, area: f64) -> f64 {
        // Rounding may carry the argument past -1, where log1p ends.
        let scaled = (area * (1.0 - self.theta)).max(-1.0);
        libm::exp(log1p_ratio(scaled) * area)
    }
}

/// (e^x - 1) / x, 1 at 0.
fn expm1_ratio(x: f64) -> f64 {
    if x.abs() > 1e-8 {
        libm::expm1(x) / x
    } else {
        1.0 + x * 0.5 * (1.0 + x / 3.0)
    }
}

/// ln(1 + x) / x, 1 at 0.
fn log1p_ratio(x: f64) -> f64 {
    if x.abs() > 1e-8 {
        libm::log1p(x) / x
    } else {
        1.0 - x * (0.5 - x / 3.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Chi-square of draws against the probabilities themselves, tail ranks pooled.
    fn chi_square(items: u64, theta: f64, draws: u32, seed: u64) -> (f64, f64) {
        let weights: Vec<f64> = (1..=items).map(|r| (r as f64).powf(-theta)).collect();
        let total: f64 = weights.iter().sum();
        let zipf = Zipf::new(items, theta);
        let mut random = Xoshiro256::new(seed);
        let mut counts = vec![0u32; items as usize];
        (0..draws).for_each(|_| counts[zipf.draw(&mut random) as usize] += 1);
        let (mut statistic, mut cells, mut expected, mut found) = (0.0, 0.0, 0.0, 0.0);
        for (weight, count) in weights.iter().zip(counts) {
            expected += weight / total * f64::from(draws);
            found += f64::from(count);
            if expected >= 20.0 {
                statistic += (found - expected) * (found - expected) / expected;
                (cells, expected, found) = (cells + 1.0, 0.0, 0.0);
            }
        }
        (statistic, cells - 1.0)
    }

    #[test]
    fn frequencies_match_the_distribution() {
        for (seed, (items, theta)) in
            [(1000, 0.5), (1000, 0.99), (1000, 1.0), (1000, 1.1), (50, 2.0), (7, 2.9), (2, 1.2)]
                .into_iter()
                .enumerate()
        {
            let (statistic, freedom) = chi_square(items, theta, 200_000, seed as u64);
            let limit = freedom + 5.0 * (2.0 * freedom).sqrt() + 5.0;
            assert!(statistic < limit, "{items} {theta}: {statistic} of {freedom}");
        }
    }

    #[test]
    fn the_first_ranks_hold_their_share_among_very_many_items() {
        // zeta(2) = pi^2 / 6: rank 1 has 60.8 % of an endless list.
        let zipf = Zipf::new(1 << 62, 2.0);
        let mut random = Xoshiro256::new(5);
        let first = (0..100_000).filter(|_| zipf.draw(&mut random) == 0).count();
        assert!((60_000..61_600).contains(&first), "{first}");
    }

    #[test]
    fn one_item_is_always_drawn() {
        let zipf = Zipf::new(1, 1.5);
        let mut random = Xoshiro256::new(5);
        assert!((0..100).all(|_| zipf.draw(&mut random) == 0));
    }
}
