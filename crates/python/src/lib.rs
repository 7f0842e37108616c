//! Glue between Python and the engine: JSON in, JSON out, errors as exceptions.

mod files;

use forebay_engine::{doctor, Error, Kind};
use pyo3::prelude::*;
use std::path::PathBuf;

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(examine, module)?)?;
    module.add_function(wrap_pyfunction!(environment, module)?)?;
    module.add_function(wrap_pyfunction!(files::run, module)?)?;
    Ok(())
}

/// The doctor's findings.
#[pyfunction]
#[pyo3(name = "doctor", signature = (source, cufile_json=None))]
fn examine(py: Python<'_>, source: Option<String>, cufile_json: Option<PathBuf>) -> PyResult<String> {
    let report = py.detach(|| doctor::examine(source.as_deref(), cufile_json.as_deref()));
    json(py, &report.map_err(|error| raise(py, error))?)
}

/// The environment part of a record.
#[pyfunction]
fn environment(py: Python<'_>, paths: Vec<PathBuf>) -> PyResult<String> {
    json(py, &py.detach(|| doctor::environment(&paths)))
}

fn json(py: Python<'_>, value: &impl serde::Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|error| raise(py, Error::run("writing JSON", error.to_string(), "")))
}

/// As an exception of forebay.errors, so that the exit code follows.
fn raise(py: Python<'_>, error: Error) -> PyErr {
    let name = match error.kind {
        Kind::Request => "RequestError",
        Kind::Machine => "MachineError",
        Kind::Run => "RunError",
    };
    let made = py
        .import("forebay.errors")
        .and_then(|errors| errors.getattr(name)?.call1((error.asked, error.found, error.next)));
    made.map_or_else(|failed| failed, PyErr::from_value)
}
