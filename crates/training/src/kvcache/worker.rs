//! One thread: moves entries whole, several at a time in turn, and says when each is there.

use super::folder::cannot_make;
use crate::opened::file::{CreatedFile, OpenFile, Refused, RunFile, Span};
use crate::opened::resources::WorkerResources;
use crate::opened::Direction;
use forebay_bench::{Shared, Tally, VerifyPart};
use forebay_io::{
    drop_cached, monotonic_now, ring_refused, ClientCompletion, CompletionEnd, Fault, FileIdentity, InFlight,
    LateIo, Op, Submission,
};
use forebay_model::job::Cache;
use forebay_model::kvcache::service::{Ended, Key};
use forebay_model::kvcache::KvSpec;
use forebay_model::pattern::Next;
use forebay_model::{Error, Latency};
use forebay_storage::FileAccess;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Interval at which time-outs and a stop are checked while nothing completes.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// An entry to be moved.
pub(super) struct Transfer {
    pub rank: u32,
    pub slot: u32,
    pub key: Key,
    pub place: RunFile,
    pub way: Direction,
    /// The file that it was written to, for a read.
    pub identity: Option<FileIdentity>,
    /// Where it lies in a source without files.
    pub extent: Option<u64>,
}

/// Message to a worker.
pub(super) enum WorkerMessage {
    /// The window ends then.
    Begin(Instant),
    Move(Transfer),
}

/// An entry that has been moved, or couldn't be.
pub(super) struct Moved {
    pub rank: u32,
    pub slot: u32,
    pub key: Key,
    pub way: Direction,
    pub ended: Ended,
    /// What was written.
    pub made: Option<CreatedFile>,
}

/// Bytes of all workers together: read, written; and when the last of them completed, in ns since the run began.
#[derive(Default)]
pub(super) struct Sums {
    pub bytes: [AtomicU64; 2],
    pub ios: AtomicU64,
    pub last_ns: AtomicU64,
}

/// What a worker has to say at the end.
pub(super) struct Report {
    pub tally: Tally,
    /// Of single I/Os: reads, writes; and of flushes.
    pub blocks: [Latency; 2],
    pub flush: Latency,
}

/// Transfer of one I/O: a part of an entry, or nothing where it flushes one.
#[derive(Clone, Copy)]
pub(super) struct Part {
    entry: usize,
    span: Span,
    started: Instant,
}

impl Part {
    pub(super) fn nothing(now: Instant) -> Part {
        Part { entry: 0, span: Span { offset: 0, len: 0, io_len: 0 }, started: now }
    }
}

struct Moving {
    file: OpenFile,
    rank: u32,
    slot: u32,
    key: Key,
    way: Direction,
    made: Option<CreatedFile>,
    /// It can't be moved: nothing more of it is asked for.
    broken: Option<Ended>,
}

pub(super) struct Worker {
    entries: Vec<Option<Moving>>,
    resources: WorkerResources<Part>,
    shared: Arc<Shared>,
    spec: Arc<KvSpec>,
    sums: Arc<Sums>,
    begin: Instant,
    window_end: Instant,
    turn: usize,
    to_flush: Vec<usize>,
    in_flight: u32,
    next_look: Instant,
    late: Vec<(u32, LateIo)>,
    done: Vec<Moved>,
    failed: Option<Error>,
    report: Report,
}

impl Worker {
    pub(super) fn new(
        resources: WorkerResources<Part>,
        index: u32,
        shared: Arc<Shared>,
        spec: Arc<KvSpec>,
        sums: Arc<Sums>,
    ) -> Worker {
        let now = monotonic_now();
        let mut tally = Tally::new(index, None, 1);
        tally.measures(true);
        Worker {
            entries: Vec::new(),
            resources,
            shared,
            spec,
            sums,
            begin: now,
            window_end: now,
            turn: 0,
            to_flush: Vec::new(),
            in_flight: 0,
            next_look: now,
            late: Vec::new(),
            done: Vec::new(),
            failed: None,
            report: Report { tally, blocks: Default::default(), flush: Latency::default() },
        }
    }

    /// Moves entries until nobody asks for more, or the run is stopped. `tell` hears of each, and of a failure.
    pub(super) fn work(
        &mut self,
        messages: &Receiver<WorkerMessage>,
        tell: &mut dyn FnMut(Result<Moved, Error>),
    ) {
        let mut is_asked = true;
        while is_asked || self.entries.iter().any(Option::is_some) {
            is_asked = is_asked && self.listen(messages);
            let now = monotonic_now();
            if now >= self.next_look {
                self.next_look = now + POLL_INTERVAL;
                self.abandon_overdue(now);
            }
            if self.is_stopping() && self.in_flight == 0 {
                break;
            }
            self.start();
            self.resources.collect();
            if !self.resources.client.has_done() && self.done.is_empty() {
                self.wait(now);
                self.resources.collect();
            } else {
                self.resources.reactor.submit();
            }
            self.complete();
            if let Some(why) = self.resources.reactor.refused() {
                self.give_up_all(&why);
            }
            self.done.drain(..).for_each(|moved| tell(Ok(moved)));
            if let Some(error) = self.failed.take() {
                tell(Err(error));
            }
        }
        self.put_away();
        self.failed.take().into_iter().for_each(|error| tell(Err(error)));
    }

    pub(super) fn report(mut self) -> Report {
        let took = self.begin.elapsed();
        let client = &mut self.resources.client;
        let tally = &mut self.report.tally;
        tally.ended = took;
        tally.errors.short = std::mem::take(&mut client.short);
        tally.errors.retried = std::mem::take(&mut client.retried);
        tally.lost = client.lost();
        tally.snapshot(took, false, false);
        let lost = tally.lost > 0;
        let none =
            Report { tally: Tally::new(0, None, 1), blocks: Default::default(), flush: Latency::default() };
        let report = std::mem::replace(&mut self.report, none);
        if lost {
            // The kernel may still write to its slots.
            std::mem::forget(self);
        }
        report
    }

    /// False once nobody asks any more.
    fn listen(&mut self, messages: &Receiver<WorkerMessage>) -> bool {
        loop {
            match messages.try_recv() {
                Ok(WorkerMessage::Begin(end)) => {
                    self.window_end = end;
                    self.begin = end - Duration::from_nanos(self.spec.window_ns());
                    // What was written before the first request isn't the run's.
                    let mut tally = Tally::new(self.report.tally.worker, None, 1);
                    tally.measures(true);
                    self.report = Report { tally, blocks: Default::default(), flush: Latency::default() };
                }
                Ok(WorkerMessage::Move(transfer)) => self.take(transfer),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn is_stopping(&self) -> bool {
        self.shared.stop.load(Ordering::Relaxed)
    }

    /// Opens an entry's file.
    fn take(&mut self, transfer: Transfer) {
        let Transfer { rank, slot, key, place, way, identity, extent } = transfer;
        let tells = |ended| Moved { rank, slot, key, way, ended, made: None };
        if way == Direction::Read && identity.is_none() && extent.is_none() {
            return self.done.push(tells(Ended::Lost));
        }
        if identity.is_some_and(|identity| !identity.is_at(&place.path)) {
            return self.done.push(tells(Ended::Lost));
        }
        let at = self.entries.iter().position(Option::is_none).unwrap_or(self.entries.len());
        if at == self.entries.len() {
            self.entries.push(None);
        }
        if let Some(base) = extent {
            match OpenFile::extent(place, base, way, at, &mut self.resources) {
                Ok(file) => {
                    self.entries[at] = Some(Moving { file, rank, slot, key, way, made: None, broken: None });
                }
                Err(error) => self.fail(error),
            }
            return;
        }
        let access = FileAccess { write: way == Direction::Write, direct: self.spec.cache == Cache::Bypass };
        let (mut made, path) = (Vec::new(), place.path.clone());
        match OpenFile::open(access, place, at, &mut self.resources, &mut made) {
            Ok(file) => {
                if way == Direction::Read && self.spec.cache == Cache::Drop {
                    file.handle().into_iter().for_each(|handle| {
                        let _ = drop_cached(handle, 0, file.place.bytes);
                    });
                }
                let made = made.pop();
                self.entries[at] = Some(Moving { file, rank, slot, key, way, made, broken: None });
            }
            Err(why) => {
                let mine = made.first().map(|CreatedFile(place, identity)| (place.path.clone(), *identity));
                let mine = mine.or_else(|| identity.map(|identity| (path, identity)));
                let is_gone = mine.is_some_and(|(path, identity)| !identity.is_at(&path));
                made.iter().for_each(|CreatedFile(place, identity)| drop(identity.remove(&place.path)));
                match why {
                    _ if is_gone => self.done.push(tells(Ended::Lost)),
                    Refused::Make(_, e) if is_full(e.raw_os_error().unwrap_or(0)) => {
                        self.done.push(tells(Ended::Full));
                    }
                    Refused::Make(place, e) => self.fail(cannot_make(&place.path, &e)),
                    Refused::Short(..) => self.done.push(tells(Ended::Lost)),
                    Refused::Other(error) => self.fail(error),
                }
            }
        }
    }

    fn start(&mut self) {
        self.resources.client.push_again(&mut self.resources.reactor);
        if self.is_stopping() {
            return self.submit();
        }
        while let Some(entry) = self.to_flush.last().copied().filter(|_| self.resources.client.has_free()) {
            self.to_flush.pop();
            if let Some(moving) = &mut self.entries[entry] {
                moving.file.flushes();
            }
            if let Some(tag) = self.begin(entry, Op::Flush, Span { offset: 0, len: 0, io_len: 0 }) {
                self.resources.push(tag);
            }
        }
        let mut idle = 0;
        while idle < self.entries.len() && self.resources.client.has_free() {
            let entry = self.turn % self.entries.len();
            self.turn = entry + 1;
            idle = if self.start_one(entry) { 0 } else { idle + 1 };
        }
        self.submit();
    }

    fn submit(&mut self) {
        self.resources.client.submit(&mut self.resources.reactor);
    }

    /// False where all of the entry has been asked for.
    fn start_one(&mut self, entry: usize) -> bool {
        let Some(moving) = &mut self.entries[entry] else { return false };
        if moving.broken.is_some() {
            return false;
        }
        let Some(span) = moving.file.take(self.spec.io_bytes) else { return false };
        let op = match moving.way {
            Direction::Write => Op::Write { durable: false },
            Direction::Read => Op::Read,
        };
        let Some(tag) = self.begin(entry, op, span) else { return false };
        if op != Op::Read {
            let InFlight { submission, mem, .. } = *self.resources.client.io(tag);
            let part = self.content_of(submission.owner, span.io_len);
            if let Err(why) = self.resources.contents.fill(mem, part) {
                self.io_failed(tag, &Fault::note(libc::EIO, why));
                return true;
            }
        }
        self.resources.push(tag);
        true
    }

    fn begin(&mut self, entry: usize, op: Op, span: Span) -> Option<u32> {
        let now = monotonic_now();
        let moving = self.entries[entry].as_mut()?;
        let want = if op == Op::Read { span.len } else { span.io_len };
        let owner = Part { entry, span, started: now };
        let queue = moving.file.queue;
        let offset = if op == Op::Flush { 0 } else { moving.file.base + span.offset };
        let asked = Submission { queue, op, offset, len: span.io_len, want, owner };
        let tag = self.resources.client.begin(asked, now)?;
        self.in_flight += 1;
        moving.file.in_flight += 1;
        Some(tag)
    }

    fn content_of(&self, part: Part, len: u32) -> VerifyPart {
        let file = self.entries[part.entry].as_ref().map_or(0, |moving| moving.file.id);
        VerifyPart { seed: self.spec.seed, file, offset: part.span.offset, len }
    }

    fn wait(&mut self, now: Instant) {
        let until = self.resources.client.next_due().into_iter().fold(self.next_look, Instant::min);
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
                self.report.flush.record(now.duration_since(owner.started).as_nanos() as u64);
                self.sums.last_ns.fetch_max(self.since(now), Ordering::Relaxed);
                self.release(tag);
            }
            CompletionEnd::Whole => {
                self.count(op == Op::Read, owner, &over, now);
                if op == Op::Read && self.spec.verify {
                    self.check(tag);
                }
                self.release(tag);
            }
            CompletionEnd::Early => self.breaks(tag, Ended::Lost),
            CompletionEnd::GivenUp(_) => self.release(tag),
            CompletionEnd::Failed(fault) if op != Op::Read && is_full(fault.errno) => {
                self.breaks(tag, Ended::Full)
            }
            CompletionEnd::Failed(fault) => self.io_failed(tag, &fault),
        }
    }

    fn since(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.begin).as_nanos() as u64
    }

    /// Counts an I/O: in the record's figures as far as it completed inside the window.
    fn count(&mut self, is_read: bool, part: Part, over: &ClientCompletion, now: Instant) {
        let Span { offset, len, .. } = part.span;
        let took = now.duration_since(part.started);
        if now <= self.window_end {
            let at = Next { target: 0, offset, len, is_read, pass: 0 };
            self.report.tally.complete(&at, took, over.via, over.copy_ns);
        }
        let way = usize::from(!is_read);
        self.report.blocks[way].record(took.as_nanos() as u64);
        self.sums.bytes[way].fetch_add(u64::from(len), Ordering::Relaxed);
        self.sums.ios.fetch_add(1, Ordering::Relaxed);
        self.sums.last_ns.fetch_max(self.since(now), Ordering::Relaxed);
    }

    fn check(&mut self, tag: u32) {
        let InFlight { submission, mem, .. } = *self.resources.client.io(tag);
        let part = self.content_of(submission.owner, submission.owner.span.len);
        match self.resources.contents.check(mem, part) {
            Ok(()) => self.report.tally.verified_bytes += u64::from(part.len),
            Err(why) => {
                self.report.tally.errors.verify_failed += 1;
                if let Some(moving) = &mut self.entries[submission.owner.entry] {
                    let name = format!("{} of rank {}, offset {}", moving.key, moving.rank, part.offset);
                    moving.broken = Some(Ended::Lost);
                    self.report.tally.example(format!("{name}: {why}"));
                }
            }
        }
    }

    /// The entry can't be moved; it is told of once none of its I/Os is under way.
    fn breaks(&mut self, tag: u32, ended: Ended) {
        let entry = self.resources.client.io(tag).submission.owner.entry;
        if let Some(moving) = &mut self.entries[entry] {
            moving.broken = Some(ended);
        }
        self.release(tag);
    }

    /// The slot is free again; what its entry does next.
    fn release(&mut self, tag: u32) {
        let Submission { op, owner, .. } = self.resources.client.io(tag).submission;
        self.resources.client.release(tag);
        self.in_flight -= 1;
        let Some(moving) = &mut self.entries[owner.entry] else { return };
        moving.file.in_flight -= 1;
        moving.file.is_flushed |= op == Op::Flush;
        if !self.is_stopping() {
            self.go_on_with(owner.entry);
        }
    }

    /// An entry whose bytes are all there is flushed, then closed.
    fn go_on_with(&mut self, entry: usize) {
        let Some(moving) = &self.entries[entry] else { return };
        if moving.file.in_flight > 0 || (moving.broken.is_none() && !moving.file.is_moved()) {
            return;
        }
        if moving.broken.is_none() && moving.way == Direction::Write && !moving.file.is_flushed {
            if moving.file.flush_from.is_none() && !self.to_flush.contains(&entry) {
                match moving.file.cut() {
                    Ok(()) => self.to_flush.push(entry),
                    Err(e) => self.fail(e),
                }
            }
            return;
        }
        let Some(moving) = self.entries[entry].take() else { return };
        let Moving { file, rank, slot, key, way, made, broken } = moving;
        file.close(&mut self.resources);
        let ended = broken.unwrap_or(Ended::Whole);
        if ended != Ended::Whole {
            made.iter().for_each(|CreatedFile(place, identity)| drop(identity.remove(&place.path)));
        }
        let made = made.filter(|_| ended == Ended::Whole);
        self.done.push(Moved { rank, slot, key, way, ended, made });
    }

    fn name(&self, asked: &Submission<Part>) -> String {
        let Submission { op, offset, owner, .. } = asked;
        let what = match op {
            Op::Flush => "flush".into(),
            Op::Read => format!("read of {} bytes at {offset}", owner.span.len),
            _ => format!("write of {} bytes at {offset}", owner.span.io_len),
        };
        match &self.entries[owner.entry] {
            Some(moving) => format!("{what} of {}", moving.file.place.path.display()),
            None => what,
        }
    }

    fn io_failed(&mut self, tag: u32, fault: &Fault) {
        let name = self.name(&self.resources.client.io(tag).submission);
        let errors = &mut self.report.tally.errors;
        errors.failed += 1;
        errors.misaligned += u64::from(fault.errno == libc::EINVAL);
        self.report.tally.example(format!("{name}: {fault}"));
        self.fail(Error::run(name, fault.to_string(), "dmesg | tail; forebay doctor"));
        self.breaks(tag, Ended::Lost);
    }

    /// Names I/Os that took longer than the time-out, and asks for their slots back; one that isn't given back either
    /// is left to the kernel, memory and all.
    fn abandon_overdue(&mut self, now: Instant) {
        let timeout = Duration::from_secs_f64(self.spec.timeout_s);
        let mut late = std::mem::take(&mut self.late);
        self.resources.client.give_up_late(now, timeout, &mut self.resources.reactor, &mut late);
        for (tag, what) in late.drain(..) {
            match what {
                LateIo::TimedOut => {
                    self.report.tally.errors.timed_out += 1;
                    let name = self.name(&self.resources.client.io(tag).submission);
                    let found = format!("unfinished after ‹timeout_s› {} s", self.spec.timeout_s);
                    self.report.tally.example(format!("{name}: {found}"));
                    self.fail(Error::run(name, found, "dmesg | tail; a longer ‹timeout_s›"));
                }
                LateIo::NeverTaken => self.release(tag),
                LateIo::Lost => self.in_flight -= 1,
            }
        }
    }

    /// Nothing that is under way is ever heard of: memory that the kernel may still write to is left to it.
    fn give_up_all(&mut self, why: &std::io::Error) {
        self.fail(ring_refused(why));
        for (tag, what) in self.resources.client.give_up_all() {
            match what {
                LateIo::Lost => self.in_flight -= 1,
                _ => self.release(tag),
            }
        }
    }

    /// The first failure is what the run ends with; all workers stop.
    fn fail(&mut self, e: Error) {
        self.failed.get_or_insert(e);
        self.shared.stop.store(true, Ordering::Relaxed);
    }

    /// Closes the entries that are still open; those that were being written aren't any.
    fn put_away(&mut self) {
        for moving in std::mem::take(&mut self.entries).into_iter().flatten() {
            let Moving { file, made, .. } = moving;
            file.close(&mut self.resources);
            made.iter().for_each(|CreatedFile(place, identity)| drop(identity.remove(&place.path)));
        }
        self.to_flush.clear();
    }
}

fn is_full(errno: i32) -> bool {
    matches!(errno, libc::ENOSPC | libc::EDQUOT)
}
