//! The time series: workers' intervals put together, in the order of time.

use super::run_kit::{Moved, Snapshot, READ, WRITE};
use super::{TargetRate, WorkerRate};
use forebay_io::{is_astray, monotonic_now, CpuTimes};
use forebay_model::series::{Point, PointPart};
use forebay_model::units::BYTES_PER_GIB as GIB;
use forebay_model::Latency;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A longer run keeps its first points: six days at the default interval.
const POINTS_MAX: usize = 1_000_000;

/// Details that a live view shows beside a point.
#[derive(Clone, Debug, Default)]
pub(crate) struct Detail {
    pub bytes: u64,
    pub bytes_so_far: u64,
    pub ios_so_far: u64,
    pub latency_us_p50: Option<f64>,
    pub latency_us_p999: Option<f64>,
    pub workers: Vec<WorkerRate>,
    pub targets: Vec<TargetRate>,
}

#[derive(Default)]
struct Bin {
    reports: u32,
    end: Duration,
    bytes: u64,
    ios: u64,
    ways: [Moved; 2],
    latency: Option<Latency>,
    measured: bool,
    /// (worker, bytes, ios).
    workers: Vec<(u32, u64, u64)>,
    targets: Vec<u64>,
}

pub(crate) struct Series {
    workers: u32,
    labels: Vec<String>,
    interval: Duration,
    bins: BTreeMap<u64, Bin>,
    last_end: Duration,
    last_cpu_s: f64,
    last_cpu_at: Instant,
    bytes: u64,
    ios: u64,
    points: Vec<Point>,
}

impl Series {
    pub(crate) fn new(workers: u32, labels: Vec<String>, interval: Duration) -> Series {
        Series {
            workers,
            labels,
            interval,
            bins: BTreeMap::new(),
            last_end: Duration::ZERO,
            last_cpu_s: CpuTimes::of_process().total_s(),
            last_cpu_at: monotonic_now(),
            bytes: 0,
            ios: 0,
            points: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, s: Snapshot) {
        let bin = self.bins.entry(s.index).or_default();
        bin.targets.resize(self.labels.len(), 0);
        bin.reports += 1;
        bin.end = bin.end.max(s.at);
        bin.bytes += s.bytes;
        bin.ios += s.ios;
        bin.ways.iter_mut().zip(s.ways).for_each(|(sum, way)| sum.add(way));
        bin.measured |= s.measured;
        bin.workers.push((s.worker, s.bytes, s.ios));
        bin.targets.iter_mut().zip(&s.targets).for_each(|(sum, t)| *sum += t);
        for latency in s.latency.into_iter().flatten() {
            match &mut bin.latency {
                Some(sum) => sum.merge(&latency),
                none => *none = Some(latency),
            }
        }
    }

    /// Points that every worker has reported, or that newer ones have overtaken.
    pub(crate) fn ripe(&mut self) -> Vec<(Point, Detail)> {
        let newest = self.bins.keys().next_back().copied().unwrap_or(0);
        let is_ripe = |(k, b): &(&u64, &Bin)| b.reports >= self.workers || **k + 2 <= newest;
        let ready: Vec<u64> = self.bins.iter().filter(is_ripe).map(|(k, _)| *k).collect();
        let bins: Vec<Bin> = ready.iter().filter_map(|k| self.bins.remove(k)).collect();
        bins.into_iter().filter_map(|b| self.point(b)).collect()
    }

    pub(crate) fn keep(&mut self, point: Point) {
        if self.points.len() < POINTS_MAX {
            self.points.push(point);
        }
    }

    /// The last interval is usually a part of one.
    pub(crate) fn finish(mut self) -> Vec<Point> {
        for bin in std::mem::take(&mut self.bins).into_values() {
            if let Some((point, _)) = self.point(bin) {
                self.keep(point);
            }
        }
        self.points
    }

    fn point(&mut self, bin: Bin) -> Option<(Point, Detail)> {
        let seconds = bin.end.saturating_sub(self.last_end).as_secs_f64();
        // What trails the end of the run by less than a tenth of an interval says nothing about a rate.
        if seconds < self.interval.as_secs_f64() / 10.0 {
            return None;
        }
        let (cpu_s, cpu_at) = (CpuTimes::of_process().total_s(), monotonic_now());
        let cpu_over = cpu_at.duration_since(self.last_cpu_at);
        let covers = bin.end.saturating_sub(self.last_end);
        self.bytes += bin.bytes;
        self.ios += bin.ios;
        let rate = |bytes: u64| bytes as f64 / GIB / seconds;
        let latency = bin.latency.filter(|l| l.count() > 0);
        let percentile = |p: f64| latency.as_ref().map(|l| l.percentile_ns(p) as f64 / 1e3);
        let is_mixed = bin.ways.iter().all(|way| way.ios > 0);
        let part = |way: Moved| PointPart {
            gib_s: rate(way.bytes),
            iops: way.ios as f64 / seconds,
            latency_us_mean: Some(way.mean_ns / 1e3),
        };
        let mean_ns =
            bin.ways.iter().map(|way| way.mean_ns * way.ios as f64).sum::<f64>() / bin.ios.max(1) as f64;
        let point = Point {
            t_s: bin.end.as_secs_f64(),
            gib_s: rate(bin.bytes),
            iops: bin.ios as f64 / seconds,
            latency_us_mean: (bin.ios > 0).then_some(mean_ns / 1e3),
            latency_us_p99: percentile(99.0),
            read: is_mixed.then(|| part(bin.ways[READ])),
            write: is_mixed.then(|| part(bin.ways[WRITE])),
            // Two points at once: the second has next to no time of its own.
            cores_busy: (cpu_over > covers / 2 && !is_astray(cpu_over.abs_diff(covers), covers))
                .then(|| (cpu_s - self.last_cpu_s) / cpu_over.as_secs_f64()),
            warmup: !bin.measured,
            repeat: 0,
        };
        let mut workers = bin.workers;
        workers.sort_unstable();
        let detail = Detail {
            bytes: bin.bytes,
            bytes_so_far: self.bytes,
            ios_so_far: self.ios,
            latency_us_p50: percentile(50.0),
            latency_us_p999: percentile(99.9),
            workers: workers
                .iter()
                .map(|(_, b, n)| WorkerRate { gib_s: rate(*b), iops: *n as f64 / seconds })
                .collect(),
            targets: self
                .labels
                .iter()
                .zip(&bin.targets)
                .map(|(l, b)| TargetRate { target: l.clone(), gib_s: rate(*b) })
                .collect(),
        };
        self.last_end = bin.end;
        (self.last_cpu_s, self.last_cpu_at) = (cpu_s, cpu_at);
        Some((point, detail))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(index: u64, at: Duration) -> Snapshot {
        Snapshot {
            so_far: Default::default(),
            worker: 0,
            index,
            at,
            bytes: 1,
            ios: 1,
            mean_ns: 1.0,
            ways: Default::default(),
            measured: true,
            latency: [None, None],
            targets: vec![1],
        }
    }

    #[test]
    fn processor_time_that_was_read_too_late_is_not_the_intervals() {
        let interval = Duration::from_secs(1);
        let mut series = Series::new(1, vec!["nil".into()], interval);
        // The first is read two seconds after its end, and the others at the same moment.
        series.last_cpu_at = monotonic_now().checked_sub(3 * interval).expect("the machine runs for longer");
        (0..3).for_each(|n| series.add(snapshot(n, (n as u32 + 1) * interval)));
        let busy: Vec<_> = series.ripe().into_iter().map(|(point, _)| point.cores_busy).collect();
        assert_eq!(busy, [None; 3]);
    }
}
