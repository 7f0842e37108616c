//! Data sets of TFRecord files, and what is trained on them.

use forebay_io::crc32c;
use forebay_model::job::Cache;
use forebay_model::training::{EmulateSpec, Loader, RuleSet, Workload};
use forebay_training::masked_crc32c;
use std::path::{Path, PathBuf};

pub fn varint(mut n: usize, into: &mut Vec<u8>) {
    while n > 127 {
        into.push(n as u8 | 128);
        n >>= 7;
    }
    into.push(n as u8);
}

pub fn field(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![tag << 3 | 2];
    varint(content.len(), &mut bytes);
    bytes.extend_from_slice(content);
    bytes
}

/// An Example with one feature of so many bytes.
pub fn example(bytes: usize, seed: u8) -> Vec<u8> {
    let image: Vec<u8> = (0..bytes).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect();
    let feature = field(1, &field(1, &image));
    let entry = [field(1, b"image"), field(2, &feature)].concat();
    field(1, &field(1, &entry))
}

/// A TFRecord file.
pub fn tfrecord(records: u32, bytes: usize) -> Vec<u8> {
    let mut file = Vec::new();
    for n in 0..records {
        let data = example(bytes, n as u8);
        let length = (data.len() as u64).to_le_bytes();
        file.extend_from_slice(&length);
        file.extend_from_slice(&masked_crc32c(crc32c(0, &length)).to_le_bytes());
        file.extend_from_slice(&data);
        file.extend_from_slice(&masked_crc32c(crc32c(0, &data)).to_le_bytes());
    }
    file
}

pub struct Data {
    pub dir: tempfile::TempDir,
    pub bytes: u64,
}

/// Returns a folder where O_DIRECT works as well as where files live in memory.
pub fn on_disk() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
}

pub fn data_in(place: &Path, files: u32, records: u32, bytes: usize) -> Data {
    let dir = tempfile::tempdir_in(place).unwrap();
    std::fs::create_dir(dir.path().join("train")).unwrap();
    let content = tfrecord(records, bytes);
    for n in 0..files {
        std::fs::write(dir.path().join(format!("train/img_{n:03}.tfrecord")), &content).unwrap();
    }
    Data { dir, bytes: u64::from(files) * content.len() as u64 }
}

pub fn data(files: u32, records: u32, bytes: usize) -> Data {
    data_in(&on_disk(), files, records, bytes)
}

impl Data {
    pub fn file(&self, n: u32) -> PathBuf {
        self.dir.path().join(format!("train/img_{n:03}.tfrecord"))
    }

    pub fn spec(&self, records: u32, batch: u32) -> EmulateSpec {
        EmulateSpec {
            workload: Workload {
                name: "test".into(),
                version: "own".into(),
                accelerator: "h100".into(),
                loader: Loader::TensorFlow,
                format: "tfrecord".into(),
                batch,
                compute_s: 0.001,
                record_bytes: 1000.0,
                samples_per_file: records,
                au_pct_min: 90.0,
                ..Workload::default()
            },
            rules: RuleSet::V10,
            data: vec![self.dir.path().display().to_string()],
            read_threads: 2,
            cache: Cache::Allow,
            ..EmulateSpec::default()
        }
    }
}
