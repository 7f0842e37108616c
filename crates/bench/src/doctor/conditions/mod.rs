//! The conditions that cuFile requires of a machine before a drive may write into a GPU, one check each.
//!
//! One table: checks, the verdict and the documentation come from it. There are two ways to
//! direct DMA, nvidia-fs and the kernel's PCI P2PDMA; a condition says which it stops.

mod p2pdma;
mod software;

use super::cufile::Cufile;
use super::drives::DriveFacts;
use super::filesystem::Examined;
use super::gds::Gds;
use super::gpu::GpuFacts;
use super::raid::Raid;
use super::topology::{Distance, Relation};
use forebay_io::{Check, CheckArea, CheckState};
pub(crate) use p2pdma::p2pdma_check;
use software::{bar1, counters, forced, gpu, gpu_class, libcuda, library, udev, versions};

/// Facts of the other areas, about one storage location or the machine as a whole.
pub(crate) struct FactsView<'a> {
    pub gpu: &'a GpuFacts,
    pub cufile: &'a Cufile,
    pub gds: &'a Gds,
    pub filesystems: &'a [Examined],
    /// Behind the location, layers and members included; of the whole machine, all.
    pub drives: &'a [DriveFacts],
    pub raids: &'a [Raid],
    pub topology: &'a [Distance],
    pub kernel: &'a str,
    pub arch: &'a str,
    /// No location was named.
    pub whole: bool,
}

/// Consequence of a condition that doesn't hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stops {
    /// cuFile as a whole: not even its compatibility mode runs.
    Cufile,
    /// Direct DMA, either way.
    Direct,
    NvidiaFs,
    P2pdma,
    /// Nothing, but it costs speed, or may.
    Nothing,
}

/// Result of examining a condition.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Finding {
    Holds(String),
    Fails {
        found: String,
        why: String,
        next: String,
    },
    /// Can't be told; it isn't counted as an obstacle.
    Open {
        found: String,
        why: String,
        next: String,
    },
    /// Nothing here that it could apply to.
    Moot,
}

pub(crate) struct Condition {
    /// Stable; the check's id is this behind `gds.`, unless another check shows it.
    pub id: &'static str,
    pub title: &'static str,
    pub stops: Stops,
    /// The check of another area that shows it already.
    pub shown_by: Option<&'static str>,
    pub judge: fn(&FactsView) -> Finding,
}

const fn row(
    id: &'static str,
    title: &'static str,
    stops: Stops,
    judge: fn(&FactsView) -> Finding,
) -> Condition {
    Condition { id, title, stops, shown_by: None, judge }
}

const fn shown(
    by: &'static str,
    id: &'static str,
    title: &'static str,
    stops: Stops,
    judge: fn(&FactsView) -> Finding,
) -> Condition {
    Condition { id, title, stops, shown_by: Some(by), judge }
}

/// All conditions, in the order in which a machine is set up.
pub(crate) const CONDITIONS: &[Condition] = &[
    shown("gpu.driver", "gpu", "a GPU with its driver", Stops::Cufile, gpu),
    shown("gpu.libcuda", "libcuda", "libcuda", Stops::Cufile, libcuda),
    shown("gds.libcufile", "library", "libcufile", Stops::Cufile, library),
    row("versions", "libcufile and driver of one CUDA", Stops::Cufile, versions),
    row("counters", "cuFile's counters per GPU", Stops::Nothing, counters),
    shown("gds.udev", "udev", "udev, for libcufile", Stops::Cufile, udev),
    row("forced_compat", "compatibility mode", Stops::Direct, forced),
    row("gpu_class", "GPU class", Stops::Direct, gpu_class),
    shown("gpu.N.bar1", "bar1", "a BAR1 window", Stops::Direct, bar1),
    row("filesystem", "file system that cuFile supports", Stops::Direct, filesystem),
    shown("mount.data", "journal", "ext4 with data=ordered", Stops::Direct, journal),
    shown("direct PATH", "o_direct", "O_DIRECT", Stops::Direct, o_direct),
    row("drive", "NVMe drive", Stops::Direct, drive),
    row("layers", "RAID and mapping layers", Stops::Direct, layers),
    shown("gds.nvidia_fs", "nvidia_fs", "nvidia-fs", Stops::NvidiaFs, nvidia_fs),
    row("nvidia_fs_device", "nvidia-fs devices", Stops::NvidiaFs, nvidia_fs_device),
    row("nvidia_fs_drivers", "nvidia-fs serves the drive", Stops::NvidiaFs, nvidia_fs_drivers),
    row("p2pdma_kernel", "P2PDMA in the kernel", Stops::P2pdma, p2pdma::kernel),
    row("p2pdma_kernel_version", "P2PDMA for user space", Stops::P2pdma, p2pdma::kernel_version),
    row("p2pdma_modules", "open kernel modules", Stops::P2pdma, p2pdma::modules),
    row("p2pdma_driver", "driver for P2PDMA", Stops::P2pdma, p2pdma::driver),
    row("p2pdma_registry", "static BAR1 in the driver", Stops::P2pdma, p2pdma::registry),
    row("p2pdma_gpu", "GPU on NVIDIA's P2PDMA list", Stops::P2pdma, p2pdma::gpu),
    row("p2pdma_bar1", "all of the GPU in BAR1", Stops::P2pdma, p2pdma::bar1),
    row("p2pdma_multipath", "NVMe multipath off", Stops::P2pdma, p2pdma::multipath),
    row("p2pdma_transport", "drive on PCIe", Stops::P2pdma, p2pdma::transport),
    row("p2pdma_raid", "no md RAID below", Stops::P2pdma, p2pdma::raid),
    row("p2pdma_libcufile", "libcufile for P2PDMA", Stops::P2pdma, p2pdma::libcufile),
    row("p2pdma_json", "P2PDMA in cufile.json", Stops::P2pdma, p2pdma::json),
    shown("gds.iommu", "iommu", "IOMMU", Stops::Nothing, iommu),
    shown("gds.acs", "acs", "PCIe access control (ACS)", Stops::Nothing, acs),
    shown("topology.GPU.DRIVE", "distance", "GPU to drive", Stops::Nothing, distance),
];

/// One line for each condition that no other check shows.
/// `needless`: the way that isn't needed, since the other works.
pub(crate) fn checks(view: &FactsView, needless: Option<Stops>) -> Vec<Check> {
    let own = CONDITIONS.iter().filter(|c| c.shown_by.is_none());
    own.filter_map(|condition| {
        let check = |state, found: String| {
            Check::new(CheckArea::Gds, format!("gds.{}", condition.id), condition.title, state, found)
        };
        Some(match (condition.judge)(view) {
            Finding::Moot => return None,
            Finding::Holds(found) => check(CheckState::Works, found),
            Finding::Fails { found, .. } if Some(condition.stops) == needless => check(
                CheckState::NotApplicable,
                format!("{found}; not needed, the other way to direct DMA works"),
            ),
            Finding::Fails { found, why, next } => check(CheckState::Missing, found).why(why).next(next),
            Finding::Open { found, why, next } => check(CheckState::Unknown, found).why(why).next(next),
        })
    })
    .collect()
}

fn holds(found: impl Into<String>) -> Finding {
    Finding::Holds(found.into())
}

fn fails(found: impl Into<String>, why: impl Into<String>, next: impl Into<String>) -> Finding {
    Finding::Fails { found: found.into(), why: why.into(), next: next.into() }
}

fn open(found: impl Into<String>, why: impl Into<String>, next: impl Into<String>) -> Finding {
    Finding::Open { found: found.into(), why: why.into(), next: next.into() }
}

/// `580.159.03`, `6.8.0-60-generic`, `1.15.1` as (major, minor).
pub(crate) fn version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// File systems that reach their storage by RDMA, with the driver that signs up with nvidia-fs.
const RDMA_FILESYSTEMS: [(&str, &str); 6] = [
    ("nfs", "rpcrdma"),
    ("nfs4", "rpcrdma"),
    ("lustre", "lnet"),
    ("beegfs", "beegfs"),
    ("wekafs", "wekafsio"),
    ("gpfs", "mmfslinux"),
];

/// The driver that a location's bytes come through by RDMA; None for a local one.
fn rdma_driver(view: &FactsView) -> Option<&'static str> {
    let kind = view.filesystems.iter().find_map(|e| e.filesystem.as_ref().map(|f| f.kind.as_str()))?;
    RDMA_FILESYSTEMS.iter().find(|(name, _)| *name == kind).map(|(_, driver)| *driver)
}

fn filesystem(view: &FactsView) -> Finding {
    if view.whole || view.filesystems.is_empty() {
        return Finding::Moot;
    }
    let mut seen = Vec::new();
    for examined in view.filesystems {
        let Some(fs) = &examined.filesystem else {
            seen.push("a block device".to_string());
            continue;
        };
        let takes = matches!(fs.kind.as_str(), "ext4" | "xfs")
            || RDMA_FILESYSTEMS.iter().any(|(name, _)| *name == fs.kind);
        if !takes {
            return fails(
                format!("{} at {}", fs.kind, fs.mount_point),
                format!("cuFile reads {} only in its compatibility mode; direct DMA needs ext4, xfs, a raw drive, or a file system on RDMA", fs.kind),
                "findmnt -t ext4,xfs   # and name a directory there, or the drive itself",
            );
        }
        seen.push(fs.kind.clone());
    }
    seen.dedup();
    holds(seen.join(", "))
}

fn journal(view: &FactsView) -> Finding {
    let ext4 = view.filesystems.iter().find_map(|e| {
        let fs = e.filesystem.as_ref().filter(|f| f.kind == "ext4")?;
        Some((e, fs))
    });
    let Some((examined, fs)) = ext4.filter(|_| !view.whole) else { return Finding::Moot };
    let spelled = fs.options.iter().find_map(|o| o.strip_prefix("data="));
    let again = super::filesystem::ordered_again(fs);
    match (spelled, spelled.or(examined.journal_mode.as_deref())) {
        (Some("ordered"), _) => holds("spelled out"),
        (_, Some("ordered")) | (_, None) => open(
            "not spelled out",
            "cuFile requires ext4 with data=ordered, and some versions look for these words among the mount options",
            again,
        ),
        (_, Some(other)) => fails(
            format!("data={other}"),
            format!("ext4 at {} is mounted with data={other}, and cuFile requires data=ordered", fs.mount_point),
            again,
        ),
    }
}

fn o_direct(view: &FactsView) -> Finding {
    if view.whole {
        return Finding::Moot;
    }
    let refused = view.filesystems.iter().find_map(|e| {
        let direct = e.direct.as_ref().filter(|d| !d.inconclusive && !d.timed_out)?;
        Some((e, direct.refused.clone()?))
    });
    match refused {
        None => holds("not refused"),
        Some((examined, refused)) => fails(
            refused.clone(),
            format!("O_DIRECT is refused on {}: {refused}", examined.path.display()),
            "findmnt -t ext4,xfs   # direct DMA needs a file system with direct I/O",
        ),
    }
}

/// Drives that aren't md, dm or the like: where the bytes lie in the end.
fn physical<'a>(view: &'a FactsView) -> impl Iterator<Item = &'a DriveFacts> {
    view.drives.iter().filter(|d| !matches!(d.drive.kind.as_str(), "md" | "dm"))
}

fn drive(view: &FactsView) -> Finding {
    if rdma_driver(view).is_some() && !view.whole {
        return Finding::Moot;
    }
    let next = "forebay doctor   # lists the drives; name a directory on an NVMe drive";
    let nvme: Vec<&DriveFacts> = physical(view).filter(|d| d.drive.kind == "nvme").collect();
    let names: Vec<&str> = nvme.iter().map(|d| d.drive.name.as_str()).collect();
    if view.whole {
        return match names.is_empty() {
            true => fails("none in this machine", "no NVMe drive is in this machine", "lspci -d ::0108"),
            false => holds(names.join(" ")),
        };
    }
    let Some(first) = physical(view).next() else {
        return fails("no drive is visible", "no NVMe drive is behind this", next);
    };
    if let Some(other) = physical(view).find(|d| d.drive.kind != "nvme") {
        let kind = &other.drive.kind;
        return fails(
            format!("{} is {kind}", other.drive.name),
            format!(
                "{} is {kind}, not NVMe: only an NVMe drive's controller can write into a GPU",
                other.drive.name
            ),
            next,
        );
    }
    if nvme.iter().any(|d| d.transport.as_deref() == Some("tcp")) {
        return fails(
            format!("{} over TCP", first.drive.name),
            "an NVMe drive over TCP is read through the host's network stack",
            "‹path› bounce; or RDMA in place of TCP",
        );
    }
    holds(names.join(" "))
}

fn layers(view: &FactsView) -> Finding {
    if view.whole {
        return Finding::Moot;
    }
    let stripe = "name the drives themselves: 'stripe:?chunk=512k&m=A&m=B'";
    for raid in view.raids {
        let level = raid.level.as_deref().unwrap_or("unknown kind");
        match (raid.kind.as_str(), level) {
            ("dm", _) => {
                return fails(
                    format!("{} is device-mapper ({level})", raid.name),
                    format!("device-mapper ({level}) lies between the file system and the drive, and no direct DMA passes through it"),
                    "lsblk -s   # and put the file system on the drive itself",
                )
            }
            ("md", "raid0" | "raid1") | ("stripe", _) => {}
            ("md", _) => {
                return fails(
                    format!("{} is md {level}", raid.name),
                    format!("nvidia-fs supports md raid0 and raid1, not {level}; P2PDMA supports no md at all"),
                    stripe,
                )
            }
            _ => {}
        }
    }
    holds("none in the way")
}

fn nvidia_fs(view: &FactsView) -> Finding {
    match view.gds.nvidia_fs.loaded {
        true => holds(view.gds.nvidia_fs.version.clone().unwrap_or_else(|| "loaded".into())),
        false => fails(
            "not loaded",
            "the kernel module nvidia-fs isn't loaded",
            "sudo apt install nvidia-fs && sudo modprobe nvidia_fs",
        ),
    }
}

fn nvidia_fs_device(view: &FactsView) -> Finding {
    match (view.gds.nvidia_fs.loaded, view.gds.nvidia_fs.devices) {
        (false, _) => Finding::Moot,
        (true, 0) => fails(
            "no /dev/nvidia-fs*",
            "the module is loaded, but this container has no /dev/nvidia-fs* to talk to it",
            "docker run $(for d in /dev/nvidia-fs*; do echo --device=$d; done) -v /run/udev:/run/udev:ro …   # the same container with the devices",
        ),
        (true, count) => holds(format!("{count} in /dev")),
    }
}

fn nvidia_fs_drivers(view: &FactsView) -> Finding {
    if !view.gds.nvidia_fs.loaded {
        return Finding::Moot;
    }
    let serves = |name: &str| view.gds.nvidia_fs.drivers.iter().any(|d| d == name);
    let over_fabric = |d: &DriveFacts| d.transport.as_deref() == Some("rdma");
    let wanted = match rdma_driver(view).filter(|_| !view.whole) {
        Some(driver) => driver,
        None if !view.whole && physical(view).any(over_fabric) => "nvme_rdma",
        None => "nvme",
    };
    match serves(wanted) {
        true => holds(wanted),
        false => fails(
            format!("{wanted} isn't registered"),
            format!("the driver {wanted} isn't registered with nvidia-fs: the one in use lacks NVIDIA's patch"),
            "cat /proc/driver/nvidia-fs/modules   # after MLNX_OFED or DOCA-OFED with its NVMe driver (--with-nvmf); or use P2PDMA",
        ),
    }
}

fn iommu(view: &FactsView) -> Finding {
    match view.gds.iommu.mode {
        "translating" => fails(
            "translating",
            "the IOMMU translates: traffic between drive and GPU goes through the root complex, or is refused",
            r#"sudo sed -i 's/^GRUB_CMDLINE_LINUX="/&iommu=pt /' /etc/default/grub && sudo update-grub && sudo reboot"#,
        ),
        mode => holds(mode),
    }
}

fn acs(view: &FactsView) -> Finding {
    match view.gds.acs.redirecting.first() {
        Some(first) => fails(
            format!("{first} redirects"),
            "PCIe access control sends peer traffic through the root complex",
            format!("sudo setpci -s {first} ECAP_ACS+6.w=0000   # until the next boot"),
        ),
        None => holds("no bridge redirects"),
    }
}

fn distance(view: &FactsView) -> Finding {
    let ours = |d: &&Distance| view.drives.iter().any(|f| f.drive.name == d.to);
    if view.whole {
        return Finding::Moot;
    }
    let far = |d: &&Distance| matches!(d.relation, Relation::CrossNode | Relation::SameNode);
    match view.topology.iter().filter(ours).find(far) {
        Some(d) => fails(
            format!("GPU {} and {} are {}", d.gpu, d.to, d.relation.words()),
            format!(
                "GPU {} and {} are {}, where a kernel may refuse P2PDMA and direct DMA is slower",
                d.gpu,
                d.to,
                d.relation.words()
            ),
            format!("nvidia-smi topo -m   # and use a GPU near {}: ‹gpus› N", d.to),
        ),
        None => holds("near"),
    }
}
