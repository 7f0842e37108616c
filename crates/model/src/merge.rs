//! One record out of those of several hosts that ran the same job together.
//!
//! Bytes, I/Os and CPU of the process add up; time is the longest; latency histograms
//! merge, so percentiles are of all I/Os of all hosts. What a meter says of a whole host
//! (its devices, power, processors) each of its ranks has seen: it counts once for the
//! host. Each rank's own figures stay under `result.hosts`.

use crate::checkpoint;
use crate::cpu::Cpu;
use crate::histogram::LatencySummary;
use crate::job::{JobSpec, Origin, PathKind};
use crate::kvcache;
use crate::record::*;
use crate::series::{Point, PointPart};
use crate::training::Training;
use crate::units::BYTES_PER_GIB as GIB;
use crate::warnings::{self, is_of_others, of_others};
use crate::{stats, Error, Latency};
use serde_json::{json, Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Merges records in the order of their hosts; the first lends what isn't summed. One record is itself.
pub fn merge(records: Vec<RunRecord>) -> Result<RunRecord, Error> {
    let first = records
        .first()
        .ok_or_else(|| Error::request("merging records", "there are none", "records of one run"))?;
    if let Some(other) = records.iter().find(|r| !same_job(first, r)) {
        let found = format!("{} and {} ran different jobs", first.environment.host, other.environment.host);
        return Err(Error::request("merging records", found, "records of one run"));
    }
    if records.len() == 1 {
        return Ok(records.into_iter().next().expect("counted"));
    }
    let results: Vec<&RunResult> = records.iter().map(|r| &r.result).collect();
    let hosts = Hosts::from_records(&records);
    let mut merged = first.clone();
    merged.result = merge_results(&results, &hosts, first.job.spec.stop())?;
    merged.result.hosts = records.iter().map(host).collect();
    merged.path.merge(&records.iter().map(|r| &r.path).collect::<Vec<_>>());
    if let Some(cufile) = &mut merged.cufile {
        cufile.unaligned_ios = records.iter().flat_map(|r| &r.cufile).map(|c| c.unaligned_ios).sum();
        cufile.gpus = gpus_of(&records);
    }
    merged.training = merge_training(&records)?;
    merged.cache.devices = hosts.devices(&records);
    merged.cache.device_bytes = hosts.device_bytes(&records, &merged.cache.devices);
    merged.cache.resident_before = mean_of(&records, |r| r.cache.resident_before);
    merged.cache.resident_after = mean_of(&records, |r| r.cache.resident_after);
    merged.job.data_bytes = records.iter().map(|r| r.job.data_bytes).fold(0, u64::saturating_add);
    merged.job.queues = records.iter().map(|r| r.job.queues).sum();
    let parts: Vec<_> = records.iter().filter_map(|r| r.checkpoint.as_ref()).collect();
    merged.checkpoint = checkpoint::merge::merge(&parts)?;
    let parts: Vec<_> = records.iter().filter_map(|r| r.kvcache.as_ref()).collect();
    merged.kvcache = kvcache::merge::merge(&parts)?;
    leave_to_hosts(&records, &mut merged)?;
    merged.missing = records.iter().enumerate().flat_map(|(n, r)| missing_of(r, n)).collect();
    merged.warnings = gather(&records, &hosts);
    // What all ranks' figures say together and none's said alone: those of one host see the same devices.
    warnings::add(&mut merged);
    if merged.result.verified_on.is_some() {
        merged.missing.remove("result.verified_on");
    }
    let result = &merged.result;
    let lost = "it is reported per host and can't be combined; see the hosts' own records";
    for (field, is_null) in [
        ("result.copy_latency_us", result.copy_latency_us.is_none()),
        ("result.steady_after_s", result.steady_after_s.is_none()),
    ] {
        if is_null {
            merged.missing.entry(field.into()).or_insert_with(|| lost.into());
        }
    }
    Ok(merged)
}

/// The combined results of the hosts' accelerators. Either all hosts have some, or none has.
fn merge_training(records: &[RunRecord]) -> Result<Option<Training>, Error> {
    all_or_none(records, "training", |r| r.training.is_some())?;
    let parts: Vec<&Training> = records.iter().filter_map(|r| r.training.as_ref()).collect();
    (!parts.is_empty()).then(|| Training::of_hosts(&parts)).transpose()
}

type Part = fn(&RunRecord) -> Option<&Map<String, Value>>;
/// Parts that stay each host's own: rates of models that don't know of each other say nothing as a sum, and their order
/// of batches and their quality have none.
const OWN_PARTS: [(&str, Part); 2] = [("train", |r| r.train.as_ref()), ("infer", |r| r.infer.as_ref())];

fn leave_to_hosts(records: &[RunRecord], merged: &mut RunRecord) -> Result<(), Error> {
    for (name, of) in OWN_PARTS {
        all_or_none(records, name, |r| of(r).is_some())?;
    }
    (merged.train, merged.infer) = (None, None);
    Ok(())
}

fn all_or_none(records: &[RunRecord], part: &str, has: impl Fn(&RunRecord) -> bool) -> Result<(), Error> {
    let n = records.iter().filter(|r| has(r)).count();
    if n == 0 || n == records.len() {
        return Ok(());
    }
    let found = format!("{n} of {} hosts have a part {part}", records.len());
    Err(Error::request("merging records", found, "records of one run"))
}

/// The reasons of host number `n`, those of its own parts where the parts now are.
fn missing_of(record: &RunRecord, n: usize) -> impl Iterator<Item = (String, String)> + '_ {
    let own = |path: &str| OWN_PARTS.iter().any(|(name, _)| path.split('.').next() == Some(*name));
    let placed = move |path: &str| if own(path) { format!("result.hosts[{n}].{path}") } else { path.into() };
    record.missing.iter().map(move |(path, why)| (placed(path), why.clone()))
}

/// The GPUs of all hosts; None where a host's cuFile doesn't tell.
fn gpus_of(records: &[RunRecord]) -> Option<Vec<CufileGpu>> {
    let reported = records.iter().map(|r| r.cufile.as_ref().and_then(|c| c.gpus.clone()));
    Some(reported.collect::<Option<Vec<_>>>()?.concat())
}

/// Sources, seed and files may differ by host; what is done to them may not.
fn same_job(a: &RunRecord, b: &RunRecord) -> bool {
    // Emulated accelerators compare what they do themselves; how many workers read for them is each host's own.
    if a.training.is_some() && b.training.is_some() {
        return true;
    }
    // What each host found out for itself may differ too.
    let is_found = |r: &RunRecord| PathKind::named(&r.path.requested).is_some_and(PathKind::is_found);
    let path = |r: &RunRecord| (!is_found(r)).then_some(r.job.spec.path);
    let workers = |job: &JobSpec| (job.workers_from != Origin::Auto).then_some(job.workers);
    let depth = |job: &JobSpec| (job.depth_from != Origin::Auto).then_some(job.depth);
    let io_bytes = |job: &JobSpec| (job.io_from != Origin::Auto).then_some(job.io_bytes);
    let key = |r: &RunRecord| {
        let job = &r.job.spec;
        (path(r), job.op, job.read_pct, io_bytes(job), job.io_bytes_max, workers(job), depth(job))
    };
    key(a) == key(b)
}

/// The ranks of each host.
struct Hosts {
    /// Indices of a host's records, by the order of its first.
    ranks: Vec<Vec<usize>>,
    /// Number of cores of all hosts together.
    cores: f64,
}

impl Hosts {
    fn from_records(records: &[RunRecord]) -> Hosts {
        let mut ranks: Vec<Vec<usize>> = Vec::new();
        for (n, record) in records.iter().enumerate() {
            let host = &record.environment.host;
            match ranks.iter_mut().find(|r| records[r[0]].environment.host == *host) {
                Some(own) => own.push(n),
                None => ranks.push(vec![n]),
            }
        }
        let cores = ranks.iter().map(|r| f64::from(records[r[0]].environment.cores)).sum();
        Hosts { ranks, cores }
    }

    fn shares_one(&self, rank: usize) -> bool {
        self.ranks.iter().any(|r| r.len() > 1 && r.contains(&rank))
    }

    /// Returns the bytes moved by each device: of what a host's ranks saw, over nearly the same seconds, the most.
    fn devices(&self, records: &[RunRecord]) -> BTreeMap<String, u64> {
        let mut all = BTreeMap::new();
        for record in records {
            for (name, bytes) in &record.cache.devices {
                let name = match self.ranks.len() {
                    1 => name.clone(),
                    _ => format!("{}:{name}", record.environment.host),
                };
                let most: &mut u64 = all.entry(name).or_default();
                *most = (*most).max(*bytes);
            }
        }
        all
    }

    /// None where a rank's devices aren't known. Records that don't tell of each device are taken to share theirs.
    fn device_bytes(&self, records: &[RunRecord], devices: &BTreeMap<String, u64>) -> Option<u64> {
        let all = records.iter().map(|r| r.cache.device_bytes).collect::<Option<Vec<u64>>>()?;
        if records.iter().all(|r| !r.cache.devices.is_empty()) {
            return Some(devices.values().sum());
        }
        self.ranks.iter().map(|ranks| ranks.iter().map(|n| all[*n]).max()).sum()
    }

    /// The sum over hosts of the most that a rank of each saw; None where a host has none that saw any.
    fn sum_of_most(&self, seen: impl Fn(usize) -> Option<f64>) -> Option<f64> {
        self.ranks.iter().map(|ranks| ranks.iter().filter_map(|n| seen(*n)).reduce(f64::max)).sum()
    }

    /// Busy cores that are no rank's, by host: to a rank its neighbours are others. `alone`: as a rank said that has
    /// its host for itself.
    fn others(&self, cpus: &[&Cpu], alone: impl Fn(usize) -> Option<f64>) -> Vec<Option<f64>> {
        let of = |ranks: &Vec<usize>| {
            if let [rank] = ranks.as_slice() {
                return alone(*rank);
            }
            let machine = ranks.iter().filter_map(|n| cpus[*n].machine_cores_busy).reduce(f64::max)?;
            let ours = ranks.iter().map(|n| cpus[*n].cores_busy).sum::<Option<f64>>()?;
            Some((machine - ours).max(0.0))
        };
        self.ranks.iter().map(of).collect()
    }

    /// Each meter of each host once, as the rank with the most samples saw it, over what the host moved.
    fn power(&self, parts: &[(&[Power], f64, u64)]) -> Vec<Power> {
        let of = |ranks: &Vec<usize>| {
            let bytes: u64 = ranks.iter().map(|n| parts[*n].2).sum();
            let mut meters: BTreeMap<(&str, &str), (&Power, f64)> = BTreeMap::new();
            for (power, seconds) in ranks.iter().flat_map(|n| parts[*n].0.iter().map(|p| (p, parts[*n].1))) {
                let kept = meters.entry((&power.source, &power.scope)).or_insert((power, seconds));
                if power.samples > kept.0.samples {
                    *kept = (power, seconds);
                }
            }
            let reported = |(power, seconds): (&Power, f64)| Power {
                joules_per_gib: (bytes > 0).then(|| power.watts_mean * seconds / (bytes as f64 / GIB)),
                ..power.clone()
            };
            meters.into_values().map(reported).collect::<Vec<_>>()
        };
        self.ranks.iter().flat_map(of).collect()
    }
}

/// Returns the warnings of the first rank as they are, and those of the others with their host. Where ranks share a
/// host, each found its neighbours to be others on the machine: whether there were any is judged anew.
fn gather(records: &[RunRecord], hosts: &Hosts) -> Vec<Warning> {
    let mut all = Vec::new();
    for (n, record) in records.iter().enumerate() {
        let kept = record.warnings.iter().filter(|w| !(hosts.shares_one(n) && is_of_others(w)));
        let named = |w: &Warning| match n {
            0 => w.clone(),
            _ => Warning { text: format!("{}: {}", record.environment.host, w.text), ..w.clone() },
        };
        all.extend(kept.map(named));
    }
    let others = hosts.others(&records.iter().map(|r| &r.result.cpu).collect::<Vec<_>>(), |_| None);
    for (ranks, cores) in hosts.ranks.iter().zip(others).filter(|(ranks, _)| ranks.len() > 1) {
        let Environment { host, cores: of_host, .. } = &records[ranks[0]].environment;
        let may_pin = ranks.iter().any(|n| records[*n].job.spec.cpus.is_none());
        let reported = cores.and_then(|busy| of_others(busy, (*of_host).into(), may_pin));
        all.extend(reported.map(|w| Warning { text: format!("{host}: {}", w.text), ..w }));
    }
    all
}

fn mean_of(records: &[RunRecord], field: impl Fn(&RunRecord) -> Option<f64>) -> Option<f64> {
    let values = records.iter().map(field).collect::<Option<Vec<f64>>>()?;
    Some(stats::mean(&values))
}

fn host(record: &RunRecord) -> serde_json::Value {
    let r = &record.result;
    let mut host = json!({
        "host": record.environment.host, "source": record.job.source, "seconds": r.seconds, "bytes": r.bytes, "ios": r.ios,
        "throughput_gib_s": r.throughput_gib_s, "iops": r.iops, "latency_us": r.latency_us, "cpu": r.cpu, "power": r.power,
        "unfinished": r.unfinished, "errors": r.errors, "noise": r.noise, "interrupted": r.interrupted,
    });
    if let Some(training) = &record.training {
        host["training"] = training.of_host();
    }
    for (name, part) in OWN_PARTS {
        if let Some(part) = part(record) {
            host[name] = Value::Object(part.clone());
        }
    }
    host
}

fn merge_results(parts: &[&RunResult], hosts: &Hosts, stop: stats::Stop) -> Result<RunResult, Error> {
    let mut latency = Latency::default();
    for part in parts.iter().filter(|p| !p.histogram.is_empty()) {
        latency.merge(&Latency::decode(&part.histogram)?);
    }
    let summed = RunResult::merged(parts);
    let RunResult { seconds, bytes, ios, .. } = summed;
    let rate = |amount: f64| if seconds > 0.0 { amount / seconds } else { 0.0 };
    let repeats = merge_repeats(parts, hosts);
    let mut all = RunResult {
        throughput_gib_s: rate(bytes as f64 / GIB),
        iops: rate(ios as f64),
        latency_us: latency.summary(),
        unfinished: Unfinished::sum(parts.iter().map(|p| &p.unfinished)),
        histogram: latency.encode(),
        batch: merge_batches(parts)?,
        queries: merge_queries(parts, seconds)?,
        files: merge_files(parts, seconds),
        foretold: merge_foretold(parts, rate(ios as f64)),
        cpu: merge_cpu(&parts.iter().map(|p| &p.cpu).collect::<Vec<_>>(), seconds, bytes, ios, hosts),
        power: hosts.power(&parts.iter().map(|p| (&p.power[..], p.seconds, p.bytes)).collect::<Vec<_>>()),
        errors: Errors::sum(parts.iter().map(|p| &p.errors)),
        noise: merge_noise(parts, hosts),
        verified_on: merge_places(parts),
        summary: Summary::from_repeats(&repeats, stop),
        series: merge_series(parts),
        workers: renumbered(parts),
        repeats,
        ..summed
    };
    all.join_directions(parts)?;
    Ok(all)
}

/// All hosts run the same job, so all have batches or none has.
fn merge_batches(parts: &[&RunResult]) -> Result<Option<BatchResult>, Error> {
    let Some(batches) = parts.iter().map(|p| p.batch.as_ref()).collect::<Option<Vec<_>>>() else {
        return Ok(None);
    };
    let mut latency = Latency::default();
    for batch in &batches {
        latency.merge(&Latency::decode(&batch.histogram)?);
    }
    let by: BTreeSet<&str> = batches.iter().map(|b| b.by.as_str()).collect();
    Ok(batches.first().map(|first| BatchResult {
        ios: first.ios,
        latency_us: latency.summary(),
        histogram: latency.encode(),
        by: by.into_iter().collect::<Vec<_>>().join("; "),
        ..BatchResult::merged(&batches)
    }))
}

fn merge_queries(parts: &[&RunResult], seconds: f64) -> Result<Option<QueryResult>, Error> {
    let Some(queries) = parts.iter().map(|p| p.queries.as_ref()).collect::<Option<Vec<_>>>() else {
        return Ok(None);
    };
    let mut latency = Latency::default();
    for each in &queries {
        latency.merge(&Latency::decode(&each.histogram)?);
    }
    Ok(queries.first().map(|first| QueryResult::from_latency(&latency, first.bytes, seconds)))
}

/// Each host's files are its own, though they may have the same names.
fn merge_files(parts: &[&RunResult], seconds: f64) -> Option<FilesRead> {
    let files = parts.iter().map(|p| p.files.as_ref()).collect::<Option<Vec<_>>>()?;
    let whole = files.iter().map(|f| f.whole).sum::<Option<f64>>();
    Some(FilesRead {
        whole,
        files_per_s: whole.filter(|_| seconds > 0.0).map(|whole| whole / seconds),
        ..FilesRead::merged(&files)
    })
}

/// `gpu:0+host` where hosts differ.
fn merge_places(parts: &[&RunResult]) -> Option<String> {
    let places: BTreeSet<&str> = parts.iter().filter_map(|p| p.verified_on.as_deref()).collect();
    (!places.is_empty()).then(|| places.into_iter().collect::<Vec<_>>().join("+"))
}

/// The models of all hosts together, and what the hosts together are off them.
fn merge_foretold(parts: &[&RunResult], iops: f64) -> Option<Foretold> {
    let reported = parts.iter().map(|p| p.foretold.as_ref()).collect::<Option<Vec<_>>>()?;
    let all = Foretold::merged(&reported);
    (all.iops > 0.0).then(|| Foretold { off_pct: 100.0 * (iops / all.iops - 1.0), ..all })
}

fn merge_repeats(parts: &[&RunResult], hosts: &Hosts) -> Vec<Repeat> {
    let count = parts.iter().map(|p| p.repeats.len()).min().unwrap_or(0);
    (0..count)
        .map(|n| {
            let own: Vec<&Repeat> = parts.iter().map(|p| &p.repeats[n]).collect();
            let summed = Repeat::merged(&own);
            let Repeat { seconds, bytes, ios, .. } = summed;
            Repeat {
                throughput_gib_s: if seconds > 0.0 { bytes as f64 / GIB / seconds } else { 0.0 },
                iops: if seconds > 0.0 { ios as f64 / seconds } else { 0.0 },
                // Percentiles of one repeat can't be had from those of its hosts: the slowest host's stand in.
                latency_us: own.iter().map(|r| r.latency_us.clone()).fold(LatencySummary::default(), slower),
                cpu: merge_cpu(&own.iter().map(|r| &r.cpu).collect::<Vec<_>>(), seconds, bytes, ios, hosts),
                power: hosts
                    .power(&own.iter().map(|r| (&r.power[..], r.seconds, r.bytes)).collect::<Vec<_>>()),
                noise: own[0].noise.clone(),
                ..summed
            }
        })
        .collect()
}

fn slower(a: LatencySummary, b: LatencySummary) -> LatencySummary {
    if a.p99 >= b.p99 {
        a
    } else {
        b
    }
}

fn merge_cpu(parts: &[&Cpu], seconds: f64, bytes: u64, ios: u64, hosts: &Hosts) -> Cpu {
    let sum = |f: fn(&Cpu) -> Option<f64>| parts.iter().map(|c| f(c)).sum::<Option<f64>>();
    let spent = (sum(|c| c.user_s), sum(|c| c.system_s));
    Cpu {
        machine_cores_busy: hosts.sum_of_most(|n| parts[n].machine_cores_busy),
        others_cores_busy: hosts.others(parts, |n| parts[n].others_cores_busy).into_iter().sum(),
        ..Cpu::spent(spent, seconds, (bytes, ios), hosts.cores)
    }
}

/// The noisiest host's figures: one disturbed host disturbs the whole.
fn merge_noise(parts: &[&RunResult], hosts: &Hosts) -> Noise {
    let cpus: Vec<&Cpu> = parts.iter().map(|p| &p.cpu).collect();
    let others = hosts.others(&cpus, |n| parts[n].noise.others_cores_busy);
    let throttled = |ranks: &Vec<usize>| ranks.iter().filter_map(|n| parts[*n].noise.throttled).max();
    Noise {
        others_cores_busy: others.into_iter().flatten().reduce(f64::max),
        throttled: hosts.ranks.iter().filter_map(throttled).reduce(|a, b| a + b),
        ..Noise::merged(&parts.iter().map(|p| &p.noise).collect::<Vec<_>>())
    }
}

/// Hosts share their interval, so points of one index belong together.
fn merge_series(parts: &[&RunResult]) -> Vec<Point> {
    let count = parts.iter().map(|p| p.series.len()).min().unwrap_or(0);
    (0..count)
        .map(|n| {
            let own: Vec<&Point> = parts.iter().map(|p| &p.series[n]).collect();
            let iops: f64 = own.iter().map(|p| p.iops).sum();
            let weighted: Option<f64> = own.iter().map(|p| p.latency_us_mean.map(|m| m * p.iops)).sum();
            Point {
                gib_s: own.iter().map(|p| p.gib_s).sum(),
                iops,
                latency_us_mean: weighted.filter(|_| iops > 0.0).map(|w| w / iops),
                latency_us_p99: own.iter().filter_map(|p| p.latency_us_p99).reduce(f64::max),
                read: merge_part(&own, |p| p.read.as_ref()),
                write: merge_part(&own, |p| p.write.as_ref()),
                cores_busy: own.iter().map(|p| p.cores_busy).sum(),
                warmup: own.iter().any(|p| p.warmup),
                ..own[0].clone()
            }
        })
        .collect()
}

fn merge_part(points: &[&Point], of: impl Fn(&Point) -> Option<&PointPart>) -> Option<PointPart> {
    let own = points.iter().map(|p| of(p)).collect::<Option<Vec<_>>>()?;
    let iops: f64 = own.iter().map(|p| p.iops).sum();
    let weighted: f64 = own.iter().map(|p| p.latency_us_mean.unwrap_or(0.0) * p.iops).sum();
    Some(PointPart {
        gib_s: own.iter().map(|p| p.gib_s).sum(),
        iops,
        latency_us_mean: (iops > 0.0).then(|| weighted / iops),
    })
}

fn renumbered(parts: &[&RunResult]) -> Vec<WorkerResult> {
    let all = parts.iter().flat_map(|p| &p.workers);
    all.enumerate().map(|(n, w)| WorkerResult { worker: n as u32, ..w.clone() }).collect()
}

#[cfg(test)]
mod tests;
