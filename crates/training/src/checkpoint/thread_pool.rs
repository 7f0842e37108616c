//! Threads that play the ranks, and the tasks that they get: a checkpoint begins when its task goes out, and is
//! over when the last of them has answered.

use super::checkpoint_dir::{places, CheckpointDir};
use super::worker::{Moved, Part, Report, Task, Worker};
use crate::opened::file::CreatedFile;
use crate::opened::resources::{spec_of, WorkerResources};
use crate::opened::Direction;
use forebay_bench::{
    guarded, Meters, NameOf, Observer, Phase, Progress, RanWindow, Resources, Shared, Threads,
};
use forebay_io::{monotonic_now, settle_thread_in};
use forebay_model::checkpoint::CheckpointSpec;
use forebay_model::content;
use forebay_model::job::JobSpec;
use forebay_model::series::Point;
use forebay_model::units::BYTES_PER_GIB as GIB;
use forebay_model::{Error, Latency};
use forebay_storage::{Destination, Target};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Interval at which the caller is asked whether to go on.
const POLL: Duration = Duration::from_millis(100);

enum Answer {
    Ready(Resources),
    Done(Box<Report>),
    Failed(Error),
}

pub(crate) struct ThreadPool {
    spec: Arc<CheckpointSpec>,
    shared: Arc<Shared>,
    moved: Arc<Moved>,
    threads: Threads,
    /// To each thread. They end without.
    tasks: Vec<Sender<Task>>,
    answers: Receiver<Answer>,
    resources: Resources,
}

/// One checkpoint, written or read, at this process.
pub(crate) struct StepRan {
    pub step: u32,
    pub ran: RanWindow,
    pub ranks: Vec<(u64, f64)>,
    pub fsync: Latency,
    pub made: Vec<CreatedFile>,
    pub failed: Option<Error>,
}

impl StepRan {
    pub(crate) fn is_whole(&self) -> bool {
        self.failed.is_none() && !self.ran.interrupted
    }
}

impl ThreadPool {
    pub(crate) fn start(
        spec: &CheckpointSpec,
        job: &JobSpec,
        target: Target,
        dir: &CheckpointDir,
        destination: Arc<Destination>,
    ) -> Result<ThreadPool, Error> {
        let shared = Arc::new(Shared::endless(job, vec![target], vec![dir.seed(1)], destination)?);
        let (sender, answers) = channel();
        let resources = Resources { pages: "none", ..Resources::default() };
        let spec = Arc::new(spec.clone());
        let threads = Threads::new("ranks", job.workers);
        let (moved, tasks) = (Arc::default(), Vec::new());
        let mut pool = ThreadPool { spec, shared, moved, threads, tasks, answers, resources };
        for index in 0..job.workers {
            pool.hire(index, sender.clone())?;
        }
        pool.await_ready()?;
        Ok(pool)
    }

    /// Ranks are assigned to the workers in turn.
    fn hire(&mut self, index: u32, answers: Sender<Answer>) -> Result<(), Error> {
        let ranks: Vec<u64> =
            self.spec.ranks_here().skip(index as usize).step_by(self.shared.job.workers as usize).collect();
        let (tasks, inbox) = channel();
        let (shared, spec, moved) = (self.shared.clone(), self.spec.clone(), self.moved.clone());
        self.threads.start(index, move |_| {
            let work = || attend(index, &shared, spec, moved, ranks, &inbox, &answers);
            if let Err(bug) = guarded(format!("worker {index}"), work) {
                shared.stop.store(true, Ordering::Relaxed);
                let _ = answers.send(Answer::Failed(bug));
            }
        })?;
        self.tasks.push(tasks);
        Ok(())
    }

    fn await_ready(&mut self) -> Result<(), Error> {
        for _ in 0..self.threads.len() {
            match self.answers.recv() {
                Ok(Answer::Ready(resources)) => self.resources.add(resources),
                Ok(Answer::Failed(e)) => return Err(e),
                Ok(Answer::Done(_)) | Err(_) => return Err(gone()),
            }
        }
        Ok(())
    }

    /// Makes all ranks write or read one checkpoint.
    pub(crate) fn step(
        &mut self,
        way: Direction,
        step: u32,
        dir: &CheckpointDir,
        observer: &mut dyn Observer,
    ) -> Result<StepRan, Error> {
        self.moved.bytes.store(0, Ordering::Relaxed);
        self.moved.ios.store(0, Ordering::Relaxed);
        self.shared.stop.store(false, Ordering::Relaxed);
        if way == Direction::Write {
            dir.begin(step)?;
        }
        let mut meters = Meters::new(&self.shared.job, &self.shared.targets);
        meters.start();
        let begin = monotonic_now();
        let task = Task { way, step, seed: dir.seed(step), begin };
        if self.tasks.iter().any(|tasks| tasks.send(task).is_err()) {
            return Err(gone());
        }
        let mut watch = Watch::new(self, task);
        let mut reports = Vec::new();
        let mut failed = None;
        while reports.len() < self.threads.len() {
            match self.answers.recv_timeout(watch.patience()) {
                Ok(Answer::Done(report)) => reports.push(*report),
                Ok(Answer::Failed(e)) => return Err(e),
                Ok(Answer::Ready(_)) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(gone()),
            }
            watch.observe(self, observer);
        }
        let took = begin.elapsed();
        let readings = meters.stop();
        reports.sort_by_key(|r| r.tally.worker);
        let whole = reports.iter().all(|r| r.is_whole);
        let ranks: Vec<(u64, f64)> = reports.iter().flat_map(|r| r.ranks.iter().copied()).collect();
        let last = ranks.iter().map(|r| r.1).fold(0.0, f64::max);
        let mut fsync = Latency::default();
        let mut made = Vec::new();
        let mut tallies = Vec::new();
        for report in reports {
            fsync.merge(&report.fsync);
            made.extend(report.made);
            tallies.push(report.tally);
            failed = failed.or(report.failed);
        }
        let ran = RanWindow {
            seconds: if whole { last } else { took.as_secs_f64() },
            tallies,
            points: watch.points,
            readings,
            interrupted: watch.interrupted && !whole,
            resources: self.resources.clone(),
            ..RanWindow::default()
        };
        Ok(StepRan { step, ran, ranks, fsync, made, failed })
    }

    /// Lets the threads go, and gives back what they shared.
    pub(crate) fn end(mut self) -> (Target, Arc<Destination>) {
        self.tasks.clear();
        self.threads.join();
        (self.shared.targets[0].clone(), self.shared.destination.clone())
    }
}

/// A thread's life: opens what it works with, says so, and carries out tasks until there are none.
fn attend(
    index: u32,
    shared: &Arc<Shared>,
    spec: Arc<CheckpointSpec>,
    moved: Arc<Moved>,
    ranks: Vec<u64>,
    tasks: &Receiver<Task>,
    answers: &Sender<Answer>,
) {
    let reported = spec_of(index, None, None);
    let idle = Part::nothing(monotonic_now());
    let settled = settle_thread_in(reported.cpu, reported.near);
    let (resources, about) =
        match settled.and_then(|()| WorkerResources::open(index, shared, names_of((*spec).clone()), idle)) {
            Ok(made) => made,
            Err(e) => {
                let _ = answers.send(Answer::Failed(e));
                return;
            }
        };
    // Each rank has one queue at a time.
    let about = Resources { queues: ranks.len() as u32, ..about };
    let mut worker = Worker::new(resources, index, shared.clone(), spec, moved, ranks);
    let _ = answers.send(Answer::Ready(about));
    while let Ok(task) = tasks.recv() {
        let report = worker.carry_out(task);
        let lost = report.tally.lost > 0;
        let _ = answers.send(Answer::Done(Box::new(report)));
        if lost {
            // The kernel may still write to its slots.
            std::mem::forget(worker);
            return;
        }
    }
}

/// Returns the function that names the file of the run to which a content claims to belong. Examined for only once
/// something is wrong.
fn names_of(spec: CheckpointSpec) -> NameOf {
    Box::new(move |id| {
        let steps = 1..=spec.writes.max(spec.reads);
        let all = steps.flat_map(|step| (0..spec.ranks()).map(move |rank| (step, rank)));
        all.flat_map(|(step, rank)| places(&spec, step, rank))
            .find(|place| content::file_id(&place.content) == id)
            .map(|place| place.content)
    })
}

fn gone() -> Error {
    Error::run("the run", "a worker ended early", "forebay doctor")
}

/// Looks on while a checkpoint goes on.
struct Watch {
    task: Task,
    points: Vec<Point>,
    interrupted: bool,
    next_point: Instant,
    next_ask: Instant,
    interval: Duration,
    before: (f64, u64, u64),
}

impl Watch {
    fn new(pool: &ThreadPool, task: Task) -> Watch {
        let interval = pool.shared.interval;
        Watch {
            task,
            points: Vec::new(),
            interrupted: false,
            next_point: task.begin + interval,
            next_ask: task.begin + POLL,
            interval,
            before: (0.0, 0, 0),
        }
    }

    fn patience(&self) -> Duration {
        self.next_point
            .min(self.next_ask)
            .saturating_duration_since(monotonic_now())
            .max(Duration::from_millis(1))
    }

    fn observe(&mut self, pool: &ThreadPool, observer: &mut dyn Observer) {
        let now = monotonic_now();
        if now >= self.next_point {
            self.next_point = now + self.interval;
            let point = self.point(pool, now);
            observer.progress(&self.progress(pool, &point));
            self.points.push(point);
        }
        if now >= self.next_ask && !self.interrupted {
            self.next_ask = now + POLL;
            if observer.stop() {
                self.interrupted = true;
                pool.shared.stop.store(true, Ordering::Relaxed);
            }
        }
    }

    fn point(&mut self, pool: &ThreadPool, now: Instant) -> Point {
        let t_s = now.duration_since(self.task.begin).as_secs_f64();
        let bytes = pool.moved.bytes.load(Ordering::Relaxed);
        let ios = pool.moved.ios.load(Ordering::Relaxed);
        let span = (t_s - self.before.0).max(1e-9);
        let point = Point {
            t_s,
            gib_s: (bytes - self.before.1) as f64 / GIB / span,
            iops: (ios - self.before.2) as f64 / span,
            ..Point::default()
        };
        self.before = (t_s, bytes, ios);
        point
    }

    fn progress(&self, pool: &ThreadPool, point: &Point) -> Progress {
        let (what, of, before) = match self.task.way {
            Direction::Write => ("write", pool.spec.writes, 0),
            Direction::Read => ("read", pool.spec.reads, pool.spec.writes),
        };
        let here = pool.shared.targets[0].bytes.max(1);
        let share = 100.0 * self.before.1 as f64 / here as f64;
        Progress {
            phase: Phase::Measure,
            repeat: before + self.task.step - 1,
            repeats: pool.spec.writes + pool.spec.reads,
            t_s: point.t_s,
            duration_s: None,
            gib_s: point.gib_s,
            iops: point.iops,
            bytes: self.before.1,
            ios: self.before.2,
            interval_bytes: (point.gib_s * GIB * self.interval.as_secs_f64()) as u64,
            latency_us_mean: None,
            latency_us_p50: None,
            latency_us_p99: None,
            latency_us_p999: None,
            cores_busy: None,
            workers: Vec::new(),
            targets: Vec::new(),
            message: Some(format!("{what} {} of {of}: {share:.0} %", self.task.step)),
        }
    }
}
