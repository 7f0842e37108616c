//! Connect, admin commands, and how connections and controllers end.

use super::arena::ScratchBuffer;
use super::command::{Memory, State};
use super::connection::{Connection, Role, Stuck};
use super::inbox::{Message, Report};
use super::log::Level;
use super::refusals;
use super::shared::{ConnectionId, ControllerEntry, Subsystem};
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
        (command.memory, command.state) =
            (Memory::ScratchBuffer(ScratchBuffer::new(bytes as usize)), State::Collecting);
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
            Role::Admin(entry) => {
                let command = &c.commands[at.0 as usize];
                let is_smart =
                    command.sqe.opcode == admin::GET_LOG_PAGE && command.sqe.cdw10.get() & 0xff == SMART;
                let health = is_smart.then(|| self.health(&entry.subsystem));
                let data = command.memory.bytes(&self.pool, controller::ADMIN_DATA_MAX as usize);
                let answer = {
                    let mut controller = entry.controller();
                    if let Some(health) = health {
                        controller.set_health(health);
                    }
                    if command.sqe.opcode == admin::SET_FEATURES {
                        refusals::limit_queues(&mut controller, &entry.host);
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
                (command.memory, command.state) =
                    (Memory::ScratchBuffer(ScratchBuffer::of(data)), State::Answering);
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
        if self.draining || self.shared.draining.load(Ordering::Relaxed) {
            return Err(connect.busy("the target is shutting down"));
        }
        let subsystem =
            self.shared.subsystem(&connect.subsystem_nqn).ok_or_else(|| connect.no_subsystem())?.clone();
        self.came_as_it_must(c, connect)?;
        let admitted = match connect.qid {
            0 => self.admit_admin(c, connect, &subsystem),
            _ => self.admit_io(c, connect, &subsystem),
        }?;
        c.must_authenticate = admitted.authentication;
        if admitted.authentication {
            self.lock(c, connect);
        }
        let entry = c.role.entry().expect("it was just given one");
        let limits = entry.host.limits;
        c.limited = limits.rate.is_some() || limits.iops.is_some() || limits.bytes_in_flight.is_some();
        self.shared.log.say(
            Level::Info,
            "connected",
            &[
                ("peer", c.peer.to_string().into()),
                ("host", host_name(&connect.host_nqn).into()),
                ("subsystem", subsystem.nqn.clone().into()),
                ("cntlid", entry.id.into()),
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
        let discovery = subsystem.is_discovery().then(|| self.shared.discovery_at(c.local));
        let cntlid =
            subsystem.state().ids.take().ok_or_else(|| self.over(connect, refusals::NO_IDS.into()))?;
        let mut state = subsystem.state();
        let nvme = discovery.unwrap_or_else(|| state.access.seen_from(c.local, &state.nvme));
        let (controller, admitted) =
            Controller::connect(nvme, connect, cntlid, self.now_ms()).inspect_err(|_| {
                state.ids.give_back(cntlid);
            })?;
        let host = subsystem.host(&mut state, &connect.host_nqn, &self.shared.config);
        if !host.joins() {
            state.ids.give_back(cntlid);
            return Err(self.over(connect, refusals::of_host(&host)));
        }
        let mut controller = controller;
        refusals::limit_queues(&mut controller, &host);
        let entry = Arc::new(ControllerEntry::new(subsystem.clone(), host, (c.id, c.local), controller));
        state.controllers.insert(cntlid, entry.clone());
        c.role = Role::Admin(entry);
        Ok(admitted)
    }

    fn admit_io(
        &mut self,
        c: &mut Connection,
        connect: &Connect,
        subsystem: &Arc<Subsystem>,
    ) -> Result<Admitted, Refusal> {
        let entry = subsystem.state().controllers.get(&connect.cntlid).cloned();
        let entry = entry.ok_or_else(|| connect.no_controller())?;
        let admitted = entry.controller().connect_io(connect, self.now_ms())?;
        let mut queues = entry.queues();
        let refusal = match entry.gone.load(Ordering::Relaxed) {
            true => Some(connect.no_controller()),
            false => (!entry.host.joins()).then(|| self.over(connect, refusals::of_host(&entry.host))),
        };
        if let Some(refusal) = refusal {
            drop(queues);
            entry.controller().disconnect_io(connect.qid);
            return Err(refusal);
        }
        queues.insert(connect.qid, c.id);
        drop(queues);
        c.role = Role::Io { entry, qid: connect.qid };
        Ok(admitted)
    }

    /// Applies effects of commands beyond their answers.
    pub(super) fn apply_effects(&mut self, c: &mut Connection) {
        let Role::Admin(entry) = c.role.clone() else { return };
        loop {
            let effect = entry.controller().next_effect();
            match effect {
                None => break,
                Some(Effect::Complete { tag, cqe }) => {
                    if c.command(Handle(tag)).state == State::Parked {
                        self.answer(c, Handle(tag), Answer::Complete(cqe));
                    }
                }
                Some(Effect::CloseIoQueues) => self.close_queues(&entry, "the controller was reset"),
                Some(Effect::ShutDown) => self.shut_down(c, &entry),
                Some(Effect::WriteCache { enabled }) => entry.write_cache.store(enabled, Ordering::Relaxed),
                Some(Effect::Abort { tag, sqid, cid }) => self.ask_to_abort(&entry, tag, sqid, cid),
            }
        }
        if self.draining {
            self.leave_if_idle(c);
        }
    }

    fn close_queues(&self, entry: &ControllerEntry, why: &'static str) {
        let ids: Vec<ConnectionId> = entry.queues().values().copied().collect();
        for id in ids {
            self.shared.inboxes()[id.thread].post(Message::Close(id, why));
        }
    }

    /// Everything that hosts wrote to the subsystem is made durable; then the controller says that it is shut down.
    fn shut_down(&mut self, c: &mut Connection, entry: &ControllerEntry) {
        self.close_queues(entry, "the host shut the controller down");
        let subsystem = entry.subsystem.index;
        let volumes = self.views[subsystem].clone();
        let owner = Owner { connection: c.id.index, command: SHUTDOWN };
        for (nsid, _) in volumes.iter().filter(|(_, v)| v.write_cache) {
            if let Ok(Some(lane)) = self.lane(subsystem, *nsid) {
                c.flushes += 1;
                c.running += 1;
                let lane = self.lanes[lane as usize].as_mut().expect("it was just found");
                lane.start(owner, FLUSH, &mut self.reactor);
            }
        }
        if c.flushes == 0 {
            entry.controller().shut_down_complete();
        }
    }

    pub(super) fn shut_down_step(&mut self, c: &mut Connection) {
        c.running -= 1;
        c.flushes -= 1;
        if c.flushes == 0 && !c.closing {
            if let Role::Admin(entry) = c.role.clone() {
                entry.controller().shut_down_complete();
                self.apply_effects(c);
            }
        }
    }

    /// Ends the controller if its host has kept silent for too long, or says when to look again.
    pub(super) fn check_keep_alive(&mut self, c: &mut Connection) {
        let Role::Admin(entry) = c.role.clone() else { return };
        let now_ms = self.now_ms();
        let deadline = {
            let mut controller = entry.controller();
            let due = controller.deadline_ms().is_some_and(|deadline| deadline <= now_ms);
            if due && controller.tick(entry.traffic.swap(false, Ordering::Relaxed), now_ms) {
                None
            } else {
                Some(controller.deadline_ms())
            }
        };
        match deadline {
            None => self.break_off(c, "the host sent nothing (keep-alive timeout)"),
            Some(Some(ms)) => {
                let at = self.shared.began + Duration::from_millis(ms + 1);
                self.arm(c, at);
            }
            Some(None) => {}
        }
    }

    /// The peer broke the protocol: it is told so, and the connection ends.
    pub(super) fn violated(&mut self, c: &mut Connection, fatal: Fatal) {
        let who = if fatal.by_peer { "terminated by host" } else { "protocol violated" };
        self.shared.totals.broken.fetch_add(1, Ordering::Relaxed);
        self.shared.log.say(
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
        self.shared.totals.broken.fetch_add(1, Ordering::Relaxed);
        let why = match error.raw_os_error() {
            Some(libc::EFAULT) => "a served file was truncated while the kernel sent from it".to_owned(),
            _ => error.to_string(),
        };
        let fields = [("peer", c.peer.to_string().into()), ("why", why.into())];
        self.shared.log.say(Level::Info, "connection lost", &fields);
        self.end(c, "");
    }

    pub(super) fn break_off(&mut self, c: &mut Connection, why: &'static str) {
        self.shared.totals.broken.fetch_add(1, Ordering::Relaxed);
        let fields = [("peer", c.peer.to_string().into()), ("why", why.into())];
        self.shared.log.say(Level::Warning, "broken off", &fields);
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
            let index = c.id.index;
            for owner in lane.abandon(|owner| owner.connection == index, &mut self.reactor) {
                c.running -= 1;
                c.flushes -= u32::from(owner.command == SHUTDOWN);
            }
        }
        match c.role.clone() {
            Role::New => return,
            Role::Admin(entry) => self.end_controller(&entry),
            Role::Io { entry, qid } => {
                entry.controller().disconnect_io(qid);
                entry.queues().remove(&qid);
                entry.host.connections.fetch_sub(1, Ordering::Relaxed);
                if self.draining {
                    self.shared.inboxes()[entry.admin.thread].post(Message::Effects(entry.admin));
                }
            }
        }
        let entry = c.role.entry().expect("it has a role");
        let mut fields = vec![
            ("peer", c.peer.to_string().into()),
            ("host", host_name(&entry.host.nqn).into()),
            ("cntlid", entry.id.into()),
            ("qid", c.qid().into()),
        ];
        if !why.is_empty() {
            fields.push(("why", why.into()));
        }
        self.shared.log.say(Level::Info, "disconnected", &fields);
    }

    fn end_controller(&mut self, entry: &Arc<ControllerEntry>) {
        let ids: Vec<ConnectionId> = {
            let queues = entry.queues();
            entry.gone.store(true, Ordering::Relaxed);
            queues.values().copied().collect()
        };
        for id in ids {
            self.shared.inboxes()[id.thread].post(Message::Close(id, "its admin queue is gone"));
        }
        let mut state = entry.subsystem.state();
        state.controllers.remove(&entry.id);
        state.ids.give_back(entry.id);
        drop(state);
        entry.host.connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// While draining: a connection goes once nothing is under way on it; an admin queue after its I/O queues.
    pub(super) fn leave_if_idle(&mut self, c: &mut Connection) {
        let last = match &c.role {
            Role::Admin(entry) => entry.queues().is_empty(),
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
            let Some(entry) = c.role.entry() else { continue };
            let subsystem = entry.subsystem.index;
            let host = HostStats { nqn: entry.host.nqn.clone(), connections: 1, counts: c.counts };
            report.hosts.push((subsystem, host));
            report.queues.push((subsystem, entry.id, self.queue_stats(c)));
            if let Role::Admin(_) = c.role {
                let keep_alive_ms = entry.controller().keep_alive_ms();
                report.controllers.push(ControllerStats {
                    cntlid: entry.id,
                    subsystem: entry.subsystem.nqn.clone(),
                    host: entry.host.nqn.clone(),
                    address: c.peer.to_string(),
                    keep_alive_s: keep_alive_ms.map(|ms| f64::from(ms) / 1e3),
                    ana: entry.states(),
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
        self.now.saturating_duration_since(self.shared.began).as_millis() as u64
    }
}

fn refused(sqe: &forebay_nvme::command::Sqe, code: Code) -> Cqe {
    Cqe::new(sqe.cid.get(), Status::fatal(code), 0)
}
