//! One worker: a thread with its own reactor, slots and queues, that keeps its
//! I/Os in flight and books what becomes of them.

use super::free::FreeSlots;
use super::outfit::{self, Memory};
use super::pace::{pace_of, Pace};
use super::tally::{Snapshot, Tally};
use super::threads;
use super::verify::{Contents, Ended, NameOf};
use crate::arena::Mem;
use crate::clock;
use crate::path::Destination;
use crate::queue::{Done, Fault, Full, Io, Op, Queue};
use crate::reactor::Reactor;
use crate::source::fault::FaultPlan;
use crate::source::Target;
use forebay_model::job::{JobSpec, Sync};
use forebay_model::pattern::{Next, Pattern, PatternSpec};
use forebay_model::Error;
use std::collections::BTreeMap;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Failed I/Os after which a worker gives up: the medium is gone, not bumpy.
const FAILURES_MAX: u64 = 1000;
/// A worker waits for one in this many of its I/Os at once, which saves calls where many are in flight. A
/// completion that is alone waits no longer than `BATCH_PATIENCE`, which its latency then holds.
const BATCH_SHARE: u32 = 8;
pub const BATCH_IO_BYTES_MAX: u64 = 128 << 10;
const BATCH_PATIENCE: Duration = Duration::from_micros(30);
/// How long an abandoned I/O may take to come back before its memory is left to the kernel.
const GRACE: Duration = Duration::from_secs(2);
/// How often time-outs and a stop are looked for while nothing completes, however long the interval.
const LOOK: Duration = Duration::from_millis(250);
/// A look that comes this much later than it was due shows that the process stood still: stopped, frozen, or paused
/// with its virtual machine. No machine that merely is busy keeps a thread waiting for so long.
pub const STANDSTILL: Duration = Duration::from_secs(1);

/// What all workers of a run share.
pub struct Shared {
    pub job: JobSpec,
    pub targets: Vec<Target>,
    /// Seed of each target's content.
    pub content_seeds: Vec<u64>,
    pub destination: Arc<Destination>,
    pub faults: Option<FaultPlan>,
    /// A failure somewhere: finish now.
    pub stop: AtomicBool,
    /// Ends of warm-up and of the measured time, in ns since the run began.
    pub from_ns: AtomicU64,
    pub until_ns: AtomicU64,
    /// How long after the end an open loop still starts what was due by then, in ns.
    pub drain_ns: AtomicU64,
    pub interval: Duration,
    /// Snapshots carry their histogram.
    pub with_histograms: bool,
}

/// What one worker does.
#[derive(Clone, Debug)]
pub struct WorkerSpec {
    pub index: u32,
    pub cpu: Option<u32>,
    /// The NUMA node of its GPU, to stay on if the system allows.
    pub near: Option<u32>,
    pub pattern: PatternSpec,
}

/// What a worker got to work with.
#[derive(Clone, Debug, Default)]
pub struct Kit {
    pub features: Vec<&'static str>,
    pub pages: &'static str,
    pub slot_bytes: u64,
    pub queues: u32,
    /// By target: the path whose queue it got.
    pub ran: BTreeMap<u32, &'static str>,
    pub warning: Option<String>,
    /// Why the content of slots in GPU memory is looked after by the host.
    pub content_on_host: Option<String>,
}

/// What a worker tells the driver, in this order: Ready, any Snapshots, Ended, Finished. Failed, at any point, is the
/// last.
pub enum Report {
    Ready(Kit),
    Snapshot(Box<Snapshot>),
    /// The worker's last I/O is booked. Letting go of its memory takes a while that is no part of the run.
    Ended(u32),
    Finished(Box<Tally>),
    Failed(Error),
}

/// Runs a worker, and reports its end even if that is a panic: the others wait for it.
pub fn work(
    spec: WorkerSpec,
    shared: Arc<Shared>,
    start: &dyn Fn() -> Option<Instant>,
    reports: &Sender<Report>,
) {
    let (index, all) = (spec.index, shared.clone());
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| work_on(spec, shared, start, reports))) {
        all.stop.store(true, Ordering::Relaxed);
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        let found = format!("a defect in Forebay ended it: {text}");
        let _ = reports.send(Report::Failed(Error::run(
            format!("worker {index}"),
            found,
            "report it, with the command that was typed",
        )));
    }
}

/// Opens everything, waits for the start, runs, and reports.
fn work_on(
    spec: WorkerSpec,
    shared: Arc<Shared>,
    start: &dyn Fn() -> Option<Instant>,
    reports: &Sender<Report>,
) {
    let settled = threads::settle_in(spec.cpu, shared.job.numa);
    let numa = shared.job.numa.or(spec.near.filter(|node| threads::settle_near(*node)));
    let mut worker = match settled.and_then(|()| Worker::open(spec, shared, reports.clone())) {
        Ok((mut worker, kit)) => {
            let _ = reports.send(Report::Ready(kit));
            worker.tally.numa = numa;
            worker
        }
        Err(e) => {
            let _ = reports.send(Report::Failed(e));
            return;
        }
    };
    if let Some(begin) = start() {
        worker.run(begin);
    }
    worker.close();
}

/// What content may say it belongs to: the run's targets.
fn names_of(shared: &Arc<Shared>) -> NameOf {
    let shared = shared.clone();
    Box::new(move |id| shared.targets.iter().find(|t| t.content_id == id).map(|t| t.label.clone()))
}

/// One I/O in flight, whole or what a short transfer left of it.
#[derive(Clone, Copy)]
struct Slot {
    mem: Mem,
    /// Latency counts from here: in an open loop when the I/O was due.
    started: Instant,
    /// The time-out counts from here.
    issued: Instant,
    at: Next,
    queue: u32,
    moved: u32,
    busy: bool,
    abandoned: bool,
    flush: bool,
    /// Its content is being made or checked: no queue has it.
    chore: bool,
    /// It is among the bytes that the run moved: in its measured time, and not after its end.
    counted: bool,
}

/// What a worker knows of one of its queues. Only those that have something in flight are looked at.
#[derive(Clone, Copy, Default)]
struct Lane {
    in_flight: u32,
    /// It stands in `Worker::busy`.
    listed: bool,
}

struct Worker {
    index: u32,
    shared: Arc<Shared>,
    reports: Sender<Report>,
    begin: Instant,
    pattern: Pattern,
    upcoming: Option<Next>,
    pace: Option<Pace>,
    // Field order is drop order: queues, then the ring, then the memory that both point to.
    queues: Vec<Box<dyn Queue>>,
    reactor: Reactor,
    contents: Contents,
    memory: Memory,
    /// Which queue serves a target.
    queue_of: Vec<u32>,
    lanes: Vec<Lane>,
    /// Queues with something in flight, and some that just ran dry.
    busy: Vec<u32>,
    slots: Vec<Slot>,
    free: FreeSlots,
    /// The next I/O waits for its queue, though there is a slot for it.
    held_back: bool,
    /// I/Os that a full queue handed back, and rests of short ones.
    again: Vec<u32>,
    in_flight: u32,
    tally: Tally,
    next_tick: Instant,
    next_look: Instant,
    tick_index: u64,
    closing: bool,
    /// Queues that were told to flush, after the last I/O.
    flushed: u32,
    done: Vec<Done>,
    ended: Vec<Ended>,
}

impl Worker {
    fn open(spec: WorkerSpec, shared: Arc<Shared>, reports: Sender<Report>) -> Result<(Worker, Kit), Error> {
        let mut outfit = outfit::of(&spec, &shared)?;
        let device = shared.destination.device_of(spec.index);
        let (contents, why_not) =
            Contents::open(&shared.job, names_of(&shared), device, outfit.slots as usize)?;
        outfit.kit.content_on_host = why_not;
        let now = clock::now();
        let idle = Next { target: 0, offset: 0, len: 0, is_read: true, pass: 0 };
        let slot = |i| Slot {
            mem: outfit.memory.slot(i),
            started: now,
            issued: now,
            at: idle,
            queue: 0,
            moved: 0,
            busy: false,
            abandoned: false,
            flush: false,
            chore: false,
            counted: false,
        };
        let slots: Vec<Slot> = (0..outfit.slots as usize).map(slot).collect();
        let worker = Worker {
            index: spec.index,
            tally: Tally::new(spec.index, spec.cpu, shared.targets.len()),
            begin: now,
            pattern: Pattern::new(spec.pattern)?,
            upcoming: None,
            pace: pace_of(&shared.job),
            lanes: vec![Lane::default(); outfit.queues.len()],
            busy: Vec::new(),
            queues: outfit.queues,
            reactor: outfit.reactor,
            contents,
            memory: outfit.memory,
            queue_of: outfit.queue_of,
            free: FreeSlots::new(outfit.slots, outfit.in_turn),
            held_back: false,
            slots,
            again: Vec::new(),
            in_flight: 0,
            next_tick: now,
            next_look: now,
            tick_index: 0,
            closing: false,
            flushed: 0,
            done: Vec::with_capacity(outfit.slots as usize),
            ended: Vec::new(),
            shared,
            reports,
        };
        worker.memory.fill_for_writes(&worker.shared.job, worker.index)?;
        Ok((worker, outfit.kit))
    }

    fn run(&mut self, begin: Instant) {
        self.begin = begin;
        if let Some(pace) = &mut self.pace {
            let share = f64::from(self.index) / f64::from(self.shared.job.workers);
            pace.next =
                begin + Duration::from_nanos((share * pace.ns_after(self.shared.job.io_bytes)) as u64);
        }
        self.next_tick = begin + self.first_tick();
        self.next_look = begin;
        self.tally.measures(self.shared.from_ns.load(Ordering::Relaxed) == 0);
        loop {
            let now = clock::now();
            self.closing |= self.shared.stop.load(Ordering::Relaxed) || self.starts_no_more(now);
            if now >= self.next_tick {
                self.tick(now);
            }
            if now >= self.next_look {
                self.look(now);
            }
            self.start_ios(now);
            self.collect();
            if self.done.is_empty() && self.in_flight == 0 {
                if self.finished() {
                    break;
                }
                // A flush may have ended where it began, with nothing to wake a wait.
                self.collect();
            }
            if self.done.is_empty() {
                self.wait(now);
                self.collect();
            } else {
                // More was done already than it takes to wait: let the device have the new I/Os meanwhile.
                self.reactor.submit();
            }
            self.settle();
        }
        let now = clock::now();
        self.book_what_never_came(now);
        self.tally.ended = now.duration_since(self.begin);
        self.snapshot(now);
        let _ = self.reports.send(Report::Ended(self.index));
    }

    fn until(&self) -> Instant {
        self.begin + Duration::from_nanos(self.shared.until_ns.load(Ordering::Relaxed))
    }

    fn from(&self) -> Instant {
        self.begin + Duration::from_nanos(self.shared.from_ns.load(Ordering::Relaxed))
    }

    /// Ticks fall on the end of the warm-up, so that no interval belongs to both sides.
    fn first_tick(&self) -> Duration {
        let interval = self.shared.interval.as_nanos() as u64;
        let rest = self.shared.from_ns.load(Ordering::Relaxed) % interval;
        Duration::from_nanos(if rest == 0 { interval } else { rest })
    }

    /// Nothing is in flight: is there nothing left to start?
    fn finished(&mut self) -> bool {
        if !self.closing || !(self.again.is_empty() || self.given_up()) {
            return false;
        }
        if self.ends_with_flush() {
            self.flush_more();
        }
        self.in_flight == 0 && (self.again.is_empty() || self.given_up())
    }

    fn ends_with_flush(&self) -> bool {
        self.shared.job.sync == Sync::End && self.shared.job.writes()
    }

    fn given_up(&self) -> bool {
        self.tally.errors.failed > FAILURES_MAX || self.shared.stop.load(Ordering::Relaxed)
    }

    /// Flushes the next queues, as many as there are free slots.
    fn flush_more(&mut self) {
        while (self.flushed as usize) < self.queues.len() {
            let Some(tag) = self.free.take() else { return };
            let (queue, now) = (self.flushed, clock::now());
            self.flushed += 1;
            let slot = &mut self.slots[tag as usize];
            *slot = Slot {
                started: now,
                issued: now,
                queue,
                moved: 0,
                busy: true,
                abandoned: false,
                flush: true,
                at: Next { len: 0, ..slot.at },
                ..*slot
            };
            self.push(tag);
            self.queues[queue as usize].submit(&mut self.reactor);
        }
    }

    fn start_ios(&mut self, now: Instant) {
        self.settle_chores();
        for tag in std::mem::take(&mut self.again) {
            self.push(tag);
        }
        self.held_back = false;
        while !self.closing && self.again.is_empty() && self.start_one(now) {}
        for queue in &self.busy {
            self.queues[*queue as usize].submit(&mut self.reactor);
        }
        self.contents.submit();
    }

    /// False when there is no slot, when the next I/O isn't due yet, or after the last pass.
    #[inline]
    fn start_one(&mut self, now: Instant) -> bool {
        if self.free.is_empty() {
            return false;
        }
        let started = match &self.pace {
            Some(pace) if pace.next > now || !pace.is_due_before(self.until()) => return false,
            Some(pace) => pace.next,
            None => now,
        };
        let next = self.upcoming.take().unwrap_or_else(|| self.pattern.next());
        if self.shared.job.passes.is_some_and(|p| next.pass >= p) {
            self.upcoming = Some(next);
            self.closing = true;
            return false;
        }
        let queue = self.queue_of[next.target as usize];
        if !self.queues[queue as usize].takes_more() {
            self.upcoming = Some(next);
            self.held_back = true;
            return false;
        }
        let Some(tag) = self.free.take() else { return false };
        if let Some(pace) = &mut self.pace {
            pace.advance(u64::from(next.len));
        }
        let slot = &mut self.slots[tag as usize];
        *slot = Slot {
            mem: slot.mem,
            at: next,
            queue,
            started,
            issued: now,
            moved: 0,
            busy: true,
            abandoned: false,
            flush: false,
            chore: false,
            counted: false,
        };
        if next.is_read || !(self.shared.job.verify || self.shared.job.refill) {
            self.push(tag);
        } else {
            self.fill(tag);
        }
        true
    }

    /// Hands the slot's I/O, or the rest of it, to its queue.
    #[inline]
    fn push(&mut self, tag: u32) {
        let slot = &self.slots[tag as usize];
        let op = match (slot.flush, slot.at.is_read) {
            (true, _) => Op::Flush,
            (false, true) => Op::Read,
            (false, false) => Op::Write { durable: self.shared.job.sync == Sync::Each },
        };
        let moved = slot.moved;
        let io = Io {
            tag,
            op,
            offset: slot.at.offset + u64::from(moved),
            len: slot.at.len - moved,
            mem: slot.mem.after(moved as usize),
        };
        match self.queues[slot.queue as usize].push(io, &mut self.reactor) {
            Ok(()) => {
                self.in_flight += 1;
                let lane = &mut self.lanes[slot.queue as usize];
                lane.in_flight += 1;
                if !lane.listed {
                    lane.listed = true;
                    self.busy.push(slot.queue);
                }
            }
            Err(Full(_)) => self.again.push(tag),
        }
    }

    fn collect(&mut self) {
        let mut i = 0;
        while i < self.busy.len() {
            let queue = self.busy[i] as usize;
            let lane = &mut self.lanes[queue];
            if lane.in_flight == 0 {
                lane.listed = false;
                self.busy.swap_remove(i);
            } else {
                self.queues[queue].reap(&mut self.reactor, &mut self.done);
                i += 1;
            }
        }
    }

    fn wait(&mut self, now: Instant) {
        let mut until = self.next_tick.min(self.next_look);
        if !self.closing {
            until = until.min(self.next_edge(now));
            if let Some(pace) = self.pace.as_ref().filter(|_| !self.free.is_empty() && !self.held_back) {
                until = until.min(pace.next);
            }
        }
        let dues = self.busy.iter().filter_map(|q| self.queues[*q as usize].next_due());
        for due in dues.chain(self.contents.next_due()) {
            until = until.min(due);
        }
        if until > now {
            let (at_least, patience) = self.batch();
            self.reactor.wait(at_least, until, patience);
        } else {
            self.reactor.flush();
        }
    }

    /// How many completions to wait for, and how long the first may wait for the others.
    fn batch(&self) -> (u32, Duration) {
        // Long I/Os keep the device busy one by one (`RingOptions::one_by_one`).
        let few = self.busy.iter().any(|q| self.queues[*q as usize].wakes_at_first());
        if few || self.pace.is_some() || self.shared.job.io_bytes_largest() > BATCH_IO_BYTES_MAX {
            return (1, Duration::ZERO);
        }
        ((self.in_flight / BATCH_SHARE).max(1), BATCH_PATIENCE)
    }

    fn settle(&mut self) {
        if self.done.is_empty() {
            return;
        }
        let now = clock::now();
        // Ticks come before bookings, so that an interval lies on one side of the warm-up's end.
        if now >= self.next_tick {
            self.tick(now);
        }
        // Time that ends with a flush includes the last I/Os, so they count too.
        let counted = now <= self.until() || self.ends_with_flush();
        let mut done = std::mem::take(&mut self.done);
        for d in done.drain(..) {
            self.settle_one(d, now, counted);
        }
        self.done = done;
    }

    #[inline]
    fn settle_one(&mut self, d: Done, now: Instant, counted: bool) {
        let tag = d.tag;
        let slot = &mut self.slots[tag as usize];
        self.lanes[slot.queue as usize].in_flight -= 1;
        if !slot.busy {
            // Given up on, and here after all: its memory is ours again.
            self.tally.lost -= 1;
            self.release(tag);
            return;
        }
        self.in_flight -= 1;
        let left = slot.at.len - slot.moved;
        match d.result {
            Ok(_) if slot.flush => self.release(tag),
            Ok(moved) if moved == left => {
                slot.counted = counted && self.tally.is_measuring();
                let slot = *slot;
                if counted {
                    self.tally.complete(&slot.at, now.duration_since(slot.started), d.via, d.copy_ns);
                } else {
                    self.book_late(&slot, now, d.copy_ns);
                }
                if slot.at.is_read && self.shared.job.verify {
                    self.verify(tag);
                } else {
                    self.release(tag);
                }
            }
            Ok(0) => self.failed(
                tag,
                &Fault::note(
                    libc::EIO,
                    "the data ended early: the file is shorter than it was when the run began",
                ),
            ),
            Ok(moved) => {
                slot.moved += moved;
                self.tally.errors.short += 1;
                self.again.push(tag);
            }
            Err(_) if slot.abandoned => {
                self.book_unfinished(tag, now);
                self.release(tag);
            }
            Err(fault) if matches!(fault.errno, libc::EAGAIN | libc::EINTR) => {
                self.tally.errors.retried += 1;
                self.again.push(tag);
            }
            Err(fault) => self.failed(tag, &fault),
        }
    }

    fn release(&mut self, tag: u32) {
        self.slots[tag as usize].busy = false;
        self.free.give(tag);
    }

    /// Which I/O it was, for people.
    fn name(&self, slot: &Slot) -> String {
        let what = match (slot.flush, slot.at.is_read) {
            (true, _) => "flush",
            (false, true) => "read",
            (false, false) => "write",
        };
        let label = &self.shared.targets[slot.at.target as usize].label;
        format!(
            "{what} of {} bytes at {} of {label}",
            slot.at.len - slot.moved,
            slot.at.offset + u64::from(slot.moved)
        )
    }

    fn failed(&mut self, tag: u32, fault: &Fault) {
        let slot = self.slots[tag as usize];
        self.tally.errors.failed += 1;
        if fault.errno == libc::EINVAL {
            self.tally.errors.misaligned += 1;
        }
        self.tally.example(format!("{}: {fault}", self.name(&slot)));
        self.release(tag);
        let hopeless =
            matches!(fault.errno, libc::ENOSPC | libc::EROFS | libc::EDQUOT | libc::ENODEV | libc::ENXIO);
        if hopeless || self.tally.errors.failed > FAILURES_MAX {
            self.shared.stop.store(true, Ordering::Relaxed);
        }
    }

    fn tick(&mut self, now: Instant) {
        self.snapshot(now);
        while self.next_tick <= now {
            self.next_tick += self.shared.interval;
            self.tick_index += 1;
        }
    }

    fn snapshot(&mut self, now: Instant) {
        let measures_next = now >= self.from();
        // What drains after the end counts for nothing, so its time doesn't either.
        let at = now.min(self.until()).duration_since(self.begin);
        let with_histogram = self.shared.with_histograms;
        let snapshot =
            Snapshot { index: self.tick_index, ..self.tally.snapshot(at, measures_next, with_histogram) };
        let _ = self.reports.send(Report::Snapshot(Box::new(snapshot)));
    }

    /// Lets go of everything, but for memory that the kernel may still write to.
    fn close(mut self) {
        let tally = std::mem::take(&mut self.tally);
        let lost = tally.lost > 0;
        let reports = self.reports.clone();
        if lost {
            std::mem::forget(self);
        } else {
            let Worker { queues, reactor, .. } = &mut self;
            queues.iter_mut().for_each(|q| q.close(reactor));
            drop(self);
        }
        let _ = reports.send(Report::Finished(Box::new(tally)));
    }
}

impl Drop for Worker {
    /// After a panic I/Os may be in flight: the kernel and the pool's threads still write to their slots. So they may to
    /// those of I/Os that were given up and aren't in that count any more.
    fn drop(&mut self) {
        if self.in_flight > 0 || self.tally.lost > 0 {
            std::mem::forget(std::mem::take(&mut self.memory));
        }
    }
}

mod chores;
mod ending;
mod overdue;
#[cfg(test)]
mod tests;
