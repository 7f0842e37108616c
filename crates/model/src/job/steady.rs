//! The criterion of a steady state: the range and the slope of throughput, or the value of `--steady`.

use super::JobSpec;
use crate::series::Point;
use crate::stats::{Steady, SteadySpec};
use crate::Error;
use std::collections::VecDeque;

/// A year.
const SECONDS_MAX: f64 = 3.2e7;
/// Points that a window may hold.
const POINTS_MAX: usize = 1 << 20;

/// Figure that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Measure {
    Throughput,
    Iops,
    Latency,
}

/// `iops=10,window=30,skip=10`: over the last 30 s no point is more than 10 % off the mean, without the first 10 s.
/// `iops_slope=1`: their least-squares line rises or falls by less than 1 % of the mean from point to point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SteadyRule {
    measure: Measure,
    slope: bool,
    pct: f64,
    window_s: f64,
    skip_s: f64,
}

impl SteadyRule {
    pub const POINTS_MIN: usize = 3;

    /// # Errors
    /// `Request`, naming the part that isn't one.
    pub fn parse(text: &str) -> Result<SteadyRule, Error> {
        let refused = |found: String| {
            Error::request(format!("‹steady› {text}"), found, "‹steady› iops=10,window=30,skip=10")
        };
        let mut found: Option<(Measure, bool, f64)> = None;
        let (mut window_s, mut skip_s) = (None, 0.0);
        for part in text.split(',') {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let number = value.parse().ok().filter(|n| (0.0..=SECONDS_MAX).contains(n));
            let number: f64 = number.ok_or_else(|| refused(format!("'{part}' has no number")))?;
            let (word, slope) = name.strip_suffix("_slope").map_or((name, false), |word| (word, true));
            let measure = match word {
                "bw" => Measure::Throughput,
                "iops" => Measure::Iops,
                "lat" => Measure::Latency,
                "window" if !slope => {
                    window_s = Some(number);
                    continue;
                }
                "skip" if !slope => {
                    skip_s = number;
                    continue;
                }
                _ => return Err(refused(format!("'{name}' is not one of bw, iops, lat, window, skip"))),
            };
            if found.replace((measure, slope, number)).is_some() {
                return Err(refused("it names two measures".into()));
            }
        }
        match (found, window_s) {
            (Some((measure, slope, pct)), Some(window_s)) if pct > 0.0 => {
                Ok(SteadyRule { measure, slope, pct, window_s, skip_s })
            }
            (Some(_), Some(_)) => Err(refused("nothing is within 0 per cent".into())),
            (None, _) => Err(refused("it names no measure".into())),
            (_, None) => Err(refused("it names no window".into())),
        }
    }

    /// Points of the series that fill the window.
    pub fn points(&self, interval_ms: u32) -> usize {
        let points = (self.window_s * 1e3 / f64::from(interval_ms.max(1))).round();
        (points as usize).min(POINTS_MAX)
    }

    fn figure_of(&self, point: &Point) -> Option<f64> {
        match self.measure {
            Measure::Throughput => Some(point.gib_s),
            Measure::Iops => Some(point.iops),
            Measure::Latency => point.latency_us_mean,
        }
    }

    /// Returns whether a full window, with its points at equal distances, holds. Nothing moving at all is a stall, and
    /// not steady.
    fn holds(&self, values: &VecDeque<f64>) -> bool {
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        if mean <= 0.0 {
            return false;
        }
        let off = if self.slope {
            let middle = (n - 1.0) / 2.0;
            let along: f64 = (0..values.len()).map(|i| (i as f64 - middle).powi(2)).sum();
            let across: f64 = values.iter().enumerate().map(|(i, v)| (i as f64 - middle) * (v - mean)).sum();
            (across / along).abs()
        } else {
            values.iter().map(|v| (v - mean).abs()).fold(0.0, f64::max)
        };
        100.0 * off / mean < self.pct
    }
}

/// Watches a run's points for the first at which it is steady.
#[derive(Clone, Debug)]
pub enum Judge {
    Usual(Steady),
    ByRule { rule: SteadyRule, points: usize, interval_s: f64, values: VecDeque<f64> },
}

impl Judge {
    /// None where the job doesn't end by it.
    pub fn for_job(job: &JobSpec) -> Option<Judge> {
        if !job.until_steady {
            return None;
        }
        let Some(rule) = job.steady.as_deref().and_then(|text| SteadyRule::parse(text).ok()) else {
            return Some(Judge::Usual(Steady::new(SteadySpec::default())));
        };
        let points = rule.points(job.interval_ms).max(SteadyRule::POINTS_MIN);
        let interval_s = f64::from(job.interval_ms) / 1e3;
        Some(Judge::ByRule { rule, points, interval_s, values: VecDeque::new() })
    }

    /// Adds a point of the measured time. True: the run is steady.
    pub fn push(&mut self, point: &Point) -> bool {
        match self {
            Judge::Usual(steady) => steady.push(point.t_s, point.gib_s),
            Judge::ByRule { rule, points, interval_s, values } => {
                // A point speaks of the interval before it.
                if point.t_s < rule.skip_s + *interval_s * 0.99 {
                    return false;
                }
                let Some(value) = rule.figure_of(point) else {
                    // An interval without an I/O has no latency, and is no part of a steady run.
                    values.clear();
                    return false;
                };
                if values.len() == *points {
                    values.pop_front();
                }
                values.push_back(value);
                values.len() == *points && rule.holds(values)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The second at which values that come once a second are steady.
    fn steady_at(rule: &str, values: impl IntoIterator<Item = f64>) -> Option<usize> {
        let job = JobSpec {
            steady: Some(rule.into()),
            until_steady: true,
            interval_ms: 1000,
            ..JobSpec::default()
        };
        let mut judge = Judge::for_job(&job).unwrap();
        let point = |t: usize, v: f64| Point {
            t_s: t as f64,
            iops: v,
            gib_s: v / 2.0,
            latency_us_mean: (v > 0.0).then_some(1e3 / v),
            ..Point::default()
        };
        (1..).zip(values).find_map(|(t, v)| judge.push(&point(t, v)).then_some(t))
    }

    // promise: BEN-29
    #[test]
    fn a_deviation_is_within_so_much_of_the_mean_of_a_full_window() {
        let level = || std::iter::repeat_n(100.0, 20);
        assert_eq!(steady_at("iops=5,window=4", level()), Some(4));
        assert_eq!(steady_at("iops=5,window=4,skip=10", level()), Some(14));
        let jump = [50.0, 50.0, 50.0, 100.0, 100.0, 100.0, 100.0, 100.0];
        for measure in ["iops", "bw", "lat"] {
            assert_eq!(steady_at(&format!("{measure}=5,window=4"), jump), Some(7), "{measure}");
        }
        let swings = (0..20).map(|i| if i % 2 == 0 { 90.0 } else { 110.0 });
        assert_eq!(steady_at("bw=9,window=4", swings.clone()), None);
        assert_eq!(steady_at("bw=11,window=4", swings), Some(4));
        assert_eq!(steady_at("bw=5,window=4", std::iter::repeat_n(0.0, 20)), None, "a stall");
        assert_eq!(steady_at("lat=5,window=4", [100.0, 100.0, 0.0, 100.0, 100.0, 100.0, 100.0]), Some(7));
    }

    #[test]
    fn a_slope_is_per_point_and_in_per_cent_of_the_mean() {
        // 100, 102, 104 …: over four points the mean of the first window is 103.
        let rise = (0..4).map(|i| 100.0 + 2.0 * f64::from(i));
        assert_eq!(steady_at("iops_slope=1.9,window=4", rise.clone()), None);
        assert_eq!(steady_at("iops_slope=1.95,window=4", rise.clone()), Some(4));
        let fall: Vec<f64> = rise.rev().collect();
        assert_eq!(steady_at("iops_slope=1.9,window=4", fall.clone()), None);
        assert_eq!(steady_at("iops_slope=1.95,window=4", fall), Some(4));
    }

    #[test]
    fn what_is_no_rule_is_refused_by_its_part() {
        for (text, named) in [
            ("", "has no number"),
            ("iops", "has no number"),
            ("iops=x,window=5", "'iops=x'"),
            ("iops=-1,window=5", "'iops=-1'"),
            ("iops=1e99,window=5", "has no number"),
            ("watts=5,window=5", "'watts'"),
            ("window_slope=5,iops=1", "'window_slope'"),
            ("iops=5,bw=5,window=5", "two measures"),
            ("iops=5", "no window"),
            ("window=5", "no measure"),
            ("iops=0,window=5", "within 0"),
        ] {
            let error = SteadyRule::parse(text).unwrap_err();
            assert!(error.found.contains(named) && error.asked.starts_with("‹steady›"), "{text}: {error}");
        }
    }
}
