//! A connection in the test's hands: two ends, their memory, and the bytes between them.

use forebay_nvme::command::{io, Cqe, Sqe};
use forebay_nvme::status::{Code, Status};
use forebay_nvme::transport::tcp::host::{self, Data, HostEnd};
use forebay_nvme::transport::tcp::target::{self, TargetEnd};
use forebay_nvme::transport::tcp::{Expect, Fatal, Handle, Outgoing, PayloadPlace, Segment};
use std::collections::HashMap;

/// A small generator, so that a seed is all a failure needs.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 8
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

/// The content of a command's data.
pub fn content(seed: u32, len: u32) -> Vec<u8> {
    let mut random = Random::new(u64::from(seed) + 1);
    (0..len).map(|_| random.next() as u8).collect()
}

/// Payload memory of one side, by handle.
#[derive(Default)]
pub struct Memory {
    pub data: HashMap<u16, Vec<u8>>,
    /// Bytes that were received straight to their place, and that were copied there.
    pub placed: u64,
    pub copied: u64,
}

impl Memory {
    fn at(&mut self, place: &PayloadPlace) -> &mut [u8] {
        let data = self.data.get_mut(&place.command.0).expect("payload of a command with memory");
        &mut data[place.offset as usize..][..place.len as usize]
    }

    pub fn copy(&mut self, place: &PayloadPlace, bytes: &[u8]) {
        assert_eq!(place.len as usize, bytes.len());
        self.copied += bytes.len() as u64;
        self.at(place).copy_from_slice(bytes);
    }

    pub fn crc(&mut self, place: &PayloadPlace) -> u32 {
        crc32c::crc32c(self.at(place))
    }

    /// One receive: as much of `bytes` as has room. Returns how much that is.
    pub fn receive(&mut self, expect: Expect<'_>, bytes: &[u8]) -> usize {
        assert!(expect.payload.is_some() || !expect.own.is_empty(), "room for something");
        let mut taken = 0;
        if let Some(place) = expect.payload {
            assert!(place.len > 0);
            taken = bytes.len().min(place.len as usize);
            self.placed += taken as u64;
            self.at(&place)[..taken].copy_from_slice(&bytes[..taken]);
        }
        let rest = &bytes[taken..];
        let n = rest.len().min(expect.own.len());
        expect.own[..n].copy_from_slice(&rest[..n]);
        taken + n
    }
}

/// The bytes that a list stands for. `released` is called for each `Release`.
pub fn flatten(out: &Outgoing, memory: &mut Memory, mut released: impl FnMut(Handle)) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut crc = 0;
    let mut gone = Vec::new();
    for (i, segment) in out.segments.iter().enumerate() {
        match *segment {
            Segment::Bytes { start, end } => {
                assert!(start < end, "no empty segments");
                assert!(
                    i == 0 || !matches!(out.segments[i - 1], Segment::Bytes { .. }),
                    "adjacent header bytes are one segment"
                );
                crc = 0;
                bytes.extend_from_slice(&out.bytes[start..end]);
            }
            Segment::Payload { command, offset, len } => {
                let payload = memory.at(&PayloadPlace { command, offset, len });
                crc = crc32c::crc32c_append(crc, payload);
                bytes.extend_from_slice(payload);
            }
            Segment::Digest => bytes.extend_from_slice(&crc.to_le_bytes()),
            Segment::Release { command } => gone.push(command),
        }
    }
    gone.into_iter().for_each(|command| {
        memory.data.remove(&command.0).expect("released once");
        released(command);
    });
    bytes
}

/// A command that ended.
#[derive(Debug)]
pub struct Done {
    pub command: Handle,
    pub cqe: Cqe,
    pub received: u32,
    pub data: Vec<u8>,
}

/// A host end and its driver.
pub struct Host {
    pub end: HostEnd,
    pub memory: Memory,
    pub done: Vec<Done>,
    pub ready: bool,
    /// Payload bytes to flip on arrival, as a bad link would.
    pub corrupt: bool,
    /// Completed while the list with their data was the last one: free before the next.
    held: Vec<Handle>,
    out: Outgoing,
}

impl Host {
    pub fn new(options: host::Options) -> Host {
        Host {
            end: HostEnd::new(options),
            memory: Memory::default(),
            done: Vec::new(),
            ready: false,
            corrupt: false,
            held: Vec::new(),
            out: Outgoing::default(),
        }
    }

    pub fn read(&mut self, seed: u32, len: u32) -> Result<Handle, host::Busy> {
        let sqe = Sqe { opcode: io::READ, cdw10: seed.into(), ..Sqe::default() };
        self.submit(sqe, Data::In { len }, vec![0; len as usize])
    }

    pub fn write(&mut self, seed: u32, len: u32) -> Result<Handle, host::Busy> {
        let sqe = Sqe { opcode: io::WRITE, cdw10: seed.into(), ..Sqe::default() };
        self.submit(sqe, Data::Out { len }, content(seed, len))
    }

    pub fn flush(&mut self) -> Result<Handle, host::Busy> {
        self.submit(Sqe { opcode: io::FLUSH, ..Sqe::default() }, Data::None, Vec::new())
    }

    /// `memory`: what is sent, or room for what comes.
    pub fn submit(&mut self, sqe: Sqe, data: Data, memory: Vec<u8>) -> Result<Handle, host::Busy> {
        let command = self.end.submit(sqe, data)?;
        assert!(self.memory.data.insert(command.0, memory).is_none(), "a free handle");
        Ok(command)
    }

    pub fn sends(&mut self) -> Vec<u8> {
        self.held.drain(..).for_each(|command| self.end.release(command));
        self.end.take_outgoing(&mut self.out);
        let bytes = flatten(&self.out, &mut self.memory, |_| panic!("a host releases nothing"));
        self.out.bytes.clear();
        self.out.segments.clear();
        bytes
    }

    /// One receive, and what it means. Returns the bytes taken.
    pub fn receives(&mut self, bytes: &[u8]) -> Result<usize, Fatal> {
        let taken = self.memory.receive(self.end.expect(), bytes);
        self.end.received(taken);
        loop {
            let failed = match self.end.next()? {
                None => return Ok(taken),
                Some(host::Event::Ready { .. }) => {
                    self.ready = true;
                    None
                }
                Some(host::Event::Placed(_)) => None,
                Some(host::Event::Copy { place, bytes }) => {
                    self.memory.copy(&place, bytes);
                    None
                }
                Some(host::Event::DataEnd { place, digest }) => {
                    if self.corrupt {
                        self.memory.at(&place)[0] ^= 1;
                    }
                    (self.memory.crc(&place) != digest).then_some(place.command)
                }
                Some(host::Event::Completed { command, cqe, received, held }) => {
                    if held {
                        self.held.push(command);
                    }
                    let data = self.memory.data.remove(&command.0).expect("completed once");
                    self.done.push(Done { command, cqe, received, data });
                    None
                }
            };
            if let Some(command) = failed {
                self.end.digest_failed(command);
            }
        }
    }
}

/// Request of a test's controller for a write's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asks {
    AtOnce,
    InPieces(u32),
    /// The command is completed before its data are here.
    Rejects,
}

/// A target end, and a controller that reads and writes `content`.
pub struct Target {
    pub end: TargetEnd,
    pub memory: Memory,
    pub asks: Asks,
    pub commands: u32,
    /// Commands that wait to be answered, in any order: (handle, SQE).
    pub waiting: Vec<(Handle, Sqe)>,
    pub wrong: u32,
    entries: u16,
    flow_control: bool,
    /// Writes whose data come: how much was asked for.
    writes: HashMap<u16, (Sqe, u32)>,
    out: Outgoing,
}

impl Target {
    pub fn new(options: target::Options, entries: u16, flow_control: bool) -> Target {
        Target {
            end: TargetEnd::new(options),
            memory: Memory::default(),
            asks: Asks::AtOnce,
            commands: 0,
            waiting: Vec::new(),
            wrong: 0,
            entries,
            flow_control,
            writes: HashMap::new(),
            out: Outgoing::default(),
        }
    }

    pub fn sends(&mut self) -> Vec<u8> {
        self.end.take_outgoing(&mut self.out);
        let bytes = flatten(&self.out, &mut self.memory, |_| {});
        self.out.bytes.clear();
        self.out.segments.clear();
        bytes
    }

    pub fn receives(&mut self, bytes: &[u8]) -> Result<usize, Fatal> {
        let taken = self.memory.receive(self.end.expect(), bytes);
        self.end.received(taken);
        loop {
            let heard = match self.end.next()? {
                None => return Ok(taken),
                Some(target::Event::Ready { .. }) => Heard::Ready,
                Some(target::Event::Command { command, sqe, in_capsule }) => {
                    Heard::Command(command, sqe, in_capsule)
                }
                Some(target::Event::Placed(_)) => Heard::Nothing,
                Some(target::Event::Copy { place, bytes }) => {
                    self.memory.copy(&place, bytes);
                    Heard::Nothing
                }
                Some(target::Event::DataEnd { place, digest }) => {
                    if self.memory.crc(&place) != digest {
                        self.wrong += 1;
                        Heard::Wrong(place.command)
                    } else {
                        Heard::Nothing
                    }
                }
                Some(target::Event::DataComplete { command }) => Heard::Data(command),
            };
            match heard {
                Heard::Nothing => {}
                Heard::Ready => self.end.set_depth(self.entries, self.flow_control),
                Heard::Command(command, sqe, in_capsule) => self.command(command, sqe, in_capsule),
                Heard::Data(command) => self.written(command),
                Heard::Wrong(command) => {
                    self.writes.remove(&command.0).expect("a write");
                    self.memory.data.remove(&command.0).expect("a write has memory");
                    let status = Status::again(Code::TRANSIENT_TRANSPORT_ERROR);
                    self.end.complete(command, Cqe::new(0, status, 0));
                }
            }
        }
    }

    fn command(&mut self, command: Handle, sqe: Sqe, in_capsule: u32) {
        self.commands += 1;
        let len = sqe.sgl.length.get();
        if sqe.opcode != io::WRITE {
            self.waiting.push((command, sqe));
            return;
        }
        if self.asks == Asks::Rejects {
            return self.end.complete(command, Cqe::new(0, Status::fatal(Code::INVALID_FIELD), 0));
        }
        assert!(self.memory.data.insert(command.0, vec![0; len as usize]).is_none(), "a free handle");
        let mut asked = in_capsule;
        if in_capsule == 0 {
            asked = match self.asks {
                Asks::InPieces(piece) => piece.min(len),
                _ => len,
            };
            self.end.request(command, asked);
        }
        self.writes.insert(command.0, (sqe, asked));
        if len == 0 {
            self.written(command);
        }
    }

    fn written(&mut self, command: Handle) {
        let (sqe, asked) = self.writes[&command.0];
        let len = sqe.sgl.length.get();
        if let (Asks::InPieces(piece), true) = (self.asks, asked < len) {
            let more = piece.min(len - asked);
            self.writes.insert(command.0, (sqe, asked + more));
            return self.end.request(command, more);
        }
        assert_eq!(asked, len);
        self.writes.remove(&command.0);
        let data = self.memory.data.remove(&command.0).expect("a write has memory");
        assert!(data == content(sqe.cdw10.get(), len), "what was written is what was sent");
        self.waiting.push((command, sqe));
    }

    /// Answers one waiting command, picked by `pick`.
    pub fn answer(&mut self, pick: usize) {
        let (command, sqe) = self.waiting.swap_remove(pick % self.waiting.len());
        let success = Cqe::new(0, Status::SUCCESS, 0);
        if sqe.opcode == io::READ {
            let len = sqe.sgl.length.get();
            let data = content(sqe.cdw10.get(), len);
            assert!(self.memory.data.insert(command.0, data).is_none(), "a free handle");
            return self.end.send(command, len, success);
        }
        self.end.complete(command, success);
    }
}

enum Heard {
    Nothing,
    Ready,
    Command(Handle, Sqe, u32),
    Data(Handle),
    /// Its data's digest differs.
    Wrong(Handle),
}
