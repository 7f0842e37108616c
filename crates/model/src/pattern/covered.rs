//! Random I/Os of several sizes that cover each byte once in a pass.

use super::places::Places;
use super::Span;
use crate::random::{derive, Below, Xoshiro256};

/// Blocks of the least size that a pass keeps account of, at most: 512 MiB of memory.
pub const BLOCKS_MAX: u64 = 1 << 32;

/// Sizes drawn for an I/O near the end of its span, before it is cut.
const DRAWS_MAX: usize = 64;

/// Draws a block of the least size, takes it or, if it was taken before, the next one that wasn't, and as many of those that
/// follow as an I/O is long: up to one that was taken before, or to the end of the span. What is left thus stays in long
/// pieces, and few I/Os are cut. A bit for each block says what was taken, and one for each 64 of them whether all were.
#[derive(Clone, Debug)]
pub struct Covered {
    places: Places,
    block_bytes: u64,
    seed: u64,
    below: Below,
    random: Xoshiro256,
    left: u64,
    /// Made at the first I/O.
    taken: Vec<u64>,
    full: Vec<u64>,
}

impl Covered {
    pub fn new(places: Places, block_bytes: u64, seed: u64) -> Covered {
        let (left, random) = (places.total(), Xoshiro256::new(derive(seed, 0)));
        let below = Below::new(left);
        Covered { places, block_bytes, seed, below, random, left, taken: Vec::new(), full: Vec::new() }
    }

    /// The span, the offset in it, and the length of the next I/O, `len` at most; and whether it was the pass's last. Where
    /// `len` leads beyond the span, `again` gives another.
    #[inline]
    pub fn next(
        &mut self,
        spans: &[Span],
        mut len: u64,
        again: impl FnMut() -> u64,
    ) -> (usize, u64, u64, bool) {
        if self.taken.is_empty() {
            let words = self.places.total().div_ceil(64);
            self.taken = vec![0; words as usize];
            self.full = vec![0; words.div_ceil(64) as usize];
        }
        let drawn = self.below.draw(&mut self.random);
        let first = self.free_from(drawn);
        let (span, inside) = self.places.at(first);
        let room = spans[span].bytes - inside;
        if len > room {
            len = std::iter::repeat_with(again).take(DRAWS_MAX).find(|len| *len <= room).unwrap_or(room);
        }
        let rest = room.div_ceil(self.block_bytes);
        let wanted = len.div_ceil(self.block_bytes).min(rest);
        let mut blocks = 0;
        while blocks < wanted && !self.is_taken(first + blocks) {
            self.take(first + blocks);
            blocks += 1;
        }
        self.left -= blocks;
        let len = len.min(blocks * self.block_bytes).min(room);
        (span, inside, len, self.left == 0)
    }

    #[cold]
    pub fn begin(&mut self, pass: u32) {
        self.taken.fill(0);
        self.full.fill(0);
        self.left = self.places.total();
        self.random = Xoshiro256::new(derive(self.seed, u64::from(pass)));
    }

    fn is_taken(&self, block: u64) -> bool {
        self.taken[(block / 64) as usize] >> (block % 64) & 1 != 0
    }

    fn take(&mut self, block: u64) {
        let word = (block / 64) as usize;
        self.taken[word] |= 1 << (block % 64);
        if self.taken[word] == u64::MAX {
            self.full[word / 64] |= 1 << (word % 64);
        }
    }

    /// The first block from `block` on that isn't taken, or else the first of all. There is one.
    fn free_from(&self, block: u64) -> u64 {
        let total = self.places.total();
        let free = self.next_free(block);
        if free < total {
            free
        } else {
            self.next_free(0)
        }
    }

    /// From `total` on: none.
    fn next_free(&self, block: u64) -> u64 {
        let bit_from = |words: &[u64], at: u64| {
            let free = !words.get((at / 64) as usize)? >> (at % 64);
            (free != 0).then(|| at + u64::from(free.trailing_zeros()))
        };
        if let Some(free) = bit_from(&self.taken, block) {
            return free;
        }
        let mut word = block / 64 + 1;
        while word < self.taken.len() as u64 {
            match bit_from(&self.full, word) {
                Some(found) if found < self.taken.len() as u64 => {
                    return bit_from(&self.taken, found * 64).unwrap_or(u64::MAX);
                }
                _ => word = (word / 64 + 1) * 64,
            }
        }
        u64::MAX
    }
}
