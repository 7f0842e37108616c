//! The schedule of an open loop: I/Os start when they are due, regardless of earlier ones, and their latency counts
//! from that time.

use forebay_io::monotonic_now;
use forebay_model::job::{Arrivals, JobSpec};
use forebay_model::random::{derive, Xoshiro256};
use std::time::{Duration, Instant};

/// An open loop's schedule.
pub(crate) struct Schedule {
    pub next: Instant,
    /// To the next I/O: a constant, and a share of the bytes of this one.
    pub ns_per_io: f64,
    pub ns_per_byte: f64,
    /// Fraction of a nanosecond of `next` that the clock can't show.
    pub rest_ns: f64,
    /// Observed lateness of timers that end a sleep.
    pub lateness: Duration,
    /// Distances are drawn around their mean; None: they are all alike.
    pub random: Option<Xoshiro256>,
}

impl Schedule {
    /// A sleep that ends later than this was delayed by something else than its timer: on a virtual machine timers were
    /// 60 to 150 µs late.
    const LATENESS_MAX: Duration = Duration::from_micros(250);
    /// A worker polls for the next due time for at most one part in this many of its time: more would make latency more
    /// exact, and cost CPU time that the record counts.
    const AWAKE_SHARE: u32 = 20;

    const LONGEST_NS: f64 = 1e15;
    const OWED_MAX: f64 = 1e15;

    pub(crate) fn ns_after(&self, bytes: u64) -> f64 {
        (self.ns_per_io + self.ns_per_byte * bytes as f64).min(Self::LONGEST_NS)
    }

    pub(crate) fn advance(&mut self, bytes: u64) {
        let drawn = self.random.as_mut().map_or(1.0, |random| -(1.0 - random.next_f64()).ln());
        let ns = self.rest_ns + (self.ns_after(bytes) * drawn).min(Self::LONGEST_NS);
        self.next += Duration::from_nanos(ns as u64);
        self.rest_ns = ns.fract();
    }

    /// When to be awake for the next I/O. A timer ends a sleep tens of microseconds late, more on a virtual machine, and
    /// all of that would be latency that no device has; the worker looks at the clock from here on.
    pub(crate) fn wakes_at(&self, bytes: u64) -> Instant {
        let gap = Duration::from_nanos(self.ns_after(bytes) as u64);
        let ahead = self.lateness.min(gap / Self::AWAKE_SHARE);
        self.next.checked_sub(ahead).unwrap_or(self.next)
    }

    /// Learns from a sleep that its timer ended so much late: from the long ones at once, from shorter ones slowly.
    pub(crate) fn overslept(&mut self, by: Duration) {
        let by = by.min(Self::LATENESS_MAX);
        self.lateness = by.max(self.lateness - self.lateness.saturating_sub(by) / 16);
    }

    /// Returns whether the next I/O is due before `end`.
    pub(crate) fn is_due_before(&self, end: Instant) -> bool {
        self.ns_before(end) > 0.0
    }

    /// From one I/O of `bytes` to the next in ns, and how many of them are due before `end`.
    pub(crate) fn owed(&self, end: Instant, bytes: f64) -> (f64, u64) {
        let gap_ns = self.ns_per_io + self.ns_per_byte * bytes;
        (gap_ns, (self.ns_before(end) / gap_ns).ceil().min(Self::OWED_MAX) as u64)
    }

    /// From the next I/O to `end`. A schedule that comes to `end` but for the error of its sums has come there.
    fn ns_before(&self, end: Instant) -> f64 {
        const ERROR_NS: f64 = 1e-3;
        let ns = end.saturating_duration_since(self.next).as_nanos() as f64;
        (ns - self.rest_ns - ERROR_NS).max(0.0)
    }
}

/// Worker number `worker`'s. None where the job doesn't ask for a rate: a closed loop.
pub(crate) fn schedule_of(job: &JobSpec, worker: u32) -> Option<Schedule> {
    use forebay_model::units::BYTES_PER_GIB as GIB;
    let ns_for = |rate: Option<f64>| rate.map_or(0.0, |r| f64::from(job.workers) * 1e9 / r);
    (job.rate_iops.is_some() || job.rate_gib_s.is_some()).then(|| Schedule {
        next: monotonic_now(),
        ns_per_io: ns_for(job.rate_iops),
        ns_per_byte: ns_for(job.rate_gib_s.map(|r| r * GIB)),
        rest_ns: 0.0,
        lateness: Duration::ZERO,
        // Not the numbers that the worker's offsets are drawn with.
        random: (job.arrivals == Arrivals::Poisson)
            .then(|| Xoshiro256::new(derive(!job.seed, u64::from(worker)))),
    })
}

/// Mean size of the job's I/Os, bytes.
pub(crate) fn mean_io_bytes(job: &JobSpec) -> f64 {
    if let Ok(Some(mix)) = job.parsed_mix() {
        return mix.mean_bytes(job.reads_pct());
    }
    let step = job.io_bytes_step.unwrap_or(job.io_bytes);
    let most = job.io_bytes + (job.io_bytes_largest() - job.io_bytes) / step * step;
    (job.io_bytes + most) as f64 / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(rate_iops: f64) -> Schedule {
        let job = JobSpec { rate_iops: Some(rate_iops), workers: 1, ..JobSpec::default() };
        schedule_of(&job, 0).unwrap()
    }

    fn ahead(schedule: &Schedule) -> Duration {
        schedule.next - schedule.wakes_at(4096)
    }

    // promise: BEN-6
    #[test]
    fn it_wakes_up_as_much_ahead_as_timers_are_late_here() {
        let (mut schedule, us) = (schedule(100.0), Duration::from_micros);
        assert_eq!(ahead(&schedule), Duration::ZERO, "nothing was seen yet");
        schedule.overslept(us(120));
        assert_eq!(ahead(&schedule), us(120));
        schedule.overslept(us(40));
        assert_eq!(ahead(&schedule), us(115));
        (0..200).for_each(|_| schedule.overslept(us(40)));
        assert!(ahead(&schedule) >= us(40) && ahead(&schedule) < us(41));
        schedule.overslept(us(9000));
        assert_eq!(ahead(&schedule), Schedule::LATENESS_MAX, "something else held it up");
    }

    // promise: BEN-6
    #[test]
    fn it_is_awake_for_a_twentieth_of_its_time_at_most() {
        for (rate_iops, most_us) in [(1000.0, 50), (100_000.0, 0)] {
            let mut schedule = schedule(rate_iops);
            schedule.overslept(Duration::from_millis(1));
            assert_eq!(ahead(&schedule).as_micros(), most_us);
        }
    }

    // promise: BEN-26
    #[test]
    fn distances_drawn_around_their_mean_come_to_it() {
        let job = JobSpec { rate_iops: Some(1e6), arrivals: Arrivals::Poisson, ..JobSpec::default() };
        let mut schedule = schedule_of(&job, 3).unwrap();
        let (begin, mut shorter) = (schedule.next, 0);
        for _ in 0..100_000 {
            let from = schedule.next;
            schedule.advance(4096);
            shorter += u32::from(schedule.next - from < Duration::from_micros(1));
        }
        // A share of 1 - 1/e of exponentially distributed distances is shorter than their mean.
        let (mean_us, share) = ((schedule.next - begin).as_secs_f64() * 10.0, f64::from(shorter) / 1e5);
        assert!((mean_us - 1.0).abs() < 0.02 && (share - 0.632).abs() < 0.01, "{mean_us} {share}");
    }
}
