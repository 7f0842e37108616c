use super::*;
use crate::job::JobSpec;
use crate::training::EmulateSpec;

fn record(host: &str, ios: u64, ns: u64, seconds: f64) -> RunRecord {
    let mut latency = Latency::default();
    latency.record_n(ns, ios);
    let bytes = ios * 4096;
    let cpu = Cpu { user_s: Some(1.0), system_s: Some(0.5), ..Cpu::default() };
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
        checkpoint: None,
        feed: None,
        kvcache: None,
        train: None,
        infer: None,
        missing: Default::default(),
        warnings: Vec::new(),
    }
}

// promise: REC-3
#[test]
fn percentiles_are_of_all_ios_of_all_hosts() {
    let merged = merge(vec![record("a", 990, 1_000, 2.0), record("b", 10, 1_000_000, 2.5)]).unwrap();
    assert_eq!((merged.result.ios, merged.result.seconds), (1000, 2.5));
    assert!(merged.result.latency_us.p50 < 1.01 && merged.result.latency_us.p999 > 990.0);
    assert!((merged.result.iops - 400.0).abs() < 1e-9);
    assert_eq!(merged.result.hosts.len(), 2);
    assert!((merged.result.cpu.user_s.unwrap() - 2.0).abs() < 1e-9);
    assert_eq!(merged.cache.device_bytes, Some(1000 * 4096));
}

/// A rank that saw its host: two cores of its own, of five busy ones.
fn rank(host: &str, devices: &[(&str, u64)]) -> RunRecord {
    let mut made = record(host, 1 << 18, 1_000, 2.0);
    made.cache.policy = "none".into();
    made.cache.devices = devices.iter().map(|(name, bytes)| ((*name).to_string(), *bytes)).collect();
    made.cache.device_bytes = Some(devices.iter().map(|(_, bytes)| bytes).sum());
    let others = Some(3.0);
    made.result.cpu = Cpu {
        user_s: Some(4.0),
        cores_busy: Some(2.0),
        machine_cores_busy: Some(5.0),
        others_cores_busy: others,
        ..Cpu::default()
    };
    made.result.noise = Noise { others_cores_busy: others, throttled: Some(7), ..Noise::default() };
    let power = |source: &str, scope: &str, samples| Power {
        source: source.into(),
        scope: scope.into(),
        watts_mean: 100.0,
        joules_per_gib: Some(200.0),
        samples,
    };
    made.result.power = vec![power("rapl", "package-0", 2), power("nvml", &format!("gpu:{host}"), 1)];
    made.warnings = of_others(3.0, 2.0, true).into_iter().collect();
    made
}

// promise: REC-31
#[test]
fn what_a_host_is_metered_for_counts_once_for_all_its_ranks() {
    let ranks = vec![rank("a", &[("sda", 3 << 30), ("sdb", 5)]), rank("a", &[("sda", (3 << 30) + 4096)])];
    let merged = merge(ranks).unwrap();
    assert_eq!(merged.cache.devices["sda"], (3 << 30) + 4096, "the one that saw most");
    assert_eq!(merged.cache.device_bytes, Some((3 << 30) + 4096 + 5), "another device adds");
    let result = &merged.result;
    assert_eq!((result.bytes, result.cpu.user_s), (2 << 30, Some(8.0)), "the processes' own adds up");
    assert_eq!(result.cpu.machine_cores_busy, Some(5.0));
    // A neighbour isn't an other: 5 - 2 - 2.
    assert_eq!((result.cpu.others_cores_busy, result.noise.others_cores_busy), (Some(1.0), Some(1.0)));
    assert_eq!(result.noise.throttled, Some(7));
    assert!(
        (result.cpu.user_pct.unwrap() - 200.0).abs() < 1e-9,
        "of the host's two cores, once: {:?}",
        result.cpu
    );
    let power: Vec<_> = result.power.iter().map(|p| (p.scope.as_str(), p.joules_per_gib)).collect();
    // 100 W over 2 s for the 2 GiB of both.
    assert_eq!(power, [("gpu:a", Some(100.0)), ("package-0", Some(100.0))]);
    let noisy = merged.warnings.iter().filter(|w| w.id == "noisy");
    let texts: Vec<_> = noisy.map(|w| w.text.as_str()).collect();
    assert_eq!(texts, ["a: other processes kept 1.00 cores busy"]);
    assert_eq!(result.hosts.len(), 2, "each rank's own figures stay");
}

// promise: REC-31
#[test]
fn hosts_add_up_and_devices_of_one_name_are_two() {
    let merged = merge(vec![rank("a", &[("sda", 10)]), rank("b", &[("sda", 20)])]).unwrap();
    assert_eq!(merged.cache.device_bytes, Some(30));
    assert_eq!(merged.cache.devices.keys().collect::<Vec<_>>(), ["a:sda", "b:sda"]);
    let result = &merged.result;
    assert_eq!((result.cpu.machine_cores_busy, result.cpu.others_cores_busy), (Some(10.0), Some(6.0)));
    assert_eq!((result.noise.others_cores_busy, result.noise.throttled), (Some(3.0), Some(14)));
    assert_eq!(result.power.len(), 4);
    assert_eq!(merged.warnings.iter().filter(|w| w.id == "noisy").count(), 2);
}

// promise: REC-31
#[test]
fn records_that_do_not_name_their_devices_share_those_of_their_host() {
    let merged =
        merge(vec![record("a", 10, 1, 1.0), record("a", 10, 1, 1.0), record("b", 1, 1, 1.0)]).unwrap();
    assert_eq!(merged.cache.device_bytes, Some(11 * 4096));
    let mut unknown = record("a", 1, 1, 1.0);
    unknown.cache.device_bytes = None;
    assert_eq!(merge(vec![record("a", 10, 1, 1.0), unknown]).unwrap().cache.device_bytes, None);
}

#[test]
fn emulated_accelerators_of_all_hosts_are_one_run() {
    let spec = EmulateSpec { accelerators: 2, ranks: 4, ..EmulateSpec::default() };
    let training =
        |host: &str| RunRecord { training: Some(Training::of_spec(&spec, 10, 3)), ..record(host, 1, 1, 1.0) };
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
        let (workers_from, depth_from) = (Origin::Auto, Origin::Auto);
        found.job.spec =
            JobSpec { path, workers, workers_from, depth: 8 * workers, depth_from, ..found.job.spec };
        found
    };
    let (a, b) = (found("a", PathKind::Mapped, 2), found("b", PathKind::Bounce, 8));
    assert!(merge(vec![a.clone(), b.clone()]).is_ok());
    let mut reported = b.clone();
    reported.job.spec.workers_from = Origin::Given;
    assert!(merge(vec![a.clone(), reported]).is_err());
    let mut reported = b;
    reported.job.spec.depth_from = Origin::Given;
    assert!(merge(vec![a, reported]).is_err());
}

// promise: BEN-18
#[test]
fn what_never_came_back_adds_up_and_the_oldest_stays() {
    let mut parts = vec![record("a", 5, 1, 1.0), record("b", 5, 1, 1.0)];
    parts[0].result.unfinished = Unfinished { count: 2, oldest_s: 3.0 };
    parts[1].result.unfinished = Unfinished { count: 1, oldest_s: 9.0 };
    (parts[0].result.late, parts[1].result.late) = (3, 4);
    let merged = merge(parts).unwrap().result;
    assert_eq!((merged.late, merged.unfinished), (7, Unfinished { count: 3, oldest_s: 9.0 }));
}

#[test]
fn the_laws_of_all_hosts_are_one() {
    let reported = |iops, off_pct| Some(Foretold { iops, throughput_gib_s: 1.0, off_pct });
    let mut parts = vec![record("a", 90, 1, 1.0), record("b", 60, 1, 1.0)];
    assert_eq!(merge(parts.clone()).unwrap().result.foretold, None);
    (parts[0].result.foretold, parts[1].result.foretold) = (reported(100.0, -10.0), reported(100.0, -40.0));
    let merged = merge(parts).unwrap().result.foretold.unwrap();
    assert_eq!((merged.iops, merged.throughput_gib_s, merged.off_pct), (200.0, 2.0, -25.0));
}

#[test]
fn different_jobs_are_refused_and_one_record_is_itself() {
    let mut other = record("b", 1, 1, 1.0);
    other.job.spec.io_bytes = 512;
    assert!(merge(vec![record("a", 1, 1, 1.0), other]).is_err());
    assert!(merge(Vec::new()).is_err());
    assert_eq!(merge(vec![record("a", 5, 1, 1.0)]).unwrap(), record("a", 5, 1, 1.0));
}

#[test]
fn processor_time_that_one_host_lacks_is_lacking_for_all() {
    let mut unmetered = record("b", 10, 1, 1.0);
    unmetered.result.cpu = Cpu::default();
    let merged = merge(vec![record("a", 10, 1, 1.0), unmetered]).unwrap();
    let cpu = &merged.result.cpu;
    assert_eq!((cpu.user_s, cpu.system_s, cpu.cores_busy, cpu.cpu_s_per_gib), (None, None, None, None));
}

// promise: TRN-40
#[test]
fn each_host_keeps_what_it_trained_and_why_something_of_it_is_missing() {
    let trained = |host: &str, rate: f64| {
        let mut made = record(host, 10, 1_000, 2.0);
        made.train =
            serde_json::json!({"model": "toy", "samples_per_s": rate, "quality": null}).as_object().cloned();
        made.missing.insert("train.quality".into(), format!("{host} had none"));
        made
    };
    let merged = merge(vec![trained("a", 1.5), trained("b", 2.5)]).unwrap();
    assert_eq!((&merged.train, &merged.infer), (&None, &None));
    let rates: Vec<_> = merged.result.hosts.iter().map(|h| h["train"]["samples_per_s"].clone()).collect();
    assert_eq!(rates, [1.5, 2.5]);
    assert!(merged.result.hosts[0].get("infer").is_none());
    assert_eq!(merged.missing["result.hosts[1].train.quality"], "b had none");
    assert!(!merged.missing.contains_key("train.quality"));
    let one = merge(vec![trained("a", 1.5)]).unwrap();
    assert_eq!(one.train.unwrap()["samples_per_s"], 1.5);
    let found = merge(vec![trained("a", 1.5), record("b", 10, 1_000, 2.0)]).unwrap_err().found;
    assert_eq!(found, "1 of 2 hosts have a part train");
}
