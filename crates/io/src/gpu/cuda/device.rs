//! A GPU, by its primary context.

use super::calls::Context;
use super::{driver, Cuda, CudaError, Driver, FORKED};
use forebay_model::Error;
use std::ffi::{c_int, CStr};
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// GPUs that the driver sees; 0 with the reason where it can't be loaded.
pub fn cuda_devices() -> (u32, Option<String>) {
    match driver() {
        Ok(d) => (d.devices, None),
        Err(why) => (0, Some(why)),
    }
}

/// A CUdevice_attribute of a GPU that nobody opened: no context is made for it.
pub(crate) fn attribute_of(index: u32, number: i32) -> Result<i32, String> {
    let driver = driver()?;
    let (mut handle, mut value) = (0, 0);
    // SAFETY: plain calls that fill locals.
    let reported = unsafe {
        driver
            .check((driver.calls.device_get)(&mut handle, index as c_int))
            .and_then(|()| driver.check((driver.calls.device_attribute)(&mut value, number, handle)))
    };
    reported.map(|()| value).map_err(String::from)
}

pub struct Device {
    index: u32,
    handle: c_int,
    context: Context,
    pub(super) driver: &'static Driver,
}

// SAFETY: a CUDA context may be made current on any thread, and every call here does so first.
unsafe impl Send for Device {}
// SAFETY: the driver serialises what must be.
unsafe impl Sync for Device {}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "gpu:{}", self.index)
    }
}

impl Device {
    /// Retains the primary context for the life of the process.
    pub fn open(index: u32) -> Result<Arc<Device>, Error> {
        let asked = format!("‹gpus› {index}");
        let driver = driver()
            .map_err(|why| Error::machine(&asked, why, "forebay doctor; ‹path› host needs no GPU"))?;
        if index >= driver.devices {
            return Err(Error::request(
                asked,
                format!("there are {} GPUs, counted from 0", driver.devices),
                "‹gpus› 0",
            ));
        }
        let (mut handle, mut context) = (0, std::ptr::null_mut());
        let calls = &driver.calls;
        // SAFETY: plain calls that fill locals.
        let made = unsafe {
            driver
                .check((calls.device_get)(&mut handle, index as c_int))
                .and_then(|()| driver.check((calls.primary_retain)(&mut context, handle)))
        };
        made.map_err(|why| Error::machine(asked, why.to_string(), "nvidia-smi"))?;
        Ok(Arc::new(Device { index, handle, context, driver }))
    }

    pub fn index(&self) -> u32 {
        self.index
    }

    /// As cuDriverGetVersion says: 13000 is 13.0.
    pub fn driver_version(&self) -> i32 {
        self.driver.version
    }

    pub fn name(&self) -> Cuda<String> {
        let mut text = [0; 256];
        // SAFETY: the driver writes at most the length it is given, and ends it with a zero.
        self.driver.check(unsafe {
            (self.driver.calls.device_name)(text.as_mut_ptr(), text.len() as c_int, self.handle)
        })?;
        Ok(text_of(&text))
    }

    /// `0000:1b:00.0`
    pub fn bus_id(&self) -> Cuda<String> {
        let mut text = [0; 32];
        // SAFETY: as for the name.
        self.driver.check(unsafe {
            (self.driver.calls.device_bus_id)(text.as_mut_ptr(), text.len() as c_int, self.handle)
        })?;
        Ok(text_of(&text).to_lowercase())
    }

    /// A CUdevice_attribute, by its number in cuda.h.
    pub fn attribute(&self, number: i32) -> Cuda<i32> {
        let mut value = 0;
        // SAFETY: fills a local.
        self.driver
            .check(unsafe { (self.driver.calls.device_attribute)(&mut value, number, self.handle) })?;
        Ok(value)
    }

    /// `sm_90` as (9, 0).
    pub(crate) fn compute_capability(&self) -> Cuda<(i32, i32)> {
        Ok((self.attribute(75)?, self.attribute(76)?))
    }

    pub(crate) fn multiprocessors(&self) -> Cuda<i32> {
        self.attribute(16)
    }

    /// cuMemHostRegister takes read-only mappings.
    pub fn registers_read_only(&self) -> bool {
        self.attribute(113).is_ok_and(|v| v != 0)
    }

    /// Registered host memory lies at the same addresses for it, and kernels may read it there.
    pub fn reads_registered(&self) -> bool {
        self.attribute(91).is_ok_and(|v| v != 0)
    }

    /// Returns whether its streams wait for values in memory that it reads at the host's addresses.
    pub fn awaits_values(&self) -> bool {
        self.driver.on_values.is_some() && self.reads_registered()
    }

    /// Returns whether one call of its driver queues many copies, between which the link isn't idle.
    pub fn copies_batches(&self) -> bool {
        self.driver.copy_batch.is_some()
    }

    /// (free, total) bytes of its memory.
    pub fn memory_info(&self) -> Cuda<(u64, u64)> {
        self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: fills locals.
        self.driver.check(unsafe { (self.driver.calls.memory_info)(&mut free, &mut total) })?;
        Ok((free as u64, total as u64))
    }

    /// Makes the context current on this thread, which every other call needs.
    pub fn enter(&self) -> Cuda<()> {
        if FORKED.load(Ordering::Relaxed) {
            return Err(CudaError::new(
                "this process was forked after CUDA was initialised, which CUDA doesn't survive; \
                 start it with the spawn method, or fork first",
            ));
        }
        // SAFETY: the context was retained in `open` and is never released while the process lives.
        self.driver.check(unsafe { (self.driver.calls.context_set)(self.context) })
    }

    /// The GPU that a device address belongs to; None for memory that CUDA doesn't know.
    pub fn owner_of(&self, address: u64) -> Option<u32> {
        const DEVICE_ORDINAL: c_int = 9;
        let mut ordinal: c_int = -1;
        self.enter().ok()?;
        // SAFETY: fills a local; an address that isn't CUDA's is an error, not a crash.
        let known = self.driver.check(unsafe {
            (self.driver.calls.pointer_attribute)((&raw mut ordinal).cast(), DEVICE_ORDINAL, address)
        });
        known.ok().and_then(|()| u32::try_from(ordinal).ok())
    }
}

fn text_of(bytes: &[std::ffi::c_char]) -> String {
    let bytes: Vec<u8> = bytes.iter().map(|b| *b as u8).collect();
    CStr::from_bytes_until_nul(&bytes).map(|t| t.to_string_lossy().into_owned()).unwrap_or_default()
}
