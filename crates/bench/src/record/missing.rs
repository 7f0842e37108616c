//! The fields that a record lacks, and the reasons.

use super::super::run_kit::Ran;
use super::Context;
use forebay_model::job::Cache;
use forebay_model::record::*;
use forebay_storage::Target;
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
    let mut reported = |field: &str, value: &Result<f64, String>| {
        value.as_ref().map_err(|why| missing.insert(format!("cache.{field}"), why.clone())).ok().copied()
    };
    CacheState {
        policy: policy.into(),
        resident_before: reported("resident_before", &context.resident_before),
        resident_after: reported("resident_after", &context.resident_after),
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
    for (field, absent, why) in absences(context, runs, result) {
        if absent {
            missing.entry(field.into()).or_insert_with(|| why.into());
        }
    }
}

/// Fields that a record may lack: whether this one does, and why.
fn absences<'a>(
    context: &Context,
    runs: &[Ran],
    result: &RunResult,
) -> impl IntoIterator<Item = (&'a str, bool, &'a str)> {
    const STAT: &str = "/proc/stat doesn't say, or the run was too short for its ticks";
    const ONE: &str = "one repeat has no spread; ‹repeat› 5";
    let steady = match context.job.until_steady {
        true => "the run never became steady",
        false => "‹until_steady› wasn't requested",
    };
    let unverified = match context.job.checks_reads() {
        true => "nothing was read",
        false => "‹verify› wasn't requested",
    };
    let late = "read too late: the run's thread got no processor when the interval ended";
    let anywhere =
        "the machine has one node, the GPU doesn't say which it is near, or ‹cpus› or ‹numa› decided";
    let unmeasured = runs.iter().any(|r| r.readings.device_bytes.is_none());
    let (cpu, summary) = (&result.cpu, &result.summary);
    [
        ("result.series[].cores_busy", result.series.iter().any(|p| p.cores_busy.is_none()), late),
        ("cache.device_bytes", unmeasured, "no block device is below this source"),
        ("result.copy_latency_us", result.copy_latency_us.is_none(), "the path has no second stage"),
        ("result.verified_on", result.verified_on.is_none(), unverified),
        ("result.power", result.power.is_empty(), "no power meter answered"),
        (
            "result.noise.series_cv_pct",
            result.noise.series_cv_pct.is_none(),
            "the run was shorter than two intervals",
        ),
        ("result.cpu.cpu_s_per_gib", cpu.cpu_s_per_gib.is_none(), "no bytes were moved"),
        ("result.cpu.ns_per_io", cpu.ns_per_io.is_none(), "no I/O was done"),
        ("result.cpu.machine_cores_busy", cpu.machine_cores_busy.is_none(), STAT),
        ("result.cpu.others_cores_busy", cpu.others_cores_busy.is_none(), STAT),
        ("result.summary.throughput_gib_s_sd", summary.throughput_gib_s_sd.is_none(), ONE),
        ("result.summary.throughput_gib_s_ci95", summary.throughput_gib_s_ci95.is_none(), ONE),
        (
            "result.workers[].gpu",
            result.workers.iter().any(|w| w.gpu.is_none()),
            "the destination is host memory",
        ),
        ("result.workers[].numa", result.workers.iter().any(|w| w.numa.is_none()), anywhere),
        (
            "result.targets[].cache",
            result.targets.iter().any(|t| t.cache.is_none()),
            "the target has no files, or some of either kind",
        ),
        (
            "path.calibration[].cpu_s_per_gib",
            context.calibration.iter().any(|t| t.cpu_s_per_gib.is_none()),
            "the trial moved no bytes",
        ),
        ("result.steady_after_s", result.steady_after_s.is_none(), steady),
    ]
}
