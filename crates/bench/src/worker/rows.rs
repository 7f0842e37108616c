//! Short random reads that are one I/O: drawn, started, timed and booked together.

use super::Worker;
use crate::batches;
use crate::run_kit::{Timed, STANDSTILL_MIN};
use forebay_io::client::{Order, Over};
use forebay_io::queue::{Fault, Op};
use forebay_model::job::JobSpec;
use forebay_model::pattern::Next;
use std::time::Instant;

/// Purpose of an I/O.
#[derive(Clone, Copy)]
pub(super) struct Load {
    /// Latency counts from here: in an open loop when the I/O was due.
    pub started: Instant,
    pub target: u32,
    /// It is among the bytes that the run moved: in its measured time, and not after its end.
    pub counted: bool,
    /// The batch that it is of, or `batches::NONE`.
    pub batch: u32,
    /// Reads of the job that it is.
    pub rows: u32,
}

impl Load {
    /// The load of a single read or write that belongs to no batch.
    pub(crate) fn of(target: u32, started: Instant) -> Load {
        Load { started, target, counted: false, batch: batches::NONE, rows: 1 }
    }
}

/// State of a worker whose I/Os consist of several rows.
pub(super) struct Together {
    /// Reads of an I/O.
    most: u32,
    /// An I/O of so many is a batch that was asked for.
    are_batches: bool,
    /// Offsets at which drawn rows begin.
    offsets: Vec<u64>,
}

impl Together {
    pub(crate) fn of(most: u32, job: &JobSpec) -> Together {
        Together { most, are_batches: job.batch.is_some(), offsets: Vec::with_capacity(most as usize) }
    }

    /// Returns whether an I/O of so many reads is a whole batch.
    pub(crate) fn is_batch(&self, rows: u32) -> bool {
        self.are_batches && rows == self.most
    }
}

impl Worker {
    /// Draws the next reads and starts them as one I/O. False when they have no room, or after the last pass; what begins
    /// before its end is started.
    pub(super) fn start_rows(&mut self, now: Instant) -> bool {
        let mut offsets = self.together.as_mut().map(|t| std::mem::take(&mut t.offsets)).unwrap_or_default();
        let started = self.start_drawn(&mut offsets, now);
        if let Some(together) = &mut self.together {
            together.offsets = offsets;
        }
        started
    }

    fn start_drawn(&mut self, offsets: &mut Vec<u64>, now: Instant) -> bool {
        let first = self.upcoming.take().unwrap_or_else(|| self.pattern.next());
        let queue = self.queue_of[first.target as usize];
        if !self.client.queue(queue).takes_more() {
            self.upcoming = Some(first);
            self.held_back = true;
            return false;
        }
        self.draw(first, offsets);
        if offsets.is_empty() {
            return false;
        }
        let rows = offsets.len() as u32;
        let len = first.len * rows;
        let owner = Load { rows, ..Load::of(first.target, now) };
        let order = Order { queue, op: Op::Read, offset: 0, len, want: len, owner };
        let Some(tag) = self.client.begin(order, now) else { return false };
        if !self.client.push_rows(tag, offsets, &mut self.reactor) {
            self.failed(tag, &Fault::note(libc::EAGAIN, "the queue had no room for it, though it said so"));
        }
        true
    }

    /// Offsets of as many reads as one I/O holds, from `first` on; fewer where the job ends, or the next is of another length.
    fn draw(&mut self, first: Next, offsets: &mut Vec<u64>) {
        let most = self.together.as_ref().map_or(1, |t| t.most) as usize;
        let passes = self.shared.job.passes.unwrap_or(u32::MAX);
        offsets.clear();
        let mut next = first;
        loop {
            if self.left.is_none() || next.pass >= passes {
                self.upcoming = Some(next);
                self.closing = true;
                return;
            }
            if next.len != first.len {
                self.upcoming = Some(next);
                return;
            }
            offsets.push(next.offset);
            self.left.take(u64::from(next.len));
            if offsets.len() == most {
                return;
            }
            next = self.pattern.next();
        }
    }

    /// Books an I/O of rows that came, in time.
    pub(super) fn book_rows(&mut self, over: &Over, owner: Load, len: u32, now: Instant) {
        let queue = self.queue_of[owner.target as usize];
        let staged = self.client.queue(queue).staged_of(over.tag);
        let each = Next { target: owner.target, offset: 0, len: len / owner.rows, is_read: true, pass: 0 };
        let (rows, took) = (owner.rows.into(), now.duration_since(owner.started));
        let went = (over.via, staged.into());
        if took >= STANDSTILL_MIN {
            self.book_long(&each, rows, (went, over.copy_ns), owner.started, now);
        } else {
            self.tally.complete_rows(&each, rows, took, went, over.copy_ns);
            if self.log.is_some() && self.tally.is_measuring() {
                (0..rows).for_each(|_| self.log_one(&each, took, now));
            }
        }
        if self.together.as_ref().is_some_and(|together| together.is_batch(owner.rows)) {
            self.book_whole(Timed::Batch, now, took);
        }
    }
}
