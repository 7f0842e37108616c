//! Rows of a file: fetched by a GPU itself out of registered windows, one launch for thousands of them, or copied out
//! of the page cache by processors.

use super::gpu_numbers::GpuNumbers;
use super::numbers::Copied;
use super::order_hash::{order_hash, order_samples};
use super::place::{Address, Range};
use super::processors;
use super::staged::Staged;
use super::windows::{Gathered, Windows};
use forebay_io::{GpuRows, ROW_ELSEWHERE};
use forebay_model::feed::EpochOrder;
use forebay_model::Error;
use forebay_storage::MappedWakeup;
use std::ops::{Range as Span, RangeInclusive};
use std::path::Path;
use std::sync::Arc;

/// Rows of one launch at most; their numbers fit a slot.
const ROWS_PER_PART_MAX: usize = 32 << 10;
pub(super) const NUMBERS_BYTES: usize = ROWS_PER_PART_MAX * size_of::<u64>();
/// Enough for the link to be busy for a millisecond, in which the next launch is made ready.
const PART_BYTES: usize = 64 << 20;
const ROWS_PER_PART_MIN: usize = 1024;
/// Length of parts of rows that processors copy: shorter parts cost more to hand out than they gain, longer ones take
/// the copy engine no less time per byte.
const COPIED_PART_BYTES: RangeInclusive<usize> = 512 << 10..=2 << 20;
/// As much is taken of a processor's cache in any case.
const CACHED_PART_BYTES_MIN: usize = 1 << 20;
/// Longer rows are ranges, where they can't be cut into equal pieces.
pub(super) const ROW_BYTES_MAX: usize = 1 << 20;
/// Bytes of a piece, and how many keep a GPU busy.
const PIECE_BYTES: RangeInclusive<usize> = 4096..=COPIED_ROW_BYTES_MAX;
const PIECES_BUSY: usize = 1024;
/// Pieces begin and end where the GPU reads words of this length, and so many times as many of them as needed are tried.
const PIECE_UNIT: usize = 16;
const PIECES_TRIED: usize = 4;
/// Longer ones are read as ranges, whose cached part is looked up for each.
pub(super) const COPIED_ROW_BYTES_MAX: usize = 64 << 10;

/// Positions of rows in a file: number n begins at byte `start` + n × `step`.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    pub start: u64,
    pub step: u64,
    pub row_bytes: usize,
}

impl Layout {
    /// Returns the offset of a row. Only for one that lies in the file.
    pub fn offset(self, number: u64) -> u64 {
        self.start + number * self.step
    }

    /// These rows one behind the other, for who fetches them by hand: `ELSEWHERE` leaves its place as it is.
    pub(super) fn ranges(self, numbers: &[u64], to: Address) -> Vec<Range> {
        let mut ranges = Vec::with_capacity(numbers.len());
        for (i, number) in numbers.iter().enumerate().filter(|(_, number)| **number != ROW_ELSEWHERE) {
            append(&mut ranges, self.range(i, *number, to));
        }
        ranges
    }

    /// The same bytes in shorter rows, and how many of those a row is; as it is where they can't be cut into equal ones. A launch
    /// of few long rows would keep few of a GPU's threads busy, and CPUs copy short ones out of the page cache.
    pub(super) fn in_pieces(self, rows: usize) -> (Layout, usize) {
        let bytes_max = (rows * self.row_bytes / PIECES_BUSY).clamp(*PIECE_BYTES.start(), *PIECE_BYTES.end());
        let least = self.row_bytes.div_ceil(bytes_max).max(1);
        let whole = |cut: &usize| self.row_bytes % cut == 0 && self.row_bytes / cut % PIECE_UNIT == 0;
        match (least..=least.saturating_mul(PIECES_TRIED)).find(whole) {
            Some(cut) if least > 1 => (Layout { start: 0, step: 1, row_bytes: self.row_bytes / cut }, cut),
            _ => (self, 1),
        }
    }

    /// The numbers of such pieces: where each begins in the file.
    pub(super) fn cut(self, numbers: &[u64], piece_bytes: usize) -> Vec<u64> {
        let cut = self.row_bytes / piece_bytes;
        let pieces = |number: &u64| {
            let begin = (*number != ROW_ELSEWHERE).then(|| self.offset(*number));
            (0..cut as u64).map(move |i| begin.map_or(ROW_ELSEWHERE, |begin| begin + i * piece_bytes as u64))
        };
        numbers.iter().flat_map(pieces).collect()
    }

    pub(super) fn range(self, i: usize, number: u64, to: Address) -> Range {
        let (offset, bytes) = (self.offset(number), self.row_bytes);
        Range { file: 0, offset, bytes, to: to.after(i * bytes) }
    }

    /// None where no file is that long.
    pub fn end(self, number: u64) -> Option<u64> {
        number.checked_mul(self.step)?.checked_add(self.start)?.checked_add(self.row_bytes as u64)
    }

    /// Returns the error of a row that ends beyond a file of so many bytes.
    pub(super) fn outside(self, number: u64, path: &Path, file_bytes: u64) -> Error {
        let Layout { start, step, row_bytes } = self;
        let place = if step == 1 { format!("{number}") } else { format!("{start} + {number} × {step}") };
        Error::request(
            format!("{row_bytes} bytes from {place} of {}", path.display()),
            format!("it has {file_bytes} bytes"),
            "rows inside the file; File.size says how long it is",
        )
    }
}

/// Rows that touch in the file and at their places are read as one.
pub(super) fn append(ranges: &mut Vec<Range>, next: Range) {
    match ranges.last_mut() {
        Some(last)
            if last.offset + last.bytes as u64 == next.offset && last.to.after(last.bytes) == next.to =>
        {
            last.bytes += next.bytes;
        }
        _ => ranges.push(next),
    }
}

/// Returns the length of parts of so many bytes, copied by so many processors: enough parts for all of them, and short
/// enough for what is in their slots to stay in the last-level cache until it is copied on.
fn copied_part_bytes(bytes: usize, hands: usize) -> usize {
    let in_cache = (processors::cache_bytes() / 4 / hands.max(1)).max(CACHED_PART_BYTES_MIN);
    (bytes / (2 * hands.max(1))).min(in_cache).clamp(*COPIED_PART_BYTES.start(), *COPIED_PART_BYTES.end())
}

/// Copier of cached rows: the GPU or the CPUs.
pub(super) enum Fetch {
    Gpu(GpuRows),
    /// Copied by processors; towards a GPU, what scatters them there, if it can be had.
    Processors(Option<GpuRows>),
}

/// Samples at `count` positions of an order, from `first` on.
#[derive(Clone, Copy)]
pub(super) struct Ordered {
    pub order: EpochOrder,
    pub first: u64,
    pub count: usize,
}

impl Ordered {
    /// Returns some of them, and their hash.
    pub(super) fn part(&self, some: Span<usize>) -> (Vec<u64>, u64) {
        let mut numbers = vec![0; some.len()];
        let first = self.first + some.start as u64;
        order_samples(&self.order, first, &mut numbers);
        let hash = order_hash(&self.order, first, &numbers);
        (numbers, hash)
    }

    pub(super) fn all(&self) -> (Vec<u64>, u64) {
        self.part(0..self.count)
    }
}

/// Location of row numbers: host or GPU memory.
pub(super) enum Numbers {
    Here(Copied),
    /// Computed for each part by the worker that brings it.
    Ordered(Ordered),
    /// In the memory of the GPU that fetches the rows. None of them is `ELSEWHERE`.
    GpuNumbers(GpuNumbers),
}

impl Numbers {
    fn len(&self) -> usize {
        match self {
            Numbers::Here(all) => all.numbers().len(),
            Numbers::Ordered(of) => of.count,
            Numbers::GpuNumbers(there) => there.len(),
        }
    }
}

/// Rows that one request is for: the i-th of `numbers` goes to `to` + i × `row_bytes`, unless it is `ELSEWHERE`.
pub(super) struct Table {
    pub fetch: Fetch,
    pub numbers: Numbers,
    /// Number of them that are rows of the file.
    pub rows: usize,
    pub layout: Layout,
    pub to: Address,
    /// In place of the file: memory that its rows were read into.
    pub memory: Option<Arc<Staged>>,
    part_bytes: usize,
}

impl Table {
    pub(crate) fn new(fetch: Fetch, (numbers, rows): (Numbers, usize), layout: Layout, to: Address) -> Table {
        let part_bytes = match fetch {
            Fetch::Gpu(_) => PART_BYTES,
            Fetch::Processors(_) => {
                let workers =
                    if to.gpu().is_some() { processors::all_threads() } else { processors::to_host() };
                copied_part_bytes(rows * layout.row_bytes, workers)
            }
        };
        Table { fetch, numbers, rows, layout, to, memory: None, part_bytes }
    }

    /// Of rows that are copied within host memory: whoever is done with the last part but one waits for the last, and reads
    /// nothing from storage, for which many at a time would be needed.
    pub(super) fn in_short_parts(self) -> Table {
        Table { part_bytes: *COPIED_PART_BYTES.start(), ..self }
    }

    fn rows_each(&self) -> usize {
        match self.fetch {
            Fetch::Gpu(_) => {
                (self.part_bytes / self.layout.row_bytes).clamp(ROWS_PER_PART_MIN, ROWS_PER_PART_MAX)
            }
            Fetch::Processors(_) => (self.part_bytes / self.slot_bytes(1)).clamp(1, ROWS_PER_PART_MAX),
        }
    }

    /// Returns the bytes of a slot for so many rows: themselves, and their destinations.
    pub(crate) fn slot_bytes(&self, rows: usize) -> usize {
        (rows * self.layout.row_bytes).next_multiple_of(size_of::<u64>()) + rows * size_of::<u64>()
    }

    pub(crate) fn parts(&self) -> usize {
        self.numbers.len().div_ceil(self.rows_each())
    }

    /// Returns whether every number is a row of the file.
    pub(crate) fn is_dense(&self) -> bool {
        self.rows == self.numbers.len()
    }

    /// Returns the numbers of a part, and the destination of its first row.
    pub(crate) fn part(&self, index: usize) -> (Span<usize>, Address) {
        let first = index * self.rows_each();
        let end = self.numbers.len().min(first + self.rows_each());
        (first..end, self.to.after(first * self.layout.row_bytes))
    }

    pub(crate) fn bytes(&self) -> u64 {
        (self.rows * self.layout.row_bytes) as u64
    }
}

impl Layout {
    /// Has the windows of these rows registered and holds those that are; `laid` gets each row's number, or `ELSEWHERE`
    /// and a range among the rest. None: nothing may be read that way. `go_on` is asked while the registrar works.
    pub(super) fn lay(
        self,
        windows: &Windows,
        numbers: &[u64],
        to: Address,
        wakeup: &Arc<MappedWakeup>,
        go_on: impl FnMut() -> bool,
        laid: &mut [u64],
    ) -> (Option<Gathered>, Vec<Range>) {
        // A table that is registered as a whole, as it is from the second batch on: nothing is looked up for a row.
        if let Some(all) = windows.hold_whole() {
            laid.copy_from_slice(numbers);
            return (Some(all), Vec::new());
        }
        let of = |number: u64| -> RangeInclusive<usize> {
            let offset = self.offset(number);
            let last = offset + self.row_bytes as u64 - 1;
            windows.number_of(offset) as usize..=windows.number_of(last) as usize
        };
        let mut bytes = vec![0u64; windows.count() as usize];
        for number in numbers.iter().filter(|number| **number != ROW_ELSEWHERE) {
            of(*number).for_each(|window| bytes[window] += self.row_bytes as u64);
        }
        let wanted: Vec<(u32, u64)> = (0u32..).zip(bytes).filter(|(_, bytes)| *bytes > 0).collect();
        let held = windows.hold_all(&wanted, wakeup, go_on);
        let mut ready = vec![false; windows.count() as usize];
        for window in held.iter().flat_map(|held| &held.numbers) {
            ready[*window as usize] = true;
        }
        let mut rest = Vec::new();
        for (i, (number, place)) in numbers.iter().zip(laid).enumerate() {
            *place = *number;
            if *number != ROW_ELSEWHERE && !of(*number).all(|window| ready[window]) {
                *place = ROW_ELSEWHERE;
                append(&mut rest, self.range(i, *number, to));
            }
        }
        (held, rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_rows_are_cut_into_equal_pieces_where_they_can_be() {
        let layout = |row_bytes| Layout { start: 7, step: row_bytes as u64, row_bytes };
        for (rows, row_bytes, piece) in [
            (1_000_000, 4096, 4096),
            (100_000, 64 << 10, 64 << 10),
            (64, 150_528, 9408),
            (100_000, 150_528, 50_176),
            (512, 2 << 20, 64 << 10),
            (1, 16 << 20, 16 << 10),
            (1, 4096, 4096),
            (100_000, 100_003, 100_003),
            (4, (2 << 20) + 8, (2 << 20) + 8),
        ] {
            let (pieces, cut) = layout(row_bytes).in_pieces(rows);
            assert_eq!((pieces.row_bytes, piece * cut), (piece, row_bytes), "{rows} of {row_bytes}");
        }
        let cut = layout(2 << 20).cut(&[1, ROW_ELSEWHERE], 1 << 20);
        assert_eq!(cut, [7 + (2 << 20), 7 + (3 << 20), ROW_ELSEWHERE, ROW_ELSEWHERE]);
    }

    #[test]
    fn parts_for_processors_are_enough_for_all_and_neither_short_nor_long() {
        let (least, most) = (*COPIED_PART_BYTES.start(), *COPIED_PART_BYTES.end());
        assert_eq!(copied_part_bytes(4096, 16), least);
        assert_eq!(copied_part_bytes(8 << 20, 16), least);
        assert_eq!(copied_part_bytes(8 << 20, 0), copied_part_bytes(8 << 20, 1));
        for hands in [1, 2, 16, 64] {
            let long = copied_part_bytes(1 << 30, hands);
            assert!((CACHED_PART_BYTES_MIN..=most).contains(&long), "{hands}: {long}");
            assert_eq!(copied_part_bytes(2 * hands * (768 << 10), hands), 768 << 10);
        }
    }
}
