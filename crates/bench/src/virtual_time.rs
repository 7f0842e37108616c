//! A modelled drive without content: the job is played in virtual time, as fast
//! as the arithmetic goes, with no limit from this machine.

use super::record::{pattern_of, GIB};
use super::Outcome;
use forebay_io::start_record;
use forebay_model::device::DriveModel;
use forebay_model::job::{JobSpec, PathKind, DURATION_DEFAULT_S};
use forebay_model::record::*;
use forebay_model::series::Point;
use forebay_model::simulate::{self, closed_loop, dependent, Load};
use forebay_model::{stats, Error, Latency};
use forebay_storage::{Paths, SourcePlan};
use std::collections::BTreeMap;

const NO_MACHINE: &str = "virtual time: no machine took part";
/// Fields that no drive on paper fills, whatever was played on it, besides the nulls of the result itself.
const NULL_FIELDS: &[&str] = &[
    "cache.resident_before",
    "cache.resident_after",
    "cache.device_bytes",
    "result.cpu",
    "result.power",
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
    let no_spread = ["result.summary.throughput_gib_s_sd", "result.summary.throughput_gib_s_ci95"];
    let one = "one repeat has no spread; ‹repeat› 5";
    let own =
        no_spread.into_iter().filter(|_| job.repeat < 2).map(|field| (field.to_owned(), one.to_owned()));
    let record = VirtualRun {
        model: &model,
        job: job_ran,
        path: job.path,
        free: "the path itself costs",
        real: "a real source",
        result,
        missing: own.collect(),
    };
    Ok(Outcome { record: record.record(command, started), failure: None })
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
            path: PathKind::in_host_memory().name().into(),
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

/// A run on a modelled drive in virtual time, before it becomes a record.
pub struct VirtualRun<'a> {
    pub model: &'a DriveModel,
    pub job: Job,
    pub path: PathKind,
    /// What costs nothing there, with its verb.
    pub free: &'a str,
    /// What to run to measure.
    pub real: &'a str,
    pub result: RunResult,
    /// Why fields are null that a machine would have had no part in, or that no result of virtual time has.
    pub missing: BTreeMap<String, String>,
}

impl VirtualRun<'_> {
    /// Fields that are null since no machine took part.
    pub fn no_machine(fields: &[&str]) -> BTreeMap<String, String> {
        fields.iter().map(|field| ((*field).to_owned(), NO_MACHINE.to_owned())).collect()
    }

    pub fn record(self, command: Vec<String>, started: u64) -> RunRecord {
        let model = self.model;
        let text = format!("{} simulated in virtual time: {}", model.name, model.source);
        let path = PathRan {
            ran: Paths::find(self.path).map_or("host", |path| path.name()).into(),
            requested: Paths::name_of(self.path).into(),
            reason: Some(format!("simulated: {} in virtual time; {} nothing there", model.name, self.free)),
            engine: "model".into(),
            destination: "none".into(),
            slot_pages: "none".into(),
            ..PathRan::default()
        };
        let mut record = RunRecord {
            job: self.job,
            path,
            cache: CacheState { policy: "none".into(), ..CacheState::default() },
            result: self.result,
            missing: VirtualRun::no_machine(NULL_FIELDS),
            warnings: vec![Warning { id: "simulated".into(), text, next: self.real.into() }],
            ..start_record(command, started, "simulated", &[])
        };
        record.missing.extend(self.missing);
        record.explain_nulls(NO_MACHINE);
        record
    }
}
