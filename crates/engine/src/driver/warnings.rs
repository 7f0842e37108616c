//! What a reader should know before relying on a run's numbers.

use super::fleet::Ran;
use super::record::Context;
use crate::source::Target;
use forebay_model::record::{CacheState, RunResult, Warning};

/// Under this many seconds a run tells little about a drive.
const SHORT_S: f64 = 5.0;
const STEAL_PCT: f64 = 1.0;
const OTHERS_CORES: f64 = 0.25;
const VARIATION_PCT: f64 = 15.0;

pub fn of(context: &Context, result: &RunResult, cache: &CacheState, runs: &[Ran]) -> Vec<Warning> {
    let mut list = Vec::new();
    of_time(context, result, runs, &mut list);
    of_noise(result, &mut list);
    of_cache(context, result, cache, runs, &mut list);
    if let Some(text) = runs.iter().find_map(|r| r.kit.warning.clone()) {
        warn(&mut list, "locked_memory", text, "ulimit -l unlimited");
    }
    if context.targets.iter().any(Target::is_simulated) {
        warn(
            &mut list,
            "simulated",
            "a modelled drive took part: these are not measurements of a device".into(),
            "a real source",
        );
    }
    list
}

fn warn(list: &mut Vec<Warning>, id: &str, text: String, next: &str) {
    list.push(Warning { id: id.into(), text, next: next.into() });
}

fn of_time(context: &Context, result: &RunResult, runs: &[Ran], list: &mut Vec<Warning>) {
    let each = result.seconds / runs.len().max(1) as f64;
    if result.interrupted {
        warn(
            list,
            "interrupted",
            format!("stopped by a signal after {:.1} s of measured time", result.seconds),
            "the same command again",
        );
    }
    if each < SHORT_S {
        warn(
            list,
            "too_short",
            format!("{each:.1} s of measured time says little about a drive"),
            "--duration 30",
        );
    }
    let unfinished = &result.unfinished;
    if unfinished.count > 0 {
        let text = format!(
            "{} I/Os that were under way or due never came back, and the oldest had waited {:.3} s when it was given up: \
             latency counts them as if they had ended then",
            unfinished.count, unfinished.oldest_s
        );
        let next = if result.errors.timed_out > 0 {
            "dmesg | tail; a longer --timeout"
        } else {
            "a lower --rate, more --depth, or a longer --duration"
        };
        warn(list, "unfinished", text, next);
    }
    let late = |unit: &str, got: f64, asked: f64| {
        (got < 0.98 * asked)
            .then(|| format!("{got:.3} of {asked:.3} {unit} were reached; latency counts the waiting"))
    };
    let by_ios = context.job.rate_iops.and_then(|r| late("I/Os per second", result.iops.round(), r));
    let by_bytes = context.job.rate_gib_s.and_then(|r| late("GiB/s", result.throughput_gib_s, r));
    if let Some(text) = by_ios.or(by_bytes) {
        warn(list, "behind_schedule", text, "a lower --rate, or more --depth");
    }
}

fn of_noise(result: &RunResult, list: &mut Vec<Warning>) {
    let noise = &result.noise;
    if let Some(steal) = noise.steal_pct.filter(|s| *s > STEAL_PCT) {
        warn(
            list,
            "noisy",
            format!("the hypervisor took {steal:.1} % of the CPU time"),
            "--repeat 5, or a quieter machine",
        );
    }
    if let Some(others) = noise.others_cores_busy.filter(|c| *c > OTHERS_CORES) {
        warn(
            list,
            "noisy",
            format!("other processes kept {others:.2} cores busy"),
            "stop them, or --cpus to stay clear of them",
        );
    }
    if let Some(cv) = noise.series_cv_pct.filter(|c| *c > VARIATION_PCT) {
        warn(
            list,
            "noisy",
            format!("throughput varied by {cv:.0} % from interval to interval"),
            "--until-steady, or --repeat 5",
        );
    }
    if let Some(times) = noise.throttled.filter(|t| *t > 0) {
        warn(list, "throttled", format!("the processor throttled {times} times"), "check cooling");
    }
}

fn of_cache(
    context: &Context,
    result: &RunResult,
    cache: &CacheState,
    runs: &[Ran],
    list: &mut Vec<Warning>,
) {
    let bypass = cache.policy == "bypass";
    let delivered = cache.device_bytes.map(|d| 100.0 * d as f64 / result.bytes.max(1) as f64);
    if let Some(pct) = delivered.filter(|p| bypass && !context.job.writes() && *p < 90.0) {
        let text = format!("the device delivered {pct:.0} % of the bytes that were read");
        warn(list, "cached", text, "files with data in every block (holes cost no I/O)");
    }
    let allowed = matches!(cache.policy.as_str(), "allow" | "warm");
    if let Some(share) = cache.resident_before.filter(|r| allowed && *r > 0.01) {
        let text = format!("{:.0} % of the data was in the page cache", 100.0 * share);
        warn(list, "cached", text, "--cache bypass or --cache drop to measure the drive");
    }
    if let Some(run) = runs.iter().find(|r| bypass && matches!(r.kit.pages, "small" | "thp-partial")) {
        let text =
            format!("buffers lie in {} pages: the device sees each I/O as many small pieces", run.kit.pages);
        warn(list, "small_pages", text, "sysctl vm.nr_hugepages=512, or --pages thp");
    }
}
