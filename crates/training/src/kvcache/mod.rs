//! A serving engine's key-value cache on storage, as MLPerf Storage v3.0 measures it.
//!
//! Who asks for what, and what that reads and writes, is a `Service` of `forebay_model::kvcache`; here its entries are
//! files, or extents of a source without any (`extents`), that a few threads move whole, many I/Os of each in flight (`worker`), in a folder (`folder`), for as long as
//! the run lasts (`run`).

mod claim;
mod extents;
mod folder;
mod results;
mod run;
mod virtual_time;
mod worker;

#[cfg(test)]
mod tests;

use crate::Barrier;
use forebay_bench::{requirements_of_job, with_run_thread, Observer, Outcome};
use forebay_model::job::{JobSpec, Op, PathKind, Sync};
use forebay_model::kvcache::record::{Circumstance, Moved};
use forebay_model::kvcache::script::Replayed;
use forebay_model::kvcache::service::{self, Served};
use forebay_model::kvcache::users::stream_hash;
use forebay_model::kvcache::{KvCache, KvSpec, Service};
use forebay_model::Error;
use serde::Serialize;
use std::collections::BTreeMap;

/// Threads that do I/O, where nobody asked for another number: one moves a drive's entries at a few hundredths of a
/// core-second a GiB.
const WORKERS_MAX: usize = 4;

/// What came of a run.
pub struct Done {
    pub outcome: Outcome,
    pub ranks: Vec<RankDone>,
}

/// What a rank's own files tell.
#[derive(Debug, Serialize)]
pub struct RankDone {
    pub rank: u32,
    /// As the record's, of this rank alone.
    pub kvcache: KvCache,
    /// In the order in which they were served.
    pub requests: Vec<Request>,
    /// What was read and written, if the spec asked for a trace.
    pub trace: Vec<Traced>,
    /// Of a recorded trace.
    pub replayed: Option<Replayed>,
}

/// A request that was served; all times in seconds, since the run began.
#[derive(Debug, Serialize)]
pub struct Request {
    pub user: u32,
    pub qos: &'static str,
    /// `prefill`: its entry was only written.
    pub phase: &'static str,
    pub arrived_s: f64,
    pub started_s: f64,
    pub ended_s: f64,
    /// In reads and writes; of these the write of its entry, and the reads of it.
    pub storage_s: f64,
    pub prefill_s: f64,
    pub decode_s: Option<f64>,
    pub context: u32,
    pub output: u32,
}

/// One entry that was read or written.
#[derive(Debug, Serialize)]
pub struct Traced {
    pub at_s: f64,
    pub operation: &'static str,
    pub bytes: u64,
    /// `host` or `storage`.
    pub tier: &'static str,
    pub key: String,
    /// `Prefill`, `Decode` or `Evict`.
    pub phase: &'static str,
}

impl RankDone {
    /// `capacity_bytes`: what the rank's entries might take.
    fn from_service(
        spec: &KvSpec,
        service: &Service,
        window_ns: u64,
        last_ns: u64,
        circumstance: Circumstance,
    ) -> RankDone {
        let counts = service.counts().storage;
        let (all, counted) = ([counts.read_bytes, counts.written_bytes], service.counted());
        let in_window = counted.map(|bytes| bytes as f64);
        let moved = Moved { all, counted, in_window, last_ns, window_ns };
        RankDone {
            rank: service.rank(),
            kvcache: KvCache::from_ranks(spec, std::slice::from_ref(service), &moved, circumstance),
            requests: service.served.iter().map(Request::from_served).collect(),
            trace: service.trace.iter().map(Traced::from_moved).collect(),
            replayed: service.replayed().cloned(),
        }
    }
}

impl Request {
    fn from_served(served: &Served) -> Request {
        let s = |ns: u64| ns as f64 / 1e9;
        let request = &served.request;
        let only_written = request.is_prefill_only();
        Request {
            user: request.user,
            qos: request.class.name(),
            phase: if only_written { "prefill" } else { "both" },
            arrived_s: s(request.arrives_ns),
            started_s: s(served.started_ns),
            ended_s: s(served.ended_ns),
            storage_s: s(served.storage_ns),
            prefill_s: s(served.prefill_ns),
            decode_s: (!only_written).then(|| s(served.decode_ns)),
            context: request.context,
            output: request.output,
        }
    }
}

impl Traced {
    fn from_moved(moved: &service::Traced) -> Traced {
        Traced {
            at_s: moved.at_ns as f64 / 1e9,
            operation: if moved.is_write { "Write" } else { "Read" },
            bytes: moved.bytes,
            tier: if moved.on_storage { "storage" } else { "host" },
            key: moved.key.to_string(),
            phase: moved.phase,
        }
    }
}

/// Plan of `run`, without running it.
#[derive(Debug, Serialize)]
pub struct Plan {
    pub spec: KvSpec,
    pub bytes_per_token: u64,
    /// Largest entry that a user may write.
    pub entry_bytes_max: u64,
    pub served_at_once: u32,
    pub workers: u32,
    pub buffer_bytes: u64,
    /// Of the requests of this process.
    pub stream_hash: String,
    /// Room for entries of each rank; null where nothing bounds it.
    pub capacity_bytes: Option<u64>,
    pub simulated: bool,
}

/// Tokens of the longest context that a user may have.
const CONTEXT_MAX: u64 = 25_000;

/// Everything that can be found wrong without touching anything, and what the run comes to.
pub fn plan_kvcache(spec: &KvSpec) -> Result<Plan, Error> {
    check(spec)?;
    let model = virtual_time::model_of(spec)?;
    let capacity_bytes = match &model {
        Some(model) => {
            virtual_time::check(model)?;
            spec.capacity_bytes
        }
        None => folder::Folder::examine(spec)?.capacity_bytes(),
    };
    let job = job_of(spec);
    let bytes_per_token = spec.token_bytes()?;
    Ok(Plan {
        bytes_per_token,
        entry_bytes_max: bytes_per_token * CONTEXT_MAX,
        served_at_once: spec.served_at_once(),
        workers: job.workers,
        buffer_bytes: job.io_bytes * u64::from(job.depth) * u64::from(job.workers),
        stream_hash: format!("{:016x}", stream_hash(spec)),
        capacity_bytes,
        simulated: model.is_some(),
        spec: spec.clone(),
    })
}

fn check(spec: &KvSpec) -> Result<(), Error> {
    spec.check()?;
    requirements_of_job(&job_of(spec))
}

/// Plays the workload. An error means that nothing was measured; what broke midway stands in the outcome.
pub fn run_kvcache(
    spec: &KvSpec,
    command: Vec<String>,
    observer: &mut dyn Observer,
    barrier: Option<&mut dyn Barrier>,
) -> Result<Done, Error> {
    check(spec)?;
    match virtual_time::model_of(spec)? {
        Some(model) => virtual_time::run(spec, &model, command, observer),
        None => with_run_thread(observer, |word| run::run(spec, command, word, barrier)),
    }
}

/// The job of bench that has the same fields, for everything of bench's that is used, and for the record.
/// A run that neither read nor wrote storage has nothing to record.
fn nothing_moved(was_stopped: bool) -> Error {
    if was_stopped {
        return Error::run("the run", "was stopped before anything moved", "the same command again");
    }
    Error::request(
        "the run",
        "moved nothing to or from storage: no request came, or the memory tier took every entry",
        "a longer --duration, more --users, or a smaller --host-tier",
    )
}

fn job_of(spec: &KvSpec) -> JobSpec {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    JobSpec {
        sources: vec![spec.dir.clone()],
        path: PathKind::in_host_memory(),
        op: Op::Read,
        io_bytes: spec.io_bytes,
        file_name: "user%d".into(),
        workers: spec.workers.unwrap_or(processors.min(WORKERS_MAX) as u32),
        depth: spec.depth,
        duration_s: Some(spec.duration_s),
        seed: spec.seed,
        cache: spec.cache,
        engine: spec.engine,
        sync: Sync::End,
        // Content is always seeded: a drive that compresses finds nothing to save.
        verify: true,
        timeout_s: spec.timeout_s,
        power: spec.power.clone(),
        interval_ms: spec.interval_ms,
        faults: spec.faults.clone(),
        ..JobSpec::default()
    }
}

/// Says why fields are null.
fn no_entry(kvcache: &KvCache, missing: &mut BTreeMap<String, String>, blocks: &str) {
    let mut note = |field: &str, absent: bool, why: &str| {
        if absent {
            missing.insert(format!("kvcache.{field}"), why.into());
        }
    };
    note("stream_hash", kvcache.stream_hash.is_none(), "the window wasn't seen to its end");
    note("limit", kvcache.limit.is_none(), "no request was served");
    note("storage_tokens_per_s", kvcache.storage_tokens_per_s.is_none(), "no request was served");
    note("storage_tier_bytes", kvcache.storage_tier_bytes.is_none(), "nothing bounds it");
    let latency = &kvcache.latency_ms;
    let none = "there was none";
    for (name, spread, why) in [
        ("entry_read", latency.entry_read, none),
        ("entry_write", latency.entry_write, none),
        ("flush", latency.flush, blocks),
        ("block_read", latency.block_read, blocks),
        ("block_write", latency.block_write, blocks),
        ("request", latency.request, none),
        ("storage", latency.storage, none),
        ("queued", latency.queued, none),
        ("admission", latency.admission, none),
    ] {
        for field in ["mean", "p50", "p95", "p99", "p999", "p9999", "max"] {
            note(&format!("latency_ms.{name}.{field}"), spread.count == 0, why);
        }
    }
    let classes = &kvcache.classes;
    for (name, class) in
        [("interactive", classes.interactive), ("responsive", classes.responsive), ("batch", classes.batch)]
    {
        for field in ["mean", "p50", "p95", "p99", "p999", "p9999", "max"] {
            note(&format!("classes.{name}.latency_ms.{field}"), class.requests == 0, "none was served");
        }
        for field in ["actual_p95_ms", "compliance", "met"] {
            note(&format!("classes.{name}.sla.{field}"), class.requests == 0, "none was served");
        }
    }
}
