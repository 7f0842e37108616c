//! What a reader should know before relying on a run's numbers.

use super::fleet::Ran;
use super::record::{job_of, Context};
use crate::path::gds::Session;
use crate::source::Target;
use forebay_model::record::{CacheState, PathRan, RunResult, Warning};
use forebay_model::{cached, merge};

/// Under this many seconds a run tells little about a drive.
const SHORT_S: f64 = 5.0;
const STEAL_PCT: f64 = 1.0;
const VARIATION_PCT: f64 = 15.0;
/// Of what was read through the page cache, what the device may have delivered: metadata, and other users of it.
const BOTH_PCT: f64 = 1.0;
const BOTH_BYTES: u64 = 1 << 20;

pub fn of(context: &Context, result: &RunResult, cache: &CacheState, runs: &[Ran]) -> Vec<Warning> {
    let mut list = Vec::new();
    of_time(context, result, runs, &mut list);
    of_noise(result, &mut list);
    of_cache(context, result, cache, runs, &mut list);
    if let Some(text) = runs.iter().find_map(|r| r.kit.warning.clone()) {
        warn(&mut list, "locked_memory", text, "ulimit -l unlimited");
    }
    if let Some(why) = runs.iter().find_map(|r| r.kit.content_on_host.clone()) {
        warn(
            &mut list,
            "content_on_host",
            format!("content in GPU memory was checked or made by the host, at the host's speed: {why}"),
            "pip install nvidia-cuda-nvrtc, or a CUDA toolkit",
        );
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

/// Connections that were lost on the way: what the run measured includes making them anew.
pub fn of_fabric(path: &PathRan, list: &mut Vec<Warning>) {
    for ran in &path.fabric {
        let reconnects: u32 = ran.paths.iter().map(|p| p.reconnects).sum();
        let down: Vec<String> = ran
            .paths
            .iter()
            .filter(|p| !p.state.starts_with("live"))
            .map(|p| format!("{}: {}", p.address, p.state))
            .collect();
        if reconnects > 0 {
            let times = if reconnects == 1 { "once".into() } else { format!("{reconnects} times") };
            let text = format!("{} lost its connections and was connected again {times}", ran.uri);
            warn(list, "reconnected", text, "path.fabric[].events of the record, and the target's log");
        }
        if !down.is_empty() {
            let text = format!("{} ended with fewer paths than it has: {}", ran.uri, down.join("; "));
            warn(list, "path_down", text, "the target's log");
        }
        let retries: u64 = ran.queues.iter().map(|q| q.retries).sum();
        if retries > 0 {
            let text = format!("{retries} commands to {} failed in passing and were sent again", ran.uri);
            warn(list, "retried", text, "the target's log; a link that changes bits, if digests are on");
        }
    }
}

/// Where bytes through cuFile didn't go direct, and what cuFile said on its way.
pub fn of_cufile(context: &Context, path: &PathRan, list: &mut Vec<Warning>) {
    if let Some(session) = context.destination.cufile() {
        of_session(session, path, list);
    }
}

pub fn of_session(session: &Session, path: &PathRan, list: &mut Vec<Warning>) {
    let moved = path.direct_bytes + path.compat_bytes;
    if path.compat_bytes > 0 {
        let share = 100.0 * path.compat_bytes as f64 / moved as f64;
        let text = format!("{share:.0} % of the bytes went by cuFile's compatibility mode, which its settings allow: a CPU read and copied them");
        warn(
            list,
            "gds_compat",
            text,
            "forebay doctor SOURCE for what is in the way; --require-direct to refuse it",
        );
    }
    if session.driver().forces_compat() == Some(true) {
        let text = "force_compat_mode is on: cuFile doesn't try to go direct".into();
        warn(
            list,
            "cufile_forced",
            text,
            "unset CUFILE_FORCE_COMPAT_MODE, or force_compat_mode false in cufile.json",
        );
    }
    for note in session.notes() {
        warn(list, note.id, note.text, note.next);
    }
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
    list.extend(noise.others_cores_busy.and_then(merge::of_others));
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

/// Reads through the page cache that had to touch the device, though not all of them: the rate is neither's.
fn of_both(context: &Context, result: &RunResult, cache: &CacheState, list: &mut Vec<Warning>) {
    let of = |kind: &str| {
        let own = result.targets.iter().filter(|t| t.cache.as_deref() == Some(kind));
        own.map(|t| t.bytes).sum::<u64>()
    };
    let (buffered, direct) = (of("allow"), of("bypass"));
    let Some(device) = cache.device_bytes.filter(|_| buffered > 0 && !context.job.writes()) else { return };
    if matches!(cache.policy.as_str(), "drop" | "memory") {
        return;
    }
    let touched = device.saturating_sub(direct);
    let pct = 100.0 * touched as f64 / buffered as f64;
    if pct > BOTH_PCT && touched > BOTH_BYTES {
        let text = format!(
            "{touched} of {buffered} bytes that were read through the page cache came from the device ({pct:.0} %)"
        );
        warn(
            list,
            "cold_and_warm",
            text,
            "--cache warm to measure memory, --cache bypass to measure the drive",
        );
    }
}

fn of_cache(
    context: &Context,
    result: &RunResult,
    cache: &CacheState,
    runs: &[Ran],
    list: &mut Vec<Warning>,
) {
    if let Some(shown) = cached::unchecked(cache, result).filter(|_| context.job.require_direct) {
        let text = format!("what shows that bytes went direct: {shown}");
        warn(
            list,
            "direct_unchecked",
            text,
            "the client's own counters (nfsiostat, lctl get_param osc.*.stats)",
        );
    }
    list.extend(cached::judge(&job_of(context, 1), cache, result));
    let bypass = cache.policy == "bypass";
    of_both(context, result, cache, list);
    if let Some(run) = runs.iter().find(|r| bypass && matches!(r.kit.pages, "small" | "thp-partial")) {
        let text =
            format!("buffers lie in {} pages: the device sees each I/O as many small pieces", run.kit.pages);
        warn(list, "small_pages", text, "sysctl vm.nr_hugepages=512, or --pages thp");
    }
}
