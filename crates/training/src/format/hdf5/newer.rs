//! Structures of HDF5's second generation (File Format Specification 3.0, sections II.A, III.D to G and IV): superblocks
//! of version 2 and 3, object headers of version 2, links by message, and the lists of chunks that came with layout
//! version 4. Each ends in a checksum, which is held against the bytes before it.

use super::super::bounded::{u16_at, u32_at, u64_at};
use super::SIGNATURE;

pub(super) const SUPERBLOCK_BYTES: usize = 48;
/// Longest that an object header's prefix can be, up to the length of its messages.
pub(super) const PREFIX_BYTES: u64 = 34;
pub(super) const ARRAY_HEADER_BYTES: u64 = 28;
/// Signature, version, client and the header's address, of a fixed array's block.
const ARRAY_BLOCK_HEAD: usize = 14;
const CHECKSUM: usize = 4;
pub(super) const SOFT: &str = "it is a soft link, which isn't followed";
/// Bits of a message's flags.
const SHARED: u8 = 2;

/// Bob Jenkins' lookup3, as HDF5 sums its metadata.
pub(crate) fn lookup3(bytes: &[u8]) -> u32 {
    let start = 0xdead_beef_u32.wrapping_add(bytes.len() as u32);
    let (mut a, mut b, mut c) = (start, start, start);
    let mut rest = bytes;
    let word = |part: &[u8], at: usize| {
        let mut le = [0; 4];
        let have = part.len().saturating_sub(at).min(4);
        le[..have].copy_from_slice(&part[part.len().min(at)..][..have]);
        u32::from_le_bytes(le)
    };
    while rest.len() > 12 {
        a = a.wrapping_add(word(rest, 0));
        b = b.wrapping_add(word(rest, 4));
        c = c.wrapping_add(word(rest, 8));
        for (x, y, z, by) in
            [(0, 2, 1, 4), (1, 0, 2, 6), (2, 1, 0, 8), (0, 2, 1, 16), (1, 0, 2, 19), (2, 1, 0, 4)]
        {
            let mut all = [a, b, c];
            all[x] = all[x].wrapping_sub(all[y]) ^ all[y].rotate_left(by);
            all[y] = all[y].wrapping_add(all[z]);
            [a, b, c] = all;
        }
        rest = &rest[12..];
    }
    if rest.is_empty() {
        return c;
    }
    let mut all =
        [a.wrapping_add(word(rest, 0)), b.wrapping_add(word(rest, 4)), c.wrapping_add(word(rest, 8))];
    for (x, y, by) in [(2, 1, 14), (0, 2, 11), (1, 0, 25), (2, 1, 16), (0, 2, 4), (1, 0, 14), (2, 1, 24)] {
        all[x] = (all[x] ^ all[y]).wrapping_sub(all[y].rotate_left(by));
    }
    all[2]
}

/// The block without the checksum at its end, which has to be that of the rest.
pub(super) fn summed<'a>(block: &'a [u8], what: &str) -> Result<&'a [u8], String> {
    let at = block.len().checked_sub(CHECKSUM).ok_or_else(|| format!("{what} has {} bytes", block.len()))?;
    match lookup3(&block[..at]) == u32_at(block, at) {
        true => Ok(&block[..at]),
        false => Err(format!("{what} doesn't have the checksum that is stored behind it")),
    }
}

/// Parses a superblock of version 2 or 3, `begin` bytes into the file: the address of the root group's header, from there on.
pub(super) fn superblock(head: &[u8], file_bytes: u64, begin: u64) -> Result<u64, String> {
    let head = head.get(..SUPERBLOCK_BYTES).ok_or("the file ends inside its superblock")?;
    if &head[..8] != SIGNATURE || (head[9], head[10]) != (8, 8) {
        return Err(format!(
            "its offsets and lengths have {} and {} bytes, and 8 are known",
            head[9], head[10]
        ));
    }
    summed(head, "its superblock")?;
    let (base, end, has) = (u64_at(head, 12), u64_at(head, 28), file_bytes.saturating_add(begin));
    match base == begin && end <= has {
        true => Ok(u64_at(head, 36)),
        false => Err(format!("its superblock says bytes {base} to {end}, and the file has {has}")),
    }
}

/// The first block of an object's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Prefix {
    /// Of the whole block, with its checksum.
    pub bytes: u64,
    /// Where its messages begin.
    pub messages_at: usize,
    /// Each message has a number, by which they were made.
    pub numbered: bool,
}

/// Parses an object header's prefix, of at most `PREFIX_BYTES`.
pub(super) fn prefix(head: &[u8]) -> Result<Prefix, String> {
    let bad = || format!("an object's header begins with {:?}", &head[..head.len().min(6)]);
    let (Some(2), Some(flags)) = (head.get(4), head.get(5)) else { return Err(bad()) };
    let at = 6 + if flags & 0x20 != 0 { 16 } else { 0 } + if flags & 0x10 != 0 { 4 } else { 0 };
    let width = 1_usize << (flags & 3);
    let size = head.get(at..at + width).ok_or_else(bad)?;
    let mut le = [0; 8];
    le[..width].copy_from_slice(size);
    let messages_at = at + width;
    let bytes = u64::from_le_bytes(le).saturating_add((messages_at + CHECKSUM) as u64);
    Ok(Prefix { bytes, messages_at, numbered: flags & 4 != 0 })
}

/// Kind and body of each message of a block.
pub(super) fn messages(block: &[u8], numbered: bool) -> Result<Vec<(u16, &[u8])>, String> {
    let (mut rest, head) = (block, if numbered { 6 } else { 4 });
    let mut found = Vec::new();
    // What is shorter than a message's head is a gap.
    while rest.len() >= head {
        let (kind, bytes, flags) = (u16::from(rest[0]), usize::from(u16_at(rest, 1)), rest[3]);
        let body = rest.get(head..head + bytes);
        let body = body.ok_or_else(|| format!("a message of {bytes} bytes goes beyond its header"))?;
        if flags & SHARED != 0 && matches!(kind, 0x01 | 0x03 | 0x08 | 0x0B) {
            return Err(format!(
                "a message of type {kind} lies elsewhere (a committed type), which isn't followed"
            ));
        }
        found.push((kind, body));
        rest = &rest[head + bytes..];
    }
    Ok(found)
}

/// Where a link leads.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Link {
    Header(u64),
    Elsewhere(&'static str),
}

/// Parses a link message: name, and where it leads.
pub(super) fn link(body: &[u8]) -> Result<(&[u8], Link), String> {
    let bad = || format!("a link of {} bytes, version {:?}", body.len(), body.first());
    let (Some(1), Some(flags)) = (body.first(), body.get(1)) else { return Err(bad()) };
    let mut at = 2;
    let mut next = |bytes: usize| {
        at += bytes;
        body.get(at - bytes..at).ok_or_else(bad)
    };
    let kind = if flags & 8 != 0 { next(1)?[0] } else { 0 };
    next(if flags & 4 != 0 { 8 } else { 0 })?;
    next(usize::from(flags & 0x10 != 0))?;
    let mut le = [0; 8];
    let width = 1 << (flags & 3);
    le[..width].copy_from_slice(next(width)?);
    let name =
        next(usize::try_from(u64::from_le_bytes(le)).ok().filter(|n| *n <= body.len()).ok_or_else(bad)?)?;
    let leads = match kind {
        0 => Link::Header(u64_at(next(8)?, 0)),
        1 => Link::Elsewhere(SOFT),
        64 => Link::Elsewhere("it is a link into another file"),
        _ => Link::Elsewhere("it is a link that only its program understands"),
    };
    Ok((name, leads))
}

/// Whether a link info message says that there are more links than messages can hold.
pub(super) fn is_dense(body: &[u8]) -> bool {
    let at = if body.get(1).is_some_and(|flags| flags & 1 != 0) { 10 } else { 2 };
    body.get(at..at + 8).is_some_and(|heap| u64_at(heap, 0) != u64::MAX)
}

/// A chunk in a list: its address; and its bytes and the filters left out, where any filter may have changed it.
pub(super) type Listed = (u64, Option<(u64, u32)>);

/// The list of a data set's chunks, by its layout message of version 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chunks {
    /// One; its length and the filters left out, if it has any.
    Single {
        at: u64,
        packed: Option<(u64, u32)>,
    },
    /// One behind the other.
    Implicit {
        at: u64,
    },
    FixedArray {
        at: u64,
    },
}

/// Parses the rest of a chunked layout of version 4, behind version and class: sides of a chunk, and their list.
pub(super) fn chunked(rest: &[u8]) -> Result<(Vec<u64>, Chunks), String> {
    let bad = || format!("a layout of version 4 and class 2 has {} bytes", rest.len() + 2);
    let [flags, rank, width, rest @ ..] = rest else { return Err(bad()) };
    let (sides, width) = (usize::from(*rank).saturating_sub(1), usize::from(*width));
    if sides == 0 || !(1..=8).contains(&width) || rest.len() < (sides + 1) * width + 1 {
        return Err(bad());
    }
    let side = |i: usize| {
        let mut le = [0; 8];
        le[..width].copy_from_slice(&rest[i * width..][..width]);
        u64::from_le_bytes(le)
    };
    let dims: Vec<u64> = (0..sides).map(side).collect();
    let list = &rest[(sides + 1) * width..];
    let address = |at: usize| list.get(at..at + 8).map(|place| u64_at(place, 0)).ok_or_else(bad);
    let chunks = match list[0] {
        1 if flags & 2 != 0 => {
            let packed = list.get(1..13).ok_or_else(bad)?;
            Chunks::Single { at: address(13)?, packed: Some((u64_at(packed, 0), u32_at(packed, 8))) }
        }
        1 => Chunks::Single { at: address(1)?, packed: None },
        2 => Chunks::Implicit { at: address(1)? },
        3 => Chunks::FixedArray { at: address(2)? },
        4 => return Err(unread("an extensible array, as one with a side that may grow")),
        5 => return Err(unread("a tree of the second version, as one with several sides that may grow")),
        other => {
            return Err(format!("its chunks are listed in a way of number {other}, and 1 to 5 are known"))
        }
    };
    Ok((dims, chunks))
}

fn unread(list: &str) -> String {
    format!(
        "its chunks are listed in {list}, which isn't read here; h5repack --high=0 IN OUT writes one that is"
    )
}

/// The header of a fixed array: its elements, all chunks of a data set in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Array {
    pub at: u64,
    pub block_bytes: u64,
    elements: u64,
    entry_bytes: u64,
    /// Elements of a page; as many as there are where it has none.
    page: u64,
}

impl Array {
    /// Parses the header of `ARRAY_HEADER_BYTES` that describes `wanted` chunks, `packed` by filters or not.
    pub(super) fn header(block: &[u8], wanted: u64, packed: bool) -> Result<Array, String> {
        let head = summed(block, "the header of a list of chunks")?;
        let (client, entry_bytes, bits) = (head[5], u64::from(head[6]), u32::from(head[7]));
        let (elements, at) = (u64_at(head, 8), u64_at(head, 16));
        let entry_right = if packed { (13..=20).contains(&entry_bytes) } else { entry_bytes == 8 };
        if &head[..5] != b"FAHD\0" || client != u8::from(packed) || !entry_right || elements != wanted {
            return Err(format!("a list of {elements} chunks doesn't belong to a data set of {wanted}"));
        }
        let page = 1_u64.checked_shl(bits).filter(|page| elements > *page).unwrap_or(elements);
        let pages = elements.div_ceil(page.max(1));
        let head = ARRAY_BLOCK_HEAD as u64 + if pages > 1 { pages.div_ceil(8) } else { 0 };
        // A page has a checksum of its own.
        let sums = if pages > 1 { 1 + pages } else { 1 } * CHECKSUM as u64;
        Ok(Array { at, block_bytes: head + elements * entry_bytes + sums, elements, entry_bytes, page })
    }

    /// Parses the block of its elements: (address, bytes and filters left out where they are packed) each.
    pub(super) fn elements(&self, block: &[u8]) -> Result<Vec<Listed>, String> {
        let what = "a list of chunks";
        let pages = self.elements.div_ceil(self.page.max(1));
        if block.len() as u64 != self.block_bytes || &block[..5] != b"FADB\0" {
            return Err(format!("{what} doesn't begin with FADB"));
        }
        let entry = |e: &[u8]| {
            let packed = (e.len() > 8).then(|| {
                let mut le = [0; 8];
                le[..e.len() - 12].copy_from_slice(&e[8..e.len() - 4]);
                (u64::from_le_bytes(le), u32_at(e, e.len() - 4))
            });
            (u64_at(e, 0), packed)
        };
        let each = self.entry_bytes as usize;
        if pages <= 1 {
            let rest = &summed(block, what)?[ARRAY_BLOCK_HEAD..];
            return Ok(rest.chunks_exact(each).map(entry).collect());
        }
        let head = ARRAY_BLOCK_HEAD + pages.div_ceil(8) as usize + CHECKSUM;
        let mut found = Vec::new();
        let bitmap = &summed(&block[..head], what)?[ARRAY_BLOCK_HEAD..];
        for (n, page) in block[head..].chunks(self.page as usize * each + CHECKSUM).enumerate() {
            // The first page is the byte's highest bit. One that was never written has no checksum either.
            let written = bitmap[n / 8] & (0x80 >> (n % 8)) != 0;
            let count = (page.len() - CHECKSUM) / each;
            match written {
                true => {
                    found.extend(summed(page, "a page of a list of chunks")?.chunks_exact(each).map(entry))
                }
                false => found.extend(std::iter::repeat_n((u64::MAX, None), count)),
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lookup3_gives_the_sums_that_its_author_names() {
        assert_eq!(lookup3(b""), 0xdead_beef);
        assert_eq!(lookup3(b"Four score and seven years ago"), 0x1777_0551);
    }
}
