//! `forebay discover` and `forebay identify` for Python.

use crate::{json, raise};
use forebay_storage::Looking;
use pyo3::prelude::*;
use std::time::Duration;

/// Returns the offers of `host` to this host, or to one of that NQN, as JSON.
#[pyfunction]
#[pyo3(signature = (host, host_nqn, timeout_s))]
pub fn discover(py: Python<'_>, host: &str, host_nqn: Option<String>, timeout_s: f64) -> PyResult<String> {
    let looking = looking(host_nqn, timeout_s);
    let found = py.detach(|| forebay_storage::discover(host, &looking));
    json(py, &found.map_err(|error| raise(py, error))?)
}

/// The discovery services that announce themselves on this machine's networks, as JSON.
#[pyfunction]
#[pyo3(signature = (wait_s))]
pub fn browse(py: Python<'_>, wait_s: f64) -> PyResult<String> {
    let wait = looking(None, wait_s).timeout;
    let found = py.detach(|| forebay_storage::browse(wait));
    json(py, &found.map_err(|error| raise(py, error))?)
}

/// Returns the description of the controller that a URI names, and of its namespaces, as JSON.
#[pyfunction]
#[pyo3(signature = (uri, host_nqn, timeout_s))]
pub fn identify(py: Python<'_>, uri: &str, host_nqn: Option<String>, timeout_s: f64) -> PyResult<String> {
    let looking = looking(host_nqn, timeout_s);
    let found = py.detach(|| forebay_storage::identify(uri, &looking));
    json(py, &found.map_err(|error| raise(py, error))?)
}

/// At least a millisecond, at most an hour: what a socket's time-out can be.
fn looking(host_nqn: Option<String>, timeout_s: f64) -> Looking {
    let timeout = Duration::try_from_secs_f64(timeout_s).unwrap_or(Duration::MAX);
    Looking { host_nqn, timeout: timeout.clamp(Duration::from_millis(1), Duration::from_secs(3600)) }
}
