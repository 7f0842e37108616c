//! `_core.files`: the metadata phases, watched from Python.

use crate::{json, raise};
use forebay_bench::{run_files, FilesProgress};
use forebay_model::files::FilesSpec;
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;

/// Runs a FilesSpec in `DIR/forebay-files-ID`; returns its FilesRecord. `observer` gets a JSON Progress. A
/// KeyboardInterrupt (the observer's, or a signal's) ends the run and cleans up; another one ends the cleaning.
#[pyfunction]
#[pyo3(name = "files", signature = (spec, id, observer=None))]
pub fn run(py: Python<'_>, spec: &str, id: &str, observer: Option<Py<PyAny>>) -> PyResult<String> {
    let spec = FilesSpec::from_json(spec).map_err(|error| raise(py, error))?;
    let mut broken: Option<PyErr> = None;
    let mut observe = |progress: &FilesProgress| match tell(observer.as_ref(), progress) {
        Ok(()) => true,
        Err(error) => {
            if !Python::attach(|py| error.is_instance_of::<PyKeyboardInterrupt>(py)) {
                broken = Some(error);
            }
            false
        }
    };
    let record = py.detach(|| run_files(&spec, id, &mut observe));
    match broken {
        Some(error) => Err(error),
        None => json(py, &record.map_err(|error| raise(py, error))?),
    }
}

fn tell(observer: Option<&Py<PyAny>>, progress: &FilesProgress) -> PyResult<()> {
    Python::attach(|py| {
        py.check_signals()?;
        match observer {
            Some(observer) => observer.call1(py, (json(py, progress)?,)).map(|_| ()),
            None => Ok(()),
        }
    })
}
