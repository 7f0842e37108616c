//! Tests of what is left open: the way of each target, and the number of workers.

use super::runs::{file, go, home, job, refused};
use forebay_rigs::gpu::Scenario;

use forebay_io::{drop_cached, warm_cache};
use forebay_model::job::{Cache, JobSpec, Op, Origin, PathKind};
use std::fs::File;
use std::path::Path;
use std::time::Instant;

fn cold(path: &Path) {
    drop_cached(&File::open(path).unwrap(), 0, 0).unwrap();
}

fn warm(path: &Path) {
    warm_cache(&File::open(path).unwrap()).unwrap();
}

/// By `auto`, for a moment.
fn auto(sources: &[&Path]) -> JobSpec {
    JobSpec {
        sources: sources.iter().map(|s| s.display().to_string()).collect(),
        path: PathKind::Auto,
        cache: Cache::Auto,
        passes: None,
        duration_s: Some(0.2),
        warmup_s: Some(0.0),
        verify: true,
        ..job(sources[0])
    }
}

// promise: GPU-10
#[test]
fn targets_of_one_job_go_by_what_is_cached_of_each() {
    Scenario::new("auto::targets_of_one_job_go_by_what_is_cached_of_each").run(|| {
        let home = home();
        let (a, b) = (file(&home, "a", 8 << 20), file(&home, "b", 8 << 20));
        warm(&a);
        cold(&b);
        let record = go(&JobSpec { workers: 2, ..auto(&[&a, &b]) });
        let caches: Vec<_> = record.result.targets.iter().map(|t| t.cache.as_deref().unwrap()).collect();
        assert_eq!(caches, ["allow", "bypass"], "{:?}", record.path);
        assert_eq!((record.path.requested.as_str(), record.cache.policy.as_str()), ("auto", "mixed"));
        assert!(record.path.direct_bytes + record.path.staged_bytes + record.path.mapped_bytes > 0);
        let reason = record.path.reason.unwrap();
        // Of what was cached a system that gives memory back may have taken some.
        assert!(reason.contains(" % cached") && reason.contains("(0 % cached"), "{reason}");
        assert!(record.result.verified_bytes >= record.result.bytes && record.result.bytes > 0);
    });
}

// promise: GPU-10
#[test]
fn what_was_tried_stands_in_the_record_and_the_best_of_it_runs() {
    Scenario::new("auto::what_was_tried_stands_in_the_record_and_the_best_of_it_runs").run(|| {
        let home = home();
        let source = file(&home, "f", 16 << 20);
        warm(&source);
        let record = go(&JobSpec { workers: 2, io_bytes: 1 << 20, ..auto(&[&source]) });
        let tried = &record.path.calibration;
        let Some(best) = tried.iter().map(|t| t.gib_s).reduce(f64::max) else {
            assert_eq!(record.path.ran, "bounce", "one way needs no trial");
            return;
        };
        let ran = tried.iter().find(|t| t.path == record.path.ran).unwrap();
        // The first pass by mapped may be the slower one, and too slow for later ones to make up for it.
        assert!(ran.path == "mapped" || tried.iter().any(|t| t.path == "mapped"), "{best} of {tried:?}");
        // Null where the meters were read late, as on a busy machine.
        assert!(tried.iter().all(|t| t.workers == 2 && t.cpu_s_per_gib.is_none_or(|cost| cost > 0.0)));
        let reason = record.path.reason.unwrap();
        assert!(tried.iter().all(|t| reason.contains(&format!("{:.3} GiB/s", t.gib_s))), "{reason}");
    });
}

// promise: GPU-10
#[test]
fn short_random_reads_of_cached_data_go_together_by_either_path() {
    let name = "auto::short_random_reads_of_cached_data_go_together_by_either_path";
    Scenario::new(name).run(|| {
        let home = home();
        let source = file(&home, "f", 16 << 20);
        warm(&source);
        let wanted = JobSpec {
            op: Op::RandRead,
            workers: 2,
            io_bytes: 4096,
            depth_from: Origin::Default,
            verify: false,
            ..auto(&[&source])
        };
        let record = go(&wanted);
        let (job, reason) = (&record.job.spec, record.path.reason.clone().unwrap());
        assert_eq!((job.depth, job.depth_from), (4096, Origin::Auto), "{reason}");
        assert!(reason.contains("‹depth› 4096") && record.result.bytes > 0, "{reason}");
        let tried: Vec<&str> = record.path.calibration.iter().map(|t| t.path.as_str()).collect();
        assert!(tried.contains(&"bounce") && tried.contains(&record.path.ran.as_str()), "{tried:?}");
        // What was typed stays, and what may not all be registered isn't tried that way.
        let given = JobSpec { depth: 8, depth_from: Origin::Given, pin_limit_bytes: Some(8 << 20), ..wanted };
        let record = go(&given);
        assert_eq!((record.job.spec.depth, record.job.spec.depth_from), (8, Origin::Given));
        assert_eq!(record.path.ran, "bounce", "{:?}", record.path);
    });
}

#[test]
fn what_fills_a_worker_by_mapped_is_one_io_without_a_batch() {
    Scenario::new("auto::what_fills_a_worker_by_mapped_is_one_io_without_a_batch").run(|| {
        let home = home();
        let source = file(&home, "f", 16 << 20);
        warm(&source);
        let wanted = JobSpec {
            path: PathKind::Mapped,
            cache: Cache::Allow,
            op: Op::RandRead,
            workers: 1,
            io_bytes: 64 << 10,
            depth: 64,
            verify: false,
            ..auto(&[&source])
        };
        let record = go(&wanted);
        assert_eq!(record.path.ran, "mapped");
        // A read that isn't together with others has a latency of its own.
        let reads = record.result.bytes / (64 << 10);
        assert!(record.result.ios == reads && reads >= 32, "{} of {reads}", record.result.ios);
        assert!(record.path.mapped_bytes > 0, "{:?}", record.path);
    });
}

// promise: GPU-10
#[test]
fn a_trial_of_mapped_for_a_single_pass_finds_nothing_registered_and_comes_by_nothing_twice() {
    const BYTES: u64 = 16 << 20;
    let name =
        "auto::a_trial_of_mapped_for_a_single_pass_finds_nothing_registered_and_comes_by_nothing_twice";
    let books = Scenario::new(name).run(|| {
        let home = home();
        let source = file(&home, "f", BYTES);
        warm(&source);
        let wanted = JobSpec {
            path: PathKind::Mapped,
            cache: Cache::Allow,
            passes: Some(1),
            // A busy machine may not get through it in a fifth of a second.
            duration_s: None,
            workers_from: Origin::Auto,
            verify: false,
            io_bytes: 1 << 20,
            ..auto(&[&source])
        };
        let record = go(&wanted);
        assert_eq!((record.path.ran.as_str(), record.result.bytes), ("mapped", BYTES));
    });
    let Some(books) = books else { return };
    let cores = std::thread::available_parallelism().unwrap().get();
    let trials = [1, 2, 4, 6, 8, 12, 16].into_iter().filter(|workers| *workers <= cores).count();
    // One in which a busy machine booked nothing is made three times.
    let most = BYTES * (3 * trials as u64 + 1);
    let moved = books.over_gpus("to_device_bytes");
    assert!((BYTES..=most).contains(&moved), "{moved} bytes in at most {trials} trials and the run");
}

// promise: GPU-10
#[test]
fn a_single_pass_over_little_is_no_first_of_many() {
    Scenario::new("auto::a_single_pass_over_little_is_no_first_of_many").run(|| {
        let home = home();
        let source = file(&home, "f", 8 << 20);
        warm(&source);
        let once = JobSpec {
            workers: 2,
            io_bytes: 1 << 20,
            duration_s: None,
            passes: Some(1),
            verify: false,
            ..auto(&[&source])
        };
        let record = go(&once);
        assert_eq!((record.path.ran.as_str(), record.path.calibration.len()), ("bounce", 0));
    });
}

// promise: BEN-24
#[test]
fn a_plan_names_the_ways_that_are_open_and_the_memory_that_they_take() {
    Scenario::new("auto::a_plan_names_the_ways_that_are_open_and_the_memory_that_they_take").run(|| {
        let home = home();
        let source = file(&home, "f", 1 << 20);
        let job = JobSpec { workers: 2, depth: 2, io_bytes: 64 << 10, ..auto(&[&source]) };
        let plan = forebay_bench::plan_job(&job).unwrap();
        assert_eq!((plan.path, plan.paths), ("auto", vec!["gds", "mapped", "bounce"]));
        // Two slots of each worker in the GPU; beside them four of `mapped`, or two of `bounce`.
        assert_eq!((plan.buffer_bytes, plan.gpu_buffer_bytes), (2 * 4 * (64 << 10), 2 * 2 * (64 << 10)));
        let nothing = JobSpec { sources: vec!["nil:".into()], ..job };
        assert_eq!(forebay_bench::plan_job(&nothing).unwrap().paths, ["bounce"]);
    });
}

// promise: GPU-17
#[test]
fn workers_that_nobody_counted_are_found_on_the_sources() {
    Scenario::new("auto::workers_that_nobody_counted_are_found_on_the_sources").settings("gpus=2").run(
        || {
            let home = home();
            let source = file(&home, "f", 16 << 20);
            warm(&source);
            let wanted = JobSpec {
                path: PathKind::Bounce,
                gpus: vec![0, 1],
                cache: Cache::Allow,
                workers_from: Origin::Default,
                ..auto(&[&source])
            };
            let began = Instant::now();
            let record = go(&wanted);
            let tried = &record.path.calibration;
            assert!(tried.len() >= 2 || record.environment.cores == 1, "{tried:?}");
            assert!(tried.iter().all(|t| t.workers % 2 == 0), "as many for each GPU: {tried:?}");
            assert!(tried.iter().any(|t| t.workers == record.job.spec.workers));
            assert_eq!(record.job.spec.workers_from, Origin::Auto);
            assert_eq!(record.result.workers.len() as u32, record.job.spec.workers);
            assert!(record.path.reason.unwrap().contains("workers"));
            assert!(began.elapsed().as_secs_f64() < 100.0, "trials go on and on");
        },
    );
}

// promise: GPU-17
#[test]
fn a_trial_never_brings_cold_data_into_the_page_cache() {
    Scenario::new("auto::a_trial_never_brings_cold_data_into_the_page_cache").run(|| {
        let home = home();
        let source = file(&home, "f", 16 << 20);
        cold(&source);
        let wanted = JobSpec {
            path: PathKind::Bounce,
            cache: Cache::Allow,
            workers_from: Origin::Auto,
            ..auto(&[&source])
        };
        let record = go(&wanted);
        assert!(record.path.calibration.is_empty());
        assert!(record.path.reason.unwrap().contains("into the page cache"));
    });
}

// promise: GPU-18
#[test]
fn reads_through_the_page_cache_that_touch_the_device_are_said() {
    Scenario::new("auto::reads_through_the_page_cache_that_touch_the_device_are_said").run(|| {
        let home = home();
        let source = file(&home, "f", 32 << 20);
        cold(&source);
        let record = go(&JobSpec { workers: 1, ..job(&source) });
        let reported = record.warnings.iter().any(|w| w.id == "cold_and_warm");
        let device = record.cache.device_bytes.unwrap_or(0);
        assert_eq!(reported, device > 1 << 20, "{device} bytes from the device; {:?}", record.warnings);
    });
}

#[test]
fn only_direct_dma_will_do_and_there_is_none() {
    Scenario::new("auto::only_direct_dma_will_do_and_there_is_none").run(|| {
        let home = home();
        let source = file(&home, "f", 1 << 20);
        let error = refused(&JobSpec { require_direct: true, ..auto(&[&source]) });
        assert_eq!(error.kind, forebay_model::Kind::Machine, "{error}");
        assert!(error.found.starts_with("gds can't: "), "{error}");
    });
}
