//! The I/Os that a worker starts, one after the other: drawn from a pattern, or read from a list; when each is due, and
//! until the job's limits are reached. It knows neither queues nor slots: its owner says how many are free, and gives
//! back what found no room.

use super::measured_time::MeasuredTime;
use crate::batches::{self, Batches, Queries};
use crate::pause::{Left, Pause};
use crate::replay::{self, Player};
use crate::schedule::{mean_io_bytes, schedule_of, Schedule};
use forebay_io::Op;
use forebay_model::iolog::Kind;
use forebay_model::job::{JobSpec, Sync};
use forebay_model::pattern::{Next, Pattern, PatternSpec};
use forebay_model::Error;
use std::time::{Duration, Instant};

/// Waits of I/Os that were never started are told in at most so many groups.
const GROUPS_MAX: u64 = 1000;

/// An I/O that may start. Its latency counts from `started`: in an open loop when it was due, in a batch when that began.
#[derive(Clone, Copy)]
pub(super) struct Request {
    pub io: Next,
    pub op: Op,
    pub started: Instant,
}

impl Request {
    /// It moves data.
    #[inline]
    pub(super) fn moves(&self) -> bool {
        matches!(self.op, Op::Read | Op::Write { .. })
    }
}

/// Answer to "what next?".
pub(super) enum Turn {
    Io(Request),
    /// Nothing before time passes, or an I/O ends.
    Later,
    /// Nothing before more slots are free.
    NoRoom,
    /// Nothing any more.
    Ended,
    /// The list that is read can't be read on.
    Broken(Error),
}

/// What ended with an I/O, and how long it took.
pub(super) struct Ended {
    pub batch: Option<Duration>,
    pub query: Option<Duration>,
}

/// Reads that are one I/O of a queue (`Queue::push_rows`).
struct Rows {
    /// Reads of an I/O.
    most: u32,
    /// An I/O of so many is a batch that was asked for.
    are_batches: bool,
    /// Offsets at which drawn rows begin.
    offsets: Vec<u64>,
}

pub(super) struct Generator {
    pattern: Pattern,
    /// Drawn, and not started.
    upcoming: Option<Next>,
    /// Of a list of I/Os, instead of the pattern.
    player: Option<Box<Player>>,
    rows: Option<Rows>,
    /// Of an open loop.
    pub schedule: Option<Schedule>,
    pause: Option<Pause>,
    /// I/Os and bytes that may still start, and passes over the data.
    left: Left,
    passes: u32,
    batches: Option<Batches>,
    /// Whose rounds are batches.
    queries: Option<Queries>,
    write: Op,
    io_bytes: u64,
    io_bytes_mean: f64,
    reads_pct: u64,
}

impl Generator {
    /// Worker number `index`'s. `rows`: reads that are one I/O, where they are several.
    pub(super) fn open(
        job: &JobSpec,
        pattern: PatternSpec,
        index: u32,
        rows: Option<u32>,
        now: Instant,
    ) -> Result<Generator, Error> {
        let are_batches = job.batch.is_some();
        let rows_of = |most| Rows { most, are_batches, offsets: Vec::with_capacity(most as usize) };
        Ok(Generator {
            pattern: Pattern::new(pattern)?,
            upcoming: None,
            player: Player::open(job, index, now)?,
            rows: rows.map(rows_of),
            schedule: schedule_of(job, index),
            pause: Pause::for_job(job)?,
            left: Left::for_job(job),
            passes: job.passes.unwrap_or(u32::MAX),
            batches: Batches::sized(job.batch).filter(|_| rows.is_none()),
            queries: job.parsed_rounds()?.map(|rounds| Queries::new(rounds.hops, now)),
            write: Op::Write { durable: job.sync == Sync::Each },
            io_bytes: job.io_bytes,
            io_bytes_mean: mean_io_bytes(job),
            reads_pct: u64::from(job.reads_pct()),
        })
    }

    /// The run begins. `share`: the part of a distance by which this worker's schedule is behind the first one's.
    pub(super) fn begin(&mut self, at: Instant, share: f64) {
        self.player.iter_mut().for_each(|player| player.begin(at));
        if let Some(schedule) = &mut self.schedule {
            schedule.next = at + Duration::from_nanos((share * schedule.ns_after(self.io_bytes)) as u64);
        }
    }

    /// The next I/O, if it may start. It is to be `started`, or to be `put_back`.
    #[inline]
    pub(super) fn turn(&mut self, now: Instant, time: &MeasuredTime, free: usize, in_flight: u32) -> Turn {
        if self.player.is_some() {
            return self.turn_of_list(now, in_flight);
        }
        if self.pause.as_mut().is_some_and(|pause| !pause.is_over(now, in_flight)) {
            return Turn::Later;
        }
        let started = match (&self.batches, &self.schedule) {
            (Some(batches), _) if !batches.may_start(free) => return Turn::NoRoom,
            (Some(batches), _) if !batches.is_between() => batches.began().unwrap_or(now),
            (_, Some(s)) if s.next > now || !s.is_due_before(time.until()) => return Turn::Later,
            (_, Some(schedule)) => schedule.next,
            (_, None) => now,
        };
        let io = self.upcoming.take().unwrap_or_else(|| self.pattern.next());
        if self.is_over_at(&io) {
            self.upcoming = Some(io);
            self.batches.iter_mut().for_each(Batches::cut);
            return Turn::Ended;
        }
        Turn::Io(Request { io, op: if io.is_read { Op::Read } else { self.write }, started })
    }

    fn turn_of_list(&mut self, now: Instant, in_flight: u32) -> Turn {
        let Some(player) = &mut self.player else { return Turn::Ended };
        let io = match player.turn(now, in_flight) {
            replay::Turn::Io(_) if self.left.is_none() => return Turn::Ended,
            replay::Turn::Io(io) => io,
            replay::Turn::Later => return Turn::Later,
            replay::Turn::Ended => return Turn::Ended,
            replay::Turn::Broken(why) => return Turn::Broken(why),
        };
        let op = match io.kind {
            Kind::Read => Op::Read,
            Kind::Write => self.write,
            Kind::Trim => Op::Deallocate,
            Kind::Sync => Op::Flush,
        };
        let is_read = op == Op::Read;
        let io = Next { target: io.file, offset: io.offset, len: io.len, is_read, pass: 0 };
        Turn::Io(Request { io, op, started: now })
    }

    #[inline]
    fn is_over_at(&self, next: &Next) -> bool {
        self.left.is_none() || next.pass >= self.passes
    }

    /// There was no room for it: it is the next one again.
    pub(super) fn put_back(&mut self, request: &Request) {
        if self.player.is_none() {
            self.upcoming = Some(request.io);
        }
    }

    /// It has started. Returns the batch that it is of, or `batches::NONE`.
    #[inline]
    pub(super) fn started(&mut self, request: &Request, now: Instant) -> u32 {
        let bytes = u64::from(request.io.len);
        if let Some(player) = &mut self.player {
            player.started(now);
            if request.moves() {
                self.left.take(bytes);
            }
            return batches::NONE;
        }
        self.left.take(bytes);
        if let Some(schedule) = &mut self.schedule {
            schedule.advance(bytes);
        }
        if let Some(pause) = &mut self.pause {
            pause.count();
        }
        let Some(batches) = &mut self.batches else { return batches::NONE };
        if batches.is_between() {
            self.queries.iter_mut().for_each(|queries| queries.begin_round(request.started));
        }
        batches.start(request.started)
    }

    /// Each I/O is several reads, drawn by `draw_rows`.
    #[inline]
    pub(super) fn draws_rows(&self) -> bool {
        self.rows.is_some()
    }

    /// Offsets of as many reads as one I/O holds, from `first` on; fewer where the job ends, or the next is of another
    /// length. All of them are started.
    pub(super) fn draw_rows(&mut self, first: &Next) -> &[u64] {
        let most = self.rows.as_ref().map_or(1, |rows| rows.most) as usize;
        let mut offsets =
            self.rows.as_mut().map(|rows| std::mem::take(&mut rows.offsets)).unwrap_or_default();
        offsets.clear();
        let mut next = *first;
        while offsets.len() < most {
            if self.is_over_at(&next) || next.len != first.len {
                self.upcoming = Some(next);
                break;
            }
            offsets.push(next.offset);
            self.left.take(u64::from(next.len));
            if offsets.len() < most {
                next = self.pattern.next();
            }
        }
        let Some(rows) = &mut self.rows else { return &[] };
        rows.offsets = offsets;
        &rows.offsets
    }

    /// Returns whether an I/O of so many reads is a whole batch.
    pub(super) fn is_batch(&self, rows: u32) -> bool {
        self.rows.as_ref().is_some_and(|all| all.are_batches && rows == all.most)
    }

    /// No batch lacks I/Os: what was started can be sent.
    #[inline]
    pub(super) fn is_between_batches(&self) -> bool {
        self.rows.is_some() || self.batches.as_ref().is_some_and(Batches::is_between)
    }

    /// An I/O of `batch` has ended. `came`: whole, and in time.
    #[inline]
    pub(super) fn ended(&mut self, batch: u32, now: Instant, came: bool) -> Ended {
        let Some(batches) = &mut self.batches else { return Ended { batch: None, query: None } };
        let batch = batches.end(batch, now, came);
        let queries = self.queries.as_mut().filter(|_| batch.is_some() || !came);
        Ended { batch, query: queries.and_then(|queries| queries.end_round(now, batch.is_some())) }
    }

    /// Something was due before `end`, and isn't started.
    pub(super) fn owes(&self, end: Instant) -> bool {
        self.schedule.as_ref().is_some_and(|schedule| schedule.is_due_before(end))
    }

    /// When to be awake for an open loop's next I/O.
    pub(super) fn wakes_at(&self) -> Option<Instant> {
        self.schedule.as_ref().map(|schedule| schedule.wakes_at(self.io_bytes))
    }

    /// A sleep until then ended so much later.
    pub(super) fn overslept(&mut self, by: Duration) {
        self.schedule.iter_mut().filter(|_| !by.is_zero()).for_each(|schedule| schedule.overslept(by));
    }

    /// When a pause is over.
    pub(super) fn pauses_until(&self) -> Option<Instant> {
        self.pause.as_ref().and_then(Pause::until)
    }

    /// When the list's next I/O may start, if only time keeps it.
    pub(super) fn list_is_due(&self, now: Instant) -> Option<Instant> {
        self.player.as_deref().and_then(Player::due).filter(|due| *due > now)
    }

    /// Each I/O counts from when it was due.
    pub(super) fn is_open_loop(&self) -> bool {
        self.schedule.is_some()
    }

    /// Tells `each` of I/Os that were due by `end` and never started, and how long they have waited by `now`: whether
    /// they are reads, their wait, their number.
    pub(super) fn never_started(
        &self,
        end: Instant,
        now: Instant,
        mut each: impl FnMut(bool, Duration, u64),
    ) {
        let is_over = self.left.is_none() || self.upcoming.is_some_and(|next| next.pass >= self.passes);
        let Some(schedule) = self.schedule.as_ref().filter(|_| !is_over) else { return };
        let (gap_ns, due) = schedule.owed(end.min(now), self.io_bytes_mean);
        let oldest = now.saturating_duration_since(schedule.next);
        let groups = due.min(GROUPS_MAX);
        // Of a mix, in its proportion: which would have been reads was never drawn.
        let reads_by = |ios: u64| ios * self.reads_pct / 100;
        for group in 0..groups {
            let (first, after) = (due * group / groups, due * (group + 1) / groups);
            // The first counts as what it is, the others as the middle of their group.
            let nth = if group == 0 { 0 } else { first + (after - first) / 2 };
            let waited_ns = oldest.as_nanos() as f64 - gap_ns * nth as f64;
            let waited = Duration::from_nanos(waited_ns.max(0.0) as u64);
            let reads = reads_by(after) - reads_by(first);
            for (is_read, ios) in [(true, reads), (false, after - first - reads)] {
                each(is_read, waited, ios);
            }
        }
    }
}
