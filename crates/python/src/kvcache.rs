//! The KV cache workload from Python: a spec as JSON in, a record as JSON out, and a barrier that is a callable.

use crate::checkpoint::Called;
use crate::observe::{stop_requested, Watcher};
use crate::{ended, json, raise};
use forebay_model::kvcache::script::Script;
use forebay_model::kvcache::KvSpec;
use forebay_training::{plan_kvcache, run_kvcache, Barrier};
use pyo3::prelude::*;
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// Runs a KvSpec and returns its RunRecord. What broke midway is raised as RunError with the record, as JSON text, in its
/// attribute `record`. `ranks` is called once, with what each rank's own files tell, as JSON text. `replay` is a Script, as JSON
/// text, that is played in place of the users.
#[pyfunction]
#[pyo3(name = "kvcache_run", signature = (spec, command, observer=None, barrier=None, ranks=None, replay=None))]
pub fn run(
    py: Python<'_>,
    spec: &str,
    command: Vec<String>,
    observer: Option<Py<PyAny>>,
    barrier: Option<Py<PyAny>>,
    ranks: Option<Py<PyAny>>,
    replay: Option<&str>,
) -> PyResult<String> {
    let mut spec = KvSpec::from_json(spec).map_err(|error| raise(py, error))?;
    let script = replay.map(Script::from_json).transpose().map_err(|error| raise(py, error))?;
    spec.replay = script.map(Arc::new);
    stop_requested().store(false, Ordering::Relaxed);
    let mut watcher = Watcher::new(observer);
    let mut called = barrier.map(Called::new);
    let done = py.detach(|| {
        let barrier = called.as_mut().map(|c| c as &mut dyn Barrier);
        run_kvcache(&spec, command, &mut watcher, barrier)
    });
    let raised = called.and_then(|c| c.raised);
    let done = match done {
        Ok(done) => done,
        Err(error) => {
            return Err(watcher.interruption().or(raised).unwrap_or_else(|| raise(py, error)));
        }
    };
    if let Some(ranks) = ranks {
        ranks.call1(py, (json(py, &done.ranks)?,))?;
    }
    ended(py, done.outcome.record, done.outcome.failure, watcher.interruption())
}

/// Returns the plan of `kvcache_run`. Touches nothing.
#[pyfunction]
#[pyo3(name = "kvcache_plan")]
pub fn plan(py: Python<'_>, spec: &str) -> PyResult<String> {
    let planned = KvSpec::from_json(spec).and_then(|spec| py.detach(|| plan_kvcache(&spec)));
    json(py, &planned.map_err(|error| raise(py, error))?)
}

/// Returns what MLPerf Storage v3.0 fixes for an option of its closed division, as a KvSpec.
#[pyfunction]
#[pyo3(name = "kvcache_option")]
pub fn option(py: Python<'_>, option: u32) -> PyResult<String> {
    json(py, &KvSpec::of_option(option).map_err(|error| raise(py, error))?)
}
