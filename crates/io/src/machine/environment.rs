//! Environment card of a record: the machine that it was made on.

use super::drives::{device_number, DriveFacts};
use super::roots::{kib_field, Roots};
use super::{filesystem, gpu, host};
use forebay_model::record::{Environment, Filesystem};
use std::path::PathBuf;
use std::time::Duration;

/// Time for which the environment card waits for NVML, which takes 10 ms where the driver stays loaded and seconds
/// where it doesn't.
const CARD_NVML: Duration = Duration::from_millis(35);

/// The environment part of a record, for what lies at `paths`. Takes under 50 ms and never
/// fails: what isn't known stays null or empty.
pub fn gather_environment(paths: &[PathBuf]) -> Environment {
    Roots::host().environment(paths)
}

impl Roots {
    pub fn environment(&self, paths: &[PathBuf]) -> Environment {
        let names = DriveFacts::behind(self, paths.iter().filter_map(|path| device_number(path)));
        let drives: Vec<DriveFacts> = names.iter().map(|n| DriveFacts::read(self, n)).collect();
        let filesystem = paths.iter().find_map(|path| filesystem::filesystem_facts(self, path));
        card_of_device(self, &host::Host::gather(self), &gpu::within(self, CARD_NVML), &drives, filesystem)
    }
}

pub fn card_of_device(
    roots: &Roots,
    host: &host::Host,
    gpu: &gpu::GpuFacts,
    drives: &[DriveFacts],
    filesystem: Option<Filesystem>,
) -> Environment {
    let meminfo = Roots::text(&roots.proc("meminfo")).unwrap_or_default();
    Environment {
        host: host.name.clone(),
        os: host.os.clone(),
        kernel: host.kernel.clone(),
        cpu: host.cpu.clone(),
        cores: host.cores,
        numa_nodes: host.numa.len() as u32,
        memory_bytes: kib_field(&meminfo, "MemTotal").unwrap_or(0),
        virtualization: host.virtualization.clone(),
        governor: host.governor.clone(),
        smt: host.smt,
        gpus: gpu::card(gpu),
        drives: drives.iter().map(|d| d.drive.clone()).collect(),
        filesystem,
    }
}
