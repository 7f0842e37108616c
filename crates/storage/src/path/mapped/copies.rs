//! Copies of the windows to where they end, and of what goes another way.

use super::file::Phase;
use super::MappedQueue;
use super::Place;
use super::{SEND_BYTES, SHORT_BYTES};
use forebay_io::arena::Mem;
use forebay_io::arena::UNREGISTERED;
use forebay_io::queue::Fault;
use forebay_io::queue::Io;
use forebay_io::queue::Op;
use forebay_io::queue::Via;
use forebay_io::reactor::Reactor;
use std::cell::RefCell;
use std::rc::Rc;

/// Slots for bytes that can't be mapped, and the size of each; longer I/Os are split. As in `bounce`, copies of 4 MiB
/// keep the device busy.
pub(super) const ASIDE_SLOTS: u32 = 4;
pub(super) const ASIDE_BYTES_MAX: u64 = 4 << 20;

/// Staging slots of a worker, shared by its queues: each goes by its number.
#[derive(Clone)]
pub struct Staging {
    pub(super) free: Rc<RefCell<Vec<u32>>>,
    pub slot_bytes: u32,
}

impl Staging {
    pub fn new(slots: u32, slot_bytes: u32) -> Staging {
        Staging { free: Rc::new(RefCell::new((0..slots).rev().collect())), slot_bytes }
    }
}

impl MappedQueue {
    /// Queues copies from windows that are ready, if the file is still what it was when they were registered.
    pub(super) fn copy_ready(&mut self) {
        if self.ready.is_empty() {
            return self.registry.answered(&self.wakeup);
        }
        let mut ready = std::mem::take(&mut self.ready);
        match self.registry.look(&self.file) {
            Ok(generation) => self.queue_copies(&ready, generation),
            Err(fault) => {
                for id in &ready {
                    self.file.window(self.pieces[*id as usize].window).release();
                    self.end_piece(*id, Err(fault.clone()), Via::Nothing, 0);
                }
            }
        }
        self.registry.answered(&self.wakeup);
        ready.clear();
        self.ready = ready;
    }

    pub(super) fn queue_copies(&mut self, ready: &[u32], generation: u64) {
        let registry = self.registry.clone();
        let _turn = registry.turns().enter();
        let (mut unsent, mut last) = (0, None);
        for id in ready {
            let piece = self.pieces[*id as usize];
            let window = self.file.window(piece.window);
            // What is ready after the look was registered in this generation.
            if window.phase() != Phase::Ready {
                window.release();
                self.go_another_way(*id);
                continue;
            }
            if last.replace(piece.window).is_some_and(|w| w != piece.window) {
                self.copier.cut();
            }
            self.pieces[*id as usize].place = Place::Copying(generation);
            self.copying += 1;
            let io = self.flight(piece.tag).io;
            let at = self.file.address(piece.offset);
            let from = Mem::Host { at, piece: UNREGISTERED };
            self.copier.start(*id, from, io.mem.after(piece.at as usize), piece.len as usize);
            unsent += piece.len;
            if unsent >= SEND_BYTES && piece.len >= SHORT_BYTES {
                self.copier.submit();
                unsent = 0;
            }
        }
        self.copier.submit();
    }

    /// Hands pieces to `bounce`, as far as there are slots.
    pub(super) fn stage(&mut self, reactor: &mut Reactor) {
        while let Some(id) = self.unstaged.front().copied() {
            let Some(slot) = self.staging.free.borrow_mut().pop() else { return };
            let piece = self.pieces[id as usize];
            let io = self.flight(piece.tag).io;
            let part = Io {
                tag: slot,
                op: Op::Read,
                offset: piece.offset,
                len: piece.len,
                mem: io.mem.after(piece.at as usize),
            };
            if self.bounce.push(part, reactor).is_err() {
                self.staging.free.borrow_mut().push(slot);
                return;
            }
            self.unstaged.pop_front();
            self.pieces[id as usize].place = Place::Staged(slot);
            self.staged[slot as usize] = Some(id);
        }
    }

    pub(super) fn reap_copies(&mut self) {
        let mut copies = std::mem::take(&mut self.copies);
        if self.copying > 0 {
            let registry = self.registry.clone();
            let _turn = registry.turns().enter();
            self.copier.reap(&mut copies);
        }
        if !copies.is_empty() {
            // One look for all: it comes after the last of them.
            let seen = self.registry.look(&self.file);
            copies.drain(..).for_each(|(id, fault)| self.end_copy(id, fault, &seen));
        }
        self.copies = copies;
    }

    pub(super) fn end_copy(&mut self, id: u32, fault: Option<Fault>, seen: &Result<u64, Fault>) {
        let piece = self.pieces[id as usize];
        match piece.place {
            Place::Fetching(_) => self.end_fetch(id),
            _ => self.file.window(piece.window).release(),
        }
        self.copying -= 1;
        let now = |generation: &u64| [Place::Copying(*generation), Place::Fetching(*generation)];
        let result = match (fault, seen) {
            (Some(fault), _) => Err(fault),
            (None, Err(fault)) => Err(fault.clone()),
            (None, Ok(generation)) if now(generation).contains(&piece.place) => Ok(piece.len),
            (None, Ok(_)) => Err(self.file.outdated()),
        };
        self.end_piece(id, result, Via::Mapped, 0);
    }

    pub(super) fn reap_bounced(&mut self, reactor: &mut Reactor) {
        let mut below = std::mem::take(&mut self.below);
        self.bounce.reap(reactor, &mut below);
        for d in below.drain(..) {
            let id = self.staged[d.tag as usize].take().expect("a slot of ours");
            self.staging.free.borrow_mut().push(d.tag);
            self.end_piece(id, d.result, Via::Staged, d.copy_ns);
        }
        self.below = below;
    }
}
