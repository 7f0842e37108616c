//! Short reads into a GPU, by whole jobs: what travels together, and batches of them.

use super::runs::{file, go, job};
use forebay_model::job::{Cache, CuFileMode, Engine, JobSpec, Op, PathKind};
use forebay_rigs::gpu::Scenario;
use std::path::Path;

const COPY: &str = "cuMemcpyHtoDAsync_v2";
const LAUNCH: &str = "cuLaunchKernel";

/// Random rows out of the page cache, `io_bytes` each.
fn rows(source: &Path, io_bytes: u64, depth: u32) -> JobSpec {
    JobSpec { op: Op::RandRead, io_bytes, depth, cache: Cache::Warm, engine: Engine::Map, ..job(source) }
}

// promise: GPU-7
#[test]
fn short_rows_lie_side_by_side_and_travel_by_few_launches() {
    let name = "rows::short_rows_lie_side_by_side_and_travel_by_few_launches";
    let books = Scenario::new(name).run(|| {
        let home = forebay_rigs::gpu::home();
        let record = go(&rows(&file(&home, "f", 1 << 20), 512, 256));
        assert_eq!((record.result.ios, record.path.slot_bytes), (2048, 256 * 512));
    });
    if let Some(books) = books {
        assert_eq!(books.calls(COPY), 0, "no list says where each goes: not a byte lies between them");
        assert!((2..=40).contains(&books.calls(LAUNCH)), "{} launches for 2,048 reads", books.calls(LAUNCH));
    }
}

// promise: GPU-7
#[test]
fn short_rows_apart_from_each_other_travel_by_one_launch() {
    let name = "rows::short_rows_apart_from_each_other_travel_by_one_launch";
    let books = Scenario::new(name).run(|| {
        let home = forebay_rigs::gpu::home();
        let source = file(&home, "f", 1 << 20);
        // Slots hold the longest, so that the others end before the next begins.
        let uneven = JobSpec {
            io_bytes_max: Some(4000),
            io_bytes_step: Some(100),
            verify: true,
            ..rows(&source, 100, 256)
        };
        let record = go(&uneven);
        assert_eq!(record.result.verified_bytes, record.result.bytes);
        assert!(record.result.ios >= 256, "{}", record.result.ios);
    });
    if let Some(books) = books {
        assert!(books.calls(LAUNCH) >= 2, "{}", books.calls(LAUNCH));
        assert!(books.calls(COPY) <= 100, "{} copies", books.calls(COPY));
    }
}

// promise: GPU-7
#[test]
fn without_a_compiler_rows_are_copied_one_by_one() {
    let name = "rows::without_a_compiler_rows_are_copied_one_by_one";
    let books = Scenario::new(name).variable("FOREBAY_LIBNVRTC", "/nowhere/libnvrtc.so").run(|| {
        let home = forebay_rigs::gpu::home();
        let source = file(&home, "f", 1 << 20);
        let uneven = JobSpec { io_bytes_max: Some(4000), verify: true, ..rows(&source, 2000, 8) };
        let record = go(&uneven);
        assert_eq!(record.result.verified_bytes, record.result.bytes);
    });
    if let Some(books) = books {
        assert_eq!(books.calls(LAUNCH), 0);
    }
}

// promise: BEN-25
#[test]
fn a_batch_ends_with_its_last_row_whatever_the_path() {
    Scenario::new("rows::a_batch_ends_with_its_last_row_whatever_the_path").run(|| {
        let home = forebay_rigs::gpu::home();
        let source = file(&home, "f", 1 << 20);
        for (path, engine, cufile) in [
            (PathKind::Host, Engine::Map, CuFileMode::Sync),
            (PathKind::Host, Engine::Pread, CuFileMode::Sync),
            (PathKind::Bounce, Engine::Map, CuFileMode::Sync),
            (PathKind::Bounce, Engine::Pread, CuFileMode::Sync),
            (PathKind::Mapped, Engine::Auto, CuFileMode::Sync),
            (PathKind::Gds, Engine::Auto, CuFileMode::Batch),
        ] {
            let wanted = JobSpec {
                path,
                engine,
                cufile,
                allow_compat: true,
                batch: Some(48),
                verify: true,
                passes: Some(1),
                ..rows(&source, 4096, 96)
            };
            let result = go(&wanted).result;
            let batch = result.batch.unwrap();
            // 256 rows: five batches, and 16 rows that are none.
            assert_eq!((result.ios, batch.ios, batch.count), (256, 48, 5), "{path:?} {engine:?}");
            assert!(batch.latency_us.max <= result.latency_us.max, "{path:?} {engine:?}");
            assert!(batch.latency_us.min >= result.latency_us.min, "{path:?} {engine:?}");
            assert!(!batch.by.is_empty());
        }
    });
}
