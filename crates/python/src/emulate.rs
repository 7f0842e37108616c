//! `emulate_run` and `emulate_check`: emulated training from Python.

use crate::observe::{stop_requested, Watcher};
use crate::{ended, json, raise};
use forebay_engine::emulate;
use forebay_model::training::EmulateSpec;
use pyo3::prelude::*;
use std::sync::atomic::Ordering;

/// Runs an EmulateSpec and returns its RunRecord. What broke midway is raised as RunError with the record, as JSON
/// text, in its attribute `record`.
#[pyfunction]
#[pyo3(signature = (spec, command, observer=None))]
pub fn emulate_run(
    py: Python<'_>,
    spec: &str,
    command: Vec<String>,
    observer: Option<Py<PyAny>>,
) -> PyResult<String> {
    let spec = EmulateSpec::from_json(spec).map_err(|error| raise(py, error))?;
    stop_requested().store(false, Ordering::Relaxed);
    let mut watcher = Watcher::new(observer);
    let outcome = py.detach(|| emulate::run(&spec, command, &mut watcher));
    let outcome = outcome.map_err(|error| watcher.interruption().unwrap_or_else(|| raise(py, error)))?;
    ended(py, outcome.record, outcome.failure, watcher.interruption())
}

/// The spec with its defaults, or what is wrong with it on any machine.
#[pyfunction]
pub fn emulate_check(py: Python<'_>, spec: &str) -> PyResult<String> {
    let spec = EmulateSpec::from_json(spec).and_then(|spec| emulate::check(&spec).map(|()| spec));
    json(py, &spec.map_err(|error| raise(py, error))?)
}
