//! Checkpoints of large models as MLPerf Storage writes and reads them: what each rank writes, what was asked for,
//! what came of it, and which rules hold.

pub mod layout;
pub mod merge;
pub mod record;
pub mod rules;

pub use layout::{Model, Part, Sizes};
pub use record::Checkpoint;

use crate::job::{Cache, Engine, PathKind};
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

/// A run as asked for. Sizes in bytes, times in seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CheckpointSpec {
    pub workload: String,
    /// Edition of the workload's constants.
    pub version: String,
    pub model: Model,
    pub rules: Edition,
    /// Below it each checkpoint is a folder, `global_epoch1_stepN`.
    pub dir: String,
    /// Ranks of the whole run. None: as many as the model is divided into.
    pub ranks: Option<u64>,
    /// This process has ranks `first_rank` and the `ranks_here - 1` after it. None: all.
    pub first_rank: u64,
    pub ranks_here: Option<u64>,
    /// Processes of this run, one on each host.
    pub hosts: u32,
    pub writes: u32,
    pub reads: u32,
    /// Seconds from the end of one checkpoint to the start of the next.
    pub between_s: f64,
    /// Every file's length is multiplied by this.
    pub scale: f64,
    pub io_bytes: u64,
    /// I/Os in flight per rank, as far as the buffers go.
    pub depth: u32,
    /// Threads. None: as many as there are processors, or ranks where those are fewer.
    pub workers: Option<u32>,
    /// Buffers of this process.
    pub buffer_bytes: u64,
    pub seed: u64,
    pub fsync: bool,
    /// Every byte written is made from the seed, and every byte read is compared with that.
    pub verify: bool,
    /// Read what another host wrote: each rank reads as the one `ranks_here` after it.
    pub shift: bool,
    /// Files stay after the last read.
    pub keep: bool,
    /// Checkpoints of ours that are there already are removed first.
    pub replace: bool,
    pub path: PathKind,
    /// cuFile may run in its compatibility mode.
    pub allow_compat: bool,
    /// Anything but direct DMA is an error.
    pub require_direct: bool,
    pub gpus: Vec<u32>,
    pub cache: Cache,
    pub engine: Engine,
    /// An I/O unfinished after this many seconds fails the run.
    pub timeout_s: f64,
    pub interval_ms: u32,
    /// Power meters, as of a job.
    pub power: Vec<String>,
    /// Apply the rules of the closed division: a setting that breaks one is refused before anything runs.
    pub closed: bool,
    /// Faults to inject (tests).
    pub faults: Option<String>,
}

impl Default for CheckpointSpec {
    fn default() -> Self {
        CheckpointSpec {
            workload: String::new(),
            version: String::new(),
            model: Model::default(),
            rules: Edition::V20,
            dir: String::new(),
            ranks: None,
            first_rank: 0,
            ranks_here: None,
            hosts: 1,
            writes: rules::CHECKPOINTS,
            reads: rules::CHECKPOINTS,
            between_s: rules::BETWEEN_S,
            scale: 1.0,
            io_bytes: 1 << 20,
            depth: 4,
            workers: None,
            buffer_bytes: 256 << 20,
            seed: 7,
            fsync: true,
            verify: true,
            shift: false,
            keep: false,
            replace: false,
            path: PathKind::Auto,
            allow_compat: false,
            require_direct: false,
            gpus: Vec::new(),
            cache: Cache::Bypass,
            engine: Engine::Auto,
            timeout_s: 30.0,
            interval_ms: 250,
            power: Vec::new(),
            closed: false,
            faults: None,
        }
    }
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
        for (flag, count) in [("--writes", self.writes), ("--reads", self.reads)] {
            if count > STEPS_MAX {
                let found = format!("must be at most {STEPS_MAX}");
                return bound(format!("{flag} {count}"), found, format!("{flag} 10"));
            }
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
        if !(self.scale > 0.0 && self.scale <= 1.0) {
            let found = "must be above 0 and at most 1".into();
            return bound(format!("--scale {}", self.scale), found, "--scale 0.01".into());
        }
        if self.io_bytes == 0 || self.io_bytes > IO_BYTES_MAX || self.io_bytes % 512 != 0 {
            let found = "must be a multiple of 512 bytes, up to 64 MiB".into();
            return bound(format!("‹io_bytes› {}", self.io_bytes), found, "‹io_bytes› 1m".into());
        }
        if self.depth == 0 || self.depth > 1024 {
            return bound(format!("‹depth› {}", self.depth), "must be 1 to 1024".into(), "‹depth› 4".into());
        }
        if self.workers.is_some_and(|w| w == 0 || w > 1024) {
            let asked = format!("‹workers› {}", self.workers.unwrap_or(0));
            return bound(asked, "must be 1 to 1024".into(), "‹workers› 2".into());
        }
        for (flag, seconds, least, most) in
            [("--between", self.between_s, 0.0, 86_400.0), ("‹timeout_s›", self.timeout_s, 0.01, 86_400.0)]
        {
            if !(seconds >= least && seconds <= most) {
                let found = format!("must be {least} to {most} seconds");
                return bound(format!("{flag} {seconds}"), found, format!("{flag} 5"));
            }
        }
        if self.interval_ms < 10 {
            let found = "must be at least 10 ms".into();
            return bound(format!("‹interval_ms› {}", self.interval_ms), found, "‹interval_ms› 250".into());
        }
        if matches!(self.path, PathKind::Mapped) {
            let found = "it only copies what the page cache holds, and a checkpoint is read from storage";
            return bound("‹path› mapped".into(), found.into(), "‹path› bounce, or gds".into());
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
