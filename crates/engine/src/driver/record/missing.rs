//! The fields that a record lacks, and the reasons.

use super::super::fleet::Ran;
use super::Context;
use crate::source::Target;
use forebay_model::job::Cache;
use forebay_model::record::*;
use std::collections::BTreeMap;

pub(super) fn cache_state(
    context: &Context,
    runs: &[Ran],
    missing: &mut BTreeMap<String, String>,
) -> CacheState {
    let files: Vec<_> = context.targets.iter().flat_map(Target::files).map(|(f, _)| f).collect();
    let policy = match context.job.cache {
        _ if files.is_empty() => "none",
        _ if files.iter().all(|f| f.in_memory) => "memory",
        Cache::Auto if files.iter().any(|f| f.direct) && files.iter().any(|f| !f.direct) => "mixed",
        Cache::Auto | Cache::Bypass if files.iter().any(|f| f.direct) => "bypass",
        Cache::Auto | Cache::Bypass | Cache::Allow => "allow",
        Cache::Drop => "drop",
        Cache::Warm => "warm",
    };
    let mut told = |field: &str, value: &Result<f64, String>| {
        value.as_ref().map_err(|why| missing.insert(format!("cache.{field}"), why.clone())).ok().copied()
    };
    CacheState {
        policy: policy.into(),
        resident_before: told("resident_before", &context.resident_before),
        resident_after: told("resident_after", &context.resident_after),
        device_bytes: runs.iter().map(|r| r.readings.device_bytes).sum::<Option<u64>>(),
        devices: runs.iter().flat_map(|r| &r.readings.devices).fold(
            BTreeMap::new(),
            |mut all, (name, bytes)| {
                *all.entry(name.clone()).or_default() += bytes;
                all
            },
        ),
    }
}

pub(super) fn note_missing(
    context: &Context,
    runs: &[Ran],
    result: &RunResult,
    missing: &mut BTreeMap<String, String>,
) {
    for run in runs {
        missing.extend(run.readings.missing.iter().map(|(k, v)| (k.clone(), v.clone())));
    }
    if let Some(astray) = runs.iter().map(|r| &r.readings).find(|r| r.astray.is_some()) {
        astray.explain(result, missing);
    }
    let mut note = |field: &str, absent: bool, why: &str| {
        if absent {
            missing.entry(field.into()).or_insert_with(|| why.into());
        }
    };
    note(
        "result.series[].cores_busy",
        result.series.iter().any(|p| p.cores_busy.is_none()),
        "read too late: the driver's thread got no processor when the interval ended",
    );
    let steady = if context.job.until_steady {
        "the run never became steady"
    } else {
        "‹until_steady› wasn't requested"
    };
    note(
        "cache.device_bytes",
        runs.iter().any(|r| r.readings.device_bytes.is_none()),
        "no block device is below this source",
    );
    note("result.copy_latency_us", result.copy_latency_us.is_none(), "the path has no second stage");
    let unverified =
        if context.job.checks_reads() { "nothing was read" } else { "‹verify› wasn't requested" };
    note("result.verified_on", result.verified_on.is_none(), unverified);
    note("result.power", result.power.is_empty(), "no power meter answered");
    note(
        "result.noise.series_cv_pct",
        result.noise.series_cv_pct.is_none(),
        "the run was shorter than two intervals",
    );
    note("result.cpu.cpu_s_per_gib", result.cpu.cpu_s_per_gib.is_none(), "no bytes were moved");
    note("result.cpu.ns_per_io", result.cpu.ns_per_io.is_none(), "no I/O was done");
    note(
        "result.cpu.machine_cores_busy",
        result.cpu.machine_cores_busy.is_none(),
        "/proc/stat doesn't say, or the run was too short for its ticks",
    );
    note(
        "result.cpu.others_cores_busy",
        result.cpu.others_cores_busy.is_none(),
        "/proc/stat doesn't say, or the run was too short for its ticks",
    );
    note(
        "result.summary.throughput_gib_s_sd",
        result.summary.throughput_gib_s_sd.is_none(),
        "one repeat has no spread; ‹repeat› 5",
    );
    note(
        "result.summary.throughput_gib_s_ci95",
        result.summary.throughput_gib_s_ci95.is_none(),
        "one repeat has no spread; ‹repeat› 5",
    );
    let no_gpu = "the destination is host memory";
    note("result.workers[].gpu", result.workers.iter().any(|w| w.gpu.is_none()), no_gpu);
    note(
        "result.workers[].numa",
        result.workers.iter().any(|w| w.numa.is_none()),
        "the machine has one node, the GPU doesn't say which it is near, or ‹cpus› or ‹numa› decided",
    );
    note(
        "result.targets[].cache",
        result.targets.iter().any(|t| t.cache.is_none()),
        "the target has no files, or some of either kind",
    );
    note(
        "path.calibration[].cpu_s_per_gib",
        context.calibration.iter().any(|t| t.cpu_s_per_gib.is_none()),
        "the trial moved no bytes",
    );
    note("result.steady_after_s", result.steady_after_s.is_none(), steady);
}
