//! The examination of a machine made of files.

mod causes;
mod machine;
mod targets;

use super::verdict::Facts;
use super::*;
use forebay_io::gather_environment;
use forebay_io::CheckState;
use machine::{Machine, GPU};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

fn find<'a>(report: &'a Report, id: &str) -> &'a Check {
    report.checks.iter().find(|c| c.id == id).unwrap_or_else(|| panic!("no check {id}"))
}

#[test]
fn a_drive_behind_a_switch_is_described_with_its_link_and_limits() {
    let machine = Machine::new();
    let facts = drives::DriveFacts::read(&machine.roots(), "nvme0n1");
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
        assert_eq!(check.state, CheckState::Limited, "{}", check.id);
        assert!(check.next.as_ref().unwrap().contains(command), "{check:?}");
    }
    assert_eq!(find(&report, "drive.nvme5n1.link").state, CheckState::Works);
    assert_eq!(find(&report, "drive.nvme5n1.temperature").found, "41 °C");
}

#[test]
fn under_multipath_the_controller_is_found_through_the_subsystem() {
    let facts = drives::DriveFacts::read(&Machine::new().roots(), "nvme5n1");
    assert_eq!(facts.drive.model.as_deref(), Some("FAR DRIVE"));
    assert_eq!((facts.drive.pci.as_deref(), facts.drive.numa_node), (Some("0000:b1:00.0"), Some(1)));
}

// promise: DOC-1
#[test]
fn raid_is_followed_down_to_its_drives() {
    let machine = Machine::new();
    let roots = machine.roots();
    assert_eq!(forebay_io::DriveFacts::named(&roots, (259, 1)).as_deref(), Some("nvme0n1"));
    assert_eq!(DriveFacts::behind(&roots, [(9, 0)].into_iter()), ["md0", "nvme0n1", "nvme5n1"]);
    let raids = raid::facts(&roots, &[drives::DriveFacts::read(&roots, "md0")]);
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
    let described = |name| drives::DriveFacts::read(&machine.roots(), name);
    let first = |name| drives::checks(&[described(name)])[0].clone();
    assert_eq!((first("sda").state, described("sda").drive.kind.as_str()), (CheckState::Limited, "sata"));
    assert_eq!(described("sda").drive.serial.as_deref(), Some("WD-1234"));
    assert_eq!(first("loop0").state, CheckState::Works);
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
    let raids = raid::facts(&roots, &[drives::DriveFacts::read(&roots, "dm-0")]);
    assert_eq!((raids[0].name.as_str(), raids[0].level.as_deref()), ("secret", Some("crypt")));
    assert_eq!(raid::checks(&roots, &raids, false)[0].state, CheckState::Limited);
}

// promise: DOC-1
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
    assert_eq!(find(&report, "gpu.0").state, CheckState::Works);
}

#[test]
fn a_gpu_without_a_driver_is_noticed_on_the_bus() {
    let machine = Machine::new();
    std::fs::remove_dir_all(machine.root.path().join("proc/driver/nvidia")).unwrap();
    let report = machine.examine();
    let check = find(&report, "gpu.driver");
    assert_eq!(check.state, CheckState::Missing);
    assert!(check.found.contains(GPU) && check.next.as_ref().unwrap().contains("modprobe nvidia"));
}

// promise: DOC-1
#[test]
fn nvidia_fs_says_whom_it_serves() {
    let machine = Machine::new();
    let check = |machine: &Machine| find(&machine.examine(), "gds.nvidia_fs").clone();
    assert_eq!(check(&machine).found, "2.27.3, serving nvme nvme_rdma");
    machine.write("proc/driver/nvidia-fs/modules", "");
    assert_eq!(check(&machine).state, CheckState::Limited);
    std::fs::remove_dir_all(machine.root.path().join("proc/driver/nvidia-fs")).unwrap();
    std::fs::remove_dir_all(machine.root.path().join("sys/module/nvidia_fs")).unwrap();
    assert!(check(&machine).next.unwrap().contains("modprobe nvidia_fs"));
}

// promise: DOC-1
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
    assert_eq!(check(&machine).state, CheckState::Works);
    machine.write("proc/driver/nvidia/params", "RegistryDwords: \"\"\n");
    if std::env::consts::ARCH == "x86_64" {
        assert!(
            next(&machine, "gds.p2pdma_registry").contains("RMForceStaticBar1=1;RmForceDisableIomapWC=1;")
        );
    }
    machine.kernel_config("# CONFIG_PCI_P2PDMA is not set\n");
    assert!(check(&machine).found.contains("off in the kernel"));
    machine.remove("proc/config.gz");
    assert_eq!(check(&machine).state, CheckState::Unknown);
    machine.write("boot/config-6.8.0-60-generic", "CONFIG_PCI_P2PDMA=y\n");
    assert!(check(&machine).found.starts_with("in the kernel"));
}

#[test]
fn a_bridge_that_redirects_peers_is_named_with_the_setpci_command() {
    let machine = Machine::new();
    assert_eq!(find(&machine.examine(), "gds.acs").state, CheckState::Unknown);
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

// promise: DOC-1, FLT-7
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
    assert_eq!(find(&machine.examine(), "memlock").state, CheckState::Works);
}

// promise: DOC-1
#[test]
fn the_host_is_described_down_to_its_container() {
    let machine = Machine::new();
    let host = host::HostFacts::gather(&machine.roots());
    assert_eq!(host.cpu, "AMD EPYC 9554 64-Core Processor");
    assert_eq!((host.cores, host.sockets, host.numa.len(), host.smt), (4, Some(2), 2, Some(true)));
    assert_eq!((host.virtualization, host.container), (None, None));
    assert_eq!(find(&machine.examine(), "governor").state, CheckState::Limited);
    machine.write(".dockerenv", "");
    machine.write("proc/self/cgroup", "0::/kubepods/pod1\n5:memory:/../../etc\n");
    machine.write("sys/fs/cgroup/kubepods/cpu.max", "150000 100000\n");
    machine.write("sys/fs/cgroup/kubepods/pod1/cpu.max", "max 100000\n");
    machine.write("sys/fs/cgroup/kubepods/memory.max", "1073741824\n");
    let host = host::HostFacts::gather(&machine.roots());
    assert_eq!((host.container.as_deref(), host.cpu_quota_cores), (Some("docker"), Some(1.5)));
    assert_eq!(memory::MemoryFacts::gather(&machine.roots()).cgroup_limit_bytes, Some(1 << 30));
}

#[test]
fn a_sandboxed_kernel_is_recognised() {
    let machine = Machine::new();
    machine.write("proc/version", "Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016\n");
    let report = machine.examine();
    assert_eq!(report.environment.virtualization.as_deref(), Some("gVisor"));
    assert_eq!(find(&report, "kernel").state, CheckState::Limited);
}

// promise: DOC-1
#[test]
fn power_meters_that_cannot_be_read_say_what_would_help() {
    let machine = Machine::new();
    assert!(find(&machine.examine(), "power.rapl").next.as_ref().unwrap().contains("modprobe"));
    machine.write("sys/class/powercap/intel-rapl:0/name", "package-0\n");
    let report = machine.examine();
    assert_eq!(report.power.rapl[0].name, "package-0");
    assert!(find(&report, "power.rapl").next.as_ref().unwrap().contains("chmod a+r"));
    machine.write("sys/class/powercap/intel-rapl:0/energy_uj", "1\n");
    assert_eq!(find(&machine.examine(), "power.rapl").state, CheckState::Works);
}

#[test]
fn a_guest_is_not_asked_for_meters_that_it_cannot_have() {
    let machine = Machine::new();
    machine.write("sys/devices/system/clocksource/clocksource0/available_clocksource", "tsc kvm-clock\n");
    let report = machine.examine();
    for id in ["power.rapl", "power.ipmi"] {
        assert_eq!(find(&report, id).state, CheckState::NotApplicable, "{id}");
    }
}

// promise: DOC-1
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
// promise: DOC-3
#[test]
fn every_check_that_does_not_work_says_why_and_every_id_is_used_once() {
    for report in [Machine::new().examine(), examine_machine(None, None).unwrap()] {
        let mut ids = BTreeSet::new();
        for check in &report.checks {
            assert!(ids.insert(&check.id), "{} twice", check.id);
            assert!(!check.found.is_empty() && !check.title.is_empty(), "{check:?}");
            let amiss =
                matches!(check.state, CheckState::Missing | CheckState::Limited | CheckState::Unknown);
            assert!(!amiss || check.why.is_some(), "{check:?}");
        }
        assert!(report.checks.is_sorted_by_key(|c| c.area));
        serde_json::to_string(&report).unwrap();
    }
}

// promise: DOC-1
#[test]
fn a_directory_is_examined_down_to_its_direct_io_and_left_empty() {
    let directory = tempfile::tempdir().unwrap();
    let report = examine_machine(directory.path().to_str(), None).unwrap();
    let examined = &report.filesystems[0];
    assert!(examined.direct.is_some() && examined.filesystem.is_some());
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    assert!(find(&report, "path.host").state == CheckState::Works);
}

#[test]
fn nothing_that_is_not_a_file_needs_a_drive() {
    for (source, id) in [
        ("nil:", "source.nil nil:"),
        ("model:d7-ps1010", "source.model model:d7-ps1010"),
        ("vfio-user:/no/such.sock", "source.vfio_user /no/such.sock"),
    ] {
        let report = examine_machine(Some(source), None).unwrap();
        assert!(report.drives.is_empty());
        find(&report, id);
        assert_eq!(find(&report, "path.mapped").state, CheckState::NotApplicable);
    }
}

// promise: DOC-5
#[test]
fn a_path_that_refuses_the_source_is_not_said_to_work_on_it() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let over = format!("model:d7-ps1010?over={}", file.path().display());
    let report = examine_machine(Some(&over), None).unwrap();
    for path in ["path.mapped", "path.gds"] {
        let check = find(&report, path);
        assert_eq!(check.state, CheckState::NotApplicable);
        assert!(check.found.starts_with("it can only serve files"), "{}", check.found);
    }
    assert!(!report.verdicts.mapped.runs);
}

#[test]
fn a_named_configuration_must_be_there() {
    let error = examine_machine(None, Some(Path::new("/no/such.json"))).unwrap_err();
    assert_eq!(error.kind, forebay_model::Kind::Request);
}

#[test]
fn the_environment_card_comes_quickly_and_names_this_machine() {
    let here = std::env::current_dir().unwrap();
    let tried = Instant::now();
    loop {
        let started = Instant::now();
        let card = gather_environment(std::slice::from_ref(&here));
        let took = started.elapsed();
        assert!(card.cores > 0 && card.memory_bytes > 0 && card.filesystem.is_some());
        if took < Duration::from_millis(50) {
            break;
        }
        // A busy machine may hold it up many a time, and not every time.
        assert!(tried.elapsed() < Duration::from_secs(120), "never in 50 ms: {took:?}");
    }
    assert!(gather_environment(&["/no/such/path".into()]).filesystem.is_none());
}

// promise: DOC-3
#[test]
fn an_empty_machine_is_no_reason_to_fail() {
    let empty = tempfile::tempdir().unwrap();
    let card = Roots::under(empty.path()).environment(&[]);
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
        roots.environment(&[PathBuf::from("/")]);
        for name in drives::DriveFacts::all(&roots).iter().chain(&["nvme0n1".to_string(), "md0".into()]) {
            drives::checks(&[drives::DriveFacts::read(&roots, name)]);
        }
        memory::checks(&memory::MemoryFacts::gather(&roots));
        host::checks(&host::HostFacts::gather(&roots));
        let gpu = forebay_io::GpuFacts::from_proc(&roots);
        let gds = gds::facts(&roots, &[]);
        let cufile = cufile::facts(&roots, &Surroundings::default());
        let facts = verdict::Facts { gpu, cufile, gds, ..Facts::gather(&roots, Vec::new(), &Surroundings::default()) };
        let view = facts.view();
        gds::checks(view.gds, view.gpu.are_present(), conditions::p2pdma_check(&view));
        conditions::checks(&facts.view(), None);
        verdict::judge(&facts.view(), true);
        fabric::checks(&fabric::facts(&roots), true);
        power::facts(&roots, &Default::default(), &[]);
    }
}

#[test]
fn root_is_told_no_sudo() {
    let command = "sudo mkdir -p /d && printf 'x' | sudo tee /d/f   # or --pseudo x";
    assert_eq!(super::as_root(command), "mkdir -p /d && printf 'x' | tee /d/f   # or --pseudo x");
}
