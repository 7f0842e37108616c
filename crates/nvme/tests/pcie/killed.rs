//! A function's queues whose process is killed at any store, again and again, against a host that counts: each command ends
//! once, none is lost, and none is carried out after its host was told that it is over.

use crate::world::subsystem;
use forebay_nvme::command::{Cqe, Sqe};
use forebay_nvme::status::{Code, Status};
use forebay_nvme::transport::pcie::data;
use forebay_nvme::transport::pcie::device::state::DeviceState;
use forebay_nvme::transport::pcie::device::{Device, Effect, Settings};
use forebay_nvme::transport::pcie::memory::{HostMemory, Ram, Unmapped};
use forebay_nvme::transport::pcie::queue::book::{self, Book, Words};
use forebay_nvme::transport::pcie::queue::{CompletionQueue, Interrupt, QueueState, SubmissionQueue};
use forebay_nvme::transport::pcie::registers::{offset, Doorbell, DOORBELLS};
use forebay_nvme::transport::pcie::shadow::Shadow;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

const CQ: u64 = 0x1_0000;
const SQS: u64 = 0x2_0000;
const SHADOW: Shadow = Shadow { doorbells: 0x3_0000, event_indices: 0x3_1000, stride: 0, page_bytes: 4096 };
const QUEUES: u16 = 3;

/// Stores that a process makes before it is killed. What it does afterwards has no effect.
#[derive(Clone, Debug)]
struct Life(Arc<AtomicU64>);

impl Life {
    fn lives(&self) -> bool {
        let left = self.0.load(Ordering::Relaxed);
        self.0.store(left.saturating_sub(1), Ordering::Relaxed);
        left > 0
    }
}

struct Mortal {
    ram: Ram,
    life: Life,
}

impl HostMemory for Mortal {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unmapped> {
        self.ram.read(address, into)
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), Unmapped> {
        // A copy may end in the middle.
        for (at, piece) in (address..).step_by(4).zip(from.chunks(4)) {
            if self.life.lives() {
                self.ram.write(at, piece)?;
            }
        }
        Ok(())
    }

    fn load(&self, address: u64) -> Result<u32, Unmapped> {
        self.ram.load(address)
    }

    fn store(&self, address: u64, value: u32) -> Result<(), Unmapped> {
        if self.life.lives() {
            self.ram.store(address, value)?;
        }
        Ok(())
    }

    fn contains(&self, address: u64, bytes: u64) -> bool {
        self.ram.contains(address, bytes)
    }
}

#[derive(Clone, Debug)]
struct Paper {
    words: Arc<[AtomicU64]>,
    life: Life,
}

impl Words for Paper {
    fn load(&self, word: usize) -> u64 {
        self.words[word].load(Ordering::Relaxed)
    }

    fn store(&self, word: usize, value: u64) {
        if self.life.lives() {
            self.words[word].store(value, Ordering::Relaxed);
        }
    }
}

/// One submission queue as its host has it.
struct Ours {
    sqid: u16,
    entries: u16,
    head: u16,
    tail: u16,
    /// Identifier → number of the command.
    in_flight: BTreeMap<u16, u32>,
}

struct Host {
    ram: Ram,
    entries: u16,
    head: u16,
    phase: bool,
    queues: Vec<Ours>,
    shadow: bool,
    registers: BTreeMap<Doorbell, u32>,
    numbered: u32,
    ended: Vec<u32>,
}

impl Host {
    fn ring(&mut self, doorbell: Doorbell, value: u16) {
        match SHADOW.addresses_of(doorbell).filter(|_| self.shadow) {
            Some((at, _)) => self.ram.store(at, value.into()).unwrap(),
            None => drop(self.registers.insert(doorbell, value.into())),
        }
    }

    fn submit(&mut self, which: usize) {
        let at = which % self.queues.len();
        let queue = &mut self.queues[at];
        let next = (queue.tail + 1) % queue.entries;
        let Some(cid) = (0..queue.entries).find(|cid| !queue.in_flight.contains_key(cid)) else { return };
        if next == queue.head {
            return;
        }
        let sqe = Sqe {
            cid: cid.into(),
            cdw10: self.numbered.into(),
            cdw15: (!self.numbered).into(),
            ..Sqe::default()
        };
        let address = SQS + u64::from(queue.sqid) * 0x1000 + u64::from(queue.tail) * 64;
        self.ram.write(address, sqe.as_bytes()).unwrap();
        queue.in_flight.insert(cid, self.numbered);
        queue.tail = next;
        self.numbered += 1;
        let doorbell = Doorbell::Submission(queue.sqid);
        self.ring(doorbell, next);
    }

    /// Takes completions. Each is of a command in flight.
    fn take(&mut self) {
        loop {
            let mut bytes = [0; 16];
            self.ram.read(CQ + u64::from(self.head) * 16, &mut bytes).unwrap();
            let cqe = Cqe::read_from_bytes(&bytes).unwrap();
            if (cqe.status.get() & 1 != 0) != self.phase {
                return self.ring(Doorbell::Completion(1), self.head);
            }
            let queue = self.queues.iter_mut().find(|q| q.sqid == cqe.sqid.get()).expect("a queue of ours");
            queue.head = cqe.sqhd.get();
            let number = queue.in_flight.remove(&cqe.cid.get()).expect("a command that is in flight, once");
            assert_eq!(cqe.result.get(), u64::from(number), "the completion of another command");
            assert!(cqe.status().is_success());
            self.ended.push(number);
            self.head = (self.head + 1) % self.entries;
            self.phase ^= self.head == 0;
        }
    }
}

/// A process that serves the queues.
struct Process {
    queue: CompletionQueue,
    memory: Mortal,
    pending: Vec<u16>,
    seen: BTreeMap<Doorbell, u32>,
}

impl Process {
    fn begin(&mut self, host: &Host) {
        for slot in &self.pending {
            let sqe = self.queue.command(*slot).expect("it is in flight").sqe;
            self.carries_out(host, &sqe);
        }
    }

    fn carries_out(&self, host: &Host, sqe: &Sqe) {
        let number = sqe.cdw10.get();
        // One that is dead does as it likes.
        if self.memory.life.0.load(Ordering::Relaxed) > 0 {
            assert_eq!(sqe.cdw15.get(), !number, "a command as its host wrote it");
            assert!(!host.ended.contains(&number), "command {number} is carried out after its end");
        }
    }

    fn turn(&mut self, host: &Host, step: u8, which: usize) {
        match step {
            0 => {
                for (doorbell, value) in &host.registers {
                    if self.seen.insert(*doorbell, *value) != Some(*value) {
                        self.queue.ring(*doorbell, *value).unwrap();
                    }
                }
                self.queue.poll(&self.memory).unwrap();
            }
            1 => {
                if let Some(fetched) = self.queue.fetch(&self.memory).unwrap() {
                    self.carries_out(host, &fetched.sqe);
                    self.pending.push(fetched.slot);
                }
            }
            _ if self.pending.is_empty() => {}
            _ => {
                let slot = self.pending.swap_remove(which % self.pending.len());
                let number = self.queue.command(slot).expect("it is in flight").sqe.cdw10.get();
                self.queue.complete(&self.memory, slot, Status::SUCCESS, number.into()).unwrap();
                assert_ne!(self.queue.interrupt(0), Interrupt::None);
            }
        }
    }
}

struct Stage {
    host: Host,
    state: QueueState,
    paper: Paper,
    process: Process,
}

fn stage(submissions: u16, entries: u16, completions: u16, shadow: bool) -> Stage {
    let ram = Ram::new(0, 0x4_0000);
    let life = Life(Arc::new(AtomicU64::new(u64::MAX)));
    let words = (0..book::words(QUEUES, completions)).map(|_| AtomicU64::new(7)).collect();
    let paper = Paper { words, life: life.clone() };
    let memory = Mortal { ram: ram.clone(), life };
    let mut queue = CompletionQueue::new(1, CQ, completions, Some(1));
    queue.note_in(Book::new(Box::new(paper.clone()), QUEUES));
    let mut state = queue.state();
    for sqid in 1..=submissions {
        let one = SubmissionQueue::new(sqid, SQS + u64::from(sqid) * 0x1000, entries);
        Book::new(Box::new(paper.clone()), QUEUES).begin_submission(sqid, false);
        state.opened(&one);
        queue.open(&memory, one).unwrap();
    }
    if shadow {
        queue.set_shadow(&memory, SHADOW).unwrap();
        state.set_shadow(SHADOW);
    }
    let queues = (1..=submissions)
        .map(|sqid| Ours { sqid, entries, head: 0, tail: 0, in_flight: BTreeMap::new() })
        .collect();
    let host = Host {
        ram,
        entries: completions,
        head: 0,
        phase: true,
        queues,
        shadow,
        registers: BTreeMap::new(),
        numbered: 0,
        ended: Vec::new(),
    };
    Stage {
        host,
        state,
        paper,
        process: Process { queue, memory, pending: Vec::new(), seen: BTreeMap::new() },
    }
}

impl Stage {
    /// Another process goes on, which is killed after so many stores.
    fn killed(&mut self, stores: u64) {
        let life = Life(Arc::new(AtomicU64::new(stores)));
        self.paper.life = life.clone();
        let memory = Mortal { ram: self.host.ram.clone(), life };
        let book = Book::new(Box::new(self.paper.clone()), QUEUES);
        let queue = CompletionQueue::recover(&self.state, book, &memory).expect("what was noted can be");
        let pending = queue.in_flight_slots().collect();
        self.process = Process { queue, memory, pending, seen: BTreeMap::new() };
        self.process.begin(&self.host);
        let reported = self.process.queue.interrupt(0);
        assert_ne!(reported, Interrupt::None, "the host may not have heard the last one");
    }

    fn play(&mut self, steps: &[(u8, usize)]) {
        for (step, which) in steps {
            match step % 6 {
                0 | 1 => self.host.submit(*which),
                2 => self.host.take(),
                other => self.process.turn(&self.host, other - 3, *which),
            }
        }
    }

    /// All that was asked for ends.
    fn finish(&mut self) {
        self.killed(u64::MAX);
        for _ in 0..4 * self.host.numbered + 64 {
            self.play(&[(3, 0), (4, 0), (5, 0), (2, 0)]);
        }
        assert!(self.host.queues.iter().all(|queue| queue.in_flight.is_empty()), "a completion is lost");
        let mut ended = self.host.ended.clone();
        ended.sort_unstable();
        assert!(ended.into_iter().eq(0..self.host.numbered), "each ended once");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    // promise: SNP-11
    #[test]
    fn a_queue_goes_on_whenever_its_process_is_killed(
        (submissions, entries, completions) in (1u16..=QUEUES, 2u16..9, 2u16..9),
        shadow in any::<bool>(),
        lives in prop::collection::vec((0u64..60, prop::collection::vec((any::<u8>(), 0usize..8), 1..60)), 1..12),
    ) {
        let mut stage = stage(submissions, entries, completions, shadow);
        for (stores, steps) in lives {
            stage.play(&steps);
            stage.killed(stores);
        }
        stage.finish();
    }
}

/// The same commands with the process killed after each number of stores.
// promise: SNP-11
#[test]
fn a_process_is_killed_at_every_store_of_three_commands() {
    for shadow in [false, true] {
        for stores in 0..80 {
            let mut stage = stage(1, 4, 3, shadow);
            stage.killed(stores);
            for _ in 0..3 {
                stage.play(&[(0, 0), (3, 0), (4, 0), (5, 0), (2, 0)]);
            }
            stage.finish();
            assert!(stage.host.numbered > 0);
        }
    }
}

/// Two commands with one identifier: the host hears of its mistake once, and of the first command's end.
// promise: SNP-11
#[test]
fn an_identifier_in_flight_twice_is_refused_once() {
    for stores in 0..60 {
        let mut stage = stage(1, 4, 4, false);
        for (at, number) in [(0u64, 5u32), (1, 6)] {
            let sqe = Sqe { cid: 9.into(), cdw10: number.into(), cdw15: (!number).into(), ..Sqe::default() };
            stage.host.ram.write(SQS + 0x1000 + at * 64, sqe.as_bytes()).unwrap();
        }
        stage.host.registers.insert(Doorbell::Submission(1), 2);
        stage.killed(stores);
        stage.play(&[(3, 0), (4, 0), (4, 0)]);
        stage.killed(u64::MAX);
        stage.play(&[(3, 0), (4, 0), (4, 0), (5, 0), (5, 0), (5, 0)]);
        let mut seen = Vec::new();
        for at in 0..4 {
            let mut bytes = [0; 16];
            stage.host.ram.read(CQ + at * 16, &mut bytes).unwrap();
            let cqe = Cqe::read_from_bytes(&bytes).unwrap();
            if cqe.status.get() & 1 != 0 {
                seen.push((cqe.cid.get(), cqe.status().code == Code::COMMAND_ID_CONFLICT, cqe.result.get()));
            }
        }
        seen.sort_by_key(|one| one.1);
        assert_eq!(seen, [(9, false, 5), (9, true, 0)], "killed after {stores} stores");
    }
}

/// The admin queue: what was noted and not told, and what was told and noted before, come to the same.
#[test]
fn what_is_held_back_is_told_by_whoever_goes_on() {
    let (memory, settings) = (Ram::new(0, 0x4_0000), Settings::default());
    let ended = |memory: &Ram| {
        let mut bytes = [0; 16];
        memory.read(CQ, &mut bytes).unwrap();
        bytes
    };
    let ask = |device: &mut Device| {
        device.write(&memory, DOORBELLS, &1u32.to_le_bytes());
        device.work(&memory, 0);
        assert!(device.has_held_back());
    };
    let mut device = Device::new(Arc::new(subsystem()), settings.clone(), 0);
    device.hold_back();
    device.write(&memory, offset::AQA, &0x0007_0007u32.to_le_bytes());
    device.write(&memory, offset::ASQ, &SQS.to_le_bytes());
    device.write(&memory, offset::ACQ, &CQ.to_le_bytes());
    device.write(&memory, offset::CC, &0x0046_0001u32.to_le_bytes());
    assert!(device.ready());
    let before = device.state();
    let identify = Sqe { opcode: 0x06, cid: 77.into(), cdw10: 1.into(), ..Sqe::default() };
    memory.write(SQS, data::with_prps(identify, [0x3_0000, 0]).as_bytes()).unwrap();
    ask(&mut device);
    assert!(ended(&memory) == [0; 16] && device.next_effect().is_none(), "the host knows nothing");
    let noted = device.state();
    let restored = |state: &DeviceState| {
        let mut device = Device::restore(Arc::new(subsystem()), settings.clone(), state, &[]).unwrap();
        device.hold_back();
        device
    };
    // Killed before it told, and once more while it told.
    for _ in 0..2 {
        let mut device = restored(&noted);
        assert!(device.has_held_back());
        device.publish(&memory);
        assert!(!device.has_held_back() && matches!(device.next_effect(), Some(Effect::Interrupt(0))));
    }
    let reported = ended(&memory);
    assert_eq!(Cqe::read_from_bytes(&reported).unwrap().cid.get(), 77);
    // Killed before it noted: the command is carried out again, to the same end.
    let mut device = restored(&before);
    ask(&mut device);
    device.publish(&memory);
    assert_eq!(ended(&memory), reported);
}
