//! What came of a KV-cache run: the part `kvcache` of a record.

use super::service::{Counts, Occupied, Served, Service, TierCount};
use super::users::Class;
use super::KvSpec;
use crate::units::BYTES_PER_GIB as GIB;
use crate::Latency;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct KvCache {
    /// Never anything else: no result of ours is one that MLCommons has verified.
    pub label: String,
    pub option: u32,
    pub model: String,
    /// Bytes of one token of context.
    pub bytes_per_token: u64,
    /// Users of each rank.
    pub users: u32,
    pub ranks: u32,
    pub seed: u64,
    /// The window: requests come, and are taken up, in this time.
    pub duration_s: f64,
    /// Time of the last I/O; those of requests that were under way when the window ended are after it.
    pub last_s: f64,
    /// The last request was served to its end; false where the run was stopped before.
    pub drained: bool,
    /// Requests that each rank serves at once, and entries that it writes at once.
    pub served_at_once: u32,
    pub admission: u32,
    pub host_tier_bytes: u64,
    pub storage_tier_bytes: Option<u64>,
    pub requests: Requests,
    pub tokens: Tokens,
    pub read_gib_s: Rates,
    pub write_gib_s: Rates,
    /// Bytes of storage alone.
    pub read_bytes: u64,
    pub write_bytes: u64,
    /// Output tokens over the time that requests spent in their reads and writes, as the reference has it.
    pub storage_tokens_per_s: Option<f64>,
    pub output_tokens_per_s: f64,
    pub requests_per_s: f64,
    /// Of every request that came, 16 hexadecimal digits; null where the window wasn't seen to its end.
    pub stream_hash: Option<String>,
    /// `drive`, `cpu`, `admission` or `users`; null where nothing tells.
    pub limit: Option<String>,
    pub limit_reason: String,
    pub entries: Entries,
    pub latency_ms: Latencies,
    pub classes: Classes,
    pub hits: Hits,
    pub tiers: Tiers,
    pub waited_s: Waited,
    /// Requests in each state, on the average of the window.
    pub occupied: States,
    /// What couldn't be read in the reference, and was assumed.
    pub assumptions: Vec<String>,
}

/// A rate by three formulas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rates {
    /// The reference's: all bytes over the window, with those that moved after it.
    pub as_published: f64,
    /// Bytes of I/Os that completed inside the window, over the window.
    pub window: f64,
    /// All bytes over the time of the last.
    pub drained: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Requests {
    /// Came in the window.
    pub offered: u64,
    pub served: u64,
    /// Of those served: ended inside the window.
    pub in_window: u64,
    /// Never taken up.
    pub left_queued: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tokens {
    /// Of requests that were served.
    pub context: u64,
    pub output: u64,
    /// Of entries that were written to storage or read from it.
    pub storage: u64,
}

/// Entries that were written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Entries {
    pub count: u64,
    pub bytes_mean: f64,
    pub bytes_p95: f64,
    pub bytes_max: u64,
    pub evicted: u64,
    /// Moved from memory to storage.
    pub demoted: u64,
    /// Found missing or damaged, and not written because storage was full of entries in use.
    pub lost: u64,
    pub given_up: u64,
}

/// A distribution in milliseconds; all null where nothing was timed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Spread {
    pub count: u64,
    pub mean: Option<f64>,
    pub p50: Option<f64>,
    pub p95: Option<f64>,
    pub p99: Option<f64>,
    pub p999: Option<f64>,
    pub p9999: Option<f64>,
    pub max: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Latencies {
    /// All of an entry, from or to storage.
    pub entry_read: Spread,
    pub entry_write: Spread,
    /// Its flush, which is part of its write.
    pub flush: Spread,
    /// One I/O.
    pub block_read: Spread,
    pub block_write: Spread,
    /// From the arrival of a request to its end; its reads and writes; its wait in the queue; its wait to be admitted.
    pub request: Spread,
    pub storage: Spread,
    pub queued: Spread,
    pub admission: Spread,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Classes {
    pub interactive: ClassResult,
    pub responsive: ClassResult,
    pub batch: ClassResult,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClassResult {
    pub requests: u64,
    /// From arrival to end.
    pub latency_ms: Spread,
    pub sla: Sla,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sla {
    pub target_p95_ms: f64,
    pub actual_p95_ms: Option<f64>,
    /// Share of requests within the target, 0 to 1.
    pub compliance: Option<f64>,
    pub met: Option<bool>,
}

/// Looks for entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Hits {
    pub lookups: u64,
    pub hits: u64,
    pub misses: u64,
    /// System prompts, which the reference looks up and never writes.
    pub system_prompts: u64,
    pub multi_turn: u64,
    pub multi_turn_missed: u64,
    /// A request's own entry.
    pub own: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tiers {
    pub host: TierResult,
    pub storage: TierResult,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TierResult {
    pub reads: u64,
    pub writes: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    /// At the end.
    pub entries: u64,
    pub used_bytes: u64,
}

/// Where the time of the requests that were served went, in seconds of all of them together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Waited {
    /// For a place.
    pub queue: f64,
    /// For leave to write.
    pub admission: f64,
    /// For another request that read the same entry.
    pub entry: f64,
    pub storage: f64,
    pub host: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct States {
    pub serving: f64,
    pub admission: f64,
    pub entry: f64,
    pub reading: f64,
    pub writing: f64,
    /// Share of the window in which no more may be written at once.
    pub admission_full: f64,
}

impl Default for KvCache {
    fn default() -> Self {
        KvCache {
            label: "MLPerf-style, unverified".into(),
            option: 1,
            model: String::new(),
            bytes_per_token: 0,
            users: 0,
            ranks: 1,
            seed: 0,
            duration_s: 0.0,
            last_s: 0.0,
            drained: false,
            served_at_once: 0,
            admission: 0,
            host_tier_bytes: 0,
            storage_tier_bytes: None,
            requests: Requests::default(),
            tokens: Tokens::default(),
            read_gib_s: Rates::default(),
            write_gib_s: Rates::default(),
            read_bytes: 0,
            write_bytes: 0,
            storage_tokens_per_s: None,
            output_tokens_per_s: 0.0,
            requests_per_s: 0.0,
            stream_hash: None,
            limit: None,
            limit_reason: String::new(),
            entries: Entries::default(),
            latency_ms: Latencies::default(),
            classes: Classes::default(),
            hits: Hits::default(),
            tiers: Tiers::default(),
            waited_s: Waited::default(),
            occupied: States::default(),
            assumptions: Vec::new(),
        }
    }
}

/// Bytes that storage moved, and when: what a rank doesn't know.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moved {
    /// Read and written: all, those that the reference counts, and by I/Os that completed inside the window.
    pub all: [u64; 2],
    pub counted: [u64; 2],
    pub in_window: [f64; 2],
    /// Time of the last I/O, ns; and how long the window was where it ended early.
    pub last_ns: u64,
    pub window_ns: u64,
}

/// How the run ended, and the processors that it had.
#[derive(Clone, Debug, Default)]
pub struct Circumstance {
    /// The window was seen to its end, and every request that had been taken up.
    pub whole_window: bool,
    pub drained: bool,
    /// Cores that the process kept busy, of those it may use.
    pub cores: Option<(f64, f64)>,
    pub flush: Spread,
    pub blocks: [Spread; 2],
    pub assumptions: Vec<String>,
}

impl Moved {
    fn rates(&self, which: usize) -> Rates {
        let per = |bytes: f64, ns: u64| if ns > 0 { bytes / GIB / (ns as f64 / 1e9) } else { 0.0 };
        Rates {
            as_published: per(self.counted[which] as f64, self.window_ns),
            window: per(self.in_window[which], self.window_ns),
            drained: per(self.all[which] as f64, self.last_ns),
        }
    }
}

impl KvCache {
    /// The result of the ranks of one process.
    pub fn from_ranks(
        spec: &KvSpec,
        ranks: &[Service],
        moved: &Moved,
        circumstance: Circumstance,
    ) -> KvCache {
        let counts = sum(ranks.iter().map(Service::counts));
        let served: Vec<&Served> = ranks.iter().flat_map(|rank| &rank.served).collect();
        let window_s = moved.window_ns as f64 / 1e9;
        let storage_s = served.iter().map(|s| s.storage_ns).sum::<u64>() as f64 / 1e9;
        let per_window = |amount: u64| if window_s > 0.0 { amount as f64 / window_s } else { 0.0 };
        let hash = ranks.iter().fold(0u64, |all, rank| all.wrapping_add(rank.hash()));
        let states = occupied(ranks);
        let (limit, limit_reason) = limit_of(spec, ranks.len(), &states, circumstance.cores);
        KvCache {
            option: spec.option,
            model: spec.model.clone(),
            bytes_per_token: spec.token_bytes().unwrap_or(0),
            users: spec.users,
            ranks: spec.ranks,
            seed: spec.seed,
            duration_s: spec.duration_s,
            last_s: moved.last_ns as f64 / 1e9,
            drained: circumstance.drained,
            served_at_once: spec.served_at_once(),
            admission: spec.admission,
            host_tier_bytes: spec.host_tier_bytes,
            storage_tier_bytes: spec.capacity_bytes,
            requests: Requests {
                offered: counts.offered,
                served: served.len() as u64,
                in_window: counts.in_window,
                left_queued: ranks.iter().map(Service::queued).sum(),
            },
            tokens: Tokens {
                context: counts.context_tokens,
                output: counts.output_tokens,
                storage: counts.storage_tokens,
            },
            read_gib_s: moved.rates(0),
            write_gib_s: moved.rates(1),
            read_bytes: moved.all[0],
            write_bytes: moved.all[1],
            storage_tokens_per_s: (storage_s > 0.0).then(|| counts.output_tokens as f64 / storage_s),
            output_tokens_per_s: per_window(counts.output_tokens),
            requests_per_s: per_window(served.len() as u64),
            stream_hash: circumstance.whole_window.then(|| format!("{hash:016x}")),
            limit,
            limit_reason,
            entries: entries_of(&counts),
            latency_ms: latencies_of(ranks, &served, &circumstance),
            classes: Classes::from_served(&served),
            hits: hits_of(&counts),
            tiers: Tiers {
                host: TierResult::from_count(counts.host),
                storage: TierResult::from_count(counts.storage),
            },
            waited_s: waited_of(&served),
            occupied: states,
            assumptions: circumstance.assumptions,
            ..KvCache::default()
        }
    }
}

fn sum(counts: impl Iterator<Item = Counts>) -> Counts {
    counts.fold(Counts::default(), |mut all, c| {
        let tier = |a: TierCount, b: TierCount| TierCount {
            reads: a.reads + b.reads,
            writes: a.writes + b.writes,
            read_bytes: a.read_bytes + b.read_bytes,
            written_bytes: a.written_bytes + b.written_bytes,
            entries: a.entries + b.entries,
            used_bytes: a.used_bytes + b.used_bytes,
        };
        (all.host, all.storage) = (tier(all.host, c.host), tier(all.storage, c.storage));
        all.entry_bytes.extend(c.entry_bytes);
        for (total, part) in [
            (&mut all.offered, c.offered),
            (&mut all.in_window, c.in_window),
            (&mut all.output_tokens, c.output_tokens),
            (&mut all.context_tokens, c.context_tokens),
            (&mut all.storage_tokens, c.storage_tokens),
            (&mut all.hits, c.hits),
            (&mut all.misses, c.misses),
            (&mut all.prompts, c.prompts),
            (&mut all.own_hits, c.own_hits),
            (&mut all.earlier_hits, c.earlier_hits),
            (&mut all.earlier_misses, c.earlier_misses),
            (&mut all.demoted, c.demoted),
            (&mut all.evicted, c.evicted),
            (&mut all.lost, c.lost),
            (&mut all.given_up, c.given_up),
        ] {
            *total += part;
        }
        all
    })
}

fn occupied(ranks: &[Service]) -> States {
    ranks.iter().map(Service::occupied).fold(States::default(), |all, rank: Occupied| States {
        serving: all.serving + rank.serving,
        admission: all.admission + rank.admission,
        entry: all.entry + rank.entry,
        reading: all.reading + rank.reading,
        writing: all.writing + rank.writing,
        admission_full: all.admission_full + rank.full / ranks.len() as f64,
    })
}

/// What held the run back: fewer requests than places, a processor that had no time left, leave to write, or else the
/// drive, in which all others waited.
fn limit_of(
    spec: &KvSpec,
    ranks: usize,
    states: &States,
    cores: Option<(f64, f64)>,
) -> (Option<String>, String) {
    let places = f64::from(spec.served_at_once()) * ranks as f64;
    let busy = states.serving / places;
    let reported = |limit: &str, why: String| (Some(limit.to_string()), why);
    if states.serving <= 0.0 {
        return (None, "no request was served".into());
    }
    if busy < 0.9 {
        return reported(
            "users",
            format!("{:.0} % of the places to serve a request were taken", 100.0 * busy),
        );
    }
    if let Some((used, may)) = cores.filter(|(used, may)| *used > 0.9 * may) {
        return reported("cpu", format!("{used:.1} of {may:.1} cores were busy"));
    }
    if states.admission_full > 0.9 && states.admission > states.reading + states.writing {
        let why = format!(
            "{:.0} requests waited to be among the {} that write at once, and {:.0} read or wrote",
            states.admission,
            spec.admission,
            states.reading + states.writing,
        );
        return reported("admission", why);
    }
    reported(
        "drive",
        format!("{:.0} requests read and {:.0} wrote at a time", states.reading, states.writing),
    )
}

fn entries_of(counts: &Counts) -> Entries {
    let mut sizes: Vec<f64> = counts.entry_bytes.iter().map(|bytes| *bytes as f64).collect();
    sizes.sort_by(f64::total_cmp);
    Entries {
        count: sizes.len() as u64,
        bytes_mean: counts.entry_bytes.iter().sum::<u64>() as f64 / sizes.len().max(1) as f64,
        bytes_p95: percentile(&sizes, 95.0).unwrap_or(0.0),
        bytes_max: counts.entry_bytes.iter().copied().max().unwrap_or(0),
        evicted: counts.evicted,
        demoted: counts.demoted,
        lost: counts.lost,
        given_up: counts.given_up,
    }
}

fn hits_of(counts: &Counts) -> Hits {
    Hits {
        lookups: counts.hits + counts.misses,
        hits: counts.hits,
        misses: counts.misses,
        system_prompts: counts.prompts,
        multi_turn: counts.earlier_hits,
        multi_turn_missed: counts.earlier_misses,
        own: counts.own_hits,
    }
}

fn latencies_of(ranks: &[Service], served: &[&Served], circumstance: &Circumstance) -> Latencies {
    let merged = |which: fn(&Service) -> &Latency| {
        ranks.iter().fold(Latency::default(), |mut all, rank| {
            all.merge(which(rank));
            all
        })
    };
    let of = |time: fn(&Served) -> u64| Spread::from_times(served.iter().map(|s| time(s)));
    Latencies {
        entry_read: Spread::of_latency(&merged(|rank| &rank.read)),
        entry_write: Spread::of_latency(&merged(|rank| &rank.written)),
        flush: circumstance.flush,
        block_read: circumstance.blocks[0],
        block_write: circumstance.blocks[1],
        request: of(|s| s.ended_ns - s.request.arrives_ns),
        storage: of(|s| s.storage_ns),
        queued: of(|s| s.started_ns - s.request.arrives_ns),
        admission: of(|s| s.admission_ns),
    }
}

fn waited_of(served: &[&Served]) -> Waited {
    let sum = |time: fn(&Served) -> u64| served.iter().map(|s| time(s)).sum::<u64>() as f64 / 1e9;
    let in_service = sum(|s| s.ended_ns - s.started_ns);
    let (storage, admission) = (sum(|s| s.storage_ns), sum(|s| s.admission_ns));
    let entry = sum(|s| s.entry_ns);
    Waited {
        queue: sum(|s| s.started_ns - s.request.arrives_ns),
        admission,
        entry,
        storage,
        host: (in_service - storage - admission - entry).max(0.0),
    }
}

impl TierResult {
    fn from_count(count: TierCount) -> TierResult {
        let TierCount { reads, writes, read_bytes, written_bytes, entries, used_bytes } = count;
        TierResult { reads, writes, read_bytes, written_bytes, entries, used_bytes }
    }
}

impl Classes {
    fn from_served(served: &[&Served]) -> Classes {
        let of = |class: Class| {
            let took = served.iter().filter(|s| s.request.class == class);
            let took: Vec<u64> = took.map(|s| s.ended_ns - s.request.arrives_ns).collect();
            let target = class.target_p95_ms();
            let within = took.iter().filter(|ns| **ns as f64 / 1e6 <= target).count() as f64;
            let spread = Spread::from_times(took.iter().copied());
            ClassResult {
                requests: took.len() as u64,
                latency_ms: spread,
                sla: Sla {
                    target_p95_ms: target,
                    actual_p95_ms: spread.p95,
                    compliance: (!took.is_empty()).then(|| within / took.len() as f64),
                    met: spread.p95.map(|p95| p95 <= target),
                },
            }
        };
        Classes {
            interactive: of(Class::Interactive),
            responsive: of(Class::Responsive),
            batch: of(Class::Batch),
        }
    }
}

impl Spread {
    /// Of nanoseconds, percentiles between two samples as NumPy has them.
    pub fn from_times(times: impl Iterator<Item = u64>) -> Spread {
        let mut ms: Vec<f64> = times.map(|ns| ns as f64 / 1e6).collect();
        ms.sort_by(f64::total_cmp);
        let at = |p: f64| percentile(&ms, p);
        Spread {
            count: ms.len() as u64,
            mean: (!ms.is_empty()).then(|| ms.iter().sum::<f64>() / ms.len() as f64),
            p50: at(50.0),
            p95: at(95.0),
            p99: at(99.0),
            p999: at(99.9),
            p9999: at(99.99),
            max: ms.last().copied(),
        }
    }

    pub fn of_latency(latency: &Latency) -> Spread {
        if latency.count() == 0 {
            return Spread::default();
        }
        let at = |p: f64| Some(latency.percentile_ns(p) as f64 / 1e6);
        Spread {
            count: latency.count(),
            mean: Some(latency.mean_ns() / 1e6),
            p50: at(50.0),
            p95: at(95.0),
            p99: at(99.0),
            p999: at(99.9),
            p9999: at(99.99),
            max: at(100.0),
        }
    }
}

/// Of ascending values: between the two that lie next to it.
fn percentile(ascending: &[f64], p: f64) -> Option<f64> {
    let last = ascending.len().checked_sub(1)?;
    let at = p / 100.0 * last as f64;
    let (below, above) = (ascending[at.floor() as usize], ascending[at.ceil() as usize]);
    Some(below + (above - below) * at.fract())
}
