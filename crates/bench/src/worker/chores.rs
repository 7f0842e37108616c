//! A worker's processing of content: generated before a write, verified after a read.

use super::{Ticket, Worker};
use crate::verify::{Chore, Ended, Part};
use forebay_io::arena::Mem;
use forebay_io::queue::Fault;
use forebay_model::content;
use forebay_model::Error;
use std::sync::atomic::Ordering;

impl Worker {
    /// Makes the content of a write, which goes on from there.
    pub(super) fn fill(&mut self, tag: u32) {
        let ticket = *self.client.ticket(tag);
        if self.contents.is_on_gpu(ticket.mem) {
            return self.begin(tag, Chore::Fill);
        }
        match self.contents.fill(ticket.mem, self.part_of(&ticket)) {
            Ok(()) => self.client.push(tag, &mut self.reactor),
            Err(why) => self.failed(tag, &Fault::note(libc::EIO, why)),
        }
    }

    /// Checks the content of a finished read, and gives its slot free.
    pub(super) fn verify(&mut self, tag: u32) {
        let ticket = *self.client.ticket(tag);
        if self.contents.is_on_gpu(ticket.mem) {
            return self.begin(tag, Chore::Check);
        }
        let result = self.contents.check(ticket.mem, self.part_of(&ticket));
        self.verified(&ticket, result);
        self.release(tag);
    }

    /// Leaves the slot to the GPU for a while.
    fn begin(&mut self, tag: u32, chore: Chore) {
        let ticket = *self.client.ticket(tag);
        self.client.hold(tag);
        self.contents.start(tag, chore, ticket.mem, self.part_of(&ticket));
    }

    pub(super) fn settle_chores(&mut self) {
        let mut ended = std::mem::take(&mut self.ended);
        self.contents.reap(&mut ended);
        for Ended { tag, chore, result } in ended.drain(..) {
            if !self.client.unhold(tag) {
                continue;
            }
            let ticket = *self.client.ticket(tag);
            match (chore, result) {
                (Chore::Check, result) => {
                    self.verified(&ticket, result);
                    self.release(tag);
                }
                (Chore::Fill, _) if ticket.is_abandoned() => self.release(tag),
                (Chore::Fill, Ok(())) => self.client.push(tag, &mut self.reactor),
                (Chore::Fill, Err(why)) => self.failed(tag, &Fault::note(libc::EIO, why)),
            }
        }
        self.ended = ended;
    }

    fn part_of(&self, ticket: &Ticket) -> Part {
        let target = ticket.order.owner.target as usize;
        let (seed, file) = (self.shared.content_seeds[target], self.shared.targets[target].content_id);
        Part { seed, file, offset: ticket.order.offset, len: ticket.order.len }
    }

    /// Bytes that are right count where they count as moved: those of the warm-up do for neither. Wrong ones are told.
    fn verified(&mut self, ticket: &Ticket, result: Result<(), String>) {
        match result {
            Ok(()) if ticket.mem == Mem::None || !ticket.order.owner.counted => {}
            Ok(()) => self.tally.verified_bytes += u64::from(ticket.order.len),
            Err(why) if why.contains(content::UNVERIFIED) => self.cannot_verify(ticket),
            Err(why) => {
                self.tally.errors.verify_failed += 1;
                self.tally.example(why);
            }
        }
    }

    /// Ends the run: of data that no verifying write made, each block would be called wrong, and storage is not to blame.
    fn cannot_verify(&mut self, ticket: &Ticket) {
        if self.shared.stop.swap(true, Ordering::Relaxed) {
            return;
        }
        let label = &self.shared.targets[ticket.order.owner.target as usize].label;
        let asked = format!("‹verify› of {label}");
        let next = "write it first: ‹op› write ‹verify›";
        self.refusal = Some(Error::request(asked, format!("it {}", content::UNVERIFIED), next));
    }
}
