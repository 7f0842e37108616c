//! `simulate_fleet`: hosts over shared storage in virtual time, from Python.

use crate::observe::{stop_requested, Watcher};
use crate::{json, raise};
use forebay_bench::Observer;
use forebay_model::simulate::fleet::{self, Fleet};
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const TELL_EVERY: Duration = Duration::from_millis(250);

#[derive(serde::Serialize)]
struct Progress {
    share: f64,
}

/// Plays a Fleet and returns its Outcome. `observer` is given {"share": done, 0 to 1} about four times a second. An
/// interrupted play returns what came until then, with `interrupted` true.
#[pyfunction]
#[pyo3(signature = (fleet, observer=None))]
pub fn simulate_fleet(py: Python<'_>, fleet: &str, observer: Option<Py<PyAny>>) -> PyResult<String> {
    let fleet = Fleet::from_json(fleet).map_err(|error| raise(py, error))?;
    stop_requested().store(false, Ordering::Relaxed);
    let mut watcher = Watcher::new(observer);
    let mut reported = Instant::now();
    let outcome = py.detach(|| {
        fleet::play(&fleet, &mut |share| {
            if reported.elapsed() >= TELL_EVERY {
                reported = Instant::now();
                watcher.progress(&Progress { share });
            }
            !Observer::<Progress>::stop(&mut watcher)
        })
    });
    let outcome = outcome.map_err(|error| raise(py, error))?;
    match watcher.interruption().filter(|e| !e.is_instance_of::<PyKeyboardInterrupt>(py)) {
        Some(defect) => Err(defect),
        None => json(py, &outcome),
    }
}
