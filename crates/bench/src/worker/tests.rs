//! A worker over queues that do what real ones do once in a while.

use super::*;
use crate::run_kit::{Standstills, READ, WRITE};
use crate::share;
use forebay_io::{Done, Fault, Full, Geometry, Io, Queue, Via, CLIENT_GRACE};
use forebay_model::job::{Engine, JobSpec};
use forebay_model::units::BYTES_PER_GIB;
use forebay_rigs::seccomp::forbid_entering;
use forebay_storage::{Destination, FileAccess, FileTarget, OpenFileSource, OpenNil, Target};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::{channel, Receiver};

/// Keeps what it is given until it is told to let go; counts flushes.
#[derive(Default)]
struct Holding {
    keep: bool,
    pushed: Vec<Io>,
    flushes: Arc<AtomicU64>,
}

impl Queue for Holding {
    fn geometry(&self) -> Geometry {
        Geometry { bytes: 1 << 30, align: 1, mem_align: 1, io_bytes_max: 1 << 30, depth: 64 }
    }

    fn in_flight(&self) -> u32 {
        self.pushed.len() as u32
    }

    fn push(&mut self, io: Io, _: &mut Reactor) -> Result<(), Full> {
        self.flushes.fetch_add(u64::from(io.op == Op::Flush), Ordering::Relaxed);
        self.pushed.push(io);
        Ok(())
    }

    fn submit(&mut self, _: &mut Reactor) {}

    fn reap(&mut self, _: &mut Reactor, done: &mut Vec<Done>) {
        if !self.keep {
            done.extend(self.pushed.drain(..).map(|io| done_well(&io)));
        }
    }

    fn abandon(&mut self, _: u32, _: &mut Reactor) {}
}

fn done_well(io: &Io) -> Done {
    Done { tag: io.tag, result: Ok(io.len), via: Via::Nothing, copy_ns: 0 }
}

fn worker_over(job: JobSpec, targets: usize, keep: bool) -> (Worker, Vec<Arc<AtomicU64>>, Receiver<Report>) {
    let target = |n: usize| Target::new(format!("nil {n}"), 1 << 20, OpenNil);
    worker_of(job, (0..targets).map(target).collect(), keep)
}

fn worker_of(
    job: JobSpec,
    targets: Vec<Target>,
    keep: bool,
) -> (Worker, Vec<Arc<AtomicU64>>, Receiver<Report>) {
    let (opened, reports) = opened(job, targets);
    let (mut worker, _) = opened.unwrap();
    let mut counts = Vec::new();
    for number in 0..worker.client.queue_count() {
        let holding = Holding { keep, ..Holding::default() };
        counts.push(holding.flushes.clone());
        worker.client.remove(number);
        assert_eq!(worker.client.add(Box::new(holding)), number);
    }
    (worker, counts, reports)
}

/// A worker with the queues of its targets, and what it tells.
fn opened(job: JobSpec, targets: Vec<Target>) -> (Result<(Worker, Resources), Error>, Receiver<Report>) {
    let spec = share::out(&job, &targets, &Destination::default()).unwrap().remove(0);
    let shared = Arc::new(Shared {
        content_seeds: vec![0; targets.len()],
        destination: Arc::default(),
        faults: None,
        stop: AtomicBool::new(false),
        from_ns: AtomicU64::new(0),
        until_ns: AtomicU64::new(u64::MAX / 2),
        drain_ns: AtomicU64::new(1_000_000_000),
        interval: Duration::from_secs(3600),
        with_histograms: true,
        standstills: Arc::new(Standstills::from_origin(monotonic_now() - Duration::from_secs(10))),
        targets,
        job,
    });
    let (sender, reports) = channel();
    (Worker::open(spec, shared, sender), reports)
}

fn job() -> JobSpec {
    JobSpec { sources: vec!["nil:".into()], io_bytes: 4096, depth: 2, passes: Some(1), ..JobSpec::default() }
}

fn finished(reports: &Receiver<Report>) -> Tally {
    let last = reports.try_iter().last();
    match last {
        Some(Report::Finished(tally)) => *tally,
        _ => panic!("the worker's last word is its tally"),
    }
}

#[test]
fn an_io_that_comes_back_after_it_was_given_up_is_taken_back() {
    let (mut worker, _, _reports) = worker_over(job(), 1, true);
    let now = monotonic_now();
    worker.start_ios(now);
    assert_eq!(worker.client.in_flight(), 2);
    let timeout = Duration::from_secs_f64(worker.shared.job.timeout_s);
    worker.abandon_overdue(now + timeout + Duration::from_secs(1));
    worker.abandon_overdue(now + timeout + CLIENT_GRACE + Duration::from_secs(1));
    assert_eq!(
        (worker.client.in_flight(), worker.client.lost(), worker.recorder.tally.errors.timed_out),
        (0, 2, 2)
    );
    worker.client.came(Done { tag: 1, result: Ok(4096), via: Via::Nothing, copy_ns: 0 });
    worker.complete();
    assert_eq!((worker.client.in_flight(), worker.client.lost(), worker.recorder.tally.ios()), (0, 1, 0));
    assert_eq!(worker.client.free_tags(), [1]);
}

#[test]
fn an_io_that_no_queue_has_is_not_lost() {
    let (mut worker, _, _reports) = worker_over(job(), 1, true);
    let now = monotonic_now();
    worker.start_ios(now);
    worker.client.came(Done {
        tag: 0,
        result: Err(Fault::errno(libc::EAGAIN)),
        via: Via::Nothing,
        copy_ns: 0,
    });
    worker.complete();
    assert!(worker.client.is_owed());
    let late = now + Duration::from_secs(100);
    worker.abandon_overdue(late);
    worker.abandon_overdue(late);
    assert_eq!((worker.client.in_flight(), worker.client.lost()), (0, 1));
    assert_eq!(worker.client.free_tags(), [0]);
}

#[test]
fn an_io_that_started_late_has_not_timed_out() {
    let (mut worker, _, _reports) = worker_over(JobSpec { rate_iops: Some(1e9), ..job() }, 1, true);
    let now = monotonic_now();
    worker.generator.schedule.as_mut().unwrap().next = now - Duration::from_secs(1000);
    worker.start_ios(now);
    worker.abandon_overdue(now + Duration::from_secs(1));
    assert_eq!((worker.client.in_flight(), worker.recorder.tally.errors.timed_out), (2, 0));
}

#[test]
fn what_is_done_already_is_collected_before_it_could_be_called_overdue() {
    let (mut worker, ..) = worker_over(JobSpec { timeout_s: 4.0, ..job() }, 1, false);
    let now = monotonic_now();
    worker.recorder.tally.measures(true);
    worker.start_ios(now);
    let late = now + Duration::from_secs(100);
    worker.timeouts.next_look = late;
    worker.check_timeouts(late);
    assert_eq!(
        (worker.client.in_flight(), worker.recorder.tally.ios(), worker.recorder.tally.errors.timed_out),
        (0, 2, 0)
    );
}

#[test]
fn time_in_which_the_process_stood_still_is_nobodys_time_out() {
    let (mut worker, ..) = worker_over(JobSpec { timeout_s: 4.0, ..job() }, 1, true);
    let now = monotonic_now();
    worker.start_ios(now);
    worker.timeouts.next_look = now + timeouts::POLL_INTERVAL;
    let after = |s| now + Duration::from_secs(s);
    worker.check_timeouts(after(100));
    assert_eq!((worker.client.in_flight(), worker.recorder.tally.errors.timed_out), (2, 0));
    worker.check_timeouts(after(101));
    assert_eq!(worker.recorder.tally.errors.timed_out, 0, "what was left of their time is still theirs");
    worker.timeouts.next_look = after(105);
    worker.check_timeouts(after(105));
    assert_eq!(worker.recorder.tally.errors.timed_out, 2);
}

/// Ends both I/Os of a worker that began them at `started`, 3 ms after it had booked something last.
fn come_after(worker: &mut Worker, started: Instant) {
    (worker.recorder.booked, worker.recorder.time.begin) =
        (started - Duration::from_millis(3), started - Duration::from_secs(1));
    worker.recorder.tally.measures(true);
    worker.start_ios(started);
    for tag in 0..2 {
        worker.client.came(Done { tag, result: Ok(4096), via: Via::Nothing, copy_ns: 0 });
    }
    worker.complete();
}

/// Two I/Os are under way for a second or more, of which the process stood still for half a second, or for none.
// promise: REC-47
#[test]
fn latencies_have_no_standstill_in_them_and_all_of_a_slow_drive() {
    for stood_still_ms in [500, 0] {
        let (mut worker, ..) = worker_over(job(), 1, true);
        let shared = worker.shared.clone();
        let began = monotonic_now() - Duration::from_secs(1);
        shared.standstills.beat_at(began);
        come_after(&mut worker, began);
        let most = monotonic_now() - began;
        worker.recorder.snapshot(monotonic_now());
        assert_eq!(
            (worker.recorder.tally.ios(), worker.recorder.tally.latency().count()),
            (2, 0),
            "moved, and not yet timed"
        );
        let stood_still = Duration::from_millis(stood_still_ms);
        if !stood_still.is_zero() {
            shared.standstills.tell(began, began + stood_still);
        }
        shared.standstills.beat_at(monotonic_now());
        worker.recorder.await_beats();
        worker.recorder.snapshot(monotonic_now());
        let latency = worker.recorder.tally.latency();
        assert_eq!((worker.recorder.tally.ios(), latency.count()), (2, 2));
        let (least, most) =
            (0.99 * (1e9 - stood_still_ms as f64 * 1e6), (most - stood_still).as_nanos() as f64 * 1.01);
        assert!(latency.percentile_ns(0.0) as f64 >= least && latency.percentile_ns(100.0) as f64 <= most);
    }
}

// promise: REC-47
#[test]
fn an_io_of_which_next_to_nothing_is_left_beside_a_standstill_has_no_latency() {
    let (mut worker, ..) = worker_over(job(), 1, true);
    let began = monotonic_now() - Duration::from_secs(2);
    worker.shared.standstills.tell(began, monotonic_now() + Duration::from_secs(3600));
    come_after(&mut worker, began);
    worker.recorder.snapshot(monotonic_now());
    assert_eq!((worker.recorder.tally.ios(), worker.recorder.tally.latency().count()), (2, 0));
}

/// As where a filter is loaded, or changed, while a run is under way.
// promise: ENG-6
#[test]
fn a_ring_that_may_not_be_entered_any_more_ends_the_run_with_that_and_with_no_time_out() {
    let run = || {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let target = FileTarget::open(file.path(), FileAccess { write: true, direct: false }).unwrap();
        let target = Target::new("file", 1 << 20, OpenFileSource { target, engine: Engine::Uring });
        // Reads of what is in the page cache need no ring.
        let writes = JobSpec { op: forebay_model::job::Op::Write, sync: Sync::None, ..job() };
        let (worker, reports) = opened(writes, vec![target]);
        // Where the kernel has no ring there is none to be refused.
        let Ok((mut worker, _)) = worker else { return None };
        let begin = monotonic_now();
        measured_until(&mut worker, begin, Duration::from_secs(3600));
        worker.start_ios(begin);
        while worker.recorder.tally.ios() < 2 {
            worker.wait(begin);
            worker.client.collect(&mut worker.reactor);
            worker.complete();
        }
        forbid_entering(libc::EPERM);
        worker.run(begin);
        assert!(worker.shared.stop.load(Ordering::Relaxed));
        worker.close();
        Some(finished(&reports))
    };
    let Some(tally) = std::thread::spawn(run).join().unwrap() else { return };
    assert_eq!((tally.ios(), tally.errors.failed, tally.errors.timed_out), (2, 2, 0));
    assert_eq!((tally.lost, tally.unfinished), (2, 2), "the kernel may still write to their memory");
    assert!(
        tally.errors.examples[0].contains("io_uring_enter") && tally.errors.examples[0].contains("write of")
    );
}

/// The kernel may still write there, whether the I/O counts as in flight or was given up.
// promise: ENG-16
#[test]
fn memory_of_an_io_that_was_given_up_stays_mapped_after_a_panic() {
    let mapped = |at: *mut u8| {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        // What was let go of isn't writable any more.
        let ends = |line: &str| {
            let (range, rest) = line.split_once(' ')?;
            let (from, to) = range.split_once('-').filter(|_| rest.starts_with("rw"))?;
            Some((usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?))
        };
        maps.lines().filter_map(ends).any(|(from, to)| (from..to).contains(&(at as usize)))
    };
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    let target = FileTarget::open(file.path(), FileAccess { write: false, direct: false }).unwrap();
    let target = Target::new("file", 1 << 20, OpenFileSource { target, engine: Engine::Pread });
    let (mut worker, ..) = worker_of(job(), vec![target], true);
    let now = monotonic_now();
    worker.start_ios(now);
    let timeout = worker.timeouts.timeout;
    worker.abandon_overdue(now + timeout + Duration::from_secs(1));
    worker.abandon_overdue(now + timeout + CLIENT_GRACE + Duration::from_secs(1));
    assert_eq!((worker.client.in_flight(), worker.client.lost()), (0, 2));
    let at = worker.client.io(0).mem.host_ptr();
    assert!(mapped(at));
    let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        let _worker = worker;
        std::panic::resume_unwind(Box::new("on purpose"));
    }));
    assert!(unwound.is_err() && mapped(at));
}

#[test]
fn every_queue_is_flushed_even_with_one_slot() {
    let job = JobSpec { op: forebay_model::job::Op::Write, sync: Sync::End, depth: 1, ..job() };
    let (mut worker, flushes, reports) = worker_over(job, 5, false);
    worker.run(monotonic_now());
    assert_eq!(flushes.iter().map(|f| f.load(Ordering::Relaxed)).collect::<Vec<_>>(), [1; 5]);
    worker.close();
    assert_eq!(finished(&reports).ways[WRITE].bytes, 5 << 20);
}

#[test]
fn what_ends_before_the_flush_counts_as_its_time_does() {
    let job = JobSpec { op: forebay_model::job::Op::Write, sync: Sync::End, passes: None, ..job() };
    let (mut worker, _, reports) = worker_over(job, 1, false);
    let begin = monotonic_now();
    worker.recorder.time.begin = begin;
    worker.recorder.tally.measures(true);
    worker.start_ios(begin);
    worker.shared.until_ns.store(0, Ordering::Relaxed);
    worker.run(begin);
    worker.close();
    assert_eq!(finished(&reports).ios(), 2);
}

/// Ends the measured time at `until` after it began, with all of it measured.
fn measured_until(worker: &mut Worker, begin: Instant, until: Duration) {
    worker.recorder.time.begin = begin;
    worker.recorder.tally.measures(true);
    worker.shared.until_ns.store(until.as_nanos() as u64, Ordering::Relaxed);
}

#[test]
fn what_comes_back_after_the_end_is_in_the_latency_and_in_no_other_count() {
    let (mut worker, ..) = worker_over(JobSpec { passes: None, ..job() }, 1, true);
    let begin = monotonic_now() - Duration::from_secs(9);
    measured_until(&mut worker, begin, Duration::from_secs(3));
    worker.start_ios(begin + Duration::from_secs(2));
    worker.client.came(Done { tag: 1, result: Ok(4096), via: Via::Nothing, copy_ns: 5 });
    worker.complete();
    let tally = &worker.recorder.tally;
    assert_eq!((tally.late, tally.ios(), tally.ways[READ].bytes, tally.latency().count()), (1, 0, 0, 1));
    assert!(tally.latency().percentile_ns(100.0) >= 7_000_000_000);
    assert_eq!(tally.copy.as_ref().unwrap().count(), 1);
}

// promise: BEN-18
#[test]
fn what_is_given_up_has_waited_until_then() {
    let (mut worker, ..) = worker_over(JobSpec { passes: None, timeout_s: 4.0, ..job() }, 1, true);
    let begin = monotonic_now();
    measured_until(&mut worker, begin, Duration::from_secs(3));
    worker.start_ios(begin + Duration::from_secs(1));
    let late = begin + Duration::from_secs(20);
    worker.abandon_overdue(late);
    worker.abandon_overdue(late);
    let tally = &worker.recorder.tally;
    assert_eq!((worker.client.lost(), tally.unfinished, tally.latency().count()), (2, 2, 2));
    assert_eq!(tally.unfinished_oldest, Duration::from_secs(19));
    assert!(tally.latency().percentile_ns(0.0) > 18_900_000_000);
}

#[test]
fn an_open_loop_starts_what_was_due_by_the_end_and_nothing_that_was_not() {
    let (mut worker, _, reports) =
        worker_over(JobSpec { rate_iops: Some(1000.0), passes: None, ..job() }, 1, false);
    // A second in which nothing could be started lies behind it.
    let begin = monotonic_now() - Duration::from_millis(1500);
    worker.shared.until_ns.store(1_000_000_000, Ordering::Relaxed);
    // However slowly this thread runs: all that was due is begun.
    worker.shared.drain_ns.store(3_600_000_000_000, Ordering::Relaxed);
    worker.run(begin);
    worker.close();
    let tally = finished(&reports);
    assert_eq!((tally.ios(), tally.late, tally.unfinished, tally.latency().count()), (0, 1000, 0, 1000));
    assert!(
        tally.latency().percentile_ns(0.0) >= 500_000_000
            && tally.latency().percentile_ns(100.0) >= 1_490_000_000
    );
}

// promise: BEN-18
#[test]
fn what_an_open_loop_owes_beyond_its_patience_is_counted_with_its_wait() {
    for (rate, due) in [(1000.0, 1000), (3e6, 3_000_000)] {
        let job = JobSpec { rate_iops: Some(rate), passes: None, ..job() };
        let (mut worker, _, reports) = worker_over(job, 1, false);
        let begin = monotonic_now() - Duration::from_secs(5);
        worker.shared.until_ns.store(1_000_000_000, Ordering::Relaxed);
        worker.run(begin);
        worker.close();
        let tally = finished(&reports);
        assert_eq!((tally.late, tally.unfinished, tally.latency().count()), (0, due, due));
        assert!(tally.unfinished_oldest >= Duration::from_secs(5));
        // They fell due evenly over the second.
        let (least, half) = (tally.latency().percentile_ns(0.0), tally.latency().percentile_ns(50.0));
        assert!(least >= 3_990_000_000 && half >= least + 450_000_000 && half <= least + 550_000_000);
    }
}

#[test]
fn a_run_that_ended_in_its_warm_up_has_no_latency() {
    let (mut worker, ..) = worker_over(JobSpec { rate_iops: Some(1000.0), passes: None, ..job() }, 1, true);
    let begin = monotonic_now() - Duration::from_secs(9);
    worker.generator.schedule.as_mut().unwrap().next = begin;
    measured_until(&mut worker, begin, Duration::from_secs(3));
    worker.shared.from_ns.store(4_000_000_000, Ordering::Relaxed);
    worker.start_ios(begin + Duration::from_secs(2));
    worker.client.came(Done { tag: 1, result: Ok(4096), via: Via::Nothing, copy_ns: 0 });
    worker.complete();
    worker.book_what_never_came(monotonic_now());
    assert_eq!(
        (
            worker.recorder.tally.late,
            worker.recorder.tally.unfinished,
            worker.recorder.tally.latency().count()
        ),
        (0, 0, 0)
    );
}

#[test]
fn a_rate_in_bytes_holds_for_any_sizes() {
    let job = JobSpec { rate_gib_s: Some(1.0), rate_iops: None, workers: 3, ..job() };
    let mut schedule = crate::schedule::schedule_of(&job, 0).unwrap();
    let from = schedule.next;
    for bytes in [1u64 << 20, 1 << 10, 3 << 28] {
        schedule.advance(bytes);
    }
    let wanted = 3.0 * ((1u64 << 20) + (1 << 10) + (3 << 28)) as f64 / BYTES_PER_GIB;
    assert!((schedule.next.duration_since(from).as_secs_f64() - wanted).abs() < 1e-6);
    let mut schedule =
        crate::schedule::schedule_of(&JobSpec { rate_gib_s: None, rate_iops: Some(3e9), ..job }, 0).unwrap();
    let from = schedule.next;
    (0..1000).for_each(|_| schedule.advance(4096));
    assert_eq!(schedule.next.duration_since(from), Duration::from_nanos(1000));
}

#[test]
fn a_panic_is_the_last_report_and_stops_the_others() {
    let (worker, _, _reports) = worker_over(job(), 1, false);
    let (shared, pattern) = (
        worker.shared.clone(),
        share::out(&worker.shared.job, &worker.shared.targets, &Destination::default()).unwrap(),
    );
    let (sender, reports) = channel();
    work(pattern.into_iter().next().unwrap(), shared.clone(), &|| panic!("on purpose"), &sender);
    let Some(Report::Failed(error)) = reports.try_iter().last() else { panic!("no report") };
    assert!(error.found.contains("on purpose") && !error.next.is_empty());
    assert!(shared.stop.load(Ordering::Relaxed));
}
