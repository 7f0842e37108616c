//! What a loader did, as a `RunRecord`.

use super::stage::Stages;
use super::Loader;
use crate::Report;
use forebay_io::{
    disk_name, monotonic_now, online_cpus, start_record, wall_seconds, CpuClock, CpuReading, DiskCounters,
    NoiseGuard,
};
use forebay_model::cpu::Cpu;
use forebay_model::feed::{Feed, Shuffle};
use forebay_model::job::{JobSpec, Op, PathKind};
use forebay_model::record::*;
use forebay_model::units::BYTES_PER_GIB as GIB;
use forebay_model::{stats, warnings, Latency};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Fields of a result that no loader has, and why.
const NEVER: &[(&str, &str)] = &[
    ("power", "a loader reads no power meter"),
    ("copy_latency_us", "a loader measures whole batches"),
    ("foretold", "no modelled drive took part"),
    ("verified_on", "content is compared by --verify, outside the measured path"),
    ("steady_after_s", "‹until_steady› wasn't requested"),
    ("summary.throughput_gib_s_sd", "one repeat has no spread"),
    ("summary.throughput_gib_s_ci95", "one repeat has no spread"),
    ("noise.series_cv_pct", "a loader keeps no series"),
    ("noise.stood_still_s", "not looked for by a loader"),
];

/// Meters and counts of a loader, from its first batch on.
#[derive(Default)]
pub(super) struct Figures {
    meters: Option<Meters>,
    /// When the last batch was handed out, or the last epoch ended.
    last: Option<Instant>,
    counts: Counts,
}

/// Counts of what was handed out.
#[derive(Default)]
struct Counts {
    waited: Duration,
    batches: u64,
    samples: u64,
    hash: u64,
    moved: Report,
    waits: Latency,
}

struct Meters {
    began: Instant,
    wall: u64,
    cpu: CpuClock,
    noise: NoiseGuard,
    disk: Result<DiskCounters, String>,
}

impl Figures {
    /// Starts the meters, at the first batch.
    pub(super) fn begin(&mut self, now: Instant, devices: Vec<(u32, u32)>) {
        self.meters.get_or_insert_with(|| Meters {
            began: now,
            wall: wall_seconds(),
            cpu: CpuClock::start(),
            noise: NoiseGuard::start(),
            disk: DiskCounters::read(&devices),
        });
    }

    pub(super) fn waited(&mut self, since: Instant) {
        self.counts.waited += since.elapsed();
    }

    pub(super) fn add_hash(&mut self, hash: u64) {
        self.counts.hash = self.counts.hash.wrapping_add(hash);
    }

    pub(super) fn hash(&self) -> u64 {
        self.counts.hash
    }

    pub(super) fn end(&mut self, now: Instant) {
        self.last = Some(now);
    }

    pub(super) fn note(&mut self, reports: &[Report], samples: u64, hash: u64) {
        self.last = Some(monotonic_now());
        let counts = &mut self.counts;
        counts.batches += 1;
        counts.samples += samples;
        counts.hash = counts.hash.wrapping_add(hash);
        let slowest = reports.iter().map(|r| r.seconds).fold(0.0, f64::max);
        counts.waits.record((slowest * 1e9) as u64);
        for report in reports {
            counts.moved.bytes += report.bytes;
            counts.moved.staged_bytes += report.staged_bytes;
            counts.moved.mapped_bytes += report.mapped_bytes;
            counts.moved.direct_bytes += report.direct_bytes;
            counts.moved.compat_bytes += report.compat_bytes;
            counts.moved.uncached_bytes += report.uncached_bytes;
            counts.moved.repeated_bytes += report.repeated_bytes;
        }
    }
}

/// Facts of a record that the loader itself does not know.
pub struct RecordFacts {
    pub command: Vec<String>,
    pub sources: Vec<String>,
    pub verified: Option<u64>,
    pub interrupted: bool,
    /// Where the loader gave the order alone, and its consumer read the samples.
    pub elsewhere: Option<Elsewhere>,
}

/// Samples that the consumer read itself, in the order of a loader that reads nothing.
pub struct Elsewhere {
    /// From the first batch to the last.
    pub seconds: f64,
    pub waited_s: f64,
    pub batches: u64,
    pub samples: u64,
    pub bytes: u64,
    pub hash: u64,
    /// (ns, batches): how long batches took.
    pub waits: Vec<(u64, u64)>,
    pub epoch: u64,
    pub position: u64,
    pub prefetch: u32,
    pub memory_bytes: u64,
    /// Of a sample on average.
    pub sample_bytes: u64,
    /// Of all samples.
    pub data_bytes: u64,
}

impl Elsewhere {
    fn counts(&self) -> Counts {
        let mut waits = Latency::default();
        self.waits.iter().for_each(|(ns, batches)| waits.record_n(*ns, *batches));
        Counts {
            waited: Duration::try_from_secs_f64(self.waited_s).unwrap_or_default(),
            batches: self.batches,
            samples: self.samples,
            hash: self.hash,
            moved: Report { bytes: self.bytes, ..Report::default() },
            waits,
        }
    }
}

impl Loader {
    /// The sum over all samples that were handed out.
    pub fn hash(&self) -> u64 {
        self.inner().hash()
    }

    /// The record of all that was handed out so far. CPU is the whole process's, from the first batch to now.
    pub fn record(&self, reported: RecordFacts) -> RunRecord {
        let mut missing = BTreeMap::new();
        let mut inner = self.inner();
        let own_hash = inner.hash();
        let figures = &inner.figures;
        let meters = figures.meters.as_ref();
        let others = reported.elsewhere.as_ref().map(Elsewhere::counts);
        let counts = others.as_ref().unwrap_or(&figures.counts);
        let hash = others.as_ref().map_or(own_hash, |others| others.hash);
        let seconds = match (&reported.elsewhere, meters, figures.last) {
            (Some(elsewhere), ..) => elsewhere.seconds,
            (None, Some(meters), Some(last)) => last.saturating_duration_since(meters.began).as_secs_f64(),
            _ => 0.0,
        };
        let result = result_of((counts, meters), seconds, reported.interrupted, &mut missing);
        let per_s = |n: u64| if seconds > 0.0 { n as f64 / seconds } else { 0.0 };
        let mut feed = Feed {
            samples: counts.samples,
            samples_per_s: per_s(counts.samples),
            input_wait_pct: if seconds > 0.0 { 100.0 * counts.waited.as_secs_f64() / seconds } else { 0.0 },
            order: self.shuffle.name().into(),
            hash: format!("{hash:016x}"),
            data: format!("{:016x}", self.identity),
            batches: counts.batches,
            batch_size: self.share.batch,
            sample_bytes: self.table.sample_bytes(),
            seed: self.seed,
            epoch: inner.epoch,
            position: inner.given,
            rank: self.share.rank as u32,
            world: self.share.world as u32,
            prefetch: self.prefetch as u32,
            memory_bytes: (self.shelf.bytes() + inner.stages.as_ref().map_or(0, Stages::bytes)) as u64,
            cold: self.cold.text(),
            verified: reported.verified,
        };
        if let Some(elsewhere) = &reported.elsewhere {
            feed.cold.clear();
            (feed.epoch, feed.position) = (elsewhere.epoch, elsewhere.position);
            (feed.prefetch, feed.memory_bytes) = (elsewhere.prefetch, elsewhere.memory_bytes);
            feed.sample_bytes = elsewhere.sample_bytes;
        }
        missing.extend(
            reported.verified.is_none().then(|| ("feed.verified".into(), "--verify wasn't requested".into())),
        );
        let cache = match &reported.elsewhere {
            Some(_) => cache_of_others(&mut missing),
            None => self.cache_of(meters, &mut missing),
        };
        let mut path = self.path_of(&counts.moved);
        let cufile = self.cufile.as_ref().map(|cufile| cufile.judge(&mut path, &mut missing));
        let started = meters.map_or_else(wall_seconds, |meters| meters.wall);
        drop(inner);
        let paths = match &reported.elsewhere {
            Some(_) => reported.sources.iter().map(PathBuf::from).collect(),
            None => self.paths(),
        };
        let mut job = self.job_of(reported.sources);
        if let Some(elsewhere) = reported.elsewhere {
            (job.data_bytes, job.spec.io_bytes) = (elsewhere.data_bytes, elsewhere.sample_bytes);
        }
        let mut record = RunRecord {
            job,
            path,
            cache,
            result,
            feed: Some(feed),
            cufile,
            missing,
            ..start_record(reported.command, started, "measured", &paths)
        };
        record.explain_nulls("not measured by a loader");
        warnings::add(&mut record);
        record
    }

    fn paths(&self) -> Vec<PathBuf> {
        self.table.files().map(|reader| reader.path.clone()).collect()
    }

    fn job_of(&self, sources: Vec<String>) -> Job {
        let asked = JobSpec::default();
        let gpus = self.shelf.memory().gpu().into_iter().collect();
        let path = if self.shelf.memory().gpu().is_some() { PathKind::Auto } else { PathKind::Host };
        let spec = JobSpec {
            sources: sources.clone(),
            path,
            op: if self.shuffle == Shuffle::None { Op::Read } else { Op::RandRead },
            io_bytes: self.table.sample_bytes(),
            seed: self.seed,
            gpus,
            ..asked
        };
        Job {
            source: sources.join(" "),
            pattern: if self.shuffle == Shuffle::None { "sequential" } else { "random" }.into(),
            direct: self.inner().figures.counts.moved.uncached_bytes > 0,
            data_bytes: self.table.rows() * self.table.sample_bytes(),
            queues: crate::threads() as u32,
            spec,
        }
    }

    fn path_of(&self, moved: &Report) -> PathRan {
        let memory = self.shelf.memory();
        let ran = match memory.gpu() {
            None => "host",
            Some(_) if moved.mapped_bytes > moved.staged_bytes => "mapped",
            Some(_) => "bounce",
        };
        PathRan {
            requested: self.table.files().next().map_or("auto", |reader| reader.way.name()).into(),
            ran: ran.into(),
            reason: Some(format!("batches are handed out in {} memory", memory.name())),
            engine: "loader".into(),
            direct_bytes: moved.direct_bytes,
            compat_bytes: moved.compat_bytes,
            staged_bytes: moved.staged_bytes,
            mapped_bytes: moved.mapped_bytes,
            destination: memory.gpu().map_or("host".into(), |_| memory.name()),
            slot_pages: "none".into(),
            slots_pinned: matches!(memory, super::Memory::Pinned(_)),
            ..PathRan::default()
        }
    }

    /// Share of the files that the page cache holds, as far as the system tells.
    pub fn cached_share(&self) -> Option<f64> {
        let mut sums = (0.0, 0.0);
        for reader in self.table.files() {
            let bytes = reader.bytes().ok()?;
            sums.0 += reader.cached_share(0, bytes as usize)? * bytes as f64;
            sums.1 += bytes as f64;
        }
        (sums.1 > 0.0).then(|| sums.0 / sums.1)
    }

    fn cache_of(&self, meters: Option<&Meters>, missing: &mut BTreeMap<String, String>) -> CacheState {
        let resident_after = self.cached_share();
        if resident_after.is_none() {
            missing.insert("cache.resident_after".into(), "the system doesn't tell what is cached".into());
        }
        missing.insert("cache.resident_before".into(), "it isn't asked before the first batch".into());
        let traffic = meters.map(|meters| {
            let before = meters.disk.as_ref().map_err(Clone::clone)?;
            DiskCounters::read(&self.table.devices())?.by_device(before)
        });
        let devices: BTreeMap<String, u64> = match traffic {
            Some(Ok(each)) => each.into_iter().map(|(number, t)| (disk_name(number), t.read_bytes)).collect(),
            Some(Err(why)) => {
                missing.insert("cache.device_bytes".into(), why);
                BTreeMap::new()
            }
            None => {
                missing.insert("cache.device_bytes".into(), "nothing was read".into());
                BTreeMap::new()
            }
        };
        let device_bytes = (!missing.contains_key("cache.device_bytes")).then(|| devices.values().sum());
        CacheState { policy: "allow".into(), resident_before: None, resident_after, device_bytes, devices }
    }
}

/// Files that the consumer reads itself aren't watched.
fn cache_of_others(missing: &mut BTreeMap<String, String>) -> CacheState {
    for field in ["resident_before", "resident_after", "device_bytes"] {
        let why = "samples of different sizes are read file by file, and not watched";
        missing.insert(format!("cache.{field}"), why.into());
    }
    CacheState { policy: "allow".into(), ..CacheState::default() }
}

fn result_of(
    (counts, meters): (&Counts, Option<&Meters>),
    seconds: f64,
    interrupted: bool,
    missing: &mut BTreeMap<String, String>,
) -> RunResult {
    let cores = online_cpus();
    let (bytes, ios) = (counts.moved.bytes, counts.samples);
    let reading = meters.map(|meters| (meters, meters.cpu.stop()));
    let (cpu, noise) = match &reading {
        Some((meters, reading)) => {
            let (noise, why) = meters.noise.judge(reading);
            missing.extend(why.into_iter().map(|(field, why)| (format!("result.noise.{field}"), why)));
            (CpuReading::fill(reading, reading.wall_s, bytes, ios, cores), noise)
        }
        None => (Cpu::default(), Noise::default()),
    };
    for (field, value) in cpu.fields() {
        if value.is_none() {
            missing.insert(format!("result.cpu.{field}"), "nothing was read, or in too short a time".into());
        }
    }
    let per = |value: f64| if seconds > 0.0 { value / seconds } else { 0.0 };
    let repeat = Repeat {
        seconds,
        bytes,
        ios,
        throughput_gib_s: per(bytes as f64 / GIB),
        iops: per(ios as f64),
        latency_us: counts.waits.summary(),
        cpu: cpu.clone(),
        power: Vec::new(),
        noise: noise.clone(),
        ..Repeat::default()
    };
    let never = NEVER.iter().map(|(field, why)| (format!("result.{field}"), (*why).to_string()));
    missing.extend(never);
    RunResult {
        seconds,
        bytes,
        ios,
        read_bytes: bytes,
        throughput_gib_s: repeat.throughput_gib_s,
        iops: repeat.iops,
        latency_us: repeat.latency_us.clone(),
        histogram: counts.waits.encode(),
        cpu,
        noise,
        summary: Summary::from_repeats(std::slice::from_ref(&repeat), stats::Stop::Counted),
        repeats: vec![repeat],
        interrupted,
        ..RunResult::default()
    }
}
