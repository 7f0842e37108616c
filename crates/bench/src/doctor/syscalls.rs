//! The two system calls that no safe wrapper has: how much of a file is cached.

use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use std::io;

/// cachestat(2), Linux 6.5; the number is the same on every architecture.
const SYS_CACHESTAT: libc::c_long = 451;

#[repr(C)]
struct Range {
    offset: u64,
    len: u64,
}

#[repr(C)]
#[derive(Default)]
struct Cachestat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Pages of a file in the page cache, by cachestat(2).
pub(crate) fn cached_pages(file: BorrowedFd<'_>) -> io::Result<u64> {
    let range = Range { offset: 0, len: 0 };
    let mut stat = Cachestat::default();
    // SAFETY: both structures live through the call and are laid out as in linux/mman.h.
    let code = unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &range, &mut stat, 0) };
    if code != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(stat.cached)
}

/// Pages of the first `bytes` of a file in the page cache, by mincore(2) on a mapping.
pub(crate) fn mapped_pages(file: BorrowedFd<'_>, bytes: usize) -> io::Result<u64> {
    use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};
    let pages = bytes.div_ceil(rustix::param::page_size());
    let mut resident = vec![0u8; pages];
    // SAFETY: a fresh mapping that nothing else refers to; it is not read through.
    let base =
        unsafe { mmap(std::ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, file.as_fd(), 0) }?;
    // SAFETY: `base` is page-aligned and `resident` has one byte per page.
    let code = unsafe { libc::mincore(base, bytes, resident.as_mut_ptr()) };
    let answer = if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    // SAFETY: the mapping made above, not used again.
    unsafe { munmap(base, bytes) }?;
    answer.map(|()| resident.iter().filter(|page| **page & 1 == 1).count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn both_ways_to_count_cached_pages_agree_where_both_exist() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[1; 8 * 4096]).unwrap();
        let mapped = mapped_pages(file.as_fd(), 8 * 4096).unwrap();
        assert_eq!(mapped, (8 * 4096usize).div_ceil(rustix::param::page_size()) as u64);
        if let Ok(cached) = cached_pages(file.as_fd()) {
            assert_eq!(cached, mapped);
        }
    }
}
