//! The schedule of an open loop: I/Os start when they are due, whatever became of
//! the earlier ones, and their latency counts from there.

use crate::clock;
use forebay_model::job::JobSpec;
use std::time::{Duration, Instant};

/// An open loop's schedule.
pub struct Pace {
    pub next: Instant,
    /// To the next I/O: a constant, and a share of the bytes of this one.
    pub ns_per_io: f64,
    pub ns_per_byte: f64,
    /// What the clock can't show of `next`, below 1 ns.
    pub rest_ns: f64,
}

impl Pace {
    const LONGEST_NS: f64 = 1e15;
    const OWED_MAX: f64 = 1e15;

    pub fn ns_after(&self, bytes: u64) -> f64 {
        (self.ns_per_io + self.ns_per_byte * bytes as f64).min(Self::LONGEST_NS)
    }

    pub fn advance(&mut self, bytes: u64) {
        let ns = self.rest_ns + self.ns_after(bytes);
        self.next += Duration::from_nanos(ns as u64);
        self.rest_ns = ns.fract();
    }

    /// Whether the next I/O falls into the time that ends at `end`.
    pub fn is_due_before(&self, end: Instant) -> bool {
        self.ns_before(end) > 0.0
    }

    /// From one I/O of `bytes` to the next in ns, and how many of them are due before `end`.
    pub fn owed(&self, end: Instant, bytes: f64) -> (f64, u64) {
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

/// None where the job doesn't ask for a rate: a closed loop.
pub fn pace_of(job: &JobSpec) -> Option<Pace> {
    use forebay_model::units::BYTES_PER_GIB as GIB;
    let ns_for = |rate: Option<f64>| rate.map_or(0.0, |r| f64::from(job.workers) * 1e9 / r);
    (job.rate_iops.is_some() || job.rate_gib_s.is_some()).then(|| Pace {
        next: clock::now(),
        ns_per_io: ns_for(job.rate_iops),
        ns_per_byte: ns_for(job.rate_gib_s.map(|r| r * GIB)),
        rest_ns: 0.0,
    })
}
