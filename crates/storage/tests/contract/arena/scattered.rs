//! Scattered slots: what a slot would hold lies in pieces, out of order, with gaps
//! between them that nobody may write to.

use super::arena::{untouched, UNTOUCHED};
use forebay_io::{Arena, Geometry, Mem, Piece};
use forebay_model::job::Pages;
use forebay_model::random::Xoshiro256;
use std::ptr::NonNull;

const PIECES_MAX: u64 = 24;
const GAP_MAX: u64 = 8192;

pub struct Scattered {
    memory: Arena,
    lists: Vec<Vec<Piece>>,
    random: Xoshiro256,
    slot_bytes: usize,
    /// Pieces are multiples of this long, and begin at multiples of that.
    unit: usize,
    mem_align: usize,
}

impl Scattered {
    /// For `count` slots of a queue with this geometry; memory of any alignment is cut anywhere.
    pub fn new(count: usize, slot_bytes: usize, geometry: Geometry, seed: u64) -> Scattered {
        let slot_bytes = slot_bytes.next_multiple_of(4096);
        let room = 2 * slot_bytes + (PIECES_MAX * 2 * GAP_MAX) as usize;
        let mem_align = geometry.mem_align as usize;
        Scattered {
            memory: Arena::new(count, room, Pages::Small).unwrap(),
            lists: vec![Vec::new(); count],
            random: Xoshiro256::new(seed),
            slot_bytes,
            unit: if mem_align > 1 { geometry.align as usize } else { 1 },
            mem_align,
        }
    }

    fn below(&mut self, n: u64) -> u64 {
        ((self.random.next_f64() * n as f64) as u64).min(n.saturating_sub(1))
    }

    /// Cuts the slot anew, and fills it. Only for a slot without an I/O.
    pub fn lay(&mut self, index: usize, bytes: &[u8]) -> Mem {
        assert_eq!(bytes.len(), self.slot_bytes);
        let area = self.memory.slot(index).host_ptr();
        // SAFETY: the slot is that long, inside the arena, and the caller has no I/O on it.
        unsafe { area.write_bytes(UNTOUCHED, self.memory.slot_bytes()) };
        let cuts = self.cuts();
        let places = self.places(&cuts);
        let list: Vec<Piece> = cuts
            .windows(2)
            .zip(places)
            .map(|(cut, place)| {
                let at = area.wrapping_add(place);
                // SAFETY: `places` keeps each piece inside the slot.
                unsafe { std::ptr::copy_nonoverlapping(bytes[cut[0]..].as_ptr(), at, cut[1] - cut[0]) };
                Piece { at: NonNull::new(at).unwrap(), len: cut[1] - cut[0] }
            })
            .collect();
        self.lists[index] = list;
        Mem::pieces(&self.lists[index])
    }

    /// Returns the boundaries of pieces, the slot's own among them.
    fn cuts(&mut self) -> Vec<usize> {
        let units = (self.slot_bytes / self.unit) as u64;
        let count = self.below(PIECES_MAX);
        let mut cuts: Vec<usize> = (0..count).map(|_| self.below(units) as usize * self.unit).collect();
        cuts.extend([0, self.slot_bytes]);
        cuts.sort_unstable();
        cuts.dedup();
        cuts
    }

    /// An offset for each piece: in any order, and apart.
    fn places(&mut self, cuts: &[usize]) -> Vec<usize> {
        let lens: Vec<usize> = cuts.windows(2).map(|cut| cut[1] - cut[0]).collect();
        let mut order: Vec<usize> = (0..lens.len()).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, self.below(i as u64 + 1) as usize);
        }
        let (mut places, mut at) = (vec![0; lens.len()], 0);
        for piece in order {
            at += 1 + self.below(GAP_MAX - 1) as usize;
            at = at.next_multiple_of(self.mem_align);
            places[piece] = at;
            at += lens[piece];
        }
        places
    }

    /// The whole slot, put together. Only for a slot without an I/O.
    pub fn gather(&self, index: usize) -> Vec<u8> {
        let area = self.memory.slot(index).host_ptr();
        // SAFETY: as in `lay`.
        let mut whole = unsafe { std::slice::from_raw_parts(area, self.memory.slot_bytes()) }.to_vec();
        let mut bytes = Vec::with_capacity(self.slot_bytes);
        for piece in &self.lists[index] {
            let from = piece.at.as_ptr() as usize - area as usize;
            bytes.extend_from_slice(&whole[from..from + piece.len]);
            whole[from..from + piece.len].fill(UNTOUCHED);
        }
        assert!(untouched(&whole), "something was written between the pieces");
        bytes
    }
}
