//! Admin commands, and Fabrics commands on any queue: Connect above all, which gives a connection its role.

use super::super::arena::ScratchBuffer;
use super::super::auth::Authentication;
use super::super::command::{CommandState, Memory};
use super::super::connect::Applicant;
use super::super::controller::{ControllerEntry, KeepAlive, Role};
use super::super::log::Level;
use super::super::refusals::{self, Refused};
use super::super::resources::ThreadResources;
use super::{Arrival, Connection};
use crate::namespace::namespace_queue::Owner;
use forebay_nvme::auth::{Outcome, MESSAGE_BYTES_MAX};
use forebay_nvme::command::{admin, Cqe, Sqe, FABRICS};
use forebay_nvme::controller::connect::{host_name, Admitted, Connect, Refusal};
use forebay_nvme::controller::{self, Answer, Effect, Health};
use forebay_nvme::fabrics;
use forebay_nvme::status::{Code, Status};
use forebay_nvme::transport::tcp::Handle;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Stands for the flushes of a shutdown among the commands of an admin queue.
pub(super) const SHUTDOWN: Handle = Handle(u16::MAX);
/// Log identifier of SMART / Health (base, figure 202).
const SMART: u32 = 0x02;

/// A connection that is an admin queue, or any until its Connect and its authentication are done, with its thread.
/// Commands are executed whole: their data are collected first, in memory of their own.
pub(super) struct AdminQueue<'a> {
    pub c: &'a mut Connection,
    pub thread: &'a mut ThreadResources,
}

impl AdminQueue<'_> {
    /// A command came: its data are collected first.
    pub(super) fn command_came(&mut self, came: Arrival) {
        let Arrival { command: at, sqe, in_capsule } = came;
        let is_connect = sqe.opcode == FABRICS && fabrics::command_type(&sqe) == fabrics::fctype::CONNECT;
        if matches!(self.c.role, Role::New) && !is_connect {
            return self.execute(at);
        }
        let bytes = match controller::data_out(&sqe) {
            Ok(bytes) if in_capsule > 0 && in_capsule != bytes => {
                return self.answer(at, Answer::Complete(refused(&sqe, Code::DATA_SGL_LENGTH_INVALID)));
            }
            Ok(bytes) => bytes,
            Err(status) => return self.answer(at, Answer::Complete(Cqe::new(sqe.cid.get(), status, 0))),
        };
        if bytes == 0 {
            return self.execute(at);
        }
        let command = self.c.command(at);
        command.memory = Memory::Own(ScratchBuffer::new(bytes as usize));
        command.state = CommandState::Collecting;
        self.c.collects(self.thread);
        if in_capsule == 0 {
            self.c.link.request(at, bytes);
            self.thread.ready.mark_dirty(self.c.id.index, &mut self.c.marks);
        }
    }

    /// A Fabrics command came on an I/O queue.
    pub(super) fn fabrics_command_came(&mut self, came: Arrival) {
        if self.c.auth.is_required() {
            return self.command_came(came);
        }
        let answer = controller::fabrics_on_io_queue(&came.sqe, false);
        self.answer(came.command, answer);
    }

    /// A command's data are here.
    pub(super) fn execute(&mut self, at: Handle) {
        match self.c.role.clone() {
            Role::New => self.connect(at),
            Role::Admin(entry) => {
                let answer = self.execute_at(&entry, at);
                self.answer(at, answer);
                self.apply_effects();
                self.check_keep_alive();
            }
            Role::Io { .. } => {
                // Only queues that must authenticate collect their commands' data as an admin queue does.
                let sqe = self.c.command(at).sqe;
                let answer = match sqe.opcode {
                    FABRICS => controller::fabrics_on_io_queue(&sqe, self.c.auth.is_required()),
                    _ => Answer::Complete(refused(&sqe, Code::AUTHENTICATION_REQUIRED)),
                };
                self.answer(at, answer);
            }
        }
    }

    fn execute_at(&self, entry: &ControllerEntry, at: Handle) -> Answer {
        let command = &self.c.commands[at.0 as usize];
        let sqe = &command.sqe;
        let is_smart = sqe.opcode == admin::GET_LOG_PAGE && sqe.cdw10.get() & 0xff == SMART;
        let health = is_smart.then(|| self.health(entry.subsystem));
        let data = command.memory.bytes(&self.thread.memory.pool, controller::ADMIN_DATA_MAX as usize);
        let mut controller = entry.controller();
        if let Some(health) = health {
            controller.set_health(health);
        }
        if sqe.opcode == admin::SET_FEATURES {
            refusals::limit_queues(&mut controller, &entry.host);
        }
        controller.execute(at.0, sqe, data, self.thread.now_ms())
    }

    fn health(&self, subsystem: usize) -> Health {
        let power_on_hours = u128::from(self.thread.now_ms() / 3_600_000);
        Health { power_on_hours, ..self.thread.queues.health(subsystem) }
    }

    fn answer(&mut self, at: Handle, answer: Answer) {
        match answer {
            Answer::Complete(cqe) => {
                self.c.counts.errors += u64::from(!cqe.status().is_success());
                self.c.link.complete(at, cqe);
                self.c.free(self.thread, at);
            }
            Answer::Data { data, cqe } => {
                let len = data.len() as u32;
                let command = self.c.command(at);
                (command.memory, command.state) =
                    (Memory::Own(ScratchBuffer::from_vec(data)), CommandState::Answering);
                self.c.link.answer(at, len, cqe);
                self.thread.timers.want_sweep(self.thread.now);
            }
            Answer::Parked => {
                let command = self.c.command(at);
                command.state = CommandState::Parked;
                if command.sqe.opcode == admin::ASYNC_EVENT_REQUEST {
                    self.c.link.keep_event_request(at);
                }
            }
            Answer::Authenticate => {
                let answer = self.authenticate(at);
                return self.answer(at, answer);
            }
            Answer::Close(cqe) => {
                self.c.link.complete(at, cqe);
                self.c.free(self.thread, at);
                self.c.last_words = true;
            }
        }
        self.thread.ready.mark_dirty(self.c.id.index, &mut self.c.marks);
    }

    // Connect and authentication.

    fn connect(&mut self, at: Handle) {
        let command = &self.c.commands[at.0 as usize];
        let (sqe, data) = (command.sqe, command.memory.bytes(&self.thread.memory.pool, 1024));
        let keyed = self.c.link.is_keyed();
        let connect = Connect::parse(&sqe, data).map(|connect| Connect { keyed, ..connect });
        let admitted = match connect {
            Ok(connect) => self
                .admit(&connect)
                .inspect_err(|refusal| self.say_refused(host_name(&connect.host_nqn), refusal)),
            Err(refusal) => {
                self.say_refused("", &refusal);
                Err(refusal)
            }
        };
        let cqe = match admitted {
            Ok(admitted) => {
                self.c.depth = admitted.entries;
                self.c.link.set_depth(admitted.entries, !admitted.no_flow_control);
                admitted.completion(sqe.cid.get())
            }
            Err(refusal) => refusal.completion(sqe.cid.get()),
        };
        self.answer(at, Answer::Complete(cqe));
        self.check_keep_alive();
    }

    fn admit(&mut self, connect: &Connect) -> Result<Admitted, Refusal> {
        let Connection { id, local, client, .. } = &*self.c;
        let shared = &*self.thread.shared;
        let applicant = Applicant {
            shared,
            id: *id,
            local: *local,
            client: client.as_ref(),
            now_ms: self.thread.now_ms(),
        };
        let (role, admitted) = applicant.admit(connect)?;
        let c = &mut *self.c;
        c.role = role;
        if admitted.authentication {
            c.auth = Authentication::required(&shared.config, connect);
        }
        let entry = c.role.entry().expect("it was just given one");
        let limits = entry.host.limits;
        c.limited = limits.rate.is_some() || limits.iops.is_some() || limits.bytes_in_flight.is_some();
        shared.log.say(
            Level::Info,
            "connected",
            &[
                ("peer", c.peer.to_string().into()),
                ("host", host_name(&connect.host_nqn).into()),
                ("subsystem", connect.subsystem_nqn.clone().into()),
                ("cntlid", entry.id.into()),
                ("qid", admitted.qid.into()),
                ("entries", admitted.entries.into()),
                ("hdgst", c.header_digest.into()),
                ("ddgst", c.data_digest.into()),
            ],
        );
        Ok(admitted)
    }

    fn say_refused(&self, host: &str, refusal: &Refusal) {
        let shared = &self.thread.shared;
        let refused = Refused { peer: self.c.peer, host, why: &refusal.what };
        shared.refusals.say(&shared.log, &refused, self.thread.now);
    }

    /// Answers an Authentication command.
    fn authenticate(&mut self, at: Handle) -> Answer {
        let Connection { commands, auth, .. } = &mut *self.c;
        let command = &commands[at.0 as usize];
        let data = command.memory.bytes(&self.thread.memory.pool, MESSAGE_BYTES_MAX);
        let (answer, outcome) = auth.execute(&command.sqe, data);
        match outcome {
            None | Some(Outcome::Pending) => {}
            Some(Outcome::Authenticated(agreement)) => {
                let fields = [
                    ("hash", agreement.hash.name().into()),
                    ("group", agreement.group.name().into()),
                    ("both_ways", agreement.both_ways.into()),
                ];
                self.tell(Level::Info, "authenticated", &fields);
                if let Role::Admin(entry) = &self.c.role {
                    entry.controller().authenticated();
                }
            }
            // The host hears of it by the answer that is on its way; then the connection ends.
            Some(Outcome::Failed(failure)) => {
                self.thread.shared.totals.refused.fetch_add(1, Ordering::Relaxed);
                let fields = [("why", failure.to_string().into())];
                self.tell(Level::Warning, "authentication failed", &fields);
                self.c.last_words = true;
            }
        }
        answer
    }

    fn tell(&self, level: Level, what: &'static str, more: &[(&'static str, serde_json::Value)]) {
        let host = self.c.role.entry().map_or("", |entry| &entry.host.nqn);
        let mut fields: Vec<(&'static str, serde_json::Value)> = vec![
            ("peer", self.c.peer.to_string().into()),
            ("host", host.into()),
            ("qid", self.c.qid().into()),
        ];
        fields.extend_from_slice(more);
        self.thread.shared.log.say(level, what, &fields);
    }

    // The controller, where this is its admin queue.

    /// Applies effects of commands beyond their answers.
    pub(super) fn apply_effects(&mut self) {
        let Role::Admin(entry) = self.c.role.clone() else { return };
        loop {
            let effect = entry.controller().next_effect();
            match effect {
                None => break,
                Some(Effect::Complete { tag, cqe }) => {
                    if self.c.command(Handle(tag)).state == CommandState::Parked {
                        self.answer(Handle(tag), Answer::Complete(cqe));
                    }
                }
                Some(Effect::CloseIoQueues) => {
                    self.thread.shared.close(entry.io_queues(), "the controller was reset");
                }
                Some(Effect::ShutDown) => self.shut_down(&entry),
                Some(Effect::WriteCache { enabled }) => entry.write_cache.store(enabled, Ordering::Relaxed),
                Some(Effect::Abort { tag, sqid, cid }) => {
                    self.thread.shared.ask_to_abort(&entry, tag, sqid, cid);
                }
            }
        }
        if self.thread.draining {
            self.c.leave_if_idle(self.thread);
        }
    }

    /// Everything that hosts wrote to the subsystem is made durable; then the controller says that it is shut down.
    fn shut_down(&mut self, entry: &ControllerEntry) {
        self.thread.shared.close(entry.io_queues(), "the host shut the controller down");
        let owner = Owner { connection: self.c.id.index, command: SHUTDOWN };
        let ThreadResources { queues, reactor, .. } = &mut *self.thread;
        let begun = queues.flush_subsystem(entry.subsystem, owner, reactor);
        self.c.flushes += begun;
        self.c.running += begun;
        if self.c.flushes == 0 {
            entry.controller().shut_down_complete();
        }
    }

    /// One flush of a shutdown is done.
    pub(super) fn flushed(&mut self) {
        self.c.running -= 1;
        self.c.flushes -= 1;
        if self.c.flushes == 0 && !self.c.closing {
            if let Role::Admin(entry) = self.c.role.clone() {
                entry.controller().shut_down_complete();
                self.apply_effects();
            }
        }
    }

    /// Ends the controller if its host has kept silent for too long, or arms the timer for the next look.
    pub(super) fn check_keep_alive(&mut self) {
        let Role::Admin(entry) = &self.c.role else { return };
        match entry.check_keep_alive(self.thread.now_ms()) {
            KeepAlive::Expired => {
                self.c.break_off(self.thread, "the host sent nothing (keep-alive timeout)");
            }
            KeepAlive::LookAgain(ms) => {
                let at = self.thread.shared.began + Duration::from_millis(ms + 1);
                self.c.arm(self.thread, at);
            }
            KeepAlive::Off => {}
        }
    }
}

fn refused(sqe: &Sqe, code: Code) -> Cqe {
    Cqe::new(sqe.cid.get(), Status::fatal(code), 0)
}
