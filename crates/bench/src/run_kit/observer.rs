//! Progress of a run, and who is shown it and may end the run.

use serde::Serialize;
use std::sync::atomic::AtomicBool;

/// Observes a run and may end it. Called from the thread that requested the run; the run has a thread of its own, so
/// a slow observer delays nothing, and is then shown only the latest state. `W`: the state that it is shown.
pub trait Observer<W = Progress> {
    fn progress(&mut self, progress: &W);

    /// Called about twenty times a second; true ends the run, and what was measured is kept.
    fn stop(&mut self) -> bool;

    /// A flag that ends the run when it is set, even while `progress` is held up.
    fn stop_flag(&self) -> Option<&'static AtomicBool> {
        None
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    Prepare,
    Warmup,
    Measure,
}

/// Progress of a run, once per interval. Rates are those of the last interval.
#[derive(Clone, Debug, Serialize)]
pub struct Progress {
    pub phase: Phase,
    pub repeat: u32,
    pub repeats: u32,
    pub t_s: f64,
    /// Warm-up and measured time together; null where passes end the run.
    pub duration_s: Option<f64>,
    pub gib_s: f64,
    pub iops: f64,
    pub bytes: u64,
    pub ios: u64,
    #[serde(skip)]
    pub interval_bytes: u64,
    pub latency_us_mean: Option<f64>,
    pub latency_us_p50: Option<f64>,
    pub latency_us_p99: Option<f64>,
    pub latency_us_p999: Option<f64>,
    pub cores_busy: Option<f64>,
    pub workers: Vec<WorkerRate>,
    pub targets: Vec<TargetRate>,
    pub message: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct WorkerRate {
    pub gib_s: f64,
    pub iops: f64,
}

#[derive(Clone, Debug, Serialize)]
pub struct TargetRate {
    pub target: String,
    pub gib_s: f64,
}
