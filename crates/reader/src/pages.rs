//! Pages of a file, each to its own place in a GPU's memory, and groups of them that are waited for apart: layers of a
//! key-value cache's blocks.

use super::place::{Address, Range, Run};
use forebay_io::{RowPiece, RowScatter, ROW_PIECE_BYTES};
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
pub(super) const LIST_BYTES: usize = PIECES_MAX * ROW_PIECE_BYTES;

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

/// Blocks of the file and the pages that they go to. A block lies in the file layer after layer, with `pages_each` pages of each;
/// in memory a layer's pages lie together.
pub struct Blocks {
    /// Of the first block in the file.
    pub start: u64,
    pub page_bytes: usize,
    pub layers: usize,
    pub pages_each: usize,
    /// Numbers of blocks, and for each `pages_each` numbers of pages of a layer.
    pub slots: Vec<u64>,
    pub tables: Vec<u64>,
    /// Device address of the first layer's first page, and pages of a layer there.
    pub base: u64,
    pub pages_of_layer: u64,
    /// Layers are brought one after another, and waited for apart.
    pub by_layer: bool,
}

impl Blocks {
    pub(super) fn count(&self) -> usize {
        self.slots.len() * self.layers * self.pages_each
    }

    pub(super) fn block_bytes(&self) -> usize {
        self.layers * self.pages_each * self.page_bytes
    }

    /// Byte in the file; None where no file is that long.
    fn offset(&self, slot: u64) -> Option<u64> {
        slot.checked_mul(self.block_bytes() as u64)?.checked_add(self.start)
    }

    /// The range of the file that the last of them takes; None where no file is that long, or there are none.
    pub(super) fn end(&self) -> Option<u64> {
        self.slots.iter().max().and_then(|slot| self.offset(*slot)?.checked_add(self.block_bytes() as u64))
    }

    /// The range of the file of each.
    pub(super) fn runs(&self) -> Vec<(u64, usize)> {
        let run = |slot: &u64| (self.offset(*slot).expect("its end was looked at"), self.block_bytes());
        self.slots.iter().map(run).collect()
    }

    /// In the order in which they are brought: block after block, or layer after layer, each in the order of the file, so that
    /// neighbours travel together.
    fn page(&self, order: &[u32], i: usize) -> Page {
        let (block, layer, page) = match self.by_layer {
            true => {
                let each = order.len() * self.pages_each;
                (i % each / self.pages_each, i / each, i % self.pages_each)
            }
            false => {
                let each = self.layers * self.pages_each;
                (i / each, i % each / self.pages_each, i % self.pages_each)
            }
        };
        let block = order[block] as usize;
        let row =
            (self.slots[block] * self.layers as u64 + layer as u64) * self.pages_each as u64 + page as u64;
        let place = layer as u64 * self.pages_of_layer + self.tables[block * self.pages_each + page];
        let bytes = self.page_bytes as u64;
        Page { offset: self.start + row * bytes, to: self.base + place * bytes }
    }
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
    pub(super) scatter: Option<RowScatter>,
    pub(super) gpu: u32,
    blocks: Blocks,
    /// Blocks in the order of the file.
    order: Vec<u32>,
    /// Each with the group that it belongs to: the layer, where layers are waited for apart.
    parts: Vec<(Span<usize>, usize)>,
    groups: usize,
}

impl Pages {
    pub(super) fn new((by, scatter): (By, Option<RowScatter>), gpu: u32, blocks: Blocks) -> Pages {
        let mut order: Vec<u32> = (0..blocks.slots.len() as u32).collect();
        order.sort_unstable_by_key(|block| blocks.slots[*block as usize]);
        let part_bytes = if by == By::Processors { COPIED_PART_BYTES } else { FETCHED_PART_BYTES };
        let each = (part_bytes / blocks.page_bytes).clamp(1, PAGES_PER_PART_MAX);
        let groups = if blocks.by_layer { blocks.layers } else { 1 };
        let in_group = blocks.count() / groups;
        let mut parts = Vec::new();
        for group in 0..groups {
            let end = (group + 1) * in_group;
            for begin in (group * in_group..end).step_by(each) {
                parts.push((begin..end.min(begin + each), group));
            }
        }
        Pages { by, scatter, gpu, blocks, order, parts, groups }
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
        FETCHED_PART_BYTES.max(self.blocks.page_bytes)
    }

    pub(super) fn bytes(&self) -> u64 {
        (self.blocks.count() * self.blocks.page_bytes) as u64
    }

    pub(super) fn part(&self, index: usize) -> PagePart {
        let pages = self.parts[index].0.clone().map(|i| self.blocks.page(&self.order, i)).collect();
        PagePart { gpu: self.gpu, page_bytes: self.blocks.page_bytes, pages }
    }
}

/// Pages that are brought together, in the order of the file.
pub(super) struct PagePart {
    gpu: u32,
    page_bytes: usize,
    pages: Vec<Page>,
}

impl PagePart {
    /// Runs of the file that its pages make. The place of each is what its bytes are called by in `pieces`.
    pub(super) fn runs(&self) -> Vec<Range> {
        let mut runs: Vec<Range> = Vec::new();
        for page in &self.pages {
            match runs.last_mut() {
                Some(run) if run.offset + run.bytes as u64 == page.offset => run.bytes += self.page_bytes,
                _ => {
                    let to = Address::Device { gpu: self.gpu, at: page.offset };
                    runs.push(Range { file: 0, offset: page.offset, bytes: self.page_bytes, to });
                }
            }
        }
        runs
    }

    /// Pieces that take what lies in `runs` (from `base` on, called by its byte in the file) to its pages.
    pub(super) fn pieces(&self, base: u64, runs: &[Run]) -> Vec<RowPiece> {
        let total: usize = runs.iter().map(|run| run.bytes).sum();
        let most = piece_bytes(total);
        let mut pieces = Vec::with_capacity(total.div_ceil(most).max(self.pages.len()));
        let page_bytes = self.page_bytes as u64;
        for run in runs {
            let end = run.to + run.bytes as u64;
            let first = self.pages.partition_point(|page| page.offset + page_bytes <= run.to);
            for page in self.pages[first..].iter().take_while(|page| page.offset < end) {
                let (first, last) = (page.offset.max(run.to), (page.offset + page_bytes).min(end));
                let mut at = first;
                while at < last {
                    let bytes = (last - at).min(most as u64);
                    let from = base + run.from as u64 + (at - run.to);
                    pieces.push(RowPiece { from, to: page.to + (at - page.offset), bytes });
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

    /// Blocks of two layers with three pages of 5,000 bytes each, some of them neighbours, as runs that a slot may also cut.
    #[test]
    fn pieces_take_each_byte_of_a_page_to_its_place_wherever_its_run_was_cut() {
        let (page_bytes, layers, each, of_layer) = (5000, 2, 3, 10u64);
        let (slots, tables) = (vec![3u64, 0, 1], vec![7u64, 2, 9, 0, 4, 1, 8, 5, 3]);
        let file: Vec<u8> = (0..125_000u32).map(|i| ((i * 7919) >> 5) as u8).collect();
        let start = 5000;
        for by_layer in [false, true] {
            let blocks = Blocks {
                start,
                page_bytes,
                layers,
                pages_each: each,
                slots: slots.clone(),
                tables: tables.clone(),
                base: 0,
                pages_of_layer: of_layer,
                by_layer,
            };
            assert_eq!(blocks.end(), Some(5000 + 4 * 30_000));
            let pages = Pages::new((By::Processors, None), 0, blocks);
            assert_eq!(pages.bytes(), 90_000);
            assert_eq!(pages.parts_by_group(), if by_layer { vec![1, 1] } else { vec![1] });
            for cut in [1, 700, 4096, 20_000] {
                let mut got = vec![0u8; 20 * page_bytes];
                for part in (0..pages.parts()).map(|index| pages.part(index)) {
                    let runs = part.runs();
                    let lengths: Vec<usize> = runs.iter().map(|run| run.bytes).collect();
                    // Blocks 0 and 1 are neighbours; their layers aren't.
                    assert_eq!(lengths, if by_layer { vec![15_000; 3] } else { vec![60_000, 30_000] });
                    let (mut slot, mut laid) = (Vec::new(), Vec::new());
                    for run in &runs {
                        for begin in (0..run.bytes).step_by(cut) {
                            let bytes = cut.min(run.bytes - begin);
                            let at = run.offset + begin as u64;
                            laid.push(Run { from: slot.len(), to: at, bytes });
                            slot.extend_from_slice(&file[at as usize..at as usize + bytes]);
                        }
                    }
                    for piece in part.pieces(1 << 40, &laid) {
                        let (from, to) = ((piece.from - (1 << 40)) as usize, piece.to as usize);
                        got[to..to + piece.bytes as usize]
                            .copy_from_slice(&slot[from..from + piece.bytes as usize]);
                    }
                }
                let mut expected = vec![0u8; got.len()];
                for (block, slot) in slots.iter().enumerate() {
                    for (layer, page) in
                        (0..layers).flat_map(|layer| (0..each).map(move |page| (layer, page)))
                    {
                        let row = (*slot as usize * layers + layer) * each + page;
                        let place = layer * of_layer as usize + tables[block * each + page] as usize;
                        let from = start as usize + row * page_bytes;
                        expected[place * page_bytes..][..page_bytes]
                            .copy_from_slice(&file[from..][..page_bytes]);
                    }
                }
                assert!(got == expected, "{by_layer} {cut}");
            }
        }
    }
}
