//! What keeps a worker from starting its next I/O, but for a schedule: a pause after so many, and an end after so many.

use forebay_model::job::JobSpec;
use std::time::{Duration, Instant};

/// Think time: after every so many I/Os the worker waits for those in flight, and then for as long again as was asked for.
pub struct Pause {
    lasts: Duration,
    every: u32,
    started: u32,
    until: Option<Instant>,
}

impl Pause {
    pub fn of(job: &JobSpec) -> Option<Pause> {
        let lasts = job.think_s.filter(|s| *s > 0.0).map(Duration::from_secs_f64)?;
        Some(Pause { lasts, every: job.think_ios.unwrap_or(1), started: 0, until: None })
    }

    /// Whether an I/O may be started. A pause begins with the first look at which none is in flight.
    #[inline]
    pub fn is_over(&mut self, now: Instant, in_flight: u32) -> bool {
        if self.started < self.every {
            return true;
        }
        if self.until.is_none() && in_flight == 0 {
            self.until = Some(now + self.lasts);
        }
        let over = self.until.is_some_and(|until| until <= now);
        if over {
            (self.started, self.until) = (0, None);
        }
        over
    }

    #[inline]
    pub fn count(&mut self) {
        self.started += 1;
    }

    /// When the pause that was begun is over.
    pub fn until(&self) -> Option<Instant> {
        self.until
    }
}

/// I/Os and bytes that a worker may start yet; None: any number.
pub struct Left {
    ios: Option<u64>,
    bytes: Option<u64>,
}

impl Left {
    pub fn of(job: &JobSpec) -> Left {
        Left { ios: job.limit_ios, bytes: job.limit_bytes }
    }

    #[inline]
    pub fn is_none(&self) -> bool {
        self.ios == Some(0) || self.bytes == Some(0)
    }

    #[inline]
    pub fn take(&mut self, bytes: u64) {
        self.ios = self.ios.map(|n| n.saturating_sub(1));
        self.bytes = self.bytes.map(|n| n.saturating_sub(bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[test]
    fn a_pause_begins_once_nothing_is_in_flight_and_comes_after_every_so_many() {
        let job = JobSpec { think_s: Some(2.0), think_ios: Some(2), ..JobSpec::default() };
        let (mut pause, now) = (Pause::of(&job).unwrap(), clock::now());
        let after = |s: f64| now + Duration::from_secs_f64(s);
        assert!(pause.is_over(now, 0));
        pause.count();
        assert!(pause.is_over(now, 1));
        pause.count();
        assert!(!pause.is_over(now, 2) && pause.until().is_none());
        assert!(!pause.is_over(after(1.0), 0) && pause.until() == Some(after(3.0)));
        assert!(!pause.is_over(after(2.5), 0));
        assert!(pause.is_over(after(3.0), 0) && pause.until().is_none());
        assert!(Pause::of(&JobSpec { think_s: Some(0.0), ..JobSpec::default() }).is_none());
    }

    #[test]
    fn what_is_left_ends_with_the_io_that_reaches_the_limit() {
        let mut left = Left::of(&JobSpec { limit_bytes: Some(10), limit_ios: Some(3), ..JobSpec::default() });
        left.take(6);
        assert!(!left.is_none());
        left.take(6);
        assert!(left.is_none());
        let mut left = Left::of(&JobSpec { limit_ios: Some(1), ..JobSpec::default() });
        left.take(0);
        assert!(left.is_none() && !Left::of(&JobSpec::default()).is_none());
    }
}
