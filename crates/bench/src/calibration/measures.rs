//! Figures that a trial measures, and the job that measures them.

use forebay_model::job::JobSpec;
use forebay_model::units::GIB;
use std::time::Duration;

/// Bytes that trials of a registering path read of all targets: few enough for a whole first pass; for later ones more
/// than a processor's cache or a GPU's page table holds; and the least of each target.
const FIRST_BYTES: u64 = 512 << 20;
const LATER_BYTES: u64 = 8 * GIB;
const BYTES_LEAST: u64 = 4 << 20;
/// A rate of registering that is reached everywhere.
const SET_UP_BYTES_S: f64 = 16e9;

#[derive(Clone, Copy)]
pub(super) enum Measures {
    /// The rate once it has settled, however often that comes by the same bytes.
    Steady,
    /// First pass over bytes for which nothing has been set up yet: from the start, and one pass at most.
    FirstPass,
    /// Passes over bytes for which everything has been set up, by the trial itself or by one before it.
    LaterPasses { set_up: bool },
}

impl Measures {
    pub(crate) fn job(self, job: &JobSpec, bytes: u64, time: Duration, workers: u32) -> JobSpec {
        let seconds = time.as_secs_f64();
        let trial = match self {
            Measures::Steady | Measures::LaterPasses { set_up: true } => job.trial(seconds, seconds / 3.0),
            Measures::FirstPass => JobSpec { passes: Some(1), ..job.trial(seconds, 0.0) },
            Measures::LaterPasses { set_up: false } => {
                job.trial(seconds, seconds / 3.0 + bytes as f64 / SET_UP_BYTES_S)
            }
        };
        JobSpec { workers, ..trial }
    }

    /// The most that is read of each target. Random reads touch everything at once, and would find all of it half set up;
    /// reads in order find what is set up ahead of them.
    pub(crate) fn bytes_of_each(self, job: &JobSpec, targets: usize) -> u64 {
        let together = match self {
            Measures::FirstPass if job.op.is_random() => FIRST_BYTES,
            Measures::Steady | Measures::FirstPass => return u64::MAX,
            Measures::LaterPasses { .. } => LATER_BYTES,
        };
        if job.start_bytes > 0 || job.start_step_bytes > 0 || job.distribution.starts_with("list") {
            return u64::MAX;
        }
        let each = together / targets.max(1) as u64;
        each.next_multiple_of(job.io_bytes_largest()).max(BYTES_LEAST)
    }

    /// Registrations of trials before it are used, if there are any.
    pub(crate) fn keeps(self) -> bool {
        matches!(self, Measures::LaterPasses { .. })
    }

    /// It first registers what later trials use too.
    pub(crate) fn sets_up(self) -> bool {
        matches!(self, Measures::LaterPasses { set_up: false })
    }

    /// For another trial on the same registrations.
    pub(crate) fn again(self) -> Measures {
        match self {
            Measures::LaterPasses { .. } => Measures::LaterPasses { set_up: true },
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_model::job::Op;

    #[test]
    fn trials_of_what_is_registered_are_about_no_more_than_their_time_allows() {
        let random = JobSpec { op: Op::RandRead, io_bytes: 4096, ..JobSpec::default() };
        let bytes = |of: Measures, job: &JobSpec, targets| of.bytes_of_each(job, targets);
        let later = Measures::LaterPasses { set_up: false };
        assert_eq!(bytes(Measures::Steady, &random, 1), u64::MAX);
        assert_eq!(bytes(Measures::FirstPass, &random, 2), 256 << 20);
        assert_eq!(bytes(Measures::FirstPass, &JobSpec { op: Op::Read, ..random.clone() }, 1), u64::MAX);
        assert_eq!(bytes(later, &random, 1), 8 << 30);
        assert_eq!(bytes(later, &random, 1 << 20), 4 << 20);
        let odd = JobSpec { io_bytes: 912, ..random.clone() };
        assert_eq!(bytes(later, &odd, 3) % 912, 0);
        assert_eq!(bytes(later, &JobSpec { start_bytes: 4096, ..random.clone() }, 1), u64::MAX);
        let warmup = |of: Measures| of.job(&random, 8 << 30, Duration::from_millis(120), 4).warmup_s.unwrap();
        assert!(warmup(later) > 0.5 && warmup(later.again()) < 0.05 && warmup(Measures::FirstPass) == 0.0);
    }
}
