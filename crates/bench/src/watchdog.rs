//! Watchdog for workers that don't respond. If an engine reads in the worker itself (`inline`, `map`), or the kernel
//! blocks in a submission, a device that never responds blocks the thread, and no time-out within it can end that.
//! The run then continues without the worker, using its last snapshots.

use super::run_kit::{Snapshot, Tally, READ, WRITE};
use forebay_io::monotonic_now;
use forebay_model::job::JobSpec;
use std::time::{Duration, Instant};

/// Beyond the time-out: a look of the worker's, and the grace of what it abandons.
const MARGIN: Duration = Duration::from_secs(3);
/// Time-out after an interruption, instead of the whole one.
const INTERRUPTED: Duration = Duration::from_secs(5);

pub(crate) struct Watchdog {
    timeout_s: f64,
    interval: Duration,
    workers: Vec<Worker>,
}

/// The last sign of life of one worker.
struct Worker {
    heard: Instant,
    ended: bool,
    /// Tally of its measured time, by its snapshots.
    reported: Tally,
}

impl Watchdog {
    pub(crate) fn new(job: &JobSpec) -> Watchdog {
        let heard = monotonic_now();
        let worker = |index| Worker { heard, ended: false, reported: Tally::new(index, None, 0) };
        Watchdog {
            timeout_s: job.timeout_s,
            interval: Duration::from_millis(u64::from(job.interval_ms)),
            workers: (0..job.workers).map(worker).collect(),
        }
    }

    /// The workers begin now.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.workers.iter_mut().for_each(|worker| worker.heard = now);
    }

    pub(crate) fn hear(&mut self, snapshot: &Snapshot, now: Instant) {
        let Some(worker) = self.workers.get_mut(snapshot.worker as usize) else { return };
        worker.heard = now;
        if !snapshot.measured {
            return;
        }
        let reported = &mut worker.reported;
        let so_far = snapshot.so_far;
        for (way, moved) in reported.ways.iter_mut().zip(so_far.ways) {
            (way.bytes, way.ios) = (moved.bytes, moved.ios);
        }
        (reported.travelled, reported.verified_bytes) = (so_far.travelled, so_far.verified_bytes);
        reported.targets.resize(snapshot.targets.len(), (0, 0));
        for (target, bytes) in reported.targets.iter_mut().zip(&snapshot.targets) {
            target.0 += bytes;
        }
        for (way, latency) in reported.ways.iter_mut().zip(&snapshot.latency) {
            latency.iter().for_each(|latency| way.latency.merge(latency));
        }
        reported.ended = snapshot.at;
    }

    pub(crate) fn ended(&mut self, worker: u32) {
        if let Some(worker) = self.workers.get_mut(worker as usize) {
            worker.ended = true;
        }
    }

    /// The whole process stood still: nobody was silent meanwhile.
    pub(crate) fn forgive(&mut self, stood_still: Duration) {
        self.workers.iter_mut().for_each(|worker| worker.heard += stood_still);
    }

    /// The workers that have been silent for too long, each once, with what they told.
    pub(crate) fn overdue(&mut self, now: Instant, interrupted: bool) -> Vec<Tally> {
        let timeout = Duration::from_secs_f64(self.timeout_s);
        let patience = if interrupted { timeout.min(INTERRUPTED) } else { timeout } + self.interval + MARGIN;
        let mut given_up = Vec::new();
        for worker in self.workers.iter_mut().filter(|worker| !worker.ended) {
            let silent = now.saturating_duration_since(worker.heard);
            if silent <= patience {
                continue;
            }
            worker.ended = true;
            let mut tally = std::mem::take(&mut worker.reported);
            tally.lost = 1;
            tally.errors.timed_out = 1;
            // It may have been a write: what it had moved most is as good a guess as any.
            let is_read = tally.ways[READ].ios >= tally.ways[WRITE].ios;
            tally.leave_unfinished(is_read, silent, 1);
            tally.example(format!(
                "worker {} didn't respond for {:.1} s (‹timeout_s› {} s): it is blocked in a system call that can't be cancelled; its work since the last snapshot isn't counted",
                tally.worker,
                silent.as_secs_f64(),
                self.timeout_s
            ));
            given_up.push(tally);
        }
        given_up
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> JobSpec {
        JobSpec { workers: 2, timeout_s: 10.0, interval_ms: 1000, ..JobSpec::default() }
    }

    fn snapshot(worker: u32, ios: u64) -> Snapshot {
        let mut tally = Tally::new(worker, None, 1);
        let io = forebay_model::pattern::Next { target: 0, offset: 0, len: 512, is_read: true, pass: 0 };
        tally.measures(true);
        for _ in 0..ios {
            tally.complete(&io, Duration::from_millis(2), forebay_io::Via::Direct, 0);
        }
        tally.snapshot(Duration::from_secs(1), true, true)
    }

    #[test]
    fn a_silent_worker_is_written_off_once_with_what_it_told() {
        let (mut watchdog, begin) = (Watchdog::new(&job()), monotonic_now());
        watchdog.begin(begin);
        let after = |s| begin + Duration::from_secs(s);
        watchdog.hear(&snapshot(0, 3), after(1));
        watchdog.hear(&snapshot(1, 5), after(1));
        watchdog.hear(&snapshot(1, 4), after(14));
        assert!(watchdog.overdue(after(14), false).is_empty());
        let [lost] = &watchdog.overdue(after(16), false)[..] else { panic!("worker 0 alone") };
        assert_eq!(
            (lost.worker, lost.ios(), lost.ways[READ].bytes, lost.ways[WRITE].bytes),
            (0, 3, 3 * 512, 0)
        );
        assert_eq!((lost.lost, lost.errors.timed_out, lost.unfinished, lost.latency().count()), (1, 1, 1, 4));
        assert_eq!((lost.targets[0].0, lost.unfinished_oldest), (3 * 512, Duration::from_secs(15)));
        assert!(watchdog.overdue(after(17), false).is_empty(), "it is given up once");
        watchdog.ended(1);
        assert!(watchdog.overdue(after(1000), false).is_empty(), "who ended may be silent");
    }

    #[test]
    fn an_interrupt_shortens_the_wait_and_a_standstill_is_nobodys_silence() {
        let (mut watchdog, begin) = (Watchdog::new(&JobSpec { timeout_s: 600.0, ..job() }), monotonic_now());
        watchdog.begin(begin);
        watchdog.forgive(Duration::from_secs(100));
        let after = |s| begin + Duration::from_secs(s);
        assert!(watchdog.overdue(after(105), true).is_empty());
        assert!(watchdog.overdue(after(600), false).is_empty());
        assert_eq!(watchdog.overdue(after(110), true).len(), 2);
    }
}
