//! `--dir model:NAME`: the cache on a modelled drive, without content and without a clock.

use super::{no_entry, Done, RankDone};
use forebay_bench::{Observer, Outcome, Phase, Progress, VirtualRun};
use forebay_io::wall_seconds;
use forebay_model::device::DriveModel;
use forebay_model::job::{Op, PathKind};
use forebay_model::kvcache::record::Circumstance;
use forebay_model::kvcache::simulate::{simulate, Simulated};
use forebay_model::kvcache::KvSpec;
use forebay_model::record::*;
use forebay_model::series::Point;
use forebay_model::units::BYTES_PER_GIB as GIB;
use forebay_model::{stats, warnings, Error};
use forebay_storage::Uri;

/// Besides those that virtual time never fills.
const NULL_FIELDS: &[&str] = &[
    "result.series[].latency_us_mean",
    "result.series[].latency_us_p99",
    "result.series[].cores_busy",
    "result.summary.throughput_gib_s_sd",
    "result.summary.throughput_gib_s_ci95",
];

/// The drive, where the folder is one without content.
pub(super) fn model_of(spec: &KvSpec) -> Result<Option<DriveModel>, Error> {
    let uri = Uri::parse(&spec.dir)?;
    let Some(drive) = uri.timed() else { return Ok(None) };
    if !uri.parts().is_empty() {
        let asked = format!("--dir {}", spec.dir);
        return Err(Error::request(
            asked,
            "a cache is kept in a folder, or on a drive without content",
            "--dir DIR",
        ));
    }
    DriveModel::parse(drive).map(Some)
}

pub(super) fn run(
    spec: &KvSpec,
    model: &DriveModel,
    command: Vec<String>,
    observer: &mut dyn Observer,
) -> Result<Done, Error> {
    if spec.verify {
        let asked = format!("--verify on {}", spec.dir);
        return Err(Error::request(asked, "a modelled drive has no content", "--dir DIR"));
    }
    if spec.hosts > 1 {
        return Err(Error::request(
            format!("--dir {} on several hosts", spec.dir),
            "virtual time can't be shared by several hosts",
            "--ranks N in one process, without mpirun",
        ));
    }
    let started = wall_seconds();
    let mut second = 0u32;
    let played = simulate(spec, model, &mut || {
        second += 1;
        observer.progress(&progress(spec, f64::from(second)));
        !observer.stop()
    })?;
    if played.kvcache.read_bytes + played.kvcache.write_bytes == 0 {
        return Err(super::nothing_moved(played.kvcache.stream_hash.is_none()));
    }
    let (window_ns, last_ns) = (played.moved.window_ns, played.moved.last_ns);
    let circumstance = Circumstance {
        whole_window: played.kvcache.stream_hash.is_some(),
        drained: played.kvcache.drained,
        assumptions: played.kvcache.assumptions.clone(),
        ..Circumstance::default()
    };
    let ranks = played.ranks.iter();
    let ranks = ranks
        .map(|rank| RankDone::from_service(spec, rank, window_ns, last_ns, circumstance.clone()))
        .collect();
    let record = record_of(spec, model, played, command, started);
    Ok(Done { outcome: Outcome { record, failure: None }, ranks })
}

fn progress(spec: &KvSpec, t_s: f64) -> Progress {
    Progress {
        phase: Phase::Measure,
        repeat: 0,
        repeats: 1,
        t_s,
        duration_s: Some(spec.duration_s),
        gib_s: 0.0,
        iops: 0.0,
        bytes: 0,
        ios: 0,
        interval_bytes: 0,
        latency_us_mean: None,
        latency_us_p50: None,
        latency_us_p99: None,
        latency_us_p999: None,
        cores_busy: None,
        workers: Vec::new(),
        targets: Vec::new(),
        message: Some("in virtual time".into()),
    }
}

fn record_of(
    spec: &KvSpec,
    model: &DriveModel,
    played: Simulated,
    command: Vec<String>,
    started: u64,
) -> RunRecord {
    let mut missing = VirtualRun::no_machine(NULL_FIELDS);
    no_entry(&played.kvcache, &mut missing, "virtual time moves whole entries");
    let run = VirtualRun {
        model,
        job: Job {
            source: spec.dir.clone(),
            pattern: "sequential".into(),
            direct: false,
            data_bytes: played.kvcache.tiers.storage.used_bytes,
            queues: spec.workers.unwrap_or(1),
            spec: super::job_of(spec),
        },
        path: PathKind::in_host_memory(),
        free: "the path and the client cost",
        real: "a real folder",
        result: result_of(spec, &played),
        missing,
    };
    let mut record = RunRecord { kvcache: Some(played.kvcache), ..run.record(command, started) };
    warnings::add(&mut record);
    record
}

/// What moved inside the window.
fn result_of(spec: &KvSpec, played: &Simulated) -> RunResult {
    let [read_bytes, write_bytes] = played.moved.in_window.map(|bytes| bytes as u64);
    let bytes = read_bytes + write_bytes;
    let seconds = played.moved.window_ns as f64 / 1e9;
    let per = |amount: f64| if seconds > 0.0 { amount / seconds } else { 0.0 };
    let ios = bytes.div_ceil(spec.io_bytes);
    let repeat = Repeat {
        seconds,
        bytes,
        ios,
        throughput_gib_s: per(bytes as f64 / GIB),
        iops: per(ios as f64),
        ..Repeat::default()
    };
    let mut before = 0.0;
    let points = (1..).zip(&played.series).take_while(|(second, _)| f64::from(*second) <= seconds).map(
        |(second, moved)| {
            let all = moved[0] + moved[1];
            let gib_s = (all - before) / GIB;
            before = all;
            Point {
                t_s: f64::from(second),
                gib_s,
                iops: gib_s * GIB / spec.io_bytes as f64,
                ..Point::default()
            }
        },
    );
    let target = TargetResult {
        target: spec.dir.clone(),
        path: PathKind::in_host_memory().name().into(),
        bytes,
        ios,
        ..TargetResult::default()
    };
    RunResult {
        seconds,
        bytes,
        ios,
        read_bytes,
        write_bytes,
        throughput_gib_s: repeat.throughput_gib_s,
        iops: repeat.iops,
        summary: Summary::from_repeats(std::slice::from_ref(&repeat), stats::Stop::Counted),
        series: points.collect(),
        targets: vec![target],
        repeats: vec![repeat],
        interrupted: played.interrupted,
        ..RunResult::default()
    }
}

/// Virtual time knows no rate of writes where the data sheet doesn't.
pub(super) fn check(model: &DriveModel) -> Result<(), Error> {
    model.check(Op::Write)
}
