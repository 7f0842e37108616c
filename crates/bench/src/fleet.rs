//! One run of one job: starts the workers together, watches the clock, gathers
//! what they report, and stops them together.

mod watch;

use super::run_kit::{Meters, Observer, Ran, Resources, Shared, Standstills, Threads, WorkerSpec};
use super::share;
use super::worker::work;
use super::worker::Report;
use super::worker_setup::used_targets;
use forebay_io::monotonic_now;
use forebay_model::job::JobSpec;
use forebay_model::Error;
use forebay_storage::{Destination, Target};
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError};
use std::sync::Arc;
use std::time::Duration;
use watch::Watch;

/// After this time past the end, the observer is shown what the run is waiting for.
const WAITS: Duration = Duration::from_millis(250);
/// Interval at which the caller is asked whether to go on. Each time wakes a thread, whose time counts as the run's.
const POLL: Duration = Duration::from_millis(200);
/// With more workers than this, the series has no percentiles: collecting their histograms would cost too much.
const WORKERS_WITH_HISTOGRAMS: u32 = 128;

/// Runs the job once over open targets.
pub(crate) fn run_once(
    job: &JobSpec,
    targets: &[Target],
    content_seeds: &[u64],
    destination: Arc<Destination>,
    observer: &mut dyn Observer,
) -> Result<Ran, Error> {
    let warmup = Duration::from_secs_f64(job.warmup_seconds());
    let measured = job.measured_s().map(Duration::from_secs_f64);
    let drain = Duration::from_secs_f64(job.drain_seconds());
    let specs = share::out(job, targets, &destination)?;
    for (index, target) in (0..).zip(targets) {
        let uses = |spec: &&WorkerSpec| used_targets(&spec.pattern).contains(&index);
        target.divide_among(specs.iter().filter(uses).count() as u32);
    }
    let shared = Arc::new(Shared {
        from_ns: AtomicU64::new(warmup.as_nanos() as u64),
        until_ns: AtomicU64::new(measured.map_or(u64::MAX / 2, |d| (warmup + d).as_nanos() as u64)),
        drain_ns: AtomicU64::new(drain.as_nanos() as u64),
        with_histograms: job.workers <= WORKERS_WITH_HISTOGRAMS,
        ..Shared::endless(job, targets.to_vec(), content_seeds.to_vec(), destination)?
    });
    let mut fleet = Fleet::launch(specs, &shared, observer)?;
    fleet.await_ready(observer)?;
    let ran = fleet.run(Meters::new(job, targets), observer);
    let is_lost = |worker| ran.tallies.iter().any(|t| t.worker == worker && t.lost > 0);
    fleet.threads.join_all_but(is_lost);
    Ok(ran)
}

struct Fleet {
    shared: Arc<Shared>,
    threads: Threads,
    reports: Receiver<Report>,
    resources: Resources,
}

impl Fleet {
    fn launch(
        specs: Vec<WorkerSpec>,
        shared: &Arc<Shared>,
        observer: &mut dyn Observer,
    ) -> Result<Fleet, Error> {
        let (sender, reports) = channel();
        let resources = Resources { pages: "none", ..Resources::default() };
        let mut threads = Threads::new("worker", shared.job.workers);
        for spec in specs {
            let (number, shared, sender) = (spec.index, shared.clone(), sender.clone());
            let started = match observer.stop() {
                true => Err(interrupted()),
                false => threads.start(number, move |gate| work(spec, shared, &|| gate.pass(), &sender)),
            };
            if let Err(e) = started {
                threads.call_off();
                return Err(e);
            }
        }
        Ok(Fleet { shared: shared.clone(), threads, reports, resources })
    }

    /// Returns when every worker has its slots and queues, or with the first reason why one hasn't.
    fn await_ready(&mut self, observer: &mut dyn Observer) -> Result<(), Error> {
        let mut ready = 0;
        while ready < self.threads.len() {
            let failure = match self.reports.recv_timeout(POLL) {
                Ok(Report::Ready(resources)) => {
                    ready += 1;
                    self.resources.add(resources);
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
                self.threads.call_off();
                return Err(e);
            }
        }
        Ok(())
    }

    fn run(&mut self, meters: Meters, observer: &mut dyn Observer) -> Ran {
        let watching = Standstills::watch(&self.shared.standstills);
        let mut watch = Watch::new(&self.shared, meters);
        if watch.warmup.is_zero() {
            watch.meters_first();
        }
        self.threads.gate().open(watch.begin);
        while watch.reported() < self.threads.len() {
            watch.keep_time();
            let (asked, patience) = (monotonic_now(), watch.patience());
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
            watch.observe(observer);
            watch.write_off_the_silent();
        }
        drop(watching);
        watch.close(self.resources.clone())
    }
}

fn interrupted() -> Error {
    Error::run("the run", "interrupted before it began", "the same command again")
}
