//! Treatment of I/Os that the end of the measured time overtakes: their bytes count for no rate, their waiting does.
//!
//! A device that stops answering before the end and comes back after it would otherwise show no latency but that of
//! its good moments. In an open loop the same goes for I/Os that were due and found no free slot: they are started
//! after the end, for as long as `Shared::drain_ns`. What never comes back is counted as having waited until it was
//! given up.

use super::{Load, Worker};
use crate::host_capacity::mean_io_bytes;
use crate::run_kit::Timed;
use forebay_io::queue::Op;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Waits of I/Os that were never started are booked in at most so many groups.
const GROUPS_MAX: u64 = 1000;

impl Worker {
    /// Returns whether no further I/O is to be started, but for failures and the last pass.
    pub(super) fn starts_no_more(&self, now: Instant) -> bool {
        let until = self.until();
        let owes = || self.schedule.as_ref().is_some_and(|schedule| schedule.is_due_before(until));
        now >= until && !(now < self.drains_until() && owes())
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

    fn drains_until(&self) -> Instant {
        self.until() + Duration::from_nanos(self.shared.drain_ns.load(Ordering::Relaxed))
    }

    /// Returns whether any time was measured before `now`: a run that ends in its warm-up has no figures.
    fn has_measured(&self, now: Instant) -> bool {
        now.min(self.until()) > self.from()
    }

    /// Books an I/O that finished after the end.
    pub(super) fn book_late(&mut self, is_read: bool, load: Load, now: Instant, copy_ns: u32) {
        if self.has_measured(now) {
            let took = now.duration_since(load.started);
            self.tally.count_late(load.rows.into(), copy_ns);
            self.book_time(Timed::Late { is_read, count: load.rows.into() }, load.started, now, took);
        }
    }

    /// Books an I/O that was given up.
    pub(super) fn book_unfinished(&mut self, tag: u32, now: Instant) {
        let order = self.client.ticket(tag).order;
        if order.op != Op::Flush && self.has_measured(now) {
            let started = order.owner.started;
            let stood_still = self.shared.standstills.while_under_way(started, now, self.ran);
            let waited = now.duration_since(started).saturating_sub(stood_still);
            self.tally.leave_unfinished(order.op == Op::Read, waited, order.owner.rows.into());
        }
    }

    /// At the very end: rests that no queue took any more, and what was due and never started.
    pub(super) fn book_what_never_came(&mut self, now: Instant) {
        for tag in self.client.take_owed(|_| true) {
            self.book_unfinished(tag, now);
        }
        let passes = self.shared.job.passes.unwrap_or(u32::MAX);
        let is_over = self.left.is_none() || self.upcoming.as_ref().is_some_and(|next| next.pass >= passes);
        let Some(schedule) = self.schedule.as_ref().filter(|_| self.has_measured(now) && !is_over) else {
            return;
        };
        let (gap_ns, due) = schedule.owed(self.until().min(now), mean_io_bytes(&self.shared.job));
        let oldest = now.saturating_duration_since(schedule.next);
        let groups = due.min(GROUPS_MAX);
        // Of a mix, in its proportion: which would have been reads was never drawn.
        let reads_pct = u64::from(self.shared.job.reads_pct());
        let reads_by = |ios: u64| ios * reads_pct / 100;
        for group in 0..groups {
            let (first, after) = (due * group / groups, due * (group + 1) / groups);
            // The first counts as what it is, the others as the middle of their group.
            let nth = if group == 0 { 0 } else { first + (after - first) / 2 };
            let waited_ns = oldest.as_nanos() as f64 - gap_ns * nth as f64;
            let waited = Duration::from_nanos(waited_ns.max(0.0) as u64);
            let reads = reads_by(after) - reads_by(first);
            for (is_read, ios) in [(true, reads), (false, after - first - reads)] {
                self.tally.leave_unfinished(is_read, waited, ios);
            }
        }
    }
}
