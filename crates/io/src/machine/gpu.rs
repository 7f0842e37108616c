//! NVIDIA GPUs and their driver, found without CUDA.

use super::nvml::{self, Nvml};
use super::pageable::{self, Pageable};
use super::pci::{self, Link};
use super::roots::Roots;
use crate::gpu::{cuda, library, nvrtc};
use forebay_model::record::Gpu;
use serde::Serialize;
use std::time::Duration;

const NVIDIA: u32 = 0x10de;

#[derive(Clone, Debug, Default, Serialize)]
pub struct GpuFacts {
    pub driver: Option<String>,
    /// The open kernel modules, which PCI P2PDMA needs.
    pub open_modules: Option<bool>,
    pub gpus: Vec<GpuDevice>,
    /// NVIDIA GPUs on the bus that no driver serves.
    pub without_driver: Vec<String>,
    /// Why libcuda can't be loaded; null where it can.
    pub libcuda_refused: Option<String>,
    /// The compiler of our kernels, `13.0 from FILE`, and why it can't be loaded; both null where there is no GPU.
    pub nvrtc: Option<String>,
    pub nvrtc_refused: Option<String>,
    pub nvml: Nvml,
    pub pageable: Pageable,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct GpuDevice {
    #[serde(flatten)]
    pub gpu: Gpu,
    pub numa_node: Option<i32>,
    pub link: Link,
    /// The window through which other devices reach the GPU's memory.
    pub bar1_bytes: Option<u64>,
    pub uuid: Option<String>,
    pub watts: Option<f64>,
}

impl GpuFacts {
    /// From /proc and sysfs alone: no library is loaded, so it takes well under a millisecond.
    pub fn from_proc(roots: &Roots) -> GpuFacts {
        let version = Roots::text(&roots.proc("driver/nvidia/version")).unwrap_or_default();
        let driver = driver_version(&version);
        let mut gpus: Vec<GpuDevice> = Roots::names(&roots.proc("driver/nvidia/gpus"))
            .iter()
            .filter_map(|address| device(roots, address, driver.clone()))
            .collect();
        for (index, device) in gpus.iter_mut().enumerate() {
            device.gpu.index = index as u32;
        }
        let served: Vec<String> = gpus.iter().filter_map(|g| g.gpu.pci.clone()).collect();
        GpuFacts {
            open_modules: driver.as_ref().map(|_| version.contains("Open Kernel Module")),
            driver,
            gpus,
            without_driver: on_bus(roots).into_iter().filter(|a| !served.contains(a)).collect(),
            libcuda_refused: None,
            nvrtc: None,
            nvrtc_refused: None,
            nvml: Nvml::default(),
            pageable: Pageable::default(),
        }
    }
}

/// The same, with what NVML adds if it answers in time.
pub(crate) fn within(roots: &Roots, limit: Duration) -> GpuFacts {
    let mut facts = GpuFacts::from_proc(roots);
    if has_driver(roots, &facts) {
        facts.nvml = super::with_time_limit(limit, nvml::read).unwrap_or_default();
        merge(roots, &mut facts);
    }
    facts
}

fn has_driver(roots: &Roots, facts: &GpuFacts) -> bool {
    facts.driver.is_some() || roots.dev.join("nvidiactl").exists()
}

impl GpuFacts {
    /// The same, with what NVML adds: memory and power.
    pub fn gather(roots: &Roots) -> GpuFacts {
        let mut facts = GpuFacts::from_proc(roots);
        if facts.gpus.is_empty() && std::env::var_os(library::CUDA.variable).is_some() {
            facts.gpus = by_libcuda();
        }
        if !has_driver(roots, &facts) && facts.gpus.is_empty() {
            facts.libcuda_refused = Some("no NVIDIA driver is loaded".into());
            facts.nvml.refused = Some("no NVIDIA driver is loaded".into());
            return facts;
        }
        facts.libcuda_refused = library::load(&library::CUDA).err();
        match nvrtc::find_nvrtc() {
            Ok(found) => facts.nvrtc = Some(found),
            Err(why) => facts.nvrtc_refused = Some(why),
        }
        facts.nvml = nvml::read();
        facts.pageable = pageable::facts(roots, facts.libcuda_refused.is_none());
        merge(roots, &mut facts);
        facts
    }
}

/// GPUs of a libcuda that the user named, which /proc need not show. Only then: opening one
/// makes its context.
fn by_libcuda() -> Vec<GpuDevice> {
    let (count, _) = cuda::cuda_devices();
    let opened = (0..count).filter_map(|index| cuda::Device::open(index).ok());
    let described = opened.map(|device| {
        let gpu = Gpu {
            index: device.index(),
            name: device.name().unwrap_or_else(|_| "NVIDIA GPU".into()),
            memory_bytes: device.memory_info().ok().map(|(_, total)| total),
            pci: device.bus_id().ok(),
            driver: None,
        };
        GpuDevice { gpu, ..GpuDevice::default() }
    });
    described.collect()
}

/// NVML may know GPUs that /proc doesn't show (a container that mounts only devices).
fn merge(roots: &Roots, facts: &mut GpuFacts) {
    facts.driver = facts.driver.take().or(facts.nvml.driver.clone());
    for seen in facts.nvml.devices.clone() {
        let same = |g: &&mut GpuDevice| g.gpu.pci.as_deref() == Some(seen.pci.as_str());
        let index = match facts.gpus.iter_mut().find(same) {
            Some(device) => device.gpu.index as usize,
            None => {
                let gpu = Gpu {
                    index: seen.index,
                    pci: Some(seen.pci.clone()),
                    driver: facts.driver.clone(),
                    ..Gpu::default()
                };
                facts.gpus.push(GpuDevice { gpu, ..located(roots, &seen.pci) });
                facts.gpus.len() - 1
            }
        };
        let Some(device) = facts.gpus.get_mut(index) else { continue };
        device.gpu.name = seen.name;
        device.gpu.index = seen.index;
        device.gpu.memory_bytes = seen.memory_bytes;
        device.watts = seen.watts;
        device.bar1_bytes = seen.bar1_bytes.or(device.bar1_bytes);
    }
    facts.gpus.sort_by_key(|g| g.gpu.index);
    facts.without_driver.retain(|a| !facts.gpus.iter().any(|g| g.gpu.pci.as_ref() == Some(a)));
}

/// The first word that looks like `580.159.03` in the NVRM line.
pub(crate) fn driver_version(version: &str) -> Option<String> {
    let line = version.lines().find(|l| l.contains("NVRM version"))?;
    let numeric = |w: &&str| {
        w.contains('.') && w.split('.').all(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit()))
    };
    line.split_whitespace().find(numeric).map(str::to_string)
}

fn device(roots: &Roots, address: &str, driver: Option<String>) -> Option<GpuDevice> {
    let content = Roots::text(&roots.proc("driver/nvidia/gpus").join(address).join("information"))?;
    let pci = Roots::field(&content, "Bus Location").unwrap_or(address).to_lowercase();
    let name = Roots::field(&content, "Model").unwrap_or("NVIDIA GPU").to_string();
    let gpu = Gpu { index: 0, name, memory_bytes: None, pci: Some(pci.clone()), driver };
    let uuid = Roots::field(&content, "GPU UUID").map(str::to_string);
    Some(GpuDevice { gpu, uuid, ..located(roots, &pci) })
}

fn located(roots: &Roots, address: &str) -> GpuDevice {
    GpuDevice {
        numa_node: pci::pci_numa_node(roots, address),
        link: pci::link(roots, address),
        bar1_bytes: pci::region_bytes(roots, address, 1),
        ..GpuDevice::default()
    }
}

/// Display controllers of NVIDIA's on the PCI bus.
fn on_bus(roots: &Roots) -> Vec<String> {
    let display = |a: &String| pci::pci_class(roots, a).is_some_and(|c| c >> 16 == 0x03);
    let mut found = Roots::names(&roots.sys("bus/pci/devices"));
    found.retain(|a| pci::vendor(roots, a) == Some(NVIDIA) && display(a));
    found
}

impl GpuFacts {
    pub fn are_present(&self) -> bool {
        !self.gpus.is_empty()
    }
}

/// For the environment card.
pub(crate) fn card(facts: &GpuFacts) -> Vec<Gpu> {
    facts.gpus.iter().map(|g| g.gpu.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_driver_version_is_found_in_both_spellings() {
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release Build  (dvs)\nGCC version: 13.3.0";
        let closed =
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023";
        assert_eq!(driver_version(open).unwrap(), "580.159.03");
        assert_eq!(driver_version(closed).unwrap(), "535.104.05");
        assert_eq!(driver_version("GCC version: 13.3.0"), None);
    }

    proptest! {
        #[test]
        fn any_version_file_is_survived(text in "(NVRM version)?[ .0-9a-z\n]{0,100}") {
            let _ = driver_version(&text);
        }
    }
}
