//! Remote namespaces, registrations and cuFile's counters in a run.

use serde::Deserialize;
use serde::Serialize;

/// A remote namespace, or an emulated drive, from when it was opened to the end of the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FabricRan {
    pub uri: String,
    /// Model of the controller that was reached first, as it reports it.
    pub model: String,
    pub firmware: String,
    pub block_bytes: u32,
    /// Maximum transfer size of one command; longer I/Os are split.
    pub transfer_bytes: u32,
    pub header_digest: bool,
    pub data_digest: bool,
    pub paths: Vec<FabricPath>,
    /// I/O queues that carried commands.
    pub queues: Vec<FabricQueue>,
    /// The last 64 events of the paths.
    pub events: Vec<FabricEvent>,
    /// Earlier events, which are only counted.
    pub events_dropped: u64,
}

/// One address of a namespace, or the socket of an emulated drive.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FabricPath {
    pub address: String,
    /// At the end: `live` and its ANA state, `connecting` or `lost`, and why.
    pub state: String,
    /// Number of reconnections.
    pub reconnects: u32,
    /// Connections of I/O queues that the target refused again and again; the other queues went on.
    pub refused: u32,
}

/// One I/O queue of one path: a TCP connection, or a queue pair in shared memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FabricQueue {
    pub address: String,
    pub qid: u16,
    pub commands: u64,
    /// Commands that were resent because of a temporary failure, for example a wrong data digest.
    pub retries: u64,
    /// Mean time from submission to completion of a command.
    pub mean_us: f64,
    pub max_us: f64,
    /// Upper bound in µs and how many commands took no longer, up to the first that is all of them: powers of two.
    pub latencies: Vec<(f64, u64)>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FabricEvent {
    /// Since the namespace was opened, seconds.
    pub at_s: f64,
    pub text: String,
}

/// Registrations of the page cache with the GPU's driver, of all repeats together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MappedRan {
    /// Limit on the bytes registered at once.
    pub pin_limit_bytes: u64,
    /// Size of a window, which is registered as a unit.
    pub window_bytes: u64,
    /// Number of windows in the files.
    pub windows: u64,
    pub registered_bytes_peak: u64,
    /// Registrations of windows, counting repeated ones.
    pub registrations: u64,
    /// Rate at which they were registered, excluding residency checks; null if there were none.
    pub register_gib_s: Option<f64>,
    /// Windows that were unregistered to make room, and in how many batches.
    pub evictions: u64,
    pub eviction_batches: u64,
    /// Windows that weren't registered because they weren't cached.
    pub uncached: u64,
    /// Windows that the system refused to pin, and its error for the first.
    pub refused: u64,
    pub refusal: Option<String>,
    /// Number of times that a file was found to have changed.
    pub stale: u64,
    /// Windows that processors copied when they were first read, while others were registered.
    pub left: u64,
}

/// cuFile in one run. Its counters cover the whole run, warm-up included.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cufile {
    /// The file that was loaded.
    pub library: String,
    /// E.g. 1.15.
    pub version: Option<String>,
    /// `sync`, `stream`, `batch` or `batch-stream`.
    pub mode: String,
    /// I/Os per batch; null if the mode has none.
    pub batch: Option<u32>,
    pub buffers_registered: bool,
    pub allow_compat_mode: Option<bool>,
    pub properties: CufileProperties,
    /// Route of each device, as determined before the run.
    pub routes: Vec<CufileRoute>,
    /// I/Os whose offset or length isn't a multiple of 4 KiB.
    pub unaligned_ios: u64,
    pub gpus: Option<Vec<CufileGpu>>,
    pub batches: Option<CufileBatches>,
}

/// The properties that cuFileDriverGetProperties returns.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CufileProperties {
    /// Version of the kernel module; `0.0` where there is none.
    pub nvidia_fs: String,
    /// Storage that can go direct: `nvme`, `nvme-p2p`, `nvmeof`, `lustre` …
    pub direct: Vec<String>,
    pub poll_mode: bool,
    pub poll_threshold_kib: u64,
    pub direct_io_max_kib: u64,
    pub device_cache_max_kib: u64,
    pub buffer_cache_kib: u64,
    pub pinned_max_kib: u64,
    pub batch_max: u32,
    pub batch_timeout_ms: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CufileRoute {
    /// A file on it.
    pub target: String,
    /// `direct`, `compat` or `unproven`.
    pub route: String,
    /// The evidence.
    pub evidence: String,
}

/// cuFile's own counters for one GPU (cuFileGetStatsL3).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CufileGpu {
    pub uuid: String,
    pub reads: CufileCalls,
    pub writes: CufileCalls,
}

/// cuFile's calls, by path. A long I/O may be several calls.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CufileCalls {
    pub bytes: u64,
    pub total: u64,
    /// PCI P2PDMA.
    pub p2p: u64,
    /// nvidia-fs.
    pub nvfs: u64,
    /// Compatibility mode.
    pub posix: u64,
    pub unaligned: u64,
    /// Routed over another GPU or host memory (dynamic routing).
    pub rerouted: u64,
    pub errors: u64,
}

/// Submissions of batches (cuFileGetStatsL3's first level).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CufileBatches {
    pub submitted: u64,
    pub p2p: u64,
    pub nvfs: u64,
    pub aio: u64,
    pub io_uring: u64,
    pub mixed: u64,
    /// Entries that went to the threads of the compatibility mode.
    pub posix_entries: u64,
}
