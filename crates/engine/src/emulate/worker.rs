//! One thread that reads whatever is needed next: takes streams, keeps reads in
//! flight, has what arrived parsed while it is in the processor's cache, and gives
//! streams back where they may not be read further.

mod blame;
mod digest;
mod straight;

use self::straight::Lanes;
use super::board::{add, Board, Counters, Outfit, ACCOUNT_NS};
use super::reading::{Opened, Reading, BLOCK};
use super::supply::Delays;
use super::uring::{Read, Ring, Slots};
use super::Shared;
use crate::arena::Mem;
use crate::clock;
use crate::driver::threads;
use crate::format::Damage;
use crate::gpu::cuda::Pinned;
use crate::path;
use crate::path::Copier;
use crate::queue::{Done, Fault, Io, Op, Queue, Via};
use crate::reactor::{Reactor, RingOptions};
use crate::source::Loan;
use crate::source::QueueNeeds;
use forebay_model::training::{Grant, Stream};
use forebay_model::{Error, Latency};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fs::File;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for anything, so that a stop is seen.
const LOOK: Duration = Duration::from_millis(100);
/// How long reads under way may take to come back when the run ends.
const GRACE: Duration = Duration::from_secs(2);
/// Streams that a worker reads side by side at most.
const STREAMS_MAX: usize = 16;

/// How reads are carried out.
enum Reads {
    /// By the worker itself: what is in memory.
    Inline,
    Ring(Ring),
    /// One address space that holds all files.
    Queue(Box<dyn Queue>),
}

/// A stream in this worker's hands.
struct Active {
    epoch: u32,
    rank: u32,
    lane: u32,
    file: u32,
    upto: u32,
    /// Of the file straight into a GPU. It goes before what it reads.
    straight: Option<Box<dyn Queue>>,
    reading: Reading,
    /// Bytes of the file that were asked for, and how far to go for what is wanted.
    pushed: u64,
    goal: u64,
    /// Slots in the order of their bytes.
    slots: VecDeque<u32>,
    /// Samples of the stream that were reported as whole.
    reported: u32,
    /// Of samples that are whole, when the last one became so.
    since: u64,
    seen: u32,
    stream: Stream,
    batch: u64,
    /// Slots on their way to the destination, in order.
    copying: VecDeque<u32>,
}

/// A read, until its bytes were parsed.
#[derive(Clone, Copy, Debug, Default)]
struct Flight {
    active: usize,
    /// Of the file; and how many bytes before those that are wanted a block begins.
    offset: u64,
    head: u32,
    want: u32,
    got: u32,
    began: u64,
    /// It may not be seen before; 0: it may.
    due: u64,
    landed: bool,
    errno: i32,
    /// Where its bytes stay, and the samples that are whole once they are there.
    to: Option<Mem>,
    copied: bool,
    whole: u32,
}

/// What a worker's latencies were.
#[derive(Default)]
pub struct Latencies {
    pub read: Latency,
    pub sample: Latency,
}

pub struct Worker {
    index: usize,
    shared: Arc<Shared>,
    // Field order is drop order: what points to the slots goes first.
    actives: Vec<Option<Active>>,
    lanes: Option<Lanes>,
    reads: Reads,
    reactor: Reactor,
    /// To the destination, one for each GPU.
    copiers: Vec<Box<dyn Copier>>,
    _pin: Option<Pinned>,
    /// The slots, as emulated drives have them mapped.
    _lent: Vec<Loan>,
    slots: Slots,
    delays: Delays,
    flights: Vec<Flight>,
    /// How bytes get here that pass the slots.
    via: Via,
    /// Why reads failed, in words, by tag.
    notes: Vec<(u32, Box<str>)>,
    in_flight: u32,
    latencies: Latencies,
    accounted: u64,
    done: Vec<Done>,
    copies: Vec<(u32, Option<Fault>)>,
    arrived: Vec<(u32, Result<u32, i32>)>,
}

impl Worker {
    pub fn open(index: usize, shared: Arc<Shared>) -> Result<Worker, Error> {
        threads::settle_in(shared.cpus.get(index % shared.cpus.len().max(1)).copied(), None)?;
        let how = &shared.how;
        let delays = Delays::new(&shared);
        // What is read inline is parsed before anything else is: one slot, which stays in the cache.
        let destination = shared.board.destination.as_ref();
        let feeds_gpu = destination.is_some_and(|to| to.feeds_gpu());
        let depth = if how.is_inline && !delays.any() && !feeds_gpu { 1 } else { how.depth };
        let needs = QueueNeeds { depth, io_bytes_max: how.io_bytes, then_copied: true };
        let options =
            RingOptions { depth: depth.saturating_mul(2), one_by_one: true, ..RingOptions::default() };
        let mut reactor = match how.is_inline || !how.has_ring {
            true => Reactor::without_ring(),
            false => Reactor::with_ring(options).map_err(|e| {
                Error::machine("io_uring", format!("the kernel refuses a ring: {e}"), "--engine inline")
            })?,
        };
        let drives = || shared.data.target().into_iter().flat_map(|target| target.drives());
        let slot_bytes = match path::of(shared.route.path).pins() {
            true => how.io_bytes as usize + 2 * BLOCK as usize,
            // Nothing goes through them.
            false => BLOCK as usize,
        };
        let mut slots = Slots::new(depth, slot_bytes, drives().next().is_some())?;
        let lent = shared.data.target().map_or(Ok(Vec::new()), |target| target.lend(slots.arena()))?;
        if reactor.has_ring() && shared.data.target().is_none() {
            // Where it is refused, each read pins its own pages.
            let _ = reactor.register_arena(slots.arena_mut());
        }
        let reads = match shared.data.target() {
            Some(target) => Reads::Queue(target.queue(needs, &mut reactor)?),
            None if how.is_inline || !how.has_ring => Reads::Inline,
            None => Reads::Ring(Ring::new(&mut reactor)),
        };
        let pin = destination.map_or(Ok(None), |to| to.pin(slots.arena()))?;
        let copiers = destination.map_or(Ok(Vec::new()), |to| to.copiers())?;
        let lanes = Lanes::open(&shared, slots.count(), &mut reactor)?;
        let via = if how.direct && !feeds_gpu { Via::Direct } else { Via::Staged };
        shared.board.set_waker(index, reactor.waker()?);
        shared.board.outfit.get_or_init(|| Outfit {
            pages: slots.pages(),
            slot_bytes: how.io_bytes * u64::from(depth),
            features: reactor.features().to_vec(),
        });
        Ok(Worker {
            index,
            reads,
            reactor,
            copiers,
            _pin: pin,
            copies: Vec::new(),
            _lent: lent,
            delays,
            flights: vec![Flight::default(); slots.count() as usize],
            actives: (0..STREAMS_MAX.min(slots.count() as usize)).map(|_| None).collect(),
            lanes,
            via,
            notes: Vec::new(),
            slots,
            in_flight: 0,
            latencies: Latencies::default(),
            accounted: 0,
            done: Vec::new(),
            arrived: Vec::new(),
            shared,
        })
    }

    /// Works until the run ends.
    pub fn run(mut self) -> Latencies {
        while !self.board().stop.load(Ordering::Relaxed) {
            let now = self.now();
            if self.board().is_due(now) {
                self.board().change(|s| s.advance(now));
            }
            let began = self.start();
            let landed = self.collect();
            let parsed = self.digest();
            if !(began || landed || parsed) {
                self.wait();
            }
        }
        self.close()
    }

    fn board(&self) -> &Board {
        &self.shared.board
    }

    fn now(&self) -> u64 {
        self.shared.since(clock::now())
    }

    fn counters(&self) -> &Counters {
        &self.shared.board.counters[self.index]
    }

    /// Takes streams and asks for bytes, as long as there are slots.
    fn start(&mut self) -> bool {
        let mut any = false;
        while self.slots.has_free() && !self.board().stop.load(Ordering::Relaxed) {
            if self.has_room() && self.board().has_work() && self.take() {
                any = true;
            }
            let Some(next) = self.next_to_push() else { break };
            self.push(next);
            any = true;
        }
        self.submit_straight();
        if let Reads::Queue(queue) = &mut self.reads {
            queue.submit(&mut self.reactor);
        } else if any {
            self.reactor.submit();
        }
        any
    }

    fn has_room(&self) -> bool {
        self.actives.iter().any(Option::is_none)
    }

    fn take(&mut self) -> bool {
        let Some(grant) = self.board().change(|s| s.take()) else { return false };
        let place = self.actives.iter().position(Option::is_none).expect("there is room");
        if let Some(active) = self.begin(grant) {
            self.actives[place] = Some(active);
        }
        true
    }

    /// Opens the stream's file, if it is new. None: nothing can be had of it, and that was dealt with.
    fn begin(&mut self, grant: Grant<Reading>) -> Option<Active> {
        let now = self.now();
        let Grant { epoch, rank, lane, stream, done, upto, work, is_new } = grant;
        let mut reading = work.unwrap_or_else(|| self.shared.reading());
        let number = stream.position + u64::from(done) * u64::from(stream.stride);
        if is_new {
            match self.open_file(stream.file, rank) {
                Ok(None) => reading.give_up(),
                Ok(Some(Opened { bytes: 0, .. })) => {
                    reading.give_up();
                    self.damaged(stream.file, &Damage::new(0, 0, "the file is empty"));
                }
                Ok(Some(opened)) => {
                    if let Err(damage) = reading.begin(stream, opened) {
                        reading.give_up();
                        self.damaged(stream.file, &damage);
                    }
                }
                Err(e) => {
                    reading.give_up();
                    self.unreadable(stream.file, &e);
                }
            }
        }
        let mut active = Active {
            epoch,
            rank,
            lane,
            file: stream.file,
            upto,
            straight: None,
            pushed: reading.at,
            goal: reading.goal(upto),
            reading,
            slots: VecDeque::new(),
            copying: VecDeque::new(),
            stream,
            reported: done,
            since: now,
            seen: done,
            batch: number / u64::from(self.shared.plan.batch),
        };
        if active.reading.is_dead {
            self.skip(&mut active);
            self.give_back(active);
            return None;
        }
        if !self.go_straight(&mut active) {
            active.reading.give_up();
            self.skip(&mut active);
            self.give_back(active);
            return None;
        }
        if active.pushed >= active.goal {
            // What an earlier read went beyond.
            let samples = active.reading.samples().min(active.upto);
            self.report(&mut active, samples, now);
            self.give_back(active);
            return None;
        }
        Some(active)
    }

    /// Of the streams that have bytes to ask for: the one whose batch is needed first, then the one with the fewest
    /// reads under way.
    fn next_to_push(&self) -> Option<usize> {
        let wants = |a: &Active| a.pushed < a.goal && !a.reading.is_dead;
        let all = self.actives.iter().enumerate().filter_map(|(i, a)| a.as_ref().map(|a| (i, a)));
        all.filter(|(_, a)| wants(a)).min_by_key(|(_, a)| (a.batch, a.slots.len())).map(|(i, _)| i)
    }

    fn push(&mut self, index: usize) {
        let Some(to) = self.place_for(index) else { return };
        let tag = self.slots.take().expect("a slot is free");
        let (io_bytes, began) = (self.shared.how.io_bytes, self.now());
        let active = self.actives[index].as_mut().expect("it was chosen");
        let (begins, left) = active.reading.place(active.pushed);
        let most = match &self.shared.straight {
            Some(straight) if to.is_some() => straight.io_bytes_max(begins).min(io_bytes),
            _ => io_bytes - begins % BLOCK,
        };
        let bytes = (active.goal - active.pushed).min(left).min(most) as u32;
        active.pushed += u64::from(bytes);
        active.slots.push_back(tag);
        // What goes straight begins anywhere.
        let align = if to.is_some() { 1 } else { u64::from(self.shared.how.align) };
        let head = (begins % align) as u32;
        let (offset, want) = (begins - u64::from(head), head + bytes);
        let at = active.reading.base + offset;
        let due = if self.delays.any() { self.delays.of(&self.shared, began, at, want) } else { 0 };
        self.flights[tag as usize] =
            Flight { active: index, offset, head, want, began, due, to, ..Flight::default() };
        self.in_flight += 1;
        self.notes.retain(|(of, _)| *of != tag);
        self.issue(tag);
    }

    /// Hands over a read, or what a short one left of it.
    fn issue(&mut self, tag: u32) {
        let flight = self.flights[tag as usize];
        let active = self.actives[flight.active].as_mut().expect("its stream is read");
        let (offset, at) = (flight.offset + u64::from(flight.got), flight.got as usize);
        let left = flight.want - flight.got;
        if let Some(queue) = &mut active.straight {
            let mem = flight.to.expect("it has a place on the GPU").after(at);
            let io = Io { tag, op: Op::Read, offset, len: left, mem };
            if queue.push(io, &mut self.reactor).is_err() {
                self.arrived.push((tag, Err(libc::EAGAIN)));
            }
            return;
        }
        match &mut self.reads {
            Reads::Inline => {
                let file = active.reading.file.as_ref().expect("a file that is read is open");
                let ask = self.shared.how.ask(left);
                let result = pread(file, &mut self.slots.bytes_mut(tag)[at..at + ask as usize], offset);
                let now = self.now();
                add(&self.counters().read_ns, now.saturating_sub(flight.began));
                self.arrived.push((tag, result));
            }
            Reads::Ring(ring) => {
                let file = active.reading.file.clone().expect("a file that is read is open");
                let ask = self.shared.how.ask(left);
                let read = Read { offset, at, len: ask };
                ring.push(&mut self.reactor, &mut self.slots, tag, &file, read);
            }
            Reads::Queue(queue) => {
                let align = queue.geometry().align.max(1);
                let len = left.next_multiple_of(align);
                let mem = self.slots.lend(tag).after(at);
                let io = Io { tag, op: Op::Read, offset: active.reading.base + offset, len, mem };
                if queue.push(io, &mut self.reactor).is_err() {
                    self.slots.is_back(tag);
                    self.arrived.push((tag, Err(libc::EAGAIN)));
                }
            }
        }
    }

    /// Takes what arrived, and lets through what is due.
    fn collect(&mut self) -> bool {
        match &mut self.reads {
            Reads::Inline => {}
            Reads::Ring(ring) => {
                let arrived = &mut self.arrived;
                ring.reap(&mut self.reactor, &mut self.slots, |tag, result| arrived.push((tag, result)));
            }
            Reads::Queue(queue) => {
                queue.reap(&mut self.reactor, &mut self.done);
                for done in self.done.drain(..) {
                    self.slots.is_back(done.tag);
                    self.arrived.push((done.tag, done.result.map_err(|fault: Fault| fault.errno)));
                }
            }
        }
        self.reap_straight();
        let mut any = false;
        let mut arrived = std::mem::take(&mut self.arrived);
        for (tag, result) in arrived.drain(..) {
            any |= self.arrive(tag, result);
        }
        if self.arrived.is_empty() {
            self.arrived = arrived;
        }
        if self.delays.any() {
            let now = self.now();
            while let Some(tag) = self.delays.next(now) {
                self.flights[tag as usize].landed = true;
                any = true;
            }
        }
        any
    }

    /// Sleeps until something lands, is due or is to be read.
    fn wait(&mut self) {
        let could_begin = self.slots.has_free() && self.has_room();
        let Some(keeps) = self.board().rest(self.index, could_begin) else { return };
        let now = clock::now();
        let mut until = now + LOOK;
        let instant = |ns: u64| self.shared.begin + Duration::from_nanos(ns);
        if let Some(due) = self.board().due().filter(|_| keeps) {
            until = until.min(instant(due));
        }
        if let Some(due) = self.delays.due() {
            until = until.min(instant(due));
        }
        for due in self.copiers.iter().filter_map(|copier| copier.next_due()) {
            until = until.min(due);
        }
        for due in self.straight_queues().filter_map(|queue| queue.next_due()) {
            until = until.min(due);
        }
        if let Reads::Queue(queue) = &self.reads {
            until = queue.next_due().map_or(until, |due| until.min(due));
        }
        if until > now && !self.board().stop.load(Ordering::Relaxed) {
            self.reactor.wait(1, until, Duration::ZERO);
        } else {
            self.reactor.flush();
        }
        self.board().rise(self.index);
        let slept = clock::now().duration_since(now).as_nanos() as u64;
        let counters = self.counters();
        add(if self.in_flight > 0 { &counters.waited_ns } else { &counters.idle_ns }, slept);
        let now = self.now();
        if now - self.accounted >= ACCOUNT_NS {
            self.account(now);
        }
    }

    /// Writes down how long this thread was on a processor, and how long it waited for one.
    fn account(&mut self, now: u64) {
        self.accounted = now;
        let Ok(text) = std::fs::read_to_string("/proc/thread-self/schedstat") else { return };
        let mut words = text.split_ascii_whitespace().filter_map(|w| w.parse::<u64>().ok());
        if let (Some(cpu), Some(queued)) = (words.next(), words.next()) {
            let counters = self.counters();
            counters.cpu_ns.store(cpu, Ordering::Relaxed);
            counters.queued_ns.store(queued, Ordering::Relaxed);
        }
    }

    /// Waits for what the kernel still writes to; memory that it won't let go of is left to it.
    fn close(mut self) -> Latencies {
        // Copies end before the slots go.
        self.copiers.iter_mut().for_each(|copier| copier.finish());
        self.copiers.iter_mut().for_each(|copier| copier.reap(&mut self.copies));
        for (tag, fault) in std::mem::take(&mut self.copies) {
            self.end_copy(tag, fault);
        }
        let until = clock::now() + GRACE;
        self.abandon_straight();
        for tag in 0..self.slots.count() {
            match &mut self.reads {
                Reads::Inline => {}
                Reads::Ring(ring) => ring.cancel(&mut self.reactor, tag),
                Reads::Queue(queue) if queue.in_flight() > 0 && self.slots.is_lent(tag) => {
                    queue.abandon(tag, &mut self.reactor)
                }
                Reads::Queue(_) => {}
            }
        }
        while (self.slots.any_lent() || self.is_straight_busy()) && clock::now() < until {
            self.submit_straight();
            self.reactor.wait(1, clock::now() + Duration::from_millis(5), Duration::ZERO);
            self.reap_straight();
            match &mut self.reads {
                Reads::Inline => {}
                Reads::Ring(ring) => ring.reap(&mut self.reactor, &mut self.slots, |_, _| {}),
                Reads::Queue(queue) => {
                    queue.reap(&mut self.reactor, &mut self.done);
                    self.done.drain(..).for_each(|done| self.slots.is_back(done.tag));
                }
            }
        }
        let now = self.now();
        self.account(now);
        let latencies = std::mem::take(&mut self.latencies);
        if self.slots.any_lent() || self.is_straight_busy() {
            std::mem::forget(self);
        } else if let Reads::Queue(queue) = &mut self.reads {
            queue.close(&mut self.reactor);
        }
        latencies
    }
}

fn pread(file: &File, into: &mut [u8], offset: u64) -> Result<u32, i32> {
    loop {
        match rustix::io::pread(file, &mut *into, offset) {
            Ok(got) => return Ok(got as u32),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.raw_os_error()),
        }
    }
}
