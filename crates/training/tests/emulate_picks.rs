//! Emulated runs that read parts of files: columns of row groups, single records, what a tree of addresses leads to.

use forebay_bench::Observer;
use forebay_model::job::{Cache, Engine};
use forebay_model::training::record::Training;
use forebay_model::training::{EmulateSpec, Level, Loader, OnError, RuleSet, Workload};
use forebay_model::{Error, Kind};
use forebay_training::{generate_data, run_emulation, DatagenSpec, EmulateProgress};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

struct Quiet;

impl Observer<EmulateProgress> for Quiet {
    fn progress(&mut self, _: &EmulateProgress) {}

    fn stop(&mut self) -> bool {
        false
    }
}

const FILES: u32 = 4;
const SAMPLES: u32 = 60;
/// Bytes of a row: five columns of a thousand numbers.
const COLUMN_BYTES: u64 = 4000;

/// Makes the data set in a folder, or in a file that may be lost.
fn generated(format: &str, side: u32, data: &str) {
    let column = |n: u32| serde_json::json!({"name": format!("c{n}"), "type": "float32", "values": 1000});
    let columns: Vec<_> = if format == "parquet" { (0..5).map(column).collect() } else { Vec::new() };
    let spec = serde_json::json!({
        "data": data, "workload": "test", "format": format, "files": FILES, "samples_per_file": SAMPLES,
        "dimensions": [[side, side]], "dimension": side, "record_bytes": 1000.0, "columns": columns, "row_group": 10,
        "overwrite": [data],
    });
    generate_data(&DatagenSpec::from_json(&spec.to_string()).unwrap(), &mut |_| true).unwrap();
}

/// A data set where O_DIRECT works as well.
fn made(format: &str, side: u32) -> TempDir {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    generated(format, side, &dir.path().display().to_string());
    dir
}

/// The same files in one address space, behind their manifest.
fn packed(format: &str, side: u32) -> (TempDir, String) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("space");
    std::fs::File::create(&path).unwrap().set_len(64 << 20).unwrap();
    let path = path.display().to_string();
    generated(format, side, &path);
    (dir, path)
}

fn spec(dir: &Path, format: &str) -> EmulateSpec {
    EmulateSpec {
        workload: Workload {
            name: "test".into(),
            version: "own".into(),
            accelerator: "h100".into(),
            loader: Loader::PyTorch,
            format: format.into(),
            batch: 12,
            compute_s: 0.0005,
            record_bytes: 1000.0,
            samples_per_file: SAMPLES,
            au_pct_min: 1.0,
            file_shuffle: true,
            sample_shuffle: true,
            ..Workload::default()
        },
        rules: RuleSet::V10,
        data: vec![dir.display().to_string()],
        read_threads: 2,
        cache: Cache::Allow,
        ..EmulateSpec::default()
    }
}

fn trained(spec: &EmulateSpec) -> Training {
    let outcome = run_emulation(spec, vec![], &mut Quiet, None).unwrap();
    assert!(outcome.failure.is_none(), "{:?}", outcome.failure);
    outcome.record.training.unwrap()
}

fn failed(spec: &EmulateSpec) -> Error {
    match run_emulation(spec, vec![], &mut Quiet, None) {
        Ok(outcome) => outcome.failure.unwrap(),
        Err(error) => error,
    }
}

fn file(dir: &Path, n: u32, extension: &str) -> PathBuf {
    dir.join(format!("train/img_{n}_of_{FILES}.{extension}"))
}

/// Inline, by a ring, and past the page cache, where reads begin on blocks and chunks don't.
const WAYS: [(Cache, Engine); 3] =
    [(Cache::Allow, Engine::Inline), (Cache::Allow, Engine::Uring), (Cache::Bypass, Engine::Auto)];

// promise: TRA-14
#[test]
fn columns_are_read_row_group_by_row_group_by_every_engine() {
    let dir = made("parquet", 8);
    let whole: u64 = (0..FILES).map(|n| file(dir.path(), n, "parquet").metadata().unwrap().len()).sum();
    for (cache, engine) in WAYS {
        for (level, columns) in [(Level::Parse, 2), (Level::Bytes, 2), (Level::Parse, 5)] {
            let mut spec = EmulateSpec { cache, engine, level, ..spec(dir.path(), "parquet") };
            let named = ["c1", "c3"].iter().map(|name| (*name).to_string()).collect();
            spec.workload.columns = Some(named).filter(|_| columns == 2);
            let training = trained(&spec);
            let reported = format!("{cache:?} {engine:?} {level:?} {columns}");
            assert_eq!(training.samples, u64::from(FILES * SAMPLES), "{reported}");
            let content = u64::from(FILES * SAMPLES) * columns * COLUMN_BYTES;
            let least = if level == Level::Parse { content } else { content + 1 };
            assert!(
                (least..content + 40_000).contains(&training.payload_bytes),
                "{reported}: {}",
                training.payload_bytes
            );
            // Besides, each file's tail and what frames the pages.
            let tails = u64::from(FILES) * (64 << 10);
            assert!((content..content + tails + 40_000).contains(&training.read_bytes), "{reported}");
            assert_eq!(training.read_bytes < whole, columns == 2, "{reported}");
        }
    }
}

#[test]
fn a_damaged_page_ends_the_run_or_costs_its_row_group() {
    let dir = made("parquet", 8);
    let path = file(dir.path(), 2, "parquet");
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let spec = spec(dir.path(), "parquet");
    let error = failed(&spec);
    assert!(error.kind == Kind::Run && error.asked.ends_with("img_2_of_4.parquet"), "{error}");
    assert!(error.found.contains("CRC-32") && error.found.contains("is stored beside it"), "{error}");
    let training = trained(&EmulateSpec { on_error: OnError::Skip, epochs: 2, ..spec.clone() });
    assert_eq!((training.skipped.count, training.samples), (20, u64::from(2 * FILES * SAMPLES) - 20));
    assert_eq!(training.skipped.examples.len(), 1, "{:?}", training.skipped.examples);
    let mut unknown = spec;
    unknown.workload.columns = Some(vec!["x".into()]);
    assert!(failed(&unknown).found.contains("the workload reads x"));
}

// promise: TRA-14
#[test]
fn single_records_are_read_in_any_order() {
    let dir = made("indexed_binary", 70);
    for (cache, engine) in WAYS {
        let spec = EmulateSpec { cache, engine, ..spec(dir.path(), "indexed_binary") };
        let training = trained(&spec);
        let content = u64::from(FILES * SAMPLES) * 4900;
        assert_eq!((training.samples, training.payload_bytes), (u64::from(FILES * SAMPLES), content));
        assert_eq!(training.read_bytes, content);
    }
    // Half of a file's records are of no bytes, by its index.
    let lengths = file(dir.path(), 1, "indexed_binary.sz.idx");
    let mut list = std::fs::read(&lengths).unwrap();
    list[..8 * SAMPLES as usize / 2].fill(0);
    std::fs::write(&lengths, &list).unwrap();
    let training = trained(&spec(dir.path(), "indexed_binary"));
    assert_eq!(training.read_bytes, (u64::from(FILES * SAMPLES) - u64::from(SAMPLES / 2)) * 4900);
    std::fs::remove_file(&lengths).unwrap();
    let error = failed(&spec(dir.path(), "indexed_binary"));
    assert!(error.kind == Kind::Request && error.found.contains("no .sz.idx"), "{error}");
    std::fs::remove_file(file(dir.path(), 1, "indexed_binary.off.idx")).unwrap();
    assert_eq!(trained(&spec(dir.path(), "indexed_binary")).samples, u64::from(FILES * SAMPLES));
}

#[test]
fn hdf5_is_read_whole_and_followed_to_its_samples() {
    let dir = made("hdf5", 70);
    let whole: u64 = (0..FILES).map(|n| file(dir.path(), n, "hdf5").metadata().unwrap().len()).sum();
    for (cache, engine) in WAYS {
        let training = trained(&EmulateSpec { cache, engine, ..spec(dir.path(), "hdf5") });
        assert_eq!((training.samples, training.read_bytes), (u64::from(FILES * SAMPLES), whole));
    }
    let path = file(dir.path(), 3, "hdf5");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[0x430] = b'X';
    std::fs::write(&path, &bytes).unwrap();
    let error = failed(&spec(dir.path(), "hdf5"));
    assert!(error.asked.ends_with("img_3_of_4.hdf5") && error.found.contains("SNOD"), "{error}");
}

// promise: TRA-14
#[test]
fn parts_of_packed_files_are_read_through_any_source() {
    for (format, side) in [("parquet", 8), ("indexed_binary", 70), ("hdf5", 70)] {
        let (folder, (_space, path)) = (made(format, side), packed(format, side));
        let mut spec = spec(folder.path(), format);
        spec.workload.columns = Some(vec!["c1".into(), "c4".into()]).filter(|_| format == "parquet");
        let plain = trained(&spec);
        assert_eq!(plain.samples, u64::from(FILES * SAMPLES));
        for (uri, engine) in [
            (path.clone(), Engine::Auto),
            (path.clone(), Engine::Map),
            (format!("stripe:?chunk=64k&m={path}"), Engine::Uring),
            (format!("model:d7-ps1010?time=real&over={path}"), Engine::Auto),
        ] {
            for level in [Level::Parse, Level::Bytes] {
                let reported = format!("{format} {uri} {engine:?} {level:?}");
                let training =
                    trained(&EmulateSpec { data: vec![uri.clone()], engine, level, ..spec.clone() });
                assert_eq!(training.samples, plain.samples, "{reported}");
                assert_eq!(training.read_bytes, plain.read_bytes, "{reported}");
                if level == Level::Parse {
                    assert_eq!(training.payload_bytes, plain.payload_bytes, "{reported}");
                }
            }
        }
    }
}

// promise: TRA-14
#[test]
fn a_damaged_page_of_a_packed_file_is_named_or_costs_its_row_group() {
    let (_space, path) = packed("parquet", 8);
    let mut space = std::fs::read(&path).unwrap();
    let end = space.iter().position(|byte| *byte == 0).unwrap();
    let manifest: serde_json::Value = serde_json::from_slice(&space[..end]).unwrap();
    let file_bytes = |n: usize| manifest["file_bytes"][n].as_u64().unwrap();
    let begin = manifest["data_begin"].as_u64().unwrap();
    let second = begin + file_bytes(0).next_multiple_of(4096);
    space[(second + file_bytes(1) / 2) as usize] ^= 1;
    std::fs::write(&path, &space).unwrap();
    let spec = EmulateSpec { data: vec![path], ..spec(Path::new("unused"), "parquet") };
    let error = failed(&spec);
    assert!(error.kind == Kind::Run && error.asked.contains("file 1 of"), "{error}");
    assert!(error.found.contains("CRC-32") && error.found.contains("is stored beside it"), "{error}");
    let training = trained(&EmulateSpec { on_error: OnError::Skip, ..spec });
    assert_eq!((training.skipped.count, training.samples), (10, u64::from(FILES * SAMPLES) - 10));
}
