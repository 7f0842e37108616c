//! The results of an emulated run, as a `RunRecord` with a part `training`.

use super::headroom::{self, Seen};
use super::run_state::{Totals, Waited};
use super::worker::Latencies as Measured;
use super::Shared;
use forebay_bench::{session_warnings, staged_reason, Readings};
use forebay_io::{cv_pct, online_cpus, start_record, CpuReading};
use forebay_model::cpu::Cpu;
use forebay_model::job::{JobSpec, Op, Origin};
use forebay_model::record::*;
use forebay_model::series::Point;
use forebay_model::training::record::{
    Latencies, Skipped, Timing, Training, TrainingMemory, Waited as WaitedPart,
};
use forebay_model::training::rules::Steps;
use forebay_model::units::BYTES_PER_GIB as GIB;
use forebay_model::{stats, Latency};
use forebay_storage::{judge_cufile, CuFileSession, Ends, MappedRegistry, Paths};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// Measurements of a run.
pub(crate) struct Ran {
    /// Each rank's steps, and the bytes that were read.
    pub epochs: Vec<(Vec<Steps>, u64)>,
    pub points: Vec<Point>,
    pub readings: Readings,
    pub latencies: Measured,
    pub step: Latency,
    pub interrupted: bool,
    pub rss_before: Option<u64>,
    pub rss: Option<u64>,
    pub first_step_s: Option<f64>,
}

impl Ran {
    /// From the first epoch's begin to the last one's end.
    fn seconds(&self) -> f64 {
        let begin = self.epochs.first().and_then(|(ranks, _)| ranks.first()).map_or(0, |s| s.start_ns);
        let end = self.epochs.last().and_then(|(ranks, _)| ranks.first()).map_or(begin, |s| s.end_ns);
        (end - begin) as f64 / 1e9
    }
}

/// Memory that the process has in use, without pages of files: those that it has mapped are the page cache's.
pub(crate) fn rss_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let kib = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_ascii_whitespace().next()?.parse::<u64>().ok()
    };
    Some((kib("VmRSS")? - kib("RssFile").unwrap_or(0)) << 10)
}

/// Returns the part of a job that applies, as requested: hosts of one run may settle differently what was left open,
/// and `path.reason` has the results.
pub(crate) fn job_of(shared: &Shared) -> Job {
    let (spec, io_mode, asked) = (&shared.spec, &shared.io_mode, JobSpec::default());
    let job = JobSpec {
        sources: spec.data.clone(),
        glob: spec.glob.clone(),
        path: spec.path.to_destination(spec.feeds_gpu()),
        op: Op::Read,
        io_bytes: spec.io_bytes.unwrap_or(asked.io_bytes),
        workers: spec.workers.unwrap_or(asked.workers),
        workers_from: if spec.workers.is_some() { Origin::Given } else { Origin::Default },
        depth: spec.depth.unwrap_or(asked.depth),
        passes: Some(spec.epochs),
        seed: spec.seed,
        cache: spec.cache,
        engine: spec.engine,
        cpus: spec.cpus.clone(),
        files: Some(shared.files),
        gpus: spec.gpus(),
        allow_compat: spec.allow_compat,
        require_direct: spec.require_direct,
        pin_limit_bytes: spec.pin_limit_bytes,
        power: spec.power.clone(),
        ..asked
    };
    Job {
        source: spec.data.join(" "),
        pattern: if spec.workload.file_shuffle || spec.workload.sample_shuffle {
            "random"
        } else {
            "sequential"
        }
        .into(),
        direct: io_mode.direct,
        data_bytes: 0,
        queues: io_mode.workers,
        spec: job,
    }
}

pub(crate) fn compose(shared: &Shared, command: Vec<String>, started: u64, ran: &Ran) -> RunRecord {
    let totals = shared.run_state.totals();
    let mut missing: BTreeMap<String, String> = ran.readings.missing.clone();
    let result = result_of(shared, ran, &totals, &mut missing);
    let cache = cache_of(shared, ran, &mut missing);
    ran.readings.explain(&result, &mut missing);
    let training = training_of(shared, ran, &totals, &result);
    let mut path = path_of(shared, &totals);
    let cufile = cufile_of(shared, &mut path, &mut missing);
    let job = Job { data_bytes: totals.bytes / u64::from(shared.spec.epochs.max(1)), ..job_of(shared) };
    let simulated = shared.model.is_some() || shared.io_mode.probe.is_simulated();
    let origin = if simulated { "simulated" } else { "measured" };
    let mut record = RunRecord {
        job,
        path,
        cache,
        cufile,
        training: Some(training),
        result,
        missing,
        warnings: warnings_of(shared),
        ..start_record(command, started, origin, &paths_of(shared))
    };
    record.explain_nulls("not measured in an emulated run");
    forebay_model::warnings::add(&mut record);
    record
}

fn paths_of(shared: &Shared) -> Vec<PathBuf> {
    shared.io_mode.probe.files().into_iter().map(|(file, _)| file.path.clone()).collect()
}

fn per(value: f64, seconds: f64) -> f64 {
    if seconds > 0.0 {
        value / seconds
    } else {
        0.0
    }
}

fn result_of(
    shared: &Shared,
    ran: &Ran,
    totals: &Totals,
    missing: &mut BTreeMap<String, String>,
) -> RunResult {
    let cores = online_cpus();
    let seconds = ran.seconds();
    let (bytes, ios) = (totals.bytes, totals.ios);
    let readings = &ran.readings;
    let used =
        readings.cpu.as_ref().map(|reading| CpuReading::fill(reading, reading.wall_s, bytes, ios, cores));
    let used = used.unwrap_or_default();
    let rates: Vec<f64> = ran.points.iter().map(|p| p.gib_s).collect();
    let noise = Noise { series_cv_pct: cv_pct(&rates), ..readings.noise.clone() };
    let joules = |p: &Power| (bytes > 0).then(|| p.watts_mean * seconds / (bytes as f64 / GIB));
    let power: Vec<Power> =
        readings.power.iter().map(|p| Power { joules_per_gib: joules(p), ..p.clone() }).collect();
    let skipped = shared.run_state.lock().skipped.clone();
    let repeat = Repeat {
        seconds,
        bytes,
        ios,
        throughput_gib_s: per(bytes as f64 / GIB, seconds),
        iops: per(ios as f64, seconds),
        latency_us: ran.latencies.read.summary(),
        cpu: used.clone(),
        power: power.clone(),
        noise: noise.clone(),
        ..Repeat::default()
    };
    note(missing, &used, &noise, &power);
    RunResult {
        seconds,
        bytes,
        ios,
        read_bytes: bytes,
        write_bytes: 0,
        throughput_gib_s: repeat.throughput_gib_s,
        iops: repeat.iops,
        latency_us: repeat.latency_us.clone(),
        histogram: ran.latencies.read.encode(),
        copy_latency_us: None,
        batch: None,
        cpu: used,
        power,
        errors: Errors { verify_failed: skipped.count, examples: skipped.examples, ..Errors::default() },
        noise,
        summary: Summary::from_repeats(std::slice::from_ref(&repeat), stats::Stop::Counted),
        repeats: vec![repeat],
        series: ran.points.clone(),
        interrupted: ran.interrupted,
        ..RunResult::default()
    }
    .in_one_direction()
}

/// Why fields are null.
fn note(missing: &mut BTreeMap<String, String>, cpu: &Cpu, noise: &Noise, power: &[Power]) {
    let mut note = |field: &str, absent: bool, why: &str| {
        if absent {
            missing.entry(field.into()).or_insert_with(|| why.into());
        }
    };
    let stat = "/proc/stat doesn't say, or the run was too short for its ticks";
    note("result.cpu.cpu_s_per_gib", cpu.cpu_s_per_gib.is_none(), "no bytes were moved");
    note("result.cpu.ns_per_io", cpu.ns_per_io.is_none(), "no I/O was done");
    note("result.cpu.machine_cores_busy", cpu.machine_cores_busy.is_none(), stat);
    note("result.cpu.others_cores_busy", cpu.others_cores_busy.is_none(), stat);
    note(
        "result.noise.series_cv_pct",
        noise.series_cv_pct.is_none(),
        "the run was shorter than two intervals",
    );
    note("result.noise.stood_still_s", noise.stood_still_s.is_none(), "not looked for in an emulated run");
    note("result.power", power.is_empty(), "no power meter answered");
    note("result.copy_latency_us", true, "the path has no second stage");
    note("result.foretold", true, "no modelled drive took part");
    note("result.verified_on", true, "content is checked by the checksums of its format (training.level)");
    note("result.steady_after_s", true, "‹until_steady› wasn't requested");
    note("result.summary.throughput_gib_s_sd", true, "one repeat has no spread");
    note("result.summary.throughput_gib_s_ci95", true, "one repeat has no spread");
    note("result.series[].latency_us_mean", true, "latencies are kept for the whole run (training.latency)");
    note("result.series[].latency_us_p99", true, "latencies are kept for the whole run (training.latency)");
}

fn cache_of(shared: &Shared, ran: &Ran, missing: &mut BTreeMap<String, String>) -> CacheState {
    let mut reported = |field: &str, value: Result<f64, String>| {
        value.map_err(|why| missing.insert(format!("cache.{field}"), why)).ok()
    };
    let after = super::io_mode::residency_now(&shared.data);
    let state = CacheState {
        policy: shared.io_mode.policy(&shared.spec).into(),
        resident_before: reported("resident_before", shared.io_mode.resident_before.clone()),
        resident_after: reported("resident_after", after),
        device_bytes: ran.readings.device_bytes,
        devices: ran.readings.devices.clone(),
    };
    if state.device_bytes.is_none() {
        let why = "no block device is below this source";
        missing.entry("cache.device_bytes".into()).or_insert_with(|| why.into());
    }
    state
}

fn path_of(shared: &Shared, totals: &Totals) -> PathRan {
    let io_mode = &shared.io_mode;
    let destination = shared.run_state.destination.as_ref();
    let to_gpu = destination.is_some_and(|to| to.feeds_gpu());
    let way = shared.route.path;
    let into_gpu = Paths::by_kind(way).ends() == Ends::Gpu;
    let stays = match (destination, Paths::by_kind(way).cached()) {
        (None, _) => "bytes are discarded once they have been read and checked",
        (Some(_), Some(true)) if into_gpu => {
            "the GPU reads them in place; batches stay on the GPU until their step"
        }
        (Some(_), _) if into_gpu => "cuFile reads into the GPU; batches stay there until their step",
        (Some(_), _) if !to_gpu => "batches stay in host memory until their step",
        (Some(_), _) => {
            "bytes are checked in pinned buffers and copied from there; batches stay on the GPU until their step"
        }
    };
    let kib = io_mode.io_bytes >> 10;
    let how_read =
        format!("{}; {} workers read {kib} KiB at a time; {stays}", io_mode.reason, io_mode.workers);
    let mut reasons: Vec<String> = shared.route.because.iter().cloned().chain([how_read]).collect();
    let mapped = registry_of(shared).map(|registry| registry.report());
    let ways = totals.ways;
    if let Some(ran) = &mapped {
        reasons.extend(staged_reason(ran, ways.staged, totals.bytes));
    }
    let resources = shared.run_state.resources.get().cloned().unwrap_or_default();
    PathRan {
        requested: Paths::name_of(shared.spec.path).into(),
        ran: Paths::name_of(way).into(),
        reason: Some(reasons.join("; ")),
        engine: io_mode.engine().into(),
        engine_features: resources.features.iter().map(|feature| (*feature).to_string()).collect(),
        direct_bytes: ways.direct,
        staged_bytes: ways.staged,
        mapped_bytes: ways.mapped,
        compat_bytes: ways.compat,
        fabric_bytes: ways.fabric,
        mapped,
        destination: destination.map_or("host", |to| to.name()).into(),
        slots_pinned: to_gpu,
        slot_pages: if Paths::by_kind(way).pins() { resources.pages.into() } else { "none".into() },
        slot_bytes: match Paths::by_kind(way).pins() {
            false => destination.map_or(0, |to| to.bytes()),
            true => resources.slot_bytes * u64::from(io_mode.workers),
        },
        ..PathRan::default()
    }
}

fn registry_of(shared: &Shared) -> Option<Arc<MappedRegistry>> {
    shared.direct_reads.as_ref()?.set_up()
}

fn session_of(shared: &Shared) -> Option<Arc<CuFileSession>> {
    shared.direct_reads.as_ref()?.set_up()
}

/// Returns cuFile's counters of the run, and names its bytes by them.
fn cufile_of(shared: &Shared, path: &mut PathRan, missing: &mut BTreeMap<String, String>) -> Option<Cufile> {
    let session = session_of(shared)?;
    let direct = path.direct_bytes;
    Some(judge_cufile(&session, direct, true, path, missing).0)
}

fn training_of(shared: &Shared, ran: &Ran, totals: &Totals, result: &RunResult) -> Training {
    let mut training = Training::of_spec(&shared.spec, shared.files, shared.plan.steps);
    for (steps, read_bytes) in &ran.epochs {
        training.push_epoch(steps, *read_bytes);
    }
    let state = shared.run_state.lock();
    training.read_bytes = totals.bytes;
    training.payload_bytes = totals.payload_bytes;
    training.samples = totals.samples;
    training.skipped = Skipped { count: state.skipped.count, examples: state.skipped.examples.clone() };
    training.latency = Latencies {
        read: Timing::from_latency(&ran.latencies.read),
        sample: Timing::from_latency(&ran.latencies.sample),
        step: Timing::from_latency(&ran.step),
    };
    training.waited = waited_of(state.waited, ran);
    training.headroom = headroom::judge(&seen(shared, ran, totals, result, &training, state.waited));
    let destination = shared.run_state.destination.as_ref();
    let on_gpus = destination.filter(|to| to.feeds_gpu()).map_or(0, |to| to.bytes());
    let grown = ran.rss.zip(ran.rss_before).map(|(now, before)| now.saturating_sub(before));
    training.memory_bytes = TrainingMemory {
        per_accelerator: grown.map(|bytes| (bytes + on_gpus) / u64::from(shared.spec.accelerators)),
        rss: ran.rss,
    };
    training.start_to_first_step_s = ran.first_step_s;
    // What was delivered and what was skipped is known by now.
    training.sum_epochs();
    training
}

/// The accelerators' waiting, scaled to what the steps that ended say: what was dealt out while workers went on may
/// lack the last of it.
fn waited_of(dealt: Waited, ran: &Ran) -> WaitedPart {
    let sum = |f: fn(&Steps) -> u64| {
        ran.epochs.iter().flat_map(|(ranks, _)| ranks).map(f).sum::<u64>() as f64 / 1e9
    };
    let (waited, all) = (sum(|s| s.wait_ns), dealt.storage + dealt.parse + dealt.cpu);
    let scale = if all > 0.0 { waited / all } else { 0.0 };
    WaitedPart {
        storage_s: dealt.storage * scale,
        parse_s: dealt.parse * scale,
        cpu_s: dealt.cpu * scale,
        barrier_s: sum(|s| s.barrier_ns),
    }
}

fn seen(
    shared: &Shared,
    ran: &Ran,
    totals: &Totals,
    result: &RunResult,
    training: &Training,
    waited: Waited,
) -> Seen {
    Seen {
        workers: shared.io_mode.workers,
        seconds: ran.readings.cpu.as_ref().map_or(result.seconds, |c| c.wall_s),
        totals: *totals,
        waited,
        cores_busy: result.cpu.cores_busy,
        others_cores_busy: result.cpu.others_cores_busy,
        waited_pct: training.au_pct.map_or(0.0, |au| 100.0 - au),
        is_paced: shared.supply.is_some() || shared.model.is_some(),
    }
}

/// Returns warnings about what the record's figures don't show.
fn warnings_of(shared: &Shared) -> Vec<Warning> {
    let rate = shared.supply.as_ref().and(shared.spec.supply_gib_s);
    let held = rate.map(|rate| Warning {
        id: "throttled_supply".into(),
        text: format!("bytes were delivered at {rate} GiB/s at most"),
        next: "no --supply".into(),
    });
    held.into_iter().chain(session_of(shared).iter().flat_map(|session| session_warnings(session))).collect()
}
