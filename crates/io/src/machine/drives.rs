//! Block devices: what they are, how they are attached, and what limits a transfer.

use super::memory::chosen;
use super::pci;
use super::roots::Roots;
use forebay_model::record::Drive;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Drives that are described at most.
const DRIVES_MAX: usize = 256;
/// Layers of md and dm that are followed.
const LAYERS_MAX: u32 = 8;
/// Sectors in sysfs are 512 bytes, whatever the drive's are.
const SECTOR_BYTES: u64 = 512;

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DriveFacts {
    #[serde(flatten)]
    pub drive: Drive,
    /// Most that the drive takes in one command; `max_transfer_bytes` is what the kernel sends.
    pub max_transfer_bytes_hw: Option<u64>,
    pub max_segments: Option<u32>,
    pub logical_block_bytes: Option<u32>,
    pub physical_block_bytes: Option<u32>,
    /// Hardware queues.
    pub queues: Option<u32>,
    /// Polled completion (io_poll) is on.
    pub polled: Option<bool>,
    /// `write back` or `write through`.
    pub write_cache: Option<String>,
    /// `pcie`, `tcp`, `rdma`, `fc` of an NVMe drive.
    pub transport: Option<String>,
    /// The file behind a loop device.
    pub backing_file: Option<String>,
    /// Drives below, of md and dm.
    pub members: Vec<String>,
}

impl DriveFacts {
    /// The whole drive that a device number belongs to: of a partition, its parent.
    pub fn named(roots: &Roots, (major, minor): (u32, u32)) -> Option<String> {
        let directory = roots.sys(format!("dev/block/{major}:{minor}")).canonicalize().ok()?;
        let own = if directory.join("partition").exists() { directory.parent()? } else { &directory };
        Some(own.file_name()?.to_str()?.to_string())
    }
}

/// `name`, what it is made of, and so on down; the physical drives last.
pub(crate) fn with_members(roots: &Roots, name: &str) -> Vec<String> {
    let mut found = Vec::new();
    descend(roots, name, LAYERS_MAX, &mut found);
    found
}

fn descend(roots: &Roots, name: &str, layers: u32, found: &mut Vec<String>) {
    if found.iter().any(|n| n == name) || found.len() >= DRIVES_MAX {
        return;
    }
    found.push(name.to_string());
    for member in members(roots, name).iter().filter(|_| layers > 0) {
        descend(roots, member, layers - 1, found);
    }
}

/// Returns the drives below md or dm device `name`; for members that are partitions, their drives.
fn members(roots: &Roots, name: &str) -> Vec<String> {
    let slaves = DriveFacts::block(roots, name).join("slaves");
    let mut found: Vec<String> = Roots::names(&slaves)
        .iter()
        .map(|slave| whole(&slaves.join(slave)).unwrap_or_else(|| slave.clone()))
        .collect();
    found.dedup();
    found
}

fn whole(device: &Path) -> Option<String> {
    let directory = device.canonicalize().ok()?;
    let own = if directory.join("partition").exists() { directory.parent()? } else { &directory };
    Some(own.file_name()?.to_str()?.to_string())
}

impl DriveFacts {
    /// Every drive but loop, ram and zram devices, and those without a medium.
    pub fn all(roots: &Roots) -> Vec<String> {
        let virtual_device = |n: &str| ["loop", "ram", "zram", "fd", "sr"].iter().any(|p| n.starts_with(p));
        let mut found = Roots::names(&roots.sys("block"));
        found.retain(|n| {
            !virtual_device(n)
                && Roots::number::<u64>(&DriveFacts::block(roots, n).join("size")).unwrap_or(0) > 0
        });
        found.truncate(DRIVES_MAX);
        found
    }

    pub fn block(roots: &Roots, name: &str) -> PathBuf {
        roots.sys("block").join(name)
    }

    pub fn read(roots: &Roots, name: &str) -> DriveFacts {
        let directory = DriveFacts::block(roots, name);
        let queue = directory.join("queue");
        let device = device(roots, name);
        let address = device.as_deref().and_then(|d| pci::pci_ancestry(d).pop());
        let link = address.as_deref().map(|a| pci::link(roots, a)).unwrap_or_default();
        let kib = |file: &str| Roots::number::<u64>(&queue.join(file)).and_then(|k| k.checked_mul(1024));
        let reported = |file: &str| Roots::line(&device.as_ref()?.join(file));
        let drive = Drive {
            name: name.into(),
            model: reported("model").or_else(|| Roots::line(&directory.join("device/model"))),
            serial: reported("serial")
                .or_else(|| Roots::line(&directory.join("serial")))
                .or_else(|| scsi_serial(&directory)),
            firmware: reported("firmware_rev").or_else(|| Roots::line(&directory.join("device/rev"))),
            size_bytes: Roots::number::<u64>(&directory.join("size"))
                .and_then(|s| s.checked_mul(SECTOR_BYTES)),
            kind: kind(name, device.as_deref()),
            rotational: Roots::number::<u8>(&queue.join("rotational")).map(|v| v != 0),
            numa_node: address.as_deref().and_then(|a| pci::pci_numa_node(roots, a)),
            pci: address,
            pcie_gen: link.generation,
            pcie_gen_max: link.generation_max,
            pcie_width: link.width,
            pcie_width_max: link.width_max,
            scheduler: Roots::line(&queue.join("scheduler")).map(|l| chosen(&l).unwrap_or(l)),
            max_transfer_bytes: kib("max_sectors_kb"),
            queue_requests: Roots::number(&queue.join("nr_requests")),
            temperature_c: device.as_deref().and_then(temperature),
        };
        DriveFacts {
            drive,
            // A driver without a limit of its own reports the largest 32-bit number.
            max_transfer_bytes_hw: kib("max_hw_sectors_kb").filter(|b| *b < (1 << 31) * 512),
            max_segments: Roots::number(&queue.join("max_segments")),
            logical_block_bytes: Roots::number(&queue.join("logical_block_size")),
            physical_block_bytes: Roots::number(&queue.join("physical_block_size")),
            queues: Some(Roots::names(&directory.join("mq")).len() as u32).filter(|n| *n > 0),
            polled: Roots::number::<u8>(&queue.join("io_poll")).map(|v| v != 0),
            write_cache: Roots::line(&queue.join("write_cache")),
            transport: reported("transport"),
            backing_file: Roots::line(&directory.join("loop/backing_file")),
            members: members(roots, name),
        }
    }
}

/// The sysfs directory of the controller: under NVMe multipath the block device hangs
/// off the subsystem, and the first controller in it stands for all.
fn device(roots: &Roots, name: &str) -> Option<PathBuf> {
    let device = DriveFacts::block(roots, name).join("device").canonicalize().ok()?;
    if !pci::pci_ancestry(&device).is_empty() || device.join("transport").exists() {
        return Some(device);
    }
    let controller = Roots::names(&device).into_iter().find(|n| {
        n.strip_prefix("nvme")
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
    });
    match controller {
        Some(controller) => device.join(controller).canonicalize().ok(),
        None => Some(device),
    }
}

/// SCSI's vital product data page 0x80: four bytes of header, then text.
fn scsi_serial(directory: &Path) -> Option<String> {
    let page = super::roots::Roots::bytes(&directory.join("device/vpd_pg80"))?;
    let text = String::from_utf8_lossy(page.get(4..)?)
        .trim_matches(|c: char| c.is_whitespace() || c == '\0')
        .to_string();
    (!text.is_empty()).then_some(text)
}

fn kind(name: &str, device: Option<&Path>) -> String {
    let prefixes = [
        ("nvme", "nvme"),
        ("vd", "virtio"),
        ("md", "md"),
        ("dm-", "dm"),
        ("loop", "loop"),
        ("mmcblk", "mmc"),
        ("pmem", "pmem"),
        ("nbd", "nbd"),
        ("rbd", "rbd"),
        ("ublkb", "ublk"),
        ("nullb", "null"),
        ("xvd", "xen"),
        ("bcache", "bcache"),
    ];
    if let Some((_, kind)) = prefixes.iter().find(|(prefix, _)| name.starts_with(prefix)) {
        return kind.to_string();
    }
    if !name.starts_with("sd") {
        return "other".into();
    }
    let sata =
        device.is_some_and(|d| d.components().any(|c| c.as_os_str().to_string_lossy().starts_with("ata")));
    if sata {
        "sata".into()
    } else {
        "scsi".into()
    }
}

/// Degrees Celsius of one drive; None where it doesn't tell.
pub(crate) fn temperature_of(roots: &Roots, name: &str) -> Option<f64> {
    temperature(device(roots, name)?.as_path())
}

/// `temp1_input`, in thousandths of a degree, of the controller's hwmon.
fn temperature(device: &Path) -> Option<f64> {
    let mut places = vec![device.to_path_buf(), device.join("hwmon")];
    // Some kernels hang hwmon off the PCI function above the controller.
    places.extend(device.join("device").canonicalize().ok().map(|d| d.join("hwmon")));
    let monitors = places.iter().flat_map(|place| {
        Roots::names(place)
            .into_iter()
            .filter(|n| n.starts_with("hwmon") && n != "hwmon")
            .map(|n| place.join(n))
    });
    monitors.into_iter().find_map(|m| Roots::number::<f64>(&m.join("temp1_input"))).map(|t| t / 1000.0)
}

/// Major and minor of the device that a path is on, or that it is.
pub(crate) fn device_number(path: &Path) -> Option<(u32, u32)> {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let stat = std::fs::metadata(path).ok()?;
    let block = stat.file_type().is_block_device();
    let number = if block { stat.rdev() } else { stat.dev() };
    Some((rustix::fs::major(number), rustix::fs::minor(number)))
}

impl DriveFacts {
    /// Names of the drives behind device numbers, with what they are made of, each once.
    pub fn behind(roots: &Roots, numbers: impl Iterator<Item = (u32, u32)>) -> Vec<String> {
        let mut found: Vec<String> = Vec::new();
        for name in numbers.filter_map(|n| DriveFacts::named(roots, n)) {
            for part in with_members(roots, &name) {
                if !found.contains(&part) {
                    found.push(part);
                }
            }
        }
        found
    }
}
