//! A stream while it is read: which bytes come next, how far they must go for the
//! samples that are wanted, and how many samples are whole. It waits with its stream,
//! goes from worker to worker, and on to the next stream after this one.

use crate::format::{Damage, Lost, Parser};
use forebay_model::training::Stream;
use std::fs::File;
use std::sync::Arc;

/// What is read at least where an estimate of a sample's end fell short.
const MORE_BYTES: u64 = 64 << 10;
/// Reads end on blocks, so that the next one begins on one.
pub const BLOCK: u64 = 4096;

pub struct Reading {
    /// None (level `bytes`): samples lie evenly over the file.
    parser: Option<Box<dyn Parser>>,
    /// None after an error.
    pub file: Option<Arc<File>>,
    pub bytes: u64,
    /// Bytes of the file that were taken, or skipped at its front.
    pub at: u64,
    samples_per_file: u64,
    stream: Option<Stream>,
    ended: bool,
    /// Nothing more is to be had of it: what is wanted of it counts as skipped.
    pub is_dead: bool,
    payload: u64,
    /// What was lost of it since it was last asked for, and samples of that which weren't reported yet.
    found: Vec<Lost>,
    unreported: u32,
}

impl Reading {
    pub fn new(parser: Option<Box<dyn Parser>>, samples_per_file: u32) -> Reading {
        Reading {
            parser,
            file: None,
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

    /// Begins a stream in a file of so many bytes. Without a parser the samples before its first one needn't be read.
    pub fn begin(&mut self, stream: Stream, file: File, bytes: u64) {
        (self.file, self.bytes) = (Some(Arc::new(file)), bytes);
        (self.ended, self.is_dead, self.payload) = (false, false, 0);
        self.found.clear();
        self.unreported = 0;
        self.stream = Some(stream);
        self.at = 0;
        match &mut self.parser {
            Some(parser) => parser.begin(bytes),
            None if stream.every == 1 => self.at = self.end_of(stream.first.into()) / BLOCK * BLOCK,
            None => {}
        }
    }

    /// Nothing of the stream can be had.
    pub fn give_up(&mut self) {
        self.is_dead = true;
        self.file = None;
    }

    /// Where so many records of the file end, were they all of one length.
    fn end_of(&self, records: u64) -> u64 {
        let all = self.samples_per_file.max(1);
        (u128::from(self.bytes) * u128::from(records.min(all))).div_ceil(u128::from(all)) as u64
    }

    /// How far to read until `upto` samples of the stream are whole, as far as can be told before.
    pub fn goal(&self, upto: u32) -> u64 {
        let Some(stream) = self.stream else { return self.at };
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
    pub fn take(&mut self, bytes: &[u8]) -> Result<(), Damage> {
        self.at += bytes.len() as u64;
        let Some(parser) = &mut self.parser else {
            self.payload += bytes.len() as u64;
            return Ok(());
        };
        let ends = self.at == self.bytes && !std::mem::replace(&mut self.ended, self.at == self.bytes);
        let taken = parser.take(bytes).and_then(|()| if ends { parser.end() } else { Ok(()) });
        parser.lost(&mut self.found);
        taken
    }

    /// What was lost since the last call, with the number of the stream's samples that went with it.
    pub fn take_lost(&mut self) -> Vec<(Damage, u32)> {
        let Some(stream) = self.stream else { return Vec::new() };
        let mine = |lost: Lost| {
            let samples = wanted(stream, lost.first + lost.records) - wanted(stream, lost.first);
            (lost.damage, samples as u32)
        };
        let all: Vec<(Damage, u32)> = self.found.drain(..).map(mine).collect();
        self.unreported += all.iter().map(|(_, samples)| samples).sum::<u32>();
        all
    }

    /// Of `samples` that are reported now, those that were read whole.
    pub fn sound(&mut self, samples: u32) -> u32 {
        let lost = samples.min(self.unreported);
        self.unreported -= lost;
        samples - lost
    }

    /// Records of the file that are whole.
    pub fn records(&self) -> u64 {
        match &self.parser {
            Some(parser) => parser.samples(),
            None if self.at >= self.bytes => self.samples_per_file,
            None => (u128::from(self.samples_per_file) * u128::from(self.at) / u128::from(self.bytes)) as u64,
        }
    }

    /// Samples of the stream that are whole.
    pub fn samples(&self) -> u32 {
        self.stream.map_or(0, |stream| wanted(stream, self.records()) as u32)
    }

    /// The whole file was taken, and has fewer samples than the stream.
    pub fn is_short(&self) -> bool {
        self.at >= self.bytes && self.stream.is_some_and(|s| self.samples() < s.samples)
    }

    /// Of the samples' content since the last call.
    pub fn take_payload(&mut self) -> u64 {
        match &self.parser {
            None => std::mem::take(&mut self.payload),
            Some(parser) => {
                let all = parser.payload_bytes();
                all - std::mem::replace(&mut self.payload, all)
            }
        }
    }
}

/// Of the stream's samples, those that come before the file's record `end`.
fn wanted(stream: Stream, end: u64) -> u64 {
    let after_first = end.saturating_sub(stream.first.into());
    after_first.div_ceil(u64::from(stream.every).max(1)).min(stream.samples.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stream(first: u32, every: u32, samples: u32) -> Stream {
        Stream { file: 0, first, every, samples, position: 0, stride: 1 }
    }

    fn begun(per_file: u32, stream: Stream, bytes: u64) -> Reading {
        let mut reading = Reading::new(None, per_file);
        reading.begin(stream, File::open("/dev/null").expect("it is there"), bytes);
        reading
    }

    proptest! {
        /// Reading to the goal, again where it fell short, makes whole what is wanted; nothing is read twice, and
        /// at level `bytes` the first goal is enough.
        #[test]
        fn the_goal_is_reached(bytes in 1u64..5_000_000, per_file in 1u32..2000, first in 0u32..2000, upto in 1u32..2000) {
            let first = first % per_file;
            let samples = per_file - first;
            let upto = upto.min(samples);
            let mut reading = begun(per_file, stream(first, 1, samples), bytes);
            let goal = reading.goal(upto);
            prop_assert!(goal <= bytes && goal >= reading.at);
            reading.take(&vec![0; (goal - reading.at) as usize]).unwrap();
            prop_assert!(reading.samples() >= upto);
            prop_assert!(reading.goal(samples) == bytes);
        }
    }

    #[test]
    fn every_other_record_is_counted_from_the_first_one_on() {
        let mut reading = begun(10, stream(1, 4, 3), 1000);
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
        let reading = begun(100, stream(0, 1, 50), 100 * 4096);
        assert_eq!(reading.goal(50), 50 * 4096);
        let reading = begun(100, stream(0, 1, 100), 100 * 4096 + 5);
        assert_eq!(reading.goal(100), 100 * 4096 + 5);
    }
}
