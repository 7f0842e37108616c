//! Both ends of an NVMe/TCP connection: against each other over a link that cuts, splits, delays and flips a bit,
//! and each against a peer that says what it likes.

mod host;
mod hostile;
mod target;

pub use hostile::{nvme_host_end, nvme_target_end};

use crate::input::Input;
use forebay_nvme::transport::tcp::{self, Expect, Handle, Outgoing, PayloadPlace, Segment};
use host::Host;
use std::collections::BTreeMap;
use target::Target;

/// Payload memory of one end, by handle.
#[derive(Default)]
struct Memory(BTreeMap<u16, Vec<u8>>);

impl Memory {
    fn give(&mut self, command: Handle, data: Vec<u8>) {
        assert!(self.0.insert(command.0, data).is_none(), "handle {} is free", command.0);
    }

    fn at(&mut self, place: &PayloadPlace) -> &mut [u8] {
        let data = self.0.get_mut(&place.command.0).expect("a place belongs to a command in flight");
        &mut data[place.offset as usize..][..place.len as usize]
    }

    fn copy(&mut self, place: &PayloadPlace, bytes: &[u8]) {
        self.at(place).copy_from_slice(bytes);
    }

    fn crc(&mut self, place: &PayloadPlace) -> u32 {
        crc32c::crc32c(self.at(place))
    }

    /// One receive: as much of `bytes` as there is room for.
    fn receive(&mut self, expect: Expect<'_>, bytes: &[u8]) -> usize {
        assert!(expect.own.len() <= OWN_MOST, "the own buffer is bounded");
        let mut taken = 0;
        if let Some(place) = expect.payload {
            assert!(place.len > 0);
            taken = bytes.len().min(place.len as usize);
            self.at(&place)[..taken].copy_from_slice(&bytes[..taken]);
        }
        let n = (bytes.len() - taken).min(expect.own.len());
        expect.own[..n].copy_from_slice(&bytes[taken..taken + n]);
        taken + n
    }

    /// The bytes that a list stands for, which is over with that.
    fn flatten(&mut self, out: &mut Outgoing) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut crc = 0;
        for segment in out.segments.drain(..) {
            match segment {
                Segment::Bytes { start, end } => {
                    crc = 0;
                    bytes.extend_from_slice(&out.bytes[start..end]);
                }
                Segment::Payload { command, offset, len } => {
                    let payload = self.at(&PayloadPlace { command, offset, len });
                    crc = crc32c::crc32c_append(crc, payload);
                    bytes.extend_from_slice(payload);
                }
                Segment::Digest => bytes.extend_from_slice(&crc.to_le_bytes()),
                Segment::Release { command } => {
                    self.0.remove(&command.0).expect("released once");
                }
            }
        }
        out.bytes.clear();
        bytes
    }
}

const BULK: [usize; 4] = [0, 256, 4096, 65_536];
/// The largest of `BULK`.
const OWN_MOST: usize = 65_536;
const BLOCK_BYTES: u32 = 512;
/// Payload of a command, blocks.
const BLOCKS_MOST: u32 = 24;

/// Returns the namespace's content from that block on, for a command that begins there.
fn content(slba: u64, bytes: usize) -> Vec<u8> {
    let mut state = slba.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut content = Vec::with_capacity(bytes + 8);
    while content.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        content.extend_from_slice(&state.to_le_bytes());
    }
    content.truncate(bytes);
    content
}

/// Two ends and what is on its way between them.
struct Pair {
    host: Host,
    target: Target,
    to_target: Vec<u8>,
    to_host: Vec<u8>,
    /// Bits may still be flipped so often.
    flips: u8,
    flipped: bool,
}

/// Both ends over a link. Over a clean one everything completes and holds what it should; over one that flips a bit,
/// with both digests on, whatever succeeds does.
pub fn nvme_pair(data: &[u8]) {
    let mut input = Input::new(data);
    let mut pair = Pair::new(&mut input);
    while !input.is_empty() {
        if pair.step(&mut input).is_err() {
            assert!(pair.flipped, "a clean link ends no connection");
            return;
        }
    }
    if !pair.flipped {
        pair.run_until_quiet();
    }
}

impl Pair {
    fn new(input: &mut Input<'_>) -> Pair {
        let choice = input.u8();
        let (header_digest, data_digest) = (choice & 1 != 0, choice & 2 != 0);
        let depth = 1 + u16::from(input.u8() % 8);
        let host = tcp::host::Options {
            header_digest,
            data_digest,
            depth,
            r2ts: u32::from(input.u8() % 3),
            bulk: input.pick(&BULK),
        };
        let target = tcp::target::Options {
            header_digest: true,
            data_digest: true,
            in_capsule_max: 8192,
            max_h2c: input.pick(&[4096, 8192, 131_072]),
            max_c2h: input.pick(&[4096, 8192, 131_072]),
            bulk: input.pick(&BULK),
        };
        let mut pair = Pair {
            host: Host::new(host),
            target: Target::new(target, depth + 1, choice & 4 != 0),
            to_target: Vec::new(),
            to_host: Vec::new(),
            flips: u8::from(choice & 8 != 0 && header_digest && data_digest),
            flipped: false,
        };
        pair.host.end.set_in_capsule_max(input.pick(&[0, 4096, 8192]));
        (pair.host.strict, pair.target.strict) = (true, true);
        pair
    }

    fn step(&mut self, input: &mut Input<'_>) -> Result<(), tcp::Fatal> {
        match input.u8() % 8 {
            0 => self.host.submit(input.u8(), u64::from(input.u8()), u32::from(input.u8())),
            1 => self.to_target.extend(self.host.sends()),
            2 => self.to_host.extend(self.target.sends()),
            3 | 4 => self.deliver_to_target(usize::from(input.u8()) * usize::from(input.u8()) + 1)?,
            5 => self.deliver_to_host(usize::from(input.u8()) * usize::from(input.u8()) + 1)?,
            6 => self.target.answer(input.u8().into(), input.u8() == 1),
            _ => self.flip(input.u16().into(), input.u8() % 16),
        }
        assert!(self.host.end.in_flight() <= 8 && self.target.end.in_flight() <= 9);
        Ok(())
    }

    fn deliver_to_target(&mut self, n: usize) -> Result<(), tcp::Fatal> {
        let n = self.target.receives(&self.to_target[..n.min(self.to_target.len())])?;
        self.to_target.drain(..n);
        Ok(())
    }

    fn deliver_to_host(&mut self, n: usize) -> Result<(), tcp::Fatal> {
        let n = self.host.receives(&self.to_host[..n.min(self.to_host.len())])?;
        self.to_host.drain(..n);
        Ok(())
    }

    /// Flips one bit on its way, once both have agreed on digests.
    fn flip(&mut self, at: usize, bit: u8) {
        let link = if bit < 8 { &mut self.to_target } else { &mut self.to_host };
        if self.flips == 0 || !self.host.ready || link.is_empty() {
            return;
        }
        let at = at % link.len();
        link[at] ^= 1 << (bit % 8);
        self.flips -= 1;
        self.flipped = true;
    }

    /// Until nothing moves. All that was asked for is answered then.
    fn run_until_quiet(&mut self) {
        loop {
            self.to_target.extend(self.host.sends());
            self.to_host.extend(self.target.sends());
            if self.to_target.is_empty() && self.to_host.is_empty() && self.target.waiting.is_empty() {
                break;
            }
            self.deliver_to_target(usize::MAX).expect("a clean link ends no connection");
            self.deliver_to_host(usize::MAX).expect("a clean link ends no connection");
            self.target.answer(0, false);
        }
        assert_eq!((self.host.end.in_flight(), self.target.end.in_flight()), (0, 0));
        assert!(self.host.memory.0.is_empty() && self.target.memory.0.is_empty(), "all memory is free");
        assert_eq!(self.host.submitted, self.host.completed);
    }
}
