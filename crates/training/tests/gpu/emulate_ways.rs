//! Emulated batches by every way into a GPU: each byte gets there once and is told of
//! by the way that it took, whatever the files, the cache and the end of the run.

#[path = "emulate_ways/changes.rs"]
mod changes;

use forebay_bench::Observer;
use forebay_io::{drop_cached, CudaDevice};
use forebay_model::job::{Cache, PathKind};
use forebay_model::record::{PathRan, RunRecord};
use forebay_model::training::{EmulateSpec, Level, RuleSet, Workload};
use forebay_model::Error;
use forebay_model::Kind;
use forebay_rigs::gpu::home;
use forebay_rigs::gpu::{is_inside, on_real_gpu, Books, Scenario};
use forebay_rigs::leaks::{assert_no_more_than, held};
use forebay_storage::{Paths, SourceMedium};
use forebay_training::{run_emulation, EmulateOutcome, EmulateProgress};
use std::fs::File;
use std::path::{Path, PathBuf};

const MIB: usize = 1 << 20;

/// Calls `each` with every progress; true ends the run.
struct Watch<F: FnMut(&EmulateProgress) -> bool>(F, bool);

impl<F: FnMut(&EmulateProgress) -> bool> Observer<EmulateProgress> for Watch<F> {
    fn progress(&mut self, progress: &EmulateProgress) {
        self.1 |= (self.0)(progress);
    }

    fn stop(&mut self) -> bool {
        self.1
    }
}

fn watched(spec: &EmulateSpec, each: impl FnMut(&EmulateProgress) -> bool) -> Result<EmulateOutcome, Error> {
    run_emulation(spec, vec!["test".into()], &mut Watch(each, false), None)
}

fn ran(spec: &EmulateSpec) -> EmulateOutcome {
    watched(spec, |_| false).unwrap()
}

fn record(spec: &EmulateSpec) -> RunRecord {
    let outcome = ran(spec);
    assert!(outcome.failure.is_none(), "{:?}", outcome.failure);
    outcome.record
}

/// Returns the failure of a run, midway or before anything was measured.
fn failure(outcome: Result<EmulateOutcome, Error>) -> Error {
    outcome.map_or_else(|error| error, |outcome| outcome.failure.expect("it fails"))
}

fn spec(folder: &Path, path: PathKind) -> EmulateSpec {
    EmulateSpec {
        workload: Workload {
            name: "test".into(),
            format: "raw".into(),
            batch: 2,
            compute_s: 0.001,
            record_bytes: 3e6,
            samples_per_file: 1,
            ..Workload::default()
        },
        rules: RuleSet::V30,
        level: Level::Bytes,
        data: vec![folder.display().to_string()],
        destination: "gpu:0".into(),
        path,
        allow_compat: path == PathKind::Gds,
        accelerators: 2,
        ranks: 2,
        epochs: 2,
        read_threads: 2,
        prefetch: 2,
        cache: Cache::Allow,
        power: vec!["none".into()],
        io_bytes: Some(256 << 10),
        workers: Some(2),
        depth: Some(4),
        interval_s: 0.02,
        ..EmulateSpec::default()
    }
}

fn content(file: usize, bytes: usize) -> Vec<u8> {
    let pattern: Vec<u8> = (0..4093usize).map(|i| (i * 37 + file * 11 + i / 251) as u8).collect();
    let mut content = pattern.repeat(bytes.div_ceil(pattern.len()));
    content.truncate(bytes);
    content
}

fn once(path: PathKind) {
    let home = files(&[2 * MIB + 5; 4]);
    assert_exact(&record(&spec(home.path(), path)));
}

fn path_of(folder: &Path, file: usize) -> PathBuf {
    folder.join(format!("{file:03}.raw"))
}

fn write(folder: &Path, sizes: &[usize]) {
    for (n, bytes) in sizes.iter().enumerate() {
        std::fs::write(path_of(folder, n), content(n, *bytes)).unwrap();
    }
}

fn files(sizes: &[usize]) -> tempfile::TempDir {
    let home = home();
    write(home.path(), sizes);
    home
}

/// The sum of all bytes, eight at a time: without optimisation, the tests would add single bytes for seconds.
fn sum(bytes: &[u8]) -> u64 {
    const EVEN: u64 = 0x00FF_00FF_00FF_00FF;
    const LOWER: u64 = 0x0000_FFFF_0000_FFFF;
    let words = bytes.chunks_exact(8);
    let rest: u64 = words.remainder().iter().map(|b| u64::from(*b)).sum();
    let mut sum = rest;
    for word in words {
        let word = u64::from_ne_bytes(word.try_into().unwrap());
        let pairs = (word & EVEN) + (word >> 8 & EVEN);
        let fours = (pairs & LOWER) + (pairs >> 16 & LOWER);
        sum += (fours & 0xFFFF_FFFF) + (fours >> 32);
    }
    sum
}

/// (bytes, their sum) of all files.
fn totals(sizes: &[usize]) -> (u64, u64) {
    let sums = sizes.iter().enumerate().map(|(n, bytes)| sum(&content(n, *bytes)));
    (sizes.iter().map(|b| *b as u64).sum(), sums.sum())
}

fn of_ways(path: &PathRan) -> u64 {
    path.direct_bytes + path.staged_bytes + path.mapped_bytes + path.compat_bytes + path.fabric_bytes
}

/// Every byte that is told of is told of by its way, and by its epoch.
fn assert_exact(record: &RunRecord) -> u64 {
    let training = record.training.as_ref().unwrap();
    assert_eq!(of_ways(&record.path), training.read_bytes, "{:?}", record.path);
    assert_eq!(record.result.bytes, training.read_bytes);
    let of_epochs: u64 = training.epochs.iter().map(|epoch| epoch.read_bytes).sum();
    assert_eq!(of_epochs, training.read_bytes, "{:?}", training.epochs);
    training.read_bytes
}

/// A scenario whose inside tells its outside of a number of bytes.
fn telling(scenario: Scenario, name: &str, body: impl FnOnce() -> u64) -> Option<(Books, u64)> {
    let reported = home().path().with_file_name(format!("told-{name}"));
    let books = scenario.run(|| std::fs::write(&reported, body().to_string()).unwrap())?;
    let bytes = std::fs::read_to_string(&reported).unwrap().parse().unwrap();
    std::fs::remove_file(&reported).unwrap();
    Some((books, bytes))
}

const PATHS: [PathKind; 4] = [PathKind::Bounce, PathKind::Mapped, PathKind::Gds, PathKind::Auto];

/// Numbers without a pattern, the same in a scenario and outside of it.
struct Dice(u64);

impl Dice {
    fn up_to(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most
    }

    fn choose<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.up_to(choices.len())]
    }
}

/// A run of its own for every number: files of all sizes, and whatever else may make a difference.
struct Case {
    sizes: Vec<usize>,
    spec: EmulateSpec,
    cold: usize,
}

fn case(number: u64, folder: &Path) -> Case {
    let mut dice = Dice(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let path = PATHS[number as usize % PATHS.len()];
    let mut spec = spec(folder, path);
    (spec.accelerators, spec.workload.batch) = (1 + dice.up_to(3) as u32, 1 + dice.up_to(3) as u32);
    spec.ranks = spec.accelerators;
    let steps = 1 + dice.up_to(3);
    let count = spec.accelerators as usize * spec.workload.batch as usize * steps;
    let sizes = (0..count)
        .map(|_| match dice.up_to(6) {
            0 => 1 + dice.up_to(9000),
            1 => 4096 * (1 + dice.up_to(300)),
            2 => MIB - 1 + dice.up_to(3),
            3 => MIB * (1 + dice.up_to(3)),
            _ => MIB + dice.up_to(3 * MIB),
        })
        .collect();
    spec.io_bytes = dice.choose(&[None, Some(4096), Some(100_000), Some(256 << 10), Some(3 << 20)]);
    if spec.io_bytes == Some(4096) {
        // Many I/Os: a few will do.
        spec.epochs = 1;
    }
    spec.workers = Some(1 + dice.up_to(3) as u32);
    spec.depth = Some(dice.choose(&[1, 2, 5, 16]));
    spec.read_threads = 1 + dice.up_to(4) as u32;
    spec.prefetch = 1 + dice.up_to(3) as u32;
    spec.workload.compute_s = dice.choose(&[0.0, 0.001]);
    (spec.workload.file_shuffle, spec.workload.sample_shuffle) = (dice.up_to(2) == 0, dice.up_to(2) == 0);
    let limits = [None, Some(1 << 20), Some(3 << 20), Some(64 << 20)];
    spec.pin_limit_bytes = Some(dice.choose(&limits)).flatten().filter(|_| path == PathKind::Mapped);
    spec.destination = dice.choose(&["gpu:0", "gpu:1", "gpu:0,1"]).into();
    Case { sizes, spec, cold: dice.up_to(3) }
}

fn chill(folder: &Path, files: usize, every: usize) {
    for n in (0..files).filter(|n| every > 0 && n % (every + 1) == 0) {
        drop_cached(&File::open(path_of(folder, n)).unwrap(), 0, 0).unwrap();
    }
}

fn every_byte_is_told_of(name: &str, numbers: std::ops::Range<u64>) {
    let outside = numbers.clone();
    let scenario = Scenario::new(&format!("emulate_ways::{name}")).settings("gpus=2,delay_us=20");
    let reported = telling(scenario, name, || {
        let mut by_cufile = 0;
        for number in numbers {
            let home = home();
            let Case { sizes, spec, cold } = case(number, home.path());
            write(home.path(), &sizes);
            chill(home.path(), sizes.len(), cold);
            let record = record(&spec);
            let read = assert_exact(&record);
            assert_eq!(read, u64::from(spec.epochs) * totals(&sizes).0, "case {number}: {spec:?}");
            let path = &record.path;
            match spec.path {
                PathKind::Bounce => assert_eq!(path.staged_bytes, read),
                PathKind::Gds => assert_eq!((path.compat_bytes, path.ran.as_str()), (read, "gds-compat")),
                PathKind::Mapped => assert_eq!(path.mapped_bytes + path.staged_bytes, read),
                _ => assert!(path.reason.as_ref().unwrap().starts_with("auto chose"), "{path:?}"),
            }
            by_cufile += path.compat_bytes;
        }
        by_cufile
    });
    let Some((books, by_cufile)) = reported else { return };
    let (mut bytes, mut sums) = (0, 0);
    for number in outside {
        let Case { sizes, spec, .. } = case(number, Path::new("/"));
        let (all, sum_of_all) = totals(&sizes);
        (bytes, sums) = (bytes + u64::from(spec.epochs) * all, sums + u64::from(spec.epochs) * sum_of_all);
        if spec.path == PathKind::Gds {
            // cuFile showed beforehand, for each GPU, how it goes.
            let gpus = spec.gpus().len() as u64;
            let io_bytes = spec.io_bytes.unwrap_or(1 << 20).next_multiple_of(4096) as usize;
            let looked = sizes[0].min(io_bytes);
            sums += gpus * sum(&content(0, looked));
            bytes += gpus * looked as u64;
        }
    }
    assert!(by_cufile > 0 && books.by_cufile() >= by_cufile);
    assert_eq!(books.over_gpus("to_device_bytes") + books.by_cufile(), bytes);
    assert_eq!(books.sum(), sums, "the bytes that came are those of the files");
}

// promise: TRA-35
#[test]
fn every_byte_gets_there_once_and_is_told_of_by_its_way() {
    every_byte_is_told_of("every_byte_gets_there_once_and_is_told_of_by_its_way", 0..16);
}

// promise: TRA-35
#[test]
#[ignore = "sixteen cases more: make test-long"]
fn so_it_is_of_other_files_and_settings() {
    every_byte_is_told_of("so_it_is_of_other_files_and_settings", 16..32);
}

// promise: TRA-35
#[test]
fn what_is_cached_is_read_where_it_lies_and_stays_registered_for_later_epochs() {
    let name = "what_is_cached_is_read_where_it_lies_and_stays_registered_for_later_epochs";
    let reported = telling(Scenario::new(&format!("emulate_ways::{name}")), name, || {
        let home = files(&[3 * MIB; 8]);
        let spec = EmulateSpec { cache: Cache::Warm, epochs: 5, ..spec(home.path(), PathKind::Mapped) };
        let record = record(&spec);
        let path = &record.path;
        assert_eq!((path.ran.as_str(), path.destination.as_str()), ("mapped", "gpu:0"));
        let bytes = path.mapped_bytes + path.staged_bytes;
        assert_eq!(bytes, assert_exact(&record));
        let mapped = path.mapped.as_ref().unwrap();
        // What a system that gives memory back took out of the cache meanwhile is read another way.
        let registrations = if path.staged_bytes == 0 { 8..=8 } else { 0..=8 };
        assert!(path.mapped_bytes > 0 && registrations.contains(&mapped.registrations), "{mapped:?}");
        assert_eq!((mapped.evictions, mapped.stale), (0, 0), "{mapped:?}");
        assert!(path.slots_pinned && record.training.unwrap().level == Level::Bytes);
        bytes
    });
    if let Some((books, bytes)) = reported {
        assert_eq!((bytes, books.over_gpus("to_device_bytes")), (5 * 24 * MIB as u64, bytes));
        assert_eq!(books.sum(), 5 * totals(&[3 * MIB; 8]).1);
    }
}

// promise: TRA-37
#[test]
fn files_that_are_not_kept_give_back_what_was_registered_of_them() {
    let name = "emulate_ways::files_that_are_not_kept_give_back_what_was_registered_of_them";
    let books = Scenario::new(name).settings("pin=200m").run(|| {
        let home = files(&[2 * MIB; 12]);
        let spec = EmulateSpec {
            cache: Cache::Warm,
            epochs: 3,
            pin_limit_bytes: Some(16 << 20),
            ..spec(home.path(), PathKind::Mapped)
        };
        let record = record(&spec);
        assert_exact(&record);
        let mapped = record.path.mapped.unwrap();
        assert!(mapped.registered_bytes_peak <= 16 << 20, "{mapped:?}");
        assert!(record.path.mapped_bytes > record.path.staged_bytes, "{mapped:?}");
    });
    if let Some(books) = books {
        assert!(books.calls("cuMemHostRegister_v2") > 12);
    }
}

// promise: TRA-35
#[test]
fn what_the_system_will_not_pin_goes_through_slots_and_is_told() {
    let name = "emulate_ways::what_the_system_will_not_pin_goes_through_slots_and_is_told";
    Scenario::new(name).settings("read_only=0,fail=cuMemHostRegister_v2:5+:2").run(|| {
        let home = files(&[3 * MIB; 4]);
        let record = record(&EmulateSpec { cache: Cache::Warm, ..spec(home.path(), PathKind::Mapped) });
        let path = &record.path;
        assert_eq!((path.mapped_bytes, path.staged_bytes), (0, assert_exact(&record)));
        assert!(path.reason.as_ref().unwrap().contains("refused to pin"), "{path:?}");
    });
}

// promise: TRA-37
#[test]
#[ignore = "seconds of processor time: make test-long, make test-gpu"]
fn a_run_that_is_stopped_tells_of_every_byte_that_got_there() {
    for (n, path) in PATHS.into_iter().enumerate() {
        let name = "a_run_that_is_stopped_tells_of_every_byte_that_got_there";
        let scenario = Scenario::new(&format!("emulate_ways::{name}")).settings("gpus=2,delay_us=300");
        let scenario = scenario.variable("FOREBAY_TEST_WAY", n.to_string());
        let reported = telling(scenario, name, || {
            let path = PATHS[std::env::var("FOREBAY_TEST_WAY").unwrap().parse::<usize>().unwrap()];
            let home = files(&[2 * MIB + 777; 12]);
            let spec = EmulateSpec {
                cache: if path == PathKind::Mapped { Cache::Warm } else { Cache::Allow },
                epochs: 5000,
                destination: "gpu:0,1".into(),
                ..spec(home.path(), path)
            };
            let outcome = watched(&spec, |p| p.epoch > 1 || p.step > 1).unwrap();
            assert!(outcome.failure.is_none() && outcome.record.result.interrupted);
            assert!(outcome.record.warnings.iter().any(|w| w.id == "interrupted"));
            let training = outcome.record.training.as_ref().unwrap();
            assert!(training.samples > 0 && !training.epochs.is_empty());
            assert_eq!(of_ways(&outcome.record.path), training.read_bytes);
            training.read_bytes
        });
        if is_inside() {
            return;
        }
        if let Some((books, bytes)) = reported {
            let looks = if path == PathKind::Gds { 2 * (256 << 10) } else { 0 };
            assert_eq!(books.over_gpus("to_device_bytes") + books.by_cufile() - looks, bytes, "{path:?}");
        }
    }
}

// promise: TRA-36
#[test]
fn what_cufile_did_is_what_the_record_says() {
    let name = "emulate_ways::what_cufile_did_is_what_the_record_says";
    if on_real_gpu() {
        return eprintln!("skipped {name}: modes that only the stand-in has");
    }
    // Aligned files go direct as a whole; of others the tails don't.
    for (way, tail, ran) in
        [("nvfs", 0, "gds"), ("p2p", 0, "gds"), ("nvfs", 100, "gds-mixed"), ("compat", 0, "")]
    {
        if is_inside() && std::env::var("FOREBAY_TEST_WAY").unwrap() != format!("{way},{tail},{ran}") {
            continue;
        }
        Scenario::new(name)
            .variable("FOREBAY_STUB_CUFILE", format!("mode={way}"))
            .variable("FOREBAY_TEST_WAY", format!("{way},{tail},{ran}"))
            .run(|| {
                let reported = std::env::var("FOREBAY_TEST_WAY").unwrap();
                let words: Vec<&str> = reported.split(',').collect();
                let home = files(&[3 * MIB + words[1].parse::<usize>().unwrap(); 4]);
                let compat = EmulateSpec { cache: Cache::Auto, ..spec(home.path(), PathKind::Gds) };
                let strict = EmulateSpec { allow_compat: false, require_direct: true, ..compat.clone() };
                let outcome = watched(&strict, |_| false);
                match words[0] {
                    "compat" => {
                        let error = outcome.unwrap_err();
                        assert_eq!(error.kind, Kind::Machine);
                        assert!(error.next.contains("‹allow_compat›"), "{error}");
                        return;
                    }
                    _ if words[2] == "gds" => {
                        let record = outcome.unwrap().record;
                        assert_eq!(record.path.direct_bytes, assert_exact(&record));
                        assert_eq!(record.path.ran, "gds");
                        assert_eq!(record.path.engine, "cufile");
                    }
                    _ => {
                        // cuFile wasn't allowed to fall back, and says so of the first tail.
                        assert!(matches!(failure(outcome).kind, Kind::Run | Kind::Check));
                    }
                }
                let record = record(&EmulateSpec { allow_compat: true, ..compat });
                assert_exact(&record);
                assert_eq!(record.path.ran, words[2]);
                let cufile = record.cufile.as_ref().unwrap();
                assert!(cufile.buffers_registered && cufile.gpus.is_some(), "{cufile:?}");
                assert_eq!(cufile.unaligned_ios > 0, words[1] != "0");
                if words[2] == "gds-mixed" {
                    assert!(record.path.direct_bytes > 0 && record.path.compat_bytes > 0);
                    assert!(record.warnings.iter().any(|w| w.id == "gds_compat"));
                }
            });
    }
}

// promise: TRA-35
#[test]
fn auto_says_what_it_chose_and_why() {
    Scenario::new("emulate_ways::auto_says_what_it_chose_and_why").run(|| {
        let home = files(&[5 * MIB; 4]);
        let auto = spec(home.path(), PathKind::Auto);
        let warm = record(&EmulateSpec { cache: Cache::Warm, ..auto.clone() });
        assert_eq!((warm.path.requested.as_str(), warm.path.ran.as_str()), ("auto", "mapped"));
        assert!(warm.path.reason.as_ref().unwrap().starts_with("auto chose mapped (‹cache› warm)"));
        assert!(warm.path.mapped_bytes > 0);
        assert_eq!(warm.path.mapped_bytes + warm.path.staged_bytes, assert_exact(&warm));
        let parsed = record(&EmulateSpec { cache: Cache::Warm, level: Level::Parse, ..auto.clone() });
        assert_eq!(parsed.path.staged_bytes, assert_exact(&parsed));
        let reason = parsed.path.reason.unwrap();
        assert!(reason.starts_with("auto chose bounce: the host checks samples on their way"), "{reason}");
        let past = record(&EmulateSpec { cache: Cache::Bypass, ..auto.clone() });
        assert_eq!((past.path.ran.as_str(), past.path.staged_bytes), ("bounce", assert_exact(&past)));
        let strict = EmulateSpec { require_direct: true, cache: Cache::Auto, ..auto };
        let error = watched(&strict, |_| false).unwrap_err();
        assert_eq!(error.kind, Kind::Machine);
        assert!(error.asked.contains("‹require_direct›"), "{error}");
    });
}

// promise: TRA-36
#[test]
fn paths_past_the_host_refuse_what_the_host_must_see() {
    Scenario::new("emulate_ways::paths_past_the_host_refuse_what_the_host_must_see").run(|| {
        CudaDevice::open(0).unwrap();
        let home = files(&[2 * MIB; 2]);
        for path in [PathKind::Mapped, PathKind::Gds] {
            let asked = spec(home.path(), path);
            let parquet = Workload { format: "parquet".into(), ..asked.workload.clone() };
            let source = vec![path_of(home.path(), 0).display().to_string()];
            let wrong = [
                EmulateSpec { level: Level::Parse, ..asked.clone() },
                EmulateSpec { workload: parquet, ..asked.clone() },
                EmulateSpec { destination: "host".into(), allow_compat: false, ..asked.clone() },
                EmulateSpec { data: vec!["model:d7-ps1010".into()], ..asked.clone() },
            ];
            for spec in wrong {
                let error = watched(&spec, |_| false).unwrap_err();
                assert_eq!(error.kind, Kind::Request, "{error}");
            }
            let error = watched(&EmulateSpec { data: source, ..asked }, |_| false).unwrap_err();
            assert!(matches!(error.kind, Kind::Request | Kind::Machine), "{error}");
        }
    });
}

// promise: TRA-37
#[test]
fn a_gpu_without_room_ends_every_way() {
    for (n, way) in ["mapped", "gds"].into_iter().enumerate() {
        let scenario = Scenario::new("emulate_ways::a_gpu_without_room_ends_every_way").settings("memory=2m");
        scenario.variable("FOREBAY_TEST_WAY", n.to_string()).run(|| {
            let path = [PathKind::Mapped, PathKind::Gds]
                [std::env::var("FOREBAY_TEST_WAY").unwrap().parse::<usize>().unwrap()];
            let home = files(&[3 * MIB; 4]);
            let error = failure(watched(&spec(home.path(), path), |_| false));
            assert!(error.next.contains("--prefetch"), "{way}: {error}");
        });
        if is_inside() {
            return;
        }
    }
}

const WARM_UPS: u32 = 4;

// promise: TRA-37
#[test]
#[ignore = "ten seconds of processor time: make test-long, make test-gpu"]
fn emulated_runs_give_back_all_that_they_took() {
    Scenario::new("emulate_ways::emulated_runs_give_back_all_that_they_took").run(|| {
        for path in [PathKind::Bounce, PathKind::Mapped, PathKind::Gds]
            .into_iter()
            .filter(|p| Paths::check(*p, &"a file", &SourceMedium::file()).is_ok())
        {
            let once = || once(path);
            // A real driver opens some descriptors when it first has so many threads at once, and keeps them.
            (0..WARM_UPS).for_each(|_| once());
            let first = held();
            (0..2 * WARM_UPS).for_each(|_| once());
            assert_no_more_than(&first, path);
        }
    });
}
