//! A serving engine that keeps its key-value cache on storage, as MLPerf Storage v3.0 has it: the request, what users
//! ask for (`users`), which requests are served when and what they read and write (`service`), where entries lie
//! (`cache`), the part of a record (`record`), and the whole on a modelled drive (`simulate`).
//!
//! Nothing here moves a byte or looks at a clock: the engine in `crates/training` plays a `Service` on files, `simulate`
//! plays the same one in virtual time.

mod act;
mod cache;
pub mod merge;
pub mod models;
mod python;
pub mod record;
pub mod script;
pub mod service;
pub mod simulate;
mod tally;
pub mod users;

pub use record::KvCache;
pub use service::{Act, Ended, Service};

use crate::job::{Cache, Engine};
use crate::Error;
use models::Shape;
use script::Script;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::Arc;

/// Threads of the reference that serve requests, at most; each has one request at a time.
const SERVED_AT_ONCE_MAX: u32 = 500;
/// Requests of one process: their queue has to fit into memory.
const REQUESTS_MAX: f64 = 5e6;
const RANKS_MAX: u32 = 1 << 16;
const IO_BYTES_MAX: u64 = 64 << 20;
/// The reference waits so long for each of its threads once the time is over, and then counts what it has.
const JOIN_NS: u64 = 2_000_000_000;

/// Whether a setting is out of bounds; what was asked for, what is wrong with it, and what to type.
type Bound = (bool, String, &'static str, &'static str);

/// What requests do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    #[default]
    Both,
    /// Entries are written and never read.
    Prefill,
    /// Entries that were there before, one of each user, are read.
    Decode,
}

/// A run as asked for. Sizes in bytes, times in seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KvSpec {
    /// 1, 2 or 3 of MLPerf Storage v3.0; other settings of the same run may differ from it.
    pub option: u32,
    /// A name, or dimensions (`Shape::parse`).
    pub model: String,
    /// Users of each rank.
    pub users: u32,
    pub duration_s: f64,
    /// Ranks of the whole run; a rank is a client of the reference, with users of its own.
    pub ranks: u32,
    /// This process has `first_rank` and the `ranks_here - 1` after it. None: all.
    pub first_rank: u32,
    pub ranks_here: Option<u32>,
    /// Processes of the run, one on each host.
    pub hosts: u32,
    pub seed: u64,
    /// Folder of the entries, below it one of each rank; a source without files, all of it; or `model:DRIVE`.
    pub dir: String,
    /// Entries that are written at once.
    pub admission: u32,
    /// Memory tier of each rank in front of storage; 0: none.
    pub host_tier_bytes: u64,
    /// Room for entries of each rank. None: what the file system has free, to 95 %.
    pub capacity_bytes: Option<u64>,
    pub io_bytes: u64,
    /// I/Os in flight per worker.
    pub depth: u32,
    /// Threads that do I/O. None: as many as pay.
    pub workers: Option<u32>,
    pub cache: Cache,
    pub engine: Engine,
    pub phase: Phase,
    /// Every byte read is compared with what was written.
    pub verify: bool,
    /// An I/O unfinished after this many seconds fails the run.
    pub timeout_s: f64,
    pub interval_ms: u32,
    /// Power meters, as of a job.
    pub power: Vec<String>,
    /// Keep what is read and written, entry by entry.
    pub trace: bool,
    /// Files and devices that may be written over, as of a job: where `dir` is a source without files.
    pub overwrite: Vec<String>,
    pub overwrite_devices: Vec<String>,
    /// Faults to inject (tests).
    pub faults: Option<String>,
    /// A recorded trace in place of the users; `users` then is how many blocks move at once, `duration_s` until its last
    /// request.
    #[serde(skip)]
    pub replay: Option<Arc<Script>>,
}

impl Default for KvSpec {
    fn default() -> Self {
        KvSpec {
            option: 1,
            model: "llama3.1-8b".into(),
            users: 200,
            duration_s: 300.0,
            ranks: 1,
            first_rank: 0,
            ranks_here: None,
            hosts: 1,
            seed: 42,
            dir: String::new(),
            admission: 16,
            host_tier_bytes: 0,
            capacity_bytes: None,
            io_bytes: 1 << 20,
            depth: 32,
            workers: None,
            cache: Cache::Bypass,
            engine: Engine::Auto,
            phase: Phase::Both,
            verify: false,
            timeout_s: 30.0,
            interval_ms: 250,
            power: Vec::new(),
            trace: false,
            overwrite: Vec::new(),
            overwrite_devices: Vec::new(),
            faults: None,
            replay: None,
        }
    }
}

impl KvSpec {
    /// # Errors
    /// `Request`: the text isn't a spec.
    pub fn from_json(text: &str) -> Result<KvSpec, Error> {
        serde_json::from_str(text)
            .map_err(|e| Error::request("the KV-cache run", e.to_string(), "forebay emulate kvcache --help"))
    }

    /// What MLPerf Storage v3.0 fixes for an option of its closed division.
    ///
    /// # Errors
    /// `Request`: there is no such option.
    pub fn of_option(option: u32) -> Result<KvSpec, Error> {
        let spec = KvSpec { option, ..KvSpec::default() };
        match option {
            1 => Ok(spec),
            2 => Ok(KvSpec { users: 100, host_tier_bytes: 4 << 30, ..spec }),
            3 => Ok(KvSpec { users: 70, model: "llama3.1-70b-instruct".into(), admission: 4, ..spec }),
            _ => Err(Error::request(
                format!("--option {option}"),
                "MLPerf Storage v3.0 has options 1, 2 and 3",
                "--option 1",
            )),
        }
    }

    /// Errors that don't depend on the machine.
    ///
    /// # Errors
    /// `Request`: a setting is out of bounds.
    pub fn check(&self) -> Result<(), Error> {
        KvSpec::of_option(self.option)?;
        self.token_bytes()?;
        let wrong = self.load_bounds().into_iter().chain(self.io_bounds()).find(|row| row.0);
        wrong.map_or(Ok(()), |(_, asked, found, next)| Err(Error::request(asked, found, next)))
    }

    fn load_bounds(&self) -> Vec<Bound> {
        let made = f64::from(self.users) * self.duration_s * users::USER_RATE * f64::from(self.ranks_here());
        let requests = self.replay.as_ref().map_or(made, |_| 0.0);
        let duration_max = self.replay.as_ref().map_or(86_400.0, |_| 1e9);
        vec![
            (self.dir.is_empty(), "--dir".into(), "no folder was given", "--dir DIR"),
            (self.users == 0, format!("--users {}", self.users), "must be above 0", "--users 200"),
            (
                !(self.duration_s > 0.0 && self.duration_s <= duration_max),
                format!("‹duration_s› {}", self.duration_s),
                "must be above 0 and at most a day",
                "‹duration_s› 300",
            ),
            (
                requests > REQUESTS_MAX,
                format!("--users {} for {} s", self.users, self.duration_s),
                "make more requests than their queue may hold (5 million)",
                "fewer users, a shorter run, or more ranks under mpirun",
            ),
            (
                self.admission == 0 || self.admission > 65_536,
                format!("--admission {}", self.admission),
                "must be 1 to 65536",
                "--admission 16",
            ),
            (
                self.ranks == 0 || self.ranks > RANKS_MAX || self.hosts == 0,
                format!("--ranks {}", self.ranks),
                "must be 1 to 65536",
                "--ranks 1",
            ),
            (
                self.ranks_here() == 0
                    || u64::from(self.first_rank) + u64::from(self.ranks_here()) > u64::from(self.ranks),
                format!("ranks from {} on, {} of them", self.first_rank, self.ranks_here()),
                "lie beyond those of the run",
                "--ranks 1",
            ),
        ]
    }

    fn io_bounds(&self) -> Vec<Bound> {
        vec![
            (
                self.io_bytes == 0 || self.io_bytes > IO_BYTES_MAX || self.io_bytes % 4096 != 0,
                format!("‹io_bytes› {}", self.io_bytes),
                "must be a multiple of 4096 bytes, up to 64 MiB",
                "‹io_bytes› 1m",
            ),
            (
                self.depth == 0 || self.depth > 1024,
                format!("‹depth› {}", self.depth),
                "must be 1 to 1024",
                "‹depth› 32",
            ),
            (
                self.workers.is_some_and(|n| n == 0 || n > 1024),
                format!("‹workers› {}", self.workers.unwrap_or(0)),
                "must be 1 to 1024",
                "‹workers› 2",
            ),
            (
                !(self.timeout_s > 0.0 && self.timeout_s <= 3600.0),
                format!("‹timeout_s› {}", self.timeout_s),
                "must be above 0 and at most 3600",
                "‹timeout_s› 30",
            ),
            (
                !matches!(self.cache, Cache::Bypass | Cache::Drop),
                "‹cache›".into(),
                "must be bypass (O_DIRECT) or drop (through the page cache, which is emptied)",
                "‹cache› bypass",
            ),
        ]
    }

    /// # Errors
    /// `Request`: no model has this name, or these dimensions.
    pub fn token_bytes(&self) -> Result<u64, Error> {
        Shape::parse(&self.model).map(Shape::token_bytes)
    }

    pub fn ranks_here(&self) -> u32 {
        self.ranks_here.unwrap_or(self.ranks)
    }

    pub fn ranks_of_process(&self) -> Range<u32> {
        self.first_rank..self.first_rank.saturating_add(self.ranks_here())
    }

    pub fn seed_of(&self, rank: u32) -> u64 {
        self.seed.wrapping_add(u64::from(rank))
    }

    /// Requests of one rank that are served at once: the threads that the reference has for them.
    pub fn served_at_once(&self) -> u32 {
        self.users.min(SERVED_AT_ONCE_MAX)
    }

    pub fn window_ns(&self) -> u64 {
        (self.duration_s * 1e9) as u64
    }

    /// When the reference counts what it has, at the latest: requests go on after the window, while it waits for the
    /// threads that serve them.
    pub fn counted_until_ns(&self) -> u64 {
        if self.replay.is_some() {
            // A trace is played to its end.
            return u64::MAX / 2;
        }
        self.window_ns() + u64::from(self.served_at_once()) * JOIN_NS
    }
}
