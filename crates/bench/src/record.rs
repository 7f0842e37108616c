//! The results of a run, as a `RunRecord`.

mod missing;

use super::run_kit::{DirectionTally, Ran, Tally, READ, WRITE};
use super::warnings;
use super::worker_setup::buffers_of;
use forebay_io::{cuda_devices, cv_pct, online_cpus, start_record, CpuReading};
use forebay_model::cpu::Cpu;
use forebay_model::job::Engine;
use forebay_model::job::JobSpec;
use forebay_model::job::PathKind;
use forebay_model::record::*;
use forebay_model::series::Point;
pub(crate) use forebay_model::units::BYTES_PER_GIB as GIB;
use forebay_model::{stats, Error, Latency};
use forebay_storage::{
    judge_gds_run, CuFileSession, Destination, Ends, MappedRegistry, NvmeConnection, Paths, Target,
};
use missing::{cache_state, note_missing};
use std::collections::{BTreeMap, BTreeSet};

/// A record, and the error if the run failed.
#[derive(Debug)]
pub struct Outcome {
    pub record: RunRecord,
    pub failure: Option<Error>,
}

pub struct Context<'a> {
    pub job: &'a JobSpec,
    pub command: Vec<String>,
    pub started: u64,
    pub targets: &'a [Target],
    pub destination: &'a Destination,
    pub requested: PathKind,
    /// The decisions that were left to Forebay, and why they were made.
    pub reasons: Vec<String>,
    pub calibration: Vec<Trial>,
    pub resident_before: Result<f64, String>,
    pub resident_after: Result<f64, String>,
}

pub(crate) fn throughput(ran: &Ran) -> f64 {
    per(ran.bytes() as f64 / GIB, ran.seconds)
}

fn per(value: f64, seconds: f64) -> f64 {
    if seconds > 0.0 {
        value / seconds
    } else {
        0.0
    }
}

pub(crate) fn pattern_of(job: &JobSpec) -> String {
    match job.op.is_random() {
        _ if job.read_iolog.is_some() => "replayed",
        true => "random",
        false => "sequential",
    }
    .into()
}

/// Its warnings are what only the run knows; whoever completes the record has the rest judged.
pub fn compose_record(context: Context, runs: &[Ran]) -> RunRecord {
    let mut missing = BTreeMap::new();
    let cache = cache_state(&context, runs, &mut missing);
    let mut ran = paths_of(&context, runs);
    let moved = |t: usize| {
        runs.iter().flat_map(|r| &r.tallies).filter_map(|w| w.targets.get(t)).map(|w: &(u64, u64)| w.0).sum()
    };
    let moved: Vec<u64> = (0..context.targets.len()).map(moved).collect();
    let mut path = path_of(&context, runs);
    let cufile =
        judge_gds_run(context.destination, (context.targets, &moved), &mut ran, &mut path, &mut missing);
    path.ran = joined(ran.iter().map(|name| (*name).to_owned()));
    let result = result_of(&context, &ran, runs);
    note_missing(&context, runs, &result, &mut missing);
    let session = context.destination.set_up::<CuFileSession>();
    let warnings = warnings::of_runs(runs, session.as_deref());
    let paths: Vec<_> = context.targets.iter().flat_map(Target::files).map(|(f, _)| f.path.clone()).collect();
    let simulated = context.targets.iter().any(Target::is_simulated);
    let origin = if simulated { "simulated" } else { "measured" };
    RunRecord {
        job: job_of(&context, runs[0].resources.queues),
        path,
        cache,
        cufile,
        result,
        missing,
        warnings,
        ..start_record(context.command, context.started, origin, &paths)
    }
}

fn result_of(context: &Context, paths: &[&str], runs: &[Ran]) -> RunResult {
    let cores = online_cpus();
    let repeats: Vec<Repeat> = runs.iter().map(|r| repeat_of(r, cores)).collect();
    let tallies: Vec<&Tally> = runs.iter().flat_map(|r| &r.tallies).collect();
    let sum = |f: fn(&Tally) -> u64| tallies.iter().map(|t| f(t)).sum::<u64>();
    let seconds: f64 = runs.iter().map(|r| r.seconds).sum();
    let (read_bytes, write_bytes) = (sum(|t| t.ways[READ].bytes), sum(|t| t.ways[WRITE].bytes));
    let (bytes, ios) = (read_bytes + write_bytes, sum(Tally::ios));
    let sides = Sides::from_tallies(&tallies);
    let latency = sides.latency();
    let [read, write, flush] = sides.directions(seconds, true);
    let workers = workers_of(&tallies, context.job.workers, context.destination);
    let targets = targets_of(&tallies, context.targets, paths);
    let has_copy = tallies.iter().any(|t| t.copy.is_some());
    let numbered = |(n, r): (usize, &Ran)| {
        r.points.iter().map(move |p| Point { repeat: n as u32, ..p.clone() }).collect::<Vec<_>>()
    };
    let series: Vec<Point> = runs.iter().enumerate().flat_map(numbered).collect();
    RunResult {
        seconds,
        bytes,
        ios,
        read_bytes,
        write_bytes,
        throughput_gib_s: per(bytes as f64 / GIB, seconds),
        iops: per(ios as f64, seconds),
        read,
        write,
        flush,
        latency_us: latency.summary(),
        late: sum(|t| t.late),
        files: files_of(context, &targets, seconds),
        foretold: None,
        unfinished: Unfinished::sum(tallies.iter().map(|t| unfinished_of(t)).collect::<Vec<_>>().iter()),
        histogram: latency.encode(),
        copy_latency_us: has_copy.then(|| merged(tallies.iter().filter_map(|t| t.copy.as_deref())).summary()),
        batch: context.job.batch.map(|ios| batch_of(ios, context, &tallies)),
        queries: queries_of(context.job, seconds, &tallies),
        // Without that of one repeat the sum is that of another run.
        cpu: if runs.iter().all(|r| r.readings.cpu.is_some()) {
            add_cpu(&repeats, cores)
        } else {
            Cpu::default()
        },
        power: mean_power(&repeats),
        errors: Errors::sum(runs.iter().map(Ran::errors).collect::<Vec<_>>().iter()),
        noise: mean_noise(&repeats, &series),
        verified_bytes: sum(|t| t.verified_bytes),
        verified_on: verified_on(context, runs),
        summary: Summary::from_repeats(&repeats, context.job.stop()),
        targets,
        gpus: gpus_of(&workers, seconds),
        workers,
        hosts: Vec::new(),
        interrupted: runs.iter().any(|r| r.interrupted),
        steady_after_s: runs.iter().find_map(|r| r.steady_after_s),
        repeats,
        series,
    }
}

/// Reads, writes and flushes of several tallies.
struct Sides {
    ways: [DirectionTally; 2],
    flush: Latency,
}

impl Sides {
    fn from_tallies(tallies: &[&Tally]) -> Sides {
        let way = |at: usize| {
            let own = || tallies.iter().map(|t| &t.ways[at]);
            let latency = merged(own().map(|way| &way.latency));
            DirectionTally {
                latency,
                bytes: own().map(|way| way.bytes).sum(),
                ios: own().map(|way| way.ios).sum(),
            }
        };
        let flush = merged(tallies.iter().filter_map(|t| t.flush.as_deref()));
        Sides { ways: [way(READ), way(WRITE)], flush }
    }

    fn latency(&self) -> Latency {
        merged(self.ways.iter().map(|way| &way.latency))
    }

    /// Reads, writes and flushes; a histogram that would be the run's own is left out.
    fn directions(&self, seconds: f64, with_histograms: bool) -> [Option<Direction>; 3] {
        let is_mixed = self.ways.iter().all(|way| way.latency.count() > 0);
        let of = |bytes, ios, latency: &Latency, with: bool| {
            Direction::from_totals(bytes, ios, seconds, latency).map(|found| {
                if with {
                    found.with(latency)
                } else {
                    found
                }
            })
        };
        let [read, write] =
            self.ways.each_ref().map(|w| of(w.bytes, w.ios, &w.latency, with_histograms && is_mixed));
        [read, write, of(0, self.flush.count(), &self.flush, with_histograms)]
    }
}

fn batch_of(ios: u32, context: &Context, tallies: &[&Tally]) -> BatchResult {
    let latency = merged(tallies.iter().filter_map(|t| t.batches.as_deref()));
    let by =
        context.targets.iter().map(|t| Paths::by_kind(t.route.path).brings_together(context.job).to_owned());
    BatchResult {
        ios,
        count: latency.count(),
        latency_us: latency.summary(),
        histogram: latency.encode(),
        by: joined(by),
    }
}

fn queries_of(job: &JobSpec, seconds: f64, tallies: &[&Tally]) -> Option<QueryResult> {
    let rounds = job.parsed_rounds().ok().flatten()?;
    let latency = merged(tallies.iter().filter_map(|t| t.queries.as_deref()));
    Some(QueryResult::from_latency(&latency, rounds.query_bytes(), seconds))
}

fn merged<'a>(parts: impl Iterator<Item = &'a Latency>) -> Latency {
    parts.fold(Latency::default(), |mut all, l| {
        all.merge(l);
        all
    })
}

fn unfinished_of(tally: &Tally) -> Unfinished {
    Unfinished { count: tally.unfinished, oldest_s: tally.unfinished_oldest.as_secs_f64() }
}

fn repeat_of(ran: &Ran, cores: u32) -> Repeat {
    let (bytes, ios) = (ran.bytes(), ran.ios());
    let cpu =
        ran.readings.cpu.as_ref().map(|reading| CpuReading::fill(reading, reading.wall_s, bytes, ios, cores));
    let sides = Sides::from_tallies(&ran.tallies.iter().collect::<Vec<_>>());
    let [read, write, flush] = sides.directions(ran.seconds, false);
    Repeat {
        seconds: ran.seconds,
        bytes,
        ios,
        throughput_gib_s: throughput(ran),
        iops: per(ios as f64, ran.seconds),
        read,
        write,
        flush,
        latency_us: sides.latency().summary(),
        cpu: cpu.unwrap_or_default(),
        power: with_joules(&ran.readings.power, bytes, ran.seconds),
        noise: Noise {
            series_cv_pct: variation(&ran.points),
            stood_still_s: Some(ran.stood_still_s),
            ..ran.readings.noise.clone()
        },
    }
}

fn variation(points: &[Point]) -> Option<f64> {
    let rates: Vec<f64> = points.iter().filter(|p| !p.warmup).map(|p| p.gib_s).collect();
    cv_pct(&rates)
}

fn with_joules(power: &[Power], bytes: u64, seconds: f64) -> Vec<Power> {
    let joules = |p: &Power| (bytes > 0).then(|| p.watts_mean * seconds / (bytes as f64 / GIB));
    power.iter().map(|p| Power { joules_per_gib: joules(p), ..p.clone() }).collect()
}

fn add_cpu(repeats: &[Repeat], cores: u32) -> Cpu {
    let (seconds, bytes, ios) =
        repeats.iter().fold((0.0, 0, 0), |(s, b, n), r| (s + r.seconds, b + r.bytes, n + r.ios));
    let sum = |f: fn(&Cpu) -> Option<f64>| repeats.iter().map(|r| f(&r.cpu)).sum::<Option<f64>>();
    let spent = (sum(|c| c.user_s), sum(|c| c.system_s));
    let mean = |f: fn(&Cpu) -> Option<f64>| {
        repeats.iter().map(|r| f(&r.cpu)).collect::<Option<Vec<_>>>().map(|v| stats::mean(&v))
    };
    Cpu {
        machine_cores_busy: mean(|c| c.machine_cores_busy),
        others_cores_busy: mean(|c| c.others_cores_busy),
        ..Cpu::spent(spent, seconds, (bytes, ios), f64::from(cores))
    }
}

fn mean_power(repeats: &[Repeat]) -> Vec<Power> {
    let (seconds, bytes) = repeats.iter().fold((0.0, 0), |(s, b), r| (s + r.seconds, b + r.bytes));
    let mut by_scope: BTreeMap<(&str, &str), (f64, f64, u32)> = BTreeMap::new();
    for (r, p) in repeats.iter().flat_map(|r| r.power.iter().map(move |p| (r, p))) {
        let entry = by_scope.entry((&p.source, &p.scope)).or_default();
        entry.0 += p.watts_mean * r.seconds;
        // A repeat that it says nothing about takes no part.
        entry.1 += r.seconds;
        entry.2 += p.samples;
    }
    let power = |((source, scope), (joules, metered_s, samples)): ((&str, &str), (f64, f64, u32))| Power {
        source: source.into(),
        scope: scope.into(),
        watts_mean: per(joules, metered_s),
        joules_per_gib: None,
        samples,
    };
    with_joules(&by_scope.into_iter().map(power).collect::<Vec<_>>(), bytes, seconds)
}

fn mean_noise(repeats: &[Repeat], series: &[Point]) -> Noise {
    let mean = |f: fn(&Noise) -> Option<f64>| {
        let values: Vec<f64> = repeats.iter().filter_map(|r| f(&r.noise)).collect();
        (!values.is_empty()).then(|| stats::mean(&values))
    };
    Noise {
        steal_pct: mean(|n| n.steal_pct),
        others_cores_busy: mean(|n| n.others_cores_busy),
        throttled: repeats.iter().filter_map(|r| r.noise.throttled).reduce(|a, b| a + b),
        series_cv_pct: variation(series),
        stood_still_s: repeats.iter().filter_map(|r| r.noise.stood_still_s).reduce(|a, b| a + b),
        cpu_limit_cores: repeats.iter().filter_map(|r| r.noise.cpu_limit_cores).reduce(f64::min),
        cpu_limited_pct: mean(|n| n.cpu_limited_pct),
    }
}

fn verified_on(context: &Context, runs: &[Ran]) -> Option<String> {
    let by_gpu =
        context.destination.feeds_gpu() && runs.iter().all(|r| r.resources.content_on_host.is_none());
    let looked = |t: &Tally| t.verified_bytes > 0 || t.errors.verify_failed > 0;
    let any = runs.iter().flat_map(|r| &r.tallies).any(looked);
    any.then(|| if by_gpu { context.destination.name() } else { "host".into() })
}

fn workers_of(tallies: &[&Tally], workers: u32, destination: &Destination) -> Vec<WorkerResult> {
    let of = |w: u32| {
        let own: Vec<_> = tallies.iter().filter(|t| t.worker == w).collect();
        let latency = merged(own.iter().flat_map(|t| &t.ways).map(|way| &way.latency)).summary();
        WorkerResult {
            worker: w,
            cpu: own.first().and_then(|t| t.cpu),
            gpu: destination.device_of(w).map(|d| d.index()),
            numa: own.first().and_then(|t| t.numa),
            bytes: own.iter().map(|t| t.bytes()).sum(),
            ios: own.iter().map(|t| t.ios()).sum(),
            latency_us_p50: latency.p50,
            latency_us_p99: latency.p99,
        }
    };
    (0..workers).map(of).collect()
}

fn targets_of(tallies: &[&Tally], targets: &[Target], paths: &[&str]) -> Vec<TargetResult> {
    let total =
        |i: usize, f: fn(&(u64, u64)) -> u64| tallies.iter().filter_map(|t| t.targets.get(i)).map(f).sum();
    let result = |(i, t): (usize, &Target)| TargetResult {
        target: t.label.clone(),
        path: paths[i].into(),
        cache: cache_of(t).map(String::from),
        members: t.members(),
        bytes: total(i, |c| c.0),
        ios: total(i, |c| c.1),
    };
    targets.iter().enumerate().map(result).collect()
}

/// The files that were read; None of a job that writes, or has one file, or none.
fn files_of(context: &Context, moved: &[TargetResult], seconds: f64) -> Option<FilesRead> {
    let job = context.job;
    let is_file = |t: &Target| t.source.descriptor().is_some_and(|(file, _)| !file.is_device);
    let files: Vec<_> = context.targets.iter().zip(moved).filter(|(t, _)| is_file(t)).collect();
    if job.writes() || (files.len() < 2 && !job.whole_files) {
        return None;
    }
    let whole = || {
        let times = files.iter().map(|(t, moved)| (moved.bytes / t.bytes, moved.bytes % t.bytes, t.bytes));
        times.map(|(times, rest, of)| times as f64 + rest as f64 / of as f64).sum::<f64>()
    };
    let whole = job.reads_whole_files().then(whole);
    Some(FilesRead {
        found: files.len() as u64,
        read: files.iter().filter(|(_, moved)| moved.bytes > 0).count() as u64,
        whole,
        files_per_s: whole.filter(|_| seconds > 0.0).map(|whole| whole / seconds),
    })
}

/// Distinct names, with a plus sign between them.
fn joined(names: impl Iterator<Item = String>) -> String {
    names.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join("+")
}

/// The record of a trial of these targets.
pub(crate) fn trial_of(targets: &[Target], ran: &Ran, workers: u32) -> Trial {
    let gib = ran.bytes() as f64 / GIB;
    let used = ran.readings.cpu.as_ref().map(|cpu| cpu.process.total_s());
    Trial {
        path: joined(targets.iter().map(|t| Paths::name_of(t.route.path).to_owned())),
        cache: joined(targets.iter().filter_map(cache_of).map(String::from)),
        workers,
        gib_s: throughput(ran),
        cpu_s_per_gib: used.filter(|_| gib > 0.0).map(|s| s / gib),
    }
}

/// Returns the mode in which a target's files are opened; None if it has none, or some of either kind.
pub(crate) fn cache_of(target: &Target) -> Option<&'static str> {
    let files = target.files();
    let direct = files.iter().filter(|(f, _)| f.direct).count();
    match files.len() {
        0 => None,
        n if n == direct => Some("bypass"),
        _ if direct == 0 => Some("allow"),
        _ => None,
    }
}

/// The results of each GPU; a worker feeds one.
fn gpus_of(workers: &[WorkerResult], seconds: f64) -> Vec<GpuResult> {
    let gpus: BTreeSet<u32> = workers.iter().filter_map(|w| w.gpu).collect();
    let of = |gpu| {
        let own = || workers.iter().filter(|w| w.gpu == Some(gpu));
        let bytes = own().map(|w| w.bytes).sum::<u64>();
        let throughput_gib_s = per(bytes as f64 / GIB, seconds);
        GpuResult { gpu, bytes, ios: own().map(|w| w.ios).sum(), throughput_gib_s }
    };
    gpus.into_iter().map(of).collect()
}

pub(crate) fn job_of(context: &Context, queues: u32) -> Job {
    let job = context.job;
    Job {
        source: if job.pairs.is_empty() { &job.sources } else { &job.pairs }.join(" "),
        pattern: pattern_of(job),
        direct: context.targets.iter().flat_map(Target::files).any(|(f, _)| f.direct),
        data_bytes: context
            .targets
            .iter()
            .map(|t| t.bytes.saturating_sub(job.start_bytes))
            .fold(0, u64::saturating_add),
        queues,
        spec: job.clone(),
    }
}

fn path_of(context: &Context, runs: &[Ran]) -> PathRan {
    let sum = |f: fn(&Tally) -> u64| runs.iter().flat_map(|r| &r.tallies).map(f).sum::<u64>();
    let resources = &runs[0].resources;
    PathRan {
        requested: Paths::name_of(context.requested).into(),
        ran: String::new(),
        reason: reason(context, runs),
        engine: engines(context.targets),
        engine_features: resources.features.iter().map(|f| (*f).to_string()).collect(),
        direct_bytes: sum(|t| t.travelled.direct),
        staged_bytes: sum(|t| t.travelled.staged),
        mapped_bytes: sum(|t| t.travelled.mapped),
        compat_bytes: sum(|t| t.travelled.compat),
        fabric_bytes: sum(|t| t.travelled.fabric),
        destination: context.destination.name(),
        slot_pages: resources.pages.into(),
        slot_bytes: resources.slot_bytes,
        slots_pinned: context.destination.feeds_gpu()
            && context.targets.iter().any(|t| Paths::by_kind(t.route.path).pins()),
        calibration: context.calibration.clone(),
        mapped: context.destination.set_up::<MappedRegistry>().map(|registry| registry.report()),
        fabric: context.targets.iter().flat_map(Target::connections).map(NvmeConnection::report).collect(),
    }
}

/// The path of each target: what its queues said that they are.
fn paths_of(context: &Context, runs: &[Ran]) -> Vec<&'static str> {
    let said = |t: u32| runs.iter().find_map(|run| run.resources.ran.get(&t).copied());
    let of = |(t, target): (usize, &Target)| said(t as u32).unwrap_or(Paths::name_of(target.route.path));
    context.targets.iter().enumerate().map(of).collect()
}

/// Why bytes of a job by `mapped` went another way; None if none did.
pub fn staged_reason(ran: &MappedRan, staged_bytes: u64, bytes: u64) -> Option<String> {
    let pct = 100.0 * staged_bytes as f64 / bytes.max(1) as f64;
    let share = match pct {
        _ if staged_bytes == 0 => return None,
        p if p < 0.1 => "under 0.1 %".into(),
        p if p < 10.0 => format!("{p:.1} %"),
        p => format!("{p:.0} %"),
    };
    let why = match &ran.refusal {
        Some(refusal) => format!("the system refused to pin {} windows ({refusal})", ran.refused),
        None if ran.uncached > 0 => "they weren't in the page cache".into(),
        None if ran.left > 0 => "processors copied them while the first pass registered the others".into(),
        None => "registering them wasn't worthwhile, or the pin limit was reached".into(),
    };
    Some(format!("{share} of the bytes were bounced: {why}"))
}

fn reason(context: &Context, runs: &[Ran]) -> Option<String> {
    let mut reasons: Vec<String> = context.reasons.clone();
    let wants_gpu = Paths::find(context.job.path).is_some_and(|path| path.ends() != Ends::Host);
    if wants_gpu && !context.destination.feeds_gpu() {
        let why = cuda_devices().1.unwrap_or_else(|| "no GPU".into());
        reasons.push(format!("the destination is host memory: {why}"));
    }
    let staged = |t: &Tally| t.travelled.staged;
    let staged_bytes: u64 = runs.iter().flat_map(|r| &r.tallies).map(staged).sum();
    if let Some(registry) = context.destination.set_up::<MappedRegistry>() {
        let all = runs.iter().map(Ran::bytes).sum();
        reasons.extend(staged_reason(&registry.report(), staged_bytes, all));
    }
    let all: Vec<&Target> = context.targets.iter().collect();
    let buffers = buffers_of(context.job, context.targets, &all, context.destination.feeds_gpu());
    let rows = buffers.rows.unwrap_or(1);
    let unverified = JobSpec { verify: false, ..context.job.clone() };
    let would_go = || buffers_of(&unverified, context.targets, &all, context.destination.feeds_gpu()).rows;
    if context.job.verify && would_go().is_some() {
        reasons.push("reads that would go to the GPU together go one by one, as each is verified".into());
    }
    let depth = buffers.at_work * rows;
    // Who asks for an engine that reads by itself gets it for data on a device, too.
    let why = if context.job.engine == Engine::Auto { "the data is in memory and" } else { "each I/O is" };
    match depth {
        _ if depth == context.job.depth / rows * rows => {}
        1 => reasons.push(format!("{why} read inline: one I/O in flight per worker")),
        n => reasons
            .push(format!("{why} read inline: {n} buffers per worker, which stay in the processor's cache")),
    }
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

fn engines(targets: &[Target]) -> String {
    let name = |t: &Target| t.source.engine();
    let names: BTreeSet<&str> = targets.iter().flat_map(Target::walk).filter_map(name).collect();
    names.into_iter().collect::<Vec<_>>().join("+")
}
