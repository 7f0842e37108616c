//! I/O queues from the function's side (base, section 3.3.1): a completion queue with the submission queues that use
//! it. It is one value, so that one thread can own it alone; the admin queue is another of its kind.
//!
//! A command is fetched only where its completion will have room, so that completing never waits.

pub mod book;
mod doorbells;
mod interrupts;
mod state;
mod submission;

use super::memory::{HostMemory, Unmapped};
use super::registers::Doorbell;
use super::ring::Ring;
use super::shadow::Shadow;
use crate::command::{Cqe, Sqe};
use crate::status::{Code, Status};
use book::Book;
use serde::{Deserialize, Serialize};
pub use state::QueueState;
pub use submission::SubmissionQueue;
use zerocopy::{FromBytes, IntoBytes};

const SQE_BYTES: u64 = size_of::<Sqe>() as u64;
const CQE_BYTES: u64 = size_of::<Cqe>() as u64;
/// Bytes of a completion before the dword with its phase tag.
const BEFORE_PHASE: usize = 12;

/// A command that is to be carried out. `slot` is free again once it is completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// Below `CompletionQueue::slots`.
    pub slot: u16,
    pub sqid: u16,
    pub sqe: Sqe,
}

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

/// Interrupt Coalescing (base, section 5.27.1.6), and the vectors that are excepted from it (section 5.27.1.7).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coalescing {
    /// Completions for which to interrupt at once; 0 and 1: each.
    pub completions: u16,
    /// Longest time for which a completion waits for others; 0: not at all.
    pub time_us: u32,
    pub excepted: Vec<u16>,
}

/// Decision on an interrupt of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupt {
    None,
    /// This vector.
    Now(u16),
    /// Ask again at this time, µs.
    At(u64),
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    sqid: u16,
    /// In flight; a free slot's `sqe` means nothing.
    taken: bool,
    /// Its identifier is entered in its submission queue.
    entered: bool,
    sqe: Sqe,
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
    /// None: the host polls it (IEN 0).
    vector: Option<u16>,
    /// Its own doorbell and EventIdx, and the same of them as for submission queues.
    own_shadow: Option<(u64, u64)>,
    own_seen: u32,
    own_fresh: bool,
    submissions: Vec<SubmissionQueue>,
    /// Index of the next one.
    turn: usize,
    slots: Vec<Slot>,
    free: Vec<u16>,
    coalescing: Coalescing,
    /// Completions of which the host was not told, and since when.
    untold: u16,
    untold_since_us: Option<u64>,
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
        let slots = ring.entries() - 1;
        let free = Slot { sqid: 0, taken: false, entered: false, sqe: Sqe::default() };
        CompletionQueue {
            id,
            address,
            ring,
            phase: true,
            vector,
            own_shadow: None,
            own_seen: 0,
            own_fresh: false,
            submissions: Vec::new(),
            turn: 0,
            slots: vec![free; slots.into()],
            free: (0..slots).rev().collect(),
            coalescing: Coalescing::default(),
            untold: 0,
            untold_since_us: None,
            book: None,
            held_back: None,
        }
    }

    /// From here on it notes what another process goes on by. To be called while it is new, before its host hears that it
    /// is there.
    pub fn note_in(&mut self, book: Book) {
        book.begin(self.slots(), self.own_shadow.is_some() && !self.own_fresh);
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
            self.untold = 1;
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

    /// The interrupt vector. None: the host doesn't want interrupts of it.
    /// The host's head, and the next entry to write.
    pub fn ends(&self) -> (u16, u16) {
        (self.ring.head(), self.ring.tail())
    }

    pub fn vector(&self) -> Option<u16> {
        self.vector
    }

    /// Commands that may be in flight.
    pub fn slots(&self) -> u16 {
        self.slots.len() as u16
    }

    pub fn in_flight(&self) -> u16 {
        self.slots() - self.free.len() as u16
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
            let mut sqe = Sqe::default();
            memory.read(queue.address + u64::from(queue.ring.head()) * SQE_BYTES, sqe.as_mut_bytes())?;
            queue.ring.take();
            queue.passed = queue.passed.saturating_add(1);
            let slot = self.free.pop().expect("there is room for its completion");
            let (cid, sqid) = (sqe.cid.get(), queue.id);
            let entered = queue.enter(cid);
            queue.in_flight += 1;
            self.slots[usize::from(slot)] = Slot { sqid, taken: true, entered, sqe };
            if let Some(book) = &self.book {
                book.take(slot, sqid, &sqe);
            }
            self.turn = at + 1;
            self.keep_quiet(memory, at)?;
            if entered {
                return Ok(Some(Fetched { slot, sqid, sqe }));
            }
            self.complete(memory, slot, Status::fatal(Code::COMMAND_ID_CONFLICT), 0)?;
        }
        Ok(None)
    }

    /// Commands that hosts have rung for, and that wait to be fetched.
    pub fn waits(&self) -> u32 {
        self.submissions
            .iter()
            .filter(|queue| !queue.closing)
            .map(|queue| u32::from(queue.ring.occupied()))
            .sum()
    }

    /// The next submission queue with a command.
    fn waiting(&self) -> Option<usize> {
        let count = self.submissions.len();
        let has = |at: &usize| {
            let queue = &self.submissions[*at];
            !queue.closing && !queue.ring.is_empty()
        };
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
        let Some((doorbell, event_index)) = self.own_shadow else { return Ok(()) };
        let value = memory.load(doorbell)?;
        if std::mem::replace(&mut self.own_seen, value) == value {
            return Ok(());
        }
        if let (true, Some(book)) = (self.own_fresh, &self.book) {
            book.set_heard(true);
        }
        self.own_fresh = false;
        if !self.move_head(value) {
            let doorbell = Doorbell::Completion(self.id);
            return Err(QueueFault::Doorbell(InvalidDoorbell { doorbell, value, known: true }));
        }
        memory.store(event_index, self.ring.previous(self.ring.head()).into())?;
        Ok(())
    }

    /// Keeps EventIdx where the host doesn't pass it while this end looks by itself: behind its tail, moved on every
    /// half round.
    fn keep_quiet<M: HostMemory + ?Sized>(&mut self, memory: &M, at: usize) -> Result<(), QueueFault> {
        let queue = &mut self.submissions[at];
        if let (Some((_, event_index)), true) = (queue.shadow, queue.passed > queue.ring.entries() / 2) {
            queue.passed = 0;
            memory.store(event_index, queue.ring.previous(queue.ring.tail()).into())?;
        }
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
        let head = self.at(sqid).map_or(0, |at| self.submissions[at].ring.head());
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
        self.untold = self.untold.saturating_add(1);
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
        let place = self.slots.get_mut(usize::from(slot)).filter(|place| place.taken)?;
        place.taken = false;
        let gone = *place;
        self.free.push(slot);
        if let Some(at) = self.at(gone.sqid) {
            let queue = &mut self.submissions[at];
            queue.in_flight -= 1;
            if gone.entered {
                queue.leave(gone.sqe.cid.get());
            }
        }
        Some(gone)
    }

    /// The slot of a command in flight.
    pub fn find(&self, sqid: u16, cid: u16) -> Option<u16> {
        let is = |slot: &Slot| slot.taken && slot.entered && (slot.sqid, slot.sqe.cid.get()) == (sqid, cid);
        self.slots.iter().position(is).map(|slot| slot as u16)
    }

    /// A command in flight.
    pub fn command(&self, slot: u16) -> Option<Fetched> {
        let place = self.slots.get(usize::from(slot)).filter(|place| place.taken)?;
        Some(Fetched { slot, sqid: place.sqid, sqe: place.sqe })
    }

    /// Slots of all commands in flight.
    pub fn in_flight_slots(&self) -> impl Iterator<Item = u16> + '_ {
        (0..).zip(&self.slots).filter(|(_, slot)| slot.taken).map(|(at, _)| at)
    }

    /// Slots of a submission queue's commands in flight.
    pub fn in_flight_of(&self, sqid: u16) -> impl Iterator<Item = u16> + '_ {
        let is = move |slot: &&Slot| slot.taken && slot.sqid == sqid;
        (0..).zip(&self.slots).filter(move |(_, slot)| is(slot)).map(|(at, _)| at)
    }

    /// A submission queue is being deleted: nothing more is fetched from it.
    pub fn close(&mut self, sqid: u16) {
        if let Some(at) = self.at(sqid) {
            self.submissions[at].closing = true;
        }
    }

    /// Takes a submission queue away, once nothing of it is in flight; false: there is. Not there: true.
    pub fn remove(&mut self, sqid: u16) -> bool {
        let Some(at) = self.at(sqid) else { return true };
        let idle = self.submissions[at].in_flight == 0;
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
        self.own_shadow = shadow.of(Doorbell::Completion(self.id));
        if let Some((doorbell, event_index)) = self.own_shadow {
            memory.store(event_index, self.ring.previous(self.ring.head()).into())?;
            self.own_fresh = memory.load(doorbell)? == 0;
            self.own_seen = if self.own_fresh { 0 } else { self.ring.head().into() };
            if let Some(book) = &self.book {
                book.set_heard(!self.own_fresh);
            }
        }
        for queue in &mut self.submissions {
            queue.shadow = shadow.of(Doorbell::Submission(queue.id));
            if let Some((doorbell, event_index)) = queue.shadow {
                memory.store(event_index, queue.ring.tail().into())?;
                queue.fresh = memory.load(doorbell)? == 0;
                queue.seen = if queue.fresh { 0 } else { queue.ring.tail().into() };
                if let Some(book) = &self.book {
                    book.set_submission_heard(queue.id, !queue.fresh);
                }
            }
        }
        self.poll(memory)
    }
}
