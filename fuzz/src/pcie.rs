//! PCIe functions: data pointers in memory that the input writes; a device whose host does anything.

mod driver;

pub use driver::nvme_pcie_host;

use crate::controller::subsystem;
use crate::input::Input;
use forebay_nvme::command::{admin, Sqe};
use forebay_nvme::controller::Health;
use forebay_nvme::nvm::Request;
use forebay_nvme::status::Status;
use forebay_nvme::transport::pcie::data::{self, Piece, DESCRIPTORS_MAX};
use forebay_nvme::transport::pcie::device::state::DeviceState;
use forebay_nvme::transport::pcie::device::{Device, Effect, Settings};
use forebay_nvme::transport::pcie::memory::{HostMemory, Ram, Unmapped};
use forebay_nvme::transport::pcie::queue::{CompletionQueue, Interrupt, QueueFault, QueueState};
use forebay_nvme::transport::pcie::registers::{offset, Doorbell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use zerocopy::IntoBytes;

const BASE: u64 = 0x10_0000;
const BYTES: u64 = 64 << 10;
/// More effects than any one call has.
const EFFECTS_MAX: usize = 256;

/// PRPs and SGLs: pieces in order that make up the data exactly, all of them in memory, or a status; in either case after
/// a bounded number of steps.
pub fn nvme_pcie_walk(data: &[u8]) {
    let mut input = Input::new(data);
    let memory = Ram::new(BASE, BYTES);
    let (flags, page_bytes) = (input.u8(), 4096u32 << (input.u8() % 5));
    let bytes = input.near(&[512, 4096, 4097, 8192, 12288, 65536, 1 << 20, 4, 0]) % (8 << 20);
    let prps = [place(&mut input), place(&mut input)];
    while !input.is_empty() {
        write_some(&mut input, &memory);
    }
    let sqe = Sqe { flags, ..data::with_prps(Sqe::default(), prps) };
    let sqe = Sqe { flags, ..sqe };
    let (mut walked_bytes, mut calls) = (0u64, 0);
    let walked = data::walk(&memory, &sqe, bytes, page_bytes, &mut |Piece { address, bytes: here }| {
        calls += 1;
        assert!(here > 0 && calls <= DESCRIPTORS_MAX.max(bytes / page_bytes + 2));
        walked_bytes += u64::from(here);
        match memory.contains(address, here.into()) {
            true => Ok(()),
            false => Err(Unmapped { address, bytes: here.into() }),
        }
    });
    match walked {
        Ok(()) => assert_eq!(walked_bytes, u64::from(bytes)),
        Err(status) => assert!(!status.is_success() && walked_bytes <= u64::from(bytes)),
    }
}

/// An address, mostly of something that is there.
fn place(input: &mut Input<'_>) -> u64 {
    match input.u8() % 8 {
        0 => input.u64(),
        1 => BASE + u64::from(input.u16()),
        2 => u64::from(input.u32()),
        _ => {
            BASE + u64::from(input.u8() % 16) * 4096
                + u64::from(input.pick(&[0u16, 0, 0, 8, 4088, 4080, 16, 4]))
        }
    }
}

/// A word somewhere: an address, an SGL descriptor's second half, or anything.
fn write_some(input: &mut Input<'_>, memory: &Ram) {
    let at = BASE + u64::from(input.u8() % 16) * 4096 + u64::from(input.u16() % 512) * 8;
    let value = match input.u8() % 4 {
        0 => input.u64(),
        1 => {
            u64::from(input.near(&[16, 32, 512, 4096, 65536]))
                | u64::from(input.pick(&[0u8, 0x20, 0x30, 0x10])) << 56
        }
        _ => place(input),
    };
    let _ = memory.write(at, &value.to_le_bytes());
}

/// State of the device's driver.
struct Function {
    settings: Settings,
    device: Device,
    memory: Ram,
    queues: BTreeMap<u16, CompletionQueue>,
    /// Commands that run, by queue and slot.
    running: VecDeque<(u16, u16)>,
    leaving: BTreeSet<(u16, u16)>,
    closing: bool,
    shutting_down: bool,
    now_ms: u64,
    /// Tail of the admin queue in the host's view.
    tail: u16,
}

/// Registers, doorbells, admin commands and queues, in any order. Nothing panics; queues are never more than there may be;
/// what is asked for is asked for once; a queue that can't be reached is fatal, and a reset mends it.
pub fn nvme_pcie_device(data: &[u8]) {
    let mut input = Input::new(data);
    let settings = Settings {
        vectors: u16::from(input.u8() % 8),
        stride: input.u8() % 4,
        shadow_doorbells: input.u8() % 4 > 0,
        ..Settings::default()
    };
    let device = Device::new(subsystem(&mut input, false, false), settings.clone(), 0);
    let mut function = Function {
        settings,
        device,
        memory: Ram::new(BASE, BYTES),
        queues: BTreeMap::new(),
        running: VecDeque::new(),
        leaving: BTreeSet::new(),
        closing: false,
        shutting_down: false,
        now_ms: 0,
        tail: 0,
    };
    if input.u8() % 8 > 0 {
        function.enable();
    }
    while !input.is_empty() {
        function.step(&mut input);
        function.effects();
    }
    function.end();
}

impl Function {
    fn write(&mut self, at: u64, value: u64, bytes: usize) {
        self.device.write(&self.memory, at, &value.to_le_bytes()[..bytes]);
    }

    fn enable(&mut self) {
        self.write(offset::AQA, 0x001f_001f, 4);
        self.write(offset::ASQ, BASE, 8);
        self.write(offset::ACQ, BASE + 0x1000, 8);
        self.write(offset::CC, 0x46_0001, 4);
        self.tail = 0;
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.u8() % 16 {
            0 => self.write_register(input),
            1 | 2 => self.ring(input),
            3 => write_some(input, &self.memory),
            4 => {
                self.now_ms += u64::from(input.u8());
                let mut into = [0; 16];
                let length = usize::from(input.u8() % 17);
                self.device.read(input.near(&[0, 8, 0x14, 0x1c, 0x24, 0x1000]).into(), &mut into[..length]);
            }
            5 => {
                let warning = Health { critical_warning: input.u8(), ..Health::default() };
                self.device.set_health(warning);
            }
            6 if input.u8() % 4 == 0 => self.device.update(subsystem(input, false, false)),
            6 if input.u8() % 8 == 0 => self.device.function_reset(),
            7 | 8 => self.owners(input),
            9 => self.finish(input),
            10 if self.closing => self.close(),
            11 if input.u8() % 4 == 0 => self.change_process(),
            10 if self.shutting_down => {
                self.shutting_down = false;
                self.device.shut_down_complete();
            }
            _ => self.command(input),
        }
        for _ in 0..8 {
            if !self.device.work(&self.memory, self.now_ms) {
                break;
            }
        }
    }

    fn write_register(&mut self, input: &mut Input<'_>) {
        let at = input.near(&[0x14, 0x14, 0x14, 0x20, 0x24, 0x28, 0x2c, 0x30, 0x34, 0x0c, 0x10, 0x1c, 0]);
        let value = match at {
            0x14 => input.near(&[0x46_0001, 0, 0x46_4001, 0x46_8001, 0x46_0081, 1]),
            0x20 => input.near(&[0x4e56_4d65, 0]),
            0x24 => input.near(&[0x001f_001f, 0x0fff_0fff, 0x1_0001, 0]),
            _ => input.near(&[BASE as u32, BASE as u32 + 0x1000, 0, 0xffff_f000]),
        };
        let bytes = usize::from(input.pick(&[4u8, 4, 4, 8, 1, 2]));
        self.write(at.into(), value.into(), bytes);
    }

    fn ring(&mut self, input: &mut Input<'_>) {
        let qid = input.near(&[0, 1, 2, 3, 4, 5]) as u16;
        let value = input.near(&[1, 2, 3, 4, 0, 7, 15, 31, 32, 0xffff]);
        let doorbell = if input.bool() { Doorbell::Submission(qid) } else { Doorbell::Completion(qid) };
        let shadow = BASE + 0x8000 + (doorbell.offset(0) - 0x1000) % 4096;
        if input.bool() {
            let _ = self.memory.store(shadow, value);
        }
        self.write(doorbell.offset(input.pick(&[0u8, 0, 0, 1, 2, 3])), value.into(), 4);
    }

    /// A command in the admin queue, and its doorbell.
    fn command(&mut self, input: &mut Input<'_>) {
        let sqe = admin_command(input);
        let _ = self.memory.write(BASE + u64::from(self.tail) * 64, sqe.as_bytes());
        self.tail = (self.tail + 1) % 32;
        for stride in 0..4 {
            self.write(Doorbell::Submission(0).offset(stride), self.tail.into(), 4);
            // The host keeps up with what was completed.
            self.write(Doorbell::Completion(0).offset(stride), self.tail.into(), 4);
        }
    }

    /// Owners of I/O queues look, fetch and sleep.
    fn owners(&mut self, input: &mut Input<'_>) {
        if self.closing {
            return;
        }
        for (cqid, queue) in &mut self.queues {
            let mut turn = || -> Result<(), QueueFault> {
                queue.poll(&self.memory)?;
                for _ in 0..input.u8() % 8 {
                    let Some(fetched) = queue.fetch(&self.memory)? else { break };
                    assert!(fetched.slot < queue.slots() && queue.command(fetched.slot) == Some(fetched));
                    let _ = Request::parse_pcie(&fetched.sqe, None);
                    self.running.push_back((*cqid, fetched.slot));
                }
                if input.bool() {
                    queue.sleep(&self.memory)?;
                }
                Ok(())
            };
            if let Err(fault) = turn() {
                self.device.fault(fault);
            }
            if let Interrupt::Now(vector) = queue.interrupt(self.now_ms) {
                assert_eq!(Some(vector), queue.vector());
            }
        }
    }

    /// Some commands end.
    fn finish(&mut self, input: &mut Input<'_>) {
        for _ in 0..input.u8() % 8 {
            let Some((cqid, slot)) = self.running.pop_front() else { break };
            let Some(queue) = self.queues.get_mut(&cqid).filter(|_| !self.closing) else { continue };
            if let Err(fault) = queue.complete(&self.memory, slot, Status::SUCCESS, 0) {
                self.device.fault(fault);
            }
        }
        let queues = &mut self.queues;
        let device = &mut self.device;
        self.leaving.retain(|(cqid, sqid)| {
            let gone = queues.get_mut(cqid).is_some_and(|queue| queue.remove(*sqid));
            if gone {
                device.submission_closed(*sqid);
            }
            !gone
        });
    }

    /// As another process has it from here on. Whatever the host did, that can be told and understood.
    fn change_process(&mut self) {
        self.device.answer_ended(&self.memory);
        if !self.device.is_calm() || self.closing || !self.leaving.is_empty() {
            return;
        }
        let saved =
            (self.device.state(), self.queues.values().map(CompletionQueue::state).collect::<Vec<_>>());
        let text = serde_json::to_vec(&saved).expect("a state is JSON");
        let (state, queues): (DeviceState, Vec<QueueState>) =
            serde_json::from_slice(&text).expect("it is read again");
        let subsystem = self.device.controller().subsystem().clone();
        let device = Device::restore(subsystem, self.settings.clone(), &state, &queues);
        self.device = device.expect("what was can be");
        assert_eq!(self.device.state(), state);
        for state in &queues {
            let queue = CompletionQueue::restore(state).expect("what was can be");
            assert_eq!(queue.state(), *state);
            self.queues.insert(state.id(), queue);
        }
    }

    fn close(&mut self) {
        self.closing = false;
        self.queues.clear();
        self.running.clear();
        self.leaving.clear();
        self.device.queues_closed();
    }

    fn effects(&mut self) {
        for count in 0.. {
            let Some(effect) = self.device.next_effect() else { break };
            assert!(count < EFFECTS_MAX, "effects without end");
            if let Err(fault) = self.effect(effect) {
                self.device.fault(fault);
            }
        }
    }

    fn effect(&mut self, effect: Effect) -> Result<(), QueueFault> {
        match effect {
            Effect::OpenCompletion(queue) => {
                assert!(self.queues.insert(queue.id(), queue).is_none() && self.queues.len() <= 4);
            }
            Effect::OpenSubmission { cqid, queue } => {
                self.queues.get_mut(&cqid).expect("its completion queue").open(&self.memory, queue)?;
            }
            Effect::CloseSubmission { cqid, sqid } => {
                self.queues.get_mut(&cqid).expect("its completion queue").close(sqid);
                assert!(self.leaving.insert((cqid, sqid)), "once");
            }
            Effect::CloseCompletion { cqid } => {
                let queue = self.queues.remove(&cqid).expect("there is one");
                assert!(queue.submissions().count() == 0 && queue.in_flight() == 0);
                self.device.completion_closed(cqid);
            }
            Effect::CloseQueues => assert!(!std::mem::replace(&mut self.closing, true), "once"),
            Effect::Abort { cqid, sqid, cid } => {
                let queue = self.queues.get(&cqid).expect("its completion queue");
                let found = queue.find(sqid, cid).is_some();
                self.device.aborted(sqid, cid, found);
            }
            Effect::Ring { cqid, doorbell, value } => {
                let queue = self.queues.get_mut(&cqid).expect("its completion queue");
                queue.ring(doorbell, value).map_err(QueueFault::Doorbell)?;
            }
            Effect::Shadow(shadow) => {
                for queue in self.queues.values_mut() {
                    queue.set_shadow(&self.memory, shadow)?;
                }
            }
            Effect::Coalescing(coalescing) => {
                self.queues.values_mut().for_each(|queue| queue.set_coalescing(coalescing.clone()));
            }
            Effect::ShutDown => self.shutting_down = true,
            Effect::Interrupt(vector) => assert_eq!(vector, 0),
            Effect::WriteCache { .. } => {}
            Effect::Fatal(why) => assert!(!why.is_empty() && self.device.status().fatal()),
        }
        Ok(())
    }

    /// A reset mends whatever there is.
    fn end(&mut self) {
        self.device.function_reset();
        self.effects();
        if self.closing {
            self.close();
        }
        self.effects();
        assert_eq!(self.device.status().0, 0);
        self.enable();
        self.effects();
        assert!(self.device.ready() && !self.device.status().fatal());
    }
}

/// An admin command, mostly of queues.
fn admin_command(input: &mut Input<'_>) -> Sqe {
    let opcode = input.near(&[
        admin::CREATE_COMPLETION_QUEUE.into(),
        admin::CREATE_SUBMISSION_QUEUE.into(),
        admin::CREATE_COMPLETION_QUEUE.into(),
        admin::CREATE_SUBMISSION_QUEUE.into(),
        admin::DELETE_SUBMISSION_QUEUE.into(),
        admin::DELETE_COMPLETION_QUEUE.into(),
        admin::DOORBELL_BUFFER_CONFIG.into(),
        admin::ABORT.into(),
        admin::ASYNC_EVENT_REQUEST.into(),
        admin::IDENTIFY.into(),
        admin::GET_LOG_PAGE.into(),
        admin::SET_FEATURES.into(),
        admin::GET_FEATURES.into(),
    ]) as u8;
    let qid = input.near(&[1, 2, 3, 4, 0, 5]) & 0xffff;
    let (cdw10, cdw11, prps) = match opcode {
        admin::CREATE_COMPLETION_QUEUE | admin::CREATE_SUBMISSION_QUEUE => {
            let entries = input.near(&[7, 1, 15, 31, 0, 32]) << 16;
            let high = input.near(&[1, 2, 3, 0]) << 16 | input.near(&[3, 1, 3, 0]);
            (entries | qid, high, [place(input), 0])
        }
        admin::DOORBELL_BUFFER_CONFIG => (0, 0, [BASE + 0x8000, BASE + 0x9000]),
        admin::ABORT => (input.near(&[0, 1, 2]) << 16 | qid, 0, [0, 0]),
        admin::SET_FEATURES | admin::GET_FEATURES => (
            input.near(&[7, 8, 9, 0xb, 0xe, 1, 6]),
            input.near(&[0, 0x3_0003, 0x0a07, 0x1_0001, 0x13f]),
            [place(input), 0],
        ),
        admin::GET_LOG_PAGE => {
            (input.near(&[1, 2, 5]) | input.near(&[15, 1023, 0xffff]) << 16, 0, [place(input), place(input)])
        }
        _ => (input.near(&[1, 0, 2, 3]), 0, [place(input), place(input)]),
    };
    let sqe = Sqe {
        opcode,
        cid: u16::from(input.u8()).into(),
        nsid: input.near(&[0, 1, 2, u32::MAX]).into(),
        cdw10: cdw10.into(),
        cdw11: cdw11.into(),
        ..Sqe::default()
    };
    let prps = if input.u8() % 16 == 0 { [place(input), place(input)] } else { prps };
    Sqe { flags: if input.u8() % 32 == 0 { input.u8() } else { 0 }, ..data::with_prps(sqe, prps) }
}
