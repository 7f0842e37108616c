//! A host that writes what it likes, and the commands that it builds by hand.

use crate::world::World;
use forebay_nvme::command::{admin, Cqe, Sqe};
use forebay_nvme::identify::{self, cns, Identify};
use forebay_nvme::status::Code;
use forebay_nvme::transport::pcie::data;
use forebay_nvme::transport::pcie::device::Settings;
use forebay_nvme::transport::pcie::host::Bar;
use forebay_nvme::transport::pcie::memory::{HostMemory, Ram};
use forebay_nvme::transport::pcie::registers::{offset, Aqa, Doorbell};
use zerocopy::IntoBytes;

pub const BASE: u64 = 0x10_0000;

pub const BYTES: u64 = 1 << 20;

pub const SUBMISSIONS: u64 = BASE;

pub const COMPLETIONS: u64 = BASE + 0x1000;

pub const DATA: u64 = BASE + 0x2000;

pub const SHADOW: u64 = BASE + 0x8000;

/// I/O queues, a page each.
pub const IO: u64 = BASE + 0x1_0000;

pub const ENTRIES: u16 = 16;

pub const ENABLED: u32 = 0x46_0001;

/// A host that writes what it likes.
pub struct Raw {
    pub world: World,
    pub tail: u16,
    pub head: u16,
    pub phase: u16,
    pub cid: u16,
    /// Completions that came while another was waited for.
    pub others: Vec<Cqe>,
}

impl Raw {
    pub fn off() -> Raw {
        Raw::with(Settings::default())
    }

    pub fn with(settings: Settings) -> Raw {
        let world = World::new(settings, Ram::new(BASE, BYTES), 1);
        Raw { world, tail: 0, head: 0, phase: 1, cid: 0, others: Vec::new() }
    }

    pub fn on() -> Raw {
        let mut raw = Raw::off();
        raw.enable();
        raw
    }

    pub fn enable(&mut self) {
        self.write(offset::AQA, Aqa::new(ENTRIES, ENTRIES).0);
        self.world.write(offset::ASQ, 8, SUBMISSIONS).unwrap();
        self.world.write(offset::ACQ, 8, COMPLETIONS).unwrap();
        self.world.memory.write(SUBMISSIONS, &[0; 0x2000]).unwrap();
        self.write(offset::CC, ENABLED);
        (self.tail, self.head, self.phase) = (0, 0, 1);
        assert_eq!(self.csts(), 1);
    }

    pub fn write(&mut self, offset: u64, value: u32) {
        self.world.write(offset, 4, value.into()).unwrap();
    }

    pub fn read(&mut self, offset: u64) -> u32 {
        self.world.read(offset, 4).unwrap() as u32
    }

    pub fn csts(&mut self) -> u32 {
        self.read(offset::CSTS)
    }

    pub fn push(&mut self, sqe: Sqe) -> u16 {
        self.cid = self.cid.wrapping_add(1);
        let sqe = Sqe { cid: self.cid.into(), ..sqe };
        self.world.memory.write(SUBMISSIONS + u64::from(self.tail) * 64, sqe.as_bytes()).unwrap();
        self.tail = (self.tail + 1) % ENTRIES;
        self.write(Doorbell::Submission(0).offset(0), self.tail.into());
        self.cid
    }

    pub fn reap(&mut self) -> Option<Cqe> {
        let mut cqe = Cqe::default();
        self.world.memory.read(COMPLETIONS + u64::from(self.head) * 16, cqe.as_mut_bytes()).unwrap();
        if cqe.status.get() & 1 != self.phase {
            return None;
        }
        self.head = (self.head + 1) % ENTRIES;
        self.phase ^= u16::from(self.head == 0);
        self.write(Doorbell::Completion(0).offset(0), self.head.into());
        Some(cqe)
    }

    /// The completion of this command; None: it has none yet.
    pub fn answer(&mut self, cid: u16) -> Option<Cqe> {
        while let Some(cqe) = self.reap() {
            self.others.push(cqe);
        }
        let at = self.others.iter().position(|cqe| cqe.cid.get() == cid)?;
        Some(self.others.remove(at))
    }

    pub fn ask(&mut self, sqe: Sqe) -> Cqe {
        let cid = self.push(sqe);
        for _ in 0..200 {
            if let Some(cqe) = self.answer(cid) {
                return cqe;
            }
            self.world.turn();
        }
        panic!("no answer to {sqe:?}");
    }

    pub fn code(&mut self, sqe: Sqe) -> Code {
        self.ask(sqe).status().code
    }

    pub fn ask_data(&mut self, sqe: Sqe, bytes: usize) -> (Cqe, Vec<u8>) {
        let cqe = self.ask(data::with_prps(sqe, [DATA, DATA + 0x1000]));
        let mut data = vec![0; bytes];
        self.world.memory.read(DATA, &mut data).unwrap();
        (cqe, data)
    }

    pub fn identify(&mut self) -> identify::Controller {
        let sqe = Identify { cns: cns::CONTROLLER, ..Identify::default() }.to_sqe();
        let (cqe, data) = self.ask_data(sqe, 4096);
        assert!(cqe.status().is_success());
        *identify::Controller::read(&data).unwrap()
    }

    pub fn event(&mut self) -> u16 {
        self.push(Sqe { opcode: admin::ASYNC_EVENT_REQUEST, ..Sqe::default() })
    }
}

pub fn command(opcode: u8, cdw10: u32, cdw11: u32, prp: u64) -> Sqe {
    let sqe = Sqe { opcode, cdw10: cdw10.into(), cdw11: cdw11.into(), ..Sqe::default() };
    data::with_prps(sqe, [prp, 0])
}

pub fn completion_queue(qid: u16, last: u16, vector: u16) -> Sqe {
    let cdw10 = u32::from(last) << 16 | u32::from(qid);
    command(admin::CREATE_COMPLETION_QUEUE, cdw10, u32::from(vector) << 16 | 3, IO + u64::from(qid) * 0x2000)
}

pub fn submission_queue(qid: u16, last: u16, cqid: u16) -> Sqe {
    let cdw10 = u32::from(last) << 16 | u32::from(qid);
    let cdw11 = u32::from(cqid) << 16 | 1;
    command(admin::CREATE_SUBMISSION_QUEUE, cdw10, cdw11, IO + u64::from(qid) * 0x2000 + 0x1000)
}
