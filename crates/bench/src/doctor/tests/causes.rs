//! Each cause of cuFile's compatibility mode, on a machine that has everything else right.

use super::*;
use crate::doctor::conditions::{Finding, Stops, CONDITIONS};
use crate::doctor::cufile::Found;
use crate::doctor::probe::DirectProbe;
use crate::doctor::topology::{Distance, Relation};
use crate::doctor::verdict::{judge, path_verdicts};
use forebay_io::{GdsThrough, GdsVerdict, VerdictAnswer, VerdictCause};
use forebay_model::record::Filesystem;

/// Near the GPU, on ext4 with its options spelled out.
fn examined(device: (u32, u32)) -> Examined {
    let filesystem = Filesystem {
        kind: "ext4".into(),
        mount_point: "/mnt".into(),
        device: "/dev/nvme0n1p1".into(),
        options: vec!["rw".into(), "data=ordered".into()],
        ..Filesystem::default()
    };
    Examined {
        path: "/mnt/data".into(),
        kind: "directory",
        device,
        filesystem: Some(filesystem),
        journal_mode: Some("ordered".into()),
        direct: Some(DirectProbe { offset_align: Some(512), ..DirectProbe::default() }),
    }
}

/// A machine on which both ways to direct DMA are ready.
fn ready() -> Facts {
    let machine = Machine::new();
    machine.write("sys/module/nvme_core/parameters/multipath", "N\n");
    machine.write("etc/cufile.json", r#"{ "properties": { "use_pci_p2pdma": true } }"#);
    machine.write("run/udev/control", "");
    machine.write("run/udev/data/b259:1", "E:ID_FS_TYPE=ext4\n");
    let mut facts = Facts::gather(&machine.roots(), vec![examined((259, 1))], &Surroundings::default());
    facts.gpu.libcuda_refused = None;
    let library =
        Found { path: "/x/libcufile.so.0".into(), place: "loader cache", version: Some("1.15.1".into()) };
    facts.cufile.libraries = vec![library];
    facts.gpu.gpus[0].gpu.memory_bytes = Some(48 << 30);
    facts
}

fn verdict_of(facts: &Facts) -> GdsVerdict {
    judge(&facts.view(), true).gds
}

fn filesystem(facts: &mut Facts) -> &mut Filesystem {
    facts.filesystems[0].filesystem.as_mut().unwrap()
}

type Break = fn(&mut Facts);

/// (condition, how it is broken, what must be in the command)
const BREAKS: &[(&str, Break, &str)] = &[
    ("gpu", |f| f.gpu.gpus.clear(), "‹path› host"),
    ("libcuda", |f| f.gpu.libcuda_refused = Some("libcuda.so.1: not found".into()), "ldconfig"),
    ("library", |f| f.cufile.libraries.clear(), "nvidia-cufile"),
    ("library", |f| f.cufile.refused = Some("not an ELF file".into()), "ldd"),
    ("counters", |f| f.cufile.libraries[0].version = Some("1.14.1".into()), "CUDA 13"),
    ("udev", |f| f.gds.udev[0].control = false, "/run/udev/control"),
    (
        "forced_compat",
        |f| (f.cufile.config.force_compat_mode, f.cufile.config.forced_by_environment) = (true, true),
        "unset CUFILE_FORCE_COMPAT_MODE",
    ),
    ("forced_compat", |f| f.cufile.config.force_compat_mode = true, "--write-cufile-json"),
    ("gpu_class", |f| f.gpu.gpus[0].gpu.name = "NVIDIA GeForce RTX 4090".into(), "‹path› bounce"),
    ("bar1", |f| f.gpu.gpus[0].bar1_bytes = Some(0), "Above 4G decoding"),
    ("filesystem", |f| filesystem(f).kind = "btrfs".into(), "findmnt -t ext4,xfs"),
    ("filesystem", |f| filesystem(f).kind = "overlay".into(), "findmnt -t ext4,xfs"),
    ("journal", |f| filesystem(f).options = vec!["data=journal".into()], "mount -o data=ordered"),
    ("journal", |f| filesystem(f).options = vec!["data=writeback".into()], "mount -o data=ordered"),
    (
        "o_direct",
        |f| f.filesystems[0].direct.as_mut().unwrap().refused = Some("Invalid argument".into()),
        "findmnt",
    ),
    ("drive", |f| f.drives[0].drive.kind = "virtio".into(), "NVMe"),
    ("drive", |f| f.drives[0].transport = Some("tcp".into()), "‹path› bounce"),
    ("drive", |f| f.drives.clear(), "NVMe"),
    ("layers", |f| f.raids = vec![layer("dm", "crypt")], "on the drive itself"),
    ("layers", |f| f.raids = vec![layer("dm", "lvm")], "on the drive itself"),
    ("layers", |f| f.raids = vec![layer("md", "raid5")], "stripe:"),
    ("nvidia_fs", |f| f.gds.nvidia_fs.loaded = false, "modprobe nvidia_fs"),
    ("nvidia_fs_device", |f| f.gds.nvidia_fs.devices = 0, "--device"),
    ("nvidia_fs_drivers", |f| f.gds.nvidia_fs.drivers.clear(), "MLNX_OFED"),
    ("nvidia_fs_drivers", |f| filesystem(f).kind = "nfs4".into(), "MLNX_OFED"),
    ("p2pdma_kernel", |f| f.gds.p2pdma.in_kernel = Some(false), "CONFIG_PCI_P2PDMA=y"),
    ("p2pdma_kernel_version", |f| f.kernel = "5.15.0-100-generic".into(), "linux-generic-hwe"),
    ("p2pdma_modules", |f| f.gpu.open_modules = Some(false), "nvidia-open"),
    ("p2pdma_driver", |f| f.gpu.driver = Some("550.54.15".into()), "nvidia-open"),
    ("p2pdma_registry", |f| f.gds.p2pdma.static_bar1 = Some(false), "RMForceStaticBar1=1"),
    ("p2pdma_registry", |f| f.gds.p2pdma.write_combining_off = None, "RmForceDisableIomapWC=1"),
    ("p2pdma_bar1", |f| f.gpu.gpus[0].bar1_bytes = Some(256 << 20), "Resizable BAR"),
    ("p2pdma_multipath", |f| f.gds.p2pdma.nvme_multipath = Some(true), "nvme_core multipath=N"),
    ("p2pdma_transport", |f| f.drives[0].transport = Some("rdma".into()), "nvidia-fs"),
    ("p2pdma_transport", |f| filesystem(f).kind = "lustre".into(), "nvidia-fs"),
    ("p2pdma_raid", |f| f.raids = vec![layer("md", "raid0")], "stripe:"),
    ("p2pdma_libcufile", |f| f.cufile.libraries[0].version = Some("1.11.1".into()), "CUDA 12.8"),
    ("p2pdma_json", |f| f.cufile.config.use_pci_p2pdma = false, "--write-cufile-json"),
    ("iommu", |f| f.gds.iommu.mode = "translating", "iommu=pt"),
    ("acs", |f| f.gds.acs.redirecting = vec!["0000:3c:04.0".into()], "setpci -s 0000:3c:04.0"),
    ("distance", |f| f.topology = vec![far()], "nvidia-smi topo -m"),
];

fn layer(kind: &str, level: &str) -> raid::Raid {
    raid::Raid { name: "md0".into(), kind: kind.into(), level: Some(level.into()), ..Default::default() }
}

fn far() -> Distance {
    Distance { gpu: 0, to: "nvme0n1".into(), relation: Relation::CrossNode }
}

fn place(verdict: &GdsVerdict, stops: Stops) -> &Vec<VerdictCause> {
    match stops {
        Stops::Cufile | Stops::Direct => &verdict.both,
        Stops::NvidiaFs => &verdict.nvidia_fs,
        Stops::P2pdma => &verdict.p2pdma,
        Stops::Nothing => &verdict.doubts,
    }
}

#[test]
fn with_everything_in_place_the_drive_writes_into_the_gpu() {
    let verdict = verdict_of(&ready());
    assert_eq!(
        (verdict.answer, verdict.through),
        (VerdictAnswer::Direct, Some(GdsThrough::NvidiaFs)),
        "{verdict:?}"
    );
    assert!(verdict.both.is_empty() && verdict.p2pdma.is_empty() && verdict.doubts.is_empty(), "{verdict:?}");
    assert_eq!(verdict.words(), "direct, through nvidia-fs");
    assert_eq!((verdict.reason(), verdict.next(), verdict.refusal("‹path› gds", false)), (None, None, None));
}

// promise: GPU-1
#[test]
fn each_cause_is_found_alone_with_why_and_what_to_type() {
    for (id, broken, command) in BREAKS {
        let condition = CONDITIONS.iter().find(|c| c.id == *id).expect(id);
        let x86_only = *id == "p2pdma_registry" && std::env::consts::ARCH != "x86_64";
        let mut facts = ready();
        broken(&mut facts);
        let verdict = verdict_of(&facts);
        let Some(cause) = place(&verdict, condition.stops).iter().find(|c| c.id == *id) else {
            assert!(x86_only, "{id} isn't found: {verdict:?}");
            continue;
        };
        assert!(cause.next.contains(command), "{id}: {}", cause.next);
        assert!(!cause.because.is_empty() && !cause.because.ends_with('.'), "{}", cause.because);
        match condition.stops {
            Stops::Cufile => assert_eq!(verdict.answer, VerdictAnswer::No, "{id}"),
            Stops::Direct => assert_eq!(verdict.answer, VerdictAnswer::CompatOnly, "{id}"),
            Stops::Nothing => assert_eq!(verdict.answer, VerdictAnswer::Direct, "{id}"),
            // The other way is left, unless the same fact stops it as well.
            Stops::NvidiaFs | Stops::P2pdma => assert!(
                verdict.answer == VerdictAnswer::Direct
                    || !place(&verdict, other(condition.stops)).is_empty(),
                "{id}: {verdict:?}"
            ),
        }
    }
}

fn other(stops: Stops) -> Stops {
    if stops == Stops::NvidiaFs {
        Stops::P2pdma
    } else {
        Stops::NvidiaFs
    }
}

// promise: GPU-1
#[test]
fn every_condition_of_the_table_has_a_case() {
    let open_only = ["p2pdma_gpu", "versions"];
    for condition in CONDITIONS.iter().filter(|c| !open_only.contains(&c.id)) {
        assert!(BREAKS.iter().any(|(id, ..)| *id == condition.id), "no case breaks {}", condition.id);
    }
}

#[test]
fn the_documentation_lists_every_cause() {
    let page = include_str!("../../../../../docs/doctor.md");
    for condition in CONDITIONS {
        assert!(page.contains(&format!("| `{}` |", condition.id)), "docs/doctor.md lacks {}", condition.id);
    }
}

#[test]
fn what_cannot_be_told_is_a_doubt_and_stops_nothing() {
    let mut facts = ready();
    facts.gpu.gpus[0].gpu.name = "NVIDIA RTX 6000".into();
    facts.gpu.driver = Some("575.51.03".into());
    filesystem(&mut facts).options = vec!["rw".into()];
    let verdict = verdict_of(&facts);
    let doubts: Vec<&str> = verdict.doubts.iter().map(|c| c.id).collect();
    assert_eq!((verdict.answer, doubts), (VerdictAnswer::Direct, vec!["versions", "journal", "p2pdma_gpu"]));
}

// promise: GPU-1
#[test]
fn with_one_way_closed_the_other_is_taken_and_with_both_it_is_compatibility() {
    let mut facts = ready();
    facts.gds.nvidia_fs.loaded = false;
    assert_eq!(verdict_of(&facts).words(), "direct, through PCI P2PDMA");
    facts.gds.p2pdma.in_kernel = None;
    assert_eq!(verdict_of(&facts).answer, VerdictAnswer::CompatOnly);
    facts.gds.p2pdma.in_kernel = Some(true);
    facts.raids = vec![layer("md", "raid0")];
    let verdict = verdict_of(&facts);
    assert_eq!(
        verdict.words(),
        "compat only, because the kernel module nvidia-fs isn't loaded; P2PDMA refuses md RAID, RAID0 as well"
    );
    // One command at a time, and nothing of it behind a comment.
    facts.gds.nvidia_fs.loaded = false;
    facts.cufile.config.use_pci_p2pdma = false;
    let next = verdict_of(&facts).next().unwrap();
    assert!(next.starts_with("sudo apt install nvidia-fs") && !next.contains("use_pci_p2pdma"), "{next}");
    let error = verdict.refusal("‹path› gds", false).unwrap();
    assert_eq!(error.kind, forebay_model::Kind::Machine);
    assert!(error.found.contains("md RAID") && error.next.contains("‹allow_compat›"), "{error}");
    assert_eq!(verdict.refusal("‹path› gds", true), None);
}

#[test]
fn where_compatibility_is_forbidden_too_cufile_cannot_run() {
    let mut facts = ready();
    facts.cufile.config.allow_compat_mode = false;
    assert_eq!(verdict_of(&facts).answer, VerdictAnswer::Direct);
    facts.drives[0].drive.kind = "sata".into();
    let verdict = verdict_of(&facts);
    assert_eq!(verdict.answer, VerdictAnswer::No);
    assert!(verdict.words().contains("forbids the compatibility mode"), "{}", verdict.words());
    assert!(verdict.refusal("‹path› gds", true).is_some());
}

/// The machine of the H200: a container without udev, a virtual drive, neither way to direct DMA.
// promise: GPU-1
#[test]
fn a_container_without_udev_is_told_what_makes_cufile_run_at_all() {
    let mut facts = ready();
    facts.drives[0].drive.kind = "virtio".into();
    facts.gds.nvidia_fs.loaded = false;
    facts.gds.p2pdma.in_kernel = Some(false);
    facts.gds.udev[0] = gds::Udev {
        device: "254:0".into(),
        filesystem: "ext4".into(),
        control: false,
        filesystem_type: None,
    };
    let verdict = verdict_of(&facts);
    assert_eq!(verdict.answer, VerdictAnswer::No);
    assert!(verdict.reason().unwrap().contains("5027"));
    assert!(verdict.next().unwrap().contains("tee /run/udev/data/b254:0"));
    facts.gds.udev[0].control = true;
    facts.gds.udev[0].filesystem_type = Some("ext4".into());
    assert_eq!(verdict_of(&facts).answer, VerdictAnswer::CompatOnly);
}

#[test]
fn the_other_way_is_not_nagged_about_where_one_works() {
    let mut facts = ready();
    facts.cufile.config.use_pci_p2pdma = false;
    let verdict = verdict_of(&facts);
    let state = |needless| {
        let checks = conditions::checks(&facts.view(), needless);
        checks.into_iter().find(|c| c.id == "gds.p2pdma_json").unwrap().state
    };
    assert_eq!(state(crate::doctor::verdict::needless(&verdict)), CheckState::NotApplicable);
    assert_eq!(state(None), CheckState::Missing);
}

#[test]
fn what_was_found_has_words_whatever_it_is() {
    for condition in CONDITIONS {
        match (condition.judge)(&ready().view()) {
            Finding::Holds(found) => assert!(!found.is_empty(), "{}", condition.id),
            Finding::Moot => {}
            finding => panic!("{}: {finding:?}", condition.id),
        }
    }
}

#[test]
fn versions_are_compared_by_number() {
    use crate::doctor::conditions::version;
    assert_eq!(version("580.159.03"), Some((580, 159)));
    assert_eq!(version("6.18.1-cloud"), Some((6, 18)));
    assert!(version("1.9.0") < version("1.13.1"));
    assert_eq!(version("unknown"), None);
}

#[test]
fn the_environment_decides_before_the_file() {
    let machine = Machine::new();
    machine.write(
        "etc/cufile.json",
        r#"{ "properties": { "use_pci_p2pdma": true, "force_compat_mode": true } }"#,
    );
    let config = |around: &Surroundings| cufile::facts(&machine.roots(), around).config;
    let plain = config(&Surroundings::default());
    assert!(plain.force_compat_mode && !plain.forced_by_environment && plain.use_pci_p2pdma);
    let around =
        Surroundings { force_compat: Some(false), use_p2pdma: Some(false), ..Surroundings::default() };
    let changed = config(&around);
    assert!(!changed.force_compat_mode && !changed.use_pci_p2pdma);
}

#[test]
fn the_verdict_about_a_real_directory_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let verdicts = path_verdicts(&[directory.path().to_path_buf()]);
    assert_eq!(verdicts.gds, gds_verdict(&[directory.path().to_path_buf()]));
    if !verdicts.gds.is_direct() {
        assert!(verdicts.gds.reason().is_some() && verdicts.gds.next().is_some());
    }
    assert_eq!(verdicts.bounce.runs, verdicts.bounce.because.is_none());
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}
