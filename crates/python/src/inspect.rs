//! `forebay discover` and `forebay identify` for Python.

use crate::{json, raise};
use forebay_storage::Inquiry;
use pyo3::prelude::*;
use std::time::Duration;

/// Returns the offers of `host` to this host, or to one of that NQN, as JSON.
#[pyfunction]
#[pyo3(signature = (host, host_nqn, timeout_s))]
pub fn discover(py: Python<'_>, host: &str, host_nqn: Option<String>, timeout_s: f64) -> PyResult<String> {
    let inquiry = inquiry(host_nqn, timeout_s);
    let found = py.detach(|| forebay_storage::discover(host, &inquiry));
    json(py, &found.map_err(|error| raise(py, error))?)
}

/// The discovery services that announce themselves on this machine's networks, as JSON.
#[pyfunction]
#[pyo3(signature = (wait_s))]
pub fn browse(py: Python<'_>, wait_s: f64) -> PyResult<String> {
    let wait = inquiry(None, wait_s).timeout;
    let found = py.detach(|| forebay_storage::browse(wait));
    json(py, &found.map_err(|error| raise(py, error))?)
}

/// Returns the description of the controller that a URI names, and of its namespaces, as JSON.
#[pyfunction]
#[pyo3(signature = (uri, host_nqn, timeout_s))]
pub fn identify(py: Python<'_>, uri: &str, host_nqn: Option<String>, timeout_s: f64) -> PyResult<String> {
    let inquiry = inquiry(host_nqn, timeout_s);
    let found = py.detach(|| forebay_storage::identify(uri, &inquiry));
    json(py, &found.map_err(|error| raise(py, error))?)
}

/// At least a millisecond, at most an hour: what a socket's time-out can be.
fn inquiry(host_nqn: Option<String>, timeout_s: f64) -> Inquiry {
    let timeout = Duration::try_from_secs_f64(timeout_s).unwrap_or(Duration::MAX);
    Inquiry { host_nqn, timeout: timeout.clamp(Duration::from_millis(1), Duration::from_secs(3600)) }
}
