//! Runs a load on a modelled drive in virtual time: no clock, no waiting, the same
//! result for the same seed. `fleet` is many hosts over storage that they share.

pub mod fleet;

use crate::device::{DriveModel, Timeline};
use crate::job::{Op, Rounds};
use crate::pattern::{Pattern, PatternSpec, Span};
use crate::random::derive;
use crate::series::Point;
use crate::soonest::Soonest;
use crate::units::GIB;
use crate::{Error, Latency};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A closed loop: each of `workers` keeps `depth` I/Os in flight.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    pub workers: u32,
    pub depth: u32,
    pub op: Op,
    /// Share of reads, in per cent. None: `op` alone.
    pub read_pct: Option<u8>,
    pub io_bytes: u64,
    /// Random I/Os range over all of it; each sequential worker walks a part of its own.
    pub data_bytes: u64,
    pub duration_s: f64,
    pub seed: u64,
    /// Seconds between points of the series.
    pub interval_s: f64,
}

impl Default for Load {
    fn default() -> Self {
        Load {
            workers: 1,
            depth: 1,
            op: Op::Read,
            read_pct: None,
            io_bytes: 128 << 10,
            data_bytes: 1 << 40,
            duration_s: 10.0,
            seed: 7,
            interval_s: 0.5,
        }
    }
}

/// The I/Os of one direction: those that completed in time, and the latency of all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DirectionOutcome {
    pub ios: u64,
    pub bytes: u64,
    pub latency: Latency,
}

/// The result of a load: I/Os that completed within its duration, and their latency, including that of I/Os in flight
/// at its end.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub seconds: f64,
    pub bytes: u64,
    pub ios: u64,
    pub read_bytes: u64,
    pub latency: Latency,
    /// Reads and writes of a load that has both.
    pub ways: Option<Box<[DirectionOutcome; 2]>>,
    /// I/Os that completed after the end: in `latency` alone.
    pub late: u64,
    /// Busy share of the drives' bandwidth servers, 0 to 1.
    pub utilisation: f64,
    pub series: Vec<Point>,
}

impl Outcome {
    pub fn throughput_gib_s(&self) -> f64 {
        self.bytes as f64 / GIB as f64 / self.seconds
    }

    pub fn iops(&self) -> f64 {
        self.ios as f64 / self.seconds
    }
}

/// Runs `load` on `model`. Refuses loads out of bounds and operations for which the model has no rate.
pub fn closed_loop(model: &DriveModel, load: &Load) -> Result<Outcome, Error> {
    load.check(model)?;
    let mut patterns = load.patterns()?;
    let mut timeline = Timeline::new(model, load.seed);
    let mut meter = Meter::new(load);
    let end_ns = (load.duration_s * 1e9) as u64;
    let mut submit = |now_ns: u64, slot: u32| {
        let io = patterns[(slot % load.workers) as usize].next();
        let done_ns = timeline.complete_at(now_ns, load.op_as(io.is_read), io.offset, u64::from(io.len));
        (done_ns, Io { bytes: io.len, is_read: io.is_read, submitted_ns: now_ns })
    };
    let mut due = Vec::new();
    let mut slots = Vec::new();
    for slot in 0..load.workers * load.depth {
        let (done_ns, io) = submit(0, slot);
        due.push((done_ns, slot));
        slots.push(io);
    }
    let mut due = Soonest::new(due);
    loop {
        let (now_ns, slot) = due.first();
        if now_ns > end_ns {
            break;
        }
        let io = &mut slots[slot as usize];
        meter.count(now_ns, *io);
        let (done_ns, next) = submit(now_ns, slot);
        *io = next;
        due.replace_first((done_ns, slot));
    }
    let mut outcome = meter.finish(end_ns, timeline.utilisation(end_ns));
    // What the end overtakes shows how long it took, and counts for no rate.
    for _ in 0..slots.len() {
        let (done_ns, slot) = due.first();
        let io = slots[slot as usize];
        let ns = done_ns - io.submitted_ns;
        outcome.latency.record(ns);
        if let Some(ways) = &mut outcome.ways {
            ways[usize::from(!io.is_read)].latency.record(ns);
        }
        outcome.late += 1;
        due.replace_first((u64::MAX, slot));
    }
    Ok(outcome)
}

/// Queries of dependent rounds on `model`: each worker has one at a time. Returns what its reads came to, and the latency of
/// queries that ended in time.
///
/// # Errors
/// As `closed_loop`, and `Request`: the data has fewer nodes than segments.
pub fn dependent(model: &DriveModel, load: &Load, rounds: &Rounds) -> Result<(Outcome, Latency), Error> {
    let load = Load {
        op: Op::RandRead,
        read_pct: None,
        io_bytes: rounds.node_bytes,
        depth: rounds.width(),
        ..load.clone()
    };
    load.check(model)?;
    rounds.check_nodes(load.data_bytes / rounds.node_bytes)?;
    let mut patterns = load.patterns_in(rounds.segments)?;
    let mut timeline = Timeline::new(model, load.seed);
    let mut meter = Meter::new(&load);
    let mut latency = Latency::default();
    let end_ns = (load.duration_s * 1e9) as u64;
    /// A worker's query: when it and its round began, its rounds that are over, and reads that are under way.
    #[derive(Clone, Copy, Default)]
    struct Query {
        began_ns: u64,
        round_ns: u64,
        ended: u32,
        under_way: u32,
    }
    let mut queries = vec![Query::default(); load.workers as usize];
    let mut due = BinaryHeap::new();
    let mut start = |now_ns: u64, worker: u32, due: &mut BinaryHeap<Reverse<(u64, u32)>>| {
        for _ in 0..load.depth {
            let io = patterns[worker as usize].next();
            let done_ns = timeline.complete_at(now_ns, Op::RandRead, io.offset, u64::from(io.len));
            due.push(Reverse((done_ns, worker)));
        }
    };
    for worker in 0..load.workers {
        start(0, worker, &mut due);
        queries[worker as usize].under_way = load.depth;
    }
    let io_of =
        |query: &Query| Io { submitted_ns: query.round_ns, bytes: load.io_bytes as u32, is_read: true };
    while let Some(Reverse((now_ns, worker))) = due.pop().filter(|Reverse((now_ns, _))| *now_ns <= end_ns) {
        let query = &mut queries[worker as usize];
        meter.count(now_ns, io_of(query));
        query.under_way -= 1;
        if query.under_way > 0 {
            continue;
        }
        query.ended += 1;
        if query.ended == rounds.hops {
            latency.record(now_ns - query.began_ns);
            (query.ended, query.began_ns) = (0, now_ns);
        }
        (query.round_ns, query.under_way) = (now_ns, load.depth);
        start(now_ns, worker, &mut due);
    }
    Ok((meter.finish(end_ns, timeline.utilisation(end_ns)), latency))
}

/// Throughput in customers per second of a closed network of one delay and any
/// number of queueing stations, by exact mean value analysis (Reiser, Lavenberg
/// 1980). `service_s` holds the mean demand on each station per customer.
pub fn mean_value_analysis(delay_s: f64, service_s: &[f64], customers: u32) -> f64 {
    let mut queued = vec![0.0; service_s.len()];
    let mut rate = 0.0;
    for n in 1..=customers {
        let waits: Vec<f64> = service_s.iter().zip(&queued).map(|(s, q)| s * (1.0 + q)).collect();
        rate = f64::from(n) / (delay_s + waits.iter().sum::<f64>());
        queued = waits.iter().map(|wait| rate * wait).collect();
    }
    rate
}

impl Load {
    fn is_mixed(&self) -> bool {
        self.read_pct.is_some_and(|pct| pct > 0 && pct < 100)
    }

    fn check(&self, model: &DriveModel) -> Result<(), Error> {
        let refuse = |asked: String, found: &str, next: &str| Err(Error::request(asked, found, next));
        if self.in_flight() == 0 || self.in_flight() > 1 << 24 {
            return refuse(
                format!("‹workers› {} ‹depth› {}", self.workers, self.depth),
                "must be 1 to 16,777,216 I/Os in flight",
                "‹workers› 4 ‹depth› 32",
            );
        }
        if !(self.duration_s > 0.0 && self.duration_s <= 1e6) {
            return refuse(
                format!("‹duration_s› {}", self.duration_s),
                "must be above 0 and at most 1,000,000 s",
                "‹duration_s› 10",
            );
        }
        if !(self.interval_s >= 1e-3 && self.duration_s / self.interval_s <= 1e6) {
            return refuse(
                format!("‹interval_ms› {} s", self.interval_s),
                "must be at least 1 ms and give at most 1,000,000 points",
                "‹interval_ms› 500",
            );
        }
        let reads = self.read_pct.unwrap_or(if self.op.is_write() { 0 } else { 100 });
        for is_read in [true, false] {
            if (is_read && reads > 0) || (!is_read && reads < 100) {
                model.check(self.op_as(is_read))?;
            }
        }
        Ok(())
    }

    fn in_flight(&self) -> u64 {
        u64::from(self.workers) * u64::from(self.depth)
    }

    fn op_as(&self, is_read: bool) -> Op {
        match (self.op.is_random(), is_read) {
            (false, true) => Op::Read,
            (false, false) => Op::Write,
            (true, true) => Op::RandRead,
            (true, false) => Op::RandWrite,
        }
    }

    fn patterns(&self) -> Result<Vec<Pattern>, Error> {
        self.patterns_in(0)
    }

    /// Random I/Os come from so many parts of the data in turn; 0: from all of it.
    fn patterns_in(&self, segments: u32) -> Result<Vec<Pattern>, Error> {
        let random = self.op.is_random();
        // Whole I/Os per worker, so that stripes stay aligned.
        let part = (self.data_bytes / u64::from(self.workers) / self.io_bytes.max(1)).max(1) * self.io_bytes;
        (0..self.workers)
            .map(|worker| {
                let start = if random { 0 } else { part.saturating_mul(u64::from(worker)) };
                let bytes = if random { self.data_bytes } else { part };
                Pattern::new(PatternSpec {
                    spans: vec![Span { target: 0, start, bytes }],
                    random,
                    io_bytes: self.io_bytes,
                    align: self.io_bytes.max(1),
                    read_pct: self.read_pct.unwrap_or(if self.op.is_write() { 0 } else { 100 }),
                    seed: derive(self.seed, u64::from(worker)),
                    segments,
                    ..PatternSpec::default()
                })
            })
            .collect()
    }
}

/// One I/O in flight, in its slot.
#[derive(Clone, Copy)]
struct Io {
    submitted_ns: u64,
    bytes: u32,
    is_read: bool,
}

/// Counts completions, in order of time, into totals and a series.
struct Meter {
    outcome: Outcome,
    interval_ns: u64,
    point_end_ns: u64,
    point: Latency,
    point_bytes: u64,
}

impl Meter {
    fn new(load: &Load) -> Self {
        let interval_ns = (load.interval_s * 1e9) as u64;
        Meter {
            outcome: Outcome {
                seconds: load.duration_s,
                bytes: 0,
                ios: 0,
                read_bytes: 0,
                latency: Latency::default(),
                ways: load.is_mixed().then(Box::default),
                late: 0,
                utilisation: 0.0,
                series: Vec::new(),
            },
            interval_ns,
            point_end_ns: interval_ns,
            point: Latency::default(),
            point_bytes: 0,
        }
    }

    #[inline]
    fn count(&mut self, now_ns: u64, io: Io) {
        while now_ns > self.point_end_ns {
            self.end_point(self.interval_ns);
            self.point_end_ns += self.interval_ns;
        }
        let ns = now_ns - io.submitted_ns;
        self.point.record(ns);
        if let Some(ways) = &mut self.outcome.ways {
            let way = &mut ways[usize::from(!io.is_read)];
            way.latency.record(ns);
            way.ios += 1;
            way.bytes += u64::from(io.bytes);
        }
        self.point_bytes += u64::from(io.bytes);
        self.outcome.read_bytes += if io.is_read { u64::from(io.bytes) } else { 0 };
    }

    fn end_point(&mut self, length_ns: u64) {
        let seconds = length_ns as f64 / 1e9;
        let ios = self.point.count();
        let us = |ns: f64| (ios > 0).then_some(ns / 1e3);
        self.outcome.series.push(Point {
            t_s: (self.point_end_ns - self.interval_ns + length_ns) as f64 / 1e9,
            gib_s: self.point_bytes as f64 / GIB as f64 / seconds,
            iops: ios as f64 / seconds,
            latency_us_mean: us(self.point.mean_ns()),
            latency_us_p99: us(self.point.percentile_ns(99.0) as f64),
            ..Point::default()
        });
        self.outcome.bytes += self.point_bytes;
        self.outcome.ios += ios;
        self.outcome.latency.merge(&self.point);
        self.point.clear();
        self.point_bytes = 0;
    }

    fn finish(mut self, end_ns: u64, utilisation: f64) -> Outcome {
        while self.point_end_ns < end_ns {
            self.end_point(self.interval_ns);
            self.point_end_ns += self.interval_ns;
        }
        let last_ns = end_ns - (self.point_end_ns - self.interval_ns);
        if last_ns > 0 {
            self.end_point(last_ns);
        }
        self.outcome.utilisation = utilisation;
        self.outcome
    }
}
