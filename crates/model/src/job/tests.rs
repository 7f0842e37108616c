use super::*;

fn job() -> JobSpec {
    JobSpec { sources: vec!["nil:".into()], ..JobSpec::default() }
}

// promise: REC-4
#[test]
fn an_unknown_key_is_named() {
    let error = JobSpec::from_json(r#"{"sources":["nil:"],"dept":3}"#).unwrap_err();
    assert!(error.found.contains("dept"), "{error}");
}

#[test]
fn workers_say_who_chose_them() {
    let read = |text: &str| {
        let job = JobSpec::from_json(text).unwrap();
        (job.workers, job.workers_from)
    };
    assert_eq!(read(r#"{"sources":["nil:"]}"#), (1, Origin::Default));
    assert_eq!(read(r#"{"sources":["nil:"],"workers":4}"#), (4, Origin::Given));
    assert_eq!(read(r#"{"sources":["nil:"],"workers":"auto"}"#), (1, Origin::Auto));
    assert_eq!(read(r#"{"sources":["nil:"],"workers":6,"workers_from":"auto"}"#), (6, Origin::Auto));
    assert!(JobSpec::from_json(r#"{"sources":["nil:"],"workers":"many"}"#).is_err());
}

#[test]
fn depth_says_who_chose_it() {
    let read = |text: &str| {
        let job = JobSpec::from_json(text).unwrap();
        (job.depth, job.depth_from)
    };
    assert_eq!(read(r#"{"sources":["nil:"]}"#), (8, Origin::Default));
    assert_eq!(read(r#"{"sources":["nil:"],"depth":8}"#), (8, Origin::Given));
    assert_eq!(read(r#"{"sources":["nil:"],"batch":64}"#), (128, Origin::Given), "it follows from the batch");
    assert_eq!(read(r#"{"sources":["nil:"],"depth":512,"depth_from":"auto"}"#), (512, Origin::Auto));
}

// promise: BEN-25
#[test]
fn two_batches_are_in_flight_unless_told() {
    let read = |text: &str| {
        let job = JobSpec::from_json(text).unwrap();
        (job.depth, job.cufile)
    };
    assert_eq!(read(r#"{"sources":["nil:"],"batch":64}"#), (128, CuFileMode::Sync));
    assert_eq!(read(r#"{"sources":["nil:"],"batch":3000}"#), (3000, CuFileMode::Sync));
    assert_eq!(read(r#"{"sources":["nil:"],"batch":64,"depth":64,"path":"gds"}"#), (64, CuFileMode::Batch));
    let error = JobSpec::from_json(r#"{"sources":["nil:"],"batch":64,"depth":100}"#).unwrap_err();
    assert_eq!((error.asked.as_str(), error.next.as_str()), ("‹batch› 64 with ‹depth› 100", "‹depth› 128"));
    JobSpec::from_json(r#"{"sources":["nil:"],"batch":64,"depth":32}"#).unwrap_err();
}

#[test]
fn auto_judges_the_page_cache_unless_told() {
    let cache = |text: &str| JobSpec::from_json(text).unwrap().cache;
    assert_eq!(cache(r#"{"sources":["nil:"],"path":"auto"}"#), Cache::Auto);
    assert_eq!(cache(r#"{"sources":["nil:"],"path":"auto","cache":"bypass"}"#), Cache::Bypass);
    assert_eq!(cache(r#"{"sources":["nil:"],"path":"bounce"}"#), Cache::Bypass);
    assert_eq!(cache(r#"{"sources":["nil:"],"path":"mapped"}"#), Cache::Allow);
}

#[test]
fn pairs_are_a_gpu_and_a_source_and_stand_alone() {
    let pairs = |list: &[&str]| JobSpec {
        sources: Vec::new(),
        pairs: list.iter().map(|p| (*p).to_string()).collect(),
        workers: 2,
        ..job()
    };
    let good = pairs(&["0=/a", "1=stripe:?chunk=4k&m=/b&m=/c"]);
    good.check().unwrap();
    assert_eq!(good.source_uris().unwrap(), ["/a", "stripe:?chunk=4k&m=/b&m=/c"]);
    for bad in ["", "0", "=/a", "0=", "gpu0=/a", "-1=/a"] {
        assert!(pairs(&[bad]).check().unwrap_err().asked.starts_with("‹pairs›"), "{bad}");
    }
    assert!(JobSpec { gpus: vec![0], ..good.clone() }.check().is_err());
    assert!(JobSpec { sources: vec!["/x".into()], ..good.clone() }.check().is_err());
    assert!(JobSpec { workers: 1, ..good }.check().unwrap_err().next.contains("‹workers› 2, or"));
}

#[test]
fn json_round_trips() {
    assert_eq!(JobSpec::from_json(&serde_json::to_string(&job()).unwrap()).unwrap(), job());
}

// promise: FLT-6
#[test]
fn each_bound_is_refused_with_the_flag_and_the_value() {
    let cases: Vec<(&str, JobSpec)> = vec![
        ("‹workers› 0", JobSpec { workers: 0, ..job() }),
        ("‹depth› 5000", JobSpec { depth: 5000, ..job() }),
        ("‹io_bytes›", JobSpec { io_bytes: 0, ..job() }),
        ("‹file_bytes›", JobSpec { file_bytes: Some(u64::MAX), ..job() }),
        ("‹duration_s›", JobSpec { duration_s: Some(f64::NAN), ..job() }),
        ("‹repeat› 0", JobSpec { repeat: 0, ..job() }),
        ("‹repeat_max› 0", JobSpec { repeat_max: 0, ..job() }),
        ("‹distribution›", JobSpec { distribution: "zipf:9".into(), ..job() }),
        ("‹read_pct›", JobSpec { read_pct: Some(101), ..job() }),
    ];
    for (flag, job) in cases {
        let error = job.check().unwrap_err();
        assert!(error.asked.starts_with(flag), "{flag}: {error}");
        assert_eq!(error.kind, crate::Kind::Request);
    }
}
