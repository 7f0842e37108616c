//! Kernels: loading them, and launching them.

use super::calls::{RawFunction, RawModule};
use super::{Cuda, CudaError, Device, Stream};
use std::ffi::{c_uint, c_void, CString};
use std::sync::Arc;

/// Code on a device.
pub(crate) struct Module {
    device: Arc<Device>,
    raw: RawModule,
}

// SAFETY: modules and functions may be used from any thread.
unsafe impl Send for Module {}
// SAFETY: as above; nothing here changes a module.
unsafe impl Sync for Module {}

impl Module {
    /// Loads a cubin, or PTX that ends with a zero byte.
    pub(crate) fn load(device: &Arc<Device>, image: &[u8]) -> Cuda<Arc<Module>> {
        let mut raw = std::ptr::null_mut();
        device.enter()?;
        // SAFETY: fills a local; the driver copies the image.
        device.driver.check(unsafe { (device.driver.calls.module_load)(&mut raw, image.as_ptr().cast()) })?;
        Ok(Arc::new(Module { device: device.clone(), raw }))
    }

    /// A kernel by its C name.
    pub(crate) fn function(self: &Arc<Self>, name: &str) -> Cuda<Function> {
        let name = CString::new(name).map_err(|_| CudaError::new("a kernel's name holds no zero byte"))?;
        let mut raw = std::ptr::null_mut();
        self.device.enter()?;
        // SAFETY: fills a local; the name ends with a zero.
        self.device.driver.check(unsafe {
            (self.device.driver.calls.module_function)(&mut raw, self.raw, name.as_ptr())
        })?;
        Ok(Function { _module: self.clone(), raw })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let _ = self.device.enter();
        // SAFETY: every function holds its module, so none is left.
        unsafe { (self.device.driver.calls.module_unload)(self.raw) };
    }
}

/// A kernel.
#[derive(Clone)]
pub struct Function {
    _module: Arc<Module>,
    raw: RawFunction,
}

// SAFETY: as for modules.
unsafe impl Send for Function {}
// SAFETY: as for modules.
unsafe impl Sync for Function {}

impl Stream {
    /// Launches `blocks` of `threads` each. `arguments` are the kernel's, each 8 bytes wide.
    ///
    /// # Safety
    /// The arguments are what the kernel takes, and what they point to stays until it has ended.
    pub unsafe fn launch(&self, kernel: &Function, blocks: u32, threads: u32, arguments: &[u64]) -> Cuda<()> {
        self.device().enter()?;
        let mut values: Vec<u64> = arguments.to_vec();
        let mut places: Vec<*mut c_void> = values.iter_mut().map(|v| std::ptr::from_mut(v).cast()).collect();
        let (blocks, threads) = (blocks as c_uint, threads as c_uint);
        // SAFETY: the driver copies the arguments before it returns; the rest is the caller's promise.
        let result = unsafe {
            (self.device().driver.calls.launch)(
                kernel.raw,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                0,
                self.raw(),
                places.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        self.device().driver.check(result)
    }
}
