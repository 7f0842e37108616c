//! Queues as plain data, with which another process goes on.

use super::book::{Book, Noted};
use super::doorbell::Bell;
use super::{CompletionQueue, Slot, SubmissionQueue, BEFORE_PHASE, CQE_BYTES, SQE_BYTES};
use crate::command::Sqe;
use crate::feature::Coalescing;
use crate::status::{Code, Status};
use crate::transport::pcie::memory::HostMemory;
use crate::transport::pcie::registers::Doorbell;
use crate::transport::pcie::ring::Ring;
use crate::transport::pcie::shadow::Shadow;
use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, IntoBytes};

/// A submission queue. Which identifiers are in flight, its completion queue says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubmissionState {
    id: u16,
    address: u64,
    ring: Ring,
    shadow: Option<(u64, u64)>,
    seen: u32,
    fresh: bool,
    passed: u16,
}

/// A command that was fetched and has no completion yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pending {
    slot: u16,
    sqid: u16,
    /// All 64 bytes, as dwords.
    sqe: [u32; size_of::<Sqe>() / 4],
}

/// A completion queue and its submission queues, none of which is being deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueState {
    id: u16,
    address: u64,
    ring: Ring,
    phase: bool,
    vector: Option<u16>,
    shadow: Option<(u64, u64)>,
    seen: u32,
    fresh: bool,
    submissions: Vec<SubmissionState>,
    turn: u16,
    coalescing: Coalescing,
    untold: u16,
    untold_since_us: Option<u64>,
    pending: Vec<Pending>,
}

impl QueueState {
    pub fn id(&self) -> u16 {
        self.id
    }

    pub fn vector(&self) -> Option<u16> {
        self.vector
    }

    pub fn submissions(&self) -> impl Iterator<Item = u16> + '_ {
        self.submissions.iter().map(|queue| queue.id)
    }

    /// Slot and identifier of each command in flight.
    pub fn pending(&self) -> impl Iterator<Item = (u16, u16)> + '_ {
        self.pending.iter().map(|one| (one.slot, one.sqe().cid.get()))
    }
}

impl Pending {
    fn sqe(&self) -> Sqe {
        Sqe::read_from_bytes(self.sqe.as_bytes()).unwrap_or_default()
    }
}

impl SubmissionQueue {
    fn state(&self) -> SubmissionState {
        let SubmissionQueue { id, address, ring, bell: Bell { shadow, seen, fresh }, passed, .. } = *self;
        SubmissionState { id, address, ring, shadow, seen, fresh, passed }
    }

    fn restore(state: &SubmissionState) -> Result<SubmissionQueue, &'static str> {
        let SubmissionState { id, address, ring, shadow, seen, fresh, passed } = *state;
        placed(address, ring, SQE_BYTES)?;
        let mut queue = SubmissionQueue::new(id, address, ring.entries());
        (queue.ring, queue.bell, queue.passed) = (ring, Bell { shadow, seen, fresh }, passed);
        Ok(queue)
    }
}

impl CompletionQueue {
    /// As it is. No submission queue of it may be in the course of its deletion.
    pub fn state(&self) -> QueueState {
        let pending = self.in_flight.iter().map(|(slot, Slot { sqid, sqe, .. })| Pending {
            slot,
            sqid: *sqid,
            sqe: <[u32; 16]>::read_from_bytes(sqe.as_bytes()).unwrap_or_default(),
        });
        let Bell { shadow, seen, fresh } = self.bell;
        QueueState {
            id: self.id,
            address: self.address,
            ring: self.ring,
            phase: self.phase,
            vector: self.notices.vector(),
            shadow,
            seen,
            fresh,
            submissions: self.submissions.iter().map(SubmissionQueue::state).collect(),
            turn: self.turn as u16,
            coalescing: self.notices.coalescing.clone(),
            untold: self.notices.untold,
            untold_since_us: self.notices.untold_since_us,
            pending: pending.collect(),
        }
    }

    /// Err: what can't be of it.
    pub fn restore(state: &QueueState) -> Result<CompletionQueue, &'static str> {
        placed(state.address, state.ring, CQE_BYTES)?;
        let fresh = CompletionQueue::new(state.id, state.address, state.ring.entries(), state.vector);
        let mut queue = CompletionQueue {
            ring: state.ring,
            phase: state.phase,
            bell: Bell { shadow: state.shadow, seen: state.seen, fresh: state.fresh },
            turn: state.turn.into(),
            ..fresh
        };
        queue.notices.set_coalescing(state.coalescing.clone());
        queue.notices.untold = state.untold;
        queue.notices.untold_since_us = state.untold_since_us;
        for one in &state.submissions {
            if queue.at(one.id).is_some() {
                return Err("a submission queue is there twice");
            }
            queue.submissions.push(SubmissionQueue::restore(one)?);
        }
        state.pending.iter().try_for_each(|one| queue.take_up(one))?;
        if queue.in_flight() > queue.ring.room() {
            return Err("commands in flight have no room for their completions");
        }
        Ok(queue)
    }

    fn take_up(&mut self, one: &Pending) -> Result<(), &'static str> {
        match self.put_back(one.slot, one.sqid, one.sqe())? {
            true => Ok(()),
            false => Err("an identifier is in flight twice"),
        }
    }

    /// A command is in flight again. False: so is another with its identifier.
    fn put_back(&mut self, slot: u16, sqid: u16, sqe: Sqe) -> Result<bool, &'static str> {
        let at = self.at(sqid).ok_or("a command of a queue that is not there")?;
        let entered = self.submissions[at].enter(sqe.cid.get());
        match self.in_flight.put_back(slot, sqid, entered, sqe) {
            true => Ok(entered),
            false => Err("a slot that is not free"),
        }
    }
}

/// Queues whose process was killed (`book`).
impl QueueState {
    /// A submission queue was opened in it.
    pub fn opened(&mut self, queue: &SubmissionQueue) {
        self.submissions.retain(|other| other.id != queue.id);
        self.submissions.push(queue.state());
    }

    /// A submission queue was deleted.
    pub fn closed(&mut self, sqid: u16) {
        self.submissions.retain(|queue| queue.id != sqid);
    }

    /// Doorbell Buffer Config was carried out.
    pub fn set_shadow(&mut self, shadow: Shadow) {
        self.shadow = shadow.addresses_of(Doorbell::Completion(self.id));
        for queue in &mut self.submissions {
            queue.shadow = shadow.addresses_of(Doorbell::Submission(queue.id));
        }
    }

    pub fn set_coalescing(&mut self, coalescing: Coalescing) {
        self.coalescing = coalescing;
    }
}

impl SubmissionQueue {
    /// All that it has taken is noted; where its tail is its doorbell says.
    fn recover(state: &SubmissionState, book: &Book) -> Result<SubmissionQueue, &'static str> {
        let entries = state.ring.entries();
        placed(state.address, state.ring, SQE_BYTES)?;
        let head = (book.taken_of(state.id) % u64::from(entries)) as u16;
        let mut queue = SubmissionQueue::new(state.id, state.address, entries);
        queue.ring = Ring::at(entries, head, head).ok_or("a submission queue without entries")?;
        queue.bell = Bell::recovered(state.shadow, book.submission_heard(state.id));
        Ok(queue)
    }
}

impl CompletionQueue {
    /// The queue of a process that was killed. `state` says what it was made as, and which submission queues it has; all that
    /// moved since stands in `book` and in the host's memory. Commands in flight are to be carried out again, and all
    /// doorbell registers to be rung again. The host is interrupted once more: whether it was, nobody knows.
    ///
    /// # Errors
    /// What can't be of it.
    pub fn recover<M: HostMemory + ?Sized>(
        state: &QueueState,
        book: Book,
        memory: &M,
    ) -> Result<CompletionQueue, &'static str> {
        placed(state.address, state.ring, CQE_BYTES)?;
        let (entries, completed) = (state.ring.entries(), book.completed());
        let tail = (completed % u64::from(entries)) as u16;
        let head = u16::try_from(book.head()).map_err(|_| "a head beyond its queue")?;
        let ring = Ring::at(entries, head, tail).ok_or("indices beyond their queue")?;
        let made = CompletionQueue::new(state.id, state.address, entries, state.vector);
        let mut queue = CompletionQueue {
            ring,
            phase: completed / u64::from(entries) % 2 == 0,
            bell: Bell::recovered(state.shadow, book.heard()),
            ..made
        };
        queue.notices.set_coalescing(state.coalescing.clone());
        queue.notices.owe();
        for one in &state.submissions {
            if queue.at(one.id).is_some() {
                return Err("a submission queue is there twice");
            }
            queue.submissions.push(SubmissionQueue::recover(one, &book)?);
        }
        let mut noted: Vec<Noted> = (0..queue.slots()).filter_map(|slot| book.noted(slot)).collect();
        // A tag that was not counted would stand for the next command that is.
        let uncounted = |slot: &u16| noted.iter().all(|one| one.slot != *slot);
        (0..queue.slots()).filter(uncounted).for_each(|slot| book.free(slot));
        noted.sort_by_key(|one| (one.sqid, one.position));
        queue.book = Some(book);
        for one in &noted {
            queue.put_back(one.slot, one.sqid, one.sqe)?;
        }
        queue.count_published(memory)?;
        if queue.in_flight() > queue.ring.room() {
            return Err("commands in flight have no room for their completions");
        }
        queue.refuse_again(memory)?;
        Ok(queue)
    }

    /// The completion that was written, but not counted, if there is one.
    fn count_published<M: HostMemory + ?Sized>(&mut self, memory: &M) -> Result<(), &'static str> {
        let at = self.address + u64::from(self.ring.tail()) * CQE_BYTES;
        // Out of reach: whatever is done with the queue next says so.
        let Ok(last) = memory.load(at + BEFORE_PHASE as u64) else { return Ok(()) };
        let Ok(queue) = memory.load(at + 8) else { return Ok(()) };
        if (last >> 16 & 1 != 0) != self.phase {
            return Ok(());
        }
        if self.ring.room() == 0 {
            return Err("a completion that there was no room for");
        }
        let (sqid, cid) = ((queue >> 16) as u16, last as u16);
        let conflict = Status::from_bits((last >> 16) as u16).code == Code::COMMAND_ID_CONFLICT;
        let is = |slot: &Slot| slot.entered != conflict && (slot.sqid, slot.sqe.cid.get()) == (sqid, cid);
        if let Some(slot) = self.in_flight.find(is) {
            self.forget(slot);
        }
        self.book.iter().for_each(Book::complete);
        if self.ring.add() {
            self.phase = !self.phase;
        }
        Ok(())
    }

    /// Commands whose identifier was in flight already.
    fn refuse_again<M: HostMemory + ?Sized>(&mut self, memory: &M) -> Result<(), &'static str> {
        while let Some(slot) = self.in_flight.find(|slot| !slot.entered) {
            let status = Status::fatal(Code::COMMAND_ID_CONFLICT);
            let refused = self.complete(memory, slot, status, 0);
            refused.map_err(|_| "its memory is out of reach")?;
        }
        Ok(())
    }
}

/// Its indices lie within it, and it within what can be addressed.
fn placed(address: u64, ring: Ring, entry_bytes: u64) -> Result<(), &'static str> {
    if !ring.is_sound() {
        return Err("indices beyond their queue");
    }
    let bytes = u64::from(ring.entries()) * entry_bytes;
    address.checked_add(bytes).map(|_| ()).ok_or("a queue beyond all addresses")
}
