//! One column of a batch, as NumPy, PyTorch, CuPy and JAX take it without a copy: DLPack with and without a version,
//! `__array_interface__` and `__cuda_array_interface__`.

#![allow(unsafe_code, reason = "DLPack's structures, which others free")]

use crate::raise;
use forebay_model::Error;
use forebay_reader::{Address, Lease, Memory};
use pyo3::exceptions::PyAttributeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::ffi::{c_char, c_void, CStr};
use std::sync::Arc;

const NAME: &CStr = c"dltensor";
const NAME_VERSIONED: &CStr = c"dltensor_versioned";
/// DLDeviceType.
const CPU: i32 = 1;
const CUDA: i32 = 2;

/// The type of numbers: DLPack's code and bits, and what `__array_interface__` calls it.
#[derive(Clone, Debug)]
pub struct Kind {
    pub code: u8,
    pub bits: u8,
    pub typestr: String,
}

/// A column's place in a batch.
#[derive(Clone, Debug)]
pub struct Layout {
    pub name: String,
    /// Index of the bytes of a row that it is read with, and its first byte there.
    pub column: usize,
    pub offset: usize,
    /// Bytes from one row to the next in the batch.
    pub step: usize,
    pub kind: Kind,
    /// Of one row.
    pub shape: Vec<i64>,
}

/// Numbers of one name in a batch: (rows, *shape). They stay as they are for as long as anything refers to them.
#[pyclass(module = "forebay._core", frozen)]
pub struct Column {
    lease: Arc<Lease>,
    address: u64,
    shape: Vec<i64>,
    /// In elements.
    strides: Vec<i64>,
    kind: Kind,
}

impl Column {
    pub fn new(lease: Arc<Lease>, begin: usize, rows: usize, layout: &Layout) -> Column {
        let (Address::Host(at) | Address::Device { at, .. }) = lease.place();
        let mut shape = vec![rows as i64];
        shape.extend(&layout.shape);
        let item = i64::from(layout.kind.bits) / 8;
        let mut strides = vec![0; shape.len()];
        let mut step = 1;
        for i in (1..shape.len()).rev() {
            strides[i] = step;
            step *= shape[i].max(1);
        }
        strides[0] = layout.step as i64 / item;
        let address = at + (begin + layout.offset) as u64;
        Column { lease, address, shape, strides, kind: layout.kind.clone() }
    }

    fn device(&self) -> (i32, i32) {
        self.lease.memory().gpu().map_or((CPU, 0), |gpu| (CUDA, gpu as i32))
    }

    fn interface<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let item = i64::from(self.kind.bits) / 8;
        let strides: Vec<i64> = self.strides.iter().map(|step| step * item).collect();
        let interface = PyDict::new(py);
        interface.set_item("shape", PyTuple::new(py, &self.shape)?)?;
        interface.set_item("strides", PyTuple::new(py, strides)?)?;
        interface.set_item("typestr", &self.kind.typestr)?;
        interface.set_item("data", (self.address, false))?;
        interface.set_item("version", 3)?;
        Ok(interface)
    }
}

#[pymethods]
impl Column {
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    /// Address of the first number.
    #[getter]
    fn address(&self) -> u64 {
        self.address
    }

    fn __len__(&self) -> usize {
        self.shape[0] as usize
    }

    fn __repr__(&self) -> String {
        format!("<column {} of {:?} in {} memory>", self.kind.typestr, self.shape, self.lease.memory().name())
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        self.device()
    }

    /// The consumer's stream is noted: what it is given until the last reference goes ends before the memory is written to.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<i64>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if copy == Some(true) || dl_device.is_some_and(|device| device != self.device()) {
            let found = "a batch is handed out where it lies, without a copy";
            return Err(raise(
                py,
                Error::request("a copy of a batch", found, "the consumer's own: .clone(), .copy(), .to()"),
            ));
        }
        if self.lease.memory().gpu().is_some() {
            // None, 0 and 1 are the default stream, 2 that of the thread; −1 says nothing.
            self.lease.note_stream(stream.filter(|s| *s > 1).map_or(0, |s| s as u64));
        }
        let extents = Extents::new(self.shape.clone(), self.strides.clone(), self.lease.clone());
        let versioned = max_version.is_some_and(|(major, _)| major >= 1);
        capsule(py, self.address, self.device(), (self.kind.code, self.kind.bits), extents, versioned)
    }

    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        match self.lease.memory() {
            Memory::Gpu(_) => Err(PyAttributeError::new_err("__array_interface__: the batch is on a GPU")),
            Memory::Host | Memory::Pinned(_) => self.interface(py),
        }
    }

    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        match self.lease.memory() {
            Memory::Gpu(_) => {
                self.lease.note_stream(0);
                self.interface(py)
            }
            Memory::Host | Memory::Pinned(_) => {
                Err(PyAttributeError::new_err("__cuda_array_interface__: the batch is in host memory"))
            }
        }
    }
}

/// What a tensor points to, and what it keeps.
struct Extents {
    shape: Vec<i64>,
    strides: Vec<i64>,
    _held: Arc<dyn Send + Sync>,
}

impl Extents {
    fn new(shape: Vec<i64>, strides: Vec<i64>, held: Arc<impl Send + Sync + 'static>) -> Box<Extents> {
        Box::new(Extents { shape, strides, _held: held })
    }
}

/// A tensor in host memory whose numbers lie side by side, as `from_dlpack` takes it. What is `held` goes with it.
pub fn on_host<'py>(
    py: Python<'py>,
    address: u64,
    shape: Vec<i64>,
    kind: (u8, u8),
    held: Arc<impl Send + Sync + 'static>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut strides = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i] * shape[i].max(1);
    }
    capsule(py, address, (CPU, 0), kind, Extents::new(shape, strides, held), false)
}

/// A capsule of DLPack's, whose tensor is freed by who takes it, or with it. `kind`: code and bits.
fn capsule<'py>(
    py: Python<'py>,
    address: u64,
    (device_type, device_id): (i32, i32),
    (code, bits): (u8, u8),
    extents: Box<Extents>,
    versioned: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let tensor = Tensor {
        data: address as *mut c_void,
        device_type,
        device_id,
        ndim: extents.shape.len() as i32,
        code,
        bits,
        lanes: 1,
        shape: extents.shape.as_ptr().cast_mut(),
        strides: extents.strides.as_ptr().cast_mut(),
        byte_offset: 0,
    };
    let context = Box::into_raw(extents).cast::<c_void>();
    let (pointer, name): (*mut c_void, &CStr) = if versioned {
        let managed =
            Versioned { major: 1, minor: 0, context, deleter: Some(free_versioned), flags: 0, tensor };
        (Box::into_raw(Box::new(managed)).cast(), NAME_VERSIONED)
    } else {
        (Box::into_raw(Box::new(Managed { tensor, context, deleter: Some(free) })).cast(), NAME)
    };
    // SAFETY: a live pointer, a name that lives for ever, and a destructor that frees what nobody took.
    unsafe {
        Bound::from_owned_ptr_or_err(py, ffi::PyCapsule_New(pointer, name.as_ptr(), Some(drop_capsule)))
    }
}

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

#[repr(C)]
struct Versioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: Tensor,
}

/// # Safety
/// Called once, by whoever took the tensor.
unsafe extern "C" fn free(managed: *mut Managed) {
    // SAFETY: made by `capsule`, from two boxes.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: as above.
    drop(unsafe { Box::from_raw(managed.context.cast::<Extents>()) });
}

/// # Safety
/// As of `free`.
unsafe extern "C" fn free_versioned(managed: *mut Versioned) {
    // SAFETY: as in `free`.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: as above.
    drop(unsafe { Box::from_raw(managed.context.cast::<Extents>()) });
}

/// # Safety
/// Called by Python, with the GIL, for one that `capsule` made. One whose tensor was taken has another name.
unsafe extern "C" fn drop_capsule(capsule: *mut ffi::PyObject) {
    let has = |name: &CStr| -> *mut c_void {
        let name: *const c_char = name.as_ptr();
        // SAFETY: a live capsule; asking for a name that it hasn't is checked first.
        unsafe {
            match ffi::PyCapsule_IsValid(capsule, name) {
                0 => std::ptr::null_mut(),
                _ => ffi::PyCapsule_GetPointer(capsule, name),
            }
        }
    };
    let (plain, versioned) = (has(NAME), has(NAME_VERSIONED));
    if !plain.is_null() {
        // SAFETY: nobody took it.
        unsafe { free(plain.cast()) };
    }
    if !versioned.is_null() {
        // SAFETY: nobody took it.
        unsafe { free_versioned(versioned.cast()) };
    }
}
