//! A device without its driver: the test is the block layer (`Fake`), or the control device (`FakeKernel`).

mod limits;

use super::arena::Slots;
use super::control::{self, Control};
use super::device::{claim, make};
use super::mail::{Letter, Mailbox, Report};
use super::options::{Attach, OnDeath, Options};
use super::port::{Arrival, Port};
use super::uapi::{self, op, state, ControlCommand, Descriptor, DeviceInfo, Parameters, FUA, SECTOR};
use super::worker::{Setup, Throttle, Worker};
use crate::arena::Mem;
use crate::reactor::{Reactor, RingOptions, Waker};
use crate::serve::config::Namespace;
use crate::serve::thread_pool::Failure;
use crate::serve::volume::Volume;
use forebay_model::random::Xoshiro256;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::mpsc::{channel, sync_channel, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

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
    /// What the slot held when the request was answered.
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

impl Port for Fake {
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
                    crate::stream::fill(self.slots.mem(tag), &payload);
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
    mailbox: Arc<Mailbox>,
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
        let (tell, told) = sync_channel(1);
        let failure = Arc::<Failure>::default();
        let of_thread = failure.clone();
        let thread = std::thread::spawn(move || {
            let options = RingOptions { depth: 256, ..RingOptions::default() };
            let mut reactor = Reactor::with_ring(options).unwrap();
            let waker = reactor.waker().unwrap();
            let mailbox = Arc::new(Mailbox::new(waker.clone()));
            let setup = Setup { number: 0, transfer_max: SLOT, io_timeout, throttle, failure: of_thread };
            let worker = Worker::new(setup, volume, vec![(0, port)], reactor, mailbox.clone()).unwrap();
            tell.send((mailbox, waker)).unwrap();
            worker.run()
        });
        let (mailbox, waker) = told.recv().unwrap();
        Rig { events, answers: answered, mailbox, waker, thread, failure }
    }

    fn ask(&self, tag: u16, op_flags: u32, offset: u64, bytes: usize, payload: &[u8]) {
        let (start_sector, nr_sectors) = (offset / SECTOR, (bytes as u64 / SECTOR) as u32);
        let descriptor = Descriptor { op_flags, nr_sectors, start_sector, addr: 0 };
        let event = Event::Request { tag, descriptor, payload: payload.to_vec() };
        self.events.lock().unwrap().push_back(event);
        self.waker.wake();
    }

    /// Until the thread has begun with what was asked: it handles its mail after the events that it took.
    fn until_taken(&self) {
        let began = crate::clock::now();
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
        self.mailbox.post(Letter::Suspend(to));
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
    rig.mailbox.post(Letter::Resume);
    assert_eq!((rig.answer().result, 4096), (4096, 4096));
    rig.stop();
}

#[test]
fn another_source_takes_over_between_two_requests() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (file(dir.path(), "one", 1 << 20, 1), file(dir.path(), "two", 1 << 20, 2));
    let rig = Rig::new(volume(&one, true, None), None);
    assert_eq!(rig.one(READ, 0, 512, &[]).slot[..512], [1; 512]);
    rig.suspend().recv_timeout(ANSWER).unwrap();
    rig.ask(3, READ, 0, 512, &[]);
    let (to, from) = sync_channel(1);
    rig.mailbox.post(Letter::Prepare(volume(&two, true, None), to));
    from.recv_timeout(ANSWER).unwrap().unwrap();
    let (to, from) = sync_channel(1);
    rig.mailbox.post(Letter::Switch(to));
    assert!(from.recv_timeout(ANSWER).unwrap());
    rig.mailbox.post(Letter::Resume);
    assert_eq!(rig.answer().slot[..512], [2; 512], "what was held goes to the new one");
    rig.stop();
}

#[test]
fn giving_up_answers_all_that_the_source_never_would() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), "a", 1 << 20, 0);
    let rig = Rig::new(volume(&path, true, Some("stall=1")), None);
    (0..DEPTH).for_each(|tag| rig.ask(tag, WRITE, 0, 4096, &[1; 4096]));
    assert!(rig.answers.recv_timeout(Duration::from_millis(200)).is_err());
    rig.mailbox.post(Letter::GiveUp);
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
    rig.mailbox.post(Letter::Leave);
    assert_eq!(rig.answer().result, 4096);
    let report = rig.thread.join().unwrap();
    assert!(report.open, "the device was not stopped");
    assert_eq!(std::fs::read(&path).unwrap()[..4096], [7; 4096]);
}

// The control device ------------------------------------------------------------------------------

/// Remembers devices, and refuses what the driver refuses.
#[derive(Default)]
struct FakeKernel {
    device: Option<DeviceInfo>,
    parameters: Parameters,
    /// Of the driver.
    features: u64,
    /// As often START_USER_RECOVERY finds the last daemon there.
    busy: u32,
    /// Answers in place of the driver's, by command.
    refusal: Option<(u32, i32)>,
    calls: Vec<u32>,
}

impl Control for FakeKernel {
    fn call(&mut self, op: u32, c: ControlCommand, buffer: &mut [u8], _: Duration) -> Result<i32, i32> {
        self.calls.push(op);
        assert_eq!(c.queue_id, u16::MAX);
        if let Some((_, errno)) = self.refusal.filter(|(of, _)| *of == op) {
            return Err(errno);
        }
        if op == uapi::ADD_DEV {
            let mut info = DeviceInfo::read_from_bytes(buffer).unwrap();
            assert_eq!(info.dev_id, c.dev_id, "as the driver wants it");
            info.dev_id = if info.dev_id == u32::MAX { 5 } else { info.dev_id };
            info.flags &= self.features;
            info.nr_hw_queues = info.nr_hw_queues.min(2);
            self.device = Some(info);
            buffer.copy_from_slice(info.as_bytes());
            return Ok(0);
        }
        let info = self.device.filter(|d| d.dev_id == c.dev_id).ok_or(libc::ENODEV)?;
        match op {
            uapi::GET_DEV_INFO => buffer.copy_from_slice(info.as_bytes()),
            uapi::SET_PARAMS => self.parameters = Parameters::read_from_bytes(buffer).unwrap(),
            uapi::GET_PARAMS => {
                assert_eq!(buffer[..4], (size_of::<Parameters>() as u32).to_ne_bytes());
                buffer.copy_from_slice(self.parameters.as_bytes());
            }
            uapi::START_USER_RECOVERY if self.busy > 0 => {
                self.busy -= 1;
                return Err(libc::EBUSY);
            }
            uapi::DEL_DEV => self.device = None,
            _ => {}
        }
        Ok(0)
    }
}

fn kernel() -> FakeKernel {
    FakeKernel { features: u64::MAX, ..FakeKernel::default() }
}

/// A device as a daemon left it.
fn left(volume: &Volume, state: u16) -> FakeKernel {
    let mut kernel = kernel();
    let options = Options { id: Some(5), ..Options::default() };
    make(&mut kernel, volume, &options).unwrap();
    let device = kernel.device.as_mut().unwrap();
    (device.state, device.ublksrv_pid) = (state, -1);
    kernel.calls.clear();
    kernel
}

fn recover() -> Options {
    Options { id: Some(5), ..Options::default() }
}

#[test]
fn a_device_is_described_by_its_source() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), "a", 1 << 20, 0);
    let mut kernel = kernel();
    let volume = volume(&path, true, None);
    let options = Options { queues: 4, depth: 32, ..Options::default() };
    let info = make(&mut kernel, &volume, &options).unwrap();
    assert_eq!((info.dev_id, info.nr_hw_queues, info.queue_depth), (5, 2, 32));
    assert_eq!(info.ublksrv_flags, control::identity(&volume));
    assert_eq!(kernel.calls, [uapi::ADD_DEV, uapi::SET_PARAMS]);
    let Parameters { basic, discard, types, len, .. } = kernel.parameters;
    assert_eq!((len, types), (64, 3));
    assert_eq!(basic.dev_sectors, 2048);
    assert_eq!(1 << basic.logical_bs_shift, volume.block_bytes);
    assert_eq!(basic.attrs, 4 | 8, "a volatile cache, with FUA");
    assert_eq!((basic.max_sectors, discard.max_discard_segments), (2048, 1));
    assert!(discard.max_discard_sectors > 0 && discard.max_write_zeroes_sectors > 0);
}

#[test]
fn a_read_only_source_makes_a_read_only_device() {
    let mut kernel = kernel();
    make(&mut kernel, &volume("nil:?size=1m", false, None), &Options::default()).unwrap();
    assert_eq!(kernel.parameters.basic.attrs, 1);
    assert_eq!(kernel.parameters.discard.max_write_zeroes_sectors, 0);
}

#[test]
fn what_the_kernel_refuses_leaves_no_device() {
    let volume = volume("nil:?size=1m", true, None);
    let mut refuses = FakeKernel { refusal: Some((uapi::SET_PARAMS, libc::EINVAL)), ..kernel() };
    assert_eq!(make(&mut refuses, &volume, &Options::default()).unwrap_err().kind.exit_code(), 4);
    assert!(refuses.device.is_none());
    let mut old = FakeKernel { features: 0, ..kernel() };
    let error = make(&mut old, &volume, &Options::default()).unwrap_err();
    assert!(error.found.contains("user_recovery"), "{error}");
    assert!(old.device.is_none());
    let mut unprivileged = FakeKernel { refusal: Some((uapi::ADD_DEV, libc::EPERM)), ..kernel() };
    let error = make(&mut unprivileged, &volume, &Options::default()).unwrap_err();
    assert!(error.kind.exit_code() == 3 && error.next.contains("sudo"), "{error}");
    let error = control::check_death(OnDeath::Fail, OnDeath::Wait.flags()).unwrap_err();
    assert!(error.found.contains("user_recovery_fail_io"), "{error}");
    control::check_death(OnDeath::Wait, OnDeath::Wait.flags()).unwrap();
}

#[test]
fn a_device_that_waits_is_taken_over_once_its_daemon_is_gone() {
    let volume = volume("nil:?size=1m", true, None);
    for waiting in [state::QUIESCED, state::FAIL_IO] {
        let mut kernel = FakeKernel { busy: 3, ..left(&volume, waiting) };
        let info = claim(&mut kernel, &volume, &recover()).unwrap().expect("taken over");
        assert_eq!(info.dev_id, 5);
        assert_eq!(kernel.calls.iter().filter(|op| **op == uapi::START_USER_RECOVERY).count(), 4);
    }
}

#[test]
fn a_device_is_only_taken_over_by_what_it_stood_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), "a", 1 << 20, 0);
    let was = volume(&path, true, None);
    let other = {
        let given = Namespace { source: "nil:?size=1m".into(), ..Namespace::default() };
        Volume::open(NQN, 2, &given, 1).unwrap()
    };
    let error = claim(&mut left(&was, state::QUIESCED), &other, &recover()).unwrap_err();
    assert!(error.found.contains("another namespace"), "{error}");
    drop(was);
    for (source, writable, found) in [
        ("nil:?size=2m".to_string(), true, "2048 sectors, the source 4096"),
        ("nil:?size=1m".to_string(), false, "writable, the source read-only"),
    ] {
        let mut kernel = left(&volume(&path, true, None), state::QUIESCED);
        let error = claim(&mut kernel, &volume(&source, writable, None), &recover()).unwrap_err();
        assert!(error.found.contains(found), "{error}");
        assert_eq!(error.kind.exit_code(), 2);
        assert!(!kernel.calls.contains(&uapi::START_USER_RECOVERY), "it still waits");
    }
    let mut kernel = left(&volume("nil:?size=1m", true, None), state::QUIESCED);
    let error = claim(&mut kernel, &volume(&path, true, None), &recover()).unwrap_err();
    assert!(error.found.contains("has a cache"), "{error}");
}

#[test]
fn a_device_of_another_daemon_is_left_alone() {
    let volume = volume("nil:?size=1m", true, None);
    let mut kernel = left(&volume, state::LIVE);
    kernel.device.as_mut().unwrap().ublksrv_pid = std::process::id() as i32;
    let error = claim(&mut kernel, &volume, &recover()).unwrap_err();
    assert!(error.found.contains(&std::process::id().to_string()), "{error}");
    let new = Options { attach: Attach::New, ..recover() };
    let error = claim(&mut left(&volume, state::QUIESCED), &volume, &new).unwrap_err();
    assert!(error.found.contains("already"), "{error}");
    let must = Options { attach: Attach::Recover, ..recover() };
    let error = claim(&mut self::kernel(), &volume, &must).unwrap_err();
    assert!(error.found.contains("no such device"), "{error}");
    assert_eq!(claim(&mut self::kernel(), &volume, &recover()).unwrap(), None, "it is made");
}

#[test]
fn what_is_left_of_a_device_that_went_with_its_daemon_is_cleared_away() {
    let volume = volume("nil:?size=1m", true, None);
    let mut kernel = left(&volume, state::DEAD);
    assert_eq!(claim(&mut kernel, &volume, &recover()).unwrap(), None);
    assert!(kernel.device.is_none());
    let mut others = left(&volume, state::DEAD);
    others.device.as_mut().unwrap().ublksrv_flags ^= 1;
    assert!(claim(&mut others, &volume, &recover()).unwrap_err().found.contains("dead"));
    assert!(others.device.is_some());
}
