//! One job: what to move, how, and for how long. The same fields stand on the
//! command line, in a sweep's TOML, in `compare --a`, and in every record.

mod check;
mod cufile;
mod offsets;
mod path;

pub use cufile::CuFileMode;
pub use offsets::{Distribution, IoMix, SizeShare, Zone};
pub use path::PathKind;

use crate::Error;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    Read,
    Write,
    RandRead,
    RandWrite,
}

impl Op {
    pub fn is_random(self) -> bool {
        matches!(self, Op::RandRead | Op::RandWrite)
    }

    pub fn is_write(self) -> bool {
        matches!(self, Op::Write | Op::RandWrite)
    }
}

/// How a `file:` source talks to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// Chosen per file: io_uring, else a pread pool; data in memory is read inline.
    Auto,
    /// io_uring with registered files and buffers.
    Uring,
    /// Threads that call pread and pwrite.
    Pread,
    /// preadv2/pwrite on the worker's own thread.
    Inline,
    /// Copies out of a mapping of the file.
    Map,
}

impl Engine {
    /// Each I/O ends where it is submitted.
    pub fn is_inline(self) -> bool {
        matches!(self, Engine::Map | Engine::Inline)
    }
}

/// What the page cache may do for this job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cache {
    /// Per file, by what was found in it before the run: through it where the file is cached, past it where not.
    Auto,
    /// O_DIRECT.
    Bypass,
    /// Buffered I/O; the files' pages are dropped before each repeat.
    Drop,
    /// Buffered I/O over whatever is cached.
    Allow,
    /// Buffered I/O; the files are read into the cache first.
    Warm,
}

/// Who said how many workers there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkersFrom {
    /// `workers` is what was asked for.
    #[default]
    Given,
    /// Nobody: one, or as for `auto` where the job feeds a GPU through host memory.
    Default,
    /// A short calibration on the sources finds `workers`.
    Auto,
}

/// Which pages the slots should lie in. A record says which they got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pages {
    /// hugetlb, else transparent huge pages, else small.
    Auto,
    Hugetlb,
    Thp,
    Small,
}

/// How the I/Os of an open loop follow on each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arrivals {
    /// At equal distances.
    #[default]
    Even,
    /// At distances that are exponentially distributed around the mean.
    Poisson,
}

/// Durability of writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sync {
    None,
    /// One fdatasync per file when the measured time ends, inside it.
    End,
    /// Every write is durable when it completes (RWF_DSYNC).
    Each,
}

/// A job as asked for. Sizes in bytes, times in seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JobSpec {
    /// Source URIs: a path, `file:`, `stripe:?chunk=512k&m=A&m=B`, `nil:`, `model:NAME`.
    pub sources: Vec<String>,
    pub path: PathKind,
    pub op: Op,
    /// Share of reads in a mixed job, in per cent. None: `op` alone.
    pub read_pct: Option<u8>,
    /// Bytes per I/O. With `io_bytes_max`, the least.
    pub io_bytes: u64,
    /// Sizes are drawn uniformly from io_bytes, io_bytes + io_bytes_step, … io_bytes_max.
    pub io_bytes_max: Option<u64>,
    pub io_bytes_step: Option<u64>,
    /// Sizes and their shares, `4k=60,64k=40`, or for reads and writes each, `4k=1/64k=1`. It settles the three above.
    pub io_mix: Option<String>,
    /// Of each file, the size of what is made, and the most that is read. None: as found, 1 GiB where made.
    pub file_bytes: Option<u64>,
    /// Missing files are made, also for a read. A write makes them anyway.
    pub create: bool,
    /// Files in a directory. None: all that a read finds, one per worker where they are made.
    pub files: Option<u32>,
    /// Name of file number N in a directory; `%d` stands for N.
    pub file_name: String,
    /// First byte of the sources that is used.
    pub start_bytes: u64,
    /// Worker N starts N times so many bytes later, with `clones`.
    pub start_step_bytes: u64,
    /// After each sequential I/O so many bytes are passed over; below 0: gone back from its end.
    pub skip_bytes: i64,
    /// `skip_bytes` are passed over after so many bytes. None: after each I/O.
    pub skip_every_bytes: Option<u64>,
    /// Random offsets need not be multiples of the I/O size, only of this. None: the I/O size.
    pub align_bytes: Option<u64>,
    /// Threads. Each owns its queues and `depth` slots.
    pub workers: u32,
    /// `given`, `default` or `auto`: who said how many workers.
    pub workers_from: WorkersFrom,
    /// Each worker covers all of the data, in place of a part of it.
    pub clones: bool,
    /// I/Os in flight per worker.
    pub depth: u32,
    /// I/Os that are one request, as the rows of a batch: they start together, and it ends with the last of them. None: each
    /// is one.
    pub batch: Option<u32>,
    /// Measured seconds. None: 10 s where no pass or limit ends the run.
    pub duration_s: Option<f64>,
    /// Stop after the data was covered this many times.
    pub passes: Option<u32>,
    /// Stop once each worker has started I/Os of so many bytes.
    pub limit_bytes: Option<u64>,
    /// Stop once each worker has started so many I/Os.
    pub limit_ios: Option<u64>,
    /// Seconds before measuring. None: a tenth of the duration, 2 s at most; 0 with `passes` or a limit.
    pub warmup_s: Option<f64>,
    /// `uniform`, `zipf:THETA` with 0 < THETA < 3, `zoned:IOS/DATA,…`, `list:BLOCK,…` or `list+:BLOCK,…`.
    pub distribution: String,
    /// Random offsets are a permutation: no block twice in a pass.
    pub no_repeat: bool,
    pub seed: u64,
    /// Runs of the same job; the record holds each and their summary.
    pub repeat: u32,
    /// Repeat until the 95 % interval of the mean throughput is within this per cent.
    pub until_ci_pct: Option<f64>,
    /// Bound on the repeats of `until_ci_pct`.
    pub repeat_max: u32,
    /// End each run once throughput is steady (or at `duration_s`).
    pub until_steady: bool,
    /// Open loop: I/Os start on schedule at this rate and latency counts from the schedule.
    pub rate_gib_s: Option<f64>,
    pub rate_iops: Option<f64>,
    /// `even` or `poisson`: how the I/Os of an open loop follow on each other.
    pub arrivals: Arrivals,
    /// Each worker pauses for so many seconds, once its I/Os in flight have ended.
    pub think_s: Option<f64>,
    /// I/Os from one pause to the next. None: 1.
    pub think_ios: Option<u32>,
    /// CPUs to pin workers to, in turn: `0-3,8`.
    pub cpus: Option<String>,
    /// NUMA node for threads and memory.
    pub numa: Option<u32>,
    pub cache: Cache,
    pub engine: Engine,
    pub pages: Pages,
    pub sqpoll: bool,
    pub iopoll: bool,
    pub sync: Sync,
    /// Check every byte read against seeded content (and write that content).
    pub verify: bool,
    /// Fill write buffers anew, from the seed, for each write.
    pub refill: bool,
    /// An I/O unfinished after this many seconds fails the run.
    pub timeout_s: f64,
    /// Files that may be overwritten though Forebay didn't make them.
    pub overwrite: Vec<String>,
    /// Block devices that may be overwritten.
    pub overwrite_devices: Vec<String>,
    /// GPUs to feed; empty: GPU 0 if the path needs one and there is one.
    pub gpus: Vec<u32>,
    /// `GPU=SOURCE`, in place of sources: workers are divided over the pairs, and each reads only its pair's
    /// source into its pair's GPU.
    pub pairs: Vec<String>,
    /// Anything but direct DMA is an error.
    pub require_direct: bool,
    /// A modelled drive in real time must keep its own law to within 5 %.
    pub require_model: bool,
    /// cuFile's compatibility mode is acceptable.
    pub allow_compat: bool,
    /// Bytes of the page cache that `mapped` may keep registered. None: half of the memory that is free.
    pub pin_limit_bytes: Option<u64>,
    /// Which of cuFile's interfaces `gds` calls.
    pub cufile: CuFileMode,
    /// I/Os per batch. None: half of `depth`, so that two are in flight.
    pub cufile_batch: Option<u32>,
    /// Leave buffers unregistered with cuFile, which then goes through its own.
    pub cufile_unregistered: bool,
    /// Power meters: `rapl`, `nvml`, `ipmi`, `redfish:HOST`. Empty: whatever answers locally.
    pub power: Vec<String>,
    /// Milliseconds between points of the time series.
    pub interval_ms: u32,
    /// Faults to inject (tests): `seed=1,error=0.01,short=0.01,delay_us=100,reorder=1`.
    pub faults: Option<String>,
    /// Free text kept in the record.
    pub label: Option<String>,
}

impl Default for JobSpec {
    fn default() -> Self {
        JobSpec {
            sources: Vec::new(),
            path: PathKind::Host,
            op: Op::Read,
            read_pct: None,
            io_bytes: 1 << 20,
            io_bytes_max: None,
            io_bytes_step: None,
            io_mix: None,
            file_bytes: None,
            create: false,
            files: None,
            file_name: FILE_NAME_DEFAULT.into(),
            start_bytes: 0,
            start_step_bytes: 0,
            skip_bytes: 0,
            skip_every_bytes: None,
            align_bytes: None,
            workers: 1,
            workers_from: WorkersFrom::Given,
            clones: false,
            depth: 8,
            batch: None,
            duration_s: None,
            passes: None,
            limit_bytes: None,
            limit_ios: None,
            warmup_s: None,
            distribution: "uniform".into(),
            no_repeat: false,
            seed: 7,
            repeat: 1,
            until_ci_pct: None,
            repeat_max: 20,
            until_steady: false,
            rate_gib_s: None,
            rate_iops: None,
            arrivals: Arrivals::Even,
            think_s: None,
            think_ios: None,
            cpus: None,
            numa: None,
            cache: Cache::Bypass,
            engine: Engine::Auto,
            pages: Pages::Auto,
            sqpoll: false,
            iopoll: false,
            sync: Sync::None,
            verify: false,
            refill: false,
            timeout_s: 30.0,
            overwrite: Vec::new(),
            overwrite_devices: Vec::new(),
            gpus: Vec::new(),
            pairs: Vec::new(),
            require_direct: false,
            require_model: false,
            allow_compat: false,
            pin_limit_bytes: None,
            cufile: CuFileMode::Sync,
            cufile_batch: None,
            cufile_unregistered: false,
            power: Vec::new(),
            interval_ms: 500,
            faults: None,
            label: None,
        }
    }
}

/// Where neither a duration nor passes were given.
pub const DURATION_DEFAULT_S: f64 = 10.0;
pub const FILE_NAME_DEFAULT: &str = "forebay.%d";
pub const WORKERS_MAX: u32 = 4096;
pub const DEPTH_MAX: u32 = 4096;
pub const IO_BYTES_MAX: u64 = 1 << 30;
/// Slots of all workers together.
pub const ARENA_BYTES_MAX: u64 = 1 << 40;

/// A GPU and the source that feeds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    pub gpu: u32,
    pub source: String,
}

impl Pair {
    /// `0=/dev/nvme0n1`
    pub fn parse(text: &str) -> Result<Pair, Error> {
        match text.split_once('=').and_then(|(gpu, source)| Some((gpu.trim().parse().ok()?, source))) {
            Some((gpu, source)) if !source.is_empty() => Ok(Pair { gpu, source: source.into() }),
            _ => Err(Error::request(
                format!("--pair {text}"),
                "is not a GPU's number, an equals sign and a source",
                "--pair 0=/dev/nvme0n1",
            )),
        }
    }
}

/// The sizes that a mix holds, for all that only asks how small, how large and how aligned I/Os are.
fn settle_mix(fields: &mut Map<String, Value>) -> Result<(), Error> {
    let Some(Value::String(text)) = fields.get("io_mix") else { return Ok(()) };
    let mix = IoMix::parse(text)?;
    let asked = format!("--io-size with --io-mix {text}");
    for (key, bytes) in
        [("io_bytes", mix.least()), ("io_bytes_max", mix.most()), ("io_bytes_step", mix.step())]
    {
        let settled = fields.entry(key).or_insert(Value::Null);
        if settled.is_null() {
            *settled = bytes.into();
        } else if settled.as_u64() != Some(bytes) {
            return Err(Error::request(asked, "the mix names all sizes", "one of the two"));
        }
    }
    Ok(())
}

/// What depends on whether a field was named: `workers`, a number, `"auto"` or nobody's choice; and the page
/// cache, which `--path auto` judges for itself unless told, and which `--path mapped` is about.
fn settle_defaults(fields: &mut Map<String, Value>) {
    let workers_from = match fields.get("workers") {
        None => "default",
        Some(Value::String(text)) if text == "auto" => {
            fields.remove("workers");
            "auto"
        }
        Some(_) => "given",
    };
    fields.entry("workers_from").or_insert_with(|| workers_from.into());
    settle_batch(fields);
    let cache = match fields.get("path").and_then(Value::as_str) {
        Some("auto") => "auto",
        Some("mapped") => "allow",
        _ => return,
    };
    fields.entry("cache").or_insert_with(|| cache.into());
}

/// Two batches are in flight, and cuFile takes each as one of its own, unless told.
fn settle_batch(fields: &mut Map<String, Value>) {
    let Some(batch) = fields.get("batch").and_then(Value::as_u64) else { return };
    let two = batch.saturating_mul(2);
    let depth = if two <= u64::from(DEPTH_MAX) { two } else { batch };
    fields.entry("depth").or_insert_with(|| depth.into());
    if fields.get("path").and_then(Value::as_str) == Some("gds") {
        fields.entry("cufile").or_insert_with(|| "batch".into());
    }
}

impl JobSpec {
    /// Reads a job, naming the key that isn't known or doesn't fit.
    pub fn from_json(text: &str) -> Result<JobSpec, Error> {
        let bad = |e: serde_json::Error| Error::request("the job", e.to_string(), "forebay bench --help");
        let mut value: Value = serde_json::from_str(text).map_err(bad)?;
        if let Some(fields) = value.as_object_mut() {
            settle_defaults(fields);
            settle_mix(fields)?;
        }
        let job: JobSpec = serde_json::from_value(value).map_err(bad)?;
        job.check()?;
        Ok(job)
    }

    /// What the job reads and writes: its sources, or those of its pairs.
    pub fn source_uris(&self) -> Result<Vec<String>, Error> {
        if self.pairs.is_empty() {
            return Ok(self.sources.clone());
        }
        Ok(self.parsed_pairs()?.into_iter().map(|pair| pair.source).collect())
    }

    pub fn parsed_pairs(&self) -> Result<Vec<Pair>, Error> {
        self.pairs.iter().map(|text| Pair::parse(text)).collect()
    }

    pub fn io_bytes_largest(&self) -> u64 {
        self.io_bytes_max.unwrap_or(self.io_bytes)
    }

    pub fn is_mixed(&self) -> bool {
        matches!(self.read_pct, Some(p) if p != 0 && p != 100)
    }

    /// Per cent of I/Os that read.
    pub fn reads_pct(&self) -> u8 {
        self.read_pct.unwrap_or(if self.op.is_write() { 0 } else { 100 })
    }

    pub fn writes(&self) -> bool {
        self.reads_pct() < 100
    }

    pub fn reads(&self) -> bool {
        self.reads_pct() > 0
    }

    /// Whether files that are missing are made: where asked for, or by a write.
    pub fn may_make(&self) -> bool {
        self.create || self.writes()
    }

    /// Whether so many bytes or I/Os end a repeat, whatever time it takes.
    pub fn ends_by_count(&self) -> bool {
        self.passes.is_some() || self.limit_bytes.is_some() || self.limit_ios.is_some()
    }

    /// Seconds that a repeat is measured for; None where a count ends it.
    pub fn measured_s(&self) -> Option<f64> {
        self.duration_s.or((!self.ends_by_count()).then_some(DURATION_DEFAULT_S))
    }
}

#[cfg(test)]
mod tests;
