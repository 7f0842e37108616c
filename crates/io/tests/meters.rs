//! The meters as a run uses them: on this machine where it has what they read, and on
//! look-alike trees, programs, libraries and servers where it hasn't.

use forebay_io::{
    cache_residency, disk_stack, disks_behind, drop_cached, warm_cache, warm_cache_while, CpuClock,
    CpuReading, CpuTimes, DiskCounters, NoiseGuard, ThrottleCounters,
};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{symlink, MetadataExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// Keeps this thread busy for so much of its own processor time.
fn burn(seconds: f64) {
    let until = CpuTimes::of_thread().total_s() + seconds;
    while CpuTimes::of_thread().total_s() < until {
        std::hint::black_box((0..20_000u64).fold(0, |sum: u64, n| sum.wrapping_mul(31).wrapping_add(n)));
    }
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Longest delay by a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Tries until it holds: whoever is interrupted once in a while is left alone in between.
fn at_some_time(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "in {PATIENCE:?} never: {what}");
    }
}

// promise: REC-6
#[test]
fn cpu_time_of_other_threads_is_ours() {
    let clock = CpuClock::start();
    let here = CpuTimes::of_thread().total_s();
    std::thread::spawn(|| burn(0.2)).join().unwrap();
    let reading = clock.stop();
    assert!(reading.process.total_s() >= 0.2, "{reading:?}");
    assert!(CpuTimes::of_thread().total_s() - here < 0.1, "the other thread's time isn't this thread's");
}

// promise: REC-6
#[test]
fn the_machine_is_at_least_as_busy_as_we_are() {
    let clock = CpuClock::start();
    burn(0.5);
    let reading = clock.stop();
    let cpu = CpuReading::fill(&reading, reading.wall_s, 1 << 30, 1000, 2);
    assert!(cpu.cpu_s_per_gib.unwrap() >= 0.5);
    assert!(cpu.ns_per_io.unwrap() >= 500_000.0);
    match &reading.machine {
        // A tick for each core may be missing; what another guest took while we ran is called stolen.
        Ok(machine) => {
            assert!(machine.busy_s() + machine.steal_s > 0.3, "{reading:?}");
            assert_eq!(cpu.machine_cores_busy, Some(machine.busy_s() / reading.wall_s));
        }
        Err(_) => assert!(!CpuReading::missing(&reading, 1.0, 1, 1).is_empty(), "null needs a reason"),
    }
}

#[test]
fn a_short_span_leaves_the_machine_out() {
    at_some_time("a span under 100 ms", || {
        let reading = CpuClock::start().stop();
        let short = reading.wall_s < 0.1;
        assert!(!short || reading.machine.is_err_and(|why| why.contains("too short")));
        short
    });
}

#[test]
fn both_ends_of_a_run_together_stay_under_a_millisecond() {
    let here = disks_behind(Path::new(".")).map(|behind| behind.numbers());
    NoiseGuard::start(); // looks for the throttle counters, once per process
    let around = || {
        let begun = Instant::now();
        let (clock, guard) = (CpuClock::start(), NoiseGuard::start());
        let before = here.as_ref().map(|numbers| DiskCounters::read(numbers));
        let reading = clock.stop();
        guard.judge(&reading);
        let after = here.as_ref().map(|numbers| DiskCounters::read(numbers));
        let took = begun.elapsed();
        assert_eq!(before.is_ok(), after.is_ok());
        took
    };
    at_some_time("both ends within a millisecond", || around() < Duration::from_millis(1));
}

#[test]
fn the_guard_fills_all_but_the_series() {
    let guard = NoiseGuard::start();
    burn(0.15);
    let noise = guard.stop();
    assert_eq!(noise.series_cv_pct, None);
    assert!(noise.steal_pct.is_none_or(|pct| (0.0..=100.0).contains(&pct)));
    assert!(noise.others_cores_busy.is_none_or(|cores| cores >= 0.0));
}

/// Two packages of two cores of two threads, every thread showing its core's count and
/// its package's.
#[test]
fn throttle_counts_are_added_once_for_each_core_and_package() {
    let tree = tempfile::tempdir().unwrap();
    for cpu in 0..8 {
        let folder = tree.path().join(format!("cpu{cpu}"));
        let (package, core) = (cpu / 4, cpu / 2 % 2);
        write(&folder.join("topology/physical_package_id"), &format!("{package}\n"));
        write(&folder.join("topology/die_id"), "0\n");
        write(&folder.join("topology/core_id"), &format!("{core}\n"));
        write(&folder.join("thermal_throttle/core_throttle_count"), "10\n");
        write(&folder.join("thermal_throttle/package_throttle_count"), "1000\n");
    }
    let counters = ThrottleCounters::find(tree.path());
    assert_eq!(counters.read().unwrap(), 4 * 10 + 2 * 1000);
    write(&tree.path().join("cpu0/thermal_throttle/core_throttle_count"), "many\n");
    for cpu in 1..8 {
        fs::remove_dir_all(tree.path().join(format!("cpu{cpu}"))).unwrap();
    }
    assert!(ThrottleCounters::find(tree.path()).read().is_err());
    let none = ThrottleCounters::find(&tree.path().join("absent"));
    assert!(none.read().unwrap_err().contains("no throttle counters"));
}

/// A look-alike of /sys with a drive, its partition, and an array over two drives.
fn fake_sys() -> tempfile::TempDir {
    let sys = tempfile::tempdir().unwrap();
    let block = |name: &str, number: &str, stat: &str| {
        let folder = sys.path().join("devices").join(name);
        write(&folder.join("dev"), &format!("{number}\n"));
        write(&folder.join("stat"), stat);
        write(&folder.join("queue/iostats"), "1\n");
        fs::create_dir_all(sys.path().join("dev/block")).unwrap();
        symlink(&folder, sys.path().join("dev/block").join(number)).unwrap();
    };
    block("nvme0n1", "259:0", " 10 0 100 1 20 0 200 2 0 3 3 0 0 0 0 0 0\n");
    block("nvme1n1", "259:1", " 11 0 300 1 21 0 400 2 0 3 3 0 0 0 0 0 0\n");
    block("md0", "9:0", " 21 0 400 0 41 0 600 0 0 0 0\n");
    sys
}

// promise: REC-31
#[test]
fn counters_add_devices_once_and_give_differences() {
    let sys = fake_sys();
    let drives = [(259, 0), (259, 1), (259, 0)];
    let before = DiskCounters::read_in(sys.path(), &drives).unwrap();
    write(&sys.path().join("devices/nvme0n1/stat"), "15 0 2148 1 20 0 200 2 0 3 3");
    let after = DiskCounters::read_in(sys.path(), &drives).unwrap();
    let traffic = after.since(&before).unwrap();
    let each = after.by_device(&before).unwrap();
    let read: Vec<_> = each.iter().map(|(number, own)| (*number, own.read_bytes)).collect();
    assert_eq!(read, [((259, 0), 2048 * 512), ((259, 1), 0)], "each device once");
    assert_eq!((traffic.read_ios, traffic.read_bytes), (5, 2048 * 512));
    assert_eq!((traffic.write_ios, traffic.written_bytes), (0, 0));
    assert!(before.since(&after).unwrap_err().contains("went back"));
    let other = DiskCounters::read_in(sys.path(), &[(9, 0)]).unwrap();
    assert!(after.since(&other).unwrap_err().contains("different devices"));
}

#[test]
fn counters_that_stand_still_by_setting_are_refused() {
    let sys = fake_sys();
    write(&sys.path().join("devices/nvme0n1/queue/iostats"), "0\n");
    let reason = DiskCounters::read_in(sys.path(), &[(259, 0)]).unwrap_err();
    assert!(reason.contains("nvme0n1") && reason.contains("echo 1 >"), "{reason}");
    assert!(DiskCounters::read_in(sys.path(), &[(1, 99)]).unwrap_err().contains("1:99"));
    assert!(DiskCounters::read_in(sys.path(), &[]).unwrap_err().contains("no block device"));
}

#[test]
fn an_array_lists_its_members_and_counts_itself() {
    let sys = fake_sys();
    for member in ["nvme0n1", "nvme1n1"] {
        let slaves = sys.path().join("devices/md0/slaves");
        fs::create_dir_all(&slaves).unwrap();
        symlink(sys.path().join("devices").join(member), slaves.join(member)).unwrap();
    }
    // A loop that no kernel would make.
    let slaves = sys.path().join("devices/nvme0n1/slaves");
    fs::create_dir_all(&slaves).unwrap();
    symlink(sys.path().join("devices/md0"), slaves.join("md0")).unwrap();

    let behind = disk_stack(sys.path(), &[(9, 0)]).unwrap();
    assert_eq!(behind.numbers(), [(9, 0)]);
    let members: Vec<_> = behind.members.iter().map(|device| device.name.as_str()).collect();
    assert_eq!(members, ["nvme0n1", "nvme1n1"]);
}

#[test]
fn a_file_lies_on_a_device_or_there_is_a_reason() {
    let file = tempfile::NamedTempFile::new().unwrap();
    match disks_behind(file.path()) {
        Ok(behind) => {
            let before = DiskCounters::read(&behind.numbers()).unwrap();
            file.as_file().write_all(&vec![1u8; 4 << 20]).unwrap();
            file.as_file().sync_all().unwrap();
            let traffic = DiskCounters::read(&behind.numbers()).unwrap().since(&before).unwrap();
            assert!(traffic.written_bytes >= 4 << 20, "{behind:?} {traffic:?}");
        }
        Err(reason) => assert!(reason.contains("lies "), "{reason}"),
    }
}

#[test]
fn paths_without_a_device_say_what_they_are() {
    let reason = |path: &str| disks_behind(Path::new(path)).unwrap_err();
    assert!(reason("/nowhere/at/all").contains("No such file"));
    assert!(reason("/dev/null").contains("character device"));
    assert!(reason("/proc/self").contains("proc"));
    if fs::metadata("/dev/shm").is_ok_and(|meta| rustix::fs::major(meta.dev()) == 0) {
        assert!(reason("/dev/shm").contains("is in memory"));
    }
}

#[test]
fn a_file_is_cold_after_drop_and_warm_after_warm() {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&vec![3u8; 3 << 20]).unwrap();
    assert_eq!(cache_residency(&file, 0, 0), Ok(1.0), "just written");
    let left = drop_cached(&file, 0, 0).unwrap();
    if left.pages > 0 {
        eprintln!("SKIPPED: the file system of the temporary folder keeps its pages ({left:?})");
        return;
    }
    assert_eq!(cache_residency(&file, 0, 0), Ok(0.0));
    assert_eq!(warm_cache(&file), Ok(3 << 20));
    assert_eq!(cache_residency(&file, 0, 0), Ok(1.0));
    let half = drop_cached(&file, 0, 1 << 20).unwrap();
    assert_eq!((half.pages, half.of), (0, (1 << 20) / rustix::param::page_size() as u64));
    let rest = cache_residency(&file, 0, 0).unwrap();
    assert!((rest - 2.0 / 3.0).abs() < 0.01, "{rest}");
}

#[test]
fn warming_stops_when_told_and_reads_through_the_cache_whatever_the_flags() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&vec![3u8; 4 << 20]).unwrap();
    assert_eq!(warm_cache_while(file.as_file(), |bytes| bytes < 2 << 20), Ok(2 << 20));
    let mut options = fs::OpenOptions::new();
    let direct = std::os::unix::fs::OpenOptionsExt::custom_flags(options.write(true), libc::O_DIRECT);
    match direct.open(file.path()) {
        Ok(direct) => assert_eq!(warm_cache(&direct), Ok(4 << 20)),
        Err(e) => eprintln!("SKIPPED: O_DIRECT on the temporary folder: {e}"),
    }
}

#[test]
fn what_has_no_pages_says_so() {
    let null = File::open("/dev/null").unwrap();
    assert!(cache_residency(&null, 0, 0).unwrap_err().contains("only files and block devices"));
    let empty = tempfile::tempfile().unwrap();
    assert!(cache_residency(&empty, 0, 0).unwrap_err().contains("no pages"));
    assert_eq!(drop_cached(&empty, 0, 0).unwrap().of, 0);
}
