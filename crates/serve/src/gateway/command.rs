//! A command in flight, and where its data lie.

use super::dma::{self, Access, HeldMappings, Map};
use crate::namespace::executor;
use crate::namespace::namespace_queue::NamespaceQueue;
use crate::namespace::steps::{scratch_bytes, Places};
use crate::namespace::volume::Content;
use crate::target::arena::ScratchBuffer;
use forebay_io::{Mem, PieceList};
use forebay_nvme::command::Sqe;
use forebay_nvme::nvm::{Geometry, Op, Request, Transfer};
use forebay_nvme::status::{Code, Status};
use forebay_nvme::transport::pcie::data;
use forebay_nvme::transport::pcie::memory::Unmapped;

/// Its name, at queues of namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    /// Number of the controller at its worker.
    pub controller: u32,
    /// Place of its completion queue.
    pub queue: u32,
    pub slot: u16,
}

impl Owner {
    /// The flush of a shutdown: no command.
    pub(super) const SHUTDOWN: u16 = u16::MAX;
}

/// A command in flight, by its slot.
#[derive(Debug, Default)]
pub(super) struct Command {
    /// At the executor.
    pub io: executor::Command,
    pub memory: Memory,
    /// The host wants it aborted.
    pub abort: bool,
}

/// Where a command's data lie.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Pieces of the requester's memory that hold its payload.
    pieces: PieceList,
    /// References to that memory.
    held: HeldMappings,
    /// Buffer that a command reads into for itself.
    scratch: Option<Pages>,
    /// Buffer in the place of the requester's memory, where the source can't use that: O_DIRECT, and a driver that has
    /// its payload at any multiple of four bytes.
    stage: Option<Pages>,
    /// Data that say what to do.
    list: Vec<u8>,
}

impl Command {
    pub(super) fn begin(&mut self, now_ns: u64) {
        self.io.restart(now_ns);
        self.abort = false;
    }

    /// What was read is where its requester wants it.
    pub(super) fn land(&self) -> Result<(), Status> {
        match (&self.memory.stage, self.io.request) {
            (Some(stage), Some(Request { op: Op::Read, .. })) => {
                dma::copy_in(self.memory.pieces.mem(), stage.bytes()).map_err(|_| unreachable_data())
            }
            _ => Ok(()),
        }
    }
}

impl Memory {
    /// Finds where the data lie that a command names.
    pub(super) fn find(
        &mut self,
        map: &Map,
        sqe: &Sqe,
        transfer: Transfer,
        page_bytes: u32,
    ) -> Result<(), Status> {
        let access = if matches!(transfer, Transfer::ToHost(_)) { Access::Write } else { Access::Read };
        let Memory { pieces, held, .. } = self;
        data::walk(map, sqe, transfer.bytes(), page_bytes, &mut |piece| {
            let (address, bytes) = (piece.address, u64::from(piece.bytes));
            map.gather(address, piece.bytes as usize, access, pieces, held)
                .map_err(|_| Unmapped { address, bytes })
        })
    }

    /// Adds what else the command needs, once it is known where its data lie. True: its payload goes by a stage. `queue`:
    /// that of its namespace; `blank`: zeros.
    pub(super) fn prepare<O: Copy>(
        &mut self,
        request: &Request,
        queue: Option<&NamespaceQueue<O>>,
        blank: &Pages,
    ) -> Result<bool, Status> {
        if request.op.list_bytes() > 0 {
            self.list.resize(request.transfer.bytes() as usize, 0);
            dma::copy_out(self.pieces.mem(), &mut self.list).map_err(|_| unreachable_data())?;
        }
        let scratch = scratch_bytes(request) as usize;
        if scratch > 0 {
            self.scratch = Some(Pages::new(scratch));
        }
        let (len, mem) = (request.bytes as usize, self.pieces.mem());
        // What the source doesn't write reads as zeros.
        let content = queue.map_or(Content::None, |queue| queue.volume.content);
        if request.op == Op::Read && content != Content::Whole {
            dma::fill(mem, len, blank.bytes()).map_err(|_| unreachable_data())?;
        }
        let moves = matches!(request.op, Op::Read | Op::Write);
        let staged = moves && queue.is_some_and(|queue| !queue.takes(mem, len));
        if staged {
            let copies = request.op == Op::Write;
            self.stage = Some(if copies { Pages::copied(mem, len)? } else { Pages::new(len) });
        }
        Ok(staged)
    }

    /// Lets go of the requester's memory.
    pub(super) fn release(&mut self) {
        self.pieces.clear();
        self.held.clear();
        (self.scratch, self.stage) = (None, None);
    }
}

/// Zeroed memory that begins with a page, as sources want it that bypass the cache.
#[derive(Debug)]
pub(super) struct Pages {
    buffer: ScratchBuffer,
    lead: usize,
    len: usize,
}

impl Pages {
    pub(super) fn new(len: usize) -> Pages {
        let buffer = ScratchBuffer::new(len + dma::PAGE as usize);
        let lead = buffer.mem().host_ptr().align_offset(dma::PAGE as usize);
        Pages { buffer, lead, len }
    }

    /// With what lies there, in memory that a `HeldMappings` keeps.
    fn copied(from: Mem, len: usize) -> Result<Pages, Status> {
        let mut bytes = vec![0; len + dma::PAGE as usize];
        let lead = bytes.as_ptr().align_offset(dma::PAGE as usize);
        dma::copy_out(from, &mut bytes[lead..lead + len]).map_err(|_| unreachable_data())?;
        Ok(Pages { buffer: ScratchBuffer::from_vec(bytes), lead, len })
    }

    pub(super) fn mem(&self) -> Mem {
        self.buffer.mem().after(self.lead)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.buffer.bytes()[self.lead..self.lead + self.len]
    }
}

/// The memory of a command, and the zeros that all share.
pub(super) struct Placed<'a>(pub &'a Memory, pub &'a Pages);

impl Places for Placed<'_> {
    fn data(&self) -> Mem {
        self.0.stage.as_ref().map_or_else(|| self.0.pieces.mem(), Pages::mem)
    }

    fn scratch(&self) -> Mem {
        self.0.scratch.as_ref().map_or(Mem::None, Pages::mem)
    }

    fn blank(&self) -> (Mem, usize) {
        (self.1.mem(), self.1.bytes().len())
    }

    fn is_same(&self, len: usize) -> bool {
        let read = self.0.scratch.as_ref().map_or(&[][..], Pages::bytes);
        read.len() >= len && dma::is_same(self.0.pieces.mem(), &read[..len])
    }

    fn ranges<'a>(
        &'a self,
        op: Op,
        geometry: &'a Geometry,
    ) -> Result<impl Iterator<Item = (u64, u64)> + 'a, Status> {
        op.ranges(&self.0.list, geometry)
    }
}

fn unreachable_data() -> Status {
    Status::fatal(Code::DATA_TRANSFER_ERROR)
}
