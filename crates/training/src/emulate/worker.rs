//! One thread that reads whatever is needed next: takes streams, keeps reads in
//! flight, has what arrived parsed while it is in the processor's cache, and gives
//! streams back where they may not be read further.

mod blame;
mod digest;
mod ending;
mod opening;
mod straight;

use super::board::{add, Board, Counters, ACCOUNT_NS};
use super::reading::{Opened, Reading, BLOCK};
use super::supply::Delays;
use super::uring::{Reading as OpenFiles, Slots};
use super::Shared;
use crate::format::Damage;
use forebay_io::arena::Mem;
use forebay_io::client::{Client, Order};
use forebay_io::clock;
use forebay_io::gpu::cuda::Pinned;
use forebay_io::queue::{Fault, Op, Via};
use forebay_io::reactor::{self, Reactor};
use forebay_model::training::{Grant, Stream};
use forebay_model::Latency;
use forebay_storage::path::straight::Lanes;
use forebay_storage::path::Copier;
use forebay_storage::source::Loan;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for anything, so that a stop is seen.
const LOOK: Duration = Duration::from_millis(100);
/// Longest time for reads under way to come back when the run ends.
const GRACE: Duration = Duration::from_secs(2);
/// Streams that a worker reads side by side at most.
const STREAMS_MAX: usize = 16;

/// The number of the queue that fills slots, at the worker's client.
const READS: u32 = 0;

/// Manner in which slots are filled.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reads {
    /// By the worker itself: what is in memory.
    Inline,
    Ring,
    /// One address space that holds all files.
    Whole {
        align: u32,
    },
}

/// A stream in this worker's hands.
struct Active {
    epoch: u32,
    rank: u32,
    lane: u32,
    file: u32,
    upto: u32,
    /// The number of a queue of its own, which goes straight into a GPU.
    straight: Option<u32>,
    reading: Reading,
    /// Bytes of the file that were asked for, and how far to go for what is wanted.
    pushed: u64,
    goal: u64,
    /// Slots in the order of their bytes.
    slots: VecDeque<u32>,
    /// Samples of the stream that were reported as whole.
    reported: u32,
    /// Time at which the last whole sample became so.
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
    /// Offset in the file; and how many bytes before the wanted ones a block begins.
    offset: u64,
    head: u32,
    want: u32,
    got: u32,
    began: u64,
    /// It may not be seen before; 0: it may.
    due: u64,
    landed: bool,
    errno: i32,
    /// Memory in which its bytes stay, and the samples that are whole once they are there.
    to: Option<Mem>,
    copied: bool,
    whole: u32,
}

/// Latencies of a worker.
#[derive(Default)]
pub(crate) struct Latencies {
    pub read: Latency,
    pub sample: Latency,
}

pub(crate) struct Worker {
    index: usize,
    shared: Arc<Shared>,
    // Field order is drop order: queues go before the files and lanes that they stand on, and what points to the slots
    // before these.
    client: Client<()>,
    actives: Vec<Option<Active>>,
    lanes: Option<Box<dyn Lanes>>,
    reads: Reads,
    /// By tag: the file that a read is of.
    files: OpenFiles,
    reactor: Reactor,
    /// To the destination, one for each GPU.
    copiers: Vec<Box<dyn Copier>>,
    _pin: Option<Pinned>,
    /// The slots, as emulated drives have them mapped.
    _lent: Vec<Loan>,
    slots: Slots,
    delays: Delays,
    flights: Vec<Flight>,
    /// Way of bytes that bypass the slots.
    via: Via,
    /// Why reads failed, in words, by tag.
    notes: Vec<(u32, Box<str>)>,
    in_flight: u32,
    latencies: Latencies,
    accounted: u64,
    copies: Vec<(u32, Option<Fault>)>,
}

impl Worker {
    /// Works until the run ends.
    pub(crate) fn run(mut self) -> Latencies {
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
            if let Some(why) = self.reactor.refused() {
                self.board().fail(reactor::refused(&why));
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
        let mut any = self.client.is_owed();
        self.client.push_again(&mut self.reactor);
        while self.client.has_free() && !self.board().stop.load(Ordering::Relaxed) {
            if self.has_room() && self.board().has_work() && self.take() {
                any = true;
            }
            let Some(next) = self.next_to_push() else { break };
            self.push(next);
            any = true;
        }
        let began = self.now();
        self.client.submit(&mut self.reactor);
        if any && self.reads == Reads::Inline {
            // Where slots are filled, it is done here.
            add(&self.counters().read_ns, self.now().saturating_sub(began));
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

    /// The stream, with its file open. None: nothing can be had of it, and that was dealt with.
    fn begin(&mut self, grant: Grant<Reading>) -> Option<Active> {
        let now = self.now();
        let Grant { epoch, rank, lane, stream, done, upto, work, is_new } = grant;
        let mut reading = work.unwrap_or_else(|| self.shared.reading());
        let number = stream.position + u64::from(done) * u64::from(stream.stride);
        if is_new {
            self.open_stream(stream, rank, &mut reading);
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

    /// Opens its file. What can't be read is given up.
    fn open_stream(&self, stream: Stream, rank: u32, reading: &mut Reading) {
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

    /// Returns the stream that asks for bytes next: the one whose batch is needed first, then the one with the fewest
    /// reads under way.
    fn next_to_push(&self) -> Option<usize> {
        let wants = |a: &Active| a.pushed < a.goal && !a.reading.is_dead;
        let all = self.actives.iter().enumerate().filter_map(|(i, a)| a.as_ref().map(|a| (i, a)));
        all.filter(|(_, a)| wants(a)).min_by_key(|(_, a)| (a.batch, a.slots.len())).map(|(i, _)| i)
    }

    fn push(&mut self, index: usize) {
        let Some(to) = self.place_for(index) else { return };
        let (io_bytes, began) = (self.shared.how.io_bytes, self.now());
        let active = self.actives[index].as_mut().expect("it was chosen");
        let (begins, left) = active.reading.place(active.pushed);
        let most = match &self.shared.straight {
            Some(straight) if to.is_some() => straight.io_bytes_max(begins).min(io_bytes),
            _ => io_bytes - begins % BLOCK,
        };
        let bytes = (active.goal - active.pushed).min(left).min(most) as u32;
        active.pushed += u64::from(bytes);
        // What goes straight begins anywhere.
        let align = if to.is_some() { 1 } else { u64::from(self.shared.how.align) };
        let head = (begins % align) as u32;
        let (offset, want) = (begins - u64::from(head), head + bytes);
        let at = active.reading.base + offset;
        let due = if self.delays.any() { self.delays.of(&self.shared, began, at, want) } else { 0 };
        let len = self.length_of(index, want);
        let active = self.actives[index].as_ref().expect("it was chosen");
        let (queue, offset_there) = match (active.straight, self.reads) {
            (Some(queue), _) => (queue, offset),
            (None, Reads::Whole { .. }) => (READS, at),
            (None, _) => (READS, offset),
        };
        let order = Order { queue, op: Op::Read, offset: offset_there, len, want, owner: () };
        let tag = self.client.begin(order, clock::now()).expect("a slot is free");
        self.actives[index].as_mut().expect("it was chosen").slots.push_back(tag);
        let mem = match to {
            Some(to) => to,
            None => self.slots.lend(tag),
        };
        self.client.set_mem(tag, mem);
        self.flights[tag as usize] = Flight { offset, head, want, began, due, to, ..Flight::default() };
        self.in_flight += 1;
        self.notes.retain(|(of, _)| *of != tag);
        let file = self.actives[index].as_ref().and_then(|active| active.reading.file.clone());
        self.files.borrow_mut()[tag as usize] = file;
        self.client.push(tag, &mut self.reactor);
    }

    /// Bytes to ask for, so that those that are wanted come.
    fn length_of(&self, index: usize, want: u32) -> u32 {
        let active = self.actives[index].as_ref().expect("it was chosen");
        match (active.straight, self.reads) {
            (Some(_), _) => want,
            (None, Reads::Whole { align }) => want.next_multiple_of(align),
            (None, _) => self.shared.how.ask(want),
        }
    }

    /// Takes what arrived, and lets through what is due.
    fn collect(&mut self) -> bool {
        self.client.collect(&mut self.reactor);
        let mut any = self.client.has_done();
        let mut done = self.client.take_done();
        for done in done.drain(..) {
            if let Some(over) = self.client.settle(done) {
                self.arrive(over);
            }
        }
        self.client.spare(done);
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
        let could_begin = self.client.has_free() && self.has_room();
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
        until = self.client.next_due().map_or(until, |due| until.min(due));
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
}
