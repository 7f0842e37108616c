//! A machine made of files: two sockets; below one PCIe switch a Gen5 ×4 drive, a GPU and a network card; on the other
//! socket a drive under NVMe multipath; md raid0 over both; nvidia-fs.

use crate::doctor::cufile::Surroundings;
use crate::doctor::{examine_with, source, Report, Roots};
use std::io::Write;
use std::os::unix::fs::symlink;

pub(crate) const SWITCH: &str = "sys/devices/pci0000:3a/0000:3a:01.0/0000:3b:00.0";
pub(crate) const GPU: &str = "0000:3e:00.0";

pub(crate) struct Machine {
    pub root: tempfile::TempDir,
}

impl Machine {
    pub(crate) fn new() -> Machine {
        // In memory where that can be had: a disk's file system may write out each file that is replaced.
        let root = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let machine = Machine { root: root.unwrap() };
        machine.host();
        machine.pci();
        machine.drives();
        machine.gpu();
        machine
    }

    pub(crate) fn roots(&self) -> Roots {
        Roots::under(self.root.path())
    }

    pub(crate) fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    pub(crate) fn fill(&self, directory: &str, files: &[(&str, &str)]) {
        for (name, content) in files {
            self.write(&format!("{directory}/{name}"), format!("{content}\n"));
        }
    }

    /// A link at `path` to `to`, both below the root.
    pub(crate) fn link(&self, path: &str, to: &str) {
        let path = self.root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(self.root.path().join(to), path).unwrap();
    }

    pub(crate) fn remove(&self, path: &str) {
        std::fs::remove_file(self.root.path().join(path)).unwrap();
    }

    pub(crate) fn host(&self) {
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
    pub(crate) fn function(&self, path: &str, vendor: &str, class: &str, node: &str) {
        let address = path.rsplit('/').next().unwrap();
        self.fill(path, &[("vendor", vendor), ("class", class), ("numa_node", node)]);
        self.link(&format!("sys/bus/pci/devices/{address}"), path);
    }

    pub(crate) fn pcie(&self, path: &str, speed: &str, width: &str) {
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

    pub(crate) fn pci(&self) {
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

    pub(crate) fn drives(&self) {
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

    pub(crate) fn namespace(&self, parent: &str, name: &str, device: &str) {
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

    pub(crate) fn gpu(&self) {
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

    pub(crate) fn kernel_config(&self, config: &str) {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(config.as_bytes()).unwrap();
        self.write("proc/config.gz", packed.finish().unwrap());
    }

    pub(crate) fn examine(&self) -> Report {
        examine_with(&self.roots(), source::parse(None).unwrap(), &Surroundings::default())
    }
}
