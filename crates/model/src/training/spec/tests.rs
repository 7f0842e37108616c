use super::*;

pub(crate) fn unet3d() -> Workload {
    Workload {
        name: "unet3d".into(),
        version: "1.0".into(),
        accelerator: "h100".into(),
        loader: Loader::PyTorch,
        format: "npz".into(),
        batch: 7,
        compute_s: 0.323,
        record_bytes: 146_600_628.0,
        samples_per_file: 1,
        files: 168,
        read_threads: 4,
        prefetch: 2,
        epochs: 5,
        au_pct_min: 90.0,
        file_shuffle: true,
        sample_shuffle: true,
        ..Workload::default()
    }
}

fn spec() -> EmulateSpec {
    EmulateSpec { workload: unet3d(), data: vec!["/data".into()], ..EmulateSpec::default() }
}

#[test]
fn json_round_trips_and_names_an_unknown_key() {
    let text = serde_json::to_string(&spec()).unwrap();
    assert_eq!(EmulateSpec::from_json(&text).unwrap(), spec());
    assert!(text.contains(r#""rules":"v2.0""#) && text.contains(r#""loader":"pytorch""#), "{text}");
    let error = EmulateSpec::from_json(&text.replace("\"seed\"", "\"sede\"")).unwrap_err();
    assert!(error.found.contains("sede"), "{error}");
    assert!(EmulateSpec::from_json(&text.replace("\"batch\"", "\"bacth\"")).is_err());
}

#[test]
fn what_is_not_named_is_the_workloads_own() {
    let workload = serde_json::to_string(&unet3d()).unwrap();
    let text = format!(r#"{{"workload":{workload},"data":["/d"],"accelerators":3}}"#);
    let spec = EmulateSpec::from_json(&text).unwrap();
    assert_eq!((spec.epochs, spec.prefetch, spec.read_threads, spec.ranks), (5, 2, 4, 3));
}

#[test]
fn batches_ahead_follow_the_loader() {
    assert_eq!(EmulateSpec { read_threads: 4, ..spec() }.batches_ahead(), 4);
    assert_eq!(EmulateSpec { read_threads: 4, prefetch: 5, ..spec() }.batches_ahead(), 8);
    assert_eq!(EmulateSpec { read_threads: 4, prefetch: 0, ..spec() }.batches_ahead(), 8);
    assert_eq!(EmulateSpec { read_threads: 4, rules: RuleSet::Text, ..spec() }.batches_ahead(), 2);
    assert_eq!(EmulateSpec { read_threads: 4, destination: "gpu:0".into(), ..spec() }.batches_ahead(), 2);
    let resnet50 = Workload { loader: Loader::TensorFlow, computation_threads: 8, ..unet3d() };
    assert_eq!(EmulateSpec { workload: resnet50, ..spec() }.batches_ahead(), 10);
}

fn to_gpu() -> EmulateSpec {
    EmulateSpec { destination: "gpu:0".into(), ..spec() }
}

// promise: TRA-36
#[test]
fn paths_past_the_host_are_for_bytes_that_nobody_checks() {
    for path in [PathKind::Gds, PathKind::Mapped] {
        let error = EmulateSpec { path, ..to_gpu() }.check().unwrap_err();
        assert!(error.next.contains("--level bytes") && error.next.contains("‹path› bounce"), "{error}");
        EmulateSpec { path, level: Level::Bytes, ..to_gpu() }.check().unwrap();
    }
}

#[test]
fn each_bound_is_refused_with_the_flag_and_the_value() {
    let workload = |change: fn(&mut Workload)| {
        let mut spec = spec();
        change(&mut spec.workload);
        spec
    };
    let cases = [
        ("--accelerators 0", EmulateSpec { accelerators: 0, ..spec() }),
        ("the emulated run's ranks", EmulateSpec { first_rank: 1, ..spec() }),
        ("the emulated run's ranks", EmulateSpec { first_rank: u32::MAX, ..spec() }),
        ("--data", EmulateSpec { data: vec![], ..spec() }),
        ("--decode", EmulateSpec { decode: true, level: Level::Bytes, ..spec() }),
        ("--epochs 0", EmulateSpec { epochs: 0, ..spec() }),
        ("--steps 0", EmulateSpec { steps_max: Some(0), ..spec() }),
        ("--prefetch 9999", EmulateSpec { prefetch: 9999, ..spec() }),
        ("--read-threads 0", EmulateSpec { read_threads: 0, ..spec() }),
        ("‹io_bytes› 3", EmulateSpec { io_bytes: Some(3), ..spec() }),
        ("‹depth› 0", EmulateSpec { depth: Some(0), ..spec() }),
        ("‹workers› 0", EmulateSpec { workers: Some(0), ..spec() }),
        ("--supply NaN", EmulateSpec { supply_gib_s: Some(f64::NAN), ..spec() }),
        ("--interval 0", EmulateSpec { interval_s: 0.0, ..spec() }),
        ("--destination tape", EmulateSpec { destination: "tape".into(), ..spec() }),
        ("--destination gpu:0,0", EmulateSpec { destination: "gpu:0,0".into(), ..spec() }),
        ("‹path› host to --destination gpu:0", EmulateSpec { path: PathKind::Host, ..to_gpu() }),
        ("‹path› gds to --destination drop", EmulateSpec { path: PathKind::Gds, ..spec() }),
        (
            "‹path› mapped to --destination host",
            EmulateSpec { path: PathKind::Mapped, destination: "host".into(), ..spec() },
        ),
        ("‹path› mapped with --level parse", EmulateSpec { path: PathKind::Mapped, ..to_gpu() }),
        ("‹path› gds with --level parse", EmulateSpec { path: PathKind::Gds, ..to_gpu() }),
        (
            "‹path› mapped without the page cache",
            EmulateSpec { path: PathKind::Mapped, cache: Cache::Drop, level: Level::Bytes, ..to_gpu() },
        ),
        ("‹require_direct›", EmulateSpec { require_direct: true, ..spec() }),
        ("‹require_direct›", EmulateSpec { require_direct: true, path: PathKind::Bounce, ..to_gpu() }),
        ("‹require_direct› with --level parse", EmulateSpec { require_direct: true, ..to_gpu() }),
        (
            "‹require_direct› through the page cache",
            EmulateSpec { require_direct: true, level: Level::Bytes, cache: Cache::Warm, ..to_gpu() },
        ),
        ("‹pin_limit_bytes›", EmulateSpec { pin_limit_bytes: Some(1 << 30), ..spec() }),
        ("‹pin_limit_bytes›", EmulateSpec { pin_limit_bytes: Some(1 << 19), ..to_gpu() }),
        ("--workload", workload(|w| w.name.clear())),
        ("workload unet3d: batch = 0", workload(|w| w.batch = 0)),
        ("workload unet3d: compute_s = NaN", workload(|w| w.compute_s = f64::NAN)),
        ("workload unet3d: compute_s = -1", workload(|w| w.compute_s = -1.0)),
        ("workload unet3d: record_bytes = 0", workload(|w| w.record_bytes = 0.0)),
        ("workload unet3d: record_bytes_stdev = inf", workload(|w| w.record_bytes_stdev = f64::INFINITY)),
        ("workload unet3d: samples_per_file = 0", workload(|w| w.samples_per_file = 0)),
        ("workload unet3d: au_pct_min = 101", workload(|w| w.au_pct_min = 101.0)),
    ];
    for (asked, spec) in cases {
        let error = spec.check().unwrap_err();
        assert!(error.asked.starts_with(asked), "{asked}: {error}");
        assert_eq!(error.kind, crate::Kind::Request);
    }
    spec().check().unwrap();
}
