//! Checkpoints of large models as MLPerf Storage writes and reads them: what each rank writes, what was asked for,
//! what came of it, and which rules hold.

pub mod layout;
pub mod merge;
pub mod record;
pub mod rules;

pub use layout::{Model, Part, Sizes};
pub use record::Checkpoint;

use crate::job::{as_job, Cache, Engine, PathKind};
use crate::no_numbers;
use crate::request::Kind::*;
use crate::request::{check_bounds, flag, switch, switch_off};
use crate::wording::named;
use crate::Error;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Edition of the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Edition {
    #[serde(rename = "v2.0")]
    V20,
    #[serde(rename = "v3.0")]
    V30,
}

/// Checkpoints of one run.
const STEPS_MAX: u32 = 10_000;
/// Ranks in one process.
const RANKS_HERE_MAX: u64 = 16_384;
/// Ranks of all processes.
const RANKS_MAX: u64 = 1 << 18;
const IO_BYTES_MAX: u64 = 64 << 20;

no_numbers!(Edition);

crate::request! {
    /// A run as asked for. Sizes in bytes, times in seconds.
    pub struct CheckpointSpec;
    workload: String = String::new();
    /// Below it each checkpoint is a folder, `global_epoch1_stepN`.
    dir: String = String::new(),
        flag("dir", Text, "DIR", "Where to write the checkpoints, each in its own folder.").needed();
    /// Edition of the workload's constants.
    version: String = String::new();
    model: Model = Model::default();
    rules: Edition = Edition::V20,
        flag("rules", Choice(&["v2.0", "v3.0"]), "SET", "Edition of the rules to judge by: v2.0 or v3.0. Default: v2.0.");
    /// Ranks of the whole run. None: as many as the model is divided into.
    ranks: Option<u64> = None,
        flag("ranks", Integer, "N",
            "Number of ranks. Default: as many as the model is divided into; fewer: a subset.");
    /// This process has ranks `first_rank` and the `ranks_here - 1` after it. None: all.
    first_rank: u64 = 0;
    ranks_here: Option<u64> = None;
    /// Processes of this run, one on each host.
    hosts: u32 = 1;
    writes: u32 = rules::CHECKPOINTS,
        flag("writes", Integer, "N", "Checkpoints to write. Default: the workload's, 10.")
            .within(0.0, STEPS_MAX as f64, "must be at most 10000", "10");
    reads: u32 = rules::CHECKPOINTS,
        flag("reads", Integer, "N", "Checkpoints to read. Default: the workload's, 10.")
            .within(0.0, STEPS_MAX as f64, "must be at most 10000", "10");
    /// Seconds from the end of one checkpoint to the start of the next.
    between_s: f64 = rules::BETWEEN_S,
        flag("between", Seconds, "SECONDS", "Time between checkpoints. Default: the workload's, 5.")
            .within(0.0, 86_400.0, "must be 0 to 86400 seconds", "5");
    /// Every file's length is multiplied by this.
    scale: f64 = 1.0,
        flag("scale", Number, "SHARE", "Multiply every file's size by this. Default: 1.")
            .above(0.0, 1.0, "must be above 0 and at most 1", "0.01");
    io_bytes: u64 = 1 << 20,
        flag("io-size", Size, "SIZE", "Bytes per I/O. Default: 1m.");
    /// I/Os in flight per rank, as far as the buffers go.
    depth: u32 = 4,
        flag("depth", Integer, "N", "I/Os in flight per rank. Default: 4.")
            .within(1.0, 1024.0, "must be 1 to 1024", "4");
    /// Threads. None: as many as there are processors, or ranks where those are fewer.
    workers: Option<u32> = None,
        flag("workers", Integer, "N", "Threads that emulate the ranks. Default: one per CPU.")
            .within(1.0, 1024.0, "must be 1 to 1024", "2");
    /// Buffers of this process.
    buffer_bytes: u64 = 256 << 20,
        flag("buffers", Size, "SIZE", "Buffer memory of all ranks on this host. Default: 256m.");
    fsync: bool = true,
        switch_off("no-fsync", "Don't flush files before they are closed.");
    /// Every byte written is made from the seed, and every byte read is compared with that.
    verify: bool = true,
        switch_off("no-verify", "Write the same bytes repeatedly, and don't compare what is read.");
    /// Read what another host wrote: each rank reads as the one `ranks_here` after it.
    shift: bool = false,
        switch("shift", "Under mpirun: each host reads what the next one wrote.");
    /// Files stay after the last read.
    keep: bool = false,
        switch("keep", "Keep the files after the last read.");
    /// Checkpoints of ours that are there already are removed first.
    replace: bool = false,
        switch("replace", "Remove existing checkpoints that Forebay wrote.");
    path: PathKind = PathKind::Auto,
        flag("path", Choice(&["auto", "host", "bounce", "gds"]), "PATH", "host, bounce or gds. Default: auto.");
    /// cuFile may run in its compatibility mode.
    allow_compat: bool = false,
        switch("allow-compat", "With gds: allow cuFile's compatibility mode.");
    /// Anything but direct DMA is an error.
    require_direct: bool = false,
        as_job("require_direct");
    gpus: Vec<u32> = Vec::new(),
        flag("gpu", Integers, "LIST", "GPUs whose memory is written from and read into, e.g. 0,1.");
    cache: Cache = Cache::Bypass,
        flag("cache", Choice(&["bypass", "drop", "allow"]), "POLICY",
            "Page cache: bypass, drop or allow. Default: bypass (O_DIRECT).");
    engine: Engine = Engine::Auto,
        flag("engine", Choice(&["auto", "uring", "pread", "inline"]), "NAME",
            "I/O engine: auto, uring (io_uring), pread or inline.");
    /// An I/O unfinished after this many seconds fails the run.
    timeout_s: f64 = 30.0,
        flag("timeout", Seconds, "SECONDS", "Fail the run if an I/O takes longer than this. Default: 30.")
            .within(0.01, 86_400.0, "must be 0.01 to 86400 seconds", "5");
    interval_ms: u32 = 250;
    /// Power meters, as of a job.
    power: Vec<String> = Vec::new(),
        as_job("power");
    /// Apply the rules of the closed division: a setting that breaks one is refused before anything runs.
    closed: bool = false,
        switch("closed", "Refuse settings that break a rule of the closed division.");
    seed: u64 = 7,
        flag("seed", Seed, "N", "Seed of the content. Default: 7.");
    /// Faults to inject (tests).
    faults: Option<String> = None;
}

/// Parallelism of the model over `ranks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// All ranks that the model is divided into.
    Default,
    /// The first of them, with their part of the checkpoint.
    Subset,
    /// More copies than the model is divided into (OPEN).
    Copies,
}

impl CheckpointSpec {
    pub fn from_json(text: &str) -> Result<CheckpointSpec, Error> {
        serde_json::from_str(text).map_err(|e| {
            Error::request("the checkpoint run", e.to_string(), "forebay emulate checkpoint --help")
        })
    }

    /// Errors that don't depend on the machine.
    pub fn check(&self) -> Result<(), Error> {
        self.model.check()?;
        check_bounds(Self::FIELDS, self, named)?;
        self.check_counts()?;
        self.check_bounds()?;
        if self.closed {
            rules::refuse_open(self)?;
        }
        Ok(())
    }

    fn check_counts(&self) -> Result<(), Error> {
        let per_copy = self.model.ranks_per_copy();
        let (ranks, whole) = (self.ranks(), self.model.ranks());
        if ranks == 0
            || (ranks > whole && ranks % per_copy != 0)
            || ranks > whole.saturating_mul(64).min(RANKS_MAX)
        {
            return bound(
                format!("--ranks {ranks}"),
                format!(
                    "is not from 1 to {whole}, or above that a multiple of {per_copy} up to 64 × {whole}"
                ),
                format!("--ranks {whole}"),
            );
        }
        let here = self.ranks_here();
        if here.is_empty() || here.end > ranks || here.end - here.start > RANKS_HERE_MAX || self.hosts == 0 {
            return bound(
                format!("ranks {} to {} of {ranks}", here.start, here.end),
                format!("a process takes 1 to {RANKS_HERE_MAX} ranks of the run"),
                format!("--ranks {whole}"),
            );
        }
        if self.writes == 0 && self.reads == 0 {
            return bound("--writes 0 --reads 0".into(), "leaves nothing to do".into(), "--writes 10".into());
        }
        if self.writes > 0 && self.reads > self.writes {
            return bound(
                format!("--reads {} with --writes {}", self.reads, self.writes),
                "only what was written can be read".into(),
                format!("--reads {0} --writes {0}", self.reads),
            );
        }
        if self.shift && self.hosts < 2 {
            return bound(
                "--shift".into(),
                "there is no other host whose part could be read".into(),
                "mpirun over several hosts".into(),
            );
        }
        Ok(())
    }

    fn check_bounds(&self) -> Result<(), Error> {
        if self.dir.is_empty() {
            return bound("--dir".into(), "no folder was given".into(), "--dir DIR".into());
        }
        if self.io_bytes == 0 || self.io_bytes > IO_BYTES_MAX || self.io_bytes % 512 != 0 {
            let found = "must be a multiple of 512 bytes, up to 64 MiB".into();
            return bound(format!("‹io_bytes› {}", self.io_bytes), found, "‹io_bytes› 1m".into());
        }
        if self.interval_ms < 10 {
            let found = "must be at least 10 ms".into();
            return bound(format!("‹interval_ms› {}", self.interval_ms), found, "‹interval_ms› 250".into());
        }
        if self.path.needs_page_cache() {
            let found = "it only copies what the page cache holds, and a checkpoint is read from storage";
            return bound(
                format!("‹path› {}", self.path.name()),
                found.into(),
                "‹path› bounce, or gds".into(),
            );
        }
        if matches!(self.cache, Cache::Auto | Cache::Warm) {
            let found = "a checkpoint is read from storage: bypass or drop; allow, and the rule is broken";
            return bound("‹cache›".into(), found.into(), "‹cache› bypass".into());
        }
        if self.engine == Engine::Map {
            return bound("‹engine› map".into(), "it only reads".into(), "‹engine› uring".into());
        }
        Ok(())
    }

    pub fn ranks(&self) -> u64 {
        self.ranks.unwrap_or_else(|| self.model.ranks())
    }

    pub fn ranks_here(&self) -> Range<u64> {
        let end = self.ranks_here.map_or(self.ranks(), |here| self.first_rank.saturating_add(here));
        self.first_rank..end
    }

    pub fn mode(&self) -> Mode {
        match self.ranks().cmp(&self.model.ranks()) {
            std::cmp::Ordering::Equal => Mode::Default,
            std::cmp::Ordering::Less => Mode::Subset,
            std::cmp::Ordering::Greater => Mode::Copies,
        }
    }

    /// The model as it is cut in this run: with more copies where there are more ranks than it is cut for.
    pub fn cut(&self) -> Model {
        let copies = match self.mode() {
            Mode::Copies => self.ranks() / self.model.ranks_per_copy(),
            Mode::Default | Mode::Subset => self.model.data,
        };
        Model { data: copies, ..self.model.clone() }
    }

    /// One checkpoint of all ranks of this run.
    pub fn sizes(&self) -> Sizes {
        self.cut().sizes(0..self.ranks(), self.scale)
    }

    /// Bytes that this process writes of it.
    pub fn sizes_here(&self) -> Sizes {
        self.cut().sizes(self.ranks_here(), self.scale)
    }

    /// The rank whose files `rank` reads.
    pub fn reads_as(&self, rank: u64) -> u64 {
        let here = self.ranks_here();
        let ahead = if self.shift { here.end - here.start } else { 0 };
        (rank + ahead) % self.ranks()
    }
}

/// The folder of a checkpoint, counted from 1.
pub fn folder(step: u32) -> String {
    format!("global_epoch1_step{step}")
}

fn bound<T>(asked: String, found: String, next: String) -> Result<T, Error> {
    Err(Error::request(asked, found, next))
}

#[cfg(test)]
mod tests {
    use super::layout::tests::llama_8b;
    use super::*;

    pub fn spec() -> CheckpointSpec {
        CheckpointSpec {
            workload: "llama3-8b".into(),
            model: llama_8b(),
            dir: "/x".into(),
            ..CheckpointSpec::default()
        }
    }

    #[test]
    fn json_round_trips_and_an_unknown_key_is_named() {
        let text = serde_json::to_string(&spec()).unwrap();
        assert_eq!(CheckpointSpec::from_json(&text).unwrap(), spec());
        let error = CheckpointSpec::from_json(r#"{"rank":1}"#).unwrap_err();
        assert!(error.found.contains("rank"), "{error}");
    }

    #[test]
    fn each_bound_is_refused_with_its_flag() {
        spec().check().unwrap();
        let cases = [
            ("--ranks 0", CheckpointSpec { ranks: Some(0), ..spec() }),
            ("--ranks 999999", CheckpointSpec { ranks: Some(999_999), ..spec() }),
            ("ranks 8", CheckpointSpec { first_rank: 8, ..spec() }),
            ("ranks 4", CheckpointSpec { first_rank: 4, ranks_here: Some(5), ..spec() }),
            ("--writes 0", CheckpointSpec { writes: 0, reads: 0, ..spec() }),
            ("--reads 3", CheckpointSpec { writes: 2, reads: 3, ..spec() }),
            ("--shift", CheckpointSpec { shift: true, ..spec() }),
            ("--dir", CheckpointSpec { dir: String::new(), ..spec() }),
            ("--scale 0", CheckpointSpec { scale: 0.0, ..spec() }),
            ("--scale NaN", CheckpointSpec { scale: f64::NAN, ..spec() }),
            ("‹io_bytes› 100", CheckpointSpec { io_bytes: 100, ..spec() }),
            ("‹depth› 0", CheckpointSpec { depth: 0, ..spec() }),
            ("‹workers› 0", CheckpointSpec { workers: Some(0), ..spec() }),
            ("--between -1", CheckpointSpec { between_s: -1.0, ..spec() }),
            ("‹timeout_s› NaN", CheckpointSpec { timeout_s: f64::NAN, ..spec() }),
            ("‹path› mapped", CheckpointSpec { path: PathKind::Mapped, ..spec() }),
            ("‹cache›", CheckpointSpec { cache: Cache::Warm, ..spec() }),
            ("‹engine› map", CheckpointSpec { engine: Engine::Map, ..spec() }),
        ];
        for (flag, spec) in cases {
            let error = spec.check().unwrap_err();
            assert!(error.asked.starts_with(flag), "{flag}: {error}");
            assert_eq!(error.kind, crate::Kind::Request);
        }
    }

    #[test]
    fn a_subset_has_the_first_ranks_of_the_whole_and_copies_cut_it_finer() {
        let whole = spec();
        let subset = CheckpointSpec { ranks: Some(2), ..spec() };
        assert_eq!((whole.mode(), subset.mode()), (Mode::Default, Mode::Subset));
        assert_eq!(subset.sizes().bytes() * 4, whole.sizes().bytes());
        let copies = CheckpointSpec { ranks: Some(16), ..spec() };
        assert_eq!(copies.mode(), Mode::Copies);
        assert_eq!(copies.cut().data, 16);
        let (more, less) = (copies.sizes(), whole.sizes());
        // The same model in more parts, but for the five dimensions that each part has beside it.
        assert!(more.model <= less.model && more.optimizer - less.optimizer <= 8 * 15 * 4096 * 4);
    }

    #[test]
    fn shifted_reads_are_of_the_next_host() {
        let second = CheckpointSpec { first_rank: 4, ranks_here: Some(4), hosts: 2, shift: true, ..spec() };
        second.check().unwrap();
        assert_eq!((second.reads_as(4), second.reads_as(7)), (0, 3));
        assert_eq!(CheckpointSpec { first_rank: 0, ..second }.reads_as(1), 5);
    }
}
