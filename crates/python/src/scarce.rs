//! A program of Python's that the system refuses memory.

#![allow(unsafe_code, reason = "the interpreter's state, outside of it")]

use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};

static ENDS: AtomicBool = AtomicBool::new(false);

/// From here on this process, where it is aborted for want of memory or ended by a library, says so and ends with exit
/// code 3. For programs alone. `ends`: the program is over, and its exit code its own.
#[pyfunction]
#[pyo3(name = "answer_for_memory", signature = (*, ends=false))]
pub(crate) fn answer(ends: bool) {
    ENDS.store(ends, Ordering::Relaxed);
    // SAFETY: it may be asked at any time. An interpreter that exits by itself is over by then.
    forebay_io::announce_scarcity(|| {
        ENDS.load(Ordering::Relaxed) || unsafe { pyo3::ffi::Py_IsInitialized() } == 0
    });
}
