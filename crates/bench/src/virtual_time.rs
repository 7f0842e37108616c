//! A modelled drive without content: the job is played in virtual time, as fast
//! as the arithmetic goes, with no limit from this machine.

use super::record::{pattern_of, GIB};
use super::Outcome;
use forebay_io::{current_build, gather_environment, new_id, rfc3339};
use forebay_model::cpu::Cpu;
use forebay_model::device::DriveModel;
use forebay_model::job::{JobSpec, PathKind, DURATION_DEFAULT_S};
use forebay_model::record::*;
use forebay_model::series::Point;
use forebay_model::simulate::{self, closed_loop, dependent, Load};
use forebay_model::{stats, Error, Latency};
use forebay_storage::{Paths, SourcePlan};
use std::collections::BTreeMap;

const NO_MACHINE: &str = "virtual time: no machine took part";
/// Fields that no drive on paper fills, whatever was played on it.
const NULL_FIELDS: &[&str] = &[
    "cache.resident_before",
    "cache.resident_after",
    "cache.device_bytes",
    "result.copy_latency_us",
    "result.foretold",
    "result.cpu",
    "result.power",
    "result.verified_on",
    "result.noise.steal_pct",
    "result.noise.others_cores_busy",
    "result.noise.throttled",
    "result.noise.series_cv_pct",
    "result.noise.stood_still_s",
    "result.noise.cpu_limit_cores",
    "result.noise.cpu_limited_pct",
    "result.steady_after_s",
    "result.targets[].cache",
    "result.summary.cpu_s_per_gib_median",
];

pub(crate) fn run(
    job: &JobSpec,
    plans: &[SourcePlan],
    command: Vec<String>,
    started: u64,
) -> Result<Outcome, Error> {
    let model = one_model(plans)?;
    refuse_what_time_cannot_show(job)?;
    let data_bytes = plans[0].bytes.saturating_sub(job.start_bytes);
    let load = |n: u32| Load {
        workers: job.workers,
        depth: job.depth,
        op: job.op,
        read_pct: job.read_pct,
        io_bytes: job.io_bytes,
        data_bytes,
        duration_s: job.duration_s.unwrap_or(DURATION_DEFAULT_S),
        seed: job.seed.wrapping_add(u64::from(n)),
        interval_s: f64::from(job.interval_ms) / 1e3,
    };
    let result = played(job, &model, &load, &plans[0].label)?;
    let job_ran = Job {
        source: job.source_uris()?.join(" "),
        pattern: pattern_of(job),
        direct: false,
        data_bytes,
        queues: job.workers,
        spec: job.clone(),
    };
    let source = format!("{} simulated in virtual time: {}", model.name, model.source);
    let record = RunRecord {
        schema: SCHEMA.into(),
        id: new_id(),
        started: rfc3339(started),
        command,
        origin: "simulated".into(),
        forebay: current_build(),
        environment: gather_environment(&[]),
        job: job_ran,
        path: virtual_path_of(job.path, &model, "the path itself costs"),
        cufile: None,
        cache: CacheState { policy: "none".into(), ..CacheState::default() },
        result,
        training: None,
        checkpoint: None,
        feed: None,
        kvcache: None,
        train: None,
        infer: None,
        missing: missing(job),
        warnings: vec![Warning { id: "simulated".into(), text: source, next: "a real source".into() }],
    };
    Ok(Outcome { record, failure: None })
}

/// Each repeat, and what comes of them.
fn played(
    job: &JobSpec,
    model: &DriveModel,
    load: &dyn Fn(u32) -> Load,
    label: &str,
) -> Result<RunResult, Error> {
    let rounds = job.parsed_rounds()?;
    let mut queries = Latency::default();
    let mut play = |n: u32| match &rounds {
        None => closed_loop(model, &load(n)),
        Some(rounds) => dependent(model, &load(n), rounds).map(|(outcome, latency)| {
            queries.merge(&latency);
            outcome
        }),
    };
    let outcomes = (0..job.repeat).map(&mut play).collect::<Result<Vec<_>, _>>()?;
    let mut result = result_of(&outcomes, label);
    result.queries =
        rounds.map(|rounds| QueryResult::from_latency(&queries, rounds.query_bytes(), result.seconds));
    Ok(result)
}

fn result_of(outcomes: &[simulate::Outcome], label: &str) -> RunResult {
    let mut latency = Latency::default();
    outcomes.iter().for_each(|o| latency.merge(&o.latency));
    let all: Vec<&simulate::Outcome> = outcomes.iter().collect();
    let repeat = |o: &simulate::Outcome| Repeat {
        seconds: o.seconds,
        bytes: o.bytes,
        ios: o.ios,
        throughput_gib_s: o.throughput_gib_s(),
        iops: o.iops(),
        latency_us: o.latency.summary(),
        read: direction_of(&[o], 0, false),
        write: direction_of(&[o], 1, false),
        ..Repeat::default()
    };
    let repeats: Vec<Repeat> = outcomes.iter().map(repeat).collect();
    let (seconds, bytes, ios) =
        repeats.iter().fold((0.0, 0, 0), |(s, b, n), r| (s + r.seconds, b + r.bytes, n + r.ios));
    let read_bytes = outcomes.iter().map(|o| o.read_bytes).sum();
    let numbered = |(n, o): (usize, &simulate::Outcome)| {
        o.series.iter().map(move |p| Point { repeat: n as u32, ..p.clone() }).collect::<Vec<_>>()
    };
    RunResult {
        seconds,
        bytes,
        ios,
        read_bytes,
        write_bytes: bytes - read_bytes,
        throughput_gib_s: bytes as f64 / GIB / seconds,
        iops: ios as f64 / seconds,
        latency_us: latency.summary(),
        read: direction_of(&all, 0, true),
        write: direction_of(&all, 1, true),
        late: outcomes.iter().map(|o| o.late).sum(),
        histogram: latency.encode(),
        summary: Summary::from_repeats(&repeats, stats::Stop::Counted),
        series: outcomes.iter().enumerate().flat_map(numbered).collect(),
        targets: vec![TargetResult {
            target: label.into(),
            path: "host".into(),
            bytes,
            ios,
            ..TargetResult::default()
        }],
        repeats,
        ..RunResult::default()
    }
    .in_one_direction()
}

/// Reads (0) or writes (1) of a load that has both.
fn direction_of(outcomes: &[&simulate::Outcome], at: usize, with_histogram: bool) -> Option<Direction> {
    let ways = outcomes.iter().map(|o| o.ways.as_ref().map(|ways| &ways[at])).collect::<Option<Vec<_>>>()?;
    let seconds = outcomes.iter().map(|o| o.seconds).sum();
    let mut latency = Latency::default();
    ways.iter().for_each(|way| latency.merge(&way.latency));
    let (bytes, ios) = ways.iter().fold((0, 0), |(b, n), way| (b + way.bytes, n + way.ios));
    let found = Direction::from_totals(bytes, ios, seconds, &latency)?;
    Some(if with_histogram { found.with(&latency) } else { found })
}

fn one_model(plans: &[SourcePlan]) -> Result<DriveModel, Error> {
    match plans {
        [SourcePlan { timing: Some(timing), .. }] => Ok(timing.drive.clone()),
        _ => Err(Error::request(
            "several models at once",
            "virtual time simulates one",
            "model:NAME?drives=N for several drives; time=real to combine sources",
        )),
    }
}

/// Options that only mean something on a machine are refused, not ignored.
fn refuse_what_time_cannot_show(job: &JobSpec) -> Result<(), Error> {
    let unknown = [
        ("‹verify›", job.verify),
        ("‹verify_fio›", job.verify_fio.is_some()),
        ("‹rate_gib_s›", job.rate_gib_s.is_some() || job.rate_iops.is_some()),
        ("‹passes›", job.passes.is_some()),
        ("‹limit_bytes›", job.limit_bytes.is_some()),
        ("‹limit_ios›", job.limit_ios.is_some()),
        ("‹think_s›", job.think_s.is_some()),
        ("‹rate_min_gib_s›", job.rate_min_gib_s.is_some() || job.rate_min_iops.is_some()),
        ("‹until_first›", job.until_first),
        ("‹flow›", job.flow.is_some()),
        ("‹skip_bytes›", job.skip_bytes != 0),
        ("‹clones›", job.clones),
        ("‹io_bytes› with a range", job.io_bytes_max.is_some()),
        ("‹until_steady›", job.until_steady),
        ("‹until_ci_pct›", job.until_ci_pct.is_some()),
        ("‹faults›", job.faults.is_some()),
        ("‹io_log›", job.io_log.is_some()),
        ("‹read_iolog›", job.read_iolog.is_some()),
        ("‹write_iolog›", job.write_iolog.is_some()),
        ("‹batch›", job.batch.is_some() && job.dependent.is_none()),
        ("‹distribution› other than uniform", job.distribution != "uniform"),
    ];
    match unknown.iter().find(|(_, asked)| *asked) {
        Some((flag, _)) => Err(Error::request(
            format!("{flag} on a model in virtual time"),
            "it has no meaning there",
            "model:NAME?time=real",
        )),
        None => Ok(()),
    }
}

/// `free`: what costs nothing there.
pub fn virtual_path_of(path: PathKind, model: &DriveModel, free: &str) -> PathRan {
    PathRan {
        ran: Paths::find(path).map_or("host", |path| path.name()).into(),
        requested: Paths::name_of(path).into(),
        reason: Some(format!("simulated: {} in virtual time; {free} nothing there", model.name)),
        engine: "model".into(),
        destination: "none".into(),
        slot_pages: "none".into(),
        ..PathRan::default()
    }
}

/// Why fields are null in a record of virtual time: the common ones, and `more`.
pub fn no_machine(more: &[&str]) -> BTreeMap<String, String> {
    let cpu = Cpu::default().fields().map(|(name, _)| format!("result.cpu.{name}"));
    let fields = NULL_FIELDS.iter().chain(more).map(|f| (*f).to_owned()).chain(cpu);
    fields.map(|field| (field, NO_MACHINE.to_owned())).collect()
}

fn missing(job: &JobSpec) -> BTreeMap<String, String> {
    let mut missing = no_machine(&[]);
    if job.repeat < 2 {
        for field in ["result.summary.throughput_gib_s_sd", "result.summary.throughput_gib_s_ci95"] {
            missing.insert(field.into(), "one repeat has no spread; ‹repeat› 5".into());
        }
    }
    missing
}
