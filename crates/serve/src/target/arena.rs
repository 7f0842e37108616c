//! Slots for the data of commands on their way: one pool for each thread.
//!
//! Three sizes, so that many small commands don't keep large slots, and don't all lie at the same place of a large
//! page. The slot that was given back last is taken first: it is the one that the processor's cache still holds.
//! Memory is reserved at once and touched only when a slot is first taken, so idle connections cost none.

#![allow(unsafe_code, reason = "memory mapped and lent out as slots")]

use forebay_io::Mem;
use forebay_model::Error;
use std::ptr::NonNull;

const HUGE: usize = 2 << 20;
const SMALL: usize = 16 << 10;
const MEDIUM: usize = 128 << 10;
const SIZES: usize = 3;

/// One slot, taken. Whoever has it gives it back once nothing points there any more.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    size: u8,
    index: u32,
}

/// Slots that somebody holds, by size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeldSlots([u32; SIZES]);

struct Size {
    base: NonNull<u8>,
    slot_bytes: usize,
    count: u32,
    /// From here on none was ever taken.
    untouched: u32,
    free: Vec<u32>,
}

pub(crate) struct Pool {
    base: NonNull<u8>,
    mapped_bytes: usize,
    sizes: [Size; SIZES],
    /// Zeros, as long as the longest transfer, that nobody can write to.
    blank: NonNull<u8>,
    blank_bytes: usize,
}

// SAFETY: the mappings are the pool's own, and move between threads with it.
unsafe impl Send for Pool {}

impl Pool {
    /// `bytes` in all, for transfers up to `longest`; an eighth for small ones, three eighths for medium ones.
    pub(crate) fn new(bytes: u64, longest: u32) -> Result<Pool, Error> {
        let large = (longest as usize).max(MEDIUM);
        let shares = [(SMALL, bytes / 8), (MEDIUM, bytes * 3 / 8), (large, bytes / 2)];
        let counts = shares.map(|(size, share)| ((share as usize / size).max(4), size));
        let room = |(count, size): (usize, usize)| (count * size).next_multiple_of(HUGE);
        let mapped_bytes = counts.into_iter().map(room).sum();
        let (base, blank) = (reserve(mapped_bytes, true)?, reserve(large, false)?);
        let mut offset = 0;
        let sizes = counts.map(|(count, slot_bytes)| {
            // SAFETY: the offsets add up to less than `mapped_bytes`.
            let start = unsafe { base.add(offset) };
            offset += room((count, slot_bytes));
            if slot_bytes > SMALL {
                // SAFETY: a part of our own mapping. Refusal only means smaller pages.
                unsafe {
                    libc::madvise(start.as_ptr().cast(), room((count, slot_bytes)), libc::MADV_HUGEPAGE)
                };
            }
            Size { base: start, slot_bytes, count: count as u32, untouched: 0, free: Vec::new() }
        });
        Ok(Pool { base, mapped_bytes, sizes, blank, blank_bytes: large })
    }

    /// The smallest that is free and long enough, for somebody who holds so many already: of what is free nobody
    /// gets more than is left for all others. None: wait until one is given back.
    pub(crate) fn take(&mut self, bytes: usize, held: &mut HeldSlots) -> Option<Slot> {
        (0..SIZES).find_map(|at| {
            let size = &mut self.sizes[at];
            let left = size.free.len() as u32 + size.count - size.untouched;
            if size.slot_bytes < bytes || (held.0[at] > 0 && held.0[at] >= left) {
                return None;
            }
            let index = match size.free.pop() {
                Some(index) => index,
                None if size.untouched < size.count => {
                    size.untouched += 1;
                    size.untouched - 1
                }
                None => return None,
            };
            held.0[at] += 1;
            Some(Slot { size: at as u8, index })
        })
    }

    pub(crate) fn give_back(&mut self, slot: Slot, held: &mut HeldSlots) {
        held.0[slot.size as usize] -= 1;
        self.sizes[slot.size as usize].free.push(slot.index);
    }

    fn bytes_of(&self, slot: &Slot) -> usize {
        self.sizes[slot.size as usize].slot_bytes
    }

    /// Slots that are taken.
    #[cfg(test)]
    pub(crate) fn taken(&self) -> usize {
        self.sizes.iter().map(|s| s.untouched as usize - s.free.len()).sum()
    }

    pub(crate) fn mem(&self, slot: &Slot) -> Mem {
        let size = &self.sizes[slot.size as usize];
        // SAFETY: a slot that was taken lies inside its part of the mapping.
        let at = unsafe { size.base.add(slot.index as usize * size.slot_bytes) };
        Mem::Host { at, piece: Mem::UNREGISTERED }
    }

    /// All of its slots.
    pub(crate) fn whole(&self) -> (NonNull<u8>, usize) {
        (self.base, self.mapped_bytes)
    }

    pub(crate) fn blank_bytes(&self) -> usize {
        self.blank_bytes
    }

    /// Zeros, at least as long as the longest transfer. To be read only.
    pub(crate) fn blank(&self) -> Mem {
        Mem::Host { at: self.blank, piece: Mem::UNREGISTERED }
    }

    pub(crate) fn bytes(&self, slot: &Slot, len: usize) -> &[u8] {
        let len = len.min(self.bytes_of(slot));
        // SAFETY: inside the slot, which its holder lends to nobody else meanwhile.
        unsafe { std::slice::from_raw_parts(self.mem(slot).host_ptr(), len) }
    }

    /// Leaves nothing of what the slot held before.
    pub(crate) fn clear(&mut self, slot: &Slot, len: usize) {
        let len = len.min(self.bytes_of(slot));
        // SAFETY: as in `bytes`.
        unsafe { self.mem(slot).host_ptr().write_bytes(0, len) };
    }
}

/// Memory of one command's own: for what must not wait for a slot.
#[derive(Debug)]
pub(crate) struct ScratchBuffer(NonNull<[u8]>);

// SAFETY: owned alone, like the box it was.
unsafe impl Send for ScratchBuffer {}

impl ScratchBuffer {
    /// `len` zeros.
    pub(crate) fn new(len: usize) -> ScratchBuffer {
        ScratchBuffer::from_vec(vec![0; len.max(1)])
    }

    pub(crate) fn from_vec(bytes: Vec<u8>) -> ScratchBuffer {
        ScratchBuffer(NonNull::from(Box::leak(bytes.into_boxed_slice())))
    }

    pub(crate) fn mem(&self) -> Mem {
        Mem::Host { at: self.0.cast(), piece: Mem::UNREGISTERED }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: ours, and whoever receives into it has finished before it is looked at.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for ScratchBuffer {
    fn drop(&mut self) {
        // SAFETY: made from a box by `from_vec`.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: our own mappings; the thread drops its streams and queues first, or forgets the pool.
        unsafe {
            libc::munmap(self.base.as_ptr().cast(), self.mapped_bytes);
            libc::munmap(self.blank.as_ptr().cast(), self.blank_bytes);
        }
    }
}

fn reserve(bytes: usize, writable: bool) -> Result<NonNull<u8>, Error> {
    let protection = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh anonymous mapping; no existing memory is touched.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        let found = std::io::Error::last_os_error().to_string();
        return Err(Error::machine(
            format!("{} MiB of buffers", bytes >> 20),
            found,
            "a smaller buffers = …",
        ));
    }
    Ok(NonNull::new(at.cast()).expect("mmap gave an address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_slot_given_back_is_taken_first_and_none_twice() {
        let mut pool = Pool::new(64 << 20, 1 << 20).unwrap();
        let mut held = HeldSlots::default();
        let slots: Vec<Slot> = (0..8).map(|_| pool.take(4096, &mut held).unwrap()).collect();
        let mut places: Vec<_> = slots.iter().map(|s| pool.mem(s).host_ptr() as usize).collect();
        assert!(places.iter().all(|p| p % 4096 == 0));
        let last = places[7];
        places.dedup();
        assert_eq!(places.len(), 8);
        slots.into_iter().for_each(|s| pool.give_back(s, &mut held));
        assert_eq!(held, HeldSlots::default());
        let again = pool.take(1, &mut held).unwrap();
        assert_eq!(pool.mem(&again).host_ptr() as usize, last);
        assert_eq!(pool.taken(), 1);
    }

    // promise: TGT-7
    #[test]
    fn nobody_takes_more_than_is_left_for_others() {
        let mut pool = Pool::new(16 << 20, 1 << 20).unwrap();
        let (mut held, mut count) = (HeldSlots::default(), 0);
        while pool.take(1 << 20, &mut held).is_some() {
            count += 1;
        }
        assert_eq!(count, 4, "half of the eight");
        assert!(pool.take(4096, &mut held).is_some(), "small ones are counted for themselves");
        assert!(pool.take(1 << 20, &mut HeldSlots::default()).is_some(), "somebody else still gets one");
        assert!(pool.take(2 << 20, &mut HeldSlots::default()).is_none(), "nothing is as long as that");
    }

    #[test]
    fn a_cleared_slot_holds_zeros_and_so_does_the_blank() {
        let mut pool = Pool::new(16 << 20, 1 << 20).unwrap();
        let slot = pool.take(4096, &mut HeldSlots::default()).unwrap();
        forebay_io::fill_memory(pool.mem(&slot), &[7; 4096]);
        assert_eq!(pool.bytes(&slot, 4096), [7; 4096]);
        pool.clear(&slot, 4096);
        assert_eq!(pool.bytes(&slot, 1 << 30)[..4096], [0; 4096]);
        assert!(!pool.blank().host_ptr().is_null());
    }
}
