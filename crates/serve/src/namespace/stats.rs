//! What is counted of a namespace, and of the commands of a queue.

use forebay_nvme::controller::Health;
use forebay_nvme::nvm::{Op, Request};
use forebay_nvme::status::{Code, Status};
use forebay_storage::SourceReport;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, Serialize)]
pub struct NamespaceStats {
    pub nsid: u32,
    pub source: String,
    pub bytes: u64,
    pub block_bytes: u32,
    pub writable: bool,
    pub counts: Counts,
    pub read_latency: LatencyStats,
    pub write_latency: LatencyStats,
    /// Sources below that are reached over a fabric or a socket, as they are now.
    pub fabric: Vec<SourceReport>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub write_bytes: u64,
    pub flushes: u64,
    /// Write Zeroes, Dataset Management, Compare, Verify.
    pub others: u64,
    /// Completed with an error status.
    pub errors: u64,
    /// Number of them that said that the medium lost data, or didn't take them.
    #[serde(default)]
    pub media_errors: u64,
}

impl NamespaceStats {
    /// Adds counts from elsewhere.
    pub fn add(&mut self, more: &NamespaceStats) {
        self.counts.add(&more.counts);
        self.read_latency.add(&more.read_latency);
        self.write_latency.add(&more.write_latency);
    }
}

impl Counts {
    /// A command that went well.
    pub fn count(&mut self, request: &Request) {
        match request.op {
            Op::Read => (self.reads, self.read_bytes) = (self.reads + 1, self.read_bytes + request.bytes),
            Op::Write => {
                (self.writes, self.write_bytes) = (self.writes + 1, self.write_bytes + request.bytes)
            }
            Op::Flush => self.flushes += 1,
            _ => self.others += 1,
        }
    }

    /// For the SMART / Health log.
    pub fn health(&self) -> Health {
        Health {
            bytes_read: self.read_bytes.into(),
            bytes_written: self.write_bytes.into(),
            reads: self.reads.into(),
            writes: self.writes.into(),
            media_errors: self.media_errors.into(),
            ..Health::default()
        }
    }

    pub fn add(&mut self, more: &Counts) {
        self.reads += more.reads;
        self.read_bytes += more.read_bytes;
        self.writes += more.writes;
        self.write_bytes += more.write_bytes;
        self.flushes += more.flushes;
        self.others += more.others;
        self.errors += more.errors;
        self.media_errors += more.media_errors;
    }

    /// A command that failed.
    pub(crate) fn count_failed(&mut self, status: Status) {
        self.errors += 1;
        self.media_errors += u64::from(matches!(status.code, Code::WRITE_FAULT | Code::UNRECOVERED_READ));
    }
}

/// From the command's arrival to its completion's being handed to the socket.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LatencyStats {
    pub count: u64,
    pub sum_s: f64,
    /// (upper bound in seconds, how many took no longer), ascending: powers of two of a microsecond.
    pub buckets: Vec<(f64, u64)>,
}

impl LatencyStats {
    pub fn add(&mut self, more: &LatencyStats) {
        if self.buckets.is_empty() {
            self.buckets.clone_from(&more.buckets);
        } else {
            self.buckets.iter_mut().zip(&more.buckets).for_each(|(a, b)| a.1 += b.1);
        }
        self.count += more.count;
        self.sum_s += more.sum_s;
    }
}

/// Counts by powers of two of a microsecond.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Histogram {
    counts: [u64; Histogram::BUCKETS],
    sum_ns: u64,
}

impl Histogram {
    /// 1 µs to 8.4 s, and all that took longer.
    const BUCKETS: usize = 25;

    #[inline]
    pub fn record(&mut self, ns: u64) {
        let us = ns.div_ceil(1000).max(1);
        let at = (us - 1).checked_ilog2().map_or(0, |log| log as usize + 1);
        self.counts[at.min(Histogram::BUCKETS - 1)] += 1;
        self.sum_ns += ns;
    }

    /// Adds these to a snapshot, whose buckets are cumulative.
    pub(crate) fn add_to(&self, stats: &mut LatencyStats) {
        if stats.buckets.is_empty() {
            stats.buckets = (0..Histogram::BUCKETS - 1).map(|at| ((1u64 << at) as f64 * 1e-6, 0)).collect();
        }
        let mut below = 0;
        for (count, bucket) in self.counts.iter().zip(&mut stats.buckets) {
            below += count;
            bucket.1 += below;
        }
        stats.count += self.counts.iter().sum::<u64>();
        stats.sum_s += self.sum_ns as f64 * 1e-9;
    }
}

/// Counters of commands, wherever their owner keeps them.
pub(crate) struct Counters<'a> {
    pub counts: &'a mut Counts,
    pub read_latency: &'a mut Histogram,
    pub write_latency: &'a mut Histogram,
}

impl Counters<'_> {
    /// A command that went well took `ns`.
    pub(crate) fn done(self, request: &Request, ns: u64) {
        self.counts.count(request);
        match request.op {
            Op::Read => self.read_latency.record(ns),
            Op::Write => self.write_latency.record(ns),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: TGT-9
    #[test]
    fn a_latency_is_counted_below_its_bound() {
        let mut histogram = Histogram::default();
        [1, 1000, 1001, 2000, 2001, u64::MAX >> 8].into_iter().for_each(|ns| histogram.record(ns));
        let mut stats = LatencyStats::default();
        histogram.add_to(&mut stats);
        assert_eq!(&stats.buckets[..3], &[(1e-6, 2), (2e-6, 4), (4e-6, 5)]);
        assert_eq!(
            (stats.count, stats.buckets.last().unwrap().1),
            (6, 5),
            "the last took longer than any bound"
        );
    }
}
