//! The threads that do the reading: started when first needed, shared by all that is open in the process.

use super::file::Reader;
use super::gpu_numbers;
use super::numbers;
use super::request::Request;
use super::windows::Windows;
use super::worker::{self, copied_here, Worker};
use super::{RELAYS_MAX, SLOT_BYTES};
use forebay_io::clock;
use forebay_io::gpu::cuda::Device;
use forebay_io::gpu::relay::{self, Memory, Relay};
use forebay_io::process::{settle_in, PerProcess};
use forebay_model::Error;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// More workers than this don't fill a link faster, and compete for the caches; only where each row is copied by a CPU,
/// all CPUs take part, up to `HANDS_ALL_MAX`.
const WORKERS_MAX: usize = 8;
const HANDS_ALL_MAX: usize = 64;
/// Bytes that the thread that asks copies by itself: as many as take it no longer than handing them to another; where it
/// would only wait, as many as take the others no less processor time.
const COPIED_ASIDE_MAX: u64 = 512 << 10;
const COPIED_WAITING_MAX: u64 = 2 << 20;
/// Time after the last part was begun at which reading counts as over, and files that were read one time are released.
const QUIET: Duration = Duration::from_millis(200);

#[derive(Default)]
struct ThreadPool {
    todo: Mutex<Todo>,
    /// Signals of the first `WORKERS_MAX` workers, and of the others.
    more: [Condvar; 2],
    workers: Mutex<Vec<JoinHandle<()>>>,
    /// To the GPU of this number, while no worker uses them.
    relays: Mutex<Option<(u32, Vec<Relay>)>>,
    leaving: Mutex<Leaving>,
    /// Files are to be let go of at once.
    hurry: Condvar,
}

/// Files that were read one time, each with the thread that lets go of it when nobody reads.
#[derive(Default)]
struct Leaving {
    threads: Vec<JoinHandle<()>>,
    /// Their bytes, which may all be registered.
    bytes: u64,
    ending: bool,
}

#[derive(Default)]
struct Todo {
    /// When a part was last begun.
    began: Option<Instant>,
    /// Each with the parts that are left of it.
    requests: VecDeque<(Arc<Request>, Range<usize>)>,
    idle: [usize; 2],
    ending: bool,
}

/// Threads don't survive a fork: a child's first request makes a thread pool of its own.
static POOL: PerProcess<ThreadPool> = PerProcess::new();

/// Threads that the thread pool has, or will have, for most requests.
pub fn threads() -> usize {
    all_threads().min(WORKERS_MAX)
}

/// Processors that this process may use.
pub(super) fn all_threads() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| std::thread::available_parallelism().map_or(2, |n| n.get()).min(HANDS_ALL_MAX))
}

fn pool() -> &'static ThreadPool {
    &POOL
}

/// Has a request done: few rows that are cached by this thread, which takes less than waking another; more of them where
/// the caller `waits` for the end.
pub fn begin(request: &Arc<Request>, waits: bool) -> Result<(), Error> {
    if copied_here(request, if waits { COPIED_WAITING_MAX } else { COPIED_ASIDE_MAX }) {
        return Ok(());
    }
    submit(request)
}

/// Queues a request; its parts are read in order, as workers come free.
pub fn submit(request: &Arc<Request>) -> Result<(), Error> {
    let parts = request.part_count();
    if parts == 0 {
        return Ok(());
    }
    let pool = pool();
    // Held, so that the thread pool doesn't end between being there and being told.
    let _hands = pool.start(if request.is_for_all() { all_threads() } else { threads() })?;
    let mut todo = pool.todo();
    todo.requests.push_back((request.clone(), 0..parts));
    // No more are woken than have something to do.
    let usual = parts.min(todo.idle[0]);
    let others = if request.is_for_all() { (parts - usual).min(todo.idle[1]) } else { 0 };
    for (more, count) in pool.more.iter().zip([usual, others]) {
        (0..count).for_each(|_| more.notify_one());
    }
    Ok(())
}

/// Lets go of a file on a thread of its own, once nobody reads: unregistering what a GPU read takes the driver 7 ms a
/// GiB, in which it registers nothing for the next file. At once where those that wait come to `most` bytes.
pub(super) fn drop_aside(reader: Arc<Reader>, bytes: u64, most: u64) {
    let pool = pool();
    let mut leaving = pool.leaving();
    leaving.threads.retain(|thread| !thread.is_finished());
    leaving.bytes += bytes;
    let wait = leaving.bytes <= most;
    let name = "forebay-let-go".to_string();
    let started = std::thread::Builder::new().name(name).spawn(move || {
        settle_in();
        if wait {
            pool.wait_until_quiet();
        }
        drop(reader);
        pool.leaving().bytes -= bytes;
    });
    // Where there can be no thread, what it was given is dropped already.
    match started {
        Ok(thread) => leaving.threads.push(thread),
        Err(_) => leaving.bytes -= bytes,
    }
}

/// Ends the thread pool, once it has done what it was given: its threads, pinned slots and streams are given back, and what
/// is let go of in the background is gone. The next request starts it anew.
pub fn release() {
    let pool = pool();
    pool.let_go();
    let mut workers = pool.workers.lock().expect("no holder panics");
    pool.todo().ending = true;
    pool.more.iter().for_each(Condvar::notify_all);
    for worker in workers.drain(..) {
        let _ = worker.join();
    }
    pool.todo().ending = false;
    drop(pool.relays().take());
    gpu_numbers::release();
    numbers::release();
}

/// Ends the thread pool if no file is open. It doesn't matter if one is opened meanwhile: its first request starts it anew.
pub(super) fn release_if_unused() {
    if !super::file::any_open() {
        release();
    }
}

/// Relays to a GPU, for the calling worker until `keep_relays`. Those that aren't there yet are opened in a turn with the driver,
/// which would otherwise keep each call waiting for a registration; their memory is got before that, while it registers.
pub(super) fn relays(device: &Arc<Device>, windows: &Windows) -> Result<Vec<Relay>, Error> {
    let kept = pool().relays().take();
    let relays = match kept {
        Some((gpu, relays)) if gpu == device.index() => relays,
        _ => {
            let memory = Memory::of(relay::useful().min(RELAYS_MAX), SLOT_BYTES)?;
            windows.turn(|| memory.into_iter().map(|m| Relay::open(device, m)).collect::<Result<_, _>>())?
        }
    };
    relays.iter().for_each(Relay::belongs_here);
    Ok(relays)
}

/// Relays to the GPU of this number, with nothing under way, for the next worker that needs some.
pub(super) fn keep_relays(gpu: u32, relays: Vec<Relay>) {
    let whole = !relays.iter().any(Relay::is_broken);
    // What was there before is dropped behind the lock.
    let _before = std::mem::replace(&mut *pool().relays(), whole.then_some((gpu, relays)));
}

impl ThreadPool {
    fn relays(&self) -> MutexGuard<'_, Option<(u32, Vec<Relay>)>> {
        self.relays.lock().expect("no holder panics")
    }

    fn todo(&self) -> MutexGuard<'_, Todo> {
        self.todo.lock().expect("no holder panics")
    }

    fn leaving(&self) -> MutexGuard<'_, Leaving> {
        self.leaving.lock().expect("no holder panics")
    }

    fn wait_until_quiet(&self) {
        loop {
            let began = self.todo().began;
            let left = began.and_then(|at| QUIET.checked_sub(at.elapsed()));
            let leaving = self.leaving();
            match left {
                Some(left) if !leaving.ending => {
                    drop(self.hurry.wait_timeout(leaving, left).expect("no holder panics"));
                }
                _ => return,
            }
        }
    }

    /// Waits until what is let go of in the background is gone.
    fn let_go(&self) {
        let threads = {
            let mut leaving = self.leaving();
            leaving.ending = true;
            std::mem::take(&mut leaving.threads)
        };
        self.hurry.notify_all();
        for thread in threads {
            let _ = thread.join();
        }
        self.leaving().ending = false;
    }

    fn start(&'static self, count: usize) -> Result<MutexGuard<'static, Vec<JoinHandle<()>>>, Error> {
        let mut workers = self.workers.lock().expect("no holder panics");
        while workers.len() < count {
            let number = workers.len();
            let name = format!("forebay-feed-{number}");
            let started = std::thread::Builder::new().name(name).spawn(move || self.work(number));
            match started {
                Ok(worker) => workers.push(worker),
                // Fewer do it too.
                Err(_) if !workers.is_empty() => break,
                Err(why) => {
                    return Err(Error::machine("threads to read with", why.to_string(), "ulimit -u"));
                }
            }
        }
        Ok(workers)
    }

    fn work(&self, number: usize) {
        settle_in();
        let mut worker = Worker::default();
        loop {
            worker.reap(false);
            match self.take(number >= WORKERS_MAX, !worker.has_flights()) {
                Next::Part(request, index) => worker.serve(&request, index),
                Next::Mix(request, index) => {
                    worker::mix(&mut worker, &request, index, &|| self.take_last(&request))
                }
                Next::Nothing => worker.reap(true),
                Next::End => return,
            }
        }
    }

    /// The last part of a request that is left.
    fn take_last(&self, request: &Arc<Request>) -> Option<usize> {
        let mut todo = self.todo();
        let at = todo.requests.iter().position(|(other, _)| Arc::ptr_eq(other, request))?;
        let index = todo.requests[at].1.next_back();
        if todo.requests[at].1.is_empty() {
            todo.requests.remove(at);
        }
        index
    }

    /// `extra`: only of requests that are for all.
    fn take(&self, extra: bool, wait: bool) -> Next {
        let mut todo = self.todo();
        loop {
            let mine = |(request, _): &(Arc<Request>, Range<usize>)| !extra || request.is_for_all();
            if let Some(at) = todo.requests.iter().position(mine) {
                let (request, left) = &mut todo.requests[at];
                let mixes = request.begins_to_mix();
                let index = if mixes { left.next_back() } else { left.next() }.expect("done with otherwise");
                let (request, is_empty) = (request.clone(), left.start == left.end);
                todo.began = Some(clock::now());
                if is_empty {
                    todo.requests.remove(at);
                }
                return if mixes { Next::Mix(request, index) } else { Next::Part(request, index) };
            }
            if !wait {
                return Next::Nothing;
            }
            if todo.ending {
                return Next::End;
            }
            let kind = usize::from(extra);
            todo.idle[kind] += 1;
            todo = self.more[kind].wait(todo).expect("no holder panics");
            todo.idle[kind] -= 1;
        }
    }
}

enum Next {
    Part(Arc<Request>, usize),
    /// The last one, and others from the end.
    Mix(Arc<Request>, usize),
    Nothing,
    End,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Layout, Opening, Place, Range, Way};
    use std::io::Write;

    #[test]
    fn hands_beyond_the_usual_take_only_rows_that_processors_copy() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[7; 1 << 16]).unwrap();
        let reader =
            Arc::new(Reader::open(file.path(), Opening { way: Way::Host, ..Default::default() }).unwrap());
        let mut to = vec![0u8; 1 << 16];
        let place = Place::Host(to.as_mut_ptr() as u64);
        let range = Range { file: 0, offset: 0, bytes: 4096, to: place };
        let plain = Request::of_file(&reader, &[range], Vec::new(), 1).unwrap();
        let layout = Layout { start: 0, step: 64, row_bytes: 64 };
        let rows =
            Request::of_rows(&reader, (0..1024).collect::<Vec<u64>>(), layout, place, Vec::new(), 1).unwrap();
        assert!(!plain.is_for_all());
        if !rows.is_for_all() {
            eprintln!("skipped: the system doesn't tell what is cached");
            return;
        }
        let pool = ThreadPool::default();
        pool.todo().requests.extend([(plain.clone(), 0..1), (rows.clone(), 0..1)]);
        let took = |next| match next {
            Next::Part(request, 0) => Some(request),
            _ => None,
        };
        assert!(took(pool.take(true, false)).is_some_and(|request| Arc::ptr_eq(&request, &rows)));
        assert!(matches!(pool.take(true, false), Next::Nothing));
        assert!(took(pool.take(false, false)).is_some_and(|request| Arc::ptr_eq(&request, &plain)));
        assert!(pool.todo().requests.is_empty());
    }
}
