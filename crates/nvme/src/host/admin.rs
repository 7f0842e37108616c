//! Commands of the admin queue: those queued, those outstanding, and their deadlines.

use super::{Data, Failure, FailureKind, Request, RequestId};
use crate::command::{Cqe, Sqe};
use crate::status::{Code, Status};
use std::collections::{BTreeMap, VecDeque};

/// Purpose of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// The session's step in hand.
    Step,
    /// An Asynchronous Event Request.
    Event,
    KeepAlive,
    /// Abort of a command of an I/O queue.
    Abort,
}

#[derive(Debug)]
pub(super) struct Admin {
    timeout_ms: u64,
    last: u16,
    waiting: VecDeque<Request>,
    /// With the time by which they must be over; None: there is none.
    out: BTreeMap<u16, (Asked, Option<u64>)>,
}

impl Admin {
    pub(super) fn new(timeout_ms: u64) -> Admin {
        Admin { timeout_ms, last: 0, waiting: VecDeque::new(), out: BTreeMap::new() }
    }

    /// Few are out at once, so a ticket is long free when its number comes again.
    pub(super) fn submit(&mut self, asked: Asked, sqe: Sqe, data: Data, now_ms: u64) {
        self.last = self.last.wrapping_add(1);
        while self.out.contains_key(&self.last) {
            self.last = self.last.wrapping_add(1);
        }
        let deadline = (asked != Asked::Event).then_some(now_ms.saturating_add(self.timeout_ms));
        self.out.insert(self.last, (asked, deadline));
        self.waiting.push_back(Request { request_id: RequestId(self.last), sqe, data });
    }

    pub(super) fn take(&mut self) -> Option<Request> {
        self.waiting.pop_front()
    }

    /// None: no such command is out.
    pub(super) fn finish(&mut self, request_id: RequestId) -> Option<Asked> {
        self.out.remove(&request_id.0).map(|(asked, _)| asked)
    }

    pub(super) fn is_out(&self, asked: Asked) -> bool {
        self.count(asked) > 0
    }

    pub(super) fn count(&self, asked: Asked) -> usize {
        self.out.values().filter(|(a, _)| *a == asked).count()
    }

    /// Forgets all of them: their completions will mean nothing.
    pub(super) fn forget(&mut self) {
        self.waiting.clear();
        self.out.clear();
    }

    pub(super) fn deadline_ms(&self) -> Option<u64> {
        self.out.values().filter_map(|(_, deadline)| *deadline).min()
    }

    /// A command that should be over by now.
    pub(super) fn late(&self, now_ms: u64) -> Option<Asked> {
        let late = |deadline: &Option<u64>| deadline.is_some_and(|deadline| deadline <= now_ms);
        self.out.values().find(|(_, deadline)| late(deadline)).map(|(asked, _)| *asked)
    }

    pub(super) fn timeout_ms(&self) -> u64 {
        self.timeout_ms
    }
}

/// When the next Keep Alive is due (base, section 3.9): twice in each timeout.
#[derive(Debug)]
pub(super) struct KeepAlive {
    interval_ms: u64,
    next_ms: Option<u64>,
}

impl KeepAlive {
    pub(super) fn new(timeout_ms: u32) -> KeepAlive {
        KeepAlive { interval_ms: u64::from(timeout_ms) / 2, next_ms: None }
    }

    /// Starts keep alive now, unless the timeout is 0.
    pub(super) fn start(&mut self, now_ms: u64) {
        self.next_ms = (self.interval_ms > 0).then(|| now_ms.saturating_add(self.interval_ms));
    }

    pub(super) fn stop(&mut self) {
        self.next_ms = None;
    }

    pub(super) fn time_ms(&self) -> Option<u64> {
        self.next_ms
    }

    /// One is due; the next is then due in an interval.
    pub(super) fn due(&mut self, now_ms: u64) -> bool {
        let due = self.next_ms.is_some_and(|next| next <= now_ms);
        if due {
            self.start(now_ms);
        }
        due
    }
}

/// Events that a controller may report in a second; the next request then waits for the second to end, so that a
/// controller that reports without end costs no processor.
const EVENTS_MAX: u32 = 32;
const SECOND_MS: u64 = 1000;

/// When the next Asynchronous Event Request is sent.
#[derive(Debug, Default)]
pub(super) struct EventPace {
    since_ms: u64,
    events: u32,
    next_ms: Option<u64>,
}

impl EventPace {
    /// An event came: another request is due at once, or later.
    pub(super) fn event(&mut self, now_ms: u64) {
        if now_ms.saturating_sub(self.since_ms) >= SECOND_MS {
            (self.since_ms, self.events) = (now_ms, 0);
        }
        self.events += 1;
        let late = self.events > EVENTS_MAX;
        self.next_ms = Some(if late { self.since_ms + SECOND_MS } else { now_ms });
    }

    pub(super) fn start(&mut self, now_ms: u64) {
        self.next_ms = Some(now_ms);
    }

    pub(super) fn stop(&mut self) {
        self.next_ms = None;
    }

    pub(super) fn time_ms(&self) -> Option<u64> {
        self.next_ms
    }

    pub(super) fn due(&mut self, now_ms: u64) -> bool {
        self.next_ms.take_if(|next| *next <= now_ms).is_some()
    }
}

impl Failure {
    pub(super) fn new(kind: FailureKind, asked: impl Into<String>, found: impl Into<String>) -> Failure {
        Failure { kind, asked: asked.into(), found: found.into(), status: None }
    }

    pub(crate) fn protocol(asked: impl Into<String>, found: impl Into<String>) -> Failure {
        Failure::new(FailureKind::Protocol, asked, found)
    }

    pub(super) fn refused(asked: impl Into<String>, found: impl Into<String>) -> Failure {
        Failure::new(FailureKind::Refused, asked, found)
    }

    pub(crate) fn again(asked: impl Into<String>, found: impl Into<String>) -> Failure {
        Failure::new(FailureKind::Again, asked, found)
    }

    pub(super) fn of_status(asked: impl Into<String>, status: Status, found: String) -> Failure {
        // Commands that a closing connection took along may well succeed on the next one.
        let gone = matches!(status.code, Code::ABORT_REQUESTED | Code::ABORTED_SQ_DELETION);
        let kind = if status.do_not_retry && !gone { FailureKind::Refused } else { FailureKind::Again };
        Failure { status: Some(status), ..Failure::new(kind, asked, found) }
    }
}

pub(crate) fn expect_success(asked: &str, cqe: &Cqe) -> Result<(), Failure> {
    let status = cqe.status();
    if status.is_success() {
        return Ok(());
    }
    Err(Failure::of_status(asked, status, format!("the controller answered {}", spelled(status))))
}

/// A status for people to read: its name where hosts often meet it, and its numbers.
pub(super) fn spelled(status: Status) -> String {
    let name = match status.code {
        Code::INVALID_OPCODE => "Invalid Command Opcode",
        Code::INVALID_FIELD => "Invalid Field in Command",
        Code::INTERNAL_ERROR => "Internal Error",
        Code::ABORT_REQUESTED => "Command Abort Requested",
        Code::INVALID_NAMESPACE => "Invalid Namespace or Format",
        Code::COMMAND_SEQUENCE_ERROR => "Command Sequence Error",
        Code::KEEP_ALIVE_EXPIRED => "Keep Alive Timer Expired",
        Code::INVALID_LOG_PAGE => "Invalid Log Page",
        Code::INCOMPATIBLE_FORMAT => "Connect Incompatible Format",
        Code::CONTROLLER_BUSY => "Connect Controller Busy",
        Code::CONNECT_INVALID_PARAMETERS => "Connect Invalid Parameters",
        Code::CONNECT_RESTART_DISCOVERY => "Connect Restart Discovery",
        Code::CONNECT_INVALID_HOST => "Connect Invalid Host",
        Code::AUTHENTICATION_REQUIRED => "Authentication Required",
        _ => "status",
    };
    format!("{name} (type {:#x}, code {:#04x})", status.code.0 >> 8, status.code.0 & 0xff)
}
