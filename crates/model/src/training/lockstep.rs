//! Accelerators with a barrier after every step: their waits, by cause.

use super::rules::{Step, Steps};

/// The steps of one epoch of this process's accelerators. All times on one clock, in nanoseconds.
///
/// In step k every accelerator asks for its batch when the barrier before has fallen, starts once the batch is
/// there, and computes for as long as the workload says. Ends are computed from starts: a timer that fires late
/// neither counts as utilisation nor against it.
#[derive(Clone, Debug)]
pub struct Lockstep {
    compute_ns: u64,
    /// When the last barrier fell.
    asked_ns: u64,
    /// The latest end of a computation of this step.
    latest_end_ns: u64,
    starts_ns: Vec<Option<u64>>,
    started: usize,
    done: Vec<Steps>,
}

impl Lockstep {
    pub fn begin(accelerators: u32, compute_ns: u64, start_ns: u64) -> Self {
        Lockstep {
            compute_ns,
            asked_ns: start_ns,
            latest_end_ns: start_ns,
            starts_ns: vec![None; accelerators as usize],
            started: 0,
            done: vec![Steps::begin(start_ns); accelerators as usize],
        }
    }

    /// `accelerator`'s batch for this step was ready at `ready_ns`. Returns when its computation starts.
    #[inline]
    pub fn start(&mut self, accelerator: u32, ready_ns: u64) -> u64 {
        self.start_for(accelerator, ready_ns, self.compute_ns)
    }

    /// The same where the computation takes this long, in which the slowest of what steps here as one sets the time.
    /// It counts as busy for as long as the workload says.
    #[inline]
    pub fn start_for(&mut self, accelerator: u32, ready_ns: u64, takes_ns: u64) -> u64 {
        let start_ns = ready_ns.max(self.asked_ns);
        let before = self.starts_ns[accelerator as usize].replace(start_ns);
        debug_assert!(before.is_none(), "accelerator {accelerator} starts a step twice");
        self.started += 1;
        self.latest_end_ns = self.latest_end_ns.max(start_ns + takes_ns);
        start_ns
    }

    /// When the barrier falls, as far as these accelerators go. None while one still waits for its batch.
    pub fn barrier_ns(&self) -> Option<u64> {
        (self.started == self.starts_ns.len()).then_some(self.latest_end_ns)
    }

    /// Ends the step that all have started: the barrier fell at `at_ns`, which other hosts may have made later.
    pub fn pass(&mut self, at_ns: u64) {
        assert_eq!(self.started, self.starts_ns.len(), "a barrier that not all have reached");
        let at_ns = at_ns.max(self.latest_end_ns);
        for (start, done) in self.starts_ns.iter_mut().zip(&mut self.done) {
            let start_ns = start.take().expect("counted");
            let wait_ns = start_ns - self.asked_ns;
            let process_ns = wait_ns + self.compute_ns;
            let barrier_ns = at_ns.saturating_sub(start_ns + self.compute_ns);
            done.push(Step { wait_ns, compute_ns: self.compute_ns, process_ns, barrier_ns }, at_ns);
        }
        self.started = 0;
        self.asked_ns = at_ns;
        self.latest_end_ns = at_ns;
    }

    /// When this step's batches were asked for.
    pub fn asked_ns(&self) -> u64 {
        self.asked_ns
    }

    /// The completed steps of each accelerator.
    pub fn into_steps(self) -> Vec<Steps> {
        self.done
    }

    pub fn steps(&self) -> &[Steps] {
        &self.done
    }
}
