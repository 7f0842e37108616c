//! Whole jobs by `bounce` into a GPU: what they put there, and by how many copies.

use super::runs::{file, go, job};
use forebay_model::job::{Cache, Engine, JobSpec, Op, Origin, PathKind};
use forebay_rigs::gpu::Scenario;

const COPY: &str = "cuMemcpyHtoDAsync_v2";
const LAUNCH: &str = "cuLaunchKernel";
const NO_COMPILER: (&str, &str) = ("FOREBAY_LIBNVRTC", "/nowhere/libnvrtc.so");

// promise: GPU-7
#[test]
fn reads_of_a_file_land_in_the_gpu_and_verify() {
    Scenario::new("bounce::reads_of_a_file_land_in_the_gpu_and_verify").run(|| {
        let home = forebay_rigs::gpu::home();
        for (engine, cache) in [
            (Engine::Uring, Cache::Bypass),
            (Engine::Pread, Cache::Allow),
            (Engine::Inline, Cache::Allow),
            (Engine::Map, Cache::Allow),
        ] {
            let wanted = JobSpec {
                engine,
                cache,
                verify: true,
                workers: 2,
                depth: 6,
                ..job(&file(&home, "f", 9 << 20))
            };
            let record = go(&wanted);
            assert_eq!(record.result.verified_bytes, 9 << 20, "{engine:?}");
            assert_eq!(record.result.bytes, 9 << 20, "{engine:?}");
            assert_eq!(record.path.destination, "gpu:0");
            assert_eq!(record.result.gpus.len(), 1);
            assert_eq!(record.result.gpus[0].bytes, record.result.bytes);
            assert!(record.result.workers.iter().all(|w| w.gpu == Some(0)));
        }
    });
}

// promise: GPU-7
#[test]
fn short_reads_side_by_side_travel_by_few_launches() {
    let books = Scenario::new("bounce::short_reads_side_by_side_travel_by_few_launches").run(|| {
        let home = forebay_rigs::gpu::home();
        let source = file(&home, "f", 4 << 20);
        let wanted =
            JobSpec { op: Op::RandRead, io_bytes: 4096, depth: 256, passes: Some(16), ..job(&source) };
        let record = go(&wanted);
        assert_eq!(record.result.ios, 16 << 10);
    });
    if let Some(books) = books {
        // 16,384 reads; half of the 256 slots at a time make 128 launches.
        let calls = (books.calls(LAUNCH), books.calls(COPY));
        assert!(calls.0 >= 16 && calls.0 + calls.1 <= 200, "{calls:?} launches and copies for 16,384 reads");
    }
}

// promise: GPU-7
#[test]
fn a_copy_is_asked_for_when_it_is_due_and_not_all_the_time() {
    // Each copy takes 20 ms: a worker that kept asking would ask thousands of times.
    let books = Scenario::new("bounce::a_copy_is_asked_for_when_it_is_due_and_not_all_the_time")
        .settings("delay_us=20000")
        .run(|| {
            let home = forebay_rigs::gpu::home();
            let wanted = JobSpec { io_bytes: 1 << 20, depth: 3, ..job(&file(&home, "f", 12 << 20)) };
            assert_eq!(go(&wanted).result.bytes, 12 << 20);
        });
    if let Some(books) = books {
        let asked = books.calls("cuEventQuery");
        assert!(asked < 12 * 20_000 / 15, "{asked} times for 12 copies");
    }
}

// promise: GPU-7
#[test]
fn a_device_queue_stays_full_while_copies_are_under_way() {
    Scenario::new("bounce::a_device_queue_stays_full_while_copies_are_under_way").run(|| {
        let home = forebay_rigs::gpu::home();
        let source = file(&home, "f", 8 << 20);
        let slots = |depth| {
            let wanted =
                JobSpec { engine: Engine::Pread, io_bytes: 64 << 10, depth, verify: true, ..job(&source) };
            let record = go(&wanted);
            assert_eq!(record.result.verified_bytes, 8 << 20);
            record.path.slot_bytes / (64 << 10)
        };
        assert_eq!(slots(8), 12, "half as many again hold what is being copied");
        assert_eq!(slots(1), 1, "one at a time is one at a time");
    });
}

// promise: GPU-13
#[test]
fn workers_take_turns_at_the_gpus_of_a_job() {
    let books =
        // The stand-in counts the bytes of copies, which they are without a compiler for launches.
        Scenario::new("bounce::workers_take_turns_at_the_gpus_of_a_job").settings("gpus=2").variable(NO_COMPILER.0, NO_COMPILER.1).run(|| {
            let home = forebay_rigs::gpu::home();
            let wanted =
                JobSpec { gpus: vec![0, 1], workers: 4, verify: true, ..job(&file(&home, "f", 8 << 20)) };
            let record = go(&wanted);
            assert_eq!(record.path.destination, "gpu:0,1");
            assert_eq!(record.result.verified_bytes, 8 << 20);
            let gpus: Vec<_> = record.result.gpus.iter().map(|g| (g.gpu, g.bytes)).collect();
            assert_eq!(gpus, [(0, 4 << 20), (1, 4 << 20)]);
            let fed: Vec<_> = record.result.workers.iter().map(|w| w.gpu.unwrap()).collect();
            assert_eq!(fed, [0, 1, 0, 1]);
            let rates: f64 = record.result.gpus.iter().map(|g| g.throughput_gib_s).sum();
            assert!((rates / record.result.throughput_gib_s - 1.0).abs() < 1e-9);
        });
    if let Some(books) = books {
        assert_eq!((books.to_device(0) >> 20, books.to_device(1) >> 20), (4, 4));
    }
}

// promise: GPU-13
#[test]
fn each_pair_reads_its_own_source_into_its_own_gpu() {
    let books = Scenario::new("bounce::each_pair_reads_its_own_source_into_its_own_gpu")
        .settings("gpus=2")
        .variable(NO_COMPILER.0, NO_COMPILER.1)
        .run(|| {
            let home = forebay_rigs::gpu::home();
            let (a, b) = (file(&home, "a", 2 << 20), file(&home, "b", 6 << 20));
            let pairs = vec![format!("1={}", a.display()), format!("0={}", b.display())];
            let wanted =
                JobSpec { sources: Vec::new(), pairs: pairs.clone(), workers: 5, verify: true, ..job(&a) };
            let record = go(&wanted);
            assert_eq!(record.job.source, pairs.join(" "));
            assert_eq!(record.result.verified_bytes, 8 << 20);
            let gpus: Vec<_> = record.result.gpus.iter().map(|g| (g.gpu, g.bytes)).collect();
            assert_eq!(gpus, [(0, 6 << 20), (1, 2 << 20)]);
            let fed: Vec<_> = record.result.workers.iter().map(|w| w.gpu.unwrap()).collect();
            assert_eq!(fed, [1, 0, 1, 0, 1]);
        });
    if let Some(books) = books {
        assert_eq!((books.to_device(0) >> 20, books.to_device(1) >> 20), (6, 2));
    }
}

#[test]
fn many_files_share_few_streams() {
    let books = Scenario::new("bounce::many_files_share_few_streams").run(|| {
        let home = forebay_rigs::gpu::home();
        let make = JobSpec {
            path: PathKind::Host,
            files: Some(40),
            create: true,
            file_bytes: Some(64 << 10),
            io_bytes: 64 << 10,
            verify: true,
            ..job(home.path())
        };
        go(&make);
        let read = JobSpec { path: PathKind::Bounce, create: false, file_bytes: None, files: None, ..make };
        let record = go(&read);
        assert_eq!((record.result.targets.len(), record.result.verified_bytes), (40, 40 << 16));
    });
    if let Some(books) = books {
        assert!(books.calls("cuStreamCreate") <= 8, "{} streams", books.calls("cuStreamCreate"));
    }
}

#[test]
fn a_gpu_that_is_not_there_is_named_for_pairs_too() {
    Scenario::new("bounce::a_gpu_that_is_not_there_is_named_for_pairs_too").settings("gpus=1").run(|| {
        let home = forebay_rigs::gpu::home();
        let source = file(&home, "f", 1 << 20);
        let wanted =
            JobSpec { sources: Vec::new(), pairs: vec![format!("3={}", source.display())], ..job(&source) };
        let error = super::runs::refused(&wanted);
        assert_eq!((error.asked.as_str(), error.kind), ("‹gpus› 3", forebay_model::Kind::Request));
    });
}

#[test]
fn nobody_said_how_many_workers_so_each_pair_has_one_at_least() {
    let home = forebay_rigs::gpu::home();
    let (a, b) = (file(&home, "a", 1 << 20), file(&home, "b", 1 << 20));
    let wanted = JobSpec {
        sources: Vec::new(),
        pairs: vec![format!("0={}", a.display()), format!("1={}", b.display())],
        path: PathKind::Host,
        workers_from: Origin::Default,
        ..job(&a)
    };
    let record = go(&wanted);
    assert_eq!((record.job.spec.workers, record.result.bytes), (2, 2 << 20));
    assert!(record.result.gpus.is_empty());
}
