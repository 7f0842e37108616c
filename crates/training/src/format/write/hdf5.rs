//! HDF5 as h5py 3.11 lays out DLIO's two data sets: superblock 0, old-style group, contiguous `records` and `labels`
//! (HDF5 File Format Specification 3.0, sections II to IV).

use super::{FileShape, Layout, Part, WriteSpec};
use std::collections::VecDeque;

/// Offset of `records`.
const DATA: u64 = 2048;
const LABEL_BYTES: u64 = 8;
const UNDEFINED: u64 = u64::MAX;

const ROOT: u64 = 0x60;
const TREE: u64 = 0x88;
const HEAP: u64 = 0x2A8;
const NAMES: u64 = 0x2C8;
const RECORDS: u64 = 0x320;
const SYMBOLS: u64 = 0x430;
const LABELS: u64 = 0x578;
/// Offset of the names within the heap's data.
const NAME_OF_RECORDS: u64 = 8;
const NAME_OF_LABELS: u64 = 16;

pub(crate) struct Hdf5 {
    samples: u64,
}

impl Hdf5 {
    pub(crate) fn new(spec: &WriteSpec) -> Hdf5 {
        Hdf5 { samples: u64::from(spec.samples_per_file) }
    }

    fn head(&self, shape: FileShape) -> Vec<u8> {
        let content = shape.sample_bytes() * self.samples;
        let labels = LABEL_BYTES * self.samples;
        let mut head = Head(vec![0; DATA as usize]);
        head.superblock(DATA + content + labels);
        head.group();
        let dims = [self.samples, u64::from(shape.rows), u64::from(shape.columns)];
        head.data_set(RECORDS, 0x110, &dims, &UNSIGNED_BYTE, DATA, content);
        head.data_set(LABELS, 0x110, &dims[..1], &SIGNED_LONG, DATA + content, labels);
        head.0
    }
}

/// A fixed-point datatype: class and version, flags, bytes, bit offset, precision.
const UNSIGNED_BYTE: [u8; 16] = [0x10, 0, 0, 0, 1, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0];
const SIGNED_LONG: [u8; 16] = [0x10, 8, 0, 0, 8, 0, 0, 0, 0, 0, 64, 0, 0, 0, 0, 0];

struct Head(Vec<u8>);

impl Head {
    fn put(&mut self, at: u64, bytes: &[u8]) {
        self.0[at as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    fn words(&mut self, at: u64, words: &[u64]) {
        for (index, word) in words.iter().enumerate() {
            self.put(at + 8 * index as u64, &word.to_le_bytes());
        }
    }

    fn superblock(&mut self, end: u64) {
        // Offsets and lengths of 8 bytes; leaves of 4, inner nodes of 16.
        self.put(0, b"\x89HDF\r\n\x1a\n\0\0\0\0\0\x08\x08\0\x04\0\x10\0");
        self.words(0x18, &[0, UNDEFINED, end, UNDEFINED]);
        // The root group's entry: its header, and where its tree and its heap are.
        self.words(0x38, &[0, ROOT, 1, TREE, HEAP]);
    }

    fn group(&mut self) {
        self.put(ROOT, &[1, 0, 1, 0, 1, 0, 0, 0, 0x18]);
        self.put(ROOT + 16, &[0x11, 0, 16]);
        self.words(ROOT + 24, &[TREE, HEAP]);
        self.put(TREE, b"TREE\0\0\x01\0");
        self.words(TREE + 8, &[UNDEFINED, UNDEFINED, 0, SYMBOLS, NAME_OF_RECORDS]);
        self.put(HEAP, b"HEAP");
        self.words(HEAP + 8, &[88, 24, NAMES]);
        self.put(NAMES + NAME_OF_RECORDS, b"records");
        self.put(NAMES + NAME_OF_LABELS, b"labels");
        // The heap's free block, which is its last.
        self.words(NAMES + 24, &[1, 64]);
        self.put(SYMBOLS, b"SNOD\x01\0\x02\0");
        self.words(SYMBOLS + 8, &[NAME_OF_LABELS, LABELS]);
        self.words(SYMBOLS + 48, &[NAME_OF_RECORDS, RECORDS]);
    }

    /// An object header of version 1 with five messages in `bytes` bytes, the last of which fills it up.
    fn data_set(
        &mut self,
        at: u64,
        bytes: u64,
        dims: &[u64],
        datatype: &[u8; 16],
        data: u64,
        data_bytes: u64,
    ) {
        self.put(at, &[1, 0, 5, 0, 1, 0, 0, 0]);
        self.words(at + 8, &[bytes - 16]);
        let mut message = at + 16;
        let space = [&[1, dims.len() as u8, 1, 0, 0, 0, 0, 0][..], &words(dims), &words(dims)].concat();
        let layout = [&[3, 1][..], &words(&[data, data_bytes]), &[0; 6]].concat();
        // Space, type, fill value, layout; flag 1: it never changes.
        let bodies: [(u8, u8, &[u8]); 4] =
            [(1, 0, &space), (3, 1, datatype), (5, 1, &[2, 2, 2, 1, 0, 0, 0, 0]), (8, 0, &layout)];
        for (kind, flags, body) in bodies {
            self.put(message, &[kind, 0, body.len() as u8, 0, flags]);
            self.put(message + 8, body);
            message += 8 + body.len() as u64;
        }
        let left = (at + bytes - message - 8) as u16;
        self.put(message + 2, &left.to_le_bytes());
    }
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

impl Layout for Hdf5 {
    fn file_bytes(&self, shape: FileShape) -> u64 {
        DATA + (shape.sample_bytes() + LABEL_BYTES) * self.samples
    }

    fn parts(&self, shape: FileShape, step: u64, parts: &mut VecDeque<Part>) -> bool {
        if step > 0 {
            return false;
        }
        parts.push_back(Part::Bytes(self.head(shape)));
        parts.push_back(Part::Content(shape.sample_bytes() * self.samples));
        parts.push_back(Part::Bytes(vec![0; (LABEL_BYTES * self.samples) as usize]));
        true
    }
}
