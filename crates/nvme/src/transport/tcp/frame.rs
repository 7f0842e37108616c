//! Cuts a stream into headers and payload, wherever the network cut it.

use super::pdu::{CommonHeader, Parts, DIGEST_LEN, QUOTE_MAX};
use super::{Expect, Handle, PayloadPlace};
use std::ops::Range;
use zerocopy::FromBytes;

/// An own buffer is never smaller: the longest header, or a termination request and its quote.
const OWN_LEAST: usize = 256;

pub(super) struct Framer {
    /// Bytes that came and aren't consumed lie in `start..end`.
    own: Box<[u8]>,
    start: usize,
    end: usize,
    phase: Phase,
    /// Bytes at `start` that make a whole header, once its type is known.
    need: usize,
    payload: Payload,
    /// Bytes of the payload's place that `expect` offered, and how much of that came since `step`.
    armed: u32,
    placed: u32,
}

enum Phase {
    Header,
    /// Bytes between header and data.
    Pad(u32),
    Payload,
    Digest,
}

struct Payload {
    place: PayloadPlace,
    done: u32,
    digest: bool,
    /// Its command wants it.
    kept: bool,
}

pub(super) enum Step {
    /// More bytes are needed.
    Wait,
    /// A header is next: see `head`.
    Header,
    Placed(PayloadPlace),
    Copy(PayloadPlace, Range<usize>),
    /// A PDU's payload is complete.
    End {
        place: PayloadPlace,
        digest: Option<u32>,
        kept: bool,
    },
}

impl Framer {
    pub fn new(bulk: usize) -> Framer {
        let nothing = PayloadPlace { command: Handle(0), offset: 0, len: 0 };
        Framer {
            own: vec![0; bulk.max(OWN_LEAST)].into_boxed_slice(),
            start: 0,
            end: 0,
            phase: Phase::Header,
            need: 0,
            payload: Payload { place: nothing, done: 0, digest: false, kept: false },
            armed: 0,
            placed: 0,
        }
    }

    fn len(&self) -> usize {
        self.end - self.start
    }

    /// Returns the place of the next bytes. `lead`: the least to ask for where a header comes; `bulk`: how much may be
    /// taken.
    pub fn expect(&mut self, lead: usize, bulk: usize) -> Expect<'_> {
        self.own.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        self.armed = 0;
        let mut payload = None;
        let least = match self.phase {
            Phase::Header => self.need.max(lead),
            Phase::Pad(left) => left as usize,
            Phase::Digest => DIGEST_LEN + lead,
            Phase::Payload => {
                let rest = self.rest();
                let behind = if self.payload.digest { DIGEST_LEN } else { 0 } + lead;
                if self.payload.kept {
                    self.armed = rest.len;
                    payload = Some(rest);
                    behind
                } else {
                    (rest.len as usize).saturating_add(behind)
                }
            }
        };
        // A whole header may be here only where `next` wasn't drained: offer one byte then, not none.
        let limit = least.max(bulk).max(self.end + 1).min(self.own.len());
        Expect { payload, own: &mut self.own[self.end..limit] }
    }

    fn rest(&self) -> PayloadPlace {
        let Payload { place, done, .. } = self.payload;
        PayloadPlace { command: place.command, offset: place.offset + done, len: place.len - done }
    }

    pub fn received(&mut self, n: usize) {
        let placed = n.min(self.armed as usize);
        self.armed -= placed as u32;
        self.placed += placed as u32;
        self.end += n - placed;
        assert!(self.end <= self.own.len(), "more bytes were received than `expect` had room for");
    }

    pub fn step(&mut self) -> Step {
        loop {
            match self.phase {
                Phase::Header => return Step::Header,
                Phase::Pad(left) => {
                    let n = self.take(left);
                    if n < left {
                        self.phase = Phase::Pad(left - n);
                        return Step::Wait;
                    }
                    self.phase = Phase::Payload;
                }
                Phase::Payload => {
                    if let Some(step) = self.payload_step() {
                        return step;
                    }
                }
                Phase::Digest => {
                    let Some(digest) = self.peek(DIGEST_LEN) else { return Step::Wait };
                    let digest = u32::from_le_bytes([digest[0], digest[1], digest[2], digest[3]]);
                    self.start += DIGEST_LEN;
                    return self.ended(Some(digest));
                }
            }
        }
    }

    fn payload_step(&mut self) -> Option<Step> {
        let rest = self.rest();
        if self.placed > 0 {
            let len = std::mem::take(&mut self.placed);
            self.payload.done += len;
            return self.payload.kept.then_some(Step::Placed(PayloadPlace { len, ..rest }));
        }
        if rest.len == 0 {
            if !self.payload.digest {
                return Some(self.ended(None));
            }
            self.phase = Phase::Digest;
            return None;
        }
        let start = self.start;
        let len = self.take(rest.len);
        self.payload.done += len;
        match len {
            0 => Some(Step::Wait),
            _ if self.payload.kept => Some(Step::Copy(PayloadPlace { len, ..rest }, start..self.start)),
            _ => None,
        }
    }

    fn ended(&mut self, digest: Option<u32>) -> Step {
        self.phase = Phase::Header;
        Step::End { place: self.payload.place, digest, kept: self.payload.kept }
    }

    /// Consumes up to `n` bytes.
    fn take(&mut self, n: u32) -> u32 {
        let n = (n as usize).min(self.len());
        self.start += n;
        n as u32
    }

    pub fn slice(&self, range: Range<usize>) -> &[u8] {
        &self.own[range]
    }

    /// The common header of the next PDU, once it is here.
    pub fn head(&self) -> Option<CommonHeader> {
        let bytes = self.peek(size_of::<CommonHeader>())?;
        CommonHeader::read_from_bytes(bytes).ok()
    }

    fn peek(&self, n: usize) -> Option<&[u8]> {
        self.own[self.start..self.end].get(..n)
    }

    /// The next PDU's header of `n` bytes; None, once more are needed.
    pub fn header(&mut self, n: usize) -> Option<&[u8]> {
        self.need = if self.len() < n { n } else { 0 };
        self.peek(n)
    }

    /// Returns the part of the next PDU's header that a termination request quotes.
    pub fn quote(&self) -> &[u8] {
        let hlen = self.head().map_or(0, |head| usize::from(head.hlen));
        &self.own[self.start..self.end.min(self.start + hlen.min(QUOTE_MAX))]
    }

    /// Goes behind the next PDU's header, which has no data.
    pub fn consume(&mut self, parts: &Parts) {
        self.start += parts.header;
    }

    /// Goes behind the next PDU's header, to its data.
    pub fn begin(&mut self, parts: &Parts, command: Handle, offset: u32, kept: bool) {
        self.start += parts.header;
        self.phase = if parts.pad > 0 { Phase::Pad(parts.pad) } else { Phase::Payload };
        let place = PayloadPlace { command, offset, len: parts.data };
        self.payload = Payload { place, done: 0, digest: parts.data_digest, kept };
    }

    /// Drops the rest of the payload of `command`, if it is coming now.
    pub fn forget(&mut self, command: Handle) {
        if !matches!(self.phase, Phase::Header) && self.payload.place.command == command {
            self.payload.kept = false;
        }
    }

    /// All that came is dropped, and what still comes: the connection is over.
    pub fn end(&mut self) {
        (self.start, self.end, self.placed, self.need) = (0, 0, 0, 0);
        self.phase = Phase::Header;
    }
}
