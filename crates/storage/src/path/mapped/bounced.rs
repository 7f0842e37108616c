//! Pieces that no window serves: read through `bounce`, one in each staging slot.

use super::flights::{Flights, PieceState};
use forebay_io::{Done, Io, Op, Queue, Reactor, Via};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Instant;

/// Slots for bytes that can't be mapped, and the size of each; longer I/Os are split. As in `bounce`, copies of 4 MiB
/// keep the device busy.
pub(super) const ASIDE_SLOTS: u32 = 4;
pub(super) const ASIDE_BYTES_MAX: u64 = 4 << 20;

/// Staging slots of a worker, shared by its queues: each goes by its number.
#[derive(Clone)]
pub(crate) struct Staging {
    free: Rc<RefCell<Vec<u32>>>,
    pub slot_bytes: u32,
}

impl Staging {
    pub(crate) fn new(slots: u32, slot_bytes: u32) -> Staging {
        Staging { free: Rc::new(RefCell::new((0..slots).rev().collect())), slot_bytes }
    }
}

pub(super) struct Bounced {
    bounce: Box<dyn Queue>,
    staging: Staging,
    /// Pieces that wait for a slot.
    unstaged: VecDeque<u32>,
    /// Piece that each of the slots that are ours holds.
    staged: Vec<Option<u32>>,
    below: Vec<Done>,
}

impl Bounced {
    /// `bounce` takes I/Os under the numbers of `staging`'s slots, up to their length, into the same memory.
    pub(super) fn new(bounce: Box<dyn Queue>, staging: Staging) -> Bounced {
        let slots = bounce.geometry().depth as usize;
        Bounced { bounce, staging, unstaged: VecDeque::new(), staged: vec![None; slots], below: Vec::new() }
    }

    /// Takes a piece that is no longer than a slot.
    pub(super) fn add(&mut self, id: u32) {
        self.unstaged.push_back(id);
    }

    pub(super) fn slot_bytes(&self) -> u32 {
        self.staging.slot_bytes
    }

    /// Hands pieces to `bounce`, as far as there are slots.
    pub(super) fn stage(&mut self, flights: &mut Flights, reactor: &mut Reactor) {
        while let Some(id) = self.unstaged.front().copied() {
            let Some(slot) = self.staging.free.borrow_mut().pop() else { return };
            let piece = flights.piece(id);
            let (offset, len, mem) = (piece.offset, piece.len, flights.mem_of(id));
            if self.bounce.push(Io { tag: slot, op: Op::Read, offset, len, mem }, reactor).is_err() {
                self.staging.free.borrow_mut().push(slot);
                return;
            }
            self.unstaged.pop_front();
            flights.piece_mut(id).place = PieceState::Staged(slot);
            self.staged[slot as usize] = Some(id);
        }
    }

    pub(super) fn submit(&mut self, reactor: &mut Reactor) {
        self.bounce.submit(reactor);
    }

    /// Ends the pieces that have arrived; their slots are free again.
    pub(super) fn reap(&mut self, flights: &mut Flights, reactor: &mut Reactor) {
        self.bounce.reap(reactor, &mut self.below);
        for d in self.below.drain(..) {
            let id = self.staged[d.tag as usize].take().expect("a slot of ours");
            self.staging.free.borrow_mut().push(d.tag);
            flights.end(id, d.result, Via::Staged, d.copy_ns);
        }
    }

    /// Ends an I/O's pieces that wait, and gives up those that are on their way.
    pub(super) fn abandon(&mut self, tag: u32, flights: &mut Flights, reactor: &mut Reactor) {
        for slot in 0..self.staged.len() {
            if self.staged[slot].is_some_and(|id| flights.piece(id).tag == tag) {
                self.bounce.abandon(slot as u32, reactor);
            }
        }
        flights.cancel_of(tag, &mut self.unstaged);
    }

    /// Returns whether a piece waits, and a slot is free.
    pub(super) fn can_stage(&self) -> bool {
        !self.unstaged.is_empty() && !self.staging.free.borrow().is_empty()
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.bounce.next_due()
    }
}
