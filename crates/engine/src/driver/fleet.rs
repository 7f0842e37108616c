//! One run of one job: starts the workers together, watches the clock, gathers
//! what they report, and stops them together.

use super::measure::{Meters, Readings};
use super::series::{Detail, Series};
use super::share;
use super::silence::Silence;
use super::tally::{Snapshot, Tally};
use super::worker::{work, Kit, Report, Shared, WorkerSpec, STANDSTILL};
use super::{Observer, Phase, Progress};
use crate::clock;
use crate::path::Destination;
use crate::source::fault::FaultPlan;
use crate::source::Target;
use forebay_model::job::{JobSpec, Sync};
use forebay_model::record::{Errors, Point};
use forebay_model::stats::{Steady, SteadySpec};
use forebay_model::Error;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const WARMUP_MAX: f64 = 2.0;
/// Least time for what an open loop owes at its end.
const DRAIN_MIN: f64 = 1.0;
/// How long after the end of the time the observer is told what is waited for.
const WAITS: Duration = Duration::from_millis(250);
/// How often the caller is asked whether to go on. Each time wakes a thread, whose time counts as the run's.
const POLL: Duration = Duration::from_millis(200);
/// Above this many workers the series goes without percentiles: their histograms would cost more than they tell.
const WORKERS_WITH_HISTOGRAMS: u32 = 128;

/// What one run came to.
pub struct Ran {
    pub seconds: f64,
    pub tallies: Vec<Tally>,
    pub points: Vec<Point>,
    pub readings: Readings,
    pub interrupted: bool,
    pub steady_after_s: Option<f64>,
    /// Seconds in which the process stood still.
    pub stood_still_s: f64,
    /// Why a worker ended before its time.
    pub broken: Option<Error>,
    /// Of all workers: the least pages, all slots, all queues.
    pub kit: Kit,
}

impl Ran {
    pub fn bytes(&self) -> u64 {
        self.tallies.iter().map(|t| t.read_bytes + t.write_bytes).sum()
    }

    pub fn ios(&self) -> u64 {
        self.tallies.iter().map(|t| t.ios).sum()
    }

    pub fn errors(&self) -> Errors {
        Errors::sum(self.tallies.iter().map(|t| &t.errors))
    }
}

/// Runs the job once over open targets.
pub fn run_once(
    job: &JobSpec,
    targets: &[Target],
    content_seeds: &[u64],
    destination: Arc<Destination>,
    observer: &mut dyn Observer,
) -> Result<Ran, Error> {
    let times = Times::of(job);
    let specs = share::out(job, targets, &destination)?;
    let shared = Arc::new(Shared {
        job: job.clone(),
        targets: targets.to_vec(),
        content_seeds: content_seeds.to_vec(),
        destination,
        faults: job.faults.as_deref().map(FaultPlan::parse).transpose()?,
        stop: AtomicBool::new(false),
        from_ns: AtomicU64::new(times.warmup.as_nanos() as u64),
        until_ns: AtomicU64::new(
            times.measured.map_or(u64::MAX / 2, |d| (times.warmup + d).as_nanos() as u64),
        ),
        drain_ns: AtomicU64::new(times.drain(job).as_nanos() as u64),
        interval: Duration::from_millis(u64::from(job.interval_ms)),
        with_histograms: job.workers <= WORKERS_WITH_HISTOGRAMS,
    });
    let mut fleet = Fleet::launch(specs, &shared, observer)?;
    fleet.await_ready(observer)?;
    let ran = fleet.run(times, Meters::new(job, targets), observer);
    fleet.join_all_but_lost(&ran.tallies);
    Ok(ran)
}

#[derive(Clone, Copy)]
struct Times {
    warmup: Duration,
    /// None where passes end the run.
    measured: Option<Duration>,
}

impl Times {
    fn of(job: &JobSpec) -> Times {
        let measured = job.measured_s();
        let warmup = job.warmup_s.unwrap_or(match (job.passes, measured) {
            (None, Some(s)) => (s / 10.0).min(WARMUP_MAX),
            _ => 0.0,
        });
        Times { warmup: Duration::from_secs_f64(warmup), measured: measured.map(Duration::from_secs_f64) }
    }

    /// How long an open loop may take at its end for what it owes: as long again, and no longer than one I/O may.
    fn drain(self, job: &JobSpec) -> Duration {
        let measured = self.measured.map_or(f64::INFINITY, |d| d.as_secs_f64());
        Duration::from_secs_f64(measured.max(DRAIN_MIN).min(job.timeout_s))
    }
}

/// Seconds before anything is measured.
pub fn warmup_s(job: &JobSpec) -> f64 {
    Times::of(job).warmup.as_secs_f64()
}

/// Holds the workers back until all are ready: None while waiting, then the start, or no start at all.
type Gate = Arc<(Mutex<Option<Option<Instant>>>, Condvar)>;

struct Fleet {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    reports: Receiver<Report>,
    gate: Gate,
    kit: Kit,
}

impl Fleet {
    fn launch(
        specs: Vec<WorkerSpec>,
        shared: &Arc<Shared>,
        observer: &mut dyn Observer,
    ) -> Result<Fleet, Error> {
        let (sender, reports) = channel();
        let kit = Kit { pages: "none", ..Kit::default() };
        let mut fleet =
            Fleet { shared: shared.clone(), threads: Vec::new(), reports, gate: Gate::default(), kit };
        for spec in specs {
            if observer.stop() {
                fleet.call_off();
                return Err(interrupted());
            }
            let (shared, gate, sender) = (shared.clone(), fleet.gate.clone(), sender.clone());
            let name = thread_name(spec.index);
            let body = move || work(spec, shared, &|| pass(&gate), &sender);
            match std::thread::Builder::new().name(name).stack_size(1 << 20).spawn(body) {
                Ok(thread) => fleet.threads.push(thread),
                Err(e) => {
                    fleet.call_off();
                    let found = format!("the system refuses more threads: {e}");
                    return Err(Error::machine(
                        format!("--workers {}", fleet.shared.job.workers),
                        found,
                        "fewer --workers; ulimit -u",
                    ));
                }
            }
        }
        Ok(fleet)
    }

    fn open_gate(&self, begin: Option<Instant>) {
        *self.gate.0.lock().expect("no thread panics while it holds the gate") = Some(begin);
        self.gate.1.notify_all();
    }

    fn call_off(&mut self) {
        self.open_gate(None);
        self.join();
    }

    fn join(&mut self) {
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }

    /// A thread with an I/O that the kernel won't give back can't end, and isn't waited for.
    fn join_all_but_lost(&mut self, tallies: &[Tally]) {
        for tally in tallies.iter().filter(|t| t.lost > 0) {
            let name = thread_name(tally.worker);
            self.threads.retain(|t| t.thread().name() != Some(name.as_str()));
        }
        self.join();
    }

    /// Returns when every worker has its slots and queues, or with the first reason why one hasn't.
    fn await_ready(&mut self, observer: &mut dyn Observer) -> Result<(), Error> {
        let mut ready = 0;
        while ready < self.threads.len() {
            let failure = match self.reports.recv_timeout(POLL) {
                Ok(Report::Ready(kit)) => {
                    ready += 1;
                    self.kit.add(kit);
                    None
                }
                Ok(Report::Failed(e)) => Some(e),
                Err(RecvTimeoutError::Timeout) if observer.stop() => Some(interrupted()),
                Err(RecvTimeoutError::Disconnected) => {
                    Some(Error::run("the run", "a worker ended before it began", "forebay doctor"))
                }
                _ => None,
            };
            if let Some(e) = failure {
                self.call_off();
                return Err(e);
            }
        }
        Ok(())
    }

    fn run(&mut self, times: Times, meters: Meters, observer: &mut dyn Observer) -> Ran {
        let mut watch = Watch::new(&self.shared, times, meters);
        if times.warmup.is_zero() {
            watch.meters_first();
        }
        self.open_gate(Some(watch.begin));
        while watch.told() < self.threads.len() {
            watch.keep_time();
            let (asked, patience) = (clock::now(), watch.patience());
            let report = self.reports.recv_timeout(patience);
            watch.note_standstill(asked.elapsed().saturating_sub(patience));
            match report {
                Ok(Report::Snapshot(s)) => watch.hear(*s),
                Ok(Report::Ended(worker)) => watch.one_ended(worker),
                Ok(Report::Finished(t)) => watch.finish(*t),
                Ok(Report::Failed(e)) => watch.broken.push(e),
                Ok(Report::Ready(_)) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            watch.look(observer);
            watch.write_off_the_silent();
        }
        watch.close(self.kit.clone())
    }
}

fn interrupted() -> Error {
    Error::run("the run", "interrupted before it began", "the same command again")
}

fn thread_name(worker: u32) -> String {
    format!("worker-{worker}")
}

impl Kit {
    /// Workers may get different pages; together they have the worst of them.
    pub fn add(&mut self, other: Kit) {
        let rank = |p: &str| ["none", "hugetlb", "thp", "thp-partial", "small"].iter().position(|k| *k == p);
        if rank(other.pages) > rank(self.pages) {
            self.pages = other.pages;
        }
        self.features = other.features;
        self.slot_bytes += other.slot_bytes;
        self.queues += other.queues;
        self.ran.extend(other.ran);
        self.warning = self.warning.take().or(other.warning);
        self.content_on_host = self.content_on_host.take().or(other.content_on_host);
    }
}

/// The driver's side of the clock while workers run.
struct Watch {
    shared: Arc<Shared>,
    begin: Instant,
    times: Times,
    meters: Meters,
    /// When the meters started and stopped, since the run began.
    metered_from: Option<Duration>,
    metered_to: Duration,
    readings: Option<Readings>,
    /// Workers that have booked their last I/O.
    ended: u32,
    series: Series,
    tallies: Vec<Tally>,
    broken: Vec<Error>,
    steady: Option<Steady>,
    steady_after_s: Option<f64>,
    interrupted: bool,
    stood_still: Duration,
    silence: Silence,
    asked_at: Instant,
    /// What the observer was told last, until it was told that the time is over.
    told_last: Option<Progress>,
}

impl Watch {
    fn new(shared: &Arc<Shared>, times: Times, meters: Meters) -> Watch {
        let begin = clock::now();
        let labels = shared.targets.iter().map(|t| t.label.clone()).collect();
        Watch {
            shared: shared.clone(),
            begin,
            times,
            meters,
            metered_from: None,
            metered_to: Duration::ZERO,
            readings: None,
            ended: 0,
            series: Series::new(shared.job.workers, labels, shared.interval),
            tallies: Vec::new(),
            broken: Vec::new(),
            steady: shared.job.until_steady.then(|| Steady::new(SteadySpec::default())),
            steady_after_s: None,
            interrupted: false,
            stood_still: Duration::ZERO,
            silence: Silence::new(&shared.job),
            asked_at: begin,
            told_last: None,
        }
    }

    /// Without a warm-up the first I/Os are measured: the devices' counters are read before them, and the run begins
    /// after that.
    fn meters_first(&mut self) {
        self.meters.start();
        self.begin = clock::now();
        self.metered_from = Some(Duration::ZERO);
        self.asked_at = self.begin;
        self.silence.begin(self.begin);
    }

    fn until(&self) -> Duration {
        Duration::from_nanos(self.shared.until_ns.load(Ordering::Relaxed))
    }

    /// Workers that have nothing more to say.
    fn told(&self) -> usize {
        self.tallies.len() + self.broken.len()
    }

    fn ends_with_flush(&self) -> bool {
        self.shared.job.sync == Sync::End && self.shared.job.writes()
    }

    /// Starts and stops the meters on the edges of the measured time.
    fn keep_time(&mut self) {
        let elapsed = self.begin.elapsed();
        if elapsed >= self.times.warmup {
            self.start_meters();
        }
        if elapsed >= self.until() && !self.ends_with_flush() {
            self.stop_meters();
        }
    }

    fn start_meters(&mut self) {
        if self.metered_from.is_none() {
            self.meters.start();
            self.metered_from = Some(self.begin.elapsed());
        }
    }

    fn stop_meters(&mut self) {
        if self.metered_from.is_some() && self.readings.is_none() {
            self.metered_to = self.begin.elapsed();
            self.readings = Some(self.meters.stop());
        }
    }

    fn patience(&self) -> Duration {
        let elapsed = self.begin.elapsed();
        let edge = if elapsed < self.times.warmup { self.times.warmup } else { self.until() };
        let left = edge.saturating_sub(elapsed);
        if left.is_zero() {
            POLL
        } else {
            left.min(POLL)
        }
    }

    /// How much later this thread woke than it asked to.
    fn note_standstill(&mut self, late: Duration) {
        if late > STANDSTILL {
            self.stood_still += late;
            self.silence.forgive(late);
        }
    }

    fn hear(&mut self, snapshot: Snapshot) {
        self.silence.hear(&snapshot, clock::now());
        self.series.add(snapshot);
    }

    /// One that was written off has been counted, and may come back all the same.
    fn finish(&mut self, tally: Tally) {
        if self.tallies.iter().all(|told| told.worker != tally.worker) {
            self.tallies.push(tally);
        }
    }

    /// A worker that does its I/Os itself may be held in one for good: the others' figures, and its own so far, are
    /// kept without it.
    fn write_off_the_silent(&mut self) {
        for tally in self.silence.overdue(clock::now(), self.interrupted) {
            self.shared.stop.store(true, Ordering::Relaxed);
            self.one_ended(tally.worker);
            self.finish(tally);
        }
    }

    fn one_ended(&mut self, worker: u32) {
        self.silence.ended(worker);
        self.ended += 1;
        if self.ended == self.shared.job.workers {
            self.stop_meters();
        }
    }

    fn look(&mut self, observer: &mut dyn Observer) {
        for (point, detail) in self.series.ripe() {
            if let Some(steady) = self.steady.as_mut().filter(|_| !point.warmup) {
                if steady.push(point.t_s, point.gib_s) && self.steady_after_s.is_none() {
                    self.steady_after_s = Some(point.t_s);
                    self.end_now();
                }
            }
            let progress = progress_of(&point, detail, self.times);
            observer.progress(&progress);
            self.told_last = Some(progress);
            self.series.keep(point);
        }
        if self.begin.elapsed() > self.until().saturating_add(WAITS) {
            if let Some(last) = self.told_last.take() {
                let message = Some("waiting for I/Os that were under way or due at the end".into());
                // Its bytes were told.
                observer.progress(&Progress { message, interval_bytes: 0, ..last });
            }
        }
        if self.asked_at.elapsed() >= POLL && !self.interrupted {
            self.asked_at = clock::now();
            if observer.stop() {
                self.interrupted = true;
                self.end_now();
                self.drain_no_more();
            }
        }
    }

    fn end_now(&self) {
        self.shared.until_ns.fetch_min(self.begin.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }

    /// Who interrupts a run doesn't want to wait for what it owes; what has just fallen due is still started.
    fn drain_no_more(&self) {
        let since_end = self.begin.elapsed().saturating_sub(self.until()) + POLL;
        self.shared.drain_ns.fetch_min(since_end.as_nanos() as u64, Ordering::Relaxed);
    }

    fn close(mut self, kit: Kit) -> Ran {
        self.start_meters();
        self.stop_meters();
        let ended = self.tallies.iter().map(|t| t.ended).max().unwrap_or(self.begin.elapsed());
        let end = if self.ends_with_flush() { ended } else { ended.min(self.until()) };
        let (from, to) = (self.metered_from.unwrap_or_default(), self.metered_to);
        let readings = self.readings.take().unwrap_or_default().of_time((from, to), (self.times.warmup, end));
        self.tallies.sort_by_key(|t| t.worker);
        Ran {
            seconds: end.saturating_sub(self.times.warmup).as_secs_f64(),
            points: self.series.finish(),
            tallies: self.tallies,
            readings,
            interrupted: self.interrupted,
            steady_after_s: self.steady_after_s,
            stood_still_s: self.stood_still.as_secs_f64(),
            broken: self.broken.into_iter().next(),
            kit,
        }
    }
}

fn pass(gate: &Gate) -> Option<Instant> {
    let mut state = gate.0.lock().expect("no thread panics while it holds the gate");
    loop {
        if let Some(begin) = *state {
            return begin;
        }
        state = gate.1.wait(state).expect("no thread panics while it holds the gate");
    }
}

fn progress_of(point: &Point, detail: Detail, times: Times) -> Progress {
    Progress {
        phase: if point.warmup { Phase::Warmup } else { Phase::Measure },
        repeat: 0,
        repeats: 1,
        t_s: point.t_s,
        duration_s: times.measured.map(|d| (times.warmup + d).as_secs_f64()),
        gib_s: point.gib_s,
        iops: point.iops,
        bytes: detail.bytes_so_far,
        ios: detail.ios_so_far,
        interval_bytes: detail.bytes,
        latency_us_mean: point.latency_us_mean,
        latency_us_p50: detail.latency_us_p50,
        latency_us_p99: point.latency_us_p99,
        latency_us_p999: detail.latency_us_p999,
        cores_busy: point.cores_busy,
        workers: detail.workers,
        targets: detail.targets,
        message: None,
    }
}
