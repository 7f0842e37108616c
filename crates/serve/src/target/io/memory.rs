//! Memory for a command's data: had, lent, given back.

use super::super::arena::ScratchBuffer;
use super::super::arena::Slot;
use super::super::command::Memory;
use super::super::command::State;
use super::super::connection::Connection;
use super::super::worker::Worker;
use crate::namespace::steps::scratch_bytes;
use crate::namespace::volume::Content;
use forebay_io::arena::Mem;
use forebay_nvme::nvm::Op;
use forebay_nvme::nvm::Request;
use forebay_nvme::transport::tcp::Handle;

impl Worker {
    /// Memory for data that come with the capsule. False: there is none now.
    pub(super) fn hold_capsule(
        &mut self,
        c: &mut Connection,
        at: Handle,
        request: Request,
        bytes: u32,
    ) -> bool {
        let alone = request.op != Op::Write;
        let slot = if alone { None } else { self.take(c, bytes as usize) };
        let memory = match slot {
            Some(slot) => Memory::Slot(slot),
            None if alone => Memory::ScratchBuffer(ScratchBuffer::new(bytes as usize)),
            None if !std::mem::replace(&mut c.has_spare, true) => {
                Memory::Spare(ScratchBuffer::new(bytes as usize))
            }
            None => return false,
        };
        let command = c.command(at);
        (command.memory, command.state) = (memory, State::Collecting);
        c.collects(self.now);
        self.want_sweep();
        true
    }

    /// All the memory that a command lacks, or none.
    pub(super) fn equip(&mut self, c: &mut Connection, at: Handle, request: Request) -> bool {
        let content =
            self.lanes.get(c.command(at).io.lane as usize).and_then(Option::as_ref).map(|l| l.volume.content);
        let bytes = request.transfer.bytes() as usize;
        // Where there is no content, all read into the zeros that nobody writes to.
        let scratch_bytes = if content == Some(Content::None) { 0 } else { scratch_bytes(&request) as usize };
        let has_memory = !matches!(c.command(at).memory, Memory::None);
        let anywhere = c.link.sends_from_anywhere();
        if anywhere && request.op == Op::Read && content == Some(Content::None) {
            c.command(at).memory = Memory::Blank;
        } else if let Some(mem) = self.lent(c, at, request) {
            c.command(at).memory = Memory::Lent(mem);
        } else if bytes > 0 && !has_memory {
            let Some(slot) = self.take(c, bytes) else { return false };
            if matches!(content, Some(Content::Partial | Content::None)) {
                self.pool.clear(&slot, bytes);
            }
            c.command(at).memory = Memory::Slot(slot);
        }
        if scratch_bytes > 0 && c.command(at).scratch.is_none() {
            let Some(slot) = self.take(c, scratch_bytes) else {
                if !has_memory {
                    let memory = std::mem::take(&mut c.command(at).memory);
                    self.give_back(c, memory);
                }
                return false;
            };
            if content == Some(Content::Partial) {
                self.pool.clear(&slot, scratch_bytes);
            }
            c.command(at).scratch = Some(slot);
        }
        true
    }

    /// Returns the place of data that lies in memory already. A digest would have to be computed there, while the file
    /// may be cut short.
    pub(super) fn lent(&mut self, c: &mut Connection, at: Handle, request: Request) -> Option<Mem> {
        if request.op != Op::Read || c.data_digest || !c.link.sends_from_anywhere() {
            return None;
        }
        self.lanes
            .get_mut(c.command(at).io.lane as usize)?
            .as_mut()?
            .lend(request.offset, request.bytes as u32)
    }

    pub(super) fn take(&mut self, c: &mut Connection, bytes: usize) -> Option<Slot> {
        self.pool.take(bytes, &mut c.held)
    }

    pub(super) fn give_back(&mut self, c: &mut Connection, memory: Memory) {
        match memory {
            Memory::Slot(slot) => {
                self.pool.give_back(slot, &mut c.held);
                self.freed = true;
            }
            Memory::Spare(_) => {
                c.has_spare = false;
                self.freed = true;
            }
            Memory::None | Memory::Blank | Memory::ScratchBuffer(_) | Memory::Lent(_) => {}
        }
    }
}
