//! Memory of batches, lent for as long as an array or a tensor refers to it, and batches of one file's rows as tensors of it. One
//! call does what is several in Python: a batch's copy drives their code and objects out of the caches, and no row is copied until
//! they have come back.

#![allow(unsafe_code, reason = "memory whose content its borrower writes first")]

use crate::feed::{Begun, Pending, Reader};
use crate::{array, dlpack, raise};
use forebay_io::{Arena, Mem};
use forebay_model::job::Pages;
use forebay_model::Error;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use std::alloc::Layout;
use std::cell::OnceCell;
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, TryLockError};

/// Of so many bytes on memory is kept, in huge pages: below, the C library keeps its own.
const KEPT_MIN: usize = 1 << 20;
/// A consumer has one batch while the next is made.
const KEPT_MAX: usize = 2;
/// A longer one is as much as a whole data set: kept for the next, it would be missed elsewhere.
const KEPT_BYTES_MAX: usize = 256 << 20;
const HUGE_PAGE: usize = 2 << 20;
/// What arrays are aligned to: a cache line, and as long as a vector register.
const ALIGNMENT: usize = 64;

/// Memory of batches that nobody refers to any more, used again: new memory takes a fault a page, longer than the copy.
#[pyclass(module = "forebay._core", frozen)]
pub struct Rooms(Arc<Kept>);

type Kept = Mutex<VecDeque<(Arena, usize)>>;

#[pymethods]
impl Rooms {
    #[new]
    fn new() -> Rooms {
        Rooms(Arc::default())
    }

    /// An array of so many bytes, of any content. Short ones are NumPy's own, which take it the least.
    fn take<'py>(&self, py: Python<'py>, bytes: usize) -> PyResult<Bound<'py, PyAny>> {
        static EMPTY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        static ASARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        if bytes < KEPT_MIN {
            return EMPTY.import(py, "numpy", "empty")?.call1((bytes, pyo3::intern!(py, "u1")));
        }
        ASARRAY.import(py, "numpy", "asarray")?.call1((Room::take(py, &self.0, bytes)?,))
    }

    /// Frees what is kept for the next batches.
    fn clear(&self) {
        if let Some(mut kept) = held(&self.0) {
            kept.clear();
        }
    }
}

/// Batches of one open file's rows, each a tensor.
#[pyclass(module = "forebay._core", frozen)]
pub struct Batches {
    kept: Arc<Kept>,
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
        rooms: &Rooms,
        file: &Bound<'_, PyAny>,
        layout: (usize, u64),
        kind: (u8, u8),
        shape: Vec<i64>,
        from_dlpack: Py<PyAny>,
    ) -> PyResult<Batches> {
        let (kept, process, (row_bytes, start)) = (rooms.0.clone(), std::process::id(), layout);
        let reader = file.getattr("_reader")?.extract()?;
        let file = file.clone().unbind();
        Ok(Batches { kept, file, reader, row_bytes, start, kind, shape, from_dlpack, process })
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
        let room = Room::take(py, &self.kept, bytes)?;
        let (at, layout) = (room.at.as_ptr() as usize, (self.row_bytes, self.start));
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

/// None where another thread has it, or had it when this process was forked.
fn held(kept: &Kept) -> Option<std::sync::MutexGuard<'_, VecDeque<(Arena, usize)>>> {
    match kept.try_lock() {
        Ok(kept) => Some(kept),
        Err(TryLockError::Poisoned(kept)) => Some(kept.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Memory of one batch; goes back with the last array or tensor that refers to it.
#[pyclass(module = "forebay._core", frozen)]
struct Room {
    at: NonNull<u8>,
    bytes: usize,
    memory: Memory,
}

enum Memory {
    /// Of so many bytes; None once it was given back.
    Kept(Option<(Arena, usize)>, Arc<Kept>),
    Short(Layout),
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
        interface.set_item("data", (self.at.as_ptr() as usize, false))?;
        interface.set_item("version", 3)?;
        Ok(interface)
    }
}

impl Room {
    fn take(py: Python<'_>, kept: &Arc<Kept>, bytes: usize) -> PyResult<Room> {
        let none = |found: String| {
            let asked = format!("{bytes} bytes for rows");
            raise(py, Error::machine(asked, found, "fewer rows at a time, or more memory"))
        };
        if bytes < KEPT_MIN {
            let layout = Layout::from_size_align(bytes, ALIGNMENT).map_err(|e| none(e.to_string()))?;
            // SAFETY: of a byte at least.
            let at = NonNull::new(unsafe { std::alloc::alloc(layout) });
            let at = at.ok_or_else(|| none("the system has no more".into()))?;
            return Ok(Room { at, bytes, memory: Memory::Short(layout) });
        }
        let fits = |size: usize| (bytes..=bytes.max(HUGE_PAGE).saturating_mul(2)).contains(&size);
        let found = held(kept).and_then(|mut kept| {
            // What doesn't fit goes: batches have another size by now.
            std::iter::from_fn(|| kept.pop_front()).find(|(_, size)| fits(*size))
        });
        let (arena, size) = match found {
            Some(found) => found,
            None => {
                let size =
                    bytes.checked_next_multiple_of(HUGE_PAGE).ok_or_else(|| none("too many".into()))?;
                // New pages take a while, in which others have the GIL.
                let made = py.detach(|| Arena::new(1, size, Pages::Thp));
                (made.map_err(|e| none(e.found.to_string()))?, size)
            }
        };
        let Mem::Host { at, .. } = arena.slot(0) else { unreachable!("an arena is host memory") };
        Ok(Room { at, bytes, memory: Memory::Kept(Some((arena, size)), kept.clone()) })
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        match &mut self.memory {
            // SAFETY: allocated so, and nobody refers to it.
            Memory::Short(layout) => unsafe { std::alloc::dealloc(self.at.as_ptr(), *layout) },
            Memory::Kept(memory, kept) => {
                let short = memory.take().filter(|(_, size)| *size <= KEPT_BYTES_MAX);
                let (Some(memory), Some(mut kept)) = (short, held(kept)) else { return };
                kept.push_back(memory);
                if kept.len() > KEPT_MAX {
                    kept.pop_front();
                }
            }
        }
    }
}
