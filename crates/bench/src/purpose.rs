//! The purpose for which a job opens its targets, and filling the files that it creates.

use super::fleet;
use super::{Observer, Phase, Progress};
use forebay_model::job::{JobSpec, Op, Origin, PathKind, Priorities, Sync};
use forebay_model::Error;
use forebay_storage::{Purpose, Target};
use std::sync::Arc;

const FILL_WORKERS: u32 = 4;
const FILL_IO_BYTES: u64 = 1 << 20;

/// `most`: workers that trials are run with for each GPU, at most.
pub(crate) fn of_job(job: &JobSpec, most: u32) -> Result<Purpose, Error> {
    let step = job.io_bytes_max.map(|_| job.io_bytes_step.unwrap_or(job.io_bytes));
    let units = [
        ("‹io_bytes›", Some(job.io_bytes)),
        ("‹io_bytes› up to", job.io_bytes_max),
        ("‹io_bytes› in steps of", step),
        ("‹start_bytes›", Some(job.start_bytes)),
        ("‹start_step_bytes›", Some(job.start_step_bytes)),
        ("‹skip_bytes›", Some(job.skip_bytes.unsigned_abs())),
        ("‹skip_every_bytes›", job.skip_every_bytes),
        ("‹align_bytes›", job.align_bytes),
    ];
    // A calibration may settle on more workers than there are now.
    let workers_most = match job.workers_from {
        Origin::Given => job.workers,
        _ => most * job.gpus.len().max(job.pairs.len()).max(1) as u32,
    };
    Ok(Purpose {
        sources: job.source_uris()?,
        by_pairs: !job.pairs.is_empty(),
        reads: job.reads(),
        writes: job.writes(),
        random: job.op.is_random(),
        hint: job.hint.settled(job.op.is_random()),
        makes: job.may_make(),
        could_make: job.verify_fio.is_none(),
        file_bytes: job.file_bytes,
        files: job.files,
        files_usual: job.workers,
        file_name: job.file_name.clone(),
        globs: job.parsed_globs()?,
        start_bytes: job.start_bytes,
        overwrite: job.overwrite.clone(),
        overwrite_devices: job.overwrite_devices.clone(),
        path: job.path,
        cache: job.cache,
        engine: job.engine,
        atomic: job.atomic,
        priority: job.priority.as_deref().map(Priorities::parse).transpose()?.and_then(|p| p.some),
        sqpoll: job.sqpoll,
        iopoll: job.iopoll,
        workers: job.workers,
        workers_most,
        seed: job.seed,
        verify: job.verify,
        writes_content: job.verify || (job.refill && job.content.is_none()),
        units: units.into_iter().filter_map(|(flag, value)| Some((flag, value?))).collect(),
    })
}

/// Returns whether a run that ended normally wrote each block of its targets.
pub(crate) fn covers(job: &JobSpec) -> bool {
    let in_order = !job.op.is_random() || job.no_repeat;
    in_order
        && job.read_iolog.is_none()
        && job.passes.is_some()
        && !job.reads()
        && job.start_bytes == 0
        && (job.start_step_bytes, job.skip_bytes) == (0, 0)
        && !job.until_first
        && (job.limit_bytes, job.limit_ios) == (None, None)
        && job.duration_s.is_none()
}

/// Writes the job's content by the workers of a run of its own.
pub(crate) fn fill(job: &JobSpec, targets: &[Target], observer: &mut dyn Observer) -> Result<(), Error> {
    let write = JobSpec {
        sources: vec!["(files to create)".into()],
        path: PathKind::in_host_memory(),
        op: Op::Write,
        io_bytes: FILL_IO_BYTES,
        workers: FILL_WORKERS.min(targets.len() as u32),
        depth: 8,
        passes: Some(1),
        seed: job.seed,
        verify: true,
        sync: Sync::End,
        timeout_s: job.timeout_s.max(30.0),
        interval_ms: 250,
        ..JobSpec::default()
    };
    let total = targets.iter().map(|t| t.bytes).sum();
    let mut filling = Filling { observer, total, done: 0 };
    let ran = fleet::run_once(&write, targets, &vec![job.seed; targets.len()], Arc::default(), &mut filling)?;
    let errors = ran.errors();
    if let Some(e) = ran.broken {
        return Err(e);
    }
    if ran.interrupted {
        return Err(Error::run(
            "creating the files",
            "interrupted; they were removed again",
            "the same command again",
        ));
    }
    if errors.failed + errors.timed_out > 0 {
        return Err(Error::run("creating the files", errors.examples.join("; "), "df -h; dmesg | tail"));
    }
    Ok(())
}

struct Filling<'a> {
    observer: &'a mut dyn Observer,
    total: u64,
    done: u64,
}

impl Observer for Filling<'_> {
    fn progress(&mut self, p: &Progress) {
        self.done += p.interval_bytes;
        let share = 100.0 * self.done as f64 / self.total.max(1) as f64;
        let message = format!("creating files: {share:.0} % of {} MiB", self.total >> 20);
        self.observer.progress(&Progress { phase: Phase::Prepare, message: Some(message), ..p.clone() });
    }

    fn stop(&mut self) -> bool {
        self.observer.stop()
    }
}
