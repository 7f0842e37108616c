//! Sending: what the end lists, in batches of one `sendmsg` each.

use super::{CompletionTag, End, SEND};
use crate::arena::Mem;
use crate::crc::crc32c;
use crate::reactor::{Completion, Reactor};
use forebay_nvme::transport::tcp::{Handle, Outgoing, PayloadPlace, Segment};
use io_uring::{cqueue, opcode, types};

/// Pieces of memory that one batch gathers.
const PIECES_MAX: usize = 128;
/// Bytes of one batch: a read of 1 MiB with its headers, or several shorter ones. What it held is released before the
/// next. Digested payload is still in the cache when the kernel copies it; batches of a quarter as much, tried for
/// that, cost more in wake-ups of the peer.
const BATCH_BYTES_MAX: usize = (1 << 20) + (64 << 10);
/// Bytes by which a batch may be longer than that, if it ends a payload.
const SLACK: usize = 64 << 10;
/// A batch this small goes into the socket's buffer at once, as a rule.
const SOON_BYTES_MAX: usize = 16 << 10;

const NOTHING: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

pub(super) struct Sender {
    out: Outgoing,
    /// The next segment to list, and how much of it was listed.
    segment: usize,
    within: u32,
    /// Checksum of the payload listed since the last header.
    crc: u32,
    pieces: Box<[libc::iovec; PIECES_MAX]>,
    digests: Box<[[u8; 4]; PIECES_MAX]>,
    message: libc::msghdr,
    /// Pieces of the batch, and those of them that are sent.
    listed: usize,
    sent: usize,
    bytes: usize,
    releases: Vec<Handle>,
    pub released: Vec<Handle>,
    in_flight: bool,
    /// Zero-copy sends whose memory the kernel still holds.
    held: u32,
    zero_copy: bool,
}

// SAFETY: the pointers are to its own boxes and to payload that the stream's owner lends.
unsafe impl Send for Sender {}

impl Sender {
    pub(crate) fn new(zero_copy: bool) -> Sender {
        Sender {
            out: Outgoing::default(),
            segment: 0,
            within: 0,
            crc: 0,
            pieces: Box::new([NOTHING; PIECES_MAX]),
            digests: Box::new([[0; 4]; PIECES_MAX]),
            // SAFETY: a msghdr of zeros is one without name, pieces and control data.
            message: unsafe { std::mem::zeroed() },
            listed: 0,
            sent: 0,
            bytes: 0,
            releases: Vec::new(),
            released: Vec::new(),
            in_flight: false,
            held: 0,
            zero_copy,
        }
    }

    pub(crate) fn is_in_flight(&self) -> bool {
        self.in_flight || self.held > 0
    }

    pub(crate) fn is_done(&self) -> bool {
        !self.is_in_flight() && self.sent == self.listed && self.segment == self.out.segments.len()
    }

    /// Sends on, unless a send is in flight.
    pub(crate) fn step(
        &mut self,
        end: &mut impl End,
        port: CompletionTag,
        reactor: &mut Reactor,
        at: &impl Fn(PayloadPlace) -> Mem,
    ) {
        if self.is_in_flight() {
            reactor.await_soon();
            return;
        }
        if self.sent == self.listed {
            self.released.append(&mut self.releases);
            if self.segment == self.out.segments.len() {
                self.out.bytes.clear();
                self.out.segments.clear();
                self.segment = 0;
                end.take_outgoing(&mut self.out);
            }
            self.list(at);
            if self.listed == 0 {
                // Releases may stand alone behind what the last batch held.
                self.released.append(&mut self.releases);
                return;
            }
        }
        self.push(port, reactor);
    }

    /// The next batch.
    fn list(&mut self, at: &impl Fn(PayloadPlace) -> Mem) {
        (self.listed, self.sent, self.bytes) = (0, 0, 0);
        let room = BATCH_BYTES_MAX;
        while let Some(segment) = self.out.segments.get(self.segment).copied() {
            let full = self.listed == PIECES_MAX || self.bytes >= room;
            if full && !matches!(segment, Segment::Release { .. }) {
                return;
            }
            match segment {
                Segment::Bytes { start, end } => {
                    self.crc = 0;
                    let bytes = &self.out.bytes[start..end];
                    let (base, len) = (bytes.as_ptr().cast_mut(), bytes.len());
                    self.piece(base, len);
                }
                Segment::Payload { command, offset, len } => {
                    let digested = self.is_digested();
                    let rest = (len - self.within) as usize;
                    // The last bit goes along: a batch of its own would cost more.
                    let fits = room.saturating_sub(self.bytes);
                    let left = if rest <= fits + SLACK { rest } else { fits.clamp(1, rest) } as u32;
                    let place = PayloadPlace { command, offset: offset + self.within, len: left };
                    self.within += self.payload(at(place), left, digested);
                    if self.within < len {
                        continue;
                    }
                    self.within = 0;
                }
                Segment::Digest => {
                    let digest = &mut self.digests[self.listed];
                    *digest = self.crc.to_le_bytes();
                    let base = digest.as_mut_ptr();
                    self.piece(base, 4);
                }
                Segment::Release { command } => self.releases.push(command),
            }
            self.segment += 1;
        }
    }

    /// Lists `len` bytes of payload, as far as there is room for their pieces; how many it listed.
    fn payload(&mut self, mem: Mem, len: u32, digested: bool) -> u32 {
        let before = self.bytes;
        for piece in mem.each(len as usize) {
            // One place is free for the first; those that follow may be too many.
            if self.listed == PIECES_MAX {
                break;
            }
            if digested {
                // SAFETY: the payload is the stream's until its command is over.
                self.crc =
                    crc32c(self.crc, unsafe { std::slice::from_raw_parts(piece.at.as_ptr(), piece.len) });
            }
            self.piece(piece.at.as_ptr(), piece.len);
        }
        assert!(self.bytes > before, "payload has memory");
        (self.bytes - before) as u32
    }

    /// The payload that stands next is followed by its digest.
    fn is_digested(&self) -> bool {
        let mut rest = self.out.segments[self.segment..].iter();
        rest.find(|s| !matches!(s, Segment::Payload { .. })) == Some(&Segment::Digest)
    }

    /// One that continues the last one makes it longer.
    fn piece(&mut self, base: *mut u8, len: usize) {
        self.bytes += len;
        if let Some(last) = self.pieces[..self.listed].last_mut() {
            if last.iov_base.cast::<u8>().wrapping_add(last.iov_len) == base {
                last.iov_len += len;
                return;
            }
        }
        self.pieces[self.listed] = libc::iovec { iov_base: base.cast(), iov_len: len };
        self.listed += 1;
    }

    fn push(&mut self, port: CompletionTag, reactor: &mut Reactor) {
        let pieces = &mut self.pieces[self.sent..self.listed];
        self.message.msg_iov = pieces.as_mut_ptr();
        self.message.msg_iovlen = pieces.len() as _;
        let more = self.segment < self.out.segments.len();
        let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL | if more { libc::MSG_MORE } else { 0 };
        let message = std::ptr::addr_of!(self.message);
        let zero_copy = self.zero_copy && self.bytes > SOON_BYTES_MAX;
        let entry = if zero_copy {
            opcode::SendMsgZc::new(types::Fd(port.fd), message).flags(flags as u32).build()
        } else {
            opcode::SendMsg::new(types::Fd(port.fd), message).flags(flags as u32).build()
        };
        self.in_flight = true;
        let soon = self.bytes <= SOON_BYTES_MAX;
        // SAFETY: the message and its pieces lie in the stream's box, and what these point to is the stream's,
        // until the completion.
        unsafe { reactor.push_soon(port.token, port.tag(SEND), entry, soon) };
    }

    /// Books a completion; the errno of one that failed.
    pub(crate) fn completed(&mut self, c: Completion) -> Option<i32> {
        if cqueue::notif(c.flags) {
            self.held -= 1;
            return None;
        }
        self.in_flight = false;
        if cqueue::more(c.flags) {
            self.held += 1;
        }
        match c.result {
            n if n >= 0 => {
                self.advance(n as usize);
                None
            }
            e if matches!(-e, libc::EINTR | libc::EAGAIN) => None,
            e => Some(-e),
        }
    }

    /// Removes what was sent from the queue.
    fn advance(&mut self, mut n: usize) {
        while n > 0 {
            let piece = &mut self.pieces[self.sent];
            let here = n.min(piece.iov_len);
            piece.iov_base = piece.iov_base.cast::<u8>().wrapping_add(here).cast();
            piece.iov_len -= here;
            n -= here;
            if piece.iov_len == 0 {
                self.sent += 1;
            }
        }
        if self.sent == self.listed && self.held == 0 {
            self.released.append(&mut self.releases);
        }
    }
}
