//! Pages of a file, each to its own place in a GPU's memory, and groups of them that are waited for apart: layers of a
//! key-value cache's blocks.

use super::place::{Place, Range, Run};
use forebay_io::gpu::kernels::{Piece, Scatter, PIECE_BYTES};
use std::ops::Range as Span;

/// Bytes of a part that the GPU fetches: a fraction of a millisecond of the link.
const FETCHED_PART_BYTES: usize = 16 << 20;
/// Bytes of a part that a processor copies into a slot: few enough for the slots in use to stay in its caches.
const COPIED_PART_BYTES: usize = 2 << 20;
/// Pages of a part at most: their list fits the room for one.
const PAGES_PER_PART_MAX: usize = 4096;
/// Pieces of a list that keep a GPU busy, and their lengths.
const PIECES_BUSY: usize = 256;
const PIECE_MIN: usize = 4096;
const PIECE_MAX: usize = 64 << 10;
/// Pieces begin and end where the GPU reads words of this length.
const PIECE_UNIT: usize = 16;
/// Pieces of one part's list at most.
pub(super) const PIECES_MAX: usize = 8192;
pub(super) const LIST_BYTES: usize = PIECES_MAX * PIECE_BYTES;

/// Bytes of a slot that data may take: the list of what lies in a slot of pages is at its end, where it is long enough for one.
pub(super) fn data_bytes(slot_bytes: usize, of_pages: bool) -> usize {
    match of_pages && slot_bytes > 2 * LIST_BYTES {
        true => slot_bytes - LIST_BYTES,
        false => slot_bytes,
    }
}

/// A page: its byte in the file, and where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Page {
    pub offset: u64,
    pub to: u64,
}

/// Who brings them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// The GPU, out of registered windows; one worker tells it all, in order.
    Gpu,
    /// As `Gpu`, once windows are registered: a worker waits for those of each part.
    GpuLater,
    /// Processors, into slots that the GPU fetches them from.
    Processors,
}

/// Pages that one request is for, in the order in which they are brought.
pub(super) struct Pages {
    pub(super) by: By,
    /// Kernel that takes pieces to their places; without it each is a copy.
    pub(super) scatter: Option<Scatter>,
    pub(super) gpu: u32,
    pub(super) page_bytes: usize,
    pages: Vec<Page>,
    /// Each with the group that it belongs to.
    parts: Vec<(Span<usize>, usize)>,
    groups: usize,
}

impl Pages {
    /// `groups`: the end of each in `pages`.
    pub(super) fn new(
        (by, scatter): (By, Option<Scatter>),
        gpu: u32,
        page_bytes: usize,
        mut pages: Vec<Page>,
        groups: &[usize],
    ) -> Pages {
        let part_bytes = if by == By::Processors { COPIED_PART_BYTES } else { FETCHED_PART_BYTES };
        let each = (part_bytes / page_bytes).clamp(1, PAGES_PER_PART_MAX);
        let mut parts = Vec::new();
        let mut begin = 0;
        for (group, end) in groups.iter().enumerate() {
            // Neighbours in the file travel together.
            pages[begin..*end].sort_unstable_by_key(|page| page.offset);
            while begin < *end {
                let until = (*end).min(begin + each);
                parts.push((begin..until, group));
                begin = until;
            }
        }
        Pages { by, scatter, gpu, page_bytes, pages, parts, groups: groups.len() }
    }

    pub(super) fn parts(&self) -> usize {
        self.parts.len()
    }

    pub(super) fn group_of(&self, part: usize) -> usize {
        self.parts[part].1
    }

    /// Parts of each group.
    pub(super) fn parts_by_group(&self) -> Vec<usize> {
        let mut counted = vec![0; self.groups];
        self.parts.iter().for_each(|(_, group)| counted[*group] += 1);
        counted
    }

    /// Bytes of the longest part that may be.
    pub(super) fn part_bytes_max(&self) -> usize {
        FETCHED_PART_BYTES.max(self.page_bytes)
    }

    pub(super) fn bytes(&self) -> u64 {
        (self.pages.len() * self.page_bytes) as u64
    }

    pub(super) fn part(&self, index: usize) -> &[Page] {
        &self.pages[self.parts[index].0.clone()]
    }

    /// Runs of the file that a part's pages make. The place of each is what its bytes are called by in `pieces`.
    pub(super) fn runs(&self, index: usize) -> Vec<Range> {
        let mut runs: Vec<Range> = Vec::new();
        for page in self.part(index) {
            match runs.last_mut() {
                Some(run) if run.offset + run.bytes as u64 == page.offset => run.bytes += self.page_bytes,
                _ => {
                    let to = Place::Device { gpu: self.gpu, at: page.offset };
                    runs.push(Range { file: 0, offset: page.offset, bytes: self.page_bytes, to });
                }
            }
        }
        runs
    }

    /// Pieces that take what lies in `runs` (from `base` on, called by its byte in the file) to the pages of a part.
    pub(super) fn pieces(&self, index: usize, base: u64, runs: &[Run]) -> Vec<Piece> {
        let total: usize = runs.iter().map(|run| run.bytes).sum();
        let most = piece_bytes(total);
        let mut pieces = Vec::new();
        let (pages, page_bytes) = (self.part(index), self.page_bytes as u64);
        for run in runs {
            let end = run.to + run.bytes as u64;
            let first = pages.partition_point(|page| page.offset + page_bytes <= run.to);
            for page in pages[first..].iter().take_while(|page| page.offset < end) {
                let (first, last) = (page.offset.max(run.to), (page.offset + page_bytes).min(end));
                let mut at = first;
                while at < last {
                    let bytes = (last - at).min(most as u64);
                    let from = base + run.from as u64 + (at - run.to);
                    pieces.push(Piece { from, to: page.to + (at - page.offset), bytes });
                    at += bytes;
                }
            }
        }
        pieces
    }
}

/// Length of pieces of so many bytes: enough of them to keep a GPU busy, none too short for the link.
fn piece_bytes(total: usize) -> usize {
    (total / PIECES_BUSY).clamp(PIECE_MIN, PIECE_MAX).next_multiple_of(PIECE_UNIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages of 5,000 bytes in two groups, some of them neighbours, as runs that a slot may also cut.
    #[test]
    fn pieces_take_each_byte_of_a_page_to_its_place_wherever_its_run_was_cut() {
        let page_bytes = 5000;
        let rows = [7u64, 3, 4, 5, 0, 9, 8, 1];
        let placed =
            rows.iter().zip(0u64..).map(|(row, i)| Page { offset: row * 5000, to: (i * 3 % 8) * 5000 });
        let placed: Vec<Page> = placed.collect();
        let file: Vec<u8> = (0..50_000u32).map(|i| ((i * 7919) >> 5) as u8).collect();
        let pages = Pages::new((By::Processors, None), 0, page_bytes, placed.clone(), &[5, 8]);
        assert_eq!((pages.parts(), pages.parts_by_group(), pages.bytes()), (2, vec![1, 1], 40_000));
        assert_eq!((pages.group_of(0), pages.group_of(1)), (0, 1));
        let mut got = vec![0u8; 40_000];
        for part in 0..2 {
            let runs = pages.runs(part);
            assert_eq!(
                runs.iter().map(|run| run.bytes).collect::<Vec<_>>(),
                [[5000, 15_000, 5000], [5000, 10_000, 0]][part][..runs.len()]
            );
            for cut in [1, 700, 4096, 20_000] {
                let mut slot = Vec::new();
                let mut laid = Vec::new();
                for run in &runs {
                    for begin in (0..run.bytes).step_by(cut) {
                        let bytes = cut.min(run.bytes - begin);
                        let at = run.offset + begin as u64;
                        laid.push(Run { from: slot.len(), to: at, bytes });
                        slot.extend_from_slice(&file[at as usize..at as usize + bytes]);
                    }
                }
                for piece in pages.pieces(part, 1 << 40, &laid) {
                    let (from, to) = ((piece.from - (1 << 40)) as usize, piece.to as usize);
                    got[to..to + piece.bytes as usize]
                        .copy_from_slice(&slot[from..from + piece.bytes as usize]);
                }
                for page in &placed[[0..5, 5..8][part].clone()] {
                    let (from, to) = (page.offset as usize, page.to as usize);
                    assert!(
                        got[to..to + page_bytes] == file[from..from + page_bytes],
                        "{part} {cut} {page:?}"
                    );
                    got[to..to + page_bytes].fill(0);
                }
            }
        }
    }
}
