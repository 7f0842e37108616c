//! Files that were read one time, let go of on threads of their own once nobody reads.

use forebay_io::{monotonic_now, settle_in_process, PerProcess};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time after the last part was begun at which reading counts as over, and files that were read one time are released.
const QUIET: Duration = Duration::from_millis(200);

#[derive(Default)]
struct Leaving {
    /// When a part was last begun to be read, in ns of `now_ns`; 0: none was.
    began_ns: AtomicU64,
    files: Mutex<Files>,
    /// Files are to be let go of at once.
    hurry: Condvar,
}

#[derive(Default)]
struct Files {
    threads: Vec<JoinHandle<()>>,
    /// Their bytes, which may all be registered.
    bytes: u64,
    ending: bool,
}

/// Threads don't survive a fork.
static LEAVING: PerProcess<Leaving> = PerProcess::new();

/// Since the first call, and never 0.
fn now_ns() -> u64 {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    let now = monotonic_now();
    now.saturating_duration_since(*FIRST.get_or_init(|| now)).as_nanos() as u64 + 1
}

/// A part begins to be read.
pub(super) fn reading_goes_on() {
    LEAVING.began_ns.store(now_ns(), Ordering::Relaxed);
}

/// Lets go of a file on a thread of its own, once nobody reads: unregistering what a GPU read takes the driver 7 ms a
/// GiB, in which it registers nothing for the next file. At once where those that wait come to `most` bytes.
pub(super) fn drop_aside(file: impl Send + 'static, bytes: u64, most: u64) {
    let leaving: &'static Leaving = &LEAVING;
    let mut files = leaving.files();
    files.threads.retain(|thread| !thread.is_finished());
    files.bytes += bytes;
    let wait = files.bytes <= most;
    let name = "forebay-let-go".to_string();
    let started = std::thread::Builder::new().name(name).spawn(move || {
        settle_in_process();
        if wait {
            leaving.wait_until_quiet();
        }
        drop(file);
        leaving.files().bytes -= bytes;
    });
    // Where there can be no thread, what it was given is dropped already.
    match started {
        Ok(thread) => files.threads.push(thread),
        Err(_) => files.bytes -= bytes,
    }
}

/// Waits until all of it is gone.
pub(super) fn end() {
    let threads = {
        let mut files = LEAVING.files();
        files.ending = true;
        std::mem::take(&mut files.threads)
    };
    LEAVING.hurry.notify_all();
    for thread in threads {
        let _ = thread.join();
    }
    LEAVING.files().ending = false;
}

impl Leaving {
    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().expect("no holder panics")
    }

    fn wait_until_quiet(&self) {
        loop {
            let began_ns = self.began_ns.load(Ordering::Relaxed);
            let ago = Duration::from_nanos(now_ns().saturating_sub(began_ns));
            let left = QUIET.checked_sub(ago).filter(|_| began_ns > 0);
            let files = self.files();
            match left {
                Some(left) if !files.ending => {
                    drop(self.hurry.wait_timeout(files, left).expect("no holder panics"));
                }
                _ => return,
            }
        }
    }
}
