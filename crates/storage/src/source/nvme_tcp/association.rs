//! An admin queue's connection and the session that cares for its controller.

use super::auth::{Progress, Proof, Unproven, NO_PROOF, NO_SECRET};
use super::connection::{memory_of, ConnectVia, Connection};
use super::options::Address;
use super::report::{Broken, Report, Unsent};
use crate::source::nvme::{Cause, Stranger};
use forebay_io::{memlock_refusal, monotonic_now, ring_refusal, Reactor, RingCompletion, RingOptions};
use forebay_model::Error;
use forebay_nvme::auth::{Agreement, Credentials};
use forebay_nvme::host::{self, Action, Care, Event, Failure, RequestId};
use forebay_nvme::transport::tcp::host::{Data, Options};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest time of an admin command.
pub(super) const COMMAND_WITHIN: Duration = Duration::from_secs(20);
/// Longest time for the kernel to let go of a closed connection's memory.
const QUIET_WITHIN: Duration = Duration::from_secs(1);
/// Commands in flight on an admin queue.
const DEPTH: u16 = 32;

/// Whom to connect to, and how.
pub(super) struct Peer<'a> {
    pub address: &'a Address,
    pub way: ConnectVia<'a>,
    /// Longest time until a connection stands and is initialised.
    pub within: Duration,
    /// Returns true once nobody wants it any more.
    pub stops: &'a dyn Fn() -> bool,
}

/// Why an association ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub why: String,
    pub cause: Cause,
    /// The controller refused, and would again.
    pub for_good: bool,
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Ended {
        Ended { cause: Cause::from_failure(&failure), for_good: !failure.retry(), why: failure.to_string() }
    }
}

impl From<Unproven> for Ended {
    fn from(unproven: Unproven) -> Ended {
        Ended { cause: Cause::Unproven, why: unproven.why, for_good: unproven.for_good }
    }
}

impl From<Stranger> for Ended {
    fn from(stranger: Stranger) -> Ended {
        Ended { cause: stranger.cause(), why: stranger.why, for_good: stranger.for_good }
    }
}

impl From<Unsent> for Ended {
    fn from(unsent: Unsent) -> Ended {
        Ended { cause: Cause::Other, why: unsent.to_string(), for_good: false }
    }
}

impl From<Broken> for Ended {
    fn from(broken: Broken) -> Ended {
        Ended { cause: Cause::Other, why: broken.0, for_good: false }
    }
}

struct InFlight {
    request_id: RequestId,
    data: Vec<u8>,
}

pub(super) struct Association<S> {
    pub session: S,
    /// Address at which it was reached.
    pub to: SocketAddr,
    connection: Connection,
    credentials: Option<Arc<Credentials>>,
    proof: Option<Proof>,
    /// Both ends are who they say, as far as that was asked for.
    proved: Option<Agreement>,
    in_flight: Vec<Option<InFlight>>,
    reports: Vec<Report>,
    completions: Vec<RingCompletion>,
    reactor: Reactor,
    token: u32,
    began: Instant,
}

/// A reactor for an admin queue.
pub(super) fn reactor() -> Result<Reactor, Error> {
    Reactor::with_ring(RingOptions { depth: 8, ..RingOptions::default() })
        .map_err(|e| memlock_refusal("an NVMe host in user space", &e, "forebay doctor for the reason"))
}

impl<S: Care> Association<S> {
    /// Connects to the first of the address's machines that answers. `session` makes a session that begins now (in
    /// milliseconds of the association's own clock).
    pub(crate) fn open(
        peer: &Peer,
        header_digest: bool,
        data_digest: bool,
        credentials: Option<Arc<Credentials>>,
        mut reactor: Reactor,
        session: impl FnOnce(u64) -> S,
    ) -> Result<Association<S>, Ended> {
        let options = Options { header_digest, data_digest, depth: DEPTH, r2ts: 1, bulk: 0 };
        let token = reactor.token();
        let (connection, to) = connect(peer, options, token, &mut reactor)?;
        Ok(Association {
            session: session(0),
            to,
            connection,
            credentials,
            proof: None,
            proved: None,
            in_flight: (0..2 * DEPTH).map(|_| None).collect(),
            reports: Vec::new(),
            completions: Vec::new(),
            reactor,
            token,
            began: monotonic_now(),
        })
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    /// Does what there is to do, then waits once: for a completion, a wake, what the session waits for, or `until`.
    /// Some: an event, before any wait.
    pub(crate) fn step(&mut self, until: Instant) -> Result<Option<Event>, Ended> {
        self.book()?;
        let mut wait = until;
        loop {
            match self.session.next(self.now_ms())? {
                Action::Submit(request) => self.submit(request)?,
                Action::Event(event) => {
                    let asks = self.credentials.as_ref().is_some_and(|c| c.controller.is_some());
                    if asks && !self.proved.is_some_and(|proved| proved.both_ways) {
                        return Err(Ended { cause: Cause::Unproven, why: NO_PROOF.into(), for_good: true });
                    }
                    return Ok(Some(event));
                }
                Action::Wait { until_ms } => {
                    // A session that waits for ever says so with a time that no clock reaches.
                    let due = self.began.checked_add(Duration::from_millis(until_ms));
                    wait = due.map_or(wait, |due| wait.min(due));
                    break;
                }
                Action::Authenticate { secure_channel: true } => {
                    let why = "the controller wants a secure channel made by authentication, which isn't offered here";
                    return Err(Ended { cause: Cause::Other, why: why.into(), for_good: true });
                }
                Action::Authenticate { secure_channel: false } => self.authenticate()?,
            }
        }
        self.connection.send(&mut self.reactor);
        self.reactor.wait(1, wait, Duration::ZERO);
        not_refused(&self.reactor)?;
        Ok(None)
    }

    /// Proves who this host is. Nothing else is in flight meanwhile.
    fn authenticate(&mut self) -> Result<(), Ended> {
        let credentials = self.credentials.as_ref().ok_or_else(|| Ended {
            cause: Cause::Unproven,
            why: NO_SECRET.into(),
            for_good: true,
        })?;
        // Kept by the association: what is in flight must stay where it is, whatever happens.
        let proof = self.proof.insert(Proof::new(credentials, 0)?);
        let by = monotonic_now() + COMMAND_WITHIN;
        loop {
            let waited = match proof.go_on(&mut self.connection)? {
                Progress::Done(agreement) => {
                    self.proved = Some(agreement);
                    break;
                }
                Progress::Waiting(handle) => handle,
            };
            self.connection.send(&mut self.reactor);
            let done = loop {
                self.reactor.wait(1, by, Duration::ZERO);
                not_refused(&self.reactor)?;
                take(&mut self.connection, &mut self.reactor, self.token, &mut self.completions);
                let driven = self.connection.drive(&mut self.reactor, &mut self.reports);
                let done = self.reports.drain(..).find_map(|report| match report {
                    Report::Completed { command, cqe, received, .. } if command == waited => {
                        Some((cqe, received))
                    }
                    _ => None,
                });
                if let Some(done) = done {
                    break done;
                }
                driven.map_err(|broken| Ended {
                    cause: Cause::Other,
                    // Linux's target says nothing where keys differ.
                    why: format!("during authentication, as happens where keys differ: {}", broken.0),
                    for_good: false,
                })?;
                if monotonic_now() >= by {
                    let why = format!("no answer to authentication within {} s", COMMAND_WITHIN.as_secs());
                    return Err(Ended { cause: Cause::Other, why, for_good: false });
                }
            };
            proof.completed(&done.0, done.1)?;
        }
        let now = self.now_ms();
        self.session.authenticated(now);
        Ok(())
    }

    /// Takes what has come.
    fn book(&mut self) -> Result<(), Ended> {
        take(&mut self.connection, &mut self.reactor, self.token, &mut self.completions);
        let driven = self.connection.drive(&mut self.reactor, &mut self.reports);
        let now = self.now_ms();
        for report in self.reports.drain(..) {
            let Report::Completed { command, cqe, received, .. } = report else { continue };
            if let Some(done) = self.in_flight[usize::from(command.0)].take() {
                let data = &done.data[..done.data.len().min(received as usize)];
                self.session.completed(done.request_id, &cqe, data, now);
            }
        }
        Ok(driven?)
    }

    fn submit(&mut self, request: host::Request) -> Result<(), Ended> {
        let (kind, mut data) = match request.data {
            host::Data::None => (Data::None, Vec::new()),
            host::Data::In(len) => (Data::In { len }, vec![0; len as usize]),
            host::Data::Out(data) => (Data::Out { len: data.len() as u32 }, data),
        };
        let mem = memory_of(&mut data);
        let handle = self.connection.submit(request.sqe, kind, mem)?;
        self.in_flight[usize::from(handle.0)] = Some(InFlight { request_id: request.request_id, data });
        Ok(())
    }

    /// Closes the connection. What the kernel doesn't let go of in time is left to it.
    pub(crate) fn close(mut self) {
        self.connection.close(&mut self.reactor);
        let until = monotonic_now() + QUIET_WITHIN;
        while !self.connection.is_quiet() {
            if monotonic_now() > until || self.reactor.refused().is_some() {
                std::mem::forget((std::mem::take(&mut self.in_flight), self.proof.take()));
                return;
            }
            self.reactor.wait(1, until, Duration::ZERO);
            take(&mut self.connection, &mut self.reactor, self.token, &mut self.completions);
        }
    }
}

/// Nothing comes through a ring that the kernel takes no calls for any more.
fn not_refused(reactor: &Reactor) -> Result<(), Ended> {
    match reactor.refused() {
        None => Ok(()),
        Some(why) => Err(Ended { cause: Cause::Other, why: ring_refusal(&why), for_good: true }),
    }
}

fn take(
    connection: &mut Connection,
    reactor: &mut Reactor,
    token: u32,
    completions: &mut Vec<RingCompletion>,
) {
    reactor.take(token, completions);
    completions.drain(..).for_each(|c| connection.completed(c));
}

/// A connection that is initialised, to the first of the addresses that gives one.
fn connect(
    peer: &Peer,
    options: Options,
    token: u32,
    reactor: &mut Reactor,
) -> Result<(Connection, SocketAddr), Ended> {
    let mut last = format!("the name '{}' stands for no address", peer.address.host);
    for to in resolve(peer.address)? {
        match initialise(to, peer, options, token, reactor) {
            Ok(connection) => return Ok((connection, to)),
            Err(why) => last = why,
        }
        not_refused(reactor)?;
    }
    Err(Ended { cause: Cause::Other, why: last, for_good: false })
}

fn resolve(address: &Address) -> Result<impl Iterator<Item = SocketAddr>, Ended> {
    (address.host.as_str(), address.port).to_socket_addrs().map_err(|e| Ended {
        cause: Cause::Other,
        why: format!("the name '{}' can't be looked up: {e}", address.host),
        for_good: false,
    })
}

fn initialise(
    to: SocketAddr,
    peer: &Peer,
    options: Options,
    token: u32,
    reactor: &mut Reactor,
) -> Result<Connection, String> {
    let by = monotonic_now() + peer.within;
    let mut connection =
        Connection::open(to, options, token, 0, peer.way, reactor).map_err(|e| e.to_string())?;
    let (mut reports, mut completions) = (Vec::new(), Vec::new());
    let failed = loop {
        if let Err(broken) = connection.drive(reactor, &mut reports) {
            break broken.0;
        }
        if connection.is_ready() {
            return Ok(connection);
        }
        if (peer.stops)() {
            break "closed".into();
        }
        if reactor.refused().is_some() {
            break "the ring is refused".into(); // `connect` says more.
        }
        if monotonic_now() > by {
            break format!("no answer within {} s", peer.within.as_secs_f64());
        }
        reactor.wait(1, by, Duration::ZERO);
        take(&mut connection, reactor, token, &mut completions);
    };
    connection.close(reactor);
    let until = monotonic_now() + QUIET_WITHIN;
    while !connection.is_quiet() && monotonic_now() < until && reactor.refused().is_none() {
        reactor.wait(1, until, Duration::ZERO);
        take(&mut connection, reactor, token, &mut completions);
    }
    Err(failed + peer.way.hint())
}
