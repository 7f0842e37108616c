//! The minimum rate of a job: each worker must reach its share of it in every second.

use super::run_kit::Snapshot;
use forebay_model::job::JobSpec;
use forebay_model::units::BYTES_PER_GIB;
use forebay_model::Error;
use std::time::Duration;

/// Time over which a rate is averaged.
const CYCLE: Duration = Duration::from_secs(1);
/// A run has so long to get going.
const SETTLES: Duration = Duration::from_secs(2);

pub(crate) struct MinimumRate {
    /// Least rate of each worker; None where nothing was asked for.
    bytes_s: Option<f64>,
    ios_s: Option<f64>,
    workers: Vec<Lately>,
    found: Option<Error>,
}

/// Recent bytes and I/Os of one worker.
#[derive(Clone, Copy, Default)]
struct Lately {
    since: Duration,
    bytes: u64,
    ios: u64,
    ended: bool,
}

impl MinimumRate {
    pub(crate) fn for_job(job: &JobSpec) -> Option<MinimumRate> {
        let part = |whole: f64| whole / f64::from(job.workers.max(1));
        let bytes_s = job.rate_min_gib_s.map(|rate| part(rate * BYTES_PER_GIB));
        let ios_s = job.rate_min_iops.map(part);
        let workers = vec![Lately::default(); job.workers as usize];
        (bytes_s.is_some() || ios_s.is_some()).then_some(MinimumRate { bytes_s, ios_s, workers, found: None })
    }

    /// One that has nothing left to do misses nothing.
    pub(crate) fn ended(&mut self, worker: u32) {
        if let Some(lately) = self.workers.get_mut(worker as usize) {
            lately.ended = true;
        }
    }

    /// Returns true the first time that a worker has moved less than its part.
    pub(crate) fn is_missed_by(&mut self, snapshot: &Snapshot) -> bool {
        let Some(lately) = self.workers.get_mut(snapshot.worker as usize) else { return false };
        if !snapshot.measured || snapshot.at < SETTLES {
            *lately = Lately { since: snapshot.at, ..Lately::default() };
            return false;
        }
        lately.bytes += snapshot.bytes;
        lately.ios += snapshot.ios;
        let span = snapshot.at.saturating_sub(lately.since);
        if span < CYCLE || lately.ended || self.found.is_some() {
            return false;
        }
        let (moved, from) = (*lately, lately.since.as_secs_f64());
        *lately = Lately { since: snapshot.at, ..Lately::default() };
        let rate = |count: u64| count as f64 / span.as_secs_f64();
        let below =
            |least: Option<f64>, rate: f64| least.filter(|least| rate < *least).map(|least| (rate, least));
        let mib = |(rate, least): (f64, f64)| {
            let mib_s = |rate: f64| rate / f64::from(1 << 20);
            (
                "‹rate_min_gib_s›",
                format!("{:.3} MiB/s, less than its share of {:.3}", mib_s(rate), mib_s(least)),
            )
        };
        let ios = |(rate, least): (f64, f64)| {
            ("‹rate_min_iops›", format!("{rate:.1} IOPS, less than its share of {least:.1}"))
        };
        let missed = below(self.bytes_s, rate(moved.bytes)).map(mib);
        let missed = missed.or(below(self.ios_s, rate(moved.ios)).map(ios));
        self.found = missed.map(|(flag, rates)| {
            let (worker, to) = (snapshot.worker, snapshot.at.as_secs_f64());
            let found = format!("worker {worker} reached {rates} (from {from:.1} to {to:.1} s)");
            Error::run(flag, found, format!("a lower {flag}, or find out what slows it down: forebay doctor"))
        });
        self.found.is_some()
    }

    pub(crate) fn error(self) -> Option<Error> {
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(worker: u32, at_ms: u64, bytes: u64, ios: u64) -> Snapshot {
        let at = Duration::from_millis(at_ms);
        let (so_far, ways, latency, targets) = Default::default();
        let (index, mean_ns, measured) = (0, 0.0, true);
        Snapshot { worker, index, at, bytes, ios, ways, so_far, mean_ns, measured, latency, targets }
    }

    // promise: BEN-29
    #[test]
    fn each_worker_keeps_up_its_part_second_by_second() {
        let gib_s = 2.0 * 1000.0 / BYTES_PER_GIB;
        let job = JobSpec { workers: 2, rate_min_gib_s: Some(gib_s), ..JobSpec::default() };
        let mut least = MinimumRate::for_job(&job).unwrap();
        assert!(!least.is_missed_by(&snapshot(0, 1500, 0, 0)), "it gets going");
        for ms in [2000, 2500, 3000, 3500, 4000] {
            assert!(!least.is_missed_by(&snapshot(0, ms, 500, 1)), "worker 0 at {ms} ms");
        }
        assert!(!least.is_missed_by(&snapshot(1, 1900, 0, 0)));
        assert!(!least.is_missed_by(&snapshot(1, 2400, 999, 1)), "no second has gone by");
        assert!(least.is_missed_by(&snapshot(1, 2900, 0, 1)));
        assert!(!least.is_missed_by(&snapshot(1, 3900, 0, 1)), "said once");
        let error = least.error().unwrap();
        assert!(error.asked == "‹rate_min_gib_s›" && error.found.contains("worker 1"), "{error}");
    }

    #[test]
    fn one_that_has_ended_misses_nothing_and_ios_are_counted_by_themselves() {
        let job = JobSpec { rate_min_iops: Some(3.0), ..JobSpec::default() };
        let mut least = MinimumRate::for_job(&job).unwrap();
        assert!(!least.is_missed_by(&snapshot(0, 1999, 0, 0)));
        assert!(!least.is_missed_by(&snapshot(0, 3000, 0, 4)));
        least.ended(0);
        assert!(!least.is_missed_by(&snapshot(0, 9000, 0, 0)));
        let mut least = MinimumRate::for_job(&job).unwrap();
        assert!(!least.is_missed_by(&snapshot(0, 1999, 0, 0)));
        assert!(least.is_missed_by(&snapshot(0, 3000, 1 << 30, 2)));
        assert_eq!(least.error().unwrap().asked, "‹rate_min_iops›");
        assert!(MinimumRate::for_job(&JobSpec::default()).is_none());
    }
}
