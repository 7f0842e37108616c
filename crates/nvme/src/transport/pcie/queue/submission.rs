//! Submission queues, each with the completion queue that it belongs to.

use super::book::Book;
use super::doorbell::{Bell, Rung};
use super::{InvalidDoorbell, QueueFault, SQE_BYTES};
use crate::command::Sqe;
use crate::transport::pcie::memory::{HostMemory, Unmapped};
use crate::transport::pcie::registers::Doorbell;
use crate::transport::pcie::ring::Ring;
use crate::transport::pcie::shadow::Shadow;
use zerocopy::IntoBytes;

/// A submission queue of the host's, from the function's side.
#[derive(Debug)]
pub struct SubmissionQueue {
    pub(super) id: u16,
    /// Address of its first entry.
    pub(super) address: u64,
    /// Its tail moves as the host says.
    pub(super) ring: Ring,
    pub(super) bell: Bell,
    /// Entries taken since EventIdx was last moved out of the way.
    pub(super) passed: u16,
    /// It is being deleted.
    closing: bool,
    in_flight: u16,
    /// Command identifiers in flight, a bit each.
    identifiers: Box<[u64]>,
}

impl SubmissionQueue {
    pub fn new(id: u16, address: u64, entries: u16) -> SubmissionQueue {
        SubmissionQueue {
            id,
            address,
            ring: Ring::new(entries),
            bell: Bell::default(),
            passed: 0,
            closing: false,
            in_flight: 0,
            identifiers: vec![0; 1 << 10].into(),
        }
    }

    #[inline]
    pub fn id(&self) -> u16 {
        self.id
    }

    pub fn entries(&self) -> u16 {
        self.ring.entries()
    }

    /// The next entry to take, and the one behind the last that the host has rung for.
    #[inline]
    pub fn ends(&self) -> (u16, u16) {
        (self.ring.head(), self.ring.tail())
    }

    /// Commands that were fetched and not completed.
    pub fn in_flight(&self) -> u16 {
        self.in_flight
    }

    /// The host rings it by Doorbell Buffer Config.
    pub fn has_shadow(&self) -> bool {
        self.bell.has_shadow()
    }

    /// A new queue's shadow doorbell starts at 0, whatever a queue of that number left behind: before the host hears that
    /// the queue is there.
    pub(crate) fn begin_shadow<M: HostMemory + ?Sized>(
        &mut self,
        memory: &M,
        shadow: Shadow,
    ) -> Result<(), Unmapped> {
        self.bell.begin(memory, shadow.addresses_of(Doorbell::Submission(self.id)), 0)
    }

    /// Doorbell Buffer Config was carried out.
    pub(super) fn set_shadow<M: HostMemory + ?Sized>(
        &mut self,
        memory: &M,
        shadow: Shadow,
        book: Option<&Book>,
    ) -> Result<(), Unmapped> {
        let (places, tail) = (shadow.addresses_of(Doorbell::Submission(self.id)), self.ring.tail());
        self.bell.announce(memory, places, tail, tail)?;
        if let (true, Some(book)) = (self.bell.has_shadow(), book) {
            book.set_submission_heard(self.id, self.bell.is_heard());
        }
        Ok(())
    }

    /// The doorbell register was written; false, and nothing changes: with what can't be.
    pub(super) fn ring(&mut self, value: u32) -> bool {
        let there = self.closing || !self.bell.register_counts() || self.ring.move_tail(value);
        there || self.bell.has_shadow()
    }

    /// Looks at the shadow doorbell.
    #[inline]
    pub(super) fn poll_doorbell<M: HostMemory + ?Sized>(
        &mut self,
        memory: &M,
        book: Option<&Book>,
    ) -> Result<(), QueueFault> {
        if self.closing {
            return Ok(());
        }
        let Some(Rung { value, first }) = self.bell.poll(memory)? else { return Ok(()) };
        if let (true, Some(book)) = (first, book) {
            book.set_submission_heard(self.id, true);
        }
        if !self.ring.move_tail(value) {
            let doorbell = Doorbell::Submission(self.id);
            return Err(QueueFault::Doorbell(InvalidDoorbell { doorbell, value, known: true }));
        }
        Ok(())
    }

    /// Has the host write the register with its next command.
    pub(super) fn want_register<M: HostMemory + ?Sized>(&self, memory: &M) -> Result<(), Unmapped> {
        self.bell.want_beyond(memory, self.ring.tail()).map(|_| ())
    }

    /// Keeps EventIdx where the host doesn't pass it while this end looks by itself: behind its tail, moved on every
    /// half round.
    #[inline]
    pub(super) fn keep_quiet<M: HostMemory + ?Sized>(&mut self, memory: &M) -> Result<(), Unmapped> {
        if self.bell.has_shadow() && self.passed > self.ring.entries() / 2 {
            self.passed = 0;
            self.bell.want_beyond(memory, self.ring.previous(self.ring.tail()))?;
        }
        Ok(())
    }

    /// Commands that the host has rung for, and that are to be taken.
    pub(super) fn waits(&self) -> u16 {
        if self.closing {
            0
        } else {
            self.ring.occupied()
        }
    }

    #[inline]
    pub(super) fn has_command(&self) -> bool {
        !self.closing && !self.ring.is_empty()
    }

    /// Takes the next command, which there is.
    #[inline]
    pub(super) fn take<M: HostMemory + ?Sized>(&mut self, memory: &M) -> Result<Sqe, Unmapped> {
        let mut sqe = Sqe::default();
        memory.read(self.address + u64::from(self.ring.head()) * SQE_BYTES, sqe.as_mut_bytes())?;
        self.ring.take();
        self.passed = self.passed.saturating_add(1);
        Ok(sqe)
    }

    /// It is being deleted: nothing more is taken.
    pub(super) fn close(&mut self) {
        self.closing = true;
    }

    /// A command is in flight from here on. False: its identifier was in flight already.
    #[inline]
    pub(super) fn enter(&mut self, cid: u16) -> bool {
        self.in_flight += 1;
        let (word, bit) = (&mut self.identifiers[usize::from(cid >> 6)], 1 << (cid & 63));
        let fresh = *word & bit == 0;
        *word |= bit;
        fresh
    }

    /// A command is in flight no longer; with the identifier that it had entered, if it had.
    #[inline]
    pub(super) fn leave(&mut self, entered: Option<u16>) {
        self.in_flight -= 1;
        if let Some(cid) = entered {
            self.identifiers[usize::from(cid >> 6)] &= !(1 << (cid & 63));
        }
    }
}
