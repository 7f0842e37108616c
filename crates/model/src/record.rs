//! The record of one run: schema `forebay.run/1`.
//!
//! A field that couldn't be measured is null, and `missing` says why: never 0. A field that a file lacks, because an older
//! version wrote it, has its default when it is read, and `missing` says so.
//! Reports, plans and comparisons are pure functions of these records.

mod cufile;
mod direction;

use crate::checkpoint::Checkpoint;
use crate::cpu::Cpu;
use crate::feed::Feed;
use crate::histogram::LatencySummary;
use crate::job::JobSpec;
use crate::kvcache::KvCache;
use crate::series::Point;
use crate::stats::{self, Stop};
use crate::training::Training;
pub use cufile::{
    Cufile, CufileBatches, CufileCalls, CufileGpu, CufileProperties, CufileRoute, FabricEvent, FabricPath,
    FabricQueue, FabricRan, MappedRan,
};
pub use direction::Direction;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

pub const SCHEMA: &str = "forebay.run/1";

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunRecord {
    pub schema: String,
    /// 16 hexadecimal digits.
    pub id: String,
    /// RFC 3339, UTC.
    pub started: String,
    /// The command line as typed.
    pub command: Vec<String>,
    /// `measured`, `simulated` or `predicted`.
    pub origin: String,
    pub forebay: Build,
    pub environment: Environment,
    pub job: Job,
    pub path: PathRan,
    pub cache: CacheState,
    /// cuFile's version, settings and counters; absent if the path doesn't use it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cufile: Option<Cufile>,
    pub result: RunResult,
    /// Emulated accelerators; absent if there were none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub training: Option<Training>,
    /// Checkpoints written and read; absent from every other run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoint>,
    /// Samples that a loader handed out; absent from every other run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub feed: Option<Feed>,
    /// A serving engine's key-value cache on storage; absent from every other run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kvcache: Option<KvCache>,
    /// A model that was trained. The command that ran it says what it holds; the engine keeps it as it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train: Option<Map<String, Value>>,
    /// A model that answered queries, kept likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub infer: Option<Map<String, Value>>,
    /// Full path of a null field → why it is null.
    pub missing: BTreeMap<String, String>,
    pub warnings: Vec<Warning>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Build {
    pub version: String,
    pub commit: Option<String>,
    /// Built-in features, e.g. `uring`.
    pub features: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Environment {
    pub host: String,
    pub os: String,
    pub kernel: String,
    pub cpu: String,
    /// Logical processors online.
    pub cores: u32,
    pub numa_nodes: u32,
    pub memory_bytes: u64,
    pub virtualization: Option<String>,
    /// How the kernel sets the frequency of the first processor, such as `powersave`.
    pub governor: Option<String>,
    /// Whether two threads of one core are in use.
    pub smt: Option<bool>,
    pub gpus: Vec<Gpu>,
    pub drives: Vec<Drive>,
    pub filesystem: Option<Filesystem>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Gpu {
    pub index: u32,
    pub name: String,
    pub memory_bytes: Option<u64>,
    pub pci: Option<String>,
    pub driver: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Drive {
    /// Kernel name, e.g. `nvme0n1`.
    pub name: String,
    pub model: Option<String>,
    pub serial: Option<String>,
    pub firmware: Option<String>,
    pub size_bytes: Option<u64>,
    /// `nvme`, `virtio`, `sata`, `md`, `dm`, `loop` …
    pub kind: String,
    pub rotational: Option<bool>,
    pub pci: Option<String>,
    /// Current PCIe generation.
    pub pcie_gen: Option<u32>,
    pub pcie_gen_max: Option<u32>,
    pub pcie_width: Option<u32>,
    pub pcie_width_max: Option<u32>,
    pub numa_node: Option<i32>,
    pub scheduler: Option<String>,
    pub max_transfer_bytes: Option<u64>,
    pub queue_requests: Option<u32>,
    pub temperature_c: Option<f64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Filesystem {
    pub kind: String,
    pub mount_point: String,
    pub device: String,
    pub options: Vec<String>,
    pub block_bytes: Option<u64>,
    /// From statx(STATX_DIOALIGN); null if the kernel or file system doesn't report it.
    pub direct_memory_align: Option<u32>,
    pub direct_offset_align: Option<u32>,
    pub free_bytes: Option<u64>,
}

/// The job's settings, and values derived from them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Job {
    /// The sources joined by a space.
    pub source: String,
    /// `sequential` or `random`.
    pub pattern: String,
    /// O_DIRECT was used.
    pub direct: bool,
    /// Bytes of all targets together.
    pub data_bytes: u64,
    /// Queues of all workers together.
    pub queues: u32,
    #[serde(flatten)]
    pub spec: JobSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PathRan {
    pub requested: String,
    pub ran: String,
    /// Why this path ran, if it isn't the one requested or needs an explanation.
    pub reason: Option<String>,
    /// `uring`, `pread`, `inline`, `map`, `nil`, `model`, `nvme-tcp`; several joined by `+`.
    pub engine: String,
    /// Kernel features in use: `fixed_files`, `fixed_buffers`, `defer_taskrun` …
    pub engine_features: Vec<String>,
    /// Bytes that went from storage to their destination without passing through another buffer in host memory.
    pub direct_bytes: u64,
    /// Bytes that were copied by a CPU, or went through a bounce buffer, on the way.
    pub staged_bytes: u64,
    /// Bytes that were read from a memory mapping.
    pub mapped_bytes: u64,
    /// Bytes that cuFile moved in its compatibility mode, rerouted over another GPU or host memory, or not provably without
    /// either.
    pub compat_bytes: u64,
    /// Bytes that were only copied once, by the kernel, between a socket and their destination.
    pub fabric_bytes: u64,
    /// `host` or `gpu:N`.
    pub destination: String,
    /// `hugetlb`, `thp`, `thp-partial` or `small`.
    pub slot_pages: String,
    pub slot_bytes: u64,
    /// Buffers are pinned for the GPU.
    pub slots_pinned: bool,
    /// Short runs before the measured time, from which path and workers were chosen.
    pub calibration: Vec<Trial>,
    /// Registrations by `mapped`; only present if it ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mapped: Option<MappedRan>,
    /// Each remote namespace and emulated drive; only present if there is one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fabric: Vec<FabricRan>,
}

/// One short run on the sources, outside the measured time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Trial {
    /// `bounce`, `mapped`, `gds` or `host`; several joined by `+` where targets differ.
    pub path: String,
    /// Page-cache policy: `bypass` or `allow`; several joined by `+`.
    pub cache: String,
    pub workers: u32,
    pub gib_s: f64,
    pub cpu_s_per_gib: Option<f64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheState {
    /// `bypass`, `drop`, `allow`, `warm`, `memory` (a file system that lives in memory) or `none`.
    pub policy: String,
    /// Share of the data's pages in the page cache, 0 to 1, as the first repeat began: after `--cache drop` or `warm`.
    pub resident_before: Option<f64>,
    pub resident_after: Option<f64>,
    /// Bytes that the block devices delivered (or received) during the run.
    pub device_bytes: Option<u64>,
    /// The same by the kernel's name of the device (`nvme0n1p2`), `HOST:NAME` if several hosts were merged.
    pub devices: BTreeMap<String, u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunResult {
    /// Measured seconds of all repeats, excluding warm-up.
    pub seconds: f64,
    pub bytes: u64,
    pub ios: u64,
    pub read_bytes: u64,
    pub write_bytes: u64,
    pub throughput_gib_s: f64,
    pub iops: f64,
    /// Absent, like the next two, if nothing went this way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read: Option<Direction>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write: Option<Direction>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flush: Option<Direction>,
    /// From the start of an I/O (in an open loop: from when it was due) to its completion.
    pub latency_us: LatencySummary,
    /// I/Os that finished after the measured time: in latency and histogram, in no other figure.
    pub late: u64,
    pub unfinished: Unfinished,
    /// HdrHistogram V2 deflate-free (V2) encoding, base64; nanoseconds.
    pub histogram: String,
    /// Time in the second stage (the copy) of `bounce`; null elsewhere.
    pub copy_latency_us: Option<LatencySummary>,
    /// Requests of several I/Os (`--batch`); absent if each I/O was a separate request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<BatchResult>,
    /// Queries of dependent reads (`--pattern hops=…`); absent elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queries: Option<QueryResult>,
    /// Files that were read, where a job has several; absent elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files: Option<FilesRead>,
    /// Prediction for the one modelled drive in real time.
    pub foretold: Option<Foretold>,
    pub cpu: Cpu,
    pub power: Vec<Power>,
    pub errors: Errors,
    pub noise: Noise,
    pub verified_bytes: u64,
    /// Place where content was compared: `gpu:0` (in its memory, by a kernel), `host`; null if nothing was.
    pub verified_on: Option<String>,
    pub repeats: Vec<Repeat>,
    pub summary: Summary,
    pub series: Vec<Point>,
    /// One entry per worker.
    pub workers: Vec<WorkerResult>,
    /// One entry per target (file, stripe, device), in order.
    pub targets: Vec<TargetResult>,
    /// One entry per GPU that was fed; empty if the destination is host memory.
    pub gpus: Vec<GpuResult>,
    /// One entry per host of an MPI run.
    pub hosts: Vec<Value>,
    /// The run was stopped by a signal; what was measured up to then is kept.
    pub interrupted: bool,
    /// Seconds from start at which `until_steady` found the run steady.
    pub steady_after_s: Option<f64>,
}

/// The files of a job that reads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FilesRead {
    /// Files of the job.
    pub found: u64,
    /// Those of which something was read.
    pub read: u64,
    /// Files read from beginning to end, one that was read N times N times, and of one read in part that part. Absent,
    /// like the rate, if files weren't read so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub whole: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files_per_s: Option<f64>,
}

/// Requests of several I/Os each.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BatchResult {
    /// I/Os of each.
    pub ios: u32,
    /// Complete batches that ended in the measured time without a failed I/O.
    pub count: u64,
    /// From the start of the first I/O to the end of the last.
    pub latency_us: LatencySummary,
    /// As `RunResult::histogram`.
    pub histogram: String,
    /// Combination of their I/Os, as text.
    pub by: String,
}

/// Queries that are dependent rounds of reads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct QueryResult {
    /// Queries all of whose rounds ended in the measured time without a failed read.
    pub count: u64,
    pub per_s: f64,
    /// Of each query.
    pub bytes: u64,
    /// From the start of the first round to the end of the last.
    pub latency_us: LatencySummary,
    /// As `RunResult::histogram`.
    pub histogram: String,
}

impl QueryResult {
    pub fn from_latency(latency: &crate::Latency, bytes: u64, seconds: f64) -> QueryResult {
        QueryResult {
            count: latency.count(),
            per_s: if seconds > 0.0 { latency.count() as f64 / seconds } else { 0.0 },
            bytes,
            latency_us: latency.summary(),
            histogram: latency.encode(),
        }
    }
}

/// I/Os that were in flight, or due, when the measured time ended, and never completed. Latency counts each as completed
/// when it was given up, which is less than it really took.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Unfinished {
    pub count: u64,
    /// Seconds that the oldest had waited; 0 if there is none.
    pub oldest_s: f64,
}

impl Unfinished {
    pub fn sum<'a>(parts: impl Iterator<Item = &'a Unfinished>) -> Unfinished {
        parts.fold(Unfinished::default(), |all, u| Unfinished {
            count: all.count + u.count,
            oldest_s: all.oldest_s.max(u.oldest_s),
        })
    }
}

/// A modelled drive in virtual time, for the job that it ran in real time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Foretold {
    pub iops: f64,
    pub throughput_gib_s: f64,
    /// Deviation of the run from it, in per cent; below 0 the run was slower.
    pub off_pct: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Power {
    /// `rapl`, `nvml`, `ipmi` or `redfish`.
    pub source: String,
    /// Scope of the meter: `package-0`, `gpu:0`, `server`.
    pub scope: String,
    pub watts_mean: f64,
    pub joules_per_gib: Option<f64>,
    pub samples: u32,
}

/// Errors are counted, never hidden.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Errors {
    pub short: u64,
    pub retried: u64,
    pub failed: u64,
    pub timed_out: u64,
    pub misaligned: u64,
    pub verify_failed: u64,
    /// Messages of the first few.
    pub examples: Vec<String>,
}

impl Errors {
    const EXAMPLES_MAX: usize = 5;

    /// The counts added up, and the first few examples.
    pub fn sum<'a>(parts: impl Iterator<Item = &'a Errors>) -> Errors {
        parts.fold(Errors::default(), |mut all, e| {
            all.short += e.short;
            all.retried += e.retried;
            all.failed += e.failed;
            all.timed_out += e.timed_out;
            all.misaligned += e.misaligned;
            all.verify_failed += e.verify_failed;
            all.examples.extend(e.examples.iter().cloned());
            all.examples.truncate(Self::EXAMPLES_MAX);
            all
        })
    }
}

/// Disturbances that make a figure less reliable than it looks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Noise {
    /// Percentage of CPU time that the hypervisor took.
    pub steal_pct: Option<f64>,
    pub others_cores_busy: Option<f64>,
    /// Throttle events that the CPU counted during the run.
    pub throttled: Option<u64>,
    /// Coefficient of variation of the series, in per cent.
    pub series_cv_pct: Option<f64>,
    /// Seconds in which the process was suspended: stopped by a signal, frozen, or paused with its virtual machine.
    #[serde(default)]
    pub stood_still_s: Option<f64>,
    /// Cores that the control groups of the process grant it.
    #[serde(default)]
    pub cpu_limit_cores: Option<f64>,
    /// Per cent of the scheduler's periods in which that limit held the process back.
    #[serde(default)]
    pub cpu_limited_pct: Option<f64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Repeat {
    pub seconds: f64,
    pub bytes: u64,
    pub ios: u64,
    pub throughput_gib_s: f64,
    pub iops: f64,
    /// As `RunResult::read`, without a histogram.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read: Option<Direction>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write: Option<Direction>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flush: Option<Direction>,
    pub latency_us: LatencySummary,
    pub cpu: Cpu,
    pub power: Vec<Power>,
    pub noise: Noise,
}

/// Over the repeats. Intervals are 95 %, by Student's t, and null under two repeats.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Summary {
    pub throughput_gib_s_median: f64,
    pub throughput_gib_s_min: f64,
    pub throughput_gib_s_max: f64,
    pub throughput_gib_s_sd: Option<f64>,
    pub throughput_gib_s_ci95: Option<[f64; 2]>,
    pub cpu_s_per_gib_median: Option<f64>,
}

impl Summary {
    /// Of the repeats of one job, which ended by `stop`. No repeats: all zero or None.
    pub fn from_repeats(repeats: &[Repeat], stop: Stop) -> Summary {
        if repeats.is_empty() {
            return Summary::default();
        }
        let rates: Vec<f64> = repeats.iter().map(|r| r.throughput_gib_s).collect();
        let costs: Vec<f64> = repeats.iter().filter_map(|r| r.cpu.cpu_s_per_gib).collect();
        Summary {
            throughput_gib_s_median: stats::median(&rates),
            throughput_gib_s_min: rates.iter().copied().fold(f64::INFINITY, f64::min),
            throughput_gib_s_max: rates.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            throughput_gib_s_sd: stats::sd(&rates),
            throughput_gib_s_ci95: stats::ci95(&rates, stop),
            cpu_s_per_gib_median: (!costs.is_empty()).then(|| stats::median(&costs)),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerResult {
    pub worker: u32,
    pub cpu: Option<u32>,
    /// The GPU that it feeds; null if the destination is host memory.
    pub gpu: Option<u32>,
    /// The NUMA node that it was kept on; null if it could run anywhere.
    pub numa: Option<u32>,
    pub bytes: u64,
    pub ios: u64,
    pub latency_us_p50: f64,
    pub latency_us_p99: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TargetResult {
    pub target: String,
    /// Its path.
    pub path: String,
    /// `bypass` or `allow`, for a file.
    pub cache: Option<String>,
    /// Sources of a stripe, including those of nested stripes; 0 for any other target.
    pub members: u32,
    pub bytes: u64,
    pub ios: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuResult {
    pub gpu: u32,
    pub bytes: u64,
    pub ios: u64,
    pub throughput_gib_s: f64,
}

/// A reason not to rely on the numbers as they are.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Warning {
    /// `too_short`, `noisy`, `cached`, `throttled`, `scaled`, `simulated`, `interrupted` …
    pub id: String,
    pub text: String,
    /// Advice about it.
    pub next: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_keeps_what_is_missing_missing() {
        let repeat = |rate, cost| Repeat {
            throughput_gib_s: rate,
            cpu: Cpu { cpu_s_per_gib: cost, ..Cpu::default() },
            ..Repeat::default()
        };
        let one = Summary::from_repeats(&[repeat(2.0, None)], Stop::Counted);
        assert_eq!((one.throughput_gib_s_median, one.throughput_gib_s_sd), (2.0, None));
        assert_eq!((one.throughput_gib_s_ci95, one.cpu_s_per_gib_median), (None, None));
        let three = Summary::from_repeats(
            &[repeat(1.0, Some(0.1)), repeat(3.0, None), repeat(2.0, Some(0.3))],
            Stop::Counted,
        );
        assert_eq!((three.throughput_gib_s_min, three.throughput_gib_s_max), (1.0, 3.0));
        assert_eq!(three.throughput_gib_s_sd, Some(1.0));
        assert_eq!(three.cpu_s_per_gib_median, Some(0.2));
        assert_eq!(Summary::from_repeats(&[], Stop::Counted), Summary::default());
    }
}
