//! The meters of one run, read on the edges of its measured time.

use crate::meter::{cpu, disk, noise, power};
use crate::source::Target;
use forebay_model::job::JobSpec;
use forebay_model::record::{Noise, Power};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What the meters said, and why some said nothing.
#[derive(Debug, Default)]
pub struct Readings {
    pub cpu: Option<cpu::CpuReading>,
    pub noise: Noise,
    pub power: Vec<Power>,
    /// Bytes that the block devices read and wrote.
    pub device_bytes: Option<u64>,
    /// The same by the kernel's name of the device.
    pub devices: BTreeMap<String, u64>,
    pub missing: BTreeMap<String, String>,
}

/// Between readings of the power meters.
const POWER_INTERVAL: Duration = Duration::from_secs(1);

pub struct Meters {
    devices: Vec<(u32, u32)>,
    power: Option<power::Sampler>,
    power_from: Option<std::time::Instant>,
    cpu: Option<cpu::Clock>,
    noise: Option<noise::Guard>,
    disk: Option<disk::Counters>,
    missing: BTreeMap<String, String>,
}

impl Meters {
    /// Opens the power meters, which may take a while; `start` and `stop` take none.
    pub fn new(job: &JobSpec, targets: &[Target]) -> Meters {
        let files = targets.iter().flat_map(|t| t.files()).map(|(f, _)| f);
        let devices: BTreeSet<(u32, u32)> =
            files.filter(|f| !f.in_memory).filter_map(|f| f.device()).collect();
        let (meters, refused) = power::open(&job.power);
        let missing =
            refused.into_iter().map(|(meter, why)| (format!("result.power.{meter}"), why)).collect();
        Meters {
            devices: devices.into_iter().collect(),
            power: (!meters.is_empty()).then(|| power::Sampler::start(meters, POWER_INTERVAL)),
            power_from: None,
            cpu: None,
            noise: None,
            disk: None,
            missing,
        }
    }

    pub fn start(&mut self) {
        self.power_from = self.power.as_ref().map(|s| s.mark());
        self.disk = disk::Counters::read(&self.devices)
            .map_err(|why| self.missing.insert("cache.device_bytes".into(), why))
            .ok();
        self.noise = Some(noise::Guard::start());
        self.cpu = Some(cpu::Clock::start());
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
        let traffic = before
            .and_then(|b| disk::Counters::read(&self.devices).and_then(|after| after.by_device(&b)).ok());
        let moved = |(number, t): ((u32, u32), disk::Traffic)| {
            (disk::name(number), t.read_bytes.saturating_add(t.written_bytes))
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
