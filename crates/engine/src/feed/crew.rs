//! The threads that do the reading: started when first needed, shared by all that is open in the process.

use super::file::Reader;
use super::hand::Hand;
use super::request::Request;
use crate::clock;
use crate::gpu::cuda::{self, Device};
use forebay_model::Error;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// More hands than this fill no link faster, and cost the caches.
const HANDS_MAX: usize = 8;
/// So long after a part was last begun nobody reads, and files that were read one time are let go of.
const QUIET: Duration = Duration::from_millis(200);

struct Crew {
    /// Threads don't survive a fork: a child's first request finds a crew of another process.
    process: u32,
    todo: Mutex<Todo>,
    more: Condvar,
    hands: Mutex<Vec<JoinHandle<()>>>,
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
    /// Each with the number of its next part.
    requests: VecDeque<(Arc<Request>, usize)>,
    idle: usize,
    ending: bool,
}

/// Never freed once it is set: a fork may have left its locks held, and hands of it may still look at it.
static CREW: AtomicPtr<Crew> = AtomicPtr::new(std::ptr::null_mut());

/// Threads that the crew has, or will have.
pub fn threads() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| std::thread::available_parallelism().map_or(2, |n| n.get()).min(HANDS_MAX))
}

fn crew() -> &'static Crew {
    let process = std::process::id();
    loop {
        let at = CREW.load(Ordering::Acquire);
        // SAFETY: what was stored is leaked on purpose.
        if let Some(crew) = unsafe { at.as_ref() }.filter(|c| c.process == process) {
            return crew;
        }
        let new = Box::new(Crew {
            process,
            todo: Mutex::default(),
            more: Condvar::new(),
            hands: Mutex::default(),
            leaving: Mutex::default(),
            hurry: Condvar::new(),
        });
        let new = Box::into_raw(new);
        if CREW.compare_exchange(at, new, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: nobody else saw it.
            drop(unsafe { Box::from_raw(new) });
        }
    }
}

/// Queues a request; its parts are read in order, as hands come free.
pub fn submit(request: &Arc<Request>) -> Result<(), Error> {
    let parts = request.part_count();
    if parts == 0 {
        return Ok(());
    }
    let crew = crew();
    // Held, so that the crew doesn't end between being there and being told.
    let _hands = crew.start()?;
    let mut todo = crew.todo();
    todo.requests.push_back((request.clone(), 0));
    // No more are woken than have something to do.
    for _ in 0..parts.min(todo.idle) {
        crew.more.notify_one();
    }
    Ok(())
}

/// Lets go of a file on a thread of its own, once nobody reads: unregistering what a GPU read takes the driver 7 ms a
/// GiB, in which it registers nothing for the next file. At once where those that wait come to `most` bytes.
pub(super) fn drop_aside(reader: Arc<Reader>, bytes: u64, most: u64) {
    let crew = crew();
    let mut leaving = crew.leaving();
    leaving.threads.retain(|thread| !thread.is_finished());
    leaving.bytes += bytes;
    let wait = leaving.bytes <= most;
    let name = "forebay-let-go".to_string();
    let started = std::thread::Builder::new().name(name).spawn(move || {
        settle_in();
        if wait {
            crew.wait_until_quiet();
        }
        drop(reader);
        crew.leaving().bytes -= bytes;
    });
    // Where there can be no thread, what it was given is dropped already.
    match started {
        Ok(thread) => leaving.threads.push(thread),
        Err(_) => leaving.bytes -= bytes,
    }
}

/// Ends the crew, once it has done what it was given: its threads, pinned slots and streams are given back, and what
/// is let go of in the background is gone. The next request starts it anew.
pub fn release() {
    let crew = crew();
    crew.let_go();
    let mut hands = crew.hands.lock().expect("no holder panics");
    crew.todo().ending = true;
    crew.more.notify_all();
    for hand in hands.drain(..) {
        let _ = hand.join();
    }
    crew.todo().ending = false;
}

impl Crew {
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

    fn start(&'static self) -> Result<MutexGuard<'static, Vec<JoinHandle<()>>>, Error> {
        let mut hands = self.hands.lock().expect("no holder panics");
        while hands.len() < threads() {
            let name = format!("forebay-feed-{}", hands.len());
            let started = std::thread::Builder::new().name(name).spawn(|| self.work());
            match started {
                Ok(hand) => hands.push(hand),
                // Fewer do it too.
                Err(_) if !hands.is_empty() => break,
                Err(why) => {
                    return Err(Error::machine("threads to read with", why.to_string(), "ulimit -u"));
                }
            }
        }
        Ok(hands)
    }

    fn work(&self) {
        settle_in();
        let mut hand = Hand::default();
        loop {
            hand.reap(false);
            match self.take(!hand.has_flights()) {
                Next::Part(request, index) => hand.serve(&request, index),
                Next::Nothing => hand.reap(true),
                Next::End => return,
            }
        }
    }

    fn take(&self, wait: bool) -> Next {
        let mut todo = self.todo();
        loop {
            if let Some((request, next)) = todo.requests.front_mut() {
                let index = *next;
                *next += 1;
                let request = request.clone();
                todo.began = Some(clock::now());
                if index + 1 == request.part_count() {
                    todo.requests.pop_front();
                }
                return Next::Part(request, index);
            }
            if !wait {
                return Next::Nothing;
            }
            if todo.ending {
                return Next::End;
            }
            todo.idle += 1;
            todo = self.more.wait(todo).expect("no holder panics");
            todo.idle -= 1;
        }
    }
}

enum Next {
    Part(Arc<Request>, usize),
    Nothing,
    End,
}

/// Sharp naps, and signals left to the program's own threads; but for those that a fault of our own raises.
fn settle_in() {
    // SAFETY: prctl with integers; a signal set on this frame, for this thread.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1000u64, 0u64, 0u64, 0u64);
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        for own in [libc::SIGBUS, libc::SIGSEGV, libc::SIGFPE, libc::SIGILL] {
            libc::sigdelset(&mut all, own);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &all, std::ptr::null_mut());
    }
}

/// A GPU, opened once for the process.
pub fn device(gpu: u32) -> Result<Arc<Device>, Error> {
    static DEVICES: Mutex<Vec<Arc<Device>>> = Mutex::new(Vec::new());
    let mut devices = DEVICES.lock().expect("no holder panics");
    if let Some(device) = devices.iter().find(|d| d.index() == gpu) {
        return Ok(device.clone());
    }
    let device = Device::open(gpu).map_err(|e| Error { asked: format!("GPU {gpu}"), ..e })?;
    devices.push(device.clone());
    Ok(device)
}

/// The GPU that an address belongs to; None where CUDA doesn't know it.
pub fn device_of(address: u64) -> Result<Option<u32>, Error> {
    let (count, why) = cuda::devices();
    if count == 0 {
        let why = why.unwrap_or_else(|| "there is none".into());
        return Err(Error::machine("memory of a GPU", why, "forebay doctor; host memory needs no GPU"));
    }
    let device = device(0)?;
    device.enter().map_err(|why| {
        Error::run("memory of a GPU", why.to_string(), "a new process, started with the spawn method")
    })?;
    Ok(device.owner_of(address))
}
