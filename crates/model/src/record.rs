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
use crate::schema::{record, Part};
use crate::series::{Point, PointPart};
use crate::stats::{self, Stop};
use crate::training::Training;
pub use cufile::{
    Cufile, CufileBatches, CufileCalls, CufileGpu, CufileProperties, CufileRoute, FabricEvent, FabricPath,
    FabricQueue, FabricRan, MappedRan,
};
pub use direction::Direction;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

pub const SCHEMA: &str = "forebay.run/1";

/// The tables of all parts that the engine measures, but for those of the parts `training`, `checkpoint` and `kvcache`.
pub const PARTS: &[Part] = &[
    JobSpec::PART,
    RunRecord::PART,
    Build::PART,
    Environment::PART,
    Gpu::PART,
    Drive::PART,
    Filesystem::PART,
    Job::PART,
    PathRan::PART,
    Trial::PART,
    CacheState::PART,
    RunResult::PART,
    FilesRead::PART,
    BatchResult::PART,
    QueryResult::PART,
    Unfinished::PART,
    Foretold::PART,
    Power::PART,
    Errors::PART,
    Noise::PART,
    Repeat::PART,
    Summary::PART,
    WorkerResult::PART,
    TargetResult::PART,
    GpuResult::PART,
    Warning::PART,
    FabricRan::PART,
    FabricPath::PART,
    FabricQueue::PART,
    FabricEvent::PART,
    MappedRan::PART,
    Cufile::PART,
    CufileProperties::PART,
    CufileRoute::PART,
    CufileGpu::PART,
    CufileCalls::PART,
    CufileBatches::PART,
    Direction::PART,
    LatencySummary::PART,
    Cpu::PART,
    Point::PART,
    PointPart::PART,
];

record! {
    pub struct RunRecord {
        /// `forebay.run/1`.
        pub schema: String = "text";
        /// 16 hexadecimal digits.
        pub id: String = "text";
        /// RFC 3339, UTC.
        pub started: String = "text";
        /// The command line as typed.
        pub command: Vec<String> = "list of texts";
        /// `measured`, `simulated` or `predicted`.
        pub origin: String = "text";
        /// The build that ran.
        pub forebay: Build = "object";
        /// The machine.
        pub environment: Environment = "object";
        /// What was requested.
        pub job: Job = "object";
        /// What ran.
        pub path: PathRan = "object";
        /// The contribution of the page cache.
        pub cache: CacheState = "object";
        /// cuFile's version, settings and counters; absent if the path doesn't use it.
        pub cufile: Option<Cufile> = "object" [skip_serializing_if = "Option::is_none"];
        /// The measurements.
        pub result: RunResult = "object";
        /// Emulated accelerators; absent if there were none. [records-training.md](records-training.md) has its fields.
        pub training: Option<Training> = "object" [skip_serializing_if = "Option::is_none"];
        /// Checkpoints written and read; absent from every other run. [checkpoint.md](checkpoint.md#the-record) says what
        /// it holds.
        pub checkpoint: Option<Checkpoint> = "object" [skip_serializing_if = "Option::is_none"];
        /// Samples that a loader handed out; absent from every other run. [feed.md](feed.md#measure-it) says what it holds.
        pub feed: Option<Feed> = "object" [skip_serializing_if = "Option::is_none"];
        /// A serving engine's key-value cache on storage; absent from every other run. [kvcache.md](kvcache.md#the-record)
        /// says what it holds.
        pub kvcache: Option<KvCache> = "object" [skip_serializing_if = "Option::is_none"];
        /// A model that was trained; absent from every other run. [train.md](train.md#the-record) says what it holds.
        pub train: Option<Map<String, Value>> = "object" [skip_serializing_if = "Option::is_none"];
        /// A model that answered queries; absent from every other run. [infer.md](infer.md#the-record) says what it holds.
        pub infer: Option<Map<String, Value>> = "object" [skip_serializing_if = "Option::is_none"];
        /// Full path of a null field → why it is null.
        pub missing: BTreeMap<String, String> = "object of texts";
        /// What makes a figure less reliable than it looks.
        pub warnings: Vec<Warning> = "list of objects";
    }
}

record! {
    pub struct Build {
        /// As shown by `forebay --version`.
        pub version: String = "text";
        /// Null in a build from an archive.
        pub commit: Option<String> = "text, or null";
        /// Built-in features, e.g. `uring`.
        pub features: Vec<String> = "list of texts";
    }
}

record! {
    pub struct Environment {
        /// Host name.
        pub host: String = "text";
        /// Distribution and its version.
        pub os: String = "text";
        /// Its release.
        pub kernel: String = "text";
        /// The processor's name.
        pub cpu: String = "text";
        /// Logical processors online.
        pub cores: u32 = "count";
        /// NUMA nodes.
        pub numa_nodes: u32 = "count";
        /// Of the machine.
        pub memory_bytes: u64 = "bytes";
        /// E.g. `KVM`; null on bare metal.
        pub virtualization: Option<String> = "text, or null";
        /// How the kernel sets the frequency of the first processor, e.g. `powersave`; null where it doesn't.
        pub governor: Option<String> = "text, or null";
        /// Two threads of one core are in use.
        pub smt: Option<bool> = "true or false, or null";
        /// Each GPU.
        pub gpus: Vec<Gpu> = "list of objects";
        /// Each drive under the targets.
        pub drives: Vec<Drive> = "list of objects";
        /// Of the first target; null where there is none.
        pub filesystem: Option<Filesystem> = "object, or null";
    }
}

record! {
    pub struct Gpu {
        /// Its number.
        pub index: u32 = "number";
        /// Its product name.
        pub name: String = "text";
        /// Its memory.
        pub memory_bytes: Option<u64> = "bytes, or null";
        /// Address on the bus.
        pub pci: Option<String> = "text, or null";
        /// The driver's version.
        pub driver: Option<String> = "text, or null";
    }
}

record! {
    pub struct Drive {
        /// Kernel name, e.g. `nvme0n1`.
        pub name: String = "text";
        /// As reported by the drive.
        pub model: Option<String> = "text, or null";
        /// As reported by the drive.
        pub serial: Option<String> = "text, or null";
        /// Its revision.
        pub firmware: Option<String> = "text, or null";
        /// Capacity.
        pub size_bytes: Option<u64> = "bytes, or null";
        /// `nvme`, `virtio`, `sata`, `md`, `dm`, `loop` …
        pub kind: String = "text";
        /// Whether it spins.
        pub rotational: Option<bool> = "true or false, or null";
        /// Address on the bus.
        pub pci: Option<String> = "text, or null";
        /// Current PCIe generation.
        pub pcie_gen: Option<u32> = "number, or null";
        /// Highest PCIe generation that it supports.
        pub pcie_gen_max: Option<u32> = "number, or null";
        /// Current number of PCIe lanes.
        pub pcie_width: Option<u32> = "lanes, or null";
        /// Most lanes that it supports.
        pub pcie_width_max: Option<u32> = "lanes, or null";
        /// NUMA node that it is attached to.
        pub numa_node: Option<i32> = "number, or null";
        /// The kernel's I/O scheduler for it.
        pub scheduler: Option<String> = "text, or null";
        /// The kernel splits larger I/Os.
        pub max_transfer_bytes: Option<u64> = "bytes, or null";
        /// Requests that the kernel queues for it.
        pub queue_requests: Option<u32> = "count, or null";
        /// As reported by the drive.
        pub temperature_c: Option<f64> = "°C, or null";
    }
}

record! {
    pub struct Filesystem {
        /// E.g. `ext4`.
        pub kind: String = "text";
        /// Where it is mounted.
        pub mount_point: String = "text";
        /// What is mounted.
        pub device: String = "text";
        /// Mount options in force.
        pub options: Vec<String> = "list of texts";
        /// Block size.
        pub block_bytes: Option<u64> = "bytes, or null";
        /// From statx(STATX_DIOALIGN); null if the kernel or file system doesn't report it.
        pub direct_memory_align: Option<u32> = "bytes, or null";
        /// Likewise, for offsets and lengths.
        pub direct_offset_align: Option<u32> = "bytes, or null";
        /// Free space available to this user.
        pub free_bytes: Option<u64> = "bytes, or null";
    }
}

record! {
    /// The job's settings, and values derived from them.
    pub struct Job {
        /// The sources joined by a space.
        pub source: String = "text";
        /// `sequential`, `random`, or `replayed` from a list.
        pub pattern: String = "text";
        /// O_DIRECT was used.
        pub direct: bool = "true or false";
        /// Bytes of all targets together.
        pub data_bytes: u64 = "bytes";
        /// Queues of all workers together.
        pub queues: u32 = "count";
        /// Its settings, which lie beside the others.
        pub spec: JobSpec = "" [flatten];
    }
}

record! {
    pub struct PathRan {
        /// As requested.
        pub requested: String = "text";
        /// The path that ran, as reported by its queues: `host`, `bounce`, `mapped`, `gds`; `gds-compat` or `gds-mixed`
        /// where cuFile's counters show its compatibility mode; several joined by `+`.
        pub ran: String = "text";
        /// Why this path ran, if it isn't the one requested or needs an explanation.
        pub reason: Option<String> = "text, or null";
        /// `uring`, `pread`, `inline`, `map`, `nil`, `model`, `nvme-tcp`, `nvme-rdma`, `vfio-user`; several joined by `+`.
        pub engine: String = "text";
        /// Kernel features in use: `fixed_files`, `fixed_buffers`, `defer_taskrun` …; `short_ring` if the locked-memory
        /// limit (`ulimit -l`) leaves no room for a ring as long as the depth.
        pub engine_features: Vec<String> = "list of texts";
        /// Data that went from storage to its destination without passing through another buffer in host memory.
        pub direct_bytes: u64 = "bytes", sum;
        /// Data that was copied by a CPU, or went through a bounce buffer, on the way.
        pub staged_bytes: u64 = "bytes", sum;
        /// Data that was read from a memory mapping.
        pub mapped_bytes: u64 = "bytes", sum;
        /// Data that cuFile moved in its compatibility mode, rerouted over another GPU or host memory, or not provably
        /// without either.
        pub compat_bytes: u64 = "bytes", sum;
        /// Data that was only copied once, by the kernel, between a socket and its destination.
        pub fabric_bytes: u64 = "bytes", sum;
        /// `host` or `gpu:N`.
        pub destination: String = "text";
        /// `hugetlb`, `thp`, `thp-partial` or `small`.
        pub slot_pages: String = "text";
        /// Size of all buffers together.
        pub slot_bytes: u64 = "bytes", sum;
        /// Buffers are pinned for the GPU.
        pub slots_pinned: bool = "true or false";
        /// Short runs before the measured time, from which path and workers were chosen.
        pub calibration: Vec<Trial> = "list of objects";
        /// What `mapped` registered; only present if it ran.
        pub mapped: Option<MappedRan> = "object" [skip_serializing_if = "Option::is_none"];
        /// Each namespace over NVMe/TCP or NVMe/RDMA and each emulated drive; only present if there is one.
        pub fabric: Vec<FabricRan> = "list of objects" [skip_serializing_if = "Vec::is_empty"], all;
    }
}

record! {
    /// One short run on the sources, outside the measured time.
    pub struct Trial {
        /// `bounce`, `mapped`, `gds` or `host`; several joined by `+` where targets differ.
        pub path: String = "text";
        /// `bypass` or `allow`; several joined by `+`.
        pub cache: String = "text";
        /// Threads of this trial.
        pub workers: u32 = "count";
        /// Throughput.
        pub gib_s: f64 = "GiB/s";
        /// CPU time.
        pub cpu_s_per_gib: Option<f64> = "CPU-s/GiB, or null";
    }
}

record! {
    pub struct CacheState {
        /// `bypass`, `drop`, `allow`, `warm`, `mixed` (bypassed for some files, used for others), `memory` (a file system
        /// that lives in memory) or `none`.
        pub policy: String = "text";
        /// Share of the data's pages in the page cache, 0 to 1, as the first repeat began: after `--cache drop` or `warm`.
        pub resident_before: Option<f64> = "share, 0 to 1, or null";
        /// The same after the run.
        pub resident_after: Option<f64> = "share, 0 to 1, or null";
        /// What the block devices delivered (or received) during the run; for several ranks on one host, each device counts
        /// once.
        pub device_bytes: Option<u64> = "bytes, or null";
        /// The same by the kernel's device name (`nvme0n1p2`); `HOST:NAME` if several hosts were merged.
        pub devices: BTreeMap<String, u64> = "bytes by name";
    }
}

record! {
    pub struct RunResult {
        /// Measured seconds of all repeats, excluding warm-up.
        pub seconds: f64 = "s", most;
        /// Payload that was moved.
        pub bytes: u64 = "bytes", sum;
        /// Completed I/Os.
        pub ios: u64 = "count", sum;
        /// The part of `bytes` that was read.
        pub read_bytes: u64 = "bytes", sum;
        /// The part of `bytes` that was written.
        pub write_bytes: u64 = "bytes", sum;
        /// `bytes` over `seconds`.
        pub throughput_gib_s: f64 = "GiB/s";
        /// `ios` over `seconds`.
        pub iops: f64 = "1/s";
        /// Its reads by themselves; absent, like `write` and `flush`, if there was none. Older records have none of these.
        pub read: Option<Direction> = "object" [skip_serializing_if = "Option::is_none"];
        /// Its writes by themselves.
        pub write: Option<Direction> = "object" [skip_serializing_if = "Option::is_none"];
        /// Its flushes (`--sync end`), which are none of `ios`.
        pub flush: Option<Direction> = "object" [skip_serializing_if = "Option::is_none"];
        /// Of each I/O, from submission (open loop: from its scheduled time) to completion, including those in flight at
        /// the end.
        pub latency_us: LatencySummary = "object, µs";
        /// I/Os that finished after the measured time: in `latency_us` and `histogram`, and in no other figure.
        pub late: u64 = "count", sum;
        /// I/Os that never completed.
        pub unfinished: Unfinished = "object";
        /// HdrHistogram V2 deflate-free (V2) encoding, base64; nanoseconds.
        pub histogram: String = "text";
        /// Time in the second stage (the copy) of `bounce`; null elsewhere.
        pub copy_latency_us: Option<LatencySummary> = "object, µs, or null";
        /// Requests that consist of several I/Os (`--batch`); absent if each I/O was a separate request.
        pub batch: Option<BatchResult> = "object" [skip_serializing_if = "Option::is_none"];
        /// Queries of dependent reads (`--pattern hops=…`); absent elsewhere.
        pub queries: Option<QueryResult> = "object" [skip_serializing_if = "Option::is_none"];
        /// Files that were read; absent unless a job that only reads has several, or reads whole ones.
        pub files: Option<FilesRead> = "object" [skip_serializing_if = "Option::is_none"];
        /// The prediction for the one modelled drive; null if none was used in real time, or none can be compared with the
        /// run.
        pub foretold: Option<Foretold> = "object, or null";
        /// CPU time and derived figures.
        pub cpu: Cpu = "object";
        /// One entry per meter and scope.
        pub power: Vec<Power> = "list of objects";
        /// Error counts.
        pub errors: Errors = "object";
        /// Disturbances that make a figure less reliable.
        pub noise: Noise = "object";
        /// The part of `bytes` that was compared with seeded content, or with the checksums that fio wrote, and correct;
        /// reads during warm-up are checked, too, but count in neither.
        pub verified_bytes: u64 = "bytes", sum;
        /// Where: `gpu:0` (in its memory, by a kernel), `host`; several joined by `+`. Null if nothing was compared.
        pub verified_on: Option<String> = "text, or null";
        /// Each repeat by itself.
        pub repeats: Vec<Repeat> = "list of objects";
        /// Over the repeats.
        pub summary: Summary = "object";
        /// A point per interval.
        pub series: Vec<Point> = "list of objects";
        /// One entry per worker.
        pub workers: Vec<WorkerResult> = "list of objects";
        /// One entry per target (file, stripe, device), in order.
        pub targets: Vec<TargetResult> = "list of objects", all;
        /// One entry per GPU that was fed; empty if the destination is host memory.
        pub gpus: Vec<GpuResult> = "list of objects", all;
        /// One entry per host of an MPI run.
        pub hosts: Vec<Value> = "list of objects";
        /// The run was stopped by a signal; the results cover the time until then.
        pub interrupted: bool = "true or false", any;
        /// Seconds from start at which `until_steady` found the run steady.
        pub steady_after_s: Option<f64> = "s, or null";
    }
}

record! {
    /// The files of a job that reads.
    pub struct FilesRead {
        /// Files of the job.
        pub found: u64 = "count", sum;
        /// Files of which something was read in the measured time.
        pub read: u64 = "count", sum;
        /// Files read from beginning to end; a file that was read N times counts N times, and one that was read in part
        /// counts as that part. Absent, like the rate, if files weren't read from beginning to end (`--whole-files`, or
        /// sequential reads without `--start`, `--skip` or `--file-size`).
        pub whole: Option<f64> = "count" [skip_serializing_if = "Option::is_none"];
        /// `whole` over the `seconds` of the result.
        pub files_per_s: Option<f64> = "1/s" [skip_serializing_if = "Option::is_none"];
    }
}

record! {
    /// Requests of several I/Os each.
    pub struct BatchResult {
        /// I/Os of each batch.
        pub ios: u32 = "count";
        /// Batches that completed in the measured time without a failed I/O, and weren't cut short by the end of a pass.
        pub count: u64 = "count", sum;
        /// From the start of the first I/O to the end of the last.
        pub latency_us: LatencySummary = "object, µs";
        /// In the same format as that of the result.
        pub histogram: String = "text";
        /// How their I/Os were combined: one kernel launch (`mapped`), one copy or launch for what was read together
        /// (`bounce`), a cuFile batch (`gds`), or separate I/Os.
        pub by: String = "text";
    }
}

record! {
    /// Queries that are dependent rounds of reads.
    pub struct QueryResult {
        /// Queries all of whose rounds ended in the measured time without a failed read.
        pub count: u64 = "count";
        /// `count` over the `seconds` of the result.
        pub per_s: f64 = "1/s";
        /// Bytes that each reads.
        pub bytes: u64 = "bytes";
        /// From the start of the first round to the end of the last.
        pub latency_us: LatencySummary = "object, µs";
        /// In the same format as that of the result.
        pub histogram: String = "text";
    }
}

impl RunRecord {
    /// Says `why` of each figure of the result that is null and has no reason yet. Lists have their own, and the summary and
    /// the repeats those of what they are made of.
    pub fn explain_nulls(&mut self, why: &str) {
        fn visit(value: &Value, path: &str, found: &mut Vec<String>) {
            match value {
                Value::Null => found.push(path.into()),
                Value::Object(fields) if path != "result.summary" => {
                    fields.iter().for_each(|(name, value)| visit(value, &format!("{path}.{name}"), found));
                }
                _ => {}
            }
        }
        let mut nulls = Vec::new();
        visit(&serde_json::to_value(&self.result).unwrap_or_default(), "result", &mut nulls);
        for field in nulls {
            self.missing.entry(field).or_insert_with(|| why.into());
        }
    }
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

record! {
    /// I/Os that were in flight, or due, when the measured time ended, and never completed. Latency counts each as completed
    /// when it was given up, which is less than it really took.
    pub struct Unfinished {
        /// I/Os that never completed.
        pub count: u64 = "count", sum;
        /// How long the oldest had waited; 0 if there is none.
        pub oldest_s: f64 = "s", most;
    }
}

impl Unfinished {
    pub fn sum<'a>(parts: impl Iterator<Item = &'a Unfinished>) -> Unfinished {
        Unfinished::merged(&parts.collect::<Vec<_>>())
    }
}

record! {
    /// A modelled drive in virtual time, for the job that it ran in real time.
    pub struct Foretold {
        /// I/Os per second; in an open loop no more than requested.
        pub iops: f64 = "1/s", sum;
        /// The same in bytes.
        pub throughput_gib_s: f64 = "GiB/s", sum;
        /// Deviation of the run's IOPS from it; below 0 the run was slower.
        pub off_pct: f64 = "%";
    }
}

record! {
    pub struct Power {
        /// `rapl`, `nvml`, `ipmi` or `redfish`.
        pub source: String = "text";
        /// What it covers: `package-0`, `gpu:0`, `server`.
        pub scope: String = "text";
        /// Energy over the measured time.
        pub watts_mean: f64 = "W";
        /// Energy per GiB moved.
        pub joules_per_gib: Option<f64> = "J/GiB, or null";
        /// Readings.
        pub samples: u32 = "count";
    }
}

record! {
    /// Errors are counted, never hidden.
    pub struct Errors {
        /// I/Os that moved less than requested and were continued.
        pub short: u64 = "count", sum;
        /// Retried I/Os.
        pub retried: u64 = "count", sum;
        /// I/Os that failed.
        pub failed: u64 = "count", sum;
        /// I/Os unfinished after `timeout_s`.
        pub timed_out: u64 = "count", sum;
        /// I/Os that O_DIRECT refused for their alignment.
        pub misaligned: u64 = "count", sum;
        /// I/Os with wrong content.
        pub verify_failed: u64 = "count", sum;
        /// The first few, as text.
        pub examples: Vec<String> = "list of texts";
    }
}

impl Errors {
    const EXAMPLES_MAX: usize = 5;

    /// The counts added up, and the first few examples.
    pub fn sum<'a>(parts: impl Iterator<Item = &'a Errors>) -> Errors {
        let parts: Vec<&Errors> = parts.collect();
        let examples =
            parts.iter().flat_map(|e| e.examples.iter().cloned()).take(Self::EXAMPLES_MAX).collect();
        Errors { examples, ..Errors::merged(&parts) }
    }
}

record! {
    /// Disturbances that make a figure less reliable than it looks.
    pub struct Noise {
        /// Percentage of CPU time that the hypervisor took.
        pub steal_pct: Option<f64> = "%, or null", most;
        /// As in `cpu`.
        pub others_cores_busy: Option<f64> = "cores, or null";
        /// Throttle events that the CPU counted during the run.
        pub throttled: Option<u64> = "count, or null";
        /// Coefficient of variation of the series, in per cent.
        pub series_cv_pct: Option<f64> = "%, or null", most;
        /// Time in which the process was suspended: stopped by a signal, frozen, or paused with its virtual machine. In
        /// rates, not in latencies ([meters](meters.md#standstills)).
        pub stood_still_s: Option<f64> = "s, or null", most;
        /// The tightest CPU limit of the process's control groups.
        pub cpu_limit_cores: Option<f64> = "cores, or null", least;
        /// Share of the scheduler's periods in which that limit held the process back.
        pub cpu_limited_pct: Option<f64> = "%, or null", most;
    }
}

record! {
    pub struct Repeat {
        /// As in `result`, of this repeat.
        pub seconds: f64 = "s", most;
        /// As in `result`, of this repeat.
        pub bytes: u64 = "bytes", sum;
        /// As in `result`, of this repeat.
        pub ios: u64 = "count", sum;
        /// As in `result`, of this repeat.
        pub throughput_gib_s: f64 = "GiB/s";
        /// As in `result`, of this repeat.
        pub iops: f64 = "1/s";
        /// As in `result`, of this repeat.
        pub read: Option<Direction> = "object" [skip_serializing_if = "Option::is_none"];
        /// As in `result`, of this repeat.
        pub write: Option<Direction> = "object" [skip_serializing_if = "Option::is_none"];
        /// As in `result`, of this repeat.
        pub flush: Option<Direction> = "object" [skip_serializing_if = "Option::is_none"];
        /// As in `result`, of this repeat.
        pub latency_us: LatencySummary = "object, µs";
        /// As in `result`, of this repeat.
        pub cpu: Cpu = "object";
        /// As in `result`, of this repeat.
        pub power: Vec<Power> = "list of objects";
        /// As in `result`, of this repeat.
        pub noise: Noise = "object";
    }
}

record! {
    /// Over the repeats. Intervals are 95 %, by Student's t, and null under two repeats.
    pub struct Summary {
        /// Median.
        pub throughput_gib_s_median: f64 = "GiB/s";
        /// Slowest repeat.
        pub throughput_gib_s_min: f64 = "GiB/s";
        /// Fastest repeat.
        pub throughput_gib_s_max: f64 = "GiB/s";
        /// Standard deviation.
        pub throughput_gib_s_sd: Option<f64> = "GiB/s, or null";
        /// Two numbers: the 95 % interval of the mean, by Student's t; with `--until-ci`, which ends when the interval is
        /// narrow, it is computed at 98 %, so that its actual coverage is 95 %.
        pub throughput_gib_s_ci95: Option<[f64; 2]> = "GiB/s, or null";
        /// Median.
        pub cpu_s_per_gib_median: Option<f64> = "CPU-seconds per GiB, or null";
    }
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

record! {
    pub struct WorkerResult {
        /// From 0.
        pub worker: u32 = "number";
        /// The CPU that it was pinned to; null: none.
        pub cpu: Option<u32> = "number, or null";
        /// The GPU that it feeds; null if the destination is host memory.
        pub gpu: Option<u32> = "number, or null";
        /// The NUMA node that it was kept on: the requested one, or its GPU's; null if it could run anywhere.
        pub numa: Option<u32> = "number, or null";
        /// Bytes that it moved.
        pub bytes: u64 = "bytes";
        /// I/Os that it completed.
        pub ios: u64 = "count";
        /// Percentile of its I/Os.
        pub latency_us_p50: f64 = "µs";
        /// Percentile of its I/Os.
        pub latency_us_p99: f64 = "µs";
    }
}

record! {
    pub struct TargetResult {
        /// As named.
        pub target: String = "text";
        /// Its path, named as in `path.ran`.
        pub path: String = "text";
        /// `bypass` or `allow`: whether its files were opened with O_DIRECT.
        pub cache: Option<String> = "text, or null";
        /// Sources of a stripe, including those of nested stripes; 0 for any other target.
        pub members: u32 = "count";
        /// Bytes moved from or to it.
        pub bytes: u64 = "bytes";
        /// I/Os completed on it.
        pub ios: u64 = "count";
    }
}

record! {
    pub struct GpuResult {
        /// Its number according to the driver.
        pub gpu: u32 = "number";
        /// Bytes moved by the workers that feed it.
        pub bytes: u64 = "bytes";
        /// I/Os that they completed.
        pub ios: u64 = "count";
        /// `bytes` over the seconds of the run.
        pub throughput_gib_s: f64 = "GiB/s";
    }
}

record! {
    /// A reason not to rely on the numbers as they are.
    pub struct Warning {
        /// One of the identifiers below, or one that says how a run differs from what a file requested (`left_out`,
        /// `scaled`, `together`, `ended_by`).
        pub id: String = "text";
        /// What is wrong.
        pub text: String = "text";
        /// What to do about it, given what was typed.
        pub next: String = "text";
    }
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
