//! The host's side of a controller: initialisation and supervision, without I/O.
//!
//! A `Session` returns the next admin command and processes its completion. Its driver owns the admin queue's
//! connection and the clock:
//!
//! ```text
//! loop {
//!     match session.next(now_ms)? {
//!         Action::Submit(request) => submit it, remember request.ticket
//!         Action::Authenticate => run the queue's authentication, then session.authenticated(now_ms)
//!         Action::Event(event) => act on it
//!         Action::Wait { until_ms } => wait for a completion, at most until then
//!     }
//!     // on each completion: session.completed(ticket, &cqe, &data, now_ms)
//! }
//! ```
//!
//! Any `Failure` ends the session: close the connections; `Failure::retry` says whether reconnecting may help.

mod admin;
mod care;
pub mod discovery;
mod namespaces;
mod steps;

use crate::command::{Cqe, Sqe};
use crate::fabrics::{self, Cap, Cc};
use crate::log::AnaState;
use crate::status::Status;
pub(crate) use admin::expect_success;
use admin::{Admin, Asked, EventPace, KeepAlive};
pub use care::Care;
use discovery::Reading;
use namespaces::Namespaces;
use std::collections::{BTreeMap, VecDeque};
use steps::{Job, Step};

/// Entries of the admin queue.
pub const ADMIN_ENTRIES: u16 = 32;

#[derive(Clone, Debug)]
pub struct Options {
    pub host_nqn: String,
    pub host_id: [u8; 16],
    pub subsystem_nqn: String,
    /// I/O queues wanted; the controller may grant fewer.
    pub queues: u16,
    /// Entries of an I/O queue wanted: commands in flight + 1. The controller may allow fewer.
    pub queue_entries: u16,
    /// Keep Alive Timeout; 0: off.
    pub keep_alive_ms: u32,
    /// Longest time of a command, and of a change of CSTS.
    pub timeout_ms: u64,
    /// Namespaces to identify: all of the active ones, or this one.
    pub namespace: Option<u32>,
}

/// The driver's identifier for a command in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId(pub u16);

/// A command to submit on the admin queue. The transport fills in the command identifier and the SGL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub request_id: RequestId,
    pub sqe: Sqe,
    pub data: Data,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    None,
    /// From the controller: at most this many bytes.
    In(u32),
    /// To the controller.
    Out(Vec<u8>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Submit(Request),
    /// The controller wants the admin queue to authenticate (ATR or ASCR was set). Then call `authenticated`.
    Authenticate {
        secure_channel: bool,
    },
    Event(Event),
    /// Nothing to do until a completion arrives, or until this time.
    Wait {
        until_ms: u64,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The controller is up and its namespaces are known: I/O queues may be connected.
    Ready,
    /// A namespace was added or changed; look it up in `namespaces`.
    Changed(u32),
    Gone(u32),
    /// ANA states changed; look them up in `namespaces`.
    Ana,
    /// The SMART/Health log has a warning, or the controller reports an error. The event's result, for the log.
    Warning(u32),
}

/// Why a session ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{asked}: {found}")]
pub struct Failure {
    pub kind: FailureKind,
    pub asked: String,
    pub found: String,
    /// The controller's status, if it sent one.
    pub status: Option<Status>,
}

/// Stands in what is said where a subsystem isn't for this host.
pub const NOT_LET_IN: &str = "does not let the host";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// A permanent refusal by the controller.
    Refused,
    /// A violation of the specification by the controller, or a property that it must have and lacks.
    Protocol,
    /// A time-out, or a status that allows a retry.
    Again,
}

impl Failure {
    /// Returns whether a new connection may succeed.
    pub fn retry(&self) -> bool {
        self.kind == FailureKind::Again
    }
}

/// The controller's Identify data and properties, in usable units.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControllerInfo {
    pub cntlid: u16,
    /// VS: major in bits 31:16, minor in 15:8.
    pub version: u32,
    pub serial: String,
    pub model: String,
    pub firmware: String,
    pub subsystem_nqn: String,
    /// Longest transfer of one command, bytes; None: no limit (MDTS 0).
    pub transfer_bytes: Option<u32>,
    /// Data that an I/O queue's capsule may carry, bytes (IOCCSZ × 16 − 64).
    pub in_capsule_bytes: u32,
    /// Entries of an I/O queue: the minimum of the requested number, MQES + 1 and MAXCMD (if given) + 1.
    pub queue_entries: u16,
    /// KAS in milliseconds.
    pub keep_alive_granularity_ms: u32,
    /// ONCS: optional commands.
    pub optional_commands: u16,
    pub volatile_write_cache: bool,
    pub multiple_controllers: bool,
    /// The controller reports ANA (CMIC bit 3).
    pub ana: bool,
    /// OAES: events that it can report.
    pub events: u32,
    /// I/O queues granted (Set Features, Number of Queues).
    pub queues: u16,
    /// Concurrent Aborts (ACL + 1).
    pub aborts: u16,
    /// Identify Controller as it came.
    pub raw: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceInfo {
    pub nsid: u32,
    pub block_bytes: u32,
    /// NSZE.
    pub blocks: u64,
    pub read_only: bool,
    pub uuid: Option<[u8; 16]>,
    pub nguid: Option<[u8; 16]>,
    pub eui64: Option<[u8; 8]>,
    /// 0: no ANA.
    pub ana_group: u32,
    pub ana_state: AnaState,
    /// NOWS, in blocks; 0: not reported.
    pub optimal_write_blocks: u16,
    /// NOIOB, in blocks; 0: not reported.
    pub boundary_blocks: u16,
    /// Why it can't be read or written by this host. None: it can.
    pub unusable: Option<&'static str>,
    /// Identify Namespace as it came.
    pub raw: Vec<u8>,
}

/// One controller's admin queue, from the host's side.
#[derive(Debug)]
pub struct Session {
    options: Options,
    admin: Admin,
    step: Step,
    /// The next steps, after the current one. Each at most once.
    jobs: VecDeque<Job>,
    events: VecDeque<Event>,
    /// Commands to abort: I/O queue and identifier.
    aborts: VecDeque<(u16, u16)>,
    failure: Option<Failure>,
    capabilities: Cap,
    configuration: Cc,
    info: ControllerInfo,
    namespaces: Namespaces,
    discovery: Option<Reading>,
    keep_alive: KeepAlive,
    event_pace: EventPace,
    ready: bool,
}

impl Session {
    pub fn new(options: Options, now_ms: u64) -> Session {
        Session::begin(options, None, now_ms)
    }

    fn begin(options: Options, discovery: Option<Reading>, now_ms: u64) -> Session {
        let mut session = Session {
            admin: Admin::new(options.timeout_ms),
            keep_alive: KeepAlive::new(options.keep_alive_ms),
            event_pace: EventPace::default(),
            namespaces: Namespaces::new(options.namespace),
            options,
            step: Step::Idle,
            jobs: VecDeque::new(),
            events: VecDeque::new(),
            aborts: VecDeque::new(),
            failure: None,
            capabilities: Cap(0),
            configuration: Cc(0),
            info: ControllerInfo::default(),
            discovery,
            ready: false,
        };
        match session.connect(0, ADMIN_ENTRIES, fabrics::CNTLID_DYNAMIC) {
            Ok((sqe, data)) => session.ask(Step::Connect, sqe, data, now_ms),
            Err(failure) => session.failure = Some(failure),
        }
        session
    }

    /// The next action. After `Wait`, call it again at each completion and at that time.
    pub fn next(&mut self, now_ms: u64) -> Result<Action, Failure> {
        if self.failure.is_none() {
            self.work(now_ms);
        }
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        if let Some(event) = self.events.pop_front() {
            return Ok(Action::Event(event));
        }
        if let Some(request) = self.admin.take() {
            return Ok(Action::Submit(request));
        }
        if let Step::Authenticate { secure_channel, reported: false } = self.step {
            self.step = Step::Authenticate { secure_channel, reported: true };
            return Ok(Action::Authenticate { secure_channel });
        }
        let times = [
            self.admin.deadline_ms(),
            self.step.time_ms(),
            self.keep_alive.time_ms(),
            self.event_pace.time_ms(),
        ];
        Ok(Action::Wait { until_ms: times.into_iter().flatten().min().unwrap_or(u64::MAX) })
    }

    /// Processes the completion of a command, with the received data.
    pub fn completed(&mut self, request_id: RequestId, cqe: &Cqe, data: &[u8], now_ms: u64) {
        let Some(asked) = self.admin.finish(request_id) else { return };
        let outcome = match asked {
            Asked::Step => self.advance(cqe, data, now_ms),
            Asked::Event => self.event_came(cqe, now_ms),
            Asked::KeepAlive => expect_success("Keep Alive", cqe),
            // The command that was to be aborted says itself how it ended.
            Asked::Abort => Ok(()),
        };
        if let (Err(failure), false) = (outcome, self.is_shut_down()) {
            self.failure.get_or_insert(failure);
        }
    }

    /// The admin queue's authentication succeeded.
    pub fn authenticated(&mut self, now_ms: u64) {
        if let Step::Authenticate { .. } = self.step {
            self.begin_setup(now_ms);
        }
    }

    pub fn ready(&self) -> bool {
        self.ready
    }

    pub fn controller(&self) -> &ControllerInfo {
        &self.info
    }

    /// The namespaces by identifier. Complete after `Event::Ready`.
    pub fn namespaces(&self) -> &BTreeMap<u32, NamespaceInfo> {
        self.namespaces.known()
    }

    /// The Connect of I/O queue `qid` (from 1): the first command on a connection of its own, with
    /// `ControllerInfo::queue_entries`. Its ticket means nothing.
    pub fn connect_io(&self, qid: u16) -> Result<Request, Failure> {
        let (sqe, data) = self.connect(qid, self.info.queue_entries, self.info.cntlid)?;
        Ok(Request { request_id: RequestId(qid), sqe, data })
    }

    /// Aborts command `cid` of I/O queue `sqid`, as soon as the controller accepts another Abort. The outcome is in
    /// the command's own completion.
    pub fn abort(&mut self, sqid: u16, cid: u16) {
        self.aborts.push_back((sqid, cid));
    }

    /// Processes its completion. Ok(Some): the queue must authenticate before it is used.
    pub fn connected_io(&self, qid: u16, cqe: &Cqe) -> Result<Option<SecureChannel>, Failure> {
        let connected = self.check_connected(&format!("Connect of I/O queue {qid}"), cqe)?;
        let required = connected.authentication_required || connected.secure_channel_required;
        Ok(required.then_some(SecureChannel(connected.secure_channel_required)))
    }

    /// Shuts the controller down (CC.SHN): `next` returns the commands and waits until `is_shut_down`; then close the
    /// connections.
    pub fn shut_down(&mut self, now_ms: u64) {
        self.begin_shutdown(now_ms);
    }

    pub fn is_shut_down(&self) -> bool {
        self.step == Step::ShutDown
    }
}

/// A queue must authenticate; true: over a secure channel (ASCR).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecureChannel(pub bool);
