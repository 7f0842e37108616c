//! The file's mapping, and pages of it that the GPU may read. No byte of the
//! mapping is touched by the CPU but through `guarded_copy`, so that a file that
//! shrinks under it can't end the process by SIGBUS.

#![allow(unsafe_code, reason = "reading a mapping of a file")]

use crate::source::file::FileTarget;
use forebay_io::{CudaDevice, CudaError, RegisteredMemory};
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// Advice that fills page tables, and reads what isn't cached.
pub const MADV_POPULATE_READ: i32 = 22;

/// A whole file, mapped for reading.
pub struct Mapping {
    at: NonNull<u8>,
    bytes: usize,
}

// SAFETY: an address range; the CPU reads through it only where a fault ends the copy.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub fn new(file: &FileTarget) -> std::io::Result<Mapping> {
        let bytes = file.bytes.max(1) as usize;
        // SAFETY: a fresh read-only mapping of a file that the target holds open.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ,
                libc::MAP_SHARED,
                file.file.as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        Ok(Mapping { at: NonNull::new(at.cast()).expect("mmap gave an address"), bytes })
    }

    /// Fills the page tables of a range. Refusal (a kernel before 5.14, pages that are gone) costs only speed:
    /// registering takes the faults itself, and tells of errors.
    pub fn populate(&self, offset: u64, bytes: usize) {
        let at = self.address(offset);
        // SAFETY: advice about a range of our mapping; faults are answers of the call, not signals.
        unsafe { libc::madvise(at.as_ptr().cast(), bytes, MADV_POPULATE_READ) };
    }

    /// Returns whether the kernel fills page tables when asked to.
    pub fn can_populate(&self) -> bool {
        // SAFETY: advice about nothing, which the kernel only checks.
        unsafe { libc::madvise(self.at.as_ptr().cast(), 0, MADV_POPULATE_READ) == 0 }
    }

    /// Has each page that isn't cached bring the huge page around it, where the file system's cache has such, and nothing beyond:
    /// one allocation and one read for what would otherwise take hundreds. `false`: as the kernel sees fit again.
    pub fn read_by_huge_pages(&self, wanted: bool) {
        let advices: &[i32] =
            if wanted { &[libc::MADV_HUGEPAGE, libc::MADV_RANDOM] } else { &[libc::MADV_NORMAL] };
        for advice in advices {
            // SAFETY: advice about our mapping; refusal costs only speed.
            unsafe { libc::madvise(self.at.as_ptr().cast(), self.bytes, *advice) };
        }
    }

    /// The address of the byte at `offset`, for the device.
    pub fn address(&self, offset: u64) -> NonNull<u8> {
        assert!((offset as usize) < self.bytes, "{offset} of {}", self.bytes);
        // SAFETY: inside the mapping.
        unsafe { self.at.add(offset as usize) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our mapping; its pins are dropped before it.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.bytes) };
    }
}

/// Pages that stay where they are while this lives. Dropping it waits for the copies from them.
pub trait Pin: Send {}

/// Lets devices read pages of a mapping.
pub trait Pinner: Send + Sync {
    /// `bytes` from `at`, both whole pages.
    fn pin(&self, at: NonNull<u8>, bytes: usize) -> Result<Box<dyn Pin>, CudaError>;
}

/// One registration serves all GPUs of the process.
pub struct DevicePinner(pub Arc<CudaDevice>);

impl Pin for RegisteredMemory {}

impl Pinner for DevicePinner {
    fn pin(&self, at: NonNull<u8>, bytes: usize) -> Result<Box<dyn Pin>, CudaError> {
        // SAFETY: the registry keeps the mapping until its pins are gone; windows begin and end on pages.
        let registered = unsafe { self.0.register(at.as_ptr(), bytes, true) }?;
        Ok(Box::new(registered))
    }
}
