//! Checkpoints written and read back as the ranks of a large model do: each rank its own files, one after another,
//! flushed before they are closed; a checkpoint is done when its last rank is.
//!
//! A few threads act as all ranks of this process. What moves bytes is bench's: queues, reactors, slots, content.

mod checkpoint_dir;
mod flow;
mod results;
mod thread_pool;
mod worker;

#[cfg(test)]
mod tests;

use crate::opened::Direction;
use crate::Barrier;
use checkpoint_dir::CheckpointDir;
use forebay_bench::{check_memory, requirements_of_job, with_run_thread, Observer, Outcome};
use forebay_io::{cuda_devices, monotonic_now, wall_seconds};
use forebay_model::checkpoint::{CheckpointSpec, Sizes};
use forebay_model::job::{JobSpec, Op, PathKind, Sync, DEPTH_MAX};
use forebay_model::Error;
use forebay_storage::{allow_descriptors, Destination, Paths, SourceMedium};
use results::Story;
use serde::Serialize;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thread_pool::ThreadPool;

/// Interval at which the observer is asked whether to continue while nothing is measured.
const POLL: Duration = Duration::from_millis(100);

/// Plan of `run`, without running it.
#[derive(Debug, Serialize)]
pub struct Plan {
    pub spec: CheckpointSpec,
    pub ranks: u64,
    /// One checkpoint of all ranks, and what this process has of it.
    pub bytes: u64,
    pub model_bytes: u64,
    pub optimizer_bytes: u64,
    pub files: u64,
    pub bytes_here: u64,
    pub workers: u32,
    pub buffer_bytes: u64,
    pub folders: Vec<String>,
    /// Bytes that this host's checkpoints need below the folder, and bytes that are free there; null where the file
    /// system doesn't say.
    pub room_needed_bytes: u64,
    pub room_bytes: Option<u64>,
}

/// Everything that can be found wrong without touching anything, and what the run comes to.
pub fn plan_checkpoint(spec: &CheckpointSpec) -> Result<Plan, Error> {
    check(spec)?;
    let (room_needed_bytes, room_bytes) = CheckpointDir::examine(spec)?.room();
    let (job, _) = job_of(spec);
    let (sizes, here): (Sizes, Sizes) = (spec.sizes(), spec.sizes_here());
    Ok(Plan {
        ranks: spec.ranks(),
        bytes: sizes.bytes(),
        model_bytes: sizes.model,
        optimizer_bytes: sizes.optimizer,
        files: sizes.files,
        bytes_here: here.bytes(),
        workers: job.workers,
        buffer_bytes: job.io_bytes * u64::from(job.depth) * u64::from(job.workers),
        folders: (1..=spec.writes.max(spec.reads)).map(forebay_model::checkpoint::folder).collect(),
        room_needed_bytes,
        room_bytes,
        spec: spec.clone(),
    })
}

/// Errors that don't depend on the machine.
pub(crate) fn check(spec: &CheckpointSpec) -> Result<(), Error> {
    spec.check()?;
    // What `auto` stands for is settled where there is a machine to look at.
    requirements_of_job(&job_by(spec, spec.path).0)
}

/// Writes and reads the checkpoints. An error means that nothing was measured; what broke midway stands in the outcome.
pub fn run_checkpoint(
    spec: &CheckpointSpec,
    command: Vec<String>,
    observer: &mut dyn Observer,
    barrier: Option<&mut dyn Barrier>,
) -> Result<Outcome, Error> {
    with_run_thread(observer, |word| run_watched(spec, command, word, barrier))
}

fn run_watched(
    spec: &CheckpointSpec,
    command: Vec<String>,
    observer: &mut dyn Observer,
    barrier: Option<&mut dyn Barrier>,
) -> Result<Outcome, Error> {
    check(spec)?;
    let started = wall_seconds();
    let mut dir = CheckpointDir::examine(spec)?;
    dir.check_room()?;
    let (job, reason) = job_of(spec);
    Paths::check(job.path, &spec.dir, &SourceMedium::file())?;
    let destination = Arc::new(Destination::open(&job)?);
    allow_descriptors(2 * spec.sizes_here().files + u64::from(job.workers) * 8);
    let pool = gather(spec, &job, &mut dir, destination).inspect_err(|_| dir.close())?;
    let mut show = Show { spec, pool, dir, story: Story::default(), barrier };
    let failed = show.play(observer).err();
    let Show { pool, story, dir, .. } = show;
    let (target, destination) = pool.end();
    dir.close();
    let failed = match failed {
        Some(e) if story.is_empty() => return Err(e),
        None if story.is_unbegun() => {
            return Err(Error::run("the run", "interrupted before it began", "the same command again"));
        }
        failed => failed,
    };
    let context = results::Context { spec, job, reason, command, started, target, destination };
    Ok(results::outcome(context, story, failed))
}

/// Everything that can fail before the first checkpoint.
fn gather(
    spec: &CheckpointSpec,
    job: &JobSpec,
    dir: &mut CheckpointDir,
    destination: Arc<Destination>,
) -> Result<ThreadPool, Error> {
    let target = dir.target(job)?;
    check_memory(job, std::slice::from_ref(&target), destination.feeds_gpu())?;
    destination.attach(job, std::slice::from_ref(&target))?;
    ThreadPool::start(spec, job, target, dir, destination)
}

/// The job of bench that has the same fields, for everything of bench's that is used, and for the record; and what
/// was settled of it, in words.
fn job_of(spec: &CheckpointSpec) -> (JobSpec, Option<String>) {
    let (path, why) = settled(spec);
    let (job, bounded) = job_by(spec, path);
    let reasons: Vec<String> = [why, bounded].into_iter().flatten().collect();
    (job, (!reasons.is_empty()).then(|| reasons.join("; ")))
}

/// The job for this path, and whether the buffers limit its depth.
fn job_by(spec: &CheckpointSpec, path: PathKind) -> (JobSpec, Option<String>) {
    let here = spec.ranks_here();
    let ranks = here.end - here.start;
    let processors = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let workers = u64::from(spec.workers.unwrap_or(u32::MAX)).min(ranks).min(if spec.workers.is_some() {
        u64::from(u32::MAX)
    } else {
        processors
    });
    let per_worker = ranks.div_ceil(workers) * u64::from(spec.depth);
    let fitting = (spec.buffer_bytes / spec.io_bytes / workers).max(1);
    let depth = per_worker.min(fitting).min(u64::from(DEPTH_MAX)) as u32;
    let bounded = (u64::from(depth) < per_worker)
        .then(|| format!("{depth} buffers per worker: ranks take turns at them"));
    let job = JobSpec {
        sources: vec![spec.dir.clone()],
        path,
        op: if spec.writes > 0 { Op::Write } else { Op::Read },
        io_bytes: spec.io_bytes,
        files: Some(spec.sizes_here().files as u32),
        file_name: "global_epoch1_step%d".into(),
        workers: workers as u32,
        depth,
        passes: Some(1),
        repeat: (spec.writes + spec.reads).max(1),
        seed: spec.seed,
        cache: spec.cache,
        engine: spec.engine,
        sync: if spec.fsync { Sync::End } else { Sync::None },
        verify: spec.verify,
        timeout_s: spec.timeout_s,
        gpus: spec.gpus.clone(),
        allow_compat: spec.allow_compat,
        require_direct: spec.require_direct,
        power: spec.power.clone(),
        interval_ms: spec.interval_ms,
        faults: spec.faults.clone(),
        ..JobSpec::default()
    };
    (job, bounded)
}

/// `auto`: from GPU memory through pinned slots where there is a GPU, or by cuFile if all is to go direct; else from host
/// memory.
fn settled(spec: &CheckpointSpec) -> (PathKind, Option<String>) {
    if !spec.path.is_found() {
        return (spec.path, None);
    }
    let (path, why) = match cuda_devices() {
        (0, why) if spec.gpus.is_empty() => PathKind::without_gpu(why),
        _ => PathKind::of_new_files(spec.require_direct),
    };
    (path, Some(why))
}

/// The run while it goes on.
struct Show<'a, 'b> {
    spec: &'a CheckpointSpec,
    pool: ThreadPool,
    dir: CheckpointDir,
    story: Story,
    barrier: Option<&'b mut (dyn Barrier + 'b)>,
}

impl Show<'_, '_> {
    /// All checkpoints in their order; ends early, with no error, where the observer asks for it.
    fn play(&mut self, observer: &mut dyn Observer) -> Result<(), Error> {
        let mut wrote_until: Option<Instant> = None;
        for step in 1..=self.spec.writes {
            if step > 1 && !self.rest(observer) {
                return Ok(());
            }
            if !self.meet()? || !self.step(Direction::Write, step, observer)? {
                return Ok(());
            }
            wrote_until = Some(monotonic_now());
        }
        if self.spec.reads == 0 {
            return Ok(());
        }
        // Every host has written all that another may read.
        if !self.meet()? {
            return Ok(());
        }
        self.story.resident = self.dir.clear_cache()?;
        for step in 1..=self.spec.reads {
            if (step > 1 || wrote_until.is_some()) && !self.rest(observer) {
                return Ok(());
            }
            if !self.meet()? {
                return Ok(());
            }
            if step == 1 {
                self.story.write_to_read_s = wrote_until.map(|at| at.elapsed().as_secs_f64());
            }
            if !self.step(Direction::Read, step, observer)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// One checkpoint; false where the observer ended it.
    fn step(&mut self, way: Direction, step: u32, observer: &mut dyn Observer) -> Result<bool, Error> {
        let ran = self.pool.step(way, step, &self.dir, observer)?;
        let (whole, failed) = (ran.is_whole(), ran.failed.clone());
        if way == Direction::Write {
            match whole {
                true => self.dir.note(step, &ran.made)?,
                false => self.dir.take_away(step, &ran.made),
            }
        }
        self.story.add(way, ran);
        failed.map_or(Ok(whole), Err)
    }

    /// The time between checkpoints; false where the observer asks for the end.
    fn rest(&mut self, observer: &mut dyn Observer) -> bool {
        let until = monotonic_now() + Duration::from_secs_f64(self.spec.between_s);
        loop {
            if observer.stop() {
                self.story.interrupted = true;
                return false;
            }
            let left = until.saturating_duration_since(monotonic_now());
            if left.is_zero() {
                return true;
            }
            std::thread::sleep(left.min(POLL));
        }
    }

    /// Waits for all hosts; false if one of them ended the run.
    fn meet(&mut self) -> Result<bool, Error> {
        let all = self.barrier.as_mut().map_or(Ok(true), |barrier| barrier.pass())?;
        self.story.interrupted |= !all;
        Ok(all)
    }
}
