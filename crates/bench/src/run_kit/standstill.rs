//! Time in which the process stood still although its clock ran: stopped, frozen with its container, or paused with its
//! virtual machine.
//!
//! Two threads, each bound to a processor of its own, wake at every beat. A beat that is later than its thread waited for
//! the processor shows that this thread didn't run: a hypervisor withholds one processor for tens of milliseconds, and
//! the process goes on. What both missed at once is a standstill. When it began is known to a beat; a worker knows better
//! when it last ran.

use forebay_io::{allowed_cpus, monotonic_now, settle_thread_in, Waits};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

const BEAT: Duration = Duration::from_millis(10);
/// A standstill is seen from here on, beyond the rest of a beat. Under load, virtual machines were seen to miss both beats
/// for up to 18 ms.
pub(crate) const STANDSTILL_MIN: Duration = Duration::from_millis(30);
/// The beginning of a standstill is known to this.
pub(crate) const STANDSTILL_EXACT: Duration = BEAT;
/// Standstill that is seen where two threads can't tell, or the kernel doesn't tell how long one waited for a processor: a busy machine keeps none
/// waiting for so long.
pub(crate) const STANDSTILL: Duration = Duration::from_secs(1);
const BEATS: usize = 2;
/// Late beats of a thread that are kept until the other's have come.
const LATE_KEPT: usize = 8;
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
    fn between(last: u64, now: u64, waited: u64) -> Option<Span> {
        let (before, to) = (last + ns_of(BEAT), now.saturating_sub(waited));
        (to >= before + ns_of(STANDSTILL_MIN)).then_some(Span { after: last, before, to, beat: now })
    }

    /// Standstill that two threads missed at once, if it is long enough.
    fn of_both(&self, other: &Span) -> Option<Span> {
        let after = self.after.max(other.after);
        let before = self.before.min(other.before).max(after);
        let (to, beat) = (self.to.min(other.to), self.beat.min(other.beat));
        (to >= before + ns_of(STANDSTILL_MIN)).then_some(Span { after, before, to, beat })
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

/// Late beats and standstills so far.
#[derive(Debug, Default)]
struct Seen {
    /// The last late beats of each.
    late: [VecDeque<Span>; BEATS],
    both: Vec<Span>,
}

impl Seen {
    /// Notes a late beat of one thread; returns whether it tells a standstill.
    fn note(&mut self, thread: usize, span: Span) -> bool {
        let others = self.late[1 - thread].iter();
        let known = self.both.len();
        self.both.extend(others.filter_map(|other| span.of_both(other)));
        let late = &mut self.late[thread];
        late.push_back(span);
        if late.len() > LATE_KEPT {
            late.pop_front();
        }
        self.both.len() > known
    }
}

/// The standstills of a run, told to its workers while it lasts. By default nobody looks for them.
#[derive(Debug)]
pub struct Standstills {
    origin: Instant,
    /// The last beat of each thread, or `NOBODY`.
    beats: [AtomicU64; BEATS],
    /// The beat that told the last one.
    last_beat: AtomicU64,
    seen: Mutex<Seen>,
    ended: Mutex<bool>,
    wakes: Condvar,
}

impl Default for Standstills {
    fn default() -> Standstills {
        Standstills::from_origin(monotonic_now())
    }
}

impl Standstills {
    /// Those of a time that begins at `origin`.
    pub(crate) fn from_origin(origin: Instant) -> Standstills {
        Standstills {
            origin,
            beats: [const { AtomicU64::new(NOBODY) }; BEATS],
            last_beat: AtomicU64::new(0),
            seen: Mutex::default(),
            ended: Mutex::default(),
            wakes: Condvar::new(),
        }
    }

    /// Looks for standstills until what it returns is dropped. Where there is one processor, the kernel keeps no account of
    /// waits, or it refuses a thread, they are left unseen.
    #[must_use]
    pub fn watch(this: &Arc<Standstills>) -> Watching {
        let mut watching = Watching { of: this.clone(), threads: Vec::new() };
        let processors = allowed_cpus();
        if processors.len() < BEATS || Waits::of_this_thread().is_none() {
            return watching;
        }
        for (thread, processor) in processors.into_iter().take(BEATS).enumerate() {
            let beats = this.clone();
            let builder = Builder::new().name("standstill".into()).stack_size(STACK_BYTES);
            match builder.spawn(move || beats.beat(thread, processor)) {
                Ok(started) => watching.threads.push(started),
                Err(_) => {
                    watching.end();
                    this.beats.iter().for_each(|beat| beat.store(NOBODY, Ordering::Release));
                    return watching;
                }
            }
        }
        watching
    }

    fn beat(&self, thread: usize, processor: u32) {
        // Where it can't be bound, both may share a processor, and tell less surely.
        let _ = settle_thread_in(Some(processor), None);
        let Some(mut waits) = Waits::of_this_thread() else { return };
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
        let (mut last, mut spent) = (self.ns(monotonic_now()), Waits::spent_by_process());
        loop {
            self.beats[thread].store(last, Ordering::Release);
            let goes_on = self.sleep_until(self.origin + Duration::from_nanos(last) + BEAT);
            let now = self.ns(monotonic_now());
            let is_late = now >= last + ns_of(BEAT + STANDSTILL_MIN);
            let waited = ns_of(waits.since(is_late));
            let so_far = Waits::spent_by_process();
            let ran = ns_of(so_far.saturating_sub(spent));
            let span = Span::between(last, now, waited);
            if let Some(span) = span.filter(|_| !went_on(ran, now - last, waited, processors)) {
                self.note(thread, span);
            }
            (last, spent) = (now, so_far);
            if !goes_on {
                return self.beats[thread].store(last, Ordering::Release);
            }
        }
    }

    fn note(&self, thread: usize, span: Span) {
        if self.seen().note(thread, span) {
            self.last_beat.fetch_max(span.beat, Ordering::AcqRel);
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether both threads look.
    fn is_watched(&self) -> bool {
        self.beats.iter().all(|beat| beat.load(Ordering::Acquire) != NOBODY)
    }

    /// False when it is to end.
    fn sleep_until(&self, due: Instant) -> bool {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let left = due.saturating_duration_since(monotonic_now());
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
    pub(crate) fn are_known_at(&self, now: Instant) -> bool {
        let now = self.ns(now);
        let reported = |beat: &AtomicU64| {
            let beat = beat.load(Ordering::Acquire);
            now < beat.saturating_add(ns_of(BEAT + STANDSTILL_MIN))
                || self.ns(monotonic_now()) > beat.saturating_add(ns_of(SILENT_MAX))
        };
        !self.is_watched() || self.beats.iter().all(reported)
    }

    /// Returns how long the process stood still while an I/O was under way, at a worker that booked something at `ran` last.
    pub(crate) fn while_under_way(&self, started: Instant, now: Instant, ran: Instant) -> Duration {
        let (started, now, ran) = (self.ns(started), self.ns(now), self.ns(ran));
        if self.last_beat.load(Ordering::Acquire) <= started {
            return Duration::ZERO;
        }
        let parts = self.seen().both.iter().map(|span| span.part_of(started, now, ran)).sum();
        Duration::from_nanos(parts)
    }

    /// Returns how long the process stood still after `from`; None where nobody looked.
    pub fn since(&self, from: Instant) -> Option<Duration> {
        if !self.is_watched() {
            return None;
        }
        let from = self.ns(from);
        let length = self.seen().both.iter().map(|span| span.length_after(from)).sum();
        Some(Duration::from_nanos(length))
    }

    /// One that lasted from `from` to `to`, seen by a beat just before it and one just after.
    #[cfg(test)]
    pub(crate) fn tell(&self, from: Instant, to: Instant) {
        let (from, to) = (self.ns(from), self.ns(to));
        (0..BEATS).for_each(|thread| self.note(thread, Span { after: from, before: from, to, beat: to }));
        self.beats.iter().for_each(|beat| beat.store(to, Ordering::Release));
    }

    /// The last beat of each thread was at `at`.
    #[cfg(test)]
    pub(crate) fn beat_at(&self, at: Instant) {
        self.beats.iter().for_each(|beat| beat.store(self.ns(at), Ordering::Release));
    }
}

/// The threads that look for standstills; they end when it is dropped, and all are known then.
pub struct Watching {
    of: Arc<Standstills>,
    threads: Vec<JoinHandle<()>>,
}

impl Watching {
    fn end(&mut self) {
        *self.of.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.of.wakes.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    // promise: REC-47
    #[test]
    fn a_beat_shows_a_standstill_by_what_it_is_late_beyond_its_wait_for_a_processor() {
        let between = |last, now, waited| Span::between(last * MS, now * MS, waited * MS);
        assert_eq!(between(100, 110, 0), None);
        assert_eq!(between(100, 139, 0), None);
        assert_eq!(between(100, 160, 55), None, "it waited for a processor");
        assert_eq!(
            between(100, 160, 0),
            Some(Span { after: 100 * MS, before: 110 * MS, to: 160 * MS, beat: 160 * MS })
        );
        let both = between(100, 160, 20).unwrap();
        assert_eq!(both.to, 140 * MS, "stopped, and then kept waiting");
        assert_eq!(both.length_after(0), 35 * MS);
        assert_eq!((both.length_after(130 * MS), both.length_after(150 * MS)), (10 * MS, 0));
    }

    // promise: REC-47
    #[test]
    fn a_standstill_is_what_both_threads_missed_at_once() {
        let span = |after: u64, to: u64| Span::between(after * MS, to * MS, 0).unwrap();
        let mut seen = Seen::default();
        assert!(!seen.note(0, span(100, 200)), "the hypervisor may have withheld this processor alone");
        assert!(!seen.note(0, span(300, 400)) && !seen.note(1, span(215, 280)), "never at once");
        assert!(!seen.note(1, span(375, 430)), "at once for too short a time");
        assert!(seen.note(1, span(96, 203)));
        assert_eq!(seen.both, [Span { after: 100 * MS, before: 106 * MS, to: 200 * MS, beat: 200 * MS }]);
        (0..100).for_each(|i| assert!(!seen.note(0, span(1000 + 100 * i, 1090 + 100 * i))));
        assert_eq!(seen.late[0].len(), LATE_KEPT);
    }

    #[test]
    fn what_others_of_the_process_ran_through_is_no_standstill() {
        let went_on = |ran, passed, waited| went_on(ran * MS, passed * MS, waited * MS, 2);
        assert!(!went_on(22, 60, 0), "both were busy until it began, and after it");
        assert!(went_on(64, 32, 0) && went_on(70, 60, 0));
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
        standstills.beat_at(at(100));
        assert!(standstills.are_known_at(at(139)) && !standstills.are_known_at(at(140)));
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
        let begin = monotonic_now();
        let looks = watching.threads.len() == BEATS;
        while looks && !standstills.is_watched() {
            std::thread::yield_now();
        }
        drop(watching);
        assert!(standstills.since(begin).is_some() == looks && *standstills.ended.lock().unwrap());
    }
}
