//! The logic of a controller, independent of the transport (base, section 3.1.3).
//!
//! A `Subsystem` is plain data, shared as an `Arc` and replaced as a whole. A `Controller` is the state of one
//! association: its driver creates one when an admin queue's Connect is accepted, passes it each admin command with
//! its data, and gets one `Answer` for each. I/O commands aren't handled here: they only need the `Subsystem` (see
//! `nvm`), and so no lock.
//!
//! Everything besides answers (the completion of a pending Asynchronous Event Request, queues that must be closed) is
//! queued as `Effect`s: the driver drains `next_effect` after each call that takes `&mut self`.

mod association;
pub mod connect;
mod errors;
mod events;
mod features;
mod function;
mod identify;
mod keep_alive;
mod log;
mod property;
pub(crate) mod state;
pub mod subsystem;

use crate::command::{admin, Cqe, Sqe, FABRICS};
use crate::fabrics::{self, fctype, Cap, ConnectData};
use crate::feature::{event_type, AsyncEvent, Coalescing, GetFeatures, SetFeatures};
use crate::identify::Identify;
use crate::log::{lid, GetLogPage};
use crate::status::{Code, Status};
use association::Association;
use connect::{Admitted, Connect, Refusal};
use events::{Events, Parked};
use features::{Change, Features, Value};
use function::Transport;
pub use function::{ErrorEvent, Function};
use keep_alive::KeepAlive;
use log::Logs;
use property::Registers;
pub(crate) use property::{READY_MS, VERSION};
use state::ControllerState;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use subsystem::{HostSettings, Subsystem};

/// Maximum data sent with an admin command, bytes: the capacity of an admin queue's capsule (tcp, section 3.3.2.2).
pub const ADMIN_DATA_MAX: u32 = 8192;

/// The response to the host. Every command gets one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Complete(Cqe),
    /// Send these bytes (never more than the host's SGL has room for), then complete.
    Data {
        data: Vec<u8>,
        cqe: Cqe,
    },
    /// An Asynchronous Event Request, or an Abort: its response follows as an `Effect::Complete` with its tag.
    Parked,
    /// Authentication Send or Receive: for the queue's authentication, which answers it.
    Authenticate,
    /// Complete, then close this connection.
    Close(Cqe),
}

/// Further consequences of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The response to a pending command.
    Complete { tag: u16, cqe: Cqe },
    /// The controller was reset: close its I/O queues without answering their commands.
    CloseIoQueues,
    /// The host shuts the controller down: close its I/O queues, make durable what was written, then call
    /// `Controller::shut_down_complete`; the host waits for it.
    ShutDown,
    /// Set Features: whether writes may be completed before they are durable (base, section 5.27.1.4).
    WriteCache { enabled: bool },
    /// Cancel this command of an I/O queue if it is still in flight; then call `Controller::aborted` with the same
    /// tag.
    Abort { tag: u16, sqid: u16, cid: u16 },
}

/// The driver's counters for the SMART/Health log (base, figure 207), of this controller's namespaces since the
/// subsystem's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Bytes; the log gives thousands of 512-byte units, rounded up.
    pub bytes_read: u128,
    pub bytes_written: u128,
    pub reads: u128,
    pub writes: u128,
    /// Minutes in which there were I/O commands.
    pub busy_minutes: u128,
    pub power_on_hours: u128,
    /// Unrecovered data integrity errors.
    pub media_errors: u128,
    /// Kelvin; 0: not known.
    pub temperature: u16,
    /// Bits 7:0 of Critical Warning.
    pub critical_warning: u8,
}

/// An I/O command that failed, for the Error Information log (base, figure 206).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mishap {
    pub sqid: u16,
    pub cid: u16,
    pub status: Status,
    pub nsid: u32,
    pub lba: u64,
}

impl Mishap {
    /// A command on blocks that ended with this status.
    pub fn from_status(sqid: u16, sqe: &Sqe, status: Status) -> Mishap {
        let lba = u64::from(sqe.cdw10.get()) | u64::from(sqe.cdw11.get()) << 32;
        Mishap { sqid, cid: sqe.cid.get(), status, nsid: sqe.nsid.get(), lba }
    }
}

/// One association between a host and a subsystem, on the subsystem's side.
///
/// Its parts know nothing of it: the `association` says what is supported, `registers`, `features`, `events` and `logs` keep
/// what the host sets and reads. It executes commands with them, and has what concerns several: its queues, pending
/// commands and effects.
#[derive(Debug)]
pub struct Controller {
    association: Association,
    registers: Registers,
    features: Features,
    events: Events,
    logs: Logs,
    /// Aborts of I/O commands, until the driver reports their outcome.
    aborts: Vec<Parked>,
    /// Connected.
    io_queues: BTreeSet<u16>,
    effects: VecDeque<Effect>,
}

impl Controller {
    /// Admits the Connect of an admin queue. `cntlid`: free in the subsystem (see `Ids`). `now_ms`, here and
    /// elsewhere: any clock that never goes back.
    pub fn connect(
        subsystem: Arc<Subsystem>,
        connect: &Connect,
        cntlid: u16,
        now_ms: u64,
    ) -> Result<(Controller, Admitted), Refusal> {
        let settings = *connect::admit(&subsystem, connect)?;
        let keep_alive = KeepAlive::new(&subsystem, connect.keep_alive_ms, now_ms);
        let association = Association::new(
            subsystem,
            connect,
            &settings,
            Transport::Fabrics { keyed: connect.keyed },
            cntlid,
        );
        let admitted = association.admitted(connect);
        Ok((Controller::new(association, keep_alive, now_ms), admitted))
    }

    /// The controller of a function.
    pub fn of_function(
        subsystem: Arc<Subsystem>,
        function: Function,
        host: (&str, [u8; 16]),
        cntlid: u16,
        now_ms: u64,
    ) -> Controller {
        let connect = Function::connect(&subsystem, host);
        let association = Association::new(
            subsystem,
            &connect,
            &HostSettings::default(),
            Transport::Pcie(function),
            cntlid,
        );
        Controller::new(association, KeepAlive::off(), now_ms)
    }

    fn new(association: Association, keep_alive: KeepAlive, now_ms: u64) -> Controller {
        Controller {
            association,
            registers: Registers::new(),
            features: Features::new(keep_alive, now_ms),
            events: Events::default(),
            logs: Logs::default(),
            aborts: Vec::new(),
            io_queues: BTreeSet::new(),
            effects: VecDeque::new(),
        }
    }

    /// Admits the Connect of an I/O queue to this controller.
    pub fn connect_io(&mut self, connect: &Connect, now_ms: u64) -> Result<Admitted, Refusal> {
        self.association.check_io(connect, self.ready())?;
        if !self.io_queues.insert(connect.qid) {
            let what = format!("queue {} is connected already", connect.qid);
            return Err(Refusal::plain(Code::COMMAND_SEQUENCE_ERROR, what));
        }
        self.features.keep_alive.restart(now_ms);
        Ok(self.association.admitted(connect))
    }

    /// The connection of an I/O queue is gone: its QID may be connected anew.
    pub fn disconnect_io(&mut self, qid: u16) {
        self.io_queues.remove(&qid);
    }

    /// The queues that a function's host has created.
    pub(crate) fn has_queues(&mut self, queues: impl Iterator<Item = u16>) {
        self.io_queues = queues.collect();
    }

    /// Fewer I/O queues than its settings allow (or, later, more again), while it has none: what the driver can still take.
    /// Never less than one, the least that can be granted.
    pub fn limit_queues(&mut self, most: u16) {
        if self.io_queues.is_empty() {
            self.association.limit_queues(most);
        }
    }

    pub fn id(&self) -> u16 {
        self.association.id
    }

    pub fn host_nqn(&self) -> &str {
        &self.association.host_nqn
    }

    pub fn host_id(&self) -> [u8; 16] {
        self.association.host_id
    }

    pub fn subsystem(&self) -> &Arc<Subsystem> {
        &self.association.subsystem
    }

    /// CC.EN and CSTS.RDY are set: I/O queues may be connected, I/O commands executed.
    pub fn ready(&self) -> bool {
        self.registers.ready()
    }

    /// Writes may be completed before they are durable.
    pub fn write_cache(&self) -> bool {
        self.features.write_cache() && self.association.has_write_cache()
    }

    /// The admin queue's authentication succeeded: commands are executed from now on.
    pub fn authenticated(&mut self) {
        self.association.authenticated = true;
    }

    /// See `Features::arbitration_burst`.
    pub fn arbitration_burst(&self) -> Option<u32> {
        self.features.arbitration_burst()
    }

    pub(crate) fn coalescing(&self) -> Coalescing {
        self.features.coalescing()
    }

    pub(crate) fn function_capabilities(&self, timeout_ms: u32, stride: u8) -> Cap {
        self.association.function_capabilities(timeout_ms, stride)
    }

    /// I/O queues that the host may have.
    pub(crate) fn queues(&self) -> u16 {
        self.association.queues
    }

    pub(crate) fn queue_entries(&self) -> u16 {
        self.association.queue_entries
    }

    /// Longest transfer, bytes; None: no limit.
    pub(crate) fn transfer_bytes_max(&self) -> Option<u32> {
        self.association.subsystem.limits.transfer_bytes
    }

    /// Executes a command of the admin queue. `tag`: the driver's identifier for it. `data`: the data sent with it
    /// (`data_out` bytes).
    pub fn execute(&mut self, tag: u16, sqe: &Sqe, data: &[u8], now_ms: u64) -> Answer {
        self.features.keep_alive.restart(now_ms);
        let answer = self.dispatch(tag, sqe, data, now_ms);
        self.note_failure(sqe, answer)
    }

    fn dispatch(&mut self, tag: u16, sqe: &Sqe, data: &[u8], now_ms: u64) -> Answer {
        if sqe.opcode == FABRICS && !self.association.is_pcie() {
            return self.fabrics(sqe);
        }
        if !self.association.authenticated {
            return Answer::refuse(sqe, Code::AUTHENTICATION_REQUIRED);
        }
        if !self.ready() {
            return Answer::refuse(sqe, Code::COMMAND_SEQUENCE_ERROR);
        }
        if sqe.flags & FUSE != 0 {
            return Answer::refuse(sqe, Code::INVALID_FIELD);
        }
        match sqe.opcode {
            admin::IDENTIFY => self.identify(sqe),
            admin::GET_LOG_PAGE => self.get_log_page(sqe),
            admin::SET_FEATURES => self.set_features(sqe, data, now_ms),
            admin::GET_FEATURES => self.get_features(sqe, now_ms),
            admin::ASYNC_EVENT_REQUEST => self.async_event_request(tag, sqe),
            admin::ABORT => self.abort(tag, sqe),
            admin::KEEP_ALIVE if !self.association.is_pcie() => Answer::success(sqe, 0),
            _ => Answer::refuse(sqe, Code::INVALID_OPCODE),
        }
    }

    fn fabrics(&mut self, sqe: &Sqe) -> Answer {
        match fabrics::command_type(sqe) {
            fctype::AUTHENTICATION_SEND | fctype::AUTHENTICATION_RECEIVE
                if self.association.authentication =>
            {
                Answer::Authenticate
            }
            fctype::CONNECT => Answer::refuse(sqe, Code::COMMAND_SEQUENCE_ERROR),
            _ if !self.association.authenticated => Answer::refuse(sqe, Code::AUTHENTICATION_REQUIRED),
            fctype::PROPERTY_GET => Answer::Complete(self.registers.get(sqe, &self.association)),
            fctype::PROPERTY_SET => Answer::Complete(self.property_set(sqe)),
            // The admin queue ends with its connection (base, section 6.4).
            fctype::DISCONNECT => Answer::refuse(sqe, Code::INVALID_QUEUE_TYPE),
            _ => Answer::refuse(sqe, Code::INVALID_OPCODE),
        }
    }

    fn property_set(&mut self, sqe: &Sqe) -> Cqe {
        let (cqe, asked) = self.registers.set(sqe, &self.association);
        if asked.reset {
            self.reset();
        }
        if asked.shut_down {
            self.shut_down();
        }
        cqe
    }

    fn identify(&self, sqe: &Sqe) -> Answer {
        match identify::identify(&self.association, &Identify::parse(sqe)) {
            Ok(bytes) => Answer::data(sqe, bytes),
            Err(code) => Answer::refuse(sqe, code),
        }
    }

    fn get_log_page(&mut self, sqe: &Sqe) -> Answer {
        let asked = GetLogPage::parse(sqe);
        match self.logs.get(&asked, &self.association) {
            Ok(part) => {
                if !asked.rae {
                    self.logs.was_read(asked.lid);
                    self.events.log_was_read(asked.lid);
                }
                Answer::data(sqe, part)
            }
            Err(code) => Answer::refuse(sqe, code),
        }
    }

    fn get_features(&self, sqe: &Sqe, now_ms: u64) -> Answer {
        match self.features.get(&GetFeatures::parse(sqe), &self.association, now_ms) {
            Ok(Value::Dword(value)) => Answer::success(sqe, value),
            Ok(Value::Bytes(bytes)) => Answer::data(sqe, bytes),
            Err(code) => Answer::refuse(sqe, code),
        }
    }

    fn set_features(&mut self, sqe: &Sqe, data: &[u8], now_ms: u64) -> Answer {
        let has_io_queues = !self.io_queues.is_empty();
        let asked = SetFeatures::parse(sqe);
        let (result, change) = match self.features.set(&asked, data, &self.association, has_io_queues, now_ms)
        {
            Ok(set) => set,
            Err(code) => return Answer::refuse(sqe, code),
        };
        match change {
            Some(Change::WriteCache { enabled }) => self.effects.push_back(Effect::WriteCache { enabled }),
            // Warnings that are there already are news to a host that only now asks for them.
            Some(Change::Events { fresh }) => {
                let warnings = self.logs.critical_warning();
                self.raise_warnings(warnings & !(fresh as u8), warnings);
            }
            None => {}
        }
        Answer::success(sqe, result)
    }

    fn async_event_request(&mut self, tag: u16, sqe: &Sqe) -> Answer {
        let most = self.association.subsystem.limits.async_events;
        if let Err(code) = self.events.park(Parked { tag, cid: sqe.cid.get() }, most) {
            return Answer::refuse(sqe, code);
        }
        self.tell_events();
        Answer::Parked
    }

    /// Abort of a parked Asynchronous Event Request. False: there is none with that identifier.
    pub(crate) fn abort_event_request(&mut self, cid: u16) -> bool {
        let answer = self.events.abort(cid);
        let found = answer.is_some();
        self.effects.extend(answer);
        found
    }

    /// Tells the host of an error that no completion tells of.
    pub(crate) fn raise_error(&mut self, error: ErrorEvent) {
        let lid = lid::ERROR_INFORMATION;
        let event = AsyncEvent { kind: event_type::ERROR, information: error as u8, lid };
        self.events.raise(event, self.features.async_events());
        self.tell_events();
    }

    /// Events of critical warnings that are new and asked for.
    fn raise_warnings(&mut self, old: u8, new: u8) {
        self.events.raise_warnings(old, new, self.features.async_events());
        self.tell_events();
    }

    /// Answers requests with the events that there are. Nothing happens any more for a host that has shut its controller
    /// down.
    fn tell_events(&mut self) {
        if self.registers.is_shut_down() {
            return;
        }
        while let Some(effect) = self.events.pair() {
            self.effects.push_back(effect);
        }
    }

    /// Abort (base, section 5.1): bit 0 of the result says that the command was not aborted. Of the admin queue's
    /// commands only pending ones can be aborted; I/O commands are cancelled by the driver.
    fn abort(&mut self, tag: u16, sqe: &Sqe) -> Answer {
        let (sqid, cid) = (sqe.cdw10.get() as u16, (sqe.cdw10.get() >> 16) as u16);
        if !self.io_queues.contains(&sqid) {
            let aborted = sqid == 0 && self.abort_event_request(cid);
            return Answer::success(sqe, (!aborted).into());
        }
        if self.aborts.len() > usize::from(identify::ABORTS) {
            return Answer::refuse(sqe, Code::ABORT_LIMIT);
        }
        self.aborts.push(Parked { tag, cid: sqe.cid.get() });
        self.effects.push_back(Effect::Abort { tag, sqid, cid });
        Answer::Parked
    }

    /// The outcome of an `Effect::Abort`. `aborted`: its command was completed with Command Abort Requested;
    /// otherwise there was no such command, or it completed normally.
    pub fn aborted(&mut self, tag: u16, aborted: bool) {
        if let Some(at) = self.aborts.iter().position(|abort| abort.tag == tag) {
            let abort = self.aborts.remove(at);
            self.effects.push_back(abort.answer(Status::SUCCESS, (!aborted).into()));
        }
    }

    /// Controller level reset by CC.EN (base, section 3.7.2): queues and features go back to where they began.
    fn reset(&mut self) {
        self.registers = Registers::new();
        self.drop_queues();
        let code = Code::ABORTED_SQ_DELETION;
        let answers = self.events.drain().map(|request| request.answer(Status::again(code), 0));
        self.effects.extend(answers);
        self.features.reset();
        self.effects.push_back(Effect::CloseIoQueues);
    }

    /// CSTS.SHST says that it is under way until the driver has made everything durable. Event requests stay, unanswered:
    /// SPDK's host has given them up before, and takes an answer for a violation of the protocol.
    fn shut_down(&mut self) {
        self.registers.shut_down_begins();
        self.drop_queues();
        self.effects.push_back(Effect::ShutDown);
    }

    /// Completes `Effect::ShutDown`: the host sees its shutdown complete.
    pub fn shut_down_complete(&mut self) {
        self.registers.shut_down_ends();
    }

    fn drop_queues(&mut self) {
        self.io_queues.clear();
        // Their commands go with their queues, unanswered.
        self.effects.extend(self.aborts.drain(..).map(|abort| abort.answer(Status::SUCCESS, 1)));
    }

    /// A function: CC.EN was set, and what it asks for can be had.
    pub(crate) fn enabled(&mut self) {
        self.registers.enabled();
    }

    /// A function's reset: parked commands are forgotten, features go back to where they began.
    pub(crate) fn disabled(&mut self) {
        self.reset();
        self.effects.clear();
    }

    /// Puts a failed I/O command into the Error Information log; the number of its entry. The completion should say
    /// that there is more (`Status::more`).
    pub fn record(&mut self, mishap: Mishap) -> u64 {
        self.logs.record(mishap, &self.association)
    }

    /// The completion of a command that failed before it came here: it is in the Error Information log.
    pub(crate) fn refuse(&mut self, sqe: &Sqe, status: Status) -> Cqe {
        match self.note_failure(sqe, Answer::Complete(Cqe::new(sqe.cid.get(), status, 0))) {
            Answer::Complete(cqe) => cqe,
            _ => Cqe::new(sqe.cid.get(), status, 0),
        }
    }

    /// Commands that fail are in the Error Information log, and say so.
    fn note_failure(&mut self, sqe: &Sqe, answer: Answer) -> Answer {
        match answer {
            Answer::Complete(mut cqe) if !cqe.status().is_success() => {
                let status = Status { more: true, ..cqe.status() };
                let (cid, nsid) = (sqe.cid.get(), if sqe.opcode == FABRICS { 0 } else { sqe.nsid.get() });
                self.record(Mishap { sqid: 0, cid, status, nsid, lba: 0 });
                cqe.status = status.to_bits().into();
                Answer::Complete(cqe)
            }
            answer => answer,
        }
    }

    pub fn next_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// The keep-alive time-out (KATO) granted to the host. None: it requested none.
    pub fn keep_alive_ms(&self) -> Option<u32> {
        Some(self.features.keep_alive.asked_ms()).filter(|ms| *ms > 0)
    }

    /// Replaces the subsystem: added, removed or changed namespaces, ANA states, discovery entries. The host is
    /// notified by asynchronous events if it has enabled them. Limits and hosts apply only to new connections.
    pub fn update(&mut self, subsystem: Arc<Subsystem>) {
        let old = std::mem::replace(&mut self.association.subsystem, subsystem);
        for event in self.logs.follow(&old, &self.association) {
            self.events.raise(event, self.features.async_events());
        }
        self.tell_events();
    }

    /// Sets the content of the SMART/Health log; new critical warnings cause an asynchronous event.
    pub fn set_health(&mut self, health: Health) {
        let old = self.logs.set_health(health);
        self.raise_warnings(old, health.critical_warning);
    }

    /// When `tick` is to be called: the end of the keep-alive timer. None: it is off.
    pub fn deadline_ms(&self) -> Option<u64> {
        self.features.keep_alive.deadline_ms()
    }

    /// True: the keep-alive timer expired; close all connections of the host. `traffic`: whether commands arrived on
    /// any of its I/O queues since the last call (traffic based keep alive, base, section 3.9.1).
    pub fn tick(&mut self, traffic: bool, now_ms: u64) -> bool {
        if self.deadline_ms().is_none_or(|deadline| now_ms < deadline) {
            return false;
        }
        if traffic {
            self.features.keep_alive.restart(now_ms);
        }
        !traffic
    }

    pub(crate) fn state(&self) -> ControllerState {
        let (features, timestamp) = self.features.state();
        let (errors, ana, changed) = self.logs.state();
        ControllerState {
            csts: self.registers.status(),
            queues: self.association.queues,
            queue_entries: self.association.queue_entries,
            features,
            timestamp,
            events: self.events.clone(),
            errors,
            ana,
            changed,
        }
    }

    /// `waiting`: slots and identifiers of the admin queue's commands in flight, which parked requests are. Err: what can't
    /// be.
    pub(crate) fn restore(
        &mut self,
        state: &ControllerState,
        mut waiting: BTreeSet<(u16, u16)>,
    ) -> Result<(), &'static str> {
        if !state.events.parked().all(|one| waiting.remove(&one)) || !waiting.is_empty() {
            return Err("event requests that are not those of the admin queue");
        }
        let state = state.clone();
        self.registers.restore(state.csts);
        (self.association.queues, self.association.queue_entries) = (state.queues, state.queue_entries);
        self.features.restore(state.features, state.timestamp);
        self.events = state.events;
        self.logs.restore(state.errors, state.ana, state.changed);
        Ok(())
    }
}

/// FUSE of a command's flags: part of a fused operation, of which there are none.
const FUSE: u8 = 0b11;

impl Answer {
    fn refuse(sqe: &Sqe, code: Code) -> Answer {
        Answer::Complete(Cqe::new(sqe.cid.get(), Status::fatal(code), 0))
    }

    fn success(sqe: &Sqe, result: u32) -> Answer {
        Answer::Complete(Cqe::new(sqe.cid.get(), Status::SUCCESS, result.into()))
    }

    /// Bytes for the host, as many as it has room for.
    fn data(sqe: &Sqe, mut data: Vec<u8>) -> Answer {
        data.truncate(sqe.sgl.length.get() as usize);
        let cqe = Cqe::new(sqe.cid.get(), Status::SUCCESS, 0);
        if data.is_empty() {
            Answer::Complete(cqe)
        } else {
            Answer::Data { data, cqe }
        }
    }
}

/// Bytes of data sent with an admin or Fabrics command: the driver must have received them all before it calls
/// `execute` or `Connect::parse`. Err: complete the command with this status without executing it.
pub fn data_out(sqe: &Sqe) -> Result<u32, Status> {
    // The direction is in the low bits of the opcode, and of FCTYPE (base, figures 138 and 374).
    let kind = if sqe.opcode == FABRICS { fabrics::command_type(sqe) } else { sqe.opcode };
    match (kind & 0b11, sqe.sgl.length.get()) {
        (0b01, length) if length > ADMIN_DATA_MAX => Err(Status::fatal(Code::DATA_SGL_LENGTH_INVALID)),
        (0b01, length) => Ok(length),
        _ => Ok(0),
    }
}

/// Answers a Fabrics command on an I/O queue that is connected: Disconnect, and authentication where it is required.
pub fn fabrics_on_io_queue(sqe: &Sqe, authentication: bool) -> Answer {
    match fabrics::command_type(sqe) {
        fctype::AUTHENTICATION_SEND | fctype::AUTHENTICATION_RECEIVE if authentication => {
            Answer::Authenticate
        }
        // Without its data it is no Connect, but any opcode 7Fh of a host that looks whether there is such a command.
        fctype::CONNECT if sqe.sgl.length.get() as usize == size_of::<ConnectData>() => {
            Answer::refuse(sqe, Code::COMMAND_SEQUENCE_ERROR)
        }
        fctype::DISCONNECT if fabrics::Disconnect::from_sqe(sqe).recfmt.get() != 0 => {
            Answer::refuse(sqe, Code::INCOMPATIBLE_FORMAT)
        }
        fctype::DISCONNECT => Answer::Close(Cqe::new(sqe.cid.get(), Status::SUCCESS, 0)),
        fctype::PROPERTY_GET | fctype::PROPERTY_SET => Answer::refuse(sqe, Code::INVALID_FIELD),
        _ => Answer::refuse(sqe, Code::INVALID_OPCODE),
    }
}
