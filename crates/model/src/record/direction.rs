//! Reads, writes and flushes of a run, each by itself.

use super::RunResult;
use crate::histogram::LatencySummary;
use crate::schema::record;
use crate::units::BYTES_PER_GIB as GIB;
use crate::{Error, Latency};

record! {
    /// The I/Os of one direction.
    pub struct Direction {
        /// Bytes read, or written; 0 for flushes.
        pub bytes: u64 = "bytes";
        /// Completed I/Os.
        pub ios: u64 = "count";
        /// `bytes` over the `seconds` of the result.
        pub throughput_gib_s: f64 = "GiB/s";
        /// `ios` over the `seconds` of the result.
        pub iops: f64 = "1/s";
        /// As that of the result, of these I/Os alone. In an open loop, I/Os that never started count in the proportion of
        /// the mix.
        pub latency_us: LatencySummary = "object, µs";
        /// As that of the result, of these I/Os alone; absent where the result's is the same, because it read or wrote
        /// alone, and from `repeats`.
        pub histogram: String = "text" [skip_serializing_if = "String::is_empty"];
    }
}

impl Direction {
    /// None if nothing went this way.
    pub fn from_totals(bytes: u64, ios: u64, seconds: f64, latency: &Latency) -> Option<Direction> {
        let per_s = if seconds > 0.0 { 1.0 / seconds } else { 0.0 };
        (ios > 0 || latency.count() > 0).then(|| Direction {
            bytes,
            ios,
            throughput_gib_s: bytes as f64 / GIB * per_s,
            iops: ios as f64 * per_s,
            latency_us: latency.summary(),
            histogram: String::new(),
        })
    }

    /// With its histogram.
    pub fn with(self, latency: &Latency) -> Direction {
        Direction { histogram: latency.encode(), ..self }
    }
}

type Field = fn(&RunResult) -> Option<&Direction>;
const READ: Field = |r| r.read.as_ref();
const WRITE: Field = |r| r.write.as_ref();
const FLUSH: Field = |r| r.flush.as_ref();

impl RunResult {
    /// Sets the direction of a run whose I/Os all had the same: the result's own figures, also of each repeat.
    pub fn in_one_direction(mut self) -> RunResult {
        let is_read = self.write_bytes == 0;
        if self.ios == 0 || (self.read_bytes > 0) != is_read {
            return self;
        }
        let of = |bytes, ios, throughput_gib_s, iops, latency_us: &LatencySummary| {
            let latency_us = latency_us.clone();
            Some(Direction { bytes, ios, throughput_gib_s, iops, latency_us, histogram: String::new() })
        };
        let all = of(self.bytes, self.ios, self.throughput_gib_s, self.iops, &self.latency_us);
        *(if is_read { &mut self.read } else { &mut self.write }) = all;
        for r in &mut self.repeats {
            let own = of(r.bytes, r.ios, r.throughput_gib_s, r.iops, &r.latency_us);
            *(if is_read { &mut r.read } else { &mut r.write }) = own;
        }
        self
    }

    /// Joins each direction of the hosts' results, over the whole's seconds. None in each where a record was written
    /// before directions were told apart.
    pub(crate) fn join_directions(&mut self, parts: &[&RunResult]) -> Result<(), Error> {
        let is_reported = |p: &&RunResult| p.ios == 0 || p.read.is_some() || p.write.is_some();
        if !parts.iter().all(is_reported) {
            return Ok(());
        }
        self.read = joined(parts, READ, self.seconds)?;
        self.write = joined(parts, WRITE, self.seconds)?;
        self.flush = joined(parts, FLUSH, self.seconds)?;
        if let (Some(only), None) | (None, Some(only)) = (&mut self.read, &mut self.write) {
            only.histogram.clear();
        }
        Ok(())
    }
}

fn joined(parts: &[&RunResult], of: Field, seconds: f64) -> Result<Option<Direction>, Error> {
    let (mut bytes, mut ios, mut latency) = (0, 0, Latency::default());
    for (part, own) in parts.iter().filter_map(|p| Some((p, of(p)?))) {
        bytes += own.bytes;
        ios += own.ios;
        let text = if own.histogram.is_empty() { &part.histogram } else { &own.histogram };
        if !text.is_empty() {
            latency.merge(&Latency::decode(text)?);
        }
    }
    Ok(Direction::from_totals(bytes, ios, seconds, &latency).map(|all| all.with(&latency)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latency(ns: &[u64]) -> Latency {
        let mut all = Latency::default();
        ns.iter().for_each(|ns| all.record(*ns));
        all
    }

    /// A result over a second; each I/O moved a KiB.
    fn result(reads: &[u64], writes: &[u64]) -> RunResult {
        let of = |ns: &[u64]| {
            let latency = latency(ns);
            Direction::from_totals(1024 * ns.len() as u64, ns.len() as u64, 1.0, &latency)
                .map(|found| found.with(&latency))
        };
        let mut result =
            RunResult { seconds: 1.0, read: of(reads), write: of(writes), ..RunResult::default() };
        let all = latency(&[reads, writes].concat());
        (result.latency_us, result.histogram) = (all.summary(), all.encode());
        (result.read_bytes, result.write_bytes) = (1024 * reads.len() as u64, 1024 * writes.len() as u64);
        (result.ios, result.bytes) = (all.count(), 1024 * all.count());
        result
    }

    // promise: REC-46
    #[test]
    fn hosts_directions_join_each_with_its_own_latencies() {
        let (a, mut b) = (result(&[1000, 2000], &[90_000]), result(&[3000], &[]));
        // All that it did was reads: the result's histogram is theirs.
        b.read.as_mut().unwrap().histogram.clear();
        let mut all = RunResult { seconds: 1.0, ..RunResult::default() };
        all.join_directions(&[&a, &b]).unwrap();
        let (read, write) = (all.read.as_ref().unwrap(), all.write.as_ref().unwrap());
        assert_eq!((read.ios, read.bytes, read.iops), (3, 3072, 3.0));
        assert!(read.latency_us.max < 3.1 && write.latency_us.min > 89.0, "{read:?} {write:?}");
        assert_eq!(Latency::decode(&read.histogram).unwrap().count(), 3);
        let older = RunResult { read: None, write: None, ..a.clone() };
        let mut all = RunResult { seconds: 1.0, ..RunResult::default() };
        all.join_directions(&[&a, &older]).unwrap();
        assert_eq!((all.read, all.write), (None, None), "what one of them doesn't tell is not a part of it");
    }

    // promise: REC-46
    #[test]
    fn a_run_in_one_direction_has_its_own_figures_there() {
        let plain =
            |reads: &[u64], writes: &[u64]| RunResult { read: None, write: None, ..result(reads, writes) };
        let read = plain(&[1000], &[]).in_one_direction();
        assert_eq!((read.read.unwrap().latency_us, read.write), (read.latency_us, None));
        let write = plain(&[], &[1000]).in_one_direction();
        assert_eq!((write.write.unwrap().bytes, write.read), (1024, None));
        let both = plain(&[1000], &[1000]).in_one_direction();
        assert_eq!((both.read, both.write), (None, None));
    }
}
