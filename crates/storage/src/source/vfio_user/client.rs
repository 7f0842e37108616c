//! The client's end of vfio-user, protocol version 0.x: one request at a time
//! over a Unix socket, each within its time, and doorbells that other threads
//! post without waiting for an answer.
//!
//! What a server sends is bounded and never trusted: a length out of range, an
//! answer that is too short, or silence end the connection, nothing more.

use super::wire::{self, Answer, Command, DeviceInfo, Header, IoFd, IrqInfo, Region, HEADER_BYTES};
use forebay_io::monotonic_now;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    connect, recvmsg, sendmsg, socket_with, sockopt, AddressFamily, RecvAncillaryBuffer,
    RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::path::Path;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};

/// Longest body of a message from the server.
const BODY_BYTES_MAX: usize = 64 << 10;
/// Descriptors that we take with one message, and that we send with one at most.
const FDS_MAX: usize = 64;
/// Message identifiers of posted writes; those of requests are below.
const POSTED: u16 = 0x8000;

/// Failure of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// The connection is over.
    Gone(String),
    /// No answer in time.
    Late,
    /// The server's error number.
    Refused(i32),
    /// The server said something that the protocol doesn't have.
    Garbled(String),
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::Gone(why) => write!(f, "the connection is over: {why}"),
            Wrong::Late => f.write_str("no answer in time"),
            Wrong::Refused(errno) => {
                write!(f, "the server refuses it: {}", std::io::Error::from_raw_os_error(*errno))
            }
            Wrong::Garbled(what) => write!(f, "the server violates the protocol: {what}"),
        }
    }
}

/// A request that failed, and which it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trouble {
    pub asked: String,
    pub wrong: Wrong,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.asked, self.wrong)
    }
}

/// The sending half, which several threads share.
#[derive(Debug)]
pub(crate) struct Line {
    socket: OwnedFd,
    /// Messages don't interleave.
    turn: Mutex<()>,
    posted: AtomicU16,
}

/// Result of a posted write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Posted {
    Sent,
    /// The socket is full or somebody else's turn: again in a moment.
    Later,
    Gone,
}

impl Line {
    /// Writes a doorbell of a region without waiting for anything.
    pub(crate) fn post(&self, region: u32, offset: u64, value: u32) -> Posted {
        let turn = match self.turn.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Posted::Later,
        };
        let id = POSTED | self.posted.fetch_add(1, Ordering::Relaxed);
        let message = wire::doorbell(id, region, offset, value);
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let sent = rustix::net::send(&self.socket, &message, flags);
        drop(turn);
        match sent {
            Ok(bytes) if bytes == message.len() => Posted::Sent,
            Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => Posted::Later,
            // Half a message leaves a stream that nobody can read on.
            _ => Posted::Gone,
        }
    }

    fn send(&self, message: &[u8], fds: &[BorrowedFd<'_>], until: Instant) -> Result<(), Wrong> {
        let _turn = self.turn.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (mut at, mut fds) = (0, fds);
        while at < message.len() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
                return Err(Wrong::Garbled(format!("{} descriptors don't fit a message", fds.len())));
            }
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match sendmsg(&self.socket, &[IoSlice::new(&message[at..])], &mut control, flags) {
                Ok(sent) => (at, fds) = (at + sent, &[]),
                Err(Errno::AGAIN | Errno::NOBUFS) => ready(&self.socket, PollFlags::OUT, until)?,
                Err(Errno::INTR) => {}
                Err(e) => return Err(Wrong::Gone(e.to_string())),
            }
        }
        Ok(())
    }
}

/// Waits until the socket can be read or written, or its time is up.
fn ready(socket: &OwnedFd, what: PollFlags, until: Instant) -> Result<(), Wrong> {
    let left = until.saturating_duration_since(monotonic_now());
    if left.is_zero() {
        return Err(Wrong::Late);
    }
    let limit = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
    match poll(&mut [PollFd::new(socket, what)], Some(&limit)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(e) => Err(Wrong::Gone(e.to_string())),
    }
}

/// One connection with a server; requests belong to one thread.
#[derive(Debug)]
pub(crate) struct Client {
    line: Arc<Line>,
    next: u16,
    /// Longest time of a request.
    within: Duration,
    /// Descriptors that the server takes with one message.
    fds_max: usize,
}

impl Client {
    /// Connects, and agrees on a version.
    ///
    /// # Errors
    /// Nobody listens there, or the server doesn't answer `within` the time.
    pub(crate) fn connect(socket: &Path, within: Duration) -> Result<Client, Trouble> {
        let asked = || format!("connect to {}", socket.display());
        let gone = |e: Errno| Trouble { asked: asked(), wrong: Wrong::Gone(e.to_string()) };
        let address = SocketAddrUnix::new(socket).map_err(gone)?;
        let fd =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).map_err(gone)?;
        // A listener whose backlog is full lets connect wait.
        sockopt::set_socket_timeout(&fd, sockopt::Timeout::Send, Some(within)).map_err(gone)?;
        connect(&fd, &address).map_err(|e| match e {
            Errno::AGAIN => Trouble { asked: asked(), wrong: Wrong::Late },
            e => gone(e),
        })?;
        Client::over(fd, within)
    }

    /// As `connect`, over a socket that is connected.
    pub(crate) fn over(socket: OwnedFd, within: Duration) -> Result<Client, Trouble> {
        let line = Arc::new(Line { socket, turn: Mutex::new(()), posted: AtomicU16::new(0) });
        let mut client = Client { line, next: 0, within, fds_max: 1 };
        let answer = client.ask(Command::Version, &wire::version(), &[])?;
        client.fds_max = wire::read_version(&answer.body)
            .map_err(|what| client.garbled(Command::Version, what))?
            .clamp(1, FDS_MAX);
        Ok(client)
    }

    /// For doorbells, from any thread.
    pub(crate) fn line(&self) -> Arc<Line> {
        self.line.clone()
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.line.socket.as_fd()
    }

    pub(crate) fn info(&mut self) -> Result<DeviceInfo, Trouble> {
        let answer = self.ask(Command::DeviceInfo, &wire::numbers(&[16, 0, 0, 0]), &[])?;
        DeviceInfo::read(&answer.body).ok_or_else(|| self.short(Command::DeviceInfo))
    }

    pub(crate) fn region(&mut self, index: u32) -> Result<Region, Trouble> {
        let answer = self.ask(Command::RegionInfo, &wire::region_info(index), &[])?;
        Region::read(&answer.body).ok_or_else(|| self.short(Command::RegionInfo))
    }

    pub(crate) fn interrupts(&mut self, index: u32) -> Result<IrqInfo, Trouble> {
        let answer = self.ask(Command::IrqInfo, &wire::numbers(&[16, 0, index, 0]), &[])?;
        IrqInfo::read(&answer.body).ok_or_else(|| self.short(Command::IrqInfo))
    }

    /// Vectors from 0 on are signalled by these descriptors.
    pub(crate) fn set_interrupts(&mut self, index: u32, fds: &[BorrowedFd<'_>]) -> Result<(), Trouble> {
        for (n, some) in fds.chunks(self.fds_max).enumerate() {
            let start = (n * self.fds_max) as u32;
            let flags = wire::IRQ_DATA_EVENTFD | wire::IRQ_ACTION_TRIGGER;
            let body = wire::numbers(&[20, flags, index, start, some.len() as u32]);
            self.ask(Command::SetIrqs, &body, some)?;
        }
        Ok(())
    }

    /// Descriptors that ring doorbells of a region, where the server has them.
    pub(crate) fn io_fds(&mut self, index: u32) -> Result<Vec<IoFd>, Trouble> {
        let answer = self.ask(Command::RegionIoFds, &wire::io_fds(index, BODY_BYTES_MAX as u32), &[])?;
        wire::read_io_fds(answer).map_err(|what| self.garbled(Command::RegionIoFds, what))
    }

    /// The device may read and write `bytes` of the descriptor, from its beginning, at `address`.
    pub(crate) fn map(&mut self, fd: BorrowedFd<'_>, address: u64, bytes: u64) -> Result<(), Trouble> {
        self.ask(Command::DmaMap, &wire::dma_map(address, bytes), &[fd]).map(|_| ())
    }

    pub(crate) fn unmap(&mut self, address: u64, bytes: u64) -> Result<(), Trouble> {
        self.ask(Command::DmaUnmap, &wire::dma_unmap(address, bytes), &[]).map(|_| ())
    }

    pub(crate) fn read(&mut self, region: u32, offset: u64, into: &mut [u8]) -> Result<(), Trouble> {
        let head = wire::access(offset, region, into.len() as u32);
        let answer = self.ask(Command::RegionRead, &head, &[])?;
        match answer.body.get(head.len()..head.len() + into.len()) {
            Some(data) => into.copy_from_slice(data),
            None => return Err(self.short(Command::RegionRead)),
        }
        Ok(())
    }

    pub(crate) fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Trouble> {
        let mut body = wire::access(offset, region, data.len() as u32).to_vec();
        body.extend_from_slice(data);
        self.ask(Command::RegionWrite, &body, &[]).map(|_| ())
    }

    /// Reads away what came unasked: answers to posted writes, and requests of the server. Err: the connection is over.
    pub(crate) fn drain(&mut self) -> Result<(), Wrong> {
        let now = monotonic_now();
        while pending(&self.line.socket)? {
            let (header, _) = self.receive(now + self.within)?;
            self.unasked(&header)?;
        }
        Ok(())
    }

    fn ask(&mut self, command: Command, body: &[u8], fds: &[BorrowedFd<'_>]) -> Result<Answer, Trouble> {
        let asked = || command.name().to_string();
        self.exchange(command, body, fds).map_err(|wrong| Trouble { asked: asked(), wrong })
    }

    fn exchange(&mut self, command: Command, body: &[u8], fds: &[BorrowedFd<'_>]) -> Result<Answer, Wrong> {
        let until = monotonic_now() + self.within;
        self.next = (self.next + 1) % POSTED;
        let message = Header::request(self.next, command, body.len()).before(body);
        self.line.send(&message, fds, until)?;
        loop {
            let (header, answer) = self.receive(until)?;
            if !header.is_answer() || header.id != self.next {
                self.unasked(&header)?;
                continue;
            }
            if header.command != command as u16 {
                return Err(Wrong::Garbled(format!("an answer to command {}", header.command)));
            }
            return match header.error() {
                None => Ok(answer),
                Some(errno) => Err(Wrong::Refused(errno)),
            };
        }
    }

    /// All memory is mapped, so a request of the server for it is refused; late answers mean nothing any more.
    fn unasked(&self, header: &Header) -> Result<(), Wrong> {
        if header.is_answer() || header.wants_no_answer() {
            return Ok(());
        }
        let refusal = header.refusal(libc::EOPNOTSUPP).before(&[]);
        self.line.send(&refusal, &[], monotonic_now() + self.within)
    }

    fn receive(&self, until: Instant) -> Result<(Header, Answer), Wrong> {
        let (mut head, mut fds) = ([0; HEADER_BYTES], Vec::new());
        self.fill(&mut head, &mut fds, until)?;
        let header = Header::read(&head);
        let body_bytes = (header.bytes as usize).checked_sub(HEADER_BYTES).filter(|n| *n <= BODY_BYTES_MAX);
        let Some(body_bytes) = body_bytes else {
            return Err(Wrong::Garbled(format!("a message of {} bytes", header.bytes)));
        };
        let mut body = vec![0; body_bytes];
        self.fill(&mut body, &mut fds, until)?;
        Ok((header, Answer { body, fds }))
    }

    fn fill(&self, into: &mut [u8], fds: &mut Vec<OwnedFd>, until: Instant) -> Result<(), Wrong> {
        let mut at = 0;
        while at < into.len() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let mut parts = [IoSliceMut::new(&mut into[at..])];
            match recvmsg(&self.line.socket, &mut parts, &mut control, flags) {
                Ok(came) if came.bytes == 0 => return Err(Wrong::Gone("the server hung up".into())),
                Ok(came) => {
                    at += came.bytes;
                    for message in control.drain() {
                        if let RecvAncillaryMessage::ScmRights(some) = message {
                            fds.extend(some.take(FDS_MAX.saturating_sub(fds.len())));
                        }
                    }
                }
                Err(Errno::AGAIN) => ready(&self.line.socket, PollFlags::IN, until)?,
                Err(Errno::INTR) => {}
                Err(e) => return Err(Wrong::Gone(e.to_string())),
            }
        }
        Ok(())
    }

    fn short(&self, command: Command) -> Trouble {
        self.garbled(command, "an answer that is too short".into())
    }

    fn garbled(&self, command: Command, what: String) -> Trouble {
        Trouble { asked: command.name().into(), wrong: Wrong::Garbled(what) }
    }
}

/// Returns whether something is to be read, or the other end is gone.
fn pending(socket: &OwnedFd) -> Result<bool, Wrong> {
    let mut fds = [PollFd::new(socket, PollFlags::IN)];
    match poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
        Ok(0) | Err(Errno::INTR) => Ok(false),
        Ok(_) => Ok(true),
        Err(e) => Err(Wrong::Gone(e.to_string())),
    }
}
