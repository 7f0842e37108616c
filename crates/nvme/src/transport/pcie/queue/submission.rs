//! Submission queues, each with the completion queue that it belongs to.

use super::super::memory::HostMemory;
use super::super::memory::Unmapped;
use super::super::registers::Doorbell;
use super::super::ring::Ring;
use super::super::shadow::Shadow;

/// A submission queue of the host's, from the function's side.
#[derive(Debug)]
pub struct SubmissionQueue {
    pub(super) id: u16,
    /// Address of its first entry.
    pub(super) address: u64,
    pub(super) ring: Ring,
    /// Its doorbell in the host's memory, and EventIdx.
    pub(super) shadow: Option<(u64, u64)>,
    /// Last value of the shadow doorbell: a wrong value is told of once.
    pub(super) seen: u32,
    /// It still is as it was when it was announced: the register counts.
    pub(super) fresh: bool,
    /// Entries taken since EventIdx was last moved out of the way.
    pub(super) passed: u16,
    /// It is being deleted.
    pub(super) closing: bool,
    pub(super) in_flight: u16,
    /// Command identifiers in flight, a bit each.
    pub(super) identifiers: Box<[u64]>,
}

impl SubmissionQueue {
    pub fn new(id: u16, address: u64, entries: u16) -> SubmissionQueue {
        SubmissionQueue {
            id,
            address,
            ring: Ring::new(entries),
            shadow: None,
            seen: 0,
            fresh: false,
            passed: 0,
            closing: false,
            in_flight: 0,
            identifiers: vec![0; 1 << 10].into(),
        }
    }

    pub fn id(&self) -> u16 {
        self.id
    }

    pub fn entries(&self) -> u16 {
        self.ring.entries()
    }

    /// The next entry to take, and the one behind the last that the host has rung for.
    pub fn ends(&self) -> (u16, u16) {
        (self.ring.head(), self.ring.tail())
    }

    /// Commands that were fetched and not completed.
    pub fn in_flight(&self) -> u16 {
        self.in_flight
    }

    /// The host rings it by Doorbell Buffer Config.
    pub fn has_shadow(&self) -> bool {
        self.shadow.is_some()
    }

    /// A new queue's shadow doorbell starts at 0, whatever a queue of that number left behind: before the host hears that
    /// the queue is there.
    pub(crate) fn begin_shadow<M: HostMemory + ?Sized>(
        &mut self,
        memory: &M,
        shadow: Shadow,
    ) -> Result<(), Unmapped> {
        self.shadow = shadow.of(Doorbell::Submission(self.id));
        if let Some((doorbell, event_index)) = self.shadow {
            memory.store(doorbell, 0)?;
            memory.store(event_index, 0)?;
        }
        Ok(())
    }

    /// True: it was not in flight.
    pub(super) fn enter(&mut self, cid: u16) -> bool {
        let (word, bit) = (&mut self.identifiers[usize::from(cid >> 6)], 1 << (cid & 63));
        let fresh = *word & bit == 0;
        *word |= bit;
        fresh
    }

    pub(super) fn leave(&mut self, cid: u16) {
        self.identifiers[usize::from(cid >> 6)] &= !(1 << (cid & 63));
    }
}
