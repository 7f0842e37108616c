//! The file formats that training reads: parsers that take a file's bytes in order, in pieces of any length, check
//! what can be checked at the speed of memory, and count samples as they complete.
//!
//! A parser does no I/O and trusts nothing: lengths are held against the file's own, headers are bounded, and what is
//! wrong comes back as `Damage` with the record, the offset and both checksums.

mod bounded;
pub(crate) mod decode;
mod example;
mod fletcher;
pub(crate) mod hdf5;
pub(crate) mod index;
pub(crate) mod jpeg;
pub(crate) mod npy;
pub(crate) mod npz;
pub(crate) mod parquet;
pub(crate) mod pick;
pub(crate) mod png;
pub(crate) mod raw;
pub(crate) mod sums;
pub(crate) mod tar;
pub(crate) mod tfrecord;
mod thrift;
pub(crate) mod webdataset;
pub(crate) mod write;
mod zip;

#[cfg(test)]
mod tests;

use decode::{Decoder, Decoding};
use pick::{PickSpec, Picker};
use std::fmt;
use write::{Layout, WriteSpec};

/// Facts that a parser needs and a file doesn't say by itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ParseSpec {
    /// Samples that each file holds; a file that is seen to hold another number is damaged. 0: whatever it holds.
    pub samples_per_file: u32,
    /// Bytes of a record, where the format has records of one length and doesn't say which. 0: from the file's length.
    pub record_bytes: u64,
    /// True if the reader can find what follows a damaged record: then that record alone is lost.
    pub skips: bool,
}

/// Takes a file's bytes in order, in pieces of any length, checks what can be checked, counts samples as they
/// complete. Reused file after file: nothing is allocated per file once its buffers have grown.
pub trait Parser: Send {
    /// A new file of so many bytes; what was left of another is forgotten.
    fn begin(&mut self, file_bytes: u64);

    /// The file's next bytes. After an error the file can't be gone on with: `begin` starts another.
    fn take(&mut self, bytes: &[u8]) -> Result<(), Damage>;

    /// The file has no more bytes.
    fn end(&mut self) -> Result<(), Damage>;

    /// Complete so far in this file.
    fn samples(&self) -> u64;

    /// Bytes of the samples so far, without their framing.
    fn payload_bytes(&self) -> u64;

    /// Takes the losses since the last call, for formats that are read on behind a damaged record.
    fn lost(&mut self, _into: &mut Vec<Lost>) {}
}

/// Why a file isn't read as asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The bytes aren't what they were.
    Damaged,
    /// A good file, with something in it that isn't read here.
    Unsupported,
    /// A good file, which isn't as the workload describes it.
    Misdescribed,
}

/// Ends of phrases about what a good file has that isn't read here.
pub(crate) const NOT_READ: &str = "isn't read here";
const UNSUPPORTED: [&str; 4] = [NOT_READ, " are known", "encrypted or patched", "isn't in this file"];
/// Begins what is said of columns that a file hasn't.
pub(crate) const COLUMNS_ARE: &str = "its columns are ";

/// Damage of a file, and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Records (members of a zip, chunks of a PNG, pages of a column) before it.
    pub record: u64,
    /// In the file, of what is wrong: a record's start where its checksum is.
    pub offset: u64,
    /// One phrase, with both checksums where they differ.
    pub what: String,
}

impl Damage {
    pub fn new(record: u64, offset: u64, what: impl Into<String>) -> Damage {
        Damage { record, offset, what: what.into() }
    }

    /// Returns which fault it is, by how it is told.
    pub fn fault(&self) -> Fault {
        let of_columns = self.what.contains(COLUMNS_ARE) || self.what.starts_with("it has no data set");
        match UNSUPPORTED.iter().any(|end| self.what.contains(end)) {
            true => Fault::Unsupported,
            false if of_columns => Fault::Misdescribed,
            false => Fault::Damaged,
        }
    }

    /// A checksum that isn't the one beside the bytes.
    fn sum(record: u64, offset: u64, of: &str, kind: &str, stored: u32, found: u32) -> Damage {
        Damage::new(
            record,
            offset,
            format!("{of} has {kind} {found:08x}, and {stored:08x} is stored beside it"),
        )
    }
}

/// Records that were damaged between others that weren't. They count as whole, so that those behind them have their
/// numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    pub damage: Damage,
    /// Samples of the file that are lost with it.
    pub first: u64,
    pub records: u64,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "record {} at {}: {}", self.record, self.offset, self.what)
    }
}

impl std::error::Error for Damage {}

/// A format, by its name in workloads and on the command line.
pub struct FormatRow {
    pub name: &'static str,
    /// File extension as in DLIO, without the dot.
    pub extension: &'static str,
    /// The checks of level `parse`.
    pub what: &'static str,
    pub parser: fn(&ParseSpec) -> Box<dyn Parser>,
    /// For images: decodes a complete file.
    pub decoder: Option<Decoder>,
    /// Constructor of the reader of parts of a file, by spec; None: a run reads it front to back.
    pub picker: fn(&PickSpec) -> Option<Box<dyn Picker>>,
    pub layout: fn(&WriteSpec) -> Box<dyn Layout>,
}

pub const FORMATS: &[FormatRow] = &[
    FormatRow {
        name: "npz",
        extension: "npz",
        what: "zip headers, CRC-32 of each member, .npy headers, the directory at the end",
        parser: |spec| Box::new(npz::Npz::new(spec)),
        decoder: None,
        picker: |_| None,
        layout: |spec| Box::new(write::Npz::new(spec)),
    },
    FormatRow {
        name: "tfrecord",
        extension: "tfrecord",
        what: "both masked CRC32Cs of each record, its protobuf Example",
        parser: |spec| Box::new(tfrecord::TfRecord::new(spec)),
        decoder: None,
        picker: |_| None,
        layout: |spec| Box::new(write::TfRecord::new(spec)),
    },
    FormatRow {
        name: "npy",
        extension: "npy",
        what: "the header, and that the file is as long as it says",
        parser: |spec| Box::new(npy::Npy::new(spec)),
        decoder: None,
        picker: |_| None,
        layout: |spec| Box::new(write::Npy::new(spec)),
    },
    FormatRow {
        name: "jpeg",
        extension: "jpeg",
        what: "markers and segments, from the first to the last; it has no checksums",
        parser: |spec| Box::new(jpeg::Jpeg::new(spec)),
        decoder: Some(decode::jpeg),
        picker: |_| None,
        layout: |spec| Box::new(write::Jpeg::new(spec)),
    },
    FormatRow {
        name: "png",
        extension: "png",
        what: "CRC-32 of each chunk",
        parser: |spec| Box::new(png::Png::new(spec)),
        decoder: Some(decode::png),
        picker: |_| None,
        layout: |spec| Box::new(write::Png::new(spec)),
    },
    FormatRow {
        name: "hdf5",
        extension: "hdf5",
        what: "the superblock, the trees that lead to its data sets and chunks, and that these lie in the file; it has no checksums",
        parser: |spec| Box::new(hdf5::Hdf5::new(spec)),
        decoder: None,
        picker: |spec| spec.checks.then(|| Box::new(pick::Tree::new(spec)) as Box<dyn Picker>),
        layout: |spec| Box::new(write::Hdf5::new(spec)),
    },
    FormatRow {
        name: "parquet",
        extension: "parquet",
        what: "headers of pages, CRC-32 of those that have one, the footer",
        parser: |spec| Box::new(parquet::Parquet::new(spec)),
        decoder: None,
        picker: |spec| Some(Box::new(pick::Columns::new(spec))),
        layout: |spec| Box::new(write::Parquet::new(spec)),
    },
    FormatRow {
        name: "indexed_binary",
        extension: "indexed_binary",
        what: "its index files, where there are any; it has no checksums",
        parser: |spec| Box::new(raw::CountOnly::new(spec)),
        decoder: None,
        picker: |spec| Some(Box::new(pick::Indexed::new(spec))),
        layout: |spec| Box::new(write::Indexed::new(spec)),
    },
    FormatRow {
        name: "raw",
        extension: "raw",
        what: "nothing: the file has no checksums",
        parser: |spec| Box::new(raw::CountOnly::new(spec)),
        decoder: None,
        picker: |_| None,
        layout: |spec| Box::new(write::Raw::new(spec)),
    },
    FormatRow {
        name: "webdataset",
        extension: "tar",
        what: "each header's checksum, lengths and names, the end of the archive; content has no checksums",
        parser: |spec| Box::new(webdataset::WebDataset::new(spec)),
        decoder: None,
        picker: |_| None,
        layout: |spec| Box::new(write::WebDataset::new(spec)),
    },
];

impl FormatRow {
    /// The parser, and behind it the decoder where there is one and `decodes`.
    pub fn reader(&self, spec: &ParseSpec, decodes: bool) -> Box<dyn Parser> {
        let parser = (self.parser)(spec);
        match self.decoder.filter(|_| decodes) {
            Some(decoder) => Box::new(Decoding::new(parser, decoder)),
            None => parser,
        }
    }
}

/// The row of that name.
pub(crate) fn row(name: &str) -> Option<&'static FormatRow> {
    FORMATS.iter().find(|row| row.name == name)
}
