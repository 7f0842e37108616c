//! Time that the calling thread waited for a processor: in its run queue, and where a CPU limit held its group back.

use crate::machine::cgroups::cpu_limits;
use crate::machine::roots::Roots;
use rustix::time::{clock_gettime, ClockId};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const SCHEDSTAT: &str = "/proc/thread-self/schedstat";
/// Readings between two of the limits, which cost more than the rest of a reading.
const LIMITS_EVERY: u32 = 20;

/// Belongs to the thread that opened it.
#[derive(Debug)]
pub struct Waits {
    schedstat: File,
    queued_ns: u64,
    /// `cpu.stat` of the groups that limit it.
    limits: Vec<PathBuf>,
    throttled_ns: u64,
    readings: u32,
}

impl Waits {
    /// None where the kernel keeps no account of it.
    pub fn of_this_thread() -> Option<Waits> {
        let schedstat = File::open(SCHEDSTAT).ok()?;
        let queued_ns = queued_ns(&schedstat)?;
        let limits = cpu_limits(&Roots::host()).into_iter().map(|(_, group)| group.join("cpu.stat"));
        let mut waits =
            Waits { schedstat, queued_ns, limits: limits.collect(), throttled_ns: 0, readings: 0 };
        waits.throttled_ns = waits.throttled_ns_now();
        Some(waits)
    }

    /// Time since the last call. `exact`: held back by limits since then as well, in doubt too much rather than too little.
    pub fn since(&mut self, exact: bool) -> Duration {
        let queued_ns = queued_ns(&self.schedstat).unwrap_or(self.queued_ns);
        let mut waited_ns = queued_ns.saturating_sub(self.queued_ns);
        self.queued_ns = queued_ns;
        self.readings += 1;
        if exact || self.readings >= LIMITS_EVERY {
            let throttled_ns = self.throttled_ns_now();
            waited_ns += throttled_ns.saturating_sub(self.throttled_ns);
            (self.throttled_ns, self.readings) = (throttled_ns, 0);
        }
        Duration::from_nanos(waited_ns)
    }

    fn throttled_ns_now(&self) -> u64 {
        self.limits.iter().filter_map(|stat| throttled_ns(stat)).sum()
    }

    /// Returns the processor time of the whole process so far.
    pub fn spent_by_process() -> Duration {
        let spent = clock_gettime(ClockId::ProcessCPUTime);
        Duration::new(spent.tv_sec.unsigned_abs(), spent.tv_nsec.unsigned_abs() as u32)
    }
}

/// `run_ns waited_ns slices`; all zero where the kernel doesn't count.
fn queued_ns(schedstat: &File) -> Option<u64> {
    let mut text = [0; 80];
    let length = schedstat.read_at(&mut text, 0).ok()?;
    let mut fields = std::str::from_utf8(&text[..length]).ok()?.split_ascii_whitespace().skip(1);
    let queued_ns = fields.next()?.parse().ok()?;
    (fields.next()? != "0").then_some(queued_ns)
}

/// In µs with control groups v2, in ns with v1.
fn throttled_ns(stat: &Path) -> Option<u64> {
    let text = fs::read_to_string(stat).ok()?;
    let field =
        |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
    field("throttled_usec ").map(|us| us.saturating_mul(1000)).or_else(|| field("throttled_time "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tells_a_threads_waits_in_both_its_dialects() {
        let folder = tempfile::tempdir().unwrap();
        let written = |text: &str| {
            let path = folder.path().join("it");
            fs::write(&path, text).unwrap();
            path
        };
        assert_eq!(queued_ns(&File::open(written("71 2500 3\n")).unwrap()), Some(2500));
        assert_eq!(queued_ns(&File::open(written("0 0 0\n")).unwrap()), None, "it doesn't count");
        assert_eq!(throttled_ns(&written("nr_throttled 7\nthrottled_usec 9\n")), Some(9000));
        assert_eq!(throttled_ns(&written("nr_throttled 7\nthrottled_time 9\n")), Some(9));
        assert_eq!(throttled_ns(&written("usage_usec 9\n")), None);
    }
}
