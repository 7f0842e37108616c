//! NVML: energy and power of NVIDIA's GPUs, through the driver's library. It is opened at
//! run time, so that a machine without it loses this meter and nothing else.

use super::{Found, Meter, Pace, Sample};
use crate::meter::Reason;
use libloading::Library;
use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void, CStr};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Installed by the driver; found by the loader's search.
pub const NVML_LIBRARY: &str = "libnvidia-ml.so.1";

/// More than any server holds.
const GPUS_MAX: c_uint = 1024;

const SUCCESS: c_int = 0;
const NOT_SUPPORTED: c_int = 3;
const NO_PERMISSION: c_int = 4;
const DRIVER_NOT_LOADED: c_int = 9;

type Handle = *mut c_void;

/// Every GPU that NVML lists, as `gpu:N` by NVML's index, which is the order on the PCI
/// bus and needn't be CUDA's.
pub fn open_nvml(library: &Path) -> Result<Found, Reason> {
    let nvml = Nvml::opened(library)?;
    let mut found = Found { meters: Vec::new(), refused: Vec::new() };
    for index in 0..nvml.count()? {
        match Gpu::open(&nvml, index) {
            Ok(gpu) => found.meters.push(Box::new(gpu)),
            Err(reason) => found.refused.push((format!("nvml:gpu:{index}"), reason)),
        }
    }
    Found::or_reason(found, "NVML lists no GPU")
}

/// The functions used, of a library that stays loaded and initialised.
struct Nvml {
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    device_count: unsafe extern "C" fn(*mut c_uint) -> c_int,
    handle_by_index: unsafe extern "C" fn(c_uint, *mut Handle) -> c_int,
    /// Millijoules since the driver was loaded; Volta and later.
    total_energy: Option<unsafe extern "C" fn(Handle, *mut c_ulonglong) -> c_int>,
    /// Milliwatts.
    power_usage: unsafe extern "C" fn(Handle, *mut c_uint) -> c_int,
    /// Never unloaded: threads of the driver may still run in it.
    _library: ManuallyDrop<Library>,
}

impl Nvml {
    /// Once for the process: an nvmlInit talks to every GPU, and whatever an nvmlShutdown doesn't give back would add
    /// up with each run.
    fn opened(path: &Path) -> Result<Arc<Nvml>, Reason> {
        static OPENED: Mutex<Vec<(PathBuf, Arc<Nvml>)>> = Mutex::new(Vec::new());
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, nvml)) = opened.iter().find(|(of, _)| of == path) {
            return Ok(Arc::clone(nvml));
        }
        let nvml = Arc::new(Nvml::load(path)?);
        opened.push((path.into(), Arc::clone(&nvml)));
        Ok(nvml)
    }

    fn load(path: &Path) -> Result<Nvml, Reason> {
        // SAFETY: loading runs the library's constructors; it is the driver's own library, or
        // what the caller named in its place.
        let library = unsafe { Library::new(path) }
            .map_err(|e| format!("no NVIDIA driver's library here ({})", first_line(&e.to_string())))?;
        let library = ManuallyDrop::new(library);
        // SAFETY: the types are those of nvml.h; `T` is fixed by the fields and by `init`.
        // The symbols stay valid, since the library is never unloaded.
        unsafe {
            let init: unsafe extern "C" fn() -> c_int = symbol(&library, "nvmlInit_v2")?;
            let nvml = Nvml {
                error_string: symbol(&library, "nvmlErrorString")?,
                device_count: symbol(&library, "nvmlDeviceGetCount_v2")?,
                handle_by_index: symbol(&library, "nvmlDeviceGetHandleByIndex_v2")?,
                total_energy: symbol(&library, "nvmlDeviceGetTotalEnergyConsumption").ok(),
                power_usage: symbol(&library, "nvmlDeviceGetPowerUsage")?,
                _library: library,
            };
            match init() {
                SUCCESS => Ok(nvml),
                status => Err(nvml.reason("nvmlInit", status)),
            }
        }
    }

    fn count(&self) -> Result<c_uint, Reason> {
        let mut count = 0;
        // SAFETY: writes one unsigned int.
        let status = unsafe { (self.device_count)(&mut count) };
        self.checked("nvmlDeviceGetCount", status).map(|()| count.min(GPUS_MAX))
    }

    fn checked(&self, call: &str, status: c_int) -> Result<(), Reason> {
        match status {
            SUCCESS => Ok(()),
            status => Err(self.reason(call, status)),
        }
    }

    /// NVML's own words for a status, with what to do where that is known.
    fn reason(&self, call: &str, status: c_int) -> Reason {
        // SAFETY: returns a pointer to a string of the library's, or null.
        let words = unsafe {
            let text = (self.error_string)(status);
            match text.is_null() {
                true => "unknown error".into(),
                false => CStr::from_ptr(text).to_string_lossy().into_owned(),
            }
        };
        let hint = match status {
            NOT_SUPPORTED => "; this GPU, or its slice, doesn't report it",
            NO_PERMISSION => "; the container or the user isn't allowed to ask",
            DRIVER_NOT_LOADED => "; sudo modprobe nvidia",
            _ => "",
        };
        format!("{call}: {words} ({status}){hint}")
    }
}

struct Gpu {
    nvml: Arc<Nvml>,
    handle: Handle,
    scope: String,
    /// The driver's energy counter works here; else power readings are all there is.
    counts: bool,
}

// SAFETY: a handle names a device to NVML, whose functions may be called from any thread.
unsafe impl Send for Gpu {}

// SAFETY: function pointers into a library that may be called from any thread.
unsafe impl Send for Nvml {}
// SAFETY: as above; there is no state of ours.
unsafe impl Sync for Nvml {}

impl Gpu {
    fn open(nvml: &Arc<Nvml>, index: c_uint) -> Result<Gpu, Reason> {
        let mut handle: Handle = std::ptr::null_mut();
        // SAFETY: writes one handle.
        let status = unsafe { (nvml.handle_by_index)(index, &mut handle) };
        nvml.checked("nvmlDeviceGetHandleByIndex", status)?;
        let mut gpu = Gpu { nvml: Arc::clone(nvml), handle, scope: format!("gpu:{index}"), counts: true };
        if gpu.sample().is_err() {
            gpu.counts = false;
            gpu.sample()?;
        }
        Ok(gpu)
    }

    fn energy(&self) -> Result<Sample, Reason> {
        let call = self.nvml.total_energy.ok_or("this driver has no energy counter")?;
        let mut millijoules = 0;
        // SAFETY: a handle of this library; writes one unsigned long long.
        let status = unsafe { call(self.handle, &mut millijoules) };
        self.nvml.checked("nvmlDeviceGetTotalEnergyConsumption", status)?;
        Ok(Sample::Joules(millijoules as f64 / 1e3))
    }

    fn power(&self) -> Result<Sample, Reason> {
        let mut milliwatts = 0;
        // SAFETY: a handle of this library; writes one unsigned int.
        let status = unsafe { (self.nvml.power_usage)(self.handle, &mut milliwatts) };
        self.nvml.checked("nvmlDeviceGetPowerUsage", status)?;
        Ok(Sample::Watts(f64::from(milliwatts) / 1e3))
    }
}

impl Meter for Gpu {
    fn source(&self) -> &'static str {
        "nvml"
    }

    fn scope(&self) -> &str {
        &self.scope
    }

    fn sample(&mut self) -> Result<Sample, Reason> {
        match self.counts {
            true => self.energy(),
            false => self.power(),
        }
    }

    fn pace(&self) -> Pace {
        Pace::Quick
    }
}

/// # Safety
/// `T` must be the symbol's type.
unsafe fn symbol<T: Copy>(library: &Library, name: &str) -> Result<T, Reason> {
    // SAFETY: by the contract above.
    let found = unsafe { library.get::<T>(name.as_bytes()) };
    found
        .map(|symbol| *symbol)
        .map_err(|_| format!("the NVIDIA driver's library lacks {name}: it is too old"))
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or("")
}
