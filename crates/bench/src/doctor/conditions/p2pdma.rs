//! The requirements of the kernel's PCI P2PDMA: the kernel itself, the driver, the GPU, the drive, cufile.json.

use super::software::library_version;
use super::{fails, holds, open, physical, rdma_driver, version, FactsView, Finding, Stops, CONDITIONS};
use crate::doctor::drives::DriveFacts;
use crate::doctor::gds::fault;
use forebay_io::{Check, CheckArea, CheckState};
use forebay_model::units::readable_bytes as size;

/// The conditions of P2PDMA in one line; each has its own line with what to type.
pub(crate) fn p2pdma_check(view: &FactsView) -> Check {
    let here = view.gpu.are_present();
    let check = |state, found: String| Check::new(CheckArea::Gds, "gds.p2pdma", "PCI P2PDMA", state, found);
    match view.gds.p2pdma.in_kernel {
        Some(false) => {
            return check(fault(here), "off in the kernel (CONFIG_PCI_P2PDMA)".into())
                .why("the kernel can't let a drive write into a GPU")
        }
        None => {
            return check(CheckState::Unknown, "not reported".into())
                .why("no kernel configuration can be read")
                .next("grep p2pdma_pgmap_ops /proc/kallsyms   # a line means that the kernel has it")
        }
        Some(true) if !here => {
            return check(CheckState::NotApplicable, "in the kernel; no GPU for it".into())
        }
        Some(true) => {}
    }
    let ours = CONDITIONS.iter().filter(|c| c.stops == Stops::P2pdma);
    let amiss: Vec<&str> =
        ours.filter(|c| matches!((c.judge)(view), Finding::Fails { .. })).map(|c| c.title).collect();
    match amiss.is_empty() {
        true => check(CheckState::Works, "in the kernel, the driver and cufile.json".into()),
        false => check(CheckState::Missing, "in the kernel, not set up".into())
            .why(format!("amiss: {}", amiss.join(", "))),
    }
}

pub(crate) fn kernel(view: &FactsView) -> Finding {
    match view.gds.p2pdma.in_kernel {
        Some(true) => holds("CONFIG_PCI_P2PDMA"),
        Some(false) => fails(
            "CONFIG_PCI_P2PDMA is off",
            "the kernel is built without CONFIG_PCI_P2PDMA",
            "grep CONFIG_PCI_P2PDMA /boot/config-*   # and boot one with CONFIG_PCI_P2PDMA=y (Ubuntu's from 6.2 on), or use nvidia-fs",
        ),
        None => open(
            "not reported",
            "no kernel configuration can be read",
            "grep p2pdma_pgmap_ops /proc/kallsyms   # a line means that the kernel has it",
        ),
    }
}

/// O_DIRECT into peer memory came with Linux 6.2.
const KERNEL_MIN: (u32, u32) = (6, 2);
/// The driver's release that came with it, by NVIDIA's guide.
const DRIVER_MIN: (u32, u32) = (565, 0);
/// The first libcufile with `use_pci_p2pdma` (CUDA 12.8).
const LIBCUFILE_MIN: (u32, u32) = (1, 13);

pub(crate) fn kernel_version(view: &FactsView) -> Finding {
    match version(view.kernel) {
        Some(found) if found < KERNEL_MIN => fails(
            view.kernel,
            format!(
                "Linux {} is older than 6.2, the first that reads into peer memory for a program",
                view.kernel
            ),
            "sudo apt install linux-generic-hwe-24.04 && sudo reboot   # or any kernel from 6.2 on",
        ),
        Some(_) => holds(view.kernel),
        None => Finding::Moot,
    }
}

pub(crate) fn modules(view: &FactsView) -> Finding {
    match view.gpu.open_modules {
        Some(false) => fails(
            "closed kernel modules",
            "P2PDMA needs the driver's open kernel modules",
            "sudo apt install nvidia-open && sudo reboot",
        ),
        Some(true) => holds("open kernel modules"),
        None => Finding::Moot,
    }
}

pub(crate) fn driver(view: &FactsView) -> Finding {
    let Some(driver) = &view.gpu.driver else { return Finding::Moot };
    match version(driver) {
        Some(found) if found < DRIVER_MIN => fails(
            driver,
            format!("driver {driver} is older than 565, the first with P2PDMA"),
            "sudo apt install nvidia-open && sudo reboot",
        ),
        _ => holds(driver),
    }
}

pub(crate) fn registry(view: &FactsView) -> Finding {
    let facts = &view.gds.p2pdma;
    if view.arch != "x86_64" || !view.gpu.are_present() {
        return Finding::Moot;
    }
    let (fixed, uncombined) = (facts.static_bar1 == Some(true), facts.write_combining_off == Some(true));
    if fixed && uncombined {
        return holds("RMForceStaticBar1, RmForceDisableIomapWC");
    }
    let missing = match (fixed, uncombined) {
        (false, false) => "RMForceStaticBar1 and RmForceDisableIomapWC aren't set",
        (false, true) => "RMForceStaticBar1 isn't set",
        _ => "RmForceDisableIomapWC isn't set",
    };
    fails(
        missing,
        format!("the driver doesn't keep the GPU's memory mapped in BAR1: {missing}"),
        r#"echo 'options nvidia NVreg_RegistryDwords="RMForceStaticBar1=1;RmForceDisableIomapWC=1;"' | sudo tee /etc/modprobe.d/nvidia-p2pdma.conf && sudo update-initramfs -u && sudo reboot"#,
    )
}

/// As NVIDIA's guide lists them.
const P2PDMA_GPUS: [&str; 9] = ["A100", "A40", "L4", "L40S", "H100", "H200", "B100", "B200", "B300"];

pub(crate) fn gpu(view: &FactsView) -> Finding {
    let listed = |name: &str| {
        let mut words = name.split(|c: char| !c.is_ascii_alphanumeric());
        words.any(|word| P2PDMA_GPUS.contains(&word))
    };
    match view.gpu.gpus.iter().find(|g| !listed(&g.gpu.name)) {
        Some(device) => open(
            device.gpu.name.clone(),
            format!("NVIDIA's list of GPUs with P2PDMA doesn't name it: {}", P2PDMA_GPUS.join(", ")),
            "forebay validate --only gds-direct   # shows what it really does",
        ),
        None if view.gpu.are_present() => holds("listed"),
        None => Finding::Moot,
    }
}

pub(crate) fn bar1(view: &FactsView) -> Finding {
    for device in &view.gpu.gpus {
        let (Some(window), Some(memory)) = (device.bar1_bytes, device.gpu.memory_bytes) else { continue };
        if window < memory {
            return fails(
                format!("{} of {}", size(window), size(memory)),
                "a static BAR1 has to hold all of the GPU's memory",
                "turn on Resizable BAR and 'Above 4G decoding' in the firmware set-up",
            );
        }
        return holds(size(window));
    }
    Finding::Moot
}

pub(crate) fn multipath(view: &FactsView) -> Finding {
    match view.gds.p2pdma.nvme_multipath {
        Some(true) => fails(
            "on",
            "NVMe multipath is on, and P2PDMA doesn't pass through it",
            "echo 'options nvme_core multipath=N' | sudo tee /etc/modprobe.d/nvme.conf && sudo update-initramfs -u && sudo reboot",
        ),
        Some(false) => holds("off"),
        None => Finding::Moot,
    }
}

pub(crate) fn transport(view: &FactsView) -> Finding {
    if view.whole {
        return Finding::Moot;
    }
    let remote = |d: &&DriveFacts| d.transport.as_deref().is_some_and(|t| t != "pcie");
    let far = physical(view).find(remote).map(|d| d.drive.name.clone());
    match far.or_else(|| rdma_driver(view).map(str::to_string)) {
        Some(name) => fails(
            format!("{name} is behind a network"),
            "P2PDMA reaches drives in this machine only",
            "cat /proc/driver/nvidia-fs/modules   # nvidia-fs, with the driver that registers for it",
        ),
        None => holds("local"),
    }
}

pub(crate) fn raid(view: &FactsView) -> Finding {
    if view.whole {
        return Finding::Moot;
    }
    match view.raids.iter().find(|r| r.kind == "md") {
        Some(raid) => fails(
            format!("{} is md {}", raid.name, raid.level.as_deref().unwrap_or("of unknown level")),
            "P2PDMA refuses md RAID, RAID0 as well",
            "name the drives themselves: 'stripe:?chunk=512k&m=A&m=B'   # RAID0 in user space, which P2PDMA supports",
        ),
        None => holds("none"),
    }
}

pub(crate) fn libcufile(view: &FactsView) -> Finding {
    match library_version(view) {
        Some((text, found)) if found < LIBCUFILE_MIN => fails(
            text,
            format!("libcufile {text} is older than 1.13, the first with P2PDMA"),
            "pip install --upgrade nvidia-cufile   # or CUDA 12.8 and later",
        ),
        Some((text, _)) => holds(text),
        None => Finding::Moot,
    }
}

pub(crate) fn json(view: &FactsView) -> Finding {
    let config = &view.cufile.config;
    match config.use_pci_p2pdma {
        true => holds("use_pci_p2pdma"),
        false => fails(
            format!("use_pci_p2pdma isn't set in {}", config.path.display()),
            "cufile.json doesn't ask for P2PDMA (use_pci_p2pdma)",
            "forebay doctor --write-cufile-json cufile.json && export CUFILE_ENV_PATH_JSON=$PWD/cufile.json",
        ),
    }
}
