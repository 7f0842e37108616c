//! Memory for the data of a thread's commands: taken, lent, given back, and waited for in turn where it is out.
//!
//! Slots are few, and shared by all of a thread's connections. A connection whose command finds none stands in line;
//! when memory comes back, each in line begins one command before any begins two. Nobody is cut in on: while somebody
//! stands in line, commands that come later wait behind.

use super::arena::{HeldSlots, Pool, ScratchBuffer, Slot};
use super::command::{Command, Memory};
use crate::namespace::namespace_queue::NamespaceQueue;
use crate::namespace::steps::scratch_bytes;
use crate::namespace::volume::Content;
use forebay_nvme::nvm::{Op, Request};
use std::collections::VecDeque;

pub(super) struct CommandMemory {
    pub pool: Pool,
    /// Connections whose commands wait for memory, in turn.
    line: VecDeque<u32>,
    /// Memory came back, or somebody joined the line, since turns were last taken.
    changed: bool,
}

/// One connection's part of it.
#[derive(Default)]
pub(super) struct MemoryShare {
    /// Slots that its commands hold.
    held: HeldSlots,
    /// A command has its `Memory::Spare`.
    has_spare: bool,
    in_line: bool,
}

/// What a connection's link can send from besides slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendsFrom {
    /// Nothing: only slots are registered with the card.
    Slots,
    /// Zeros that all share.
    Zeros,
    /// Wherever bytes lie, also where the source has them.
    Anywhere,
}

impl CommandMemory {
    pub(super) fn new(pool: Pool) -> CommandMemory {
        CommandMemory { pool, line: VecDeque::new(), changed: false }
    }

    /// Memory for data that come with the capsule. None: there is none now.
    pub(super) fn for_capsule(&mut self, share: &mut MemoryShare, op: Op, bytes: u32) -> Option<Memory> {
        if op != Op::Write {
            return Some(Memory::Own(ScratchBuffer::new(bytes as usize)));
        }
        match self.take(share, bytes as usize) {
            Some(slot) => Some(Memory::Slot(slot)),
            None if std::mem::replace(&mut share.has_spare, true) => None,
            None => Some(Memory::Spare(ScratchBuffer::new(bytes as usize))),
        }
    }

    /// Gives a command all the memory that it lacks, or none. `queue`: that of its namespace.
    pub(super) fn equip(
        &mut self,
        share: &mut MemoryShare,
        command: &mut Command,
        queue: Option<&mut NamespaceQueue>,
        from: SendsFrom,
    ) -> bool {
        let request = command.io.request.expect("only I/O commands need memory");
        let content = queue.as_ref().map(|queue| queue.volume.content);
        let bytes = request.transfer.bytes() as usize;
        // Where there is no content, all read into the zeros that nobody writes to.
        let scratch_bytes = if content == Some(Content::None) { 0 } else { scratch_bytes(&request) as usize };
        let has_memory = !matches!(command.memory, Memory::None);
        if from != SendsFrom::Slots && request.op == Op::Read && content == Some(Content::None) {
            command.memory = Memory::Blank;
        } else if let Some(lent) = lent(&request, queue, from) {
            command.memory = lent;
        } else if bytes > 0 && !has_memory {
            let Some(slot) = self.take(share, bytes) else { return false };
            if matches!(content, Some(Content::Partial | Content::None)) {
                self.pool.clear(&slot, bytes);
            }
            command.memory = Memory::Slot(slot);
        }
        if scratch_bytes > 0 && command.scratch.is_none() {
            let Some(slot) = self.take(share, scratch_bytes) else {
                if !has_memory {
                    self.give_back(share, std::mem::take(&mut command.memory));
                }
                return false;
            };
            if content == Some(Content::Partial) {
                self.pool.clear(&slot, scratch_bytes);
            }
            command.scratch = Some(slot);
        }
        true
    }

    fn take(&mut self, share: &mut MemoryShare, bytes: usize) -> Option<Slot> {
        self.pool.take(bytes, &mut share.held)
    }

    fn give_back(&mut self, share: &mut MemoryShare, memory: Memory) {
        match memory {
            Memory::Slot(slot) => {
                self.pool.give_back(slot, &mut share.held);
                self.changed = true;
            }
            Memory::Spare(_) => {
                share.has_spare = false;
                self.changed = true;
            }
            Memory::None | Memory::Blank | Memory::Own(_) | Memory::Lent(_) => {}
        }
    }

    /// Takes back all that a command had.
    pub(super) fn release(&mut self, share: &mut MemoryShare, command: Command) {
        self.give_back(share, command.memory);
        if let Some(slot) = command.scratch {
            self.give_back(share, Memory::Slot(slot));
        }
    }

    /// The connection stands in line from now on, if it doesn't yet.
    pub(super) fn stand_in_line(&mut self, index: u32, share: &mut MemoryShare) {
        self.line_up(index, share);
        self.changed = true;
    }

    /// As `stand_in_line`, for one that has just had its turn: nothing has changed by that.
    pub(super) fn line_up(&mut self, index: u32, share: &mut MemoryShare) {
        if !std::mem::replace(&mut share.in_line, true) {
            self.line.push_back(index);
        }
    }

    /// The connection whose turn it is leaves the line. It is told by `has_its_turn`, if it is still there.
    pub(super) fn next_in_line(&mut self) -> Option<u32> {
        self.line.pop_front()
    }

    pub(super) fn line_len(&self) -> usize {
        self.line.len()
    }

    /// It may be worth taking turns. Asked once for each change.
    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    pub(super) fn has_changed(&self) -> bool {
        self.changed
    }
}

impl MemoryShare {
    pub(super) fn has_its_turn(&mut self) {
        self.in_line = false;
    }
}

/// Data that lie in memory already. With a digest they are copied: it would have to be computed where they lie, while the
/// file may be cut short.
fn lent(request: &Request, queue: Option<&mut NamespaceQueue>, from: SendsFrom) -> Option<Memory> {
    if request.op != Op::Read || from != SendsFrom::Anywhere {
        return None;
    }
    queue?.lend(request.offset, request.bytes as u32).map(Memory::Lent)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> CommandMemory {
        CommandMemory::new(Pool::new(16 << 20, 1 << 20).unwrap())
    }

    // promise: TGT-7
    #[test]
    fn a_connection_stands_in_line_once_and_again_after_its_turn() {
        let (mut memory, mut shares) = (memory(), [MemoryShare::default(), MemoryShare::default()]);
        for index in [0, 1, 0] {
            memory.stand_in_line(index, &mut shares[index as usize]);
        }
        assert!(memory.take_changed() && !memory.has_changed());
        assert_eq!((memory.next_in_line(), memory.line_len()), (Some(0), 1));
        shares[0].has_its_turn();
        memory.line_up(0, &mut shares[0]);
        assert!(!memory.has_changed(), "nobody gave anything back");
        assert_eq!(
            [memory.next_in_line(), memory.next_in_line(), memory.next_in_line()],
            [Some(1), Some(0), None]
        );
    }

    // promise: TGT-7
    #[test]
    fn where_slots_are_out_a_connection_has_one_spare_buffer_for_a_write() {
        let (mut memory, mut share) = (memory(), MemoryShare::default());
        let mut had = Vec::new();
        while let Some(taken @ Memory::Slot(_)) = memory.for_capsule(&mut share, Op::Write, 1 << 20) {
            had.push(taken);
        }
        assert!(share.has_spare, "the last that it got");
        assert!(memory.for_capsule(&mut share, Op::Write, 1 << 20).is_none());
        memory.give_back(&mut share, had.pop().unwrap());
        assert!(memory.take_changed());
        assert!(matches!(memory.for_capsule(&mut share, Op::Write, 1 << 20), Some(Memory::Slot(_))));
    }
}
