//! Memory that outlives the process that writes in it: a file that its supervisor holds, too. Each completion queue has a sheet
//! of its own, at a place that its number says.

#![allow(unsafe_code, reason = "memory shared with another process")]

use forebay_model::Error;
use forebay_nvme::transport::pcie::queue::book::{self, Book, Words};
use rustix::fs::{fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create, MemfdFlags, SealFlags};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// Sheets of one controller. Pages that nobody wrote to take no memory.
#[derive(Debug)]
pub(crate) struct Paper {
    fd: OwnedFd,
    at: NonNull<AtomicU64>,
    /// Words of a sheet.
    words: usize,
    queues: u16,
}

// SAFETY: the memory is only accessed as atomics.
unsafe impl Send for Paper {}
// SAFETY: as above.
unsafe impl Sync for Paper {}

impl Paper {
    /// For I/O queues with numbers up to `queues`, of up to `entries`.
    ///
    /// # Errors
    /// `Machine`: no descriptor, no memory.
    pub(crate) fn new(queues: u16, entries: u16) -> Result<Paper, Error> {
        let make = || -> rustix::io::Result<OwnedFd> {
            let fd = memfd_create("forebay-queues", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
            ftruncate(&fd, bytes(queues, entries) as u64)?;
            fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
            Ok(fd)
        };
        Paper::adopt(make().map_err(|e| scarce(&e.to_string()))?, queues, entries)
    }

    /// Adopts memory that another process made, with all its notes.
    ///
    /// # Errors
    /// `Machine`: it isn't such a file, or can't be mapped.
    pub(crate) fn adopt(fd: OwnedFd, queues: u16, entries: u16) -> Result<Paper, Error> {
        let len = bytes(queues, entries);
        let sealed = fcntl_get_seals(&fd).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
        if !sealed || fstat(&fd).map_or(0, |file| file.st_size as usize) < len {
            return Err(scarce("it is too short, or may become so"));
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping of a file that can't shrink.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED {
            return Err(scarce(&std::io::Error::last_os_error().to_string()));
        }
        let at = NonNull::new(at.cast()).expect("mmap gave an address");
        Ok(Paper { fd, at, words: sheet(queues, entries), queues })
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// A completion queue's.
    pub(crate) fn book(self: &Arc<Paper>, cqid: u16) -> Book {
        Book::new(Box::new(Sheet { all: self.clone(), at: usize::from(cqid) * self.words }), self.queues)
    }
}

impl Drop for Paper {
    fn drop(&mut self) {
        let words = (usize::from(self.queues) + 1) * self.words;
        // SAFETY: mapped by `adopt` with this length.
        unsafe { libc::munmap(self.at.as_ptr().cast(), words * 8) };
    }
}

/// Words of a sheet, on cache lines of its own.
fn sheet(queues: u16, entries: u16) -> usize {
    book::words(queues, entries).next_multiple_of(16)
}

fn bytes(queues: u16, entries: u16) -> usize {
    (usize::from(queues) + 1) * sheet(queues, entries) * 8
}

fn scarce(found: &str) -> Error {
    Error::machine("memory that a killed gateway's queues outlive", found, "ulimit -n 65536")
}

#[derive(Debug)]
struct Sheet {
    all: Arc<Paper>,
    at: usize,
}

impl Sheet {
    fn word(&self, word: usize) -> &AtomicU64 {
        assert!(word < self.all.words, "a word beyond its sheet");
        // SAFETY: within the mapping, which lives as long as `all`: `at` is a sheet's place, and `word` within it.
        unsafe { self.all.at.add(self.at + word).as_ref() }
    }
}

/// A process that is killed has made a first part of its stores: each waits for those before it.
impl Words for Sheet {
    fn load(&self, word: usize) -> u64 {
        self.word(word).load(Ordering::Acquire)
    }

    fn store(&self, word: usize, value: u64) {
        self.word(word).store(value, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_mapping_notes_another_reads_and_each_queue_has_a_sheet() {
        let (queues, entries) = (3, 8);
        let first = Arc::new(Paper::new(queues, entries).unwrap());
        let second = Arc::new(Paper::adopt(first.fd().try_clone().unwrap(), queues, entries).unwrap());
        let all =
            |paper: &Arc<Paper>, cqid: u16| Sheet { all: paper.clone(), at: usize::from(cqid) * paper.words };
        for cqid in 0..=queues {
            for word in 0..book::words(queues, entries) {
                all(&first, cqid).store(word, u64::from(cqid) << 32 | word as u64);
            }
        }
        for cqid in 0..=queues {
            for word in 0..book::words(queues, entries) {
                assert_eq!(all(&second, cqid).load(word), u64::from(cqid) << 32 | word as u64);
            }
        }
    }

    #[test]
    fn a_file_that_is_too_short_or_may_shrink_is_refused() {
        let small = Paper::new(1, 8).unwrap();
        assert!(Paper::adopt(small.fd().try_clone().unwrap(), 200, 1024)
            .unwrap_err()
            .found
            .contains("short"));
        let open = memfd_create("open", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&open, 1 << 20).unwrap();
        assert!(Paper::adopt(open, 1, 8).is_err());
    }
}
