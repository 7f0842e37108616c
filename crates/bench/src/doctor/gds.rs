//! Requirements of direct DMA from storage into a GPU: nvidia-fs, or PCI P2PDMA in the kernel; an IOMMU and switches
//! that let peers talk; udev's entry for the file system.

use super::filesystem::Examined;
use forebay_io::{
    counted, has_kernel_option, is_pci_bridge, kernel_config, pci_class, pci_redirects_peers, Check,
    CheckArea, CheckState, Roots,
};
use serde::Serialize;

const BRIDGES_MAX: usize = 512;

#[derive(Clone, Debug, Default, Serialize)]
pub struct Gds {
    pub nvidia_fs: NvidiaFs,
    pub p2pdma: P2pdma,
    pub iommu: Iommu,
    pub acs: Acs,
    pub udev: Vec<Udev>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NvidiaFs {
    pub loaded: bool,
    pub version: Option<String>,
    /// Drivers that are registered with it, e.g. `nvme`.
    pub drivers: Vec<String>,
    /// `/dev/nvidia-fs*`, through which libcufile talks to it: a container may lack them.
    pub devices: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct P2pdma {
    /// CONFIG_PCI_P2PDMA; null where no configuration could be read.
    pub in_kernel: Option<bool>,
    /// The driver's registry: `RMForceStaticBar1=1`; null without a driver.
    pub static_bar1: Option<bool>,
    /// `RmForceDisableIomapWC=1`.
    pub write_combining_off: Option<bool>,
    pub nvme_multipath: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Iommu {
    /// `off`, `passthrough` or `translating`.
    pub mode: &'static str,
    pub groups: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Acs {
    /// Bridges that send traffic between devices below them up to the root complex.
    pub redirecting: Vec<String>,
    /// Bridges whose setting needs root to read.
    pub unreadable: u32,
}

/// Properties of a file system's device that libcufile gets from libudev.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Udev {
    pub device: String,
    pub filesystem: String,
    /// `/run/udev/control` exists.
    pub control: bool,
    /// `/run/udev/data/bMAJOR:MINOR` has ID_FS_TYPE.
    pub filesystem_type: Option<String>,
}

impl Udev {
    pub(crate) fn is_complete(&self) -> bool {
        self.control && self.filesystem_type.is_some()
    }
}

pub(crate) fn facts(roots: &Roots, examined: &[Examined]) -> Gds {
    Gds {
        nvidia_fs: nvidia_fs(roots),
        p2pdma: p2pdma(roots),
        iommu: iommu(roots),
        acs: acs(roots),
        udev: udev(roots, examined),
    }
}

fn nvidia_fs(roots: &Roots) -> NvidiaFs {
    let tree = roots.proc("driver/nvidia-fs");
    let module = roots.sys("module/nvidia_fs");
    let stats = Roots::text(&tree.join("stats")).unwrap_or_default();
    let stated = Roots::text(&tree.join("version")).unwrap_or_default();
    let version = Roots::line(&module.join("version"))
        .or_else(|| Roots::field(&stated, "version").map(str::to_string))
        .or_else(|| Roots::field(&stats, "GDS Version").map(str::to_string));
    let devices = Roots::names(&roots.dev).iter().filter(|n| n.starts_with("nvidia-fs")).count() as u32;
    NvidiaFs {
        devices,
        loaded: module.exists() || tree.exists(),
        version,
        drivers: Roots::text(&tree.join("modules")).map(|content| drivers(&content)).unwrap_or_default(),
    }
}

/// The first word of each line of `/proc/driver/nvidia-fs/modules`.
pub(crate) fn drivers(content: &str) -> Vec<String> {
    let words = content.lines().take(64).filter_map(|l| l.split([' ', ':', '\t']).next());
    words.filter(|w| !w.is_empty()).map(str::to_string).collect()
}

fn p2pdma(roots: &Roots) -> P2pdma {
    let params = Roots::text(&roots.proc("driver/nvidia/params"));
    let registry = params.as_deref().map(|p| Roots::field(p, "RegistryDwords").unwrap_or("").to_string());
    let has = |key: &str| registry.as_deref().map(|r| dword(r, key) == Some(1));
    P2pdma {
        in_kernel: kernel_config(roots).map(|config| has_kernel_option(&config, "CONFIG_PCI_P2PDMA")),
        static_bar1: has("RMForceStaticBar1"),
        write_combining_off: has("RmForceDisableIomapWC"),
        nvme_multipath: Roots::line(&roots.sys("module/nvme_core/parameters/multipath")).map(|l| l == "Y"),
    }
}

/// A key of `"RMForceStaticBar1=1;ForceP2P=0;"`.
pub(crate) fn dword(registry: &str, key: &str) -> Option<u32> {
    registry.trim_matches('"').split(';').find_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        if !name.trim().eq_ignore_ascii_case(key) {
            return None;
        }
        let value = value.trim();
        match value.strip_prefix("0x") {
            Some(hex) => u32::from_str_radix(hex, 16).ok(),
            None => value.parse().ok(),
        }
    })
}

fn iommu(roots: &Roots) -> Iommu {
    let base = roots.sys("kernel/iommu_groups");
    let groups = Roots::names(&base);
    let translating = groups.iter().any(|g| {
        let kind = Roots::line(&base.join(g).join("type")).unwrap_or_default();
        kind != "identity"
    });
    let mode = match (groups.is_empty(), translating) {
        (true, _) => "off",
        (false, false) => "passthrough",
        (false, true) => "translating",
    };
    Iommu { mode, groups: groups.len() as u32 }
}

fn acs(roots: &Roots) -> Acs {
    let bridge = |a: &String| pci_class(roots, a).is_some_and(is_pci_bridge);
    let bridges = Roots::names(&roots.sys("bus/pci/devices")).into_iter().filter(bridge).take(BRIDGES_MAX);
    let mut acs = Acs::default();
    for address in bridges {
        match pci_redirects_peers(roots, &address) {
            Some(true) => acs.redirecting.push(address),
            Some(false) => {}
            None => acs.unreadable += 1,
        }
    }
    acs
}

/// Returns the devices of file systems on block devices: only there does libcufile ask libudev.
fn udev(roots: &Roots, examined: &[Examined]) -> Vec<Udev> {
    let mut found: Vec<Udev> = Vec::new();
    for one in examined {
        let Some(fs) = one.filesystem.as_ref().filter(|f| f.device.starts_with("/dev/")) else { continue };
        let device = format!("{}:{}", one.device.0, one.device.1);
        if found.iter().any(|u| u.device == device) {
            continue;
        }
        let database =
            Roots::text(&roots.run.join("udev/data").join(format!("b{device}"))).unwrap_or_default();
        found.push(Udev {
            device,
            filesystem: fs.kind.clone(),
            control: roots.run.join("udev/control").exists(),
            filesystem_type: database
                .lines()
                .find_map(|l| l.strip_prefix("E:ID_FS_TYPE="))
                .map(str::to_string),
        });
    }
    found
}

/// `here`: there is a GPU. `p2pdma`: the check of P2PDMA, which stands among these.
pub(crate) fn checks(gds: &Gds, here: bool, p2pdma: Check) -> Vec<Check> {
    let mut checks = vec![nvidia_fs_check(&gds.nvidia_fs, here), p2pdma];
    checks.push(iommu_check(&gds.iommu, here));
    checks.push(acs_check(&gds.acs, here));
    checks.extend(gds.udev.iter().map(|udev| udev_check(udev, here)));
    checks
}

/// A fault where there is a GPU; without one nothing that matters.
pub(crate) fn fault(here: bool) -> CheckState {
    if here {
        CheckState::Missing
    } else {
        CheckState::NotApplicable
    }
}

fn nvidia_fs_check(facts: &NvidiaFs, here: bool) -> Check {
    let check = |state, found: String| Check::new(CheckArea::Gds, "gds.nvidia_fs", "nvidia-fs", state, found);
    if !facts.loaded {
        let check = check(fault(here), "not loaded".into());
        return match here {
            true => check
                .why("without it, and without PCI P2PDMA, cuFile runs in its compatibility mode: through host memory")
                .next("sudo apt install nvidia-fs && sudo modprobe nvidia_fs   # not needed where P2PDMA works"),
            false => check,
        };
    }
    let version = facts.version.as_deref().unwrap_or("version not reported");
    if facts.drivers.is_empty() {
        return check(CheckState::Limited, format!("{version}, loaded"))
            .why("no storage driver is registered with it: the NVMe driver in use lacks NVIDIA's patch")
            .next("install MLNX_OFED or DOCA-OFED with its NVMe driver (--with-nvmf), or use P2PDMA; then: cat /proc/driver/nvidia-fs/modules");
    }
    check(CheckState::Works, format!("{version}, serving {}", facts.drivers.join(" ")))
}

fn iommu_check(iommu: &Iommu, here: bool) -> Check {
    let found = match iommu.mode {
        "off" => "off".to_string(),
        mode => format!("{mode}, {}", counted(iommu.groups as usize, "group")),
    };
    let check = |state| Check::new(CheckArea::Gds, "gds.iommu", "IOMMU", state, found.clone());
    match (iommu.mode, here) {
        ("translating", true) => check(CheckState::Limited)
            .why("traffic between a drive and a GPU is sent through the root complex to be translated, or refused")
            .next(r#"sudo sed -i 's/^GRUB_CMDLINE_LINUX="/&iommu=pt /' /etc/default/grub && sudo update-grub && sudo reboot"#),
        (_, false) => check(CheckState::NotApplicable),
        _ => check(CheckState::Works),
    }
}

fn acs_check(acs: &Acs, here: bool) -> Check {
    let check = |state, found: String| {
        Check::new(CheckArea::Gds, "gds.acs", "PCIe access control (ACS)", state, found)
    };
    if !here {
        return check(
            CheckState::NotApplicable,
            format!("{} redirect peer traffic", counted(acs.redirecting.len(), "bridge")),
        );
    }
    if let Some(first) = acs.redirecting.first() {
        let command = |a: &String| format!("sudo setpci -s {a} ECAP_ACS+6.w=0000");
        let commands: Vec<String> = acs.redirecting.iter().take(8).map(command).collect();
        let more = if acs.redirecting.len() > 8 { "; and so on for the others" } else { "" };
        return check(
            CheckState::Limited,
            format!(
                "{} redirect peer traffic, the first at {first}",
                counted(acs.redirecting.len(), "bridge")
            ),
        )
        .why("traffic between devices below them goes through the root complex")
        .next(format!(
            "{}{more}   # until the next boot; it weakens isolation between virtual machines",
            commands.join(" && ")
        ));
    }
    if acs.unreadable > 0 {
        return check(
            CheckState::Unknown,
            format!("{} not readable", counted(acs.unreadable as usize, "bridge")),
        )
        .why("the extended configuration space takes root to read")
        .next("sudo forebay doctor");
    }
    check(CheckState::Works, "no bridge redirects peer traffic".into())
}

fn udev_check(udev: &Udev, here: bool) -> Check {
    let id = format!("gds.udev.{}", udev.device);
    let check = |state, found: String| Check::new(CheckArea::Gds, id, "udev, for libcufile", state, found);
    if udev.is_complete() {
        let kind = udev.filesystem_type.as_deref().unwrap_or_default();
        return check(CheckState::Works, format!("knows {} as {kind}", udev.device));
    }
    let database = format!("/run/udev/data/b{}", udev.device);
    let lacking = match (udev.control, udev.filesystem_type.is_some()) {
        (false, false) => format!("no /run/udev/control, and no ID_FS_TYPE in {database}"),
        (false, true) => "no /run/udev/control".into(),
        _ => format!("no ID_FS_TYPE in {database}"),
    };
    check(fault(here), lacking)
        .why("libcufile asks libudev for the file system's type, and refuses to register a file with error 5027 without it (containers and virtual machines without udev)")
        .next(udev_commands(udev))
}

/// Commands that make libudev answer where no udevd runs.
pub(crate) fn udev_commands(udev: &Udev) -> String {
    format!(
        "sudo mkdir -p /run/udev/data && sudo touch /run/udev/control && printf 'E:ID_FS_TYPE={}\\nE:ID_FS_USAGE=filesystem\\nG:systemd\\nV:1\\n' | sudo tee /run/udev/data/b{}   # or start the container with -v /run/udev:/run/udev:ro",
        udev.filesystem, udev.device
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_drivers_registry_is_read_with_its_quotes() {
        let registry = "\"RMForceStaticBar1=1;ForceP2P=0x11;RmForceDisableIomapWC=1;\"";
        assert_eq!(dword(registry, "RMForceStaticBar1"), Some(1));
        assert_eq!(dword(registry, "forcep2p"), Some(0x11));
        assert_eq!(dword("\"\"", "RMForceStaticBar1"), None);
    }

    #[test]
    fn a_container_without_udev_is_told_exactly_what_to_type() {
        let udev =
            Udev { device: "254:0".into(), filesystem: "ext4".into(), control: false, filesystem_type: None };
        let check = udev_check(&udev, true);
        assert_eq!(check.state, CheckState::Missing);
        assert!(check.why.unwrap().contains("5027"));
        let next = check.next.unwrap();
        assert!(next.contains("touch /run/udev/control"));
        assert!(next.contains(r"printf 'E:ID_FS_TYPE=ext4\nE:ID_FS_USAGE=filesystem\nG:systemd\nV:1\n' | sudo tee /run/udev/data/b254:0"));
    }

    #[test]
    fn options_are_whole_names_that_are_set() {
        let config = "# CONFIG_PCI_P2PDMA is not set\nCONFIG_PCI_P2PDMA_X=y\nCONFIG_PCI=y";
        assert!(!has_kernel_option(config, "CONFIG_PCI_P2PDMA"));
        assert!(has_kernel_option(config, "CONFIG_PCI"));
    }

    proptest! {
        #[test]
        fn any_registry_or_module_list_is_survived(text in "[A-Za-z=;0x\": \n]{0,120}") {
            let _ = (dword(&text, "RMForceStaticBar1"), drivers(&text), has_kernel_option(&text, "CONFIG_X"));
        }
    }
}
