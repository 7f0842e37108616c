//! The function's side of the pair: a device, the owners of its I/O queues, and a drive of bytes behind them.
//!
//! What it does next is drawn from a seed: which command ends first, how late an effect comes to a queue's owner, whether
//! an owner looks or sleeps. An owner that sleeps looks again only at a doorbell register or when a command of its own
//! ends, as one that waits for events would.

mod commands;

use forebay_nvme::controller::subsystem::{HostSettings, Hosts, Kind, Limits, Namespace, Optimal, Subsystem};
use forebay_nvme::log::AnaState;
use forebay_nvme::nvm::Request;
use forebay_nvme::transport::pcie::data::Piece;
use forebay_nvme::transport::pcie::device::state::DeviceState;
use forebay_nvme::transport::pcie::device::{Device, Effect, Settings};
use forebay_nvme::transport::pcie::host::Bar;
use forebay_nvme::transport::pcie::memory::Ram;
use forebay_nvme::transport::pcie::queue::{CompletionQueue, Interrupt, QueueFault, QueueState};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

pub const BLOCK: u32 = 512;
pub const BLOCKS: u64 = 32_768;

/// A small generator, so that a seed is all a failure needs.
#[derive(Clone, Debug)]
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

    /// Once in `n` times.
    pub fn rarely(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

pub fn namespace() -> Namespace {
    Namespace {
        block_bytes: BLOCK,
        blocks: BLOCKS,
        read_only: false,
        volatile_write_cache: true,
        deallocate: true,
        uuid: Some([3; 16]),
        nguid: None,
        eui64: None,
        ana_group: 2,
        optimal: Optimal::default(),
    }
}

pub fn subsystem() -> Subsystem {
    Subsystem {
        nqn: "nqn.2014-08.org.example:disk".into(),
        serial: "S1".into(),
        model: "Forebay".into(),
        firmware: "1.0".into(),
        kind: Kind::Nvm { namespaces: [(1, namespace())].into(), ana: [(2, AnaState::NonOptimized)].into() },
        hosts: Hosts::Any(HostSettings::default()),
        limits: Limits {
            queues: 8,
            queue_entries: 64,
            transfer_bytes: Some(128 << 10),
            keep_alive_required: true,
            ..Limits::default()
        },
    }
}

/// A command that is being carried out.
#[derive(Debug)]
struct Running {
    cqid: u16,
    slot: u16,
    request: Request,
    pieces: Vec<Piece>,
    /// The host asked to give up on it.
    abort: bool,
    /// Its queue is being deleted.
    deleted: bool,
}

/// An I/O queue with its owner.
#[derive(Debug)]
struct Owner {
    queue: CompletionQueue,
    asleep: bool,
    /// Effects that haven't come to it yet.
    letters: VecDeque<Effect>,
    /// Submission queues that are to go.
    leaving: BTreeSet<u16>,
}

pub struct World {
    settings: Settings,
    pub device: Device,
    pub memory: Ram,
    pub disk: Vec<u8>,
    pub random: Random,
    pub now_us: u64,
    owners: BTreeMap<u16, Owner>,
    running: Vec<Running>,
    /// Interrupts by vector.
    pub interrupts: BTreeMap<u16, u64>,
    pub fatal: Vec<String>,
    pub flushed: u32,
    /// One in so many commands fails; 0: none.
    pub failing: usize,
    /// No command ends.
    pub stalled: bool,
    closing: bool,
    shutting_down: bool,
    pub doorbell_writes: u64,
    pub commands: u64,
    /// Once in so many turns all of it goes to another process, if nothing is in the way; 0: never.
    pub moving: usize,
    pub moves: u64,
    /// Commands in flight that went along.
    pub moved: usize,
}

impl World {
    pub fn new(settings: Settings, memory: Ram, seed: u64) -> World {
        World {
            device: Device::new(Arc::new(subsystem()), settings.clone(), 0),
            settings,
            memory,
            disk: vec![0; (BLOCKS * u64::from(BLOCK)) as usize],
            random: Random::new(seed),
            now_us: 0,
            owners: BTreeMap::new(),
            running: Vec::new(),
            interrupts: BTreeMap::new(),
            fatal: Vec::new(),
            flushed: 0,
            failing: 0,
            stalled: false,
            closing: false,
            shutting_down: false,
            doorbell_writes: 0,
            commands: 0,
            moving: 0,
            moves: 0,
            moved: 0,
        }
    }

    pub fn now_ms(&self) -> u64 {
        self.now_us / 1000
    }

    pub fn in_flight(&self) -> usize {
        self.running.len()
    }

    pub fn queues(&self) -> usize {
        self.owners.len()
    }

    /// Returns whether each I/O queue's owner sleeps.
    pub fn all_asleep(&self) -> bool {
        self.owners.values().all(|owner| owner.asleep && owner.letters.is_empty())
    }

    /// Does the work of the device's thread after each call: admin commands, then effects to where they belong.
    pub fn admin(&mut self) {
        let memory = self.memory.clone();
        while self.device.work(&memory, self.now_us / 1000) {}
        while let Some(effect) = self.device.next_effect() {
            self.effect(effect);
        }
    }

    fn effect(&mut self, effect: Effect) {
        match effect {
            Effect::OpenCompletion(queue) => {
                let owner =
                    Owner { queue, asleep: false, letters: VecDeque::new(), leaving: BTreeSet::new() };
                assert!(self.owners.insert(owner.queue.id(), owner).is_none(), "it is new");
            }
            Effect::OpenSubmission { cqid, .. }
            | Effect::CloseSubmission { cqid, .. }
            | Effect::CloseCompletion { cqid }
            | Effect::Abort { cqid, .. }
            | Effect::Ring { cqid, .. } => {
                self.owners.get_mut(&cqid).expect("a queue that there is").letters.push_back(effect);
            }
            Effect::Shadow(_) | Effect::Coalescing(_) => {
                for owner in self.owners.values_mut() {
                    owner.letters.push_back(match &effect {
                        Effect::Shadow(shadow) => Effect::Shadow(*shadow),
                        Effect::Coalescing(coalescing) => Effect::Coalescing(coalescing.clone()),
                        _ => unreachable!(),
                    });
                }
            }
            Effect::CloseQueues => self.closing = true,
            Effect::ShutDown => self.shutting_down = true,
            Effect::WriteCache { .. } => {}
            Effect::Interrupt(vector) => *self.interrupts.entry(vector).or_default() += 1,
            Effect::Fatal(why) => self.fatal.push(why),
        }
    }

    /// One turn of everything, in an order that the seed decides.
    pub fn turn(&mut self) {
        self.now_us += 1 + self.random.below(50) as u64;
        if self.closing && !self.random.rarely(3) {
            // I/O that is under way ends, then nothing touches the memory any more.
            self.closing = false;
            self.running.clear();
            self.owners.clear();
            self.device.queues_closed();
        }
        if self.shutting_down && self.random.rarely(2) {
            self.shutting_down = false;
            self.flushed += 1;
            self.device.shut_down_complete();
        }
        if !self.closing {
            let ids: Vec<u16> = self.owners.keys().copied().collect();
            for cqid in ids {
                self.owner_turn(cqid);
            }
            for _ in 0..self.random.below(8) {
                self.end_one();
            }
        }
        self.admin();
        if self.moving > 0 && self.random.rarely(self.moving) {
            self.move_on();
        }
    }

    /// Replaces it by what another process would have of it, and carries out what is in flight from the start.
    fn move_on(&mut self) {
        let memory = self.memory.clone();
        self.device.answer_ended(&memory);
        while let Some(effect) = self.device.next_effect() {
            self.effect(effect);
        }
        let underway =
            self.owners.values().any(|owner| !owner.letters.is_empty() || !owner.leaving.is_empty());
        if self.closing || self.shutting_down || underway || !self.device.is_calm() {
            return;
        }
        let reported =
            (self.device.state(), self.owners.values().map(|o| o.queue.state()).collect::<Vec<_>>());
        let heard: (DeviceState, Vec<QueueState>) =
            serde_json::from_str(&serde_json::to_string(&reported).unwrap()).unwrap();
        assert_eq!(heard, reported);
        let (state, queues) = heard;
        let subsystem = Arc::new(subsystem());
        self.device = Device::restore(subsystem, self.settings.clone(), &state, &queues).unwrap();
        assert_eq!(self.device.state(), state, "nothing is lost on the way");
        self.owners.clear();
        self.running.clear();
        for state in &queues {
            let queue = CompletionQueue::restore(state).unwrap();
            assert_eq!(queue.state(), *state);
            let (letters, leaving) = (VecDeque::new(), BTreeSet::new());
            self.owners.insert(state.id(), Owner { queue, asleep: false, letters, leaving });
            for (slot, _) in state.pending() {
                let command = self.owners[&state.id()].queue.command(slot).unwrap();
                self.begin(state.id(), &command);
                self.moved += 1;
            }
        }
        self.moves += 1;
    }

    fn owner_turn(&mut self, cqid: u16) {
        while !self.owners[&cqid].letters.is_empty() && !self.random.rarely(4) {
            let owner = self.owners.get_mut(&cqid).unwrap();
            owner.asleep = false;
            let letter = owner.letters.pop_front().unwrap();
            if !self.letter(cqid, letter) {
                return;
            }
        }
        let memory = self.memory.clone();
        let owner = self.owners.get_mut(&cqid).unwrap();
        if owner.asleep {
            return;
        }
        let burst = 1 + self.random.below(8);
        let mut fetched = Vec::new();
        let looked = (|| {
            owner.queue.poll(&memory)?;
            for _ in 0..burst {
                let waited = owner.queue.waits();
                match owner.queue.fetch(&memory)? {
                    Some(command) => fetched.push(command),
                    None => break,
                }
                assert!(owner.queue.waits() < waited, "{} of {waited} wait", owner.queue.waits());
            }
            Ok(())
        })();
        for command in fetched {
            self.begin(cqid, &command);
        }
        if let Err(fault) = looked {
            self.device.fault(fault);
            return;
        }
        self.leave(cqid);
        let Some(owner) = self.owners.get_mut(&cqid) else { return };
        match owner.queue.interrupt(self.now_us) {
            Interrupt::Now(vector) => *self.interrupts.entry(vector).or_default() += 1,
            Interrupt::At(at) => assert!(at > self.now_us),
            Interrupt::None => {}
        }
        if self.random.rarely(2) {
            match owner.queue.sleep(&memory) {
                // With a completion untold it would wait for the time of coalescing.
                Ok(asleep) => owner.asleep = asleep && owner.queue.interrupt(self.now_us) == Interrupt::None,
                Err(fault) => self.device.fault(fault),
            }
        }
    }

    /// False: the queue is gone.
    fn letter(&mut self, cqid: u16, letter: Effect) -> bool {
        let memory = self.memory.clone();
        let owner = self.owners.get_mut(&cqid).unwrap();
        let done = match letter {
            Effect::OpenSubmission { queue, .. } => owner.queue.open(&memory, queue),
            Effect::Shadow(shadow) => owner.queue.set_shadow(&memory, shadow),
            Effect::Coalescing(coalescing) => {
                owner.queue.set_coalescing(coalescing);
                Ok(())
            }
            Effect::Ring { doorbell, value, .. } => {
                self.doorbell_writes += 1;
                if let Err(invalid) = owner.queue.ring(doorbell, value) {
                    self.device.fault(QueueFault::Doorbell(invalid));
                }
                Ok(())
            }
            Effect::CloseSubmission { sqid, .. } => {
                owner.queue.close(sqid);
                owner.leaving.insert(sqid);
                for slot in owner.queue.in_flight_of(sqid) {
                    for one in self.running.iter_mut().filter(|one| (one.cqid, one.slot) == (cqid, slot)) {
                        one.deleted = true;
                    }
                }
                Ok(())
            }
            Effect::CloseCompletion { .. } => {
                assert_eq!(owner.queue.in_flight(), 0);
                self.owners.remove(&cqid);
                self.device.completion_closed(cqid);
                return false;
            }
            Effect::Abort { sqid, cid, .. } => {
                match owner.queue.find(sqid, cid) {
                    Some(slot) => {
                        for one in self.running.iter_mut().filter(|one| (one.cqid, one.slot) == (cqid, slot))
                        {
                            one.abort = true;
                        }
                    }
                    None => self.device.aborted(sqid, cid, false),
                }
                Ok(())
            }
            other => panic!("{other:?} is not a queue's"),
        };
        if let Err(fault) = done {
            self.device.fault(fault);
        }
        true
    }

    /// Submission queues that are idle now go.
    fn leave(&mut self, cqid: u16) {
        let owner = self.owners.get_mut(&cqid).unwrap();
        let queue = &mut owner.queue;
        let mut gone = Vec::new();
        owner.leaving.retain(|sqid| {
            let idle = queue.remove(*sqid);
            if idle {
                gone.push(*sqid);
            }
            !idle
        });
        for sqid in gone {
            self.device.submission_closed(sqid);
        }
    }
}

impl Bar for World {
    fn read(&mut self, offset: u64, bytes: usize) -> Result<u64, String> {
        let mut value = [0; 8];
        self.device.read(offset, &mut value[..bytes]);
        Ok(u64::from_le_bytes(value))
    }

    fn write(&mut self, offset: u64, bytes: usize, value: u64) -> Result<(), String> {
        let memory = self.memory.clone();
        self.device.write(&memory, offset, &value.to_le_bytes()[..bytes]);
        self.admin();
        Ok(())
    }
}
