//! Blocks that are mixed with each other, read whole into memory: from a disk each of their rows would be a read of its own.

use super::table::{Column, Table};
use crate::devices;
use crate::place::{Address, Range};
use crate::request::Request;
use crate::rows::COPIED_ROW_BYTES_MAX;
use crate::staged::{Spare, Staged};
use crate::{queued_bytes_max, thread_pool, PAGE};
use forebay_io::CudaEvent;
use forebay_model::feed::{EpochOrder, Window};
use forebay_model::Error;
use std::ops::Range as Span;
use std::sync::Arc;
use std::time::Duration;

/// Memory of one window at most: columns that leave out most of a row are cheaper to read by themselves.
const WINDOW_BYTES_MAX: usize = 256 << 20;
/// In memory at a time: one that batches are handed out of, one that they are made of, and one or more that are read.
const WINDOWS_MIN: usize = 3;
/// Windows that are read ahead at a time for a GPU, which takes them faster than most disks bring them.
const AHEAD_MAX: usize = 4;

/// Samples that lie one behind the other in memory.
struct Run {
    samples: Span<u64>,
    file: usize,
    /// Of each column, where the first sample's begins.
    begins: Vec<u64>,
}

struct Stage {
    positions: Span<u64>,
    /// None: all of it is cached, and its rows are copied from there.
    memory: Option<Arc<Staged>>,
    runs: Vec<Run>,
    requests: Vec<Arc<Request>>,
    uncached: bool,
}

impl Stage {
    fn is_done(&self) -> bool {
        self.requests.iter().all(|request| request.is_done())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for request in &self.requests {
            request.cancel();
        }
    }
}

/// Rows of a batch that lie in a window which was read whole.
pub(super) struct FromMemory {
    pub(super) memory: Arc<Staged>,
    /// Of the batch's positions.
    pub(super) span: Span<usize>,
    /// A file that it is of.
    pub(super) file: usize,
    /// Of each column, where each sample begins in the memory.
    pub(super) places: Vec<Vec<u64>>,
    pub(super) uncached: bool,
}

impl FromMemory {
    /// Hands over requests that copy them to the columns' places, one for each column.
    pub(super) fn request(
        self,
        table: &Table,
        places: &[Address],
        after: impl Fn() -> Vec<CudaEvent>,
        mut begin: impl FnMut(Arc<Request>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let reader = table.unchanged(self.file)?;
        for ((column, place), numbers) in table.columns().iter().zip(places).zip(self.places) {
            let to = place.after(self.span.start * column.bytes);
            let memory = (self.memory.clone(), self.uncached);
            begin(Request::of_memory(reader, memory, numbers, column.bytes, to, after())?)?;
        }
        Ok(())
    }
}

/// Windows that batches are being made of, and those that are read ahead.
pub(super) struct Stages {
    stages: Vec<Stage>,
    spare: Spare,
    ahead: usize,
}

/// Whether the windows of a batch are there.
pub(super) enum Ready {
    Yes,
    Wait,
}

impl Stages {
    /// None where windows of this table aren't worth reading whole, should they not be cached. `room`: bytes of memory for them, if
    /// the user limits it; `gpu`: that batches go to. One that takes rows out of the windows by itself takes long ones so, too: read
    /// to slots each would be a read, a look at the page cache and a copy of its own.
    pub(super) fn where_they_pay(
        table: &Table,
        order: &EpochOrder,
        room: Option<usize>,
        gpu: Option<u32>,
    ) -> Option<Stages> {
        let samples: u64 = order.window(0)?.runs.iter().map(|run| run.end - run.start).sum();
        let groups = table.groups();
        let takes = |gpu| devices::device(gpu).is_ok_and(|device| device.reads_registered());
        let short = |column: &Column| column.bytes < COPIED_ROW_BYTES_MAX;
        let each: u64 = groups.iter().map(|group| table.columns()[group.start].step).sum();
        let (bytes, room) = (samples.saturating_mul(each), room.unwrap_or(usize::MAX));
        let pays = !groups.is_empty()
            && table.all_are_files()
            && (table.columns().iter().all(short) || gpu.is_some_and(takes))
            && bytes <= WINDOW_BYTES_MAX.min(room / WINDOWS_MIN) as u64;
        let window = (bytes as usize).max(1);
        let ahead = match gpu {
            Some(_) => {
                (queued_bytes_max() / window).min((room / window).saturating_sub(2)).clamp(1, AHEAD_MAX)
            }
            None => 1,
        };
        pays.then(|| Stages { stages: Vec::new(), spare: Spare::new(gpu), ahead })
    }

    pub(super) fn clear(&mut self) {
        self.stages.clear();
    }

    /// Bytes of memory beside those of batches.
    pub(super) fn bytes(&self) -> usize {
        let used: usize = self.stages.iter().filter_map(|stage| Some(stage.memory.as_ref()?.bytes())).sum();
        used + self.spare.bytes()
    }

    /// Has the windows of these positions read, and those behind them.
    ///
    /// # Errors
    /// A window couldn't be read; the next call reads it anew.
    pub(super) fn ready(
        &mut self,
        table: &Table,
        order: &EpochOrder,
        of: &Span<u64>,
    ) -> Result<Ready, Error> {
        self.stages.retain(|stage| stage.positions.end > of.start);
        let mut position = of.start;
        while position < of.end {
            let stage = self.stage(table, order, position)?;
            if !stage.is_done() {
                return Ok(Ready::Wait);
            }
            let failed = stage.requests.iter().find_map(|request| request.outcome().err());
            if let Some(error) = failed {
                self.clear();
                return Err(error);
            }
            position = stage.positions.end;
        }
        for _ in 0..self.ahead {
            if position < order.samples() {
                position = self.stage(table, order, position)?.positions.end;
            }
        }
        Ok(Ready::Yes)
    }

    /// Waits for what isn't there yet.
    pub(super) fn wait(&self, at_most: Duration) -> bool {
        let mut requests = self.stages.iter().flat_map(|stage| &stage.requests);
        requests.find(|request| !request.is_done()).is_none_or(|request| request.wait(Some(at_most)))
    }

    fn stage(&mut self, table: &Table, order: &EpochOrder, position: u64) -> Result<&Stage, Error> {
        let known = self.stages.iter().position(|stage| stage.positions.contains(&position));
        let at = match known {
            Some(at) => at,
            None => {
                let window = order.window(position).expect("only such orders are asked for");
                self.stages.push(begin(table, window, &self.spare)?);
                self.stages.len() - 1
            }
        };
        Ok(&self.stages[at])
    }

    /// Returns whether some of these positions are of a window that was read into memory.
    pub(super) fn have_read(&self, of: &Span<u64>) -> bool {
        let overlaps = |stage: &Stage| stage.positions.start < of.end && of.start < stage.positions.end;
        self.stages.iter().any(|stage| stage.memory.is_some() && overlaps(stage))
    }

    /// Which of a batch's samples lie in memory, and where; the others are cached.
    ///
    /// # Errors
    /// `Run`: a file changed.
    pub(super) fn locate(
        &self,
        table: &Table,
        first: u64,
        samples: &[u64],
    ) -> Result<Vec<FromMemory>, Error> {
        let mut found = Vec::new();
        let end = first + samples.len() as u64;
        for stage in &self.stages {
            let (begin, end) = (stage.positions.start.max(first), stage.positions.end.min(end));
            let Some(memory) = stage.memory.as_ref().filter(|_| begin < end) else { continue };
            let mut before = usize::MAX;
            for file in stage.runs.iter().map(|run| run.file) {
                if std::mem::replace(&mut before, file) != file {
                    table.unchanged(file)?;
                }
            }
            let span = (begin - first) as usize..(end - first) as usize;
            let places = stage.places(table, &samples[span.clone()]);
            let (memory, file, uncached) = (memory.clone(), stage.runs[0].file, stage.uncached);
            found.push(FromMemory { memory, span, file, places, uncached });
        }
        Ok(found)
    }
}

impl Stage {
    fn places(&self, table: &Table, samples: &[u64]) -> Vec<Vec<u64>> {
        let starts: Vec<u64> = self.runs.iter().map(|run| run.samples.start).collect();
        let mut places = vec![Vec::with_capacity(samples.len()); table.columns().len()];
        for sample in samples {
            let run = &self.runs[starts.partition_point(|start| start <= sample) - 1];
            for ((places, column), begin) in places.iter_mut().zip(table.columns()).zip(&run.begins) {
                places.push(begin + (sample - run.samples.start) * column.step);
            }
        }
        places
    }
}

/// Begins to read a window, unless all of it is cached.
fn begin(table: &Table, window: Window, spare: &Spare) -> Result<Stage, Error> {
    let groups = table.groups();
    let (mut runs, mut reads) = (Vec::new(), Vec::new());
    let (mut bytes, mut cached, mut uncached) = (0, true, false);
    for run in window.runs {
        for (file, rows, samples) in table.pieces(run) {
            let mut begins = vec![0; table.columns().len()];
            for group in &groups {
                let (span, firsts) = table.extent(file, group, &rows);
                let reader = table.unchanged(file)?;
                let (share, file_bytes) =
                    (reader.cached_share(span.start, (span.end - span.start) as usize), reader.bytes()?);
                cached &= share.is_some_and(|share| share >= 1.0);
                uncached |= share.is_some_and(|share| share < 0.5);
                // Whole pages of the file to whole pages of memory, so that the disk may write there by itself.
                let from = span.start / PAGE as u64 * PAGE as u64;
                let end = span.end.next_multiple_of(PAGE as u64).min(file_bytes);
                for (column, first) in group.clone().zip(firsts) {
                    begins[column] = bytes as u64 + (first - from);
                }
                reads.push((file, from..end, bytes));
                bytes += ((end - from) as usize).next_multiple_of(PAGE);
            }
            runs.push(Run { samples, file, begins });
        }
    }
    runs.sort_unstable_by_key(|run| run.samples.start);
    let mut stage = Stage { positions: window.positions, memory: None, runs, requests: Vec::new(), uncached };
    if cached {
        return Ok(stage);
    }
    let memory = spare.take(bytes)?;
    let base = memory.base() as u64;
    stage.memory = Some(memory);
    for of in reads.chunk_by(|a, b| a.0 == b.0) {
        let range = |(_, span, at): &(usize, Span<u64>, usize)| Range {
            file: 0,
            offset: span.start,
            bytes: (span.end - span.start) as usize,
            to: Address::Host(base + *at as u64),
        };
        let ranges: Vec<Range> = of.iter().map(range).collect();
        let request = Request::of_long_reads(table.unchanged(of[0].0)?, &ranges)?;
        // Held first: what was begun ends with the stage.
        stage.requests.push(request.clone());
        thread_pool::submit(&request)?;
    }
    Ok(stage)
}
