//! Record of a run: bench's for the window, with the part about the cache.

use super::folder::Folder;
use super::worker::{Report, Sums};
use super::{no_entry, Done, RankDone};
use forebay_bench::{
    compose_record, requirements_of_record, Outcome, RanWindow as Window, Readings, RecordContext, Resources,
    TALLY_READ, TALLY_WRITE,
};
use forebay_model::job::JobSpec;
use forebay_model::kvcache::record::{Circumstance, Moved, Spread};
use forebay_model::kvcache::simulate::{counted, OF_REFERENCE};
use forebay_model::kvcache::{KvCache, KvSpec, Service};
use forebay_model::record::Warning;
use forebay_model::series::Point;
use forebay_model::{warnings, Error, Latency};
use forebay_storage::{Destination, Target};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

/// What came of a run on files.
pub(super) struct Ran {
    pub services: Vec<Service>,
    pub sums: Arc<Sums>,
    pub reports: Vec<Report>,
    pub readings: Readings,
    pub points: Vec<Point>,
    pub resources: Resources,
    pub target: Target,
    pub destination: Arc<Destination>,
    pub failed: Option<Error>,
    /// How long the window was, and whether it and the requests after it were seen to their end.
    pub window: Duration,
    pub whole_window: bool,
    pub drained: bool,
    pub was_stopped: bool,
    /// When the run was over.
    pub last: Duration,
}

/// What a run on files takes for granted, beside what it has of the reference.
const OF_FILES: &str = "entries in the memory tier are counted, and their bytes aren't moved";

pub(super) fn outcome(
    spec: &KvSpec,
    job: JobSpec,
    command: Vec<String>,
    started: u64,
    folder: &Folder,
    mut ran: Ran,
) -> Done {
    let (moved, circumstance) = (moved_of(&ran), circumstance(spec, &ran));
    let with_room = KvSpec { capacity_bytes: folder.capacity_bytes(), ..spec.clone() };
    let kvcache = KvCache::from_ranks(&with_room, &ran.services, &moved, circumstance.clone());
    let last_ns = moved.last_ns;
    let ranks = ran.services.iter().map(|service| {
        RankDone::from_service(&with_room, service, moved.window_ns, last_ns, circumstance.clone())
    });
    let ranks = ranks.collect();
    let failed = ran.failed.take();
    let window = Window {
        seconds: ran.window.as_secs_f64(),
        tallies: ran.reports.into_iter().map(|report| report.tally).collect(),
        points: ran.points,
        readings: ran.readings,
        interrupted: ran.was_stopped,
        resources: ran.resources,
        ..Window::default()
    };
    let targets = [ran.target];
    let in_memory = folder.in_memory;
    let resident = if in_memory { Ok(1.0) } else { Err("entries are written while the run goes on".into()) };
    let mut record = compose_record(
        RecordContext {
            job: &job,
            command,
            started,
            targets: &targets,
            destination: &ran.destination,
            requested: job.path,
            reasons: Vec::new(),
            calibration: Vec::new(),
            resident_before: resident,
            resident_after: Err("entries are removed when the run is over".into()),
        },
        &[window],
    );
    no_entry(&kvcache, &mut record.missing, "there was none");
    record.job.data_bytes = kvcache.tiers.storage.used_bytes;
    record.job.spec.verify = spec.verify;
    record.warnings.extend(warnings_of(spec, &kvcache, folder));
    record.kvcache = Some(kvcache);
    warnings::add(&mut record);
    let damaged = || damage(&record.result.errors.examples, record.result.errors.verify_failed);
    let failure = failed.or_else(damaged).or_else(|| requirements_of_record(&job, &record));
    Done { outcome: Outcome { record, failure }, ranks }
}

/// What the services don't know of the run.
fn circumstance(spec: &KvSpec, ran: &Ran) -> Circumstance {
    let blocks = [0, 1].map(|way| merged(ran.reports.iter().map(|report| &report.blocks[way])));
    let flush = merged(ran.reports.iter().map(|report| &report.flush));
    let cores = ran.readings.cpu.as_ref().map(|cpu| {
        let process = cpu.process.user_s + cpu.process.system_s;
        let may = ran.readings.noise.cpu_limit_cores.unwrap_or(f64::from(forebay_io::online_cpus()));
        (process / cpu.wall_s.max(1e-9), may)
    });
    let mut assumptions: Vec<String> = OF_REFERENCE.iter().map(|text| text.to_string()).collect();
    assumptions.extend((spec.host_tier_bytes > 0).then(|| OF_FILES.into()));
    Circumstance {
        whole_window: ran.whole_window,
        drained: ran.drained,
        cores,
        flush: Spread::of_latency(&flush),
        blocks: blocks.each_ref().map(Spread::of_latency),
        assumptions,
    }
}

fn damage(examples: &[String], blocks: u64) -> Option<Error> {
    let first = examples.first().filter(|_| blocks > 0)?;
    let found = format!("{blocks} blocks differ from what was written; the first: {first}");
    Some(Error::new(forebay_model::Kind::Check, "--verify", found, "dmesg | tail; smartctl -a the drive"))
}

fn moved_of(ran: &Ran) -> Moved {
    let all = ran.sums.bytes.each_ref().map(|sum| sum.load(Ordering::Relaxed));
    let tallies = || ran.reports.iter().map(|report| &report.tally);
    let last_ns = ran.sums.last_ns.load(Ordering::Relaxed);
    Moved {
        all,
        counted: counted(&ran.services),
        in_window: [
            tallies().map(|t| t.ways[TALLY_READ].bytes).sum::<u64>() as f64,
            tallies().map(|t| t.ways[TALLY_WRITE].bytes).sum::<u64>() as f64,
        ],
        last_ns: if ran.drained { last_ns } else { ran.last.as_nanos() as u64 },
        window_ns: ran.window.as_nanos() as u64,
    }
}

fn merged<'a>(parts: impl Iterator<Item = &'a Latency>) -> Latency {
    parts.fold(Latency::default(), |mut all, part| {
        all.merge(part);
        all
    })
}

fn warnings_of(spec: &KvSpec, kvcache: &KvCache, folder: &Folder) -> Vec<Warning> {
    let mut all = Vec::new();
    let mut warn = |id: &str, text: String, next: &str| {
        all.push(Warning { id: id.into(), text, next: next.into() });
    };
    if kvcache.entries.given_up > 0 {
        let text = format!(
            "{} entries weren't written: storage was full of entries in use",
            kvcache.entries.given_up
        );
        warn("kvcache_full", text, "a larger file system, or fewer --users");
    }
    if kvcache.entries.lost > 0 {
        let first =
            folder.lost.map_or(String::new(), |(rank, key)| format!("; the first: {key} of rank {rank}"));
        let text =
            format!("{} entries were gone or damaged when they were read{first}", kvcache.entries.lost);
        warn("kvcache_lost", text, "leave the folder alone while a run goes on; --verify");
    }
    let closed = KvSpec::of_option(spec.option).unwrap_or_default();
    if spec.duration_s < closed.duration_s {
        let text = format!("{} s are shorter than the {} s of the rules", spec.duration_s, closed.duration_s);
        warn("kvcache_short", text, "--duration 300");
    }
    for at in &folder.left {
        let text = format!("{} was left by a run that was killed", at.display());
        warn("kvcache_left", text, &format!("rm -r {}", at.display()));
    }
    all
}
