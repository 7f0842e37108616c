//! Formats of which a run reads parts, in an order of their own: the columns that a workload names, single records by
//! an index, what a tree of addresses leads to.
//!
//! A picker does no I/O. It says which pieces of a file are read next, and takes their bytes in that order; what it
//! took may tell it of more pieces.

mod hdf5;
mod indexed;
mod parquet;
#[cfg(test)]
mod tests;

pub(crate) use hdf5::Tree;
pub use indexed::RecordIndex;
pub(crate) use indexed::{Indexed, ENTRY_BYTES, INDEXED, LENGTHS, OFFSETS};
pub(crate) use parquet::Columns;

use super::{Damage, Lost};

/// Facts that a picker needs and a file doesn't say by itself.
#[derive(Clone, Debug, Default)]
pub struct PickSpec {
    pub samples_per_file: u32,
    /// Names of columns that are read. None named: all.
    pub columns: Vec<String>,
    /// Framing is parsed, and checksums are held against their bytes.
    pub checks: bool,
    /// A damaged record is lost, and no others where these can be found.
    pub skips: bool,
}

/// Records of one file that somebody takes: `first`, `first + every`, …
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    pub first: u64,
    pub every: u64,
    pub samples: u64,
}

impl Wanted {
    /// Counts those before the file's record `end`.
    pub fn before(&self, end: u64) -> u64 {
        end.saturating_sub(self.first).div_ceil(self.every.max(1)).min(self.samples)
    }

    /// Counts those among `records` records from `from` on.
    pub fn among(&self, from: u64, records: u64) -> u64 {
        self.before(from.saturating_add(records)) - self.before(from)
    }

    /// The record that is the `number`th of them, from 0.
    pub fn record(&self, number: u64) -> u64 {
        self.first.saturating_add(number.saturating_mul(self.every))
    }
}

/// Bytes of a file that lie side by side. None is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub offset: u64,
    /// Total bytes of the pieces up to and including this one.
    pub end: u64,
}

pub trait Picker: Send {
    /// A new file; what was left of another is forgotten.
    ///
    /// # Errors
    /// What is wrong with the index, or with the file's length.
    fn begin(&mut self, file_bytes: u64, wanted: Wanted, index: Option<&RecordIndex>) -> Result<(), Damage>;

    /// The pieces known so far, in the order in which they are read.
    fn pieces(&self) -> &[Piece];

    /// Bytes of the pieces after which `upto` of the wanted samples are whole; all of them where that isn't known yet.
    fn goal(&self, upto: u64) -> u64;

    /// The next bytes, none of them beyond a piece. After an error only `begin` follows.
    fn take(&mut self, bytes: &[u8]) -> Result<(), Damage>;

    /// Wanted samples that are whole, those that are lost among them.
    fn samples(&self) -> u64;

    /// Bytes of the samples so far, without their framing.
    fn payload_bytes(&self) -> u64;

    /// Adds the samples lost since the last call.
    fn lost(&mut self, _into: &mut Vec<Lost>) {}
}

/// Returns the position in the file of byte `at` of all pieces, and how many follow it there. None: they have no such
/// byte.
pub(crate) fn place(pieces: &[Piece], at: u64) -> Option<(u64, u64)> {
    let index = pieces.partition_point(|piece| piece.end <= at);
    let begin = index.checked_sub(1).map_or(0, |before| pieces[before].end);
    pieces.get(index).map(|piece| (piece.offset + (at - begin), piece.end - at))
}

/// Reads until `upto` samples are whole from a file that lies in memory, `step` bytes at a time; the bytes that were read.
pub fn pick_from_memory(picker: &mut dyn Picker, file: &[u8], upto: u64, step: u64) -> Result<u64, Damage> {
    let mut at = 0;
    while let Some((offset, left)) = place(picker.pieces(), at) {
        let goal = picker.goal(upto);
        if at >= goal {
            break;
        }
        let bytes = left.min(goal - at).min(step.max(1));
        picker.take(&file[offset as usize..][..bytes as usize])?;
        at += bytes;
    }
    Ok(at)
}

/// Pieces, and how far they were taken.
#[derive(Default)]
struct Pieces {
    all: Vec<Piece>,
    at: u64,
    /// Index of the piece that is being taken.
    current: usize,
}

impl Pieces {
    fn clear(&mut self) {
        self.all.clear();
        (self.at, self.current) = (0, 0);
    }

    fn end(&self) -> u64 {
        self.all.last().map_or(0, |piece| piece.end)
    }

    /// One more, joined with the last if it follows that one and `joins`.
    fn push(&mut self, offset: u64, bytes: u64, joins: bool) {
        if bytes == 0 {
            return;
        }
        let end = self.end() + bytes;
        let before = self.all.len().checked_sub(2).map_or(0, |i| self.all[i].end);
        match self.all.last_mut() {
            Some(last) if joins && last.offset + (last.end - before) == offset => last.end = end,
            _ => self.all.push(Piece { offset, end }),
        }
    }

    /// Offset of the next byte in the file.
    fn offset(&self) -> u64 {
        let Some(piece) = self.all.get(self.current) else { return 0 };
        let begin = self.current.checked_sub(1).map_or(0, |i| self.all[i].end);
        piece.offset + (self.at - begin)
    }

    /// Counts bytes that were taken; true where a piece has ended.
    fn took(&mut self, bytes: usize) -> bool {
        self.at += bytes as u64;
        let ended = self.all.get(self.current).is_some_and(|piece| self.at >= piece.end);
        self.current += usize::from(ended);
        ended
    }
}
