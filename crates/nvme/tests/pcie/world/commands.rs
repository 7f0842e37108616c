//! Execution of commands: they are understood, carried out on the drive of bytes, and end in any order.

use super::*;
use forebay_nvme::command::Sqe;
use forebay_nvme::nvm::{Geometry, Op};
use forebay_nvme::status::{Code, Status};
use forebay_nvme::transport::pcie::data;
use forebay_nvme::transport::pcie::memory::{HostMemory, Unmapped};
use forebay_nvme::transport::pcie::queue::Fetched;

impl World {
    pub(super) fn begin(&mut self, cqid: u16, command: &Fetched) {
        self.commands += 1;
        let geometry = Geometry::new(&namespace(), AnaState::Optimized, Some(128 << 10));
        let geometry = (command.sqe.nsid.get() == 1).then_some(&geometry);
        match self.understand(&command.sqe, geometry) {
            Ok((request, pieces)) => self.running.push(Running {
                cqid,
                slot: command.slot,
                request,
                pieces,
                abort: false,
                deleted: false,
            }),
            Err(status) => self.complete(cqid, command.slot, status),
        }
    }

    fn understand(&self, sqe: &Sqe, geometry: Option<&Geometry>) -> Result<(Request, Vec<Piece>), Status> {
        let request = Request::parse_pcie(sqe, geometry)?;
        let mut pieces = Vec::new();
        let page_bytes = self.device.page_bytes();
        data::walk(&self.memory, sqe, request.transfer.bytes(), page_bytes, &mut |piece| {
            let (address, bytes) = (piece.address, u64::from(piece.bytes));
            if !self.memory.contains(address, bytes) {
                return Err(Unmapped { address, bytes });
            }
            pieces.push(piece);
            Ok(())
        })?;
        Ok((request, pieces))
    }

    /// A command of those that run ends, whichever.
    pub(super) fn end_one(&mut self) {
        let must_end = |one: &Running| one.abort || one.deleted;
        let choice = match self.stalled {
            true => self.running.iter().position(must_end),
            false if self.running.is_empty() => None,
            false => Some(self.random.below(self.running.len())),
        };
        let Some(at) = choice else { return };
        let one = self.running.swap_remove(at);
        let status = if one.deleted && self.random.rarely(2) {
            Status::again(Code::ABORTED_SQ_DELETION)
        } else if one.abort {
            Status::again(Code::ABORT_REQUESTED)
        } else if self.failing > 0 && self.random.rarely(self.failing) {
            Status::fatal(Code::UNRECOVERED_READ)
        } else {
            self.carry_out(&one)
        };
        let command = self.owners[&one.cqid].queue.command(one.slot).expect("it is in flight");
        self.complete(one.cqid, one.slot, status);
        if one.abort {
            let aborted = status.code == Code::ABORT_REQUESTED;
            self.device.aborted(command.sqid, command.sqe.cid.get(), aborted);
        }
    }

    fn carry_out(&mut self, one: &Running) -> Status {
        let mut at = one.request.offset as usize;
        match one.request.op {
            Op::Read | Op::Write => {}
            _ => return Status::SUCCESS,
        }
        for piece in &one.pieces {
            let here = &mut self.disk[at..at + piece.bytes as usize];
            at += here.len();
            let moved = match one.request.op {
                Op::Read => self.memory.write(piece.address, here),
                _ => self.memory.read(piece.address, here),
            };
            if moved.is_err() {
                return Status::fatal(Code::DATA_TRANSFER_ERROR);
            }
        }
        Status::SUCCESS
    }

    fn complete(&mut self, cqid: u16, slot: u16, status: Status) {
        let memory = self.memory.clone();
        let owner = self.owners.get_mut(&cqid).unwrap();
        owner.asleep = false;
        if let Err(fault) = owner.queue.complete(&memory, slot, status, 0) {
            self.device.fault(fault);
        }
    }
}
