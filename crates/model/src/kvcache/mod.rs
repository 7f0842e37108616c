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

use crate::job::{as_job, Cache, Engine};
use crate::no_numbers;
use crate::request::Kind::*;
use crate::request::{check_bounds, flag, switch, ANY};
use crate::wording::named;
use crate::Error;
use models::Shape;
use script::Script;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::Arc;
use users::User;

/// Threads of the reference that serve requests, at most; each has one request at a time.
const SERVED_AT_ONCE_MAX: u32 = 500;
/// Requests of one process: their queue has to fit into memory.
const REQUESTS_MAX: f64 = 5e6;
const RANKS_MAX: u32 = 1 << 16;
/// Ranks whose users' entries a capacity must hold.
const RANKS_LOOKED_AT: u32 = 16;
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

no_numbers!(Phase);

crate::request! {
    /// A run as asked for. Sizes in bytes, times in seconds.
    pub struct KvSpec;
    /// 1, 2 or 3 of MLPerf Storage v3.0; other settings of the same run may differ from it.
    option: u32 = 1,
        flag("option", Integer, "1|2|3", "MLPerf Storage v3.0's option. Default: 1.");
    /// Folder of the entries, below it one of each rank; a source without files, all of it; or `model:DRIVE`.
    dir: String = String::new(),
        flag("dir", Text, "DIR|SOURCE", "Where entries are kept: a folder, a source, or model:DRIVE.");
    /// Users of each rank.
    users: u32 = 200,
        flag("users", Integer, "N", "Users of each rank. Default: the option's, 200, 100 or 70.")
            .within(1.0, ANY, "must be above 0", "200");
    /// A name, or dimensions (`Shape::parse`).
    model: String = "llama3.1-8b".into(),
        flag("model", Text, "NAME", "llama3.1-8b …, or layers=32,kv_heads=8,head_dim=128,dtype=bf16.");
    duration_s: f64 = 300.0,
        flag("duration", Seconds, "SECONDS", "The window. Default: 300. Requests under way go on after it.");
    /// Ranks of the whole run; a rank is a client of the reference, with users of its own.
    ranks: u32 = 1,
        flag("ranks", Integer, "N", "Clients, each with users of its own. Default: 1; under mpirun: its ranks.")
            .within(1.0, RANKS_MAX as f64, "must be 1 to 65536", "1");
    /// This process has `first_rank` and the `ranks_here - 1` after it. None: all.
    first_rank: u32 = 0;
    ranks_here: Option<u32> = None;
    /// Processes of the run, one on each host.
    hosts: u32 = 1;
    seed: u64 = 42,
        flag("seed", Seed, "N",
            "Seed of users, requests and content; a rank adds its number. Default: 42.");
    /// Entries that are written at once.
    admission: u32 = 16,
        flag("admission", Integer, "N", "Entries written at once by each rank. Default: the option's, 16 or 4.")
            .within(1.0, 65_536.0, "must be 1 to 65536", "16");
    /// Memory tier of each rank in front of storage; 0: none.
    host_tier_bytes: u64 = 0,
        flag("host-tier", Size, "SIZE", "Memory tier in front of storage. Default: the option's, 0 or 4g.");
    /// Room for entries of each rank. None: what the file system has free, to 95 %.
    capacity_bytes: Option<u64> = None,
        flag("capacity", Size, "SIZE", "Room for the entries of each rank. Default: 95 % of what is free.");
    io_bytes: u64 = 1 << 20,
        flag("io-size", Size, "SIZE", "Bytes per I/O. Default: 1m.");
    /// I/Os in flight per worker.
    depth: u32 = 32,
        flag("depth", Integer, "N", "I/Os in flight per worker. Default: 32.")
            .within(1.0, 1024.0, "must be 1 to 1024", "32");
    /// Threads that do I/O. None: as many as pay.
    workers: Option<u32> = None,
        flag("workers", Integer, "N", "Threads that move entries. Default: one per CPU, at most 4.")
            .within(1.0, 1024.0, "must be 1 to 1024", "2");
    cache: Cache = Cache::Bypass,
        flag("cache", Choice(&["bypass", "drop"]), "POLICY",
            "bypass (O_DIRECT), or drop: the page cache, emptied. Default: bypass.");
    engine: Engine = Engine::Auto,
        flag("engine", Choice(&["auto", "uring", "pread", "inline"]), "NAME",
            "I/O engine: auto, uring (io_uring), pread or inline.");
    phase: Phase = Phase::Both,
        flag("phase", Choice(&["both", "prefill", "decode"]), "PHASE",
            "Only write entries (prefill), or only read what is there before (decode).");
    /// Every byte read is compared with what was written.
    verify: bool = false,
        switch("verify", "Compare every byte that is read with what was written.");
    /// An I/O unfinished after this many seconds fails the run.
    timeout_s: f64 = 30.0,
        flag("timeout", Seconds, "SECONDS", "Fail the run if an I/O takes longer than this. Default: 30.")
            .above(0.0, 3600.0, "must be above 0 and at most 3600", "30");
    interval_ms: u32 = 250;
    /// Power meters, as of a job.
    power: Vec<String> = Vec::new(),
        as_job("power");
    /// Keep what is read and written, entry by entry.
    trace: bool = false;
    /// Files and devices that may be written over, as of a job: where `dir` is a source without files.
    overwrite: Vec<String> = Vec::new(),
        flag("overwrite", Words, "FILE",
            "Keep entries in this file, which Forebay didn't create, in place of a folder.");
    overwrite_devices: Vec<String> = Vec::new(),
        flag("overwrite-device", Words, "DEVICE",
            "Keep entries on this device or namespace, over all that it holds.");
    /// Faults to inject (tests).
    faults: Option<String> = None;
    /// A recorded trace in place of the users; `users` then is how many blocks move at once, `duration_s` until its last
    /// request.
    replay: Option<Arc<Script>> {serde(skip)} = None;
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
        check_bounds(Self::FIELDS, self, named)?;
        let wrong = self.load_bounds().into_iter().chain(self.io_bounds()).find(|row| row.0);
        wrong.map_or(Ok(()), |(_, asked, found, next)| Err(Error::request(asked, found, next)))?;
        self.check_capacity()
    }

    /// Room for the largest entry, or requests of its user would all go without.
    fn check_capacity(&self) -> Result<(), Error> {
        let Some(room) = self.capacity_bytes.filter(|_| self.replay.is_none()) else { return Ok(()) };
        let ranks = 0..self.ranks.min(RANKS_LOOKED_AT);
        let users = ranks.flat_map(|rank| User::all(self.seed_of(rank), self.users));
        let tokens = users.map(|user| user.context_max()).max().unwrap_or(0);
        let entry = u64::from(tokens).saturating_mul(self.token_bytes()?);
        if room >= entry {
            return Ok(());
        }
        Err(Error::request(
            format!("--capacity {room}"),
            format!("an entry of up to {tokens} tokens takes {entry} bytes"),
            format!("--capacity {}m", (10 * entry).div_ceil(1 << 20)),
        ))
    }

    fn load_bounds(&self) -> Vec<Bound> {
        let made = f64::from(self.users) * self.duration_s * users::USER_RATE * f64::from(self.ranks_here());
        let requests = self.replay.as_ref().map_or(made, |_| 0.0);
        let duration_max = self.replay.as_ref().map_or(86_400.0, |_| 1e9);
        vec![
            (self.dir.is_empty(), "--dir".into(), "no folder was given", "--dir DIR"),
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
            (self.hosts == 0, format!("--ranks {}", self.ranks), "must be 1 to 65536", "--ranks 1"),
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
                self.capacity_bytes == Some(0),
                "--capacity 0".into(),
                "leaves no room for an entry",
                "--capacity 100g",
            ),
            (
                self.io_bytes == 0 || self.io_bytes > IO_BYTES_MAX || self.io_bytes % 4096 != 0,
                format!("‹io_bytes› {}", self.io_bytes),
                "must be a multiple of 4096 bytes, up to 64 MiB",
                "‹io_bytes› 1m",
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
