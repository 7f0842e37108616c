//! Results of a worker's I/Os: what they moved and how long they took, in the tally of the interval that is under way,
//! and in the log.
//!
//! An I/O that the end of the measured time overtakes counts for no rate, and its waiting does: a device that stops answering
//! before the end and comes back after it would otherwise show no latency but that of its good moments. What never
//! comes back has waited until it was given up.
//!
//! A latency of 30 ms and more may have a standstill of the process in it: it is told once that is known, without it.

use super::measured_time::MeasuredTime;
use super::Issued;
use crate::io_log::{IoLog, Note};
use crate::run_kit::{Shared, Snapshot, Standstills, Tally, Timed, WorkerSpec};
use crate::run_kit::{STANDSTILL_EXACT, STANDSTILL_MIN};
use forebay_io::Via;
use forebay_model::pattern::Next;
use forebay_model::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time between two looks for the beat that the end waits for.
const SOON: Duration = Duration::from_millis(1);

/// I/Os that are found done together. Of those that started together, as in a batch, latency is calculated once: the
/// standard library's subtraction of instants is a call for each.
pub(super) struct Found {
    pub now: Instant,
    /// They came in time to count.
    pub counted: bool,
    started: Instant,
    took: Duration,
}

impl Found {
    #[inline]
    fn took_since(&mut self, started: Instant) -> Duration {
        if started != self.started {
            (self.started, self.took) = (started, self.now.duration_since(started));
        }
        self.took
    }
}

/// The way that an I/O's bytes went, those of them that were staged instead, and the time of `bounce`'s copy.
#[derive(Clone, Copy)]
pub(super) struct Went {
    pub via: Via,
    pub staged: u64,
    pub copy_ns: u32,
}

/// Something that ended while no beat told what its time was.
struct Deferred {
    what: Timed,
    /// Line of the log.
    logged: Option<Next>,
    started: Instant,
    ended: Instant,
    /// When I/Os had been booked before.
    booked: Instant,
    measured: bool,
}

pub(super) struct Recorder {
    pub time: MeasuredTime,
    pub tally: Tally,
    log: Option<Box<IoLog>>,
    standstills: Arc<Standstills>,
    deferred: Vec<Deferred>,
    /// When I/Os were booked last: the process didn't stand still then.
    pub booked: Instant,
    /// End of the interval that is under way, its number and length.
    next_tick: Instant,
    tick_index: u64,
    interval: Duration,
    with_histograms: bool,
}

impl Recorder {
    pub(super) fn open(spec: &WorkerSpec, shared: &Arc<Shared>, now: Instant) -> Result<Recorder, Error> {
        Ok(Recorder {
            time: MeasuredTime::new(shared, now),
            tally: Tally::new(spec.index, spec.cpu, shared.targets.len()),
            log: IoLog::open(&shared.job, spec.index)?,
            standstills: shared.standstills.clone(),
            deferred: Vec::new(),
            booked: now,
            next_tick: now,
            tick_index: 0,
            interval: shared.interval,
            with_histograms: shared.with_histograms,
        })
    }

    /// The run begins.
    pub(super) fn begin(&mut self, at: Instant) {
        self.time.begin(at);
        self.booked = at;
        self.next_tick = self.time.first_tick();
        self.tally.measures(self.time.from() == at);
    }

    /// When the interval ends.
    #[inline]
    pub(super) fn next_tick(&self) -> Instant {
        self.next_tick
    }

    /// Ends the interval.
    pub(super) fn tick(&mut self, now: Instant) -> Snapshot {
        let snapshot = self.snapshot(now);
        while self.next_tick <= now {
            self.next_tick += self.interval;
            self.tick_index += 1;
        }
        snapshot
    }

    pub(super) fn snapshot(&mut self, now: Instant) -> Snapshot {
        let (at, measures_next) = (self.time.counted(now), now >= self.time.from());
        let snapshot = self.tally.snapshot(at, measures_next, self.with_histograms);
        Snapshot { index: self.tick_index, ..snapshot }
    }

    /// Bookings count for the run now, and not for the series alone.
    #[inline]
    pub(super) fn is_measuring(&self) -> bool {
        self.tally.is_measuring()
    }

    /// What is found done at `now`. `even_late`: it counts after the end, too.
    #[inline]
    pub(super) fn find(&self, now: Instant, even_late: bool) -> Found {
        let counted = now <= self.time.until() || even_late;
        Found { now, counted, started: now, took: Duration::ZERO }
    }

    /// Books an I/O that came whole: `rows` reads or writes, each as `io`. Inlined where `rows` is known to be 1: it is
    /// what each I/O goes through.
    #[inline(always)]
    pub(super) fn book(&mut self, io: &Next, rows: u32, of: &Issued, went: Went, found: &mut Found) {
        if !found.counted {
            return self.book_late(io.is_read, of, found.now, went.copy_ns);
        }
        let took = found.took_since(of.started);
        if took >= STANDSTILL_MIN {
            return self.book_long(io, of, went, found.now);
        }
        self.tally.complete_rows(io, rows.into(), took, (went.via, went.staged), went.copy_ns);
        if self.log.is_some() && self.is_measuring() {
            (0..rows).for_each(|_| self.log_one(io, took, found.now));
        }
    }

    /// Books what an I/O moved now, and its latency once it is known.
    #[cold]
    fn book_long(&mut self, io: &Next, of: &Issued, went: Went, ended: Instant) {
        let count = of.rows.into();
        self.tally.move_rows(io, count, (went.via, went.staged), went.copy_ns);
        let measured = self.is_measuring();
        let logged = (self.log.is_some() && measured).then_some(*io);
        let what = Timed::Ios { is_read: io.is_read, count };
        let (started, booked) = (of.started, self.booked);
        self.tell(Deferred { what, logged, started, ended, booked, measured });
    }

    /// Books an I/O that finished after the end.
    #[cold]
    fn book_late(&mut self, is_read: bool, of: &Issued, now: Instant, copy_ns: u32) {
        if self.time.has_measured(now) {
            let count = of.rows.into();
            self.tally.count_late(count, copy_ns);
            let took = now.duration_since(of.started);
            self.book_time(Timed::Late { is_read, count }, of.started, now, took);
        }
    }

    #[inline]
    pub(super) fn book_flush(&mut self, started: Instant, found: &mut Found) {
        let took = found.took_since(started);
        self.book_time(Timed::Flush, started, found.now, took);
    }

    /// Books the latency of several I/Os together, a batch or a query.
    pub(super) fn book_whole(&mut self, what: Timed, ended: Instant, took: Duration) {
        self.book_time(what, ended.checked_sub(took).unwrap_or(ended), ended, took);
    }

    fn book_time(&mut self, what: Timed, started: Instant, ended: Instant, took: Duration) {
        let measured = self.is_measuring();
        if took < STANDSTILL_MIN {
            return self.tally.time(what, took, measured);
        }
        self.tell(Deferred { what, logged: None, started, ended, booked: self.booked, measured });
    }

    /// Books an I/O that was given up.
    pub(super) fn book_unfinished(&mut self, is_read: bool, of: &Issued, now: Instant) {
        if self.time.has_measured(now) {
            let stood_still = self.standstills.while_under_way(of.started, now, self.booked);
            let waited = now.duration_since(of.started).saturating_sub(stood_still);
            self.tally.leave_unfinished(is_read, waited, of.rows.into());
        }
    }

    /// All that was found done at `now` is booked: the process ran then.
    pub(super) fn end_round(&mut self, now: Instant) {
        self.booked = now;
        if !self.deferred.is_empty() {
            self.settle_deferred();
        }
    }

    fn tell(&mut self, one: Deferred) {
        if !self.standstills.are_known_at(one.ended) {
            return self.deferred.push(one);
        }
        let stood_still = self.standstills.while_under_way(one.started, one.ended, one.booked);
        let took = one.ended.saturating_duration_since(one.started).saturating_sub(stood_still);
        if let (Some(io), Timed::Ios { count, .. }) = (&one.logged, one.what) {
            (0..count).for_each(|_| self.log_one(io, took, one.ended));
        }
        // When a standstill began is known to a beat: what little is left of such an I/O is nobody's latency.
        if stood_still.is_zero() || took >= STANDSTILL_EXACT {
            self.tally.time(one.what, took, one.measured);
        }
    }

    /// Tells the latencies that waited for a beat, if it has come.
    pub(super) fn settle_deferred(&mut self) {
        // Where the oldest isn't known, none is.
        if self.deferred.first().is_some_and(|one| !self.standstills.are_known_at(one.ended)) {
            return;
        }
        std::mem::take(&mut self.deferred).into_iter().for_each(|one| self.tell(one));
    }

    /// Waits at the end for the beat that tells what is left to be told.
    pub(super) fn await_beats(&mut self) {
        self.settle_deferred();
        while !self.deferred.is_empty() {
            std::thread::sleep(SOON);
            self.settle_deferred();
        }
    }

    /// A line of the log, where there is one.
    #[cold]
    fn log_one(&mut self, io: &Next, took: Duration, now: Instant) {
        let at = now.saturating_duration_since(self.time.from());
        let note = Note { at, took, is_read: io.is_read, bytes: io.len, offset: io.offset };
        self.log.iter_mut().for_each(|log| log.note(&note));
    }

    /// The run has ended: nothing more comes.
    pub(super) fn finish(&mut self, now: Instant) {
        self.await_beats();
        self.tally.ended = now.duration_since(self.time.begin);
        let end = now.min(self.time.until()).saturating_duration_since(self.time.from());
        self.log.iter_mut().for_each(|log| log.finish(end));
    }

    /// Why lines are missing from the log; told once.
    pub(super) fn log_failure(&mut self) -> Option<Error> {
        self.log.as_mut()?.failure()
    }
}
