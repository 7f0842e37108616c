//! The examination of a machine made of files: two sockets; below one PCIe switch
//! a Gen5 ×4 drive, a GPU and a network card; on the other socket a drive under NVMe
//! multipath; md raid0 over both; nvidia-fs.

mod causes;

use super::verdict::Facts;
use super::*;
use crate::doctor::report::State;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

const SWITCH: &str = "sys/devices/pci0000:3a/0000:3a:01.0/0000:3b:00.0";
const GPU: &str = "0000:3e:00.0";

struct Machine {
    root: tempfile::TempDir,
}

impl Machine {
    fn new() -> Machine {
        // In memory where that can be had: a disk's file system may write out each file that is replaced.
        let root = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let machine = Machine { root: root.unwrap() };
        machine.host();
        machine.pci();
        machine.drives();
        machine.gpu();
        machine
    }

    fn roots(&self) -> Roots {
        Roots::under(self.root.path())
    }

    fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    fn fill(&self, directory: &str, files: &[(&str, &str)]) {
        for (name, content) in files {
            self.write(&format!("{directory}/{name}"), format!("{content}\n"));
        }
    }

    /// A link at `path` to `to`, both below the root.
    fn link(&self, path: &str, to: &str) {
        let path = self.root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(self.root.path().join(to), path).unwrap();
    }

    fn remove(&self, path: &str) {
        std::fs::remove_file(self.root.path().join(path)).unwrap();
    }

    fn host(&self) {
        self.fill("proc/sys/kernel", &[("hostname", "node7"), ("osrelease", "6.8.0-60-generic")]);
        self.write("etc/os-release", "NAME=\"Ubuntu\"\nPRETTY_NAME=\"Ubuntu 24.04.2 LTS\"\n");
        self.write(
            "proc/cpuinfo",
            "processor\t: 0\nmodel name\t: AMD EPYC 9554  64-Core Processor\nflags\t: fpu avx512f\n",
        );
        self.write(
            "proc/meminfo",
            "MemTotal:       65536000 kB\nMemAvailable:   60000000 kB\nSwapTotal: 0 kB\n",
        );
        self.write("proc/self/limits", "Limit  Soft Limit  Hard Limit  Units\nMax locked memory         8388608              8388608              bytes\n");
        self.write("proc/self/status", "Cpus_allowed_list:\t0-3\nCapEff:\t0000000000000000\n");
        self.fill(
            "sys/devices/system/cpu",
            &[("online", "0-3"), ("smt/active", "1"), ("cpu0/cpufreq/scaling_governor", "powersave")],
        );
        for (cpu, package) in [(0, 0), (1, 0), (2, 1), (3, 1)] {
            self.write(
                &format!("sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"),
                format!("{package}\n"),
            );
        }
        for (node, cpus) in [(0, "0-1"), (1, "2-3")] {
            self.fill(
                &format!("sys/devices/system/node/node{node}"),
                &[("cpulist", cpus), ("meminfo", &format!("Node {node} MemTotal:  32768000 kB"))],
            );
        }
        self.fill(
            "sys/kernel/mm/hugepages/hugepages-2048kB",
            &[("nr_hugepages", "10"), ("free_hugepages", "4")],
        );
        self.fill(
            "sys/kernel/mm/transparent_hugepage",
            &[("enabled", "always madvise [never]"), ("defrag", "[madvise] never")],
        );
    }

    /// One PCI function, with its link in /sys/bus/pci/devices.
    fn function(&self, path: &str, vendor: &str, class: &str, node: &str) {
        let address = path.rsplit('/').next().unwrap();
        self.fill(path, &[("vendor", vendor), ("class", class), ("numa_node", node)]);
        self.link(&format!("sys/bus/pci/devices/{address}"), path);
    }

    fn pcie(&self, path: &str, speed: &str, width: &str) {
        self.fill(
            path,
            &[
                ("max_link_speed", "32.0 GT/s PCIe"),
                ("max_link_width", width),
                ("current_link_speed", speed),
                ("current_link_width", width),
            ],
        );
    }

    fn pci(&self) {
        self.function("sys/devices/pci0000:3a/0000:3a:01.0", "0x8086", "0x060400", "0");
        for bridge in ["", "/0000:3c:04.0", "/0000:3c:10.0", "/0000:3c:14.0"] {
            self.function(&format!("{SWITCH}{bridge}"), "0x1000", "0x060400", "0");
        }
        let drive = format!("{SWITCH}/0000:3c:04.0/0000:3d:00.0");
        self.function(&drive, "0x025e", "0x010802", "0");
        self.pcie(&drive, "16.0 GT/s PCIe", "4");
        let nic = format!("{SWITCH}/0000:3c:14.0/0000:3f:00.0");
        self.function(&nic, "0x15b3", "0x020000", "0");
        let far = "sys/devices/pci0000:b0/0000:b0:02.0/0000:b1:00.0";
        self.function(far, "0x025e", "0x010802", "1");
        self.pcie(far, "32.0 GT/s PCIe", "4");
        self.fill(
            &format!("{nic}/infiniband/mlx5_0"),
            &[
                ("fw_ver", "28.39.1002"),
                ("ports/1/state", "4: ACTIVE"),
                ("ports/1/rate", "400 Gb/sec (4X NDR)"),
                ("ports/1/link_layer", "InfiniBand"),
            ],
        );
        self.link("sys/class/infiniband/mlx5_0", &format!("{nic}/infiniband/mlx5_0"));
        self.link(&format!("{nic}/infiniband/mlx5_0/device"), &nic);
        self.write("dev/infiniband/uverbs0", "");
    }

    fn drives(&self) {
        let near = format!("{SWITCH}/0000:3c:04.0/0000:3d:00.0/nvme/nvme0");
        self.fill(
            &near,
            &[
                ("model", "SOLIDIGM SB5PH27X076T"),
                ("serial", "PHAX1"),
                ("firmware_rev", "G75YG100"),
                ("transport", "pcie"),
                ("hwmon2/temp1_input", "73850"),
            ],
        );
        self.namespace(&near, "nvme0n1", &near);
        self.write(&format!("{near}/nvme0n1/nvme0n1p1/partition"), "1\n");
        self.link("sys/dev/block/259:1", &format!("{near}/nvme0n1/nvme0n1p1"));
        // Under multipath the block device hangs off a subsystem, which links to its controllers.
        let far = "sys/devices/pci0000:b0/0000:b0:02.0/0000:b1:00.0/nvme/nvme5";
        self.fill(
            far,
            &[
                ("model", "FAR DRIVE"),
                ("serial", "S2"),
                ("firmware_rev", "1"),
                ("transport", "pcie"),
                ("hwmon3/temp1_input", "40850"),
            ],
        );
        let subsystem = "sys/devices/virtual/nvme-subsystem/nvme-subsys5";
        self.namespace(subsystem, "nvme5n1", subsystem);
        self.link(&format!("{subsystem}/nvme5"), far);
        self.write("sys/module/nvme_core/parameters/multipath", "Y\n");
        let md = "sys/devices/virtual/block/md0";
        self.fill(
            md,
            &[
                ("size", "30005842608"),
                ("md/level", "raid0"),
                ("md/chunk_size", "524288"),
                ("md/array_state", "clean"),
            ],
        );
        self.link(&format!("{md}/slaves/nvme0n1p1"), &format!("{near}/nvme0n1/nvme0n1p1"));
        self.link(&format!("{md}/slaves/nvme5n1"), &format!("{subsystem}/nvme5n1"));
        self.link("sys/block/md0", md);
        self.link("sys/dev/block/9:0", md);
    }

    fn namespace(&self, parent: &str, name: &str, device: &str) {
        let block = format!("{parent}/{name}");
        self.fill(
            &block,
            &[
                ("size", "15002921304"),
                ("queue/rotational", "0"),
                ("queue/scheduler", "none [mq-deadline] kyber"),
                ("queue/max_sectors_kb", "512"),
                ("queue/max_hw_sectors_kb", "2048"),
                ("queue/max_segments", "128"),
                ("queue/nr_requests", "1023"),
                ("queue/io_poll", "0"),
                ("queue/logical_block_size", "512"),
                ("mq/0/nr_tags", "1023"),
                ("mq/1/nr_tags", "1023"),
            ],
        );
        self.link(&format!("{block}/device"), device);
        self.link(&format!("sys/block/{name}"), &block);
    }

    fn gpu(&self) {
        let path = format!("{SWITCH}/0000:3c:10.0/{GPU}");
        self.function(&path, "0x10de", "0x030200", "0");
        self.pcie(&path, "2.5 GT/s PCIe", "16");
        // Region 0: 16 MiB of registers; region 1: 64 GiB of memory.
        self.write(&format!("{path}/resource"), "0x0000000092000000 0x0000000092ffffff 0x0000000000040200\n0x0000206000000000 0x0000206fffffffff 0x000000000014220c\n");
        self.write(&format!("proc/driver/nvidia/gpus/{GPU}/information"), "Model: \t\t NVIDIA L40S\nGPU UUID: \t GPU-1\nBus Location: \t 0000:3E:00.0\nDevice Minor: \t 0\n");
        self.write(
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release Build\n",
        );
        self.write(
            "proc/driver/nvidia/params",
            "EnableMSI: 1\nRegistryDwords: \"RMForceStaticBar1=1;RmForceDisableIomapWC=1;\"\n",
        );
        self.write(
            "proc/driver/nvidia-fs/stats",
            "GDS Version: 1.15.1.6\nNVFS statistics(ver: 4.0)\nNVFS Driver(version: 2.27.3)\n",
        );
        self.write("proc/driver/nvidia-fs/modules", "nvme\nnvme_rdma\n");
        self.write("sys/module/nvidia_fs/version", "2.27.3\n");
        self.write("dev/nvidia-fs0", "");
        self.kernel_config("CONFIG_PCI=y\nCONFIG_PCI_P2PDMA=y\n");
    }

    fn kernel_config(&self, config: &str) {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(config.as_bytes()).unwrap();
        self.write("proc/config.gz", packed.finish().unwrap());
    }

    fn examine(&self) -> Report {
        examine_with(&self.roots(), source::parse(None).unwrap(), &Surroundings::default())
    }
}

fn find<'a>(report: &'a Report, id: &str) -> &'a Check {
    report.checks.iter().find(|c| c.id == id).unwrap_or_else(|| panic!("no check {id}"))
}

#[test]
fn a_drive_behind_a_switch_is_described_with_its_link_and_limits() {
    let machine = Machine::new();
    let facts = drives::describe(&machine.roots(), "nvme0n1");
    assert_eq!(facts.drive.model.as_deref(), Some("SOLIDIGM SB5PH27X076T"));
    assert_eq!(facts.drive.kind, "nvme");
    assert_eq!(facts.drive.pci.as_deref(), Some("0000:3d:00.0"));
    assert_eq!(
        (facts.drive.pcie_gen, facts.drive.pcie_gen_max, facts.drive.pcie_width),
        (Some(4), Some(5), Some(4))
    );
    assert_eq!(facts.drive.size_bytes, Some(15002921304 * 512));
    assert_eq!(
        (facts.drive.max_transfer_bytes, facts.max_transfer_bytes_hw),
        (Some(512 << 10), Some(2 << 20))
    );
    assert_eq!(facts.drive.scheduler.as_deref(), Some("mq-deadline"));
    assert_eq!(facts.drive.temperature_c, Some(73.85));
    assert_eq!(facts.queues, Some(2));
}

#[test]
fn each_thing_that_holds_a_drive_back_is_named_with_its_command() {
    let report = Machine::new().examine();
    for (check, command) in [
        ("drive.nvme0n1.link", "lspci -vv -s 0000:3d:00.0"),
        ("drive.nvme0n1.transfer", "echo 2048 | sudo tee /sys/block/nvme0n1/queue/max_sectors_kb"),
        ("drive.nvme0n1.scheduler", "echo none | sudo tee /sys/block/nvme0n1/queue/scheduler"),
        ("drive.nvme0n1.temperature", "nvme smart-log /dev/nvme0n1"),
    ] {
        let check = find(&report, check);
        assert_eq!(check.state, State::Limited, "{}", check.id);
        assert!(check.next.as_ref().unwrap().contains(command), "{check:?}");
    }
    assert_eq!(find(&report, "drive.nvme5n1.link").state, State::Works);
    assert_eq!(find(&report, "drive.nvme5n1.temperature").found, "41 °C");
}

#[test]
fn under_multipath_the_controller_is_found_through_the_subsystem() {
    let facts = drives::describe(&Machine::new().roots(), "nvme5n1");
    assert_eq!(facts.drive.model.as_deref(), Some("FAR DRIVE"));
    assert_eq!((facts.drive.pci.as_deref(), facts.drive.numa_node), (Some("0000:b1:00.0"), Some(1)));
}

#[test]
fn raid_is_followed_down_to_its_drives() {
    let machine = Machine::new();
    let roots = machine.roots();
    assert_eq!(crate::machine::drives::named(&roots, (259, 1)).as_deref(), Some("nvme0n1"));
    assert_eq!(behind(&roots, [(9, 0)].into_iter()), ["md0", "nvme0n1", "nvme5n1"]);
    let raids = raid::facts(&roots, &[drives::describe(&roots, "md0")]);
    assert_eq!((raids[0].level.as_deref(), raids[0].chunk_bytes), (Some("raid0"), Some(512 << 10)));
    let check = &raid::checks(&roots, &raids, true)[0];
    assert!(
        check.why.as_ref().unwrap().contains("P2PDMA") && check.next.as_ref().unwrap().contains("stripe:")
    );
}

#[test]
fn a_disk_that_spins_is_told_from_a_device_that_only_says_so() {
    let machine = Machine::new();
    machine.link("sys/block/sda", "sys/devices/pci0000:00/0000:00:1f.2/ata1/block/sda");
    machine.link(
        "sys/devices/pci0000:00/0000:00:1f.2/ata1/block/sda/device",
        "sys/devices/pci0000:00/0000:00:1f.2/ata1",
    );
    machine.fill(
        "sys/devices/pci0000:00/0000:00:1f.2/ata1/block/sda",
        &[("size", "9"), ("queue/rotational", "1"), ("device/vpd_pg80", "\0\u{1}\0\u{8} WD-1234")],
    );
    machine.fill(
        "sys/block/loop0",
        &[("size", "9"), ("queue/rotational", "1"), ("loop/backing_file", "/data/image")],
    );
    let described = |name| drives::describe(&machine.roots(), name);
    let first = |name| drives::checks(&[described(name)])[0].clone();
    assert_eq!((first("sda").state, described("sda").drive.kind.as_str()), (State::Limited, "sata"));
    assert_eq!(described("sda").drive.serial.as_deref(), Some("WD-1234"));
    assert_eq!(first("loop0").state, State::Works);
    assert!(first("loop0").found.contains("backed by /data/image"));
}

#[test]
fn device_mapper_layers_are_told_apart() {
    let machine = Machine::new();
    machine.fill(
        "sys/block/dm-0",
        &[("size", "100"), ("dm/name", "secret"), ("dm/uuid", "CRYPT-LUKS2-abc"), ("dm/suspended", "0")],
    );
    let roots = machine.roots();
    let raids = raid::facts(&roots, &[drives::describe(&roots, "dm-0")]);
    assert_eq!((raids[0].name.as_str(), raids[0].level.as_deref()), ("secret", Some("crypt")));
    assert_eq!(raid::checks(&roots, &raids, false)[0].state, State::Limited);
}

#[test]
fn the_gpu_is_found_without_a_library_and_measured_against_drives_and_cards() {
    let report = Machine::new().examine();
    let gpu = &report.gpu.gpus[0];
    assert_eq!((gpu.gpu.name.as_str(), gpu.gpu.pci.as_deref()), ("NVIDIA L40S", Some(GPU)));
    assert_eq!(gpu.bar1_bytes, Some(64 << 30));
    assert_eq!(report.gpu.driver.as_deref(), Some("580.159.03"));
    let relation = |to: &str| report.topology.iter().find(|d| d.to == to).map(|d| d.relation);
    assert_eq!(relation("nvme0n1"), Some(topology::Relation::SameSwitch));
    assert_eq!(relation("mlx5_0"), Some(topology::Relation::SameSwitch));
    assert_eq!(relation("nvme5n1"), Some(topology::Relation::CrossNode));
    // An idle GPU lowers its generation; only lost lanes are a fault.
    assert_eq!(find(&report, "gpu.0").state, State::Works);
}

#[test]
fn a_gpu_without_a_driver_is_noticed_on_the_bus() {
    let machine = Machine::new();
    std::fs::remove_dir_all(machine.root.path().join("proc/driver/nvidia")).unwrap();
    let report = machine.examine();
    let check = find(&report, "gpu.driver");
    assert_eq!(check.state, State::Missing);
    assert!(check.found.contains(GPU) && check.next.as_ref().unwrap().contains("modprobe nvidia"));
}

#[test]
fn nvidia_fs_says_whom_it_serves() {
    let machine = Machine::new();
    let check = |machine: &Machine| find(&machine.examine(), "gds.nvidia_fs").clone();
    assert_eq!(check(&machine).found, "2.27.3, serving nvme nvme_rdma");
    machine.write("proc/driver/nvidia-fs/modules", "");
    assert_eq!(check(&machine).state, State::Limited);
    std::fs::remove_dir_all(machine.root.path().join("proc/driver/nvidia-fs")).unwrap();
    std::fs::remove_dir_all(machine.root.path().join("sys/module/nvidia_fs")).unwrap();
    assert!(check(&machine).next.unwrap().contains("modprobe nvidia_fs"));
}

#[test]
fn peer_dma_names_every_setting_that_is_amiss_until_it_works() {
    let machine = Machine::new();
    let check = |machine: &Machine| find(&machine.examine(), "gds.p2pdma").clone();
    let next = |machine: &Machine, id: &str| find(&machine.examine(), id).next.clone().unwrap();
    assert_eq!(check(&machine).why.unwrap(), "amiss: NVMe multipath off, P2PDMA in cufile.json");
    assert!(next(&machine, "gds.p2pdma_multipath").contains("nvme_core multipath=N"));
    assert!(next(&machine, "gds.p2pdma_json").contains("--write-cufile-json"));
    machine.write("sys/module/nvme_core/parameters/multipath", "N\n");
    machine.write("etc/cufile.json", "{ // direct\n \"properties\": { \"use_pci_p2pdma\": true } }");
    assert_eq!(check(&machine).state, State::Works);
    machine.write("proc/driver/nvidia/params", "RegistryDwords: \"\"\n");
    if std::env::consts::ARCH == "x86_64" {
        assert!(
            next(&machine, "gds.p2pdma_registry").contains("RMForceStaticBar1=1;RmForceDisableIomapWC=1;")
        );
    }
    machine.kernel_config("# CONFIG_PCI_P2PDMA is not set\n");
    assert!(check(&machine).found.contains("off in the kernel"));
    machine.remove("proc/config.gz");
    assert_eq!(check(&machine).state, State::Unknown);
    machine.write("boot/config-6.8.0-60-generic", "CONFIG_PCI_P2PDMA=y\n");
    assert!(check(&machine).found.starts_with("in the kernel"));
}

#[test]
fn a_bridge_that_redirects_peers_is_named_with_the_setpci_command() {
    let machine = Machine::new();
    assert_eq!(find(&machine.examine(), "gds.acs").state, State::Unknown);
    for bridge in ["0000:3a:01.0", "0000:3b:00.0", "0000:3c:04.0", "0000:3c:10.0", "0000:3c:14.0"] {
        let mut config = vec![0u8; 4096];
        config[0x100..0x104].copy_from_slice(&[0x0d, 0x00, 0x01, 0x00]);
        config[0x106] = if bridge == "0000:3c:04.0" { 0x1d } else { 0 };
        machine.write(&format!("sys/bus/pci/devices/{bridge}/config"), &config);
    }
    let report = machine.examine();
    assert_eq!(report.gds.acs.redirecting, ["0000:3c:04.0"]);
    assert!(find(&report, "gds.acs")
        .next
        .as_ref()
        .unwrap()
        .contains("setpci -s 0000:3c:04.0 ECAP_ACS+6.w=0000"));
}

#[test]
fn an_iommu_that_translates_is_told_from_one_that_passes_through() {
    let machine = Machine::new();
    let mode = |machine: &Machine| machine.examine().gds.iommu.mode;
    assert_eq!(mode(&machine), "off");
    machine.write("sys/kernel/iommu_groups/0/type", "identity\n");
    assert_eq!(mode(&machine), "passthrough");
    machine.write("sys/kernel/iommu_groups/1/type", "DMA-FQ\n");
    assert_eq!(mode(&machine), "translating");
    assert!(find(&machine.examine(), "gds.iommu").next.as_ref().unwrap().contains("iommu=pt"));
}

#[test]
fn memory_limits_come_with_what_raises_them() {
    let machine = Machine::new();
    let report = machine.examine();
    assert_eq!(report.memory.locked.soft_bytes, Some(8 << 20));
    assert!(find(&report, "memlock").next.as_ref().unwrap().contains("memlock unlimited"));
    // 6 of 10 pages are in use, and 64 are wanted.
    assert!(find(&report, "hugetlb").next.as_ref().unwrap().contains("vm.nr_hugepages=70"));
    assert!(find(&report, "thp").next.as_ref().unwrap().contains("echo madvise"));
    // CAP_IPC_LOCK lifts the limit.
    machine.write("proc/self/status", "CapEff:\t0000000000004000\n");
    assert_eq!(find(&machine.examine(), "memlock").state, State::Works);
}

#[test]
fn the_host_is_described_down_to_its_container() {
    let machine = Machine::new();
    let host = host::facts(&machine.roots());
    assert_eq!(host.cpu, "AMD EPYC 9554 64-Core Processor");
    assert_eq!((host.cores, host.sockets, host.numa.len(), host.smt), (4, Some(2), 2, Some(true)));
    assert_eq!((host.virtualization, host.container), (None, None));
    assert_eq!(find(&machine.examine(), "governor").state, State::Limited);
    machine.write(".dockerenv", "");
    machine.write("proc/self/cgroup", "0::/kubepods/pod1\n5:memory:/../../etc\n");
    machine.write("sys/fs/cgroup/kubepods/cpu.max", "150000 100000\n");
    machine.write("sys/fs/cgroup/kubepods/pod1/cpu.max", "max 100000\n");
    machine.write("sys/fs/cgroup/kubepods/memory.max", "1073741824\n");
    let host = host::facts(&machine.roots());
    assert_eq!((host.container.as_deref(), host.cpu_quota_cores), (Some("docker"), Some(1.5)));
    assert_eq!(memory::facts(&machine.roots()).cgroup_limit_bytes, Some(1 << 30));
}

#[test]
fn a_sandboxed_kernel_is_recognised() {
    let machine = Machine::new();
    machine.write("proc/version", "Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016\n");
    let report = machine.examine();
    assert_eq!(report.environment.virtualization.as_deref(), Some("gVisor"));
    assert_eq!(find(&report, "kernel").state, State::Limited);
}

#[test]
fn power_meters_that_cannot_be_read_say_what_would_help() {
    let machine = Machine::new();
    assert!(find(&machine.examine(), "power.rapl").next.as_ref().unwrap().contains("modprobe"));
    machine.write("sys/class/powercap/intel-rapl:0/name", "package-0\n");
    let report = machine.examine();
    assert_eq!(report.power.rapl[0].name, "package-0");
    assert!(find(&report, "power.rapl").next.as_ref().unwrap().contains("chmod a+r"));
    machine.write("sys/class/powercap/intel-rapl:0/energy_uj", "1\n");
    assert_eq!(find(&machine.examine(), "power.rapl").state, State::Works);
}

#[test]
fn a_guest_is_not_asked_for_meters_that_it_cannot_have() {
    let machine = Machine::new();
    machine.write("sys/devices/system/clocksource/clocksource0/available_clocksource", "tsc kvm-clock\n");
    let report = machine.examine();
    for id in ["power.rapl", "power.ipmi"] {
        assert_eq!(find(&report, id).state, State::NotApplicable, "{id}");
    }
}

#[test]
fn libudev_has_what_it_needs_only_with_both_files() {
    let machine = Machine::new();
    let examined = |device| filesystem::Examined {
        path: "/data".into(),
        kind: "directory",
        device,
        filesystem: Some(forebay_model::record::Filesystem {
            kind: "ext4".into(),
            device: "/dev/vda".into(),
            ..Default::default()
        }),
        journal_mode: None,
        direct: None,
    };
    let udev = |machine: &Machine| gds::facts(&machine.roots(), &[examined((254, 0))]).udev[0].clone();
    assert!(!udev(&machine).control && udev(&machine).filesystem_type.is_none());
    machine.write("run/udev/data/b254:0", "E:ID_FS_TYPE=ext4\nE:ID_FS_USAGE=filesystem\nG:systemd\nV:1\n");
    assert!(!udev(&machine).is_complete());
    machine.write("run/udev/control", "");
    assert!(udev(&machine).is_complete());
}

/// The promise of every line: works, or why not.
#[test]
fn every_check_that_does_not_work_says_why_and_every_id_is_used_once() {
    for report in [Machine::new().examine(), examine(None, None).unwrap()] {
        let mut ids = BTreeSet::new();
        for check in &report.checks {
            assert!(ids.insert(&check.id), "{} twice", check.id);
            assert!(!check.found.is_empty() && !check.title.is_empty(), "{check:?}");
            let amiss = matches!(check.state, State::Missing | State::Limited | State::Unknown);
            assert!(!amiss || check.why.is_some(), "{check:?}");
        }
        assert!(report.checks.is_sorted_by_key(|c| c.area));
        serde_json::to_string(&report).unwrap();
    }
}

#[test]
fn a_directory_is_examined_down_to_its_direct_io_and_left_empty() {
    let directory = tempfile::tempdir().unwrap();
    let report = examine(directory.path().to_str(), None).unwrap();
    let examined = &report.filesystems[0];
    assert!(examined.direct.is_some() && examined.filesystem.is_some());
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    assert!(find(&report, "path.host").state == State::Works);
}

#[test]
fn nothing_that_is_not_a_file_needs_a_drive() {
    for (source, id) in [
        ("nil:", "source.nil nil:"),
        ("model:d7-ps1010", "source.model model:d7-ps1010"),
        ("vfio-user:/no/such.sock", "source.vfio_user /no/such.sock"),
    ] {
        let report = examine(Some(source), None).unwrap();
        assert!(report.drives.is_empty());
        find(&report, id);
        assert_eq!(find(&report, "path.mapped").state, State::NotApplicable);
    }
}

#[test]
fn a_path_that_refuses_the_source_is_not_said_to_work_on_it() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let over = format!("model:d7-ps1010?over={}", file.path().display());
    let report = examine(Some(&over), None).unwrap();
    for path in ["path.mapped", "path.gds"] {
        let check = find(&report, path);
        assert_eq!(check.state, State::NotApplicable);
        assert!(check.found.starts_with("it can only serve files"), "{}", check.found);
    }
    assert!(!report.verdicts.mapped.runs);
}

#[test]
fn a_named_configuration_must_be_there() {
    let error = examine(None, Some(Path::new("/no/such.json"))).unwrap_err();
    assert_eq!(error.kind, forebay_model::Kind::Request);
}

#[test]
fn the_environment_card_comes_quickly_and_names_this_machine() {
    let here = std::env::current_dir().unwrap();
    let tried = Instant::now();
    loop {
        let started = Instant::now();
        let card = environment::of(std::slice::from_ref(&here));
        let took = started.elapsed();
        assert!(card.cores > 0 && card.memory_bytes > 0 && card.filesystem.is_some());
        if took < Duration::from_millis(50) {
            break;
        }
        // A busy machine may hold it up many a time, and not every time.
        assert!(tried.elapsed() < Duration::from_secs(120), "never in 50 ms: {took:?}");
    }
    assert!(environment::of(&["/no/such/path".into()]).filesystem.is_none());
}

#[test]
fn an_empty_machine_is_no_reason_to_fail() {
    let empty = tempfile::tempdir().unwrap();
    let card = environment::on(&Roots::under(empty.path()), &[]);
    assert_eq!((card.memory_bytes, card.cores, card.gpus.len()), (0, 0, 0));
    examine_with(&Roots::under(empty.path()), source::parse(None).unwrap(), &Surroundings::default());
}

/// Every file of the machine, of whatever the examination may read.
fn files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap().flatten() {
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => files(&entry.path(), found),
            kind if kind.is_file() => found.push(entry.path()),
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_machine_of_garbage_is_survived(garbage in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..64), 4)) {
        let machine = Machine::new();
        let mut all = Vec::new();
        files(machine.root.path(), &mut all);
        all.sort();
        for (index, path) in all.iter().enumerate() {
            std::fs::write(path, &garbage[index % garbage.len()]).unwrap();
        }
        let roots = machine.roots();
        environment::on(&roots, &[PathBuf::from("/")]);
        for name in drives::all(&roots).iter().chain(&["nvme0n1".to_string(), "md0".into()]) {
            drives::checks(&[drives::describe(&roots, name)]);
        }
        memory::checks(&memory::facts(&roots));
        host::checks(&host::facts(&roots));
        let gpu = crate::machine::gpu::from_proc(&roots);
        let gds = gds::facts(&roots, &[]);
        let cufile = cufile::facts(&roots, &Surroundings::default());
        let facts = verdict::Facts { gpu, cufile, gds, ..Facts::gather(&roots, Vec::new(), &Surroundings::default()) };
        gds::checks(&facts.ground());
        conditions::checks(&facts.ground(), None);
        verdict::judge(&facts.ground(), true);
        fabric::checks(&fabric::facts(&roots), true);
        power::facts(&roots, &Default::default(), &[]);
    }
}
