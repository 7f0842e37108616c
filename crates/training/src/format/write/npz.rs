//! `.npz` and `.npy`, byte for byte as numpy lays them out: `x` has the samples along its last axis, `y` a label each.

use super::super::sums::crc32;
use super::super::zip;
use super::{FileShape, Layout, Part, Sum, WriteSpec};
use forebay_model::random::mix;
use std::collections::VecDeque;

const NPY_HEADER_BYTES: u64 = 128;
const LABEL_BYTES: u64 = 8;
/// 1980-01-01, the first day that zip knows, as numpy puts it.
const DATE: u16 = 0x21;
/// Made on Unix; 4.5 is needed, for zip64.
const MADE_BY: u16 = 0x032D;
const NEEDED: u16 = 0x2D;
/// Read and written by the owner.
const ATTRIBUTES: u32 = 0o600 << 16;

/// A `.npy` header, padded to 128 bytes as numpy pads it.
fn npy_header(descr: &str, shape: &[u64]) -> Vec<u8> {
    let shape: String = match shape {
        [one] => format!("({one},)"),
        all => format!("({})", all.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")),
    };
    let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    let width = NPY_HEADER_BYTES as usize - 11;
    let head = [&b"\x93NUMPY\x01\x00"[..], &(width as u16 + 1).to_le_bytes()].concat();
    [head, format!("{text:width$}\n").into_bytes()].concat()
}

pub(crate) struct Npy {
    samples: u64,
}

impl Npy {
    pub(crate) fn new(spec: &WriteSpec) -> Npy {
        Npy { samples: u64::from(spec.samples_per_file) }
    }

    fn header(&self, shape: FileShape) -> Vec<u8> {
        npy_header("|u1", &[u64::from(shape.rows), u64::from(shape.columns), self.samples])
    }
}

impl Layout for Npy {
    fn file_bytes(&self, shape: FileShape) -> u64 {
        NPY_HEADER_BYTES + shape.sample_bytes() * self.samples
    }

    fn parts(&self, shape: FileShape, step: u64, parts: &mut VecDeque<Part>) -> bool {
        if step > 0 {
            return false;
        }
        let content = self.file_bytes(shape) - NPY_HEADER_BYTES;
        parts.extend([Part::Bytes(self.header(shape)), Part::Content(content)]);
        true
    }
}

pub(crate) struct Npz {
    seed: u64,
    array: Npy,
}

/// One of the zip's two members.
struct Member {
    name: &'static str,
    crc: u32,
    bytes: u64,
}

impl Npz {
    pub(crate) fn new(spec: &WriteSpec) -> Npz {
        Npz { seed: spec.seed, array: Npy::new(spec) }
    }

    fn content_bytes(&self, shape: FileShape) -> u64 {
        shape.sample_bytes() * self.array.samples
    }

    /// Arrays too short for four bytes of choice are zeroes.
    fn is_short(&self, shape: FileShape) -> bool {
        self.content_bytes(shape) < 4
    }

    fn x(&self, shape: FileShape) -> Member {
        let crc = if self.is_short(shape) {
            let zeroes = vec![0; self.content_bytes(shape) as usize];
            crc32(crc32(0, &self.array.header(shape)), &zeroes)
        } else {
            mix(self.seed ^ mix(u64::from(shape.number))) as u32
        };
        Member { name: "x.npy", crc, bytes: self.array.file_bytes(shape) }
    }

    fn labels(&self) -> Vec<u8> {
        let mut file = npy_header("<i8", &[self.array.samples]);
        file.resize(file.len() + (LABEL_BYTES * self.array.samples) as usize, 0);
        file
    }

    fn y(&self) -> Member {
        let file = self.labels();
        Member { name: "y.npy", crc: crc32(0, &file), bytes: file.len() as u64 }
    }
}

impl Member {
    fn local(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(zip::LOCAL.to_le_bytes());
        [NEEDED, 0, zip::STORED, 0, DATE].iter().for_each(|word| out.extend(word.to_le_bytes()));
        [self.crc, u32::MAX, u32::MAX].iter().for_each(|word| out.extend(word.to_le_bytes()));
        [self.name.len() as u16, 20].iter().for_each(|word| out.extend(word.to_le_bytes()));
        out.extend(self.name.as_bytes());
        out.extend(zip64_field(&[self.bytes, self.bytes]));
        out
    }

    fn local_bytes(&self) -> u64 {
        (zip::LOCAL_BYTES + self.name.len() + 20) as u64 + self.bytes
    }

    /// The member's directory entry; values that don't fit 32 bits are in the zip64 field.
    fn listed(&self, offset: u64) -> Vec<u8> {
        let mut wide = Vec::new();
        // Python's zipfile goes wide beyond 2^31 - 1.
        let long = self.bytes > i32::MAX as u64;
        if long {
            wide.extend([self.bytes, self.bytes]);
        }
        let far = offset > i32::MAX as u64;
        if far {
            wide.push(offset);
        }
        let short = |value: u64, is_wide: bool| if is_wide { u32::MAX } else { value as u32 };
        let extra = if wide.is_empty() { vec![] } else { zip64_field(&wide) };
        let mut out = Vec::new();
        out.extend(zip::DIRECTORY.to_le_bytes());
        [MADE_BY, NEEDED, 0, zip::STORED, 0, DATE].iter().for_each(|word| out.extend(word.to_le_bytes()));
        let sizes = [self.crc, short(self.bytes, long), short(self.bytes, long)];
        sizes.iter().for_each(|word| out.extend(word.to_le_bytes()));
        let lengths = [self.name.len() as u16, extra.len() as u16, 0, 0, 0];
        lengths.iter().for_each(|word| out.extend(word.to_le_bytes()));
        out.extend(ATTRIBUTES.to_le_bytes());
        out.extend(short(offset, far).to_le_bytes());
        out.extend(self.name.as_bytes());
        out.extend(extra);
        out
    }
}

fn zip64_field(values: &[u64]) -> Vec<u8> {
    let head = [1u16.to_le_bytes(), (values.len() as u16 * 8).to_le_bytes()].concat();
    values.iter().fold(head, |mut out, value| {
        out.extend(value.to_le_bytes());
        out
    })
}

/// Returns the end of a zip whose directory has `entries` entries in `bytes` bytes at `offset`.
fn directory_end(entries: u16, bytes: u64, offset: u64) -> Vec<u8> {
    let mut out = Vec::new();
    let far = offset > i32::MAX as u64;
    if far {
        out.extend(zip::END64.to_le_bytes());
        out.extend((zip::END64_BYTES as u64 - 12).to_le_bytes());
        [NEEDED, NEEDED].iter().for_each(|word| out.extend(word.to_le_bytes()));
        out.extend([0; 8]);
        let wide = [u64::from(entries), u64::from(entries), bytes, offset];
        wide.iter().for_each(|word| out.extend(word.to_le_bytes()));
        out.extend(zip::LOCATOR64.to_le_bytes());
        out.extend([0; 4]);
        out.extend((offset + bytes).to_le_bytes());
        out.extend(1u32.to_le_bytes());
    }
    out.extend(zip::END.to_le_bytes());
    [0, 0, entries, entries].iter().for_each(|word: &u16| out.extend(word.to_le_bytes()));
    out.extend((bytes as u32).to_le_bytes());
    out.extend(if far { u32::MAX } else { offset as u32 }.to_le_bytes());
    out.extend([0, 0]);
    out
}

impl Npz {
    fn tail(&self, x: &Member, y: &Member) -> Vec<u8> {
        let offset = x.local_bytes() + y.local_bytes();
        let directory = [x.listed(0), y.listed(x.local_bytes())].concat();
        let end = directory_end(2, directory.len() as u64, offset);
        [directory, end].concat()
    }
}

impl Layout for Npz {
    fn file_bytes(&self, shape: FileShape) -> u64 {
        let (x, y) = (self.x(shape), self.y());
        x.local_bytes() + y.local_bytes() + self.tail(&x, &y).len() as u64
    }

    fn parts(&self, shape: FileShape, step: u64, parts: &mut VecDeque<Part>) -> bool {
        if step > 0 {
            return false;
        }
        let (x, y) = (self.x(shape), self.y());
        parts.extend([Part::Bytes(x.local()), Part::Sum(Sum::Crc32), Part::Bytes(self.array.header(shape))]);
        match self.content_bytes(shape) {
            short if self.is_short(shape) => parts.push_back(Part::Bytes(vec![0; short as usize])),
            long => parts.extend([Part::Content(long - 4), Part::ForceCrc32(x.crc)]),
        }
        let tail = self.tail(&x, &y);
        parts.extend([Part::Sum(Sum::None), Part::Bytes([y.local(), self.labels(), tail].concat())]);
        true
    }
}
