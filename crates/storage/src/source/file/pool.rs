//! A file through threads that call pread and pwrite: where io_uring is forbidden.

use super::{sync, FileTarget};
use forebay_io::{Done, Fault, Full, Geometry, Io, Queue, Reactor, Via, Waker};
use forebay_model::Error;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

/// More threads than this only queue up in the kernel.
const THREADS_MAX: u32 = 64;
const STACK_BYTES: usize = 64 << 10;

struct Shared {
    work: Mutex<Work>,
    more: Condvar,
    finished: Mutex<Vec<Done>>,
    waker: Arc<Waker>,
}

#[derive(Default)]
struct Work {
    waiting: VecDeque<Io>,
    closing: bool,
}

impl Shared {
    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().expect("no thread panics while it holds the work")
    }

    fn finished(&self) -> MutexGuard<'_, Vec<Done>> {
        self.finished.lock().expect("no thread panics while it holds what is finished")
    }

    /// The next I/O, or None when the queue closes.
    fn next(&self) -> Option<Io> {
        let mut work = self.work();
        loop {
            // What a queue left behind that went in a panic is for nobody, and a write of it would go on.
            if work.closing {
                return None;
            }
            if let Some(io) = work.waiting.pop_front() {
                return Some(io);
            }
            work = self.more.wait(work).expect("no thread panics while it holds the work");
        }
    }

    fn finish(&self, done: Done) {
        let first = {
            let mut finished = self.finished();
            finished.push(done);
            finished.len() == 1
        };
        if first {
            self.waker.wake();
        }
    }
}

pub(crate) struct PoolQueue {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    geometry: Geometry,
    pushed: Vec<Io>,
    in_flight: u32,
}

impl PoolQueue {
    pub(crate) fn new(target: FileTarget, depth: u32, reactor: &mut Reactor) -> Result<Self, Error> {
        let shared = Arc::new(Shared {
            work: Mutex::default(),
            more: Condvar::new(),
            finished: Mutex::new(Vec::with_capacity(depth as usize)),
            waker: reactor.waker()?,
        });
        let geometry = target.geometry(depth);
        let serve = || {
            let (shared, target) = (shared.clone(), target.clone());
            std::thread::Builder::new().name("pread".into()).stack_size(STACK_BYTES).spawn(move || {
                let mut list = Vec::new();
                while let Some(io) = shared.next() {
                    shared.finish(sync::perform(&target, &io, &mut list));
                }
            })
        };
        let pushed = Vec::with_capacity(depth as usize);
        let mut pool =
            PoolQueue { shared: shared.clone(), threads: Vec::new(), geometry, pushed, in_flight: 0 };
        for _ in 0..depth.min(THREADS_MAX) {
            // Dropping the pool ends those that are there already.
            pool.threads.push(serve().map_err(no_thread)?);
        }
        Ok(pool)
    }
}

fn no_thread(e: std::io::Error) -> Error {
    Error::machine(
        "‹engine› pread",
        format!("the system refuses more threads (‹depth› of them per file and worker): {e}"),
        "a smaller ‹depth›, fewer files or ‹workers›, or ulimit -u",
    )
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
        self.pushed.push(io);
        Ok(())
    }

    fn submit(&mut self, _reactor: &mut Reactor) {
        let count = self.pushed.len();
        self.shared.work().waiting.extend(self.pushed.drain(..));
        match count {
            0 => {}
            1 => self.shared.more.notify_one(),
            _ => self.shared.more.notify_all(),
        }
    }

    fn reap(&mut self, _reactor: &mut Reactor, done: &mut Vec<Done>) {
        let mut finished = self.shared.finished();
        self.in_flight -= finished.len() as u32;
        done.append(&mut finished);
    }

    /// A system call in progress can't be taken back; an I/O that still waits for its thread can.
    fn abandon(&mut self, tag: u32, _reactor: &mut Reactor) {
        let mut work = self.shared.work();
        let before = work.waiting.len();
        work.waiting.retain(|io| io.tag != tag);
        let taken_back = work.waiting.len() < before;
        drop(work);
        if taken_back {
            self.shared.finish(Done {
                tag,
                result: Err(Fault::errno(libc::ECANCELED)),
                via: Via::Nothing,
                copy_ns: 0,
            });
        }
    }
}

impl Drop for PoolQueue {
    fn drop(&mut self) {
        self.shared.work().closing = true;
        self.shared.more.notify_all();
        // A thread that is stuck in the kernel must not hang the run: it keeps its share of `Shared` alive
        // and ends when the device lets go. The worker forgets its arena in that case.
        if self.in_flight == 0 {
            for thread in self.threads.drain(..) {
                let _ = thread.join();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::file::FileAccess;
    use forebay_io::{Mem, Op};

    /// As after a panic of its worker, whose files may be another's by then.
    #[test]
    fn what_waits_when_the_queue_goes_is_never_begun() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let target = FileTarget::open(file.path(), FileAccess { write: true, direct: false }).unwrap();
        let mut reactor = Reactor::without_ring();
        let shared = Arc::new(Shared {
            work: Mutex::default(),
            more: Condvar::new(),
            finished: Mutex::default(),
            waker: reactor.waker().unwrap(),
        });
        // The test is its thread.
        let (geometry, write) = (target.geometry(2), Op::Write { durable: false });
        let mut pool = PoolQueue {
            shared: shared.clone(),
            threads: Vec::new(),
            geometry,
            pushed: Vec::new(),
            in_flight: 0,
        };
        for tag in 0..2 {
            pool.push(Io { tag, op: write, offset: 0, len: 0, mem: Mem::None }, &mut reactor).unwrap();
        }
        pool.submit(&mut reactor);
        assert_eq!(shared.next().map(|io| io.tag), Some(0));
        drop(pool);
        assert!(shared.next().is_none(), "a write is begun for nobody");
    }
}
