//! I/Os that bring a part's pieces: arithmetic.

use crate::place::{Address, Range};

/// Shorter ranges aren't divided to spare a copy of some of their bytes: another I/O costs more.
const SPARED_BYTES_MIN: u64 = 64 << 10;

/// Limits of a source's I/Os.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// Its size; the last block may be a short one.
    pub bytes: u64,
    /// Alignment of offsets and lengths, and of memory.
    pub align: u64,
    pub mem_align: u64,
    /// Longest I/O, a multiple of `align`. None crosses a multiple of it.
    pub io_bytes: u64,
    /// It takes host memory that isn't a slot's.
    pub in_place: bool,
}

/// A place in a part: a piece, and bytes of it that are begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cursor {
    pub piece: usize,
    pub done: u64,
}

/// An I/O: `count` pieces from `first` on, of whose bytes `skip` were begun before, as far as it reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Planned {
    pub offset: u64,
    pub len: u32,
    pub first: u32,
    pub count: u32,
    pub skip: u64,
    /// The address that it reads to. None: a slot.
    pub in_place: Option<u64>,
    pub next: Cursor,
}

/// The I/O at a cursor; None behind the last piece.
pub(super) fn next_io(pieces: &[Range], cursor: Cursor, rules: &Rules) -> Option<Planned> {
    let Cursor { piece: first, done: skip } = cursor;
    let piece = pieces.get(first)?;
    let Rules { align, io_bytes, .. } = *rules;
    let start = piece.offset + skip;
    let begin = start - start % align;
    let limit = (start / io_bytes + 1) * io_bytes;
    let end = limit.min(piece.offset + piece.bytes as u64);
    let planned = |offset: u64, end: u64, count: usize, in_place, next| Planned {
        offset,
        len: (end - offset) as u32,
        first: first as u32,
        count: count as u32,
        skip,
        in_place,
        next,
    };
    let place = place_at(piece, begin + if begin < start { align } else { 0 }, rules);
    let whole = end - end % align;
    if let Some(at) = place.filter(|_| begin == start && whole > start) {
        return Some(planned(begin, whole, 1, Some(at), after(pieces, first, whole)));
    }
    if place.is_some() && end.saturating_sub(begin + align) >= SPARED_BYTES_MIN {
        // The block that begins before the range; the rest is read in place.
        let head = begin + align;
        return Some(planned(begin, head, 1, None, after(pieces, first, head)));
    }
    let blocks = |end: u64| end.next_multiple_of(align).min(limit).min(rules.bytes);
    let (mut end, mut count, mut next) = (blocks(end), 1, after(pieces, first, end));
    // Those that follow in blocks that it reads anyway, or in the next ones.
    while let Some(more) = pieces.get(next.piece).filter(|_| next.done == 0) {
        let joins = (begin..=end).contains(&more.offset) && more.offset < limit;
        if !joins || place_at(more, more.offset, rules).is_some() && more.bytes as u64 >= SPARED_BYTES_MIN {
            break;
        }
        let reached = limit.min(more.offset + more.bytes as u64);
        end = end.max(blocks(reached));
        count += 1;
        next = after(pieces, next.piece, reached);
    }
    Some(planned(begin, end, count, None, next))
}

/// The address of a piece's byte at `offset`, if whole blocks can be read to it from there on.
fn place_at(piece: &Range, offset: u64, rules: &Rules) -> Option<u64> {
    let Address::Host(at) = piece.to else { return None };
    let at = at + offset.checked_sub(piece.offset)?;
    (rules.in_place && offset % rules.align == 0 && at % rules.mem_align == 0).then_some(at)
}

/// The cursor after a piece's bytes up to `offset`.
fn after(pieces: &[Range], piece: usize, offset: u64) -> Cursor {
    let range = &pieces[piece];
    match offset - range.offset {
        done if done < range.bytes as u64 => Cursor { piece, done },
        _ => Cursor { piece: piece + 1, done: 0 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BYTES: u64 = 20_011;
    const BLOCK: u64 = 512;

    /// Fills each piece's place, its address in `to`, as I/Os would.
    fn played(source: &[u8], pieces: &[Range], rules: &Rules, to: &mut [u8]) -> Result<u32, TestCaseError> {
        let (mut cursor, mut ios) = (Cursor::default(), 0);
        while let Some(io) = next_io(pieces, cursor, rules) {
            let end = io.offset + u64::from(io.len);
            prop_assert!(io.len > 0 && io.offset % rules.align == 0 && end <= rules.bytes);
            prop_assert!(u64::from(io.len) % rules.align == 0 || end == rules.bytes);
            prop_assert!(io.offset / rules.io_bytes == (end - 1) / rules.io_bytes);
            let own = &pieces[io.first as usize..][..io.count as usize];
            for (from, place, bytes) in super::super::wanted(own, io.skip, io.offset, io.len) {
                let Address::Host(at) = place else { unreachable!() };
                if let Some(in_place) = io.in_place {
                    prop_assert_eq!((in_place, bytes as u32, from), (at, io.len, 0));
                    prop_assert!(rules.in_place && at % rules.mem_align == 0);
                }
                let from = io.offset as usize + from;
                to[at as usize..][..bytes].copy_from_slice(&source[from..from + bytes]);
            }
            prop_assert_ne!(cursor, io.next);
            (cursor, ios) = (io.next, ios + 1);
        }
        Ok(ios)
    }

    proptest! {
        /// Whatever is asked for comes to its place, in I/Os that the source takes.
        // promise: PYT-29
        #[test]
        fn pieces_come_whole(
            asked in prop::collection::vec((0..BYTES, 1usize..9000, 0u64..600), 1..12),
            mem_align in prop::sample::select(vec![1u64, 4, 512]), io_blocks in 1u64..9, in_place: bool,
        ) {
            let source: Vec<u8> = (0..BYTES).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
            let mut at = 0;
            let pieces: Vec<Range> = asked
                .iter()
                .map(|&(offset, bytes, gap)| {
                    let bytes = bytes.min((BYTES - offset) as usize);
                    at += gap;
                    let to = Address::Host(at);
                    at += bytes as u64;
                    Range { file: 0, offset, bytes, to }
                })
                .collect();
            let rules = Rules { bytes: BYTES, align: BLOCK, mem_align, io_bytes: io_blocks * BLOCK, in_place };
            let mut to = vec![0xee; at as usize];
            played(&source, &pieces, &rules, &mut to)?;
            let mut expected = vec![0xee; at as usize];
            for Range { offset, bytes, to, .. } in &pieces {
                let Address::Host(at) = to else { unreachable!() };
                expected[*at as usize..][..*bytes].copy_from_slice(&source[*offset as usize..][..*bytes]);
            }
            prop_assert_eq!(to, expected);
        }
    }

    #[test]
    fn rows_of_a_block_come_by_one_io_and_long_ranges_in_place() {
        let rules = Rules { bytes: 1 << 30, align: 4096, mem_align: 4, io_bytes: 1 << 20, in_place: true };
        let row =
            |number: u64| Range { file: 0, offset: number * 64, bytes: 64, to: Address::Host(number * 64) };
        let rows: Vec<Range> = (0..128).map(row).collect();
        let io = next_io(&rows, Cursor::default(), &rules).unwrap();
        assert_eq!((io.len, io.count, io.in_place), (8192, 128, None));
        assert_eq!(next_io(&rows, io.next, &rules), None);
        let long = [Range { file: 0, offset: 100, bytes: 3 << 20, to: Address::Host(100) }];
        let mut cursor = Cursor::default();
        let mut ios = Vec::new();
        while let Some(io) = next_io(&long, cursor, &rules) {
            ios.push((io.offset, io.len, io.in_place));
            cursor = io.next;
        }
        let mib = 1 << 20;
        let head = [(0, 4096, None), (4096, (mib - 4096) as u32, Some(4096))];
        let tail =
            [(mib, mib as u32, Some(mib)), (2 * mib, mib as u32, Some(2 * mib)), (3 * mib, 4096, None)];
        assert_eq!(ios, [&head[..], &tail].concat());
    }
}
