//! The logic of a controller, independent of the transport (base, section 3.1.3).
//!
//! A `Subsystem` is plain data, shared as an `Arc` and replaced as a whole. A `Controller` is the state of one
//! association: its driver creates one when an admin queue's Connect is accepted, passes it each admin command with
//! its data, and gets one `Answer` for each. I/O commands aren't handled here: they only need the `Subsystem` (see
//! `nvm`), and so no lock.
//!
//! Everything besides answers (the completion of a pending Asynchronous Event Request, queues that must be closed) is
//! queued as `Effect`s: the driver drains `next_effect` after each call that takes `&mut self`.

pub mod connect;
mod errors;
mod events;
mod features;
mod function;
mod identify;
mod keep_alive;
mod log;
mod property;
pub(crate) use property::{READY_MS, VERSION};
pub(crate) mod state;
pub mod subsystem;

use crate::command::{admin, Cqe, Sqe, FABRICS};
use crate::fabrics::{self, fctype, Cc, ConnectData, Csts};
use crate::feature::AsyncEvent;
use crate::status::{Code, Status};
use connect::Connect;
use errors::Errors;
use events::{Events, Parked};
use features::{Features, Timestamp};
use function::Transport;
pub use function::{ErrorEvent, Function};
use keep_alive::KeepAlive;
use log::AnaCounts;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use subsystem::{HostSettings, Namespace, Subsystem};

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

/// One association between a host and a subsystem, on the subsystem's side.
#[derive(Debug)]
pub struct Controller {
    subsystem: Arc<Subsystem>,
    transport: Transport,
    id: u16,
    /// The name that the host used: a discovery subsystem also has the well-known name.
    subsystem_nqn: String,
    host_nqn: String,
    host_id: [u8; 16],
    /// I/O queues that this host may have, and entries of each.
    queues: u16,
    queue_entries: u16,
    authentication: bool,
    authenticated: bool,
    configuration: Cc,
    status: Csts,
    keep_alive: KeepAlive,
    features: Features,
    timestamp: Timestamp,
    events: Events,
    /// Aborts of I/O commands, until the driver reports their outcome.
    aborts: Vec<Parked>,
    errors: Errors,
    ana: AnaCounts,
    health: Health,
    /// Namespaces that changed since the host read their list.
    changed: BTreeSet<u32>,
    /// Connected.
    io_queues: BTreeSet<u16>,
    effects: VecDeque<Effect>,
}

impl Controller {
    fn new(
        subsystem: Arc<Subsystem>,
        connect: &Connect,
        settings: &HostSettings,
        id: u16,
        now_ms: u64,
    ) -> Controller {
        let limits = &subsystem.limits;
        Controller {
            id,
            transport: Transport::Fabrics { keyed: connect.keyed },
            subsystem_nqn: connect.subsystem_nqn.clone(),
            host_nqn: connect.host_nqn.clone(),
            host_id: connect.host_id,
            queues: subsystem.queues_of(settings),
            queue_entries: settings
                .queue_entries
                .map_or(limits.queue_entries, |n| n.min(limits.queue_entries)),
            authentication: settings.authentication,
            authenticated: !settings.authentication,
            configuration: Cc(0),
            status: Csts(0),
            keep_alive: KeepAlive::new(&subsystem, connect.keep_alive_ms, now_ms),
            features: Features::default(),
            timestamp: Timestamp::new(now_ms),
            events: Events::default(),
            aborts: Vec::new(),
            errors: Errors::default(),
            ana: AnaCounts::default(),
            health: Health::default(),
            changed: BTreeSet::new(),
            io_queues: BTreeSet::new(),
            effects: VecDeque::new(),
            subsystem,
        }
    }

    pub fn id(&self) -> u16 {
        self.id
    }

    pub fn host_nqn(&self) -> &str {
        &self.host_nqn
    }

    pub fn host_id(&self) -> [u8; 16] {
        self.host_id
    }

    pub fn subsystem(&self) -> &Arc<Subsystem> {
        &self.subsystem
    }

    /// CC.EN and CSTS.RDY are set: I/O queues may be connected, I/O commands executed.
    pub fn ready(&self) -> bool {
        self.status.ready() && self.status.shutdown() == 0
    }

    /// Writes may be completed before they are durable.
    pub fn write_cache(&self) -> bool {
        self.features.write_cache && self.has_write_cache()
    }

    /// The admin queue's authentication succeeded: commands are executed from now on.
    pub fn authenticated(&mut self) {
        self.authenticated = true;
    }

    /// Executes a command of the admin queue. `tag`: the driver's identifier for it. `data`: the data sent with it
    /// (`data_out` bytes).
    pub fn execute(&mut self, tag: u16, sqe: &Sqe, data: &[u8], now_ms: u64) -> Answer {
        self.keep_alive.restart(now_ms);
        let answer = self.dispatch(tag, sqe, data, now_ms);
        self.note_failure(sqe, answer)
    }

    fn dispatch(&mut self, tag: u16, sqe: &Sqe, data: &[u8], now_ms: u64) -> Answer {
        if sqe.opcode == FABRICS && !self.transport.is_pcie() {
            return self.fabrics(sqe);
        }
        if !self.authenticated {
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
            admin::KEEP_ALIVE if !self.transport.is_pcie() => {
                Answer::Complete(Cqe::new(sqe.cid.get(), Status::SUCCESS, 0))
            }
            _ => Answer::refuse(sqe, Code::INVALID_OPCODE),
        }
    }

    fn fabrics(&mut self, sqe: &Sqe) -> Answer {
        match fabrics::command_type(sqe) {
            fctype::AUTHENTICATION_SEND | fctype::AUTHENTICATION_RECEIVE if self.authentication => {
                Answer::Authenticate
            }
            fctype::CONNECT => Answer::refuse(sqe, Code::COMMAND_SEQUENCE_ERROR),
            _ if !self.authenticated => Answer::refuse(sqe, Code::AUTHENTICATION_REQUIRED),
            fctype::PROPERTY_GET => Answer::Complete(self.property_get(sqe)),
            fctype::PROPERTY_SET => Answer::Complete(self.property_set(sqe)),
            // The admin queue ends with its connection (base, section 6.4).
            fctype::DISCONNECT => Answer::refuse(sqe, Code::INVALID_QUEUE_TYPE),
            _ => Answer::refuse(sqe, Code::INVALID_OPCODE),
        }
    }

    /// Abort (base, section 5.1): bit 0 of the result says that the command was not aborted. Of the admin queue's
    /// commands only pending ones can be aborted; I/O commands are cancelled by the driver.
    fn abort(&mut self, tag: u16, sqe: &Sqe) -> Answer {
        let (sqid, cid) = (sqe.cdw10.get() as u16, (sqe.cdw10.get() >> 16) as u16);
        if !self.io_queues.contains(&sqid) {
            let aborted = sqid == 0 && self.abort_event_request(cid);
            return Answer::Complete(Cqe::new(sqe.cid.get(), Status::SUCCESS, (!aborted).into()));
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
        Some(self.keep_alive.asked_ms()).filter(|ms| *ms > 0)
    }

    /// Replaces the subsystem: added, removed or changed namespaces, ANA states, discovery entries. The host is
    /// notified by asynchronous events if it has enabled them. Limits and hosts apply only to new connections.
    pub fn update(&mut self, subsystem: Arc<Subsystem>) {
        let old = std::mem::replace(&mut self.subsystem, subsystem.clone());
        let changed = differing(&old, &subsystem);
        if !changed.is_empty() {
            self.changed.extend(changed);
            self.raise(AsyncEvent::NAMESPACE_CHANGED);
        }
        self.ana.count(&old, &subsystem);
        if reached_otherwise(&old, &subsystem) {
            self.raise(AsyncEvent::ANA_CHANGED);
        }
        if !old.offers_to(&self.host_nqn).eq(subsystem.offers_to(&self.host_nqn)) {
            self.raise(AsyncEvent::DISCOVERY_CHANGED);
        }
    }

    /// Sets the content of the SMART/Health log; new critical warnings cause an asynchronous event.
    pub fn set_health(&mut self, health: Health) {
        let old = std::mem::replace(&mut self.health, health);
        self.raise_warnings(old.critical_warning, health.critical_warning);
    }

    /// When `tick` is to be called: the end of the keep-alive timer. None: it is off.
    pub fn deadline_ms(&self) -> Option<u64> {
        self.keep_alive.deadline_ms()
    }

    /// True: the keep-alive timer expired; close all connections of the host. `traffic`: whether commands arrived on
    /// any of its I/O queues since the last call (traffic based keep alive, base, section 3.9.1).
    pub fn tick(&mut self, traffic: bool, now_ms: u64) -> bool {
        if self.deadline_ms().is_none_or(|deadline| now_ms < deadline) {
            return false;
        }
        if traffic {
            self.keep_alive.restart(now_ms);
        }
        !traffic
    }
}

/// FUSE of a command's flags: part of a fused operation, of which there are none.
const FUSE: u8 = 0b11;

/// Added, removed or changed namespaces. A move to another ANA group doesn't count (base, figure 147).
fn differing(old: &Subsystem, new: &Subsystem) -> Vec<u32> {
    let (Some(old), Some(new)) = (old.namespaces(), new.namespaces()) else { return Vec::new() };
    let same = |a: &Namespace, b: &Namespace| *a == Namespace { ana_group: a.ana_group, ..b.clone() };
    let nsids: BTreeSet<u32> = old.keys().chain(new.keys()).copied().collect();
    let differs = |nsid: &u32| match (old.get(nsid), new.get(nsid)) {
        (Some(a), Some(b)) => !same(a, b),
        _ => true,
    };
    nsids.into_iter().filter(differs).collect()
}

/// Returns whether a remaining namespace moved to another ANA group, or its group to another state. Added and removed
/// namespaces change the ANA log, too, but are reported as such (base, figure 147).
fn reached_otherwise(old: &Subsystem, new: &Subsystem) -> bool {
    let path = |subsystem: &Subsystem, nsid: u32| {
        subsystem.namespace(nsid).map(|one| (one.ana_group, subsystem.ana_state(one.ana_group)))
    };
    let moved =
        |nsid: &u32| path(new, *nsid).is_some_and(|new| path(old, *nsid).is_some_and(|old| old != new));
    old.namespaces().is_some_and(|all| all.keys().any(moved))
}

impl Answer {
    fn refuse(sqe: &Sqe, code: Code) -> Answer {
        Answer::Complete(Cqe::new(sqe.cid.get(), Status::fatal(code), 0))
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
        fctype::DISCONNECT if fabrics::Disconnect::of(sqe).recfmt.get() != 0 => {
            Answer::refuse(sqe, Code::INCOMPATIBLE_FORMAT)
        }
        fctype::DISCONNECT => Answer::Close(Cqe::new(sqe.cid.get(), Status::SUCCESS, 0)),
        fctype::PROPERTY_GET | fctype::PROPERTY_SET => Answer::refuse(sqe, Code::INVALID_FIELD),
        _ => Answer::refuse(sqe, Code::INVALID_OPCODE),
    }
}
