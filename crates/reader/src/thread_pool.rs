//! The threads that do the reading: started when first needed, shared by all that is open in the process.

use super::few_rows::COPIED_WAITING_MAX;
use super::kept::KeptMemory;
use super::processors::{self, ALL_MAX, WORKERS_MAX};
use super::request::Request;
use super::worker::{self, copied_here, Worker};
use super::{file, gpu_numbers, leaving, numbers, relays, room};
use forebay_io::{has_copy_guard, settle_in_process, PerProcess};
use forebay_model::Error;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

/// Bytes that the thread that asks copies by itself although it doesn't wait: as many as take it no longer than handing them to
/// another.
const COPIED_ASIDE_MAX: u64 = 512 << 10;
/// Bytes of a request that the thread that waits for it helps with: those of a fraction of a second, in which it handles
/// no signal.
const HELPED_MAX: u64 = 256 << 20;

struct ThreadPool {
    todo: Mutex<Todo>,
    /// Signal of each worker. Those with the lowest numbers are woken first: their caches hold what the last request of the
    /// same kind has written.
    more: Vec<Condvar>,
    workers: Mutex<Vec<JoinHandle<()>>>,
}

impl Default for ThreadPool {
    fn default() -> ThreadPool {
        let more = (0..ALL_MAX).map(|_| Condvar::new()).collect();
        ThreadPool { todo: Mutex::default(), more, workers: Mutex::default() }
    }
}

#[derive(Default)]
struct Todo {
    /// Each with the parts that are left of it.
    requests: VecDeque<(Arc<Request>, Range<usize>)>,
    /// Workers that wait for their signal, a bit each.
    idle: u64,
    ending: bool,
}

/// Threads don't survive a fork: a child's first request makes a thread pool of its own.
static POOL: PerProcess<ThreadPool> = PerProcess::new();

fn pool() -> &'static ThreadPool {
    &POOL
}

/// Has a request done: few rows that are cached by this thread, which takes less than waking another; more of them where
/// the caller `waits` for the end.
pub fn begin(request: &Arc<Request>, waits: bool) -> Result<(), Error> {
    if copied_here(request, if waits { COPIED_WAITING_MAX } else { COPIED_ASIDE_MAX }) {
        return Ok(());
    }
    if !waits || !can_help(request) {
        return submit(request);
    }
    bring(request, request.workers_max() - 1)
}

/// Brings parts of a request, beside so many others, until none is left to take.
fn bring(request: &Arc<Request>, others: usize) -> Result<(), Error> {
    let mut worker = Worker::default();
    if others == 0 {
        (0..request.takings()).for_each(|index| worker.serve(request, index));
        return Ok(());
    }
    // One more would find no processor but the caller's: it is woken for the next request before another has gone to sleep.
    request.leave_to(others);
    submit(request)?;
    while let Some(index) = pool().take_of(request, Range::next) {
        worker.serve(request, index);
    }
    Ok(())
}

/// Returns whether the thread that asks brings parts of it, rather than wait for others to: copies between memory, done in
/// a moment.
fn can_help(request: &Request) -> bool {
    let is_short = request.table().is_some_and(|table| table.bytes() <= HELPED_MAX);
    is_short && request.is_copied_to_host() && has_copy_guard()
}

/// Queues a request; its parts are read in order, as workers come free.
pub fn submit(request: &Arc<Request>) -> Result<(), Error> {
    let parts = request.takings();
    if parts == 0 {
        return Ok(());
    }
    let pool = pool();
    // Held, so that the thread pool doesn't end between being there and being told.
    let _workers = pool.start(processors::all_threads().min(request.workers_max().max(WORKERS_MAX)))?;
    let mut todo = pool.todo();
    todo.requests.push_back((request.clone(), 0..parts));
    // No more are woken than have something to do.
    for _ in 0..parts.min(request.workers_max()) {
        let number = todo.idle.trailing_zeros() as usize;
        if number >= request.workers_max() {
            break;
        }
        todo.idle &= !(1 << number);
        pool.more[number].notify_one();
    }
    Ok(())
}

/// Ends the thread pool, once it has done what it was given: its threads, pinned slots and streams are given back, and what
/// is let go of in the background is gone; and frees the memory that is kept for the next. The next request starts it anew.
pub fn release() {
    end();
    KeptMemory::release();
}

fn end() {
    let pool = pool();
    leaving::end();
    let mut workers = pool.workers.lock().expect("no holder panics");
    pool.todo().ending = true;
    pool.more.iter().for_each(Condvar::notify_all);
    for worker in workers.drain(..) {
        let _ = worker.join();
    }
    pool.todo().ending = false;
    relays::release();
    room::release();
    gpu_numbers::release();
    numbers::release();
}

/// Ends the thread pool if no file is open. It doesn't matter if one is opened meanwhile: its first request starts it anew.
pub(super) fn release_if_unused() {
    if !file::any_open() {
        end();
    }
}

impl ThreadPool {
    fn todo(&self) -> MutexGuard<'_, Todo> {
        self.todo.lock().expect("no holder panics")
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
        settle_in_process();
        let mut worker = Worker::default();
        loop {
            worker.reap(false);
            match self.take(number, !worker.has_flights()) {
                Next::Part(request, index) => worker.serve(&request, index),
                Next::Mix(request, index) => {
                    worker::mix(&mut worker, &request, index, &|| self.take_of(&request, Range::next_back))
                }
                Next::Nothing => worker.reap(true),
                Next::End => return,
            }
        }
    }

    /// A part of a request that is left, by `which` of them.
    fn take_of(
        &self,
        request: &Arc<Request>,
        which: impl FnOnce(&mut Range<usize>) -> Option<usize>,
    ) -> Option<usize> {
        let mut todo = self.todo();
        let at = todo.requests.iter().position(|(other, _)| Arc::ptr_eq(other, request))?;
        let index = which(&mut todo.requests[at].1);
        if todo.requests[at].1.is_empty() {
            todo.requests.remove(at);
        }
        index
    }

    /// For worker `number`.
    fn take(&self, number: usize, wait: bool) -> Next {
        let mut todo = self.todo();
        loop {
            let mine = |(request, _): &(Arc<Request>, Range<usize>)| number < request.workers_max();
            if let Some(at) = todo.requests.iter().position(mine) {
                let (request, left) = &mut todo.requests[at];
                let mixes = request.begins_to_mix();
                let index = if mixes { left.next_back() } else { left.next() }.expect("done with otherwise");
                let (request, is_empty) = (request.clone(), left.start == left.end);
                leaving::reading_goes_on();
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
            todo.idle |= 1 << number;
            todo = self.more[number].wait(todo).expect("no holder panics");
            todo.idle &= !(1 << number);
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
    use crate::processors::{to_host, to_host_soonest};
    use crate::{Address, Layout, Opening, Range, ReadPath, Reader};
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    #[test]
    fn cached_rows_are_copied_to_host_memory_by_the_first_workers_alone() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[7; 1 << 16]).unwrap();
        let opened = |ahead| {
            let opening = Opening { way: ReadPath::Host, ahead, ..Default::default() };
            Arc::new(Reader::open(file.path(), opening).unwrap())
        };
        let reader = opened(false);
        let mut to = vec![0u8; 1 << 16];
        let place = Address::Host(to.as_mut_ptr() as u64);
        let range = Range { file: 0, offset: 0, bytes: 4096, to: place };
        let plain = Request::of_file(&reader, &[range], Vec::new(), 1).unwrap();
        let layout = Layout { start: 0, step: 64, row_bytes: 64 };
        let rows_of = |reader: &Arc<Reader>| {
            let numbers: Vec<u64> = (0..1024).collect();
            Request::of_rows(reader, numbers, layout, place, Vec::new(), 1).unwrap()
        };
        let rows = || rows_of(&reader);
        assert_eq!(plain.workers_max(), WORKERS_MAX);
        if rows().table().is_none() {
            eprintln!("skipped: the system doesn't tell what is cached");
            return;
        }
        // Whether all of the file is cached is known once somebody has looked.
        assert_eq!(rows().workers_max(), ALL_MAX);
        assert!(reader.resident(0, 64).is_some());
        let ahead = opened(true);
        assert_eq!(rows_of(&ahead).workers_max(), ALL_MAX);
        assert!(ahead.resident(0, 64).is_some());
        assert_eq!(rows_of(&ahead).workers_max(), to_host_soonest(), "nobody waits for a thread to be woken");
        let (rows, most) = (rows(), to_host());
        let pool = ThreadPool::default();
        pool.todo().requests.extend([(rows.clone(), 0..1), (plain.clone(), 0..1)]);
        let took = |next| match next {
            Next::Part(request, 0) => Some(request),
            _ => None,
        };
        assert!(matches!(pool.take(WORKERS_MAX, false), Next::Nothing));
        assert!(took(pool.take(most, false)).is_some_and(|request| Arc::ptr_eq(&request, &plain)));
        assert!(matches!(pool.take(most, false), Next::Nothing));
        assert!(took(pool.take(most - 1, false)).is_some_and(|request| Arc::ptr_eq(&request, &rows)));
        assert!(pool.todo().requests.is_empty());
    }

    #[test]
    fn the_thread_that_asks_brings_rows_alone_and_beside_others_or_says_why_not() {
        const BYTES: usize = 8 << 20;
        const LAYOUT: Layout = Layout { start: 0, step: 512, row_bytes: 512 };
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let content: Vec<u8> = (0..BYTES).map(|i| (i.wrapping_mul(0x9E37_79B9) >> 23) as u8).collect();
        file.write_all(&content).unwrap();
        let reader = Arc::new(
            Reader::open(file.path(), Opening { way: ReadPath::Host, ..Default::default() }).unwrap(),
        );
        let mut to = vec![0u8; BYTES];
        let asked = |to: &mut [u8]| {
            let numbers: Vec<u64> = (0..(BYTES / 512) as u64).rev().collect();
            let place = Address::Host(to.as_mut_ptr() as u64);
            Request::of_rows(&reader, numbers, LAYOUT, place, Vec::new(), 1).unwrap()
        };
        // Page tables are filled once so much was asked for.
        if asked(&mut to).table().is_none() || !has_copy_guard() {
            eprintln!("skipped: the system doesn't tell what is cached");
            return;
        }
        // Whether all is cached is known for a second after somebody has looked, and a thread may be held up for longer.
        let helped = |to: &mut [u8]| {
            for _ in 0..1000 {
                let is_here = |at| reader.resident(at as u64, 64).is_some();
                let request = (0..BYTES).step_by(64 << 10).all(is_here).then(|| asked(to));
                if let Some(request) = request.filter(|request| can_help(request)) {
                    assert!(request.takings() >= 16, "the last part is waited for");
                    return request;
                }
            }
            panic!("the file never counts as cached");
        };
        for others in [0, 2] {
            to.fill(0);
            let request = helped(&mut to);
            bring(&request, others).unwrap();
            assert!(others == 0 || request.workers_max() == others, "the caller is one of those that copy");
            request.wait(None);
            assert_eq!(request.outcome().unwrap().staged_bytes, BYTES as u64);
            assert!(to.chunks(512).rev().flatten().eq(&content));
        }
        for others in [0, 2] {
            let request = helped(&mut to);
            file.as_file().set_len(BYTES as u64 / 2).unwrap();
            bring(&request, others).unwrap();
            request.wait(None);
            let error = request.outcome().unwrap_err();
            assert!(error.to_string().contains(file.path().to_str().unwrap()), "{error}");
            file.as_file().set_len(BYTES as u64).unwrap();
            file.as_file().write_all_at(&content, 0).unwrap();
        }
    }
}
