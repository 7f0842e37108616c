//! Processor time: ours to the microsecond, the whole machine's to the kernel's tick.
//!
//! `getrusage` counts every thread of the process, io_uring's kernel workers and SQPOLL
//! thread included, since the kernel makes them threads of ours. What it doesn't count is
//! work done on our behalf elsewhere: interrupts, other kernel threads (md, nfsd), a
//! target on the same machine. That is why the machine's own account stands beside it.

use super::{Missing, Reason};
use forebay_model::cpu;
use rustix::fd::AsFd;
use std::time::{Duration, Instant};

/// Below this the ticks of /proc/stat (10 ms on nearly every kernel) say too little.
const MACHINE_WALL_MIN: Duration = Duration::from_millis(100);

/// Seconds of processor time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Times {
    pub user_s: f64,
    pub system_s: f64,
}

impl Times {
    pub fn total_s(&self) -> f64 {
        self.user_s + self.system_s
    }

    fn since(&self, earlier: &Times) -> Times {
        Times {
            user_s: (self.user_s - earlier.user_s).max(0.0),
            system_s: (self.system_s - earlier.system_s).max(0.0),
        }
    }
}

/// Core-seconds of the whole machine by what they went to: the `cpu` line of /proc/stat.
/// Guests are within `user_s` and `nice_s`, where the kernel counts them too.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Machine {
    pub user_s: f64,
    pub nice_s: f64,
    pub system_s: f64,
    pub idle_s: f64,
    pub iowait_s: f64,
    pub irq_s: f64,
    pub softirq_s: f64,
    /// Time in which the hypervisor ran something else though we had work.
    pub steal_s: f64,
}

impl Machine {
    /// Busy time of the cores. Steal isn't work of this machine, and waiting isn't work.
    pub fn busy_s(&self) -> f64 {
        self.user_s + self.nice_s + self.system_s + self.irq_s + self.softirq_s
    }

    pub fn total_s(&self) -> f64 {
        self.busy_s() + self.idle_s + self.iowait_s + self.steal_s
    }

    fn since(&self, earlier: &Machine) -> Machine {
        // The kernel lets idle and iowait step back by a tick; no field may go below 0.
        let less = |now: f64, then: f64| (now - then).max(0.0);
        Machine {
            user_s: less(self.user_s, earlier.user_s),
            nice_s: less(self.nice_s, earlier.nice_s),
            system_s: less(self.system_s, earlier.system_s),
            idle_s: less(self.idle_s, earlier.idle_s),
            iowait_s: less(self.iowait_s, earlier.iowait_s),
            irq_s: less(self.irq_s, earlier.irq_s),
            softirq_s: less(self.softirq_s, earlier.softirq_s),
            steal_s: less(self.steal_s, earlier.steal_s),
        }
    }
}

/// Runs from `start`; `stop` may be called as often as one likes and leaves it running.
#[derive(Clone, Debug)]
pub struct Clock {
    at: Instant,
    process: Times,
    machine: Result<Machine, Reason>,
}

/// CPU time between `start` and `stop`.
#[derive(Clone, Debug, PartialEq)]
pub struct CpuReading {
    pub wall_s: f64,
    /// CPU times of this process: all threads, including those that have ended.
    pub process: Times,
    pub machine: Result<Machine, Reason>,
}

impl Clock {
    pub fn start() -> Clock {
        // The machine first and, in `stop`, last: its span then encloses ours.
        let machine = machine();
        Clock { at: Instant::now(), process: Times::of_process(), machine }
    }

    pub fn stop(&self) -> CpuReading {
        let process = Times::of_process().since(&self.process);
        let wall = self.at.elapsed();
        let machine = match &self.machine {
            Err(reason) => Err(reason.clone()),
            Ok(_) if wall < MACHINE_WALL_MIN => Err(format!(
                "{:.0} ms is too short: /proc/stat counts in ticks of {:.0} ms",
                wall.as_secs_f64() * 1e3,
                1e3 / ticks_per_s()
            )),
            Ok(earlier) => machine().and_then(|now| advanced(now.since(earlier))),
        };
        CpuReading { wall_s: wall.as_secs_f64(), process, machine }
    }
}

impl Times {
    /// Processor time of the calling thread alone.
    pub fn of_thread() -> Times {
        times(&usage(libc::RUSAGE_THREAD))
    }

    /// Number of page faults of the calling thread so far that waited for a device.
    pub fn page_waits_of_thread() -> u64 {
        usage(libc::RUSAGE_THREAD).ru_majflt as u64
    }
}

impl CpuReading {
    /// The record's CPU section: `seconds` measured, in which `bytes` and `ios` went through,
    /// on a machine of `cores` logical processors.
    pub fn fill(&self, seconds: f64, bytes: u64, ios: u64, cores: u32) -> cpu::Cpu {
        let ours = self.process;
        let machine = self.machine.as_ref().ok().filter(|_| seconds > 0.0);
        cpu::Cpu {
            machine_cores_busy: machine.map(|m| m.busy_s() / seconds),
            others_cores_busy: machine.map(|m| (m.busy_s() - ours.total_s()).max(0.0) / seconds),
            ..cpu::Cpu::spent(
                (Some(ours.user_s), Some(ours.system_s)),
                seconds,
                (bytes, ios),
                f64::from(cores),
            )
        }
    }

    /// Why fields of `fill`'s answer are null.
    pub fn missing(&self, seconds: f64, bytes: u64, ios: u64) -> Missing {
        let mut missing = Missing::new();
        if bytes == 0 {
            missing.push(("cpu_s_per_gib", "no bytes were moved".into()));
        }
        if ios == 0 {
            missing.push(("ns_per_io", "no I/O was done".into()));
        }
        let reason = match &self.machine {
            Err(reason) => Some(reason.clone()),
            Ok(_) if seconds <= 0.0 => Some("no time was measured".into()),
            Ok(_) => None,
        };
        if let Some(reason) = reason {
            missing.push(("machine_cores_busy", reason.clone()));
            missing.push(("others_cores_busy", reason));
        }
        missing
    }
}

/// The first line of /proc/stat: `cpu` and at least the eight columns of Linux 2.6.11 on.
pub(crate) fn parse_stat(text: &str, ticks_per_s: f64) -> Result<Machine, Reason> {
    let line = text.lines().next().unwrap_or("");
    let shown: String = line.chars().take(80).collect();
    let bad = || format!("/proc/stat begins with '{shown}', not with the machine's CPU times");
    let columns = line.strip_prefix("cpu ").ok_or_else(bad)?;
    let mut values = [0.0; 8];
    let mut words = columns.split_ascii_whitespace();
    for value in &mut values {
        let ticks: u64 = words.next().and_then(|w| w.parse().ok()).ok_or_else(bad)?;
        *value = ticks as f64 / ticks_per_s;
    }
    let [user_s, nice_s, system_s, idle_s, iowait_s, irq_s, softirq_s, steal_s] = values;
    Ok(Machine { user_s, nice_s, system_s, idle_s, iowait_s, irq_s, softirq_s, steal_s })
}

/// Sandboxed kernels serve a /proc/stat that stands still.
fn advanced(spent: Machine) -> Result<Machine, Reason> {
    if spent.total_s() > 0.0 {
        Ok(spent)
    } else {
        Err("/proc/stat stood still: this kernel doesn't account for its cores".into())
    }
}

impl Times {
    pub fn of_process() -> Times {
        times(&usage(libc::RUSAGE_SELF))
    }
}

fn machine() -> Result<Machine, Reason> {
    // One short read: the line wanted comes first, and hundreds of lines may follow.
    let mut buffer = [0u8; 512];
    let length = std::fs::File::open("/proc/stat")
        .and_then(|file| Ok(rustix::io::read(file.as_fd(), &mut buffer)?))
        .map_err(|e| format!("/proc/stat: {e}"))?;
    parse_stat(&String::from_utf8_lossy(&buffer[..length]), ticks_per_s())
}

fn ticks_per_s() -> f64 {
    rustix::param::clock_ticks_per_second() as f64
}

fn usage(who: libc::c_int) -> libc::rusage {
    // SAFETY: an all-zero rusage is a valid value, and getrusage writes within it. It can
    // fail only for a bad pointer or an unknown `who`; all callers pass known ones.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        let status = libc::getrusage(who, &mut usage);
        assert_eq!(status, 0, "getrusage({who}) failed");
        usage
    }
}

fn times(usage: &libc::rusage) -> Times {
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    Times { user_s: seconds(usage.ru_utime), system_s: seconds(usage.ru_stime) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn reading(user_s: f64, system_s: f64, machine: Result<Machine, Reason>) -> CpuReading {
        CpuReading { wall_s: 10.0, process: Times { user_s, system_s }, machine }
    }

    #[test]
    fn columns_go_where_the_kernel_says() {
        let line = "cpu  100 200 300 400 500 600 700 800 900 1000\ncpu0 1 2 3\n";
        let m = parse_stat(line, 100.0).unwrap();
        assert_eq!((m.user_s, m.nice_s, m.system_s, m.idle_s), (1.0, 2.0, 3.0, 4.0));
        assert_eq!((m.iowait_s, m.irq_s, m.softirq_s, m.steal_s), (5.0, 6.0, 7.0, 8.0));
        assert_eq!(m.busy_s(), 19.0);
    }

    // promise: REC-6
    #[test]
    fn record_fields_follow_from_the_reading() {
        let machine = Machine { user_s: 12.0, softirq_s: 3.0, steal_s: 9.0, ..Default::default() };
        let cpu = CpuReading::fill(&reading(4.0, 6.0, Ok(machine)), 10.0, 5 << 30, 1_000_000, 8);
        assert_eq!(cpu.cores_busy, Some(1.0));
        assert_eq!((cpu.user_pct, cpu.system_pct), (Some(5.0), Some(7.5)));
        assert_eq!(cpu.cpu_s_per_gib, Some(2.0));
        assert_eq!(cpu.ns_per_io, Some(10_000.0));
        assert_eq!(cpu.machine_cores_busy, Some(1.5));
        assert_eq!(cpu.others_cores_busy, Some(0.5));
    }

    #[test]
    fn others_are_never_below_nothing() {
        let machine = Machine { user_s: 9.9, ..Default::default() };
        let cpu = CpuReading::fill(&reading(10.0, 0.0, Ok(machine)), 10.0, 1, 1, 1);
        assert_eq!(cpu.others_cores_busy, Some(0.0));
    }

    // promise: REC-1
    #[test]
    fn what_cannot_be_said_is_null_with_its_reason() {
        let blind = reading(1.0, 1.0, Err("no /proc".into()));
        let cpu = CpuReading::fill(&blind, 10.0, 0, 0, 2);
        assert_eq!((cpu.cpu_s_per_gib, cpu.ns_per_io), (None, None));
        assert_eq!((cpu.machine_cores_busy, cpu.others_cores_busy), (None, None));
        let named: Vec<_> =
            CpuReading::missing(&blind, 10.0, 0, 0).into_iter().map(|(field, _)| field).collect();
        let all = ["cpu_s_per_gib", "ns_per_io", "machine_cores_busy", "others_cores_busy"];
        assert_eq!(named, all);
    }

    #[test]
    fn a_stat_that_stands_still_is_not_an_idle_machine() {
        assert!(advanced(Machine::default()).unwrap_err().contains("stood still"));
        assert!(advanced(Machine { idle_s: 1.0, ..Default::default() }).is_ok());
    }

    #[test]
    fn a_run_without_time_divides_by_nothing() {
        let cpu = CpuReading::fill(&reading(1.0, 1.0, Ok(Machine::default())), 0.0, 1, 1, 0);
        assert_eq!((cpu.cores_busy, cpu.user_pct, cpu.machine_cores_busy), (Some(0.0), Some(0.0), None));
    }

    proptest! {
        #[test]
        fn any_text_is_times_or_a_reason(text in "\\PC{0,200}|cpu [ 0-9a-z\n]{0,200}") {
            if let Ok(machine) = parse_stat(&text, 100.0) {
                prop_assert!(machine.total_s() >= 0.0 && machine.total_s().is_finite());
            }
        }

        #[test]
        fn written_columns_are_read_back(ticks in prop::collection::vec(0u64..1 << 50, 8)) {
            let line = ticks.iter().fold("cpu ".to_string(), |line, t| format!("{line} {t}"));
            let total: u64 = ticks.iter().sum();
            let read = parse_stat(&line, 1.0).unwrap().total_s();
            prop_assert!((read - total as f64).abs() <= total as f64 * 1e-12);
        }
    }
}
