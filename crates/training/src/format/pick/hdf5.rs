//! An HDF5 file: what describes its data sets, wherever that lies, then every byte of it front to back. A sample is
//! whole once all of it came by. Chunks that end in a checksum are held against it as they come by.

use super::{PickSpec, Picker, Piece, Pieces, RecordIndex, Wanted};
use crate::format::fletcher::Fletcher32;
use crate::format::hdf5::walk::{DataLayout, SummedChunk, Walk};
use crate::format::hdf5::{samples_of, superblock, FRONT_BYTES};
use crate::format::Damage;

pub(crate) struct Tree {
    samples_per_file: u64,
    file_bytes: u64,
    wanted: Wanted,
    pieces: Pieces,
    /// None once it is through.
    walk: Option<Walk>,
    front: Vec<u8>,
    /// Bytes that the walk requested from behind the front.
    asked: Vec<u8>,
    samples: Samples,
    checks: bool,
    sums: Sums,
    /// Bytes of the pieces before the rest of the file.
    before_rest: u64,
    ended: bool,
}

/// The end of each sample in the file.
enum Samples {
    /// With the file, as far as is known.
    Unknown,
    Each {
        at: u64,
        bytes: u64,
    },
    /// By rows of chunks, each the highest so far.
    Rows {
        each: u64,
        ends: Vec<u64>,
    },
}

impl Tree {
    pub(crate) fn new(spec: &PickSpec) -> Tree {
        Tree {
            samples_per_file: spec.samples_per_file.into(),
            file_bytes: 0,
            wanted: Wanted::default(),
            pieces: Pieces::default(),
            walk: None,
            front: Vec::new(),
            asked: Vec::new(),
            samples: Samples::Unknown,
            checks: spec.checks,
            sums: Sums::default(),
            before_rest: 0,
            ended: false,
        }
    }

    /// Answers the walk from the file's front; what lies elsewhere becomes the next piece.
    fn walk_on(&mut self) -> Result<(), Damage> {
        let Some(walk) = &mut self.walk else { return self.go_on_to_the_rest() };
        while let Some((at, bytes)) = walk.asks() {
            let Some(found) = self.front.get(at as usize..at.saturating_add(bytes) as usize) else {
                self.asked.clear();
                self.pieces.push(at, bytes, false);
                return Ok(());
            };
            walk.answer(found).map_err(|(at, what)| Damage::new(0, at, what))?;
        }
        let set = samples_of(walk, self.samples_per_file).map_err(|what| Damage::new(0, 0, what))?;
        let bytes = set.dims[1..].iter().try_fold(set.item_bytes, |all, side| all.checked_mul(*side));
        self.samples = match (&set.place, bytes) {
            (DataLayout::Contiguous { at, .. }, Some(bytes)) => Samples::Each { at: *at, bytes },
            (DataLayout::Chunked { rows_each, ends }, _) => {
                Samples::Rows { each: *rows_each, ends: ends.clone() }
            }
            _ => Samples::Unknown,
        };
        if let Samples::Rows { ends, .. } = &mut self.samples {
            let mut highest = 0;
            ends.iter_mut().for_each(|end| {
                highest = highest.max(*end);
                *end = highest;
            });
        }
        if self.checks {
            self.sums = Sums::new(&set.summed);
        }
        self.walk = None;
        self.sums.take(&self.front)?;
        self.go_on_to_the_rest()
    }

    fn go_on_to_the_rest(&mut self) -> Result<(), Damage> {
        self.before_rest = self.pieces.end();
        let front = self.front.len() as u64;
        self.pieces.push(front, self.file_bytes - front, false);
        self.ended = true;
        Ok(())
    }

    /// Up to where the file has come by.
    fn at(&self) -> u64 {
        match self.ended {
            true => self.front.len() as u64 + (self.pieces.at - self.before_rest),
            false => 0,
        }
    }

    /// One behind the last byte of a record.
    fn end_of(&self, record: u64) -> u64 {
        let end = match &self.samples {
            Samples::Unknown => self.file_bytes,
            Samples::Each { at, bytes } => {
                record.saturating_add(1).saturating_mul(*bytes).saturating_add(*at)
            }
            Samples::Rows { each, ends } => {
                ends.get((record / each) as usize).copied().unwrap_or(self.file_bytes)
            }
        };
        // The last sample brings the whole file with it.
        match record.saturating_add(1) >= self.samples_per_file {
            true => self.file_bytes,
            false => end.min(self.file_bytes),
        }
    }
}

/// Chunks with a checksum, in the order in which a file's bytes come by.
#[derive(Default)]
struct Sums {
    chunks: Vec<SummedChunk>,
    /// The one that is coming by, or comes next.
    next: usize,
    sum: Fletcher32,
    /// Its last bytes, which aren't summed.
    stored: [u8; 4],
    /// Position in the file of the next byte.
    at: u64,
}

impl Sums {
    fn new(chunks: &[SummedChunk]) -> Sums {
        let mut chunks = chunks.to_vec();
        chunks.sort_unstable_by_key(|chunk| chunk.at);
        Sums { chunks, ..Sums::default() }
    }

    /// The file's next bytes, from its begin on.
    fn take(&mut self, bytes: &[u8]) -> Result<(), Damage> {
        let (begin, end) = (self.at, self.at + bytes.len() as u64);
        self.at = end;
        while let Some(chunk) = self.chunks.get(self.next).filter(|chunk| chunk.at < end) {
            if self.chunks.get(self.next + 1).is_some_and(|other| other.at < chunk.at + chunk.bytes) {
                return Err(Damage::new(chunk.row, chunk.at, "two chunks lie in the same place"));
            }
            let data_end = chunk.at + chunk.bytes - 4;
            let part = |from: u64, to: u64| {
                let place = |at: u64| (at.clamp(begin, end) - begin) as usize;
                &bytes[place(from)..place(to).max(place(from))]
            };
            self.sum.add(part(chunk.at, data_end));
            let stored_from = data_end.max(begin).min(data_end + 4) - data_end;
            for (i, byte) in (stored_from as usize..).zip(part(data_end, data_end + 4)) {
                self.stored[i] = *byte;
            }
            if chunk.at + chunk.bytes > end {
                return Ok(());
            }
            if !std::mem::take(&mut self.sum).is(self.stored) {
                let what = format!(
                    "a chunk of {} bytes doesn't have the Fletcher-32 sum that is stored behind it",
                    chunk.bytes
                );
                return Err(Damage::new(chunk.row, chunk.at, what));
            }
            self.next += 1;
        }
        Ok(())
    }
}

impl Picker for Tree {
    fn begin(&mut self, file_bytes: u64, wanted: Wanted, _: Option<&RecordIndex>) -> Result<(), Damage> {
        (self.file_bytes, self.wanted) = (file_bytes, wanted);
        self.pieces.clear();
        self.front.clear();
        self.asked.clear();
        self.walk = None;
        self.samples = Samples::Unknown;
        self.sums = Sums::default();
        (self.before_rest, self.ended) = (0, false);
        self.pieces.push(0, file_bytes.min(FRONT_BYTES), false);
        match file_bytes {
            0 => Err(Damage::new(0, 0, "the file ends inside its superblock")),
            _ => Ok(()),
        }
    }

    fn pieces(&self) -> &[Piece] {
        &self.pieces.all
    }

    fn goal(&self, upto: u64) -> u64 {
        if !self.ended {
            return self.pieces.end();
        }
        let Some(last) = upto.checked_sub(1) else { return self.pieces.at };
        let front = self.front.len() as u64;
        let goal = self.before_rest + self.end_of(self.wanted.record(last)).saturating_sub(front);
        goal.clamp(self.pieces.at, self.pieces.end())
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), Damage> {
        let is_front = self.pieces.current == 0;
        let ended = self.pieces.took(bytes.len());
        if self.ended {
            return self.sums.take(bytes);
        }
        let gathered = if is_front { &mut self.front } else { &mut self.asked };
        gathered.extend_from_slice(bytes);
        if !ended {
            return Ok(());
        }
        if is_front {
            superblock(&self.front, self.file_bytes).map_err(|what| Damage::new(0, 0, what))?;
            self.walk = Some(Walk::begin(self.file_bytes));
        } else if let Some(walk) = &mut self.walk {
            walk.answer(&self.asked).map_err(|(at, what)| Damage::new(0, at, what))?;
        }
        self.walk_on()
    }

    fn samples(&self) -> u64 {
        if !self.ended {
            return 0;
        }
        let at = self.at();
        let (mut low, mut high) = (0, self.wanted.samples);
        // Ends only grow with the record's number.
        while low < high {
            let middle = low + (high - low) / 2;
            if self.end_of(self.wanted.record(middle)) <= at {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    fn payload_bytes(&self) -> u64 {
        self.at()
    }
}
