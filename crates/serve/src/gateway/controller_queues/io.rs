//! I/O commands of a controller's queues: from their fetch to their completion. Their payload moves between the source
//! and the requester's memory, and nowhere else, unless the source takes no memory that begins where that does.

use super::super::command::{Command, Owner, Placed};
use super::super::controller_shared::ControllerEvent;
use super::super::io_queue::IoQueue;
use super::super::resources::ThreadResources;
use super::ControllerQueues;
use crate::namespace::executor::{self, Frontend, Work};
use crate::namespace::steps::{failure, is_repeatable};
use crate::target::log::Level;
use forebay_io::Fault;
use forebay_nvme::command::{io, Sqe};
use forebay_nvme::controller::Mishap;
use forebay_nvme::nvm::{payload_blocks, Op, Request};
use forebay_nvme::status::{Code, Status};
use forebay_nvme::transport::pcie::queue::Fetched;
use std::sync::atomic::Ordering;

/// A command, with the controller that it came by and the thread that carries it out. Its state is its queue's, so that one
/// is made for each thing that happens to the command.
pub(super) struct IoCommand<'a> {
    pub c: &'a mut ControllerQueues,
    pub thread: &'a mut ThreadResources,
    pub owner: Owner,
}

impl Frontend for IoCommand<'_> {
    type Owner = Owner;
    type Memory<'m>
        = Placed<'m>
    where
        Self: 'm;
    type End = Status;

    fn command(&mut self) -> &mut executor::Command {
        &mut self.state().io
    }

    fn work(&mut self) -> Work<'_, Owner, Placed<'_>> {
        let ThreadResources { queues, blank, reactor, .. } = &mut *self.thread;
        let write_cache = self.c.shared.write_cache.load(Ordering::Relaxed);
        let queue = &mut self.c.queues[self.owner.queue as usize];
        let Command { io, memory, .. } = &mut queue.commands[usize::from(self.owner.slot)];
        Work {
            owner: self.owner,
            queue: queues.get_mut(io.queue).expect("a namespace's queue outlives its commands"),
            command: io,
            memory: Placed(memory, blank),
            reactor,
            write_cache,
        }
    }

    fn next_cached(&self, nsid: u32) -> Option<u32> {
        let mut rest = self.c.view.iter().filter(|(other, _)| *other > nsid);
        rest.find(|(_, shown)| shown.volume.write_cache).map(|(nsid, _)| *nsid)
    }

    fn queue(&mut self, nsid: u32) -> Result<Option<u32>, Status> {
        self.c.open_namespace(self.thread, nsid)
    }

    fn given_up(&mut self) -> Option<Status> {
        let q = &self.c.queues[self.owner.queue as usize];
        let sqid = q.cq.command(self.owner.slot).map(|fetched| fetched.sqid);
        // Its queue goes: no further step.
        if sqid.is_some_and(|sqid| q.closing.contains(&sqid)) {
            return Some(Status::again(Code::ABORTED_SQ_DELETION));
        }
        let abort = q.commands[usize::from(self.owner.slot)].abort;
        abort.then(|| Status::again(Code::ABORT_REQUESTED))
    }

    fn failed(&mut self, request: &Request, fault: &Fault) -> Status {
        let Work { queue, .. } = self.work();
        if let Some(faults) = queue.fault() {
            let why = format!(
                "{}: {:?} of {} bytes at {}: {fault} ({faults} so far)",
                queue.volume.source, request.op, request.bytes, request.offset
            );
            self.thread.say(Level::Error, "source failed", &self.c.shared.name, why);
        }
        failure(request, fault)
    }

    fn complete(&mut self, status: Status) {
        self.finish(status);
    }
}

impl IoCommand<'_> {
    #[inline]
    fn queue(&mut self) -> &mut IoQueue {
        &mut self.c.queues[self.owner.queue as usize]
    }

    #[inline]
    fn state(&mut self) -> &mut Command {
        let slot = usize::from(self.owner.slot);
        &mut self.queue().commands[slot]
    }

    /// It came: it goes, or waits for its namespace's limits.
    pub(super) fn begin(&mut self, sqe: &Sqe) {
        let now_ns = self.thread.now_ns();
        self.state().begin(now_ns);
        if self.is_let_through(sqe, now_ns) {
            self.carry_out(sqe);
        }
    }

    fn is_let_through(&mut self, sqe: &Sqe, now_ns: u64) -> bool {
        let ControllerQueues { shared, view, queues, .. } = &mut *self.c;
        let nsid = sqe.nsid.get();
        // What names no namespace is refused, or flushes all of them.
        let Ok(at) = view.binary_search_by_key(&nsid, |(nsid, _)| *nsid) else { return true };
        let shown = &view[at].1;
        // A longer one is refused.
        let bytes = payload_blocks(sqe) * u64::from(shown.volume.block_bytes);
        let bytes = bytes.min(shared.transfer_bytes_max.into());
        let lines = &mut queues[self.owner.queue as usize].lines;
        lines.ask((nsid, &shown.limiter), self.owner.slot, bytes, now_ns)
    }

    /// Nothing holds it back.
    pub(super) fn carry_out(&mut self, sqe: &Sqe) {
        match self.prepare(sqe) {
            Ok(()) => executor::proceed(self),
            Err(status) => self.finish(status),
        }
    }

    /// Checks it, and finds its memory. Err: how it ended.
    fn prepare(&mut self, sqe: &Sqe) -> Result<(), Status> {
        if sqe.opcode == io::FLUSH && sqe.nsid.get() == u32::MAX {
            self.state().io.flush_everything();
            return Ok(());
        }
        let number = self.c.open_namespace(self.thread, sqe.nsid.get())?;
        let namespace_queue = number.and_then(|number| self.thread.queues.get(number));
        let request = Request::parse_pcie(sqe, namespace_queue.map(|queue| &queue.geometry))?;
        let ControllerQueues { map, queues, page_bytes, .. } = &mut *self.c;
        let q = &mut queues[self.owner.queue as usize];
        let Command { io, memory, .. } = &mut q.commands[usize::from(self.owner.slot)];
        (io.request, io.queue) = (Some(request), number.unwrap_or(0));
        memory.find(map, sqe, request.transfer, *page_bytes)?;
        if matches!(request.op, Op::DatasetManagement { deallocate: false, .. }) {
            return Err(Status::SUCCESS);
        }
        if memory.prepare(&request, namespace_queue, &self.thread.blank)? {
            q.count_staged(self.owner.slot, request.bytes);
        }
        Ok(())
    }

    /// Returns the bytes that the source may copy at once.
    pub(super) fn copied_bytes(&mut self) -> u64 {
        let io = self.state().io;
        let over_files = self.thread.queues.get(io.queue).is_some_and(|queue| queue.over_files);
        io.request.filter(|_| over_files).map_or(0, |request| request.transfer.bytes().into())
    }

    /// The source is done with a step.
    pub(super) fn moved(&mut self, result: Result<u32, Fault>) {
        let ControllerQueues { queues, closing, held, .. } = &mut *self.c;
        let Some(q) = queues.get_mut(self.owner.queue as usize) else { return };
        let Some(Fetched { sqid, .. }) = q.cq.command(self.owner.slot) else { return };
        let command = &mut q.commands[usize::from(self.owner.slot)];
        if *closing {
            command.memory.release();
            q.cq.forget(self.owner.slot);
            return;
        }
        let cancelled = matches!(&result, Err(fault) if fault.errno == libc::ECANCELED);
        let repeatable = command.io.request.as_ref().is_some_and(is_repeatable);
        if *held && cancelled && !command.abort && repeatable && !q.closing.contains(&sqid) {
            return q.park(self.owner.slot);
        }
        executor::moved(self, result);
    }

    /// Writes its completion, and counts it.
    pub(super) fn finish(&mut self, status: Status) {
        let landed = if status.is_success() { self.state().land() } else { Ok(()) };
        let status = landed.err().unwrap_or(status);
        self.count(status);
        let queue = self.owner.queue as usize;
        let q = &mut self.c.queues[queue];
        let command = &mut q.commands[usize::from(self.owner.slot)];
        let aborted = std::mem::take(&mut command.abort).then(|| q.cq.command(self.owner.slot)).flatten();
        command.memory.release();
        if let Err(fault) = q.cq.complete(&*self.c.map, self.owner.slot, status, 0) {
            self.c.report_fault(queue, fault);
        }
        if let Some(Fetched { sqid, sqe, .. }) = aborted {
            let aborted = status.code == Code::ABORT_REQUESTED;
            self.c.shared.say(ControllerEvent::Aborted { sqid, cid: sqe.cid.get(), aborted });
        }
    }

    fn count(&mut self, status: Status) {
        let now_ns = self.thread.now_ns();
        let IoQueue { cq, commands, tallies, .. } = &mut self.c.queues[self.owner.queue as usize];
        let io = &commands[usize::from(self.owner.slot)].io;
        let fetched = cq.command(self.owner.slot);
        let tally = fetched.and_then(|fetched| tallies.iter_mut().find(|tally| tally.sqid == fetched.sqid));
        let namespace_queues = self.thread.queues.as_mut_slice();
        let Some((Fetched { sqid, sqe, .. }, tally)) = fetched.zip(tally) else {
            return io.count(namespace_queues, None, status, now_ns);
        };
        io.count(namespace_queues, Some(tally.counters()), status, now_ns);
        if !status.is_success() {
            let errors = tally.counts.errors;
            // A flood of failing commands says nothing new.
            if errors <= 64 || errors.is_power_of_two() {
                self.c.shared.say(ControllerEvent::Mishap(Mishap::from_status(sqid, &sqe, status)));
            }
        }
    }
}
