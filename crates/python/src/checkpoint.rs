//! Checkpoints from Python: a spec as JSON in, a record as JSON out, and a barrier that is a callable.

use crate::observe::{stop_requested, Watcher};
use crate::{ended, json, raise};
use forebay_model::checkpoint::{CheckpointSpec, Model};
use forebay_model::Error;
use forebay_training::{plan_checkpoint, run_checkpoint, Barrier};
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use std::sync::atomic::Ordering;

/// Calls Python wherever the ranks of several hosts wait for each other.
pub struct Called {
    barrier: Py<PyAny>,
    pub raised: Option<PyErr>,
}

impl Called {
    pub fn new(barrier: Py<PyAny>) -> Called {
        Called { barrier, raised: None }
    }
}

impl Barrier for Called {
    fn pass(&mut self) -> Result<bool, Error> {
        Python::attach(|py| match self.barrier.call0(py) {
            Ok(_) => Ok(true),
            Err(e) if e.is_instance_of::<PyKeyboardInterrupt>(py) => Ok(false),
            Err(e) => {
                let found = e.to_string();
                self.raised = Some(e);
                Err(Error::run("waiting for the other hosts", found, "the same command on one host"))
            }
        })
    }
}

/// Runs a CheckpointSpec and returns its RunRecord. What broke midway is raised as RunError with the record, as JSON
/// text, in its attribute `record`. A KeyboardInterrupt of `barrier` ends the run as Ctrl-C does.
#[pyfunction]
#[pyo3(name = "checkpoint_run", signature = (spec, command, observer=None, barrier=None))]
pub fn run(
    py: Python<'_>,
    spec: &str,
    command: Vec<String>,
    observer: Option<Py<PyAny>>,
    barrier: Option<Py<PyAny>>,
) -> PyResult<String> {
    let spec = CheckpointSpec::from_json(spec).map_err(|error| raise(py, error))?;
    stop_requested().store(false, Ordering::Relaxed);
    let mut watcher = Watcher::new(observer);
    let mut called = barrier.map(Called::new);
    let outcome = py.detach(|| {
        let barrier = called.as_mut().map(|c| c as &mut dyn Barrier);
        run_checkpoint(&spec, command, &mut watcher, barrier)
    });
    let raised = called.and_then(|c| c.raised);
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(error) => {
            return Err(watcher.interruption().or(raised).unwrap_or_else(|| raise(py, error)));
        }
    };
    ended(py, outcome.record, outcome.failure, watcher.interruption())
}

/// Returns the plan of `checkpoint_run`. Touches nothing.
#[pyfunction]
#[pyo3(name = "checkpoint_plan")]
pub fn plan(py: Python<'_>, spec: &str) -> PyResult<String> {
    let planned = CheckpointSpec::from_json(spec).and_then(|spec| py.detach(|| plan_checkpoint(&spec)));
    json(py, &planned.map_err(|error| raise(py, error))?)
}

/// Bytes of a model's files and of its optimizer's, of one checkpoint by all ranks.
#[pyfunction]
#[pyo3(name = "checkpoint_bytes")]
pub fn bytes(py: Python<'_>, model: &str) -> PyResult<(u64, u64)> {
    let read: Result<Model, _> = serde_json::from_str(model);
    let read = read.map_err(|e| Error::request("a model", e.to_string(), "forebay emulate workloads list"));
    let sizes = read.and_then(|model| model.check().map(|()| model.sizes(0..model.ranks(), 1.0)));
    sizes.map(|sizes| (sizes.model, sizes.optimizer)).map_err(|error| raise(py, error))
}
