//! Batches of rows, each in memory that is lent for as long as a tensor refers to it. One call does what is several in Python: a
//! batch's copy drives their code and objects out of the caches, and no row is copied until they have come back.

#![allow(unsafe_code, reason = "memory whose content its borrower writes first")]

use crate::feed::{Begun, Counts, Pending, Reader};
use crate::{array, dlpack, raise};
use forebay_io::{Arena, Mem};
use forebay_model::job::Pages;
use forebay_model::Error;
use pyo3::prelude::*;
use std::alloc::Layout;
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, TryLockError};

/// Of so many bytes on memory is kept, in huge pages: below, the C library keeps its own.
const KEPT_MIN: usize = 1 << 20;
/// A consumer has one batch while the next is made.
const KEPT_MAX: usize = 2;
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

    /// Rows of a file by their numbers as a tensor of `shape`, for `from_dlpack`, of numbers that are `kind` (DLPack's code and
    /// bits), and the report. None, and nothing done, where something isn't plain or right: whoever asks looks again, and
    /// says what.
    #[allow(clippy::too_many_arguments)]
    fn gather<'py>(
        &self,
        py: Python<'py>,
        reader: &Bound<'py, Reader>,
        rows: &Bound<'py, PyAny>,
        row_bytes: usize,
        start: u64,
        kind: (u8, u8),
        shape: Vec<i64>,
    ) -> PyResult<Option<(Bound<'py, PyAny>, Counts)>> {
        let listed = array::listed(rows);
        let numbers = match &listed {
            Some(numbers) => Some((numbers.as_ptr() as usize, numbers.len())),
            None => array::numbers(rows).map(|numbers| (numbers.address, numbers.count)),
        };
        let Some((numbers, count)) = numbers else { return Ok(None) };
        let Some(bytes) = count.checked_mul(row_bytes).filter(|bytes| *bytes > 0) else { return Ok(None) };
        let room = Room::take(&self.0, bytes).map_err(|error| raise(py, error))?;
        let at = room.at.as_ptr() as usize;
        let report = match reader.get().rows_to_host(py, (numbers, count), (row_bytes, start), at, true)? {
            None => return Ok(None),
            Some(Begun::Ended(report)) => report,
            Some(Begun::UnderWay(request)) => {
                let pending = Pending::new(request, py.None());
                pending.wait(py, None)?;
                pending.report(py)?
            }
        };
        let shape = [vec![count as i64], shape].concat();
        let tensor = dlpack::on_host(py, at as u64, shape, kind, Arc::new(room))?;
        Ok(Some((tensor, report)))
    }

    /// Frees what is kept for the next batches.
    fn clear(&self) {
        if let Some(mut kept) = held(&self.0) {
            kept.clear();
        }
    }
}

/// None where another thread has it, or had it when this process was forked.
fn held(kept: &Kept) -> Option<std::sync::MutexGuard<'_, VecDeque<(Arena, usize)>>> {
    match kept.try_lock() {
        Ok(kept) => Some(kept),
        Err(TryLockError::Poisoned(kept)) => Some(kept.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Memory of one batch; goes back with the last tensor that refers to it.
struct Room {
    at: NonNull<u8>,
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

impl Room {
    fn take(kept: &Arc<Kept>, bytes: usize) -> Result<Room, Error> {
        let none = |found: String| {
            Error::machine(format!("{bytes} bytes for rows"), found, "fewer rows at a time, or more memory")
        };
        if bytes < KEPT_MIN {
            let layout = Layout::from_size_align(bytes, ALIGNMENT).map_err(|e| none(e.to_string()))?;
            // SAFETY: of a byte at least.
            let at = NonNull::new(unsafe { std::alloc::alloc(layout) });
            let at = at.ok_or_else(|| none("the system has no more".into()))?;
            return Ok(Room { at, memory: Memory::Short(layout) });
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
                (Arena::new(1, size, Pages::Thp).map_err(|e| none(e.found.to_string()))?, size)
            }
        };
        let Mem::Host { at, .. } = arena.slot(0) else { unreachable!("an arena is host memory") };
        Ok(Room { at, memory: Memory::Kept(Some((arena, size)), kept.clone()) })
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        match &mut self.memory {
            // SAFETY: allocated so, and nobody refers to it.
            Memory::Short(layout) => unsafe { std::alloc::dealloc(self.at.as_ptr(), *layout) },
            Memory::Kept(memory, kept) => {
                let (Some(memory), Some(mut kept)) = (memory.take(), held(kept)) else { return };
                kept.push_back(memory);
                if kept.len() > KEPT_MAX {
                    kept.pop_front();
                }
            }
        }
    }
}
