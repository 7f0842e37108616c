//! Connect, admin commands, and how connections and controllers end.

use super::arena::Lump;
use super::command::{Memory, State};
use super::connection::{Connection, Role, Stuck};
use super::log::Level;
use super::mail::{Letter, Report};
use super::refusals;
use super::site::{Cell, Seat, Subsystem};
use super::stats::{ControllerStats, HostStats, QueueStats};
use super::worker::Worker;
use crate::namespace::health;
use crate::namespace::lane::{Lane, Owner};
use crate::namespace::steps::FLUSH;
use forebay_nvme::command::{admin, Cqe, FABRICS};
use forebay_nvme::controller::connect::{host_name, Admitted, Connect, Refusal};
use forebay_nvme::controller::{self, Answer, Controller, Effect, Health};
use forebay_nvme::fabrics;
use forebay_nvme::status::{Code, Status};
use forebay_nvme::transport::tcp::{Fatal, Handle};
use std::io;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

/// Stands for the flushes of a shutdown among the commands of an admin queue.
pub(super) const SHUTDOWN: Handle = Handle(u16::MAX);
/// Time for a peer to read why its connection ends.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Log identifier of SMART / Health (base, figure 202).
const SMART: u32 = 0x02;

impl Worker {
    /// A command of the admin queue, or the first of any queue: its data are collected first.
    pub(super) fn admin_command(&mut self, c: &mut Connection, came: Stuck) {
        let Stuck { command: at, sqe, in_capsule } = came;
        let is_connect = sqe.opcode == FABRICS && fabrics::command_type(&sqe) == fabrics::fctype::CONNECT;
        if matches!(c.role, Role::New) && !is_connect {
            return self.execute(c, at);
        }
        let bytes = match controller::data_out(&sqe) {
            Ok(bytes) if in_capsule > 0 && in_capsule != bytes => {
                return self.answer(c, at, Answer::Complete(refused(&sqe, Code::DATA_SGL_LENGTH_INVALID)));
            }
            Ok(bytes) => bytes,
            Err(status) => return self.answer(c, at, Answer::Complete(Cqe::new(sqe.cid.get(), status, 0))),
        };
        if bytes == 0 {
            return self.execute(c, at);
        }
        let command = c.command(at);
        (command.memory, command.state) = (Memory::Lump(Lump::new(bytes as usize)), State::Collecting);
        c.collects(self.now);
        self.want_sweep();
        if in_capsule == 0 {
            c.link.request(at, bytes);
            self.soil_this(c);
        }
    }

    /// A Fabrics command on an I/O queue.
    pub(super) fn fabrics_command(&mut self, c: &mut Connection, came: Stuck) {
        if c.must_authenticate {
            return self.admin_command(c, came);
        }
        let answer = controller::fabrics_on_io_queue(&came.sqe, false);
        self.answer(c, came.command, answer);
    }

    /// An admin command whose data are here.
    pub(super) fn execute(&mut self, c: &mut Connection, at: Handle) {
        match c.role.clone() {
            Role::New => self.connect(c, at),
            Role::Admin(cell) => {
                let command = &c.commands[at.0 as usize];
                let is_smart =
                    command.sqe.opcode == admin::GET_LOG_PAGE && command.sqe.cdw10.get() & 0xff == SMART;
                let health = is_smart.then(|| self.health(&cell.subsystem));
                let data = command.memory.bytes(&self.pool, controller::ADMIN_DATA_MAX as usize);
                let answer = {
                    let mut controller = cell.controller();
                    if let Some(health) = health {
                        controller.set_health(health);
                    }
                    if command.sqe.opcode == admin::SET_FEATURES {
                        refusals::limit_queues(&mut controller, &cell.host);
                    }
                    controller.execute(at.0, &command.sqe, data, self.now_ms())
                };
                self.answer(c, at, answer);
                self.apply_effects(c);
                self.check_keep_alive(c);
            }
            Role::Io { .. } => {
                // Only queues that must authenticate collect their commands' data as an admin queue does.
                let sqe = c.command(at).sqe;
                let answer = match sqe.opcode {
                    FABRICS => controller::fabrics_on_io_queue(&sqe, c.must_authenticate),
                    _ => Answer::Complete(refused(&sqe, Code::AUTHENTICATION_REQUIRED)),
                };
                self.answer(c, at, answer);
            }
        }
    }

    fn answer(&mut self, c: &mut Connection, at: Handle, answer: Answer) {
        match answer {
            Answer::Complete(cqe) => {
                c.counts.errors += u64::from(!cqe.status().is_success());
                c.link.complete(at, cqe);
                self.free(c, at);
            }
            Answer::Data { data, cqe } => {
                let len = data.len() as u32;
                let command = c.command(at);
                (command.memory, command.state) = (Memory::Lump(Lump::of(data)), State::Answering);
                c.link.answer(at, len, cqe);
                self.want_sweep();
            }
            Answer::Parked => {
                let command = c.command(at);
                command.state = State::Parked;
                if command.sqe.opcode == admin::ASYNC_EVENT_REQUEST {
                    c.link.keep_event_request(at);
                }
            }
            Answer::Authenticate => {
                let answer = self.authenticate(c, at);
                return self.answer(c, at, answer);
            }
            Answer::Close(cqe) => {
                c.link.complete(at, cqe);
                self.free(c, at);
                c.last_words = true;
            }
        }
        self.soil_this(c);
    }

    fn connect(&mut self, c: &mut Connection, at: Handle) {
        let command = &c.commands[at.0 as usize];
        let (sqe, data) = (command.sqe, command.memory.bytes(&self.pool, 1024));
        let keyed = c.link.is_keyed();
        let connect = Connect::parse(&sqe, data).map(|connect| Connect { keyed, ..connect });
        let admitted = match connect {
            Ok(connect) => {
                self.admit(c, &connect).inspect_err(|r| self.say_refused(c, host_name(&connect.host_nqn), r))
            }
            Err(refusal) => {
                self.say_refused(c, "", &refusal);
                Err(refusal)
            }
        };
        let cqe = match admitted {
            Ok(admitted) => {
                c.depth = admitted.entries;
                c.link.set_depth(admitted.entries, !admitted.no_flow_control);
                admitted.completion(sqe.cid.get())
            }
            Err(refusal) => refusal.completion(sqe.cid.get()),
        };
        self.answer(c, at, Answer::Complete(cqe));
        self.check_keep_alive(c);
    }

    fn admit(&mut self, c: &mut Connection, connect: &Connect) -> Result<Admitted, Refusal> {
        if self.draining || self.site.draining.load(Ordering::Relaxed) {
            return Err(connect.busy("the target is shutting down"));
        }
        let subsystem =
            self.site.subsystem(&connect.subsystem_nqn).ok_or_else(|| connect.no_subsystem())?.clone();
        self.came_as_it_must(c, connect)?;
        let admitted = match connect.qid {
            0 => self.admit_admin(c, connect, &subsystem),
            _ => self.admit_io(c, connect, &subsystem),
        }?;
        c.must_authenticate = admitted.authentication;
        if admitted.authentication {
            self.lock(c, connect);
        }
        let cell = c.role.cell().expect("it was just given one");
        let limits = cell.host.limits;
        c.limited = limits.rate.is_some() || limits.iops.is_some() || limits.bytes_in_flight.is_some();
        self.site.log.say(
            Level::Info,
            "connected",
            &[
                ("peer", c.peer.to_string().into()),
                ("host", host_name(&connect.host_nqn).into()),
                ("subsystem", subsystem.nqn.clone().into()),
                ("cntlid", cell.id.into()),
                ("qid", admitted.qid.into()),
                ("entries", admitted.entries.into()),
                ("hdgst", c.header_digest.into()),
                ("ddgst", c.data_digest.into()),
            ],
        );
        Ok(admitted)
    }

    fn admit_admin(
        &mut self,
        c: &mut Connection,
        connect: &Connect,
        subsystem: &Arc<Subsystem>,
    ) -> Result<Admitted, Refusal> {
        let discovery = subsystem.is_discovery().then(|| self.site.discovery_at(c.local));
        let cntlid =
            subsystem.state().ids.take().ok_or_else(|| self.over(connect, refusals::NO_IDS.into()))?;
        let mut state = subsystem.state();
        let nvme = discovery.unwrap_or_else(|| state.access.seen_from(c.local, &state.nvme));
        let (controller, admitted) =
            Controller::connect(nvme, connect, cntlid, self.now_ms()).inspect_err(|_| {
                state.ids.give_back(cntlid);
            })?;
        let host = subsystem.host(&mut state, &connect.host_nqn, &self.site.config);
        if !host.joins() {
            state.ids.give_back(cntlid);
            return Err(self.over(connect, refusals::of_host(&host)));
        }
        let mut controller = controller;
        refusals::limit_queues(&mut controller, &host);
        let cell = Arc::new(Cell::new(subsystem.clone(), host, (c.seat, c.local), controller));
        state.controllers.insert(cntlid, cell.clone());
        c.role = Role::Admin(cell);
        Ok(admitted)
    }

    fn admit_io(
        &mut self,
        c: &mut Connection,
        connect: &Connect,
        subsystem: &Arc<Subsystem>,
    ) -> Result<Admitted, Refusal> {
        let cell = subsystem.state().controllers.get(&connect.cntlid).cloned();
        let cell = cell.ok_or_else(|| connect.no_controller())?;
        let admitted = cell.controller().connect_io(connect, self.now_ms())?;
        let mut queues = cell.queues();
        let refusal = match cell.gone.load(Ordering::Relaxed) {
            true => Some(connect.no_controller()),
            false => (!cell.host.joins()).then(|| self.over(connect, refusals::of_host(&cell.host))),
        };
        if let Some(refusal) = refusal {
            drop(queues);
            cell.controller().disconnect_io(connect.qid);
            return Err(refusal);
        }
        queues.insert(connect.qid, c.seat);
        drop(queues);
        c.role = Role::Io { cell, qid: connect.qid };
        Ok(admitted)
    }

    /// Applies effects of commands beyond their answers.
    pub(super) fn apply_effects(&mut self, c: &mut Connection) {
        let Role::Admin(cell) = c.role.clone() else { return };
        loop {
            let effect = cell.controller().next_effect();
            match effect {
                None => break,
                Some(Effect::Complete { tag, cqe }) => {
                    if c.command(Handle(tag)).state == State::Parked {
                        self.answer(c, Handle(tag), Answer::Complete(cqe));
                    }
                }
                Some(Effect::CloseIoQueues) => self.close_queues(&cell, "the controller was reset"),
                Some(Effect::ShutDown) => self.shut_down(c, &cell),
                Some(Effect::WriteCache { enabled }) => cell.write_cache.store(enabled, Ordering::Relaxed),
                Some(Effect::Abort { tag, sqid, cid }) => self.ask_to_abort(&cell, tag, sqid, cid),
            }
        }
        if self.draining {
            self.leave_if_idle(c);
        }
    }

    fn close_queues(&self, cell: &Cell, why: &'static str) {
        let seats: Vec<Seat> = cell.queues().values().copied().collect();
        for seat in seats {
            self.site.mailboxes()[seat.thread].post(Letter::Close(seat, why));
        }
    }

    /// Everything that hosts wrote to the subsystem is made durable; then the controller says that it is shut down.
    fn shut_down(&mut self, c: &mut Connection, cell: &Cell) {
        self.close_queues(cell, "the host shut the controller down");
        let subsystem = cell.subsystem.index;
        let volumes = self.views[subsystem].clone();
        let owner = Owner { connection: c.seat.index, command: SHUTDOWN };
        for (nsid, _) in volumes.iter().filter(|(_, v)| v.write_cache) {
            if let Ok(Some(lane)) = self.lane(subsystem, *nsid) {
                c.flushes += 1;
                c.running += 1;
                let lane = self.lanes[lane as usize].as_mut().expect("it was just found");
                lane.start(owner, FLUSH, &mut self.reactor);
            }
        }
        if c.flushes == 0 {
            cell.controller().shut_down_complete();
        }
    }

    pub(super) fn shut_down_step(&mut self, c: &mut Connection) {
        c.running -= 1;
        c.flushes -= 1;
        if c.flushes == 0 && !c.closing {
            if let Role::Admin(cell) = c.role.clone() {
                cell.controller().shut_down_complete();
                self.apply_effects(c);
            }
        }
    }

    /// Ends the controller if its host has kept silent for too long, or says when to look again.
    pub(super) fn check_keep_alive(&mut self, c: &mut Connection) {
        let Role::Admin(cell) = c.role.clone() else { return };
        let now_ms = self.now_ms();
        let deadline = {
            let mut controller = cell.controller();
            let due = controller.deadline_ms().is_some_and(|deadline| deadline <= now_ms);
            if due && controller.tick(cell.traffic.swap(false, Ordering::Relaxed), now_ms) {
                None
            } else {
                Some(controller.deadline_ms())
            }
        };
        match deadline {
            None => self.break_off(c, "the host sent nothing (keep-alive timeout)"),
            Some(Some(ms)) => {
                let at = self.site.began + Duration::from_millis(ms + 1);
                self.arm(c, at);
            }
            Some(None) => {}
        }
    }

    /// The peer broke the protocol: it is told so, and the connection ends.
    pub(super) fn violated(&mut self, c: &mut Connection, fatal: Fatal) {
        let who = if fatal.by_peer { "terminated by host" } else { "protocol violated" };
        self.site.totals.broken.fetch_add(1, Ordering::Relaxed);
        self.site.log.say(
            Level::Warning,
            who,
            &[("peer", c.peer.to_string().into()), ("why", fatal.to_string().into())],
        );
        if fatal.by_peer {
            return self.end(c, "");
        }
        let until = self.now + LAST_WORDS;
        c.lingers_until = Some(until);
        self.arm(c, until);
        self.soil_this(c);
    }

    pub(super) fn lost(&mut self, c: &mut Connection, error: &io::Error) {
        self.site.totals.broken.fetch_add(1, Ordering::Relaxed);
        let why = match error.raw_os_error() {
            Some(libc::EFAULT) => "a served file was truncated while the kernel sent from it".to_owned(),
            _ => error.to_string(),
        };
        let fields = [("peer", c.peer.to_string().into()), ("why", why.into())];
        self.site.log.say(Level::Info, "connection lost", &fields);
        self.end(c, "");
    }

    pub(super) fn break_off(&mut self, c: &mut Connection, why: &'static str) {
        self.site.totals.broken.fetch_add(1, Ordering::Relaxed);
        let fields = [("peer", c.peer.to_string().into()), ("why", why.into())];
        self.site.log.say(Level::Warning, "broken off", &fields);
        self.end(c, "");
    }

    /// Ends a connection, and with an admin queue its controller. It stays until nothing points to it.
    pub(super) fn end(&mut self, c: &mut Connection, why: &'static str) {
        if std::mem::replace(&mut c.closing, true) {
            return;
        }
        c.link.close(&mut self.reactor);
        c.waiting.clear();
        c.stuck = None;
        self.answer_aborts(c, |_| true, false);
        for lane in self.lanes.iter_mut().flatten() {
            let index = c.seat.index;
            for owner in lane.abandon(|owner| owner.connection == index, &mut self.reactor) {
                c.running -= 1;
                c.flushes -= u32::from(owner.command == SHUTDOWN);
            }
        }
        match c.role.clone() {
            Role::New => return,
            Role::Admin(cell) => self.end_controller(&cell),
            Role::Io { cell, qid } => {
                cell.controller().disconnect_io(qid);
                cell.queues().remove(&qid);
                cell.host.connections.fetch_sub(1, Ordering::Relaxed);
                if self.draining {
                    self.site.mailboxes()[cell.admin.thread].post(Letter::Effects(cell.admin));
                }
            }
        }
        let cell = c.role.cell().expect("it has a role");
        let mut fields = vec![
            ("peer", c.peer.to_string().into()),
            ("host", host_name(&cell.host.nqn).into()),
            ("cntlid", cell.id.into()),
            ("qid", c.qid().into()),
        ];
        if !why.is_empty() {
            fields.push(("why", why.into()));
        }
        self.site.log.say(Level::Info, "disconnected", &fields);
    }

    fn end_controller(&mut self, cell: &Arc<Cell>) {
        let seats: Vec<Seat> = {
            let queues = cell.queues();
            cell.gone.store(true, Ordering::Relaxed);
            queues.values().copied().collect()
        };
        for seat in seats {
            self.site.mailboxes()[seat.thread].post(Letter::Close(seat, "its admin queue is gone"));
        }
        let mut state = cell.subsystem.state();
        state.controllers.remove(&cell.id);
        state.ids.give_back(cell.id);
        drop(state);
        cell.host.connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// While draining: a connection goes once nothing is under way on it; an admin queue after its I/O queues.
    pub(super) fn leave_if_idle(&mut self, c: &mut Connection) {
        let last = match &c.role {
            Role::Admin(cell) => cell.queues().is_empty(),
            _ => true,
        };
        if !c.closing && last && c.is_idle() && c.link.is_sent() {
            self.end(c, "the server drains");
        }
    }

    /// Returns the health counters of this subsystem.
    fn health(&self, subsystem: &Subsystem) -> Health {
        let volumes = self.views[subsystem.index].values();
        Health { power_on_hours: u128::from(self.now_ms() / 3_600_000), ..health::of(volumes.map(|v| &**v)) }
    }

    pub(super) fn report(&self) -> Report {
        let mut report = Report::default();
        for (subsystem, lanes) in self.lane_of.iter().enumerate() {
            for (nsid, at) in lanes {
                let Some(lane) = &self.lanes[*at as usize] else { continue };
                let mut stats = super::stats::NamespaceStats { nsid: *nsid, ..Default::default() };
                Lane::add_to(lane, &mut stats);
                report.namespaces.push((subsystem, stats));
            }
        }
        for c in self.connections.iter().flatten() {
            let Some(cell) = c.role.cell() else { continue };
            let subsystem = cell.subsystem.index;
            let host = HostStats { nqn: cell.host.nqn.clone(), connections: 1, counts: c.counts };
            report.hosts.push((subsystem, host));
            report.queues.push((subsystem, cell.id, self.queue_stats(c)));
            if let Role::Admin(_) = c.role {
                let keep_alive_ms = cell.controller().keep_alive_ms();
                report.controllers.push(ControllerStats {
                    cntlid: cell.id,
                    subsystem: cell.subsystem.nqn.clone(),
                    host: cell.host.nqn.clone(),
                    address: c.peer.to_string(),
                    keep_alive_s: keep_alive_ms.map(|ms| f64::from(ms) / 1e3),
                    ana: cell.states(),
                    queues: Vec::new(),
                });
            }
        }
        report
    }

    fn queue_stats(&self, c: &Connection) -> QueueStats {
        let waits = |state: State| !matches!(state, State::Free | State::Left);
        let mut stats = QueueStats {
            qid: c.qid(),
            thread: self.number as u32,
            depth: c.depth,
            in_flight: c.commands.iter().filter(|command| waits(command.state)).count() as u16,
            header_digest: c.header_digest,
            data_digest: c.data_digest,
            counts: c.counts,
            ..QueueStats::default()
        };
        c.read_latency.add_to(&mut stats.read_latency);
        c.write_latency.add_to(&mut stats.write_latency);
        stats
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.now.saturating_duration_since(self.site.began).as_millis() as u64
    }
}

fn refused(sqe: &forebay_nvme::command::Sqe, code: Code) -> Cqe {
    Cqe::new(sqe.cid.get(), Status::fatal(code), 0)
}
