//! One thread of a device: it takes requests off its hardware queues, lets its queue of the source carry them out, and
//! sleeps when nothing is due.

mod ends;

use super::inbox::{Inbox, Message, Report};
use super::port::{Arrival, HardwareQueue};
use super::request::{errno_of, of_source, parse, Errno, Limits, Slot};
use crate::namespace::executor::{self, Frontend, Work};
use crate::namespace::namespace_queue::{Finished, NamespaceQueue, Owner};
use crate::namespace::qos::Limiter;
use crate::namespace::rate_limit_queue::RateLimitQueue;
use crate::namespace::stats::Counters;
use crate::namespace::stats::Histogram;
use crate::namespace::volume::{Content, Volume};
use crate::target::stats::Counts;
use crate::target::thread_pool::Failure;
use forebay_io::{monotonic_now, ring_refused, Fault, Reactor, Via};
use forebay_model::Error;
use forebay_nvme::nvm::{Op, Request};
use forebay_nvme::status::Status;
use forebay_nvme::transport::tcp::Handle;
use std::collections::VecDeque;
use std::sync::mpsc::SyncSender;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Passes over what moves by itself before the ring is asked again.
const ROUNDS_MAX: u32 = 3;
/// With nothing due, a thread looks up this often.
const FOREVER: Duration = Duration::from_secs(24 * 3600);
/// Time for I/Os to come back when the thread ends.
const LAST: Duration = Duration::from_secs(5);

/// Limits that a device shares with other frontends of its namespace.
#[derive(Clone, Debug)]
pub(crate) struct Throttle {
    pub limiter: Arc<Limiter>,
    /// From when on all of them count time.
    pub began: Instant,
}

/// Parameters of a thread.
pub(super) struct Setup {
    pub number: u32,
    pub transfer_max: u32,
    pub io_timeout: Option<Duration>,
    pub throttle: Option<Throttle>,
    pub failure: Arc<Failure>,
}

struct Working {
    /// At the executor.
    io: executor::Command,
    /// Its slot was zeroed to write zeros from.
    blank: bool,
    began: Instant,
    /// It was in the source for too long, and is asked back.
    given_up: bool,
}

/// One hardware queue.
struct Hardware<P> {
    queue: u16,
    port: P,
    /// By tag.
    working: Vec<Option<Working>>,
    /// Tags whose next request may still come.
    open: u32,
    counts: Counts,
    read_latency: Histogram,
    write_latency: Histogram,
    staged_bytes: u64,
    /// Requests that wait for limits. The source hasn't got them, and `working` doesn't know them.
    lines: RateLimitQueue,
    /// By tag: when those came.
    waits_since: Vec<Instant>,
}

pub(super) struct Worker<P> {
    setup: Setup,
    reactor: Reactor,
    inbox: Arc<Inbox>,
    queue: NamespaceQueue,
    limits: Limits,
    /// The queue of another source, ready to take the place of `queue`.
    next_queue: Option<Box<NamespaceQueue>>,
    hardware: Vec<Hardware<P>>,
    /// Requests wait in `held`.
    suspended: bool,
    held: VecDeque<(usize, u16)>,
    /// To be told once nothing is in the source.
    quiet: Vec<SyncSender<()>>,
    /// Every request fails from now on.
    failing: bool,
    leave_by: Option<Instant>,
    sweep_at: Option<Instant>,
    now: Instant,
    arrivals: Vec<Arrival>,
    finished: Vec<Finished>,
}

impl<P: HardwareQueue> Worker<P> {
    /// Asks for the first requests. On the thread that runs it.
    ///
    /// # Errors
    /// The source's, and `Run` where the driver refuses.
    pub(super) fn new(
        setup: Setup,
        volume: Arc<Volume>,
        ports: Vec<(u16, P)>,
        mut reactor: Reactor,
        inbox: Arc<Inbox>,
    ) -> Result<Worker<P>, Error> {
        let queue = NamespaceQueue::open(volume, setup.transfer_max, setup.number, &mut reactor)?;
        let now = monotonic_now();
        let hardware = |(queue, port): (u16, P)| Hardware {
            queue,
            working: (0..port.depth()).map(|_| None).collect(),
            open: port.depth().into(),
            waits_since: vec![now; port.depth().into()],
            port,
            counts: Counts::default(),
            read_latency: Histogram::default(),
            write_latency: Histogram::default(),
            staged_bytes: 0,
            lines: RateLimitQueue::default(),
        };
        let mut worker = Worker {
            limits: limits(&queue, &setup),
            setup,
            reactor,
            inbox,
            queue,
            next_queue: None,
            hardware: ports.into_iter().map(hardware).collect(),
            suspended: false,
            held: VecDeque::new(),
            quiet: Vec::new(),
            failing: false,
            leave_by: None,
            sweep_at: None,
            now,
            arrivals: Vec::new(),
            finished: Vec::new(),
        };
        worker.fetch()?;
        Ok(worker)
    }

    fn fetch(&mut self) -> Result<(), Error> {
        for at in 0..self.hardware.len() {
            let one = &mut self.hardware[at];
            (0..one.port.depth()).for_each(|tag| one.port.fetch(tag, &mut self.reactor));
            self.reactor.flush();
            self.collect(at);
            let one = &self.hardware[at];
            if let Some(why) = self.reactor.refused() {
                return Err(ring_refused(&why));
            }
            if one.open < u32::from(one.port.depth()) {
                let asked = format!("hardware queue {} of a ublk device", one.queue);
                let next = "forebay snap again; dmesg may say why";
                return Err(Error::run(asked, "the driver doesn't deliver requests", next));
            }
        }
        Ok(())
    }

    /// Serves until the device stops, or it is told to leave.
    pub(super) fn run(mut self) -> Report {
        loop {
            self.now = monotonic_now();
            self.read_messages();
            self.sweep();
            let more = self.work();
            if self.is_over() {
                break;
            }
            let until = if more || self.inbox.has_messages() { self.now } else { self.due() };
            self.reactor.wait(1, until, Duration::ZERO);
            if self.setup.failure.heed(&self.reactor) {
                break;
            }
        }
        self.flush();
        let report = self.report();
        self.let_go();
        report
    }

    /// Everything that moves by itself. True: there is more.
    fn work(&mut self) -> bool {
        for _ in 0..ROUNDS_MAX {
            for at in 0..self.hardware.len() {
                self.collect(at);
                self.let_through(at);
            }
            let busy = self.run_queue();
            if !busy && !self.queue.is_pushed() {
                self.tell_quiet();
                return false;
            }
        }
        true
    }

    /// Takes what came on one hardware queue.
    fn collect(&mut self, at: usize) {
        let mut arrivals = std::mem::take(&mut self.arrivals);
        self.hardware[at].port.arrivals(&mut self.reactor, &mut arrivals);
        for Arrival { tag, came } in arrivals.drain(..) {
            match came {
                Ok(()) if self.suspended => self.held.push_back((at, tag)),
                Ok(()) => self.begin(at, tag),
                Err(_) => self.hardware[at].open -= 1,
            }
        }
        self.arrivals = arrivals;
    }

    fn begin(&mut self, at: usize, tag: u16) {
        let one = &mut self.hardware[at];
        let descriptor = one.port.descriptor(tag);
        if self.failing {
            return self.commit(at, tag, -libc::EIO);
        }
        let request = match parse(&descriptor, &self.limits) {
            Ok(request) => request,
            Err(errno) => {
                one.counts.errors += 1;
                return self.commit(at, tag, -errno);
            }
        };
        if !self.admits(at, tag, &request) {
            self.hardware[at].waits_since[usize::from(tag)] = self.now;
            return;
        }
        self.carry_out(at, tag, request, self.now);
    }

    /// Returns whether a request may go now; else it waits.
    fn admits(&mut self, at: usize, tag: u16, request: &Request) -> bool {
        let Some(throttle) = &self.setup.throttle else { return true };
        let bytes = if matches!(request.op, Op::Read | Op::Write) { request.bytes } else { 0 };
        let now_ns = throttle.at(self.now);
        self.hardware[at].lines.ask((0, &throttle.limiter), tag, bytes, now_ns)
    }

    /// Requests whose time has come.
    fn let_through(&mut self, at: usize) {
        let Some(throttle) = self.setup.throttle.as_ref().filter(|_| !self.suspended) else { return };
        let now_ns = throttle.at(self.now);
        while let Some(tag) = self.hardware[at].lines.next(now_ns) {
            let one = &self.hardware[at];
            let (descriptor, since) = (one.port.descriptor(tag), one.waits_since[usize::from(tag)]);
            match parse(&descriptor, &self.limits) {
                Ok(request) => self.carry_out(at, tag, request, since),
                Err(errno) => self.commit(at, tag, -errno),
            }
        }
    }

    /// Nothing holds it back.
    fn carry_out(&mut self, at: usize, tag: u16, request: Request, began: Instant) {
        let one = &mut self.hardware[at];
        // Of a source without content nothing is read but zeros: not what the slot held before.
        if request.op == Op::Read && self.queue.volume.content != Content::Whole {
            one.port.clear(tag, request.bytes as usize);
        }
        let io = executor::Command::checked(request);
        one.working[usize::from(tag)] = Some(Working { io, blank: false, began, given_up: false });
        if let Some(patience) = self.setup.io_timeout {
            self.sweep_at.get_or_insert(self.now + patience);
        }
        executor::proceed(&mut Running { worker: self, at, tag });
    }

    /// The source is done with a step.
    fn moved(&mut self, at: usize, tag: u16, result: Result<u32, Fault>) {
        let Some(working) = &self.hardware[at].working[usize::from(tag)] else { return };
        if working.given_up && result.is_err() {
            return self.finish(at, tag, Some(libc::ETIMEDOUT));
        }
        let result = of_source(result, &working.io.progress);
        executor::moved(&mut Running { worker: self, at, tag }, result);
    }

    fn finish(&mut self, at: usize, tag: u16, errno: Option<i32>) {
        let one = &mut self.hardware[at];
        let Some(Working { io, began, .. }) = one.working[usize::from(tag)].take() else { return };
        let request = io.request.expect("only checked requests run");
        let Hardware { counts, read_latency, write_latency, .. } = one;
        let ns = self.now.saturating_duration_since(began).as_nanos() as u64;
        match errno {
            Some(_) => counts.errors += 1,
            None => Counters { counts, read_latency, write_latency }.done(&request, ns),
        }
        self.commit(at, tag, errno.map_or(request.bytes as i32, |errno| -errno));
    }

    fn commit(&mut self, at: usize, tag: u16, result: i32) {
        self.hardware[at].port.commit(tag, result, &mut self.reactor);
    }

    /// Starts what was pushed and answers what is done. True: something was.
    fn run_queue(&mut self) -> bool {
        let mut finished = std::mem::take(&mut self.finished);
        self.queue.turn(&mut self.reactor, &mut finished);
        let some = !finished.is_empty();
        if some {
            self.now = monotonic_now();
        }
        for step in finished.drain(..) {
            let staged_bytes = step.staged_bytes();
            let Finished { owner, result, .. } = step;
            let (at, tag) = (owner.connection as usize, owner.command.0);
            let Some(one) = self.hardware.get_mut(at) else { continue };
            one.staged_bytes += staged_bytes;
            self.moved(at, tag, result);
        }
        self.finished = finished;
        some
    }

    fn read_messages(&mut self) {
        for message in self.inbox.take() {
            match message {
                Message::Report(to) => {
                    let _ = to.send(self.report());
                }
                Message::Suspend(to) => {
                    self.suspended = true;
                    self.quiet.push(to);
                }
                Message::Resume => self.resume(),
                Message::LimitsChanged => self.hardware.iter_mut().for_each(|h| h.lines.look_again()),
                Message::Prepare(volume, to) => {
                    let opened = NamespaceQueue::open(
                        volume,
                        self.setup.transfer_max,
                        self.setup.number,
                        &mut self.reactor,
                    );
                    let _ = to.send(opened.map(|queue| self.next_queue = Some(Box::new(queue))));
                }
                Message::Switch(to) => {
                    let switched = self.switch();
                    let _ = to.send(switched);
                }
                Message::GiveUp => self.give_up(),
                Message::Leave => {
                    self.suspended = true;
                    self.leave_by.get_or_insert(self.now + LAST);
                }
            }
        }
    }

    fn resume(&mut self) {
        self.suspended = false;
        self.quiet.clear();
        for (at, tag) in std::mem::take(&mut self.held) {
            self.begin(at, tag);
        }
    }

    fn due(&self) -> Instant {
        let all = [self.queue.next_due(), self.sweep_at, self.leave_by, self.admission_due()];
        all.into_iter().flatten().min().unwrap_or(self.now + FOREVER)
    }

    /// When a request may go that waits for limits.
    fn admission_due(&self) -> Option<Instant> {
        let throttle = self.setup.throttle.as_ref().filter(|_| !self.suspended)?;
        let first = self.hardware.iter().filter_map(|h| h.lines.due()).min()?;
        Some(throttle.began + Duration::from_nanos(first))
    }
}

/// A request that the source is at.
struct Running<'a, P> {
    worker: &'a mut Worker<P>,
    at: usize,
    tag: u16,
}

impl<P> Running<'_, P> {
    fn working(&mut self) -> &mut Working {
        let one = &mut self.worker.hardware[self.at];
        one.working[usize::from(self.tag)].as_mut().expect("a request stays until it is completed")
    }
}

/// One namespace, and no Flush of all.
impl<P: HardwareQueue> Frontend for Running<'_, P> {
    type Owner = Owner;
    type Memory<'m>
        = Slot
    where
        Self: 'm;
    type End = Errno;

    fn command(&mut self) -> &mut executor::Command {
        &mut self.working().io
    }

    fn work(&mut self) -> Work<'_, Owner, Slot> {
        let Worker { hardware, queue, reactor, limits, .. } = &mut *self.worker;
        let Hardware { working, port, .. } = &mut hardware[self.at];
        let working = working[usize::from(self.tag)].as_mut();
        let Working { io, blank, .. } = working.expect("a request stays until it is completed");
        if io.progress.by_hand && !std::mem::replace(blank, true) {
            port.clear(self.tag, limits.transfer_max as usize);
        }
        let range = io.request.map_or((0, 0), |request| (request.offset, request.bytes));
        Work {
            owner: Owner { connection: self.at as u32, command: Handle(self.tag) },
            command: io,
            memory: Slot { mem: port.slot(self.tag), bytes: limits.transfer_max, range },
            queue,
            reactor,
            // What must be durable says so.
            write_cache: true,
        }
    }

    fn next_cached(&self, _: u32) -> Option<u32> {
        None
    }

    fn queue(&mut self, _: u32) -> Result<Option<u32>, Status> {
        Ok(None)
    }

    /// One that was given up ends with its step.
    fn given_up(&mut self) -> Option<Errno> {
        None
    }

    fn failed(&mut self, _: &Request, fault: &Fault) -> Errno {
        Errno(errno_of(fault.errno))
    }

    fn complete(&mut self, Errno(errno): Errno) {
        self.worker.finish(self.at, self.tag, (errno != 0).then_some(errno));
    }
}

impl Throttle {
    fn at(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.began).as_nanos() as u64
    }
}

fn limits(queue: &NamespaceQueue, setup: &Setup) -> Limits {
    super::control::limits(&queue.volume, setup.transfer_max, queue.piece_max)
}

/// The source hadn't got it yet.
fn timed_out(owner: Owner) -> Finished {
    Finished { owner, result: Err(Fault::errno(libc::ETIMEDOUT)), via: Via::Nothing }
}
