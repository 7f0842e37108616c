//! Time in which the process stood still although its clock ran: stopped, frozen with its container, or paused with its
//! virtual machine.
//!
//! A thread wakes at every beat. One that is later than the time that the thread waited for a processor shows that
//! nothing of the process ran. When a standstill began is known to a beat; a worker knows better when it last ran.

use forebay_io::clock;
use forebay_io::meter::waits::{spent_by_process, Waits};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

const BEAT: Duration = Duration::from_millis(5);
/// A standstill is seen from here on, beyond the rest of a beat; nothing shorter is longer than an ordinary I/O may be.
pub const STANDSTILL_MIN: Duration = Duration::from_millis(5);
/// Where the kernel doesn't tell how long a thread waited for a processor: a busy machine keeps none waiting for so long.
pub const STANDSTILL: Duration = Duration::from_secs(1);
/// After this time without a beat, nothing is to be expected of the thread any more.
const SILENT_MAX: Duration = Duration::from_secs(10);
const NOBODY: u64 = u64::MAX;
const STACK_BYTES: usize = 128 << 10;

/// One standstill, in ns: it began between `after` and `before`, and ended at `to` or, where the thread had waited for a
/// processor before it and not after it, as late as `beat`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Span {
    after: u64,
    before: u64,
    to: u64,
    beat: u64,
}

impl Span {
    /// The standstill between the beats `last` and `now`, of which the thread waited for a processor for `waited`.
    fn between(last: u64, now: u64, waited: u64, late_min: u64) -> Option<Span> {
        let (before, to) = (last + ns_of(BEAT), now.saturating_sub(waited));
        (to >= before + late_min).then_some(Span { after: last, before, to, beat: now })
    }

    /// Its likeliest length, of what lies after `from`.
    fn length_after(&self, from: u64) -> u64 {
        self.to.saturating_sub(from.max(self.after.midpoint(self.before)))
    }

    /// The most that it may be of an I/O from `started` to `now`, at a worker that booked something at `ran` last.
    fn part_of(&self, started: u64, now: u64, ran: u64) -> u64 {
        if started >= self.to {
            return 0;
        }
        let from = if ran < self.to { ran.max(self.after) } else { self.after };
        now.min(self.beat).saturating_sub(started.max(from))
    }
}

/// Returns whether other threads of the process went on while the beat was late: they `ran` for longer than they could before
/// and after a standstill. Then a hypervisor held up the beat's processor alone.
fn went_on(ran: u64, passed: u64, waited: u64, processors: u64) -> bool {
    ran > processors * (2 * ns_of(BEAT) + waited) + passed / 4
}

fn ns_of(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}

/// The standstills of a run, told to its workers while it lasts. By default nobody looks for them.
#[derive(Debug)]
pub struct Standstills {
    origin: Instant,
    /// The last beat, or `NOBODY`.
    beat: AtomicU64,
    late_min: AtomicU64,
    /// The beat that told the last one.
    last_beat: AtomicU64,
    spans: Mutex<Vec<Span>>,
    ended: Mutex<bool>,
    wakes: Condvar,
}

impl Default for Standstills {
    fn default() -> Standstills {
        Standstills::of(clock::now())
    }
}

impl Standstills {
    /// Those of a time that begins at `origin`.
    pub(crate) fn of(origin: Instant) -> Standstills {
        Standstills {
            origin,
            beat: AtomicU64::new(NOBODY),
            late_min: AtomicU64::new(ns_of(STANDSTILL)),
            last_beat: AtomicU64::new(0),
            spans: Mutex::default(),
            ended: Mutex::default(),
            wakes: Condvar::new(),
        }
    }

    /// Looks for standstills until what it returns is dropped. A system that refuses the thread leaves them unseen.
    #[must_use]
    pub fn watch(this: &Arc<Standstills>) -> Watching {
        let beats = this.clone();
        let builder = Builder::new().name("standstill".into()).stack_size(STACK_BYTES);
        Watching { thread: builder.spawn(move || beats.beat()).ok(), of: this.clone() }
    }

    fn beat(&self) {
        let mut waits = Waits::of_this_thread();
        let late_min = if waits.is_some() { STANDSTILL_MIN } else { STANDSTILL };
        self.late_min.store(ns_of(late_min), Ordering::Relaxed);
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
        let (mut last, mut spent) = (self.ns(clock::now()), spent_by_process());
        loop {
            self.beat.store(last, Ordering::Release);
            let goes_on = self.sleep_until(self.origin + Duration::from_nanos(last) + BEAT);
            let now = self.ns(clock::now());
            let is_late = now >= last + ns_of(BEAT + late_min);
            let waited = waits.as_mut().map_or(Duration::ZERO, |waits| waits.since(is_late));
            let so_far = spent_by_process();
            let ran = ns_of(so_far.saturating_sub(spent));
            let waited = ns_of(waited);
            let span = Span::between(last, now, waited, ns_of(late_min));
            self.note(span.filter(|_| !went_on(ran, now - last, waited, processors)));
            (last, spent) = (now, so_far);
            if !goes_on {
                return self.beat.store(last, Ordering::Release);
            }
        }
    }

    fn note(&self, span: Option<Span>) {
        let Some(span) = span else { return };
        self.spans().push(span);
        self.last_beat.store(span.beat, Ordering::Release);
    }

    fn spans(&self) -> MutexGuard<'_, Vec<Span>> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// False when it is to end.
    fn sleep_until(&self, due: Instant) -> bool {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let left = due.saturating_duration_since(clock::now());
            if *ended || left.is_zero() {
                return !*ended;
            }
            ended = self.wakes.wait_timeout(ended, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn ns(&self, at: Instant) -> u64 {
        ns_of(at.saturating_duration_since(self.origin))
    }

    /// Returns whether all standstills before `now` are known: else the next beat will tell.
    pub fn are_known_at(&self, now: Instant) -> bool {
        let (beat, now) = (self.beat.load(Ordering::Acquire), self.ns(now));
        beat == NOBODY
            || now < beat.saturating_add(ns_of(BEAT) + self.late_min.load(Ordering::Relaxed))
            || self.ns(clock::now())
                > beat.saturating_add(ns_of(SILENT_MAX) + self.late_min.load(Ordering::Relaxed))
    }

    /// Returns how long the process stood still while an I/O was under way, at a worker that booked something at `ran` last.
    pub fn while_under_way(&self, started: Instant, now: Instant, ran: Instant) -> Duration {
        let (started, now, ran) = (self.ns(started), self.ns(now), self.ns(ran));
        if self.last_beat.load(Ordering::Acquire) <= started {
            return Duration::ZERO;
        }
        let parts = self.spans().iter().map(|span| span.part_of(started, now, ran)).sum();
        Duration::from_nanos(parts)
    }

    /// Returns how long the process stood still after `from`; None where nobody looked.
    pub fn since(&self, from: Instant) -> Option<Duration> {
        if self.beat.load(Ordering::Acquire) == NOBODY {
            return None;
        }
        let from = self.ns(from);
        let length = self.spans().iter().map(|span| span.length_after(from)).sum();
        Some(Duration::from_nanos(length))
    }

    /// One that lasted from `from` to `to`, seen by a beat just before it and one just after.
    #[cfg(test)]
    pub(crate) fn tell(&self, from: Instant, to: Instant) {
        let (from, to) = (self.ns(from), self.ns(to));
        self.note(Some(Span { after: from, before: from, to, beat: to }));
        self.beat.store(to, Ordering::Release);
    }

    /// Somebody looks from `at` on, as where the kernel tells a thread's waits.
    #[cfg(test)]
    pub(crate) fn looked_at(&self, at: Instant) {
        self.late_min.store(ns_of(STANDSTILL_MIN), Ordering::Relaxed);
        self.beat_at(at);
    }

    /// The last beat was at `at`.
    #[cfg(test)]
    pub(crate) fn beat_at(&self, at: Instant) {
        self.beat.store(self.ns(at), Ordering::Release);
    }
}

/// The thread that looks for standstills; ends when dropped, and all are known then.
pub struct Watching {
    of: Arc<Standstills>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        *self.of.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.of.wakes.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    // promise: REC-47
    #[test]
    fn a_beat_shows_a_standstill_by_what_it_is_late_beyond_its_wait_for_a_processor() {
        let between = |last, now, waited| Span::between(last * MS, now * MS, waited * MS, 5 * MS);
        assert_eq!(between(100, 105, 0), None);
        assert_eq!(between(100, 109, 0), None);
        assert_eq!(between(100, 160, 55), None, "it waited for a processor");
        assert_eq!(
            between(100, 160, 0),
            Some(Span { after: 100 * MS, before: 105 * MS, to: 160 * MS, beat: 160 * MS })
        );
        let both = between(100, 160, 20).unwrap();
        assert_eq!(both.to, 140 * MS, "stopped, and then kept waiting");
        assert_eq!(both.length_after(0), 37_500_000);
        assert_eq!((both.length_after(130 * MS), both.length_after(150 * MS)), (10 * MS, 0));
    }

    #[test]
    fn what_others_of_the_process_ran_through_is_no_standstill() {
        let went_on = |ran, passed, waited| went_on(ran * MS, passed * MS, waited * MS, 2);
        assert!(!went_on(12, 55, 0), "both were busy until it began, and after it");
        assert!(went_on(44, 22, 0) && went_on(60, 60, 0));
        assert!(!went_on(60, 85, 30), "stopped; others ran while the beat waited");
    }

    // promise: REC-47
    #[test]
    fn an_io_is_excused_by_no_more_than_it_shared_with_the_standstill() {
        let span = Span { after: 100 * MS, before: 105 * MS, to: 140 * MS, beat: 160 * MS };
        let part = |started, now, ran| span.part_of(started * MS, now * MS, ran * MS) / MS;
        assert_eq!(part(104, 161, 104), 56, "the worker ran until then");
        assert_eq!(part(90, 161, 103), 57);
        assert_eq!(part(50, 200, 50), 60, "it may have begun with the last beat");
        assert_eq!(part(50, 200, 190), 60, "it came later than others did");
        assert_eq!(part(130, 161, 104), 30, "it fell due meanwhile");
        assert_eq!(part(50, 170, 150), 60, "the worker ran before the thread did");
        assert_eq!((part(160, 200, 104), part(145, 200, 104), part(50, 99, 40)), (0, 0, 0));
    }

    #[test]
    fn what_is_not_known_yet_is_when_the_beat_has_come() {
        let standstills = Standstills::default();
        let at = |ms| standstills.origin + Duration::from_millis(ms);
        assert!(standstills.are_known_at(at(1 << 30)), "nobody looks");
        assert_eq!(standstills.since(at(0)), None);
        standstills.late_min.store(5 * MS, Ordering::Relaxed);
        standstills.beat_at(at(100));
        assert!(standstills.are_known_at(at(109)) && !standstills.are_known_at(at(110)));
        standstills.tell(at(101), at(160));
        assert!(standstills.are_known_at(at(161)));
        assert_eq!(standstills.while_under_way(at(90), at(161), at(95)), Duration::from_millis(59));
        assert_eq!(standstills.while_under_way(at(160), at(190), at(95)), Duration::ZERO);
        assert_eq!(standstills.since(at(0)), Some(Duration::from_millis(59)));
    }

    #[test]
    fn the_watch_ends_at_once_and_keeps_beating_until_then() {
        let standstills = Arc::new(Standstills::default());
        let watching = Standstills::watch(&standstills);
        let begin = clock::now();
        while standstills.beat.load(Ordering::Acquire) == NOBODY {
            std::thread::yield_now();
        }
        drop(watching);
        assert!(standstills.since(begin).is_some() && *standstills.ended.lock().unwrap());
    }
}
