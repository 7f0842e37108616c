//! Reads meters while a run goes on, and says afterwards what was used when.
//!
//! Each meter has a thread of its own, so that a management controller that takes seconds
//! holds nobody up. Readings are kept with their times; what a span of time used is worked
//! out from them afterwards. That leaves the run free to measure several repeats, and
//! to leave out the warm-up, with one sampler.

use super::{Meter, Pace, Refused, Sample};
use crate::meter::Reason;
use forebay_model::record::Power;
use forebay_model::units::BYTES_PER_GIB as GIB;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A counter that is read more often than it counts shows steps, not power.
const PERIOD_MIN: Duration = Duration::from_millis(100);

/// NVML and RAPL update their counters within tens of milliseconds.
const COUNTED_S_MIN: f64 = 0.2;

/// In a row; a meter that failed so often is not asked again.
const FAILURES_MAX: u32 = 3;

/// A quick meter's answer to `mark`.
const MARK_WAIT: Duration = Duration::from_millis(250);

/// A slow meter's first answer, at the end of a run that was shorter than it takes.
const FIRST_WAIT: Duration = Duration::from_secs(6);

/// Readings kept of one meter; beyond this every other one is let go.
const READINGS_MAX: usize = 1 << 16;

/// A span of time between two instants.
pub(crate) type Span = (Instant, Instant);

pub struct Sampler {
    started: Instant,
    probes: Vec<Probe>,
    failures: Vec<Refused>,
}

/// One meter under way.
struct Probe {
    source: &'static str,
    scope: String,
    pace: Pace,
    log: Arc<Log>,
    thread: JoinHandle<()>,
}

#[derive(Default)]
struct Log {
    state: Mutex<LogState>,
    changed: Condvar,
}

#[derive(Default)]
struct LogState {
    readings: Vec<(Instant, Sample)>,
    /// Readings asked for by `mark`, and how many of these requests were answered.
    asked: u64,
    answered: u64,
    stop: bool,
    failed: u32,
    failed_in_a_row: u32,
    last_failure: Option<Reason>,
}

impl LogState {
    fn is_dead(&self) -> bool {
        self.failed_in_a_row >= FAILURES_MAX
    }
}

impl Log {
    fn lock(&self) -> MutexGuard<'_, LogState> {
        // A thread that panicked between two readings left whole readings behind.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `done` holds or the time is over.
    fn wait(&self, limit: Duration, done: impl Fn(&LogState) -> bool) -> MutexGuard<'_, LogState> {
        let waited = self.changed.wait_timeout_while(self.lock(), limit, |state| !done(state));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Sampler {
    /// Begins to read each meter every `interval`, or as often as it bears.
    pub fn start(meters: Vec<Box<dyn Meter>>, interval: Duration) -> Sampler {
        let mut sampler = Sampler { started: Instant::now(), probes: Vec::new(), failures: Vec::new() };
        for meter in meters {
            let (source, scope, pace) = (meter.source(), meter.scope().to_string(), meter.pace());
            let period = match pace {
                Pace::Quick => interval.max(PERIOD_MIN),
                Pace::Slow(least) => interval.max(least),
            };
            let log = Arc::new(Log::default());
            let shared = Arc::clone(&log);
            let thread = std::thread::Builder::new().name(format!("power {source}"));
            match thread.spawn(move || attend(meter, period, &shared)) {
                Ok(thread) => sampler.probes.push(Probe { source, scope, pace, log, thread }),
                Err(e) => sampler.failures.push((format!("{source}:{scope}"), format!("no thread: {e}"))),
            }
        }
        sampler.mark();
        sampler
    }

    /// Reads the quick meters now, for a span that begins or ends here, and answers with
    /// that moment. Takes as long as the slowest of them: RAPL's answer in microseconds, a
    /// GPU's in about 16 ms (H200, driver 580).
    pub fn mark(&self) -> Instant {
        let quick = || self.probes.iter().filter(|probe| probe.pace == Pace::Quick);
        for probe in quick() {
            probe.log.lock().asked += 1;
            probe.log.changed.notify_all();
        }
        for probe in quick() {
            drop(probe.log.wait(MARK_WAIT, |state| state.answered >= state.asked || state.is_dead()));
        }
        Instant::now()
    }

    /// Returns the power over `spans` together (say, all repeats without their warm-ups), in which `bytes` were moved.
    /// A meter without readings there is left out.
    pub fn over(&self, spans: &[Span], bytes: u64) -> Vec<Power> {
        self.probes.iter().filter_map(|probe| self.reported(probe, spans, bytes).ok()).collect()
    }

    /// Ends the sampling and answers for all the time since `start`.
    pub fn stop(&mut self, bytes: u64) -> Vec<Power> {
        let end = self.mark();
        self.stop_over(&[(self.started, end)], bytes)
    }

    /// Ends the sampling and answers for `spans`. Where a slow meter hasn't said anything
    /// yet, waits seconds for it; then a reading that was begun in time counts.
    pub fn stop_over(&mut self, spans: &[Span], bytes: u64) -> Vec<Power> {
        for probe in &self.probes {
            probe.log.lock().stop = true;
            probe.log.changed.notify_all();
        }
        let until = Instant::now() + FIRST_WAIT;
        for probe in self.probes.iter().filter(|probe| probe.pace != Pace::Quick) {
            let left = until.saturating_duration_since(Instant::now());
            drop(probe.log.wait(left, |state| !state.readings.is_empty() || state.failed > 0));
        }
        let mut powers = Vec::new();
        for probe in std::mem::take(&mut self.probes) {
            let name = format!("{}:{}", probe.source, probe.scope);
            match self.reported(&probe, spans, bytes) {
                Ok(power) => powers.push(power),
                Err(reason) => self.failures.push((name.clone(), reason)),
            }
            let complaint = complaint(&probe.log.lock());
            self.failures.extend(complaint.map(|reason| (name.clone(), reason)));
            // A slow meter may sit in a request for seconds yet; it ends by itself.
            if probe.pace == Pace::Quick && probe.thread.join().is_err() {
                self.failures.push((name, "its thread broke".into()));
            }
        }
        powers
    }

    /// After `stop`: meters that failed for all or part of the time, and why.
    pub fn failures(&self) -> &[Refused] {
        &self.failures
    }

    fn reported(&self, probe: &Probe, spans: &[Span], bytes: u64) -> Result<Power, Reason> {
        let seconds = |at: Instant| at.saturating_duration_since(self.started).as_secs_f64();
        let spans: Vec<_> = spans.iter().map(|&(from, to)| (seconds(from), seconds(to))).collect();
        let state = probe.log.lock();
        let readings: Vec<_> = state.readings.iter().map(|&(at, sample)| (seconds(at), sample)).collect();
        let tally = tally(&readings, &spans).map_err(|reason| match &state.last_failure {
            Some(failure) if readings.is_empty() => failure.clone(),
            _ => reason,
        })?;
        drop(state);
        let span_s: f64 = spans.iter().map(|(from, to)| (to - from).max(0.0)).sum();
        Ok(Power {
            source: probe.source.into(),
            scope: probe.scope.clone(),
            watts_mean: tally.watts_mean,
            joules_per_gib: (bytes > 0).then(|| tally.watts_mean * span_s / (bytes as f64 / GIB)),
            samples: tally.samples,
        })
    }
}

/// A dropped sampler leaves no thread behind but one that waits for its board.
impl Drop for Sampler {
    fn drop(&mut self) {
        for probe in &self.probes {
            probe.log.lock().stop = true;
            probe.log.changed.notify_all();
        }
    }
}

fn complaint(state: &LogState) -> Option<Reason> {
    let last = state.last_failure.as_ref()?;
    let read = state.readings.len();
    match state.is_dead() {
        _ if read == 0 => None, // `reported` said it already.
        true => Some(format!("stopped answering after {read} readings, which are kept: {last}")),
        false => {
            Some(format!("{} of {} readings failed: {last}", state.failed, read + state.failed as usize))
        }
    }
}

/// A meter's thread: reads it when due and when asked, until told to stop or it's dead.
fn attend(mut meter: Box<dyn Meter>, period: Duration, log: &Log) {
    let mut due = Instant::now();
    loop {
        let asked = log.lock().asked;
        let begun = Instant::now();
        let sample = meter.sample();
        let at = begun + begun.elapsed() / 2;
        let mut state = log.lock();
        keep(&mut state, at, sample);
        state.answered = asked;
        drop(state);
        log.changed.notify_all();

        // A reading that came late doesn't make the next ones come in a bunch.
        due = (due + period).max(Instant::now());
        let left = due.saturating_duration_since(Instant::now());
        let state = log.wait(left, |state| state.stop || state.asked > asked || state.is_dead());
        if state.stop || state.is_dead() {
            return;
        }
    }
}

fn keep(state: &mut LogState, at: Instant, sample: Result<Sample, Reason>) {
    match sample.and_then(sensible) {
        Ok(sample) => {
            if state.readings.len() >= READINGS_MAX {
                let mut index = 0;
                state.readings.retain(|_| {
                    index += 1;
                    index % 2 == 1
                });
            }
            state.readings.push((at, sample));
            state.failed_in_a_row = 0;
        }
        Err(reason) => {
            state.failed += 1;
            state.failed_in_a_row += 1;
            state.last_failure = Some(reason);
        }
    }
}

fn sensible(sample: Sample) -> Result<Sample, Reason> {
    let (Sample::Joules(value) | Sample::Watts(value)) = sample;
    match value.is_finite() && value >= 0.0 {
        true => Ok(sample),
        false => Err(format!("it said {sample:?}")),
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Tally {
    watts_mean: f64,
    /// Readings that the mean rests on.
    samples: u32,
}

/// The mean power over `spans`, given readings in the order of their times; all in seconds
/// on one clock. Parts of a span before the first or after the last reading are taken to be
/// like the rest.
fn tally(readings: &[(f64, Sample)], spans: &[(f64, f64)]) -> Result<Tally, Reason> {
    let (mut joules, mut seconds, mut samples) = (0.0, 0.0, 0);
    let mut lone = Vec::new();
    let counter = matches!(readings.first(), Some((_, Sample::Joules(_))));
    for &span in spans {
        let part = if counter { counted(readings, span) } else { averaged(readings, span) };
        joules += part.joules;
        seconds += part.seconds;
        samples += part.samples;
        lone.extend(part.lone_watts);
    }
    let watts_mean = match seconds > 0.0 {
        true => joules / seconds,
        // Nothing but single power readings.
        false if !lone.is_empty() => lone.iter().sum::<f64>() / lone.len() as f64,
        false => return Err("no reading fell within the measured time".into()),
    };
    if counter && seconds < COUNTED_S_MIN {
        return Err(format!("{seconds:.3} s is too short for an energy counter"));
    }
    match counter && joules <= 0.0 {
        true => Err(format!("the energy counter stood still for {seconds:.1} s")),
        false => Ok(Tally { watts_mean, samples }),
    }
}

#[derive(Default)]
struct Part {
    joules: f64,
    seconds: f64,
    samples: u32,
    /// The only reading of a span, which has a power but no duration.
    lone_watts: Option<f64>,
}

/// From an energy counter: the difference between the span's ends, interpolated.
fn counted(readings: &[(f64, Sample)], (from, to): (f64, f64)) -> Part {
    let points: Vec<(f64, f64)> = readings
        .iter()
        .filter_map(|&(at, sample)| match sample {
            Sample::Joules(joules) => Some((at, joules)),
            Sample::Watts(_) => None,
        })
        .collect();
    let (Some(&(first, _)), Some(&(last, _))) = (points.first(), points.last()) else {
        return Part::default();
    };
    let (from, to) = (from.max(first), to.min(last));
    if to <= from {
        return Part::default();
    }
    let begin = points.partition_point(|&(at, _)| at <= from).saturating_sub(1);
    let end = points.partition_point(|&(at, _)| at < to).min(points.len() - 1);
    Part {
        joules: interpolated(&points, to) - interpolated(&points, from),
        seconds: to - from,
        samples: (end - begin + 1) as u32,
        lone_watts: None,
    }
}

/// From power readings within the span: the area under the line through them.
fn averaged(readings: &[(f64, Sample)], (from, to): (f64, f64)) -> Part {
    let points: Vec<(f64, f64)> = readings
        .iter()
        .filter_map(|&(at, sample)| match sample {
            Sample::Watts(watts) if (from..=to).contains(&at) => Some((at, watts)),
            _ => None,
        })
        .collect();
    let area = points.windows(2).map(|pair| (pair[1].0 - pair[0].0) * (pair[0].1 + pair[1].1) / 2.0);
    let seconds = points.last().map_or(0.0, |last| last.0 - points[0].0);
    Part {
        joules: area.sum(),
        seconds,
        samples: points.len() as u32,
        lone_watts: (seconds == 0.0).then(|| points.first().map(|point| point.1)).flatten(),
    }
}

/// On the line through `points` at `at`, which lies between the first and the last.
fn interpolated(points: &[(f64, f64)], at: f64) -> f64 {
    let after = points.partition_point(|&(time, _)| time < at).min(points.len() - 1);
    let before = after.saturating_sub(1);
    let ((t0, y0), (t1, y1)) = (points[before], points[after]);
    match t1 > t0 {
        true => y0 + (y1 - y0) * (at - t0) / (t1 - t0),
        false => y1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use Sample::{Joules, Watts};

    #[test]
    fn a_counter_is_read_between_its_readings() {
        // 100 W for ten seconds, then 300 W.
        let readings = [(0.0, Joules(5.0)), (10.0, Joules(1005.0)), (20.0, Joules(4005.0))];
        let reported = |from, to| tally(&readings, &[(from, to)]).unwrap();
        assert_eq!(reported(0.0, 10.0), Tally { watts_mean: 100.0, samples: 2 });
        assert_eq!(reported(5.0, 15.0), Tally { watts_mean: 200.0, samples: 3 });
        assert_eq!(reported(-5.0, 99.0), Tally { watts_mean: 200.0, samples: 3 });
        let both = tally(&readings, &[(0.0, 5.0), (15.0, 20.0)]).unwrap();
        assert_eq!(both.watts_mean, 200.0);
    }

    #[test]
    fn power_readings_weigh_by_the_time_they_stand_for() {
        let readings = [(0.0, Watts(100.0)), (1.0, Watts(100.0)), (9.0, Watts(300.0)), (11.0, Watts(900.0))];
        let reported = tally(&readings, &[(0.0, 10.0)]).unwrap();
        assert_eq!(reported, Tally { watts_mean: (100.0 + 8.0 * 200.0) / 9.0, samples: 3 });
        assert_eq!(tally(&readings, &[(8.0, 10.0)]).unwrap(), Tally { watts_mean: 300.0, samples: 1 });
    }

    #[test]
    fn no_number_comes_of_no_reading() {
        assert!(tally(&[], &[(0.0, 1.0)]).unwrap_err().contains("no reading"));
        assert!(tally(&[(5.0, Watts(1.0))], &[(0.0, 1.0)]).unwrap_err().contains("no reading"));
        assert!(tally(&[(5.0, Joules(1.0))], &[(0.0, 9.0)]).unwrap_err().contains("no reading"));
        let still = [(0.0, Joules(7.0)), (9.0, Joules(7.0))];
        assert!(tally(&still, &[(0.0, 9.0)]).unwrap_err().contains("stood still"));
        let short = [(0.0, Joules(7.0)), (0.1, Joules(8.0))];
        assert!(tally(&short, &[(0.0, 9.0)]).unwrap_err().contains("too short"));
    }

    #[test]
    fn readings_are_bounded() {
        let mut state = LogState::default();
        let at = Instant::now();
        for index in 0..READINGS_MAX + 1 {
            keep(&mut state, at, Ok(Watts(index as f64)));
        }
        assert_eq!(state.readings.len(), READINGS_MAX / 2 + 1);
        assert_eq!(state.readings.last().unwrap().1, Watts(READINGS_MAX as f64));
    }

    proptest! {
        #[test]
        fn a_mean_lies_between_the_extremes(
            watts in prop::collection::vec(0.0f64..2000.0, 2..40), from in -5.0f64..40.0, length in 0.3f64..50.0,
            counter: bool,
        ) {
            let mut joules = 0.0;
            let readings: Vec<_> = watts.iter().enumerate().map(|(second, watts)| {
                joules += watts;
                (second as f64, if counter { Joules(joules) } else { Watts(*watts) })
            }).collect();
            if let Ok(tally) = tally(&readings, &[(from, from + length)]) {
                let low = watts.iter().copied().fold(f64::INFINITY, f64::min);
                let high = watts.iter().copied().fold(0.0, f64::max);
                prop_assert!(tally.watts_mean >= low - 1e-6 && tally.watts_mean <= high + 1e-6, "{tally:?}");
                prop_assert!(tally.samples >= 1 && tally.samples as usize <= watts.len());
            }
        }

        #[test]
        fn neighbouring_spans_add_up(watts in prop::collection::vec(1.0f64..2000.0, 3..30), cut in 0.25f64..0.75) {
            let mut joules = 0.0;
            let readings: Vec<_> = watts.iter().enumerate().map(|(second, watts)| {
                joules += watts;
                (second as f64, Joules(joules))
            }).collect();
            let end = (watts.len() - 1) as f64;
            let one = tally(&readings, &[(0.0, end)]).unwrap().watts_mean;
            let two = tally(&readings, &[(0.0, cut * end), (cut * end, end)]).unwrap().watts_mean;
            prop_assert!((one - two).abs() < 1e-6 * one);
        }
    }
}
