//! The doorbells of BAR 0: memory that a client may map, so that ringing is a store and no message.

#![allow(unsafe_code, reason = "memory shared with another process")]

use forebay_model::Error;
use forebay_nvme::transport::pcie::registers::{Doorbell, DOORBELLS};
use rustix::fs::{fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create, MemfdFlags, SealFlags};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

/// Registers, and the doorbells behind them.
pub(super) const BAR0_BYTES: u64 = 0x4000;
/// Doorbells without gaps between them (CAP.DSTRD 0): of the admin queue and up to `QUEUES_MAX` others.
pub(super) const PAGE_BYTES: u64 = BAR0_BYTES - DOORBELLS;
/// I/O queues whose doorbells fit in.
pub(super) const QUEUES_MAX: u16 = (PAGE_BYTES / 8 - 1) as u16;

/// BAR 0 as a file: nothing but its doorbells is ever used.
#[derive(Debug)]
pub(super) struct Doorbells {
    fd: Arc<OwnedFd>,
    page: NonNull<AtomicU32>,
}

// SAFETY: the page is only accessed as atomics.
unsafe impl Send for Doorbells {}
// SAFETY: as above.
unsafe impl Sync for Doorbells {}

impl Doorbells {
    pub(super) fn new() -> Result<Doorbells, Error> {
        let failed =
            |e: std::io::Error| Error::machine("a page of doorbells", e.to_string(), "ulimit -n 65536");
        let make = || -> rustix::io::Result<OwnedFd> {
            let fd = memfd_create("forebay-doorbells", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
            ftruncate(&fd, BAR0_BYTES)?;
            // Whoever maps it can't take it away from us.
            fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
            Ok(fd)
        };
        Doorbells::mapped(make().map_err(|e| failed(e.into()))?)
    }

    /// Adopts doorbells that another process made, with their values.
    ///
    /// # Errors
    /// `Machine`: it isn't such a file.
    pub(super) fn adopt(fd: OwnedFd) -> Result<Doorbells, Error> {
        let sealed = fcntl_get_seals(&fd).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
        if !sealed || fstat(&fd).is_ok_and(|file| (file.st_size as u64) < BAR0_BYTES) {
            let found = "it is too short, or may become so";
            return Err(Error::machine("a page of doorbells", found, "forebay snap without --take-over"));
        }
        Doorbells::mapped(fd)
    }

    fn mapped(fd: OwnedFd) -> Result<Doorbells, Error> {
        let failed =
            |e: std::io::Error| Error::machine("a page of doorbells", e.to_string(), "ulimit -n 65536");
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let (len, offset) = (PAGE_BYTES as usize, DOORBELLS as libc::off_t);
        // SAFETY: a fresh mapping of a file that can't shrink.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, fd.as_raw_fd(), offset)
        };
        if at == libc::MAP_FAILED {
            return Err(failed(std::io::Error::last_os_error()));
        }
        Ok(Doorbells { fd: Arc::new(fd), page: NonNull::new(at.cast()).expect("mmap gave an address") })
    }

    /// The file, for a client to map.
    pub(super) fn fd(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    fn word(&self, doorbell: Doorbell) -> &AtomicU32 {
        let at = (doorbell.offset(0) - DOORBELLS).min(PAGE_BYTES - 4);
        // SAFETY: a word within the page, which is as long as `self`; shared memory is accessed as atomics alone.
        unsafe { self.page.byte_add(at as usize).as_ref() }
    }

    pub(super) fn get(&self, doorbell: Doorbell) -> u32 {
        self.word(doorbell).load(Ordering::Acquire)
    }

    pub(super) fn set(&self, doorbell: Doorbell, value: u32) {
        self.word(doorbell).store(value, Ordering::Release);
    }

    /// As after a reset.
    pub(super) fn clear(&self) {
        for qid in 0..=QUEUES_MAX {
            self.set(Doorbell::Submission(qid), 0);
            self.set(Doorbell::Completion(qid), 0);
        }
    }
}

impl Drop for Doorbells {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length.
        unsafe { libc::munmap(self.page.as_ptr().cast(), PAGE_BYTES as usize) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_doorbell_has_its_word_and_none_is_outside() {
        let doorbells = Doorbells::new().unwrap();
        for qid in 0..=QUEUES_MAX {
            doorbells.set(Doorbell::Submission(qid), u32::from(qid) * 2);
            doorbells.set(Doorbell::Completion(qid), u32::from(qid) * 2 + 1);
        }
        for qid in 0..=QUEUES_MAX {
            assert_eq!(doorbells.get(Doorbell::Submission(qid)), u32::from(qid) * 2);
            assert_eq!(doorbells.get(Doorbell::Completion(qid)), u32::from(qid) * 2 + 1);
        }
        doorbells.get(Doorbell::Completion(u16::MAX));
    }

    #[test]
    fn a_client_can_not_shrink_it() {
        let doorbells = Doorbells::new().unwrap();
        assert!(ftruncate(&**doorbells.fd(), 0).is_err());
    }
}
