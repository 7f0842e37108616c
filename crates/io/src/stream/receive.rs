//! Receiving: at once what is there, through the ring what isn't yet.

use super::{CompletionTag, End, Received, RECEIVE};
use crate::arena::Mem;
use crate::reactor::{Completion, Reactor};
use forebay_nvme::transport::tcp::{Handle, PayloadPlace};
use io_uring::{cqueue, opcode, types};
use std::io;

/// Digested payload is received in pieces of this size, so that it is still in the processor's cache when its digest
/// is computed.
const DIGESTED_PIECE: usize = 256 << 10;
/// Bytes of payload at which its receiver is woken, unless all that was announced is there before.
const WAKE_BYTES_MAX: usize = 128 << 10;
/// IORING_RECVSEND_POLL_FIRST: the socket is believed to be empty, so don't try before it says otherwise. Linux 5.19.
const POLL_FIRST: u16 = 1;
/// Pieces of a scattered payload that one receive is given: a socket rarely holds more than half a MiB in 4 KiB pages.
const PIECES_MAX: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReceiveState {
    Idle,
    /// A receive waits in the ring.
    Armed,
    /// It brought so many bytes; 0 is the end of the stream.
    Arrived(usize),
}

pub(super) struct Receiver {
    state: ReceiveState,
    /// True if there may be more: try before waiting.
    more: bool,
    /// Bytes that the last receive had room for.
    room: usize,
    /// Owner of the payload that some of them were for.
    aimed: Option<Handle>,
    /// Bytes of payload that the peer has announced, and that are therefore bound to come.
    announced: usize,
    /// The socket says that it is readable from so many bytes on.
    woken_at: usize,
    poll_first: bool,
    /// True if what is received is digested.
    pub digested: bool,
    pieces: Vec<libc::iovec>,
    message: libc::msghdr,
}

// SAFETY: the pointers are to itself, to its end, and to payload that the stream's owner lends.
unsafe impl Send for Receiver {}

impl Default for Receiver {
    fn default() -> Receiver {
        Receiver {
            state: ReceiveState::Idle,
            more: false,
            room: 0,
            aimed: None,
            announced: 0,
            woken_at: 1,
            poll_first: true,
            digested: false,
            pieces: Vec::with_capacity(2),
            // SAFETY: a msghdr of zeros is one without name, pieces and control data.
            message: unsafe { std::mem::zeroed() },
        }
    }
}

impl Receiver {
    pub(crate) fn is_armed(&self) -> bool {
        self.state == ReceiveState::Armed
    }

    /// A receive into that command's payload is under way, or wasn't booked yet.
    pub(crate) fn is_aimed_at(&self, command: Handle) -> bool {
        self.state != ReceiveState::Idle && self.aimed == Some(command)
    }

    /// `arms`: a receive may be left in the ring.
    pub(crate) fn step(
        &mut self,
        end: &mut impl End,
        port: CompletionTag,
        arms: bool,
        reactor: &mut Reactor,
        at: &impl Fn(PayloadPlace) -> Mem,
    ) -> io::Result<Received> {
        match self.state {
            ReceiveState::Armed => return Ok(Received::Later),
            ReceiveState::Arrived(n) => {
                self.state = ReceiveState::Idle;
                return Ok(self.book(end, n));
            }
            ReceiveState::Idle => {}
        }
        self.aim(end, at);
        if self.more {
            // SAFETY: the message's pieces were just aimed at the end's buffer and at payload that is ours.
            let n = unsafe { libc::recvmsg(port.fd, &mut self.message, libc::MSG_DONTWAIT) };
            // One that fills all there was room for may have left some; a shorter one left nothing.
            self.more = n == self.room as isize;
            if n >= 0 {
                return Ok(self.book(end, n as usize));
            }
            let e = io::Error::last_os_error();
            if !matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) {
                return Err(e);
            }
        }
        if arms {
            self.arm(port, reactor);
        }
        Ok(Received::Later)
    }

    fn book(&mut self, end: &mut impl End, n: usize) -> Received {
        if n == 0 {
            return Received::Ended;
        }
        end.received(n);
        Received::Some
    }

    /// Points the message at where the next bytes belong.
    fn aim(&mut self, end: &mut impl End, at: &impl Fn(PayloadPlace) -> Mem) {
        let expect = end.expect();
        self.pieces.clear();
        self.aimed = expect.payload.map(|place| place.command);
        self.announced = expect.payload.map_or(0, |place| place.len as usize);
        let most = if self.digested { DIGESTED_PIECE } else { usize::MAX };
        let whole = expect.payload.is_none_or(|place| {
            let len = most.min(place.len as usize);
            self.aim_at(at(place), len) && len == place.len as usize
        });
        if whole && !expect.own.is_empty() {
            let own = libc::iovec { iov_base: expect.own.as_mut_ptr().cast(), iov_len: expect.own.len() };
            self.pieces.push(own);
        }
        self.room = self.pieces.iter().map(|p| p.iov_len).sum();
        assert!(self.room > 0, "an end expects something");
        self.message.msg_iov = self.pieces.as_mut_ptr();
        self.message.msg_iovlen = self.pieces.len() as _;
    }

    /// False: a list so long that the rest of it is the next receive's.
    fn aim_at(&mut self, mem: Mem, len: usize) -> bool {
        let mut left = len;
        for piece in mem.each(len).take(PIECES_MAX) {
            self.pieces.push(libc::iovec { iov_base: piece.at.as_ptr().cast(), iov_len: piece.len });
            left -= piece.len;
        }
        assert!(left == 0 || self.pieces.len() == PIECES_MAX, "payload has memory");
        left == 0
    }

    /// A receiver that is woken for each segment takes it, sleeps again, and costs the sender a wake-up each time: on a
    /// virtual machine that was half of the sender's time.
    fn wake_at(&mut self, bytes: usize, port: CompletionTag) {
        if bytes == self.woken_at {
            return;
        }
        let value = bytes as libc::c_int;
        let at = std::ptr::addr_of!(value).cast();
        let len = std::mem::size_of_val(&value) as libc::socklen_t;
        // SAFETY: the option is an int. What refuses it wakes its receiver for each byte, as it did.
        unsafe { libc::setsockopt(port.fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, at, len) };
        self.woken_at = bytes;
    }

    fn arm(&mut self, port: CompletionTag, reactor: &mut Reactor) {
        self.wake_at(self.announced.clamp(1, WAKE_BYTES_MAX), port);
        let poll = if self.poll_first { POLL_FIRST } else { 0 };
        let entry = opcode::RecvMsg::new(types::Fd(port.fd), std::ptr::addr_of_mut!(self.message))
            .ioprio(poll)
            .build();
        self.state = ReceiveState::Armed;
        // SAFETY: the message, the end and its buffer lie in the stream's box, and the payload is the stream's, until
        // the completion.
        unsafe { reactor.push(port.token, port.tag(RECEIVE), entry) };
    }

    /// Books a completion; the errno of one that failed.
    pub(crate) fn completed(&mut self, c: Completion) -> Option<i32> {
        self.state = ReceiveState::Idle;
        match c.result {
            n if n >= 0 => {
                self.state = ReceiveState::Arrived(n as usize);
                self.more = n as usize == self.room || cqueue::sock_nonempty(c.flags);
                None
            }
            e if matches!(-e, libc::EINTR | libc::EAGAIN) => None,
            // A kernel that doesn't know the flag.
            e if -e == libc::EINVAL && self.poll_first => {
                self.poll_first = false;
                None
            }
            e => Some(-e),
        }
    }
}
