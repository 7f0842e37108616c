//! The slots of one hardware queue: each request has its own, into which the driver copies what is written, and out of
//! which it copies what was read. Reserved at once, touched as far as requests use it.

#![allow(unsafe_code, reason = "memory mapped and lent out as slots")]

use forebay_io::Mem;
use forebay_model::Error;
use std::ptr::NonNull;

pub(super) struct Slots {
    base: NonNull<u8>,
    slot_bytes: usize,
    count: usize,
}

// SAFETY: the mapping is owned, and moves between threads as a whole.
unsafe impl Send for Slots {}

impl Slots {
    /// `count` slots of `slot_bytes`, a multiple of the page.
    pub(super) fn new(count: u16, slot_bytes: u32) -> Result<Slots, Error> {
        let (count, slot_bytes) = (usize::from(count.max(1)), slot_bytes as usize);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh anonymous mapping; no existing memory is touched.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), count * slot_bytes, protection, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            let found = std::io::Error::last_os_error().to_string();
            let asked = format!("{count} buffers of {} KiB for a ublk queue", slot_bytes >> 10);
            return Err(Error::machine(asked, found, "a smaller depth, or max_transfer = \"128k\""));
        }
        Ok(Slots { base: NonNull::new(at.cast()).expect("mmap gave an address"), slot_bytes, count })
    }

    pub(super) fn mem(&self, tag: u16) -> Mem {
        assert!(usize::from(tag) < self.count, "tag {tag} of {}", self.count);
        // SAFETY: below `count`, so inside the mapping.
        let at = unsafe { self.base.add(usize::from(tag) * self.slot_bytes) };
        Mem::Host { at, piece: Mem::UNREGISTERED }
    }

    /// Its address, as the driver wants it.
    pub(super) fn address(&self, tag: u16) -> u64 {
        self.mem(tag).host_ptr() as u64
    }

    /// Zeros the first bytes of a slot. Nobody else has it meanwhile.
    pub(super) fn clear(&mut self, tag: u16, bytes: usize) {
        // SAFETY: inside the slot, which belongs to a request that this thread alone works on.
        unsafe { self.mem(tag).host_ptr().write_bytes(0, bytes.min(self.slot_bytes)) };
    }
}

#[cfg(test)]
impl Slots {
    pub(crate) fn bytes(&self, tag: u16, len: usize) -> Vec<u8> {
        // SAFETY: inside the slot; in a test nobody writes there meanwhile.
        unsafe { std::slice::from_raw_parts(self.mem(tag).host_ptr(), len.min(self.slot_bytes)) }.to_vec()
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        // SAFETY: our own mapping; the thread drops its queues first, or forgets the slots.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.slot_bytes * self.count) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_lie_apart_and_are_cleared_alone() {
        let mut slots = Slots::new(3, 8192).unwrap();
        assert_eq!(slots.address(2) - slots.address(0), 16384);
        assert_eq!(slots.address(1) % 4096, 0);
        for tag in 0..3 {
            forebay_io::fill_memory(slots.mem(tag), &[7; 8192]);
        }
        slots.clear(1, usize::MAX);
        for tag in 0..3 {
            assert_eq!(slots.bytes(tag, 8192), [if tag == 1 { 0 } else { 7 }; 8192]);
        }
    }
}
