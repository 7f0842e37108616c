use super::*;
use crate::reading::read;
use crate::record::*;
use crate::training::EmulateSpec;

/// A measured run that nothing speaks against.
fn quiet() -> RunRecord {
    let mut record = RunRecord { schema: SCHEMA.into(), origin: "measured".into(), ..RunRecord::default() };
    record.path = PathRan { requested: "host".into(), ran: "host".into(), ..PathRan::default() };
    record.cache = CacheState { policy: "none".into(), ..CacheState::default() };
    record.environment.cores = 2;
    record.result =
        RunResult { seconds: SHORT_S, bytes: 1 << 30, read_bytes: 1 << 30, ..RunResult::default() };
    record.result.noise = Noise {
        steal_pct: Some(STEAL_PCT),
        others_cores_busy: Some(OTHERS_CORES),
        throttled: Some(0),
        series_cv_pct: Some(VARIATION_PCT),
        stood_still_s: Some(0.0),
        cpu_limit_cores: Some(2.0),
        cpu_limited_pct: Some(LIMITED_PCT),
    };
    record
}

fn ids(record: &RunRecord) -> Vec<String> {
    derive(record).into_iter().map(|w| w.id).collect()
}

fn next(record: &RunRecord, text: &str) -> String {
    let all = derive(record);
    all.iter().find(|w| w.text.contains(text)).unwrap_or_else(|| panic!("{text}: {all:?}")).next.clone()
}

// promise: REC-33
#[test]
fn each_threshold_is_where_the_warning_begins() {
    assert_eq!(ids(&quiet()), [""; 0], "at every threshold, and beyond none");
    type Change = fn(&mut RunRecord);
    let beyond: [(&str, Change); 12] = [
        ("too_short", |r| r.result.seconds -= 0.001),
        ("noisy", |r| r.result.noise.steal_pct = Some(STEAL_PCT + 0.1)),
        ("noisy", |r| r.result.noise.others_cores_busy = Some(OTHERS_CORES + 0.01)),
        ("noisy", |r| r.result.noise.series_cv_pct = Some(VARIATION_PCT + 0.1)),
        ("throttled", |r| r.result.noise.throttled = Some(1)),
        ("path", |r| r.path.requested = "mapped".into()),
        ("failed_io", |r| r.result.errors.short = 1),
        ("verify", |r| r.result.errors.verify_failed = 1),
        ("interrupted", |r| r.result.interrupted = true),
        ("unfinished", |r| r.result.unfinished.count = 1),
        ("simulated", |r| r.origin = "simulated".into()),
        ("slow_link", |r| {
            r.environment.drives =
                vec![Drive { pcie_gen: Some(3), pcie_gen_max: Some(4), ..Drive::default() }];
        }),
    ];
    for (id, make) in beyond {
        let mut record = quiet();
        make(&mut record);
        assert_eq!(ids(&record), [id]);
        assert!(derive(&record).iter().all(|w| !w.text.is_empty() && !w.next.is_empty()), "{id}");
    }
    let mut large = quiet();
    (large.environment.cores, large.result.noise.others_cores_busy) = (64, Some(3.0));
    assert_eq!(ids(&large), [""; 0], "3 of 64 cores disturb little");
    large.result.noise.others_cores_busy = Some(3.3);
    assert_eq!(ids(&large), ["noisy"]);
}

// promise: REC-38
#[test]
fn files_smaller_than_an_io_and_little_data_are_told() {
    let mut record = quiet();
    record.job.spec.io_bytes = 1 << 20;
    record.job.data_bytes = 1 << 30;
    record.result.ios = 1024;
    assert_eq!(ids(&record), [""; 0], "whole I/Os");
    record.result.ios = 1100;
    assert_eq!(ids(&record), [""; 0], "a last one of a file that is no multiple");
    record.result.ios = 349_525;
    assert_eq!(ids(&record), ["small_ios"]);
    assert!(next(&record, "I/Os were 3 KiB on average, not 1 MiB").contains("‹io_bytes›"));
    record.result.errors.short = 1;
    assert_eq!(ids(&record), ["failed_io"], "the kernel's short reads are another matter");

    let mut record = quiet();
    record.cache.policy = "bypass".into();
    record.path.slot_pages = "thp".into();
    record.job.data_bytes = SMALL_DATA;
    assert_eq!(ids(&record), [""; 0]);
    record.job.data_bytes -= 1;
    assert_eq!(ids(&record), ["small_data"]);
    assert!(next(&record, "64 MiB of data were read 16 times over").contains("‹file_bytes› 1g"));
    record.result.read_bytes = 100 << 20;
    assert_eq!(ids(&record), [""; 0], "read once, and a little more");
    record.result.read_bytes = 0;
    assert_eq!(ids(&record), [""; 0], "written");
    record.result.read_bytes = 1 << 30;
    record.cache.policy = "warm".into();
    assert_eq!(ids(&record), [""; 0], "memory is what was asked for");
}

// promise: REC-33
#[test]
fn what_to_type_follows_from_what_was_typed() {
    let mut record = quiet();
    record.result.seconds = 1.0;
    assert_eq!(next(&record, "1.0 s"), "‹duration_s› 30");
    record.job.spec.passes = Some(3);
    assert_eq!(next(&record, "1.0 s"), "‹passes› 30, or ‹duration_s› 30");
    record.job.spec.passes = None;
    record.command = vec!["forebay".into(), "sweep".into()];
    assert_eq!(next(&record, "1.0 s"), "a longer duration in the sweep's file");

    let mut record = quiet();
    record.result.noise = Noise {
        steal_pct: Some(9.0),
        others_cores_busy: Some(1.0),
        series_cv_pct: Some(30.0),
        ..Noise::default()
    };
    assert_eq!(next(&record, "hypervisor"), "‹repeat› 5, or a quieter machine");
    assert_eq!(next(&record, "other processes"), "stop them, or ‹cpus› to stay clear of them");
    assert_eq!(next(&record, "varied"), "‹until_steady›, or ‹repeat› 5");
    record.job.spec =
        JobSpec { repeat: 5, until_steady: true, cpus: Some("0".into()), ..record.job.spec.clone() };
    assert_eq!(next(&record, "hypervisor"), "a quieter machine");
    assert_eq!(next(&record, "other processes"), "stop them");
    assert_eq!(next(&record, "varied"), "a quieter machine");

    let mut record = quiet();
    (record.job.spec.rate_iops, record.result.iops) = (Some(1000.0), 900.0);
    assert_eq!(next(&record, "900.000 of 1000.000 I/Os"), "a lower ‹rate_iops›, or more ‹depth›");
}

#[test]
fn others_on_the_drive_show_where_the_page_cache_was_bypassed() {
    let mut record = quiet();
    record.cache = CacheState { policy: "bypass".into(), ..CacheState::default() };
    let with = |moved: f64| {
        let mut record = record.clone();
        record.cache.device_bytes = Some((moved * record.result.bytes as f64) as u64);
        ids(&record)
    };
    assert_eq!(with(1.0), [""; 0]);
    assert_eq!(with(TRAFFIC_MOST), [""; 0]);
    assert_eq!(with(TRAFFIC_MOST + 0.01), ["traffic"]);
}

// promise: BEN-35
#[test]
fn read_ahead_shows_where_the_data_was_not_cached() {
    let mut record = quiet();
    (record.result.bytes, record.result.read_bytes) = (4 << 20, 4 << 20);
    let with = |policy: &str, resident: Option<f64>, moved: u64| {
        let mut record = record.clone();
        let (policy, device_bytes) = (policy.into(), Some(moved));
        record.cache =
            CacheState { policy, resident_before: resident, device_bytes, ..CacheState::default() };
        ids(&record).iter().any(|id| id == "traffic")
    };
    assert!(with("drop", Some(0.0), 256 << 20) && with("allow", Some(0.2), 256 << 20));
    assert!(!with("drop", Some(0.0), 4 << 20) && !with("allow", Some(1.0), 256 << 20));
    assert!(!with("warm", Some(1.0), 256 << 20) && !with("allow", None, 256 << 20));
}

#[test]
fn a_file_that_ends_inside_a_block_is_read_to_its_end_and_nobody_else_is_blamed() {
    let mut record = quiet();
    record.cache = CacheState { policy: "bypass".into(), ..CacheState::default() };
    (record.result.bytes, record.result.read_bytes, record.result.ios) = (100_000, 100_000, 1000);
    record.job.spec.io_bytes = 100;
    let with = |moved: u64| {
        let mut record = record.clone();
        record.cache.device_bytes = Some(moved);
        ids(&record)
    };
    assert_eq!(with(4096 * 1000), [""; 0]);
    assert_eq!(with(4096 * 1300), ["traffic"]);
}

// promise: REC-33
#[test]
fn judging_again_adds_nothing_and_the_runs_own_words_stand() {
    let mut record = quiet();
    record.origin = "simulated".into();
    let own =
        Warning { id: "simulated".into(), text: "d7 in virtual time".into(), next: "a real source".into() };
    record.warnings = vec![own.clone()];
    add(&mut record);
    assert_eq!(record.warnings, [own]);
    record.result.noise.steal_pct = Some(9.0);
    record.result.noise.throttled = Some(2);
    add(&mut record);
    let once = record.warnings.clone();
    assert_eq!(once.len(), 3);
    add(&mut record);
    assert_eq!(record.warnings, once);
}

/// The same list from the file as from the run: nothing is judged that the record doesn't hold.
// promise: REC-33
#[test]
fn a_record_without_warnings_is_judged_when_it_is_read() {
    let mut record = quiet();
    record.result.seconds = 1.0;
    record.result.noise.throttled = Some(2);
    let expected = derive(&record);
    let mut value = serde_json::to_value(&record).unwrap();
    value.as_object_mut().unwrap().remove("warnings");
    assert_eq!(read(&value.to_string()).unwrap().warnings, expected);
    value["warnings"] = serde_json::json!([]);
    assert!(read(&value.to_string()).unwrap().warnings.is_empty(), "what a record says stands");
}

#[test]
fn emulated_training_is_judged_by_its_own_figures() {
    let spec = EmulateSpec { accelerators: 4, ..EmulateSpec::default() };
    let mut training = Training { loader: Loader::TensorFlow, ..Training::of_spec(&spec, 3, 10) };
    training.headroom.client_limited = true;
    training.skipped.count = 2;
    let mut record = quiet();
    record.result.seconds = 1.0;
    record.result.errors.verify_failed = 2;
    record.result.noise.series_cv_pct = Some(90.0);
    record.training = Some(training);
    assert_eq!(ids(&record), ["client_limited", "skipped", "few_files"]);
}

#[test]
fn emulated_training_is_told_of_no_flag_that_it_lacks() {
    let mut record = quiet();
    record.cache.policy = "bypass".into();
    record.path.slot_pages = "small".into();
    assert_eq!(next(&record, "small pages"), "sysctl vm.nr_hugepages=512, or ‹pages› thp");
    record.job.spec.pages = Pages::Small;
    assert_eq!(next(&record, "small pages"), "‹pages› auto");
    record.training = Some(Training::of_spec(&EmulateSpec::default(), 3, 10));
    assert_eq!(next(&record, "small pages"), "sysctl vm.nr_hugepages=512");
}

#[test]
fn time_that_was_not_the_devices_is_told_and_a_limit_isnt_taken_for_others() {
    let mut record = quiet();
    record.result.noise.stood_still_s = Some(1.5);
    assert_eq!(ids(&record), ["stood_still"]);
    let mut record = quiet();
    record.result.noise.others_cores_busy = Some(1.0);
    assert_eq!(ids(&record), ["noisy"]);
    record.result.noise.cpu_limited_pct = Some(40.0);
    assert_eq!(ids(&record), ["cpu_limit"]);
    assert!(next(&record, "limit of 2.0 cores").contains("‹workers›"));
}

// promise: REC-33
#[test]
fn data_that_memory_cannot_hold_is_not_to_be_read_in_once_more() {
    let mut record = quiet();
    record.cache =
        CacheState { policy: "warm".into(), device_bytes: Some(512 << 20), ..CacheState::default() };
    record.result.targets =
        vec![TargetResult { cache: Some("allow".into()), bytes: 1 << 30, ..TargetResult::default() }];
    let remedy = |resident| {
        record.cache.resident_before = resident;
        next(&record, "came from the device (50 %)")
    };
    let remedies = [Some(0.5), Some(1.0), None].map(remedy);
    assert!(remedies[0].contains("docker run --memory"), "{remedies:?}");
    assert!(remedies[1..].iter().all(|next| next.starts_with("‹cache› warm")), "{remedies:?}");
}
