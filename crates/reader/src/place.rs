//! Ranges of files and the memory that they go to, and how they are cut into parts.

use super::{PAGE, PIECES_PER_PART, SLOT_BYTES, WINDOWED_BYTES_MIN};

/// Shorter parts cost more to hand out than they gain.
pub(super) const PART_BYTES_MIN: usize = 512 << 10;

/// Memory to be filled. Its owner keeps it until the request has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    Host(u64),
    Device { gpu: u32, at: u64 },
}

impl Address {
    pub fn after(self, bytes: usize) -> Address {
        match self {
            Address::Host(at) => Address::Host(at + bytes as u64),
            Address::Device { gpu, at } => Address::Device { gpu, at: at + bytes as u64 },
        }
    }

    pub fn gpu(self) -> Option<u32> {
        let Address::Device { gpu, .. } = self else { return None };
        Some(gpu)
    }
}

/// `bytes` from `offset` of a file (by its number in the request) to `to`.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    pub file: u32,
    pub offset: u64,
    pub bytes: usize,
    pub to: Address,
}

/// Returns whether a range needs no copy on its way past the page cache to this place of host memory.
pub(super) fn aligned(piece: &Range, at: *mut u8, unit: usize) -> bool {
    [piece.offset as usize, piece.bytes, at as usize].iter().all(|n| n % unit == 0)
}

/// A copy to be: place in the slot, place on the GPU, length.
#[derive(Clone, Copy)]
pub(super) struct Run {
    pub from: usize,
    pub to: u64,
    pub bytes: usize,
}

/// Shorter ranges are asked of the page cache at once; longer ones are worth a look at what is cached.
pub(super) const LONG: usize = 64 << 10;
/// Pieces of a part that are worth a look at the whole file.
const MANY: usize = 4;

/// Returns whether what the page cache has of these pieces is to be asked of all of them at once.
pub(super) fn are_many_and_long(pieces: &[Range]) -> bool {
    pieces.len() >= MANY && pieces.iter().all(|piece| piece.bytes >= LONG)
}

/// Reads of this length keep a device busy, some of them at a time.
const QUEUED_BYTES: usize = 2 << 20;
/// Bytes that are read together: sixteen such reads, or many short ones, which cost the less the more of them are handed over and
/// waited for at once.
pub(super) const TOGETHER_BYTES: usize = 16 * QUEUED_BYTES;

/// Returns whether ranges, or what they are cut into, are reads enough to be under way together.
pub(super) fn are_for_a_queue(ranges: &[Range]) -> bool {
    are_many_and_long(ranges) || ranges.iter().all(|range| range.bytes >= MANY * QUEUED_BYTES)
}

/// Ranges cut into long reads, of which those of a part are under way together: so many bytes at most.
pub(super) fn cut_for_queue(ranges: &[Range], part_bytes: usize) -> (Vec<Range>, Vec<u32>) {
    let (mut pieces, mut parts) = (Vec::with_capacity(ranges.len()), vec![0]);
    let (mut begun, mut gathered) = (0, 0);
    for range in ranges {
        let mut done = 0;
        while done < range.bytes {
            let offset = range.offset + done as u64;
            // They end where the file's pages do, so that O_DIRECT reads no page twice.
            let bytes = (range.bytes - done).min(QUEUED_BYTES - offset as usize % PAGE);
            let is_full = gathered + bytes > part_bytes || pieces.len() - begun == PIECES_PER_PART;
            if is_full && pieces.len() > begun {
                parts.push(pieces.len() as u32);
                (begun, gathered) = (pieces.len(), 0);
            }
            pieces.push(Range { offset, bytes, to: range.to.after(done), ..*range });
            gathered += bytes;
            done += bytes;
        }
    }
    if pieces.len() > begun {
        parts.push(pieces.len() as u32);
    }
    (pieces, parts)
}

/// Ranges cut into pieces of at most a slot, and pieces gathered into parts: enough of them for every worker, none
/// larger than a slot, none so small that handing it out costs more than reading it. What is read through windows
/// is cut at their edges, and each such piece is a part of its own, longer than a slot.
pub(super) fn cut(ranges: &[Range], workers: usize, windows: Option<u64>) -> (Vec<Range>, Vec<u32>) {
    let total: usize = ranges.iter().map(|r| r.bytes).sum();
    let part_bytes = (total / (2 * workers.max(1))).clamp(PART_BYTES_MIN, SLOT_BYTES).next_multiple_of(PAGE);
    let mut pieces: Vec<Range> = Vec::with_capacity(ranges.len() + total / part_bytes);
    let mut parts = vec![0u32];
    let mut gathered = 0;
    for range in ranges {
        let mut done = 0;
        let window = windows.filter(|_| range.to.gpu().is_some() && range.bytes >= WINDOWED_BYTES_MIN);
        while done < range.bytes {
            let at = range.offset + done as u64;
            let in_window = window.map_or(0, |w| (range.bytes - done).min((w - at % w) as usize));
            if in_window > SLOT_BYTES {
                if pieces.len() > *parts.last().expect("never empty") as usize {
                    parts.push(pieces.len() as u32);
                }
                pieces.push(Range { offset: at, bytes: in_window, to: range.to.after(done), ..*range });
                parts.push(pieces.len() as u32);
                gathered = 0;
                done += in_window;
                continue;
            }
            // Pieces end where the file's pages do, so that O_DIRECT reads no page twice.
            let bytes = (range.bytes - done).min(part_bytes - at as usize % PAGE);
            let begun = *parts.last().expect("never empty") as usize;
            let gpu_before = pieces.last().map(|p: &Range| p.to.gpu());
            if pieces.len() > begun
                && (gathered + bytes > part_bytes
                    || pieces.len() - begun == PIECES_PER_PART
                    || gpu_before != Some(range.to.gpu()))
            {
                parts.push(pieces.len() as u32);
                gathered = 0;
            }
            pieces.push(Range { offset: at, bytes, to: range.to.after(done), ..*range });
            gathered += bytes;
            done += bytes;
        }
    }
    if pieces.len() > *parts.last().expect("never empty") as usize {
        parts.push(pieces.len() as u32);
    }
    (pieces, parts)
}
