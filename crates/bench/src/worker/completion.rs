//! Processing of completed I/Os.

use super::Ticket;
use super::Worker;
use super::FAILURES_MAX;
use crate::io_log::Note;
use crate::run_kit::{Timed, STANDSTILL_MIN};
use forebay_io::client::End;
use forebay_io::client::Order;
use forebay_io::client::Over;
use forebay_io::clock;
use forebay_io::queue::Fault;
use forebay_io::queue::Op;
use forebay_model::pattern::Next;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long I/Os took until now. Of those that started together, as in a batch, it is calculated once: the standard library's
/// subtraction of instants is a call for each.
struct Took {
    until: Instant,
    started: Instant,
    took: Duration,
}

impl Took {
    #[inline]
    fn since(&mut self, started: Instant) -> Duration {
        if started != self.started {
            (self.started, self.took) = (started, self.until.duration_since(started));
        }
        self.took
    }
}

impl Worker {
    pub(super) fn complete(&mut self) {
        if !self.client.has_done() {
            return;
        }
        let now = clock::now();
        // Ticks come before bookings, so that an interval lies on one side of the warm-up's end.
        if now >= self.next_tick {
            self.tick(now);
        }
        // Time that ends with a flush includes the last I/Os, so they count too.
        let counted = now <= self.until() || self.ends_with_flush();
        let mut done = self.client.take_done();
        let mut took = Took { until: now, started: now, took: Duration::ZERO };
        for d in done.drain(..) {
            if let Some(over) = self.client.settle(d) {
                self.complete_one(over, &mut took, counted);
            }
        }
        self.client.spare(done);
        self.ran = now;
        if !self.asides.is_empty() {
            self.settle_asides();
        }
    }

    #[inline]
    fn complete_one(&mut self, over: Over, took: &mut Took, counted: bool) {
        let (tag, now) = (over.tag, took.until);
        match over.end {
            End::Whole => {
                let measuring = self.tally.is_measuring();
                self.client.order(tag).owner.counted = counted && measuring;
                let ticket = self.client.ticket(tag);
                let Order { op, offset, len, owner, .. } = ticket.order;
                if op == Op::Deallocate {
                    return self.release(tag);
                }
                if op == Op::Flush {
                    self.book_time(Timed::Flush, owner.started, now, took.since(owner.started));
                    return self.release(tag);
                }
                if self.together.is_some() && counted {
                    self.book_rows(&over, owner, len, now);
                    return self.release(tag);
                }
                let at = Next { target: owner.target, offset, len, is_read: op == Op::Read, pass: 0 };
                if counted {
                    let took = took.since(owner.started);
                    if took >= STANDSTILL_MIN {
                        self.book_long(&at, 1, ((over.via, 0), over.copy_ns), owner.started, now);
                    } else {
                        self.tally.complete(&at, took, over.via, over.copy_ns);
                        if self.log.is_some() && measuring {
                            self.log_one(&at, took, now);
                        }
                    }
                } else {
                    self.book_late(op == Op::Read, owner, now, over.copy_ns);
                }
                self.end_of_batch(tag, now, counted);
                if at.is_read && self.shared.job.checks_reads() {
                    self.verify(tag);
                } else {
                    self.release(tag);
                }
            }
            End::Early => {
                let fault = self.ended_early(self.client.ticket(tag));
                self.failed(tag, &fault);
            }
            End::GivenUp(_) => {
                self.book_unfinished(tag, now);
                self.release(tag);
            }
            End::Failed(fault) => self.failed(tag, &fault),
        }
    }

    /// A line of the log, where there is one.
    #[cold]
    pub(super) fn log_one(&mut self, io: &Next, took: Duration, now: Instant) {
        let at = now.saturating_duration_since(self.from());
        let note = Note { at, took, is_read: io.is_read, bytes: io.len, offset: io.offset };
        self.log.iter_mut().for_each(|log| log.note(&note));
    }

    pub(super) fn finish_log(&mut self, now: Instant) {
        let end = now.min(self.until()).saturating_duration_since(self.from());
        self.log.iter_mut().for_each(|log| log.finish(end));
        self.list.iter_mut().for_each(|list| list.finish(now));
        self.refuse_broken_log();
    }

    /// A log that lacks lines is not what was asked for.
    pub(super) fn refuse_broken_log(&mut self) {
        let log = self.log.as_mut().and_then(|log| log.failure());
        if let Some(why) = log.or_else(|| self.list.as_mut()?.failure()) {
            self.shared.stop.store(true, Ordering::Relaxed);
            self.refusal = Some(why);
        }
    }

    /// Returns the fault of an I/O that ended early; in a stripe it names the member, which the I/O's own name doesn't
    /// tell.
    fn ended_early(&self, ticket: &Ticket) -> Fault {
        let Order { offset, owner, .. } = ticket.order;
        let target = &self.shared.targets[owner.target as usize];
        let source = target.source_at(offset + u64::from(ticket.moved));
        let member = if std::ptr::eq(source, target) { String::new() } else { format!("{}: ", source.label) };
        let found = "the data ended early: the file is shorter than it was when the run began";
        Fault::note(libc::EIO, member + found)
    }

    /// The I/O's name in messages.
    pub(super) fn name(&self, ticket: &Ticket) -> String {
        let Order { op, offset, len, owner, .. } = ticket.order;
        let what = match op {
            Op::Flush => "flush",
            Op::Read => "read",
            Op::Deallocate => "trim",
            _ => "write",
        };
        let label = &self.shared.targets[owner.target as usize].label;
        if self.together.is_some() {
            return format!("{what} of {} rows of {} bytes of {label}", owner.rows, len / owner.rows);
        }
        format!("{what} of {} bytes at {} of {label}", len - ticket.moved, offset + u64::from(ticket.moved))
    }

    pub(super) fn failed(&mut self, tag: u32, fault: &Fault) {
        let name = self.name(self.client.ticket(tag));
        let rows = u64::from(self.client.ticket(tag).order.owner.rows);
        self.tally.errors.failed += rows;
        if fault.errno == libc::EINVAL {
            self.tally.errors.misaligned += rows;
        }
        self.tally.example(format!("{name}: {fault}"));
        self.release(tag);
        let hopeless =
            matches!(fault.errno, libc::ENOSPC | libc::EROFS | libc::EDQUOT | libc::ENODEV | libc::ENXIO);
        if hopeless || self.tally.errors.failed > FAILURES_MAX {
            self.shared.stop.store(true, Ordering::Relaxed);
        }
    }
}
