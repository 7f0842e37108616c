//! One thread, with some of the ranks: keeps the I/Os of each in flight, a slot's turn going from rank to rank, and says
//! when each rank was done.

mod overdue;

use super::checkpoint_dir::{access, places, refused};
use super::flow::Flow;
use crate::opened::file::{CreatedFile, OpenFile, Span};
use crate::opened::resources::WorkerResources;
use crate::opened::Direction;
use forebay_bench::{Shared, Tally, VerifyEnded, VerifyPart, VerifyTask};
use forebay_io::{
    monotonic_now, Client, ClientCompletion, CompletionEnd, Fault, InFlight, LateIo, Op, Submission,
};
use forebay_model::checkpoint::CheckpointSpec;
use forebay_model::pattern::Next;
use forebay_model::{Error, Latency};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Interval at which time-outs and a stop are checked while nothing completes.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Task of all workers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Task {
    pub way: Direction,
    pub step: u32,
    pub seed: u64,
    pub begin: Instant,
}

/// Counters of all workers together, for observers.
#[derive(Default)]
pub(crate) struct Moved {
    pub bytes: AtomicU64,
    pub ios: AtomicU64,
}

/// The outcome of a task at one worker.
pub(crate) struct Report {
    pub tally: Tally,
    /// Ranks that were done, and when.
    pub ranks: Vec<(u64, f64)>,
    pub fsync: Latency,
    pub made: Vec<CreatedFile>,
    pub failed: Option<Error>,
    /// All its ranks were done.
    pub is_whole: bool,
}

/// Transfer of one I/O: a part of a file, or nothing where it flushes one.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    file: usize,
    span: Span,
    started: Instant,
}

impl Part {
    pub(crate) fn nothing(now: Instant) -> Part {
        Part { file: 0, span: Span { offset: 0, len: 0, io_len: 0 }, started: now }
    }
}

pub(crate) struct Worker {
    files: Vec<Option<OpenFile>>,
    resources: WorkerResources<Part>,
    index: u32,
    shared: Arc<Shared>,
    spec: Arc<CheckpointSpec>,
    moved: Arc<Moved>,
    ranks: Vec<u64>,
    task: Task,
    flows: Vec<Flow>,
    /// The flow that is served next.
    turn: usize,
    /// Files that wait for a slot to be flushed with.
    to_flush: Vec<usize>,
    /// I/Os that have begun and aren't over.
    in_flight: u32,
    next_look: Instant,
    late: Vec<(u32, LateIo)>,
    ended: Vec<VerifyEnded>,
    report: Report,
}

impl Worker {
    pub(crate) fn new(
        resources: WorkerResources<Part>,
        index: u32,
        shared: Arc<Shared>,
        spec: Arc<CheckpointSpec>,
        moved: Arc<Moved>,
        ranks: Vec<u64>,
    ) -> Worker {
        let now = monotonic_now();
        Worker {
            files: Vec::new(),
            resources,
            index,
            shared,
            spec,
            moved,
            ranks,
            task: Task { way: Direction::Write, step: 0, seed: 0, begin: now },
            flows: Vec::new(),
            turn: 0,
            to_flush: Vec::new(),
            in_flight: 0,
            next_look: now,
            late: Vec::new(),
            ended: Vec::new(),
            report: Report::new(index),
        }
    }

    /// Carries out a task to its end, or to the first failure anywhere.
    pub(crate) fn carry_out(&mut self, task: Task) -> Report {
        self.task = task;
        self.report = Report::new(self.index);
        self.report.tally.measures(true);
        self.flows = self.ranks.iter().map(|rank| self.flow_of(*rank)).collect();
        (0..self.flows.len()).for_each(|flow| self.look_whether_through(flow));
        while !self.is_over() {
            let now = monotonic_now();
            if now >= self.next_look {
                self.next_look = now + POLL_INTERVAL;
                self.abandon_overdue(now);
            }
            self.complete_chores();
            self.start();
            self.resources.collect();
            if !self.resources.client.has_done() && self.in_flight > 0 {
                self.wait(now);
                self.resources.collect();
            } else {
                self.resources.reactor.submit();
            }
            self.complete();
            if let Some(why) = self.resources.reactor.refused() {
                self.give_up_all(&why);
            }
        }
        self.put_away()
    }

    fn flow_of(&self, rank: u64) -> Flow {
        let of = if self.task.way == Direction::Read { self.spec.reads_as(rank) } else { rank };
        Flow::new(rank, places(&self.spec, self.task.step, of))
    }

    fn is_stopping(&self) -> bool {
        self.shared.stop.load(Ordering::Relaxed)
    }

    fn is_over(&self) -> bool {
        self.in_flight == 0 && (self.is_stopping() || self.flows.iter().all(|f| f.ended.is_some()))
    }

    /// Closes the files that are still open, and reports.
    fn put_away(&mut self) -> Report {
        for file in std::mem::take(&mut self.files).into_iter().flatten() {
            file.close(&mut self.resources);
        }
        self.to_flush.clear();
        let mut report = std::mem::replace(&mut self.report, Report::new(self.index));
        report.is_whole = self.flows.iter().all(|f| f.ended.is_some()) && report.failed.is_none();
        report.ranks = self.flows.iter().filter_map(|f| f.ended.map(|e| (f.rank, e.as_secs_f64()))).collect();
        let took = self.task.begin.elapsed();
        report.tally.ended = took;
        let Client { short, retried, .. } = &mut self.resources.client;
        report.tally.errors.short = std::mem::take(short);
        report.tally.errors.retried = std::mem::take(retried);
        report.tally.lost = self.resources.client.lost();
        report.tally.snapshot(took, false, false);
        report
    }

    fn start(&mut self) {
        self.resources.client.push_again(&mut self.resources.reactor);
        if self.is_stopping() {
            return self.submit();
        }
        while let Some(file) = self.to_flush.last().copied().filter(|_| self.resources.client.has_free()) {
            self.to_flush.pop();
            self.flush(file);
        }
        let mut idle = 0;
        while idle < self.flows.len() && self.resources.client.has_free() && !self.is_stopping() {
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
        self.resources.client.submit(&mut self.resources.reactor);
        self.resources.contents.submit();
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
        let op = match self.task.way {
            Direction::Write => Op::Write { durable: false },
            Direction::Read => Op::Read,
        };
        let Some(tag) = self.begin(at, op, span) else { return false };
        match self.task.way {
            Direction::Write if self.spec.verify => self.fill(tag),
            _ => self.resources.push(tag),
        }
        true
    }

    /// The rank's current file; opens the next one if there is none.
    fn current(&mut self, flow: usize) -> Option<usize> {
        if let Some(at) = self.flows[flow].current {
            return Some(at);
        }
        let place = self.flows[flow].waiting.pop_front()?;
        let access = access(&self.spec, self.task.way == Direction::Write);
        let file = match OpenFile::open(access, place, flow, &mut self.resources, &mut self.report.made) {
            Ok(file) => file,
            Err(why) => {
                self.fail(refused(why));
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

    fn begin(&mut self, at: usize, op: Op, span: Span) -> Option<u32> {
        let (now, queue) = (monotonic_now(), self.files[at].as_ref()?.queue);
        let want = if op == Op::Read { span.len } else { span.io_len };
        let owner = Part { file: at, span, started: now };
        let asked = Submission { queue, op, offset: span.offset, len: span.io_len, want, owner };
        let tag = self.resources.client.begin(asked, now)?;
        self.in_flight += 1;
        if let Some(file) = &mut self.files[at] {
            file.in_flight += 1;
            self.flows[file.flow].in_flight += 1;
        }
        Some(tag)
    }

    fn content_of(&self, part: Part) -> VerifyPart {
        let file = self.files[part.file].as_ref().map_or(0, |f| f.id);
        let (span, write) = (part.span, self.task.way == Direction::Write);
        let len = if write { span.io_len } else { span.len };
        VerifyPart { seed: self.task.seed, file, offset: span.offset, len }
    }

    /// Makes the content of a write, which goes on from there.
    fn fill(&mut self, tag: u32) {
        let InFlight { submission, mem, .. } = *self.resources.client.io(tag);
        let part = self.content_of(submission.owner);
        if self.resources.contents.is_on_gpu(mem) {
            self.resources.client.hold(tag);
            return self.resources.contents.start(tag, VerifyTask::Fill, mem, part);
        }
        match self.resources.contents.fill(mem, part) {
            Ok(()) => self.resources.push(tag),
            Err(why) => self.io_failed(tag, &Fault::note(libc::EIO, why)),
        }
    }

    fn complete_chores(&mut self) {
        let mut ended = std::mem::take(&mut self.ended);
        self.resources.contents.reap(&mut ended);
        for VerifyEnded { tag, task, result } in ended.drain(..) {
            if !self.resources.client.unhold(tag) {
                continue;
            }
            match (task, result) {
                (VerifyTask::Check, result) => self.verified(tag, result),
                (VerifyTask::Fill, Ok(())) => self.resources.push(tag),
                (VerifyTask::Fill, Err(why)) => self.io_failed(tag, &Fault::note(libc::EIO, why)),
            }
        }
        self.ended = ended;
    }

    fn flush(&mut self, at: usize) {
        let Some(file) = &mut self.files[at] else { return };
        file.flushes();
        if let Some(tag) = self.begin(at, Op::Flush, Span { offset: 0, len: 0, io_len: 0 }) {
            self.resources.push(tag);
        }
    }

    fn wait(&mut self, now: Instant) {
        let dues = self.resources.client.next_due().into_iter().chain(self.resources.contents.next_due());
        let until = dues.fold(self.next_look, Instant::min);
        if until > now {
            self.resources.reactor.wait(1, until, Duration::ZERO);
        } else {
            self.resources.reactor.flush();
        }
    }

    fn complete(&mut self) {
        let now = monotonic_now();
        let mut done = self.resources.client.take_done();
        for d in done.drain(..) {
            if let Some(over) = self.resources.client.complete(d) {
                self.complete_one(over, now);
            }
        }
        self.resources.client.spare(done);
    }

    fn complete_one(&mut self, over: ClientCompletion, now: Instant) {
        let (tag, Submission { op, owner, .. }) = (over.tag, self.resources.client.io(over.tag).submission);
        match over.end {
            CompletionEnd::Whole if op == Op::Flush => {
                self.report.fsync.record(now.duration_since(owner.started).as_nanos() as u64);
                self.release(tag);
            }
            CompletionEnd::Whole => {
                let Span { offset, len, .. } = owner.span;
                let at = Next { target: 0, offset, len, is_read: op == Op::Read, pass: 0 };
                let took = now.duration_since(owner.started);
                self.report.tally.complete(&at, took, over.via, over.copy_ns);
                self.moved.bytes.fetch_add(u64::from(len), Ordering::Relaxed);
                self.moved.ios.fetch_add(1, Ordering::Relaxed);
                if op == Op::Read && self.spec.verify {
                    self.check(tag);
                } else {
                    self.release(tag);
                }
            }
            CompletionEnd::Early => {
                let found = "the data ended early: the file is shorter than it was written";
                self.io_failed(tag, &Fault::note(libc::EIO, found));
            }
            CompletionEnd::GivenUp(_) => self.release(tag),
            CompletionEnd::Failed(fault) => self.io_failed(tag, &fault),
        }
    }

    fn check(&mut self, tag: u32) {
        let InFlight { submission, mem, .. } = *self.resources.client.io(tag);
        let part = self.content_of(submission.owner);
        if self.resources.contents.is_on_gpu(mem) {
            self.resources.client.hold(tag);
            return self.resources.contents.start(tag, VerifyTask::Check, mem, part);
        }
        let result = self.resources.contents.check(mem, part);
        self.verified(tag, result);
    }

    fn verified(&mut self, tag: u32, result: Result<(), String>) {
        let len = self.resources.client.io(tag).submission.owner.span.len;
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
        let Submission { op, owner, .. } = self.resources.client.io(tag).submission;
        let at = owner.file;
        self.resources.client.release(tag);
        self.in_flight -= 1;
        let Some(file) = &mut self.files[at] else { return };
        file.in_flight -= 1;
        file.is_flushed |= op == Op::Flush;
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
        let flushes = self.task.way == Direction::Write && self.spec.fsync;
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
            file.close(&mut self.resources);
        }
        self.flows[flow].open -= 1;
        self.look_whether_through(flow);
    }

    fn look_whether_through(&mut self, flow: usize) {
        let flow = &mut self.flows[flow];
        if flow.is_through() && flow.ended.is_none() {
            flow.ended = Some(self.task.begin.elapsed());
        }
    }

    /// The first failure is what the run ends with; all workers stop.
    fn fail(&mut self, e: Error) {
        self.report.failed.get_or_insert(e);
        self.shared.stop.store(true, Ordering::Relaxed);
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
