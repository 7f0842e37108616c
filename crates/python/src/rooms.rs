//! Memory of batches, lent for as long as an array or a tensor refers to it, and batches of one file's rows as tensors of it. One
//! call does what is several in Python: a batch's copy drives their code and objects out of the caches, and no row is copied until
//! they have come back.

#![allow(unsafe_code, reason = "memory whose content its borrower writes first")]

use crate::feed::{Begun, Pending, Reader};
use crate::{array, dlpack, raise};
use forebay_model::job::Pages;
use forebay_model::Error;
use forebay_reader::KeptMemory;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use std::alloc::Layout;
use std::cell::OnceCell;
use std::ptr::NonNull;
use std::sync::Arc;

/// Of so many bytes on memory is kept, in huge pages: below, the C library keeps its own.
const KEPT_MIN: usize = 1 << 20;
/// What arrays are aligned to: a cache line, and as long as a vector register.
const ALIGNMENT: usize = 64;

/// An array of so many bytes, of any content. Short ones are NumPy's own, which take it the least.
#[pyfunction]
pub fn room(py: Python<'_>, bytes: usize) -> PyResult<Bound<'_, PyAny>> {
    static EMPTY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    static ASARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    if bytes < KEPT_MIN {
        return EMPTY.import(py, "numpy", "empty")?.call1((bytes, pyo3::intern!(py, "u1")));
    }
    ASARRAY.import(py, "numpy", "asarray")?.call1((Room::take(py, bytes)?,))
}

/// Batches of one open file's rows, each a tensor.
#[pyclass(module = "forebay._core", frozen)]
pub struct Batches {
    file: Py<PyAny>,
    reader: Py<Reader>,
    row_bytes: usize,
    start: u64,
    kind: (u8, u8),
    shape: Vec<i64>,
    from_dlpack: Py<PyAny>,
    /// Readers aren't those of a child.
    process: u32,
}

#[pymethods]
impl Batches {
    /// Rows of `shape`, of numbers that are `kind` (DLPack's code and bits); `layout`: the bytes of each, and where they begin in
    /// the `File`.
    #[new]
    fn new(
        file: &Bound<'_, PyAny>,
        layout: (usize, u64),
        kind: (u8, u8),
        shape: Vec<i64>,
        from_dlpack: Py<PyAny>,
    ) -> PyResult<Batches> {
        let (process, (row_bytes, start)) = (std::process::id(), layout);
        let reader = file.getattr("_reader")?.extract()?;
        let file = file.clone().unbind();
        Ok(Batches { file, reader, row_bytes, start, kind, shape, from_dlpack, process })
    }

    /// The rows of these numbers. None, and nothing done, where something isn't plain or right: whoever asks looks again, and
    /// says what.
    fn __call__<'py>(&self, rows: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = rows.py();
        if std::process::id() != self.process {
            return Ok(None);
        }
        let (listed, tensor) = (array::listed(rows), OnceCell::new());
        let numbers = match &listed {
            Some(numbers) => Some((numbers.as_ptr() as usize, numbers.len())),
            None => array::numbers(rows)
                .or_else(|| array::numbers(tensor.get_or_init(|| of_tensor(rows)).as_ref()?))
                .map(|numbers| (numbers.address, numbers.count)),
        };
        let Some((numbers, count)) = numbers else { return Ok(None) };
        let Some(bytes) = count.checked_mul(self.row_bytes).filter(|bytes| *bytes > 0) else {
            return Ok(None);
        };
        let room = Room::take(py, bytes)?;
        let (at, layout) = (room.address(), (self.row_bytes, self.start));
        let report = match self.reader.get().rows_to_host(py, (numbers, count), layout, at, true)? {
            None => return Ok(None),
            Some(Begun::Ended(report)) => report,
            Some(Begun::UnderWay(request)) => {
                let pending = Pending::new(request, py.None());
                pending.wait(py, None)?;
                pending.report(py)?
            }
        };
        self.file.setattr(py, pyo3::intern!(py, "_last"), report)?;
        let shape = [&[count as i64], self.shape.as_slice()].concat();
        let lent = dlpack::on_host(py, at as u64, shape, self.kind, Arc::new(room))?;
        self.from_dlpack.bind(py).call1((lent,)).map(Some)
    }
}

/// A tensor of PyTorch's on the host as an array. None for whatever else it is, and for what is not dense.
fn of_tensor<'py>(values: &Bound<'py, PyAny>) -> Option<Bound<'py, PyAny>> {
    let py = values.py();
    let is_on_host = values.getattr_opt(pyo3::intern!(py, "is_cpu")).ok()??.is_truthy().ok()?;
    is_on_host.then(|| values.call_method0(pyo3::intern!(py, "numpy")).ok()).flatten()
}

/// Memory of one batch, until the last array or tensor that refers to it has gone.
#[pyclass(module = "forebay._core", frozen)]
struct Room {
    bytes: usize,
    memory: Memory,
}

enum Memory {
    Kept(KeptMemory),
    Short(NonNull<u8>, Layout),
}

// SAFETY: the memory is its own; whoever has the tensor sees to who writes there.
unsafe impl Send for Room {}
// SAFETY: as above, and nothing of it changes before the end.
unsafe impl Sync for Room {}

#[pymethods]
impl Room {
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("shape", (self.bytes,))?;
        interface.set_item("typestr", "|u1")?;
        interface.set_item("data", (self.address(), false))?;
        interface.set_item("version", 3)?;
        Ok(interface)
    }
}

impl Room {
    fn take(py: Python<'_>, bytes: usize) -> PyResult<Room> {
        let none = |found: String| {
            let asked = format!("{bytes} bytes for rows");
            raise(py, Error::machine(asked, found, "fewer rows at a time, or more memory"))
        };
        if bytes < KEPT_MIN {
            let layout = Layout::from_size_align(bytes, ALIGNMENT).map_err(|e| none(e.to_string()))?;
            // SAFETY: of a byte at least.
            let at = NonNull::new(unsafe { std::alloc::alloc(layout) });
            let at = at.ok_or_else(|| none("the system has no more".into()))?;
            return Ok(Room { bytes, memory: Memory::Short(at, layout) });
        }
        let memory = match KeptMemory::again(bytes) {
            Some(memory) => memory,
            // New pages take a while, in which others have the GIL.
            None => {
                let made = py.detach(|| KeptMemory::take(bytes, Pages::Thp));
                made.map_err(|e| none(e.found.to_string()))?
            }
        };
        Ok(Room { bytes, memory: Memory::Kept(memory) })
    }

    fn address(&self) -> usize {
        match &self.memory {
            Memory::Kept(memory) => memory.whole().0.as_ptr() as usize,
            Memory::Short(at, _) => at.as_ptr() as usize,
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Memory::Short(at, layout) = &self.memory {
            // SAFETY: allocated so, and nobody refers to it.
            unsafe { std::alloc::dealloc(at.as_ptr(), *layout) };
        }
    }
}
