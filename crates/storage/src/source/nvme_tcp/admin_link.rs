//! The admin queue of one controller over a blocking socket: one command after another, no I/O queues. For looking
//! at a controller, where nothing is in a hurry.

use super::{refused, By, Tls, Transport, OVER_TLS};
use crate::source::controller::Accepted;
use crate::source::nvme::Cause;
use crate::Error;
use forebay_io::{auth_random, host_secrets, DHCHAP_SECRET_VARIABLE};
use forebay_nvme::auth::{Credentials, HostAuth, HostStep, Policy};
use forebay_nvme::command::Cqe;
use forebay_nvme::host::{Action, Care, Data, Event, Failure, FailureKind, Request, RequestId, Session};
use forebay_nvme::transport::tcp::{host as tcp, host::HostEnd, Fatal, Outgoing, PayloadPlace, Segment};
use std::io::{ErrorKind, IoSliceMut, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Commands that an admin queue may have in flight here.
const DEPTH: u16 = 31;
/// Data that an admin command's capsule may carry (tcp, section 3.3.2.2).
const IN_CAPSULE_BYTES: u32 = 8192;

/// One command outside of a session.
#[derive(Default)]
struct Alone {
    answer: Option<(Cqe, Vec<u8>)>,
}

impl Care for Alone {
    fn next(&mut self, now_ms: u64) -> Result<Action, Failure> {
        Ok(Action::Wait { until_ms: now_ms + 1000 })
    }
    fn completed(&mut self, _: RequestId, cqe: &Cqe, data: &[u8], _: u64) {
        self.answer = Some((*cqe, data.to_vec()));
    }
    fn authenticated(&mut self, _: u64) {}
}

pub(crate) struct Link {
    pub accepted: Accepted,
    /// Files with the secrets of this host and of the controller; else those of the environment.
    pub secret_files: (Option<PathBuf>, Option<PathBuf>),
    peer: String,
    host_nqn: String,
    subsystem_nqn: String,
    socket: TcpStream,
    /// Encryption behind that socket.
    tls: Option<Arc<Tls>>,
    end: HostEnd,
    outgoing: Outgoing,
    /// By handle; an end uses up to twice its depth.
    flights: Vec<Option<Flight>>,
    begun: Instant,
    timeout: Duration,
}

struct Flight {
    request_id: RequestId,
    data: Vec<u8>,
}

impl Link {
    /// Connects, over TLS where there is one, and exchanges ICReq and ICResp, both digests asked for.
    pub(crate) fn open(
        tls: Option<Arc<Tls>>,
        address: SocketAddr,
        host_nqn: &str,
        subsystem_nqn: &str,
        timeout: Duration,
    ) -> Result<Link, Error> {
        let socket = match &tls {
            None => TcpStream::connect_timeout(&address, timeout),
            // An end of a pair, which takes the same calls.
            Some(tls) => tls.connect(address).map(TcpStream::from),
        };
        let socket = socket.map_err(|e| unreachable_peer(address, &e))?;
        let _ = socket.set_nodelay(true);
        let options = tcp::Options { header_digest: true, data_digest: true, depth: DEPTH, r2ts: 1, bulk: 0 };
        let mut end = HostEnd::new(options);
        end.set_in_capsule_max(IN_CAPSULE_BYTES);
        let mut link = Link {
            accepted: Accepted::default(),
            secret_files: (None, None),
            peer: address.to_string(),
            host_nqn: host_nqn.into(),
            subsystem_nqn: subsystem_nqn.into(),
            socket,
            tls,
            end,
            outgoing: Outgoing::default(),
            flights: (0..2 * DEPTH).map(|_| None).collect(),
            begun: Instant::now(),
            timeout,
        };
        link.shake_hands()?;
        Ok(link)
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Runs the session until it is ready.
    pub(crate) fn bring_up(&mut self, session: &mut impl Care) -> Result<(), Error> {
        self.drive(session, |event| event == Event::Ready)
    }

    /// Shuts the controller down. One that doesn't answer is left as it is.
    pub(crate) fn shut_down(mut self, session: &mut Session) {
        session.shut_down(self.now_ms());
        let until = Instant::now() + self.timeout.min(Duration::from_secs(2));
        while !session.is_shut_down() && Instant::now() < until {
            if self.step(session).is_err() {
                return;
            }
        }
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }

    fn drive(&mut self, session: &mut impl Care, is_end: impl Fn(Event) -> bool) -> Result<(), Error> {
        let until = Instant::now() + self.timeout;
        while Instant::now() < until {
            match self.step(session)? {
                Some(event) if is_end(event.clone()) => return Ok(()),
                _ => {}
            }
        }
        Err(self.silent())
    }

    /// One action of the session.
    fn step(&mut self, session: &mut impl Care) -> Result<Option<Event>, Error> {
        let now_ms = self.now_ms();
        match session.next(now_ms).map_err(|f| self.failed(&f))? {
            Action::Submit(request) => self.submit(request).map(|()| None),
            Action::Event(event) => Ok(Some(event)),
            Action::Authenticate { secure_channel } => {
                self.authenticate(secure_channel)?;
                session.authenticated(self.now_ms());
                Ok(None)
            }
            Action::Wait { until_ms } => {
                self.send()?;
                let wait = Duration::from_millis(until_ms.saturating_sub(now_ms)).min(self.timeout);
                if self.receive(wait)? {
                    self.take_events(session)?;
                }
                Ok(None)
            }
        }
    }

    fn shake_hands(&mut self) -> Result<(), Error> {
        let until = Instant::now() + self.timeout;
        self.send()?;
        while Instant::now() < until {
            if !self.receive(self.timeout)? {
                continue;
            }
            match self.end.next() {
                Ok(Some(tcp::Event::Ready { max_h2c, header_digest, data_digest })) => {
                    self.accepted = Accepted { max_h2c_bytes: max_h2c, header_digest, data_digest };
                    return Ok(());
                }
                Ok(_) => {}
                Err(fatal) => return Err(self.broken(fatal)),
            }
        }
        Err(self.silent())
    }

    /// DH-HMAC-CHAP with the secrets of the environment.
    fn authenticate(&mut self, secure_channel: bool) -> Result<(), Error> {
        let asked = format!("{} at {}", self.subsystem_nqn, self.peer);
        if secure_channel {
            return Err(Error::machine(
                asked,
                "requires a secure channel (TLS)",
                "a target that doesn't require TLS",
            ));
        }
        let next = format!(
            "{}=DHHC-1:… (the key that the target has for {})",
            DHCHAP_SECRET_VARIABLE, self.host_nqn
        );
        let Some((host, controller)) =
            host_secrets(self.secret_files.0.as_deref(), self.secret_files.1.as_deref())?
        else {
            return Err(Error::request(
                asked,
                "requires this host to authenticate, and there is no key for it",
                next,
            ));
        };
        let (host_nqn, subsystem_nqn) = (self.host_nqn.clone(), self.subsystem_nqn.clone());
        let credentials =
            Credentials { host_nqn, subsystem_nqn, host, controller, policy: Policy::default() };
        let mut exchange = HostAuth::new(Arc::new(credentials), auth_random()?, 1);
        let mut step = exchange.start();
        while let Some((sqe, data)) = step.command() {
            let sends = matches!(data, Data::Out(_));
            let (cqe, came) = self.command(Request { request_id: RequestId(u16::MAX), sqe, data })?;
            if !cqe.status().is_success() {
                let found = format!("authentication failed with status {:#x}", cqe.status().code.0);
                return Err(Error::request(asked, found, next));
            }
            step = if sends { exchange.sent() } else { exchange.received(&came) };
        }
        match step {
            HostStep::Failed(failure) => {
                Err(Error::request(asked, format!("authentication failed: {failure}"), next))
            }
            _ => Ok(()),
        }
    }

    /// One command, and what came of it.
    fn command(&mut self, request: Request) -> Result<(Cqe, Vec<u8>), Error> {
        let mut alone = Alone::default();
        self.submit(request)?;
        let until = Instant::now() + self.timeout;
        while Instant::now() < until {
            self.step(&mut alone)?;
            if let Some(answer) = alone.answer {
                return Ok(answer);
            }
        }
        Err(self.silent())
    }

    fn submit(&mut self, request: Request) -> Result<(), Error> {
        let (carried, data) = match request.data {
            Data::None => (tcp::Data::None, Vec::new()),
            Data::In(len) => (tcp::Data::In { len }, vec![0; len as usize]),
            Data::Out(data) => (tcp::Data::Out { len: data.len() as u32 }, data),
        };
        let handle = self.end.submit(request.sqe, carried).map_err(|_| {
            let found = format!("its session has more than {DEPTH} commands in flight");
            Error::run(
                format!("the controller at {}", self.peer),
                found,
                "report this: it is a bug in Forebay",
            )
        })?;
        self.flights[usize::from(handle.0)] = Some(Flight { request_id: request.request_id, data });
        Ok(())
    }

    /// All that can be sent now.
    fn send(&mut self) -> Result<(), Error> {
        loop {
            self.outgoing.bytes.clear();
            self.outgoing.segments.clear();
            self.end.take_outgoing(&mut self.outgoing);
            if self.outgoing.segments.is_empty() {
                return Ok(());
            }
            let bytes = self.wire();
            self.socket
                .set_write_timeout(Some(self.timeout))
                .and_then(|()| self.socket.write_all(&bytes))
                .map_err(|e| {
                    let found = format!("{e}{}", self.over_tls());
                    Error::machine(format!("sending to {}", self.peer), found, "ping, then try again")
                })?;
        }
    }

    /// Returns the listed entries as bytes on the wire.
    fn wire(&self) -> Vec<u8> {
        let (mut bytes, mut digest) = (Vec::new(), 0);
        for segment in &self.outgoing.segments {
            match *segment {
                Segment::Bytes { start, end } => {
                    bytes.extend_from_slice(&self.outgoing.bytes[start..end]);
                    digest = 0;
                }
                Segment::Payload { command, offset, len } => {
                    let flight = self.flights[usize::from(command.0)].as_ref().expect("a command in flight");
                    let payload = &flight.data[offset as usize..(offset + len) as usize];
                    digest = crc32c::crc32c_append(digest, payload);
                    bytes.extend_from_slice(payload);
                }
                Segment::Digest => bytes.extend_from_slice(&digest.to_le_bytes()),
                Segment::Release { .. } => {}
            }
        }
        bytes
    }

    /// One receive. False: nothing came in time.
    fn receive(&mut self, wait: Duration) -> Result<bool, Error> {
        let wait = wait.max(Duration::from_millis(1));
        let expect = self.end.expect();
        let mut nowhere = [];
        let place = match expect.payload {
            Some(place) => payload(&mut self.flights, place),
            None => &mut nowhere[..],
        };
        let mut places = [IoSliceMut::new(place), IoSliceMut::new(expect.own)];
        let got =
            self.socket.set_read_timeout(Some(wait)).and_then(|()| self.socket.read_vectored(&mut places));
        match got {
            Ok(0) => Err(Error::machine(
                format!("the controller at {}", self.peer),
                format!("closed the connection{}", self.over_tls()),
                "its log says why; on a Forebay target that is its standard error",
            )),
            Ok(n) => {
                self.end.received(n);
                Ok(true)
            }
            Err(e)
                if matches!(
                    e.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                ) =>
            {
                Ok(false)
            }
            Err(e) => Err(Error::machine(
                format!("receiving from {}", self.peer),
                format!("{e}{}", self.over_tls()),
                "ping, then try again",
            )),
        }
    }

    fn take_events(&mut self, session: &mut impl Care) -> Result<(), Error> {
        loop {
            let event = match self.end.next() {
                Ok(Some(event)) => event,
                Ok(None) => return Ok(()),
                Err(fatal) => return Err(self.broken(fatal)),
            };
            match event {
                tcp::Event::Copy { place, bytes } => payload(&mut self.flights, place).copy_from_slice(bytes),
                tcp::Event::DataEnd { place, digest } => {
                    if crc32c::crc32c(payload(&mut self.flights, place)) != digest {
                        self.end.digest_failed(place.command);
                    }
                }
                tcp::Event::Completed { command, cqe, received, held } => {
                    // All that is listed is sent before anything is received.
                    if held {
                        self.end.release(command);
                    }
                    let flight = self.flights[usize::from(command.0)].take().expect("a command in flight");
                    let came = flight.data.len().min(received as usize);
                    session.completed(
                        flight.request_id,
                        &cqe,
                        &flight.data[..came],
                        self.begun.elapsed().as_millis() as u64,
                    );
                }
                tcp::Event::Ready { .. } | tcp::Event::Placed(_) => {}
            }
        }
    }

    /// A violation of the protocol: the other end is told, and we leave.
    fn broken(&mut self, fatal: Fatal) -> Error {
        if !fatal.by_peer {
            let _ = self.send();
        }
        let who = if fatal.by_peer { "ended the connection" } else { "doesn't speak NVMe/TCP as it should" };
        let next = "check that the port is an NVMe/TCP one: forebay discover HOST:PORT";
        Error::machine(format!("the peer at {}", self.peer), format!("{who}: {fatal}"), next)
    }

    fn failed(&self, failure: &Failure) -> Error {
        let asked = format!("{} at {}", failure.asked, self.peer);
        match failure.kind {
            FailureKind::Refused => Error::request(
                asked,
                failure.found.clone(),
                refused(
                    Cause::from_failure(failure),
                    &self.peer,
                    (&self.subsystem_nqn, &self.host_nqn),
                    By { transport: Transport::Tcp, tls: self.tls.is_some() },
                ),
            ),
            FailureKind::Protocol => {
                Error::machine(asked, failure.found.clone(), "report it to the vendor of the target")
            }
            FailureKind::Again => Error::machine(asked, failure.found.clone(), "try again"),
        }
    }

    /// A frequent cause of connections that come to nothing.
    fn over_tls(&self) -> &'static str {
        self.tls.as_ref().map_or("", |_| OVER_TLS)
    }

    fn silent(&self) -> Error {
        let found = format!("no answer within {:.1} s{}", self.timeout.as_secs_f64(), self.over_tls());
        Error::machine(
            format!("the controller at {}", self.peer),
            found,
            "check that the port is an NVMe/TCP one",
        )
    }
}

fn payload(flights: &mut [Option<Flight>], place: PayloadPlace) -> &mut [u8] {
    let flight = flights[usize::from(place.command.0)].as_mut().expect("a command in flight");
    &mut flight.data[place.offset as usize..(place.offset + place.len) as usize]
}

fn unreachable_peer(address: SocketAddr, error: &std::io::Error) -> Error {
    let next = match error.kind() {
        ErrorKind::ConnectionRefused => format!(
            "start the target there: forebay serve SOURCE --nqn NQN --listen {address}; or another port"
        ),
        _ => "ping it, and open the port in its firewall".into(),
    };
    Error::machine(format!("{address}"), format!("can't be connected to: {error}"), next)
}
