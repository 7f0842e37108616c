//! One thread, with some of the ranks: keeps the I/Os of each in flight, a slot's turn going from rank to rank, and says
//! when each rank was done.

use super::file::{OpenFile, Span};
use super::flow::Flow;
use super::ground::{places, Made};
use super::kit::Kit;
use super::Way;
use crate::arena::Mem;
use crate::clock;
use crate::driver::free::FreeSlots;
use crate::driver::tally::Tally;
use crate::driver::verify::{Chore, Ended, Part};
use crate::driver::worker::Shared;
use crate::queue::{Done, Fault, Full, Io, Op};
use forebay_model::checkpoint::CheckpointSpec;
use forebay_model::pattern::Next;
use forebay_model::{Error, Latency};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often time-outs and a stop are looked for while nothing completes.
const LOOK: Duration = Duration::from_millis(100);
/// How long an abandoned I/O may take to come back before its memory is left to the kernel.
const GRACE: Duration = Duration::from_secs(2);

/// What is to be done, by all workers at once.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    pub way: Way,
    pub step: u32,
    pub seed: u64,
    pub begin: Instant,
}

/// What all workers count together, for whoever looks on.
#[derive(Default)]
pub struct Moved {
    pub bytes: AtomicU64,
    pub ios: AtomicU64,
}

/// What came of an order at one worker.
pub struct Report {
    pub tally: Tally,
    /// Ranks that were done, and when.
    pub ranks: Vec<(u64, f64)>,
    pub fsync: Latency,
    pub made: Vec<Made>,
    pub failed: Option<Error>,
    /// All its ranks were done.
    pub is_whole: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Doing {
    Nothing,
    Io,
    Flush,
    /// Its content is being made or checked by the GPU.
    Chore,
}

#[derive(Clone, Copy)]
struct Slot {
    mem: Mem,
    file: usize,
    span: Span,
    moved: u32,
    started: Instant,
    issued: Instant,
    doing: Doing,
    abandoned: bool,
}

pub struct Worker {
    // Field order is drop order: queues of open files go before the kit's ring.
    files: Vec<Option<OpenFile>>,
    kit: Kit,
    index: u32,
    shared: Arc<Shared>,
    spec: Arc<CheckpointSpec>,
    moved: Arc<Moved>,
    ranks: Vec<u64>,
    order: Order,
    flows: Vec<Flow>,
    /// The flow that is served next.
    turn: usize,
    slots: Vec<Slot>,
    free: FreeSlots,
    /// Files that wait for a slot to be flushed with.
    to_flush: Vec<usize>,
    again: Vec<u32>,
    in_flight: u32,
    next_look: Instant,
    done: Vec<Done>,
    ended: Vec<Ended>,
    report: Report,
}

impl Worker {
    pub fn new(
        kit: Kit,
        index: u32,
        shared: Arc<Shared>,
        spec: Arc<CheckpointSpec>,
        moved: Arc<Moved>,
        ranks: Vec<u64>,
    ) -> Worker {
        let now = clock::now();
        let depth = shared.job.depth;
        let span = Span { offset: 0, len: 0, io_len: 0 };
        let slot = |n: usize| Slot {
            mem: kit.slot(n),
            file: 0,
            span,
            moved: 0,
            started: now,
            issued: now,
            doing: Doing::Nothing,
            abandoned: false,
        };
        Worker {
            slots: (0..depth as usize).map(slot).collect(),
            free: FreeSlots::new(depth, shared.destination.feeds_gpu()),
            files: Vec::new(),
            kit,
            index,
            shared,
            spec,
            moved,
            ranks,
            order: Order { way: Way::Write, step: 0, seed: 0, begin: now },
            flows: Vec::new(),
            turn: 0,
            to_flush: Vec::new(),
            again: Vec::new(),
            in_flight: 0,
            next_look: now,
            done: Vec::with_capacity(depth as usize),
            ended: Vec::new(),
            report: Report::new(index),
        }
    }

    /// Carries out an order to its end, or to the first failure anywhere.
    pub fn carry_out(&mut self, order: Order) -> Report {
        self.order = order;
        self.report = Report::new(self.index);
        self.report.tally.measures(true);
        self.flows = self.ranks.iter().map(|rank| self.flow_of(*rank)).collect();
        (0..self.flows.len()).for_each(|flow| self.look_whether_through(flow));
        while !self.is_over() {
            let now = clock::now();
            if now >= self.next_look {
                self.next_look = now + LOOK;
                self.abandon_overdue(now);
            }
            self.settle_chores();
            self.start();
            self.collect();
            if self.done.is_empty() && self.in_flight > 0 {
                self.wait(now);
                self.collect();
            } else {
                self.kit.reactor().submit();
            }
            self.settle();
        }
        self.put_away()
    }

    fn flow_of(&self, rank: u64) -> Flow {
        let of = if self.order.way == Way::Read { self.spec.reads_as(rank) } else { rank };
        Flow::new(rank, places(&self.spec, self.order.step, of))
    }

    fn is_stopping(&self) -> bool {
        self.shared.stop.load(Ordering::Relaxed)
    }

    fn is_over(&self) -> bool {
        self.in_flight == 0 && (self.is_stopping() || self.flows.iter().all(|f| f.ended.is_some()))
    }

    /// Closes what is open still, and takes stock.
    fn put_away(&mut self) -> Report {
        for file in std::mem::take(&mut self.files).into_iter().flatten() {
            file.close(&mut self.kit);
        }
        self.to_flush.clear();
        self.again.clear();
        let mut report = std::mem::replace(&mut self.report, Report::new(self.index));
        report.is_whole = self.flows.iter().all(|f| f.ended.is_some()) && report.failed.is_none();
        report.ranks = self.flows.iter().filter_map(|f| f.ended.map(|e| (f.rank, e.as_secs_f64()))).collect();
        let took = self.order.begin.elapsed();
        report.tally.ended = took;
        report.tally.snapshot(took, false, false);
        report
    }

    fn start(&mut self) {
        for tag in std::mem::take(&mut self.again) {
            self.push(tag);
        }
        if self.is_stopping() {
            return self.submit();
        }
        while let Some(file) = self.to_flush.last().copied() {
            let Some(tag) = self.free.take() else { break };
            self.to_flush.pop();
            self.flush(tag, file);
        }
        let mut idle = 0;
        while idle < self.flows.len() && !self.free.is_empty() && !self.is_stopping() {
            let flow = self.turn % self.flows.len();
            self.turn = flow + 1;
            if self.start_one(flow) {
                idle = 0;
            } else {
                idle += 1;
            }
        }
        self.submit();
    }

    fn submit(&mut self) {
        for file in self.files.iter_mut().flatten().filter(|f| f.is_busy) {
            file.queue.submit(self.kit.reactor());
        }
        self.kit.contents.submit();
    }

    /// False where the rank has as much in flight as it may, or nothing left to start.
    fn start_one(&mut self, flow: usize) -> bool {
        if self.flows[flow].in_flight >= self.spec.depth {
            return false;
        }
        let Some(at) = self.current(flow) else { return false };
        let Some(file) = &mut self.files[at] else { return false };
        let Some(span) = file.take(self.spec.io_bytes) else { return false };
        if file.is_all_asked_for() {
            self.flows[flow].current = None;
        }
        let Some(tag) = self.free.take() else { return false };
        self.take_slot(tag, at, span, Doing::Io);
        match self.order.way {
            Way::Write if self.spec.verify => self.fill(tag),
            _ => self.push(tag),
        }
        true
    }

    /// The file that the rank is at, opened if it is the next.
    fn current(&mut self, flow: usize) -> Option<usize> {
        if let Some(at) = self.flows[flow].current {
            return Some(at);
        }
        let place = self.flows[flow].waiting.pop_front()?;
        let (way, made) = (self.order.way, &mut self.report.made);
        let file = match OpenFile::open(&self.spec, place, flow, way, &mut self.kit, made) {
            Ok(file) => file,
            Err(e) => {
                self.fail(e);
                return None;
            }
        };
        let at = self.files.iter().position(Option::is_none).unwrap_or(self.files.len());
        if at == self.files.len() {
            self.files.push(None);
        }
        self.files[at] = Some(file);
        self.flows[flow].current = Some(at);
        self.flows[flow].open += 1;
        Some(at)
    }

    fn take_slot(&mut self, tag: u32, at: usize, span: Span, doing: Doing) {
        let now = clock::now();
        let slot = &mut self.slots[tag as usize];
        *slot = Slot {
            mem: slot.mem,
            file: at,
            span,
            moved: 0,
            started: now,
            issued: now,
            doing,
            abandoned: false,
        };
        self.in_flight += 1;
        if let Some(file) = &mut self.files[at] {
            file.in_flight += 1;
            self.flows[file.flow].in_flight += 1;
        }
    }

    fn part_of(&self, slot: &Slot) -> Part {
        let file = self.files[slot.file].as_ref().map_or(0, |f| f.id);
        let (span, write) = (slot.span, self.order.way == Way::Write);
        Part {
            seed: self.order.seed,
            file,
            offset: span.offset,
            len: if write { span.io_len } else { span.len },
        }
    }

    /// Makes the content of a write, which goes on from there.
    fn fill(&mut self, tag: u32) {
        let slot = self.slots[tag as usize];
        let part = self.part_of(&slot);
        if self.kit.contents.is_on_gpu(slot.mem) {
            self.slots[tag as usize].doing = Doing::Chore;
            return self.kit.contents.start(tag, Chore::Fill, slot.mem, part);
        }
        match self.kit.contents.fill(slot.mem, part) {
            Ok(()) => self.push(tag),
            Err(why) => self.io_failed(tag, &Fault::note(libc::EIO, why)),
        }
    }

    fn settle_chores(&mut self) {
        let mut ended = std::mem::take(&mut self.ended);
        self.kit.contents.reap(&mut ended);
        for Ended { tag, chore, result } in ended.drain(..) {
            let slot = self.slots[tag as usize];
            match (chore, result) {
                _ if slot.doing == Doing::Nothing => self.found_again(tag),
                (Chore::Check, result) => self.verified(tag, result),
                (Chore::Fill, Ok(())) => {
                    self.slots[tag as usize].doing = Doing::Io;
                    self.push(tag);
                }
                (Chore::Fill, Err(why)) => self.io_failed(tag, &Fault::note(libc::EIO, why)),
            }
        }
        self.ended = ended;
    }

    /// Hands the slot's I/O, or what a short one left of it, to its file's queue.
    fn push(&mut self, tag: u32) {
        let slot = self.slots[tag as usize];
        let Some(file) = &mut self.files[slot.file] else { return };
        let op = match (slot.doing, self.order.way) {
            (Doing::Flush, _) => Op::Flush,
            (_, Way::Write) => Op::Write { durable: false },
            (_, Way::Read) => Op::Read,
        };
        let io = Io {
            tag,
            op,
            offset: slot.span.offset + u64::from(slot.moved),
            len: slot.span.io_len - slot.moved,
            mem: slot.mem.after(slot.moved as usize),
        };
        file.is_busy = true;
        if let Err(Full(_)) = file.queue.push(io, self.kit.reactor()) {
            self.again.push(tag);
        }
    }

    fn flush(&mut self, tag: u32, at: usize) {
        let Some(file) = &mut self.files[at] else { return };
        file.flushes();
        self.take_slot(tag, at, Span { offset: 0, len: 0, io_len: 0 }, Doing::Flush);
        self.push(tag);
    }

    fn collect(&mut self) {
        for file in self.files.iter_mut().flatten().filter(|f| f.is_busy) {
            file.queue.reap(self.kit.reactor(), &mut self.done);
            file.is_busy = file.in_flight > 0;
        }
    }

    fn wait(&mut self, now: Instant) {
        let dues = self.files.iter().flatten().filter(|f| f.is_busy).filter_map(|f| f.queue.next_due());
        let until = dues.chain(self.kit.contents.next_due()).fold(self.next_look, Instant::min);
        if until > now {
            self.kit.reactor().wait(1, until, Duration::ZERO);
        } else {
            self.kit.reactor().flush();
        }
    }

    fn settle(&mut self) {
        let mut done = std::mem::take(&mut self.done);
        let now = clock::now();
        for d in done.drain(..) {
            self.settle_one(d, now);
        }
        self.done = done;
    }

    fn settle_one(&mut self, d: Done, now: Instant) {
        let slot = self.slots[d.tag as usize];
        if slot.doing == Doing::Nothing {
            return self.found_again(d.tag);
        }
        let wanted = if self.order.way == Way::Read { slot.span.len } else { slot.span.io_len };
        let left = wanted.saturating_sub(slot.moved);
        match d.result {
            Ok(_) if slot.doing == Doing::Flush => {
                self.report.fsync.record(now.duration_since(slot.started).as_nanos() as u64);
                self.release(d.tag);
            }
            Ok(moved) if moved >= left => {
                let at = Next {
                    target: 0,
                    offset: slot.span.offset,
                    len: slot.span.len,
                    is_read: self.order.way == Way::Read,
                    pass: 0,
                };
                self.report.tally.complete(&at, now.duration_since(slot.started), d.via, d.copy_ns);
                self.moved.bytes.fetch_add(u64::from(slot.span.len), Ordering::Relaxed);
                self.moved.ios.fetch_add(1, Ordering::Relaxed);
                if self.order.way == Way::Read && self.spec.verify {
                    self.check(d.tag);
                } else {
                    self.release(d.tag);
                }
            }
            Ok(0) => self.io_failed(
                d.tag,
                &Fault::note(libc::EIO, "the data ended early: the file is shorter than it was written"),
            ),
            Ok(moved) => {
                self.slots[d.tag as usize].moved += moved;
                self.report.tally.errors.short += 1;
                self.again.push(d.tag);
            }
            Err(_) if slot.abandoned => self.release(d.tag),
            Err(fault) if matches!(fault.errno, libc::EAGAIN | libc::EINTR) => {
                self.report.tally.errors.retried += 1;
                self.again.push(d.tag);
            }
            Err(fault) => self.io_failed(d.tag, &fault),
        }
    }

    fn check(&mut self, tag: u32) {
        let slot = self.slots[tag as usize];
        let part = self.part_of(&slot);
        if self.kit.contents.is_on_gpu(slot.mem) {
            self.slots[tag as usize].doing = Doing::Chore;
            self.slots[tag as usize].issued = clock::now();
            return self.kit.contents.start(tag, Chore::Check, slot.mem, part);
        }
        let result = self.kit.contents.check(slot.mem, part);
        self.verified(tag, result);
    }

    fn verified(&mut self, tag: u32, result: Result<(), String>) {
        let len = self.slots[tag as usize].span.len;
        match result {
            Ok(()) => self.report.tally.verified_bytes += u64::from(len),
            Err(why) => {
                self.report.tally.errors.verify_failed += 1;
                self.report.tally.example(why);
            }
        }
        self.release(tag);
    }

    /// The slot is free again; what its file does next.
    fn release(&mut self, tag: u32) {
        let slot = &mut self.slots[tag as usize];
        let (at, was) = (slot.file, slot.doing);
        slot.doing = Doing::Nothing;
        self.free.give(tag);
        self.in_flight -= 1;
        let Some(file) = &mut self.files[at] else { return };
        file.in_flight -= 1;
        file.is_flushed |= was == Doing::Flush;
        let flow = file.flow;
        self.flows[flow].in_flight -= 1;
        if !self.is_stopping() {
            self.go_on_with(at, flow);
        }
    }

    /// A file whose bytes are all there is flushed, then closed.
    fn go_on_with(&mut self, at: usize, flow: usize) {
        let Some(file) = &self.files[at] else { return };
        if !file.is_moved() {
            return;
        }
        let flushes = self.order.way == Way::Write && self.spec.fsync;
        if flushes && !file.is_flushed {
            if file.flush_from.is_none() && !self.to_flush.contains(&at) {
                match file.cut() {
                    Ok(()) => self.to_flush.push(at),
                    Err(e) => self.fail(e),
                }
            }
            return;
        }
        if !flushes {
            if let Err(e) = file.cut() {
                return self.fail(e);
            }
        }
        if let Some(file) = self.files[at].take() {
            file.close(&mut self.kit);
        }
        self.flows[flow].open -= 1;
        self.look_whether_through(flow);
    }

    fn look_whether_through(&mut self, flow: usize) {
        let flow = &mut self.flows[flow];
        if flow.is_through() && flow.ended.is_none() {
            flow.ended = Some(self.order.begin.elapsed());
        }
    }

    /// Given up on, and here after all: its memory is ours again.
    fn found_again(&mut self, tag: u32) {
        self.report.tally.lost = self.report.tally.lost.saturating_sub(1);
        self.free.give(tag);
    }

    fn name(&self, slot: &Slot) -> String {
        let what = match (slot.doing, self.order.way) {
            (Doing::Flush, _) => "flush".into(),
            (_, Way::Write) => format!("write of {} bytes at {}", slot.span.io_len, slot.span.offset),
            (_, Way::Read) => format!("read of {} bytes at {}", slot.span.len, slot.span.offset),
        };
        match &self.files[slot.file] {
            Some(file) => {
                format!("{what} of {} by rank {}", file.place.path.display(), self.flows[file.flow].rank)
            }
            None => what,
        }
    }

    fn io_failed(&mut self, tag: u32, fault: &Fault) {
        let slot = self.slots[tag as usize];
        let errors = &mut self.report.tally.errors;
        errors.failed += 1;
        if fault.errno == libc::EINVAL {
            errors.misaligned += 1;
        }
        let name = self.name(&slot);
        self.report.tally.example(format!("{name}: {fault}"));
        let next = match fault.errno {
            libc::ENOSPC | libc::EDQUOT => "df -h; a smaller --scale, fewer --writes, or another --dir",
            _ => "dmesg | tail; forebay doctor",
        };
        self.fail(Error::run(name, fault.to_string(), next));
        self.release(tag);
    }

    /// The first failure is what the run ends with; all workers stop.
    fn fail(&mut self, e: Error) {
        self.report.failed.get_or_insert(e);
        self.shared.stop.store(true, Ordering::Relaxed);
    }

    /// Names I/Os that took longer than the time-out, and asks for their slots back; one that isn't given back either
    /// is left to the kernel, memory and all.
    fn abandon_overdue(&mut self, now: Instant) {
        let timeout = Duration::from_secs_f64(self.spec.timeout_s);
        for tag in 0..self.slots.len() as u32 {
            let slot = self.slots[tag as usize];
            let age = now.saturating_duration_since(slot.issued);
            if slot.doing == Doing::Nothing || age <= timeout {
                continue;
            }
            if !slot.abandoned {
                self.slots[tag as usize].abandoned = true;
                self.report.tally.errors.timed_out += 1;
                let name = self.name(&slot);
                let found = format!("unfinished after --timeout {} s", self.spec.timeout_s);
                self.report.tally.example(format!("{name}: {found}"));
                self.fail(Error::run(name, found, "dmesg | tail; a longer --timeout"));
                if let Some(file) = self.files[slot.file].as_mut().filter(|_| slot.doing != Doing::Chore) {
                    file.queue.abandon(tag, self.kit.reactor());
                }
            } else if let Some(at) = self.again.iter().position(|t| *t == tag) {
                // No queue has it.
                self.again.swap_remove(at);
                self.release(tag);
            } else if age > timeout + GRACE {
                self.report.tally.lost += 1;
                self.in_flight -= 1;
                self.slots[tag as usize].doing = Doing::Nothing;
            }
        }
    }
}

impl Report {
    fn new(worker: u32) -> Report {
        Report {
            tally: Tally::new(worker, None, 1),
            ranks: Vec::new(),
            fsync: Latency::default(),
            made: Vec::new(),
            failed: None,
            is_whole: false,
        }
    }
}
