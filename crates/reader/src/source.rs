//! A source of any kind, named by its URI and open for feeding: what it is made of is opened as the commands open it, and
//! read by a worker of its own, with a reactor, a queue and a client. Files have ways of their own (`file`).
//!
//! Bytes go straight to their places where the queue may write there: into host memory that is aligned as the source has
//! it, of sources that take any memory. All others, blocks of which only a part is wanted among them, go through slots.

#![allow(unsafe_code, reason = "filling memory that Python lends, by address")]

mod plan;

use super::file::{Opening, ReadPath, Reading, UnderWay};
use super::layout::by_fastest;
use super::numbers::Copied;
use super::place::{Address, Range, Run};
use super::request::Request;
use super::rows::Layout;
use super::worker::{Copies, From};
use forebay_io::{
    copy_memory, memlock_refusal, monotonic_now, process_id, ring_refusal, settle_in_process, Arena, Client,
    ClientCompletion, CompletionEnd, CudaEvent, CudaStream, Fault, Mem, Op, Reactor, RegisteredMemory,
    RingOptions, Submission, Via, Waker, CLIENT_GRACE,
};
use forebay_model::job::{Cache, Engine, Pages, Prefer};
use forebay_model::{Error, Kind};
use forebay_storage::{examine, MadeOf, MemoryRegistration, Purpose, QueueNeeds, SourcePlan, Target};
use plan::{next_io, Cursor, Planned, Rules};
use std::collections::VecDeque;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{mpsc, Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// I/Os under way, and their size: enough to fill a fast link, in slots that stay in a last-level cache.
const DEPTH: u32 = 16;
const IO_BYTES: u64 = 1 << 20;
/// A worker with nothing to do looks at its queue this often, whatever else wakes it.
const IDLE: Duration = Duration::from_secs(60);
/// Time after which copies to a GPU are looked at while I/Os are under way.
const SOON: Duration = Duration::from_micros(50);

/// An open source; what it holds is given back when the last request and the last handle let go of it.
pub struct SourceReader {
    name: String,
    bytes: u64,
    way: ReadPath,
    inbox: Arc<Inbox>,
    waker: Arc<Waker>,
    worker: Mutex<Option<JoinHandle<()>>>,
    under_way: Arc<UnderWay>,
    /// Its thread and its connections are this process's, and not a child's.
    process: u32,
}

/// What the worker is given.
#[derive(Default)]
struct Inbox {
    state: Mutex<InboxState>,
    ending: AtomicBool,
}

#[derive(Default)]
struct InboxState {
    requests: Vec<Arc<Request>>,
    /// Why the worker takes no more.
    closed: Option<Error>,
}

impl SourceReader {
    /// Opens what a URI names, and starts its worker.
    ///
    /// # Errors
    /// It can't be read, or not into memory of others; options that only files have.
    pub fn open(uri: &str, opening: Opening) -> Result<SourceReader, Error> {
        check_options(uri, opening)?;
        let target = target_of(uri)?;
        let (name, bytes) = (target.label.clone(), target.bytes);
        let inbox = Arc::new(Inbox::default());
        let (tell, made_waker) = mpsc::channel();
        let given = inbox.clone();
        let started = std::thread::Builder::new().name("forebay-source".into()).spawn(move || {
            settle_in_process();
            let made = SourceWorker::set_up(target, given);
            let (waker, worker) = match made {
                Ok((worker, waker)) => (Ok(waker), Some(worker)),
                Err(error) => (Err(error), None),
            };
            let is_awaited = tell.send(waker).is_ok();
            drop(tell);
            if let Some(worker) = worker.filter(|_| is_awaited) {
                worker.run();
            }
        });
        let worker =
            started.map_err(|why| Error::machine("a thread to read with", why.to_string(), "ulimit -u"))?;
        let waker = made_waker.recv().unwrap_or_else(|_| {
            Err(Error::run(format!("open {name}"), "its thread ended", "forebay doctor"))
        });
        match waker {
            Ok(waker) => Ok(SourceReader {
                name,
                bytes,
                way: opening.way,
                inbox,
                waker,
                worker: Mutex::new(Some(worker)),
                under_way: Arc::default(),
                process: process_id(),
            }),
            Err(error) => {
                let _ = worker.join();
                Err(in_python(uri, error))
            }
        }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Begins to read ranges.
    ///
    /// # Errors
    /// `Request`: a range that doesn't lie in the source, or memory that the way it was opened doesn't reach. Nothing is
    /// read then.
    pub fn read(&self, ranges: &[Range], after: Vec<CudaEvent>) -> Result<Arc<Request>, Error> {
        self.check_process()?;
        for range in ranges {
            let end = range.offset.checked_add(range.bytes as u64);
            if range.bytes > 0 && end.is_none_or(|end| end > self.bytes) {
                return Err(Error::request(
                    format!("{} bytes from {} of {}", range.bytes, range.offset, self.name),
                    format!("it has {} bytes", self.bytes),
                    "a range inside the source; File.size says how long it is",
                ));
            }
        }
        if let Some(gpu) =
            ranges.iter().find_map(|range| range.to.gpu().filter(|_| self.way == ReadPath::Host))
        {
            let found = format!("it was opened with path={:?}", self.way.name());
            return Err(Error::request(format!("read {} into GPU {gpu}", self.name), found, "path=\"auto\""));
        }
        let reading = Reading::begin(&self.under_way);
        let request = Request::apart(self.waker.clone(), reading, ranges, after);
        if request.part_count() == 0 {
            return Ok(request);
        }
        {
            let mut state = self.inbox.state.lock().expect("no holder panics");
            if let Some(error) = &state.closed {
                return Err(error.clone());
            }
            state.requests.push(request.clone());
        }
        self.waker.wake();
        Ok(request)
    }

    /// Begins to read rows by their numbers, packed from `to` on. Rows that share blocks, or lie beside each other, come
    /// together where they follow each other.
    ///
    /// # Errors
    /// As of `read`.
    pub fn read_rows(
        &self,
        numbers: &Copied,
        layout: Layout,
        to: Address,
        after: Vec<CudaEvent>,
    ) -> Result<Arc<Request>, Error> {
        if let Some(last) = numbers.last().filter(|_| layout.row_bytes > 0) {
            if layout.end(last).is_none_or(|end| end > self.bytes) {
                return Err(layout.outside(last, Path::new(&self.name), self.bytes));
            }
        }
        self.read(&layout.ranges(numbers.numbers(), to), after)
    }

    fn check_process(&self) -> Result<(), Error> {
        if self.process == process_id() {
            return Ok(());
        }
        let found = "it was opened before this process was forked, and its worker is in the parent";
        Err(Error::request(format!("read {}", self.name), found, "forebay.open() it again in the child"))
    }

    /// Waits until no request reads from it, and until its worker has ended.
    pub fn close(&self) {
        if self.process == process_id() {
            self.under_way.wait();
            self.end(true);
        }
    }

    fn end(&self, waits: bool) {
        self.inbox.ending.store(true, Ordering::Release);
        self.waker.wake();
        let worker = self.worker.lock().expect("no holder panics").take();
        if let Some(worker) = worker.filter(|_| waits) {
            let _ = worker.join();
        }
    }
}

impl Drop for SourceReader {
    /// A worker that still reads ends by itself, after what it reads.
    fn drop(&mut self) {
        if self.process == process_id() {
            self.end(!self.under_way.any());
        } else {
            // Another process's thread.
            std::mem::forget(self.worker.get_mut().expect("no holder panics").take());
        }
    }
}

/// Options that only files have.
fn check_options(uri: &str, opening: Opening) -> Result<(), Error> {
    let Opening { way, direct, prefer, .. } = opening;
    let (option, found) = if let Some(direct) = direct {
        let text = if direct { "direct=True" } else { "direct=False" };
        (text.to_string(), "its source decides how it is read; no page cache of files is asked")
    } else if matches!(way, ReadPath::Mapped | ReadPath::Gds) {
        (format!("path={:?}", way.name()), "only pages of a file can be mapped")
    } else if prefer != Prefer::Balance {
        ("prefer=".to_string(), "there is one way to a GPU, through pinned slots")
    } else {
        return Ok(());
    };
    Err(Error::request(format!("{option} of {uri}"), found, "forebay.open(URI) without it"))
}

fn target_of(uri: &str) -> Result<Target, Error> {
    let opened = || {
        let purpose = Purpose {
            sources: vec![uri.into()],
            cache: Cache::Auto,
            could_make: false,
            ..Purpose::default()
        };
        let mut looked = examine(&purpose)?;
        if looked.plans.iter().any(SourcePlan::is_virtual) {
            let found = "it has no bytes, and its I/Os take virtual time";
            return Err(Error::request(
                format!("read {uri}"),
                found,
                "model:NAME?over=FILE, which has a file's bytes",
            ));
        }
        let opened = looked.open(&purpose, &mut Purpose::fills_nothing)?;
        let [target] = opened.targets.as_slice() else {
            return Err(Error::request(
                format!("read {uri}"),
                "it names a folder of files",
                "one of its files",
            ));
        };
        if target.lacks_bytes() {
            let found = "an I/O of it moves no bytes, so that memory would stay as it is";
            return Err(Error::request(
                format!("read {uri}"),
                found,
                "a source that holds data; forebay bench runs on it",
            ));
        }
        Ok(target.clone())
    };
    opened().map_err(|error| in_python(uri, error))
}

/// Removes command-line advice from an error for callers in Python.
fn in_python(uri: &str, error: Error) -> Error {
    if !error.next.contains('‹') {
        return error;
    }
    let next = match error.kind {
        Kind::Request => "a URI as docs/sources.md has them".into(),
        _ => format!("forebay doctor {uri}"),
    };
    Error { next, ..error }
}

/// What an I/O is for: pieces `first` and those behind it of a run's part. Of the first, bytes from `skip` on.
#[derive(Clone, Copy, Default)]
struct Owner {
    run: u32,
    first: u32,
    pieces: u32,
    skip: u64,
    in_place: bool,
}

/// A part of a request, as it is read.
struct Running {
    request: Arc<Request>,
    part: usize,
    /// What of it isn't begun.
    cursor: Cursor,
    /// All of it is begun that will be.
    is_begun: bool,
    /// I/Os under way, and copies to the GPU.
    ios: u32,
    copies: u32,
    outlet: Option<(usize, Arc<Mutex<CudaStream>>)>,
    is_queued: bool,
    /// What was under way when it was dropped is given up.
    is_given_up: bool,
}

struct SourceWorker {
    // Field order is drop order: queues go before the ring, and that before the memory that both point to.
    client: Client<Owner>,
    reactor: Reactor,
    copies: Copies,
    pinned: Option<RegisteredMemory>,
    lent: Vec<MemoryRegistration>,
    slots: Option<Arena>,
    target: Target,
    queue: u32,
    rules: Rules,
    /// No page cache of this machine's is on its way.
    is_uncached: bool,
    /// A GPU may still read the slots.
    are_lost: bool,
    inbox: Arc<Inbox>,
    runs: Vec<Option<Running>>,
    /// Those that aren't all begun, in order.
    begins: VecDeque<u32>,
}

impl SourceWorker {
    fn set_up(target: Target, inbox: Arc<Inbox>) -> Result<(SourceWorker, Arc<Waker>), Error> {
        let needs = QueueNeeds::new(DEPTH, IO_BYTES);
        let mut reactor = reactor_for(&target, needs)?;
        let waker = reactor.waker()?;
        // Such a source moves bytes by itself, out of and into memory that it was given before.
        let takes_slots_only = target.maps_slots() || target.medium().has(MadeOf::Card);
        let (mut slots, mut lent) = (None, Vec::new());
        if takes_slots_only {
            let arena = slots_for(&target)?;
            lent = target.lend(&arena)?;
            slots = Some(arena);
        }
        let queue = target.queue(needs, &mut reactor)?;
        let geometry = queue.geometry();
        let align = u64::from(geometry.align.max(1));
        let io_bytes = IO_BYTES.min(u64::from(geometry.io_bytes_max));
        let rules = Rules {
            bytes: target.bytes,
            align,
            mem_align: u64::from(geometry.mem_align.max(1)),
            io_bytes: (io_bytes - io_bytes % align).max(align),
            in_place: !takes_slots_only,
        };
        let mut client =
            Client::new(DEPTH, true, Owner::default(), |_| Mem::None).with_unit(geometry.align.max(1));
        let queue = client.add(queue);
        let is_uncached = target.files().iter().all(|(file, _)| file.direct);
        let worker = SourceWorker {
            client,
            reactor,
            copies: Copies::default(),
            pinned: None,
            lent,
            slots,
            target,
            queue,
            rules,
            is_uncached,
            are_lost: false,
            inbox,
            runs: Vec::new(),
            begins: VecDeque::new(),
        };
        Ok((worker, waker))
    }

    fn run(mut self) {
        loop {
            self.take_requests();
            self.give_up_dropped();
            self.land();
            self.begin();
            self.turn();
            if let Some(why) = self.reactor.refused() {
                return self.refuse(&why);
            }
            if self.runs.iter().all(Option::is_none) && self.ends() {
                return self.close();
            }
            self.wait();
        }
    }

    fn ends(&self) -> bool {
        self.inbox.ending.load(Ordering::Acquire)
            && self.inbox.state.lock().expect("no holder panics").requests.is_empty()
    }

    fn take_requests(&mut self) {
        let requests = std::mem::take(&mut self.inbox.state.lock().expect("no holder panics").requests);
        for request in requests {
            for part in 0..request.part_count() {
                let running = Running {
                    request: request.clone(),
                    part,
                    cursor: Cursor::default(),
                    is_begun: false,
                    ios: 0,
                    copies: 0,
                    outlet: None,
                    is_queued: false,
                    is_given_up: false,
                };
                let free = self.runs.iter().position(Option::is_none).unwrap_or(self.runs.len());
                if free == self.runs.len() {
                    self.runs.push(None);
                }
                self.runs[free] = Some(running);
                self.begins.push_back(free as u32);
            }
        }
    }

    fn running(&mut self, run: u32) -> &mut Running {
        self.runs[run as usize].as_mut().expect("it has an I/O, a copy or a part left")
    }

    /// Asks for what was begun of requests that were cancelled, or have failed, to be ended.
    fn give_up_dropped(&mut self) {
        for run in 0..self.runs.len() {
            let Some(running) = &mut self.runs[run] else { continue };
            if running.is_given_up || !running.request.is_dropped() {
                continue;
            }
            (running.is_given_up, running.is_begun) = (true, true);
            self.begins.retain(|begins| *begins != run as u32);
            for tag in self.client.take_owed(|owner| owner.run == run as u32) {
                self.client.release(tag);
                self.running(run as u32).ios -= 1;
            }
            let of_run = |tag: &u32| self.client.io(*tag).submission.owner.run == run as u32;
            let tags: Vec<u32> = self.client.tags().filter(of_run).collect();
            tags.into_iter().for_each(|tag| self.client.abandon(tag, &mut self.reactor));
            self.end_if_over(run as u32);
        }
    }

    /// Begins as many I/Os as there are tags for.
    fn begin(&mut self) {
        while let Some(run) = self.begins.front().copied() {
            if !self.client.has_free() {
                return;
            }
            let begun = self.begin_one(run);
            match begun {
                Ok(true) => {}
                Ok(false) => {
                    self.begins.pop_front();
                    self.running(run).is_begun = true;
                    self.end_if_over(run);
                }
                Err(error) => {
                    self.running(run).request.fail(error);
                    self.give_up_dropped();
                }
            }
        }
    }

    /// False where all of the part is begun.
    fn begin_one(&mut self, run: u32) -> Result<bool, Error> {
        let running = self.runs[run as usize].as_mut().expect("it is to begin");
        let pieces = running.request.part(running.part);
        let Some(planned) = next_io(pieces, running.cursor, &self.rules) else { return Ok(false) };
        if let (Some(gpu), None) = (pieces[0].to.gpu(), &running.outlet) {
            running.outlet = Some(self.copies.outlet_after(&running.request, gpu)?);
        }
        let outlet = running.outlet.as_ref().map(|(outlet, _)| *outlet);
        let Planned { offset, len, first, skip, count, in_place, next } = planned;
        if in_place.is_none() {
            self.set_slots(outlet)?;
        }
        let owner = Owner { run, first, pieces: count, skip, in_place: in_place.is_some() };
        let submission = Submission { queue: self.queue, op: Op::Read, offset, len, want: len, owner };
        let tag = self.client.begin(submission, monotonic_now()).expect("one is free");
        let mem = match in_place.and_then(|at| NonNull::new(at as *mut u8)) {
            Some(at) => Mem::Host { at, piece: Mem::UNREGISTERED },
            None => self.slots.as_ref().expect("just set").slot(tag as usize),
        };
        self.client.set_mem(tag, mem);
        let running = self.running(run);
        (running.cursor, running.ios) = (next, running.ios + 1);
        self.client.push(tag, &mut self.reactor);
        Ok(true)
    }

    /// Makes the slots when the first I/O needs one, and pins them for the first GPU.
    fn set_slots(&mut self, outlet: Option<usize>) -> Result<(), Error> {
        if self.slots.is_none() {
            self.slots = Some(slots_for(&self.target)?);
        }
        let (Some(outlet), None, Some(slots)) = (outlet, &self.pinned, &self.slots) else { return Ok(()) };
        let (at, bytes) = slots.whole();
        // SAFETY: the slots go after their registration, by the order of the fields.
        let pinned = unsafe { self.copies.device(outlet).register(at.as_ptr(), bytes, false) };
        self.pinned = Some(pinned.map_err(|why| {
            Error::machine(
                format!("pin {bytes} bytes of host memory"),
                why.to_string(),
                "ulimit -l unlimited; or free GPU memory that other programs hold",
            )
        })?);
        Ok(())
    }

    fn turn(&mut self) {
        let mut over = Vec::new();
        self.client.turn(&mut self.reactor, &mut |_, one| over.push(one));
        for one in over {
            self.complete(one);
        }
    }

    fn complete(&mut self, over: ClientCompletion) {
        let tag = over.tag;
        let (submission, moved) = {
            let io = self.client.io(tag);
            (io.submission, io.moved)
        };
        let Submission { offset, len, owner, .. } = submission;
        self.running(owner.run).ios -= 1;
        let flies = match over.end {
            CompletionEnd::Whole => self.deliver(tag, &submission, over.via),
            CompletionEnd::Early => Err(self.failed(offset, len, &ended_early(offset + u64::from(moved)))),
            CompletionEnd::Failed(fault) | CompletionEnd::GivenUp(fault) => {
                Err(self.failed(offset, len, &fault))
            }
        };
        if !flies.as_ref().is_ok_and(|flies| *flies) {
            self.client.release(tag);
        }
        if let Err(error) = flies {
            self.running(owner.run).request.fail(error);
        }
        self.end_if_over(owner.run);
    }

    /// Brings what an I/O read on to its places. True where copies out of its slot are under way.
    fn deliver(&mut self, tag: u32, submission: &Submission<Owner>, via: Via) -> Result<bool, Error> {
        let Submission { offset, len, owner, .. } = *submission;
        let running = self.runs[owner.run as usize].as_mut().expect("it has an I/O");
        if running.request.is_dropped() {
            return Ok(false);
        }
        let counts = &running.request.counts;
        let pieces = &running.request.part(running.part)[owner.first as usize..][..owner.pieces as usize];
        let bytes = wanted(pieces, owner.skip, offset, len).map(|(_, _, bytes)| bytes as u64).sum::<u64>();
        let way = if owner.in_place && via == Via::Direct { &counts.direct } else { &counts.staged };
        way.fetch_add(bytes, Ordering::Relaxed);
        if self.is_uncached {
            counts.uncached.fetch_add(bytes, Ordering::Relaxed);
        }
        if owner.in_place {
            return Ok(false);
        }
        let slot = self.client.io(tag).mem.host_ptr();
        // `io.mem` is the slot's, from its first byte on, whatever was read in several turns.
        let Some((outlet, _)) = running.outlet else {
            for (from, to, bytes) in wanted(pieces, owner.skip, offset, len) {
                let Address::Host(to) = to else { unreachable!("parts have one kind of place") };
                by_fastest(Address::Host(to), (bytes, bytes), running.request.bytes(), |stores| {
                    // SAFETY: the slot has what was read; the destination is its owner's promise.
                    unsafe { copy_memory(to as *mut u8, slot.add(from), bytes, stores) }
                });
            }
            return Ok(false);
        };
        let to_device = |(from, to, bytes): (usize, Address, usize)| match to {
            Address::Device { at, .. } => Run { from, to: at, bytes },
            Address::Host(_) => unreachable!("parts have one kind of place"),
        };
        let runs: Vec<Run> = wanted(pieces, owner.skip, offset, len).map(to_device).collect();
        let event = self.copies.queue(outlet, |stream| {
            // SAFETY: the run lies in the slot, which stays taken until the event has passed; the destination is its
            // owner's promise.
            let copy = |run: &Run| unsafe { stream.copy_to_device(run.to, slot.add(run.from), run.bytes) };
            runs.iter().try_for_each(copy)
        });
        match event {
            Ok(event) => {
                running.copies += 1;
                self.copies.fly(outlet, From::Lent(tag), bytes as usize, event);
                Ok(true)
            }
            Err(why) => {
                self.are_lost = true;
                self.copies.wait_for(outlet);
                Err(self.copies.failed(outlet, &why))
            }
        }
    }

    /// Frees the slots that have been copied.
    fn land(&mut self) {
        self.copies.reap(false);
        while let Some((tag, failure)) = self.copies.take_landed() {
            let run = self.client.io(tag).submission.owner.run;
            self.client.release(tag);
            self.running(run).copies -= 1;
            if let Some(error) = failure {
                self.are_lost = true;
                self.running(run).request.fail(error);
            }
            self.end_if_over(run);
        }
    }

    /// Tells the request where a part is queued, and where it has ended.
    fn end_if_over(&mut self, run: u32) {
        let Some(running) = &mut self.runs[run as usize] else { return };
        if !running.is_begun || running.ios > 0 {
            return;
        }
        if !running.is_queued {
            running.is_queued = true;
            running.request.part_queued(running.outlet.as_ref().map(|(_, stream)| stream));
        }
        if running.copies == 0 {
            let Running { request, part, .. } = self.runs[run as usize].take().expect("looked at above");
            request.part_done(part);
        }
    }

    fn failed(&self, offset: u64, len: u32, fault: &Fault) -> Error {
        let found = match self.target.source_at(offset) {
            part if std::ptr::eq(part, &self.target) => fault.to_string(),
            part if fault.to_string().contains(&part.label) => fault.to_string(),
            part => format!("{}: {fault}", part.label),
        };
        let asked = format!("read {len} bytes at {offset} of {}", self.target.label);
        Error::run(asked, found, "read again once the source answers; forebay doctor")
    }

    fn wait(&mut self) {
        if !self.begins.is_empty() && self.client.has_free() {
            // What was begun ended as it was handed over.
            return self.reactor.flush();
        }
        let now = monotonic_now();
        let is_reading = self.client.in_flight() > 0;
        if !is_reading && !self.client.is_owed() && self.copies.any() {
            self.copies.reap(true);
            return;
        }
        if !is_reading {
            // Its queue may have lost its connection, or got a new one.
            self.client.collect_all(&mut self.reactor);
        }
        let due = self.client.next_due().into_iter().chain(self.client.due_of(self.queue));
        let mut until = due.fold(now + IDLE, Instant::min);
        // What a full queue returned is tried again at once where what it held has ended by now.
        if self.copies.any() || !is_reading && self.client.is_owed() {
            until = until.min(now + SOON);
        }
        if until > now {
            self.reactor.wait(1, until, Duration::ZERO);
        } else {
            self.reactor.flush();
        }
    }

    /// The kernel takes no calls for the ring any more: what was read fails, and so does what is asked for from now on.
    fn refuse(mut self, why: &std::io::Error) {
        let error = Error::run(
            format!("read {}", self.target.label),
            ring_refusal(why),
            "forebay.open() it in a process whose filter allows io_uring",
        );
        self.client.give_up_all();
        // What a device was told to write to memory of others has come by then; nothing else comes without a call.
        std::thread::sleep(CLIENT_GRACE);
        let mut state = self.inbox.state.lock().expect("no holder panics");
        state.closed = Some(error.clone());
        let waiting = std::mem::take(&mut state.requests);
        drop(state);
        for request in waiting {
            request.fail(error.clone());
            (0..request.part_count()).for_each(|part| end(&request, part, None));
        }
        self.copies.drain();
        for running in self.runs.drain(..).flatten() {
            running.request.fail(error.clone());
            if running.is_queued {
                running.request.part_done(running.part);
            } else {
                end(&running.request, running.part, running.outlet.as_ref().map(|(_, stream)| stream));
            }
        }
        // The kernel may still write there.
        std::mem::forget(self);
    }

    /// Gives everything back.
    fn close(mut self) {
        self.client.close(&mut self.reactor);
        self.lent.clear();
        if self.are_lost {
            std::mem::forget(self.slots.take());
        }
    }
}

fn end(request: &Request, part: usize, stream: Option<&Arc<Mutex<CudaStream>>>) {
    request.part_queued(stream);
    request.part_done(part);
}

/// Bytes of an I/O at `offset` that go on to places of `pieces`: where they lie in it, their place and number.
fn wanted(
    pieces: &[Range],
    skip: u64,
    offset: u64,
    len: u32,
) -> impl Iterator<Item = (usize, Address, usize)> + '_ {
    let end = offset + u64::from(len);
    pieces.iter().enumerate().map(move |(at, piece)| {
        let begin = piece.offset + if at == 0 { skip } else { 0 };
        let bytes = end.min(piece.offset + piece.bytes as u64) - begin;
        ((begin - offset) as usize, piece.to.after((begin - piece.offset) as usize), bytes as usize)
    })
}

fn ended_early(at: u64) -> Fault {
    Fault::note(libc::EIO, format!("its data ended at {at}: it is shorter than when it was opened"))
}

/// Only memory with a descriptor can be mapped into what moves it by itself.
fn slots_for(target: &Target) -> Result<Arena, Error> {
    let (count, bytes) = (DEPTH as usize, IO_BYTES as usize);
    match target.maps_slots() {
        true => Arena::shared(count, bytes, Pages::Thp),
        false => Arena::new(count, bytes, Pages::Thp),
    }
}

fn reactor_for(target: &Target, needs: QueueNeeds) -> Result<Reactor, Error> {
    let by_ring = || target.files().iter().any(|(_, engine)| matches!(engine, Engine::Uring | Engine::Auto));
    if !target.needs_ring() && !by_ring() {
        return Ok(Reactor::without_ring());
    }
    let options = RingOptions { depth: target.ring_depth(needs), one_by_one: true, ..RingOptions::default() };
    Reactor::with_ring(options)
        .map_err(|e| memlock_refusal("a source's reader", &e, "forebay doctor for the reason"))
}

#[cfg(test)]
mod tests;
