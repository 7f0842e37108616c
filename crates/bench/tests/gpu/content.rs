//! Content in GPU memory, through whole runs: verified where it landed, and
//! written from there.

use forebay_bench::{Observer, Outcome, Progress};
use forebay_model::job::{Cache, CuFileMode, JobSpec, Op, PathKind};
use forebay_rigs::gpu::Scenario;
use std::path::Path;

struct Nobody;

impl Observer for Nobody {
    fn progress(&mut self, _: &Progress) {}

    fn stop(&mut self) -> bool {
        false
    }
}

const BYTES: u64 = 3 << 20;

fn job(file: &Path, path: PathKind) -> JobSpec {
    JobSpec {
        sources: vec![file.display().to_string()],
        path,
        gpus: if path == PathKind::Host { Vec::new() } else { vec![0] },
        cache: Cache::Allow,
        create: true,
        file_bytes: Some(BYTES),
        io_bytes: 64 << 10,
        depth: 8,
        workers: 2,
        passes: Some(1),
        verify: true,
        ..JobSpec::default()
    }
}

fn run(job: &JobSpec) -> Outcome {
    forebay_bench::run_job(job, Vec::new(), &mut Nobody).unwrap()
}

fn with_a_file(body: impl FnOnce(&Path)) {
    let home = forebay_rigs::gpu::home();
    body(&home.path().join("file"));
}

/// As if a drive had damaged it, or put a block elsewhere.
fn damage(file: &Path) {
    let mut bytes = std::fs::read(file).unwrap();
    bytes[70_000] ^= 1;
    bytes.copy_within(0..4096, 200 << 10);
    bytes[1 << 20..(1 << 20) + 8192].fill(0);
    std::fs::write(file, bytes).unwrap();
}

// promise: VER-1
#[test]
fn what_landed_in_gpu_memory_is_verified_there() {
    let books = Scenario::new("content::what_landed_in_gpu_memory_is_verified_there").run(|| {
        with_a_file(|file| {
            let outcome = run(&job(file, PathKind::Bounce));
            let result = &outcome.record.result;
            assert_eq!((result.verified_bytes, result.errors.verify_failed), (BYTES, 0));
            assert_eq!(result.verified_on.as_deref(), Some("gpu:0"));
            assert!(outcome.failure.is_none());
        });
    });
    if let Some(books) = books {
        assert!(books.count("launches") > 0);
        let read_back = books.to_host(0);
        assert!(read_back < BYTES as i64 / 100, "{read_back} bytes came back where only findings should");
    }
}

// promise: VER-2
#[test]
fn a_wrong_block_is_named_by_the_gpu_as_by_the_host() {
    Scenario::new("content::a_wrong_block_is_named_by_the_gpu_as_by_the_host").run(|| {
        with_a_file(|file| {
            run(&job(file, PathKind::Host));
            damage(file);
            let errors = [PathKind::Host, PathKind::Bounce].map(|path| {
                let result = run(&job(file, path)).record.result;
                let mut errors = result.errors;
                errors.examples.sort();
                (errors.verify_failed, errors.examples, result.verified_bytes)
            });
            assert_eq!(errors[0].0, 3);
            assert_eq!(errors[0], errors[1]);
        });
    });
}

// promise: VER-4
#[test]
fn without_nvrtc_the_host_verifies_and_says_so() {
    Scenario::new("content::without_nvrtc_the_host_verifies_and_says_so")
        .settings("gpus=1")
        .variable("FOREBAY_LIBNVRTC", "/nowhere/libnvrtc.so")
        .run(|| {
            with_a_file(|file| {
                let write = JobSpec { op: Op::Write, ..job(file, PathKind::Bounce) };
                run(&write);
                damage(file);
                let record = run(&job(file, PathKind::Bounce)).record;
                assert_eq!(record.result.verified_on.as_deref(), Some("host"));
                assert_eq!(record.result.errors.verify_failed, 3);
                let warning = record.warnings.iter().find(|w| w.id == "content_on_host").unwrap();
                assert!(
                    warning.text.contains("NVRTC") && warning.next.contains("nvidia-cuda-nvrtc"),
                    "{warning:?}"
                );
            });
        });
}

// promise: VER-3, GPU-11
#[test]
fn content_written_from_gpu_memory_is_right_in_the_file() {
    let books = Scenario::new("content::content_written_from_gpu_memory_is_right_in_the_file").run(|| {
        with_a_file(|file| {
            run(&JobSpec { op: Op::Write, ..job(file, PathKind::Bounce) });
            let read = run(&job(file, PathKind::Host)).record.result;
            assert_eq!((read.verified_bytes, read.errors.verify_failed), (BYTES, 0));
        });
    });
    if let Some(books) = books {
        assert!(books.count("launches") > 0, "made on the device");
    }
}

// promise: VER-3
#[test]
fn a_mix_of_reads_and_writes_verifies_what_it_reads() {
    Scenario::new("content::a_mix_of_reads_and_writes_verifies_what_it_reads").run(|| {
        with_a_file(|file| {
            let mixed = JobSpec { op: Op::RandRead, read_pct: Some(50), ..job(file, PathKind::Bounce) };
            run(&JobSpec { op: Op::Write, ..job(file, PathKind::Bounce) });
            let result = run(&mixed).record.result;
            assert!(result.write_bytes > 0 && result.read_bytes > 0);
            assert_eq!((result.verified_bytes, result.errors.verify_failed), (result.read_bytes, 0));
        });
    });
}

// promise: VER-3
#[test]
fn a_write_that_nobody_verifies_carries_no_strangers_memory() {
    Scenario::new("content::a_write_that_nobody_verifies_carries_no_strangers_memory").run(|| {
        with_a_file(|file| {
            run(&JobSpec { op: Op::Write, verify: false, ..job(file, PathKind::Bounce) });
            let bytes = std::fs::read(file).unwrap();
            assert!(bytes.chunks(4096).all(|block| block.starts_with(b"FOREBAY1")));
        });
    });
}

// promise: VER-4
#[test]
fn a_kernel_that_fails_fails_the_verification_and_ends() {
    let settings = "fail=cuLaunchKernel:2+:719";
    Scenario::new("content::a_kernel_that_fails_fails_the_verification_and_ends").settings(settings).run(
        || {
            with_a_file(|file| {
                let result = run(&JobSpec { workers: 1, ..job(file, PathKind::Bounce) }).record.result;
                assert!(
                    result.errors.verify_failed > 0 && result.verified_bytes < BYTES,
                    "{:?}",
                    result.errors
                );
                assert!(result.errors.examples[0].contains("719"), "{:?}", result.errors.examples);
            });
        },
    );
}

// promise: VER-4
#[test]
fn a_write_whose_content_cannot_be_made_fails() {
    let settings = "fail=cuLaunchKernel:3:719";
    Scenario::new("content::a_write_whose_content_cannot_be_made_fails").settings(settings).run(|| {
        with_a_file(|file| {
            let outcome = run(&JobSpec { op: Op::Write, workers: 1, ..job(file, PathKind::Bounce) });
            assert!(outcome.record.result.errors.failed > 0);
            assert!(outcome.failure.unwrap().found.contains("719"));
        });
    });
}

// promise: VER-3
#[test]
#[ignore = "seconds of processor time: make test-long, make test-gpu"]
fn what_cufile_writes_from_gpu_memory_is_right_in_the_file_and_read_back_by_it() {
    let name = "content::what_cufile_writes_from_gpu_memory_is_right_in_the_file_and_read_back_by_it";
    for mode in ["mode=p2p", "mode=compat"] {
        let books = Scenario::new(name).settings("gpus=1").variable("FOREBAY_STUB_CUFILE", mode).run(|| {
            for cufile in [CuFileMode::Sync, CuFileMode::Stream, CuFileMode::Batch, CuFileMode::BatchStream] {
                with_a_file(|file| {
                    let gds = JobSpec {
                        cufile,
                        cache: Cache::Bypass,
                        allow_compat: true,
                        ..job(file, PathKind::Gds)
                    };
                    run(&JobSpec { op: Op::Write, ..gds.clone() });
                    for job in [job(file, PathKind::Host), gds] {
                        let read = run(&job).record.result;
                        assert_eq!(
                            (read.verified_bytes, read.errors.verify_failed),
                            (BYTES, 0),
                            "{cufile:?}"
                        );
                    }
                });
            }
        });
        if let Some(books) = books {
            assert!(books.count("launches") > 0, "made and checked on the device");
        }
    }
}
