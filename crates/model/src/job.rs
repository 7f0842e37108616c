//! One job: what to move, how, and for how long. The same fields are used on the command line, in a sweep's TOML, in
//! `compare --a`, and in every record.

mod check;
mod content;
mod cufile;
mod fields;
mod offsets;
mod path;
mod rounds;
mod side;
mod steady;

pub use content::{Blend, Blender};
pub use cufile::CuFileMode;
pub use fields::{as_job, JobSpec};
pub use offsets::{Distribution, IoMix, SizeShare, Zone};
pub use path::PathKind;
pub use rounds::Rounds;
pub use side::{Flow, Priorities, Priority};
pub use steady::{Judge, SteadyRule};

use crate::glob::Glob;
use crate::stats::Stop;
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

/// The system calls with which a `file:` source is read and written.
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
    /// Copies from a memory mapping of the file.
    Map,
}

impl Engine {
    /// Returns whether each I/O completes when it is submitted.
    pub fn is_inline(self) -> bool {
        matches!(self, Engine::Map | Engine::Inline)
    }
}

/// Page-cache policy of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cache {
    /// Decided for each file before the run: the page cache is used if the file is cached, and bypassed if not.
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

/// The origin of a number: of workers, or of I/Os in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// It was given.
    #[default]
    Given,
    /// Not given. Workers: one, or as for `auto` if the job feeds a GPU through host memory; depth: the usual one, or as for
    /// `auto` if the path is `auto`.
    Default,
    /// Found, or to be found, for the sources at hand.
    Auto,
}

/// The requested page size of the buffers. A record says which they got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pages {
    /// hugetlb, else transparent huge pages, else small.
    Auto,
    Hugetlb,
    Thp,
    Small,
}

/// Advice to the kernel about the order of reads, so that it reads ahead or doesn't.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Hint {
    /// As the job reads.
    #[default]
    Auto,
    None,
    Random,
    Sequential,
}

impl Hint {
    /// Returns the advice that `Auto` stands for.
    pub fn settled(self, random: bool) -> Hint {
        match self {
            Hint::Auto if random => Hint::Random,
            Hint::Auto => Hint::Sequential,
            reported => reported,
        }
    }
}

/// Preference between ways, where one is faster and the other takes less CPU time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Prefer {
    /// The least CPU time, of the ways that reach two thirds of the fastest's rate.
    #[default]
    Balance,
    /// The fastest.
    Rate,
    /// The least CPU time.
    Cpu,
}

impl Prefer {
    pub const NAMES: &[(&str, Prefer)] =
        &[("balance", Prefer::Balance), ("rate", Prefer::Rate), ("cpu", Prefer::Cpu)];

    /// The share of the fastest way's rate that one with less CPU time has to reach; `alike`: from which two count as equally fast.
    pub fn rate_share_min(self, alike: f64) -> f64 {
        match self {
            Prefer::Balance => 2.0 / 3.0,
            Prefer::Rate => alike,
            Prefer::Cpu => 0.0,
        }
    }
}

/// Order in which whole files are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FileOrder {
    /// That of their names.
    Name,
    /// Random, new in each pass.
    Random,
}

/// The arrival process of an open loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arrivals {
    /// At fixed intervals.
    #[default]
    Even,
    /// At exponentially distributed intervals.
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

/// The duration if neither a duration nor passes were given.
pub const DURATION_DEFAULT_S: f64 = 10.0;
/// Warm-up at most, if none was given; otherwise a tenth of the duration.
const WARMUP_MAX_S: f64 = 2.0;
/// Least time for what an open loop owes at its end.
const DRAIN_MIN_S: f64 = 1.0;
pub const FILE_NAME_DEFAULT: &str = "forebay.%d";
pub const WORKERS_MAX: u32 = 4096;
pub const DEPTH_MAX: u32 = 4096;
const FILES_MAX: u32 = 10_000_000;
const REPEATS_MAX: u32 = 10_000;
/// A year.
const SECONDS_MAX: f64 = 3.2e7;
/// Total buffer memory of all workers.
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
                format!("‹pairs› {text}"),
                "is not a GPU's number, an equals sign and a source",
                "‹pairs› 0=/dev/nvme0n1",
            )),
        }
    }
}

/// The sizes that a mix holds, for all that only asks how small, how large and how aligned I/Os are.
fn settle_mix(fields: &mut Map<String, Value>) -> Result<(), Error> {
    let Some(Value::String(text)) = fields.get("io_mix") else { return Ok(()) };
    let mix = IoMix::parse(text)?;
    let asked = format!("‹io_bytes› with ‹io_mix› {text}");
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

/// A round of dependent reads is a batch, and the next one waits for all of it.
fn settle_rounds(fields: &mut Map<String, Value>) -> Result<(), Error> {
    let Some(Value::String(text)) = fields.get("dependent") else { return Ok(()) };
    let rounds = Rounds::parse(text)?;
    let asked = format!("‹dependent› {text}");
    let settled = [
        ("op", Value::from("randread")),
        ("io_bytes", rounds.node_bytes.into()),
        ("batch", rounds.width().into()),
        ("depth", rounds.width().into()),
    ];
    for (key, value) in settled {
        let given = fields.entry(key).or_insert(Value::Null);
        if given.is_null() {
            *given = value;
        } else if *given != value {
            return Err(Error::request(
                format!("{asked} with ‹{key}› {}", given.to_string().trim_matches('"')),
                format!("its rounds are reads with ‹{key}› {}", value.to_string().trim_matches('"')),
                format!("no ‹{key}›"),
            ));
        }
    }
    Ok(())
}

/// Fields whose default depends on whether they were given: `workers` (a number, `"auto"` or not given), `io_bytes`,
/// `depth`, and the page cache, which `--path auto` chooses by itself unless it is given, and which `--path mapped` requires.
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
    let sized = ["io_bytes", "io_bytes_max", "io_mix"].iter().any(|key| fields.contains_key(*key));
    let io_from = if sized { "given" } else { "default" };
    fields.entry("io_from").or_insert_with(|| io_from.into());
    let depth_from = if fields.contains_key("depth") { "given" } else { "default" };
    fields.entry("depth_from").or_insert_with(|| depth_from.into());
    for (rule, implied) in [("steady", "until_steady"), ("content", "refill"), ("order", "whole_files")] {
        if fields.get(rule).is_some_and(|rule| !rule.is_null()) {
            fields.insert(implied.into(), true.into());
        }
    }
    let cache = match path_of(fields) {
        Some(path) if path.is_found() => "auto",
        Some(path) if path.needs_page_cache() => "allow",
        _ => return,
    };
    fields.entry("cache").or_insert_with(|| cache.into());
}

fn path_of(fields: &Map<String, Value>) -> Option<PathKind> {
    fields.get("path").and_then(Value::as_str).and_then(PathKind::named)
}

/// By default two batches are in flight, and each is one of cuFile's batches.
fn settle_batch(fields: &mut Map<String, Value>) {
    // What is out of bounds is refused by its own name, and not by that of what follows from it.
    let batch = fields.get("batch").and_then(Value::as_u64).filter(|batch| *batch > 0);
    let Some(batch) = batch else { return };
    let two = batch.saturating_mul(2);
    let depth = if two <= u64::from(DEPTH_MAX) { two } else { batch };
    fields.entry("depth").or_insert_with(|| depth.into());
    if path_of(fields).is_some_and(PathKind::goes_by_cufile) {
        fields.entry("cufile").or_insert_with(|| "batch".into());
    }
}

impl JobSpec {
    /// Parses a job; the error names a key that is unknown or invalid.
    pub fn from_json(text: &str) -> Result<JobSpec, Error> {
        let bad = |e: serde_json::Error| Error::request("the job", e.to_string(), "forebay bench --help");
        let mut value: Value = serde_json::from_str(text).map_err(bad)?;
        if let Some(fields) = value.as_object_mut() {
            settle_rounds(fields)?;
            settle_defaults(fields);
            settle_mix(fields)?;
        }
        let job: JobSpec = serde_json::from_value(value).map_err(bad)?;
        job.check()?;
        Ok(job)
    }

    /// The job for a moment, to see how fast its I/Os go: nothing else ends, paces or checks them, and no power meter runs.
    pub fn trial(&self, seconds: f64, warmup_s: f64) -> JobSpec {
        let mut trial = self.clone();
        JobSpec::FIELDS.iter().filter(|field| !field.tried).for_each(|field| (field.reset)(&mut trial));
        let power = vec!["none".into()];
        JobSpec { duration_s: Some(seconds), warmup_s: Some(warmup_s), power, ..trial }
    }

    /// The sources that the job reads and writes, its own or those of its pairs.
    pub fn source_uris(&self) -> Result<Vec<String>, Error> {
        if self.pairs.is_empty() {
            return Ok(self.sources.clone());
        }
        Ok(self.parsed_pairs()?.into_iter().map(|pair| pair.source).collect())
    }

    /// Queries of dependent reads; None: the job has none.
    pub fn parsed_rounds(&self) -> Result<Option<Rounds>, Error> {
        self.dependent.as_deref().map(Rounds::parse).transpose()
    }

    /// The list of I/Os that worker number `index` replays; None: it draws them.
    pub fn list_of(&self, index: u32) -> Option<&str> {
        let lists: Vec<&str> = self.read_iolog.as_deref()?.split(':').collect();
        Some(lists[index as usize % lists.len()])
    }

    pub fn parsed_pairs(&self) -> Result<Vec<Pair>, Error> {
        self.pairs.iter().map(|text| Pair::parse(text)).collect()
    }

    pub fn parsed_distribution(&self) -> Result<Distribution, Error> {
        Distribution::parse(&self.distribution).ok_or_else(|| {
            Error::request(
                format!("‹distribution› {}", self.distribution),
                "is not one of uniform, zipf:THETA with THETA between 0 and 3, zoned:IOS/DATA,… in percentages that add up to 100, list:BLOCK,… and list+:BLOCK,…",
                "‹distribution› zipf:1.1",
            )
        })
    }

    pub fn parsed_mix(&self) -> Result<Option<IoMix>, Error> {
        self.io_mix.as_deref().map(IoMix::parse).transpose()
    }

    pub fn io_bytes_largest(&self) -> u64 {
        self.io_bytes_max.unwrap_or(self.io_bytes)
    }

    /// Percentage of I/Os that are reads.
    pub fn reads_pct(&self) -> u8 {
        self.read_pct.unwrap_or(if self.op.is_write() { 0 } else { 100 })
    }

    pub fn writes(&self) -> bool {
        self.reads_pct() < 100
    }

    pub fn reads(&self) -> bool {
        self.reads_pct() > 0
    }

    /// Returns whether what is read is compared with what it should be.
    pub fn checks_reads(&self) -> bool {
        self.verify || self.verify_fio.is_some()
    }

    /// Returns whether missing files are created: on request, or by a write.
    pub fn may_make(&self) -> bool {
        self.create || self.writes()
    }

    /// Returns whether files are read from their first byte to their last.
    pub fn reads_whole_files(&self) -> bool {
        let from_end_to_end = self.start_bytes == 0 && self.skip_bytes == 0 && self.file_bytes.is_none();
        self.op == Op::Read && !self.writes() && from_end_to_end
    }

    /// The patterns that choose files of a directory; none: all are chosen.
    pub fn parsed_globs(&self) -> Result<Vec<Glob>, Error> {
        self.glob.iter().map(|text| Glob::parse(text)).collect()
    }

    /// Returns whether a number of bytes or I/Os ends a repeat, instead of the time.
    pub fn ends_by_count(&self) -> bool {
        self.passes.is_some() || self.limit_bytes.is_some() || self.limit_ios.is_some()
    }

    /// What ends the repeats.
    pub fn stop(&self) -> Stop {
        match self.until_ci_pct {
            Some(_) => Stop::Narrow,
            None => Stop::Counted,
        }
    }

    /// Measured seconds of a repeat; None if a count ends it.
    pub fn measured_s(&self) -> Option<f64> {
        self.duration_s.or((!self.ends_by_count()).then_some(DURATION_DEFAULT_S))
    }

    /// Seconds before anything is measured: those given, or a tenth of the measured ones; none if a count ends a repeat.
    pub fn warmup_seconds(&self) -> f64 {
        self.warmup_s.unwrap_or(match (self.ends_by_count(), self.measured_s()) {
            (false, Some(s)) => (s / 10.0).min(WARMUP_MAX_S),
            _ => 0.0,
        })
    }

    /// Returns the time that an open loop may take at its end for what it owes: as long again, and no longer than one
    /// I/O may.
    pub fn drain_seconds(&self) -> f64 {
        self.measured_s().unwrap_or(f64::INFINITY).max(DRAIN_MIN_S).min(self.timeout_s)
    }
}

#[cfg(test)]
mod tests;
