//! I/O commands: from their arrival to their completion. Each is a few steps on its namespace's source.

mod answer;
mod memory;

use super::command::place;
use super::command::Command;
use super::command::Placed;
use super::command::State;
use super::connection::{Connection, Role, Stuck};
use super::log::Level;
use super::worker::Worker;
use crate::namespace::executor::{self, Front, Work};
use crate::namespace::lane::{self, Lane, Owner};
use crate::namespace::steps::{failure, scratch_bytes};
use forebay_io::queue::Fault;
use forebay_io::stream;
use forebay_nvme::command::io;
use forebay_nvme::command::FABRICS;
use forebay_nvme::log::AnaState;
use forebay_nvme::nvm::{Geometry, Op, Request, Transfer};
use forebay_nvme::status::{Code, Status};
use forebay_nvme::transport::tcp::target::Event;
use forebay_nvme::transport::tcp::{Fatal, Handle};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Receives of one connection in a row, before others have their turn.
const RECEIVES_MAX: u32 = 32;
/// Result of beginning a command.
enum Begun {
    Yes,
    /// Memory is out.
    NoMemory,
    /// Its host's limits let it through in so many ns.
    Later(u64),
}

/// A command that the source is at.
struct Running<'a> {
    worker: &'a mut Worker,
    c: &'a mut Connection,
    at: Handle,
}

impl Front for Running<'_> {
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
        let Worker { pool, lanes, reactor, .. } = &mut *self.worker;
        let Connection { commands, role, id, .. } = &mut *self.c;
        let Command { io, memory, scratch, .. } = &mut commands[self.at.0 as usize];
        Work {
            owner: Owner { connection: id.index, command: self.at },
            lane: lanes[io.lane as usize].as_mut().expect("a lane outlives its commands"),
            command: io,
            memory: Placed { memory, scratch, pool },
            reactor,
            write_cache: role.entry().is_none_or(|entry| entry.write_cache.load(Ordering::Relaxed)),
        }
    }

    fn next_cached(&self, nsid: u32) -> Option<u32> {
        let volumes = &self.worker.views[self.c.role.entry()?.subsystem.index];
        volumes.range(nsid + 1..).find(|(_, volume)| volume.write_cache).map(|(nsid, _)| *nsid)
    }

    fn lane(&mut self, nsid: u32) -> Result<Option<u32>, Status> {
        let Some(entry) = self.c.role.entry() else { return Ok(None) };
        self.worker.lane(entry.subsystem.index, nsid)
    }

    fn given_up(&mut self) -> Option<Status> {
        self.c.is_given_up(self.at).then(|| Status::again(Code::ABORT_REQUESTED))
    }

    fn failed(&mut self, request: &Request, fault: &Fault) -> Status {
        let Work { lane, .. } = self.work();
        if let Some(faults) = lane.fault() {
            let source = lane.volume.source.clone();
            let fields = [
                ("source", source.into()),
                ("op", format!("{:?}", request.op).into()),
                ("offset", request.offset.into()),
                ("bytes", request.bytes.into()),
                ("fault", fault.to_string().into()),
                ("faults", faults.into()),
            ];
            self.worker.shared.log.say(Level::Error, "source failed", &fields);
        }
        failure(request, fault)
    }

    fn complete(&mut self, status: Status) {
        self.worker.finish(self.c, self.at, status);
    }
}

impl Worker {
    /// Takes what has come on a connection.
    pub(super) fn read(&mut self, c: &mut Connection) {
        if c.stuck.is_some() {
            match self.drain(c) {
                Ok(true) => {}
                Ok(false) => return,
                Err(fatal) => return self.violated(c, fatal),
            }
        }
        for _ in 0..RECEIVES_MAX {
            if !c.listens() {
                return;
            }
            let (commands, pool) = (&c.commands, &self.pool);
            let received = c.link.receive(&mut self.reactor, &|at| place(commands, pool, at));
            if c.link.is_owed() {
                self.soil_this(c);
            }
            match received {
                Ok(stream::Received::Some) => {}
                Ok(stream::Received::Later) => return,
                Ok(stream::Received::Ended) => return self.end(c, "the host closed the connection"),
                Err(e) => return self.lost(c, &e),
            }
            match self.drain(c) {
                Ok(true) => {}
                Ok(false) => return,
                Err(fatal) => return self.violated(c, fatal),
            }
        }
        self.touch_this(c);
    }

    /// Acts on what was received. False: a command that came with data found no memory for them.
    fn drain(&mut self, c: &mut Connection) -> Result<bool, Fatal> {
        if let Some(stuck) = c.stuck.take() {
            if !self.arrived(c, stuck) {
                return Ok(false);
            }
        }
        loop {
            match c.link.next()? {
                None => return Ok(true),
                Some(Event::Ready { header_digest, data_digest }) => {
                    (c.header_digest, c.data_digest) = (header_digest, data_digest);
                    self.soil_this(c);
                }
                Some(Event::Command { command, sqe, in_capsule }) => {
                    if !self.arrived(c, Stuck { command, sqe, in_capsule }) {
                        return Ok(false);
                    }
                }
                Some(Event::Placed(at)) => {
                    c.data_at = self.now;
                    self.leave_rest(c, at.command);
                }
                Some(Event::Copy { place: at, bytes }) => {
                    stream::fill(place(&c.commands, &self.pool, at), bytes);
                    c.data_at = self.now;
                    self.leave_rest(c, at.command);
                }
                Some(Event::DataEnd { place: at, digest }) => {
                    let found = stream::digest(0, place(&c.commands, &self.pool, at), at.len);
                    if found != digest {
                        self.spoilt(c, at.command);
                    }
                }
                Some(Event::DataComplete { command }) => self.collected(c, command),
            }
        }
    }

    /// A command came. False: it waits in `stuck`.
    fn arrived(&mut self, c: &mut Connection, came: Stuck) -> bool {
        let began_ns = self.now_ns();
        let command = c.command(came.command);
        *command = Command { sqe: came.sqe, ..Command::default() };
        command.io.restart(began_ns);
        let Role::Io { entry, .. } = &c.role else {
            self.admin_command(c, came);
            return true;
        };
        if !entry.traffic.load(Ordering::Relaxed) {
            entry.traffic.store(true, Ordering::Relaxed);
        }
        if came.sqe.opcode == FABRICS {
            self.fabrics_command(c, came);
            return true;
        }
        let subsystem = entry.subsystem.index;
        if c.is_locked() {
            self.admin_command(c, came);
            return true;
        }
        let taken = self.io_command(c, came, subsystem);
        if !taken {
            c.stuck = Some(came);
            self.want_turn(c);
        }
        taken
    }

    fn io_command(&mut self, c: &mut Connection, came: Stuck, subsystem: usize) -> bool {
        let Stuck { command: at, sqe, in_capsule } = came;
        if self.draining {
            self.leave_unanswered(c, at, in_capsule);
            return true;
        }
        if sqe.opcode == io::FLUSH && sqe.nsid.get() == u32::MAX {
            c.command(at).io.flush_everything();
            return self.begin_now(c, at);
        }
        let lane = match self.lane(subsystem, sqe.nsid.get()) {
            Ok(lane) => lane,
            Err(status) => {
                self.finish(c, at, status);
                return true;
            }
        };
        let lane_there = lane.and_then(|lane| self.lanes[lane as usize].as_ref());
        let ana = c.role.entry().map_or(AnaState::Optimized, |entry| entry.reaches(sqe.nsid.get()));
        let geometry = lane_there.map(|lane| Geometry { ana, ..lane.geometry });
        let request = match Request::parse(&sqe, geometry.as_ref(), in_capsule) {
            Ok(Request { op: Op::DatasetManagement { deallocate: false, .. }, .. }) => {
                self.finish(c, at, Status::SUCCESS);
                return true;
            }
            Ok(request) => request,
            Err(status) => {
                self.finish(c, at, status);
                return true;
            }
        };
        let command = c.command(at);
        (command.io.request, command.io.lane) = (Some(request), lane.unwrap_or(0));
        match request.transfer {
            Transfer::InCapsule(bytes) => self.hold_capsule(c, at, request, bytes),
            _ => self.begin_now(c, at),
        }
    }

    /// Begins, unless others wait before it.
    fn begin_now(&mut self, c: &mut Connection, at: Handle) -> bool {
        if c.waiting.is_empty() && self.turns.is_empty() {
            match self.begin(c, at) {
                Begun::Yes => return true,
                Begun::NoMemory => self.wait_for_turn(c, at),
                Begun::Later(ns) => {
                    self.park(c, ns);
                    self.wait_for_turn(c, at);
                }
            }
        } else {
            self.wait_for_turn(c, at);
        }
        true
    }

    fn wait_for_turn(&mut self, c: &mut Connection, at: Handle) {
        c.command(at).state = State::Waiting;
        c.waiting.push_back(at);
        if !c.parked {
            self.want_turn(c);
        }
    }

    fn park(&mut self, c: &mut Connection, ns: u64) {
        c.parked = true;
        self.arm(c, self.now + Duration::from_nanos(ns));
    }

    pub(super) fn want_turn(&mut self, c: &mut Connection) {
        if !std::mem::replace(&mut c.in_turn, true) {
            self.turns.push_back(c.id.index);
        }
        self.freed = true;
    }

    /// Lets waiting commands begin, one of each connection in turn, while there is memory.
    pub(super) fn take_turns(&mut self) {
        let mut refused = 0;
        while let Some(index) = self.turns.pop_front() {
            let mut went = true;
            self.with(index, |worker, c| {
                c.in_turn = false;
                if c.closing {
                    return;
                }
                went = worker.take_turn(c);
                let waits = !c.parked && (!c.waiting.is_empty() || c.stuck.is_some());
                if waits && !std::mem::replace(&mut c.in_turn, true) {
                    worker.turns.push_back(index);
                }
            });
            refused = if went { 0 } else { refused + 1 };
            if refused > self.turns.len() {
                break;
            }
        }
    }

    /// False: memory was refused.
    fn take_turn(&mut self, c: &mut Connection) -> bool {
        if c.stuck.is_some() {
            self.read(c);
            return c.stuck.is_none();
        }
        let Some(at) = c.waiting.front().copied() else { return true };
        match self.begin(c, at) {
            Begun::Yes => {
                c.waiting.pop_front();
                true
            }
            Begun::NoMemory => false,
            Begun::Later(ns) => {
                self.park(c, ns);
                true
            }
        }
    }

    /// Counts a command against its host's limits, and gives it what memory it needs.
    fn begin(&mut self, c: &mut Connection, at: Handle) -> Begun {
        let command = &c.commands[at.0 as usize];
        let request = command.io.request.expect("only I/O commands begin");
        if c.limited && !command.is_charged {
            let entry = c.role.entry().expect("an I/O queue has a controller");
            if let Err(wait) = entry.host.enter(u64::from(request.transfer.bytes()), self.now_ns()) {
                return Begun::Later(wait);
            }
            c.commands[at.0 as usize].is_charged = true;
        }
        if !self.equip(c, at, request) {
            return Begun::NoMemory;
        }
        let command = c.command(at);
        match request.transfer {
            Transfer::FromHost(bytes) if !command.has_data => {
                command.state = State::Collecting;
                c.collects(self.now);
                c.link.request(at, bytes);
                self.want_sweep();
                self.soil_this(c);
            }
            _ => self.start(c, at),
        }
        Begun::Yes
    }

    /// A command's data are all here.
    fn collected(&mut self, c: &mut Connection, at: Handle) {
        let command = c.command(at);
        if command.state != State::Collecting {
            return; // Left unanswered.
        }
        command.has_data = true;
        c.collecting -= 1;
        match c.command(at).io.request {
            None => self.execute(c, at),
            // It still lacks what it reads into.
            Some(request)
                if matches!(request.transfer, Transfer::InCapsule(_)) && scratch_bytes(&request) > 0 =>
            {
                self.begin_now(c, at);
            }
            Some(request) => {
                // Holding memory that others wait for, it never waits itself: what it costs is paid for later.
                if c.limited && !std::mem::replace(&mut c.command(at).is_charged, true) {
                    let entry = c.role.entry().expect("an I/O queue has a controller");
                    entry.host.charge(u64::from(request.transfer.bytes()), self.now_ns());
                }
                self.start(c, at);
            }
        }
    }

    /// A data digest was wrong: what came isn't what was sent, and a retry may go well (tcp, section 3.3.1.1).
    fn spoilt(&mut self, c: &mut Connection, at: Handle) {
        if c.command(at).state == State::Collecting {
            c.collecting -= 1;
            self.shared.log.say(Level::Warning, "data digest wrong", &[("peer", c.peer.to_string().into())]);
            self.finish(c, at, Status::again(Code::TRANSIENT_TRANSPORT_ERROR));
        }
    }

    fn start(&mut self, c: &mut Connection, at: Handle) {
        c.command(at).state = State::Running;
        c.running += 1;
        executor::proceed(&mut Running { worker: self, c, at });
    }

    /// The source is done with a step.
    pub(super) fn moved(&mut self, c: &mut Connection, at: Handle, result: Result<u32, Fault>) {
        if at == super::admin::SHUTDOWN {
            return self.shut_down_step(c);
        }
        if c.closing {
            c.running -= 1;
            c.command(at).state = State::Left;
            return;
        }
        executor::moved(&mut Running { worker: self, c, at }, result);
    }

    /// The thread's queue of a namespace, opened when the first command wants it. None: there is no such namespace.
    pub(super) fn lane(&mut self, subsystem: usize, nsid: u32) -> Result<Option<u32>, Status> {
        if let Some(lane) = self.lane_of[subsystem].get(&nsid) {
            return Ok(Some(*lane));
        }
        let Some(volume) = self.views[subsystem].get(&nsid).cloned() else { return Ok(None) };
        let longest = self.shared.config.max_transfer.0 as u32;
        let source = volume.source.clone();
        let lane = Lane::open(volume, longest, self.number as u32, &mut self.reactor).map_err(|e| {
            let fields = [("source", source.into()), ("why", e.to_string().into())];
            self.shared.log.say(Level::Error, "source not opened", &fields);
            Status::again(Code::NAMESPACE_NOT_READY)
        })?;
        let number = lane::place(&mut self.lanes, lane);
        self.lane_of[subsystem].insert(nsid, number);
        Ok(Some(number))
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.now.saturating_duration_since(self.shared.began).as_nanos() as u64
    }
}
