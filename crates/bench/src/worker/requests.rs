//! A worker's batches: each is submitted as a whole, and timed.

use super::{Worker, BATCH_IO_BYTES_MAX, BATCH_PATIENCE, BATCH_SHARE};
use crate::batches::{self, Batches};
use crate::run_kit::Timed;
use forebay_io::clock;
use std::time::{Duration, Instant};

impl Worker {
    /// Sends a batch whose last I/O was started, before the next begins.
    #[inline]
    pub(super) fn send_batch(&mut self, now: &mut Instant) {
        if self.together.is_some() || self.batches.as_ref().is_some_and(Batches::is_between) {
            self.client.submit(&mut self.reactor);
            *now = clock::now();
        }
    }

    /// The I/O has ended as far as its batch goes. `came`: whole, and in time.
    #[inline]
    pub(super) fn end_of_batch(&mut self, tag: u32, now: Instant, came: bool) {
        let Some(batches) = &mut self.batches else { return };
        let batch = std::mem::replace(&mut self.client.order(tag).owner.batch, batches::NONE);
        if batch == batches::NONE {
            return;
        }
        let took = batches.end(batch, now, came);
        let queries = self.queries.as_mut().filter(|_| took.is_some() || !came);
        let query = queries.and_then(|queries| queries.end_round(now, took.is_some()));
        if let Some(took) = took {
            self.book_whole(Timed::Batch, now, took);
        }
        if let Some(took) = query {
            self.book_whole(Timed::Query, now, took);
        }
    }

    /// The I/O's slot is free. A batch whose I/O ends without having come is no whole one.
    #[inline]
    pub(super) fn release(&mut self, tag: u32) {
        self.end_of_batch(tag, self.begin, false);
        self.client.release(tag);
    }

    /// Returns the number of completions to wait for, and how long the first may wait for the others.
    pub(super) fn batch(&self) -> (u32, Duration) {
        // Long I/Os keep the device busy one by one (`RingOptions::one_by_one`).
        if self.client.wakes_at_first()
            || self.schedule.is_some()
            || self.shared.job.io_bytes_largest() > BATCH_IO_BYTES_MAX
        {
            return (1, Duration::ZERO);
        }
        ((self.client.in_flight() / BATCH_SHARE).max(1), BATCH_PATIENCE)
    }
}
