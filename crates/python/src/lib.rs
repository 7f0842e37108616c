//! Glue between Python and the engine: JSON in, JSON out, errors as exceptions.

use pyo3::prelude::*;

#[pymodule]
fn _core(_module: &Bound<'_, PyModule>) -> PyResult<()> {
    Ok(())
}
