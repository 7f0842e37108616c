//! Registry of the windows that the device may read, shared by all workers and repeats of a job, so that later passes
//! find what the first one registered.
//!
//! One thread registers, since more of them gain nothing: the driver takes one
//! at a time. It runs ahead of the readers that go through a file in order. Another
//! one runs ahead of it: it sees whether a window is cached and, where pages are
//! small, fills their page tables, which registering would do at half the rate.

mod registrar;

use super::file::{MappedFile, Phase, Seen};
use super::map::{Mapping, Pin, Pinner};
use super::policy::Key;
use super::policy::Policy;
use super::turns::Turns;
use crate::source::file::FileTarget;
use forebay_io::{cache_resident, Fault};
use forebay_model::record::MappedRan;
use forebay_model::units::BYTES_PER_GIB;
use forebay_model::Error;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

/// Windows that are registered before their reader comes to them.
const AHEAD: u64 = 3;
impl Registry {
    /// Shorter windows are registered once they were asked for often: it costs as much as copying a MiB by hand.
    pub const LEAST_BYTES: u64 = 1 << 20;
}
/// Time for which the registrar lets workers go first.
const WAY: Duration = Duration::from_millis(2);
/// Longest rest after a window that nobody waits for.
const REST_MAX: Duration = Duration::from_millis(5);
/// Interval at which it checks whether windows that stand in the way, or are to go, are still in use.
const POLL_INTERVAL: Duration = Duration::from_micros(500);

/// If this many windows in a row register at less than this rate (37 GiB/s), the file has small pages: on an H200, a
/// first pass over tmpfs reached 23 GiB/s before a second thread populated the page tables ahead.
const SLOW_BYTES_PER_NS: f64 = 40.0;
const SLOW_WINDOWS: u32 = 2;
/// First guess of a relay's copies beside registering, in GiB/s, and of registering: measured on an H200.
const RELAY_GIB_S: f64 = 6.5;
const REGISTER_GIB_S: f64 = 40.0;
/// Shorter ones say nothing about the rate.
const RATED_BYTES: u64 = 16 << 20;

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub cap_bytes: u64,
    pub window_bytes: u64,
    /// Windows shorter than this aren't registered at once.
    pub least_bytes: u64,
    /// Threads that copy windows while others are registered, when a file that may be registered as a whole is first read.
    pub relays: u32,
}

/// Tells one queue that a window it waits for was decided on.
pub struct Wakeup {
    ring: Box<dyn Fn() + Send + Sync>,
    /// The registrar waits for the queue's turn.
    promised: AtomicBool,
}

impl Wakeup {
    pub fn new(ring: impl Fn() + Send + Sync + 'static) -> Arc<Wakeup> {
        Arc::new(Wakeup { ring: Box::new(ring), promised: AtomicBool::new(false) })
    }
}

struct Request {
    key: Key,
    streams: bool,
    /// Nobody waits for it, and the registrar rests after it.
    gently: bool,
}

struct RegistryState {
    policy: Policy,
    /// By number; no number is given twice.
    files: HashMap<u32, Arc<MappedFile>>,
    next_number: u32,
    by_handle: HashMap<usize, u32>,
    requests: VecDeque<Request>,
    /// Requests for windows that were found cached.
    prepared: VecDeque<Request>,
    waiting: HashMap<Key, Vec<Arc<Wakeup>>>,
    pins: HashMap<Key, Box<dyn Pin>>,
    /// Registrations of files that changed, or left.
    doomed: Vec<Key>,
    /// Files that nobody reads any more.
    leaving: Vec<u32>,
    /// Why the system wouldn't pin a window, the first time.
    refusal: Option<String>,
    /// Share of a window owed to the relays.
    owed: f64,
    stop: bool,
}

#[derive(Default)]
struct Counts {
    /// Windows of all files that took part.
    windows: AtomicU64,
    registrations: AtomicU64,
    registered_bytes: AtomicU64,
    register_ns: AtomicU64,
    evictions: AtomicU64,
    eviction_batches: AtomicU64,
    uncached: AtomicU64,
    refused: AtomicU64,
    stale: AtomicU64,
    left: AtomicU64,
}

struct Shared {
    pinner: Box<dyn Pinner>,
    limits: Limits,
    /// All files together may stay registered.
    fits: AtomicBool,
    state: Mutex<RegistryState>,
    /// Wakes the registrar, and the thread that prepares for it.
    work: Condvar,
    asked: Condvar,
    /// Windows in a row that registered slowly.
    slow: AtomicU32,
    turns: Turns,
    counts: Counts,
}

pub struct Registry {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

impl Registry {
    pub fn new(pinner: Box<dyn Pinner>, limits: Limits) -> Result<Registry, Error> {
        let state = RegistryState {
            policy: Policy::new(limits.cap_bytes),
            files: HashMap::new(),
            next_number: 0,
            by_handle: HashMap::new(),
            requests: VecDeque::new(),
            prepared: VecDeque::new(),
            waiting: HashMap::new(),
            pins: HashMap::new(),
            doomed: Vec::new(),
            leaving: Vec::new(),
            refusal: None,
            owed: 0.0,
            stop: false,
        };
        let shared = Arc::new(Shared {
            pinner,
            limits,
            fits: AtomicBool::new(true),
            state: Mutex::new(state),
            work: Condvar::new(),
            asked: Condvar::new(),
            slow: AtomicU32::new(0),
            turns: Turns::default(),
            counts: Counts::default(),
        });
        let mut registry = Registry { shared, threads: Vec::new() };
        registry.start("registrar", Shared::serve)?;
        registry.start("reg-prepare", Shared::prepare_all)?;
        Ok(registry)
    }

    fn start(&mut self, name: &str, body: fn(&Shared)) -> Result<(), Error> {
        let shared = self.shared.clone();
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || body(&shared));
        self.threads.push(thread.map_err(|e| {
            Error::machine("‹path› mapped", format!("the system refuses one more thread: {e}"), "ulimit -u")
        })?);
        Ok(())
    }

    /// The file among those that take part. It joins them if it is new.
    pub fn file(&self, target: &FileTarget) -> Result<Arc<MappedFile>, Fault> {
        self.file_in(target, None)
    }

    /// `file`, by the mapping that whoever asks has of it.
    pub fn file_in(
        &self,
        target: &FileTarget,
        mapping: Option<Arc<Mapping>>,
    ) -> Result<Arc<MappedFile>, Fault> {
        let handle = Arc::as_ptr(&target.file) as usize;
        let mut state = self.shared.lock();
        if let Some(number) = state.by_handle.get(&handle) {
            return Ok(state.files[number].clone());
        }
        let number = state.next_number;
        let file =
            Arc::new(MappedFile::new(target.clone(), number, self.shared.limits.window_bytes, mapping)?);
        state.next_number += 1;
        state.by_handle.insert(handle, number);
        state.files.insert(number, file.clone());
        add(&self.shared.counts.windows, file.windows().into());
        state.policy.add_file(target.bytes);
        self.shared.fits.store(state.policy.fits(), Ordering::Relaxed);
        Ok(file)
    }

    /// The file leaves, and what of it is registered goes: nothing reads it any more.
    pub fn forget(&self, target: &FileTarget) {
        let mut state = self.shared.lock();
        if let Some(number) = state.by_handle.remove(&(Arc::as_ptr(&target.file) as usize)) {
            state.leaving.push(number);
            self.shared.work.notify_one();
        }
    }

    pub fn turns(&self) -> &Turns {
        &self.shared.turns
    }

    /// Returns whether registering an unregistered window pays, for a piece of `bytes` of it.
    pub fn pays(&self, file: &MappedFile, window: u32, bytes: u64, streams: bool) -> bool {
        let (_, len) = file.span(window);
        let least = self.shared.limits.least_bytes;
        let worth = streams || self.shared.fits.load(Ordering::Relaxed);
        let w = file.window(window);
        match w.phase() {
            // What was declined is asked for again when the reader comes round.
            Phase::Declined | Phase::Left => w.was_asked(bytes, len),
            _ if worth && len >= least => true,
            _ => w.was_asked(bytes, (len / 2).max(least)),
        }
    }

    /// Has a window registered, and with `streams` those behind it. The wake-up is sent once it is decided what
    /// becomes of it, if the answer is `Pending`.
    pub fn ask(&self, file: &MappedFile, window: u32, streams: bool, wakeup: Option<&Arc<Wakeup>>) -> Phase {
        let mut state = self.shared.lock();
        self.shared.request(&mut state, file, window, streams, false);
        if streams {
            let last = window.saturating_add(self.shared.ahead()).min(file.windows() - 1);
            for next in window + 1..=last {
                let (_, len) = file.span(next);
                if file.window(next).phase() == Phase::Cold && len >= self.shared.limits.least_bytes {
                    self.shared.request(&mut state, file, next, true, false);
                }
            }
        }
        let phase = file.window(window).phase();
        if let (Phase::Pending, Some(wakeup)) = (phase, wakeup) {
            let key = Key { file: file.number, window };
            let wakeups = state.waiting.entry(key).or_default();
            if !wakeups.iter().any(|b| Arc::ptr_eq(b, wakeup)) {
                wakeups.push(wakeup.clone());
            }
        }
        self.shared.asked.notify_one();
        phase
    }

    /// Has a window registered that nobody waits for. After it the registrar rests for as long as it took: while it
    /// registers, every call of the process to the driver waits, also those of a model that knows nothing of its turns.
    pub fn ask_gently(&self, file: &MappedFile, window: u32) {
        let mut state = self.shared.lock();
        self.shared.request(&mut state, file, window, false, true);
        self.shared.asked.notify_one();
    }

    /// Looks whether the file is what it was, and drops its registrations if it isn't.
    pub fn current_generation(&self, file: &MappedFile) -> Result<u64, Fault> {
        self.shared.current_generation(file)
    }

    /// Withdraws a wake-up that the registrar promised.
    pub fn answered(&self, wakeup: &Wakeup) {
        if wakeup.promised.swap(false, Ordering::SeqCst) {
            self.shared.turns.done();
        }
    }

    /// Returns its part of a record.
    pub fn report(&self) -> MappedRan {
        let state = self.shared.lock();
        let counts = &self.shared.counts;
        let ns = read(&counts.register_ns);
        MappedRan {
            pin_limit_bytes: self.shared.limits.cap_bytes,
            window_bytes: self.shared.limits.window_bytes,
            windows: read(&counts.windows),
            registered_bytes_peak: state.policy.peak_bytes(),
            registrations: read(&counts.registrations),
            register_gib_s: (ns > 0)
                .then(|| read(&counts.registered_bytes) as f64 / BYTES_PER_GIB / (ns as f64 / 1e9)),
            evictions: read(&counts.evictions),
            eviction_batches: read(&counts.eviction_batches),
            uncached: read(&counts.uncached),
            refused: read(&counts.refused),
            refusal: state.refusal.clone(),
            stale: read(&counts.stale),
            left: read(&counts.left),
        }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.work.notify_all();
        self.shared.asked.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        // Pins go before the mappings that they pin.
        let pins = std::mem::take(&mut self.shared.lock().pins);
        drop(pins);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, RegistryState> {
        self.state.lock().expect("nothing panics while it holds the registry")
    }

    /// Windows to register before they are asked for; few of a small cap, or they would push out each other.
    fn ahead(&self) -> u32 {
        (self.limits.cap_bytes / 4 / self.limits.window_bytes).clamp(1, AHEAD) as u32
    }

    fn request(
        &self,
        state: &mut RegistryState,
        file: &MappedFile,
        window: u32,
        streams: bool,
        gently: bool,
    ) {
        let w = file.window(window);
        let phase = w.phase();
        if phase == Phase::Cold && streams && self.leaves(state) {
            w.set(Phase::Left);
        } else if matches!(phase, Phase::Cold | Phase::Declined | Phase::Left) {
            w.set(Phase::Pending);
            state.requests.push_back(Request { key: Key { file: file.number, window }, streams, gently });
        }
    }

    /// Returns whether the next window is left to the relays: as many as they copy while the others are registered.
    fn leaves(&self, state: &mut RegistryState) -> bool {
        if self.limits.relays == 0 || !self.fits.load(Ordering::Relaxed) {
            return false;
        }
        let ns = read(&self.counts.register_ns) as f64;
        let bytes = read(&self.counts.registered_bytes) as f64;
        let register_gib_s = if ns > 0.0 { bytes / BYTES_PER_GIB / (ns / 1e9) } else { REGISTER_GIB_S };
        let relay_gib_s = RELAY_GIB_S * f64::from(self.limits.relays);
        state.owed += relay_gib_s / (relay_gib_s + register_gib_s);
        let leaves = state.owed >= 1.0;
        if leaves {
            state.owed -= 1.0;
            add(&self.counts.left, 1);
        }
        leaves
    }

    fn current_generation(&self, file: &MappedFile) -> Result<u64, Fault> {
        let Seen { generation, changed } = file.examine();
        if changed {
            add(&self.counts.stale, 1);
            let mut state = self.lock();
            let old: Vec<Key> = state.pins.keys().filter(|k| k.file == file.number).copied().collect();
            state.doomed.extend(old.into_iter().filter(|k| file.window(k.window).phase() == Phase::Retiring));
            state.doomed.sort_unstable();
            state.doomed.dedup();
            self.work.notify_one();
        }
        generation
    }

    /// Sees to it that what the registrar gets is cached and quickly registered.
    fn prepare_all(&self) {
        let mut state = self.lock();
        while !state.stop {
            let Some(request) = state.requests.pop_front() else {
                state = self.asked.wait(state).expect("nothing panics while it holds the registry");
                continue;
            };
            let key = request.key;
            // It has left meanwhile.
            let Some(file) = state.files.get(&key.file).cloned() else { continue };
            drop(state);
            let prepared = self.prepare(&file, key.window);
            state = self.lock();
            match prepared {
                Ok(()) => {
                    state.prepared.push_back(request);
                    self.work.notify_one();
                }
                Err(refusal) => {
                    self.note(&mut state, refusal);
                    Self::decide(&mut state, key, file.window(key.window), Phase::Declined, &self.turns);
                }
            }
        }
    }

    fn prepare(&self, file: &MappedFile, window: u32) -> Result<(), Refusal> {
        self.current_generation(file).map_err(|_| Refusal::Changed)?;
        let (from, len) = file.span(window);
        // Where the kernel won't tell, the pages are taken for cached: registering would read them in.
        if let Ok(resident) = cache_resident(&file.target.file, from, len) {
            if resident.pages < resident.of {
                return Err(Refusal::Uncached);
            }
        }
        let mapping = file.mapping().map_err(|why| Refusal::Refused(why.to_string(), false))?;
        if self.slow.load(Ordering::Relaxed) >= SLOW_WINDOWS {
            mapping.populate(from, page_up(len) as usize);
        }
        Ok(())
    }

    /// Once registering was slow, pages are taken for small as long as the registry lives.
    fn rate(&self, len: u64, took: Duration) {
        if len < RATED_BYTES || self.slow.load(Ordering::Relaxed) >= SLOW_WINDOWS {
            return;
        }
        if (len as f64) < SLOW_BYTES_PER_NS * took.as_nanos() as f64 {
            self.slow.fetch_add(1, Ordering::Relaxed);
        } else {
            self.slow.store(0, Ordering::Relaxed);
        }
    }
}

/// Why a window wasn't registered.
enum Refusal {
    Changed,
    Uncached,
    /// In the system's words, and whether it ran out of memory to pin.
    Refused(String, bool),
}

fn page_up(bytes: u64) -> u64 {
    bytes.next_multiple_of(rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests;
