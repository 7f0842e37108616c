//! The distribution of times around their mean, and the expected maximum of many.
//!
//! A read of a thousand requests is whole when its last one is, and a step of a thousand accelerators ends with the
//! slowest. So what is drawn is the greatest of n: the n-th root of a uniform number is its place in the distribution.

use crate::random::Xoshiro256;
use crate::Error;
use serde::{Deserialize, Serialize};

/// Places are tabled over the logarithm of p / (1 - p), which is as fine at both ends as in the middle.
const LOGIT_MOST: f64 = 40.0;
const CELLS: usize = 4096;
/// Beyond this a mean of a few million draws hardly settles.
const CV_MOST: f64 = 10.0;

/// A distribution of mean 1 and of this coefficient of variation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "shape", content = "cv")]
pub enum Shape {
    Lognormal(f64),
    /// Its tail falls as a power: few times are long, and those are very long.
    Pareto(f64),
    /// Its coefficient of variation is 1.
    Exponential,
}

impl Shape {
    /// Refuses a coefficient of variation that nothing has.
    pub fn check(self) -> Result<(), Error> {
        let cv = match self {
            Shape::Lognormal(cv) | Shape::Pareto(cv) => cv,
            Shape::Exponential => 1.0,
        };
        if cv > 0.0 && cv <= CV_MOST {
            return Ok(());
        }
        let found = format!("must be above 0 and at most {CV_MOST}");
        Err(Error::request(format!("a coefficient of variation of {cv}"), found, "0.1: a tenth of the mean"))
    }

    /// The value that a share `p` stays below; `q` is 1 - p, exact where it is small.
    fn quantile(self, p: f64, q: f64) -> f64 {
        match self {
            Shape::Lognormal(cv) => {
                let variance = libm::log1p(cv * cv);
                libm::exp(libm::sqrt(variance) * normal_quantile(p, q) - variance / 2.0)
            }
            Shape::Pareto(cv) => {
                let power = 1.0 + libm::sqrt(1.0 + 1.0 / (cv * cv));
                (power - 1.0) / power * libm::pow(q, -1.0 / power)
            }
            Shape::Exponential => -libm::log(q),
        }
    }
}

/// Returns the bound below which a standard normal variate stays with probability `p`, by halving an interval.
fn normal_quantile(p: f64, q: f64) -> f64 {
    if p > q {
        return -normal_quantile(q, p);
    }
    let (mut low, mut high) = (-12.0, 0.0);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if libm::erfc(-middle / std::f64::consts::SQRT_2) / 2.0 < p {
            low = middle;
        } else {
            high = middle;
        }
    }
    (low + high) / 2.0
}

/// A shape, tabled for drawing.
#[derive(Clone, Debug)]
pub struct Spread {
    values: Vec<f64>,
}

impl Spread {
    pub fn new(shape: Shape) -> Spread {
        let value = |cell: usize| {
            let logit = (cell as f64 / CELLS as f64 * 2.0 - 1.0) * LOGIT_MOST;
            let q = 1.0 / (1.0 + libm::exp(logit));
            let p = 1.0 / (1.0 + libm::exp(-logit));
            shape.quantile(p, q)
        };
        Spread { values: (0..=CELLS).map(value).collect() }
    }

    /// The greatest of `n` draws.
    #[inline]
    pub fn longest_of(&self, n: f64, random: &mut Xoshiro256) -> f64 {
        let log_p = libm::log(1.0 - random.next_f64()) / n;
        self.at(log_p - libm::log(-libm::expm1(log_p)))
    }

    #[inline]
    fn at(&self, logit: f64) -> f64 {
        let place = ((logit / LOGIT_MOST + 1.0) / 2.0 * CELLS as f64).clamp(0.0, (CELLS - 1) as f64);
        let cell = place as usize;
        let part = (place - cell as f64).min(1.0);
        self.values[cell] + part * (self.values[cell + 1] - self.values[cell])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean_of_longest(shape: Shape, n: f64, draws: u32) -> (f64, f64) {
        let spread = Spread::new(shape);
        let mut random = Xoshiro256::new(11);
        let values: Vec<f64> = (0..draws).map(|_| spread.longest_of(n, &mut random)).collect();
        let mean = values.iter().sum::<f64>() / f64::from(draws);
        let variance = values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / f64::from(draws);
        (mean, libm::sqrt(variance))
    }

    #[test]
    fn single_draws_have_the_mean_and_spread_that_were_asked_for() {
        for (shape, cv) in
            [(Shape::Lognormal(0.3), 0.3), (Shape::Exponential, 1.0), (Shape::Pareto(0.3), 0.3)]
        {
            let (mean, sd) = mean_of_longest(shape, 1.0, 400_000);
            assert!(
                (mean - 1.0).abs() < 0.006 && (sd - cv).abs() < 0.03 * cv + 0.005,
                "{shape:?}: {mean} {sd}"
            );
        }
    }

    #[test]
    fn the_longest_of_many_is_what_drawing_them_all_gives() {
        // Of n exponential draws the greatest is the n-th harmonic number on the mean.
        for n in [8u32, 1000] {
            let harmonic: f64 = (1..=n).map(|k| 1.0 / f64::from(k)).sum();
            let (mean, _) = mean_of_longest(Shape::Exponential, f64::from(n), 100_000);
            assert!((mean / harmonic - 1.0).abs() < 0.01, "{n}: {mean} {harmonic}");
        }
        let spread = Spread::new(Shape::Lognormal(0.5));
        let mut random = Xoshiro256::new(5);
        let drawn =
            |random: &mut Xoshiro256| (0..64).map(|_| spread.longest_of(1.0, random)).fold(0.0, f64::max);
        let each = (0..20_000).map(|_| drawn(&mut random)).sum::<f64>() / 20_000.0;
        let (at_once, _) = mean_of_longest(Shape::Lognormal(0.5), 64.0, 100_000);
        assert!((each / at_once - 1.0).abs() < 0.01, "{each} {at_once}");
    }

    #[test]
    fn a_spread_that_nothing_has_is_refused() {
        for shape in
            [Shape::Lognormal(0.0), Shape::Pareto(-1.0), Shape::Lognormal(f64::NAN), Shape::Pareto(11.0)]
        {
            assert!(shape.check().is_err(), "{shape:?}");
        }
        assert!(Shape::Exponential.check().is_ok());
    }
}
