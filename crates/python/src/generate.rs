//! `_core.emulate_datagen`: makes a data set, watched from Python; `_core.formats`: what it can be made of.

use crate::{json, raise};
use forebay_training::{generate_data, DatagenProgress, DatagenSpec, FormatRow, FORMATS};
use pyo3::prelude::*;

/// Runs a DatagenSpec; returns its DatagenRecord. `observer` gets a JSON Progress. What it raises, or a signal's handler,
/// ends the run and is raised again, with what stays as text in its attribute `kept`.
#[pyfunction]
#[pyo3(name = "emulate_datagen", signature = (spec, observer=None))]
pub fn run(py: Python<'_>, spec: &str, observer: Option<Py<PyAny>>) -> PyResult<String> {
    let spec = DatagenSpec::from_json(spec).map_err(|error| raise(py, error))?;
    let mut raised: Option<PyErr> = None;
    let mut observe = |progress: &DatagenProgress| {
        if raised.is_none() {
            raised = tell(observer.as_ref(), progress).err();
        }
        raised.is_none()
    };
    let record = py.detach(|| generate_data(&spec, &mut observe));
    match (raised, record) {
        (Some(raised), record) => {
            let kept = record.err().map_or_else(String::new, |error| crate::in_flags(error.found));
            raised.value(py).setattr("kept", kept)?;
            Err(raised)
        }
        (None, record) => json(py, &record.map_err(|error| raise(py, error))?),
    }
}

fn tell(observer: Option<&Py<PyAny>>, progress: &DatagenProgress) -> PyResult<()> {
    Python::attach(|py| {
        py.check_signals()?;
        match observer {
            Some(observer) => observer.call1(py, (json(py, progress)?,)).map(|_| ()),
            None => Ok(()),
        }
    })
}

/// The formats of emulation's files: `[{name, extension, what}]`.
#[pyfunction]
pub fn formats(py: Python<'_>) -> PyResult<String> {
    let row =
        |row: &FormatRow| serde_json::json!({"name": row.name, "extension": row.extension, "what": row.what});
    json(py, &FORMATS.iter().map(row).collect::<Vec<_>>())
}
