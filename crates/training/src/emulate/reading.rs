//! A stream while it is read: which bytes come next, how far they must go for the
//! samples that are wanted, and how many samples are whole. It waits with its stream,
//! goes from worker to worker, and on to the next stream after this one.

use super::direct_file::DirectFile;
use crate::format::pick::{self, Picker, RecordIndex, Wanted};
use crate::format::{Damage, Lost, Parser};
use forebay_model::training::Stream;
use std::fs::File;
use std::sync::Arc;

/// Least length of a further read where a sample's end was estimated too short.
const MORE_BYTES: u64 = 64 << 10;
/// Reads end on blocks, so that the next one begins on one.
pub(crate) const BLOCK: u64 = 4096;

/// Part of a file that is read.
pub(crate) enum FilePart {
    /// All of it, front to back. Without a parser (level `bytes`) samples lie evenly over the file.
    Whole(Option<Box<dyn Parser>>),
    /// Pieces, in an order of their own. Places in them are counted through, as if they lay side by side.
    Picked(Box<dyn Picker>),
}

pub(crate) struct Reading {
    way: FilePart,
    /// None where all files lie in one address space, or after an error.
    pub file: Option<Arc<File>>,
    /// It is read directly into a GPU.
    pub held: Option<Arc<DirectFile>>,
    /// Offset of the file in the address space.
    pub base: u64,
    pub bytes: u64,
    /// Bytes of the file (or its pieces) that were taken, or skipped at its front.
    pub at: u64,
    samples_per_file: u64,
    stream: Option<Stream>,
    ended: bool,
    /// Nothing more is to be had of it: what is wanted of it counts as skipped.
    pub is_dead: bool,
    payload: u64,
    /// Losses since the last query, and lost samples that weren't reported yet.
    found: Vec<Lost>,
    unreported: u32,
}

/// A file that was opened, or found in the address space.
pub(crate) struct Opened {
    pub file: Option<Arc<File>>,
    pub held: Option<Arc<DirectFile>>,
    pub base: u64,
    pub bytes: u64,
    /// Positions of its records, if a file beside it has them.
    pub index: Option<RecordIndex>,
}

impl Reading {
    pub(crate) fn new(way: FilePart, samples_per_file: u32) -> Reading {
        Reading {
            way,
            file: None,
            held: None,
            base: 0,
            bytes: 0,
            at: 0,
            samples_per_file: samples_per_file.into(),
            stream: None,
            ended: false,
            is_dead: false,
            payload: 0,
            found: Vec::new(),
            unreported: 0,
        }
    }

    /// Begins a stream. Without a parser the samples before its first one needn't be read.
    ///
    /// # Errors
    /// What is wrong with the file's index or its length.
    pub(crate) fn begin(&mut self, stream: Stream, opened: Opened) -> Result<(), Damage> {
        (self.file, self.base, self.bytes) = (opened.file, opened.base, opened.bytes);
        self.held = opened.held;
        (self.ended, self.is_dead, self.payload) = (false, false, 0);
        self.found.clear();
        self.unreported = 0;
        self.stream = Some(stream);
        self.at = 0;
        match &mut self.way {
            FilePart::Whole(Some(parser)) => parser.begin(opened.bytes),
            FilePart::Whole(None) if stream.every == 1 => {
                self.at = self.end_of(stream.first.into()) / BLOCK * BLOCK;
            }
            FilePart::Whole(None) => {}
            FilePart::Picked(picker) => {
                return picker.begin(opened.bytes, wanted(stream), opened.index.as_ref());
            }
        }
        Ok(())
    }

    /// Returns the position in the file of the byte at `at`, and how many follow it there.
    pub(crate) fn place(&self, at: u64) -> (u64, u64) {
        let FilePart::Picked(picker) = &self.way else { return (at, self.bytes - at) };
        pick::place(picker.pieces(), at).unwrap_or((self.bytes, 0))
    }

    /// Nothing of the stream can be had.
    pub(crate) fn give_up(&mut self) {
        self.is_dead = true;
        (self.file, self.held) = (None, None);
    }

    /// Returns the end of so many records of the file, were they all of one length.
    fn end_of(&self, records: u64) -> u64 {
        let all = self.samples_per_file.max(1);
        (u128::from(self.bytes) * u128::from(records.min(all))).div_ceil(u128::from(all)) as u64
    }

    /// Estimates the offset up to which `upto` samples of the stream are whole.
    pub(crate) fn goal(&self, upto: u32) -> u64 {
        let Some(stream) = self.stream else { return self.at };
        if let FilePart::Picked(picker) = &self.way {
            return picker.goal(upto.into());
        }
        let (first, every) = (u64::from(stream.first), u64::from(stream.every));
        let last = first + u64::from(upto.max(1) - 1) * every;
        if upto == stream.samples && last + every >= self.samples_per_file {
            return self.bytes;
        }
        let guess = self.end_of(last + 1).next_multiple_of(BLOCK);
        // All that was thought to be enough was taken, and it wasn't.
        let more = self.at + MORE_BYTES.max(self.end_of(1) / 16).next_multiple_of(BLOCK);
        let goal = if guess > self.at || self.samples() >= upto { guess } else { more };
        goal.min(self.bytes)
    }

    /// The file's next bytes. What parsing finds wrong names the record and the offset.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Result<(), Damage> {
        self.at += bytes.len() as u64;
        let taken = match &mut self.way {
            FilePart::Picked(picker) => picker.take(bytes),
            FilePart::Whole(None) => {
                self.payload += bytes.len() as u64;
                return Ok(());
            }
            FilePart::Whole(Some(parser)) => {
                let ends =
                    self.at == self.bytes && !std::mem::replace(&mut self.ended, self.at == self.bytes);
                parser.take(bytes).and_then(|()| if ends { parser.end() } else { Ok(()) })
            }
        };
        match &mut self.way {
            FilePart::Picked(picker) => picker.lost(&mut self.found),
            FilePart::Whole(Some(parser)) => parser.lost(&mut self.found),
            FilePart::Whole(None) => {}
        }
        taken
    }

    /// Bytes that nobody here looks at: without a parser they needn't be seen.
    ///
    /// # Panics
    /// Where there is one.
    pub(crate) fn pass(&mut self, bytes: u64) {
        assert!(matches!(self.way, FilePart::Whole(None)), "a parser sees every byte");
        self.at += bytes;
        self.payload += bytes;
    }

    /// Takes the losses since the last call, each with the number of the stream's samples that went with it.
    pub(crate) fn take_lost(&mut self) -> Vec<(Damage, u32)> {
        let Some(wanted) = self.stream.map(wanted) else { return Vec::new() };
        let mine = |lost: Lost| (lost.damage, wanted.among(lost.first, lost.records) as u32);
        let all: Vec<(Damage, u32)> = self.found.drain(..).map(mine).collect();
        self.unreported += all.iter().map(|(_, samples)| samples).sum::<u32>();
        all
    }

    /// Returns how many of `samples` that are reported now were read whole.
    pub(crate) fn sound(&mut self, samples: u32) -> u32 {
        let lost = samples.min(self.unreported);
        self.unreported -= lost;
        samples - lost
    }

    /// Records of the file that are whole.
    pub(crate) fn records(&self) -> u64 {
        match &self.way {
            FilePart::Whole(Some(parser)) => parser.samples(),
            FilePart::Picked(picker) => self.stream.map_or(0, |s| wanted(s).record(picker.samples())),
            FilePart::Whole(None) if self.at >= self.bytes => self.samples_per_file,
            FilePart::Whole(None) => {
                (u128::from(self.samples_per_file) * u128::from(self.at) / u128::from(self.bytes)) as u64
            }
        }
    }

    /// Samples of the stream that are whole.
    pub(crate) fn samples(&self) -> u32 {
        let Some(stream) = self.stream else { return 0 };
        match &self.way {
            FilePart::Picked(picker) => picker.samples() as u32,
            FilePart::Whole(_) => wanted(stream).before(self.records()) as u32,
        }
    }

    /// The whole file was taken, and has fewer samples than the stream.
    pub(crate) fn is_short(&self) -> bool {
        let is_whole = matches!(self.way, FilePart::Whole(_)) && self.at >= self.bytes;
        is_whole && self.stream.is_some_and(|s| self.samples() < s.samples)
    }

    /// Takes the bytes of the samples' content since the last call.
    pub(crate) fn take_payload(&mut self) -> u64 {
        let all = match &self.way {
            FilePart::Whole(None) => return std::mem::take(&mut self.payload),
            FilePart::Whole(Some(parser)) => parser.payload_bytes(),
            FilePart::Picked(picker) => picker.payload_bytes(),
        };
        all - std::mem::replace(&mut self.payload, all)
    }
}

fn wanted(stream: Stream) -> Wanted {
    Wanted { first: stream.first.into(), every: stream.every.into(), samples: stream.samples.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stream(first: u32, every: u32, samples: u32) -> Stream {
        Stream { file: 0, first, every, samples, position: 0, stride: 1 }
    }

    fn opened(bytes: u64) -> Opened {
        Opened { file: None, held: None, base: 0, bytes, index: None }
    }

    proptest! {
        /// Reading to the goal, again where it fell short, makes whole what is wanted; nothing is read twice, and
        /// at level `bytes` the first goal is enough.
        #[test]
        fn the_goal_is_reached(bytes in 1u64..5_000_000, per_file in 1u32..2000, first in 0u32..2000, upto in 1u32..2000) {
            let first = first % per_file;
            let samples = per_file - first;
            let upto = upto.min(samples);
            let mut reading = Reading::new(FilePart::Whole(None), per_file);
            reading.begin(stream(first, 1, samples), opened(bytes)).unwrap();
            let goal = reading.goal(upto);
            prop_assert!(goal <= bytes && goal >= reading.at);
            reading.take(&vec![0; (goal - reading.at) as usize]).unwrap();
            prop_assert!(reading.samples() >= upto);
            prop_assert!(reading.goal(samples) == bytes);
        }
    }

    #[test]
    fn every_other_record_is_counted_from_the_first_one_on() {
        let mut reading = Reading::new(FilePart::Whole(None), 10);
        reading.begin(stream(1, 4, 3), opened(1000)).unwrap();
        let mut counts = Vec::new();
        for _ in 0..10 {
            reading.take(&[0; 100]).unwrap();
            counts.push(reading.samples());
        }
        assert_eq!(counts, [0, 1, 1, 1, 1, 2, 2, 2, 2, 3]);
        assert_eq!(reading.take_payload(), 1000);
        assert_eq!(reading.take_payload(), 0);
    }

    #[test]
    fn a_stream_that_ends_before_its_file_reads_no_further() {
        let mut reading = Reading::new(FilePart::Whole(None), 100);
        reading.begin(stream(0, 1, 50), opened(100 * 4096)).unwrap();
        assert_eq!(reading.goal(50), 50 * 4096);
        reading.begin(stream(0, 1, 100), opened(100 * 4096 + 5)).unwrap();
        assert_eq!(reading.goal(100), 100 * 4096 + 5);
    }
}
