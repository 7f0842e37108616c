//! A stream in a worker's hands: what was asked for of its file, what is on its way, and what was reported of it.

use super::super::reading::Reading;
use super::super::Shared;
use forebay_model::training::{Grant, Stream};
use std::collections::VecDeque;

pub(super) struct ActiveStream {
    pub(super) epoch: u32,
    pub(super) rank: u32,
    pub(super) stream_slot: u32,
    pub(super) file: u32,
    pub(super) upto: u32,
    /// The number of a queue of its own, which goes directly into a GPU.
    pub(super) direct_queue: Option<u32>,
    pub(super) reading: Reading,
    /// Bytes of the file that were asked for, and how far to go for what is wanted.
    pub(super) pushed: u64,
    pub(super) goal: u64,
    /// Slots in the order of their bytes.
    pub(super) slots: VecDeque<u32>,
    /// Slots on their way to the destination, in order.
    pub(super) copying: VecDeque<u32>,
    /// Samples of the stream that were reported as whole.
    pub(super) reported: u32,
    /// Time at which the last whole sample became so.
    pub(super) since: u64,
    pub(super) seen: u32,
    pub(super) stream: Stream,
    /// The batch that its next sample is of.
    pub(super) batch: u64,
    batch_samples: u64,
}

impl ActiveStream {
    /// What the scheduler granted, whose file is open or given up.
    pub(super) fn new(grant: &Grant<Reading>, reading: Reading, shared: &Shared, now: u64) -> ActiveStream {
        let Grant { epoch, rank, slot: stream_slot, stream, done, upto, .. } = *grant;
        let batch_samples = u64::from(shared.plan.batch);
        let number = stream.position + u64::from(done) * u64::from(stream.stride);
        ActiveStream {
            epoch,
            rank,
            stream_slot,
            file: stream.file,
            upto,
            direct_queue: None,
            pushed: reading.at,
            goal: reading.goal(upto),
            reading,
            slots: VecDeque::new(),
            copying: VecDeque::new(),
            stream,
            reported: done,
            since: now,
            seen: done,
            batch: number / batch_samples,
            batch_samples,
        }
    }

    /// There are bytes to ask for.
    pub(super) fn wants_bytes(&self) -> bool {
        self.pushed < self.goal && !self.reading.is_dead
    }

    /// Wanted samples that are whole.
    pub(super) fn whole(&self) -> u32 {
        self.reading.samples().min(self.upto)
    }

    /// All that was asked for has come: goes on to what the wanted samples turned out to need.
    pub(super) fn aim_again(&mut self) {
        if self.slots.is_empty() && self.pushed >= self.goal {
            self.goal = self.reading.goal(self.upto);
        }
    }

    /// Nothing is on its way, and nothing more is to come.
    pub(super) fn is_over(&self) -> bool {
        let is_quiet = self.slots.is_empty() && self.copying.is_empty();
        is_quiet && (self.reading.is_dead || self.pushed >= self.goal)
    }

    /// The batch of the sample that ends last, which may be under way, once `whole` of them are.
    pub(super) fn batch_after(&self, whole: u32) -> u32 {
        let last = u64::from(whole.min(self.stream.samples - 1));
        let number = self.stream.position + last * u64::from(self.stream.stride);
        (number / self.batch_samples) as u32
    }
}
