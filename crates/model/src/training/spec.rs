//! One emulated training run as asked for. Names of workloads mean nothing here:
//! whoever asks has looked up the constants.

use crate::job::{as_job, Cache, Engine, PathKind, WORKERS_MAX};
use crate::no_numbers;
use crate::request::Kind::*;
use crate::request::{check_bounds, flag, switch, ANY};
use crate::units::IO_BYTES_MAX;
use crate::wording::named;
use crate::Error;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Rule set whose arithmetic turns the times of a run into utilisation and throughput.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RuleSet {
    #[serde(rename = "v1.0")]
    V10,
    #[default]
    #[serde(rename = "v2.0")]
    V20,
    #[serde(rename = "v3.0")]
    V30,
    /// The rules' words, which no edition's code follows.
    #[serde(rename = "text")]
    Text,
}

impl RuleSet {
    pub const ALL: [RuleSet; 4] = [RuleSet::V10, RuleSet::V20, RuleSet::V30, RuleSet::Text];

    pub fn name(self) -> &'static str {
        match self {
            RuleSet::V10 => "v1.0",
            RuleSet::V20 => "v2.0",
            RuleSet::V30 => "v3.0",
            RuleSet::Text => "text",
        }
    }
}

/// Level of processing of bytes after they were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Every byte read, the container's framing parsed, its checksums verified.
    Parse,
    /// Every byte read.
    Bytes,
}

/// Policy for a damaged record or a missing file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnError {
    Fail,
    Skip,
}

/// Loader that makes batches of files. `Trace` has the details.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Loader {
    /// Samples by number: each rank takes a range of them.
    #[default]
    PyTorch,
    /// Streams of records: files are dealt to ranks and read several side by side.
    TensorFlow,
}

/// Work of an accelerator on data: the constants of a workload and an accelerator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    pub name: String,
    /// Edition that the constants come from, as `1.0`.
    pub version: String,
    pub accelerator: String,
    pub loader: Loader,
    /// Name of a container format.
    pub format: String,
    /// Samples per step and accelerator.
    pub batch: u32,
    /// Seconds that an accelerator computes on one batch. 0: as fast as bytes come.
    pub compute_s: f64,
    /// Nominal mean of a sample's bytes, by which throughput is told.
    pub record_bytes: f64,
    #[serde(default)]
    pub record_bytes_stdev: f64,
    #[serde(default)]
    pub record_bytes_resize: Option<u64>,
    pub samples_per_file: u32,
    /// Files of the data set as published.
    pub files: u32,
    pub read_threads: u32,
    #[serde(default)]
    pub computation_threads: u32,
    pub prefetch: u32,
    pub epochs: u32,
    /// Least utilisation that passes, in per cent.
    pub au_pct_min: f64,
    #[serde(default)]
    pub file_shuffle: bool,
    #[serde(default)]
    pub sample_shuffle: bool,
    #[serde(default)]
    pub transfer_bytes: Option<u64>,
    /// Parquet: names of the columns that are read. None: all.
    #[serde(default)]
    pub columns: Option<Vec<String>>,
}

no_numbers!(Level, OnError);

crate::request! {
    /// A run. Sizes in bytes, times in seconds.
    pub struct EmulateSpec;
    workload: Workload = Workload::default();
    rules: RuleSet = RuleSet::V20;
    /// How the workload was asked for, as flags: for what to type next. Empty: by its name.
    asked: String = String::new();
    /// Folders of files, or one source URI that holds a packed data set.
    data: Vec<String> = Vec::new(),
        flag("data", Words, "DIR|URI",
            "Folder of the data set, or a source that holds it, e.g. model:NAME; can be repeated.");
    /// Patterns of the files that are read, whatever their extension. Empty: those of the workload's format.
    glob: Vec<String> = Vec::new(),
        flag("glob", Words, "PATTERN",
            "Read the files below DIR that match, whatever their extension, e.g. '*.tar'; can be repeated.");
    /// Emulated accelerators of this process.
    accelerators: u32 = 1;
    /// Rank of the first of them, and ranks of all processes together.
    first_rank: u32 = 0;
    ranks: u32 = 1;
    epochs: u32 = 1,
        flag("epochs", Integer, "N", "Passes over the data. Default: the workload's.")
            .within(1.0, EPOCHS_MAX as f64, "must be 1 to 10,000", "5");
    /// Most steps of an epoch. None: as many as there are full batches.
    steps_max: Option<u32> = None,
        flag("steps", Integer, "N", "Maximum number of steps per epoch.").within(1.0, ANY, "must be 1 or more", "50");
    level: Level = Level::Parse,
        flag("level", Choice(&["parse", "bytes"]), "LEVEL",
            "parse (check framing and checksums) or bytes (only read every byte). Default: as the rules do.");
    /// Images are decoded once they are whole.
    decode: bool = false,
        switch("decode", "Also decode JPEGs and PNGs, as training would.");
    /// Batches that may be read ahead of the one that is computed on.
    prefetch: u32 = 2,
        flag("prefetch", Integer, "N", "Number of batches to read ahead. Default: the workload's.")
            .within(0.0, PREFETCH_MAX as f64, "must be at most 1024 batches", "2");
    /// Files that one accelerator reads side by side.
    read_threads: u32 = 1,
        flag("read-threads", Integer, "N", "Files that each accelerator reads at a time. Default: the workload's.")
            .within(1.0, READ_THREADS_MAX as f64, "must be 1 to 1024", "4");
    seed: u64 = 7,
        flag("seed", Seed, "N",
            "Seed of the shuffling. Default: 123, as in DLIO; a new one for each run of a v2.0 or v3.0 submission.");
    on_error: OnError = OnError::Fail,
        flag("on-error", Choice(&["fail", "skip"]), "WHAT",
            "What to do about a damaged record or a missing file: fail or skip. Default: fail.");
    /// `drop`, `host` or `gpu:0`, `gpu:0,1`.
    destination: String = "drop".into(),
        flag("destination", Text, "WHERE",
            "Where batches go: drop (checked, then discarded), host, gpu:0 or gpu:0,1. Default: drop.");
    /// Bytes are handed on at this rate at most.
    supply_gib_s: Option<f64> = None,
        flag("supply", Number, "GIB_S", "Limit the supply to this many GiB/s: what if the storage were slower?")
            .above(0.0, 1e6, "must be above 0 and at most 1,000,000 GiB/s", "2.5");
    path: PathKind = PathKind::Auto,
        as_job("path")
            .saying("How batches reach GPUs: bounce, mapped, gds or auto; mapped and gds need --level bytes.");
    /// cuFile may run in its compatibility mode; anything but direct DMA is an error.
    allow_compat: bool = false,
        as_job("allow_compat");
    require_direct: bool = false,
        as_job("require_direct");
    /// Page cache that `mapped` may keep registered. None: half of the free memory.
    pin_limit_bytes: Option<u64> = None,
        as_job("pin_limit_bytes");
    /// Auto: by what was found in the page cache before the run, through it where the files are there, past it where not.
    cache: Cache = Cache::Auto,
        as_job("cache").saying(
            "Page cache: bypass (O_DIRECT), drop, allow, warm or auto (depends on what is cached). Default: auto.");
    engine: Engine = Engine::Auto,
        as_job("engine").saying("I/O engine: auto, uring (io_uring) or inline. Default: auto.");
    io_bytes: Option<u64> = None,
        flag("io-size", Size, "SIZE", "Bytes per I/O, e.g. 1m.")
            .within(512.0, IO_BYTES_MAX as f64, "must be 512 bytes to 1 GiB", "1m");
    /// I/Os in flight per worker.
    depth: Option<u32> = None,
        as_job("depth");
    workers: Option<u32> = None,
        flag("workers", Integer, "N", "Threads. Default: one per CPU.")
            .within(1.0, WORKERS_MAX as f64, "must be 1 to 4096", "4");
    /// CPUs to pin workers to, in turn: `0-3,8`.
    cpus: Option<String> = None,
        as_job("cpus");
    interval_s: f64 = 0.5,
        flag("interval", Milliseconds, "MS", "Milliseconds between points of the time series.")
            .within(1e-3, 3600.0, "must be 1 ms to an hour", "500");
    /// Power meters, as a job's.
    power: Vec<String> = Vec::new(),
        as_job("power");
    /// True if settings that the closed division forbids are refused.
    closed: bool = false;
}

pub const RANKS_MAX: u32 = 1 << 20;
pub const SAMPLES_PER_FILE_MAX: u32 = 1 << 30;
pub const EPOCHS_MAX: u32 = 10_000;
pub const PREFETCH_MAX: u32 = 1024;
pub const READ_THREADS_MAX: u32 = 1024;
const PIN_LIMIT_MIN: u64 = 1 << 20;
const BATCH_MAX: u32 = 1 << 24;
const COMPUTE_S_MAX: f64 = 3600.0;
const RECORD_BYTES_MAX: f64 = (1u64 << 40) as f64;

/// Fills in defaults: the workload's own values, and all ranks in this process.
fn settle_defaults(fields: &mut Map<String, Value>) {
    let of_workload =
        |fields: &Map<String, Value>, key: &str| fields.get("workload").and_then(|w| w.get(key)).cloned();
    for key in ["epochs", "prefetch", "read_threads"] {
        if let (false, Some(value)) = (fields.contains_key(key), of_workload(fields, key)) {
            fields.insert(key.into(), value);
        }
    }
    if let (false, Some(count)) = (fields.contains_key("ranks"), fields.get("accelerators").cloned()) {
        fields.insert("ranks".into(), count);
    }
}

fn refuse(asked: impl Into<String>, found: impl Into<String>, next: &str) -> Result<(), Error> {
    Err(Error::request(asked, found, next))
}

impl EmulateSpec {
    /// Flags that ask for the workload.
    pub fn asked(&self) -> String {
        match self.asked.as_str() {
            "" => format!("--workload {}", self.workload.name),
            asked => asked.into(),
        }
    }

    /// Reads a spec, naming the key that isn't known or doesn't fit.
    pub fn from_json(text: &str) -> Result<EmulateSpec, Error> {
        let bad = |e: serde_json::Error| {
            Error::request("the emulated run", e.to_string(), "forebay emulate run --help")
        };
        let mut value: Value = serde_json::from_str(text).map_err(bad)?;
        if let Some(fields) = value.as_object_mut() {
            settle_defaults(fields);
        }
        let spec: EmulateSpec = serde_json::from_value(value).map_err(bad)?;
        spec.check()?;
        Ok(spec)
    }

    /// Batches that may be under way besides the one that is computed on.
    ///
    /// PyTorch gives each of its `read_threads` workers `prefetch / read_threads` batches, rounded up; with a
    /// prefetch of 0, two. TensorFlow holds `prefetch` batches behind as many as its parallel map has calls.
    /// By the text of the rules, and where batches stay in memory until their step, it is `prefetch` alone.
    pub fn batches_ahead(&self) -> u32 {
        if self.rules == RuleSet::Text || self.destination != "drop" {
            return self.prefetch.max(1);
        }
        match self.workload.loader {
            Loader::PyTorch if self.prefetch == 0 => 2 * self.read_threads,
            Loader::PyTorch => self.prefetch.div_ceil(self.read_threads.max(1)) * self.read_threads.max(1),
            Loader::TensorFlow => self.prefetch + self.workload.computation_threads.max(1),
        }
    }

    /// Errors that don't depend on the machine.
    pub fn check(&self) -> Result<(), Error> {
        self.workload.check()?;
        self.check_ranks()?;
        if self.data.is_empty() || self.data.iter().any(String::is_empty) {
            return refuse("--data", "no folder or source was given", "--data DIR");
        }
        if self.decode && self.level == Level::Bytes {
            return refuse("--decode --level bytes", "level bytes doesn't look into files", "--level parse");
        }
        check_bounds(Self::FIELDS, self, named)?;
        self.check_machine()?;
        self.check_path()
    }

    fn check_ranks(&self) -> Result<(), Error> {
        if self.accelerators == 0 || self.accelerators > RANKS_MAX {
            return refuse(
                format!("--accelerators {}", self.accelerators),
                "must be 1 to 1,048,576",
                "--accelerators 8",
            );
        }
        let last = u64::from(self.first_rank) + u64::from(self.accelerators);
        if last > u64::from(self.ranks) || self.ranks > RANKS_MAX {
            let found = format!("ranks {} to {} of {}", self.first_rank, last - 1, self.ranks);
            return refuse(
                "the emulated run's ranks",
                found,
                "first_rank + accelerators <= ranks <= 1,048,576",
            );
        }
        Ok(())
    }

    fn check_machine(&self) -> Result<(), Error> {
        if !is_destination(&self.destination) {
            return refuse(
                format!("--destination {}", self.destination),
                "is neither drop, host nor GPUs by number",
                "--destination gpu:0,1",
            );
        }
        Ok(())
    }
}

impl EmulateSpec {
    pub fn feeds_gpu(&self) -> bool {
        self.destination.starts_with("gpu:")
    }

    /// Returns the GPUs that batches end on, by number.
    pub fn gpus(&self) -> Vec<u32> {
        let list = self.destination.strip_prefix("gpu:").unwrap_or_default();
        list.split(',').filter_map(|n| n.parse().ok()).collect()
    }

    /// Paths, and what they have to do with where batches end and with what is done to their bytes.
    fn check_path(&self) -> Result<(), Error> {
        const NO_SUCH_BYTES: &str = "the host checks samples (level parse), and on this path they bypass it";
        let name = self.path.name();
        let to = &self.destination;
        if self.path.ends_in_host() && self.feeds_gpu() {
            let asked = format!("‹path› {name} to --destination {to}");
            return refuse(asked, "it ends in host memory", "‹path› bounce, or --destination host");
        }
        if self.path.bypasses_host() && !self.feeds_gpu() {
            let asked = format!("‹path› {name} to --destination {to}");
            return refuse(asked, "it ends in a GPU's memory", "--destination gpu:0, or ‹path› bounce");
        }
        if self.path.bypasses_host() && self.level == Level::Parse {
            let asked = format!("‹path› {name} with --level parse");
            return refuse(asked, NO_SUCH_BYTES, "--level bytes, or ‹path› bounce");
        }
        if self.path.needs_page_cache() && matches!(self.cache, Cache::Bypass | Cache::Drop) {
            let found = "it copies from the page cache: every byte would take another path";
            let next = "‹cache› allow or ‹cache› warm; ‹path› bounce for data on a drive";
            return refuse(format!("‹path› {name} without the page cache"), found, next);
        }
        self.check_direct()
    }

    fn check_direct(&self) -> Result<(), Error> {
        if self.require_direct && !(self.path.may_go_direct() && self.feeds_gpu()) {
            let found = "direct DMA goes only into GPU memory, by gds";
            return refuse(
                "‹require_direct›",
                found,
                "--destination gpu:0 ‹path› gds, or no ‹require_direct›",
            );
        }
        if self.require_direct && self.level == Level::Parse {
            let found = "the host checks samples, and direct DMA bypasses it";
            return refuse(
                "‹require_direct› with --level parse",
                found,
                "--level bytes, or no ‹require_direct›",
            );
        }
        if self.require_direct && !matches!(self.cache, Cache::Auto | Cache::Bypass) {
            let found = "data that passes through it is copied by a CPU";
            return refuse("‹require_direct› through the page cache", found, "‹cache› bypass");
        }
        let maps = self.path.may_map() && self.feeds_gpu();
        if self.pin_limit_bytes.is_some() && !maps {
            let next = "--destination gpu:0 ‹path› mapped, or no ‹pin_limit_bytes›";
            return refuse("‹pin_limit_bytes›", "only ‹path› mapped registers pages of files", next);
        }
        if self.pin_limit_bytes.is_some_and(|bytes| bytes < PIN_LIMIT_MIN) {
            let found = "must be at least 1 MiB: less isn't worth registering";
            return refuse("‹pin_limit_bytes›", found, "‹pin_limit_bytes› 1g");
        }
        Ok(())
    }
}

/// `drop`, `host`, `gpu:0` or `gpu:0,1`, each GPU once.
fn is_destination(text: &str) -> bool {
    let Some(list) = text.strip_prefix("gpu:") else { return matches!(text, "drop" | "host") };
    let numbers: Option<Vec<u32>> = list.split(',').map(|n| n.parse().ok()).collect();
    numbers.is_some_and(|mut n| {
        let given = n.len();
        n.sort_unstable();
        n.dedup();
        n.len() == given
    })
}

impl Workload {
    /// Nanoseconds that an accelerator computes on one batch.
    pub fn compute_ns(&self) -> u64 {
        (self.compute_s * 1e9).round() as u64
    }

    fn check(&self) -> Result<(), Error> {
        if self.name.is_empty() {
            return refuse("--workload", "no workload was given", "forebay emulate workloads");
        }
        let bad = |key: &str, value: String, bounds: &str| {
            let asked = format!("workload {}: {key} = {value}", self.name);
            refuse(asked, format!("must be {bounds}"), "forebay emulate workloads")
        };
        if self.batch == 0 || self.batch > BATCH_MAX {
            return bad("batch", self.batch.to_string(), "1 to 16,777,216 samples");
        }
        if !(0.0..=COMPUTE_S_MAX).contains(&self.compute_s) {
            return bad("compute_s", self.compute_s.to_string(), "0 to 3600 s");
        }
        if !(self.record_bytes >= 1.0 && self.record_bytes <= RECORD_BYTES_MAX) {
            return bad("record_bytes", self.record_bytes.to_string(), "1 byte to 1 TiB");
        }
        if !(self.record_bytes_stdev >= 0.0 && self.record_bytes_stdev <= RECORD_BYTES_MAX) {
            return bad("record_bytes_stdev", self.record_bytes_stdev.to_string(), "0 to 1 TiB");
        }
        if self.samples_per_file == 0 || self.samples_per_file > SAMPLES_PER_FILE_MAX {
            return bad("samples_per_file", self.samples_per_file.to_string(), "1 to 1,073,741,824");
        }
        if !(0.0..=100.0).contains(&self.au_pct_min) {
            return bad("au_pct_min", self.au_pct_min.to_string(), "0 to 100");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
