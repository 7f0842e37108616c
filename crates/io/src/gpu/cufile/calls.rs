//! libcufile's entry points and structures, as cufile.h of 1.15 has them on 64-bit Linux.
//! Older libraries lack the optional ones.

use libloading::Library;
use std::ffi::{c_int, c_uint, c_void};

/// CUfileError_t: a code of cuFile's, and the driver's where the code says so.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status {
    pub code: c_int,
    pub cuda: c_int,
}

/// CUfileDescr_t, for a descriptor of Linux's.
#[repr(C)]
pub(crate) struct Descriptor {
    /// 1: a file descriptor.
    pub kind: c_int,
    /// A union with a pointer.
    pub fd: i64,
    pub operations: *const c_void,
}

/// CUfileDrvProps_t.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DriverProperties {
    pub major: c_uint,
    pub minor: c_uint,
    pub poll_threshold_kib: usize,
    pub direct_io_max_kib: usize,
    pub supports: c_uint,
    pub controls: c_uint,
    pub features: c_uint,
    pub device_cache_max_kib: c_uint,
    pub buffer_cache_kib: c_uint,
    pub pinned_max_kib: c_uint,
    pub batch_max: c_uint,
    pub batch_timeout_ms: c_uint,
}

/// CUfileIOParams_t: one entry of a batch.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct BatchEntry {
    /// 1: a batch.
    pub mode: c_int,
    pub base: *mut c_void,
    pub file_offset: i64,
    pub base_offset: i64,
    pub bytes: usize,
    pub handle: *mut c_void,
    /// 0 reads, 1 writes.
    pub opcode: c_int,
    pub cookie: *mut c_void,
}

/// CUfileIOEvents_t: what became of an entry.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct BatchEvent {
    pub cookie: *mut c_void,
    pub status: c_int,
    /// Bytes, or a negative error.
    pub result: isize,
}

/// CUfileOpCounter_t.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OpCounter {
    pub ok: u64,
    pub failed: u64,
}

/// CUfileStatsLevel1_t.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StatsLevel1 {
    pub operations: [OpCounter; 6],
    pub io: [u64; 6],
    pub per_second: [u64; 2],
    pub latency_sums: [u64; 2],
    pub batch_operations: [OpCounter; 5],
    pub batch_enqueued: OpCounter,
    pub batch_posix_enqueued: OpCounter,
    pub batch_processed: OpCounter,
    pub batch_posix_processed: OpCounter,
    pub batch_nvfs: OpCounter,
    pub batch_p2p: OpCounter,
    pub batch_aio: OpCounter,
    pub batch_io_uring: OpCounter,
    pub batch_mixed: OpCounter,
    pub batch_total: OpCounter,
    pub batch_io: [u64; 12],
}

/// CUfilePerGpuStats_t.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GpuStats {
    pub uuid: [u8; 16],
    pub read_bytes: u64,
    pub read_bandwidth: u64,
    pub read_utilization: u64,
    pub read_duration_us: u64,
    pub reads: u64,
    pub p2p_reads: u64,
    pub nvfs_reads: u64,
    pub posix_reads: u64,
    pub unaligned_reads: u64,
    pub rerouted_reads: u64,
    pub sparse_regions: u64,
    pub inline_regions: u64,
    pub failed_reads: u64,
    pub write_bytes: u64,
    pub write_bandwidth: u64,
    pub write_utilization: u64,
    pub write_duration_us: u64,
    pub writes: u64,
    pub p2p_writes: u64,
    pub nvfs_writes: u64,
    pub posix_writes: u64,
    pub unaligned_writes: u64,
    pub rerouted_writes: u64,
    pub failed_writes: u64,
    pub registrations: [u64; 5],
}

pub(crate) const STATS_GPUS_MAX: usize = 16;

/// CUfileStatsLevel3_t, with room behind it for a library whose structure has grown at its end.
#[repr(C)]
pub(crate) struct StatsLevel3 {
    pub basic: StatsLevel1,
    pub read_sizes: [u64; 32],
    pub write_sizes: [u64; 32],
    pub gpus: u32,
    pub per_gpu: [GpuStats; STATS_GPUS_MAX],
    pub spare: [u64; 1024],
}

const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<Status>() == 8);
    assert!(size_of::<Descriptor>() == 24);
    assert!(size_of::<DriverProperties>() == 56);
    assert!(size_of::<BatchEntry>() == 64);
    assert!(size_of::<BatchEvent>() == 24);
    assert!(size_of::<StatsLevel1>() == 512);
    assert!(size_of::<GpuStats>() == 248);
    assert!(offset_of!(StatsLevel3, gpus) == 1024);
    assert!(offset_of!(StatsLevel3, per_gpu) == 1032);
    assert!(offset_of!(StatsLevel3, spare) == 5000);
};

macro_rules! cufile_calls {
    (required { $($name:ident: $symbol:literal ($($arg:ty),*) -> $out:ty;)* }
     optional { $($may:ident: $may_symbol:literal ($($may_arg:ty),*) -> $may_out:ty;)* }) => {
        pub(crate) struct Calls {
            $(pub $name: unsafe extern "C" fn($($arg),*) -> $out,)*
            $(pub $may: Option<unsafe extern "C" fn($($may_arg),*) -> $may_out>,)*
        }
        impl Calls {
            /// # Safety
            /// The library is libcufile (or has its ABI).
            pub(crate) unsafe fn load(library: &Library) -> Result<Calls, libloading::Error> {
                // SAFETY: the caller's promise; the signatures are cufile.h's.
                unsafe { Ok(Calls {
                    $($name: *library.get($symbol)?,)*
                    $($may: library.get($may_symbol).ok().map(|found| *found),)*
                }) }
            }
        }
    };
}

cufile_calls! {
    required {
    driver_open: b"cuFileDriverOpen\0" () -> Status;
    driver_properties: b"cuFileDriverGetProperties\0" (*mut DriverProperties) -> Status;
    handle_register: b"cuFileHandleRegister\0" (*mut *mut c_void, *mut Descriptor) -> Status;
    handle_deregister: b"cuFileHandleDeregister\0" (*mut c_void) -> ();
    buffer_register: b"cuFileBufRegister\0" (*const c_void, usize, c_int) -> Status;
    buffer_deregister: b"cuFileBufDeregister\0" (*const c_void) -> Status;
    read: b"cuFileRead\0" (*mut c_void, *mut c_void, usize, i64, i64) -> isize;
    write: b"cuFileWrite\0" (*mut c_void, *const c_void, usize, i64, i64) -> isize;
    }
    optional {
    driver_close: b"cuFileDriverClose_v2\0" () -> Status;
    driver_close_v1: b"cuFileDriverClose\0" () -> Status;
    version: b"cuFileGetVersion\0" (*mut c_int) -> Status;
    read_async: b"cuFileReadAsync\0"
        (*mut c_void, *mut c_void, *mut usize, *mut i64, *mut i64, *mut isize, *mut c_void) -> Status;
    write_async: b"cuFileWriteAsync\0"
        (*mut c_void, *mut c_void, *mut usize, *mut i64, *mut i64, *mut isize, *mut c_void) -> Status;
    batch_set_up: b"cuFileBatchIOSetUp\0" (*mut *mut c_void, c_uint) -> Status;
    batch_submit: b"cuFileBatchIOSubmit\0" (*mut c_void, c_uint, *mut BatchEntry, c_uint) -> Status;
    batch_status: b"cuFileBatchIOGetStatus\0"
        (*mut c_void, c_uint, *mut c_uint, *mut BatchEvent, *mut libc::timespec) -> Status;
    batch_cancel: b"cuFileBatchIOCancel\0" (*mut c_void) -> Status;
    batch_destroy: b"cuFileBatchIODestroy\0" (*mut c_void) -> ();
    get_bool: b"cuFileGetParameterBool\0" (c_int, *mut u8) -> Status;
    set_bool: b"cuFileSetParameterBool\0" (c_int, bool) -> Status;
    get_slabs: b"cuFileGetParameterPosixPoolSlabArray\0" (*mut usize, *mut usize, c_int) -> Status;
    set_stats_level: b"cuFileSetStatsLevel\0" (c_int) -> Status;
    stats_start: b"cuFileStatsStart\0" () -> Status;
    stats: b"cuFileGetStatsL3\0" (*mut StatsLevel3) -> Status;
    }
}
