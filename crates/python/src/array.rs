//! NumPy's arrays by their array interface in C, `__array_struct__`: an address and a length in a tenth of a microsecond, where
//! Python's ways to the same take several.

#![allow(unsafe_code, reason = "the array interface's structure, behind a capsule")]

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyList, PyType};
use std::ffi::{c_char, c_int, c_void};
use std::slice;

/// Flags of the interface: elements one behind the other, aligned, in the machine's byte order, and may be written to.
const CONTIGUOUS: c_int = 0x1;
const ALIGNED: c_int = 0x100;
const NATIVE: c_int = 0x200;
const WRITEABLE: c_int = 0x400;
/// Kinds that are integers, and those that may hold references to Python's objects.
const INTEGERS: [u8; 2] = [b'i', b'u'];
const OBJECTS: [u8; 2] = [b'O', b'V'];
/// The interface's version, its first field.
const TWO: c_int = 2;

/// `PyArrayInterface`, as NumPy documents it.
#[repr(C)]
struct Interface {
    two: c_int,
    dimensions: c_int,
    kind: c_char,
    item_bytes: c_int,
    flags: c_int,
    shape: *const isize,
    strides: *const isize,
    data: *mut c_void,
    _descr: *mut ffi::PyObject,
}

/// Memory of an array, which its caller keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elements {
    pub address: usize,
    pub count: usize,
    pub item_bytes: usize,
}

/// Whole numbers of 64 bits in one dimension, side by side. None for whatever else it is.
pub fn numbers(values: &Bound<'_, PyAny>) -> Option<Elements> {
    let ours = |found: &Interface| {
        found.dimensions == 1 && found.item_bytes == 8 && INTEGERS.contains(&(found.kind as u8))
    };
    elements(values, CONTIGUOUS | ALIGNED | NATIVE, ours)
}

/// Numbers of a list, none negative. None for whatever else it is, and where one is more than 64 bits hold, or an integer of
/// another type.
pub fn listed(values: &Bound<'_, PyAny>) -> Option<Vec<u64>> {
    let list = values.downcast_exact::<PyList>().ok()?;
    let py = values.py();
    let mut found = Vec::with_capacity(list.len());
    for at in 0..list.len() {
        // SAFETY: the interpreter is held, and nothing that is called here runs code of others that could make it shorter.
        let number = unsafe {
            let item = ffi::PyList_GetItem(list.as_ptr(), at as ffi::Py_ssize_t);
            if item.is_null() || ffi::PyLong_CheckExact(item) == 0 {
                drop(PyErr::take(py));
                return None;
            }
            ffi::PyLong_AsLongLong(item)
        };
        match u64::try_from(number) {
            Ok(number) => found.push(number),
            Err(_) => {
                // Too long, or −1 in person.
                drop(PyErr::take(py));
                return None;
            }
        }
    }
    Some(found)
}

/// Memory to be filled. None for whatever can't be, or may not.
pub fn room(buffer: &Bound<'_, PyAny>) -> Option<Elements> {
    elements(buffer, CONTIGUOUS | WRITEABLE, |found| !OBJECTS.contains(&(found.kind as u8)))
}

/// Elements of an array of NumPy's own type: what a subclass makes of its memory is its own affair.
fn elements(value: &Bound<'_, PyAny>, flags: c_int, is: impl Fn(&Interface) -> bool) -> Option<Elements> {
    static NDARRAY: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let py = value.py();
    let array = NDARRAY.import(py, "numpy", "ndarray").ok()?;
    if !value.get_type().is(array) {
        return None;
    }
    let capsule = value.getattr(pyo3::intern!(py, "__array_struct__")).ok()?;
    // SAFETY: the interpreter is held; what isn't a capsule, or has a name, sets an exception, which is cleared.
    let found = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), std::ptr::null()) };
    if found.is_null() {
        drop(PyErr::take(py));
        return None;
    }
    // SAFETY: the pointer of such a capsule is an interface, which lives as long as the capsule does.
    let found = unsafe { &*found.cast::<Interface>() };
    if found.two != TWO || found.flags & flags != flags || !is(found) {
        return None;
    }
    let dimensions = usize::try_from(found.dimensions).ok()?;
    let shape: &[isize] = match dimensions {
        0 => &[],
        // SAFETY: its shape has as many numbers.
        _ => unsafe { slice::from_raw_parts(found.shape, dimensions) },
    };
    let count = shape.iter().try_fold(1usize, |all, n| all.checked_mul(usize::try_from(*n).ok()?))?;
    Some(Elements {
        address: found.data as usize,
        count,
        item_bytes: usize::try_from(found.item_bytes).ok()?,
    })
}

/// Numbers of a list as 64 bits each; None as of `listed`.
#[pyfunction]
pub fn bytes_of_list<'py>(values: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let Some(found) = listed(values) else { return Ok(None) };
    let fill = |bytes: &mut [u8]| {
        for (to, number) in bytes.chunks_exact_mut(8).zip(&found) {
            to.copy_from_slice(&number.to_ne_bytes());
        }
        Ok(())
    };
    PyBytes::new_with(values.py(), found.len() * 8, fill).map(Some)
}
