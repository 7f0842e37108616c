//! End of an I/O command: answered, counted, its memory given back.

use super::super::arena::ScratchBuffer;
use super::super::command::place;
use super::super::command::Memory;
use super::super::command::State;
use super::super::connection::Connection;
use super::super::connection::Role;
use super::super::worker::Worker;
use crate::namespace::executor::Counters;
use forebay_nvme::command::Cqe;
use forebay_nvme::controller::Mishap;
use forebay_nvme::nvm::Op;
use forebay_nvme::nvm::Request;
use forebay_nvme::status::Code;
use forebay_nvme::status::Status;
use forebay_nvme::transport::tcp::Handle;

impl Worker {
    /// Answers an I/O command, counts it, and frees what its answer doesn't need.
    pub(crate) fn finish(&mut self, c: &mut Connection, at: Handle, status: Status) {
        self.count(c, at, status);
        if !c.aborts.is_empty() {
            self.answer_aborts(c, |given_up| given_up == at, status.code == Code::ABORT_REQUESTED);
        }
        let command = c.command(at);
        let (request, cid) = (command.io.request, command.sqe.cid.get());
        if command.state == State::Running {
            c.running -= 1;
        }
        let cqe = Cqe::new(cid, status, 0);
        match request {
            Some(Request { op: Op::Read, bytes, .. }) if status.is_success() => {
                c.command(at).state = State::Answering;
                c.link.answer(at, bytes as u32, cqe);
                self.want_sweep();
            }
            _ => {
                c.link.complete(at, cqe);
                self.free(c, at);
            }
        }
        self.soil_this(c);
    }

    fn count(&mut self, c: &mut Connection, at: Handle, status: Status) {
        let now_ns = self.now_ns();
        let Connection { commands, role, counts, read_latency, write_latency, .. } = c;
        let command = &commands[at.0 as usize];
        let queue = Counters { counts, read_latency, write_latency };
        command.io.count(&mut self.lanes, Some(queue), status, now_ns);
        if let (false, Role::Io { entry, qid }) = (status.is_success(), role) {
            let sqe = &command.sqe;
            let lba = u64::from(sqe.cdw10.get()) | u64::from(sqe.cdw11.get()) << 32;
            let mishap = Mishap { sqid: *qid, cid: sqe.cid.get(), status, nsid: sqe.nsid.get(), lba };
            entry.controller().record(mishap);
        }
    }

    /// Nothing of a command is left; its handle may come again.
    pub(crate) fn free(&mut self, c: &mut Connection, at: Handle) {
        let command = std::mem::take(c.command(at));
        if let (true, Some(request), Some(entry)) = (command.is_charged, command.io.request, c.role.entry()) {
            entry.host.leave(u64::from(request.transfer.bytes()));
        }
        self.give_back(c, command.memory);
        if let Some(slot) = command.scratch {
            self.give_back(c, Memory::Slot(slot));
        }
    }

    /// Sends what there is, and takes back the memory of what was sent.
    pub(crate) fn write(&mut self, c: &mut Connection) {
        if c.closing {
            return;
        }
        if c.link.is_sent() {
            // What goes now has all its time.
            c.sent_at = self.now;
        }
        let (commands, pool) = (&c.commands, &self.pool);
        c.link.send(&mut self.reactor, &|at| place(commands, pool, at));
        let mut released = std::mem::take(&mut self.released);
        c.link.take_released(&mut released);
        let progress = !released.is_empty() || c.link.is_sent();
        for at in released.drain(..) {
            self.free(c, at);
        }
        self.released = released;
        if progress {
            c.sent_at = self.now;
        }
        if c.link.is_sent() && c.last_words {
            self.end(c, "");
        } else if self.draining {
            self.leave_if_idle(c);
        }
    }

    pub(super) fn leave_unanswered(&mut self, c: &mut Connection, at: Handle, in_capsule: u32) {
        let command = c.command(at);
        command.state = State::Left;
        if in_capsule > 0 {
            command.memory = Memory::ScratchBuffer(ScratchBuffer::new(in_capsule as usize));
        }
    }
}
