//! Power meters against look-alikes: a powercap tree, a driver library built here, a
//! program in ipmitool's place, and a management controller on a local port.

#[path = "power/controller.rs"]
mod controller;
#[path = "power/sampler.rs"]
mod sampler;
#[path = "power/scripted.rs"]
mod scripted;

use forebay_io::{
    open_ipmi, open_nvml, open_power_meters, open_rapl, PowerMeter, PowerSample, PowerSampler, NVML_LIBRARY,
};
use scripted::{wait_until, PATIENCE};
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(100);
/// Interval so long that only readings at the ends of a span are made.
const NEVER: Duration = Duration::from_secs(3600);

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// An average of equal values, as sums of floating-point numbers have it.
fn near(value: f64, exact: f64) -> bool {
    (value - exact).abs() < 1e-9 * exact
}

fn scopes(meters: &[Box<dyn PowerMeter>]) -> Vec<&str> {
    meters.iter().map(|meter| meter.scope()).collect()
}

mod rapl_zones {
    use super::*;

    fn zone(tree: &Path, zone: &str, name: &str, energy: &str) {
        write(&tree.join(zone).join("name"), &format!("{name}\n"));
        write(&tree.join(zone).join("energy_uj"), energy);
        write(&tree.join(zone).join("max_energy_range_uj"), "262143328850\n");
    }

    fn server() -> tempfile::TempDir {
        let tree = tempfile::tempdir().unwrap();
        zone(tree.path(), "intel-rapl:0", "package-0", "262143000000\n");
        zone(tree.path(), "intel-rapl:0:0", "core", "5\n");
        zone(tree.path(), "intel-rapl:0:1", "dram", "7000000\n");
        zone(tree.path(), "intel-rapl:1", "package-1", "9000000\n");
        zone(tree.path(), "intel-rapl-mmio:0", "package-0", "1\n");
        write(&tree.path().join("intel-rapl/enabled"), "1\n");
        tree
    }

    // promise: REC-7
    #[test]
    fn packages_and_their_memory_count_once() {
        let tree = server();
        let found = open_rapl(tree.path()).unwrap();
        assert_eq!(scopes(&found.meters), ["package-0", "package-0/dram", "package-1"]);
        assert!(found.refused.is_empty());
    }

    #[test]
    fn a_counter_goes_on_through_its_wrap() {
        let tree = server();
        let mut package = open_rapl(tree.path()).unwrap().meters.remove(0);
        assert_eq!(package.sample(), Ok(PowerSample::Joules(0.0)));
        write(&tree.path().join("intel-rapl:0/energy_uj"), "671150\n");
        assert_eq!(package.sample(), Ok(PowerSample::Joules(1.0)));
        write(&tree.path().join("intel-rapl:0/energy_uj"), "2671150\n");
        assert_eq!(package.sample(), Ok(PowerSample::Joules(3.0)));
    }

    #[test]
    fn a_zone_that_goes_away_says_so() {
        let tree = server();
        let mut package = open_rapl(tree.path()).unwrap().meters.remove(0);
        write(&tree.path().join("intel-rapl:0/energy_uj"), "lots\n");
        assert!(package.sample().unwrap_err().contains("'lots'"));
        fs::remove_dir_all(tree.path().join("intel-rapl:0")).unwrap();
        assert!(package.sample().unwrap_err().contains("No such file"));
    }

    #[test]
    fn what_cannot_be_read_is_refused_by_name() {
        let tree = server();
        fs::remove_file(tree.path().join("intel-rapl:1/energy_uj")).unwrap();
        let found = open_rapl(tree.path()).unwrap();
        assert_eq!(scopes(&found.meters), ["package-0", "package-0/dram"]);
        assert_eq!(found.refused[0].0, "rapl:package-1");
        let reason = |path: &Path| open_rapl(path).err().unwrap();
        assert!(reason(&tree.path().join("absent")).contains("virtual machine"));
        let empty = tempfile::tempdir().unwrap();
        assert!(reason(empty.path()).contains("modprobe"));
    }
}

mod nvml_library {
    use super::*;

    /// Three GPUs: one counts energy, one tells only power, one tells nothing.
    const SOURCE: &str = r#"
        static int inits, readings;
        int nvmlInit_v2(void) { return inits++ ? 999 : INIT; }
        int nvmlShutdown(void) { return 0; }
        const char *nvmlErrorString(int status) { return status == 9 ? "Driver Not Loaded" : "Not Supported"; }
        int nvmlDeviceGetCount_v2(unsigned *count) { *count = 3; return 0; }
        int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
            *handle = (void *)(unsigned long)(index + 1);
            return 0;
        }
        int nvmlDeviceGetTotalEnergyConsumption(void *gpu, unsigned long long *millijoules) {
            if (gpu != (void *)1) return 3;
            *millijoules = 1ULL << 40 | 1500ULL * ++readings;
            return 0;
        }
        int nvmlDeviceGetPowerUsage(void *gpu, unsigned *milliwatts) {
            if (gpu == (void *)3) return 3;
            *milliwatts = 73250;
            return 0;
        }
    "#;

    /// None where there is no C compiler.
    fn built(folder: &Path, source: &str, init: i32) -> Option<PathBuf> {
        let (code, library) = (folder.join("nvml.c"), folder.join("libnvidia-ml.so.1"));
        fs::write(&code, source).unwrap();
        let mut compile = Command::new("cc");
        compile.args(["-shared", "-fPIC", "-w", &format!("-DINIT={init}"), "-o"]).arg(&library).arg(&code);
        match compile.output() {
            Ok(done) => {
                assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
                Some(library)
            }
            Err(e) => {
                eprintln!("SKIPPED: NVML's look-alike needs a C compiler: cc: {e}");
                None
            }
        }
    }

    // promise: REC-7
    #[test]
    fn energy_is_preferred_and_power_is_taken_where_there_is_no_counter() {
        let folder = tempfile::tempdir().unwrap();
        let Some(library) = built(folder.path(), SOURCE, 0) else { return };
        let mut found = open_nvml(&library).unwrap();
        assert_eq!(scopes(&found.meters), ["gpu:0", "gpu:1"]);
        let joules = |sample| match sample {
            Ok(PowerSample::Joules(joules)) => joules,
            other => panic!("{other:?}"),
        };
        let first = joules(found.meters[0].sample());
        assert_eq!(joules(found.meters[0].sample()) - first, 1.5);
        assert_eq!(found.meters[1].sample(), Ok(PowerSample::Watts(73.25)));
        assert_eq!(found.refused[0].0, "nvml:gpu:2");
        assert!(found.refused[0].1.contains("Not Supported (3)"), "{:?}", found.refused);
        drop(found);
        assert_eq!(scopes(&open_nvml(&library).unwrap().meters), ["gpu:0", "gpu:1"], "initialised once");
    }

    #[test]
    fn real_gpus_draw_a_believable_power() {
        let meters = match open_nvml(Path::new(NVML_LIBRARY)) {
            Ok(found) => found.meters,
            Err(reason) => {
                eprintln!("SKIPPED: no GPU to ask: {reason}");
                return;
            }
        };
        let count = meters.len();
        let mut sampler = PowerSampler::start(meters, Duration::from_secs(1));
        // Beyond 250 ms a mark gives up, as it may on a busy machine once in a while.
        let quickest = std::cell::Cell::new(Duration::MAX);
        wait_until("the GPUs answer a mark", || {
            let begun = Instant::now();
            sampler.mark();
            quickest.set(quickest.get().min(begun.elapsed()));
            quickest.get() < Duration::from_millis(250)
        });
        std::thread::sleep(Duration::from_millis(2500));
        let powers = sampler.stop(1 << 30);
        eprintln!("a mark took {quickest:?}; {powers:?}; {:?}", sampler.failures());
        assert_eq!(powers.len(), count);
        assert!(powers.iter().all(|power| (5.0..2000.0).contains(&power.watts_mean)), "{powers:?}");
    }

    #[test]
    fn a_driver_that_is_not_loaded_says_what_to_type() {
        let folder = tempfile::tempdir().unwrap();
        let Some(library) = built(folder.path(), SOURCE, 9) else { return };
        let reason = open_nvml(&library).err().unwrap();
        assert!(reason.contains("Driver Not Loaded (9)") && reason.contains("modprobe nvidia"), "{reason}");
    }

    #[test]
    fn an_old_library_is_used_without_what_it_lacks() {
        let folder = tempfile::tempdir().unwrap();
        let without_energy = SOURCE.replace("TotalEnergyConsumption", "NothingOfTheKind");
        let Some(library) = built(folder.path(), &without_energy, 0) else { return };
        let mut found = open_nvml(&library).unwrap();
        assert_eq!(found.meters[0].sample(), Ok(PowerSample::Watts(73.25)));
        let folder = tempfile::tempdir().unwrap();
        let too_old = SOURCE.replace("nvmlDeviceGetPowerUsage", "nvmlNothing");
        let library = built(folder.path(), &too_old, 0).unwrap();
        assert!(open_nvml(&library).err().unwrap().contains("lacks nvmlDeviceGetPowerUsage"));
    }

    // promise: ENG-10
    #[test]
    fn no_library_is_a_reason() {
        let folder = tempfile::tempdir().unwrap();
        let reason = open_nvml(&folder.path().join("libnvidia-ml.so.1")).err().unwrap();
        assert!(reason.contains("no NVIDIA driver's library"), "{reason}");
        let garbage = folder.path().join("garbage.so");
        fs::write(&garbage, b"not a library").unwrap();
        assert!(open_nvml(&garbage).is_err());
    }
}

mod ipmitool {
    use super::*;

    fn program(folder: &Path, script: &str) -> OsString {
        // Written under another name: running a file that is still open for writing anywhere
        // (a test beside this one may just be forking) fails with ETXTBSY.
        let path = folder.join("ipmitool");
        let mut copy = Command::new("sh");
        copy.args(["-c", "cat > \"$0\" && chmod 755 \"$0\""]).arg(&path);
        let mut child = copy.stdin(std::process::Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(format!("#!/bin/sh\n{script}\n").as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
        path.into()
    }

    // promise: REC-7
    #[test]
    fn dcmi_answers() {
        let folder = tempfile::tempdir().unwrap();
        let script = r#"[ "$*" = "dcmi power reading" ] || exit 1
            printf '\n    Instantaneous power reading:                   231 Watts\n'
            printf '    Power reading state is:                   activated\n\n'"#;
        let mut found = open_ipmi(&program(folder.path(), script)).unwrap();
        assert_eq!(scopes(&found.meters), ["server"]);
        assert_eq!(found.meters[0].sample(), Ok(PowerSample::Watts(231.0)));
    }

    #[test]
    fn a_board_without_dcmi_is_asked_for_its_sensors() {
        let folder = tempfile::tempdir().unwrap();
        let script = r#"case "$*" in
            "dcmi power reading") echo "DCMI request failed because: Invalid command (c1)" >&2; exit 1;;
            "sdr list full") echo "PS1 Input Power  | 212 Watts         | ok"
                             echo "PS2 Input Power  | 200 Watts         | ok";;
            "sensor reading PS1 Input Power PS2 Input Power")
                echo "PS1 Input Power  | 210"; echo "PS2 Input Power  | 190";;
            *) exit 9;; esac"#;
        let mut found = open_ipmi(&program(folder.path(), script)).unwrap();
        assert_eq!(found.meters[0].sample(), Ok(PowerSample::Watts(400.0)));
    }

    #[test]
    fn a_machine_without_a_board_gets_ipmitools_own_words() {
        let folder = tempfile::tempdir().unwrap();
        let script = "echo 'Could not open device at /dev/ipmi0: No such file or directory' >&2; exit 1";
        let reason = open_ipmi(&program(folder.path(), script)).err().unwrap();
        assert!(reason.contains("Could not open device at /dev/ipmi0"), "{reason}");
        let reason = open_ipmi(&folder.path().join("absent").into()).err().unwrap();
        assert!(reason.contains("apt install ipmitool"), "{reason}");
    }

    #[test]
    fn output_without_end_is_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let begun = Instant::now();
        let reason =
            open_ipmi(&program(folder.path(), "exec yes aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")).err().unwrap();
        assert!(reason.contains("wrote more than"), "{reason}");
        assert!(begun.elapsed() < PATIENCE);
    }

    #[test]
    fn a_program_that_hangs_is_stopped_with_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let pid = folder.path().join("pid");
        let script = format!("sleep 300 & echo $! > {}; wait", pid.display());
        let begun = Instant::now();
        let reason = open_ipmi(&program(folder.path(), &script)).err().unwrap();
        assert!(reason.contains("took too long"), "{reason}");
        let took = begun.elapsed();
        assert!(took >= Duration::from_secs(5) && took < PATIENCE, "{took:?} for a program of 300 s");
        let child = fs::read_to_string(pid).unwrap().trim().parse::<i32>().unwrap();
        let stat = format!("/proc/{child}/stat");
        let gone = || fs::read_to_string(&stat).map_or(true, |text| text.contains(") Z "));
        wait_until("the child of the program ends", gone);
    }
}

#[test]
fn without_names_the_local_meters_are_tried_and_say_why_not() {
    let (meters, refused) = open_power_meters(&[]);
    for kind in ["rapl", "nvml"] {
        let answered = meters.iter().any(|meter| meter.source() == kind);
        let reason = refused.iter().find(|(name, _)| name.starts_with(kind));
        assert!(answered || reason.is_some_and(|(_, why)| !why.is_empty()), "{kind}: {refused:?}");
    }
    let (meters, refused) = open_power_meters(&["none".into()]);
    assert!(meters.is_empty() && refused.is_empty());
}
