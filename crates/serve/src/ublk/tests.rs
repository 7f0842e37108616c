//! A device without its driver: the test is the block layer (`Fake`), or the control device (`control::FakeKernel`).

mod control;
mod limits;

use super::arena::Slots;
use super::inbox::{Inbox, Message, Report};
use super::port::{Arrival, HardwareQueue};
use super::uapi::{op, Descriptor, FUA, SECTOR};
use super::worker::{Setup, Throttle, Worker};
use crate::namespace::volume::Volume;
use crate::target::config::Namespace;
use crate::target::thread_pool::Failure;
use forebay_io::{Mem, Reactor, RingOptions, Waker};
use forebay_model::random::Xoshiro256;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::mpsc::{channel, sync_channel, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

const DEPTH: u16 = 8;
const SLOT: u32 = 64 << 10;
const ANSWER: Duration = Duration::from_secs(60);
const NQN: &str = "nqn.2026-11.io.example:ublk";

/// A request of the block layer, or the end of all.
enum Event {
    Request { tag: u16, descriptor: Descriptor, payload: Vec<u8> },
    Stop,
}

#[derive(Debug)]
struct Answer {
    tag: u16,
    result: i32,
    /// Content of the slot when the request was answered.
    slot: Vec<u8>,
}

struct Fake {
    slots: Slots,
    descriptors: Vec<Descriptor>,
    /// Tags that ask for a request.
    asking: Vec<bool>,
    events: Arc<Mutex<VecDeque<Event>>>,
    answers: Sender<Answer>,
    stopped: bool,
}

impl HardwareQueue for Fake {
    fn depth(&self) -> u16 {
        DEPTH
    }

    fn fetch(&mut self, tag: u16, _: &mut Reactor) {
        assert!(!std::mem::replace(&mut self.asking[usize::from(tag)], true), "one command for each tag");
    }

    fn commit(&mut self, tag: u16, result: i32, reactor: &mut Reactor) {
        let slot = self.slots.bytes(tag, SLOT as usize);
        let _ = self.answers.send(Answer { tag, result, slot });
        self.fetch(tag, reactor);
    }

    fn arrivals(&mut self, _: &mut Reactor, into: &mut Vec<Arrival>) {
        while let Some(event) = self.events.lock().unwrap().pop_front() {
            match event {
                Event::Request { tag, descriptor, payload } => {
                    assert!(std::mem::replace(&mut self.asking[usize::from(tag)], false));
                    self.descriptors[usize::from(tag)] = descriptor;
                    forebay_io::fill_memory(self.slots.mem(tag), &payload);
                    into.push(Arrival { tag, came: Ok(()) });
                }
                Event::Stop => self.stopped = true,
            }
        }
        if self.stopped {
            for tag in 0..DEPTH {
                if std::mem::replace(&mut self.asking[usize::from(tag)], false) {
                    into.push(Arrival { tag, came: Err(libc::ENODEV) });
                }
            }
        }
    }

    fn descriptor(&self, tag: u16) -> Descriptor {
        self.descriptors[usize::from(tag)]
    }

    fn slot(&self, tag: u16) -> Mem {
        self.slots.mem(tag)
    }

    fn clear(&mut self, tag: u16, bytes: usize) {
        self.slots.clear(tag, bytes);
    }

    fn leave(self) {
        std::mem::forget(self.slots);
    }
}

/// A thread that serves one fake hardware queue.
struct Rig {
    events: Arc<Mutex<VecDeque<Event>>>,
    answers: Receiver<Answer>,
    inbox: Arc<Inbox>,
    waker: Arc<Waker>,
    thread: JoinHandle<Report>,
    failure: Arc<Failure>,
}

impl Rig {
    fn new(volume: Arc<Volume>, io_timeout: Option<Duration>) -> Rig {
        Rig::throttled(volume, io_timeout, None)
    }

    fn throttled(volume: Arc<Volume>, io_timeout: Option<Duration>, throttle: Option<Throttle>) -> Rig {
        let events = Arc::<Mutex<VecDeque<Event>>>::default();
        let (answers, answered) = channel();
        let port = Fake {
            slots: Slots::new(DEPTH, SLOT).unwrap(),
            descriptors: vec![Descriptor::default(); DEPTH.into()],
            asking: vec![false; DEPTH.into()],
            events: events.clone(),
            answers,
            stopped: false,
        };
        let (tell, reported) = sync_channel(1);
        let failure = Arc::<Failure>::default();
        let of_thread = failure.clone();
        let thread = std::thread::spawn(move || {
            let options = RingOptions { depth: 256, ..RingOptions::default() };
            let mut reactor = Reactor::with_ring(options).unwrap();
            let waker = reactor.waker().unwrap();
            let inbox = Arc::new(Inbox::new(waker.clone()));
            let setup = Setup { number: 0, transfer_max: SLOT, io_timeout, throttle, failure: of_thread };
            let worker = Worker::new(setup, volume, vec![(0, port)], reactor, inbox.clone()).unwrap();
            tell.send((inbox, waker)).unwrap();
            worker.run()
        });
        let (inbox, waker) = reported.recv().unwrap();
        Rig { events, answers: answered, inbox, waker, thread, failure }
    }

    fn ask(&self, tag: u16, op_flags: u32, offset: u64, bytes: usize, payload: &[u8]) {
        let (start_sector, nr_sectors) = (offset / SECTOR, (bytes as u64 / SECTOR) as u32);
        let descriptor = Descriptor { op_flags, nr_sectors, start_sector, addr: 0 };
        let event = Event::Request { tag, descriptor, payload: payload.to_vec() };
        self.events.lock().unwrap().push_back(event);
        self.waker.wake();
    }

    /// Until the thread has begun with what was asked: it handles its inbox after the events that it took.
    fn until_taken(&self) {
        let began = forebay_io::monotonic_now();
        while !self.events.lock().unwrap().is_empty() {
            assert!(began.elapsed() < ANSWER, "nobody takes requests");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(10));
    }

    fn answer(&self) -> Answer {
        self.answers.recv_timeout(ANSWER).expect("an answer")
    }

    fn one(&self, op_flags: u32, offset: u64, bytes: usize, payload: &[u8]) -> Answer {
        self.ask(0, op_flags, offset, bytes, payload);
        self.answer()
    }

    fn suspend(&self) -> Receiver<()> {
        let (to, from) = sync_channel(1);
        self.inbox.post(Message::Suspend(to));
        from
    }

    fn stop(self) -> Report {
        self.events.lock().unwrap().push_back(Event::Stop);
        self.waker.wake();
        self.thread.join().unwrap()
    }
}

fn file(folder: &Path, name: &str, bytes: usize, fill: u8) -> String {
    let path = folder.join(name);
    std::fs::write(&path, vec![fill; bytes]).unwrap();
    path.display().to_string()
}

fn volume(source: &str, writable: bool, faults: Option<&str>) -> Arc<Volume> {
    let given = Namespace {
        source: source.into(),
        writable,
        faults: faults.map(String::from),
        ..Namespace::default()
    };
    Arc::new(Volume::open(NQN, 1, &given, 1).unwrap())
}

const READ: u32 = op::READ as u32;
const WRITE: u32 = op::WRITE as u32;

// promise: UBL-2
#[test]
fn what_is_written_is_in_the_file_and_is_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), "a", 1 << 20, 0);
    let rig = Rig::new(volume(&path, true, None), None);
    let data: Vec<u8> = (0..8192u32).map(|i| (i * 7 + 1) as u8).collect();
    assert_eq!(rig.one(WRITE | FUA, 12288, 8192, &data).result, 8192);
    assert_eq!(std::fs::read(&path).unwrap()[12288..20480], data);
    let read = rig.one(READ, 12288, 8192, &[]);
    assert_eq!((read.result, &read.slot[..8192]), (8192, &data[..]));
    assert_eq!(rig.one(op::FLUSH.into(), 0, 0, &[]).result, 0);
    let report = rig.stop();
    let counts = report.queues[0].counts;
    assert_eq!((counts.reads, counts.writes, counts.flushes, counts.errors), (1, 1, 1, 0));
    assert_eq!((counts.read_bytes, counts.write_bytes), (8192, 8192));
    assert!(!report.open && report.queues[0].read_latency.count == 1);
}

/// Everything a file system asks for, several at once, against a plain array.
// promise: UBL-2
#[test]
fn a_device_holds_what_an_array_would() {
    const BYTES: usize = 1 << 20;
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), "a", BYTES, 0x5a);
    let rig = Rig::new(volume(&path, true, Some("seed=3,short=0.3,delay_us=300,reorder=1")), None);
    let mut array = vec![0x5a_u8; BYTES];
    let mut random = Xoshiro256::new(11);
    let mut below = |bound: u64| (random.next_u64() % bound) as usize;
    for round in 0..60 {
        // Each tag has an eighth of the device to itself, so that the order within a round doesn't matter.
        let mut wanted = Vec::new();
        for tag in 0..DEPTH {
            let (part, most) = (BYTES / usize::from(DEPTH), SLOT as usize / 4096);
            let from = below(16) * 4096;
            let bytes = (1 + below(most as u64)) * 4096;
            let bytes = bytes.min(part - from);
            let place = usize::from(tag) * part + from;
            let kind = [op::READ, op::WRITE, op::WRITE, op::WRITE_ZEROES, op::DISCARD][below(5)];
            let payload = vec![(round * 8 + tag + 1) as u8; bytes];
            match kind {
                op::WRITE => array[place..place + bytes].copy_from_slice(&payload),
                op::WRITE_ZEROES | op::DISCARD => array[place..place + bytes].fill(0),
                _ => {}
            }
            let sent: &[u8] = if kind == op::WRITE { &payload } else { &[] };
            rig.ask(tag, kind.into(), place as u64, bytes, sent);
            wanted.push((kind, place, bytes));
        }
        for _ in 0..DEPTH {
            let Answer { tag, result, slot } = rig.answer();
            let (kind, place, bytes) = wanted[usize::from(tag)];
            assert_eq!(result, bytes as i32, "round {round}: {kind}");
            if kind == op::READ {
                assert!(slot[..bytes] == array[place..place + bytes], "round {round}: at {place}");
            }
        }
    }
    rig.stop();
    assert!(std::fs::read(&path).unwrap() == array);
}

#[test]
fn zeros_are_read_where_there_is_no_content_whatever_the_slot_held() {
    let rig = Rig::new(volume("nil:?size=1m", true, None), None);
    assert_eq!(rig.one(WRITE, 0, 4096, &[9; 4096]).result, 4096);
    let read = rig.one(READ, 0, 4096, &[]);
    assert_eq!((read.result, &read.slot[..4096]), (4096, &[0; 4096][..]));
    rig.stop();
}

#[test]
fn a_read_only_device_takes_no_writes() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), "a", 1 << 20, 3);
    let rig = Rig::new(volume(&path, false, None), None);
    for kind in [op::WRITE, op::DISCARD, op::WRITE_ZEROES] {
        assert_eq!(rig.one(kind.into(), 0, 4096, &[1; 4096]).result, -libc::EROFS);
    }
    assert_eq!(rig.one(READ, 0, 4096, &[]).slot[..4096], [3; 4096]);
    assert_eq!(rig.one(READ, 1 << 20, 4096, &[]).result, -libc::EINVAL, "outside");
    let report = rig.stop();
    assert_eq!(report.queues[0].counts.errors, 4);
    assert_eq!(std::fs::read(&path).unwrap(), vec![3; 1 << 20]);
}

#[test]
fn a_fault_of_the_source_is_an_error_of_the_device() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), "a", 1 << 20, 0);
    let rig = Rig::new(volume(&path, true, Some("error=1")), None);
    assert_eq!(rig.one(READ, 0, 4096, &[]).result, -libc::EIO);
    assert_eq!(rig.one(WRITE, 0, 4096, &[1; 4096]).result, -libc::EIO);
    rig.stop();
}

// promise: UBL-3
#[test]
fn suspended_requests_are_held_and_carried_out_afterwards() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), "a", 1 << 20, 1);
    let rig = Rig::new(volume(&path, true, Some("delay_us=100000")), None);
    rig.ask(0, READ, 0, 4096, &[]);
    rig.until_taken();
    let quiet = rig.suspend();
    quiet.recv_timeout(ANSWER).expect("once nothing is in the source");
    assert_eq!(rig.answers.try_recv().expect("answered before").result, 4096);
    rig.ask(1, READ, 4096, 4096, &[]);
    assert!(rig.answers.recv_timeout(Duration::from_millis(300)).is_err(), "held");
    rig.inbox.post(Message::Resume);
    assert_eq!((rig.answer().result, 4096), (4096, 4096));
    rig.stop();
}

// promise: UBL-3
#[test]
fn another_source_takes_over_between_two_requests() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (file(dir.path(), "one", 1 << 20, 1), file(dir.path(), "two", 1 << 20, 2));
    let rig = Rig::new(volume(&one, true, None), None);
    assert_eq!(rig.one(READ, 0, 512, &[]).slot[..512], [1; 512]);
    rig.suspend().recv_timeout(ANSWER).unwrap();
    rig.ask(3, READ, 0, 512, &[]);
    let (to, from) = sync_channel(1);
    rig.inbox.post(Message::Prepare(volume(&two, true, None), to));
    from.recv_timeout(ANSWER).unwrap().unwrap();
    let (to, from) = sync_channel(1);
    rig.inbox.post(Message::Switch(to));
    assert!(from.recv_timeout(ANSWER).unwrap());
    rig.inbox.post(Message::Resume);
    assert_eq!(rig.answer().slot[..512], [2; 512], "what was held goes to the new one");
    rig.stop();
}

// promise: UBL-3
#[test]
fn giving_up_answers_all_that_the_source_never_would() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), "a", 1 << 20, 0);
    let rig = Rig::new(volume(&path, true, Some("stall=1")), None);
    (0..DEPTH).for_each(|tag| rig.ask(tag, WRITE, 0, 4096, &[1; 4096]));
    assert!(rig.answers.recv_timeout(Duration::from_millis(200)).is_err());
    rig.inbox.post(Message::GiveUp);
    (0..DEPTH).for_each(|_| assert!(rig.answer().result < 0));
    assert_eq!(rig.one(READ, 0, 4096, &[]).result, -libc::EIO, "and all that come later");
    rig.stop();
}

#[test]
fn a_thread_that_leaves_finishes_what_the_source_has() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), "a", 1 << 20, 0);
    let rig = Rig::new(volume(&path, true, Some("delay_us=100000")), None);
    rig.ask(0, WRITE, 0, 4096, &[7; 4096]);
    rig.until_taken();
    rig.inbox.post(Message::Leave);
    assert_eq!(rig.answer().result, 4096);
    let report = rig.thread.join().unwrap();
    assert!(report.open, "the device was not stopped");
    assert_eq!(std::fs::read(&path).unwrap()[..4096], [7; 4096]);
}
