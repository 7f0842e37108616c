//! Steps of a run that others hold up: hosts that pass one barrier, and an observer that takes nothing.

use super::*;
use forebay_model::Error;
use forebay_training::StepBarrier;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

struct Counted(Arc<Mutex<Vec<(u32, u32)>>>, Option<u32>);

impl StepBarrier for Counted {
    fn pass(&mut self, epoch: u32, step: u32) -> Result<(), Error> {
        self.0.lock().unwrap().push((epoch, step));
        match self.1 {
            Some(at) if at == step => Err(Error::run("the barrier", "host b is gone", "its log")),
            _ => Ok(()),
        }
    }
}

// promise: TRA-11
#[test]
fn steps_of_several_hosts_pass_one_barrier_each() {
    let data = data(8, 10, 1000);
    let mut spec = data.spec(10, 10);
    (spec.accelerators, spec.first_rank, spec.ranks, spec.epochs) = (2, 2, 4, 2);
    let passed = Arc::new(Mutex::new(Vec::new()));
    let barrier = Counted(passed.clone(), None);
    let outcome = run_emulation(&spec, vec![], &mut quiet(), Some(Box::new(barrier))).unwrap();
    assert_eq!(training(&outcome).epochs[1].steps, 2);
    assert_eq!(*passed.lock().unwrap(), [(0, 0), (0, 1), (1, 0), (1, 1)]);
    let barrier = Counted(passed, Some(1));
    let outcome = run_emulation(&spec, vec![], &mut quiet(), Some(Box::new(barrier))).unwrap();
    assert!(outcome.failure.unwrap().found.contains("host b is gone"));
    assert_eq!(outcome.record.training.unwrap().epochs[0].steps, 1);
}

/// Held up where it shows progress, as by a terminal that takes nothing, until three more steps are over.
struct HeldUp {
    passed: Arc<Mutex<Vec<(u32, u32)>>>,
    shown: usize,
}

impl Observer<EmulateProgress> for HeldUp {
    fn progress(&mut self, _: &EmulateProgress) {
        self.shown += 1;
        let steps = || self.passed.lock().unwrap().len();
        let (enough, until) = ((steps() + 3).min(8), Instant::now() + Duration::from_secs(60));
        while steps() < enough {
            assert!(Instant::now() < until, "the run waits for its observer");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn stop(&mut self) -> bool {
        false
    }
}

// promise: REC-8
#[test]
fn a_run_goes_on_while_its_observer_is_held_up() {
    let data = data(16, 10, 1000);
    let mut spec = data.spec(10, 10);
    (spec.accelerators, spec.ranks, spec.interval_s) = (1, 2, 0.02);
    spec.workload.compute_s = 0.02;
    let passed = Arc::new(Mutex::new(Vec::new()));
    let mut observer = HeldUp { passed: passed.clone(), shown: 0 };
    let outcome = run_emulation(&spec, vec![], &mut observer, Some(Box::new(Counted(passed, None)))).unwrap();
    assert!(outcome.failure.is_none() && observer.shown > 0);
    assert_eq!(training(&outcome).epochs[0].steps, 8);
}
