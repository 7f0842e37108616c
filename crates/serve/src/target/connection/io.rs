//! I/O commands: from their arrival to their completion. Each is a few steps on its namespace's source.

use super::super::arena::ScratchBuffer;
use super::super::command::{Command, CommandState, Memory, Placed};
use super::super::controller::Role;
use super::super::log::Level;
use super::super::resources::ThreadResources;
use super::{Arrival, Connection};
use crate::namespace::executor::{self, Frontend, Work};
use crate::namespace::namespace_queue::Owner;
use crate::namespace::stats::Counters;
use crate::namespace::steps::{failure, scratch_bytes};
use forebay_io::Fault;
use forebay_nvme::command::{io, Cqe};
use forebay_nvme::controller::Mishap;
use forebay_nvme::log::AnaState;
use forebay_nvme::nvm::{Geometry, Op, Request, Transfer};
use forebay_nvme::status::{Code, Status};
use forebay_nvme::transport::tcp::Handle;
use std::sync::atomic::Ordering;

/// Result of beginning a command.
pub(super) enum Begun {
    Yes,
    /// Memory is out.
    NoMemory,
    /// Its host's limits let it through in so many ns.
    Later(u64),
}

/// A command of an I/O queue, with the connection that it came by and the thread that carries it out. Its state is the
/// connection's, so that one is made for each thing that happens to the command.
pub(super) struct IoCommand<'a> {
    pub c: &'a mut Connection,
    pub thread: &'a mut ThreadResources,
    pub at: Handle,
}

impl Frontend for IoCommand<'_> {
    type Owner = Owner;
    type Memory<'m>
        = Placed<'m>
    where
        Self: 'm;
    type End = Status;

    fn command(&mut self) -> &mut executor::Command {
        &mut self.c.commands[self.at.0 as usize].io
    }

    fn work(&mut self) -> Work<'_, Owner, Placed<'_>> {
        let ThreadResources { memory: shared, queues, reactor, .. } = &mut *self.thread;
        let Connection { commands, role, id, .. } = &mut *self.c;
        let Command { io, memory, scratch, .. } = &mut commands[self.at.0 as usize];
        Work {
            owner: Owner { connection: id.index, command: self.at },
            queue: queues.get_mut(io.queue).expect("a namespace's queue outlives its commands"),
            command: io,
            memory: Placed { memory, scratch, pool: &shared.pool },
            reactor,
            write_cache: role.entry().is_none_or(|entry| entry.write_cache.load(Ordering::Relaxed)),
        }
    }

    fn next_cached(&self, nsid: u32) -> Option<u32> {
        self.thread.queues.next_cached(self.c.role.entry()?.subsystem, nsid)
    }

    fn queue(&mut self, nsid: u32) -> Result<Option<u32>, Status> {
        let Some(entry) = self.c.role.entry() else { return Ok(None) };
        self.thread.queues.open(entry.subsystem, nsid, &mut self.thread.reactor)
    }

    fn given_up(&mut self) -> Option<Status> {
        self.c.aborts.contain(self.at).then(|| Status::again(Code::ABORT_REQUESTED))
    }

    fn failed(&mut self, request: &Request, fault: &Fault) -> Status {
        let Work { queue, .. } = self.work();
        if let Some(faults) = queue.fault() {
            let source = queue.volume.source.clone();
            let fields = [
                ("source", source.into()),
                ("op", format!("{:?}", request.op).into()),
                ("offset", request.offset.into()),
                ("bytes", request.bytes.into()),
                ("fault", fault.to_string().into()),
                ("faults", faults.into()),
            ];
            self.thread.shared.log.say(Level::Error, "source failed", &fields);
        }
        failure(request, fault)
    }

    fn complete(&mut self, status: Status) {
        self.finish(status);
    }
}

impl IoCommand<'_> {
    #[inline]
    fn state(&mut self) -> &mut Command {
        self.c.command(self.at)
    }

    /// It came. False: there is no memory for the data that came with it.
    pub(super) fn came(&mut self, came: Arrival, subsystem: usize) -> bool {
        let Arrival { sqe, in_capsule, .. } = came;
        if self.thread.draining {
            self.leave_unanswered(in_capsule);
            return true;
        }
        if sqe.opcode == io::FLUSH && sqe.nsid.get() == u32::MAX {
            self.state().io.flush_everything();
            self.begin_or_wait();
            return true;
        }
        let nsid = sqe.nsid.get();
        let number = match self.thread.queues.open(subsystem, nsid, &mut self.thread.reactor) {
            Ok(number) => number,
            Err(status) => {
                self.finish(status);
                return true;
            }
        };
        let queue = number.and_then(|number| self.thread.queues.get(number));
        let ana = self.c.role.entry().map_or(AnaState::Optimized, |entry| entry.reaches(nsid));
        let geometry = queue.map(|queue| Geometry { ana, ..queue.geometry });
        let request = match Request::parse(&sqe, geometry.as_ref(), in_capsule) {
            Ok(Request { op: Op::DatasetManagement { deallocate: false, .. }, .. }) => {
                self.finish(Status::SUCCESS);
                return true;
            }
            Ok(request) => request,
            Err(status) => {
                self.finish(status);
                return true;
            }
        };
        let command = self.state();
        (command.io.request, command.io.queue) = (Some(request), number.unwrap_or(0));
        match request.transfer {
            Transfer::InCapsule(bytes) => self.collect_capsule(request.op, bytes),
            _ => {
                self.begin_or_wait();
                true
            }
        }
    }

    /// It came while the server drains: the host sends it again elsewhere.
    fn leave_unanswered(&mut self, in_capsule: u32) {
        let command = self.state();
        command.state = CommandState::Left;
        if in_capsule > 0 {
            command.memory = Memory::Own(ScratchBuffer::new(in_capsule as usize));
        }
    }

    /// Its data come with it. False: there is no memory for them now.
    fn collect_capsule(&mut self, op: Op, bytes: u32) -> bool {
        let memory = self.thread.memory.for_capsule(&mut self.c.memory, op, bytes);
        let Some(memory) = memory else { return false };
        let command = self.state();
        (command.memory, command.state) = (memory, CommandState::Collecting);
        self.c.collects(self.thread);
        true
    }

    /// Begins, unless others wait before it.
    fn begin_or_wait(&mut self) {
        if self.c.waiting.is_empty() && self.thread.memory.line_len() == 0 {
            match self.begin() {
                Begun::Yes => return,
                Begun::NoMemory => {}
                Begun::Later(ns) => self.c.park(self.thread, ns),
            }
        }
        self.c.wait_for_turn(self.thread, self.at);
    }

    /// Counts it against its host's limits, and gives it what memory it needs.
    pub(super) fn begin(&mut self) -> Begun {
        let now_ns = self.thread.now_ns();
        let command = &mut self.c.commands[self.at.0 as usize];
        let request = command.io.request.expect("only I/O commands begin");
        if self.c.limited && !command.is_charged {
            let entry = self.c.role.entry().expect("an I/O queue has a controller");
            if let Err(wait) = entry.host.enter(u64::from(request.transfer.bytes()), now_ns) {
                return Begun::Later(wait);
            }
            command.is_charged = true;
        }
        let from = self.c.sends_from();
        let command = &mut self.c.commands[self.at.0 as usize];
        let ThreadResources { memory, queues, .. } = &mut *self.thread;
        if !memory.equip(&mut self.c.memory, command, queues.get_mut(command.io.queue), from) {
            return Begun::NoMemory;
        }
        match request.transfer {
            Transfer::FromHost(bytes) if !command.has_data => {
                command.state = CommandState::Collecting;
                self.c.collects(self.thread);
                self.c.link.request(self.at, bytes);
                self.thread.ready.mark_dirty(self.c.id.index, &mut self.c.marks);
            }
            _ => self.start(),
        }
        Begun::Yes
    }

    /// Its data are all here.
    pub(super) fn collected(&mut self) {
        let request = self.state().io.request.expect("an I/O command was checked as it came");
        // It still lacks what it reads into.
        if matches!(request.transfer, Transfer::InCapsule(_)) && scratch_bytes(&request) > 0 {
            return self.begin_or_wait();
        }
        // Holding memory that others wait for, it never waits itself: what it costs is paid for later.
        if self.c.limited && !std::mem::replace(&mut self.state().is_charged, true) {
            let entry = self.c.role.entry().expect("an I/O queue has a controller");
            entry.host.charge(u64::from(request.transfer.bytes()), self.thread.now_ns());
        }
        self.start();
    }

    fn start(&mut self) {
        self.state().state = CommandState::Running;
        self.c.running += 1;
        executor::proceed(self);
    }

    /// The source is done with a step.
    pub(super) fn moved(&mut self, result: Result<u32, Fault>) {
        executor::moved(self, result);
    }

    /// Asks the source to let go of it.
    pub(super) fn cancel(&mut self) {
        let whose = Owner { connection: self.c.id.index, command: self.at };
        let number = self.state().io.queue;
        let Some(queue) = self.thread.queues.get_mut(number) else { return };
        for _ in queue.abandon(|owner| *owner == whose, &mut self.thread.reactor) {
            self.moved(Err(Fault::errno(libc::ECANCELED)));
        }
    }

    /// Completes it, when nobody moves bytes of it any more.
    pub(super) fn give_up(&mut self) {
        let at = self.at;
        match self.state().state {
            CommandState::Collecting => self.c.collecting -= 1,
            CommandState::Waiting => self.c.waiting.retain(|waiting| *waiting != at),
            _ => {}
        }
        self.finish(Status::again(Code::ABORT_REQUESTED));
    }

    /// Answers it, counts it, and frees what its answer doesn't need.
    pub(super) fn finish(&mut self, status: Status) {
        let at = self.at;
        self.count(status);
        if !self.c.aborts.is_empty() {
            let aborted = status.code == Code::ABORT_REQUESTED;
            self.c.answer_aborts(&self.thread.shared, |given_up| given_up == at, aborted);
        }
        let command = self.state();
        let (request, cid) = (command.io.request, command.sqe.cid.get());
        if command.state == CommandState::Running {
            self.c.running -= 1;
        }
        let cqe = Cqe::new(cid, status, 0);
        match request {
            Some(Request { op: Op::Read, bytes, .. }) if status.is_success() => {
                self.state().state = CommandState::Answering;
                self.c.link.answer(at, bytes as u32, cqe);
                self.thread.timers.want_sweep(self.thread.now);
            }
            _ => {
                self.c.link.complete(at, cqe);
                self.c.free(self.thread, at);
            }
        }
        self.thread.ready.mark_dirty(self.c.id.index, &mut self.c.marks);
    }

    fn count(&mut self, status: Status) {
        let now_ns = self.thread.now_ns();
        let Connection { commands, role, counts, read_latency, write_latency, .. } = &mut *self.c;
        let command = &commands[self.at.0 as usize];
        let queue = Counters { counts, read_latency, write_latency };
        command.io.count(self.thread.queues.as_mut_slice(), Some(queue), status, now_ns);
        if let (false, Role::Io { entry, qid }) = (status.is_success(), role) {
            entry.controller().record(Mishap::from_status(*qid, &command.sqe, status));
        }
    }
}
