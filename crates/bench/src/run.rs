//! From a job to its record: plan, prepare, run as often as requested, and report.

use crate::calibration::workers_most;
use crate::record::Outcome;
use crate::run_kit::{run_thread, Observer, Progress, Ran};
use crate::{
    calibration, fleet, host_capacity, prediction, purpose, record, replay, requirements, share,
    virtual_time, worker_setup,
};
use forebay_io::{
    cache_residency, cuda_devices, drop_cached, wall_seconds, warm_cache_while, PowerMeterName,
};
use forebay_model::job::{Cache, JobSpec, Origin, PathKind};
use forebay_model::record::RunRecord;
use forebay_model::{stats, Error, Kind};
use forebay_storage::{
    examine, BufferNeeds, Buffers, DataPath, Destination, Ends, FilePlan, Opened, Paths, PlanAction,
    SourcePlan, Target, Uri, PATHS,
};
use serde::Serialize;
use std::sync::Arc;

/// Plan of `run`, without running it.
#[derive(Debug, Serialize)]
pub struct Plan {
    pub job: JobSpec,
    /// `auto` if trials will decide.
    pub path: &'static str,
    /// The path, or the candidates of `auto`, the likeliest first.
    pub paths: Vec<&'static str>,
    pub targets: Vec<PlannedTarget>,
    pub data_bytes: u64,
    /// At most, in host memory and in that of GPUs.
    pub buffer_bytes: u64,
    pub gpu_buffer_bytes: u64,
    pub files_to_make: Vec<String>,
    pub files_to_overwrite: Vec<String>,
    pub virtual_time: bool,
}

#[derive(Debug, Serialize)]
pub struct PlannedTarget {
    pub label: String,
    pub bytes: u64,
    #[serde(flatten)]
    plan: SourcePlan,
}

/// Checks everything that can be checked without changing anything, and returns the resolved job.
pub fn plan_job(job: &JobSpec) -> Result<Plan, Error> {
    check_job(job)?;
    let replay = replay::prepare(job)?;
    let job = replay.as_ref().map_or(job, |replay| &replay.job);
    let looked = examine(&purpose::of_job(job, workers_most())?)?;
    replay.as_ref().map_or(Ok(()), |replay| replay.fits(&looked.plans))?;
    prediction::check(job, &looked.plans)?;
    requirements::of_machine(&into_host_memory(&with_a_worker_each(job)).0, &looked)?;
    let plans = looked.plans;
    let virtual_time = plans.iter().all(SourcePlan::is_virtual);
    let paths = candidates(job, virtual_time)?;
    let (buffer_bytes, gpu_buffer_bytes) = if virtual_time { (0, 0) } else { buffers(job, &paths)? };
    let names = |keep: fn(&FilePlan) -> bool| -> Vec<String> {
        let files = plans.iter().flat_map(SourcePlan::files).filter(|f| keep(f));
        files.map(|f| f.path.display().to_string()).collect()
    };
    let paths: Vec<_> = paths.iter().map(|path| path.name()).collect();
    Ok(Plan {
        path: if paths.len() == 1 { paths[0] } else { Paths::name_of(job.path) },
        paths,
        data_bytes: plans.iter().map(|p| p.bytes).fold(0, u64::saturating_add),
        buffer_bytes,
        gpu_buffer_bytes,
        files_to_make: names(|f| f.action == PlanAction::Make),
        files_to_overwrite: if job.writes() { names(|f| f.action == PlanAction::Use) } else { Vec::new() },
        virtual_time,
        targets: plans
            .into_iter()
            .map(|plan| PlannedTarget { label: plan.label.clone(), bytes: plan.bytes, plan })
            .collect(),
        job: job.clone(),
    })
}

/// The paths that a run would take or, with `auto`, choose from, the likeliest first.
fn candidates(job: &JobSpec, virtual_time: bool) -> Result<Vec<&'static dyn DataPath>, Error> {
    let settled = if virtual_time { job.clone() } else { into_host_memory(job).0 };
    let kind = if virtual_time && job.path.is_found() { PathKind::in_host_memory() } else { settled.path };
    if let Some(path) = Paths::find(kind) {
        return Ok(vec![path]);
    }
    let media =
        job.source_uris()?.iter().map(|s| Ok(Uri::parse(s)?.medium())).collect::<Result<Vec<_>, Error>>()?;
    let mut open = Vec::new();
    for path in PATHS.iter().rev().filter(|path| path.ends() != Ends::Host) {
        if media.iter().any(|medium| path.accepts(medium)) && path.refuses(job)?.is_none() {
            open.push(*path);
        }
    }
    Ok(open)
}

/// Host and GPU memory of all workers, at most.
fn buffers(job: &JobSpec, paths: &[&'static dyn DataPath]) -> Result<(u64, u64), Error> {
    let sources = job.source_uris()?;
    let moves = sources
        .iter()
        .map(|s| Ok(Uri::parse(s)?.medium().moves_bytes()))
        .collect::<Result<Vec<_>, Error>>()?;
    let of = |job: &JobSpec, path: &&'static dyn DataPath| {
        let under: Vec<BufferNeeds> = moves
            .iter()
            .map(|m| BufferNeeds {
                path: *path,
                moves_bytes: *m,
                at_once: false,
                tight: false,
                takes_rows: false,
            })
            .collect();
        let into_gpu = match path.ends() {
            Ends::Host => false,
            Ends::GpuIfAny => !job.gpus.is_empty() || !job.pairs.is_empty() || cuda_devices().0 > 0,
            Ends::Gpu => true,
        };
        let each = Buffers::for_targets(job, &under, &under, into_gpu);
        let all = |bytes: u64| bytes.saturating_mul(u64::from(job.workers));
        (all(each.host_bytes()), all(each.gpu_bytes()))
    };
    let mut each: Vec<_> = paths.iter().map(|path| of(job, path)).collect();
    if let Some(deeper) = calibration::deeper(job) {
        each.extend(paths.iter().map(|path| of(&deeper, path)));
    }
    let most = |f: fn(&(u64, u64)) -> u64| each.iter().map(f).max().unwrap_or(0);
    Ok((most(|b| b.0), most(|b| b.1)))
}

/// Checks the job for errors that are independent of the machine, including options of the engine.
pub fn check_job(job: &JobSpec) -> Result<(), Error> {
    job.check()?;
    requirements::requirements_of_job(job)?;
    job.power.iter().try_for_each(|name| PowerMeterName::parse(name).map(|_| ()))?;
    job.source_uris()?.iter().try_for_each(|source| {
        let uri = Uri::parse(source)?;
        if job.whole_files && uri.path().is_none() {
            return Err(share::no_files(source));
        }
        Paths::check(job.path, &uri, &uri.medium())
    })
}

/// If the number of workers wasn't given, each pair still needs one.
fn with_a_worker_each(job: &JobSpec) -> JobSpec {
    let at_least = if job.workers_from == Origin::Given { 1 } else { job.pairs.len() as u32 };
    JobSpec { workers: job.workers.max(at_least), ..job.clone() }
}

/// Runs the job. An error means that nothing was measured; a failure midway is part of the outcome.
pub fn run_job(job: &JobSpec, command: Vec<String>, observer: &mut dyn Observer) -> Result<Outcome, Error> {
    run_thread::with_run_thread(observer, |word| run_watched(job, command, word))
}

fn run_watched(job: &JobSpec, command: Vec<String>, observer: &mut dyn Observer) -> Result<Outcome, Error> {
    check_job(job)?;
    let replay = replay::prepare(job)?;
    let job = &with_a_worker_each(replay.as_ref().map_or(job, |replay| &replay.job));
    let started = wall_seconds();
    let mut looked = examine(&purpose::of_job(job, workers_most())?)?;
    replay.as_ref().map_or(Ok(()), |replay| replay.fits(&looked.plans))?;
    prediction::check(job, &looked.plans)?;
    if looked.plans.iter().all(SourcePlan::is_virtual) {
        return virtual_time::run(job, &looked.plans, command, started);
    }
    let requested = job.path;
    let (job, no_gpu) = into_host_memory(job);
    let destination = Arc::new(Destination::open(&job)?);
    host_capacity::check(&job, &looked.plans, observer)?;
    if looked.changes(&purpose::of_job(&job, workers_most())?) {
        requirements::of_machine(&job, &looked)?;
    }
    let mut opened = looked.open(&purpose::of_job(&job, workers_most())?, &mut |targets| {
        purpose::fill(&job, targets, observer)
    })?;
    let settled = calibrate(&job, &mut opened, &destination, observer);
    let calibration::Calibrated { job, reasons, calibration } = match settled {
        Ok(settled) => settled,
        Err(e) => return Err(nothing_measured(opened, true, e)),
    };
    let mut resident_before = Err("the page cache was never set".into());
    let mut runs = Vec::new();
    let failed = repeat(&job, &opened, &destination, observer, &mut resident_before, &mut runs);
    let resident_after = residency(&opened.targets);
    if let (true, Err(e)) = (runs.is_empty(), &failed) {
        return Err(nothing_measured(opened, !calibration.is_empty(), e.clone()));
    }
    let context = record::Context {
        job: &job,
        command,
        started,
        targets: &opened.targets,
        destination: &destination,
        requested,
        reasons: no_gpu.into_iter().chain(reasons).collect(),
        calibration,
        resident_before,
        resident_after,
    };
    let mut record = record::compose_record(context, &runs);
    let off_model = prediction::judge(&job, &looked.plans, &runs, &mut record);
    forebay_model::warnings::add(&mut record);
    // What was measured is kept, whatever becomes of the list of files.
    let closed = opened.close(purpose::covers(&job) && failed.is_ok() && !record.result.interrupted);
    let failure = failed.err().or_else(|| failure_of(&job, &record)).or(off_model).or(closed.err());
    Ok(Outcome { record, failure })
}

/// The job as it is to run, on targets that are known to support it.
fn calibrate(
    job: &JobSpec,
    opened: &mut Opened,
    destination: &Arc<Destination>,
    observer: &mut dyn Observer,
) -> Result<calibration::Calibrated, Error> {
    if job.cache == Cache::Warm {
        set_cache(job, &opened.targets, observer)?;
    }
    let settled = calibration::on(job, &mut opened.targets, &opened.content_seeds, destination, observer)?;
    requirements::of_targets(&settled.job, &opened.targets)?;
    worker_setup::check_memory(&settled.job, &opened.targets, destination.feeds_gpu())?;
    destination.attach(&settled.job, &opened.targets)?;
    Ok(settled)
}

/// The error of a job that ended before its first I/O. One that was refused leaves files and lists as they were.
fn nothing_measured(opened: Opened, tried: bool, error: Error) -> Error {
    opened.take_back(matches!(error.kind, Kind::Request | Kind::Machine), tried);
    error
}

/// `auto` without a GPU that could be the destination: host memory, and the reason.
fn into_host_memory(job: &JobSpec) -> (JobSpec, Option<String>) {
    if !job.path.is_found() || !job.gpus.is_empty() || !job.pairs.is_empty() {
        return (job.clone(), None);
    }
    match cuda_devices() {
        (0, why) => {
            let (path, why) = PathKind::without_gpu(why);
            (JobSpec { path, ..job.clone() }, Some(why))
        }
        _ => (job.clone(), None),
    }
}

/// Share of the files' pages in the page cache, or why it can't be determined.
fn residency(targets: &[Target]) -> Result<f64, String> {
    let files: Vec<_> =
        targets.iter().flat_map(Target::files).map(|(f, _)| f).filter(|f| !f.is_device).collect();
    let total: f64 = files.iter().map(|f| f.bytes as f64).sum();
    if total == 0.0 {
        return Err("no file is below this source".into());
    }
    let mut resident = 0.0;
    for file in files {
        resident += cache_residency(&file.file, 0, file.bytes)? * file.bytes as f64;
    }
    Ok(resident / total)
}

fn repeat(
    job: &JobSpec,
    opened: &Opened,
    destination: &Arc<Destination>,
    observer: &mut dyn Observer,
    resident_before: &mut Result<f64, String>,
    runs: &mut Vec<Ran>,
) -> Result<(), Error> {
    let most = if job.until_ci_pct.is_some() { job.repeat_max.max(job.repeat) } else { job.repeat };
    for n in 0..most {
        set_cache(job, &opened.targets, observer)?;
        if n == 0 {
            *resident_before = residency(&opened.targets);
        }
        let mut numbered = Numbered { observer, repeat: n, repeats: most };
        let ran =
            fleet::run_once(job, &opened.targets, &opened.content_seeds, destination.clone(), &mut numbered)?;
        let errors = ran.errors();
        let broken = ran.broken.clone();
        let over = ran.interrupted || errors.failed + errors.timed_out > 0;
        runs.push(ran);
        if let Some(e) = broken {
            return Err(e);
        }
        if over || narrow_enough(job, runs) {
            break;
        }
    }
    Ok(())
}

fn narrow_enough(job: &JobSpec, runs: &[Ran]) -> bool {
    let Some(pct) = job.until_ci_pct.filter(|_| runs.len() >= job.repeat.max(3) as usize) else {
        return false;
    };
    let rates: Vec<f64> = runs.iter().map(record::throughput).collect();
    stats::ci95_half_pct(&rates, job.stop()).is_some_and(|half| half <= pct)
}

fn set_cache(job: &JobSpec, targets: &[Target], observer: &mut dyn Observer) -> Result<(), Error> {
    for (file, _) in targets.iter().flat_map(Target::files).filter(|(f, _)| !f.in_memory) {
        let done = match job.cache {
            Cache::Drop => drop_cached(&file.file, 0, file.bytes).map(|_| ()),
            Cache::Warm => warm_cache_while(&file.file, |_| !observer.stop()).map(|_| ()),
            Cache::Auto | Cache::Bypass | Cache::Allow => Ok(()),
        };
        done.map_err(|why| {
            Error::machine(format!("‹cache› on {}", file.path.display()), why, "‹cache› bypass")
        })?;
    }
    Ok(())
}

struct Numbered<'a> {
    observer: &'a mut dyn Observer,
    repeat: u32,
    repeats: u32,
}

impl Observer for Numbered<'_> {
    fn progress(&mut self, p: &Progress) {
        self.observer.progress(&Progress { repeat: self.repeat, repeats: self.repeats, ..p.clone() });
    }

    fn stop(&mut self) -> bool {
        self.observer.stop()
    }
}

/// The error if a record shows that the run failed.
fn failure_of(job: &JobSpec, record: &RunRecord) -> Option<Error> {
    let errors = &record.result.errors;
    let asked = format!("{} by {}", record.job.source, record.path.ran);
    let examples = errors.examples.join("; ");
    if errors.timed_out > 0 {
        return Some(Error::run(
            asked,
            format!("{} I/Os timed out; {examples}", errors.timed_out),
            Paths::find(job.path)
                .and_then(|path| path.after_timeouts(job))
                .unwrap_or("dmesg | tail; a longer ‹timeout_s›"),
        ));
    }
    if errors.failed > 0 {
        let found = format!("{} I/Os failed; {examples}", errors.failed);
        return Some(Error::run(asked, found, forebay_model::warnings::look_for_reason(record)));
    }
    requirements::requirements_of_record(job, record)
}
