//! A bench for queues: opens one on a path as a worker would, drives it, and
//! keeps books on every I/O, so that one that is lost, done twice or late fails
//! the test with its name instead of hanging it.

use super::arena::Slots;
use super::mapped;
use super::scattered::Scattered;
use forebay_io::{CudaDevice, Done, Fault, Full, Io, Op, PinnedMemory, Queue, Reactor, RingOptions};
use forebay_model::job::{CuFileMode, Engine, JobSpec, PathKind};
use forebay_storage::{Copiers, DataPath, Destination, Ends, Paths, QueueNeeds, Target, WorkerContext};
use std::any::Any;
use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An I/O that takes longer than this hangs.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// An I/O as a test asks for it; `data` is the payload of a write.
#[derive(Clone, Debug)]
pub struct Request {
    pub op: Op,
    pub offset: u64,
    pub len: u32,
    pub data: Vec<u8>,
}

impl Request {
    pub fn read(offset: u64, len: u32) -> Request {
        Request { op: Op::Read, offset, len, data: Vec::new() }
    }

    pub fn write(offset: u64, data: Vec<u8>) -> Request {
        Request { op: Op::Write { durable: false }, offset, len: data.len() as u32, data }
    }

    /// By WriteZeroes or Deallocate, or plainly written where the file system can't do that.
    pub fn zeroes(op: Op, offset: u64, len: u32) -> Request {
        match super::cases::makes_zeroes(op) {
            true => Request::bare(op, offset, len),
            false => Request::write(offset, vec![0; len as usize]),
        }
    }

    pub fn bare(op: Op, offset: u64, len: u32) -> Request {
        Request { op, offset, len, data: Vec::new() }
    }
}

/// Result of a request; `bytes` is its whole slot.
#[derive(Clone)]
pub struct Answer {
    pub done: Done,
    pub bytes: Vec<u8>,
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.done.fmt(f)
    }
}

pub struct Rig {
    pub queue: Box<dyn Queue>,
    pub reactor: Reactor,
    // Of the path, before what it registers.
    _kept: Option<Box<dyn Any>>,
    pub slots: Slots,
    // Before what it pins.
    _pin: Option<PinnedMemory>,
    _beside: Option<Slots>,
    /// Payload lies here instead of in the slots.
    scattered: Option<Scattered>,
    /// Description of the case for a check that fails, with the seed if any.
    pub name: String,
    /// By tag: which request is out under it.
    out: Vec<Option<usize>>,
}

/// Puts something over the source's queue.
pub type Layer<'a> = &'a dyn Fn(Box<dyn Queue>) -> Box<dyn Queue>;

pub fn plain(queue: Box<dyn Queue>) -> Box<dyn Queue> {
    queue
}

/// The GPU that a path feeds: the first, where the test is a scenario's process (gpu/scenario.rs).
fn gpu_under(path: &dyn DataPath) -> Option<Arc<CudaDevice>> {
    let on_gpu = std::env::var_os("FOREBAY_GPU_SCENARIO").is_some() && path.ends() != Ends::Host;
    on_gpu.then(|| CudaDevice::open(0).unwrap())
}

/// Returns one of cuFile's interfaces: the one that FOREBAY_TEST_CUFILE names, else each in turn.
fn form(depth: u32, registered: bool) -> CuFileMode {
    match (std::env::var("FOREBAY_TEST_CUFILE").as_deref(), depth, registered) {
        (Ok("sync"), ..) => CuFileMode::Sync,
        (Ok("stream"), ..) => CuFileMode::Stream,
        (Ok("batch"), ..) => CuFileMode::Batch,
        (Ok("batch-stream"), ..) => CuFileMode::BatchStream,
        (_, 1 | 2, true) => CuFileMode::Stream,
        (_, 3.., true) => CuFileMode::Batch,
        (_, 3.., false) => CuFileMode::BatchStream,
        _ => CuFileMode::Sync,
    }
}

/// With a ring where the target is read through one.
fn reactor_for(target: &Target, needs: QueueNeeds) -> Reactor {
    if target.files().iter().any(|(_, e)| *e == Engine::Uring) || target.needs_ring() {
        let options = RingOptions { depth: target.ring_depth(needs), ..RingOptions::default() };
        return Reactor::with_ring(options).unwrap();
    }
    Reactor::without_ring()
}

/// The job of a worker that has so much to do; which of cuFile's interfaces depends on the rig, so that all come to pass.
fn job_of(path: PathKind, needs: QueueNeeds, registered: bool) -> JobSpec {
    JobSpec {
        path,
        cufile: form(needs.depth, registered),
        cufile_unregistered: !registered,
        depth: needs.depth,
        io_bytes: needs.io_bytes_max,
        allow_compat: true,
        ..JobSpec::default()
    }
}

impl Rig {
    /// Opens `target` under `path` as a worker does; `registered` slots are known to the ring.
    pub fn open(
        target: &Target,
        path: PathKind,
        depth: u32,
        io_bytes: usize,
        registered: bool,
        layer: Layer,
    ) -> Rig {
        Rig::by(Paths::by_kind(path), target, depth, io_bytes, registered, layer)
    }

    pub fn by(
        row: &dyn DataPath,
        target: &Target,
        depth: u32,
        io_bytes: usize,
        registered: bool,
        layer: Layer,
    ) -> Rig {
        let needs = QueueNeeds::new(depth, io_bytes as u64);
        let mut reactor = reactor_for(target, needs);
        let path = row.kind();
        let device = gpu_under(row);
        let mut slots = match &device {
            Some(device) => Slots::on(device, depth as usize, io_bytes),
            None => Slots::new(depth as usize, io_bytes),
        };
        let mut beside = mapped::beside(row, depth, io_bytes);
        if registered {
            beside.as_mut().unwrap_or(&mut slots).register(&mut reactor);
        }
        let pin = device.as_ref().zip(beside.as_ref()).map(|(gpu, own)| gpu.pin(own.arena()).unwrap());
        let job = job_of(path, needs, registered);
        let destination = Destination::on(device.iter().cloned().collect());
        let destination = match row.cached() {
            Some(true) => destination.with(mapped::registry(device.as_ref())),
            _ => destination,
        };
        row.attach(&job, target, &destination, 0).unwrap();
        let copiers = Copiers::new(device.as_ref(), needs);
        let targets = [target];
        let context = WorkerContext {
            job: &job,
            destination: &destination,
            device: device.as_ref(),
            slots: device.as_ref().map(|_| slots.gpu_memory()),
            beside: beside.as_ref().map(Slots::arena),
            copiers: &copiers,
            targets: &targets,
            needs,
            at_work: depth,
            layered: true,
        };
        let factory = row.equip(&context, &mut reactor).unwrap();
        assert_eq!(factory.ran(), row.name(), "what runs under {} says that it is another path", row.name());
        let queue = factory.queue(target, &|queue| layer(queue), &context, &mut reactor).unwrap();
        let kept = factory.kept();
        Rig {
            queue,
            reactor,
            _kept: kept,
            slots,
            _pin: pin,
            _beside: beside,
            scattered: None,
            name: format!("{} on {path:?}, {:?}, depth {depth}", target.label, job.cufile),
            out: vec![None; depth as usize],
        }
    }

    /// From now on payload is scattered, as `seed` has it.
    pub fn scatter(mut self, seed: u64) -> Rig {
        let (count, bytes) = (self.slots.arena().count(), self.slots.arena().slot_bytes());
        self.scattered = Some(Scattered::new(count, bytes, self.queue.geometry(), seed));
        self.name += &format!(", scattered by {seed}");
        self
    }

    fn count_out(&self) -> u32 {
        self.out.iter().flatten().count() as u32
    }

    /// Pushes one request under the lowest free tag; None when there is no free tag or the queue is full.
    pub fn push(&mut self, id: usize, request: &Request) -> Option<u32> {
        let tag = self.out.iter().position(Option::is_none)? as u32;
        self.slots.set(tag as usize, &request.data);
        let mem = match &mut self.scattered {
            Some(scattered) => scattered.lay(tag as usize, &self.slots.get(tag as usize)),
            None => self.slots.mem(tag as usize),
        };
        let io = Io { tag, op: request.op, offset: request.offset, len: request.len, mem };
        let before = self.queue.in_flight();
        match self.queue.push(io, &mut self.reactor) {
            Ok(()) => {
                self.out[tag as usize] = Some(id);
                assert_eq!(self.queue.in_flight(), before + 1, "{}: in_flight after a push", self.name);
                Some(tag)
            }
            Err(Full(back)) => {
                assert_same(&io, &back, &self.name);
                assert_eq!(self.queue.in_flight(), before, "{}: in_flight after Full", self.name);
                None
            }
        }
    }

    /// Submits and reaps, after waiting `at_most` if nothing is done at once.
    fn step(&mut self, at_most: Duration) -> Vec<(usize, Answer)> {
        let mut done = Vec::new();
        self.queue.submit(&mut self.reactor);
        self.queue.reap(&mut self.reactor, &mut done);
        if done.is_empty() {
            let limit = Instant::now() + at_most;
            let until = self.queue.next_due().map_or(limit, |due| due.min(limit));
            self.reactor.wait(1, until, Duration::ZERO);
            self.queue.reap(&mut self.reactor, &mut done);
        }
        let answers = done.into_iter().map(|d| self.book(d)).collect();
        assert_eq!(self.queue.in_flight(), self.count_out(), "{}: in_flight", self.name);
        answers
    }

    fn book(&mut self, done: Done) -> (usize, Answer) {
        let name = &self.name;
        let slot = self.out.get_mut(done.tag as usize).unwrap_or_else(|| panic!("{name}: unknown {done:?}"));
        let id = slot.take().unwrap_or_else(|| panic!("{name}: done though not in flight: {done:?}"));
        let bytes = match &self.scattered {
            Some(scattered) => scattered.gather(done.tag as usize),
            None => self.slots.get(done.tag as usize),
        };
        (id, Answer { done, bytes })
    }

    /// Drives the queue until it holds nothing. Panics with the state when it hangs.
    pub fn finish(&mut self) -> Vec<(usize, Answer)> {
        let began = Instant::now();
        let mut all = Vec::new();
        while self.count_out() > 0 {
            all.extend(self.step(Duration::from_millis(20)));
            self.check_patience(began);
        }
        self.nothing_more();
        all
    }

    /// Drives the queue until it holds nothing but what a fault queue below swallowed: `awaited` counts what
    /// the fault queues are yet to report by themselves.
    pub fn run_until_quiet(&mut self, awaited: &Cell<u32>) -> Vec<(usize, Answer)> {
        let began = Instant::now();
        let mut all = Vec::new();
        loop {
            let answers = self.step(Duration::from_millis(5));
            let more = !answers.is_empty() || awaited.get() > 0 || self.queue.next_due().is_some();
            all.extend(answers);
            if !more {
                return all;
            }
            self.check_patience(began);
        }
    }

    /// As `finish`, but abandons what is out once all of it was swallowed.
    pub fn finish_or_abandon(&mut self, awaited: &Cell<u32>) -> Vec<(usize, Answer)> {
        let mut all = self.run_until_quiet(awaited);
        self.abandon_all();
        all.extend(self.finish());
        all
    }

    pub fn abandon_all(&mut self) {
        for tag in 0..self.out.len() {
            if self.out[tag].is_some() {
                self.queue.abandon(tag as u32, &mut self.reactor);
            }
        }
    }

    fn check_patience(&self, began: Instant) {
        assert!(
            began.elapsed() < PATIENCE,
            "{}: hangs; requests still out: {:?}, in_flight {}, next_due {:?}",
            self.name,
            self.out.iter().flatten().collect::<Vec<_>>(),
            self.queue.in_flight(),
            self.queue.next_due()
        );
    }

    /// An idle queue has nothing to say, however often it is asked.
    fn nothing_more(&mut self) {
        let mut done = Vec::new();
        for _ in 0..2 {
            self.queue.submit(&mut self.reactor);
            self.reactor.flush();
            self.queue.reap(&mut self.reactor, &mut done);
        }
        assert!(done.is_empty(), "{}: an idle queue reports {done:?}", self.name);
    }

    /// Runs all requests, as many at a time as fit; answers in the order of the requests.
    pub fn all(&mut self, requests: &[Request]) -> Vec<Answer> {
        self.run(requests, Rig::finish)
    }

    /// As `all`, where the queue may swallow I/Os.
    pub fn all_or_abandon(&mut self, requests: &[Request], awaited: &Cell<u32>) -> Vec<Answer> {
        self.run(requests, |rig| rig.finish_or_abandon(awaited))
    }

    fn run(
        &mut self,
        requests: &[Request],
        finish: impl Fn(&mut Rig) -> Vec<(usize, Answer)>,
    ) -> Vec<Answer> {
        let mut answers: Vec<Option<Answer>> = vec![None; requests.len()];
        let mut next = 0;
        while next < requests.len() {
            while next < requests.len() && self.push(next, &requests[next]).is_some() {
                next += 1;
            }
            for (id, answer) in finish(self) {
                assert!(answers[id].replace(answer).is_none(), "{}: request {id} done twice", self.name);
            }
        }
        answers.into_iter().map(|a| a.expect("every request was booked")).collect()
    }

    pub fn one(&mut self, request: Request) -> Answer {
        self.all(&[request]).pop().expect("one answer")
    }
}

impl Answer {
    pub fn moved(&self) -> &Result<u32, Fault> {
        &self.done.result
    }
}

fn assert_same(a: &Io, b: &Io, name: &str) {
    let fields = |io: &Io| (io.tag, io.op, io.offset, io.len, io.mem);
    assert_eq!(fields(a), fields(b), "{name}: Full hands back another I/O");
}
