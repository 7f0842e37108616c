//! A worker's counters.

use forebay_io::queue::{Travelled, Via};
use forebay_model::pattern::Next;
use forebay_model::record::Errors;
use forebay_model::Latency;
use std::time::Duration;

const EXAMPLES_MAX: usize = 5;

/// Everything one worker has to say at the end.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub worker: u32,
    pub cpu: Option<u32>,
    /// The NUMA node that it was kept on.
    pub numa: Option<u32>,
    pub latency: Latency,
    /// The copy of `bounce`.
    pub copy: Option<Box<Latency>>,
    /// Latency of complete batches.
    pub batches: Option<Box<Latency>>,
    pub ios: u64,
    pub read_bytes: u64,
    pub write_bytes: u64,
    pub travelled: Travelled,
    pub verified_bytes: u64,
    /// (bytes, ios) by target.
    pub targets: Vec<(u64, u64)>,
    pub errors: Errors,
    /// Finished after the end of the measured time: in `latency`, and in no other count.
    pub late: u64,
    /// Never finished, though due by the end: in `latency` as having waited until they were given up.
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

/// Since the last snapshot.
#[derive(Clone, Debug, Default)]
struct Interval {
    latency: Latency,
    /// Row of `latency`, and of the copies.
    row: Row,
    copy_row: Row,
    bytes: u64,
    ios: u64,
    targets: Vec<u64>,
    measured: bool,
}

/// Counts of a worker's measured time.
#[derive(Clone, Copy, Debug, Default)]
pub struct SoFar {
    pub ios: u64,
    pub read_bytes: u64,
    pub write_bytes: u64,
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
    /// Totals up to the end of the interval, without latencies.
    pub so_far: SoFar,
    pub mean_ns: f64,
    pub measured: bool,
    pub latency: Option<Latency>,
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
    pub fn is_measuring(&self) -> bool {
        self.interval.measured
    }

    /// Books an I/O: in the warm-up only into the series.
    #[inline]
    pub fn complete(&mut self, io: &Next, took: Duration, via: Via, copy_ns: u32) {
        self.complete_rows(io, 1, took, (via, 0), copy_ns);
    }

    /// Books `count` I/Os that were one, as `io` each. `went`: their way, and bytes of them that were staged instead.
    #[inline]
    pub fn complete_rows(&mut self, io: &Next, count: u64, took: Duration, went: (Via, u64), copy_ns: u32) {
        let bytes = u64::from(io.len) * count;
        self.interval.row.record(took.as_nanos() as u64, count, &mut self.interval.latency);
        self.interval.bytes += bytes;
        self.interval.ios += count;
        self.interval.targets[io.target as usize] += bytes;
        if !self.interval.measured {
            return;
        }
        self.ios += count;
        if io.is_read {
            self.read_bytes += bytes;
        } else {
            self.write_bytes += bytes;
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

    /// Books a batch whose last I/O finished.
    pub fn complete_batch(&mut self, took: Duration) {
        if self.interval.measured {
            self.batches.get_or_insert_default().record(took.as_nanos() as u64);
        }
    }

    /// Books an I/O that finished after the end: its latency alone.
    pub fn complete_late(&mut self, took: Duration, copy_ns: u32) {
        self.late += 1;
        self.latency.record(took.as_nanos() as u64);
        if copy_ns > 0 {
            self.copy.get_or_insert_default().record(u64::from(copy_ns));
        }
    }

    /// Books I/Os that had waited for so long when they were given up.
    pub fn leave_unfinished(&mut self, waited: Duration, ios: u64) {
        self.unfinished += ios;
        self.unfinished_oldest = self.unfinished_oldest.max(waited);
        self.latency.record_n(waited.as_nanos() as u64, ios);
    }

    pub fn example(&mut self, text: String) {
        if self.errors.examples.len() < EXAMPLES_MAX {
            self.errors.examples.push(text);
        }
    }

    /// Closes the interval that ends at `at`. Its latencies join the total if it was measured.
    pub fn snapshot(&mut self, at: Duration, measures_next: bool, with_histogram: bool) -> Snapshot {
        let interval = &mut self.interval;
        interval.row.flush(&mut interval.latency);
        if let Some(copy) = &mut self.copy {
            interval.copy_row.flush(copy);
        }
        if interval.measured {
            self.latency.merge(&interval.latency);
        }
        let snapshot = Snapshot {
            worker: self.worker,
            index: 0,
            at,
            bytes: interval.bytes,
            ios: interval.ios,
            so_far: SoFar {
                ios: self.ios,
                read_bytes: self.read_bytes,
                write_bytes: self.write_bytes,
                travelled: self.travelled,
                verified_bytes: self.verified_bytes,
            },
            mean_ns: interval.latency.mean_ns(),
            measured: interval.measured,
            latency: with_histogram.then(|| interval.latency.clone()),
            targets: interval.targets.clone(),
        };
        interval.latency.clear();
        interval.bytes = 0;
        interval.ios = 0;
        interval.measured = measures_next;
        interval.targets.fill(0);
        snapshot
    }
}
