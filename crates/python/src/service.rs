//! `forebay serve` and `forebay snap` for Python: forebayd's command line, in this process.

use crate::raise;
use forebayd::{Program, Signals};
use pyo3::prelude::*;
use std::ffi::OsString;

/// Runs `serve` or `snap` with the words behind it to its end, and returns the exit code. `command`: what starts this
/// program again; `ascii`: the locale takes nothing else.
#[pyfunction]
#[pyo3(name = "service")]
pub fn run(
    py: Python<'_>,
    verb: &str,
    words: Vec<String>,
    command: Vec<OsString>,
    ascii: bool,
) -> PyResult<u8> {
    let mut signals = Signals::listen().map_err(|error| raise(py, error))?;
    // One that came before.
    py.check_signals()?;
    let program = Program { name: "forebay", command, ascii };
    let done = py.detach(|| forebayd::run(&program, verb, &words, &mut signals));
    // Python's handlers hear of each signal, too, and these have been dealt with: each call ends with one that raises.
    while py.check_signals().is_err() {}
    done.expect("serve or snap").map_err(|error| raise(py, error))
}

/// The flags, help and examples of `serve` and `snap`, as JSON.
#[pyfunction]
#[pyo3(name = "service_table")]
pub fn table() -> String {
    forebayd::table().to_string()
}

/// (verb, its flags) of each RPC.
#[pyfunction]
#[pyo3(name = "snap_rpcs")]
pub fn rpcs() -> Vec<(&'static str, Vec<String>)> {
    forebayd::rpcs()
}
