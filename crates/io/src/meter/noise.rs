//! The noise guard: what else happened on the machine while we measured.

use super::cpu::{Clock, CpuReading};
use super::limit::{Limit, Throttling};
use super::{Missing, Reason};
use forebay_model::record::Noise;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

const CPUS: &str = "/sys/devices/system/cpu";

/// Held from the start of a measurement to its end.
#[derive(Clone, Debug)]
pub struct Guard {
    clock: Clock,
    throttles: Result<u64, Reason>,
    limit: Result<Limit, Reason>,
}

impl Guard {
    pub fn start() -> Guard {
        Guard { clock: Clock::start(), throttles: throttle_counters().read(), limit: Limit::find() }
    }

    /// The noise since `start`. The series' variation is the run's to fill in.
    pub fn stop(&self) -> Noise {
        self.judge(&self.clock.stop()).0
    }

    /// `stop` by a CPU reading that was taken anyway, and why fields are null.
    pub fn judge(&self, reading: &CpuReading) -> (Noise, Missing) {
        let throttled = self
            .throttles
            .clone()
            .and_then(|earlier| throttle_counters().read().map(|now| now.saturating_sub(earlier)));
        judged(reading, throttled, self.limit.as_ref().map(Limit::held).map_err(Clone::clone))
    }
}

fn judged(
    reading: &CpuReading,
    throttled: Result<u64, Reason>,
    limit: Result<Throttling, Reason>,
) -> (Noise, Missing) {
    let mut missing = Missing::new();
    let mut noise = Noise::default();
    match &reading.machine {
        Ok(machine) => {
            noise.steal_pct = Some(100.0 * machine.steal_s / machine.total_s());
            let others_s = (machine.busy_s() - reading.process.total_s()).max(0.0);
            noise.others_cores_busy = Some(others_s / reading.wall_s);
        }
        Err(reason) => {
            missing.push(("steal_pct", reason.clone()));
            missing.push(("others_cores_busy", reason.clone()));
        }
    }
    match throttled {
        Ok(events) => noise.throttled = Some(events),
        Err(reason) => missing.push(("throttled", reason)),
    }
    match limit {
        Ok(held) => {
            noise.cpu_limit_cores = Some(held.cores);
            match held.periods_pct {
                Ok(pct) => noise.cpu_limited_pct = Some(pct),
                Err(reason) => missing.push(("cpu_limited_pct", reason)),
            }
        }
        Err(reason) => {
            missing.push(("cpu_limit_cores", reason.clone()));
            missing.push(("cpu_limited_pct", reason));
        }
    }
    (noise, missing)
}

/// Coefficient of variation in per cent: sample standard deviation over mean. None under
/// two values, around a mean of 0, or where a value isn't finite.
pub fn cv_pct(values: &[f64]) -> Option<f64> {
    if values.len() < 2 {
        return None;
    }
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let cv = 100.0 * (squares / (count - 1.0)).sqrt() / mean.abs();
    cv.is_finite().then_some(cv)
}

/// The throttle counters of a machine. Each core's count shows up under every thread of
/// the core and each package's under every CPU of the package: one file stands for each.
#[derive(Clone, Debug)]
pub struct ThrottleCounters {
    files: Vec<PathBuf>,
}

impl ThrottleCounters {
    /// Looks through a tree that looks like /sys/devices/system/cpu.
    pub fn find(cpus: &Path) -> ThrottleCounters {
        let mut chosen = BTreeMap::new();
        for folder in fs::read_dir(cpus).into_iter().flatten().flatten().map(|entry| entry.path()) {
            let id = |name: &str| {
                let text = fs::read_to_string(folder.join("topology").join(name)).ok()?;
                text.trim().parse::<i64>().ok()
            };
            let (package, die, core) = (id("physical_package_id"), id("die_id"), id("core_id"));
            for (leaf, key) in [
                ("core_throttle_count", ("core", package, die, core)),
                ("package_throttle_count", ("package", package, die, None)),
            ] {
                let file = folder.join("thermal_throttle").join(leaf);
                if file.exists() {
                    chosen.entry(key).or_insert(file);
                }
            }
        }
        ThrottleCounters { files: chosen.into_values().collect() }
    }

    /// Throttle events since boot.
    pub fn read(&self) -> Result<u64, Reason> {
        if self.files.is_empty() {
            return Err("this processor (or its hypervisor) shows no throttle counters".into());
        }
        self.files.iter().try_fold(0u64, |sum, file| {
            let text = fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
            let events = text.trim().parse::<u64>();
            let events = events.map_err(|e| format!("{}: {e}", file.display()))?;
            Ok(sum.saturating_add(events))
        })
    }
}

/// Looked for once: the search costs milliseconds on large machines, a reading far less.
fn throttle_counters() -> &'static ThrottleCounters {
    static FOUND: OnceLock<ThrottleCounters> = OnceLock::new();
    FOUND.get_or_init(|| ThrottleCounters::find(Path::new(CPUS)))
}

#[cfg(test)]
mod tests {
    use super::super::cpu::{Machine, Times};
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn noise_follows_from_the_reading() {
        let machine =
            Machine { user_s: 5.0, softirq_s: 1.0, idle_s: 12.0, steal_s: 2.0, ..Machine::default() };
        let process = Times { user_s: 1.0, system_s: 1.0 };
        let reading = CpuReading { wall_s: 10.0, process, machine: Ok(machine) };
        let held = Throttling { cores: 1.5, periods_pct: Ok(40.0) };
        let (noise, missing) = judged(&reading, Ok(3), Ok(held));
        assert_eq!((noise.cpu_limit_cores, noise.cpu_limited_pct), (Some(1.5), Some(40.0)));
        assert_eq!(noise.steal_pct, Some(10.0));
        assert_eq!(noise.others_cores_busy, Some(0.4));
        assert_eq!(noise.throttled, Some(3));
        assert!(missing.is_empty());
    }

    #[test]
    fn a_blind_guard_says_why() {
        let reading = CpuReading { wall_s: 1.0, process: Times::default(), machine: Err("sandbox".into()) };
        let (noise, missing) = judged(&reading, Err("no counters".into()), Err("no limit".into()));
        assert_eq!(noise, Noise::default());
        let fields: Vec<_> = missing.iter().map(|(field, _)| *field).collect();
        assert_eq!(
            fields,
            ["steal_pct", "others_cores_busy", "throttled", "cpu_limit_cores", "cpu_limited_pct"]
        );
    }

    #[test]
    fn variation_is_null_where_it_means_nothing() {
        assert_eq!(cv_pct(&[]), None);
        assert_eq!(cv_pct(&[4.0]), None);
        assert_eq!(cv_pct(&[0.0, 0.0]), None);
        assert_eq!(cv_pct(&[1.0, f64::NAN]), None);
        assert_eq!(cv_pct(&[3.0, 3.0, 3.0]), Some(0.0));
        assert!((cv_pct(&[1.0, 3.0]).unwrap() - 70.710_678).abs() < 1e-5);
    }

    proptest! {
        #[test]
        fn variation_ignores_the_unit(values in prop::collection::vec(0.1f64..1e6, 2..50), unit in 0.01f64..100.0) {
            let scaled: Vec<f64> = values.iter().map(|v| v * unit).collect();
            let (a, b) = (cv_pct(&values).unwrap(), cv_pct(&scaled).unwrap());
            prop_assert!((a - b).abs() < 1e-6 * (1.0 + a));
        }
    }
}
