//! I/O commands of a controller's queues: from their fetch to their completion. Their payload moves between the source
//! and the requester's memory, and nowhere else, unless the source takes no memory that begins where that does.

use super::controller_queues::{report_fault, ControllerQueues, Queue};
use super::controller_shared::ControllerEvent;
use super::dma::{self, Access, Held};
use super::hold::admits;
use super::worker::{Owner, Worker};
use crate::namespace::executor::{self, Front, Work};
use crate::namespace::lane::{self, Lane};
use crate::namespace::steps::{failure, is_repeatable, scratch_bytes, Places};
use crate::namespace::volume::Content;
use crate::target::arena::ScratchBuffer;
use crate::target::log::Level;
use forebay_io::arena::{Mem, PieceList};
use forebay_io::queue::Fault;
use forebay_nvme::command::{io, Sqe};
use forebay_nvme::controller::Mishap;
use forebay_nvme::nvm::{Geometry, Op, Request, Transfer};
use forebay_nvme::status::{Code, Status};
use forebay_nvme::transport::pcie::data;
use forebay_nvme::transport::pcie::memory::Unmapped;
use forebay_nvme::transport::pcie::queue::Fetched;
use std::sync::atomic::Ordering;
use std::sync::Arc;

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
    held: Held,
    /// Buffer that a command reads into for itself.
    scratch: Option<Pages>,
    /// Buffer in the place of the requester's memory, where the source can't use that: O_DIRECT, and a driver that has
    /// its payload at any multiple of four bytes.
    stage: Option<Pages>,
    /// Data that say what to do.
    list: Vec<u8>,
}

impl Command {
    fn begin(&mut self, now_ns: u64) {
        self.io.restart(now_ns);
        self.abort = false;
    }

    /// What was read is where its requester wants it.
    fn land(&self) -> Result<(), Status> {
        match (&self.memory.stage, self.io.request) {
            (Some(stage), Some(Request { op: Op::Read, .. })) => {
                dma::copy_in(self.memory.pieces.mem(), stage.bytes()).map_err(|_| unreachable_data())
            }
            _ => Ok(()),
        }
    }
}

impl Memory {
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

    /// With what lies there, in memory that a `Held` keeps.
    fn copied(from: Mem, len: usize) -> Result<Pages, Status> {
        let mut bytes = vec![0; len + dma::PAGE as usize];
        let lead = bytes.as_ptr().align_offset(dma::PAGE as usize);
        dma::copy_out(from, &mut bytes[lead..lead + len]).map_err(|_| unreachable_data())?;
        Ok(Pages { buffer: ScratchBuffer::of(bytes), lead, len })
    }

    pub(super) fn mem(&self) -> Mem {
        self.buffer.mem().after(self.lead)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.buffer.bytes()[self.lead..self.lead + self.len]
    }
}

/// The memory of a command, and the zeros that all share.
struct Placed<'a>(&'a Memory, &'a Pages);

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

/// A command that the source is at.
struct Running<'a> {
    worker: &'a mut Worker,
    f: &'a mut ControllerQueues,
    owner: Owner,
}

impl Front for Running<'_> {
    type Owner = Owner;
    type Memory<'m>
        = Placed<'m>
    where
        Self: 'm;
    type End = Status;

    fn command(&mut self) -> &mut executor::Command {
        &mut command(self.f, self.owner).io
    }

    fn work(&mut self) -> Work<'_, Owner, Placed<'_>> {
        let Worker { lanes, blank, reactor, .. } = &mut *self.worker;
        let write_cache = self.f.shared.write_cache.load(Ordering::Relaxed);
        let Command { io, memory, .. } = command(self.f, self.owner);
        Work {
            owner: self.owner,
            lane: lanes[io.lane as usize].as_mut().expect("a lane outlives its commands"),
            command: io,
            memory: Placed(memory, blank),
            reactor,
            write_cache,
        }
    }

    fn next_cached(&self, nsid: u32) -> Option<u32> {
        let mut rest = self.f.view.iter().filter(|(other, _)| *other > nsid);
        rest.find(|(_, shown)| shown.volume.write_cache).map(|(nsid, _)| *nsid)
    }

    fn lane(&mut self, nsid: u32) -> Result<Option<u32>, Status> {
        self.worker.lane(self.f, nsid)
    }

    fn given_up(&mut self) -> Option<Status> {
        let q = &self.f.queues[self.owner.queue as usize];
        let sqid = q.cq.command(self.owner.slot).map(|fetched| fetched.sqid);
        // Its queue goes: no further step.
        if sqid.is_some_and(|sqid| q.closing.contains(&sqid)) {
            return Some(Status::again(Code::ABORTED_SQ_DELETION));
        }
        let abort = q.commands[usize::from(self.owner.slot)].abort;
        abort.then(|| Status::again(Code::ABORT_REQUESTED))
    }

    fn failed(&mut self, request: &Request, fault: &Fault) -> Status {
        let Work { lane, .. } = self.work();
        if let Some(faults) = lane.fault() {
            let why = format!(
                "{}: {:?} of {} bytes at {}: {fault} ({faults} so far)",
                lane.volume.source, request.op, request.bytes, request.offset
            );
            self.worker.say(Level::Error, "source failed", self.f, why);
        }
        failure(request, fault)
    }

    fn complete(&mut self, status: Status) {
        self.worker.finish(self.f, self.owner, status);
    }
}

impl Worker {
    /// A command came.
    pub(super) fn begin(&mut self, f: &mut ControllerQueues, at: u32, queue: u32, fetched: Fetched) {
        let now_ns = self.now_ns();
        let Fetched { slot, sqe, .. } = fetched;
        f.queues[queue as usize].commands[usize::from(slot)].begin(now_ns);
        let owner = Owner { controller: at, queue, slot };
        if admits(f, owner, &sqe, now_ns) {
            self.carry_out(f, owner, &sqe);
        }
    }

    /// Nothing holds a command back.
    pub(super) fn carry_out(&mut self, f: &mut ControllerQueues, owner: Owner, sqe: &Sqe) {
        match self.prepare(f, owner, sqe) {
            Ok(()) => executor::proceed(&mut Running { worker: self, f, owner }),
            Err(status) => self.finish(f, owner, status),
        }
    }

    /// Checks a command, and finds its memory. Err: how it ended.
    fn prepare(&mut self, f: &mut ControllerQueues, owner: Owner, sqe: &Sqe) -> Result<(), Status> {
        if sqe.opcode == io::FLUSH && sqe.nsid.get() == u32::MAX {
            command(f, owner).io.flush_everything();
            return Ok(());
        }
        let number = self.lane(f, sqe.nsid.get())?;
        let lane = number.and_then(|at| self.lanes[at as usize].as_ref());
        let request = Request::parse_pcie(sqe, lane.map(|lane| &lane.geometry))?;
        let content = lane.map_or(Content::None, |lane| lane.volume.content);
        let io = &mut command(f, owner).io;
        (io.request, io.lane) = (Some(request), number.unwrap_or(0));
        place(f, owner, sqe, request.transfer)?;
        let c = &mut command(f, owner).memory;
        if request.op.list_bytes() > 0 {
            if matches!(request.op, Op::DatasetManagement { deallocate: false, .. }) {
                return Err(Status::SUCCESS);
            }
            c.list.resize(request.transfer.bytes() as usize, 0);
            dma::copy_out(c.pieces.mem(), &mut c.list).map_err(|_| unreachable_data())?;
        }
        let scratch = scratch_bytes(&request) as usize;
        if scratch > 0 {
            c.scratch = Some(Pages::new(scratch));
        }
        // What the source doesn't write reads as zeros.
        if request.op == Op::Read && content != Content::Whole {
            let blank = self.blank.bytes();
            dma::fill(c.pieces.mem(), request.bytes as usize, blank).map_err(|_| unreachable_data())?;
        }
        let (len, moves) = (request.bytes as usize, matches!(request.op, Op::Read | Op::Write));
        if moves && lane.is_some_and(|lane| !lane.takes(c.pieces.mem(), len)) {
            let copies = request.op == Op::Write;
            c.stage = Some(if copies { Pages::copied(c.pieces.mem(), len)? } else { Pages::new(len) });
            f.staged(owner, len as u64);
        }
        Ok(())
    }

    /// The source is done with a step.
    pub(super) fn moved(&mut self, f: &mut ControllerQueues, owner: Owner, result: Result<u32, Fault>) {
        let Some(q) = f.queues.get_mut(owner.queue as usize) else { return };
        let Some(Fetched { sqid, .. }) = q.cq.command(owner.slot) else { return };
        let c = &mut q.commands[usize::from(owner.slot)];
        if f.closing {
            c.memory.release();
            q.cq.forget(owner.slot);
            return;
        }
        let cancelled = matches!(&result, Err(fault) if fault.errno == libc::ECANCELED);
        let repeatable = c.io.request.as_ref().is_some_and(is_repeatable);
        if f.held && cancelled && !c.abort && repeatable && !q.closing.contains(&sqid) {
            return q.park(owner.slot);
        }
        executor::moved(&mut Running { worker: self, f, owner }, result);
    }

    /// Writes the completion of a command, and counts it.
    pub(super) fn finish(&mut self, f: &mut ControllerQueues, owner: Owner, status: Status) {
        let landed = if status.is_success() { command(f, owner).land() } else { Ok(()) };
        let status = landed.err().unwrap_or(status);
        self.count(f, owner, status);
        let queue = owner.queue as usize;
        let q = &mut f.queues[queue];
        let c = &mut q.commands[usize::from(owner.slot)];
        let aborted = std::mem::take(&mut c.abort).then(|| q.cq.command(owner.slot)).flatten();
        c.memory.release();
        if let Err(fault) = q.cq.complete(&*f.map, owner.slot, status, 0) {
            report_fault(f, queue, fault);
        }
        if let Some(Fetched { sqid, sqe, .. }) = aborted {
            let aborted = status.code == Code::ABORT_REQUESTED;
            f.shared.say(ControllerEvent::Aborted { sqid, cid: sqe.cid.get(), aborted });
        }
    }

    fn count(&mut self, f: &mut ControllerQueues, owner: Owner, status: Status) {
        let now_ns = self.now_ns();
        let Queue { cq, commands, tallies, .. } = &mut f.queues[owner.queue as usize];
        let io = &commands[usize::from(owner.slot)].io;
        let fetched = cq.command(owner.slot);
        let tally = fetched.and_then(|fetched| tallies.iter_mut().find(|tally| tally.sqid == fetched.sqid));
        let Some((Fetched { sqid, sqe, .. }, tally)) = fetched.zip(tally) else {
            return io.count(&mut self.lanes, None, status, now_ns);
        };
        io.count(&mut self.lanes, Some(tally.counters()), status, now_ns);
        if !status.is_success() {
            let errors = tally.counts.errors;
            let lba = u64::from(sqe.cdw10.get()) | u64::from(sqe.cdw11.get()) << 32;
            let mishap = Mishap { sqid, cid: sqe.cid.get(), status, nsid: sqe.nsid.get(), lba };
            // A flood of failing commands says nothing new.
            if errors <= 64 || errors.is_power_of_two() {
                f.shared.say(ControllerEvent::Mishap(mishap));
            }
        }
    }

    /// The thread's queue of a namespace, opened when the first command wants it. None: there is no such namespace.
    pub(super) fn lane(&mut self, f: &mut ControllerQueues, nsid: u32) -> Result<Option<u32>, Status> {
        if let Ok(at) = f.lanes.binary_search_by_key(&nsid, |(nsid, _)| *nsid) {
            return Ok(Some(f.lanes[at].1));
        }
        let Ok(at) = f.view.binary_search_by_key(&nsid, |(nsid, _)| *nsid) else { return Ok(None) };
        let volume = f.view[at].1.volume.clone();
        let is = |lane: &Option<Lane<Owner>>| lane.as_ref().is_some_and(|l| Arc::ptr_eq(&l.volume, &volume));
        let number = match self.lanes.iter().position(is) {
            Some(number) => number,
            None => {
                let (longest, thread) = (f.shared.transfer_bytes_max, self.number as u32);
                let lane = Lane::open(volume, longest, thread, &mut self.reactor).map_err(|e| {
                    self.say(Level::Error, "source not opened", f, e.to_string());
                    Status::again(Code::NAMESPACE_NOT_READY)
                })?;
                lane::place(&mut self.lanes, lane) as usize
            }
        };
        if let Some(lane) = &mut self.lanes[number] {
            lane.retired = false;
        }
        let place = f.lanes.partition_point(|(other, _)| *other < nsid);
        f.lanes.insert(place, (nsid, number as u32));
        Ok(Some(number as u32))
    }
}

fn command(f: &mut ControllerQueues, owner: Owner) -> &mut Command {
    &mut f.queues[owner.queue as usize].commands[usize::from(owner.slot)]
}

/// Finds where a command's data lie.
fn place(f: &mut ControllerQueues, owner: Owner, sqe: &Sqe, transfer: Transfer) -> Result<(), Status> {
    let access = if matches!(transfer, Transfer::ToHost(_)) { Access::Write } else { Access::Read };
    let ControllerQueues { map, queues, page_bytes, .. } = f;
    let map = &**map;
    let c = &mut queues[owner.queue as usize].commands[usize::from(owner.slot)];
    let Memory { pieces, held, .. } = &mut c.memory;
    data::walk(map, sqe, transfer.bytes(), *page_bytes, &mut |piece| {
        let (address, bytes) = (piece.address, u64::from(piece.bytes));
        map.gather(address, piece.bytes as usize, access, pieces, held)
            .map_err(|_| Unmapped { address, bytes })
    })
}

fn unreachable_data() -> Status {
    Status::fatal(Code::DATA_TRANSFER_ERROR)
}
