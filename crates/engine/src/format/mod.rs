//! The file formats that training reads: parsers that take a file's bytes in order, in pieces of any length, check
//! what can be checked at the speed of memory, and count samples as they complete.
//!
//! A parser does no I/O and trusts nothing: lengths are held against the file's own, headers are bounded, and what is
//! wrong comes back as `Damage` with the record, the offset and both checksums.

mod bounded;
mod example;
mod npy;
pub mod npz;
pub mod sums;
pub mod tfrecord;
pub mod write;
mod zip;

#[cfg(test)]
mod tests;

use std::fmt;
use write::{Layout, WriteSpec};

/// What a parser must know that a file doesn't say by itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ParseSpec {
    /// Samples that each file holds; a file that is seen to hold another number is damaged. 0: whatever it holds.
    pub samples_per_file: u32,
    /// Where the reader can find what follows a damaged record, that record alone is lost.
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

    /// Of the samples' content so far, without what frames it.
    fn payload_bytes(&self) -> u64;

    /// What was lost since the last call, of files that are read on behind it.
    fn lost(&mut self, _into: &mut Vec<Lost>) {}
}

/// What is wrong with a file, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Records (of a zip: members) before it.
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
    /// Of its files, without the dot; as DLIO names them.
    pub extension: &'static str,
    /// What level `parse` checks.
    pub what: &'static str,
    pub parser: fn(&ParseSpec) -> Box<dyn Parser>,
    pub layout: fn(&WriteSpec) -> Box<dyn Layout>,
}

pub const FORMATS: &[FormatRow] = &[
    FormatRow {
        name: "npz",
        extension: "npz",
        what: "zip headers, CRC-32 of each member, .npy headers, the directory at the end",
        parser: |spec| Box::new(npz::Npz::new(spec)),
        layout: |spec| Box::new(write::Npz::new(spec)),
    },
    FormatRow {
        name: "tfrecord",
        extension: "tfrecord",
        what: "both masked CRC32Cs of each record, its protobuf Example",
        parser: |spec| Box::new(tfrecord::TfRecord::new(spec)),
        layout: |spec| Box::new(write::TfRecord::new(spec)),
    },
];

/// The row of that name.
pub fn row(name: &str) -> Option<&'static FormatRow> {
    FORMATS.iter().find(|row| row.name == name)
}
