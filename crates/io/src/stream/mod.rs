//! One TCP connection of NVMe/TCP on a worker's reactor: it moves the bytes that
//! an end (`forebay_nvme::transport::tcp`) lists and expects, and waits for
//! nothing.
//!
//! Out: one `sendmsg` at a time goes through the ring, headers and payload
//! gathered from where they lie. In: what is there is received at once, directly
//! to its place; a receive waits in the ring only when nothing is. So an I/O at
//! depth 1 costs one `io_uring_enter`, which sends, waits and receives its header,
//! and one `recvmsg` for its payload; at depth, one `recvmsg` for each I/O and one
//! `sendmsg` for many.
//!
//! How a driver uses it, with one token for all its streams:
//!
//! ```text
//! reactor.take(token, &mut completions);
//! for c in completions { streams[stream::index_of(c)].completed(c) }
//! for each stream that something completed for, or that has something to send:
//!     while stream.receive(reactor, &at)? == Received::Some {
//!         while let Some(event) = stream.end().next()? { … }
//!     }
//!     stream.send(reactor, &at);
//!     stream.take_released(&mut handles);      // targets: the slots of these are free
//! ```
//!
//! `at` says where a command's payload lies. That memory belongs to the stream
//! from the command on until: its response came, or its `Release` was taken, or
//! the stream was closed and is quiet.

#![allow(unsafe_code, reason = "a socket's messages name buffers by address")]

mod receive;
mod send;
#[cfg(test)]
mod tests;

use crate::arena::Mem;
use crate::crc::crc32c;
use crate::reactor::{Completion, Reactor};
use forebay_nvme::transport::tcp::host::HostEnd;
use forebay_nvme::transport::tcp::target::TargetEnd;
use forebay_nvme::transport::tcp::{Expect, Handle, Outgoing, PayloadPlace};
use io_uring::{opcode, types};
use receive::Receiver;
use send::Sender;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

/// The end of a connection whose bytes a stream moves.
pub trait End {
    fn take_outgoing(&mut self, out: &mut Outgoing);
    fn expect(&mut self) -> Expect<'_>;
    fn received(&mut self, n: usize);
}

macro_rules! end {
    ($end:ty) => {
        impl End for $end {
            fn take_outgoing(&mut self, out: &mut Outgoing) {
                <$end>::take_outgoing(self, out);
            }
            fn expect(&mut self) -> Expect<'_> {
                <$end>::expect(self)
            }
            fn received(&mut self, n: usize) {
                <$end>::received(self, n);
            }
        }
    };
}
end!(HostEnd);
end!(TargetEnd);

#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// SO_SNDBUF and SO_RCVBUF; None: the kernel tunes them.
    pub send_buffer: Option<u32>,
    pub receive_buffer: Option<u32>,
    /// Payload leaves by SENDMSG_ZC: may pay with real network cards; costs on loopback and veth, where the kernel copies
    /// anyway (docs/decisions, 12).
    pub zero_copy: bool,
}

/// Result of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// The end has bytes: drain its `next`, then receive again.
    Some,
    /// Nothing now: a receive waits in the ring, and its completion says when.
    Later,
    /// The peer has closed its side, or the stream was closed.
    Ended,
}

const SEND: u32 = 0;
const RECEIVE: u32 = 1;
const CONNECT: u32 = 2;
const KIND_BITS: u32 = 2;

/// Returns the index of a completion's stream among its owner's.
pub fn stream_index(completion: Completion) -> usize {
    (completion.tag >> KIND_BITS) as usize
}

/// The tag of one kind of completion (below 4) of the owner's connection of this number.
pub(crate) fn tag_of(index: u32, kind: u32) -> u32 {
    index << KIND_BITS | kind
}

/// Returns the kind of a completion.
pub(crate) fn kind_of(completion: Completion) -> u32 {
    completion.tag & ((1 << KIND_BITS) - 1)
}

/// Target of the completions of one stream's ring operations: the owner's token, and its number among the owner's.
#[derive(Clone, Copy, Debug)]
struct CompletionTag {
    fd: RawFd,
    token: u32,
    index: u32,
}

impl CompletionTag {
    fn tag(&self, kind: u32) -> u32 {
        tag_of(self.index, kind)
    }
}

/// Memory that the kernel may point to while operations are in flight: never moved.
struct Inner<E> {
    end: E,
    sender: Sender,
    receiver: Receiver,
    address: Address,
}

#[repr(C, align(8))]
struct Address([u8; 28], libc::socklen_t);

pub struct Stream<E: End> {
    /// None only while it is dropped.
    inner: Option<Box<Inner<E>>>,
    socket: OwnedFd,
    port: CompletionTag,
    connecting: bool,
    closed: bool,
    /// The first error of any operation.
    error: Option<i32>,
}

impl<E: End> Stream<E> {
    /// Over a socket that is connected. `index` is below 2^30 and alone with `token` among streams that aren't
    /// quiet.
    ///
    /// # Errors
    /// The kernel's, for a socket that isn't TCP.
    pub fn new(socket: OwnedFd, end: E, token: u32, index: u32, options: Options) -> io::Result<Stream<E>> {
        set_up(&socket, options)?;
        Ok(Stream::over(socket, end, token, index, options))
    }

    /// A new connection, which is made without waiting; what there is to send goes once it stands.
    ///
    /// # Errors
    /// The kernel's, where there is no socket to be had. A refused connection is an error of `receive`.
    pub fn connect(
        to: SocketAddr,
        end: E,
        token: u32,
        index: u32,
        options: Options,
        reactor: &mut Reactor,
    ) -> io::Result<Stream<E>> {
        let family = if to.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        // SAFETY: a fresh descriptor, owned from here on.
        let socket = unsafe {
            let fd = libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        set_up(&socket, options)?;
        keep_unpaced(&socket, to.ip());
        let mut stream = Stream::over(socket, end, token, index, options);
        stream.connecting = true;
        let port = stream.port;
        let address = &mut stream.inner().address;
        *address = Address::from_socket(to);
        let entry = opcode::Connect::new(types::Fd(port.fd), address.0.as_ptr().cast(), address.1).build();
        // SAFETY: the address lies in `inner`, which lives until the completion.
        unsafe { reactor.push(port.token, port.tag(CONNECT), entry) };
        Ok(stream)
    }

    fn over(socket: OwnedFd, end: E, token: u32, index: u32, options: Options) -> Stream<E> {
        let port = CompletionTag { fd: socket.as_raw_fd(), token, index };
        let inner = Inner {
            end,
            sender: Sender::new(options.zero_copy),
            receiver: Receiver::default(),
            address: Address([0; 28], 0),
        };
        Stream { inner: Some(Box::new(inner)), socket, port, connecting: false, closed: false, error: None }
    }

    fn inner(&mut self) -> &mut Inner<E> {
        self.inner.as_mut().expect("there until it is dropped")
    }

    pub fn end(&mut self) -> &mut E {
        &mut self.inner().end
    }

    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// The connection stands, as far as this side knows.
    #[cfg(test)]
    pub(crate) fn is_connected(&self) -> bool {
        !self.connecting && self.error.is_none() && !self.closed
    }

    /// Books what completed for this stream; `receive` and `send` go on from there.
    pub fn completed(&mut self, c: Completion) {
        let error = match kind_of(c) {
            SEND => self.inner().sender.completed(c),
            RECEIVE => self.inner().receiver.completed(c),
            _ => {
                self.connecting = false;
                (c.result < 0).then_some(-c.result)
            }
        };
        self.error = self.error.or(error);
    }

    /// Takes what has come, at most one receive's worth; or lets the ring wait for it.
    ///
    /// # Errors
    /// What ended the connection, whichever operation saw it.
    pub fn receive(
        &mut self,
        reactor: &mut Reactor,
        at: &impl Fn(PayloadPlace) -> Mem,
    ) -> io::Result<Received> {
        if self.closed {
            return Ok(Received::Ended);
        }
        if self.connecting {
            return Ok(Received::Later);
        }
        let port = self.port;
        let inner = self.inner.as_mut().expect("there until it is dropped");
        // What came before an error is received first.
        match inner.receiver.step(&mut inner.end, port, self.error.is_none(), reactor, at) {
            Ok(Received::Later) => match self.error {
                Some(errno) => Err(io::Error::from_raw_os_error(errno)),
                None => Ok(Received::Later),
            },
            other => other,
        }
    }

    /// Starts to send what the end has, unless a send is in flight: then its completion brings it up again.
    pub fn send(&mut self, reactor: &mut Reactor, at: &impl Fn(PayloadPlace) -> Mem) {
        if self.closed || self.connecting || self.error.is_some() {
            return;
        }
        let port = self.port;
        let inner = self.inner.as_mut().expect("there until it is dropped");
        inner.sender.step(&mut inner.end, port, reactor, at);
    }

    /// Digests what is received from now on as it comes.
    pub fn set_digested(&mut self) {
        self.inner().receiver.digested = true;
    }

    /// The kernel may be writing what it receives to that command's payload, or did, and the end doesn't know yet.
    pub fn receives_into(&self, command: Handle) -> bool {
        self.inner.as_ref().is_some_and(|inner| inner.receiver.is_aimed_at(command))
    }

    /// All that the end listed so far has gone to the kernel.
    pub fn is_sent(&self) -> bool {
        self.inner.as_ref().is_some_and(|inner| inner.sender.is_done())
    }

    /// Appends the commands whose `Release` was sent.
    pub fn take_released(&mut self, into: &mut Vec<Handle>) {
        into.append(&mut self.inner().sender.released);
    }

    /// Ends the connection. Operations in flight complete soon; until `is_quiet` what they point to stays.
    pub fn close(&mut self, reactor: &mut Reactor) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        shut_down(&self.socket);
        let port = self.port;
        let inner = self.inner();
        let (sends, receives) = (inner.sender.is_in_flight(), inner.receiver.is_armed());
        if sends {
            reactor.cancel(port.token, port.tag(SEND));
            reactor.cancel_soon(port.token, port.tag(SEND));
        }
        for (kind, cancel) in [(RECEIVE, receives), (CONNECT, self.connecting)] {
            if cancel {
                reactor.cancel(port.token, port.tag(kind));
            }
        }
    }

    /// The kernel holds nothing of this stream, or of its payload's memory.
    pub fn is_quiet(&self) -> bool {
        let inner = self.inner.as_ref().expect("there until it is dropped");
        !self.connecting && !inner.sender.is_in_flight() && !inner.receiver.is_armed()
    }
}

impl<E: End> Drop for Stream<E> {
    /// Leaves to the kernel what operations in flight point to.
    fn drop(&mut self) {
        shut_down(&self.socket);
        if !self.is_quiet() {
            std::mem::forget(self.inner.take());
        }
    }
}

fn shut_down(socket: &OwnedFd) {
    // SAFETY: a descriptor of ours.
    unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_RDWR) };
}

/// Small messages go at once; the ring waits for sockets, so they block as far as they know.
/// Has a connection of loopback go without pacing; to be called before it stands, or of who listens. BBR, the default of
/// some systems, sets a timer for every few segments: with no network between the ends nothing is gained by it, and
/// throughput falls by half and more.
pub fn keep_unpaced(socket: impl AsFd, peer: IpAddr) {
    if peer.to_canonical().is_loopback() {
        let _ = rustix::net::sockopt::set_tcp_congestion(socket, "reno");
    }
}

fn set_up(socket: &OwnedFd, options: Options) -> io::Result<()> {
    let fd = socket.as_raw_fd();
    // SAFETY: flags of a descriptor of ours.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        if flags < 0 || libc::fcntl(fd, libc::F_SETFL, flags & !libc::O_NONBLOCK) < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    let mut wanted = vec![(libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)];
    wanted.extend(options.send_buffer.map(|bytes| (libc::SOL_SOCKET, libc::SO_SNDBUF, bytes as i32)));
    wanted.extend(options.receive_buffer.map(|bytes| (libc::SOL_SOCKET, libc::SO_RCVBUF, bytes as i32)));
    for (level, name, value) in wanted {
        // SAFETY: an int on the stack, and its length.
        let result = unsafe {
            libc::setsockopt(fd, level, name, std::ptr::addr_of!(value).cast(), size_of::<i32>() as u32)
        };
        let error = io::Error::last_os_error();
        // A local socket, behind which another thread speaks TLS, has no such delay.
        let is_local = name == libc::TCP_NODELAY && error.raw_os_error() == Some(libc::EOPNOTSUPP);
        if result < 0 && !is_local {
            return Err(error);
        }
    }
    Ok(())
}

impl Address {
    /// struct sockaddr_in or sockaddr_in6.
    fn from_socket(to: SocketAddr) -> Address {
        let mut bytes = [0; 28];
        bytes[2..4].copy_from_slice(&to.port().to_be_bytes());
        let (family, len) = match to {
            SocketAddr::V4(to) => {
                bytes[4..8].copy_from_slice(&to.ip().octets());
                (libc::AF_INET, 16)
            }
            SocketAddr::V6(to) => {
                bytes[4..8].copy_from_slice(&to.flowinfo().to_be_bytes());
                bytes[8..24].copy_from_slice(&to.ip().octets());
                bytes[24..28].copy_from_slice(&to.scope_id().to_ne_bytes());
                (libc::AF_INET6, 28)
            }
        };
        bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
        Address(bytes, len)
    }
}

/// Copies bytes that came with their header to their place.
pub fn fill_memory(mem: Mem, bytes: &[u8]) {
    let mut rest = bytes;
    for piece in mem.each(bytes.len()) {
        let (here, behind) = rest.split_at(piece.len);
        // SAFETY: the place is as long as the command's data, which the end bounds, and ours until the command is over.
        unsafe { std::ptr::copy_nonoverlapping(here.as_ptr(), piece.at.as_ptr(), here.len()) };
        rest = behind;
    }
    assert!(rest.is_empty(), "payload has memory");
}

/// Continues the CRC32C `so_far` (0 at first) over payload that just came, while it lies in the cache.
pub fn stream_digest(so_far: u32, mem: Mem, len: u32) -> u32 {
    let mut left = len as usize;
    let crc = mem.each(left).fold(so_far, |crc, piece| {
        left -= piece.len;
        // SAFETY: as in `fill`, and nobody writes there meanwhile.
        crc32c(crc, unsafe { std::slice::from_raw_parts(piece.at.as_ptr(), piece.len) })
    });
    assert!(left == 0, "payload has memory");
    crc
}
