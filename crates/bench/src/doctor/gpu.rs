//! NVIDIA GPUs and their driver.

use super::pageable;
use forebay_io::{counted, Check, CheckArea, CheckState};
pub(crate) use forebay_io::{GpuDevice, GpuFacts};
use forebay_model::units::readable_bytes as size;

pub(crate) fn checks(facts: &GpuFacts) -> Vec<Check> {
    let mut checks = vec![driver(facts)];
    if GpuFacts::are_present(facts) {
        checks.push(libcuda(facts));
        checks.extend(compiler(facts));
        checks.push(pageable::check(&facts.pageable, facts.open_modules));
        checks.extend(facts.gpus.iter().flat_map(device_checks));
    }
    checks
}

fn driver(facts: &GpuFacts) -> Check {
    let check = |state, found: String| Check::new(CheckArea::Gpu, "gpu.driver", "GPU driver", state, found);
    if let Some(address) = facts.without_driver.first() {
        return check(
            CheckState::Missing,
            format!("{} at {address} without a driver", counted(facts.without_driver.len(), "NVIDIA GPU")),
        )
        .why("the kernel module nvidia isn't loaded, or this container wasn't given the GPU")
        .next("sudo modprobe nvidia   # in a container: start it with --gpus all");
    }
    match (&facts.driver, facts.gpus.is_empty()) {
        (Some(version), false) => {
            let open = if facts.open_modules == Some(true) { ", open kernel modules" } else { "" };
            check(CheckState::Works, format!("{version}{open}"))
        }
        (Some(version), true) => check(CheckState::Missing, format!("{version}, but no GPU"))
            .why("the driver found no GPU that it may use")
            .next("nvidia-smi -L; dmesg | grep -i nvrm"),
        (None, false) => check(CheckState::Works, "version not reported".into()),
        (None, true) => check(CheckState::NotApplicable, "no NVIDIA GPU here".into())
            .why("the destination of every path is host memory, and records say so"),
    }
}

fn libcuda(facts: &GpuFacts) -> Check {
    let check = |state, found: &str| Check::new(CheckArea::Gpu, "gpu.libcuda", "libcuda", state, found);
    match &facts.libcuda_refused {
        None => check(CheckState::Works, "loads"),
        Some(refused) => check(CheckState::Missing, refused)
            .why("the driver's user-space part isn't where the loader looks")
            .next("sudo ldconfig   # in a container: NVIDIA_DRIVER_CAPABILITIES=compute,utility"),
    }
}

/// Without it everything runs, but content is verified by the host.
fn compiler(facts: &GpuFacts) -> Option<Check> {
    let check = |state, found: &str| Check::new(CheckArea::Gpu, "gpu.nvrtc", "NVRTC", state, found);
    match (&facts.nvrtc, &facts.nvrtc_refused) {
        (Some(found), _) => Some(check(CheckState::Works, found)),
        (None, Some(refused)) => Some(
            check(CheckState::Limited, refused)
                .why("it compiles the kernels that verify content and compute checksums in GPU memory; the host does it instead")
                .next("pip install nvidia-cuda-nvrtc"),
        ),
        (None, None) => None,
    }
}

fn device_checks(device: &GpuDevice) -> Vec<Check> {
    let gpu = &device.gpu;
    let mut parts = vec![gpu.name.clone()];
    parts.extend(gpu.memory_bytes.map(size));
    parts.extend(gpu.pci.as_ref().map(|p| format!("at {p}")));
    parts.extend(device.link.words());
    parts.extend(device.numa_node.map(|n| format!("NUMA node {n}")));
    parts.extend(device.watts.map(|w| format!("{w:.0} W now")));
    let title = format!("GPU {}", gpu.index);
    let mut checks = vec![Check::new(
        CheckArea::Gpu,
        format!("gpu.{}", gpu.index),
        title.clone(),
        CheckState::Works,
        parts.join(", "),
    )];
    // Idle GPUs lower their generation to save power; a lost lane stays lost.
    if matches!((device.link.width, device.link.width_max), (Some(now), Some(most)) if now < most) {
        let address = gpu.pci.as_deref().unwrap_or("?");
        checks[0].state = CheckState::Limited;
        checks[0].why = Some("the link has fewer lanes than the GPU can use".into());
        checks[0].next = Some(format!("sudo lspci -vv -s {address} | grep -E 'LnkCap|LnkSta'   # then reseat it, or move it to a wider slot"));
    }
    checks.extend(window(device, &title));
    checks
}

/// Direct DMA needs the GPU's memory to be visible through its BAR1.
fn window(device: &GpuDevice, title: &str) -> Option<Check> {
    let bytes = device.bar1_bytes?;
    let id = format!("gpu.{}.bar1", device.gpu.index);
    let check = |state| Check::new(CheckArea::Gpu, id, format!("{title} BAR1 window"), state, size(bytes));
    match device.gpu.memory_bytes {
        Some(memory) if bytes < memory => Some(
            check(CheckState::Limited)
                .why(format!(
                    "smaller than the GPU's {}: only that much can be a target of direct DMA at a time",
                    size(memory)
                ))
                .next("turn on Resizable BAR and 'Above 4G decoding' in the firmware set-up"),
        ),
        _ => Some(check(CheckState::Works)),
    }
}
