//! The CUDA driver API, wrapped: a device by its primary context (so memory is
//! shared with PyTorch, CuPy and JAX in the same process), its memory, streams,
//! events and kernels, and one decoder for its errors.

mod calls;
mod device;
mod memory;
mod module;
mod stream;

pub(crate) use device::attribute_of;
pub use device::{cuda_devices, Device};
pub use memory::{DeviceMemory, Pinned, Registered};
pub(crate) use module::{Function, Module};
pub use stream::{Event, HostCopies, Stream};

use calls::{Calls, CopyBatch, CuResult, HandleOfRange, OnValue};
use libloading::Library;
use std::ffi::{c_char, c_int, CStr};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::OnceLock;

pub(crate) const OUT_OF_MEMORY: i32 = 2;
pub(crate) const NOT_READY: i32 = 600;

/// Why a call of the driver failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaError {
    /// CUresult, or -1 where the driver wasn't reached.
    pub code: i32,
    text: String,
}

impl CudaError {
    pub fn new(text: impl Into<String>) -> CudaError {
        CudaError { code: -1, text: text.into() }
    }

    /// Returns the driver's error for exhausted memory.
    pub fn out_of_memory() -> CudaError {
        CudaError {
            code: OUT_OF_MEMORY,
            text: format!("CUDA_ERROR_OUT_OF_MEMORY ({OUT_OF_MEMORY}): out of memory"),
        }
    }

    pub fn is_out_of_memory(&self) -> bool {
        self.code == OUT_OF_MEMORY
    }

    /// Returns whether the context has failed, or is gone: every later call in it says the same.
    pub fn is_of_a_lost_context(&self) -> bool {
        // An invalid context; errors of memory and links that can't be corrected; a launch that failed or went out of bounds, and a
        // context that was destroyed (cuda.h).
        matches!(self.code, 201 | 214 | 220 | 700 | 702 | 709 | 710 | 714..=719)
    }
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for CudaError {}

impl From<CudaError> for String {
    fn from(e: CudaError) -> String {
        e.text
    }
}

pub type Cuda<T> = Result<T, CudaError>;

pub(crate) struct Driver {
    calls: Calls,
    /// None: before CUDA 11.7.
    handle_of_range: Option<HandleOfRange>,
    /// Waiting for a value, and writing one. None: before CUDA 11.7.
    on_values: Option<(OnValue, OnValue)>,
    /// None: before CUDA 12.8.
    copy_batch: Option<CopyBatch>,
    devices: u32,
    /// As cuDriverGetVersion says: 13000 is 13.0.
    version: i32,
    _library: Library,
}

static DRIVER: OnceLock<Result<Driver, String>> = OnceLock::new();
/// The driver's state doesn't survive a fork: calls in the child hang or fail in odd ways.
static FORKED: AtomicBool = AtomicBool::new(false);

extern "C" fn note_fork() {
    FORKED.store(true, Ordering::Relaxed);
}

/// The driver, or why there is none.
pub(crate) fn driver() -> Result<&'static Driver, String> {
    DRIVER.get_or_init(open).as_ref().map_err(Clone::clone)
}

fn open() -> Result<Driver, String> {
    let (library, _) =
        super::library::load(&super::library::CUDA).map_err(|e| format!("no CUDA driver: {e}"))?;
    // SAFETY: the library is the CUDA driver.
    let calls = unsafe { Calls::load(&library) }.map_err(|e| format!("the CUDA driver is too old: {e}"))?;
    // SAFETY: as above; the signature is cuda.h's.
    let handle_of_range =
        unsafe { library.get(b"cuMemGetHandleForAddressRange\0") }.ok().map(|symbol| *symbol);
    // SAFETY: as above.
    let on_value = |name: &[u8]| unsafe { library.get::<OnValue>(name) }.ok().map(|symbol| *symbol);
    let on_values = on_value(b"cuStreamWaitValue32_v2\0").zip(on_value(b"cuStreamWriteValue32_v2\0"));
    // SAFETY: as above.
    let copy_batch = unsafe { CopyBatch::load(&library) };
    let driver =
        Driver { calls, handle_of_range, on_values, copy_batch, devices: 0, version: 0, _library: library };
    let (mut count, mut version) = (0, 0);
    // SAFETY: plain calls that fill locals; the handler only sets a flag.
    unsafe {
        driver.check((driver.calls.init)(0))?;
        driver.check((driver.calls.device_count)(&mut count))?;
        driver.check((driver.calls.driver_version)(&mut version))?;
        libc::pthread_atfork(None, None, Some(note_fork));
    }
    if count <= 0 {
        return Err("the CUDA driver sees no GPU".into());
    }
    Ok(Driver { devices: count as u32, version, ..driver })
}

impl Driver {
    /// The one decoder of CUresult.
    fn check(&self, result: CuResult) -> Cuda<()> {
        if result == 0 {
            return Ok(());
        }
        let text = |call: unsafe extern "C" fn(CuResult, *mut *const c_char) -> c_int| {
            let mut at: *const c_char = std::ptr::null();
            // SAFETY: the driver sets `at` to a static string, or leaves it null.
            unsafe {
                call(result, &mut at);
                (!at.is_null()).then(|| CStr::from_ptr(at).to_string_lossy().into_owned())
            }
        };
        let name = text(self.calls.error_name).unwrap_or_else(|| "CUDA error".into());
        let meaning = text(self.calls.error_string).unwrap_or_default();
        Err(CudaError { code: result, text: format!("{name} ({result}): {meaning}") })
    }
}
