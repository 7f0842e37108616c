//! A worker's counters.

use forebay_io::{Travelled, Via};
use forebay_model::pattern::Next;
use forebay_model::record::Errors;
use forebay_model::Latency;
use std::time::Duration;

const EXAMPLES_MAX: usize = 5;

pub const READ: usize = 0;
pub const WRITE: usize = 1;

/// Place of an I/O's direction, found without a branch: a mix is drawn, and no processor predicts it.
#[inline]
fn way_of(is_read: bool) -> usize {
    usize::from(!is_read)
}

/// The I/Os of one direction.
#[derive(Clone, Debug, Default)]
pub struct DirectionTally {
    pub latency: Latency,
    pub bytes: u64,
    pub ios: u64,
}

impl DirectionTally {
    fn moved(&self) -> Moved {
        let mean_ns = if self.latency.count() > 0 { self.latency.mean_ns() } else { 0.0 };
        Moved { bytes: self.bytes, ios: self.ios, mean_ns }
    }

    fn add(&mut self, other: &DirectionTally) {
        if other.ios > 0 || other.latency.count() > 0 {
            self.latency.merge(&other.latency);
            (self.bytes, self.ios) = (self.bytes + other.bytes, self.ios + other.ios);
        }
    }

    fn clear(&mut self) {
        if self.ios > 0 || self.latency.count() > 0 {
            self.latency.clear();
            (self.bytes, self.ios) = (0, 0);
        }
    }
}

/// Everything one worker has to say at the end.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub worker: u32,
    pub cpu: Option<u32>,
    /// The NUMA node that it was kept on.
    pub numa: Option<u32>,
    /// Reads and writes; `READ` and `WRITE` are their places.
    pub ways: [DirectionTally; 2],
    /// Flushes of the measured time.
    pub flush: Option<Box<Latency>>,
    /// The copy of `bounce`.
    pub copy: Option<Box<Latency>>,
    /// Latency of complete batches.
    pub batches: Option<Box<Latency>>,
    /// Latency of queries all of whose rounds ended.
    pub queries: Option<Box<Latency>>,
    pub travelled: Travelled,
    pub verified_bytes: u64,
    /// (bytes, ios) by target.
    pub targets: Vec<(u64, u64)>,
    pub errors: Errors,
    /// Finished after the end of the measured time: in the latencies, and in no other count.
    pub late: u64,
    /// Never finished, though due by the end: in the latencies as having waited until they were given up.
    pub unfinished: u64,
    pub unfinished_oldest: Duration,
    /// Slots that the device never gave back.
    pub lost: u32,
    /// When its last I/O was booked, since the run began.
    pub ended: Duration,
    interval: Interval,
}

/// The latency that came last, and how often in a row: I/Os that started together and were found done together have the
/// same, and looking its bucket up costs as much as all else about one.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    ns: u64,
    count: u64,
}

impl Row {
    #[inline]
    fn record(&mut self, ns: u64, count: u64, into: &mut Latency) {
        if ns != self.ns {
            self.flush(into);
            self.ns = ns;
        }
        self.count += count;
    }

    fn flush(&mut self, into: &mut Latency) {
        if self.count > 0 {
            into.record_n(self.ns, std::mem::take(&mut self.count));
        }
    }
}

/// Something whose latency is told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Timed {
    Ios {
        is_read: bool,
        count: u64,
    },
    /// Finished after the end.
    Late {
        is_read: bool,
        count: u64,
    },
    Flush,
    Batch,
    /// Of dependent reads.
    Query,
}

/// Since the last snapshot.
#[derive(Clone, Debug, Default)]
struct Interval {
    /// Latency of the I/Os that came last: as a `Row`, but of reads and writes, which one comparison tells.
    ns: u64,
    /// Reads and writes, each with the number of its I/Os in that row.
    ways: [(u64, DirectionTally); 2],
    copy_row: Row,
    targets: Vec<u64>,
    measured: bool,
}

impl Interval {
    #[inline]
    fn flush(&mut self) {
        for (row, way) in &mut self.ways {
            if *row > 0 {
                way.latency.record_n(self.ns, std::mem::take(row));
            }
        }
    }
}

/// Bytes and I/Os of one direction, and their mean latency where it is known.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moved {
    pub bytes: u64,
    pub ios: u64,
    pub mean_ns: f64,
}

impl Moved {
    pub(crate) fn add(&mut self, other: Moved) {
        let ios = self.ios + other.ios;
        let sum_ns = self.mean_ns * self.ios as f64 + other.mean_ns * other.ios as f64;
        *self = Moved { bytes: self.bytes + other.bytes, ios, mean_ns: sum_ns / ios.max(1) as f64 };
    }
}

/// Counts of a worker's measured time.
#[derive(Clone, Copy, Debug, Default)]
pub struct SoFar {
    /// Reads and writes.
    pub ways: [Moved; 2],
    pub travelled: Travelled,
    pub verified_bytes: u64,
}

/// One interval of one worker.
#[derive(Debug)]
pub struct Snapshot {
    pub worker: u32,
    /// Number of the interval; the same number is the same time at every worker.
    pub index: u64,
    /// End of the interval since the run began.
    pub at: Duration,
    pub bytes: u64,
    pub ios: u64,
    /// Reads and writes of these.
    pub ways: [Moved; 2],
    /// Totals up to the end of the interval, without latencies.
    pub so_far: SoFar,
    pub mean_ns: f64,
    pub measured: bool,
    /// Reads' and writes', of those that there were; nobody's without histograms.
    pub latency: [Option<Latency>; 2],
    pub targets: Vec<u64>,
}

impl Tally {
    pub fn new(worker: u32, cpu: Option<u32>, targets: usize) -> Tally {
        let interval = Interval { targets: vec![0; targets], ..Interval::default() };
        Tally { worker, cpu, targets: vec![(0, 0); targets], interval, ..Tally::default() }
    }

    /// Sets whether the interval that begins now is part of the measured time.
    pub fn measures(&mut self, measured: bool) {
        self.interval.measured = measured;
    }

    /// Returns whether bookings count for the run now, and not for the series alone.
    pub(crate) fn is_measuring(&self) -> bool {
        self.interval.measured
    }

    /// Books an I/O: in the warm-up only into the series.
    #[inline]
    pub fn complete(&mut self, io: &Next, took: Duration, via: Via, copy_ns: u32) {
        self.complete_rows(io, 1, took, (via, 0), copy_ns);
    }

    /// Books `count` I/Os that were one, as `io` each. `went`: their way, and bytes of them that were staged instead.
    #[inline(always)]
    pub(crate) fn complete_rows(
        &mut self,
        io: &Next,
        count: u64,
        took: Duration,
        went: (Via, u64),
        copy_ns: u32,
    ) {
        let ns = took.as_nanos() as u64;
        if ns != self.interval.ns {
            self.interval.flush();
            self.interval.ns = ns;
        }
        self.interval.ways[way_of(io.is_read)].0 += count;
        self.move_rows(io, count, went, copy_ns);
    }

    /// Books what I/Os moved, as `complete_rows` does, without their latency.
    #[inline(always)]
    pub(crate) fn move_rows(&mut self, io: &Next, count: u64, went: (Via, u64), copy_ns: u32) {
        let bytes = u64::from(io.len) * count;
        let (_, way) = &mut self.interval.ways[way_of(io.is_read)];
        way.bytes += bytes;
        way.ios += count;
        self.interval.targets[io.target as usize] += bytes;
        if !self.interval.measured {
            return;
        }
        let (via, staged) = (went.0, went.1.min(bytes));
        self.travelled.add(via, bytes - staged);
        self.travelled.add(Via::Staged, staged);
        let target = &mut self.targets[io.target as usize];
        target.0 += bytes;
        target.1 += count;
        if copy_ns > 0 {
            self.interval.copy_row.record(u64::from(copy_ns), count, self.copy.get_or_insert_default());
        }
    }

    /// Books a latency of what was counted before, when an interval was under way that was measured or not. That of a
    /// warm-up that is over belongs nowhere.
    pub fn time(&mut self, what: Timed, took: Duration, measured: bool) {
        let ns = took.as_nanos() as u64;
        match what {
            Timed::Ios { is_read, count } if measured == self.interval.measured => {
                self.interval.ways[way_of(is_read)].1.latency.record_n(ns, count);
            }
            Timed::Late { is_read, count } => self.ways[way_of(is_read)].latency.record_n(ns, count),
            Timed::Flush if measured => self.flush.get_or_insert_default().record(ns),
            Timed::Batch if measured => self.batches.get_or_insert_default().record(ns),
            Timed::Query if measured => self.queries.get_or_insert_default().record(ns),
            Timed::Ios { .. } | Timed::Flush | Timed::Batch | Timed::Query => {}
        }
    }

    /// Counts I/Os that finished after the end; their latency, which counts as well, is told with `time`.
    pub(crate) fn count_late(&mut self, count: u64, copy_ns: u32) {
        self.late += count;
        if copy_ns > 0 {
            self.copy.get_or_insert_default().record_n(u64::from(copy_ns), count);
        }
    }

    /// Books I/Os that had waited for so long when they were given up.
    pub(crate) fn leave_unfinished(&mut self, is_read: bool, waited: Duration, ios: u64) {
        self.unfinished += ios;
        self.unfinished_oldest = self.unfinished_oldest.max(waited);
        self.ways[way_of(is_read)].latency.record_n(waited.as_nanos() as u64, ios);
    }

    /// I/Os of the measured time, those since the last snapshot included.
    pub fn ios(&self) -> u64 {
        let since: u64 = self.interval.ways.iter().map(|(_, way)| way.ios).sum();
        self.ways.iter().map(|way| way.ios).sum::<u64>() + if self.interval.measured { since } else { 0 }
    }

    /// Bytes of the measured time up to the last snapshot.
    pub fn bytes(&self) -> u64 {
        self.ways.iter().map(|way| way.bytes).sum()
    }

    /// Latency of all I/Os, reads and writes.
    pub fn latency(&self) -> Latency {
        let mut all = self.ways[READ].latency.clone();
        all.merge(&self.ways[WRITE].latency);
        all
    }

    pub fn example(&mut self, text: String) {
        if self.errors.examples.len() < EXAMPLES_MAX {
            self.errors.examples.push(text);
        }
    }

    /// Closes the interval that ends at `at`. Its latencies join the total if it was measured.
    pub fn snapshot(&mut self, at: Duration, measures_next: bool, with_histogram: bool) -> Snapshot {
        let interval = &mut self.interval;
        interval.flush();
        if let Some(copy) = &mut self.copy {
            interval.copy_row.flush(copy);
        }
        if interval.measured {
            self.ways.iter_mut().zip(&interval.ways).for_each(|(all, (_, way))| all.add(way));
        }
        let ways = interval.ways.each_ref().map(|(_, way)| way.moved());
        let ios = ways.iter().map(|way| way.ios).sum();
        let kept =
            |way: &DirectionTally| (with_histogram && way.latency.count() > 0).then(|| way.latency.clone());
        let snapshot = Snapshot {
            worker: self.worker,
            index: 0,
            at,
            bytes: ways.iter().map(|way| way.bytes).sum(),
            ios,
            ways,
            so_far: SoFar {
                ways: self.ways.each_ref().map(|way| Moved { bytes: way.bytes, ios: way.ios, mean_ns: 0.0 }),
                travelled: self.travelled,
                verified_bytes: self.verified_bytes,
            },
            mean_ns: ways.iter().map(|way| way.mean_ns * way.ios as f64).sum::<f64>() / ios.max(1) as f64,
            measured: interval.measured,
            latency: interval.ways.each_ref().map(|(_, way)| kept(way)),
            targets: interval.targets.clone(),
        };
        interval.ways.iter_mut().for_each(|(_, way)| way.clear());
        interval.measured = measures_next;
        interval.targets.fill(0);
        snapshot
    }
}
