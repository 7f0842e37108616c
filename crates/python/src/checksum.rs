//! `_core.checksum` and `_core.crc32c`: checksums of files and of memory.

use crate::{json, raise};
use forebay_bench::{checksum_bytes, checksum_device_memory, run_checksum, ChecksumSpec};
use pyo3::prelude::*;

/// Runs a ChecksumSpec; returns its ChecksumRecord. A signal's handler that raises ends it with what it raised.
#[pyfunction]
#[pyo3(name = "checksum")]
pub fn run(py: Python<'_>, spec: &str) -> PyResult<String> {
    let spec = ChecksumSpec::from_json(spec).map_err(|error| raise(py, error))?;
    let mut raised: Option<PyErr> = None;
    let mut go_on = || match Python::attach(|py| py.check_signals()) {
        Ok(()) => true,
        Err(error) => {
            raised = Some(error);
            false
        }
    };
    let record = py.detach(|| run_checksum(&spec, &mut go_on));
    match raised {
        Some(error) => Err(error),
        None => json(py, &record.map_err(|error| raise(py, error))?),
    }
}

/// CRC32C of `before`'s bytes and `data`, where `before` is the checksum of the former.
#[pyfunction]
#[pyo3(signature = (data, before=0))]
pub fn crc32c(py: Python<'_>, data: &[u8], before: u32) -> u32 {
    py.detach(|| checksum_bytes(before, data))
}

/// CRC32C of `bytes` of memory of GPU `gpu` from `address` on, after what is queued on `stream`.
#[pyfunction]
pub fn crc32c_on_gpu(py: Python<'_>, gpu: u32, address: u64, bytes: u64, stream: u64) -> PyResult<u32> {
    py.detach(|| checksum_device_memory(gpu, address, bytes, stream)).map_err(|error| raise(py, error))
}
