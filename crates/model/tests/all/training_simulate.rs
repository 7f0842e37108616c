//! Emulated runs in virtual time against closed forms: what a supply of a known rate can feed, and no more.

use forebay_model::device::DriveModel;
use forebay_model::training::simulate::{file_sizes, simulate, Setup, Simulated};
use forebay_model::training::{EmulateSpec, Loader, RuleSet, Workload};
use forebay_model::units::BYTES_PER_GIB as GIB;
use proptest::prelude::*;

/// A drive that is never the limit.
const FAST: &str = "gen5-ideal?drives=64&latency_us=1";

fn spec(loader: Loader, batch: u32, record_bytes: u32, samples_per_file: u32, ranks: u32) -> EmulateSpec {
    let workload = Workload {
        name: "w".into(),
        loader,
        format: "raw".into(),
        batch,
        compute_s: 0.01,
        record_bytes: f64::from(record_bytes),
        samples_per_file,
        computation_threads: 1,
        au_pct_min: 90.0,
        file_shuffle: true,
        ..Workload::default()
    };
    EmulateSpec {
        workload,
        rules: RuleSet::V10,
        data: vec!["model:x".into()],
        accelerators: ranks,
        ranks,
        read_threads: 4,
        epochs: 1,
        ..EmulateSpec::default()
    }
}

/// Files for `steps` steps of all ranks.
fn files_for(spec: &EmulateSpec, steps: u32) -> Vec<u64> {
    let samples = u64::from(steps) * u64::from(spec.workload.batch) * u64::from(spec.ranks);
    let per_file = u64::from(spec.workload.samples_per_file);
    let files = samples.div_ceil(per_file).next_multiple_of(u64::from(spec.ranks));
    vec![per_file * spec.workload.record_bytes as u64; files as usize]
}

fn play(spec: &EmulateSpec, model: &str, files: Vec<u64>) -> Simulated {
    let setup = Setup { files, in_flight: 64, io_bytes: 256 << 10 };
    simulate(spec, &DriveModel::parse(model).unwrap(), &setup, &mut || true).unwrap()
}

fn au(simulated: &Simulated) -> f64 {
    simulated.training.au_pct.unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Supply-limited and compute-limited alike: min(1, computation / time that a step's bytes take).
    // promise: TRA-34
    #[test]
    fn a_throttled_supply_gives_the_utilisation_of_arithmetic(
        tensorflow: bool, batch in 1u32..8, record_bytes in 100_000u32..2_000_000, samples_per_file in 1u32..6,
        ranks in 1u32..6, share in 0.1f64..3.0,
    ) {
        let loader = if tensorflow { Loader::TensorFlow } else { Loader::PyTorch };
        let mut spec = spec(loader, batch, record_bytes, samples_per_file, ranks);
        let step_bytes = f64::from(batch) * f64::from(record_bytes) * f64::from(ranks);
        // `share` of what the accelerators could take.
        let rate = share * step_bytes / spec.workload.compute_s;
        prop_assume!(rate < 50e9);
        spec.supply_gib_s = Some(rate / GIB);
        let steps = 300;
        spec.steps_max = Some(steps);
        let found = play(&spec, FAST, files_for(&spec, steps));
        // Batches read ahead in the first step, whose wait isn't counted, are the only way to be better.
        let ahead = f64::from(spec.batches_ahead() + 1) / f64::from(steps - 1);
        let right = 100.0 * share.min(1.0);
        prop_assert!(au(&found) <= right + 100.0 * ahead, "{} for {}", au(&found), right);
        prop_assert!(au(&found) >= right * (1.0 - ahead) - 0.5, "{} for {}", au(&found), right);
    }

    // promise: TRA-34
    #[test]
    fn every_byte_is_read_once_and_every_sample_counted(
        tensorflow: bool, batch in 1u32..8, record_bytes in 1000u32..900_000, samples_per_file in 1u32..20,
        ranks in 1u32..6, epochs in 1u32..3,
    ) {
        let loader = if tensorflow { Loader::TensorFlow } else { Loader::PyTorch };
        let mut spec = spec(loader, batch, record_bytes, samples_per_file, ranks);
        spec.epochs = epochs;
        // As many files as make full batches for all.
        let files = vec![u64::from(samples_per_file) * u64::from(record_bytes); (batch * ranks) as usize];
        let found = play(&spec, "d7-ps1010", files.clone());
        let each = u64::from(epochs);
        prop_assert_eq!(found.bytes, each * files.iter().sum::<u64>());
        prop_assert_eq!(found.samples(), each * files.len() as u64 * u64::from(samples_per_file));
        prop_assert_eq!(found.training.epochs.len() as u32, epochs);
        prop_assert!(found.seconds > 0.0 && found.ios == found.read.count());
    }
}

trait Samples {
    fn samples(&self) -> u64;
}

impl Samples for Simulated {
    fn samples(&self) -> u64 {
        self.training.samples
    }
}

#[test]
fn accelerators_that_never_wait_are_fully_used() {
    let spec = EmulateSpec { steps_max: Some(50), ..spec(Loader::PyTorch, 4, 1000, 1, 8) };
    let found = play(&spec, FAST, files_for(&spec, 50));
    // Batches of the first step come at different times, and the barrier after it counts: a drive's latency.
    assert!(au(&found) > 99.99, "{}", au(&found));
    // But for the first wait, a step takes as long as the computation.
    assert!((found.seconds - 0.5).abs() < 0.001, "{}", found.seconds);
    assert!(found.training.passes && found.utilisation < 0.01);
}

// promise: TRA-34
#[test]
fn a_drives_bandwidth_is_what_a_starved_run_gets() {
    // Eight 3D U-Nets on H100s want 24 GB/s; the drive has 14.5.
    let mut spec = spec(Loader::PyTorch, 7, 146_600_628, 1, 8);
    spec.workload.compute_s = 0.323;
    spec.steps_max = Some(20);
    let files = vec![146_600_628; 7 * 8 * 20];
    let drive = DriveModel::parse("d7-ps1010").unwrap();
    let found = play(&spec, "d7-ps1010", files);
    let step_bytes = 8.0 * 7.0 * 146_600_628.0;
    let right = 100.0 * 0.323 * drive.read_bandwidth_bytes_s / step_bytes;
    assert!((au(&found) / right - 1.0).abs() < 0.05, "{} for {right}", au(&found));
    assert!(found.utilisation > 0.95 && !found.training.passes);
    let waited = found.training.waited.storage_s;
    let all = 8.0 * found.seconds;
    let computed = 8.0 * 20.0 * 0.323;
    assert!((waited + computed + found.training.waited.barrier_s) / all > 0.99, "{waited} of {all}");
}

#[test]
fn equal_seeds_give_equal_runs_and_bad_setups_are_refused() {
    let spec = spec(Loader::TensorFlow, 4, 100_000, 5, 3);
    let run = || play(&spec, "d7-ps1010", files_for(&spec, 30));
    assert_eq!(run().training, run().training);
    let model = DriveModel::parse("d7-ps1010").unwrap();
    let refused = |in_flight, io_bytes, files: usize| {
        simulate(&spec, &model, &Setup { files: vec![1 << 20; files], in_flight, io_bytes }, &mut || true)
            .unwrap_err()
    };
    assert!(refused(0, 4096, 30).asked.contains("simulation"));
    assert!(refused(1, 0, 30).asked.contains("simulation"));
    assert!(refused(1, 4096, 1).found.contains("less than a batch"));
    let huge = Setup { files: vec![u64::MAX >> 30; 30], in_flight: 1, io_bytes: 1 };
    assert!(simulate(&spec, &model, &huge, &mut || true).unwrap_err().found.contains("billion"));
}

#[test]
fn fewer_files_than_ranks_and_files_of_any_size_come_to_an_end() {
    let spec = spec(Loader::TensorFlow, 2, 100_000, 40, 7);
    let found = play(&spec, "d7-ps1010", vec![0, 1, 4_000_000]);
    assert_eq!(found.training.samples, u64::from(found.training.steps) * 2 * 7);
}

#[test]
fn a_play_that_is_ended_keeps_the_epochs_until_then() {
    let mut spec = spec(Loader::PyTorch, 4, 1_000_000, 1, 4);
    spec.epochs = 1000;
    let setup = Setup { files: files_for(&spec, 100), in_flight: 64, io_bytes: 64 << 10 };
    let mut left = 3;
    let mut goes_on = || {
        left -= 1;
        left > 0
    };
    let ended = simulate(&spec, &DriveModel::parse(FAST).unwrap(), &setup, &mut goes_on).unwrap();
    assert!(ended.interrupted && !ended.training.epochs.is_empty() && ended.training.epochs.len() < 1000);
    assert!(ended.ios <= 4 << 16);
}

#[test]
fn file_sizes_have_the_workloads_mean_and_spread() {
    let mut workload = spec(Loader::PyTorch, 7, 146_600_628, 1, 1).workload;
    assert_eq!(file_sizes(&workload, 3, 1), [146_600_628; 3]);
    workload.record_bytes_stdev = 68_341_808.0;
    let sizes = file_sizes(&workload, 20_000, 1);
    let mean = sizes.iter().sum::<u64>() as f64 / 20_000.0;
    let square = sizes.iter().map(|b| (*b as f64 - mean).powi(2)).sum::<f64>() / 20_000.0;
    // Two independent sides, each with half the deviation: the product has 1 / sqrt(2) of it.
    assert!((mean / 146_600_628.0 - 1.0).abs() < 0.01, "{mean}");
    assert!(
        (square.sqrt() / (68_341_808.0 / std::f64::consts::SQRT_2) - 1.0).abs() < 0.03,
        "{}",
        square.sqrt()
    );
    assert_eq!(sizes, file_sizes(&workload, 20_000, 1));
    assert_ne!(sizes, file_sizes(&workload, 20_000, 2));
}
