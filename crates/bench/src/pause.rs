//! Pauses of a worker other than its schedule: after so many I/Os, for others that are behind, and an end after so
//! many.

use super::flow::Share;
use forebay_model::job::JobSpec;
use forebay_model::Error;
use std::time::{Duration, Instant};

/// The pauses of a worker: think time and flow control.
pub(crate) struct Pause {
    think: Option<Think>,
    flow: Option<Share>,
}

/// Think time: after every so many I/Os the worker waits for those in flight, and then for as long again as was asked for.
struct Think {
    lasts: Duration,
    every: u32,
    started: u32,
    until: Option<Instant>,
}

impl Pause {
    /// None where nothing does.
    ///
    /// # Errors
    /// As `Share::for_job`.
    pub(crate) fn for_job(job: &JobSpec) -> Result<Option<Pause>, Error> {
        let (think, flow) = (Think::for_job(job), Share::for_job(job)?);
        Ok((think.is_some() || flow.is_some()).then_some(Pause { think, flow }))
    }

    /// Returns whether an I/O may be started.
    #[inline]
    pub(crate) fn is_over(&mut self, now: Instant, in_flight: u32) -> bool {
        self.think.as_mut().is_none_or(|think| think.is_over(now, in_flight))
            && self.flow.as_mut().is_none_or(|flow| flow.may_start(now))
    }

    #[inline]
    pub(crate) fn count(&mut self) {
        self.think.iter_mut().for_each(Think::count);
        self.flow.iter_mut().for_each(Share::count);
    }

    /// When to look again.
    pub(crate) fn until(&self) -> Option<Instant> {
        let think = self.think.as_ref().and_then(Think::until);
        think.into_iter().chain(self.flow.as_ref().and_then(Share::again)).min()
    }
}

impl Think {
    fn for_job(job: &JobSpec) -> Option<Think> {
        let lasts = job.think_s.filter(|s| *s > 0.0).map(Duration::from_secs_f64)?;
        Some(Think { lasts, every: job.think_ios.unwrap_or(1), started: 0, until: None })
    }

    /// A pause begins with the first look at which no I/O is in flight.
    #[inline]
    fn is_over(&mut self, now: Instant, in_flight: u32) -> bool {
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
    fn count(&mut self) {
        self.started += 1;
    }

    /// When the pause that was begun is over.
    fn until(&self) -> Option<Instant> {
        self.until
    }
}

/// I/Os and bytes that a worker may start yet; None: any number.
pub(crate) struct Left {
    ios: Option<u64>,
    bytes: Option<u64>,
}

impl Left {
    pub(crate) fn for_job(job: &JobSpec) -> Left {
        Left { ios: job.limit_ios, bytes: job.limit_bytes }
    }

    #[inline]
    pub(crate) fn is_none(&self) -> bool {
        self.ios == Some(0) || self.bytes == Some(0)
    }

    #[inline]
    pub(crate) fn take(&mut self, bytes: u64) {
        self.ios = self.ios.map(|n| n.saturating_sub(1));
        self.bytes = self.bytes.map(|n| n.saturating_sub(bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_io::monotonic_now;

    // promise: BEN-26
    #[test]
    fn a_pause_begins_once_nothing_is_in_flight_and_comes_after_every_so_many() {
        let job = JobSpec { think_s: Some(2.0), think_ios: Some(2), ..JobSpec::default() };
        let (mut pause, now) = (Pause::for_job(&job).unwrap().unwrap(), monotonic_now());
        let after = |s: f64| now + Duration::from_secs_f64(s);
        assert!(pause.is_over(now, 0));
        pause.count();
        assert!(pause.is_over(now, 1));
        pause.count();
        assert!(!pause.is_over(now, 2) && pause.until().is_none());
        assert!(!pause.is_over(after(1.0), 0) && pause.until() == Some(after(3.0)));
        assert!(!pause.is_over(after(2.5), 0));
        assert!(pause.is_over(after(3.0), 0) && pause.until().is_none());
        assert!(Pause::for_job(&JobSpec { think_s: Some(0.0), ..JobSpec::default() }).unwrap().is_none());
    }

    // promise: BEN-26
    #[test]
    fn what_is_left_ends_with_the_io_that_reaches_the_limit() {
        let mut left =
            Left::for_job(&JobSpec { limit_bytes: Some(10), limit_ios: Some(3), ..JobSpec::default() });
        left.take(6);
        assert!(!left.is_none());
        left.take(6);
        assert!(left.is_none());
        let mut left = Left::for_job(&JobSpec { limit_ios: Some(1), ..JobSpec::default() });
        left.take(0);
        assert!(left.is_none() && !Left::for_job(&JobSpec::default()).is_none());
    }
}
