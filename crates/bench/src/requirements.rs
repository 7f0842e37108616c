//! Requirements: options that contradict the job, or that the opened targets don't support, are refused with the
//! reason, and a finished run is checked against what it required.

use super::calibration::workers_most;
use super::{purpose, share, worker_setup};
use forebay_model::cached;
use forebay_model::job::{Cache, Engine, JobSpec, Sync};
use forebay_model::pattern::{Pattern, Span};
use forebay_model::record::{PathRan, RunRecord};
use forebay_model::Error;
use forebay_storage::{Ends, Examined, FaultPlan, Paths, SourcePlan, Target};

const PIN_LIMIT_MIN: u64 = 1 << 20;

/// Checks options for contradictions that don't depend on the source.
pub fn requirements_of_job(job: &JobSpec) -> Result<(), Error> {
    let polls = if job.iopoll { "‹iopoll›" } else { "‹sqpoll›" };
    let refusals = [
        (
            (job.sqpoll || job.iopoll) && !matches!(job.engine, Engine::Auto | Engine::Uring),
            polls,
            "it is an option of io_uring, and another engine was requested",
            "‹engine› uring",
        ),
        (
            job.iopoll && job.cache != Cache::Bypass,
            "‹iopoll› through the page cache",
            "only a device's completions can be polled for",
            "‹cache› bypass",
        ),
        (
            job.iopoll && job.sync == Sync::End && job.writes(),
            "‹iopoll› with ‹sync› end",
            "a ring that polls can't flush",
            "‹sync› each",
        ),
        (
            job.pin_limit_bytes.is_some_and(|bytes| bytes < PIN_LIMIT_MIN),
            "‹pin_limit_bytes›",
            "must be at least 1 MiB: less isn't worth registering",
            "‹pin_limit_bytes› 1g",
        ),
        (
            job.require_direct
                && (!matches!(job.cache, Cache::Auto | Cache::Bypass) || job.engine == Engine::Map),
            "‹require_direct› through the page cache",
            "data that passes through it is copied by a CPU",
            "‹cache› bypass",
        ),
        (
            job.cufile_batch.is_some() && !job.cufile.batches(),
            "‹cufile_batch›",
            "only the batch modes of cuFile have batches",
            "‹cufile› batch, or batch-stream",
        ),
    ];
    let found = refusals.into_iter().find(|r| r.0).map(|(_, asked, found, next)| (asked, found, next));
    if let Some((asked, found, next)) = Paths::refusal(job)?.or(found) {
        return Err(Error::request(asked, found, next));
    }
    // The order of offsets doesn't depend on the data, so what is wrong with it shows on any.
    let any = Span { target: 0, start: 0, bytes: 1 << 40 };
    Pattern::new(share::pattern(job, 0, vec![any])?)?;
    job.faults.as_deref().map(FaultPlan::parse).transpose().map(drop)
}

/// Checks what shows of this machine while nothing has been changed yet: processors, alignment, room, memory.
pub(crate) fn of_machine(job: &JobSpec, looked: &Examined) -> Result<(), Error> {
    if looked.plans.iter().all(SourcePlan::is_virtual) {
        return Ok(());
    }
    share::cpus_of(job)?;
    let targets = looked.rehearsed(&purpose::of_job(job, workers_most())?)?;
    of_targets(job, &targets)?;
    if Paths::find(job.path).is_none_or(|path| path.ends() != Ends::Host) {
        // Their buffers depend on the GPU.
        return Ok(());
    }
    worker_setup::check_memory(job, &targets, false)?;
    worker_setup::check_pages(job, &targets)
}

/// Refuses queries of data that has fewer nodes than segments.
fn check_nodes(job: &JobSpec, targets: &[Target]) -> Result<(), Error> {
    let Some(rounds) = job.parsed_rounds()? else { return Ok(()) };
    let nodes = |t: &Target| t.bytes.saturating_sub(job.start_bytes) / rounds.node_bytes;
    rounds.check_nodes(targets.iter().map(nodes).fold(0, u64::saturating_add))
}

/// Checks that the opened targets support the options.
pub(crate) fn of_targets(job: &JobSpec, targets: &[Target]) -> Result<(), Error> {
    share::check_whole_files(job, targets)?;
    check_nodes(job, targets)?;
    let files: Vec<_> = targets.iter().flat_map(Target::files).collect();
    let mut connections = targets.iter().flat_map(Target::connections);
    if let Some(connection) = connections.find(|connection| !connection.maps_slots()) {
        if job.iopoll || job.require_direct {
            let asked = if job.iopoll { "‹iopoll›" } else { "‹require_direct›" };
            let found = "its bytes come through a socket, which the kernel copies from";
            return Err(Error::request(
                format!("{asked} with {}", connection.host().name),
                found,
                format!("no {asked}"),
            ));
        }
    }
    let on_ring = files.iter().any(|(_, engine)| matches!(engine, Engine::Uring | Engine::Auto));
    if (job.sqpoll || job.iopoll) && !on_ring {
        let asked = if job.iopoll { "‹iopoll›" } else { "‹sqpoll›" };
        return Err(Error::request(
            asked,
            "no file of this job is read through io_uring",
            format!("no {asked}, or ‹engine› uring on files"),
        ));
    }
    let of_ring = |engine: &Engine| matches!(engine, Engine::Uring | Engine::Auto);
    let elsewhere = files.is_empty() || !files.iter().all(|(_, engine)| of_ring(engine));
    if targets.iter().flat_map(Target::files).any(|(file, _)| file.priority.is_some())
        && (elsewhere || job.sqpoll)
    {
        return Err(Error::request(
            format!("‹priority› {}", job.priority.as_deref().unwrap_or_default()),
            "only I/Os that a worker submits to io_uring carry a priority of their own",
            "‹engine› uring without ‹sqpoll›, or one priority for all",
        ));
    }
    if let Some((file, _)) = files.iter().find(|(file, _)| job.iopoll && file.direct && !file.polls()) {
        return Err(Error::machine(
            format!("‹iopoll› on {}", file.path.display()),
            "its device has no queues to poll",
            "no ‹iopoll›, or nvme.poll_queues=2 on the kernel's command line",
        ));
    }
    let staged = files.iter().find(|(file, _)| !file.direct);
    match staged {
        Some((file, _)) if job.iopoll || job.require_direct => {
            let asked = if job.iopoll { "‹iopoll›" } else { "‹require_direct›" };
            Err(Error::machine(
                format!("{asked} on {}", file.path.display()),
                "its file system lives in memory: no device is below it",
                "a file on a drive",
            ))
        }
        None if job.require_direct && targets.iter().any(Target::lacks_bytes) => Err(Error::request(
            "‹require_direct›",
            "nil: and a model without content move no bytes",
            "a file, or no ‹require_direct›",
        )),
        _ => Ok(()),
    }
}

/// The error if a finished run didn't meet a requirement.
pub fn requirements_of_record(job: &JobSpec, record: &RunRecord) -> Option<Error> {
    let (result, path) = (&record.result, &record.path);
    if result.seconds <= 0.0 && !result.interrupted {
        return Some(Error::run(
            &record.job.source,
            "the run ended inside its warm-up: nothing was measured",
            "‹warmup_s› 0, or a longer run",
        ));
    }
    let insists = Paths::find(job.path).filter(|path| path.insists_on_direct(job.allow_compat));
    all_direct(job.require_direct, insists.map(|path| path.name()), path, result.bytes)
        .or_else(|| not_seen_direct(job, record))
}

/// The error if every byte had to be direct and some weren't. `insists`: the path that requires this by itself.
pub fn all_direct(require_direct: bool, insists: Option<&str>, path: &PathRan, bytes: u64) -> Option<Error> {
    ((require_direct || insists.is_some()) && path.direct_bytes < bytes).then(|| {
        let asked = match insists.filter(|_| !require_direct) {
            Some(path) => format!("‹path› {path}"),
            None => "‹require_direct›".into(),
        };
        let why = path.reason.as_ref().map_or_else(String::new, |why| format!(": {why}"));
        let found = format!("{} of {bytes} bytes went direct{why}", path.direct_bytes);
        Error::check(asked, found, "forebay doctor for the reason")
    })
}

/// Checks the kernel's claim that every byte was direct against what the devices moved and what the page cache holds.
fn not_seen_direct(job: &JobSpec, record: &RunRecord) -> Option<Error> {
    let judged = || cached::not_direct(&record.job, &record.cache, &record.result);
    let found = job.require_direct.then(judged).flatten()?;
    let next = "files with data in every block (holes cost no I/O), which nothing else reads; forebay doctor";
    Some(Error::check("‹require_direct›", found, next))
}
