//! NVMe/TCP: both ends of one connection, which is one queue pair (tcp, section 3).
//!
//! An end does no I/O and copies no payload. Its driver moves bytes both ways:
//!
//! - Out: `take_outgoing` lists what goes onto the wire next, in order: header
//!   bytes, and payload by its command's name and offset, which the driver sends
//!   from where it lies. A data digest is computed by the driver as it sends.
//! - In: `expect` says where the next bytes belong: first into the payload of one
//!   command, the rest into the end's own small buffer. The driver receives
//!   directly into both (one `recvmsg`), calls `received`, then drains `next`.
//!
//! Payload that came into the own buffer together with its header is handed over
//! as a slice, to be copied to its place; how much that may be is bounded by the
//! buffer (`Options::bulk`).
//!
//! Rules for a driver:
//! - `Expect` stays good while a receive is under way: `submit`, `send`, `request`
//!   and `take_outgoing` leave the own buffer alone. `next` is drained before
//!   `expect` is called again.
//! - `take_outgoing` is called when all of the last list is sent (copied out of its
//!   memory), and `Outgoing` cleared. A handle whose payload was in the list isn't
//!   given to another command before that.
//! - Without a data digest no `DataEnd` comes.

mod frame;
pub mod host;
pub mod pdu;
pub mod target;

/// Segment for the wire, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment {
    /// These bytes of `Outgoing::bytes`: headers, capsules, padding.
    Bytes { start: usize, end: usize },
    /// Payload of a command: `len` bytes from `offset` of its data.
    Payload { command: Handle, offset: u32, len: u32 },
    /// CRC32C of the payload since the last header, four bytes, little-endian.
    Digest,
    /// All of this command's payload and its response are in what was listed so far: once that is sent (not
    /// acknowledged: copied out of its memory) the payload's memory is free. Only targets list it, for reads.
    Release { command: Handle },
}

/// Appended to by `take_outgoing`; the driver clears it once all of it is sent.
#[derive(Debug, Default)]
pub struct Outgoing {
    pub bytes: Vec<u8>,
    pub segments: Vec<Segment>,
}

/// A command in flight on this connection: its place in the end's table. At a host below twice `Options::depth`,
/// at a target below twice the entries of `set_depth` (answered commands whose payload is still being sent keep
/// theirs); the lowest free one is not preferred, but no more are used than were needed at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle(pub u16);

/// Payload that has a place: whose it is, and where in that command's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PayloadPlace {
    pub command: Handle,
    pub offset: u32,
    pub len: u32,
}

/// Place of the next bytes of the stream: `payload` first, then `own`. Never both empty.
#[derive(Debug)]
pub struct Expect<'a> {
    pub payload: Option<PayloadPlace>,
    pub own: &'a mut [u8],
}

/// Why a connection must end (tcp, figures 24 and 27: fatal error status), and what to tell the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} (fatal error status {status:#x}, {field:#x})")]
pub struct Fatal {
    pub status: FatalStatus,
    /// FEI: offset of the wrong field in its header, or the header digest that came.
    pub field: u32,
    /// In words, for the log.
    pub what: &'static str,
    /// The peer ended it (H2CTermReq, C2HTermReq): nothing is sent back.
    pub by_peer: bool,
}

impl Fatal {
    fn new(status: FatalStatus, field: u32, what: &'static str) -> Fatal {
        Fatal { status, field, what, by_peer: false }
    }
}

impl Outgoing {
    /// Adds header bytes, to the last segment where that holds bytes.
    fn push_bytes(&mut self, bytes: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        let end = self.bytes.len();
        match self.segments.last_mut() {
            Some(Segment::Bytes { end: last, .. }) if *last == start => *last = end,
            _ => self.segments.push(Segment::Bytes { start, end }),
        }
    }

    /// Adds a header and its digest, if its flags promise one.
    fn push_header(&mut self, ch: &pdu::CommonHeader, header: &[u8]) {
        self.push_bytes(header);
        if ch.flags & pdu::flag::HEADER_DIGEST != 0 {
            self.push_bytes(&crc32c::crc32c(header).to_le_bytes());
        }
    }

    /// Adds the data of the PDU whose header was just added: padding, payload, digest.
    fn push_data(&mut self, ch: &pdu::CommonHeader, command: Handle, offset: u32, len: u32) {
        let digest = ch.flags & pdu::flag::HEADER_DIGEST != 0;
        let header = usize::from(ch.hlen) + if digest { pdu::DIGEST_LEN } else { 0 };
        let pad = usize::from(ch.pdo) - header;
        self.push_bytes(&[0; 128][..pad]);
        self.segments.push(Segment::Payload { command, offset, len });
        if ch.flags & pdu::flag::DATA_DIGEST != 0 {
            self.segments.push(Segment::Digest);
        }
    }
}

/// Fatal error status (tcp, figures 24 and 27).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum FatalStatus {
    InvalidHeaderField = 1,
    SequenceError = 2,
    HeaderDigest = 3,
    DataOutOfRange = 4,
    /// R2T limit exceeded (to a target), data transfer limit exceeded (to a host).
    LimitExceeded = 5,
    UnsupportedParameter = 6,
}

impl std::fmt::LowerHex for FatalStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::LowerHex::fmt(&(*self as u16), f)
    }
}
