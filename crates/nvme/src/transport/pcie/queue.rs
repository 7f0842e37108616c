//! I/O queues from the function's side (base, section 3.3.1): a completion queue with the submission queues that use
//! it. It is one value, so that one thread can own it alone; the admin queue is another of its kind.
//!
//! A command is fetched only where its completion will have room, so that completing never waits.

pub mod book;
mod doorbell;
mod in_flight;
mod notices;
mod state;
mod submission;

use super::memory::{HostMemory, Unmapped};
use super::registers::Doorbell;
use super::ring::Ring;
use super::shadow::Shadow;
use crate::command::{Cqe, Sqe};
use crate::feature::Coalescing;
use crate::status::{Code, Status};
use book::Book;
use doorbell::{Bell, Rung};
pub use in_flight::Fetched;
use in_flight::{InFlight, Slot};
pub use notices::Interrupt;
use notices::Notices;
use serde::{Deserialize, Serialize};
pub use state::QueueState;
use std::sync::atomic::{fence, Ordering};
pub use submission::SubmissionQueue;
use zerocopy::{FromBytes, IntoBytes};

const SQE_BYTES: u64 = size_of::<Sqe>() as u64;
const CQE_BYTES: u64 = size_of::<Cqe>() as u64;
/// Bytes of a completion before the dword with its phase tag.
const BEFORE_PHASE: usize = 12;

/// A doorbell that was written wrongly (base, figure 146): an asynchronous event tells the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidDoorbell {
    pub doorbell: Doorbell,
    pub value: u32,
    /// True if there is such a queue, and the value is wrong.
    pub known: bool,
}

/// Fault of a queue: for `Device::fault`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueFault {
    /// The queue is not in the host's memory: its controller can't go on (CSTS.CFS).
    Memory(Unmapped),
    Doorbell(InvalidDoorbell),
}

impl From<Unmapped> for QueueFault {
    fn from(unmapped: Unmapped) -> QueueFault {
        QueueFault::Memory(unmapped)
    }
}

/// A completion queue, and the submission queues that name it.
#[derive(Debug)]
pub struct CompletionQueue {
    id: u16,
    address: u64,
    /// Its head moves as the host says.
    ring: Ring,
    /// Phase tag of the entries that are written now.
    phase: bool,
    notices: Notices,
    bell: Bell,
    submissions: Vec<SubmissionQueue>,
    /// Index of the next one.
    turn: usize,
    in_flight: InFlight,
    /// Book for another process, should this one be killed.
    book: Option<Book>,
    /// Completions to be written by `publish`. None: each is at once.
    held_back: Option<Vec<Entry>>,
}

/// A completion and its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    address: u64,
    dwords: [u32; size_of::<Cqe>() / 4],
}

impl Entry {
    /// The dword with the phase tag comes last: what the host sees then is whole.
    fn write<M: HostMemory + ?Sized>(&self, memory: &M) -> Result<(), Unmapped> {
        memory.write(self.address, &self.dwords.as_bytes()[..BEFORE_PHASE])?;
        memory.store(self.address + BEFORE_PHASE as u64, u32::from_le(self.dwords[BEFORE_PHASE / 4]))
    }
}

impl CompletionQueue {
    pub fn new(id: u16, address: u64, entries: u16, vector: Option<u16>) -> CompletionQueue {
        let ring = Ring::new(entries);
        CompletionQueue {
            id,
            address,
            ring,
            phase: true,
            notices: Notices::new(vector),
            bell: Bell::default(),
            submissions: Vec::new(),
            turn: 0,
            in_flight: InFlight::new(ring.entries() - 1),
            book: None,
            held_back: None,
        }
    }

    /// From here on it notes what another process goes on by. To be called while it is new, before its host hears that it
    /// is there.
    pub fn note_in(&mut self, book: Book) {
        book.begin(self.slots(), self.bell.is_heard());
        self.book = Some(book);
    }

    /// Completions wait for `publish` from here on.
    pub fn hold_back(&mut self) {
        self.held_back.get_or_insert_default();
    }

    /// Takes entries that another process held back, and may have written.
    ///
    /// # Errors
    /// They aren't its own.
    pub(super) fn hold_again(&mut self, entries: &[Entry]) -> Result<(), &'static str> {
        let end = u64::from(self.entries()) * CQE_BYTES;
        let own = |entry: &Entry| {
            let at = entry.address.checked_sub(self.address);
            at.is_some_and(|at| at < end && at % CQE_BYTES == 0)
        };
        if entries.len() >= usize::from(self.entries()) || !entries.iter().all(own) {
            return Err("completions beyond their queue");
        }
        if !entries.is_empty() {
            self.held_back = Some(entries.to_vec());
            self.notices.owe();
        }
        Ok(())
    }

    /// Completions that wait for it, oldest first.
    pub fn held_back(&self) -> &[Entry] {
        self.held_back.as_deref().unwrap_or_default()
    }

    /// Writes the completions that were held back.
    pub fn publish<M: HostMemory + ?Sized>(&mut self, memory: &M) -> Result<(), QueueFault> {
        let waiting = self.held_back.as_mut().map(std::mem::take).unwrap_or_default();
        waiting.iter().try_for_each(|entry| entry.write(memory))?;
        Ok(())
    }

    pub fn id(&self) -> u16 {
        self.id
    }

    pub fn entries(&self) -> u16 {
        self.ring.entries()
    }

    /// The host's head, and the next entry to write.
    pub fn ends(&self) -> (u16, u16) {
        (self.ring.head(), self.ring.tail())
    }

    /// The interrupt vector. None: the host doesn't want interrupts of it.
    pub fn vector(&self) -> Option<u16> {
        self.notices.vector()
    }

    /// Commands that may be in flight.
    pub fn slots(&self) -> u16 {
        self.in_flight.slots()
    }

    pub fn in_flight(&self) -> u16 {
        self.in_flight.count()
    }

    pub fn submissions(&self) -> impl Iterator<Item = &SubmissionQueue> {
        self.submissions.iter()
    }

    /// The next command, round robin over the submission queues. None: there is none, or no room for its completion.
    pub fn fetch<M: HostMemory + ?Sized>(&mut self, memory: &M) -> Result<Option<Fetched>, QueueFault> {
        while let Some(at) = self.waiting() {
            if !self.has_room(memory)? {
                return Ok(None);
            }
            let queue = &mut self.submissions[at];
            let sqe = queue.take(memory)?;
            let sqid = queue.id();
            let entered = queue.enter(sqe.cid.get());
            let slot = self.in_flight.add(sqid, entered, sqe).expect("there is room for its completion");
            if let Some(book) = &self.book {
                book.take(slot, sqid, &sqe);
            }
            self.turn = at + 1;
            self.submissions[at].keep_quiet(memory)?;
            if entered {
                return Ok(Some(Fetched { slot, sqid, sqe }));
            }
            self.complete(memory, slot, Status::fatal(Code::COMMAND_ID_CONFLICT), 0)?;
        }
        Ok(None)
    }

    /// Commands that hosts have rung for, and that wait to be fetched.
    pub fn waits(&self) -> u32 {
        self.submissions.iter().map(|queue| u32::from(queue.waits())).sum()
    }

    /// The next submission queue with a command.
    fn waiting(&self) -> Option<usize> {
        let count = self.submissions.len();
        let has = |at: &usize| self.submissions[*at].has_command();
        (0..count).map(|n| (self.turn + n) % count).find(has)
    }

    /// Returns whether one more completion will have room beside those of the commands in flight.
    fn has_room<M: HostMemory + ?Sized>(&mut self, memory: &M) -> Result<bool, QueueFault> {
        if self.ring.room() <= self.in_flight() {
            self.look_at_head(memory)?;
        }
        Ok(self.ring.room() > self.in_flight())
    }

    fn look_at_head<M: HostMemory + ?Sized>(&mut self, memory: &M) -> Result<(), QueueFault> {
        let Some(Rung { value, first }) = self.bell.poll(memory)? else { return Ok(()) };
        if let (true, Some(book)) = (first, &self.book) {
            book.set_heard(true);
        }
        if !self.move_head(value) {
            let doorbell = Doorbell::Completion(self.id);
            return Err(QueueFault::Doorbell(InvalidDoorbell { doorbell, value, known: true }));
        }
        self.bell.want_beyond(memory, self.ring.previous(self.ring.head()))?;
        Ok(())
    }

    /// Writes a command's completion. The host is told of it by `interrupt`.
    pub fn complete<M: HostMemory + ?Sized>(
        &mut self,
        memory: &M,
        slot: u16,
        status: Status,
        result: u64,
    ) -> Result<(), QueueFault> {
        let Some(Slot { sqid, sqe, .. }) = self.release(slot) else { return Ok(()) };
        let head = self.at(sqid).map_or(0, |at| self.submissions[at].ends().0);
        let cqe = Cqe { sqhd: head.into(), sqid: sqid.into(), ..Cqe::new(sqe.cid.get(), status, result) };
        let at = self.address + u64::from(self.ring.tail()) * CQE_BYTES;
        let mut dwords = <[u32; 4]>::read_from_bytes(cqe.as_bytes()).unwrap_or_default();
        dwords[BEFORE_PHASE / 4] |= (u32::from(self.phase) << 16).to_le();
        let entry = Entry { address: at, dwords };
        match &mut self.held_back {
            Some(waiting) => waiting.push(entry),
            None => entry.write(memory)?,
        }
        if let Some(book) = &self.book {
            book.free(slot);
            book.complete();
        }
        if self.ring.add() {
            self.phase = !self.phase;
        }
        self.notices.add();
        Ok(())
    }

    /// Frees the slot of a command that gets no completion: the controller was reset.
    pub fn forget(&mut self, slot: u16) {
        self.release(slot);
        if let Some(book) = &self.book {
            book.free(slot);
        }
    }

    /// A command in flight may change something from here on: another process that carries it out again does so before
    /// all that overlap it.
    pub fn set_begun(&mut self, slot: u16) {
        if let Some(book) = &self.book {
            book.set_begun(slot);
        }
    }

    /// As another process noted it.
    pub fn is_begun(&self, slot: u16) -> bool {
        self.book.as_ref().is_some_and(|book| book.is_begun(slot))
    }

    /// None: it is free already.
    fn release(&mut self, slot: u16) -> Option<Slot> {
        let gone = self.in_flight.remove(slot)?;
        if let Some(at) = self.at(gone.sqid) {
            self.submissions[at].leave(gone.entered.then_some(gone.sqe.cid.get()));
        }
        Some(gone)
    }

    /// The slot of a command in flight.
    pub fn find(&self, sqid: u16, cid: u16) -> Option<u16> {
        self.in_flight.find(|slot| slot.entered && (slot.sqid, slot.sqe.cid.get()) == (sqid, cid))
    }

    /// A command in flight.
    pub fn command(&self, slot: u16) -> Option<Fetched> {
        self.in_flight.command(slot)
    }

    /// Slots of all commands in flight.
    pub fn in_flight_slots(&self) -> impl Iterator<Item = u16> + '_ {
        self.in_flight.iter().map(|(slot, _)| slot)
    }

    /// Slots of a submission queue's commands in flight.
    pub fn in_flight_of(&self, sqid: u16) -> impl Iterator<Item = u16> + '_ {
        self.in_flight.iter().filter(move |(_, command)| command.sqid == sqid).map(|(slot, _)| slot)
    }

    /// A submission queue is being deleted: nothing more is fetched from it.
    pub fn close(&mut self, sqid: u16) {
        if let Some(at) = self.at(sqid) {
            self.submissions[at].close();
        }
    }

    /// Takes a submission queue away, once nothing of it is in flight; false: there is. Not there: true.
    pub fn remove(&mut self, sqid: u16) -> bool {
        let Some(at) = self.at(sqid) else { return true };
        let idle = self.submissions[at].in_flight() == 0;
        if idle {
            self.submissions.remove(at);
            self.turn = 0;
        }
        idle
    }

    /// Doorbell Buffer Config was carried out. Hosts may have counted in the shadow doorbells before, or leave them 0
    /// until their next command: until then the register holds.
    pub fn set_shadow<M: HostMemory + ?Sized>(
        &mut self,
        memory: &M,
        shadow: Shadow,
    ) -> Result<(), QueueFault> {
        let places = shadow.addresses_of(Doorbell::Completion(self.id));
        let head = self.ring.head();
        self.bell.announce(memory, places, self.ring.previous(head), head)?;
        if let (true, Some(book)) = (self.bell.has_shadow(), &self.book) {
            book.set_heard(self.bell.is_heard());
        }
        for queue in &mut self.submissions {
            queue.set_shadow(memory, shadow, self.book.as_ref())?;
        }
        self.poll(memory)
    }

    /// A new queue's shadow doorbell starts at 0, whatever a queue of that number left behind.
    pub(crate) fn begin_shadow<M: HostMemory + ?Sized>(
        &mut self,
        memory: &M,
        shadow: Shadow,
    ) -> Result<(), Unmapped> {
        self.bell.begin(memory, shadow.addresses_of(Doorbell::Completion(self.id)), self.ring.previous(0))
    }

    /// The admin queue's: without shadow doorbells.
    pub(crate) fn open_plain(&mut self, queue: SubmissionQueue) {
        self.submissions.push(queue);
    }

    /// A submission queue of this completion queue was created. The host may have put commands into it by now.
    pub fn open<M: HostMemory + ?Sized>(
        &mut self,
        memory: &M,
        queue: SubmissionQueue,
    ) -> Result<(), QueueFault> {
        self.submissions.push(queue);
        self.poll(memory)
    }

    #[inline]
    fn at(&self, sqid: u16) -> Option<usize> {
        self.submissions.iter().position(|queue| queue.id() == sqid)
    }

    /// A doorbell register was written. Err: it changed nothing, and the host is to be told. The value of a queue with
    /// a shadow doorbell is the one there: the write only says that there is something to see (`poll`).
    pub fn ring(&mut self, doorbell: Doorbell, value: u32) -> Result<(), InvalidDoorbell> {
        let wrong = |known| InvalidDoorbell { doorbell, value, known };
        match doorbell {
            Doorbell::Completion(cqid) if cqid != self.id => Err(wrong(false)),
            Doorbell::Completion(_) => {
                let there = !self.bell.register_counts() || self.move_head(value);
                (there || self.bell.has_shadow()).then_some(()).ok_or(wrong(true))
            }
            Doorbell::Submission(sqid) => {
                let at = self.at(sqid).ok_or(wrong(false))?;
                self.submissions[at].ring(value).then_some(()).ok_or(wrong(true))
            }
        }
    }

    fn move_head(&mut self, value: u32) -> bool {
        let moved = self.ring.move_head(value);
        if let (true, Some(book)) = (moved, &self.book) {
            book.set_head(self.ring.head());
        }
        moved
    }

    /// Looks at the shadow doorbells of the submission queues. Nothing to do where there are none.
    pub fn poll<M: HostMemory + ?Sized>(&mut self, memory: &M) -> Result<(), QueueFault> {
        self.submissions.iter_mut().try_for_each(|queue| queue.poll_doorbell(memory, self.book.as_ref()))
    }

    /// Decides whether to interrupt the host for what was completed. Once in each turn of the owner's loop; `Now` is
    /// said once.
    pub fn interrupt(&mut self, now_us: u64) -> Interrupt {
        self.notices.interrupt(now_us)
    }

    pub fn set_coalescing(&mut self, coalescing: Coalescing) {
        self.notices.set_coalescing(coalescing);
    }

    /// Before its owner sleeps: asks the host to write the doorbell registers, then looks once more. False: there is
    /// something to do.
    pub fn sleep<M: HostMemory + ?Sized>(&mut self, memory: &M) -> Result<bool, QueueFault> {
        self.submissions.iter().try_for_each(|queue| queue.want_register(memory))?;
        // Either the host sees the index, or this end sees what the host wrote before it looked.
        fence(Ordering::SeqCst);
        self.poll(memory)?;
        if self.waiting().is_none() {
            return Ok(true);
        }
        // Commands wait for room in the completion queue.
        if self.has_room(memory)? {
            return Ok(false);
        }
        if !self.bell.want_beyond(memory, self.ring.head())? {
            return Ok(true);
        }
        fence(Ordering::SeqCst);
        Ok(!self.has_room(memory)?)
    }
}
