//! A program of Python's that the system refuses memory.

#![allow(unsafe_code, reason = "the interpreter's state, outside of it")]

use pyo3::prelude::*;

/// From here on this process, where it is aborted for want of memory or ended by a library, says so and ends with exit
/// code 3. For programs alone.
#[pyfunction]
#[pyo3(name = "answer_for_memory")]
pub(crate) fn answer() {
    // SAFETY: it may be asked at any time. The interpreter ends before a program of Python's exits.
    forebay_io::scarce::answer(|| unsafe { pyo3::ffi::Py_IsInitialized() } == 0);
}
