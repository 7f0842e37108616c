//! `emulate_run` and `emulate_check`: emulated training from Python.

use crate::observe::{stop_requested, Watcher};
use crate::{ended, json, raise};
use forebay_model::training::EmulateSpec;
use forebay_model::Error;
use forebay_training::{check_emulation, run_emulation, StepBarrier};
use pyo3::prelude::*;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

/// Runs an EmulateSpec and returns its RunRecord. What broke midway is raised as RunError with the record, as JSON
/// text, in its attribute `record`. `barrier(epoch, step)` returns once all hosts have ended the step.
#[pyfunction]
#[pyo3(signature = (spec, command, observer=None, barrier=None))]
pub fn emulate_run(
    py: Python<'_>,
    spec: &str,
    command: Vec<String>,
    observer: Option<Py<PyAny>>,
    barrier: Option<Py<PyAny>>,
) -> PyResult<String> {
    let spec = EmulateSpec::from_json(spec).map_err(|error| raise(py, error))?;
    stop_requested().store(false, Ordering::Relaxed);
    let mut watcher = Watcher::new(observer);
    let refused = Arc::new(Mutex::new(None));
    let barrier =
        barrier.map(|call| Box::new(Called { call, refused: refused.clone() }) as Box<dyn StepBarrier>);
    let outcome = py.detach(|| run_emulation(&spec, command, &mut watcher, barrier));
    let refused = refused.lock().expect("nothing panics while it holds it").take();
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(error) => return Err(watcher.interruption().or(refused).unwrap_or_else(|| raise(py, error))),
    };
    ended(py, outcome.record, outcome.failure, watcher.interruption().or(refused))
}

/// The spec with its defaults, or what is wrong with it on any machine.
#[pyfunction]
pub fn emulate_check(py: Python<'_>, spec: &str) -> PyResult<String> {
    let spec = EmulateSpec::from_json(spec).and_then(|spec| check_emulation(&spec).map(|()| spec));
    json(py, &spec.map_err(|error| raise(py, error))?)
}

/// A Python callable that waits for the other hosts.
struct Called {
    call: Py<PyAny>,
    /// Exception that it raised.
    refused: Arc<Mutex<Option<PyErr>>>,
}

impl StepBarrier for Called {
    fn pass(&mut self, epoch: u32, step: u32) -> Result<(), Error> {
        let called = Python::attach(|py| self.call.call1(py, (epoch, step)).map(|_| ()));
        called.map_err(|raised| {
            let found = raised.to_string();
            *self.refused.lock().expect("nothing panics while it holds it") = Some(raised);
            Error::run(format!("the barrier after step {step}"), found, "the other hosts' output")
        })
    }
}
