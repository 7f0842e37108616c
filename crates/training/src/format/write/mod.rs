//! Makes the files that the parsers read: front to back, without looking back, so that a file goes to a device, a pipe
//! or a remote namespace in one pass, and its checksums are taken while the bytes are in the cache.
//!
//! A format is a `Layout`: which bytes follow which. `Writer` turns that into bytes. Content is the seeded stream of
//! `forebay_model::content`: it doesn't compress, doesn't repeat, and is the same on every machine.

mod forced;
mod hdf5;
mod image;
mod npz;
mod parquet;
mod plain;
mod tfrecord;
mod webdataset;

pub(crate) use hdf5::Hdf5;
pub(crate) use image::{Jpeg, Png};
pub(crate) use npz::{Npy, Npz};
pub(crate) use parquet::{Column, Parquet, PAGE_BYTES_MAX};
pub(crate) use plain::{Indexed, Raw};
pub(crate) use tfrecord::TfRecord;
pub(crate) use webdataset::WebDataset;

use super::sums;
use forebay_model::content;
use std::collections::VecDeque;

/// Content that is made and summed at a time: both fit in L2.
const STEP_BYTES: usize = 64 << 10;

/// Properties that all files of a data set share.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WriteSpec {
    pub seed: u64,
    pub samples_per_file: u32,
    /// Side of a record's mean square: the feature `size` of a TFRecord.
    pub dimension: u32,
    /// Columns of Parquet, in their order, and samples in a row group; 0: all of a file's.
    pub columns: Vec<Column>,
    pub row_group: u32,
}

/// One file: its number, and the two sides of each of its samples, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileShape {
    pub number: u32,
    pub rows: u32,
    pub columns: u32,
}

impl FileShape {
    /// Bytes of one sample.
    pub fn sample_bytes(self) -> u64 {
        u64::from(self.rows) * u64::from(self.columns)
    }
}

/// The next bytes of a file.
pub enum Part {
    Bytes(Vec<u8>),
    /// Bytes of seeded content.
    Content(u64),
    /// Begins a new sum over what follows.
    Sum(Sum),
    /// The masked CRC32C of what was summed; nothing is summed from here on.
    MaskedCrc32c,
    /// The CRC-32 of what was summed, big-endian; nothing is summed from here on.
    Crc32,
    /// Filtered pixels follow, for the Adler-32 of PNG's data; or don't.
    Adler(bool),
    /// The byte before a row of pixels: no filter.
    Filter,
    /// The Adler-32 of all pixels and filters, big-endian.
    Adler32,
    /// Four bytes of content with which the CRC-32 of what was summed comes to this.
    ForceCrc32(u32),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sum {
    #[default]
    None,
    Crc32,
    Crc32c,
}

/// Bytes of a format's file, step by step: a step is a record or a member, so that few parts wait at a time.
pub trait Layout: Send {
    /// Exact length of the whole file.
    fn file_bytes(&self, shape: FileShape) -> u64;

    /// Appends the parts of step `step`; false where there is no such step.
    fn parts(&self, shape: FileShape, step: u64, parts: &mut VecDeque<Part>) -> bool;

    /// Additional files with which DLIO locates records.
    fn beside(&self, _shape: FileShape) -> Vec<Beside> {
        Vec::new()
    }
}

/// A small file that belongs to a large one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beside {
    pub place: BesidePlace,
    pub bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BesidePlace {
    /// Next to it: its name, and this.
    Ending(&'static str),
    /// Under its name and `.idx` in `index/train`, which lies beside `train`.
    IndexFolder,
}

/// One file's bytes, in order, whatever the lengths that are asked for.
pub struct Writer {
    layout: Box<dyn Layout>,
    seed: u64,
    shape: FileShape,
    step: u64,
    parts: VecDeque<Part>,
    /// Within the first part.
    at: u64,
    /// Content bytes before it.
    content_at: u64,
    sum: Sum,
    crc: u32,
    /// Both halves of the Adler-32 of pixels and filters, where there are any.
    adler: Option<sums::Adler>,
}

impl Writer {
    pub fn new(layout: Box<dyn Layout>, seed: u64) -> Writer {
        Writer {
            layout,
            seed,
            shape: FileShape::default(),
            step: 0,
            parts: VecDeque::new(),
            at: 0,
            content_at: 0,
            sum: Sum::None,
            crc: 0,
            adler: None,
        }
    }

    pub fn file_bytes(&self, shape: FileShape) -> u64 {
        self.layout.file_bytes(shape)
    }

    pub fn beside(&self, shape: FileShape) -> Vec<Beside> {
        self.layout.beside(shape)
    }

    pub fn begin(&mut self, shape: FileShape) {
        self.shape = shape;
        self.step = 0;
        self.parts.clear();
        self.at = 0;
        self.content_at = 0;
        self.sum = Sum::None;
        self.adler = None;
    }

    /// Fills `out` with the file's next bytes; fewer only where the file ends.
    pub fn fill(&mut self, out: &mut [u8]) -> usize {
        let mut filled = 0;
        while filled < out.len() {
            let Some(part) = self.parts.front() else {
                if !self.layout.parts(self.shape, self.step, &mut self.parts) {
                    break;
                }
                self.step += 1;
                continue;
            };
            match part {
                Part::Sum(kind) => {
                    (self.sum, self.crc) = (*kind, 0);
                    self.parts.pop_front();
                }
                Part::Adler(on) => {
                    self.adler = on.then(sums::Adler::default);
                    self.parts.pop_front();
                }
                Part::MaskedCrc32c => self.resolve(sums::masked_crc32c(self.crc).to_le_bytes()),
                Part::Crc32 => self.resolve(self.crc.to_be_bytes()),
                Part::ForceCrc32(target) => self.resolve(forced::word(self.crc, *target).to_le_bytes()),
                Part::Filter => {
                    if let Some(adler) = &mut self.adler {
                        adler.take(&[0]);
                    }
                    self.parts[0] = Part::Bytes(vec![0]);
                }
                Part::Adler32 => {
                    let sum = self.adler.take().unwrap_or_default().sum();
                    self.parts[0] = Part::Bytes(sum.to_be_bytes().to_vec());
                }
                Part::Bytes(_) | Part::Content(_) => filled += self.some(&mut out[filled..]),
            }
        }
        filled
    }

    /// The first part is these bytes, and they aren't summed.
    fn resolve(&mut self, bytes: [u8; 4]) {
        self.sum = Sum::None;
        self.parts[0] = Part::Bytes(bytes.to_vec());
    }

    /// A step of the first part, which has bytes.
    fn some(&mut self, out: &mut [u8]) -> usize {
        let (bytes, left) = match &self.parts[0] {
            Part::Bytes(all) => {
                let rest = &all[self.at as usize..];
                let bytes = rest.len().min(out.len());
                out[..bytes].copy_from_slice(&rest[..bytes]);
                (bytes, (rest.len() - bytes) as u64)
            }
            Part::Content(all) => {
                let left = all - self.at;
                let bytes = left.min(out.len().min(STEP_BYTES) as u64) as usize;
                content::fill(&mut out[..bytes], self.seed, u64::from(self.shape.number), self.content_at);
                self.content_at += bytes as u64;
                if let Some(adler) = &mut self.adler {
                    adler.take(&out[..bytes]);
                }
                (bytes, left - bytes as u64)
            }
            _ => return 0,
        };
        match self.sum {
            Sum::None => {}
            Sum::Crc32 => self.crc = sums::crc32(self.crc, &out[..bytes]),
            Sum::Crc32c => self.crc = sums::crc32c(self.crc, &out[..bytes]),
        }
        self.at += bytes as u64;
        if left == 0 {
            self.parts.pop_front();
            self.at = 0;
        }
        bytes
    }
}
