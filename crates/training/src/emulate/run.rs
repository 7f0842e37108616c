//! An emulated run from its spec to its record: looks, starts the workers, leads
//! through the epochs, and gathers what was counted.

use super::dataset::DataSet;
use super::destination::Destination;
use super::direct::{self, DirectReads};
use super::io_mode::{self, IoMode};
use super::record::{self, Ran};
use super::route;
use super::run_state::{RunState, Totals};
use super::supply;
use super::worker::{Latencies, Worker};
use super::{
    check_emulation, cpus_of, row_of, virtual_time, EmulateOutcome, EmulateProgress, Shared, StepBarrier,
};
use forebay_bench::{all_direct, guarded, with_run_thread, Meters, Observer, Threads};
use forebay_io::{monotonic_now, wall_seconds, CpuTimes};
use forebay_model::series::Point;
use forebay_model::training::{rules, EmulateSpec, Plan, RankStreams, Scheduler, Trace};
use forebay_model::units::BYTES_PER_GIB as GIB;
use forebay_model::{Error, Latency};
use forebay_storage::{allow_descriptors, Paths};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Interval at which the caller is asked whether to go on.
const POLL: Duration = Duration::from_millis(100);
const LATE_SHOWN: usize = 8;

/// Runs the spec. An error means that nothing was measured; what broke midway stands in the outcome.
///
/// `barrier`: accelerators of other hosts take part, and every step ends with theirs.
pub fn run_emulation(
    spec: &EmulateSpec,
    command: Vec<String>,
    observer: &mut dyn Observer<EmulateProgress>,
    barrier: Option<Box<dyn StepBarrier>>,
) -> Result<EmulateOutcome, Error> {
    with_run_thread(observer, |word| run_watched(spec, command, word, barrier))
}

fn run_watched(
    spec: &EmulateSpec,
    command: Vec<String>,
    observer: &mut dyn Observer<EmulateProgress>,
    barrier: Option<Box<dyn StepBarrier>>,
) -> Result<EmulateOutcome, Error> {
    let begin = monotonic_now();
    let started = wall_seconds();
    check_emulation(spec)?;
    if let Some(model) = virtual_time::model_of(spec)? {
        return virtual_time::run(spec, &model, command, observer, barrier.is_some());
    }
    let shared = Arc::new(prepare(spec, barrier.is_some(), begin)?);
    let rss_before = record::rss_bytes();
    let mut workers = Workers::launch(&shared)?;
    let mut meters = Meters::new(&record::job_of(&shared).spec, std::slice::from_ref(&shared.io_mode.probe));
    meters.start();
    let mut conductor = Conductor::new(&shared, observer, barrier);
    let broken = conductor.lead();
    let readings = meters.stop();
    let rss = record::rss_bytes();
    let Conductor { mut epochs, points, step, interrupted, first_step_s, reported, .. } = conductor;
    // Counts are whole once every worker has ended.
    let latencies = workers.end();
    if let (Some((_, bytes)), Some(reported)) = (epochs.last_mut(), reported) {
        *bytes += shared.run_state.totals().bytes - reported;
    }
    shared.run_state.account_for_the_rest();
    let failure = shared.run_state.lock().failure.take().or(broken.err());
    if let (Some(failure), true) = (&failure, epochs.is_empty()) {
        return Err(failure.clone());
    }
    let ran = Ran { epochs, points, readings, latencies, step, interrupted, rss_before, rss, first_step_s };
    let record = record::compose(&shared, command, started, &ran);
    let path = Paths::by_kind(shared.route.path);
    let insists = path.insists_on_direct(spec.allow_compat).then(|| path.name());
    let failure =
        failure.or_else(|| all_direct(spec.require_direct, insists, &record.path, record.result.bytes));
    Ok(EmulateOutcome { record, failure })
}

fn prepare(spec: &EmulateSpec, awaits_others: bool, begin: Instant) -> Result<Shared, Error> {
    let row = row_of(spec)?;
    let workers = io_mode::workers_of(spec);
    let (data, model) = DataSet::open(spec, row.extension, workers)?;
    let found = u32::try_from(data.len()).unwrap_or(u32::MAX);
    let files = match spec.workload.files {
        0 => found,
        wanted if wanted > found => {
            return Err(Error::request(
                format!("--data {} with {wanted} files", spec.data.join(" ")),
                format!("there are {found}: too few files"),
                "forebay emulate datagen with the same --files, or fewer ‹files›",
            ))
        }
        wanted => wanted,
    };
    let trace = Trace::new(spec, files)?;
    let devices = Destination::devices(spec)?;
    let resident = io_mode::residency(spec, &data)?;
    let route = route::choose(spec, row, &data, &resident, &devices)?;
    // A file that may not be read further stays open until it may.
    let open = u64::from(spec.accelerators) * u64::from(spec.read_threads);
    allow_descriptors(open + direct::descriptors(&route, files));
    let plan = Plan {
        ranks: spec.accelerators,
        batch: spec.workload.batch,
        prefetch: spec.batches_ahead().max(1),
        read_threads: spec.read_threads,
        steps: trace.steps(),
        compute_ns: spec.workload.compute_ns(),
        awaits_others,
    };
    let io_mode = IoMode::choose(spec, &data, resident, route.path)?;
    let direct_reads = DirectReads::open(spec, &route, &io_mode, &devices, files)?;
    let io_mode = match &direct_reads {
        Some(direct_reads) => direct_reads.within(io_mode),
        None => io_mode,
    };
    let session = direct_reads.as_ref().and_then(DirectReads::set_up);
    let destination = Destination::new(spec, devices, io_mode.io_bytes as usize, session);
    let run_state = RunState::new(Scheduler::new(plan), io_mode.workers as usize, destination);
    let (supply, cpus) = (supply::rate_of(spec), cpus_of(spec)?);
    Ok(Shared {
        spec: spec.clone(),
        row,
        files,
        data,
        io_mode,
        route,
        plan,
        trace,
        run_state,
        direct_reads,
        supply,
        model,
        cpus,
        begin,
    })
}

/// The workers' threads.
struct Workers {
    shared: Arc<Shared>,
    threads: Threads,
    reports: Receiver<Latencies>,
}

impl Workers {
    /// Starts the workers; once all are ready nothing has been read.
    fn launch(shared: &Arc<Shared>) -> Result<Workers, Error> {
        let (sender, reports) = channel();
        let (ready, is_ready) = channel::<Result<(), Error>>();
        let threads = Threads::new("worker", shared.io_mode.workers);
        let mut workers = Workers { shared: shared.clone(), threads, reports };
        for index in 0..shared.io_mode.workers {
            let (shared, sender, ready) = (shared.clone(), sender.clone(), ready.clone());
            let body = move |_: &_| work(index as usize, shared, &ready, &sender);
            if let Err(e) = workers.threads.start(index, body) {
                workers.end();
                return Err(e);
            }
        }
        drop(ready);
        let failed = (0..workers.threads.len()).find_map(|_| match is_ready.recv() {
            Ok(ready) => ready.err(),
            Err(_) => Some(Error::run("the run", "a worker ended before it began", "forebay doctor")),
        });
        match failed {
            None => Ok(workers),
            Some(e) => {
                workers.end();
                Err(e)
            }
        }
    }

    fn end(&mut self) -> Latencies {
        self.shared.run_state.end();
        self.threads.join();
        let mut all = Latencies::default();
        for part in self.reports.try_iter() {
            all.read.merge(&part.read);
            all.sample.merge(&part.sample);
        }
        all
    }
}

fn work(index: usize, shared: Arc<Shared>, ready: &Sender<Result<(), Error>>, reports: &Sender<Latencies>) {
    let worker = match Worker::open(index, shared.clone()) {
        Ok(worker) => worker,
        Err(e) => {
            let _ = ready.send(Err(e));
            return;
        }
    };
    let _ = ready.send(Ok(()));
    match guarded(format!("worker {index}"), || worker.run()) {
        Ok(latencies) => {
            let _ = reports.send(latencies);
        }
        Err(bug) => shared.run_state.fail(bug),
    }
}

/// Leads through the epochs, and watches.
struct Conductor<'a> {
    shared: &'a Shared,
    observer: &'a mut dyn Observer<EmulateProgress>,
    barrier: Option<Box<dyn StepBarrier>>,
    epochs: Vec<(Vec<rules::Steps>, u64)>,
    points: Vec<Point>,
    /// Sum over all steps.
    step: Latency,
    interrupted: bool,
    first_step_s: Option<f64>,
    /// All bytes when the last epoch ended, if it counts.
    reported: Option<u64>,
    next_poll: Instant,
    next_tick: Instant,
    last: (Instant, Totals, CpuTimes),
}

/// Event that the conductor waits for.
enum Await {
    /// The epoch's last step ends.
    End(u64),
    /// The step ended here.
    Others(u64, u32),
    Steps,
}

impl<'a> Conductor<'a> {
    fn new(
        shared: &'a Shared,
        observer: &'a mut dyn Observer<EmulateProgress>,
        barrier: Option<Box<dyn StepBarrier>>,
    ) -> Conductor<'a> {
        let now = monotonic_now();
        Conductor {
            shared,
            observer,
            barrier,
            epochs: Vec::new(),
            points: Vec::new(),
            step: Latency::default(),
            interrupted: false,
            first_step_s: None,
            reported: None,
            next_poll: now,
            next_tick: now + Duration::from_secs_f64(shared.spec.interval_s),
            last: (now, Totals::default(), CpuTimes::of_process()),
        }
    }

    /// All epochs, or as far as they go.
    fn lead(&mut self) -> Result<(), Error> {
        for epoch in 0..self.shared.spec.epochs {
            let before = self.shared.run_state.totals().bytes;
            let led = self.lead_one(epoch);
            let state = self.shared.run_state.lock();
            let steps = state.scheduler.epoch().to_vec();
            drop(state);
            self.reported = None;
            if steps.first().is_some_and(|s| s.steps > 0) {
                let bytes = self.shared.run_state.totals().bytes;
                self.epochs.push((steps, bytes - before));
                self.reported = Some(bytes);
            }
            led?;
            if self.interrupted || self.shared.run_state.lock().failure.is_some() {
                break;
            }
        }
        Ok(())
    }

    fn lead_one(&mut self, epoch: u32) -> Result<(), Error> {
        let shared = self.shared;
        let first = shared.spec.first_rank;
        let mut streams = |rank: u32| Box::new(shared.trace.streams(epoch, first + rank)) as RankStreams;
        let now = shared.since(monotonic_now());
        // Nothing was read before the epoch began.
        shared.supply.iter().for_each(|rate| rate.forget_reserve(now));
        shared.run_state.change(|s| s.begin(now, &mut streams));
        while !self.is_stopped() {
            match self.next_wait() {
                Await::End(at) if shared.since(monotonic_now()) >= at => break,
                Await::Others(at, step) if shared.since(monotonic_now()) >= at => {
                    let barrier = self.barrier.as_mut().expect("others take part");
                    barrier.pass(epoch, step)?;
                    let now = shared.since(monotonic_now());
                    shared.run_state.change(|s| s.passed(now));
                }
                Await::End(at) | Await::Others(at, _) => self.rest(Some(at)),
                Await::Steps => self.rest(None),
            }
            self.watch(epoch);
        }
        self.next_wait();
        Ok(())
    }

    fn is_stopped(&self) -> bool {
        self.interrupted || self.shared.run_state.stop.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn next_wait(&mut self) -> Await {
        let mut state = self.shared.run_state.lock();
        for length in state.scheduler.take_lengths() {
            self.step.record_n(length, self.shared.spec.accelerators.into());
        }
        let scheduler = &state.scheduler;
        if self.first_step_s.is_none() && scheduler.step() > 0 {
            let starts = scheduler.epoch().iter().map(|s| s.start_ns + s.first.wait_ns);
            self.first_step_s = starts.min().map(|ns| ns as f64 / 1e9);
        }
        match scheduler.awaits_others() {
            Some(at) => Await::Others(at, scheduler.step()),
            None if scheduler.is_over() => Await::End(scheduler.end_ns()),
            None => Await::Steps,
        }
    }

    /// Sleeps until somebody tells something, or until `at`.
    fn rest(&self, at: Option<u64>) {
        let now = monotonic_now();
        let mut until = self.next_poll.min(self.next_tick);
        if let Some(at) = at {
            until = until.min(self.shared.begin + Duration::from_nanos(at));
        }
        let run_state = &self.shared.run_state;
        let state = run_state.lock();
        let reported = state.scheduler.awaits_others().is_some() || state.scheduler.is_over();
        if until > now && (at.is_some() || !reported) {
            drop(run_state.changed.wait_timeout(state, until - now));
        }
    }

    fn watch(&mut self, epoch: u32) {
        let now = monotonic_now();
        if now >= self.next_poll {
            self.next_poll = now + POLL;
            self.interrupted |= self.observer.stop();
        }
        if now >= self.next_tick {
            self.next_tick = now + Duration::from_secs_f64(self.shared.spec.interval_s);
            let progress = self.progress(epoch, now);
            self.observer.progress(&progress);
        }
    }

    fn progress(&mut self, epoch: u32, now: Instant) -> EmulateProgress {
        let shared = self.shared;
        let (totals, used) = (shared.run_state.totals(), CpuTimes::of_process());
        let (then, before, used_before) = std::mem::replace(&mut self.last, (now, totals, used));
        let seconds = now.duration_since(then).as_secs_f64().max(1e-9);
        let spent = totals.since(&before);
        let gib_s = spent.bytes as f64 / GIB / seconds;
        let cores_busy = (used.total_s() - used_before.total_s()) / seconds;
        let state = shared.run_state.lock();
        let steps = state.scheduler.epoch();
        let figures = rules::of_epoch(shared.spec.rules, steps, shared.spec.workload.batch);
        let t_s = shared.since(now) as f64 / 1e9;
        self.points.push(Point {
            t_s,
            gib_s,
            iops: spent.ios as f64 / seconds,
            cores_busy: Some(cores_busy),
            ..Point::default()
        });
        EmulateProgress {
            phase: "run",
            epoch: epoch + 1,
            epochs: shared.spec.epochs,
            step: state.scheduler.step(),
            steps: shared.plan.steps,
            t_s,
            au_pct: figures.au_pct,
            gib_s,
            waiting_ranks: state.scheduler.late(shared.since(now), LATE_SHOWN),
            cores_busy,
        }
    }
}
