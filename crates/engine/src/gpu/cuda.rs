//! The CUDA driver API: the few calls that the bounce path needs, and one
//! decoder for its errors. The context is the device's primary one, so memory is
//! shared with PyTorch, CuPy and JAX in the same process.

use crate::arena::{Arena, Mem};
use crate::path::Copier;
use crate::queue::Fault;
use crate::reactor::Waker;
use forebay_model::Error;
use libloading::Library;
use std::ffi::{c_char, c_int, c_uint, c_void, CStr};
use std::sync::{Arc, Mutex, OnceLock};

type CuResult = c_int;
type Context = *mut c_void;
type Stream = *mut c_void;

macro_rules! driver_calls {
    ($($name:ident: $symbol:literal ($($arg:ty),*);)*) => {
        struct Calls { $($name: unsafe extern "C" fn($($arg),*) -> CuResult,)* }
        impl Calls {
            /// # Safety
            /// The library is NVIDIA's driver API (or has its ABI).
            unsafe fn load(library: &Library) -> Result<Calls, libloading::Error> {
                // SAFETY: the caller's promise; the signatures are cuda.h's.
                unsafe { Ok(Calls { $($name: *library.get($symbol)?,)* }) }
            }
        }
    };
}

driver_calls! {
    init: b"cuInit\0" (c_uint);
    device_count: b"cuDeviceGetCount\0" (*mut c_int);
    device_get: b"cuDeviceGet\0" (*mut c_int, c_int);
    primary_retain: b"cuDevicePrimaryCtxRetain\0" (*mut Context, c_int);
    context_set: b"cuCtxSetCurrent\0" (Context);
    mem_alloc: b"cuMemAlloc_v2\0" (*mut u64, usize);
    mem_free: b"cuMemFree_v2\0" (u64);
    host_register: b"cuMemHostRegister_v2\0" (*mut c_void, usize, c_uint);
    host_unregister: b"cuMemHostUnregister\0" (*mut c_void);
    copy_to_device: b"cuMemcpyHtoDAsync_v2\0" (u64, *const c_void, usize, Stream);
    copy_to_host: b"cuMemcpyDtoHAsync_v2\0" (*mut c_void, u64, usize, Stream);
    stream_create: b"cuStreamCreate\0" (*mut Stream, c_uint);
    stream_destroy: b"cuStreamDestroy_v2\0" (Stream);
    stream_synchronize: b"cuStreamSynchronize\0" (Stream);
    launch_host: b"cuLaunchHostFunc\0" (Stream, unsafe extern "C" fn(*mut c_void), *mut c_void);
    error_name: b"cuGetErrorName\0" (CuResult, *mut *const c_char);
    error_string: b"cuGetErrorString\0" (CuResult, *mut *const c_char);
}

struct Driver {
    calls: Calls,
    devices: u32,
    _library: Library,
}

static DRIVER: OnceLock<Result<Driver, String>> = OnceLock::new();

/// The driver, or why there is none.
fn driver() -> Result<&'static Driver, String> {
    DRIVER.get_or_init(open).as_ref().map_err(Clone::clone)
}

fn open() -> Result<Driver, String> {
    // SAFETY: loading NVIDIA's driver library runs its initialisers, which is what it is for.
    let library = unsafe { Library::new("libcuda.so.1") }.map_err(|e| format!("no CUDA driver: {e}"))?;
    // SAFETY: the library is the CUDA driver.
    let calls = unsafe { Calls::load(&library) }.map_err(|e| format!("the CUDA driver is too old: {e}"))?;
    let driver = Driver { calls, devices: 0, _library: library };
    let mut count = 0;
    // SAFETY: plain calls that fill a local.
    unsafe {
        driver.check((driver.calls.init)(0))?;
        driver.check((driver.calls.device_count)(&mut count))?;
    }
    if count <= 0 {
        return Err("the CUDA driver sees no GPU".into());
    }
    Ok(Driver { devices: count as u32, ..driver })
}

impl Driver {
    /// The one decoder of CUresult.
    fn check(&self, result: CuResult) -> Result<(), String> {
        if result == 0 {
            return Ok(());
        }
        let text = |call: unsafe extern "C" fn(CuResult, *mut *const c_char) -> CuResult| {
            let mut at: *const c_char = std::ptr::null();
            // SAFETY: the driver sets `at` to a static string, or leaves it null.
            unsafe {
                call(result, &mut at);
                (!at.is_null()).then(|| CStr::from_ptr(at).to_string_lossy().into_owned())
            }
        };
        let name = text(self.calls.error_name).unwrap_or_else(|| "CUDA error".into());
        Err(format!("{name} ({result}): {}", text(self.calls.error_string).unwrap_or_default()))
    }
}

/// GPUs that the driver sees; 0 with the reason where it can't be loaded.
pub fn devices() -> (u32, Option<String>) {
    match driver() {
        Ok(d) => (d.devices, None),
        Err(why) => (0, Some(why)),
    }
}

/// A GPU, by its primary context.
pub struct Device {
    index: u32,
    context: Context,
    driver: &'static Driver,
}

// SAFETY: a CUDA context may be made current on any thread, and every call here does so first.
unsafe impl Send for Device {}
// SAFETY: the driver serialises what must be.
unsafe impl Sync for Device {}

impl Device {
    pub fn open(index: u32) -> Result<Arc<Device>, Error> {
        let asked = format!("--gpu {index}");
        let driver = driver()
            .map_err(|why| Error::machine(&asked, why, "forebay doctor; --path host needs no GPU"))?;
        if index >= driver.devices {
            return Err(Error::request(
                asked,
                format!("there are {} GPUs, counted from 0", driver.devices),
                "--gpu 0",
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
        made.map_err(|why| Error::machine(asked, why, "nvidia-smi"))?;
        Ok(Arc::new(Device { index, context, driver }))
    }

    pub fn index(&self) -> u32 {
        self.index
    }

    /// Makes the context current on this thread, which every other call needs.
    fn enter(&self) -> Result<(), String> {
        // SAFETY: the context was retained in `open` and is never released while the process lives.
        self.driver.check(unsafe { (self.driver.calls.context_set)(self.context) })
    }

    /// `count` slots of device memory.
    pub fn allocate(self: &Arc<Self>, count: usize, slot_bytes: usize) -> Result<DeviceMemory, Error> {
        let bytes = count * slot_bytes;
        let mut at = 0;
        // SAFETY: fills a local.
        let got = self
            .enter()
            .and_then(|()| self.driver.check(unsafe { (self.driver.calls.mem_alloc)(&mut at, bytes) }));
        got.map_err(|why| {
            Error::machine(
                format!("{bytes} bytes on GPU {}", self.index),
                why,
                "a smaller --depth, --workers or --io-size",
            )
        })?;
        Ok(DeviceMemory { device: self.clone(), at, slot_bytes, count })
    }

    /// Pins an arena, so that copies from it run at the link's speed and asynchronously.
    pub fn pin(self: &Arc<Self>, arena: &Arena) -> Result<Pinned, Error> {
        const PORTABLE: c_uint = 1;
        let (at, bytes) = arena.whole();
        let at: *mut c_void = at.as_ptr().cast();
        // SAFETY: the arena's mapping is live, and the worker drops `Pinned` before it.
        let done = self.enter().and_then(|()| {
            self.driver.check(unsafe { (self.driver.calls.host_register)(at, bytes, PORTABLE) })
        });
        done.map_err(|why| {
            Error::machine(
                format!("pin {bytes} bytes of host memory for GPU {}", self.index),
                why,
                "ulimit -l unlimited, or a smaller --depth",
            )
        })?;
        Ok(Pinned { device: self.clone(), at })
    }

    /// Copies device memory to `to` and waits: for verification.
    pub fn read_back(&self, from: u64, to: &mut [u8]) -> Result<(), String> {
        self.enter()?;
        let calls = &self.driver.calls;
        // SAFETY: `to` is a live slice; the default stream is synchronised before it is looked at.
        unsafe {
            self.driver.check((calls.copy_to_host)(
                to.as_mut_ptr().cast(),
                from,
                to.len(),
                std::ptr::null_mut(),
            ))?;
            self.driver.check((calls.stream_synchronize)(std::ptr::null_mut()))
        }
    }
}

pub struct DeviceMemory {
    device: Arc<Device>,
    at: u64,
    slot_bytes: usize,
    count: usize,
}

impl DeviceMemory {
    pub fn slot(&self, index: usize) -> Mem {
        assert!(index < self.count, "slot {index} of {}", self.count);
        Mem::Device { gpu: self.device.index, at: self.at + (index * self.slot_bytes) as u64 }
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let _ = self.device.enter();
        // SAFETY: allocated by us; the worker's copies have ended.
        unsafe { (self.device.driver.calls.mem_free)(self.at) };
    }
}

pub struct Pinned {
    device: Arc<Device>,
    at: *mut c_void,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = self.device.enter();
        // SAFETY: registered by `pin`, and no copy is under way.
        unsafe { (self.device.driver.calls.host_unregister)(self.at) };
    }
}

/// What the driver's callback thread tells the worker.
struct Mailbox {
    done: Mutex<Vec<u32>>,
    waker: Arc<Waker>,
}

struct Letter {
    tag: u32,
    to: Arc<Mailbox>,
}

/// Called by the driver's own thread when the copies queued before it have ended. Calls no CUDA.
///
/// # Safety
/// `letter` is the box that `queue` gave away for this one call.
unsafe extern "C" fn deliver(letter: *mut c_void) {
    // SAFETY: `queue` boxed the letter for exactly this call.
    let letter = unsafe { Box::from_raw(letter.cast::<Letter>()) };
    letter.to.done.lock().expect("no thread panics while it holds the mailbox").push(letter.tag);
    letter.to.waker.wake();
}

/// Copies by the GPU's copy engines, on a stream of the worker's own.
pub struct CudaCopier {
    device: Arc<Device>,
    stream: Stream,
    mailbox: Arc<Mailbox>,
    failed: Vec<(u32, Option<Fault>)>,
}

impl CudaCopier {
    pub fn new(device: Arc<Device>, waker: Arc<Waker>) -> Result<CudaCopier, Error> {
        const NON_BLOCKING: c_uint = 1;
        let mut stream = std::ptr::null_mut();
        // SAFETY: fills a local.
        let made = device.enter().and_then(|()| {
            device.driver.check(unsafe { (device.driver.calls.stream_create)(&mut stream, NON_BLOCKING) })
        });
        made.map_err(|why| Error::machine(format!("a stream on GPU {}", device.index), why, "nvidia-smi"))?;
        Ok(CudaCopier {
            device,
            stream,
            mailbox: Arc::new(Mailbox { done: Mutex::default(), waker }),
            failed: Vec::new(),
        })
    }

    fn queue(&self, tag: u32, from: Mem, to: Mem, bytes: usize) -> Result<(), String> {
        self.device.enter()?;
        let (driver, calls) = (self.device.driver, &self.device.driver.calls);
        // SAFETY: both ends are slots of at least `bytes` that belong to this I/O until its letter arrives.
        driver.check(unsafe {
            match (from, to) {
                (Mem::Host { at, .. }, Mem::Device { at: device, .. }) => {
                    (calls.copy_to_device)(device, at.as_ptr().cast(), bytes, self.stream)
                }
                (Mem::Device { at: device, .. }, Mem::Host { at, .. }) => {
                    (calls.copy_to_host)(at.as_ptr().cast(), device, bytes, self.stream)
                }
                _ => return Err("a copy within one memory".into()),
            }
        })?;
        let letter = Box::into_raw(Box::new(Letter { tag, to: self.mailbox.clone() }));
        // SAFETY: `deliver` frees the letter, and the driver calls it once; if it refuses, the letter is still
        // ours, and the stream is drained before the slots are used again.
        unsafe {
            let posted = driver.check((calls.launch_host)(self.stream, deliver, letter.cast()));
            if posted.is_err() {
                drop(Box::from_raw(letter));
                (calls.stream_synchronize)(self.stream);
            }
            posted
        }
    }
}

impl Copier for CudaCopier {
    fn start(&mut self, tag: u32, from: Mem, to: Mem, bytes: usize) {
        if let Err(why) = self.queue(tag, from, to, bytes) {
            self.failed.push((tag, Some(Fault::note(libc::EIO, why))));
            self.mailbox.waker.wake();
        }
    }

    fn reap(&mut self, done: &mut Vec<(u32, Option<Fault>)>) {
        done.append(&mut self.failed);
        done.extend(
            self.mailbox
                .done
                .lock()
                .expect("no thread panics while it holds the mailbox")
                .drain(..)
                .map(|tag| (tag, None)),
        );
    }

    /// Starting one takes microseconds.
    fn at_once(&self) -> usize {
        usize::MAX
    }
}

impl Drop for CudaCopier {
    fn drop(&mut self) {
        let _ = self.device.enter();
        // SAFETY: our stream; waiting for it lets every letter arrive before the slots go.
        unsafe {
            (self.device.driver.calls.stream_synchronize)(self.stream);
            (self.device.driver.calls.stream_destroy)(self.stream);
        }
    }
}
