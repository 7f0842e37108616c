//! The driver API's entry points, as cuda.h declares them.

use libloading::Library;
use std::ffi::{c_char, c_int, c_uint, c_void};

pub(crate) type CuResult = c_int;
pub(crate) type Context = *mut c_void;
pub(crate) type RawStream = *mut c_void;
pub(crate) type RawEvent = *mut c_void;
pub(crate) type RawModule = *mut c_void;
pub(crate) type RawFunction = *mut c_void;

/// cuMemGetHandleForAddressRange: handle, address, bytes, its kind, flags.
pub(crate) type HandleOfRange = unsafe extern "C" fn(*mut c_void, u64, usize, c_int, u64) -> CuResult;
/// cuStreamWaitValue32_v2 and cuStreamWriteValue32_v2: stream, address, value, flags.
pub(crate) type OnValue = unsafe extern "C" fn(RawStream, u64, u32, c_uint) -> CuResult;

/// CUmemLocation: a kind (0: none is said) and a number.
#[repr(C)]
pub(crate) struct Location {
    kind: c_int,
    id: c_int,
}

/// CUmemcpyAttributes, of copies whose sources are read in the stream's order.
#[repr(C)]
pub(crate) struct CopyAttributes {
    source_order: c_int,
    source: Location,
    destination: Location,
    flags: c_uint,
}

impl CopyAttributes {
    const fn in_stream_order() -> CopyAttributes {
        const STREAM: c_int = 1;
        const NOWHERE: Location = Location { kind: 0, id: 0 };
        CopyAttributes { source_order: STREAM, source: NOWHERE, destination: NOWHERE, flags: 0 }
    }
}

/// cuMemcpyBatchAsync_v2 of CUDA 13: destinations, sources, lengths, how many, attributes and the copies from which on they hold,
/// how many of those, stream.
type CopyBatch13 = unsafe extern "C" fn(
    *const u64,
    *const u64,
    *const usize,
    usize,
    *const CopyAttributes,
    *const usize,
    usize,
    RawStream,
) -> CuResult;
/// cuMemcpyBatchAsync of CUDA 12.8: before the stream it takes room for the number of the copy that failed.
type CopyBatch12 = unsafe extern "C" fn(
    *const u64,
    *const u64,
    *const usize,
    usize,
    *const CopyAttributes,
    *const usize,
    usize,
    *mut usize,
    RawStream,
) -> CuResult;

/// A call that queues many copies.
#[derive(Clone, Copy)]
pub(crate) enum CopyBatch {
    Cuda13(CopyBatch13),
    Cuda12(CopyBatch12),
}

impl CopyBatch {
    /// # Safety
    /// The library is NVIDIA's driver API (or has its ABI).
    pub(crate) unsafe fn load(library: &Library) -> Option<CopyBatch> {
        // SAFETY: the caller's promise; the signatures are cuda.h's.
        unsafe {
            let newer = library.get::<CopyBatch13>(b"cuMemcpyBatchAsync_v2\0");
            newer.map(|call| CopyBatch::Cuda13(*call)).ok().or_else(|| {
                library.get::<CopyBatch12>(b"cuMemcpyBatchAsync\0").map(|call| CopyBatch::Cuda12(*call)).ok()
            })
        }
    }

    /// # Safety
    /// All three lists have the same length, not 0; the stream isn't a default one. Else as for the call itself.
    pub(crate) unsafe fn queue(
        self,
        to: &[u64],
        from: &[u64],
        bytes: &[usize],
        stream: RawStream,
    ) -> CuResult {
        const ATTRIBUTES: CopyAttributes = CopyAttributes::in_stream_order();
        const FROM_THE_FIRST: usize = 0;
        let (count, to, from, bytes) = (to.len(), to.as_ptr(), from.as_ptr(), bytes.as_ptr());
        let mut failed = 0;
        // SAFETY: the lists are as long as it is told; the rest is the caller's promise.
        unsafe {
            match self {
                CopyBatch::Cuda13(call) => {
                    call(to, from, bytes, count, &ATTRIBUTES, &FROM_THE_FIRST, 1, stream)
                }
                CopyBatch::Cuda12(call) => {
                    call(to, from, bytes, count, &ATTRIBUTES, &FROM_THE_FIRST, 1, &mut failed, stream)
                }
            }
        }
    }
}

macro_rules! driver_calls {
    ($($name:ident: $symbol:literal ($($arg:ty),*);)*) => {
        pub(crate) struct Calls {
            $(pub $name: unsafe extern "C" fn($($arg),*) -> CuResult,)*
        }
        impl Calls {
            /// # Safety
            /// The library is NVIDIA's driver API (or has its ABI).
            pub(crate) unsafe fn load(library: &Library) -> Result<Calls, libloading::Error> {
                // SAFETY: the caller's promise; the signatures are cuda.h's.
                unsafe { Ok(Calls {
                    $($name: *library.get($symbol)?,)*
                }) }
            }
        }
    };
}

driver_calls! {
    init: b"cuInit\0" (c_uint);
    driver_version: b"cuDriverGetVersion\0" (*mut c_int);
    device_count: b"cuDeviceGetCount\0" (*mut c_int);
    device_get: b"cuDeviceGet\0" (*mut c_int, c_int);
    device_name: b"cuDeviceGetName\0" (*mut c_char, c_int, c_int);
    device_attribute: b"cuDeviceGetAttribute\0" (*mut c_int, c_int, c_int);
    device_bus_id: b"cuDeviceGetPCIBusId\0" (*mut c_char, c_int, c_int);
    primary_retain: b"cuDevicePrimaryCtxRetain\0" (*mut Context, c_int);
    context_set: b"cuCtxSetCurrent\0" (Context);
    memory_info: b"cuMemGetInfo_v2\0" (*mut usize, *mut usize);
    mem_alloc: b"cuMemAlloc_v2\0" (*mut u64, usize);
    mem_free: b"cuMemFree_v2\0" (u64);
    host_register: b"cuMemHostRegister_v2\0" (*mut c_void, usize, c_uint);
    host_unregister: b"cuMemHostUnregister\0" (*mut c_void);
    pointer_attribute: b"cuPointerGetAttribute\0" (*mut c_void, c_int, u64);
    copy_to_device: b"cuMemcpyHtoDAsync_v2\0" (u64, *const c_void, usize, RawStream);
    copy_to_host: b"cuMemcpyDtoHAsync_v2\0" (*mut c_void, u64, usize, RawStream);
    set_bytes: b"cuMemsetD8Async\0" (u64, u8, usize, RawStream);
    stream_create: b"cuStreamCreate\0" (*mut RawStream, c_uint);
    stream_destroy: b"cuStreamDestroy_v2\0" (RawStream);
    stream_synchronize: b"cuStreamSynchronize\0" (RawStream);
    stream_wait: b"cuStreamWaitEvent\0" (RawStream, RawEvent, c_uint);
    event_create: b"cuEventCreate\0" (*mut RawEvent, c_uint);
    event_destroy: b"cuEventDestroy_v2\0" (RawEvent);
    event_record: b"cuEventRecord\0" (RawEvent, RawStream);
    event_query: b"cuEventQuery\0" (RawEvent);
    event_synchronize: b"cuEventSynchronize\0" (RawEvent);
    module_load: b"cuModuleLoadData\0" (*mut RawModule, *const c_void);
    module_unload: b"cuModuleUnload\0" (RawModule);
    module_function: b"cuModuleGetFunction\0" (*mut RawFunction, RawModule, *const c_char);
    launch: b"cuLaunchKernel\0" (RawFunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, RawStream,
                                 *mut *mut c_void, *mut *mut c_void);
    error_name: b"cuGetErrorName\0" (CuResult, *mut *const c_char);
    error_string: b"cuGetErrorString\0" (CuResult, *mut *const c_char);
}
