//! Memory shared with the device: queues, lists of addresses, shadow doorbells.
//!
//! A sealed memfd, so that the other end can't shrink it under us. The device
//! sees it at the address that it has here. Both ends may write at any time, so
//! words are read and written atomically, and nothing that is read is trusted.

#![allow(unsafe_code, reason = "memory shared with another process")]

use forebay_io::{map_shared_memory, sealed_memfd, Mem};
use forebay_nvme::transport::pcie::{HostMemory, Unmapped};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU8, Ordering};

#[derive(Debug)]
pub(crate) struct Shared {
    base: NonNull<u8>,
    bytes: usize,
    fd: OwnedFd,
}

// SAFETY: the mapping lives as long as the value, and its bytes are only accessed atomically.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// Zeroed; whole pages.
    pub(crate) fn new(bytes: usize) -> std::io::Result<Shared> {
        let bytes = bytes.max(1).next_multiple_of(4096);
        let fd = sealed_memfd(bytes, false)?;
        let base = map_shared_memory(&fd, bytes)?;
        Ok(Shared { base, bytes, fd })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Returns the address at which the device finds it.
    pub(crate) fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Offset of `bytes` at this address, where all of them are inside.
    fn inside(&self, address: u64, bytes: usize) -> Result<usize, Unmapped> {
        let at = address.checked_sub(self.address()).and_then(|at| usize::try_from(at).ok());
        at.filter(|at| at.checked_add(bytes).is_some_and(|end| end <= self.bytes))
            .ok_or(Unmapped { address, bytes: bytes as u64 })
    }

    /// The word at this address.
    pub(crate) fn word(&self, address: u64) -> Result<&AtomicU32, Unmapped> {
        let at = self.inside(address, 4)?;
        if at % 4 != 0 {
            return Err(Unmapped { address, bytes: 4 });
        }
        // SAFETY: inside the mapping, which lives as long as `self`, aligned, and only accessed atomically.
        Ok(unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(at).cast()) })
    }

    fn byte(&self, at: usize) -> &AtomicU8 {
        debug_assert!(at < self.bytes);
        // SAFETY: callers have checked that `at` is inside the mapping.
        unsafe { AtomicU8::from_ptr(self.base.as_ptr().add(at)) }
    }

    /// The bytes at `at`, in words where both sides are aligned.
    fn copy(
        &self,
        at: usize,
        bytes: usize,
        mut word: impl FnMut(usize, &AtomicU32),
        mut byte: impl FnMut(usize, &AtomicU8),
    ) {
        let mut i = 0;
        while i < bytes {
            if (at + i) % 4 == 0 && bytes - i >= 4 {
                // SAFETY: callers have checked that all `bytes` are inside the mapping; aligned.
                word(i, unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(at + i).cast()) });
                i += 4;
            } else {
                byte(i, self.byte(at + i));
                i += 1;
            }
        }
    }
}

impl HostMemory for Shared {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unmapped> {
        let at = self.inside(address, into.len())?;
        let bytes = into.len();
        let cell = std::cell::RefCell::new(into);
        let word = |i: usize, from: &AtomicU32| {
            cell.borrow_mut()[i..i + 4].copy_from_slice(&from.load(Ordering::Relaxed).to_ne_bytes());
        };
        let byte = |i: usize, from: &AtomicU8| cell.borrow_mut()[i] = from.load(Ordering::Relaxed);
        self.copy(at, bytes, word, byte);
        Ok(())
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), Unmapped> {
        let at = self.inside(address, from.len())?;
        let word = |i: usize, to: &AtomicU32| {
            to.store(u32::from_ne_bytes([from[i], from[i + 1], from[i + 2], from[i + 3]]), Ordering::Relaxed);
        };
        let byte = |i: usize, to: &AtomicU8| to.store(from[i], Ordering::Relaxed);
        self.copy(at, from.len(), word, byte);
        Ok(())
    }

    fn load(&self, address: u64) -> Result<u32, Unmapped> {
        Ok(self.word(address)?.load(Ordering::Acquire))
    }

    fn store(&self, address: u64, value: u32) -> Result<(), Unmapped> {
        self.word(address)?.store(value, Ordering::Release);
        Ok(())
    }

    fn contains(&self, address: u64, bytes: u64) -> bool {
        usize::try_from(bytes).is_ok_and(|bytes| self.inside(address, bytes).is_ok())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and whoever refers to it holds this value.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Copies a payload, which may be scattered, into a slot that the device has.
pub(super) fn gather(slot: Mem, payload: Mem, bytes: usize) {
    let mut to = slot.host_ptr();
    for piece in payload.each(bytes) {
        // SAFETY: until an I/O is reaped its `bytes` belong to the queue, and a staging slot holds as many. They are two
        // allocations.
        unsafe {
            std::ptr::copy_nonoverlapping(piece.at.as_ptr(), to, piece.len);
            to = to.add(piece.len);
        }
    }
}

/// Copies what the device left in a slot to where the payload belongs.
pub(super) fn scatter(slot: Mem, payload: Mem, bytes: usize) {
    let mut from = slot.host_ptr().cast_const();
    for piece in payload.each(bytes) {
        // SAFETY: as in `gather`.
        unsafe {
            std::ptr::copy_nonoverlapping(from, piece.at.as_ptr(), piece.len);
            from = from.add(piece.len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_bytes_are_where_they_were_put_and_nothing_is_outside() {
        let memory = Shared::new(5000).unwrap();
        let base = memory.address();
        assert_eq!(memory.bytes(), 8192);
        let data: Vec<u8> = (0..64).collect();
        for at in [0, 1, 4095, 8192 - 64] {
            memory.write(base + at, &data).unwrap();
            let mut back = [0; 64];
            memory.read(base + at, &mut back).unwrap();
            assert_eq!(back[..], data[..]);
        }
        memory.store(base + 8, 0xdead_beef).unwrap();
        assert_eq!(memory.load(base + 8).unwrap(), 0xdead_beef);
        assert!(memory.load(base + 9).is_err(), "unaligned");
        assert!(memory.contains(base, 8192) && !memory.contains(base, 8193));
        for (address, bytes) in [(base - 1, 4), (base + 8189, 4), (u64::MAX, 4), (0, 4)] {
            assert!(memory.write(address, &data[..bytes]).is_err(), "{address:#x}");
        }
    }

    #[test]
    fn nobody_can_change_its_size() {
        let memory = Shared::new(4096).unwrap();
        let copy = memory.fd().try_clone_to_owned().unwrap();
        assert!(rustix::fs::ftruncate(&copy, 0).is_err());
        assert!(rustix::fs::ftruncate(&copy, 1 << 20).is_err());
    }
}
