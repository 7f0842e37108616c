//! The meters of one run, read on the edges of its measured time.

use forebay_io::{
    disk_name, is_astray, open_power_meters, CpuClock, CpuReading, DiskCounters, DiskTraffic, NoiseGuard,
    PowerSampler,
};
use forebay_model::job::JobSpec;
use forebay_model::record::{Noise, Power, RunResult};
use forebay_storage::Target;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Readings of the meters, with the reasons for missing ones.
#[derive(Debug, Default)]
pub struct Readings {
    pub cpu: Option<CpuReading>,
    pub noise: Noise,
    pub power: Vec<Power>,
    /// Bytes that the block devices read and wrote.
    pub device_bytes: Option<u64>,
    /// The same by the kernel's name of the device.
    pub devices: BTreeMap<String, u64>,
    pub missing: BTreeMap<String, String>,
    /// Why all of it is left out.
    pub astray: Option<String>,
}

impl Readings {
    /// Returns readings of meters that ran over `own` for a run that lasted over `run`, both as (from, to): none where
    /// the two differ by too much.
    pub(crate) fn of_time(self, own: (Duration, Duration), run: (Duration, Duration)) -> Readings {
        // A run that ended in its warm-up has no time to be compared with.
        let length = run.1.saturating_sub(run.0);
        let off = own.0.abs_diff(run.0) + own.1.abs_diff(run.1);
        if length.is_zero() || !is_astray(off, length) {
            return self;
        }
        let signed = |own: Duration, run: Duration| own.as_secs_f64() - run.as_secs_f64();
        let astray = format!(
            "the meters started {:+.3} s and stopped {:+.3} s beside the measured {:.3} s: their thread got no processor in time",
            signed(own.0, run.0),
            signed(own.1, run.1),
            length.as_secs_f64()
        );
        // Which limit held the process back isn't a quantity of that time, and may be why its threads were late.
        let Noise { cpu_limit_cores, cpu_limited_pct, .. } = self.noise;
        let noise = Noise { cpu_limit_cores, cpu_limited_pct, ..Noise::default() };
        Readings { noise, astray: Some(astray), missing: self.missing, ..Readings::default() }
    }

    /// Says of each field of `result` that is null since the meters covered another time than the run.
    pub fn explain(&self, result: &RunResult, missing: &mut BTreeMap<String, String>) {
        let Some(why) = &self.astray else { return };
        let noise = &result.noise;
        let noise = [
            ("noise.steal_pct", noise.steal_pct.is_none()),
            ("noise.others_cores_busy", noise.others_cores_busy.is_none()),
            ("noise.throttled", noise.throttled.is_none()),
            ("noise.cpu_limit_cores", noise.cpu_limit_cores.is_none()),
            ("noise.cpu_limited_pct", noise.cpu_limited_pct.is_none()),
            ("summary.cpu_s_per_gib_median", result.summary.cpu_s_per_gib_median.is_none()),
            ("power", result.power.is_empty()),
            ("cpu", true),
        ];
        let noise = noise.map(|(name, absent)| (name.to_owned(), absent));
        let cpu = result.cpu.fields().map(|(name, value)| (format!("cpu.{name}"), value.is_none()));
        for (name, _) in noise.into_iter().chain(cpu).filter(|(_, absent)| *absent) {
            missing.insert(format!("result.{name}"), why.clone());
        }
        missing.insert("cache.device_bytes".into(), why.clone());
    }
}

/// Between readings of the power meters.
const POWER_INTERVAL: Duration = Duration::from_secs(1);

pub struct Meters {
    devices: Vec<(u32, u32)>,
    power: Option<PowerSampler>,
    power_from: Option<std::time::Instant>,
    cpu: Option<CpuClock>,
    noise: Option<NoiseGuard>,
    disk: Option<DiskCounters>,
    missing: BTreeMap<String, String>,
}

impl Meters {
    /// Opens the power meters, which may take a while; `start` and `stop` take none.
    pub fn new(job: &JobSpec, targets: &[Target]) -> Meters {
        let files = targets.iter().flat_map(|t| t.files()).map(|(f, _)| f);
        let devices: BTreeSet<(u32, u32)> =
            files.filter(|f| !f.in_memory).filter_map(|f| f.device()).collect();
        let (meters, refused) = open_power_meters(&job.power);
        let missing =
            refused.into_iter().map(|(meter, why)| (format!("result.power.{meter}"), why)).collect();
        Meters {
            devices: devices.into_iter().collect(),
            power: (!meters.is_empty()).then(|| PowerSampler::start(meters, POWER_INTERVAL)),
            power_from: None,
            cpu: None,
            noise: None,
            disk: None,
            missing,
        }
    }

    pub fn start(&mut self) {
        self.power_from = self.power.as_ref().map(|s| s.mark());
        self.disk = DiskCounters::read(&self.devices)
            .map_err(|why| self.missing.insert("cache.device_bytes".into(), why))
            .ok();
        self.noise = Some(NoiseGuard::start());
        self.cpu = Some(CpuClock::start());
    }

    pub fn stop(&mut self) -> Readings {
        let cpu = self.cpu.take().map(|c| c.stop());
        let noise = match (&self.noise, &cpu) {
            (Some(guard), Some(reading)) => {
                let (noise, missing) = guard.judge(reading);
                self.missing
                    .extend(missing.into_iter().map(|(field, why)| (format!("result.noise.{field}"), why)));
                noise
            }
            _ => Noise::default(),
        };
        let before = self.disk.take();
        let traffic = before.and_then(|b| {
            let after = DiskCounters::read(&self.devices).and_then(|after| after.by_device(&b));
            after.map_err(|why| self.missing.insert("cache.device_bytes".into(), why)).ok()
        });
        let moved = |(number, t): ((u32, u32), DiskTraffic)| {
            (disk_name(number), t.read_bytes.saturating_add(t.written_bytes))
        };
        let devices: Option<BTreeMap<String, u64>> =
            traffic.map(|each| each.into_iter().map(moved).collect());
        let power = self.stop_power();
        Readings {
            cpu,
            noise,
            power,
            device_bytes: devices.as_ref().map(|each| each.values().sum()),
            devices: devices.unwrap_or_default(),
            missing: std::mem::take(&mut self.missing),
            astray: None,
        }
    }

    /// Watts of the measured time alone; a meter that died meanwhile says why.
    fn stop_power(&mut self) -> Vec<Power> {
        let (Some(mut sampler), Some(from)) = (self.power.take(), self.power_from.take()) else {
            return Vec::new();
        };
        let to = sampler.mark();
        let power = sampler.stop_over(&[(from, to)], 0);
        self.missing.extend(
            sampler.failures().iter().map(|(meter, why)| (format!("result.power.{meter}"), why.clone())),
        );
        power
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_io::CpuTimes;

    // promise: REC-8
    #[test]
    fn what_covers_another_time_than_the_run_says_nothing_and_why() {
        let cpu = CpuReading { wall_s: 1.0, process: CpuTimes::default(), machine: Err("no /proc".into()) };
        let noise = Noise { cpu_limited_pct: Some(30.0), steal_pct: Some(1.0), ..Noise::default() };
        let readings = || Readings {
            cpu: Some(cpu.clone()),
            noise: noise.clone(),
            device_bytes: Some(7),
            ..Readings::default()
        };
        let over = |from_ms, to_ms| (Duration::from_millis(from_ms), Duration::from_millis(to_ms));
        let run = over(1_000, 11_000);
        for kept in [over(1_000, 11_000), over(1_100, 11_099), over(1_000, 10_801)] {
            assert!(readings().of_time(kept, run).cpu.is_some(), "{kept:?}");
        }
        // As long as the run, and a second late.
        for left_out in [over(2_000, 12_000), over(1_000, 11_201), over(10_000, 10_001)] {
            let reported = readings().of_time(left_out, run);
            assert_eq!((&reported.cpu, reported.device_bytes), (&None, None), "{left_out:?}");
            assert!(reported.astray.as_ref().unwrap().contains("10.000 s"));
            assert_eq!((reported.noise.cpu_limited_pct, reported.noise.steal_pct), (Some(30.0), None));
            let mut missing = BTreeMap::new();
            reported
                .explain(&RunResult { noise: reported.noise.clone(), ..RunResult::default() }, &mut missing);
            let nulls = [
                "result.cpu.user_s",
                "result.cpu.system_s",
                "result.cpu.cores_busy",
                "result.cpu.cpu_s_per_gib",
            ];
            for name in
                nulls.into_iter().chain(["cache.device_bytes", "result.noise.steal_pct", "result.power"])
            {
                assert!(missing[name].contains("got no processor in time"), "{name}: {missing:?}");
            }
            assert!(!missing.contains_key("result.noise.cpu_limited_pct"), "{missing:?}");
        }
        assert!(readings().of_time(over(500, 600), over(1_000, 400)).cpu.is_some());
    }
}
