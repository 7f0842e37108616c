//! Interrupts: a client that looks at a completion queue only when its vector's eventfd says so, as kernels do. One that
//! is missing leaves a command without an end.

use super::client::{Client, Driver, DATA};
use super::{file, Rig};
use crate::gateway::vfio_user::message::{Irq, IrqSet};
use forebay_nvme::nvm;
use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags, Timespec};
use std::os::fd::OwnedFd;
use std::time::Duration;

const QUEUES: u16 = 4;
const PATIENCE: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

/// Small numbers that look like chance.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// A driver whose queue n has vector n; vector 0 is the admin queue's.
struct Interrupted {
    driver: Driver,
    eventfds: Vec<OwnedFd>,
    in_flight: Vec<u32>,
    masked: Vec<bool>,
    random: Random,
}

impl Interrupted {
    fn new(rig: &Rig, seed: u64) -> Interrupted {
        let driver = Driver::with_queues(Client::new(&rig.socket()), QUEUES, Some);
        let eventfds = (0..=QUEUES).map(|_| eventfd(0, EventfdFlags::NONBLOCK).unwrap()).collect();
        let none = vec![0; usize::from(QUEUES)];
        let masked = vec![false; usize::from(QUEUES)];
        let mut one = Interrupted { driver, eventfds, in_flight: none, masked, random: Random(seed) };
        one.assign();
        one
    }

    fn set(&mut self, flags: u32, start: u32, count: u32, fds: &[&OwnedFd]) {
        let words = [20, flags, Irq::MSIX, start, count].map(u32::to_ne_bytes).concat();
        self.driver.client.call(8, &words, fds).unwrap();
    }

    /// Every vector has its eventfd, in messages of a few, as QEMU sends them.
    fn assign(&mut self) {
        let fds: Vec<OwnedFd> = self.eventfds.iter().map(|fd| fd.try_clone().unwrap()).collect();
        for (start, some) in (0..).step_by(2).zip(fds.chunks(2)) {
            let some: Vec<&OwnedFd> = some.iter().collect();
            self.set(IrqSet::DATA_EVENTFD | IrqSet::TRIGGER, start, some.len() as u32, &some);
        }
    }

    /// QEMU takes all vectors away and gives them again whenever its guest uses one more of them.
    fn resize(&mut self) {
        self.set(IrqSet::DATA_NONE | IrqSet::TRIGGER, 0, 0, &[]);
        self.masked.fill(false);
        self.assign();
    }

    fn mask(&mut self, queue: usize, masked: bool) {
        let action = if masked { IrqSet::MASK } else { IrqSet::UNMASK };
        self.set(IrqSet::DATA_NONE | action, queue as u32 + 1, 1, &[]);
        self.masked[queue] = masked;
    }

    fn ask(&mut self) {
        let queue = self.random.below(QUEUES.into()) as usize;
        for _ in 0..=self.random.below(8) {
            if self.in_flight[queue] < 48 {
                let (nsid, block) = (1 + self.random.below(2) as u32, self.random.below(2000));
                self.driver.submit(queue, nvm::read(nsid, block, 8), DATA, 4096);
                self.in_flight[queue] += 1;
            }
        }
    }

    /// Waits for an interrupt of a queue that has something in flight, and takes what is there.
    fn hear(&mut self) {
        let waits = |at: &usize| self.in_flight[*at] > 0 && !self.masked[*at];
        let queues: Vec<usize> = (0..usize::from(QUEUES)).filter(waits).collect();
        if queues.is_empty() {
            return;
        }
        let polled = |at: &usize| PollFd::new(&self.eventfds[at + 1], PollFlags::IN);
        let mut fds: Vec<PollFd> = queues.iter().map(polled).collect();
        let count = poll(&mut fds, Some(&PATIENCE)).unwrap();
        let rung = fds.iter().map(|fd| fd.revents().contains(PollFlags::IN)).collect::<Vec<_>>();
        if count == 0 {
            let there = |queue: &usize| self.driver.reap(*queue, Duration::ZERO).is_some();
            let unheard: Vec<usize> = queues.iter().copied().filter(there).collect();
            panic!("no interrupt of queues {queues:?} in time; completions lie in {unheard:?}");
        }
        for queue in queues.into_iter().zip(rung).filter_map(|(queue, rung)| rung.then_some(queue)) {
            rustix::io::read(&self.eventfds[queue + 1], &mut [0; 8]).unwrap();
            while let Some(cqe) = self.driver.reap(queue, Duration::ZERO) {
                assert!(cqe.status().is_success());
                self.in_flight[queue] -= 1;
            }
        }
    }

    fn wait_until_quiet(&mut self) {
        (0..usize::from(QUEUES)).for_each(|queue| self.mask(queue, false));
        while self.in_flight.iter().any(|n| *n > 0) {
            self.hear();
        }
    }
}

// promise: GWY-9
#[test]
fn every_completion_is_followed_by_an_interrupt() {
    let dir = tempfile::tempdir().unwrap();
    let (path, _) = file(dir.path(), 2 << 20);
    for (seed, spin_us) in [(1, 0), (2, 0), (3, 50), (4, 0)] {
        let rig = Rig::with(&["nil:?size=1g", &path], |config| config.spin_us = spin_us);
        let mut one = Interrupted::new(&rig, seed);
        for _ in 0..600 {
            one.ask();
            match one.random.below(12) {
                0 => one.resize(),
                1..=3 => {
                    let queue = one.random.below(QUEUES.into()) as usize;
                    one.mask(queue, !one.masked[queue]);
                }
                4 => std::thread::sleep(Duration::from_micros(one.random.below(300))),
                5 => one.wait_until_quiet(),
                _ => one.hear(),
            }
        }
        one.wait_until_quiet();
    }
}

/// One command at a time, so that its doorbell meets a gateway that falls asleep, or just did.
// promise: GWY-9
#[test]
fn a_gateway_that_falls_asleep_hears_and_is_heard() {
    let dir = tempfile::tempdir().unwrap();
    let (path, _) = file(dir.path(), 2 << 20);
    let rig = Rig::with(&["nil:?size=1g", &path], |config| config.spin_us = 20);
    let mut one = Interrupted::new(&rig, 7);
    for n in 0..1500 {
        let queue = n % usize::from(QUEUES);
        one.driver.submit(queue, nvm::read(1 + (n / 4 % 2) as u32, 0, 8), DATA, 4096);
        one.in_flight[queue] += 1;
        one.hear();
        let until = std::time::Instant::now() + Duration::from_micros(one.random.below(60));
        while std::time::Instant::now() < until {
            std::hint::spin_loop();
        }
    }
    one.wait_until_quiet();
}

/// Its host can take the first of them, and ask for more, while a processor still copies the last.
#[test]
fn what_is_copied_out_of_the_page_cache_is_handed_on_in_parts() {
    const EACH: u32 = 128 << 10;
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = file(folder.path(), 4 << 20);
    let rig = Rig::with(&[&path], |config| {
        config.subsystems[0].namespaces[0].cache = crate::gateway::config::Caching::Allow;
    });
    let mut driver = Driver::with_queues(Client::new(&rig.socket()), 1, Some);
    driver.submit_together(
        0,
        (0..32).map(|i| nvm::read(1, u64::from(i * EACH / 512), EACH / 512)),
        DATA,
        EACH,
    );
    (0..32).for_each(|_| assert!(driver.reap(0, Duration::from_secs(60)).unwrap().status().is_success()));
    let stats = rig.gateway.stats();
    let queue = stats.controllers[0].queues.iter().find(|q| q.qid == 1).unwrap();
    assert_eq!(queue.counts.read_bytes, 4 << 20);
    // Seven eighths of what waits, or a MiB: 28 and 4 commands where all were seen at once.
    assert!((2..=32).contains(&queue.interrupts), "{} of 4 MiB", queue.interrupts);
}

/// Seven eighths of 24 MiB would keep other queues waiting: it is 8, 8, 7 and 1 commands, not 21, 2 and 1.
#[test]
fn a_round_of_much_that_is_copied_ends_for_the_other_queues() {
    const EACH: u32 = 1 << 20;
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = file(folder.path(), EACH as usize);
    let rig = Rig::with(&[&path], |config| {
        config.subsystems[0].namespaces[0].cache = crate::gateway::config::Caching::Allow;
    });
    let mut driver = Driver::with_queues(Client::new(&rig.socket()), 1, Some);
    driver.submit_together(0, (0..24).map(|_| nvm::read(1, 0, EACH / 512)), DATA, EACH);
    (0..24).for_each(|_| assert!(driver.reap(0, Duration::from_secs(60)).unwrap().status().is_success()));
    let stats = rig.gateway.stats();
    let queue = stats.controllers[0].queues.iter().find(|q| q.qid == 1).unwrap();
    assert!((4..=24).contains(&queue.interrupts), "{} of 24 MiB", queue.interrupts);
}
