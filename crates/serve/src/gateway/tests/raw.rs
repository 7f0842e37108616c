//! A driver by hand, for what ours never asks for: an admin queue, and one I/O queue that interrupts.

use super::client::{Client, BASE, DATA};
use super::{Rig, NQN};
use crate::gateway::config::Namespace;
use forebay_nvme::command::{admin, Cqe, Sqe};
use forebay_nvme::feature::{fid, SetFeatures};
use forebay_nvme::nvm;
use forebay_nvme::status::{Code, Status};
use forebay_nvme::transport::pcie::data::with_prps;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

const LONG: Duration = Duration::from_secs(60);
const ENTRIES: u16 = 64;
/// CC: enabled, entries of 64 and 16 bytes.
const ENABLED: u32 = 4 << 20 | 6 << 16 | 1;

/// A queue pair in the client's memory, rung by messages.
struct Pair {
    qid: u16,
    tail: u16,
    head: u16,
    phase: bool,
}

struct Raw {
    client: Client,
    admin: Pair,
    io: Pair,
}

impl Pair {
    fn new(qid: u16) -> Pair {
        Pair { qid, tail: 0, head: 0, phase: true }
    }

    /// Returns the address of its submission entries; its completions come behind them.
    fn address(&self) -> u64 {
        BASE + u64::from(self.qid) * (1 << 16)
    }

    fn completions(&self) -> u64 {
        self.address() + (1 << 15)
    }

    fn push(&mut self, client: &Client, sqe: Sqe) {
        let sqe = Sqe { cid: self.tail.into(), ..sqe };
        client.fill(self.address() + u64::from(self.tail) * 64, sqe.as_bytes());
        self.tail = (self.tail + 1) % ENTRIES;
    }

    fn ring(&self, client: &mut Client) {
        let doorbell = 0x1000 + u64::from(self.qid) * 8;
        client.region_write(0, doorbell, &u32::from(self.tail).to_le_bytes()).unwrap();
    }

    fn reap(&mut self, client: &mut Client) -> Cqe {
        let until = Instant::now() + LONG;
        let cqe = loop {
            let bytes = client.bytes(self.completions() + u64::from(self.head) * 16, 16);
            let cqe = Cqe::read_from_bytes(&bytes).unwrap();
            if (cqe.status.get() & 1 != 0) == self.phase {
                break cqe;
            }
            assert!(Instant::now() < until, "no completion of queue {}", self.qid);
            std::thread::sleep(Duration::from_millis(1));
        };
        self.head = (self.head + 1) % ENTRIES;
        self.phase ^= self.head == 0;
        let doorbell = 0x1004 + u64::from(self.qid) * 8;
        client.region_write(0, doorbell, &u32::from(self.head).to_le_bytes()).unwrap();
        cqe
    }
}

impl Raw {
    /// Brings the controller up, with one I/O queue of vector 1.
    fn up(rig: &Rig) -> Raw {
        let mut raw = Raw { client: Client::new(&rig.socket()), admin: Pair::new(0), io: Pair::new(1) };
        let sizes = u32::from(ENTRIES - 1) << 16 | u32::from(ENTRIES - 1);
        for (offset, value) in
            [(0x24, sizes.into()), (0x28, raw.admin.address()), (0x30, raw.admin.completions())]
        {
            let bytes = if offset == 0x24 { 4 } else { 8 };
            raw.client.region_write(0, offset, &value.to_le_bytes()[..bytes]).unwrap();
        }
        raw.enable(ENABLED);
        let entries = u32::from(ENTRIES - 1) << 16 | 1;
        let interrupts = 1 << 16 | 0b11;
        raw.create(admin::CREATE_COMPLETION_QUEUE, raw.io.completions(), [entries, interrupts]);
        raw.create(admin::CREATE_SUBMISSION_QUEUE, raw.io.address(), [entries, 1 << 16 | 1]);
        raw
    }

    /// Writes CC, and waits until CSTS.RDY says the same.
    fn enable(&mut self, configuration: u32) {
        self.client.region_write(0, 0x14, &configuration.to_le_bytes()).unwrap();
        let until = Instant::now() + LONG;
        while self.client.region_read(0, 0x1c, 4).unwrap()[0] & 1 != (configuration & 1) as u8 {
            assert!(Instant::now() < until, "CSTS.RDY never follows CC.EN");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn create(&mut self, opcode: u8, address: u64, [cdw10, cdw11]: [u32; 2]) {
        let sqe = Sqe { opcode, cdw10: cdw10.into(), cdw11: cdw11.into(), ..Sqe::default() };
        assert_eq!(self.ask(with_prps(sqe, [address, 0])), Status::SUCCESS, "opcode {opcode:#x}");
    }

    fn ask(&mut self, sqe: Sqe) -> Status {
        self.admin.push(&self.client, sqe);
        self.admin.ring(&mut self.client);
        self.admin.reap(&mut self.client).status()
    }

    /// Asks for so many reads, which the host finds waiting when it is resumed, and says how often it was interrupted.
    fn interrupts_of(&mut self, rig: &Rig, reads: u16) -> u64 {
        let before = interrupts(rig);
        rig.gateway.suspend("drive", LONG).unwrap();
        for _ in 0..reads {
            self.io.push(&self.client, with_prps(nvm::read(1, 0, 8), [DATA, 0]));
        }
        self.io.ring(&mut self.client);
        rig.gateway.resume("drive").unwrap();
        for _ in 0..reads {
            assert!(self.io.reap(&mut self.client).status().is_success());
        }
        interrupts(rig) - before
    }
}

fn interrupts(rig: &Rig) -> u64 {
    let all = &rig.gateway.stats().controllers[0].queues;
    all.iter().find(|q| q.qid == 1).map_or(0, |q| q.interrupts)
}

// promise: GWY-6, GWY-13
#[test]
fn an_arbitration_burst_limits_what_is_taken_of_a_queue_at_a_time() {
    let rig = Rig::new(&["nil:?size=1g"]);
    let mut raw = Raw::up(&rig);
    // What was taken together is answered together, by one interrupt.
    assert!(raw.interrupts_of(&rig, 32) <= 2, "no limit");
    assert_eq!(raw.ask(SetFeatures::new(fid::ARBITRATION, 0).to_sqe()), Status::SUCCESS);
    assert_eq!(raw.interrupts_of(&rig, 32), 32, "one at a time");
    assert_eq!(raw.ask(SetFeatures::new(fid::ARBITRATION, 3).to_sqe()), Status::SUCCESS);
    assert_eq!(raw.interrupts_of(&rig, 32), 4, "eight at a time");
    // A reset puts the default back.
    raw.enable(0);
    drop(raw);
    assert!(Raw::up(&rig).interrupts_of(&rig, 32) <= 2);
}

// promise: GWY-11
#[test]
fn a_suspension_and_a_reset_at_once_both_end() {
    let slow = |config: &mut crate::gateway::config::Config| {
        config.subsystems[0].namespaces[0].faults = Some("seed=1,delay_us=100000".into());
    };
    let rig = Rig::with(&["nil:?size=1g"], slow);
    for device_reset in [false, true] {
        for suspended_first in [false, true] {
            let mut raw = Raw::up(&rig);
            for _ in 0..16 {
                raw.io.push(&raw.client, with_prps(nvm::read(1, 0, 8), [DATA, 0]));
            }
            raw.io.ring(&mut raw.client);
            let suspend = || rig.gateway.suspend("drive", LONG).unwrap();
            std::thread::scope(|scope| {
                // Beside the reset, or before it: either finds I/O under way.
                let suspending = suspended_first.then(|| scope.spawn(suspend));
                match device_reset {
                    true => drop(raw.client.call(13, &[], &[]).unwrap()),
                    false => raw.enable(0),
                }
                match suspending {
                    Some(thread) => thread.join().unwrap(),
                    None => suspend(),
                }
            });
            let state = rig.gateway.stats().controllers[0].state;
            assert_eq!(state, crate::gateway::stats::ControllerState::Suspended);
            rig.gateway.resume("drive").unwrap();
            drop(raw);
            let mut again = Raw::up(&rig);
            again.io.push(&again.client, with_prps(nvm::read(1, 0, 8), [DATA, 0]));
            again.io.ring(&mut again.client);
            assert!(again.io.reap(&mut again.client).status().is_success());
        }
    }
}

// promise: GWY-12
#[test]
fn a_backend_that_fails_gives_statuses_and_the_drive_stays() {
    let dir = tempfile::tempdir().unwrap();
    let (path, content) = super::file(dir.path(), 1 << 20);
    let failing = |config: &mut crate::gateway::config::Config| {
        config.subsystems[0].namespaces[0].faults = Some("seed=1,error=1".into());
    };
    let rig = Rig::with(&["nil:?size=1g", "nil:?size=1g", &path], failing);
    let mut raw = Raw::up(&rig);
    let mut ask = |sqe: Sqe| {
        raw.io.push(&raw.client, with_prps(sqe, [DATA, 0]));
        raw.io.ring(&mut raw.client);
        let status = raw.io.reap(&mut raw.client).status();
        (status.code, raw.client.bytes(DATA, 4096))
    };
    for _ in 0..8 {
        assert_eq!(ask(nvm::read(1, 0, 8)).0, Code::UNRECOVERED_READ);
        assert_eq!(ask(nvm::write(1, 0, 8, false)).0, Code::WRITE_FAULT);
        assert_eq!(ask(nvm::read(2, 0, 8)).0, Code::SUCCESS, "the others work");
    }
    // It shrinks: what is gone can't be read, what is left can.
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(8192).unwrap();
    assert_ne!(ask(nvm::read(3, 1024, 8)).0, Code::SUCCESS);
    assert_eq!(ask(nvm::read(3, 8, 8)), (Code::SUCCESS, content[4096..8192].to_vec()));
    std::fs::write(&path, &content).unwrap();
    assert_eq!(ask(nvm::read(3, 1024, 8)), (Code::SUCCESS, content[524_288..528_384].to_vec()));
    // Another source in its place, and it works as if nothing had been.
    let sound = Namespace { nsid: 1, source: "nil:?size=1g".into(), writable: true, ..Namespace::default() };
    rig.gateway.namespace_set_source(NQN, 1, &sound).unwrap();
    assert_eq!(ask(nvm::read(1, 0, 8)).0, Code::SUCCESS);
    let stats = rig.gateway.stats();
    assert_eq!(stats.controllers[0].state, crate::gateway::stats::ControllerState::Enabled);
    let queue = stats.controllers[0].queues.iter().find(|q| q.qid == 1).unwrap();
    assert_eq!(queue.counts.errors, 17);
}
