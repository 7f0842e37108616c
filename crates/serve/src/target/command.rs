//! A command in flight on one connection, and the memory that its data pass through.

use super::arena::{Pool, ScratchBuffer, Slot};
use crate::namespace::executor;
use crate::namespace::steps::Places;
use forebay_io::Mem;
use forebay_nvme::command::Sqe;
use forebay_nvme::nvm::{Geometry, Op};
use forebay_nvme::status::Status;
use forebay_nvme::transport::tcp::PayloadPlace;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum CommandState {
    #[default]
    Free,
    /// Its data are on their way here.
    Collecting,
    /// For a slot, or for its host's limits.
    Waiting,
    /// The source is at it.
    Running,
    /// Its data are on their way to the host.
    Answering,
    /// An Asynchronous Event Request.
    Parked,
    /// It came while we drain: never answered.
    Left,
}

#[derive(Debug, Default)]
pub(super) enum Memory {
    #[default]
    None,
    Slot(Slot),
    /// Memory of this command alone.
    Own(ScratchBuffer),
    /// The one buffer of its own that a connection may have for a write, where slots are out.
    Spare(ScratchBuffer),
    /// Zeros that all share.
    Blank,
    /// Lent by the source: the kernel sends from there.
    Lent(Mem),
}

impl Memory {
    pub(super) fn mem(&self, pool: &Pool) -> Mem {
        match self {
            Memory::None => Mem::None,
            Memory::Slot(slot) => pool.mem(slot),
            Memory::Own(buffer) | Memory::Spare(buffer) => buffer.mem(),
            Memory::Blank => pool.blank(),
            Memory::Lent(mem) => *mem,
        }
    }

    pub(super) fn bytes<'a>(&'a self, pool: &'a Pool, len: usize) -> &'a [u8] {
        match self {
            Memory::Slot(slot) => pool.bytes(slot, len),
            Memory::Own(buffer) | Memory::Spare(buffer) => &buffer.bytes()[..len.min(buffer.bytes().len())],
            Memory::None | Memory::Blank | Memory::Lent(_) => &[],
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Command {
    pub state: CommandState,
    pub sqe: Sqe,
    /// At the executor; without a request: an admin or Fabrics command.
    pub io: executor::Command,
    pub memory: Memory,
    /// Buffer that it reads into for itself.
    pub scratch: Option<Slot>,
    /// All data that it brings are here.
    pub has_data: bool,
    /// Counted against its host's limits.
    pub is_charged: bool,
}

/// The memory of a command, with the pool that it is from.
pub(super) struct Placed<'a> {
    pub memory: &'a Memory,
    pub scratch: &'a Option<Slot>,
    pub pool: &'a Pool,
}

impl Places for Placed<'_> {
    fn data(&self) -> Mem {
        self.memory.mem(self.pool)
    }

    fn scratch(&self) -> Mem {
        self.scratch.as_ref().map_or(self.pool.blank(), |slot| self.pool.mem(slot))
    }

    fn blank(&self) -> (Mem, usize) {
        (self.pool.blank(), self.pool.blank_bytes())
    }

    fn is_same(&self, len: usize) -> bool {
        let given = self.memory.bytes(self.pool, len);
        match self.scratch {
            Some(slot) => given == self.pool.bytes(slot, len),
            None => given.iter().all(|byte| *byte == 0),
        }
    }

    fn ranges<'a>(
        &'a self,
        op: Op,
        geometry: &'a Geometry,
    ) -> Result<impl Iterator<Item = (u64, u64)> + 'a, Status> {
        op.ranges(self.memory.bytes(self.pool, op.list_bytes()), geometry)
    }
}

/// Returns the memory of the data of one of the connection's commands.
pub(super) fn place(commands: &[Command], pool: &Pool, at: PayloadPlace) -> Mem {
    commands.get(at.command.0 as usize).map_or(Mem::None, |c| c.memory.mem(pool)).after(at.offset as usize)
}
