//! LockedState that the workers of a run share: the scheduler, waiting workers, counters and failures.

use super::destination::Destination;
use super::reading::Reading;
use forebay_io::{Travelled, Via, Waker};
use forebay_model::training::{self, Scheduler};
use forebay_model::Error;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};

/// Time of steps that needn't be looked at.
const NEVER: u64 = u64::MAX;
/// Workers say this often how long they were on a processor.
pub(crate) const ACCOUNT_NS: u64 = 10_000_000;
/// Waiting is dealt out over so much of each worker's time at least.
const DEAL_NS: u64 = 4 * ACCOUNT_NS;

/// Nanoseconds of a worker's time by what it did with them, and what came of it. Written by one worker, read by all.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    /// In calls that read, or waiting for reads under way.
    pub read_ns: AtomicU64,
    pub waited_ns: AtomicU64,
    pub parse_ns: AtomicU64,
    /// Nothing was to be read.
    pub idle_ns: AtomicU64,
    /// On a processor, and waiting for one.
    pub cpu_ns: AtomicU64,
    pub queued_ns: AtomicU64,
    pub ways: Ways,
    pub payload_bytes: AtomicU64,
    pub ios: AtomicU64,
    pub samples: AtomicU64,
}

/// Bytes that got to where they end, by how they did: all that are counted as read are one of these.
#[derive(Debug, Default)]
pub(crate) struct Ways {
    direct: AtomicU64,
    staged: AtomicU64,
    mapped: AtomicU64,
    compat: AtomicU64,
    fabric: AtomicU64,
}

impl Ways {
    pub(crate) fn add(&self, via: Via, bytes: u64) {
        match via {
            Via::Direct => add(&self.direct, bytes),
            Via::Staged => add(&self.staged, bytes),
            Via::Mapped => add(&self.mapped, bytes),
            Via::Compat => add(&self.compat, bytes),
            Via::Fabric => add(&self.fabric, bytes),
            Via::Nothing => {}
        }
    }
}

/// Facts about the resources of a worker, for the record.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResourceFacts {
    /// Kind of pages of its slots, as `hugetlb`.
    pub pages: &'static str,
    pub slot_bytes: u64,
    /// Kernel features that are in force.
    pub features: Vec<&'static str>,
}

pub(crate) fn add(counter: &AtomicU64, value: u64) {
    counter.store(counter.load(Ordering::Relaxed) + value, Ordering::Relaxed);
}

/// Sums over all workers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Totals {
    pub read_ns: u64,
    pub waited_ns: u64,
    pub parse_ns: u64,
    pub idle_ns: u64,
    pub cpu_ns: u64,
    pub queued_ns: u64,
    pub ways: Travelled,
    /// Their sum.
    pub bytes: u64,
    pub payload_bytes: u64,
    pub ios: u64,
    pub samples: u64,
}

/// Waiting time of the accelerators, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Waited {
    pub storage: f64,
    pub parse: f64,
    pub cpu: f64,
}

/// Samples that were left out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Skipped {
    pub count: u64,
    pub examples: Vec<String>,
}

pub(crate) struct LockedState {
    pub scheduler: Scheduler<Reading>,
    /// Workers that wait and could begin something.
    idle: Vec<usize>,
    /// The one of them that looks at the steps.
    step_watcher: Option<usize>,
    pub failure: Option<Error>,
    pub skipped: Skipped,
    pub waited: Waited,
    /// Counters when waiting was last dealt out, and what was waited since.
    dealt: Totals,
    undealt_ns: u64,
    seen_step: u32,
}

pub(crate) struct RunState {
    state: Mutex<LockedState>,
    /// The conductor: an epoch is over, a step has ended here, something failed.
    pub changed: Condvar,
    pub stop: AtomicBool,
    due: AtomicU64,
    waiting: AtomicUsize,
    pub counters: Vec<Counters>,
    /// Those of the first worker, which are those of all.
    pub resources: OnceLock<ResourceFacts>,
    pub destination: Option<Destination>,
    wakers: Mutex<Vec<Option<Arc<Waker>>>>,
}

impl RunState {
    pub(crate) fn new(
        scheduler: Scheduler<Reading>,
        workers: usize,
        destination: Option<Destination>,
    ) -> RunState {
        let state = LockedState {
            scheduler,
            idle: Vec::new(),
            step_watcher: None,
            failure: None,
            skipped: Skipped::default(),
            waited: Waited::default(),
            dealt: Totals::default(),
            undealt_ns: 0,
            seen_step: 0,
        };
        RunState {
            state: Mutex::new(state),
            changed: Condvar::new(),
            stop: AtomicBool::new(false),
            due: AtomicU64::new(NEVER),
            waiting: AtomicUsize::new(0),
            counters: (0..workers).map(|_| Counters::default()).collect(),
            resources: OnceLock::new(),
            destination,
            wakers: Mutex::new(vec![None; workers]),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, LockedState> {
        self.state.lock().expect("nothing panics while it holds the run_state")
    }

    pub(crate) fn set_waker(&self, worker: usize, waker: Arc<Waker>) {
        self.wakers.lock().expect("nothing panics while it holds the wakers")[worker] = Some(waker);
    }

    /// A step may have to begin.
    pub(crate) fn is_due(&self, now: u64) -> bool {
        now >= self.due.load(Ordering::Relaxed)
    }

    pub(crate) fn due(&self) -> Option<u64> {
        Some(self.due.load(Ordering::Relaxed)).filter(|due| *due != NEVER)
    }

    /// Streams wait for a worker.
    pub(crate) fn has_work(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Changes the scheduler, and sees to what follows from it.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Scheduler<Reading>) -> T) -> T {
        let mut state = self.lock();
        let result = change(&mut state.scheduler);
        self.publish(&mut state);
        result
    }

    /// After the scheduler was changed: steps are accounted for, idle workers and the conductor told.
    fn publish(&self, state: &mut LockedState) {
        let scheduler = &mut state.scheduler;
        self.due.store(scheduler.due().unwrap_or(NEVER), Ordering::Relaxed);
        let waiting = scheduler.waiting();
        self.waiting.store(waiting, Ordering::Relaxed);
        if scheduler.step() != state.seen_step {
            self.account(state);
            if let Some(destination) = &self.destination {
                destination.taken(state.seen_step);
            }
            if state.scheduler.is_over() || state.scheduler.awaits_others().is_some() {
                self.changed.notify_all();
            }
        } else if state.scheduler.awaits_others().is_some() {
            self.changed.notify_all();
        }
        if !state.idle.is_empty() && waiting > 0 {
            let wakers = self.wakers.lock().expect("nothing panics while it holds the wakers");
            for _ in 0..waiting.min(state.idle.len()) {
                let worker = state.idle.pop().expect("somebody is idle");
                if let Some(waker) = &wakers[worker] {
                    waker.wake();
                }
            }
        }
    }

    /// Deals out what accelerators waited for, by what workers did meanwhile: once enough time has passed for the
    /// workers' own accounts to be fresh.
    fn account(&self, state: &mut LockedState) {
        state.seen_step = state.scheduler.step();
        state.undealt_ns += state.scheduler.take_waited_ns();
        let now = self.totals();
        let spent = now.since(&state.dealt);
        if spent.cpu_ns == 0 || spent.wall_ns() < DEAL_NS * self.counters.len() as u64 {
            return;
        }
        state.waited.add(std::mem::take(&mut state.undealt_ns) as f64, &spent);
        state.dealt = now;
    }

    /// The last of it, when the run is over.
    pub(crate) fn account_for_the_rest(&self) {
        let mut state = self.lock();
        let spent = self.totals().since(&state.dealt);
        let waited = std::mem::take(&mut state.undealt_ns);
        state.waited.add(waited as f64, &spent);
    }

    pub(crate) fn totals(&self) -> Totals {
        let sum = |f: fn(&Counters) -> &AtomicU64| -> u64 {
            self.counters.iter().map(|c| f(c).load(Ordering::Relaxed)).sum()
        };
        let ways = Travelled {
            direct: sum(|c| &c.ways.direct),
            staged: sum(|c| &c.ways.staged),
            mapped: sum(|c| &c.ways.mapped),
            compat: sum(|c| &c.ways.compat),
            fabric: sum(|c| &c.ways.fabric),
        };
        Totals {
            read_ns: sum(|c| &c.read_ns),
            waited_ns: sum(|c| &c.waited_ns),
            parse_ns: sum(|c| &c.parse_ns),
            idle_ns: sum(|c| &c.idle_ns),
            cpu_ns: sum(|c| &c.cpu_ns),
            queued_ns: sum(|c| &c.queued_ns),
            ways,
            bytes: ways.total(),
            payload_bytes: sum(|c| &c.payload_bytes),
            ios: sum(|c| &c.ios),
            samples: sum(|c| &c.samples),
        }
    }

    /// A worker is about to wait: it is woken when something is to be read. True: it is the one that looks when a
    /// step is due. None: something came meanwhile.
    pub(crate) fn rest(&self, worker: usize, could_begin: bool) -> Option<bool> {
        let mut state = self.lock();
        if could_begin && state.scheduler.waiting() > 0 {
            return None;
        }
        if could_begin {
            state.idle.push(worker);
        }
        if state.step_watcher.is_none() {
            state.step_watcher = Some(worker);
        }
        Some(state.step_watcher == Some(worker))
    }

    /// It waits no more.
    pub(crate) fn rise(&self, worker: usize) {
        let mut state = self.lock();
        state.idle.retain(|idle| *idle != worker);
        if state.step_watcher == Some(worker) {
            state.step_watcher = None;
        }
    }

    /// The run can't go on.
    pub(crate) fn fail(&self, error: Error) {
        self.lock().failure.get_or_insert(error);
        self.end();
    }

    pub(crate) fn end(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.wake_all();
        self.changed.notify_all();
    }

    fn wake_all(&self) {
        let wakers = self.wakers.lock().expect("nothing panics while it holds the wakers");
        wakers.iter().flatten().for_each(|waker| waker.wake());
    }
}

impl Skipped {
    pub(crate) fn add(&mut self, samples: u64, example: String) {
        self.count += samples;
        if self.examples.len() < training::record::Skipped::EXAMPLES_MAX && !self.examples.contains(&example)
        {
            self.examples.push(example);
        }
    }
}

impl Totals {
    fn wall_ns(&self) -> u64 {
        self.read_ns + self.waited_ns + self.parse_ns + self.idle_ns
    }

    pub(crate) fn since(&self, earlier: &Totals) -> Totals {
        Totals {
            read_ns: self.read_ns - earlier.read_ns,
            waited_ns: self.waited_ns - earlier.waited_ns,
            parse_ns: self.parse_ns - earlier.parse_ns,
            idle_ns: self.idle_ns - earlier.idle_ns,
            cpu_ns: self.cpu_ns - earlier.cpu_ns,
            queued_ns: self.queued_ns - earlier.queued_ns,
            ways: Travelled {
                direct: self.ways.direct - earlier.ways.direct,
                staged: self.ways.staged - earlier.ways.staged,
                mapped: self.ways.mapped - earlier.ways.mapped,
                compat: self.ways.compat - earlier.ways.compat,
                fabric: self.ways.fabric - earlier.ways.fabric,
            },
            bytes: self.bytes - earlier.bytes,
            payload_bytes: self.payload_bytes - earlier.payload_bytes,
            ios: self.ios - earlier.ios,
            samples: self.samples - earlier.samples,
        }
    }
}

impl Waited {
    /// `waited` ns of accelerators, in which the workers' time went as `spent` says. Time in which a worker had
    /// nothing to read says nothing: it may have been for want of one last sample that another worker read.
    fn add(&mut self, waited: f64, spent: &Totals) {
        let busy = spent.read_ns + spent.parse_ns;
        let all = busy + spent.waited_ns;
        if all == 0 {
            self.storage += waited;
            return;
        }
        // In a call that reads, but neither on a processor nor waiting for one: the storage is at work.
        let blocked = spent.waited_ns + busy.saturating_sub(spent.cpu_ns + spent.queued_ns);
        let parse = spent.parse_ns.min(all - blocked);
        let share = |part: u64| waited * part as f64 / all as f64;
        self.storage += share(blocked);
        self.parse += share(parse);
        self.cpu += share(all - blocked - parse);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dealt(spent: Totals) -> [f64; 3] {
        let mut waited = Waited::default();
        waited.add(100.0, &spent);
        [waited.storage, waited.parse, waited.cpu]
    }

    // promise: TRA-10
    #[test]
    fn waiting_is_dealt_out_by_what_workers_did_meanwhile() {
        let reads_from_a_drive =
            Totals { waited_ns: 900, read_ns: 50, parse_ns: 50, cpu_ns: 100, ..Totals::default() };
        assert_eq!(dealt(reads_from_a_drive), [90.0, 5.0, 5.0]);
        let copies_out_of_memory = Totals { read_ns: 700, parse_ns: 300, cpu_ns: 1000, ..Totals::default() };
        assert_eq!(dealt(copies_out_of_memory), [0.0, 30.0, 70.0]);
        let blocks_in_calls = Totals { read_ns: 900, parse_ns: 100, cpu_ns: 200, ..Totals::default() };
        assert_eq!(dealt(blocks_in_calls), [80.0, 10.0, 10.0]);
        let starves =
            Totals { read_ns: 900, parse_ns: 100, cpu_ns: 200, queued_ns: 800, ..Totals::default() };
        assert_eq!(dealt(starves), [0.0, 10.0, 90.0]);
        assert_eq!(dealt(Totals::default()), [100.0, 0.0, 0.0]);
    }
}
