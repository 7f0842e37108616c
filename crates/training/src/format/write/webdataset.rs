//! Shards of WebDataset, byte for byte as Python's tarfile lays them out: of each sample its content, `KEY.bin`, and its label,
//! `KEY.cls`. Keys are numbers that count through the data set.

use super::super::tar::{self, BLOCK_BYTES};
use super::{FileShape, Layout, Part, WriteSpec};
use std::collections::VecDeque;

/// Digits of a key, at least: names sort as their numbers do.
const DIGITS: usize = 9;
/// As WebDataset's own writer has it: everybody may read.
const MODE: &[u8] = b"0000444\0";
const NOBODY: &[u8] = b"0000000\0";
const LABEL: &[u8] = b"0";
/// Octal digits that a size's field has room for.
const OCTAL_BYTES_MAX: u64 = 1 << 33;

pub(crate) struct WebDataset {
    samples: u64,
}

impl WebDataset {
    pub(crate) fn new(spec: &WriteSpec) -> WebDataset {
        WebDataset { samples: u64::from(spec.samples_per_file) }
    }

    /// With both headers and all padding.
    fn sample_bytes(shape: FileShape) -> u64 {
        let content = shape.sample_bytes();
        content + tar::padding(content) + 3 * BLOCK_BYTES as u64
    }

    /// Zeroes behind the last sample: two blocks, and as many more as tar pads to.
    fn end_bytes(&self, shape: FileShape) -> u64 {
        let samples = self.samples * Self::sample_bytes(shape);
        (samples + 2 * BLOCK_BYTES as u64).next_multiple_of(tar::RECORD_BYTES) - samples
    }
}

impl Layout for WebDataset {
    fn file_bytes(&self, shape: FileShape) -> u64 {
        self.samples * Self::sample_bytes(shape) + self.end_bytes(shape)
    }

    fn parts(&self, shape: FileShape, step: u64, parts: &mut VecDeque<Part>) -> bool {
        if step > self.samples {
            return false;
        }
        if step == self.samples {
            parts.push_back(Part::Bytes(vec![0; self.end_bytes(shape) as usize]));
            return true;
        }
        let number = u64::from(shape.number) * self.samples + step;
        let content = shape.sample_bytes();
        let mut behind = vec![0; tar::padding(content) as usize];
        behind.extend(header(&format!("{number:0DIGITS$}.cls"), LABEL.len() as u64));
        behind.extend(LABEL);
        behind.resize(behind.len() + BLOCK_BYTES - LABEL.len(), 0);
        let before = header(&format!("{number:0DIGITS$}.bin"), content);
        parts.extend([Part::Bytes(before), Part::Content(content), Part::Bytes(behind)]);
        true
    }
}

/// A file's header, in the format ustar, of the first second of 1970.
fn header(name: &str, bytes: u64) -> Vec<u8> {
    let mut block = vec![0; BLOCK_BYTES];
    let mut put = |(at, _): (usize, usize), value: &[u8]| block[at..at + value.len()].copy_from_slice(value);
    put(tar::NAME, name.as_bytes());
    put(tar::MODE, MODE);
    put(tar::USER, NOBODY);
    put(tar::GROUP, NOBODY);
    match bytes {
        0..OCTAL_BYTES_MAX => put(tar::SIZE, format!("{bytes:011o}\0").as_bytes()),
        _ => put(tar::SIZE, &[&[0x80, 0, 0, 0][..], &bytes.to_be_bytes()].concat()),
    }
    put(tar::TIME, b"00000000000\0");
    put((tar::KIND, 1), b"0");
    put(tar::MAGIC, tar::USTAR);
    let sum = tar::sums(&block).0;
    let (at, _) = tar::SUM;
    block[at..at + 8].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}
