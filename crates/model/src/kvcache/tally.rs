//! What a rank counts while it is served.

use super::cache::Key;
use super::users::Request;

/// A request that was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    pub request: Request,
    /// All since the run began, ns.
    pub started_ns: u64,
    pub ended_ns: u64,
    /// Time in its reads and writes; of these the write of its entry, and the reads of it.
    pub storage_ns: u64,
    pub prefill_ns: u64,
    pub decode_ns: u64,
    /// Time until its write was admitted, and until another had read an entry that it wanted.
    pub admission_ns: u64,
    pub entry_ns: u64,
}

/// An entry that was read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traced {
    pub at_ns: u64,
    pub is_write: bool,
    pub on_storage: bool,
    pub bytes: u64,
    pub key: Key,
    pub phase: &'static str,
}

/// Counters of one tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierCount {
    pub reads: u64,
    pub writes: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub entries: u64,
    pub used_bytes: u64,
}

/// Counters of a rank.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    pub offered: u64,
    pub in_window: u64,
    pub output_tokens: u64,
    pub context_tokens: u64,
    /// Tokens of entries that were written to storage or read from it.
    pub storage_tokens: u64,
    pub hits: u64,
    pub misses: u64,
    pub prompts: u64,
    pub own_hits: u64,
    pub earlier_hits: u64,
    pub earlier_misses: u64,
    pub demoted: u64,
    pub evicted: u64,
    /// Entries that were found missing or damaged, and writes that were given up because nothing more could be evicted.
    pub lost: u64,
    pub given_up: u64,
    pub host: TierCount,
    pub storage: TierCount,
    /// Bytes of the entries that were written.
    pub entry_bytes: Vec<u64>,
}

/// How many requests were in which state, on the average of the window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Occupied {
    pub serving: f64,
    pub admission: f64,
    pub entry: f64,
    pub reading: f64,
    pub writing: f64,
    /// Share of the window in which as many were written as may be.
    pub full: f64,
}
