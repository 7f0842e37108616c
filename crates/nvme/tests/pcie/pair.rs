//! Both ends over shared memory: commands and their data arrive, whatever order things happen in, and whatever fails or
//! changes its process on the way.

mod endings;

use crate::world::{Random, World, BLOCK};
use forebay_nvme::command::Cqe;
use forebay_nvme::host::{Event, Options};
use forebay_nvme::nvm;
use forebay_nvme::status::Code;
use forebay_nvme::transport::pcie::device::Settings;
use forebay_nvme::transport::pcie::host::{point, queue_bytes, Bar, Host, HostQueue, Step, MEMORY_BYTES};
use forebay_nvme::transport::pcie::memory::{HostMemory, Ram};
use std::collections::BTreeMap;

const BASE: u64 = 0x4000_0000;
const QUEUES: u64 = BASE + MEMORY_BYTES;
const ENTRIES: u16 = 16;
const DATA: u64 = QUEUES + (1 << 20);
/// Most of one command, and the room that each command has: it may begin anywhere in a page.
const DATA_BYTES: u64 = 40 << 10;
const SLOT_BYTES: u64 = 48 << 10;
const LISTS: u64 = DATA + 8 * ENTRIES as u64 * SLOT_BYTES;
const BYTES: u64 = LISTS + 8 * ENTRIES as u64 * 4096 - BASE;

pub fn memory() -> Ram {
    Ram::new(BASE, BYTES)
}

fn options() -> Options {
    Options {
        host_nqn: "nqn.2014-08.org.example:host".into(),
        host_id: [7; 16],
        subsystem_nqn: "nqn.2014-08.org.example:disk".into(),
        queues: 4,
        queue_entries: ENTRIES,
        keep_alive_ms: 0,
        timeout_ms: 30_000,
        namespace: None,
    }
}

/// A command of the driver's.
#[derive(Clone, Copy, Debug)]
struct Asked {
    write: bool,
    slba: u64,
    blocks: u32,
    address: u64,
    pattern: u8,
    aborted: bool,
}

struct Driver {
    queue: HostQueue,
    asked: BTreeMap<u16, Asked>,
}

struct Pair {
    world: World,
    host: Host,
    drivers: BTreeMap<u16, Driver>,
    /// Last write to each block, by queue and command; only commands that ended well count.
    written: BTreeMap<u64, u8>,
    random: Random,
    sgl: bool,
    checked: u64,
    failed: u64,
    aborts: (u64, u64),
}

impl Pair {
    fn new(settings: Settings, sgl: bool, seed: u64) -> Pair {
        println!("seed {seed}, {settings:?}, SGLs: {sgl}");
        let world = World::new(settings, memory(), seed);
        Pair {
            host: Host::new(options(), BASE, 0),
            world,
            drivers: BTreeMap::new(),
            written: BTreeMap::new(),
            random: Random::new(seed ^ 0x5555),
            sgl,
            checked: 0,
            failed: 0,
            aborts: (0, 0),
        }
    }

    /// Turns of the function until the driver's session has something to say, or there is nothing to wait for.
    fn care(&mut self) -> Option<Step> {
        let memory = self.world.memory.clone();
        let now_ms = self.world.now_ms();
        match self.host.next(&mut self.world, &memory, now_ms).expect("no failure") {
            Step::Wait { .. } => None,
            step => Some(step),
        }
    }

    fn until(&mut self, mut done: impl FnMut(&Step) -> bool) -> Step {
        for _ in 0..20_000 {
            match self.care() {
                Some(step) if done(&step) => return step,
                Some(_) => {}
                None => self.world.turn(),
            }
        }
        panic!("nothing comes of it: {:?}", self.host);
    }

    fn bring_up(&mut self) {
        self.until(|step| matches!(step, Step::Event(Event::Ready)));
        let info = self.host.session().controller().clone();
        assert_eq!((info.queues, info.ana, info.keep_alive_granularity_ms), (4, false, 0));
        for qid in 1..=4 {
            self.create(qid);
        }
    }

    fn create(&mut self, qid: u16) {
        let address = QUEUES + u64::from(qid - 1) * queue_bytes(ENTRIES);
        self.world.memory.write(address, &vec![0; queue_bytes(ENTRIES) as usize]).unwrap();
        self.host.create_queue(qid, ENTRIES, address, Some(qid));
        match self.until(|step| matches!(step, Step::Queue(_))) {
            Step::Queue(queue) => self.drivers.insert(qid, Driver { queue, asked: BTreeMap::new() }),
            _ => unreachable!(),
        };
    }

    /// One command more on this queue, if it has room.
    fn ask(&mut self, qid: u16) {
        let memory = self.world.memory.clone();
        let driver = self.drivers.get_mut(&qid).unwrap();
        if driver.queue.room() == 0 {
            return;
        }
        // Each command slot has its own blocks, so that what is in flight at once doesn't touch the same.
        let place =
            u64::from(qid - 1) * u64::from(ENTRIES) + u64::from(driver.queue.depth() - driver.queue.room());
        let place = (0..u64::from(ENTRIES))
            .map(|n| u64::from(qid - 1) * u64::from(ENTRIES) + (place + n) % u64::from(ENTRIES))
            .find(|place| driver.asked.values().all(|asked| asked.slba / 128 != *place))
            .expect("fewer are in flight than there are places");
        let first = self.random.below(48) as u64;
        let blocks = 1 + self.random.below((DATA_BYTES / u64::from(BLOCK)) as usize) as u32;
        let blocks = if self.random.rarely(2) { blocks.min(8) } else { blocks };
        let write = self.random.rarely(2);
        let slba = place * 128 + first;
        let pattern = self.random.next() as u8;
        let address = DATA + place * SLOT_BYTES + self.random.below(1024) as u64 * 4;
        let bytes = blocks * BLOCK;
        let content = if write { pattern } else { !pattern };
        memory.write(address, &vec![content; bytes as usize]).unwrap();
        let sqe = if write { nvm::write(1, slba, blocks, false) } else { nvm::read(1, slba, blocks) };
        let sqe = point(&memory, sqe, address, bytes, self.sgl, LISTS + place * 4096).unwrap();
        let cid = driver.queue.push(&memory, sqe).unwrap().expect("there is room");
        let asked = Asked { write, slba, blocks, address, pattern, aborted: false };
        assert!(driver.asked.insert(cid, asked).is_none());
        if self.random.rarely(2) {
            self.ring(qid);
        }
    }

    fn ring(&mut self, qid: u16) {
        let memory = self.world.memory.clone();
        let queue = &mut self.drivers.get_mut(&qid).unwrap().queue;
        if let Some(rung) = queue.ring(&memory).unwrap() {
            self.world.write(rung.offset, 4, rung.value.into()).unwrap();
        }
    }

    fn reap(&mut self, qid: u16) {
        let memory = self.world.memory.clone();
        self.ring(qid);
        while let Some(cqe) = self.drivers.get_mut(&qid).unwrap().queue.reap(&memory).unwrap() {
            self.check(qid, &cqe);
            if self.random.rarely(8) {
                break;
            }
        }
        if let Some(rung) = self.drivers.get_mut(&qid).unwrap().queue.release(&memory).unwrap() {
            self.world.write(rung.offset, 4, rung.value.into()).unwrap();
        }
    }

    fn check(&mut self, qid: u16, cqe: &Cqe) {
        let asked = self.drivers.get_mut(&qid).unwrap().asked.remove(&cqe.cid.get()).expect("completed once");
        let blocks = asked.slba..asked.slba + u64::from(asked.blocks);
        if !cqe.status().is_success() {
            let code = cqe.status().code;
            let allowed = [Code::ABORT_REQUESTED, Code::ABORTED_SQ_DELETION, Code::UNRECOVERED_READ];
            assert!(allowed.contains(&code), "{code:?}");
            self.failed += 1;
            return;
        }
        if asked.write {
            self.written.extend(blocks.map(|block| (block, asked.pattern)));
        } else {
            let mut found = vec![0; (asked.blocks * BLOCK) as usize];
            self.world.memory.read(asked.address, &mut found).unwrap();
            for (block, found) in blocks.zip(found.chunks(BLOCK as usize)) {
                let expected = self.written.get(&block).copied().unwrap_or(0);
                assert!(found == vec![expected; found.len()], "block {block} of queue {qid}");
            }
        }
        self.checked += 1;
    }

    fn round(&mut self) {
        for qid in self.drivers.keys().copied().collect::<Vec<_>>() {
            for _ in 0..self.random.below(6) {
                self.ask(qid);
            }
            if self.random.rarely(2) {
                self.reap(qid);
            }
        }
        self.world.turn();
        while let Some(step) = self.care() {
            self.step(step);
        }
    }

    fn step(&mut self, step: Step) {
        if let Step::Aborted { sqid, cid, aborted } = step {
            self.aborts.0 += u64::from(aborted);
            self.aborts.1 += 1;
            // The command's own completion came before that of its abort.
            if aborted {
                self.reap_all(sqid);
                let there = self.drivers[&sqid].asked.get(&cid);
                assert!(!there.is_some_and(|asked| asked.aborted), "an aborted command has ended");
            }
        }
    }

    fn reap_all(&mut self, qid: u16) {
        for _ in 0..64 {
            self.reap(qid);
        }
    }

    /// Until nothing is in flight. That it ends says that no doorbell was lost.
    fn run_until_quiet(&mut self) {
        for _ in 0..20_000 {
            let ids: Vec<u16> = self.drivers.keys().copied().collect();
            ids.iter().for_each(|qid| self.reap(*qid));
            if self.drivers.values().all(|driver| driver.asked.is_empty()) {
                return;
            }
            self.world.turn();
            while let Some(step) = self.care() {
                self.step(step);
            }
        }
        panic!("commands never end: {} run", self.world.in_flight());
    }
}

fn settings(shadow_doorbells: bool) -> Settings {
    Settings { shadow_doorbells, ..Settings::default() }
}

// promise: PCI-1
#[test]
fn what_is_written_is_read_again() {
    for (seed, shadow, sgl) in [(1, false, false), (2, true, false), (3, true, true), (4, false, true)] {
        let mut pair = Pair::new(settings(shadow), sgl, seed);
        pair.bring_up();
        assert_eq!(pair.host.shadow().is_some(), shadow);
        for _ in 0..300 {
            pair.round();
        }
        pair.run_until_quiet();
        assert!(pair.checked > 500 && pair.failed == 0, "{} {}", pair.checked, pair.failed);
        assert_eq!(pair.world.fatal, Vec::<String>::new());
        for qid in 1..=4 {
            assert!(pair.world.interrupts[&qid] > 0, "queue {qid} interrupts");
        }
    }
}

/// Its function goes from one process to the next with commands in flight: none is lost, none is answered twice, and every
/// byte is where it belongs.
// promise: SNP-7
#[test]
fn a_function_that_changes_its_process_goes_on() {
    goes_on_through_moves(43, true, true);
}

#[test]
#[ignore = "two cases more: make test-long"]
fn a_function_that_changes_its_process_goes_on_whatever_its_host_uses() {
    goes_on_through_moves(41, false, false);
    goes_on_through_moves(42, true, false);
}

fn goes_on_through_moves(seed: u64, shadow: bool, sgl: bool) {
    let mut pair = Pair::new(settings(shadow), sgl, seed);
    pair.world.moving = 2;
    pair.bring_up();
    for _ in 0..300 {
        pair.round();
    }
    pair.run_until_quiet();
    assert!(pair.checked > 500 && pair.failed == 0, "{} {}", pair.checked, pair.failed);
    let World { moves, moved, .. } = pair.world;
    assert!(moves > 20 && moved > 100, "{moves} moves with {moved} commands in flight");
    assert_eq!(pair.world.fatal, Vec::<String>::new());
}

// promise: SNP-7
#[test]
fn a_function_that_changes_its_process_is_deleted_aborted_and_reset_as_others() {
    is_reset_through_moves(61, true);
}

#[test]
#[ignore = "two cases more: make test-long"]
fn a_function_that_changes_its_process_is_deleted_aborted_and_reset_with_prps_as_well() {
    is_reset_through_moves(60, false);
    is_reset_through_moves(62, false);
}

fn is_reset_through_moves(seed: u64, sgl: bool) {
    let mut pair = Pair::new(settings(true), sgl, seed);
    pair.world.moving = 3;
    pair.bring_up();
    for round in 0..60 {
        pair.round();
        if let Some(cid) = pair.drivers[&1].asked.keys().next().copied() {
            pair.host.abort(1, cid);
        }
        if round % 20 == 19 {
            pair.restart();
        }
    }
    pair.run_until_quiet();
    assert!(pair.world.moves > 10 && pair.aborts.1 > 20, "{} {:?}", pair.world.moves, pair.aborts);
}

/// With shadow doorbells few registers are written while the function is awake, and none is missing while it sleeps.
// promise: PCI-2
#[test]
fn shadow_doorbells_save_most_register_writes() {
    let writes = |shadow| {
        let mut pair = Pair::new(settings(shadow), true, 11);
        pair.bring_up();
        for _ in 0..300 {
            pair.round();
        }
        pair.run_until_quiet();
        pair.world.doorbell_writes as f64 / pair.checked as f64
    };
    let (with, without) = (writes(true), writes(false));
    assert!(with < without * 0.8, "{with} and {without} for each command");
}

/// One command at a time, the function asleep before each: every one of them needs its doorbell.
// promise: PCI-2
#[test]
fn a_sleeping_function_is_woken_by_each_command() {
    let mut pair = Pair::new(settings(true), false, 5);
    pair.bring_up();
    for _ in 0..200 {
        for _ in 0..1000 {
            if pair.world.all_asleep() {
                break;
            }
            pair.world.turn();
        }
        assert!(pair.world.all_asleep());
        pair.ask(2);
        pair.ring(2);
        pair.run_until_quiet();
    }
    assert_eq!(pair.checked, 200);
}

/// The host may use a queue as soon as it hears that it was created, before the queue's owner does.
// promise: PCI-2
#[test]
fn a_command_that_comes_before_its_queue_is_opened_is_found() {
    for shadow in [false, true] {
        let mut pair = Pair::new(settings(shadow), false, 8);
        pair.bring_up();
        for _ in 0..20 {
            pair.drivers.remove(&3);
            pair.host.delete_queue(3);
            pair.until(|step| matches!(step, Step::Deleted(3)));
            pair.create(3);
            pair.ask(3);
            pair.ring(3);
            pair.run_until_quiet();
        }
        assert_eq!(pair.checked, 20);
    }
}

// promise: PCI-1
#[test]
fn failing_commands_fail_alone() {
    let mut pair = Pair::new(settings(true), true, 6);
    pair.bring_up();
    pair.world.failing = 7;
    for _ in 0..200 {
        pair.round();
    }
    pair.run_until_quiet();
    assert!(pair.failed > 20 && pair.checked > pair.failed);
}

impl Pair {
    /// Returns the disk's content, block by block.
    fn reread(&self) -> BTreeMap<u64, u8> {
        let blocks = self.world.disk.chunks(BLOCK as usize).enumerate();
        blocks.map(|(at, block)| (at as u64, block[0])).collect()
    }

    /// The driver goes away at any time, and comes back: the new one resets the controller.
    fn restart(&mut self) {
        self.drivers.clear();
        let now_ms = self.world.now_ms();
        self.host = Host::new(options(), BASE, now_ms);
        self.world.memory.write(BASE, &vec![0; MEMORY_BYTES as usize]).unwrap();
        self.bring_up();
        self.written = self.reread();
    }
}
