//! One worker: a thread with its own reactor, slots and queues, which keeps its I/Os in flight and counts their
//! results.

mod aside;
mod completion;

use super::batches::{Batches, Queries};
use super::io_list::IoList;
use super::io_log::IoLog;
use super::pause::{Left, Pause};
use super::replay::Player;
use super::run_kit::{guarded, Resources, Shared, Snapshot, Tally, WorkerSpec};
use super::schedule::{schedule_of, Schedule};
use super::verify::{Contents, Ended, NameOf};
use super::worker_setup::{self, Memory};
use aside::Aside;
use forebay_io::client::{Client, Late, Order};
use forebay_io::clock;
use forebay_io::queue::Op;
use forebay_io::reactor::Reactor;
use forebay_io::threads;
use forebay_model::job::Sync;
use forebay_model::pattern::{Next, Pattern};
use forebay_model::Error;
use rows::{Load, Together};
use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Failed I/Os after which a worker gives up, because the medium is gone rather than unreliable.
const FAILURES_MAX: u64 = 1000;
/// A worker waits for one in this many of its I/Os at once, which saves system calls if many are in flight. A lone
/// completion waits no longer than `BATCH_PATIENCE`, which adds to its latency: half of what a fast drive takes.
const BATCH_SHARE: u32 = 8;
const BATCH_PATIENCE: Duration = Duration::from_micros(30);
/// Longer I/Os are submitted one by one: submitted together, the kernel merges adjacent ones, and a drive then gave 0.9
/// of its rate.
pub(crate) const BATCH_IO_BYTES_MAX: u64 = 128 << 10;
/// Interval at which time-outs and stop requests are checked while nothing completes, whatever the reporting interval.
const LOOK: Duration = Duration::from_millis(250);

/// Messages from a worker to the driver, in this order: Ready, any number of Snapshots, Ended, Finished. Failed can
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
    let settled = threads::settle_as(&shared.job, spec.cpu);
    let numa = shared.job.numa.or(spec.near.filter(|node| threads::settle_near(*node)));
    let mut worker = match settled.and_then(|()| Worker::open(spec, shared, reports.clone())) {
        Ok((mut worker, resources)) => {
            let _ = reports.send(Report::Ready(resources));
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

/// The names that content may carry: those of the run's targets.
fn names_of(shared: &Arc<Shared>) -> NameOf {
    let shared = shared.clone();
    Box::new(move |id| shared.targets.iter().find(|t| t.content_id == id).map(|t| t.label.clone()))
}

type Ticket = forebay_io::client::Ticket<Load>;

struct Worker {
    index: u32,
    shared: Arc<Shared>,
    reports: Sender<Report>,
    begin: Instant,
    /// The last `until_ns` that was seen, and the instant that it stands for.
    until_known: Cell<(u64, Instant)>,
    pattern: Pattern,
    upcoming: Option<Next>,
    /// Of a list of I/Os, instead of the pattern.
    player: Option<Box<Player>>,
    schedule: Option<Schedule>,
    pause: Option<Pause>,
    /// I/Os and bytes that it may still start.
    left: Left,
    // Field order is drop order: queues, then the ring, then the memory that both point to.
    client: Client<Load>,
    reactor: Reactor,
    contents: Contents,
    memory: Memory,
    /// The queue of each target.
    queue_of: Vec<u32>,
    batches: Option<Batches>,
    /// Queries, whose rounds are batches.
    queries: Option<Queries>,
    /// State of I/Os that consist of several reads.
    together: Option<Together>,
    /// The next I/O waits for its queue although a slot is free.
    held_back: bool,
    tally: Tally,
    log: Option<Box<IoLog>>,
    list: Option<Box<IoList>>,
    /// When it booked something last, and what it couldn't yet.
    ran: Instant,
    asides: Vec<Aside>,
    /// Standstills that no I/O under way is blamed for any more.
    forgiven: Duration,
    next_tick: Instant,
    next_look: Instant,
    tick_index: u64,
    closing: bool,
    /// Queues whose final flush has been started.
    flushed: u32,
    late: Vec<(u32, Late)>,
    ended: Vec<Ended>,
    /// Why the run can't be what was asked for, found out by what was read.
    refusal: Option<Error>,
}

impl Worker {
    fn open(
        spec: WorkerSpec,
        shared: Arc<Shared>,
        reports: Sender<Report>,
    ) -> Result<(Worker, Resources), Error> {
        let mut setup = worker_setup::of(&spec, &shared)?;
        let device = shared.destination.device_of(spec.index);
        let (contents, why_not) =
            Contents::open(&shared.job, spec.index, names_of(&shared), device, setup.slots as usize)?;
        setup.resources.content_on_host = why_not;
        let now = clock::now();
        let idle = Load::of(0, now);
        let mut client = Client::new(setup.slots, setup.in_turn, idle, |slot| setup.memory.slot(slot));
        for queue in setup.queues {
            client.add(queue);
        }
        let worker = Worker {
            index: spec.index,
            tally: Tally::new(spec.index, spec.cpu, shared.targets.len()),
            log: IoLog::open(&shared.job, spec.index)?,
            list: IoList::open(&shared.job, spec.index, &shared.targets, now)?,
            player: Player::open(&shared.job, spec.index, now)?,
            begin: now,
            until_known: Cell::new((u64::MAX, now)),
            pattern: Pattern::new(spec.pattern)?,
            upcoming: None,
            schedule: schedule_of(&shared.job, spec.index),
            pause: Pause::of(&shared.job)?,
            left: Left::of(&shared.job),
            client,
            reactor: setup.reactor,
            contents,
            memory: setup.memory,
            queue_of: setup.queue_of,
            batches: Batches::of(shared.job.batch).filter(|_| setup.rows.is_none()),
            queries: shared.job.parsed_rounds()?.map(|rounds| Queries::of(rounds.hops, now)),
            together: setup.rows.map(|most| Together::of(most, &shared.job)),
            held_back: false,
            ran: now,
            asides: Vec::new(),
            forgiven: Duration::ZERO,
            next_tick: now,
            next_look: now,
            tick_index: 0,
            closing: false,
            flushed: 0,
            late: Vec::new(),
            ended: Vec::new(),
            refusal: None,
            shared,
            reports,
        };
        worker.memory.fill_for_writes(&worker.shared.job, worker.index)?;
        Ok((worker, setup.resources))
    }

    fn run(&mut self, begin: Instant) {
        (self.begin, self.ran) = (begin, begin);
        self.until_known.set((u64::MAX, begin));
        self.player.iter_mut().for_each(|player| player.begin(begin));
        if let Some(schedule) = &mut self.schedule {
            let share = f64::from(self.index) / f64::from(self.shared.job.workers);
            schedule.next =
                begin + Duration::from_nanos((share * schedule.ns_after(self.shared.job.io_bytes)) as u64);
        }
        self.next_tick = begin + self.first_tick();
        self.next_look = begin;
        self.tally.measures(self.shared.from_ns.load(Ordering::Relaxed) == 0);
        loop {
            let now = clock::now();
            self.closing |= self.shared.stop.load(Ordering::Relaxed) || self.starts_no_more(now);
            if now >= self.next_look {
                self.look(now);
            }
            self.start_ios(now);
            if now >= self.next_tick {
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
        let now = clock::now();
        self.book_what_never_came(now);
        self.await_beats();
        self.tally.ended = now.duration_since(self.begin);
        self.finish_log(now);
        self.snapshot(now);
        let _ = self.reports.send(Report::Ended(self.index));
    }

    /// When the measured time ends. It is asked for with every I/O, and calculated when it has changed.
    #[inline]
    fn until(&self) -> Instant {
        let ns = self.shared.until_ns.load(Ordering::Relaxed);
        let (known, at) = self.until_known.get();
        if known == ns {
            return at;
        }
        let at = self.begin + Duration::from_nanos(ns);
        self.until_known.set((ns, at));
        at
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
        self.tally.errors.failed > FAILURES_MAX || self.shared.stop.load(Ordering::Relaxed)
    }

    /// Flushes the next queues, as many as there are free slots.
    fn flush_more(&mut self) {
        while self.flushed < self.client.queue_count() {
            let now = clock::now();
            let target = self.queue_of.iter().position(|queue| *queue == self.flushed).unwrap_or(0) as u32;
            let owner = Load::of(target, now);
            let order = Order { queue: self.flushed, op: Op::Flush, offset: 0, len: 0, want: 0, owner };
            let Some(tag) = self.client.begin(order, now) else { return };
            self.list.iter_mut().for_each(|list| list.note(now, target, "datasync", 0, 0));
            self.client.push(tag, &mut self.reactor);
            self.client.queue(self.flushed).submit(&mut self.reactor);
            self.flushed += 1;
        }
    }

    fn start_ios(&mut self, mut now: Instant) {
        self.settle_chores();
        self.client.push_again(&mut self.reactor);
        self.held_back = false;
        while !self.closing && !self.client.is_owed() && self.start_one(now) {
            self.send_batch(&mut now);
        }
        self.client.submit(&mut self.reactor);
        self.contents.submit();
    }

    /// False when there is no slot, when the next I/O isn't due yet, or after the last pass.
    #[inline]
    fn start_one(&mut self, now: Instant) -> bool {
        if !self.client.has_free() {
            return false;
        }
        if self.together.is_some() {
            return self.start_rows(now);
        }
        if self.player.is_some() {
            return self.start_replayed(now);
        }
        let Some(started) = self.start_of_next(now) else { return false };
        let next = self.upcoming.take().unwrap_or_else(|| self.pattern.next());
        if self.left.is_none() || self.shared.job.passes.is_some_and(|p| next.pass >= p) {
            self.upcoming = Some(next);
            self.closing = true;
            self.batches.iter_mut().for_each(Batches::cut);
            return false;
        }
        let queue = self.queue_of[next.target as usize];
        if !self.client.queue(queue).takes_more() {
            self.upcoming = Some(next);
            self.held_back = true;
            return false;
        }
        let op = match next.is_read {
            true => Op::Read,
            false => Op::Write { durable: self.shared.job.sync == Sync::Each },
        };
        let owner = Load::of(next.target, started);
        let order = Order { queue, op, offset: next.offset, len: next.len, want: next.len, owner };
        let Some(tag) = self.client.begin(order, now) else { return false };
        if let Some(schedule) = &mut self.schedule {
            schedule.advance(u64::from(next.len));
        }
        if let Some(batches) = &mut self.batches {
            if batches.is_between() {
                self.queries.iter_mut().for_each(|queries| queries.begin_round(started));
            }
            self.client.order(tag).owner.batch = batches.start(started);
        }
        if let Some(pause) = &mut self.pause {
            pause.count();
        }
        self.left.take(u64::from(next.len));
        if self.list.is_some() {
            self.list_one(now, &order);
        }
        if next.is_read || !(self.shared.job.verify || self.shared.job.refill) {
            self.client.push(tag, &mut self.reactor);
        } else {
            self.fill(tag);
        }
        true
    }

    /// From when the next I/O counts: the start of its batch, the moment when it was due, or now. None while it may not start.
    #[inline]
    fn start_of_next(&mut self, now: Instant) -> Option<Instant> {
        if let Some(pause) = &mut self.pause {
            if !pause.is_over(now, self.client.in_flight()) {
                return None;
            }
        }
        match &self.batches {
            Some(batches) if !batches.may_start(self.client.free_count()) => {
                self.held_back = true;
                return None;
            }
            Some(batches) if batches.began().is_some() => return batches.began(),
            _ => {}
        }
        match &self.schedule {
            Some(schedule) if schedule.next > now || !schedule.is_due_before(self.until()) => None,
            Some(schedule) => Some(schedule.next),
            None => Some(now),
        }
    }

    fn wait(&mut self, now: Instant) {
        let mut until = self.next_tick.min(self.next_look);
        let mut paced = None;
        if !self.closing {
            until = until.min(self.next_edge(now));
            let schedule = self.schedule.as_ref().filter(|_| self.client.has_free() && !self.held_back);
            paced = schedule.map(|schedule| schedule.wakes_at(self.shared.job.io_bytes));
            until = paced.map_or(until, |at| until.min(at));
            if let Some(over) = self.pause.as_ref().and_then(Pause::until) {
                until = until.min(over);
            }
            if let Some(due) = self.player_is_due(now) {
                until = until.min(due);
            }
        }
        for due in self.client.next_due().into_iter().chain(self.contents.next_due()) {
            until = until.min(due);
        }
        if until > now {
            let (at_least, patience) = self.batch();
            self.reactor.wait(at_least, until, patience);
            if let Some(schedule) = self.schedule.as_mut().filter(|_| paced == Some(until)) {
                let late = clock::now().saturating_duration_since(until);
                if !late.is_zero() {
                    schedule.overslept(late);
                }
            }
        } else {
            self.reactor.flush();
        }
    }

    fn tick(&mut self, now: Instant) {
        self.snapshot(now);
        self.refuse_broken_log();
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

    /// Adds the client's counters to the tally.
    fn take_stock(&mut self) {
        let Client { short, retried, .. } = self.client;
        (self.tally.errors.short, self.tally.errors.retried) = (short, retried);
        self.tally.lost = self.client.lost();
    }

    /// Releases everything except memory that the kernel may still write to.
    fn close(mut self) {
        self.take_stock();
        let tally = std::mem::take(&mut self.tally);
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

mod chores;
mod ending;
mod overdue;
mod replayed;
mod requests;
mod rows;
#[cfg(test)]
mod tests;
