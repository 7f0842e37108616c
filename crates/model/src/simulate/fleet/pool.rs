//! Drives that hosts share: the rate at which each host reads from them, and the read that completes next.
//!
//! What lies between a host and its drives (requests in flight, fabric, DPU, links, processors) is one station, whose
//! rate depends on how many drives' worth of time the host gets: a flow-equivalent server (Chandy, Herzog, Woo 1975).
//! The drives' time is divided among the hosts that read just then, in proportion to the work that each would have
//! under way if it never waited there. So what k equal hosts read is what one reads on a k-th of the drives, k times.

use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Less than this is left over from rounding.
const CRUMB_BYTES: f64 = 1.0;

/// Rate at which one host of a job reads, by the drives' time that it gets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostRate {
    /// Drives, rising; may be parts of one.
    pub drives: Vec<f64>,
    /// Bytes per second of one host with so many to itself; between two of them a power law.
    pub bytes_s: Vec<f64>,
    /// Drives that the host would keep busy if there were any number of them. Only ratios matter.
    pub pressure: f64,
}

impl HostRate {
    /// Returns whether it can be one.
    pub(super) fn is_sound(&self) -> bool {
        let positive = |values: &[f64]| values.iter().all(|v| v.is_finite() && *v > 0.0);
        self.drives.len() >= 2
            && self.drives.len() == self.bytes_s.len()
            && positive(&self.drives)
            && positive(&self.bytes_s)
            && self.drives.windows(2).all(|pair| pair[0] < pair[1])
            && positive(&[self.pressure])
    }
}

/// A way with its logarithms taken, in bytes per nanosecond.
#[derive(Clone, Debug)]
pub struct Table {
    log_drives: Vec<f64>,
    log_rate: Vec<f64>,
    pressure: f64,
}

impl Table {
    pub fn new(way: &HostRate) -> Table {
        Table {
            log_drives: way.drives.iter().map(|d| libm::log(*d)).collect(),
            log_rate: way.bytes_s.iter().map(|r| libm::log(r / 1e9)).collect(),
            pressure: way.pressure,
        }
    }

    /// Bytes per nanosecond with `drives` drives' time. Below the table in proportion, above it no faster.
    #[inline]
    fn rate(&self, drives: f64) -> f64 {
        if drives <= 0.0 {
            return 0.0;
        }
        let (x, rate, last) = (libm::log(drives), &self.log_rate, self.log_drives.len() - 1);
        if x <= self.log_drives[0] {
            return libm::exp(rate[0] + x - self.log_drives[0]);
        }
        if x >= self.log_drives[last] {
            return libm::exp(rate[last]);
        }
        let next = self.log_drives.partition_point(|d| *d <= x);
        let (from, to) = (self.log_drives[next - 1], self.log_drives[next]);
        libm::exp(rate[next - 1] + (rate[next] - rate[next - 1]) * (x - from) / (to - from))
    }
}

/// One job's reads from a pool. All of them get on equally fast, so what one that reads all the time was given says
/// when each is whole.
#[derive(Clone, Debug, Default)]
struct Reads {
    reading: u32,
    /// Bytes that such a one was given, and gets per nanosecond.
    given: f64,
    rate: f64,
    /// (`given` at which its read is whole, host), the bits of a double standing for it: none is negative.
    due: BinaryHeap<Reverse<(u64, u32)>>,
    bytes: f64,
    reading_ns: f64,
}

/// The drives that some hosts read from.
#[derive(Clone, Debug)]
pub struct Pool {
    drives: f64,
    reads: Vec<Reads>,
    since_ns: u64,
    drive_ns: f64,
    /// The rates for so many readers of the only job here: what is asked for again and again.
    known: Vec<f64>,
}

impl Pool {
    pub fn new(drives: f64, jobs: usize) -> Pool {
        Pool { drives, reads: vec![Reads::default(); jobs], since_ns: 0, drive_ns: 0.0, known: Vec::new() }
    }

    /// Brings what was read up to now. Nothing below may be called before it is.
    #[inline]
    pub fn advance(&mut self, now_ns: u64) {
        let passed = (now_ns - self.since_ns) as f64;
        if passed == 0.0 {
            return;
        }
        self.since_ns = now_ns;
        self.drive_ns += passed * self.drives;
        for reads in self.reads.iter_mut().filter(|r| r.reading > 0) {
            let each = reads.rate * passed;
            reads.given += each;
            reads.bytes += each * f64::from(reads.reading);
            reads.reading_ns += passed * f64::from(reads.reading);
        }
    }

    /// A host begins to read so many bytes; None: it never stops.
    #[inline]
    pub fn begin(&mut self, job: u32, host: u32, bytes: Option<f64>) {
        let reads = &mut self.reads[job as usize];
        reads.reading += 1;
        if let Some(bytes) = bytes {
            reads.due.push(Reverse(((reads.given + bytes).to_bits(), host)));
        }
    }

    /// A read that is whole by now: its job and host.
    #[inline]
    pub fn whole(&mut self) -> Option<(u32, u32)> {
        for (job, reads) in self.reads.iter_mut().enumerate() {
            if let Some(Reverse((due, host))) = reads.due.peek().copied() {
                if f64::from_bits(due) <= reads.given + CRUMB_BYTES {
                    reads.due.pop();
                    reads.reading -= 1;
                    return Some((job as u32, host));
                }
            }
        }
        None
    }

    /// A host stops midway: the bytes that it still lacks; None where it would never have stopped.
    pub fn leave(&mut self, job: u32, host: u32) -> Option<f64> {
        let reads = &mut self.reads[job as usize];
        reads.reading -= 1;
        let found = reads.due.iter().find(|Reverse((_, of))| *of == host).map(|Reverse((due, _))| *due);
        reads.due.retain(|Reverse((_, of))| *of != host);
        found.map(|due| f64::from_bits(due) - reads.given)
    }

    /// Sets the number of drives from now on; 0: none that could be read.
    pub fn set_drives(&mut self, drives: f64) {
        self.drives = drives;
        self.known.clear();
    }

    /// Shares the drives' time among those that read now. Returns when the next read is whole.
    pub fn share(&mut self, tables: &[Table]) -> Option<u64> {
        if self.reads.len() == 1 {
            self.share_alike(&tables[0]);
        } else {
            let pressure = |(reads, table): (&Reads, &Table)| f64::from(reads.reading) * table.pressure;
            let all: f64 = self.reads.iter().zip(tables).map(pressure).sum();
            for (reads, table) in self.reads.iter_mut().zip(tables).filter(|(r, _)| r.reading > 0) {
                reads.rate = table.rate(self.drives * table.pressure / all);
            }
        }
        let wait = |reads: &Reads| {
            let Reverse((due, _)) = reads.due.peek()?;
            (reads.rate > 0.0).then(|| (f64::from_bits(*due) - reads.given).max(0.0) / reads.rate)
        };
        let soonest = self.reads.iter().filter_map(wait).fold(f64::INFINITY, f64::min);
        soonest.is_finite().then(|| self.since_ns.saturating_add(soonest.ceil() as u64))
    }

    fn share_alike(&mut self, table: &Table) {
        let reads = &mut self.reads[0];
        let count = reads.reading as usize;
        if self.known.len() <= count {
            self.known.resize(count + 1, f64::NAN);
        }
        if self.known[count].is_nan() {
            self.known[count] = table.rate(self.drives / count.max(1) as f64);
        }
        reads.rate = self.known[count];
    }

    /// Bytes per nanosecond of each of a job's hosts that reads now.
    pub fn rate(&self, job: u32) -> f64 {
        self.reads[job as usize].rate
    }

    /// Bytes that one job read, and the host-nanoseconds that it took.
    pub fn read(&self, job: usize) -> (f64, f64) {
        (self.reads[job].bytes, self.reads[job].reading_ns)
    }

    /// Drives times nanoseconds that there have been.
    pub fn drive_ns(&self) -> f64 {
        self.drive_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host that takes 4 bytes per ns at most, and one per drive: with d drives 1/(1/4 + 1/d).
    fn way(pressure: f64) -> HostRate {
        let drives: Vec<f64> = (0..=200).map(|i| libm::pow(2.0, f64::from(i - 100) / 10.0)).collect();
        let bytes_s = drives.iter().map(|d| 1e9 / (0.25 + 1.0 / d)).collect();
        HostRate { drives, bytes_s, pressure }
    }

    #[test]
    fn equal_hosts_get_what_one_gets_on_their_share_of_the_drives() {
        let tables = [Table::new(&way(4.0))];
        for hosts in [1u32, 3, 8] {
            let mut pool = Pool::new(8.0, 1);
            (0..hosts).for_each(|host| pool.begin(0, host, Some(1e6)));
            let due = pool.share(&tables).unwrap();
            let each = 1.0 / (0.25 + f64::from(hosts) / 8.0);
            assert!((due as f64 * each / 1e6 - 1.0).abs() < 1e-3, "{hosts}");
            pool.advance(due);
            assert_eq!(std::iter::from_fn(|| pool.whole()).count(), hosts as usize);
            assert_eq!(pool.whole(), None);
            assert!((pool.read(0).0 - 1e6 * f64::from(hosts)).abs() < 1e3);
        }
    }

    #[test]
    fn a_host_that_presses_more_gets_more_of_the_drives() {
        let tables = [Table::new(&way(3.0)), Table::new(&way(1.0))];
        let mut pool = Pool::new(4.0, 2);
        pool.begin(0, 0, None);
        pool.begin(1, 0, None);
        assert_eq!(pool.share(&tables), None);
        pool.advance(1000);
        let (strong, weak) = (pool.read(0).0, pool.read(1).0);
        // Three drives and one.
        let expected = (0.25 + 1.0) / (0.25 + 1.0 / 3.0);
        assert!((strong / weak / expected - 1.0).abs() < 1e-3, "{strong} {weak}");
    }

    #[test]
    fn who_leaves_midway_takes_the_rest_along_and_no_drives_read_nothing() {
        let tables = [Table::new(&way(4.0))];
        let mut pool = Pool::new(4.0, 1);
        (0..2).for_each(|host| pool.begin(0, host, Some(1e6)));
        let due = pool.share(&tables).unwrap();
        pool.advance(due / 2);
        let left = pool.leave(0, 1).unwrap();
        assert!((left / 5e5 - 1.0).abs() < 1e-3, "{left}");
        assert!(pool.share(&tables).unwrap() < due, "the other is alone now");
        pool.set_drives(0.0);
        assert_eq!(pool.share(&tables), None);
        pool.set_drives(4.0);
        assert!(pool.share(&tables).is_some());
    }

    #[test]
    fn a_way_that_falls_back_or_has_gaps_is_not_sound() {
        assert!(way(1.0).is_sound());
        assert!(!way(0.0).is_sound());
        let mut other = way(1.0);
        other.drives.swap(0, 1);
        assert!(!other.is_sound());
        other = way(1.0);
        other.bytes_s[3] = f64::NAN;
        assert!(!other.is_sound());
        other.bytes_s.pop();
        assert!(!other.is_sound());
    }
}
