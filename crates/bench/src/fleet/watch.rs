//! The run's side of the clock while workers run.

use super::super::minimum_rate::MinimumRate;
use super::super::run_kit::{
    Meters, Observer, Phase, Progress, Ran, Readings, Resources, Shared, Snapshot, Tally, STANDSTILL,
};
use super::super::series::Detail;
use super::super::series::Series;
use super::super::watchdog::Watchdog;
use super::POLL;
use super::WAITS;
use forebay_io::monotonic_now;
use forebay_model::job::JobSpec;
use forebay_model::job::Judge;
use forebay_model::job::Sync;
use forebay_model::series::Point;
use forebay_model::Error;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

/// The run's side of the clock while workers run.
pub(super) struct Watch {
    pub(super) shared: Arc<Shared>,
    pub(super) begin: Instant,
    pub(super) warmup: Duration,
    pub(super) meters: Meters,
    /// When the meters started and stopped, since the run began.
    pub(super) metered_from: Option<Duration>,
    pub(super) metered_to: Duration,
    pub(super) readings: Option<Readings>,
    /// Workers that have booked their last I/O.
    pub(super) ended: u32,
    pub(super) series: Series,
    pub(super) tallies: Vec<Tally>,
    pub(super) broken: Vec<Error>,
    pub(super) steady: Option<Judge>,
    pub(super) steady_after_s: Option<f64>,
    pub(super) least: Option<MinimumRate>,
    pub(super) interrupted: bool,
    /// Seen by this thread alone: what counts where none could be started to look for it.
    pub(super) stood_still: Duration,
    pub(super) watchdog: Watchdog,
    pub(super) asked_at: Instant,
    /// The last progress shown to the observer before the end of the measured time.
    pub(super) reported_last: Option<Progress>,
}

impl Watch {
    pub(super) fn new(shared: &Arc<Shared>, meters: Meters) -> Watch {
        let begin = monotonic_now();
        let labels = shared.targets.iter().map(|t| t.label.clone()).collect();
        Watch {
            shared: shared.clone(),
            begin,
            warmup: Duration::from_secs_f64(shared.job.warmup_seconds()),
            meters,
            metered_from: None,
            metered_to: Duration::ZERO,
            readings: None,
            ended: 0,
            series: Series::new(shared.job.workers, labels, shared.interval),
            tallies: Vec::new(),
            broken: Vec::new(),
            steady: Judge::for_job(&shared.job),
            steady_after_s: None,
            least: MinimumRate::for_job(&shared.job),
            interrupted: false,
            stood_still: Duration::ZERO,
            watchdog: Watchdog::new(&shared.job),
            asked_at: begin,
            reported_last: None,
        }
    }

    /// Without a warm-up the first I/Os are measured: the devices' counters are read before them, and the run begins
    /// after that.
    pub(super) fn meters_first(&mut self) {
        self.meters.start();
        self.begin = monotonic_now();
        self.metered_from = Some(Duration::ZERO);
        self.asked_at = self.begin;
        self.watchdog.begin(self.begin);
    }

    pub(super) fn until(&self) -> Duration {
        Duration::from_nanos(self.shared.until_ns.load(Ordering::Relaxed))
    }

    /// Workers that have nothing more to say.
    pub(super) fn reported(&self) -> usize {
        self.tallies.len() + self.broken.len()
    }

    pub(super) fn ends_with_flush(&self) -> bool {
        self.shared.job.sync == Sync::End && self.shared.job.writes()
    }

    /// Starts and stops the meters on the edges of the measured time.
    pub(super) fn keep_time(&mut self) {
        let elapsed = self.begin.elapsed();
        if elapsed >= self.warmup {
            self.start_meters();
        }
        if elapsed >= self.until() && !self.ends_with_flush() {
            self.stop_meters();
        }
    }

    pub(super) fn start_meters(&mut self) {
        if self.metered_from.is_none() {
            self.meters.start();
            self.metered_from = Some(self.begin.elapsed());
        }
    }

    pub(super) fn stop_meters(&mut self) {
        if self.metered_from.is_some() && self.readings.is_none() {
            self.metered_to = self.begin.elapsed();
            self.readings = Some(self.meters.stop());
        }
    }

    pub(super) fn patience(&self) -> Duration {
        let elapsed = self.begin.elapsed();
        let edge = if elapsed < self.warmup { self.warmup } else { self.until() };
        let left = edge.saturating_sub(elapsed);
        if left.is_zero() {
            POLL
        } else {
            left.min(POLL)
        }
    }

    /// Notes by how much this thread woke later than it asked to.
    pub(super) fn note_standstill(&mut self, late: Duration) {
        if late > STANDSTILL {
            self.stood_still += late;
            self.watchdog.forgive(late);
        }
    }

    pub(super) fn hear(&mut self, snapshot: Snapshot) {
        self.watchdog.hear(&snapshot, monotonic_now());
        if self.least.as_mut().is_some_and(|least| least.is_missed_by(&snapshot)) {
            self.end_now();
            self.drain_no_more();
        }
        self.series.add(snapshot);
    }

    /// One that was written off has been counted, and may come back all the same.
    pub(super) fn finish(&mut self, tally: Tally) {
        if self.tallies.iter().all(|reported| reported.worker != tally.worker) {
            self.tallies.push(tally);
        }
    }

    /// A worker that does its I/Os itself may be held in one for good: the others' figures, and its own so far, are
    /// kept without it.
    pub(super) fn write_off_the_silent(&mut self) {
        for tally in self.watchdog.overdue(monotonic_now(), self.interrupted) {
            self.shared.stop.store(true, Ordering::Relaxed);
            self.one_ended(tally.worker);
            self.finish(tally);
        }
    }

    pub(super) fn one_ended(&mut self, worker: u32) {
        self.watchdog.ended(worker);
        self.ended += 1;
        if let Some(least) = &mut self.least {
            least.ended(worker);
        }
        if self.shared.job.until_first {
            self.end_now();
            self.drain_no_more();
        }
        if self.ended == self.shared.job.workers {
            self.stop_meters();
        }
    }

    pub(super) fn observe(&mut self, observer: &mut dyn Observer) {
        for (point, detail) in self.series.ripe() {
            if let Some(steady) = self.steady.as_mut().filter(|_| !point.warmup) {
                if steady.push(&point) && self.steady_after_s.is_none() {
                    self.steady_after_s = Some(point.t_s);
                    self.end_now();
                }
            }
            let progress = progress_of(&point, detail, &self.shared.job);
            observer.progress(&progress);
            self.reported_last = Some(progress);
            self.series.keep(point);
        }
        if self.begin.elapsed() > self.until().saturating_add(WAITS) {
            if let Some(last) = self.reported_last.take() {
                let message = Some("waiting for I/Os that were under way or due at the end".into());
                // Its bytes were told.
                observer.progress(&Progress { message, interval_bytes: 0, ..last });
            }
        }
        if self.asked_at.elapsed() >= POLL && !self.interrupted {
            self.asked_at = monotonic_now();
            if observer.stop() {
                self.interrupted = true;
                self.end_now();
                self.drain_no_more();
            }
        }
    }

    pub(super) fn end_now(&self) {
        self.shared.until_ns.fetch_min(self.begin.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }

    /// Stops starting I/Os of an open loop after an interruption; what has just fallen due is still started.
    pub(super) fn drain_no_more(&self) {
        let since_end = self.begin.elapsed().saturating_sub(self.until()) + POLL;
        self.shared.drain_ns.fetch_min(since_end.as_nanos() as u64, Ordering::Relaxed);
    }

    pub(super) fn close(mut self, resources: Resources) -> Ran {
        self.start_meters();
        self.stop_meters();
        let ended = self.tallies.iter().map(|t| t.ended).max().unwrap_or(self.begin.elapsed());
        let end = if self.ends_with_flush() { ended } else { ended.min(self.until()) };
        let (from, to) = (self.metered_from.unwrap_or_default(), self.metered_to);
        let readings = self.readings.take().unwrap_or_default().of_time((from, to), (self.warmup, end));
        self.tallies.sort_by_key(|t| t.worker);
        let stood_still = self.shared.standstills.since(self.begin + self.warmup).unwrap_or(self.stood_still);
        Ran {
            seconds: end.saturating_sub(self.warmup).as_secs_f64(),
            points: self.series.finish(),
            tallies: self.tallies,
            readings,
            interrupted: self.interrupted,
            steady_after_s: self.steady_after_s,
            stood_still_s: stood_still.as_secs_f64(),
            broken: self.broken.into_iter().next().or(self.least.and_then(MinimumRate::error)),
            resources,
        }
    }
}

pub(super) fn progress_of(point: &Point, detail: Detail, job: &JobSpec) -> Progress {
    Progress {
        phase: if point.warmup { Phase::Warmup } else { Phase::Measure },
        repeat: 0,
        repeats: 1,
        t_s: point.t_s,
        duration_s: job.measured_s().map(|measured| job.warmup_seconds() + measured),
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
