//! The descriptors of one hardware queue, as the driver shows them: a mapping of the character device to be read.

#![allow(unsafe_code, reason = "reading a mapping of a file")]

use super::uapi::{descriptors_bytes, descriptors_offset, Descriptor};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

pub(super) struct Descriptors {
    base: NonNull<Descriptor>,
    mapped_bytes: usize,
    depth: u16,
}

// SAFETY: the mapping is owned, and moves between threads as a whole.
unsafe impl Send for Descriptors {}

impl Descriptors {
    pub(super) fn map(device: &File, queue: u16, depth: u16) -> std::io::Result<Descriptors> {
        let page = rustix::param::page_size();
        let mapped_bytes = descriptors_bytes(depth, page);
        let offset = descriptors_offset(queue, page) as libc::off_t;
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        let fd = device.as_raw_fd();
        // SAFETY: a fresh mapping, to be read only.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), mapped_bytes, libc::PROT_READ, flags, fd, offset) };
        if at == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        Ok(Descriptors { base: NonNull::new(at.cast()).expect("mmap gave an address"), mapped_bytes, depth })
    }

    /// Returns the descriptor of a request that the driver has handed over: it doesn't write there until the request
    /// is done.
    pub(super) fn get(&self, tag: u16) -> Descriptor {
        assert!(tag < self.depth, "tag {tag} of {}", self.depth);
        // SAFETY: inside the mapping, which is page-aligned. Any bytes are a descriptor; the ring's completion, which
        // was read before, orders this after the driver's writes.
        unsafe { self.base.add(usize::from(tag)).as_ptr().read_volatile() }
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: our own mapping.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.mapped_bytes) };
    }
}
