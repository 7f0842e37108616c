//! `--data model:NAME`: accelerators fed by a modelled drive, without content and without a clock.

use super::{EmulateOutcome, EmulateProgress};
use forebay_bench::{Observer, VirtualRun};
use forebay_io::wall_seconds;
use forebay_model::device::DriveModel;
use forebay_model::job::{JobSpec, PathKind};
use forebay_model::record::*;
use forebay_model::training::simulate::{file_sizes, simulate, Setup, Simulated};
use forebay_model::training::EmulateSpec;
use forebay_model::units::BYTES_PER_GIB;
use forebay_model::{stats, warnings, Error};
use forebay_storage::{Ends, Paths, Uri};

/// Defaults in virtual time: 128 MiB in flight, which keeps several of the fastest modelled drives busy.
const WORKERS: u32 = 4;
const DEPTH: u32 = 32;
const IO_BYTES: u64 = 1 << 20;
/// Least number of steps that the rules require of a data set.
const STEPS_LEAST: u64 = 500;
/// Besides those that virtual time never fills.
const NULL_FIELDS: &[&str] = &[
    "result.series[].latency_us_p99",
    "result.series[].cores_busy",
    "result.summary.throughput_gib_s_sd",
    "result.summary.throughput_gib_s_ci95",
    "training.headroom.cores_busy",
    "training.headroom.workers_busy_pct",
    "training.memory_bytes.per_accelerator",
    "training.memory_bytes.rss",
    "training.start_to_first_step_s",
];

/// The drive, where the data is one without content.
pub(crate) fn model_of(spec: &EmulateSpec) -> Result<Option<DriveModel>, Error> {
    let [data] = spec.data.as_slice() else { return Ok(None) };
    let uri = Uri::parse(data)?;
    let alone = uri.timed().filter(|_| uri.parts().is_empty());
    alone.map(DriveModel::parse).transpose()
}

/// Plays `spec` on `model`. `has_others`: hosts of an MPI run, which virtual time knows none of.
pub(crate) fn run(
    spec: &EmulateSpec,
    model: &DriveModel,
    command: Vec<String>,
    observer: &mut dyn Observer<EmulateProgress>,
    has_others: bool,
) -> Result<EmulateOutcome, Error> {
    if has_others {
        return Err(Error::request(
            format!("--data {} on several hosts", spec.data.join(" ")),
            "virtual time can't be shared by several hosts",
            "all accelerators in one process, without mpirun",
        ));
    }
    if spec.decode {
        let asked = format!("--decode on {}", spec.data.join(" "));
        return Err(Error::request(
            asked,
            "a modelled drive has no content",
            "model:NAME?over=DIR, or a folder",
        ));
    }
    if let Some(path) = Paths::find(spec.path).filter(|path| path.ends() == Ends::Gpu) {
        let asked = format!("‹path› {} from {}", path.name(), spec.data.join(" "));
        return Err(Error::request(
            asked,
            "a modelled drive has no content",
            "model:NAME?over=DIR, or a folder",
        ));
    }
    let started = wall_seconds();
    let setup = setup_of(spec)?;
    let played = simulate(spec, model, &setup, &mut || !observer.stop())?;
    if played.interrupted && played.training.epochs.is_empty() {
        return Err(Error::run("the simulation", "was stopped before its first step", "fewer --steps"));
    }
    Ok(EmulateOutcome { record: record(spec, model, &setup, played, command, started), failure: None })
}

/// Files as the workload draws them: so many as were asked for, else as many as the rules want.
fn setup_of(spec: &EmulateSpec) -> Result<Setup, Error> {
    let workload = &spec.workload;
    let steps = spec.steps_max.map_or(STEPS_LEAST, u64::from);
    let samples = steps * u64::from(workload.batch) * u64::from(spec.ranks);
    let wanted = match workload.files {
        0 => samples.div_ceil(u64::from(workload.samples_per_file)).next_multiple_of(u64::from(spec.ranks)),
        files => u64::from(files),
    };
    let files = u32::try_from(wanted).ok().filter(|files| *files <= 1 << 27).ok_or_else(|| {
        Error::request(
            format!("--accelerators {}", spec.ranks),
            format!("{wanted} files are too many to simulate"),
            "fewer --steps",
        )
    })?;
    Ok(Setup {
        files: file_sizes(workload, files, spec.seed),
        in_flight: spec.workers.unwrap_or(WORKERS).saturating_mul(spec.depth.unwrap_or(DEPTH)),
        io_bytes: spec.io_bytes.unwrap_or(IO_BYTES),
    })
}

fn record(
    spec: &EmulateSpec,
    model: &DriveModel,
    setup: &Setup,
    played: Simulated,
    command: Vec<String>,
    started: u64,
) -> RunRecord {
    let run = VirtualRun {
        model,
        job: job_of(spec, setup),
        path: spec.path,
        free: "the path and the client cost",
        real: "a real source",
        result: result_of(spec, &played),
        missing: VirtualRun::no_machine(NULL_FIELDS),
    };
    let mut record = RunRecord { training: Some(played.training), ..run.record(command, started) };
    warnings::add(&mut record);
    record
}

fn job_of(spec: &EmulateSpec, setup: &Setup) -> Job {
    Job {
        source: spec.data.join(" "),
        pattern: if spec.workload.file_shuffle { "random" } else { "sequential" }.into(),
        direct: false,
        data_bytes: setup.files.iter().sum(),
        queues: spec.workers.unwrap_or(WORKERS),
        spec: JobSpec {
            sources: spec.data.clone(),
            path: spec.path,
            io_bytes: setup.io_bytes,
            workers: spec.workers.unwrap_or(WORKERS),
            depth: spec.depth.unwrap_or(DEPTH),
            passes: Some(spec.epochs),
            files: Some(setup.files.len() as u32),
            seed: spec.seed,
            ..JobSpec::default()
        },
    }
}

fn result_of(spec: &EmulateSpec, played: &Simulated) -> RunResult {
    let per = |amount: f64| if played.seconds > 0.0 { amount / played.seconds } else { 0.0 };
    let repeat = Repeat {
        seconds: played.seconds,
        bytes: played.bytes,
        ios: played.ios,
        throughput_gib_s: per(played.bytes as f64 / BYTES_PER_GIB),
        iops: per(played.ios as f64),
        latency_us: played.read.summary(),
        ..Repeat::default()
    };
    let target = TargetResult {
        target: spec.data.join(" "),
        path: PathKind::in_host_memory().name().into(),
        bytes: played.bytes,
        ios: played.ios,
        ..TargetResult::default()
    };
    RunResult {
        seconds: played.seconds,
        bytes: played.bytes,
        ios: played.ios,
        read_bytes: played.bytes,
        throughput_gib_s: repeat.throughput_gib_s,
        iops: repeat.iops,
        latency_us: repeat.latency_us.clone(),
        histogram: played.read.encode(),
        summary: Summary::from_repeats(std::slice::from_ref(&repeat), stats::Stop::Counted),
        series: played.series.clone(),
        targets: vec![target],
        repeats: vec![repeat],
        interrupted: played.interrupted,
        ..RunResult::default()
    }
    .in_one_direction()
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_model::training::Workload;

    struct Nobody;

    impl Observer<EmulateProgress> for Nobody {
        fn progress(&mut self, _: &EmulateProgress) {}

        fn stop(&mut self) -> bool {
            false
        }
    }

    fn spec(data: &str) -> EmulateSpec {
        let workload = Workload {
            name: "unet3d".into(),
            format: "npz".into(),
            batch: 7,
            compute_s: 0.323,
            record_bytes: 146_600_628.0,
            record_bytes_stdev: 68_341_808.0,
            samples_per_file: 1,
            au_pct_min: 90.0,
            ..Workload::default()
        };
        let steps_max = Some(30);
        EmulateSpec {
            workload,
            data: vec![data.into()],
            read_threads: 4,
            steps_max,
            ..EmulateSpec::default()
        }
    }

    // promise: TRA-34
    #[test]
    fn a_modelled_drive_feeds_as_many_accelerators_as_its_bandwidth_allows() {
        let au = |accelerators| {
            let spec = EmulateSpec { accelerators, ranks: accelerators, ..spec("model:d7-ps1010") };
            let outcome = super::super::run_emulation(&spec, Vec::new(), &mut Nobody, None).unwrap();
            assert_eq!(outcome.record.origin, "simulated");
            assert!(outcome.record.warnings.iter().any(|w| w.id == "simulated"));
            assert!(outcome.record.missing.contains_key("result.cpu"));
            outcome.record.training.unwrap().au_pct.unwrap()
        };
        // 14.5 GB/s at 3.18 GB/s each: four, not five.
        assert!(au(4) > 90.0, "{}", au(4));
        assert!(au(6) < 85.0, "{}", au(6));
    }

    #[test]
    fn content_and_folders_are_no_virtual_time_and_hosts_are_refused() {
        assert!(model_of(&spec("/data")).unwrap().is_none());
        assert!(model_of(&spec("model:d7-ps1010?over=/data")).unwrap().is_none());
        assert!(model_of(&spec("model:no-such-drive")).is_err());
        let model = model_of(&spec("model:d7-ps1010")).unwrap().unwrap();
        let error = run(&spec("model:d7-ps1010"), &model, Vec::new(), &mut Nobody, true).unwrap_err();
        assert!(error.found.contains("several hosts"), "{error}");
    }
}
