//! TFRecord: records `{size: int64, image: bytes}`, as DLIO has TensorFlow write them.

use super::{Beside, BesidePlace, FileShape, Layout, Part, Sum, WriteSpec};
use std::collections::VecDeque;
use std::fmt::Write;

pub(crate) struct TfRecord {
    samples: u64,
    dimension: u64,
}

impl TfRecord {
    pub(crate) fn new(spec: &WriteSpec) -> TfRecord {
        TfRecord { samples: u64::from(spec.samples_per_file), dimension: u64::from(spec.dimension) }
    }

    /// With what frames it.
    fn record_bytes(&self, shape: FileShape) -> u64 {
        let image = shape.sample_bytes();
        self.head(image).len() as u64 + image + 16
    }

    /// The Example up to the image's first byte.
    fn head(&self, image: u64) -> Vec<u8> {
        let mut number = Vec::new();
        put_varint(&mut number, self.dimension);
        let size = entry("size", &field(0x1a, &field(0x0a, &number)));
        // The lengths around the image, from the inside out.
        let mut inside = tag(0x0a, image);
        let mut length = image + inside.len() as u64;
        for outer in [tag(0x0a, length), tag(0x12, length + tag(0x0a, length).len() as u64)] {
            length += outer.len() as u64;
            inside.splice(0..0, outer);
        }
        let name = field(0x0a, b"image");
        length += name.len() as u64;
        let features = [size, tag(0x0a, length), name, inside].concat();
        let all = features.len() as u64 + image;
        [tag(0x0a, all), features].concat()
    }
}

impl Layout for TfRecord {
    fn file_bytes(&self, shape: FileShape) -> u64 {
        self.samples * self.record_bytes(shape)
    }

    /// DALI's index: a line for each record, where it begins and how long it is with its framing.
    fn beside(&self, shape: FileShape) -> Vec<Beside> {
        let (each, mut lines) = (self.record_bytes(shape), String::new());
        for record in 0..self.samples {
            let _ = writeln!(lines, "{} {each}", record * each);
        }
        vec![Beside { place: BesidePlace::IndexFolder, bytes: lines.into_bytes() }]
    }

    fn parts(&self, shape: FileShape, step: u64, parts: &mut VecDeque<Part>) -> bool {
        if step >= self.samples {
            return false;
        }
        let image = shape.sample_bytes();
        let head = self.head(image);
        parts.extend([
            Part::Sum(Sum::Crc32c),
            Part::Bytes((head.len() as u64 + image).to_le_bytes().to_vec()),
            Part::MaskedCrc32c,
            Part::Sum(Sum::Crc32c),
            Part::Bytes(head),
            Part::Content(image),
            Part::MaskedCrc32c,
        ]);
        true
    }
}

/// An entry of a map from names to messages.
fn entry(name: &str, value: &[u8]) -> Vec<u8> {
    field(0x0a, &[field(0x0a, name.as_bytes()), field(0x12, value)].concat())
}

fn field(key: u8, bytes: &[u8]) -> Vec<u8> {
    [tag(key, bytes.len() as u64).as_slice(), bytes].concat()
}

fn tag(key: u8, bytes: u64) -> Vec<u8> {
    let mut out = vec![key];
    put_varint(&mut out, bytes);
    out
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
