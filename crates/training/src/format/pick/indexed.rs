//! Samples one after another in a file, found by two lists of numbers beside it: where each begins, how long it is.
//! Without them all are of one length.

use super::{PickSpec, Picker, Piece, Pieces, Wanted};
use crate::format::Damage;
use std::sync::Arc;

/// The format's name; and what its lists are called behind a file's name.
pub(crate) const INDEXED: &str = "indexed_binary";
pub(crate) const OFFSETS: &str = ".off.idx";
pub(crate) const LENGTHS: &str = ".sz.idx";
/// Length of an entry, in either list.
pub(crate) const ENTRY_BYTES: usize = 8;

/// Positions of the records of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordIndex {
    /// One after another, each of so many bytes.
    Even { record_bytes: u64 },
    /// Offset and length of each.
    Listed(Arc<[(u64, u64)]>),
}

impl RecordIndex {
    /// From what stands in `NAME.off.idx` and `NAME.sz.idx`: little-endian numbers of 8 bytes.
    ///
    /// # Errors
    /// Which of them is too short, or what doesn't lie in the file.
    pub fn read(
        offsets: &[u8],
        lengths: &[u8],
        samples: u32,
        file_bytes: u64,
    ) -> Result<RecordIndex, String> {
        let wanted = samples as usize * ENTRY_BYTES;
        for (name, bytes) in [(OFFSETS, offsets.len()), (LENGTHS, lengths.len())] {
            if bytes < wanted {
                return Err(format!("its {name} has {bytes} bytes, and {samples} samples take {wanted}"));
            }
        }
        let numbers = |bytes: &[u8]| -> Vec<u64> {
            let entries = bytes[..wanted].chunks_exact(ENTRY_BYTES);
            entries.map(|entry| u64::from_le_bytes(std::array::from_fn(|i| entry[i]))).collect()
        };
        let places: Vec<(u64, u64)> = numbers(offsets).into_iter().zip(numbers(lengths)).collect();
        for (record, (at, bytes)) in places.iter().enumerate() {
            if at.checked_add(*bytes).is_none_or(|end| end > file_bytes) {
                return Err(format!(
                    "its index says that record {record} has {bytes} bytes at {at}, and the file has {file_bytes}"
                ));
            }
        }
        let record_bytes = places.first().map_or(0, |(_, bytes)| *bytes);
        let is_even =
            |(record, place): (usize, &(u64, u64))| *place == (record as u64 * record_bytes, record_bytes);
        if places.iter().enumerate().all(is_even) {
            return Ok(RecordIndex::Even { record_bytes });
        }
        Ok(RecordIndex::Listed(places.into()))
    }

    fn place(&self, record: u64) -> Option<(u64, u64)> {
        match self {
            RecordIndex::Even { record_bytes } => Some((record.checked_mul(*record_bytes)?, *record_bytes)),
            RecordIndex::Listed(places) => places.get(record as usize).copied(),
        }
    }
}

pub(crate) struct Indexed {
    samples_per_file: u64,
    samples: u64,
    pieces: Pieces,
    ends: Ends,
}

/// After how many bytes each wanted sample is whole.
enum Ends {
    /// Length of each sample.
    Each(u64),
    Listed {
        ends: Vec<u64>,
        whole: usize,
    },
}

impl Indexed {
    pub(crate) fn new(spec: &PickSpec) -> Indexed {
        Indexed {
            samples_per_file: spec.samples_per_file.into(),
            samples: 0,
            pieces: Pieces::default(),
            ends: Ends::Each(0),
        }
    }

    /// Records side by side, all of one length.
    fn run(&mut self, file_bytes: u64, wanted: Wanted, record_bytes: u64) -> Result<(), Damage> {
        let begin = wanted.first.checked_mul(record_bytes);
        let bytes = wanted.samples.checked_mul(record_bytes);
        let place = begin.zip(bytes).filter(|(at, bytes)| lies_in(file_bytes, *at, *bytes));
        let (at, bytes) = place.ok_or_else(|| beyond(wanted.first, file_bytes))?;
        self.pieces.push(at, bytes, true);
        self.ends = Ends::Each(record_bytes);
        Ok(())
    }

    /// One by one.
    fn list(&mut self, file_bytes: u64, wanted: Wanted, index: &RecordIndex) -> Result<(), Damage> {
        let mut ends = Vec::new();
        for number in 0..wanted.samples {
            let record = wanted.record(number);
            let place = index.place(record).filter(|(at, bytes)| lies_in(file_bytes, *at, *bytes));
            let (at, bytes) = place.ok_or_else(|| beyond(record, file_bytes))?;
            self.pieces.push(at, bytes, true);
            ends.push(self.pieces.end());
        }
        self.ends = Ends::Listed { ends, whole: 0 };
        self.count_whole();
        Ok(())
    }

    fn count_whole(&mut self) {
        if let Ends::Listed { ends, whole } = &mut self.ends {
            while ends.get(*whole).is_some_and(|end| *end <= self.pieces.at) {
                *whole += 1;
            }
        }
    }
}

fn lies_in(file_bytes: u64, at: u64, bytes: u64) -> bool {
    at.checked_add(bytes).is_some_and(|end| end <= file_bytes)
}

fn beyond(record: u64, file_bytes: u64) -> Damage {
    Damage::new(record, file_bytes, format!("the record lies beyond the file's {file_bytes} bytes"))
}

/// The index of a file that has none: records of equal length.
fn even(file_bytes: u64, samples: u64) -> Result<RecordIndex, Damage> {
    if samples == 0 || file_bytes % samples != 0 {
        let what =
            format!("{file_bytes} bytes are no {samples} records of one length, and there is no index");
        return Err(Damage::new(0, 0, what));
    }
    Ok(RecordIndex::Even { record_bytes: file_bytes / samples })
}

impl Picker for Indexed {
    fn begin(&mut self, file_bytes: u64, wanted: Wanted, index: Option<&RecordIndex>) -> Result<(), Damage> {
        self.samples = wanted.samples;
        self.pieces.clear();
        self.ends = Ends::Each(0);
        let own = match index {
            Some(index) => index.clone(),
            None => even(file_bytes, self.samples_per_file)?,
        };
        match own {
            RecordIndex::Even { record_bytes } if wanted.every == 1 => {
                self.run(file_bytes, wanted, record_bytes)
            }
            index => self.list(file_bytes, wanted, &index),
        }
    }

    fn pieces(&self) -> &[Piece] {
        &self.pieces.all
    }

    fn goal(&self, upto: u64) -> u64 {
        match &self.ends {
            Ends::Each(bytes) => bytes.saturating_mul(upto).min(self.pieces.end()),
            Ends::Listed { .. } if upto == 0 => 0,
            Ends::Listed { ends, .. } => ends.get(upto as usize - 1).copied().unwrap_or(self.pieces.end()),
        }
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), Damage> {
        self.pieces.took(bytes.len());
        self.count_whole();
        Ok(())
    }

    fn samples(&self) -> u64 {
        match &self.ends {
            Ends::Each(0) => self.samples,
            Ends::Each(bytes) => (self.pieces.at / bytes).min(self.samples),
            Ends::Listed { whole, .. } => *whole as u64,
        }
    }

    fn payload_bytes(&self) -> u64 {
        self.pieces.at
    }
}
