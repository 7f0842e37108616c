//! Timeouts: an I/O that has taken too long stops the run.

use super::{Worker, LOOK};
use crate::run_kit::STANDSTILL;
use forebay_io::client::Late;
use forebay_io::clock;
use forebay_io::reactor;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Time to the next look where a beat is to come first.
const LOOK_SOON: Duration = Duration::from_millis(10);

impl Worker {
    /// Collects what is done before anything is called overdue: while this thread didn't run, nothing was collected.
    pub(super) fn look(&mut self, now: Instant) {
        let late = now.saturating_duration_since(self.next_look);
        self.next_look = now + LOOK.min(self.shared.interval);
        let timeout = self.timeout();
        self.forgive_standstills(if late > STANDSTILL { late } else { Duration::ZERO });
        self.settle_asides();
        if self.client.any_late(now, timeout) {
            if !self.shared.standstills.are_known_at(now) {
                self.next_look = now + LOOK_SOON;
                return;
            }
            self.reactor.flush();
            self.client.collect(&mut self.reactor);
            self.complete();
            self.settle_chores();
        }
        self.abandon_overdue(now);
    }

    /// Excludes standstills from the time-outs: `late` is what this thread saw of one itself, and may be told by a beat as well.
    fn forgive_standstills(&mut self, late: Duration) {
        let known = self.shared.standstills.since(self.begin).unwrap_or_default();
        let news = known.saturating_sub(self.forgiven).max(late);
        if !news.is_zero() {
            self.client.forgive(news);
            self.forgiven += news;
        }
    }

    pub(super) fn timeout(&self) -> Duration {
        Duration::from_secs_f64(self.shared.job.timeout_s)
    }

    /// Names I/Os that took longer than the time-out, and stops the run.
    pub(super) fn abandon_overdue(&mut self, now: Instant) {
        let mut late = std::mem::take(&mut self.late);
        self.client.give_up_late(now, self.timeout(), &mut self.reactor, &mut late);
        for (tag, what) in late.drain(..) {
            match what {
                Late::TimedOut => {
                    self.tally.errors.timed_out += u64::from(self.client.ticket(tag).order.owner.rows);
                    let name = self.name(self.client.ticket(tag));
                    self.tally.example(format!(
                        "{name}: unfinished after ‹timeout_s› {} s",
                        self.shared.job.timeout_s
                    ));
                    self.shared.stop.store(true, Ordering::Relaxed);
                }
                Late::NeverTaken => {
                    self.book_unfinished(tag, now);
                    self.release(tag);
                }
                Late::Lost => self.book_unfinished(tag, now),
            }
        }
    }

    /// The kernel takes no calls for the ring any more, so that nothing that is under way is ever heard of: the run
    /// ends, with what was measured before, and memory that the kernel may still write to is left to it.
    pub(super) fn give_up_all(&mut self, why: &std::io::Error) {
        let now = clock::now();
        let why = format!("{}; ‹engine› pread does without", reactor::refusal(why));
        self.shared.stop.store(true, Ordering::Relaxed);
        if self.client.in_flight() == 0 && !self.closing {
            self.tally.errors.failed += 1;
            self.tally.example(why.clone());
        }
        for (tag, what) in self.client.give_up_all() {
            self.tally.errors.failed += u64::from(self.client.ticket(tag).order.owner.rows);
            let name = self.name(self.client.ticket(tag));
            self.tally.example(format!("{name}: {why}"));
            self.book_unfinished(tag, now);
            if what == Late::NeverTaken {
                self.release(tag);
            }
        }
    }
}
