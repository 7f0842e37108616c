//! Content that identifies its location, for `--verify`: each 4 KiB block of a file is a function of a seed, the file
//! and the block's offset, which are in its first words. A block that was read from the wrong place is then named
//! ("holds block 4096 of file …"), not just counted as wrong.
//!
//! A block is 512 little-endian words: a header (magic, seed, file, block offset,
//! checksum of these) and a stream of words that no other block shares. The
//! stream is an add, a shift and an xor per word, which compilers turn into
//! vector code; it does not compress and does not deduplicate.

use crate::random::mix;
use std::fmt;

/// The identity of a block. Offsets are in bytes from the start of the file.
pub const BLOCK_BYTES: usize = 4096;

const MAGIC: u64 = u64::from_le_bytes(*b"FOREBAY1");
const HEADER_BYTES: usize = 40;
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// A stable number for a file: 64-bit FNV-1a of its name relative to the source.
pub fn file_id(name: &str) -> u64 {
    name.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}

/// Generates the content of `file` from byte `offset` on. Neither end needs to be aligned.
pub fn fill(buf: &mut [u8], seed: u64, file: u64, offset: u64) {
    let (head, blocks) = split_head_mut(buf, offset);
    let mut at = offset;
    if !head.is_empty() {
        fill_part(head, seed, file, at);
        at = at.wrapping_add(head.len() as u64);
    }
    let mut blocks = blocks.chunks_exact_mut(BLOCK_BYTES);
    for block in &mut blocks {
        Header { seed, file, offset: at }.write_block(block);
        at = at.wrapping_add(BLOCK_BYTES as u64);
    }
    let tail = blocks.into_remainder();
    if !tail.is_empty() {
        fill_part(tail, seed, file, at);
    }
}

/// Compares `buf` with the content that `fill` generates.
pub fn check(buf: &[u8], seed: u64, file: u64, offset: u64) -> Result<(), Mismatch> {
    let mut first = None;
    let mut blocks_bad = 0;
    let mut expected = [0; BLOCK_BYTES];
    let mut rest = buf;
    let mut at = offset;
    while !rest.is_empty() {
        let inside = (at % BLOCK_BYTES as u64) as usize;
        let (part, after) = rest.split_at(rest.len().min(BLOCK_BYTES - inside));
        let header = Header { seed, file, offset: at - inside as u64 };
        header.write_block(&mut expected);
        if *part != expected[inside..inside + part.len()] {
            blocks_bad += 1;
            if first.is_none() {
                first = Some(header.diagnose(part, inside, &expected));
            }
        }
        rest = after;
        at = at.wrapping_add(part.len() as u64);
    }
    match first {
        None => Ok(()),
        Some(first) => Err(Mismatch { blocks_bad, ..first }),
    }
}

/// What is said of content that identifies no file: a write without verification made it.
pub const UNVERIFIED: &str = "was written without ‹verify›, so its expected content isn't known";

/// A read that returned other content than was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The file that was read.
    pub file: u64,
    /// Offset in the file of the first wrong byte.
    pub at: u64,
    /// The content of the block of that byte.
    pub found: Found,
    /// 4 KiB blocks with at least one wrong byte, in the whole buffer.
    pub blocks_bad: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A block of this seed that belongs elsewhere.
    Misplaced { file: u64, offset: u64 },
    /// A block that another seed wrote: an older run, or another job.
    OtherSeed { seed: u64, file: u64, offset: u64 },
    /// Only zeroes: a hole, or never written.
    Zeroes,
    /// Nothing that Forebay wrote.
    Foreign,
    /// The right block, damaged.
    Corrupt { wrong_bytes: u64 },
}

impl Mismatch {
    /// One sentence for people. `name_of` turns a file's number into its name, where it is known.
    pub fn describe(&self, name_of: impl Fn(u64) -> Option<String>) -> String {
        let name = |file| name_of(file).unwrap_or_else(|| format!("file {file:016x}"));
        let block = self.at - self.at % BLOCK_BYTES as u64;
        let place = format!("block at {block} of {}", name(self.file));
        let what = match &self.found {
            Found::Misplaced { file: 0, .. } | Found::OtherSeed { file: 0, .. } => {
                format!("{place} {UNVERIFIED}")
            }
            Found::Misplaced { file, offset } => {
                format!("{place} holds block {offset} of {}", name(*file))
            }
            Found::OtherSeed { seed, file, offset } => {
                format!("{place} holds block {offset} of {} as written with seed {seed}", name(*file))
            }
            Found::Zeroes => format!("{place} holds only zeroes (never written?)"),
            Found::Foreign => format!("{place} holds nothing that forebay wrote"),
            Found::Corrupt { wrong_bytes } => {
                format!("{place} has {wrong_bytes} wrong bytes, the first at {}", self.at)
            }
        };
        match self.blocks_bad {
            0 | 1 => what,
            n => format!("{what}; {n} blocks of this read are wrong"),
        }
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe(|_| None))
    }
}

impl std::error::Error for Mismatch {}

/// Identity of a block's content.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Header {
    seed: u64,
    file: u64,
    /// Offset of the block's first byte.
    offset: u64,
}

/// Hash of the common part of a file's block headers: `mix(base ^ offset)` is a block's checksum. For code that
/// generates or checks content elsewhere, e.g. on a GPU.
pub fn base(seed: u64, file: u64) -> u64 {
    mix(mix(seed ^ MAGIC) ^ file)
}

impl Header {
    fn checksum(self) -> u64 {
        mix(base(self.seed, self.file) ^ self.offset)
    }

    /// The checksum is a fair hash of the three, so it also keys the stream. The loop is plain: without optimisation, as
    /// tests run, iterators over the block take twelve times as long; with it, as long.
    #[inline]
    fn write_block(self, block: &mut [u8]) {
        let key = self.checksum();
        let mut words = [[0; 8]; BLOCK_BYTES / 8];
        let (mut value, mut at) = (key, 0);
        while at < words.len() {
            words[at] = (value ^ (value >> 32)).to_le_bytes();
            value = value.wrapping_add(STEP);
            at += 1;
        }
        for (word, value) in words.iter_mut().zip([MAGIC, self.seed, self.file, self.offset, key]) {
            *word = value.to_le_bytes();
        }
        block.copy_from_slice(words.as_flattened());
    }

    /// None: not a header that `write_block` wrote.
    fn read(block: &[u8]) -> Option<Header> {
        let mut words = block.get(..HEADER_BYTES)?.chunks_exact(8).map(word);
        let [magic, seed, file, offset, checksum] = std::array::from_fn(|_| words.next().unwrap_or(0));
        let header = Header { seed, file, offset };
        (magic == MAGIC && checksum == header.checksum()).then_some(header)
    }

    /// Says what `part`, read from byte `inside` of this block, holds in place of `expected`.
    fn diagnose(self, part: &[u8], inside: usize, expected: &[u8; BLOCK_BYTES]) -> Mismatch {
        let pairs = || part.iter().zip(&expected[inside..]);
        let first = pairs().position(|(found, right)| found != right).unwrap_or(0);
        let wrong_bytes = pairs().filter(|(found, right)| found != right).count() as u64;
        let header = if inside == 0 { Header::read(part) } else { None };
        let found = match header {
            Some(found) if found.seed != self.seed => {
                Found::OtherSeed { seed: found.seed, file: found.file, offset: found.offset }
            }
            Some(found) if found != self => Found::Misplaced { file: found.file, offset: found.offset },
            None if part.iter().all(|byte| *byte == 0) => Found::Zeroes,
            // A stranger's byte is right once in 256.
            None if wrong_bytes * 2 > part.len() as u64 => Found::Foreign,
            _ => Found::Corrupt { wrong_bytes },
        };
        Mismatch { file: self.file, at: self.offset + (inside + first) as u64, found, blocks_bad: 0 }
    }
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[i]))
}

/// Bytes up to the first block boundary, and the rest.
fn split_head_mut(buf: &mut [u8], offset: u64) -> (&mut [u8], &mut [u8]) {
    let inside = (offset % BLOCK_BYTES as u64) as usize;
    let head = (BLOCK_BYTES - inside) % BLOCK_BYTES;
    let head = head.min(buf.len());
    buf.split_at_mut(head)
}

/// A part of one block, from byte `at` of the file.
fn fill_part(part: &mut [u8], seed: u64, file: u64, at: u64) {
    let inside = (at % BLOCK_BYTES as u64) as usize;
    let mut block = [0; BLOCK_BYTES];
    Header { seed, file, offset: at - inside as u64 }.write_block(&mut block);
    part.copy_from_slice(&block[inside..inside + part.len()]);
}
