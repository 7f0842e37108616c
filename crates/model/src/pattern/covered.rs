//! Random I/Os of several sizes that cover each byte once in a pass.

use super::permutation::Permutation;
use super::places::Places;
use super::Span;
use crate::random::derive;

/// Blocks of the least size that a pass keeps account of, at most: 512 MiB of memory.
pub const BLOCKS_MAX: u64 = 1 << 32;

/// Takes blocks of the least size in random order, and as many of those that follow as an I/O is long: up to one that was
/// taken before, or to the end of the span. A bit for each block says what was taken.
#[derive(Clone, Debug)]
pub struct Covered {
    places: Places,
    block_bytes: u64,
    seed: u64,
    permutation: Permutation,
    index: u64,
    left: u64,
    /// Made at the first I/O.
    taken: Vec<u64>,
}

impl Covered {
    pub fn new(places: Places, block_bytes: u64, seed: u64) -> Covered {
        let permutation = Permutation::new(places.total(), derive(seed, 0));
        let left = places.total();
        Covered { places, block_bytes, seed, permutation, index: 0, left, taken: Vec::new() }
    }

    /// The span, the offset in it, and the length of the next I/O, `len` at most; and whether it was the pass's last.
    #[inline]
    pub fn next(&mut self, spans: &[Span], len: u64) -> (usize, u64, u64, bool) {
        if self.taken.is_empty() {
            self.taken = vec![0; self.places.total().div_ceil(64) as usize];
        }
        let first = loop {
            let block = self.permutation.at(self.index);
            self.index += 1;
            if !self.is_taken(block) {
                break block;
            }
        };
        let (span, inside) = self.places.at(first);
        let rest = (spans[span].bytes - inside).div_ceil(self.block_bytes);
        let wanted = len.div_ceil(self.block_bytes).min(rest);
        let mut blocks = 0;
        while blocks < wanted && !self.is_taken(first + blocks) {
            self.take(first + blocks);
            blocks += 1;
        }
        self.left -= blocks;
        let len = len.min(blocks * self.block_bytes).min(spans[span].bytes - inside);
        (span, inside, len, self.left == 0)
    }

    #[cold]
    pub fn begin(&mut self, pass: u32) {
        self.taken.fill(0);
        self.left = self.places.total();
        self.index = 0;
        self.permutation = Permutation::new(self.left, derive(self.seed, u64::from(pass)));
    }

    fn is_taken(&self, block: u64) -> bool {
        self.taken[(block / 64) as usize] >> (block % 64) & 1 != 0
    }

    fn take(&mut self, block: u64) {
        self.taken[(block / 64) as usize] |= 1 << (block % 64);
    }
}
