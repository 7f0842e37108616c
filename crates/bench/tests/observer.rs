//! An observer that is held up, as by a terminal that takes nothing. Alone in its process: it looks for the workers'
//! threads, and for the process's own time.

use forebay_bench::{run_job, Observer, Phase, Progress};
use forebay_model::job::JobSpec;
use std::time::{Duration, Instant};

/// Much longer than anything here takes.
const SOON: Duration = Duration::from_secs(60);

/// Comes back from the first word of the warm-up when the workers are gone.
#[derive(Default)]
struct Held {
    held: bool,
}

impl Observer for Held {
    fn progress(&mut self, progress: &Progress) {
        if self.held || progress.phase != Phase::Warmup {
            return;
        }
        self.held = true;
        let until = Instant::now() + SOON;
        while works() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn stop(&mut self) -> bool {
        false
    }
}

fn works() -> bool {
    let names = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = names.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.into_iter().any(|name| name.starts_with("worker-"))
}

// promise: REC-8
#[test]
fn a_held_up_observer_takes_nothing_from_the_meters() {
    let job = JobSpec {
        sources: vec!["nil:".into()],
        io_bytes: 4096,
        warmup_s: Some(0.3),
        duration_s: Some(0.3),
        interval_ms: 50,
        repeat: 2,
        ..JobSpec::default()
    };
    let mut observer = Held::default();
    let record = run_job(&job, Vec::new(), &mut observer).unwrap().record;
    assert!(observer.held, "the observer was never told of the warm-up");
    assert_eq!(record.result.repeats.len(), 2);
    for (n, repeat) in record.result.repeats.iter().enumerate() {
        // Meters that began when the workers were gone would find next to no time for millions of I/Os.
        let reported = repeat.cpu.ns_per_io.unwrap_or(f64::INFINITY);
        assert!(reported > 1.0, "repeat {n}: {reported} ns per I/O, {} I/Os", repeat.ios);
        assert!(reported.is_finite() || record.missing.contains_key("result.cpu"), "{:?}", record.missing);
    }
}
