//! One thread that reads whatever is needed next: takes streams, keeps reads in
//! flight, has what arrived parsed while it is in the processor's cache, and gives
//! streams back where they may not be read further.
//!
//! Its `reads` bring bytes, its `copies` take them on to their destination, `errors` says what an error in the data means, and
//! `accounts` has its figures. The worker knows its streams and the scheduler.

mod accounts;
mod copies;
mod read_errors;
mod reads;
mod stream;

use super::reading::{Opened, Reading};
use super::run_state::{add, RunState};
use super::Shared;
use crate::format::Damage;
use accounts::Accounts;
pub(crate) use accounts::Latencies;
use copies::Copies;
use forebay_io::{monotonic_now, ring_refused, settle_thread_in, Fault, Via};
use forebay_model::training::{Grant, Stream};
use forebay_model::Error;
use read_errors::ReadErrors;
use reads::{Flight, Reads, Unopened};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;
use stream::ActiveStream;

/// Longest wait for anything, so that a stop is seen.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Streams that a worker reads side by side at most.
const STREAMS_MAX: usize = 16;

pub(crate) struct Worker {
    index: usize,
    shared: Arc<Shared>,
    // Copies end before the slots go.
    copies: Copies,
    reads: Reads,
    streams: Vec<Option<ActiveStream>>,
    errors: ReadErrors,
    accounts: Accounts,
    /// Way of bytes that end in the slots, or are copied from there.
    via: Via,
}

impl Worker {
    pub(crate) fn open(index: usize, shared: Arc<Shared>) -> Result<Worker, Error> {
        settle_thread_in(shared.cpus.get(index % shared.cpus.len().max(1)).copied(), None)?;
        let mut reads = Reads::open(&shared, index)?;
        let copies = Copies::open(&shared)?;
        shared.run_state.set_waker(index, reads.waker()?);
        shared.run_state.resources.get_or_init(|| reads.resources());
        let feeds_gpu = shared.run_state.destination.as_ref().is_some_and(|to| to.feeds_gpu());
        Ok(Worker {
            index,
            copies,
            streams: (0..STREAMS_MAX.min(reads.slot_count() as usize)).map(|_| None).collect(),
            reads,
            errors: ReadErrors::new(shared.clone()),
            accounts: Accounts::new(shared.clone(), index),
            via: if shared.io_mode.direct && !feeds_gpu { Via::Direct } else { Via::Staged },
            shared,
        })
    }

    /// Works until the run ends.
    pub(crate) fn run(mut self) -> Latencies {
        while !self.run_state().stop.load(Ordering::Relaxed) {
            let now = self.now();
            if self.run_state().is_due(now) {
                self.run_state().change(|s| s.advance(now));
            }
            let began = self.start();
            let shared = &self.shared;
            let landed = self.reads.collect(|| shared.since(monotonic_now()));
            let parsed = self.digest();
            if !(began || landed || parsed) {
                self.wait();
            }
            if let Some(why) = self.reads.refused() {
                self.run_state().fail(ring_refused(&why));
            }
        }
        self.close()
    }

    fn run_state(&self) -> &RunState {
        &self.shared.run_state
    }

    fn now(&self) -> u64 {
        self.shared.since(monotonic_now())
    }

    /// Takes streams and asks for bytes, as long as there are slots.
    fn start(&mut self) -> bool {
        let mut any = self.reads.push_again();
        while self.reads.has_free() && !self.run_state().stop.load(Ordering::Relaxed) {
            if self.has_room() && self.run_state().has_work() && self.take() {
                any = true;
            }
            let Some(next) = self.next_to_push() else { break };
            self.push(next);
            any = true;
        }
        let began = self.now();
        if self.reads.submit(any) {
            add(&self.accounts.counters().read_ns, self.now().saturating_sub(began));
        }
        any
    }

    fn has_room(&self) -> bool {
        self.streams.iter().any(Option::is_none)
    }

    fn take(&mut self) -> bool {
        let Some(grant) = self.run_state().change(|s| s.take()) else { return false };
        let place = self.streams.iter().position(Option::is_none).expect("there is room");
        if let Some(active) = self.begin(grant) {
            self.streams[place] = Some(active);
        }
        true
    }

    /// The stream, with its file open. None: nothing can be had of it, and that was dealt with.
    fn begin(&mut self, mut grant: Grant<Reading>) -> Option<ActiveStream> {
        let now = self.now();
        let mut reading = grant.work.take().unwrap_or_else(|| self.shared.reading());
        if grant.is_new {
            self.open_stream(grant.stream, grant.rank, &mut reading);
        }
        let mut active = ActiveStream::new(&grant, reading, &self.shared, now);
        if !active.reading.is_dead && !self.go_direct(&mut active) {
            active.reading.give_up();
        }
        if active.reading.is_dead {
            self.skip(&mut active);
            self.give_back(active);
            return None;
        }
        if active.pushed >= active.goal {
            // What an earlier read went beyond.
            let samples = active.whole();
            self.report(&mut active, samples, now);
            self.give_back(active);
            return None;
        }
        Some(active)
    }

    /// Opens its file. What can't be read is given up.
    fn open_stream(&self, stream: Stream, rank: u32, reading: &mut Reading) {
        match self.reads.open_file(stream.file, rank) {
            Ok(Opened { bytes: 0, .. }) => {
                reading.give_up();
                self.errors.damaged(stream.file, &Damage::new(0, 0, "the file is empty"));
            }
            Ok(opened) => {
                if let Err(damage) = reading.begin(stream, opened) {
                    reading.give_up();
                    self.errors.damaged(stream.file, &damage);
                }
            }
            Err(Unopened::Refused(error)) => {
                self.errors.refused(stream.file, error);
                reading.give_up();
            }
            Err(Unopened::Io(e)) => {
                reading.give_up();
                self.errors.unreadable(stream.file, &e);
            }
        }
    }

    /// Gives the stream a queue of its own, where its file goes directly. False where it can't have one.
    fn go_direct(&mut self, active: &mut ActiveStream) -> bool {
        let turn = self.shared.run_state.destination.as_ref().map_or(0, |to| to.turn_of(active.rank));
        match self.reads.add_direct_queue(active.reading.held.as_deref(), turn) {
            Ok(queue) => active.direct_queue = queue,
            Err(error) => {
                self.errors.refused(active.file, error);
                return false;
            }
        }
        true
    }

    /// Returns the stream that asks for bytes next: the one whose batch is needed first, then the one with the fewest
    /// reads under way.
    fn next_to_push(&self) -> Option<usize> {
        let all = self.streams.iter().enumerate().filter_map(|(i, a)| a.as_ref().map(|a| (i, a)));
        all.filter(|(_, a)| a.wants_bytes()).min_by_key(|(_, a)| (a.batch, a.slots.len())).map(|(i, _)| i)
    }

    fn push(&mut self, index: usize) {
        let now = self.now();
        let active = self.streams[index].as_mut().expect("it was chosen");
        let destination =
            self.shared.run_state.destination.as_ref().filter(|_| active.direct_queue.is_some());
        let to = match destination.map(|to| to.take(to.turn_of(active.rank))).transpose() {
            Ok(to) => to,
            Err(error) => {
                // There is no room, which ends the run.
                active.goal = active.pushed;
                return self.shared.run_state.fail(error);
            }
        };
        self.reads.push(active, to, now);
    }

    /// Sleeps until something lands, is due or is to be read.
    fn wait(&mut self) {
        let could_begin = self.reads.has_free() && self.has_room();
        let Some(keeps) = self.run_state().rest(self.index, could_begin) else { return };
        let now = monotonic_now();
        let instant = |ns: u64| self.shared.begin + Duration::from_nanos(ns);
        let (due, delayed) = self.reads.next_due();
        let run_state = self.run_state().due().filter(|_| keeps);
        let all = run_state.into_iter().chain(delayed).map(instant).chain(due).chain(self.copies.next_due());
        let until = all.fold(now + POLL_INTERVAL, |until, due| until.min(due));
        if until > now && !self.run_state().stop.load(Ordering::Relaxed) {
            self.reads.wait(until);
        } else {
            self.reads.flush();
        }
        self.run_state().rise(self.index);
        let slept = monotonic_now().duration_since(now).as_nanos() as u64;
        self.accounts.slept(slept, self.reads.are_under_way());
        let now = self.now();
        self.accounts.account_if_due(now);
    }

    /// Parses what has landed, stream by stream, in the order of its bytes.
    fn digest(&mut self) -> bool {
        let mut any = false;
        for index in 0..self.streams.len() {
            let Some(mut active) = self.streams[index].take() else { continue };
            while let Some(tag) = active.slots.front().copied().filter(|tag| self.reads.flight(*tag).landed) {
                active.slots.pop_front();
                self.digest_one(&mut active, tag);
                any = true;
                active.aim_again();
            }
            self.copies.submit();
            any |= self.settle_copies(&mut active);
            if !active.is_over() {
                self.streams[index] = Some(active);
                continue;
            }
            if active.reading.is_dead {
                self.skip(&mut active);
                any = true;
            }
            self.give_back(active);
        }
        any
    }

    fn digest_one(&mut self, active: &mut ActiveStream, tag: u32) {
        let flight = self.reads.land(tag);
        let begin = self.now();
        self.accounts.latencies.read.record(begin.saturating_sub(flight.began));
        let found = self.parse(active, tag, &flight);
        let end = self.now();
        self.count(&flight, end - begin);
        let found = found.and_then(|()| is_long_enough(&active.reading));
        for (damage, samples) in active.reading.take_lost() {
            self.errors.lost(active.file, &damage, samples);
        }
        let samples = active.whole();
        if let Err(damage) = found {
            self.let_go(active, tag);
            self.report(active, samples, end);
            active.reading.give_up();
            self.errors.damaged(active.file, &damage);
            return;
        }
        if samples > active.seen {
            let count = u64::from(samples - active.seen);
            self.accounts.latencies.sample.record_n((end - active.since) / count, count);
            (active.seen, active.since) = (samples, end);
        }
        self.pass_on(active, tag, samples, end);
        self.accounts.account_if_due(end);
    }

    /// Takes the bytes of a read as the next ones of their file. An error says what is wrong with them.
    fn parse(&mut self, active: &mut ActiveStream, tag: u32, flight: &Flight) -> Result<(), Damage> {
        let reading = &mut active.reading;
        match flight.errno {
            _ if reading.is_dead => Ok(()),
            0 if active.direct_queue.is_some() => {
                reading.pass((flight.want - flight.head).into());
                Ok(())
            }
            0 => reading.take(self.reads.bytes(tag)),
            libc::ENODATA => {
                let ends = flight.offset + u64::from(flight.got);
                let what = format!("the file ends there; it had {} bytes when it was opened", reading.bytes);
                Err(Damage::new(reading.records(), ends, what))
            }
            errno => {
                let what = match self.reads.note_of(tag) {
                    Some(note) => note.into(),
                    None => format!("reading failed: {}", std::io::Error::from_raw_os_error(errno)),
                };
                Err(Damage::new(reading.records(), flight.offset, what))
            }
        }
    }

    /// Books what a read brought, and how long it took to parse.
    fn count(&self, flight: &Flight, parse_ns: u64) {
        let counters = self.accounts.counters();
        add(&counters.parse_ns, parse_ns);
        add(&counters.ios, 1);
        if !self.copies.are_made() {
            // Others are counted where they end.
            let whole = flight.errno == 0;
            let got = if whole { flight.want } else { flight.got };
            counters.ways.add(self.via, got.saturating_sub(flight.head).into());
        }
    }

    /// Copies parsed data to its destination, or drops it.
    fn pass_on(&mut self, active: &mut ActiveStream, tag: u32, samples: u32, now: u64) {
        if active.reading.is_dead || !self.copies.are_made() {
            self.let_go(active, tag);
            self.report(active, samples, now);
        } else if active.direct_queue.is_some() {
            self.reads.flight(tag).whole = samples;
            self.keep(active, tag);
            self.report(active, samples, now);
        } else {
            self.copy_on(active, tag, samples);
        }
    }

    /// Sends what was parsed to the destination.
    fn copy_on(&mut self, active: &mut ActiveStream, tag: u32, samples: u32) {
        let Some(destination) = self.shared.run_state.destination.as_ref() else { return };
        let turn = destination.turn_of(active.rank);
        let to = match destination.take(turn) {
            Ok(to) => to,
            Err(error) => {
                self.reads.release(tag);
                active.reading.give_up();
                self.run_state().fail(error);
                return;
            }
        };
        let flight = self.reads.flight(tag);
        (flight.to, flight.whole) = (Some(to), samples);
        let bytes = (flight.want - flight.head) as usize;
        active.copying.push_back(tag);
        self.copies.start(turn, tag, self.reads.lend(tag), to, bytes);
    }

    /// Completes samples whose bytes arrived at the destination, where they stay until their step.
    fn settle_copies(&mut self, active: &mut ActiveStream) -> bool {
        if !self.copies.are_made() {
            return false;
        }
        let mut ended = self.copies.reap();
        for (tag, fault) in ended.drain(..) {
            self.end_copy(tag, fault);
        }
        self.copies.spare(ended);
        let mut any = false;
        while let Some(tag) = active.copying.front().copied().filter(|tag| self.reads.flight(*tag).copied) {
            active.copying.pop_front();
            let whole = self.reads.flight(tag).whole;
            self.keep(active, tag);
            let now = self.now();
            self.report(active, whole, now);
            any = true;
        }
        any
    }

    /// A copy to the destination has ended, and its bytes count.
    fn end_copy(&mut self, tag: u32, fault: Option<Fault>) {
        let bytes = self.reads.is_copied(tag);
        match fault {
            None => self.accounts.counters().ways.add(self.via, bytes.into()),
            Some(fault) => {
                let asked = format!("copy to {}", self.shared.spec.destination);
                self.run_state().fail(Error::run(asked, fault.to_string(), "nvidia-smi; dmesg | tail"));
            }
        }
    }

    /// Keeps what lies at the destination until its step.
    fn keep(&mut self, active: &ActiveStream, tag: u32) {
        self.reads.release(tag);
        let Flight { to, whole, .. } = *self.reads.flight(tag);
        if let (Some(destination), Some(piece)) = (&self.shared.run_state.destination, to) {
            destination.keep(active.batch_after(whole), destination.turn_of(active.rank), piece);
        }
    }

    /// Releases what was read, and is not wanted.
    fn let_go(&mut self, active: &ActiveStream, tag: u32) {
        self.reads.release(tag);
        let piece = self.reads.flight(tag).to.take();
        if let (Some(destination), Some(piece)) = (&self.shared.run_state.destination, piece) {
            destination.give_back(destination.turn_of(active.rank), piece);
        }
    }

    /// Tells the scheduler of samples that are whole.
    fn report(&mut self, active: &mut ActiveStream, samples: u32, now: u64) {
        if samples <= active.reported {
            return;
        }
        let sound = active.reading.sound(samples - active.reported);
        add(&self.accounts.counters().samples, sound.into());
        active.reported = samples;
        self.tell(active, samples, now);
    }

    /// Counts what is wanted of an unreadable stream as left out.
    fn skip(&mut self, active: &mut ActiveStream) {
        let left = active.upto.saturating_sub(active.reported);
        active.reported = active.upto;
        let now = self.now();
        self.run_state().lock().skipped.count += u64::from(left);
        self.tell(active, active.upto, now);
    }

    fn give_back(&mut self, mut active: ActiveStream) {
        if let Some(queue) = active.direct_queue.take() {
            self.reads.remove_direct_queue(queue);
        }
        add(&self.accounts.counters().payload_bytes, active.reading.take_payload());
        // The epoch may have ended with its last sample, and the next one begun.
        self.run_state().change(|s| match s.begun() == active.epoch {
            true => s.give_back(active.rank, active.stream_slot, active.reading),
            false => s.drop_off(active.reading),
        });
    }

    fn tell(&self, active: &ActiveStream, samples: u32, now: u64) {
        self.run_state().change(|s| {
            if s.begun() == active.epoch {
                s.report(active.rank, active.stream_slot, samples, now);
            }
        });
    }

    /// Waits for what the kernel still writes to; memory that it won't let go of is left to it.
    fn close(mut self) -> Latencies {
        for (tag, fault) in self.copies.finish() {
            self.end_copy(tag, fault);
        }
        let is_back = self.reads.drain();
        let now = self.now();
        self.accounts.account(now);
        let latencies = std::mem::take(&mut self.accounts.latencies);
        if is_back {
            self.reads.close();
        } else {
            std::mem::forget(self);
        }
        latencies
    }
}

/// A file that holds fewer samples than were expected of it is damaged.
fn is_long_enough(reading: &Reading) -> Result<(), Damage> {
    if !reading.is_short() {
        return Ok(());
    }
    let records = reading.records();
    let what = format!("the file holds {records} samples, fewer than the workload says");
    Err(Damage::new(records, reading.at, what))
}
