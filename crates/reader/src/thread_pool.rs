//! The threads that do the reading: started when first needed, shared by all that is open in the process.

use super::processors::{self, WORKERS_MAX};
use super::request::Request;
use super::worker::{self, copied_here, Worker};
use super::{file, gpu_numbers, leaving, numbers, relays, room};
use forebay_io::process::{settle_in, PerProcess};
use forebay_model::Error;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

/// Bytes that the thread that asks copies by itself: as many as take it no longer than handing them to another; where it
/// would only wait, as many as take the others no less processor time.
const COPIED_ASIDE_MAX: u64 = 512 << 10;
const COPIED_WAITING_MAX: u64 = 2 << 20;
#[derive(Default)]
struct ThreadPool {
    todo: Mutex<Todo>,
    /// Signals of the first `WORKERS_MAX` workers, and of the others.
    more: [Condvar; 2],
    workers: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct Todo {
    /// Each with the parts that are left of it.
    requests: VecDeque<(Arc<Request>, Range<usize>)>,
    idle: [usize; 2],
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
    submit(request)
}

/// Queues a request; its parts are read in order, as workers come free.
pub fn submit(request: &Arc<Request>) -> Result<(), Error> {
    let parts = request.takings();
    if parts == 0 {
        return Ok(());
    }
    let pool = pool();
    // Held, so that the thread pool doesn't end between being there and being told.
    let _hands =
        pool.start(if request.is_for_all() { processors::all_threads() } else { processors::threads() })?;
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

/// Ends the thread pool, once it has done what it was given: its threads, pinned slots and streams are given back, and what
/// is let go of in the background is gone. The next request starts it anew.
pub fn release() {
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
        release();
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
    use crate::{Address, Layout, Opening, Range, ReadPath, Reader};
    use std::io::Write;

    #[test]
    fn hands_beyond_the_usual_take_only_rows_that_processors_copy() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[7; 1 << 16]).unwrap();
        let reader = Arc::new(
            Reader::open(file.path(), Opening { way: ReadPath::Host, ..Default::default() }).unwrap(),
        );
        let mut to = vec![0u8; 1 << 16];
        let place = Address::Host(to.as_mut_ptr() as u64);
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
