//! Content and nothing else: `raw`, what DLIO 3.0 calls a JPEG, and the samples of `indexed_binary`, which two files of
//! numbers beside them find.

use super::{Beside, BesidePlace, FileShape, Layout, Part, WriteSpec};
use crate::format::pick::{LENGTHS, OFFSETS};
use std::collections::VecDeque;

pub(crate) struct Raw {
    samples: u64,
}

impl Raw {
    pub(crate) fn new(spec: &WriteSpec) -> Raw {
        Raw { samples: u64::from(spec.samples_per_file) }
    }
}

impl Layout for Raw {
    fn file_bytes(&self, shape: FileShape) -> u64 {
        shape.sample_bytes() * self.samples
    }

    fn parts(&self, shape: FileShape, step: u64, parts: &mut VecDeque<Part>) -> bool {
        if step > 0 {
            return false;
        }
        parts.push_back(Part::Content(self.file_bytes(shape)));
        true
    }
}

pub(crate) struct Indexed(Raw);

impl Indexed {
    pub(crate) fn new(spec: &WriteSpec) -> Indexed {
        Indexed(Raw::new(spec))
    }
}

impl Layout for Indexed {
    fn file_bytes(&self, shape: FileShape) -> u64 {
        self.0.file_bytes(shape)
    }

    fn parts(&self, shape: FileShape, step: u64, parts: &mut VecDeque<Part>) -> bool {
        self.0.parts(shape, step, parts)
    }

    fn beside(&self, shape: FileShape) -> Vec<Beside> {
        let list = |number: &dyn Fn(u64) -> u64| -> Vec<u8> {
            (0..self.0.samples).flat_map(|i| number(i).to_le_bytes()).collect()
        };
        let file = |ending, bytes| Beside { place: BesidePlace::Ending(ending), bytes };
        let each = shape.sample_bytes();
        vec![file(OFFSETS, list(&|i| i * each)), file(LENGTHS, list(&|_| each))]
    }
}
