//! Warnings about a run, derived from its record alone: the terminal, the page and `--json` show this list. Warnings
//! that only the run itself can give (memory that couldn't be locked, errors of a library) are in the record already,
//! and come first.

use crate::cached;
use crate::job::{JobSpec, Pages, PathKind};
use crate::record::{CacheState, PathRan, RunRecord, RunResult, Warning};
use crate::training::{Loader, Training};

/// Fewer measured seconds than this per repeat say little about a drive, because they include its write cache and the
/// ramp.
pub const SHORT_S: f64 = 5.0;
/// CPU time taken by the hypervisor, in per cent, above which a run is noisy.
pub const STEAL_PCT: f64 = 1.0;
/// Coefficient of variation of the series, in per cent, above which a run is noisy.
pub const VARIATION_PCT: f64 = 15.0;
/// Share of the scheduler's periods in which a CPU limit may hold a run back without a warning.
const LIMITED_PCT: f64 = 1.0;
/// Less of the data than this in memory after it was read in is data that memory can't hold.
const WARM_LEAST: f64 = 0.99;
/// Standstill that is told, in seconds: as exact as one is known.
const STOOD_STILL_S: f64 = 0.02;
/// Devices move the requested bytes and at most a block at each end: more than this factor is read-ahead, or other traffic.
pub const TRAFFIC_MOST: f64 = 1.2;
/// With this share of the data in memory beforehand, what drives moved is none of the job's.
const CACHED_SHARE: f64 = 0.99;
/// Through the page cache so much more is metadata and the last read-ahead.
const READ_AHEAD_BYTES: f64 = (4 << 20) as f64;
/// The largest block that file systems here read whole.
const BLOCK: u64 = 4096;
/// Below this share of the requested rate, an open loop fell behind.
const REACHED_LEAST: f64 = 0.98;
/// Deviation of a modelled drive in real time from its prediction, in per cent, without a warning.
const OFF_MODEL_PCT: f64 = 5.0;
/// Share of reads through the page cache that the device may deliver without a warning: metadata, and other users of
/// the device.
const BOTH_PCT: f64 = 1.0;
const BOTH_BYTES: u64 = 1 << 20;
/// I/Os that are on average less than this share of the job's least I/O size are those of files that end within one.
const WHOLE_LEAST: f64 = 0.9;
/// Less data than this, read again and again, may come from memory of the drive or its controller.
pub const SMALL_DATA: u64 = 64 << 20;
/// Times that it must have been read for that.
const AGAIN_LEAST: f64 = 2.0;
/// Samples that couldn't be read, named in the text.
const EXAMPLES_SHOWN: usize = 5;

/// Adds the warnings that follow from the record's figures, except those that it has already (by `id`).
pub fn add(record: &mut RunRecord) {
    let found: Vec<_> =
        derive(record).into_iter().filter(|w| record.warnings.iter().all(|k| k.id != w.id)).collect();
    record.warnings.extend(found);
}

/// All warnings that follow from the record's figures. Never reads `record.warnings`.
pub fn derive(record: &RunRecord) -> Vec<Warning> {
    let mut list = Vec::new();
    of_path(record, &mut list);
    if record.training.is_none() {
        of_errors(record, &mut list);
    }
    of_end(record, &mut list);
    if let Some(training) = &record.training {
        of_training(training, &mut list);
    }
    of_noise(record, &mut list);
    // A loader is judged by its consumer's wait, from wherever the bytes come.
    if record.feed.is_none() {
        of_cache(record, &mut list);
    }
    of_data(record, &mut list);
    of_cufile(record, &mut list);
    of_fabric(&record.path, &mut list);
    of_drives(record, &mut list);
    list.extend(of_scale(record));
    list.extend(off_model(record));
    if record.origin != "measured" {
        let text = "a modelled drive was used: these are not measurements of a device";
        warn(&mut list, "simulated", text.into(), "a real source");
    }
    list
}

fn warn(list: &mut Vec<Warning>, id: &str, text: String, next: impl Into<String>) {
    list.push(Warning { id: id.into(), text, next: next.into() });
}

/// A path other than the requested one. Bytes moved in cuFile's compatibility mode have their own warning.
fn of_path(record: &RunRecord, list: &mut Vec<Warning>) {
    let PathRan { requested, ran, compat_bytes, .. } = &record.path;
    if requested.is_empty()
        || PathKind::named(requested).is_some_and(PathKind::is_found)
        || requested == ran
        || *compat_bytes > 0
    {
        return;
    }
    let why = record.path.reason.as_deref().unwrap_or("the record gives no reason");
    warn(list, "path", format!("{requested} was requested, {ran} ran: {why}"), "forebay doctor SOURCE");
}

/// Returns the place to look for the reason of failed I/Os.
pub fn look_for_reason(record: &RunRecord) -> String {
    match record.path.fabric.first() {
        None => "dmesg | tail; forebay doctor SOURCE".into(),
        Some(ran) => format!("the log of the target or gateway; forebay identify '{}'", ran.uri),
    }
}

fn of_errors(record: &RunRecord, list: &mut Vec<Warning>) {
    let errors = &record.result.errors;
    let counts = [
        (errors.failed, "failed"),
        (errors.timed_out, "timed out"),
        (errors.short, "were short"),
        (errors.retried, "were retried"),
        (errors.misaligned, "were misaligned"),
    ];
    let reported: Vec<_> =
        counts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
    let first = errors.examples.first().map_or(String::new(), |e| format!("; the first one: {e}"));
    if !reported.is_empty() {
        let text = format!("of the I/Os {}{first}", reported.join(", "));
        warn(list, "failed_io", text, look_for_reason(record));
    }
    if errors.verify_failed > 0 {
        let text = format!("{} blocks had the wrong content{first}", errors.verify_failed);
        warn(list, "verify", text, "don't trust this storage with data until this is explained");
    }
}

/// Adds warnings about the run's end.
fn of_end(record: &RunRecord, list: &mut Vec<Warning>) {
    let (result, job) = (&record.result, &record.job.spec);
    if result.interrupted {
        let text = match &record.training {
            Some(training) => {
                format!(
                    "stopped by a signal after {} steps",
                    training.epochs.iter().map(|e| e.steps).sum::<u32>()
                )
            }
            None => format!("stopped by a signal after {:.1} s of measured time", result.seconds),
        };
        warn(list, "interrupted", text, "the same command again");
    }
    let each = result.seconds / result.repeats.len().max(1) as f64;
    if each < SHORT_S && record.origin == "measured" && record.training.is_none() {
        let what = if record.feed.is_some() { "a loader" } else { "a drive" };
        let text = format!("{each:.1} s of measured time says little about {what}");
        warn(list, "too_short", text, longer(record, each));
    }
    let unfinished = &result.unfinished;
    if unfinished.count > 0 {
        let text = format!(
            "{} I/Os in flight or due never completed; the oldest had waited {:.3} s when it was given up: \
             latency counts them as if they had completed then",
            unfinished.count, unfinished.oldest_s
        );
        let next = match (result.errors.timed_out > 0, rate_flag(job)) {
            (true, _) => "dmesg | tail; a longer ‹timeout_s›".into(),
            (false, Some(flag)) => format!("a lower {flag}, more ‹depth›, or a longer ‹duration_s›"),
            (false, None) => "dmesg | tail; a longer ‹duration_s›".into(),
        };
        warn(list, "unfinished", text, next);
    }
    let late = |unit: &str, got: f64, asked: f64| {
        (got < REACHED_LEAST * asked)
            .then(|| format!("{got:.3} of {asked:.3} {unit} were reached; latency includes the waiting time"))
    };
    let by_ios = job.rate_iops.and_then(|r| late("I/Os per second", result.iops.round(), r));
    let by_bytes = job.rate_gib_s.and_then(|r| late("GiB/s", result.throughput_gib_s, r));
    if let (Some(text), Some(flag)) = (by_ios.or(by_bytes), rate_flag(job)) {
        warn(list, "behind_schedule", text, format!("a lower {flag}, or more ‹depth›"));
    }
}

fn rate_flag(job: &JobSpec) -> Option<&'static str> {
    match (job.rate_gib_s, job.rate_iops) {
        (Some(_), _) => Some("‹rate_gib_s›"),
        (None, Some(_)) => Some("‹rate_iops›"),
        (None, None) => None,
    }
}

/// The hint for more than `each` seconds, given the command line.
fn longer(record: &RunRecord, each: f64) -> String {
    if record.checkpoint.is_some() {
        return "more --writes and --reads, or a larger --scale".into();
    }
    let job = &record.job.spec;
    if record.feed.is_some() {
        return format!("--epochs {:.0}", (2.0 * SHORT_S / each.max(0.01)).ceil());
    }
    match (job.passes, job.duration_s) {
        (Some(passes), None) if each > 0.0 => {
            let enough = (f64::from(passes) * 2.0 * SHORT_S / each).ceil();
            format!("‹passes› {enough:.0}, or ‹duration_s› 30")
        }
        _ if verb(record) == "sweep" => "a longer duration in the sweep's file".into(),
        _ => "‹duration_s› 30".into(),
    }
}

/// `bench` of `forebay bench …`; empty if the record doesn't say.
fn verb(record: &RunRecord) -> &str {
    record.command.get(1).map_or("", String::as_str)
}

fn of_training(training: &Training, list: &mut Vec<Warning>) {
    if training.headroom.client_limited {
        let text = format!("the client was measured, not the storage: {}", training.headroom.why);
        let next =
            "fewer --accelerators, more hosts (mpirun), or a machine with more CPUs or less other work";
        warn(list, "client_limited", text, next);
    }
    let skipped = &training.skipped;
    if skipped.count > 0 {
        let examples: Vec<_> = skipped.examples.iter().take(EXAMPLES_SHOWN).map(String::as_str).collect();
        let text = format!("{} samples were skipped: {}", skipped.count, examples.join("; "));
        warn(list, "skipped", text, "training.skipped.examples for what is wrong with each");
    }
    let (files, accelerators) = (training.files, training.accelerators);
    if training.loader == Loader::TensorFlow && files < accelerators {
        let text = format!(
            "{files} files are fewer than {accelerators} accelerators: each of them goes through all files, as DLIO's reader does"
        );
        warn(list, "few_files", text, "a data set as large as forebay emulate datasize says");
    }
}

fn of_noise(record: &RunRecord, list: &mut Vec<Warning>) {
    let (noise, job, emulated) =
        (&record.result.noise, &record.job.spec, record.training.is_some() || record.feed.is_some());
    // Repeats that were asked for already don't help further.
    let repeat = if emulated || job.repeat >= 5 { None } else { Some("‹repeat› 5") };
    if let Some(steal) = noise.steal_pct.filter(|s| *s > STEAL_PCT) {
        let text = format!("the hypervisor took {steal:.1} % of the CPU time");
        warn(list, "noisy", text, either(&[repeat, Some("a quieter machine")]));
    }
    if let Some(seconds) = noise.stood_still_s.filter(|s| *s >= STOOD_STILL_S) {
        let text = format!(
            "the process stood still for {seconds:.2} s (stopped, frozen, or its machine paused): rates include that time, latencies don't"
        );
        warn(list, "stood_still", text, "the same command again, left to run");
    }
    let held_back = noise.cpu_limited_pct.filter(|pct| *pct > LIMITED_PCT);
    if let (Some(pct), Some(cores)) = (held_back, noise.cpu_limit_cores) {
        let text = format!(
            "the container's limit of {cores:.1} cores held this process back in {pct:.0} % of the scheduler's periods"
        );
        let fewer = if emulated { "" } else { ", or fewer ‹workers›" };
        let next = format!("raise the limit (docker: --cpus, Kubernetes: resources.limits.cpu){fewer}");
        warn(list, "cpu_limit", text, next);
    }
    let may_pin = job.cpus.is_none() && !emulated;
    // Who is held back by a limit finds cores busy that wouldn't be its own anyway.
    let others = noise.others_cores_busy.filter(|_| held_back.is_none());
    list.extend(others.and_then(|busy| of_others(busy, record.environment.cores.into(), may_pin)));
    // Steps and barriers make the rate of emulated training vary by themselves.
    if let Some(cv) = noise.series_cv_pct.filter(|c| !emulated && *c > VARIATION_PCT) {
        let steady = (!job.until_steady && job.passes.is_none()).then_some("‹until_steady›");
        let none = (steady.is_none() && repeat.is_none()).then_some("a quieter machine");
        let text = format!("throughput varied by {cv:.0} % from interval to interval");
        warn(list, "noisy", text, either(&[steady, repeat, none]));
    }
    if let Some(times) = noise.throttled.filter(|t| *t > 0) {
        warn(
            list,
            "throttled",
            format!("the processor throttled {times} times"),
            "check cooling and power limits",
        );
    }
}

fn either(ways: &[Option<&str>]) -> String {
    ways.iter().flatten().copied().collect::<Vec<_>>().join(", or ")
}

const OTHERS: &str = "other processes kept";
/// Cores kept busy by other processes, and their share of the machine, above which they disturb a run: both must be
/// exceeded.
pub const OTHERS_CORES: f64 = 0.25;
pub const OTHERS_SHARE: f64 = 0.05;

/// The warning if other processes kept `busy` of `cores` CPUs busy; None if that is little.
pub(crate) fn of_others(busy: f64, cores: f64, may_pin: bool) -> Option<Warning> {
    let next = if may_pin { "stop them, or ‹cpus› to stay clear of them" } else { "stop them" };
    (busy > OTHERS_CORES.max(OTHERS_SHARE * cores)).then(|| Warning {
        id: "noisy".into(),
        text: format!("{OTHERS} {busy:.2} cores busy"),
        next: next.into(),
    })
}

pub(crate) fn is_of_others(warning: &Warning) -> bool {
    warning.id == "noisy" && warning.text.starts_with(OTHERS)
}

fn of_cache(record: &RunRecord, list: &mut Vec<Warning>) {
    let (result, cache) = (&record.result, &record.cache);
    let direct = record.job.spec.require_direct;
    if let Some(shown) = cached::unchecked(cache, result).filter(|_| direct) {
        let next = "the client's own counters (nfsiostat, lctl get_param osc.*.stats)";
        warn(list, "direct_unchecked", format!("evidence that I/O was direct: {shown}"), next);
    }
    list.extend(cached::judge(&record.job, cache, result));
    of_both(record, list);
    let pages = record.path.slot_pages.as_str();
    if cache.policy == "bypass" && matches!(pages, "small" | "thp-partial") {
        let text = format!("buffers are in {pages} pages: the device sees each I/O as many small pieces");
        let huge = "sysctl vm.nr_hugepages=512";
        let next = match record.job.spec.pages {
            // Emulated runs have no --pages.
            _ if record.training.is_some() => huge.into(),
            // As fio's jobs have it: huge pages alone would change nothing.
            Pages::Small => "‹pages› auto".into(),
            _ => format!("{huge}, or ‹pages› thp"),
        };
        warn(list, "small_pages", text, next);
    }
    of_traffic(cache, result, list);
}

/// Data of which I/Os say little: files that are smaller than an I/O, and so little that it needn't come from flash or disks.
fn of_data(record: &RunRecord, list: &mut Vec<Warning>) {
    let (result, job) = (&record.result, &record.job);
    let whole = record.training.is_some() || record.checkpoint.is_some() || record.kvcache.is_some();
    if whole || record.feed.is_some() || record.origin != "measured" {
        return;
    }
    let mean = result.bytes as f64 / result.ios.max(1) as f64;
    // Who reads whole files knows that their ends are what they are.
    let expected = job.spec.whole_files || result.errors.short > 0;
    if result.ios > 0 && !expected && mean < WHOLE_LEAST * job.spec.io_bytes as f64 {
        let (mean, asked) = (size(mean), size(job.spec.io_bytes as f64));
        let text = format!(
            "I/Os were {mean} on average, not {asked}: files, or parts of them, are smaller than one"
        );
        warn(
            list,
            "small_ios",
            text,
            "‹io_bytes› as files are, or larger files; forebay files for opening small ones",
        );
    }
    let again =
        result.read_bytes as f64 / (job.data_bytes.max(1) * result.repeats.len().max(1) as u64) as f64;
    let from_drives = matches!(record.cache.policy.as_str(), "bypass" | "drop");
    if from_drives && (1..SMALL_DATA).contains(&job.data_bytes) && again >= AGAIN_LEAST {
        let text = format!(
            "{} of data were read {again:.0} times over: memory of the drive or its controller may hold so little",
            size(job.data_bytes as f64)
        );
        warn(list, "small_data", text, "files of 1 GiB and more (‹create› with ‹file_bytes› 1g)");
    }
}

/// `2.9 KiB`, `64 MiB`.
fn size(bytes: f64) -> String {
    let (unit, shift) = match bytes as u64 {
        0..1024 => return format!("{bytes:.0} B"),
        1024..1_048_576 => ("KiB", 10),
        1_048_576..1_073_741_824 => ("MiB", 20),
        _ => ("GiB", 30),
    };
    let value = format!("{:.1}", bytes / (1u64 << shift) as f64);
    format!("{} {unit}", value.strip_suffix(".0").unwrap_or(&value))
}

/// Drives that moved more than was asked for. What memory held beforehand says nothing of them.
fn of_traffic(cache: &CacheState, result: &RunResult, list: &mut Vec<Warning>) {
    let bypass = cache.policy == "bypass";
    let from_drives = match cache.policy.as_str() {
        "bypass" | "drop" => true,
        "allow" => cache.resident_before.is_some_and(|share| share < CACHED_SHARE),
        _ => false,
    };
    let moved = cache.device_bytes.filter(|_| from_drives && result.write_bytes == 0);
    let most = TRAFFIC_MOST * in_whole_blocks(result) + if bypass { 0.0 } else { READ_AHEAD_BYTES };
    let Some(moved) = moved.filter(|moved| *moved as f64 > most && result.bytes > 0) else { return };
    let times = moved as f64 / result.bytes as f64;
    let (why, next) = match bypass {
        true => ("something else used them at the same time", "a drive that nothing else uses"),
        false => (
            "the kernel read ahead, or something else used them",
            "‹hint› random, or ‹cache› bypass; a drive that nothing else uses",
        ),
    };
    warn(list, "traffic", format!("the drives moved {times:.1} times what the job requested: {why}"), next);
}

/// Bytes that the device delivers for these I/Os: where files end inside a block, it is read to its end.
fn in_whole_blocks(result: &RunResult) -> f64 {
    let mean = result.bytes.checked_div(result.ios).unwrap_or(0);
    result.bytes.max(mean.next_multiple_of(BLOCK) * result.ios) as f64
}

/// Reads through the page cache of which some, but not all, reached the device: the rate is neither that of memory
/// nor that of the device.
fn of_both(record: &RunRecord, list: &mut Vec<Warning>) {
    let of = |kind: &str| {
        let own = record.result.targets.iter().filter(|t| t.cache.as_deref() == Some(kind));
        own.map(|t| t.bytes).sum::<u64>()
    };
    let (buffered, direct) = (of("allow"), of("bypass"));
    let device = record.cache.device_bytes.filter(|_| buffered > 0 && !record.job.spec.writes());
    let Some(device) = device.filter(|_| !matches!(record.cache.policy.as_str(), "drop" | "memory")) else {
        return;
    };
    let touched = device.saturating_sub(direct);
    let pct = 100.0 * touched as f64 / buffered as f64;
    if pct > BOTH_PCT && touched > BOTH_BYTES {
        let text = format!(
            "{touched} of {buffered} bytes that were read through the page cache came from the device ({pct:.0} %)"
        );
        let kept = record.cache.resident_before.filter(|_| record.cache.policy == "warm");
        match kept.filter(|share| *share < WARM_LEAST) {
            // Once more `warm` would change nothing.
            Some(share) => {
                let pct = 100.0 * share;
                let why = format!("{text}: memory kept {pct:.0} % of the data when it was read in, and the page cache counts against a container's limit, too");
                let next = "less data, or more memory (docker run --memory SIZE); ‹cache› bypass to measure the drive";
                warn(list, "cold_and_warm", why, next);
            }
            None => {
                let next = "‹cache› warm to measure memory, ‹cache› bypass to measure the drive";
                warn(list, "cold_and_warm", text, next);
            }
        }
    }
}

fn of_cufile(record: &RunRecord, list: &mut Vec<Warning>) {
    let path = &record.path;
    if path.compat_bytes > 0 {
        let share = 100.0 * path.compat_bytes as f64 / (path.direct_bytes + path.compat_bytes) as f64;
        let text = format!(
            "{share:.0} % of the bytes went through cuFile's compatibility mode, which its settings allow: a CPU read and copied them"
        );
        let reason = "forebay doctor SOURCE for the reason";
        // A loader takes what cuFile's settings allow.
        let next = match record.feed {
            Some(_) => reason.into(),
            None => format!("{reason}; ‹require_direct› to refuse it"),
        };
        warn(list, "gds_compat", text, next);
    }
}

/// Connections that were lost during the run: the measurements include reconnecting.
fn of_fabric(path: &PathRan, list: &mut Vec<Warning>) {
    for ran in &path.fabric {
        let reconnects: u32 = ran.paths.iter().map(|p| p.reconnects).sum();
        if reconnects > 0 {
            let times = if reconnects == 1 { "once".into() } else { format!("{reconnects} times") };
            let text = format!("{} lost its connections and was reconnected {times}", ran.uri);
            warn(list, "reconnected", text, "path.fabric[].events of the record, and the target's log");
        }
        let refused: u32 = ran.paths.iter().map(|p| p.refused).sum();
        if refused > 0 {
            let text = format!(
                "{} had fewer I/O queues at times: its target refused {refused} connections",
                ran.uri
            );
            warn(
                list,
                "queues_refused",
                text,
                "fewer queues= or ‹workers›, or a higher limit on connections at the target",
            );
        }
        let down = ran.paths.iter().filter(|p| !p.state.starts_with("live"));
        let down: Vec<_> = down.map(|p| format!("{}: {}", p.address, p.state)).collect();
        if !down.is_empty() {
            let text = format!("{} ended with fewer paths than it has: {}", ran.uri, down.join("; "));
            warn(list, "path_down", text, "the target's log");
        }
        let retries: u64 = ran.queues.iter().map(|q| q.retries).sum();
        if retries > 0 {
            let text = format!("{retries} commands to {} failed temporarily and were sent again", ran.uri);
            warn(list, "retried", text, "the target's log; a link that changes bits, if digests are on");
        }
    }
}

fn of_drives(record: &RunRecord, list: &mut Vec<Warning>) {
    for drive in record.environment.drives.iter().filter(|_| record.origin == "measured") {
        if let (Some(now), Some(best)) = (drive.pcie_gen, drive.pcie_gen_max) {
            if now < best {
                let text = format!("{} runs at PCIe generation {now}; it can do {best}", drive.name);
                warn(list, "slow_link", text, "forebay doctor SOURCE");
            }
        }
    }
}

fn of_scale(record: &RunRecord) -> Option<Warning> {
    let scale = record.checkpoint.as_ref()?.scale;
    (scale != 1.0).then(|| Warning {
        id: "scaled".into(),
        text: format!("files have {scale} of their size: this is not a result of the workload"),
        next: "--scale 1".into(),
    })
}

/// A modelled drive in real time that deviated from its prediction.
pub fn off_model(record: &RunRecord) -> Option<Warning> {
    let foretold = record.result.foretold.as_ref()?;
    let off = foretold.off_pct;
    (off.abs() > OFF_MODEL_PCT).then(|| Warning {
        id: "off_model".into(),
        text: format!(
            "{} did {:.0} I/Os per second, and its model predicts {:.0}: {:.0} % {}, because of this host and not the drive",
            record.job.source,
            record.result.iops,
            foretold.iops,
            off.abs(),
            if off < 0.0 { "fewer" } else { "more" },
        ),
        next: "time=virtual, which no host slows down; a larger ‹depth› or ‹io_bytes›; cores that nothing else uses".into(),
    })
}

#[cfg(test)]
mod tests;
