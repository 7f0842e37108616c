//! One worker: a thread with its own reactor, slots and queues, which keeps its I/Os in flight.
//!
//! It coordinates five parts, none of which knows another one or the worker: the `generator` says which I/O starts next, and
//! when; the `client` has queues execute it; `content` is made before a write and checked after a read; the `recorder`
//! books what came of it, against the measured time; `timeouts` finds what takes too long. Decisions about the whole are the
//! worker's own: that it starts nothing more, that the run can't be what was asked for, that all workers stop.

mod content;
mod generator;
mod measured_time;
mod recorder;
mod timeouts;

use super::batches;
use super::io_list::IoList;
use super::run_kit::{guarded, Resources, Shared, Snapshot, Tally, Timed, WorkerSpec};
use super::verify::{Ended, VerifyTask};
use super::worker_setup::{self, Memory, BATCH_IO_BYTES_MAX};
use content::{SlotContent, Step};
use forebay_io::{
    monotonic_now, ring_refusal, settle_thread_as, settle_thread_near, Client, ClientCompletion,
    CompletionEnd, Fault, LateIo, Mem, Op, Reactor, Submission,
};
use forebay_model::content as content_rules;
use forebay_model::job::Sync;
use forebay_model::pattern::Next;
use forebay_model::Error;
use generator::{Generator, Request, Turn};
use recorder::{Found, Recorder, Went};
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::sync::Arc;
use std::time::{Duration, Instant};
use timeouts::{Lateness, Timeouts};

/// Failed I/Os after which a worker gives up, because the medium is gone rather than unreliable.
const FAILURES_MAX: u64 = 1000;
/// A worker waits for one in this many of its I/Os at once, which saves system calls if many are in flight. A lone
/// completion waits no longer than `BATCH_PATIENCE`, which adds to its latency: half of what a fast drive takes.
const BATCH_SHARE: u32 = 8;
const BATCH_PATIENCE: Duration = Duration::from_micros(30);

/// Messages from a worker to the run's thread, in this order: Ready, any number of Snapshots, Ended, Finished. Failed can
/// come at any point and is the last.
pub(crate) enum Report {
    Ready(Resources),
    Snapshot(Box<Snapshot>),
    /// The worker's last I/O is counted. Releasing its memory takes a while that isn't part of the run.
    Ended(u32),
    Finished(Box<Tally>),
    Failed(Error),
}

/// Runs a worker, and reports its end even if that is a panic: the others wait for it.
pub(crate) fn work(
    spec: WorkerSpec,
    shared: Arc<Shared>,
    start: &dyn Fn() -> Option<Instant>,
    reports: &Sender<Report>,
) {
    let (index, all) = (spec.index, shared.clone());
    if let Err(bug) = guarded(format!("worker {index}"), || work_on(spec, shared, start, reports)) {
        all.stop.store(true, Ordering::Relaxed);
        let _ = reports.send(Report::Failed(bug));
    }
}

/// Opens everything, waits for the start, runs, and reports.
fn work_on(
    spec: WorkerSpec,
    shared: Arc<Shared>,
    start: &dyn Fn() -> Option<Instant>,
    reports: &Sender<Report>,
) {
    let settled = settle_thread_as(&shared.job, spec.cpu);
    let numa = shared.job.numa.or(spec.near.filter(|node| settle_thread_near(*node)));
    let mut worker = match settled.and_then(|()| Worker::open(spec, shared, reports.clone())) {
        Ok((mut worker, resources)) => {
            let _ = reports.send(Report::Ready(resources));
            worker.recorder.tally.numa = numa;
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

/// What the worker knows of an I/O that it has started.
#[derive(Clone, Copy)]
struct Issued {
    /// Latency counts from here: in an open loop when the I/O was due.
    started: Instant,
    target: u32,
    /// It is among the bytes that the run moved: in its measured time, and not after its end.
    counted: bool,
    /// The batch that it is of, or `batches::NONE`.
    batch: u32,
    /// Reads of the job that it is.
    rows: u32,
}

impl Issued {
    /// A single read or write, of no batch.
    fn single(target: u32, started: Instant) -> Issued {
        Issued { started, target, counted: false, batch: batches::NONE, rows: 1 }
    }
}

type InFlight = forebay_io::InFlight<Issued>;

struct Worker {
    shared: Arc<Shared>,
    reports: Sender<Report>,
    index: u32,
    generator: Generator,
    // Field order is drop order: queues, then the ring, then the memory that both point to.
    client: Client<Issued>,
    reactor: Reactor,
    content: SlotContent,
    memory: Memory,
    /// The queue of each target.
    queue_of: Vec<u32>,
    recorder: Recorder,
    timeouts: Timeouts,
    /// The list of started I/Os, where one is written.
    list: Option<Box<IoList>>,
    /// The next I/O waits for its queue although a slot is free.
    held_back: bool,
    /// No further I/O is started.
    closing: bool,
    /// Queues whose final flush has been started.
    flushed: u32,
    /// Why the run can't be what was asked for, found out by what was read.
    refusal: Option<Error>,
}

impl Worker {
    fn open(
        spec: WorkerSpec,
        shared: Arc<Shared>,
        reports: Sender<Report>,
    ) -> Result<(Worker, Resources), Error> {
        let mut setup = worker_setup::set_up(&spec, &shared)?;
        let (content, why_not) = SlotContent::open(&shared, spec.index, setup.slots)?;
        setup.resources.content_on_host = why_not;
        let (job, now) = (&shared.job, monotonic_now());
        let idle = Issued::single(0, now);
        let mut client = Client::new(setup.slots, setup.in_turn, idle, |slot| setup.memory.slot(slot));
        for queue in setup.queues {
            client.add(queue);
        }
        let worker = Worker {
            index: spec.index,
            recorder: Recorder::open(&spec, &shared, now)?,
            list: IoList::open(job, spec.index, &shared.targets, now)?,
            generator: Generator::open(job, spec.pattern, spec.index, setup.rows, now)?,
            client,
            reactor: setup.reactor,
            content,
            memory: setup.memory,
            queue_of: setup.queue_of,
            timeouts: Timeouts::new(Duration::from_secs_f64(job.timeout_s), shared.interval, now),
            held_back: false,
            closing: false,
            flushed: 0,
            refusal: None,
            shared,
            reports,
        };
        worker.memory.fill_for_writes(&worker.shared.job, worker.index)?;
        Ok((worker, setup.resources))
    }

    fn run(&mut self, begin: Instant) {
        self.recorder.begin(begin);
        self.generator.begin(begin, f64::from(self.index) / f64::from(self.shared.job.workers));
        self.timeouts.next_look = begin;
        loop {
            let now = monotonic_now();
            self.closing |= self.shared.stop.load(Ordering::Relaxed) || self.starts_no_more(now);
            if now >= self.timeouts.next_look {
                self.check_timeouts(now);
            }
            self.start_ios(now);
            if now >= self.recorder.next_tick() {
                // Schedules of round rates and ticks coincide: what is due now doesn't wait for a snapshot.
                self.reactor.submit();
                self.tick(now);
            }
            self.client.collect(&mut self.reactor);
            if !self.client.has_done() && self.client.in_flight() == 0 {
                if self.finished() {
                    break;
                }
                // A flush may have ended where it began, with nothing to wake a wait.
                self.client.collect(&mut self.reactor);
            }
            if !self.client.has_done() {
                self.wait(now);
                self.client.collect(&mut self.reactor);
            } else {
                // More was done already than it takes to wait: let the device have the new I/Os meanwhile.
                self.reactor.submit();
            }
            self.complete();
            if let Some(why) = self.reactor.refused() {
                self.give_up_all(&why);
            }
        }
        let now = monotonic_now();
        self.book_what_never_came(now);
        self.recorder.finish(now);
        self.list.iter_mut().for_each(|list| list.finish(now));
        self.refuse_broken_log();
        let snapshot = self.recorder.snapshot(now);
        let _ = self.reports.send(Report::Snapshot(Box::new(snapshot)));
        let _ = self.reports.send(Report::Ended(self.index));
    }

    /// Returns whether no further I/O is to be started, but for failures and the last pass. In an open loop those that were due
    /// before the end, and found no free slot, are started after it, for a while.
    fn starts_no_more(&self, now: Instant) -> bool {
        let until = self.recorder.time.until();
        now >= until && !(now < self.recorder.time.drains_until() && self.generator.owes(until))
    }

    /// Nothing is in flight: is there nothing left to start?
    fn finished(&mut self) -> bool {
        let is_over = |w: &Worker| !w.client.is_owed() || w.given_up();
        if !self.closing || !is_over(self) {
            return false;
        }
        if self.ends_with_flush() {
            self.flush_more();
        }
        self.client.in_flight() == 0 && is_over(self)
    }

    fn ends_with_flush(&self) -> bool {
        self.shared.job.sync == Sync::End && self.shared.job.writes()
    }

    fn given_up(&self) -> bool {
        self.recorder.tally.errors.failed > FAILURES_MAX || self.shared.stop.load(Ordering::Relaxed)
    }

    /// Flushes the next queues, as many as there are free slots.
    fn flush_more(&mut self) {
        while self.flushed < self.client.queue_count() {
            let now = monotonic_now();
            let target = self.queue_of.iter().position(|queue| *queue == self.flushed).unwrap_or(0) as u32;
            let owner = Issued::single(target, now);
            let submission =
                Submission { queue: self.flushed, op: Op::Flush, offset: 0, len: 0, want: 0, owner };
            let Some(tag) = self.client.begin(submission, now) else { return };
            self.list_one(now, &submission);
            self.client.push(tag, &mut self.reactor);
            self.client.queue(self.flushed).submit(&mut self.reactor);
            self.flushed += 1;
        }
    }

    fn start_ios(&mut self, mut now: Instant) {
        if self.content.is_made_aside() {
            self.settle_content();
        }
        self.client.push_again(&mut self.reactor);
        self.held_back = false;
        while !self.closing && !self.client.is_owed() && self.start_one(now) {
            // A batch is sent before the next one begins.
            if self.generator.is_between_batches() {
                self.client.submit(&mut self.reactor);
                now = monotonic_now();
            }
        }
        self.client.submit(&mut self.reactor);
        self.content.submit();
    }

    /// False when there is no slot, when the next I/O isn't due yet, or after the last one.
    #[inline]
    fn start_one(&mut self, now: Instant) -> bool {
        if !self.client.has_free() {
            return false;
        }
        let (time, free) = (&self.recorder.time, self.client.free_count());
        let request = match self.generator.turn(now, time, free, self.client.in_flight()) {
            Turn::Io(request) => request,
            Turn::Later => return false,
            Turn::NoRoom => {
                self.held_back = true;
                return false;
            }
            Turn::Ended => {
                self.closing = true;
                return false;
            }
            Turn::Broken(why) => {
                self.closing = true;
                self.refuse(why);
                return false;
            }
        };
        let queue = self.queue_of[request.io.target as usize];
        if !self.client.queue(queue).takes_more() {
            self.generator.put_back(&request);
            self.held_back = true;
            return false;
        }
        if self.generator.draws_rows() {
            self.issue_rows(queue, &request, now)
        } else {
            self.issue(queue, &request, now)
        }
    }

    #[inline]
    fn issue(&mut self, queue: u32, request: &Request, now: Instant) -> bool {
        let Request { io: Next { target, offset, len, .. }, op, started } = *request;
        let want = if request.moves() { len } else { 0 };
        let submission = Submission { queue, op, offset, len, want, owner: Issued::single(target, started) };
        let Some(tag) = self.client.begin(submission, now) else { return false };
        self.client.submission(tag).owner.batch = self.generator.started(request, now);
        if self.list.is_some() {
            // The client's, since one of its own that is lent has to lie in memory for every I/O.
            let submission = self.client.io(tag).submission;
            self.list_one(now, &submission);
        }
        if matches!(op, Op::Write { .. }) && self.content.makes() {
            self.fill(tag);
        } else {
            self.client.push(tag, &mut self.reactor);
        }
        true
    }

    /// Starts as many reads as one I/O of rows holds, the first of which is `first`.
    fn issue_rows(&mut self, queue: u32, first: &Request, now: Instant) -> bool {
        let Next { target, len: row_bytes, .. } = first.io;
        let offsets = self.generator.draw_rows(&first.io);
        let rows = offsets.len() as u32;
        let len = row_bytes * rows;
        let owner = Issued { rows, ..Issued::single(target, now) };
        let submission = Submission { queue, op: Op::Read, offset: 0, len, want: len, owner };
        let Some(tag) = self.client.begin(submission, now) else { return false };
        if !self.client.push_rows(tag, offsets, &mut self.reactor) {
            self.failed(tag, &Fault::note(libc::EAGAIN, "the queue had no room for it, though it said so"));
        }
        true
    }

    /// A line of the list of started I/Os, where there is one.
    #[cold]
    fn list_one(&mut self, now: Instant, submission: &Submission<Issued>) {
        let what = match submission.op {
            Op::Read => "read",
            Op::Deallocate => "trim",
            Op::Flush => "datasync",
            _ => "write",
        };
        let (target, offset, len) = (submission.owner.target, submission.offset, submission.len);
        self.list.iter_mut().for_each(|list| list.note(now, target, what, offset, len));
    }

    fn wait(&mut self, now: Instant) {
        let mut until = self.recorder.next_tick().min(self.timeouts.next_look);
        let mut paced = None;
        if !self.closing {
            until = until.min(self.recorder.time.next_edge(now));
            let has_free = self.client.has_free();
            paced = self.generator.wakes_at().filter(|_| has_free && !self.held_back);
            let due = self.generator.list_is_due(now).filter(|_| has_free);
            for at in paced.into_iter().chain(self.generator.pauses_until()).chain(due) {
                until = until.min(at);
            }
        }
        for due in self.client.next_due().into_iter().chain(self.content.next_due()) {
            until = until.min(due);
        }
        if until > now {
            let (at_least, patience) = self.patience();
            self.reactor.wait(at_least, until, patience);
            if paced == Some(until) {
                self.generator.overslept(monotonic_now().saturating_duration_since(until));
            }
        } else {
            self.reactor.flush();
        }
    }

    /// Returns the number of completions to wait for, and how long the first may wait for the others.
    fn patience(&self) -> (u32, Duration) {
        // Long I/Os keep the device busy one by one (`RingOptions::one_by_one`).
        if self.client.wakes_at_first()
            || self.generator.is_open_loop()
            || self.shared.job.io_bytes_largest() > BATCH_IO_BYTES_MAX
        {
            return (1, Duration::ZERO);
        }
        ((self.client.in_flight() / BATCH_SHARE).max(1), BATCH_PATIENCE)
    }

    fn complete(&mut self) {
        if !self.client.has_done() {
            return;
        }
        let now = monotonic_now();
        // Ticks come before bookings, so that an interval lies on one side of the warm-up's end.
        if now >= self.recorder.next_tick() {
            self.tick(now);
        }
        // Time that ends with a flush includes the last I/Os, so they count too.
        let mut found = self.recorder.find(now, self.ends_with_flush());
        let mut done = self.client.take_done();
        for d in done.drain(..) {
            if let Some(over) = self.client.complete(d) {
                self.complete_one(over, &mut found);
            }
        }
        self.client.spare(done);
        self.recorder.end_round(now);
    }

    #[inline]
    fn complete_one(&mut self, over: ClientCompletion, found: &mut Found) {
        let tag = over.tag;
        match over.end {
            CompletionEnd::Whole => self.complete_whole(&over, found),
            CompletionEnd::Early => {
                let fault = self.ended_early(self.client.io(tag));
                self.failed(tag, &fault);
            }
            CompletionEnd::GivenUp(_) => {
                self.book_unfinished(tag, found.now);
                self.release(tag);
            }
            CompletionEnd::Failed(fault) => self.failed(tag, &fault),
        }
    }

    #[inline]
    fn complete_whole(&mut self, over: &ClientCompletion, found: &mut Found) {
        let (tag, now) = (over.tag, found.now);
        // Read before a part of it is written: the processor would wait for the whole.
        let Submission { queue, op, offset, len, owner, .. } = self.client.io(tag).submission;
        self.client.submission(tag).owner.counted = found.counted && self.recorder.is_measuring();
        match op {
            Op::Deallocate => return self.release(tag),
            Op::Flush => {
                self.recorder.book_flush(owner.started, found);
                return self.release(tag);
            }
            _ => {}
        }
        let (target, is_read) = (owner.target, op == Op::Read);
        if self.generator.draws_rows() {
            let staged = self.client.queue(queue).staged_of(tag).into();
            let each = Next { target, offset: 0, len: len / owner.rows, is_read, pass: 0 };
            self.recorder.book(
                &each,
                owner.rows,
                &owner,
                Went { via: over.via, staged, copy_ns: over.copy_ns },
                found,
            );
            if found.counted && self.generator.is_batch(owner.rows) {
                self.recorder.book_whole(Timed::Batch, now, now.duration_since(owner.started));
            }
            return self.release(tag);
        }
        let at = Next { target, offset, len, is_read, pass: 0 };
        self.recorder.book(&at, 1, &owner, Went { via: over.via, staged: 0, copy_ns: over.copy_ns }, found);
        self.end_of_batch(tag, now, found.counted);
        if is_read && self.shared.job.checks_reads() {
            self.check(tag);
        } else {
            self.release(tag);
        }
    }

    /// The I/O has ended as far as its batch goes. `came`: whole, and in time.
    #[inline]
    fn end_of_batch(&mut self, tag: u32, now: Instant, came: bool) {
        if self.client.io(tag).submission.owner.batch != batches::NONE {
            self.end_batch_of(tag, now, came);
        }
    }

    fn end_batch_of(&mut self, tag: u32, now: Instant, came: bool) {
        let batch = std::mem::replace(&mut self.client.submission(tag).owner.batch, batches::NONE);
        let ended = self.generator.ended(batch, now, came);
        if let Some(took) = ended.batch {
            self.recorder.book_whole(Timed::Batch, now, took);
        }
        if let Some(took) = ended.query {
            self.recorder.book_whole(Timed::Query, now, took);
        }
    }

    /// The I/O's slot is free. A batch whose I/O ends without having come is no whole one.
    #[inline]
    fn release(&mut self, tag: u32) {
        self.end_of_batch(tag, self.recorder.time.begin, false);
        self.client.release(tag);
    }

    /// Makes the content of a write, which goes on from there.
    fn fill(&mut self, tag: u32) {
        match self.content.fill(tag, self.client.io(tag)) {
            Step::OnGpu => self.client.hold(tag),
            Step::Done(Ok(())) => self.client.push(tag, &mut self.reactor),
            Step::Done(Err(why)) => self.failed(tag, &Fault::note(libc::EIO, why)),
        }
    }

    /// Checks the content of a finished read, and gives its slot free.
    fn check(&mut self, tag: u32) {
        match self.content.check(tag, self.client.io(tag)) {
            Step::OnGpu => self.client.hold(tag),
            Step::Done(result) => self.checked(tag, result),
        }
    }

    /// Goes on with the I/Os whose content the GPU has made or checked.
    fn settle_content(&mut self) {
        let mut ended = self.content.reap();
        for Ended { tag, task, result } in ended.drain(..) {
            if !self.client.unhold(tag) {
                continue;
            }
            match (task, result) {
                (VerifyTask::Check, result) => self.checked(tag, result),
                (VerifyTask::Fill, _) if self.client.io(tag).is_abandoned() => self.release(tag),
                (VerifyTask::Fill, Ok(())) => self.client.push(tag, &mut self.reactor),
                (VerifyTask::Fill, Err(why)) => self.failed(tag, &Fault::note(libc::EIO, why)),
            }
        }
        self.content.spare(ended);
    }

    /// Bytes that are right count where they count as moved: those of the warm-up do for neither. Wrong ones are told.
    fn checked(&mut self, tag: u32, result: Result<(), String>) {
        let pending = self.client.io(tag);
        let tally = &mut self.recorder.tally;
        match result {
            Ok(()) if pending.mem == Mem::None || !pending.submission.owner.counted => {}
            Ok(()) => tally.verified_bytes += u64::from(pending.submission.len),
            Err(why) if why.contains(content_rules::UNVERIFIED) => {
                let target = pending.submission.owner.target;
                self.cannot_verify(target);
            }
            Err(why) => {
                tally.errors.verify_failed += 1;
                tally.example(why);
            }
        }
        self.release(tag);
    }

    /// Ends the run: of data that no verifying write made, each block would be called wrong, and storage is not to blame.
    fn cannot_verify(&mut self, target: u32) {
        if self.shared.stop.swap(true, Ordering::Relaxed) {
            return;
        }
        let asked = format!("‹verify› of {}", self.shared.targets[target as usize].label);
        let next = "write it first: ‹op› write ‹verify›";
        self.refusal = Some(Error::request(asked, format!("it {}", content_rules::UNVERIFIED), next));
    }

    /// The run can't be what was asked for: all workers stop.
    fn refuse(&mut self, why: Error) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.refusal = Some(why);
    }

    /// A log that lacks lines is not what was asked for.
    fn refuse_broken_log(&mut self) {
        let log = self.recorder.log_failure();
        if let Some(why) = log.or_else(|| self.list.as_mut()?.failure()) {
            self.refuse(why);
        }
    }

    fn failed(&mut self, tag: u32, fault: &Fault) {
        let name = self.name(self.client.io(tag));
        let rows = u64::from(self.client.io(tag).submission.owner.rows);
        let tally = &mut self.recorder.tally;
        tally.errors.failed += rows;
        if fault.errno == libc::EINVAL {
            tally.errors.misaligned += rows;
        }
        tally.example(format!("{name}: {fault}"));
        self.release(tag);
        let hopeless =
            matches!(fault.errno, libc::ENOSPC | libc::EROFS | libc::EDQUOT | libc::ENODEV | libc::ENXIO);
        if hopeless || self.recorder.tally.errors.failed > FAILURES_MAX {
            self.shared.stop.store(true, Ordering::Relaxed);
        }
    }

    /// Returns the fault of an I/O that ended early; in a stripe it names the member, which the I/O's own name doesn't
    /// tell.
    fn ended_early(&self, pending: &InFlight) -> Fault {
        let Submission { offset, owner, .. } = pending.submission;
        let target = &self.shared.targets[owner.target as usize];
        let source = target.source_at(offset + u64::from(pending.moved));
        let member = if std::ptr::eq(source, target) { String::new() } else { format!("{}: ", source.label) };
        let found = "the data ended early: the file is shorter than it was when the run began";
        Fault::note(libc::EIO, member + found)
    }

    /// The I/O's name in messages.
    fn name(&self, pending: &InFlight) -> String {
        let Submission { op, offset, len, owner, .. } = pending.submission;
        let what = match op {
            Op::Flush => "flush",
            Op::Read => "read",
            Op::Deallocate => "trim",
            _ => "write",
        };
        let label = &self.shared.targets[owner.target as usize].label;
        if self.generator.draws_rows() {
            return format!("{what} of {} rows of {} bytes of {label}", owner.rows, len / owner.rows);
        }
        format!("{what} of {} bytes at {} of {label}", len - pending.moved, offset + u64::from(pending.moved))
    }

    fn check_timeouts(&mut self, now: Instant) {
        let begin = self.recorder.time.begin;
        self.recorder.settle_deferred();
        match self.timeouts.find_late(now, begin, &self.shared.standstills, &mut self.client) {
            Lateness::AllInTime | Lateness::Unsure => return,
            Lateness::Late => {}
        }
        self.reactor.flush();
        self.client.collect(&mut self.reactor);
        self.complete();
        self.settle_content();
        self.abandon_overdue(now);
    }

    /// Names I/Os that took longer than the time-out, and stops the run.
    fn abandon_overdue(&mut self, now: Instant) {
        let mut late = self.timeouts.give_up(now, &mut self.client, &mut self.reactor);
        for (tag, what) in late.drain(..) {
            match what {
                LateIo::TimedOut => {
                    let name = self.name(self.client.io(tag));
                    let tally = &mut self.recorder.tally;
                    tally.errors.timed_out += u64::from(self.client.io(tag).submission.owner.rows);
                    let timeout_s = self.shared.job.timeout_s;
                    tally.example(format!("{name}: unfinished after ‹timeout_s› {timeout_s} s"));
                    self.shared.stop.store(true, Ordering::Relaxed);
                }
                LateIo::NeverTaken => {
                    self.book_unfinished(tag, now);
                    self.release(tag);
                }
                LateIo::Lost => self.book_unfinished(tag, now),
            }
        }
        self.timeouts.spare(late);
    }

    /// The kernel takes no calls for the ring any more, so that nothing that is under way is ever heard of: the run
    /// ends, with what was measured before, and memory that the kernel may still write to is left to it.
    fn give_up_all(&mut self, why: &std::io::Error) {
        let now = monotonic_now();
        let why = format!("{}; ‹engine› pread does without", ring_refusal(why));
        self.shared.stop.store(true, Ordering::Relaxed);
        if self.client.in_flight() == 0 && !self.closing {
            self.recorder.tally.errors.failed += 1;
            self.recorder.tally.example(why.clone());
        }
        for (tag, what) in self.client.give_up_all() {
            let name = self.name(self.client.io(tag));
            self.recorder.tally.errors.failed += u64::from(self.client.io(tag).submission.owner.rows);
            self.recorder.tally.example(format!("{name}: {why}"));
            self.book_unfinished(tag, now);
            if what == LateIo::NeverTaken {
                self.release(tag);
            }
        }
    }

    /// Books an I/O that was given up.
    fn book_unfinished(&mut self, tag: u32, now: Instant) {
        let Submission { op, owner, .. } = self.client.io(tag).submission;
        if op != Op::Flush {
            self.recorder.book_unfinished(op == Op::Read, &owner, now);
        }
    }

    /// At the very end: rests that no queue took any more, and what was due and never started.
    fn book_what_never_came(&mut self, now: Instant) {
        for tag in self.client.take_owed(|_| true) {
            self.book_unfinished(tag, now);
        }
        let Recorder { time, tally, .. } = &mut self.recorder;
        if time.has_measured(now) {
            self.generator.never_started(time.until(), now, |is_read, waited, ios| {
                tally.leave_unfinished(is_read, waited, ios);
            });
        }
    }

    fn tick(&mut self, now: Instant) {
        let snapshot = self.recorder.tick(now);
        let _ = self.reports.send(Report::Snapshot(Box::new(snapshot)));
        self.refuse_broken_log();
    }

    /// Releases everything except memory that the kernel may still write to.
    fn close(mut self) {
        let mut tally = std::mem::take(&mut self.recorder.tally);
        let Client { short, retried, .. } = self.client;
        (tally.errors.short, tally.errors.retried) = (short, retried);
        tally.lost = self.client.lost();
        let (reports, refusal) = (self.reports.clone(), self.refusal.take());
        if tally.lost > 0 {
            std::mem::forget(self);
        } else {
            self.client.close(&mut self.reactor);
            drop(self);
        }
        let _ = reports.send(refusal.map_or_else(|| Report::Finished(Box::new(tally)), Report::Failed));
    }
}

impl Drop for Worker {
    /// After a panic I/Os may be in flight: the kernel and the pool's threads still write to their slots. So they may to
    /// those of I/Os that were given up and aren't in that count any more.
    fn drop(&mut self) {
        if self.client.in_flight() > 0 || self.client.lost() > 0 {
            std::mem::forget(std::mem::take(&mut self.memory));
        }
    }
}

#[cfg(test)]
mod tests;
