//! What a worker does about content: before a write, and after a read.

use super::{Slot, Worker};
use crate::arena::Mem;
use crate::clock;
use crate::driver::verify::{Chore, Ended, Part};
use crate::queue::Fault;

impl Worker {
    /// Makes the content of a write, which goes on from there.
    pub(super) fn fill(&mut self, tag: u32) {
        let slot = self.slots[tag as usize];
        if self.contents.is_on_gpu(slot.mem) {
            return self.begin(tag, Chore::Fill);
        }
        match self.contents.fill(slot.mem, self.part_of(&slot)) {
            Ok(()) => self.push(tag),
            Err(why) => self.failed(tag, &Fault::note(libc::EIO, why)),
        }
    }

    /// Checks the content of a finished read, and gives its slot free.
    pub(super) fn verify(&mut self, tag: u32) {
        let slot = self.slots[tag as usize];
        if self.contents.is_on_gpu(slot.mem) {
            return self.begin(tag, Chore::Check);
        }
        let result = self.contents.check(slot.mem, self.part_of(&slot));
        self.verified(&slot, result);
        self.release(tag);
    }

    /// Leaves the slot to the GPU for a while.
    fn begin(&mut self, tag: u32, chore: Chore) {
        let part = self.part_of(&self.slots[tag as usize]);
        let slot = &mut self.slots[tag as usize];
        slot.chore = true;
        slot.issued = clock::now();
        self.in_flight += 1;
        self.contents.start(tag, chore, slot.mem, part);
    }

    pub(super) fn settle_chores(&mut self) {
        let mut ended = std::mem::take(&mut self.ended);
        self.contents.reap(&mut ended);
        for Ended { tag, chore, result } in ended.drain(..) {
            let slot = &mut self.slots[tag as usize];
            slot.chore = false;
            if !slot.busy {
                self.tally.lost -= 1;
                self.release(tag);
                continue;
            }
            self.in_flight -= 1;
            let slot = *slot;
            match (chore, result) {
                (Chore::Check, result) => {
                    self.verified(&slot, result);
                    self.release(tag);
                }
                (Chore::Fill, _) if slot.abandoned => self.release(tag),
                (Chore::Fill, Ok(())) => self.push(tag),
                (Chore::Fill, Err(why)) => self.failed(tag, &Fault::note(libc::EIO, why)),
            }
        }
        self.ended = ended;
    }

    fn part_of(&self, slot: &Slot) -> Part {
        let target = slot.at.target as usize;
        let (seed, file) = (self.shared.content_seeds[target], self.shared.targets[target].content_id);
        Part { seed, file, offset: slot.at.offset, len: slot.at.len }
    }

    /// Bytes that are right count where they count as moved: those of the warm-up do for neither. Wrong ones are told.
    fn verified(&mut self, slot: &Slot, result: Result<(), String>) {
        match result {
            Ok(()) if slot.mem == Mem::None || !slot.counted => {}
            Ok(()) => self.tally.verified_bytes += u64::from(slot.at.len),
            Err(why) => {
                self.tally.errors.verify_failed += 1;
                self.tally.example(why);
            }
        }
    }
}
