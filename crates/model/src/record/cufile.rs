//! Remote namespaces, registrations and cuFile's counters in a run.

use crate::schema::record;

record! {
    /// A remote namespace, or an emulated drive, from when it was opened to the end of the run.
    pub struct FabricRan {
        /// Its first address, its subsystem and its namespace.
        pub uri: String = "text";
        /// Model of the first controller that was reached, as it reports it.
        pub model: String = "text";
        /// As reported by it.
        pub firmware: String = "text";
        /// The namespace's block.
        pub block_bytes: u32 = "bytes";
        /// Longest transfer of one command; longer I/Os went in several.
        pub transfer_bytes: u32 = "bytes";
        /// CRC32C over headers.
        pub header_digest: bool = "true or false";
        /// CRC32C over data.
        pub data_digest: bool = "true or false";
        /// Its addresses.
        pub paths: Vec<FabricPath> = "list of objects";
        /// I/O queues that carried commands.
        pub queues: Vec<FabricQueue> = "list of objects";
        /// Changes of the paths, the last 64 of them.
        pub events: Vec<FabricEvent> = "list of objects";
        /// Changes before those.
        pub events_dropped: u64 = "count";
    }
}

record! {
    /// One address of a namespace, or the socket of an emulated drive.
    pub struct FabricPath {
        /// `host:port`.
        pub address: String = "text";
        /// At the end: `live` and its ANA state, `connecting` or `lost`, and why.
        pub state: String = "text";
        /// Number of reconnections.
        pub reconnects: u32 = "count";
        /// Connections of I/O queues that the target refused repeatedly.
        pub refused: u32 = "count";
    }
}

record! {
    /// One I/O queue of one path: a TCP connection, or a queue pair in shared memory.
    pub struct FabricQueue {
        /// Of its path.
        pub address: String = "text";
        /// Queue identifier, from 1.
        pub qid: u16 = "count";
        /// Commands that completed.
        pub commands: u64 = "count";
        /// Commands that were sent again because they failed temporarily, e.g. because of a data digest.
        pub retries: u64 = "count";
        /// Mean time from submission to completion of a command.
        pub mean_us: f64 = "µs";
        /// The same, for the slowest.
        pub max_us: f64 = "µs";
        /// Histogram: upper bound in µs, a power of two, and how many commands took no longer; up to the first bound that
        /// includes all.
        pub latencies: Vec<(f64, u64)> = "list";
    }
}

record! {
    pub struct FabricEvent {
        /// Since the namespace was opened.
        pub at_s: f64 = "s";
        /// Which path, and what happened.
        pub text: String = "text";
    }
}

record! {
    /// Registrations of the page cache with the GPU's driver, of all repeats together.
    pub struct MappedRan {
        /// Most that may be registered at once.
        pub pin_limit_bytes: u64 = "bytes";
        /// Size of a window, which is registered as a whole.
        pub window_bytes: u64 = "bytes";
        /// Number of windows in the files.
        pub windows: u64 = "count";
        /// Most that was registered at once.
        pub registered_bytes_peak: u64 = "bytes";
        /// Windows that were registered, each time counted.
        pub registrations: u64 = "count";
        /// Rate at which they were registered, excluding the check whether they are cached; null if there were none.
        pub register_gib_s: Option<f64> = "GiB/s, or null";
        /// Windows that were unregistered to make room.
        pub evictions: u64 = "count";
        /// Number of waits for evictions.
        pub eviction_batches: u64 = "count";
        /// Windows that weren't registered because they weren't cached.
        pub uncached: u64 = "count";
        /// Windows that the system refused to pin.
        pub refused: u64 = "count";
        /// The system's error for the first of them.
        pub refusal: Option<String> = "text, or null";
        /// How often a file was found to have changed.
        pub stale: u64 = "count";
        /// Windows that processors copied when they were first read, while others were registered.
        pub left: u64 = "count";
    }
}

record! {
    /// cuFile in one run. Its counters cover the whole run, warm-up included.
    pub struct Cufile {
        /// The file that was loaded.
        pub library: String = "text";
        /// E.g. 1.15.
        pub version: Option<String> = "text, or null";
        /// `sync`, `stream`, `batch` or `batch-stream`.
        pub mode: String = "text";
        /// I/Os per batch; null if the mode has none.
        pub batch: Option<u32> = "count, or null";
        /// The GPU's buffers are registered with cuFile.
        pub buffers_registered: bool = "true or false";
        /// Whether cuFile may fall back: its setting in this run.
        pub allow_compat_mode: Option<bool> = "true or false, or null";
        /// What cuFileDriverGetProperties says.
        pub properties: CufileProperties = "object";
        /// The path of each underlying device, as found before the run.
        pub routes: Vec<CufileRoute> = "list of objects";
        /// I/Os whose offset or length isn't a multiple of 4 KiB.
        pub unaligned_ios: u64 = "count";
        /// cuFile's own counters for each GPU (libcufile 1.15 and later).
        pub gpus: Option<Vec<CufileGpu>> = "list of objects, or null";
        /// How batches were submitted (libcufile 1.15 and later).
        pub batches: Option<CufileBatches> = "object, or null";
    }
}

record! {
    /// The properties that cuFileDriverGetProperties returns.
    pub struct CufileProperties {
        /// Version of the kernel module; `0.0` where there is none.
        pub nvidia_fs: String = "text";
        /// Storage that can go direct: `nvme`, `nvme-p2p`, `nvmeof`, `lustre` …
        pub direct: Vec<String> = "list of texts";
        /// cuFile polls for completions.
        pub poll_mode: bool = "true or false";
        /// Longest I/O that is polled for.
        pub poll_threshold_kib: u64 = "KiB";
        /// Longest piece that cuFile hands to the kernel.
        pub direct_io_max_kib: u64 = "KiB";
        /// GPU memory for cuFile's own buffers.
        pub device_cache_max_kib: u64 = "KiB";
        /// One of these buffers.
        pub buffer_cache_kib: u64 = "KiB";
        /// GPU memory that may be registered.
        pub pinned_max_kib: u64 = "KiB";
        /// Most I/Os in a batch.
        pub batch_max: u32 = "count";
        /// cuFile's own time-out of a batch.
        pub batch_timeout_ms: u32 = "ms";
    }
}

record! {
    pub struct CufileRoute {
        /// A file on the device.
        pub target: String = "text";
        /// `direct`, `compat` or `unproven`.
        pub route: String = "text";
        /// The evidence.
        pub evidence: String = "text";
    }
}

record! {
    /// cuFile's own counters for one GPU (cuFileGetStatsL3).
    pub struct CufileGpu {
        /// As nvidia-smi -L shows it.
        pub uuid: String = "text";
        /// cuFile's calls that read.
        pub reads: CufileCalls = "object";
        /// cuFile's calls that wrote.
        pub writes: CufileCalls = "object";
    }
}

record! {
    /// cuFile's calls, by path. A long I/O may be several calls.
    pub struct CufileCalls {
        /// All of them.
        pub bytes: u64 = "bytes";
        /// Calls; a long I/O may be several.
        pub total: u64 = "count";
        /// By PCI P2PDMA.
        pub p2p: u64 = "count";
        /// By nvidia-fs.
        pub nvfs: u64 = "count";
        /// In compatibility mode.
        pub posix: u64 = "count";
        /// With an offset or length that cuFile had to round.
        pub unaligned: u64 = "count";
        /// Over another GPU or the host's memory (dynamic routing).
        pub rerouted: u64 = "count";
        /// Failed.
        pub errors: u64 = "count";
    }
}

record! {
    /// Submissions of batches (cuFileGetStatsL3's first level).
    pub struct CufileBatches {
        /// Batches.
        pub submitted: u64 = "count";
        /// By PCI P2PDMA.
        pub p2p: u64 = "count";
        /// By nvidia-fs.
        pub nvfs: u64 = "count";
        /// By the kernel's AIO, in compatibility mode.
        pub aio: u64 = "count";
        /// By io_uring, in compatibility mode.
        pub io_uring: u64 = "count";
        /// By several of these.
        pub mixed: u64 = "count";
        /// Entries that went to the threads of the compatibility mode.
        pub posix_entries: u64 = "count";
    }
}
