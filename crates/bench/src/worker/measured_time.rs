//! The measured time of a run as a worker sees it: the fleet moves its ends while the run goes on.

use crate::run_kit::Shared;
use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(super) struct MeasuredTime {
    shared: Arc<Shared>,
    /// When the run began, its warm-up included.
    pub begin: Instant,
    /// The last `until_ns` that was seen, and the instant that it stands for.
    known: Cell<(u64, Instant)>,
}

impl MeasuredTime {
    pub(super) fn new(shared: &Arc<Shared>, begin: Instant) -> MeasuredTime {
        MeasuredTime { shared: shared.clone(), begin, known: Cell::new((u64::MAX, begin)) }
    }

    /// The run begins now.
    pub(super) fn begin(&mut self, at: Instant) {
        self.begin = at;
        self.known.set((u64::MAX, at));
    }

    /// When the warm-up ends.
    pub(super) fn from(&self) -> Instant {
        self.begin + Duration::from_nanos(self.shared.from_ns.load(Ordering::Relaxed))
    }

    /// When the measured time ends. It is asked for with every I/O, and calculated when it has changed.
    #[inline]
    pub(super) fn until(&self) -> Instant {
        let ns = self.shared.until_ns.load(Ordering::Relaxed);
        let (known, at) = self.known.get();
        if known == ns {
            return at;
        }
        let at = self.begin + Duration::from_nanos(ns);
        self.known.set((ns, at));
        at
    }

    /// Until when an open loop starts what was due in time and found no free slot.
    pub(super) fn drains_until(&self) -> Instant {
        self.until() + Duration::from_nanos(self.shared.drain_ns.load(Ordering::Relaxed))
    }

    /// When what may be started changes next.
    pub(super) fn next_edge(&self, now: Instant) -> Instant {
        let until = self.until();
        if now < until {
            until
        } else {
            self.drains_until()
        }
    }

    /// Returns whether any time was measured before `now`: a run that ends in its warm-up has no figures.
    pub(super) fn has_measured(&self, now: Instant) -> bool {
        now.min(self.until()) > self.from()
    }

    /// Since the run began, for as long as anything counts: what drains after the end counts for nothing, so its time
    /// doesn't either.
    pub(super) fn counted(&self, now: Instant) -> Duration {
        now.min(self.until()).duration_since(self.begin)
    }

    /// End of the first interval: intervals end with the warm-up, so that none belongs to both sides.
    pub(super) fn first_tick(&self) -> Instant {
        let interval = self.shared.interval.as_nanos() as u64;
        let rest = self.shared.from_ns.load(Ordering::Relaxed) % interval;
        self.begin + Duration::from_nanos(if rest == 0 { interval } else { rest })
    }
}
