//! Emulated training into a GPU: every byte gets there, and batches stay until
//! their step.

use forebay_bench::Observer;
use forebay_model::job::Cache;
use forebay_model::training::{EmulateSpec, RuleSet, Workload};
use forebay_rigs::gpu::Scenario;
use forebay_training::{run_emulation, EmulateProgress};

struct Quiet;

impl Observer<EmulateProgress> for Quiet {
    fn progress(&mut self, _: &EmulateProgress) {}

    fn stop(&mut self) -> bool {
        false
    }
}

fn spec(folder: &std::path::Path) -> EmulateSpec {
    EmulateSpec {
        workload: Workload {
            name: "test".into(),
            format: "raw".into(),
            batch: 2,
            compute_s: 0.002,
            record_bytes: 300_000.0,
            samples_per_file: 1,
            ..Workload::default()
        },
        rules: RuleSet::V10,
        data: vec![folder.display().to_string()],
        accelerators: 2,
        ranks: 2,
        epochs: 2,
        read_threads: 2,
        prefetch: 2,
        io_bytes: Some(64 << 10),
        ..EmulateSpec::default()
    }
}

fn files(count: usize) -> tempfile::TempDir {
    let home = forebay_rigs::gpu::home();
    for n in 0..count {
        std::fs::write(home.path().join(format!("{n:02}.raw")), vec![n as u8; 300_000]).unwrap();
    }
    home
}

// promise: TRA-12
#[test]
fn samples_of_an_emulated_run_land_in_gpus() {
    let books = Scenario::new("emulate::samples_of_an_emulated_run_land_in_gpus").run(|| {
        let home = files(24);
        for cache in [Cache::Allow, Cache::Bypass] {
            let spec = EmulateSpec { destination: "gpu:0".into(), cache, ..spec(home.path()) };
            let outcome = run_emulation(&spec, vec!["test".into()], &mut Quiet, None).unwrap();
            assert!(outcome.failure.is_none(), "{:?}", outcome.failure);
            let training = outcome.record.training.unwrap();
            assert_eq!((training.samples, training.read_bytes), (48, 48 * 300_000));
            let path = &outcome.record.path;
            assert_eq!((path.ran.as_str(), path.destination.as_str()), ("bounce", "gpu:0"));
            assert_eq!((path.staged_bytes, path.direct_bytes), (48 * 300_000, 0));
        }
    });
    if let Some(books) = books {
        assert_eq!(books.to_device(0), 2 * 48 * 300_000);
    }
}

// promise: TRA-12
#[test]
fn accelerators_take_turns_at_gpus() {
    let books = Scenario::new("emulate::accelerators_take_turns_at_gpus").settings("gpus=2").run(|| {
        let home = files(24);
        let spec = EmulateSpec { destination: "gpu:0,1".into(), cache: Cache::Allow, ..spec(home.path()) };
        let outcome = run_emulation(&spec, vec!["test".into()], &mut Quiet, None).unwrap();
        assert!(outcome.failure.is_none(), "{:?}", outcome.failure);
    });
    if let Some(books) = books {
        assert_eq!((books.to_device(0), books.to_device(1)), (24 * 300_000, 24 * 300_000));
    }
}

// promise: TRA-12
#[test]
fn a_copy_that_fails_ends_the_run_and_is_named() {
    let settings = "fail=copy:9:700";
    Scenario::new("emulate::a_copy_that_fails_ends_the_run_and_is_named").settings(settings).run(|| {
        let home = files(24);
        let spec = EmulateSpec { destination: "gpu:0".into(), cache: Cache::Allow, ..spec(home.path()) };
        let error = match run_emulation(&spec, vec![], &mut Quiet, None) {
            Ok(outcome) => outcome.failure.unwrap(),
            Err(error) => error,
        };
        assert!(error.asked.contains("copy to gpu:0"), "{error}");
    });
}

#[test]
fn a_gpu_without_room_is_told() {
    Scenario::new("emulate::a_gpu_without_room_is_told").settings("memory=1m").run(|| {
        let home = files(24);
        let spec = EmulateSpec { destination: "gpu:0".into(), cache: Cache::Allow, ..spec(home.path()) };
        let error = match run_emulation(&spec, vec![], &mut Quiet, None) {
            Ok(outcome) => outcome.failure.unwrap(),
            Err(error) => error,
        };
        assert!(error.next.contains("--prefetch"), "{error}");
    });
}
