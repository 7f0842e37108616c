//! Power meters against look-alikes: a powercap tree, a driver library built here, a
//! program in ipmitool's place, and a management controller on a local port.

#[path = "power/scripted.rs"]
mod scripted;

use forebay_engine::meter::power::{self, ipmi, nvml, rapl, redfish, Meter, Pace, Sample, Sampler};
use scripted::{longer_and_longer, wait_until, Scripted, PATIENCE};
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{mpsc, Arc, Mutex};
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(100);
/// So rarely that only readings at the ends of a span are made.
const NEVER: Duration = Duration::from_secs(3600);

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// An average of equal values, as sums of floating-point numbers have it.
fn near(value: f64, exact: f64) -> bool {
    (value - exact).abs() < 1e-9 * exact
}

fn scopes(meters: &[Box<dyn Meter>]) -> Vec<&str> {
    meters.iter().map(|meter| meter.scope()).collect()
}

mod sampler {
    use super::*;

    #[test]
    fn power_over_a_run_is_energy_over_time() {
        longer_and_longer(|length| {
            let begun = Instant::now();
            let meter = Scripted::quick(move |_| Sample::Joules(50.0 * begun.elapsed().as_secs_f64()));
            let mut sampler = Sampler::start(vec![Box::new(meter)], NEVER);
            std::thread::sleep(length);
            let powers = sampler.stop(1 << 29);
            let Some(power) = powers.first() else { return Err(format!("{:?}", sampler.failures())) };
            assert_eq!((power.source.as_str(), power.scope.as_str()), ("rapl", "package-0"));
            let seconds = power.joules_per_gib.unwrap() / 2.0 / power.watts_mean;
            let outside = begun.elapsed().as_secs_f64() + 1e-6;
            assert!((length.as_secs_f64() - 1e-6..outside).contains(&seconds), "{seconds} for half a GiB");
            assert!(power.samples >= 2);
            assert!(sampler.failures().is_empty());
            match (power.watts_mean - 50.0).abs() < 1.0 {
                true => Ok(()),
                false => Err(format!("{power:?}")),
            }
        });
    }

    #[test]
    fn spans_are_told_apart() {
        longer_and_longer(|length| {
            let watts = Arc::new(Mutex::new(100.0));
            let (now, mut last, mut joules) = (Arc::clone(&watts), Instant::now(), 0.0);
            let meter = Scripted::quick(move |_| {
                joules += *now.lock().unwrap() * last.elapsed().as_secs_f64();
                last = Instant::now();
                Sample::Joules(joules)
            });
            let mut sampler = Sampler::start(vec![Box::new(meter)], NEVER);
            let marks = [100.0, 1000.0, 300.0].map(|level| {
                let from = sampler.mark();
                *watts.lock().unwrap() = level;
                std::thread::sleep(length);
                (from, sampler.mark())
            });
            let mean = |powers: Vec<forebay_model::record::Power>| powers.first().map(|p| p.watts_mean);
            let first = mean(sampler.over(&marks[..1], 1));
            let last = mean(sampler.over(&marks[2..], 1));
            // The middle stays out.
            let outer = mean(sampler.stop_over(&[marks[0], marks[2]], 1));
            let found = [(first, 100.0), (last, 300.0), (outer, 200.0)];
            match found.iter().all(|(mean, level)| mean.is_some_and(|m| (m - level).abs() < 0.2 * level)) {
                true => Ok(()),
                false => Err(format!("mean and what it should be: {found:?}")),
            }
        });
    }

    #[test]
    fn a_meter_that_dies_leaves_its_readings_and_its_reason() {
        let mut meter = Scripted::quick(|_| Sample::Watts(120.0));
        meter.lives = 3;
        let readings = meter.readings();
        let mut sampler = Sampler::start(vec![Box::new(meter)], TICK);
        wait_until("the meter is given up", || readings.are_over());
        let powers = sampler.stop(0);
        assert!(near(powers[0].watts_mean, 120.0));
        assert_eq!(powers[0].samples, 3);
        assert_eq!(powers[0].joules_per_gib, None, "no bytes");
        let (meter, reason) = &sampler.failures()[0];
        assert_eq!(meter, "rapl:package-0");
        assert!(reason.contains("after 3 readings") && reason.contains("went away"), "{reason}");
    }

    #[test]
    fn a_meter_that_never_speaks_is_left_out_with_its_reason() {
        let mut meter = Scripted::quick(|_| Sample::Watts(1.0));
        meter.lives = 0;
        let readings = meter.readings();
        let mut sampler = Sampler::start(vec![Box::new(meter)], TICK);
        wait_until("the meter is given up", || readings.are_over());
        assert!(sampler.stop(1).is_empty());
        assert_eq!(sampler.failures().len(), 1, "{:?}", sampler.failures());
        assert!(sampler.failures()[0].1.contains("went away"));
    }

    #[test]
    fn one_bad_reading_is_counted_and_survived() {
        let meter = Scripted::quick(|reading| Sample::Watts(if reading == 3 { f64::NAN } else { 80.0 }));
        let readings = meter.readings();
        let mut sampler = Sampler::start(vec![Box::new(meter)], TICK);
        wait_until("a reading after the bad one is kept", || readings.count() >= 5);
        assert!(near(sampler.stop(1)[0].watts_mean, 80.0));
        assert!(sampler.failures()[0].1.starts_with("1 of "), "{:?}", sampler.failures());
    }

    /// A meter over a slow bus, which answers 400 W once it is sent something or its sender is gone.
    fn slow() -> (mpsc::Sender<()>, Box<dyn Meter>) {
        let (answer, asked) = mpsc::channel();
        let mut meter = Scripted::quick(move |_| {
            let _ = asked.recv();
            Sample::Watts(400.0)
        });
        meter.pace = Pace::Slow(NEVER);
        (answer, Box::new(meter))
    }

    #[test]
    fn a_slow_meter_holds_nobody_up_and_counts_though_the_run_was_shorter() {
        // To wait for each as long as for a quick meter would take 25 s.
        let (silent, meters): (Vec<_>, Vec<_>) = (0..50).map(|_| slow()).unzip();
        let begun = Instant::now();
        let sampler = Sampler::start(meters, TICK);
        sampler.mark();
        assert!(begun.elapsed() < Duration::from_secs(12), "start and mark don't wait for it");
        drop((sampler, silent));

        longer_and_longer(|length| {
            let (answer, meter) = slow();
            let mut sampler = Sampler::start(vec![meter], TICK);
            std::thread::sleep(length);
            std::thread::spawn(move || {
                std::thread::sleep(TICK);
                answer.send(())
            });
            let asked = Instant::now();
            let powers = sampler.stop(1 << 30);
            let told: Vec<_> = powers.iter().map(|power| (power.watts_mean, power.samples)).collect();
            // It waits up to 6 s for a meter that doesn't answer.
            match told == [(400.0, 1)] && asked.elapsed() < Duration::from_secs(5) {
                true => Ok(()),
                false => Err(format!("{told:?} after {:?}; {:?}", asked.elapsed(), sampler.failures())),
            }
        });
    }

    #[test]
    fn a_counter_that_stands_still_is_no_zero_watts() {
        longer_and_longer(|length| {
            let meter = Scripted::quick(|_| Sample::Joules(5.0));
            let mut sampler = Sampler::start(vec![Box::new(meter)], TICK);
            std::thread::sleep(length);
            assert!(sampler.stop(1).is_empty());
            match sampler.failures()[0].1.contains("stood still") {
                true => Ok(()),
                false => Err(format!("{:?}", sampler.failures())),
            }
        });
    }
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

    #[test]
    fn packages_and_their_memory_count_once() {
        let tree = server();
        let found = rapl::open(tree.path()).unwrap();
        assert_eq!(scopes(&found.meters), ["package-0", "package-0/dram", "package-1"]);
        assert!(found.refused.is_empty());
    }

    #[test]
    fn a_counter_goes_on_through_its_wrap() {
        let tree = server();
        let mut package = rapl::open(tree.path()).unwrap().meters.remove(0);
        assert_eq!(package.sample(), Ok(Sample::Joules(0.0)));
        write(&tree.path().join("intel-rapl:0/energy_uj"), "671150\n");
        assert_eq!(package.sample(), Ok(Sample::Joules(1.0)));
        write(&tree.path().join("intel-rapl:0/energy_uj"), "2671150\n");
        assert_eq!(package.sample(), Ok(Sample::Joules(3.0)));
    }

    #[test]
    fn a_zone_that_goes_away_says_so() {
        let tree = server();
        let mut package = rapl::open(tree.path()).unwrap().meters.remove(0);
        write(&tree.path().join("intel-rapl:0/energy_uj"), "lots\n");
        assert!(package.sample().unwrap_err().contains("'lots'"));
        fs::remove_dir_all(tree.path().join("intel-rapl:0")).unwrap();
        assert!(package.sample().unwrap_err().contains("No such file"));
    }

    #[test]
    fn what_cannot_be_read_is_refused_by_name() {
        let tree = server();
        fs::remove_file(tree.path().join("intel-rapl:1/energy_uj")).unwrap();
        let found = rapl::open(tree.path()).unwrap();
        assert_eq!(scopes(&found.meters), ["package-0", "package-0/dram"]);
        assert_eq!(found.refused[0].0, "rapl:package-1");
        let reason = |path: &Path| rapl::open(path).err().unwrap();
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

    #[test]
    fn energy_is_preferred_and_power_is_taken_where_there_is_no_counter() {
        let folder = tempfile::tempdir().unwrap();
        let Some(library) = built(folder.path(), SOURCE, 0) else { return };
        let mut found = nvml::open(&library).unwrap();
        assert_eq!(scopes(&found.meters), ["gpu:0", "gpu:1"]);
        let joules = |sample| match sample {
            Ok(Sample::Joules(joules)) => joules,
            other => panic!("{other:?}"),
        };
        let first = joules(found.meters[0].sample());
        assert_eq!(joules(found.meters[0].sample()) - first, 1.5);
        assert_eq!(found.meters[1].sample(), Ok(Sample::Watts(73.25)));
        assert_eq!(found.refused[0].0, "nvml:gpu:2");
        assert!(found.refused[0].1.contains("Not Supported (3)"), "{:?}", found.refused);
        drop(found);
        assert_eq!(scopes(&nvml::open(&library).unwrap().meters), ["gpu:0", "gpu:1"], "initialised once");
    }

    #[test]
    fn real_gpus_draw_a_believable_power() {
        let meters = match nvml::open(Path::new(nvml::LIBRARY)) {
            Ok(found) => found.meters,
            Err(reason) => {
                eprintln!("SKIPPED: no GPU to ask: {reason}");
                return;
            }
        };
        let count = meters.len();
        let mut sampler = Sampler::start(meters, Duration::from_secs(1));
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
        let reason = nvml::open(&library).err().unwrap();
        assert!(reason.contains("Driver Not Loaded (9)") && reason.contains("modprobe nvidia"), "{reason}");
    }

    #[test]
    fn an_old_library_is_used_without_what_it_lacks() {
        let folder = tempfile::tempdir().unwrap();
        let without_energy = SOURCE.replace("TotalEnergyConsumption", "NothingOfTheKind");
        let Some(library) = built(folder.path(), &without_energy, 0) else { return };
        let mut found = nvml::open(&library).unwrap();
        assert_eq!(found.meters[0].sample(), Ok(Sample::Watts(73.25)));
        let folder = tempfile::tempdir().unwrap();
        let too_old = SOURCE.replace("nvmlDeviceGetPowerUsage", "nvmlNothing");
        let library = built(folder.path(), &too_old, 0).unwrap();
        assert!(nvml::open(&library).err().unwrap().contains("lacks nvmlDeviceGetPowerUsage"));
    }

    #[test]
    fn no_library_is_a_reason() {
        let folder = tempfile::tempdir().unwrap();
        let reason = nvml::open(&folder.path().join("libnvidia-ml.so.1")).err().unwrap();
        assert!(reason.contains("no NVIDIA driver's library"), "{reason}");
        let garbage = folder.path().join("garbage.so");
        fs::write(&garbage, b"not a library").unwrap();
        assert!(nvml::open(&garbage).is_err());
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

    #[test]
    fn dcmi_answers() {
        let folder = tempfile::tempdir().unwrap();
        let script = r#"[ "$*" = "dcmi power reading" ] || exit 1
            printf '\n    Instantaneous power reading:                   231 Watts\n'
            printf '    Power reading state is:                   activated\n\n'"#;
        let mut found = ipmi::open(&program(folder.path(), script)).unwrap();
        assert_eq!(scopes(&found.meters), ["server"]);
        assert_eq!(found.meters[0].sample(), Ok(Sample::Watts(231.0)));
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
        let mut found = ipmi::open(&program(folder.path(), script)).unwrap();
        assert_eq!(found.meters[0].sample(), Ok(Sample::Watts(400.0)));
    }

    #[test]
    fn a_machine_without_a_board_gets_ipmitools_own_words() {
        let folder = tempfile::tempdir().unwrap();
        let script = "echo 'Could not open device at /dev/ipmi0: No such file or directory' >&2; exit 1";
        let reason = ipmi::open(&program(folder.path(), script)).err().unwrap();
        assert!(reason.contains("Could not open device at /dev/ipmi0"), "{reason}");
        let reason = ipmi::open(&folder.path().join("absent").into()).err().unwrap();
        assert!(reason.contains("apt install ipmitool"), "{reason}");
    }

    #[test]
    fn output_without_end_is_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let begun = Instant::now();
        let reason =
            ipmi::open(&program(folder.path(), "exec yes aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")).err().unwrap();
        assert!(reason.contains("wrote more than"), "{reason}");
        assert!(begun.elapsed() < PATIENCE);
    }

    #[test]
    fn a_program_that_hangs_is_stopped_with_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let pid = folder.path().join("pid");
        let script = format!("sleep 300 & echo $! > {}; wait", pid.display());
        let begun = Instant::now();
        let reason = ipmi::open(&program(folder.path(), &script)).err().unwrap();
        assert!(reason.contains("took too long"), "{reason}");
        let took = begun.elapsed();
        assert!(took >= Duration::from_secs(5) && took < PATIENCE, "{took:?} for a program of 300 s");
        let child = fs::read_to_string(pid).unwrap().trim().parse::<i32>().unwrap();
        let stat = format!("/proc/{child}/stat");
        let gone = || fs::read_to_string(&stat).map_or(true, |text| text.contains(") Z "));
        wait_until("the child of the program ends", gone);
    }
}

mod controller {
    use super::*;

    /// A management controller as far as one thread can be: path → (status, body).
    struct Fake {
        address: SocketAddr,
        requests: Arc<Mutex<Vec<String>>>,
    }

    type Answers = HashMap<&'static str, (u16, String)>;

    fn reply(mut stream: impl Read + Write, answers: &Answers, requests: &Mutex<Vec<String>>) {
        let mut request = Vec::new();
        let mut buffer = [0u8; 1024];
        while !request.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
            match stream.read(&mut buffer) {
                Ok(length) if length > 0 => request.extend_from_slice(&buffer[..length]),
                _ => return,
            }
        }
        let request = String::from_utf8_lossy(&request).into_owned();
        let path = request.split(' ').nth(1).unwrap_or("").to_string();
        requests.lock().unwrap().push(request);
        let missing = (404, "{}".to_string());
        let (status, body) = answers.get(path.as_str()).unwrap_or(&missing);
        if *status == 0 {
            std::thread::sleep(PATIENCE * 2); // never answers
            return;
        }
        let extra = if *status == 302 { "Location: http://127.0.0.1:1/elsewhere\r\n" } else { "" };
        let length = body.len();
        let head = format!("HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n{extra}Content-Length: {length}\r\nConnection: close\r\n\r\n");
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes()));
        let _ = stream.flush();
    }

    fn serve(answers: Answers, tls: Option<Arc<rustls::ServerConfig>>) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                match &tls {
                    None => reply(stream, &answers, &seen),
                    Some(config) => {
                        let session = rustls::ServerConnection::new(Arc::clone(config)).unwrap();
                        let mut secured = rustls::StreamOwned::new(session, stream);
                        reply(&mut secured, &answers, &seen);
                        secured.conn.send_close_notify();
                        let _ = secured.flush();
                    }
                }
            }
        });
        Fake { address, requests }
    }

    fn answers(list: &[(&'static str, &str)]) -> Answers {
        list.iter().map(|&(path, body)| (path, (200, body.to_string()))).collect()
    }

    fn one_chassis() -> Answers {
        answers(&[
            ("/redfish/v1/Chassis", r#"{"Members":[{"@odata.id":"/redfish/v1/Chassis/1U"}]}"#),
            ("/redfish/v1/Chassis/1U", r#"{"Id":"1U","Power":{"@odata.id":"/redfish/v1/Chassis/1U/Power"}}"#),
            (
                "/redfish/v1/Chassis/1U/Power",
                r##"{"@odata.type":"#Power.v1_5_0.Power","PowerControl":[
                    {"MemberId":"0","Name":"Server Power Control","PowerConsumedWatts":344,"PowerCapacityWatts":800},
                    {"MemberId":"1","Name":"CPU Sub-system Power","PowerConsumedWatts":130}]}"##,
            ),
        ])
    }

    fn address(fake: &Fake) -> redfish::Address {
        redfish::Address::parse(&format!("http://{}", fake.address), false).unwrap()
    }

    fn open(fake: &Fake) -> Result<power::Found, String> {
        redfish::open(&address(fake), redfish::Login::none())
    }

    #[test]
    fn power_of_the_older_schema() {
        let fake = serve(one_chassis(), None);
        let mut found = open(&fake).unwrap();
        assert_eq!(scopes(&found.meters), ["server"]);
        assert_eq!(found.meters[0].sample(), Ok(Sample::Watts(344.0)));
    }

    #[test]
    fn power_of_the_newer_schema_and_several_chassis() {
        let fake = serve(
            answers(&[
                (
                    "/redfish/v1/Chassis",
                    r#"{"Members":[{"@odata.id":"/redfish/v1/Chassis/Self"},{"@odata.id":"/redfish/v1/Chassis/GPU_Board/"},
                        {"@odata.id":"/redfish/v1/Chassis/Backplane"},{"@odata.id":"http://elsewhere/x"}]}"#,
                ),
                (
                    "/redfish/v1/Chassis/Self",
                    r#"{"EnvironmentMetrics":{"@odata.id":"/redfish/v1/Chassis/Self/EnvironmentMetrics"}}"#,
                ),
                ("/redfish/v1/Chassis/Self/EnvironmentMetrics", r#"{"PowerWatts":{"Reading":1820.5}}"#),
                (
                    "/redfish/v1/Chassis/GPU_Board/",
                    r#"{"EnvironmentMetrics":{"@odata.id":"/e"},"Power":{"@odata.id":"/p"}}"#,
                ),
                ("/e", r#"{"TemperatureCelsius":{"Reading":31}}"#),
                ("/p", r#"{"PowerControl":[{"PowerConsumedWatts":900}]}"#),
                ("/redfish/v1/Chassis/Backplane", r#"{"Id":"Backplane"}"#),
            ]),
            None,
        );
        let mut found = open(&fake).unwrap();
        assert_eq!(scopes(&found.meters), ["server/Self", "server/GPU_Board"]);
        assert_eq!(found.meters[0].sample(), Ok(Sample::Watts(1820.5)));
        assert_eq!(found.meters[1].sample(), Ok(Sample::Watts(900.0)));
        assert_eq!(found.refused[0].0, "redfish:Backplane");
    }

    #[test]
    fn the_login_goes_with_each_request_and_into_no_reason() {
        let mut refusing = one_chassis();
        refusing.insert("/redfish/v1/Chassis", (401, "{}".into()));
        let fake = serve(refusing, None);
        let reason = redfish::open(&address(&fake), redfish::Login::new("root", "calvin")).err().unwrap();
        assert!(reason.contains("401") && reason.contains("isn't accepted"), "{reason}");
        assert!(!reason.contains("calvin"));
        let request = fake.requests.lock().unwrap()[0].clone();
        assert!(request.contains("Basic cm9vdDpjYWx2aW4="), "{request}");
        let reason = open(&fake).err().unwrap();
        assert!(reason.contains("set FOREBAY_REDFISH_USER"), "{reason}");
    }

    #[test]
    fn what_is_no_answer_is_a_reason() {
        let case = |status: u16, body: String| {
            open(&serve(HashMap::from([("/redfish/v1/Chassis", (status, body))]), None)).err().unwrap()
        };
        assert!(case(200, "<html>login</html>".into()).contains("not JSON"));
        assert!(case(200, "[1,2".into()).contains("not JSON"));
        assert!(case(200, "{}".into()).contains("no Members"));
        assert!(case(200, r#"{"Members":[]}"#.into()).contains("lists no chassis"));
        assert!(case(200, format!("[{}1]", "1,".repeat(1 << 20))).contains("more than 1048576 bytes"));
        assert!(case(302, String::new()).contains("redirects are not followed"));
        assert!(case(500, String::new()).contains("status 500"));
        assert!(case(404, String::new()).contains("is this a Redfish service?"));
        assert!(case(200, "[".repeat(100_000)).contains("not JSON"), "depth is bounded too");
    }

    #[test]
    fn nobody_there_and_nobody_answering_end_in_time() {
        // The near end of a connection: nobody listens there, and nobody else gets the port.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near_end = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let port = near_end.local_addr().unwrap();
        let gone = redfish::Address::parse(&format!("http://{port}"), false).unwrap();
        assert!(redfish::open(&gone, redfish::Login::none()).err().unwrap().contains("efused"));
        let silent = serve(HashMap::from([("/redfish/v1/Chassis", (0, String::new()))]), None);
        let begun = Instant::now();
        assert!(open(&silent).err().unwrap().contains("timeout"));
        assert!(begun.elapsed() < PATIENCE);
    }

    /// A controller with a certificate of its own making, and that certificate.
    fn secured() -> (Fake, Vec<u8>) {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".into(), "127.0.0.1".into()]).unwrap();
        let key = rustls::pki_types::PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        (serve(one_chassis(), Some(Arc::new(config))), made.cert.der().to_vec())
    }

    #[test]
    fn a_certificate_nobody_vouches_for_is_refused_unless_the_user_says_so() {
        let (fake, _) = secured();
        let at = |insecure| {
            let address = redfish::Address::parse(&fake.address.to_string(), insecure).unwrap();
            redfish::open(&address, redfish::Login::new("root", "calvin"))
        };
        let reason = at(false).err().unwrap();
        assert!(reason.contains("redfish+insecure:HOST"), "{reason}");
        assert!(fake.requests.lock().unwrap().is_empty(), "no login before trust");
        let mut found = at(true).unwrap();
        assert_eq!(found.meters[0].sample(), Ok(Sample::Watts(344.0)));
    }

    /// In a process of its own, since what the system trusts is read from the environment.
    #[test]
    fn a_certificate_that_the_system_trusts_is_accepted() {
        const ADDRESS: &str = "FOREBAY_TEST_CONTROLLER";
        if let Ok(address) = std::env::var(ADDRESS) {
            let (mut meters, refused) = power::open(&[address]);
            assert!(refused.is_empty(), "{refused:?}");
            assert_eq!(meters[0].sample(), Ok(Sample::Watts(344.0)));
            return;
        }
        let (fake, der) = secured();
        let folder = tempfile::tempdir().unwrap();
        let roots = folder.path().join("roots.pem");
        let base64 = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, der);
        let pem = format!("-----BEGIN CERTIFICATE-----\n{base64}\n-----END CERTIFICATE-----\n");
        fs::write(&roots, pem).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "controller::a_certificate_that_the_system_trusts_is_accepted"])
            .env(ADDRESS, format!("redfish:{}", fake.address))
            .env("SSL_CERT_FILE", &roots)
            .envs([(redfish::USER_ENV, "root"), (redfish::PASSWORD_ENV, "calvin")])
            .output()
            .unwrap();
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
        let requests = fake.requests.lock().unwrap();
        assert!(requests.iter().all(|request| request.contains("Basic cm9vdDpjYWx2aW4=")), "{requests:?}");
    }

    #[test]
    fn a_controller_is_sampled_through_a_run() {
        let fake = serve(one_chassis(), None);
        let meters = open(&fake).unwrap().meters;
        let requests = || fake.requests.lock().unwrap().len();
        let (opened, begun) = (requests(), Instant::now());
        let mut sampler = Sampler::start(meters, Duration::from_millis(100));
        wait_until("the board is asked again", || requests() >= opened + 2);
        let powers = sampler.stop(1 << 30);
        assert_eq!((powers[0].source.as_str(), powers[0].scope.as_str()), ("redfish", "server"));
        assert!(near(powers[0].watts_mean, 344.0), "{powers:?}");
        let asked = requests() - opened;
        let took = begun.elapsed();
        // At 0 s, 1 s, 2 s and so on.
        assert!(
            asked as u64 <= took.as_secs() + 1,
            "a board is asked once a second at most: {asked} in {took:?}"
        );
    }
}

#[test]
fn without_names_the_local_meters_are_tried_and_say_why_not() {
    let (meters, refused) = power::open(&[]);
    for kind in ["rapl", "nvml"] {
        let answered = meters.iter().any(|meter| meter.source() == kind);
        let reason = refused.iter().find(|(name, _)| name.starts_with(kind));
        assert!(answered || reason.is_some_and(|(_, why)| !why.is_empty()), "{kind}: {refused:?}");
    }
    let (meters, refused) = power::open(&["none".into()]);
    assert!(meters.is_empty() && refused.is_empty());
}
