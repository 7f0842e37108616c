//! A worker's threads for cuFile's blocking calls. They serve all of its queues,
//! so that a job of many files has no more threads than I/Os in flight.

use super::{perform, Base, GdsFile, Session};
use forebay_io::{CudaDevice, Done, Fault, Full, Geometry, Io, Queue, Reactor, Via, Waker};
use forebay_model::Error;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

/// More than this only queue up in cuFile.
pub(crate) const THREADS_MAX: u32 = 256;
const STACK_BYTES: usize = 256 << 10;

/// An I/O on its way to a thread, and where its end is told.
pub(super) struct Task {
    pub file: GdsFile,
    pub io: Io,
    pub outbox: Arc<Outbox>,
}

impl Task {
    fn name(&self) -> (usize, u32) {
        (Arc::as_ptr(&self.outbox) as usize, self.io.tag)
    }
}

/// Results of a queue's I/Os, until it reaps them.
pub(super) struct Outbox {
    finished: Mutex<Vec<Done>>,
    waker: Arc<Waker>,
}

impl Outbox {
    fn put(&self, done: Done) {
        let first = {
            let mut finished =
                self.finished.lock().expect("no thread panics while it holds what is finished");
            finished.push(done);
            finished.len() == 1
        };
        if first {
            self.waker.wake();
        }
    }
}

#[derive(Default)]
struct Work {
    waiting: VecDeque<Task>,
    closing: bool,
}

pub(super) struct Shared {
    work: Mutex<Work>,
    more: Condvar,
    /// Taken by a thread and not yet told.
    under_way: AtomicU32,
    /// I/Os that the worker gave up on while a thread had them: the queue, and the tag there.
    abandoned: Mutex<Vec<(usize, u32)>>,
    any_abandoned: AtomicBool,
    pub base: Base,
    pub session: Arc<Session>,
}

impl Shared {
    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().expect("no thread panics while it holds the work")
    }

    /// Fills `into` with up to `most` I/Os, waiting for the first, and for the others no longer than `patience`;
    /// false when the thread pool is dismissed.
    pub(crate) fn take(&self, most: usize, patience: Duration, into: &mut Vec<Task>) -> bool {
        let mut work = self.work();
        while work.waiting.is_empty() {
            if work.closing {
                return false;
            }
            work = self.more.wait(work).expect("no thread panics while it holds the work");
        }
        if work.waiting.len() < most && !patience.is_zero() {
            let filled =
                self.more.wait_timeout_while(work, patience, |w| w.waiting.len() < most && !w.closing);
            work = filled.expect("no thread panics while it holds the work").0;
        }
        let count = most.min(work.waiting.len());
        into.extend(work.waiting.drain(..count));
        self.under_way.fetch_add(count as u32, Ordering::Relaxed);
        true
    }

    fn abandoned(&self) -> MutexGuard<'_, Vec<(usize, u32)>> {
        self.abandoned.lock().expect("no thread panics while it holds what was abandoned")
    }

    /// The worker gave up on it.
    pub(crate) fn is_abandoned(&self, task: &Task) -> bool {
        self.any_abandoned.load(Ordering::Acquire) && self.abandoned().contains(&task.name())
    }

    /// A tag that is used anew isn't abandoned.
    fn forget(&self, name: (usize, u32)) {
        if self.any_abandoned.load(Ordering::Acquire) {
            self.abandoned().retain(|a| *a != name);
        }
    }

    pub(crate) fn finish(&self, task: &Task, done: Done) {
        self.under_way.fetch_sub(1, Ordering::Relaxed);
        task.outbox.put(done);
    }
}

pub(crate) struct ThreadPool {
    pub(super) shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    waker: Arc<Waker>,
}

/// Body of a pool's thread, which runs until it is dismissed.
pub(super) type Body = Box<dyn FnOnce(&Shared) + Send>;

impl ThreadPool {
    pub(super) fn new(
        session: Arc<Session>,
        device: &Arc<CudaDevice>,
        base: Base,
        bodies: Vec<Body>,
        reactor: &mut Reactor,
    ) -> Result<ThreadPool, Error> {
        let shared = Arc::new(Shared {
            work: Mutex::default(),
            more: Condvar::new(),
            under_way: AtomicU32::new(0),
            abandoned: Mutex::default(),
            any_abandoned: AtomicBool::new(false),
            base,
            session,
        });
        let mut pool = ThreadPool { shared, threads: Vec::new(), waker: reactor.waker()? };
        for body in bodies {
            let (shared, device) = (pool.shared.clone(), device.clone());
            let start = move || match device.enter() {
                Ok(()) => body(&shared),
                Err(why) => refuse(&shared, &why.to_string()),
            };
            let builder = std::thread::Builder::new().name("cufile".into()).stack_size(STACK_BYTES);
            // Dropping the thread pool ends those that are there already.
            pool.threads.push(builder.spawn(start).map_err(no_thread)?);
        }
        Ok(pool)
    }

    /// A queue whose I/Os the thread pool does.
    pub(super) fn queue(self: &Arc<Self>, file: GdsFile, geometry: Geometry) -> PoolQueue {
        let outbox = Arc::new(Outbox {
            finished: Mutex::new(Vec::with_capacity(geometry.depth as usize)),
            waker: self.waker.clone(),
        });
        PoolQueue { pool: self.clone(), file, geometry, outbox, pushed: Vec::new(), in_flight: 0 }
    }
}

/// One blocking call after the other.
pub(super) fn call_by_call() -> Body {
    Box::new(|shared| {
        let mut taken = Vec::with_capacity(1);
        while shared.take(1, Duration::ZERO, &mut taken) {
            for task in taken.drain(..) {
                shared.finish(&task, perform(&task.file, &shared.base, &task.io));
            }
        }
    })
}

/// The context is gone: everything fails with the reason.
fn refuse(shared: &Shared, why: &str) {
    let mut taken = Vec::new();
    while shared.take(1, Duration::ZERO, &mut taken) {
        for task in taken.drain(..) {
            let result = Err(Fault::note(libc::EIO, why));
            shared.finish(&task, Done { tag: task.io.tag, result, via: Via::Nothing, copy_ns: 0 });
        }
    }
}

fn no_thread(e: std::io::Error) -> Error {
    Error::machine(
        "‹path› gds",
        format!("the system refuses more threads (‹depth› of them per worker): {e}"),
        "a smaller ‹depth› or ‹workers›, or ulimit -u",
    )
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.work().closing = true;
        self.shared.more.notify_all();
        // A thread that is stuck in cuFile must not hang the run: it keeps what it uses alive, and the worker
        // leaves its memory to it.
        if self.shared.under_way.load(Ordering::Relaxed) == 0 {
            for thread in self.threads.drain(..) {
                let _ = thread.join();
            }
        }
    }
}

/// A file through a thread pool.
pub(crate) struct PoolQueue {
    pool: Arc<ThreadPool>,
    file: GdsFile,
    geometry: Geometry,
    outbox: Arc<Outbox>,
    pushed: Vec<Io>,
    in_flight: u32,
}

impl Queue for PoolQueue {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn in_flight(&self) -> u32 {
        self.in_flight
    }

    fn push(&mut self, io: Io, _reactor: &mut Reactor) -> Result<(), Full> {
        if self.in_flight == self.geometry.depth {
            return Err(Full(io));
        }
        self.in_flight += 1;
        self.pool.shared.session.count(&io);
        self.pool.shared.forget((Arc::as_ptr(&self.outbox) as usize, io.tag));
        self.pushed.push(io);
        Ok(())
    }

    fn submit(&mut self, _reactor: &mut Reactor) {
        let count = self.pushed.len();
        if count == 0 {
            return;
        }
        let tasks =
            self.pushed.drain(..).map(|io| Task { file: self.file.clone(), io, outbox: self.outbox.clone() });
        self.pool.shared.work().waiting.extend(tasks);
        match count {
            1 => self.pool.shared.more.notify_one(),
            _ => self.pool.shared.more.notify_all(),
        }
    }

    fn reap(&mut self, _reactor: &mut Reactor, done: &mut Vec<Done>) {
        let mut finished =
            self.outbox.finished.lock().expect("no thread panics while it holds what is finished");
        self.in_flight -= finished.len() as u32;
        done.append(&mut finished);
    }

    /// A call under way can't be taken back, but a batch can be asked to give up; what no thread has yet is
    /// taken back here.
    fn abandon(&mut self, tag: u32, _reactor: &mut Reactor) {
        let held = self.pushed.iter().position(|io| io.tag == tag).map(|at| self.pushed.remove(at));
        if held.is_none() && !self.take_back(tag) {
            let shared = &self.pool.shared;
            shared.abandoned().push((Arc::as_ptr(&self.outbox) as usize, tag));
            shared.any_abandoned.store(true, Ordering::Release);
            return;
        }
        let result = Err(Fault::errno(libc::ECANCELED));
        self.outbox.put(Done { tag, result, via: Via::Nothing, copy_ns: 0 });
    }
}

impl PoolQueue {
    /// True where it still waited for a thread.
    fn take_back(&self, tag: u32) -> bool {
        let mut work = self.pool.shared.work();
        let ours = |t: &Task| t.io.tag == tag && Arc::ptr_eq(&t.outbox, &self.outbox);
        let at = work.waiting.iter().position(ours);
        at.and_then(|at| work.waiting.remove(at)).is_some()
    }
}
