//! Emulated runs over real files: what is read, what is computed from it, and what
//! happens when files aren't what they should be.

#[path = "emulate/data.rs"]
mod data;
#[path = "emulate/steps.rs"]
mod steps;

use data::{data, on_disk, tfrecord};
use forebay_bench::Observer;
use forebay_io::{Reactor, RingOptions};
use forebay_model::job::{Cache, Engine};
use forebay_model::training::{EmulateSpec, Level, Loader, OnError};
use forebay_model::units::BYTES_PER_GIB;
use forebay_model::Kind;
use forebay_training::{run_emulation, EmulateOutcome, EmulateProgress};

/// Calls `each` with every progress, and ends the run when it says so.
struct Watch<F: FnMut(&EmulateProgress) -> bool> {
    each: F,
    stop: bool,
}

impl<F: FnMut(&EmulateProgress) -> bool> Observer<EmulateProgress> for Watch<F> {
    fn progress(&mut self, progress: &EmulateProgress) {
        self.stop |= (self.each)(progress);
    }

    fn stop(&mut self) -> bool {
        self.stop
    }
}

fn quiet() -> impl Observer<EmulateProgress> {
    Watch { each: |_| false, stop: false }
}

fn played(spec: &EmulateSpec) -> EmulateOutcome {
    run_emulation(spec, vec!["test".into()], &mut quiet(), None).unwrap()
}

fn has_ring() -> bool {
    Reactor::with_ring(RingOptions::default()).is_ok()
}

fn training(outcome: &EmulateOutcome) -> &forebay_model::training::Training {
    outcome.record.training.as_ref().unwrap()
}

// promise: TRA-5
#[test]
fn every_byte_is_read_once_per_epoch_by_every_engine() {
    let data = data(12, 25, 30_000);
    for (cache, engine, workers) in [
        (Cache::Allow, Engine::Auto, 2),
        (Cache::Allow, Engine::Inline, 3),
        (Cache::Allow, Engine::Uring, 2),
        (Cache::Bypass, Engine::Auto, 2),
        (Cache::Bypass, Engine::Inline, 1),
    ] {
        if engine == Engine::Uring && !has_ring() {
            println!("skipped: io_uring is forbidden here");
            continue;
        }
        for (level, loader) in [(Level::Parse, Loader::TensorFlow), (Level::Bytes, Loader::PyTorch)] {
            let mut spec = EmulateSpec { cache, engine, workers: Some(workers), level, ..data.spec(25, 10) };
            spec.workload.loader = loader;
            (spec.accelerators, spec.ranks, spec.epochs) = (3, 3, 2);
            let outcome = played(&spec);
            assert!(outcome.failure.is_none(), "{:?}", outcome.failure);
            let training = training(&outcome);
            let case = format!("{cache:?} {engine:?} {level:?}");
            // 12 files × 25 samples for 3 ranks: 10 batches each, nothing left over.
            assert_eq!(training.samples, 2 * 300, "{case}");
            assert_eq!(training.read_bytes, 2 * data.bytes, "{case}");
            assert_eq!(outcome.record.result.bytes, 2 * data.bytes, "{case}");
            assert_eq!(
                training.epochs.iter().map(|e| (e.steps, e.read_bytes)).collect::<Vec<_>>(),
                [(10, data.bytes); 2]
            );
            if level == Level::Parse {
                assert_eq!(training.payload_bytes, 2 * 300 * 30_000, "{case}");
            }
            let past_cache = cache == Cache::Bypass && outcome.record.cache.policy != "memory";
            assert_eq!(outcome.record.job.direct, past_cache, "{case}");
            let path = &outcome.record.path;
            let (direct, staged) = if past_cache { (2 * data.bytes, 0) } else { (0, 2 * data.bytes) };
            assert_eq!((path.direct_bytes, path.staged_bytes), (direct, staged), "{case}");
            assert!(path.slot_bytes > 0 && !path.slot_pages.is_empty(), "{case}");
        }
    }
}

/// The worker that ends an epoch still holds its stream when the next one begins.
// promise: TRA-12
#[test]
fn epochs_follow_each_other_without_a_pause() {
    let data = data(4, 1, 3000);
    for level in [Level::Parse, Level::Bytes] {
        let mut spec = EmulateSpec { level, epochs: 300, workers: Some(4), ..data.spec(1, 1) };
        spec.workload.compute_s = 0.0;
        (spec.accelerators, spec.ranks) = (2, 2);
        let outcome = played(&spec);
        assert!(outcome.failure.is_none(), "{:?}", outcome.failure);
        let training = training(&outcome);
        assert_eq!((training.samples, training.epochs.len()), (1200, 300));
        assert_eq!(training.read_bytes, 300 * data.bytes);
    }
}

// promise: TRA-5
#[test]
fn steps_that_are_fewer_read_no_more_than_they_need() {
    let data = data(8, 100, 10_000);
    let mut spec = data.spec(100, 10);
    (spec.steps_max, spec.level) = (Some(2), Level::Bytes);
    let outcome = played(&spec);
    let training = training(&outcome);
    assert_eq!((training.samples, training.epochs[0].steps), (20, 2));
    // Two files side by side, ten records of each, up to the next block.
    assert!(training.read_bytes < 2 * (10 * 10_100 + 3 * 4096), "{}", training.read_bytes);
}

// promise: TRA-7
#[test]
fn a_damaged_record_ends_the_run_and_is_named_with_both_checksums() {
    let data = data(4, 10, 5_000);
    let mut bytes = std::fs::read(data.file(2)).unwrap();
    let record = bytes.len() / 10;
    bytes[3 * record + 1000] ^= 1;
    std::fs::write(data.file(2), &bytes).unwrap();
    let spec = EmulateSpec { workers: Some(1), ..data.spec(10, 5) };
    let error = match run_emulation(&spec, vec![], &mut quiet(), None) {
        Ok(outcome) => outcome.failure.unwrap(),
        Err(error) => error,
    };
    assert_eq!(error.kind, Kind::Run);
    assert!(error.asked.ends_with("img_002.tfrecord"), "{error}");
    let words = ["record 3", &format!("at {}", 3 * record), "CRC32C", "is stored beside it"];
    assert!(words.iter().all(|word| error.found.contains(word)), "{error}");
    assert!(
        error.next.contains("--on-error skip") && !error.next.contains("rm "),
        "no manifest says that these files may go: {error}"
    );
}

// promise: TRA-7
#[test]
fn what_is_damaged_is_left_out_where_that_was_asked_for() {
    let data = data(4, 10, 5_000);
    let mut bytes = std::fs::read(data.file(2)).unwrap();
    let record = bytes.len() / 10;
    bytes[3 * record + 1000] ^= 1;
    std::fs::write(data.file(2), &bytes).unwrap();
    std::fs::write(data.file(1), &bytes[..2 * record + 7]).unwrap();
    std::fs::write(data.file(3), b"").unwrap();
    let spec = EmulateSpec { on_error: OnError::Skip, ..data.spec(10, 5) };
    let outcome = played(&spec);
    assert!(outcome.failure.is_none());
    let training = training(&outcome);
    // One of file 2, eight of file 1, ten of file 3.
    assert_eq!((training.skipped.count, training.samples, training.epochs[0].steps), (19, 21, 8));
    let said = training.skipped.examples.join("\n");
    for name in ["img_001", "img_002", "img_003"] {
        assert!(said.contains(name), "{said}");
    }
    assert!(outcome.record.warnings.iter().any(|w| w.id == "skipped"));
}

// promise: TRA-7
#[test]
fn a_file_that_is_removed_midway_is_named_and_what_was_measured_is_kept() {
    let data = data(6, 10, 5_000);
    let gone = data.file(5);
    let mut spec = data.spec(10, 10);
    (spec.epochs, spec.interval_s, spec.workload.compute_s) = (4000, 0.01, 0.005);
    let mut watch = Watch {
        each: |progress: &EmulateProgress| {
            if progress.epoch > 3 {
                let _ = std::fs::remove_file(&gone);
            }
            false
        },
        stop: false,
    };
    let outcome = run_emulation(&spec, vec![], &mut watch, None).unwrap();
    let failure = outcome.failure.as_ref().unwrap();
    assert!(failure.asked.ends_with("img_005.tfrecord") && failure.found.contains("gone"), "{failure}");
    let training = training(&outcome);
    assert!(!training.epochs.is_empty() && training.epochs.len() < 4000);
    assert!(training.epochs[0].steps == 6 && training.au_pct.is_some());
}

// promise: TRA-11
#[test]
fn a_run_that_is_stopped_keeps_what_was_measured() {
    let data = data(6, 10, 5_000);
    let mut spec = data.spec(10, 10);
    (spec.epochs, spec.interval_s, spec.workload.compute_s) = (1000, 0.02, 0.005);
    let mut watch = Watch { each: |progress: &EmulateProgress| progress.epoch > 2, stop: false };
    let outcome = run_emulation(&spec, vec![], &mut watch, None).unwrap();
    assert!(outcome.failure.is_none() && outcome.record.result.interrupted);
    assert!(training(&outcome).epochs.len() >= 2);
    assert!(outcome.record.warnings.iter().any(|w| w.id == "interrupted"));
}

// promise: TRA-8
#[test]
fn too_few_files_and_another_format_are_refused() {
    let data = data(3, 10, 100);
    let refused = |change: &dyn Fn(&mut EmulateSpec)| {
        let mut spec = data.spec(10, 10);
        change(&mut spec);
        let error = run_emulation(&spec, vec![], &mut quiet(), None).unwrap_err();
        assert_eq!(error.kind, Kind::Request, "{error}");
        error.to_string()
    };
    let few = refused(&|s| s.workload.files = 4);
    assert!(few.contains("there are 3: too few files"), "{few}");
    let small = refused(&|s| s.workload.batch = 31);
    assert!(small.contains("less than a batch"), "{small}");
    let other = refused(&|s| s.workload.format = "npz".into());
    assert!(other.contains("no *.npz file") && other.contains("3 *.tfrecord"), "{other}");
    let unknown = refused(&|s| s.workload.format = "tarball".into());
    assert!(unknown.contains("tfrecord") && unknown.contains("tarball"), "{unknown}");
    let engine = refused(&|s| s.engine = Engine::Map);
    assert!(engine.contains("--engine map") && engine.contains("uring"), "{engine}");
    let source = refused(&|s| s.data = vec!["nil:".into(), s.data[0].clone()]);
    assert!(source.contains("--data nil:") && source.contains("must be the only one"), "{source}");
    let nothing = refused(&|s| s.data = vec!["nil:".into()]);
    assert!(nothing.contains("--data nil:") && nothing.contains("no manifest"), "{nothing}");
}

// promise: TRA-8
#[test]
fn a_file_with_fewer_records_than_the_workload_says_is_told() {
    let data = data(4, 10, 1000);
    let error = match run_emulation(&data.spec(20, 10), vec![], &mut quiet(), None) {
        Ok(outcome) => outcome.failure.unwrap(),
        Err(error) => error,
    };
    assert!(error.found.contains("holds 10 records, not 20"), "{error}");
}

// promise: TRA-40
#[test]
fn accelerators_that_share_files_are_said_to_read_all_of_them() {
    let data = data(3, 20, 1000);
    let spec = |accelerators| EmulateSpec { accelerators, ranks: accelerators, ..data.spec(20, 5) };
    let warns = |outcome: &EmulateOutcome| outcome.record.warnings.iter().any(|w| w.id == "few_files");
    let (enough, few) = (played(&spec(3)), played(&spec(4)));
    assert!(!warns(&enough) && warns(&few), "{:?}", few.record.warnings);
    // Up to the last record that each of them takes.
    assert_eq!(training(&few).samples, 60);
    assert!(training(&few).read_bytes > 2 * data.bytes, "{}", training(&few).read_bytes);
}

/// Nothing comes faster than the supply, and an accelerator that takes twice of it waits.
// promise: TRA-3
#[test]
fn a_supply_is_kept_and_accelerators_wait_for_it() {
    let data = data(12, 10, 100_000);
    let mut spec = data.spec(10, 10);
    spec.workload.compute_s = 0.02;
    let bytes_per_s = 0.5 * (data.bytes as f64 / 12.0) / 0.02;
    spec.supply_gib_s = Some(bytes_per_s / BYTES_PER_GIB);
    let outcome = played(&spec);
    let training = training(&outcome);
    // A burst of 50 ms is in reserve once.
    assert!(outcome.record.result.seconds > data.bytes as f64 / bytes_per_s - 0.05);
    assert!(!training.passes && training.waited.storage_s > 0.0, "{training:?}");
    assert!(!training.headroom.client_limited && training.headroom.why.contains("limited to a rate"));
    assert!(outcome.record.warnings.iter().any(|w| w.id == "throttled_supply"));
}

/// Compares with the formula of v1.0 where batches arrive at a known rate: each step takes as long as its bytes.
// promise: TRA-3
#[test]
#[ignore = "judged by the clock: cargo test -p forebay-training --test all emulate:: -- --ignored, on a quiet machine"]
fn utilisation_is_right_where_the_supply_is_known() {
    let data = data(24, 10, 100_000);
    let batch_bytes = data.bytes as f64 / 24.0;
    for share in [0.5, 0.8, 2.0] {
        let mut spec = data.spec(10, 10);
        spec.workload.compute_s = 0.05;
        // Enough under way that a worker that a busy machine holds up loses no time of the supply's.
        (spec.io_bytes, spec.depth) = (Some(32 << 10), Some(128));
        // One accelerator that needs a batch in each 50 ms.
        spec.supply_gib_s = Some(share * batch_bytes / 0.05 / BYTES_PER_GIB);
        let expected = if share < 1.0 {
            // 23 steps after the first; batches arrive each 50 ms / share, the last step computes after the last one.
            let all = 24.0 * 0.05 / share + 0.05;
            100.0 * 23.0 * 0.05 / (all - (0.05 / share + 0.05))
        } else {
            100.0
        };
        // Other tests may take the processors for longer than the supply can wait; never does that make it faster.
        let mut seen = Vec::new();
        for _ in 0..5 {
            let outcome = played(&spec);
            let au = training(&outcome).au_pct.unwrap();
            println!("supply {share}: AU {au:.3}, expected {expected:.3}");
            assert!(au < expected + 0.5, "supply {share}: AU {au}, expected {expected}");
            assert!(!training(&outcome).headroom.client_limited);
            seen.push(au);
            if au > expected - 0.5 {
                break;
            }
        }
        assert!(
            seen.iter().any(|au| *au > expected - 0.5),
            "supply {share}: AU {seen:?}, expected {expected}"
        );
    }
}

// promise: TRA-39
#[test]
fn hundreds_of_accelerators_need_no_more_threads() {
    let data = data(600, 10, 500);
    let mut spec = data.spec(10, 2);
    (spec.accelerators, spec.ranks, spec.workload.compute_s) = (200, 200, 0.02);
    (spec.read_threads, spec.workers) = (3, Some(2));
    let outcome = played(&spec);
    let training = training(&outcome);
    assert_eq!((training.samples, training.epochs[0].steps), (6000, 15));
    assert!(training.au_pct.is_some());
    assert_eq!(outcome.record.job.spec.workers, 2);
}

// promise: TRA-12
#[test]
fn batches_stay_in_host_memory_until_their_step_takes_them() {
    let data = data(24, 10, 100_000);
    let mut spec = EmulateSpec { destination: "host".into(), ..data.spec(10, 10) };
    (spec.accelerators, spec.ranks, spec.epochs, spec.io_bytes) = (2, 2, 2, Some(64 << 10));
    let outcome = played(&spec);
    let (training, path) = (training(&outcome), &outcome.record.path);
    assert_eq!((training.samples, training.epochs[1].steps), (2 * 240, 12));
    assert_eq!((path.ran.as_str(), path.destination.as_str()), ("host", "host"));
    spec.path = forebay_model::job::PathKind::Gds;
    let refused = run_emulation(&spec, vec![], &mut quiet(), None).unwrap_err();
    assert!(refused.next.contains("bounce"), "{refused}");
}

/// An address space of so many bytes that begins with a manifest of files of one length.
fn listing(files: usize, file_bytes: usize, begin: usize, bytes: usize) -> Vec<u8> {
    let list = vec![file_bytes.to_string(); files].join(",");
    let text = format!(
        r#"{{"schema": "forebay.dataset/1", "workload": "test", "format": "tfrecord", "files": {files},
        "samples_per_file": 10, "record_bytes": 1000, "data_begin": {begin}, "file_bytes": [{list}]}}"#
    );
    let mut space = vec![0; bytes];
    space[..text.len()].copy_from_slice(text.as_bytes());
    space
}

// promise: TRA-13
#[test]
fn a_data_set_packed_in_one_source_is_read_through_it() {
    let content = tfrecord(10, 3_000);
    let begin = 1usize << 20;
    let each = content.len().next_multiple_of(4096);
    let manifest = |files, bytes| listing(files, content.len(), begin, bytes);
    let mut space = manifest(6, begin + 6 * each);
    for file in 0..6 {
        space[begin + file * each..][..content.len()].copy_from_slice(&content);
    }
    let dir = tempfile::tempdir_in(on_disk()).unwrap();
    let path = dir.path().join("space");
    let data = data(1, 1, 1);
    let spec = |uri: String| EmulateSpec { data: vec![uri], epochs: 2, ..data.spec(10, 10) };
    let model = format!("model:d7-ps1010?time=real&over={}", path.display());
    for (uri, engine, origin) in [
        (path.display().to_string(), Engine::Auto, "measured"),
        (path.display().to_string(), Engine::Map, "measured"),
        (format!("stripe:?chunk=64k&m={}", path.display()), Engine::Uring, "measured"),
        (model, Engine::Auto, "simulated"),
    ] {
        if engine == Engine::Uring && !has_ring() {
            println!("skipped: io_uring is forbidden here");
            continue;
        }
        std::fs::write(&path, &space).unwrap();
        let outcome = played(&EmulateSpec { engine, ..spec(uri.clone()) });
        assert!(outcome.failure.is_none(), "{uri}: {:?}", outcome.failure);
        let training = training(&outcome);
        assert_eq!(
            (training.samples, training.read_bytes),
            (120, 12 * content.len() as u64),
            "{uri} {engine:?}"
        );
        assert_eq!(outcome.record.origin, origin, "{uri}");
    }
    space[begin + 2 * each + 100] ^= 1;
    std::fs::write(&path, &space).unwrap();
    let error = match run_emulation(&spec(path.display().to_string()), vec![], &mut quiet(), None) {
        Ok(outcome) => outcome.failure.unwrap(),
        Err(error) => error,
    };
    assert!(error.asked.contains("file 2 of") && error.found.contains("CRC32C"), "{error}");
    for (space, words) in [
        (manifest(600, begin + 6 * each), "lists files up to"),
        (vec![7; 2 << 20], "no manifest"),
        (vec![b'{'; 2 << 20], "no manifest"),
    ] {
        std::fs::write(&path, &space).unwrap();
        let refused =
            run_emulation(&spec(path.display().to_string()), vec![], &mut quiet(), None).unwrap_err();
        assert!(refused.kind == Kind::Request && refused.found.contains(words), "{refused}");
    }
}

// promise: TRA-13
#[test]
fn a_modelled_drive_paces_the_files_of_a_folder_and_is_said_to_be_none() {
    let data = data(16, 10, 200_000);
    let mut spec = data.spec(10, 10);
    spec.data = vec![format!("model:d7-ps1010?over={}", data.dir.path().display())];
    let outcome = played(&spec);
    assert_eq!(training(&outcome).samples, 160);
    assert_eq!(outcome.record.origin, "simulated");
    assert!(outcome.record.warnings.iter().any(|w| w.id == "simulated"));
}
