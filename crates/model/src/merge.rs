//! One record out of those of several hosts that ran the same job together.
//!
//! Bytes, I/Os and CPU add up; time is the longest; latency histograms merge, so
//! percentiles are of all I/Os of all hosts. Each host's own figures stay under
//! `result.hosts`.

use crate::job::{JobSpec, PathKind, WorkersFrom};
use crate::record::*;
use crate::training::Training;
use crate::{stats, Error, Latency};
use serde_json::json;
use std::collections::BTreeSet;

const GIB: f64 = (1u64 << 30) as f64;

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
    let mut merged = first.clone();
    merged.result = merge_results(&results, cores(&records))?;
    merged.result.hosts = records.iter().map(host).collect();
    merged.path.direct_bytes = records.iter().map(|r| r.path.direct_bytes).sum();
    merged.path.staged_bytes = records.iter().map(|r| r.path.staged_bytes).sum();
    merged.path.mapped_bytes = records.iter().map(|r| r.path.mapped_bytes).sum();
    merged.path.compat_bytes = records.iter().map(|r| r.path.compat_bytes).sum();
    merged.path.slot_bytes = records.iter().map(|r| r.path.slot_bytes).sum();
    merged.training = merge_training(&records)?;
    if let Some(cufile) = &mut merged.cufile {
        cufile.unaligned_ios = records.iter().flat_map(|r| &r.cufile).map(|c| c.unaligned_ios).sum();
        cufile.gpus = gpus_of(&records);
    }
    merged.cache.device_bytes = records.iter().map(|r| r.cache.device_bytes).sum();
    merged.cache.resident_before = mean_of(&records, |r| r.cache.resident_before);
    merged.cache.resident_after = mean_of(&records, |r| r.cache.resident_after);
    merged.job.data_bytes = records.iter().map(|r| r.job.data_bytes).fold(0, u64::saturating_add);
    merged.job.queues = records.iter().map(|r| r.job.queues).sum();
    for record in &records[1..] {
        merged.missing.extend(record.missing.clone());
        let named = record
            .warnings
            .iter()
            .map(|w| Warning { text: format!("{}: {}", record.environment.host, w.text), ..w.clone() });
        merged.warnings.extend(named);
    }
    if merged.result.verified_on.is_some() {
        merged.missing.remove("result.verified_on");
    }
    let result = &merged.result;
    let lost = "it is told by host, and can't be put together; see the hosts' own records";
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

/// What the hosts' accelerators did together. All hosts have some, or none has.
fn merge_training(records: &[RunRecord]) -> Result<Option<Training>, Error> {
    let parts: Vec<&Training> = records.iter().filter_map(|r| r.training.as_ref()).collect();
    match parts.len() {
        0 => Ok(None),
        n if n == records.len() => Training::merge(&parts).map(Some),
        n => {
            let found = format!("{n} of {} hosts emulated accelerators", records.len());
            Err(Error::request("merging records", found, "records of one run"))
        }
    }
}

/// The GPUs of all hosts; None where a host's cuFile doesn't tell.
fn gpus_of(records: &[RunRecord]) -> Option<Vec<CufileGpu>> {
    let told = records.iter().map(|r| r.cufile.as_ref().and_then(|c| c.gpus.clone()));
    Some(told.collect::<Option<Vec<_>>>()?.concat())
}

/// Sources, seed and files may differ by host; what is done to them may not.
fn same_job(a: &RunRecord, b: &RunRecord) -> bool {
    // Emulated accelerators compare what they do themselves; how many workers read for them is each host's own.
    if a.training.is_some() && b.training.is_some() {
        return true;
    }
    // What each host found out for itself may differ too.
    let path = |r: &RunRecord| if r.path.requested == "auto" { PathKind::Auto } else { r.job.spec.path };
    let workers = |job: &JobSpec| (job.workers_from != WorkersFrom::Auto).then_some(job.workers);
    let key = |r: &RunRecord| {
        let job = &r.job.spec;
        (path(r), job.op, job.read_pct, job.io_bytes, job.io_bytes_max, workers(job), job.depth)
    };
    key(a) == key(b)
}

fn cores(records: &[RunRecord]) -> f64 {
    records.iter().map(|r| f64::from(r.environment.cores)).sum()
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
        "errors": r.errors, "noise": r.noise, "interrupted": r.interrupted,
    });
    if let Some(training) = &record.training {
        host["training"] = training.of_host();
    }
    host
}

fn merge_results(parts: &[&RunResult], cores: f64) -> Result<RunResult, Error> {
    let mut latency = Latency::default();
    for part in parts.iter().filter(|p| !p.histogram.is_empty()) {
        latency.merge(&Latency::decode(&part.histogram)?);
    }
    let seconds = parts.iter().map(|p| p.seconds).fold(0.0, f64::max);
    let sum = |f: fn(&RunResult) -> u64| parts.iter().map(|p| f(p)).sum::<u64>();
    let (bytes, ios) = (sum(|p| p.bytes), sum(|p| p.ios));
    let rate = |amount: f64| if seconds > 0.0 { amount / seconds } else { 0.0 };
    let repeats = merge_repeats(parts, cores);
    Ok(RunResult {
        seconds,
        bytes,
        ios,
        read_bytes: sum(|p| p.read_bytes),
        write_bytes: sum(|p| p.write_bytes),
        throughput_gib_s: rate(bytes as f64 / GIB),
        iops: rate(ios as f64),
        latency_us: latency.summary(),
        histogram: latency.encode(),
        copy_latency_us: None,
        cpu: merge_cpu(&parts.iter().map(|p| &p.cpu).collect::<Vec<_>>(), seconds, bytes, ios, cores),
        power: parts.iter().flat_map(|p| p.power.clone()).collect(),
        errors: Errors::sum(parts.iter().map(|p| &p.errors)),
        noise: merge_noise(parts),
        verified_bytes: sum(|p| p.verified_bytes),
        verified_on: merge_places(parts),
        summary: stats::summarize(&repeats),
        series: merge_series(parts),
        workers: renumbered(parts),
        targets: parts.iter().flat_map(|p| p.targets.clone()).collect(),
        gpus: parts.iter().flat_map(|p| p.gpus.clone()).collect(),
        hosts: Vec::new(),
        interrupted: parts.iter().any(|p| p.interrupted),
        steady_after_s: None,
        repeats,
    })
}

/// `gpu:0+host` where hosts differ.
fn merge_places(parts: &[&RunResult]) -> Option<String> {
    let places: BTreeSet<&str> = parts.iter().filter_map(|p| p.verified_on.as_deref()).collect();
    (!places.is_empty()).then(|| places.into_iter().collect::<Vec<_>>().join("+"))
}

fn merge_repeats(parts: &[&RunResult], cores: f64) -> Vec<Repeat> {
    let count = parts.iter().map(|p| p.repeats.len()).min().unwrap_or(0);
    (0..count)
        .map(|n| {
            let own: Vec<&Repeat> = parts.iter().map(|p| &p.repeats[n]).collect();
            let seconds = own.iter().map(|r| r.seconds).fold(0.0, f64::max);
            let (bytes, ios) = own.iter().fold((0, 0), |(b, i), r| (b + r.bytes, i + r.ios));
            Repeat {
                seconds,
                bytes,
                ios,
                throughput_gib_s: if seconds > 0.0 { bytes as f64 / GIB / seconds } else { 0.0 },
                iops: if seconds > 0.0 { ios as f64 / seconds } else { 0.0 },
                // Percentiles of one repeat can't be had from those of its hosts: the slowest host's stand in.
                latency_us: own.iter().map(|r| r.latency_us.clone()).fold(LatencySummary::default(), slower),
                cpu: merge_cpu(&own.iter().map(|r| &r.cpu).collect::<Vec<_>>(), seconds, bytes, ios, cores),
                power: own.iter().flat_map(|r| r.power.clone()).collect(),
                noise: own[0].noise.clone(),
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

fn merge_cpu(parts: &[&Cpu], seconds: f64, bytes: u64, ios: u64, cores: f64) -> Cpu {
    let (user_s, system_s) = parts.iter().fold((0.0, 0.0), |(u, s), c| (u + c.user_s, s + c.system_s));
    let busy_s = user_s + system_s;
    let share = |s: f64| if seconds > 0.0 && cores > 0.0 { 100.0 * s / seconds / cores } else { 0.0 };
    Cpu {
        user_s,
        system_s,
        cores_busy: if seconds > 0.0 { busy_s / seconds } else { 0.0 },
        user_pct: share(user_s),
        system_pct: share(system_s),
        cpu_s_per_gib: (bytes > 0).then(|| busy_s / (bytes as f64 / GIB)),
        ns_per_io: (ios > 0).then(|| busy_s * 1e9 / ios as f64),
        machine_cores_busy: parts.iter().map(|c| c.machine_cores_busy).sum(),
        others_cores_busy: parts.iter().map(|c| c.others_cores_busy).sum(),
    }
}

/// The noisiest host's figures: one disturbed host disturbs the whole.
fn merge_noise(parts: &[&RunResult]) -> Noise {
    let most = |f: fn(&Noise) -> Option<f64>| parts.iter().filter_map(|p| f(&p.noise)).reduce(f64::max);
    Noise {
        steal_pct: most(|n| n.steal_pct),
        others_cores_busy: most(|n| n.others_cores_busy),
        throttled: parts.iter().filter_map(|p| p.noise.throttled).reduce(|a, b| a + b),
        series_cv_pct: most(|n| n.series_cv_pct),
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
                cores_busy: own.iter().map(|p| p.cores_busy).sum(),
                warmup: own.iter().any(|p| p.warmup),
                ..own[0].clone()
            }
        })
        .collect()
}

fn renumbered(parts: &[&RunResult]) -> Vec<WorkerResult> {
    let all = parts.iter().flat_map(|p| &p.workers);
    all.enumerate().map(|(n, w)| WorkerResult { worker: n as u32, ..w.clone() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobSpec;
    use crate::training::EmulateSpec;

    fn record(host: &str, ios: u64, ns: u64, seconds: f64) -> RunRecord {
        let mut latency = Latency::default();
        latency.record_n(ns, ios);
        let bytes = ios * 4096;
        let cpu = Cpu { user_s: 1.0, system_s: 0.5, ..Cpu::default() };
        RunRecord {
            schema: SCHEMA.into(),
            id: host.into(),
            started: String::new(),
            command: Vec::new(),
            origin: "measured".into(),
            forebay: Build::default(),
            environment: Environment { host: host.into(), cores: 2, ..Environment::default() },
            job: Job {
                source: host.into(),
                pattern: "random".into(),
                direct: true,
                data_bytes: 1,
                queues: 1,
                spec: JobSpec::default(),
            },
            path: PathRan::default(),
            cufile: None,
            cache: CacheState { device_bytes: Some(bytes), ..CacheState::default() },
            result: RunResult {
                seconds,
                bytes,
                ios,
                read_bytes: bytes,
                histogram: latency.encode(),
                latency_us: latency.summary(),
                cpu,
                ..RunResult::default()
            },
            training: None,
            missing: Default::default(),
            warnings: Vec::new(),
        }
    }

    #[test]
    fn percentiles_are_of_all_ios_of_all_hosts() {
        let merged = merge(vec![record("a", 990, 1_000, 2.0), record("b", 10, 1_000_000, 2.5)]).unwrap();
        assert_eq!((merged.result.ios, merged.result.seconds), (1000, 2.5));
        assert!(merged.result.latency_us.p50 < 1.01 && merged.result.latency_us.p999 > 990.0);
        assert!((merged.result.iops - 400.0).abs() < 1e-9);
        assert_eq!(merged.result.hosts.len(), 2);
        assert!((merged.result.cpu.user_s - 2.0).abs() < 1e-9);
        assert_eq!(merged.cache.device_bytes, Some(1000 * 4096));
    }

    #[test]
    fn emulated_accelerators_of_all_hosts_are_one_run() {
        let spec = EmulateSpec { accelerators: 2, ranks: 4, ..EmulateSpec::default() };
        let training = |host: &str| RunRecord {
            training: Some(Training::of_spec(&spec, 10, 3)),
            ..record(host, 1, 1, 1.0)
        };
        let mut wider = training("b");
        wider.job.spec.workers = 64;
        let merged = merge(vec![training("a"), wider]).unwrap();
        assert_eq!(merged.training.map(|t| (t.accelerators, t.hosts)), Some((4, 2)));
        assert_eq!(merged.result.hosts[1]["training"]["accelerators"], 2);
        let error = merge(vec![training("a"), record("b", 1, 1, 1.0)]).unwrap_err();
        assert!(error.found.contains("1 of 2 hosts"), "{error}");
    }

    #[test]
    fn hosts_may_have_found_other_paths_and_workers_for_the_same_job() {
        let found = |host: &str, path, workers| {
            let mut found = record(host, 1, 1, 1.0);
            found.path.requested = "auto".into();
            found.job.spec = JobSpec { path, workers, workers_from: WorkersFrom::Auto, ..found.job.spec };
            found
        };
        let (a, b) = (found("a", PathKind::Mapped, 2), found("b", PathKind::Bounce, 8));
        assert!(merge(vec![a.clone(), b.clone()]).is_ok());
        let mut told = b;
        told.job.spec.workers_from = WorkersFrom::Given;
        assert!(merge(vec![a, told]).is_err());
    }

    #[test]
    fn different_jobs_are_refused_and_one_record_is_itself() {
        let mut other = record("b", 1, 1, 1.0);
        other.job.spec.io_bytes = 512;
        assert!(merge(vec![record("a", 1, 1, 1.0), other]).is_err());
        assert!(merge(Vec::new()).is_err());
        assert_eq!(merge(vec![record("a", 5, 1, 1.0)]).unwrap(), record("a", 5, 1, 1.0));
    }
}
