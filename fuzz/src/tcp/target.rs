//! A controller's end and its driver.

use super::{content, Memory, BLOCKS_MOST, BLOCK_BYTES};
use forebay_nvme::command::{Cqe, Sqe, FABRICS};
use forebay_nvme::controller;
use forebay_nvme::log::AnaState;
use forebay_nvme::nvm::{Geometry, Op, Request, Transfer};
use forebay_nvme::status::{Code, Status};
use forebay_nvme::transport::tcp::target::{Event, Options, TargetEnd};
use forebay_nvme::transport::tcp::{Fatal, Handle, Outgoing};
use std::collections::BTreeMap;

const GEOMETRY: Geometry = Geometry {
    block_bytes: BLOCK_BYTES,
    blocks: 1000,
    read_only: false,
    transfer_bytes_max: Some(BLOCKS_MOST * BLOCK_BYTES),
    ana: AnaState::Optimized,
};

pub struct Target {
    pub end: TargetEnd,
    pub memory: Memory,
    pub strict: bool,
    /// Commands to answer, in any order.
    pub waiting: Vec<Waiting>,
    entries: u16,
    flow_control: bool,
    writes: BTreeMap<u16, Write>,
    out: Outgoing,
}

pub struct Waiting {
    command: Handle,
    /// A read: where it begins, and its bytes.
    read: Option<(u64, u32)>,
    status: Status,
}

/// A write whose data come.
struct Write {
    slba: u64,
    bytes: u32,
    asked: u32,
    wrong: bool,
}

/// Work that an event leaves, once it borrows no longer.
enum Heard {
    Nothing,
    Ready,
    Command(Handle, Sqe, u32),
    Data(Handle),
}

impl Target {
    pub fn new(options: Options, entries: u16, flow_control: bool) -> Target {
        Target {
            end: TargetEnd::new(options),
            memory: Memory::default(),
            strict: false,
            waiting: Vec::new(),
            entries,
            flow_control,
            writes: BTreeMap::new(),
            out: Outgoing::default(),
        }
    }

    pub fn sends(&mut self) -> Vec<u8> {
        self.end.take_outgoing(&mut self.out);
        self.memory.flatten(&mut self.out)
    }

    /// One receive, and what it means; how much of it was taken.
    pub fn receives(&mut self, bytes: &[u8]) -> Result<usize, Fatal> {
        let taken = self.memory.receive(self.end.expect(), bytes);
        self.end.received(taken);
        while let Some(event) = self.end.next()? {
            let heard = match event {
                Event::Ready { .. } => Heard::Ready,
                Event::Command { command, sqe, in_capsule } => Heard::Command(command, sqe, in_capsule),
                Event::Placed(place) => {
                    self.memory.at(&place);
                    Heard::Nothing
                }
                Event::Copy { place, bytes } => {
                    self.memory.copy(&place, bytes);
                    Heard::Nothing
                }
                Event::DataEnd { place, digest } => {
                    let wrong = self.memory.crc(&place) != digest;
                    let write = self.writes.get_mut(&place.command.0).expect("data belong to a write");
                    write.wrong |= wrong;
                    Heard::Nothing
                }
                Event::DataComplete { command } => Heard::Data(command),
            };
            match heard {
                Heard::Nothing => {}
                Heard::Ready => self.end.set_depth(self.entries, self.flow_control),
                Heard::Command(command, sqe, in_capsule) => self.command(command, &sqe, in_capsule),
                Heard::Data(command) => self.complete_data(command),
            }
        }
        Ok(taken)
    }

    fn command(&mut self, command: Handle, sqe: &Sqe, in_capsule: u32) {
        assert!(command.0 < 2 * self.entries.max(2), "handles are bounded");
        match parse(sqe, in_capsule) {
            Err(status) => self.end.complete(command, Cqe::new(0, status, 0)),
            Ok((slba, Transfer::InCapsule(bytes) | Transfer::FromHost(bytes))) if bytes > 0 => {
                self.memory.give(command, vec![0; bytes as usize]);
                let mut asked = in_capsule;
                if in_capsule == 0 {
                    asked = if slba % 3 == 0 { bytes.min(4096) } else { bytes };
                    self.end.request(command, asked);
                }
                self.writes.insert(command.0, Write { slba, bytes, asked, wrong: false });
            }
            Ok((slba, transfer)) => {
                let read = matches!(transfer, Transfer::ToHost(_)).then_some((slba, transfer.bytes()));
                self.waiting.push(Waiting { command, read, status: Status::SUCCESS });
            }
        }
    }

    fn complete_data(&mut self, command: Handle) {
        let write = self.writes.get_mut(&command.0).expect("data belong to a write");
        if write.asked < write.bytes {
            let more = (write.bytes - write.asked).min(4096);
            write.asked += more;
            return self.end.request(command, more);
        }
        let write = self.writes.remove(&command.0).expect("it was just here");
        let data = self.memory.0.remove(&command.0).expect("a write has memory");
        let mut status = Status::SUCCESS;
        if write.wrong {
            status = Status::again(Code::TRANSIENT_TRANSPORT_ERROR);
        } else if self.strict {
            assert!(data == content(write.slba, data.len()), "what was written is what was sent");
        }
        self.waiting.push(Waiting { command, read: None, status });
    }

    /// Answers one command; or `early`, ends a write whose data still come.
    pub fn answer(&mut self, pick: usize, early: bool) {
        if early {
            let Some(index) = self.writes.keys().nth(pick % self.writes.len().max(1)).copied() else {
                return;
            };
            self.writes.remove(&index);
            self.memory.0.remove(&index).expect("a write has memory");
            return self.end.complete(Handle(index), Cqe::new(0, Status::fatal(Code::ABORT_REQUESTED), 0));
        }
        if self.waiting.is_empty() {
            return;
        }
        let waiting = self.waiting.swap_remove(pick % self.waiting.len());
        let cqe = Cqe::new(0, waiting.status, 0);
        match waiting.read {
            Some((slba, bytes)) => {
                self.memory.give(waiting.command, content(slba, bytes as usize));
                self.end.send(waiting.command, bytes, cqe);
            }
            None => self.end.complete(waiting.command, cqe),
        }
    }
}

/// Returns the offset of a command, and its transfer: I/O by its geometry, all else as admin commands have it.
fn parse(sqe: &Sqe, in_capsule: u32) -> Result<(u64, Transfer), Status> {
    if sqe.opcode == FABRICS || sqe.nsid.get() != 1 {
        let bytes = controller::data_out(sqe)?;
        return match (bytes, in_capsule) {
            (0, 0) => Ok((0, Transfer::None)),
            (bytes, 0) => Ok((0, Transfer::FromHost(bytes))),
            (bytes, in_capsule) if bytes == in_capsule => Ok((0, Transfer::InCapsule(bytes))),
            _ => Err(Status::fatal(Code::DATA_SGL_LENGTH_INVALID)),
        };
    }
    let request = Request::parse(sqe, Some(&GEOMETRY), in_capsule)?;
    let slba = match request.op {
        Op::Read | Op::Write | Op::Compare => request.offset / u64::from(BLOCK_BYTES),
        _ => 0,
    };
    Ok((slba, request.transfer))
}
