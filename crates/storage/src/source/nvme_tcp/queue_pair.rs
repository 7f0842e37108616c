//! One I/O queue of one path: its connection, and which commands are on it.

use super::auth::{self, Progress, Proof, Unproven};
use super::connection::{memory_of, Connection};
use super::options::CONNECT_WITHIN;
use super::path::Live;
use super::report::{Broken, Report, Unsent};
use super::Shared;
use crate::source::nvme::status::words;
use crate::source::nvme::{Connected as Up, Traffic};
use forebay_io::{monotonic_now, Mem, Reactor, RingCompletion};
use forebay_nvme::command::{Cqe, Sqe};
use forebay_nvme::fabrics::Connected;
use forebay_nvme::host;
use forebay_nvme::status::Code;
use forebay_nvme::transport::tcp::host::{Data, Options};
use forebay_nvme::transport::tcp::Handle;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Before a queue is tried again that wasn't connected, each time twice as long, up to `reconnect_delay`: the controller
/// may not have noticed that the queue's last connection is gone.
const REFUSED_PAUSE: Duration = Duration::from_millis(20);
/// After so many times it isn't just early any more.
const EARLY_MAX: u32 = 6;
/// Refusals after which an association none of whose queues is live counts as broken.
const REFUSALS_MAX: u32 = 12;
const NOBODY: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Down,
    /// TCP and ICReq.
    Greeting,
    /// The Connect command.
    Joining(Handle),
    /// A command of this host's proof.
    Proving(Handle),
    Live,
    /// The kernel may still hold memory of its commands.
    Closing,
}

/// A command that completed on a pair.
pub(super) struct Finished {
    pub pair: usize,
    pub command: u32,
    pub cqe: Cqe,
    pub received: u32,
    pub copied: bool,
}

pub(super) struct QueuePair {
    pub path: usize,
    qid: u16,
    index: u32,
    phase: Phase,
    /// The association that it belongs to.
    number: u64,
    connection: Option<Connection>,
    /// Command of each handle.
    owner: Vec<u32>,
    in_flight: u32,
    /// Commands were queued since the last send.
    unsent: bool,
    depth: u32,
    in_capsule_max: u32,
    /// Data of the Connect command.
    connect: Option<(Sqe, Vec<u8>)>,
    /// Until when it must be connected, or from when on it may be tried again.
    by: Option<Instant>,
    proof: Option<Proof>,
    /// Refusals since it was last live, and the reason.
    refusals: u32,
    refused: Option<String>,
    /// The controller still knows its last connection, and may take as long as it likes to notice that it is gone.
    early: bool,
    /// Queues of its path that are live.
    up: Arc<AtomicU32>,
    reports: Vec<Report>,
    pub traffic: Arc<Traffic>,
    live: Option<Up>,
}

impl QueuePair {
    pub(crate) fn new(path: usize, qid: u16, index: u32, shared: &Shared) -> QueuePair {
        QueuePair {
            path,
            qid,
            index,
            phase: Phase::Down,
            number: 0,
            connection: None,
            owner: Vec::new(),
            in_flight: 0,
            unsent: false,
            depth: 0,
            in_capsule_max: 0,
            connect: None,
            by: None,
            proof: None,
            refusals: 0,
            refused: None,
            early: false,
            up: shared.paths[path].queues_up.clone(),
            reports: Vec::new(),
            traffic: shared.host.notes.traffic(path, qid),
            live: None,
        }
    }

    pub(crate) fn is_live(&self) -> bool {
        self.phase == Phase::Live
    }

    /// Why it isn't live, where it was tried in vain.
    pub(crate) fn refusal(&self) -> Option<String> {
        let why = self.refused.as_ref()?;
        Some(format!("I/O queue {} isn't connected: {why}", self.qid))
    }

    /// It isn't just early.
    pub(crate) fn is_refused(&self) -> bool {
        self.refusals >= EARLY_MAX && !self.early
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    pub(crate) fn has_room(&self) -> bool {
        self.phase == Phase::Live && self.in_flight < self.depth
    }

    /// When it wants to be looked at though nothing completed.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.by
    }

    /// Brings it to where its path is: `live` is the path's association, if it has one.
    pub(crate) fn follow(
        &mut self,
        live: Option<&Live>,
        shared: &Shared,
        token: u32,
        now: Instant,
        reactor: &mut Reactor,
    ) {
        let wanted = live.filter(|live| live.namespace.is_some());
        match (self.phase, wanted) {
            (Phase::Closing, _) => {}
            (Phase::Down, Some(live)) => {
                if self.number != live.number {
                    (self.number, self.refusals, self.refused, self.by) = (live.number, 0, None, None);
                }
                if self.by.is_none_or(|by| now >= by) {
                    self.open(live, shared, token, now, reactor);
                }
            }
            (Phase::Down, None) => self.by = None,
            (_, Some(live)) if live.number == self.number => {
                if self.phase != Phase::Live && self.by.is_some_and(|by| now >= by) {
                    self.refuse(format!("no answer within {CONNECT_WITHIN:?}"), shared, reactor);
                }
            }
            _ => self.close(reactor),
        }
    }

    fn open(&mut self, live: &Live, shared: &Shared, token: u32, now: Instant, reactor: &mut Reactor) {
        let depth = live.controller.queue_entries.saturating_sub(1).clamp(1, shared.options.depth);
        let options = Options {
            header_digest: shared.options.header_digest,
            data_digest: shared.options.data_digest,
            depth,
            r2ts: 1,
            bulk: if shared.direct.load(Ordering::Relaxed) { 0 } else { shared.options.bulk },
        };
        // A controller may grant fewer queues than one before it did.
        let Some(request) = live.connects.get(usize::from(self.qid) - 1) else {
            if self.refused.is_none() {
                self.refuse(
                    format!("the controller grants {} of them", live.controller.queues),
                    shared,
                    reactor,
                );
            }
            return;
        };
        let data = match &request.data {
            host::Data::Out(data) => data.clone(),
            _ => Vec::new(),
        };
        self.connect = Some((request.sqe, data));
        self.in_capsule_max = live.controller.in_capsule_bytes;
        self.depth = u32::from(depth);
        self.early = false;
        self.owner = vec![NOBODY; 2 * usize::from(depth)];
        match Connection::open(live.to, options, token, self.index, shared.way(self.qid), reactor) {
            Ok(connection) => {
                self.connection = Some(connection);
                self.phase = Phase::Greeting;
                self.by = Some(now + CONNECT_WITHIN);
            }
            Err(e) => {
                self.by = Some(now + REFUSED_PAUSE);
                shared.host.notes.note(format!("{}: no socket: {e}", shared.paths[self.path].address));
            }
        }
    }

    /// Queues a command; `send` starts it.
    pub(crate) fn submit(&mut self, command: u32, sqe: Sqe, data: Data, mem: Mem) -> Result<(), Unsent> {
        let connection = self.connection.as_mut().ok_or(Unsent::Busy)?;
        let handle = connection.submit(sqe, data, mem)?;
        self.owner[usize::from(handle.0)] = command;
        self.in_flight += 1;
        self.traffic.sends();
        self.unsent = true;
        Ok(())
    }

    /// Starts what was queued.
    pub(crate) fn send(&mut self, reactor: &mut Reactor) {
        if let Some(connection) = self.connection.as_mut().filter(|_| self.unsent) {
            self.unsent = false;
            connection.send(reactor);
        }
    }

    pub(crate) fn completed(&mut self, completion: RingCompletion) {
        if let Some(connection) = &mut self.connection {
            connection.completed(completion);
        }
    }

    /// Takes what came. What finished is appended. False: it isn't, or is no longer, live.
    pub(crate) fn drive(
        &mut self,
        shared: &Shared,
        reactor: &mut Reactor,
        finished: &mut Vec<Finished>,
    ) -> bool {
        if matches!(self.phase, Phase::Down | Phase::Closing) {
            return false;
        }
        let Some(connection) = &mut self.connection else { return false };
        let mut reports = std::mem::take(&mut self.reports);
        let driven = connection.drive(reactor, &mut reports);
        let mut result = Ok(());
        for report in reports.drain(..) {
            match report {
                Report::Ready => result = self.join(reactor),
                Report::Completed { command, cqe, .. } if self.phase == Phase::Joining(command) => {
                    result = self.joined(&cqe, shared, reactor);
                }
                Report::Completed { command, cqe, received, .. } if self.phase == Phase::Proving(command) => {
                    result = self.proved(&cqe, received, reactor);
                }
                Report::Completed { command, cqe, received, copied } => {
                    let owner = std::mem::replace(&mut self.owner[usize::from(command.0)], NOBODY);
                    if owner != NOBODY {
                        self.in_flight -= 1;
                        let pair = self.index as usize;
                        finished.push(Finished { pair, command: owner, cqe, received, copied });
                    }
                }
            }
        }
        self.reports = reports;
        match result.and(driven) {
            Ok(()) => {}
            Err(broken) if self.phase == Phase::Live => self.fail(&broken.0, shared, reactor),
            Err(broken) => self.refuse(broken.0, shared, reactor),
        }
        self.is_live()
    }

    /// Sends Connect.
    fn join(&mut self, reactor: &mut Reactor) -> Result<(), Broken> {
        let (Some(connection), Some((sqe, data))) = (&mut self.connection, &mut self.connect) else {
            return Ok(());
        };
        let len = data.len() as u32;
        let sent = connection.submit(*sqe, Data::Out { len }, memory_of(data));
        self.phase = Phase::Joining(sent.map_err(|unsent| Broken(unsent.to_string()))?);
        connection.send(reactor);
        Ok(())
    }

    fn joined(&mut self, cqe: &Cqe, shared: &Shared, reactor: &mut Reactor) -> Result<(), Broken> {
        let status = cqe.status();
        if status.is_success() {
            let required = Connected::from_result(cqe.result.get()).authentication_required;
            return match auth::owed(shared.credentials.as_ref(), required)? {
                Some(credentials) => {
                    self.proof = Some(Proof::new(credentials, self.qid)?);
                    self.prove(reactor)
                }
                None => {
                    self.begin();
                    Ok(())
                }
            };
        }
        self.early = status.code == Code::COMMAND_SEQUENCE_ERROR;
        Err(Broken(format!("Connect: {}", words(status))))
    }

    /// It came to nothing before it was live. The association's other queues go on, and this one is tried again.
    fn refuse(&mut self, why: String, shared: &Shared, reactor: &mut Reactor) {
        let path = &shared.paths[self.path];
        self.refusals += 1;
        let why = self.refused.insert(why);
        if self.refusals >= EARLY_MAX {
            path.refused.fetch_add(1, Ordering::Relaxed);
        }
        if self.refusals == EARLY_MAX {
            let text = format!("{}: I/O queue {} isn't connected: {why}", path.address, self.qid);
            shared.host.notes.note(text);
        }
        if self.refusals > REFUSALS_MAX && self.up.load(Ordering::Relaxed) == 0 {
            path.trouble(self.number, why);
        }
        self.close(reactor);
    }

    /// Returns the time to wait before it is tried again.
    fn rest(&self, shared: &Shared) -> Duration {
        let longer = REFUSED_PAUSE.saturating_mul(1 << self.refusals.saturating_sub(1).min(16));
        longer.min(shared.options.reconnect_delay.max(REFUSED_PAUSE))
    }

    /// The next command of this host's proof, or, after the last, those of its owner.
    fn prove(&mut self, reactor: &mut Reactor) -> Result<(), Broken> {
        let (Some(connection), Some(proof)) = (&mut self.connection, &mut self.proof) else { return Ok(()) };
        match proof.go_on(connection)? {
            Progress::Waiting(handle) => {
                self.phase = Phase::Proving(handle);
                connection.send(reactor);
            }
            Progress::Done(_) => self.begin(),
        }
        Ok(())
    }

    fn proved(&mut self, cqe: &Cqe, received: u32, reactor: &mut Reactor) -> Result<(), Broken> {
        if let Some(proof) = &mut self.proof {
            proof.completed(cqe, received)?;
        }
        self.prove(reactor)
    }

    fn begin(&mut self) {
        if let Some(connection) = &mut self.connection {
            connection.set_in_capsule_max(self.in_capsule_max);
        }
        (self.phase, self.by, self.refusals, self.refused) = (Phase::Live, None, 0, None);
        self.live = Some(Up::new(&self.traffic));
        self.up.fetch_add(1, Ordering::Relaxed);
    }

    /// It doesn't work any more, and so neither does its association.
    pub(crate) fn fail(&mut self, why: &str, shared: &Shared, reactor: &mut Reactor) {
        shared.paths[self.path].trouble(self.number, why);
        self.close(reactor);
    }

    pub(crate) fn close(&mut self, reactor: &mut Reactor) {
        if let Some(connection) = &mut self.connection {
            connection.close(reactor);
            if std::mem::replace(&mut self.phase, Phase::Closing) == Phase::Live {
                self.up.fetch_sub(1, Ordering::Relaxed);
            }
            (self.by, self.live) = (None, None);
        }
    }

    /// A closed connection is gone, and with it the commands on it, which are appended: their memory is free.
    pub(crate) fn finish_close(&mut self, shared: &Shared, lost: &mut Vec<u32>) -> bool {
        if self.phase != Phase::Closing || !self.connection.as_ref().is_none_or(Connection::is_quiet) {
            return false;
        }
        (self.connection, self.connect, self.proof, self.phase) = (None, None, None, Phase::Down);
        // Its association is about to be found broken, unless that one queue wasn't let in.
        self.by = Some(monotonic_now() + self.rest(shared));
        lost.extend(self.owner.drain(..).filter(|owner| *owner != NOBODY));
        self.in_flight = 0;
        true
    }

    pub(crate) fn is_down(&self) -> bool {
        self.phase == Phase::Down
    }

    /// Returns whether that command is on it.
    pub(crate) fn has(&self, command: u32) -> bool {
        self.in_flight > 0 && self.owner.contains(&command)
    }

    /// The commands that are on it.
    pub(crate) fn commands(&self) -> impl Iterator<Item = u32> + '_ {
        self.owner.iter().copied().filter(|owner| *owner != NOBODY)
    }

    /// Asks the controller to give up on a command, if it is on this pair.
    pub(crate) fn abort(&mut self, command: u32, shared: &Shared) {
        let at = self.owner.iter().position(|owner| *owner == command);
        if let (Some(at), Some(connection)) = (at, &mut self.connection) {
            let cid = connection.cid(Handle(at as u16));
            let path = &shared.paths[self.path];
            shared
                .host
                .notes
                .note(format!("{}: I/O queue {}: asked to abort command {cid}", path.address, self.qid));
            path.abort(self.number, self.qid, cid);
        }
    }
}

impl From<Unproven> for Broken {
    fn from(unproven: Unproven) -> Broken {
        Broken(unproven.why)
    }
}

impl Drop for QueuePair {
    /// The kernel may still be sending the Connect command's data.
    fn drop(&mut self) {
        if self.is_live() {
            self.up.fetch_sub(1, Ordering::Relaxed);
        }
        if self.connection.as_ref().is_some_and(|c| !c.is_quiet()) {
            std::mem::forget((self.connect.take(), self.proof.take()));
        }
    }
}
