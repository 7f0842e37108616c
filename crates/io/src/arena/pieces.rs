//! Scattered payload: the bytes of one I/O in several ranges of host memory, in order, as in a requester's PRP list.
//!
//! The list belongs to the caller that pushed the I/O, and must be neither moved nor changed until the I/O has been
//! reaped. So `Mem` remains small and `Copy`.

use super::Mem;
use std::ptr::NonNull;

/// One range of host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub at: NonNull<u8>,
    pub len: usize,
}

// SAFETY: an address, like `Mem`.
unsafe impl Send for Piece {}

impl Piece {
    /// Returns whether `next` begins where this one ends.
    fn continues_in(&self, next: &Piece) -> bool {
        self.at.as_ptr().wrapping_add(self.len) == next.at.as_ptr()
    }
}

/// A list that is refilled for each I/O; adjacent pieces are merged. It must not be changed between the push of an
/// I/O that uses it and its reaping.
#[derive(Debug, Default)]
pub struct PieceList(Vec<Piece>);

impl PieceList {
    pub fn with_capacity(pieces: usize) -> PieceList {
        PieceList(Vec::with_capacity(pieces))
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Appends a range; an empty one adds nothing.
    pub fn push(&mut self, piece: Piece) {
        match self.0.last_mut() {
            _ if piece.len == 0 => {}
            Some(last) if last.continues_in(&piece) => last.len += piece.len,
            _ => self.0.push(piece),
        }
    }

    pub fn as_slice(&self) -> &[Piece] {
        &self.0
    }

    /// The payload memory of an I/O.
    pub fn mem(&self) -> Mem {
        Mem::pieces(&self.0)
    }
}

impl Mem {
    /// Memory in these pieces, in order; one piece is contiguous memory like any other.
    ///
    /// # Panics
    /// Over 65535 pieces.
    pub fn pieces(list: &[Piece]) -> Mem {
        match list {
            [] => Mem::None,
            [one] => Mem::Host { at: one.at, piece: Mem::UNREGISTERED },
            several => Mem::Pieces {
                list: NonNull::from(several).cast(),
                count: u16::try_from(list.len()).expect("an I/O has at most 65535 pieces"),
                skip: 0,
            },
        }
    }

    /// Returns whether the memory is scattered, as far as can be told without reading the list.
    pub fn is_scattered(self) -> bool {
        matches!(self, Mem::Pieces { .. })
    }

    /// As contiguous memory, if the next `len` bytes lie in one piece.
    pub fn narrow(self, len: usize) -> Mem {
        if !self.is_scattered() {
            return self;
        }
        match self.each(len).next() {
            Some(first) if first.len == len => Mem::Host { at: first.at, piece: Mem::UNREGISTERED },
            _ => self,
        }
    }

    /// Returns whether there is host memory for `len` bytes.
    pub fn holds(self, len: usize) -> bool {
        match self {
            Mem::Host { .. } => true,
            Mem::Pieces { .. } => self.each(len).map(|piece| piece.len).sum::<usize>() == len,
            Mem::Device { .. } | Mem::None => len == 0,
        }
    }

    /// The ranges of host memory that hold the next `len` bytes, in order. It ends early if the memory does, and is
    /// empty if there is no host memory.
    pub fn each(self, len: usize) -> Each {
        let (here, list, count) = match self {
            Mem::Host { at, .. } => (Piece { at, len: usize::MAX }, NonNull::dangling(), 0),
            Mem::Pieces { list, count, skip } => {
                let (first, rest) =
                    pieces_of(&list, count).split_first().map_or((NOWHERE, &[][..]), |(f, r)| (*f, r));
                (cut(first, skip as usize), NonNull::from(rest).cast(), rest.len())
            }
            Mem::Device { .. } | Mem::None => (NOWHERE, NonNull::dangling(), 0),
        };
        Each { here, list, count: count as u16, left: len }
    }
}

const NOWHERE: Piece = Piece { at: NonNull::dangling(), len: 0 };

/// The list behind a `Mem::Pieces`.
fn pieces_of(list: &NonNull<Piece>, count: u16) -> &[Piece] {
    // SAFETY: whoever pushed the I/O keeps the list until it is reaped, and `count` pieces of it are left.
    unsafe { std::slice::from_raw_parts(list.as_ptr(), usize::from(count)) }
}

/// Returns a piece without its first `skip` bytes; `skip` is at most its length.
fn cut(piece: Piece, skip: usize) -> Piece {
    // SAFETY: at most one past the piece's end, which is one allocation for whoever named it.
    Piece { at: unsafe { piece.at.add(skip) }, len: piece.len - skip }
}

/// `Mem::after` for scattered memory: empty behind the end.
pub(super) fn after(list: NonNull<Piece>, count: u16, skip: u32, bytes: usize) -> Mem {
    let mut rest = skip as usize + bytes;
    let all = pieces_of(&list, count);
    for (at, piece) in all.iter().enumerate() {
        if rest < piece.len {
            let skip = u32::try_from(rest).expect("an I/O is shorter than 4 GiB");
            return Mem::Pieces { list: NonNull::from(&all[at..]).cast(), count: count - at as u16, skip };
        }
        rest -= piece.len;
    }
    Mem::Pieces { list, count: 0, skip: 0 }
}

/// The ranges that `Mem::each` returns.
#[derive(Clone, Debug)]
pub struct Each {
    /// Rest of the piece that comes next.
    here: Piece,
    /// Pieces behind it.
    list: NonNull<Piece>,
    count: u16,
    left: usize,
}

impl Iterator for Each {
    type Item = Piece;

    #[inline]
    fn next(&mut self) -> Option<Piece> {
        while self.here.len == 0 && self.left > 0 {
            let (first, rest) = pieces_of(&self.list, self.count).split_first()?;
            let (first, rest) = (*first, NonNull::from(rest).cast());
            (self.here, self.list, self.count) = (first, rest, self.count - 1);
        }
        if self.left == 0 {
            return None;
        }
        let piece = Piece { at: self.here.at, len: self.here.len.min(self.left) };
        self.here = cut(self.here, piece.len);
        self.left -= piece.len;
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A list over `bytes`, with these lengths, from back to front so that nothing lies side by side.
    fn scattered(bytes: &mut [u8], lens: &[usize]) -> Vec<Piece> {
        let mut at = bytes.len();
        let of = |len: &usize| {
            at -= len + 1;
            Piece { at: NonNull::new(bytes[at..].as_mut_ptr()).unwrap(), len: *len }
        };
        lens.iter().map(of).collect()
    }

    fn places(mem: Mem, len: usize) -> Vec<*mut u8> {
        mem.each(len).flat_map(|p| (0..p.len).map(move |i| p.at.as_ptr().wrapping_add(i))).collect()
    }

    proptest! {
        /// Wherever one stands and however much one asks for, the bytes are those of the whole list there.
        // promise: ENG-16
        #[test]
        fn bytes_follow_the_list(lens in prop::collection::vec(0usize..40, 0..12), skip in 0usize..200, on in 0usize..200, len in 0usize..300) {
            let total: usize = lens.iter().sum();
            let mut bytes = vec![0; total + lens.len() + 1];
            let list = scattered(&mut bytes, &lens);
            let all: Vec<*mut u8> =
                list.iter().flat_map(|p| (0..p.len).map(move |i| p.at.as_ptr().wrapping_add(i))).collect();
            let mem = Mem::pieces(&list);
            if let (Mem::Host { .. }, true) = (mem, skip + on + len > total) {
                return Ok(()); // Contiguous memory doesn't know where it ends.
            }
            let from = (skip + on).min(total);
            let wanted = &all[from..(from + len).min(total)];
            let here = mem.after(skip).after(on);
            prop_assert_eq!(places(here, len), wanted);
            prop_assert_eq!(here.holds(len), wanted.len() == len);
            let narrow = here.narrow(len);
            if narrow.is_scattered() {
                prop_assert_eq!(narrow, here);
            } else if len > 0 && narrow != Mem::None {
                prop_assert_eq!(places(narrow, len), wanted);
            }
        }
    }

    #[test]
    fn pieces_side_by_side_are_one() {
        let bytes = [0u8; 64];
        let at = |i: usize, len| Piece { at: NonNull::from(&bytes[i]), len };
        let mut list = PieceList::with_capacity(4);
        [at(0, 16), at(16, 16), at(40, 0), at(48, 8), at(40, 8)].into_iter().for_each(|p| list.push(p));
        assert_eq!(list.as_slice(), [at(0, 32), at(48, 8), at(40, 8)]);
        assert!(list.mem().is_scattered());
        list.clear();
        list.push(at(8, 8));
        assert_eq!(list.mem(), Mem::Host { at: at(8, 8).at, piece: Mem::UNREGISTERED });
        list.clear();
        assert_eq!(list.mem(), Mem::None);
    }

    #[test]
    fn other_memory_has_one_stretch_or_none() {
        let mut byte = 0u8;
        let mem = Mem::Host { at: NonNull::from(&mut byte), piece: 3 };
        assert_eq!(mem.each(1).collect::<Vec<_>>(), [Piece { at: NonNull::from(&mut byte), len: 1 }]);
        assert_eq!(mem.narrow(1), mem);
        for nowhere in [Mem::None, Mem::Device { gpu: 0, at: 4096 }] {
            assert_eq!(nowhere.each(9).count(), 0);
            assert!(!nowhere.holds(1) && nowhere.holds(0));
        }
    }
}
